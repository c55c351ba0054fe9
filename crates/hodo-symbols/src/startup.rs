//! Finds `main` in a stripped program with the help of the C library's startup code.

mod aarch64;
mod linked;
mod riscv64;
mod x86_64;

use hodo_abi::Isa;
use object::elf;
use object::read::elf::{ElfFile64, ElfSection64};
use object::{
    Endianness, Object, ObjectSection, ObjectSymbol, ObjectSymbolTable, RelocationFlags,
    RelocationTarget,
};

use crate::abi;

/// How many bytes of `_start` are examined on x86-64. Those of glibc and musl are shorter.
const LENGTH: usize = 64;

/// Returns the address of `main`, if the startup code shows it. `is_function` returns whether a function begins at an
/// address.
pub(crate) fn main(
    file: &ElfFile64<'_, Endianness>,
    is_function: impl Fn(u64) -> bool,
) -> Option<u64> {
    let entry = file.entry();
    let end = |section: &ElfSection64<'_, '_, Endianness>| {
        section.address().saturating_add(section.size())
    };
    let section = file
        .sections()
        .find(|section| (section.address()..end(section)).contains(&entry));
    let code = section.and_then(|section| {
        let length = end(&section) - entry;
        section.data_range(entry, length).ok().flatten()
    });
    let code = code?;
    match abi::of_file(file) {
        Some(Isa::X86_64) => x86_64::main_of(&code[..code.len().min(LENGTH)], entry)
            .filter(|main| is_function(*main)),
        Some(Isa::Riscv64) => linked_main(file, &riscv64::MACHINE, code, is_function),
        Some(Isa::Aarch64) => linked_main(file, &aarch64::MACHINE, code, is_function),
        None => None,
    }
}

/// The same where calls put the return address in a register.
fn linked_main(
    file: &ElfFile64<'_, Endianness>,
    machine: &linked::Machine,
    bytes: &[u8],
    is_function: impl Fn(u64) -> bool,
) -> Option<u64> {
    let start = linked::Code {
        machine,
        bytes,
        start: file.entry(),
        word: &|addr| word(file, addr),
    };
    // The address may be that of a jump to main, which is not a function itself (glibc: `__wrap_main`).
    let main = start.main()?;
    let jump = || start.jump_at(main).filter(|jump| is_function(*jump));
    Some(main).filter(|main| is_function(*main)).or_else(jump)
}

/// Returns the word that is at an address when the program starts: the one that the dynamic linker writes, or the one
/// in the file.
fn word(file: &ElfFile64<'_, Endianness>, addr: u64) -> Option<u64> {
    let mut relocations = file.dynamic_relocations().into_iter().flatten();
    if let Some((_, relocation)) = relocations.find(|(at, _)| *at == addr) {
        let relative = matches!(
            relocation.flags(),
            RelocationFlags::Elf { r_type } if matches!(
                r_type,
                elf::R_RISCV_RELATIVE | elf::R_RISCV_64 | elf::R_AARCH64_RELATIVE | elf::R_AARCH64_ABS64 | elf::R_AARCH64_GLOB_DAT
            )
        );
        let base = match relocation.target() {
            _ if !relative => return None,
            RelocationTarget::Absolute => 0,
            RelocationTarget::Symbol(index) => {
                let symbol = file.dynamic_symbol_table()?.symbol_by_index(index).ok()?;
                (!symbol.is_undefined()).then(|| symbol.address())?
            }
            _ => return None,
        };
        return Some(base.wrapping_add_signed(relocation.addend()));
    }
    let mut sections = file.sections();
    let bytes = sections.find_map(|section| section.data_range(addr, 8).ok().flatten())?;
    Some(u64::from_le_bytes(bytes.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_stripped_program_has_a_main() {
        let bytes = std::fs::read("/bin/ls").expect("ls");
        let symbols = crate::symbols(&bytes).expect("its symbols");
        let mains = symbols.functions.iter().filter(|f| f.name == "main");
        assert_eq!(mains.count(), 1);
    }
}
