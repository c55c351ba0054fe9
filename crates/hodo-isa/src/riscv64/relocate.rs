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
use crate::linked::relocate::{Form, Output, Piece, Rules, Target};
pub use crate::linked::relocate::{Relocated, relocate, relocate_apart, relocated_len};
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

/// Bytes of a jump that saves its register.
pub const EXIT: u64 = KEEP + JUMP;

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

/// Forms an address.
#[derive(Clone, Copy)]
pub struct Address(u64);

/// The additional register of a moved instruction.
#[derive(Clone, Copy)]
pub struct Scratch {
    register: u8,
    /// It is [`KEPT`], saved on the stack, and the instruction leaves through this pad.
    pad: Option<u64>,
}

impl Options<'_> {
    fn reach_of(&self, inside: bool) -> Reach {
        match inside {
            true => Reach::Jump,
            false => self.reach,
        }
    }
}

/// Appends to moved code.
fn code(out: &mut Output) -> Code<'_> {
    Code::new(&mut out.bytes, out.to)
}

impl Rules for Options<'_> {
    type Insn = Insn;
    type Own = Address;
    type Scratch = Scratch;
    type Why = Immovable;

    const BRANCH_REACH: usize = 4094;

    fn decode(code: &[u8], addr: u64) -> Insn {
        Insn::new(code, addr)
    }

    fn len(insn: &Insn) -> usize {
        insn.len.into()
    }

    fn flow(insn: &Insn) -> Flow {
        insn.flow()
    }

    fn plain(insn: &Insn) -> Form<Address> {
        if insn.kind == Kind::Auipc && insn.rd() != ZERO {
            Form::Own(Address(insn.addr.wrapping_add_signed(imm_u(insn.word))))
        } else if insn.is_nop() {
            Form::Drop
        } else {
            Form::Copy
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

    fn scratch(&self, insn: &Insn, form: Form<Address>) -> Option<Scratch> {
        let link = 1 << insn.rd();
        let except = match form {
            // The link register is read before it is written.
            Form::IndirectCall if insn.rd() == insn.rs1() => link,
            Form::Call(_) if form.needs_register(self) => link,
            _ if form.needs_register(self) => 0,
            _ => {
                return Some(Scratch {
                    register: ZERO,
                    pad: None,
                });
            }
        };
        // A register that the instruction reads is not dead; one that only receives its result may be.
        let dead = (self.dead)(insn.addr) & !except & !insn.reads().x;
        let pad = match choose(dead) {
            Some(_) => None,
            None => Some((self.pads)(insn.addr)?),
        };
        let register = choose(dead).unwrap_or(KEPT);
        Some(Scratch { register, pad })
    }

    fn address_len(&self) -> usize {
        self.reach.address_len()
    }

    fn jump_len(&self, scratch: Scratch, inside: bool) -> usize {
        let keep = scratch.pad.map_or(0, |_| KEEP as usize);
        keep + self.reach_of(inside).jump_len()
    }

    fn indirect_call_len(&self, piece: &Piece<Self>) -> usize {
        if piece.scratch.pad.is_some() {
            self.jump_len(piece.scratch, false)
        } else if piece.insn.rd() == piece.insn.rs1() {
            8
        } else {
            4
        }
    }

    fn own_len(&self, _piece: &Piece<Self>, _own: Address) -> usize {
        self.reach.address_len()
    }

    fn breakpoints(out: &mut Output, len: usize) {
        code(out).breakpoints(len);
    }

    fn set_link(&self, out: &mut Output, call: &Insn) -> Result<(), OutOfRange> {
        code(out).address(call.rd(), call.end(), self.reach)
    }

    fn branch(
        out: &mut Output,
        branch: &Insn,
        distance: i64,
        opposite: bool,
    ) -> Result<(), OutOfRange> {
        let condition = funct3(branch.word) ^ u32::from(opposite);
        code(out).word(b(condition, branch.rs1(), branch.rs2(), distance));
        Ok(())
    }

    /// Jumps to an address, or to the piece's pad.
    fn jump(&self, out: &mut Output, piece: &Piece<Self>, to: Target) -> Result<(), OutOfRange> {
        let Scratch { register, pad } = piece.scratch;
        let Some(pad) = pad else {
            return code(out).jump(to.to, self.reach_of(to.inside), register);
        };
        let (old, new) = (piece.old, out.bytes.len());
        out.exits.push(Moved { old, new });
        let mut code = code(out);
        code.keep(register);
        code.jump(pad, self.reach, register)
    }

    fn call(&self, out: &mut Output, call: &Insn, to: Target) -> Result<(), OutOfRange> {
        let link = call.rd();
        code(out).jump_and_link(to.to, self.reach_of(to.inside), link, link)
    }

    fn indirect_call(&self, out: &mut Output, piece: &Piece<Self>) -> Result<(), OutOfRange> {
        let (insn, link) = (&piece.insn, piece.insn.rd());
        if piece.scratch.pad.is_some() {
            // An instruction before it determines the target, to which the pad jumps.
            self.set_link(out, insn)?;
            let pad = Target {
                to: 0,
                inside: false,
            };
            return self.jump(out, piece, pad);
        }
        let (mut base, mut distance) = (insn.rs1(), imm_i(insn.word));
        if link == base {
            base = piece.scratch.register;
            code(out).word(i(OP_IMM, 0, base, link, distance));
            distance = 0;
        }
        self.set_link(out, insn)?;
        code(out).word(i(JALR, 0, ZERO, base, distance));
        Ok(())
    }

    fn own(
        &self,
        out: &mut Output,
        piece: &Piece<Self>,
        Address(value): Address,
    ) -> Result<(), OutOfRange> {
        code(out).address(piece.insn.rd(), value, self.reach)
    }
}

#[cfg(test)]
mod tests;
