//! The arguments of a system call, as strace writes them.

use std::borrow::Cow;

use hodo_trace::Machine;
use hodo_trace::syscalls::{Sizes, Syscall, by_number, piece};

use super::errors::sig;
use super::names::{
    ACCESS, ARCH, AT, CLOCK, CLONE, EPOLLFLAGS, EPOLLOP, EVENTFLAGS, FAMILY, FCNTL, FLOCK, FUTEX,
    GRND, HOW, INETPROTO, IOCTL, ITIMER, LEVEL, MADVISE, MAP, MREMAP, MSGFLAGS, MSYNC, Names, OPEN,
    PIPE, PR, PROT, RLIMIT, RWF, SHUT, SOCKFLAGS, SOCKOPT, SOCKTYPE, STATX, TCPOPT, TIMERFLAGS,
    WAIT, WHENCE, WHO,
};
use super::read::{Enter, Exit, Piece, Pieces};
use super::structs;
use super::text::{address, flags, hex, name, number, octal, one, quoted, signals, with_flags};
use super::text::{put_hex, put_number, put_signed};
use super::words::{Kind, Word, words};

/// Most elements of an array that are shown.
const ELEMENTS: usize = 32;

/// Which arguments of a call are written. What is only known behind the call ends what can be written before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    All,
    /// Those that are known before the call.
    Beginning,
    /// The others.
    Rest,
}

/// A call of which the end may not be known yet.
#[derive(Clone, Copy)]
pub(super) struct Call<'c> {
    pub enter: &'c Enter,
    pub exit: Option<&'c Exit>,
}

/// Appends what a descriptor stands for.
pub(super) fn put_name(name: &str, out: &mut String) {
    out.push('<');
    *out += name;
    out.push('>');
}

impl<'c> Call<'c> {
    /// Appends what an argument stands for, if it is a descriptor of which that is known.
    fn put_name(self, argument: usize, out: &mut String) {
        let mut names = self.enter.names.iter();
        if let Some((_, name)) = names.find(|(of, _)| usize::from(*of) == argument) {
            put_name(name, out);
        }
    }

    /// Does nothing come after it, for it ends its thread?
    pub fn ends_thread(self) -> bool {
        matches!(&*self.name(), "exit" | "exit_group")
    }

    /// The name.
    pub fn name(self) -> Cow<'static, str> {
        match self.known() {
            Some(call) => Cow::Borrowed(call.name),
            None => Cow::Owned(format!("syscall_{:#x}", self.enter.number)),
        }
    }

    fn known(self) -> Option<Syscall> {
        by_number(self.enter.machine, self.enter.number)
    }

    fn words(self) -> Option<&'static [Word]> {
        words(self.enter.machine, self.enter.number)
    }

    fn sizes(self) -> Sizes {
        Sizes::of(self.enter.machine)
    }

    fn is(self, name: &str) -> bool {
        self.known().is_some_and(|call| call.name == name)
    }

    pub fn value(self, argument: usize) -> u64 {
        self.enter.args.get(argument).copied().unwrap_or(0)
    }

    /// The result, if it is no error.
    pub fn success(self) -> Option<u64> {
        let value = self.exit?.value;
        (value.cast_signed() >= 0 || value < 4096u64.wrapping_neg()).then_some(value)
    }

    pub(super) fn before(self, argument: usize) -> Option<Piece<'c>> {
        find(&self.enter.pieces, argument)
    }

    pub(super) fn behind(self, argument: usize) -> Option<Piece<'c>> {
        find(&self.exit?.pieces, argument)
    }

    /// All pieces of an argument.
    pub(super) fn pieces(self, argument: usize, behind: bool) -> impl Iterator<Item = Piece<'c>> {
        let all = match (behind, self.exit) {
            (false, _) => Some(&self.enter.pieces),
            (true, exit) => exit.map(|exit| &exit.pieces),
        };
        all.into_iter()
            .flat_map(Pieces::iter)
            .filter(move |piece| usize::from(piece.argument) == argument)
    }

    /// The bytes of a structure, if all of it could be read.
    fn whole(piece: Option<Piece<'c>>, size: usize) -> Option<&'c [u8]> {
        piece
            .filter(|piece| piece.bytes.len() >= size)
            .map(|piece| piece.bytes)
    }

    /// A structure that the program has filled, or its address.
    fn given(self, argument: usize, size: usize, show: impl FnOnce(&[u8]) -> String) -> String {
        let bytes = Self::whole(self.before(argument), size);
        bytes.map_or_else(|| address(self.value(argument)), show)
    }

    /// A structure that the kernel has filled, or its address.
    fn filled(self, argument: usize, size: usize, show: impl FnOnce(&[u8]) -> String) -> String {
        let bytes = Self::whole(self.behind(argument), size).filter(|_| self.success().is_some());
        bytes.map_or_else(|| address(self.value(argument)), show)
    }

    /// How many of its arguments mean something.
    fn count(self) -> usize {
        let all = self.enter.args.len();
        let Some(call) = self.known() else {
            return all;
        };
        let shown = match call.name {
            "open" if self.value(1) & 0o20_000_100 == 0 => 2,
            "openat" if self.value(2) & 0o20_000_100 == 0 => 3,
            "mremap" if self.value(3) & 6 == 0 => 4,
            "fcntl" if matches!(self.value(1), 1 | 3 | 9 | 11 | 1025 | 1032 | 1034) => 2,
            "prctl" => match self.value(0) {
                2 | 3 | 7 | 11 | 14 | 15 | 16 | 21 | 25 | 30 | 37 | 40 => match self.value(0) {
                    15 | 16 | 2 | 37 | 25 | 40 => 2,
                    _ => 1,
                },
                1 | 4 | 8 | 23 | 24 | 26 | 29 | 36 => 2,
                _ => all,
            },
            "futex" => match self.value(1) & 0x7F {
                1 => 3,
                0 | 13 => 4,
                7 | 8 => 2,
                _ => all,
            },
            "ioctl" if matches!(self.value(1), 0x5450 | 0x5451) => 2,
            _ => all,
        };
        shown.min(all)
    }

    /// Appends arguments.
    pub fn arguments(self, part: Part, out: &mut String) {
        if self.is("clone") {
            if part != Part::Rest {
                *out += &self.clone_arguments();
            }
            return;
        }
        let words = self.words();
        let mut shown = part != Part::Rest;
        for at in 0..self.count() {
            let start = out.len();
            if words.is_some_and(|words| words.get(at).is_some_and(Word::is_skipped)) {
                continue;
            }
            if shown && at > 0 {
                out.push_str(", ");
            }
            let behind = self.argument(at, words.and_then(|words| words.get(at)), out);
            match behind {
                Some(behind) if part == Part::Beginning => {
                    out.truncate(behind);
                    return;
                }
                // Where the line was interrupted.
                Some(behind) if !shown => {
                    out.drain(start..behind);
                    shown = true;
                }
                None if !shown => out.truncate(start),
                _ => {}
            }
        }
    }

    /// Each argument.
    pub fn each_argument(self) -> Vec<String> {
        if self.is("clone") {
            return vec![self.clone_arguments()];
        }
        let words = self.words();
        let one = |at| {
            let mut text = String::new();
            self.argument(at, words.and_then(|words| words.get(at)), &mut text);
            text
        };
        let is_shown =
            |at: &usize| !words.is_some_and(|words| words.get(*at).is_some_and(Word::is_skipped));
        (0..self.count()).filter(is_shown).map(one).collect()
    }

    /// Appends an argument. Out: where what is only known behind the call begins, if anything is.
    fn argument(self, at: usize, word: Option<&Word>, out: &mut String) -> Option<usize> {
        let value = self.value(at);
        let Some(&Word { word, by, kind }) = word else {
            put_hex(out, value);
            return None;
        };
        match kind {
            Kind::Int => put_signed(out, i64::from(value as i32)),
            Kind::Descriptor => {
                put_signed(out, i64::from(value as i32));
                self.put_name(at, out);
            }
            Kind::Uint => put_number(out, u64::from(value as u32)),
            Kind::Size => put_number(out, value),
            Kind::Offset => put_signed(out, value.cast_signed()),
            Kind::Address if value == 0 => out.push_str("NULL"),
            Kind::Address => put_hex(out, value),
            Kind::Hex if value == 0 => out.push('0'),
            Kind::Hex => put_hex(out, value),
            Kind::In => self.buffer(at, self.value(by), out),
            Kind::Out => {
                let behind = out.len();
                self.out(at, out);
                return Some(behind);
            }
            Kind::Other => return self.other_argument(at, word, by, out),
        }
        None
    }

    fn other_argument(self, at: usize, word: &str, by: usize, out: &mut String) -> Option<usize> {
        if word == "clone3" {
            let parent = self
                .before(at)
                .is_some_and(|piece| number(piece.bytes, 0, 8) & 0x0010_0000 != 0);
            *out += &self.given(at, 64, structs::clone_args);
            let behind = out.len();
            if let Some(tid) = self.success().filter(|&tid| tid != 0 && parent) {
                *out += &format!(" => {{parent_tid=[{tid}]}}");
            }
            return Some(behind);
        }
        if let Some(text) = self.filled_argument(at, word, by) {
            let behind = out.len();
            *out += &text;
            return Some(behind);
        }
        *out += &self.given_argument(at, word, by);
        if word == "at" {
            self.put_name(at, out);
        }
        None
    }

    /// An argument that is known before the call.
    fn given_argument(self, at: usize, word: &str, by: usize) -> String {
        let value = self.value(at);
        let int = value as u32;
        let short = u64::from(int);
        let named = |names: &Names, what: &str| flags(short, names, what);
        match word {
            "id" => match int.cast_signed() {
                -1 => "-1".to_owned(),
                _ => int.to_string(),
            },
            "prarg" if self.before(at).is_none() => hex(value),
            "at" => match int.cast_signed() {
                -100 => "AT_FDCWD".to_owned(),
                fd => fd.to_string(),
            },
            "mode" => octal(value & 0xFFFF),
            "path" | "prarg" => self.path(at),
            "argv" => self.strings(at),
            "envp" => match self.before(at) {
                Some(piece) if piece.flags & piece::MORE != 0 => {
                    let count = number(piece.bytes, 0, 8);
                    let plural = if count == 1 { "" } else { "s" };
                    format!("{value:#x} /* {count} var{plural} */")
                }
                _ => address(value),
            },
            "iov" => self.vectors(at, false, self.value(by), u64::MAX),
            "msg" => self.message(at, false),
            "oflags" => self.open_flags(short),
            "pipeflags" => named(PIPE, "O_???"),
            "access" => match short {
                0 => "F_OK".to_owned(),
                _ => named(ACCESS, "?_OK"),
            },
            "prot" => match short {
                0 => "PROT_NONE".to_owned(),
                _ => named(PROT, "PROT_???"),
            },
            "mapflags" => match short & 3 {
                3 => with_flags("MAP_SHARED_VALIDATE", short & !3, MAP),
                _ => named(MAP, "MAP_???"),
            },
            "mremap" => named(MREMAP, "MREMAP_???"),
            "msync" => named(MSYNC, "MS_???"),
            "madvise" => one(short, MADVISE, "MADV_???"),
            "fadvise" => {
                let names: &Names = &[
                    (0, "POSIX_FADV_NORMAL"),
                    (1, "POSIX_FADV_RANDOM"),
                    (2, "POSIX_FADV_SEQUENTIAL"),
                    (3, "POSIX_FADV_WILLNEED"),
                    (4, "POSIX_FADV_DONTNEED"),
                    (5, "POSIX_FADV_NOREUSE"),
                ];
                one(short, names, "POSIX_FADV_???")
            }
            "whence" => one(short, WHENCE, "SEEK_???"),
            "how" => one(short, HOW, "SIG_???"),
            "sig" => match short {
                0 => "0".to_owned(),
                signal => sig(signal),
            },
            "sigact" => self.given(at, self.sizes().sigaction, structs::action),
            "frame" => self.given(at, 8, |bytes| {
                format!("{{mask={}}}", signals(number(bytes, 0, 8)))
            }),
            "itimer" => one(short, ITIMER, "ITIMER_???"),
            "itval" => self.given(at, 32, structs::interval),
            "rwf" => named(RWF, "RWF_???"),
            "sigset" => self.given(at, 8, |bytes| signals(number(bytes, 0, 8))),
            "altstack" => self.given(at, 24, structs::alternate_stack),
            "ioctl" => match name(short, IOCTL) {
                Some(name) => name.to_owned(),
                None => ioctl(short),
            },
            "fcntl" => one(short, FCNTL, "F_???"),
            "fcarg" => match self.value(at - 1) {
                0 | 1030 => int.cast_signed().to_string(),
                2 => flags(short, &[(1, "FD_CLOEXEC")], "FD_???"),
                4 => self.open_flags(short),
                8 | 10 | 1024 | 1026 | 1031 | 1033 => int.to_string(),
                6 | 7 | 37 | 38 => self.given(at, 32, |bytes| structs::lock(bytes, false)),
                _ => address(value),
            },
            // Those that tell something; see below for those that ask.
            "ioarg" => match self.value(at - 1) as u32 {
                0x5414 => self.given(at, 8, structs::window),
                0x5410 | 0x5421 => self.given(at, 4, structs::number_at),
                _ => address(value),
            },
            "flock" => named(FLOCK, "LOCK_???"),
            "futex" => {
                let operation = one(short & 0x7F, FUTEX, "FUTEX_???");
                let private = if short & 128 != 0 { "_PRIVATE" } else { "" };
                let clock = if short & 256 != 0 {
                    "|FUTEX_CLOCK_REALTIME"
                } else {
                    ""
                };
                format!("{operation}{private}{clock}")
            }
            "futexval" => int.to_string(),
            "tspec_f" => match self.value(1) & 0x7F {
                3 | 4 | 5 | 12 => int.to_string(),
                _ => self.given(at, 16, |bytes| structs::time(bytes, "nsec")),
            },
            "tspec" => self.given(at, 16, |bytes| structs::time(bytes, "nsec")),
            "timeval" => self.given(at, 16, |bytes| structs::time(bytes, "usec")),
            "rlim" => self.given(at, 16, structs::limits),
            "rlimit" => one(short, RLIMIT, "RLIMIT_???"),
            "who" => match int.cast_signed() {
                -1 => "RUSAGE_CHILDREN".to_owned(),
                _ => one(short, WHO, "RUSAGE_???"),
            },
            "prio" => one(
                short,
                &[(0, "PRIO_PROCESS"), (1, "PRIO_PGRP"), (2, "PRIO_USER")],
                "PRIO_???",
            ),
            "clone" => named(CLONE, "CLONE_???"),
            "wait" => named(WAIT, "W???"),
            "af" => one(short, FAMILY, "AF_???"),
            "socktype" => {
                let first =
                    name(short & 0xF, SOCKTYPE).map_or_else(|| hex(short & 0xF), str::to_owned);
                with_flags(&first, short & !0xF, SOCKFLAGS)
            }
            "sockproto" => match self.value(0) {
                2 | 10 => one(short, INETPROTO, "IPPROTO_???"),
                16 if short == 0 => "NETLINK_ROUTE".to_owned(),
                _ => hex(short),
            },
            "sockflags" => named(SOCKFLAGS, "SOCK_???"),
            "msgflags" => named(MSGFLAGS, "MSG_???"),
            "shut" => one(short, SHUT, "SHUT_???"),
            "sol" => one(short, LEVEL, "SOL_???"),
            "so" => match self.value(at - 1) {
                1 => one(short, SOCKOPT, "SO_???"),
                6 => one(short, TCPOPT, "TCP_???"),
                _ => hex(short),
            },
            "optin" => match (self.before(at), self.value(by)) {
                (Some(piece), 4) if piece.bytes.len() == 4 => {
                    format!("[{}]", number(piece.bytes, 0, 4) as i32)
                }
                (Some(piece), len) if piece.flags & piece::FAULT == 0 => {
                    quoted(piece.bytes, 16, len > piece.bytes.len() as u64)
                }
                _ => address(value),
            },
            "sa" => self.given(at, 0, |bytes| {
                structs::socket_address(bytes, self.value(by) as usize)
            }),
            "poll" => self.polled(at, self.value(by)),
            "fdset" => self.given(at, 8, |bytes| {
                structs::bits(bytes, self.value(0).min(1024) as usize)
            }),
            "cpuset" => self.given(at, 8, |bytes| structs::bits(bytes, bytes.len() * 8)),
            "epollop" => one(short, EPOLLOP, "EPOLL_CTL_???"),
            "epoll" if self.value(1) != 2 => {
                self.given(at, self.sizes().epoll_event, structs::epoll_event)
            }
            "epollflags" => named(EPOLLFLAGS, "EPOLL_???"),
            "eventflags" => named(EVENTFLAGS, "EFD_???"),
            "timerflags" => named(TIMERFLAGS, "TFD_???"),
            "clockid" => one(short, CLOCK, "CLOCK_???"),
            "cnflags" => flags(short, &[(1, "TIMER_ABSTIME")], "TIMER_???"),
            "atflags" => match &*self.name() {
                "unlinkat" => flags(short, &[(0x200, "AT_REMOVEDIR")], "AT_???"),
                "faccessat" | "faccessat2" => flags(
                    short,
                    &[
                        (0x100, "AT_SYMLINK_NOFOLLOW"),
                        (0x200, "AT_EACCESS"),
                        (0x1000, "AT_EMPTY_PATH"),
                    ],
                    "AT_???",
                ),
                "statx" => match short & 0x6000 {
                    0x2000 => with_flags("AT_STATX_FORCE_SYNC", short & !0x6000, AT),
                    0x4000 => with_flags("AT_STATX_DONT_SYNC", short & !0x6000, AT),
                    _ => with_flags("AT_STATX_SYNC_AS_STAT", short & !0x6000, AT),
                },
                _ => named(AT, "AT_???"),
            },
            "statxmask" => match short & 0x7FF {
                0x7FF => with_flags("STATX_BASIC_STATS", short & !0x7FF, STATX),
                _ => named(STATX, "STATX_???"),
            },
            "grnd" => named(GRND, "GRND_???"),
            "prctl" => one(short, PR, "PR_???"),
            "arch" => one(short, ARCH, "ARCH_???"),
            "archarg" => hex(value),
            _ => address(value),
        }
    }

    /// An argument that the kernel fills; `None`: it does not. What it points to is only known behind the call.
    fn filled_argument(self, at: usize, word: &str, by: usize) -> Option<String> {
        let value = self.value(at);
        Some(match word {
            "cwd" => self.filled(at, 1, |bytes| {
                let end = bytes.iter().position(|&byte| byte == 0);
                quoted(
                    &bytes[..end.unwrap_or(bytes.len())],
                    usize::MAX,
                    end.is_none(),
                )
            }),
            "fcarg" if matches!(self.value(at - 1), 5 | 36) => {
                self.filled(at, 32, |bytes| structs::lock(bytes, true))
            }
            "ioarg" => match self.value(at - 1) as u32 {
                0x5413 => self.filled(at, 8, structs::window),
                0x540F | 0x541B => self.filled(at, 4, structs::number_at),
                _ => return None,
            },
            "dents" => self.filled(at, 8, |bytes| {
                format!("{value:#x} /* {} entries */", number(bytes, 0, 8))
            }),
            "iovr" => match self.success() {
                Some(got) => self.vectors(at, true, self.value(by), got),
                None => address(value),
            },
            "msgo" => match self.success() {
                Some(_) => self.message(at, true),
                None => address(value),
            },
            "stat" => self.filled(at, self.sizes().stat, structs::stat),
            "statx" => self.filled(at, 256, structs::statx),
            "statfs" => self.filled(at, 120, structs::statfs),
            "uname" => self.filled(at, 390, structs::uname),
            "usage" => self.filled(at, 32, structs::usage),
            "itvalo" => self.filled(at, 32, structs::interval),
            "timevalo" => self.filled(at, 16, |bytes| structs::time(bytes, "usec")),
            "tspeco" => self.filled(at, 16, |bytes| structs::time(bytes, "nsec")),
            "tspec_rem" => address(value),
            "rlimo" => self.filled(at, 16, structs::limits),
            "sigseto" => self.filled(at, 8, |bytes| signals(number(bytes, 0, 8))),
            "sigacto" => self.filled(at, self.sizes().sigaction, structs::action),
            "altstacko" => self.filled(at, 24, structs::alternate_stack),
            "pipe" => self.filled(at, 8, |bytes| {
                format!(
                    "[{}, {}]",
                    number(bytes, 0, 4) as i32,
                    number(bytes, 4, 4) as i32
                )
            }),
            "wstatus" => match self.success() {
                Some(0) => address(value),
                _ => self.filled(at, 4, |bytes| structs::wait_status(number(bytes, 0, 4))),
            },
            "lenp" => {
                let len = |piece: Option<Piece<'_>>| piece.map(|piece| number(piece.bytes, 0, 4));
                match (len(self.before(at)), len(self.behind(at))) {
                    (Some(before), Some(behind)) if before != behind => {
                        format!("[{before} => {behind}]")
                    }
                    (Some(before), _) => format!("[{before}]"),
                    _ => address(value),
                }
            }
            "optout" => self.filled(at, 4, |bytes| format!("[{}]", number(bytes, 0, 4) as i32)),
            "sao" => {
                let len = self
                    .behind(by)
                    .map_or(0, |piece| number(piece.bytes, 0, 4) as usize);
                match self.behind(at).filter(|_| self.success().is_some()) {
                    Some(piece) if len > 0 => structs::socket_address(piece.bytes, len),
                    _ => address(value),
                }
            }
            "cpuseto" => self.filled(at, 1, |bytes| structs::bits(bytes, bytes.len() * 8)),
            "epollo" => match self.success() {
                Some(0) => "[]".to_owned(),
                Some(count) => self.filled(at, self.sizes().epoll_event, |bytes| {
                    let events = bytes
                        .chunks_exact(self.sizes().epoll_event)
                        .take(count as usize)
                        .take(ELEMENTS);
                    let shown: Vec<String> = events.map(structs::epoll_event).collect();
                    let more = if (shown.len() as u64) < count {
                        ", ..."
                    } else {
                        ""
                    };
                    format!("[{}{more}]", shown.join(", "))
                }),
                None => address(value),
            },
            _ => return None,
        })
    }

    fn open_flags(self, value: u64) -> String {
        const MODES: [&str; 4] = ["O_RDONLY", "O_WRONLY", "O_RDWR", "O_ACCMODE"];
        // O_SYNC has the bit of O_DSYNC, and O_TMPFILE that of O_DIRECTORY.
        with_flags(MODES[(value & 3) as usize], value & !3, OPEN)
    }

    fn clone_arguments(self) -> String {
        let given = self.value(0);
        let signal = given & 0xFF;
        let mut names = match given & !0xFF {
            0 => String::new(),
            bits => flags(bits, CLONE, "CLONE_???"),
        };
        if signal != 0 || names.is_empty() {
            let text = if signal == 0 {
                "0".to_owned()
            } else {
                sig(signal)
            };
            names = if names.is_empty() {
                text
            } else {
                format!("{names}|{text}")
            };
        }
        let mut text = format!("child_stack={}, flags={names}", address(self.value(1)));
        if given & 0x0010_1000 != 0 {
            text += &match self.success() {
                Some(tid) if given & 0x0010_0000 != 0 => format!(", parent_tid=[{tid}]"),
                _ => format!(", parent_tid={}", address(self.value(2))),
            };
        }
        let (tls, child) = match self.enter.machine {
            Machine::X86_64 => (4, 3),
            Machine::Riscv64 => (3, 4),
        };
        if given & 0x0008_0000 != 0 {
            text += &format!(", tls={}", address(self.value(tls)));
        }
        if given & 0x0120_0000 != 0 {
            text += &format!(", child_tidptr={}", address(self.value(child)));
        }
        text
    }
}

fn find(pieces: &Pieces, argument: usize) -> Option<Piece<'_>> {
    pieces
        .iter()
        .find(|piece| usize::from(piece.argument) == argument)
}

/// A request of `ioctl` that has no name here.
fn ioctl(request: u64) -> String {
    let direction = match request >> 30 {
        0 => "_IOC_NONE",
        1 => "_IOC_WRITE",
        2 => "_IOC_READ",
        _ => "_IOC_READ|_IOC_WRITE",
    };
    let part = |shift: u32, mask: u64| hex(request >> shift & mask);
    format!(
        "_IOC({direction}, {}, {}, {})",
        part(8, 0xFF),
        part(0, 0xFF),
        part(16, 0x3FFF)
    )
}
