//! Calls through GOT slots that hold the addresses of functions, without a PLT entry (`-fno-plt`): `adrp; ldr` load the
//! address, then code calls or jumps through that register, perhaps after a few other instructions.

use alloc::vec::Vec;

use super::LEN;
use super::decode::{Insn, Kind};
use super::encode::{call, jump};
use super::regs::{LINK, SP, Set, general};
use super::scan::Flow;
use crate::code::SlotCall;

/// Bytes of the two instructions that load the address.
const PAIR: usize = 2 * LEN as usize;
/// At most this many instructions may be between them and the call.
const BETWEEN: usize = 8;
/// `x8`–`x14`, `x16`, `x17`, and the link register: neither the callee nor, afterward, its caller reads them. (A callee
/// that reads `x8` finds there where its result goes, which is in no function.) If the address is in an argument
/// register, it may also be an argument. Nested functions read `x15` or `x18`.
const TEMPORARY: Set = 0x3_7F00 | 1 << LINK;

/// Where code contains `adrp; ldr` of one register: the addresses of the two, and the address that they load from.
#[must_use]
pub fn loads(code: &[u8], addr: u64) -> Vec<(u64, u64)> {
    let words = code.as_chunks::<{ LEN as usize }>().0;
    let places = words.windows(2).enumerate();
    places
        .filter_map(|(index, pair)| {
            let [page, load] = [0, 1].map(|which| u32::from_le_bytes(pair[which]));
            let register = page & 31;
            // ldr REGISTER, [REGISTER, #DISTANCE]
            let loads = load & 0xFFC0_03FF == 0xF940_0000 | register << 5 | register;
            if page & 0x9F00_0000 != 0x9000_0000 || register == u32::from(SP) || !loads {
                return None;
            }
            let at = addr + index as u64 * LEN;
            let distance = u64::from(load >> 10 & 0xFFF) << 3;
            let slot = Insn::of(page, at).target()?.wrapping_add(distance);
            Some((at, slot))
        })
        .collect()
}

/// The call or jump through the register that the instructions at the start of `code` load from a slot; `None` if it is
/// not plain to see, or if something else uses the register.
#[must_use]
pub fn called(code: &[u8], addr: u64) -> Option<SlotCall> {
    let register = Insn::new(code, addr).rd();
    if TEMPORARY & general(register) == 0 {
        return None;
    }
    let after = (PAIR..).step_by(LEN as usize).take(BETWEEN + 1);
    for at in after {
        let insn = Insn::new(code.get(at..)?, addr + at as u64);
        let calls = insn.word == call(register);
        if calls || insn.word == jump(register) {
            return Some(SlotCall {
                register,
                end: insn.end(),
                call: calls,
            });
        }
        if insn.flow() != Flow::Next || !passes(&insn, register) {
            return None;
        }
    }
    None
}

/// Whether an instruction only computes or uses the stack, and leaves a register alone. Such an instruction does not
/// fault and does not take long.
fn passes(insn: &Insn, register: u8) -> bool {
    let harmless = match insn.kind {
        Kind::Adr
        | Kind::Adrp
        | Kind::AddImmediate
        | Kind::MinMaxImmediate
        | Kind::LogicalImmediate
        | Kind::MoveWide
        | Kind::Bitfield
        | Kind::Extract
        | Kind::LogicalRegister
        | Kind::AddRegister
        | Kind::AddExtended
        | Kind::AddCarry
        | Kind::ConditionalCompare
        | Kind::ConditionalSelect
        | Kind::TwoSources
        | Kind::OneSource
        | Kind::ThreeSources => true,
        Kind::Single | Kind::Pair | Kind::SingleVector | Kind::PairVector => {
            (insn.memory()).is_some_and(|memory| memory.base == SP && memory.distance.is_some())
        }
        _ => insn.is_nop(),
    };
    let effects = insn.effects();
    harmless && (effects.reads | effects.changes) & general(register) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(words: &[u32]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    // adrp x16, 0x12000; ldr x16, [x16, #0xfd8]
    const LOAD: [u32; 2] = [0xD000_0010, 0xF947_EE10];
    const BLR: u32 = 0xD63F_0200;
    const BR: u32 = 0xD61F_0200;
    const MOV_X0_X19: u32 = 0xAA13_03E0;

    fn found(after: &[u32]) -> Option<SlotCall> {
        called(&code(&[&LOAD[..], after].concat()), 0x1_0000)
    }

    #[test]
    fn loads_of_addresses_are_found() {
        let code = code(&[MOV_X0_X19, LOAD[0], LOAD[1], BLR]);
        assert_eq!(loads(&code, 0x1_0000), [(0x1_0004, 0x1_2FD8)]);
        // Another register; code that is too short.
        let other = super::tests::code(&[LOAD[0], 0xF947_EE11, BLR]);
        assert_eq!(loads(&other, 0), []);
        assert_eq!(loads(&code[4..10], 0), []);
    }

    #[test]
    fn calls_and_jumps_after_loads_are_found() {
        let of = |end, call| {
            Some(SlotCall {
                register: 16,
                end,
                call,
            })
        };
        assert_eq!(found(&[BLR]), of(0x1_000C, true));
        assert_eq!(found(&[BR]), of(0x1_000C, false));
        // mov x0, x19; stp x29, x30, [sp, #-16]!
        assert_eq!(found(&[MOV_X0_X19, 0xA9BF_7BFD, BLR]), of(0x1_0014, true));
        let many = [&[MOV_X0_X19; 8][..], &[BR]].concat();
        assert_eq!(found(&many), of(0x1_002C, false));
    }

    #[test]
    fn what_may_use_the_address_otherwise_is_left_alone() {
        // mov x0, x16; ldr x0, [x1]; str x0, [sp, x16]; svc; cbz x0, .+8; mov x16, #0; blr x0; blraaz x16; ret; too
        // many; nothing
        for after in [
            &[0xAA10_03E0, BLR][..],
            &[0xF940_0020, BLR],
            &[0xF830_6BE0, BLR],
            &[0xD400_0001, BLR],
            &[0xB400_0040, BLR],
            &[0xD280_0010, BLR],
            &[0xD63F_0000],
            &[0xD63F_0A1F],
            &[0xD65F_03C0],
            &[MOV_X0_X19; 9],
            &[],
        ] {
            let after = if after.is_empty() {
                Vec::new()
            } else {
                [after, &[BR]].concat()
            };
            assert_eq!(found(&after), None, "{after:08x?}");
        }
        // Into a callee-saved register; a function that gets its own address; what nested functions read.
        for register in [19, 0, 15, 18] {
            let pair = [
                0xD000_0000 | register,
                0xF947_EC00 | register << 5 | register,
            ];
            let blr = 0xD63F_0000 | register << 5;
            assert_eq!(called(&code(&[pair[0], pair[1], blr]), 0), None);
        }
    }
}
