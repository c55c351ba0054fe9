//! This instruction set in the words of [`code`], which planners use.

use alloc::string::{String, ToString};
use alloc::vec;
use core::iter;

use super::decode::Insn;
use super::emit::Reach;
use super::entry::VOLATILE;
use super::liveness::{ALL, ENTRY, RESULTS, used};
use super::operand::imm_i;
use super::registers::{RA, SP, ZERO};
use super::relocate::{Link, Options, relocated_len};
use super::rows::Kind;
use super::scan::{self, Scanned};
use super::sequences::Part;
use super::steps::{self, Immovable, immovable_alone};
use crate::code::{self, Convention, Flow, How, Origin, Reference, Slot, Step, Transaction};

/// `lpad 0`, where indirect branches may land.
pub const LANDING: [u8; 4] = [0x17, 0, 0, 0];
/// `c.jr ra`
pub const RET: [u8; 2] = [0x82, 0x80];
/// The register that long jumps keep on the stack where none is free: `t1`. A jump through a link register is taken for a return.
pub const KEPT: u8 = 6;

/// What is supposed of functions that are called through registers or in other files.
pub const CONVENTION: Convention = Convention {
    entry: ENTRY,
    volatile: VOLATILE,
    results: RESULTS,
};

/// The frame pointer where there is one: `s0`.
const FRAME: u8 = 8;

/// Goes through code, instruction by instruction.
pub struct Sweep<'a>(scan::Sweep<'a>);

impl<'a> Sweep<'a> {
    /// Starts at the first byte of `code`, whose address is `addr`.
    #[must_use]
    pub fn new(code: &'a [u8], addr: u64, globals: Option<u64>) -> Self {
        Self(scan::Sweep::with_globals(code, addr, globals))
    }
}

impl Iterator for Sweep<'_> {
    type Item = code::Insn;

    #[inline]
    fn next(&mut self) -> Option<code::Insn> {
        self.0.next().map(|scanned| insn(&scanned))
    }
}

/// An instruction in the words of planners.
#[inline]
pub(crate) fn insn(scanned: &Scanned) -> code::Insn {
    let insn = &scanned.insn;
    code::Insn {
        addr: insn.addr,
        len: insn.len,
        flow: flow(scanned.flow),
        reference: match scanned.reference {
            // The upper part of an address is none.
            _ if insn.kind == Kind::Auipc => Reference::None,
            scan::Reference::None => Reference::None,
            scan::Reference::Forms(addr) => Reference::Forms(addr),
            scan::Reference::Constant(addr) => Reference::Constant(addr),
            scan::Reference::Memory(addr) => Reference::Memory(addr),
        },
        padding: scanned.padding,
        slot: slot(insn, scanned.slot),
        word: (insn.kind == Kind::Load(4)).then(|| imm_i(insn.word) as i32),
    }
}

/// Saving and restoring the link register is what all functions do; so is making a frame.
#[inline]
fn slot(insn: &Insn, slot: scan::Slot) -> Slot {
    let usual = match insn.kind {
        Kind::Load(8) => insn.rd() == RA,
        Kind::Store(8) => insn.rs2() == RA,
        Kind::Plain => matches!(insn.rd(), SP | FRAME),
        _ => false,
    };
    match slot {
        scan::Slot::None => Slot::None,
        _ if usual => Slot::None,
        scan::Slot::Stack(at) => Slot::Stack(at),
        scan::Slot::Frame(at) => Slot::Frame(at),
    }
}

#[inline]
fn flow(flow: scan::Flow) -> Flow {
    match flow {
        scan::Flow::Next => Flow::Next,
        scan::Flow::Branch(to) => Flow::Branch(to),
        scan::Flow::Jump(to) => Flow::Jump(to),
        scan::Flow::Call(to) => Flow::Call(to),
        scan::Flow::IndirectJump => Flow::IndirectJump,
        scan::Flow::IndirectCall => Flow::IndirectCall,
        scan::Flow::Return { by: RA } => Flow::Return { how: How::Plain },
        scan::Flow::Return { .. } => Flow::Return {
            how: How::OtherLink,
        },
        scan::Flow::Fault => Flow::Fault,
        scan::Flow::Invalid => Flow::Invalid,
    }
}

/// The instructions of code as a planner of probes sees them.
pub type Steps = iter::Map<vec::IntoIter<steps::Step>, fn(steps::Step) -> Step>;

/// Reads the instructions of code, which should be whole functions.
pub fn steps(code: &[u8], addr: u64) -> Steps {
    steps::steps(code, addr).into_iter().map(step)
}

/// The registers that [`step`] says of an instruction.
#[inline]
pub(crate) fn registers(scanned: &Scanned) -> (u32, u32) {
    let insn = &scanned.insn;
    let step = match insn.kind {
        Kind::Jalr | Kind::Ebreak => step(steps::alone(scanned)).reads,
        kind => used(kind, scanned.reads),
    };
    (step, scanned.writes)
}

#[inline]
fn step(step: steps::Step) -> Step {
    // Where they are moved as a whole, what is in sequences of `lr` and `sc` can be, too.
    let moved = matches!(
        step.immovable,
        None | Some(Immovable::SystemCall | Immovable::Reserved)
    );
    Step {
        addr: step.addr,
        flow: flow(step.flow),
        len: step.len,
        // What is called through a register and by another link register has a convention of its own.
        reads: match step.link {
            Some(link) if link != RA && step.flow == scan::Flow::IndirectCall => ALL,
            // Who handles it sees what a function would that is called.
            _ if step.immovable == Some(Immovable::Breakpoint) => ENTRY,
            _ => step.uses,
        },
        writes: step.writes,
        padding: step.padding,
        movable: moved,
        transaction: match step.part {
            Part::Outside => Transaction::None,
            Part::First => Transaction::Reserves,
            Part::Between | Part::Last => Transaction::Reserved,
        },
        leaves: step.leaves,
    }
}

/// How planned code is moved: with free registers, or by those places if there are none, and with its system calls. Regions of probes have whole sequences of `lr` and `sc`,
/// which can be moved, too; what functions displace has none.
#[must_use]
pub fn options<'a>(
    dead: &'a dyn Fn(u64) -> u32,
    pads: &'a dyn Fn(u64) -> Option<u64>,
) -> Options<'a> {
    Options {
        reach: Reach::Pair,
        dead,
        pads,
        link: Link::Original,
        system_calls: true,
        sequences: true,
    }
}

/// Whether whole instructions can run elsewhere. `dead` tells the registers that are dead at an instruction.
///
/// # Errors
/// Why they cannot.
pub fn movable(code: &[u8], from: u64, dead: &dyn Fn(u64) -> u32) -> Result<(), String> {
    let options = Options {
        sequences: false,
        ..options(dead, &|_| None)
    };
    relocated_len(code, from, &options)
        .map(drop)
        .map_err(|error| error.to_string())
}

/// Why the instruction at the start of `code` cannot be moved, as far as it tells alone; nothing if it can.
#[must_use]
pub fn immovable(code: &[u8], addr: u64) -> Option<String> {
    let why = immovable_alone(&Insn::new(code, addr))?;
    (why != Immovable::SystemCall).then(|| why.to_string())
}

/// What is known of the register that is jumped through, seen backwards.
enum Seen {
    /// It is this one, and nothing else is known.
    Register(u8),
    /// It is the sum of these.
    Sum(u8, u8),
    /// It is the sum of a distance that is loaded by the first, and the second.
    Entry(u8, u8),
}

/// Where a jump through a register goes, as far as the instructions before it tell: code and address of each, the jump first,
/// then backwards.
#[must_use]
pub fn origin<'c>(path: impl IntoIterator<Item = (&'c [u8], u64)>) -> Origin {
    let mut path = path.into_iter().map(|(code, addr)| Insn::new(code, addr));
    let Some(jump) = path.next() else {
        return Origin::Computed;
    };
    let mut seen = Seen::Register(jump.rs1());
    let mut leaves = false;
    let mut formed = false;
    for insn in path {
        if matches!(insn.kind, Kind::Jal | Kind::Jalr) && insn.rd() != ZERO {
            // What it returned, or what was kept.
            leaves = true;
            break;
        }
        let written = insn.general().1;
        leaves |= written & 1 << SP != 0 && imm_i(insn.word) > 0;
        let writes = |register: u8| written & 1 << register != 0;
        let is = |opcode: u32, f3: u32| {
            insn.kind == Kind::Plain && insn.word & 0x707F == f3 << 12 | opcode
        };
        let upper = insn.word >> 25;
        let is_add = is(0x33, 0) && upper == 0;
        match seen {
            Seen::Register(register) if writes(register) => {
                let copy = is(0x13, 0) && imm_i(insn.word) == 0
                    || is_add && insn.rs1() == ZERO
                    || is_add && insn.rs2() == ZERO;
                seen = match insn.kind {
                    Kind::Load(8) => return Origin::Loaded,
                    // A table of addresses of 32 bits.
                    Kind::Load(4) => return Origin::Loaded,
                    Kind::Auipc => return Origin::Loaded,
                    Kind::Plain if copy => Seen::Register(insn.rs1().max(insn.rs2_of_add(is_add))),
                    Kind::Plain if is_add => Seen::Sum(insn.rs1(), insn.rs2()),
                    // The lower part of an address.
                    Kind::Plain if is(0x13, 0) => Seen::Register(insn.rs1()),
                    _ => return Origin::Computed,
                };
            }
            Seen::Sum(a, b) if writes(a) || writes(b) => {
                let other = if writes(a) { b } else { a };
                match insn.kind {
                    Kind::Load(4) if formed || insn.rs1() == other => return Origin::Distances,
                    Kind::Load(4) => seen = Seen::Entry(insn.rs1(), other),
                    // Where the distance is from may be formed between the two: then it is not the table's start, which was
                    // used before.
                    Kind::Auipc => formed = true,
                    Kind::Plain if is(0x13, 0) && insn.rs1() == insn.rd() => {}
                    _ => return Origin::Computed,
                }
            }
            Seen::Entry(place, base) if writes(place) => {
                // sh2add
                let scaled = is(0x33, 4) && upper == 0x10;
                return match (is_add || scaled) && (insn.rs1() == base || insn.rs2() == base) {
                    true => Origin::Table,
                    false => Origin::Distances,
                };
            }
            Seen::Entry(_, base) if writes(base) && insn.kind == Kind::Plain && !is(0x13, 0) => {
                return Origin::Distances;
            }
            _ => {}
        }
    }
    match seen {
        // The frame is gone: this is a call at the function's end.
        Seen::Register(_) if leaves => Origin::Loaded,
        Seen::Register(_) => Origin::Open,
        Seen::Sum(..) => Origin::Computed,
        Seen::Entry(..) => Origin::Distances,
    }
}

impl Insn {
    /// The second source of an addition, else the register that is always zero.
    fn rs2_of_add(&self, is_add: bool) -> u8 {
        if is_add { self.rs2() } else { ZERO }
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;

    fn of(words: &[u32]) -> Origin {
        let code: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let at = |index: usize| (&code[index * 4..index * 4 + 4], index as u64 * 4);
        origin((0..words.len()).rev().map(at))
    }

    const JR_A5: u32 = 0x0007_8067;
    const LW_A5_A0: u32 = 0x0005_2783;
    const ADD_A5_A5_A4: u32 = 0x00E7_87B3;
    const ADD_A0_A0_A4: u32 = 0x00E5_0533;

    #[test]
    fn origins_of_jumps() {
        // jr a5, alone; ld a5, (a0) before it; mv a5, a1 and a call
        assert_eq!(of(&[JR_A5]), Origin::Open);
        assert_eq!(of(&[0x0005_3783, JR_A5]), Origin::Loaded);
        assert_eq!(of(&[0x0000_00EF, 0x0005_8793, JR_A5]), Origin::Loaded);
        // add a0, a0, a4; lw a5, (a0); add a5, a5, a4
        let table = [ADD_A0_A0_A4, LW_A5_A0, ADD_A5_A5_A4, JR_A5];
        assert_eq!(of(&table), Origin::Table);
        // sh2add a0, a0, a4 in place of the first
        let table = [0x20E5_4533, LW_A5_A0, ADD_A5_A5_A4, JR_A5];
        assert_eq!(of(&table), Origin::Table);
        // From another register than the table's, and from one that is formed behind the use of the table.
        let other = [0x00D5_0533, LW_A5_A0, ADD_A5_A5_A4, JR_A5];
        assert_eq!(of(&other), Origin::Distances);
        let formed = [
            ADD_A0_A0_A4,
            LW_A5_A0,
            0x0000_0717, // auipc a4, 0
            0xEFC7_0713, // addi a4, a4, -260
            ADD_A5_A5_A4,
            JR_A5,
        ];
        assert_eq!(of(&formed), Origin::Distances);
        // slli a5, a5, 2
        assert_eq!(of(&[0x0027_9793, JR_A5]), Origin::Computed);
    }
}
