//! Who listens. The stubs read the first word of this, and nothing else, while nobody does.

use core::arch::global_asm;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicBool, AtomicIsize, AtomicPtr, AtomicUsize, Ordering};

use crate::arch;
use crate::call::Call;

/// In `flags`: the hooks may use floating-point and vector registers.
pub const VECTORS: usize = 1;

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
    pub(crate) entry: AtomicPtr<EntryOps>,
    pub(crate) graph: AtomicPtr<GraphOps>,
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
        let entry = !self.entry.load(Ordering::Relaxed).is_null();
        let graph = !self.graph.load(Ordering::Relaxed).is_null();
        let others = entry || self.tracers.load(Ordering::Relaxed);
        let quick = match offset != 0 && self.is_quick() {
            true => self.graph.load(Ordering::Relaxed),
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
        // SAFETY: `set_graph` has it from a reference that is valid for ever.
        let ops = unsafe { self.graph.load(Ordering::Relaxed).as_ref() };
        let is_simple =
            |ops: &GraphOps| ops.entry.is_some() && ops.exit.is_some() && ops.flags & VECTORS == 0;
        ops.is_some_and(is_simple)
            && self.frame_test.load(Ordering::Relaxed) == FrameTest::Off as usize
    }
}

fn pointer<T>(ops: Option<&'static T>) -> *mut T {
    ops.map_or(null_mut(), |ops| core::ptr::from_ref(ops).cast_mut())
}

/// Sets what `mcount` and `__fentry__` call. Threads that are in the old hook finish it.
pub fn set_entry(ops: Option<&'static EntryOps>) {
    state().change(|state| state.entry.store(pointer(ops), Ordering::Release));
}

/// Sets what is called at entries and returns. A call whose entry one pair of hooks has seen is never shown to another
/// pair: if the hooks are changed in the meantime, its return is not seen.
pub fn set_graph(ops: Option<&'static GraphOps>) {
    state().change(|state| state.graph.store(pointer(ops), Ordering::Release));
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
