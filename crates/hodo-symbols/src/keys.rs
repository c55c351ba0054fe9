//! Static keys: the program itself switches branches by changing their instructions between a jump and a nop.
//!
//! The section `hodo_keys` has 16 bytes for each branch. The first three fields are 32-bit distances from their own
//! addresses: to the instruction, to the target of its jump, and to the word of the global offset table that holds the
//! address of a symbol. The fourth is the distance of the key from that symbol. Its bit 0 is the value of the condition
//! when the branch does not jump; the next two bits are unused. A key has 32 bytes: its state, flags, the address and
//! length of its name, and its index if it is in an array.

use std::collections::HashMap;

use hodo_abi::Span;
use object::elf;
use object::read::elf::{ElfFile64, ProgramHeader as _, RelrIterator, SectionHeader as _};
use object::{
    Endianness, Object, ObjectSection, ObjectSymbol, ObjectSymbolTable, RelocationFlags,
    RelocationTarget,
};

use crate::usdt::note;

mod forms;

use forms::Forms;

/// The section's name.
const SECTION: &str = "hodo_keys";
/// Bytes of an entry of the section.
const ENTRY: usize = 16;
/// Bytes of a key.
const KEY: u64 = 32;
/// Flags of a key.
const INITIALLY: u32 = 1;
const TRACEPOINT: u32 = 2;
const ELEMENT: u32 = 4;

/// A file's branches on static keys, and the keys that they depend on. All addresses are link-time addresses.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Keys {
    /// Sorted by the address of the instruction. No two overlap.
    pub branches: Vec<Branch>,
    /// Sorted by address.
    pub keys: Vec<Key>,
    /// The address of the word that is not 0 while a thread switches keys, if the file has a note with it (in
    /// `.note.hodo.keys`, owner `hodo`, type 2). Its upper half is the id of the thread's process.
    pub lock: Option<u64>,
}

/// A branch on a static key: one instruction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Branch {
    /// The address of the instruction.
    pub code: u64,
    /// The target of its jump.
    pub target: u64,
    /// Its key.
    pub key: KeyPlace,
    /// Whether the key is on when the instruction is a nop.
    pub likely: bool,
    /// The size of the instruction in bytes.
    pub size: u8,
    /// Whether it is a jump in the file.
    pub jumps: bool,
    /// The forms of its instruction set.
    forms: Forms,
}

impl Branch {
    /// Returns the address of the next instruction.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.code.wrapping_add(self.size.into())
    }

    /// Returns the instruction for a state of the key. Distances are those in the file.
    #[must_use]
    pub fn bytes(&self, enabled: bool) -> Vec<u8> {
        match enabled != self.likely {
            true => self.forms.jump(self.size, self.code, self.target),
            false => self.forms.nop(self.size).to_vec(),
        }
    }
}

/// The place of a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KeyPlace {
    /// In the file itself, unless another file that comes first has a symbol of the same name.
    Here {
        /// Its link-time address.
        addr: u64,
        /// The name of the symbol, if the dynamic linker looks the key up.
        symbol: Option<String>,
        /// The offset from the symbol in bytes.
        offset: u64,
    },
    /// In another file that the dynamic linker finds.
    Elsewhere {
        /// The name of the symbol.
        symbol: String,
        /// The offset from the symbol in bytes.
        offset: u64,
    },
}

/// A static key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Key {
    /// The address of its 32 bytes. The first four are its state.
    pub addr: u64,
    /// Its name, or that of its array. Empty if the file does not have it.
    pub name: String,
    /// Its index, if it is in an array.
    pub index: Option<u64>,
    /// Whether it is on when the program starts.
    pub initial: bool,
    /// Whether it switches a tracepoint.
    pub tracepoint: bool,
}

/// What is wrong with a file's table of static branches.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum KeysError {
    /// Its size is not a multiple of an entry's size.
    #[error("its size of {0} bytes is not a multiple of 16")]
    Size(usize),
    /// The section cannot be read.
    #[error("it cannot be read: {0}")]
    Section(String),
    /// The address in this entry is not code.
    #[error("entry {0} refers to {1:#x}, which is not code")]
    NoCode(usize, u64),
    /// The instruction is neither a nop nor a jump.
    #[error("entry {0} refers to {1:#x}, where there is neither a nop nor a jump")]
    NoBranch(usize, u64),
    /// The jump leads somewhere else.
    #[error("the jump at {1:#x} leads to {2:#x}, but entry {0} says {3:#x}")]
    Target(usize, u64, u64, u64),
    /// The jump does not reach that far.
    #[error("the jump at {1:#x} does not reach {2:#x}, its target in entry {0}")]
    Far(usize, u64, u64),
    /// There is no address of a key.
    #[error("entry {0} takes the address of its key from {1:#x}, where there is none")]
    NoSlot(usize, u64),
    /// A key does not fit there.
    #[error("the key of entry {0} is at {1:#x}, which is not in the data")]
    NoKey(usize, u64),
    /// The key's name is not in the file.
    #[error("the name of the key at {0:#x} is not in the file")]
    NoName(u64),
    /// Two branches overlap.
    #[error("the branches at {0:#x} and {1:#x} overlap")]
    Overlap(u64, u64),
}

/// Returns the branches on static keys of an ELF file, and its keys. There are none if the file lacks the section, or
/// if static keys do not exist for its instruction set.
///
/// # Errors
/// If the table is damaged.
pub fn keys(bytes: &[u8]) -> Result<Keys, KeysError> {
    let Ok(file) = ElfFile64::<Endianness>::parse(bytes) else {
        return Ok(Keys::default());
    };
    let Some(forms) = Forms::of(&file) else {
        return Ok(Keys::default());
    };
    let mut sections = Vec::new();
    for section in file.sections() {
        if section.name() == Ok(SECTION) && section.address() != 0 {
            let data = section.data();
            let data = data.map_err(|error| KeysError::Section(error.to_string()))?;
            sections.push((section.address(), data));
        }
    }
    if sections.is_empty() {
        return Ok(Keys::default());
    }
    let memory = Memory::new(&file, forms);
    let mut found = Keys::default();
    let mut index = 0;
    for (start, data) in sections {
        let (entries, []) = data.as_chunks::<ENTRY>() else {
            return Err(KeysError::Size(data.len()));
        };
        for (at, entry) in (start..).step_by(ENTRY).zip(entries) {
            found.branches.push(memory.branch(index, at, entry)?);
            index += 1;
        }
    }
    found.branches.sort_by_key(|branch| branch.code);
    // If linkers merge identical code, it is listed once for each of its origins.
    found.branches.dedup();
    for pair in found.branches.windows(2) {
        if pair[0].end() > pair[1].code {
            return Err(KeysError::Overlap(pair[0].code, pair[1].code));
        }
    }
    found.lock = lock(&file);
    let mut own: Vec<u64> = found.branches.iter().filter_map(own_key).collect();
    own.sort_unstable();
    own.dedup();
    for addr in own {
        found.keys.push(memory.key(addr)?);
    }
    Ok(found)
}

/// Returns the key at an address of a file, for keys on which only other files have branches.
#[must_use]
pub fn key_at(bytes: &[u8], addr: u64) -> Option<Key> {
    let file = ElfFile64::<Endianness>::parse(bytes).ok()?;
    let forms = Forms::of(&file)?;
    Memory::new(&file, forms).key(addr).ok()
}

/// Returns the address of the lock.
fn lock(file: &ElfFile64<'_, Endianness>) -> Option<u64> {
    const LOCK: (&[u8], u32) = (b"hodo\0", 2);
    let section = file.section_by_name(".note.hodo.keys")?;
    let notes = section.uncompressed_data().ok()?;
    let (description, _) = note(&notes, LOCK)?;
    let addr = u64::from_le_bytes(description?.try_into().ok()?);
    (addr != 0).then_some(addr)
}

/// Returns the address of a branch's key, if it is in this file.
fn own_key(branch: &Branch) -> Option<u64> {
    match branch.key {
        KeyPlace::Here { addr, .. } => Some(addr),
        KeyPlace::Elsewhere { .. } => None,
    }
}

/// The value that a word of the data will have.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Word {
    Address(u64),
    /// A symbol by name, its address if it is in the file itself, and an addend.
    Symbol(String, Option<u64>, i64),
}

/// A loaded segment of the file.
struct Segment<'a> {
    addr: u64,
    /// The size in memory in bytes. Bytes beyond those in the file are 0.
    size: u64,
    bytes: &'a [u8],
    executable: bool,
}

/// The file as it will be in memory.
struct Memory<'a> {
    segments: Vec<Segment<'a>>,
    relocated: HashMap<u64, Word>,
    forms: Forms,
}

impl<'a> Memory<'a> {
    fn new(file: &ElfFile64<'a, Endianness>, forms: Forms) -> Self {
        let endian = file.endian();
        let headers = file.elf_program_headers().iter();
        let loaded = headers.filter(|header| header.p_type(endian) == elf::PT_LOAD);
        let segments = loaded.map(|header| Segment {
            addr: header.p_vaddr(endian),
            size: header.p_memsz(endian),
            bytes: header.data(endian, file.data()).unwrap_or_default(),
            executable: header.p_flags(endian) & elf::PF_X != 0,
        });
        let mut memory = Self {
            segments: segments.collect(),
            relocated: HashMap::new(),
            forms,
        };
        let symbols = file.dynamic_symbol_table();
        for (at, relocation) in file.dynamic_relocations().into_iter().flatten() {
            let RelocationFlags::Elf { r_type } = relocation.flags() else {
                continue;
            };
            let addend = relocation.addend();
            let relocations = forms.relocations();
            let word = match relocation.target() {
                _ if r_type == relocations.relative => Word::Address(addend.cast_unsigned()),
                RelocationTarget::Symbol(index)
                    if r_type == relocations.slot || r_type == relocations.address =>
                {
                    let symbol = symbols.as_ref();
                    let Some(symbol) =
                        symbol.and_then(|symbols| symbols.symbol_by_index(index).ok())
                    else {
                        continue;
                    };
                    let name = symbol.name().unwrap_or_default().to_owned();
                    let addend = match r_type == relocations.address {
                        true => addend,
                        false => 0,
                    };
                    let own = (!symbol.is_undefined()).then(|| symbol.address());
                    Word::Symbol(name, own, addend)
                }
                _ => continue,
            };
            memory.relocated.insert(at, word);
        }
        for section in file.sections() {
            let header = section.elf_section_header();
            if header.sh_type(endian) == elf::SHT_RELR
                && let Ok(entries) = header.data_as_array(endian, file.data())
            {
                for at in RelrIterator::<elf::FileHeader64<Endianness>>::new(endian, entries) {
                    if let Some(word) = memory.plain(at) {
                        memory.relocated.insert(at, Word::Address(word));
                    }
                }
            }
        }
        memory
    }

    fn segment(&self, addr: u64) -> Option<&Segment<'a>> {
        let mut segments = self.segments.iter();
        segments.find(|segment| addr.wrapping_sub(segment.addr) < segment.size)
    }

    /// Returns this many bytes of the file.
    fn bytes(&self, addr: u64, len: u64) -> Option<&'a [u8]> {
        let segment = self.segment(addr)?;
        let start = usize::try_from(addr - segment.addr).ok()?;
        let end = start.checked_add(usize::try_from(len).ok()?)?;
        segment.bytes.get(start..end)
    }

    /// Returns a word as it is in the file.
    fn plain(&self, addr: u64) -> Option<u64> {
        let word = self.bytes(addr, 8)?;
        Some(u64::from_le_bytes(word.try_into().ok()?))
    }

    /// Returns a word as it will be after relocation.
    fn word(&self, addr: u64) -> Option<Word> {
        let relocated = self.relocated.get(&addr).cloned();
        relocated.or_else(|| self.plain(addr).map(Word::Address))
    }

    /// Decodes the branch of the entry at an address.
    fn branch(&self, index: usize, at: u64, entry: &[u8; ENTRY]) -> Result<Branch, KeysError> {
        let number = |field: usize| {
            let bytes = &entry[field..field + 4];
            u32::from_le_bytes(bytes.try_into().expect("four bytes"))
        };
        let place = |field: usize| {
            let distance = i64::from(number(field).cast_signed());
            at.wrapping_add(field as u64).wrapping_add_signed(distance)
        };
        let (code, target, slot) = (place(0), place(4), place(8));
        let last = number(12);
        for addr in [code, target] {
            if !self
                .segment(addr)
                .is_some_and(|segment| segment.executable && segment.size != 0)
            {
                return Err(KeysError::NoCode(index, addr));
            }
        }
        let (size, jump) = self
            .instruction(code)
            .ok_or(KeysError::NoBranch(index, code))?;
        if let Some(to) = jump
            && to != target
        {
            return Err(KeysError::Target(index, code, to, target));
        }
        if !self.forms.reaches(size, code, target) {
            return Err(KeysError::Far(index, code, target));
        }
        Ok(Branch {
            code,
            target,
            key: self.place(index, slot, u64::from(last & !7))?,
            likely: last & 1 != 0,
            size,
            jumps: jump.is_some(),
            forms: self.forms,
        })
    }

    /// Returns the length of the instruction at an address, and its target if it is a jump.
    fn instruction(&self, addr: u64) -> Option<(u8, Option<u64>)> {
        self.forms.read(addr, |len| self.bytes(addr, len))
    }

    /// Returns the key that is this many bytes after the symbol whose address is in a word.
    fn place(&self, index: usize, slot: u64, offset: u64) -> Result<KeyPlace, KeysError> {
        let no_slot = KeysError::NoSlot(index, slot);
        let (base, symbol) = match self.word(slot) {
            None | Some(Word::Address(0)) => return Err(no_slot),
            Some(Word::Address(base)) => (base, None),
            Some(Word::Symbol(symbol, None, addend)) => {
                if symbol.is_empty() {
                    return Err(no_slot);
                }
                let offset = offset.wrapping_add_signed(addend);
                return Ok(KeyPlace::Elsewhere { symbol, offset });
            }
            Some(Word::Symbol(symbol, Some(base), addend)) => {
                (base.wrapping_add_signed(addend), Some(symbol))
            }
        };
        let addr = base.wrapping_add(offset);
        let fits = self.segment(addr).is_some_and(|segment| {
            !segment.executable && segment.size - (addr - segment.addr) >= KEY
        });
        if !fits {
            return Err(KeysError::NoKey(index, addr));
        }
        Ok(KeyPlace::Here {
            addr,
            symbol,
            offset,
        })
    }

    /// Returns where a key's name is.
    fn name_of(&self, key: u64) -> Option<Span> {
        let at = match self.word(key.checked_add(8)?)? {
            Word::Address(at) => at,
            Word::Symbol(_, at, addend) => at?.wrapping_add_signed(addend),
        };
        Some(Span::at(at, self.plain(key.checked_add(16)?)?))
    }

    /// Returns the key at an address.
    fn key(&self, addr: u64) -> Result<Key, KeysError> {
        let Some(content) = self.bytes(addr, KEY) else {
            // This is a copy of a library's key, made by the dynamic linker.
            return Ok(Key {
                addr,
                name: String::new(),
                index: None,
                initial: false,
                tracepoint: false,
            });
        };
        let name = self.name_of(addr).ok_or(KeysError::NoName(addr))?;
        let text = self
            .bytes(name.start, name.len())
            .ok_or(KeysError::NoName(addr))?;
        let flags = u32::from_le_bytes(content[4..8].try_into().expect("four bytes"));
        let index = u64::from_le_bytes(content[24..].try_into().expect("eight bytes"));
        Ok(Key {
            addr,
            name: String::from_utf8_lossy(text).into_owned(),
            index: (flags & ELEMENT != 0).then_some(index),
            initial: flags & INITIALLY != 0,
            tracepoint: flags & TRACEPOINT != 0,
        })
    }
}
