//! The code around system calls: what is the same for all instruction sets.

/// The code around system calls, and where its entries are, as offsets into it.
#[derive(Debug, Clone, Copy)]
pub struct Syscalls {
    /// Position-independent code. The table has to follow.
    pub code: &'static [u8],
    /// Before a system call. Keeps all but `rcx` and `r11`; where calls set a link register, all but that.
    pub enter: usize,
    /// After a system call. Keeps all but `rcx`, or the link register.
    pub exit: usize,
    /// Loads that may fault, and where to go on then.
    pub faults: &'static [[u32; 2]],
}
unsafe extern "C" {
    static hodo_sys_start: u8;
    static hodo_sys_enter: u8;
    static hodo_sys_exit: u8;
    static hodo_sys_end: u8;
    static hodo_sys_faults: [u32; 2];
    static hodo_sys_faults_end: [u32; 2];
}

/// The code around system calls, ready to be copied into a target.
#[must_use]
pub fn syscalls() -> Syscalls {
    let start = &raw const hodo_sys_start;
    let offset = |symbol: *const u8| symbol.addr() - start.addr();
    let faults = &raw const hodo_sys_faults;
    let count = ((&raw const hodo_sys_faults_end).addr() - faults.addr()) / size_of::<[u32; 2]>();
    Syscalls {
        // SAFETY: start and end bound one object in read-only data, laid out by the assembly above.
        code: unsafe { core::slice::from_raw_parts(start, offset(&raw const hodo_sys_end)) },
        enter: offset(&raw const hodo_sys_enter),
        exit: offset(&raw const hodo_sys_exit),
        // SAFETY: as above; the list is aligned to eight bytes and consists of pairs of words.
        faults: unsafe { core::slice::from_raw_parts(faults, count) },
    }
}
