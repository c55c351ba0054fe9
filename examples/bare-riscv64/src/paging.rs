//! Page tables: Sv39, with pages of 4 KiB, none of which can be written and executed.
//!
//! All memory that the kernel uses is mapped at its physical address. In addition there are the shadows of stacks,
//! which are at a fixed distance from them, and for each hart a page through which it writes to code.

use core::arch::asm;
use core::ops::Range;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use crate::hart;
use crate::layout::Layout;
pub use crate::layout::layout;

pub const PAGE: usize = 4096;
/// Bits of an entry (RISC-V Privileged Architecture, "Sv39"). `A` and `D` are set, as the hardware need not do it.
const V: u64 = 1;
pub const R: u64 = 2;
pub const W: u64 = 4;
pub const X: u64 = 8;
const A_AND_D: u64 = 0xC0;

/// Where a hart writes to code: one page each, in the upper half of addresses.
const WINDOWS: usize = 0xFFFF_FFC0_0000_0000;

#[repr(C, align(4096))]
struct Table([AtomicU64; 512]);

const TABLES: usize = 96;
static POOL: [Table; TABLES] = [const { Table([const { AtomicU64::new(0) }; 512]) }; TABLES];
static USED: AtomicUsize = AtomicUsize::new(1);

/// The entry of an address. Makes tables on the way, if `make`.
fn entry(address: usize, make: bool) -> Option<&'static AtomicU64> {
    let mut table = &POOL[0];
    for level in [2, 1] {
        let slot = &table.0[address >> (12 + 9 * level) & 511];
        let mut found = slot.load(Ordering::Relaxed);
        if found & V == 0 {
            if !make {
                return None;
            }
            let next = USED.fetch_add(1, Ordering::Relaxed);
            assert!(next < TABLES, "there are too few page tables");
            found = ((&raw const POOL[next]).addr() >> 12 << 10) as u64 | V;
            slot.store(found, Ordering::Release);
        }
        let index = ((found >> 10 << 12) as usize - (&raw const POOL).addr()) / PAGE;
        table = &POOL[index];
    }
    Some(&table.0[address >> 12 & 511])
}

/// Maps a page. Other harts may use it after the next [`synchronize`](hart::synchronize).
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
    let value = (physical >> 12 << 10) as u64 | rights | V | A_AND_D;
    entry.store(value, Ordering::Release);
    flush(address);
}

/// The physical address and the rights of what is mapped at an address.
pub fn find(address: usize) -> Option<(usize, u64)> {
    let value = entry(address, false)?.load(Ordering::Acquire);
    (value & V != 0).then_some(((value >> 10 << 12) as usize, value & (R | W | X)))
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

/// Makes this hart forget what it knows of a page.
pub fn flush(address: usize) {
    // SAFETY: it only makes the hart read the tables again.
    unsafe { asm!("sfence.vma {}, zero", in(reg) address) };
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

/// Turns paging on in this hart.
pub fn turn_on() {
    const SV39: usize = 8 << 60;
    let value = SV39 | (&raw const POOL).addr() >> 12;
    // SAFETY: what runs now is mapped at the same address.
    unsafe { asm!("sfence.vma", "csrw satp, {}", "sfence.vma", in(reg) value) };
}

/// Returns how many pages are mapped, how many are executable, and how many of those are writable.
pub fn count() -> (usize, usize, usize) {
    let leaves = POOL[..USED.load(Ordering::Relaxed)]
        .iter()
        .flat_map(|table| &table.0)
        .map(|entry| entry.load(Ordering::Relaxed))
        .filter(|entry| entry & V != 0 && entry & (R | W | X) != 0);
    leaves.fold((0, 0, 0), |(all, executable, both), entry| {
        let is_executable = entry & X != 0;
        let is_both = is_executable && entry & W != 0;
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

/// Writes to code, through another page that has no right to execute. Aligned words and halves are written at once.
/// Returns false, and has changed nothing, if that is not code.
///
/// # Safety
/// Each hart may execute the code after each store.
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
            let value = (physical >> 12 << 10) as u64 | R | W | V | A_AND_D;
            entry.store(value, Ordering::Release);
            flush(window);
            // SAFETY: it is mapped there, and the caller answers for what is written.
            unsafe { store((window + here % PAGE) as *mut u8, &bytes[done..done + size]) };
            entry.store(0, Ordering::Release);
            flush(window);
            done += size;
        }
    });
    true
}

/// Stores bytes in units that are as large as their addresses allow, up to 4.
///
/// # Safety
/// As writing there.
unsafe fn store(mut to: *mut u8, mut bytes: &[u8]) {
    while !bytes.is_empty() {
        let size = match to.addr() {
            at if at.is_multiple_of(4) && bytes.len() >= 4 => 4,
            at if at.is_multiple_of(2) && bytes.len() >= 2 => 2,
            _ => 1,
        };
        let (now, rest) = bytes.split_at(size);
        // SAFETY: as the caller promises; each is aligned.
        unsafe {
            match *now {
                [a, b, c, d] => to
                    .cast::<u32>()
                    .write_volatile(u32::from_le_bytes([a, b, c, d])),
                [a, b] => to.cast::<u16>().write_volatile(u16::from_le_bytes([a, b])),
                _ => to.write_volatile(now[0]),
            }
            to = to.add(size);
        }
        bytes = rest;
    }
}
