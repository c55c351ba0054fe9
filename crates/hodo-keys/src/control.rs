//! Switching keys from outside: by the environment when the program starts, and by requests while it runs.

use std::io::{self, Write};
use std::string::{String, ToString};
use std::vec::Vec;

use crate::error::Error;
use crate::key::Key;
use crate::lock::Guard;
use crate::registry::{self, Found};

mod answer;
mod pattern;
mod server;

/// Lets others switch this program's keys: does what the environment variable `HODO_KEYS` says ([`apply_environment`]),
/// then starts a thread that answers `hodo keys -p PID list`, `enable` and `disable`.
///
/// ```
/// // In `main`, before anything else:
/// hodo_keys::expose();
/// ```
///
/// It may be called more than once; `HODO_KEYS` takes effect the first time. Failures are not reported, because the
/// program continues without it; [`try_expose`] reports them.
///
/// * The thread listens on a Unix socket in the abstract namespace. It answers root, and users with the same effective
///   user ID as the process. It is named `hodo-keys`, sleeps while nobody asks, and blocks all signals except those
///   that an instruction raises. It lives as long as the process; a library that has called this stays mapped.
/// * A child of `fork` has no such thread: it may call this again. Neither has a program after `exec`, unless it calls
///   this itself.
/// * `hodo keys -p PID enable` and `disable` do what [`Key::enable`] and [`Key::disable`] do. Keys that have users stay
///   enabled.
/// * A library with its own copy of this crate has its own keys, too, and may expose them as well.
pub fn expose() {
    let _ = try_expose();
}

/// Like [`expose`], but reports why keys cannot be switched from outside.
///
/// # Errors
/// If no socket or no thread can be made.
pub fn try_expose() -> io::Result<()> {
    apply_environment();
    server::start()
}

/// The name of the variable.
const VARIABLE: &str = "HODO_KEYS";

/// Switches keys as the environment variable `HODO_KEYS` says: `PATTERN[=on|off],…`, in this order. [`expose`] calls
/// it. Only the first call has an effect; a child of `fork` counts as the same process.
///
/// A pattern is a name with `*` and `?`, such as `mycrate::net::*`, or `net:*` for tracepoints. If it has no `::`, it
/// may also be the last part of the name: `VERBOSE`. `LEVELS[3]` is an element of an array; `LEVELS` stands for all
/// elements.
///
/// Errors are reported on standard error, in a line that begins with `hodo-keys:`, and the program continues. Libraries
/// that are loaded later are not affected. Programs with more rights than whoever started them (set-user-ID) ignore the
/// variable.
pub fn apply_environment() {
    use std::sync::atomic::{AtomicBool, Ordering};
    static DONE: AtomicBool = AtomicBool::new(false);
    if DONE.swap(true, Ordering::Relaxed) {
        return;
    }
    let Some(text) = std::env::var_os(VARIABLE).filter(|_| !privileged()) else {
        return;
    };
    let text = text.to_string_lossy();
    for complaint in text.split(',').filter_map(|clause| apply(clause).err()) {
        // Standard error may be closed.
        let _ = writeln!(io::stderr(), "hodo-keys: {VARIABLE}: {complaint}");
    }
}

/// Returns whether the process may do what whoever started it may not.
fn privileged() -> bool {
    use core::ffi::c_ulong;
    unsafe extern "C" {
        // Every Linux C library has it, and std links one.
        fn getauxval(kind: c_ulong) -> c_ulong;
    }
    const AT_SECURE: c_ulong = 23;
    // SAFETY: it only reads what the kernel has passed to the program.
    unsafe { getauxval(AT_SECURE) != 0 }
}

/// Does what one clause of the variable says.
fn apply(clause: &str) -> Result<(), Complaint<'_>> {
    let clause = clause.trim();
    if clause.is_empty() {
        return Ok(());
    }
    let (pattern, on) = match clause.split_once('=') {
        None => (clause, true),
        Some((pattern, "on")) => (pattern, true),
        Some((pattern, "off")) => (pattern, false),
        Some((_, other)) => return Err(Complaint::Value { clause, other }),
    };
    if pattern.is_empty() {
        return Err(Complaint::NoPattern { clause });
    }
    switch(&[pattern], on, |_, _| {}).map_err(|error| Complaint::Unswitched { clause, error })
}

/// What is wrong with one part of the variable.
#[derive(Debug)]
enum Complaint<'a> {
    /// Something else than `on` or `off`.
    Value { clause: &'a str, other: &'a str },
    /// There is nothing before the `=`.
    NoPattern { clause: &'a str },
    /// It could not be done.
    Unswitched { clause: &'a str, error: Unswitched },
}

impl core::fmt::Display for Complaint<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Value { clause, other } => {
                write!(f, "`{clause}`: after `=` comes on or off, not `{other}`")
            }
            Self::NoPattern { clause } => write!(f, "`{clause}` has no pattern"),
            Self::Unswitched { clause, error } => match error {
                Unswitched::NoMatch(_) => error.fmt(f),
                Unswitched::Failed(error) => write!(f, "`{clause}`: {error}"),
            },
        }
    }
}

/// Why keys were not switched.
#[derive(Debug)]
enum Unswitched {
    /// These patterns match nothing.
    NoMatch(Vec<String>),
    /// This error occurred.
    Failed(Error),
}

impl From<Error> for Unswitched {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

impl core::fmt::Display for Unswitched {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::NoMatch(patterns) => {
                write!(f, "no static key matches `{}`", patterns.join("` or `"))
            }
            Self::Failed(error) => error.fmt(f),
        }
    }
}

/// All keys, each once, sorted by name and index.
fn keys(guard: &Guard) -> Vec<Found> {
    let mut keys: Vec<Found> = Vec::new();
    registry::for_each_locked(guard, |found| keys.push(found));
    let address = |found: &Found| core::ptr::from_ref(found.key).addr();
    keys.sort_by_key(address);
    keys.dedup_by(|later, first| {
        let same = address(later) == address(first);
        if same {
            first.branches += later.branches;
        }
        same
    });
    keys.sort_by_key(|found| (found.key.name(), found.key.index()));
    keys
}

/// The patterns that match no key.
fn unmatched(patterns: &[&str], keys: &[Found]) -> Vec<String> {
    let none = |pattern: &&&str| {
        !keys
            .iter()
            .any(|found| pattern::matches(pattern, found.key))
    };
    patterns
        .iter()
        .filter(none)
        .map(ToString::to_string)
        .collect()
}

/// Switches all keys that match one of the patterns on or off, all at once; if a pattern matches nothing, it switches
/// none. Returns each of them, and whether it was enabled before.
fn switch(
    patterns: &[&str],
    on: bool,
    mut tell: impl FnMut(&Found, bool),
) -> Result<(), Unswitched> {
    // Under the lock, so that no library is unloaded with its keys.
    let outcome = registry::locked(|guard| {
        let keys = keys(guard);
        let missing = unmatched(patterns, &keys);
        if !missing.is_empty() {
            return Ok(Err(Unswitched::NoMatch(missing)));
        }
        let wanted = |found: &&Found| patterns.iter().any(|p| pattern::matches(p, found.key));
        let keys: Vec<(Found, bool)> = keys
            .iter()
            .filter(wanted)
            .map(|found| (*found, found.key.is_enabled()))
            .collect();
        let change = |key: &'static Key| if on { key.enabling() } else { key.disabling() };
        let changes: Vec<_> = keys.iter().map(|(found, _)| change(found.key)).collect();
        registry::switch_locked(guard, &changes, |count| count())?;
        for (found, before) in &keys {
            tell(found, *before);
        }
        Ok(Ok(()))
    });
    outcome?
}
