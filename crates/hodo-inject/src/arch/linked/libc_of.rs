//! Which C library a program uses: only glibc surely leaves the word free that is used beside the thread pointer.

use object::elf::{NT_GNU_ABI_TAG, PT_INTERP, PT_NOTE};
use object::read::elf::{ElfFile64, FileHeader as _, ProgramHeader as _};
use object::{Endianness, Object, ObjectSymbol};

const OTHER: &str = "its C library is not glibc: the word beside its thread pointer, which hodo needs to tell threads apart, may \
     be in use";

/// Why the threads of a program cannot be told apart, if so. If a program names no dynamic linker, it is recognized as
/// one with glibc by a note.
pub fn unsuited(file: &[u8]) -> Option<&'static str> {
    let elf = ElfFile64::<Endianness>::parse(file).ok()?;
    let endian = elf.endian();
    let headers = elf.elf_header().program_headers(endian, file).ok()?;
    for header in headers {
        match header.p_type(endian) {
            PT_INTERP => {
                let name = header.data(endian, file).unwrap_or_default();
                let is_musl = name.windows(7).any(|part| part == b"ld-musl");
                return is_musl.then_some(OTHER);
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
    (!is_linker).then_some(OTHER)
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
    fn only_programs_with_glibc_have_a_free_word() {
        let glibc = b"/lib/ld-linux.so.1\0";
        assert_eq!(unsuited(&file(PT_INTERP, glibc)), None);
        let musl = b"/lib/ld-musl-any.so.1\0";
        assert_eq!(unsuited(&file(PT_INTERP, musl)), Some(OTHER));
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
