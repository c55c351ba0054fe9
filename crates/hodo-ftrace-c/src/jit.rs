//! Makes gdb know the unwind tables of trampolines, by its interface for compilers at run time ("JIT Interface" in the
//! manual of gdb): a list of object files in memory, and a function in which gdb has a breakpoint.

use std::arch::global_asm;
use std::ptr::null_mut;

use hodo_abi::Isa;

use crate::arch::ELF_FLAGS;

// gdb finds these two by name, in each file. They are hidden, so a program's own ones are others; and weak, because
// there can be one of each in a program that is linked with the static library.
global_asm!(
    ".pushsection .text.hodo_ftrace_jit, \"ax\", @progbits",
    ".balign 4",
    ".weak __jit_debug_register_code",
    ".hidden __jit_debug_register_code",
    ".type __jit_debug_register_code, @function",
    "__jit_debug_register_code:",
    "ret",
    ".size __jit_debug_register_code, . - __jit_debug_register_code",
    ".popsection",
    ".pushsection .data.hodo_ftrace_jit, \"aw\", @progbits",
    ".balign 8",
    ".weak __jit_debug_descriptor",
    ".hidden __jit_debug_descriptor",
    ".type __jit_debug_descriptor, @object",
    ".size __jit_debug_descriptor, 24",
    "__jit_debug_descriptor:",
    // The version is 1.
    ".4byte 1, 0",
    ".8byte 0, 0",
    ".popsection",
);

/// `struct jit_code_entry`
#[repr(C)]
struct Entry {
    next: *mut Entry,
    previous: *mut Entry,
    file: *const u8,
    size: u64,
}

/// `struct jit_descriptor`
#[repr(C)]
struct Descriptor {
    version: u32,
    action: u32,
    relevant: *mut Entry,
    first: *mut Entry,
}

unsafe extern "C" {
    fn __jit_debug_register_code();
    static mut __jit_debug_descriptor: Descriptor;
}

const HEADER: usize = 64;
const SECTION: usize = 64;
const SYMBOL: usize = 24;
/// The names of sections and symbols: each begins after a zero, and ends with one.
const NAMES: &[u8] = b"\0.text\0.eh_frame\0.symtab\0.strtab\0hodo_ftrace_trampolines\0";

/// Where a name is.
fn name(name: &str) -> u32 {
    let found = NAMES
        .windows(name.len() + 1)
        .position(|there| there[0] == 0 && there[1..] == *name.as_bytes());
    found.map_or(0, |at| at as u32 + 1)
}

/// A section header: name, type, flags, address, offset, size, link, info, alignment, size of an entry. (System V ABI,
/// "Section Header"; the other structures are in "ELF Header" and "Symbol Table".)
fn section(name: u32, kind: u32, rest: [u64; 4], links: [u32; 2], sizes: [u64; 2]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(SECTION);
    bytes.extend(name.to_le_bytes());
    bytes.extend(kind.to_le_bytes());
    bytes.extend(rest.iter().flat_map(|word| word.to_le_bytes()));
    bytes.extend(links.iter().flat_map(|word| word.to_le_bytes()));
    bytes.extend(sizes.iter().flat_map(|word| word.to_le_bytes()));
    bytes
}

/// An executable file with this code, which is elsewhere, and its unwind table. It will be at `at`, which the table
/// needs as its address.
fn file(code: usize, length: usize, table: &[u8], at: u64) -> Vec<u8> {
    const EXECUTABLE: u16 = 2;
    const PROGRAM: u32 = 1;
    const SYMBOLS: u32 = 2;
    const STRINGS: u32 = 3;
    const NOT_IN_FILE: u32 = 8;
    const ALLOCATED: u64 = 2;
    const RUNS: u64 = 4;
    /// A global function.
    const FUNCTION: u8 = 0x12;
    let (code, length) = (code as u64, length as u64);
    let table_at = HEADER as u64;
    let symbols_at = table_at + table.len().next_multiple_of(8) as u64;
    let names_at = symbols_at + 2 * SYMBOL as u64;
    let sections_at = names_at + NAMES.len().next_multiple_of(8) as u64;
    let (text, frames) = (name(".text"), name(".eh_frame"));
    let sections = [
        section(0, 0, [0; 4], [0; 2], [0; 2]),
        section(
            text,
            NOT_IN_FILE,
            [ALLOCATED | RUNS, code, table_at, length],
            [0; 2],
            [16, 0],
        ),
        section(
            frames,
            PROGRAM,
            [ALLOCATED, at + table_at, table_at, table.len() as u64],
            [0; 2],
            [8, 0],
        ),
        section(
            name(".symtab"),
            SYMBOLS,
            [0, 0, symbols_at, 2 * SYMBOL as u64],
            [4, 1],
            [8, SYMBOL as u64],
        ),
        section(
            name(".strtab"),
            STRINGS,
            [0, 0, names_at, NAMES.len() as u64],
            [0; 2],
            [1, 0],
        ),
    ];

    let mut bytes = Vec::new();
    // 64 bits, little endian, version 1.
    bytes.extend(b"\x7FELF\x02\x01\x01\0\0\0\0\0\0\0\0\0");
    bytes.extend(EXECUTABLE.to_le_bytes());
    bytes.extend(Isa::NATIVE.elf_machine().to_le_bytes());
    bytes.extend(1_u32.to_le_bytes());
    bytes.extend(
        [code, 0, sections_at]
            .iter()
            .flat_map(|word| word.to_le_bytes()),
    );
    bytes.extend(ELF_FLAGS.to_le_bytes());
    let sizes = [
        HEADER as u16,
        0,
        0,
        SECTION as u16,
        sections.len() as u16,
        4,
    ];
    bytes.extend(sizes.iter().flat_map(|half| half.to_le_bytes()));
    bytes.extend(table);
    bytes.resize(symbols_at as usize + SYMBOL, 0);
    bytes.extend(name("hodo_ftrace_trampolines").to_le_bytes());
    bytes.extend([FUNCTION, 0, 1, 0]);
    bytes.extend([code, length].iter().flat_map(|word| word.to_le_bytes()));
    bytes.extend(NAMES);
    bytes.resize(sections_at as usize, 0);
    bytes.extend(sections.iter().flatten());
    bytes
}

/// Makes gdb know code and its unwind table. Whoever calls it holds the lock of changes.
pub fn register(code: usize, length: usize, table: &[u8]) {
    let size = file(code, length, table, 0).len();
    let place: &'static mut [u8] = vec![0; size].leak();
    let content = file(code, length, table, place.as_ptr() as u64);
    place.copy_from_slice(&content);
    let descriptor = &raw mut __jit_debug_descriptor;
    // SAFETY: only this function changes the list, under a lock; in a program that has its own, whoever else does
    // follows the same rules. gdb reads it in the breakpoint. All of it stays.
    unsafe {
        let first = (*descriptor).first;
        let entry = Box::leak(Box::new(Entry {
            next: first,
            previous: null_mut(),
            file: place.as_ptr(),
            size: size as u64,
        }));
        if let Some(first) = first.as_mut() {
            first.previous = entry;
        }
        (*descriptor).first = entry;
        (*descriptor).relevant = entry;
        const REGISTER: u32 = 1;
        (*descriptor).action = REGISTER;
        __jit_debug_register_code();
    }
}

#[cfg(test)]
mod tests {
    use object::{Object, ObjectSection, ObjectSymbol};

    #[test]
    fn the_file_is_one() {
        let table = [7; 20];
        let bytes = super::file(0x7000, 0x1000, &table, 0x10000);
        let file = object::File::parse(&*bytes).expect("a file");
        let text = file.section_by_name(".text").expect("code");
        assert_eq!((text.address(), text.size()), (0x7000, 0x1000));
        let frames = file.section_by_name(".eh_frame").expect("a table");
        assert_eq!(frames.data().expect("bytes"), table);
        let (from, _) = frames.file_range().expect("a place");
        assert_eq!(frames.address(), 0x10000 + from);
        let symbols: Vec<_> = file.symbols().collect();
        let names: Vec<_> = symbols.iter().map(|symbol| symbol.name()).collect();
        assert_eq!(names, [Ok("hodo_ftrace_trampolines")]);
        assert_eq!((symbols[0].address(), symbols[0].size()), (0x7000, 0x1000));
    }
}
