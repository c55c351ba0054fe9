//! What registers of stopped threads have.

use anyhow::{Result, bail};
use hodo_ptrace::{Memory, Regs, Stopped, TargetAddr};

use super::banks::vector_bytes;
use super::system_call::FRAME_PC;
use super::{RCX_NUMBER, block};
use crate::block::Value;
use crate::inserted::{Active, Lanes, Repeated};

/// The target that is not in the table, where a thread has met the breakpoint for that.
pub(crate) fn missing(regs: &Regs) -> u64 {
    regs.general(RCX_NUMBER)
}

/// Tells such a thread where the target is in the cache.
pub(crate) fn found(regs: &mut Regs, at: u64) {
    /// `r11`
    const FOUND: u8 = 11;
    regs.set_general(FOUND, at);
}

/// Where the frame of a handler has the instruction to return to, if a thread is about to return from it.
pub(crate) fn frame_pc(regs: &Regs) -> TargetAddr {
    TargetAddr(regs.sp() + FRAME_PC)
}

/// Gives a thread its flags, which its code has put into a register.
pub(crate) fn restore_flags(regs: &mut Regs) {
    let word = regs.general(0);
    regs.set_flags(word as u16);
}

/// Takes back that a call of a thread has put the address to which it returns on the stack.
pub(crate) fn undo_call(regs: &mut Regs) {
    regs.set_sp(regs.sp() + 8);
}

/// A thread has completed a round of a repeated instruction: counts it, unless it `is_counted`. Returns whether it was
/// the last one.
pub(crate) fn end_round(regs: &mut Regs, repeated: Repeated, is_counted: bool) -> bool {
    let before = regs.general(RCX_NUMBER);
    let left = before.wrapping_sub(u64::from(!is_counted));
    regs.set_general(RCX_NUMBER, left);
    let ends = |equal| equal != regs.is_equal();
    left == 0 || repeated.while_equal.is_some_and(ends)
}

/// The lanes that a mask still has, bit by number.
pub(crate) fn active(thread: Stopped, mask: Value) -> Result<u16> {
    let vectors = thread.vectors()?;
    match mask {
        Value::Signs(number, size) => Ok(vectors.signs(number, size)),
        Value::Mask(number) => vectors.mask(number),
        _ => bail!("a mask is in another register"),
    }
}

/// Gives a thread that stops between lanes what the program would have in its vector and mask registers, if this number
/// of lanes is complete.
pub(crate) fn restore_lanes(
    memory: &Memory,
    (thread, block): (Stopped, u64),
    (lanes, complete): (Lanes, u8),
) -> Result<()> {
    let read = |from: u32, len: u8| -> Result<Vec<u8>> {
        let mut bytes = vec![0; len.into()];
        let at = TargetAddr(block + u64::from(from));
        memory.read(at, &mut bytes)?;
        Ok(bytes)
    };
    let mut vectors = thread.vectors()?;
    let mut data = read(block::LANES, lanes.kept_len())?;
    match lanes.active {
        Active::Vector(mask) => {
            let mut bytes = read(block::ACTIVE, lanes.data_len)?;
            bytes[..usize::from(lanes.size * complete)].fill(0);
            vectors.set(mask, &bytes)?;
        }
        Active::Mask(mask) => {
            let bytes = read(block::ACTIVE, 2)?;
            let before = u16::from_le_bytes([bytes[0], bytes[1]]);
            let bits = before & u16::MAX.checked_shl(complete.into()).unwrap_or(0);
            // When such an instruction has loaded a lane, Intel's processors have cleared what is beyond its vectors.
            if before != bits {
                data.resize(64, 0);
            }
            vectors.set_mask_start(mask, bits)?;
        }
    }
    if !lanes.stores {
        vectors.set(lanes.data, &data)?;
    }
    thread.set_vectors(&mut vectors)
}

/// Gives a thread what the program has in a vector register, which is in a slot.
pub(crate) fn restore_vector(
    memory: &Memory,
    (thread, block): (Stopped, u64),
    (number, slot): (u8, u8),
) -> Result<()> {
    let mut bytes = vec![0; vector_bytes() as usize];
    let offset = block::VECTORS + 64 * u32::from(slot);
    let at = TargetAddr(block + u64::from(offset));
    memory.read(at, &mut bytes)?;
    let mut vectors = thread.vectors()?;
    vectors.set(number, &bytes)?;
    thread.set_vectors(&mut vectors)
}

/// Gives it what the program has in a mask register.
pub(crate) fn restore_mask(
    memory: &Memory,
    (thread, block): (Stopped, u64),
    (number, slot): (u8, u8),
) -> Result<()> {
    let offset = block::MASKS + 8 * u32::from(slot);
    let bits = memory.read_u64(TargetAddr(block + u64::from(offset)))?;
    let mut vectors = thread.vectors()?;
    vectors.set_mask(number, bits)?;
    thread.set_vectors(&mut vectors)
}
