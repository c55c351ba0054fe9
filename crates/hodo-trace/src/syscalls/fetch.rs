//! Builds a system call's events from a stopped thread. For running threads, the code around instructions that call the
//! kernel does the same.

use super::{ENTRY_SIZE, LEFT_OUT, Limits, NUMBERS, kind, piece};
use crate::format::RECORD_SIZE;

/// Says that the processor is not known.
const NO_PROCESSOR: u64 = 0xFFFF_FFFF_0000_0000;
/// A piece that has begun takes at most this many more bytes.
const MARGIN: usize = 512;
/// At most this many pairs of address and length are fetched.
const PAIRS: u64 = 8;
/// At most this many strings are counted without being fetched.
const OTHERS: u64 = 65536;
/// Bytes that an element of a list needs at least.
const SHORT: usize = 64;

/// A system call of a stopped thread.
#[derive(Clone, Copy)]
#[expect(missing_debug_implementations, reason = "it holds a function")]
pub struct Stopped<'m> {
    /// The table that [`super::table`] returns.
    pub table: &'m [u64],
    /// How much is fetched.
    pub limits: Limits,
    /// Its number.
    pub number: u64,
    /// Its arguments.
    pub args: [u64; 6],
    /// Reads the thread's memory, and returns how many bytes could be read.
    pub read: &'m dyn Fn(u64, &mut [u8]) -> usize,
}

impl Stopped<'_> {
    fn entry(&self) -> Option<[u64; 2]> {
        let at = self.number.min(NUMBERS) * ENTRY_SIZE / 8;
        let words = self.table.get(at as usize..at as usize + 2)?;
        (words[1] & LEFT_OUT == 0).then(|| [words[0], words[1]])
    }

    /// Returns the payload of the event before the call, or `None` if such calls are left out.
    #[must_use]
    pub fn enter(&self) -> Option<Vec<u64>> {
        let [before, after] = self.entry()?;
        let mut words = vec![NO_PROCESSOR, self.number];
        let count = (after >> 48 & 0x7F) as usize;
        words.extend(self.args.iter().take(count));
        self.pieces(before, 0, &mut words);
        Some(words)
    }

    /// Returns the payload of the event after the call.
    #[must_use]
    pub fn exit(&self, result: u64) -> Option<Vec<u64>> {
        let [_, after] = self.entry()?;
        let mut words = vec![NO_PROCESSOR, result];
        if result <= 4096u64.wrapping_neg() {
            self.pieces(after & ((1 << 48) - 1), result, &mut words);
        }
        Some(words)
    }

    fn pieces(&self, mut descriptors: u64, result: u64, words: &mut Vec<u64>) {
        while descriptors & 0xFFFF != 0 {
            let descriptor = descriptors & 0xFFFF;
            descriptors >>= 16;
            let argument = (descriptor >> 3 & 7) as usize;
            let at = self.args.get(argument).copied().unwrap_or(0);
            let room = (self.limits.event as usize - MARGIN).saturating_sub(words.len() * 8);
            if at == 0 || room < 64 {
                continue;
            }
            let parameter = descriptor >> 6;
            let mut out = Out {
                argument,
                room,
                words,
            };
            self.piece((descriptor & 7, parameter), at, result, &mut out);
        }
    }

    fn piece(&self, (kind, parameter): (u64, u64), at: u64, result: u64, out: &mut Out<'_>) {
        match kind {
            kind::TEXT => self.text(at, parameter as usize, out),
            kind::FIXED => self.bytes(at, parameter, out),
            kind::SIZED | kind::RESULT => {
                let number = match kind {
                    kind::SIZED => self.args.get((parameter & 7) as usize).copied(),
                    _ => Some(result),
                };
                let most = match parameter >> 6 << 4 {
                    0 => self.limits.buffer,
                    most => most,
                };
                let number = number.unwrap_or(0).min(most);
                self.bytes(at, (number << (parameter >> 3 & 7)).min(most), out);
            }
            kind::TEXTS => self.texts(at, parameter, out),
            kind::PARTS => self.parts(at, parameter, out),
            _ => self.special(parameter, at, result, out),
        }
    }

    fn word(&self, at: u64) -> Option<u64> {
        let mut word = [0; 8];
        ((self.read)(at, &mut word) == 8).then(|| u64::from_le_bytes(word))
    }

    fn bytes(&self, at: u64, count: u64, out: &mut Out<'_>) {
        let mut bytes = vec![0; (count as usize).min(out.room.saturating_sub(8))];
        let got = (self.read)(at, &mut bytes);
        let flags = if got < bytes.len() { piece::FAULT } else { 0 };
        bytes.truncate(got);
        out.put(flags, &bytes);
    }

    fn text(&self, at: u64, most: usize, out: &mut Out<'_>) {
        let mut bytes = vec![0; most.min(out.room.saturating_sub(8))];
        let got = (self.read)(at, &mut bytes);
        let mut flags = if got < bytes.len() { piece::FAULT } else { 0 };
        bytes.truncate(got);
        if let Some(end) = bytes.iter().position(|&byte| byte == 0) {
            bytes.truncate(end);
            flags = piece::ENDS;
        }
        out.put(flags, &bytes);
    }

    fn texts(&self, mut at: u64, most: u64, out: &mut Out<'_>) {
        for _ in 0..most {
            match self.word(at) {
                None | Some(0) => return,
                Some(text) => self.text(text, self.limits.string as usize, out),
            }
            at = at.wrapping_add(8);
            if out.room < 2 * SHORT {
                break;
            }
        }
        let mut others = 0u64;
        while others < OTHERS {
            match self.word(at.wrapping_add(others * 8)) {
                None => return,
                Some(0) => break,
                Some(_) => others += 1,
            }
        }
        out.put(piece::MORE, &others.to_le_bytes());
    }

    fn parts(&self, mut at: u64, parameter: u64, out: &mut Out<'_>) {
        let by = parameter & 7;
        let mut count = self.args.get(by as usize).copied().unwrap_or(0);
        if by == kind::MESSAGE {
            let (Some(length), Some(pairs)) = (
                self.word(at.wrapping_add(24)),
                self.word(at.wrapping_add(16)),
            ) else {
                return;
            };
            (at, count) = (pairs, length);
        }
        let count = count.min(PAIRS);
        self.bytes(at, count * 16, out);
        for pair in 0..count {
            let place = at.wrapping_add(pair * 16);
            let (Some(start), Some(length)) = (self.word(place), self.word(place.wrapping_add(8)))
            else {
                return;
            };
            if length > 0 && out.room > SHORT {
                self.bytes(start, length.min(self.limits.buffer), out);
            }
        }
    }

    /// Fetches a piece that depends on another argument.
    fn special(&self, parameter: u64, at: u64, result: u64, out: &mut Out<'_>) {
        let has = |set: u64, bit: u64| bit < 64 && set >> bit & 1 == 1;
        let second = u64::from(self.args[1] as u32);
        match parameter {
            kind::WAIT if has(kind::WAITING, second & 0x7F) => self.bytes(at, 16, out),
            kind::NAME if self.args[0] as u32 == 15 => self.text(at, 16, out),
            kind::LOCK if has(kind::LOCKS, second) => self.bytes(at, 32, out),
            kind::DEVICE if has(kind::DEVICES, second.wrapping_sub(kind::DEVICE_FIRST)) => {
                self.bytes(at, 8, out)
            }
            0 => {
                let (mut entries, mut offset) = (0u64, 0);
                while offset < result {
                    let mut length = [0; 2];
                    let read = (self.read)(at.wrapping_add(offset + 16), &mut length);
                    if read < 2 || length == [0; 2] {
                        break;
                    }
                    offset += u64::from(u16::from_le_bytes(length));
                    entries += 1;
                }
                out.put(0, &entries.to_le_bytes());
            }
            _ => {}
        }
    }
}

/// The event that pieces are appended to.
struct Out<'w> {
    argument: usize,
    /// How many bytes are left.
    room: usize,
    words: &'w mut Vec<u64>,
}

impl Out<'_> {
    fn put(&mut self, flags: u8, bytes: &[u8]) {
        let head = bytes.len() as u64 | (self.argument as u64) << 16 | u64::from(flags) << 24;
        self.words.push(head);
        let word = |part: &[u8]| {
            let mut word = [0; 8];
            word[..part.len()].copy_from_slice(part);
            u64::from_le_bytes(word)
        };
        self.words
            .extend(bytes.chunks(RECORD_SIZE as usize).map(word));
        let used = 8 + bytes.len().next_multiple_of(8);
        self.room = self.room.saturating_sub(used);
    }
}
