//! Vector registers of stopped threads. Masks are in vector registers, too.

use std::io;
use std::ops::Range;

use anyhow::{Context, Result};

use crate::request::register_set;
use crate::stopped::Stopped;

/// The kind of register set.
const VECTOR: u64 = 0x901;
/// Where the first register begins in the set, and where the bytes of a register are said (`struct
/// __riscv_v_regset_state` in the kernel's `asm/ptrace.h`).
const FIRST: usize = 40;
const BYTES: Range<usize> = 32..40;
/// More than any set has: 32 registers of at most 8 KiB.
const MOST: usize = (256 << 10) + FIRST;

const NONE: &str = "the processor has no vector registers of this kind";

/// Vector registers.
#[derive(Debug, Clone)]
pub struct Vectors(Vec<u8>);

impl Stopped {
    /// Its vector registers.
    ///
    /// # Errors
    /// If the thread is gone, or the processor has none.
    pub fn vectors(self) -> Result<Vectors> {
        let mut bytes = vec![0; MOST];
        let len = register_set(libc::PTRACE_GETREGSET, self.tid(), VECTOR, &mut bytes)?;
        bytes.truncate(len);
        Ok(Vectors(bytes))
    }

    /// Writes them.
    ///
    /// # Errors
    /// If the thread is gone.
    pub fn set_vectors(self, vectors: &mut Vectors) -> Result<()> {
        register_set(libc::PTRACE_SETREGSET, self.tid(), VECTOR, &mut vectors.0).map(drop)
    }
}

impl Vectors {
    /// Where a register is.
    fn place(&self, number: u8) -> Option<Range<usize>> {
        let size = u64::from_le_bytes(*self.0.get(BYTES)?.first_chunk()?) as usize;
        let start = FIRST + size * usize::from(number);
        (number < 32 && start + size <= self.0.len()).then_some(start..start + size)
    }

    /// Sets the first bytes of a register. The others stay what they are.
    ///
    /// # Errors
    /// If the processor has no such register.
    pub fn set(&mut self, number: u8, bytes: &[u8]) -> Result<()> {
        let place = self.place(number).context(NONE)?;
        let register = self.0[place].get_mut(..bytes.len());
        register.context(NONE)?.copy_from_slice(bytes);
        Ok(())
    }

    /// The highest bits of the first sixteen elements of a register, the first one's lowest. `size`: the bytes of an
    /// element.
    #[must_use]
    pub fn signs(&self, number: u8, size: u8) -> u16 {
        let register = self.place(number).map_or(&[][..], |place| &self.0[place]);
        let elements = register.chunks_exact(size.into()).take(16);
        let signs =
            elements.map(|element| u16::from(element.last().is_some_and(|&last| last >> 7 == 1)));
        signs
            .zip(0..)
            .fold(0, |all, (sign, lane)| all | sign << lane)
    }

    /// The first sixteen bits of a register that has a mask.
    ///
    /// # Errors
    /// If the processor has no such register.
    pub fn mask(&self, number: u8) -> Result<u16> {
        let place = self.place(number).context(NONE)?;
        let bits = self.0[place].first_chunk().context(NONE)?;
        Ok(u16::from_le_bytes(*bits))
    }

    /// Sets the first sixteen bits of such a register. The others stay what they are.
    ///
    /// # Errors
    /// If the processor has no such register.
    pub fn set_mask_start(&mut self, number: u8, bits: u16) -> Result<()> {
        self.set(number, &bits.to_le_bytes())
    }

    /// Sets the first 64 bits of such a register.
    ///
    /// # Errors
    /// If the processor has no such register.
    pub fn set_mask(&mut self, number: u8, bits: u64) -> Result<()> {
        self.set(number, &bits.to_le_bytes())
    }
}

fn is_invalid(error: &anyhow::Error) -> bool {
    let error = error.downcast_ref::<io::Error>();
    error.is_some_and(|error| error.kind() == io::ErrorKind::InvalidInput)
}

/// Of the vector registers' set (`struct __riscv_v_regset_state` in the kernel's `asm/ptrace.h`): where the vector
/// length and type are, and the type's top bit, *vill*. It is set while no type is valid, as after each system call.
const LENGTH: Range<usize> = 8..16;
const TYPE: Range<usize> = 16..24;
const ILLEGAL: u64 = 1 << 63;

/// What system calls lose beside their result: the vector registers.
#[derive(Debug)]
pub struct Kept(Vec<u8>);

impl Kept {
    /// Of a stopped thread that is about to make system calls for hodo. What cannot be read is not there.
    pub fn of(thread: Stopped) -> Self {
        Self(Self::read(thread))
    }

    fn read(thread: Stopped) -> Vec<u8> {
        // 32 registers of at most 8 KiB, and what is known of them.
        let mut bytes = vec![0; (256 << 10) + 64];
        let len =
            register_set(libc::PTRACE_GETREGSET, thread.tid(), VECTOR, &mut bytes).unwrap_or(0);
        bytes.truncate(len);
        bytes.shrink_to_fit();
        bytes
    }

    /// Puts it back.
    ///
    /// Newer kernels (seen with 7.2) refuse a type that is not valid, though they have it themselves after each system
    /// call. A thread that had none gets the type 0 with the length 0, if its registers have changed at all.
    ///
    /// # Errors
    /// If the thread is gone.
    pub fn put_back(&mut self, thread: Stopped) -> Result<()> {
        if self.0.is_empty() || Self::read(thread) == self.0 {
            return Ok(());
        }
        let set = register_set(libc::PTRACE_SETREGSET, thread.tid(), VECTOR, &mut self.0);
        match (set, self.without_illegal()) {
            (Err(error), Some(mut valid)) if is_invalid(&error) => {
                register_set(libc::PTRACE_SETREGSET, thread.tid(), VECTOR, &mut valid).map(drop)
            }
            (set, _) => set.map(drop),
        }
    }

    /// The registers with a valid type, if they have none.
    fn without_illegal(&self) -> Option<Vec<u8>> {
        let vtype = self.0.get(TYPE)?;
        let vtype = u64::from_le_bytes(vtype.try_into().ok()?);
        if vtype & ILLEGAL == 0 {
            return None;
        }
        let mut valid = self.0.clone();
        valid[LENGTH].fill(0);
        valid[TYPE].fill(0);
        Some(valid)
    }
}
