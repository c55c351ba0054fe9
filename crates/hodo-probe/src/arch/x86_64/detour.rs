//! Detours: a jump takes five bytes. The bytes of its displacement at which instructions begin are breakpoints
//! (`trampolines.rs`).

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::sync::atomic::Ordering;

use hodo_codegen::statemap::StateMap;
use hodo_isa::native::relocate::{relocate_apart, relocated_len};
use hodo_isa::native::scan::Flow;
use hodo_isa::native::steps::{Steps, Transaction};
use hodo_isa::x86_64::asm::{Code, fill, jump};

use super::trampolines::Trampolines;
use super::{call_handlers, counts, near, returns};
use crate::call_sites;
use crate::islands;
use crate::memory::{Change, Memory};
use crate::returns::unwind_tables;
use crate::site::{Detour, INSIDE, Site, SiteCode, Variant, original_code};

const JUMP: u64 = 5;

/// Calls of handlers, at `start`; the pointers to heads are at `words`.
fn handlers(
    site: &Site,
    variant: Variant,
    start: u64,
    common: u64,
    words: u64,
) -> Option<(Vec<u8>, u64, [u64; 2])> {
    near(start, &[words, common])?;
    let mut bytes = Vec::new();
    if variant != Variant::ReturnsOnly {
        call_handlers(&mut Code::new(&mut bytes, start), words, common);
    }
    let after = start + bytes.len() as u64;
    let mut frames = [0; 2];
    if matches!(variant, Variant::Returning | Variant::ReturnsOnly) {
        let missed = site.unreturned.as_ptr() as u64;
        let places = returns::Places {
            head: words + 8,
            common,
            missed,
        };
        let emitted = returns::emit(after, &places)?;
        bytes.extend(emitted.code);
        frames = emitted.frames;
    }
    Some((bytes, after, frames))
}

/// What comes before the moved instructions: a count, or calls of handlers.
struct Prefix<'s> {
    site: &'s Site,
    variant: Variant,
    /// A count must keep the flags.
    keep_flags: bool,
}

impl<'s> Prefix<'s> {
    fn new(memory: &Memory, site: &'s Site, variant: Variant) -> Self {
        let keep_flags = variant == Variant::Counting && {
            let function = original_code(memory, site.function.clone());
            counts::keeps_flags(&function, &site.function, site.addr())
        };
        Self {
            site,
            variant,
            keep_flags,
        }
    }

    /// Its bytes at `start`, its end, and the frames of its return handlers.
    fn emit(
        &self,
        start: u64,
        common: u64,
        words: u64,
        counter: u64,
    ) -> Option<(Vec<u8>, u64, [u64; 2])> {
        if self.variant != Variant::Counting {
            return handlers(self.site, self.variant, start, common, words);
        }
        let bytes = counts::emit(start, counter, self.keep_flags)?;
        let end = start + bytes.len() as u64;
        Some((bytes, end, [0; 2]))
    }
}

/// Makes a detour.
pub(crate) fn make(
    memory: &Memory,
    spots: &mut Trampolines,
    site: &'static Site,
    variant: Variant,
    changes: &mut Vec<Change>,
) -> Option<&'static Detour> {
    let returning = matches!(variant, Variant::Returning | Variant::ReturnsOnly);
    let addr = site.addr();
    // A breakpoint may lead to a detour with return handlers, too.
    let without_jump = || {
        (returning && site.boosted().is_some()).then(|| Window {
            len: usize::from(site.len),
            inside: Vec::new(),
            call: None,
            jump: false,
        })
    };
    let window = window(memory, site).or_else(without_jump)?;
    let code = &site.original[..window.len];
    let prefix = Prefix::new(memory, site, variant);
    let (before, ..) = prefix.emit(addr, addr, addr, addr)?;
    let size = before.len() + relocated_len(code, addr).ok()? + JUMP as usize + 24;
    let room = islands::room(memory, addr, size as u64, super::REACH).ok()?;
    let start = room.at;
    // A branch back to the site is a hit, too: it leads to the start.
    let moved = relocate_apart(code, addr, start, &[(0, before.len())]).ok()?;
    let back = if moved.falls_through { JUMP } else { 0 };
    let words = (start + moved.bytes.len() as u64 + back).next_multiple_of(8);
    let mut counter = 0;
    if variant == Variant::Counting {
        let at = core::ptr::from_ref(room.counter()?).cast_mut();
        site.counter.store(at, Ordering::Release);
        counter = at as u64;
    }
    let (mut bytes, after, frames) = prefix.emit(start, room.common, words, counter)?;
    bytes.extend_from_slice(&moved.bytes[before.len()..]);
    if moved.falls_through {
        let end = start + bytes.len() as u64;
        bytes.extend(jump(end, addr + window.len as u64).ok()?);
    }
    fill(&mut bytes, (words - start) as usize);
    for head in [&site.head, &site.returns] {
        bytes.extend((core::ptr::from_ref(head) as u64).to_le_bytes());
    }
    let (target, spot) = match &window.inside[..] {
        [] => (start, None),
        inside => {
            let spot = spots.find(addr, inside)?;
            (spot, Some(jump(spot, start).ok()?))
        }
    };
    let lead = jump(addr, target).ok()?;
    let places = moved.map.iter().map(|piece| {
        let new = start + piece.new.max(before.len()) as u64;
        (addr + piece.old as u64, new)
    });
    let map = StateMap::of_copies(places);
    if window.jump {
        lead_on_from_inside(addr, &map);
    }
    let piece = SiteCode {
        site,
        range: start..start + bytes.len() as u64,
        map,
        calls: window.call,
        guard: None,
        trap: None,
    };
    room.reserve(bytes.len(), piece);
    changes.push((start, bytes));
    if let Some(jump) = spot {
        changes.push((target, jump.to_vec()));
    }
    let frames = returning.then(|| &*Box::leak(unwind_tables(frames).into_boxed_slice()));
    let jump = window.jump.then(|| lead.to_vec());
    Some(Box::leak(Box::new(Detour {
        jump,
        inside: window.inside,
        after,
        frames,
    })))
}

/// Says where a thread goes on that was stopped inside the bytes that the jump overwrites.
fn lead_on_from_inside(addr: u64, map: &StateMap) {
    let jump = addr + 1..addr + JUMP;
    for (old, new) in map.copies().filter(|(old, _)| jump.contains(old)) {
        INSIDE.set(old, new);
    }
}

/// The instructions that a jump overwrites.
struct Window {
    len: usize,
    /// Offsets of those but the first that begin in the jump.
    inside: Vec<u8>,
    call: Option<u64>,
    /// It is large enough for a jump.
    jump: bool,
}

fn window(memory: &Memory, site: &Site) -> Option<Window> {
    let addr = site.addr();
    let end = addr + JUMP;
    let known = &site.original[..usize::from(site.known)];
    let mut window = Window {
        len: 0,
        inside: Vec::new(),
        call: None,
        jump: true,
    };
    let mut ended = false;
    for step in Steps::new(known, addr) {
        if step.addr >= end {
            break;
        }
        let padding = step.padding && step.addr >= site.function.end;
        // After a function only what fills the gap is overwritten; it has no code that the program executes.
        let good = step.movable
            && step.transaction == Transaction::None
            && window.call.is_none()
            && step.end() <= addr + known.len() as u64;
        if !good || step.addr >= site.function.end && !(padding && ended) {
            return None;
        }
        if step.addr > addr {
            window.inside.push((step.addr - addr) as u8);
        }
        window.len = (step.end() - addr) as usize;
        window.call = step.is_call().then_some(step.addr);
        ended |= step.flow.is_end();
    }
    let whole = window.len as u64 >= JUMP;
    let range = addr..addr + window.len as u64;
    (whole && !entered(memory, site) && !call_sites::is_reserved(range)).then_some(window)
}

/// Whether the function has a branch into the bytes of the jump: it would come to a breakpoint each time.
fn entered(memory: &Memory, site: &Site) -> bool {
    let inside = site.addr() + 1..site.addr() + JUMP;
    let code = original_code(memory, site.function.clone());
    Steps::new(&code, site.function.start).any(|step| match step.flow {
        Flow::Branch(to) | Flow::Jump(to) => inside.contains(&to),
        _ => false,
    })
}
