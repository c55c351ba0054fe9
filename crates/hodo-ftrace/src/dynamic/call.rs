//! What the code of a site calls.

use core::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

use super::modules;
use super::tracers::{
    self, ENTRY, EVERY_CALL, GRAPH, IP_MODIFY, LOOKED_UP, MASKS, Ops, SAVE_REGISTERS,
};
use crate::arch::{self, Registers};
use crate::hooks::{call_entry_hook, call_keeping};
use crate::shadow::original;
use crate::state::Vectors;
use crate::thread::Thread;
use crate::{environment, graph};

/// Calls the tracers of a mask at an entry. `parent` is where the return address of the function is, `slot` the address
/// under which the call is known, and `place` its stack slot. They are the same on x86-64; elsewhere the address is in
/// a register at the entry. `frame_pointer` is the caller's, `ip` the address of the site. The mask may be
/// [`LOOKED_UP`].
///
/// # Safety
/// This is so, the function runs, and the stub has saved all general registers.
pub(crate) unsafe fn entered(
    parent: *mut usize,
    slot: usize,
    place: usize,
    frame_pointer: usize,
    ip: usize,
    mask: u64,
    registers: *mut Registers,
) {
    let mask = match mask {
        LOOKED_UP => looked_up(ip, !registers.is_null()),
        known => known,
    };
    tracers::redirect(ip, mask, registers);
    let Some(thread) = environment::thread() else {
        return;
    };
    if !thread.start_hook(place) {
        return;
    }
    // SAFETY: the function has not returned.
    let there = unsafe { parent.read_volatile() };
    call_tracers(thread, ip, original(there, slot), mask, registers);
    if mask & GRAPH != 0 {
        // SAFETY: as the caller promises; whoever set the hooks keeps them.
        unsafe {
            let signer = arch::signer_at_site(there, place, ip);
            graph::push(thread, parent, (slot, place), ip, frame_pointer, signer);
        };
    }
    thread.end_hook();
}

/// What an entry is shown to that calls `mcount` or `__fentry__` itself: the tracers of its site; or, if it is none
/// that is known, the hooks of `set_entry` and `set_graph`.
pub(crate) fn mask_of_static(ip: usize) -> u64 {
    if !modules::any() {
        return ENTRY | GRAPH;
    }
    modules::site_at(ip).map_or(ENTRY | GRAPH, super::Site::wanted)
}

/// The mask of a site. A tracer for which it has just been changed may need registers that the stub has not saved: the
/// next change of the site's code is for it.
#[inline(never)]
fn looked_up(ip: usize, has_registers: bool) -> u64 {
    let mask = modules::site_at(ip).map_or(0, super::Site::wanted);
    match has_registers {
        true => mask,
        false => tracers::without_registers(mask),
    }
}

/// Calls all tracers of a mask but the graph tracer.
pub(crate) fn call_tracers(
    thread: &'static Thread,
    ip: usize,
    parent_ip: usize,
    mask: u64,
    registers: *mut Registers,
) {
    let mut rest =
        mask & !(ENTRY | GRAPH | tracers::live()) & (!tracers::by_thread() | thread.tracers());
    while rest != 0 {
        let number = rest.trailing_zeros() as usize % MASKS;
        rest &= rest - 1;
        // It may have been unregistered in the meantime.
        let Some((ops, vectors)) = tracers::tracer(number) else {
            continue;
        };
        if vectors == Vectors::None {
            call(ops, ip, parent_ip, registers);
        } else {
            call_unpacking(ops, vectors, ip, parent_ip, registers);
        }
    }
    if mask & ENTRY != 0 {
        call_entry_hook(|| parent_ip, ip);
    }
}

fn call(ops: &'static Ops, ip: usize, parent_ip: usize, registers: *mut Registers) {
    // SAFETY: it is null, or the stub's, and one function after the other is given it.
    let registers = unsafe { registers.as_mut() };
    let registers =
        registers.filter(|_| ops.flags & (SAVE_REGISTERS | IP_MODIFY | EVERY_CALL) != 0);
    (ops.func)(ip, parent_ip, ops, registers);
}

/// Words are atomic for the reason that `thread.rs` gives.
struct Arguments {
    ops: AtomicPtr<Ops>,
    ip: AtomicUsize,
    parent_ip: AtomicUsize,
    registers: AtomicPtr<Registers>,
}

#[inline(never)]
fn call_unpacking(
    ops: &'static Ops,
    vectors: Vectors,
    ip: usize,
    parent_ip: usize,
    registers: *mut Registers,
) {
    let arguments = core::mem::MaybeUninit::<Arguments>::uninit();
    let at = arguments.as_ptr();
    // SAFETY: all words of it are set before it is used; the function takes its address, and a word.
    unsafe {
        (*at)
            .ops
            .store(core::ptr::from_ref(ops).cast_mut(), Ordering::Relaxed);
        (*at).ip.store(ip, Ordering::Relaxed);
        (*at).parent_ip.store(parent_ip, Ordering::Relaxed);
        (*at).registers.store(registers, Ordering::Relaxed);
        call_keeping(vectors, unpack as *const () as usize, at as usize, 0);
    }
}

extern "C" fn unpack(arguments: &Arguments) {
    // SAFETY: `call_unpacking` has it from such a reference.
    let ops = unsafe { &*arguments.ops.load(Ordering::Relaxed) };
    let registers = arguments.registers.load(Ordering::Relaxed);
    let parent_ip = arguments.parent_ip.load(Ordering::Relaxed);
    call(
        ops,
        arguments.ip.load(Ordering::Relaxed),
        parent_ip,
        registers,
    );
}
