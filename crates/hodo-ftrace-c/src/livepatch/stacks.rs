//! Reading the stacks of threads, every word of them.

use std::cell::Cell;
use std::ops::Range;

use hodo_ftrace::livepatch::{Patch, is_hijacked, shadow_of};
use hodo_sys::Memory;

use crate::arch::SAVED_STACK;

const WORD: usize = size_of::<usize>();
/// How much is read at once. It is on the stack of a signal handler.
const BLOCK: usize = 64;
/// Longer stacks are not read.
const LONGEST: usize = 256 << 20;

/// What is mapped and can be written: stacks are in it.
#[derive(Debug)]
pub struct Stacks {
    memory: Memory,
    /// By address; what follows without a gap is one.
    regions: Vec<Range<usize>>,
    /// The stack of the main thread.
    main: Option<Range<usize>>,
}

impl Stacks {
    /// Looks at what is mapped now.
    pub fn new() -> Result<Self, std::io::Error> {
        let memory = Memory::open().map_err(std::io::Error::from_raw_os_error)?;
        let text = std::fs::read_to_string("/proc/self/maps")?;
        let mut regions: Vec<Range<usize>> = Vec::new();
        let mut main = None;
        for line in text.lines() {
            let Some(range) = crate::host::range(line) else {
                continue;
            };
            let rights = line.split(' ').nth(1).unwrap_or("");
            if !rights.starts_with("rw") {
                continue;
            }
            if line.ends_with("[stack]") {
                main = Some(range.clone());
            }
            match regions.last_mut() {
                Some(last) if last.end == range.start => last.end = range.end,
                _ => regions.push(range),
            }
        }
        Ok(Self {
            memory,
            regions,
            main,
        })
    }

    fn region(&self, address: usize) -> Option<Range<usize>> {
        let place = self.regions.partition_point(|range| range.end <= address);
        let region = self.regions.get(place)?;
        region.contains(&address).then(|| region.clone())
    }

    /// What may be in use of a thread's stacks: from its stack pointer to the end; and if that is not the stack that
    /// the thread was created with, all of that one. `tp` is the thread pointer, which is at the end of the stack,
    /// except in the main thread. None if it is not known.
    pub fn of(&self, stack: usize, tp: usize, is_main: bool) -> Option<[Range<usize>; 2]> {
        let region = self.region(stack)?;
        let from = stack / WORD * WORD;
        let own = match (is_main, &self.main) {
            (true, Some(main)) => self.region(main.start)?,
            _ => {
                let own = self.region(tp)?;
                own.start..tp
            }
        };
        let (first, second) = if own.contains(&stack) {
            (from..own.end, 0..0)
        } else {
            (from..region.end, own)
        };
        (first.len() <= LONGEST && second.len() <= LONGEST).then_some([first, second])
    }

    /// From a stack pointer to the end of what is mapped there, or less.
    pub fn from(&self, stack: usize) -> Option<Range<usize>> {
        const ENOUGH: usize = 1 << 20;
        let region = self.region(stack)?;
        Some(stack / WORD * WORD..region.end.min(stack + ENOUGH))
    }

    /// Returns whether a word on a stack may be a program counter that the kernel has saved for a signal handler: the
    /// stack pointer is saved next to it.
    fn is_saved(&self, at: usize) -> bool {
        let mut beside = [0];
        self.read(at.wrapping_add_signed(SAVED_STACK), &mut beside)
            && self.region(beside[0]).is_some()
    }

    /// All words of a range. In the place of hijacked return addresses, there are also the originals. If something
    /// cannot be read, `failed` is set, and the last word is `instead`.
    pub fn words<'a>(
        &'a self,
        patch: &'static Patch,
        range: Range<usize>,
        failed: &'a Cell<bool>,
        instead: usize,
    ) -> impl Iterator<Item = usize> + 'a {
        let mut block = [0usize; BLOCK];
        let mut filled = 0..0;
        let mut at = range.start / WORD * WORD;
        let mut before = 0;
        let mut next = None;
        core::iter::from_fn(move || {
            if let Some(original) = next.take() {
                return Some(original);
            }
            if at >= range.end || failed.get() {
                return None;
            }
            if !filled.contains(&at) {
                let count = BLOCK.min((range.end - at).div_ceil(WORD));
                if !self.read(at, &mut block[..count]) {
                    failed.set(true);
                    return Some(instead);
                }
                filled = at..at + count * WORD;
            }
            let word = block[(at - filled.start) / WORD];
            if is_hijacked(word) {
                let mut original = [0];
                // What is not a return address any more may have no shadow.
                if self.read(shadow_of(at, before), &mut original) {
                    next = Some(original[0]);
                }
            }
            let is_left_out = patch.is_program_counter(word) && !self.is_saved(at);
            before = word;
            at += WORD;
            Some(if is_left_out { 0 } else { word })
        })
    }

    /// A word, if it can be read.
    pub fn word(&self, at: usize) -> Option<usize> {
        let mut word = [0];
        self.read(at, &mut word).then_some(word[0])
    }

    /// Returns whether there is this code at an address.
    pub fn has_code(&self, at: usize, code: &[u8]) -> bool {
        let mut there = [0; 8];
        let there = &mut there[..code.len()];
        self.memory.read_into(at as u64, there) == code.len() && there == code
    }

    /// Reads words. Returns whether that worked.
    fn read(&self, at: usize, words: &mut [usize]) -> bool {
        let length = size_of_val(words);
        // SAFETY: all bytes are allowed in words.
        let bytes = unsafe { std::slice::from_raw_parts_mut(words.as_mut_ptr().cast(), length) };
        self.memory.read_into(at as u64, bytes) == length
    }
}
