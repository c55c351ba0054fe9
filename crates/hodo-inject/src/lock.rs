//! Memory that is locked, so that it is never written to disk: the program locks its own, and hodo's stays what it is.
//! hodo maps far more addresses than there is memory, and locked addresses take memory at once.

use anyhow::Result;
use hodo_abi::Span;
use hodo_ptrace::maps::{self, Mapping};
use hodo_ptrace::{Stopped, Syscalls, TargetAddr, limits, status};

use crate::space::Space;

const CURRENT: u64 = libc::MCL_CURRENT as u64;
const FUTURE: u64 = libc::MCL_FUTURE as u64;
const ON_FAULT: u64 = libc::MCL_ONFAULT as u64;

const PAGE: u64 = 4096;

/// Nothing that a process may map is above this.
const KERNEL: u64 = 1 << 63;

/// Does for a stopped thread what `mlockall` with these flags does without a recording. Returns whether that was
/// possible. If not, the kernel refuses the call for the same reason as without a recording.
///
/// # Errors
/// If the thread is gone.
pub fn all(thread: Stopped, flags: u64, space: &Space) -> Result<bool> {
    let memory = thread.memory()?;
    let own = own(&maps::read(thread.tid())?, &space.regions(&memory));
    if !may_lock(thread.tid(), flags, &own) {
        return Ok(false);
    }
    let calls = Syscalls::begin(thread, TargetAddr(space.syscall_place()))?;
    let done = lock(
        &calls,
        flags,
        own.into_iter().map(|span| (span, flags & ON_FAULT != 0)),
    );
    calls.end()?;
    done
}

/// Makes these calls. Without `FUTURE` in the flags, memory that is mapped later is not locked.
fn lock(calls: &Syscalls, flags: u64, spans: impl Iterator<Item = (Span, bool)>) -> Result<bool> {
    let set = match flags & FUTURE {
        0 => calls.munlockall()?,
        _ => calls.mlockall(flags & !CURRENT)?,
    };
    if set && flags & CURRENT != 0 {
        // As in `mlockall`, some memory cannot be locked, and that is no error.
        for (span, on_fault) in spans {
            calls.mlock(TargetAddr(span.start), span.len(), on_fault)?;
        }
    }
    Ok(set)
}

/// Whether the kernel would do it, if there were only these mappings (`mm/mlock.c`).
fn may_lock(tid: i32, flags: u64, own: &[Span]) -> bool {
    if flags & !(CURRENT | FUTURE | ON_FAULT) != 0 || flags & (CURRENT | FUTURE) == 0 {
        return false;
    }
    let limit = limits::get(tid, libc::RLIMIT_MEMLOCK).map_or(0, |limit| limit.soft);
    let size: u64 = own.iter().map(|span| span.len()).sum();
    let fits = flags & CURRENT == 0 || size <= limit / PAGE * PAGE;
    limit > 0 && fits || may_lock_any(tid)
}

/// Whether a process may lock as much as it likes.
fn may_lock_any(tid: i32) -> bool {
    /// `CAP_IPC_LOCK`
    const LOCK: u32 = 14;
    let rights = status(tid, "CapEff:").and_then(|text| u64::from_str_radix(&text, 16).ok());
    // Rights in a user namespace of its own do not count.
    let users = std::fs::read_to_string(format!("/proc/{tid}/uid_map")).unwrap_or_default();
    let is_outermost = users.split_whitespace().eq(["0", "0", "4294967295"]);
    is_outermost && rights.is_some_and(|rights| rights >> LOCK & 1 != 0)
}

/// What of these mappings is the program's own.
fn own(maps: &[Mapping], ours: &[Span]) -> Vec<Span> {
    let mut ours: Vec<_> = ours.to_vec();
    ours.sort_unstable_by_key(|span| span.start);
    let mut own = Vec::new();
    for mapping in maps.iter().filter(|mapping| mapping.end < KERNEL) {
        // The kernel joins mappings of the same kind.
        let mut start = mapping.start;
        for span in &ours {
            let end = span.end.next_multiple_of(PAGE);
            if end <= start || mapping.end <= span.start {
                continue;
            }
            own.extend((start < span.start).then(|| Span::from(start..span.start)));
            start = end;
        }
        own.extend((start < mapping.end).then(|| Span::from(start..mapping.end)));
    }
    own
}

/// That a process locks all that is mapped, and what it has locked: nothing is locked while this exists.
pub(crate) struct SetAside {
    flags: u64,
    locked: Vec<(Span, bool)>,
}

impl SetAside {
    /// If a process locks everything that will be mapped, takes that back until [`SetAside::restore`].
    ///
    /// # Errors
    /// If the thread is gone.
    pub(crate) fn of(calls: &Syscalls) -> Result<Option<Self>> {
        let tid = calls.thread().tid();
        let before = status(tid, "VmLck:");
        // It is never used, so it takes no memory.
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let page = calls.mmap(TargetAddr(0), PAGE, libc::PROT_NONE, flags, None)?;
        let locks = status(tid, "VmLck:") != before || page.addr().is_err();
        let smaps = match locks {
            true => std::fs::read_to_string(format!("/proc/{tid}/smaps")).unwrap_or_default(),
            false => String::new(),
        };
        let mut locked = locked(&smaps);
        let mut on_fault = false;
        if let Ok(page) = page.addr() {
            on_fault = locked
                .iter()
                .any(|(span, on_fault)| *on_fault && span.contains(page.0));
            for (span, _) in &mut locked {
                // The kernel may have joined it to its neighbour.
                match *span {
                    Span { start, .. } if start == page.0 => span.start += PAGE,
                    Span { end, .. } if end == page.0 + PAGE => span.end -= PAGE,
                    _ => {}
                }
            }
            locked.retain(|(span, _)| !span.is_empty());
            calls.munmap(page, PAGE)?;
        }
        if !locks || !calls.munlockall()? {
            return Ok(None);
        }
        let flags = FUTURE | CURRENT | if on_fault { ON_FAULT } else { 0 };
        Ok(Some(Self { flags, locked }))
    }

    /// Locks again what was locked, and what will be mapped.
    ///
    /// # Errors
    /// If the thread is gone.
    pub(crate) fn restore(self, calls: &Syscalls) -> Result<()> {
        lock(calls, self.flags, self.locked.into_iter()).map(drop)
    }
}

/// The locked mappings in `/proc/PID/smaps`, and whether each is locked only as far as it is used.
fn locked(smaps: &str) -> Vec<(Span, bool)> {
    let mut span = Span::EMPTY;
    let mut locked = Vec::new();
    for line in smaps.lines() {
        let words = line.split_whitespace();
        let first = words.clone().next().unwrap_or_default();
        if first == "VmFlags:" {
            let has = |flag: &str| words.clone().any(|word| word == flag);
            locked.extend(has("lo").then(|| (span, has("lf"))));
        } else if let Some((start, end)) = first.split_once('-')
            && let (Ok(start), Ok(end)) =
                (u64::from_str_radix(start, 16), u64::from_str_radix(end, 16))
        {
            span = Span::from(start..end);
        }
    }
    locked
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    #[test]
    fn only_what_is_not_ours_is_the_programs() {
        let mapped = |start: u64, end: u64| Mapping {
            start,
            end,
            writable: true,
            executable: false,
            shared: false,
            offset: 0,
            device: 0,
            inode: 0,
            path: PathBuf::new(),
            deleted: false,
        };
        let maps = [
            mapped(0x1000, 0x9000),
            mapped(0xa000, 0xc000),
            mapped(KERNEL, KERNEL + PAGE),
        ];
        let ours = [
            Span::from(0xa000..0xbf00),
            Span::from(0x3000..0x4000),
            Span::from(0x5000..0x6000),
        ];
        let expected = [0x1000..0x3000, 0x4000..0x5000, 0x6000..0x9000].map(Span::from);
        assert_eq!(own(&maps, &ours), expected);
        assert_eq!(own(&maps[..1], &[]), [Span::from(0x1000..0x9000)]);
    }

    #[test]
    fn locked_mappings_are_told_by_their_flags() {
        let smaps = "1000-3000 rw-p 00000000 00:00 0 \nSize: 8 kB\nVmFlags: rd wr lo \n\
                     4000-5000 r--p 00000000 00:00 0 [x]\nVmFlags: rd \n\
                     7000-8000 rw-p 00000000 00:00 0\nVmFlags: rd wr lo lf \n";
        let expected = [
            (Span::from(0x1000..0x3000), false),
            (Span::from(0x7000..0x8000), true),
        ];
        assert_eq!(locked(smaps), expected);
    }
}
