//! From records to calls: which frames are open, and when each was entered and left.

use std::sync::Arc;

use crate::records::{Record, RecordKind};

/// An open call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Frame {
    /// Function id.
    pub id: u32,
    /// The function whose exit closes this frame: itself, or the one whose frame it took over by a tail call.
    pub origin: u32,
    /// When it was entered, in units of the counter.
    pub start: u64,
    /// Bits of the stack pointer at its entry.
    pub sp: u16,
    /// It was entered in the parent, before the fork that made this task.
    pub inherited: bool,
}

impl Frame {
    /// The same frame in a process that was copied at `now`.
    #[must_use]
    pub fn inherited(&self, now: u64) -> Self {
        Self {
            start: now,
            inherited: true,
            ..*self
        }
    }
}

/// How a frame was left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Left {
    /// It returned.
    Returned,
    /// It called another function by a jump, which took over its frame.
    Tail,
    /// It was skipped: a frame below it returned first (longjmp, an exception, a thread's end in between).
    Unwound,
}

/// Something that happened in a task. `depth` counts from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// A function was entered.
    Enter {
        /// Frames below it.
        depth: usize,
        /// Function id.
        id: u32,
        /// When.
        time: u64,
    },
    /// A function was left.
    Leave {
        /// Frames below it.
        depth: usize,
        /// The frame.
        frame: Frame,
        /// When.
        time: u64,
        /// How.
        left: Left,
    },
    /// A function was entered whose exit is not recorded.
    Instant {
        /// Frames below it.
        depth: usize,
        /// Function id.
        id: u32,
        /// When.
        time: u64,
    },
    /// Records are missing here.
    Lost {
        /// How many.
        count: u64,
        /// When.
        time: u64,
    },
}

impl Step {
    /// When it happened, in units of the counter.
    #[must_use]
    pub fn time(&self) -> u64 {
        match *self {
            Self::Enter { time, .. }
            | Self::Leave { time, .. }
            | Self::Instant { time, .. }
            | Self::Lost { time, .. } => time,
        }
    }
}

/// The open frames of a task while its records are read.
#[derive(Debug, Clone)]
pub struct Calls {
    entry_only: Arc<[bool]>,
    frames: Vec<Frame>,
}

impl Calls {
    /// `entry_only`: by function id, whether exits are not recorded.
    #[must_use]
    pub fn new(entry_only: Arc<[bool]>, frames: Vec<Frame>) -> Self {
        Self { entry_only, frames }
    }

    /// The open frames, outermost first.
    #[must_use]
    pub fn frames(&self) -> &[Frame] {
        &self.frames
    }

    /// Takes the next record, and tells what it means.
    #[inline]
    pub fn feed(&mut self, record: Record, mut step: impl FnMut(Step)) {
        let Record { time, id, sp, kind } = record;
        match kind {
            RecordKind::Entry if self.entry_only.get(id as usize) == Some(&false) => {
                let depth = self.frames.len();
                self.frames.push(Frame {
                    id,
                    origin: id,
                    start: time,
                    sp,
                    inherited: false,
                });
                step(Step::Enter { depth, id, time });
            }
            RecordKind::Exit
                if let Some(top) = self.frames.last()
                    && top.origin == id
                    && top.sp == sp =>
            {
                // Not a copy of the frame: a processor waits where what was just written in parts is read as a whole.
                let frame = Frame {
                    id: top.id,
                    origin: id,
                    start: top.start,
                    sp,
                    inherited: top.inherited,
                };
                self.frames.pop();
                step(Step::Leave {
                    depth: self.frames.len(),
                    frame,
                    time,
                    left: Left::Returned,
                });
            }
            _ => self.feed_rare(record, &mut step),
        }
    }

    /// What is neither an entry nor the exit of the last entered.
    #[cold]
    fn feed_rare(&mut self, record: Record, step: &mut dyn FnMut(Step)) {
        let Record { time, id, sp, kind } = record;
        match kind {
            RecordKind::Entry | RecordKind::Tail => {
                let mut origin = id;
                if kind == RecordKind::Tail
                    && let Some(&frame) = self.frames.last()
                    && frame.sp == sp
                {
                    origin = frame.origin;
                    self.frames.pop();
                    step(Step::Leave {
                        depth: self.frames.len(),
                        frame,
                        time,
                        left: Left::Tail,
                    });
                }
                let depth = self.frames.len();
                if self.entry_only.get(id as usize).copied().unwrap_or(true) && origin == id {
                    step(Step::Instant { depth, id, time });
                    return;
                }
                self.frames.push(Frame {
                    id,
                    origin,
                    start: time,
                    sp,
                    inherited: false,
                });
                step(Step::Enter { depth, id, time });
            }
            RecordKind::Exit => {
                let closes = |frame: &Frame| frame.origin == id && frame.sp == sp;
                let Some(at) = self.frames.iter().rposition(closes) else {
                    return;
                };
                while self.frames.len() > at {
                    let depth = self.frames.len() - 1;
                    let frame = self.frames[depth];
                    self.frames.truncate(depth);
                    let left = if depth == at {
                        Left::Returned
                    } else {
                        Left::Unwound
                    };
                    step(Step::Leave {
                        depth,
                        frame,
                        time,
                        left,
                    });
                }
            }
            RecordKind::Lost(count) => step(Step::Lost { count, time }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(records: &[(RecordKind, u32, u16)]) -> (Vec<String>, usize) {
        let mut calls = Calls::new([false, false, false, false, false, true].into(), Vec::new());
        let mut out = Vec::new();
        for (time, &(kind, id, sp)) in (1..).zip(records) {
            let record = Record { time, id, sp, kind };
            calls.feed(record, |step| {
                out.push(match step {
                    Step::Enter { depth, id, .. } => format!("{depth}>{id}"),
                    Step::Leave {
                        depth, frame, left, ..
                    } => format!("{depth}<{}{left:?}", frame.id),
                    Step::Instant { depth, id, .. } => format!("{depth}={id}"),
                    Step::Lost { count, .. } => format!("lost {count}"),
                });
            });
        }
        (out, calls.frames().len())
    }

    const E: RecordKind = RecordKind::Entry;
    const X: RecordKind = RecordKind::Exit;
    const T: RecordKind = RecordKind::Tail;

    #[test]
    fn calls_nest() {
        let (out, open) = run(&[(E, 1, 9), (E, 2, 8), (X, 2, 8), (E, 5, 8), (X, 1, 9)]);
        assert_eq!(out, ["0>1", "1>2", "1<2Returned", "1=5", "0<1Returned"]);
        assert_eq!(open, 0);
    }

    #[test]
    fn a_tail_call_takes_the_frame_over() {
        // 1 calls 2, 2 jumps to 3, 3 to 4, 4 returns to 1: the exit is that of 2.
        let (out, open) = run(&[
            (E, 1, 9),
            (E, 2, 8),
            (T, 3, 8),
            (T, 4, 8),
            (X, 2, 8),
            (X, 1, 9),
        ]);
        assert_eq!(
            out,
            [
                "0>1",
                "1>2",
                "1<2Tail",
                "1>3",
                "1<3Tail",
                "1>4",
                "1<4Returned",
                "0<1Returned"
            ]
        );
        assert_eq!(open, 0);
    }

    #[test]
    fn an_exit_closes_what_was_jumped_over() {
        let (out, _) = run(&[(E, 1, 9), (E, 2, 8), (E, 3, 7), (X, 1, 9)]);
        assert_eq!(out[3..], ["2<3Unwound", "1<2Unwound", "0<1Returned"]);
    }

    #[test]
    fn a_million_tail_calls_stay_one_frame() {
        let mut records = vec![(E, 1, 9)];
        records.extend((0..1_000_000).map(|i| (T, 2 + i % 2, 9)));
        assert_eq!(run(&records).1, 1);
    }

    #[test]
    fn an_exit_without_its_entry_changes_nothing() {
        let (out, open) = run(&[(X, 1, 9), (E, 2, 8), (X, 3, 7)]);
        assert_eq!(out, ["0>2"]);
        assert_eq!(open, 1);
    }
}
