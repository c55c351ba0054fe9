//! The arguments of a system call, as strace writes them.

use std::borrow::Cow;

use hodo_abi::Isa;
use hodo_trace::syscalls::{Sizes, Syscall, by_number, open_flags, piece};

use super::arg_kinds::{After, ArgKind, Before, Word, words};
use super::errors::sig;
use super::names::{
    ACCESS, AT, CLONE, FUTEX, INETPROTO, IOCTL, MAP, Names, OPEN, PIPE, PROT, SOCKFLAGS, SOCKOPT,
    SOCKTYPE, TCPOPT, WHO,
};
use super::read::{Enter, Exit, Piece, Pieces};
use super::sockets::netlink;
use super::structs;
use super::text::{address, flags, hex, name, number, octal, one, quoted, with_flags};
use super::text::{put_hex, put_number, put_signed};
use super::whole;

/// At most this many elements of an array are shown.
const ELEMENTS: usize = 32;

/// Which arguments of a call are written. The first argument that is known only after the call ends the first part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    All,
    /// The arguments that are known before the call.
    Beginning,
    /// The other arguments.
    Rest,
}

/// A call whose end may not be known yet.
#[derive(Clone, Copy)]
pub(super) struct Call<'c> {
    pub enter: &'c Enter,
    pub exit: Option<&'c Exit>,
}

/// Appends what a descriptor refers to.
pub(super) fn put_name(name: &str, out: &mut String) {
    out.push('<');
    *out += name;
    out.push('>');
}

impl<'c> Call<'c> {
    /// Appends what an argument refers to, if it is a descriptor and that is known.
    fn put_name(self, argument: usize, out: &mut String) {
        let mut names = self.enter.names.iter();
        if let Some((_, name)) = names.find(|(of, _)| usize::from(*of) == argument) {
            put_name(name, out);
        }
    }

    /// Formats a descriptor in a list, and what it refers to if that is known.
    pub(super) fn listed(self, fd: i32) -> String {
        let mut text = fd.to_string();
        let ends = self.exit.map_or(&[][..], |exit| &exit.listed);
        let mut listed = self.enter.listed.iter().chain(ends);
        if let Some((_, name)) = listed.find(|(of, _)| *of == fd) {
            put_name(name, &mut text);
        }
        text
    }

    /// Returns whether the call ends its thread, so that it never returns.
    pub fn ends_thread(self) -> bool {
        matches!(&*self.name(), "exit" | "exit_group")
    }

    /// Returns the name.
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

    /// Returns the result, unless it is an error.
    pub fn success(self) -> Option<u64> {
        let value = self.exit?.value;
        (value.cast_signed() >= 0 || value < 4096u64.wrapping_neg()).then_some(value)
    }

    pub(super) fn before(self, argument: usize) -> Option<Piece<'c>> {
        find(&self.enter.pieces, argument)
    }

    pub(super) fn after(self, argument: usize) -> Option<Piece<'c>> {
        find(&self.exit?.pieces, argument)
    }

    /// Returns all pieces of an argument.
    pub(super) fn pieces(self, argument: usize, after: bool) -> impl Iterator<Item = Piece<'c>> {
        let all = match (after, self.exit) {
            (false, _) => Some(&self.enter.pieces),
            (true, exit) => exit.map(|exit| &exit.pieces),
        };
        all.into_iter()
            .flat_map(Pieces::iter)
            .filter(move |piece| usize::from(piece.argument) == argument)
    }

    /// Returns the bytes of a structure, if all of it could be read.
    fn whole(piece: Option<Piece<'c>>, size: usize) -> Option<&'c [u8]> {
        piece
            .filter(|piece| piece.bytes.len() >= size)
            .map(|piece| piece.bytes)
    }

    /// Formats a structure that the program filled, or its address.
    fn given(self, argument: usize, size: usize, show: impl FnOnce(&[u8]) -> String) -> String {
        let bytes = Self::whole(self.before(argument), size);
        bytes.map_or_else(|| address(self.value(argument)), show)
    }

    /// Formats a structure that the kernel filled, all of it if nothing is to be abridged.
    fn abridged(
        self,
        argument: usize,
        size: usize,
        show: fn(&[u8]) -> String,
        whole: fn(&[u8], i64) -> String,
    ) -> String {
        match self.enter.whole {
            Some(offset) => self.filled(argument, size, |bytes| whole(bytes, offset)),
            None => self.filled(argument, size, show),
        }
    }

    /// Formats a structure that the kernel filled, or its address.
    fn filled(self, argument: usize, size: usize, show: impl FnOnce(&[u8]) -> String) -> String {
        let bytes = Self::whole(self.after(argument), size).filter(|_| self.success().is_some());
        bytes.map_or_else(|| address(self.value(argument)), show)
    }

    /// Returns how many of its arguments have a meaning.
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

    /// Appends the arguments of a part.
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
            let after = self.argument(at, words.and_then(|words| words.get(at)), out);
            match after {
                Some(after) if part == Part::Beginning => {
                    out.truncate(after);
                    return;
                }
                // The line was interrupted here.
                Some(after) if !shown => {
                    out.drain(start..after);
                    shown = true;
                }
                None if !shown => out.truncate(start),
                _ => {}
            }
        }
    }

    /// Formats each argument separately.
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

    /// Appends an argument. Returns where the text begins that is known only after the call, if there is any.
    fn argument(self, at: usize, word: Option<&Word>, out: &mut String) -> Option<usize> {
        let value = self.value(at);
        let Some(&Word { kind, by }) = word else {
            put_hex(out, value);
            return None;
        };
        let short = u64::from(value as u32);
        let start = out.len();
        match kind {
            ArgKind::Skipped => {}
            ArgKind::Int => put_signed(out, i64::from(value as i32)),
            ArgKind::Descriptor => {
                put_signed(out, i64::from(value as i32));
                self.put_name(at, out);
            }
            ArgKind::Uint => put_number(out, short),
            ArgKind::Size => put_number(out, value),
            ArgKind::Offset => put_signed(out, value.cast_signed()),
            ArgKind::Address if value == 0 => out.push_str("NULL"),
            ArgKind::Address => put_hex(out, value),
            ArgKind::Hex if value == 0 => out.push('0'),
            ArgKind::Hex => put_hex(out, value),
            ArgKind::In => self.buffer(at, self.value(by), out),
            ArgKind::Out => {
                self.out(at, out);
                return Some(start);
            }
            ArgKind::One(names, unknown) => *out += &one(short, names, unknown),
            ArgKind::Flags(names, unknown) => *out += &flags(short, names, unknown),
            ArgKind::Given(size, show) => *out += &self.given(at, size, show),
            ArgKind::Abridged(size, show, whole) => {
                *out += &self.abridged(at, size, show, whole);
                return Some(start);
            }
            ArgKind::Filled(size, show) => {
                *out += &self.filled(at, size, show);
                return Some(start);
            }
            ArgKind::Before(before) => {
                *out += &self.known_before(at, before, by);
                if matches!(before, Before::Directory) {
                    self.put_name(at, out);
                }
            }
            ArgKind::After(after) => {
                *out += &self.known_after(at, after, by);
                return Some(start);
            }
            ArgKind::Fcntl => return self.fcntl(at, out),
            ArgKind::Ioctl => return self.ioctl(at, out),
            ArgKind::Clone3 => return Some(self.clone3(at, out)),
        }
        None
    }

    fn clone3(self, at: usize, out: &mut String) -> usize {
        let parent = self
            .before(at)
            .is_some_and(|piece| number(piece.bytes, 0, 8) & 0x0010_0000 != 0);
        *out += &self.given(at, 64, structs::clone_args);
        let after = out.len();
        if let Some(tid) = self.success().filter(|&tid| tid != 0 && parent) {
            *out += &format!(" => {{parent_tid=[{tid}]}}");
        }
        after
    }

    fn fcntl(self, at: usize, out: &mut String) -> Option<usize> {
        let start = out.len();
        let value = self.value(at);
        let int = value as u32;
        *out += &match self.value(at - 1) {
            5 | 36 => {
                *out += &self.filled(at, 32, |bytes| structs::lock(bytes, true));
                return Some(start);
            }
            0 | 1030 => int.cast_signed().to_string(),
            2 => flags(int.into(), &[(1, "FD_CLOEXEC")], "FD_???"),
            4 => self.open_flags(int.into()),
            8 | 10 | 1024 | 1026 | 1031 | 1033 => int.to_string(),
            6 | 7 | 37 | 38 => self.given(at, 32, |bytes| structs::lock(bytes, false)),
            _ => address(value),
        };
        None
    }

    fn ioctl(self, at: usize, out: &mut String) -> Option<usize> {
        let start = out.len();
        let (text, asks) = match self.value(at - 1) as u32 {
            0x5413 => (self.filled(at, 8, structs::window), true),
            0x540F | 0x541B => (self.filled(at, 4, structs::number_at), true),
            0x5414 => (self.given(at, 8, structs::window), false),
            0x5410 | 0x5421 => (self.given(at, 4, structs::number_at), false),
            _ => (address(self.value(at)), false),
        };
        *out += &text;
        asks.then_some(start)
    }

    /// Formats an argument that is known before the call.
    fn known_before(self, at: usize, what: Before, by: usize) -> String {
        let value = self.value(at);
        let int = value as u32;
        let short = u64::from(int);
        match what {
            Before::Id => match int.cast_signed() {
                -1 => "-1".to_owned(),
                _ => int.to_string(),
            },
            Before::Directory => match int.cast_signed() {
                -100 => "AT_FDCWD".to_owned(),
                fd => fd.to_string(),
            },
            Before::Mode => octal(value & 0xFFFF),
            Before::PrctlArgument if self.before(at).is_none() => hex(value),
            Before::Path | Before::PrctlArgument => self.path(at),
            Before::ArchArgument => hex(value),
            Before::Strings => self.strings(at),
            Before::Environment => self.environment(at),
            Before::Vectors => self.vectors(at, false, self.value(by), u64::MAX),
            Before::Message => self.message(at, false),
            Before::Signal => match short {
                0 => "0".to_owned(),
                signal => sig(signal),
            },
            Before::IoctlCommand => match name(short, IOCTL) {
                Some(name) => name.to_owned(),
                None => ioctl(short),
            },
            Before::FutexValue => int.to_string(),
            Before::FutexTime => match self.value(1) & 0x7F {
                3 | 4 | 5 | 12 => int.to_string(),
                _ => self.given(at, 16, |bytes| structs::time(bytes, "nsec")),
            },
            Before::Who => match int.cast_signed() {
                -1 => "RUSAGE_CHILDREN".to_owned(),
                _ => one(short, WHO, "RUSAGE_???"),
            },
            Before::SocketProtocol => match self.value(0) {
                2 | 10 => one(short, INETPROTO, "IPPROTO_???"),
                16 => match netlink(short) {
                    Some(name) => format!("NETLINK_{name}"),
                    None => hex(short),
                },
                _ => hex(short),
            },
            Before::SocketOption => match self.value(at - 1) {
                1 => one(short, SOCKOPT, "SO_???"),
                6 => one(short, TCPOPT, "TCP_???"),
                _ => hex(short),
            },
            Before::SocketOptionValue => self.socket_option_value(at, self.value(by)),
            Before::SocketAddress => self.given(at, 0, |bytes| {
                structs::socket_address(bytes, self.value(by) as usize)
            }),
            Before::Poll => self.polled(at, self.value(by)),
            Before::FdSet => self.given(at, 8, |bytes| self.set(bytes)),
            Before::EpollEvent if self.value(1) != 2 => {
                self.given(at, self.sizes().epoll_event, structs::epoll_event)
            }
            Before::EpollEvent => address(value),
            flags => self.named_parts(flags, short),
        }
    }

    /// Formats bits that have a meaning only together, or that mean something else in other calls.
    fn named_parts(self, what: Before, value: u64) -> String {
        match what {
            Before::OpenFlags => self.open_flags(value),
            Before::PipeFlags => flags(open_flags(self.enter.machine, value), PIPE, "O_???"),
            Before::Access if value == 0 => "F_OK".to_owned(),
            Before::Access => flags(value, ACCESS, "?_OK"),
            Before::Protection if value == 0 => "PROT_NONE".to_owned(),
            Before::Protection => flags(value, PROT, "PROT_???"),
            Before::MapFlags => match value & 3 {
                3 => with_flags("MAP_SHARED_VALIDATE", value & !3, MAP),
                _ => flags(value, MAP, "MAP_???"),
            },
            Before::Futex => {
                let operation = one(value & 0x7F, FUTEX, "FUTEX_???");
                let private = if value & 128 != 0 { "_PRIVATE" } else { "" };
                let clock = if value & 256 != 0 {
                    "|FUTEX_CLOCK_REALTIME"
                } else {
                    ""
                };
                format!("{operation}{private}{clock}")
            }
            Before::SocketType => {
                let first =
                    name(value & 0xF, SOCKTYPE).map_or_else(|| hex(value & 0xF), str::to_owned);
                with_flags(&first, value & !0xF, SOCKFLAGS)
            }
            Before::AtFlags => self.at_flags(value),
            Before::StatxMask => structs::statx_mask(value),
            _ => address(value),
        }
    }

    fn at_flags(self, value: u64) -> String {
        match &*self.name() {
            "unlinkat" => flags(value, &[(0x200, "AT_REMOVEDIR")], "AT_???"),
            "faccessat" | "faccessat2" => {
                let names: &Names = &[
                    (0x100, "AT_SYMLINK_NOFOLLOW"),
                    (0x200, "AT_EACCESS"),
                    (0x1000, "AT_EMPTY_PATH"),
                ];
                flags(value, names, "AT_???")
            }
            "statx" => {
                let sync = match value & 0x6000 {
                    0x2000 => "AT_STATX_FORCE_SYNC",
                    0x4000 => "AT_STATX_DONT_SYNC",
                    _ => "AT_STATX_SYNC_AS_STAT",
                };
                with_flags(sync, value & !0x6000, AT)
            }
            _ => flags(value, AT, "AT_???"),
        }
    }

    fn environment(self, at: usize) -> String {
        let value = self.value(at);
        match self.before(at) {
            Some(piece) if piece.flags & piece::MORE != 0 && self.enter.whole.is_none() => {
                let count = number(piece.bytes, 0, 8);
                let plural = if count == 1 { "" } else { "s" };
                format!("{value:#x} /* {count} var{plural} */")
            }
            Some(_) if self.enter.whole.is_some() => self.strings(at),
            _ => address(value),
        }
    }

    fn socket_option_value(self, at: usize, len: u64) -> String {
        match self.before(at) {
            Some(piece) if len == 4 && piece.bytes.len() == 4 => {
                format!("[{}]", number(piece.bytes, 0, 4) as i32)
            }
            Some(piece) if piece.flags & piece::FAULT == 0 => {
                quoted(piece.bytes, 16, len > piece.bytes.len() as u64)
            }
            _ => address(self.value(at)),
        }
    }

    /// Formats an argument that the kernel fills. What it points to is known only after the call.
    fn known_after(self, at: usize, what: After, by: usize) -> String {
        let value = self.value(at);
        match what {
            After::DirectoryEntries => self.filled(at, 8, |bytes| {
                format!("{value:#x} /* {} entries */", number(bytes, 0, 8))
            }),
            After::Vectors => match self.success() {
                Some(got) => self.vectors(at, true, self.value(by), got),
                None => address(value),
            },
            After::Message => match self.success() {
                Some(_) => self.message(at, true),
                None => address(value),
            },
            After::Pair => self.filled(at, 8, |bytes| {
                let [read, write] = [0, 4].map(|at| self.listed(number(bytes, at, 4) as i32));
                format!("[{read}, {write}]")
            }),
            After::RemainingTime => address(value),
            After::WaitStatus => match self.success() {
                Some(0) => address(value),
                _ => self.filled(at, 4, |bytes| structs::wait_status(number(bytes, 0, 4))),
            },
            After::WaitUsage => match self.success() {
                // Nobody has ended.
                Some(0) => address(value),
                _ => self.abridged(at, 32, structs::usage, |bytes, _| whole::usage(bytes)),
            },
            After::Length => {
                let len = |piece: Option<Piece<'_>>| piece.map(|piece| number(piece.bytes, 0, 4));
                match (len(self.before(at)), len(self.after(at))) {
                    (Some(before), Some(after)) if before != after => {
                        format!("[{before} => {after}]")
                    }
                    (Some(before), _) => format!("[{before}]"),
                    _ => address(value),
                }
            }
            After::SocketAddress => {
                let len = self.after(by);
                let len = len.map_or(0, |piece| number(piece.bytes, 0, 4) as usize);
                match self.after(at).filter(|_| self.success().is_some()) {
                    Some(piece) if len > 0 => structs::socket_address(piece.bytes, len),
                    _ => address(value),
                }
            }
            After::EpollEvents => match self.success() {
                Some(0) => "[]".to_owned(),
                Some(count) => self.epoll_events(at, count),
                None => address(value),
            },
        }
    }

    fn epoll_events(self, at: usize, count: u64) -> String {
        let size = self.sizes().epoll_event;
        self.filled(at, size, |bytes| {
            let events = bytes.chunks_exact(size).take(count as usize).take(ELEMENTS);
            let shown: Vec<String> = events.map(structs::epoll_event).collect();
            let more = if (shown.len() as u64) < count {
                ", ..."
            } else {
                ""
            };
            format!("[{}{more}]", shown.join(", "))
        })
    }

    /// Formats the flags of an open file, whose bits differ between machines.
    pub(super) fn open_flags(self, value: u64) -> String {
        const MODES: [&str; 4] = ["O_RDONLY", "O_WRONLY", "O_RDWR", "O_ACCMODE"];
        let value = open_flags(self.enter.machine, value);
        // O_SYNC includes the bit of O_DSYNC, and O_TMPFILE that of O_DIRECTORY.
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
            Isa::X86_64 => (4, 3),
            Isa::Riscv64 | Isa::Aarch64 => (3, 4),
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

/// Formats an `ioctl` request that has no name here.
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
