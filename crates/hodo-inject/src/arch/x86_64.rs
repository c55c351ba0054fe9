//! x86-64, with Linux's conventions for it.

use super::{Reach, Restorer, Saved};
use anyhow::Result;
use hodo_abi::Isa;
use hodo_codegen::x86_64::clock;
use hodo_isa::x86_64::calls;
use hodo_patch::layout;
use hodo_ptrace::TargetAddr;
use hodo_ptrace::{Memory, Regs};
use hodo_symbols::Registers;
use hodo_trace::format::{SHADOW_DISTANCE, tcb};

pub use hodo_codegen::x86_64::hooks::FRAMES as HOOK_FRAMES;
pub use hodo_isa::x86_64::asm::{RETURN_ZERO, WAIT};
pub use hodo_isa::x86_64::calls::{Called, called_by, jump_target, leaving_jump, only_returns};

/// Whether code contains an instruction that makes system calls.
pub fn makes_call(code: &[u8]) -> bool {
    code.windows(2).any(|bytes| bytes == [0x0F, 0x05])
}

/// Handlers return to code whose address is in the third word of the kernel's `struct sigaction`.
pub const RESTORER: Option<Restorer> = Some(Restorer { flag: 0x0400_0000 });

/// Where islands are.
pub const ISLANDS: Reach = super::FAR;

/// Where the trace may be mapped in targets: first below the shadow of the stacks, at addresses as random as those of
/// the libraries, so that no program has chosen the same, and where it divides none of the large gaps. The others are
/// far from everything that programs use, sanitizers included. `linker`: the address of the dynamic linker.
pub fn events_at(linker: Option<u64>) -> [u64; 4] {
    /// The trace, the counters below it and the ledger take less.
    const ROOM: u64 = 1 << 40;
    const ALIGN: u64 = 2 << 20;
    let shadow = stacks(u64::MAX, linker).start - SHADOW_DISTANCE;
    let near = (shadow - ROOM) / ALIGN * ALIGN;
    [near, 0x2000_0000_0000, 0x3800_0000_0000, 0x1800_0000_0000]
}

/// Where the ledger may be mapped: after the trace.
pub fn ledger_at(linker: Option<u64>) -> [u64; 4] {
    events_at(linker).map(|at| at + (1 << 39))
}

/// How much address space, from a program on and below the libraries, gets a shadow at once.
pub const SHADOW_ROOM: u64 = 1 << 40;

/// The range that has a shadow from the beginning: from some way below the libraries up to the first stack. `linker`:
/// the address of the dynamic linker; `sp`: the first stack.
pub fn stacks(sp: u64, linker: Option<u64>) -> std::ops::Range<u64> {
    // Without address space randomization the first stack ends where the address space does.
    let top = 0x8000_0000_0000;
    let low = linker
        .filter(|&base| base > 1 << 46)
        .unwrap_or(0x7E00_0000_0000)
        .min(sp);
    low - SHADOW_ROOM..top
}

/// Why the threads of a program cannot be told apart: here, they always can.
pub fn unsuited(_file: &[u8]) -> Option<&'static str> {
    None
}

/// A thread that is this far inside code that `take_time` changes must restart it.
pub const INSIDE_TIME: u64 = 2;

/// Makes our code take the time from the control block instead of the time counter. Returns where it was changed.
pub fn take_time(code: &mut [u8]) -> Vec<usize> {
    let [read, take] = [clock::read(&layout()), clock::take(tcb::NOW as u32)];
    let mut places = Vec::new();
    for at in 0..code.len().saturating_sub(read.len() - 1) {
        if code[at..].starts_with(&read) {
            code[at..][..take.len()].copy_from_slice(&take);
            places.push(at);
        }
    }
    places
}

/// Whether the thread is where `take_time` has changed our code.
///
/// # Errors
/// If the memory cannot be accessed.
pub fn takes_time(regs: &Regs, memory: &Memory) -> Result<bool> {
    let take = clock::take(tcb::NOW as u32);
    let mut code = take.clone();
    memory.read(TargetAddr(regs.pc()), &mut code)?;
    Ok(code == take)
}

/// How the code of one function uses the stack. This does not matter here, because calls push return addresses.
#[derive(Debug)]
pub struct Made;

impl Made {
    /// Of the function at an address.
    pub fn of(_memory: &Memory, _start: u64, _end: Option<u64>) -> Self {
        Self
    }

    /// How far below S it keeps its return address; [`return_below`] knows that.
    pub fn kept(&self) -> Option<i32> {
        None
    }

    /// S of a thread that is at `_pc` in it.
    pub fn frame(&self, _pc: u64, _sp: u64) -> Option<u64> {
        None
    }
}

/// How far below S a function's return address is on the stack. `_kept`: what unwind tables say. `None`: it is not
/// known.
pub fn return_below(_kept: impl FnOnce() -> Option<i32>) -> Option<u64> {
    Some(0)
}

/// The slot from which code loads the address that it jumps to: not needed, because S is known.
pub fn slot_of(_code: &[u8], _at: u64) -> Option<u64> {
    None
}

/// Whether a function signs its return address, and then whether by the second key: none does here.
pub fn signs(_code: impl Iterator<Item = [u8; 4]>) -> Option<bool> {
    None
}

/// A thread's registers, for walking its frames.
pub fn for_unwinders(regs: &Regs) -> Option<Registers> {
    let mut known = Registers::new(Isa::X86_64);
    for (register, value) in (0..).zip(regs.all()) {
        known.set(register, value);
    }
    known.set_instruction(Some(regs.pc()));
    Some(known)
}

/// How far above S the stack pointer is when a function has returned.
pub const CFA_ABOVE: u64 = 8;

/// What `getcontext` and `swapcontext` save.
pub const SAVED: &[Saved] = &[Saved {
    back: &[1],
    sp: 0,
    above: 8,
    equal: None,
}];

/// The maximum of this distance.
pub const RETURNS_BELOW: u64 = 0;

/// Unwinders recognize a stub's frame by the address this far below S,
pub const STUB_FRAME: u64 = 0;

/// which is lower by this much than that of the function's own frame would be.
pub const STUB_LOWER: u64 = 8;

/// If code of the program at `at` is a copy of changed code: the jump of ours that it would take, as the jump's address
/// and its target. It has changed no register.
pub fn copied_jump(memory: &Memory, at: u64) -> Option<(u64, u64)> {
    let mut code = [0; 2];
    memory.read(TargetAddr(at), &mut code).ok()?;
    // Perhaps by a short jump to padding nearby.
    let jump = calls::short_jump_target(at, code).unwrap_or(at);
    Some((jump, jump_at(memory, jump)?))
}

/// The target of our jump at `at`, if there is one.
pub fn jump_at(memory: &Memory, at: u64) -> Option<u64> {
    let mut jump = [0; 5];
    memory.read(TargetAddr(at), &mut jump).ok()?;
    jump_target(at, &jump)
}

/// What our call before `at` calls, if there is one whose bytes show it.
pub fn called_before(memory: &Memory, at: u64) -> Option<u64> {
    let (mut call, start) = ([0; 5], at.checked_sub(5)?);
    memory.read(TargetAddr(start), &mut call).ok()?;
    calls::call_target(start, &call)
}

/// Whether code of a hook before `at` makes a call.
pub fn follows_call(memory: &Memory, at: u64) -> bool {
    let mut before = [0; 5];
    let start = TargetAddr(at.wrapping_sub(5));
    memory.read(start, &mut before).is_ok() && calls::is_call_of_hook(before)
}

/// Where a body begins that is called at an address: there.
pub fn after_signing(_memory: &Memory, called: u64) -> u64 {
    called
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_mapped_keeps_apart() {
        for linker in [
            None,
            Some(0x7EFF_1234_5000),
            Some(0x7FFF_F7FC_B000),
            Some(0x2AAA_0000_0000),
        ] {
            let stacks = stacks(0x7FFF_FFF0_0000, linker);
            let shadow = stacks.start - SHADOW_DISTANCE..stacks.end - SHADOW_DISTANCE;
            assert!(shadow.end < stacks.start);
            let [trace, ledger] = [events_at(linker)[0], ledger_at(linker)[0]];
            // The trace has 256 GiB, the ledger 512 MiB.
            assert!(trace + (256 << 30) < ledger && ledger + (512 << 20) < shadow.start);
        }
    }

    #[test]
    fn jumps_and_calls_lead_where_their_bytes_say() {
        let code = [0xE8, 0x10, 0, 0, 0, 0xE9, 0xF6, 0xFF, 0xFF, 0xFF];
        let at = code.as_ptr().addr() as u64;
        let memory = Memory::open(std::process::id().cast_signed()).expect("one's own memory");
        assert_eq!(called_before(&memory, at + 5), Some(at + 5 + 0x10));
        assert_eq!(called_before(&memory, at + 10), None);
        assert_eq!(jump_at(&memory, at + 5), Some(at));
        assert_eq!(jump_target(at + 5, &code[5..]), Some(at));
        assert_eq!(jump_target(at, &code), None);
        assert_eq!(jump_target(at, &code[..4]), None);
        assert!(follows_call(&memory, at + 5));
        assert!(!follows_call(&memory, at + 10));
    }
}
