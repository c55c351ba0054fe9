//! Checks the state map: walks forward over the code that was emitted for a fragment, and keeps account of what each
//! register, each slot of the thread's block and the flags have.
//!
//! The rules: an instruction of the program that writes a register puts the program's value there, and what slots have
//! of it is old; inserted code that writes a register puts something else there; a load from a slot brings back what
//! the slot has; a store to a slot puts there what the register has. Flags are followed bit by bit, through `lahf`,
//! `seto`, `add` and `sahf`. Where branches of inserted code meet, only what is the same on both ways is known.
//!
//! Values are numbers that the walk makes up, so inserted code is computed, too: what it stores, counts, records and
//! compares must be what its steps say ([`steps`]). A scratch register that loses its value is found in this way.

mod emitted;
mod properties;
mod samples;
mod scenarios;
mod steps;
mod walk;

use std::cell::RefCell;
use std::rc::Rc;

use iced_x86::{Decoder, DecoderOptions};

use hodo_isa::x86_64::text;

use super::X86_64;
use crate::fragment::Item;
use crate::passes::{InSlots, Pass, Passes, Revising};
use crate::process::EVERYWHERE;
use crate::protected::Notice;
use crate::translate::{Point, Request, Translation, first_bytes, translate};

/// Where the program's code is,
const START: u64 = 0x40_0000;
/// and its translation.
const BASE: u64 = 0x50_0000;

/// Keeps what passes have made of fragments. It comes after them.
struct Keep(Rc<RefCell<Vec<Vec<Item>>>>);

impl Pass for Keep {
    fn revise(&mut self, code: &mut Revising<'_>) {
        self.0.borrow_mut().push(code.fragment().items().to_vec());
    }
}

/// A translation and what it was made from.
pub(super) struct Emitted {
    /// The items of each fragment.
    fragments: Vec<Vec<Item>>,
    translation: Translation,
    maps: Vec<InSlots>,
    /// Whether calls and returns keep flags.
    keeps_flags: bool,
}

impl Emitted {
    /// Translates code with passes.
    fn new(code: &[u8], mut passes: Vec<Box<dyn Pass>>, keeps_flags: bool) -> Self {
        let kept = Rc::default();
        passes.push(Box::new(Keep(Rc::clone(&kept))));
        let passes = RefCell::new(Passes::new(passes));
        let mut count = 0;
        let translation = translate::<X86_64>(Request {
            starts: &[START],
            profile: None,
            most: 1000,
            within: EVERYWHERE,
            base: BASE,
            table: 0x10_0000,
            read: &mut |pc| first_bytes(code, START, pc),
            known: &|_| None,
            soft: &|_| false,
            notice: &|_| Notice::Undecided,
            on_stack: false,
            mark: &|_| 0,
            insertion: None,
            keeps_flags,
            passes: Some(&passes),
            file: &|_| None,
            watch: None,
            numbers: &mut |_| {
                count += 1;
                (count, count)
            },
            line_number: &mut |_| 0,
        });
        let numbers = translation.points.iter();
        let numbers = numbers.filter_map(|point| Some(point.state.inside?.map));
        let last = numbers.max().unwrap_or(0);
        let passes = passes.borrow();
        let maps = (0..=last).map(|number| passes.map(number).to_vec());
        let fragments = kept.take();
        assert_eq!(fragments.len(), translation.instructions.len());
        Self {
            fragments,
            maps: maps.collect(),
            translation,
            keeps_flags,
        }
    }

    /// The last point that is not after an address.
    fn point(&self, at: u64) -> Option<&Point> {
        let points = &self.translation.points;
        let after = points.partition_point(|point| point.at <= at);
        points.get(after.checked_sub(1)?)
    }

    /// Where the code for a fragment is.
    fn span(&self, fragment: usize) -> std::ops::Range<u64> {
        let starts = &self.translation.instructions;
        let end = BASE + self.translation.bytes.len() as u64;
        let next = starts.get(fragment + 1).map_or(end, |next| next.1);
        starts[fragment].1..next
    }

    fn bytes(&self, at: u64) -> &[u8] {
        let offset = (at - BASE) as usize;
        let bytes = self.translation.bytes.get(offset..).unwrap_or(&[]);
        &bytes[..bytes.len().min(15)]
    }

    /// A fragment's instructions, and what was emitted for it up to an address, as text.
    fn text(&self, fragment: usize, end: u64) -> String {
        let mut at = self.span(fragment).start;
        let mut lines = String::new();
        for item in &self.fragments[fragment] {
            if let Item::Instruction(own) = item {
                lines += &format!("{:#x}   {}\n", own.pc, text(own.bytes(), own.pc));
            }
        }
        while at <= end {
            let bytes = self.bytes(at);
            let insn = Decoder::new(64, bytes, DecoderOptions::NONE).decode();
            let own = self.point(at).and_then(|point| point.state.inside);
            let mark = match own.is_some_and(|saved| saved.is_own) {
                true => '*',
                false => ' ',
            };
            lines += &format!("{at:#x} {mark} {}\n", text(bytes, at));
            at += insn.len().max(1) as u64;
        }
        lines
    }

    /// Walks over all fragments. Returns the number of instructions at which the map was compared.
    ///
    /// # Errors
    /// What is wrong, as text.
    fn check(&self) -> Result<usize, String> {
        let mut count = 0;
        for fragment in 0..self.fragments.len() {
            let walked = walk::walk(self, fragment);
            count += walked.map_err(|(at, wrong)| format!("{}{wrong}", self.text(fragment, at)))?;
        }
        Ok(count)
    }
}
