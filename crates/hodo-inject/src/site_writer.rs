//! Writes over a program's code, and restores the original bytes.

use std::collections::{BTreeSet, HashSet};
use std::rc::Rc;

use anyhow::{Context, Result};
use hodo_module::Image;
use hodo_module::image::Placed;
use hodo_patch::Patches;
use hodo_ptrace::Memory;
use hodo_ptrace::TargetAddr;
use hodo_ptrace::arch::BREAKPOINT;

use crate::arch::WAIT;
use crate::ledger::Entry;
use crate::linker;
use crate::space::Space;
use hodo_isa::NATIVE;

/// The size of a page. The sites of neighboring pages are written together: a write costs little more than the pages
/// that it copies.
const PAGE: u64 = 4096;

/// Writes patches. Bytes that lead nowhere else come first, then the hooks through which unwinders find their way: if
/// hodo is killed in the middle, everything written so far can be executed.
pub fn apply(
    memory: &Memory,
    image: &Rc<Image>,
    bias: u64,
    patches: &Patches,
    space: &mut Space,
) -> Result<()> {
    lead(memory, image, bias, patches, space)?;
    follow(memory, image, bias, patches, space)
}

/// The first part of [`apply`]: the hooks, and what is in our own memory.
pub fn lead(
    memory: &Memory,
    image: &Rc<Image>,
    bias: u64,
    patches: &Patches,
    space: &mut Space,
) -> Result<()> {
    linker::make_room(memory, patches, space)?;
    let own = |(at, bytes): &&(u64, Vec<u8>)| {
        let start = at.wrapping_sub(bias);
        image.at(start..start + bytes.len() as u64).is_none()
    };
    write(
        memory,
        image,
        bias,
        patches.writes.iter().filter(own),
        space,
    )?;
    write(memory, image, bias, patches.hooks.iter(), space)
}

/// The rest of [`apply`].
pub fn follow(
    memory: &Memory,
    image: &Rc<Image>,
    bias: u64,
    patches: &Patches,
    space: &mut Space,
) -> Result<()> {
    let hooks: HashSet<u64> = patches.hooks.iter().map(|hook| hook.0).collect();
    let rest = |(at, bytes): &&(u64, Vec<u8>)| {
        let start = at.wrapping_sub(bias);
        !hooks.contains(at) && image.at(start..start + bytes.len() as u64).is_some()
    };
    write(
        memory,
        image,
        bias,
        patches.writes.iter().filter(rest),
        space,
    )?;
    for &at in &patches.semaphores {
        count(memory, at, 1)?;
        space.written_mut().add_semaphore(at);
    }
    space.written_mut().add(patches);
    if !patches.copies.is_empty() {
        let start = image.segments.first().map_or(0, |segment| segment.addr);
        space.written_mut().add_file(Placed {
            range: start.wrapping_add(bias)..image.end.wrapping_add(bias),
            bias,
            image: Rc::clone(image),
        });
    }
    Ok(())
}

/// Writes over code. What is in neighboring pages is written together; no page is touched that has no site.
fn write<'a>(
    memory: &Memory,
    image: &Rc<Image>,
    bias: u64,
    writes: impl Iterator<Item = &'a (u64, Vec<u8>)>,
    space: &mut Space,
) -> Result<()> {
    let mut writes: Vec<_> = writes.collect();
    writes.sort();
    let mut writes = writes.into_iter().peekable();
    while let Some((start, first)) = writes.next() {
        let start = *start;
        let original = |range: std::ops::Range<u64>| {
            image
                .at(range.start.wrapping_sub(bias)..range.end.wrapping_sub(bias))
                .context("a site lies outside of the file")
        };
        let mut end = start + first.len() as u64;
        let Ok(old) = original(start..end) else {
            // Our own memory, where nothing was before.
            memory.write(TargetAddr(start), first)?;
            continue;
        };
        let mut group = vec![(start, first)];
        space.written_mut().add_original(start, old.to_vec());
        let near = |end: u64, next: u64, len: usize| {
            next >= end
                && next / PAGE <= (end - 1) / PAGE + 1
                && original(start..next + len as u64).is_ok()
        };
        while let Some((next, more)) = writes.next_if(|(next, more)| near(end, *next, more.len())) {
            end = next + more.len() as u64;
            let old = original(*next..end)?.to_vec();
            space.written_mut().add_original(*next, old);
            group.push((*next, more));
        }
        let mut bytes = vec![0; (end - start) as usize];
        if group.len() > 1 {
            // The bytes between them stay as they are now, not as in the file: the program may have switched static
            // branches.
            memory.read(TargetAddr(start), &mut bytes)?;
        }
        for (at, new) in group {
            bytes[(at - start) as usize..][..new.len()].copy_from_slice(new);
        }
        // The linker's breakpoint may be between the sites.
        if let Some(at) = space.linker_stop()
            && (start..end).contains(&at)
            && !space.has_announcement()
        {
            bytes[(at - start) as usize..][..BREAKPOINT.len()].copy_from_slice(&BREAKPOINT);
        }
        memory.write(TargetAddr(start), &bytes)?;
    }
    Ok(())
}

/// Restores the original bytes in the code of a process, except for hooks.
pub fn revert(pid: i32, space: &Space) -> Result<()> {
    let memory = Memory::open(pid)?;
    put_back(&memory, space)?;
    write_hooks(&memory, space)
}

fn write_hooks(memory: &Memory, space: &Space) -> Result<()> {
    for (at, bytes) in space.written().hooks() {
        memory.write(TargetAddr(*at), bytes)?;
    }
    Ok(())
}

/// Restores the original bytes of hooks, in a process whose threads are stopped.
///
/// # Errors
/// If the process's memory cannot be accessed.
pub fn remove_hooks(memory: &Memory, space: &Space) -> Result<()> {
    for (at, hook) in space.written().hooks() {
        let mut code = vec![0; hook.len()];
        // Its library may have been unloaded, and another one may be there.
        if memory.read(TargetAddr(*at), &mut code).is_err() || code != *hook {
            continue;
        }
        unwrite(&mut code, *at, space.written().originals());
        memory.write(TargetAddr(*at), &code)?;
    }
    Ok(())
}

/// Replaces the bytes of code that was read at an address by those that were there before anything was written.
fn unwrite(code: &mut [u8], at: u64, originals: &[(u64, Vec<u8>)]) {
    // The oldest bytes come last, so they win.
    for (start, bytes) in originals.iter().rev() {
        for (byte, at) in code.iter_mut().zip(at..) {
            let index = at.checked_sub(*start);
            let original = index.and_then(|index| bytes.get(usize::try_from(index).ok()?));
            *byte = original.copied().unwrap_or(*byte);
        }
    }
}

/// Returns where threads that call a function at `start` can be made to wait: at its start, or after the instruction
/// that calls must find there, which a breakpoint may have replaced.
pub(crate) fn holding_place(memory: &Memory, space: &Space, start: u64) -> u64 {
    let mut code = [0; 4];
    if memory.read(TargetAddr(start), &mut code).is_err() {
        return start;
    }
    unwrite(&mut code, start, space.written().originals());
    match NATIVE.must_land(&code) {
        true => start + NATIVE.landing(&code),
        false => start,
    }
}

/// Makes the stopped threads of a process wait where the unwinding of exceptions begins. Skips a place if a thread is
/// in the middle of its instructions; threads are at `places`.
pub fn hold(memory: &Memory, space: &mut Space, places: &[u64]) {
    let mut held = Vec::new();
    for &start in space.written().unwinding() {
        let at = holding_place(memory, space, start);
        let mut code = WAIT.map(|_| 0);
        let end = at + code.len() as u64;
        let is_hook =
            |(start, bytes): &(u64, Vec<u8>)| *start < end && at < start + bytes.len() as u64;
        // Its library may have been unloaded.
        if !places.iter().any(|place| (at + 1..end).contains(place))
            && !space.written().hooks().iter().any(is_hook)
            && memory.read(TargetAddr(at), &mut code).is_ok()
        {
            held.push((at, code));
        }
    }
    space.written_mut().set_held(held);
    for (at, _) in space.written().held() {
        // A thread that is not held may come later.
        let _ = memory.write(TargetAddr(*at), &WAIT);
    }
}

/// Ends this. Threads may run.
pub fn release(memory: &Memory, space: &mut Space) {
    write_held(memory, space);
    space.written_mut().set_held(Vec::new());
}

/// Restores the code where threads are held.
fn write_held(memory: &Memory, space: &Space) {
    for (at, original) in space.written().held() {
        let mut code = WAIT.map(|_| 0);
        if memory.read(TargetAddr(*at), &mut code).is_ok() && code == WAIT {
            // If it cannot be written, it no longer exists.
            let _ = memory.write(TargetAddr(*at), original);
        }
    }
}

/// Changes how many users want a USDT probe.
fn count(memory: &Memory, at: u64, change: i16) -> Result<()> {
    let mut wanted = [0; 2];
    memory.read(TargetAddr(at), &mut wanted)?;
    // If hodo was killed before raising it, it may be lowered without having been raised.
    let wanted = u16::from_le_bytes(wanted).saturating_add_signed(change);
    memory.write(TargetAddr(at), &wanted.to_le_bytes())
}

fn lower_semaphores(memory: &Memory, space: &Space) -> Result<()> {
    let semaphores = space.written().semaphores();
    if !semaphores.is_empty() || space.keys().all().next().is_some() {
        space.ledger().note(memory, &Entry::Lowered)?;
    }
    for &at in semaphores {
        // Its library may have been unloaded.
        let _ = count(memory, at, -1);
    }
    Ok(())
}

/// Restores all original bytes in the code of a process whose threads are stopped.
pub fn put_back(memory: &Memory, space: &Space) -> Result<()> {
    put_back_except(memory, space, &BTreeSet::new())
}

/// Restores them, except for what was written from these addresses on.
pub fn put_back_except(memory: &Memory, space: &Space, stay: &BTreeSet<u64>) -> Result<()> {
    write_held(memory, space);
    lower_semaphores(memory, space)?;
    let originals = space.written().originals().iter();
    let mut originals: Vec<_> = originals.filter(|(at, _)| !stay.contains(at)).collect();
    // The bytes written last are restored first, so the oldest ones win.
    originals.reverse();
    originals.sort_by_key(|(at, _)| at / PAGE);
    let last_page =
        |(at, bytes): &(u64, Vec<u8>)| (at + bytes.len() as u64).saturating_sub(1) / PAGE;
    for run in originals.chunk_by(|a, b| b.0 / PAGE <= last_page(a) + 1) {
        if restore(memory, run)? {
            continue;
        }
        // A file among them was unloaded.
        for page in run.chunk_by(|a, b| a.0 / PAGE == b.0 / PAGE) {
            restore(memory, page)?;
        }
    }
    space.keys().release(memory);
    Ok(())
}

/// Restores bytes in neighboring pages, those of the first page first. Returns whether the pages exist.
fn restore(memory: &Memory, originals: &[&(u64, Vec<u8>)]) -> Result<bool> {
    let Some((first, _)) = originals.first() else {
        return Ok(true);
    };
    let start = first & !(PAGE - 1);
    let ends = originals.iter().map(|(at, bytes)| at + bytes.len() as u64);
    let end = ends.max().unwrap_or(start).next_multiple_of(PAGE);
    let mut content = vec![0; (end - start) as usize];
    if memory.read(TargetAddr(start), &mut content).is_err() {
        return Ok(false);
    }
    for (at, bytes) in originals {
        content[(at - start) as usize..][..bytes.len()].copy_from_slice(bytes);
    }
    memory.write(TargetAddr(start), &content)?;
    Ok(true)
}

/// Ends the tracing of a process while its threads run: every site first becomes a breakpoint, which leads to its stub
/// like the jump, and then gets its original bytes back.
pub fn stop(pid: i32, space: &mut Space) -> Result<()> {
    let memory = Memory::open(pid)?;
    // Branches cannot be changed while threads run: static keys stay as they are.
    space.let_keys_go();
    for site in space.written().sites().to_vec() {
        space.written_mut().becomes_trap(site);
        memory.write(TargetAddr(site.at), &BREAKPOINT)?;
    }
    lower_semaphores(&memory, space)?;
    // Each on its own: the program may be changing the bytes between them. The oldest bytes win.
    for (at, bytes) in space.written().originals().iter().rev() {
        // Its library may have been unloaded.
        let _ = memory.write(TargetAddr(*at), bytes);
    }
    write_hooks(&memory, space)?;
    space.written_mut().semaphores_are_lowered();
    // The linker continues to announce libraries; nothing is done about them.
    match (space.linker_stop(), space.announcement()) {
        (Some(at), Some(announcement)) => memory.write(TargetAddr(at), &announcement.jump)?,
        (Some(at), None) => memory.write(TargetAddr(at), &BREAKPOINT)?,
        _ => {}
    }
    space.end();
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::unwrite;

    #[test]
    fn code_gets_the_bytes_back_that_were_first_there() {
        let originals = [(10, vec![1, 2]), (11, vec![9, 3, 4])];
        let mut code = [0; 4];
        unwrite(&mut code, 9, &originals);
        assert_eq!(code, [0, 1, 2, 3]);
        unwrite(&mut code, 14, &originals);
        assert_eq!(code, [0, 1, 2, 3]);
    }
}
