//! System calls.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, ValueHint};
use hodo_trace::syscalls::{BUFFER, LARGEST_BUFFER};

use super::{Attach, Data, FormatArg, NoOptimize, Screen};

/// `syscalls`.
#[derive(Debug, Args)]
pub struct SyscallsArgs {
    #[command(flatten)]
    pub place: Data,
    #[command(flatten)]
    pub screen: Screen,
    #[command(flatten)]
    pub attach: Attach,
    #[command(flatten)]
    pub no_jumps: NoOptimize,
    /// Show only a table of the calls, their times and errors
    #[arg(short = 'c', long)]
    pub summary: bool,
    /// Only these calls: NAME,NAME,…; !NAME,… for all others; or file, network, process, memory, desc, signal
    ///
    /// As with strace, `trace=` may come first. Other calls are not recorded, and cost next to nothing.
    #[arg(short = 'e', long, value_name = "FILTER")]
    pub events: Vec<String>,
    /// Follow child processes (the default); -ff -o FILE writes the calls of each thread to FILE.TID
    #[arg(short = 'f', long, action = clap::ArgAction::Count)]
    pub follow: u8,
    /// Do not follow child processes
    #[arg(long, conflicts_with = "follow")]
    pub no_follow: bool,
    /// Start each line with the time of day; -tt adds microseconds; -ttt shows seconds since 1970
    #[arg(short = 't', long = "absolute-timestamps", action = clap::ArgAction::Count)]
    pub times: u8,
    /// Start each line with the time since the previous one
    #[arg(short = 'r', long = "relative-timestamps")]
    pub relative: bool,
    /// End each line with the time that the call took
    #[arg(short = 'T', long = "syscall-times")]
    pub spent: bool,
    /// Show what file descriptors refer to: `3</etc/passwd>`; -yy adds addresses of sockets and numbers of devices
    ///
    /// `-yy`: `4<TCP:[127.0.0.1:4242->127.0.0.1:80]>`, `5<UNIX-STREAM:[321->322,"/run/socket"]>`,
    /// `6</dev/null<char 1:3>>`, `7<pid:77>`. Addresses come from the calls of the program. What the kernel chose is
    /// looked up shortly after the call; of a socket that is closed by then, it is missing, or `?`.
    #[arg(short = 'y', long = "decode-fds", action = clap::ArgAction::Count)]
    pub names: u8,
    /// Show this many bytes of buffers, at most 4096
    #[arg(
        short = 's',
        long = "string-limit",
        value_name = "BYTES",
        default_value_t = BUFFER as u16,
        value_parser = clap::value_parser!(u16).range(0..=LARGEST_BUFFER as i64)
    )]
    pub string_limit: u16,
    /// Show whole environments, arguments and structures (stat, statx, uname, rusage); -v does so, too
    ///
    /// Directory entries are counted as without it. Lists of which not all was recorded end with `...`; of empty ones,
    /// the address is shown.
    #[arg(long)]
    pub no_abbrev: bool,
    /// The output format
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    pub format: FormatArg,
    /// Write to this file instead of stderr; - is stdout, and '|COMMAND' a command that reads it
    #[arg(short, long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub output: Option<PathBuf>,
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
