//! What program files contain: the branches and the code.

use std::fmt;
use std::fs;
use std::path::Path;

use iced_x86::{Code, Decoder, DecoderOptions, Instruction};
use object::{Object, ObjectSection, ObjectSymbol};

/// A branch, as described by the table in the file.
#[derive(Clone)]
pub struct Entry {
    /// Address of the instruction.
    pub code: u64,
    /// Its target.
    pub target: u64,
    /// The value of the branch if the instruction does not jump.
    pub likely: bool,
    /// The instruction.
    pub instruction: Instruction,
}

impl fmt::Debug for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { code, target, .. } = self;
        let (length, kind) = (self.instruction.len(), self.instruction.code());
        write!(f, "{code:#x}→{target:#x} {kind:?}, {length} bytes")
    }
}

impl Entry {
    /// Returns whether it is a jump; otherwise it is a nop.
    pub fn is_jump(&self) -> bool {
        matches!(
            self.instruction.code(),
            Code::Jmp_rel8_64 | Code::Jmp_rel32_64
        )
    }

    /// Returns whether the instruction is one of the four, of the size that the distance requires.
    pub fn is_right(&self) -> bool {
        let length = self.instruction.len() as u64;
        let distance = self.target.wrapping_sub(self.code + 2).cast_signed();
        let near = i8::try_from(distance).is_ok();
        let known = if self.is_jump() {
            self.instruction.near_branch_target() == self.target
        } else {
            matches!(self.instruction.code(), Code::Nopw | Code::Nop_rm32)
        };
        known && length == if near { 2 } else { 5 }
    }
}

/// What a note says about a tracepoint.
#[derive(Debug, Clone)]
pub struct Note {
    /// Address of its nop.
    pub address: u64,
    /// Its group.
    pub group: String,
    /// Its name.
    pub name: String,
    /// The arguments' registers, or their names and types.
    pub arguments: String,
}

/// An executable or library.
pub struct Elf {
    bytes: Vec<u8>,
}

impl Elf {
    /// Reads one.
    pub fn read(path: &Path) -> Self {
        Self {
            bytes: fs::read(path).expect("the file can be read"),
        }
    }

    fn file(&self) -> object::File<'_> {
        object::File::parse(&*self.bytes).expect("an ELF file")
    }

    /// The instruction at an address.
    pub fn instruction(&self, address: u64) -> Instruction {
        let bytes = self.code(address, 15);
        let mut decoder = Decoder::with_ip(64, &bytes, address, DecoderOptions::NONE);
        decoder.decode()
    }

    /// Code, up to the end of the section.
    pub fn code(&self, address: u64, size: u64) -> Vec<u8> {
        let file = self.file();
        let section = file
            .sections()
            .find(|section| {
                section.kind() == object::SectionKind::Text
                    && (section.address()..section.address() + section.size()).contains(&address)
            })
            .expect("the address is in a section of code");
        let data = section.data().expect("its bytes");
        let start = (address - section.address()) as usize;
        data[start..data.len().min(start + size as usize)].to_vec()
    }

    /// All branches.
    pub fn entries(&self) -> Vec<Entry> {
        let file = self.file();
        let Some(section) = file.section_by_name("hodo_keys") else {
            return Vec::new();
        };
        let data = section.data().expect("its bytes");
        let (entries, rest) = data.as_chunks::<16>();
        assert!(rest.is_empty(), "a table of {} bytes", data.len());
        let mut found = Vec::new();
        for (index, entry) in entries.iter().enumerate() {
            let at = section.address() + index as u64 * 16;
            let field = |place: usize| {
                i32::from_le_bytes(entry[place..place + 4].try_into().expect("four bytes"))
            };
            let code = at.wrapping_add_signed(i64::from(field(0)));
            found.push(Entry {
                code,
                target: (at + 4).wrapping_add_signed(i64::from(field(4))),
                likely: field(12) & 1 != 0,
                instruction: self.instruction(code),
            });
        }
        found
    }

    /// The instructions of a function, without the padding after it.
    pub fn function(&self, name: &str) -> Vec<Instruction> {
        let file = self.file();
        let symbol = file
            .symbols()
            .find(|symbol| symbol.name() == Ok(name))
            .unwrap_or_else(|| panic!("there is a function {name}"));
        let bytes = self.code(symbol.address(), symbol.size());
        let decoder = Decoder::with_ip(64, &bytes, symbol.address(), DecoderOptions::NONE);
        decoder.into_iter().collect()
    }

    /// The notes about tracepoints in a section: `.note.stapsdt` or `.note.hodo.tracepoint`.
    pub fn notes(&self, section: &str) -> Vec<Note> {
        let file = self.file();
        let Some(section) = file.section_by_name(section) else {
            return Vec::new();
        };
        let data = section.data().expect("its bytes");
        let word = |at: usize| {
            let bytes = data[at..at + 4].try_into().expect("four bytes");
            u32::from_le_bytes(bytes) as usize
        };
        let mut notes = Vec::new();
        let mut at = 0;
        while at < data.len() {
            let (owner, length) = (word(at), word(at + 4));
            let start = at + 12 + owner.next_multiple_of(4);
            let description = &data[start..start + length];
            let (address, description) = description.split_at(8);
            // The notes of `sys/sdt.h` have two more addresses.
            let text = &description[if owner == 8 { 16 } else { 0 }..];
            let text = std::str::from_utf8(text).expect("a text");
            let parts: Vec<&str> = text.split('\0').collect();
            let [group, name, arguments, ""] = parts[..] else {
                panic!("a note with the parts {parts:?}")
            };
            notes.push(Note {
                address: u64::from_le_bytes(address.try_into().expect("eight bytes")),
                group: group.to_owned(),
                name: name.to_owned(),
                arguments: arguments.to_owned(),
            });
            at = start + length.next_multiple_of(4);
        }
        notes
    }

    /// The address of a symbol.
    pub fn address(&self, name: &str) -> u64 {
        let file = self.file();
        let symbol = file.symbols().find(|symbol| symbol.name() == Ok(name));
        symbol.expect("there is this symbol").address()
    }

    /// Returns whether a symbol whose name contains this is defined.
    pub fn defines(&self, word: &str) -> bool {
        self.file().symbols().any(|symbol| {
            symbol.is_definition() && symbol.name().is_ok_and(|name| name.contains(word))
        })
    }
}
