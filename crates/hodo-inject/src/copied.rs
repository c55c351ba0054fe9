//! Programs that copy their own functions and call the copies. The copies contain our jumps, which lead astray from
//! there.

use anyhow::Result;

use crate::arch;
use crate::space::{SharedSpace, Space};
use hodo_ptrace::TargetAddr;
use hodo_ptrace::maps;
use hodo_ptrace::{Memory, Regs, Stopped};

/// A copied breakpoint is recognized by this many bytes around it.
const AROUND: u64 = 16;

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
        libc::SIGTRAP => met(&regs, &memory, &space),
        _ => astray(&regs, &memory, &space),
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

/// The start of the copy that a thread has called, the address of the jump in it, and the site that was copied.
fn astray(regs: &Regs, memory: &Memory, space: &Space) -> Option<(u64, u64, u64)> {
    let target = regs.pc();
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

/// What was copied of a system call at whose breakpoint a thread is.
fn met(regs: &Regs, memory: &Memory, space: &Space) -> Option<(u64, u64, u64)> {
    let place = regs.breakpoint();
    let around = |at: u64| {
        let mut bytes = [0; 2 * AROUND as usize];
        memory
            .read(TargetAddr(at.wrapping_sub(AROUND)), &mut bytes)
            .ok()
            .map(|()| bytes)
    };
    let copy = around(place)?;
    if space.file_at(place).is_some() {
        return None;
    }
    let mut traps = space.written().traps();
    let site = traps.find(|&at| around(at) == Some(copy))?;
    Some((place, place, site))
}
