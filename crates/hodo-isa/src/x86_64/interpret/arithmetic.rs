//! The results of arithmetic, with its flags (Intel's manual, volume 2; appendix A of volume 1).

use iced_x86::Mnemonic;

use super::{ADJUST, CARRY, OVERFLOW, PARITY, SIGN, STATUS, ZERO};

/// How many bytes an operand has: 1, 2, 4 or 8.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Width(pub(super) u8);

/// The result of an instruction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Outcome {
    pub value: u64,
    /// Status flags; those outside `known` stay as they are.
    pub flags: u64,
    pub known: u64,
}

fn flag(flag: u64, is_set: bool) -> u64 {
    if is_set { flag } else { 0 }
}

impl Width {
    pub const DWORD: Self = Self(4);
    pub const QWORD: Self = Self(8);

    pub fn bits(self) -> u32 {
        u32::from(self.0) * 8
    }

    /// The bits that a value can have.
    pub fn mask(self) -> u64 {
        u64::MAX >> (64 - self.bits())
    }

    /// The value, sign-extended.
    pub fn extended(self, value: u64) -> u64 {
        let unused = 64 - self.bits();
        (value << unused)
            .cast_signed()
            .wrapping_shr(unused)
            .cast_unsigned()
    }

    fn sign(self, value: u64) -> bool {
        value >> (self.bits() - 1) & 1 == 1
    }

    /// The flags that depend on the value alone.
    fn of_value(self, value: u64) -> u64 {
        let even = (value as u8).count_ones().is_multiple_of(2);
        flag(ZERO, value & self.mask() == 0) | flag(SIGN, self.sign(value)) | flag(PARITY, even)
    }

    /// `a + b + carry`, where the carry is 0 or 1.
    pub fn add(self, a: u64, b: u64, carry: u64) -> Outcome {
        let (a, b) = (a & self.mask(), b & self.mask());
        let wide = u128::from(a) + u128::from(b) + u128::from(carry);
        let value = wide as u64 & self.mask();
        let flags = self.of_value(value)
            | flag(CARRY, wide >> self.bits() != 0)
            | flag(OVERFLOW, self.sign((a ^ value) & (b ^ value)))
            | flag(ADJUST, (a ^ b ^ value) & 16 != 0);
        Outcome {
            value,
            flags,
            known: STATUS,
        }
    }

    /// `a - b - borrow`, where the borrow is 0 or 1.
    pub fn sub(self, a: u64, b: u64, borrow: u64) -> Outcome {
        let (a, b) = (a & self.mask(), b & self.mask());
        let value = a.wrapping_sub(b).wrapping_sub(borrow) & self.mask();
        let flags = self.of_value(value)
            | flag(CARRY, u128::from(a) < u128::from(b) + u128::from(borrow))
            | flag(OVERFLOW, self.sign((a ^ b) & (a ^ value)))
            | flag(ADJUST, (a ^ b ^ value) & 16 != 0);
        Outcome {
            value,
            flags,
            known: STATUS,
        }
    }

    /// The result of an operation on single bits.
    pub fn logic(self, value: u64) -> Outcome {
        let value = value & self.mask();
        Outcome {
            value,
            flags: self.of_value(value),
            known: STATUS,
        }
    }

    /// The lower half of a signed product. Carry and overflow say whether it does not hold the whole product.
    pub fn signed_product(self, a: u64, b: u64) -> Outcome {
        let signed = |value| i128::from(self.extended(value).cast_signed());
        let product = signed(a) * signed(b);
        let value = product as u64 & self.mask();
        Outcome {
            value,
            flags: flag(CARRY | OVERFLOW, signed(value) != product),
            known: CARRY | OVERFLOW,
        }
    }

    /// Shifts and rotates. `None` if the result is not defined.
    pub fn shift(self, by: Mnemonic, a: u64, count: u64, carry: bool) -> Option<Outcome> {
        let bits = self.bits();
        let count = count as u32 & if bits == 64 { 63 } else { 31 };
        if count == 0 {
            return Some(Outcome {
                value: a,
                flags: 0,
                known: 0,
            });
        }
        if count > bits {
            return None;
        }
        let a = a & self.mask();
        let signed = self.extended(a).cast_signed();
        // Shifted by one less, and then once more.
        let before = count - 1;
        let (value, out) = match by {
            Mnemonic::Shl | Mnemonic::Sal => (a << before << 1, self.sign(a << before)),
            Mnemonic::Shr => (a >> before >> 1, a >> before & 1 == 1),
            Mnemonic::Sar => {
                let almost = signed >> before.min(63);
                ((almost >> 1).cast_unsigned(), almost & 1 == 1)
            }
            Mnemonic::Rol | Mnemonic::Ror => {
                let left = match by {
                    Mnemonic::Rol => count % bits,
                    _ => (bits - count % bits) % bits,
                };
                let value = a << left | a.checked_shr(bits - left).unwrap_or(0);
                let out = match by {
                    Mnemonic::Rol => value & 1 == 1,
                    _ => self.sign(value),
                };
                (value, out)
            }
            _ => self.rotate_through(by == Mnemonic::Rcl, a, count, carry),
        };
        let value = value & self.mask();
        let rotates = !matches!(
            by,
            Mnemonic::Shl | Mnemonic::Sal | Mnemonic::Shr | Mnemonic::Sar
        );
        // For shifts by one bit, whether the sign has changed; for rotates to the right, the difference of the top two
        // bits.
        let overflow = match by {
            Mnemonic::Sar => false,
            Mnemonic::Shr => self.sign(a),
            Mnemonic::Ror | Mnemonic::Rcr => self.sign(value) != self.sign(value << 1),
            _ => self.sign(value) != out,
        };
        let flags = flag(CARRY, out) | flag(OVERFLOW, overflow);
        Some(Outcome {
            value,
            flags: if rotates {
                flags
            } else {
                flags | self.of_value(value)
            },
            known: if rotates { CARRY | OVERFLOW } else { STATUS },
        })
    }

    /// Rotates through the carry, as one more bit.
    fn rotate_through(self, left: bool, a: u64, count: u32, carry: bool) -> (u64, bool) {
        let (mut value, mut carry) = (a, carry);
        for _ in 0..count {
            let into = u64::from(carry);
            if left {
                carry = self.sign(value);
                value = (value << 1 | into) & self.mask();
            } else {
                carry = value & 1 == 1;
                value = value >> 1 | into << (self.bits() - 1);
            }
        }
        (value, carry)
    }
}
