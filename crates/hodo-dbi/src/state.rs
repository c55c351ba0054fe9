//! The program's state of a thread that is in the cache: some of it is in the thread's block.

use anyhow::{Context, Result, bail};

use hodo_ptrace::{Regs, Stopped, TargetAddr};

use crate::block::{Block, Value};
use crate::native::block;
use crate::native::lanes::restore;
use crate::native::translate::Saved;
use crate::native::vectors::{restore_mask, restore_vector};
use crate::passes::Moved;
use crate::process::{Place, Process};

/// Numbers of registers.
pub(crate) const RAX: u8 = 0;
pub(crate) const RDI: u8 = 7;
pub(crate) const RCX: u8 = 1;
pub(crate) const R11: u8 = 11;

/// Brings a thread that is inside the code for an instruction to the next instruction of the program, or into a fragment.
pub(crate) fn run_to_instruction(
    thread: Stopped,
    process: &mut Process,
    regs: &mut Regs,
) -> Result<()> {
    loop {
        let is_done = |regs: &Regs| {
            let pc = regs.pc();
            process.miss(pc).is_some()
                || !process.holds(pc)
                || match process.place(pc) {
                    Some(Place::At(_)) => true,
                    Some(Place::Inside(_, saved)) => saved.in_fragment,
                    None => false,
                }
        };
        let ahead = hodo_ptrace::arch::run_ahead(thread, regs, is_done)?;
        *regs = ahead.with_context(|| {
            format!("thread {thread} could not be brought to an instruction of the program")
        })?;
        let Some(next) = process.miss(regs.pc()) else {
            return Ok(());
        };
        let at = process.find_missing(thread, regs.general(RCX))?;
        regs.set_general(R11, at);
        regs.set_pc(next);
    }
}

/// Takes registers from the block of a thread. Vector registers are set at once. Returns where the program is: at the given
/// instruction, or after it if it turns out to be complete.
pub(crate) fn restore_from(
    process: &Process,
    (thread, block): (Stopped, u64),
    regs: &mut Regs,
    (mut pc, saved): (u64, Saved),
) -> Result<u64> {
    let word = |offset: u32| {
        let at = TargetAddr(block + u64::from(offset));
        process.memory().read_u64(at)
    };
    if saved.flags {
        regs.set_flags(regs.general(RAX) as u16);
    }
    if saved.flags || saved.rax {
        regs.set_general(RAX, word(block::RAX)?);
    }
    if saved.rcx {
        regs.set_general(RCX, word(block::RCX)?);
    }
    if saved.r11 {
        regs.set_general(R11, word(block::R11)?);
    }
    for (register, offset) in saved.scratch.into_iter().zip(block::SCRATCH) {
        if let Some(number) = register {
            regs.set_general(number, word(offset)?);
        }
    }
    for (moved, slot) in process.state_map(saved.map) {
        let word = || word(block::FIRST_SPILL + 8 * u32::from(slot));
        match moved {
            Moved::General(number) => regs.set_general(number, word()?),
            Moved::Flags => regs.set_flags(word()? as u16),
            Moved::Vector(number) => restore_vector(process, (thread, block), (number, slot))?,
            Moved::Mask(number) => restore_mask(process, (thread, block), (number, slot))?,
            Moved::Lanes(lanes, complete) => {
                restore(process, (thread, block), (lanes, complete))?;
            }
            Moved::Round(repeated, is_counted) => {
                let before = regs.general(RCX);
                let left = before.wrapping_sub(u64::from(!is_counted));
                regs.set_general(RCX, left);
                let ends = |equal| equal != regs.is_equal();
                if left == 0 || repeated.while_equal.is_some_and(ends) {
                    pc += u64::from(repeated.len);
                }
            }
        }
    }
    Ok(pc)
}

/// The record of a repeated instruction that a thread executes.
pub(crate) fn record_of(process: &Process, block: &Block, at: u64, regs: &Regs) -> Result<Vec<u8>> {
    let mut record = block.id.to_le_bytes().to_vec();
    for recorded in &block.values {
        let word = match recorded.value {
            Value::Register(number) => regs.general(number),
            Value::Before(number) => {
                let slot = block::BEFORE.iter().find(|(before, _)| *before == number);
                let (_, offset) = slot.context("a register that is not kept")?;
                let at = TargetAddr(at + u64::from(*offset));
                process.memory().read_u64(at)?
            }
            _ => bail!("a repeated instruction has other values"),
        };
        record.extend(word.to_le_bytes());
    }
    Ok(record)
}
