//! What passes see of an instruction.

use std::rc::Rc;

use iced_x86::{InstructionInfoFactory, Mnemonic, Register, UsedMemory};

use hodo_isa::x86_64::decode::{Insn, Kind};

use super::analyze::{Facts, facts, kinds};
use super::narrow::decode;
use crate::fragment::{Instruction, Operand};
use crate::inserted::Repeated;

/// An instruction that a pass puts in the place of one: that is at the first address, and the next one at the second.
pub(crate) fn instruction((pc, next): (u64, u64), own: &[u8]) -> Option<Instruction> {
    let mut bytes = [0; 16];
    bytes.get_mut(..own.len())?.copy_from_slice(own);
    let insn = decode(&bytes)?;
    if usize::from(insn.len) != own.len() {
        return None;
    }
    let facts = Rc::new(facts(&mut InstructionInfoFactory::new(), pc, own));
    Some(Instruction {
        next,
        is_original: false,
        ..seen(pc, &bytes, Some(insn), &facts)
    })
}

/// One round of a repeated string instruction: the instruction without its prefix, and how it is repeated. `None`: it is no
/// such instruction, or its addresses have four bytes.
pub(crate) fn one_round(old: &Instruction) -> Option<(Instruction, Repeated)> {
    const EQUAL: u8 = 0xF3;
    const DIFFERENT: u8 = 0xF2;
    const SHORT_ADDRESSES: u8 = 0x67;
    let insn = old.facts.insn();
    let has_prefix = insn.has_rep_prefix() || insn.has_repne_prefix();
    if !has_prefix || !insn.is_string_instruction() || !old.continues {
        return None;
    }
    let is_rex = |byte: &&u8| matches!(byte, 0x40..=0x4F);
    let is_repeat = |byte: &&u8| matches!(**byte, EQUAL | DIFFERENT);
    // The prefixes, maybe one for sizes of registers, and a byte for the operation.
    let (_, front) = old.bytes().split_last()?;
    let prefixes = &front[..front.len() - usize::from(front.last().as_ref().is_some_and(is_rex))];
    let mut repeats = prefixes.iter().filter(is_repeat).copied();
    let prefix = repeats.next()?;
    if prefixes.contains(&SHORT_ADDRESSES) || repeats.next().is_some() {
        return None;
    }
    let without: Vec<u8> = old
        .bytes()
        .iter()
        .filter(|byte| !is_repeat(byte))
        .copied()
        .collect();
    let round = instruction((old.pc, old.next), &without).filter(|round| round.continues)?;
    let repeated = Repeated {
        while_equal: compares(insn.mnemonic()).then_some(prefix == EQUAL),
        prefix,
        len: u8::try_from(old.next - old.pc).ok()?,
    };
    Some((round, repeated))
}

/// Whether a string instruction compares.
fn compares(mnemonic: Mnemonic) -> bool {
    matches!(
        mnemonic,
        Mnemonic::Cmpsb
            | Mnemonic::Cmpsw
            | Mnemonic::Cmpsd
            | Mnemonic::Cmpsq
            | Mnemonic::Scasb
            | Mnemonic::Scasw
            | Mnemonic::Scasd
            | Mnemonic::Scasq
    )
}

/// What passes see of an instruction.
pub(super) fn seen(
    pc: u64,
    bytes: &[u8; 16],
    insn: Option<Insn>,
    facts: &Rc<Facts>,
) -> Instruction {
    let len = insn.map_or(1, |insn| insn.len);
    let operands = facts.memory.iter().map(|used| Operand {
        kinds: kinds(used.access()),
        size: used.memory_size().size() as u32,
        has_address: has_address(used) && !facts.is_of_bit_string(),
    });
    Instruction {
        pc,
        bytes: *bytes,
        len,
        next: pc + u64::from(len),
        operands: operands.collect(),
        facts: Rc::clone(facts),
        is_original: true,
        continues: insn.is_some_and(|insn| insn.kind == Kind::Plain),
        origin: None,
        part: None,
    }
}

/// Whether the address of an operand can be computed in one register.
fn has_address(used: &UsedMemory) -> bool {
    let is_general = |register: Register| register == Register::None || register.is_gpr64();
    let (base, index) = (used.base(), used.index());
    let is_thread = matches!(used.segment(), Register::FS);
    let is_known = base == Register::RIP || is_general(base) && is_general(index);
    is_known
        && used.segment() != Register::GS
        && !(is_thread && base != Register::None && index != Register::None)
        && (!is_thread || i32::try_from(used.displacement().cast_signed()).is_ok())
}
