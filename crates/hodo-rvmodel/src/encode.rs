//! The encodings of the proposed instructions, and of those that handlers of traps need.

use hodo_isa::riscv64::decode::operand::{field, imm_i, rd};
use hodo_isa::riscv64::encode::i;

use crate::params::{CjallCode, Immediate};

/// The opcode that the ISA leaves for extensions of one's own: custom-0.
pub const CUSTOM_0: u32 = 0x0B;
/// The opcode of instructions on control registers.
const SYSTEM: u32 = 0x73;

/// `mret`
pub const MRET: u32 = 0x3020_0073;
/// `ebreak`, 32 bits.
pub const EBREAK: u32 = 0x0010_0073;
/// `ecall`
pub const ECALL: u32 = 0x0000_0073;
/// `c.j` to itself. In shadow mode that is the address of the next instruction of the original code, so it is the whole
/// jump back.
pub const C_J_SELF: u16 = 0xA001;

/// Control registers by their numbers.
pub mod csr {
    /// Interrupts are enabled (bit 3), and were before the trap (bit 7).
    pub const MSTATUS: u16 = 0x300;
    /// The address of the handler.
    pub const MTVEC: u16 = 0x305;
    /// A word for the handler.
    pub const MSCRATCH: u16 = 0x340;
    /// Where the trap was taken.
    pub const MEPC: u16 = 0x341;
    /// Its cause.
    pub const MCAUSE: u16 = 0x342;
    /// The address that faulted.
    pub const MTVAL: u16 = 0x343;
    /// Proposed: the shadow pc of the interrupted code. Bit 0 is set if the mode was on. It is one of the numbers that
    /// the ISA leaves for custom registers.
    pub const MSPC: u16 = 0x7C0;
}

/// `csrrw rd, csr, rs1`
#[must_use]
pub const fn csrrw(rd: u8, csr: u16, rs1: u8) -> u32 {
    i(SYSTEM, 1, rd, rs1, csr as i64)
}

/// `csrrs rd, csr, zero`: reads the register.
#[must_use]
pub const fn csrr(rd: u8, csr: u16) -> u32 {
    i(SYSTEM, 2, rd, 0, csr as i64)
}

/// `lrw2spc` with a literal at this distance from it; `None` if the immediate cannot hold it.
#[must_use]
pub fn lrw2spc(immediate: Immediate, distance: i64) -> Option<u32> {
    let scale = i64::from(immediate.scale);
    let value = distance
        .checked_div(scale)
        .filter(|value| value * scale == distance)?;
    let fits = match (immediate.signed, immediate.bits) {
        (true, bits) => (-1 << (bits - 1)..1 << (bits - 1)).contains(&value),
        (false, bits) => (0..1 << bits).contains(&value),
    };
    let field = match immediate.bits {
        20 => (value as u32) << 12,
        _ => i(0, 0, 0, 0, value),
    };
    fits.then_some(field | CUSTOM_0)
}

/// The distance in an `lrw2spc`; `None` if the instruction is another one.
#[must_use]
pub fn is_lrw2spc(immediate: Immediate, word: u32) -> Option<i64> {
    // The other fields of the 12-bit format are zero.
    let other = match immediate.bits {
        20 => field(word, 7, 5),
        _ => field(word, 7, 13),
    };
    if word & 0x7F != CUSTOM_0 || other != 0 {
        return None;
    }
    let signed = match immediate.bits {
        20 => i64::from(word as i32 >> 12),
        _ => imm_i(word),
    };
    let value = match immediate.signed {
        true => signed,
        false => signed & ((1 << immediate.bits) - 1),
    };
    Some(value * i64::from(immediate.scale))
}

/// `c.jall` without its literal.
#[must_use]
pub fn c_jall(code: CjallCode, link: u8) -> u16 {
    match code {
        CjallCode::Long => 0x001F | u16::from(link) << 7,
        CjallCode::Short => 0x8002,
    }
}

/// The link register that a `c.jall` names; `None` if the instruction is another one. The short encoding has no room
/// for a register.
#[must_use]
pub fn is_c_jall(code: CjallCode, half: u16, implied: u8) -> Option<u8> {
    match code {
        CjallCode::Long => (half & 0xF07F == 0x001F).then(|| rd(half.into())),
        CjallCode::Short => (half == 0x8002).then_some(implied),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::params::Proposals;

    #[test]
    fn distances_come_back() {
        let default = Proposals::default().immediate;
        for (bits, signed, scale) in [(12, true, 1), (12, true, 8), (12, false, 2), (20, true, 2)] {
            let immediate = Immediate {
                bits,
                signed,
                scale,
            };
            for value in [-2048, -1, 0, 1, 5, 2047, 4095, 4096, 1 << 18] {
                let distance = value * i64::from(scale);
                if let Some(word) = lrw2spc(immediate, distance) {
                    assert_eq!(is_lrw2spc(immediate, word), Some(distance));
                }
            }
        }
        assert_eq!(lrw2spc(default, 2048), None);
        assert_eq!(
            lrw2spc(
                Immediate {
                    scale: 8,
                    ..default
                },
                12
            ),
            None
        );
        assert_eq!(is_lrw2spc(default, 0x13), None);
    }

    #[test]
    fn the_calls_are_no_instructions_of_the_base_set() {
        use hodo_isa::riscv64::Kind;
        use hodo_isa::riscv64::decode::Insn;
        for code in [CjallCode::Long, CjallCode::Short] {
            let half = c_jall(code, 5);
            let bytes = [half.to_le_bytes(), [0; 2], [0; 2]].concat();
            assert_eq!(Insn::new(&bytes, 0).kind, Kind::Invalid);
            let link = if code == CjallCode::Long { 5 } else { 1 };
            assert_eq!(is_c_jall(code, half, 1), Some(link));
        }
        let word = lrw2spc(Proposals::default().immediate, 16).expect("near");
        assert_eq!(Insn::new(&word.to_le_bytes(), 0).kind, Kind::Invalid);
    }
}
