//! Who listens. The stubs read the first word of this, and nothing else, while nobody does.

use core::arch::global_asm;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicBool, AtomicIsize, AtomicPtr, AtomicUsize, Ordering};

use crate::arch;
use crate::call::Call;

/// In `flags`: the hooks may use floating-point and vector registers.
pub const VECTORS: usize = 1;

/// Which registers besides the general ones a hook may change. They are kept around it.
#[repr(usize)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Vectors {
    /// None.
    None = 0,
    /// Those of ordinary floating-point code, with its control register. x86-64: the lower 128 bits of vector registers
    /// 0 to 15. RISC-V: the floating-point registers. AArch64: the vector registers, which is [`Self::All`].
    Part = 1,
    /// All.
    All = 2,
}

impl Vectors {
    /// What hooks with these `flags` may change, if nothing else is known of them.
    pub(crate) fn by(flags: usize) -> Self {
        match flags & VECTORS {
            0 => Self::None,
            _ => Self::All,
        }
    }
}

/// Hooks that never move, with what they may change in the lowest bits of their address: so both are known at one
/// moment.
#[repr(transparent)]
#[derive(Debug)]
pub(crate) struct Hooks<T>(AtomicPtr<T>);

impl<T> Hooks<T> {
    const BITS: usize = 3;

    pub(crate) const fn none() -> Self {
        const { assert!(align_of::<T>() > Self::BITS) };
        Self(AtomicPtr::new(null_mut()))
    }

    pub(crate) fn set(&self, hooks: Option<&'static T>, vectors: Vectors) {
        let tagged = hooks.map_or(null_mut(), |hooks| {
            let pointer = core::ptr::from_ref(hooks).cast_mut();
            pointer.map_addr(|address| address | vectors as usize)
        });
        self.0.store(tagged, Ordering::Release);
    }

    /// The word for them, which differs from that of any others.
    pub(crate) fn word(&self) -> *mut T {
        self.0.load(Ordering::Acquire)
    }

    /// The hooks that have this word.
    pub(crate) fn of(word: *mut T) -> Option<(&'static T, Vectors)> {
        let vectors = match word.addr() & Self::BITS {
            0 => Vectors::None,
            1 => Vectors::Part,
            _ => Vectors::All,
        };
        // SAFETY: `set` has it from a reference that is valid for ever.
        let hooks = unsafe { word.map_addr(|address| address & !Self::BITS).as_ref() };
        hooks.map(|hooks| (hooks, vectors))
    }

    pub(crate) fn get(&self) -> Option<(&'static T, Vectors)> {
        Self::of(self.word())
    }

    pub(crate) fn is_none(&self) -> bool {
        self.0.load(Ordering::Relaxed).is_null()
    }
}

/// What is called at entries: the address to which the function will return, and the address of the call of `mcount` or
/// `__fentry__` in the function.
pub type EntryHook = extern "C" fn(frompc: usize, selfpc: usize);
/// What is called at entries when returns are traced. Returns 0 if the return of this call is of no interest.
pub type GraphEntry = extern "C" fn(call: &mut Call) -> i32;
/// What is called at returns, with the call as the hook for its entry left it.
pub type GraphExit = extern "C" fn(call: &mut Call);
/// What `-finstrument-functions` calls: the function, and the address to which it returns.
pub type CygHook = extern "C" fn(function: usize, call_site: usize);

/// The hook for entries. The kernel's name is `ftrace_ops`.
#[repr(C)]
#[derive(Debug)]
pub struct EntryOps {
    /// The hook.
    pub func: EntryHook,
    /// 0 or [`VECTORS`].
    pub flags: usize,
}

/// The hooks for entries and returns. The kernel's name is `fgraph_ops`.
#[repr(C)]
#[derive(Debug)]
pub struct GraphOps {
    /// The hook for entries; without it, all calls are traced.
    pub entry: Option<GraphEntry>,
    /// The hook for returns.
    pub exit: Option<GraphExit>,
    /// 0 or [`VECTORS`].
    pub flags: usize,
}

/// The hooks for `-finstrument-functions`.
#[repr(C)]
#[derive(Debug)]
pub struct CygOps {
    /// Called by `__cyg_profile_func_enter`.
    pub enter: Option<CygHook>,
    /// Called by `__cyg_profile_func_exit`.
    pub exit: Option<CygHook>,
}

/// What is done if a function returns with another frame pointer than its caller had, as the kernel's
/// `CONFIG_HAVE_FUNCTION_GRAPH_FP_TEST` checks.
#[repr(usize)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameTest {
    /// Nothing is compared.
    Off = 0,
    /// It is counted and reported ([`crate::Environment::frame_mismatch`]).
    Report = 1,
    /// It is reported, and the program ends.
    Abort = 2,
}

/// All that the stubs share.
#[repr(C)]
pub(crate) struct State {
    /// Not 0 if there is a hook for entries or for returns. The first field: stubs compare it.
    listening: AtomicUsize,
    /// The hooks for entries and returns, if they are all that is to be called, need no vector registers, and a
    /// thread's data are at `thread_offset`. Stubs handle this case without the rest of the crate. Otherwise null.
    pub(crate) quick: AtomicPtr<GraphOps>,
    /// These hooks, where stubs know that nothing else is to be called.
    pub(crate) quick_graph: AtomicPtr<GraphOps>,
    /// [`crate::Environment::thread_offset`], or 0.
    pub(crate) thread_offset: AtomicIsize,
    pub(crate) entry: Hooks<EntryOps>,
    pub(crate) graph: Hooks<GraphOps>,
    pub(crate) cyg: AtomicPtr<CygOps>,
    pub(crate) frame_test: AtomicUsize,
    /// Whether there are tracers of `dynamic`.
    tracers: AtomicBool,
    changing: AtomicBool,
}

// It is defined here because the linker must know that it is hidden: then the stubs reach it with one instruction that
// has its distance, also in a static library that becomes part of a shared one.
global_asm!(
    ".pushsection .bss.hodo_ftrace_state, \"aw\", @nobits",
    ".balign 64",
    ".globl hodo_ftrace_state",
    ".hidden hodo_ftrace_state",
    ".type hodo_ftrace_state, @object",
    ".size hodo_ftrace_state, {size}",
    "hodo_ftrace_state:",
    ".zero {size}",
    ".popsection",
    size = const size_of::<State>(),
);

unsafe extern "C" {
    safe static hodo_ftrace_state: State;
    /// [`crate::Environment::thread_offset`].
    safe fn __hodo_ftrace_thread_offset() -> isize;
}

/// The one state.
pub(crate) fn state() -> &'static State {
    &hodo_ftrace_state
}

impl State {
    /// Makes a change, and then sets whether anybody listens.
    fn change(&self, change: impl FnOnce(&Self)) {
        while self.changing.swap(true, Ordering::Acquire) {
            core::hint::spin_loop();
        }
        // Also for code that is called with hooks that use no vectors: it may need memory, for the first time.
        arch::find_vectors();
        let offset = __hodo_ftrace_thread_offset();
        self.thread_offset.store(offset, Ordering::Relaxed);
        change(self);
        let entry = !self.entry.is_none();
        let graph = !self.graph.is_none();
        let others = entry || self.tracers.load(Ordering::Relaxed);
        let quick = match offset != 0 && self.is_quick() {
            // Its lowest bits are 0.
            true => self.graph.word(),
            false => null_mut(),
        };
        self.quick_graph.store(quick, Ordering::Release);
        let quick = if others { null_mut() } else { quick };
        self.quick.store(quick, Ordering::Release);
        let listening = usize::from(others || graph);
        self.listening.store(listening, Ordering::Release);
        self.changing.store(false, Ordering::Release);
    }
}

impl State {
    /// Returns whether the hooks for entries and returns allow `quick`.
    fn is_quick(&self) -> bool {
        let is_simple = |(ops, vectors): (&GraphOps, Vectors)| {
            ops.entry.is_some() && ops.exit.is_some() && vectors == Vectors::None
        };
        self.graph.get().is_some_and(is_simple)
            && self.frame_test.load(Ordering::Relaxed) == FrameTest::Off as usize
    }
}

fn pointer<T>(ops: Option<&'static T>) -> *mut T {
    ops.map_or(null_mut(), |ops| core::ptr::from_ref(ops).cast_mut())
}

/// Sets what `mcount` and `__fentry__` call. Threads that are in the old hook finish it. The hook promises to change no
/// more than its flags say.
pub fn set_entry(ops: Option<&'static EntryOps>) {
    set_entry_keeping(ops, Vectors::by(ops.map_or(0, |ops| ops.flags)));
}

/// [`set_entry`] with a hook of which it is known what it may change, whatever its flags say.
pub fn set_entry_keeping(ops: Option<&'static EntryOps>, vectors: Vectors) {
    state().change(|state| state.entry.set(ops, vectors));
}

/// Sets what is called at entries and returns. A call whose entry one pair of hooks has seen is never shown to another
/// pair: if the hooks are changed in the meantime, its return is not seen. The hooks promise to change no more than
/// their flags say.
pub fn set_graph(ops: Option<&'static GraphOps>) {
    set_graph_keeping(ops, Vectors::by(ops.map_or(0, |ops| ops.flags)));
}

/// [`set_graph`] with hooks of which it is known what they may change, whatever their flags say.
pub fn set_graph_keeping(ops: Option<&'static GraphOps>, vectors: Vectors) {
    state().change(|state| state.graph.set(ops, vectors));
}

/// Says whether there are tracers, which calls of `mcount` and `__fentry__` must look for.
pub(crate) fn set_tracers(any: bool) {
    state().change(|state| state.tracers.store(any, Ordering::Release));
}

/// Sets what `__cyg_profile_func_enter` and `__cyg_profile_func_exit` call.
pub fn set_cyg(ops: Option<&'static CygOps>) {
    state().cyg.store(pointer(ops), Ordering::Release);
}

/// Sets what happens when frame pointers differ. At first, nothing is compared.
pub fn set_frame_test(test: FrameTest) {
    state().change(|state| state.frame_test.store(test as usize, Ordering::Relaxed));
}
