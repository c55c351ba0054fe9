//! Probes in one's own process: Rust or C handlers that are called at any instruction while the program runs.
//!
//! A probe has the same life as one of the kernel's kprobes: it is registered (or refused, with a reason), armed, hit,
//! disarmed and unregistered. One instruction can have any number of probes.
//!
//! ```
//! use core::ffi::c_void;
//! use core::sync::atomic::{AtomicU64, Ordering};
//! use hodo_probe::{Engine, Registers, Request};
//!
//! #[inline(never)]
//! extern "C" fn double(value: u64) -> u64 {
//!     std::hint::black_box(value) * 2
//! }
//!
//! static SUM: AtomicU64 = AtomicU64::new(0);
//!
//! extern "C" fn sum(registers: &mut Registers, _: *mut c_void) {
//!     SUM.fetch_add(registers.argument(0).unwrap_or(0), Ordering::Relaxed);
//! }
//!
//! let engine = Engine::new()?;
//! // SAFETY: the handler is sound at this place: it only reads a register.
//! let probe = unsafe { engine.register(&Request::at(double as *const () as u64).before(sum)) }?;
//! let result = std::hint::black_box(double as extern "C" fn(u64) -> u64)(21);
//! assert_eq!((result, SUM.load(Ordering::Relaxed)), (42, 21));
//! assert_eq!(probe.missed(), 0);
//! drop(probe);
//! # Ok::<(), hodo_probe::Refusal>(())
//! ```
//!
//! Nothing here depends on a C library, and memory is allocated only at registration. Handlers run without locks. A hit
//! inside a handler is not answered but counted ([`Probe::missed`]). A fault in a handler is caught and counted
//! ([`Probe::faults`]), and disables its probe.
//!
//! # What to know
//!
//! * Breakpoints are signals: a thread that blocks SIGTRAP dies at one. C libraries block all signals for a few of
//!   their own instructions in `posix_spawn`, `pthread_create` and `abort`.
//! * A program that installs its own handler for SIGTRAP, SIGSEGV, SIGBUS, SIGILL or SIGFPE after the engine has
//!   started takes the signal away from the engine ([`Engine::is_intact`]). A handler that was installed before stays,
//!   and sees what it would see without the engine.
//! * After `fork`, the child has all probes and may change them. A child of `vfork` shares them with its parent.
//! * A module must not be unmapped while it contains probes.
//!
//! # In a kernel
//!
//! All that the engine needs of Linux is asked through the traits of [`environment`]. A kernel implements them, and
//! calls [`traps`] in its handlers of exceptions. The page `docs/kernels.md` says more, and `examples/` has kernels.

#![cfg(any(
    target_arch = "x86_64",
    target_arch = "riscv64",
    target_arch = "aarch64"
))]
#![no_std]

#[macro_use]
extern crate alloc;
#[cfg(test)]
extern crate std;

mod analyze;
mod arch;
mod armed;
mod call_site;
mod call_sites;
mod cause;
mod clobbers;
#[cfg(target_os = "linux")]
mod dispositions;
pub mod environment;
#[cfg(target_os = "linux")]
mod ftrace;
mod functions;
mod index;
mod islands;
mod layout;
#[cfg(target_os = "linux")]
mod linux;
mod lists;
mod maps;
mod memory;
mod optimize;
#[cfg(target_os = "linux")]
mod own;
mod patch;
mod refusal;
mod registry;
mod returns;
mod shadow;
#[cfg(target_os = "linux")]
mod signals;
mod site;
#[cfg(target_os = "linux")]
mod sys;
mod threads;
mod trap;
pub mod traps;

use alloc::vec::Vec;
use core::ffi::c_void;
use core::fmt;
use core::ops::Range;
use core::ptr::NonNull;
use core::sync::atomic::Ordering;

pub use armed::Armed;
pub use layout::{Handler, Registers};
pub use refusal::Refusal;

use layout::Node;
use site::Site;

/// How the instruction of a probe is executed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Execution {
    /// In a slot that ends in a breakpoint: two signals per hit.
    OutOfLine = 1,
    /// On the saved registers, without running the instruction.
    Simulated = 2,
    /// In a slot that ends in a jump back.
    Boosted = 3,
    /// In a detour that a jump at the site leads to, together with its neighbours: no signal.
    Optimized = 4,
    /// By a call that is there already: it is a call site of a function tracer (`hodo-ftrace`), which calls the
    /// handlers. No signal, and nothing is written. The kernel's list says `[FTRACE]`.
    CallSite = 5,
}

/// When the breakpoints of probes become jumps, where a jump is possible.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Optimization {
    /// Whenever probes are registered, enabled or removed: all probes of one call together.
    #[default]
    Automatic,
    /// When [`Engine::optimize`] is called, and for probes that ask for [`Execution::Optimized`].
    Explicit,
}

impl fmt::Display for Execution {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::OutOfLine => "out of line with a stop after it",
            Self::Simulated => "by simulation",
            Self::Boosted => "out of line",
            Self::Optimized => "in a detour",
            Self::CallSite => "by the function tracer whose call site it is",
        })
    }
}

/// What is to be probed, and how.
#[derive(Debug, Clone)]
pub struct Request {
    addr: u64,
    function: Option<Range<u64>>,
    before: Option<Handler>,
    after: Option<Handler>,
    returning: Option<Handler>,
    data: *mut c_void,
    execution: Option<Execution>,
    disabled: bool,
    counts: bool,
}

impl Request {
    /// A probe at an address of this process.
    #[must_use]
    pub fn at(addr: u64) -> Self {
        Self {
            addr,
            function: None,
            before: None,
            after: None,
            returning: None,
            data: core::ptr::null_mut(),
            execution: None,
            disabled: false,
            counts: false,
        }
    }

    /// Called before the instruction is executed.
    #[must_use]
    pub fn before(mut self, handler: Handler) -> Self {
        self.before = Some(handler);
        self
    }

    /// Called after the instruction was executed. The registers then say where execution continues.
    #[must_use]
    pub fn after(mut self, handler: Handler) -> Self {
        self.after = Some(handler);
        self
    }

    /// Called when the function that begins at this address returns. The registers hold the result; the stack pointer
    /// is as at the function's entry, and `pc` is the function's address. If an exception or `longjmp` leaves the
    /// function, its return is not seen and the handler is not called.
    ///
    /// The function must return once, to where it was called from: not `setjmp`, `vfork` or `getcontext`.
    #[must_use]
    pub fn returning(mut self, handler: Handler) -> Self {
        self.returning = Some(handler);
        self
    }

    /// The word that is passed to the handlers.
    #[must_use]
    pub fn data(mut self, data: *mut c_void) -> Self {
        self.data = data;
        self
    }

    /// Counts hits without a handler: [`Probe::count`].
    #[must_use]
    pub fn count(mut self) -> Self {
        self.counts = true;
        self
    }

    /// The range of the function that contains the address. An instruction must begin at its first byte. Without a
    /// range, the unwind tables are asked.
    #[must_use]
    pub fn function(mut self, range: Range<u64>) -> Self {
        self.function = Some(range);
        self
    }

    /// Demands that the instruction be executed in this way, or the probe be refused. Without it, the fastest way is
    /// taken.
    #[must_use]
    pub fn execution(mut self, execution: Execution) -> Self {
        self.execution = Some(execution);
        self
    }

    /// Registers without arming.
    #[must_use]
    pub fn disabled(mut self) -> Self {
        self.disabled = true;
        self
    }
}

/// The engine of this process. There is one; this is a handle to it.
#[derive(Debug, Clone, Copy)]
pub struct Engine(());

impl Engine {
    /// Starts the engine: installs signal handlers and opens the process's memory. Later calls return handles to the
    /// same engine.
    ///
    /// # Errors
    /// If the kernel refuses something the engine needs: `membarrier`, `/proc/self/mem`, memory.
    pub fn new() -> Result<Self, Refusal> {
        registry::start()?;
        Ok(Self(()))
    }

    /// Registers a probe, and arms it.
    ///
    /// # Errors
    /// If the instruction cannot be probed.
    ///
    /// # Safety
    /// (1) Handlers must be sound wherever the instruction is executed, as [`Handler`] says, and what they do to the
    /// registers must be sound for the program. (2) The data must be valid until the probe is unregistered. (3) The
    /// function's range, if given, must be that of a function.
    pub unsafe fn register(self, request: &Request) -> Result<Probe, Refusal> {
        // SAFETY: as the caller promises.
        let mut results = unsafe { self.register_all(core::slice::from_ref(request)) };
        results.pop().unwrap_or(Err(Refusal::Nothing))
    }

    /// Registers many probes and arms them together, which is much faster per probe.
    ///
    /// # Safety
    /// As [`register`](Self::register).
    pub unsafe fn register_all(self, requests: &[Request]) -> Vec<Result<Probe, Refusal>> {
        registry::register(requests)
    }

    /// Unregisters many probes together. Once it has returned, none of their handlers runs or will run.
    ///
    /// # Errors
    /// If it is called from a handler, or code cannot be written; the probes then stay, disabled, and are never freed.
    pub fn unregister_all(self, probes: Vec<Probe>) -> Result<(), Refusal> {
        registry::unregister(probes)
    }

    /// Enables or disables many probes together. A probe that was disabled because its handler faulted is enabled
    /// again.
    ///
    /// # Errors
    /// If it is called from a handler, or code cannot be written.
    pub fn set_enabled(self, probes: &[&Probe], enabled: bool) -> Result<(), Refusal> {
        registry::enable(probes, enabled)
    }

    /// Sets the function that takes unwind tables: `__register_frame`, which comes with the compiler's unwinder.
    /// Without it, exceptions and backtraces end at functions that have return probes. It is called at registration,
    /// with tables that stay.
    ///
    /// # Errors
    /// If it is called from a handler.
    ///
    /// # Safety
    /// The function must be `__register_frame`, or do the same.
    pub unsafe fn register_frames(
        self,
        register: unsafe extern "C" fn(*const u8),
    ) -> Result<(), Refusal> {
        registry::register_frames(register)
    }

    /// Says that all code of the file that the engine is in, a shared library or program, is the engine's: from now on
    /// no probe is registered there. Otherwise only the code that runs at hits is refused.
    #[cfg(target_os = "linux")]
    pub fn take_file(self) {
        own::take_file();
    }

    /// Sets when breakpoints become jumps from now on. Existing jumps stay until a change of their probes undoes them.
    ///
    /// # Errors
    /// If it is called from a handler.
    pub fn set_optimization(self, optimization: Optimization) -> Result<(), Refusal> {
        registry::set_optimization(optimization)
    }

    /// Turns the breakpoints of all probes into jumps where that is possible, in one batch. Returns how many it turned.
    ///
    /// # Errors
    /// If it is called from a handler, or code cannot be written.
    pub fn optimize(self) -> Result<usize, Refusal> {
        registry::optimize()
    }

    /// All registered probes, by address, as the kernel lists its kprobes. A probe with handlers for the entry and the
    /// return is there twice.
    ///
    /// # Errors
    /// If it is called from a handler.
    pub fn armed(self) -> Result<Vec<Armed>, Refusal> {
        registry::armed()
    }

    /// Returns whether signals still reach the engine first.
    #[must_use]
    pub fn is_intact(self) -> bool {
        #[cfg(target_os = "linux")]
        return signals::intact();
        // Whoever sets the environment calls the engine.
        #[cfg(not(target_os = "linux"))]
        true
    }

    /// Hits of threads that had no entry in the engine's table of threads (16,384 at once). No probe counts them.
    #[must_use]
    pub fn unknown(self) -> u64 {
        threads::UNKNOWN.load(Ordering::Relaxed)
    }
}

/// A registered probe. Dropping it unregisters it.
#[derive(Debug)]
pub struct Probe {
    site: &'static Site,
    node: NonNull<Node>,
    /// The return handler, and the number of calls whose exit had been missed before it was registered.
    returns: Option<(NonNull<Node>, u64)>,
}

// SAFETY: (1) what changes is atomic, or is changed under the engine's lock; (2) the data belongs to the handlers,
// which may run in any thread by the contract of registration.
unsafe impl Send for Probe {}
// SAFETY: as above.
unsafe impl Sync for Probe {}

impl Probe {
    fn node(&self) -> &Node {
        // SAFETY: the node is freed only when the probe is unregistered, which consumes the probe.
        unsafe { self.node.as_ref() }
    }

    fn return_node(&self) -> Option<(&Node, u64)> {
        // SAFETY: as above.
        self.returns
            .map(|(node, before)| (unsafe { node.as_ref() }, before))
    }

    /// The address of the probed instruction.
    #[must_use]
    pub fn addr(&self) -> u64 {
        self.site.addr()
    }

    /// How the instruction is executed at present.
    #[must_use]
    pub fn execution(&self) -> Execution {
        registry::execution(self.site)
    }

    /// Returns whether its handlers are called.
    #[must_use]
    pub fn is_enabled(&self) -> bool {
        let node = match self.return_node() {
            Some((node, _)) if self.node().idle => node,
            _ => self.node(),
        };
        node.enabled.load(Ordering::Acquire) != 0
    }

    /// Hits that were not answered because a handler of some probe was running in the same thread.
    #[must_use]
    pub fn missed(&self) -> u64 {
        self.node().missed.load(Ordering::Relaxed)
    }

    /// Returns of the function for which the return handler was not called: because a handler of some probe was running
    /// in the thread, because another function with a return probe had jumped to this one, or because the engine does
    /// not know the stack.
    #[must_use]
    pub fn missed_returns(&self) -> u64 {
        self.return_node().map_or(0, |(node, before)| {
            node.missed.load(Ordering::Relaxed) + self.site.unreturned.load(Ordering::Relaxed)
                - before
        })
    }

    /// Faults in its handlers. The first one disabled it.
    #[must_use]
    pub fn faults(&self) -> u64 {
        let returns = self
            .return_node()
            .map_or(0, |(node, _)| node.faults.load(Ordering::Relaxed));
        self.node().faults.load(Ordering::Relaxed) + returns
    }

    /// Hits, if the probe counts them.
    #[must_use]
    pub fn count(&self) -> u64 {
        registry::count(self)
    }

    /// Enables or disables the probe.
    ///
    /// # Errors
    /// If it is called from a handler, or code cannot be written.
    pub fn set_enabled(&self, enabled: bool) -> Result<(), Refusal> {
        registry::enable(&[self], enabled)
    }

    /// Unregisters the probe. Once this has returned, its handlers neither run nor will run.
    ///
    /// # Errors
    /// If it is called from a handler, or code cannot be written; the probe then stays, disabled, and is never freed.
    pub fn unregister(self) -> Result<(), Refusal> {
        registry::unregister(vec![self])
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        // If that is not possible, it stays, disabled.
        let _ = registry::forget(self);
    }
}

// The examples on that page are tested with those in the rustdoc.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/probe-library.md")]
struct ProbeLibraryPage;
