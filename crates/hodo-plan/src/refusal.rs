//! Why a function has no site.

use crate::static_keys::IN_THE_WAY;

/// Why a function cannot be traced, or not with a certain tactic. The texts speak of the function as "it".
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Refusal {
    #[error("it is too short for a jump, and other code follows")]
    TooShort,
    #[error("a branch from elsewhere leads into its first instructions")]
    FromElsewhere,
    #[error("a loop leads back into its first instructions")]
    Loop,
    #[error(
        "a loop leads back to its start, and keeps values below the stack pointer, where a stub would put its own"
    )]
    RedZone,
    #[error("{IN_THE_WAY}")]
    StaticBranch,
    #[error("it has bytes that are not an instruction")]
    Invalid,
    #[error("its first instructions contain a call")]
    Call,
    #[error("it is empty")]
    Empty,
    #[error("it is not in executable code")]
    NotCode,
    #[error("it is a signal handler's return, which unwinders know by its bytes")]
    SignalReturn,
    #[error(
        "one jump and no call leads to it: it may be a part of a function that keeps values below the stack pointer"
    )]
    Unclear,
    #[error("it reads the flags that it is entered with")]
    ReadsFlags,
    #[error("it is entered with live values below the stack pointer")]
    EnteredWithRedZone,
    #[error("no register is free where its first instructions end")]
    NoRegister,
    /// A reason given by its name or by the program that it belongs to.
    #[error("{0}")]
    LeftAlone(&'static str),
    /// An instruction cannot be moved.
    #[error("{0}")]
    Immovable(hodo_isa::code::NotMovable),
}
