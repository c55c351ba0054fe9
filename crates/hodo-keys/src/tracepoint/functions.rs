//! Functions registered for tracepoints.

use core::cell::UnsafeCell;
use core::fmt;
use core::sync::atomic::{AtomicU64, Ordering};

use super::pattern::Pattern;
use super::{Event, Field, Tracepoint, inside, readers};
use crate::error::Error;
use crate::lock::{self, Guard};
use crate::registry;

/// What is called at hits.
pub type Function = dyn Fn(&Event<'_>) + Send + Sync;

/// How many can be registered at once.
const SLOTS: usize = u64::BITS as usize;

/// A function, or none; if it is a box, it is freed with this.
struct Owned {
    function: Option<&'static Function>,
    #[cfg_attr(not(feature = "std"), expect(dead_code, reason = "there are no boxes"))]
    boxed: bool,
}

impl Owned {
    const NONE: Self = Self {
        function: None,
        boxed: false,
    };
}

impl Drop for Owned {
    fn drop(&mut self) {
        #[cfg(feature = "std")]
        if let (Some(function), true) = (self.function, self.boxed) {
            let function = core::ptr::from_ref(function).cast_mut();
            // SAFETY: it is a leaked box, which is ours, and nobody uses it any more.
            drop(unsafe { std::boxed::Box::from_raw(function) });
        }
    }
}

/// A registration.
struct Slot {
    /// Written only while no tracepoint has the slot's bit, and no hit that has seen the bit is in progress.
    function: UnsafeCell<Owned>,
    /// Used under the lock.
    pattern: UnsafeCell<Pattern>,
    missed: AtomicU64,
}

// SAFETY: as the fields say.
unsafe impl Sync for Slot {}

static REGISTERED: [Slot; SLOTS] = [const {
    Slot {
        function: UnsafeCell::new(Owned::NONE),
        pattern: UnsafeCell::new(Pattern::NONE),
        missed: AtomicU64::new(0),
    }
}; SLOTS];

/// A bit per slot that is in use. Set under the lock.
static TAKEN: AtomicU64 = AtomicU64::new(0);
/// The slots that are registered, also for tracepoints of future libraries. Changed under the lock.
static ACTIVE: AtomicU64 = AtomicU64::new(0);
/// The slots with a function; the others only keep tracepoints enabled.
static CALLED: AtomicU64 = AtomicU64::new(0);
/// The slots whose function has removed itself; they are freed later.
static LEFT: AtomicU64 = AtomicU64::new(0);

/// The slots of a set of bits.
fn slots(mut bits: u64) -> impl Iterator<Item = usize> {
    core::iter::from_fn(move || {
        let slot = bits.trailing_zeros() as usize;
        bits &= bits.wrapping_sub(1);
        (slot < SLOTS).then_some(slot)
    })
}

/// Returns whether a hit has to call anything.
#[inline]
pub fn wanted(tracepoint: &Tracepoint) -> bool {
    tracepoint.registered.load(Ordering::Relaxed) & CALLED.load(Ordering::Relaxed) != 0
}

/// Calls the functions for a hit.
#[inline(never)]
pub fn call(tracepoint: &'static Tracepoint, fields: &[Field<'_>]) {
    let event = Event { tracepoint, fields };
    let reader = readers::enter();
    for slot in slots(tracepoint.registered.load(Ordering::SeqCst)) {
        let registered = &REGISTERED[slot];
        // SAFETY: the tracepoint had the slot's bit after this hit was counted in.
        let Some(function) = (unsafe { (*registered.function.get()).function }) else {
            continue;
        };
        inside::call(slot, &registered.missed, || function(&event));
    }
    drop(reader);
}

/// A registered function, or a request to keep tracepoints enabled. [`Registration::remove`] ends it, and so does
/// dropping it.
#[must_use = "it is taken back when this is dropped"]
pub struct Registration {
    slot: usize,
}

impl fmt::Debug for Registration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Registration").finish_non_exhaustive()
    }
}

/// Registers a function that is called at each hit of the tracepoints whose `group:name` a pattern matches: `*` stands
/// for any characters, `?` for one. Enables these tracepoints, also those of libraries that are loaded later. Libraries
/// with their own copy of this crate (all except Rust's `dylib`s) have their own functions, too.
///
/// # Errors
/// [`Error::Pattern`], [`Error::TooManyFunctions`], and those of [`switch`](crate::switch).
#[cfg(feature = "std")]
pub fn register(
    pattern: &str,
    function: impl Fn(&Event<'_>) + Send + Sync + 'static,
) -> Result<Registration, Error> {
    let function: std::boxed::Box<Function> = std::boxed::Box::new(function);
    let owned = Owned {
        function: Some(std::boxed::Box::leak(function)),
        boxed: true,
    };
    add(pattern, owned)
}

/// Like `register`, for a function that is never freed; allocates nothing.
///
/// ```
/// use hodo_keys::tracepoint::{self, Event};
///
/// fn hit(event: &Event<'_>) {
///     println!("{event}");
/// }
///
/// hodo_keys::tracepoint!(net, receive, from = "nobody"); // prints nothing
/// let registration = tracepoint::register_static("net:receive", &hit)?;
/// hodo_keys::tracepoint!(net, receive, from = "there"); // net:receive from="there"
/// # drop(registration);
/// # Ok::<(), hodo_keys::Error>(())
/// ```
///
/// # Errors
/// As `register`.
pub fn register_static(pattern: &str, function: &'static Function) -> Result<Registration, Error> {
    let owned = Owned {
        function: Some(function),
        boxed: false,
    };
    add(pattern, owned)
}

/// Keeps the tracepoints that a pattern matches enabled, so that outside tools see their hits. Like `register`, without
/// a function.
///
/// # Errors
/// As `register`.
pub fn enable(pattern: &str) -> Result<Registration, Error> {
    add(pattern, Owned::NONE)
}

fn add(pattern: &str, function: Owned) -> Result<Registration, Error> {
    let pattern = Pattern::new(pattern).ok_or(Error::Pattern)?;
    free_those_that_left();
    // If an error leaves something here, it is dropped after the lock is released.
    let mut function = Some(function);
    let (slot, result) = registry::locked(|guard| {
        let slot = TAKEN.load(Ordering::Acquire).trailing_ones() as usize;
        let registered = REGISTERED.get(slot).ok_or(Error::TooManyFunctions)?;
        readers::prepare(guard);
        let function = function.take().unwrap_or(Owned::NONE);
        let bit = 1 << slot;
        TAKEN.fetch_or(bit, Ordering::Relaxed);
        if function.function.is_some() {
            CALLED.fetch_or(bit, Ordering::Relaxed);
        }
        // SAFETY: the slot is free, so nobody reads it.
        unsafe {
            *registered.function.get() = function;
            *registered.pattern.get() = pattern;
        }
        registered.missed.store(0, Ordering::Relaxed);
        let result = registry::rewrite(
            guard,
            |key| pattern.matches_tracepoint(key),
            || {
                ACTIVE.fetch_or(bit, Ordering::Relaxed);
                registry::keys(guard)
                    .filter_map(Tracepoint::of)
                    .for_each(|found| attach(found, slot));
            },
        );
        if result.is_err() {
            detach(slot, guard);
        }
        Ok((slot, result))
    })?;
    if let Err(error) = result {
        leave(slot);
        return Err(error);
    }
    Ok(Registration { slot })
}

/// Registers a slot for a tracepoint, if its pattern matches. The caller changes the branches.
fn attach(tracepoint: &'static Tracepoint, slot: usize) {
    // SAFETY: the caller has the lock.
    let pattern = unsafe { *REGISTERED[slot].pattern.get() };
    let bit = 1 << slot;
    // A tracepoint with branches in several modules is found in each of them.
    if pattern.matches(tracepoint.full_name())
        && tracepoint.registered.fetch_or(bit, Ordering::SeqCst) & bit == 0
    {
        tracepoint.key.state().fetch_add(1, Ordering::AcqRel);
    }
}

/// Removes a slot from all tracepoints: no hit that begins after this sees it.
fn detach(slot: usize, guard: &Guard) {
    let bit = 1 << slot;
    ACTIVE.fetch_and(!bit, Ordering::Relaxed);
    for tracepoint in registry::keys(guard).filter_map(Tracepoint::of) {
        if tracepoint.registered.fetch_and(!bit, Ordering::SeqCst) & bit != 0 {
            tracepoint.key.state().fetch_sub(1, Ordering::AcqRel);
        }
    }
}

/// Frees slots once no thread is in any of their functions.
fn wait_and_free(bits: u64) {
    readers::wait();
    for slot in slots(bits) {
        let function = REGISTERED[slot].function.get();
        // SAFETY: no tracepoint has its bit, and all hits that may have seen it are over.
        let function = unsafe { function.replace(Owned::NONE) };
        CALLED.fetch_and(!(1 << slot), Ordering::Relaxed);
        TAKEN.fetch_and(!(1 << slot), Ordering::Release);
        drop(function);
    }
}

/// Frees a slot that no tracepoint has any more: now, or later if this thread is inside a registered function.
fn leave(slot: usize) {
    if inside::any() {
        LEFT.fetch_or(1 << slot, Ordering::Release);
    } else {
        wait_and_free(1 << slot | LEFT.swap(0, Ordering::Acquire));
    }
}

fn free_those_that_left() {
    if LEFT.load(Ordering::Relaxed) != 0 && !inside::any() {
        wait_and_free(LEFT.swap(0, Ordering::Acquire));
    }
}

impl Registration {
    /// The number of tracepoints it is registered for now. A tracepoint with branches in several libraries counts once
    /// in each.
    ///
    /// # Errors
    /// [`Error::Busy`].
    pub fn tracepoints(&self) -> Result<usize, Error> {
        let guard = lock::take()?;
        let bit = 1 << self.slot;
        let tracepoints = registry::keys(&guard).filter_map(Tracepoint::of);
        let registered =
            tracepoints.filter(|found| found.registered.load(Ordering::Relaxed) & bit != 0);
        Ok(registered.count())
    }

    /// How often the function was not called because it was already running in the same thread.
    #[must_use]
    pub fn missed(&self) -> u64 {
        REGISTERED[self.slot].missed.load(Ordering::Relaxed)
    }

    /// Removes the registration. When this returns, no thread is in the function any more, and it has been dropped. So
    /// it waits for threads that are in a registered function, this one or another, and must not be called where such a
    /// function waits for the caller.
    ///
    /// Called from within a registered function, it does not wait: the function, which may be the running one, is
    /// dropped later, when another one is registered or removed. (Without the feature `std`, it must not be called
    /// there.)
    ///
    /// # Errors
    /// [`Error::Busy`]: it stays registered forever. With all other errors the function is removed, but some
    /// tracepoints may stay enabled until any key is switched the next time.
    pub fn remove(self) -> Result<(), Error> {
        let slot = self.slot;
        core::mem::forget(self);
        remove(slot)
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        // Nobody can be told. `remove` documents what an error means.
        let _ = remove(self.slot);
    }
}

fn remove(slot: usize) -> Result<(), Error> {
    let mut detached = false;
    let result = registry::locked(|guard| {
        // SAFETY: the lock is held.
        let pattern = unsafe { *REGISTERED[slot].pattern.get() };
        registry::rewrite(
            guard,
            |key| pattern.matches_tracepoint(key),
            || {
                detach(slot, guard);
                detached = true;
            },
        )
    });
    if !detached {
        // Code cannot be changed, but the function must not be called any more.
        let guard = lock::take()?;
        detach(slot, &guard);
        registry::left_unfinished(&guard);
    }
    leave(slot);
    result
}

/// Registers the matching functions for a tracepoint of a module that is being loaded. The caller changes its branches.
pub fn loaded(tracepoint: &'static Tracepoint, _: &Guard) {
    for slot in slots(ACTIVE.load(Ordering::Relaxed)) {
        attach(tracepoint, slot);
    }
}

/// Unregisters everything for a tracepoint whose last module is being unloaded.
pub fn unloaded(tracepoint: &'static Tracepoint, _: &Guard) {
    let users = tracepoint.registered.swap(0, Ordering::SeqCst).count_ones();
    tracepoint.key.state().fetch_sub(users, Ordering::AcqRel);
}

/// Returns whether anything is registered.
pub fn any() -> bool {
    ACTIVE.load(Ordering::Relaxed) != 0
}
