//! The parts of a definition.

use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec::Vec;

use crate::registers::Register;

/// A probe as the user defined it. [`parse`](super::parse) returns only definitions that make sense without knowing the
/// program. `Display` writes a text that parses to the same value.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Definition {
    /// Whether it is hit at its place, or when the function there returns.
    pub kind: ProbeKind,
    /// The group of its name: letters, digits and `_`. If none was given, it is `probe_` and the file's name up to the
    /// first of `.-_`.
    pub group: String,
    /// Its name: letters, digits and `_`. If none was given, it is made from the place.
    pub name: String,
    /// Whether the user gave the name.
    pub named: bool,
    /// The program or library, as it was written: a path, or a name without a slash that is searched for.
    pub path: String,
    /// The place in that file.
    pub place: Location,
    /// `post`: it is hit after the instruction at its place has been executed, not before.
    pub after: bool,
    /// The values that are fetched at a hit. All have different names.
    pub args: Vec<FetchArg>,
    /// The actions run only if this is true (not 0).
    pub condition: Option<Expr>,
    /// What happens at a hit. An empty list means [`Action::Print`].
    pub actions: Vec<Action>,
}

impl Definition {
    /// Returns whether the place must be the first instruction of a function. [`parse`](super::parse) refuses places
    /// that cannot be. Whether a [`Location::FileOffset`] is one can be checked only with the file.
    #[must_use]
    pub fn needs_function(&self) -> bool {
        self.kind == ProbeKind::Return
            || self.args.iter().any(|arg| arg.source.needs_function())
            || (self.actions.iter()).any(|action| matches!(action, Action::Return(_)))
    }

    /// Returns whether the flags are fetched.
    #[must_use]
    pub fn reads_flags(&self) -> bool {
        let flags = |arg: &FetchArg| match &arg.source {
            Source::Register(Register::X86_64(register)) => {
                register.whole == crate::registers::x86_64::Whole::Flags
            }
            _ => false,
        };
        self.args.iter().any(flags)
    }
}

/// When a probe is hit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ProbeKind {
    /// Before the instruction at its place is executed.
    Entry,
    /// When the function that begins at its place returns.
    Return,
}

/// Where a probe is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Location {
    /// In a function, or in all functions that match a pattern.
    Symbol {
        /// The functions.
        symbol: Symbol,
        /// The place in each of them.
        offset: Offset,
    },
    /// At this offset in the file (not at an address).
    FileOffset(u64),
    /// At the code of a source line, according to the line table.
    Line {
        /// The source file: its name, or the last components of its path.
        file: String,
        /// The line, counted from 1.
        line: u32,
    },
    /// At all places of a USDT probe, as listed in the file's notes.
    Usdt {
        /// Its provider: letters, digits and `_`.
        provider: String,
        /// Its name: letters, digits and `_`.
        name: String,
    },
}

impl Location {
    /// Returns whether this can be the first instruction of a function.
    #[must_use]
    pub fn may_begin_function(&self) -> bool {
        match self {
            Location::Symbol { offset, .. } => *offset == Offset::Bytes(0),
            Location::FileOffset(_) => true,
            Location::Line { .. } | Location::Usdt { .. } => false,
        }
    }
}

/// The name of one function, or a pattern of names.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Symbol {
    /// This function.
    Name(String),
    /// All functions whose whole names match: `*` is any text, `?` any character, `[…]` one of these characters, `[!…]`
    /// any other character.
    Pattern(String),
}

impl Symbol {
    /// Returns the name or pattern.
    #[must_use]
    pub fn text(&self) -> &str {
        match self {
            Symbol::Name(text) | Symbol::Pattern(text) => text,
        }
    }
}

/// The instructions of a function that are probed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Offset {
    /// The instruction at this offset from the function's beginning, in bytes.
    Bytes(u64),
    /// Every instruction (`+*`).
    EveryInstruction,
}

/// A value to fetch.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct FetchArg {
    /// Its name: letters, digits and `_`. If none was given, the variable's or member's name, or else `arg1` for the
    /// first argument, `arg2` for the second, ….
    pub name: String,
    /// Where the value is.
    pub source: Source,
    /// How the value is read and shown, if the user specified it. See [`FetchArg::effective_type`].
    pub ty: Option<Type>,
}

impl FetchArg {
    /// Returns the type that was given, or the default: `string` for `$comm` and strings, `x64` for all others. For a
    /// variable it is `None`: its type comes from the debugging information (`x64` if there is nothing better).
    #[must_use]
    pub fn effective_type(&self) -> Option<Type> {
        self.ty.or(match self.source {
            Source::Comm | Source::Text(_) => Some(Type::Scalar(Scalar::String)),
            Source::Variable(_) => None,
            _ => Some(Type::Scalar(Scalar::X(64))),
        })
    }
}

/// Where a value comes from.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Source {
    /// `%di`: a register, as it was before the probed instruction. A part of a register is zero-extended.
    Register(Register),
    /// `$arg1`: an argument of the function, counted from 1, according to the calling convention for integers and
    /// pointers. At a USDT probe, it is a [`Source::Variable`].
    Argument(u16),
    /// `$retval`: the function's return value, from the register for integers and pointers.
    ReturnValue,
    /// `$stack`: the stack pointer.
    StackPointer,
    /// `$stack0`: the 8-byte entry with this number, counted from the stack pointer upwards.
    Stack(u16),
    /// `+8(SOURCE)`: the memory at the address in the source plus this offset. `+u8(…)` means the same, because all of
    /// a program's memory is user memory.
    Memory {
        /// The offset in bytes.
        offset: i64,
        /// The source of the address.
        address: Box<Source>,
    },
    /// `@0x1234`: the memory at this address of the process.
    Address(u64),
    /// `@+0x1234`: the memory at which this offset of the probed file is mapped.
    FileOffset(u64),
    /// `$comm`: the name of the thread.
    Comm,
    /// `\5`: this number. Numbers above `i64::MAX` are stored in two's complement.
    Immediate(i64),
    /// `\"text"`: this text.
    Text(String),
    /// `count`, `p->x[3].y`, `ns::total`: a variable or a member, named as in the debugging information. `$params`
    /// means all parameters of the function, `$vars` all visible variables. At a USDT probe, `$arg1` is the first
    /// argument of its note, `arg1` too if nothing is named so.
    Variable(String),
}

impl Source {
    /// Returns whether the value is in memory, so that arrays and strings can be read there.
    #[must_use]
    pub fn is_memory(&self) -> bool {
        matches!(
            self,
            Source::Memory { .. }
                | Source::Address(_)
                | Source::FileOffset(_)
                | Source::Variable(_)
        )
    }

    /// Returns whether it is, or contains, an argument by number.
    fn needs_function(&self) -> bool {
        let mut source = self;
        while let Source::Memory { address, .. } = source {
            source = address;
        }
        matches!(source, Source::Argument(_))
    }
}

/// How a value is read and shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Type {
    /// One value.
    Scalar(Scalar),
    /// This many consecutive values, from 1 to [`MAX_ELEMENTS`](super::MAX_ELEMENTS). An array of strings consists of
    /// pointers to them.
    Array(Scalar, u16),
    /// Some bits of a number.
    Bitfield {
        /// Whether the highest bit is a sign.
        signed: bool,
        /// The number of bits, at least 1 and at most those of the container.
        width: u8,
        /// The lowest bit.
        offset: u8,
        /// The number that contains them.
        container: Container,
    },
}

/// One value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scalar {
    /// An unsigned number of 8, 16, 32 or 64 bits, shown as decimal.
    U(u8),
    /// A signed number, shown as decimal.
    S(u8),
    /// An unsigned number, shown as hexadecimal.
    X(u8),
    /// A character of one byte.
    Char,
    /// A text that ends with a zero byte. `ustring` means the same.
    String,
    /// A 64-bit address, shown as symbol and offset.
    Symbol,
}

impl Scalar {
    /// Returns its size in memory in bits, or `None` for a string.
    #[must_use]
    pub fn bits(self) -> Option<u8> {
        match self {
            Scalar::U(bits) | Scalar::S(bits) | Scalar::X(bits) => Some(bits),
            Scalar::Char => Some(8),
            Scalar::Symbol => Some(64),
            Scalar::String => None,
        }
    }
}

/// The size of the number that contains a bitfield.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum Container {
    Bits8 = 8,
    Bits16 = 16,
    Bits32 = 32,
    Bits64 = 64,
}

impl Container {
    /// Returns the size in bits: 8, 16, 32 or 64.
    #[must_use]
    pub fn bits(self) -> u8 {
        self as u8
    }
}

/// A condition. Numbers have 64 bits. Comparisons and logical operators yield 0 or 1.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Expr {
    /// An integer or a character. Numbers above `i64::MAX` are unsigned.
    Number(u64),
    /// A text to compare with.
    Text(String),
    /// The value of the fetch argument with this index in [`Definition::args`].
    Arg(usize),
    /// The process ID.
    Pid,
    /// The thread ID.
    Tid,
    /// The processor's number.
    Cpu,
    /// The thread's name, which is a text.
    Comm,
    /// An operator with one operand.
    Unary(UnaryOp, Box<Expr>),
    /// An operator with two operands.
    Binary(BinaryOp, Box<Expr>, Box<Expr>),
}

/// An operator with one operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum UnaryOp {
    /// `!`
    Not,
    /// `~`
    Complement,
    /// `-`
    Negate,
}

/// An operator with two operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BinaryOp {
    /// `||`, which evaluates the second operand only if the first is 0.
    Or,
    /// `&&`, which evaluates the second operand only if the first is not 0.
    And,
    /// `|`
    BitOr,
    /// `^`
    BitXor,
    /// `&`
    BitAnd,
    /// `==`, also for texts
    Equal,
    /// `!=`, also for texts
    NotEqual,
    /// `~`: whether the whole text on the left matches the pattern on the right (`*`, `?`, `[…]`)
    Matches,
    /// `<`
    Less,
    /// `<=`
    LessEqual,
    /// `>`
    Greater,
    /// `>=`
    GreaterEqual,
    /// `<<`
    ShiftLeft,
    /// `>>`
    ShiftRight,
    /// `+`
    Add,
    /// `-`
    Subtract,
    /// `*`
    Multiply,
    /// `/`
    Divide,
    /// `%`
    Remainder,
}

/// What happens at a hit.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// `print`: an event with the fetched values.
    Print,
    /// `count`: only count the hit.
    Count,
    /// `hist:keys=…`: count hits by values.
    Hist(Histogram),
    /// `stacktrace`: an event with the chain of callers.
    StackTrace,
    /// `snapshot`, `snapshot:64`, `snapshot of 64 bytes`: an event with this many bytes of the stack from the stack
    /// pointer upwards.
    Snapshot(u32),
    /// `enable:NAME`, `enable NAME`: enable another probe.
    Enable(ProbeName),
    /// `disable:NAME`, `disable NAME`: disable another probe, or this one.
    Disable(ProbeName),
    /// `traceon`: record function calls from here on.
    TraceOn,
    /// `traceoff`: stop recording function calls.
    TraceOff,
    /// `return:VALUE`, `return VALUE`: return this to the caller without running the function.
    Return(i64),
}

/// The name of a probe.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ProbeName {
    /// Its group. Without one, all probes with the name are meant, whatever their group.
    pub group: Option<String>,
    /// Its name.
    pub name: String,
}

/// Hits counted by values.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Histogram {
    /// Each combination of these values has an entry. There are 1 to [`MAX_KEYS`](super::MAX_KEYS) keys.
    pub keys: Vec<HistKey>,
    /// The values that are summed up in each entry, in addition to the number of hits: indices in [`Definition::args`].
    pub values: Vec<usize>,
    /// The order in which entries are shown. If empty, they are sorted by number of hits.
    pub sort: Vec<HistSort>,
    /// The maximum number of entries, from 1 to [`MAX_HIST_SIZE`](super::MAX_HIST_SIZE). Hits that find no room are
    /// counted as lost.
    pub size: u32,
}

/// A key of a histogram.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct HistKey {
    /// The value: [`Expr::Arg`], [`Expr::Pid`], [`Expr::Tid`], [`Expr::Cpu`] or [`Expr::Comm`].
    pub value: Expr,
    /// Which values are counted together.
    pub bucket: Bucket,
}

/// Which values are counted together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Bucket {
    /// Each value has its own entry.
    Each,
    /// `.log2`: values with the same highest bit.
    Log2,
    /// `.buckets=N`: ranges of N values; N is at least 1.
    Linear(u64),
}

/// A sort order for the entries of a histogram.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct HistSort {
    /// What to sort by.
    pub by: SortBy,
    /// Whether the largest comes first.
    pub descending: bool,
}

/// What the entries of a histogram are sorted by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SortBy {
    /// The number of hits, `hitcount`.
    Hits,
    /// The key with this index in [`Histogram::keys`].
    Key(usize),
    /// The sum with this index in [`Histogram::values`].
    Value(usize),
}
