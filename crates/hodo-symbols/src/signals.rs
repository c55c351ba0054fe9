//! Signal frames made by the kernel, for code that no unwind table describes.

use hodo_abi::{Isa, Span};

use crate::{Caller, Registers};

/// RISC-V: `struct rt_sigframe` consists of a `siginfo_t` and a `ucontext_t`. These are offsets in it, in bytes.
mod riscv64 {
    pub const NUMBER: u64 = 0;
    pub const FLAGS: u64 = 128;
    pub const LINK: u64 = 136;
    /// The address of the instruction, followed by x1 to x31.
    pub const REGISTERS: u64 = 128 + 176;
}

/// The numbers of signals.
const SIGNALS: std::ops::RangeInclusive<u64> = 1..=64;

/// Returns what was interrupted, if `registers` belong to the code that signal handlers return to and no table
/// describes it. The kernel's own code (vDSO) is in no file. It is recognized by the frame that the stack pointer
/// points to. The caller must check whether the interrupted address is code. `read` reads words of memory.
#[must_use]
pub fn interrupted(registers: &Registers, read: &dyn Fn(u64) -> Option<u64>) -> Option<Caller> {
    if registers.isa() != Isa::Riscv64 {
        return None;
    }
    let frame = registers.stack_pointer()?;
    let word = |at| read(frame.wrapping_add(at));
    let number = word(riscv64::NUMBER)? & 0xFFFF_FFFF;
    if !SIGNALS.contains(&number) || word(riscv64::FLAGS)? != 0 || word(riscv64::LINK)? != 0 {
        return None;
    }
    let mut registers = Registers::new(Isa::Riscv64);
    registers.set_instruction(Some(word(riscv64::REGISTERS)?));
    for register in 1..32 {
        registers.set(
            register,
            word(riscv64::REGISTERS + 8 * u64::from(register))?,
        );
    }
    // If the handler ran on another stack, the interrupted stack may be anywhere, but its pointer is aligned.
    if registers.stack_pointer()? % 16 != 0 {
        return None;
    }
    Some(Caller {
        registers,
        kept: None,
        none: false,
        interrupted: true,
        code: Span::EMPTY,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_signal_frames_are_recognised() {
        let frame = |number: u64, flags: u64| {
            let mut words = [0; 80];
            words[0] = number;
            words[16] = flags;
            // The instruction, ra, sp.
            words[38..41].copy_from_slice(&[0x1000, 0x2000, 0x8010]);
            words
        };
        let found = |isa, words: &[u64]| {
            let mut registers = Registers::new(isa);
            registers.set(2, 0x4000);
            let read = |addr: u64| words.get(usize::try_from(addr.checked_sub(0x4000)? / 8).ok()?);
            interrupted(&registers, &|addr| read(addr).copied())
        };
        let caller = found(Isa::Riscv64, &frame(10, 0)).expect("a frame");
        assert!(caller.interrupted && !caller.none);
        assert_eq!(caller.registers.instruction(), Some(0x1000));
        assert_eq!(caller.registers.stack_pointer(), Some(0x8010));
        assert!(found(Isa::Riscv64, &frame(0, 0)).is_none());
        assert!(found(Isa::Riscv64, &frame(65, 0)).is_none());
        assert!(found(Isa::Riscv64, &frame(10, 7)).is_none());
        assert!(found(Isa::Riscv64, &frame(10, 0)[..60]).is_none());
        assert!(found(Isa::X86_64, &frame(10, 0)).is_none());
    }
}
