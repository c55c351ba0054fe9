//! Where threads of the program record what they do, and how hodo takes it from there.
//!
//! The memory of a thread has its block, its counters, and a buffer for records with a page after it that cannot be
//! accessed. A thread that fills the buffer faults there; hodo empties it.

use anyhow::{Result, bail};
use hodo_ptrace::{Memory, TargetAddr};

use crate::block::Block;
use crate::client::{CUT, MOST_BLOCKS, Message, Observe, Sink};
use crate::native::block;
use crate::native::translate::Insertion;

/// Bytes of a buffer.
const BUFFER: u64 = 1 << 20;
/// Bytes after a buffer that cannot be accessed. No record is longer.
const GUARD: u64 = 4096;

/// The memory of a thread, as offsets from its block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Layout {
    buffer: u64,
}

impl Layout {
    /// Bytes that can be accessed.
    pub(crate) fn accessible(self) -> u64 {
        self.buffer + BUFFER
    }

    /// All bytes.
    pub(crate) fn size(self) -> u64 {
        self.accessible() + GUARD
    }

    /// Whether a thread with this block has filled its buffer, if it has faulted at this address.
    pub(crate) fn is_full(self, block: u64, address: u64) -> bool {
        let end = block + self.accessible();
        (end..end + GUARD).contains(&address)
    }
}

/// A thread, as clients see it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Recording {
    /// Its number.
    pub(crate) thread: u32,
    /// What the counters were before it used them.
    before: Vec<u64>,
}

/// What the engine tells a client.
#[derive(Debug)]
pub(crate) struct Recorder {
    sink: Sink,
    observe: Observe,
    blocks: u32,
    threads: u32,
}

impl Recorder {
    pub(crate) fn new(sink: Sink, observe: Observe) -> Self {
        Self {
            sink,
            observe,
            blocks: 0,
            threads: 0,
        }
    }

    pub(crate) fn insertion(&self) -> Insertion {
        let counts = self.observe == Observe::Counts;
        Insertion {
            counts,
            records: !counts,
        }
    }

    pub(crate) fn layout(&self) -> Layout {
        let counters = match self.observe {
            Observe::Counts => u64::from(MOST_BLOCKS) * 8,
            Observe::Accesses => 0,
        };
        Layout {
            buffer: u64::from(block::COUNTERS) + counters,
        }
    }

    /// The number for a new block.
    pub(crate) fn number(&mut self) -> u32 {
        self.blocks += 1;
        self.blocks - 1
    }

    /// Fails if there is not enough room for this number of new blocks.
    ///
    /// # Errors
    /// If so.
    pub(crate) fn check_room(&self, more: usize) -> Result<()> {
        if self.blocks as usize + more > MOST_BLOCKS as usize {
            bail!("the program has more than {MOST_BLOCKS} blocks of code");
        }
        Ok(())
    }

    pub(crate) fn tell(&self, message: Message) {
        self.sink.send(message);
    }

    /// Begins to observe a thread whose block is at `block`, and which may have a number already.
    ///
    /// # Errors
    /// If the thread is gone.
    pub(crate) fn begin(
        &mut self,
        memory: &Memory,
        block: u64,
        (process, tid): (i32, i32),
        number: Option<u32>,
    ) -> Result<Recording> {
        let recording = Recording {
            thread: number.unwrap_or(self.threads),
            before: self.counters(memory, block)?,
        };
        self.empty(memory, block)?;
        if number.is_some() {
            return Ok(recording);
        }
        self.threads += 1;
        self.tell(Message::Thread {
            thread: recording.thread,
            process,
            tid,
        });
        Ok(recording)
    }

    /// The buffer has no records.
    fn empty(&self, memory: &Memory, block: u64) -> Result<()> {
        let start = block + self.layout().buffer;
        memory.write(position(block), &start.to_le_bytes())
    }

    fn counters(&self, memory: &Memory, block: u64) -> Result<Vec<u64>> {
        if self.observe != Observe::Counts {
            return Ok(Vec::new());
        }
        let mut bytes = vec![0; self.blocks as usize * 8];
        memory.read(TargetAddr(block + u64::from(block::COUNTERS)), &mut bytes)?;
        let (words, _) = bytes.as_chunks::<8>();
        Ok(words.iter().map(|&word| u64::from_le_bytes(word)).collect())
    }

    /// Takes the records of a thread.
    ///
    /// # Errors
    /// If the thread is gone.
    pub(crate) fn drain(&self, recording: &Recording, memory: &Memory, block: u64) -> Result<()> {
        let start = block + self.layout().buffer;
        let used = memory.read_u64(position(block))?.saturating_sub(start);
        if used == 0 {
            return Ok(());
        }
        let mut bytes = self.sink.buffer();
        bytes.resize(used.min(BUFFER) as usize, 0);
        if memory.load(TargetAddr(start), &mut bytes) < bytes.len() {
            memory.read(TargetAddr(start), &mut bytes)?;
        }
        self.tell(Message::Records {
            thread: recording.thread,
            bytes,
        });
        self.empty(memory, block)
    }

    /// Takes everything from a thread that ends, or whose program ends.
    ///
    /// # Errors
    /// If the thread is gone.
    pub(crate) fn take(
        &self,
        recording: &mut Recording,
        memory: &Memory,
        block: u64,
    ) -> Result<()> {
        self.drain(recording, memory, block)?;
        let now = self.counters(memory, block)?;
        let before = std::mem::take(&mut recording.before);
        let before = before.into_iter().chain(std::iter::repeat(0));
        let differences = now.iter().zip(before).zip(0..);
        let differences = differences.map(|((now, before), id)| (id, now.wrapping_sub(before)));
        let counts: Vec<(u32, u64)> = differences.filter(|&(_, times)| times != 0).collect();
        if !counts.is_empty() {
            self.tell(Message::Counts {
                thread: recording.thread,
                counts,
            });
        }
        recording.before = now;
        Ok(())
    }

    /// Adds a record.
    ///
    /// # Errors
    /// If the thread is gone.
    pub(crate) fn append(
        &self,
        recording: &Recording,
        memory: &Memory,
        block: u64,
        record: &[u8],
    ) -> Result<()> {
        let end = block + self.layout().accessible();
        let mut at = memory.read_u64(position(block))?;
        if at + record.len() as u64 > end {
            self.drain(recording, memory, block)?;
            at = memory.read_u64(position(block))?;
        }
        memory.write(TargetAddr(at), record)?;
        memory.write(position(block), &(at + record.len() as u64).to_le_bytes())
    }

    /// Of the block that a thread has begun, it has executed only the first `upto` instructions.
    ///
    /// # Errors
    /// If the thread is gone.
    pub(crate) fn cut(
        &self,
        recording: &Recording,
        memory: &Memory,
        at: u64,
        cut: &Cut<'_>,
    ) -> Result<()> {
        if cut.counted && self.insertion().counts {
            let counter = TargetAddr(at + u64::from(block::COUNTERS) + 8 * u64::from(cut.block.id));
            let count = memory.read_u64(counter)?.wrapping_sub(1);
            memory.write(counter, &count.to_le_bytes())?;
            if cut.upto > 0 {
                self.tell(Message::Part {
                    thread: recording.thread,
                    block: cut.block.id,
                    upto: cut.upto,
                });
            }
        }
        if cut.recorded && (self.insertion().records || cut.block.is_special()) {
            let mut record = CUT.to_le_bytes().to_vec();
            record.extend(cut.upto.to_le_bytes());
            self.append(recording, memory, at, &record)?;
        }
        Ok(())
    }
}

/// A block of which not all instructions were executed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Cut<'b> {
    pub(crate) block: &'b Block,
    pub(crate) upto: u32,
    pub(crate) counted: bool,
    pub(crate) recorded: bool,
}

/// Where a thread's block says where its next record goes.
fn position(at: u64) -> TargetAddr {
    TargetAddr(at + u64::from(block::POSITION))
}
