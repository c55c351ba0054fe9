//! What a kernel calls in its handlers of exceptions. In Linux programs, the engine's own signal handlers do it.
//!
//! Interrupts must be off while these functions run, as they are in a handler of exceptions; they call handlers of
//! probes. Afterwards, the kernel continues with the registers as they are then. A function tracer calls [`called`].
//!
//! On x86-64, nothing that the kernel still needs may be directly below the stack pointer of the registers, where the
//! processor has stored the frame of the exception: simulated instructions push there.

pub use super::cause::Cause;
use super::layout::Registers;
use super::trap;
pub use super::trap::{Breakpoint, Fault, Origin, called};

/// Handles an exception of a breakpoint instruction.
pub fn breakpoint(registers: &mut Registers) -> Breakpoint {
    trap::breakpoint(registers, true)
}

/// Handles any other exception that the running instruction has raised. `illegal`: it is no instruction.
pub fn fault(registers: &mut Registers, illegal: bool, cause: &Cause) -> Fault {
    trap::faulted(registers, true, illegal, cause)
}
