//! Vector and mask registers of stopped threads, in the form of `xsave` that is not compacted (Intel's manual, volume
//! 1, section 13.4).

use std::arch::x86_64::__cpuid_count;

use anyhow::{Context, Result, bail};

use crate::request::register_set;
use crate::stopped::Stopped;

/// The kind of register set (`NT_X86_XSTATE`).
const KIND: u64 = 0x202;
/// More than any processor has: 8 KiB of tiles, and what comes before.
const MOST: usize = 16 << 10;
/// Which components are not in their initial state: bits by number.
const PRESENT: usize = 512;
/// Where the first sixteen bytes of the first sixteen registers are.
const LOW: usize = 160;

const NONE: &str = "the processor has no vector registers of this kind";

/// Components by number.
const SSE: u32 = 1;
const AVX: u32 = 2;
const MASKS: u32 = 5;
const UPPER_HALVES: u32 = 6;
const UPPER_REGISTERS: u32 = 7;

/// Vector and mask registers.
#[derive(Debug, Clone)]
pub struct Vectors(Vec<u8>);

impl Stopped {
    /// Its vector and mask registers.
    ///
    /// # Errors
    /// If the thread is gone, or the processor has no `xsave`.
    pub fn vectors(self) -> Result<Vectors> {
        let mut bytes = vec![0; MOST];
        let len = register_set(libc::PTRACE_GETREGSET, self.tid(), KIND, &mut bytes)?;
        bytes.truncate(len);
        Ok(Vectors(bytes))
    }

    /// Writes them.
    ///
    /// # Errors
    /// If the thread is gone.
    pub fn set_vectors(self, vectors: &mut Vectors) -> Result<()> {
        register_set(libc::PTRACE_SETREGSET, self.tid(), KIND, &mut vectors.0).map(drop)
    }
}

/// Where a component begins.
fn place(component: u32) -> usize {
    // `xsave` describes itself.
    __cpuid_count(0xD, component).ebx as usize
}

impl Vectors {
    /// Sets the first bytes of a vector register, 16, 32 or 64. The others stay what they are.
    ///
    /// # Errors
    /// If the processor has no such register.
    pub fn set(&mut self, number: u8, bytes: &[u8]) -> Result<()> {
        let index = usize::from(number);
        if index >= 16 {
            return self.put(UPPER_REGISTERS, 64 * (index - 16), bytes);
        }
        let (low, rest) = bytes.split_at(16);
        self.write(SSE, LOW + 16 * index, low)?;
        if rest.is_empty() {
            return Ok(());
        }
        let (middle, rest) = rest.split_at(16);
        self.put(AVX, 16 * index, middle)?;
        match rest {
            [] => Ok(()),
            _ => self.put(UPPER_HALVES, 32 * index, rest),
        }
    }

    /// The highest bits of the elements of the first half of one of the first sixteen vector registers, the first one's
    /// lowest. `size`: the bytes of an element, at least 2.
    #[must_use]
    pub fn signs(&self, number: u8, size: u8) -> u16 {
        let at = 16 * usize::from(number);
        let parts = [LOW + at, place(AVX) + at];
        let parts = parts.map(|at| self.0.get(at..at + 16).unwrap_or(&[0; 16]));
        let parts = parts.concat();
        let elements = parts.chunks_exact(size.into());
        let signs =
            elements.map(|element| u16::from(element.last().is_some_and(|&last| last >> 7 == 1)));
        signs
            .zip(0..16)
            .fold(0, |all, (sign, lane)| all | sign << lane)
    }

    /// The first sixteen bits of a mask register.
    ///
    /// # Errors
    /// If the processor has no such register.
    pub fn mask(&self, number: u8) -> Result<u16> {
        let at = place(MASKS) + 8 * usize::from(number);
        let bits = self.0.get(at..).and_then(|bytes| bytes.first_chunk());
        let bits = bits.filter(|_| at >= LOW);
        Ok(u16::from_le_bytes(*bits.context(NONE)?))
    }

    /// Sets the first sixteen bits of a mask register. The others stay what they are.
    ///
    /// # Errors
    /// If the processor has no such register.
    pub fn set_mask_start(&mut self, number: u8, bits: u16) -> Result<()> {
        self.put(MASKS, 8 * usize::from(number), &bits.to_le_bytes())
    }

    /// Sets a mask register.
    ///
    /// # Errors
    /// If the processor has no such register.
    pub fn set_mask(&mut self, number: u8, bits: u64) -> Result<()> {
        self.put(MASKS, 8 * usize::from(number), &bits.to_le_bytes())
    }

    fn put(&mut self, component: u32, offset: usize, bytes: &[u8]) -> Result<()> {
        self.write(component, place(component) + offset, bytes)
    }

    fn write(&mut self, component: u32, at: usize, bytes: &[u8]) -> Result<()> {
        let there = self.0.get_mut(at..at + bytes.len());
        let Some(there) = there.filter(|_| at >= LOW) else {
            bail!(NONE);
        };
        there.copy_from_slice(bytes);
        self.0[PRESENT + component as usize / 8] |= 1 << (component % 8);
        Ok(())
    }
}
