//! Shows that no page can be written and executed, and that guarded pages are.

use core::arch::asm;
use core::mem::offset_of;
use core::sync::atomic::Ordering;

use crate::hart::{self, Hart};
use crate::trap::{BRANCH_TARGET, DATA_ABORT, INSTRUCTION_ABORT};
use crate::{functions, guarded, paging, say};

/// Stores a zero. Returns the class of the exception, or 0.
fn try_store(to: usize) -> usize {
    let hart = hart::current();
    hart.cause.store(0, Ordering::Relaxed);
    // SAFETY: it faults, or the caller may write there. `trap.rs` continues at the label.
    unsafe {
        asm!(
            "adr {at}, 2f",
            "str {at}, [{hart}, {resume}]",
            "strb wzr, [{to}]",
            "2:",
            "str xzr, [{hart}, {resume}]",
            at = out(reg) _,
            to = in(reg) to,
            hart = in(reg) hart,
            resume = const offset_of!(Hart, resume),
        );
    }
    hart.cause.load(Ordering::Relaxed)
}

/// Calls what is there. Returns the class of the exception, or 0.
fn try_call(to: usize) -> usize {
    let hart = hart::current();
    hart.cause.store(0, Ordering::Relaxed);
    // SAFETY: as above; if it does not fault, it returns at once.
    unsafe {
        asm!(
            "adr x9, 2f",
            "str x9, [x20, {resume}]",
            "blr {to}",
            "2:",
            "str xzr, [x20, {resume}]",
            to = in(reg) to,
            in("x20") hart,
            resume = const offset_of!(Hart, resume),
            clobber_abi("C"),
        );
    }
    hart.cause.load(Ordering::Relaxed)
}

/// Tries to write to code, to execute data, and to call the middle of a function in guarded pages.
pub fn demonstrate() {
    /// `ret`.
    const RETURN: u32 = 0xD65F_03C0;
    let (all, executable, both) = paging::count();
    assert!(executable > 0 && executable < all);
    say!("pages that can be written and executed: {both}");
    let code = functions::range("leaf").start;
    assert_eq!(try_store(code), DATA_ABORT);
    assert_eq!(hart::current().address.load(Ordering::Relaxed), code);
    let mut data = RETURN;
    let place = (&raw mut data).addr();
    assert_eq!(try_store(place + 3), 0);
    assert_eq!(try_call(place), INSTRUCTION_ABORT);
    let guarded = guarded::range("guarded_leaf");
    assert_eq!(try_call(guarded.start), 0);
    assert_eq!(try_call(guarded.start + 4), BRANCH_TARGET);
    say!(
        "a store to code faults, and so does a call of data, or of the middle of a guarded function"
    );
}
