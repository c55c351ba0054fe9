//! Changing code that runs: breakpoints and jumps, by the protocol that lets no processor execute half an instruction.
//!
//! The first byte becomes a breakpoint; then the rest is written, those bytes first at which an instruction of the program
//! begins, as breakpoints; then the first byte. Between these steps each processor executes a serializing instruction. So a
//! thread that stands in the middle of what is overwritten comes to a breakpoint, however late, for the bytes at those
//! places stay breakpoints as long as the jump is there.

use alloc::vec::Vec;
use core::sync::atomic::Ordering;

use super::site::{INT3, Site};
use super::sys::{self, Errno};
use super::text::{Change, Memory};

/// What is to be at a site.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Want {
    /// The program's bytes.
    Nothing,
    Breakpoint,
    /// A jump to its detour.
    Jump,
}

/// Makes sites what they should be. All are changed together; none of them may overlap with another that is armed.
pub(super) fn apply(memory: &Memory, wanted: &[(&'static Site, Want)]) -> Result<(), Errno> {
    let now = |site: &Site| match (
        site.head.armed.load(Ordering::Acquire),
        site.jumped.load(Ordering::Acquire),
    ) {
        (0, _) => Want::Nothing,
        (_, 0) => Want::Breakpoint,
        _ => Want::Jump,
    };
    let mut work: Vec<_> = wanted
        .iter()
        .filter(|(site, want)| now(site) != *want)
        .copied()
        .collect();
    work.sort_by_key(|(site, _)| site.addr());
    work.dedup_by_key(|(site, _)| site.addr());
    // A jump that is to be taken away, or written, begins as a breakpoint.
    let mut heads: Vec<Change> = Vec::new();
    let mut middles: [Vec<Change>; 2] = Default::default();
    let mut lasts: Vec<Change> = Vec::new();
    for (site, want) in &work {
        let was = now(site);
        let (addr, original) = (site.addr(), &site.original);
        // SAFETY: detours stay.
        let detour = unsafe { site.detour.load(Ordering::Acquire).as_ref() };
        heads.push((addr, vec![INT3]));
        let inside = detour.map_or(&[][..], |detour| &detour.inside);
        if was == Want::Jump {
            // The starts of instructions come last.
            let mut bytes = original[1..5].to_vec();
            for at in inside {
                bytes[usize::from(*at) - 1] = INT3;
            }
            middles[0].push((addr + 1, bytes));
            middles[1].push((addr + 1, original[1..5].to_vec()));
        }
        if *want == Want::Jump
            && let Some(detour) = detour
        {
            let mut bytes = original[1..5].to_vec();
            for at in inside {
                bytes[usize::from(*at) - 1] = INT3;
            }
            if !inside.is_empty() {
                middles[0].push((addr + 1, bytes));
            }
            middles[1].push((addr + 1, detour.jump[1..].to_vec()));
            lasts.push((addr, vec![detour.jump[0]]));
        }
        if *want == Want::Nothing {
            lasts.push((addr, vec![original[0]]));
        }
    }
    if work.is_empty() {
        return Ok(());
    }
    for (site, want) in &work {
        // Who comes to a breakpoint from now on finds the site.
        site.head.armed.store(1, Ordering::Release);
        if *want == Want::Jump {
            site.jumped.store(1, Ordering::Release);
        }
    }
    let [first, second] = middles;
    for changes in [heads, first, second, lasts] {
        if !changes.is_empty() {
            memory.change(&changes)?;
            sys::sync_core();
        }
    }
    for (site, want) in &work {
        if *want != Want::Jump {
            site.jumped.store(0, Ordering::Release);
        }
        if *want == Want::Nothing {
            site.head.armed.store(0, Ordering::Release);
        }
    }
    Ok(())
}
