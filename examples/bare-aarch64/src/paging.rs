//! Page tables: three levels for 39 bits of address, with pages of 4 KiB, none of which can be written and executed.
//!
//! All memory that the kernel uses is mapped at its physical address. In addition there are the shadows of stacks,
//! which are at a fixed distance from them, and for each processor a page through which it writes to code.

use core::arch::asm;
use core::ops::Range;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use crate::layout::Layout;
pub use crate::layout::layout;
use crate::{devices, hart};

pub const PAGE: usize = 4096;
/// Rights.
pub const R: u64 = 1;
pub const W: u64 = 2;
pub const X: u64 = 4;
/// In code, branches through registers must find an instruction that says so.
const GUARDED: u64 = 8;
/// It is no memory, but a device.
const DEVICE: u64 = 16;

/// Bits of an entry (Arm Architecture Reference Manual, "VMSAv8-64 translation table format descriptors"). The lowest
/// two are set for tables and for pages.
const V: u64 = 3;
const IS_DEVICE: u64 = 1 << 2;
const READ_ONLY: u64 = 1 << 7;
const SHARED: u64 = 3 << 8;
const ACCESSED: u64 = 1 << 10;
const IS_GUARDED: u64 = 1 << 50;
const NOT_HERE: u64 = 1 << 53;
const NOT_BY_USERS: u64 = 1 << 54;
const ADDRESS: u64 = 0xFFFF_FFFF_F000;

/// Where a processor writes to code: one page each, in the upper half of addresses.
const WINDOWS: usize = 0xFFFF_FF80_0000_0000;

#[repr(C, align(4096))]
struct Table([AtomicU64; 512]);

const TABLES: usize = 96;
static POOL: [Table; TABLES] = [const { Table([const { AtomicU64::new(0) }; 512]) }; TABLES];
/// The first two are for the lower and for the upper half of addresses.
static USED: AtomicUsize = AtomicUsize::new(2);

/// The entry of an address. Makes tables on the way, if `make`.
fn entry(address: usize, make: bool) -> Option<&'static AtomicU64> {
    let mut table = &POOL[address >> 63];
    for level in [2, 1] {
        let slot = &table.0[address >> (12 + 9 * level) & 511];
        let mut found = slot.load(Ordering::Relaxed);
        if found & V == 0 {
            if !make {
                return None;
            }
            // Only one processor makes tables at a time. Without paging, none may add to memory at once.
            let next = USED.load(Ordering::Relaxed);
            USED.store(next + 1, Ordering::Relaxed);
            assert!(next < TABLES, "there are too few page tables");
            found = (&raw const POOL[next]).addr() as u64 | V;
            slot.store(found, Ordering::Release);
        }
        let index = ((found & ADDRESS) as usize - (&raw const POOL).addr()) / PAGE;
        table = &POOL[index];
    }
    Some(&table.0[address >> 12 & 511])
}

/// An entry for a page.
fn value(physical: usize, rights: u64) -> u64 {
    let mut value = physical as u64 | V | ACCESSED | NOT_BY_USERS;
    value |= match rights & DEVICE {
        0 => SHARED,
        _ => IS_DEVICE,
    };
    if rights & W == 0 {
        value |= READ_ONLY;
    }
    if rights & X == 0 {
        value |= NOT_HERE;
    }
    if rights & GUARDED != 0 {
        value |= IS_GUARDED;
    }
    value
}

/// The rights that an entry gives. What can be mapped can be read.
fn rights(value: u64) -> u64 {
    let writes = if value & READ_ONLY == 0 { W } else { 0 };
    let executes = if value & NOT_HERE == 0 { X } else { 0 };
    R | writes | executes
}

/// Maps a page. Other processors may use it after the next [`synchronize`](hart::synchronize).
pub fn map(address: usize, physical: usize, rights: u64) {
    assert!(
        rights & (W | X) != W | X,
        "a page must not be writable and executable"
    );
    let entry = entry(address, true).expect("it was made");
    assert!(
        entry.load(Ordering::Relaxed) & V == 0,
        "{address:#x} is mapped already"
    );
    entry.store(value(physical, rights), Ordering::Release);
    publish();
}

/// Makes this processor see what was written to tables. That nothing was mapped somewhere is never remembered.
fn publish() {
    // SAFETY: these are barriers.
    unsafe { asm!("dsb ishst", "isb", options(nostack, preserves_flags)) };
}

/// Makes all processors forget what they know of a page.
fn flush(address: usize) {
    // SAFETY: it only makes them read the tables again.
    unsafe {
        asm!(
            "dsb ishst",
            "tlbi vaae1is, {}",
            "dsb ish",
            "isb",
            in(reg) address >> 12 & 0xFFF_FFFF_FFFF,
            options(nostack, preserves_flags),
        );
    }
}

/// The physical address and the rights of what is mapped at an address.
pub fn find(address: usize) -> Option<(usize, u64)> {
    let value = entry(address, false)?.load(Ordering::Acquire);
    (value & V != 0).then(|| ((value & ADDRESS) as usize, rights(value)))
}

/// Where code can be mapped in addition to the room after the text: nowhere.
pub fn room_before() -> Range<usize> {
    0..0
}

/// The pages that are mapped in a range.
pub fn pages(range: Range<usize>) -> impl Iterator<Item = (usize, u64)> {
    let rights = |page| find(page).map(|(_, rights)| (page, rights));
    range.step_by(PAGE).filter_map(rights)
}

fn map_same(range: Range<usize>, rights: u64) {
    range.step_by(PAGE).for_each(|page| map(page, page, rights));
}

/// The part of the text that is guarded.
fn guarded() -> Range<usize> {
    unsafe extern "C" {
        static __guarded_start: u8;
        static __guarded_end: u8;
    }
    (&raw const __guarded_start).addr()..(&raw const __guarded_end).addr()
}

/// Makes the tables.
pub fn prepare() {
    let Layout {
        text,
        rodata,
        data,
        stacks,
        heap,
        ..
    } = layout();
    let guarded = guarded();
    map_same(text.start..guarded.start, R | X);
    map_same(guarded.clone(), R | X | GUARDED);
    map_same(guarded.end..text.end, R | X);
    map_same(rodata, R);
    map_same(data, R | W);
    map_same(heap.clone(), R | W);
    for device in devices::PLACES {
        map_same(device, R | W | DEVICE);
    }
    for hart in &hart::HARTS {
        map_same(hart.stack(), R | W);
        hart.stack_top.store(hart.stack().end, Ordering::Relaxed);
        // The entry is there, so that writing to code needs no memory.
        let _ = entry(window(hart.index()), true);
    }
    assert!(stacks.end <= heap.start);
}

/// Gives the stacks a shadow at this distance below them.
pub fn map_shadow(distance: usize) {
    for hart in &hart::HARTS {
        let stack = hart.stack();
        let shadow = stack.start.wrapping_sub(distance)..stack.end.wrapping_sub(distance);
        let first = shadow.start & !(PAGE - 1);
        for page in (first..shadow.end).step_by(PAGE) {
            map(page, crate::heap::page(), R | W);
        }
    }
}

/// Turns paging on in this processor. What can be written is never executed then, whatever the tables say.
pub fn turn_on() {
    /// The kinds of memory that entries name: usual memory with caches, and devices.
    const KINDS: u64 = 0x04FF;
    /// Both halves have 39 bits of address and pages of 4 KiB. Tables are in usual memory that processors share.
    const HALF: u64 = 25 | 1 << 8 | 1 << 10 | 3 << 12;
    const UPPER_PAGES: u64 = 2 << 30;
    /// 40 bits of physical address.
    const PHYSICAL: u64 = 2 << 32;
    const CONTROL: u64 = HALF | HALF << 16 | UPPER_PAGES | PHYSICAL;
    /// Paging; caches for data and for instructions; what can be written is not executed.
    const ON: u64 = 1 | 1 << 2 | 1 << 12 | 1 << 19;
    // SAFETY: what runs now is mapped at the same address.
    unsafe {
        asm!(
            "msr mair_el1, {kinds}",
            "msr tcr_el1, {control}",
            "msr ttbr0_el1, {lower}",
            "msr ttbr1_el1, {upper}",
            "dsb ish",
            "tlbi vmalle1",
            "ic iallu",
            "dsb ish",
            "isb",
            "mrs {value}, sctlr_el1",
            "orr {value}, {value}, {on}",
            "msr sctlr_el1, {value}",
            "isb",
            kinds = in(reg) KINDS,
            control = in(reg) CONTROL,
            lower = in(reg) &raw const POOL[0],
            upper = in(reg) &raw const POOL[1],
            value = out(reg) _,
            on = in(reg) ON,
            options(nostack, preserves_flags),
        );
    }
}

/// Returns how many pages are mapped, how many are executable, and how many of those are writable.
pub fn count() -> (usize, usize, usize) {
    let leaves = POOL[..USED.load(Ordering::Relaxed)]
        .iter()
        .flat_map(|table| &table.0)
        .map(|entry| entry.load(Ordering::Relaxed))
        // Entries that lead to tables have no such bit.
        .filter(|entry| entry & V != 0 && entry & ACCESSED != 0);
    leaves.fold((0, 0, 0), |(all, executable, both), entry| {
        let is_executable = rights(entry) & X != 0;
        let is_both = is_executable && rights(entry) & W != 0;
        (
            all + 1,
            executable + usize::from(is_executable),
            both + usize::from(is_both),
        )
    })
}

fn window(hart: usize) -> usize {
    WINDOWS + hart * PAGE
}

/// Writes to code, through another page that has no right to execute. Aligned words are written at once. Returns false,
/// and has changed nothing, if that is not code.
///
/// # Safety
/// Each processor may execute the code after each store.
pub unsafe fn write_code(at: usize, bytes: &[u8]) -> bool {
    let is_code =
        |page: usize| find(page).is_some_and(|(_, rights)| rights & X != 0 && rights & W == 0);
    if !(at & !(PAGE - 1)..at + bytes.len())
        .step_by(PAGE)
        .all(is_code)
    {
        return false;
    }
    hart::without_interrupts(|| {
        let window = window(hart::current().index());
        let entry = entry(window, false).expect("`prepare` has made it");
        let mut done = 0;
        while done < bytes.len() {
            let here = at + done;
            let size = (PAGE - here % PAGE).min(bytes.len() - done);
            let (physical, _) = find(here & !(PAGE - 1)).expect("it was checked");
            entry.store(value(physical, R | W), Ordering::Release);
            publish();
            // SAFETY: it is mapped there, and the caller answers for what is written.
            unsafe { store(window + here % PAGE, &bytes[done..done + size]) };
            entry.store(0, Ordering::Release);
            flush(window);
            done += size;
        }
    });
    true
}

/// Stores bytes, aligned words at once, and has instruction caches read them again.
///
/// # Safety
/// As writing there.
unsafe fn store(at: usize, mut bytes: &[u8]) {
    let mut to = at as *mut u8;
    while !bytes.is_empty() {
        let size = match to.addr() {
            at if at.is_multiple_of(4) && bytes.len() >= 4 => 4,
            _ => 1,
        };
        let (now, rest) = bytes.split_at(size);
        // SAFETY: as the caller promises; each is aligned.
        unsafe {
            match *now {
                [a, b, c, d] => to
                    .cast::<u32>()
                    .write_volatile(u32::from_le_bytes([a, b, c, d])),
                _ => to.write_volatile(now[0]),
            }
            to = to.add(size);
        }
        bytes = rest;
    }
    clean(at..to.addr());
}

/// Writes data caches back, and discards what instruction caches have.
fn clean(range: Range<usize>) {
    /// No processor has shorter lines.
    const LINE: usize = 16;
    for line in (range.start & !(LINE - 1)..range.end).step_by(LINE) {
        // SAFETY: it changes no memory.
        unsafe { asm!("dc cvau, {}", in(reg) line, options(nostack, preserves_flags)) };
    }
    // SAFETY: as above. The code has another address than the one at which it was written, so all of the caches are
    // meant.
    unsafe {
        asm!(
            "dsb ish",
            "ic ialluis",
            "dsb ish",
            "isb",
            options(nostack, preserves_flags)
        );
    }
}
