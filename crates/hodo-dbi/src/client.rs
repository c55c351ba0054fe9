//! Clients: what is told about a program that runs, and to whom.
//!
//! hodo reads what the threads of the program have recorded, and passes it on to a thread of its own, which makes blocks
//! and accesses of it for the client.

use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender, SyncSender};
use std::thread::JoinHandle;

use anyhow::{Result, anyhow};

use crate::access::Access;
use crate::block::Block;

/// What is to be observed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Observe {
    /// How often each block was executed. The accesses of special blocks are recorded, too.
    Counts,
    /// Each execution of a block, with its accesses.
    Accesses,
}

/// Is told what a program does. All of its functions are called by one thread, and do nothing by default.
pub trait Client: Send {
    /// A thread has begun. Threads are numbered from 0 in the order in which hodo sees them. `tid` is the kernel's
    /// number.
    fn thread(&mut self, thread: u32, process: i32, tid: i32) {
        let _ = (thread, process, tid);
    }

    /// A block will be executed for the first time.
    fn block(&mut self, block: &Arc<Block>) {
        let _ = block;
    }

    /// A thread has executed the first `upto` instructions of a block. The accesses are in the order of the program.
    fn executed(&mut self, thread: u32, block: &Arc<Block>, upto: usize, accesses: &[Access]) {
        let _ = (thread, block, upto, accesses);
    }

    /// A thread has executed the first `upto` instructions of a block this many times. Comes at the end of the thread.
    /// Only for [`Observe::Counts`].
    fn counted(&mut self, thread: u32, block: &Arc<Block>, upto: usize, times: u64) {
        let _ = (thread, block, upto, times);
    }

    /// Everything was told.
    ///
    /// # Errors
    /// What the client could not do.
    fn end(&mut self) -> Result<()> {
        Ok(())
    }
}

/// What the engine tells.
#[derive(Debug)]
pub(crate) enum Message {
    Thread {
        thread: u32,
        process: i32,
        tid: i32,
    },
    Block(Arc<Block>),
    /// Records of a thread.
    Records {
        thread: u32,
        bytes: Vec<u8>,
    },
    /// Numbers of blocks, and how often they were executed.
    Counts {
        thread: u32,
        counts: Vec<(u32, u64)>,
    },
    /// Instead of a whole block, some instructions of it were executed.
    Part {
        thread: u32,
        block: u32,
        upto: u32,
    },
}

/// The number that a record of a cut has instead of a block's. What follows is the number of instructions that were
/// executed of the block before.
pub(crate) const CUT: u32 = u32::MAX;

/// Messages that may wait. The program waits if there are more.
const WAITING: usize = 64;

/// The thread that tells the client.
#[derive(Debug)]
pub(crate) struct Teller<C> {
    sender: SyncSender<Message>,
    /// Buffers that can be used again.
    used: Receiver<Vec<u8>>,
    thread: JoinHandle<Result<C>>,
}

/// Where messages go to.
#[derive(Debug)]
pub(crate) struct Sink {
    sender: SyncSender<Message>,
    used: Receiver<Vec<u8>>,
}

impl Sink {
    /// Tells the client. If it has failed, nothing happens: that is noticed at the end.
    pub(crate) fn send(&self, message: Message) {
        let _ = self.sender.send(message);
    }

    /// An empty buffer.
    pub(crate) fn buffer(&self) -> Vec<u8> {
        self.used.try_recv().unwrap_or_default()
    }
}

impl<C: Client + 'static> Teller<C> {
    pub(crate) fn start(client: C) -> Self {
        let (sender, messages) = mpsc::sync_channel(WAITING);
        let (give_back, used) = mpsc::channel();
        let thread = std::thread::spawn(move || {
            let mut telling = Telling {
                client,
                blocks: Vec::new(),
                threads: Vec::new(),
                accesses: Vec::new(),
            };
            telling.all(&messages, &give_back)?;
            Ok(telling.client)
        });
        Self {
            sender,
            used,
            thread,
        }
    }

    /// Splits it into the way to it, and what ends it.
    pub(crate) fn parts(self) -> (Sink, JoinHandle<Result<C>>) {
        let sink = Sink {
            sender: self.sender,
            used: self.used,
        };
        (sink, self.thread)
    }
}

/// Waits for the client's end.
///
/// # Errors
/// What the client could not do.
pub(crate) fn end<C>(thread: JoinHandle<Result<C>>) -> Result<C> {
    match thread.join() {
        Ok(result) => result,
        Err(_) => Err(anyhow!("the client has panicked")),
    }
}

struct Telling<C> {
    client: C,
    /// By number.
    blocks: Vec<Option<Arc<Block>>>,
    /// The last record of each thread, which may be cut yet.
    threads: Vec<Vec<u8>>,
    accesses: Vec<Access>,
}

impl<C: Client> Telling<C> {
    fn all(&mut self, messages: &Receiver<Message>, give_back: &Sender<Vec<u8>>) -> Result<()> {
        for message in messages {
            match message {
                Message::Thread {
                    thread,
                    process,
                    tid,
                } => self.client.thread(thread, process, tid),
                Message::Block(block) => {
                    let number = block.id as usize;
                    if self.blocks.len() <= number {
                        self.blocks.resize(number + 1, None);
                    }
                    self.client.block(&block);
                    self.blocks[number] = Some(block);
                }
                Message::Records { thread, mut bytes } => {
                    self.records(thread, &bytes)?;
                    bytes.clear();
                    let _ = give_back.send(bytes);
                }
                Message::Counts { thread, counts } => {
                    for (block, times) in counts {
                        let block = self.block(block)?;
                        let upto = block.insns.len();
                        self.client.counted(thread, &block, upto, times);
                    }
                }
                Message::Part {
                    thread,
                    block,
                    upto,
                } => {
                    let block = self.block(block)?;
                    self.client.counted(thread, &block, upto as usize, 1);
                }
            }
        }
        for thread in 0..self.threads.len() {
            let last = std::mem::take(&mut self.threads[thread]);
            if !last.is_empty() {
                self.record(thread as u32, &last, None)?;
            }
        }
        self.client.end()
    }

    fn block(&self, id: u32) -> Result<Arc<Block>> {
        let block = self.blocks.get(id as usize).cloned().flatten();
        block.ok_or_else(|| unknown(id))
    }

    fn records(&mut self, thread: u32, mut bytes: &[u8]) -> Result<()> {
        let number = thread as usize;
        if self.threads.len() <= number {
            self.threads.resize(number + 1, Vec::new());
        }
        let mut kept = std::mem::take(&mut self.threads[number]);
        let mut last: &[u8] = &kept;
        while let Some(id) = number_at(bytes, 0) {
            if id == CUT {
                let upto = number_at(bytes, 4);
                bytes = bytes.get(8..).unwrap_or_default();
                if !last.is_empty() {
                    self.record(thread, last, upto)?;
                }
                last = &[];
                continue;
            }
            if !last.is_empty() {
                self.record(thread, last, None)?;
            }
            let block = self.blocks.get(id as usize).and_then(Option::as_ref);
            let size = block.ok_or_else(|| unknown(id))?.record_size();
            let Some((record, rest)) = bytes.split_at_checked(size) else {
                return Err(anyhow!("a record of block {id} is cut"));
            };
            (last, bytes) = (record, rest);
        }
        let rest = last.to_vec();
        kept.clear();
        kept.extend(&rest);
        self.threads[number] = kept;
        Ok(())
    }

    /// Tells the client what a record says. `upto`: how many instructions were executed, if not all.
    fn record(&mut self, thread: u32, record: &[u8], upto: Option<u32>) -> Result<()> {
        let Some(id) = number_at(record, 0) else {
            return Ok(());
        };
        let block = self.blocks.get(id as usize).and_then(Option::as_ref);
        let block = block.ok_or_else(|| unknown(id))?;
        let upto = upto.map_or(block.insns.len(), |upto| upto as usize);
        self.accesses.clear();
        block.accesses(record, upto, &mut self.accesses);
        self.client.executed(thread, block, upto, &self.accesses);
        Ok(())
    }
}

fn unknown(id: u32) -> anyhow::Error {
    anyhow!("there is a record of block {id}, which is not known")
}

fn number_at(bytes: &[u8], at: usize) -> Option<u32> {
    let bytes = bytes.get(at..at + 4)?;
    Some(u32::from_le_bytes(bytes.try_into().ok()?))
}
