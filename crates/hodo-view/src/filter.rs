//! Which calls are shown: filters by name, depth and duration, as in uftrace.
//!
//! A [`Table`] holds the decisions for each function, made once; a [`Gate`] follows one task. A new kind of decision (a
//! trigger) takes a bit in [`Table`] and state in [`Gate`].

use std::collections::VecDeque;
use std::sync::Arc;

use anyhow::Result;
use hodo_trace::Scale;
use hodo_trace::{CallStep, Frame, Function, FunctionKind, Trace};
use regex::Regex;

use crate::naming::Names;
use crate::pattern::{Match, compile};

const FILTER: u8 = 1;
const NOTRACE: u8 = 2;
const HIDDEN: u8 = 4;
const SMALL: u8 = 8;
const RESTART: u8 = 16;

/// The filters that the user asked for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Filters {
    /// `-F` (true): only these functions, and what they call. `-N` (false): not these functions, nor what they call.
    /// Each comes with how it is matched. If several filters of one list match a function, the last one decides. A list
    /// cannot bring back what another one leaves out. Only the last list with a `-F` selects what is let in.
    pub lists: Vec<Vec<(bool, String, Match)>>,
    /// `-H`: hide these functions.
    pub hide: Vec<(String, Match)>,
    /// `-D`: at most this deep, counted from the outermost function shown.
    pub depth: Option<u32>,
    /// `-t`: only calls that take at least this long, in nanoseconds.
    pub time: Option<u64>,
    /// `-Z`: only functions of at least this size, in bytes.
    pub size: u64,
    /// `--no-libcall`: no calls into shared libraries.
    pub no_libcall: bool,
}

/// The module of calls into libraries, as uftrace names it: `puts@plt`.
const PLT: &str = "plt";

struct Rule {
    name: Regex,
    module: Option<String>,
}

/// # Errors
/// If the pattern is malformed.
pub fn check_pattern(text: &str, kind: Match) -> Result<()> {
    Rule::new(text, kind).map(drop)
}

impl Rule {
    fn new(text: &str, kind: Match) -> Result<Self> {
        let (name, module) = match text.rsplit_once('@') {
            Some((name, module)) => (name, Some(module.to_owned())),
            None => (text, None),
        };
        Ok(Self {
            name: compile(name, kind)?,
            module,
        })
    }

    /// Returns whether a function matches. `stub`: it is a call into a library.
    fn matches(&self, names: [&str; 2], module: &str, stub: bool) -> bool {
        let module = self.module.as_ref().is_none_or(|wanted| {
            stub && wanted == PLT
                || module
                    .strip_prefix(wanted.as_str())
                    .is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '-']))
        });
        module && names.iter().any(|name| self.name.is_match(name))
    }
}

/// What the filters decide for each function.
#[derive(Debug, Clone, Default)]
pub struct Table {
    bits: Vec<u8>,
    filtered: bool,
    depth: u32,
    time: u64,
    /// Filters that match no function.
    pub useless: Vec<String>,
    /// None of the filters that were asked for to choose functions matches one: nothing is left to show.
    pub chooses_nothing: bool,
    /// Decisions that apply from a time on, in units of the counter: the filters were changed during the recording.
    later: Vec<(u64, Arc<Table>)>,
}

impl Table {
    /// Makes the decisions. `names` are the functions' displayed names, by id.
    ///
    /// # Errors
    /// If a pattern is malformed.
    pub fn new(trace: &Trace, names: &Names, filters: &Filters) -> Result<Self> {
        let mut bits = vec![0u8; trace.functions.len()];
        let mut useless = Vec::new();
        let mut chooses_nothing = false;
        let of = |text: &str, kind: Match| -> Result<Vec<usize>> {
            let rule = Rule::new(text, kind)?;
            let all = trace.functions.iter().enumerate();
            let is = |id: usize, function: &Function| {
                let module = trace.modules[function.module].name();
                let name = names.of(trace, id as u32).unwrap_or_default();
                rule.matches([name, &function.name], module, function.kind.is_library())
            };
            let found = all.filter(|(id, function)| function.as_ref().is_some_and(|f| is(*id, f)));
            Ok(found.map(|(id, _)| id).collect())
        };
        for (index, list) in filters.lists.iter().enumerate() {
            let is_asked = index + 1 == filters.lists.len();
            let mut own = vec![0u8; bits.len()];
            // Filters that choose functions, and those of them that match one.
            let (mut choosing, mut matching) = (0, 0);
            for (filter, text, kind) in list {
                let (option, bit) = if *filter {
                    ("-F", FILTER)
                } else {
                    ("-N", NOTRACE)
                };
                let found = of(text, *kind)?;
                choosing += usize::from(*filter);
                matching += usize::from(*filter && !found.is_empty());
                // A function that the recording left out need not be in the trace.
                if found.is_empty() && (*filter || is_asked) {
                    useless.push(format!("{option} {text}"));
                }
                for id in found {
                    own[id] = bit;
                }
            }
            chooses_nothing |= is_asked && choosing > 0 && matching == 0;
            if list.iter().any(|rule| rule.0) {
                bits.iter_mut().for_each(|bits| *bits &= !FILTER);
            }
            bits.iter_mut()
                .zip(own)
                .for_each(|(bits, own)| *bits |= own);
        }
        for (text, kind) in &filters.hide {
            let found = of(text, *kind)?;
            if found.is_empty() {
                useless.push(format!("-H {text}"));
            }
            for id in found {
                bits[id] |= HIDDEN;
            }
        }
        for (bits, function) in bits.iter_mut().zip(&trace.functions) {
            let Some(function) = function else { continue };
            let is_library = function.kind.is_library();
            // These have no size: they are calls of functions elsewhere, or single instructions.
            let is_unsized =
                function.size == 0 && (is_library || function.kind == FunctionKind::Probe);
            if function.size < filters.size && !is_unsized {
                *bits |= SMALL;
            }
            if filters.no_libcall && is_library {
                *bits |= HIDDEN;
            }
        }
        Ok(Self {
            bits,
            filtered: filters.lists.iter().flatten().any(|rule| rule.0),
            depth: filters.depth.unwrap_or(u32::MAX),
            time: filters.time.unwrap_or(0),
            useless,
            chooses_nothing,
            later: Vec::new(),
        })
    }

    /// Applies these filters from a time on, in units of the counter. Calls must be in the order of time.
    ///
    /// # Errors
    /// If a pattern is malformed.
    pub fn change_at(
        &mut self,
        at: u64,
        trace: &Trace,
        names: &Names,
        filters: &Filters,
    ) -> Result<()> {
        self.later
            .push((at, Arc::new(Self::new(trace, names, filters)?)));
        Ok(())
    }

    /// From a time on, applies the filters of the change with this number again.
    pub fn again_at(&mut self, at: u64, change: usize) {
        let table = Arc::clone(&self.later[change].1);
        self.later.push((at, table));
    }

    /// Returns the decisions after this many changes.
    fn after(&self, changes: usize) -> &Self {
        match changes.checked_sub(1).and_then(|last| self.later.get(last)) {
            Some((_, table)) => table,
            None => self,
        }
    }

    /// Counts the depth (`-D`) from these functions on.
    pub fn restart_at(&mut self, is: impl Fn(u32) -> bool) {
        self.restart(&is);
        for (_, table) in &mut self.later {
            Arc::make_mut(table).restart(&is);
        }
    }

    fn restart(&mut self, is: &impl Fn(u32) -> bool) {
        if self.depth < u32::MAX {
            for (bits, id) in self.bits.iter_mut().zip(0..) {
                *bits |= if is(id) { RESTART } else { 0 };
            }
        }
    }

    /// Returns the `-t`, in nanoseconds, for a call between two times in units of the counter. 0 means none.
    pub fn time(&self, start: u64, end: u64) -> u64 {
        let at = |time: u64| {
            let changes = self.later.partition_point(|change| change.0 <= time);
            self.after(changes).time
        };
        match self.later.is_empty() {
            true => self.time,
            false => at(start).min(at(end)),
        }
    }

    /// Returns whether a `-t` applies at any time.
    pub fn has_time(&self) -> bool {
        self.time > 0 || self.later.iter().any(|(_, table)| table.time > 0)
    }

    /// Returns whether everything passes.
    pub fn is_open(&self) -> bool {
        !self.filtered
            && self.depth == u32::MAX
            && self.time == 0
            && self.bits.iter().all(|&bits| bits == 0)
            && self.later.is_empty()
    }
}

/// What the filters decide for a call. They leave `-t` to code that knows how long the call took.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It is shown.
    Shown,
    /// It is not shown. Its time is attributed to no function.
    Hidden,
    /// It is too small to be shown. Its time counts for its caller.
    Merged,
}

#[derive(Debug, Clone, Copy)]
struct State {
    inside: u32,
    outside: u32,
    left: u32,
}

/// The filters applied to one task.
#[derive(Debug)]
pub struct Gate {
    state: State,
    /// By frame: the state before it, the decision, and its function.
    saved: Vec<(State, Verdict, u32)>,
    shown: usize,
    /// Frames that will be shown if they last long enough.
    pending: VecDeque<CallStep>,
    /// Steps keep the depth that they have among all calls.
    keep_depth: bool,
    /// How many changes of the filters have passed, and the time of the next one.
    changes: usize,
    until: u64,
}

impl State {
    fn first(table: &Table) -> Self {
        Self {
            inside: 0,
            outside: 0,
            left: table.depth,
        }
    }

    /// Enters a function. Returns the verdict on it.
    #[inline]
    fn enter(&mut self, table: &Table, id: u32) -> Verdict {
        let bits = table.bits.get(id as usize).copied().unwrap_or(0);
        if bits & FILTER != 0 {
            self.inside += 1;
        }
        if bits & (FILTER | RESTART) != 0 {
            self.left = table.depth;
        }
        self.outside += u32::from(bits & NOTRACE != 0);
        let seen = (!table.filtered || self.inside > 0) && self.outside == 0 && self.left > 0;
        let verdict = match seen {
            true if bits & SMALL != 0 => Verdict::Merged,
            true if bits & HIDDEN == 0 => Verdict::Shown,
            _ => Verdict::Hidden,
        };
        self.left -= u32::from(verdict == Verdict::Shown);
        verdict
    }
}

impl Gate {
    /// Creates the gate of a task in which `frames` are open.
    pub fn new(table: &Table, frames: &[Frame]) -> Self {
        let mut gate = Self {
            state: State::first(table),
            saved: Vec::new(),
            shown: 0,
            pending: VecDeque::new(),
            keep_depth: false,
            changes: 0,
            until: table.later.first().map_or(u64::MAX, |change| change.0),
        };
        for frame in frames {
            let shown = gate.enter(table, frame.id, frame.start) == Verdict::Shown;
            gate.shown += usize::from(shown);
        }
        gate
    }

    /// Lets the steps that are shown keep the depth that they have among all calls.
    pub fn keep_depth(&mut self) {
        self.keep_depth = true;
    }

    /// Enters a function, at a time in units of the counter.
    #[inline]
    pub fn enter(&mut self, table: &Table, id: u32, time: u64) -> Verdict {
        if time >= self.until {
            self.turn(table, time);
        }
        let before = self.state;
        let verdict = self.state.enter(table.after(self.changes), id);
        self.saved.push((before, verdict, id));
        verdict
    }

    /// Applies changed filters. The decisions for open frames stay. Later calls are judged as if the new filters had
    /// been in force when those frames were entered.
    #[cold]
    fn turn(&mut self, table: &Table, time: u64) {
        self.changes = table.later.partition_point(|change| change.0 <= time);
        let next = table.later.get(self.changes);
        self.until = next.map_or(u64::MAX, |change| change.0);
        let table = table.after(self.changes);
        self.state = State::first(table);
        for (before, _, id) in &mut self.saved {
            *before = self.state;
            self.state.enter(table, *id);
        }
    }

    /// Leaves the innermost function.
    #[inline]
    pub fn leave(&mut self) -> Verdict {
        match self.saved.pop() {
            Some((before, verdict, _)) => {
                self.state = before;
                verdict
            }
            None => Verdict::Hidden,
        }
    }

    /// Takes a step. Passes the steps that are shown to `out`, with their depth among what is shown.
    pub fn pass(
        &mut self,
        table: &Table,
        scale: &Scale,
        step: CallStep,
        mut out: impl FnMut(CallStep),
    ) {
        if step.time() >= self.until {
            self.turn(table, step.time());
        }
        let (all, table) = (table, table.after(self.changes));
        let pending = &mut self.pending;
        if !pending.is_empty() {
            let now = scale.nanoseconds(step.time());
            let long =
                |step: &CallStep| now - scale.nanoseconds(step.time()).min(now) >= table.time;
            while let Some(first) = pending.pop_front_if(|first| long(first)) {
                out(first);
            }
        }
        match step {
            CallStep::Enter {
                id,
                time,
                depth,
                entered,
            } => {
                if self.enter(all, id, time) == Verdict::Shown {
                    let depth = if self.keep_depth { depth } else { self.shown };
                    self.shown += 1;
                    let step = CallStep::Enter {
                        depth,
                        id,
                        time,
                        entered,
                    };
                    if table.time > 0 {
                        self.pending.push_back(step);
                    } else {
                        out(step);
                    }
                }
            }
            CallStep::Instant { id, time, depth } => {
                let verdict = self.enter(all, id, time);
                self.leave();
                if verdict == Verdict::Shown && table.time == 0 {
                    let depth = if self.keep_depth { depth } else { self.shown };
                    out(CallStep::Instant { depth, id, time });
                }
            }
            CallStep::Leave {
                frame,
                time,
                left,
                depth,
            } => {
                if self.leave() == Verdict::Shown {
                    self.shown -= 1;
                    let depth = if self.keep_depth { depth } else { self.shown };
                    // A call that is still pending was too short.
                    if self.pending.pop_back().is_none() {
                        out(CallStep::Leave {
                            depth,
                            frame,
                            time,
                            left,
                        });
                    }
                }
            }
            CallStep::Lost { .. } => out(step),
        }
    }

    /// Ends the task. Frames that are still open are shown, because it is unknown how long they would have lasted.
    pub fn finish(&mut self, out: impl FnMut(CallStep)) {
        self.pending.drain(..).for_each(out);
    }

    /// Returns whether the open frame at a depth is shown.
    pub fn is_shown(&self, depth: usize) -> bool {
        let frame = self.saved.get(depth);
        frame.is_some_and(|&(_, verdict, _)| verdict == Verdict::Shown)
    }
}
