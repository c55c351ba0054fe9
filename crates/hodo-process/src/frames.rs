//! What the stacks of stopped threads hold that leads back into code: frames of signal handlers, and return addresses of traced
//! calls.

use anyhow::Result;
use hodo_trace::format::SHADOW_DISTANCE;

use crate::maps::Mapping;
use crate::remote::{self, Memory};

const PAGE: u64 = 4096;
/// Bytes of one stack that are looked through at most.
const DEEPEST: u64 = 16 << 20;
/// Offsets from the return address of a signal handler, which is where the frame begins (`struct rt_sigframe`).
const SAVED_RSP: usize = 8 + 40 + 15 * 8;
const SAVED_RIP: usize = 8 + 40 + 16 * 8;
const SAVED_SEGMENTS: usize = 8 + 40 + 18 * 8;
/// The selector of 64-bit code.
const USER_CODE: u16 = 0x33;

/// Where a signal handler goes back to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SignalFrame {
    /// Where the address is stored.
    pub at: u64,
    /// The address.
    pub rip: u64,
}

fn word(bytes: &[u8], at: usize) -> Option<u64> {
    let bytes = bytes.get(at..at + 8)?;
    Some(u64::from_le_bytes(bytes.try_into().ok()?))
}

/// The rest of a stack: from `rsp` to the end of its mapping.
fn stack(memory: &Memory, maps: &[Mapping], rsp: u64) -> Option<Vec<u8>> {
    let index = maps.partition_point(|m| m.end <= rsp);
    let mapping = maps.get(index).filter(|m| m.start <= rsp)?;
    let size = (mapping.end - rsp).min(DEEPEST);
    let mut bytes = vec![0; usize::try_from(size).ok()?];
    memory.read(rsp, &mut bytes).ok()?;
    Some(bytes)
}

/// Is this where signal handlers return to: `mov $15, %eax` in one of its forms, `syscall`?
fn is_restorer(memory: &Memory, maps: &[Mapping], at: u64) -> bool {
    let index = maps.partition_point(|m| m.end <= at);
    if !maps
        .get(index)
        .is_some_and(|m| m.start <= at && m.executable)
    {
        return false;
    }
    let mut code = [0; 9];
    memory.read(at, &mut code).is_ok()
        && (code == [0x48, 0xC7, 0xC0, 15, 0, 0, 0, 0x0F, 0x05]
            || code[..7] == [0xB8, 15, 0, 0, 0, 0x0F, 0x05])
}

/// The frames of signal handlers that a stopped thread is in.
///
/// # Errors
/// If the thread is gone.
pub fn signal_frames(tid: i32, memory: &Memory, maps: &[Mapping]) -> Result<Vec<SignalFrame>> {
    let mut found = Vec::new();
    let mut todo = vec![remote::regs(tid)?.rsp & !7];
    let mut done: Vec<(u64, u64)> = Vec::new();
    while let Some(rsp) = todo.pop() {
        if done.iter().any(|&(from, to)| (from..to).contains(&rsp)) {
            continue;
        }
        let Some(bytes) = stack(memory, maps, rsp) else {
            continue;
        };
        done.push((rsp, rsp + bytes.len() as u64));
        for at in (0..bytes.len()).step_by(8) {
            let segments = word(&bytes, at + SAVED_SEGMENTS);
            if segments.is_none_or(|word| word as u16 != USER_CODE) {
                continue;
            }
            let (Some(back), Some(saved), Some(rip)) = (
                word(&bytes, at),
                word(&bytes, at + SAVED_RSP),
                word(&bytes, at + SAVED_RIP),
            ) else {
                continue;
            };
            if is_restorer(memory, maps, back) {
                found.push(SignalFrame {
                    at: rsp + (at + SAVED_RIP) as u64,
                    rip,
                });
                todo.push(saved & !7);
            }
        }
    }
    Ok(found)
}

/// Words of the top of a stopped thread's stack.
pub fn top_words(tid: i32, memory: &Memory, maps: &[Mapping], most: usize) -> Result<Vec<u64>> {
    let rsp = remote::regs(tid)?.rsp & !7;
    let bytes = stack(memory, maps, rsp).unwrap_or_default();
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
