//! The command line. Names, letters and meanings of options are uftrace's where uftrace has the same option.

mod control;
mod events;
mod inspect;
mod keys;
mod mem;
mod order;
mod plan;
mod syscalls;

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::{ArgAction, Args, Parser, Subcommand, ValueEnum, ValueHint};
pub use control::{Control, SwitchArg};
pub use events::{EventPatterns, ListEventsArgs};
pub use inspect::{EventFormatArg, NoOptimize};
use inspect::{Inspect, Written};
pub use keys::{KeysAction, KeysArgs};
pub use mem::{
    AllocationsBy, CacheArgs, CallsArgs, CallsFormat, CommonArgs, CountArgs, CoverageArgs,
    CoverageFormat, FunctionArgs, HeapArgs, HotArgs, InclusionArg, Like, LineArgs, MemArgs,
    MemFormat, MemTool, Part, PrefetchArg, RecordFormat, RecordMemArgs, ReplacementArg, SecondArg,
    ShareArgs, SourceArgs, StatArgs, TlbArgs, ViewFormat, ViewMemArgs, WatchArgs, WorkingSetArgs,
};
pub use order::Order;
pub use plan::PlanArgs;
pub use syscalls::SyscallsArgs;

/// See what a Linux program does while it runs
///
/// Hodoscope records the function calls of unmodified programs. It needs no source, no recompilation and no special
/// rights. `hodo record PROGRAM` writes a trace directory; other commands read it.
#[derive(Debug, Parser)]
#[command(
    name = "hodo",
    version,
    propagate_version = true,
    args_override_self = true,
    after_help = "`hodo PROGRAM` is short for `hodo live PROGRAM`. Options after the program's name belong to the program."
)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The exit status of commands that run a program.
const EXIT_STATUS: &str = "\
Exit status: the program's. If a signal ended the program, hodo ends by the same signal. 2 if the command line is \
wrong, 127 if the program is not found, 126 if it cannot be executed, 125 if hodo itself fails. If the program \
returned 0 but a probe was never placed, 1.";

/// Where plans are kept.
const CACHE: &str = "\
A plan says how to change the functions of a file in order to trace them. Plans, and code that `hodo mem` has translated, \
are kept in $XDG_CACHE_HOME/hodo or ~/.cache/hodo until the file or hodo changes, up to 512 MiB in all. HODO_CACHE=DIRECTORY keeps them elsewhere, \
HODO_CACHE=off keeps none.";

/// The help of `detach`.
const DETACH: &str = "\
When a recording ends, hodo restores all that it has changed. Only if hodo is killed (kill -9) it cannot: the process \
runs on with the changed code, unrecorded. So do the children that it has forked since then; each has a PID of its \
own. With -p PID, record, live, probe and syscalls do this by themselves before they attach.

Exit status: 0 if nothing of hodo is left in the processes, else 1.";

/// `hodo detach`.
#[derive(Debug, Args)]
pub struct DetachArgs {
    /// The processes
    #[arg(value_name = "PID", value_parser = process)]
    pub pids: Vec<i32>,
    /// A process, as an option
    #[arg(short, long = "pid", value_name = "PID", value_parser = process)]
    pub pid: Vec<i32>,
}

/// What to do with the kept plans.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum CacheAction {
    /// Show where plans are kept, and for which files
    #[default]
    List,
    /// Show how many bytes they take
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
    /// Run a program, then show its function calls
    #[command(after_help = EXIT_STATUS)]
    Live(LiveArgs),
    /// Show the calls of a recording in order of time
    Replay(ReplayArgs),
    /// Show where the time of a recording went
    Report(ReportArgs),
    /// Show who calls whom in a recording
    Graph(GraphArgs),
    /// Convert a recording to another format
    Dump(DumpArgs),
    /// Show when, where and how a recording was made
    Info(InfoArgs),
    /// Run a program with probes: print or count whenever an instruction is executed
    #[command(after_help = inspect::PROBES)]
    Probe(ProbeArgs),
    /// Show the system calls of a program as strace does, on standard error
    Syscalls(SyscallsArgs),
    /// Run a program from a code cache, and see each instruction and memory access: counts, traces, caches
    #[command(after_help = EXIT_STATUS)]
    Mem(MemArgs),
    /// List the static keys of a program, library or process; switch them at run time
    #[command(after_help = keys::KEYS)]
    Keys(KeysArgs),
    /// List the events of a program, library or process: its tracepoints and other USDT probes
    ListEvents(ListEventsArgs),
    /// Show which functions of a program or library can be traced, without running it
    Plan(PlanArgs),
    /// Restore a process that a killed hodo left changed; without a PID, list such processes
    #[command(after_help = DETACH)]
    Detach(DetachArgs),
    /// List or remove the plans that are kept between recordings
    #[command(after_help = CACHE)]
    Cache {
        /// What to do
        #[arg(value_enum, default_value_t)]
        action: CacheAction,
    },
    /// Write completions for a shell to stdout
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Write the manual pages into a directory
    Manpages {
        /// The directory; created if it does not exist
        #[arg(value_hint = ValueHint::DirPath)]
        directory: PathBuf,
    },
}

impl Command {
    /// Returns the file for messages, if they do not go to stderr.
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

/// The default trace directory.
pub const DEFAULT_DATA: &str = "hodo.data";

/// The syntax of patterns.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub enum MatchArg {
    /// Regular expressions; a pattern without special characters is the whole name
    Regex,
    /// Shell globs
    Glob,
}

/// When to use colors.
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

/// Which clock to use.
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

/// How C++ and Rust names are shown.
#[derive(Debug, Clone, Copy, Default, ValueEnum)]
pub enum DemangleArg {
    /// Without arguments and templates
    #[default]
    Simple,
    /// With everything
    Full,
    /// Mangled, as in the file
    No,
}

/// Parses a time, such as `10us`.
fn time(text: &str) -> Result<u64, String> {
    hodo_view::parse_time(text)
        .ok_or_else(|| format!("{text:?} is not a time: write a number with ns, us, ms, s or m"))
}

/// Parses a size, such as `4k` or `0x40`.
fn size(text: &str) -> Result<u64, String> {
    let wrong =
        || format!("{text:?} is not a size: write a number of bytes, optionally with k or m");
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

/// Parses the path of a trace directory. `dir/` means `dir`, because an older trace is kept next to it as `dir.old`.
fn directory(text: &str) -> Result<PathBuf, String> {
    match text {
        "" => Err("the name of the directory is empty".to_owned()),
        _ => Ok(PathBuf::from(text).components().collect()),
    }
}

/// The number in the help of `--depth`.
const _: () = assert!(hodo_trace::format::tcb::MAX_DEPTH == 76);

/// Parses a depth.
fn depth(text: &str) -> Result<u32, String> {
    match text.parse() {
        Ok(0) | Err(_) => Err(format!("{text:?} is not a depth: write a number from 1 on")),
        Ok(depth) => Ok(depth),
    }
}

/// Options of all commands that print something.
#[derive(Debug, Args)]
#[command(next_help_heading = "Output")]
pub struct Screen {
    /// Do not use a pager
    #[arg(long)]
    pub no_pager: bool,
    /// Use colors
    #[arg(long, value_name = "WHEN", default_value = "auto")]
    pub color: ColorArg,
    /// Say more: the remarks of a recording, every function of a plan
    #[arg(short, long, alias = "debug", action = clap::ArgAction::Count)]
    pub verbose: u8,
}

/// The arguments of a reader.
#[derive(Debug, Args)]
pub struct Recorded {
    /// The program that was recorded. uftrace's readers accept it; we compare it with the trace's.
    #[arg(hide = true, value_name = "PROGRAM")]
    pub program: Vec<OsString>,
}

/// Which trace.
#[derive(Debug, Args)]
pub struct Data {
    /// The trace directory
    ///
    /// If DIR exists already, a recording renames it to DIR.old. Inside a trace directory, the commands that read one
    /// need no --data. `hodo live` and `hodo probe` keep their trace only if this option is given.
    #[arg(short, long, value_name = "DIR", default_value = DEFAULT_DATA, value_parser = directory,
          value_hint = ValueHint::DirPath)]
    pub data: PathBuf,
}

/// Parses a duration: seconds, or a number with a unit.
fn span(text: &str) -> Result<std::time::Duration, String> {
    let wrong = || format!("{text:?} is not a time: write seconds, or a number with ms, s or m");
    let time = match text.parse::<f64>() {
        Ok(seconds) => std::time::Duration::try_from_secs_f64(seconds).ok(),
        Err(_) => hodo_view::parse_time(text).map(std::time::Duration::from_nanos),
    };
    time.filter(|time| !time.is_zero()).ok_or_else(wrong)
}

/// Parses a process ID.
fn process(text: &str) -> Result<i32, String> {
    match text.parse() {
        Ok(pid) if pid > 0 => Ok(pid),
        _ => Err(format!(
            "{text:?} is not a process ID: write a number from 1 on"
        )),
    }
}

/// Process IDs.
#[derive(Debug, Clone)]
pub struct Processes(Vec<i32>);

/// Parses process IDs, separated by commas or white space.
fn processes(text: &str) -> Result<Processes, String> {
    let is_between = |c: char| c == ',' || c.is_whitespace();
    let words = text.split(is_between).filter(|word| !word.is_empty());
    let pids: Vec<i32> = words.map(process).collect::<Result<_, _>>()?;
    match pids.is_empty() {
        true => process(text).map(|pid| Processes(vec![pid])),
        false => Ok(Processes(pids)),
    }
}

impl Attach {
    /// The processes, each once.
    pub fn pids(&self) -> Vec<i32> {
        let mut pids: Vec<i32> = Vec::new();
        for pid in self.pid.iter().flat_map(|Processes(pids)| pids) {
            if !pids.contains(pid) {
                pids.push(*pid);
            }
        }
        pids
    }

    /// Whether hodo attaches.
    pub fn attaches(&self) -> bool {
        !self.pid.is_empty()
    }
}

/// Processes that are already running.
#[derive(Debug, Args)]
#[command(next_help_heading = "Recording")]
pub struct Attach {
    /// Attach to this process instead of running a program; can be repeated, also as 1,2 or "$(pidof NAME)"
    ///
    /// Ctrl-C detaches. So does anything else that ends hodo, except kill -9: the process runs on, its code restored.
    #[arg(short, long, value_name = "PID", value_parser = processes, conflicts_with = "command", action = ArgAction::Append)]
    pub pid: Vec<Processes>,
    /// Detach after this many seconds (as 10, 500ms)
    #[arg(long = "for", value_name = "TIME", value_parser = span, requires = "pid")]
    pub span: Option<std::time::Duration>,
}

/// Options of commands that write or read a trace.
#[derive(Debug, Args)]
#[command(next_help_heading = "Selection")]
pub struct Common {
    #[command(flatten)]
    pub place: Data,
    /// Only these functions and what they call; NAME@MODULE for one module
    ///
    /// Can be repeated. A pattern is a regular expression unless --match says otherwise; without special characters it
    /// is the whole name. MODULE is a file name without its version, as in main@bash or ^mem@libc; plt stands for calls
    /// into libraries, as in puts@plt.
    #[arg(short = 'F', long, value_name = "PATTERN")]
    pub filter: Vec<String>,
    /// Leave out these functions and what they call
    ///
    /// If several of -F and -N match a function, the last one counts.
    #[arg(short = 'N', long, value_name = "PATTERN")]
    pub notrace: Vec<String>,
    /// Only calls up to this depth
    ///
    /// Counted from the functions of --filter, if given. A recording counts at most 76 levels; if DEPTH is greater,
    /// deeper calls are left out when the trace is read.
    #[arg(short = 'D', long, value_name = "DEPTH", value_parser = depth)]
    pub depth: Option<u32>,
    /// Only calls that took at least this long, such as 10us or 1ms
    ///
    /// Units are ns, us, ms, s and m (minutes). Without one, TIME is in nanoseconds.
    #[arg(short = 't', long, value_name = "TIME", value_parser = time)]
    pub time_filter: Option<u64>,
    /// Only functions of at least this many bytes, such as 64, 4k or 0x40
    ///
    /// Calls into shared libraries are kept, since their size is unknown.
    #[arg(short = 'Z', long, value_name = "SIZE", value_parser = size, default_value = "0", hide_default_value = true)]
    pub size_filter: u64,
    /// The syntax of patterns
    ///
    /// The default is regular expressions. Commands that read a recording use the recording's syntax.
    #[arg(long = "match", value_name = "TYPE")]
    pub pattern: Option<MatchArg>,
    /// Leave out calls into shared libraries
    #[arg(long)]
    pub no_libcall: bool,
    /// Show the module of each function
    #[arg(long)]
    pub libname: bool,
    /// Accepted for scripts written for uftrace; hodo records no kernel events
    #[arg(long, hide = true)]
    pub no_event: bool,
    /// See `no_event`.
    #[arg(long, hide = true)]
    pub no_sched: bool,
    /// Write hodo's own messages to this file instead of stderr
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, help_heading = "Output")]
    pub logfile: Option<PathBuf>,
    #[command(flatten)]
    pub screen: Screen,
}

/// Options of commands that read a recording.
#[derive(Debug, Args)]
#[command(next_help_heading = "Selection")]
pub struct Reading {
    #[command(flatten)]
    pub common: Common,
    /// Hide these functions, but show what they call
    #[arg(short = 'H', long, value_name = "PATTERN", help_heading = "Selection")]
    pub hide: Vec<String>,
    /// Only these threads, such as 1234,1235
    #[arg(
        long,
        value_name = "TID",
        value_delimiter = ',',
        help_heading = "Selection"
    )]
    pub tid: Vec<i32>,
    /// Only calls in this range of time: FROM~TO
    ///
    /// With a unit, a time since the start, such as 100us~2ms. Without one, a timestamp in seconds, such as
    /// 1234.5~1234.6. FROM defaults to the start of the recording, TO to its end.
    #[arg(short = 'r', long, value_name = "RANGE", help_heading = "Selection")]
    pub time_range: Option<hodo_view::Range>,
    /// How to show tail calls: functions that others jumped to
    #[arg(
        long,
        value_name = "HOW",
        default_value = "nested",
        help_heading = "Output"
    )]
    pub tail_calls: TailCallsArg,
    /// Do not subtract the cost of recording from sums of times (report, graph, flame graphs)
    ///
    /// Recording a call costs some nanoseconds. A recording measures them when it begins, and `hodo info` shows them.
    /// Without this option they are subtracted from sums. Single calls (replay, other dumps) always have the times of
    /// the clock.
    #[arg(long, help_heading = "Output")]
    pub raw_times: bool,
    /// The root of the recorded machine's files, if it was another machine
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

/// Options of commands that run a program.
#[derive(Debug, Args)]
#[command(next_help_heading = "Recording")]
pub struct Recording {
    /// Trace these functions; PATTERN@LIB for functions of a library
    ///
    /// The default is all functions of the program, and its calls into libraries. Functions that are not traced run at
    /// full speed.
    #[arg(short = 'P', long, value_name = "PATTERN")]
    pub patch: Vec<String>,
    /// Do not trace these functions; PATTERN@LIB for functions of a library
    ///
    /// If several of -P and -U match a function, the last one counts.
    #[arg(short = 'U', long, value_name = "PATTERN")]
    pub unpatch: Vec<String>,
    /// Trace inside libraries, too
    ///
    /// The default is only the program's own calls into libraries.
    #[arg(short = 'l', long)]
    pub nest_libcall: bool,
    /// Also record the events of a probe
    ///
    /// The definition is as for `hodo probe`. Its events are shown among the calls, its counts by `hodo info`.
    #[arg(short = 'e', long = "probe", value_name = "DEFINITION")]
    pub probes: Vec<String>,
    #[command(flatten)]
    pub events: EventPatterns,
    #[command(flatten)]
    pub no_jumps: NoOptimize,
    #[command(flatten)]
    pub control: Control,
    /// The clock for timestamps
    #[arg(long, value_name = "CLOCK", default_value = "mono")]
    pub clock: ClockArg,
    /// Record without timestamps
    #[arg(long)]
    pub no_time: bool,
    /// Do not trace child processes
    #[arg(long)]
    pub no_follow: bool,
    /// Run the program under the process ID that hodo was started with
    #[arg(long, conflicts_with = "pid")]
    pub keep_pid: bool,
    /// Also trace the functions of the C runtime: _start, _init, frame_dummy, …
    ///
    /// The default is only those that -F or -P names without wildcards.
    #[arg(long)]
    pub c_runtime: bool,
    /// Check at each exit that the stack pointer is where it was at the entry
    #[arg(long)]
    pub check_frames: bool,
    /// Accepted for scripts written for uftrace; hodo traces every program
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
    /// Columns: duration,tid,addr,time,delta,elapsed,task,module; all; none; +NAME adds to the default
    #[arg(short = 'f', long = "output-fields", value_name = "FIELDS")]
    pub fields: Option<String>,
    /// Show each entry and each exit on a line of its own
    #[arg(long)]
    pub flat: bool,
    /// Show no names after closing braces
    #[arg(long)]
    pub no_comment: bool,
    /// Show calls without callees on two lines, too
    #[arg(long)]
    pub no_merge: bool,
    /// Show tasks side by side
    #[arg(long)]
    pub column_view: bool,
    /// Characters between the columns of tasks
    #[arg(long, value_name = "COLUMNS", default_value = "8")]
    pub column_offset: usize,
    /// Print an empty line when the task changes
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
    /// Place a probe; can be repeated
    #[arg(
        short = 'e',
        long = "probe",
        value_name = "DEFINITION",
        required_unless_present_any = ["list", "usdt", "events", "list_armed"]
    )]
    pub probes: Vec<String>,
    #[command(flatten)]
    pub events: EventPatterns,
    #[command(flatten)]
    pub no_jumps: NoOptimize,
    #[command(flatten)]
    pub written: Written,
    /// The clock for timestamps
    #[arg(long, value_name = "CLOCK", default_value = "mono")]
    pub clock: ClockArg,
    /// Record events without timestamps
    #[arg(long)]
    pub no_time: bool,
    /// Do not follow child processes
    #[arg(long)]
    pub no_follow: bool,
    #[command(flatten)]
    pub inspect: Inspect,
    #[command(flatten)]
    pub attach: Attach,
    /// The program and its arguments
    #[arg(
        required_unless_present_any = ["inspect", "pid"],
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

/// How tail calls are shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum TailCallsArg {
    /// Inside the function that jumped, as a call
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
    /// Sort by these columns, the first first: total,self,call,size,func,…
    ///
    /// Also total-avg, total-min, total-max, self-avg, self-min and self-max. With --task: total, self, tid, func,
    /// name.
    #[arg(short, long, value_name = "KEYS")]
    pub sort: Option<String>,
    /// Show tasks instead of functions
    #[arg(long)]
    pub task: bool,
    /// Show average, minimum and maximum of the total time
    #[arg(long)]
    pub avg_total: bool,
    /// Show average, minimum and maximum of the time in the function itself
    #[arg(long)]
    pub avg_self: bool,
    /// Columns: total,self,call,size,…; all; none; +NAME adds to the default
    ///
    /// Also total-avg, total-min, total-max, self-avg, self-min and self-max.
    #[arg(short = 'f', long = "output-fields", value_name = "FIELDS")]
    pub fields: Option<String>,
    /// The format of the report
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    pub format: FormatArg,
}

/// `graph`.
#[derive(Debug, Args)]
pub struct GraphArgs {
    #[command(flatten)]
    pub reading: Reading,
    /// Show tasks instead of functions: which created which, and their times
    #[arg(long)]
    pub task: bool,
    /// Columns: total,self,addr; all; none; +NAME adds to the default
    #[arg(short = 'f', long = "output-fields", value_name = "FIELDS")]
    pub fields: Option<String>,
    /// Show only this function: its callers, and what it calls
    pub function: Option<String>,
}

/// Formats of a dump.
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
    /// The format by name: text, chrome, perfetto, flame-graph, svg
    #[arg(long, value_name = "FORMAT", group = "form")]
    pub format: Option<DumpFormatArg>,
    /// The time that one count of a folded stack stands for
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
    /// Write JSON
    #[arg(long)]
    pub json: bool,
    /// Show only the tasks
    #[arg(long)]
    pub task: bool,
    /// Show only the functions
    #[arg(long)]
    pub symbols: bool,
    /// Write hodo's own messages to this file instead of stderr
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, help_heading = "Output")]
    pub logfile: Option<PathBuf>,
    #[command(flatten)]
    pub screen: Screen,
}
