//! How probes are defined, the options of `hodo probe` that run nothing, and those of its output.

use std::path::PathBuf;

use clap::{Args, ValueEnum, ValueHint};

/// How probes are defined.
pub const PROBES: &str = "\
A definition is p[:[GROUP/]NAME] FILE:PLACE [VALUES] [if CONDITION] [ACTIONS], as in the kernel's uprobe_events;
with r in place of p, or %return after FUNCTION, it is about the function's return.
  FILE     a path, or the name of the program or of a library
  PLACE    FUNCTION, FUNCTION+OFFSET, FUNCTION+* (each of its instructions), 0xOFFSET in the file;
           FUNCTION may be a pattern with * and ?; SOURCE.c:LINE where there is debugging information;
           %PROVIDER:NAME for a USDT probe, whose values are arg1, arg2, …
           FILE:*+* is each instruction of a file but those of its linkage tables; what code of a library runs before the
           dynamic linker announces it, as that which chooses an implementation of memcpy, is not seen
  VALUES   [NAME=]SOURCE[:TYPE]; SOURCE is %rdi (on RISC-V %a0), $arg1 …, $retval, $stack, $stack0, +8(SOURCE) for memory,
           @ADDRESS, @+OFFSET in the file, $comm, \\NUMBER, or with debugging information a variable:
           total, p->x[3].y, ns::total, $params, $vars; TYPE is u8 … u64, s8 … s64, x8 … x64, char, string, symbol,
           bWIDTH@OFFSET/BITS (sbWIDTH@OFFSET/BITS with a sign), TYPE[N] for arrays
  CONDITION as in C, over the names of values, pid, tid, cpu and comm; beside $vars and $params of any variable;
           TEXT ~ \"PATTERN\" with * ? [abc]; a value that cannot be read makes it false
  ACTIONS  print (also without any), count (an instruction with rep once, however often it repeats),
           snapshot:BYTES of the stack, stacktrace,
           hist:keys=NAME,NAME.log2,NAME.buckets=N:vals=NAME:sort=NAME.descending:size=N,
           enable:PROBE, disable:PROBE, traceon, traceoff (no events and no calls of functions until traceon),
           return:VALUE (without running the function)

Example: hodo probe -e 'p:open libc.so.6:open64 file=+0($arg1):string flags=$arg2:x32' -- cat /etc/hostname";

/// How events are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum EventFormatArg {
    /// Lines as ftrace has them
    #[default]
    #[value(alias = "normal")]
    Text,
    /// JSON: an object in each line
    Json,
    /// Perfetto's trace format, for ui.perfetto.dev; into a file
    Perfetto,
}

/// How and where events and counts are written.
#[derive(Debug, Args)]
pub struct Written {
    /// How events and counts are written
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    pub format: EventFormatArg,
    /// Write events and counts to this file, not to stdout
    #[arg(
        short,
        long,
        value_name = "FILE",
        required_if_eq("format", "perfetto"),
        value_hint = ValueHint::FilePath
    )]
    pub output: Option<PathBuf>,
}

/// What could be probed, and how.
#[derive(Debug, Args)]
#[command(next_help_heading = "Without running the program")]
pub struct Looking {
    /// Show where the probes would be and what would be changed for them, or why they cannot be
    ///
    /// Only one file is named after the options: the program or library in which to look. It is not needed if the
    /// definitions name paths. -v lists all places of patterns. The exit status is 1 if a definition has no place.
    #[arg(long, group = "looking")]
    pub dry_run: bool,
    /// List what can be probed of a file: `--list FILE [FUNCTION…]`
    ///
    /// Of each function: its address, its size, how its entry can be probed, whether its return can be, and its name.
    /// FUNCTION may be a pattern with * and ?. -v tells why a probe cannot be.
    #[arg(short, long, group = "looking")]
    pub list: bool,
    /// List the USDT probes of a file, which its programmers have put there: `--usdt FILE`
    ///
    /// Of each: its address, its semaphore, its provider and name, and its arguments. A definition names it
    /// FILE:%PROVIDER:NAME.
    #[arg(long, group = "looking")]
    pub usdt: bool,
    /// As JSON
    #[arg(long, requires = "looking")]
    pub json: bool,
}
