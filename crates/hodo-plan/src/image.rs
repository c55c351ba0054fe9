//! The parts of an ELF file that the planner looks at.

use crate::model::PlanError;
use object::elf;
use object::read::elf::{ElfFile64, FileHeader, ProgramHeader};
use object::{Object, ObjectSection, SectionFlags};

/// A run of executable bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Text<'a> {
    pub addr: u64,
    pub bytes: &'a [u8],
}

impl Text<'_> {
    pub fn end(&self) -> u64 {
        self.addr + self.bytes.len() as u64
    }
}

pub(crate) struct Image<'a> {
    pub file: ElfFile64<'a>,
    /// Executable sections, sorted; whole segments where there are no section headers.
    pub text: Vec<Text<'a>>,
    pub entry: u64,
}

impl<'a> Image<'a> {
    pub fn parse(bytes: &'a [u8]) -> Result<Self, PlanError> {
        let file: ElfFile64<'a> = ElfFile64::parse(bytes)?;
        if file.elf_header().e_machine(file.endian()) != elf::EM_X86_64 {
            return Err(PlanError::Machine);
        }
        let mut text = Vec::new();
        for section in file.sections() {
            let SectionFlags::Elf { sh_flags } = section.flags() else {
                continue;
            };
            if sh_flags & u64::from(elf::SHF_EXECINSTR) == 0
                || sh_flags & u64::from(elf::SHF_ALLOC) == 0
            {
                continue;
            }
            if let Ok(bytes) = section.data()
                && !bytes.is_empty()
                && section.address().checked_add(bytes.len() as u64).is_some()
            {
                text.push(Text {
                    addr: section.address(),
                    bytes,
                });
            }
        }
        if text.is_empty() {
            for segment in file.elf_program_headers() {
                let endian = file.endian();
                if segment.p_type(endian) == elf::PT_LOAD
                    && segment.p_flags(endian) & elf::PF_X != 0
                    && let Ok(bytes) = segment.data(endian, bytes)
                    && segment
                        .p_vaddr(endian)
                        .checked_add(bytes.len() as u64)
                        .is_some()
                {
                    text.push(Text {
                        addr: segment.p_vaddr(endian),
                        bytes,
                    });
                }
            }
        }
        text.sort_by_key(|t| t.addr);
        // Overlapping sections are a broken file's: the first wins.
        let mut end = 0;
        text.retain(|t| {
            let keep = t.addr >= end;
            if keep {
                end = t.end();
            }
            keep
        });
        let entry = file.entry();
        Ok(Self { file, text, entry })
    }

    /// The run of executable bytes that holds `addr`.
    pub fn text_at(&self, addr: u64) -> Option<&Text<'a>> {
        let at = self.text.partition_point(|t| t.addr <= addr);
        let text = &self.text[at.checked_sub(1)?];
        (addr < text.end()).then_some(text)
    }

    pub fn build_id(&self) -> Option<String> {
        let id = self.file.build_id().ok()??;
        Some(id.iter().map(|b| format!("{b:02x}")).collect())
    }
}
