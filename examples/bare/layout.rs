//! Where things are in memory. `kernel.ld` says so.

use core::ops::Range;

/// Where things are, according to the linker.
pub struct Layout {
    pub text: Range<usize>,
    /// The part of it in which breakpoints may be.
    pub probed: Range<usize>,
    /// Between it and the rest.
    pub room: Range<usize>,
    pub rodata: Range<usize>,
    pub data: Range<usize>,
    pub stacks: Range<usize>,
    pub heap: Range<usize>,
}

pub fn layout() -> Layout {
    unsafe extern "C" {
        static __text_start: u8;
        static __text_end: u8;
        static __probed_start: u8;
        static __rodata_start: u8;
        static __rodata_end: u8;
        static __data_start: u8;
        static __data_end: u8;
        static __stacks_start: u8;
        static __stacks_end: u8;
        static __heap_start: u8;
        static __heap_end: u8;
    }
    let range = |start: *const u8, end: *const u8| start.addr()..end.addr();
    Layout {
        text: range(&raw const __text_start, &raw const __text_end),
        probed: range(&raw const __probed_start, &raw const __text_end),
        room: range(&raw const __text_end, &raw const __rodata_start),
        rodata: range(&raw const __rodata_start, &raw const __rodata_end),
        data: range(&raw const __data_start, &raw const __data_end),
        stacks: range(&raw const __stacks_start, &raw const __stacks_end),
        heap: range(&raw const __heap_start, &raw const __heap_end),
    }
}
