//! What passes see of an instruction.

use std::rc::Rc;

use iced_x86::{InstructionInfoFactory, Register, UsedMemory};

use hodo_isa::x86_64::decode::{Kind, decode};

use super::analyze::{facts, kinds};
use super::decoded::Decoded;
use crate::fragment::{Instruction, Operand};

/// An instruction that a pass puts in the place of one: that is at the first address, and the next one at the second.
pub(crate) fn instruction((pc, next): (u64, u64), own: &[u8]) -> Option<Instruction> {
    let mut bytes = [0; 16];
    bytes.get_mut(..own.len())?.copy_from_slice(own);
    let insn = decode(&bytes)?;
    if usize::from(insn.len) != own.len() {
        return None;
    }
    let decoded = Decoded {
        pc,
        bytes,
        insn: Some(insn),
        facts: Rc::new(facts(&mut InstructionInfoFactory::new(), pc, own)),
    };
    Some(Instruction {
        next,
        is_original: false,
        ..seen(&decoded)
    })
}

/// What passes see of an instruction.
pub(super) fn seen(decoded: &Decoded) -> Instruction {
    let operands = decoded.facts.memory.iter().map(|used| Operand {
        kinds: kinds(used.access()),
        size: used.memory_size().size() as u32,
        has_address: has_address(used) && !decoded.facts.is_of_bit_string(),
    });
    Instruction {
        pc: decoded.pc,
        bytes: decoded.bytes,
        len: decoded.own().len() as u8,
        next: decoded.next(),
        operands: operands.collect(),
        facts: Rc::clone(&decoded.facts),
        is_original: true,
        continues: decoded.insn.is_some_and(|insn| insn.kind == Kind::Plain),
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
