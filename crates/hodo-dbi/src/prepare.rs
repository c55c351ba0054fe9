//! Code is translated as far as earlier runs have entered it, when a thread enters it for the first time.

use std::rc::Rc;

use anyhow::Result;
use hodo_ptrace::Stopped;
use hodo_ptrace::maps::{self, Mapping};

use crate::process::{MOST, Process};

/// This many requests of earlier runs are translated at once.
const PIECE: usize = 40;
/// Room for their translation.
const ROOM: u64 = 4 << 20;

impl Process {
    /// Code that does not change is entered at an instruction that is not translated. If it is the first one of its
    /// mapping, all that earlier runs have entered there is translated.
    ///
    /// # Errors
    /// If the process is gone.
    pub(crate) fn enter(&mut self, thread: Stopped, pc: u64) -> Result<()> {
        if self.files.is_none() {
            let maps = maps::read(thread.tid())?.into_iter();
            // Unexecutable, code may be part of a mapping with the data beside it.
            let is_code = |map: &Mapping| map.inode != 0 && self.code.overlap(map.span());
            self.files = Some(Rc::new(maps.filter(is_code).collect()));
        }
        let Some(map) = self.file_mapping(pc) else {
            return Ok(());
        };
        let map = map.clone();
        if self.prepared.insert(map.start) {
            self.prepare(&map)?;
        }
        let offset = map.offset + (pc - map.start);
        let mut kept = self.kept.borrow_mut();
        kept.note(&self.program, &map.path, offset, false);
        Ok(())
    }

    /// The mapping of a file that has this code.
    pub(crate) fn file_mapping(&self, pc: u64) -> Option<&Mapping> {
        let files = self.files.as_ref()?;
        let next = files.partition_point(|map| map.start <= pc);
        let map = files.get(next.checked_sub(1)?)?;
        map.span().contains(pc).then_some(map)
    }

    /// Translates what earlier runs have entered in a mapping.
    fn prepare(&mut self, map: &Mapping) -> Result<()> {
        let entered = self.kept.borrow_mut().of(&self.program, &map.path);
        let here = |&offset: &u32| {
            let pc = map.start + u64::from(offset).checked_sub(map.offset)?;
            map.span().contains(pc).then_some(pc)
        };
        let mut all = Vec::new();
        let starts: Vec<u64> = entered.starts.iter().filter_map(here).collect();
        for piece in starts.chunks(PIECE) {
            let is_new = |&pc: &u64| {
                self.known.get(pc).is_none() && self.is_code(pc) && self.soft.at(pc).is_none()
            };
            let new: Vec<u64> = piece.iter().copied().filter(is_new).collect();
            let Some(&first) = new.first() else {
                continue;
            };
            let Some(region) = self.region_for(first, ROOM) else {
                break;
            };
            let most = MOST * new.len();
            if let Some(recorder) = &self.recorder
                && recorder
                    .borrow()
                    .check_room(&self.counters(), most)
                    .is_err()
            {
                break;
            }
            let (translation, _) = self.translate(region, &new, None, most);
            self.tell_blocks(&translation);
            all.extend(self.add(region, translation)?);
        }
        let targets = entered.targets.iter().filter_map(here);
        let targets = targets.filter_map(|pc| Some((pc, self.known.get(pc)?)));
        all.extend(targets);
        self.put_targets(&all)
    }
}
