//! The range of time that is shown (`-r`). Frames that reach beyond it are cut at its ends.

use hodo_trace::{CallStep, Calls, Entered, Frame, Left, Record};

use crate::source::Source;

/// The steps of one task within the shown range.
#[derive(Debug)]
pub struct Clipped {
    calls: Calls,
    clip: Option<Clip>,
}

#[derive(Debug)]
struct Clip {
    /// The first and the last time shown, in units of the counter.
    from: u64,
    to: u64,
    /// The open frames. The first `inherited` of them were already open when the task began.
    frames: Vec<Frame>,
    inherited: usize,
    begun: bool,
    over: bool,
}

impl Clipped {
    /// Creates the steps of the task with this index in the trace.
    pub fn new(source: &Source, index: usize) -> Self {
        let frames = &source.inherited[index];
        let clip = source.is_ranged().then(|| Clip {
            from: source.scale.counter(source.range.first),
            to: match source.range.last.checked_add(1) {
                Some(end) => source.scale.counter(end).saturating_sub(1),
                None => u64::MAX,
            },
            frames: frames.clone(),
            inherited: frames.len(),
            begun: false,
            over: false,
        });
        Self {
            calls: source.trace.calls(frames.clone()),
            clip,
        }
    }

    /// Returns the open frames, outermost first.
    pub fn frames(&self) -> &[Frame] {
        self.calls.frames()
    }

    /// Takes the next record. Returns whether the range may contain more.
    #[inline]
    pub fn feed(&mut self, record: Record, mut step: impl FnMut(CallStep)) -> bool {
        match &mut self.clip {
            None => self.calls.feed(record, step),
            Some(clip) => {
                self.calls.feed(record, |next| clip.pass(next, &mut step));
                return !clip.over;
            }
        }
        true
    }

    /// The task has no more records. It ended at `ended`, in units of the counter. Returns the time at which its open
    /// frames end.
    pub fn finish(&mut self, ended: u64, mut step: impl FnMut(CallStep)) -> u64 {
        let Some(clip) = &mut self.clip else {
            self.calls.finish(ended, step);
            return ended;
        };
        self.calls.finish(ended, |next| clip.pass(next, &mut step));
        if ended >= clip.from {
            clip.begin(&mut step);
        }
        if ended > clip.to {
            clip.end(&mut step);
        }
        ended.min(clip.to)
    }
}

impl Clip {
    fn pass(&mut self, step: CallStep, out: &mut impl FnMut(CallStep)) {
        if self.over {
            return;
        }
        let time = step.time();
        if time >= self.from {
            self.begin(out);
        }
        if time > self.to {
            self.end(out);
            return;
        }
        match step {
            CallStep::Enter { id, time, .. } => self.frames.push(Frame::called(id, 0, time)),
            CallStep::Leave { .. } => {
                self.frames.pop();
            }
            CallStep::Instant { .. } | CallStep::Lost { .. } => {}
        }
        // Views know the frames that a task began with, so they must see these frames end, even outside the range.
        let of_before = self.frames.len() < self.inherited;
        self.inherited = self.inherited.min(self.frames.len());
        match step {
            CallStep::Leave {
                depth,
                mut frame,
                time,
                left,
            } if self.begun || of_before => {
                if self.begun {
                    frame.start = frame.start.max(self.from);
                }
                out(CallStep::Leave {
                    depth,
                    frame,
                    time,
                    left,
                });
            }
            _ if self.begun => out(step),
            _ => {}
        }
    }

    /// Enters all frames that are open when the range begins.
    fn begin(&mut self, out: &mut impl FnMut(CallStep)) {
        if std::mem::replace(&mut self.begun, true) {
            return;
        }
        let frames = self.frames.iter_mut().enumerate().skip(self.inherited);
        for (depth, frame) in frames {
            frame.start = self.from;
            out(CallStep::Enter {
                depth,
                id: frame.id,
                time: self.from,
                entered: Entered::Before,
            });
        }
    }

    /// Leaves all frames that are open when the range ends.
    fn end(&mut self, out: &mut impl FnMut(CallStep)) {
        if std::mem::replace(&mut self.over, true) {
            return;
        }
        while let Some(frame) = self.frames.pop() {
            out(CallStep::Leave {
                depth: self.frames.len(),
                frame,
                time: self.to,
                left: Left::Later,
            });
        }
    }
}
