//! `info.json` and `log.jsonl`.

use serde::Deserialize;

use hodo_abi::Isa;

/// `info.json`.
#[derive(Debug, Clone, Deserialize)]
pub struct Info {
    /// Always [`crate::format::FORMAT_NAME`].
    pub format: String,
    /// Always [`crate::format::FORMAT_VERSION`].
    pub version: u64,
    /// The name of the instruction set; see [`Info::isa`].
    #[serde(default = "x86_64")]
    pub arch: String,
    /// Version of the recorder.
    #[serde(default)]
    pub hodo: String,
    /// The recorder's command line.
    #[serde(default)]
    pub cmdline: Vec<String>,
    /// The program's file.
    #[serde(default)]
    pub exe: String,
    /// The program's arguments, its name first.
    #[serde(default)]
    pub args: Vec<String>,
    /// How many environment variables it had.
    #[serde(default)]
    pub variables: Option<u64>,
    /// Whether records have timestamps.
    pub timed: bool,
    /// The clock.
    pub clock: Clock,
    /// When the recording began.
    #[serde(default)]
    pub started: Started,
    /// The machine.
    #[serde(default)]
    pub host: Host,
    /// How patterns are interpreted: `regex` or `glob`.
    #[serde(default)]
    pub patterns: String,
    /// The recording's own filters.
    #[serde(default)]
    pub filters: Filters,
    /// What it costs to record calls, if that was measured.
    #[serde(default)]
    pub costs: Option<Costs>,
    /// How the recording ended; absent while it goes on.
    #[serde(default)]
    pub finished: Option<Finished>,
}

/// What it costs to record a call, in units of the counter.
#[derive(Debug, Clone, Copy, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Costs {
    /// For a call, between the times of its entry and its exit.
    pub inside: f64,
    /// The rest, which is part of the caller's time.
    pub outside: f64,
    /// For a call whose entry alone is recorded.
    pub entry: f64,
    /// The mean time between two records that are as close together as possible; 0 if not known.
    pub closest: f64,
}

fn x86_64() -> String {
    Isa::X86_64.name().to_owned()
}

/// Returns the name of the time counter of an instruction set, which is the `"source"` of the clock in `info.json`.
#[must_use]
pub const fn counter(isa: Isa) -> &'static str {
    match isa {
        Isa::X86_64 => "tsc",
        Isa::Riscv64 | Isa::Aarch64 => "time",
    }
}

impl Info {
    /// Returns the instruction set of the programs, or `None` if this reader does not know it.
    #[must_use]
    pub fn isa(&self) -> Option<Isa> {
        Isa::named(&self.arch)
    }
}

/// The clock and its calibration.
#[derive(Debug, Clone, Default, Deserialize)]
pub struct Clock {
    /// The counter in the records.
    #[serde(default)]
    pub source: String,
    /// The clock in which times are reported.
    #[serde(default)]
    pub name: String,
    /// Pairs of counter and clock.
    #[serde(default)]
    pub samples: Vec<Sample>,
    /// Counts per second, if there is only one sample.
    #[serde(default)]
    pub hz: Option<f64>,
}

/// A counter value, and the time of the clock at that moment.
#[derive(Debug, Clone, Copy, Deserialize)]
pub struct Sample {
    /// The counter.
    pub counter: u64,
    /// Nanoseconds of the clock.
    pub ns: u64,
}

/// When the recording began.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
pub struct Started {
    /// Nanoseconds since 1970.
    #[serde(default)]
    pub unix_ns: u64,
}

/// The machine of a recording.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct Host {
    /// Kernel and its version.
    pub os: String,
    /// Its name.
    pub hostname: String,
    /// Its processor.
    pub cpu: Option<String>,
    /// How many processors were online.
    pub cpus_online: u64,
    /// How many processors are possible.
    pub cpus_possible: u64,
    /// The Linux distribution.
    pub distro: Option<String>,
    /// Bytes of memory.
    pub mem_total: u64,
    /// Bytes of free memory.
    pub mem_free: u64,
    /// Load averages.
    pub load: Vec<f64>,
}

/// The recording's own filters.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct Filters {
    /// `-F`.
    pub filter: Vec<String>,
    /// `-N`.
    pub notrace: Vec<String>,
    /// The order of these two; see [`in_order`].
    pub order: Vec<bool>,
    /// `-D`.
    pub depth: Option<u32>,
    /// `-t`, in nanoseconds.
    pub time_ns: Option<u64>,
}

/// Returns the patterns of `-F` (true) and `-N` (false) in the order in which they were given. The last one that
/// matches a function decides. `order` has an element for each of them. Patterns beyond its end come last, `-N` after
/// `-F`.
#[must_use]
pub fn in_order<'a, T>(filter: &'a [T], notrace: &'a [T], order: &[bool]) -> Vec<(bool, &'a T)> {
    let mut lists = [notrace.iter(), filter.iter()];
    let mut all = Vec::new();
    for &is_filter in order
        .iter()
        .chain(&vec![true; filter.len()])
        .chain(&vec![false; notrace.len()])
    {
        all.extend(
            lists[usize::from(is_filter)]
                .next()
                .map(|pattern| (is_filter, pattern)),
        );
    }
    all
}

/// How a recording ended.
#[derive(Debug, Clone, Deserialize)]
pub struct Finished {
    /// Duration in nanoseconds.
    #[serde(default)]
    pub elapsed_ns: u64,
    /// The program's end.
    pub exit: Exit,
    /// Chunks in use.
    #[serde(default)]
    pub chunks: u64,
    /// How many lines of the log did not fit on the disk.
    #[serde(default)]
    pub unlogged: u64,
    /// How many records were lost; see [`told_lost`](crate::told_lost) for the wording.
    #[serde(default)]
    pub lost: u64,
    /// The resources that the program used.
    #[serde(default)]
    pub usage: Usage,
}

/// How a program ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Exit {
    /// With this status.
    Code(i32),
    /// By this signal.
    Signal(i32),
}

/// `struct rusage`.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(default)]
#[expect(
    missing_docs,
    reason = "the names of getrusage(2), times in nanoseconds"
)]
pub struct Usage {
    pub utime_ns: u64,
    pub stime_ns: u64,
    pub maxrss_kb: u64,
    pub minflt: u64,
    pub majflt: u64,
    pub nvcsw: u64,
    pub nivcsw: u64,
    pub inblock: u64,
    pub oublock: u64,
}

/// One line of `log.jsonl`.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Line {
    /// A file whose functions have ids.
    Module(ModuleLine),
    /// A thread began.
    Task(TaskLine),
    /// A thread ended.
    TaskEnd(TaskEnd),
    /// A thread has another name than before.
    TaskName(TaskName),
    /// A thread received a signal.
    Signal(Signal),
    /// Something the user should know.
    Remark(Remark),
    /// A probe that writes events.
    Probe(Probe),
    /// Code of a file was mapped.
    Map(Map),
    /// The recording was changed.
    Change(Change),
}

/// A change of the recording while it ran.
#[derive(Debug, Clone, Deserialize)]
pub struct Change {
    /// The time, in units of the counter.
    pub counter: u64,
    /// The filters that apply from then on.
    #[serde(flatten)]
    pub filters: Filters,
    /// All options that apply, as on a command line.
    #[serde(default)]
    pub text: String,
}

/// Code of a file that was mapped into a process.
#[derive(Debug, Clone, Deserialize)]
pub struct Map {
    /// The process.
    pub pid: i32,
    /// First address.
    pub start: u64,
    /// Address after the last.
    pub end: u64,
    /// Offset in the file.
    pub offset: u64,
    /// The file, or [`ISLAND`](crate::format::ISLAND).
    pub path: String,
    /// Its build id, if it has one.
    #[serde(default)]
    pub build_id: Option<String>,
    /// When it was found, in units of the counter.
    pub counter: u64,
}

/// A probe that writes events.
#[derive(Debug, Clone, Deserialize)]
pub struct Probe {
    /// Its id among the functions.
    pub id: u32,
    /// Group of its name.
    pub group: String,
    /// Its name.
    pub name: String,
    /// Raw name of the function it is in.
    pub symbol: String,
    /// Bytes from that function's beginning.
    pub offset: u64,
    /// For a return probe: the payload word, not counting the first, that holds the address the function returns to.
    #[serde(default)]
    pub caller: Option<usize>,
    /// `snapshot` or `stacktrace`, if that is what its events are.
    #[serde(default)]
    pub kind: Option<String>,
    /// For a stack trace: the payload word, not counting the first, at which the registers begin.
    #[serde(default)]
    pub registers: usize,
    /// For a stack trace: the payload word, not counting the first, at which the packed stack begins.
    #[serde(default)]
    pub stack: Option<usize>,
    /// For a stack trace: the payload word, not counting the first, at which the shadow of the stack begins.
    #[serde(default)]
    pub shadow: Option<usize>,
    /// The values of its events.
    #[serde(default)]
    pub args: Vec<Arg>,
}

/// A value of an event. It is in the payload (`word`), or constant (`text`, `number`), or the task's name (`comm`).
#[derive(Debug, Clone, Deserialize)]
pub struct Arg {
    /// Its name.
    pub name: String,
    /// Its type in the probe's definition: `x64`, `s32`, `string`, …
    #[serde(rename = "type")]
    pub ty: String,
    /// The first of its words among the values of the payload.
    #[serde(default)]
    pub word: Option<usize>,
    /// Its number among the values of the payload. That bit of the first word says that the value could not be read.
    #[serde(default)]
    pub value: u32,
    /// The lowest of its bits in the word.
    #[serde(default)]
    pub shift: u32,
    /// How many bits it has in the word.
    #[serde(default)]
    pub bits: u32,
    /// A constant text.
    #[serde(default)]
    pub text: Option<String>,
    /// A constant number.
    #[serde(default)]
    pub number: Option<u64>,
    /// The value is the name of the task.
    #[serde(default)]
    pub comm: bool,
}

/// A file whose functions have ids.
#[derive(Debug, Clone, Deserialize)]
pub struct ModuleLine {
    /// Its number.
    pub id: u32,
    /// Its path.
    pub path: String,
    /// Its build id in hex.
    #[serde(default)]
    pub build_id: Option<String>,
    /// The separate file with its symbol table.
    #[serde(default)]
    pub symbols: Option<String>,
    /// Id of its first function.
    pub first_id: u32,
    /// Number of its functions.
    pub count: u32,
    /// Name of its symbol file in the trace directory.
    pub file: String,
}

/// A thread began, or a new program in a thread.
#[derive(Debug, Clone, Deserialize)]
pub struct TaskLine {
    /// Its number, from 1.
    pub id: u32,
    /// Thread id.
    pub tid: i32,
    /// Process id.
    pub pid: i32,
    /// Parent process.
    #[serde(default)]
    pub ppid: Option<i32>,
    /// Its name.
    #[serde(default)]
    pub comm: Option<String>,
    /// `start`, `thread`, `fork` or `exec`.
    pub kind: String,
    /// The task that created it.
    #[serde(default)]
    pub parent: u32,
    /// The time, in units of the counter.
    pub counter: u64,
}

/// A thread has another name than its `task` line says. The last one counts.
#[derive(Debug, Clone, Deserialize)]
pub struct TaskName {
    /// Its number.
    pub id: u32,
    /// Its name.
    pub comm: String,
}

/// A thread ended.
#[derive(Debug, Clone, Deserialize)]
pub struct TaskEnd {
    /// Its number.
    pub id: u32,
    /// The time, in units of the counter.
    pub counter: u64,
    /// How it ended.
    #[serde(default)]
    pub exit: Option<Exit>,
}

/// A signal that a thread received. Signals are recorded only together with system calls.
#[derive(Debug, Clone, Deserialize)]
pub struct Signal {
    /// The thread's number.
    pub id: u32,
    /// The time, in units of the counter.
    pub counter: u64,
    /// The number of the signal.
    pub signal: i32,
    /// `si_code`
    pub code: i32,
    /// `si_pid`, `si_uid`, `si_status`, `si_utime`, `si_stime`. They have a meaning only for some codes.
    #[serde(default)]
    pub sender: [i64; 5],
    /// `si_addr`. It has a meaning only for some codes.
    #[serde(default)]
    pub addr: u64,
    /// The number and the result of the system call that the signal's handler interrupts.
    #[serde(default)]
    pub call: Option<(u64, i64)>,
}

/// Something the user should know.
#[derive(Debug, Clone, Deserialize)]
pub struct Remark {
    /// The process.
    #[serde(default)]
    pub pid: i32,
    /// The message.
    pub text: String,
}
