//! Vector and mask registers of stopped threads. A thread that uses vectors of more than 16 bytes has them in a
//! register
//! set of their own, or in another one while it is in streaming mode; any other has vectors of 16 bytes and no masks.

use std::ops::Range;

use anyhow::{Context, Result};

use crate::request::register_set;
use crate::stopped::Stopped;

/// The kinds of register sets (`NT_PRFPREG`, `NT_ARM_SVE`, `NT_ARM_SSVE`).
const SHORT: u64 = 2;
const SCALABLE: u64 = 0x405;
const STREAMING: u64 = 0x40B;

/// Of a set of scalable vectors (`struct user_sve_header`): where the bytes of a vector are said, and what is in
/// the set.
const VECTOR: Range<usize> = 8..10;
const FLAGS: Range<usize> = 12..14;
/// A flag: it has whole vectors.
const WHOLE: u16 = 1;
/// Where the first vector begins.
const FIRST: usize = 16;
/// More than any set has: 32 vectors of at most 256 bytes, 17 masks of an eighth, and what comes before.
const MOST: usize = 16 << 10;
/// Bytes of 32 short vectors.
const SHORT_VECTORS: usize = 32 * 16;

const NONE: &str = "the thread has no vector registers of this kind";

/// Reads a set. `None`: the processor has none.
fn read(thread: Stopped, kind: u64) -> Option<Vec<u8>> {
    let mut bytes = vec![0; MOST];
    let len = register_set(libc::PTRACE_GETREGSET, thread.tid(), kind, &mut bytes).ok()?;
    bytes.truncate(len);
    Some(bytes)
}

/// Whole vectors and masks of a thread that has them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Scalable {
    /// Whether it is in streaming mode.
    pub streaming: bool,
    /// The bytes of a vector.
    pub vector: usize,
    /// What the kernel has said.
    bytes: Vec<u8>,
}

impl Scalable {
    /// Of a stopped thread, if it has them.
    pub fn of(thread: Stopped) -> Option<Self> {
        let find = |kind| {
            let bytes = read(thread, kind)?;
            let half = |place: Range<usize>| {
                let bytes = bytes.get(place)?.first_chunk();
                bytes.copied().map(u16::from_le_bytes)
            };
            let vector = usize::from(half(VECTOR)?);
            (half(FLAGS)? & WHOLE != 0).then_some(Self {
                streaming: kind == STREAMING,
                vector,
                bytes,
            })
        };
        find(SCALABLE).or_else(|| find(STREAMING))
    }

    /// 32 vectors, 16 masks, and the mask of first faults.
    pub fn registers(&self) -> Option<&[u8]> {
        let len = 32 * self.vector + 17 * self.vector / 8;
        self.bytes.get(FIRST..FIRST + len)
    }

    fn write(&mut self, thread: Stopped) -> Result<()> {
        let kind = match self.streaming {
            true => STREAMING,
            false => SCALABLE,
        };
        register_set(libc::PTRACE_SETREGSET, thread.tid(), kind, &mut self.bytes).map(drop)
    }
}

/// The first 16 bytes of the vectors of a stopped thread, then two words that say how the processor calculates, and
/// what
/// has happened in that.
pub(super) fn short(thread: Stopped) -> Option<([u8; SHORT_VECTORS], [u8; 8])> {
    let bytes = read(thread, SHORT)?;
    Some((
        *bytes.first_chunk()?,
        *bytes.get(SHORT_VECTORS..)?.first_chunk()?,
    ))
}

/// What system calls lose beside their result: vectors but for their first 16 bytes, masks, and the streaming mode.
#[derive(Debug)]
pub struct Kept(Option<Scalable>);

impl Kept {
    /// Of a stopped thread that is about to make system calls for hodo. What cannot be read is not there.
    pub fn of(thread: Stopped) -> Self {
        Self(Scalable::of(thread))
    }

    /// Puts it back.
    ///
    /// # Errors
    /// If the thread is gone.
    pub fn put_back(&mut self, thread: Stopped) -> Result<()> {
        match &mut self.0 {
            Some(kept) if Scalable::of(thread).as_ref() != Some(kept) => kept.write(thread),
            _ => Ok(()),
        }
    }
}

/// Vector registers.
#[derive(Debug, Clone)]
pub struct Vectors {
    kind: u64,
    /// The bytes of a vector.
    vector: usize,
    /// Where the first vector begins.
    first: usize,
    bytes: Vec<u8>,
}

impl Stopped {
    /// Its vector registers.
    ///
    /// # Errors
    /// If the thread is gone.
    pub fn vectors(self) -> Result<Vectors> {
        if let Some(whole) = Scalable::of(self) {
            return Ok(Vectors {
                kind: if whole.streaming { STREAMING } else { SCALABLE },
                vector: whole.vector,
                first: FIRST,
                bytes: whole.bytes,
            });
        }
        Ok(Vectors {
            kind: SHORT,
            vector: 16,
            first: 0,
            bytes: read(self, SHORT).context(NONE)?,
        })
    }

    /// Writes them.
    ///
    /// # Errors
    /// If the thread is gone.
    pub fn set_vectors(self, vectors: &mut Vectors) -> Result<()> {
        register_set(
            libc::PTRACE_SETREGSET,
            self.tid(),
            vectors.kind,
            &mut vectors.bytes,
        )
        .map(drop)
    }
}

impl Vectors {
    /// Where a vector is.
    fn place(&self, number: u8) -> Option<Range<usize>> {
        let start = self.first + self.vector * usize::from(number);
        (number < 32 && start + self.vector <= self.bytes.len())
            .then_some(start..start + self.vector)
    }

    /// Where a mask is.
    fn place_of_mask(&self, number: u8) -> Option<Range<usize>> {
        let size = self.vector / 8;
        let start = self.first + 32 * self.vector + size * usize::from(number);
        (self.kind != SHORT && number < 16 && start + size <= self.bytes.len())
            .then_some(start..start + size)
    }

    /// Sets the first bytes of a vector. The others stay what they are.
    ///
    /// # Errors
    /// If the thread has no such register, or no such vector.
    pub fn set(&mut self, number: u8, bytes: &[u8]) -> Result<()> {
        let place = self.place(number).context(NONE)?;
        let register = self.bytes[place].get_mut(..bytes.len());
        register.context(NONE)?.copy_from_slice(bytes);
        Ok(())
    }

    /// The highest bits of the first sixteen elements of a vector, the first one's lowest. `size`: the bytes of an
    /// element.
    #[must_use]
    pub fn signs(&self, number: u8, size: u8) -> u16 {
        let register = self
            .place(number)
            .map_or(&[][..], |place| &self.bytes[place]);
        let elements = register.chunks_exact(size.into()).take(16);
        let signs =
            elements.map(|element| u16::from(element.last().is_some_and(|&last| last >> 7 == 1)));
        signs
            .zip(0..)
            .fold(0, |all, (sign, lane)| all | sign << lane)
    }

    /// The first sixteen bits of a mask register.
    ///
    /// # Errors
    /// If the thread has none.
    pub fn mask(&self, number: u8) -> Result<u16> {
        let place = self.place_of_mask(number).context(NONE)?;
        let bits = self.bytes[place].first_chunk().context(NONE)?;
        Ok(u16::from_le_bytes(*bits))
    }

    /// Sets the first sixteen bits of such a register. The others stay what they are.
    ///
    /// # Errors
    /// If the thread has none.
    pub fn set_mask_start(&mut self, number: u8, bits: u16) -> Result<()> {
        let place = self.place_of_mask(number).context(NONE)?;
        let register = self.bytes[place].first_chunk_mut().context(NONE)?;
        *register = bits.to_le_bytes();
        Ok(())
    }

    /// Sets the first 64 bits of such a register, or all if it has fewer.
    ///
    /// # Errors
    /// If the thread has none.
    pub fn set_mask(&mut self, number: u8, bits: u64) -> Result<()> {
        let place = self.place_of_mask(number).context(NONE)?;
        let register = &mut self.bytes[place];
        let len = register.len().min(8);
        register[..len].copy_from_slice(&bits.to_le_bytes()[..len]);
        Ok(())
    }
}
