//! Reads a trace while it is being written.
//!
//! Targets write to the events file while we read it. The first word of a record is written last. While its upper half
//! is zero, there is no record yet, though there may be a hole. New data is read twice: first to find out whether there
//! is any, then to take it. So no word that is taken is older than the word that announced it.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::error::TraceError;
use crate::format::{CHUNK_HEADER_SIZE, file_header, record};
use crate::meta::Line;
use crate::model::Chunk;
use crate::records::{Record, RecordKind};
use crate::syscalls::LARGEST_EVENT;
use crate::trace::Trace;

const WORD: usize = 8;

/// What is new in the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum News {
    /// A task has begun: its index.
    Began(usize),
    /// A task has ended: its index.
    Ended(usize),
    /// A task has another name: its index.
    Named(usize),
    /// A signal was received: its index in the trace.
    Signal(usize),
    /// Code was mapped.
    Mapped,
}

/// How far the records of a task have been read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reached {
    /// Everything was read.
    End,
    /// As much was read as requested. There is more, none of it before this time of the counter.
    More(u64),
    /// Everything was read except a record that is being written. It is not older than this time of the counter.
    Busy(u64),
}

/// The current position in the records of a task.
#[derive(Debug, Clone, Copy, Default)]
struct Tail {
    /// The index of its current chunk.
    chunk: usize,
    /// How many bytes of that chunk's records are done.
    at: usize,
    epoch: u32,
    last: u64,
    /// The time since which the next record has been incomplete.
    busy: Option<Instant>,
}

/// Writing a record takes less than this. If it takes longer, the record was abandoned: a signal handler jumped out of
/// the code that wrote it.
const PATIENCE: Duration = Duration::from_secs(1);

/// A trace that is still growing.
#[derive(Debug)]
pub struct Follow {
    log: File,
    /// The beginning of an incomplete line.
    rest: Vec<u8>,
    /// How many chunks were examined, and which of them belonged to no task yet.
    chunks: u64,
    late: Vec<(u64, u32)>,
    /// Tasks that have ended, and may have left the rest of their last chunk to others.
    ended: Vec<usize>,
    tails: Vec<Tail>,
    buffer: Vec<u8>,
    patience: Duration,
}

impl Follow {
    /// Begins to read the trace in a directory.
    ///
    /// # Errors
    /// If there is no trace yet, or it has another version.
    pub fn open(directory: &Path) -> Result<(Trace, Self), TraceError> {
        let trace = Trace::begin(directory)?;
        let path = directory.join("log.jsonl");
        let log = File::open(&path).map_err(|error| TraceError::Io { path, error })?;
        let follow = Self {
            log,
            rest: Vec::new(),
            chunks: 0,
            late: Vec::new(),
            ended: Vec::new(),
            tails: Vec::new(),
            buffer: Vec::new(),
            patience: PATIENCE,
        };
        Ok((trace, follow))
    }

    /// Sets how long to wait for a record that is being written before it is skipped.
    pub fn set_patience(&mut self, patience: Duration) {
        self.patience = patience;
    }

    /// Reads what is new in the log, and finds new chunks.
    pub fn news(&mut self, trace: &mut Trace) -> Vec<News> {
        let mut news = Vec::new();
        // What cannot be read now is read next time, or reported by whoever reads the whole trace.
        let _ = self.log.read_to_end(&mut self.rest);
        let whole = self.rest.iter().rposition(|&byte| byte == b'\n');
        let rest = self.rest.split_off(whole.map_or(0, |end| end + 1));
        for line in std::mem::replace(&mut self.rest, rest).split(|&byte| byte == b'\n') {
            let Ok(line) = serde_json::from_slice::<Line>(line) else {
                continue;
            };
            let before = (trace.tasks.len(), trace.signals.len());
            let ended = match &line {
                Line::TaskEnd(end) => Some(end.id as usize),
                _ => None,
            };
            let named = match &line {
                Line::TaskName(name) => Some(name.id as usize),
                _ => None,
            };
            let is_map = matches!(line, Line::Map(_));
            trace.read_line(line);
            news.extend(is_map.then_some(News::Mapped));
            news.extend((before.0..trace.tasks.len()).map(News::Began));
            news.extend((before.1..trace.signals.len()).map(News::Signal));
            let index = |id: Option<usize>| {
                let at = id.and_then(|id| id.checked_sub(1));
                at.filter(|&at| at < trace.tasks.len())
            };
            news.extend(index(named).map(News::Named));
            let ended = index(ended);
            news.extend(ended.map(News::Ended));
            self.ended.extend(ended);
        }
        self.find_chunks(trace);
        news
    }

    fn find_chunks(&mut self, trace: &mut Trace) {
        let mut words = [0; 16];
        if trace
            .events
            .read_exact_at(&mut words, file_header::NEXT_CHUNK)
            .is_err()
        {
            return;
        }
        let used = number(&words, 0).min(number(&words, WORD));
        let mut late = std::mem::take(&mut self.late);
        late.extend((self.chunks..used).map(|index| (index, 0)));
        self.chunks = used.max(self.chunks);
        // Chunks that belong to no task yet are examined again.
        late.retain(|&place| !trace.read_chunk(place));
        // In the order of their ends: what a task has left may belong to one that is the next to leave a rest.
        for task in std::mem::take(&mut self.ended) {
            if let Some(chunk) = trace.tasks[task].chunks.last() {
                let rest = chunk.rest(&trace.events, trace.control_size);
                let place = (chunk.index, rest);
                if rest > 0 && !trace.read_chunk(place) {
                    late.push(place);
                }
            }
        }
        self.late = late;
        self.tails.resize(trace.tasks.len(), Tail::default());
    }

    /// Takes the new records of a task, each with its payload, from at most this many chunks.
    pub fn take(
        &mut self,
        trace: &Trace,
        task: usize,
        mut chunks: usize,
        mut each: impl FnMut(Record, &[u8]),
    ) -> Reached {
        let Some((tail, known)) = self.tails.get_mut(task).zip(trace.tasks.get(task)) else {
            return Reached::End;
        };
        loop {
            let is_next = |at: usize| {
                known
                    .chunks
                    .get(at)
                    .filter(|chunk| chunk.seq as usize == at)
            };
            let Some(chunk) = is_next(tail.chunk) else {
                return Reached::End;
            };
            if tail.at == 0 {
                tail.epoch = chunk.epoch;
            }
            let is_last = is_next(tail.chunk + 1).is_none();
            let left = tail
                .busy
                .is_some_and(|since| since.elapsed() >= self.patience);
            let busy = read(
                (&trace.events, trace.control_size),
                chunk,
                (tail, left),
                is_last,
                &mut self.buffer,
            );
            // New data means that a different record is incomplete now.
            let again = tail.busy.filter(|_| self.buffer.is_empty());
            tail.busy = busy.then(|| again.unwrap_or_else(Instant::now));
            tail.take(&self.buffer, &mut each);
            if is_last {
                return match busy {
                    true => Reached::Busy(tail.last),
                    false => Reached::End,
                };
            }
            tail.chunk += 1;
            tail.at = 0;
            chunks -= 1;
            if chunks == 0 {
                return Reached::More(tail.last);
            }
        }
    }
}

fn number(bytes: &[u8], at: usize) -> u64 {
    let word = bytes.get(at..at + WORD).unwrap_or(&[0; WORD]);
    u64::from_le_bytes(word.try_into().unwrap_or_default())
}

const PAYLOAD: u32 = record::SPECIAL << record::KIND_SHIFT | record::SPECIAL_PAYLOAD;

/// Reads the new part of a chunk. Returns whether an incomplete record follows it. If `left` is set, the first
/// incomplete record is skipped.
fn read(
    (events, control_size): (&File, u64),
    chunk: &Chunk,
    (tail, mut left): (&Tail, bool),
    is_last: bool,
    buffer: &mut Vec<u8>,
) -> bool {
    /// No hole is larger than this: those that system calls leave are the largest.
    const HOLE: usize = LARGEST_EVENT as usize;
    let room = chunk.room(0) - tail.at;
    let from = chunk.start(control_size) + CHUNK_HEADER_SIZE + tail.at as u64;
    let fill = |buffer: &mut Vec<u8>, size: usize| {
        buffer.resize(size, 0);
        let got = events.read_at(buffer, from).unwrap_or(0);
        let own = chunk.room(chunk.rest(events, control_size));
        buffer.truncate(got.min(own.saturating_sub(tail.at)) / WORD * WORD);
    };
    if is_last {
        fill(buffer, room.min(HOLE));
        if buffer
            .chunks_exact(WORD)
            .all(|word| number(word, 0) >> 32 == 0)
        {
            buffer.clear();
            return false;
        }
    }
    fill(buffer, room);
    if !is_last {
        return false;
    }
    let (mut at, mut end) = (0, 0);
    let mut busy = false;
    while at < buffer.len() {
        let high = (number(buffer, at) >> 32) as u32;
        // A record's payload is written before the record itself.
        busy = high == PAYLOAD && !std::mem::take(&mut left);
        if busy {
            break;
        }
        if high == PAYLOAD {
            let length = number(buffer, at) as u32 as usize;
            at = at.saturating_add((1 + length).saturating_mul(WORD));
            end = at;
            continue;
        }
        at += WORD;
        if high == 0 {
            continue;
        }
        let next = number(buffer, at);
        if (next >> 32) as u32 == PAYLOAD {
            let length = next as u32 as usize;
            at = at.saturating_add((1 + length).saturating_mul(WORD));
        }
        end = at;
    }
    fill(buffer, end.min(room));
    busy
}

impl Tail {
    fn take(&mut self, buffer: &[u8], each: &mut impl FnMut(Record, &[u8])) {
        let mut at = 0;
        while at + WORD <= buffer.len() {
            let word = number(buffer, at);
            at += WORD;
            let (low, high) = (word as u32, (word >> 32) as u32);
            if high == 0 {
                continue;
            }
            let payload = |at: &mut usize| {
                let head = number(buffer, *at);
                if (head >> 32) as u32 != PAYLOAD {
                    return 0..0;
                }
                let start = *at + WORD;
                let end = start.saturating_add((head as u32 as usize).saturating_mul(WORD));
                *at = end.min(buffer.len());
                start..*at
            };
            let id = high & record::ID_MASK;
            let kind = match high >> record::KIND_SHIFT & 3 {
                record::ENTRY => RecordKind::Entry,
                record::EXIT => RecordKind::Exit,
                record::TAIL => RecordKind::Tail,
                _ if id == record::SPECIAL_EPOCH => {
                    self.epoch = low;
                    continue;
                }
                _ if id == record::SPECIAL_PAYLOAD => {
                    at = at.saturating_add((low as usize).saturating_mul(WORD));
                    continue;
                }
                _ if id == record::SPECIAL_LOST => RecordKind::Lost(u64::from(low)),
                _ => continue,
            };
            self.last = self.last.max(u64::from(self.epoch) << 32 | u64::from(low));
            let record = Record {
                time: self.last,
                id,
                sp: (high >> record::SP_SHIFT) as u16,
                kind,
                // Whoever follows a trace wants events, not frames.
                stack: 0,
            };
            let payload = payload(&mut at);
            each(record, buffer.get(payload).unwrap_or_default());
        }
        self.at += buffer.len();
    }
}
