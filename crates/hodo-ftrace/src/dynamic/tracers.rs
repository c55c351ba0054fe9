//! The tracers, and their bits in masks.

use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering};

use crate::arch::Registers;
use crate::environment;
use crate::state::{Hooks, Vectors, set_tracers};

/// The bit of the hook of [`crate::set_entry`].
pub const ENTRY: u64 = 1 << 62;
/// The bit of the hooks of [`crate::set_graph`].
pub const GRAPH: u64 = 1 << 63;
/// How many tracers there may be.
pub const MASKS: usize = 62;

/// In `flags`: the function is given the registers. (The kernel: `FTRACE_OPS_FL_SAVE_REGS`.)
pub const SAVE_REGISTERS: usize = 2;
/// In `flags`: the function may change the registers, and where execution goes on. It is given them. Only one such
/// tracer may want to see a function. (The kernel: `FTRACE_OPS_FL_IPMODIFY`.)
pub const IP_MODIFY: usize = 4;
/// In `flags`: only threads that have switched it on are traced ([`set_thread`]). (The kernel: `set_ftrace_pid`.)
pub const PER_THREAD: usize = 8;
/// In `flags`: the function is given the registers, and misses no call when other tracers are added to a function or
/// taken away. On x86-64 this costs a look at the sites at each call. (Elsewhere no tracer misses any.)
pub const EVERY_CALL: usize = 16;

/// The mask of a trampoline that does not know it: it is the mask of the site that has called. There is one for each
/// kind, for combinations of tracers for which there is no other, and for sites that must not be switched off for a
/// moment.
pub(crate) const LOOKED_UP: u64 = !0;

/// What is called at entries: the address of the site, the address to which the function will return, the tracer, and
/// the registers, if it asked for them. (The kernel: `ftrace_func_t`.)
pub type Func =
    extern "C" fn(ip: usize, parent_ip: usize, ops: &Ops, registers: Option<&mut Registers>);

/// A tracer. The kernel's name is `ftrace_ops`.
#[repr(C)]
#[derive(Debug)]
pub struct Ops {
    /// The function.
    pub func: Func,
    /// [`crate::VECTORS`], [`SAVE_REGISTERS`], [`IP_MODIFY`], [`PER_THREAD`] and [`EVERY_CALL`].
    pub flags: usize,
    /// For the function. (The kernel: `private`.)
    pub data: usize,
}

static TRACERS: [Hooks<Ops>; MASKS] = [const { Hooks::none() }; MASKS];
/// The bits of all registered tracers.
static REGISTERED: AtomicU64 = AtomicU64::new(0);
/// The bits of those with a flag.
static WITH_REGISTERS: AtomicU64 = AtomicU64::new(0);
static IP_MODIFYING: AtomicU64 = AtomicU64::new(0);
static BY_THREAD: AtomicU64 = AtomicU64::new(0);
static EVERY: AtomicU64 = AtomicU64::new(0);
/// Who has or had each bit. A tracer that comes again gets the same one; others get one that nobody had, if there is
/// any: a thread may still be on its way to the function that had it.
static OWNERS: [AtomicPtr<Ops>; MASKS] = [const { AtomicPtr::new(null_mut()) }; MASKS];
/// The bit that was given last.
static LAST: AtomicUsize = AtomicUsize::new(MASKS - 1);

fn set_bit(masks: &AtomicU64, number: usize, on: bool) {
    let bit = 1 << number;
    if on {
        masks.fetch_or(bit, Ordering::Release);
    } else {
        masks.fetch_and(!bit, Ordering::Release);
    }
}

/// Registers a tracer, which promises to change no more than its flags say. It wants to see no function yet. Returns
/// the number of its bit; none if there are [`MASKS`] others, or it is registered already.
pub fn register(ops: &'static Ops) -> Option<usize> {
    register_keeping(ops, Vectors::by(ops.flags))
}

/// [`register`] with a tracer of which it is known what it may change, whatever its flags say.
pub fn register_keeping(ops: &'static Ops, vectors: Vectors) -> Option<usize> {
    let pointer = core::ptr::from_ref(ops).cast_mut();
    if self::number(ops).is_some() {
        return None;
    }
    let last = LAST.load(Ordering::Relaxed);
    let owned_by = |owner| {
        (1..=MASKS)
            .map(|distance| (last + distance) % MASKS)
            .find(|number| OWNERS[*number].load(Ordering::Relaxed) == owner)
    };
    let free = || {
        (1..=MASKS)
            .map(|distance| (last + distance) % MASKS)
            .find(|number| TRACERS[*number].is_none())
    };
    let own = owned_by(pointer).filter(|number| TRACERS[*number].is_none());
    let number = own.or_else(|| owned_by(null_mut())).or_else(free)?;
    if own.is_none() {
        LAST.store(number, Ordering::Relaxed);
        OWNERS[number].store(pointer, Ordering::Relaxed);
    }
    let has = |flags| ops.flags & flags != 0;
    set_bit(
        &WITH_REGISTERS,
        number,
        has(SAVE_REGISTERS | IP_MODIFY | EVERY_CALL),
    );
    set_bit(&IP_MODIFYING, number, has(IP_MODIFY));
    set_bit(&BY_THREAD, number, has(PER_THREAD));
    set_bit(&EVERY, number, has(EVERY_CALL));
    TRACERS[number].set(Some(ops), vectors);
    set_bit(&REGISTERED, number, true);
    set_tracers(true);
    Some(number)
}

/// Unregisters a tracer. Threads that are in its function finish it. What it wanted to see must be given up with
/// [`super::select`].
pub fn unregister(number: usize) {
    set_bit(&REGISTERED, number, false);
    TRACERS[number].set(None, Vectors::None);
    set_tracers(REGISTERED.load(Ordering::Relaxed) != 0);
}

/// The number of a tracer that is registered.
pub fn number(ops: &Ops) -> Option<usize> {
    let is_it = |(other, _): (&'static Ops, _)| core::ptr::eq(other, ops);
    TRACERS
        .iter()
        .position(|other| other.get().is_some_and(is_it))
}

/// The tracer with this number, if it is registered, and what it may change.
pub(crate) fn tracer(number: usize) -> Option<(&'static Ops, Vectors)> {
    TRACERS.get(number)?.get()
}

/// The bits of tracers that change registers.
pub(crate) fn ip_modifying() -> u64 {
    IP_MODIFYING.load(Ordering::Relaxed)
}

/// Returns whether one of these tracers is given the registers.
pub(crate) fn with_registers(mask: u64) -> bool {
    mask & WITH_REGISTERS.load(Ordering::Relaxed) != 0
}

/// Returns whether one of these tracers may change the registers, or must miss no call.
pub(crate) fn with_more_than_registers(mask: u64) -> bool {
    mask & (ip_modifying() | EVERY.load(Ordering::Relaxed)) != 0
}

/// Those of these tracers that are not given the registers.
pub(crate) fn without_registers(mask: u64) -> u64 {
    mask & !WITH_REGISTERS.load(Ordering::Relaxed)
}

/// What a trampoline for these tracers has as its mask.
pub(crate) fn mask_of_code(mask: u64) -> u64 {
    if mask & (EVERY.load(Ordering::Relaxed) | live()) == 0 {
        mask
    } else {
        LOOKED_UP
    }
}

/// The bits of tracers that only see threads that have switched them on.
pub(crate) fn by_thread() -> u64 {
    BY_THREAD.load(Ordering::Relaxed)
}

/// Switches a tracer with the flag [`PER_THREAD`] on or off in the calling thread.
pub fn set_thread(number: usize, on: bool) {
    if let Some(thread) = environment::thread() {
        let bit = 1 << (number % MASKS);
        let mask = thread.tracers();
        thread.set_tracers(if on { mask | bit } else { mask & !bit });
    }
}

/// The bits of the tracers that are switched on in the calling thread.
pub fn thread_tracers() -> u64 {
    environment::thread().map_or(0, |thread| thread.tracers())
}

/// The bits of the tracers that are patches (`livepatch`), and what redirects their functions.
static LIVE: AtomicU64 = AtomicU64::new(0);
static REDIRECT: AtomicPtr<()> = AtomicPtr::new(null_mut());

/// Redirects a function: the address of the site, the patches there, and the registers.
pub(crate) type Redirect = fn(ip: usize, live: u64, registers: *mut Registers);

/// Says that a tracer is a patch, whose functions this redirects, or is none any more.
pub(crate) fn set_redirecting(number: usize, redirect: Option<Redirect>) {
    if let Some(redirect) = redirect {
        REDIRECT.store(redirect as *mut (), Ordering::Release);
    }
    set_bit(&LIVE, number, redirect.is_some());
}

/// The bits of the tracers that are patches.
pub(crate) fn live() -> u64 {
    LIVE.load(Ordering::Acquire)
}

/// Redirects a function if a patch among its tracers says so.
#[inline]
pub(crate) fn redirect(ip: usize, mask: u64, registers: *mut Registers) {
    let live = mask & live();
    if live != 0 {
        // SAFETY: it was stored before the bit was set.
        let redirect: Redirect = unsafe { core::mem::transmute(REDIRECT.load(Ordering::Acquire)) };
        redirect(ip, live, registers);
    }
}
