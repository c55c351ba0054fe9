//! The program's state of a thread that is in the cache: some of it is in the thread's block.

use anyhow::{Context, Result, bail};

use hodo_ptrace::{Regs, Stopped, TargetAddr};

use crate::block::{Block, Value};
use crate::native::{block, kept, stopped};
use crate::passes::Moved;
use crate::process::{Place, Process};
use crate::translate::Saved;

/// Brings a thread that is inside the code for an instruction to the next instruction of the program, or into a
/// fragment.
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
        let at = process.find_missing(thread, stopped::missing(regs))?;
        stopped::found(regs, at);
        regs.set_pc(next);
    }
}

/// Takes registers from the block of a thread. Vector registers are set at once. Returns where the program is: at the
/// given instruction, or after it if it turns out to be complete.
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
    let mut of_its_own = saved.kept;
    if saved.flags {
        stopped::restore_flags(regs);
        of_its_own |= kept::FLAGS;
    }
    for (bit, (number, offset)) in kept::WORDS.into_iter().enumerate() {
        if of_its_own >> bit & 1 == 1 {
            regs.set_general(number, word(offset)?);
        }
    }
    if saved.kept & kept::CALLED != 0 {
        stopped::undo_call(regs);
    }
    for (register, offset) in saved.scratch.into_iter().zip(block::SCRATCH) {
        if let Some(number) = register {
            regs.set_general(number, word(offset)?);
        }
    }
    if saved.returns {
        let at = stopped::frame_pc(regs);
        let back = process.memory().read_u64(at)?;
        if let Some(Place::At(point)) = process.place(back) {
            let original = point.original.to_le_bytes();
            process.memory().write(at, &original)?;
        }
    }
    for (moved, slot) in process.state_map(saved.map) {
        let word = || word(block::FIRST_SPILL + 8 * u32::from(slot));
        match moved {
            Moved::General(number) => regs.set_general(number, word()?),
            Moved::Flags => regs.set_flags(word()? as u16),
            Moved::Vector(number) => {
                stopped::restore_vector(process.memory(), (thread, block), (number, slot))?;
            }
            Moved::Mask(number) => {
                stopped::restore_mask(process.memory(), (thread, block), (number, slot))?;
            }
            Moved::Lanes(lanes, complete) => {
                stopped::restore_lanes(process.memory(), (thread, block), (lanes, complete))?;
            }
            Moved::Round(repeated, is_counted) => {
                if stopped::end_round(regs, repeated, is_counted) {
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
