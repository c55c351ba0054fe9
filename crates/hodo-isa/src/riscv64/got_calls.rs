//! Calls through GOT slots that hold the addresses of functions, without a PLT entry (`-mno-plt`): `auipc; ld` load the
//! address, then code calls or jumps through that register, perhaps after a few other instructions.

use alloc::vec::Vec;

use super::decode::Insn;
use super::decode::Kind;
use super::decode::operand::{imm_i, imm_u};
use super::regs::{RA, SP, ZERO};
use super::scan::Flow;
use crate::code::SlotCall;

/// Bytes of the two instructions that load the address.
const PAIR: usize = 8;
/// At most this many instructions may be between them and the call.
const BETWEEN: usize = 8;
/// `t0`, `t1`, `t3`–`t6`, and the link register: neither the callee nor, afterward, its caller reads them. If the
/// address is in an argument register, it may also be an argument.
const TEMPORARY: u32 = 0xF000_0060 | 1 << RA;

/// Where code may contain `auipc; ld` of one register: the addresses of the two, and the address that they load from.
/// Some only look like such instructions.
#[must_use]
pub fn loads(code: &[u8], addr: u64) -> Vec<(u64, u64)> {
    let halves = code.as_chunks::<2>().0.iter().enumerate();
    halves
        // The opcode is in the lowest bits, so most places take one look.
        .filter(|(_, half)| half[0] & 0x7F == 0x17)
        .filter_map(|(index, _)| {
            let at = index * 2;
            let pair: &[u8; PAIR] = code.get(at..)?.first_chunk()?;
            let [upper, lower] = [0, 4].map(|from| {
                let [a, b, c, d] = [0, 1, 2, 3].map(|byte| pair[from + byte]);
                u32::from_le_bytes([a, b, c, d])
            });
            let register = upper >> 7 & 31;
            let loads = 3 << 12 | 3 | register << 7 | register << 15;
            let found = register != ZERO.into() && lower & 0xF_FFFF == loads;
            let at = addr + at as u64;
            let slot = at
                .wrapping_add_signed(imm_u(upper))
                .wrapping_add_signed(imm_i(lower));
            found.then_some((at, slot))
        })
        .collect()
}

/// The call or jump through the register that the instructions at the start of `code` load from a slot; `None` if it is
/// not plain to see, or if something else uses the register.
#[must_use]
pub fn called(code: &[u8], addr: u64) -> Option<SlotCall> {
    let register = Insn::new(code, addr).rd();
    if TEMPORARY & 1 << register == 0 {
        return None;
    }
    let mut at = PAIR;
    for _ in 0..=BETWEEN {
        let insn = Insn::new(code.get(at..)?, addr + at as u64);
        at += usize::from(insn.len);
        let by = insn.kind == Kind::Jalr && insn.rs1() == register && imm_i(insn.word) == 0;
        let call = match insn.flow() {
            Flow::IndirectCall if by && insn.rd() == RA => true,
            Flow::IndirectJump if by => false,
            Flow::Next if passes(&insn, register) => continue,
            _ => return None,
        };
        return Some(SlotCall {
            register,
            end: addr + at as u64,
            call,
        });
    }
    None
}

/// Whether an instruction only computes or uses the stack, and leaves a register alone. Such an instruction does not
/// fault and does not take long.
fn passes(insn: &Insn, register: u8) -> bool {
    let (reads, writes) = insn.general();
    let harmless = match insn.kind {
        Kind::Plain | Kind::Auipc => true,
        Kind::Load(_) | Kind::Store(_) => insn.rs1() == SP,
        _ => false,
    };
    harmless && (reads | writes) & 1 << register == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(words: &[u32]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    // auipc t1, 2; ld t1, -1496(t1)
    const LOAD: [u32; 2] = [0x0000_2317, 0xA283_3303];
    const JALR: u32 = 0x0003_00E7;
    const JR: u32 = 0x0003_0067;
    const MV_A0_S0: u32 = 0x0004_0513;

    fn found(after: &[u32]) -> Option<SlotCall> {
        called(&code(&[&LOAD[..], after].concat()), 0x1_0000)
    }

    #[test]
    fn loads_of_addresses_are_found() {
        let code = code(&[0x13, LOAD[0], LOAD[1], JALR]);
        assert_eq!(
            loads(&code, 0x1_0000),
            [(0x1_0004, 0x1_0004 + 0x2000 - 1496)]
        );
        // Another register; code that is too short.
        let other = super::tests::code(&[LOAD[0], 0xA28E_3E03, JALR]);
        assert_eq!(loads(&other, 0), []);
        assert_eq!(loads(&code[4..10], 0), []);
    }

    #[test]
    fn calls_and_jumps_behind_loads_are_found() {
        let of = |end, call| {
            Some(SlotCall {
                register: 6,
                end,
                call,
            })
        };
        assert_eq!(found(&[JALR]), of(0x1_000C, true));
        assert_eq!(found(&[JR]), of(0x1_000C, false));
        // mv a0, s0; sd s0, 8(sp)
        assert_eq!(found(&[MV_A0_S0, 0x0081_3423, JALR]), of(0x1_0014, true));
        assert_eq!(
            found(&[&[MV_A0_S0; 8][..], &[JR]].concat()),
            of(0x1_002C, false)
        );
    }

    #[test]
    fn what_may_use_the_address_otherwise_is_left_alone() {
        // mv a0, t1; ld a0, (a1); ecall; beq; li t1, 0; jalr t1 with a distance; jalr a0; ret; too many; nothing.
        for after in [
            &[0x0003_0513, JALR][..],
            &[0x0005_B503, JALR],
            &[0x0000_0073, JALR],
            &[0x0000_0463, JALR],
            &[0x0000_0313, JALR],
            &[0x0043_00E7],
            &[0x0005_00E7],
            &[0x0000_8067],
            &[MV_A0_S0; 9],
            &[],
        ] {
            let after = [after, &[JR]].concat();
            let found = found(if after.len() > 1 { &after } else { &[] });
            assert_eq!(found, None, "{after:08x?}");
        }
        // Into a callee-saved register: auipc s5, 2; ld s5, (s5); jalr s5
        let kept = code(&[0x0000_2A97, 0x000A_BA83, 0x000A_80E7]);
        assert_eq!(called(&kept, 0), None);
        // A function that gets its own address: auipc a0, 2; ld a0, (a0); jalr a0. The same with t2, which nested
        // functions read.
        let own = code(&[0x0000_2517, 0x0005_3503, 0x0005_00E7]);
        assert_eq!(called(&own, 0), None);
        let chain = code(&[0x0000_2397, 0x0003_B383, 0x0003_80E7]);
        assert_eq!(called(&chain, 0), None);
    }
}
