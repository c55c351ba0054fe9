//! Writes traces, for tests and benchmarks of their readers.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::format::{self, chunk_header, file_header, record};

/// The records of a task that do not fill a chunk yet.
#[derive(Debug, Default)]
struct Open {
    words: Vec<u64>,
    /// The upper half of the time of the last record.
    epoch: Option<u32>,
    /// This upper half at the beginning of the chunk.
    start: u32,
    seq: u32,
    lost: u64,
}

/// A file of the trace, with its functions.
#[derive(Debug)]
struct Module {
    path: String,
    first: u32,
    symbols: Vec<String>,
}

/// A trace under construction. It has one module, `/usr/bin/prog`, until [`Builder::module`] adds more.
#[derive(Debug)]
pub struct Builder {
    directory: PathBuf,
    /// `info.json`, which tests may change as they like.
    pub info: Value,
    log: String,
    modules: Vec<Module>,
    next_id: u32,
    tasks: Vec<Open>,
    events: BufWriter<File>,
    chunks: u64,
}

const CONTROL: u64 = 4096;
const PER_CHUNK: usize = ((format::CHUNK_SIZE - format::CHUNK_HEADER_SIZE) / 8) as usize;

impl Builder {
    /// Creates a trace in a new directory. Its counter runs in nanoseconds. `timed`: records have timestamps.
    ///
    /// # Panics
    /// If the directory cannot be created.
    #[must_use]
    pub fn new(directory: &Path, timed: bool) -> Self {
        let _ = fs::remove_dir_all(directory);
        fs::create_dir_all(directory).expect("a directory");
        let info = json!({
            "format": format::FORMAT_NAME, "version": format::FORMAT_VERSION, "arch": "x86-64", "hodo": "0.1.0",
            "cmdline": ["hodo", "record", "prog"], "exe": "/usr/bin/prog", "args": ["prog"], "timed": timed,
            "clock": {"source": "tsc", "name": "mono",
                      "samples": [{"counter": 0, "ns": 0}, {"counter": 1000, "ns": 1000}]},
            "started": {"unix_ns": 1_790_000_000_000_000_000u64},
            "host": {"os": "Linux 6.18.0", "hostname": "vm", "cpu": "AMD EPYC", "cpus_online": 2, "cpus_possible": 2,
                     "distro": "Debian GNU/Linux 12 (bookworm)", "mem_total": 25_000_000_000u64,
                     "mem_free": 24_000_000_000u64, "load": [0.1, 0.2, 0.3]},
            "patterns": "regex",
            "finished": {"elapsed_ns": 5_000_000, "exit": {"code": 0}, "chunks": 1, "lost": 0,
                         "usage": {"utime_ns": 1_000_000, "stime_ns": 2_000_000, "maxrss_kb": 3000, "minflt": 100,
                                   "majflt": 1, "nvcsw": 4, "nivcsw": 2, "inblock": 8, "oublock": 16}},
        });
        let events = File::create(directory.join("events")).expect("events");
        let mut events = BufWriter::with_capacity(1 << 20, events);
        // The header is written last, when it is known.
        events.write_all(&[0; CONTROL as usize]).expect("events");
        let mut builder = Self {
            directory: directory.to_owned(),
            info,
            log: String::new(),
            modules: Vec::new(),
            next_id: 1,
            tasks: Vec::new(),
            events,
            chunks: 0,
        };
        builder.module("/usr/bin/prog");
        builder
    }

    /// Adds a module. The functions added after this belong to it.
    pub fn module(&mut self, path: &str) {
        self.modules.push(Module {
            path: path.to_owned(),
            first: self.next_id,
            symbols: Vec::new(),
        });
    }

    /// Changes the path of the last module.
    pub fn rename(&mut self, path: &str) {
        self.modules.last_mut().expect("there is a module").path = path.to_owned();
    }

    /// Adds a function to the last module. `kind` is as in the symbol file. Returns its id.
    pub fn function(&mut self, name: &str, kind: char) -> u32 {
        let addr = 0x1000 + u64::from(self.next_id) * 0x10;
        self.function_at(name, kind, addr, 0x10)
    }

    /// Adds a function at an address to the last module. Returns its id.
    pub fn function_at(&mut self, name: &str, kind: char, addr: u64, size: u64) -> u32 {
        let module = self.modules.last_mut().expect("there is a module");
        module
            .symbols
            .push(format!("{addr:x} {size:x} {kind} {name}"));
        self.next_id += 1;
        self.next_id - 1
    }

    /// Adds a line to the log.
    pub fn log(&mut self, line: &Value) {
        writeln!(self.log, "{line}").expect("a string");
    }

    /// Adds a task of the program `prog`. `parent` 0 means none. Returns its number.
    pub fn task(&mut self, tid: i32, kind: &str, parent: u32, counter: u64) -> u32 {
        let pid = if kind == "thread" { 100 } else { tid };
        self.task_named(tid, pid, "prog", kind, parent, counter)
    }

    /// Adds a task. Returns its number.
    pub fn task_named(
        &mut self,
        tid: i32,
        pid: i32,
        comm: &str,
        kind: &str,
        parent: u32,
        counter: u64,
    ) -> u32 {
        let id = self.tasks.len() as u32 + 1;
        self.log(
            &json!({"task": {"id": id, "tid": tid, "pid": pid, "ppid": 1, "comm": comm, "kind": kind,
                             "parent": parent, "counter": counter}}),
        );
        self.tasks.push(Open::default());
        id
    }

    /// Ends a task.
    pub fn end(&mut self, task: u32, counter: u64) {
        self.log(&json!({"task_end": {"id": task, "counter": counter, "exit": {"code": 0}}}));
    }

    /// Adds a record. Its kind is as in [`record`].
    pub fn record(&mut self, task: u32, kind: u32, id: u32, sp: u32, time: u64) {
        let epoch = (time >> 32) as u32;
        let open = &mut self.tasks[task as usize - 1];
        if open.words.is_empty() {
            open.start = epoch;
        }
        if open.epoch.replace(epoch).is_some_and(|last| last != epoch) && !open.words.is_empty() {
            let special = record::SPECIAL_EPOCH | record::SPECIAL << record::KIND_SHIFT;
            self.word(task, u64::from(special) << 32 | u64::from(epoch));
            let open = &mut self.tasks[task as usize - 1];
            if open.words.is_empty() {
                open.start = epoch;
            }
        }
        let high = id | kind << record::KIND_SHIFT | (sp & 1023) << record::SP_SHIFT;
        self.word(task, u64::from(high) << 32 | time & 0xFFFF_FFFF);
    }

    /// Adds eight raw bytes.
    pub fn word(&mut self, task: u32, word: u64) {
        let open = &mut self.tasks[task as usize - 1];
        open.words.push(word);
        if open.words.len() == PER_CHUNK {
            self.flush(task);
        }
    }

    /// Begins a chunk before which the task lost this many records.
    pub fn lose(&mut self, task: u32, count: u64) {
        self.flush(task);
        self.tasks[task as usize - 1].lost += count;
    }

    /// Adds a call of a function that calls nothing.
    pub fn leaf(&mut self, task: u32, id: u32, sp: u32, from: u64, to: u64) {
        self.record(task, record::ENTRY, id, sp, from);
        self.record(task, record::EXIT, id, sp, to);
    }

    fn flush(&mut self, task: u32) {
        let open = &mut self.tasks[task as usize - 1];
        if open.words.is_empty() {
            return;
        }
        let mut chunk = vec![0; format::CHUNK_HEADER_SIZE as usize];
        let mut put = |at: u64, value: u32| {
            chunk[at as usize..][..4].copy_from_slice(&value.to_le_bytes());
        };
        put(chunk_header::MAGIC, format::CHUNK_MAGIC);
        put(chunk_header::SEQ, open.seq);
        put(chunk_header::TASK, task);
        put(chunk_header::EPOCH, open.start);
        put(chunk_header::LOST, open.lost as u32);
        open.seq += 1;
        for word in open.words.drain(..) {
            chunk.extend(word.to_le_bytes());
        }
        chunk.resize(format::CHUNK_SIZE as usize, 0);
        self.events.write_all(&chunk).expect("events");
        self.chunks += 1;
    }

    /// Writes all files.
    ///
    /// # Panics
    /// If the files cannot be written.
    pub fn finish(mut self) -> PathBuf {
        for task in 1..=self.tasks.len() as u32 {
            self.flush(task);
        }
        let path = |name: &str| self.directory.join(name);
        let mut log = String::new();
        for (id, module) in self.modules.iter().enumerate() {
            let file = format!("module-{id}.sym");
            let line = json!({"module": {"id": id, "path": module.path, "build_id": "ab12", "first_id": module.first,
                                         "count": module.symbols.len(), "file": file}});
            writeln!(log, "{line}").expect("a string");
            let mut text = "# hodo-sym 1\n".to_owned();
            for symbol in &module.symbols {
                text.push_str(symbol);
                text.push('\n');
            }
            fs::write(path(&file), text).expect("symbols");
        }
        log.push_str(&self.log);
        fs::write(path("log.jsonl"), log).expect("log.jsonl");
        fs::write(path("info.json"), self.info.to_string()).expect("info.json");
        let mut header = vec![0; 64];
        let mut put =
            |at: u64, bytes: &[u8]| header[at as usize..][..bytes.len()].copy_from_slice(bytes);
        put(file_header::MAGIC, &format::FILE_MAGIC);
        put(file_header::VERSION, &format::FORMAT_VERSION.to_le_bytes());
        put(
            file_header::CHUNK_SIZE,
            &(format::CHUNK_SIZE as u32).to_le_bytes(),
        );
        put(file_header::CONTROL_SIZE, &CONTROL.to_le_bytes());
        put(file_header::NEXT_CHUNK, &self.chunks.to_le_bytes());
        put(file_header::MAX_CHUNKS, &u64::MAX.to_le_bytes());
        let events = self.events.into_inner().expect("events");
        std::os::unix::fs::FileExt::write_all_at(&events, &header, 0).expect("events");
        self.directory
    }
}
