//! The content of a system call's events. The code around instructions that call the kernel writes it.
//!
//! The event before the call has the number, the arguments, and pieces of memory. The event after it has the result and
//! pieces. A piece is a word followed by its bytes, padded to whole words. The lower 16 bits of the word are the number
//! of bytes, bits 16 to 23 the number of the argument, and bits 24 to 31 [`piece`].
//!
//! A table tells that code what to fetch: two words for each number, [`ENTRY_SIZE`] bytes. The first word has four
//! descriptors of 16 bits for before the call. The second has three for after the call, the number of arguments from
//! bit 48 up, and a top bit that says whether the call is left out.

mod aarch64;
mod arguments;
pub mod fetch;
mod generic;
mod riscv64;
mod x86_64;

use std::sync::LazyLock;

use hodo_abi::Isa;

use crate::format::{BUCKET_SIZE, RECORD_SIZE, record};

/// A bit in the first word of an event before a call: the call began before hodo attached.
pub const EARLIER: u64 = 1;

/// How many numbers have their own entry, on all instruction sets. The next entry is for all other numbers, and the one
/// after that for results whose call is not known.
pub const NUMBERS: u64 = x86_64::ALL.len() as u64;
/// From here on, numbers mean the same on all instruction sets.
const COMMON: u64 = 424;
/// The size of an entry in bytes.
pub const ENTRY_SIZE: u64 = 16;
/// Bytes before the first entry. They hold the addresses of the slow paths, the upper halves of the two records, the
/// bits (timed, `rdpid`), and what [`Limits::words`] returns.
pub const HEADER: u64 = 56;
/// Where the limits are in the header.
pub mod header {
    /// `u64`: the record before a payload of [`super::Limits::event`] bytes.
    pub const PAYLOAD: u64 = 32;
    /// `u32`: [`super::Limits::event`].
    pub const EVENT: u64 = 40;
    /// `u32`: [`super::Limits::buffer`].
    pub const BUFFER: u64 = 44;
    /// `u32`: [`super::Limits::string`].
    pub const STRING: u64 = 48;
}
/// The largest size of an event in bytes, including its records, if buffers are not larger than [`SMALL_BUFFER`].
const EVENT: u64 = 2560;
/// Bytes of a buffer of which there are several in any event.
const SMALL_BUFFER: u64 = 240;
/// Bytes of a string in a list that are always recorded.
const STRING: u64 = 64;
/// The largest size of any event in bytes, including its records.
pub const LARGEST_EVENT: u64 = Limits::of(LARGEST_BUFFER).event;
// If it does not fit into the bucket, threads whose recording has stopped try for ever.
const _: () = assert!(LARGEST_EVENT + RECORD_SIZE <= BUCKET_SIZE);
/// The top bit of an entry's second word: no event.
pub const LEFT_OUT: u64 = 1 << 63;
/// The names of the two events.
pub const NAMES: [&str; 2] = ["sys_enter", "sys_exit"];
/// The group of both events.
pub const GROUP: &str = "syscalls";
/// How many bytes of a buffer are recorded by default.
pub const BUFFER: usize = 32;
/// At most this many bytes of a buffer can be recorded.
pub const LARGEST_BUFFER: usize = 4096;

/// What is fetched: three bits of a descriptor. The next three are the number of the argument, the rest a parameter.
pub mod kind {
    /// A string of at most this many bytes.
    pub const TEXT: u64 = 1;
    /// This many bytes.
    pub const FIXED: u64 = 2;
    /// An array. The parameter has three bits with the argument that says how many elements there are, three with the
    /// logarithm of their size, and four with the largest size of the array in units of 16 bytes. If these four are
    /// zero, [`super::Limits::buffer`] is the largest size.
    pub const SIZED: u64 = 3;
    /// An array, but the result says how many elements there are.
    pub const RESULT: u64 = 4;
    /// A list of addresses that ends with zero: this many strings, and the number of the others.
    pub const TEXTS: u64 = 5;
    /// Pairs of address and length. An argument (three bits) says how many there are. At most
    /// [`super::Limits::buffer`] bytes of each are fetched.
    pub const PARTS: u64 = 6;
    /// In [`PARTS`], in place of the argument: a `struct msghdr` contains the pairs.
    pub const MESSAGE: u64 = 7;
    /// Something that the parameter selects. 0: the number of directory entries in the bytes that the call returned.
    pub const SPECIAL: u64 = 7;
    /// Parameter: 16 bytes if the futex operation waits.
    pub const WAIT: u64 = 1;
    /// Parameter: a string if `prctl` sets the thread's name.
    pub const NAME: u64 = 2;
    /// Parameter: 32 bytes if `fcntl` is about a lock of a part of a file.
    pub const LOCK: u64 = 3;
    /// Parameter: 8 bytes if `ioctl` has a number or the size of a window there.
    pub const DEVICE: u64 = 4;
    /// The operations of `fcntl` on locks, as bits: `F_GETLK`, `F_SETLK`, `F_SETLKW`, and those with `F_OFD_`.
    pub const LOCKS: u64 = 0b111 << 5 | 0b111 << 36;
    /// The first of the `ioctl` requests in [`DEVICES`].
    pub const DEVICE_FIRST: u64 = 0x540F;
    /// `TIOCGPGRP`, `TIOCSPGRP`, `TIOCGWINSZ`, `TIOCSWINSZ`, `FIONREAD`, `FIONBIO`.
    pub const DEVICES: u64 = 0b11 | 0b11 << 4 | 1 << 12 | 1 << 18;
    /// The `futex` operations that wait: `FUTEX_WAIT`, `LOCK_PI`, `WAIT_BITSET`, `WAIT_REQUEUE_PI`, `LOCK_PI2`.
    pub const WAITING: u64 = 1 << 0 | 1 << 6 | 1 << 9 | 1 << 11 | 1 << 13;
}

/// Flags of a piece.
pub mod piece {
    /// The rest could not be read.
    pub const FAULT: u8 = 1;
    /// A string that ends here.
    pub const ENDS: u8 = 2;
    /// A number: how many more there are.
    pub const MORE: u8 = 4;
}

/// How much of what arguments point to is recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// At most this many bytes of each buffer.
    pub buffer: u64,
    /// At most this many bytes of each string of a list.
    pub string: u64,
    /// The largest size of an event in bytes, including its records. What finds no room in it is cut.
    pub event: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self::of(BUFFER)
    }
}

impl Limits {
    /// Returns the limits for buffers of this many bytes, at most [`LARGEST_BUFFER`].
    #[must_use]
    pub const fn of(buffer: usize) -> Self {
        let buffer = match buffer {
            0..16 => 16,
            LARGEST_BUFFER.. => LARGEST_BUFFER as u64,
            _ => buffer as u64,
        };
        Self {
            buffer,
            // One more byte says whether a string ends there.
            string: if buffer < STRING { STRING } else { buffer + 1 },
            // Several buffers of a list must find room, but no event may fill a large part of a chunk.
            event: EVENT + 4 * buffer.saturating_sub(SMALL_BUFFER).next_multiple_of(2),
        }
    }

    /// Returns the same with room for whole environments.
    #[must_use]
    pub const fn unabridged(self) -> Self {
        Self {
            event: LARGEST_EVENT,
            ..self
        }
    }

    /// Returns the words that follow the others in the header of a table.
    #[must_use]
    pub const fn words(self) -> [u64; 3] {
        let payload = record::SPECIAL_PAYLOAD | record::SPECIAL << record::KIND_SHIFT;
        [
            (payload as u64) << 32 | (self.event / 8 - 2),
            self.event | self.buffer << 32,
            self.string,
        ]
    }
}

/// A system call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Syscall {
    /// Its name.
    pub name: &'static str,
    /// Its arguments.
    args: &'static str,
}

impl Syscall {
    /// Returns the kinds of its arguments, or `None` if nothing is known about them; there may be six.
    pub fn args(self) -> Option<impl Iterator<Item = &'static str>> {
        (self.args != "...").then(|| self.args.split_whitespace())
    }
}

type Calls = Vec<(&'static str, &'static str)>;

static RISCV64: LazyLock<Calls> = LazyLock::new(|| of(&riscv64::NAMES, &riscv64::OWN));
static AARCH64: LazyLock<Calls> = LazyLock::new(|| of(&aarch64::NAMES, &[]));

/// Names and arguments by number: the generic ones, and those of one instruction set.
fn of(names: &[(u64, &str)], own: &[(&'static str, &'static str)]) -> Calls {
    let mut all = x86_64::ALL.to_vec();
    all[..COMMON as usize].fill(("", "..."));
    for (first, names) in generic::NAMES.iter().chain(names) {
        for (number, name) in (*first..).zip(names.split_whitespace()) {
            // Calls with the same name have the same arguments.
            let mut known = own.iter().chain(&x86_64::ALL);
            if let Some(call) = known.find(|call| call.0 == name) {
                all[number as usize] = *call;
            }
        }
    }
    all
}

fn calls(isa: Isa) -> &'static [(&'static str, &'static str)] {
    match isa {
        Isa::X86_64 => &x86_64::ALL,
        Isa::Riscv64 => &RISCV64,
        Isa::Aarch64 => &AARCH64,
    }
}

/// Returns the system call with this number.
#[must_use]
pub fn by_number(isa: Isa, number: u64) -> Option<Syscall> {
    let &(name, args) = calls(isa).get(usize::try_from(number).ok()?)?;
    (!name.is_empty()).then_some(Syscall { name, args })
}

/// Returns the number of a system call.
#[must_use]
pub fn number(isa: Isa, name: &str) -> Option<u64> {
    let mut names = calls(isa).iter();
    let at = names.position(|call| call.0 == name && !name.is_empty())?;
    Some(at as u64)
}

/// An argument of a system call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Argument {
    /// Its name in the kernel.
    pub name: &'static str,
    /// Its kind, as in [`Syscall::args`]; `hex` if nothing is known of it.
    pub kind: &'static str,
}

/// Returns the arguments of a system call, with the names that the kernel has for them.
#[must_use]
pub fn arguments(isa: Isa, call: Syscall) -> Vec<Argument> {
    let own: &[(&str, &str)] = match isa {
        Isa::Riscv64 => &riscv64::ARGUMENTS,
        Isa::Aarch64 => &aarch64::ARGUMENTS,
        Isa::X86_64 => &[],
    };
    let all = &arguments::ARGUMENTS;
    let common = || {
        let at = all.binary_search_by_key(&call.name, |entry| entry.0).ok()?;
        Some(&all[at])
    };
    let known = own
        .iter()
        .find(|entry| entry.0 == call.name)
        .or_else(common);
    let names = known.map_or("", |entry| entry.1).split_whitespace();
    let mut kinds = call.args().into_iter().flatten();
    names
        .map(|name| Argument {
            name,
            kind: kinds.next().unwrap_or("hex"),
        })
        .collect()
}

/// Returns all numbers with their calls.
pub fn all(isa: Isa) -> impl Iterator<Item = (u64, Syscall)> {
    (0..NUMBERS).filter_map(move |number| Some((number, by_number(isa, number)?)))
}

/// The sizes in bytes of the kernel's structures that differ between instruction sets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sizes {
    /// `struct epoll_event`
    pub epoll_event: usize,
    /// `struct sigaction`
    pub sigaction: usize,
    /// `struct stat`
    pub stat: usize,
}

impl Sizes {
    /// Returns the sizes on an instruction set.
    #[must_use]
    pub fn of(isa: Isa) -> Self {
        match isa {
            // The first is packed. The second contains the return address of handlers.
            Isa::X86_64 => Self {
                epoll_event: 12,
                sigaction: 32,
                stat: 144,
            },
            Isa::Riscv64 => Self {
                epoll_event: 16,
                sigaction: 24,
                stat: 128,
            },
            Isa::Aarch64 => Self {
                epoll_event: 16,
                sigaction: 32,
                stat: 128,
            },
        }
    }
}

/// Returns the flags of `open` or `pipe2` with the values that most instruction sets have.
#[must_use]
pub fn open_flags(isa: Isa, flags: u64) -> u64 {
    match isa {
        Isa::X86_64 | Isa::Riscv64 => flags,
        Isa::Aarch64 => aarch64::open_flags(flags),
    }
}

fn descriptor(kind: u64, argument: usize, parameter: u64) -> u64 {
    kind | (argument as u64) << 3 | parameter << 6
}

/// Encodes a parameter of [`kind::SIZED`] and [`kind::RESULT`].
const fn sized(by: u64, shift: u64, most: u64) -> u64 {
    by | shift << 3 | most.div_ceil(16) << 6
}

/// Returns the descriptors of what is fetched for an argument, before and after the call. `whole`: also what is shown
/// only if nothing is abridged.
fn fetches(sizes: Sizes, argument: usize, word: &str, whole: bool) -> [Vec<u64>; 2] {
    /// The most that a parameter can say.
    const ALL: u64 = 1023;
    /// As [`Limits::buffer`] says.
    const BUFFER: u64 = 0;
    let (word, by) = match word.split_once('.') {
        Some((word, by)) => (word, by.parse().unwrap_or(0)),
        None => (word, 0),
    };
    let one = |kind, parameter| vec![descriptor(kind, argument, parameter)];
    let fixed = |bytes| one(kind::FIXED, bytes);
    let sized_as = |bytes: usize| one(kind::FIXED, bytes as u64);
    let from = |shift, most| one(kind::SIZED, sized(by, shift, most));
    let result = |shift, most| one(kind::RESULT, sized(0, shift, most));
    let parts = |by| one(kind::PARTS, by);
    let before = match word {
        "path" => one(kind::TEXT, 400),
        "argv" | "envp" if whole => one(kind::TEXTS, ALL),
        "argv" => one(kind::TEXTS, 32),
        "envp" => one(kind::TEXTS, 0),
        "in" => from(0, BUFFER),
        "iov" => parts(by),
        "poll" => from(3, 240),
        "fdset" | "cpuset" => fixed(128),
        "epoll" => sized_as(sizes.epoll_event),
        "timeval" | "tspec" | "rlim" => fixed(16),
        "tspec_f" => one(kind::SPECIAL, kind::WAIT),
        "prarg" => one(kind::SPECIAL, kind::NAME),
        "fcarg" => one(kind::SPECIAL, kind::LOCK),
        "ioarg" => one(kind::SPECIAL, kind::DEVICE),
        "sigset" | "frame" => fixed(8),
        "itval" => fixed(32),
        "sigact" => sized_as(sizes.sigaction),
        "altstack" => fixed(24),
        "lenp" => fixed(4),
        "sa" => from(0, 112),
        "optin" => from(0, 16),
        "msg" => [fixed(56), parts(kind::MESSAGE)].concat(),
        "clone3" => fixed(88),
        _ => Vec::new(),
    };
    let after = match word {
        "out" => result(0, BUFFER),
        "cwd" => result(0, 240),
        "dents" => one(kind::SPECIAL, 0),
        "fcarg" => one(kind::SPECIAL, kind::LOCK),
        "ioarg" => one(kind::SPECIAL, kind::DEVICE),
        "iovr" => parts(by),
        "stat" => sized_as(sizes.stat),
        "statfs" => fixed(120),
        "statx" => fixed(256),
        "uname" => fixed(390),
        "usage" | "waitusage" if whole => fixed(144),
        "usage" | "waitusage" | "itvalo" => fixed(32),
        "poll" => from(3, 240),
        "fdset" => fixed(128),
        "epollo" => result(4, 240),
        "tspeco" | "timevalo" | "rlimo" => fixed(16),
        "sigseto" | "pipe" => fixed(8),
        "sigacto" => sized_as(sizes.sigaction),
        "altstacko" => fixed(24),
        "wstatus" | "lenp" | "optout" => fixed(4),
        "sao" => fixed(112),
        "msgo" => [fixed(56), parts(kind::MESSAGE)].concat(),
        "cpuseto" => result(0, 128),
        _ => Vec::new(),
    };
    [before, after]
}

/// Returns whether a call writes to memory that is recorded when it ends, so that its result does not tell all of it.
#[must_use]
pub fn has_results(isa: Isa, number: u64) -> bool {
    let args = by_number(isa, number).and_then(|call| call.args());
    args.is_none_or(|mut args| {
        args.any(|word| !fetches(Sizes::of(isa), 0, word, false)[1].is_empty())
    })
}

/// Returns the table for programs of this process's instruction set, without its header. `wanted` returns whether a
/// number is recorded. `bare`: only numbers and results are recorded. `whole`: nothing is abridged.
#[must_use]
pub fn table(wanted: &dyn Fn(u64) -> bool, bare: bool, whole: bool) -> Vec<u64> {
    let isa = Isa::NATIVE;
    let sizes = Sizes::of(isa);
    let mut words = Vec::new();
    for number in 0..=NUMBERS {
        let mut descriptors = [Vec::new(), Vec::new()];
        let mut arguments = 6;
        if let Some(args) = by_number(isa, number).and_then(|call| call.args()) {
            arguments = 0;
            for (argument, word) in args.enumerate() {
                arguments = argument as u64 + 1;
                for (all, more) in descriptors
                    .iter_mut()
                    .zip(fetches(sizes, argument, word, whole))
                {
                    all.extend(more);
                }
            }
        }
        let packed = |descriptors: &[u64]| {
            let shifted = descriptors.iter().enumerate();
            shifted.fold(0, |word, (at, descriptor)| word | descriptor << (16 * at))
        };
        let (mut before, mut after) = (packed(&descriptors[0]), packed(&descriptors[1]));
        if bare {
            (before, after, arguments) = (0, 0, 0);
        }
        let out = if wanted(number) { 0 } else { LEFT_OUT };
        words.extend([before, after | arguments << 48 | out]);
    }
    words.extend([0, 0]);
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_have_the_names_and_kinds_of_the_kernel() {
        for isa in Isa::ALL {
            for (_, call) in all(isa) {
                let (named, kinds) = (arguments(isa, call), call.args().map(Iterator::count));
                // `preadv` and `pwritev` have the upper half of a position, which means nothing to 64 bits. The
                // argument of `rt_sigreturn` is on the stack.
                match call.name {
                    "preadv" | "pwritev" => assert_eq!(named.len(), 5),
                    "rt_sigreturn" => assert!(named.is_empty()),
                    name => assert!(kinds.is_none_or(|kinds| kinds == named.len()), "{name}"),
                }
                let mut names: Vec<_> = named.iter().map(|argument| argument.name).collect();
                names.sort_unstable();
                names.dedup();
                assert_eq!(names.len(), named.len(), "{}", call.name);
            }
            let text = |name: &str| -> Vec<_> {
                let call = number(isa, name).and_then(|number| by_number(isa, number));
                let all = arguments(isa, call.expect(name)).into_iter();
                all.map(|argument| (argument.name, argument.kind)).collect()
            };
            assert_eq!(
                text("write"),
                [("fd", "fd"), ("buf", "in.2"), ("count", "size")]
            );
            // <https://man7.org/linux/man-pages/man2/clone.2.html>, "C library/kernel differences"
            let fourth = text("clone")[3].0;
            assert_eq!(fourth == "tls", isa != Isa::X86_64);
        }
        assert!(arguments::ARGUMENTS.is_sorted());
    }

    #[test]
    fn numbers_are_those_of_the_kernel() {
        for (isa, number, name) in [
            (Isa::X86_64, 0, "read"),
            (Isa::X86_64, 59, "execve"),
            (Isa::X86_64, 257, "openat"),
            (Isa::X86_64, 435, "clone3"),
            (Isa::Riscv64, 0, "io_setup"),
            (Isa::Riscv64, 39, "umount2"),
            (Isa::Riscv64, 63, "read"),
            (Isa::Riscv64, 79, "newfstatat"),
            (Isa::Riscv64, 129, "kill"),
            (Isa::Riscv64, 172, "getpid"),
            (Isa::Riscv64, 221, "execve"),
            (Isa::Riscv64, 243, "recvmmsg"),
            (Isa::Riscv64, 259, "riscv_flush_icache"),
            (Isa::Riscv64, 291, "statx"),
            (Isa::Riscv64, 294, "kexec_file_load"),
            (Isa::Riscv64, 435, "clone3"),
            (Isa::Aarch64, 0, "io_setup"),
            (Isa::Aarch64, 38, "renameat"),
            (Isa::Aarch64, 56, "openat"),
            (Isa::Aarch64, 64, "write"),
            (Isa::Aarch64, 93, "exit"),
            (Isa::Aarch64, 220, "clone"),
            (Isa::Aarch64, 281, "execveat"),
            (Isa::Aarch64, 435, "clone3"),
        ] {
            assert_eq!(super::number(isa, name), Some(number), "{name}");
            let found = by_number(isa, number).map(|call| call.name);
            assert_eq!(found, Some(name));
        }
        for isa in Isa::ALL {
            for number in [400, NUMBERS, 1 << 40] {
                assert_eq!(by_number(isa, number), None);
            }
            assert_eq!(super::number(isa, ""), None);
        }
        for name in ["open", "fork", "dup2", "renameat", "arch_prctl", "-"] {
            assert_eq!(super::number(Isa::Riscv64, name), None, "{name}");
        }
        for number in [38, 244, 257, 295, 423] {
            assert_eq!(by_number(Isa::Riscv64, number), None, "{number}");
        }
        for number in [244, 258, 259, 295, 423] {
            assert_eq!(by_number(Isa::Aarch64, number), None, "{number}");
        }
        // Every word that is meant as a name is one.
        for (isa, own) in [
            (Isa::Riscv64, riscv64::NAMES),
            (Isa::Aarch64, aarch64::NAMES),
        ] {
            let lists = generic::NAMES.iter().chain(&own);
            let names = lists.flat_map(|list| list.1.split_whitespace());
            for name in names.filter(|name| *name != "-") {
                assert!(super::number(isa, name).is_some(), "{name}");
            }
        }
    }

    #[test]
    fn flags_of_open_get_the_same_values() {
        // `O_WRONLY | O_CREAT | O_DIRECTORY | O_CLOEXEC`, and `O_NOFOLLOW | O_DIRECT | O_LARGEFILE`
        assert_eq!(open_flags(Isa::Aarch64, 0x84041), 0x90041);
        assert_eq!(open_flags(Isa::Aarch64, 0x38000), 0x2C000);
        assert_eq!(open_flags(Isa::Riscv64, 0x38000), 0x38000);
    }

    #[test]
    fn descriptors_are_not_lost() {
        for isa in Isa::ALL {
            for (_, call) in all(isa) {
                let Some(args) = call.args() else { continue };
                let fetched: Vec<_> = args
                    .enumerate()
                    .map(|(at, word)| fetches(Sizes::of(isa), at, word, true))
                    .collect();
                assert!(fetched.len() <= 6, "{}", call.name);
                let count = |phase: usize| fetched.iter().map(|f| f[phase].len()).sum::<usize>();
                assert!(count(0) <= 4 && count(1) <= 3, "{}", call.name);
                for descriptor in fetched.iter().flatten().flatten() {
                    assert!(*descriptor < 1 << 16, "{}", call.name);
                }
            }
        }
    }

    #[test]
    fn left_out_calls_are_marked() {
        let table = table(&|number| number == 1, true, false);
        assert_eq!(table.len() as u64, 2 * (NUMBERS + 2));
        assert_eq!(table[1], LEFT_OUT);
        assert_eq!(table[3], 0);
        assert_eq!(table[2 * NUMBERS as usize + 1], LEFT_OUT);
        assert_eq!(table[2 * NUMBERS as usize + 3], 0);
    }
}
