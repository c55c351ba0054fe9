//! A system call, with what is done before it and after it.

use alloc::borrow::Cow;

use super::{Action, Call, DetourError, If, KEPT, Probe, Runtime};
use crate::riscv64::masm::{Asm, Label};
use hodo_isa::riscv64::asm::{SYSTEM_CALL, SYSTEM_CALL_NOP};
use hodo_isa::riscv64::regs::{A7, RA, SP, T0, ZERO};

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

/// Emits a system call, with what is done for certain numbers; see [`emit`]. The kernel preserves the register with the
/// number.
pub(super) fn emit_calls(
    asm: &mut Asm,
    calls: &[Call],
    emit: &mut Emit<'_>,
) -> Result<Label, DetourError> {
    let actions = |of: fn(&Call) -> &[Action]| {
        let all = calls.iter().map(move |call| (call.number, of(call)));
        all.filter(|(_, actions)| !actions.is_empty())
    };
    chosen(asm, actions(|call| &call.enter), emit)?;
    let call = asm.here();
    asm.raw(&SYSTEM_CALL);
    chosen(asm, actions(|call| &call.exit), emit)?;
    Ok(call)
}

/// Emits an action.
type Emit<'e> = dyn FnMut(&mut Asm, &Action) -> Result<(), DetourError> + 'e;

/// Emits the actions for each number, of which one runs.
fn chosen<'c>(
    asm: &mut Asm,
    numbered: impl Iterator<Item = (u32, &'c [Action])>,
    emit: &mut Emit<'_>,
) -> Result<(), DetourError> {
    let mut numbered = numbered.peekable();
    if numbered.peek().is_none() {
        return Ok(());
    }
    let restore = |asm: &mut Asm| {
        asm.ld(T0, 0, SP);
        asm.stack(KEPT);
    };
    asm.stack(-KEPT);
    asm.store(8, T0, SP, 0, ZERO);
    let done = asm.label();
    for (number, actions) in numbered {
        let next = asm.label();
        asm.li(T0, number.into());
        asm.branch(If::NotEqual, T0, A7, next);
        restore(asm);
        for action in actions {
            emit(asm, action)?;
        }
        asm.jump(done);
        asm.bind(next);
    }
    restore(asm);
    asm.bind(done);
    Ok(())
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
    for probe in probes.iter().filter(|p| p.action.makes_call()) {
        let range = probe.offset..probe.offset + SYSTEM_CALL.len();
        if code.get(range.clone()) == Some(&SYSTEM_CALL[..]) {
            code.to_mut()[range].copy_from_slice(&SYSTEM_CALL_NOP);
        }
    }
    code
}
