//! Instructions as text, in the syntax of GNU's disassembler; numbers are hexadecimal.
//!
//! Instructions that use their own address are written here, with addresses, and so are hints; the decoder of
//! `yaxpeax-arm` writes the rest. Scalable vector and matrix instructions, which neither knows, are shown as words, as
//! are bytes that are not an instruction.

use alloc::string::String;
use core::fmt::Write;

use yaxpeax_arch::{Decoder, U8Reader};
use yaxpeax_arm::armv8::a64::InstDecoder;

use super::decode::{Insn, Kind};

/// The conditions by their numbers.
const CONDITIONS: [&str; 16] = [
    "eq", "ne", "cs", "cc", "mi", "pl", "vs", "vc", "hi", "ls", "ge", "lt", "gt", "le", "al", "nv",
];

/// The hints that have names, by their numbers.
const HINTS: [(u32, &str); 37] = [
    (0, "nop"),
    (1, "yield"),
    (2, "wfe"),
    (3, "wfi"),
    (4, "sev"),
    (5, "sevl"),
    (6, "dgh"),
    (7, "xpaclri"),
    (8, "pacia1716"),
    (10, "pacib1716"),
    (12, "autia1716"),
    (14, "autib1716"),
    (16, "esb"),
    (17, "psb csync"),
    (18, "tsb csync"),
    (19, "gcsb dsync"),
    (20, "csdb"),
    (22, "clrbhb"),
    (24, "paciaz"),
    (25, "paciasp"),
    (26, "pacibz"),
    (27, "pacibsp"),
    (28, "autiaz"),
    (29, "autiasp"),
    (30, "autibz"),
    (31, "autibsp"),
    (32, "bti"),
    (34, "bti c"),
    (36, "bti j"),
    (38, "bti jc"),
    (39, "pacm"),
    (40, "chkfeat x16"),
    (48, "stshh keep"),
    (49, "stshh strm"),
    (50, "stcph"),
    (65, "hint #0x41"),
    (127, "hint #0x7f"),
];

/// Cache operations on an address, by the concatenated fields `op1`, `CRn`, `CRm` and `op2`.
const CACHES: [(u32, &str); 9] = [
    (0x1BA1, "dc cvac"),
    (0x1BD9, "dc cvau"),
    (0x1BE1, "dc cvap"),
    (0x1BE9, "dc cvadp"),
    (0x1BF1, "dc civac"),
    (0x1BA9, "ic ivau"),
    (0x1BA3, "dc gva"),
    (0x1BA4, "dc gzva"),
    (0x1BB1, "dc ivac"),
];

/// The instruction at the start of `code` as text.
#[must_use]
pub fn text(code: &[u8], addr: u64) -> String {
    let insn = Insn::new(code, addr);
    if insn.len < 4 {
        let mut text = String::from(".byte");
        for (index, byte) in code.iter().enumerate() {
            let separator = if index == 0 { "" } else { "," };
            let _ = write!(text, "{separator} 0x{byte:02x}");
        }
        return text;
    }
    by_address(&insn)
        .or_else(|| by_name(&insn))
        .unwrap_or_else(|| others(&insn))
}

/// A general register that is 64 bits wide, or 32.
fn register(number: u8, wide: bool) -> String {
    let width = if wide { 'x' } else { 'w' };
    match number {
        31 => format!("{width}zr"),
        _ => format!("{width}{number}"),
    }
}

/// Instructions that contain an address.
fn by_address(insn: &Insn) -> Option<String> {
    let to = insn.target()?;
    let rd = |wide: bool| register(insn.rd(), wide);
    Some(match insn.kind {
        Kind::Branch => format!("b {to:#x}"),
        Kind::BranchLink => format!("bl {to:#x}"),
        Kind::Conditional => {
            let consistent = if insn.bit(4) { "c" } else { "" };
            let condition = CONDITIONS[insn.field(0, 4) as usize];
            format!("b{consistent}.{condition} {to:#x}")
        }
        Kind::CompareZero => {
            let name = if insn.bit(24) { "cbnz" } else { "cbz" };
            format!("{name} {}, {to:#x}", rd(insn.bit(31)))
        }
        Kind::TestBit => {
            let name = if insn.bit(24) { "tbnz" } else { "tbz" };
            let bit = insn.field(31, 1) << 5 | insn.field(19, 5);
            format!("{name} {}, #{bit:#x}, {to:#x}", rd(insn.bit(31)))
        }
        Kind::Adr => format!("adr {}, {to:#x}", rd(true)),
        Kind::Adrp => format!("adrp {}, {to:#x}", rd(true)),
        _ => match (insn.bit(26), insn.field(30, 2)) {
            (false, 3) => format!("prfm #{:#x}, {to:#x}", insn.rd()),
            (false, 2) => format!("ldrsw {}, {to:#x}", rd(true)),
            (false, size) => format!("ldr {}, {to:#x}", rd(size == 1)),
            (true, size) => {
                let width = ["s", "d", "q"].get(size as usize)?;
                format!("ldr {width}{}, {to:#x}", insn.rd())
            }
        },
    })
}

/// Instructions with names of their own.
fn by_name(insn: &Insn) -> Option<String> {
    if let Some(number) = insn.hint() {
        let named = HINTS.iter().find(|(hint, _)| *hint == number);
        return Some(
            named.map_or_else(|| format!("hint #{number:#x}"), |(_, name)| (*name).into()),
        );
    }
    if insn.kind == Kind::System {
        let operation = insn.field(5, 14);
        let named = CACHES.iter().find(|(known, _)| *known == operation);
        return named.map(|(_, name)| format!("{name}, {}", register(insn.rd(), true)));
    }
    None
}

/// Everything else.
fn others(insn: &Insn) -> String {
    let word = || format!(".inst 0x{:08x}", insn.word);
    if insn.kind == Kind::Invalid {
        return word();
    }
    let bytes = insn.word.to_le_bytes();
    let Ok(decoded) = InstDecoder::default().decode(&mut U8Reader::new(&bytes)) else {
        return word();
    };
    let text = format!("{decoded}");
    match (insn.kind, text.split_once(", ")) {
        // The decoder leaves out a bit of the register.
        (Kind::WriteSystem, Some((to, _))) => format!("{to}, {}", register(insn.rd(), true)),
        _ => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn system_registers_are_read_into_and_written_from_any_register() {
        let text = |word: u32| text(&word.to_le_bytes(), 0);
        for register in 0..31 {
            let written = text(0xD51B_D040 | register);
            assert_eq!(written, format!("msr tpidr_el0, x{register}"));
            let read = text(0xD53B_D040 | register);
            assert_eq!(read, format!("mrs x{register}, tpidr_el0"));
        }
        assert_eq!(text(0xD51B_D05F), "msr tpidr_el0, xzr");
    }
}
