//! What leads back into code from the stacks of stopped threads: signal frames, and return addresses of traced calls.

use std::ops::Range;

use anyhow::Result;
use hodo_trace::format::SHADOW_DISTANCE;

use crate::arch::{RETURNS_BELOW, SAVED, STUB_FRAME, STUB_LOWER, Saved};
use hodo_abi::Span;
use hodo_ptrace::TargetAddr;
use hodo_ptrace::arch::{frame, is_frame, size_of_frame, unsigned, untagged};
use hodo_ptrace::maps::Mapping;
use hodo_ptrace::{Memory, Stopped};

const PAGE: u64 = 4096;
/// How many bytes of one stack are searched at most.
const DEEPEST: u64 = 16 << 20;

/// Where a signal handler returns to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SignalFrame {
    /// Where the address is stored.
    pub at: u64,
    /// The address.
    pub pc: u64,
    /// The stack pointer there.
    pub sp: u64,
    /// The bytes of the frame.
    pub size: u64,
}

impl SignalFrame {
    /// The bytes of the stack that the kernel has used for it: no function returns through a word in them.
    pub fn extent(&self) -> Range<u64> {
        let start = self.at - frame::PC;
        // The handler may run on another stack than the code that it has interrupted.
        let end = start + self.size;
        let same = (end..end + PAGE).contains(&self.sp);
        start..if same { self.sp } else { end }
    }

    /// The general registers in it.
    pub fn registers(&self) -> Range<u64> {
        let start = self.at - frame::PC + frame::REGISTERS.0;
        start..start + frame::REGISTERS.1
    }
}

/// A return address that leads into a stub.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Return {
    /// How far it is below S, if that is known for the function of the stub. It may have been stored by another
    /// function that has jumped to this one.
    pub below: Option<u64>,
    /// The stub's function; 0: a library's.
    pub function: u64,
    /// The slot that holds the address of the library's function.
    pub slot: Option<u64>,
    /// The function that is called.
    pub called: Option<u64>,
}

/// How likely an address is the real return address of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fit {
    /// It does not follow a call, or it follows the call of a function with a stub of its own, which returns there.
    Not,
    /// It is the end of signal handlers in the kernel's code, which contains no call: it fits a function whose frame is
    /// known.
    Handler,
    /// It follows a call of another function, which may have jumped to this one.
    Hardly,
    /// It follows a call that can call anything.
    May,
    /// It follows a call of that function.
    Does,
}

/// Frames of stopped threads, as far as unwind tables show.
#[derive(Debug, Default)]
pub struct Walked {
    /// The address of each return address into a stub, the S of that frame, and what has to be there.
    pub returns: Vec<(u64, u64, u64)>,
    /// The memory of all these frames: there are no other frames in it, only leftovers.
    pub frames: Vec<Range<u64>>,
    /// Where these frames keep the addresses to which they return.
    pub kept: Vec<u64>,
}

impl Walked {
    /// Sorts the frames and joins those that overlap.
    fn merge(&mut self) {
        merge(&mut self.frames);
    }

    /// Adds what was found on the stack of another thread.
    pub fn append(&mut self, mut other: Self) {
        self.returns.append(&mut other.returns);
        self.frames.append(&mut other.frames);
        self.kept.append(&mut other.kept);
    }

    /// Returns whether a word is in one of these frames, and is not where this frame returns to: a leftover.
    pub fn leftovers(&self) -> impl Fn(u64) -> bool + use<> {
        let (mut frames, mut kept) = (self.frames.clone(), self.kept.clone());
        merge(&mut frames);
        kept.sort_unstable();
        move |at| covers(&frames, at) && kept.binary_search(&at).is_err()
    }

    fn covers(&self, at: u64) -> bool {
        covers(&self.frames, at)
    }
}

fn merge(frames: &mut Vec<Range<u64>>) {
    frames.sort_unstable_by_key(|frame| frame.start);
    frames.dedup_by(|next, frame| {
        let joins = next.start <= frame.end;
        if joins {
            frame.end = frame.end.max(next.end);
        }
        joins
    });
}

/// Whether an address is in one of these frames, which are merged.
fn covers(frames: &[Range<u64>], at: u64) -> bool {
    let after = frames.partition_point(|frame| frame.start <= at);
    (after.checked_sub(1)).is_some_and(|index| frames[index].contains(&at))
}

/// What is known about return addresses.
pub trait Returns {
    /// Whether traced functions return to this address, and what is known about it.
    fn is_return(&self, address: u64) -> Option<Return>;
    /// How likely an address is the real one.
    fn fits(&self, of: &Return, address: u64) -> Fit;
    /// What has to take the place of a stored word so that the call with this S returns to `to`: the function may have
    /// signed its return address. `None`: that is not known.
    fn signed(&self, of: &Return, word: u64, to: u64, s: u64) -> Option<u64>;
}

/// The result for all return addresses.
#[derive(Debug, Default)]
pub struct Restored {
    /// The addresses by which unwinders know the frames of stubs that they have passed.
    pub frames: Vec<u64>,
    /// The places of those for which no real address was found.
    pub lost: Vec<u64>,
    /// The places of those that were left over by a call that has ended.
    pub left: Vec<u64>,
}

/// The real return address of the frame with this S, if it is known.
pub fn shadow(memory: &Memory, s: u64) -> Option<u64> {
    let address = memory
        .read_u64(TargetAddr(s.checked_sub(SHADOW_DISTANCE)?))
        .ok()?;
    // The top bit marks open frames (`--check-frames`).
    Some(address & !(1 << 63)).filter(|&address| address != 0)
}

fn word(bytes: &[u8], at: usize) -> Option<u64> {
    let bytes = bytes.get(at..at + 8)?;
    Some(u64::from_le_bytes(bytes.try_into().ok()?))
}

/// The rest of a stack: from `sp` to the end of its mapping.
fn stack(memory: &Memory, maps: &[Mapping], sp: u64) -> Option<Vec<u8>> {
    let index = maps.partition_point(|m| m.end <= sp);
    let mapping = maps.get(index).filter(|m| m.start <= sp)?;
    let size = (mapping.end - sp).min(DEEPEST);
    let mut bytes = vec![0; usize::try_from(size).ok()?];
    memory.read(TargetAddr(sp), &mut bytes).ok()?;
    Some(bytes)
}

/// The frames of signal handlers on a stopped thread's stack. `holds`: whether an address is in our memory.
///
/// # Errors
/// If the thread is gone.
pub fn signal_frames(
    thread: Stopped,
    memory: &Memory,
    maps: &[Mapping],
    holds: &dyn Fn(u64) -> bool,
) -> Result<Vec<SignalFrame>> {
    let mut found = Vec::new();
    let regs = thread.regs()?;
    let mut todo = vec![regs.sp() & !7];
    let mut done: Vec<Span> = Vec::new();
    while let Some(sp) = todo.pop() {
        if done.iter().any(|stack| stack.contains(sp)) {
            continue;
        }
        let Some(bytes) = stack(memory, maps, sp) else {
            continue;
        };
        done.push(Span::at(sp, bytes.len() as u64));
        for at in (0..bytes.len()).step_by(8) {
            // A handler that is itself traced returns to its stub.
            let real = |back| {
                let traced = holds(back).then(|| shadow(memory, sp + at as u64));
                traced.flatten().unwrap_or(back)
            };
            if !is_frame(&bytes[at..], &real, memory, maps, &regs) {
                continue;
            }
            let word_at = |offset: u64| word(&bytes, at + offset as usize);
            if let (Some(saved), Some(pc)) = (word_at(frame::SP), word_at(frame::PC)) {
                found.push(SignalFrame {
                    at: sp + at as u64 + frame::PC,
                    pc,
                    sp: saved,
                    size: size_of_frame(&bytes[at..], sp + at as u64),
                });
                todo.push(saved & !7);
            }
        }
    }
    Ok(found)
}

/// Some words from the top of a stack, without signatures.
pub fn top_words(memory: &Memory, maps: &[Mapping], sp: u64, most: usize) -> Vec<u64> {
    let bytes = stack(memory, maps, sp & !7).unwrap_or_default();
    (0..bytes.len().min(most))
        .step_by(8)
        .filter_map(|at| word(&bytes, at).map(unsigned))
        .collect()
}

/// Restores the real return addresses of all open traced calls in their frames: first those that were walked, then
/// those in other stacks. `registers`: what the kernel has saved on stacks. Returns where these frames are.
///
/// # Errors
/// If the process's memory cannot be read.
pub fn restore_returns(
    pid: i32,
    memory: &Memory,
    maps: &[Mapping],
    registers: &[Range<u64>],
    returns: &dyn Returns,
    mut walked: Walked,
) -> Result<Restored> {
    use std::os::unix::fs::FileExt;
    const STEP: u64 = 1 << 15;
    let pagemap = std::fs::File::open(format!("/proc/{pid}/pagemap"))?;
    let mut restored = Restored::default();
    for &(at, s, address) in &walked.returns {
        memory.write(TargetAddr(at), &address.to_le_bytes())?;
        restored.frames.push(s - STUB_FRAME);
    }
    walked.frames.extend_from_slice(registers);
    walked.merge();
    let stacks = maps
        .iter()
        .filter(|m| m.writable && m.start > SHADOW_DISTANCE + PAGE);
    for mapping in stacks {
        let first = (mapping.start - SHADOW_DISTANCE) / PAGE;
        let last = (mapping.end - SHADOW_DISTANCE).div_ceil(PAGE);
        let mut page = first;
        while page < last {
            let pages = (last - page).min(STEP);
            let mut entries = vec![0; (pages * 8) as usize];
            pagemap.read_exact_at(&mut entries, page * 8)?;
            for index in 0..pages as usize {
                // The page is present, or swapped out.
                if word(&entries, index * 8).is_none_or(|entry| entry >> 62 == 0) {
                    continue;
                }
                let shadow = (page + index as u64) * PAGE;
                restore_page(memory, mapping, shadow, (returns, &walked), &mut restored)?;
            }
            page += pages;
        }
    }
    Ok(restored)
}

fn restore_page(
    memory: &Memory,
    mapping: &Mapping,
    shadow: u64,
    (returns, walked): (&dyn Returns, &Walked),
    restored: &mut Restored,
) -> Result<()> {
    let from = (shadow + SHADOW_DISTANCE - RETURNS_BELOW).max(mapping.start);
    let to = (shadow + PAGE + SHADOW_DISTANCE).min(mapping.end);
    if from >= to {
        return Ok(());
    }
    let mut now = vec![0; (to - from) as usize];
    if memory.read(TargetAddr(from), &mut now).is_err() {
        return Ok(());
    }
    for (at, present) in (from..).step_by(8).zip(now.chunks_exact(8)) {
        let present = u64::from_le_bytes(present.try_into().unwrap_or_default());
        let of = returns.is_return(unsigned(present));
        let Some(of) = of.filter(|_| !walked.covers(at)) else {
            continue;
        };
        let shadow = |s| self::shadow(memory, s);
        let found = match of.below {
            // If the address of the word determines S, anything else is a copy of a return address.
            Some(distance) if RETURNS_BELOW == 0 => {
                let s = at + distance;
                shadow(s).map_or(Found::Left, |address| Found::Frame(s, address))
            }
            _ => likeliest((&of, at), RETURNS_BELOW, &shadow, returns),
        };
        match found {
            Found::Frame(s, address) => match returns.signed(&of, present, address, s) {
                Some(word) => {
                    memory.write(TargetAddr(at), &word.to_le_bytes())?;
                    restored.frames.push(s - STUB_FRAME);
                }
                None => restored.lost.push(at),
            },
            // The stub knows the way back as long as it exists.
            Found::Unknown => restored.lost.push(at),
            // A copy, which may be below the stack pointer and in use.
            Found::Left if RETURNS_BELOW == 0 => {}
            Found::Left => restored.left.push(at),
        }
    }
    Ok(())
}

/// The meaning of a stack word that leads into a stub.
#[derive(Debug, PartialEq, Eq)]
enum Found {
    /// The return address of the frame with this S, and the real one.
    Frame(u64, u64),
    /// Perhaps a return address.
    Unknown,
    /// Not one that anybody returns to: a leftover of a call that has ended.
    Left,
}

/// The meaning of the word at `at`. Above it, there may be several shadows: that of this call, and others of ended
/// calls that were made deeper in the stack. The shadow of an open call is complete. `farthest`: how far above `at` S
/// can be. `shadow`: the real return address of the frame with this S.
fn likeliest(
    (of, at): (&Return, u64),
    farthest: u64,
    shadow: &dyn Fn(u64) -> Option<u64>,
    returns: &dyn Returns,
) -> Found {
    let with_fit =
        |s| shadow(s).map(|address| (returns.fits(of, address), Found::Frame(s, address)));
    let told = of.below.and_then(|distance| with_fit(at + distance));
    let mut unlikely = None;
    match told {
        Some((Fit::Handler | Fit::May | Fit::Does, found)) => return found,
        Some((Fit::Hardly, found)) => unlikely = Some(found),
        Some((Fit::Not, _)) | None => {}
    }
    // S is a multiple of 16.
    let all = ((at + 8).next_multiple_of(16)..=at + farthest).step_by(16);
    let mut all: Vec<_> = all.filter_map(with_fit).collect();
    let is_unknown = all.iter().any(|(fit, _)| *fit == Fit::Hardly);
    let mut nearest = |wanted| {
        let index = all.iter().position(|(fit, _)| *fit == wanted)?;
        Some(all.swap_remove(index).1)
    };
    nearest(Fit::Does)
        .or(unlikely)
        .or_else(|| nearest(Fit::May))
        .unwrap_or(if is_unknown {
            Found::Unknown
        } else {
            Found::Left
        })
}

/// The unwinders of gcc record the handler of an exception in flight by the address of the frame below it (`private_2`
/// of `_Unwind_Exception`). If that frame belonged to a stub (one of `stubs`), its address has changed by `STUB_LOWER`:
/// corrects it. `pointers`: where exceptions may be.
///
/// # Errors
/// If the process's memory cannot be written.
pub fn correct_exceptions(
    memory: &Memory,
    maps: &[Mapping],
    pointers: impl Iterator<Item = u64>,
    stubs: &[u64],
) -> Result<()> {
    let mut done = Vec::new();
    for at in pointers.map(untagged).filter(|at| at % 16 == 0) {
        let index = maps.partition_point(|m| m.end <= at);
        if !maps.get(index).is_some_and(|m| m.start <= at && m.writable) || done.contains(&at) {
            continue;
        }
        // exception_class, exception_cleanup, private_1, private_2
        let mut header = [0; 32];
        if memory.read(TargetAddr(at), &mut header).is_err() {
            continue;
        }
        let (class, stop, frame) = (word(&header, 0), word(&header, 16), word(&header, 24));
        if class != Some(0)
            && stop == Some(0)
            && let Some(frame) = frame.filter(|frame| stubs.contains(frame))
        {
            memory.write(TargetAddr(at + 24), &(frame + STUB_LOWER).to_le_bytes())?;
            done.push(at);
        }
    }
    Ok(())
}

/// Restores the real return addresses in contexts that `getcontext` and `swapcontext` have saved, wherever these are.
/// If a traced function has jumped to one of these two, that is its own return address. `islands`: where stubs are.
///
/// # Errors
/// If the process's memory cannot be written.
pub fn restore_contexts(
    pid: i32,
    memory: &Memory,
    maps: &[Mapping],
    islands: [Span; 2],
    returns: &dyn Returns,
) -> Result<()> {
    // This is asked for each word of the process.
    let holds = |at: u64| {
        let [first, second] = islands;
        first.contains(at) | second.contains(at)
    };
    use std::os::unix::fs::FileExt;
    const STEP: u64 = 256;
    let pagemap = std::fs::File::open(format!("/proc/{pid}/pagemap"))?;
    let longest = SAVED.iter().map(Saved::len).fold(0, usize::max) as u64 * 8;
    let mut buffer = vec![0; (STEP * PAGE + longest) as usize];
    for mapping in maps.iter().filter(|m| m.writable) {
        let mut start = mapping.start;
        while start < mapping.end {
            let size = (mapping.end - start).min(STEP * PAGE);
            let mut entries = vec![0; (size / PAGE * 8) as usize];
            pagemap.read_exact_at(&mut entries, start / PAGE * 8)?;
            let is_used = |entry: &[u8]| entry[7] >> 6 != 0;
            // The last context may extend beyond the buffer's end.
            let bytes = &mut buffer[..(size + longest).min(mapping.end - start) as usize];
            if entries.chunks_exact(8).any(is_used) && memory.read(TargetAddr(start), bytes).is_ok()
            {
                let word = |index: usize| word(bytes, index * 8).unwrap_or_default();
                let places =
                    (0..size as usize / 8).flat_map(|at| SAVED.iter().map(move |of| (at, of)));
                for (at, saved) in places {
                    let back = word(at + saved.back[0]);
                    if !holds(back) || at + saved.len() > bytes.len() / 8 {
                        continue;
                    }
                    let is_other =
                        |(one, other): (usize, usize)| word(at + one) != word(at + other);
                    if saved.equal.is_some_and(is_other) {
                        continue;
                    }
                    let real = returns.is_return(back).and_then(|_| {
                        shadow(memory, word(at + saved.sp).wrapping_sub(saved.above))
                    });
                    let Some(real) = real else {
                        continue;
                    };
                    for &back in saved.back {
                        let at = start + (at + back) as u64 * 8;
                        memory.write(TargetAddr(at), &real.to_le_bytes())?;
                    }
                }
            }
            start += size;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Addresses from 0x100 on fit better the higher they are.
    struct ByAddress;

    impl Returns for ByAddress {
        fn is_return(&self, _address: u64) -> Option<Return> {
            None
        }

        fn signed(&self, _of: &Return, _word: u64, to: u64, _s: u64) -> Option<u64> {
            Some(to)
        }

        fn fits(&self, _of: &Return, address: u64) -> Fit {
            match address >> 8 {
                1 => Fit::Not,
                5 => Fit::Handler,
                2 => Fit::Hardly,
                3 => Fit::May,
                _ => Fit::Does,
            }
        }
    }

    fn found(below: Option<u64>, shadows: &[(u64, u64)]) -> Found {
        let of = Return {
            below,
            function: 0x5000,
            slot: None,
            called: None,
        };
        let shadow = |s| {
            shadows
                .iter()
                .find(|(at, _)| *at == s)
                .map(|&(_, address)| address)
        };
        likeliest((&of, 0x1008), 1024, &shadow, &ByAddress)
    }

    #[test]
    fn words_in_frames_are_leftovers_except_where_these_return_to() {
        // Two frames that keep their return addresses at the top, one that keeps it at the bottom, one in a register.
        let walked = Walked {
            returns: Vec::new(),
            frames: vec![0x140..0x180, 0x100..0x140, 0x200..0x240, 0xC0..0x100],
            kept: vec![0x178, 0x138, 0x208],
        };
        let is_leftover = walked.leftovers();
        let used: Vec<u64> = (0xB0..0x250)
            .step_by(8)
            .filter(|&at| !is_leftover(at))
            .collect();
        let outside = (0x180..0x200).step_by(8);
        let mut wanted = vec![0xB0, 0xB8, 0x138, 0x178];
        wanted.extend(outside.chain([0x208, 0x240, 0x248]));
        assert_eq!(used, wanted);
    }

    #[test]
    fn shadows_of_calls_that_have_ended_do_not_mislead() {
        let (near, middle, far) = (0x1010, 0x1030, 0x1100);
        // The nearest one follows a call of something else.
        assert_eq!(
            found(None, &[(near, 0x200), (far, 0x400)]),
            Found::Frame(far, 0x400)
        );
        assert_eq!(
            found(None, &[(near, 0x100), (middle, 0x300), (far, 0x200)]),
            Found::Frame(middle, 0x300)
        );
        // Unwind tables take precedence, unless their answer is impossible, or another address follows a call of the
        // function itself.
        assert_eq!(
            found(Some(8), &[(near, 0x300), (far, 0x400)]),
            Found::Frame(near, 0x300)
        );
        assert_eq!(
            found(Some(8), &[(near, 0x200), (far, 0x300)]),
            Found::Frame(near, 0x200)
        );
        assert_eq!(
            found(Some(8), &[(near, 0x200), (far, 0x400)]),
            Found::Frame(far, 0x400)
        );
        assert_eq!(
            found(Some(8), &[(near, 0x100), (far, 0x300)]),
            Found::Frame(far, 0x300)
        );
        // The end of a handler, which other handlers also leave behind.
        assert_eq!(
            found(Some(8), &[(near, 0x500), (far, 0x400)]),
            Found::Frame(near, 0x500)
        );
        assert_eq!(found(Some(8), &[(far, 0x500)]), Found::Left);
        // If nothing is known, nothing is written.
        assert_eq!(found(None, &[(near, 0x200)]), Found::Unknown);
        assert_eq!(
            found(Some(8), &[(near, 0x100), (middle, 0x100)]),
            Found::Left
        );
        assert_eq!(found(None, &[]), Found::Left);
    }
}
