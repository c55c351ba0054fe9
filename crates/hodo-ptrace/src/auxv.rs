//! The auxiliary vector of a process (getauxval(3)).

use std::io;

pub use hodo_sys::auxv::find;

/// All of it, as the kernel has given it to the process's program. Its addresses differ from one execution to the next.
///
/// # Errors
/// If it cannot be read.
pub fn of(pid: i32) -> io::Result<Vec<u8>> {
    std::fs::read(format!("/proc/{pid}/auxv"))
}

/// The value that has a key: one of libc's `AT_…`. `None` if there is none, or the process is gone.
#[must_use]
pub fn value(pid: i32, key: u64) -> Option<u64> {
    find(&of(pid).ok()?, key)
}
