//! `hodo mem cache`.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use hodo_dbi::Observe;
use hodo_mem::blame::{Blame, Wanted};
use hodo_mem::cache::{Counts, Simulator};
use hodo_mem::hot::Object;
use hodo_mem::model::{Caches, Extent, Geometry, Inclusion, Prefetch};
use hodo_mem::places::{InFile, Place, places};
use hodo_mem::replacement::Policy;
use rustc_hash::FxHashMap;
use serde_json::json;

use super::cachegrind::{self, Part};
use super::counted::Missing;
use super::html::Page;
use super::{cores, flame, objects, observed, output};
use crate::args::{
    CacheArgs, InclusionArg, Like, MemFormat, PrefetchArg, ReplacementArg, SecondArg, SourceArgs,
    TlbArgs,
};

/// Simulates caches.
pub fn cache(args: &CacheArgs) -> Result<ExitCode> {
    let caches = wanted(args)?;
    if args.cores > 1 && (args.memory || args.flame_graph.is_some()) {
        bail!(
            "--cores cannot be used with --memory or --flame-graph: the order of what threads do is put together after \
             allocations and calls are known"
        );
    }
    let mut simulator = Simulator::new(caches)?;
    // A timeline and what `blame` finds need all that is executed.
    let is_whole = args.html.is_some() || args.memory || args.flame_graph.is_some();
    let observe = least(&mut simulator, &args.common.source, is_whole);
    if args.html.is_some() {
        simulator.keep_lines();
    }
    let mut out = output(args.common.output.as_ref(), &args.common.source)?;
    let how = How {
        names: ["I1", "D1", "L2", "LL"],
        caches,
        format: args.common.format,
        top: args.top,
        instructions: args.instructions,
        memory: args.memory.then_some(args.callers),
    };
    let blame = Wanted {
        calls: args.flame_graph.is_some(),
        memory: args.memory,
    };
    // If they cannot be written, the program need not run for that.
    let grind = args
        .cachegrind
        .as_deref()
        .map(OutFile::create)
        .transpose()?;
    let page = args.html.as_deref().map(OutFile::create).transpose()?;
    let graph = args
        .flame_graph
        .as_deref()
        .map(OutFile::create)
        .transpose()?;
    let command = args.common.source.command.clone();
    let title = title(&args.common.source);
    observed(
        &args.common.source,
        observe,
        Blame::new(simulator, blame),
        move |blame, missing| {
            let simulator = blame.simulator();
            let sums = Sums::of(simulator);
            let reported = report(&how, (&blame, missing), &sums, &mut out);
            // What can be written is written.
            let grind = grind.map_or(Ok(()), |file| {
                file.write(|out| cachegrind::write(out, &caches, &command, &sums.parts))
            });
            let page = page.map_or(Ok(()), |file| {
                file.write(|out| page_of(title.clone(), &how, simulator, &sums).write(out))
            });
            let graph = graph.map_or(Ok(()), |file| {
                let path = file.0.clone();
                file.write(|out| flame::write(out, &path, title, &blame))
            });
            reported.and(grind).and(page).and(graph)
        },
    )
}

/// What the simulator has to hear of: if nothing else is wanted, not of what changes no cache.
fn least(simulator: &mut Simulator, source: &SourceArgs, is_whole: bool) -> Observe {
    if is_whole || source.directory.is_some() {
        return Observe::Accesses;
    }
    simulator.by_lines().unwrap_or(Observe::Accesses)
}

/// What is observed, for people.
fn title(source: &SourceArgs) -> String {
    match (&source.directory, source.part.pid) {
        (Some(directory), _) => format!("recording {}", directory.display()),
        (None, Some(pid)) => format!("process {pid}"),
        (None, None) => {
            let words = source.command.iter().map(|word| word.to_string_lossy());
            words.collect::<Vec<_>>().join(" ")
        }
    }
}

/// A file besides the result.
struct OutFile(PathBuf, File);

impl OutFile {
    fn create(path: &Path) -> Result<Self> {
        let file = File::create(path);
        let file = file.with_context(|| format!("cannot write {}", path.display()))?;
        Ok(Self(path.to_owned(), file))
    }

    fn write(self, write: impl FnOnce(&mut BufWriter<File>) -> Result<()>) -> Result<()> {
        let Self(path, file) = self;
        let mut out = BufWriter::new(file);
        let written = write(&mut out).and_then(|()| Ok(out.flush()?));
        written.with_context(|| format!("cannot write {}", path.display()))
    }
}

fn page_of<'p>(title: String, how: &How, simulator: &'p Simulator, sums: &'p Sums) -> Page<'p> {
    let levels = levels(how, &simulator.total());
    let levels = levels.iter().map(|level| {
        (
            level.text().trim_end().to_owned(),
            level.references,
            level.misses,
        )
    });
    Page {
        title,
        levels: levels.collect(),
        functions: &sums.functions,
        lines: &sums.lines,
        timeline: simulator.timeline(),
        line: how.caches.data.line,
    }
}

/// Simulates the caches of address translations: each entry is a line as large as a page.
pub fn tlb(args: &TlbArgs) -> Result<ExitCode> {
    let geometry = |(entries, ways): (u32, u32)| Geometry {
        size: u64::from(entries) * u64::from(args.page),
        ways,
        line: args.page,
    };
    let caches = Caches {
        instructions: geometry(args.itlb),
        data: geometry(args.dtlb),
        second: None,
        last: geometry(args.stlb),
        policy: Policy::Lru,
        extent: Extent::default(),
    };
    let mut simulator = Simulator::new(caches)?;
    let observe = least(&mut simulator, &args.common.source, false);
    let common = &args.common;
    let mut out = output(common.output.as_ref(), &common.source)?;
    let how = How {
        names: ["ITLB", "DTLB", "", "STLB"],
        caches,
        format: common.format,
        top: args.top,
        instructions: false,
        memory: None,
    };
    observed(
        &common.source,
        observe,
        Blame::new(simulator, Wanted::default()),
        move |blame, missing| {
            let sums = Sums::of(blame.simulator());
            report(&how, (&blame, missing), &sums, &mut out)
        },
    )
}

/// The caches that are wanted.
fn wanted(args: &CacheArgs) -> Result<Caches> {
    let like = match args.like {
        Like::Host => host()?,
        Like::Zen3 => caches(32 << 10, (512 << 10, 8), 32 << 20),
        Like::Skylake => caches(32 << 10, (256 << 10, 4), 8 << 20),
    };
    let second = match args.l2 {
        None => None,
        Some(SecondArg::Cache(geometry)) => Some(geometry),
        Some(SecondArg::Like) => Some(like.second.context(
            "the processor has no level between the first and the last one; use --l2 SIZE,WAYS,LINE",
        )?),
    };
    Ok(Caches {
        instructions: args.i1.unwrap_or(like.instructions),
        data: args.d1.unwrap_or(like.data),
        second,
        last: args.ll.unwrap_or(like.last),
        policy: match args.replacement {
            ReplacementArg::Lru => Policy::Lru,
            ReplacementArg::Fifo => Policy::Fifo,
            ReplacementArg::Random => Policy::Random,
            ReplacementArg::TreePlru => Policy::TreePlru,
        },
        extent: Extent {
            inclusion: match args.inclusion {
                InclusionArg::Any => Inclusion::Any,
                InclusionArg::Inclusive => Inclusion::Inclusive,
                InclusionArg::Exclusive => Inclusion::Exclusive,
            },
            prefetch: match args.prefetch {
                PrefetchArg::None => Prefetch::None,
                PrefetchArg::NextLine => Prefetch::NextLine,
                PrefetchArg::Stride => Prefetch::Stride,
            },
            write_backs: args.write_backs,
            causes: args.causes,
            cores: args.cores,
        },
    })
}

/// How results are shown.
struct How {
    /// Of the caches: for instructions, for data, the second one, and the last one.
    names: [&'static str; 4],
    caches: Caches,
    format: MemFormat,
    /// How many functions, lines and instructions there are in text.
    top: usize,
    instructions: bool,
    /// The memory whose accesses miss is shown, with this number of callers.
    memory: Option<usize>,
}

fn report(
    how: &How,
    (blame, missing): (&Blame, Missing),
    sums: &Sums,
    out: &mut dyn Write,
) -> Result<()> {
    match how.format {
        MemFormat::Json => writeln!(out, "{}", missing.note(json(how, blame, sums)))?,
        MemFormat::Text => text(how, blame, sums, out)?,
    }
    Ok(out.flush()?)
}

fn caches(first: u64, (second, ways): (u64, u32), last: u64) -> Caches {
    let geometry = |size, ways| Geometry {
        size,
        ways,
        line: 64,
    };
    Caches {
        instructions: geometry(first, 8),
        data: geometry(first, 8),
        second: Some(geometry(second, ways)),
        last: geometry(last, 16),
        policy: Policy::Lru,
        extent: Extent::default(),
    }
}

/// The caches of this machine, as the kernel describes them.
fn host() -> Result<Caches> {
    let mut found: FxHashMap<(u32, String), Geometry> = FxHashMap::default();
    for index in 0..8 {
        let place = format!("/sys/devices/system/cpu/cpu0/cache/index{index}");
        let place = Path::new(&place);
        let word = |name: &str| {
            let text = std::fs::read_to_string(place.join(name)).ok()?;
            Some(text.trim().to_owned())
        };
        let number = |name: &str| word(name)?.parse::<u32>().ok();
        let size = word("size").and_then(|size| size.strip_suffix('K')?.parse::<u64>().ok());
        let (Some(level), Some(kind), Some(size)) = (number("level"), word("type"), size) else {
            continue;
        };
        let (Some(ways), Some(line)) = (
            number("ways_of_associativity"),
            number("coherency_line_size"),
        ) else {
            continue;
        };
        let geometry = Geometry {
            size: size << 10,
            ways,
            line,
        };
        if geometry.check().is_ok() {
            found.insert((level, kind), geometry);
        }
    }
    let first = |kind: &str| found.get(&(1, kind.to_owned())).copied();
    let both = found.iter().filter(|((level, _), _)| *level > 1);
    let last = both.max_by_key(|((level, _), _)| *level);
    let second = found.get(&(2, "Unified".to_owned())).copied();
    let unknown = "the kernel does not say what caches this machine has; use --like";
    Ok(Caches {
        instructions: first("Instruction").context(unknown)?,
        data: first("Data").context(unknown)?,
        second: second.filter(|_| last.is_some_and(|((level, _), _)| *level > 2)),
        last: last.map(|(_, &last)| last).context(unknown)?,
        policy: Policy::Lru,
        extent: Extent::default(),
    })
}

/// A file and a function; a source file and a line.
type Function = (String, String);
type Line = (String, u32);

/// What happened by function and by line, most misses first.
struct Sums {
    functions: Vec<(Function, Counts)>,
    lines: Vec<(Line, Counts)>,
    /// By function and line.
    parts: BTreeMap<Part, Counts>,
    /// Instructions that miss a cache.
    insns: Vec<(Insn, Counts)>,
}

/// An instruction: where it is, and the name of its operation.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Insn {
    place: InFile,
    found: Place,
    name: String,
}

impl Sums {
    fn of(simulator: &Simulator) -> Self {
        let mut by_place: FxHashMap<(&OsStr, u64), Counts> = FxHashMap::default();
        let mut names: FxHashMap<InFile, String> = FxHashMap::default();
        let mut unknown = Counts::default();
        for (block, counts) in simulator.blocks() {
            let executed = counts.iter().enumerate();
            for (insn, counts) in executed.filter(|(_, counts)| **counts != Counts::default()) {
                let Some((file, first)) = &block.file else {
                    unknown.add(counts);
                    continue;
                };
                let offset = first + (block.insns[insn].pc - block.insns[0].pc);
                let place = (file.as_os_str(), offset);
                by_place.entry(place).or_default().add(counts);
                if counts.all_misses().0 > 0
                    && let Some(place) = InFile::of(block, insn)
                {
                    let name = || hodo_dbi::mnemonic(block.bytes(insn));
                    names.entry(place).or_insert_with(name);
                }
            }
        }
        let insns = by_place.into_iter().map(|((file, offset), counts)| {
            let file = PathBuf::from(file);
            (InFile { file, offset }, counts)
        });
        let insns: Vec<(InFile, Counts)> = insns.collect();
        let places = places(insns.iter().map(|(insn, _)| insn));
        let mut functions: FxHashMap<(&OsStr, Option<&str>), Counts> = FxHashMap::default();
        let mut lines: FxHashMap<&Line, Counts> = FxHashMap::default();
        let mut parts: FxHashMap<(Option<&Line>, Option<&str>), Counts> = FxHashMap::default();
        let mut missing: FxHashMap<Insn, Counts> = FxHashMap::default();
        let nowhere = Place::default();
        for (insn, counts) in &insns {
            let place = places.get(insn).unwrap_or(&nowhere);
            let (function, line) = (place.function.as_deref(), place.line.as_ref());
            let own = functions.entry((insn.file.as_os_str(), function));
            own.or_default().add(counts);
            if let Some(line) = line {
                lines.entry(line).or_default().add(counts);
            }
            parts.entry((line, function)).or_default().add(counts);
            if let Some(name) = names.remove(insn) {
                let (place, found) = (insn.clone(), place.clone());
                missing.insert(Insn { place, found, name }, *counts);
            }
        }
        let functions = functions.into_iter().map(|((file, name), counts)| {
            let file = Path::new(file).display().to_string();
            ((file, name.unwrap_or("?").to_owned()), counts)
        });
        let lines = lines.into_iter();
        let parts = parts.into_iter().map(|((line, function), counts)| {
            let part = Part {
                file: line.map(|(file, _)| file.clone()),
                function: function.map(str::to_owned),
                line: line.map_or(0, |&(_, line)| line),
            };
            (part, counts)
        });
        let mut sums = Self {
            functions: functions.collect(),
            lines: sorted(lines.map(|(line, counts)| (line.clone(), counts)).collect()),
            parts: parts.collect(),
            insns: sorted(missing.into_iter().collect()),
        };
        if unknown.instructions > 0 {
            let part = Part {
                file: None,
                function: None,
                line: 0,
            };
            sums.parts.entry(part).or_default().add(&unknown);
            sums.functions
                .push(((String::new(), "?".to_owned()), unknown));
        }
        sums.functions = sorted(sums.functions);
        sums
    }
}

fn sorted<K: Ord>(mut sums: Vec<(K, Counts)>) -> Vec<(K, Counts)> {
    let key = |counts: &Counts| {
        let (first, last) = counts.all_misses();
        (last, first, counts.instructions)
    };
    sums.sort_by(|(name, a), (other, b)| key(b).cmp(&key(a)).then_with(|| name.cmp(other)));
    sums
}

fn fields(how: &How, counts: &Counts) -> serde_json::Map<String, serde_json::Value> {
    let value = json!({
        "instructions": counts.instructions,
        "loads": counts.accesses[0],
        "stores": counts.accesses[1],
        "i1_misses": counts.fetch_misses,
        "d1_load_misses": counts.misses[0],
        "d1_store_misses": counts.misses[1],
        "l2_fetch_misses": counts.fetch_second_misses,
        "l2_load_misses": counts.second_misses[0],
        "l2_store_misses": counts.second_misses[1],
        "ll_fetch_misses": counts.fetch_last_misses,
        "ll_load_misses": counts.last_misses[0],
        "ll_store_misses": counts.last_misses[1],
    });
    let mut fields = value.as_object().cloned().unwrap_or_default();
    if how.caches.extent.cores > 1 {
        let [apart, same] = counts.sharing_misses;
        fields.insert("true_sharing_misses".to_owned(), json!(same));
        fields.insert("false_sharing_misses".to_owned(), json!(apart));
    }
    fields
}

/// What each thread did.
fn threads_as_json(how: &How, simulator: &Simulator) -> Vec<serde_json::Value> {
    let threads = simulator.threads().iter().enumerate();
    let threads = threads.map(|(number, counts)| {
        let mut value = json!({
            "thread": number,
            "process": counts.process,
            "tid": counts.tid,
            "instructions": counts.instructions,
            "accesses": counts.accesses,
            "d1_misses": counts.misses,
            "ll_misses": counts.last_misses,
        });
        if how.caches.extent.cores > 1 {
            value["sharing_misses"] = json!(counts.sharing_misses);
        }
        value
    });
    threads.collect()
}

fn json(how: &How, blame: &Blame, sums: &Sums) -> serde_json::Value {
    let simulator = blame.simulator();
    let total = simulator.total();
    let functions = sums.functions.iter().map(|((file, name), counts)| {
        let mut fields = fields(how, counts);
        fields.insert("name".to_owned(), json!(name));
        fields.insert("file".to_owned(), json!(file));
        serde_json::Value::Object(fields)
    });
    let lines = sums.lines.iter().map(|((file, line), counts)| {
        let mut fields = fields(how, counts);
        fields.insert("file".to_owned(), json!(file));
        fields.insert("line".to_owned(), json!(line));
        serde_json::Value::Object(fields)
    });
    let threads = threads_as_json(how, simulator);
    let levels = levels(how, &total);
    let levels = levels
        .iter()
        .map(|level| json!({"name": level.name, "refs": level.references, "misses": level.misses}));
    let mut value = json!({
        "levels": levels.collect::<Vec<_>>(),
        "functions": functions.collect::<Vec<_>>(),
        "lines": lines.collect::<Vec<_>>(),
        "threads": threads,
    });
    if let Some(events) = simulator.events() {
        let [first, second, last] = events.write_backs;
        value["write_backs"] = json!({"d1": first, "l2": second, "ll": last});
        value["prefetches"] = json!({"lines": events.prefetched, "used": events.useful});
        value["invalidated"] = json!(events.invalidated);
        if how.caches.extent.cores > 1 {
            value["coherence"] = cores::json(how.caches.extent.cores, &total, events.coherence);
        }
    }
    if let Some(causes) = simulator.causes() {
        value["causes"] = json!({
            "cold": causes.cold,
            "capacity": causes.capacity,
            "conflict": causes.conflict,
            "coherence": causes.coherence,
        });
    }
    if how.instructions {
        let rows = sums.insns.iter().map(|(insn, counts)| {
            let mut fields = fields(how, counts);
            let line = insn.found.line.as_ref();
            fields.insert(
                "file".to_owned(),
                json!(insn.place.file.display().to_string()),
            );
            fields.insert("address".to_owned(), json!(insn.found.address));
            fields.insert("function".to_owned(), json!(insn.found.function));
            fields.insert(
                "line".to_owned(),
                json!(line.map(|(file, line)| format!("{file}:{line}"))),
            );
            fields.insert("opcode".to_owned(), json!(insn.name));
            serde_json::Value::Object(fields)
        });
        value["instructions"] = json!(rows.collect::<Vec<_>>());
    }
    if let Some(callers) = how.memory {
        let rows = objects::as_json(blame.memory(callers), ["d1_misses", "ll_misses"]);
        value["memory"] = json!(rows);
    }
    value
}

/// What happened in a cache.
struct Level {
    name: &'static str,
    geometry: Geometry,
    references: u64,
    misses: u64,
}

impl Level {
    /// Its name and shape.
    fn text(&self) -> String {
        let Geometry { size, ways, line } = self.geometry;
        let shape = format!("{} KiB, {ways} ways, {line} B", size >> 10);
        format!("{} {shape:<24}", self.name)
    }
}

fn levels(how: &How, total: &Counts) -> Vec<Level> {
    let How { names, caches, .. } = how;
    let sum = |pair: [u64; 2]| pair[0] + pair[1];
    let (first, last) = total.all_misses();
    let level = |number: usize, geometry, references, misses| Level {
        name: names[number],
        geometry,
        references,
        misses,
    };
    let second = total.all_second_misses();
    let data = sum(total.accesses);
    let mut levels = vec![
        level(
            0,
            caches.instructions,
            total.instructions,
            total.fetch_misses,
        ),
        level(1, caches.data, data, sum(total.misses)),
    ];
    levels.extend((caches.second).map(|geometry| level(2, geometry, first, second)));
    let before = if caches.second.is_some() {
        second
    } else {
        first
    };
    levels.push(level(3, caches.last, before, last));
    levels
}

/// What was simulated in more detail.
fn events(how: &How, simulator: &Simulator, out: &mut dyn Write) -> Result<()> {
    let Extent {
        inclusion,
        prefetch,
        write_backs,
        ..
    } = how.caches.extent;
    let Some(events) = simulator.events() else {
        return Ok(());
    };
    if write_backs {
        let [first, second, last] = events.write_backs;
        let second = match how.caches.second {
            Some(_) => format!("{second} from L2, "),
            None => String::new(),
        };
        writeln!(
            out,
            "lines written back: {first} from D1, {second}{last} to memory"
        )?;
    }
    if prefetch != Prefetch::None {
        let (fetched, used) = (events.prefetched, events.useful);
        writeln!(
            out,
            "lines fetched ahead: {fetched}, of which {used} were used"
        )?;
    }
    if inclusion == Inclusion::Inclusive {
        let count = events.invalidated;
        writeln!(
            out,
            "lines that left other caches because they left LL: {count}"
        )?;
    }
    let cores = how.caches.extent.cores;
    if cores > 1 {
        cores::events(cores, &simulator.total(), events.coherence, out)?;
    }
    Ok(())
}

fn text(how: &How, blame: &Blame, sums: &Sums, out: &mut dyn Write) -> Result<()> {
    let simulator = blame.simulator();
    let How { names, top, .. } = *how;
    writeln!(
        out,
        "cache                          references           misses"
    )?;
    for level in levels(how, &simulator.total()) {
        let (references, misses) = (level.references, level.misses);
        let percent = 100.0 * misses as f64 / references.max(1) as f64;
        let text = level.text();
        writeln!(out, "{text} {references:>16} {misses:>16}  {percent:.2} %")?;
    }
    events(how, simulator, out)?;
    if let Some(causes) = simulator.causes() {
        let coherence = match how.caches.extent.cores {
            0..2 => String::new(),
            _ => format!(", {} coherence", causes.coherence),
        };
        writeln!(
            out,
            "{} misses: {} cold, {} capacity, {} conflict{coherence}",
            names[1], causes.cold, causes.capacity, causes.conflict
        )?;
    }
    let head = format!(
        "{:>4} misses {:>3} misses {:>3} misses  instructions",
        names[0], names[1], names[3]
    );
    writeln!(out, "\n{head}  function")?;
    for ((file, name), counts) in sums.functions.iter().take(top) {
        let file = Path::new(file)
            .file_name()
            .unwrap_or_default()
            .to_string_lossy();
        writeln!(out, "{}  {name} ({file})", row(counts))?;
    }
    if !sums.lines.is_empty() {
        writeln!(out, "\n{head}  line")?;
    }
    for ((file, line), counts) in sums.lines.iter().take(top) {
        writeln!(out, "{}  {file}:{line}", row(counts))?;
    }
    threads(how, simulator, out)?;
    if how.caches.extent.cores > 1 {
        shared(top, sums, out)?;
    }
    if how.instructions {
        instructions(how, &head, sums, out)?;
    }
    if let Some(callers) = how.memory {
        memory(how, &blame.memory(callers), out)?;
    }
    Ok(())
}

/// The functions and lines that miss because of other processors.
fn shared(top: usize, sums: &Sums, out: &mut dyn Write) -> Result<()> {
    let functions = sums.functions.iter().map(|((file, name), counts)| {
        let file = Path::new(file).file_name().unwrap_or_default();
        (format!("{name} ({})", file.to_string_lossy()), counts)
    });
    cores::table("function", functions, top, out)?;
    let lines = sums.lines.iter();
    let lines = lines.map(|((file, line), counts)| (format!("{file}:{line}"), counts));
    cores::table("line", lines, top, out)
}

/// What each thread did, if there are several.
fn threads(how: &How, simulator: &Simulator, out: &mut dyn Write) -> Result<()> {
    let threads = simulator.threads();
    if threads.len() < 2 {
        return Ok(());
    }
    writeln!(
        out,
        "\n  {:>11} misses {:>4} misses  instructions  thread",
        how.names[1], how.names[3]
    )?;
    for (number, counts) in threads.iter().enumerate().take(how.top) {
        writeln!(
            out,
            "{:>20} {:>11} {:>13}  {number} (process {}, thread {})",
            counts.misses, counts.last_misses, counts.instructions, counts.process, counts.tid
        )?;
    }
    Ok(())
}

/// The memory whose accesses miss.
fn memory(how: &How, rows: &[Object], out: &mut dyn Write) -> Result<()> {
    let [_, first, _, last] = how.names;
    writeln!(out, "\n  {first:>11} misses {last:>4} misses  memory")?;
    for object in rows.iter().take(how.top) {
        let [misses, last_misses] = object.counts;
        let what = objects::memory(object);
        writeln!(out, "{misses:>20} {last_misses:>11}  {what}")?;
    }
    Ok(())
}

/// The instructions that miss.
fn instructions(how: &How, head: &str, sums: &Sums, out: &mut dyn Write) -> Result<()> {
    writeln!(out, "\n{head}  instruction")?;
    for (insn, counts) in sums.insns.iter().take(how.top) {
        let address = insn.found.address.unwrap_or(insn.place.offset);
        let function = insn.found.function.as_deref().unwrap_or("?");
        let name = &insn.name;
        writeln!(out, "{}  {address:#x} {name} in {function}", row(counts))?;
    }
    Ok(())
}

fn row(counts: &Counts) -> String {
    format!(
        "{:>11} {:>10} {:>10} {:>13}",
        counts.fetch_misses,
        counts.misses[0] + counts.misses[1],
        counts.all_misses().1,
        counts.instructions
    )
}
