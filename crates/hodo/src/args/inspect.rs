//! How to define probes; the options of `hodo probe` for its output, and those that run nothing.

use std::path::PathBuf;

use clap::{Args, ValueEnum, ValueHint};

/// How to define probes.
pub const PROBES: &str = "\
A definition is p[:[GROUP/]NAME] FILE:PLACE [VALUES] [if CONDITION] [ACTIONS], as in the kernel's uprobe_events.
With r instead of p, or %return after FUNCTION, the probe fires when the function returns.
  FILE     a path, or the name of the program or of a library
  PLACE    FUNCTION, FUNCTION+OFFSET, FUNCTION+* (each of its instructions), 0xOFFSET in the file;
           FUNCTION may be a pattern with * and ?; SOURCE.c:LINE, given debugging information;
           %PROVIDER:NAME for a USDT probe, whose values are $arg1, $arg2, … or arg1, arg2, …
           FILE:*+* is each instruction of a file except its linkage tables. Code of a library that runs before the
           dynamic linker announces the library is not seen, such as the choice of a memcpy
  VALUES   [NAME=]SOURCE[:TYPE]; SOURCE is %rdi (on RISC-V %a0), $arg1 …, $retval, $stack, $stack0, +8(SOURCE) for memory,
           @ADDRESS, @+OFFSET in the file, $comm, \\NUMBER, or, given debugging information, a variable:
           total, p->x[3].y, ns::total, $params, $vars; TYPE is u8 … u64, s8 … s64, x8 … x64, char, string, symbol,
           bWIDTH@OFFSET/BITS (sbWIDTH@OFFSET/BITS with a sign), TYPE[N] for arrays
  CONDITION as in C, over the names of values, pid, tid, cpu and comm; with $vars or $params, over any variable;
           TEXT ~ \"PATTERN\" with * ? [abc]; false if a value cannot be read
  ACTIONS  print (the default), count (an instruction with rep counts once, however often it repeats),
           snapshot:BYTES of the stack, stacktrace,
           hist:keys=NAME,NAME.log2,NAME.buckets=N:vals=NAME:sort=NAME.descending:size=N,
           enable:PROBE, disable:PROBE, traceon, traceoff (no events and no function calls until traceon),
           return:VALUE (return at once, without running the function)

post after PLACE: all of this happens after the instruction there, with the values that there are then, as in
  libc.so.6:getpid+5 post pid=%rax

Example: hodo probe -e 'p:open libc.so.6:open64 file=+0($arg1):string flags=$arg2:x32' -- cat /etc/hostname";

/// The format of events.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum EventFormatArg {
    /// Lines as ftrace writes them
    #[default]
    #[value(alias = "normal")]
    Text,
    /// JSON: one object per line
    Json,
    /// Perfetto's trace format, for ui.perfetto.dev; needs -o
    Perfetto,
}

/// How probes are made.
#[derive(Debug, Args)]
pub struct NoOptimize {
    /// Make each probe a breakpoint, even where there is room for a jump
    ///
    /// Breakpoints are slow, but change one instruction only, as with `sysctl debug.kprobes-optimization=0` in the
    /// kernel.
    #[arg(long)]
    pub no_optimize: bool,
}

/// How and where to write events and counts.
#[derive(Debug, Args)]
pub struct Written {
    /// The format of events and counts
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    pub format: EventFormatArg,
    /// Write events and counts to this file instead of stdout
    #[arg(
        short,
        long,
        value_name = "FILE",
        required_if_eq("format", "perfetto"),
        value_hint = ValueHint::FilePath
    )]
    pub output: Option<PathBuf>,
}

/// What can be probed, and how.
#[derive(Debug, Args)]
#[command(next_help_heading = "Without running the program")]
pub struct Inspect {
    /// Show where the probes would be placed and what would be changed, or why they cannot be placed
    ///
    /// The only argument after the options is the program or library to look in. It can be left out if the definitions
    /// name paths. -v lists all places that patterns match. The exit status is 1 if a definition has no place.
    #[arg(long, group = "inspect")]
    pub dry_run: bool,
    /// List the functions of a file that can be probed: `--list FILE [FUNCTION…]`
    ///
    /// Shows each function's address, size, name, how its entry can be probed, and whether its return can be.
    /// FUNCTION may be a pattern with * and ?. -v says why a probe cannot be placed.
    #[arg(short, long, group = "inspect")]
    pub list: bool,
    /// List the USDT probes of a file, which its programmers have put there: `--usdt FILE`
    ///
    /// Shows each one's address, semaphore, provider, name and arguments. In a definition it is FILE:%PROVIDER:NAME.
    #[arg(long, group = "inspect")]
    pub usdt: bool,
    /// List the probes that a running hodo has placed in a process: `-p PID --list-armed`
    ///
    /// Shows each one's address, kind (p, r on the return, u for USDT), place, file, flags, counted hits and name, as
    /// the kernel's kprobes/list does. OPTIMIZED: a jump, not a breakpoint; DISABLED: switched off by an action; POST:
    /// at the instruction after its place. Hits are known of probes with the action count.
    #[arg(long, group = "inspect", requires = "pid", conflicts_with_all = ["probes", "events", "no_optimize", "span"])]
    pub list_armed: bool,
    /// Write JSON
    #[arg(long, requires = "inspect")]
    pub json: bool,
}
