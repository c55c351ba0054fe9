//! Frames of signal handlers.

use hodo_isa::riscv64::regs::{GP, TP};

use crate::arch::linked::{Regs, is_code, word};
use crate::maps::Mapping;
use crate::memory::Memory;

/// The frame that the kernel makes for a signal handler: offsets from the stack pointer at the handler's first
/// instruction (`arch/riscv/kernel/signal.c`, `asm/ucontext.h`, `asm/sigcontext.h`): 128 bytes about the signal, then
/// the context.
pub mod frame {
    const CONTEXT: u64 = 128;
    /// Of the alternate stack's address.
    pub const STACK: u64 = CONTEXT + 16;
    /// Of its size.
    pub const STACK_SIZE: u64 = STACK + 16;
    /// Of the interrupted stack pointer.
    pub const SP: u64 = PC + 2 * 8;
    /// Of the interrupted instruction.
    pub const PC: u64 = CONTEXT + 176;
    /// Of the signals that were blocked.
    pub const MASK: u64 = CONTEXT + 40;
    /// Its bytes, without further registers.
    pub const SIZE: u64 = PC + 256 + 528;
    /// Of the general registers in it, and how many bytes they are.
    pub const REGISTERS: (u64, u64) = (PC, 256);
    /// How far the stack pointer is above the frame when the handler's return enters the kernel.
    pub const RETURNED: u64 = 0;
    /// Of the interrupted function's return address, and of its frame pointer, if the first is in a register.
    pub const RETURN: Option<(u64, u64)> = Some((PC + 8, PC + 8 * 8));
    /// Of the interrupted code's first argument, or result.
    pub(in super::super::super) const RESULT: u64 = PC + 10 * 8;
    /// After the general and floating-point registers: a word of zeros, and what sort of further registers follows.
    pub(super) const RESERVED: usize = PC as usize + 256 + 516;
    pub(super) const MAGIC: usize = RESERVED + 4;
    /// None, and vector registers.
    pub(super) const MAGICS: [u64; 2] = [0, 0x5346_5457];
}

/// How many bytes the kernel has used for the frame that begins at these bytes of a stack, at least.
pub fn size_of_frame(_stack: &[u8], _at: u64) -> u64 {
    frame::SIZE
}

/// Does a signal handler's frame begin at these bytes of a stack? `regs`: of the thread whose stack that is.
pub fn is_frame(
    stack: &[u8],
    _real: &dyn Fn(u64) -> u64,
    _memory: &Memory,
    maps: &[Mapping],
    regs: &Regs,
) -> bool {
    let half = |at| word(stack, at).map(|word| word & 0xFFFF_FFFF);
    // Zeros and small numbers are all over stacks, but these two registers stay what they are.
    let keeps = |register: u8| {
        let saved = word(stack, frame::PC as usize + usize::from(register) * 8);
        saved.is_some_and(|saved| saved != 0 && saved == regs.get(register))
    };
    // Which signal; no flags and no link in the context.
    half(0).is_some_and(|signal| (1..=64).contains(&signal))
        && word(stack, 128) == Some(0)
        && word(stack, 136) == Some(0)
        && (keeps(TP) || keeps(GP))
        && half(frame::RESERVED) == Some(0)
        && half(frame::MAGIC).is_some_and(|magic| frame::MAGICS.contains(&magic))
        && word(stack, frame::PC as usize).is_some_and(|pc| pc % 2 == 0 && is_code(maps, pc))
}
