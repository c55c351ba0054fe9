//! What happens at breakpoints and faults. Runs in the handler of SIGTRAP, or in a kernel's handler of exceptions: no
//! lock, no allocation.

use core::sync::atomic::Ordering;

use super::arch::{self, Registers};
use super::cause::Cause;
use super::islands;
use super::layout::{Handler, Node, Thread};
use super::site::{INSIDE, Site};
use super::{Execution, threads};

/// What became of a breakpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Breakpoint {
    /// It was one of the engine's. Execution continues with the registers as they are now.
    Handled,
    /// It is none of the engine's.
    Foreign,
    /// It was one of the engine's. The probed instruction was executed on the registers, and has faulted in this way:
    /// the fault should be handled as if it had happened at the instruction. Only x86-64 has such instructions.
    Faulted(Cause),
}

/// What became of a fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The engine has handled it. Execution continues with the registers as they are now.
    Handled,
    /// A copy of an instruction has faulted. The place where it is a copy from is given: the fault should be handled as
    /// if it had happened there.
    Moved(Origin),
    /// The engine has nothing to do with it.
    Foreign,
}

/// Handles a breakpoint. `breaks`: the cause was a breakpoint instruction, not something else for which the processor
/// stops in the same way.
pub(super) fn breakpoint(registers: &mut Registers, breaks: bool) -> Breakpoint {
    let thread = threads::current();
    // A breakpoint in what handles breakpoints (`memcpy`, perhaps), or in a probe's handler.
    if thread.is_some_and(|thread| thread.trapping.load(Ordering::Relaxed) != 0) && pass(registers)
    {
        return Breakpoint::Handled;
    }
    let mark = |value| {
        if let Some(thread) = thread {
            thread.trapping.store(value, Ordering::Relaxed);
            thread.sequence.fetch_add(1, Ordering::SeqCst);
        }
    };
    mark(1);
    let result = match breaks {
        true => trapped(registers),
        false => Breakpoint::Foreign,
    };
    mark(0);
    result
}

/// Handles a fault. `here`: what the thread did itself has raised it. `illegal`: an instruction that is none has.
pub(super) fn faulted(
    registers: &mut Registers,
    here: bool,
    illegal: bool,
    cause: &Cause,
) -> Fault {
    if here && (arch::faulted(cause, registers) || recovered(registers)) {
        return Fault::Handled;
    }
    if illegal && let Some(copy) = INSIDE.get(registers.pc) {
        registers.pc = copy;
        return Fault::Handled;
    }
    if !here {
        return Fault::Foreign;
    }
    if let Some(to) = guarded(registers.pc) {
        registers.pc = to;
        return Fault::Handled;
    }
    original(registers.pc).map_or(Fault::Foreign, Fault::Moved)
}

/// Leaves a probe's handler that has faulted. Returns whether there was one.
fn recovered(registers: &mut Registers) -> bool {
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
    registers.leave(to, thread.recover_sp.load(Ordering::Relaxed));
    true
}

/// Handles a breakpoint if it is one of the engine's.
fn trapped(registers: &mut Registers) -> Breakpoint {
    if registers.switched() {
        return Breakpoint::Handled;
    }
    let addr = registers.breakpoint();
    let site = Site::at(addr);
    if let Some(site) = site.filter(|site| site.head.armed.load(Ordering::Acquire) != 0) {
        return hit(site, registers);
    }
    if let Some(copy) = INSIDE.get(addr) {
        registers.pc = copy;
        return Breakpoint::Handled;
    }
    if site.is_some() {
        // It was removed in the meantime.
        registers.pc = addr;
        return Breakpoint::Handled;
    }
    let Some(piece) = islands::piece(addr).filter(|piece| piece.trap == Some(addr)) else {
        return Breakpoint::Foreign;
    };
    stepped(piece.site, registers);
    Breakpoint::Handled
}

/// Passes one of the engine's breakpoints without calling a handler, or any function outside the engine: continues at a
/// copy of the instruction. Returns false if that is not possible.
fn pass(registers: &mut Registers) -> bool {
    let addr = registers.breakpoint();
    let site = Site::at(addr);
    if let Some(site) = site.filter(|site| site.head.armed.load(Ordering::Acquire) != 0) {
        let piece = site.boosted().or(site.stepped());
        let done = match (piece, &site.simulation) {
            (Some(piece), _) => {
                registers.pc = piece.range.start;
                true
            }
            (None, Some(simulation)) => registers.simulate(simulation),
            (None, None) => false,
        };
        if !done {
            return false;
        }
        // The list stays valid: whatever made the thread busy keeps it. Otherwise `threads::wait` would not wait for
        // this thread.
        site.nodes().for_each(miss);
        site.return_nodes().for_each(miss);
        return true;
    }
    let after = || {
        let piece = islands::piece(addr).filter(|piece| piece.trap == Some(addr))?;
        Some(piece.site.next())
    };
    let to = INSIDE.get(addr).or(site.map(|_| addr)).or_else(after);
    if let Some(to) = to {
        registers.pc = to;
    }
    to.is_some()
}

/// Calls handlers: those before the instruction, or those after it. Returns whether that was possible.
fn call(thread: &Thread, site: &Site, registers: &mut Registers, after: bool) {
    for node in site.nodes() {
        let handler = if after { node.after } else { node.before };
        if node.enabled.load(Ordering::Acquire) == 0 {
            continue;
        }
        if handler == 0 {
            if !after && node.after == 0 {
                node.counts.fetch_add(1, Ordering::Relaxed);
            }
            continue;
        }
        thread
            .probe
            .store(core::ptr::from_ref(node).cast_mut(), Ordering::Relaxed);
        // SAFETY: (1) it is a handler, which is sound here by the contract of registration; (2) the thread is marked as
        // busy.
        unsafe {
            let handler: Handler = core::mem::transmute(handler);
            arch::guarded(thread, handler, registers, node.data);
        }
    }
}

fn miss(node: &Node) {
    if node.enabled.load(Ordering::Acquire) == 0 {
        return;
    }
    match (node.before, node.after) {
        (0, 0) => node.counts.fetch_add(1, Ordering::Relaxed),
        _ => node.missed.fetch_add(1, Ordering::Relaxed),
    };
}

fn begin(thread: &Thread) {
    thread.busy.store(1, Ordering::Relaxed);
    thread.sequence.fetch_add(1, Ordering::SeqCst);
}

fn end(thread: &Thread) {
    thread.busy.store(0, Ordering::Release);
}

fn hit(site: &Site, registers: &mut Registers) -> Breakpoint {
    registers.pc = site.addr();
    let Some(thread) = threads::current() else {
        threads::UNKNOWN.fetch_add(1, Ordering::Relaxed);
        return go_on(site, None, registers);
    };
    if thread.busy.load(Ordering::Relaxed) != 0 {
        // The list stays valid: whatever made the thread busy keeps it.
        site.nodes().for_each(miss);
        site.return_nodes().for_each(miss);
        return go_on(site, None, registers);
    }
    begin(thread);
    call(thread, site, registers, false);
    let returning = site
        .return_nodes()
        .any(|node| node.enabled.load(Ordering::Acquire) != 0);
    let mut result = Breakpoint::Handled;
    if let Some(detour) = site
        .returning()
        .filter(|_| returning && registers.pc == site.addr())
    {
        registers.pc = detour.after;
    } else if registers.pc == site.addr() {
        result = go_on(site, Some(thread), registers);
    }
    end(thread);
    result
}

/// Calls the probes at a call site, which a function tracer has called ([`CallSites`](crate::environment::CallSites)).
/// `pc` of the registers is set to the site's address before, and to where execution goes on after it. Handlers may use
/// vector registers; the tracer keeps them.
pub fn called(addr: u64, registers: &mut Registers) {
    registers.pc = addr;
    if let Some(site) = Site::at(addr).filter(|site| site.call_site.is_some()) {
        hit(site, registers);
    }
}

/// Executes the instruction: on the registers, or at a copy of it. If a thread is given, handlers are called after it.
fn go_on(site: &Site, thread: Option<&Thread>, registers: &mut Registers) -> Breakpoint {
    let after = thread.is_some() && site.after.load(Ordering::Acquire) != 0;
    if site.call_site.is_some() {
        registers.pc = site.next();
        if let Some(thread) = thread.filter(|_| after) {
            call(thread, site, registers, true);
        }
        return Breakpoint::Handled;
    }
    let forced = site.forced.load(Ordering::Acquire);
    let simulated = match forced {
        0 => true,
        _ => forced == Execution::Simulated as u32 || !site.has_copy(),
    };
    if simulated && let Some(simulation) = &site.simulation {
        let before = *registers;
        if arch::simulate(simulation, registers).is_err() {
            *registers = before;
            return fault();
        }
        if let Some(thread) = thread.filter(|_| after) {
            call(thread, site, registers, true);
        }
        return Breakpoint::Handled;
    }
    let piece = match site
        .stepped()
        .filter(|_| thread.is_some() && (after || forced == Execution::OutOfLine as u32))
    {
        Some(piece) => Some(piece),
        None => site.boosted().or(site.stepped()),
    };
    if let Some(piece) = piece {
        registers.pc = piece.range.start;
    }
    Breakpoint::Handled
}

/// A simulated instruction has faulted: the program's handler sees the fault at the instruction itself.
fn fault() -> Breakpoint {
    let Some(thread) = threads::current() else {
        return Breakpoint::Handled;
    };
    let [number, code, addr] = [0, 1, 2].map(|at: usize| thread.fault[at].load(Ordering::Relaxed));
    Breakpoint::Faulted(Cause {
        number: number as i32,
        code: code as i32,
        addr,
    })
}

/// After an instruction that was executed out of line.
fn stepped(site: &Site, registers: &mut Registers) {
    registers.pc = site.next();
    let Some(thread) = threads::current() else {
        return;
    };
    if thread.busy.load(Ordering::Relaxed) != 0 {
        return;
    }
    begin(thread);
    call(thread, site, registers, true);
    end(thread);
}

/// Where execution continues after a guarded instruction of an island has faulted.
fn guarded(addr: u64) -> Option<u64> {
    let (at, to) = islands::piece(addr)?.guard?;
    (at == addr).then_some(to)
}

/// What an address in an island corresponds to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Origin {
    /// The program's instruction.
    pub addr: u64,
    /// Bytes that the copy has already pushed when it faults, and that the original would not have pushed.
    pub pushed: i64,
}

/// The program's instruction from which an instruction of an island was copied.
fn original(addr: u64) -> Option<Origin> {
    let piece = islands::piece(addr)?;
    let (new, point) = piece.map.at_or_before(addr)?;
    let call = piece.calls.is_some_and(|call| call == point.original);
    Some(Origin {
        addr: point.original,
        pushed: if call && addr > new { 8 } else { 0 },
    })
}
