//! A system call, with what is done before it and after it.

use super::{Action, Call, DetourError, Probe};
use crate::x86_64::masm::*;
use crate::x86_64::stub::Runtime;
use alloc::borrow::Cow;
use alloc::vec;
use alloc::vec::Vec;

/// Emits the system call of the instruction at `here`. The instruction itself becomes a nop, because branches to the
/// next one must not reach the second event. A child that begins after the call also gets there. Nothing of ours is on
/// the stack during the call. Returns where the call is made.
pub(super) fn emit(code: &mut Masm<'_>, runtime: &Runtime, here: u64) -> u64 {
    let (enter, exit) = runtime.syscalls.unwrap_or_default();
    around(code, enter);
    let call = code.here();
    code.syscall();
    around(code, exit);
    after(code, here);
    call
}

/// The system call leaves the address of the next instruction in `rcx`.
fn after(code: &mut Masm<'_>, here: u64) {
    code.movabs_ri(RCX, here + SYSTEM_CALL.len() as u64);
}

/// Emits the system call of the instruction at `here` once for each number that something is done for, and once for
/// all others; see [`emit`]. `rcx` and `r11` are free before the call, because the processor overwrites them. Returns
/// where calls are made.
pub(super) fn emit_calls(
    code: &mut Masm<'_>,
    calls: &[Call],
    (here, flags_dead): (u64, bool),
    emit: &mut dyn FnMut(&mut Masm<'_>, &Action) -> Result<(), DetourError>,
) -> Result<Vec<u64>, DetourError> {
    // The flags are in rcx, and the number is in r11.
    code.mov_rr(R11, RAX);
    if !flags_dead {
        code.lahf();
        code.seto(AL);
        code.mov_rr(RCX, RAX);
    }
    let restore = |code: &mut Masm<'_>| {
        if !flags_dead {
            code.mov_rr(RAX, RCX);
            code.add_ri(AL, 127);
            code.sahf();
            code.mov_rr(RAX, R11);
        }
    };
    let labels: Vec<Label> = calls.iter().map(|_| code.label()).collect();
    let (other, done) = (code.label(), code.label());
    let numbered: Vec<_> = calls.iter().map(|call| call.number).zip(labels).collect();
    choose(code, &numbered, other);
    code.bind(other);
    restore(code);
    let mut made = vec![code.here()];
    code.syscall();
    code.jmp(done);
    for (call, (_, label)) in calls.iter().zip(numbered) {
        code.bind(label);
        restore(code);
        for action in &call.enter {
            emit(code, action)?;
        }
        made.push(code.here());
        code.syscall();
        for action in &call.exit {
            emit(code, action)?;
        }
        code.jmp(done);
    }
    code.bind(done);
    after(code, here);
    Ok(made)
}

/// Jumps to the label of the number in `r11`, or to `other` if there is none.
fn choose(code: &mut Masm<'_>, numbered: &[(u32, Label)], other: Label) {
    /// This many are compared one after the other.
    const FEW: usize = 4;
    if numbered.len() <= FEW {
        for &(number, label) in numbered {
            code.cmp_ri(R11D, number);
            code.jcc(Cond::E, label);
        }
        return code.jmp(other);
    }
    let (below, rest) = numbered.split_at(numbered.len() / 2);
    let upper = code.label();
    code.cmp_ri(R11D, rest[0].0);
    code.jcc(Cond::AE, upper);
    choose(code, below, other);
    code.bind(upper);
    choose(code, rest, other);
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
    for probe in probes.iter().filter(|p| p.action.makes_call()) {
        let range = probe.offset..probe.offset + SYSTEM_CALL.len();
        if code.get(range.clone()) == Some(&SYSTEM_CALL[..]) {
            code.to_mut()[range].copy_from_slice(&SYSTEM_CALL_NOP);
        }
    }
    code
}
