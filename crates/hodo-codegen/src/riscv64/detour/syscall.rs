//! A system call, with an event before it and one after it.

use alloc::borrow::Cow;

use super::{Action, KEPT, Probe, Runtime};
use crate::riscv64::masm::{Asm, Label};
use hodo_isa::riscv64::asm::{SYSTEM_CALL, SYSTEM_CALL_NOP};
use hodo_isa::riscv64::regs::{RA, SP, ZERO};

/// Emits a system call. The instruction itself becomes a nop, because branches to the next one must not reach the
/// second event. A child that begins after the call also gets there. Nothing of ours is on the stack during the call.
/// Returns its label.
pub(super) fn emit(asm: &mut Asm, runtime: &Runtime) -> Label {
    let (enter, exit) = runtime.syscalls.unwrap_or_default();
    around(asm, enter);
    let call = asm.here();
    asm.raw(&SYSTEM_CALL);
    around(asm, exit);
    call
}

/// A call of a function that preserves all registers but the link register, which is saved here.
fn around(asm: &mut Asm, to: u64) {
    asm.stack(-KEPT);
    asm.store(8, RA, SP, 0, ZERO);
    asm.far(to, RA, RA);
    asm.ld(RA, 0, SP);
    asm.stack(KEPT);
}

/// The code without the system calls that probes make instead.
pub(super) fn without_syscalls<'c>(displaced: &'c [u8], probes: &[Probe<'_>]) -> Cow<'c, [u8]> {
    let mut code = Cow::Borrowed(displaced);
    for probe in probes.iter().filter(|p| *p.action == Action::Syscall) {
        let range = probe.offset..probe.offset + SYSTEM_CALL.len();
        if code.get(range.clone()) == Some(&SYSTEM_CALL[..]) {
            code.to_mut()[range].copy_from_slice(&SYSTEM_CALL_NOP);
        }
    }
    code
}
