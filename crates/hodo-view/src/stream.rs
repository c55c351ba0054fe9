//! The steps of one task or of all, in order of time, after the filters.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use hodo_trace::{Calls, Records, Step};

use crate::filter::Gate;
use crate::source::Source;

/// The steps of one task that are shown.
#[derive(Debug)]
pub struct TaskStream<'a> {
    source: &'a Source,
    records: Records<'a>,
    calls: Calls,
    gate: Option<Gate>,
    queue: VecDeque<Step>,
    last: u64,
    ended: Option<u64>,
    over: bool,
}

impl<'a> TaskStream<'a> {
    /// The task at an index of the trace's tasks.
    pub fn new(source: &'a Source, index: usize) -> Self {
        let task = source.task(index);
        let frames = source.inherited[index].clone();
        let gate = (!source.table.is_open()).then(|| Gate::new(&source.table, &frames));
        Self {
            source,
            records: source.trace.records(task),
            calls: source.trace.calls(frames),
            gate,
            queue: VecDeque::new(),
            last: task.began,
            ended: task.ended,
            over: false,
        }
    }

    /// The frames that are open and shown, outermost first: function ids and the counter at their entry.
    pub fn open(&self) -> Vec<(u32, u64)> {
        let frames = self.calls.frames().iter();
        match &self.gate {
            None => frames.map(|f| (f.id, f.start)).collect(),
            Some(gate) => frames
                .zip(gate.shown())
                .filter(|(_, shown)| *shown)
                .map(|(f, _)| (f.id, f.start))
                .collect(),
        }
    }

    fn fill(&mut self) {
        let Self {
            source,
            calls,
            gate,
            queue,
            ..
        } = self;
        while queue.is_empty() && !self.over {
            if let Some(record) = self.records.next() {
                self.last = record.time;
                match gate {
                    None => calls.feed(record, |step| queue.push_back(step)),
                    Some(gate) => calls.feed(record, |step| {
                        gate.pass(&source.table, &source.scale, step, |s| queue.push_back(s));
                    }),
                }
            } else {
                self.over = true;
                if let Some(gate) = gate {
                    let end = self.ended.unwrap_or(self.last).max(self.last);
                    gate.finish(&source.table, &source.scale, end, |s| queue.push_back(s));
                }
            }
        }
    }

    /// The next step, left in place.
    pub fn peek(&mut self) -> Option<&Step> {
        self.fill();
        self.queue.front()
    }
}

impl Iterator for TaskStream<'_> {
    type Item = Step;

    fn next(&mut self) -> Option<Step> {
        self.fill();
        self.queue.pop_front()
    }
}

/// The steps of all tasks that are shown, in order of time.
#[derive(Debug)]
pub struct Merged<'a> {
    streams: Vec<TaskStream<'a>>,
    /// Tasks that have steps, by the time of their next.
    heap: BinaryHeap<Reverse<(u64, usize)>>,
    /// The task whose steps come next, until this time.
    current: Option<(usize, u64)>,
}

impl<'a> Merged<'a> {
    /// All tasks that are shown.
    pub fn new(source: &'a Source) -> Self {
        let mut streams: Vec<_> = source
            .tasks
            .iter()
            .map(|&index| TaskStream::new(source, index))
            .collect();
        let heap = streams
            .iter_mut()
            .enumerate()
            .filter_map(|(at, stream)| Some(Reverse((stream.peek()?.time(), at))))
            .collect();
        Self {
            streams,
            heap,
            current: None,
        }
    }

    /// Finds the task whose step is next.
    fn settle(&mut self) -> Option<usize> {
        if let Some((at, until)) = self.current {
            match self.streams[at].peek() {
                Some(step) if step.time() <= until => return Some(at),
                Some(step) => self.heap.push(Reverse((step.time(), at))),
                None => {}
            }
        }
        let Reverse((_, at)) = self.heap.pop()?;
        let until = self
            .heap
            .peek()
            .map_or(u64::MAX, |Reverse((time, _))| *time);
        self.current = Some((at, until));
        Some(at)
    }

    /// The next step and the task it belongs to (an index into the source's tasks that are shown), left in place.
    pub fn peek(&mut self) -> Option<(usize, Step)> {
        let at = self.settle()?;
        Some((at, *self.streams[at].peek()?))
    }

    /// The streams, by the same index.
    pub fn streams(&self) -> &[TaskStream<'a>] {
        &self.streams
    }
}

impl Iterator for Merged<'_> {
    type Item = (usize, Step);

    fn next(&mut self) -> Option<(usize, Step)> {
        let at = self.settle()?;
        Some((at, self.streams[at].next()?))
    }
}
