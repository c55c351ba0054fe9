//! The files with text: `info.json`, `log.jsonl`, and the functions of modules.

use std::fmt::Write as _;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use hodo_trace::format::record::ID_MASK;
use hodo_trace::format::{FORMAT_NAME, FORMAT_VERSION};
use serde_json::{Value, json};

use super::events::{Events, FUNCTIONS, MODULES, TASKS};
use crate::arch;
use crate::known::Numbered;

/// The files, and what they say.
pub struct Texts {
    directory: PathBuf,
    info: Value,
    began: Instant,
}

/// The same moment on the time counter and on the clock.
fn sample() -> Value {
    const TRIES: u32 = 16;
    let one = || {
        let before = arch::counter();
        let mut now = libc::timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        // SAFETY: it writes such a structure.
        unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
        let after = arch::counter();
        let ns = now.tv_sec.cast_unsigned() * 1_000_000_000 + now.tv_nsec.cast_unsigned();
        (after - before, before + (after - before) / 2, ns)
    };
    let best = (0..TRIES).map(|_| one()).min().unwrap_or_default();
    json!({"counter": best.1, "ns": best.2})
}

impl Texts {
    /// Makes them.
    pub fn create(directory: &Path, filters: &[Vec<String>; 2]) -> io::Result<Self> {
        let exe = fs::read_link("/proc/self/exe").unwrap_or_default();
        let args: Vec<String> = std::env::args_os()
            .map(|arg| arg.to_string_lossy().into_owned())
            .collect();
        let unix = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        let first = sample();
        // Two samples, so that times are known if the program is killed.
        std::thread::sleep(std::time::Duration::from_micros(500));
        let info = json!({
            "format": FORMAT_NAME,
            "version": FORMAT_VERSION,
            "arch": hodo_abi::Isa::NATIVE.name(),
            "hodo": env!("CARGO_PKG_VERSION"),
            "cmdline": args,
            "exe": exe.to_string_lossy(),
            "args": args,
            "timed": true,
            "clock": {"source": arch::COUNTER, "name": "mono", "samples": [first, sample()]},
            "started": {"unix_ns": u64::try_from(unix.as_nanos()).unwrap_or(0)},
            "patterns": "glob",
            "filters": {"filter": filters[0], "notrace": filters[1], "patch": []},
        });
        let texts = Self {
            directory: directory.to_owned(),
            info,
            began: Instant::now(),
        };
        texts.write_info(&texts.info)?;
        texts.create_file("log.jsonl")?;
        Ok(texts)
    }

    fn create_file(&self, name: &str) -> io::Result<File> {
        let mut options = OpenOptions::new();
        options.write(true).create_new(true).mode(0o600);
        options.open(self.directory.join(name))
    }

    fn write_info(&self, info: &Value) -> io::Result<()> {
        let new = self.directory.join("info.json.new");
        fs::write(&new, info.to_string())?;
        fs::rename(new, self.directory.join("info.json"))
    }

    /// Appends a line to the log, which is made while nobody else appends: tasks and modules are in order. A line for
    /// which there is no room is missing.
    fn log(&self, line: impl FnOnce() -> Value) {
        let path = self.directory.join("log.jsonl");
        let Ok(mut file) = OpenOptions::new().append(true).open(path) else {
            return;
        };
        // Closing the file gives the lock up.
        // SAFETY: it changes nothing but the lock.
        unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX) };
        let mut text = line().to_string();
        text.push('\n');
        let _ = file.write_all(text.as_bytes());
    }

    /// A thread or a process has begun. Returns its number.
    pub fn task(&self, events: &Events, kind: &str, parent: u32) -> u32 {
        let comm = fs::read_to_string("/proc/thread-self/comm").unwrap_or_default();
        let mut id = 0;
        self.log(|| {
            id = events.word(TASKS).fetch_add(1, Ordering::Relaxed) as u32 + 1;
            json!({"task": {
                "id": id,
                "tid": hodo_sys::sys::thread(),
                "pid": std::process::id(),
                "ppid": std::os::unix::process::parent_id(),
                "comm": comm.trim_end(),
                "kind": kind,
                "parent": parent,
                "counter": arch::counter(),
            }})
        });
        id
    }

    /// A thread has ended.
    pub fn task_end(&self, id: u32) {
        self.log(|| json!({"task_end": {"id": id, "counter": arch::counter()}}));
    }

    /// A file has functions that can be recorded. Returns the id of the first; none if there are too many.
    pub fn module(&self, events: &Events, path: &Path, functions: &[Numbered<'_>]) -> Option<u32> {
        let mut text = String::from("# hodo-sym 1\n");
        for function in functions {
            // A name with a newline would be two lines.
            let name = function.name.replace('\n', "?");
            let _ = writeln!(text, "{:x} {:x} T {name}", function.address, function.size);
        }
        let count = functions.len() as u64;
        let first = events.word(FUNCTIONS).fetch_add(count, Ordering::Relaxed) + 1;
        if first + count > u64::from(ID_MASK) {
            let text = format!(
                "{}: not traced, because there are more than {ID_MASK} functions",
                path.display()
            );
            self.log(|| json!({"remark": {"pid": 0, "text": text}}));
            return None;
        }
        let build_id = fs::read(path)
            .ok()
            .and_then(|bytes| hodo_symbols::build_id(&bytes));
        self.log(|| {
            let id = events.word(MODULES).fetch_add(1, Ordering::Relaxed);
            let file = format!("module-{id}.sym");
            // Without it, the functions have no names.
            let _ = self
                .create_file(&file)
                .and_then(|mut file| file.write_all(text.as_bytes()));
            json!({"module": {
                "id": id,
                "path": path.to_string_lossy(),
                "build_id": build_id,
                "first_id": first,
                "count": count,
                "file": file,
            }})
        });
        u32::try_from(first).ok()
    }

    /// The program ends.
    pub fn finish(&self, status: i32, chunks: u64, lost: u64) {
        let mut info = self.info.clone();
        if let Some(samples) = info["clock"]["samples"].as_array_mut() {
            samples.push(sample());
        }
        info["finished"] = json!({
            "elapsed_ns": u64::try_from(self.began.elapsed().as_nanos()).unwrap_or(u64::MAX),
            "exit": {"code": status & 0xFF},
            "chunks": chunks,
            "lost": lost,
            "unlogged": 0,
        });
        let _ = self.write_info(&info);
    }
}
