//! The records of one task, decoded.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::format::{CHUNK_HEADER_SIZE, WINDOW_SIZE, record};
use crate::model::Chunk;

/// Words a message about lost records. They are counted by their size. With events of probes (`events`), whose sizes
/// differ, the number is only an estimate.
#[must_use]
pub fn told_lost(count: u64, events: bool) -> String {
    match events {
        false => format!("{count} records were lost"),
        true => format!(
            "about {count} records were lost (estimated from their size; events differ in size)"
        ),
    }
}

/// How many bytes of records have been read so far; see [`bytes_read`].
static BYTES_READ: AtomicU64 = AtomicU64::new(0);

/// Returns how many bytes of records this process has read so far, in all traces. Progress displays use it.
pub fn bytes_read() -> u64 {
    BYTES_READ.load(Ordering::Relaxed)
}

/// What a record says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecordKind {
    /// A function was called.
    Entry,
    /// A function returned.
    Exit,
    /// A function was jumped to.
    Tail,
    /// This many records were lost here; id and stack bits mean nothing.
    Lost(u64),
}

/// One record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Record {
    /// The time counter; 0 in a trace without time.
    pub time: u64,
    /// Function id.
    pub id: u32,
    /// Bits 4 and up of the stack pointer at the function's entry.
    pub sp: u16,
    /// What happened.
    pub kind: RecordKind,
    /// For an entry, the stack pointer, rounded down to a multiple of 16; 0 if not known. For functions without exits,
    /// it is right only if they return twice, as `setjmp` does.
    pub stack: u64,
}

/// An iterator over the records of one task. It reads one chunk at a time.
#[derive(Debug)]
pub struct Records<'a> {
    events: &'a File,
    control_size: u64,
    chunks: std::vec::IntoIter<Chunk>,
    buffer: Vec<u8>,
    at: usize,
    epoch: u32,
    last: u64,
    lost: u64,
    skip: u32,
    /// Where the window of stack addresses of the next entry begins; 0 if not known.
    window: u64,
    /// Where the windows of later entries begin.
    windows: u64,
    /// See [`record::window_shift`].
    window_shift: u32,
    /// The first error of any reader of these events.
    unread: &'a OnceLock<String>,
}

const RECORD: usize = crate::format::RECORD_SIZE as usize;

impl<'a> Records<'a> {
    pub(crate) fn new(
        events: &'a File,
        control_size: u64,
        chunks: Vec<Chunk>,
        began: u64,
        window_shift: u32,
        unread: &'a OnceLock<String>,
    ) -> Self {
        Self {
            events,
            control_size,
            chunks: chunks.into_iter(),
            buffer: Vec::new(),
            at: 0,
            epoch: (began >> 32) as u32,
            last: 0,
            lost: 0,
            skip: 0,
            window: 0,
            windows: 0,
            window_shift,
            unread,
        }
    }

    /// Takes a record with a window of stack addresses, or with the address of the next entry.
    #[cold]
    fn new_window(&mut self, special: u32, high: u32, low: u32) {
        self.window = (u64::from(high) << 32 | u64::from(low)) << self.window_shift;
        if special == record::SPECIAL_WINDOW {
            self.windows = self.window;
        }
    }

    /// Returns the stack pointer of an entry, or 0 if not known.
    ///
    /// A stub reads the clock, checks whether the stack pointer is in the window, and then reserves the place of its
    /// record. A signal handler in between may have changed the window. Then the time of this record is earlier than
    /// those of the handler's records. (A handler runs there only where hodo cannot delay it: see "Handlers that look
    /// at what they interrupted" in docs/internals/stubs.md.)
    #[inline]
    fn stack(&mut self, sp: u16, time: u64) -> u64 {
        let start = std::mem::replace(&mut self.window, self.windows);
        if start == 0 || time < self.last {
            return 0;
        }
        start + ((u64::from(sp) << 4).wrapping_sub(start) & (WINDOW_SIZE - 16))
    }

    /// Reads the next chunk. Returns `None` if there is none, or `Some(n)` if `n` records were lost before it.
    #[cold]
    fn next_chunk(&mut self) -> Option<u64> {
        let chunk = self.chunks.next()?;
        let size = chunk.room(0);
        self.buffer.resize(size, 0);
        let start = chunk.start(self.control_size) + CHUNK_HEADER_SIZE;
        let mut filled = 0;
        while filled < size {
            match self
                .events
                .read_at(&mut self.buffer[filled..], start + filled as u64)
            {
                Ok(0) => break,
                Ok(n) => filled += n,
                Err(error) => {
                    self.unread.get_or_init(|| error.to_string());
                    break;
                }
            }
        }
        BYTES_READ.fetch_add(filled as u64, Ordering::Relaxed);
        let own = chunk.room(chunk.rest(self.events, self.control_size));
        self.buffer.truncate(filled.min(own) / RECORD * RECORD);
        self.at = 0;
        self.skip = 0;
        self.epoch = chunk.epoch;
        let lost = chunk.lost.saturating_sub(self.lost);
        self.lost = self.lost.max(chunk.lost);
        if lost > 0 {
            (self.window, self.windows) = (0, 0);
        }
        Some(lost)
    }
}

impl Records<'_> {
    /// Returns the payload of the last record returned: whole words of eight bytes. It may be empty.
    pub fn payload(&mut self) -> &[u8] {
        let word = |at: usize| {
            let bytes = self.buffer.get(at..at + RECORD)?;
            Some(u64::from_le_bytes(bytes.try_into().ok()?))
        };
        let payload = record::SPECIAL << record::KIND_SHIFT | record::SPECIAL_PAYLOAD;
        match word(self.at) {
            Some(word) if (word >> 32) as u32 == payload => {
                let start = self.at + RECORD;
                let length = (word as u32 as usize).saturating_mul(RECORD);
                let end = start.saturating_add(length).min(self.buffer.len());
                self.at = end;
                &self.buffer[start..end]
            }
            _ => &[],
        }
    }
}

impl Iterator for Records<'_> {
    type Item = Record;

    #[inline]
    fn next(&mut self) -> Option<Record> {
        loop {
            let Some(bytes) = self.buffer.get(self.at..self.at + RECORD) else {
                let lost = self.next_chunk()?;
                if lost > 0 {
                    return Some(Record {
                        time: self.last,
                        id: 0,
                        sp: 0,
                        kind: RecordKind::Lost(lost),
                        stack: 0,
                    });
                }
                continue;
            };
            self.at += RECORD;
            let word = u64::from_le_bytes(bytes.try_into().expect("eight bytes"));
            if self.skip > 0 {
                self.skip -= 1;
                continue;
            }
            let low = word as u32;
            let high = (word >> 32) as u32;
            // This is a hole, or the program ended when only the time was written: records that are written in two
            // parts get their other half last.
            if high == 0 {
                continue;
            }
            let id = high & record::ID_MASK;
            let kind = match high >> record::KIND_SHIFT & 3 {
                record::ENTRY => RecordKind::Entry,
                record::EXIT => RecordKind::Exit,
                record::TAIL => RecordKind::Tail,
                _ => match id {
                    record::SPECIAL_EPOCH => {
                        self.epoch = low;
                        continue;
                    }
                    record::SPECIAL_PAYLOAD => {
                        self.skip = low;
                        continue;
                    }
                    record::SPECIAL_LOST => RecordKind::Lost(u64::from(low)),
                    record::SPECIAL_WINDOW | record::SPECIAL_STACK => {
                        self.new_window(id, high >> record::SP_SHIFT, low);
                        continue;
                    }
                    _ => continue,
                },
            };
            let time = u64::from(self.epoch) << 32 | u64::from(low);
            let sp = (high >> record::SP_SHIFT) as u16;
            let stack = match kind {
                RecordKind::Entry => self.stack(sp, time),
                _ => 0,
            };
            // A signal handler that runs between a stub's reading of the clock and its record is recorded first.
            self.last = self.last.max(time);
            return Some(Record {
                time: self.last,
                id,
                sp,
                kind,
                stack,
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::CHUNK_SIZE;

    #[test]
    fn unreadable_files_are_reported() {
        // Reading a directory is an error.
        let events = File::open("/").expect("a directory");
        let chunk = Chunk {
            index: 0,
            at: 0,
            seq: 0,
            epoch: 0,
            lost: 0,
            begins: 0,
        };
        let unread = OnceLock::new();
        let mut records =
            Records::new(&events, 4096, vec![chunk], 0, record::WINDOW_SHIFT, &unread);
        assert_eq!(records.next(), None);
        assert!(unread.get().is_some());
    }

    #[test]
    fn the_highest_stack_addresses_are_known() {
        let name = format!("hodo-windows-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        for isa in hodo_abi::Isa::ALL {
            let bits = if isa == hodo_abi::Isa::Aarch64 {
                48
            } else {
                47
            };
            let top = (1u64 << bits) - 0x1000;
            let shift = record::window_shift(isa);
            let window = (top - WINDOW_SIZE / 2) >> shift;
            let high = |what: u32, bits: u64| u64::from(what) | bits << record::SP_SHIFT;
            let special = record::SPECIAL << record::KIND_SHIFT | record::SPECIAL_WINDOW;
            let bits = top >> 4 & ((1 << record::SP_BITS) - 1);
            let records = [
                window & 0xFFFF_FFFF | high(special, window >> 32) << 32,
                high(1, bits) << 32,
            ];
            let mut bytes = vec![0; CHUNK_SIZE as usize];
            for (index, word) in records.iter().enumerate() {
                let at = CHUNK_HEADER_SIZE as usize + 8 * index;
                bytes[at..at + 8].copy_from_slice(&word.to_le_bytes());
            }
            std::fs::write(&path, bytes).expect("events");
            let events = File::open(&path).expect("events");
            let chunk = Chunk {
                index: 0,
                at: 0,
                seq: 0,
                epoch: 0,
                lost: 0,
                begins: 0,
            };
            let unread = OnceLock::new();
            let mut records = Records::new(&events, 0, vec![chunk], 0, shift, &unread);
            assert_eq!(records.next().expect("an entry").stack, top, "{isa:?}");
        }
        std::fs::remove_file(&path).expect("events");
    }
}
