//! The engine's handlers for the signals that breakpoints and faults raise. They run before the program's handlers,
//! which see what they would see without the engine.

use core::sync::atomic::{AtomicU32, Ordering};

use super::arch::{self, Context};
use super::cause::Cause;
use super::dispositions::{Info, chain, is_default, keep, reset};
use super::site::INSIDE;
use super::sys::{self, Action};
use super::trap::{self, Breakpoint, Fault, Origin};

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

/// The addresses of the handlers.
pub(super) fn entries() -> [u64; 2] {
    [on_trap, on_fault].map(|handler| handler as *const () as u64)
}

extern "C" fn on_trap(signal: i32, info: *mut Info, context: *mut Context) {
    // SAFETY: the kernel's pointers are valid while the handler runs.
    let (info, context) = unsafe { (&mut *info, &mut *context) };
    let breaks = info.code == arch::BREAKPOINT_CODE;
    match context.with(|registers| trap::breakpoint(registers, breaks)) {
        Breakpoint::Handled => {}
        Breakpoint::Foreign => chain(signal, info, context),
        Breakpoint::Faulted(cause) => {
            let mut info = Info::new(cause.number, cause.code, cause.addr);
            chain(cause.number, &mut info, context);
            if is_default(cause.number) {
                let _ = sys::signal_thread(sys::thread(), cause.number);
            }
        }
    }
}

extern "C" fn on_fault(signal: i32, info: *mut Info, context: *mut Context) {
    // SAFETY: the kernel's pointers are valid while the handler runs.
    let (info, context) = unsafe { (&mut *info, &mut *context) };
    // Other signals come from a process, not from what the thread did.
    let made_here = info.code > 0;
    let illegal = arch::OTHER_TRAP == Some(signal);
    let cause = Cause {
        number: signal,
        code: info.code,
        addr: info.addr,
    };
    let result = context.with(|registers| trap::faulted(registers, made_here, illegal, &cause));
    match result {
        Fault::Handled => {}
        Fault::Moved(origin) => moved(signal, info, context, origin),
        Fault::Foreign => chain(signal, info, context),
    }
}

/// Handles a fault of a moved instruction: the program's handler sees it at the original instruction.
fn moved(signal: i32, info: &mut Info, context: &mut Context, place: Origin) {
    let here = context.pc();
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
