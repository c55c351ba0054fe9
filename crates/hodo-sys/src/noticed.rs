//! Emulators of one process (qemu's user mode) do not notice that code was changed through `/proc/self/mem`. They do if
//! its page becomes writable for a moment. Whether that is needed is tried out.

use core::sync::atomic::{AtomicU8, Ordering};

use crate::arch::RETURNS;
use crate::maps::{self, PROT_EXEC, PROT_READ, PROT_WRITE, map};
use crate::sys::{self, call};
use crate::{arch::number, host::Errno};

const PAGE: u64 = 4096;

/// Returns whether a change of code takes effect without help. It is tried out once: in a page of its own, whose code
/// is executed, changed and executed again.
pub fn is_noticed() -> bool {
    const UNKNOWN: u8 = 0;
    const NO: u8 = 1;
    const YES: u8 = 2;
    static ANSWER: AtomicU8 = AtomicU8::new(UNKNOWN);
    if ANSWER.load(Ordering::Relaxed) == UNKNOWN {
        // Where it cannot be tried, there is no reason to think so.
        let answer = if attempt().unwrap_or(true) { YES } else { NO };
        ANSWER.store(answer, Ordering::Relaxed);
    }
    ANSWER.load(Ordering::Relaxed) == YES
}

fn attempt() -> Result<bool, Errno> {
    let file = sys::open(c"/proc/self/mem", sys::O_RDWR)?;
    let tried = try_in(file);
    // SAFETY: it is ours.
    unsafe { sys::close(file) };
    tried
}

fn try_in(file: i32) -> Result<bool, Errno> {
    let page = map(0, PAGE as usize, PROT_READ | PROT_EXEC, 0)?;
    // SAFETY: the page has such a function by then.
    let returned = || unsafe {
        let function: extern "C" fn() -> usize =
            core::mem::transmute(core::ptr::with_exposed_provenance::<()>(page as usize));
        function()
    };
    let result = (|| {
        let [first, second] = RETURNS;
        // SAFETY: nobody else uses the page.
        unsafe { sys::pwrite(file, first, page) }?;
        sys::sync_core();
        let before = returned();
        // SAFETY: as above.
        unsafe { sys::pwrite(file, second, page) }?;
        sys::sync_core();
        Ok((before, returned()) != (1, 1))
    })();
    // SAFETY: it is ours.
    let _ = unsafe { call(number::MUNMAP, [page as usize, PAGE as usize, 0, 0, 0, 0]) };
    result
}

/// Has an emulator notice that code was changed: its pages become writable for a moment.
pub fn make_noticed(at: u64, size: usize) {
    let first = at / PAGE * PAGE;
    let size = (at + size as u64).next_multiple_of(PAGE) - first;
    let mut rights = None;
    let _ = maps::mappings(&mut |mapping| {
        if mapping.range.contains(&at) {
            let right = |has, right| if has { right } else { 0 };
            rights = Some(
                right(mapping.read, PROT_READ)
                    | right(mapping.write, PROT_WRITE)
                    | right(mapping.execute, PROT_EXEC),
            );
        }
    });
    let Some(rights) = rights.filter(|rights| rights & PROT_EXEC != 0) else {
        return;
    };
    for rights in [rights | PROT_WRITE, rights & !PROT_WRITE, rights] {
        let args = [first as usize, size as usize, rights, 0, 0, 0];
        // SAFETY: at the end, the pages have the rights that they had, and always those to be read and executed.
        let _ = unsafe { call(number::MPROTECT, args) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_noticed_with_help_or_without() {
        let noticed = is_noticed();
        let file = sys::open(c"/proc/self/mem", sys::O_RDWR).expect("there is /proc");
        let page = map(0, 4096, PROT_READ | PROT_EXEC, 0).expect("memory");
        for (number, code) in (1..).zip(RETURNS.into_iter().chain(RETURNS)) {
            // SAFETY: nobody else uses the page.
            unsafe { sys::pwrite(file, code, page) }.expect("it is written");
            if !noticed {
                make_noticed(page, code.len());
            }
            sys::sync_core();
            // SAFETY: the page has such a function.
            let function: extern "C" fn() -> usize = unsafe {
                core::mem::transmute(core::ptr::with_exposed_provenance::<()>(page as usize))
            };
            assert_eq!(function(), 2 - number % 2);
        }
    }
}
