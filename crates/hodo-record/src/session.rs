//! The trace directory while it is being written: `info.json`, `log.jsonl`, and the symbol files of modules.

use std::fs::{self, File, OpenOptions};
use std::io::{BufWriter, Write};
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use hodo_abi::Span;
use hodo_trace::format::{FORMAT_NAME, FORMAT_VERSION, ISLAND, counters, tcb};
use serde::Serialize;
use serde_json::{Value, json};

use crate::costs::Costs;
use crate::events::Events;
use crate::options::{Clock, Match, RecordOptions};
use crate::trace_dir::TraceDir;
use hodo_follow::Exit;
use hodo_ptrace::maps::Mapping;

/// A file that reserves disk space while the recording goes on.
const RESERVE: &str = "reserve";

/// Its size in bytes, and how much of it the log must leave for the end of the trace.
const RESERVED: u64 = 64 << 10;
const RESERVED_FOR_END: u64 = 16 << 10;

/// A trace directory being written.
#[derive(Debug)]
pub struct Session {
    place: TraceDir,
    log: File,
    /// Bytes of the log, which are whole lines.
    logged: u64,
    /// Number of lines for which there was no room.
    unlogged: u64,
    info: Value,
    clock: libc::clockid_t,
    started: std::time::Instant,
    /// The file in which probes count, and its path.
    pub counters: Option<(File, PathBuf)>,
    /// The file with the tables of histograms, its path, and its size.
    pub histograms: Option<(File, PathBuf, u64)>,
    /// Islands of programs reserve much room for changes (`-g`).
    pub roomy: bool,
    /// The file that the targets write to.
    pub events: std::sync::Arc<Events>,
}

pub use hodo_ptrace::arch::counter;

/// The same moment on two clocks.
#[derive(Debug, Clone, Copy)]
pub struct Moment {
    /// The value of the time counter.
    pub counter: u64,
    /// The clock's time in nanoseconds.
    pub ns: u64,
}

/// The current moment on the time counter and on a clock.
pub fn moment(clock: Clock) -> Moment {
    sample(id(clock).0)
}

/// A clock's number and name.
fn id(clock: Clock) -> (libc::clockid_t, &'static str) {
    match clock {
        Clock::Mono => (libc::CLOCK_MONOTONIC, "mono"),
        Clock::MonoRaw => (libc::CLOCK_MONOTONIC_RAW, "mono_raw"),
        Clock::Boot => (libc::CLOCK_BOOTTIME, "boot"),
    }
}

/// The current moment: the most exact one of a few tries.
fn sample(clock: libc::clockid_t) -> Moment {
    let mut shortest = u64::MAX;
    let mut best = Moment { counter: 0, ns: 0 };
    for _ in 0..16 {
        let before = counter();
        let mut now = libc::timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        // SAFETY: clock_gettime writes one timespec.
        unsafe { libc::clock_gettime(clock, &raw mut now) };
        let after = counter();
        if after - before < shortest {
            shortest = after - before;
            best = Moment {
                counter: before + shortest / 2,
                ns: now.tv_sec.cast_unsigned() * 1_000_000_000 + now.tv_nsec.cast_unsigned(),
            };
        }
    }
    best
}

fn read_first(path: &str, key: &str) -> Option<String> {
    fs::read_to_string(path)
        .ok()?
        .lines()
        .find_map(|line| line.strip_prefix(key).map(str::to_owned))
}

/// What `/proc/cpuinfo` says of the first processor: its name. RISC-V gives the make, or at least the extensions;
/// AArch64 gives numbers (MIDR_EL1).
fn processor(cpuinfo: &str) -> Option<String> {
    let get = |key: &str| {
        let mut lines = cpuinfo.lines().filter_map(|line| line.split_once(':'));
        lines.find_map(|(name, value)| (name.trim() == key).then(|| value.trim()))
    };
    let named = ["model name", "uarch", "isa"].into_iter().find_map(get);
    named.map(str::to_owned).or_else(|| {
        let (maker, part) = (get("CPU implementer")?, get("CPU part")?);
        let revision = get("CPU variant").zip(get("CPU revision"));
        let revision = revision.map_or_else(String::new, |(variant, patch)| {
            let variant = variant.trim_start_matches("0x");
            format!(", r{variant}p{patch}")
        });
        Some(format!("implementer {maker}, part {part}{revision}"))
    })
}

fn host() -> Value {
    let text = |path| {
        fs::read_to_string(path)
            .map(|s| s.trim().to_owned())
            .unwrap_or_default()
    };
    let kb = |key| {
        read_first("/proc/meminfo", key)
            .and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok())
            .map_or(0, |kb| kb << 10)
    };
    let load: Vec<f64> = text("/proc/loadavg")
        .split_whitespace()
        .take(3)
        .filter_map(|s| s.parse().ok())
        .collect();
    // SAFETY: sysconf only returns a number.
    let cpus = |name| unsafe { libc::sysconf(name) };
    json!({
        "os": format!("{} {}", text("/proc/sys/kernel/ostype"), text("/proc/sys/kernel/osrelease")),
        "hostname": text("/proc/sys/kernel/hostname"),
        "cpu": processor(&text("/proc/cpuinfo")),
        "cpus_online": cpus(libc::_SC_NPROCESSORS_ONLN),
        "cpus_possible": cpus(libc::_SC_NPROCESSORS_CONF),
        "distro": read_first("/etc/os-release", "PRETTY_NAME=").map(|s| s.trim_matches('"').to_owned()),
        "mem_total": kb("MemTotal:"),
        "mem_free": kb("MemFree:"),
        "load": load,
    })
}

impl Session {
    /// Makes the first files of a trace in its directory. `exe` is the program's file.
    pub fn create(options: &RecordOptions, exe: &Path, place: TraceDir) -> Result<Self> {
        let directory = &options.data;
        let events = Events::create(directory, !options.no_time)
            .with_context(|| format!("making the events file in {}", directory.display()))?;
        let log = File::create(directory.join("log.jsonl"))
            .with_context(|| format!("making the log in {}", directory.display()))?;
        let (clock, clock_name) = id(options.clock);
        let Moment { counter: at, ns } = sample(clock);
        let unix = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        let info = json!({
            "format": FORMAT_NAME,
            "version": FORMAT_VERSION,
            "arch": hodo_abi::Isa::NATIVE.name(),
            "hodo": env!("CARGO_PKG_VERSION"),
            "cmdline": options.cmdline,
            "exe": exe.to_string_lossy(),
            "args": options.command.iter().map(|arg| arg.to_string_lossy()).collect::<Vec<_>>(),
            "variables": std::env::vars_os().count(),
            "timed": !options.no_time,
            "clock": {"source": hodo_trace::meta::counter(hodo_abi::Isa::NATIVE), "name": clock_name, "samples": [{"counter": at, "ns": ns}]},
            "started": {"unix_ns": u64::try_from(unix.as_nanos()).unwrap_or(0)},
            "host": host(),
            "patterns": match options.pattern { Match::Regex => "regex", Match::Glob => "glob" },
            "filters": {
                "filter": options.filter,
                "notrace": options.notrace,
                "order": options.order,
                "depth": options.depth,
                "time_ns": options.time_filter,
                "size": options.size_filter,
                "patch": options.patch.iter()
                    .map(|(trace, pattern)| json!({"trace": trace, "pattern": pattern}))
                    .collect::<Vec<_>>(),
            },
        });
        // So there is room for the end of the trace, even if the disk becomes full.
        fs::write(directory.join(RESERVE), vec![1; RESERVED as usize])
            .with_context(|| format!("writing in {}", directory.display()))?;
        let mut session = Self {
            place,
            log,
            logged: 0,
            unlogged: 0,
            info,
            clock,
            started: std::time::Instant::now(),
            counters: None,
            histograms: None,
            roomy: options.agent,
            events: events.into(),
        };
        // A second sample, so that a trace whose recorder was killed can still be converted.
        std::thread::sleep(std::time::Duration::from_micros(500));
        session.sample();
        session.write_info()?;
        Ok(session)
    }

    /// Writes what a recorded call costs, for readers. If there is no room for it now, the end of the recording writes
    /// it.
    pub fn keep_costs(&mut self, costs: &Costs) {
        self.info["costs"] = costs.json();
        let _ = self.write_info();
    }

    /// See [`TraceDir::removal`].
    pub fn removal(&self) -> impl FnOnce() + Send + use<> {
        self.place.removal()
    }

    /// From here on, the recording replaces an older one, which becomes NAME.old. Calling this once is enough.
    ///
    /// # Errors
    /// If the directories cannot be renamed.
    pub fn begin(&mut self) -> Result<()> {
        self.place.begin()
    }

    /// The `PTRACE_O_*` options with which processes are followed.
    pub fn ptrace_options(&self) -> i32 {
        libc::PTRACE_O_TRACECLONE
            | libc::PTRACE_O_TRACEFORK
            | libc::PTRACE_O_TRACEVFORK
            | libc::PTRACE_O_TRACEEXEC
            | libc::PTRACE_O_TRACESYSGOOD
            // A counter that stands for several instructions must be corrected if a thread is killed between them, and
            // the name that a thread has at its end is the one that it has given itself.
            | libc::PTRACE_O_TRACEEXIT
            | hodo_ptrace::arch::OPTIONS
    }

    /// Makes the file in which probes count. It is in memory: the pages of a file on a disk become read-only whenever
    /// they have been written back, and each next hit would be a page fault.
    ///
    /// # Errors
    /// Any error of the kernel.
    pub fn make_counters(&mut self) -> Result<()> {
        self.counters = Some(memory(c"hodo-counters", counters::SIZE)?);
        Ok(())
    }

    /// Empties the list in which a thread's return probes keep return addresses, or copies the list of another thread.
    /// Returns its place in the file, and the bytes in use, which belong in the control block.
    ///
    /// # Errors
    /// If there is no memory for it.
    pub fn begin_chain(&self, number: u64, from: Option<(u64, u64)>) -> Result<Option<u64>> {
        let Some((file, path)) = &self.counters else {
            return Ok(None);
        };
        if number >= counters::THREADS {
            return Ok(None);
        }
        let at = counters::chain_offset(number);
        // SAFETY: the descriptor is open, and the call changes only the file.
        unsafe {
            libc::fallocate(
                file.as_raw_fd(),
                libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE,
                at.cast_signed(),
                counters::CHAIN_SIZE.cast_signed(),
            );
        }
        if let Some((other, used)) = from {
            let mut bytes = vec![0; used.min(counters::CHAIN_SIZE) as usize];
            file.read_exact_at(&mut bytes, counters::chain_offset(other))
                .and_then(|()| file.write_all_at(&bytes, at))
                .with_context(|| format!("copying in {}", path.display()))?;
        }
        Ok(Some(at))
    }

    /// Makes the file of the tables of histograms, also in memory.
    ///
    /// # Errors
    /// Any error of the kernel.
    pub fn make_histograms(&mut self, bytes: u64) -> Result<()> {
        let (file, path) = memory(c"hodo-histograms", bytes)?;
        self.histograms = Some((file, path, bytes));
        Ok(())
    }

    /// Some words of that file.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn histogram_words(&self, at: u64, bytes: u64) -> Result<Vec<u64>> {
        match &self.histograms {
            Some((file, path, _)) => words(file, path, at, bytes),
            None => Ok(vec![0; (bytes / 8) as usize]),
        }
    }

    /// Writes `hists.json`.
    ///
    /// # Errors
    /// If there is no room.
    pub fn write_histograms(&self, histograms: &Value) -> Result<()> {
        let path = self.place.path().join("hists.json");
        let text = serde_json::to_vec(histograms)?;
        fs::write(&path, text).with_context(|| format!("writing {}", path.display()))
    }

    /// The hits of the first `count` counters, summed over threads with TCB numbers up to `tcbs`.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn take_counts(&mut self, count: u64, tcbs: u64) -> Result<Vec<u64>> {
        let counts = self.counts(count, tcbs)?;
        self.counters = None;
        Ok(counts)
    }

    /// Reads the counters: `count` of them, in the blocks of threads up to `tcbs`. There are none if nothing counts.
    ///
    /// # Errors
    /// If they cannot be read.
    pub fn counts(&self, count: u64, tcbs: u64) -> Result<Vec<u64>> {
        let Some((file, path)) = &self.counters else {
            return Ok(Vec::new());
        };
        let read = |at: u64, size: u64| words(file, path, at, size);
        let mut counts = vec![0u64; count as usize];
        let own = count.min(counters::PER_THREAD);
        for row in 0..own.div_ceil(counters::IN_ROW) {
            let words = read(row * counters::ROW, tcbs.min(counters::THREADS) * tcb::SIZE)?;
            let row = &mut counts[(row * counters::IN_ROW) as usize..];
            for thread in words.chunks(counters::IN_ROW as usize) {
                for (sum, word) in row.iter_mut().zip(thread) {
                    *sum = sum.wrapping_add(*word);
                }
            }
        }
        if count > counters::PER_THREAD {
            let at = counters::shared_offset(counters::PER_THREAD);
            let words = read(at, (count - counters::PER_THREAD) * 8)?;
            counts[counters::PER_THREAD as usize..].copy_from_slice(&words);
        }
        Ok(counts)
    }

    /// Writes `counts.json`.
    ///
    /// # Errors
    /// If there is no room.
    pub fn write_counts(&self, counts: impl Iterator<Item = impl Serialize>) -> Result<()> {
        let path = self.place.path().join("counts.json");
        let write = || -> std::io::Result<()> {
            let mut out = BufWriter::new(File::create(&path)?);
            // There may be millions, so they are written one by one.
            let mut before: &[u8] = b"[";
            for count in counts {
                out.write_all(before)?;
                serde_json::to_writer(&mut out, &count)?;
                before = b",";
            }
            let end: &[u8] = if before == b"[" { b"[]" } else { b"]" };
            out.write_all(end)?;
            out.flush()
        };
        write().with_context(|| format!("writing {}", path.display()))
    }

    fn sample(&mut self) {
        let Moment { counter, ns } = sample(self.clock);
        let samples = self.info["clock"]["samples"].as_array_mut();
        if let Some(samples) = samples {
            samples.truncate(1);
            samples.push(json!({"counter": counter, "ns": ns}));
        }
    }

    fn write_info(&self) -> Result<()> {
        let new = self.place.path().join("info.json.new");
        let mut text = serde_json::to_vec_pretty(&self.info)?;
        text.push(b'\n');
        fs::write(&new, text)
            .and_then(|()| fs::rename(&new, self.place.path().join("info.json")))
            .with_context(|| format!("writing {}", self.place.path().join("info.json").display()))
    }

    /// Writes `task.txt`.
    fn write_tasks(&self) -> Result<()> {
        let samples = &self.info["clock"]["samples"];
        let number = |index: usize, key: &str| samples[index][key].as_u64().unwrap_or(0);
        let (counter, ns) = (number(0, "counter"), number(0, "ns"));
        let ticks = number(1, "counter").saturating_sub(counter).max(1);
        let ratio = number(1, "ns").saturating_sub(ns) as f64 / ticks as f64;
        let time = |at: u64| {
            let passed = at.wrapping_sub(counter).cast_signed() as f64 * ratio;
            ns.saturating_add_signed(passed.round() as i64)
        };
        let path = self.place.path();
        let log = fs::read_to_string(path.join("log.jsonl")).context("reading the log")?;
        let path = path.join("task.txt");
        let written = fs::write(&path, crate::tasks::text(&log, time));
        if written.is_err() {
            // Half of it says something else.
            let _ = fs::remove_file(&path);
        }
        written.with_context(|| format!("writing {}", path.display()))
    }

    /// A number of nanoseconds in units of the time counter: rather too few units than too many, and at most the
    /// largest number that fits.
    pub fn ticks(&self, ns: u64) -> u32 {
        let samples = &self.info["clock"]["samples"];
        let number = |index: usize, key: &str| samples[index][key].as_u64().unwrap_or(0);
        let ticks = number(1, "counter").saturating_sub(number(0, "counter"));
        let nanoseconds = number(1, "ns").saturating_sub(number(0, "ns")).max(1);
        // The two samples are close together, so their error is below one in two hundred.
        let ticks = u128::from(ns) * u128::from(ticks) * 199 / 200 / u128::from(nanoseconds);
        u32::try_from(ticks).unwrap_or(u32::MAX)
    }

    /// Logs which code of which file is mapped where in a thread's process.
    ///
    /// # Errors
    /// If the log cannot be written.
    pub fn log_map(&mut self, tid: i32, mapping: &Mapping) -> Result<()> {
        // Readers must not take names from the file that is now at the path of a deleted one.
        let pid = hodo_ptrace::status(tid, "Tgid:").and_then(|pid| pid.parse().ok());
        let pid = pid.unwrap_or(tid);
        self.log(&json!({"map": {
            "pid": pid, "start": mapping.start, "end": mapping.end, "offset": mapping.offset,
            "path": mapping.listed_path().to_string_lossy(), "counter": counter(),
            "build_id": hodo_module::mapped::build_id_in_memory(tid, mapping),
        }}))
    }

    /// Logs where islands are in a thread's process.
    ///
    /// # Errors
    /// If the log cannot be written.
    pub fn log_islands(&mut self, tid: i32, islands: &[Span]) -> Result<()> {
        for island in islands.iter().filter(|island| !island.is_empty()) {
            let mapping = Mapping {
                start: island.start,
                end: island.end,
                writable: false,
                executable: true,
                shared: false,
                offset: 0,
                device: 0,
                inode: 0,
                path: ISLAND.into(),
                deleted: false,
            };
            self.log_map(tid, &mapping)?;
        }
        Ok(())
    }

    /// Appends a line to the log.
    pub fn log(&mut self, line: &Value) -> Result<()> {
        let mut text = serde_json::to_vec(line)?;
        text.push(b'\n');
        let mut done = self.append(&text);
        if done.is_err() && self.unlogged == 0 {
            // Uses a part of the reserved space; the rest is for the end.
            let reserve = OpenOptions::new()
                .write(true)
                .open(self.place.path().join(RESERVE));
            let _ = reserve.and_then(|reserve| reserve.set_len(RESERVED_FOR_END));
            done = self.append(&text);
        }
        match done {
            Ok(()) => self.logged += text.len() as u64,
            Err(error) => {
                if self.unlogged == 0 {
                    let log = self.place.path().join("log.jsonl");
                    warn_user!("hodo: writing {}: {error}", log.display());
                }
                self.unlogged += 1;
            }
        }
        Ok(())
    }

    /// Whether lines are missing from the log because the disk is full.
    pub fn is_log_full(&self) -> bool {
        self.unlogged > 0
    }

    /// Writes a whole line or nothing.
    fn append(&mut self, text: &[u8]) -> std::io::Result<()> {
        let written = self.log.write_all_at(text, self.logged);
        if written.is_err() {
            self.log.set_len(self.logged)?;
        }
        written
    }

    /// Writes the functions of a module: address, size, kind, name.
    pub fn symbols<'a>(
        &mut self,
        module: u32,
        functions: impl Iterator<Item = (u64, u64, char, &'a str)>,
    ) -> Result<String> {
        let name = format!("module-{module}.sym");
        let path = self.place.path().join(&name);
        let write = || -> std::io::Result<()> {
            let mut out = BufWriter::new(File::create(&path)?);
            writeln!(out, "# hodo-sym 1")?;
            for (addr, size, kind, name) in functions {
                writeln!(out, "{addr:x} {size:x} {kind} {}", name.replace('\n', "?"))?;
            }
            out.flush()
        };
        write().with_context(|| format!("writing {}", path.display()))?;
        Ok(name)
    }

    /// Completes the trace.
    pub fn finish(&mut self, exit: Exit, lost: u64, usage: &libc::rusage) -> Result<()> {
        let _ = fs::remove_file(self.place.path().join(RESERVE));
        self.sample();
        self.events.finish().context("cutting the events file")?;
        let time = |t: libc::timeval| t.tv_sec * 1_000_000_000 + t.tv_usec * 1000;
        self.info["finished"] = json!({
            "elapsed_ns": u64::try_from(self.started.elapsed().as_nanos()).unwrap_or(u64::MAX),
            "exit": exit_json(exit),
            "chunks": self.events.chunks(),
            "lost": lost,
            "unlogged": self.unlogged,
            "usage": {
                "utime_ns": time(usage.ru_utime), "stime_ns": time(usage.ru_stime),
                "maxrss_kb": usage.ru_maxrss, "minflt": usage.ru_minflt, "majflt": usage.ru_majflt,
                "nvcsw": usage.ru_nvcsw, "nivcsw": usage.ru_nivcsw,
                "inblock": usage.ru_inblock, "oublock": usage.ru_oublock,
            },
        });
        // On a full disk, it needs what was kept free for the end.
        self.write_info()?;
        // Only scripts for uftrace read it; the recording is complete without it.
        if let Err(error) = self.write_tasks() {
            warn_user!("hodo: {error:#}");
        }
        Ok(())
    }
}

/// Makes a file in memory. Returns it and its path.
fn memory(name: &std::ffi::CStr, bytes: u64) -> Result<(File, PathBuf)> {
    // SAFETY: the name is a NUL-terminated string; nobody else has the returned descriptor.
    let made = unsafe {
        match libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC) {
            -1 => Err(std::io::Error::last_os_error()),
            fd => Ok(File::from_raw_fd(fd)),
        }
    };
    let made = made
        .and_then(|file| file.set_len(bytes).map(|()| file))
        .with_context(|| format!("making memory for {}", name.to_string_lossy()))?;
    let path = format!("/proc/{}/fd/{}", std::process::id(), made.as_raw_fd());
    Ok((made, path.into()))
}

fn words(file: &File, path: &Path, at: u64, size: u64) -> Result<Vec<u64>> {
    let mut bytes = vec![0; size as usize];
    file.read_exact_at(&mut bytes, at)
        .with_context(|| format!("reading {}", path.display()))?;
    let word = |word: &[u8]| u64::from_le_bytes(word.try_into().unwrap_or_default());
    Ok(bytes.chunks_exact(8).map(word).collect())
}

/// An exit in the form that the log uses.
pub fn exit_json(exit: Exit) -> Value {
    match exit {
        Exit::Code(code) => json!({"code": code}),
        Exit::Signal(signal) | Exit::Core(signal) => json!({"signal": signal}),
    }
}

impl hodo_probe_compile::Log for Session {
    fn line(&mut self, line: &Value) -> Result<()> {
        self.log(line)
    }

    fn warn(&mut self, text: &str) {
        warn_user!("hodo: {text}");
    }
}

#[cfg(test)]
mod tests {
    use super::processor;

    #[test]
    fn processors_have_a_name_or_numbers() {
        let named = "processor\t: 0\nmodel\t\t: 17\nmodel name\t: A B 3: C\n\nmodel name\t: D\n";
        assert_eq!(processor(named).as_deref(), Some("A B 3: C"));
        let extensions = "hart\t: 0\nisa\t\t: rv64imafdc\nmmu\t\t: sv57\n";
        assert_eq!(processor(extensions).as_deref(), Some("rv64imafdc"));
        let numbers = "processor\t: 0\nCPU implementer\t: 0x41\nCPU architecture: 8\nCPU variant\t: 0x3\n\
             CPU part\t: 0xd0c\nCPU revision\t: 1\n";
        let expected = "implementer 0x41, part 0xd0c, r3p1";
        assert_eq!(processor(numbers).as_deref(), Some(expected));
        assert_eq!(processor("processor\t: 0\n"), None);
    }
}
