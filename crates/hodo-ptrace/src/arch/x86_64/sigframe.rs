//! Frames of signal handlers.

use hodo_isa::x86_64::entry::is_signal_return;

use super::regs::Regs;
use crate::maps::Mapping;
use crate::memory::Memory;
use crate::target::TargetAddr;

/// The frame that the kernel makes for a signal handler: offsets from the stack pointer at the handler's first
/// instruction (`arch/x86/include/asm/sigframe.h`, `asm/sigcontext.h`): the return address, then the context.
pub mod frame {
    /// Of the alternate stack's address.
    pub const STACK: u64 = 8 + 16;
    /// Of its size.
    pub const STACK_SIZE: u64 = STACK + 16;
    /// Of the interrupted stack pointer.
    pub const SP: u64 = 8 + 40 + 15 * 8;
    /// Of the interrupted instruction.
    pub const PC: u64 = 8 + 40 + 16 * 8;
    /// Of the signals that were blocked.
    pub const MASK: u64 = 8 + 40 + 256;
    /// Its bytes, without the registers that its context leads to.
    pub const SIZE: u64 = 8 + 304 + 128;
    /// Return addresses are in no register.
    pub const REGISTERS: (u64, u64) = (0, 0);
    /// How far the stack pointer is above the frame when the handler's return enters the kernel: it has taken the first
    /// word.
    pub const RETURNED: u64 = 8;
    /// Of the interrupted function's return address, and of its frame pointer, if the first is in a register.
    pub const RETURN: Option<(u64, u64)> = None;
    pub(super) const SEGMENTS: usize = 8 + 40 + 18 * 8;
    /// The selector of 64-bit code.
    pub(super) const USER_CODE: u16 = 0x33;
}

fn word(bytes: &[u8], at: usize) -> Option<u64> {
    let bytes = bytes.get(at..at + 8)?;
    Some(u64::from_le_bytes(bytes.try_into().ok()?))
}

/// How many bytes the kernel has used for the frame that begins at these bytes of a stack, at least.
pub fn size_of_frame(_stack: &[u8], _at: u64) -> u64 {
    frame::SIZE
}

/// Does a signal handler's frame begin at these bytes of a stack? `real`: what a return address is without us that is
/// there.
pub fn is_frame(
    stack: &[u8],
    real: &dyn Fn(u64) -> u64,
    memory: &Memory,
    maps: &[Mapping],
    _regs: &Regs,
) -> bool {
    word(stack, frame::SEGMENTS).is_some_and(|word| word as u16 == frame::USER_CODE)
        && word(stack, 0).is_some_and(|back| is_restorer(memory, maps, real(back)))
}

/// Whether this is where signal handlers return to.
fn is_restorer(memory: &Memory, maps: &[Mapping], at: u64) -> bool {
    let index = maps.partition_point(|m| m.end <= at);
    if !maps
        .get(index)
        .is_some_and(|m| m.start <= at && m.executable)
    {
        return false;
    }
    let mut code = [0; 9];
    memory.read(TargetAddr(at), &mut code).is_ok() && is_signal_return(&code)
}
