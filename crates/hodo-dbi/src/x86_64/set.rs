//! What the neutral translator asks of this instruction set.

use std::cell::RefCell;
use std::sync::Arc;

use hodo_isa::x86_64::asm::{self, Label};
use hodo_isa::x86_64::decode::{Insn, Kind, fetched, is_too_long};

use super::X86_64;
use super::changing::may_write;
use super::emit::{Cold, INVALID, NOP, OtherWay};
use super::emitter::{Decoded, Emitter, Own};
use super::facts::{Facts, facts};
use super::instruction::seen;
use super::lower::lower;
use super::narrow::decode;
use super::recent::Compared;
use super::records::{analyze, is_special};
use crate::block::{Block, Noted, Transfer};
use crate::fragment::{Instruction, Item};
use crate::passes::Passes;
use crate::recent::Recent;
use crate::translate::{
    Analyzed, BlockInsn, Bytes, Emit, Ends, Insertion, Observe, Saved, Set, Translator, Version,
};

impl<'c> Emit<'c> for asm::Code<'c> {
    type Reference = asm::Field;

    fn begin(bytes: &'c mut Vec<u8>, base: u64) -> Self {
        Self::new(bytes, base)
    }

    fn jmp(&mut self, to: Label) {
        self.jmp(to);
    }

    fn jmp_to(&mut self, to: u64) {
        self.jmp_to(to);
    }
}

impl Set for X86_64 {
    type Code<'c> = asm::Code<'c>;
    type Insn = Insn;
    type Facts = Facts;
    type Cold = Cold;
    type Own = Own;

    const REACH: u64 = 1 << 30;
    const IS_ENTERED_ANYWHERE: bool = true;

    fn decode(bytes: &Bytes, len: usize) -> Option<Insn> {
        decode(bytes).filter(|insn| usize::from(insn.len) <= len)
    }

    fn is_cut(bytes: &Bytes, len: usize) -> bool {
        let whole = decode(bytes).map_or_else(|| fetched(bytes), |insn| usize::from(insn.len));
        whole > len
    }

    fn len(insn: Insn) -> u64 {
        insn.len.into()
    }

    fn instruction(
        translator: &mut Translator<'_, '_, Self>,
        pc: u64,
        bytes: &Bytes,
        insn: Insn,
    ) -> bool {
        Emitter(translator).instruction(pc, bytes, insn)
    }

    fn invalid(translator: &mut Translator<'_, '_, Self>, bytes: &Bytes) {
        // Too many bytes are another fault. Of opcodes that are none, the processor knows how many they are.
        if is_too_long(bytes) {
            translator.code.raw(bytes);
        }
        translator.code.raw(&INVALID);
    }

    fn cold(translator: &mut Translator<'_, '_, Self>, cold: Cold) {
        Emitter(translator).cold(cold);
    }

    fn passes_flags(translator: &mut Translator<'_, '_, Self>, pc: u64, insn: Insn) -> bool {
        matches!(insn.kind, Kind::Call | Kind::Group5)
            && Emitter(translator).is_call_for_flags(pc, insn)
    }

    fn words(translator: &mut Translator<'_, '_, Self>) {
        Emitter(translator).words();
    }

    fn exit(translator: &mut Translator<'_, '_, Self>, target: u64, cell: Label) -> u64 {
        translator.point(target, None);
        translator.code.jmp_m(asm::label(cell));
        let trap = translator.code.here();
        translator.point(target, None);
        translator.code.int3();
        translator.code.raw(&NOP);
        trap
    }
}

impl Observe for X86_64 {
    type Compared = Compared;

    const SYSTEM_CALL: &'static [u8] = &asm::SYSTEM_CALL;

    fn facts(own: &mut Own, pc: u64, bytes: &[u8]) -> Facts {
        facts(&mut own.factory, pc, bytes)
    }

    fn transfer(facts: &Facts) -> Transfer {
        facts.transfer
    }

    fn is_special(facts: &Facts) -> bool {
        is_special(facts)
    }

    fn ends(insn: Insn) -> Ends {
        match insn.kind {
            Kind::Plain => Ends::Never,
            Kind::Branch => Ends::Maybe,
            _ => Ends::Always,
        }
    }

    fn target(decoded: &Decoded) -> Option<u64> {
        let insn = decoded.insn.filter(|insn| insn.kind == Kind::Branch)?;
        let own = decoded.own();
        let distance = match own.len() - usize::from(insn.opcode) {
            2 => i64::from(own.last()?.cast_signed()),
            _ => i64::from(i32::from_le_bytes(*own.last_chunk::<4>()?)),
        };
        Some(decoded.next().wrapping_add_signed(distance))
    }

    fn analyze(
        id: u32,
        code: &[BlockInsn<'_, Facts>],
        notes: Vec<(u16, Noted)>,
        analyzed: Analyzed,
        keeps_flags: bool,
    ) -> Block {
        analyze(id, code, notes, analyzed, keeps_flags)
    }

    fn seen(decoded: &Decoded) -> Instruction {
        seen(decoded.pc, &decoded.bytes, decoded.insn, &decoded.facts)
    }

    fn lower(
        translator: &mut Translator<'_, '_, Self>,
        passes: &RefCell<Passes>,
        items: &[Item],
    ) -> Option<u64> {
        lower(translator, passes, items)
    }

    fn compared(
        translator: &mut Translator<'_, '_, Self>,
        code: &[Decoded],
        block: &Arc<Block>,
        recent: Recent,
    ) -> Compared {
        Emitter(translator).compared(code, block, recent)
    }

    fn taken(compared: &Compared) -> Option<Saved> {
        compared.saved()
    }

    fn compare(
        translator: &mut Translator<'_, '_, Self>,
        compared: &mut Compared,
        number: usize,
        decoded: &Decoded,
    ) {
        Emitter(translator).compare(compared, number, decoded);
    }

    fn head(
        translator: &mut Translator<'_, '_, Self>,
        block: &Block,
        inserted: (Insertion, Option<&mut Compared>),
        first: &Decoded,
    ) {
        Emitter(translator).head(block, inserted, first);
    }

    fn middle(translator: &mut Translator<'_, '_, Self>, block: &Block, number: u16, pc: u64) {
        Emitter(translator).middle(block, number, pc);
    }

    fn record(translator: &mut Translator<'_, '_, Self>, block: &Block, pc: u64) {
        Emitter(translator).record(block, pc);
    }

    fn branch(translator: &mut Translator<'_, '_, Self>, insn: Insn, bytes: &Bytes, to: Label) {
        let condition = bytes[usize::from(insn.opcode)] & 15;
        translator.code.jcc_by(condition, to);
    }

    fn may_write(facts: &Facts, on_stack: bool) -> bool {
        may_write(facts, on_stack)
    }

    fn entry(translator: &mut Translator<'_, '_, Self>, pc: u64) {
        Emitter(translator).entry(pc);
    }

    fn check(translator: &mut Translator<'_, '_, Self>, pc: u64, bytes: &[u8]) {
        Emitter(translator).check(pc, bytes);
    }

    fn other_way(label: Label, to: Label, pc: u64, bytes: Vec<u8>) -> Cold {
        Cold::OtherWay(OtherWay {
            label,
            to,
            pc,
            bytes,
        })
    }

    fn leave(label: Label, block: Arc<Block>, upto: u16, target: Version) -> Cold {
        Cold::Leave {
            label,
            block,
            upto,
            target,
        }
    }
}
