//! Shows that no page can be written and executed.

use core::arch::asm;
use core::mem::offset_of;
use core::sync::atomic::Ordering;

use crate::hart::{self, Hart};
use crate::{functions, paging, say};

/// The number of page faults, and bits of their error code (Intel SDM, volume 3, section 4.7).
const PAGE_FAULT: usize = 14;
const PRESENT: usize = 1;
const WRITE: usize = 2;
const FETCH: usize = 16;

/// What a fault was: its number and its error code; zeros if there was none.
fn fault() -> (usize, usize) {
    let hart = hart::current();
    (
        hart.cause.swap(0, Ordering::Relaxed),
        hart.code.swap(0, Ordering::Relaxed),
    )
}

/// Stores a zero. Returns what the fault was.
fn try_store(to: usize) -> (usize, usize) {
    // SAFETY: it faults, or the caller may write there. `trap.rs` continues at the label.
    unsafe {
        asm!(
            "lea {at}, [rip + 2f]",
            "mov gs:[{resume}], {at}",
            "mov byte ptr [{to}], 0",
            "2:",
            "mov qword ptr gs:[{resume}], 0",
            at = out(reg) _,
            to = in(reg) to,
            resume = const offset_of!(Hart, resume),
        );
    }
    fault()
}

/// Jumps to what is there. Returns what the fault was.
fn try_jump(to: usize) -> (usize, usize) {
    // SAFETY: as above; if it does not fault, it returns at once.
    unsafe {
        asm!(
            "lea {at}, [rip + 2f]",
            "mov gs:[{resume}], {at}",
            "mov {stack}, rsp",
            "push {at}",
            "jmp {to}",
            "2: mov rsp, {stack}",
            "mov qword ptr gs:[{resume}], 0",
            at = out(reg) _,
            stack = out(reg) _,
            to = in(reg) to,
            resume = const offset_of!(Hart, resume),
        );
    }
    fault()
}

/// Tries to write to code, and to execute data.
pub fn demonstrate() {
    /// `ret`.
    const RETURN: u8 = 0xC3;
    let (all, executable, both) = paging::count();
    assert!(executable > 0 && executable < all);
    say!("pages that can be written and executed: {both}");
    let code = functions::range("leaf").start;
    assert_eq!(try_store(code), (PAGE_FAULT, PRESENT | WRITE));
    assert_eq!(hart::current().address.load(Ordering::Relaxed), code);
    let mut data = [RETURN; 2];
    let place = (&raw mut data).addr();
    assert_eq!(try_store(place + 1), (0, 0));
    let stack = hart::current().stack();
    assert!(stack.contains(&place));
    assert_eq!(try_jump(place), (PAGE_FAULT, PRESENT | FETCH));
    say!("a store to code faults, and so does a jump to data");
}
