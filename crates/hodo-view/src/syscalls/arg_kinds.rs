//! The kinds of each system call's arguments. They are looked up by number, because this is done for each call.

use std::sync::LazyLock;

use hodo_abi::Isa;
use hodo_trace::syscalls::{NUMBERS, Sizes, by_number};

use super::names::{
    ARCH, CLOCK, CLONE, EPOLLFLAGS, EPOLLOP, EVENTFLAGS, FADVISE, FAMILY, FCNTL, FLOCK, GRND, HOW,
    ITIMER, LEVEL, MADVISE, MREMAP, MSGFLAGS, MSYNC, Names, PR, PRIORITY, RLIMIT, RWF, SHUT, SLEEP,
    SOCKFLAGS, TIMERFLAGS, WAIT, WHENCE,
};
use super::structs;
use super::text::{number, quoted, signals};
use super::whole;

/// How an argument is written.
#[derive(Clone, Copy)]
pub(super) enum ArgKind {
    /// Not at all: programs pass it, but it means nothing on this machine.
    Skipped,
    /// A signed number of 32 bits.
    Int,
    /// A descriptor.
    Descriptor,
    /// An unsigned number of 32 bits.
    Uint,
    /// An unsigned number of 64 bits.
    Size,
    /// A signed number of 64 bits.
    Offset,
    /// An address, with nothing more to show.
    Address,
    /// A number in hex.
    Hex,
    /// Bytes that the program passes.
    In,
    /// Bytes that the kernel returns.
    Out,
    /// A 32-bit number that has one of these names, and a hint for numbers without a name.
    One(&'static Names, &'static str),
    /// Bits that have these names, and a hint for bits without names.
    Flags(&'static Names, &'static str),
    /// A structure of this size that the program filled.
    Given(usize, Show),
    /// A structure of this size that the kernel filled.
    Filled(usize, Show),
    /// The same, with another form if nothing is abridged, which gets the difference between local time and UTC.
    Abridged(usize, Show, fn(&[u8], i64) -> String),
    /// An argument that is known before the call, and depends on more than its own value and bytes.
    Before(Before),
    /// An argument that is known only after the call, and depends on more than its own bytes.
    After(After),
    /// The argument, or the result, of an `fcntl` command.
    Fcntl,
    /// The argument, or the result, of an `ioctl` command.
    Ioctl,
    /// `struct clone_args`, and what the kernel writes depending on its flags.
    Clone3,
}

/// Formats a structure's bytes.
type Show = fn(&[u8]) -> String;

/// See [`ArgKind::Before`].
#[derive(Debug, Clone, Copy)]
pub(super) enum Before {
    Access,
    AtFlags,
    ArchArgument,
    Directory,
    Environment,
    EpollEvent,
    FdSet,
    Futex,
    FutexTime,
    FutexValue,
    Id,
    IoctlCommand,
    MapFlags,
    Message,
    Mode,
    OpenFlags,
    Path,
    PipeFlags,
    Poll,
    PrctlArgument,
    Protection,
    Signal,
    SocketAddress,
    SocketOption,
    SocketOptionValue,
    SocketProtocol,
    SocketType,
    StatxMask,
    Strings,
    Vectors,
    Who,
}

/// See [`ArgKind::After`].
#[derive(Debug, Clone, Copy)]
pub(super) enum After {
    DirectoryEntries,
    EpollEvents,
    Length,
    Message,
    Pair,
    RemainingTime,
    SocketAddress,
    Vectors,
    WaitStatus,
    WaitUsage,
}

/// An argument of a system call.
#[derive(Clone, Copy)]
pub(super) struct Word {
    pub kind: ArgKind,
    /// Another argument that it depends on.
    pub by: usize,
}

impl Word {
    /// Returns whether programs pass this argument though it means nothing on this machine.
    pub fn is_skipped(&self) -> bool {
        matches!(self.kind, ArgKind::Skipped)
    }

    /// Parses a word of `hodo_trace`'s tables.
    fn new(word: &str, sizes: &Sizes) -> Self {
        let (word, by) = match word.split_once('.') {
            Some((word, by)) => (word, by.parse().unwrap_or(0)),
            None => (word, 0),
        };
        let kind = plain(word)
            .or_else(|| named(word))
            .or_else(|| structure(word, sizes))
            .or_else(|| special(word));
        Self {
            kind: kind.unwrap_or(ArgKind::Address),
            by,
        }
    }
}

/// The kinds of most arguments.
fn plain(word: &str) -> Option<ArgKind> {
    Some(match word {
        "skip" => ArgKind::Skipped,
        "int" => ArgKind::Int,
        "fd" => ArgKind::Descriptor,
        "uint" => ArgKind::Uint,
        "size" => ArgKind::Size,
        "off" => ArgKind::Offset,
        "ptr" => ArgKind::Address,
        "hex" => ArgKind::Hex,
        "in" => ArgKind::In,
        "out" => ArgKind::Out,
        _ => return None,
    })
}

/// Numbers and bits with names.
fn named(word: &str) -> Option<ArgKind> {
    Some(match word {
        "af" => ArgKind::One(FAMILY, "AF_???"),
        "arch" => ArgKind::One(ARCH, "ARCH_???"),
        "clockid" => ArgKind::One(CLOCK, "CLOCK_???"),
        "epollop" => ArgKind::One(EPOLLOP, "EPOLL_CTL_???"),
        "fadvise" => ArgKind::One(FADVISE, "POSIX_FADV_???"),
        "fcntl" => ArgKind::One(FCNTL, "F_???"),
        "how" => ArgKind::One(HOW, "SIG_???"),
        "itimer" => ArgKind::One(ITIMER, "ITIMER_???"),
        "madvise" => ArgKind::One(MADVISE, "MADV_???"),
        "prctl" => ArgKind::One(PR, "PR_???"),
        "prio" => ArgKind::One(PRIORITY, "PRIO_???"),
        "rlimit" => ArgKind::One(RLIMIT, "RLIMIT_???"),
        "shut" => ArgKind::One(SHUT, "SHUT_???"),
        "sol" => ArgKind::One(LEVEL, "SOL_???"),
        "whence" => ArgKind::One(WHENCE, "SEEK_???"),
        "clone" => ArgKind::Flags(CLONE, "CLONE_???"),
        "cnflags" => ArgKind::Flags(SLEEP, "TIMER_???"),
        "epollflags" => ArgKind::Flags(EPOLLFLAGS, "EPOLL_???"),
        "eventflags" => ArgKind::Flags(EVENTFLAGS, "EFD_???"),
        "flock" => ArgKind::Flags(FLOCK, "LOCK_???"),
        "grnd" => ArgKind::Flags(GRND, "GRND_???"),
        "mremap" => ArgKind::Flags(MREMAP, "MREMAP_???"),
        "msgflags" => ArgKind::Flags(MSGFLAGS, "MSG_???"),
        "msync" => ArgKind::Flags(MSYNC, "MS_???"),

        "rwf" => ArgKind::Flags(RWF, "RWF_???"),
        "sockflags" => ArgKind::Flags(SOCKFLAGS, "SOCK_???"),
        "timerflags" => ArgKind::Flags(TIMERFLAGS, "TFD_???"),
        "wait" => ArgKind::Flags(WAIT, "W???"),
        _ => return None,
    })
}

/// Structures that are shown from their bytes alone.
fn structure(word: &str, sizes: &Sizes) -> Option<ArgKind> {
    let all_bits: Show = |bytes| structs::bits(bytes, bytes.len() * 8);
    let nanoseconds: Show = |bytes| structs::time(bytes, "nsec");
    let microseconds: Show = |bytes| structs::time(bytes, "usec");
    let set: Show = |bytes| signals(number(bytes, 0, 8));
    Some(match word {
        "altstack" => ArgKind::Given(24, structs::alternate_stack),
        "cpuset" => ArgKind::Given(8, all_bits),
        "frame" => ArgKind::Given(8, |bytes| {
            format!("{{mask={}}}", signals(number(bytes, 0, 8)))
        }),
        "itval" => ArgKind::Given(32, structs::interval),
        "rlim" => ArgKind::Given(16, structs::limits),
        "sigact" => ArgKind::Given(sizes.sigaction, structs::action),
        "sigset" => ArgKind::Given(8, set),
        "timeval" => ArgKind::Given(16, microseconds),
        "tspec" => ArgKind::Given(16, nanoseconds),
        "altstacko" => ArgKind::Filled(24, structs::alternate_stack),
        "cpuseto" => ArgKind::Filled(1, all_bits),
        "cwd" => ArgKind::Filled(1, |bytes| {
            let end = bytes.iter().position(|&byte| byte == 0);
            let path = &bytes[..end.unwrap_or(bytes.len())];
            quoted(path, usize::MAX, end.is_none())
        }),
        "itvalo" => ArgKind::Filled(32, structs::interval),
        "optout" => ArgKind::Filled(4, |bytes| format!("[{}]", number(bytes, 0, 4) as i32)),
        "rlimo" => ArgKind::Filled(16, structs::limits),
        "sigacto" => ArgKind::Filled(sizes.sigaction, structs::action),
        "sigseto" => ArgKind::Filled(8, set),
        "stat" => ArgKind::Abridged(sizes.stat, structs::stat, whole::stat),
        "statfs" => ArgKind::Filled(120, structs::statfs),
        "statx" => ArgKind::Abridged(256, structs::statx, whole::statx),
        "timevalo" => ArgKind::Filled(16, microseconds),
        "tspeco" => ArgKind::Filled(16, nanoseconds),
        "uname" => ArgKind::Abridged(390, structs::uname, |bytes, _| whole::uname(bytes)),
        "usage" => ArgKind::Abridged(32, structs::usage, |bytes, _| whole::usage(bytes)),
        _ => return None,
    })
}

/// Arguments whose meaning depends on others.
fn special(word: &str) -> Option<ArgKind> {
    Some(match word {
        "clone3" => ArgKind::Clone3,
        "fcarg" => ArgKind::Fcntl,
        "ioarg" => ArgKind::Ioctl,
        "access" => ArgKind::Before(Before::Access),
        "archarg" => ArgKind::Before(Before::ArchArgument),
        "argv" => ArgKind::Before(Before::Strings),
        "at" => ArgKind::Before(Before::Directory),
        "atflags" => ArgKind::Before(Before::AtFlags),
        "envp" => ArgKind::Before(Before::Environment),
        "epoll" => ArgKind::Before(Before::EpollEvent),
        "fdset" => ArgKind::Before(Before::FdSet),
        "futex" => ArgKind::Before(Before::Futex),
        "futexval" => ArgKind::Before(Before::FutexValue),
        "id" => ArgKind::Before(Before::Id),
        "ioctl" => ArgKind::Before(Before::IoctlCommand),
        "iov" => ArgKind::Before(Before::Vectors),
        "mapflags" => ArgKind::Before(Before::MapFlags),
        "mode" => ArgKind::Before(Before::Mode),
        "msg" => ArgKind::Before(Before::Message),
        "oflags" => ArgKind::Before(Before::OpenFlags),
        "optin" => ArgKind::Before(Before::SocketOptionValue),
        "path" => ArgKind::Before(Before::Path),
        "pipeflags" => ArgKind::Before(Before::PipeFlags),
        "poll" => ArgKind::Before(Before::Poll),
        "prarg" => ArgKind::Before(Before::PrctlArgument),
        "prot" => ArgKind::Before(Before::Protection),
        "sa" => ArgKind::Before(Before::SocketAddress),
        "sig" => ArgKind::Before(Before::Signal),
        "so" => ArgKind::Before(Before::SocketOption),
        "sockproto" => ArgKind::Before(Before::SocketProtocol),
        "socktype" => ArgKind::Before(Before::SocketType),
        "statxmask" => ArgKind::Before(Before::StatxMask),
        "tspec_f" => ArgKind::Before(Before::FutexTime),
        "who" => ArgKind::Before(Before::Who),
        "dents" => ArgKind::After(After::DirectoryEntries),
        "epollo" => ArgKind::After(After::EpollEvents),
        "iovr" => ArgKind::After(After::Vectors),
        "lenp" => ArgKind::After(After::Length),
        "msgo" => ArgKind::After(After::Message),
        "pipe" => ArgKind::After(After::Pair),
        "sao" => ArgKind::After(After::SocketAddress),
        "tspec_rem" => ArgKind::After(After::RemainingTime),
        "waitusage" => ArgKind::After(After::WaitUsage),
        "wstatus" => ArgKind::After(After::WaitStatus),
        _ => return None,
    })
}

type Words = Vec<Option<Vec<Word>>>;

static X86_64: LazyLock<Words> = LazyLock::new(|| of(Isa::X86_64));
static RISCV64: LazyLock<Words> = LazyLock::new(|| of(Isa::Riscv64));
static AARCH64: LazyLock<Words> = LazyLock::new(|| of(Isa::Aarch64));

fn of(machine: Isa) -> Words {
    let sizes = Sizes::of(machine);
    let word = |word: &str| Word::new(word, &sizes);
    let words = |number| Some(by_number(machine, number)?.args()?.map(word).collect());
    (0..NUMBERS).map(words).collect()
}

/// Returns the arguments of a system call, or `None` if they are not known.
pub(super) fn words(machine: Isa, number: u64) -> Option<&'static [Word]> {
    let words = match machine {
        Isa::X86_64 => &X86_64,
        Isa::Riscv64 => &RISCV64,
        Isa::Aarch64 => &AARCH64,
    };
    words.get(usize::try_from(number).ok()?)?.as_deref()
}

/// Returns how many arguments an event has: six if nothing is known about them.
pub(super) fn count(machine: Isa, number: u64) -> usize {
    words(machine, number).map_or(6, |words| words.len().min(6))
}
