//! Probes that programmers have put into a program (USDT, `sys/sdt.h`): the notes in `.note.stapsdt`.

use object::read::elf::ElfFile64;
use object::{Object, ObjectSection};

/// A probe that is in the source of a program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Usdt {
    /// Who made it.
    pub provider: String,
    /// Its name. Several places can have the same.
    pub name: String,
    /// Link-time address of its instruction, a `nop`.
    pub addr: u64,
    /// Link-time address of the two bytes that tell the program by another value than 0 that it is wanted; if it has some.
    pub semaphore: Option<u64>,
    /// Its arguments, as the assembler had them: `-4@%edi 8@-16(%rbp)`.
    pub arguments: String,
}

/// The probes of an ELF file in the order of its notes. A damaged note ends them.
#[must_use]
pub fn usdt(bytes: &[u8]) -> Vec<Usdt> {
    let mut found = Vec::new();
    let Ok(file) = ElfFile64::<object::Endianness>::parse(bytes) else {
        return found;
    };
    let section = file.section_by_name(".note.stapsdt");
    let Some(Ok(notes)) = section.map(|section| section.uncompressed_data()) else {
        return found;
    };
    let base = file.section_by_name(".stapsdt.base");
    let base = base.map(|section| section.address());
    let mut rest = &*notes;
    while let Some((description, behind)) = note(rest) {
        rest = behind;
        let Some(description) = description else {
            continue;
        };
        let Some(probe) = read(description, base) else {
            return found;
        };
        found.push(probe);
    }
    found
}

/// The first note's description, if it is one of these, and what is behind it.
fn note(bytes: &[u8]) -> Option<(Option<&[u8]>, &[u8])> {
    const STAPSDT: u32 = 3;
    let word = |at: usize| Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
    let (name, description, kind) = (word(0)? as usize, word(4)? as usize, word(8)?);
    let begin = 12usize.checked_add(name.checked_next_multiple_of(4)?)?;
    let end = begin.checked_add(description)?;
    let owner = bytes.get(12..12usize.checked_add(name)?)?;
    let content = bytes.get(begin..end)?;
    let behind = bytes
        .get(end.checked_next_multiple_of(4)?..)
        .unwrap_or_default();
    Some((
        (kind == STAPSDT && owner == b"stapsdt\0").then_some(content),
        behind,
    ))
}

/// `base`: where the section is that the addresses are told with; it may have been moved since.
fn read(description: &[u8], base: Option<u64>) -> Option<Usdt> {
    let word = |at: usize| {
        Some(u64::from_le_bytes(
            description.get(at..at + 8)?.try_into().ok()?,
        ))
    };
    let moved = base.unwrap_or(word(8)?).wrapping_sub(word(8)?);
    let semaphore = word(16)?;
    let mut texts = description.get(24..)?.split(|byte| *byte == 0);
    let mut text = || Some(String::from_utf8_lossy(texts.next()?).into_owned());
    Some(Usdt {
        provider: text()?,
        name: text()?,
        addr: word(0)?.wrapping_add(moved),
        semaphore: (semaphore != 0).then(|| semaphore.wrapping_add(moved)),
        arguments: text()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_tells_of_a_probe() {
        let mut description = Vec::new();
        for word in [0x1000u64, 0x2000, 0x3000] {
            description.extend(word.to_le_bytes());
        }
        description.extend(b"provider\0name\x008@%rdi\0");
        let probe = read(&description, Some(0x2010)).expect("a probe");
        assert_eq!((probe.addr, probe.semaphore), (0x1010, Some(0x3010)));
        assert_eq!((&*probe.provider, &*probe.name), ("provider", "name"));
        assert_eq!(probe.arguments, "8@%rdi");
        assert_eq!(read(&description[..30], None), None);
    }

    #[test]
    fn damage_has_no_probes() {
        assert!(usdt(b"\x7fELF").is_empty());
        assert_eq!(note(&[0xFF; 40]), None);
    }
}
