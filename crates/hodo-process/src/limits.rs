//! Limits of resources: those of the program, and hodo's own.
//!
//! Limits on address space and data. What is mapped into a program for its trace is large, though it costs nothing until it
//! is used; the limits count it all. So they are raised by as much, when a program starts under them and when it sets them,
//! and the program has as much to itself as it has alone.

use std::io;
use std::sync::OnceLock;

use hodo_patch::Raise;

/// By how much hard limits are raised, in bytes: always the same, for they cannot be raised again when the next program
/// needs more than this one.
const HARD: u64 = 32 << 40;

const RESOURCES: [libc::__rlimit_resource_t; 2] = [libc::RLIMIT_AS, libc::RLIMIT_DATA];

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

/// Bytes of hodo's own stack. More must not be allowed: when hodo reads a program's memory below its stack, the kernel lets that stack grow
/// down to there as far as hodo's limit, not the program's, allows.
const STACK: u64 = 8 << 20;

/// What hodo's limits were: soft and hard.
static INHERITED: OnceLock<[Option<(u64, u64)>; OWN.len()]> = OnceLock::new();

/// Raises hodo's own limits as far as it may, that of the stack to what it needs. Its program gets them back as they were.
pub fn raise_own() {
    INHERITED.get_or_init(|| {
        OWN.map(|(resource, without)| {
            let (soft, hard) = get(0, resource).ok()?;
            let infinite = libc::RLIM_INFINITY;
            if resource == libc::RLIMIT_STACK {
                let wanted = STACK.min(hard);
                return (soft != wanted && set(0, resource, wanted, hard).is_ok())
                    .then_some((soft, hard));
            }
            if soft == infinite {
                return None;
            }
            let none = || set(0, resource, infinite, infinite).is_ok();
            let raised = without && none() || set(0, resource, hard, hard).is_ok();
            raised.then_some((soft, hard))
        })
    });
}

/// Whether the stack of the first thread cannot grow to what hodo needs, even with its limits raised.
pub fn has_small_stack() -> bool {
    /// What it needs, and some more.
    const ENOUGH: u64 = 2 << 20;
    let is_small = || get(0, libc::RLIMIT_STACK).is_ok_and(|(soft, _)| soft < ENOUGH);
    is_small() && {
        raise_own();
        is_small()
    }
}

/// Makes hodo's limits what they were. For a child that is about to execute: async-signal-safe.
pub fn restore_own() {
    let inherited = INHERITED.get().into_iter().flatten();
    for (limit, (resource, _)) in inherited.zip(OWN) {
        if let &Some((soft, hard)) = limit {
            let _ = set(0, resource, soft, hard);
        }
    }
}

/// Whether hodo could not get rid of a limit on address space.
pub fn is_address_space_limited() -> bool {
    address_space().is_some()
}

/// Bytes of address space that hodo may have, if there is a limit.
pub fn address_space() -> Option<u64> {
    let (soft, _) = get(0, libc::RLIMIT_AS).ok()?;
    (soft != libc::RLIM_INFINITY).then_some(soft)
}

/// Bytes that a file which hodo writes can have.
pub fn file_size() -> u64 {
    get(0, libc::RLIMIT_FSIZE).map_or(libc::RLIM_INFINITY, |(soft, _)| soft)
}

/// Bytes that a core file of a thread's process can have.
pub fn core(tid: i32) -> u64 {
    get(tid, libc::RLIMIT_CORE).map_or(0, |(soft, _)| soft)
}

/// The limits of a process that has just executed, lifted until they are settled. Without that they are in the end what
/// they would be alone.
#[derive(Debug)]
pub struct Lifted {
    pid: i32,
    /// What the program would have alone: soft and hard, in the order of the resources.
    own: [Option<(u64, u64)>; 2],
}

fn get(pid: i32, resource: libc::__rlimit_resource_t) -> io::Result<(u64, u64)> {
    let mut old = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: prlimit writes one rlimit; nothing is set.
    match unsafe { libc::prlimit(pid, resource, std::ptr::null(), &raw mut old) } {
        0 => Ok((old.rlim_cur, old.rlim_max)),
        _ => Err(io::Error::last_os_error()),
    }
}

fn set(pid: i32, resource: libc::__rlimit_resource_t, soft: u64, hard: u64) -> io::Result<()> {
    let new = libc::rlimit {
        rlim_cur: soft,
        rlim_max: hard,
    };
    // SAFETY: prlimit reads one rlimit; the old one is not asked for.
    match unsafe { libc::prlimit(pid, resource, &raw const new, std::ptr::null_mut()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// A limit that was raised by `extra`, as it was.
fn lowered(limit: u64, extra: u64) -> u64 {
    if limit == libc::RLIM_INFINITY {
        limit
    } else {
        limit.checked_sub(extra).unwrap_or(limit)
    }
}

fn raised(limit: u64, extra: u64) -> u64 {
    limit.checked_add(extra).unwrap_or(libc::RLIM_INFINITY)
}

impl Lifted {
    /// Lifts the limits of `pid`, as far as that is allowed. `before` is what the limits were raised by in the process that
    /// executed.
    pub fn new(pid: i32, before: Raise) -> Self {
        let mut own = [None; 2];
        for ((own, resource), extra) in own
            .iter_mut()
            .zip(RESOURCES)
            .zip([before.space, before.data])
        {
            let Ok((soft, hard)) = get(pid, resource) else {
                continue;
            };
            if soft == libc::RLIM_INFINITY {
                continue;
            }
            *own = Some((lowered(soft, extra), lowered(hard, before.hard)));
            let infinite = libc::RLIM_INFINITY;
            let _ =
                set(pid, resource, infinite, infinite).or_else(|_| set(pid, resource, hard, hard));
        }
        Self { pid, own }
    }

    /// Where the limit cannot be raised: what may be mapped for the trace, in bytes, a part of what the program has.
    pub fn budget(&self) -> Option<u64> {
        let (own, _) = self.own[0]?;
        let (now, _) = get(self.pid, libc::RLIMIT_AS).ok()?;
        (now < raised(own, HARD / 2)).then_some(own / 8)
    }

    /// Sets the limits to what the program has alone, and `space` and `data` bytes more if they could be lifted. Tells by
    /// how much limits are to be raised from now on.
    pub fn settle(mut self, space: u64, data: u64) -> Raise {
        let extra = match self.budget() {
            Some(_) => Raise::default(),
            None => Raise {
                space,
                data,
                hard: HARD,
            },
        };
        self.apply(extra);
        extra
    }

    fn apply(&mut self, extra: Raise) {
        let own = std::mem::take(&mut self.own);
        for ((own, resource), more) in own.iter().zip(RESOURCES).zip([extra.space, extra.data]) {
            let Some((soft, hard)) = *own else {
                continue;
            };
            let Ok((_, highest)) = get(self.pid, resource) else {
                continue;
            };
            let soft = raised(soft, more).min(highest);
            let hard = raised(hard, extra.hard).min(highest);
            let _ = set(self.pid, resource, soft, hard.max(soft));
        }
    }
}

/// Makes the limits of a process what they would be alone, from which all was taken that they were raised for.
pub fn lower(pid: i32, extra: Raise) {
    if extra == Raise::default() {
        return;
    }
    for (resource, more) in RESOURCES.into_iter().zip([extra.space, extra.data]) {
        let Ok((soft, hard)) = get(pid, resource) else {
            continue;
        };
        if soft != libc::RLIM_INFINITY {
            let hard = lowered(hard, extra.hard);
            let _ = set(pid, resource, lowered(soft, more).min(hard), hard);
        }
    }
}

impl Drop for Lifted {
    fn drop(&mut self) {
        self.apply(Raise::default());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_raised_is_lowered_to_what_it_was() {
        for limit in [0, 1 << 20, 1 << 40, libc::RLIM_INFINITY] {
            assert_eq!(lowered(raised(limit, HARD), HARD), limit);
        }
        // Nobody has raised this one.
        assert_eq!(lowered(1 << 20, HARD), 1 << 20);
    }
}
