//! x86-64 as planners see it, in the terms of [`code`](crate::code).

use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::ops::Range;

use hodo_abi::Isa;

use super::origin::origin;
use super::{JUMP, entry, operands, relocate, scan, steps, text};
use crate::code::readers::Kind;
use crate::code::{
    Convention, EntryFacts, InstructionSet, NotMovable, Operand, Origin, Read, Relocation, Room,
    Steps, Sweep,
};
use crate::{JumpForm, Via};

/// This instruction set.
pub struct X86_64;

impl InstructionSet for X86_64 {
    fn isa(&self) -> Isa {
        Isa::X86_64
    }

    fn sweep_with<'a>(&self, code: &'a [u8], addr: u64, _globals: Option<u64>) -> Sweep<'a> {
        Sweep(Kind::X86_64(scan::Sweep::new(code, addr)))
    }

    fn read<'a>(
        &self,
        code: &'a [u8],
        addr: u64,
        _globals: Option<u64>,
        _room: &'a mut Room,
    ) -> Read<'a> {
        Read {
            code,
            addr,
            insns: Kind::X86_64(()),
        }
    }

    fn has_short_addresses(&self) -> bool {
        false
    }

    fn operands(
        &self,
        code: (&[u8], u64),
        places: Range<usize>,
        ranges: (&Range<u64>, &Range<u64>),
        fixed: bool,
        found: &mut dyn FnMut(Operand),
    ) -> bool {
        operands::operands(code, places, ranges, fixed, found);
        true
    }

    fn steps<'a>(&self, code: &'a [u8], addr: u64) -> Steps<'a> {
        Steps(Kind::X86_64(steps::Steps::new(code, addr)))
    }

    fn state(&self) -> u32 {
        steps::FLAGS.into()
    }

    fn flags(&self) -> u32 {
        self.state()
    }

    fn convention(&self) -> Option<Convention> {
        None
    }

    fn text(&self, code: &[u8], addr: u64) -> String {
        text(code, addr)
    }

    fn immovable(&self, code: &[u8], addr: u64) -> Option<String> {
        steps::immovable(code, addr).map(ToString::to_string)
    }

    fn longest(&self) -> u64 {
        15
    }

    fn movable(
        &self,
        code: &[u8],
        from: u64,
        _dead: &dyn Fn(u64) -> u32,
    ) -> Result<(), NotMovable> {
        relocate::relocated_len(code, from)
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
        entry::is_only_passed_on(code, addr, read, is_dropped)
    }

    fn stores(&self, code: &[u8]) -> bool {
        entry::stores(code)
    }

    fn entry_frame(&self) -> i32 {
        8
    }

    fn calls_push(&self) -> bool {
        true
    }

    fn landing(&self, code: &[u8]) -> u64 {
        match code.starts_with(&scan::LANDING) {
            true => scan::LANDING.len() as u64,
            false => 0,
        }
    }

    fn got_jumps(&self, bytes: &[u8], addr: u64) -> Vec<(u64, u64, u8)> {
        scan::got_jumps(bytes, addr).collect()
    }

    fn slot_call_len(&self) -> u8 {
        6
    }

    fn nops(&self, len: usize) -> Vec<u8> {
        scan::nop(len).to_vec()
    }

    fn ret(&self, len: usize) -> Vec<u8> {
        let mut bytes = vec![0xC3];
        if len > 1 {
            bytes.extend(scan::nop(len - 1));
        }
        bytes
    }

    fn origin(&self, path: &mut dyn Iterator<Item = (&[u8], u64)>) -> Origin {
        origin(path)
    }

    fn is_signal_return(&self, code: &[u8]) -> bool {
        entry::is_signal_return(code)
    }

    fn is_thunk(&self, name: &str) -> bool {
        name.starts_with("x86_indirect_thunk") || name.starts_with("llvm_retpoline")
    }

    fn relocation(&self, kind: u32) -> Relocation {
        match kind {
            8 => Relocation::Relative,
            // GLOB_DAT and JUMP_SLOT.
            6 | 7 => Relocation::Slot,
            _ => Relocation::Other,
        }
    }

    fn fills(&self, byte: u8) -> bool {
        matches!(byte, 0 | 0x90 | 0xCC)
    }

    fn unit(&self) -> u64 {
        1
    }

    fn trap_len(&self) -> u64 {
        1
    }

    fn near(&self) -> &'static [JumpForm] {
        const { &[JumpForm::plain(2, 126, 129)] }
    }

    fn has_puns(&self) -> bool {
        true
    }

    fn needs_register(&self) -> bool {
        false
    }

    fn usable(&self, _free: u32) -> u32 {
        0
    }

    fn link(&self) -> u32 {
        0
    }

    fn via(&self, _free: u32) -> Via {
        Via::Nothing
    }

    fn jump(&self, _via: Via) -> JumpForm {
        JumpForm::plain(JUMP, (1 << 31) - JUMP, (1 << 31) - 1 + JUMP)
    }
}
