//! Where processors begin, in 32-bit or 16-bit mode and without paging.
//!
//! The first one is started as the boot protocol PVH has it: in 32-bit mode, with flat segments, at the address that a
//! note in the file names (Xen, `docs/misc/pvh.pandoc`). The second one waits until the first one sends it two
//! interrupts with the number of a page below one MiB, where it begins in 16-bit mode (Intel SDM, volume 3, section
//! 9.4).

use core::arch::global_asm;
use core::sync::atomic::{AtomicU64, Ordering};

use crate::hart::{self, HARTS, Hart};
use crate::paging::BASE;

/// Selectors of segments.
pub const CODE: usize = 8;
pub const DATA: usize = 0x10;
const CODE_32: usize = 0x18;
const TASKS: usize = 0x20;

/// The page where the second processor begins. Nobody uses it at this time.
const PAGE: usize = 0x8000;

#[repr(C, align(64))]
pub struct Segments([AtomicU64; 4 + 2 * hart::COUNT]);

/// The segments: flat ones, and two words for the task state of each processor.
static SEGMENTS: Segments = Segments([
    AtomicU64::new(0),
    AtomicU64::new(0x00AF_9A00_0000_FFFF),
    AtomicU64::new(0x00CF_9200_0000_FFFF),
    AtomicU64::new(0x00CF_9A00_0000_FFFF),
    AtomicU64::new(0),
    AtomicU64::new(0),
    AtomicU64::new(0),
    AtomicU64::new(0),
]);

global_asm!(
    // The address at which to start: a note of the type XEN_ELFNOTE_PHYS32_ENTRY.
    ".pushsection .note.Xen, \"a\", @note",
    ".balign 4",
    ".long 4, 8, 18",
    ".asciz \"Xen\"",
    ".quad _start - {base}",
    ".popsection",

    ".pushsection .bss.boot, \"aw\", @nobits",
    ".balign 4096",
    "boot_tables: .skip 3 * 4096",
    ".popsection",

    ".pushsection .rodata.boot, \"a\"",
    ".balign 8",
    "segments_pointer: .word {segments_size} - 1",
    ".long {segments} - {base}",
    ".popsection",

    ".pushsection .text.start, \"ax\"",
    ".code32",
    ".globl _start",
    "_start:",
    "cli",
    "cld",
    "movl $__bss_start - {base}, %edi",
    "movl $__bss_end - {base}, %ecx",
    "subl %edi, %ecx",
    "shrl $2, %ecx",
    "xorl %eax, %eax",
    "rep stosl",
    // The first page tables map one GiB, at the addresses in memory and at those of the kernel, in pages of 2 MiB:
    // writable, not executable (bit 63). Only the second page, which has the text, is executable and not writable.
    "movl $boot_tables + 4096 + 3 - {base}, boot_tables - {base}",
    "movl $boot_tables + 4096 + 3 - {base}, boot_tables + 8 * 511 - {base}",
    "movl $boot_tables + 8192 + 3 - {base}, boot_tables + 4096 - {base}",
    "movl $boot_tables + 8192 + 3 - {base}, boot_tables + 4096 + 8 * 510 - {base}",
    "xorl %ecx, %ecx",
    "1: movl %ecx, %eax",
    "shll $21, %eax",
    "orl $0x83, %eax",
    "movl %eax, boot_tables + 8192 - {base}(, %ecx, 8)",
    "movl $0x80000000, boot_tables + 8196 - {base}(, %ecx, 8)",
    "incl %ecx",
    "cmpl $512, %ecx",
    "jb 1b",
    "movl $0x200081, boot_tables + 8192 + 8 - {base}",
    "movl $0, boot_tables + 8192 + 12 - {base}",
    // The first stack, after a page that is not mapped.
    "movl $__stacks_start + 4096 + {stack} - {base}, %esi",
    "movl ${first} - {base}, %ebx",
    "jmp long_mode",

    // The second processor continues here.
    "second_32:",
    "movl ${data}, %eax",
    "movw %ax, %ds",
    "movw %ax, %es",
    "movw %ax, %ss",
    "movl $__stacks_end - {base}, %esi",
    "movl ${second} - {base}, %ebx",

    // Turns paging and 64-bit mode on, and goes on at `ebx` with the stack `esi`; both are addresses in memory.
    "long_mode:",
    "movl $boot_tables - {base}, %eax",
    "movl %eax, %cr3",
    // PAE, OSFXSR, OSXMMEXCPT.
    "movl %cr4, %eax",
    "orl $0x620, %eax",
    "movl %eax, %cr4",
    // LME and NXE in EFER.
    "movl $0xC0000080, %ecx",
    "rdmsr",
    "orl $0x900, %eax",
    "wrmsr",
    // Paging, write protection in supervisor mode, MP; and floating-point instructions do not trap.
    "movl %cr0, %eax",
    "andl $~0xC, %eax",
    "orl $0x80010002, %eax",
    "movl %eax, %cr0",
    "lgdt segments_pointer - {base}",
    "ljmpl ${code}, $2f - {base}",
    ".code64",
    "2: movl ${data}, %eax",
    "movw %ax, %ds",
    "movw %ax, %es",
    "movw %ax, %ss",
    "xorl %eax, %eax",
    "movw %ax, %fs",
    "movw %ax, %gs",
    "xorl %ebp, %ebp",
    "movq ${base}, %rax",
    "leaq (%rax, %rsi), %rsp",
    "addq %rax, %rbx",
    "callq *%rbx",
    "ud2",
    ".popsection",

    // What is copied to the page where the second processor begins.
    ".pushsection .rodata.boot, \"a\"",
    ".globl boot_second",
    "boot_second:",
    ".code16",
    "cli",
    "xorw %ax, %ax",
    "movw %ax, %ds",
    "lgdtl {page} + 3f - boot_second",
    "movl %cr0, %eax",
    "orb $1, %al",
    "movl %eax, %cr0",
    "ljmpl ${code_32}, $second_32 - {base}",
    ".balign 8",
    "3: .word {segments_size} - 1",
    ".long {segments} - {base}",
    ".globl boot_second_end",
    "boot_second_end:",
    ".code64",
    ".popsection",
    segments = sym SEGMENTS,
    segments_size = const size_of::<Segments>(),
    stack = const hart::STACK,
    first = sym crate::main_first,
    second = sym crate::main_other,
    code = const CODE,
    data = const DATA,
    code_32 = const CODE_32,
    page = const PAGE,
    base = const BASE,
    options(att_syntax),
);

/// Copies what the second processor executes first. While the first page tables are in use: the kernel's own do not map
/// this page. The second processor is there before it turns paging on.
pub fn prepare_other() {
    unsafe extern "C" {
        static boot_second: u8;
        static boot_second_end: u8;
    }
    let (start, end) = (&raw const boot_second, &raw const boot_second_end);
    // SAFETY: the page is memory, and mapped.
    unsafe {
        let size = end.offset_from_unsigned(start);
        core::ptr::copy_nonoverlapping(start, PAGE as *mut u8, size);
    }
}

/// The number that the second processor is sent: that of the page.
pub fn page_number() -> u8 {
    (PAGE >> 12) as u8
}

/// Makes this processor use the segments at the kernel's address: at first, it has their address in memory.
pub fn load_segments() {
    let pointer = Pointer::to(&SEGMENTS);
    // SAFETY: they are the same as those in use.
    unsafe {
        core::arch::asm!("lgdt [{}]", in(reg) &raw const pointer, options(nostack, preserves_flags))
    };
}

/// A table's last offset and its address, as instructions read them.
#[repr(C, packed)]
pub struct Pointer {
    limit: u16,
    base: u64,
}

impl Pointer {
    /// Points to a table.
    pub fn to<T>(table: &'static T) -> Self {
        Self {
            limit: (size_of::<T>() - 1) as u16,
            base: core::ptr::from_ref(table).addr() as u64,
        }
    }
}

/// Makes this processor use its task state, which names the stack for double faults.
pub fn load_task(hart: &'static Hart) {
    /// A task state that is not in use yet, and present (Intel SDM, volume 3, section 8.2.3).
    const AVAILABLE: u64 = 0x89 << 40;
    let index = hart.index();
    let (base, limit) = hart.task();
    let (base, limit) = (base as u64, limit as u64);
    let low = limit | (base & 0xFF_FFFF) << 16 | AVAILABLE | (base >> 24 & 0xFF) << 56;
    SEGMENTS.0[4 + 2 * index].store(low, Ordering::Relaxed);
    SEGMENTS.0[5 + 2 * index].store(base >> 32, Ordering::Relaxed);
    debug_assert!(index < HARTS.len());
    let selector = (TASKS + 16 * index) as u16;
    // SAFETY: the segment is in the table now.
    unsafe { core::arch::asm!("ltr {:x}", in(reg) selector) };
}
