//! Frames of signal handlers.

use crate::arch::linked::{Regs, is_code, word};
use crate::maps::Mapping;
use crate::memory::Memory;

/// The frame that the kernel makes for a signal handler: offsets from the stack pointer at the handler's first
/// instruction (`arch/arm64/kernel/signal.c`, `asm/ucontext.h`, `asm/sigcontext.h`): 128 bytes about the signal, then
/// the context, which ends with records of further registers.
pub mod frame {
    pub(in super::super) const CONTEXT: u64 = 128;
    /// Of the alternate stack's address.
    pub const STACK: u64 = CONTEXT + 16;
    /// Of its size.
    pub const STACK_SIZE: u64 = STACK + 16;
    /// Of the signals that were blocked.
    pub const MASK: u64 = CONTEXT + 40;
    /// Of `x0`. Before the registers is the address of a fault.
    pub(in super::super) const X0: u64 = CONTEXT + 176 + 8;
    /// Of the interrupted stack pointer.
    pub const SP: u64 = X0 + 31 * 8;
    /// Of the interrupted instruction.
    pub const PC: u64 = SP + 8;
    /// Of the records.
    pub(in super::super) const RECORDS: u64 = CONTEXT + 176 + 288;
    /// Its bytes, without records that had no room in it.
    pub const SIZE: u64 = RECORDS + 4096;
    /// Of the general registers in it, and how many bytes they are.
    pub const REGISTERS: (u64, u64) = (X0, 34 * 8);
    /// How far the stack pointer is above the frame when the handler's return enters the kernel.
    pub const RETURNED: u64 = 0;
    /// Of the interrupted function's return address, and of its frame pointer, if the first is in a register.
    pub const RETURN: Option<(u64, u64)> = Some((X0 + 30 * 8, X0 + 29 * 8));
    /// Of the interrupted code's first argument, or result.
    pub(in super::super::super) const RESULT: u64 = X0;
}

/// The words that begin the record of vector registers of 16 bytes, and the last one.
pub(super) const FLOATING_POINT: (u32, u32) = (0x4650_8001, 528);
const LAST: (u32, u32) = (0, 0);
/// The kind of the record that says where others are.
pub(super) const FURTHER: u32 = 0x4558_5401;
/// No frame has more bytes (`SIGFRAME_MAXSZ`).
const MOST: u64 = 64 << 10;

/// Which record is at an offset of a stack: its kind and its bytes.
fn record(stack: &[u8], at: usize) -> Option<(u32, u32)> {
    let word = word(stack, at)?;
    Some((word as u32, (word >> 32) as u32))
}

/// Whether records begin at an offset of a stack, as the kernel writes them. One of them is always there.
fn are_records(stack: &[u8], start: usize) -> bool {
    let end = start + (frame::SIZE - frame::RECORDS) as usize;
    let mut found = false;
    let mut at = start;
    while at < end {
        let Some(record) = record(stack, at) else {
            return false;
        };
        if record == LAST {
            return found;
        }
        let (_, size) = record;
        if size < 16 || size % 16 != 0 {
            return false;
        }
        found |= record == FLOATING_POINT;
        at += size as usize;
    }
    false
}

/// How many bytes the kernel has used for the frame that begins at these bytes of a stack, whose address is `at`. If
/// the records have no room in it, one of them says where others are: right after it.
pub fn size_of_frame(stack: &[u8], at: u64) -> u64 {
    let mut place = frame::RECORDS as usize;
    while let Some((kind, size)) = record(stack, place)
        && size != 0
        && place < frame::SIZE as usize
    {
        if kind == FURTHER
            && let (Some(further), Some(len)) = (word(stack, place + 8), word(stack, place + 16))
        {
            let end = further.saturating_add(len & u64::from(u32::MAX));
            return end.saturating_sub(at).clamp(frame::SIZE, MOST);
        }
        place += size as usize;
    }
    frame::SIZE
}

/// Does a signal handler's frame begin at these bytes of a stack?
pub fn is_frame(
    stack: &[u8],
    _real: &dyn Fn(u64) -> u64,
    _memory: &Memory,
    maps: &[Mapping],
    _regs: &Regs,
) -> bool {
    let context = frame::CONTEXT as usize;
    // No flags and no link in the context. What is said of the signal is there only if the handler wants it.
    word(stack, context) == Some(0)
        && word(stack, context + 8) == Some(0)
        && word(stack, frame::PC as usize).is_some_and(|pc| pc % 4 == 0 && is_code(maps, pc))
        && are_records(stack, frame::RECORDS as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stack(records: &[(u32, u32)]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for &(kind, size) in records {
            let start = bytes.len();
            bytes.extend(kind.to_le_bytes());
            bytes.extend(size.to_le_bytes());
            bytes.resize(start + size.max(8) as usize, 0xAA);
        }
        bytes
    }

    #[test]
    fn frames_end_with_the_records_that_have_no_room_in_them() {
        const AT: u64 = 0x7000;
        let mut bytes = vec![0; frame::RECORDS as usize];
        bytes.extend(stack(&[FLOATING_POINT, LAST]));
        assert_eq!(size_of_frame(&bytes, AT), frame::SIZE);
        let place = frame::RECORDS as usize + FLOATING_POINT.1 as usize;
        bytes.truncate(place);
        bytes.extend(stack(&[(FURTHER, 32), LAST]));
        let further = AT + place as u64 + 48;
        bytes[place + 8..place + 16].copy_from_slice(&further.to_le_bytes());
        bytes[place + 16..place + 20].copy_from_slice(&8192u32.to_le_bytes());
        assert_eq!(size_of_frame(&bytes, AT), place as u64 + 48 + 8192);
        // What no kernel has written
        bytes[place + 8..place + 16].copy_from_slice(&u64::MAX.to_le_bytes());
        assert_eq!(size_of_frame(&bytes, AT), MOST);
    }

    #[test]
    fn records_are_followed_to_their_end() {
        /// About a fault, and of vector registers.
        const OTHERS: [(u32, u32); 2] = [(0x4553_5201, 16), (0x5356_4501, 16)];
        let [fault, scalable] = OTHERS;
        assert!(are_records(&stack(&[FLOATING_POINT, LAST]), 0));
        assert!(are_records(
            &stack(&[fault, FLOATING_POINT, scalable, LAST]),
            0
        ));
        // Without what is always there, without an end, with sizes that none has.
        assert!(!are_records(&stack(&[fault, scalable, LAST]), 0));
        assert!(!are_records(&stack(&[FLOATING_POINT]), 0));
        assert!(!are_records(
            &stack(&[(0x4553_5201, 8), FLOATING_POINT, LAST]),
            0
        ));
        assert!(!are_records(
            &stack(&[(0x4553_5201, 24), FLOATING_POINT, LAST]),
            0
        ));
    }
}
