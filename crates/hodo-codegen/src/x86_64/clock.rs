//! How records get their time.

use alloc::vec::Vec;

use super::masm::*;
use crate::stub::Layout;

/// Reads the time counter, and compares its upper half with the thread's epoch.
pub(super) fn read_into(code: &mut Masm<'_>, layout: &Layout) {
    code.rdtsc();
    code.cmp_rm(EDX, gs(layout.epoch));
}

/// The code of `read_into`.
#[must_use]
pub fn read(layout: &Layout) -> Vec<u8> {
    let mut bytes = Vec::new();
    read_into(&mut Masm::new(&mut bytes, 0), layout);
    bytes
}

/// Code of the same length that takes the lower half from four bytes of the control block, and finds the epoch
/// unchanged: for threads that must not read the time counter.
#[must_use]
pub fn take(now: u32) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut code = Masm::new(&mut bytes, 0);
    code.mov_rm(EAX, gs(now));
    code.cmp_rr(EAX, EAX);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_takes_the_place_of_the_other() {
        let layout = Layout {
            epoch: 0x20,
            ..Layout::default()
        };
        assert_eq!(
            read(&layout),
            [0x0F, 0x31, 0x65, 0x3B, 0x14, 0x25, 0x20, 0, 0, 0]
        );
        assert_eq!(
            take(0x1234),
            [0x65, 0x8B, 0x04, 0x25, 0x34, 0x12, 0, 0, 0x39, 0xC0]
        );
    }
}
