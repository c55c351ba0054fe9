//! The options of a recording.

use std::ffi::OsString;
use std::path::PathBuf;

use hodo_probe_compile::SyscallOptions;

/// How filter patterns are interpreted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Match {
    /// Regular expressions (uftrace's default). A pattern without regex characters must match the whole name.
    #[default]
    Regex,
    /// Shell globs.
    Glob,
}

/// The clock of reports; the time counter itself is always the TSC.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Clock {
    /// `CLOCK_MONOTONIC`.
    #[default]
    Mono,
    /// `CLOCK_MONOTONIC_RAW`.
    MonoRaw,
    /// `CLOCK_BOOTTIME`.
    Boot,
}

/// Options of `hodo record`.
#[derive(Debug, Clone, Default)]
pub struct RecordOptions {
    /// The program and its arguments.
    pub command: Vec<OsString>,
    /// The trace directory.
    pub data: PathBuf,
    /// `-F` patterns in order.
    pub filter: Vec<String>,
    /// `-N` patterns in order.
    pub notrace: Vec<String>,
    /// The order of the two: see [`hodo_trace::meta::in_order`].
    pub order: Vec<bool>,
    /// Also traces functions of the C runtime.
    pub runtime: bool,
    /// `-D`.
    pub depth: Option<u32>,
    /// `-t` in nanoseconds.
    pub time_filter: Option<u64>,
    /// `-P` (true) and `-U` (false) patterns in the order given.
    pub patch: Vec<(bool, String)>,
    /// `-Z` in bytes: smaller functions are not traced.
    pub size_filter: u64,
    /// `-l`: trace inside libraries too.
    pub nest_libcall: bool,
    /// `--no-libcall`.
    pub no_libcall: bool,
    /// `--match`.
    pub pattern: Match,
    /// `--clock`.
    pub clock: Clock,
    /// `--no-time`.
    pub no_time: bool,
    /// `--no-follow`: children are left alone.
    pub no_follow: bool,
    /// `--keep-pid`: the program gets the pid with which `hodo` was started.
    pub keep_pid: bool,
    /// `--check-frames`.
    pub check_frames: bool,
    /// Definitions of probes. If there are any, or any events, functions are traced only with [`Self::calls`].
    pub probes: Vec<String>,
    /// Patterns of events, `GROUP:NAME`: tracepoints and other USDT probes of all files.
    pub events: Vec<String>,
    /// Probes act in these threads only; in all if there are none.
    pub threads: Vec<i32>,
    /// `--no-optimize`: probes are breakpoints, even where there is room for a jump.
    pub no_optimize: bool,
    /// Traces functions in addition to probes.
    pub calls: bool,
    /// Records system calls, but neither functions nor probes.
    pub syscalls: Option<SyscallOptions>,
    /// The processes to attach to, instead of a program to run.
    pub attach: Vec<i32>,
    /// `--trace off`: records no calls until it is switched on.
    pub off: bool,
    /// `-g`: reserves much room for changes of the recording.
    pub agent: bool,
    /// How long to record an attached process; `None`: until a signal comes.
    pub duration: Option<std::time::Duration>,
    /// How often `-v` was given.
    pub verbose: u8,
    /// The whole command line, for `info`.
    pub cmdline: Vec<String>,
}
