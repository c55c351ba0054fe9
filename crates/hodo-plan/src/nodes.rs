//! Decoded instructions for the liveness analysis: 16 bytes each, since a program has millions.

use hodo_isa::code::{Flow, How, InstructionSet, Step};

use crate::image::Image;
use crate::pieces::{self, Piece};

/// Where control goes from a piece.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum To {
    /// The start of a piece.
    Piece(usize),
    /// A place in the middle of a piece.
    Inside(u64),
    /// A function outside this image, or one that is called through a register.
    Outside,
    /// Unknown.
    Unknown,
}

/// Where a direct call or jump goes.
pub(crate) fn to(image: &Image<'_>, pieces: &[Piece], addr: u64) -> To {
    match image.text_at(addr) {
        None => To::Unknown,
        Some(text) if text.plt => To::Outside,
        Some(_) => match pieces::find(pieces, addr) {
            Some(piece) if pieces[piece].start == addr => To::Piece(piece),
            Some(_) => To::Inside(addr),
            None => To::Unknown,
        },
    }
}

/// How an instruction changes the flow of control.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    Next,
    /// A conditional branch to this instruction of the piece.
    Branch(usize),
    /// A jump to it.
    Jump(usize),
    /// A branch or jump to the middle of an instruction of the piece.
    Amiss,
    BranchAway(To),
    JumpAway(To),
    Call(To),
    IndirectCall,
    IndirectJump,
    Return,
    OtherReturn,
    Fault,
    Invalid,
}

/// The kind of flow, in the lowest bits of a word. Kinds without a number need nothing else.
mod kind {
    pub const NEXT: u32 = 0;
    pub const BRANCH: u32 = 1;
    pub const JUMP: u32 = 2;
    pub const BRANCH_AMISS: u32 = 3;
    pub const JUMP_AMISS: u32 = 4;
    pub const BRANCH_AWAY: u32 = 5;
    pub const JUMP_AWAY: u32 = 6;
    pub const CALL: u32 = 7;
    pub const BRANCH_INSIDE: u32 = 8;
    pub const JUMP_INSIDE: u32 = 9;
    pub const CALL_INSIDE: u32 = 10;
    pub const INDIRECT_CALL: u32 = 11;
    pub const INDIRECT_JUMP: u32 = 12;
    pub const RETURN: u32 = 13;
    pub const OTHER_RETURN: u32 = 14;
    pub const FAULT: u32 = 15;
    pub const INVALID: u32 = 16;
    pub const BITS: u32 = 5;
    /// Distances in bytes and numbers of pieces must be below this.
    pub const ROOM: u64 = 1 << (32 - BITS);
    /// The numbers of places that are not starts of pieces.
    pub const OUTSIDE: u32 = 0;
    pub const UNKNOWN: u32 = 1;
    pub const FIRST: u32 = 2;
}

/// The highest bit of a place marks padding.
const PADDING: u32 = 1 << 31;

/// One instruction.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Node {
    /// Its distance from the start of its piece, and whether it is padding.
    place: u32,
    /// What it uses, and what it overwrites.
    pub reads: u32,
    pub writes: u32,
    way: u32,
}

impl Node {
    /// Returns its distance from the start of its piece.
    pub fn at(&self) -> u64 {
        (self.place & !PADDING).into()
    }

    pub fn is_padding(&self) -> bool {
        self.place & PADDING != 0
    }

    /// Returns whether control just continues to the next one.
    #[inline]
    pub fn goes_on(&self) -> bool {
        self.way == kind::NEXT
    }

    /// Returns the instruction of the piece to which it branches or jumps.
    #[inline]
    pub fn target(&self) -> Option<usize> {
        let kind = self.way & ((1 << kind::BITS) - 1);
        matches!(kind, kind::BRANCH | kind::JUMP).then_some((self.way >> kind::BITS) as usize)
    }

    pub fn is_indirect_jump(&self) -> bool {
        self.way == kind::INDIRECT_JUMP
    }

    /// Returns whether control never continues to the next instruction.
    pub fn is_end(&self) -> bool {
        matches!(
            self.way & ((1 << kind::BITS) - 1),
            kind::JUMP
                | kind::JUMP_AMISS
                | kind::JUMP_AWAY
                | kind::JUMP_INSIDE
                | kind::INDIRECT_JUMP
                | kind::RETURN
                | kind::OTHER_RETURN
                | kind::FAULT
        )
    }
}

/// Instructions of one piece.
#[derive(Clone, Copy, Default)]
pub(crate) struct Code<'n> {
    pub nodes: &'n [Node],
    /// Addresses in the middle of pieces, by the numbers that nodes use for them.
    places: &'n [u64],
}

impl Code<'_> {
    /// Returns how an instruction changes the flow of control.
    #[inline]
    pub fn way(&self, node: &Node) -> Way {
        let number = node.way >> kind::BITS;
        let to = || match number {
            kind::OUTSIDE => To::Outside,
            kind::UNKNOWN => To::Unknown,
            piece => To::Piece((piece - kind::FIRST) as usize),
        };
        let inside = || To::Inside(self.places[number as usize]);
        match node.way & ((1 << kind::BITS) - 1) {
            kind::NEXT => Way::Next,
            kind::BRANCH => Way::Branch(number as usize),
            kind::JUMP => Way::Jump(number as usize),
            kind::BRANCH_AMISS | kind::JUMP_AMISS => Way::Amiss,
            kind::BRANCH_AWAY => Way::BranchAway(to()),
            kind::JUMP_AWAY => Way::JumpAway(to()),
            kind::CALL => Way::Call(to()),
            kind::BRANCH_INSIDE => Way::BranchAway(inside()),
            kind::JUMP_INSIDE => Way::JumpAway(inside()),
            kind::CALL_INSIDE => Way::Call(inside()),
            kind::INDIRECT_CALL => Way::IndirectCall,
            kind::INDIRECT_JUMP => Way::IndirectJump,
            kind::RETURN => Way::Return,
            kind::OTHER_RETURN => Way::OtherReturn,
            kind::FAULT => Way::Fault,
            _ => Way::Invalid,
        }
    }

    /// Returns where the code goes on after a call with which it ends, but for padding. Nothing comes back from such a
    /// call.
    pub fn ends_in_call(&self) -> Option<usize> {
        let padding = self.nodes.iter().rev().take_while(|node| node.is_padding());
        let end = self.nodes.len() - padding.count();
        let last = &self.nodes[end.checked_sub(1)?];
        matches!(self.way(last), Way::Call(_) | Way::IndirectCall).then_some(end)
    }

    /// Returns the instruction at this distance from the piece's start.
    pub fn find(&self, at: u64) -> Option<usize> {
        self.nodes.binary_search_by_key(&at, Node::at).ok()
    }
}

/// The instructions of several consecutive pieces.
#[derive(Default)]
pub(crate) struct Nodes {
    all: Vec<Node>,
    /// Where the instructions of each piece end.
    ends: Vec<usize>,
    places: Vec<u64>,
    /// For each distance from the start of the piece that is being read, in units of a power of two: the number of the
    /// instruction there plus one.
    numbers: Vec<u32>,
    unit: u32,
}

impl Nodes {
    /// The instructions of one piece: what each reads, overwrites, and how it changes the flow of control within the
    /// piece.
    #[cfg(test)]
    pub fn made(insns: &[(u32, u32, Way)]) -> Self {
        let node = |(at, &(reads, writes, way)): (usize, &(u32, u32, Way))| Node {
            place: at as u32 * 4,
            reads,
            writes,
            way: match way {
                Way::Next => kind::NEXT,
                Way::Branch(to) => (to as u32) << kind::BITS | kind::BRANCH,
                Way::Jump(to) => (to as u32) << kind::BITS | kind::JUMP,
                Way::IndirectCall => kind::INDIRECT_CALL,
                Way::IndirectJump => kind::INDIRECT_JUMP,
                Way::Return => kind::RETURN,
                _ => kind::INVALID,
            },
        };
        Self {
            all: insns.iter().enumerate().map(node).collect(),
            ends: vec![insns.len()],
            ..Self::default()
        }
    }

    /// Creates it with room for the instructions of this many bytes of code.
    pub fn with_room(bytes: u64) -> Self {
        Self {
            all: Vec::with_capacity(usize::try_from(bytes / 2).unwrap_or_default()),
            ..Self::default()
        }
    }

    /// Returns the number of pieces.
    pub fn count(&self) -> usize {
        self.ends.len()
    }

    /// Returns the instructions of one of the pieces.
    pub fn of(&self, piece: usize) -> Code<'_> {
        let start = piece.checked_sub(1).map_or(0, |before| self.ends[before]);
        Code {
            nodes: &self.all[start..self.ends[piece]],
            places: &self.places,
        }
    }

    /// Begins the next piece.
    pub fn begin(&mut self, isa: &'static dyn InstructionSet, piece: &Piece) {
        self.unit = isa.unit().trailing_zeros();
        let count = piece.end.saturating_sub(piece.start).div_ceil(isa.unit());
        self.numbers.clear();
        self.numbers
            .resize(usize::try_from(count).unwrap_or_default(), 0);
    }

    /// Adds an instruction of it.
    #[inline]
    pub fn push(
        &mut self,
        (image, pieces): (&Image<'_>, &[Piece]),
        piece: &Piece,
        (addr, flow, padding): (u64, Flow, bool),
        (reads, writes): (u32, u32),
    ) {
        let at = addr - piece.start;
        let start = self.ends.last().copied().unwrap_or_default();
        if let Some(number) = self.numbers.get_mut((at >> self.unit) as usize) {
            *number = (self.all.len() - start) as u32 + 1;
        }
        let way = match flow {
            Flow::Next => kind::NEXT,
            Flow::Branch(addr) => {
                let kinds = (kind::BRANCH, kind::BRANCH_AWAY, kind::BRANCH_INSIDE);
                self.leading(image, pieces, piece, addr, kinds)
            }
            Flow::Jump(addr) => {
                let kinds = (kind::JUMP, kind::JUMP_AWAY, kind::JUMP_INSIDE);
                self.leading(image, pieces, piece, addr, kinds)
            }
            Flow::Call(addr) => self.away(to(image, pieces, addr), kind::CALL, kind::CALL_INSIDE),
            Flow::IndirectCall => kind::INDIRECT_CALL,
            Flow::IndirectJump => kind::INDIRECT_JUMP,
            Flow::Return { how: How::Plain } => kind::RETURN,
            Flow::Return { .. } => kind::OTHER_RETURN,
            Flow::Fault => kind::FAULT,
            Flow::Invalid => kind::INVALID,
        };
        let padding = if padding { PADDING } else { 0 };
        self.all.push(Node {
            place: at as u32 & !PADDING | padding,
            reads,
            writes,
            way,
        });
    }

    /// Adds a piece about which more is known.
    pub fn add(&mut self, image: &Image<'_>, pieces: &[Piece], piece: &Piece, steps: &[Step]) {
        self.begin(image.isa, piece);
        for step in steps {
            let what = (step.addr, step.flow, step.padding);
            self.push((image, pieces), piece, what, (step.reads, step.writes));
        }
        self.end();
    }

    /// Returns the flow of a branch or jump. If it stays in the piece, it has the distance from the piece's start until
    /// the piece ends.
    fn leading(
        &mut self,
        image: &Image<'_>,
        pieces: &[Piece],
        piece: &Piece,
        addr: u64,
        (here, away, inside): (u32, u32, u32),
    ) -> u32 {
        if !(piece.start..piece.end).contains(&addr) {
            return self.away(to(image, pieces, addr), away, inside);
        }
        let at = (addr - piece.start).min(kind::ROOM - 1) as u32;
        at << kind::BITS | here
    }

    fn away(&mut self, to: To, kind: u32, inside: u32) -> u32 {
        let number = match to {
            To::Outside => kind::OUTSIDE,
            To::Piece(piece) if (piece as u64) < kind::ROOM - u64::from(kind::FIRST) => {
                piece as u32 + kind::FIRST
            }
            To::Inside(addr) if (self.places.len() as u64) < kind::ROOM => {
                self.places.push(addr);
                let number = (self.places.len() - 1) as u32;
                return number << kind::BITS | inside;
            }
            _ => kind::UNKNOWN,
        };
        number << kind::BITS | kind
    }

    /// Ends the current piece: all of its instructions are known now.
    pub fn end(&mut self) {
        let start = self.ends.last().copied().unwrap_or_default();
        for node in &mut self.all[start..] {
            let here = node.way & ((1 << kind::BITS) - 1);
            if matches!(here, kind::BRANCH | kind::JUMP) {
                let at = u64::from(node.way >> kind::BITS);
                let number = self.numbers.get((at >> self.unit) as usize);
                let number = number.filter(|_| at.trailing_zeros() >= self.unit);
                node.way = match number.copied().unwrap_or_default().checked_sub(1) {
                    Some(number) => number << kind::BITS | here,
                    None if here == kind::BRANCH => kind::BRANCH_AMISS,
                    None => kind::JUMP_AMISS,
                };
            }
        }
        self.ends.push(self.all.len());
    }
}
