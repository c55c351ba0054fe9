//! The nops and jumps that a branch on a static key can be, for each instruction set.

use hodo_abi::Isa;
use object::Endianness;
use object::elf;
use object::read::elf::ElfFile64;

use crate::abi;

/// The forms of an instruction set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Forms(Isa);

/// The relocation types used.
pub(super) struct Relocations {
    /// An address in the file itself.
    pub relative: u32,
    /// A symbol's address, for the global offset table.
    pub slot: u32,
    /// A symbol's address plus an addend.
    pub address: u32,
}

const X86_NOP2: [u8; 2] = [0x66, 0x90];
const X86_NOP5: [u8; 5] = [0x0F, 0x1F, 0x44, 0x00, 0x00];
const X86_JMP8: u8 = 0xEB;
const X86_JMP32: u8 = 0xE9;

const RISCV_C_NOP: [u8; 2] = [0x01, 0];
const RISCV_NOP: [u8; 4] = [0x13, 0, 0, 0];
/// `jal x0, …`
const RISCV_JAL: u32 = 0x6F;
const RISCV_C_J: u16 = 0xA001;

const AARCH64_NOP: [u8; 4] = 0xD503_201F_u32.to_le_bytes();
const AARCH64_B: u32 = 0x1400_0000;

impl Forms {
    /// Returns the forms for a file, if static keys exist for its instruction set.
    pub fn of(file: &ElfFile64<'_, Endianness>) -> Option<Self> {
        abi::of_file(file).map(Self)
    }

    pub fn relocations(self) -> Relocations {
        let (relative, slot, address) = match self.0 {
            Isa::X86_64 => (
                elf::R_X86_64_RELATIVE,
                elf::R_X86_64_GLOB_DAT,
                elf::R_X86_64_64,
            ),
            // RISC-V has no separate type for the table.
            Isa::Riscv64 => (elf::R_RISCV_RELATIVE, elf::R_RISCV_64, elf::R_RISCV_64),
            Isa::Aarch64 => (
                elf::R_AARCH64_RELATIVE,
                elf::R_AARCH64_GLOB_DAT,
                elf::R_AARCH64_ABS64,
            ),
        };
        Relocations {
            relative,
            slot,
            address,
        }
    }

    /// Returns the nop of this many bytes.
    pub fn nop(self, size: u8) -> &'static [u8] {
        match (self.0, size) {
            (Isa::X86_64, 2) => &X86_NOP2,
            (Isa::X86_64, _) => &X86_NOP5,
            (Isa::Riscv64, 2) => &RISCV_C_NOP,
            (Isa::Riscv64, _) => &RISCV_NOP,
            (Isa::Aarch64, _) => &AARCH64_NOP,
        }
    }

    /// Returns the jump of this many bytes. The target must be in reach.
    pub fn jump(self, size: u8, from: u64, to: u64) -> Vec<u8> {
        let distance = to.wrapping_sub(from);
        let field = |low: u32, bits: u32| distance as u32 >> low & ((1 << bits) - 1);
        match (self.0, size) {
            (Isa::X86_64, 2) => vec![X86_JMP8, distance.wrapping_sub(2) as u8],
            (Isa::X86_64, _) => {
                let distance = distance.wrapping_sub(5) as u32;
                [&[X86_JMP32], &distance.to_le_bytes()[..]].concat()
            }
            // RISC-V Unprivileged ISA, "Compressed Control Transfer Instructions", format CJ.
            (Isa::Riscv64, 2) => {
                let operand = field(11, 1) << 12
                    | field(4, 1) << 11
                    | field(8, 2) << 9
                    | field(10, 1) << 8
                    | field(6, 1) << 7
                    | field(7, 1) << 6
                    | field(1, 3) << 3
                    | field(5, 1) << 2;
                (RISCV_C_J | operand as u16).to_le_bytes().to_vec()
            }
            // Format J.
            (Isa::Riscv64, _) => {
                let operand = field(20, 1) << 31
                    | field(1, 10) << 21
                    | field(11, 1) << 20
                    | field(12, 8) << 12;
                (RISCV_JAL | operand).to_le_bytes().to_vec()
            }
            (Isa::Aarch64, _) => (AARCH64_B | field(2, 26)).to_le_bytes().to_vec(),
        }
    }

    /// Returns whether the jump of this many bytes reaches from one address to another.
    pub fn reaches(self, size: u8, from: u64, to: u64) -> bool {
        let (base, bits, unit) = match (self.0, size) {
            (Isa::X86_64, 2) => (2, 8, 1),
            (Isa::X86_64, _) => (5, 32, 1),
            (Isa::Riscv64, 2) => (0, 12, 2),
            (Isa::Riscv64, _) => (0, 21, 2),
            (Isa::Aarch64, _) => (0, 28, 4),
        };
        let distance = to.wrapping_sub(from).wrapping_sub(base).cast_signed();
        distance % unit == 0 && (-(1 << (bits - 1))..1 << (bits - 1)).contains(&distance)
    }

    /// Returns the length of the instruction at an address, and its target if it is a jump. Returns `None` if it is
    /// neither a nop nor a jump. `bytes` returns this many bytes of the code, if they exist.
    pub fn read<'b>(
        self,
        at: u64,
        bytes: impl Fn(u64) -> Option<&'b [u8]>,
    ) -> Option<(u8, Option<u64>)> {
        let sizes: &[u8] = match self.0 {
            Isa::X86_64 => &[2, 5],
            Isa::Riscv64 => &[2, 4],
            Isa::Aarch64 => &[4],
        };
        sizes.iter().find_map(|&size| {
            let bytes = bytes(size.into())?;
            if bytes == self.nop(size) {
                return Some((size, None));
            }
            let to = self.target(bytes, at)?;
            // Every bit of the instruction must be as we would encode it.
            (self.jump(size, at, to) == bytes).then_some((size, Some(to)))
        })
    }

    /// Returns the target of a jump, if this is one.
    fn target(self, bytes: &[u8], at: u64) -> Option<u64> {
        let signed =
            |value: u32, bits: u32| i64::from((value << (32 - bits)).cast_signed() >> (32 - bits));
        let distance = match (self.0, bytes) {
            (Isa::X86_64, &[X86_JMP8, distance]) => 2 + i64::from(distance.cast_signed()),
            (Isa::X86_64, &[X86_JMP32, a, b, c, d]) => {
                5 + i64::from(i32::from_le_bytes([a, b, c, d]))
            }
            (Isa::Riscv64, &[a, b]) => {
                let word = u32::from(u16::from_le_bytes([a, b]));
                let field = |low: u32, bits: u32| word >> low & ((1 << bits) - 1);
                let value = field(12, 1) << 11
                    | field(11, 1) << 4
                    | field(9, 2) << 8
                    | field(8, 1) << 10
                    | field(7, 1) << 6
                    | field(6, 1) << 7
                    | field(3, 3) << 1
                    | field(2, 1) << 5;
                signed(value, 12)
            }
            (Isa::Riscv64, &[a, b, c, d]) => {
                let word = u32::from_le_bytes([a, b, c, d]);
                let field = |low: u32, bits: u32| word >> low & ((1 << bits) - 1);
                let value = field(31, 1) << 20
                    | field(21, 10) << 1
                    | field(20, 1) << 11
                    | field(12, 8) << 12;
                signed(value, 21)
            }
            (Isa::Aarch64, &[a, b, c, d]) => {
                signed((u32::from_le_bytes([a, b, c, d]) & 0x3FF_FFFF) << 2, 28)
            }
            _ => return None,
        };
        Some(at.wrapping_add_signed(distance))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [(Forms, u8); 5] = [
        (Forms(Isa::X86_64), 2),
        (Forms(Isa::X86_64), 5),
        (Forms(Isa::Riscv64), 2),
        (Forms(Isa::Riscv64), 4),
        (Forms(Isa::Aarch64), 4),
    ];

    #[test]
    fn jumps_are_read_as_they_are_written() {
        const AT: u64 = 0x1_0000_0000;
        for (forms, size) in ALL {
            let mut far = 0;
            for bit in 0..34 {
                for distance in [1 << bit, (1 << bit) - 4, 0x5555_5554_i64 & ((1 << bit) - 1)] {
                    for distance in [distance, -distance] {
                        let to = AT.wrapping_add_signed(distance);
                        if !forms.reaches(size, AT, to) {
                            far += 1;
                            continue;
                        }
                        let bytes = forms.jump(size, AT, to);
                        assert_eq!(bytes.len(), usize::from(size));
                        let read = forms.read(AT, |len| bytes.get(..len as usize));
                        assert_eq!(read, Some((size, Some(to))), "{forms:?} {distance:#x}");
                    }
                }
            }
            assert!(far > 0, "{forms:?}");
        }
    }

    #[test]
    fn other_instructions_are_not_read_as_branches() {
        let read = |forms: Forms, bytes: &[u8]| forms.read(0x1000, |len| bytes.get(..len as usize));
        for (forms, size) in ALL {
            assert_eq!(read(forms, forms.nop(size)), Some((size, None)));
            assert_eq!(read(forms, &[0xFF; 5]), None, "{forms:?}");
            assert_eq!(read(forms, &[]), None);
        }
        // Encodings by binutils: `j .+0x7fe`, `j .-0x800`, `jal x0, .+0xffffe`, `b .-8`.
        for (forms, bytes, to) in [
            (Forms(Isa::Riscv64), &[0xFD, 0xAF][..], 0x17FE),
            (Forms(Isa::Riscv64), &[0x01, 0xB0][..], 0x800),
            (
                Forms(Isa::Riscv64),
                &[0x6F, 0xF0, 0xFF, 0x7F][..],
                0x10_0FFE,
            ),
            (Forms(Isa::Aarch64), &[0xFE, 0xFF, 0xFF, 0x17][..], 0xFF8),
        ] {
            assert_eq!(
                read(forms, bytes),
                Some((bytes.len() as u8, Some(to))),
                "{bytes:x?}"
            );
        }
        // `jal ra, 0` is a call.
        assert_eq!(read(Forms(Isa::Riscv64), &[0xEF, 0, 0, 0]), None);
    }
}
