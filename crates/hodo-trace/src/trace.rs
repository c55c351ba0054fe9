//! Opens a trace directory.

use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use hodo_abi::Isa;

use crate::calls::{Calls, Frame, TailCalls, Traits};
use crate::error::TraceError;
use crate::format::{self, chunk_header, file_header, record};
use crate::meta::{Change, Info, Line, Map, Probe, Remark, Signal};
use crate::model::{Chunk, Function, FunctionKind, Module, Task};
use crate::records::Records;

/// An open trace.
#[derive(Debug)]
pub struct Trace {
    directory: PathBuf,
    pub(crate) events: File,
    pub(crate) control_size: u64,
    /// Why some records could not be read.
    unread: OnceLock<String>,
    /// Traits by function id.
    traits: Arc<[Traits]>,
    /// How tail calls are shown.
    tail_calls: TailCalls,
    /// What was recorded, and how.
    pub info: Info,
    /// The files.
    pub modules: Vec<Module>,
    /// The functions by id. The first id is 1, so the first element is never used.
    pub functions: Vec<Option<Function>>,
    /// The threads, in the order in which they began.
    pub tasks: Vec<Task>,
    /// The probes that write events.
    pub probes: Vec<Probe>,
    /// Code that was mapped, in the order in which it was found.
    pub maps: Vec<Map>,
    /// Signals that threads received, in the order of time. They are recorded only together with system calls.
    pub signals: Vec<Signal>,
    /// The recorder's messages to the user.
    pub remarks: Vec<Remark>,
    /// Changes of the recording while it ran, in the order of time.
    pub changes: Vec<Change>,
    /// What is wrong with the trace, and what was left out because of that.
    pub damage: Vec<String>,
    /// The size of all files in bytes.
    pub bytes: u64,
}

fn io(path: &Path) -> impl FnOnce(std::io::Error) -> TraceError + '_ {
    move |error| TraceError::Io {
        path: path.to_owned(),
        error,
    }
}

fn damaged(path: &Path, what: impl ToString) -> TraceError {
    TraceError::Damaged {
        path: path.to_owned(),
        what: what.to_string(),
    }
}

/// A span of time, with both of its ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Times {
    /// Its first moment.
    pub first: u64,
    /// Its last moment.
    pub last: u64,
}

impl Times {
    /// All times.
    pub const ALL: Self = Self {
        first: 0,
        last: u64::MAX,
    };

    /// Whether a moment is in it.
    #[must_use]
    pub fn contains(self, moment: u64) -> bool {
        (self.first..=self.last).contains(&moment)
    }
}

impl Trace {
    /// Opens the trace in a directory.
    ///
    /// # Errors
    /// If the directory is not a trace, the version is another one, or `info.json` or the header of `events` cannot be
    /// read. Anything else that is damaged is left out and reported in [`Trace::damage`].
    pub fn open(directory: impl AsRef<Path>) -> Result<Self, TraceError> {
        let directory = directory.as_ref();
        let mut trace = Self::begin(directory)?;
        trace.read_log()?;
        trace.read_chunks(&directory.join("events"))?;
        let functions = trace.functions.iter();
        trace.traits = functions
            .map(|f| {
                f.as_ref().map_or(Traits::PLAIN, |f| {
                    Traits::of(&f.name, f.kind.is_entry_only())
                })
            })
            .collect();
        Ok(trace)
    }

    /// Opens a trace, and reads only its header.
    pub(crate) fn begin(directory: &Path) -> Result<Self, TraceError> {
        if !directory.exists() {
            return Err(TraceError::Missing(directory.to_owned()));
        }
        let info_path = directory.join("info.json");
        if !info_path.is_file() {
            return Err(TraceError::NotATrace(directory.to_owned()));
        }
        let info = read_info(&info_path)?;
        let events_path = directory.join("events");
        let events = File::open(&events_path).map_err(io(&events_path))?;
        let mut trace = Self {
            directory: directory.to_owned(),
            events,
            control_size: 0,
            unread: OnceLock::new(),
            traits: Arc::default(),
            tail_calls: TailCalls::default(),
            info,
            modules: Vec::new(),
            functions: vec![None],
            tasks: Vec::new(),
            probes: Vec::new(),
            maps: Vec::new(),
            signals: Vec::new(),
            remarks: Vec::new(),
            changes: Vec::new(),
            damage: Vec::new(),
            bytes: 0,
        };
        if trace.info.isa().is_none() {
            trace.damage.push(format!(
                "{}: the instruction set {:?} is unknown here: stacks and system calls are not shown",
                info_path.display(),
                trace.info.arch
            ));
        }
        trace.read_header(&events_path)?;
        Ok(trace)
    }

    fn read_log(&mut self) -> Result<(), TraceError> {
        let path = self.directory.join("log.jsonl");
        let text = std::fs::read(&path).map_err(io(&path))?;
        self.bytes += text.len() as u64;
        for (number, line) in text.split(|&b| b == b'\n').enumerate() {
            if line.is_empty() {
                continue;
            }
            match serde_json::from_slice(line) {
                Ok(line) => self.read_line(line),
                Err(error) => {
                    self.damage
                        .push(format!("{}, line {}: {error}", path.display(), number + 1))
                }
            }
        }
        let unlogged = self.info.finished.as_ref().map_or(0, |f| f.unlogged);
        if unlogged > 0 {
            let path = path.display();
            self.damage.push(format!(
                "{path}: {unlogged} lines are missing: the disk was full"
            ));
        }
        Ok(())
    }

    pub(crate) fn read_line(&mut self, line: Line) {
        match line {
            Line::Probe(probe) => self.probes.push(probe),
            Line::Map(map) => self.maps.push(map),
            Line::Module(module) => {
                let index = self.modules.len();
                self.modules.push(Module {
                    path: module.path,
                    build_id: module.build_id,
                    symbols: module.symbols,
                });
                let path = self.directory.join(&module.file);
                if let Err(error) = self.read_symbols(&path, module.first_id, module.count, index) {
                    self.damage.push(error.to_string());
                }
            }
            Line::Task(task) => {
                if task.id as usize != self.tasks.len() + 1 {
                    self.damage
                        .push(format!("task {} is out of order: left out", task.id));
                    return;
                }
                self.tasks.push(Task {
                    id: task.id,
                    tid: task.tid,
                    pid: task.pid,
                    ppid: task.ppid,
                    comm: task.comm.unwrap_or_default(),
                    kind: task.kind,
                    parent: if task.parent < task.id {
                        task.parent
                    } else {
                        0
                    },
                    began: task.counter,
                    ended: None,
                    exit: None,
                    chunks: Vec::new(),
                });
            }
            Line::TaskEnd(end) => {
                if let Some(task) = self.task_mut(end.id) {
                    task.ended = Some(end.counter);
                    task.exit = end.exit;
                }
            }
            Line::TaskName(name) => {
                if let Some(task) = self.task_mut(name.id) {
                    task.comm = name.comm;
                }
            }
            Line::Signal(signal) => self.signals.push(signal),
            Line::Remark(remark) => self.remarks.push(remark),
            Line::Change(change) => self.changes.push(change),
        }
    }

    fn read_symbols(
        &mut self,
        path: &Path,
        first: u32,
        count: u32,
        module: usize,
    ) -> Result<(), TraceError> {
        let text = std::fs::read(path).map_err(io(path))?;
        self.bytes += text.len() as u64;
        let text = String::from_utf8_lossy(&text);
        let mut lines = text.lines();
        if lines.next() != Some("# hodo-sym 1") {
            return Err(damaged(path, "it does not begin with \"# hodo-sym 1\""));
        }
        if first == 0 || first > format::record::MAX_FUNCTION_ID || count as usize > text.len() {
            return Err(damaged(path, "its function ids are out of range"));
        }
        let mut found = 0;
        for (index, line) in lines.enumerate().take(count as usize) {
            let mut fields = line.splitn(4, ' ');
            let mut field = || fields.next().unwrap_or("");
            let number = |text: &str| u64::from_str_radix(text, 16);
            let (addr, size, kind, name) = (field(), field(), field(), field());
            let (Ok(addr), Ok(size), Some(kind)) =
                (number(addr), number(size), FunctionKind::from_letter(kind))
            else {
                return Err(damaged(path, format!("line {} is no symbol", index + 2)));
            };
            let id = first as usize + index;
            if id > format::record::MAX_FUNCTION_ID as usize {
                break;
            }
            if self.functions.len() <= id {
                self.functions.resize(id + 1, None);
            }
            self.functions[id] = Some(Function {
                addr,
                size,
                kind,
                name: name.to_owned(),
                module,
            });
            found += 1;
        }
        if found < count && first + count <= format::record::MAX_FUNCTION_ID {
            return Err(damaged(
                path,
                format!("it ends after {found} of {count} functions"),
            ));
        }
        Ok(())
    }

    /// Checks the header of the `events` file. Returns how many chunks were handed out.
    fn read_header(&mut self, path: &Path) -> Result<u64, TraceError> {
        let mut header = [0; 64];
        self.events
            .read_exact_at(&mut header, 0)
            .map_err(|_| damaged(path, "it is shorter than its header"))?;
        let word = |at: u64| u64::from_le_bytes(header[at as usize..][..8].try_into().expect("8"));
        let half = |at: u64| u32::from_le_bytes(header[at as usize..][..4].try_into().expect("4"));
        if header[..8] != format::FILE_MAGIC {
            return Err(damaged(path, "it does not begin with its magic number"));
        }
        if half(file_header::VERSION) != format::FORMAT_VERSION {
            return Err(TraceError::Version {
                path: path.to_owned(),
                found: half(file_header::VERSION).into(),
                known: format::FORMAT_VERSION,
            });
        }
        self.control_size = word(file_header::CONTROL_SIZE);
        if u64::from(half(file_header::CHUNK_SIZE)) != format::CHUNK_SIZE
            || !(4096..1 << 32).contains(&self.control_size)
        {
            return Err(damaged(path, "the sizes in its header are out of range"));
        }
        Ok(word(file_header::NEXT_CHUNK).min(word(file_header::MAX_CHUNKS)))
    }

    /// Assigns a chunk of a trace that is being written to its task. Returns whether this was possible. If not, the
    /// chunk has not been begun yet.
    pub(crate) fn read_chunk(&mut self, (index, at): (u64, u32)) -> bool {
        let mut header = [0; format::CHUNK_HEADER_SIZE as usize];
        let start = self.control_size + index * format::CHUNK_SIZE + u64::from(at);
        if self.events.read_exact_at(&mut header, start).is_err() {
            return false;
        }
        let half = |at: u64| u32::from_le_bytes(header[at as usize..][..4].try_into().expect("4"));
        if half(chunk_header::MAGIC) != format::CHUNK_MAGIC {
            return false;
        }
        let chunk = Chunk {
            index,
            at,
            seq: half(chunk_header::SEQ),
            epoch: half(chunk_header::EPOCH),
            lost: 0,
            begins: u64::from(half(chunk_header::EPOCH)) << 32,
        };
        let Some(task) = self.task_mut(half(chunk_header::TASK)) else {
            return false;
        };
        let before = task.chunks.partition_point(|other| other.seq < chunk.seq);
        task.chunks.insert(before, chunk);
        true
    }

    fn read_chunks(&mut self, path: &Path) -> Result<(), TraceError> {
        let len = self.events.metadata().map_err(io(path))?.len();
        let used = self.read_header(path)?;
        let room = len.saturating_sub(self.control_size);
        // The last chunk may be incomplete.
        let whole = room.div_ceil(format::CHUNK_SIZE);
        let missing = used.saturating_sub(room / format::CHUNK_SIZE);
        if missing > 0 {
            self.damage.push(format!(
                "{} ends early: {missing} of {used} chunks of records are missing or not whole",
                path.display(),
            ));
        }
        // The file's size on disk: it is sparse, and its end is only reserved while the recording goes on.
        let on_disk = self.events.metadata().map_err(io(path))?.blocks() * 512;
        self.bytes += on_disk.min(self.control_size + used.min(whole) * format::CHUNK_SIZE);
        let mut strays = 0u64;
        for index in 0..used.min(whole) {
            let mut at = Some(0);
            while let Some(from) = at {
                let Some((chunk, task)) = self.chunk_at(path, (index, from), &mut strays) else {
                    break;
                };
                match self.task_mut(task) {
                    Some(task) => task.chunks.push(chunk),
                    None => strays += 1,
                }
                at = Some(chunk.rest(&self.events, self.control_size)).filter(|&rest| rest > from);
            }
        }
        if strays > 0 {
            self.damage.push(format!(
                "{}: {strays} chunks belong to no task: left out",
                path.display()
            ));
        }
        for task in &mut self.tasks {
            task.chunks.sort_by_key(|chunk| chunk.seq);
            if let Some(at) = task
                .chunks
                .iter()
                .zip(0..)
                .position(|(chunk, seq)| chunk.seq != seq)
            {
                self.damage.push(format!(
                    "task {} ({}): chunk {at} is missing: its records end there",
                    task.id, task.tid
                ));
                task.chunks.truncate(at);
            }
        }
        Ok(())
    }

    /// Reads the chunk that begins at a place, and the number of its task. `None`: there is none, which counts as a
    /// stray one if something else is there.
    fn chunk_at(
        &mut self,
        path: &Path,
        (index, at): (u64, u32),
        strays: &mut u64,
    ) -> Option<(Chunk, u32)> {
        let mut header = [0; (format::CHUNK_HEADER_SIZE + format::RECORD_SIZE) as usize];
        let start = self.control_size + index * format::CHUNK_SIZE + u64::from(at);
        if let Err(error) = self.events.read_exact_at(&mut header, start) {
            // A file that ends too early has been reported already.
            if error.kind() != std::io::ErrorKind::UnexpectedEof {
                self.damage.push(io(path)(error).to_string());
            }
            return None;
        }
        let half = |at: u64| u32::from_le_bytes(header[at as usize..][..4].try_into().expect("4"));
        if half(chunk_header::MAGIC) != format::CHUNK_MAGIC {
            // Reserved but never begun, or overwritten.
            *strays += u64::from(header.iter().any(|&b| b != 0));
            return None;
        }
        let lost =
            u64::from(half(chunk_header::LOST)) | u64::from(half(chunk_header::LOST + 4)) << 32;
        // The time of the first record, if it has one.
        let (low, high) = (
            half(format::CHUNK_HEADER_SIZE),
            half(format::CHUNK_HEADER_SIZE + 4),
        );
        let has_time = high != 0 && high >> record::KIND_SHIFT & 3 != record::SPECIAL;
        let epoch = half(chunk_header::EPOCH);
        let chunk = Chunk {
            index,
            at,
            seq: half(chunk_header::SEQ),
            epoch,
            lost,
            begins: u64::from(epoch) << 32 | if has_time { u64::from(low) } else { 0 },
        };
        Some((chunk, half(chunk_header::TASK)))
    }

    fn task_mut(&mut self, id: u32) -> Option<&mut Task> {
        self.tasks.get_mut((id as usize).checked_sub(1)?)
    }

    /// Returns the task with this number.
    #[must_use]
    pub fn task(&self, id: u32) -> Option<&Task> {
        self.tasks.get((id as usize).checked_sub(1)?)
    }

    /// Returns the trace directory.
    #[must_use]
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Returns the function with this id.
    #[must_use]
    pub fn function(&self, id: u32) -> Option<&Function> {
        self.functions.get(id as usize)?.as_ref()
    }

    /// Returns the records of a task, in order.
    #[must_use]
    pub fn records(&self, task: &Task) -> Records<'_> {
        Records::new(
            &self.events,
            self.control_size,
            task.chunks.clone(),
            task.began,
            self.window_shift(),
            &self.unread,
        )
    }

    /// See [`record::window_shift`].
    fn window_shift(&self) -> u32 {
        record::window_shift(self.info.isa().unwrap_or(Isa::NATIVE))
    }

    /// Selects how tail calls are shown.
    pub fn set_tail_calls(&mut self, tail_calls: TailCalls) {
        self.tail_calls = tail_calls;
    }

    /// Returns why some records requested so far could not be read. Views report it at their end.
    #[must_use]
    pub fn unread(&self) -> Option<String> {
        let path = self.directory.join("events");
        let error = self.unread.get()?;
        Some(format!(
            "cannot read {}: {error}: records are missing",
            path.display()
        ))
    }

    /// Returns a time shortly before the first record of a task, in units of the counter.
    #[must_use]
    pub fn begins(&self, task: &Task) -> Option<u64> {
        // Times within a task may run backwards because of a signal's interruption, but not far.
        task.chunks.iter().take(2).map(|chunk| chunk.begins).min()
    }

    /// Returns the times of the first and the last record of a task, in units of the counter.
    #[must_use]
    pub fn span(&self, task: &Task) -> Option<Times> {
        let first = self.records(task).next()?;
        let chunk = vec![*task.chunks.last()?];
        let (size, began) = (self.control_size, task.began);
        let shift = self.window_shift();
        let last = Records::new(&self.events, size, chunk, began, shift, &self.unread).last();
        Some(Times {
            first: first.time,
            last: last.map_or(first.time, |last| last.time.max(first.time)),
        })
    }

    /// Returns the initial state for turning the records of a task into calls. `frames` are those open at its
    /// beginning; see [`Trace::inherited`].
    #[must_use]
    pub fn calls(&self, frames: Vec<Frame>) -> Calls {
        Calls::new(Arc::clone(&self.traits), frames).with_tail_calls(self.tail_calls)
    }

    /// Returns, for each task (by index) that was forked from another one, the frames that were open when it was
    /// created.
    #[must_use]
    pub fn inherited(&self) -> Vec<Vec<Frame>> {
        let mut frames = vec![Vec::new(); self.tasks.len()];
        if !self.info.timed {
            // Without times, nobody knows when the tasks were created.
            return frames;
        }
        let mut children: HashMap<usize, Vec<usize>> = HashMap::new();
        for (index, task) in self.tasks.iter().enumerate() {
            if task.kind == "fork" && task.parent > 0 {
                children
                    .entry(task.parent as usize - 1)
                    .or_default()
                    .push(index);
            }
        }
        let mut parents: Vec<usize> = children.keys().copied().collect();
        // The frames of a task must be known before those of its children.
        parents.sort_unstable();
        for parent in parents {
            let mut children = children.remove(&parent).unwrap_or_default();
            children.sort_by_key(|&child| self.tasks[child].began);
            let mut children = children.into_iter().peekable();
            let mut calls = self.calls(frames[parent].clone());
            let mut copy = |calls: &Calls, child: usize| {
                let began = self.tasks[child].began;
                frames[child] = calls.frames().iter().map(|f| f.inherited(began)).collect();
            };
            for record in self.records(&self.tasks[parent]) {
                while let Some(child) =
                    children.next_if(|&child| self.tasks[child].began < record.time)
                {
                    copy(&calls, child);
                }
                if children.peek().is_none() {
                    break;
                }
                calls.feed(record, |_| ());
            }
            for child in children {
                copy(&calls, child);
            }
        }
        frames
    }

    /// Converts a value of the counter to nanoseconds of the trace's clock.
    #[must_use]
    pub fn nanoseconds(&self, counter: u64) -> u64 {
        self.scale().nanoseconds(counter)
    }

    /// Returns the conversion of counter values.
    #[must_use]
    pub fn scale(&self) -> Scale {
        let samples = &self.info.clock.samples;
        let (Some(first), Some(last)) = (samples.first(), samples.last()) else {
            return Scale::default();
        };
        let ratio = if last.counter > first.counter && last.ns > first.ns {
            (last.ns - first.ns) as f64 / (last.counter - first.counter) as f64
        } else {
            1e9 / self.info.clock.hz.filter(|&hz| hz >= 1.0).unwrap_or(1e9)
        };
        Scale {
            counter: first.counter,
            ns: first.ns,
            ratio,
        }
    }
}

/// Converts the counter to nanoseconds.
#[derive(Debug, Clone, Copy, Default)]
pub struct Scale {
    counter: u64,
    ns: u64,
    ratio: f64,
}

impl Scale {
    /// Converts a duration in units of the counter to nanoseconds.
    #[must_use]
    pub fn duration(&self, counter: u64) -> u64 {
        (counter as f64 * self.ratio).round() as u64
    }

    /// Returns the first value of the counter at which the trace's clock has reached this time, in nanoseconds.
    #[must_use]
    pub fn counter(&self, ns: u64) -> u64 {
        let (mut low, mut high) = (0, u64::MAX >> 1);
        while low < high {
            let middle = low + (high - low) / 2;
            match self.nanoseconds(middle) < ns {
                true => low = middle + 1,
                false => high = middle,
            }
        }
        low
    }

    /// Converts a value of the counter to nanoseconds of the trace's clock.
    #[must_use]
    #[inline]
    pub fn nanoseconds(&self, counter: u64) -> u64 {
        let delta = counter.wrapping_sub(self.counter).cast_signed() as f64;
        self.ns
            .saturating_add_signed((delta * self.ratio).round() as i64)
    }
}

fn read_info(path: &Path) -> Result<Info, TraceError> {
    let text = std::fs::read(path).map_err(io(path))?;
    let value: serde_json::Value =
        serde_json::from_slice(&text).map_err(|error| damaged(path, error))?;
    if value["format"] != format::FORMAT_NAME {
        return Err(damaged(
            path,
            format!("its format is not {:?}", format::FORMAT_NAME),
        ));
    }
    let version = value["version"].as_u64().unwrap_or(0);
    if version != u64::from(format::FORMAT_VERSION) {
        return Err(TraceError::Version {
            path: path.to_owned(),
            found: version,
            known: format::FORMAT_VERSION,
        });
    }
    serde_json::from_value(value).map_err(|error| damaged(path, error))
}
