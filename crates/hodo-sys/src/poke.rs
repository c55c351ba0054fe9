//! Changes of running code: what is near each other is written together, since each write costs a system call, or a
//! change of page tables.
//!
//! Bytes between two changes are read and rewritten as they are. So whoever changes code this way holds
//! [`lock`].

use core::ops::Deref;

use crate::arch::UNIT;
use crate::host::{EIO, Errno, Text};
use crate::lock;

const EDEADLK: Errno = 35;

/// Changes that are no further apart than this are written together.
const NEAR: u64 = 512;
/// How many bytes are written together at the most. The stacks of kernels are small.
const MOST: usize = if cfg!(target_os = "linux") { 4096 } else { 512 };
/// A write does not cross a page boundary, because the next page may belong to another mapping.
const PAGE: u64 = 4096;

/// Code can be written as long as this lives.
pub struct Session<'a, T: Text + ?Sized>(&'a T);

impl<'a, T: Text + ?Sized> Session<'a, T> {
    /// Begins changes, as [`Text::begin`].
    ///
    /// # Errors
    /// If code cannot be written now.
    pub fn begin(text: &'a T) -> Result<Self, Errno> {
        text.begin()?;
        Ok(Self(text))
    }
}

impl<T: Text + ?Sized> Deref for Session<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.0
    }
}

impl<T: Text + ?Sized> Drop for Session<'_, T> {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// Makes changes, addresses and bytes, which must be sorted by address and not overlap. [`lock`] is held meanwhile. The
/// first failure ends it.
///
/// # Errors
/// If not all was written, or this thread holds the lock.
///
/// # Safety
/// As [`Text::write`]; and nobody may change the bytes in between without the lock.
pub unsafe fn change<B: AsRef<[u8]>>(
    text: &(impl Text + ?Sized),
    changes: &[(u64, B)],
) -> Result<(), Errno> {
    let _guard = lock::take().map_err(|lock::Busy| EDEADLK)?;
    let session = Session::begin(text)?;
    let mut rest = changes;
    while !rest.is_empty() {
        let (group, later) = rest.split_at(near(rest));
        rest = later;
        // SAFETY: as the caller promises.
        unsafe { write(&*session, group) }?;
    }
    Ok(())
}

/// Where a change ends.
fn end_of<B: AsRef<[u8]>>((at, bytes): &(u64, B)) -> u64 {
    at + bytes.as_ref().len() as u64
}

/// The units in which some bytes are.
fn units(start: u64, end: u64) -> (u64, u64) {
    (start & !(UNIT - 1), end.next_multiple_of(UNIT))
}

/// How many of the first changes are written together: at least one.
fn near<B: AsRef<[u8]>>(changes: &[(u64, B)]) -> usize {
    let [first, others @ ..] = changes else {
        return 0;
    };
    let (start, mut end) = (first.0, end_of(first));
    let is_near = |change: &&(u64, B)| {
        let at = change.0;
        let units = units(start, end_of(change));
        let fits = at / PAGE == start / PAGE && units.1 - units.0 <= MOST as u64;
        let is_near = (end..=end + NEAR).contains(&at) && fits;
        end = end_of(change);
        is_near
    };
    1 + others.iter().take_while(is_near).count()
}

/// Writes changes that are near each other.
///
/// # Safety
/// As [`change`].
unsafe fn write<B: AsRef<[u8]>>(
    text: &(impl Text + ?Sized),
    group: &[(u64, B)],
) -> Result<(), Errno> {
    let (Some(first), Some(last)) = (group.first(), group.last()) else {
        return Ok(());
    };
    let (start, end) = units(first.0, end_of(last));
    let size = (end - start) as usize;
    let each_alone = || {
        group.iter().try_for_each(|(at, bytes)| {
            // SAFETY: as the caller promises.
            unsafe { text.write(*at as usize, bytes.as_ref()) }
        })
    };
    if group.len() == 1 && (size == first.1.as_ref().len() || size > MOST) {
        return each_alone();
    }
    let mut content = [0; MOST];
    let content = &mut content[..size];
    match text.read(start as usize, content) {
        0 => return each_alone(),
        count if count < size => return Err(EIO),
        _ => {}
    }
    for (at, bytes) in group {
        let bytes = bytes.as_ref();
        content[(at - start) as usize..][..bytes.len()].copy_from_slice(bytes);
    }
    // SAFETY: these are the bytes that shall be there, and those that are.
    unsafe { text.write(start as usize, content) }
}

/// A few bytes of code.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bytes {
    bytes: [u8; Self::MOST],
    length: u8,
}

impl Bytes {
    /// How many these can be.
    pub const MOST: usize = 16;

    /// These bytes, of which the first 16 are kept.
    #[must_use]
    pub fn new(from: &[u8]) -> Self {
        let mut bytes = [0; Self::MOST];
        let length = from.len().min(bytes.len());
        bytes[..length].copy_from_slice(&from[..length]);
        Self {
            bytes,
            length: length as u8,
        }
    }

    /// The bytes.
    #[must_use]
    pub fn as_slice(&self) -> &[u8] {
        &self.bytes[..usize::from(self.length)]
    }
}

impl AsRef<[u8]> for Bytes {
    fn as_ref(&self) -> &[u8] {
        self.as_slice()
    }
}

/// How many changes wait.
const WAITING: usize = 64;

/// Changes that come one after the other, for those who have no memory to collect them. Each is written at the next
/// [`flush`](Self::flush) at the latest.
pub struct Batch<'a, T: Text + ?Sized> {
    text: &'a T,
    waiting: [(u64, Bytes); WAITING],
    count: usize,
}

/// A change that was not made: its address, and why. Others that were to be written together with it were not made
/// either.
pub type Failed = (usize, Errno);

impl<'a, T: Text + ?Sized> Batch<'a, T> {
    /// No changes.
    #[must_use]
    pub fn new(text: &'a T) -> Self {
        Self {
            text,
            waiting: [(0, Bytes::default()); WAITING],
            count: 0,
        }
    }

    /// Adds a change. It is best to add them in the order of their addresses.
    ///
    /// # Errors
    /// The first of those that were written and could not be. The others were made nevertheless.
    ///
    /// # Safety
    /// As [`Text::write`]; and until `flush` returns, nobody may change the bytes in between.
    pub unsafe fn write(&mut self, at: usize, bytes: Bytes) -> Result<(), Failed> {
        let mut flushed = Ok(());
        if self.count == WAITING {
            flushed = self.flush();
        }
        self.waiting[self.count] = (at as u64, bytes);
        self.count += 1;
        flushed
    }

    /// Makes all changes that wait.
    ///
    /// # Errors
    /// The first one that failed. The others were made nevertheless.
    pub fn flush(&mut self) -> Result<(), Failed> {
        let mut result = Ok(());
        let mut rest = &self.waiting[..self.count];
        while let Some((at, _)) = rest.first() {
            let (group, later) = rest.split_at(near(rest));
            rest = later;
            // SAFETY: as whoever has added them has promised.
            let written = unsafe { write(self.text, group) };
            result = result.and(written.map_err(|error| (*at as usize, error)));
        }
        self.count = 0;
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;
    use std::vec;
    use std::vec::Vec;

    const SIZE: usize = 3 * PAGE as usize;

    /// Memory that nobody executes, at address 4096; and what was written.
    struct Code {
        bytes: Mutex<Vec<u8>>,
        writes: Mutex<Vec<(usize, usize)>>,
        is_read: bool,
        broken: usize,
    }

    impl Code {
        fn new() -> Self {
            let bytes = (0..SIZE).map(|at| (at * 7 + at / 256) as u8).collect();
            Self {
                bytes: Mutex::new(bytes),
                writes: Mutex::default(),
                is_read: true,
                broken: usize::MAX,
            }
        }

        fn bytes(&self) -> Vec<u8> {
            self.bytes.lock().expect("no panic").clone()
        }

        fn writes(&self) -> Vec<(usize, usize)> {
            std::mem::take(&mut *self.writes.lock().expect("no panic"))
        }
    }

    const BASE: usize = 4096;

    // SAFETY: nobody executes it.
    unsafe impl Text for Code {
        fn read(&self, at: usize, into: &mut [u8]) -> usize {
            if !self.is_read {
                return 0;
            }
            let bytes = self.bytes();
            let from = &bytes[(at - BASE).min(SIZE)..];
            let count = from.len().min(into.len());
            into[..count].copy_from_slice(&from[..count]);
            count
        }

        unsafe fn write(&self, at: usize, bytes: &[u8]) -> Result<(), Errno> {
            if (at..at + bytes.len()).contains(&self.broken) {
                return Err(13);
            }
            self.writes
                .lock()
                .expect("no panic")
                .push((at, bytes.len()));
            let mut all = self.bytes.lock().expect("no panic");
            let place = all.get_mut(at - BASE..at - BASE + bytes.len()).ok_or(EIO)?;
            place.copy_from_slice(bytes);
            Ok(())
        }

        fn sync(&self) {}
    }

    fn changed(changes: &[(u64, Vec<u8>)]) -> Vec<u8> {
        let mut bytes = Code::new().bytes();
        for (at, new) in changes {
            bytes[*at as usize - BASE..][..new.len()].copy_from_slice(new);
        }
        bytes
    }

    #[test]
    fn near_changes_are_written_together() {
        let changes = [
            (5000, vec![1, 2, 3]),
            // In the same unit of four bytes.
            (5003, vec![4]),
            (5400, vec![5; 5]),
            // Too far.
            (6000, vec![6]),
            // In another page, and one that is in two.
            (8190, vec![7, 8, 9]),
            (8200, vec![10]),
            (8704, vec![11]),
        ];
        let code = Code::new();
        // SAFETY: nobody executes it.
        unsafe { change(&code, &changes) }.expect("it can be written");
        assert_eq!(code.bytes(), changed(&changes));
        let near = match UNIT {
            1 => [(5000, 405), (6000, 1), (8190, 3), (8200, 505)],
            _ => [(5000, 408), (6000, 4), (8188, 8), (8200, 508)],
        };
        assert_eq!(code.writes(), near);
        let code = Code {
            is_read: false,
            ..Code::new()
        };
        // SAFETY: nobody executes it.
        unsafe { change(&code, &changes) }.expect("it can be written");
        assert_eq!(code.bytes(), changed(&changes));
        assert_eq!(code.writes().len(), changes.len());
    }

    #[test]
    fn what_ends_in_the_middle_is_not_written() {
        let code = Code::new();
        let end = (BASE + SIZE) as u64;
        let changes = [(end - 8, vec![1]), (end - 2, vec![1, 2, 3, 4])];
        // SAFETY: nobody executes it.
        assert_eq!(unsafe { change(&code, &changes) }, Err(EIO));
        assert_eq!(code.writes(), []);
    }

    #[test]
    fn a_batch_goes_on_after_a_failure() {
        let code = Code {
            broken: BASE + 2000,
            ..Code::new()
        };
        let mut batch = Batch::new(&code);
        let places = (BASE..BASE + SIZE).step_by(16);
        let changes: Vec<_> = places.map(|at| (at as u64, vec![9; 3])).collect();
        let mut failures = Vec::new();
        for (at, bytes) in &changes {
            // SAFETY: nobody executes it.
            let written = unsafe { batch.write(*at as usize, Bytes::new(bytes)) };
            failures.extend(written.err());
        }
        failures.extend(batch.flush().err());
        // A batch of 64 has 1,024 bytes.
        assert_eq!(failures, [(BASE + 1024, 13)]);
        assert_eq!(batch.flush(), Ok(()));
        let mut wanted = changed(&changes);
        let before = Code::new().bytes();
        wanted[1024..2048].copy_from_slice(&before[1024..2048]);
        assert_eq!(code.bytes(), wanted);
        assert_eq!(code.writes().len(), 11);
    }
}
