//! AArch64 as planners see it, in the terms of [`code`].

use alloc::string::{String, ToString};
use alloc::vec;
use alloc::vec::Vec;
use core::iter;

use hodo_abi::Isa;

use super::asm::Reach;
use super::decode::Kind;
use super::entry;
use super::got_calls;
use super::origin::origin;
use super::regs::{ALL, FRAME, LINK, PLATFORM, SP, VOLATILE};
use super::relocate::{Link, Options, relocated_len};
use super::scan::{self, Scanned};
use super::steps::{self, FLAGS_BIT, Immovable, immovable_alone, mask};
use super::{Insn, JUMP, JUMP_REACH, LEN, encode, text};
use crate::code::{
    self, Convention, EntryFacts, InstructionSet, NotMovable, Origin, Read, Relocation, Room, Slot,
    SlotCall, Step, readers,
};
use crate::{JumpForm, Signing, Via, linked};

/// This instruction set.
pub struct Aarch64;

impl InstructionSet for Aarch64 {
    fn isa(&self) -> Isa {
        Isa::Aarch64
    }

    fn sweep_with<'a>(&self, code: &'a [u8], addr: u64, _globals: Option<u64>) -> code::Sweep<'a> {
        code::Sweep(readers::Kind::Aarch64(Sweep(scan::Sweep::new(code, addr))))
    }

    fn read<'a>(
        &self,
        code: &'a [u8],
        addr: u64,
        _globals: Option<u64>,
        room: &'a mut Room,
    ) -> Read<'a> {
        room.aarch64.clear();
        room.aarch64.extend(scan::Sweep::new(code, addr));
        Read {
            code,
            addr,
            insns: readers::Kind::Aarch64(&room.aarch64),
        }
    }

    fn has_short_addresses(&self) -> bool {
        false
    }

    fn has_short_distances(&self) -> bool {
        true
    }

    fn steps<'a>(&self, code: &'a [u8], addr: u64) -> code::Steps<'a> {
        let steps: Steps = steps::steps(code, addr).into_iter().map(step);
        code::Steps(readers::Kind::Aarch64(steps))
    }

    fn state(&self) -> u32 {
        mask(ALL)
    }

    fn flags(&self) -> u32 {
        FLAGS_BIT
    }

    /// What is assumed of functions that are called through registers or from other files.
    fn convention(&self) -> Option<Convention> {
        // Arguments, the address of the result, what nested functions are called with, and what functions preserve.
        const ENTRY: u32 = 0x3FFC_81FF | 1 << LINK;
        const RESULTS: u32 = 0xFF;
        Some(Convention {
            entry: ENTRY,
            volatile: mask(VOLATILE),
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
        LEN
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

    /// Instructions that sign the return address are landing instructions, too.
    fn landing(&self, code: &[u8]) -> u64 {
        match Insn::new(code, 0).hint() {
            // paciasp, pacibsp, bti c, bti jc
            Some(25 | 27 | 34 | 38) => LEN,
            _ => 0,
        }
    }

    /// The memory may be guarded (PROT_BTI).
    fn must_land(&self, code: &[u8]) -> bool {
        // paciasp, pacibsp, bti c, bti j, bti jc
        matches!(Insn::new(code, 0).hint(), Some(25 | 27 | 34 | 36 | 38))
    }

    fn signing(&self, code: &[u8]) -> Signing {
        match Insn::new(code, 0).hint() {
            Some(25) => Signing::A,
            Some(27) => Signing::B,
            _ => Signing::None,
        }
    }

    fn got_jumps(&self, bytes: &[u8], addr: u64) -> Vec<(u64, u64, u8)> {
        scan::got_jumps(bytes, addr).collect()
    }

    /// No single instruction calls through a slot.
    fn slot_call_len(&self) -> u8 {
        0
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
        let mut bytes = encode::RET.to_le_bytes().to_vec();
        bytes.extend(scan::nops(len.saturating_sub(bytes.len())));
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
            1027 => Relocation::Relative,
            // The plain 64-bit word, GLOB_DAT and JUMP_SLOT.
            257 | 1025 | 1026 => Relocation::Slot,
            _ => Relocation::Other,
        }
    }

    fn unit(&self) -> u64 {
        LEN
    }

    fn trap_len(&self) -> u64 {
        LEN
    }

    /// No jump is shorter than the long one.
    fn near(&self) -> &'static [JumpForm] {
        &[]
    }

    fn needs_register(&self) -> bool {
        false
    }

    fn usable(&self, free: u32) -> u32 {
        free & !(FLAGS_BIT | 1 << PLATFORM)
    }

    fn link(&self) -> u32 {
        1 << LINK
    }

    fn via(&self, _free: u32) -> Via {
        Via::Nothing
    }

    /// `b`; or `adrp`, `add` and `br` through a free register.
    fn jump(&self, via: Via) -> JumpForm {
        match via {
            Via::Free(_) => JumpForm {
                len: 12,
                back: (1 << 32) - (1 << 12),
                on: (1 << 32) - (1 << 12),
                register: via,
            },
            _ => JumpForm::plain(JUMP, JUMP_REACH, JUMP_REACH - LEN),
        }
    }
}

/// Iterates over code, instruction by instruction.
pub struct Sweep<'a>(scan::Sweep<'a>);

impl<'a> Sweep<'a> {
    /// Starts at the first byte of `code`, whose address is `addr`.
    #[must_use]
    pub fn new(code: &'a [u8], addr: u64) -> Self {
        Self(scan::Sweep::new(code, addr))
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
        reference: scanned.reference,
        padding: scanned.padding,
        slot: slot(insn, scanned.slot),
        word: None,
    }
}

/// Leaves out what all functions do: saving and restoring the link register, and making a frame, also by a store that
/// lowers the stack pointer.
#[inline]
fn slot(insn: &Insn, slot: Slot) -> Slot {
    let usual = match insn.kind {
        Kind::AddImmediate => matches!(insn.rd(), SP | FRAME),
        _ => {
            scan::link_distance(insn).is_some()
                || insn.memory().is_some_and(|memory| memory.moves.is_some())
        }
    };
    if usual { Slot::None } else { slot }
}

/// The instructions of code as a planner of probes sees them.
pub type Steps = iter::Map<vec::IntoIter<steps::Step>, fn(steps::Step) -> Step>;

/// The registers that [`step`] reports for an instruction.
#[inline]
pub(crate) fn registers(scanned: &Scanned) -> (u32, u32) {
    steps::registers(scanned)
}

#[inline]
fn step(step: steps::Step) -> Step {
    // Instructions between exclusive accesses can be moved, too, if the sequence is moved as a whole.
    let movable = matches!(
        step.immovable,
        None | Some(Immovable::SystemCall | Immovable::Reserved)
    );
    step.for_planners(step.uses, movable)
}

/// How code is moved into detours. The regions of probes contain whole sequences of exclusive loads and stores, which
/// can be moved, too.
#[must_use]
pub fn options<'a>(
    dead: &'a dyn Fn(u64) -> u32,
    pads: &'a dyn Fn(u64) -> Option<u64>,
) -> Options<'a> {
    Options {
        reach: Reach::Jump,
        dead,
        pads,
        link: Link::Original,
        system_calls: true,
        sequences: true,
    }
}
