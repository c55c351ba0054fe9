//! What a model of caches has found: as text, as JSON, and as pages.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::Result;
use rustc_hash::FxHashMap;
use serde_json::json;

use crate::blame::Blame;
use crate::cache::{Counts, Simulator};
use crate::hot::Object;
use crate::model::{Caches, Extent, Geometry, Inclusion, Prefetch};
use crate::places::{InFile, Place, places};

use super::cachegrind::{self, Part};
use super::html::Page;
use super::{cores, objects};

/// How results are shown.
#[derive(Debug, Clone)]
pub struct How {
    /// Of the caches: for instructions, for data, the second one, and the last one.
    pub names: [&'static str; 4],
    /// Their shapes.
    pub caches: Caches,
    /// How many functions, lines and instructions there are in text.
    pub top: usize,
    /// Whether instructions are shown, too.
    pub instructions: bool,
    /// The memory whose accesses miss is shown, with this number of callers.
    pub memory: Option<usize>,
}

/// A file and a function; a source file and a line.
type Function = (String, String);
type Line = (String, u32);

/// What happened by function and by line, most misses first.
#[derive(Debug)]
pub struct Sums {
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
    /// What a simulator has found.
    #[must_use]
    pub fn of(simulator: &Simulator) -> Self {
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

    /// Writes a file of cachegrind.
    ///
    /// # Errors
    /// If that fails.
    pub fn cachegrind(
        &self,
        out: &mut impl Write,
        caches: &Caches,
        command: &[OsString],
    ) -> Result<()> {
        cachegrind::write(out, caches, command, &self.parts)
    }

    /// A page for browsers. `title` says what was observed.
    #[must_use]
    pub fn page<'p>(&'p self, title: String, how: &How, simulator: &'p Simulator) -> Page<'p> {
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
            functions: &self.functions,
            lines: &self.lines,
            timeline: simulator.timeline(),
            line: how.caches.data.line,
        }
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

/// The results as JSON.
#[must_use]
pub fn json(how: &How, blame: &Blame, sums: &Sums) -> serde_json::Value {
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

/// Writes the results as text.
///
/// # Errors
/// If that fails.
pub fn text(how: &How, blame: &Blame, sums: &Sums, out: &mut dyn Write) -> Result<()> {
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
