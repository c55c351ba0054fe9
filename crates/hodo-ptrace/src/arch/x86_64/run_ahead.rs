//! Brings a stopped thread to the end of hodo's code without letting it run, by interpreting the instructions.
//!
//! Single steps would do it, too. But if the tracer is killed, the kernel leaves the processor's step mode on, which
//! ends the program. Here the thread stays stopped, with its own registers, until all is known that it would have done.

use std::collections::HashMap;

use anyhow::{Result, bail};
use hodo_abi::tcb;
use hodo_isa::x86_64::interpret::{self, Halt, Machine};
use hodo_isa::x86_64::simulate::{self, Fault};

use super::regs::{Regs, counter};
use crate::stopped::Stopped;
use crate::target::TargetAddr;

/// Whether hodo's instructions can be interpreted, except a few.
pub const INTERPRETS: bool = true;

const PAGE: u64 = 4096;

/// Instructions that are interpreted at most: a stack trace in an event takes some ten thousand.
const MOST: u32 = 100_000;

/// The target's memory, as it will be.
struct Ahead {
    thread: Stopped,
    /// Pages that were read, with what was written since, and how many bytes of each there are.
    pages: HashMap<u64, (Box<[u8; PAGE as usize]>, usize)>,
    /// What was written: addresses and lengths.
    written: Vec<(u64, usize)>,
}

impl Ahead {
    /// Calls `each` with the pieces of pages that a range consists of.
    fn pieces(
        &mut self,
        addr: u64,
        len: usize,
        mut each: impl FnMut(&mut [u8], std::ops::Range<usize>),
    ) -> Result<(), Fault> {
        let mut done = 0;
        while done < len {
            let at = addr.checked_add(done as u64).ok_or(Fault)?;
            let (page, inside) = (at & !(PAGE - 1), (at % PAGE) as usize);
            let count = (PAGE as usize - inside).min(len - done);
            let thread = self.thread;
            let (bytes, known) = self.pages.entry(page).or_insert_with(|| {
                let mut bytes = Box::new([0; PAGE as usize]);
                let known = thread.load(TargetAddr(page), &mut bytes[..]);
                (bytes, known)
            });
            if inside + count > *known {
                return Err(Fault);
            }
            each(&mut bytes[inside..inside + count], done..done + count);
            done += count;
        }
        Ok(())
    }

    /// Writes it all to the target. What is in the thread's control block comes last: as long as that is as it was, the
    /// thread can do all of it again.
    fn commit(&mut self, block: u64) -> Result<()> {
        let written = joined(std::mem::take(&mut self.written));
        let is_block = |at: u64| at.wrapping_sub(block) < tcb::SIZE;
        let (last, first): (Vec<_>, Vec<_>) =
            written.into_iter().partition(|&(at, _)| is_block(at));
        for (at, len) in first.into_iter().chain(last) {
            let mut now = vec![0; len];
            let known = self.pieces(at, len, |bytes, range| now[range].copy_from_slice(bytes));
            if known.is_err() || self.thread.store(TargetAddr(at), &now) != len {
                bail!(
                    "the memory of thread {} cannot be written at {at:#x}",
                    self.thread
                );
            }
        }
        Ok(())
    }
}

/// The processor on which a thread has run last (`proc_pid_stat(5)`, field 39).
#[cfg_attr(
    not(target_arch = "x86_64"),
    expect(dead_code, reason = "only interpreted code asks")
)]
fn last_processor(tid: i32) -> Option<u64> {
    let text = std::fs::read_to_string(format!("/proc/{tid}/stat")).ok()?;
    // The name of the program, the second field, may have spaces and parentheses.
    let (_, fields) = text.rsplit_once(") ")?;
    fields.split(' ').nth(36)?.parse().ok()
}

/// Joins ranges, addresses and lengths, that overlap or follow each other.
fn joined(mut ranges: Vec<(u64, usize)>) -> Vec<(u64, usize)> {
    ranges.sort_unstable();
    let mut joined: Vec<(u64, usize)> = Vec::new();
    for (at, len) in ranges {
        match joined.last_mut() {
            Some((start, whole)) if at - *start <= *whole as u64 => {
                *whole = (*whole).max((at - *start) as usize + len);
            }
            _ => joined.push((at, len)),
        }
    }
    joined
}

impl simulate::Memory for Ahead {
    fn read(&mut self, addr: u64, into: &mut [u8]) -> Result<(), Fault> {
        self.pieces(addr, into.len(), |bytes, range| {
            into[range].copy_from_slice(bytes)
        })
    }

    fn write(&mut self, addr: u64, from: &[u8]) -> Result<(), Fault> {
        // All of it or nothing.
        self.pieces(addr, from.len(), |_, _| ())?;
        self.pieces(addr, from.len(), |bytes, range| {
            bytes.copy_from_slice(&from[range])
        })?;
        self.written.push((addr, from.len()));
        Ok(())
    }
}

impl Machine for Ahead {
    fn code(&mut self, addr: u64, into: &mut [u8]) -> usize {
        let mut len = into.len();
        // The next page may not be there.
        while len > 0 {
            let piece = &mut into[..len];
            if simulate::Memory::read(self, addr, piece).is_ok() {
                break;
            }
            len = match PAGE - addr % PAGE {
                rest if rest < len as u64 => rest as usize,
                _ => 0,
            };
        }
        len
    }

    fn counter(&mut self) -> u64 {
        counter()
    }

    fn processor(&mut self) -> Option<u64> {
        last_processor(self.thread.tid())
    }
}

/// Has a stopped thread do what its next instructions do, until `is_done` says so of the address of the next one, and
/// returns its registers then. `None` if one of the instructions is of a kind that must be executed, or would fault:
/// nothing has changed then.
///
/// If hodo is killed before the registers are written, the thread executes the instructions itself, from where it was.
/// Some of the memory may then be as they leave it. That does no harm: what is on the stack and in the shadow is
/// written again with the same values, and a record may be there twice.
///
/// # Errors
/// If the thread is gone, or some of its memory cannot be written any more (a full disk).
pub fn run_ahead(
    thread: Stopped,
    regs: &Regs,
    mut is_done: impl FnMut(&Regs) -> bool,
) -> Result<Option<Regs>> {
    // The kernel may yet change where it goes on.
    if regs.system_call().is_some() {
        return Ok(None);
    }
    let mut ahead = Ahead {
        thread,
        pages: HashMap::new(),
        written: Vec::new(),
    };
    let mut state = regs.state();
    let mut now = *regs;
    let result = interpret::run(&mut state, &mut ahead, MOST, |pc| {
        now.set_pc(pc);
        is_done(&now)
    });
    match result {
        Ok(()) => {}
        Err(Halt::Unknown | Halt::Fault | Halt::Endless) => return Ok(None),
    }
    now.set_state(&state);
    ahead.commit(state.gs)?;
    thread.set_regs(&now)?;
    Ok(Some(now))
}

#[cfg(test)]
mod tests {
    use super::{joined, last_processor};

    #[test]
    fn ranges_are_joined_where_they_meet() {
        let ranges = vec![
            (48, 8),
            (0, 8),
            (8, 8),
            (12, 2),
            (17, 8),
            (40, 16),
            (100, 1),
            (100, 4),
        ];
        assert_eq!(joined(ranges), [(0, 16), (17, 8), (40, 16), (100, 4)]);
        assert_eq!(joined(vec![]), []);
    }

    #[test]
    fn the_last_processor_is_known() {
        let number = last_processor(std::process::id().cast_signed()).expect("this process");
        assert!(number < 1 << 12, "{number}");
    }
}
