//! Unwind tables for trampolines, so that unwinding works also when a signal comes in one.
//!
//! Encodings: LSB 5.0, section 10.6 (`.eh_frame`); DWARF 5, section 6.4.2.

use std::ffi::c_void;

use gimli::DW_CFA_nop;

/// What differs between instruction sets.
pub struct Frames {
    pub code_alignment: u8,
    pub return_column: u8,
    /// The rules at the first instruction.
    pub initial: &'static [u8],
    /// What changes them.
    pub rows: &'static [u8],
}

/// A record: its length, and what it has, filled up with rows that change nothing.
fn record(table: &mut Vec<u8>, content: &[u8]) {
    const WORD: usize = 8;
    let length = (content.len() + 4).next_multiple_of(WORD) - 4;
    table.extend((length as u32).to_le_bytes());
    table.extend(content);
    table.resize(table.len() + length - content.len(), DW_CFA_nop.0);
}

/// The table for `count` trampolines of `size` bytes from `address` on.
fn table(frames: &Frames, address: usize, size: usize, count: usize) -> Vec<u8> {
    /// -8 as `sleb128`.
    const DATA_ALIGNMENT: u8 = 0x78;
    /// `DW_EH_PE_absptr`
    const ABSOLUTE: u8 = 0;
    let mut table = Vec::new();
    let mut common = vec![0, 0, 0, 0, 1, b'z', b'R', 0];
    common.extend([
        frames.code_alignment,
        DATA_ALIGNMENT,
        frames.return_column,
        1,
        ABSOLUTE,
    ]);
    common.extend(frames.initial);
    record(&mut table, &common);
    for number in 0..count {
        // The distance from this field to the common record.
        let mut one = Vec::from((table.len() as u32 + 4).to_le_bytes());
        one.extend((address + number * size).to_le_bytes());
        one.extend(size.to_le_bytes());
        one.push(0);
        one.extend(frames.rows);
        record(&mut table, &one);
    }
    table.extend([0; 4]);
    table
}

/// Tells unwinders and gdb about the trampolines of a page. It is never unmapped.
pub fn register(address: usize, length: usize, size: usize) {
    unsafe extern "C" {
        fn __register_frame(table: *const c_void);
    }
    let table = table(&crate::arch::FRAMES, address, size, length / size);
    crate::jit::register(address, length, &table);
    // SAFETY: it is such a table, and stays.
    unsafe { __register_frame(table.leak().as_ptr().cast()) };
}
