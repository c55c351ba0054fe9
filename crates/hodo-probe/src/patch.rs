//! Changes running code: breakpoints and jumps, by a protocol under which no processor executes half an instruction.
//!
//! The first instruction becomes a breakpoint. Then the rest is written; places at which an instruction of the program
//! begins are written first, as breakpoints. Then the breakpoint is replaced. Between these steps each processor
//! executes a serializing instruction. So a thread in the middle of the overwritten bytes reaches a
//! breakpoint, however late: those places stay breakpoints as long as the jump is there.

use alloc::vec::Vec;
use core::sync::atomic::Ordering;

use super::arch::BREAKPOINT;
use super::environment::{self, Errno};
use super::memory::{Change, Memory};
use super::site::Site;

/// Bytes of a breakpoint.
const HEAD: usize = BREAKPOINT.len();

/// What a site should hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Want {
    /// The program's bytes.
    Nothing,
    Breakpoint,
    /// A jump to its detour.
    Jump,
}

/// Brings sites into the wanted state. All are changed together, in two rounds: jumps are removed before anything that
/// overlaps them is written.
pub(super) fn apply(memory: &Memory, wanted: &[(&'static Site, Want)]) -> Result<(), Errno> {
    let (away, other): (Vec<_>, Vec<_>) =
        wanted.iter().partition(|(site, _)| was(site) == Want::Jump);
    change(memory, &away)?;
    change(memory, &other)
}

/// Applies changes that do not overlap.
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
                // The starts of instructions are written last.
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
        // A jump may be written over it in the same round.
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
    for changes in &mut steps {
        // A jump may be no longer than a breakpoint.
        changes.retain(|(_, bytes)| !bytes.is_empty());
        if !changes.is_empty() {
            // SAFETY: in this order, as described above, no thread executes half an instruction.
            unsafe { memory.change(changes) }?;
            environment::current().sync();
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

/// What is at a site now.
fn was(site: &Site) -> Want {
    if site.jumped.load(Ordering::Acquire) != 0 {
        Want::Jump
    } else if site.head.armed.load(Ordering::Acquire) != 0 {
        Want::Breakpoint
    } else {
        Want::Nothing
    }
}
