//! A system call, with what is done before it and after it.

use alloc::borrow::Cow;

use super::{Action, Call, DetourError, KEPT, Probe, Runtime};
use crate::linked::asm::Assembler;
use hodo_isa::buffer::Label;

/// Emits a system call. The instruction itself becomes a nop, because branches to the next one must not reach the
/// second event. A child that begins after the call also gets there. Nothing of ours is on the stack during the call.
/// Returns its label.
pub(super) fn emit<A: Assembler>(asm: &mut A, runtime: &Runtime) -> Label {
    let (enter, exit) = runtime.syscalls.unwrap_or_default();
    around(asm, enter);
    let call = asm.here();
    asm.raw(&A::SYSTEM_CALL);
    around(asm, exit);
    call
}

/// Emits a system call, with what is done for certain numbers; see [`emit`]. The kernel preserves the register with the
/// number.
pub(super) fn emit_calls<A: Assembler>(
    asm: &mut A,
    calls: &[Call],
    emit: &mut Emit<'_, A>,
) -> Result<Label, DetourError> {
    let actions = |of: fn(&Call) -> &[Action]| {
        let all = calls.iter().map(move |call| (call.number, of(call)));
        all.filter(|(_, actions)| !actions.is_empty())
    };
    chosen(asm, actions(|call| &call.enter), emit)?;
    let call = asm.here();
    asm.raw(&A::SYSTEM_CALL);
    chosen(asm, actions(|call| &call.exit), emit)?;
    Ok(call)
}

/// Emits an action.
type Emit<'e, A> = dyn FnMut(&mut A, &Action) -> Result<(), DetourError> + 'e;

/// Emits the actions for each number, of which one runs.
fn chosen<'c, A: Assembler>(
    asm: &mut A,
    numbered: impl Iterator<Item = (u32, &'c [Action])>,
    emit: &mut Emit<'_, A>,
) -> Result<(), DetourError> {
    let mut numbered = numbered.peekable();
    if numbered.peek().is_none() {
        return Ok(());
    }
    let spare = A::RUNTIME_LINK;
    let restore = |asm: &mut A| {
        asm.load(8, spare, A::STACK, 0);
        asm.stack(KEPT, spare);
    };
    asm.stack(-KEPT, spare);
    asm.store(8, spare, A::STACK, 0, A::ZERO);
    let done = asm.label();
    for (number, actions) in numbered {
        let next = asm.label();
        asm.unless_call(number, spare, next);
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
fn around<A: Assembler>(asm: &mut A, to: u64) {
    asm.stack(-KEPT, A::LINK);
    asm.store(8, A::LINK, A::STACK, 0, A::ZERO);
    asm.call_far(to);
    asm.load(8, A::LINK, A::STACK, 0);
    asm.stack(KEPT, A::LINK);
}

/// The code without the system calls that probes make instead.
pub(super) fn without_syscalls<'c, A: Assembler>(
    displaced: &'c [u8],
    probes: &[Probe<'_>],
) -> Cow<'c, [u8]> {
    let mut code = Cow::Borrowed(displaced);
    for probe in probes.iter().filter(|p| p.action.makes_call()) {
        let range = probe.offset..probe.offset + A::SYSTEM_CALL.len();
        if code.get(range.clone()) == Some(&A::SYSTEM_CALL[..]) {
            code.to_mut()[range].copy_from_slice(&A::SYSTEM_CALL_NOP);
        }
    }
    code
}
