//! The parts of an ELF file that the planner reads.

use crate::model::PlanError;
use crate::relr::unpack;
use hodo_abi::Isa;
use hodo_isa::code::{InstructionSet, instruction_set};
use object::elf;
use object::read::elf::{ElfFile64, FileHeader, ProgramHeader, SectionHeader};
use object::{
    Object, ObjectSection, ObjectSymbol, ObjectSymbolTable, RelocationTarget, SectionFlags,
};

/// A run of bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Text<'a> {
    pub addr: u64,
    pub bytes: &'a [u8],
    /// How many of the bytes at the end are padding after the section.
    pub slack: usize,
    /// Whether it contains a PLT.
    pub plt: bool,
}

impl<'a> Text<'a> {
    pub fn end(&self) -> u64 {
        self.addr + self.bytes.len() as u64
    }

    /// Where the code ends.
    pub fn code_end(&self) -> u64 {
        self.end() - self.slack as u64
    }

    /// Returns the bytes from `from` to `to`, or nothing if they are not all within this run.
    pub fn slice(&self, from: u64, to: u64) -> &'a [u8] {
        let at = |addr: u64| usize::try_from(addr.checked_sub(self.addr)?).ok();
        at(from)
            .zip(at(to))
            .and_then(|(from, to)| self.bytes.get(from..to))
            .unwrap_or_default()
    }
}

pub(crate) struct Image<'a> {
    /// The instruction set of its code.
    pub isa: &'static dyn InstructionSet,
    pub file: ElfFile64<'a>,
    /// Executable sections, sorted; whole segments if there are no section headers.
    pub text: Vec<Text<'a>>,
    /// Other sections with content in memory, sorted.
    pub data: Vec<Text<'a>>,
    pub entry: u64,
    /// A register that has a fixed value in all of its code.
    pub globals: Option<u64>,
    /// Whether it can only run at its link-time address.
    pub fixed: bool,
    /// Whether it has section headers.
    sections: bool,
}

impl<'a> Image<'a> {
    pub fn parse(bytes: &'a [u8]) -> Result<Self, PlanError> {
        let file: ElfFile64<'a> = ElfFile64::parse(bytes)?;
        let endian = file.endian();
        let isa = Isa::of_elf(file.elf_header().e_machine(endian)).and_then(instruction_set);
        let isa = isa.ok_or(PlanError::Machine)?;
        let mut text = Vec::new();
        let mut data = Vec::new();
        for section in file.sections() {
            let SectionFlags::Elf { sh_flags } = section.flags() else {
                continue;
            };
            let flag = |flag: u32| sh_flags & u64::from(flag) != 0;
            let Ok(bytes) = section.data() else { continue };
            if !flag(elf::SHF_ALLOC) || bytes.is_empty() {
                continue;
            }
            let run = Text {
                addr: section.address(),
                bytes,
                slack: 0,
                plt: section.name().is_ok_and(is_plt),
            };
            if flag(elf::SHF_EXECINSTR) {
                text.push(run);
            } else {
                data.push(run);
            }
        }
        let sections = !text.is_empty();
        if !sections {
            for segment in file.elf_program_headers() {
                if segment.p_type(endian) != elf::PT_LOAD {
                    continue;
                }
                let Ok(bytes) = segment.data(endian, bytes) else {
                    continue;
                };
                let run = Text {
                    addr: segment.p_vaddr(endian),
                    bytes,
                    slack: 0,
                    plt: false,
                };
                if segment.p_flags(endian) & elf::PF_X != 0 {
                    text.push(run);
                } else {
                    data.push(run);
                }
            }
        }
        for runs in [&mut text, &mut data] {
            runs.sort_by_key(|t| t.addr);
            // Overlapping runs occur only in damaged files: the first one wins.
            let mut end = 0;
            runs.retain(|t| {
                let keep = t.addr >= end
                    && !t.bytes.is_empty()
                    && t.addr
                        .checked_add(t.bytes.len() as u64)
                        .is_some_and(|end| end < 1 << 48);
                if keep {
                    end = t.end();
                }
                keep
            });
        }
        extend(&file, isa, bytes, &mut text, &data);
        let entry = file.entry();
        let globals = text.iter().find_map(|run| isa.globals(run.bytes, run.addr));
        let fixed = file.elf_header().e_type(endian) == elf::ET_EXEC;
        Ok(Self {
            isa,
            globals,
            file,
            text,
            data,
            entry,
            fixed,
            sections,
        })
    }

    /// Returns the run of executable bytes that contains `addr`.
    pub fn text_at(&self, addr: u64) -> Option<&Text<'a>> {
        find(&self.text, addr)
    }

    /// Returns the run of other bytes that contains `addr`.
    pub fn data_at(&self, addr: u64) -> Option<&Text<'a>> {
        find(&self.data, addr)
    }

    pub fn build_id(&self) -> Option<String> {
        let id = self.file.build_id().ok()??;
        Some(id.iter().map(|b| format!("{b:02x}")).collect())
    }

    pub fn has_section(&self, name: &str) -> bool {
        self.file.section_by_name(name).is_some()
    }

    /// The data that may contain strings which the program only reads; all data if there are no section headers.
    pub fn constants(&self) -> impl Iterator<Item = &'a [u8]> {
        let constant = |addr: u64| {
            let at = |section: &object::read::elf::ElfSection64<'_, '_>| section.address() == addr;
            let mut found = self.file.sections().filter(at);
            found.any(|section| section.name().is_ok_and(|name| name.starts_with(".rodata")))
        };
        let data = self.data.iter();
        data.filter(move |run| !self.sections || constant(run.addr))
            .map(|run| run.bytes)
    }

    /// Calls `found` for every place in the code whose address is in the data once the dynamic linker is done, and
    /// perhaps for more. `found` gets the place in the data (0 if unknown) and the address in the code.
    pub fn addresses(&self, mut found: impl FnMut(u64, u64)) {
        // If the image can be loaded anywhere, all addresses have relocations.
        if self.fixed || !self.sections {
            self.words(&mut found);
        }
        if let (Some(relocations), symbols) = (
            self.file.dynamic_relocations(),
            self.file.dynamic_symbol_table(),
        ) {
            for (at, relocation) in relocations {
                let mut base = 0;
                if let RelocationTarget::Symbol(index) = relocation.target()
                    && let Some(symbols) = &symbols
                    && let Ok(symbol) = symbols.symbol_by_index(index)
                {
                    base = symbol.address();
                }
                found(at, base.wrapping_add_signed(relocation.addend()));
            }
        }
        self.packed(&mut found);
    }

    /// The words of the data that could be addresses in the code.
    fn words(&self, found: &mut impl FnMut(u64, u64)) {
        let (Some(first), Some(last)) = (self.text.first(), self.text.last()) else {
            return;
        };
        let range = first.addr..last.end();
        for data in &self.data {
            let skip = (data.addr.next_multiple_of(8) - data.addr) as usize;
            let words = data.bytes.get(skip..).unwrap_or_default();
            let places = (data.addr + skip as u64..).step_by(8);
            for (word, at) in words.as_chunks::<8>().0.iter().zip(places) {
                let word = u64::from_le_bytes(*word);
                if range.contains(&word) {
                    found(at, word);
                }
            }
        }
    }

    /// The words that packed relative relocations name (`SHT_RELR`).
    fn packed(&self, found: &mut impl FnMut(u64, u64)) {
        let endian = self.file.endian();
        for section in self.file.sections() {
            let header = section.elf_section_header();
            let (SHT_RELR, Ok(entries)) = (header.sh_type(endian), section.data()) else {
                continue;
            };
            unpack(entries, |addr| {
                if let Some(data) = self.data_at(addr)
                    && let [word] = data.slice(addr, addr.saturating_add(8)).as_chunks::<8>().0
                {
                    found(addr, u64::from_le_bytes(*word));
                }
            });
        }
    }
}

/// Packed relative relocations, in the generic ABI since 2023.
const SHT_RELR: u32 = 19;

/// Returns whether a section of this name contains a PLT.
pub(crate) fn is_plt(name: &str) -> bool {
    name.starts_with(".plt") || name == ".iplt"
}

/// The maximum alignment of sections that their code requires.
const SLACK: u64 = 16;

/// Adds the padding between executable sections to them, because it is unused.
fn extend<'a>(
    file: &ElfFile64<'a>,
    isa: &'static dyn InstructionSet,
    bytes: &'a [u8],
    text: &mut [Text<'a>],
    data: &[Text<'a>],
) -> Option<()> {
    let endian = file.endian();
    let starts: Vec<u64> = text.iter().chain(data).map(|run| run.addr).collect();
    for run in text {
        let end = run.end();
        let segment = file.elf_program_headers().iter().find(|segment| {
            segment.p_type(endian) == elf::PT_LOAD
                && segment.p_flags(endian) & elf::PF_X != 0
                && end.wrapping_sub(segment.p_vaddr(endian)) < segment.p_filesz(endian)
        });
        let Some(segment) = segment else { continue };
        let segment_end = segment
            .p_vaddr(endian)
            .checked_add(segment.p_filesz(endian))?;
        let next = starts.iter().copied().filter(|&start| start >= end).min();
        let limit = next.unwrap_or(end).min(segment_end).min(end + SLACK);
        let start = run.addr.checked_sub(segment.p_vaddr(endian))?;
        let offset = usize::try_from(segment.p_offset(endian).checked_add(start)?).ok()?;
        let len = usize::try_from(limit - run.addr).ok()?;
        if let Some(longer) = bytes.get(offset..offset.saturating_add(len))
            && longer.starts_with(run.bytes)
            && longer[run.bytes.len()..]
                .iter()
                .all(|&byte| isa.fills(byte))
        {
            run.slack = longer.len() - run.bytes.len();
            run.bytes = longer;
        }
    }
    Some(())
}

fn find<'t, 'a>(runs: &'t [Text<'a>], addr: u64) -> Option<&'t Text<'a>> {
    let at = runs.partition_point(|t| t.addr <= addr);
    let run = &runs[at.checked_sub(1)?];
    (addr < run.end()).then_some(run)
}
