//! Writing small traces, for tests of what reads them.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use crate::format::{self, chunk_header, file_header, record};

/// A trace being made.
#[derive(Debug)]
pub struct Builder {
    directory: PathBuf,
    log: String,
    symbols: String,
    count: u32,
    tasks: u32,
    chunks: Vec<Vec<u8>>,
    open: Vec<(u32, Vec<u64>)>,
    epoch: u32,
}

impl Builder {
    /// A trace in a new directory. Its counter runs in nanoseconds; `timed`: records have timestamps.
    ///
    /// # Panics
    /// If the directory cannot be made.
    #[must_use]
    pub fn new(directory: &Path, timed: bool) -> Self {
        let _ = fs::remove_dir_all(directory);
        fs::create_dir_all(directory).expect("a directory");
        let info = serde_json::json!({
            "format": format::FORMAT_NAME, "version": format::FORMAT_VERSION, "arch": "x86-64", "hodo": "0.1.0",
            "cmdline": ["hodo", "record", "prog"], "exe": "/usr/bin/prog", "args": ["prog"], "timed": timed,
            "clock": {"source": "tsc", "name": "mono", "samples": [{"counter": 0, "ns": 0}, {"counter": 1000, "ns": 1000}]},
            "started": {"unix_ns": 1_790_000_000_000_000_000u64},
            "host": {"os": "Linux 6.18.0", "hostname": "vm", "cpu": "AMD EPYC", "cpus_online": 2, "cpus_possible": 2,
                     "distro": "Debian GNU/Linux 12 (bookworm)", "mem_total": 25_000_000_000u64,
                     "mem_free": 24_000_000_000u64, "load": [0.1, 0.2, 0.3]},
            "patterns": "regex",
            "finished": {"elapsed_ns": 5_000_000, "exit": {"code": 0}, "chunks": 1, "lost": 0,
                         "usage": {"utime_ns": 1_000_000, "stime_ns": 2_000_000, "maxrss_kb": 3000, "minflt": 100,
                                   "majflt": 1, "nvcsw": 4, "nivcsw": 2, "inblock": 8, "oublock": 16}},
        });
        fs::write(directory.join("info.json"), info.to_string()).expect("info.json");
        Self {
            directory: directory.to_owned(),
            log: String::new(),
            symbols: "# hodo-sym 1\n".to_owned(),
            count: 0,
            tasks: 0,
            chunks: Vec::new(),
            open: Vec::new(),
            epoch: 0,
        }
    }

    /// A function of the one module; `kind` as in the symbol file. Returns its id.
    pub fn function(&mut self, name: &str, kind: char) -> u32 {
        self.count += 1;
        let addr = 0x1000 + self.count * 0x10;
        self.symbols
            .push_str(&format!("{addr:x} 10 {kind} {name}\n"));
        self.count
    }

    /// A task; `parent` 0: none. Returns its number.
    pub fn task(&mut self, tid: i32, kind: &str, parent: u32, counter: u64) -> u32 {
        self.tasks += 1;
        let pid = if kind == "thread" { 100 } else { tid };
        let line = serde_json::json!({"task": {"id": self.tasks, "tid": tid, "pid": pid, "ppid": 1, "comm": "prog",
            "kind": kind, "parent": parent, "counter": counter}});
        self.log.push_str(&format!("{line}\n"));
        self.open.push((self.tasks, Vec::new()));
        self.tasks
    }

    /// The end of a task.
    pub fn end(&mut self, task: u32, counter: u64) {
        let line =
            serde_json::json!({"task_end": {"id": task, "counter": counter, "exit": {"code": 0}}});
        self.log.push_str(&format!("{line}\n"));
    }

    /// One record, of a kind as in [`record`].
    pub fn record(&mut self, task: u32, kind: u32, id: u32, sp: u32, time: u64) {
        let high = id | kind << record::KIND_SHIFT | (sp & 1023) << record::SP_SHIFT;
        let word = u64::from(high) << 32 | time & 0xFFFF_FFFF;
        self.open[task as usize - 1].1.push(word);
        let per_chunk = ((format::CHUNK_SIZE - format::CHUNK_HEADER_SIZE) / 8) as usize;
        if self.open[task as usize - 1].1.len() == per_chunk {
            self.flush(task);
        }
    }

    /// A call of a function without anything in it.
    pub fn leaf(&mut self, task: u32, id: u32, sp: u32, from: u64, to: u64) {
        self.record(task, record::ENTRY, id, sp, from);
        self.record(task, record::EXIT, id, sp, to);
    }

    fn flush(&mut self, task: u32) {
        let seq = self
            .chunks
            .iter()
            .filter(|c| c[chunk_header::TASK as usize..][..4] == task.to_le_bytes())
            .count() as u32;
        let words = std::mem::take(&mut self.open[task as usize - 1].1);
        let mut chunk = vec![0; format::CHUNK_HEADER_SIZE as usize];
        let mut put = |at: u64, value: u32| {
            chunk[at as usize..][..4].copy_from_slice(&value.to_le_bytes());
        };
        put(chunk_header::MAGIC, format::CHUNK_MAGIC);
        put(chunk_header::SEQ, seq);
        put(chunk_header::TASK, task);
        put(chunk_header::EPOCH, self.epoch);
        for word in words {
            chunk.extend(word.to_le_bytes());
        }
        chunk.resize(format::CHUNK_SIZE as usize, 0);
        self.chunks.push(chunk);
    }

    /// Writes everything.
    ///
    /// # Panics
    /// If the files cannot be written.
    pub fn finish(mut self) -> PathBuf {
        for task in 1..=self.tasks {
            if !self.open[task as usize - 1].1.is_empty() {
                self.flush(task);
            }
        }
        let module = serde_json::json!({"module": {"id": 0, "path": "/usr/bin/prog", "build_id": "ab12", "first_id": 1,
            "count": self.count, "file": "module-0.sym"}});
        let path = |name: &str| self.directory.join(name);
        fs::write(path("log.jsonl"), format!("{module}\n{}", self.log)).expect("log.jsonl");
        fs::write(path("module-0.sym"), &self.symbols).expect("module-0.sym");
        let mut header = vec![0; 4096];
        let mut put =
            |at: u64, bytes: &[u8]| header[at as usize..][..bytes.len()].copy_from_slice(bytes);
        put(file_header::MAGIC, &format::FILE_MAGIC);
        put(file_header::VERSION, &format::FORMAT_VERSION.to_le_bytes());
        put(
            file_header::CHUNK_SIZE,
            &(format::CHUNK_SIZE as u32).to_le_bytes(),
        );
        put(file_header::CONTROL_SIZE, &4096u64.to_le_bytes());
        put(
            file_header::NEXT_CHUNK,
            &(self.chunks.len() as u64).to_le_bytes(),
        );
        put(file_header::MAX_CHUNKS, &u64::MAX.to_le_bytes());
        let mut events = fs::File::create(path("events")).expect("events");
        events.write_all(&header).expect("events");
        for chunk in &self.chunks {
            events.write_all(chunk).expect("events");
        }
        self.directory
    }
}
