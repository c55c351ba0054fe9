//! Page tables: four levels, with pages of 4 KiB, none of which can be written and executed.
//!
//! All memory that the kernel uses is mapped at its physical address plus [`BASE`]. In addition there are the shadows
//! of stacks, which are at a fixed distance from them, and for each processor a page through which it writes to code.

use core::arch::asm;
use core::ops::Range;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use crate::layout::Layout;
pub use crate::layout::layout;
use crate::{apic, hart};

pub const PAGE: usize = 4096;
/// Where the kernel is. `kernel.ld` has the same number.
pub const BASE: isize = -0x8000_0000;
/// Rights, and that it is no memory.
pub const R: u64 = 1;
pub const W: u64 = 2;
pub const X: u64 = 4;
pub const DEVICE: u64 = 8;

/// Bits of an entry (Intel SDM, volume 3, section 4.5.4).
const PRESENT: u64 = 1;
const WRITABLE: u64 = 1 << 1;
const NOT_CACHED: u64 = 1 << 4;
/// The processor ignores this bit. It is set in entries that lead to another table.
const IS_TABLE: u64 = 1 << 9;
const NOT_EXECUTABLE: u64 = 1 << 63;
const ADDRESS: u64 = 0x000F_FFFF_FFFF_F000;

/// Where a processor writes to code: one page each, in the upper half of addresses.
const WINDOWS: usize = 0xFFFF_FFC0_0000_0000;

#[repr(C, align(4096))]
struct Table([AtomicU64; 512]);

const TABLES: usize = 512;
static POOL: [Table; TABLES] = [const { Table([const { AtomicU64::new(0) }; 512]) }; TABLES];
static USED: AtomicUsize = AtomicUsize::new(1);

/// An entry of the last level.
fn leaf(physical: u64, rights: u64) -> u64 {
    let mut value = physical | PRESENT;
    if rights & W != 0 {
        value |= WRITABLE;
    }
    if rights & X == 0 {
        value |= NOT_EXECUTABLE;
    }
    if rights & DEVICE != 0 {
        value |= NOT_CACHED;
    }
    value
}

/// The rights that such an entry gives.
fn rights(entry: u64) -> u64 {
    let mut rights = R;
    if entry & WRITABLE != 0 {
        rights |= W;
    }
    if entry & NOT_EXECUTABLE == 0 {
        rights |= X;
    }
    rights
}

/// The entry of an address. Makes tables on the way, if `make`.
fn entry(address: usize, make: bool) -> Option<&'static AtomicU64> {
    let mut table = &POOL[0];
    for level in [3, 2, 1] {
        let slot = &table.0[address >> (12 + 9 * level) & 511];
        let mut found = slot.load(Ordering::Relaxed);
        if found & PRESENT == 0 {
            if !make {
                return None;
            }
            let next = USED.fetch_add(1, Ordering::Relaxed);
            assert!(next < TABLES, "there are too few page tables");
            // The last level says what is right.
            found = physical((&raw const POOL[next]).addr()) | PRESENT | WRITABLE | IS_TABLE;
            slot.store(found, Ordering::Release);
        }
        let index = ((found & ADDRESS) - physical((&raw const POOL).addr())) as usize / PAGE;
        table = &POOL[index];
    }
    Some(&table.0[address >> 12 & 511])
}

/// The address in memory of what the kernel has at an address.
fn physical(address: usize) -> u64 {
    address.wrapping_sub_signed(BASE) as u64
}

/// Maps a page where nothing was: one that the kernel has at another address, or at the same one.
pub fn map(address: usize, page: usize, rights: u64) {
    map_physical(address, physical(page), rights);
}

/// Maps a page where nothing was, by its address in memory.
pub fn map_physical(address: usize, physical: u64, rights: u64) {
    assert!(
        rights & (W | X) != W | X,
        "a page must not be writable and executable"
    );
    let entry = entry(address, true).expect("it was made");
    assert!(
        entry.load(Ordering::Relaxed) & PRESENT == 0,
        "{address:#x} is mapped already"
    );
    entry.store(leaf(physical, rights), Ordering::Release);
}

/// The physical address and the rights of what is mapped at an address.
pub fn find(address: usize) -> Option<(u64, u64)> {
    let value = entry(address, false)?.load(Ordering::Acquire);
    (value & PRESENT != 0).then_some((value & ADDRESS, rights(value)))
}

/// Where code can be mapped in addition to the room after the text: two GiB before the kernel, in reach of jumps.
pub fn room_before() -> Range<usize> {
    const BOTH: isize = 2 * BASE;
    BOTH as usize..BASE as usize
}

/// The pages that are mapped in a range.
pub fn pages(range: Range<usize>) -> impl Iterator<Item = (usize, u64)> {
    let mut next = range.start;
    core::iter::from_fn(move || {
        while next < range.end {
            let page = next;
            // Most of the tables are not there.
            let step = if entry(page, false).is_some() {
                PAGE
            } else {
                512 * PAGE
            };
            next = (page + step) & !(step - 1);
            if let Some((_, rights)) = find(page) {
                return Some((page, rights));
            }
        }
        None
    })
}

/// Makes this processor forget what it knows of a page.
fn flush(address: usize) {
    // SAFETY: it only makes the processor read the tables again.
    unsafe { asm!("invlpg [{}]", in(reg) address, options(nostack, preserves_flags)) };
}

fn map_same(range: Range<usize>, rights: u64) {
    range.step_by(PAGE).for_each(|page| map(page, page, rights));
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
    map_same(text, R | X);
    map_same(rodata, R);
    map_same(data, R | W);
    map_same(heap.clone(), R | W);
    for hart in &hart::HARTS {
        map_same(hart.stack(), R | W);
        // The entry is there, so that writing to code needs no memory.
        let _ = entry(window(hart.index()), true);
    }
    apic::map();
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

/// Makes this processor use them.
pub fn turn_on() {
    let value = physical((&raw const POOL).addr());
    // SAFETY: what runs now is mapped at the same address.
    unsafe { asm!("mov cr3, {}", in(reg) value, options(nostack, preserves_flags)) };
}

/// Returns how many pages are mapped, how many are executable, and how many of those are writable.
pub fn count() -> (usize, usize, usize) {
    let leaves = POOL[..USED.load(Ordering::Relaxed)]
        .iter()
        .flat_map(|table| &table.0)
        .map(|entry| entry.load(Ordering::Relaxed))
        .filter(|entry| entry & (PRESENT | IS_TABLE) == PRESENT);
    leaves.fold((0, 0, 0), |(all, executable, both), entry| {
        let rights = rights(entry);
        let is_both = rights & (W | X) == W | X;
        (
            all + 1,
            executable + usize::from(rights & X != 0),
            both + usize::from(is_both),
        )
    })
}

fn window(hart: usize) -> usize {
    WINDOWS + hart * PAGE
}

/// Writes to code, through another page that has no right to execute, byte for byte. Returns false, and has changed
/// nothing, if that is not code.
///
/// # Safety
/// Each processor may execute the code after each byte.
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
            entry.store(leaf(physical, R | W), Ordering::Release);
            for (offset, byte) in bytes[done..done + size].iter().enumerate() {
                let to = (window + here % PAGE + offset) as *mut u8;
                // SAFETY: it is mapped there, and the caller answers for what is written.
                unsafe { to.write_volatile(*byte) };
            }
            entry.store(0, Ordering::Release);
            flush(window);
            done += size;
        }
    });
    true
}
