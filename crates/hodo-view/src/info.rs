//! `info`: when, where and how a recording was made.

use std::io::Write;
use std::path::Path;

use anyhow::Result;
use hodo_trace::meta::Exit;
use hodo_trace::{FunctionKind, RecordKind, Times, Trace};
use serde_json::json;

use crate::costs::{Cost, Costs, whole};
use crate::counters::Counters;
use crate::format::printable;
use crate::histograms::Histograms;
use crate::source::SourceOptions;

/// What `info` shows.
#[derive(Debug, Clone, Default)]
pub struct InfoOptions {
    /// Which trace.
    pub source: SourceOptions,
    /// JSON instead of text.
    pub json: bool,
    /// Only the tasks.
    pub task: bool,
    /// Only the functions, as a table.
    pub symbols: bool,
}

/// Figures of what was recorded.
#[derive(Debug, Default)]
struct Counts {
    /// Entries and exits.
    events: u64,
    /// Entries.
    calls: u64,
    lost: u64,
    /// What recording them cost, in [`parts`] of a unit of the counter.
    cost: i64,
    /// The time from the first to the last record of each task, added up, in units of the counter.
    time: u64,
    costs: Costs,
}

impl Counts {
    /// Returns what recording cost: seconds, and the share of the time of all tasks.
    fn cost(&self, trace: &Trace) -> (f64, f64) {
        let seconds = |counter: u64| trace.scale().duration(counter) as f64 / 1e9;
        let cost = seconds(whole(self.cost));
        (cost, cost / seconds(self.time).max(cost).max(1e-9))
    }
}

fn count(trace: &Trace) -> Counts {
    let mut counts = Counts::default();
    let costs = Costs::of(trace);
    let of = |id: u32, jumped: bool| match trace.function(id).map(|function| function.kind) {
        None | Some(FunctionKind::Probe | FunctionKind::None) => Cost::default(),
        Some(FunctionKind::Entry | FunctionKind::LibraryEntry) => costs.entry,
        Some(FunctionKind::Both | FunctionKind::Library) if jumped => costs.jump,
        Some(FunctionKind::Both | FunctionKind::Library) => costs.call,
    };
    counts.costs = costs;
    for task in &trace.tasks {
        let mut lost = 0u64;
        let mut times: Option<Times> = None;
        for record in trace.records(task) {
            times = Some(Times {
                first: times.map_or(record.time, |times| times.first),
                last: record.time,
            });
            match record.kind {
                RecordKind::Entry | RecordKind::Tail => {
                    counts.calls += 1;
                    counts.events += 1;
                    let Cost { inside, outside } = of(record.id, record.kind == RecordKind::Tail);
                    counts.cost = counts.cost.saturating_add(inside).saturating_add(outside);
                }
                RecordKind::Exit => counts.events += 1,
                RecordKind::Lost(n) => lost = lost.saturating_add(n),
            }
        }
        counts.lost = counts.lost.saturating_add(lost);
        let took = times.map_or(0, |times| times.last.saturating_sub(times.first));
        counts.time = counts.time.saturating_add(took);
    }
    // Only the recorder knows what was lost at the very end.
    let told = trace.info.finished.as_ref().map_or(0, |f| f.lost);
    counts.lost = counts.lost.max(told);
    counts
}

/// Formats a date as `Sat Nov 21 06:03:08 2026`, in UTC.
fn date(unix_ns: u64) -> String {
    let seconds = unix_ns / 1_000_000_000;
    let days = seconds / 86400;
    let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    // Days to civil date. The calendar repeats every 400 years of 146097 days. Here, years begin in March.
    let shifted = days + 719_468;
    let era = shifted / 146_097;
    let day = shifted % 146_097;
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let of_year = day - (365 * year + year / 4 - year / 100);
    let part = (5 * of_year + 2) / 153;
    let of_month = of_year - (153 * part + 2) / 5 + 1;
    let month = (part + 2) % 12;
    let year = year + era * 400 + u64::from(month < 2);
    const DAYS: [&str; 7] = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"];
    const MONTHS: [&str; 12] = [
        "Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec",
    ];
    format!(
        "{} {} {of_month:2} {hour:02}:{minute:02}:{second:02} {year} UTC",
        DAYS[(days % 7) as usize],
        MONTHS[month as usize]
    )
}

fn exit_text(exit: Option<Exit>) -> String {
    match exit {
        None => "unknown: the recording did not end".to_owned(),
        Some(Exit::Code(code)) => format!("exited with code: {code}"),
        Some(Exit::Signal(signal)) => format!("terminated by signal: {signal}"),
    }
}

/// Shows what is known about a recording.
///
/// # Errors
/// If the trace cannot be read or `out` cannot be written.
pub fn info(options: &InfoOptions, out: &mut dyn Write) -> Result<()> {
    let mut trace = Trace::open(&options.source.data)?;
    if options.json {
        return write_json(&trace, &options.source.data, out);
    }
    for damage in &trace.damage {
        eprintln!("hodo: {}", printable(damage.clone()));
    }
    for task in &mut trace.tasks {
        task.comm = printable(std::mem::take(&mut task.comm));
    }
    if options.symbols {
        for (id, function) in trace.functions.iter().enumerate() {
            let Some(f) = function else { continue };
            let module = trace.modules[f.module].name();
            let name = printable(format!("{} [{module}]", f.name));
            writeln!(
                out,
                "{id:7} {:>12x} {:6} {:?} {name}",
                f.addr, f.size, f.kind
            )?;
        }
        return Ok(());
    }
    if options.task {
        writeln!(
            out,
            "# TIMESTAMP         FLAGS    TID   TASK              KIND    PARENT"
        )?;
        for task in &trace.tasks {
            let began = crate::format::timestamp(trace.nanoseconds(task.began));
            writeln!(
                out,
                "{began:>18}  {:<6} {:6}  {:<16}  {:<6}  {}",
                if task.pid == task.tid {
                    "process"
                } else {
                    "thread"
                },
                task.tid,
                task.comm,
                task.kind,
                task.parent
            )?;
        }
        return Ok(());
    }
    text(&trace, &options.source.data, out)
}

/// Returns what probes have counted, and a message for each file that could not be read.
fn probes(data: &Path) -> (Option<Counters>, Option<Histograms>, Vec<String>) {
    let mut damage = Vec::new();
    let mut told = |error: anyhow::Error| damage.push(format!("{error:#}"));
    let counters = Counters::read(data).map_err(&mut told).ok();
    let histograms = Histograms::read(data).map_err(told).ok();
    (counters, histograms, damage)
}

type Rows = Vec<(&'static str, String)>;

fn text(trace: &Trace, data: &Path, out: &mut dyn Write) -> Result<()> {
    let counts = count(trace);
    let mut section = |title: &str, rows: Rows| -> Result<()> {
        writeln!(out, "{title}")?;
        for (key, value) in rows {
            writeln!(out, "# {key:<20}: {}", printable(value))?;
        }
        Ok(())
    };
    section("# system information\n# ==================", system(trace))?;
    section(
        "#\n# process information\n# ===================",
        process(trace),
    )?;
    let title = "#\n# trace information\n# =================";
    section(title, recorded(trace, &counts))?;
    let (counters, histograms, unread) = probes(data);
    remarks(trace, unread, out)?;
    writeln!(out)?;
    if let Some(counters) = counters.filter(|counters| !counters.is_empty()) {
        counters.text(out)?;
        writeln!(out)?;
    }
    if let Some(histograms) = histograms {
        histograms.text(out)?;
    }
    Ok(())
}

/// Describes the machine and its system.
fn system(trace: &Trace) -> Rows {
    let info = &trace.info;
    let host = &info.host;
    let gb = |bytes: u64| bytes as f64 / f64::from(1 << 30);
    let load: Vec<String> = host.load.iter().map(|l| format!("{l:.2}")).collect();
    vec![
        (
            "program version",
            format!("hodo {} ( {} )", info.hodo, info.arch),
        ),
        ("recorded on", date(info.started.unix_ns)),
        ("cmdline", info.cmdline.join(" ")),
        ("cpu info", host.cpu.clone().unwrap_or_default()),
        (
            "number of cpus",
            format!(
                "{} / {} (online / possible)",
                host.cpus_online, host.cpus_possible
            ),
        ),
        (
            "memory info",
            format!(
                "{:.1} / {:.1} GB (free / total)",
                gb(host.mem_free),
                gb(host.mem_total)
            ),
        ),
        (
            "system load",
            format!("{} (1 / 5 / 15 min)", load.join(" / ")),
        ),
        ("kernel version", host.os.clone()),
        ("hostname", host.hostname.clone()),
        (
            "distro",
            format!("{:?}", host.distro.clone().unwrap_or_default()),
        ),
    ]
}

/// Describes the program, and what the kernel reported about its run.
fn process(trace: &Trace) -> Rows {
    let info = &trace.info;
    let finished = info.finished.as_ref();
    let usage = finished.map(|f| f.usage).unwrap_or_default();
    let seconds = |ns: u64| ns as f64 / 1e9;
    let task = |t: &hodo_trace::Task| format!("{}({})", t.tid, t.comm);
    let tasks: Vec<String> = trace.tasks.iter().map(task).collect();
    let build_id = trace.modules.first().and_then(|m| m.build_id.clone());
    let separate = trace.modules.iter().filter_map(|module| {
        let file = module.symbols.as_ref()?;
        Some(format!(
            "{} from {}",
            module.name(),
            printable(file.clone())
        ))
    });
    let separate: Vec<String> = separate.collect();
    let mut rows = vec![
        ("number of tasks", trace.tasks.len().to_string()),
        ("task list", tasks.join(", ")),
        ("exe image", info.exe.clone()),
        ("build id", build_id.unwrap_or_default()),
        ("pattern", info.patterns.clone()),
        ("exit status", exit_text(finished.map(|f| f.exit))),
        (
            "elapsed time",
            format!("{:.9} sec", seconds(finished.map_or(0, |f| f.elapsed_ns))),
        ),
        (
            "cpu time",
            format!(
                "{:.3} / {:.3} sec (sys / user)",
                seconds(usage.stime_ns),
                seconds(usage.utime_ns)
            ),
        ),
        (
            "context switch",
            format!(
                "{} / {} (voluntary / involuntary)",
                usage.nvcsw, usage.nivcsw
            ),
        ),
        ("max rss", format!("{} KB", usage.maxrss_kb)),
        (
            "page fault",
            format!("{} / {} (major / minor)", usage.majflt, usage.minflt),
        ),
        (
            "disk iops",
            format!("{} / {} (read / write)", usage.inblock, usage.oublock),
        ),
    ];
    if !separate.is_empty() {
        rows.insert(4, ("symbols", separate.join(", ")));
    }
    rows
}

/// Describes how much was recorded, and what that cost.
fn recorded(trace: &Trace, counts: &Counts) -> Rows {
    let info = &trace.info;
    let lost = match counts.lost > 0 && !trace.probes.is_empty() {
        true => format!("about {}", counts.lost),
        false => counts.lost.to_string(),
    };
    let clock = match info.timed {
        true => format!("{} ({})", info.clock.name, info.clock.source),
        false => "none (--no-time)".to_owned(),
    };
    let mut rows = vec![
        ("events", counts.events.to_string()),
        ("calls", counts.calls.to_string()),
        ("lost records", lost),
        ("bytes", trace.bytes.to_string()),
        ("clock", clock),
    ];
    if !counts.costs.is_none() {
        let (seconds, share) = counts.cost(trace);
        let ns = |cost: Cost| counts.costs.nanoseconds(cost, trace);
        rows.push((
            "cost of recording",
            format!(
                "{seconds:.3} sec, {:.1} % of the time ({:.1} ns a call, {:.1} where only the entry is recorded)",
                share * 100.0,
                ns(counts.costs.call),
                ns(counts.costs.entry),
            ),
        ));
    }
    rows
}

/// Writes changes and remarks made while the program ran, and what is damaged in the trace.
fn remarks(trace: &Trace, unread: Vec<String>, out: &mut dyn Write) -> Result<()> {
    let scale = trace.scale();
    let began = trace.tasks.first().map_or(0, |task| task.began);
    for change in &trace.changes {
        let after = scale
            .nanoseconds(change.counter)
            .saturating_sub(scale.nanoseconds(began));
        let seconds = after as f64 / 1e9;
        writeln!(
            out,
            "# {:<20}: {} (after {seconds:.3} s)",
            "changed",
            printable(change.text.clone())
        )?;
    }
    for remark in &trace.remarks {
        let text = printable(remark.text.clone());
        writeln!(out, "# {:<20}: {text} ({})", "remark", remark.pid)?;
    }
    let unread = trace.unread().into_iter().chain(unread).collect::<Vec<_>>();
    for damage in trace.damage.iter().chain(&unread) {
        writeln!(out, "# {:<20}: {}", "damage", printable(damage.clone()))?;
    }
    Ok(())
}

fn write_json(trace: &Trace, data: &Path, out: &mut dyn Write) -> Result<()> {
    let info = &trace.info;
    let counts = count(trace);
    let (counters, histograms, unread) = probes(data);
    let unread = trace.unread().into_iter().chain(unread).collect::<Vec<_>>();
    let damage: Vec<&String> = trace.damage.iter().chain(&unread).collect();
    let finished = info.finished.as_ref();
    let exit = finished.map(|f| match f.exit {
        Exit::Code(code) => json!({"code": code}),
        Exit::Signal(signal) => json!({"signal": signal}),
    });
    let tasks: Vec<_> = trace
        .tasks
        .iter()
        .map(|t| json!({"tid": t.tid, "pid": t.pid, "ppid": t.ppid, "name": t.comm, "kind": t.kind, "parent": t.parent}))
        .collect();
    let cost = (!counts.costs.is_none()).then(|| {
        let (seconds, share) = counts.cost(trace);
        let ns = |cost: Cost| counts.costs.nanoseconds(cost, trace);
        json!({"seconds": seconds, "share": share, "call_ns": ns(counts.costs.call), "entry_ns": ns(counts.costs.entry)})
    });
    let modules: Vec<_> = trace
        .modules
        .iter()
        .map(|m| json!({"path": m.path, "build_id": m.build_id, "symbols": m.symbols}))
        .collect();
    let value = json!({
        "version": info.version,
        "hodo": info.hodo,
        "arch": info.arch,
        "cmdline": info.cmdline,
        "exe": info.exe,
        "timed": info.timed,
        "clock": {"name": info.clock.name, "source": info.clock.source},
        "started_unix_ns": info.started.unix_ns,
        "events": counts.events,
        "calls": counts.calls,
        "lost": counts.lost,
        "cost": cost,
        "bytes": trace.bytes,
        "threads": trace.tasks.len(),
        "tasks": tasks,
        "modules": modules,
        "finished": finished.is_some(),
        "exit": exit,
        "elapsed_ns": finished.map(|f| f.elapsed_ns),
        "changes": trace.changes.iter().map(|c| json!({"counter": c.counter, "text": c.text})).collect::<Vec<_>>(),
        "remarks": trace.remarks.iter().map(|r| json!({"pid": r.pid, "text": r.text})).collect::<Vec<_>>(),
        "damage": damage,
        "probes": counters.iter().flat_map(Counters::json).collect::<Vec<_>>(),
        "histograms": histograms.iter().flat_map(Histograms::json).collect::<Vec<_>>(),
    });
    serde_json::to_writer_pretty(&mut *out, &value)?;
    writeln!(out)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates() {
        assert_eq!(date(0), "Thu Jan  1 00:00:00 1970 UTC");
        assert_eq!(
            date(951_782_400_000_000_000),
            "Tue Feb 29 00:00:00 2000 UTC"
        );
        assert_eq!(
            date(1_795_241_000_000_000_000),
            "Sat Nov 21 06:03:20 2026 UTC"
        );
    }
}
