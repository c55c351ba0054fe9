//! Measures the cost of recording a call: see [`crate::costs`].

use std::arch::asm;
use std::ffi::c_void;

use hodo_patch::{Island, Recording};
use hodo_trace::format::{RECORD_SIZE, SHADOW_DISTANCE, WINDOW_SIZE, record, tcb};

use crate::costs::Costs;
use hodo_ptrace::arch::counter;

/// Calls that are measured together: few enough that most groups are not interrupted.
const CALLS: u64 = 256;
/// How often that is done.
const GROUPS: usize = 20;
const PAGE: u64 = 4096;
/// Bytes for code, and for the stack, which needs room for a signal handler's frame.
const SIZE: u64 = 64 << 10;
/// `arch_prctl(2)`.
const SET_GS: libc::c_int = 0x1001;
const GET_GS: libc::c_int = 0x1004;

/// Memory of our own, which is unmapped at the end.
struct Mapped {
    start: u64,
    len: u64,
}

impl Mapped {
    fn new(at: u64, len: u64) -> Option<Self> {
        let fixed = if at == 0 {
            0
        } else {
            libc::MAP_FIXED_NOREPLACE
        };
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | fixed;
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let hint = std::ptr::with_exposed_provenance_mut(at as usize);
        // SAFETY: this maps new memory, or nothing.
        let start = unsafe { libc::mmap(hint, len as usize, access, flags, -1, 0) };
        let start = (start != libc::MAP_FAILED).then(|| start.expose_provenance() as u64)?;
        let this = Self { start, len };
        // Old kernels take the address as a hint.
        (at == 0 || start == at).then_some(this)
    }

    fn pointer(&self, offset: u64) -> *mut c_void {
        assert!(offset < self.len);
        std::ptr::with_exposed_provenance_mut((self.start + offset) as usize)
    }

    fn write(&self, offset: u64, bytes: &[u8]) {
        assert!(offset + bytes.len() as u64 <= self.len);
        // SAFETY: the range is inside this mapping, which is writable and has no other user.
        unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.pointer(offset).cast(), bytes.len());
        }
    }

    /// Some words from an offset on.
    fn words(&self, offset: u64, count: u64) -> Vec<u64> {
        assert!(offset + count * 8 <= self.len);
        let at = |index: u64| self.pointer(offset + index * 8).cast::<u64>();
        // SAFETY: the word is inside this mapping, and aligned, because the mapping is.
        let read = |index| unsafe { at(index).read_volatile() };
        (0..count).map(read).collect()
    }

    fn make_executable(&self) -> Option<()> {
        let access = libc::PROT_READ | libc::PROT_EXEC;
        // SAFETY: no Rust object is in this memory.
        let done = unsafe { libc::mprotect(self.pointer(0), self.len as usize, access) };
        (done == 0).then_some(())
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: it was mapped by `new`, and nothing refers to it any more.
        unsafe { libc::munmap(self.pointer(0), self.len as usize) };
    }
}

/// While it lives, the segment leads to the control block.
struct Segment;

impl Segment {
    fn set(to: u64) -> Option<Self> {
        let mut now = 0u64;
        // SAFETY: the call writes one word.
        let got = unsafe { libc::syscall(libc::SYS_arch_prctl, GET_GS, &raw mut now) };
        // If it is in use, hodo is being recorded itself, or runs in an emulator.
        if got != 0 || now != 0 {
            return None;
        }
        // SAFETY: nothing in this thread uses the segment.
        let done = unsafe { libc::syscall(libc::SYS_arch_prctl, SET_GS, to) };
        (done == 0).then_some(Self)
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        // SAFETY: it was zero before.
        unsafe { libc::syscall(libc::SYS_arch_prctl, SET_GS, 0) };
    }
}

/// Calls a function this many times, on a stack of its own.
///
/// # Safety
/// The function must be one of an island's stubs, or return at once, and everything that it needs must be there. The
/// stack must be writable and otherwise unused.
unsafe fn call(function: u64, times: u64, stack: u64) {
    // SAFETY: the stack pointer is restored; stubs preserve all registers, and all that functions may change is listed.
    unsafe {
        asm!(
            "mov r12, rsp",
            "mov rsp, r13",
            ".p2align 6",
            "2:",
            "call r14",
            "dec r15",
            "jnz 2b",
            "mov rsp, r12",
            in("r13") stack,
            in("r14") function,
            inout("r15") times => _,
            out("r12") _,
            clobber_abi("C"),
        );
    }
}

/// The memory of a recorded thread.
struct World {
    block: Mapped,
    records: Mapped,
    stack: Mapped,
    _shadow: Mapped,
    _segment: Segment,
}

impl World {
    fn new() -> Option<Self> {
        let block = Mapped::new(0, PAGE)?;
        let records = Mapped::new(0, SIZE)?;
        let stack = Mapped::new(0, SIZE)?;
        let top = stack.start + SIZE;
        let shadow = top.checked_sub(SHADOW_DISTANCE + PAGE)? & !(PAGE - 1);
        let shadow = Mapped::new(shadow, 2 * PAGE)?;
        let word = |at: u64, value: u64| block.write(at, &value.to_ne_bytes());
        word(tcb::WINDOW, top - WINDOW_SIZE / 2);
        word(tcb::LIMIT, records.start + SIZE);
        word(tcb::BASE, records.start);
        // The thread is within a filter function.
        word(tcb::INSIDE, 1);
        let segment = Segment::set(block.start)?;
        Some(Self {
            block,
            records,
            stack,
            _shadow: shadow,
            _segment: segment,
        })
    }

    /// The records of calls, `each` per call: their times, and whether they are exits. `None` if there are others among
    /// them.
    fn record(&self, function: u64, each: u64) -> Option<Vec<(u64, bool)>> {
        // The first page stands for the file's header: everything is switched on.
        let first = self.records.start + PAGE;
        let epoch = ((counter() >> 32) as u32).to_ne_bytes();
        self.records.write(0, &[1; PAGE as usize]);
        self.block.write(tcb::CURSOR, &first.to_ne_bytes());
        self.block.write(tcb::EPOCH, &epoch);
        // SAFETY: the function is a stub, and its control block, records, stack and shadow are those of this world.
        unsafe { call(function, CALLS, self.stack.start + SIZE) };
        let cursor = self.block.words(tcb::CURSOR, 1)[0];
        if cursor != first + CALLS * each * RECORD_SIZE {
            return None;
        }
        let words = self.records.words(PAGE, CALLS * each);
        let kind = |word: u64| (word >> 32 >> record::KIND_SHIFT) as u32 & 3;
        let told = words.iter().map(|&word| {
            let time = word & u64::from(u32::MAX);
            match kind(word) {
                record::ENTRY => Some((time, false)),
                record::EXIT => Some((time, true)),
                _ => None,
            }
        });
        told.collect()
    }
}

/// A good one of several measurements: not the best, which was lucky, but one that nothing has disturbed.
fn good<T: Copy>(mut groups: Vec<T>, size: impl Fn(&T) -> f64) -> Option<T> {
    groups.sort_by(|a, b| size(a).total_cmp(&size(b)));
    groups.get(groups.len() / 4).copied()
}

/// Measures the cost of calls that are recorded like this. `None`: it cannot be measured here.
pub fn measure(recording: Recording) -> Option<Costs> {
    if !recording.timed {
        return None;
    }
    let recording = Recording {
        // The costs while nothing is left out.
        shortest: recording.shortest.map(|_| 1),
        ..recording
    };
    let code = Mapped::new(0, SIZE)?;
    // Nothing unwinds through this island.
    let mut island = Island::bare(code.start, SIZE, 0);
    let whole = island.add_empty(true, recording).ok()?;
    let entry = island.add_empty(false, recording).ok()?;
    if island.code.len() as u64 > SIZE {
        return None;
    }
    code.write(0, &island.code);
    code.make_executable()?;
    let world = World::new()?;
    let stack = world.stack.start + SIZE;

    let mut bare = Vec::new();
    let (mut calls, mut entries) = (Vec::new(), Vec::new());
    for _ in 0..GROUPS {
        let began = counter();
        // SAFETY: the function is a return instruction.
        unsafe { call(island.ret(), CALLS * 4, stack) };
        bare.push((counter() - began) as f64 / (CALLS * 4) as f64);
        if let Some(records) = world.record(whole, 2) {
            calls.extend(of_calls(&records));
        }
        if let Some(records) = world.record(entry, 1) {
            let (first, last) = (records.first()?.0, records.last()?.0);
            entries.push(last.wrapping_sub(first) as f64 / (CALLS - 1) as f64);
        }
    }
    let bare = bare.into_iter().min_by(f64::total_cmp)?;
    let (inside, outside) = good(calls, |call| call.0 + call.1)?;
    let entry = good(entries, |&entry| entry)?;
    let costs = without(bare, (inside, outside), entry);
    // If the clock jumps, the results are useless.
    let all = [costs.inside, costs.outside, costs.entry];
    all.iter()
        .all(|cost| (0.0..1e5).contains(cost))
        .then_some(costs)
}

/// Subtracts the call itself and its return, which take `bare`. What the caller does happens while the clock is read,
/// so this must not be subtracted twice. Both halves of a call cost the same: in programs, any two records with almost
/// nothing in between are about equally far apart. If all of `bare` were subtracted from one half, functions that call
/// nothing would seem slower than they are, by about as much as many of them take.
fn without(bare: f64, (inside, outside): (f64, f64), entry: f64) -> Costs {
    let half = ((inside + outside - bare) / 2.0).max(0.0);
    Costs {
        inside: half,
        outside: half,
        entry: (entry - bare).max(0.0),
        closest: inside.min(outside),
    }
}

/// The mean time from entries to exits, and from exits to the next entries.
fn of_calls(records: &[(u64, bool)]) -> Option<(f64, f64)> {
    let mut sums = [0u64; 2];
    for pair in records.windows(2) {
        if pair[0].1 == pair[1].1 {
            return None;
        }
        sums[usize::from(pair[0].1)] += pair[1].0.checked_sub(pair[0].0)?;
    }
    let calls = (records.len() / 2) as f64;
    Some((sums[0] as f64 / calls, sums[1] as f64 / (calls - 1.0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_halves_of_a_call_cost_the_same() {
        let costs = without(2.0, (22.0, 23.0), 21.0);
        assert_eq!((costs.inside, costs.outside), (21.5, 21.5));
        assert_eq!((costs.entry, costs.closest), (19.0, 22.0));
        // A leaf and its caller in a loop, whose records are both as far apart as measured: neither seems to take
        // longer.
        let own = [22.5 - costs.inside, 22.5 - costs.outside];
        assert_eq!(own[0], own[1]);
        assert_eq!(own.iter().sum::<f64>(), 2.0);
    }

    #[test]
    fn costs_are_never_negative() {
        let costs = without(50.0, (22.0, 23.0), 21.0);
        assert_eq!((costs.inside, costs.outside, costs.entry), (0.0, 0.0, 0.0));
    }

    #[test]
    fn a_call_costs_something() {
        let recording = Recording {
            timed: true,
            ..Recording::default()
        };
        for recording in [
            recording,
            Recording {
                filtered: true,
                ..recording
            },
            Recording {
                depth: Some(8),
                switch: Some(1024),
                ..recording
            },
            Recording {
                check_frames: true,
                shortest: Some(1 << 20),
                ..recording
            },
        ] {
            let costs = measure(recording).expect("it can be measured");
            assert!(costs.inside > 0.0 && costs.outside > 0.0 && costs.entry > 0.0);
        }
        let untimed = Recording::default();
        assert!(measure(untimed).is_none());
    }
}
