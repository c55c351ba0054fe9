//! Memory: pages of bytes. Instructions are fetched as they were at the last `fence.i`: what has been stored since is
//! not seen. A processor may see it; code that relies on that is wrong, and is shown to be so here.

use std::collections::BTreeMap;

/// Bytes of a page. They are smaller than a processor's, so that random ones are made quickly.
pub const PAGE: u64 = 256;

/// What is at an address that nobody has written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unmapped {
    /// Nothing: an access faults.
    Faults,
    /// Pseudo-random bytes, the same for the same number: any code can run on any registers.
    Random(u64),
}

/// Memory of a program.
#[derive(Debug, Clone)]
pub struct Memory {
    pages: BTreeMap<u64, Box<[u8; PAGE as usize]>>,
    /// The pages that were stored to since the last `fence.i`, as they were then.
    fetched: BTreeMap<u64, Box<[u8; PAGE as usize]>>,
    unmapped: Unmapped,
}

/// Nothing is mapped at this address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fault(pub u64);

/// The next pseudo-random number.
#[must_use]
pub fn mix(number: u64) -> u64 {
    let mut z = number.wrapping_add(0x9E37_79B9_7F4A_7C15);
    z = (z ^ z >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ z >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ z >> 31
}

impl Memory {
    /// Creates memory without a page.
    #[must_use]
    pub fn new(unmapped: Unmapped) -> Self {
        Self {
            pages: BTreeMap::new(),
            fetched: BTreeMap::new(),
            unmapped,
        }
    }

    /// What is where nobody has written.
    #[must_use]
    pub fn unmapped(&self) -> Unmapped {
        self.unmapped
    }

    /// Maps pages of zeros that contain the range.
    pub fn map(&mut self, start: u64, len: u64) {
        let first = start / PAGE;
        let last = (start + len.max(1) - 1) / PAGE;
        for page in first..=last {
            self.pages
                .entry(page)
                .or_insert_with(|| Box::new([0; PAGE as usize]));
        }
    }

    /// Copies bytes to a place, which is mapped if nothing is there. They are fetched, too, if they are code: this is
    /// not what a program stores.
    pub fn put(&mut self, at: u64, bytes: &[u8]) {
        if self.unmapped == Unmapped::Faults {
            self.map(at, bytes.len() as u64);
        }
        for (at, &byte) in (at..).zip(bytes) {
            let page = self.page(at).expect("it was mapped");
            page[(at % PAGE) as usize] = byte;
            if let Some(page) = self.fetched.get_mut(&(at / PAGE)) {
                page[(at % PAGE) as usize] = byte;
            }
        }
    }

    fn page(&mut self, at: u64) -> Result<&mut [u8; PAGE as usize], Fault> {
        let number = at / PAGE;
        if let Unmapped::Random(seed) = self.unmapped {
            let page = self.pages.entry(number).or_insert_with(|| {
                let mut page = Box::new([0; PAGE as usize]);
                let first = mix(seed ^ number);
                for (index, word) in (0u64..).zip(page.chunks_exact_mut(8)) {
                    word.copy_from_slice(&mix(first ^ index).to_le_bytes());
                }
                page
            });
            return Ok(page);
        }
        let page = self.pages.get_mut(&number).ok_or(Fault(at))?;
        Ok(page)
    }

    /// Reads bytes from an address on.
    ///
    /// # Errors
    /// If one of them is not mapped.
    pub fn read(&mut self, at: u64, bytes: &mut [u8]) -> Result<(), Fault> {
        for (offset, byte) in (0..).zip(bytes) {
            let at = at.wrapping_add(offset);
            *byte = self.page(at)?[(at % PAGE) as usize];
        }
        Ok(())
    }

    /// The little-endian number of 1, 2, 4 or 8 bytes at an address.
    ///
    /// # Errors
    /// If one of the bytes is not mapped.
    pub fn load(&mut self, at: u64, size: u8) -> Result<u64, Fault> {
        let mut bytes = [0; 8];
        self.read(at, &mut bytes[..usize::from(size)])?;
        Ok(u64::from_le_bytes(bytes))
    }

    /// Writes the low bytes of a number.
    ///
    /// # Errors
    /// If one of the bytes is not mapped; then nothing is written.
    pub fn store(&mut self, at: u64, size: u8, value: u64) -> Result<(), Fault> {
        self.load(at, size)?;
        for (offset, byte) in (0..u64::from(size)).zip(value.to_le_bytes()) {
            let at = at.wrapping_add(offset);
            if !self.fetched.contains_key(&(at / PAGE)) {
                let before = Box::new(*self.page(at)?);
                self.fetched.insert(at / PAGE, before);
            }
            self.page(at)?[(at % PAGE) as usize] = byte;
        }
        Ok(())
    }

    /// The number of 1, 2, 4 or 8 bytes at an address, as instructions are fetched.
    ///
    /// # Errors
    /// If one of the bytes is not mapped.
    pub fn fetch(&mut self, at: u64, size: u8) -> Result<u64, Fault> {
        let mut bytes = [0; 8];
        for (offset, byte) in (0..u64::from(size)).zip(&mut bytes) {
            let at = at.wrapping_add(offset);
            let page = match self.fetched.get(&(at / PAGE)) {
                Some(page) => page,
                None => &*self.page(at)?,
            };
            *byte = page[(at % PAGE) as usize];
        }
        Ok(u64::from_le_bytes(bytes))
    }

    /// `fence.i`: from now on, instructions are fetched as memory is now.
    pub fn synchronize(&mut self) {
        self.fetched.clear();
    }

    /// The addresses at which two memories that began alike differ, except in the range.
    #[must_use]
    pub fn differences(&self, other: &Self, except: &[std::ops::Range<u64>]) -> Vec<u64> {
        let (mut left, mut right) = (self.clone(), other.clone());
        let pages: Vec<u64> = self
            .pages
            .keys()
            .chain(other.pages.keys())
            .copied()
            .collect();
        let mut found = Vec::new();
        for page in pages {
            let at = page * PAGE;
            let (mine, theirs) = (left.page(at), right.page(at));
            if mine == theirs {
                continue;
            }
            let (Ok(mine), Ok(theirs)) = (mine, theirs) else {
                found.push(at);
                continue;
            };
            let differ = mine.iter().zip(theirs).zip(at..);
            let differ = differ.filter(|((mine, theirs), _)| mine != theirs);
            found.extend(
                differ
                    .map(|(_, at)| at)
                    .filter(|at| !except.iter().any(|range| range.contains(at))),
            );
        }
        found.sort_unstable();
        found.dedup();
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_join() {
        let mut memory = Memory::new(Unmapped::Faults);
        memory.map(0x1000, 0x2000);
        memory
            .store(0x1FFD, 8, 0x1122_3344_5566_7788)
            .expect("mapped");
        assert_eq!(memory.load(0x1FFD, 8), Ok(0x1122_3344_5566_7788));
        assert_eq!(memory.load(0x2001, 2), Ok(0x3344));
        assert_eq!(memory.load(0x2FFF, 2), Err(Fault(0x3000)));
        assert_eq!(memory.store(0x2FFF, 2, 0xFFFF), Err(Fault(0x3000)));
        assert_eq!(memory.load(0x2FFF, 1), Ok(0));
    }

    #[test]
    fn random_memory_is_the_same_each_time() {
        let mut one = Memory::new(Unmapped::Random(7));
        let mut two = one.clone();
        assert_eq!(
            one.load(0xFFFF_FFFF_FFFF_FFFC, 8),
            two.load(0xFFFF_FFFF_FFFF_FFFC, 8)
        );
        one.store(0x5000, 1, 1).expect("anywhere");
        two.store(0x5000, 1, 2).expect("anywhere");
        assert_eq!(one.differences(&two, &[]), [0x5000]);
        let byte = 0x5000..0x5001;
        assert!(
            one.differences(&two, std::slice::from_ref(&byte))
                .is_empty()
        );
    }
}
