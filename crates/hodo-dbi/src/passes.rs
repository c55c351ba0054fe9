//! Passes look at code before it is executed, and change it.
//!
//! Each fragment goes through four phases. In each phase, all passes see it, in the order in which they were given.
//! What a pass may do in a phase is what the type that it gets there lets it do.

use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::rc::Rc;

use hodo_codegen::statemap::{self, Interned};

use crate::block::Transfer;
use crate::fragment::{Fragment, Instruction, Item, Rewrite};
use crate::inserted::{
    CALL_RESULT, Code, Lanes, Names, OWN_NUMBERS, Repeated, Scratch, Step, TooMany, Wide, Word,
};
use crate::native::Native;

/// Scratch registers that a phase may have at the same time, besides those of the phases before. Lanes have three, and
/// two registers of the program stay for their addresses: that is all of the fifteen.
const MOST_INSERTING: usize = 8;
const MOST_REVISING: usize = 2;
/// The same for vectors and masks.
const MOST_WIDE_INSERTING: [usize; 2] = [4, 2];
const MOST_WIDE_REVISING: [usize; 2] = [2, 1];

/// Looks at code before it is executed, and changes it. The functions are called in hodo when code is translated; the
/// same code may be translated more than once. They do nothing by default.
pub trait Pass {
    /// Comes before all others.
    fn begin(&mut self, words: &mut Words<'_>) {
        let _ = words;
    }

    /// The first phase: may replace instructions of the program by others that do the same.
    fn replace(&mut self, code: &mut Replacing<'_>) {
        let _ = code;
    }

    /// The second phase: looks at a whole fragment.
    fn analyze(&mut self, fragment: &Fragment) {
        let _ = fragment;
    }

    /// The third phase, for each instruction of the program in order: may insert code before it and after it.
    fn insert(&mut self, at: &mut Inserting<'_>) {
        let _ = at;
    }

    /// Whether flags that the program does not need keep their values, too, where inserted code changes them. (General
    /// registers do, whether the program needs them or not, and so do vectors and masks.) If one pass is conservative,
    /// all are.
    fn is_conservative(&self) -> bool {
        false
    }

    /// The fourth phase: may insert code anywhere, and remove code that was inserted.
    fn revise(&mut self, code: &mut Revising<'_>) {
        let _ = code;
    }
}

/// Makes words of threads.
#[derive(Debug)]
pub struct Words<'w> {
    count: &'w mut u32,
}

impl Words<'_> {
    /// The maximum number.
    pub const MOST: u32 = 1 << 16;

    /// A new word, which each thread has.
    ///
    /// # Panics
    /// If there are more than [`Words::MOST`].
    pub fn word(&mut self) -> Word {
        assert!(*self.count < Self::MOST, "there are too many words");
        *self.count += 1;
        Word(*self.count - 1)
    }
}

/// The first phase of a fragment.
#[derive(Debug)]
pub struct Replacing<'f> {
    fragment: &'f mut Fragment,
    names: &'f mut Names,
}

impl Replacing<'_> {
    /// The instructions. Other passes may have put some of them there.
    #[must_use]
    pub fn instructions(&self) -> Vec<&Instruction> {
        self.fragment.instructions().collect()
    }

    /// Replaces an instruction by others that do the same, given as they would be at its address. A fault of one of
    /// them is shown as a fault of the instruction: what they have changed by then must be what it would have changed.
    /// Returns whether it was replaced: an instruction that does not simply continue with the next one cannot be.
    ///
    /// # Panics
    /// If there is no such instruction, or one of the others is none that simply continues.
    pub fn replace(&mut self, number: usize, others: &[&[u8]]) -> bool {
        let (place, old) = self.instruction(number);
        if !old.continues || old.part.is_some() {
            return false;
        }
        let mut origin = match old.is_original {
            true => Some(Rc::new(old.clone())),
            false => old.origin.clone(),
        };
        let place_of = (old.pc, old.next);
        let new = others.iter().map(|bytes| {
            let Some(new) = Native::instruction(place_of, bytes).filter(|new| new.continues) else {
                panic!("{bytes:x?} is no instruction that simply continues");
            };
            let origin = origin.take();
            Item::Instruction(Instruction {
                origin,
                file: old.file.clone(),
                ..new
            })
        });
        let new: Vec<Item> = new.collect();
        self.fragment.items.splice(place..=place, new);
        true
    }

    fn instruction(&self, number: usize) -> (usize, &Instruction) {
        let items = self.fragment.items.iter().enumerate();
        let mut instructions = items.filter_map(|(place, item)| match item {
            Item::Instruction(instruction) => Some((place, instruction)),
            Item::Inserted(_) => None,
        });
        let found = instructions.nth(number);
        found.unwrap_or_else(|| panic!("the fragment has no instruction {number}"))
    }

    /// Makes each lane of a gather or scatter an access of its own. The instruction stays, without operands, and after
    /// it come its lanes in ascending order, each with one operand. Returns whether it was one that can be expanded:
    /// its addresses must have eight bytes and no segment.
    ///
    /// # Panics
    /// If there is no such instruction.
    pub fn expand_scatter_gather(&mut self, number: usize) -> bool {
        self.expand(number, Native::lanes)
    }

    /// Makes each element of a masked load or store an access of its own, as [`Replacing::expand_scatter_gather`] does
    /// with lanes. Returns whether it was one that can be expanded: its address must have eight bytes, no segment, and
    /// come from registers.
    ///
    /// # Panics
    /// If there is no such instruction.
    pub fn expand_masked_move(&mut self, number: usize) -> bool {
        self.expand(number, Native::row)
    }

    /// Makes each round of a repeated string instruction an instruction of its own. The instruction stays, without
    /// operands, and after it comes its round ([`Instruction::is_round`]), which is executed as often as there are
    /// rounds. Returns whether it was one that can be expanded: its addresses must have eight bytes.
    ///
    /// # Panics
    /// If there is no such instruction.
    pub fn expand_repeated(&mut self, number: usize) -> bool {
        let (place, old) = self.instruction(number);
        if old.part.is_some() {
            return false;
        }
        let Some((round, repeated)) = Native::one_round(old) else {
            return false;
        };
        let head = old.clone().head_of_rounds();
        let mark = self.names.mark();
        let items = [
            Item::Instruction(head),
            Item::Inserted(Step::BeginRound(mark)),
            Item::Instruction(round.round_of(repeated)),
            Item::Inserted(Step::EndRound(repeated, mark)),
        ];
        self.fragment.items.splice(place..=place, items);
        true
    }

    fn expand(
        &mut self,
        number: usize,
        lanes: fn(&Instruction, [Scratch; 4]) -> Option<Lanes>,
    ) -> bool {
        let (place, old) = self.instruction(number);
        let old = old.clone();
        if old.part.is_some() {
            return false;
        }
        let scratch = [(); 4].map(|()| self.names.scratch());
        let Some(lanes) = lanes(&old, scratch) else {
            return false;
        };
        let inserted = Item::Inserted;
        let reserved = lanes.used().map(|one| inserted(Step::Reserve(one)));
        let mut items: Vec<Item> = reserved.collect();
        items.push(Item::Instruction(old.clone().head_of(lanes)));
        for lane in 0..lanes.count {
            let mark = self.names.mark();
            items.extend([
                inserted(Step::SkipInactive(lanes, lane, mark)),
                Item::Instruction(old.lane_of(lanes, lane)),
                inserted(Step::Mark(mark)),
                inserted(Step::EndLane(lanes, lane)),
            ]);
        }
        items.push(inserted(Step::EndLanes(lanes)));
        items.extend(lanes.used().map(|one| inserted(Step::Release(one))));
        self.fragment.items.splice(place..=place, items);
        true
    }
}

/// The third phase, at an instruction of the program.
#[derive(Debug)]
pub struct Inserting<'f> {
    instruction: &'f Instruction,
    is_first: bool,
    is_again: bool,
    /// A system call comes before the fragment.
    is_after_call: bool,
    before: &'f mut Vec<Step>,
    after: &'f mut Vec<Step>,
    names: &'f mut Names,
    words: &'f mut u32,
}

impl Inserting<'_> {
    /// The instruction.
    #[must_use]
    pub fn instruction(&self) -> &Instruction {
        self.instruction
    }

    /// Whether it is the first one of its fragment.
    #[must_use]
    pub fn is_first(&self) -> bool {
        self.is_first
    }

    /// Whether passes have seen this instruction before: code is translated again if it was longer than what can be
    /// inserted into at once, if it was thrown away meanwhile, and in each process that has it. Code from files is the
    /// same if it is at the same place in a file. Passes that list what they see leave this out.
    #[must_use]
    pub fn is_again(&self) -> bool {
        self.is_again
    }

    /// Code before the instruction, after what passes before this one have inserted there.
    pub fn before(&mut self) -> Code<'_> {
        Code::new(self.before, self.names)
    }

    /// Code after the instruction. There is none after one that does not simply continue with the next one.
    pub fn after(&mut self) -> Option<Code<'_>> {
        self.instruction
            .continues
            .then(|| Code::new(self.after, self.names))
    }

    /// In front of the instruction: sets a scratch register to the address of one of its operands. Returns whether that
    /// can be computed.
    pub fn address(&mut self, to: Scratch, operand: usize) -> bool {
        let operands = self.instruction.operands();
        let has_address = operands
            .get(operand)
            .is_some_and(|operand| operand.has_address);
        if has_address {
            self.before().address(to, operand as u8);
        }
        has_address
    }

    /// Makes words of threads.
    pub fn words(&mut self) -> Words<'_> {
        Words { count: self.words }
    }
}

/// The fourth phase of a fragment.
#[derive(Debug)]
pub struct Revising<'f> {
    fragment: &'f mut Fragment,
    names: &'f mut Names,
}

impl Revising<'_> {
    /// The fragment.
    #[must_use]
    pub fn fragment(&self) -> &Fragment {
        self.fragment
    }

    /// Inserts code before an item.
    ///
    /// # Errors
    /// What `write` returns.
    ///
    /// # Panics
    /// If there is no such item.
    pub fn insert(
        &mut self,
        place: usize,
        write: impl FnOnce(&mut Code<'_>) -> Result<(), TooMany>,
    ) -> Result<(), TooMany> {
        assert!(
            place < self.fragment.items.len(),
            "the fragment has no item {place}"
        );
        self.names.set_live(live_at(&self.fragment.items[..place]));
        self.names.allow(MOST_REVISING, MOST_WIDE_REVISING);
        let mut steps = Vec::new();
        let written = write(&mut Code::new(&mut steps, self.names));
        // What is reserved here ends here: others may have reserved some after it.
        let before = live_at(&self.fragment.items[..place]);
        let (new, new_wide) = self.names.release_all();
        let new = new.into_iter();
        let new = new.filter(|scratch| !before.0.contains(scratch));
        steps.extend(new.map(Step::Release));
        let new_wide = new_wide.into_iter();
        let new_wide = new_wide.filter(|wide| !before.1.contains(wide));
        steps.extend(new_wide.map(Step::ReleaseWide));
        let items = steps.into_iter().map(Item::Inserted);
        self.fragment.items.splice(place..place, items);
        written
    }

    /// Removes a step of inserted code. Returns whether it was removed: instructions of the program stay, and so do
    /// steps on which others depend.
    pub fn remove(&mut self, place: usize) -> bool {
        let is_removed = match self.fragment.items.get(place) {
            Some(Item::Inserted(step)) => !matches!(
                step,
                Step::Reserve(_)
                    | Step::Release(_)
                    | Step::SkipUnless(..)
                    | Step::Mark(_)
                    | Step::SkipInactive(..)
                    | Step::EndLane(..)
                    | Step::EndLanes(_)
                    | Step::ReserveWide(_)
                    | Step::ReleaseWide(_)
                    | Step::BeginRound(_)
                    | Step::EndRound(..)
            ),
            _ => false,
        };
        if is_removed {
            self.fragment.items.remove(place);
        }
        is_removed
    }
}

/// The scratch registers that are reserved after these items.
fn live_at(items: &[Item]) -> (Vec<Scratch>, Vec<Wide>) {
    let (mut live, mut wide) = (Vec::new(), Vec::new());
    for item in items {
        match item {
            Item::Inserted(Step::Reserve(scratch)) => live.push(*scratch),
            Item::Inserted(Step::Release(scratch)) => live.retain(|other| other != scratch),
            Item::Inserted(Step::ReserveWide(one)) => wide.push(*one),
            Item::Inserted(Step::ReleaseWide(one)) => wide.retain(|other| other != one),
            _ => {}
        }
    }
    (live, wide)
}

/// Where a value of the program is that is not in its register.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Moved {
    /// A general register, by number.
    General(u8),
    /// The flags.
    Flags,
    /// A vector register, by number, and a mask register. They have slots of their own.
    Vector(u8),
    Mask(u8),
    /// Vector and mask registers of a gather or scatter, which are where its lanes find them. This number of lanes is
    /// complete.
    Lanes(Lanes, u8),
    /// A round of a repeated instruction is complete, and whether it has been counted. It may have been the last one.
    Round(Repeated, bool),
}

/// Values of the program that are not in their registers, and the slots of the thread's block where they are.
pub(crate) type InSlots = statemap::InSlots<Moved>;

/// All passes, and what belongs to them.
#[derive(Default)]
pub(crate) struct Passes {
    passes: Vec<Box<dyn Pass>>,
    words: u32,
    /// Flags that are not needed keep their values.
    pub(crate) is_conservative: bool,
    /// What is in slots: lists by number. The first one is empty.
    maps: Interned<InSlots>,
    /// Hashes of the instructions that were seen, with their places.
    seen: HashSet<u64>,
}

impl std::fmt::Debug for Passes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let count = self.passes.len();
        f.debug_struct("Passes").field("count", &count).finish()
    }
}

impl Passes {
    pub(crate) fn new(mut passes: Vec<Box<dyn Pass>>) -> Self {
        let mut words = 0;
        for pass in &mut passes {
            pass.begin(&mut Words { count: &mut words });
        }
        Self {
            is_conservative: passes.iter().any(|pass| pass.is_conservative()),
            passes,
            words,
            maps: Interned::default(),
            seen: HashSet::new(),
        }
    }

    /// Has system calls recorded, too.
    pub(crate) fn with_system_calls(mut self) -> Self {
        // The first one: it must have scratch registers.
        self.passes.insert(0, Box::new(SystemCalls));
        self
    }

    /// How many words each thread has.
    pub(crate) fn words(&self) -> u32 {
        self.words
    }

    /// The number of a map: 0 for one that says nothing.
    pub(crate) fn number(&mut self, map: InSlots) -> u32 {
        self.maps.number(map)
    }

    /// A map by number.
    pub(crate) fn map(&self, number: u32) -> &[(Moved, u8)] {
        self.maps.get(number).map_or(&[], Vec::as_slice)
    }

    /// Brings a fragment through all phases. `is_after_call`: a system call comes before it.
    pub(crate) fn run(&mut self, instructions: Vec<Instruction>, is_after_call: bool) -> Vec<Item> {
        let items = instructions.into_iter().map(Item::Instruction);
        let mut fragment = Fragment {
            items: items.collect(),
        };
        let mut names = Names::default();
        for pass in &mut self.passes {
            pass.replace(&mut Replacing {
                fragment: &mut fragment,
                names: &mut names,
            });
        }
        for pass in &mut self.passes {
            pass.analyze(&fragment);
        }
        let mut fragment = self.insert(fragment, is_after_call, &mut names);
        for pass in &mut self.passes {
            pass.revise(&mut Revising {
                fragment: &mut fragment,
                names: &mut names,
            });
        }
        fragment.items
    }

    fn insert(&mut self, fragment: Fragment, is_after_call: bool, names: &mut Names) -> Fragment {
        names.allow(MOST_INSERTING, MOST_WIDE_INSERTING);
        let mut items = Vec::with_capacity(2 * fragment.items.len());
        let mut is_first = true;
        for item in fragment.items {
            let instruction = match item {
                Item::Instruction(instruction) => instruction,
                Item::Inserted(step) => {
                    names.follow(step);
                    items.push(item);
                    continue;
                }
            };
            let is_again = !self.seen.insert(identity(&instruction));
            let (mut before, mut after) = (Vec::new(), Vec::new());
            for pass in &mut self.passes {
                pass.insert(&mut Inserting {
                    instruction: &instruction,
                    is_first,
                    is_again,
                    is_after_call,
                    before: &mut before,
                    after: &mut after,
                    names,
                    words: &mut self.words,
                });
            }
            is_first = false;
            items.extend(before.into_iter().map(Item::Inserted));
            items.push(Item::Instruction(instruction));
            items.extend(after.into_iter().map(Item::Inserted));
        }
        Fragment { items }
    }
}

/// What distinguishes an instruction from all others, as far as a hash does.
fn identity(instruction: &Instruction) -> u64 {
    let mut hasher = DefaultHasher::new();
    match instruction.file() {
        Some(place) => place.hash(&mut hasher),
        None => instruction.pc.hash(&mut hasher),
    }
    instruction.bytes().hash(&mut hasher);
    instruction.lane().hash(&mut hasher);
    instruction.is_round().hash(&mut hasher);
    hasher.finish()
}

/// Records system calls.
struct SystemCalls;

impl SystemCalls {
    fn record(at: &mut Inserting<'_>, number: u32, register: u8) -> Result<(), TooMany> {
        let mut code = at.before();
        let value = code.reserve()?;
        code.register(value, register);
        code.record_own(number, value)?;
        code.release(value);
        Ok(())
    }
}

impl Pass for SystemCalls {
    fn insert(&mut self, at: &mut Inserting<'_>) {
        let mut records = Vec::new();
        if at.is_first && at.is_after_call {
            records.extend([CALL_RESULT].into_iter().zip(Native::RESULT));
        }
        if at.instruction.transfer() == Transfer::SystemCall {
            records.extend((OWN_NUMBERS..).zip(Native::CALL));
        }
        for (number, register) in records {
            let recorded = Self::record(at, number, *register);
            assert!(recorded.is_ok(), "this pass comes first, and has registers");
        }
    }
}
