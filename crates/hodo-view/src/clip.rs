//! The range of time that is shown (`-r`): frames that reach beyond it are cut at its ends.

use hodo_trace::{CallStep, Calls, Entered, Frame, Left, Record};

use crate::source::Source;

/// The steps of one task within the part of the time that is shown.
#[derive(Debug)]
pub struct Clipped {
    calls: Calls,
    clip: Option<Clip>,
}

#[derive(Debug)]
struct Clip {
    /// The first and the last time that are shown, in units of the counter.
    from: u64,
    to: u64,
    /// The open frames. Of those that the task began with, the first `inherited` are still open.
    frames: Vec<Frame>,
    inherited: usize,
    begun: bool,
    over: bool,
}

impl Clipped {
    /// The steps of the task at an index of the trace's tasks.
    pub fn new(source: &Source, index: usize) -> Self {
        let frames = &source.inherited[index];
        let clip = source.is_ranged().then(|| Clip {
            from: source.scale.counter(source.range.0),
            to: match source.range.1.checked_add(1) {
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

    /// The open frames, outermost first.
    pub fn frames(&self) -> &[Frame] {
        self.calls.frames()
    }

    /// Takes the next record. Returns whether there may be more to see.
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

    /// The task has no more records; it ended at this time, in units of the counter. Returns when its open frames end.
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
        // Views know of the frames that a task began with, so they have to know when these are left.
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

    /// What is open when the part begins is entered there.
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

    /// What is open when the part ends is left there.
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
