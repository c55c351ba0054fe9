//! RISC-V as planners see it, in the terms of [`code`].

use super::regs::KEPT;
use alloc::string::{String, ToString};
use alloc::vec;
use alloc::vec::Vec;
use core::iter;

use hodo_abi::Isa;

use super::asm::Reach;
use super::decode::operand::imm_i;
use super::decode::{Insn, Kind};
use super::entry::{self, VOLATILE};
use super::got_calls;
use super::origin::origin;
use super::regs::{ALL, ENTRY, RA, RESULTS, SP};
use super::relocate::{Link, Options, choose, relocated_len};
use super::scan::{self, Scanned};
use super::steps::used;
use super::steps::{self, FIXED, Immovable, immovable_alone};
use super::text;
use super::{FAR, JUMP, KEEP};
use crate::code::{
    self, Convention, EntryFacts, InstructionSet, NotMovable, Origin, Read, Reference, Relocation,
    Room, Slot, SlotCall, Step, readers,
};
use crate::{JumpForm, Via, linked};

/// `lpad 0`, which marks targets of indirect branches.
pub const LANDING: [u8; 4] = [0x17, 0, 0, 0];
/// `c.jr ra`
pub const RET: [u8; 2] = [0x82, 0x80];

/// This instruction set.
pub struct Riscv64;

impl InstructionSet for Riscv64 {
    fn isa(&self) -> Isa {
        Isa::Riscv64
    }

    fn sweep_with<'a>(&self, code: &'a [u8], addr: u64, globals: Option<u64>) -> code::Sweep<'a> {
        code::Sweep(readers::Kind::Riscv64(Sweep::new(code, addr, globals)))
    }

    fn read<'a>(
        &self,
        code: &'a [u8],
        addr: u64,
        globals: Option<u64>,
        room: &'a mut Room,
    ) -> Read<'a> {
        room.riscv64.clear();
        room.kept.prepare();
        let sweep = scan::Sweep::by(&mut room.kept, code, addr, globals);
        sweep.for_each(|insn| room.riscv64.push(insn));
        Read {
            code,
            addr,
            insns: readers::Kind::Riscv64(&room.riscv64),
        }
    }

    fn globals(&self, code: &[u8], addr: u64) -> Option<u64> {
        scan::globals(code, addr)
    }

    fn has_short_addresses(&self) -> bool {
        true
    }

    fn steps<'a>(&self, code: &'a [u8], addr: u64) -> code::Steps<'a> {
        let steps: Steps = steps::steps(code, addr).into_iter().map(step);
        code::Steps(readers::Kind::Riscv64(steps))
    }

    fn state(&self) -> u32 {
        ALL
    }

    fn flags(&self) -> u32 {
        0
    }

    /// What is assumed of functions that are called through registers or from other files.
    fn convention(&self) -> Option<Convention> {
        Some(Convention {
            entry: ENTRY,
            volatile: VOLATILE,
            results: RESULTS,
        })
    }

    fn text(&self, code: &[u8], addr: u64) -> String {
        text(code, addr)
    }

    /// Judged by this instruction alone.
    fn immovable(&self, code: &[u8], addr: u64) -> Option<String> {
        let why = immovable_alone(&Insn::new(code, addr))?;
        (why != Immovable::SystemCall).then(|| why.to_string())
    }

    fn longest(&self) -> u64 {
        4
    }

    fn movable(&self, code: &[u8], from: u64, dead: &dyn Fn(u64) -> u32) -> Result<(), NotMovable> {
        let options = Options {
            sequences: false,
            ..options(dead, &|_| None)
        };
        relocated_len(code, from, &options)
            .map(drop)
            .map_err(NotMovable::from)
    }

    fn entry_facts(&self, code: &[u8], addr: u64) -> EntryFacts {
        entry::entry_facts(code, addr)
    }

    fn is_only_passed_on(
        &self,
        code: &[u8],
        addr: u64,
        read: u64,
        is_dropped: &dyn Fn(u64) -> bool,
    ) -> bool {
        linked::entry::is_only_passed_on::<Scanned>(code, addr, read, is_dropped)
    }

    fn stores(&self, code: &[u8]) -> bool {
        entry::stores(code)
    }

    fn landing(&self, code: &[u8]) -> u64 {
        match code.starts_with(&LANDING) {
            true => LANDING.len() as u64,
            false => 0,
        }
    }

    fn got_jumps(&self, bytes: &[u8], addr: u64) -> Vec<(u64, u64, u8)> {
        scan::got_jumps(bytes, addr).collect()
    }

    fn slot_call_len(&self) -> u8 {
        12
    }

    fn slot_loads(&self, code: &[u8], addr: u64) -> Vec<(u64, u64)> {
        got_calls::loads(code, addr)
    }

    fn slot_call(&self, code: &[u8], addr: u64) -> Option<SlotCall> {
        got_calls::called(code, addr)
    }

    fn nops(&self, len: usize) -> Vec<u8> {
        scan::nops(len).collect()
    }

    fn ret(&self, len: usize) -> Vec<u8> {
        let mut bytes = RET.to_vec();
        if len > RET.len() {
            bytes.extend(scan::nops(len - RET.len()));
        }
        bytes
    }

    fn origin(&self, path: &mut dyn Iterator<Item = (&[u8], u64)>) -> Origin {
        origin(path)
    }

    fn is_signal_return(&self, code: &[u8]) -> bool {
        entry::is_signal_return(code)
    }

    fn relocation(&self, kind: u32) -> Relocation {
        match kind {
            3 => Relocation::Relative,
            // The plain 64-bit word, and JUMP_SLOT.
            2 | 5 => Relocation::Slot,
            _ => Relocation::Other,
        }
    }

    fn unit(&self) -> u64 {
        2
    }

    fn trap_len(&self) -> u64 {
        2
    }

    fn near(&self) -> &'static [JumpForm] {
        const {
            &[
                JumpForm::plain(4, 1 << 20, (1 << 20) - 2),
                JumpForm::plain(2, 1 << 11, (1 << 11) - 2),
            ]
        }
    }

    fn needs_register(&self) -> bool {
        true
    }

    fn usable(&self, free: u32) -> u32 {
        free & !FIXED
    }

    fn link(&self) -> u32 {
        1 << RA
    }

    fn via(&self, free: u32) -> Via {
        match choose(self.usable(free)) {
            Some(register) => Via::Free(register),
            None => Via::Kept(KEPT),
        }
    }

    /// `auipc` and `jalr`, after the instructions that save the register.
    fn jump(&self, via: Via) -> JumpForm {
        let kept = kept_len(via);
        JumpForm {
            len: kept + JUMP,
            back: (1 << 31) + (1 << 11) - kept,
            on: kept + (1 << 31) - (1 << 11) - 2,
            register: via,
        }
    }

    fn far_jump(&self, via: Via) -> Option<JumpForm> {
        (via != Via::Nothing).then_some(JumpForm {
            len: kept_len(via) + FAR,
            back: u64::MAX,
            on: u64::MAX,
            register: via,
        })
    }
}

/// Bytes of the instructions that save a jump's register.
const fn kept_len(via: Via) -> u64 {
    match via {
        Via::Kept(_) => KEEP,
        Via::Nothing | Via::Free(_) => 0,
    }
}

/// The frame pointer, if there is one: `s0`.
const FRAME: u8 = 8;

/// Iterates over code, instruction by instruction.
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

/// An instruction in the terms of planners.
#[inline]
pub(crate) fn insn(scanned: &Scanned) -> code::Insn {
    let insn = &scanned.insn;
    code::Insn {
        addr: insn.addr,
        len: insn.len,
        flow: scanned.flow,
        reference: match insn.kind {
            // The upper part alone is not an address.
            Kind::Auipc => Reference::None,
            _ => scanned.reference,
        },
        padding: scanned.padding,
        slot: slot(insn, scanned.slot),
        word: (insn.kind == Kind::Load(4)).then(|| imm_i(insn.word) as i32),
    }
}

/// Leaves out what all functions do: saving and restoring the link register, and making a frame.
#[inline]
fn slot(insn: &Insn, slot: Slot) -> Slot {
    let usual = match insn.kind {
        Kind::Load(8) => insn.rd() == RA,
        Kind::Store(8) => insn.rs2() == RA,
        Kind::Plain => matches!(insn.rd(), SP | FRAME),
        _ => false,
    };
    if usual { Slot::None } else { slot }
}

/// The instructions of code as a planner of probes sees them.
pub type Steps = iter::Map<vec::IntoIter<steps::Step>, fn(steps::Step) -> Step>;

/// The registers that [`step`] reports for an instruction.
#[inline]
pub(crate) fn registers(scanned: &Scanned) -> (u32, u32) {
    let insn = &scanned.insn;
    let step = match insn.kind {
        Kind::Jalr | Kind::Ebreak => step(steps::alone(scanned)).reads,
        kind => used(kind, scanned.effects.reads),
    };
    (step, scanned.effects.writes)
}

#[inline]
fn step(step: steps::Step) -> Step {
    // Instructions between `lr` and `sc` can be moved, too, if the sequence is moved as a whole.
    let moved = matches!(
        step.immovable,
        None | Some(Immovable::SystemCall | Immovable::Reserved)
    );
    let reads = match step.link {
        // A function that is called through a register and by another link register has a convention of its own.
        Some(link) if link != RA && step.flow == scan::Flow::IndirectCall => ALL,
        // The breakpoint's handler sees what a callee would see.
        _ if step.immovable == Some(Immovable::Breakpoint) => ENTRY,
        _ => step.uses,
    };
    step.for_planners(reads, moved)
}

/// How planned code is moved: through free registers, or through these pads if none is free, and with its system calls.
/// The regions of probes contain whole sequences of `lr` and `sc`, which can be moved, too; displaced instructions of
/// functions contain none.
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
