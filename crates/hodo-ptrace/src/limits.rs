//! Resource limits: hodo's own, and those of other processes.

use std::io;
use std::sync::OnceLock;

/// Limits that are in hodo's way, and whether it may have none of them at all.
const OWN: [(libc::__rlimit_resource_t, bool); 7] = [
    (libc::RLIMIT_AS, true),
    (libc::RLIMIT_DATA, true),
    (libc::RLIMIT_FSIZE, true),
    (libc::RLIMIT_CPU, true),
    (libc::RLIMIT_NPROC, true),
    (libc::RLIMIT_STACK, false),
    // The kernel has a bound of its own here.
    (libc::RLIMIT_NOFILE, false),
];

/// Bytes of hodo's own stack. More must not be allowed: when hodo reads a program's memory below its stack, the kernel
/// lets that stack grow down to there as far as hodo's limit, not the program's, allows.
const STACK: u64 = 8 << 20;

/// A limit of one resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limit {
    /// What holds now.
    pub soft: u64,
    /// How far the process itself can raise it.
    pub hard: u64,
}

impl Limit {
    /// None at all.
    pub const INFINITE: Self = Self::same(libc::RLIM_INFINITY);

    /// Both are `limit`.
    pub const fn same(limit: u64) -> Self {
        Self {
            soft: limit,
            hard: limit,
        }
    }
}

/// What hodo's limits were.
static INHERITED: OnceLock<[Option<Limit>; OWN.len()]> = OnceLock::new();

/// Raises hodo's own limits as far as it may, that of the stack to what it needs. Its program gets them back as they
/// were.
pub fn raise_own() {
    INHERITED.get_or_init(|| {
        OWN.map(|(resource, without)| {
            let old = get(0, resource).ok()?;
            if resource == libc::RLIMIT_STACK {
                let wanted = Limit {
                    soft: STACK.min(old.hard),
                    ..old
                };
                return (old != wanted && set(0, resource, wanted).is_ok()).then_some(old);
            }
            if old.soft == libc::RLIM_INFINITY {
                return None;
            }
            let none = || set(0, resource, Limit::INFINITE).is_ok();
            let raised = without && none() || set(0, resource, Limit::same(old.hard)).is_ok();
            raised.then_some(old)
        })
    });
}

/// Whether the stack of the first thread cannot grow to what hodo needs, even with its limits raised.
pub fn has_small_stack() -> bool {
    /// What it needs, and some more.
    const ENOUGH: u64 = 2 << 20;
    let is_small = || get(0, libc::RLIMIT_STACK).is_ok_and(|limit| limit.soft < ENOUGH);
    is_small() && {
        raise_own();
        is_small()
    }
}

/// Makes hodo's limits what they were. For a child that is about to execute: async-signal-safe.
pub fn restore_own() {
    let inherited = INHERITED.get().into_iter().flatten();
    for (limit, (resource, _)) in inherited.zip(OWN) {
        if let &Some(limit) = limit {
            let _ = set(0, resource, limit);
        }
    }
}

/// Whether hodo could not get rid of a limit on address space.
pub fn is_address_space_limited() -> bool {
    address_space().is_some()
}

/// Bytes of address space that hodo may have, if there is a limit.
pub fn address_space() -> Option<u64> {
    let soft = get(0, libc::RLIMIT_AS).ok()?.soft;
    (soft != libc::RLIM_INFINITY).then_some(soft)
}

/// Bytes that a file which hodo writes can have.
pub fn file_size() -> u64 {
    get(0, libc::RLIMIT_FSIZE).map_or(libc::RLIM_INFINITY, |limit| limit.soft)
}

/// Bytes that a core file of a thread's process can have.
pub fn core(tid: i32) -> u64 {
    get(tid, libc::RLIMIT_CORE).map_or(0, |limit| limit.soft)
}

/// A limit of a process (0: this one).
///
/// # Errors
/// If the process is gone or not ours to look at.
pub fn get(pid: i32, resource: libc::__rlimit_resource_t) -> io::Result<Limit> {
    let mut old = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: prlimit writes one rlimit; nothing is set.
    match unsafe { libc::prlimit(pid, resource, std::ptr::null(), &raw mut old) } {
        0 => Ok(Limit {
            soft: old.rlim_cur,
            hard: old.rlim_max,
        }),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Sets it.
///
/// # Errors
/// If the kernel refuses.
pub fn set(pid: i32, resource: libc::__rlimit_resource_t, limit: Limit) -> io::Result<()> {
    let new = libc::rlimit {
        rlim_cur: limit.soft,
        rlim_max: limit.hard,
    };
    // SAFETY: prlimit reads one rlimit; the old one is not asked for.
    match unsafe { libc::prlimit(pid, resource, &raw const new, std::ptr::null_mut()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
