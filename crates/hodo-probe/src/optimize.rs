//! Detours: code for sites where a jump fits, so that a hit needs no signal.
//!
//! Where an instruction begins inside a jump's bytes (other than the first), those bytes raise a signal. A thread that
//! is about to execute such an instruction, or a branch that nobody knows of, reaches the moved copy through that
//! signal. So a jump is never wrong, however little is known of the code. The files of each instruction set
//! (`arch/*/detour.rs`) say how this is done.

use alloc::vec::Vec;
use core::sync::atomic::Ordering;

use super::arch::detour::make;
use super::arch::trampolines::Trampolines;
use super::memory::{Change, Memory};
use super::site::{Detour, Site, Variant};

/// Makes a detour for a site, if that is possible. Returns what must be written for it; the site's own jump is written
/// later.
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
