//! Counts the executions of blocks by their records: for clients that need nothing else of these, which are read
//! several times as fast.

use anyhow::{Result, anyhow};
use rustc_hash::FxHashMap;

use super::{
    CUT, Client, Decode, Decoded, REGISTERS, after, after_mark, check_thread, known, number_at,
    take_cut,
};
use crate::block::Block;

/// What is known of a block.
#[derive(Debug, Clone, Copy, Default)]
struct Counted {
    /// How often the thread has begun to execute it.
    begun: u64,
    /// Bytes of a record, if nothing but executions is to be known from it; else, zero.
    size: u32,
    /// Where its counters begin in [`Counting::parts`], if it has any.
    parts: Option<u32>,
    insns: u16,
    accesses: u16,
    is_observed: bool,
}

/// Counts what one thread does until another one's records come.
#[derive(Debug, Default)]
pub(super) struct Counting {
    /// By number.
    blocks: Vec<Counted>,
    /// Of each block that was left before its end: how often only its first instructions were executed, by their
    /// number.
    parts: Vec<u64>,
    /// Blocks that the thread has begun.
    begun: Vec<u32>,
    thread: Option<u32>,
    /// The block of the last record, if that may be cut yet.
    last: Option<u32>,
    /// The same of other threads. These blocks are not counted yet.
    waiting: FxHashMap<u32, u32>,
    /// About how many instructions and accesses are counted, but not told.
    sums: [u64; 2],
}

impl Counting {
    /// There may be records of this block. If a file has another one with its number, what was counted of that is
    /// forgotten.
    pub(super) fn add(&mut self, block: &Block) {
        let number = block.id as usize;
        if self.blocks.len() <= number {
            self.blocks.resize(number + 1, Counted::default());
        }
        if self.blocks[number].insns > 0 {
            self.begun.retain(|&begun| begun != block.id);
            self.last = self.last.filter(|&last| last != block.id);
            self.waiting.retain(|_, last| *last != block.id);
        }
        let all = block.insns.len();
        self.blocks[number] = Counted {
            begun: 0,
            size: match block.is_special() {
                true => 0,
                false => block.record_size() as u32,
            },
            parts: None,
            insns: all as u16,
            accesses: block.plain_accesses(all).count() as u16,
            is_observed: block.observed,
        };
    }

    /// Counts records at the beginning of these, up to one of which more is to be known. Returns the number of bytes.
    fn count(&mut self, records: &[u8]) -> usize {
        let mut at = 0;
        let [mut insns, mut accesses] = self.sums;
        while let Some(number) = number_at(records, at) {
            match self.blocks.get_mut(number as usize) {
                Some(block) if block.size > 0 => {
                    if block.begun == 0 {
                        self.begun.push(number);
                    }
                    block.begun += 1;
                    insns += u64::from(block.insns);
                    accesses += u64::from(block.accesses);
                    at += block.size as usize;
                    self.last = Some(number);
                }
                _ => match (number.checked_sub(CUT), self.last.take()) {
                    (Some(upto), Some(last)) => {
                        self.cut(last, upto);
                        at += 4;
                    }
                    _ => break,
                },
            }
        }
        self.sums = [insns, accesses];
        at
    }

    /// Of this block, only the first instructions were executed the last time.
    fn cut(&mut self, number: u32, upto: u32) {
        let block = &mut self.blocks[number as usize];
        if upto >= u32::from(block.insns) {
            return;
        }
        let first = *block.parts.get_or_insert_with(|| {
            let first = self.parts.len();
            self.parts.resize(first + usize::from(block.insns), 0);
            first as u32
        });
        self.parts[(first + upto) as usize] += 1;
    }

    /// A block has been executed of which more was to be known.
    fn add_special(&mut self, number: u32, upto: Option<u32>) {
        self.last = None;
        self.begin(number);
        self.sums[0] += u64::from(self.blocks[number as usize].insns);
        if let Some(upto) = upto {
            self.cut(number, upto);
        }
    }

    /// What comes next is of this thread. `tell` receives what was counted of another one: the thread, the number of a
    /// block, how many instructions of it, and how often.
    fn turn_to(&mut self, thread: Option<u32>, mut tell: impl FnMut(u32, u32, usize, u64)) {
        let Some(before) = self.thread else {
            self.thread = thread;
            return;
        };
        if self.thread == thread {
            return;
        }
        if let Some(last) = self.last.take() {
            self.blocks[last as usize].begun -= 1;
            self.waiting.insert(before, last);
        }
        self.tell(before, &mut tell);
        self.thread = thread;
        let last = thread.and_then(|thread| self.waiting.remove(&thread));
        if let Some(last) = last {
            self.begin(last);
        }
        self.last = last;
    }

    /// The thread begins to execute a block.
    fn begin(&mut self, number: u32) {
        let block = &mut self.blocks[number as usize];
        if block.begun == 0 {
            self.begun.push(number);
        }
        block.begun += 1;
    }

    /// Tells what was counted of a thread.
    fn tell(&mut self, thread: u32, tell: &mut impl FnMut(u32, u32, usize, u64)) {
        self.sums = [0; 2];
        for number in self.begun.drain(..) {
            let block = &mut self.blocks[number as usize];
            let mut whole = std::mem::take(&mut block.begun);
            let all = usize::from(block.insns);
            let first = block.parts.map_or(0, |first| first as usize);
            let parts = match block.parts {
                Some(_) => &mut self.parts[first..first + all],
                None => &mut [],
            };
            for (upto, times) in parts.iter_mut().enumerate() {
                let times = std::mem::take(times);
                whole -= times;
                if times > 0 && block.is_observed {
                    tell(thread, number, upto, times);
                }
            }
            if whole > 0 && block.is_observed {
                tell(thread, number, all, whole);
            }
        }
    }

    /// Tells what is left at the end.
    fn end(&mut self, mut tell: impl FnMut(u32, u32, usize, u64)) {
        self.turn_to(None, &mut tell);
        for (thread, last) in std::mem::take(&mut self.waiting) {
            self.begin(last);
            self.tell(thread, &mut tell);
        }
    }
}

impl<C: Client> Decode<C> {
    /// Will tell this client how often each block of a recording was executed, and the accesses of special blocks: what
    /// [`Observe::Counts`](super::Observe::Counts) tells about a program that runs.
    pub fn counting(client: C) -> Self {
        Self {
            counting: Some(Box::default()),
            ..Self::new(client)
        }
    }

    /// Records of a thread.
    pub(super) fn count(
        &mut self,
        counting: &mut Counting,
        thread: u32,
        mut bytes: &[u8],
    ) -> Result<()> {
        check_thread(thread)?;
        self.client.continues(thread);
        self.turn_to(counting, thread);
        let new = || Box::new(Decoded::new());
        let mut decoded = self.threads.remove(&thread).unwrap_or_else(new);
        if let Some(last) = number_at(&decoded.last, 0) {
            let upto = take_cut(&mut bytes);
            counting.add_special(last, upto);
            self.last_record(thread, &mut decoded, upto)?;
        }
        loop {
            let counted = counting.count(bytes);
            let rest = bytes.get(counted..);
            bytes = rest.ok_or_else(|| anyhow!("the last record is cut"))?;
            let Some(id) = number_at(bytes, 0) else {
                break;
            };
            if id >= REGISTERS {
                bytes = after_mark(bytes, id)?;
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
            counting.add_special(id, upto);
            super::tell(
                &mut self.client,
                (&mut self.accesses, &mut decoded),
                thread,
                block,
                (plan, record),
                upto,
            );
        }
        self.threads.insert(thread, decoded);
        let [insns, accesses] = counting.sums;
        self.client.progress(thread, insns, accesses);
        Ok(())
    }

    /// If executions are counted: a special block has been executed, of which a thread's last record is.
    pub(super) fn count_special(&mut self, thread: u32, number: u32, upto: Option<u32>) {
        if let Some(mut counting) = self.counting.take() {
            self.turn_to(&mut counting, thread);
            counting.add_special(number, upto);
            self.counting = Some(counting);
        }
    }

    fn turn_to(&mut self, counting: &mut Counting, thread: u32) {
        let blocks = &self.blocks;
        let client = &mut self.client;
        counting.turn_to(Some(thread), |thread, number, upto, times| {
            tell(client, blocks, (thread, number), upto, times);
        });
    }

    /// If executions are counted, tells what was not told yet.
    pub(super) fn end_counting(&mut self) {
        let Some(mut counting) = self.counting.take() else {
            return;
        };
        let blocks = &self.blocks;
        let client = &mut self.client;
        counting.end(|thread, number, upto, times| {
            tell(client, blocks, (thread, number), upto, times);
        });
    }
}

fn tell<C: Client>(
    client: &mut C,
    blocks: &[Option<super::Known>],
    (thread, number): (u32, u32),
    upto: usize,
    times: u64,
) {
    if let Some(Some((block, _))) = blocks.get(number as usize) {
        client.counted(thread, block, upto, times);
    }
}
