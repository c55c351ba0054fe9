//! What happens at a breakpoint. Runs in the handler of SIGTRAP: no lock, no allocation.

use core::sync::atomic::Ordering;

use super::arch::{self, Context, Registers};
use super::dispositions::{self, Info};
use super::islands;
use super::layout::{Handler, Node, Thread};
use super::site::{INSIDE, Site};
use super::{Execution, sys, threads};

/// Handles a breakpoint if it is one of the engine's. Returns whether it was.
pub(super) fn trapped(context: &mut Context) -> bool {
    if context.switched() {
        return true;
    }
    let addr = context.breakpoint();
    let site = Site::at(addr);
    if let Some(site) = site.filter(|site| site.head.armed.load(Ordering::Acquire) != 0) {
        hit(site, context);
        return true;
    }
    if let Some(copy) = INSIDE.get(addr) {
        context.set_pc(copy);
        return true;
    }
    if site.is_some() {
        // It was removed in the meantime.
        context.set_pc(addr);
        return true;
    }
    let Some(piece) = islands::piece(addr).filter(|piece| piece.trap == Some(addr)) else {
        return false;
    };
    stepped(piece.site, context);
    true
}

/// Passes one of the engine's breakpoints without calling a handler, or any function outside the engine: continues at a
/// copy of the instruction. Returns false if that is not possible.
pub(super) fn pass(context: &mut Context) -> bool {
    let addr = context.breakpoint();
    let site = Site::at(addr);
    if let Some(site) = site.filter(|site| site.head.armed.load(Ordering::Acquire) != 0) {
        let piece = site.boosted().or(site.stepped());
        let done = match (piece, &site.simulation) {
            (Some(piece), _) => {
                context.set_pc(piece.range.start);
                true
            }
            (None, Some(simulation)) => context.simulate(simulation),
            (None, None) => false,
        };
        if !done {
            return false;
        }
        // The list stays valid: whatever made the thread busy keeps it. Otherwise `threads::wait` would not wait for this
        // thread.
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
        context.set_pc(to);
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

fn hit(site: &Site, context: &mut Context) {
    let mut registers = context.registers();
    registers.pc = site.addr();
    let Some(thread) = threads::current() else {
        threads::UNKNOWN.fetch_add(1, Ordering::Relaxed);
        go_on(site, None, registers, context);
        return;
    };
    if thread.busy.load(Ordering::Relaxed) != 0 {
        // The list stays valid: whatever made the thread busy keeps it.
        site.nodes().for_each(miss);
        site.return_nodes().for_each(miss);
        go_on(site, None, registers, context);
        return;
    }
    begin(thread);
    call(thread, site, &mut registers, false);
    let returning = site
        .return_nodes()
        .any(|node| node.enabled.load(Ordering::Acquire) != 0);
    if let Some(detour) = site
        .returning()
        .filter(|_| returning && registers.pc == site.addr())
    {
        registers.pc = detour.after;
        context.set(&registers);
    } else if registers.pc == site.addr() {
        go_on(site, Some(thread), registers, context);
    } else {
        context.set(&registers);
    }
    end(thread);
}

/// Executes the instruction: on the registers, or at a copy of it. If a thread is given, handlers are called after it.
fn go_on(site: &Site, thread: Option<&Thread>, mut registers: Registers, context: &mut Context) {
    let after = thread.is_some() && site.after.load(Ordering::Acquire) != 0;
    let forced = site.forced.load(Ordering::Acquire);
    let simulated = match forced {
        0 => true,
        _ => forced == Execution::Simulated as u32 || !site.has_copy(),
    };
    if simulated && let Some(simulation) = &site.simulation {
        let before = registers;
        if arch::simulate(simulation, &mut registers).is_err() {
            fault(&before, context);
            return;
        }
        if let Some(thread) = thread.filter(|_| after) {
            call(thread, site, &mut registers, true);
        }
        context.set(&registers);
        return;
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
    context.set(&registers);
}

/// A simulated instruction has faulted: the program's handler sees the fault at the instruction itself.
fn fault(registers: &Registers, context: &mut Context) {
    context.set(registers);
    let Some(thread) = threads::current() else {
        return;
    };
    let [signal, code, addr] = [0, 1, 2].map(|at: usize| thread.fault[at].load(Ordering::Relaxed));
    // The program's handler may leave by `longjmp`.
    end(thread);
    thread.trapping.store(0, Ordering::Relaxed);
    let mut info = Info::new(signal as i32, code as i32, addr);
    dispositions::chain(signal as i32, &mut info, context);
    if dispositions::is_default(signal as i32) {
        let _ = sys::signal_thread(sys::thread(), signal as i32);
    }
}

/// After an instruction that was executed out of line.
fn stepped(site: &Site, context: &mut Context) {
    context.set_pc(site.next());
    let Some(thread) = threads::current() else {
        return;
    };
    let mut registers = context.registers();
    if thread.busy.load(Ordering::Relaxed) != 0 {
        return;
    }
    begin(thread);
    call(thread, site, &mut registers, true);
    context.set(&registers);
    end(thread);
}

/// Where execution continues after a guarded instruction of an island has faulted.
pub(super) fn guarded(addr: u64) -> Option<u64> {
    let (at, to) = islands::piece(addr)?.guard?;
    (at == addr).then_some(to)
}

/// What an address in an island corresponds to.
pub(super) struct Origin {
    /// The program's instruction.
    pub addr: u64,
    /// Bytes that the copy has already pushed when it faults, and that the original would not have pushed.
    pub pushed: i64,
}

/// The program's instruction from which an instruction of an island was copied.
pub(super) fn original(addr: u64) -> Option<Origin> {
    let piece = islands::piece(addr)?;
    let (new, point) = piece.map.at_or_before(addr)?;
    let call = piece.calls.is_some_and(|call| call == point.original);
    Some(Origin {
        addr: point.original,
        pushed: if call && addr > new { 8 } else { 0 },
    })
}
