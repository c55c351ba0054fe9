//! Single steps, which the processor makes, except over the instructions from an exclusive load to its store: a stop
//! between the two makes the store fail, so a loop of such steps would never end. All of them are one step.

use anyhow::{Context, Result, bail};
use hodo_isa::aarch64::LEN;
use hodo_isa::aarch64::decode::{Insn, Kind};

use crate::arch::linked::{Regs, insn};
use crate::request::{is_gone, register_set, request, sender};
use crate::stopped::{Report, Stopped};
use crate::stops::{OWN, bit};
use crate::target::TargetAddr;

/// The kind of register set that has the processor's breakpoints (`NT_ARM_HW_BREAK`).
const BREAKPOINTS: u64 = 0x402;
/// Bytes before the breakpoints in it, and of each: its address and how it works.
const HEAD: usize = 8;
const EACH: usize = 16;
/// One for instructions of programs (`struct user_hwdebug_state`; Arm ARM, D24.3.2: all four bytes, EL0, enabled).
const ENABLED: u32 = 0xF << 5 | 0b10 << 1 | 1;
/// No processor has more.
const MOST: usize = 16;
/// Instructions from an exclusive load to its store at most.
const LONGEST: u64 = 64;

/// A single step: the processor does it.
#[derive(Debug, Clone, Copy)]
pub struct Step {
    /// If it ends at breakpoints: what was in their place.
    replaced: Option<Breakpoints>,
}

impl Step {
    /// The thread has stopped: takes back what the step has needed. Returns whether it has come to the end of the step.
    ///
    /// # Errors
    /// If the thread is gone.
    pub fn end(self, thread: Stopped) -> Result<bool> {
        if let Some(mut replaced) = self.replaced {
            replaced.write(thread)?;
        }
        match thread.siginfo() {
            Ok(info) => Ok(is_end(&info)),
            // No signal has stopped it.
            Err(error) if !is_gone(&error) => Ok(false),
            Err(error) => Err(error),
        }
    }
}

/// Whether this is the signal of a step's end. At the end of a system call, the kernel makes one as from process 0.
fn is_end(info: &libc::siginfo_t) -> bool {
    info.si_signo == libc::SIGTRAP
        && match info.si_code {
            libc::TRAP_TRACE | libc::TRAP_HWBKPT => true,
            libc::SI_USER => sender(info) == 0,
            _ => false,
        }
}

/// The first of a thread's breakpoints, as far as they are written. The kernel reserves one of the processor's
/// breakpoints for each that is written, whatever is written.
#[derive(Debug, Clone, Copy)]
struct Breakpoints {
    bytes: [u8; HEAD + MOST * EACH],
    /// How many bytes are written.
    len: usize,
}

impl Breakpoints {
    /// All that the thread has.
    fn of(thread: Stopped) -> Result<Self> {
        let mut bytes = [0; HEAD + MOST * EACH];
        let kind = BREAKPOINTS;
        register_set(libc::PTRACE_GETREGSET, thread.tid(), kind, &mut bytes)?;
        let count = usize::from(bytes[0]).min(MOST);
        let len = HEAD + count * EACH;
        Ok(Self { bytes, len })
    }

    fn write(&mut self, thread: Stopped) -> Result<()> {
        let bytes = &mut self.bytes[..self.len];
        register_set(libc::PTRACE_SETREGSET, thread.tid(), BREAKPOINTS, bytes).map(drop)
    }

    /// With some more, in the first slots that are free, and what was there. `None`: too few are free.
    fn with(mut self, places: &[u64]) -> Option<(Self, Self)> {
        let mut before = self;
        let slots = self.bytes[HEAD..self.len].chunks_exact_mut(EACH);
        let slots = slots.zip((HEAD + EACH..).step_by(EACH));
        let mut free = slots.filter(|(slot, _)| slot[8] & 1 == 0);
        let mut len = HEAD;
        for place in places {
            let (slot, end) = free.next()?;
            slot[..8].copy_from_slice(&place.to_le_bytes());
            slot[8..12].copy_from_slice(&ENABLED.to_le_bytes());
            len = end;
        }
        (self.len, before.len) = (len, len);
        Some((self, before))
    }
}

/// Sets breakpoints in a thread, which only this one meets, beside those that it has. Returns what was in their place.
fn set_breakpoints(thread: Stopped, places: &[u64]) -> Result<Breakpoints> {
    let all = Breakpoints::of(thread)?;
    let Some((mut set, mut replaced)) = all.with(places) else {
        let count = (all.len - HEAD) / EACH;
        bail!(
            "the processor has {count} breakpoints, and thread {thread} needs {} more",
            places.len()
        );
    };
    if let Err(e) = set.write(thread) {
        // The kernel sets one after the other, so some may be there.
        let _ = replaced.write(thread);
        return Err(e);
    }
    Ok(replaced)
}

/// Where control goes on from the exclusive load at the start of `code`: after its store, and to what lies outside of
/// both. `None`: no store follows that depends on it.
fn exits(code: &[u8], from: u64) -> Option<Vec<u64>> {
    let insns = code.chunks_exact(LEN as usize).zip(0u64..);
    let insns = insns.map(|(bytes, index)| Insn::new(bytes, from + index * LEN));
    let mut places = Vec::new();
    for insn in insns {
        match insn.kind {
            Kind::StoreExclusive => {
                let within = from..insn.end();
                places.retain(|place| !within.contains(place));
                places.push(insn.end());
                places.sort_unstable();
                places.dedup();
                return Some(places);
            }
            Kind::LoadExclusive if insn.addr != from => return None,
            Kind::Return | Kind::JumpRegister | Kind::CallRegister | Kind::SystemCall => {
                return None;
            }
            Kind::Branch
            | Kind::BranchLink
            | Kind::Conditional
            | Kind::CompareZero
            | Kind::TestBit => places.extend(insn.target()),
            _ => {}
        }
    }
    None
}

impl Stopped {
    /// Has it execute one instruction, or all from an exclusive load to its store; it stops by SIGTRAP.
    /// (`_scratch_page` and `_slot` are for others.)
    ///
    /// # Errors
    /// If the thread is gone, or the processor has too few breakpoints.
    pub fn step(self, _scratch_page: u64, _slot: u64) -> Result<Step> {
        let memory = self.memory()?;
        let pc = self.regs()?.pc();
        // Where nothing can be read, the step faults.
        let next = insn(&memory, pc).ok();
        if next.is_some_and(|insn| insn.kind == Kind::LoadExclusive) {
            let mut code = vec![0; (LONGEST * LEN) as usize];
            // There may be less on this page, and nothing after it.
            let read = self.load(TargetAddr(pc), &mut code);
            if let Some(places) = exits(&code[..read], pc) {
                let mut replaced = set_breakpoints(self, &places)?;
                if let Err(e) = request(libc::PTRACE_CONT, self.tid(), 0, 0) {
                    let _ = replaced.write(self);
                    return Err(e);
                }
                return Ok(Step {
                    replaced: Some(replaced),
                });
            }
        }
        request(libc::PTRACE_SINGLESTEP, self.tid(), 0, 0)?;
        Ok(Step { replaced: None })
    }
}

/// Has a stopped thread execute one instruction while its signals wait, except those that a step or a fault may be: if
/// they were blocked, these would take the action for them away.
///
/// # Errors
/// If the thread is gone, or the instruction faults.
pub fn step_alone(thread: Stopped) -> Result<()> {
    let own = OWN.iter().fold(0, |all, &signal| all | bit(signal));
    match steps_with(thread, !own, |_| true)? {
        None => Ok(()),
        Some(signal) => bail!("a step of thread {thread} ended with signal {signal}"),
    }
}

/// Has a stopped thread execute instructions while its signals wait, until `is_done` says so of its registers. If one
/// of the instructions faults, returns the signal, which the thread does not get. The thread may then have no action
/// for SIGTRAP, or SIGSEGV, if it had one.
///
/// # Errors
/// If the thread is gone.
pub fn steps_alone(thread: Stopped, is_done: impl FnMut(&Regs) -> bool) -> Result<Option<i32>> {
    // If these were blocked, a fault would take the action for them away.
    const FAULTS: [i32; 3] = [libc::SIGBUS, libc::SIGFPE, libc::SIGILL];
    let faults = FAULTS.iter().fold(0, |all, signal| all | 1 << (signal - 1));
    steps_with(thread, !faults, is_done)
}

/// Steps while the signals of this mask wait. Returns the signal of one that does not end as a step does.
fn steps_with(
    thread: Stopped,
    waiting: u64,
    mut is_done: impl FnMut(&Regs) -> bool,
) -> Result<Option<i32>> {
    let mask = thread.signal_mask()?;
    thread.set_signal_mask(waiting)?;
    let mut was_asked = false;
    let end = steps_until(thread, &mut is_done, &mut was_asked);
    thread.set_signal_mask(mask)?;
    if was_asked {
        thread.interrupt()?;
    }
    end
}

/// Steps until `is_done` says so. Returns the signal of a step that does not end as one does. `was_asked` is set if the
/// thread was asked to stop meanwhile.
fn steps_until(
    thread: Stopped,
    is_done: &mut impl FnMut(&Regs) -> bool,
    was_asked: &mut bool,
) -> Result<Option<i32>> {
    loop {
        let step = thread.step(0, 0)?;
        let report = Report::of(thread.tid(), true)?.context("a step")?;
        if report.stopped().is_none() {
            bail!(
                "a step of thread {thread} ended with status {:#x}",
                report.status()
            );
        }
        let is_at_end = step.end(thread)?;
        if report.is_asked_for() {
            *was_asked = true;
        } else if !is_at_end {
            return Ok(Some(report.signal()));
        } else if is_done(&thread.regs()?) {
            return Ok(None);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exits_of(words: &[u32]) -> Option<Vec<u64>> {
        let code: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        exits(&code, 0x1000)
    }

    const LOAD: u32 = 0xC85F_7C20; // ldxr x0, [x1]
    const STORE: u32 = 0xC803_7C24; // stxr w3, x4, [x1]
    const RETRY: u32 = 0x35FF_FFC3; // cbnz w3, .-8

    #[test]
    fn breakpoints_take_free_slots_and_leave_the_others_alone() {
        let mut bytes = [0; HEAD + MOST * EACH];
        bytes[0] = 4;
        bytes[HEAD + EACH..][..12].copy_from_slice(&[9, 0, 0, 0, 0, 0, 0, 0, 0xE5, 1, 0, 0]);
        let len = HEAD + 4 * EACH;
        let all = Breakpoints { bytes, len };
        let (set, before) = all.with(&[0x1000, 0x2000]).expect("free ones");
        let slot = |of: &Breakpoints, index: usize| {
            let slot = &of.bytes[HEAD + index * EACH..of.len][..EACH];
            (u16::from_le_bytes([slot[0], slot[1]]), slot[8])
        };
        let found = [0, 1, 2].map(|index| slot(&set, index));
        assert_eq!(found, [(0x1000, 0xE5), (9, 0xE5), (0x2000, 0xE5)]);
        let found = [0, 1, 2].map(|index| slot(&before, index));
        assert_eq!(found, [(0, 0), (9, 0xE5), (0, 0)]);
        assert_eq!((set.len, before.len), (HEAD + 3 * EACH, HEAD + 3 * EACH));
        assert!(all.with(&[4, 8, 12, 16]).is_none());
    }

    #[test]
    fn a_sequence_ends_after_its_store_and_where_it_is_left() {
        assert_eq!(exits_of(&[LOAD, STORE, RETRY]), Some(vec![0x1008]));
        // cmp x0, x2; b.ne .+12
        let swap = [LOAD, 0xEB02_001F, 0x5400_0061, STORE, RETRY];
        assert_eq!(exits_of(&swap), Some(vec![0x1010, 0x1014]));
        // A branch inside of it, and one to the place after it: b.ne .+8 twice
        let inside = [LOAD, 0x5400_0041, 0x5400_0041, STORE];
        assert_eq!(exits_of(&inside), Some(vec![0x1010]));
    }

    #[test]
    fn a_load_without_a_store_is_an_instruction_as_others() {
        assert_eq!(exits_of(&[LOAD, 0xD503_205F]), None); // wfe
        assert_eq!(exits_of(&[LOAD, 0xD65F_03C0, STORE]), None); // ret
        assert_eq!(exits_of(&[LOAD, LOAD, STORE]), None);
    }
}
