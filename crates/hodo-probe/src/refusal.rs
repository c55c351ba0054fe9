//! Why the engine refuses to do something.

use alloc::string::String;
use core::fmt;
use core::ops::Range;

/// Why a probe cannot be registered.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Refusal {
    /// Nothing that runs is mapped at the address.
    NotCode,
    /// The code is in shared memory; other processes would run into the breakpoint.
    Shared,
    /// No unwind table says which function the address is in, so it is not known where instructions begin.
    NoFunction,
    /// The address is not in the function that was given.
    OutsideFunction,
    /// An instruction begins before the address and ends after it.
    Middle {
        /// That instruction, in Intel's syntax.
        instruction: String,
        /// Its address.
        addr: u64,
    },
    /// The instruction cannot be probed.
    Instruction {
        /// The instruction, in Intel's syntax.
        instruction: String,
        /// Why.
        reason: &'static str,
    },
    /// The code is the engine's own.
    Engine,
    /// The instruction cannot be executed in the way that was demanded.
    Execution(super::Execution),
    /// There is no such way to execute an instruction.
    NoExecution(i32),
    /// The return probe is not at a function's first instruction.
    NotEntry,
    /// The function's first instructions cannot be moved, which a return probe requires.
    NoReturn,
    /// The code is switched by a function tracer (`hodo-ftrace`).
    CallSite {
        /// Its call site.
        code: Range<u64>,
        /// Why the probe cannot be there.
        reason: String,
    },
    /// There is no handler, and the probe does not count.
    Nothing,
    /// A probe was to be changed from within a handler, which would wait for itself.
    InHandler,
    /// The kernel refused something: what, and its `errno`.
    Kernel(&'static str, i32),
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotCode => f.write_str("there is no code at this address"),
            Self::Shared => f.write_str(
                "the code is in shared memory, where other processes would run into the probe",
            ),
            Self::NoFunction => {
                f.write_str("no unwind table has a function here; give the function's range")
            }
            Self::OutsideFunction => f.write_str("the address is outside of the function's range"),
            Self::Middle { instruction, addr } => {
                write!(f, "it is the middle of `{instruction}` at {addr:#x}")
            }
            Self::Instruction {
                instruction,
                reason,
            } => write!(f, "`{instruction}`: {reason}"),
            Self::Engine => f.write_str("the code belongs to the engine of probes"),
            Self::Execution(way) => write!(f, "the instruction cannot be executed {way}"),
            Self::NoExecution(number) => {
                write!(f, "there is no way {number} to execute an instruction")
            }
            Self::NotEntry => {
                f.write_str("a return probe must be at the first instruction of a function")
            }
            Self::NoReturn => f.write_str(
                "a return probe is not possible: the function's first instruction cannot be moved",
            ),
            Self::CallSite { code, reason } => write!(
                f,
                "it is in the call site of ftrace at {:#x}..{:#x}: {reason}",
                code.start, code.end
            ),
            Self::Nothing => {
                f.write_str("the probe would do nothing: it has no handler, and does not count")
            }
            Self::InHandler => f.write_str("probes cannot be changed from a handler of a probe"),
            Self::Kernel(what, number) => write!(f, "{what}: error {number}"),
        }
    }
}

impl core::error::Error for Refusal {}
