//! The table of targets in a process.

use std::collections::BTreeSet;

use anyhow::Result;
use hodo_abi::Span;
use hodo_ptrace::TargetAddr;

use crate::table::{self, Table};
use crate::written::Writer;

const PAGE: u64 = 4096;

/// The table of targets in a process.
#[derive(Debug, Clone, Default)]
pub(crate) struct Targets {
    table: Table,
    /// Where it is.
    pub(crate) at: u64,
    /// A target had no room.
    pub(crate) is_crowded: bool,
}

impl Targets {
    /// Where it is.
    pub(crate) fn span(&self) -> Span {
        Span::at(self.at, table::SIZE)
    }

    /// Lets returns and indirect branches find these targets. `alone`: no thread can read the table now.
    ///
    /// # Errors
    /// If the process is gone.
    pub(crate) fn put(
        &mut self,
        memory: &Writer,
        targets: &[(u64, u64)],
        alone: bool,
    ) -> Result<()> {
        if alone {
            return self.put_alone(memory, targets);
        }
        let mut words = Vec::with_capacity(2 * targets.len());
        for &(pc, at) in targets {
            let Some(entry) = self.table.put(pc, at) else {
                self.is_crowded = true;
                continue;
            };
            let entry = TargetAddr(self.at + entry);
            // Other threads may be reading it.
            words.push((entry.offset(8), [at]));
            words.push((entry, [pc]));
        }
        store(memory, &words)
    }

    fn put_alone(&mut self, memory: &Writer, targets: &[(u64, u64)]) -> Result<()> {
        let mut entries: Vec<(TargetAddr, [u64; 2])> = Vec::with_capacity(targets.len());
        for &(pc, at) in targets {
            let Some(entry) = self.table.put(pc, at) else {
                // All others are found again.
                self.clear(memory)?;
                entries.clear();
                continue;
            };
            entries.push((TargetAddr(self.at + entry), [pc, at]));
        }
        let offsets = entries.iter().map(|(entry, _)| entry.0 - self.at);
        let pages: BTreeSet<u64> = offsets.map(|offset| offset & !(PAGE - 1)).collect();
        // To write a page costs twice as much as to write an entry.
        if 2 * pages.len() > entries.len() {
            return store(memory, &entries);
        }
        for page in pages {
            let (start, bytes) = self.table.page(page);
            memory.write(TargetAddr(self.at + start), &bytes)?;
        }
        Ok(())
    }

    /// Where a target leads that is in the table.
    pub(crate) fn leads(&self, pc: u64) -> Option<u64> {
        self.table.leads(pc)
    }

    /// Removes the targets for which `gone` holds.
    ///
    /// # Errors
    /// If the process is gone.
    pub(crate) fn remove(&mut self, memory: &Writer, gone: impl Fn(u64) -> bool) -> Result<()> {
        for (entry, address) in self.table.remove(gone) {
            memory.write(TargetAddr(self.at + entry), &address.to_le_bytes())?;
        }
        Ok(())
    }

    /// Empties the table. No thread is reading it.
    ///
    /// # Errors
    /// If the process is gone.
    pub(crate) fn clear(&mut self, memory: &Writer) -> Result<()> {
        self.is_crowded = false;
        for page in self.table.clear() {
            memory.write(TargetAddr(self.at + page), &[0; PAGE as usize])?;
        }
        Ok(())
    }
}

/// Writes words at these addresses.
fn store<const N: usize>(memory: &Writer, words: &[(TargetAddr, [u64; N])]) -> Result<()> {
    let written = memory.store_words(words);
    for (place, words) in &words[written..] {
        for (number, word) in words.iter().enumerate() {
            let place = place.offset(8 * number as u64);
            memory.write(place, &word.to_le_bytes())?;
        }
    }
    Ok(())
}
