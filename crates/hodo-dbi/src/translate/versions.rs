//! Versions of instructions that are not for all threads: where they are executed, the values of some registers are
//! known from earlier records.

use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::model::Version;
use crate::block::Block;

/// The maximum number of versions of an instruction that are not for all threads.
const MOST: usize = 4;

/// Versions, and which of them blocks lead to.
#[derive(Debug, Default)]
pub(super) struct Versions {
    /// The registers of the versions of each instruction.
    registers: FxHashMap<u64, Vec<u16>>,
    /// The versions of the blocks by number.
    blocks: FxHashMap<u32, Version>,
    /// The versions to which blocks lead, by their numbers and the number of instructions after which they are left.
    leads: FxHashMap<(u32, u16), Vec<Version>>,
    /// The block and the number of instructions after which the code that is being translated leaves it.
    leaving: Option<(u32, u16)>,
    /// Registers whose values are known where the code that is being translated leads to.
    known: u16,
}

impl Versions {
    /// Registers whose values are known where the code that is being translated leads to.
    pub(super) fn known(&self) -> u16 {
        self.known
    }

    /// They are these.
    pub(super) fn set_known(&mut self, registers: u16) {
        self.known = registers;
    }

    /// The code that is being translated leaves this block after this number of instructions, or none.
    pub(super) fn leave(&mut self, block: Option<(u32, u16)>) {
        self.leaving = block;
    }

    /// It leads to a version.
    pub(super) fn lead(&mut self, version: Version) {
        if let Some(leaving) = self.leaving
            && version.1 != 0
        {
            self.leads.entry(leaving).or_default().push(version);
        }
    }

    /// A block is this version of its first instruction.
    pub(super) fn add_block(&mut self, id: u32, version: Version) {
        self.blocks.insert(id, version);
    }

    /// The best version of an instruction where the values of these registers are known. `is_full`: nothing more can
    /// be translated.
    pub(super) fn choose(&mut self, pc: u64, registers: u16, is_full: bool) -> Version {
        let versions = self.registers.entry(pc).or_default();
        let fitting = versions
            .iter()
            .filter(|&&version| version & !registers == 0);
        let best = fitting.max_by_key(|version| version.count_ones()).copied();
        match best {
            Some(best) if best == registers || versions.len() >= MOST => (pc, best),
            None if versions.len() >= MOST => (pc, 0),
            _ if is_full => (pc, best.unwrap_or(0)),
            _ => {
                versions.push(registers);
                (pc, registers)
            }
        }
    }

    /// The registers that each version needs to be known, itself or where it leads to.
    pub(super) fn needs(&self, blocks: &FxHashMap<u32, Arc<Block>>) -> FxHashMap<Version, u16> {
        let mut needs: FxHashMap<Version, u16> = FxHashMap::default();
        let mut has_changed = true;
        while has_changed {
            has_changed = false;
            for (id, version) in &self.blocks {
                let Some(block) = blocks.get(id) else {
                    continue;
                };
                let need = block
                    .leaving
                    .iter()
                    .fold(block.used_before(), |all, leave| {
                        let wanted = self.wanted(&needs, *id, leave.upto);
                        all | block.needed_before(leave, wanted)
                    });
                has_changed |= needs.insert(*version, need) != Some(need);
            }
        }
        needs
    }

    /// The registers that must be known where a block is left after this number of instructions.
    pub(super) fn wanted(&self, needs: &FxHashMap<Version, u16>, block: u32, upto: u16) -> u16 {
        let leads = self.leads.get(&(block, upto)).into_iter().flatten();
        leads.fold(0, |all, to| all | needs.get(to).copied().unwrap_or(0))
    }
}
