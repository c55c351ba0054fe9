//! Clients receive what a program does that runs.
//!
//! hodo reads what the threads of the program have recorded, and passes it on to a thread of its own, in which a
//! listener receives it. The usual one makes blocks and accesses of it for a client.

mod counting;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, SyncSender, TrySendError};
use std::thread::JoinHandle;

use anyhow::{Result, anyhow, bail};
use hodo_ptrace::threads::without_signals;
use rustc_hash::FxHashSet;

use crate::access::Access;
pub(crate) use crate::block::RECORDED;
use crate::block::{Block, Note, Noted, RECORDED_SIZE, SLOTS, lanes_size};
use crate::calls::Calls;
use crate::events::{Event, Events};
use crate::inserted::{CALL_RESULT, OWN_NUMBERS};
use crate::plan::{Accesses, Plan};
use crate::recent::Recent;
use counting::Counting;

/// What is to be observed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Observe {
    /// How often each block was executed. The accesses of special blocks are recorded, too; if a mask selects them,
    /// without their addresses.
    Counts,
    /// Each execution of a block, with its accesses.
    Accesses,
    /// How often each block was executed, and what was not fetched from, or not an access to, the line of its set that
    /// was used last. The accesses of special blocks are recorded, too.
    Lines(Recent),
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

    /// A block may be executed in another part of a run. It is equal to the one that came by [`Client::block`], which
    /// the engine does not have any more.
    fn block_again(&mut self, block: &Arc<Block>) {
        let _ = block;
    }

    /// A thread has executed the first `upto` instructions of a block. The accesses are in the order of the program. A
    /// repeated instruction, a gather or a scatter may have accesses before it is executed to its end: `upto` is 0
    /// then.
    fn executed(&mut self, thread: u32, block: &Arc<Block>, upto: usize, accesses: &[Access]) {
        let _ = (thread, block, upto, accesses);
    }

    /// The same as [`Client::executed`], for clients that look at accesses one by one: none is stored unasked. By
    /// default, `executed` receives them. Blocks of which more is to be told are received by `executed` in any case.
    fn visit(&mut self, thread: u32, block: &Arc<Block>, upto: usize, accesses: Accesses<'_>) {
        self.executed(thread, block, upto, accesses.all());
    }

    /// A thread has executed the first `upto` instructions of a block this many times. Comes at the end of the thread.
    /// Only for [`Observe::Counts`] and [`Observe::Lines`], and of recordings, for [`Decode::counting`].
    fn counted(&mut self, thread: u32, block: &Arc<Block>, upto: usize, times: u64) {
        let _ = (thread, block, upto, times);
    }

    /// A thread has executed about this many instructions with this many accesses so far, which [`Client::counted`]
    /// says later. Only for [`Observe::Lines`], and not often.
    fn progress(&mut self, thread: u32, instructions: u64, accesses: u64) {
        let _ = (thread, instructions, accesses);
    }

    /// A thread fetches an instruction of a block, from another line than the one of its set from which it has fetched
    /// last. Only for [`Observe::Lines`]. A damaged recording may have a number that is too high.
    fn fetched(&mut self, thread: u32, block: &Arc<Block>, insn: usize) {
        let _ = (thread, block, insn);
    }

    /// A thread accesses another line than the one of its set that it has used last. Only for [`Observe::Lines`].
    fn accessed(&mut self, thread: u32, block: &Arc<Block>, access: &Access) {
        let _ = (thread, block, access);
    }

    /// Code that a [`Pass`](crate::Pass) has inserted has recorded a number and a value.
    fn recorded(&mut self, thread: u32, number: u32, value: u64) {
        let _ = (thread, number, value);
    }

    /// A [`Word`](crate::Word) of a thread, by number, has changed by this much, maybe with an overflow, since it was
    /// last received, or since it was 0 at the beginning of the thread. Comes at the end of the thread, and before.
    fn word(&mut self, thread: u32, word: u32, change: u64) {
        let _ = (thread, word, change);
    }

    /// What a thread did comes next, from where it came last to about now. If order matters, by [`Events::in_order`] or
    /// because calls of functions are wanted, what others did until now has come before.
    fn continues(&mut self, thread: u32) {
        let _ = thread;
    }

    /// The events that it wants to receive. It is asked before anything else.
    fn events(&self) -> Events {
        Events::default()
    }

    /// A thread has done something else than accessing memory. It comes between the blocks where it happened. Only for
    /// [`Observe::Accesses`]; system calls also for passes ([`crate::instrument`]), between what is recorded.
    fn event(&mut self, thread: u32, event: &Event<'_>) {
        let _ = (thread, event);
    }

    /// Whether it needs to receive nothing more. It is asked now and then. A program runs on as alone then, and of a
    /// recording, the rest is not read.
    fn has_enough(&self) -> bool {
        false
    }

    /// Everything was told.
    ///
    /// # Errors
    /// What the client could not do.
    fn end(&mut self) -> Result<()> {
        Ok(())
    }
}

/// What the engine tells, in the order in which it must be received: blocks come before the records that have them.
#[derive(Debug)]
pub enum Message {
    /// A thread has begun.
    Thread {
        /// Its number.
        thread: u32,
        /// The kernel's number of its process.
        process: i32,
        /// The kernel's number of the thread.
        tid: i32,
        /// The thread that has made its process, if that was observed.
        maker: Option<u32>,
    },
    /// A block will be executed for the first time.
    Block(Arc<Block>),
    /// A thread has mapped a file whose code may be executed.
    Mapped {
        /// Its number.
        thread: u32,
        /// The file.
        file: PathBuf,
        /// Where it is.
        address: u64,
        /// Bytes.
        size: u64,
        /// Where in the file that begins.
        offset: u64,
    },
    /// Records of a thread.
    Records {
        /// Its number.
        thread: u32,
        /// One record after the other.
        bytes: Vec<u8>,
    },
    /// What a thread has recorded since its last records is lost.
    Lost {
        /// Its number.
        thread: u32,
        /// How many instructions it has executed meanwhile.
        instructions: u64,
    },
    /// A thread has ended.
    Counts {
        /// Its number.
        thread: u32,
        /// Numbers of blocks, and how often they were executed.
        counts: Vec<(u32, u64)>,
    },
    /// A thread is at work whose executions are counted. Comes now and then.
    Progress {
        /// Its number.
        thread: u32,
        /// About how many instructions it has executed, if it runs.
        instructions: u64,
        /// About how many accesses that was, without those of special blocks.
        accesses: u64,
    },
    /// Words of passes have changed in a thread. Comes at its end, and before.
    Words {
        /// Its number.
        thread: u32,
        /// Numbers of words, and by how much they have changed.
        words: Vec<(u32, u64)>,
    },
    /// Instead of a whole block, some instructions of it were executed.
    Part {
        /// The number of the thread.
        thread: u32,
        /// The number of the block.
        block: u32,
        /// How many instructions.
        upto: u32,
    },
}

/// Receives what the engine tells, in a thread of its own. [`Decode`] is one that makes accesses of it.
pub trait Listener: Send {
    /// Receives a message.
    ///
    /// # Errors
    /// What it could not do. It receives nothing more then.
    fn hear(&mut self, message: &Message) -> Result<()>;

    /// The events of which records have to say something. It is asked once, before anything else.
    fn events(&self) -> Events {
        Events::default()
    }

    /// Whether it needs to receive nothing more: see [`Client::has_enough`].
    fn has_enough(&self) -> bool {
        false
    }

    /// Everything was told.
    ///
    /// # Errors
    /// What it could not do.
    fn end(&mut self) -> Result<()>;
}

/// A record of a cut is this plus the number of instructions that were executed of the block before.
pub(crate) const CUT: u32 = 0xFFFF_0000;
/// A record of a signal is this plus its number.
pub(crate) const SIGNAL: u32 = 0xFFFE_0000;
/// A record of a program that was executed: there is no signal 0.
pub(crate) const EXECUTED: u32 = SIGNAL;

/// A record of an access to another line is this plus the number of the operand in its block. The number of the block
/// and the address, of eight bytes, come after it.
pub(crate) const USED: u32 = 0xFFFD_0000;
/// A record of a fetch from another line is this plus the number of the instruction in its block. The number of the
/// block comes after it.
pub(crate) const FETCHED: u32 = 0xFFFC_0000;
/// A record of all general registers at the beginning of the next block: nothing else that was recorded before is
/// needed to read on.
pub(crate) const REGISTERS: u32 = 0xFFFA_0000;
/// The number of general registers in such a record, of eight bytes each.
pub(crate) const GENERAL: usize = crate::native::GENERAL as usize;

/// Bytes of a record that is not of a block.
pub(crate) fn size_of_mark(number: u32) -> usize {
    match number {
        SIGNAL.. => 4,
        USED.. => 16,
        FETCHED.. => 8,
        RECORDED.. => RECORDED_SIZE,
        _ => 4 + 8 * GENERAL,
    }
}

/// Bytes of a record that is not of a block, by its number. `None`: it is one of a block.
#[must_use]
pub fn size_of_other_record(number: u32) -> Option<usize> {
    (number >= REGISTERS).then(|| size_of_mark(number))
}

/// The maximum number of blocks of a run.
pub(crate) const MOST_BLOCKS: u32 = 1 << 24;

/// Blocks that the engine no longer has are forgotten whenever this many new ones were received. The messages about as
/// many do not fit into the queue.
const MANY: usize = 50_000;

/// Messages about this many blocks are sent together: there are many, and waking the other thread takes longer than
/// hearing them.
const TOGETHER: usize = 256;

/// Sent messages that may wait. The program waits if there are more.
const WAITING: usize = 16;

/// The thread that tells the listener.
#[derive(Debug)]
pub(crate) struct Teller<L> {
    sender: SyncSender<Vec<Message>>,
    /// Buffers that can be used again.
    used: Receiver<Vec<u8>>,
    enough: Arc<AtomicBool>,
    thread: JoinHandle<Result<L>>,
}

/// Where messages go to.
#[derive(Debug)]
pub(crate) struct Sink {
    sender: SyncSender<Vec<Message>>,
    /// About blocks: to be sent before anything else.
    blocks: RefCell<Vec<Message>>,
    used: Receiver<Vec<u8>>,
    enough: Arc<AtomicBool>,
}

impl Sink {
    /// Leads nowhere.
    pub(crate) fn nowhere() -> Self {
        Self {
            sender: mpsc::sync_channel(0).0,
            blocks: RefCell::default(),
            used: mpsc::channel().1,
            enough: Arc::default(),
        }
    }

    /// Whether the listener needs to receive nothing more.
    pub(crate) fn has_enough(&self) -> bool {
        self.enough.load(Ordering::Relaxed)
    }

    /// Tells the listener. If it has failed, nothing happens: that is noticed at the end.
    pub(crate) fn send(&self, message: Message) {
        let mut messages = self.blocks.borrow_mut();
        let is_block = matches!(message, Message::Block(_));
        messages.push(message);
        if !is_block || messages.len() >= TOGETHER {
            let _ = self.sender.send(std::mem::take(&mut *messages));
        }
    }

    /// Tells the listener these messages and records, unless too many wait. Returns whether it has.
    pub(crate) fn offer(&self, before: Vec<Message>, thread: u32, bytes: Vec<u8>) -> bool {
        let mut messages = self.blocks.borrow_mut();
        let blocks = messages.len();
        messages.extend(before);
        messages.push(Message::Records { thread, bytes });
        let Err(TrySendError::Full(mut back)) =
            self.sender.try_send(std::mem::take(&mut *messages))
        else {
            return true;
        };
        back.truncate(blocks);
        *messages = back;
        false
    }

    /// A buffer with any content.
    pub(crate) fn buffer(&self) -> Vec<u8> {
        self.used.try_recv().unwrap_or_default()
    }
}

impl Drop for Sink {
    fn drop(&mut self) {
        let _ = self.sender.send(std::mem::take(self.blocks.get_mut()));
    }
}

impl<L: Listener + 'static> Teller<L> {
    pub(crate) fn start(mut listener: L) -> Self {
        let (sender, messages) = mpsc::sync_channel(WAITING);
        let (give_back, used) = mpsc::channel();
        let enough = Arc::new(AtomicBool::new(false));
        let says = Arc::clone(&enough);
        let tell = move || {
            for message in messages.into_iter().flatten() {
                listener.hear(&message)?;
                if let Message::Records { bytes, .. } = message {
                    let _ = give_back.send(bytes);
                    says.store(listener.has_enough(), Ordering::Relaxed);
                }
            }
            listener.end()?;
            Ok(listener)
        };
        let thread = without_signals(|| std::thread::spawn(tell));
        Self {
            sender,
            used,
            enough,
            thread,
        }
    }

    /// Splits it into the way to it, and what ends it.
    pub(crate) fn parts(self) -> (Sink, JoinHandle<Result<L>>) {
        let sink = Sink {
            sender: self.sender,
            blocks: RefCell::default(),
            used: self.used,
            enough: self.enough,
        };
        (sink, self.thread)
    }
}

/// Waits for the listener's end.
///
/// # Errors
/// What the listener could not do.
pub(crate) fn end<L>(thread: JoinHandle<Result<L>>) -> Result<L> {
    match thread.join() {
        Ok(result) => result,
        Err(_) => Err(anyhow!("the client has panicked")),
    }
}

/// Whether the records of a thread can be read from here on, without those before.
#[must_use]
pub fn stands_alone(records: &[u8]) -> bool {
    number_at(records, 0) == Some(REGISTERS)
}

/// A block, and how records of it are read, if there have been any.
type Known = (Arc<Block>, Option<Plan>);

/// Tells a client what messages say.
#[derive(Debug)]
pub struct Decode<C> {
    client: C,
    /// By number.
    blocks: Vec<Option<Known>>,
    threads: BTreeMap<u32, Box<Decoded>>,
    accesses: Vec<Access>,
    /// Executions are counted, and nothing else is wanted.
    counting: Option<Box<Counting>>,
    /// The client wants to know of calls of functions, or of the system.
    hears_notes: bool,
    /// The engine runs: blocks that it has no more can be forgotten.
    forgets: bool,
    /// Blocks since blocks were last forgotten.
    new: usize,
    /// Blocks that the engine did not have any more then. What it has told of them has been received by the next time.
    gone: FxHashSet<u32>,
}

/// What is known of a thread.
#[derive(Debug, Clone)]
struct Decoded {
    /// Its last record, which may be cut yet.
    last: Vec<u8>,
    slots: [u64; SLOTS],
    calls: Calls,
    /// What a system call begins with, as far as it was recorded for passes.
    begun: Vec<u64>,
}

impl Decoded {
    fn new() -> Self {
        Self {
            last: Vec::new(),
            slots: [0; SLOTS],
            calls: Calls::default(),
            begun: Vec::new(),
        }
    }
}

impl<C: Client> Listener for Decode<C> {
    fn hear(&mut self, message: &Message) -> Result<()> {
        match message {
            &Message::Thread {
                thread,
                process,
                tid,
                maker,
            } => {
                check_thread(thread.max(maker.unwrap_or(0)))?;
                self.client.thread(thread, process, tid);
                if let Some(maker) = maker {
                    self.client.event(thread, &Event::Forked { maker });
                }
            }
            Message::Block(block) => self.new_block(block)?,
            Message::Mapped {
                thread,
                file,
                address,
                size,
                offset,
            } => {
                check_thread(*thread)?;
                // Its last record is complete: it is after a system call.
                if let Some(mut decoded) = self.threads.remove(thread) {
                    self.last_record(*thread, &mut decoded, None)?;
                    self.threads.insert(*thread, decoded);
                }
                let event = Event::Mapped {
                    file,
                    address: *address,
                    size: *size,
                    offset: *offset,
                };
                self.client.event(*thread, &event);
            }
            Message::Records { thread, bytes } => match self.counting.take() {
                Some(mut counting) => {
                    self.count(&mut counting, *thread, bytes)?;
                    self.counting = Some(counting);
                }
                None => self.records(*thread, bytes)?,
            },
            &Message::Lost {
                thread,
                instructions,
            } => {
                check_thread(thread)?;
                if let Some(mut decoded) = self.threads.remove(&thread) {
                    self.last_record(thread, &mut decoded, None)?;
                }
                self.client.event(thread, &Event::Lost { instructions });
            }
            Message::Counts { thread, counts } => {
                for &(block, times) in counts {
                    let block = self.block(block)?;
                    let upto = block.insns.len();
                    self.client.counted(*thread, &block, upto, times);
                }
            }
            &Message::Progress {
                thread,
                instructions,
                accesses,
            } => self.client.progress(thread, instructions, accesses),
            Message::Words { thread, words } => {
                for &(word, change) in words {
                    self.client.word(*thread, word, change);
                }
            }
            &Message::Part {
                thread,
                block,
                upto,
            } => {
                let block = self.block(block)?;
                self.client.counted(thread, &block, upto as usize, 1);
            }
        }
        Ok(())
    }

    fn events(&self) -> Events {
        self.client.events()
    }

    fn has_enough(&self) -> bool {
        self.client.has_enough()
    }

    fn end(&mut self) -> Result<()> {
        for (thread, mut decoded) in std::mem::take(&mut self.threads) {
            self.last_record(thread, &mut decoded, None)?;
        }
        self.end_counting();
        self.client.end()
    }
}

impl<C: Client> Decode<C> {
    /// Will tell this client.
    pub fn new(client: C) -> Self {
        let events = client.events();
        Self {
            client,
            hears_notes: events.system_calls || events.wants_functions(),
            blocks: Vec::new(),
            threads: BTreeMap::new(),
            accesses: Vec::new(),
            counting: None,
            forgets: false,
            new: 0,
            gone: FxHashSet::default(),
        }
    }

    /// Will tell this client what a program does that runs.
    pub(crate) fn of_engine(client: C) -> Self {
        Self {
            forgets: true,
            ..Self::new(client)
        }
    }

    /// Forgets blocks of processes that have ended: else, a program that runs thousands of others would fill the
    /// memory.
    fn forget(&mut self) {
        self.new = 0;
        let threads = self.threads.values();
        let last: Vec<Option<u32>> = threads.map(|known| number_at(&known.last, 0)).collect();
        for id in std::mem::take(&mut self.gone) {
            if !last.contains(&Some(id)) {
                self.blocks[id as usize] = None;
            }
        }
        let blocks = self.blocks.iter().flatten();
        let gone = blocks.filter(|(block, _)| Arc::strong_count(block) == 1);
        self.gone = gone.map(|(block, _)| block.id).collect();
    }

    /// The client.
    pub fn into_client(self) -> C {
        self.client
    }

    fn new_block(&mut self, block: &Arc<Block>) -> Result<()> {
        let number = block.id as usize;
        if block.id >= MOST_BLOCKS {
            bail!("there are too many blocks");
        }
        if self.blocks.len() <= number {
            self.blocks.resize(number + 1, None);
        }
        // In another part of a run, the engine has it again.
        self.gone.remove(&block.id);
        if let Some((known, _)) = &mut self.blocks[number]
            && known.is_same(block)
        {
            *known = Arc::clone(block);
            self.client.block_again(block);
            return Ok(());
        }
        self.client.block(block);
        if let Some(counting) = &mut self.counting {
            counting.add(block);
        }
        self.blocks[number] = Some((Arc::clone(block), None));
        self.new += 1;
        if self.forgets && self.new >= MANY {
            self.forget();
        }
        Ok(())
    }

    fn block(&self, id: u32) -> Result<Arc<Block>> {
        let block = self.blocks.get(id as usize).and_then(Option::as_ref);
        block.map_or_else(|| Err(unknown(id)), |(block, _)| Ok(Arc::clone(block)))
    }

    fn records(&mut self, thread: u32, mut bytes: &[u8]) -> Result<()> {
        check_thread(thread)?;
        self.client.continues(thread);
        let new = || Box::new(Decoded::new());
        let mut decoded = self.threads.remove(&thread).unwrap_or_else(new);
        if !decoded.last.is_empty() {
            let upto = take_cut(&mut bytes);
            self.last_record(thread, &mut decoded, upto)?;
        }
        while let Some(id) = number_at(bytes, 0) {
            if id >= REGISTERS {
                let rest = after_mark(bytes, id)?;
                match id {
                    RECORDED.. => self.mark((thread, &mut decoded), id, bytes)?,
                    _ => {
                        let (words, _) = bytes[4..size_of_mark(id)].as_chunks::<8>();
                        for (slot, word) in decoded.slots.iter_mut().zip(words) {
                            *slot = u64::from_le_bytes(*word);
                        }
                    }
                }
                bytes = rest;
                continue;
            }
            let (block, plan) = known(&mut self.blocks, id, self.hears_notes)?;
            let record = bytes;
            bytes = after(record, id, plan)?;
            if bytes.is_empty() {
                decoded.last.extend(record);
                break;
            }
            let upto = take_cut(&mut bytes);
            tell(
                &mut self.client,
                (&mut self.accesses, &mut decoded),
                thread,
                block,
                (plan, record),
                upto,
            );
        }
        self.threads.insert(thread, decoded);
        Ok(())
    }

    /// A record that is not of a block.
    #[inline(always)]
    fn mark(
        &mut self,
        (thread, decoded): (u32, &mut Decoded),
        id: u32,
        record: &[u8],
    ) -> Result<()> {
        if id >= SIGNAL {
            let event = match id {
                // A cut is one of nothing.
                CUT.. => return Ok(()),
                EXECUTED => Event::Executed,
                _ => Event::Signal {
                    signal: id - SIGNAL,
                },
            };
            self.client.event(thread, &event);
            return Ok(());
        }
        let number = number_at(record, 4).unwrap_or(u32::MAX);
        let word = record.get(8..).and_then(|bytes| bytes.first_chunk());
        let word = word.map(|bytes| u64::from_le_bytes(*bytes));
        if id < FETCHED {
            match (number, word.unwrap_or_default()) {
                (OWN_NUMBERS.., word) => self.system_call((thread, decoded), number, word),
                (_, word) => self.client.recorded(thread, number, word),
            }
            return Ok(());
        }
        let Some(Some((block, _))) = self.blocks.get(number as usize) else {
            return Err(unknown(number));
        };
        let index = (id & 0xFFFF) as usize;
        if id < USED {
            self.client.fetched(thread, block, index);
        } else if let Some(operand) = block.operands.get(index)
            && let Some(address) = word
        {
            let access = Access {
                address,
                size: operand.size,
                insn: operand.insn,
                kind: operand.kind,
                offset: 0,
            };
            self.client.accessed(thread, block, &access);
        }
        Ok(())
    }

    /// A record about a system call, among those of passes.
    #[cold]
    fn system_call(&mut self, (thread, decoded): (u32, &mut Decoded), number: u32, word: u64) {
        if number == CALL_RESULT {
            if std::mem::take(&mut decoded.calls.in_kernel) {
                let event = Event::SystemCallEnded { result: word };
                self.client.event(thread, &event);
            }
            return;
        }
        if number == OWN_NUMBERS {
            decoded.begun.clear();
        }
        decoded.begun.push(word);
        if let &[number, ref arguments @ ..] = &decoded.begun[..]
            && let Ok(arguments) = arguments.try_into()
        {
            decoded.calls.in_kernel = true;
            self.client
                .event(thread, &Event::SystemCall { number, arguments });
        }
    }

    /// Tells the client what the last record of a thread says, which is known to be complete now. `upto`: how many
    /// instructions were executed, if not all.
    fn last_record(&mut self, thread: u32, decoded: &mut Decoded, upto: Option<u32>) -> Result<()> {
        let record = std::mem::take(&mut decoded.last);
        if let Some(id) = number_at(&record, 0) {
            self.count_special(thread, id, upto);
            let (block, plan) = known(&mut self.blocks, id, self.hears_notes)?;
            tell(
                &mut self.client,
                (&mut self.accesses, decoded),
                thread,
                block,
                (plan, &record),
                upto,
            );
        }
        Ok(())
    }
}

#[inline(always)]
fn tell<C: Client>(
    client: &mut C,
    (accesses, known): (&mut Vec<Access>, &mut Decoded),
    thread: u32,
    block: &Arc<Block>,
    (plan, record): (&Plan, &[u8]),
    upto: Option<u32>,
) {
    let all = block.insns.len();
    let upto = upto.map_or(all, |upto| all.min(upto as usize));
    if plan.is_plain {
        let leave = plan.begin(record, upto, &mut known.slots);
        let of_block = plan.before(leave, upto, &known.slots, accesses);
        client.visit(thread, block, upto, of_block);
        return plan.end(leave, &mut known.slots);
    }
    let accesses = plan.accesses(record, upto, &mut known.slots, accesses, |some| {
        if block.observed {
            client.executed(thread, block, 0, some);
        }
        some.clear();
    });
    if !plan.has_notes {
        client.executed(thread, block, upto, accesses);
    } else {
        executed_with_notes(client, known, thread, (block, upto), accesses);
    }
}

/// Clients have tables of threads by number, and a file may have any number.
fn check_thread(number: u32) -> Result<()> {
    /// The maximum number of threads.
    const MOST: u32 = 1 << 20;
    if number >= MOST {
        bail!("there are more than {MOST} threads");
    }
    Ok(())
}

#[cold]
fn executed_with_notes<C: Client>(
    client: &mut C,
    known: &mut Decoded,
    thread: u32,
    (block, upto): (&Arc<Block>, usize),
    accesses: &[Access],
) {
    let values = |note: &Note| &known.slots[usize::from(note.slot)..];
    let executed = |note: &&Note| usize::from(note.insn) < upto;
    let notes = || block.notes.iter().filter(executed);
    for note in notes() {
        match &note.what {
            Noted::AfterCall if std::mem::take(&mut known.calls.in_kernel) => {
                let result = values(note)[0];
                client.event(thread, &Event::SystemCallEnded { result });
            }
            Noted::Entry(function) => {
                let &[first, second, third, stack, ..] = values(note) else {
                    continue;
                };
                let event = Event::Called {
                    function,
                    arguments: [first, second, third],
                    stack,
                    depth: known.calls.enter(stack, function),
                };
                client.event(thread, &event);
            }
            _ => {}
        }
    }
    if block.observed {
        client.executed(thread, block, upto, accesses);
    }
    for note in notes() {
        let last = accesses.last().filter(|access| access.insn == note.insn);
        match note.what {
            Noted::Call => {
                if let Some(access) = last {
                    known.calls.call(access.address);
                }
            }
            Noted::Return => {
                if let Some(stack) = last.map(|access| access.address) {
                    let result = values(note)[0];
                    known.calls.leave(stack, result, |function, inner| {
                        let event = Event::Returned {
                            function,
                            result,
                            inner,
                        };
                        client.event(thread, &event);
                    });
                }
            }
            Noted::SystemCall => {
                let &[number, ref arguments @ ..] = values(note) else {
                    continue;
                };
                if let Some(arguments) = arguments.first_chunk() {
                    known.calls.in_kernel = true;
                    let arguments = *arguments;
                    client.event(thread, &Event::SystemCall { number, arguments });
                }
            }
            _ => {}
        }
    }
}

/// If a record of a cut is next, takes it: the number of instructions that were executed.
#[inline]
fn take_cut(bytes: &mut &[u8]) -> Option<u32> {
    let upto = number_at(bytes, 0)?.checked_sub(CUT)?;
    *bytes = bytes.get(4..).unwrap_or_default();
    Some(upto)
}

/// A block, and how records of it are read.
#[inline]
fn known(blocks: &mut [Option<Known>], id: u32, hears_notes: bool) -> Result<(&Arc<Block>, &Plan)> {
    match blocks.get_mut(id as usize) {
        Some(Some((block, plan))) => {
            let new = || Plan::of(block, hears_notes);
            Ok((block, plan.get_or_insert_with(new)))
        }
        _ => Err(unknown(id)),
    }
}

/// What comes after a record of a block, and after those of its lanes.
#[inline]
fn after<'b>(record: &'b [u8], id: u32, plan: &Plan) -> Result<&'b [u8]> {
    let Some(rest) = record.get(plan.size..) else {
        return Err(anyhow!("a record of block {id} is cut"));
    };
    Ok(match plan.is_expanded {
        true => &rest[lanes_size(rest)..],
        false => rest,
    })
}

/// What comes after a record that is not of a block.
#[inline]
fn after_mark(record: &[u8], id: u32) -> Result<&[u8]> {
    let size = size_of_mark(id);
    let rest = record.get(size..);
    rest.ok_or_else(|| anyhow!("a record of {size} bytes is cut"))
}

#[cold]
fn unknown(id: u32) -> anyhow::Error {
    anyhow!("there is a record of block {id}, which is not known")
}

fn number_at(bytes: &[u8], at: usize) -> Option<u32> {
    let bytes = bytes.get(at..at + 4)?;
    Some(u32::from_le_bytes(bytes.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Nothing;

    impl Client for Nothing {}

    #[test]
    fn threads_with_senseless_numbers_are_refused() {
        let begun = |thread, maker| Message::Thread {
            thread,
            process: 1,
            tid: 1,
            maker,
        };
        let hear = |message| Decode::new(Nothing).hear(&message);
        assert!(hear(begun(1000, Some(999))).is_ok());
        assert!(hear(begun(u32::MAX, None)).is_err());
        assert!(hear(begun(0, Some(u32::MAX))).is_err());
        let records = Message::Records {
            thread: u32::MAX,
            bytes: Vec::new(),
        };
        assert!(hear(records).is_err());
    }
}
