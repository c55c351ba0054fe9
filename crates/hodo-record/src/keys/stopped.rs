//! A process that does not expose its static keys. They are found in its files and memory; to switch them, all threads
//! are stopped for a moment.

use hodo_ptrace::processes;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::{KeyState, ListedKey, fitting, sort};
use hodo_inject::space::keys::{Found, Keys, code};
use hodo_module::mapped::program_path;
use hodo_ptrace as ptrace;
use hodo_ptrace::Memory;
use hodo_ptrace::maps;
use hodo_ptrace::maps::Mapping;
use hodo_ptrace::stops::Stops;

/// How long a thread may take to finish switching keys, or loading a library.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long threads run between tries.
const PAUSE: Duration = Duration::from_millis(1);

/// A process, its mappings, and the keys of its files.
struct Process {
    pid: i32,
    memory: Memory,
    code: Vec<Mapping>,
    keys: Keys,
}

impl Process {
    fn open(pid: i32) -> Result<Self> {
        processes::readable(pid)?;
        let program = program_path(pid).unwrap_or_else(|_| PathBuf::new());
        let maps = maps::read(pid)?;
        Ok(Self {
            pid,
            memory: Memory::open(pid)?,
            keys: Keys::of(pid, &maps, &program)?,
            code: code(&maps).cloned().collect(),
        })
    }

    /// Whether the same files are still mapped.
    fn is_as_it_was(&self) -> Result<bool> {
        let maps = maps::read(self.pid)?;
        Ok(code(&maps).eq(&self.code))
    }

    fn keys(&self) -> Result<Vec<Found>> {
        self.keys.look(&self.memory)
    }

    /// Stops all threads, switches keys, and lets the threads run on. Returns the states before that; `None` if a
    /// thread is switching keys itself, or other files have been mapped.
    fn switch(&self, keys: &mut [Found], on: bool) -> Result<Option<Vec<u32>>> {
        let _blocked = Blocked::new();
        let mut stops = Stops::new(self.pid, 0);
        let done = stops.stop_all().and_then(|()| {
            if !self.is_as_it_was()? || self.keys.is_busy(self.pid, &self.memory) {
                return Ok(None);
            }
            self.keys.set(&self.memory, keys, on).map(Some)
        });
        stops.detach();
        done
    }
}

/// A key for the list; `before` is its state before it was switched.
fn listed(found: &Found, before: u32) -> ListedKey {
    ListedKey {
        name: found.key.name.clone(),
        index: found.key.index,
        state: Some(KeyState {
            enabled: found.state != 0,
            before: before != 0,
            users: found.users(),
        }),
        initial: found.key.initial,
        branches: found.branches,
        is_tracepoint: found.key.tracepoint,
    }
}

/// While this lives, no signal ends hodo between two writes.
struct Blocked(libc::sigset_t);

impl Blocked {
    fn new() -> Self {
        // SAFETY: all-zero is a valid sigset_t, and both sets are filled by the calls.
        unsafe {
            let mut all = std::mem::zeroed();
            let mut before = std::mem::zeroed();
            libc::sigfillset(&raw mut all);
            libc::pthread_sigmask(libc::SIG_BLOCK, &raw const all, &raw mut before);
            Self(before)
        }
    }
}

impl Drop for Blocked {
    fn drop(&mut self) {
        // SAFETY: the kernel has filled the set.
        unsafe {
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.0, std::ptr::null_mut());
        }
    }
}

/// All keys of a process.
pub fn list(pid: i32) -> Result<Vec<ListedKey>> {
    let look = || Process::open(pid)?.keys();
    let keys = look().with_context(|| {
        format!(
            "process {} does not expose its static keys, so its memory is read",
            processes::named(pid)
        )
    })?;
    Ok(keys.iter().map(|key| listed(key, key.state)).collect())
}

/// Switches keys of a process.
pub fn switch(pid: i32, patterns: &[String], on: bool) -> Result<Vec<ListedKey>> {
    let named = processes::named(pid);
    let hint = || {
        format!(
            "process {named} does not expose its static keys (by hodo_keys::expose()), so it would have to be stopped"
        )
    };
    if let Some(tracer) = ptrace::status(pid, "TracerPid:").filter(|tracer| tracer != "0") {
        let tracer = tracer.parse().map_or(tracer, processes::named);
        bail!("{}: it is controlled by another tracer: {tracer}", hint());
    }
    let begun = Instant::now();
    loop {
        let process = Process::open(pid).with_context(hint)?;
        let mut keys = process.keys().with_context(hint)?;
        if keys.is_empty() {
            bail!("process {named} has no static keys");
        }
        let all: Vec<ListedKey> = keys.iter().map(|key| listed(key, key.state)).collect();
        let fits = fitting(&all, patterns, &format!("process {named}"))?;
        let mut is_wanted = all.iter().map(fits);
        keys.retain(|_| is_wanted.next().unwrap_or(false));

        let mut done = None;
        while done.is_none() && process.is_as_it_was().with_context(hint)? {
            if begun.elapsed() > PATIENCE {
                bail!("{}: it does not finish switching keys itself", hint());
            }
            done = process.switch(&mut keys, on).with_context(hint)?;
        }
        if let Some(before) = done {
            let pairs = keys.iter().zip(before);
            let mut switched: Vec<ListedKey> =
                pairs.map(|(key, before)| listed(key, before)).collect();
            sort(&mut switched);
            return Ok(switched);
        }
        if begun.elapsed() > PATIENCE {
            bail!("{}: it loads and unloads libraries all the time", hint());
        }
        std::thread::sleep(PAUSE);
    }
}
