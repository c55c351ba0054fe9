//! What passes see of an instruction.

use std::rc::Rc;

use iced_x86::{InstructionInfoFactory, Mnemonic, OpAccess, OpKind, Register, UsedMemory};

use hodo_isa::effects::Effects;
use hodo_isa::x86_64::decode::{Insn, Kind};

use super::X86_64;
use super::facts::{CALL, Facts, RESULT, facts, kinds};
use super::lanes::{lanes, row};
use super::narrow::decode;
use crate::block::Transfer;
use crate::fragment::{Instruction, Operand, RegisterBank, RegisterOperand, Rewrite, Seen};
use crate::inserted::{Lanes, Repeated, Scratch};

impl Rewrite for X86_64 {
    type Facts = Facts;

    const CALL: &'static [u8] = CALL;
    const RESULT: &'static [u8] = RESULT;

    fn instruction(place: (u64, u64), own: &[u8]) -> Option<Instruction> {
        instruction(place, own)
    }

    fn one_round(old: &Instruction) -> Option<(Instruction, Repeated)> {
        one_round(old)
    }

    fn lanes(instruction: &Instruction, scratch: [Scratch; 4]) -> Option<Lanes> {
        lanes(instruction, scratch)
    }

    fn row(instruction: &Instruction, scratch: [Scratch; 4]) -> Option<Lanes> {
        row(instruction, scratch)
    }
}

fn instruction((pc, next): (u64, u64), own: &[u8]) -> Option<Instruction> {
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

fn one_round(old: &Instruction) -> Option<(Instruction, Repeated)> {
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
    let round = Instruction {
        file: old.file.clone(),
        ..round
    };
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
        file: None,
    }
}

impl Seen for Facts {
    fn registers(&self) -> Vec<RegisterOperand> {
        let mut factory = InstructionInfoFactory::new();
        let info = factory.info(self.insn());
        let mut found: Vec<RegisterOperand> = Vec::new();
        for used in info.used_registers() {
            let (register, access) = (used.register(), used.access());
            let number = register.number() as u8;
            let (bank, number) = if register.is_gpr() {
                (
                    RegisterBank::General,
                    register.full_register().number() as u8,
                )
            } else if register.is_vector_register() {
                (RegisterBank::Vector, number)
            } else if register.is_k() {
                (RegisterBank::Mask, number)
            } else {
                (RegisterBank::Other, number)
            };
            let new = RegisterOperand {
                bank,
                number,
                size: register.size() as u32,
                is_read: !matches!(access, OpAccess::Write | OpAccess::CondWrite),
                is_written: !matches!(access, OpAccess::Read | OpAccess::CondRead),
            };
            let is_same = |old: &&mut RegisterOperand| {
                bank != RegisterBank::Other && (old.bank, old.number) == (bank, number)
            };
            match found.iter_mut().find(is_same) {
                Some(old) => {
                    old.size = old.size.max(new.size);
                    old.is_read |= new.is_read;
                    old.is_written |= new.is_written;
                }
                None => found.push(new),
            }
        }
        found
    }

    fn effects(&self) -> Effects<u16> {
        self.effects
    }

    fn transfer(&self) -> Transfer {
        self.transfer
    }

    fn is_gather(&self) -> bool {
        self.insn().is_vsib() && self.insn().op0_kind() == OpKind::Register
    }

    fn is_scatter(&self) -> bool {
        let stores = self.insn().op0_kind() == OpKind::Memory && self.insn().op_count() == 2;
        self.insn().is_vsib() && stores
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Banks, numbers and bytes of registers, and whether they are read and written.
    fn registers(own: &[u8]) -> Vec<(RegisterBank, u8, u32, bool, bool)> {
        let instruction = instruction((0x1000, 0x1000 + own.len() as u64), own);
        let mut found: Vec<_> = (instruction.expect("it is one").registers().into_iter())
            .map(|used| {
                (
                    used.bank,
                    used.number,
                    used.size,
                    used.is_read,
                    used.is_written,
                )
            })
            .collect();
        found.sort_by_key(|used| (used.0 as u8, used.1));
        found
    }

    #[test]
    fn instructions_say_which_registers_they_use() {
        use RegisterBank::{General, Mask, Vector};
        // add rax, [rbx + rcx * 8]
        let expected = [
            (General, 0, 8, true, true),
            (General, 1, 8, true, false),
            (General, 3, 8, true, false),
        ];
        assert_eq!(registers(&[0x48, 0x03, 0x04, 0xCB]), expected);
        // mul r9d; its other registers have no place in its bytes.
        let expected = [
            (General, 0, 8, true, true),
            (General, 2, 8, false, true),
            (General, 9, 4, true, false),
        ];
        assert_eq!(registers(&[0x41, 0xF7, 0xE1]), expected);
        // vaddps zmm1 {k2}, zmm3, zmm20: lanes that the mask does not select stay.
        let expected = [
            (Vector, 1, 64, true, true),
            (Vector, 3, 64, true, false),
            (Vector, 20, 64, true, false),
            (Mask, 2, 8, true, false),
        ];
        let bytes = [0x62, 0xB1, 0x64, 0x4A, 0x58, 0xCC];
        assert_eq!(registers(&bytes), expected);
        // mov ah, 1: one byte of register 0.
        assert_eq!(registers(&[0xB4, 1]), [(General, 0, 1, false, true)]);
    }
}
