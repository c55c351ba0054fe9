//! A system call, with an event before it and one after it.

use super::{Action, Probe};
use crate::x86_64::masm::*;
use crate::x86_64::stub::Runtime;
use alloc::borrow::Cow;

/// Bytes before the system call.
pub(super) const BEFORE: u64 = 18;

/// Bytes from the start of what [`emit`] emits to the end of the system call.
pub(super) const BEHIND: u64 = 5 + 5 + 8 + 2;

/// Emits the system call of the instruction at `here`. The instruction itself becomes a nop, because branches to the
/// next one must not reach the second event. A child that begins after the call also gets there. Nothing of ours is on
/// the stack during the call.
pub(super) fn emit(code: &mut Masm<'_>, runtime: &Runtime, here: u64) {
    let (enter, exit) = runtime.syscalls.unwrap_or_default();
    let start = code.here();
    around(code, enter);
    debug_assert_eq!(code.here(), start + BEFORE);
    code.syscall();
    debug_assert_eq!(code.here(), start + BEHIND);
    around(code, exit);
    // The system call leaves the address of the next instruction in rcx.
    code.movabs_ri(RCX, here + SYSTEM_CALL.len() as u64);
}

/// A call below the red zone that preserves the flags.
fn around(code: &mut Masm<'_>, to: u64) {
    code.lea(RSP, mem(RSP, -128));
    code.call_to(to);
    code.lea(RSP, mem(RSP, 128));
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
