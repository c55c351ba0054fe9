//! Where threads of the program record what they do, and how hodo takes it from there.
//!
//! The memory of a thread has its block, its counters, and a buffer for records with a page after it that cannot be
//! accessed. A thread that fills the buffer faults there; hodo empties it.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use rustc_hash::FxHashMap;

use hodo_ptrace::maps::Mapping;
use hodo_ptrace::{Memory, TargetAddr};

use crate::block::{Block, Lanes};
use crate::client::{
    CUT, EXECUTED, MOST_BLOCKS, Message, Observe, REGISTERS, SIGNAL, Sink, size_of_mark,
};
use crate::events::{Events, Watch};
use crate::expanding::Expanding;
use crate::image::{Image, Section};
use crate::native::block;
use crate::numbered::Numbered;
use crate::numbers::{Identify, Identity, Numbers};
use crate::passes::{Passes, Words};
use crate::profile::Profile;
use crate::recent::{MOST_ENTRIES, Recent};
use crate::translate::Insertion;

/// Bytes of a buffer.
const BUFFER: u64 = 1 << 20;
/// Bytes of the first records that are taken of a thread: what is executed often shows early.
const FIRST: u64 = 1 << 16;
/// The maximum number of blocks of a process, if they are counted.
const MOST_COUNTERS: usize = 1 << 21;
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
    /// How many bytes its records may take until hodo takes them. They are at the end of the buffer.
    room: u64,
    /// Bytes of them that hodo has taken already, because another thread has filled its buffer.
    taken: u64,
    /// When its progress was shown.
    shown: Option<Instant>,
    /// How often its full buffer was looked at, or could have been.
    filled: u64,
    /// The records that it writes can be read without those before.
    stands_alone: bool,
    /// How many instructions its last record has that was taken.
    last: i64,
    /// What was lost since records were told, if something was.
    losing: Option<Loss>,
}

/// Records that were lost.
#[derive(Debug, Clone, Copy, Default)]
struct Loss {
    instructions: i64,
    /// They began with this record of a cut, of a block that was told.
    cut: Option<u32>,
}

/// What stays of the records that a thread has written, because it is not complete.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rest {
    /// This number of bytes at the end.
    Bytes(u64),
    /// The last record of a block, and those of its lanes.
    Last,
}

impl Rest {
    /// Nothing.
    pub(crate) const NOTHING: Self = Self::Bytes(0);
}

/// How a thread began.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Beginning {
    /// As one of a process that is observed, or when hodo came.
    #[default]
    Thread,
    /// As the first one of a process that the thread with this number has made.
    Process(u32),
    /// It had this number, and has executed another program.
    Program(u32),
}

/// What the engine tells a client.
#[derive(Debug)]
pub(crate) struct Recorder {
    sink: Sink,
    observe: Observe,
    watch: Rc<Watch>,
    /// Those of blocks.
    numbers: Numbers,
    /// The first instruction of each block by number, and bytes of a record.
    records: Vec<(u64, usize)>,
    /// The instructions of each block, and its accesses, if executions are counted.
    sizes: Vec<[u32; 2]>,
    threads: u32,
    passes: Option<Rc<RefCell<Passes>>>,
    /// The passes only expand instructions that access lanes.
    expands: bool,
    /// Numbers of lines from which instructions are fetched.
    lines: FxHashMap<u64, u32>,
    /// Instructions that were executed, as far as that was taken from threads.
    executed: Cell<u64>,
    /// Those of records are counted, too.
    measures: bool,
    /// Blocks of images, which the client receives when they have been executed, by the numbers of the first ones.
    /// Several processes may have the same blocks.
    images: BTreeMap<u32, Vec<Weak<Numbered>>>,
}

impl Recorder {
    pub(crate) fn new(sink: Sink, observe: Observe, events: Events) -> Self {
        let passes: Option<Passes> =
            (events.expanded).then(|| Passes::new(vec![Box::new(Expanding)]));
        Self {
            sink,
            observe,
            measures: events.lossy,
            expands: passes.is_some(),
            passes: passes.map(|passes| Rc::new(RefCell::new(passes))),
            watch: Rc::new(Watch::new(events)),
            numbers: Numbers::default(),
            records: Vec::new(),
            sizes: Vec::new(),
            threads: 0,
            lines: FxHashMap::default(),
            executed: Cell::new(0),
            images: BTreeMap::new(),
        }
    }

    /// Counts executions, and tells nobody.
    pub(crate) fn counting() -> Self {
        Self::new(Sink::nowhere(), Observe::Counts, Events::default())
    }

    /// Has it know how many instructions are executed.
    pub(crate) fn measure(&mut self) {
        self.measures = true;
    }

    /// The program will be observed in parts. Clients know the blocks that it executes again.
    pub(crate) fn keep_numbers(&mut self) {
        self.numbers.keep();
    }

    /// Has passes change the code: nothing else is observed then.
    pub(crate) fn with_passes(sink: Sink, passes: Passes, events: Events) -> Self {
        Self {
            passes: Some(Rc::new(RefCell::new(passes))),
            expands: false,
            ..Self::new(sink, Observe::Counts, events)
        }
    }

    /// What changes the code.
    pub(crate) fn passes(&self) -> Option<Rc<RefCell<Passes>>> {
        self.passes.clone()
    }

    /// Whether passes see all code: nothing else is observed then.
    pub(crate) fn inserts(&self) -> bool {
        self.passes.is_some() && !self.expands
    }

    pub(crate) fn insertion(&self) -> Insertion {
        Insertion {
            counts: self.counts() && !self.inserts(),
            records: self.observe == Observe::Accesses,
            recent: self.recent(),
        }
    }

    /// Whether executions of blocks are counted.
    fn counts(&self) -> bool {
        self.observe != Observe::Accesses
    }

    /// What threads compare with the lines that they used last, if they do.
    fn recent(&self) -> Option<Recent> {
        match self.observe {
            Observe::Lines(recent) => Some(recent),
            _ => None,
        }
    }

    /// The number of a line from which instructions are fetched.
    pub(crate) fn line_number(&mut self, line: u64) -> u32 {
        let next = self.lines.len() as u32;
        *self.lines.entry(line).or_insert(next)
    }

    /// Has a thread begin as if it had not used any lines, if it compares anything with these: what others do comes
    /// between, or what it was about to record is not recorded.
    ///
    /// # Errors
    /// If the thread is gone.
    pub(crate) fn forget_lines(&self, memory: &Memory, block: u64) -> Result<()> {
        // No number of a line has these bytes.
        const NO_LINES: [u8; MOST_ENTRIES as usize * (4 + 8)] =
            [0xFF; MOST_ENTRIES as usize * (4 + 8)];
        if self.recent().is_none() {
            return Ok(());
        }
        memory.write(TargetAddr(block + u64::from(block::FETCHED)), &NO_LINES)?;
        Ok(())
    }

    /// The events that are wanted.
    pub(crate) fn watch(&self) -> Rc<Watch> {
        Rc::clone(&self.watch)
    }

    pub(crate) fn layout(&self) -> Layout {
        let counters = match self.counts() {
            true if self.inserts() => u64::from(Words::MOST) * 8,
            true => MOST_COUNTERS as u64 * 8,
            false => 0,
        };
        Layout {
            buffer: u64::from(block::COUNTERS) + counters,
        }
    }

    /// The number for a block that is translated.
    pub(crate) fn number(&mut self, identity: Identify<'_>) -> u32 {
        // Images may be made of blocks that are only counted, for which the numbers are in order.
        let is_kept = self.numbers.are_kept() && !self.only_counts();
        let identity = is_kept.then(identity).flatten();
        if let Some(known) = identity.and_then(|identity| self.numbers.get(identity)) {
            return known;
        }
        let new = self.numbers.take(1);
        if let Some(identity) = identity {
            self.numbers.set(identity, new);
        }
        new
    }

    /// What an image is in a mapping, and the number of its first block if that has one. `None`: no numbers are kept.
    pub(crate) fn known_image(
        &self,
        image: &Image,
        map: &Mapping,
    ) -> Option<(Identity, Option<u32>)> {
        let are_kept = self.numbers.are_kept();
        are_kept.then(|| {
            let blocks = image.list::<3>(Section::Blocks);
            let file = (&map.path, map.offset);
            let identity = Identity::of_image(image.source(), map.start, file, blocks);
            (identity, self.numbers.get(identity))
        })
    }

    /// Fails if there is not enough room for this number of new blocks of a process that has these ones.
    ///
    /// # Errors
    /// If so.
    pub(crate) fn check_room(&self, counters: &[u32], more: usize) -> Result<()> {
        if self.numbers.next() as usize + more > MOST_BLOCKS as usize {
            bail!("the program has more than {MOST_BLOCKS} blocks of code");
        }
        if self.counts() && counters.len() + more > MOST_COUNTERS {
            bail!("a process of the program has more than {MOST_COUNTERS} blocks of code");
        }
        Ok(())
    }

    /// Whether nobody needs to receive anything more.
    pub(crate) fn has_enough(&self) -> bool {
        self.sink.has_enough()
    }

    pub(crate) fn tell(&self, message: Message) {
        self.sink.send(message);
    }

    /// Whether executions of all blocks are counted, and nothing else is observed.
    pub(crate) fn only_counts(&self) -> bool {
        self.observe == Observe::Counts && self.passes.is_none() && !self.watch.chooses()
    }

    /// The number that the next block will have.
    pub(crate) fn next_number(&self) -> u32 {
        self.numbers.next()
    }

    /// Blocks of an image may be executed. Their numbers come next, or they had them before. The client receives most
    /// of them when they have been.
    pub(crate) fn add_image(&mut self, blocks: &Rc<Numbered>, identity: Option<Identity>) {
        if blocks.first == self.numbers.next() {
            self.numbers.take(blocks.len());
            let first = blocks.first as usize;
            self.records.resize(first, (0, 0));
            self.sizes.resize(first, [0; 2]);
            for (pc, [insns, accesses, _]) in blocks.sizes() {
                self.records.push((pc, 0));
                self.sizes.push([insns, accesses]);
            }
            if let Some(identity) = identity {
                self.numbers.set(identity, blocks.first);
            }
        }
        for (number, (_, [_, _, record])) in (0..).zip(blocks.sizes()) {
            // Others write records of these.
            if record != 0
                && let Some(block) = blocks.tell(number)
            {
                self.tell_block(block);
            }
        }
        let same = self.images.entry(blocks.first).or_default();
        same.retain(|image| image.strong_count() > 0);
        same.push(Rc::downgrade(blocks));
    }

    /// Tells the client of a block of an image that has been executed.
    fn need(&self, id: u32) {
        let Some((first, images)) = self.images.range(..=id).next_back() else {
            return;
        };
        if let Some(blocks) = images.iter().find_map(Weak::upgrade)
            && id - first < blocks.len()
            && let Some(block) = blocks.tell(id - first)
        {
            self.tell(Message::Block(block));
        }
    }

    /// A block will be executed for the first time.
    pub(crate) fn tell_block(&mut self, block: Arc<Block>) {
        let number = block.id as usize;
        if self.records.len() <= number {
            self.records.resize(number + 1, (0, 0));
        }
        if self.counts() || self.measures {
            let insns = block.insns.len();
            let accesses = block.plain_accesses(insns).count();
            self.sizes.resize(self.records.len(), [0; 2]);
            self.sizes[number] = [insns as u32, accesses as u32];
        }
        let record = &mut self.records[number];
        // A client may have forgotten what was translated before this.
        let is_known = record.1 != 0 && !self.numbers.are_kept();
        *record = (block.insns[0].pc, block.record_size());
        if !is_known {
            self.tell(Message::Block(block));
        }
    }

    /// What a thread has executed that has filled its buffer, if it is time to look at that again.
    pub(crate) fn profile(
        &self,
        recording: &mut Recording,
        memory: &Memory,
        block: u64,
    ) -> Option<Profile> {
        /// All full buffers are looked at in the beginning, and then one of as many.
        const ALL: u64 = 16;
        if self.observe != Observe::Accesses {
            return None;
        }
        recording.filled += 1;
        if recording.filled > ALL && !recording.filled.is_multiple_of(ALL) {
            return None;
        }
        let mut bytes = vec![0; FIRST as usize];
        let start = TargetAddr(self.start(recording, block));
        memory.read(start, &mut bytes).ok()?;
        let mut profile = Profile::default();
        for (_, pc) in self.records_of_blocks(&bytes) {
            *profile.entry(pc).or_default() += 1;
        }
        Some(profile)
    }

    /// Records: where each is in the bytes, and its number.
    fn numbers<'b>(&'b self, bytes: &'b [u8]) -> impl Iterator<Item = (usize, u32)> {
        let mut at = 0;
        std::iter::from_fn(move || {
            let number = u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?);
            let here = at;
            at += match number {
                REGISTERS.. => size_of_mark(number),
                _ => self.records.get(number as usize)?.1.max(4),
            };
            Some((here, number))
        })
    }

    /// Records of blocks: where each is in the bytes, and the first instruction of its block.
    fn records_of_blocks<'b>(&'b self, bytes: &'b [u8]) -> impl Iterator<Item = (usize, u64)> {
        let blocks = self
            .numbers(bytes)
            .filter(|&(_, number)| number < REGISTERS);
        blocks.map(|(at, number)| (at, self.records[number as usize].0))
    }

    /// Begins to observe a thread whose block is at `block`.
    ///
    /// # Errors
    /// If the thread is gone.
    pub(crate) fn begin(
        &mut self,
        (memory, counted): (&Memory, &[u32]),
        block: u64,
        (process, tid): (i32, i32),
        beginning: Beginning,
    ) -> Result<Recording> {
        if self.inserts() {
            let zeros = vec![0; counted.len() * 8];
            memory.write(TargetAddr(block + u64::from(block::COUNTERS)), &zeros)?;
        }
        let mut recording = Recording {
            thread: match beginning {
                Beginning::Program(number) => number,
                _ => self.threads,
            },
            before: self.counters(memory, counted, block)?,
            room: FIRST,
            taken: 0,
            shown: None,
            filled: 0,
            stands_alone: true,
            last: 0,
            losing: None,
        };
        let start = self.start(&recording, block);
        memory.write(position(block), &start.to_le_bytes())?;
        self.forget_lines(memory, block)?;
        if matches!(beginning, Beginning::Program(_)) {
            if self.insertion().records {
                self.append(&mut recording, memory, block, &EXECUTED.to_le_bytes())?;
            }
            return Ok(recording);
        }
        self.threads += 1;
        self.tell(Message::Thread {
            thread: recording.thread,
            process,
            tid,
            maker: match beginning {
                Beginning::Process(maker) => Some(maker),
                _ => None,
            },
        });
        Ok(recording)
    }

    /// Where the records of a thread begin.
    fn start(&self, recording: &Recording, block: u64) -> u64 {
        block + self.layout().accessible() - recording.room
    }

    fn counters(&self, memory: &Memory, counted: &[u32], block: u64) -> Result<Vec<u64>> {
        if !self.counts() {
            return Ok(Vec::new());
        }
        let mut bytes = vec![0; counted.len() * 8];
        memory.read(TargetAddr(block + u64::from(block::COUNTERS)), &mut bytes)?;
        let (words, _) = bytes.as_chunks::<8>();
        Ok(words.iter().map(|&word| u64::from_le_bytes(word)).collect())
    }

    /// Takes the records of a thread, except those that are to be kept.
    ///
    /// # Errors
    /// If the thread is gone.
    pub(crate) fn drain(
        &self,
        recording: &mut Recording,
        memory: &Memory,
        block: u64,
        kept: Rest,
    ) -> Result<()> {
        self.take_all(recording, memory, block, kept)?;
        recording.stands_alone = false;
        Ok(())
    }

    /// Takes the records of a thread that begins a block with these general registers.
    ///
    /// # Errors
    /// If the thread is gone.
    pub(crate) fn drain_before_block(
        &self,
        recording: &mut Recording,
        memory: &Memory,
        block: u64,
        registers: &[u64],
    ) -> Result<()> {
        self.take_all(recording, memory, block, Rest::NOTHING)?;
        let words = registers.iter().flat_map(|word| word.to_le_bytes());
        let mark: Vec<u8> = REGISTERS.to_le_bytes().into_iter().chain(words).collect();
        let start = self.start(recording, block);
        memory.write(TargetAddr(start), &mark)?;
        memory.write(position(block), &(start + mark.len() as u64).to_le_bytes())?;
        recording.stands_alone = true;
        Ok(())
    }

    fn take_all(
        &self,
        recording: &mut Recording,
        memory: &Memory,
        block: u64,
        kept: Rest,
    ) -> Result<()> {
        let start = self.start(recording, block);
        let used = memory.read_u64(position(block))?.saturating_sub(start);
        self.forget_lines(memory, block)?;
        if used == 0 || matches!(kept, Rest::Bytes(kept) if kept >= used) {
            return Ok(());
        }
        let taken = std::mem::take(&mut recording.taken);
        // What a record does not have yet may be after the end.
        let there = used.min(recording.room);
        let mut bytes = self.read(memory, (start + taken, start + there))?;
        bytes.resize((used - taken) as usize, 0);
        let kept = match kept {
            Rest::Bytes(kept) => kept,
            Rest::Last => {
                let last = self.records_of_blocks(&bytes).last();
                bytes.len() as u64 - last.map_or(0, |(at, _)| at as u64)
            }
        };
        let complete = used.saturating_sub(kept);
        let rest = bytes.split_off(complete.saturating_sub(taken) as usize);
        self.tell_records(recording, bytes);
        recording.room = (2 * recording.room).min(BUFFER);
        let start = self.start(recording, block);
        if !rest.is_empty() {
            memory.write(TargetAddr(start), &rest)?;
        }
        memory.write(position(block), &(start + kept).to_le_bytes())
    }

    /// Takes the records that a thread has completed, while it may be running.
    ///
    /// # Errors
    /// If the thread is gone.
    pub(crate) fn take_completed(
        &self,
        recording: &mut Recording,
        memory: &Memory,
        block: u64,
    ) -> Result<()> {
        let start = self.start(recording, block);
        let end = memory.read_u64(position(block))?;
        let first = start + recording.taken;
        if !(first..=start + recording.room).contains(&end) {
            return Ok(());
        }
        let mut bytes = self.read(memory, (first, end))?;
        // The last record may not have all of its values yet.
        let last = self.records_of_blocks(&bytes).last();
        let complete = last.map_or(0, |(at, _)| at);
        bytes.truncate(complete);
        recording.taken += complete as u64;
        self.tell_records(recording, bytes);
        // What comes after these needs them.
        recording.stands_alone &= complete == 0;
        Ok(())
    }

    /// Reads records.
    fn read(&self, memory: &Memory, (start, end): (u64, u64)) -> Result<Vec<u8>> {
        let mut bytes = self.sink.buffer();
        let there = end.saturating_sub(start) as usize;
        bytes.resize(there, 0);
        if memory.load(TargetAddr(start), &mut bytes) < there {
            memory.read(TargetAddr(start), &mut bytes)?;
        }
        Ok(bytes)
    }

    fn tell_records(&self, recording: &mut Recording, bytes: Vec<u8>) {
        if bytes.is_empty() {
            return;
        }
        let before = recording.last;
        let mut instructions = 0;
        if self.measures && !self.counts() {
            instructions = self.instructions_of(&bytes, &mut recording.last);
            let executed = self.executed.get().saturating_add_signed(instructions);
            self.executed.set(executed);
        }
        let thread = recording.thread;
        if !self.watch.may_lose() || !self.insertion().records {
            return self.tell(Message::Records { thread, bytes });
        }
        let lost = recording.losing;
        let first = bytes
            .first_chunk()
            .map(|number| u32::from_le_bytes(*number));
        let is_lost = match lost {
            Some(_) if !recording.stands_alone => true,
            _ => !self.sink.offer(messages_of(thread, lost), thread, bytes),
        };
        recording.losing = is_lost.then(|| match lost {
            Some(lost) => Loss {
                instructions: lost.instructions + instructions,
                ..lost
            },
            None => {
                let cut = first.filter(|&number| number >= CUT);
                // That is not of these records.
                let of_told = cut.map_or(0, |number| cut_off(before, number));
                Loss {
                    instructions: instructions + of_told,
                    cut,
                }
            }
        });
    }

    /// If records of a thread that ends were lost at last, says so.
    fn tell_loss(&self, recording: &mut Recording) {
        let lost = recording.losing.take();
        messages_of(recording.thread, lost)
            .into_iter()
            .for_each(|message| self.tell(message));
    }

    /// The number of instructions of these records, less those that are cut off from the record before. `last`: how
    /// many that has, and afterwards, how many the last one of these has.
    fn instructions_of(&self, bytes: &[u8], last: &mut i64) -> i64 {
        let mut sum = 0;
        for (_, number) in self.numbers(bytes) {
            match number {
                CUT.. => sum -= cut_off(std::mem::take(last), number),
                REGISTERS.. => {}
                _ => {
                    *last = i64::from(self.sizes[number as usize][0]);
                    sum += *last;
                }
            }
        }
        sum
    }

    /// The number of instructions that were executed, as far as that was taken from threads.
    pub(crate) fn executed(&self) -> u64 {
        self.executed.get()
    }

    /// About how much a thread has executed whose counters count these blocks: instructions, and accesses without those
    /// of special blocks.
    ///
    /// # Errors
    /// If the thread is gone.
    pub(crate) fn working(
        &self,
        recording: &Recording,
        (memory, counted): (&Memory, &[u32]),
        block: u64,
    ) -> Result<[u64; 2]> {
        let mut sums = [0u64; 2];
        let now = self.counters(memory, counted, block)?;
        let before = recording.before.iter().copied().chain(std::iter::repeat(0));
        for ((&id, now), before) in counted.iter().zip(now).zip(before) {
            let times = now
                .wrapping_sub(before)
                .cast_signed()
                .max(0)
                .cast_unsigned();
            let size = self.sizes.get(id as usize).unwrap_or(&[0; 2]);
            for (sum, &size) in sums.iter_mut().zip(size) {
                *sum += times * u64::from(size);
            }
        }
        Ok(sums)
    }

    /// Says from time to time how much a thread has executed whose counters count these blocks.
    ///
    /// # Errors
    /// If the thread is gone.
    pub(crate) fn show_progress(
        &self,
        recording: &mut Recording,
        (memory, counted): (&Memory, &[u32]),
        block: u64,
    ) -> Result<()> {
        /// It takes some time to read the counters.
        const INTERVAL: Duration = Duration::from_millis(500);
        let shown = recording.shown.get_or_insert_with(Instant::now);
        if !self.counts() || self.inserts() || shown.elapsed() < INTERVAL {
            return Ok(());
        }
        let [instructions, accesses] = self.working(recording, (memory, counted), block)?;
        recording.shown = Some(Instant::now());
        self.tell(Message::Progress {
            thread: recording.thread,
            instructions,
            accesses,
        });
        Ok(())
    }

    /// Takes everything from a thread, whose counters count these blocks, that ends, or whose program ends.
    ///
    /// # Errors
    /// If the thread is gone.
    pub(crate) fn take(
        &self,
        recording: &mut Recording,
        (memory, counted): (&Memory, &[u32]),
        block: u64,
    ) -> Result<()> {
        self.drain(recording, memory, block, Rest::NOTHING)?;
        self.tell_loss(recording);
        let mut now = self.counters(memory, counted, block)?;
        let mut before = std::mem::take(&mut recording.before);
        before.resize(now.len(), 0);
        if self.inserts() {
            let words = counted.iter().zip(now.iter().zip(before));
            let words = words.map(|(&word, (now, before))| (word, now.wrapping_sub(before)));
            self.tell(Message::Words {
                thread: recording.thread,
                words: words.filter(|&(_, change)| change != 0).collect(),
            });
            recording.before = now;
            return Ok(());
        }
        let mut counts = Vec::new();
        for ((now, before), &id) in now.iter_mut().zip(before).zip(counted) {
            let times = now.wrapping_sub(before);
            match times.cast_signed() {
                0 => {}
                // It was cut after it was known to have been executed. If it is executed again, the sum is right.
                ..0 => *now = before,
                _ => {
                    self.need(id);
                    counts.push((id, times));
                }
            }
        }
        let sizes = counts.iter().map(|&(id, times)| {
            let size = self.sizes.get(id as usize).unwrap_or(&[0; 2]);
            times * u64::from(size[0])
        });
        self.executed.set(self.executed.get() + sizes.sum::<u64>());
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
        recording: &mut Recording,
        memory: &Memory,
        block: u64,
        record: &[u8],
    ) -> Result<()> {
        let end = block + self.layout().accessible();
        let mut at = memory.read_u64(position(block))?;
        if at + record.len() as u64 > end {
            self.drain(recording, memory, block, Rest::NOTHING)?;
            at = memory.read_u64(position(block))?;
        }
        memory.write(TargetAddr(at), record)?;
        memory.write(position(block), &(at + record.len() as u64).to_le_bytes())
    }

    /// A thread gets a signal that it has a handler for.
    ///
    /// # Errors
    /// If the thread is gone.
    pub(crate) fn signal(
        &self,
        recording: &mut Recording,
        memory: &Memory,
        block: u64,
        signal: i32,
    ) -> Result<()> {
        if !self.insertion().records {
            return Ok(());
        }
        let record = SIGNAL + signal.cast_unsigned();
        self.append(recording, memory, block, &record.to_le_bytes())
    }

    /// A thread has executed only some lanes of a gather or scatter: its last record is to have these. `active`: those
    /// that are left, bit by number.
    ///
    /// # Errors
    /// If the thread is gone.
    pub(crate) fn keep_complete(
        &self,
        memory: &Memory,
        at: u64,
        (block, lanes): (&Block, Lanes),
        active: u64,
    ) -> Result<()> {
        let size = block.record_size();
        let record = TargetAddr(memory.read_u64(position(at))? - size as u64);
        let mut bytes = vec![0; size];
        memory.read(record, &mut bytes)?;
        lanes.keep_complete(&mut bytes, active);
        memory.write(record, &bytes)
    }

    /// Of the block that a thread has begun, it has executed only the first `upto` instructions.
    ///
    /// # Errors
    /// If the thread is gone.
    pub(crate) fn cut(
        &self,
        recording: &mut Recording,
        memory: &Memory,
        at: u64,
        cut: &Cut<'_>,
    ) -> Result<()> {
        if cut.counted && self.insertion().counts {
            let counter =
                TargetAddr(at + u64::from(block::COUNTERS) + 8 * u64::from(cut.block.counter));
            let count = memory.read_u64(counter)?.wrapping_sub(1);
            memory.write(counter, &count.to_le_bytes())?;
            if cut.upto > 0 {
                self.executed.set(self.executed.get() + u64::from(cut.upto));
                self.need(cut.block.id);
                self.tell(Message::Part {
                    thread: recording.thread,
                    block: cut.block.id,
                    upto: cut.upto,
                });
            }
        }
        if cut.recorded && (self.insertion().records || cut.block.is_special()) {
            let record = CUT + cut.upto;
            self.append(recording, memory, at, &record.to_le_bytes())?;
        }
        Ok(())
    }
}

/// How many instructions of a block were not executed, as a record of a cut says. `all`: how many the block has.
fn cut_off(all: i64, cut: u32) -> i64 {
    all - i64::from(cut - CUT).min(all)
}

/// The messages about records that were lost, if some were.
fn messages_of(thread: u32, lost: Option<Loss>) -> Vec<Message> {
    let Some(Loss { instructions, cut }) = lost else {
        return Vec::new();
    };
    let cut = cut.map(|number| Message::Records {
        thread,
        bytes: number.to_le_bytes().to_vec(),
    });
    let lost = Message::Lost {
        thread,
        instructions: instructions.max(0).cast_unsigned(),
    };
    cut.into_iter().chain([lost]).collect()
}

/// A block whose instructions were not all executed.
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
