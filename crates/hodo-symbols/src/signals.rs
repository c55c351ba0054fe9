//! Signal frames made by the kernel, for code that no unwind table describes.

use hodo_abi::{Isa, Span};

use crate::{Caller, Registers};

/// `struct rt_sigframe` consists of a `siginfo_t` and a `ucontext_t`. These are offsets in it, in bytes.
const NUMBER: u64 = 0;
const FLAGS: u64 = 128;
const LINK: u64 = 136;
const CONTEXT: u64 = 128 + 176;

/// Where an instruction set's frames keep the interrupted state.
struct Kept {
    /// The address of the instruction.
    instruction: u64,
    /// The first general register that is kept, where it is, and how many there are.
    first: (u8, u64),
    count: u8,
    /// Whether frames of handlers without SA_SIGINFO have a `siginfo_t`, too. Otherwise what was on the stack before is
    /// there.
    always_numbered: bool,
    /// A word that all frames have, and where it is: the head of the first record of further registers.
    mark: Option<(u64, u64)>,
}

impl Kept {
    fn of(isa: Isa) -> Option<Self> {
        Some(match isa {
            // The instruction, then x1 to x31.
            Isa::Riscv64 => Self {
                instruction: CONTEXT,
                first: (1, CONTEXT + 8),
                count: 31,
                always_numbered: true,
                mark: None,
            },
            // An address of a fault, x0 to x30, the stack pointer, the instruction, the flags. From a multiple of 16
            // on, the records: the first one has the floating-point registers.
            Isa::Aarch64 => Self {
                instruction: CONTEXT + 33 * 8,
                first: (0, CONTEXT + 8),
                count: 32,
                always_numbered: false,
                mark: Some((CONTEXT + 36 * 8, FLOATS)),
            },
            Isa::X86_64 => return None,
        })
    }
}

/// The head of AArch64's `struct fpsimd_context`: its magic number and its size.
const FLOATS: u64 = 0x210 << 32 | 0x4650_8001;

/// The numbers of signals.
const SIGNALS: std::ops::RangeInclusive<u64> = 1..=64;

/// Returns what was interrupted, if `registers` belong to the code that signal handlers return to and no table
/// describes it. The kernel's own code (vDSO) is in no file. It is recognized by the frame that the stack pointer
/// points to. The caller must check whether the interrupted address is code. `read` reads words of memory.
#[must_use]
pub fn interrupted(registers: &Registers, read: &dyn Fn(u64) -> Option<u64>) -> Option<Caller> {
    let isa = registers.isa();
    let kept = Kept::of(isa)?;
    let frame = registers.stack_pointer()?;
    let word = |at| read(frame.wrapping_add(at));
    let is_numbered = SIGNALS.contains(&(word(NUMBER)? & 0xFFFF_FFFF));
    if !is_numbered && kept.always_numbered || word(FLAGS)? != 0 || word(LINK)? != 0 {
        return None;
    }
    if let Some((at, mark)) = kept.mark
        && word(at)? != mark
    {
        return None;
    }
    let mut registers = Registers::new(isa);
    registers.set_instruction(Some(word(kept.instruction)?));
    let (first, at) = kept.first;
    for index in 0..kept.count {
        registers.set(first + index, word(at + 8 * u64::from(index))?);
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

    #[test]
    fn frames_with_the_instruction_after_the_registers() {
        let mut words = [0; 80];
        for register in 0..32 {
            words[39 + register] = 0x1000 * (register as u64 + 1);
        }
        words[71] = 0x7_0004;
        words[74] = 0x210_4650_8001;
        let found = |words: &[u64]| {
            let mut registers = Registers::new(Isa::Aarch64);
            registers.set(31, 0x4000);
            let read = |addr: u64| words.get(usize::try_from(addr.checked_sub(0x4000)? / 8).ok()?);
            interrupted(&registers, &|addr| read(addr).copied())
        };
        // Only with SA_SIGINFO does the kernel write the number of the signal.
        for number in [0, 10, 0xaaaa_1234_5678] {
            words[0] = number;
            let caller = found(&words).expect("a frame");
            assert_eq!(caller.registers.instruction(), Some(0x7_0004));
            assert_eq!(caller.registers.stack_pointer(), Some(0x2_0000));
        }
        // Every frame begins its records with the floating-point registers.
        words[74] = 0;
        assert!(found(&words).is_none());
    }
}
