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
//! What leads farther than [`Reach::Jump`] to code that may be guarded does so through a pad: see [`Options::pads`].
//!
//! A jump through a register may land on any `bti` if it comes from memory that is not guarded; so the memory that
//! holds moved code must not be mapped with `PROT_BTI`.
//!
//! An instruction does not show that it is between exclusive loads and stores: [`steps`](super::steps::steps) finds
//! that.

use core::fmt;

use super::KEEP;
use super::asm::ops::Insns as _;
use super::asm::{Code, OutOfRange, Reach};
use super::decode::{Insn, Kind};
use super::regs::{BETWEEN, KEPT, LINK, PLATFORM, ZERO, general};
use super::scan::Flow;
use super::steps::{FLAGS_BIT, Immovable, immovable_alone, mask};
use crate::linked::relocate::{Form, Output, Piece, Rules, Target};
pub use crate::linked::relocate::{Relocated, relocate, relocate_apart, relocated_len};
use crate::relocate;
pub use crate::relocate::{Link, Moved};

/// How code is moved.
#[derive(Clone, Copy)]
pub struct Options<'a> {
    /// How far away the addresses that the code refers to can be.
    pub reach: Reach,
    /// Returns the general registers that are dead at the instruction at an address, one bit for each number.
    pub dead: &'a dyn Fn(u64) -> u32,
    /// Where the moved instruction at an address jumps to leave the code, if [`Self::reach`] is not [`Reach::Jump`]: a
    /// pad near the target, which restores [`KEPT`] from the stack and jumps on; `hodo-codegen` writes it. Without a
    /// pad, the jump goes through a dead register, and its target must be a landing instruction if it is guarded.
    pub pads: &'a dyn Fn(u64) -> Option<u64>,
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
            pads: &|_| None,
            link: Link::Original,
            system_calls: false,
            sequences: false,
        }
    }
}

/// Why code cannot be moved.
pub type RelocateError = relocate::RelocateError<Immovable>;

/// Bytes of the code with which a moved instruction leaves through a pad, which may be anywhere.
pub const EXIT: u64 = KEEP + Reach::Any.jump_len() as u64;

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

/// What becomes of an instruction that uses its own address.
#[derive(Clone, Copy)]
pub enum Own {
    /// Forms the address.
    Address(u64),
    /// Loads from the address.
    Literal(u64),
}

/// The additional register of a moved instruction.
#[derive(Clone, Copy, Default)]
pub struct Scratch {
    /// A dead one.
    register: Option<u8>,
    /// It is [`KEPT`], saved on the stack, and the instruction leaves through this pad.
    pad: Option<u64>,
}

/// The register in which a PC-relative load forms the address: the one that it loads, if that is a general register.
fn loaded(insn: &Insn) -> Option<u8> {
    let general = !insn.bit(26) && insn.rd() != ZERO;
    general.then_some(insn.rd())
}

/// Whether a call through a register uses the link register, which is read before it is written.
fn is_by_link(insn: &Insn) -> bool {
    let by = if insn.bit(24) { insn.rd() } else { ZERO };
    insn.rn() == LINK || insn.bit(11) && by == LINK
}

/// Appends to moved code.
fn code(out: &mut Output) -> Code<'_> {
    Code::new(&mut out.bytes, out.to)
}

impl Options<'_> {
    fn reach_of(&self, inside: bool) -> Reach {
        match inside {
            true => Reach::Jump,
            false => self.reach,
        }
    }

    /// A PC-relative load, with its address in a register.
    fn literal(
        &self,
        out: &mut Output,
        insn: &Insn,
        scratch: Option<u8>,
        value: u64,
    ) -> Result<(), OutOfRange> {
        let free = loaded(insn).or(scratch);
        let register = free.unwrap_or(BETWEEN[0]);
        let mut code = code(out);
        if free.is_none() {
            code.keep(register);
        }
        code.address(register, value, self.reach)?;
        // ldr of 4 or 8 bytes, ldrsw; ldr of 4, 8 or 16 bytes into a vector register: without an offset.
        let load = match (insn.bit(26), insn.field(30, 2)) {
            (false, 0) => 0xB940_0000,
            (false, 1) => 0xF940_0000,
            (false, _) => 0xB980_0000,
            (true, 0) => 0xBD40_0000,
            (true, 1) => 0xFD40_0000,
            (true, _) => 0x3DC0_0000,
        };
        code.word(load | u32::from(register) << 5 | u32::from(insn.rd()));
        if free.is_none() {
            code.take_back(register);
        }
        Ok(())
    }
}

impl Rules for Options<'_> {
    type Insn = Insn;
    type Own = Own;
    type Scratch = Scratch;
    type Why = Immovable;

    /// Code of this length is not moved; a branch that does not reach its target is an error.
    const BRANCH_REACH: usize = usize::MAX;

    fn decode(code: &[u8], addr: u64) -> Insn {
        Insn::new(code, addr)
    }

    fn len(insn: &Insn) -> usize {
        insn.len.into()
    }

    fn flow(insn: &Insn) -> Flow {
        insn.flow()
    }

    fn plain(insn: &Insn) -> Form<Own> {
        match (insn.kind, insn.target()) {
            _ if insn.is_nop() => Form::Drop,
            (Kind::Adr | Kind::Adrp, _) if insn.rd() == ZERO => Form::Drop,
            (Kind::Adr | Kind::Adrp, Some(to)) => Form::Own(Own::Address(to)),
            (Kind::Literal, _) if insn.is_prefetch() => Form::Drop,
            (Kind::Literal, Some(to)) => Form::Own(Own::Literal(to)),
            _ => Form::Copy,
        }
    }

    fn link(&self) -> Link {
        self.link
    }

    fn needs_register(&self) -> bool {
        self.reach.needs_register()
    }

    fn immovable(&self, insn: &Insn) -> Option<Immovable> {
        immovable_alone(insn).filter(|why| match why {
            Immovable::SystemCall => !self.system_calls,
            Immovable::Reserved => !self.sequences,
            _ => true,
        })
    }

    fn scratch(&self, insn: &Insn, form: Form<Own>) -> Option<Scratch> {
        // Whether a register that is saved on the stack will do.
        let stack = matches!(form, Form::Own(Own::Literal(_)));
        let needed = match form {
            Form::Own(Own::Literal(_)) => loaded(insn).is_none(),
            Form::IndirectCall => is_by_link(insn),
            _ => form.needs_register(self),
        };
        if !needed {
            return Some(Scratch::default());
        }
        let leaves = matches!(form, Form::Branch(_) | Form::Jump(_) | Form::Call(_));
        if let Some(pad) = leaves.then(|| (self.pads)(insn.addr)).flatten() {
            return Some(Scratch {
                register: None,
                pad: Some(pad),
            });
        }
        // A register that the instruction reads is not dead; one that only receives its result may be.
        let dead = (self.dead)(insn.addr) & !mask(insn.effects().reads | general(LINK));
        let register = choose(dead);
        let pad = None;
        (stack || register.is_some()).then_some(Scratch { register, pad })
    }

    fn address_len(&self) -> usize {
        self.reach.address_len()
    }

    fn jump_len(&self, scratch: Scratch, inside: bool) -> usize {
        match scratch.pad {
            Some(_) => EXIT as usize,
            None => self.reach_of(inside).jump_len(),
        }
    }

    fn indirect_call_len(&self, piece: &Piece<Self>) -> usize {
        if piece.scratch.register.is_some() {
            8
        } else {
            4
        }
    }

    fn own_len(&self, piece: &Piece<Self>, own: Own) -> usize {
        let kept = match loaded(&piece.insn).or(piece.scratch.register) {
            Some(_) => 0,
            None => 8,
        };
        self.reach.address_len()
            + match own {
                Own::Address(_) => 0,
                Own::Literal(_) => kept + 4,
            }
    }

    fn breakpoints(out: &mut Output, len: usize) {
        code(out).breakpoints(len);
    }

    fn set_link(&self, out: &mut Output, call: &Insn) -> Result<(), OutOfRange> {
        code(out).address(LINK, call.end(), self.reach)
    }

    fn branch(
        out: &mut Output,
        branch: &Insn,
        distance: i64,
        opposite: bool,
    ) -> Result<(), OutOfRange> {
        let (bits, count, flip) = match branch.kind {
            Kind::TestBit => (branch.word & !0x0007_FFE0, 14, 1 << 24),
            Kind::CompareZero => (branch.word & !0x00FF_FFE0, 19, 1 << 24),
            _ => (branch.word & !0x00FF_FFE0, 19, 1),
        };
        let reach = 2 << count;
        if !(-reach..reach).contains(&distance) {
            return Err(OutOfRange);
        }
        let place = ((distance >> 2) as u32 & ((1 << count) - 1)) << 5;
        let flipped = if opposite { bits ^ flip } else { bits };
        code(out).word(flipped | place);
        Ok(())
    }

    /// Jumps to an address, or to the piece's pad.
    fn jump(&self, out: &mut Output, piece: &Piece<Self>, to: Target) -> Result<(), OutOfRange> {
        let Scratch { register, pad } = piece.scratch;
        let Some(pad) = pad else {
            return code(out).jump(to.to, self.reach_of(to.inside), register.unwrap_or(ZERO));
        };
        let (old, new) = (piece.old, out.bytes.len());
        out.exits.push(Moved { old, new });
        let mut code = code(out);
        code.keep(KEPT);
        code.jump(pad, Reach::Any, KEPT)
    }

    fn call(&self, out: &mut Output, _call: &Insn, to: Target) -> Result<(), OutOfRange> {
        code(out).jump_and_link(to.to, self.reach_of(to.inside), LINK, LINK)
    }

    /// A call through a register becomes a jump through it.
    fn indirect_call(&self, out: &mut Output, piece: &Piece<Self>) -> Result<(), OutOfRange> {
        let insn = &piece.insn;
        // The bit that makes it a call.
        let mut jump = insn.word & !(1 << 21);
        if let Some(register) = piece.scratch.register {
            code(out).mov(register, LINK);
            if insn.rn() == LINK {
                jump = jump & !(31 << 5) | u32::from(register) << 5;
            }
            if insn.bit(11) && insn.bit(24) && insn.rd() == LINK {
                jump = jump & !31 | u32::from(register);
            }
        }
        self.set_link(out, insn)?;
        code(out).word(jump);
        Ok(())
    }

    fn own(&self, out: &mut Output, piece: &Piece<Self>, own: Own) -> Result<(), OutOfRange> {
        match own {
            Own::Address(value) => code(out).address(piece.insn.rd(), value, self.reach),
            Own::Literal(value) => self.literal(out, &piece.insn, piece.scratch.register, value),
        }
    }
}

#[cfg(test)]
mod tests;
