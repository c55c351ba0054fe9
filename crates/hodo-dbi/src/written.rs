//! What hodo has written into a process lately.
//!
//! Threads of a process run while another one forks. When hodo receives the child, it may have written into the process
//! for them already, which the child does not have: its memory was copied before. So it writes that once more.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::ops::Deref;

use anyhow::{Result, bail};
use hodo_abi::Span;
use hodo_ptrace::{Memory, Syscalls, TargetAddr};

/// The maximum number of bytes that are remembered.
const MOST: usize = 1 << 20;
/// Bytes that are copied at once.
const AT_ONCE: usize = 64 << 10;

/// The memory of a process, and what hodo has written into it.
#[derive(Debug)]
pub(crate) struct Writer {
    memory: Memory,
    lately: RefCell<Lately>,
}

#[derive(Debug, Default)]
struct Lately {
    writes: VecDeque<(TargetAddr, Box<[u8]>)>,
    /// How many bytes these have.
    bytes: usize,
    /// How many were forgotten.
    forgotten: u64,
}

impl Lately {
    fn add(&mut self, at: TargetAddr, bytes: &[u8]) {
        self.bytes += bytes.len();
        self.writes.push_back((at, bytes.into()));
        while self.bytes > MOST
            && let Some((_, first)) = self.writes.pop_front()
        {
            self.bytes -= first.len();
            self.forgotten += 1;
        }
    }

    fn count(&self) -> u64 {
        self.forgotten + self.writes.len() as u64
    }

    /// The writes since there were so many. `None`: some are forgotten.
    fn since(&self, count: u64) -> Option<impl Iterator<Item = &(TargetAddr, Box<[u8]>)>> {
        let skipped = count.checked_sub(self.forgotten)?;
        Some(self.writes.iter().skip(skipped as usize))
    }
}

impl Deref for Writer {
    type Target = Memory;

    fn deref(&self) -> &Memory {
        &self.memory
    }
}

impl Writer {
    pub(crate) fn new(memory: Memory) -> Self {
        Self {
            memory,
            lately: RefCell::default(),
        }
    }

    /// Writes, as [`Memory::write`] does.
    ///
    /// # Errors
    /// If the process is gone.
    pub(crate) fn write(&self, at: TargetAddr, bytes: &[u8]) -> Result<()> {
        self.memory.write(at, bytes)?;
        self.lately.borrow_mut().add(at, bytes);
        Ok(())
    }

    /// Writes, as [`Memory::store_words`] does.
    pub(crate) fn store_words<const N: usize>(&self, words: &[(TargetAddr, [u64; N])]) -> usize {
        let written = self.memory.store_words(words);
        let mut lately = self.lately.borrow_mut();
        for (at, words) in &words[..written] {
            let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
            lately.add(*at, &bytes);
        }
        written
    }

    /// Rights of memory have changed, which a child that is being forked may not have, either: counts as a write.
    pub(crate) fn note_rights(&self) {
        self.lately.borrow_mut().add(TargetAddr(0), &[]);
    }

    /// How often anything was written.
    pub(crate) fn count(&self) -> u64 {
        self.lately.borrow().count()
    }

    /// Writes into a copy what was written since there were so many writes. Returns whether that is still known.
    fn repeat(&self, since: u64, copy: &Memory) -> Result<bool> {
        let lately = self.lately.borrow();
        let Some(writes) = lately.since(since) else {
            return Ok(false);
        };
        for (at, bytes) in writes.filter(|(_, bytes)| !bytes.is_empty()) {
            copy.write(*at, bytes)?;
        }
        Ok(true)
    }

    /// Copies a range, as far as it is there.
    fn copy(&self, range: Span, copy: &Memory) -> Result<()> {
        let mut buffer = vec![0; AT_ONCE];
        for start in (range.start..range.end).step_by(AT_ONCE) {
            let part = &mut buffer[..AT_ONCE.min((range.end - start) as usize)];
            self.memory.read(TargetAddr(start), part)?;
            copy.write(TargetAddr(start), part)?;
        }
        Ok(())
    }
}

/// A copy of a process's memory was made by a thread that had been resumed when there were `since` writes: writes the
/// rest. `memory`: the maker's, and the copy; `calls`: system calls in the copy. `regions` were mapped by hodo, with
/// what can be accessed of each, and how, and `used` is what it has written to.
///
/// # Errors
/// If one of the processes is gone.
pub(crate) fn catch_up(
    memory: (&Writer, &Writer),
    since: u64,
    calls: impl FnOnce() -> Result<Syscalls>,
    regions: &[(Span, Span, i32)],
    used: &[Span],
) -> Result<()> {
    let (maker, copy) = memory;
    if maker.count() == since {
        return Ok(());
    }
    let mut is_complete = true;
    let calls = calls()?;
    let mapped = regions.iter().try_for_each(|&(span, open, rights)| {
        let mut byte = [0];
        if copy.read(TargetAddr(span.start), &mut byte).is_err() {
            is_complete = false;
            map(&calls, span, libc::PROT_NONE)?;
        }
        allow(&calls, open, rights)
    });
    calls.end()?;
    mapped?;
    if is_complete && maker.repeat(since, copy)? {
        return Ok(());
    }
    used.iter().try_for_each(|&span| maker.copy(span, copy))
}

/// Has threads access and execute memory that was mapped without that.
///
/// # Errors
/// If the thread is gone, or there is no memory.
pub(crate) fn open(calls: &Syscalls, part: Span) -> Result<()> {
    allow(calls, part, libc::PROT_READ | libc::PROT_EXEC)
}

/// Gives our memory these rights.
fn allow(calls: &Syscalls, part: Span, rights: i32) -> Result<()> {
    match calls.mprotect(TargetAddr(part.start), part.len(), rights)? {
        true => Ok(()),
        false => bail!(
            "memory for translated code at {:#x} was refused",
            part.start
        ),
    }
}

/// Maps memory of ours at a certain place.
///
/// # Errors
/// If the thread is gone, or there is no room.
pub(crate) fn map(calls: &Syscalls, place: Span, protection: i32) -> Result<()> {
    let flags =
        libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE | libc::MAP_NORESERVE;
    let wanted = TargetAddr(place.start);
    let got = calls.mmap(wanted, place.len(), protection, flags, None)?;
    if !got.is_at(wanted) {
        bail!("memory at {wanted:#x} was refused ({got})");
    }
    calls.madvise(wanted, place.len(), libc::MADV_DONTDUMP)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_latest_writes_are_known() {
        let mut lately = Lately::default();
        let at = |lately: &Lately, since| -> Option<Vec<u64>> {
            Some(lately.since(since)?.map(|(at, _)| at.0).collect())
        };
        assert_eq!(at(&lately, 0), Some(vec![]));
        for number in 0..10 {
            lately.add(TargetAddr(number), &vec![0; MOST / 4]);
        }
        assert_eq!(lately.count(), 10);
        assert_eq!(at(&lately, 10), Some(vec![]));
        assert_eq!(at(&lately, 8), Some(vec![8, 9]));
        assert_eq!(at(&lately, 6), Some(vec![6, 7, 8, 9]));
        assert_eq!(at(&lately, 5), None);
        lately.add(TargetAddr(10), &vec![0; MOST + 1]);
        assert_eq!((at(&lately, 10), at(&lately, 11)), (None, Some(vec![])));
    }
}
