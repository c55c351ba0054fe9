//! System calls that a tracer has a stopped thread make.

unsafe extern "C" {
    static hodo_agent_syscall: u8;
    static hodo_agent_home_end: u8;
}

/// Code that makes a system call and then, unless somebody stops the thread there, lets it continue as if the call had
/// not been made. The stack pointer leads to what it takes: the frame of a signal handler, as the kernel makes it.
#[must_use]
pub fn call_and_home() -> &'static [u8] {
    let start = &raw const hodo_agent_syscall;
    let len = (&raw const hodo_agent_home_end).addr() - start.addr();
    // SAFETY: both labels are in one object in read-only data, which the assembly of the slow paths lays out.
    unsafe { core::slice::from_raw_parts(start, len) }
}
