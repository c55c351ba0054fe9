//! Records the calls of a program in a trace directory, as `hodo record` does, if `HODO_FTRACE_RECORD` names one.
//!
//! The program needs no change: the library is preloaded. Each thread appends records to chunks of the mapped file
//! `events`; nothing else happens at a call. `docs/trace-format.md` describes the files.

mod events;
mod texts;
mod thread;

use std::ffi::{c_int, c_void};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::Ordering;

use hodo_ftrace::GraphOps;
use hodo_ftrace::dynamic::GRAPH;

use crate::change::{Error, change};
use crate::known::{Numbered, Who};
use crate::linux;
use events::Events;
use texts::Texts;
pub use thread::forked;

/// A recording.
struct Recording {
    events: Events,
    texts: Texts,
    /// The process that began it.
    process: u32,
}

static RECORDING: OnceLock<Recording> = OnceLock::new();

/// The recording, if there is one.
fn recording() -> Option<&'static Recording> {
    RECORDING.get()
}

static HOOKS: GraphOps = GraphOps {
    entry: Some(thread::enter),
    exit: Some(thread::leave),
    flags: 0,
};

/// The patterns in an environment variable.
fn patterns(name: &str) -> Vec<String> {
    let text = std::env::var(name).unwrap_or_default();
    let parts = text.split(',').map(str::trim);
    parts
        .filter(|part| !part.is_empty())
        .map(str::to_owned)
        .collect()
}

/// Makes the directory. If there is one, it belongs to another program of the same recording, or of an older one.
fn make(wanted: &Path) -> std::io::Result<PathBuf> {
    use std::os::unix::fs::DirBuilderExt;
    /// How many programs a process may execute.
    const MOST: u32 = 1000;
    let make = |path: &Path| std::fs::DirBuilder::new().mode(0o700).create(path);
    let other = |number: u32| {
        let mut name = wanted.as_os_str().to_owned();
        name.push(format!(".{}", std::process::id()));
        if number > 1 {
            name.push(format!(".{number}"));
        }
        PathBuf::from(name)
    };
    let exists = |error: &std::io::Error| error.kind() == std::io::ErrorKind::AlreadyExists;
    let Err(mut error) = make(wanted) else {
        return Ok(wanted.to_owned());
    };
    for number in 1..MOST {
        if !exists(&error) {
            break;
        }
        let path = other(number);
        match make(&path) {
            Err(next) => error = next,
            Ok(()) => {
                let (wanted, path) = (wanted.display(), path.display());
                eprintln!("hodo-ftrace: {wanted} exists: recording to {path}");
                return Ok(other(number));
            }
        }
    }
    Err(error)
}

/// Begins to record, if the environment says so.
pub fn start() {
    let Some(wanted) = std::env::var_os("HODO_FTRACE_RECORD").filter(|value| !value.is_empty())
    else {
        return;
    };
    // Of programs that run others, only those are recorded that have something to record.
    if !change(None, |all| Ok(all.sites().next().is_some())).unwrap_or(false) {
        return;
    }
    if let Err(error) = begin(Path::new(&wanted)) {
        eprintln!(
            "hodo-ftrace: nothing is recorded in {}: {error}",
            Path::new(&wanted).display()
        );
    }
}

fn begin(wanted: &Path) -> Result<(), Box<dyn std::error::Error>> {
    // The program may change its directory.
    let directory = make(&std::path::absolute(wanted)?)?;
    let filters = [
        patterns("HODO_FTRACE_FILTER"),
        patterns("HODO_FTRACE_NOTRACE"),
    ];
    let events = Events::create(&directory)?;
    let texts = Texts::create(&directory, &filters)?;
    let process = std::process::id();
    let recording = Recording {
        events,
        texts,
        process,
    };
    if RECORDING.set(recording).is_err() {
        return Ok(());
    }
    thread::start();
    linux::at_thread_end(thread::thread_ends);
    unsafe extern "C" {
        fn on_exit(function: extern "C" fn(c_int, *mut c_void), argument: *mut c_void) -> c_int;
    }
    // SAFETY: the function takes such arguments, and stays: this library is never unloaded while it runs.
    unsafe { on_exit(ended, std::ptr::null_mut()) };
    hodo_ftrace::set_graph(Some(&HOOKS));
    let [only, not] = filters;
    change(None, |all| {
        let filter = all.filter(Who::Graph);
        let only = only.iter().try_for_each(|pattern| filter.add(pattern));
        let not = not.iter().try_for_each(|pattern| filter.add_not(pattern));
        only.and(not).map_err(Error::Wrong)?;
        all.number_with(number);
        all.set_bit(Who::Graph, GRAPH, true);
        Ok(())
    })?;
    Ok(())
}

/// Numbers the functions of a file that is known.
fn number(path: &Path, functions: &[Numbered<'_>]) -> Option<u32> {
    let recording = recording()?;
    recording.texts.module(&recording.events, path, functions)
}

/// The process ends.
extern "C" fn ended(status: c_int, _: *mut c_void) {
    let Some(recording) = recording() else { return };
    thread::thread_ends();
    // Children of fork come here as well.
    if recording.process == std::process::id() {
        let chunks = recording.events.chunks();
        let lost = recording.events.word(events::LOST).load(Ordering::Relaxed);
        recording.texts.finish(status, chunks, lost);
    }
}
