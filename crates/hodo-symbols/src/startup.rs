//! The name of a stripped program's main function: the C library's startup code says where it is.

use object::read::elf::{ElfFile64, ElfSection64};
use object::{Endianness, Object, ObjectSection};

use crate::functions::{Nature, Symbols};

/// Bytes of `_start` that are looked at: glibc's and musl's are shorter.
const LENGTH: u64 = 64;

/// Gives `main` its name if no symbol did.
pub(crate) fn name(file: &ElfFile64<'_, Endianness>, symbols: &mut Symbols) {
    let entry = file.entry();
    let end = |section: &ElfSection64<'_, '_, Endianness>| {
        section.address().saturating_add(section.size())
    };
    let section = file
        .sections()
        .find(|section| (section.address()..end(section)).contains(&entry));
    let code = section.and_then(|section| {
        let length = (end(&section) - entry).min(LENGTH);
        section.data_range(entry, length).ok().flatten()
    });
    let Some(code) = code else { return };
    let Some(main) = main_of(code, entry) else {
        return;
    };
    let at = symbols.functions.binary_search_by_key(&main, |f| f.addr);
    if let Ok(at) = at
        && symbols.functions[at].nature == Nature::Anonymous
        && !symbols.functions.iter().any(|f| f.name == "main")
    {
        symbols.functions[at].name = "main".to_owned();
    }
}

/// What startup code at `entry` hands over as its first argument before it calls `__libc_start_main` (System V ABI, x86-64:
/// in `rdi`).
fn main_of(code: &[u8], entry: u64) -> Option<u64> {
    (0..code.len().saturating_sub(9)).find_map(|at| {
        let number = i32::from_le_bytes(code[at + 3..at + 7].try_into().ok()?);
        let calls = |bytes: &[u8]| {
            bytes.starts_with(&[0xE8])
                || bytes.starts_with(&[0x67, 0xE8])
                || bytes.starts_with(&[0xFF, 0x15])
        };
        if !calls(&code[at + 7..]) {
            return None;
        }
        match code[at..at + 3] {
            // lea rdi, [rip + number]
            [0x48, 0x8D, 0x3D] => Some(
                entry
                    .wrapping_add(at as u64 + 7)
                    .wrapping_add_signed(number.into()),
            ),
            // mov rdi, number
            [0x48, 0xC7, 0xC7] => Some(i64::from(number).cast_unsigned()),
            _ => None,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn startup_code_tells_where_main_is() {
        // xor ebp, ebp; lea rdi, [rip + 0x100]; call [rip + 5]
        let code = [
            0x31, 0xED, 0x48, 0x8D, 0x3D, 0, 1, 0, 0, 0xFF, 0x15, 5, 0, 0, 0, 0xF4,
        ];
        assert_eq!(main_of(&code, 0x1000), Some(0x1109));
        // mov rdi, 0x401000; call +0
        let code = [0x48, 0xC7, 0xC7, 0, 0x10, 0x40, 0, 0xE8, 0, 0, 0, 0, 0xF4];
        assert_eq!(main_of(&code, 0x1000), Some(0x40_1000));
        assert_eq!(main_of(&[0x90; 64], 0x1000), None);
        assert_eq!(main_of(&[], 0x1000), None);
    }

    #[test]
    fn a_stripped_program_has_a_main() {
        let bytes = std::fs::read("/bin/ls").expect("ls");
        let symbols = crate::symbols(&bytes).expect("its symbols");
        let mains = symbols.functions.iter().filter(|f| f.name == "main");
        assert_eq!(mains.count(), 1);
    }
}
