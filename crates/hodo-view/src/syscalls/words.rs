//! What the arguments of each system call are, looked up by number: this is asked for each call.

use std::sync::LazyLock;

use hodo_trace::Machine;
use hodo_trace::syscalls::{NUMBERS, by_number};

/// How an argument is written. Those that nearly all calls have are told apart at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// A signed number of 32 bits.
    Int,
    /// A descriptor.
    Descriptor,
    /// An unsigned one.
    Uint,
    /// An unsigned number of 64 bits.
    Size,
    /// A signed one.
    Offset,
    /// An address that says no more.
    Address,
    /// A number in hex.
    Hex,
    /// Bytes that the program gives.
    In,
    /// Bytes that the kernel gives.
    Out,
    /// What its word says.
    Other,
}

/// An argument of a system call.
#[derive(Debug, Clone, Copy)]
pub(super) struct Word {
    /// What it is, as `hodo_trace` tells.
    pub word: &'static str,
    /// Another argument that it depends on.
    pub by: usize,
    pub kind: Kind,
}

impl Word {
    /// Is it one that programs give and that means nothing on this machine?
    pub fn is_skipped(&self) -> bool {
        self.word == "skip"
    }

    fn new(word: &'static str) -> Self {
        let (word, by) = match word.split_once('.') {
            Some((word, by)) => (word, by.parse().unwrap_or(0)),
            None => (word, 0),
        };
        let kind = match word {
            "int" => Kind::Int,
            "fd" => Kind::Descriptor,
            "uint" => Kind::Uint,
            "size" => Kind::Size,
            "off" => Kind::Offset,
            "ptr" => Kind::Address,
            "hex" => Kind::Hex,
            "in" => Kind::In,
            "out" => Kind::Out,
            _ => Kind::Other,
        };
        Self { word, by, kind }
    }
}

type Words = Vec<Option<Vec<Word>>>;

static X86_64: LazyLock<Words> = LazyLock::new(|| of(Machine::X86_64));
static RISCV64: LazyLock<Words> = LazyLock::new(|| of(Machine::Riscv64));

fn of(machine: Machine) -> Words {
    let words = |number| Some(by_number(machine, number)?.args()?.map(Word::new).collect());
    (0..NUMBERS).map(words).collect()
}

/// The arguments of a system call; `None`: nothing is known of them.
pub(super) fn words(machine: Machine, number: u64) -> Option<&'static [Word]> {
    let words = match machine {
        Machine::X86_64 => &X86_64,
        Machine::Riscv64 => &RISCV64,
    };
    words.get(usize::try_from(number).ok()?)?.as_deref()
}

/// How many arguments an event has: six if nothing is known.
pub(super) fn count(machine: Machine, number: u64) -> usize {
    words(machine, number).map_or(6, |words| words.len().min(6))
}
