//! The parts of a definition.

use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec::Vec;

use crate::registers::Register;

/// A probe as the user defined it. [`parse`](super::parse) makes only those that make sense without knowing the
/// program; `Display` gives a text that parses to the same value.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Definition {
    /// Whether it is hit at its place, or when the function there returns.
    pub kind: ProbeKind,
    /// The group of its name: letters, digits and `_`. `probe_` and the file's name up to the first of `.-_` if none
    /// was given.
    pub group: String,
    /// Its name: letters, digits and `_`. Made of the place if none was given.
    pub name: String,
    /// Whether the user gave the name.
    pub named: bool,
    /// The program or library, as it was written: a path, or a name without slash to look for.
    pub path: String,
    /// Where in that file.
    pub place: Location,
    /// What is fetched at a hit. Their names differ.
    pub args: Vec<FetchArg>,
    /// What must be true (other than 0) for the actions to be done.
    pub condition: Option<Expr>,
    /// What is done at a hit. None means [`Action::Print`].
    pub actions: Vec<Action>,
}

impl Definition {
    /// Whether the place must be the first instruction of a function. [`parse`](super::parse) refuses places
    /// that cannot be; at a [`Location::FileOffset`] it is left to those who have the file.
    #[must_use]
    pub fn needs_function(&self) -> bool {
        self.kind == ProbeKind::Return
            || self.args.iter().any(|arg| arg.source.needs_function())
            || (self.actions.iter()).any(|action| matches!(action, Action::Return(_)))
    }

    /// Whether the flags are fetched.
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
    /// When the function returns that begins at its place.
    Return,
}

/// Where a probe is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Location {
    /// In a function, or in all that a pattern fits.
    Symbol {
        /// Which ones.
        symbol: Symbol,
        /// Where in each of them.
        offset: Offset,
    },
    /// At this many bytes from the file's beginning (not at an address).
    FileOffset(u64),
    /// At the code of a line of the source, as the line table has it.
    Line {
        /// The source file: its name, or the last parts of its path.
        file: String,
        /// The line, from 1.
        line: u32,
    },
    /// At all places of a USDT probe, which the file's notes tell.
    Usdt {
        /// Who made it: letters, digits and `_`.
        provider: String,
        /// Its name: the same.
        name: String,
    },
}

impl Location {
    /// Whether the first instruction of a function can be here.
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
    /// All functions whose names fit as a whole: `*` any text, `?` any character, `[…]` one of these (`[!…]` none of
    /// them).
    Pattern(String),
}

impl Symbol {
    /// The name or pattern.
    #[must_use]
    pub fn text(&self) -> &str {
        match self {
            Symbol::Name(text) | Symbol::Pattern(text) => text,
        }
    }
}

/// Which instructions of a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Offset {
    /// The one at this many bytes from the function's beginning.
    Bytes(u64),
    /// Each of them (`+*`).
    EveryInstruction,
}

/// A value to fetch.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct FetchArg {
    /// Its name: letters, digits and `_`. If none was given: the variable's or member's name, else `arg1` for the first
    /// argument, `arg2` for the second, ….
    pub name: String,
    /// Where the value is.
    pub source: Source,
    /// How it is read and shown, if the user said so. See [`FetchArg::effective_type`].
    pub ty: Option<Type>,
}

impl FetchArg {
    /// The type that was given, or the one that is meant: `string` for `$comm` and strings, `x64` for all others;
    /// none for a variable, whose type the debugging information tells (`x64` if that has nothing better).
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
    /// `%di`: a register, as it was before the probed instruction; zero-extended if it is a part of one.
    Register(Register),
    /// `$arg1`: an argument of the function by the calling convention for integers and pointers, from 1.
    Argument(u16),
    /// `$retval`: what the function returned, in the register for integers and pointers.
    ReturnValue,
    /// `$stack`: the stack pointer.
    StackPointer,
    /// `$stack0`: the 8-byte entry of this number from the stack pointer upwards.
    Stack(u16),
    /// `+8(SOURCE)`: the memory at the address that the source gives plus this many bytes. `+u8(…)` means the same: all
    /// of a program's memory is the user's.
    Memory {
        /// Bytes to add to the address.
        offset: i64,
        /// What gives the address.
        address: Box<Source>,
    },
    /// `@0x1234`: the memory at this address of the process.
    Address(u64),
    /// `@+0x1234`: the memory to which the byte at this offset of the probed file is mapped.
    FileOffset(u64),
    /// `$comm`: the name of the thread.
    Comm,
    /// `\5`: this number. Those above `i64::MAX` are their two's complement.
    Immediate(i64),
    /// `\"text"`: this text.
    Text(String),
    /// `count`, `p->x[3].y`, `ns::total`: a variable or a member, as the debugging information names it. `$params`: all
    /// parameters of the function, `$vars`: all variables that are visible.
    Variable(String),
}

impl Source {
    /// Whether it is something in memory, so that arrays and strings can be read from there.
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

    /// Whether it is or contains an argument by number.
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
    /// This many values, from 1 to [`MAX_ELEMENTS`](super::MAX_ELEMENTS), one after the other. Of strings: pointers to
    /// them.
    Array(Scalar, u16),
    /// Some bits of a number.
    Bitfield {
        /// The highest of them is a sign.
        signed: bool,
        /// How many bits, from 1 to those of the container.
        width: u8,
        /// The lowest of them.
        offset: u8,
        /// The number that they are in.
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
    /// A text that ends with a byte 0. `ustring` means the same.
    String,
    /// An address of 64 bits, shown as symbol and offset.
    Symbol,
}

impl Scalar {
    /// Its bits in memory; none for a string.
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

/// What a bitfield is in: this many bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum Container {
    Bits8 = 8,
    Bits16 = 16,
    Bits32 = 32,
    Bits64 = 64,
}

impl Container {
    /// 8, 16, 32 or 64.
    #[must_use]
    pub fn bits(self) -> u8 {
        self as u8
    }
}

/// A condition. Numbers have 64 bits; a comparison or a logical operator gives 0 or 1.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Expr {
    /// An integer or a character. Those above `i64::MAX` are unsigned.
    Number(u64),
    /// A text, to compare with.
    Text(String),
    /// The value of the fetch argument with this index in [`Definition::args`].
    Arg(usize),
    /// The number of the process.
    Pid,
    /// The number of the thread.
    Tid,
    /// The number of the processor.
    Cpu,
    /// The name of the thread, a text.
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
    /// `||`, which looks at the second operand only if the first is 0.
    Or,
    /// `&&`, which looks at the second operand only if the first is not 0.
    And,
    /// `|`
    BitOr,
    /// `^`
    BitXor,
    /// `&`
    BitAnd,
    /// `==`, also of texts
    Equal,
    /// `!=`, also of texts
    NotEqual,
    /// `~`: whether the text on the left fits the pattern on the right as a whole (`*`, `?`, `[…]`)
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

/// What is done at a hit.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// `print`: an event with the fetched values.
    Print,
    /// `count`: count the hit, and nothing else.
    Count,
    /// `hist:keys=…`: count hits by values.
    Hist(Histogram),
    /// `stacktrace`: an event with the chain of callers.
    StackTrace,
    /// `snapshot`, `snapshot:64`, `snapshot of 64 bytes`: an event with this many bytes of the stack from the stack
    /// pointer upwards.
    Snapshot(u32),
    /// `enable:NAME`, `enable NAME`: switch another probe on.
    Enable(ProbeName),
    /// `disable:NAME`, `disable NAME`: switch another probe, or this one, off.
    Disable(ProbeName),
    /// `traceon`: record function calls from here on.
    TraceOn,
    /// `traceoff`: record no more function calls.
    TraceOff,
    /// `return:VALUE`, `return VALUE`: return this to the caller without running the function.
    Return(i64),
}

/// The name of a probe.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ProbeName {
    /// Its group; without, probes with that name in any group.
    pub group: Option<String>,
    /// Its name.
    pub name: String,
}

/// Hits counted by values.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Histogram {
    /// One entry for each combination of these; from 1 to [`MAX_KEYS`](super::MAX_KEYS).
    pub keys: Vec<HistKey>,
    /// What is summed up in each entry beside the number of hits: indices in [`Definition::args`].
    pub values: Vec<usize>,
    /// The order in which the entries are shown; by number of hits if empty.
    pub sort: Vec<HistSort>,
    /// Entries, at most; hits that find no room are counted as lost. 1 to [`MAX_HIST_SIZE`](super::MAX_HIST_SIZE).
    pub size: u32,
}

/// A key of a histogram.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct HistKey {
    /// What: [`Expr::Arg`], [`Expr::Pid`], [`Expr::Tid`], [`Expr::Cpu`] or [`Expr::Comm`].
    pub value: Expr,
    /// Which values are counted together.
    pub bucket: Bucket,
}

/// Which values are counted together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Bucket {
    /// Each is counted alone.
    Each,
    /// `.log2`: those with the same highest bit.
    Log2,
    /// `.buckets=N`: N values that follow each other; from 1.
    Linear(u64),
}

/// An order of the entries of a histogram.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct HistSort {
    /// By what.
    pub by: SortBy,
    /// Largest first.
    pub descending: bool,
}

/// What the entries of a histogram are ordered by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SortBy {
    /// The number of hits, `hitcount`.
    Hits,
    /// The key with this index in [`Histogram::keys`].
    Key(usize),
    /// The sum with this index in [`Histogram::values`].
    Value(usize),
}
