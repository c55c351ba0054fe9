//! The engine's handlers for the signals that breakpoints and faults raise. They run before the program's handlers,
//! which see what they would see without the engine.

use core::sync::atomic::{AtomicU32, Ordering};

use super::arch::{self, Context};
use super::dispositions::{Info, chain, is_default, keep, reset};
use super::islands;
use super::layout::Thread;
use super::site::INSIDE;
use super::sys::{self, Action};
use super::threads;
use super::trap;

/// The signals of faults.
const FAULTS: [i32; 4] = [sys::SIGSEGV, sys::SIGBUS, sys::SIGILL, sys::SIGFPE];

static INSTALLED: AtomicU32 = AtomicU32::new(0);

/// All signals except those of faults and breakpoints: they wait while a breakpoint is being handled.
fn others() -> u64 {
    FAULTS
        .iter()
        .chain([&sys::SIGTRAP])
        .fold(u64::MAX, |mask, signal| mask & !(1 << (signal - 1)))
}

/// Installs the handlers, once.
///
/// # Errors
/// The kernel's error number.
pub(super) fn install() -> Result<(), sys::Errno> {
    for signal in [sys::SIGTRAP].into_iter().chain(FAULTS) {
        let bit = 1 << signal;
        if INSTALLED.load(Ordering::Acquire) & bit != 0 {
            continue;
        }
        let trap = signal == sys::SIGTRAP;
        let handler = if trap { on_trap } else { on_fault };
        let action = Action {
            handler: handler as *const () as usize,
            // Probe handlers may need more room than an alternate stack has, but stacks that overflow need one.
            flags: sys::SA_SIGINFO | sys::SA_NODEFER | if trap { 0 } else { sys::SA_ONSTACK },
            mask: if trap { others() } else { 0 },
        };
        // SAFETY: (1) the handlers are ours; (2) the earlier action is stored first, and only under the engine's lock.
        unsafe {
            let earlier = sys::sigaction(signal, None)?;
            keep(signal, earlier);
            sys::sigaction(signal, Some(&action))?;
        }
        INSTALLED.fetch_or(bit, Ordering::AcqRel);
    }
    Ok(())
}

/// Returns whether all handlers are still the engine's: a program that sets its own later replaces them.
pub(super) fn intact() -> bool {
    [sys::SIGTRAP].into_iter().chain(FAULTS).all(|signal| {
        let ours = if signal == sys::SIGTRAP {
            on_trap
        } else {
            on_fault
        };
        // SAFETY: it only queries.
        let found = unsafe { sys::sigaction(signal, None) };
        found.is_ok_and(|action| action.handler == ours as *const () as usize)
    })
}

extern "C" fn on_trap(signal: i32, info: *mut Info, context: *mut Context) {
    // SAFETY: the kernel's pointers are valid while the handler runs.
    let (info, context) = unsafe { (&mut *info, &mut *context) };
    let thread = threads::current();
    // A breakpoint in what handles breakpoints (`memcpy`, perhaps), or in a probe's handler.
    if thread.is_some_and(|thread| thread.trapping.load(Ordering::Relaxed) != 0)
        && trap::pass(context)
    {
        return;
    }
    let mark = |value| {
        if let Some(thread) = thread {
            thread.trapping.store(value, Ordering::Relaxed);
            thread.sequence.fetch_add(1, Ordering::SeqCst);
        }
    };
    mark(1);
    let ours = info.code == arch::BREAKPOINT_CODE && trap::trapped(context);
    mark(0);
    if !ours {
        chain(signal, info, context);
    }
}

extern "C" fn on_fault(signal: i32, info: *mut Info, context: *mut Context) {
    // SAFETY: the kernel's pointers are valid while the handler runs.
    let (info, context) = unsafe { (&mut *info, &mut *context) };
    // Other signals come from a process, not from what the thread did.
    let made_here = info.code > 0;
    let ours = |context: &mut Context| {
        arch::faulted(signal, info.code, info.addr, context) || recovered(context)
    };
    if made_here && ours(context) {
        return;
    }
    if arch::OTHER_TRAP == Some(signal)
        && let Some(copy) = INSIDE.get(context.pc())
    {
        context.set_pc(copy);
        return;
    }
    if made_here && let Some(to) = trap::guarded(context.pc()) {
        context.set_pc(to);
        return;
    }
    if made_here && islands::contains(context.pc()) {
        moved(signal, info, context);
    } else {
        chain(signal, info, context);
    }
}

/// Leaves a probe's handler that has faulted. Returns whether there was one.
fn recovered(context: &mut Context) -> bool {
    // SAFETY: the pointer is null or points into the table.
    let thread: Option<&Thread> = unsafe { arch::common::thread_pointer().as_ref() };
    let Some(thread) = thread.filter(|thread| thread.busy.load(Ordering::Relaxed) != 0) else {
        return false;
    };
    let to = thread.recover_pc.load(Ordering::Relaxed);
    if to == 0 {
        return false;
    }
    // SAFETY: a probe whose handler is running is alive.
    if let Some(node) = unsafe { thread.probe.load(Ordering::Relaxed).as_ref() } {
        node.faults.fetch_add(1, Ordering::Relaxed);
        node.faulted.store(1, Ordering::Relaxed);
        node.enabled.store(0, Ordering::Release);
    }
    context.leave(to, thread.recover_sp.load(Ordering::Relaxed));
    true
}

/// Handles a fault of a moved instruction: the program's handler sees it at the original instruction.
fn moved(signal: i32, info: &mut Info, context: &mut Context) {
    let here = context.pc();
    let Some(place) = trap::original(here) else {
        chain(signal, info, context);
        return;
    };
    if is_default(signal) {
        // The program has no handler. The instruction faults again, and that ends the process.
        reset(signal);
        return;
    }
    // For some faults the kernel reports the address of the instruction instead of the one accessed.
    if info.addr == here {
        info.addr = place.addr;
    }
    context.set_pc(place.addr);
    context.pop(place.pushed);
    chain(signal, info, context);
    if context.pc() == place.addr {
        // The instruction will be tried again, which does not count as another hit.
        context.set_pc(here);
        context.pop(-place.pushed);
    } else if let Some(copy) = INSIDE.get(context.pc()) {
        context.set_pc(copy);
    }
}
