//! Options common to all views: which trace, which part of it, and how names are written.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use anyhow::{Context, Result, bail};
use hodo_abi::Isa;
use hodo_symbols::{Style, build_id, imports};
use hodo_trace::meta::{Probe, in_order};
use hodo_trace::{Frame, Function, FunctionKind, Scale, TailCalls, Task, Times, Trace};

use crate::costs::Costs;
use crate::filter::{Filters, Table};
use crate::format::{self, printable};
use crate::naming::Names;
use crate::pattern::Match;

/// Which trace, and which part of it.
#[derive(Debug, Clone, Default)]
pub struct SourceOptions {
    /// The trace directory.
    pub data: PathBuf,
    /// `-F`.
    pub filter: Vec<String>,
    /// `-N`.
    pub notrace: Vec<String>,
    /// The order of these two; see [`hodo_trace::meta::in_order`].
    pub order: Vec<bool>,
    /// `-H`.
    pub hide: Vec<String>,
    /// `-D`.
    pub depth: Option<u32>,
    /// `-t`, in nanoseconds.
    pub time_filter: Option<u64>,
    /// `-Z`, in bytes.
    pub size_filter: u64,
    /// `--match`. If absent, patterns are read as they were in the recording.
    pub pattern: Option<Match>,
    /// `--no-libcall`.
    pub no_libcall: bool,
    /// `--libname`.
    pub libname: bool,
    /// `--demangle`.
    pub demangle: Style,
    /// `--sysroot`: where the recorded machine's files are, if they are not at their original paths.
    pub sysroot: Option<PathBuf>,
    /// `--tid`. If empty, all tasks are shown.
    pub tids: Vec<i32>,
    /// `-r`.
    pub range: Option<Range>,
    /// `--tail-calls`.
    pub tail_calls: TailCalls,
    /// `--raw-times`: the cost of recording is not subtracted from sums of times.
    pub raw_times: bool,
    /// Escape sequences for colors.
    pub color: bool,
}

/// A range of time: from, to. Times are nanoseconds since the trace's first event, or of its clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Range {
    /// The beginning of the range.
    pub from: Option<Moment>,
    /// The end of the range.
    pub to: Option<Moment>,
}

/// A point in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Moment {
    /// Nanoseconds of the trace's clock.
    Clock(u64),
    /// Nanoseconds since the first event.
    Elapsed(u64),
}

impl std::str::FromStr for Range {
    type Err = anyhow::Error;

    /// Parses `FROM~TO`; either may be left out. A number with a unit is the time since the start. One without a unit
    /// is a timestamp in seconds, as `replay` prints it.
    fn from_str(text: &str) -> Result<Self> {
        let (from, to) = text
            .split_once('~')
            .with_context(|| format!("{text:?} is not a time range: write FROM~TO"))?;
        let moment = |text: &str| -> Result<Option<Moment>> {
            if text.is_empty() {
                return Ok(None);
            }
            if text.ends_with(|c: char| c.is_ascii_alphabetic()) {
                let ns = format::parse_time(text)
                    .with_context(|| format!("{text:?} is not a time: write it as 100us"))?;
                return Ok(Some(Moment::Elapsed(ns)));
            }
            let (seconds, part) = text.split_once('.').unwrap_or((text, ""));
            if part.len() > 9 {
                bail!("{text:?} has more than nine decimal places");
            }
            let number = |text: &str| {
                text.parse::<u64>()
                    .with_context(|| format!("{text:?} is not a number"))
            };
            let part = number(&format!("{part:0<9}"))?;
            let seconds = number(seconds)?;
            let ns = seconds
                .checked_mul(1_000_000_000)
                .and_then(|s| s.checked_add(part));
            Ok(Some(Moment::Clock(ns.context("the time is too large")?)))
        };
        Ok(Self {
            from: moment(from)?,
            to: moment(to)?,
        })
    }
}

/// An open trace, and what of it is shown.
#[derive(Debug)]
pub struct Source {
    /// The trace.
    pub trace: Trace,
    names: Names,
    /// Names with their library, by function id, if they were requested.
    labels: Option<Vec<String>>,
    /// The filters.
    pub table: Table,
    /// Converts the counter to time.
    pub scale: Scale,
    /// By index of a task: the frames that it began with.
    pub inherited: Vec<Vec<Frame>>,
    /// The shown range: from and to, in nanoseconds of the trace's clock.
    pub range: Times,
    /// Indices of the tasks that are shown.
    pub tasks: Vec<usize>,
    /// What recording cost, which is subtracted from times; see [`Self::costs`].
    costs: OnceLock<Costs>,
    /// The trace is still being written.
    pub growing: bool,
    /// The directory that holds the recorded machine's files.
    sysroot: Option<PathBuf>,
}

/// Reports damage, and the remarks made while recording, on stderr.
fn report(trace: &Trace) {
    for damage in &trace.damage {
        eprintln!("hodo: {}", printable(damage.clone()));
    }
    for remark in &trace.remarks {
        eprintln!("hodo: {}", printable(remark.text.clone()));
    }
}

/// Combines the requested filters with those of the recording.
fn together(
    trace: &Trace,
    recorded: &hodo_trace::meta::Filters,
    options: &SourceOptions,
) -> Filters {
    let recorded_pattern = match &*trace.info.patterns {
        "glob" => Match::Glob,
        _ => Match::Regex,
    };
    let asked_pattern = options.pattern.unwrap_or(recorded_pattern);
    let list = |(filter, notrace, order): (&[String], &[String], &[bool]), kind: Match| {
        let patterns = in_order(filter, notrace, order).into_iter();
        patterns
            .map(|(filter, text)| (filter, text.clone(), kind))
            .collect()
    };
    let then = (
        &recorded.filter[..],
        &recorded.notrace[..],
        &recorded.order[..],
    );
    let now = (
        &options.filter[..],
        &options.notrace[..],
        &options.order[..],
    );
    let hide = options.hide.iter().cloned();
    let depths = options.depth.into_iter().chain(recorded.depth);
    let times = options.time_filter.into_iter().chain(recorded.time_ns);
    Filters {
        // The recording's filters keep the meaning that they had then, whatever `--match` says now.
        lists: vec![list(then, recorded_pattern), list(now, asked_pattern)],
        hide: hide.map(|pattern| (pattern, asked_pattern)).collect(),
        depth: depths.min(),
        // Without times, it is unknown which calls are too short.
        time: times.max().filter(|_| trace.info.timed),
        size: options.size_filter,
        no_libcall: options.no_libcall,
    }
}

/// Decides for each function, taking into account changes of the filters during the recording.
fn table(trace: &Trace, names: &Names, options: &SourceOptions) -> Result<Table> {
    let filters = together(trace, &trace.info.filters, options);
    let mut table = Table::new(trace, names, &filters)?;
    let mut known: Vec<Filters> = Vec::new();
    for change in trace.changes.iter().filter(|_| trace.info.timed) {
        let filters = together(trace, &change.filters, options);
        match known.iter().position(|known| *known == filters) {
            Some(earlier) => table.again_at(change.counter, earlier),
            None => table.change_at(change.counter, trace, names, &filters)?,
        }
        known.push(filters);
    }
    if table.chooses_nothing {
        let all = table.useless.join(", ");
        bail!("{all}: no function of this trace matches, and nothing else is asked for");
    }
    for useless in &table.useless {
        eprintln!("hodo: {useless} matches no function of this trace");
    }
    Ok(table)
}

/// Returns the indices of the tasks with these ids, or of all tasks if there are no ids.
///
/// # Errors
/// If there are ids, and none of these tasks is in the trace.
fn tasks(trace: &Trace, tids: &[i32]) -> Result<Vec<usize>> {
    let is_there = |tid: &i32| trace.tasks.iter().any(|task| task.tid == *tid);
    let (found, missing): (Vec<i32>, Vec<i32>) = tids.iter().partition(|tid| is_there(tid));
    if found.is_empty()
        && let Some(tid) = missing.first()
    {
        bail!("there is no task {tid} in this trace");
    }
    for tid in missing {
        eprintln!("hodo: there is no task {tid} in this trace");
    }
    Ok((0..trace.tasks.len())
        .filter(|&index| tids.is_empty() || tids.contains(&trace.tasks[index].tid))
        .collect())
}

impl Source {
    /// Opens the trace. Damage, and filters that match nothing, are reported on stderr.
    pub fn open(options: &SourceOptions) -> Result<Self> {
        let mut trace = Trace::open(&options.data)?;
        trace.set_tail_calls(options.tail_calls);
        report(&trace);
        for task in &mut trace.tasks {
            task.comm = printable(std::mem::take(&mut task.comm));
        }
        let names = Names::new(&trace, options.demangle);
        let labels =
            (options.libname).then(|| with_library(&trace, &names, options.sysroot.as_deref()));
        if !trace.info.timed && (options.time_filter.is_some() || options.range.is_some()) {
            eprintln!(
                "hodo: this recording has no timestamps (--no-time): -t and -r change nothing"
            );
        }
        let table = table(&trace, &names, options)?;
        let tasks = tasks(&trace, &options.tids)?;
        let inherited = trace.inherited();
        let scale = trace.scale();
        let costs = match options.raw_times {
            true => OnceLock::from(Costs::default()),
            false => OnceLock::new(),
        };
        let mut source = Self {
            trace,
            names,
            labels,
            table,
            scale,
            inherited,
            range: Times::ALL,
            tasks,
            costs,
            growing: false,
            sysroot: options.sysroot.clone(),
        };
        if let Some(range) = options.range.filter(|_| source.timed()) {
            source.range = source.resolve(range);
        }
        Ok(source)
    }

    /// Creates the source of a trace that is being written. Nothing of it is shown yet, and it has neither names nor
    /// filters.
    pub(crate) fn growing(trace: Trace) -> Self {
        Self {
            scale: trace.scale(),
            trace,
            names: Names::default(),
            labels: None,
            table: Table::default(),
            inherited: Vec::new(),
            range: Times::ALL,
            tasks: Vec::new(),
            costs: OnceLock::from(Costs::default()),
            growing: true,
            sysroot: None,
        }
    }

    /// Returns the content of a file that was mapped, if the file has not changed since. If it has, this is reported on
    /// stderr. So is a missing file, if a sysroot was given or the trace is of another instruction set.
    pub fn file(&self, path: &str) -> Option<Vec<u8>> {
        let place = placed(path, self.sysroot.as_deref());
        let info = &self.trace.info;
        let foreign = info.isa() != Some(Isa::NATIVE);
        let bytes = match std::fs::read(&place) {
            Ok(bytes) => bytes,
            Err(error) => {
                if path.starts_with('/') && (foreign || self.sysroot.is_some()) {
                    let place = place.display();
                    eprintln!(
                        "hodo: cannot read {place}: {error}: its functions have no names{}",
                        self.hint()
                    );
                }
                return None;
            }
        };
        let is_same = hodo_symbols::isa_of(&bytes).is_some_and(|own| info.isa() == Some(own));
        let modules = self.trace.modules.iter();
        let modules = modules.filter(|module| module.path == path);
        // What was mapped without being recorded is no module.
        let maps = self.trace.maps.iter();
        let maps = maps.filter(|map| map.path == path && map.build_id.is_some());
        let ids = modules.map(|module| &module.build_id);
        let mut ids = ids.chain(maps.map(|map| &map.build_id)).peekable();
        let own = build_id(&bytes);
        let is_known = ids.peek().is_none() || ids.any(|id| *id == own);
        if !is_same || !is_known {
            eprintln!(
                "hodo: {} is not the file that was recorded: its functions have no names{}",
                place.display(),
                self.hint()
            );
            return None;
        }
        Some(bytes)
    }

    fn hint(&self) -> &'static str {
        match self.sysroot {
            None => "; --sysroot names the root of another machine's files",
            Some(_) => "",
        }
    }

    /// Returns what recording cost, which is subtracted from times.
    pub fn costs(&self) -> &Costs {
        self.costs.get_or_init(|| Costs::of(&self.trace))
    }

    /// Returns the time of the trace's first record, in nanoseconds of its clock.
    pub fn first(&self) -> u64 {
        let times = self.trace.tasks.iter().filter_map(|task| {
            let record = self.trace.records(task).next()?;
            Some(self.scale.nanoseconds(record.time))
        });
        times.min().unwrap_or(0)
    }

    fn resolve(&self, range: Range) -> Times {
        let resolve = |moment: Option<Moment>, default| match moment {
            None => default,
            Some(Moment::Clock(ns)) => ns,
            Some(Moment::Elapsed(ns)) => self.first().saturating_add(ns),
        };
        Times {
            first: resolve(range.from, 0),
            last: resolve(range.to, u64::MAX),
        }
    }

    /// Returns whether records have times.
    pub fn timed(&self) -> bool {
        self.trace.info.timed
    }

    /// Returns whether a function has this name, either as displayed or as in its file.
    pub fn is_called(&self, id: u32, name: &str) -> bool {
        self.name(id) == name || self.trace.function(id).is_some_and(|f| f.name == name)
    }

    /// Counts the depth (`-D`) from the functions of this name on.
    pub fn restart_at(&mut self, name: &str) {
        let mut table = std::mem::take(&mut self.table);
        table.restart_at(|id| self.is_called(id, name));
        self.table = table;
    }

    /// Returns whether a part of the time is left out.
    pub fn is_ranged(&self) -> bool {
        self.timed() && self.range != Times::ALL
    }

    /// Returns the displayed name of a function.
    pub fn name(&self, id: u32) -> &str {
        self.names.of(&self.trace, id).unwrap_or("<unknown>")
    }

    /// Returns the probe whose hits have this function id.
    pub fn probe(&self, id: u32) -> Option<&Probe> {
        let function = self.trace.function(id)?;
        let probes = (function.kind == FunctionKind::Probe).then_some(&self.trace.probes)?;
        // Probes are logged in the order of their ids.
        let index = probes.binary_search_by_key(&id, |probe| probe.id);
        index.ok().map(|index| &probes[index])
    }

    /// Returns whether this id stands for the hits of a probe, not for a function.
    pub fn is_probe(&self, id: u32) -> bool {
        self.trace
            .function(id)
            .is_some_and(|function| function.kind == FunctionKind::Probe)
    }

    /// Returns the name of a function, with its library if that was requested.
    pub fn label(&self, id: u32) -> &str {
        match &self.labels {
            Some(labels) => labels.get(id as usize).map_or("<unknown>", String::as_str),
            None => self.name(id),
        }
    }

    /// Returns, by index of a task, the index of the first task of the same thread. A thread is several tasks if it
    /// executed other programs.
    pub fn threads(&self) -> Vec<usize> {
        let mut threads: Vec<usize> = Vec::new();
        for (index, task) in self.trace.tasks.iter().enumerate() {
            let before = (task.parent as usize)
                .checked_sub(1)
                .filter(|_| task.kind == "exec");
            threads.push(before.map_or(index, |before| threads[before]));
        }
        threads
    }

    /// Returns when a task ended, in units of the counter. Its last record is at `last`.
    pub fn ended(&self, index: usize, last: u64) -> u64 {
        match self.task(index).ended {
            Some(ended) if self.timed() => ended.max(last),
            _ => last,
        }
    }

    /// Returns the task with an index.
    pub fn task(&self, index: usize) -> &Task {
        &self.trace.tasks[index]
    }
}

impl Drop for Source {
    fn drop(&mut self) {
        if let Some(unread) = self.trace.unread() {
            eprintln!("hodo: {unread}");
        }
    }
}

/// Returns the path of a file of the recorded machine.
fn placed(path: &str, sysroot: Option<&Path>) -> PathBuf {
    match sysroot {
        Some(root) => root.join(path.trim_start_matches('/')),
        None => PathBuf::from(path),
    }
}

/// Returns names with their libraries, by function id: `getpid@libc.so.6`. The target of a call into a library is known
/// if its symbol has a version and the recorded file still exists.
fn with_library(trace: &Trace, names: &Names, sysroot: Option<&Path>) -> Vec<String> {
    let imports: Vec<_> = trace
        .modules
        .iter()
        .map(|module| {
            let bytes = std::fs::read(placed(&module.path, sysroot)).unwrap_or_default();
            let same = module.build_id == build_id(&bytes);
            if same {
                imports(&bytes)
            } else {
                HashMap::new()
            }
        })
        .collect();
    let library = |function: &Function| match function.kind {
        FunctionKind::Library | FunctionKind::LibraryEntry => {
            imports[function.module].get(&function.name).cloned()
        }
        _ if function.module > 0 => Some(trace.modules[function.module].name().to_owned()),
        _ => None,
    };
    (0..)
        .zip(&trace.functions)
        .map(|(id, function)| {
            let name = names.of(trace, id).unwrap_or_default();
            match function.as_ref().and_then(library) {
                Some(library) => printable(format!("{name}@{library}")),
                None => name.to_owned(),
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_read() {
        let range = |text: &str| text.parse::<Range>().ok();
        assert_eq!(
            range("1.5~"),
            Some(Range {
                from: Some(Moment::Clock(1_500_000_000)),
                to: None
            })
        );
        assert_eq!(
            range("~10us"),
            Some(Range {
                from: None,
                to: Some(Moment::Elapsed(10_000))
            })
        );
        assert_eq!(range("10us"), None);
        assert_eq!(range("x~"), None);
        assert_eq!(range("1.0000000001~"), None);
    }
}
