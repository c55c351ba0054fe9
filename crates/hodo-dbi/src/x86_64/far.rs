//! Operands relative to the instruction pointer that are too far from the translation.
//!
//! A program may have code in the middle of a reservation of many gigabytes. The cache is farther from it than a
//! displacement reaches. So the address is put into a register that the instruction does not use.

use hodo_isa::x86_64::asm::{QWORD, RAX, RCX, Reg, gs};
use hodo_isa::x86_64::decode::Insn;

use super::block;
use super::emit::{INVALID, R11};
use super::emitter::Emitter;
use super::facts::facts;
use super::kept;
use crate::translate::Saved;

/// Bits of a ModRM byte: a base and a displacement of four bytes.
const LONG_DISPLACEMENT: u8 = 0x80;
const REG: u8 = 0x38;
/// Bits of a REX prefix: the base is one of the upper eight registers.
const REX: u8 = 0x40;
const REX_B: u8 = 1;
/// The same in a VEX or EVEX prefix of three or more bytes, inverted.
const VEX_B: u8 = 1 << 5;
/// Prefixes that may come before others.
const LEGACY: [u8; 11] = [
    0x26, 0x2E, 0x36, 0x3E, 0x64, 0x65, 0x66, 0x67, 0xF0, 0xF2, 0xF3,
];

impl Emitter<'_, '_, '_> {
    /// Copies an instruction with an operand at a far address.
    pub(super) fn copy_far(&mut self, pc: u64, bytes: &[u8; 16], insn: Insn, target: u64) {
        let own = &bytes[..usize::from(insn.len)];
        let used = facts(&mut self.own().factory, pc, own).used();
        let state = self.last_state();
        let (number, kept) = match used {
            used if used & 1 << 1 == 0 => (1, kept::RCX),
            used if used & 1 == 0 => (0, kept::RAX),
            _ => (11, kept::R11),
        };
        let saved = Saved {
            kept: state.kept | kept,
            ..state
        };
        let Some(copy) = with_base(own, insn, number) else {
            self.code.raw(&INVALID);
            return;
        };
        let (register, slot): (Reg, u32) = match number {
            0 => (RAX, block::RAX),
            1 => (RCX, block::RCX),
            _ => (R11, block::R11),
        };
        self.code.mov_mr(gs(slot), register);
        let known = Saved {
            is_known: true,
            ..saved
        };
        self.inside(pc, known);
        self.code.movabs_ri(register.part(QWORD), target);
        self.inside(
            pc,
            Saved {
                is_own: true,
                ..known
            },
        );
        self.code.raw(&copy);
        self.inside(pc + u64::from(insn.len), known);
        self.code.mov_rm(register, gs(slot));
    }
}

/// An instruction with a register as base in place of the instruction pointer, and no distance from that. `None`: it
/// cannot have this register.
fn with_base(own: &[u8], insn: Insn, number: u8) -> Option<Vec<u8>> {
    let mut copy = own.to_vec();
    let (modrm, at) = (usize::from(insn.modrm), usize::from(insn.rip));
    copy[modrm] = LONG_DISPLACEMENT | own[modrm] & REG | number & 7;
    copy[at..at + 4].fill(0);
    let upper = number >> 3;
    // The processor ignores this bit, which is inverted there, if there is no base.
    let prefixes = own.iter().take_while(|byte| LEGACY.contains(byte)).count();
    if matches!(own.get(prefixes), Some(0xC4 | 0x62)) {
        copy[prefixes + 1] |= VEX_B;
    }
    if insn.rex != 0 {
        let rex = copy.iter().position(|&byte| byte == insn.rex)?;
        copy[rex] = insn.rex & !REX_B | upper;
    } else if upper != 0 {
        // The prefix is before the opcode, which has one byte, or begins with this one.
        let opcode = usize::from(insn.opcode);
        let first = own[..opcode].iter().position(|&byte| byte == 0x0F);
        let has_vex = matches!(own.get(prefixes), Some(0xC4 | 0xC5 | 0x62));
        if modrm != opcode + 1 || has_vex || own.len() > 14 {
            return None;
        }
        copy.insert(first.unwrap_or(opcode), REX | REX_B);
    }
    Some(copy)
}

#[cfg(test)]
mod tests {
    use hodo_isa::x86_64::decode::decode;
    use iced_x86::{Decoder, DecoderOptions, Register};

    use super::*;

    #[test]
    fn the_base_is_the_only_difference() {
        let codes: [&[u8]; 10] = [
            &[0x8B, 0x05, 1, 0, 0, 0],                         // mov eax, [rip + 1]
            &[0x48, 0x8D, 0x15, 1, 2, 3, 4],                   // lea rdx, [rip + ..]
            &[0xF0, 0x48, 0x0F, 0xB1, 0x0D, 1, 2, 3, 4],       // lock cmpxchg [rip + ..], rcx
            &[0xF0, 0x0F, 0xB1, 0x0D, 1, 2, 3, 4],             // lock cmpxchg [rip + ..], ecx
            &[0x66, 0x0F, 0x6F, 0x05, 1, 2, 3, 4],             // movdqa xmm0, [rip + ..]
            &[0xC5, 0xF8, 0x28, 0x05, 1, 2, 3, 4],             // vmovaps xmm0, [rip + ..]
            &[0xC4, 0xC1, 0x78, 0x28, 0x05, 1, 2, 3, 4],       // the same with an ignored bit
            &[0x2E, 0xC4, 0xC1, 0x78, 0x28, 0x05, 1, 2, 3, 4], // and another prefix
            &[0x62, 0xD1, 0x7C, 0x48, 0x28, 0x05, 1, 2, 3, 4], // vmovaps zmm0, [rip + ..], with that bit
            &[0x64, 0xC7, 0x05, 1, 2, 3, 4, 9, 8, 7, 6],       // mov dword fs:[rip + ..], ..
        ];
        let read = |bytes: &[u8]| Decoder::new(64, bytes, DecoderOptions::NONE).decode();
        for code in codes {
            let mut bytes = [0; 16];
            bytes[..code.len()].copy_from_slice(code);
            let insn = decode(&bytes).unwrap();
            for (number, base) in [(0, Register::RAX), (1, Register::RCX), (11, Register::R11)] {
                let Some(copy) = with_base(code, insn, number) else {
                    assert_eq!(
                        (matches!(code[0], 0x2E | 0x62 | 0xC4 | 0xC5), number),
                        (true, 11)
                    );
                    continue;
                };
                let (old, new) = (read(code), read(&copy));
                assert_eq!(new.memory_base(), base, "{copy:x?}");
                assert_eq!((new.code(), new.len()), (old.code(), copy.len()));
                assert_eq!(new.memory_displacement64(), 0);
                assert_eq!(new.op0_register(), old.op0_register());
                assert_eq!(new.op1_register(), old.op1_register());
                assert_eq!(new.memory_segment(), old.memory_segment());
            }
        }
    }
}
