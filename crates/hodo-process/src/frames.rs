//! What the stacks of stopped threads hold that leads back into code: frames of signal handlers, and return addresses of traced
//! calls.

use anyhow::Result;
use hodo_trace::format::SHADOW_DISTANCE;

use crate::machine::{frame, is_frame};
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
    is_return: &mut dyn FnMut(u64) -> bool,
) -> Result<Vec<u64>> {
    use std::os::unix::fs::FileExt;
    const STEP: u64 = 1 << 15;
    let pagemap = std::fs::File::open(format!("/proc/{pid}/pagemap"))?;
    let mut slots = Vec::new();
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
                restore_page(memory, mapping, shadow, is_return, &mut slots)?;
            }
            page += pages;
        }
    }
    Ok(slots)
}

fn restore_page(
    memory: &Memory,
    mapping: &Mapping,
    shadow: u64,
    is_return: &mut dyn FnMut(u64) -> bool,
    slots: &mut Vec<u64>,
) -> Result<()> {
    let from = (shadow + SHADOW_DISTANCE).max(mapping.start);
    let to = (shadow + PAGE + SHADOW_DISTANCE).min(mapping.end);
    if from >= to {
        return Ok(());
    }
    let mut real = vec![0; (to - from) as usize];
    let mut now = real.clone();
    if memory.read(from - SHADOW_DISTANCE, &mut real).is_err()
        || memory.read(from, &mut now).is_err()
    {
        return Ok(());
    }
    for at in (0..real.len()).step_by(8) {
        let (Some(address), Some(present)) = (word(&real, at), word(&now, at)) else {
            continue;
        };
        // The top bit marks open frames (`--check-frames`).
        let address = address & !(1 << 63);
        if address != 0 && is_return(present) {
            memory.write(from + at as u64, &address.to_le_bytes())?;
            slots.push(from + at as u64);
        }
    }
    Ok(())
}

/// An exception on its way remembers its handler by the address of the frame below (`private_2` of `_Unwind_Exception`, in the
/// unwinders of gcc), which has changed where that was a stub's: by eight bytes. `pointers`: where exceptions may be.
///
/// # Errors
/// If the process's memory cannot be written.
pub fn correct_exceptions(
    memory: &Memory,
    maps: &[Mapping],
    pointers: impl Iterator<Item = u64>,
    slots: &[u64],
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
            && let Some(frame) = frame.filter(|frame| slots.contains(frame))
        {
            memory.write(at + 24, &(frame + 8).to_le_bytes())?;
            done.push(at);
        }
    }
    Ok(())
}
