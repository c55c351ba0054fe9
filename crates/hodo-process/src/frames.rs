//! What the stacks of stopped threads hold that leads back into code: frames of signal handlers, and return addresses of traced
//! calls.

use anyhow::Result;
use hodo_trace::format::SHADOW_DISTANCE;

use crate::machine::{RETURNS_BELOW, STUB_FRAME, STUB_LOWER, frame, is_frame};
use crate::maps::Mapping;
use crate::remote::{self, Memory};

const PAGE: u64 = 4096;
/// Bytes of one stack that are looked through at most.
const DEEPEST: u64 = 16 << 20;

/// Where a signal handler goes back to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SignalFrame {
    /// Where the address is stored.
    pub at: u64,
    /// The address.
    pub pc: u64,
    /// The stack pointer there.
    pub sp: u64,
}

/// A return address that leads into a stub.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Return {
    /// It is so far below S.
    Below(u64),
    /// It is somewhere below S, not far.
    Somewhere,
}

/// What became of return addresses.
#[derive(Debug, Default)]
pub struct Restored {
    /// The addresses by which unwinders know the frames of stubs that they led to.
    pub frames: Vec<u64>,
    /// Where one is for which no real one was found.
    pub lost: Vec<u64>,
}

/// The real return address of the frame whose S this is, if it is known.
pub fn shadow(memory: &Memory, s: u64) -> Option<u64> {
    let address = memory.read_u64(s.checked_sub(SHADOW_DISTANCE)?).ok()?;
    // The top bit marks open frames (`--check-frames`).
    Some(address & !(1 << 63)).filter(|&address| address != 0)
}

fn word(bytes: &[u8], at: usize) -> Option<u64> {
    let bytes = bytes.get(at..at + 8)?;
    Some(u64::from_le_bytes(bytes.try_into().ok()?))
}

/// The rest of a stack: from `sp` to the end of its mapping.
fn stack(memory: &Memory, maps: &[Mapping], sp: u64) -> Option<Vec<u8>> {
    let index = maps.partition_point(|m| m.end <= sp);
    let mapping = maps.get(index).filter(|m| m.start <= sp)?;
    let size = (mapping.end - sp).min(DEEPEST);
    let mut bytes = vec![0; usize::try_from(size).ok()?];
    memory.read(sp, &mut bytes).ok()?;
    Some(bytes)
}

/// The frames of signal handlers that a stopped thread is in.
///
/// # Errors
/// If the thread is gone.
pub fn signal_frames(tid: i32, memory: &Memory, maps: &[Mapping]) -> Result<Vec<SignalFrame>> {
    let mut found = Vec::new();
    let mut todo = vec![remote::regs(tid)?.sp() & !7];
    let mut done: Vec<(u64, u64)> = Vec::new();
    while let Some(sp) = todo.pop() {
        if done.iter().any(|&(from, to)| (from..to).contains(&sp)) {
            continue;
        }
        let Some(bytes) = stack(memory, maps, sp) else {
            continue;
        };
        done.push((sp, sp + bytes.len() as u64));
        for at in (0..bytes.len()).step_by(8) {
            if !is_frame(&bytes[at..], memory, maps) {
                continue;
            }
            let word_at = |offset: u64| word(&bytes, at + offset as usize);
            if let (Some(saved), Some(pc)) = (word_at(frame::SP), word_at(frame::PC)) {
                found.push(SignalFrame {
                    at: sp + at as u64 + frame::PC,
                    pc,
                    sp: saved,
                });
                todo.push(saved & !7);
            }
        }
    }
    Ok(found)
}

/// Words of the top of a stopped thread's stack.
pub fn top_words(tid: i32, memory: &Memory, maps: &[Mapping], most: usize) -> Result<Vec<u64>> {
    let sp = remote::regs(tid)?.sp() & !7;
    let bytes = stack(memory, maps, sp).unwrap_or_default();
    Ok((0..bytes.len().min(most))
        .step_by(8)
        .filter_map(|at| word(&bytes, at))
        .collect())
}

/// Puts the real return addresses of all traced calls that are open back into their frames. `is_return`: whether an address is
/// one to which traced functions return. Tells where these frames are.
///
/// # Errors
/// If the process's memory cannot be read.
pub fn restore_returns(
    pid: i32,
    memory: &Memory,
    maps: &[Mapping],
    is_return: &mut dyn FnMut(u64) -> Option<Return>,
) -> Result<Restored> {
    use std::os::unix::fs::FileExt;
    const STEP: u64 = 1 << 15;
    let pagemap = std::fs::File::open(format!("/proc/{pid}/pagemap"))?;
    let mut restored = Restored::default();
    let stacks = maps
        .iter()
        .filter(|m| m.writable && m.start > SHADOW_DISTANCE + PAGE);
    for mapping in stacks {
        let first = (mapping.start - SHADOW_DISTANCE) / PAGE;
        let last = (mapping.end - SHADOW_DISTANCE).div_ceil(PAGE);
        let mut page = first;
        while page < last {
            let pages = (last - page).min(STEP);
            let mut entries = vec![0; (pages * 8) as usize];
            pagemap.read_exact_at(&mut entries, page * 8)?;
            for index in 0..pages as usize {
                // Present, or swapped out.
                if word(&entries, index * 8).is_none_or(|entry| entry >> 62 == 0) {
                    continue;
                }
                let shadow = (page + index as u64) * PAGE;
                restore_page(memory, mapping, shadow, is_return, &mut restored)?;
            }
            page += pages;
        }
    }
    Ok(restored)
}

fn restore_page(
    memory: &Memory,
    mapping: &Mapping,
    shadow: u64,
    is_return: &mut dyn FnMut(u64) -> Option<Return>,
    restored: &mut Restored,
) -> Result<()> {
    let from = (shadow + SHADOW_DISTANCE - RETURNS_BELOW).max(mapping.start);
    let to = (shadow + PAGE + SHADOW_DISTANCE).min(mapping.end);
    if from >= to {
        return Ok(());
    }
    let mut now = vec![0; (to - from) as usize];
    if memory.read(from, &mut now).is_err() {
        return Ok(());
    }
    for (at, present) in (from..).step_by(8).zip(now.chunks_exact(8)) {
        let present = u64::from_le_bytes(present.try_into().unwrap_or_default());
        let kept = |s| self::shadow(memory, s).map(|address| (s, address));
        let found = match is_return(present) {
            None => continue,
            Some(Return::Below(distance)) => kept(at + distance),
            // S is a multiple of 16. What else has a shadow there is of calls that were made deeper in the stack.
            Some(Return::Somewhere) => ((at + 8).next_multiple_of(16)..=at + RETURNS_BELOW)
                .step_by(16)
                .find_map(kept),
        };
        match found {
            Some((s, address)) => {
                memory.write(at, &address.to_le_bytes())?;
                restored.frames.push(s - STUB_FRAME);
            }
            // Where the place itself tells S, it is a copy of a return address, which nobody returns to.
            None if RETURNS_BELOW == 0 => {}
            None => restored.lost.push(at),
        }
    }
    Ok(())
}

/// An exception on its way remembers its handler by the address of the frame below (`private_2` of `_Unwind_Exception`, in the
/// unwinders of gcc), which has changed where that was a stub's, one of `stubs`: by [`STUB_LOWER`]. `pointers`: where exceptions
/// may be.
///
/// # Errors
/// If the process's memory cannot be written.
pub fn correct_exceptions(
    memory: &Memory,
    maps: &[Mapping],
    pointers: impl Iterator<Item = u64>,
    stubs: &[u64],
) -> Result<()> {
    let mut done = Vec::new();
    for at in pointers.filter(|at| at % 16 == 0) {
        let index = maps.partition_point(|m| m.end <= at);
        if !maps.get(index).is_some_and(|m| m.start <= at && m.writable) || done.contains(&at) {
            continue;
        }
        // exception_class, exception_cleanup, private_1, private_2
        let mut header = [0; 32];
        if memory.read(at, &mut header).is_err() {
            continue;
        }
        let (class, stop, frame) = (word(&header, 0), word(&header, 16), word(&header, 24));
        if class != Some(0)
            && stop == Some(0)
            && let Some(frame) = frame.filter(|frame| stubs.contains(frame))
        {
            memory.write(at + 24, &(frame + STUB_LOWER).to_le_bytes())?;
            done.push(at);
        }
    }
    Ok(())
}
