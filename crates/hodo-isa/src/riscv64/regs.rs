//! Registers: their names, and sets of them.

/// The names that the calling convention gives to the general registers.
pub const NAMES: [&str; 32] = [
    "zero", "ra", "sp", "gp", "tp", "t0", "t1", "t2", "s0", "s1", "a0", "a1", "a2", "a3", "a4",
    "a5", "a6", "a7", "s2", "s3", "s4", "s5", "s6", "s7", "s8", "s9", "s10", "s11", "t3", "t4",
    "t5", "t6",
];

/// The names that the calling convention gives to the floating-point registers.
pub const FLOAT_NAMES: [&str; 32] = [
    "ft0", "ft1", "ft2", "ft3", "ft4", "ft5", "ft6", "ft7", "fs0", "fs1", "fa0", "fa1", "fa2",
    "fa3", "fa4", "fa5", "fa6", "fa7", "fs2", "fs3", "fs4", "fs5", "fs6", "fs7", "fs8", "fs9",
    "fs10", "fs11", "ft8", "ft9", "ft10", "ft11",
];

/// The register that is always zero.
pub const ZERO: u8 = 0;
/// The link register of calls.
pub const RA: u8 = 1;
/// The stack pointer.
pub const SP: u8 = 2;
/// The global pointer.
pub const GP: u8 = 3;
/// The thread pointer.
pub const TP: u8 = 4;
/// The other link register, used by calls of helpers that save registers.
pub const T0: u8 = 5;
/// The second temporary register.
pub const T1: u8 = 6;
/// The register with the number of a system call.
pub const A7: u8 = 17;

/// Whether the processor predicts calls and returns through this register: `ra` and `t0`.
#[must_use]
pub fn is_link(register: u8) -> bool {
    register == RA || register == T0
}

/// State and control that instructions use besides registers, one bit each.
pub mod state {
    /// The accumulated floating-point exceptions; instructions only add to them.
    pub const FFLAGS: u16 = 1;
    /// The floating-point rounding mode.
    pub const FRM: u16 = 1 << 1;
    /// The number of elements of vector instructions.
    pub const VL: u16 = 1 << 2;
    /// The type of vector instructions.
    pub const VTYPE: u16 = 1 << 3;
    /// The element at which a vector instruction begins; each sets it to zero.
    pub const VSTART: u16 = 1 << 4;
    /// The rounding mode of fixed-point vector instructions.
    pub const VXRM: u16 = 1 << 5;
    /// The accumulated saturation of fixed-point vector instructions.
    pub const VXSAT: u16 = 1 << 6;
    /// A control and status register that is none of these.
    pub const OTHER: u16 = 1 << 7;
    /// Memory.
    pub const MEMORY: u16 = 1 << 8;
    /// The reservation that `lr` makes and `sc` ends.
    pub const RESERVATION: u16 = 1 << 9;
}

/// Sets of registers, one bit for each number.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Registers {
    /// General registers, never the zero register.
    pub x: u32,
    /// Floating-point registers.
    pub f: u32,
    /// Vector registers. How many form a group depends on the vector type at run time; so these are all that an operand
    /// may include, judged by its number.
    pub v: u32,
    /// State and control, as the masks of [`state`].
    pub state: u16,
}

impl Registers {
    pub(super) fn add_f(&mut self, number: u8) {
        self.f |= 1 << number;
    }

    /// Adds all registers of the largest group that may begin at this one, for `fields` such groups.
    pub(super) fn add_group(&mut self, number: u8, fields: u8) {
        // A group of two, four or eight begins at a multiple of its size.
        let most = if number == 0 {
            8
        } else {
            8.min(1 << number.trailing_zeros())
        };
        // All groups of an instruction together have at most eight registers.
        self.add_v(number, if fields > 1 { 8 } else { most });
    }

    /// Adds this many consecutive registers.
    pub(super) fn add_v(&mut self, number: u8, count: u8) {
        for number in number..(number + count).min(32) {
            self.v |= 1 << number;
        }
    }
}

/// The register that long jumps save on the stack if none is free: `t1`. Processors take a jump through a link register
/// for a return.
pub const KEPT: u8 = 6;

/// All general registers.
pub const ALL: u32 = u32::MAX;

/// `a0`–`a7`.
pub const ARGUMENTS: u32 = 0x0003_FC00;
/// `a0` and `a1`.
pub const RESULTS: u32 = 0x0000_0C00;
/// `t0`–`t6`.
const TEMPORARIES: u32 = 0xF000_00E0;
/// The register through which nested functions find the variables of the enclosing function: `t2`.
const STATIC_CHAIN: u32 = 1 << 7;
/// The registers in which a function may find something that it uses or preserves.
pub const ENTRY: u32 = !(TEMPORARIES & !STATIC_CHAIN);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_begin_at_multiples() {
        let group = |number, fields| {
            let mut set = Registers::default();
            set.add_group(number, fields);
            set.v
        };
        assert_eq!(group(0, 1), 0xFF);
        assert_eq!(group(3, 1), 8);
        assert_eq!(group(6, 1), 0xC0);
        assert_eq!(group(12, 1), 0xF000);
        assert_eq!(group(24, 1), 0xFF00_0000);
        assert_eq!(group(29, 4), 0xE000_0000);
    }
}
