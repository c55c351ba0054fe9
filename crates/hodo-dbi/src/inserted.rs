//! Code that passes insert, in terms that no instruction set has of its own.
//!
//! It computes with scratch registers. Which registers of the processor these are, and where the program's values are
//! meanwhile, is decided when the whole fragment is known.

/// From here on, numbers of records are the engine's own: what a system call begins with, one after the other.
pub(crate) const OWN_NUMBERS: u32 = 0xFFFF_FF00;
/// What a system call returns.
pub(crate) const CALL_RESULT: u32 = 0xFFFF_FFFF;

/// A register that inserted code may use: from where it is reserved to where it is released, it keeps what is put into
/// it. The program does not notice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Scratch(pub(crate) u32);

/// A vector register that inserted code may use, like a [`Scratch`]. It has [`vector_bytes`](crate::vector_bytes)
/// bytes, in elements of eight.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ScratchVector(pub(crate) u32);

/// A mask register that inserted code may use, like a [`Scratch`]: a bit for each element of a vector. (Where predicate
/// registers have this role, it is one of these.)
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ScratchMask(pub(crate) u32);

/// One of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Wide {
    /// A vector.
    Vector(ScratchVector),
    /// A mask.
    Mask(ScratchMask),
}

impl Wide {
    pub(crate) fn is_vector(&self) -> bool {
        matches!(self, Self::Vector(_))
    }

    pub(crate) fn is_mask(&self) -> bool {
        matches!(self, Self::Mask(_))
    }
}

/// Eight bytes of each thread, which are 0 when it begins. What is in them when it ends is said to the client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Word(pub(crate) u32);

impl Word {
    /// Its number: words are numbered from 0 in the order in which they were made.
    #[must_use]
    pub fn number(self) -> u32 {
        self.0
    }
}

/// A place in inserted code to which it may skip.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Mark(u32);

/// How many bytes are loaded or stored. Loads extend them with zeros.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bytes {
    /// One.
    One,
    /// Two.
    Two,
    /// Four.
    Four,
    /// Eight.
    Eight,
}

/// The other operand of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Value {
    /// What a register has.
    Scratch(Scratch),
    /// A number, extended with its sign.
    Number(i32),
}

impl From<Scratch> for Value {
    fn from(scratch: Scratch) -> Self {
        Self::Scratch(scratch)
    }
}

impl From<i32> for Value {
    fn from(number: i32) -> Self {
        Self::Number(number)
    }
}

/// What is computed of two numbers of 64 bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compute {
    /// The sum.
    Add,
    /// The difference.
    Subtract,
    /// The bits of both.
    And,
    /// The bits of any.
    Or,
    /// The bits of one of them.
    Xor,
}

/// How two numbers of 64 bits compare.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compare {
    /// They are equal.
    Equal,
    /// They are not.
    Different,
    /// The first one is below the second one, without signs.
    Below,
    /// It is not.
    NotBelow,
    /// The first one is less than the second one, with signs.
    Less,
    /// It is not.
    NotLess,
}

/// What says which lanes are active.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Active {
    /// The highest bits of the lanes of a vector register.
    Vector(u8),
    /// The bits of a mask register.
    Mask(u8),
}

/// Where the lanes of an instruction access memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Places {
    /// A gather or a scatter: a vector register has the indices, which are extended with their signs. Its number, how
    /// much of it is used, and the size of an index.
    Vector(u8, u8, u8),
    /// A masked load or store: one after the other, from the sum of the base and this general register on.
    Row(Option<u8>),
    /// Only for the active ones: compressing stores and expanding loads.
    Packed(Option<u8>),
}

/// A gather or a scatter, or a masked load or store: its registers, and where its lanes access memory. Sizes are in
/// bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Lanes {
    /// How many there are.
    pub(crate) count: u8,
    /// It stores.
    pub(crate) stores: bool,
    /// The vector register that is loaded or stored, how much of it is used, and the size of a lane.
    pub(crate) data: u8,
    pub(crate) data_len: u8,
    pub(crate) size: u8,
    pub(crate) places: Places,
    /// What its address must be a multiple of.
    pub(crate) align: u8,
    pub(crate) active: Active,
    /// What is loaded for lanes that are not active is zero, instead of what the register has.
    pub(crate) zeroes: bool,
    /// The general register to which indices are added.
    pub(crate) base: Option<u8>,
    /// What indices are multiplied by, as a power of two.
    pub(crate) power: u8,
    pub(crate) displacement: i32,
    /// What code for the lanes computes with.
    pub(crate) scratch: [Scratch; 4],
}

/// The scratch registers of lanes by what they are for: an index, and what is loaded;
pub(crate) const INDEX: usize = 0;
/// the address in the thread's block;
pub(crate) const BLOCK: usize = 1;
/// what is stored, if there are indices;
pub(crate) const STORED: usize = 2;
/// and where the next active lane is, if only these are in memory.
pub(crate) const NEXT: usize = 3;

impl Lanes {
    /// The scratch registers that it uses.
    pub(crate) fn used(self) -> impl Iterator<Item = Scratch> {
        let packed = matches!(self.places, Places::Packed(_));
        // There are no indices then.
        let stored = self.stores && !packed;
        let is_used = [(INDEX, true), (BLOCK, true), (STORED, stored)];
        let all = is_used.into_iter().chain([(NEXT, packed)]);
        all.filter(|(_, is_used)| *is_used)
            .map(move |(of, _)| self.scratch[of])
    }
}

/// A repeated string instruction whose rounds are executed one by one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Repeated {
    /// It also ends when what it compares is not equal any more, or equal.
    pub(crate) while_equal: Option<bool>,
    /// The prefix that repeats it.
    pub(crate) prefix: u8,
    /// Bytes up to where the program continues after it.
    pub(crate) len: u8,
}

/// What stands for a part of an instruction, or comes before all parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    /// What the registers have is put where the lanes find it.
    Head(Lanes),
    /// The access of a lane.
    Lane(Lanes, u8),
    /// The rounds of a repeated instruction come next.
    Repeated,
    /// One of them.
    Round(Repeated),
}

impl Part {
    /// The lanes, if it is about some.
    pub(crate) fn lanes(self) -> Option<Lanes> {
        match self {
            Self::Head(lanes) | Self::Lane(lanes, _) => Some(lanes),
            Self::Repeated | Self::Round(_) => None,
        }
    }
}

/// A step of inserted code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// From here on, a scratch register is there. What it has is not known.
    Reserve(Scratch),
    /// From here on, it is not there any more.
    Release(Scratch),
    /// Sets it to a number.
    Set(Scratch, u64),
    /// Sets the first one to what the second one has.
    Copy(Scratch, Scratch),
    /// Sets it to what the program has in a general register, by the instruction set's number.
    Register(Scratch, u8),
    /// Sets it to the address of an operand of the instruction that comes next.
    Address(Scratch, u8),
    /// Sets it to what is in memory: at the address in the second one, plus a number.
    Load(Scratch, Bytes, Scratch, i32),
    /// Puts what the last one has into memory: at the address in the first one, plus a number.
    Store(Bytes, Scratch, i32, Scratch),
    /// Sets it to what is in a word of the thread.
    Read(Scratch, Word),
    /// Puts it into a word of the thread.
    Write(Word, Scratch),
    /// Adds a number to a word of the thread.
    Count(Word, i32),
    /// Sets it to what is computed of it and a value.
    Compute(Compute, Scratch, Value),
    /// Shifts it to the left by this many bits, of 64.
    ShiftLeft(Scratch, u8),
    /// Shifts it to the right by this many bits, of 64, and fills it with zeros.
    ShiftRight(Scratch, u8),
    /// Records a number and what the first one has. The other one is used for that.
    Record(u32, Scratch, Scratch),
    /// Unless they compare so, goes on at a mark that comes later, before the same instruction.
    SkipUnless(Compare, Scratch, Value, Mark),
    /// The mark.
    Mark(Mark),
    /// Unless this lane is active, goes on at a mark that comes after its access.
    SkipInactive(Lanes, u8, Mark),
    /// A lane is complete, or was not active.
    EndLane(Lanes, u8),
    /// All lanes are complete.
    EndLanes(Lanes),
    /// If a repeated instruction has no more rounds, goes on at a mark.
    BeginRound(Mark),
    /// From here on, a vector or mask register is there. What it has is not known.
    ReserveWide(Wide),
    /// From here on, it is not there any more.
    ReleaseWide(Wide),
    /// Something is done with vectors or masks.
    Wide(VectorStep),
    /// All registers have the program's values here. After it, scratch registers have theirs again.
    ShowProgram,
    /// A round is complete: goes on with the next one. After the last one, it goes on here, where the mark is.
    EndRound(Repeated, Mark),
}

/// What is done with vectors and masks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VectorStep {
    /// Sets a vector to what is in memory: at the address in the second one, plus a number.
    Load(ScratchVector, Scratch, i32),
    /// Puts it into memory: at the address in the first one, plus a number.
    Store(Scratch, i32, ScratchVector),
    /// Sets all elements to what the second one has.
    Fill(ScratchVector, Scratch),
    /// Sets the first one to what the second one has.
    Copy(ScratchVector, ScratchVector),
    /// Sets it to what the program has in a vector register, by the instruction set's number.
    Program(ScratchVector, u8),
    /// Sets the first one to an element.
    Element(Scratch, ScratchVector, u8),
    /// Sets an element to what the second one has.
    SetElement(ScratchVector, u8, Scratch),
    /// Sets its elements to what is computed of them and those of the other one.
    Compute(Compute, ScratchVector, ScratchVector),
    /// Sets a mask to the bits of the second one.
    SetMask(ScratchMask, Scratch),
    /// Sets the first one to the bits of a mask.
    Bits(Scratch, ScratchMask),
    /// Sets it to what the program has in a mask register, by the instruction set's number.
    ProgramMask(ScratchMask, u8),
    /// Sets a mask to which elements of two vectors are equal.
    Equal(ScratchMask, ScratchVector, ScratchVector),
    /// Sets those elements of a vector that a mask has to those of another one.
    Select(ScratchVector, ScratchMask, ScratchVector),
}

impl VectorStep {
    /// The general scratch register that it uses.
    pub(crate) fn general(self) -> Option<Scratch> {
        match self {
            Self::Load(_, one, _)
            | Self::Store(one, ..)
            | Self::Fill(_, one)
            | Self::Element(one, ..)
            | Self::SetElement(.., one)
            | Self::SetMask(_, one)
            | Self::Bits(one, _) => Some(one),
            _ => None,
        }
    }

    /// The vectors and masks that it uses.
    pub(crate) fn wide(self) -> impl Iterator<Item = Wide> {
        use Wide::{Mask, Vector};
        let used = match self {
            Self::Load(one, ..)
            | Self::Store(.., one)
            | Self::Fill(one, _)
            | Self::Program(one, _)
            | Self::Element(_, one, _)
            | Self::SetElement(one, ..) => [Some(Vector(one)), None, None],
            Self::Copy(one, other) | Self::Compute(_, one, other) => {
                [Some(Vector(one)), Some(Vector(other)), None]
            }
            Self::SetMask(mask, _) | Self::Bits(_, mask) | Self::ProgramMask(mask, _) => {
                [Some(Mask(mask)), None, None]
            }
            Self::Equal(mask, one, other) | Self::Select(one, mask, other) => {
                [Some(Vector(one)), Some(Vector(other)), Some(Mask(mask))]
            }
        };
        used.into_iter().flatten()
    }
}

impl Step {
    /// The scratch registers that it uses, other than by reserving and releasing them.
    pub(crate) fn uses(self) -> impl Iterator<Item = Scratch> {
        let second = |value| match value {
            Value::Scratch(scratch) => Some(scratch),
            Value::Number(_) => None,
        };
        let used = match self {
            Self::Reserve(_)
            | Self::Release(_)
            | Self::Count(..)
            | Self::Mark(_)
            | Self::SkipInactive(..)
            | Self::EndLane(..)
            | Self::EndLanes(_)
            | Self::BeginRound(_)
            | Self::EndRound(..)
            | Self::ReserveWide(_)
            | Self::ReleaseWide(_)
            | Self::ShowProgram => [None, None],
            Self::Wide(step) => [step.general(), None],
            Self::Set(one, _)
            | Self::Register(one, _)
            | Self::Address(one, _)
            | Self::Read(one, _)
            | Self::Write(_, one)
            | Self::ShiftLeft(one, _)
            | Self::ShiftRight(one, _) => [Some(one), None],
            Self::Copy(one, other)
            | Self::Load(one, _, other, _)
            | Self::Store(_, one, _, other)
            | Self::Record(_, one, other) => [Some(one), Some(other)],
            Self::Compute(_, one, value) | Self::SkipUnless(_, one, value, _) => {
                [Some(one), second(value)]
            }
        };
        used.into_iter().flatten()
    }

    /// The vectors and masks that it uses, other than by reserving and releasing them.
    pub(crate) fn wide(self) -> impl Iterator<Item = Wide> {
        let step = match self {
            Self::Wide(step) => Some(step),
            _ => None,
        };
        step.into_iter().flat_map(VectorStep::wide)
    }

    /// Whether it changes the flags, on an instruction set that has some.
    pub(crate) fn changes_flags(self) -> bool {
        match self {
            // An addition need not.
            Self::Compute(compute, ..) => compute != Compute::Add,
            Self::ShiftLeft(..) | Self::ShiftRight(..) | Self::SkipUnless(..) => true,
            _ => false,
        }
    }
}

/// What is different between the places of a fragment where code is written.
#[derive(Debug, Default)]
pub(crate) struct Names {
    scratch: u32,
    marks: u32,
    /// Scratch registers that are reserved.
    live: Vec<Scratch>,
    /// How many of them there may be.
    most: usize,
    /// Vectors and masks that are reserved.
    live_wide: Vec<Wide>,
    /// How many vectors and masks there may be.
    most_wide: [usize; 2],
}

impl Names {
    /// Lets a phase reserve this number of scratch registers besides those that are reserved, and of vectors and masks.
    pub(crate) fn allow(&mut self, more: usize, more_wide: [usize; 2]) {
        self.most = self.live.len() + more;
        let masks = self.masks();
        let vectors = self.live_wide.len() - masks;
        self.most_wide = [vectors + more_wide[0], masks + more_wide[1]];
    }

    fn masks(&self) -> usize {
        let is_mask = |wide: &&Wide| matches!(wide, Wide::Mask(_));
        self.live_wide.iter().filter(is_mask).count()
    }

    /// A scratch register that the caller reserves and releases.
    pub(crate) fn scratch(&mut self) -> Scratch {
        self.scratch += 1;
        Scratch(self.scratch - 1)
    }

    /// A mark.
    pub(crate) fn mark(&mut self) -> Mark {
        self.marks += 1;
        Mark(self.marks)
    }

    /// From here on, these are reserved.
    pub(crate) fn set_live(&mut self, (live, live_wide): (Vec<Scratch>, Vec<Wide>)) {
        self.live = live;
        self.live_wide = live_wide;
    }

    /// Follows code that is there.
    pub(crate) fn follow(&mut self, step: Step) {
        match step {
            Step::Reserve(scratch) => {
                self.live.push(scratch);
                self.most += 1;
            }
            Step::Release(scratch) => {
                let count = self.live.len();
                self.live.retain(|live| *live != scratch);
                self.most -= count - self.live.len();
            }
            Step::ReserveWide(wide) => {
                self.live_wide.push(wide);
                self.most_wide[usize::from(wide.is_mask())] += 1;
            }
            Step::ReleaseWide(wide) => {
                let count = self.live_wide.len();
                self.live_wide.retain(|live| *live != wide);
                let released = count - self.live_wide.len();
                self.most_wide[usize::from(wide.is_mask())] -= released;
            }
            _ => {}
        }
    }

    /// Releases those that are reserved.
    pub(crate) fn release_all(&mut self) -> (Vec<Scratch>, Vec<Wide>) {
        (
            std::mem::take(&mut self.live),
            std::mem::take(&mut self.live_wide),
        )
    }
}

/// There are too many scratch registers at the same time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TooMany;

impl std::fmt::Display for TooMany {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a pass has too many scratch registers at the same time")
    }
}

impl std::error::Error for TooMany {}

/// Where a pass writes code.
///
/// # Panics
/// All functions panic if a scratch register is used that is not reserved.
#[derive(Debug)]
pub struct Code<'c> {
    steps: &'c mut Vec<Step>,
    names: &'c mut Names,
}

impl<'c> Code<'c> {
    pub(crate) fn new(steps: &'c mut Vec<Step>, names: &'c mut Names) -> Self {
        Self { steps, names }
    }

    pub(crate) fn step(&mut self, step: Step) {
        let has_all = step.uses().all(|used| self.names.live.contains(&used))
            && step.wide().all(|used| self.names.live_wide.contains(&used));
        assert!(
            has_all,
            "{step:?} uses a scratch register that is not reserved"
        );
        self.steps.push(step);
    }

    /// Reserves a scratch register. It may stay reserved over instructions of the program, to the end of the fragment.
    ///
    /// # Errors
    /// If there are too many.
    pub fn reserve(&mut self) -> Result<Scratch, TooMany> {
        if self.names.live.len() >= self.names.most {
            return Err(TooMany);
        }
        let scratch = self.names.scratch();
        self.names.live.push(scratch);
        self.steps.push(Step::Reserve(scratch));
        Ok(scratch)
    }

    /// Releases a scratch register. All that are reserved are released at the end of the fragment.
    pub fn release(&mut self, scratch: Scratch) {
        let count = self.names.live.len();
        self.names.live.retain(|live| *live != scratch);
        assert!(
            self.names.live.len() < count,
            "a scratch register that is not reserved is released"
        );
        self.steps.push(Step::Release(scratch));
    }

    /// The number of a new vector or mask, if there may be another one of its kind.
    pub(crate) fn reserve_wide(
        &mut self,
        is_there: bool,
        is_of_kind: fn(&Wide) -> bool,
    ) -> Result<u32, TooMany> {
        let live = self.names.live_wide.iter().filter(|wide| is_of_kind(wide));
        let most = match is_of_kind(&Wide::Mask(ScratchMask(0))) {
            false => self.names.most_wide[0],
            true => self.names.most_wide[1],
        };
        if !is_there || live.count() >= most {
            return Err(TooMany);
        }
        Ok(self.names.scratch().0)
    }

    /// From here on, it is reserved.
    pub(crate) fn hold_wide(&mut self, wide: Wide) {
        self.names.live_wide.push(wide);
        self.steps.push(Step::ReserveWide(wide));
    }

    /// Releases a vector or mask.
    pub(crate) fn release_wide(&mut self, wide: Wide) {
        let count = self.names.live_wide.len();
        self.names.live_wide.retain(|live| *live != wide);
        assert!(
            self.names.live_wide.len() < count,
            "a scratch register that is not reserved is released"
        );
        self.steps.push(Step::ReleaseWide(wide));
    }

    /// Sets it to a number.
    pub fn set(&mut self, to: Scratch, number: u64) {
        self.step(Step::Set(to, number));
    }

    /// Sets it to what another one has.
    pub fn copy(&mut self, to: Scratch, from: Scratch) {
        self.step(Step::Copy(to, from));
    }

    /// Sets it to what the program has in a general register, by the instruction set's number.
    pub fn register(&mut self, to: Scratch, number: u8) {
        assert!(
            number < crate::native::GENERAL,
            "there is no general register {number}"
        );
        self.step(Step::Register(to, number));
    }

    /// Sets it to what is in memory: at the address that `base` has, plus a number. If it is not there, the program
    /// gets the signal.
    pub fn load(&mut self, to: Scratch, bytes: Bytes, base: Scratch, displacement: i32) {
        self.step(Step::Load(to, bytes, base, displacement));
    }

    /// Puts it into memory: at the address that `base` has, plus a number.
    pub fn store(&mut self, bytes: Bytes, base: Scratch, displacement: i32, from: Scratch) {
        self.step(Step::Store(bytes, base, displacement, from));
    }

    /// Sets it to what is in a word of the thread.
    pub fn read(&mut self, to: Scratch, from: Word) {
        self.step(Step::Read(to, from));
    }

    /// Puts it into a word of the thread.
    pub fn write(&mut self, to: Word, from: Scratch) {
        self.step(Step::Write(to, from));
    }

    /// Adds a number to a word of the thread.
    pub fn count(&mut self, word: Word, number: i32) {
        self.step(Step::Count(word, number));
    }

    /// Sets it to what is computed of it and a value.
    pub fn compute(&mut self, compute: Compute, to: Scratch, value: impl Into<Value>) {
        self.step(Step::Compute(compute, to, value.into()));
    }

    /// Shifts it to the left by this many bits, of 64.
    pub fn shift_left(&mut self, to: Scratch, bits: u8) {
        assert!(bits < 64, "a register has 64 bits");
        self.step(Step::ShiftLeft(to, bits));
    }

    /// Shifts it to the right by this many bits, of 64, and fills it with zeros.
    pub fn shift_right(&mut self, to: Scratch, bits: u8) {
        assert!(bits < 64, "a register has 64 bits");
        self.step(Step::ShiftRight(to, bits));
    }

    /// Records a number and what a scratch register has: [`Client::recorded`](crate::Client::recorded) receives it.
    ///
    /// # Errors
    /// If there are too many scratch registers: another one is used for this.
    ///
    /// # Panics
    /// If the number is 0xFFFF_FF00 or more: these are the engine's own.
    pub fn record(&mut self, number: u32, value: Scratch) -> Result<(), TooMany> {
        assert!(
            number < OWN_NUMBERS,
            "{number:#x} is a number of the engine"
        );
        self.record_own(number, value)
    }

    /// The same with any number.
    pub(crate) fn record_own(&mut self, number: u32, value: Scratch) -> Result<(), TooMany> {
        let other = self.reserve()?;
        self.step(Step::Record(number, value, other));
        self.release(other);
        Ok(())
    }

    /// Code that is executed only if two values compare so. Scratch registers that are set there, or reserved there,
    /// are not known after it.
    ///
    /// # Errors
    /// What `write` returns.
    pub fn when(
        &mut self,
        compare: Compare,
        left: Scratch,
        right: impl Into<Value>,
        write: impl FnOnce(&mut Code<'_>) -> Result<(), TooMany>,
    ) -> Result<(), TooMany> {
        let mark = self.names.mark();
        self.step(Step::SkipUnless(compare, left, right.into(), mark));
        let written = write(self);
        self.steps.push(Step::Mark(mark));
        written
    }

    /// From outside, all registers look as if nothing had been inserted, at this place: those of the program have its
    /// values. (The state map says everywhere where they are; this is for those who look at the processor alone.) After
    /// it, scratch registers have what they had. Flags that the program does not need are not among them, unless a pass
    /// is [conservative](crate::Pass::is_conservative); between the lanes of a gather, its registers are not.
    pub fn show_program(&mut self) {
        self.step(Step::ShowProgram);
    }

    /// Sets it to the address of an operand in memory of the instruction that comes next.
    pub(crate) fn address(&mut self, to: Scratch, operand: u8) {
        self.step(Step::Address(to, operand));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_only_so_many_scratch_registers() {
        let (mut steps, mut names) = (Vec::new(), Names::default());
        names.allow(2, [0; 2]);
        let mut code = Code::new(&mut steps, &mut names);
        let (one, other) = (code.reserve(), code.reserve());
        assert!(one.is_ok() && other.is_ok() && one != other);
        assert_eq!(code.reserve(), Err(TooMany));
        assert!(code.record(1, one.unwrap_or(Scratch(0))).is_err());
        code.release(other.unwrap_or(Scratch(1)));
        assert!(code.reserve().is_ok_and(|third| Ok(third) != other));
    }

    #[test]
    #[should_panic(expected = "not reserved")]
    fn a_scratch_register_that_was_released_is_not_used() {
        let (mut steps, mut names) = (Vec::new(), Names::default());
        names.allow(1, [0; 2]);
        let mut code = Code::new(&mut steps, &mut names);
        if let Ok(scratch) = code.reserve() {
            code.release(scratch);
            code.set(scratch, 1);
        }
    }

    #[test]
    fn code_that_may_be_skipped_ends_even_if_it_fails() {
        let (mut steps, mut names) = (Vec::new(), Names::default());
        names.allow(1, [0; 2]);
        let mut code = Code::new(&mut steps, &mut names);
        let scratch = code.reserve().expect("one is allowed");
        let written = code.when(Compare::Equal, scratch, 0, |code| code.reserve().map(drop));
        assert_eq!(written, Err(TooMany));
        assert!(matches!(
            steps[..],
            [Step::Reserve(_), Step::SkipUnless(..), Step::Mark(_)]
        ));
    }
}
