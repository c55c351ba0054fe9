//! Stopped threads of other processes: their registers, memory and system calls; stopping and resuming them; mappings;
//! launching programs; signals.

/// Says something on standard error. Where nobody can read that (a full disk, a reader that has gone away), what is
/// being traced must not suffer, as it would from the panic of `eprintln`.
#[macro_export]
macro_rules! warn_user {
    ($($piece:tt)*) => {{
        use std::io::Write as _;
        let _ = writeln!(std::io::stderr(), $($piece)*);
    }};
}

pub mod arch;
mod asked;
pub mod auxv;
mod calls;
pub mod inherited;
pub mod launch;
pub mod limits;
pub mod maps;
mod memory;
pub mod pass_fd;
pub mod processes;
mod request;
mod run;
pub mod signals;
mod signing;
pub mod sockets;
mod status;
mod stopped;
pub mod stops;
mod target;
pub mod threads;
pub mod waits;

pub use arch::Regs;
pub use asked::Asked;
pub use calls::{Call, Syscalls, is_ending, look_into, syscall_place};
pub use memory::Memory;
pub use request::{
    SUSPEND_SECCOMP, fault_address, interrupt, is_gone, seize, send, sender, set_fault_address,
};
pub use run::let_go;
pub use signing::Signing;
pub use status::{
    blocked, call_of, comm, has_signal, is_caught, is_confined, is_first, is_ignored, numbers_of,
    pending, process_of, start_of_heap, status,
};
pub use stopped::{Report, Stopped};
pub use target::{Mapped, TargetAddr, TargetFd};
