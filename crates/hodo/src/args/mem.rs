//! The arguments of `hodo mem`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{ArgAction, Args, Subcommand, ValueEnum, ValueHint};
use hodo_dbi::Amount;
use hodo_mem::heap::Allocator;
use hodo_mem::model::Geometry;

/// What `hodo mem` is given.
#[derive(Debug, Args)]
pub struct MemArgs {
    /// What to do.
    #[command(subcommand)]
    pub tool: MemTool,
}

/// The tools.
#[derive(Debug, Subcommand)]
pub enum MemTool {
    /// Run a program under the bare engine: it runs as alone, and nothing is observed
    None(NoneArgs),
    /// Record every access of memory that a program makes
    Record(RecordMemArgs),
    /// Show accesses, one a line
    View(ViewMemArgs),
    /// Count instructions, loads and stores, exactly
    Stat(StatArgs),
    /// Simulate caches: misses by function and source line
    Cache(CacheArgs),
    /// Simulate the caches of address translations
    Tlb(TlbArgs),
    /// Count instructions by their operation
    Opcodes(CountArgs),
    /// Count the executions of each block of code
    Bbcount(CountArgs),
    /// Show what was executed: source lines and functions, or blocks of code
    Coverage(CoverageArgs),
    /// Show which functions call which ones, and how many instructions that costs
    Calls(CallsArgs),
    /// Show how many other lines are accessed before a line is accessed again
    Reuse(LineArgs),
    /// Show how much memory is accessed in each part of a run
    WorkingSet(WorkingSetArgs),
    /// Show which memory is accessed most: variables, stacks, allocations, and other memory by the code that wrote it
    /// first
    Hot(HotArgs),
    /// Show what is allocated: how much there is at the peak, and what is never freed, by the calls that allocate
    Heap(HeapArgs),
    /// Show lines that several threads use and some write to
    Share(ShareArgs),
}

/// Which part of a program's run is observed.
#[derive(Debug, Args, Default, PartialEq, Eq)]
pub struct Part {
    /// Attach to this process instead of running a program
    ///
    /// Ctrl-C detaches: the process runs on as before. Children that it makes meanwhile are observed, too.
    #[arg(short, long, value_name = "PID", value_parser = super::process, conflicts_with = "command", action = ArgAction::Append)]
    pub pid: Option<i32>,
    /// Begin this long after the program was started (as 10, 500ms), or after about 100 million instructions
    /// (100M-insns)
    ///
    /// Until this time, the program runs as alone. Instructions are counted meanwhile, of all threads and children
    /// together; hodo looks at the counters every few milliseconds. Of recordings, a part by instructions can be read.
    #[arg(long, value_name = "TIME|INSNS", value_parser = amount, conflicts_with = "pid")]
    pub from: Option<Amount>,
    /// Observe for this long, or for about this number of instructions: then the program runs on as alone
    #[arg(long = "for", value_name = "TIME|INSNS", value_parser = amount)]
    pub length: Option<Amount>,
    /// Observe again and again: this long after a part has begun (as 1s, 500ms), or about this number of instructions
    /// (1G-insns), the next one begins
    ///
    /// Between the parts, the program runs as alone, or its instructions are counted. Its threads get new numbers in
    /// each. When a part takes longer than that, the next one begins at once.
    #[arg(long, value_name = "TIME|INSNS", value_parser = amount, requires = "length")]
    pub every: Option<Amount>,
    /// Observe only what the program does between its calls of hodo_mem_start() and hodo_mem_stop()
    ///
    /// The functions are in hodo-mem.h, for C and C++, and in the crate hodo-mem-marks, for Rust. All threads of the
    /// process are observed meanwhile. Outside of these parts, the program runs as under hodo mem none.
    #[arg(long, conflicts_with_all = ["from", "length", "every"])]
    pub marked: bool,
    /// Do not observe child processes: they run as alone
    #[arg(long)]
    pub no_follow: bool,
}

/// Parses a duration, or a number of instructions.
fn amount(text: &str) -> Result<Amount, String> {
    let Some(number) = text.strip_suffix("insns") else {
        let wrong = |_| {
            format!(
                "{text:?} is neither a time nor a number of instructions: write seconds, a number with ms, s or m, or one \
                 with k, M or G and -insns"
            )
        };
        return super::span(text).map(Amount::Time).map_err(wrong);
    };
    let number = number.trim_end_matches(['-', ' ']);
    let (digits, unit) = match number.chars().last() {
        Some('k') => (&number[..number.len() - 1], 1_000),
        Some('M') => (&number[..number.len() - 1], 1_000_000),
        Some('G') => (&number[..number.len() - 1], 1_000_000_000),
        _ => (number, 1),
    };
    let instructions = digits.parse::<u64>().ok().and_then(|n| n.checked_mul(unit));
    match instructions {
        Some(number) if number > 0 => Ok(Amount::Instructions(number)),
        _ => Err(format!(
            "{text:?} is not a number of instructions: write one as 5000-insns or 100M-insns"
        )),
    }
}

/// What `hodo mem none` is given.
#[derive(Debug, Args)]
pub struct NoneArgs {
    /// Which part of the run.
    #[command(flatten)]
    pub part: Part,
    /// The program and its arguments
    #[arg(required_unless_present = "pid", trailing_var_arg = true, value_name = "PROGRAM", value_hint = ValueHint::CommandWithArguments)]
    pub command: Vec<OsString>,
}

/// Formats of recordings.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum RecordFormat {
    /// The small one of hodo
    #[default]
    Hodo,
    /// The final format of DynamoRIO's drmemtrace, for its tools; much larger
    Drmemtrace,
}

/// What `hodo mem record` is given.
#[derive(Debug, Args)]
pub struct RecordMemArgs {
    /// The format of the recording
    #[arg(long, value_enum, default_value_t)]
    pub format: RecordFormat,
    /// Where to put the recording
    #[arg(short, long, value_name = "DIR", default_value = "hodo.mem", value_hint = ValueHint::DirPath)]
    pub directory: PathBuf,
    /// Which functions.
    #[command(flatten)]
    pub functions: FunctionArgs,
    /// How the program is observed.
    #[command(flatten)]
    pub watch: WatchArgs,
    /// Which part of the run.
    #[command(flatten)]
    pub part: Part,
    /// The program and its arguments
    #[arg(required_unless_present = "pid", trailing_var_arg = true, value_name = "PROGRAM", value_hint = ValueHint::CommandWithArguments)]
    pub command: Vec<OsString>,
}

/// How a program is observed.
#[derive(Debug, Args, Default, PartialEq, Eq)]
pub struct WatchArgs {
    /// Do not make the program wait if hodo is slower: say how many instructions are missing
    #[arg(long)]
    pub lossy: bool,
    /// Expand gathers, scatters, and masked loads and stores, and record each access by itself: the same ones, but
    /// slower
    ///
    /// Before the program executes such an instruction, it is replaced by loads or stores of its lanes. Without this,
    /// threads record the registers from which all addresses come.
    #[arg(long)]
    pub expand: bool,
    /// The program's function NAME allocates or frees memory like a function of the C library: my_alloc=malloc
    ///
    /// Can be repeated. The usual allocators are known.
    #[arg(long = "allocator", value_name = "NAME=LIKE")]
    pub allocators: Vec<Allocator>,
}

/// Which functions are observed.
#[derive(Debug, Args, Default, PartialEq, Eq)]
pub struct FunctionArgs {
    /// Only these functions; PATTERN@LIB for functions of a library
    ///
    /// Can be repeated. A pattern is the whole name, with * and ? for other characters: mem*@libc. The rest of the
    /// program runs nearly as fast as alone.
    #[arg(long, value_name = "PATTERN")]
    pub only: Vec<String>,
    /// Leave out these functions
    #[arg(long, value_name = "PATTERN")]
    pub skip: Vec<String>,
}

/// A recording, or a program that is run.
#[derive(Debug, Args)]
pub struct SourceArgs {
    /// Read this recording instead of running a program
    #[arg(short, long, value_name = "DIR", conflicts_with_all = ["command", "pid", "every", "marked", "no_follow", "lossy", "expand", "allocators"], required_unless_present_any = ["command", "pid"], value_hint = ValueHint::DirPath)]
    pub directory: Option<PathBuf>,
    /// Only what this thread does; threads are numbered from 0 in the order in which hodo sees them, as view shows them
    #[arg(long, value_name = "NUMBER")]
    pub thread: Option<u32>,
    /// Which functions.
    #[command(flatten)]
    pub functions: FunctionArgs,
    /// How the program is observed.
    #[command(flatten)]
    pub watch: WatchArgs,
    /// Which part of the run.
    #[command(flatten)]
    pub part: Part,
    /// The program and its arguments
    #[arg(trailing_var_arg = true, value_name = "PROGRAM", value_hint = ValueHint::CommandWithArguments)]
    pub command: Vec<OsString>,
}

impl SourceArgs {
    /// Whether there is neither a recording nor a program or process to observe.
    pub fn is_none(&self) -> bool {
        self.directory.is_none() && self.part.pid.is_none() && self.command.is_empty()
    }

    /// Whether everything is observed, in the usual way.
    pub fn is_usual(&self) -> bool {
        self.thread.is_none()
            && self.functions == FunctionArgs::default()
            && self.watch == WatchArgs::default()
            && self.part == Part::default()
    }
}

/// How results are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum MemFormat {
    /// Lines for people
    #[default]
    Text,
    /// JSON
    Json,
}

/// How accesses are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum ViewFormat {
    /// Columns for people
    #[default]
    Text,
    /// Comma-separated values
    Csv,
}

/// What `hodo mem view` is given.
#[derive(Debug, Args)]
pub struct ViewMemArgs {
    /// How to write the accesses
    #[arg(long, value_enum, default_value_t)]
    pub format: ViewFormat,
    /// Show at most this many accesses: then, a program runs on as alone
    #[arg(long, value_name = "NUMBER")]
    pub limit: Option<u64>,
    /// Write to this file: without it, to the standard output, or to the standard error output if a program is run
    #[arg(short, long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub output: Option<PathBuf>,
    /// What to show.
    #[command(flatten)]
    pub source: SourceArgs,
}

/// What `hodo mem stat` is given.
#[derive(Debug, Args)]
pub struct StatArgs {
    /// What to read, and how to write.
    #[command(flatten)]
    pub common: CommonArgs,
}

/// Processors whose caches are known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum Like {
    /// This machine
    #[default]
    Host,
    /// AMD Zen 3: 32 KiB, 8 ways; 32 MiB, 16 ways; its second level has 512 KiB, 8 ways
    Zen3,
    /// Intel Skylake (client): 32 KiB, 8 ways; 8 MiB, 16 ways; its second level has 256 KiB, 4 ways
    Skylake,
}

/// Which line of a set gives way to a new one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum ReplacementArg {
    /// The one that was used the longest time ago
    #[default]
    Lru,
    /// The one that has been there the longest time
    Fifo,
    /// Any, but the same one in each run
    Random,
    /// The one to which a binary tree leads, as in many processors
    TreePlru,
}

/// What is fetched before it is accessed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum PrefetchArg {
    /// Nothing
    #[default]
    None,
    /// The line after one that misses the first cache for data
    NextLine,
    /// What an instruction will access, if the last four addresses that it accessed were equally far from each other
    Stride,
}

/// What the last cache has of what the others have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum InclusionArg {
    /// Lines come into all caches, and may then leave any of them
    #[default]
    Any,
    /// All of it: a line that leaves the last cache leaves the others, too
    Inclusive,
    /// Nothing: a line comes into the last cache when it leaves the others
    Exclusive,
}

/// A second level of caches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SecondArg {
    /// That of the processor.
    Like,
    /// This one.
    Cache(Geometry),
}

/// What `hodo mem cache` is given.
#[derive(Debug, Args)]
pub struct CacheArgs {
    /// The processor whose caches are simulated
    #[arg(long, value_enum, default_value_t)]
    pub like: Like,
    /// The first cache for instructions: bytes, ways, bytes of a line. cachegrind's --I1, --D1 and --LL mean the same
    #[arg(long, alias = "I1", value_name = "SIZE,WAYS,LINE", value_parser = geometry)]
    pub i1: Option<Geometry>,
    /// The first cache for data
    #[arg(long, alias = "D1", value_name = "SIZE,WAYS,LINE", value_parser = geometry)]
    pub d1: Option<Geometry>,
    /// A second cache, for both: "like" is that of the processor. Without it, there are two levels
    #[arg(long, value_name = "SIZE,WAYS,LINE", value_parser = second)]
    pub l2: Option<SecondArg>,
    /// The last cache, for both
    #[arg(long, alias = "LL", value_name = "SIZE,WAYS,LINE", value_parser = geometry)]
    pub ll: Option<Geometry>,
    /// Which line gives way to a new one, in all caches
    #[arg(long, value_enum, default_value_t)]
    pub replacement: ReplacementArg,
    /// What is fetched before it is accessed
    #[arg(long, value_enum, default_value_t)]
    pub prefetch: PrefetchArg,
    /// What the last cache has of what the others have
    #[arg(long, value_enum, default_value_t)]
    pub inclusion: InclusionArg,
    /// The number of processors: each has its own first caches and second one, threads are distributed over them, and
    /// the MESI protocol keeps their caches coherent
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    pub cores: u32,
    /// Also count lines that are written back when they give way
    #[arg(long)]
    pub write_backs: bool,
    /// Also show why data is not in the first cache: the first access, too little room, or too few ways
    #[arg(long)]
    pub causes: bool,
    /// Also show the instructions that miss
    #[arg(long)]
    pub instructions: bool,
    /// Also show the memory whose accesses miss: variables, stacks, allocations
    #[arg(long)]
    pub memory: bool,
    /// Show calls that allocate with this number of callers
    #[arg(long, value_name = "NUMBER", default_value_t = 2, requires = "memory")]
    pub callers: usize,
    /// Write a flame graph of the misses of data, too: as SVG, or folded stacks if the name ends with .folded
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub flame_graph: Option<PathBuf>,
    /// Write a file of cachegrind, too, for cg_annotate and KCachegrind
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub cachegrind: Option<PathBuf>,
    /// Write a page for browsers, too: misses over time, by function, and in the source text
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub html: Option<PathBuf>,
    /// How many functions and lines to show in text
    #[arg(long, value_name = "NUMBER", default_value_t = 20)]
    pub top: usize,
    /// What to read, and how to write.
    #[command(flatten)]
    pub common: CommonArgs,
}

/// Parses a second level: a geometry, or `like`.
fn second(text: &str) -> Result<SecondArg, String> {
    match text {
        "like" => Ok(SecondArg::Like),
        _ => geometry(text).map(SecondArg::Cache),
    }
}

/// Parses a geometry: `32768,8,64` or `32K,8,64`.
fn geometry(text: &str) -> Result<Geometry, String> {
    let parts: Vec<&str> = text.split(',').collect();
    let [size, ways, line] = parts[..] else {
        return Err("three numbers are needed: SIZE,WAYS,LINE, such as 32K,8,64".to_owned());
    };
    let (digits, unit) = match size.char_indices().last() {
        Some((at, 'K' | 'k')) => (&size[..at], 1 << 10),
        Some((at, 'M' | 'm')) => (&size[..at], 1 << 20),
        _ => (size, 1),
    };
    let number = |text: &str| {
        text.parse::<u32>()
            .map_err(|_| format!("{text:?} is no number"))
    };
    let geometry = Geometry {
        size: u64::from(number(digits)?) * unit,
        ways: number(ways)?,
        line: number(line)?,
    };
    geometry.check().map_err(|error| error.to_string())
}

/// What `hodo mem tlb` is given.
#[derive(Debug, Args)]
pub struct TlbArgs {
    /// Bytes of a page
    #[arg(long, value_name = "BYTES", default_value_t = 4096, value_parser = power)]
    pub page: u32,
    /// The first one for instructions: entries, ways
    #[arg(long, value_name = "ENTRIES,WAYS", default_value = "64,8", value_parser = entries)]
    pub itlb: (u32, u32),
    /// The first one for data
    #[arg(long, value_name = "ENTRIES,WAYS", default_value = "64,4", value_parser = entries)]
    pub dtlb: (u32, u32),
    /// The second one, for both
    #[arg(long, value_name = "ENTRIES,WAYS", default_value = "2048,16", value_parser = entries)]
    pub stlb: (u32, u32),
    /// How many functions and lines to show in text
    #[arg(long, value_name = "NUMBER", default_value_t = 20)]
    pub top: usize,
    /// What to read, and how to write.
    #[command(flatten)]
    pub common: CommonArgs,
}

/// What the tools have in common. `F`: how results can be written.
#[derive(Debug, Args)]
pub struct CommonArgs<F = MemFormat>
where
    F: ValueEnum + Default + Send + Sync + 'static,
{
    /// How to write the result
    #[arg(long, value_enum, default_value_t)]
    pub format: F,
    /// Write to this file: without it, to the standard output, or to the standard error output if a program is run
    #[arg(short, long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub output: Option<PathBuf>,
    /// What to observe.
    #[command(flatten)]
    pub source: SourceArgs,
}

/// What tools that count are given.
#[derive(Debug, Args)]
pub struct CountArgs {
    /// How many rows to show in text
    #[arg(long, value_name = "NUMBER", default_value_t = 40)]
    pub top: usize,
    /// What to read, and how to write.
    #[command(flatten)]
    pub common: CommonArgs,
}

/// How coverage is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum CoverageFormat {
    /// Lines for people
    #[default]
    Text,
    /// JSON
    Json,
    /// A tracefile of lcov, for genhtml
    Lcov,
    /// A file of DynamoRIO's drcov, for Lighthouse
    Drcov,
}

/// What `hodo mem coverage` is given.
#[derive(Debug, Args)]
// Files can be merged alone.
#[command(mut_arg("directory", |arg| arg.required_unless_present_any(["command", "pid", "merge"])))]
pub struct CoverageArgs {
    /// Add this earlier result to the new one: a file of lcov with --format lcov, or one of drcov with --format drcov
    ///
    /// Can be repeated. Without a program, a process and a recording, only these are added to each other.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub merge: Vec<PathBuf>,
    /// How many rows of each table to show in text
    #[arg(long, value_name = "NUMBER", default_value_t = 40)]
    pub top: usize,
    /// What to read, and how to write.
    #[command(flatten)]
    pub common: CommonArgs<CoverageFormat>,
}

/// How calls are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum CallsFormat {
    /// Lines for people
    #[default]
    Text,
    /// JSON
    Json,
    /// A file of callgrind, for callgrind_annotate and KCachegrind
    Callgrind,
}

/// What `hodo mem calls` is given.
#[derive(Debug, Args)]
pub struct CallsArgs {
    /// How many functions and calls to show in text
    #[arg(long, value_name = "NUMBER", default_value_t = 40)]
    pub top: usize,
    /// What to read, and how to write.
    #[command(flatten)]
    pub common: CommonArgs<CallsFormat>,
}

/// What allocations are sorted by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum AllocationsBy {
    /// Bytes when most memory is allocated
    #[default]
    Peak,
    /// Bytes that are never freed
    Leaked,
    /// All bytes that are allocated
    Bytes,
    /// Allocations
    Allocations,
    /// Allocations that are freed before their thread allocates anything else
    Temporary,
}

/// What `hodo mem heap` is given.
#[derive(Debug, Args)]
pub struct HeapArgs {
    /// What to sort by, and what a flame graph is of
    #[arg(long, value_enum, default_value_t)]
    pub by: AllocationsBy,
    /// How many rows to show in text
    #[arg(long, value_name = "NUMBER", default_value_t = 40)]
    pub top: usize,
    /// Show calls that allocate with this number of callers
    #[arg(long, value_name = "NUMBER", default_value_t = 4)]
    pub callers: usize,
    /// Write a flame graph, too: as SVG, or folded stacks if the name ends with .folded
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub flame_graph: Option<PathBuf>,
    /// What to read, and how to write.
    #[command(flatten)]
    pub common: CommonArgs,
}

/// What `hodo mem hot` is given.
#[derive(Debug, Args)]
pub struct HotArgs {
    /// How many rows to show in text
    #[arg(long, value_name = "NUMBER", default_value_t = 40)]
    pub top: usize,
    /// Show calls that allocate with this number of callers
    #[arg(long, value_name = "NUMBER", default_value_t = 2)]
    pub callers: usize,
    /// What to read, and how to write.
    #[command(flatten)]
    pub common: CommonArgs,
}

/// What tools about lines are given.
#[derive(Debug, Args)]
pub struct LineArgs {
    /// Bytes of a line
    #[arg(long, value_name = "BYTES", default_value_t = 64, value_parser = line)]
    pub line: u32,
    /// How many rows to show in text
    #[arg(long, value_name = "NUMBER", default_value_t = 40)]
    pub top: usize,
    /// What to read, and how to write.
    #[command(flatten)]
    pub common: CommonArgs,
}

/// What `hodo mem share` is given.
#[derive(Debug, Args)]
pub struct ShareArgs {
    /// Bytes of a line
    #[arg(long, value_name = "BYTES", default_value_t = 64, value_parser = line)]
    pub line: u32,
    /// How many lines of memory to show in text
    #[arg(long, value_name = "NUMBER", default_value_t = 40)]
    pub top: usize,
    /// Show calls that allocate with this number of callers
    #[arg(long, value_name = "NUMBER", default_value_t = 2)]
    pub callers: usize,
    /// What to read, and how to write.
    #[command(flatten)]
    pub common: CommonArgs,
}

/// What `hodo mem working-set` is given.
#[derive(Debug, Args)]
pub struct WorkingSetArgs {
    /// Bytes of a line
    #[arg(long, value_name = "BYTES", default_value_t = 64, value_parser = line)]
    pub line: u32,
    /// Instructions of a part: the window of the working set
    #[arg(long, value_name = "NUMBER", default_value_t = 1_000_000)]
    pub window: u64,
    /// What to read, and how to write.
    #[command(flatten)]
    pub common: CommonArgs,
}

/// Parses bytes of a page.
fn power(text: &str) -> Result<u32, String> {
    let number: u32 = text.parse().map_err(|_| format!("{text:?} is no number"))?;
    let is_page = number.is_power_of_two() && (4096..=1 << 30).contains(&number);
    is_page
        .then_some(number)
        .ok_or_else(|| "a page is a power of two from 4096 on".to_owned())
}

/// Parses bytes of a line.
fn line(text: &str) -> Result<u32, String> {
    let number: u32 = text.parse().map_err(|_| format!("{text:?} is no number"))?;
    let is_line = number.is_power_of_two() && (16..=128).contains(&number);
    is_line
        .then_some(number)
        .ok_or_else(|| "a line has 16, 32, 64 or 128 bytes".to_owned())
}

/// Parses a number of entries and one of ways.
fn entries(text: &str) -> Result<(u32, u32), String> {
    let Some((entries, ways)) = text.split_once(',') else {
        return Err("two numbers are needed: ENTRIES,WAYS, such as 64,4".to_owned());
    };
    let number = |text: &str| {
        text.parse::<u32>()
            .map_err(|_| format!("{text:?} is no number"))
    };
    let (entries, ways) = (number(entries)?, number(ways)?);
    let geometry = Geometry {
        size: u64::from(entries) << 12,
        ways,
        line: 4096,
    };
    geometry.check().map_err(|error| error.to_string())?;
    Ok((entries, ways))
}
