//! Moves instructions to another address.
//!
//! The moved code does what the original does, register for register. Its length depends on the code and on the
//! [`Options`], not on the addresses, so stubs can be laid out before their addresses are known.
//!
//! | original | moved |
//! |---|---|
//! | most | the same bytes |
//! | `nop` | nothing |
//! | `auipc` | the address, by [`Code::address`] |
//! | a branch within the moved code | a branch, or the opposite branch over a jump |
//! | a branch to elsewhere | the opposite branch over a jump |
//! | a jump | a jump |
//! | a call | the original return address into the link register, and a jump; or a call, according to [`Link`]. A call
//! of the code's own start leads to the original |
//!
//! An instruction does not show that it is between `lr` and `sc`: [`steps`](super::steps::steps) finds that.

use alloc::vec::Vec;
use core::fmt;

use super::asm::{Code, OutOfRange, Reach};
use super::decode::Insn;
use super::decode::Kind;
use super::decode::operand::{funct3, imm_i, imm_u};
use super::encode::{JALR, OP_IMM, b, i};
use super::regs::KEPT;
use super::regs::{RA, T0, ZERO};
use super::scan::Flow;
use super::steps::{FIXED, Immovable, immovable_alone};
use super::{JUMP, KEEP};
use crate::relocate;
pub use crate::relocate::{Link, Moved};

/// How code is moved.
#[derive(Clone, Copy)]
pub struct Options<'a> {
    /// How far away the addresses that the code refers to can be.
    pub reach: Reach,
    /// Returns the general registers that are dead at the instruction at an address: neither it nor any later
    /// instruction reads them before they are overwritten.
    pub dead: &'a dyn Fn(u64) -> u32,
    /// Where the moved instruction at an address jumps to leave the code if no register is dead: a pad that restores
    /// [`KEPT`] from the stack and jumps on to the target; `hodo-codegen` writes it. A call through its own link
    /// register has a pad if an instruction before it determines the target.
    pub pads: &'a dyn Fn(u64) -> Option<u64>,
    /// What moved calls return to.
    pub link: Link,
    /// System calls are moved, too. Signal handlers that interrupt them, tracers and the kernel then see the new
    /// address after them; the kernel returns to it to restart the call, and a child starts there.
    pub system_calls: bool,
    /// Sequences of `lr` and `sc` are moved, too. The code must contain them as a whole, and we must not insert
    /// anything.
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
            pads: &|_| None,
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
    /// Where it leaves through [`Options::pads`]: the offset of the original instruction, and the offset of the
    /// [`EXIT`] bytes that save the register and jump.
    pub exits: Vec<Moved>,
}

/// Bytes of a jump that saves its register.
pub const EXIT: u64 = KEEP + JUMP;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    Copy,
    Drop,
    Address(u64),
    Branch { to: u64, inside: bool },
    Jump { to: u64, inside: bool },
    Call { to: u64, inside: bool },
    IndirectCall,
    Stop,
}

struct Piece {
    insn: Insn,
    form: Form,
    old: usize,
    new: usize,
    /// The dead register that it uses, if it needs one.
    register: u8,
    /// Or the pad through which it leaves, if it saves [`KEPT`] on the stack.
    pad: Option<u64>,
}

/// A branch over a jump.
const BRANCH: usize = 4;
/// How far branches reach.
const BRANCH_REACH: usize = 4094;

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
        Flow::Next if insn.kind == Kind::Auipc && insn.rd() != ZERO => {
            Form::Address(insn.addr.wrapping_add_signed(imm_u(insn.word)))
        }
        Flow::Next if insn.is_nop() => Form::Drop,
        _ => Form::Copy,
    }
}

/// Picks a dead register for jumps, if there is one. Link registers come last, because processors take jumps through
/// them for returns.
#[must_use]
pub fn choose(dead: u32) -> Option<u8> {
    let dead = dead & !FIXED;
    let links = 1 << RA | 1 << T0;
    let from = match dead & !links {
        0 => dead & links,
        others => others,
    };
    (from != 0).then(|| 31 - from.leading_zeros() as u8)
}

impl Piece {
    /// If it needs a dead register, those that it cannot use.
    fn needs(&self, options: &Options<'_>) -> Option<u32> {
        let far = |inside: bool| !inside && options.reach.needs_register();
        let link = 1 << self.insn.rd();
        match self.form {
            Form::Branch { inside, .. } | Form::Jump { inside, .. } if far(inside) => Some(0),
            Form::Call { inside, .. } if far(inside) && options.link == Link::Original => {
                Some(link)
            }
            // The link register is read before it is written.
            Form::IndirectCall if self.insn.rd() == self.insn.rs1() => Some(link),
            _ => None,
        }
    }

    /// Bytes of the moved instruction. `wide`: branches within the code are out of reach.
    fn len(&self, options: &Options<'_>, wide: bool) -> usize {
        let reach = options.reach;
        let keep = self.pad.map_or(0, |_| KEEP as usize);
        let jump = |inside: bool| match inside {
            true => Reach::Jump.jump_len(),
            false => keep + reach.jump_len(),
        };
        match self.form {
            Form::Copy | Form::Stop => self.insn.len.into(),
            Form::Drop => 0,
            Form::Address(_) => reach.address_len(),
            Form::Branch { inside: true, .. } if !wide => BRANCH,
            Form::Branch { inside, .. } => BRANCH + jump(inside),
            Form::Jump { inside, .. } => jump(inside),
            Form::Call { inside, .. } if options.link == Link::Moved => jump(inside),
            Form::Call { inside, .. } => reach.address_len() + jump(inside),
            Form::IndirectCall if self.pad.is_some() => reach.address_len() + jump(false),
            Form::IndirectCall => {
                let copy = if self.insn.rd() == self.insn.rs1() {
                    4
                } else {
                    0
                };
                copy + reach.address_len() + 4
            }
        }
    }
}

struct Layout {
    pieces: Vec<Piece>,
    len: usize,
    /// Branches within the code are out of reach.
    wide: bool,
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
        let mut piece = Piece {
            insn,
            form: form(&insn, code, from, options),
            old: offset,
            new: 0,
            register: ZERO,
            pad: None,
        };
        if let Some(except) = piece.needs(options) {
            // A register that the instruction reads is not dead; one that only receives its result may be.
            let dead = (options.dead)(insn.addr) & !except & !insn.reads().x;
            (piece.register, piece.pad) = match choose(dead) {
                Some(register) => (register, None),
                None => {
                    let pad = (options.pads)(insn.addr);
                    (KEPT, Some(pad.ok_or(RelocateError::NoRegister { offset })?))
                }
            };
        }
        offset += usize::from(insn.len);
        pieces.push(piece);
    }
    let mut place = |wide: bool| {
        let mut new = 0;
        for piece in &mut pieces {
            let gap = gaps.iter().find(|(offset, _)| *offset == piece.old);
            new += gap.map_or(0, |(_, len)| *len);
            piece.new = new;
            new += piece.len(options, wide);
        }
        new
    };
    let mut len = place(false);
    let wide = len > BRANCH_REACH;
    if wide {
        len = place(true);
    }
    Ok(Layout { pieces, len, wide })
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
/// bytes, an even one; that many bytes of breakpoints come before the moved instruction. Branches within the code lead
/// to the start of the gap. `map` has the offsets after the gaps.
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
    let layout = layout(code, from, options, gaps)?;
    let mut bytes = Vec::with_capacity(layout.len);
    let mut writer = Writer {
        code,
        from,
        to,
        options,
        gaps,
        layout: &layout,
        out: Code::new(&mut bytes, to),
        exits: Vec::new(),
    };
    for piece in &layout.pieces {
        writer.out.breakpoints(writer.gap(piece));
        writer.write(piece)?;
        debug_assert_eq!(
            writer.out.offset() as usize - piece.new,
            piece.len(options, layout.wide)
        );
    }
    let exits = writer.exits;
    debug_assert_eq!(bytes.len(), layout.len);
    let falls_through = !layout.pieces.last().is_some_and(|piece| match piece.form {
        Form::Jump { .. } | Form::Stop => true,
        Form::Call { .. } | Form::IndirectCall => options.link == Link::Original,
        _ => false,
    });
    let map = layout
        .pieces
        .iter()
        .map(|piece| Moved {
            old: piece.old,
            new: piece.new,
        })
        .collect();
    Ok(Relocated {
        bytes,
        map,
        falls_through,
        exits,
    })
}

/// Writes pieces at their new address, one after the other.
struct Writer<'a, 'o> {
    /// The original code.
    code: &'a [u8],
    /// The address of the original code.
    from: u64,
    /// The address of what is written.
    to: u64,
    options: &'a Options<'a>,
    gaps: &'a [(usize, usize)],
    layout: &'a Layout,
    out: Code<'o>,
    /// See [`Relocated::exits`].
    exits: Vec<Moved>,
}

impl Writer<'_, '_> {
    /// Bytes of the gap before a piece.
    fn gap(&self, piece: &Piece) -> usize {
        let gap = self.gaps.iter().find(|(offset, _)| *offset == piece.old);
        gap.map_or(0, |(_, len)| *len)
    }

    /// Where a branch leads, and how far away that can be. Branches within the code stay within it.
    fn target(
        &self,
        piece: &Piece,
        address: u64,
        inside: bool,
    ) -> Result<(u64, Reach), RelocateError> {
        if !inside {
            return Ok((address, self.options.reach));
        }
        let old = address.wrapping_sub(self.from);
        let target = self
            .layout
            .pieces
            .iter()
            .find(|piece| piece.old as u64 == old)
            .ok_or(RelocateError::TargetInside { offset: piece.old })?;
        let new = target.new - self.gap(target);
        Ok((self.to.wrapping_add(new as u64), Reach::Jump))
    }

    /// Jumps to an address, or to the piece's pad.
    fn leave(&mut self, piece: &Piece, to: u64, reach: Reach) -> Result<(), OutOfRange> {
        let register = piece.register;
        match piece.pad {
            Some(pad) => {
                let (old, new) = (piece.old, self.out.offset() as usize);
                self.exits.push(Moved { old, new });
                self.out.keep(register);
                self.out.jump(pad, self.options.reach, register)
            }
            None => self.out.jump(to, reach, register),
        }
    }

    fn write(&mut self, piece: &Piece) -> Result<(), RelocateError> {
        let insn = &piece.insn;
        let (reach, link) = (self.options.reach, insn.rd());
        let written = match piece.form {
            Form::Copy | Form::Stop => {
                self.out.raw(&self.code[piece.old..][..insn.len.into()]);
                Ok(())
            }
            Form::Drop => Ok(()),
            Form::Address(value) => self.out.address(link, value, reach),
            Form::Branch { to, inside } => {
                let (to, reach) = self.target(piece, to, inside)?;
                self.branch(piece, inside, to, reach)
            }
            Form::Jump { to, inside } => {
                let (to, reach) = self.target(piece, to, inside)?;
                self.leave(piece, to, reach)
            }
            Form::Call { to, inside } => {
                let (to, jump_reach) = self.target(piece, to, inside)?;
                if self.options.link == Link::Moved {
                    self.out.jump_and_link(to, jump_reach, link, link)
                } else {
                    self.out
                        .address(link, insn.end(), reach)
                        .and_then(|()| self.leave(piece, to, jump_reach))
                }
            }
            // An instruction before it determines the target.
            Form::IndirectCall if piece.pad.is_some() => self
                .out
                .address(link, insn.end(), reach)
                .and_then(|()| self.leave(piece, 0, reach)),
            Form::IndirectCall => self.indirect_call(piece),
        };
        written.map_err(|_| RelocateError::OutOfRange { offset: piece.old })
    }

    fn branch(
        &mut self,
        piece: &Piece,
        inside: bool,
        to: u64,
        reach: Reach,
    ) -> Result<(), OutOfRange> {
        let insn = &piece.insn;
        let (rs1, rs2) = (insn.rs1(), insn.rs2());
        if inside && !self.layout.wide {
            let distance = to.wrapping_sub(self.out.here()) as i64;
            self.out.word(b(funct3(insn.word), rs1, rs2, distance));
            return Ok(());
        }
        // The opposite branch skips the jump.
        let over = BRANCH + reach.jump_len() + piece.pad.map_or(0, |_| KEEP as usize);
        self.out
            .word(b(funct3(insn.word) ^ 1, rs1, rs2, over as i64));
        self.leave(piece, to, reach)
    }

    fn indirect_call(&mut self, piece: &Piece) -> Result<(), OutOfRange> {
        let (insn, register, link) = (&piece.insn, piece.register, piece.insn.rd());
        let (base, distance) = if link == insn.rs1() {
            self.out
                .word(i(OP_IMM, 0, register, link, imm_i(insn.word)));
            (register, 0)
        } else {
            (insn.rs1(), imm_i(insn.word))
        };
        self.out.address(link, insn.end(), self.options.reach)?;
        self.out.word(i(JALR, 0, ZERO, base, distance));
        Ok(())
    }
}

#[cfg(test)]
mod tests;
