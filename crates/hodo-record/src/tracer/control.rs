//! Changes a running recording: new stubs and other sites, in one stop of all processes.

use std::collections::{BTreeSet, HashMap};
use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use hodo_patch::Recording;
use hodo_trace::format::tcb;
use serde_json::json;

use super::attach::moved;
use super::stopping::{Halted, exists};
use super::{SharedSpace, Tracer};
use crate::control::{Changes, Control, Request};
use crate::modules::Modules;
use crate::options::{Match, RecordOptions};
use crate::select::{PatternRef, Selection};
use crate::session::Session;
use hodo_inject::frames;
use hodo_inject::install::{self, Change};
use hodo_module::mapped::real_path;
use hodo_ptrace as ptrace;
use hodo_ptrace::Stopped;
use hodo_ptrace::TargetAddr;
use hodo_ptrace::arch::counter;
use hodo_ptrace::maps;

/// How long threads may take to stop. A thread that waits in the kernel for its child to execute a program (vfork)
/// stops only after that.
const STOPPING: Duration = Duration::from_millis(300);
/// How many times to try to stop at a moment when everything can be changed.
const TRIES: u32 = 30;

/// How calls are recorded with these options.
pub(super) fn recording(
    options: &RecordOptions,
    selection: &Selection,
    modules: &Modules,
    session: &Session,
) -> Recording {
    let timed = !options.no_time;
    Recording {
        timed,
        filtered: selection.is_filtered(),
        check_frames: options.check_frames,
        depth: options
            .depth
            .filter(|&depth| 0 < depth && u64::from(depth) <= tcb::MAX_DEPTH),
        shortest: options
            .time_filter
            .filter(|_| timed)
            .map(|ns| session.ticks(ns)),
        switch: modules.probes.trace_switch(),
    }
}

/// The options after changes.
///
/// # Errors
/// Why these changes are not possible.
fn changed(now: &RecordOptions, changes: &Changes) -> Result<RecordOptions> {
    if !now.probes.is_empty() || !now.events.is_empty() || now.syscalls.is_some() {
        bail!("this recording has probes: it cannot be changed while it runs");
    }
    if changes.time_filter.is_some() && now.no_time {
        bail!(
            "this recording has no timestamps (--no-time): calls cannot be told apart by their time"
        );
    }
    if changes
        .pattern
        .is_some_and(|pattern| pattern != now.pattern)
    {
        bail!(
            "this recording reads patterns as {}: that cannot be changed while it runs",
            match now.pattern {
                Match::Regex => "regular expressions",
                Match::Glob => "globs",
            }
        );
    }
    let mut new = now.clone();
    if changes.clear {
        new.filter.clear();
        new.notrace.clear();
        new.order.clear();
        new.patch.clear();
        new.depth = None;
        new.time_filter = None;
    }
    // If only one of the lists is replaced, their relative order is unknown: -N then takes precedence.
    if !changes.filter.is_empty() || !changes.notrace.is_empty() {
        new.order.clone_from(&changes.order);
    }
    if !changes.filter.is_empty() {
        new.filter.clone_from(&changes.filter);
    }
    if !changes.notrace.is_empty() {
        new.notrace.clone_from(&changes.notrace);
    }
    if !changes.patch.is_empty() {
        new.patch.clone_from(&changes.patch);
    }
    new.depth = changes.depth.or(new.depth);
    // 0 means no time limit.
    new.time_filter = changes.time_filter.or(new.time_filter).filter(|&ns| ns > 0);
    let filters = |options: &RecordOptions| {
        (
            options.filter.clone(),
            options.notrace.clone(),
            options.order.clone(),
            options.depth,
        )
    };
    if now.no_time && filters(&new) != filters(now) {
        bail!(
            "this recording has no timestamps (--no-time), so readers could not tell to which calls a filter applies: \
             only --trace, -P and -U can be changed"
        );
    }
    new.off = changes.trace.map_or(new.off, |on| !on);
    Ok(new)
}

/// The options that are in force, as on the command line.
fn told(options: &RecordOptions) -> String {
    let mut words = Vec::new();
    if options.off {
        words.push("--trace off".to_owned());
    }
    let filters = hodo_trace::meta::in_order(&options.filter, &options.notrace, &options.order);
    words.extend(filters.into_iter().map(|(filter, text)| {
        let option = if filter { "-F" } else { "-N" };
        format!("{option} '{text}'")
    }));
    words.extend(options.patch.iter().map(|(trace, text)| {
        let option = if *trace { "-P" } else { "-U" };
        format!("{option} '{text}'")
    }));
    words.extend(options.depth.map(|depth| format!("-D {depth}")));
    words.extend(options.time_filter.map(|ns| format!("-t {ns}ns")));
    match words.is_empty() {
        true => "no filters".to_owned(),
        false => words.join(" "),
    }
}

/// An address space being changed.
struct Changing {
    space: SharedSpace,
    threads: Vec<Stopped>,
    change: Option<Change>,
}

/// What was built, by the address of its address space, which is kept alive so that the address stays unique.
type Built = HashMap<usize, (SharedSpace, Change)>;

/// What has to be moved: threads, and frames of signal handlers.
#[derive(Default)]
struct Moves {
    threads: Vec<(Stopped, u64)>,
    frames: Vec<(u64, u64)>,
}

impl Tracer<'_> {
    /// Starts to listen for changes.
    pub(super) fn listen(&mut self) {
        // Without it, everything else works; a client learns that nobody listens.
        self.control = Control::start().ok();
    }

    /// Answers requests.
    ///
    /// # Errors
    /// If the log cannot be written.
    pub(super) fn answer(&mut self) -> Result<()> {
        while let Some((request, answer)) = self.control.as_ref().and_then(Control::next) {
            let done = match request {
                Request::Change(changes) => self.change(&changes),
                Request::Armed(pid) => self.armed(pid),
            };
            // A client that is gone gets no answer.
            let _ = answer.try_send(done);
        }
        Ok(())
    }

    fn change(&mut self, changes: &Changes) -> Result<String> {
        let options = changed(&self.settings, changes)?;
        let selection = Selection::new(&options)?;
        if let Some(pattern) = self.useless(&selection, changes) {
            bail!(
                "{pattern} matches no function of the program or of the libraries that it has loaded"
            );
        }
        let before = self.modules.traced();
        let recording = recording(&options, &selection, &self.modules, self.session);
        let old = std::mem::replace(&mut self.selection, selection);
        let old_recording = std::mem::replace(&mut self.recording, recording);
        let old_settings = std::mem::replace(&mut self.settings, options);
        let changed = self
            .modules
            .choose_again(&self.selection, self.session)
            .and_then(|()| self.rebuild());
        match changed {
            Ok(time) => {
                let text = told(&self.settings);
                Ok(format!(
                    "{text}; {} functions and calls are traced, before {before}; stopped for {:.2} ms",
                    self.modules.traced(),
                    time.as_secs_f64() * 1e3
                ))
            }
            Err(error) => {
                self.selection = old;
                self.recording = old_recording;
                self.settings = old_settings;
                self.modules.choose_again(&self.selection, self.session)?;
                Err(error)
            }
        }
    }

    /// A new pattern that matches nothing, if there is one.
    fn useless(&self, selection: &Selection, changes: &Changes) -> Option<String> {
        let mut open: Vec<PatternRef<'_>> = selection.patterns();
        let new = |pattern: &PatternRef<'_>| {
            let text = pattern.text();
            let rules = changes.patch.iter().map(|rule| &rule.1);
            let filters = changes.filter.iter().chain(&changes.notrace);
            filters.chain(rules).any(|new| new == text)
        };
        open.retain(new);
        for module in self.modules.all() {
            for (name, stub) in module.plan.names() {
                open.retain(|p| !p.matches(&module.image.path, module.is_main(), name, stub));
            }
        }
        let mut seen = BTreeSet::new();
        for &tid in self.threads.keys() {
            for mapping in maps::read(tid).unwrap_or_default() {
                if open.is_empty() {
                    return None;
                }
                if !mapping.executable || mapping.inode == 0 || !seen.insert(mapping.path.clone()) {
                    continue;
                }
                let real = real_path(tid, &mapping).ok();
                let bytes = real
                    .and_then(|real| std::fs::read(real).ok())
                    .unwrap_or_default();
                let symbols = hodo_symbols::symbols_of(&mapping.path, &bytes).unwrap_or_default();
                for function in symbols.functions {
                    open.retain(|p| !p.matches(&mapping.path, false, &function.name, false));
                }
            }
        }
        open.first().map(|pattern| pattern.to_string())
    }

    /// The recorded address spaces, and their threads.
    fn spaces(&self) -> Vec<(SharedSpace, Vec<i32>)> {
        let mut spaces: HashMap<usize, (SharedSpace, Vec<i32>)> = HashMap::new();
        for (&tid, thread) in self.threads.iter() {
            let Some(space) = &thread.space else {
                continue;
            };
            if space.borrow().has_ended() || self.is_first_and_ended(tid) {
                continue;
            }
            let key = Rc::as_ptr(space) as usize;
            let group = spaces
                .entry(key)
                .or_insert_with(|| (Rc::clone(space), Vec::new()));
            group.1.push(tid);
        }
        spaces.into_values().collect()
    }

    /// Brings all processes into the state that is now wanted. Returns for how long they were stopped.
    fn rebuild(&mut self) -> Result<Duration> {
        let key: Rc<str> = format!(
            "{:?} {:?} {:?} {:?} {:?} {}",
            self.settings.filter,
            self.settings.notrace,
            self.settings.order,
            self.settings.patch,
            self.recording,
            self.settings.off
        )
        .into();
        let mut reason = "its threads do not stop";
        let mut built = Built::new();
        for round in 0..TRIES {
            self.build(&mut built, &key, false)?;
            let all: BTreeSet<i32> = self.threads.keys().copied().collect();
            let begun = Instant::now();
            let (mut halted, whole) = self.stop_within(&all, Some(STOPPING))?;
            let done = match whole {
                true => self
                    .build(&mut built, &key, true)
                    .and_then(|()| self.exchange(&mut built, &mut halted)),
                false => Ok(Some(reason)),
            };
            if let Ok(None) = done {
                self.log_change()?;
            }
            for (&stopped, &group) in &halted {
                // A thread may be killed at any time; its end is reported separately.
                let _ = match group {
                    true => stopped.listen(),
                    false => self.go(stopped, 0),
                };
            }
            match done? {
                None => return Ok(begun.elapsed()),
                Some(why) => reason = why,
            }
            std::thread::sleep(Duration::from_millis(u64::from(round.min(20))));
        }
        bail!("nothing is changed: {reason}; try again")
    }

    /// Builds what is missing. Unless all threads are `stopped`, anything that cannot be built is left until they are:
    /// a process may be about to end, or to execute another program.
    fn build(&mut self, built: &mut Built, key: &Rc<str>, stopped: bool) -> Result<()> {
        for (space, tids) in self.spaces() {
            let number = Rc::as_ptr(&space) as usize;
            let holds = |built: &(SharedSpace, Change)| built.1.holds(tids[0], &space.borrow());
            if built.get(&number).is_some_and(holds) {
                continue;
            }
            built.remove(&number);
            let change = install::build(tids[0], &mut space.borrow_mut(), &mut self.work(), key);
            match change {
                Ok(change) => {
                    built.insert(number, (Rc::clone(&space), change));
                }
                Err(error) if ptrace::is_gone(&error) || !stopped || !exists(tids[0]) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Exchanges the sites of all processes, whose threads are stopped. Returns the reason if that has to wait.
    fn exchange(&mut self, built: &mut Built, halted: &mut Halted) -> Result<Option<&'static str>> {
        let mut todo = Vec::new();
        for (space, tids) in self.spaces() {
            let own = tids.iter().filter_map(|tid| halted.get_key_value(tid));
            let threads: Vec<Stopped> = own.map(|(&stopped, _)| stopped).collect();
            let change = built.remove(&(Rc::as_ptr(&space) as usize));
            let change = change.map(|(_, change)| change);
            if !threads.is_empty() {
                todo.push(Changing {
                    space,
                    threads,
                    change,
                });
            }
        }
        let mut moves = Vec::new();
        let mut wait = None;
        for one in &todo {
            match self.moves(one) {
                Ok(Ok(found)) => moves.push(found),
                Ok(Err(reason)) => wait = Some(reason),
                Err(error) if ptrace::is_gone(&error) => moves.push(Moves::default()),
                Err(error) => return Err(error),
            }
        }
        if wait.is_some() {
            for one in todo {
                let number = Rc::as_ptr(&one.space) as usize;
                let change = one.change.map(|change| (number, (one.space, change)));
                built.extend(change);
            }
            return Ok(wait);
        }
        for (one, moves) in todo.into_iter().zip(moves) {
            let worker = one.threads[0];
            let Some(change) = one.change else {
                continue;
            };
            let made = change.make(worker, &mut one.space.borrow_mut());
            let moved = made.and_then(|group| {
                if let Some(group) = group {
                    halted.insert(worker, group);
                }
                moves.make(worker)
            });
            match moved {
                Ok(()) => {}
                Err(error) if ptrace::is_gone(&error) || !exists(worker.tid()) => {}
                // The others are changed nevertheless: undoing could fail, too.
                Err(error) => {
                    self.remark(
                        worker.tid(),
                        &format!("changing what is recorded: {error:#}"),
                    )?;
                }
            }
        }
        for thread in self.threads.values() {
            // Frames of other stubs no longer count.
            if let Some(number) = thread.tcb {
                self.session.events.put_tcb_words(number, tcb::DEPTH, &[0]);
            }
        }
        Ok(None)
    }

    /// What has to be moved out of code of an address space that changes. The inner error is the reason if that has to
    /// wait.
    fn moves(&self, one: &Changing) -> Result<Result<Moves, &'static str>> {
        let mut moves = Moves::default();
        let Some(change) = &one.change else {
            return Ok(Ok(moves));
        };
        let (ranges, copies) = (change.ranges(), change.copies());
        let space = one.space.borrow();
        let memory = one.threads[0].memory()?;
        let maps = maps::read(one.threads[0].tid())?;
        for &stopped in &one.threads {
            let regs = stopped.regs()?;
            let in_call = regs.may_go_back();
            if let Some(to) = space.slot(&memory, regs.pc()) {
                moves.threads.push((stopped, to));
            } else if space.needs_ways(regs.pc()) {
                return Ok(Err(ON_THE_WAY));
            } else {
                match moved(regs.pc(), in_call, &ranges, &copies) {
                    Ok(None) => {}
                    Ok(Some(to)) => moves.threads.push((stopped, to)),
                    Err(()) => {
                        return Ok(Err(
                            "a thread is in the middle of an instruction to be changed",
                        ));
                    }
                }
            }
            for frame in frames::signal_frames(stopped, &memory, &maps, &|at| space.holds(at))? {
                let shown = |thread: &super::Thread| thread.contexts.shown_for(frame.at);
                if let Some(real) = self.threads.get(&stopped.tid()).and_then(shown) {
                    if space.needs_ways(real) {
                        return Ok(Err(ON_THE_WAY));
                    }
                    continue;
                }
                if let Some(to) = space.slot(&memory, frame.pc) {
                    moves.frames.push((frame.at, to));
                    continue;
                }
                if space.needs_ways(frame.pc) {
                    return Ok(Err(ON_THE_WAY));
                }
                match moved(frame.pc, false, &ranges, &copies) {
                    Ok(None) => {}
                    Ok(Some(to)) => moves.frames.push((frame.at, to)),
                    Err(()) => {
                        return Ok(Err("a signal has interrupted an instruction to be changed"));
                    }
                }
            }
        }
        Ok(Ok(moves))
    }

    fn log_change(&mut self) -> Result<()> {
        let now = &self.settings;
        let line = json!({"change": {
            "counter": counter(), "trace": !now.off, "filter": now.filter, "notrace": now.notrace, "order": now.order,
            "depth": now.depth, "time_ns": now.time_filter,
            "patch": now.patch.iter()
                .map(|(trace, pattern)| json!({"trace": trace, "pattern": pattern}))
                .collect::<Vec<_>>(),
            "traced": self.modules.traced(), "text": told(now),
        }});
        self.session.log(&line)
    }
}

impl Moves {
    fn make(self, worker: Stopped) -> Result<()> {
        for (stopped, to) in self.threads {
            let mut regs = stopped.regs()?;
            regs.set_pc(to);
            stopped.set_regs(&regs)?;
        }
        if !self.frames.is_empty() {
            let memory = worker.memory()?;
            for (at, to) in self.frames {
                memory.write(TargetAddr(at), &to.to_le_bytes())?;
            }
        }
        Ok(())
    }
}

/// Why a change has to wait.
const ON_THE_WAY: &str = "a thread is between the program and its recorded code";
