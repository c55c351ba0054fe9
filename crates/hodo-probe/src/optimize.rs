//! Detours: code for sites where a jump fits, so that a hit needs no signal.
//!
//! Where instructions begin in the bytes of a jump, but for the first, there is what makes a signal: a thread that is
//! about to execute one of them, or a branch that nobody knows of, comes to the moved copy by it. So a jump is never
//! wrong, however little is known of the code. How that is done, the files of each instruction set tell
//! (`arch/*/detour.rs`).

use alloc::vec::Vec;
use core::sync::atomic::Ordering;

use super::arch::detour::make;
use super::arch::trampolines::Trampolines;
use super::site::{Detour, Site, Variant};
use hodo_sys::{Change, Memory};

/// Makes a detour of a site, if it is possible. Returns what is to be written for it;
/// the site's own jump is written later.
pub(super) fn prepare(
    memory: &Memory,
    spots: &mut Trampolines,
    site: &'static Site,
    variant: Variant,
    changes: &mut Vec<Change>,
) -> Option<&'static Detour> {
    let index = variant as usize;
    if site.hopeless[index].load(Ordering::Relaxed) != 0 {
        return None;
    }
    let known = site.variants[index].load(Ordering::Relaxed);
    // SAFETY: detours stay.
    if let Some(detour) = unsafe { known.as_ref() } {
        return Some(detour);
    }
    let made = make(memory, spots, site, variant, changes);
    match made {
        Some(detour) => {
            site.variants[index].store(core::ptr::from_ref(detour).cast_mut(), Ordering::Release)
        }
        None => site.hopeless[index].store(1, Ordering::Relaxed),
    }
    made
}
