//! The command line. Names, letters and meanings are uftrace's where it has the same option.

mod control;
mod events;
mod keys;
mod looking;
mod plan;

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::{Args, Parser, Subcommand, ValueEnum, ValueHint};
pub use control::{Control, SwitchArg};
pub use events::{EventPatterns, ListEventsArgs};
pub use keys::{KeysAction, KeysArgs};
pub use looking::EventFormatArg;
use looking::{Looking, Written};
pub use plan::PlanArgs;

/// See what a Linux program does while it runs
///
/// Hodoscope records the function calls of programs that nobody prepared for it: it needs no source, no recompile and
/// no special rights. `hodo record PROGRAM` writes a trace directory, the other commands read it.
#[derive(Debug, Parser)]
#[command(
    name = "hodo",
    version,
    propagate_version = true,
    args_override_self = true,
    after_help = "`hodo PROGRAM` alone is `hodo live PROGRAM`. Options after the program's name are the program's."
)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What happens to the exit status of commands that run a program.
const EXIT_STATUS: &str = "\
Exit status: that of the program; if a signal ended it, hodo ends by the same signal. 2 if the command line is wrong, \
127 if there is no such program, 126 if it cannot be executed, 125 if hodo itself fails; 1 in place of 0 if a probe \
was never placed.";

/// Where plans are.
const CACHE: &str = "\
A plan says how the functions of a file are changed to trace them. It is kept in $XDG_CACHE_HOME/hodo or ~/.cache/hodo, up to 512 MiB of \
them, until the file or hodo changes. HODO_CACHE=DIRECTORY names another place, HODO_CACHE=off keeps none.";

/// What `detach` does and does not.
const DETACH: &str = "\
A recording ends by Ctrl-C, and takes back all that it has changed. Only a hodo that is killed (kill -9) cannot do so: the process goes on \
with the changed code, unrecorded. Each child that it has made since then has the same, and is named by its own PID. record, live, probe and \
syscalls with -p PID do this by themselves before they attach.

Exit status: 0 if nothing of hodo is left in the processes; 1 if something is.";

/// `hodo detach`.
#[derive(Debug, Args)]
pub struct DetachArgs {
    /// The processes
    #[arg(value_name = "PID", value_parser = process)]
    pub pids: Vec<i32>,
    /// The same
    #[arg(short, long = "pid", value_name = "PID", value_parser = process)]
    pub pid: Vec<i32>,
}

/// What to do with the plans that are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum CacheAction {
    /// Show where they are, and of which files
    #[default]
    List,
    /// Show how many bytes they have
    Size,
    /// Remove them
    Clear,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run a program and record its function calls
    #[command(after_help = EXIT_STATUS)]
    Record(RecordArgs),
    /// Run a program and show its function calls when it has ended
    #[command(after_help = EXIT_STATUS)]
    Live(LiveArgs),
    /// Show the calls of a recording in the order of time
    Replay(ReplayArgs),
    /// Show where the time of a recording went
    Report(ReportArgs),
    /// Show who calls whom in a recording
    Graph(GraphArgs),
    /// Write a recording in another form
    Dump(DumpArgs),
    /// Show the circumstances of a recording
    Info(InfoArgs),
    /// Run a program and show what its probes say: count or print whenever an instruction is executed
    #[command(after_help = looking::PROBES)]
    Probe(ProbeArgs),
    /// Show the system calls of a program as strace does: on standard error, when it has ended
    Syscalls(crate::syscalls::SyscallsArgs),
    /// List the static keys of a program, a library or a process; switch them while it runs
    #[command(after_help = keys::KEYS)]
    Keys(KeysArgs),
    /// List the events of a program, a library or a process: its tracepoints and other USDT probes
    ListEvents(ListEventsArgs),
    /// Show what could be traced of a program or library, without running it
    Plan(PlanArgs),
    /// Take back what a hodo that was killed has left in a process, which goes on; without a process, list where
    /// something is left
    #[command(after_help = DETACH)]
    Detach(DetachArgs),
    /// List the plans that are kept for the next time, or remove them
    #[command(after_help = CACHE)]
    Cache {
        /// What to do
        #[arg(value_enum, default_value_t)]
        action: CacheAction,
    },
    /// Write the completions for a shell to stdout
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Write the manual pages into a directory
    #[command(hide = true)]
    Manpages {
        /// The directory; it is made if it is not there
        #[arg(value_hint = ValueHint::DirPath)]
        directory: PathBuf,
    },
}

impl Command {
    /// Where messages go, if not to stderr.
    pub fn logfile(&self) -> Option<&Path> {
        match self {
            Self::Record(args) => args.common.logfile.as_deref(),
            Self::Live(args) => args.reading.common.logfile.as_deref(),
            Self::Replay(args) => args.reading.common.logfile.as_deref(),
            Self::Report(args) => args.reading.common.logfile.as_deref(),
            Self::Graph(args) => args.reading.common.logfile.as_deref(),
            Self::Dump(args) => args.reading.common.logfile.as_deref(),
            Self::Info(args) => args.logfile.as_deref(),
            _ => None,
        }
    }
}

/// Where a trace is, unless the command line says otherwise.
pub const DEFAULT_DATA: &str = "hodo.data";

/// How patterns are read.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub enum MatchArg {
    /// Regular expressions; without a special character, the whole name
    Regex,
    /// Shell globs
    Glob,
}

/// When to color.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum ColorArg {
    /// Always
    #[value(alias = "on")]
    Yes,
    /// Never
    #[value(alias = "off")]
    No,
    /// On a terminal
    #[default]
    Auto,
}

/// Which clock.
#[derive(Debug, Clone, Copy, Default, ValueEnum)]
pub enum ClockArg {
    /// CLOCK_MONOTONIC
    #[default]
    Mono,
    /// CLOCK_MONOTONIC_RAW
    #[value(name = "mono_raw", alias = "mono-raw")]
    MonoRaw,
    /// CLOCK_BOOTTIME
    Boot,
}

/// How names are shown.
#[derive(Debug, Clone, Copy, Default, ValueEnum)]
pub enum DemangleArg {
    /// Without arguments and templates
    #[default]
    Simple,
    /// With everything
    Full,
    /// As they are in the file
    No,
}

/// Reads a time as `10us`.
fn time(text: &str) -> Result<u64, String> {
    hodo_view::parse_time(text)
        .ok_or_else(|| format!("{text:?} is no time: write a number with ns, us, ms, s or m"))
}

/// Reads a size as `4k` or `0x40`.
fn size(text: &str) -> Result<u64, String> {
    let wrong = || format!("{text:?} is no size: write a number of bytes, or with k or m");
    if let Some(digits) = text.strip_prefix("0x") {
        return u64::from_str_radix(digits, 16).map_err(|_| wrong());
    }
    let (number, scale) = match text.trim_end_matches(['B', 'b']) {
        t if t.ends_with(['k', 'K']) => (&t[..t.len() - 1], 1 << 10),
        t if t.ends_with(['m', 'M']) => (&t[..t.len() - 1], 1 << 20),
        t => (t, 1),
    };
    let number: Option<u64> = number.parse().ok();
    number.and_then(|n| n.checked_mul(scale)).ok_or_else(wrong)
}

/// Reads the path of a trace directory. `dir/` is `dir`: the older trace is kept beside it, as `dir.old`.
fn directory(text: &str) -> Result<PathBuf, String> {
    match text {
        "" => Err("the name of the directory is empty".to_owned()),
        _ => Ok(PathBuf::from(text).components().collect()),
    }
}

/// The number in the help of `--depth`.
const _: () = assert!(hodo_trace::format::tcb::MAX_DEPTH == 78);

/// Reads a depth.
fn depth(text: &str) -> Result<u32, String> {
    match text.parse() {
        Ok(0) | Err(_) => Err(format!("{text:?} is no depth: write a number from 1 on")),
        Ok(depth) => Ok(depth),
    }
}

/// What all commands have that print something.
#[derive(Debug, Args)]
#[command(next_help_heading = "Output")]
pub struct Screen {
    /// Do not use a pager
    #[arg(long)]
    pub no_pager: bool,
    /// Use colors
    #[arg(long, value_name = "WHEN", default_value = "auto")]
    pub color: ColorArg,
    /// Say more: of a recording its remarks, of a plan every function
    #[arg(short, long, alias = "debug", action = clap::ArgAction::Count)]
    pub verbose: u8,
}

/// What a reader is given beside its options.
#[derive(Debug, Args)]
pub struct Recorded {
    /// The program that was recorded. uftrace's readers accept it; here it is compared with the trace's.
    #[arg(hide = true, value_name = "PROGRAM")]
    pub program: Vec<OsString>,
}

/// Which trace.
#[derive(Debug, Args)]
pub struct Data {
    /// The trace directory
    ///
    /// A recording keeps an older trace of the same name as DIR.old. Inside of a trace directory, the commands that
    /// read one need no --data. `hodo live` and `hodo probe` keep their trace only if this option names a place for it.
    #[arg(short, long, value_name = "DIR", default_value = DEFAULT_DATA, value_parser = directory,
          value_hint = ValueHint::DirPath)]
    pub data: PathBuf,
}

/// Reads how long: seconds, or a time with a unit.
fn span(text: &str) -> Result<std::time::Duration, String> {
    let wrong = || format!("{text:?} is no time: write seconds, or a number with ms, s or m");
    let time = match text.parse::<f64>() {
        Ok(seconds) => std::time::Duration::try_from_secs_f64(seconds).ok(),
        Err(_) => hodo_view::parse_time(text).map(std::time::Duration::from_nanos),
    };
    time.filter(|time| !time.is_zero()).ok_or_else(wrong)
}

/// Reads the number of a process.
fn process(text: &str) -> Result<i32, String> {
    match text.parse() {
        Ok(pid) if pid > 0 => Ok(pid),
        _ => Err(format!(
            "{text:?} is no process id: write a number from 1 on"
        )),
    }
}

/// A process that runs already.
#[derive(Debug, Args)]
#[command(next_help_heading = "Recording")]
pub struct Attach {
    /// Attach to this process instead of running a program
    ///
    /// Ctrl-C detaches, and so does whatever ends hodo: the process goes on, its code as it was.
    #[arg(short, long, value_name = "PID", value_parser = process, conflicts_with = "command")]
    pub pid: Option<i32>,
    /// Detach after this many seconds (as 10, 500ms)
    #[arg(long = "for", value_name = "TIME", value_parser = span, requires = "pid")]
    pub span: Option<std::time::Duration>,
}

/// What commands have that write or read a trace.
#[derive(Debug, Args)]
#[command(next_help_heading = "What is traced or shown")]
pub struct Common {
    #[command(flatten)]
    pub place: Data,
    /// Only these functions and what they call; NAME@MODULE for one module
    ///
    /// Can be given more than once. A pattern is a regular expression, or what --match says; without a special
    /// character it is the whole name. MODULE is a file name without its version: main@bash, ^mem@libc; plt for calls
    /// into libraries: puts@plt.
    #[arg(short = 'F', long, value_name = "PATTERN")]
    pub filter: Vec<String>,
    /// Not these functions, nor what they call
    ///
    /// Of the -F and -N that match a function, the last one counts.
    #[arg(short = 'N', long, value_name = "PATTERN")]
    pub notrace: Vec<String>,
    /// Calls at most so deep
    ///
    /// Counted from the functions of --filter, if there are any. While it is recorded, at most 78 levels are counted:
    /// deeper ones are left out when the trace is read.
    #[arg(short = 'D', long, value_name = "DEPTH", value_parser = depth)]
    pub depth: Option<u32>,
    /// No calls shorter than this (as 10us, 1ms)
    ///
    /// Units are ns, us, ms, s and m, for minutes; without one it is nanoseconds.
    #[arg(short = 't', long, value_name = "TIME", value_parser = time)]
    pub time_filter: Option<u64>,
    /// No functions smaller than this (bytes, as 64, 4k, 0x40)
    ///
    /// Calls into shared libraries stay: their size is not known.
    #[arg(short = 'Z', long, value_name = "SIZE", value_parser = size, default_value = "0", hide_default_value = true)]
    pub size_filter: u64,
    /// How patterns are read
    ///
    /// Without it, as regular expressions; commands that read a recording do as the recording did.
    #[arg(long = "match", value_name = "TYPE")]
    pub pattern: Option<MatchArg>,
    /// No calls into shared libraries
    #[arg(long)]
    pub no_libcall: bool,
    /// Show the module of each function
    #[arg(long)]
    pub libname: bool,
    /// Accepted for the sake of scripts written for uftrace: hodo records no events of the kernel
    #[arg(long, hide = true)]
    pub no_event: bool,
    /// As `no_event`.
    #[arg(long, hide = true)]
    pub no_sched: bool,
    /// Write hodo's own messages to this file, not to stderr
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, help_heading = "Output")]
    pub logfile: Option<PathBuf>,
    #[command(flatten)]
    pub screen: Screen,
}

/// What commands that read a recording have.
#[derive(Debug, Args)]
#[command(next_help_heading = "What is traced or shown")]
pub struct Reading {
    #[command(flatten)]
    pub common: Common,
    /// Not these functions; what they call is shown
    #[arg(
        short = 'H',
        long,
        value_name = "PATTERN",
        help_heading = "What is traced or shown"
    )]
    pub hide: Vec<String>,
    /// Only these threads, by thread id: as 1234,1235
    #[arg(
        long,
        value_name = "TID",
        value_delimiter = ',',
        help_heading = "What is traced or shown"
    )]
    pub tid: Vec<i32>,
    /// Only this part of the time: FROM~TO
    ///
    /// A number with a unit is a time since the start (as 100us~2ms), one without is a timestamp in seconds (as
    /// 1234.5~1234.6). What is left out is the start or the end of the recording.
    #[arg(
        short = 'r',
        long,
        value_name = "RANGE",
        help_heading = "What is traced or shown"
    )]
    pub time_range: Option<hodo_view::Range>,
    /// How functions that were jumped to from others are shown
    #[arg(
        long,
        value_name = "HOW",
        default_value = "nested",
        help_heading = "Output"
    )]
    pub tail_calls: TailCallsArg,
    /// Leave the cost of recording in sums of times (report, graph, flame graphs)
    ///
    /// Recording a call costs some nanoseconds, which were measured when the recording began. Without this option they
    /// are taken off. `hodo info` says how many they are. Single calls (replay, other dumps) are always shown with the
    /// times of the clock.
    #[arg(long, help_heading = "Output")]
    pub raw_times: bool,
    /// Where the files of the recorded machine are, if that is another one
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath, help_heading = "Output")]
    pub sysroot: Option<PathBuf>,
    /// How C++ and Rust names are shown
    #[arg(
        long,
        value_name = "TYPE",
        default_value = "simple",
        help_heading = "Output"
    )]
    pub demangle: DemangleArg,
}

/// What commands that run a program have.
#[derive(Debug, Args)]
#[command(next_help_heading = "Recording")]
pub struct Recording {
    /// Trace these functions; PATTERN@LIB: inside of a library
    ///
    /// Without it, all functions of the program are traced, and its calls into libraries. What is left out costs
    /// nothing at run time.
    #[arg(short = 'P', long, value_name = "PATTERN")]
    pub patch: Vec<String>,
    /// Do not trace these functions; PATTERN@LIB: inside of a library
    ///
    /// Of the -P and -U that match a function, the last one counts.
    #[arg(short = 'U', long, value_name = "PATTERN")]
    pub unpatch: Vec<String>,
    /// Trace inside of libraries too
    ///
    /// Without it, only the program's own calls into libraries are seen.
    #[arg(short = 'l', long)]
    pub nest_libcall: bool,
    /// Record the events of a probe, too
    ///
    /// The definition is one of `hodo probe`. What its probes print is shown among the calls, what they count by `hodo
    /// info`.
    #[arg(short = 'e', long = "probe", value_name = "DEFINITION")]
    pub probes: Vec<String>,
    #[command(flatten)]
    pub events: EventPatterns,
    #[command(flatten)]
    pub control: Control,
    /// The clock of timestamps
    #[arg(long, value_name = "CLOCK", default_value = "mono")]
    pub clock: ClockArg,
    /// Record without timestamps
    #[arg(long)]
    pub no_time: bool,
    /// Do not trace child processes
    #[arg(long)]
    pub no_follow: bool,
    /// The program gets the process id that hodo was started with
    #[arg(long, conflicts_with = "pid")]
    pub keep_pid: bool,
    /// Trace the functions of the C runtime, too: _start, _init, frame_dummy, …
    ///
    /// Without it, only those that -F or -P names without wildcards.
    #[arg(long)]
    pub c_runtime: bool,
    /// Check at each exit that the stack is where it was at the entry
    #[arg(long)]
    pub check_frames: bool,
    /// Accepted for the sake of scripts written for uftrace: hodo traces every program
    #[arg(long, hide = true)]
    pub force: bool,
    #[command(flatten)]
    pub attach: Attach,
    /// The program and its arguments
    #[arg(
        required_unless_present = "pid",
        trailing_var_arg = true,
        value_name = "PROGRAM",
        help_heading = "Arguments",
        value_hint = ValueHint::CommandWithArguments
    )]
    pub command: Vec<OsString>,
}

/// `record`.
#[derive(Debug, Args)]
pub struct RecordArgs {
    #[command(flatten)]
    pub common: Common,
    #[command(flatten)]
    pub recording: Recording,
}

/// How `replay` shows calls.
#[derive(Debug, Args)]
#[command(next_help_heading = "Output")]
pub struct ReplayStyle {
    /// Columns: duration,tid,addr,time,delta,elapsed,task,module, all, none; +NAME beside the usual ones
    #[arg(short = 'f', long = "output-fields", value_name = "FIELDS")]
    pub fields: Option<String>,
    /// A line for each entry and exit
    #[arg(long)]
    pub flat: bool,
    /// No names after closing braces
    #[arg(long)]
    pub no_comment: bool,
    /// Calls without calls in them are two lines too
    #[arg(long)]
    pub no_merge: bool,
    /// Tasks beside each other
    #[arg(long)]
    pub column_view: bool,
    /// Characters between the columns of tasks
    #[arg(long, value_name = "COLUMNS", default_value = "8")]
    pub column_offset: usize,
    /// An empty line when the task changes
    #[arg(long)]
    pub task_newline: bool,
}

/// `live`.
#[derive(Debug, Args)]
pub struct LiveArgs {
    #[command(flatten)]
    pub reading: Reading,
    #[command(flatten)]
    pub style: ReplayStyle,
    /// Show a report instead of the calls
    #[arg(long)]
    pub report: bool,
    #[command(flatten)]
    pub recording: Recording,
}

/// `probe`.
#[derive(Debug, Args)]
pub struct ProbeArgs {
    #[command(flatten)]
    pub place: Data,
    #[command(flatten)]
    pub screen: Screen,
    /// A probe
    #[arg(
        short = 'e',
        long = "probe",
        value_name = "DEFINITION",
        required_unless_present_any = ["list", "usdt", "events"]
    )]
    pub probes: Vec<String>,
    #[command(flatten)]
    pub events: EventPatterns,
    #[command(flatten)]
    pub written: Written,
    /// The clock of timestamps
    #[arg(long, value_name = "CLOCK", default_value = "mono")]
    pub clock: ClockArg,
    /// Events without timestamps
    #[arg(long)]
    pub no_time: bool,
    /// Do not follow child processes
    #[arg(long)]
    pub no_follow: bool,
    #[command(flatten)]
    pub looking: Looking,
    #[command(flatten)]
    pub attach: Attach,
    /// The program and its arguments
    #[arg(
        required_unless_present_any = ["looking", "pid"],
        trailing_var_arg = true,
        value_name = "PROGRAM",
        help_heading = "Arguments",
        value_hint = ValueHint::CommandWithArguments
    )]
    pub command: Vec<OsString>,
}

/// `replay`.
#[derive(Debug, Args)]
pub struct ReplayArgs {
    #[command(flatten)]
    pub reading: Reading,
    #[command(flatten)]
    pub recorded: Recorded,
    #[command(flatten)]
    pub style: ReplayStyle,
}

/// How functions that were jumped to are shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum TailCallsArg {
    /// Inside of the function that jumped, as a call
    #[default]
    Nested,
    /// In its place, as the processor sees it
    Flat,
}

/// Text or JSON.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum FormatArg {
    /// A table
    #[default]
    #[value(alias = "normal")]
    Text,
    /// JSON
    Json,
}

/// `report`.
#[derive(Debug, Args)]
pub struct ReportArgs {
    #[command(flatten)]
    pub reading: Reading,
    #[command(flatten)]
    pub recorded: Recorded,
    /// Sort by these columns: total,self,call,size,func,…
    ///
    /// Also total-avg, total-min, total-max, self-avg, self-min, self-max; the first counts most. With --task: total,
    /// self, tid, func, name.
    #[arg(short, long, value_name = "KEYS")]
    pub sort: Option<String>,
    /// A line for each task instead of each function
    #[arg(long)]
    pub task: bool,
    /// Average, minimum and maximum of the total time
    #[arg(long)]
    pub avg_total: bool,
    /// Average, minimum and maximum of the time in the function itself
    #[arg(long)]
    pub avg_self: bool,
    /// Columns: total,self,call,size,…, all, none; +NAME beside the usual ones
    ///
    /// Also total-avg, total-min, total-max, self-avg, self-min, self-max.
    #[arg(short = 'f', long = "output-fields", value_name = "FIELDS")]
    pub fields: Option<String>,
    /// The form of the report
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    pub format: FormatArg,
}

/// `graph`.
#[derive(Debug, Args)]
pub struct GraphArgs {
    #[command(flatten)]
    pub reading: Reading,
    /// The tasks instead: which made which, and their times
    #[arg(long)]
    pub task: bool,
    /// Columns: total,self,addr, all, none; +NAME beside the usual ones
    #[arg(short = 'f', long = "output-fields", value_name = "FIELDS")]
    pub fields: Option<String>,
    /// Only this function: who called it, and what it calls
    pub function: Option<String>,
}

/// Forms of a dump.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum DumpFormatArg {
    /// Text
    #[value(alias = "normal")]
    Text,
    /// As --chrome
    Chrome,
    /// As --perfetto
    Perfetto,
    /// As --flame-graph
    FlameGraph,
    /// As --svg
    Svg,
}

/// `dump`.
#[derive(Debug, Args)]
pub struct DumpArgs {
    #[command(flatten)]
    pub reading: Reading,
    #[command(flatten)]
    pub recorded: Recorded,
    /// Chrome's trace format, for Perfetto and chrome://tracing
    #[arg(long, group = "form")]
    pub chrome: bool,
    /// Perfetto's own trace format, for ui.perfetto.dev: binary, with the values of probes
    #[arg(long, group = "form")]
    pub perfetto: bool,
    /// Folded stacks, for flame graphs
    #[arg(long, group = "form")]
    pub flame_graph: bool,
    /// A flame graph as SVG
    #[arg(long, group = "form")]
    pub svg: bool,
    /// The same by name: text, chrome, perfetto, flame-graph, svg
    #[arg(long, value_name = "FORMAT", group = "form")]
    pub format: Option<DumpFormatArg>,
    /// Time that one count of a folded stack stands for
    #[arg(long, value_name = "TIME", value_parser = time, default_value = "1us")]
    pub sample_time: u64,
}

/// `info`.
#[derive(Debug, Args)]
pub struct InfoArgs {
    #[command(flatten)]
    pub place: Data,
    #[command(flatten)]
    pub recorded: Recorded,
    /// As JSON
    #[arg(long)]
    pub json: bool,
    /// The tasks only
    #[arg(long)]
    pub task: bool,
    /// The functions only
    #[arg(long)]
    pub symbols: bool,
    /// Write hodo's own messages to this file, not to stderr
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, help_heading = "Output")]
    pub logfile: Option<PathBuf>,
    #[command(flatten)]
    pub screen: Screen,
}
