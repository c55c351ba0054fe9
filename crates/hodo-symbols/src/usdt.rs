//! USDT probes that programmers put in a program (`sys/sdt.h`): the notes in `.note.stapsdt`.
//!
//! A probe that is a tracepoint also has a note in `.note.hodo.tracepoint` (owner `hodo`, type 1). It contains the
//! address of the same instruction, then three texts: the group, the name, and the arguments as `NAME:TYPE NAME:TYPE`.
//! The static key that switches it on is named `GROUP:NAME`.

use std::collections::HashMap;

use object::read::elf::ElfFile64;
use object::{Object, ObjectSection};

/// A probe in the source of a program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Usdt {
    /// The name of its provider.
    pub provider: String,
    /// Its name. Several probes may have the same name.
    pub name: String,
    /// Link-time address of its instruction, a `nop`.
    pub addr: u64,
    /// The link-time address of its semaphore, if it has one: two bytes that are not 0 while the probe is in use.
    pub semaphore: Option<u64>,
    /// Its arguments, as the assembler wrote them: `-4@%edi 8@-16(%rbp)`.
    pub arguments: String,
    /// More about it, if it is a tracepoint.
    pub tracepoint: Option<Tracepoint>,
}

/// A tracepoint: a probe that is reached only while a static key is on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tracepoint {
    /// Its arguments, in the order of the probe's.
    pub arguments: Vec<Argument>,
}

/// An argument of a tracepoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Argument {
    /// Its name.
    pub name: String,
    /// `u8` … `u64`, `i8` … `i64`, `bool`, `char`, `f32`, `f64`, `ptr`, or `str` for the address of a null-terminated
    /// string.
    pub ty: String,
}

/// Returns the probes of an ELF file in the order of its notes. A damaged note ends the list.
#[must_use]
pub fn usdt(bytes: &[u8]) -> Vec<Usdt> {
    let mut found = Vec::new();
    let Ok(file) = ElfFile64::<object::Endianness>::parse(bytes) else {
        return found;
    };
    let content = |name| {
        let section = file.section_by_name(name)?;
        section.uncompressed_data().ok()
    };
    let Some(notes) = content(".note.stapsdt") else {
        return found;
    };
    let base = file.section_by_name(".stapsdt.base");
    let base = base.map(|section| section.address());
    let mut rest = &*notes;
    while let Some((description, after)) = note(rest, STAPSDT) {
        rest = after;
        let Some(description) = description else {
            continue;
        };
        let Some(probe) = read(description, base) else {
            break;
        };
        found.push(probe);
    }
    let by_addr: HashMap<u64, usize> = (found.iter().enumerate())
        .map(|(index, probe)| (probe.addr, index))
        .collect();
    let notes = content(".note.hodo.tracepoint").unwrap_or_default();
    let mut rest = &*notes;
    while let Some((description, after)) = note(rest, TRACEPOINT) {
        rest = after;
        let Some(description) = description else {
            continue;
        };
        let Some(((addr, group, name), tracepoint)) = read_tracepoint(description) else {
            break;
        };
        if let Some(&index) = by_addr.get(&addr) {
            let probe = &mut found[index];
            if (&probe.provider, &probe.name) == (&group, &name) {
                probe.tracepoint = Some(tracepoint);
            }
        }
    }
    found
}

/// The owners and types of notes.
const STAPSDT: (&[u8], u32) = (b"stapsdt\0", 3);
const TRACEPOINT: (&[u8], u32) = (b"hodo\0", 1);

/// Returns the description of the first note if it is of this kind, and what follows the note.
pub(crate) fn note<'n>(
    bytes: &'n [u8],
    wanted: (&[u8], u32),
) -> Option<(Option<&'n [u8]>, &'n [u8])> {
    let word = |at: usize| Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
    let (name, description, kind) = (word(0)? as usize, word(4)? as usize, word(8)?);
    let begin = 12usize.checked_add(name.checked_next_multiple_of(4)?)?;
    let end = begin.checked_add(description)?;
    let owner = bytes.get(12..12usize.checked_add(name)?)?;
    let content = bytes.get(begin..end)?;
    let after = bytes
        .get(end.checked_next_multiple_of(4)?..)
        .unwrap_or_default();
    Some(((wanted == (owner, kind)).then_some(content), after))
}

/// Decodes a note. `base` is the address of the section that the note's addresses refer to; it may have been moved
/// since.
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
        tracepoint: None,
    })
}

/// Address, group and name, and the rest.
type Named = ((u64, String, String), Tracepoint);

fn read_tracepoint(description: &[u8]) -> Option<Named> {
    let word = |at: usize| {
        let bytes = description.get(at..at + 8)?;
        Some(u64::from_le_bytes(bytes.try_into().ok()?))
    };
    let mut texts = description.get(8..)?.split(|byte| *byte == 0);
    let mut text = || Some(String::from_utf8_lossy(texts.next()?).into_owned());
    let (group, name, arguments) = (text()?, text()?, text()?);
    let arguments = arguments.split_ascii_whitespace().map(|argument| {
        let (name, ty) = argument.split_once(':')?;
        Some(Argument {
            name: name.to_owned(),
            ty: ty.to_owned(),
        })
    });
    let tracepoint = Tracepoint {
        arguments: arguments.collect::<Option<_>>()?,
    };
    Some(((word(0)?, group, name), tracepoint))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_describes_a_probe() {
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
        assert_eq!(note(&[0xFF; 40], STAPSDT), None);
        let mut description = [0; 8].to_vec();
        description.extend(b"group\0name\0id:u64 path\0");
        assert_eq!(read_tracepoint(&description), None);
        assert_eq!(read_tracepoint(&description[..12]), None);
    }

    #[test]
    fn a_note_describes_a_tracepoint() {
        let mut description = 0x1000u64.to_le_bytes().to_vec();
        description.extend(b"net\0request\0id:u64 path:str\0");
        let mut bytes = Vec::new();
        for word in [5, description.len() as u32, 1] {
            bytes.extend(word.to_le_bytes());
        }
        bytes.extend(b"hodo\0\0\0\0");
        bytes.extend(&description);
        let (content, after) = note(&bytes, TRACEPOINT).expect("a note");
        assert_eq!((content, after), (Some(&*description), &[][..]));
        assert_eq!(note(&bytes, STAPSDT), Some((None, &[][..])));
        let (named, tracepoint) = read_tracepoint(&description).expect("a tracepoint");
        assert_eq!(named, (0x1000, "net".to_owned(), "request".to_owned()));
        let arguments: Vec<_> = (tracepoint.arguments.iter())
            .map(|argument| (&*argument.name, &*argument.ty))
            .collect();
        assert_eq!(arguments, [("id", "u64"), ("path", "str")]);
        description.truncate(description.len() - 13);
        description.extend(b"\0");
        let (_, tracepoint) = read_tracepoint(&description).expect("a tracepoint");
        assert_eq!(tracepoint.arguments.len(), 1);
    }
}
