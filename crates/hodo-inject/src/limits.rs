//! Limits on address space and data. The memory that is mapped into a program for its trace is large. It costs nothing
//! until it is used, but limits count all of it. So hodo raises the limits by this much when a program starts under
//! limits and when it sets them, and the program can use as much as without hodo.

use hodo_patch::Raise;
use hodo_ptrace::limits::{Limit, get, set};

/// By how much hard limits are raised, in bytes: always by the same amount, because they cannot be raised again if the
/// next program needs more than this one.
const HARD: u64 = 32 << 40;

const RESOURCES: [libc::__rlimit_resource_t; 2] = [libc::RLIMIT_AS, libc::RLIMIT_DATA];

/// The limits of a process that has just executed a program; they are lifted until they are settled. If they are not
/// settled, they are reset to the program's own limits.
#[derive(Debug)]
pub struct Lifted {
    pid: i32,
    /// The program's own limits, in the order of the resources.
    own: [Option<Limit>; 2],
}

/// A limit before it was raised by `extra`.
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
    /// Lifts the limits of `pid`, as far as that is allowed. `before`: by how much limits were raised in the process
    /// that executed the program.
    pub fn new(pid: i32, before: Raise) -> Self {
        let mut own = [None; 2];
        for ((own, resource), extra) in own
            .iter_mut()
            .zip(RESOURCES)
            .zip([before.space, before.data])
        {
            let Ok(limit) = get(pid, resource) else {
                continue;
            };
            if limit.soft == libc::RLIM_INFINITY {
                continue;
            }
            *own = Some(Limit {
                soft: lowered(limit.soft, extra),
                hard: lowered(limit.hard, before.hard),
            });
            let _ = set(pid, resource, Limit::INFINITE)
                .or_else(|_| set(pid, resource, Limit::same(limit.hard)));
        }
        Self { pid, own }
    }

    /// If the limit cannot be raised: how many bytes may be mapped for the trace, a part of what the program has.
    pub fn budget(&self) -> Option<u64> {
        let own = self.own[0]?.soft;
        let now = get(self.pid, libc::RLIMIT_AS).ok()?.soft;
        (now < raised(own, HARD / 2)).then_some(own / 8)
    }

    /// Sets the limits to the program's own ones, plus `space` and `data` bytes if they could be lifted. Returns by how
    /// much limits are raised from now on.
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
            let Some(limit) = *own else {
                continue;
            };
            let Ok(Limit { hard: highest, .. }) = get(self.pid, resource) else {
                continue;
            };
            let soft = raised(limit.soft, more).min(highest);
            let hard = raised(limit.hard, extra.hard).min(highest);
            let hard = hard.max(soft);
            let _ = set(self.pid, resource, Limit { soft, hard });
        }
    }
}

/// Resets the limits of a process to its own ones, after everything was unmapped for which they were raised.
pub fn lower(pid: i32, extra: Raise) {
    if extra == Raise::default() {
        return;
    }
    for (resource, more) in RESOURCES.into_iter().zip([extra.space, extra.data]) {
        let Ok(Limit { soft, hard }) = get(pid, resource) else {
            continue;
        };
        if soft != libc::RLIM_INFINITY {
            let hard = lowered(hard, extra.hard);
            let soft = lowered(soft, more).min(hard);
            let _ = set(pid, resource, Limit { soft, hard });
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
