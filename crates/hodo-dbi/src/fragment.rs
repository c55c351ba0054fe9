//! Fragments of code that passes see and change: instructions of the program, and code inserted between them.

use std::fmt::Debug;
use std::path::Path;
use std::rc::Rc;

use hodo_isa::effects::Effects;

use crate::access::Kind;
use crate::block::Transfer;
use crate::inserted::{Lanes, Part, Places, Repeated, Scratch, Step};
use crate::native::Native;

/// What passes see of an instruction besides its bytes and operands.
pub(crate) trait Seen: Debug {
    /// The registers that it reads or writes.
    fn registers(&self) -> Vec<RegisterOperand>;

    /// What it does to general registers: a bit for each, by number.
    fn effects(&self) -> Effects<u16>;

    /// How it passes control on.
    fn transfer(&self) -> Transfer;

    /// Whether it is a gather. Those that only prefetch are none.
    fn is_gather(&self) -> bool;

    /// Whether it is a scatter.
    fn is_scatter(&self) -> bool;
}

/// An instruction set for which passes can change code.
pub(crate) trait Rewrite {
    /// What an instruction does.
    type Facts: Seen;

    /// General registers with the number and the arguments of a system call,
    const CALL: &'static [u8];
    /// and with its result.
    const RESULT: &'static [u8];

    /// An instruction that a pass puts in the place of one: that is at the first address, and the next one at the
    /// second.
    fn instruction(place: (u64, u64), own: &[u8]) -> Option<Instruction>;

    /// One round of a repeated string instruction: the instruction without its prefix, and how it is repeated. `None`:
    /// it is no such instruction, or its addresses have four bytes.
    fn one_round(old: &Instruction) -> Option<(Instruction, Repeated)>;

    /// The lanes of a gather or scatter, if it can be expanded.
    fn lanes(instruction: &Instruction, scratch: [Scratch; 4]) -> Option<Lanes>;

    /// The lanes of a masked load or store, if it can be expanded.
    fn row(instruction: &Instruction, scratch: [Scratch; 4]) -> Option<Lanes>;
}

/// An instruction of the program.
#[derive(Debug, Clone)]
pub struct Instruction {
    pub(crate) pc: u64,
    pub(crate) bytes: [u8; 16],
    pub(crate) len: u8,
    /// Where the program continues after it, or after what it is there for.
    pub(crate) next: u64,
    pub(crate) facts: Rc<<Native as Rewrite>::Facts>,
    pub(crate) operands: Vec<Operand>,
    /// The program's own, which is at this address in its memory; else a pass has put it there instead of that.
    pub(crate) is_original: bool,
    /// It always continues with the next one.
    pub(crate) continues: bool,
    /// If it is the first one of those that a pass has put in the place of one: that.
    pub(crate) origin: Option<Rc<Instruction>>,
    /// If it stands for a part of an instruction, or for one whose parts come after it.
    pub(crate) part: Option<Part>,
    /// The file from which it is, and where it is in that.
    pub(crate) file: Option<(Rc<Path>, u64)>,
}

/// An operand in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Operand {
    /// Load, store, or both, one after the other.
    pub kinds: &'static [Kind],
    /// Bytes; 0 if it depends on registers.
    pub size: u32,
    /// Whether [`Inserting::address`](crate::Inserting::address) can compute its address: a gather or scatter has
    /// several, and that of a bit that a register numbers depends on this.
    pub has_address: bool,
}

/// A register that an instruction reads or writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RegisterOperand {
    /// What kind of register it is.
    pub bank: RegisterBank,
    /// Its number within its bank, as instructions have it.
    pub number: u8,
    /// How many bytes of it are used.
    pub size: u32,
    /// It is read, at least on some conditions.
    pub is_read: bool,
    /// It is written, at least on some conditions.
    pub is_written: bool,
}

/// What kind of register it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum RegisterBank {
    /// General registers, numbered as in [`Code::register`](crate::Code::register).
    General,
    /// Vectors.
    Vector,
    /// Masks of vectors.
    Mask,
    /// All others.
    Other,
}

impl Instruction {
    /// The registers that it reads or writes: its operands, those from which addresses of operands come, and others
    /// that its operation uses. The program counter and the flags are left out.
    #[must_use]
    pub fn registers(&self) -> Vec<RegisterOperand> {
        self.facts.registers()
    }

    /// Its address. Those that a pass has put there instead of one have the address of that one.
    #[must_use]
    pub fn pc(&self) -> u64 {
        self.pc
    }

    /// The file from which it is, and where it is in that. Those that a pass has put there instead of one have the
    /// place of that one.
    #[must_use]
    pub fn file(&self) -> Option<(&Path, u64)> {
        let (file, offset) = self.file.as_ref()?;
        Some((file, *offset))
    }

    /// Its bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }

    /// Whether it is in the program, and not there instead of one.
    #[must_use]
    pub fn is_original(&self) -> bool {
        self.is_original
    }

    /// The instruction of the program that is fetched when this is executed, for those who look at instructions:
    /// itself, or that in the place of which a pass has put this and others. Only the first one of these has it, so
    /// each is seen once.
    #[must_use]
    pub fn fetched(&self) -> Option<&Self> {
        match self.is_original {
            true => Some(self),
            false => self.origin.as_deref(),
        }
    }

    /// Whether it is in the place of another instruction, alone or with others, or others that access memory for it
    /// come after it.
    #[must_use]
    pub fn is_emulated(&self) -> bool {
        !self.is_original || self.part.is_some()
    }

    /// Whether it is a gather, or one of its lanes: it loads each lane of a vector register from an address of its own.
    #[must_use]
    pub fn is_gather(&self) -> bool {
        self.facts.is_gather()
    }

    /// Whether it is a scatter, or one of its lanes.
    #[must_use]
    pub fn is_scatter(&self) -> bool {
        self.facts.is_scatter()
    }

    /// Whether it stands for a masked load or store whose elements are accesses of their own, or is one of these.
    #[must_use]
    pub fn is_masked_move(&self) -> bool {
        let lanes = self.part.and_then(Part::lanes);
        lanes.is_some_and(|lanes| !matches!(lanes.places, Places::Vector(..)))
    }

    /// Whether it stands for a repeated string instruction whose rounds come after it.
    #[must_use]
    pub fn is_repeated(&self) -> bool {
        matches!(self.part, Some(Part::Repeated))
    }

    /// Whether it is one round of a repeated string instruction. It is executed as often as there are rounds, and so is
    /// what is inserted before it and after it.
    #[must_use]
    pub fn is_round(&self) -> bool {
        matches!(self.part, Some(Part::Round(_)))
    }

    /// The number of the lane of a gather or scatter that it accesses. It is executed only if the lane is active: what
    /// is inserted before it and after it is, too.
    #[must_use]
    pub fn lane(&self) -> Option<u8> {
        match self.part {
            Some(Part::Lane(_, lane)) => Some(lane),
            _ => None,
        }
    }

    /// It stands for a gather or scatter, whose accesses come after it.
    pub(crate) fn head_of(mut self, lanes: Lanes) -> Self {
        self.operands.clear();
        self.part = Some(Part::Head(lanes));
        self
    }

    /// It stands for a repeated instruction, whose rounds come after it.
    pub(crate) fn head_of_rounds(mut self) -> Self {
        self.operands.clear();
        self.part = Some(Part::Repeated);
        self
    }

    /// A round.
    pub(crate) fn round_of(mut self, repeated: Repeated) -> Self {
        self.part = Some(Part::Round(repeated));
        self
    }

    /// The access of a lane.
    pub(crate) fn lane_of(&self, lanes: Lanes, lane: u8) -> Self {
        let operand = Operand {
            kinds: match lanes.stores {
                true => &[Kind::Store],
                false => &[Kind::Load],
            },
            size: lanes.size.into(),
            has_address: true,
        };
        Self {
            operands: vec![operand],
            is_original: false,
            origin: None,
            part: Some(Part::Lane(lanes, lane)),
            ..self.clone()
        }
    }

    /// Where it leads.
    #[must_use]
    pub fn transfer(&self) -> Transfer {
        self.facts.transfer()
    }

    /// Its operands in memory, also implicit ones.
    #[must_use]
    pub fn operands(&self) -> &[Operand] {
        &self.operands
    }

    /// General registers that it reads, by number, one bit each. One of which it changes only a part is among them.
    #[must_use]
    pub fn reads(&self) -> u16 {
        self.facts.effects().reads
    }

    /// General registers that it changes, by number, one bit each.
    #[must_use]
    pub fn changes(&self) -> u16 {
        self.facts.effects().changes
    }
}

/// What a fragment has.
#[derive(Debug, Clone)]
pub enum Item {
    /// An instruction of the program.
    Instruction(Instruction),
    /// A step of code that was inserted.
    Inserted(Step),
}

/// Straight-line code that is entered only at its beginning.
#[derive(Debug, Clone, Default)]
pub struct Fragment {
    pub(crate) items: Vec<Item>,
}

impl Fragment {
    /// What it has, in order.
    #[must_use]
    pub fn items(&self) -> &[Item] {
        &self.items
    }

    /// Its instructions, in order.
    pub fn instructions(&self) -> impl DoubleEndedIterator<Item = &Instruction> {
        self.items.iter().filter_map(|item| match item {
            Item::Instruction(instruction) => Some(instruction),
            Item::Inserted(_) => None,
        })
    }
}
