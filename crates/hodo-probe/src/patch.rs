//! Changes running code: breakpoints and jumps, by the protocol under which no processor executes half an instruction.
//!
//! The first instruction becomes a breakpoint; then the rest is written, those places first at which an instruction of
//! the program begins, as breakpoints; then what is in the breakpoint's place. Between these steps each processor
//! executes a serializing instruction. So a thread that stands in the middle of what is overwritten comes to a
//! breakpoint, however late, for the bytes at those places stay breakpoints as long as the jump is there.

use alloc::vec::Vec;
use core::sync::atomic::Ordering;

use super::arch::BREAKPOINT;
use super::site::Site;
use super::sys::{self, Errno};
use hodo_sys::{Change, Memory};

/// Bytes of a breakpoint.
const HEAD: usize = BREAKPOINT.len();

/// What is to be at a site.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Want {
    /// The program's bytes.
    Nothing,
    Breakpoint,
    /// A jump to its detour.
    Jump,
}

/// Makes sites what they should be. All are changed together, in two goes: jumps are taken away before what they
/// overlap with is written.
pub(super) fn apply(memory: &Memory, wanted: &[(&'static Site, Want)]) -> Result<(), Errno> {
    let (away, other): (Vec<_>, Vec<_>) =
        wanted.iter().partition(|(site, _)| was(site) == Want::Jump);
    change(memory, &away)?;
    change(memory, &other)
}

/// Makes changes that do not overlap.
fn change(memory: &Memory, wanted: &[(&'static Site, Want)]) -> Result<(), Errno> {
    let mut work: Vec<_> = wanted
        .iter()
        .filter(|(site, want)| was(site) != *want)
        .copied()
        .collect();
    if work.is_empty() {
        return Ok(());
    }
    work.sort_by_key(|(site, _)| site.addr());
    let mut steps: [Vec<Change>; 4] = Default::default();
    let mut covered = 0;
    for (site, want) in &work {
        let was = was(site);
        let addr = site.addr();
        // SAFETY: detours stay.
        let detour = unsafe { site.detour.load(Ordering::Acquire).as_ref() };
        let inside = detour.map_or(&[][..], |detour| &detour.inside);
        let [heads, firsts, seconds, lasts] = &mut steps;
        heads.push((addr, BREAKPOINT.to_vec()));
        let Some(jump) = detour.and_then(|detour| detour.jump.as_deref()) else {
            if *want == Want::Nothing && addr >= covered {
                lasts.push((addr, site.original[..HEAD].to_vec()));
            }
            continue;
        };
        let original = || site.original[HEAD..jump.len()].to_vec();
        let stopped = || {
            let mut bytes = original();
            for at in inside {
                bytes[usize::from(*at) - HEAD..][..HEAD].copy_from_slice(BREAKPOINT);
            }
            bytes
        };
        match (was, *want) {
            (Want::Jump, _) => {
                // The starts of instructions come last.
                firsts.push((addr + HEAD as u64, stopped()));
                seconds.push((addr + HEAD as u64, original()));
            }
            (_, Want::Jump) => {
                if !inside.is_empty() {
                    firsts.push((addr + HEAD as u64, stopped()));
                }
                seconds.push((addr + HEAD as u64, jump[HEAD..].to_vec()));
                lasts.push((addr, jump[..HEAD].to_vec()));
                covered = addr + jump.len() as u64;
            }
            _ => {}
        }
        // A jump may be written over it in the same go.
        if *want == Want::Nothing && addr >= covered {
            lasts.push((addr, site.original[..HEAD].to_vec()));
        }
    }
    for (site, want) in &work {
        site.head.armed.store(1, Ordering::Release);
        if *want == Want::Jump {
            site.jumped.store(1, Ordering::Release);
        }
    }
    for changes in &steps {
        if !changes.is_empty() {
            // SAFETY: in this order, as said above, no thread executes half an instruction.
            unsafe { memory.change(changes) }?;
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

/// What is at a site.
fn was(site: &Site) -> Want {
    if site.jumped.load(Ordering::Acquire) != 0 {
        Want::Jump
    } else if site.head.armed.load(Ordering::Acquire) != 0 {
        Want::Breakpoint
    } else {
        Want::Nothing
    }
}
