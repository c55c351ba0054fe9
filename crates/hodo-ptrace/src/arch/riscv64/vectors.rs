//! Vector registers of stopped threads. Masks are in vector registers, too.

use std::ops::Range;

use anyhow::{Context, Result};

use super::regs::VECTOR;
use crate::request::register_set;
use crate::stopped::Stopped;

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
