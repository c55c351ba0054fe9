//! What depends on the instruction set: the assembly of a branch, its entry in the table, and how it is changed.

use core::ops::Range;

mod branch;

#[cfg(target_arch = "aarch64")]
#[path = "aarch64.rs"]
mod isa;
#[cfg(target_arch = "riscv64")]
#[path = "riscv64.rs"]
mod isa;
#[cfg(target_arch = "x86_64")]
#[path = "x86_64.rs"]
mod isa;

pub use isa::{FIRST, LONGEST, STEPS, is_branch, step};

use isa::length;

/// One branch, with addresses.
#[derive(Debug, Clone, Copy)]
pub struct Branch {
    /// The instruction.
    pub code: usize,
    /// Where it jumps.
    pub target: usize,
    /// The key.
    pub key: usize,
    /// The value of the program's expression if the instruction does not jump.
    pub likely: bool,
}

/// An entry of the table as the assembler has written it. It holds distances, counted from the fields themselves, to
/// the instruction, to its target, and to a slot with the address of the key or of the array of keys; then the offset
/// of the key from there, with bit 0 set for likely branches. When the table is sorted, the distances are recounted
/// from the start of the table.
///
/// On x86-64 the slot is in the global offset table. Elsewhere not all linkers can refer to such a slot from a data
/// table (`R_RISCV_GOT32_PCREL`, `R_AARCH64_GOTPCREL32`: GNU ld 2.40 has neither), or encode the distance to a key of
/// another library. So there each object file has its own slots, one per key.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct Entry {
    code: i32,
    target: i32,
    key: i32,
    offset: u32,
}

impl Entry {
    /// Recounts the distances from the start of the table instead of from the entry's own fields.
    pub fn rebase(&mut self, at: usize, base: usize) {
        let distance = (at - base) as i32;
        self.code += distance;
        self.target += distance + 4;
        self.key += distance + 8;
    }

    /// The address of the branch of an entry that is at `at` and has not been rebased.
    #[cfg(target_os = "linux")]
    pub fn begins_at(&self, at: usize) -> usize {
        at.wrapping_add_signed(self.code as isize)
    }

    /// The branch of a rebased entry.
    ///
    /// # Safety
    /// The entry belongs to the table at `base`, which is relocated.
    pub unsafe fn branch(&self, base: usize) -> Branch {
        let slot = base.wrapping_add_signed(self.key as isize) as *const usize;
        // SAFETY: nobody writes the slot after relocation.
        let symbol = unsafe { slot.read() };
        Branch {
            code: base.wrapping_add_signed(self.code as isize),
            target: base.wrapping_add_signed(self.target as isize),
            key: symbol + (self.offset & !7) as usize,
            likely: self.offset & 1 != 0,
        }
    }
}

/// The table of the module that this library is linked into. Empty if it has none.
pub fn own_table() -> Range<usize> {
    let (start, stop): (usize, usize);
    // SAFETY: it loads two addresses, which are 0 if the linker knows of no table.
    unsafe {
        core::arch::asm!(
            ".weak __start_hodo_keys",
            ".hidden __start_hodo_keys",
            ".weak __stop_hodo_keys",
            ".hidden __stop_hodo_keys",
            #[cfg(target_arch = "x86_64")]
            "mov {start}, qword ptr [rip + __start_hodo_keys@GOTPCREL]
            mov {stop}, qword ptr [rip + __stop_hodo_keys@GOTPCREL]",
            #[cfg(target_arch = "riscv64")]
            "lga {start}, __start_hodo_keys
            lga {stop}, __stop_hodo_keys",
            #[cfg(target_arch = "aarch64")]
            "adrp {start}, :got:__start_hodo_keys
            ldr {start}, [{start}, :got_lo12:__start_hodo_keys]
            adrp {stop}, :got:__stop_hodo_keys
            ldr {stop}, [{stop}, :got_lo12:__stop_hodo_keys]",
            start = out(reg) start,
            stop = out(reg) stop,
            options(nomem, nostack, preserves_flags),
        );
    }
    start..stop
}

/// What to write at a branch.
#[derive(Debug, Clone)]
pub struct Step {
    pub bytes: [u8; LONGEST],
    /// Which of the bytes.
    pub range: Range<usize>,
}

/// Reads the bytes at a branch.
///
/// # Safety
/// It is mapped, readable code.
pub unsafe fn bytes(branch: &Branch) -> [u8; LONGEST] {
    // SAFETY: as the caller promises; the read is volatile, because the code changes without the compiler's knowledge.
    let read = |place: usize| unsafe { ((branch.code + place) as *const u8).read_volatile() };
    let mut bytes = [0; LONGEST];
    bytes[0] = read(0);
    // A short branch may be the last code of a page.
    for (place, byte) in bytes.iter_mut().enumerate().take(length(read(0))).skip(1) {
        *byte = read(place);
    }
    bytes
}

/// One of three steps. The first writes one byte, at `place`, which makes the instruction one that does nothing
/// whatever its other bytes are. The second writes all other bytes, which may become visible in any order. The third
/// writes that byte of the wanted instruction. `None` if nothing must be written.
fn step_by_way_of(
    (place, between): (usize, u8),
    number: usize,
    bytes: &[u8],
    wanted: [u8; LONGEST],
) -> Option<Step> {
    let size = bytes.len();
    let others = if place == 0 { 1..size } else { 0..place };
    let is_between = bytes[place] == between;
    let (byte, range) = match number {
        0 if *bytes != wanted[..size] && !is_between => (between, place..place + 1),
        1 if is_between && bytes[others.clone()] != wanted[others.clone()] => (between, others),
        2 if is_between && wanted[place] != between => (wanted[place], place..place + 1),
        _ => return None,
    };
    let mut bytes = wanted;
    bytes[place] = byte;
    Some(Step { bytes, range })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Makes all steps from the current bytes to a jump or a nop, and passes on each state that a processor may see.
    fn change(bytes: &mut [u8; LONGEST], branch: &Branch, jump: bool, mut seen: impl FnMut(&[u8])) {
        for number in 0..STEPS {
            let Some(step) = step(number, branch, bytes, jump, false) else {
                continue;
            };
            for place in step.range.clone().rev() {
                bytes[place] = step.bytes[place];
                seen(bytes);
            }
            seen(bytes);
        }
    }

    fn branch(target: usize) -> Branch {
        Branch {
            code: 0x10_0000,
            target,
            key: 0,
            likely: false,
        }
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn every_state_in_between_is_harmless() {
        for (nop, target, jump) in [
            (
                &[0x0F, 0x1F, 0x44, 0, 0][..],
                0x12_3456,
                &[0xE9, 0x51, 0x34, 0x02, 0][..],
            ),
            (
                &[0x0F, 0x1F, 0x44, 0, 0],
                0xF_0000,
                &[0xE9, 0xFB, 0xFF, 0xFE, 0xFF],
            ),
            (&[0x66, 0x90], 0x10_0002 + 127, &[0xEB, 0x7F]),
            (&[0x66, 0x90], 0x10_0002 - 128, &[0xEB, 0x80]),
        ] {
            let branch = branch(target);
            let mut bytes = [0; LONGEST];
            bytes[..nop.len()].copy_from_slice(nop);
            let test = if nop.len() == 2 { 0xA8 } else { 0xA9 };
            for _ in 0..2 {
                let mut states = 0;
                let mut seen = |bytes: &[u8]| {
                    states += 1;
                    let now = &bytes[..nop.len()];
                    assert!(now == nop || now == jump || now[0] == test, "{now:x?}");
                };
                change(&mut bytes, &branch, true, &mut seen);
                assert_eq!(bytes[..nop.len()], *jump);
                change(&mut bytes, &branch, false, &mut seen);
                assert_eq!(bytes[..nop.len()], *nop);
                assert!(states >= 6);
            }
        }
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn a_change_that_was_left_in_the_middle_is_finished() {
        let branch = branch(0x12_3456);
        for start in [
            [0xA9, 0x1F, 0x44, 0, 0],
            [0xA9, 0x51, 0x44, 0x02, 0],
            [0xA9, 0x51, 0x34, 0x02, 0],
        ] {
            assert!(is_branch(&start));
            let mut bytes = start;
            change(&mut bytes, &branch, false, |_| {});
            assert_eq!(bytes, [0x0F, 0x1F, 0x44, 0, 0]);
            bytes = start;
            change(&mut bytes, &branch, true, |_| {});
            assert_eq!(bytes, [0xE9, 0x51, 0x34, 0x02, 0]);
        }
        assert!(!is_branch(&[0xCC, 0x1F, 0x44, 0, 0]));
        assert!(!is_branch(&[0x0F, 0x1F, 0x44, 0, 1]));
    }

    #[cfg(target_arch = "riscv64")]
    #[test]
    fn every_state_in_between_is_harmless() {
        for (target, jump) in [
            (0x10_0008, 0x0080_006F_u32),
            (0x10_0000 - 4, 0xFFDF_F06F),
            (0x10_0000 + 0xF_FFFE, 0x7FFF_F06F),
        ] {
            let branch = branch(target);
            let nop = 0x13_u32.to_le_bytes();
            let mut bytes = nop;
            let seen = |bytes: &[u8]| {
                let lui = bytes[0] == 0x37 && bytes[1] & 0xF == 0;
                assert!(lui || bytes == nop || bytes == jump.to_le_bytes());
            };
            change(&mut bytes, &branch, true, seen);
            assert_eq!(bytes, jump.to_le_bytes());
            change(&mut bytes, &branch, false, seen);
            assert_eq!(bytes, nop);
        }
    }

    /// The encoding of `c.j` by distance, according to the assembler: `.option rvc; j .+64`, and so on.
    #[cfg(target_arch = "riscv64")]
    const SHORT: [(isize, u16); 9] = [
        (2, 0xA009),
        (16, 0xA801),
        (32, 0xA005),
        (64, 0xA081),
        (128, 0xA041),
        (256, 0xA201),
        (1024, 0xA101),
        (-2, 0xBFFD),
        (-2048, 0xB001),
    ];

    #[cfg(target_arch = "riscv64")]
    #[test]
    fn every_state_of_a_short_branch_is_harmless() {
        for (distance, jump) in SHORT {
            let mut bytes = [1, 0, 0, 0];
            change(
                &mut bytes,
                &branch(0x10_0000_usize.wrapping_add_signed(distance)),
                true,
                |_| {},
            );
            assert_eq!(bytes[..2], jump.to_le_bytes(), "{distance}");
        }
        for distance in (-2048..2048_isize).step_by(2) {
            let branch = branch(0x10_0000_usize.wrapping_add_signed(distance));
            let mut bytes = [1, 0, 0, 0];
            let mut jumps = [0; 2];
            for jump in [true, false, true, false] {
                let mut states = 0;
                change(&mut bytes, &branch, jump, |bytes| {
                    states += 1;
                    assert!(is_branch(bytes.try_into().expect("four bytes")));
                    assert_eq!(length(bytes[0]), 2);
                    let half = u16::from_le_bytes([bytes[0], bytes[1]]);
                    let register = half >> 7 & 31;
                    match half >> 13 {
                        // `c.addi` with a register: to x30, only 0 may be added.
                        0 => assert!(matches!((register, half >> 2 & 31), (0 | 31, _) | (30, 0))),
                        5 => jumps = [bytes[0], bytes[1]],
                        _ => panic!("{half:#x}"),
                    }
                });
                assert!(states > 0, "{distance}");
                assert_eq!(bytes[1] >> 5 == 5, jump);
                assert_eq!(bytes[..2] == [1, 0], !jump);
                assert_eq!(bytes[2..], [0, 0]);
                if jump {
                    // No other jump appeared on the way.
                    assert_eq!(jumps, bytes[..2]);
                }
            }
        }
    }

    #[cfg(target_arch = "riscv64")]
    #[test]
    fn a_change_that_was_left_in_the_middle_is_finished() {
        for (distance, first, between) in [(-2, 0x7D, 0), (64, 0x81, 0xF)] {
            let branch = branch(0x10_0000_usize.wrapping_add_signed(distance));
            for start in [[first, between, 0, 0], [1, between, 0, 0]] {
                let mut bytes = start;
                change(&mut bytes, &branch, false, |_| {});
                assert_eq!(bytes, [1, 0, 0, 0]);
                bytes = start;
                change(&mut bytes, &branch, true, |_| {});
                assert_eq!((bytes[0], bytes[1] >> 5), (first | bytes[0] & 0x80, 5));
            }
        }
        // c.ebreak, c.addi x1, c.addi x30, ebreak.
        for foreign in [
            [0x02, 0x90, 0, 0],
            [0x85, 0, 0, 0],
            [0x05, 0x0F, 0, 0],
            [0x73, 0, 0x10, 0],
        ] {
            assert!(!is_branch(&foreign));
        }
    }

    #[cfg(target_arch = "aarch64")]
    const NOP: [u8; 4] = 0xD503_201F_u32.to_le_bytes();

    #[cfg(target_arch = "aarch64")]
    #[test]
    fn every_state_in_between_is_harmless() {
        for (target, jump) in [
            (0x10_0000 - 8, 0x17FF_FFFE_u32),
            (0x10_0000 + 0x123_4564, 0x1448_D159),
            (0x900_0000 - 4 + 0x10_0000 - 0x100_0000, 0x15FF_FFFF),
        ] {
            let branch = branch(target);
            let mut bytes = NOP;
            let seen = |bytes: &[u8]| {
                // `prfm` with a literal is D8, and everything else is operands.
                assert!(bytes[3] == 0xD8 || bytes == NOP || bytes == jump.to_le_bytes());
                assert!(is_branch(bytes.try_into().expect("four bytes")));
            };
            for _ in 0..2 {
                change(&mut bytes, &branch, true, seen);
                assert_eq!(bytes, jump.to_le_bytes());
                change(&mut bytes, &branch, false, seen);
                assert_eq!(bytes, NOP);
            }
            // Left in the middle, and completed in either direction.
            for start in [[0x1F, 0x20, 3, 0xD8], [0xFE, 0x20, 0xFF, 0xD8]] {
                bytes = start;
                change(&mut bytes, &branch, true, seen);
                assert_eq!(bytes, jump.to_le_bytes());
                bytes = start;
                change(&mut bytes, &branch, false, seen);
                assert_eq!(bytes, NOP);
                let step = step(0, &branch, &start, true, true).expect("something to write");
                assert_eq!((step.bytes, step.range), (jump.to_le_bytes(), 0..4));
            }
        }
        assert!(!is_branch(&0xD420_0000_u32.to_le_bytes()));
    }

    #[cfg(target_arch = "aarch64")]
    #[test]
    fn a_branch_is_changed_at_once_where_words_are() {
        let branch = branch(0x10_0000 - 8);
        let jump = 0x17FF_FFFE_u32.to_le_bytes();
        let step_to = |number, bytes, jump| {
            let step = step(number, &branch, bytes, jump, true);
            step.map(|step| (step.bytes, step.range))
        };
        assert_eq!(step_to(0, &NOP, true), Some((jump, 0..4)));
        assert_eq!(step_to(0, &jump, false), Some((NOP, 0..4)));
        for number in 0..STEPS {
            assert_eq!(step_to(number, &jump, true), None);
            assert_eq!(step_to(number, &NOP, false), None);
        }
    }
}
