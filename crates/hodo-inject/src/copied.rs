//! Programs that copy their own functions and call the copies. The copies contain our jumps, which lead astray from
//! there.

use anyhow::Result;

use crate::arch;
use crate::space::{SharedSpace, Space};
use hodo_ptrace::TargetAddr;
use hodo_ptrace::maps;
use hodo_ptrace::{Memory, Regs, Stopped};

/// How many bytes on each side of a breakpoint are compared with those of a copy.
const AROUND: usize = 32;

/// A copied breakpoint is recognized by this many equal bytes, from itself on. What is before it may have been copied
/// or not.
const ALIKE: usize = 16;

/// Handles a fault or a breakpoint that our code has not caused. If a thread was led astray by one of our jumps in a
/// copy of changed code, or met one of our breakpoints there, restores the original bytes in the copy and lets the
/// thread continue. Returns whether that was the case.
pub fn repair(thread: Stopped, signal: i32, space: &SharedSpace) -> Result<bool> {
    if !matches!(signal, libc::SIGSEGV | libc::SIGILL | libc::SIGTRAP)
        || !thread.siginfo().is_ok_and(|info| info.si_code > 0)
    {
        return Ok(false);
    }
    let mut regs = thread.regs()?;
    let memory = thread.memory()?;
    let space = space.borrow();
    let found = match signal {
        // What leads astray may end in the filling of an island.
        libc::SIGTRAP => met(&regs, &memory, &space)
            .or_else(|| astray(regs.breakpoint(), &regs, &memory, &space)),
        _ => astray(regs.pc(), &regs, &memory, &space),
    };
    let Some((begin, place, site)) = found else {
        return Ok(false);
    };
    let maps = maps::read(thread.tid())?;
    let Some(mapping) = maps.iter().find(|m| (m.start..m.end).contains(&place)) else {
        return Ok(false);
    };
    let delta = place.wrapping_sub(site);
    let mut repaired = false;
    for (at, original) in space.written().originals() {
        let copy = at.wrapping_add(delta);
        let end = copy.saturating_add(original.len() as u64);
        if copy < mapping.start || end > mapping.end {
            continue;
        }
        let (mut here, mut there) = (original.clone(), original.clone());
        memory.read(TargetAddr(*at), &mut here)?;
        memory.read(TargetAddr(copy), &mut there)?;
        if here == there {
            memory.write(TargetAddr(copy), original)?;
            repaired |= copy == place;
        }
    }
    if repaired {
        regs.set_pc(begin);
        thread.set_regs(&regs)?;
    }
    Ok(repaired)
}

/// The start of the copy that a thread has called, the address of the jump in it, and the site that was copied. The
/// jump has led to `target`.
fn astray(target: u64, regs: &Regs, memory: &Memory, space: &Space) -> Option<(u64, u64, u64)> {
    let back = memory.read_u64(TargetAddr(regs.sp())).ok();
    let called = back.and_then(|back| arch::called_before(memory, back));
    for begin in called.into_iter().chain(regs.all()) {
        let jump = arch::copied_jump(memory, begin).filter(|&(_, to)| to == target);
        let Some((place, _)) = jump.filter(|(place, _)| space.file_at(*place).is_none()) else {
            continue;
        };
        let distance = target.wrapping_sub(place);
        let is_site =
            |at: u64| arch::jump_at(memory, at).is_some_and(|to| to.wrapping_sub(at) == distance);
        let mut sites = space.written().originals().iter().map(|(at, _)| *at);
        if let Some(site) = sites.find(|&at| is_site(at)) {
            return Some((begin, place, site));
        }
    }
    None
}

/// The breakpoint at which a thread is, if it was copied, and the site of which it is a copy.
fn met(regs: &Regs, memory: &Memory, space: &Space) -> Option<(u64, u64, u64)> {
    let place = regs.breakpoint();
    if space.file_at(place).is_some() {
        return None;
    }
    let copy = Around::of(memory, place);
    let sites = space.written().traps();
    let alike = sites.filter_map(|at| Some((copy.likeness(&Around::of(memory, at))?, at)));
    let (_, site) = alike.max()?;
    Some((place, place, site))
}

/// The bytes around a breakpoint. The code before or after it may be no part of a copy, and not even mapped.
struct Around {
    before: Option<[u8; AROUND]>,
    after: Option<[u8; AROUND]>,
}

impl Around {
    fn of(memory: &Memory, place: u64) -> Self {
        let bytes = |at: u64| {
            let mut bytes = [0; AROUND];
            let read = memory.read(TargetAddr(at), &mut bytes);
            read.is_ok().then_some(bytes)
        };
        Self {
            before: bytes(place.wrapping_sub(AROUND as u64)),
            after: bytes(place),
        }
    }

    /// How many bytes are equal, from the breakpoint on in both directions; `None` if one cannot be a copy of the
    /// other. Without bytes after it, all before it must be equal.
    fn likeness(&self, other: &Self) -> Option<usize> {
        let before = self.before.zip(other.before).map_or(0, |(a, b)| {
            let bytes = a.iter().zip(&b).rev();
            bytes.take_while(|(a, b)| a == b).count()
        });
        match self.after.zip(other.after) {
            Some((a, b)) => {
                let bytes = a.iter().zip(&b);
                let after = bytes.take_while(|(a, b)| a == b).count();
                (after >= ALIKE).then_some(before + after)
            }
            None => (before == AROUND).then_some(before),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_at_the_start_or_end_of_memory_are_recognized() {
        let side = |first: u8| Some(core::array::from_fn(|n| first + n as u8));
        let around = |before, after| Around { before, after };
        let site = around(side(0), side(100));
        let alike = |copy: Around| copy.likeness(&site);
        assert_eq!(alike(around(side(0), side(100))), Some(2 * AROUND));
        assert_eq!(alike(around(None, side(100))), Some(AROUND));
        assert_eq!(alike(around(side(0), None)), Some(AROUND));
        let other = Some([0xCC; AROUND]);
        assert_eq!(alike(around(other, side(100))), Some(AROUND));
        // A breakpoint of the program after the same padding is no copy.
        assert_eq!(alike(around(side(0), other)), None);
        assert_eq!(alike(around(other, None)), None);
        let mut first = [0; AROUND];
        first[..4].copy_from_slice(&[100, 101, 102, 103]);
        assert_eq!(alike(around(None, Some(first))), None);
        assert_eq!(alike(around(None, None)), None);
    }
}
