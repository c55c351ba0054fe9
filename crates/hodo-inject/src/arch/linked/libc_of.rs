//! Which C library a program uses, and whether it leaves the word free that is used beside the thread pointer. Others
//! than glibc and musl are not known to.

use object::elf::{NT_GNU_ABI_TAG, PT_INTERP, PT_NOTE};
use object::read::elf::{ElfFile64, FileHeader as _, ProgramHeader as _};
use object::{Endianness, Object, ObjectSymbol};

use crate::arch::FREE_WORD_IN_MUSL;

const OTHER: &str = "its C library is not known to leave the word beside its thread pointer free, which hodo needs \
     to tell threads apart";

/// Why the threads of a program cannot be told apart, if so. If a program names no dynamic linker, it is recognized as
/// one with glibc by a note, and as one with musl by a function that sets the thread pointer.
pub fn unsuited(file: &[u8]) -> Option<&'static str> {
    if_unsuited(file, FREE_WORD_IN_MUSL)
}

fn if_unsuited(file: &[u8], musl_suits: bool) -> Option<&'static str> {
    let elf = ElfFile64::<Endianness>::parse(file).ok()?;
    let endian = elf.endian();
    let headers = elf.elf_header().program_headers(endian, file).ok()?;
    for header in headers {
        match header.p_type(endian) {
            PT_INTERP => {
                let name = header.data(endian, file).unwrap_or_default();
                let is_musl = name.windows(7).any(|part| part == b"ld-musl");
                return (is_musl && !musl_suits).then_some(OTHER);
            }
            PT_NOTE => {
                let mut notes = header.notes(endian, file).ok().flatten();
                while let Some(Ok(Some(note))) = notes.as_mut().map(|notes| notes.next()) {
                    if note.name() == b"GNU" && note.n_type(endian) == NT_GNU_ABI_TAG {
                        return None;
                    }
                }
            }
            _ => {}
        }
    }
    // This may be glibc's dynamic linker, executed directly.
    let mut symbols = elf.dynamic_symbols();
    let is_linker = symbols.any(|symbol| symbol.name() == Ok("_rtld_global"));
    let mut symbols = elf.symbols();
    let suits = is_linker || musl_suits && symbols.any(|symbol| symbol.name() == Ok("__init_tp"));
    (!suits).then_some(OTHER)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Any, for the machine is not looked at.
    const MACHINE: u16 = 243;

    /// A file with one program header, and the contents of its segment.
    fn file(kind: u32, content: &[u8]) -> Vec<u8> {
        let mut file = b"\x7fELF\x02\x01\x01".to_vec();
        file.resize(64, 0);
        let mut put = |at: usize, bytes: &[u8]| file[at..at + bytes.len()].copy_from_slice(bytes);
        put(16, &2u16.to_le_bytes());
        put(18, &MACHINE.to_le_bytes());
        put(20, &1u32.to_le_bytes());
        put(32, &64u64.to_le_bytes());
        put(52, &64u16.to_le_bytes());
        put(54, &56u16.to_le_bytes());
        put(56, &1u16.to_le_bytes());
        file.extend(kind.to_le_bytes());
        file.extend(4u32.to_le_bytes());
        for word in [120, 0, 0, content.len() as u64, content.len() as u64, 4] {
            file.extend(word.to_le_bytes());
        }
        file.extend(content);
        file
    }

    #[test]
    fn programs_whose_library_is_known_have_a_free_word() {
        let unsuited = |file: &[u8]| {
            let found = if_unsuited(file, false);
            assert_eq!(if_unsuited(file, true), found);
            found
        };
        let glibc = b"/lib/ld-linux.so.1\0";
        assert_eq!(unsuited(&file(PT_INTERP, glibc)), None);
        let musl = b"/lib/ld-musl-any.so.1\0";
        assert_eq!(if_unsuited(&file(PT_INTERP, musl), false), Some(OTHER));
        assert_eq!(if_unsuited(&file(PT_INTERP, musl), true), None);
        let mut note = Vec::new();
        for word in [4, 16, NT_GNU_ABI_TAG] {
            note.extend(word.to_le_bytes());
        }
        note.extend(b"GNU\0");
        note.extend([0; 16]);
        assert_eq!(unsuited(&file(PT_NOTE, &note)), None);
        note[8] = 3;
        assert_eq!(unsuited(&file(PT_NOTE, &note)), Some(OTHER));
        assert_eq!(unsuited(&file(0, b"")), Some(OTHER));
    }
}
