//! Shows that no page can be written and executed.

use core::arch::asm;
use core::mem::offset_of;
use core::sync::atomic::Ordering;

use crate::hart::{self, Hart};
use crate::{functions, paging, say};

/// `scause` of exceptions.
const FETCH_PAGE_FAULT: usize = 12;
const STORE_PAGE_FAULT: usize = 15;

/// Stores a zero. Returns the cause of the fault, or 0.
fn try_store(to: usize) -> usize {
    let hart = hart::current();
    hart.cause.store(0, Ordering::Relaxed);
    // SAFETY: it faults, or the caller may write there. `trap.rs` continues at the label.
    unsafe {
        asm!(
            "lla {at}, 2f",
            "sd {at}, {resume}(tp)",
            "sb zero, 0({to})",
            "2:",
            "sd zero, {resume}(tp)",
            at = out(reg) _,
            to = in(reg) to,
            resume = const offset_of!(Hart, resume),
        );
    }
    hart.cause.load(Ordering::Relaxed)
}

/// Calls what is there. Returns the cause of the fault, or 0.
fn try_call(to: usize) -> usize {
    let hart = hart::current();
    hart.cause.store(0, Ordering::Relaxed);
    // SAFETY: as above; if it does not fault, it returns at once.
    unsafe {
        asm!(
            "lla {at}, 2f",
            "sd {at}, {resume}(tp)",
            "jalr {to}",
            "2:",
            "sd zero, {resume}(tp)",
            at = out(reg) _,
            to = in(reg) to,
            out("ra") _,
            resume = const offset_of!(Hart, resume),
        );
    }
    hart.cause.load(Ordering::Relaxed)
}

/// Tries to write to code, and to execute data.
pub fn demonstrate() {
    /// `ret`.
    const RETURN: u32 = 0x8067;
    let (all, executable, both) = paging::count();
    assert!(executable > 0 && executable < all);
    say!("pages that can be written and executed: {both}");
    let code = functions::range("leaf").start;
    assert_eq!(try_store(code), STORE_PAGE_FAULT);
    assert_eq!(hart::current().address.load(Ordering::Relaxed), code);
    let mut data = RETURN;
    let place = (&raw mut data).addr();
    assert_eq!(try_store(place + 3), 0);
    assert_eq!(try_call(place), FETCH_PAGE_FAULT);
    say!("a store to code faults, and so does a call of data");
}
