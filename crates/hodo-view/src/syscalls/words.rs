//! What the arguments of each system call are, looked up by number: this is asked for each call.

use std::sync::LazyLock;

use hodo_abi::Isa;
use hodo_trace::syscalls::{NUMBERS, Sizes, by_number};

use super::names::{
    ARCH, CLOCK, CLONE, EPOLLFLAGS, EPOLLOP, EVENTFLAGS, FADVISE, FAMILY, FCNTL, FLOCK, GRND, HOW,
    ITIMER, LEVEL, MADVISE, MREMAP, MSGFLAGS, MSYNC, Names, PIPE, PR, PRIORITY, RLIMIT, RWF, SHUT,
    SLEEP, SOCKFLAGS, TIMERFLAGS, WAIT, WHENCE,
};
use super::structs;
use super::text::{number, quoted, signals};

/// How an argument is written.
#[derive(Clone, Copy)]
pub(super) enum Kind {
    /// Not at all: programs give it, but it means nothing on this machine.
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
    /// An address that says no more.
    Address,
    /// A number in hex.
    Hex,
    /// Bytes that the program gives.
    In,
    /// Bytes that the kernel gives.
    Out,
    /// A number of 32 bits that has one of these names, and what it may be if it has none.
    One(&'static Names, &'static str),
    /// Bits that have these names, and what they may be if they have none.
    Flags(&'static Names, &'static str),
    /// A structure of this size that the program has filled.
    Given(usize, Show),
    /// A structure of this size that the kernel has filled.
    Filled(usize, Show),
    /// What is known before the call and needs more than its own value and bytes.
    Before(Before),
    /// What is only known after the call and needs more than its own bytes.
    After(After),
    /// What a command of `fcntl` takes, or returns.
    Fcntl,
    /// What a command of `ioctl` takes, or returns.
    Ioctl,
    /// `struct clone_args`, and what is written by its flags.
    Clone3,
}

/// Writes a structure's bytes.
type Show = fn(&[u8]) -> String;

/// See [`Kind::Before`].
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

/// See [`Kind::After`].
#[derive(Debug, Clone, Copy)]
pub(super) enum After {
    DirectoryEntries,
    EpollEvents,
    Length,
    Message,
    RemainingTime,
    SocketAddress,
    Vectors,
    WaitStatus,
}

/// An argument of a system call.
#[derive(Clone, Copy)]
pub(super) struct Word {
    pub kind: Kind,
    /// Another argument that it depends on.
    pub by: usize,
}

impl Word {
    /// Returns whether programs give it though it means nothing on this machine.
    pub fn is_skipped(&self) -> bool {
        matches!(self.kind, Kind::Skipped)
    }

    /// Reads a word of `hodo_trace`'s tables.
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
            kind: kind.unwrap_or(Kind::Address),
            by,
        }
    }
}

/// The kinds that nearly all calls have.
fn plain(word: &str) -> Option<Kind> {
    Some(match word {
        "skip" => Kind::Skipped,
        "int" => Kind::Int,
        "fd" => Kind::Descriptor,
        "uint" => Kind::Uint,
        "size" => Kind::Size,
        "off" => Kind::Offset,
        "ptr" => Kind::Address,
        "hex" => Kind::Hex,
        "in" => Kind::In,
        "out" => Kind::Out,
        _ => return None,
    })
}

/// Numbers and bits that have names.
fn named(word: &str) -> Option<Kind> {
    Some(match word {
        "af" => Kind::One(FAMILY, "AF_???"),
        "arch" => Kind::One(ARCH, "ARCH_???"),
        "clockid" => Kind::One(CLOCK, "CLOCK_???"),
        "epollop" => Kind::One(EPOLLOP, "EPOLL_CTL_???"),
        "fadvise" => Kind::One(FADVISE, "POSIX_FADV_???"),
        "fcntl" => Kind::One(FCNTL, "F_???"),
        "how" => Kind::One(HOW, "SIG_???"),
        "itimer" => Kind::One(ITIMER, "ITIMER_???"),
        "madvise" => Kind::One(MADVISE, "MADV_???"),
        "prctl" => Kind::One(PR, "PR_???"),
        "prio" => Kind::One(PRIORITY, "PRIO_???"),
        "rlimit" => Kind::One(RLIMIT, "RLIMIT_???"),
        "shut" => Kind::One(SHUT, "SHUT_???"),
        "sol" => Kind::One(LEVEL, "SOL_???"),
        "whence" => Kind::One(WHENCE, "SEEK_???"),
        "clone" => Kind::Flags(CLONE, "CLONE_???"),
        "cnflags" => Kind::Flags(SLEEP, "TIMER_???"),
        "epollflags" => Kind::Flags(EPOLLFLAGS, "EPOLL_???"),
        "eventflags" => Kind::Flags(EVENTFLAGS, "EFD_???"),
        "flock" => Kind::Flags(FLOCK, "LOCK_???"),
        "grnd" => Kind::Flags(GRND, "GRND_???"),
        "mremap" => Kind::Flags(MREMAP, "MREMAP_???"),
        "msgflags" => Kind::Flags(MSGFLAGS, "MSG_???"),
        "msync" => Kind::Flags(MSYNC, "MS_???"),
        "pipeflags" => Kind::Flags(PIPE, "O_???"),
        "rwf" => Kind::Flags(RWF, "RWF_???"),
        "sockflags" => Kind::Flags(SOCKFLAGS, "SOCK_???"),
        "timerflags" => Kind::Flags(TIMERFLAGS, "TFD_???"),
        "wait" => Kind::Flags(WAIT, "W???"),
        _ => return None,
    })
}

/// Structures of which the bytes say all.
fn structure(word: &str, sizes: &Sizes) -> Option<Kind> {
    let all_bits: Show = |bytes| structs::bits(bytes, bytes.len() * 8);
    let nanoseconds: Show = |bytes| structs::time(bytes, "nsec");
    let microseconds: Show = |bytes| structs::time(bytes, "usec");
    let set: Show = |bytes| signals(number(bytes, 0, 8));
    Some(match word {
        "altstack" => Kind::Given(24, structs::alternate_stack),
        "cpuset" => Kind::Given(8, all_bits),
        "frame" => Kind::Given(8, |bytes| {
            format!("{{mask={}}}", signals(number(bytes, 0, 8)))
        }),
        "itval" => Kind::Given(32, structs::interval),
        "rlim" => Kind::Given(16, structs::limits),
        "sigact" => Kind::Given(sizes.sigaction, structs::action),
        "sigset" => Kind::Given(8, set),
        "timeval" => Kind::Given(16, microseconds),
        "tspec" => Kind::Given(16, nanoseconds),
        "altstacko" => Kind::Filled(24, structs::alternate_stack),
        "cpuseto" => Kind::Filled(1, all_bits),
        "cwd" => Kind::Filled(1, |bytes| {
            let end = bytes.iter().position(|&byte| byte == 0);
            let path = &bytes[..end.unwrap_or(bytes.len())];
            quoted(path, usize::MAX, end.is_none())
        }),
        "itvalo" => Kind::Filled(32, structs::interval),
        "optout" => Kind::Filled(4, |bytes| format!("[{}]", number(bytes, 0, 4) as i32)),
        "pipe" => Kind::Filled(8, |bytes| {
            let [read, write] = [0, 4].map(|at| number(bytes, at, 4) as i32);
            format!("[{read}, {write}]")
        }),
        "rlimo" => Kind::Filled(16, structs::limits),
        "sigacto" => Kind::Filled(sizes.sigaction, structs::action),
        "sigseto" => Kind::Filled(8, set),
        "stat" => Kind::Filled(sizes.stat, structs::stat),
        "statfs" => Kind::Filled(120, structs::statfs),
        "statx" => Kind::Filled(256, structs::statx),
        "timevalo" => Kind::Filled(16, microseconds),
        "tspeco" => Kind::Filled(16, nanoseconds),
        "uname" => Kind::Filled(390, structs::uname),
        "usage" => Kind::Filled(32, structs::usage),
        _ => return None,
    })
}

/// Arguments whose meaning depends on others.
fn special(word: &str) -> Option<Kind> {
    Some(match word {
        "clone3" => Kind::Clone3,
        "fcarg" => Kind::Fcntl,
        "ioarg" => Kind::Ioctl,
        "access" => Kind::Before(Before::Access),
        "archarg" => Kind::Before(Before::ArchArgument),
        "argv" => Kind::Before(Before::Strings),
        "at" => Kind::Before(Before::Directory),
        "atflags" => Kind::Before(Before::AtFlags),
        "envp" => Kind::Before(Before::Environment),
        "epoll" => Kind::Before(Before::EpollEvent),
        "fdset" => Kind::Before(Before::FdSet),
        "futex" => Kind::Before(Before::Futex),
        "futexval" => Kind::Before(Before::FutexValue),
        "id" => Kind::Before(Before::Id),
        "ioctl" => Kind::Before(Before::IoctlCommand),
        "iov" => Kind::Before(Before::Vectors),
        "mapflags" => Kind::Before(Before::MapFlags),
        "mode" => Kind::Before(Before::Mode),
        "msg" => Kind::Before(Before::Message),
        "oflags" => Kind::Before(Before::OpenFlags),
        "optin" => Kind::Before(Before::SocketOptionValue),
        "path" => Kind::Before(Before::Path),
        "poll" => Kind::Before(Before::Poll),
        "prarg" => Kind::Before(Before::PrctlArgument),
        "prot" => Kind::Before(Before::Protection),
        "sa" => Kind::Before(Before::SocketAddress),
        "sig" => Kind::Before(Before::Signal),
        "so" => Kind::Before(Before::SocketOption),
        "sockproto" => Kind::Before(Before::SocketProtocol),
        "socktype" => Kind::Before(Before::SocketType),
        "statxmask" => Kind::Before(Before::StatxMask),
        "tspec_f" => Kind::Before(Before::FutexTime),
        "who" => Kind::Before(Before::Who),
        "dents" => Kind::After(After::DirectoryEntries),
        "epollo" => Kind::After(After::EpollEvents),
        "iovr" => Kind::After(After::Vectors),
        "lenp" => Kind::After(After::Length),
        "msgo" => Kind::After(After::Message),
        "sao" => Kind::After(After::SocketAddress),
        "tspec_rem" => Kind::After(After::RemainingTime),
        "wstatus" => Kind::After(After::WaitStatus),
        _ => return None,
    })
}

type Words = Vec<Option<Vec<Word>>>;

static X86_64: LazyLock<Words> = LazyLock::new(|| of(Isa::X86_64));
static RISCV64: LazyLock<Words> = LazyLock::new(|| of(Isa::Riscv64));

fn of(machine: Isa) -> Words {
    let sizes = Sizes::of(machine);
    let word = |word: &str| Word::new(word, &sizes);
    let words = |number| Some(by_number(machine, number)?.args()?.map(word).collect());
    (0..NUMBERS).map(words).collect()
}

/// The arguments of a system call; `None`: nothing is known of them.
pub(super) fn words(machine: Isa, number: u64) -> Option<&'static [Word]> {
    let words = match machine {
        Isa::X86_64 => &X86_64,
        Isa::Riscv64 => &RISCV64,
        Isa::Aarch64 => return None,
    };
    words.get(usize::try_from(number).ok()?)?.as_deref()
}

/// How many arguments an event has: six if nothing is known.
pub(super) fn count(machine: Isa, number: u64) -> usize {
    words(machine, number).map_or(6, |words| words.len().min(6))
}
