//! Moves instructions to another address.
//!
//! The moved code does what the original does, register for register. Its length depends on the code and on the
//! [`Options`], not on the addresses, so stubs can be laid out before their addresses are known.
//!
//! | original | moved |
//! |---|---|
//! | most | the same bytes |
//! | `nop`, a PC-relative prefetch | nothing |
//! | `adr`, `adrp` | the address, by [`Reach`] |
//! | a PC-relative load | its address into the loaded register, or into a register that is free or saved on the stack;
//! then a load through it |
//! | a branch within the moved code | the same branch |
//! | a branch to elsewhere | the opposite branch over a jump |
//! | a jump | a jump |
//! | a call | the original return address into the link register, and a jump; or a call, according to [`Link`]. A call
//! of the code's own start leads to the original |
//!
//! A jump through a register may land on any `bti` if it comes from memory that is not guarded; so the memory that
//! holds moved code must not be mapped with `PROT_BTI`.
//!
//! An instruction does not show that it is between exclusive loads and stores: [`steps`](super::steps::steps) finds
//! that.

use alloc::vec::Vec;
use core::fmt;

use super::decode::{Insn, Kind};
use super::encode::{BREAKPOINT, add, branch, call, copy, jump, movk, movz, page, pop, push};
use super::regs::{BETWEEN, LINK, PLATFORM, ZERO, general};
use super::scan::Flow;
use super::steps::{FLAGS_BIT, Immovable, immovable_alone, mask};
use super::{JUMP_REACH, LEN};
use crate::relocate;
pub use crate::relocate::{Link, Moved};

/// How far away the addresses that moved code refers to can be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reach {
    /// 128 MiB for jumps, by `b`; 4 GiB for addresses, by `adrp` and `add`. No register is needed.
    Jump,
    /// 4 GiB: jumps are `adrp`, `add` and `br`.
    Page,
    /// Anywhere: addresses are built from four parts.
    Any,
}

impl Reach {
    /// Whether jumps need a register.
    #[must_use]
    pub const fn needs_register(self) -> bool {
        !matches!(self, Self::Jump)
    }

    /// Bytes of the instructions that form an address.
    #[must_use]
    pub const fn address_len(self) -> usize {
        match self {
            Self::Jump | Self::Page => 8,
            Self::Any => 16,
        }
    }

    /// Bytes of a jump.
    #[must_use]
    pub const fn jump_len(self) -> usize {
        match self {
            Self::Jump => 4,
            Self::Page | Self::Any => self.address_len() + 4,
        }
    }
}

/// How code is moved.
#[derive(Clone, Copy)]
pub struct Options<'a> {
    /// How far away the addresses that the code refers to can be.
    pub reach: Reach,
    /// Returns the general registers that are dead at the instruction at an address, one bit for each number.
    pub dead: &'a dyn Fn(u64) -> u32,
    /// What moved calls return to.
    pub link: Link,
    /// System calls are moved, too. Signal handlers that interrupt them, tracers and the kernel then see the new
    /// address after them; the kernel returns to it to restart the call, and a child starts there.
    pub system_calls: bool,
    /// Sequences of exclusive loads and stores are moved, too. The code must contain them as a whole, and we must not
    /// insert anything.
    pub sequences: bool,
}

impl fmt::Debug for Options<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options")
            .field("reach", &self.reach)
            .field("link", &self.link)
            .field("system_calls", &self.system_calls)
            .field("sequences", &self.sequences)
            .finish_non_exhaustive()
    }
}

impl Options<'_> {
    /// No register is known to be dead, and calls return to the original code.
    #[must_use]
    pub fn new(reach: Reach) -> Self {
        Self {
            reach,
            dead: &|_| 0,
            link: Link::Original,
            system_calls: false,
            sequences: false,
        }
    }
}

/// Why code cannot be moved.
pub type RelocateError = relocate::RelocateError<Immovable>;

/// Moved code.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Relocated {
    /// The new bytes.
    pub bytes: Vec<u8>,
    /// One entry for each original instruction, in order.
    pub map: Vec<Moved>,
    /// Whether control can reach the end, so that a jump back must follow. It cannot after a jump or return, or after a
    /// call that returns to the original code.
    pub falls_through: bool,
}

/// What becomes of an instruction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    Copy,
    Drop,
    /// Forms the address.
    Address(u64),
    /// Loads from the address.
    Literal(u64),
    Branch {
        to: u64,
        inside: bool,
    },
    Jump {
        to: u64,
        inside: bool,
    },
    Call {
        to: u64,
        inside: bool,
    },
    IndirectCall,
    Stop,
}

struct Piece {
    insn: Insn,
    form: Form,
    old: usize,
    new: usize,
    /// The additional register that it uses, if it needs one.
    register: Option<u8>,
}

fn form(insn: &Insn, code: &[u8], from: u64, options: &Options<'_>) -> Form {
    let inside = |to: u64| to.wrapping_sub(from) < code.len() as u64;
    match insn.flow() {
        Flow::Branch(to) => Form::Branch {
            to,
            inside: inside(to),
        },
        Flow::Jump(to) => Form::Jump {
            to,
            inside: inside(to),
        },
        // A call of the code's start calls the function, and must be recorded.
        Flow::Call(to) => Form::Call {
            to,
            inside: inside(to) && to != from,
        },
        Flow::IndirectCall if options.link == Link::Moved => Form::Copy,
        Flow::IndirectCall => Form::IndirectCall,
        Flow::IndirectJump | Flow::Return { .. } => Form::Stop,
        Flow::Next if insn.is_nop() => Form::Drop,
        Flow::Next => match (insn.kind, insn.target()) {
            (Kind::Adr | Kind::Adrp, _) if insn.rd() == ZERO => Form::Drop,
            (Kind::Adr | Kind::Adrp, Some(to)) => Form::Address(to),
            (Kind::Literal, _) if insn.is_prefetch() => Form::Drop,
            (Kind::Literal, Some(to)) => Form::Literal(to),
            _ => Form::Copy,
        },
        Flow::Fault | Flow::Invalid => Form::Copy,
    }
}

/// Picks a dead register for jumps and addresses, if there is one; preferably one that linkers use for this.
#[must_use]
pub fn choose(dead: u32) -> Option<u8> {
    let dead = dead & !(FLAGS_BIT | 1 << PLATFORM | 1 << LINK);
    let between = BETWEEN
        .iter()
        .copied()
        .find(|&register| dead & 1 << register != 0);
    between.or_else(|| (dead != 0).then(|| dead.trailing_zeros() as u8))
}

impl Piece {
    /// The register in which a PC-relative load forms the address: the one that it loads, if that is a general
    /// register.
    fn loaded(&self) -> Option<u8> {
        let general = !self.insn.bit(26) && self.insn.rd() != ZERO;
        general.then_some(self.insn.rd())
    }

    /// Whether it needs a register, and whether one that is saved on the stack will do.
    fn needs(&self, options: &Options<'_>) -> (bool, bool) {
        let far = |inside: bool| !inside && options.reach.needs_register();
        match self.form {
            Form::Literal(_) => (self.loaded().is_none(), true),
            Form::Branch { inside, .. } | Form::Jump { inside, .. } => (far(inside), false),
            Form::Call { inside, .. } => (far(inside) && options.link == Link::Original, false),
            // The link register is read before it is written.
            Form::IndirectCall => {
                let by = if self.insn.bit(24) {
                    self.insn.rd()
                } else {
                    ZERO
                };
                (
                    self.insn.rn() == LINK || self.insn.bit(11) && by == LINK,
                    false,
                )
            }
            _ => (false, false),
        }
    }

    /// Bytes of the moved instruction.
    fn len(&self, options: &Options<'_>) -> usize {
        let reach = options.reach;
        let jump = |inside: bool| match inside {
            true => Reach::Jump.jump_len(),
            false => reach.jump_len(),
        };
        match self.form {
            Form::Copy | Form::Stop => self.insn.len.into(),
            Form::Drop => 0,
            Form::Address(_) => reach.address_len(),
            Form::Literal(_) => {
                let kept = match (self.loaded(), self.register) {
                    (None, None) => 8,
                    _ => 0,
                };
                kept + reach.address_len() + 4
            }
            Form::Branch { inside: true, .. } => 4,
            Form::Branch { inside, .. } => 4 + jump(inside),
            Form::Jump { inside, .. } => jump(inside),
            Form::Call { inside, .. } if options.link == Link::Moved => jump(inside),
            Form::Call { inside, .. } => reach.address_len() + jump(inside),
            Form::IndirectCall => {
                let copies = if self.register.is_some() { 4 } else { 0 };
                copies + reach.address_len() + 4
            }
        }
    }
}

struct Layout {
    pieces: Vec<Piece>,
    len: usize,
}

/// Chooses the form of each instruction and where it goes, with gaps before some of them.
fn layout(
    code: &[u8],
    from: u64,
    options: &Options<'_>,
    gaps: &[(usize, usize)],
) -> Result<Layout, RelocateError> {
    let mut pieces: Vec<Piece> = Vec::new();
    let mut offset = 0;
    let mut new = 0;
    while offset < code.len() {
        let insn = Insn::new(&code[offset..], from.wrapping_add(offset as u64));
        match immovable_alone(&insn) {
            Some(Immovable::SystemCall) if options.system_calls => {}
            Some(Immovable::Reserved) if options.sequences => {}
            Some(why) => return Err(RelocateError::Immovable { offset, why }),
            None => {}
        }
        if options.link == Link::Original
            && let Some(Form::Call { .. } | Form::IndirectCall) = pieces.last().map(|p| p.form)
        {
            return Err(RelocateError::CallInside { offset });
        }
        let gap = gaps.iter().find(|(at, _)| *at == offset);
        new += gap.map_or(0, |(_, len)| *len);
        let mut piece = Piece {
            insn,
            form: form(&insn, code, from, options),
            old: offset,
            new,
            register: None,
        };
        let (needed, stack) = piece.needs(options);
        if needed {
            // A register that the instruction reads is not dead; one that only receives its result may be.
            let effects = insn.effects();
            let dead = (options.dead)(insn.addr) & !mask(effects.reads | general(LINK));
            piece.register = choose(dead);
            if piece.register.is_none() && !stack {
                return Err(RelocateError::NoRegister { offset });
            }
        }
        new += piece.len(options);
        offset += usize::from(insn.len);
        pieces.push(piece);
    }
    Ok(Layout { pieces, len: new })
}

/// The length of the moved code, wherever it goes.
///
/// # Errors
/// If the code cannot be moved.
pub fn relocated_len(
    code: &[u8],
    from: u64,
    options: &Options<'_>,
) -> Result<usize, RelocateError> {
    layout(code, from, options, &[]).map(|layout| layout.len)
}

/// Moves whole instructions from the address `from` to the address `to`. Both are addresses at run time.
///
/// # Errors
/// If the code cannot be moved, or not there.
pub fn relocate(
    code: &[u8],
    from: u64,
    to: u64,
    options: &Options<'_>,
) -> Result<Relocated, RelocateError> {
    relocate_apart(code, from, to, options, &[])
}

/// [`relocate()`] with room between the instructions. Each gap is the offset of an original instruction and a number of
/// bytes, a multiple of four; that many bytes of breakpoints come before the moved instruction. Branches within the
/// code lead to the start of the gap. `map` has the offsets after the gaps.
///
/// # Errors
/// If the code cannot be moved, or not there.
pub fn relocate_apart(
    code: &[u8],
    from: u64,
    to: u64,
    options: &Options<'_>,
    gaps: &[(usize, usize)],
) -> Result<Relocated, RelocateError> {
    let Layout { pieces, len } = layout(code, from, options, gaps)?;
    let mut moving = Moving {
        pieces: &pieces,
        from,
        to,
        options,
        gaps,
        out: Vec::with_capacity(len),
    };
    for piece in &pieces {
        moving.piece(piece)?;
    }
    let bytes = moving.out;
    debug_assert_eq!(bytes.len(), len);
    let falls_through = !pieces.last().is_some_and(|piece| match piece.form {
        Form::Jump { .. } | Form::Stop => true,
        Form::Call { .. } | Form::IndirectCall => options.link == Link::Original,
        _ => false,
    });
    let map = pieces.iter().map(|piece| Moved {
        old: piece.old,
        new: piece.new,
    });
    Ok(Relocated {
        bytes,
        map: map.collect(),
        falls_through,
    })
}

/// It is too far away.
struct OutOfRange;

/// Code that is being written.
struct Moving<'m> {
    pieces: &'m [Piece],
    from: u64,
    to: u64,
    options: &'m Options<'m>,
    gaps: &'m [(usize, usize)],
    out: Vec<u8>,
}

impl Moving<'_> {
    fn word(&mut self, word: u32) {
        self.out.extend_from_slice(&word.to_le_bytes());
    }

    fn here(&self) -> u64 {
        self.to.wrapping_add(self.out.len() as u64)
    }

    fn gap(&self, piece: &Piece) -> usize {
        let gap = self.gaps.iter().find(|(offset, _)| *offset == piece.old);
        gap.map_or(0, |(_, len)| *len)
    }

    /// Forms an address.
    fn address(&mut self, register: u8, value: u64) -> Result<(), OutOfRange> {
        if self.options.reach == Reach::Any {
            for part in 0..4 {
                let bits = (value >> (16 * part)) as u16;
                self.word(match part {
                    0 => movz(register, bits, part),
                    _ => movk(register, bits, part),
                });
            }
            return Ok(());
        }
        let pages = (value >> 12).wrapping_sub(self.here() >> 12) as i64;
        if !(-(1 << 20)..1 << 20).contains(&pages) {
            return Err(OutOfRange);
        }
        self.word(page(register, pages));
        self.word(add(register, register, value as u32 & 0xFFF));
        Ok(())
    }

    /// A jump or call within reach of one instruction.
    fn near(&mut self, link: bool, to: u64) -> Result<(), OutOfRange> {
        let distance = to.wrapping_sub(self.here()) as i64;
        let reach = JUMP_REACH as i64;
        if !(-reach..reach).contains(&distance) || distance & 3 != 0 {
            return Err(OutOfRange);
        }
        self.word(branch(link, distance));
        Ok(())
    }

    /// A jump to an address as [`Self::target`] returns it.
    fn jump(&mut self, (to, inside): (u64, bool), register: Option<u8>) -> Result<(), OutOfRange> {
        match register.filter(|_| !inside) {
            None => self.near(false, to),
            Some(register) => {
                self.address(register, to)?;
                self.word(jump(register));
                Ok(())
            }
        }
    }

    /// Where a branch to an address leads: branches within the code stay within it.
    fn target(&self, to: u64, inside: bool, offset: usize) -> Result<(u64, bool), RelocateError> {
        if !inside {
            return Ok((to, false));
        }
        let old = to.wrapping_sub(self.from);
        let mut pieces = self.pieces.iter();
        let piece = pieces
            .find(|piece| piece.old as u64 == old)
            .ok_or(RelocateError::TargetInside { offset })?;
        let new = piece.new - self.gap(piece);
        Ok((self.to.wrapping_add(new as u64), true))
    }

    fn piece(&mut self, piece: &Piece) -> Result<(), RelocateError> {
        for _ in 0..self.gap(piece) / LEN as usize {
            self.word(BREAKPOINT);
        }
        let offset = piece.old;
        let out_of_range = |_: OutOfRange| RelocateError::OutOfRange { offset };
        let (insn, register) = (&piece.insn, piece.register);
        match piece.form {
            Form::Copy | Form::Stop => {
                let bytes = insn.word.to_le_bytes();
                self.out.extend_from_slice(&bytes[..insn.len.into()]);
                Ok(())
            }
            Form::Drop => Ok(()),
            Form::Address(value) => self.address(insn.rd(), value),
            Form::Literal(value) => self.literal(piece, value),
            Form::Branch { to, inside } => {
                let target = self.target(to, inside, offset)?;
                self.branch(piece, target)
            }
            Form::Jump { to, inside } => {
                let target = self.target(to, inside, offset)?;
                self.jump(target, register)
            }
            Form::Call { to, inside } => {
                let target = self.target(to, inside, offset)?;
                self.call(piece, target)
            }
            Form::IndirectCall => self.indirect_call(piece),
        }
        .map_err(out_of_range)?;
        debug_assert_eq!(self.out.len() - piece.new, piece.len(self.options));
        Ok(())
    }

    /// A PC-relative load, with its address in a register.
    fn literal(&mut self, piece: &Piece, value: u64) -> Result<(), OutOfRange> {
        let insn = &piece.insn;
        let keeps = piece.loaded().is_none() && piece.register.is_none();
        let register = piece.loaded().or(piece.register).unwrap_or(BETWEEN[0]);
        if keeps {
            self.word(push(register));
        }
        self.address(register, value)?;
        // ldr of 4 or 8 bytes, ldrsw; ldr of 4, 8 or 16 bytes into a vector register: without an offset.
        let load = match (insn.bit(26), insn.field(30, 2)) {
            (false, 0) => 0xB940_0000,
            (false, 1) => 0xF940_0000,
            (false, _) => 0xB980_0000,
            (true, 0) => 0xBD40_0000,
            (true, 1) => 0xFD40_0000,
            (true, _) => 0x3DC0_0000,
        };
        self.word(load | u32::from(register) << 5 | u32::from(insn.rd()));
        if keeps {
            self.word(pop(register));
        }
        Ok(())
    }

    fn branch(&mut self, piece: &Piece, (to, inside): (u64, bool)) -> Result<(), OutOfRange> {
        let insn = &piece.insn;
        let (bits, count, opposite) = match insn.kind {
            Kind::TestBit => (insn.word & !0x0007_FFE0, 14, 1 << 24),
            Kind::CompareZero => (insn.word & !0x00FF_FFE0, 19, 1 << 24),
            _ => (insn.word & !0x00FF_FFE0, 19, 1),
        };
        let place = |distance: i64| ((distance >> 2) as u32 & ((1 << count) - 1)) << 5;
        if inside {
            let distance = to.wrapping_sub(self.here()) as i64;
            let reach = 2 << count;
            if !(-reach..reach).contains(&distance) {
                return Err(OutOfRange);
            }
            self.word(bits | place(distance));
            return Ok(());
        }
        // The opposite branch skips the jump.
        let over = 4 + self.options.reach.jump_len();
        self.word((bits ^ opposite) | place(over as i64));
        self.jump((to, false), piece.register)
    }

    fn call(&mut self, piece: &Piece, (to, inside): (u64, bool)) -> Result<(), OutOfRange> {
        match self.options.link {
            Link::Moved if inside || self.options.reach == Reach::Jump => self.near(true, to),
            Link::Moved => {
                self.address(LINK, to)?;
                self.word(call(LINK));
                Ok(())
            }
            Link::Original => {
                self.address(LINK, piece.insn.end())?;
                self.jump((to, inside), piece.register)
            }
        }
    }

    /// A call through a register becomes a jump through it.
    fn indirect_call(&mut self, piece: &Piece) -> Result<(), OutOfRange> {
        let insn = &piece.insn;
        // The bit that makes it a call.
        let mut word = insn.word & !(1 << 21);
        if let Some(register) = piece.register {
            self.word(copy(register, LINK));
            if insn.rn() == LINK {
                word = word & !(31 << 5) | u32::from(register) << 5;
            }
            if insn.bit(11) && insn.bit(24) && insn.rd() == LINK {
                word = word & !31 | u32::from(register);
            }
        }
        self.address(LINK, insn.end())?;
        self.word(word);
        Ok(())
    }
}

#[cfg(test)]
mod tests;
