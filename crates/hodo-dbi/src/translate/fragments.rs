//! Fragments: how the cache gets what passes have made of the program's code.

use std::path::Path;
use std::rc::Rc;

use super::Translator;
use super::model::{ENOUGH, Stage, Version};
use super::set::{Decoded, Observe};
use crate::events::Watch;
use crate::fragment::Instruction;

/// The maximum number of items of a fragment: a translation must not need more room than others.
const MOST_ITEMS: usize = 4000;
impl<S: Observe> Translator<'_, '_, S> {
    /// Translates fragments up to an instruction that does not continue.
    pub(super) fn fragments(&mut self, mut version: Version) {
        loop {
            let (pc, _) = version;
            self.begins_block(None);
            if self.is_elsewhere(version) {
                self.point(pc, None);
                return self.jump_to_version(version);
            }
            let label = self.label_of(version);
            let code = self.collect_run(pc, u64::MAX);
            if code.is_empty() {
                // The program must not execute this, and the exit shows it the fault; or it waits.
                return self.jump_to_version((pc, 0));
            }
            self.bound.insert(version);
            if self.is_soft {
                self.begin_run(label, &code);
            } else {
                self.code.bind(label);
                self.out.instructions.push((pc, self.code.here()));
            }
            self.stage = Stage::Head;
            self.point(pc, None);
            self.stage = Stage::Body;
            self.left = self.left.saturating_sub(code.len());
            match self.fragment(&code) {
                Some(next) => version = (next, 0),
                None => return,
            }
        }
    }

    /// Translates a fragment. Returns where the program continues, if it does so after it.
    fn fragment(&mut self, code: &[Decoded<S>]) -> Option<u64> {
        let passes = self.request.passes?;
        let valid = code.iter().take_while(|decoded| decoded.insn.is_some());
        let file = code.first().and_then(|first| (self.request.file)(first.pc));
        let file = file.map(|(file, offset)| (Rc::from(file), offset));
        // A fragment is in one mapping.
        let place = |pc: u64| {
            let (file, offset): &(Rc<Path>, u64) = file.as_ref()?;
            Some((Rc::clone(file), offset + (pc - code[0].pc)))
        };
        let seen = |decoded: &Decoded<S>| Instruction {
            file: place(decoded.pc),
            ..S::seen(decoded)
        };
        let mut instructions: Vec<Instruction> = valid.map(seen).collect();
        let watches = self.request.watch.is_some_and(Watch::system_calls);
        let is_after_call = watches && self.is_after_call(code[0].pc);
        let is_valid = instructions.len() == code.len();
        let mut next = None;
        if !instructions.is_empty() {
            let mut items = passes.borrow_mut().run(instructions.clone(), is_after_call);
            while items.len() > MOST_ITEMS {
                // A shorter one has fewer.
                assert!(
                    instructions.len() > 1,
                    "passes insert too much code at one instruction"
                );
                instructions.truncate(instructions.len() / 2);
                items = passes.borrow_mut().run(instructions.clone(), is_after_call);
            }
            next = S::lower(self, passes, &items);
        }
        if self.code.offset() > ENOUGH {
            self.left = 0;
        }
        if is_valid || instructions.len() < code.len() - 1 {
            return next;
        }
        let last = code.last()?;
        self.point(last.pc, None);
        S::invalid(self, &last.bytes);
        None
    }
}
