//! Calls and times by function, for `report`.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use hodo_trace::{CallStep, Entered, Frame};

use crate::clip::Clipped;
use crate::costs::{Cost, Costs, parts, whole};
use crate::filter::{Gate, Verdict};
use crate::source::Source;

/// Minimum, maximum and sum of durations, in [`parts`] of a unit of the counter.
#[derive(Debug, Clone, Copy)]
pub struct Times {
    /// The sum; of recursive calls, only the outermost counts.
    pub sum: i64,
    /// The sum, including every call of a recursion.
    pub all: i64,
    /// The shortest.
    pub min: i64,
    /// The longest.
    pub max: i64,
}

impl Default for Times {
    fn default() -> Self {
        Self {
            sum: 0,
            all: 0,
            min: i64::MAX,
            max: i64::MIN,
        }
    }
}

impl Times {
    #[inline]
    fn add(&mut self, value: i64, outermost: bool) {
        self.all = self.all.saturating_add(value);
        self.sum = self.sum.saturating_add(if outermost { value } else { 0 });
        self.min = self.min.min(value);
        self.max = self.max.max(value);
    }

    /// Adds other durations.
    pub fn join(&mut self, other: &Self) {
        self.sum = self.sum.saturating_add(other.sum);
        self.all = self.all.saturating_add(other.all);
        self.min = self.min.min(other.min);
        self.max = self.max.max(other.max);
    }
}

/// What is known about a function.
#[derive(Debug, Clone, Copy, Default)]
pub struct Entry {
    /// Its calls.
    pub calls: u64,
    /// Times including its callees.
    pub total: Times,
    /// Times without its callees.
    pub own: Times,
    /// The number of open frames of this function in the task that is being read.
    open: u32,
    /// The time of its calls inside its frame that was entered last: the outermost ones of those that count.
    inside: i64,
}

/// Calls and times of all functions.
#[derive(Debug, Clone, Default)]
pub struct Tally {
    /// By function id.
    pub functions: Vec<Entry>,
    /// Records that were lost.
    pub lost: u64,
}

/// An open frame.
#[derive(Debug, Clone, Copy)]
struct Open {
    id: u32,
    /// What the filters decide.
    verdict: Verdict,
    /// Whether it was counted before its stack was left.
    again: bool,
    start: u64,
    /// The time that its callees took, and what it cost to record them before and after that time.
    children: i64,
    /// What it cost to record its callees, and everything they called.
    spent: i64,
    /// What it cost to record its own call.
    cost: Cost,
    /// The time of earlier calls of the same function, in the frame of that function that contains this one.
    beside: i64,
}

impl Tally {
    fn new(functions: usize) -> Self {
        Self {
            functions: vec![Entry::default(); functions],
            lost: 0,
        }
    }

    fn join(&mut self, other: &Self) {
        self.lost = self.lost.saturating_add(other.lost);
        for (a, b) in self.functions.iter_mut().zip(&other.functions) {
            a.calls += b.calls;
            a.total.join(&b.total);
            a.own.join(&b.own);
        }
    }

    #[inline]
    fn enter(
        &mut self,
        stack: &mut Vec<Open>,
        (id, cost): (u32, Cost),
        (verdict, again): (Verdict, bool),
        start: u64,
    ) {
        let mut beside = 0;
        if verdict == Verdict::Shown
            && let Some(entry) = self.functions.get_mut(id as usize)
        {
            entry.open += 1;
            beside = std::mem::take(&mut entry.inside);
        }
        stack.push(Open {
            id,
            verdict,
            again,
            start,
            children: 0,
            spent: 0,
            cost,
            beside,
        });
    }

    /// Leaves the innermost call. `counts` decides, by its beginning and end, whether it is shown.
    #[inline(always)]
    #[expect(
        clippy::inline_always,
        reason = "it is half of the work for each record, and is called from one place in each loop"
    )]
    fn leave(&mut self, stack: &mut Vec<Open>, time: u64, counts: impl Fn(u64, u64) -> Verdict) {
        let Some(frame) = stack.pop() else { return };
        // Numbers overflow only in damaged traces.
        let raw = parts(time.saturating_sub(frame.start));
        let spent = frame.spent.wrapping_add(frame.cost.inside);
        let took = raw.wrapping_sub(spent);
        let mut verdict = frame.verdict;
        if verdict == Verdict::Shown
            && let Some(entry) = self.functions.get_mut(frame.id as usize)
        {
            entry.open = entry.open.saturating_sub(1);
            verdict = counts(frame.start, time);
            let mut inside = std::mem::take(&mut entry.inside);
            if verdict == Verdict::Shown {
                entry.calls += u64::from(!frame.again);
                // In a recursion, the time of the outermost call that counts includes the others.
                inside = took;
                entry.total.add(took, false);
                let own = raw.wrapping_sub(frame.children);
                entry.own.add(own.wrapping_sub(frame.cost.inside), true);
            }
            match entry.open {
                0 => entry.total.sum = entry.total.sum.saturating_add(inside),
                _ => entry.inside = frame.beside.wrapping_add(inside),
            }
        }
        if let Some(parent) = stack.last_mut() {
            let outside = frame.cost.outside;
            parent.spent = parent.spent.wrapping_add(spent).wrapping_add(outside);
            let children = match verdict {
                Verdict::Merged => frame.children.wrapping_add(frame.cost.inside),
                Verdict::Shown | Verdict::Hidden => raw,
            };
            parent.children = parent.children.wrapping_add(children).wrapping_add(outside);
        }
    }
}

/// Counts one task. No frame is open when it returns.
fn count(source: &Source, index: usize, tally: &mut Tally) {
    // Calls that were made in the parent are not counted again.
    let inherited = source.inherited[index].iter().map(|frame: &Frame| Open {
        id: frame.id,
        verdict: Verdict::Hidden,
        again: false,
        start: frame.start,
        children: 0,
        spent: 0,
        cost: Cost::default(),
        beside: 0,
    });
    let counting = Counting {
        source,
        index,
        costs: source.costs(),
        tally,
        stack: inherited.collect(),
    };
    match source.table.is_open() && !source.is_ranged() {
        true => counting.all(),
        false => counting.filtered(),
    }
}

/// A task whose calls are being counted.
struct Counting<'c> {
    source: &'c Source,
    index: usize,
    costs: &'c Costs,
    tally: &'c mut Tally,
    stack: Vec<Open>,
}

impl Counting<'_> {
    /// Returns what recording a call cost.
    #[inline]
    fn cost(&self, entered: Entered) -> Cost {
        match entered {
            Entered::Jumped => self.costs.jump,
            Entered::Called | Entered::Before => self.costs.call,
            Entered::Resumed => Cost::default(),
        }
    }

    #[inline]
    fn enter(&mut self, call: (u32, Cost), how: (Verdict, bool), time: u64) {
        self.tally.enter(&mut self.stack, call, how, time);
    }

    #[inline]
    fn leave(&mut self, time: u64, counts: impl Fn(u64, u64) -> Verdict) {
        self.tally.leave(&mut self.stack, time, counts);
    }

    /// Counts a call that takes no time.
    #[cold]
    fn instant(
        &mut self,
        (id, time): (u32, u64),
        verdict: Verdict,
        counts: impl Fn(u64, u64) -> Verdict,
    ) {
        self.enter((id, self.costs.entry), (verdict, false), time);
        self.leave(time, counts);
    }

    /// Ends the task: leaves all open calls.
    #[cold]
    fn end(&mut self, end: u64, counts: impl Fn(u64, u64) -> Verdict) {
        while !self.stack.is_empty() {
            self.leave(end, &counts);
        }
    }

    fn lose(&mut self, count: u64) {
        self.tally.lost = self.tally.lost.saturating_add(count);
    }

    /// Counts all calls.
    fn all(mut self) {
        let source = self.source;
        let task = source.task(self.index);
        let mut calls = source.trace.calls(source.inherited[self.index].clone());
        let mut last = task.began;
        let all = |_, _| Verdict::Shown;
        for record in source.trace.records(task) {
            last = record.time;
            calls.feed(record, |step| match step {
                CallStep::Enter {
                    id, time, entered, ..
                } => {
                    let again = entered == Entered::Resumed;
                    self.enter((id, self.cost(entered)), (Verdict::Shown, again), time);
                }
                CallStep::Leave { time, .. } => self.leave(time, all),
                CallStep::Instant { id, .. } if source.is_probe(id) => {}
                CallStep::Instant { id, time, .. } => {
                    self.instant((id, time), Verdict::Shown, all);
                }
                CallStep::Lost { count, .. } => self.lose(count),
            });
        }
        self.end(source.ended(self.index, last), all);
    }

    /// Counts the calls that the filters show and that lie in the range.
    fn filtered(mut self) {
        let (source, index) = (self.source, self.index);
        let task = source.task(index);
        let counts = |start: u64, end: u64| {
            let least = source.table.time(start, end);
            let (start, end) = (
                source.scale.nanoseconds(start),
                source.scale.nanoseconds(end),
            );
            if start < source.range.first || end > source.range.last {
                Verdict::Hidden
            } else if end.saturating_sub(start) < least {
                Verdict::Merged
            } else {
                Verdict::Shown
            }
        };
        let mut gate = Gate::new(&source.table, &source.inherited[index]);
        let mut calls = Clipped::new(source, index);
        let mut last = task.began;
        let mut each = |step: CallStep| match step {
            CallStep::Enter {
                id, time, entered, ..
            } => {
                let verdict = gate.enter(&source.table, id, time);
                let again = entered == Entered::Resumed;
                self.enter((id, self.cost(entered)), (verdict, again), time);
            }
            CallStep::Leave { time, .. } => {
                gate.leave();
                self.leave(time, counts);
            }
            CallStep::Instant { id, .. } if source.is_probe(id) => {}
            CallStep::Instant { id, time, .. } => {
                let verdict = gate.enter(&source.table, id, time);
                gate.leave();
                self.instant((id, time), verdict, counts);
            }
            CallStep::Lost { count, .. } => self.lose(count),
        };
        for record in source.trace.records(task) {
            last = record.time;
            if !calls.feed(record, &mut each) {
                break;
            }
        }
        let end = calls.finish(source.ended(index, last), &mut each);
        self.end(end, counts);
    }
}

/// Calls and times of a task.
#[derive(Debug, Clone, Copy, Default)]
pub struct Summary {
    /// The number of calls.
    pub calls: u64,
    /// The time in its functions, in units of the counter.
    pub time: u64,
}

/// Counts all tasks that are shown, on all processors. After each task, `each` gets the task's index among those that
/// are shown, and what the counting thread has counted so far.
fn on_all(source: &Source, each: impl Fn(usize, &mut Tally) + Sync) -> Tally {
    let size = source.trace.functions.len();
    let next = AtomicUsize::new(0);
    let all = Mutex::new(Tally::new(size));
    // Long tasks come first, so that no thread is still busy with one at the end.
    let mut order: Vec<_> = (0..source.tasks.len()).collect();
    order.sort_by_key(|&at| std::cmp::Reverse(source.task(source.tasks[at]).chunks.len()));
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads.min(source.tasks.len()) {
            scope.spawn(|| {
                let mut tally = Tally::new(size);
                while let Some(&at) = order.get(next.fetch_add(1, Ordering::Relaxed)) {
                    count(source, source.tasks[at], &mut tally);
                    each(at, &mut tally);
                }
                all.lock().expect("no panics").join(&tally);
            });
        }
    });
    all.into_inner().expect("no panics")
}

/// Returns calls and times by function.
pub fn by_function(source: &Source) -> Tally {
    on_all(source, |_, _| ())
}

/// Returns calls and times by task, in the order of the tasks that are shown.
pub fn by_task(source: &Source) -> Vec<Summary> {
    let summaries = Mutex::new(vec![Summary::default(); source.tasks.len()]);
    on_all(source, |at, tally| {
        let mut summary = Summary::default();
        let mut time = 0i64;
        for entry in &mut tally.functions {
            summary.calls += entry.calls;
            time = time.saturating_add(entry.own.sum);
            *entry = Entry::default();
        }
        summary.time = whole(time);
        summaries.lock().expect("no panics")[at] = summary;
    });
    summaries.into_inner().expect("no panics")
}
