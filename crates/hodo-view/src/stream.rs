//! The steps of one task or of all tasks, in the order of time, after the filters.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use hodo_trace::{CallStep, RecordKind, Records};

use crate::clip::Clipped;
use crate::filter::Gate;
use crate::source::Source;

/// The steps of one task that are shown.
#[derive(Debug)]
pub struct TaskStream<'a> {
    source: &'a Source,
    index: usize,
    records: Records<'a>,
    calls: Clipped,
    /// The time of the last record.
    last: u64,
    gate: Option<Gate>,
    queue: VecDeque<CallStep>,
    /// The payload of the last record, if that is a probe's hit that was not taken yet.
    hit: Option<Vec<u64>>,
    /// The payload of the last hit.
    payload: Vec<u64>,
    over: bool,
}

impl<'a> TaskStream<'a> {
    /// Creates the stream of the task with this index in the trace.
    pub fn new(source: &'a Source, index: usize) -> Self {
        let task = source.task(index);
        let frames = &source.inherited[index];
        let gate = (!source.table.is_open()).then(|| Gate::new(&source.table, frames));
        Self {
            source,
            index,
            records: source.trace.records(task),
            calls: Clipped::new(source, index),
            last: task.began,
            gate,
            queue: VecDeque::new(),
            hit: None,
            payload: Vec::new(),
            over: false,
        }
    }

    /// Lets the steps keep the depth that they have among all calls.
    pub fn keep_depth(mut self) -> Self {
        if let Some(gate) = &mut self.gate {
            gate.keep_depth();
        }
        self
    }

    /// Returns the payload of the hit that was the last step.
    pub fn payload(&self) -> &[u64] {
        &self.payload
    }

    #[inline]
    fn fill(&mut self) {
        let Self {
            source,
            calls,
            gate,
            queue,
            hit,
            ..
        } = self;
        let probed = !source.trace.probes.is_empty();
        while queue.is_empty() && !self.over {
            if let Some(record) = self.records.next() {
                if probed {
                    // No filter delays a hit. It is shown before the next record is read, or never.
                    let is_hit = record.kind == RecordKind::Entry && source.is_probe(record.id);
                    *hit = is_hit.then(|| words(self.records.payload()));
                }
                self.last = record.time;
                let goes_on = match gate {
                    None => calls.feed(record, |step| queue.push_back(step)),
                    Some(gate) => calls.feed(record, |step| {
                        gate.pass(&source.table, &source.scale, step, |s| queue.push_back(s));
                    }),
                };
                if goes_on {
                    continue;
                }
            } else {
                let ended = source.ended(self.index, self.last);
                match gate {
                    None => calls.finish(ended, |step| queue.push_back(step)),
                    Some(gate) => calls.finish(ended, |step| {
                        gate.pass(&source.table, &source.scale, step, |s| queue.push_back(s));
                    }),
                };
            }
            self.over = true;
            if let Some(gate) = gate {
                gate.finish(|step| queue.push_back(step));
            }
        }
    }

    /// Returns the next step without taking it.
    #[inline]
    pub fn peek(&mut self) -> Option<&CallStep> {
        self.fill();
        self.queue.front()
    }
}

impl Iterator for TaskStream<'_> {
    type Item = CallStep;

    #[inline]
    fn next(&mut self) -> Option<CallStep> {
        self.fill();
        let step = self.queue.pop_front()?;
        if let CallStep::Instant { .. } = step {
            self.payload = self.hit.take().unwrap_or_default();
        }
        Some(step)
    }
}

/// Returns the words of a payload.
pub(crate) fn words(payload: &[u8]) -> Vec<u64> {
    let word = |word: &[u8]| u64::from_le_bytes(word.try_into().unwrap_or_default());
    payload.chunks_exact(8).map(word).collect()
}

/// Returns the functions that were open when a task began and are shown, outermost first.
pub fn open_at_first(source: &Source, index: usize) -> Vec<u32> {
    let frames = &source.inherited[index];
    if frames.is_empty() {
        return Vec::new();
    }
    let gate = Gate::new(&source.table, frames);
    let frames = frames.iter().enumerate();
    frames
        .filter(|&(depth, _)| gate.is_shown(depth))
        .map(|(_, frame)| frame.id)
        .collect()
}

/// The steps of all tasks that are shown, in the order of time.
#[derive(Debug)]
pub struct Merged<'a> {
    source: &'a Source,
    /// The streams of tasks that have begun and are not over. A trace may have more tasks than there is memory for all
    /// their buffers.
    streams: Vec<Option<Box<TaskStream<'a>>>>,
    /// Tasks with steps, by the time of their next step, or of their first record if they have not begun.
    heap: BinaryHeap<Reverse<(u64, usize)>>,
    /// The current task, and the time until which its steps come next.
    current: Option<(usize, u64)>,
    /// By task that is over: the functions that were still open.
    left_open: Vec<Vec<u32>>,
}

impl<'a> Merged<'a> {
    /// Creates the stream of all tasks that are shown.
    pub fn new(source: &'a Source) -> Self {
        let heap = source
            .tasks
            .iter()
            .enumerate()
            .filter_map(|(at, &index)| {
                Some(Reverse((source.trace.begins(source.task(index))?, at)))
            })
            .collect();
        Self {
            source,
            streams: source.tasks.iter().map(|_| None).collect(),
            left_open: vec![Vec::new(); source.tasks.len()],
            heap,
            current: None,
        }
    }

    /// Returns the stream of a task, and begins it if necessary.
    #[inline]
    fn stream(&mut self, at: usize) -> &mut TaskStream<'a> {
        let source = self.source;
        self.streams[at].get_or_insert_with(|| Box::new(TaskStream::new(source, source.tasks[at])))
    }

    /// Finds the task with the next step.
    #[inline]
    fn settle(&mut self) -> Option<usize> {
        if let Some((at, until)) = self.current {
            match self.stream(at).peek().map(CallStep::time) {
                Some(time) if time <= until => return Some(at),
                next => self.change(at, next),
            }
        }
        self.choose()
    }

    /// Ends the current task's turn. Its next step is at this time.
    fn change(&mut self, at: usize, next: Option<u64>) {
        self.current = None;
        match next {
            Some(time) => self.heap.push(Reverse((time, at))),
            None => self.end(at),
        }
    }

    fn choose(&mut self) -> Option<usize> {
        loop {
            let Reverse((time, at)) = self.heap.pop()?;
            match self.stream(at).peek().map(CallStep::time) {
                // Its first records were not shown. Steps of other tasks may come before its first step.
                Some(next) if next > time => self.heap.push(Reverse((next, at))),
                Some(_) => {
                    let until = self
                        .heap
                        .peek()
                        .map_or(u64::MAX, |Reverse((time, _))| *time);
                    self.current = Some((at, until));
                    return Some(at);
                }
                None => self.end(at),
            }
        }
    }

    /// Returns the payload of the hit that was the last step of a task.
    pub fn payload(&mut self, at: usize) -> &[u64] {
        self.stream(at).payload()
    }

    /// After all steps have been taken, returns the functions that were open at the end of each task, outermost first.
    pub fn finish(self) -> Vec<Vec<u32>> {
        self.left_open
    }

    /// Ends a task that has no more steps.
    fn end(&mut self, at: usize) {
        if let Some(stream) = self.streams[at].take() {
            self.left_open[at] = stream.calls.frames().iter().map(|f| f.id).collect();
        }
    }

    /// Returns the next step and its task (an index into the source's tasks that are shown), without taking the step.
    #[inline]
    pub fn peek(&mut self) -> Option<(usize, CallStep)> {
        let at = self.settle()?;
        Some((at, *self.stream(at).peek()?))
    }
}

impl Iterator for Merged<'_> {
    type Item = (usize, CallStep);

    #[inline]
    fn next(&mut self) -> Option<(usize, CallStep)> {
        let at = self.settle()?;
        Some((at, self.stream(at).next()?))
    }
}
