//! System calls that a tracer has a stopped thread make.

/// Code that makes a system call and then lets the thread continue as if the call had not been made: there is none.
#[must_use]
pub fn call_and_home() -> &'static [u8] {
    &[]
}
