//! Detours: the jump to them is `jal`, of four bytes and 1 MiB. If an instruction begins at its second half, that half
//! is a trap (`trampolines.rs`).
//!
//! There are none further away. A jump to there is of two instructions, `auipc` and `jalr`, and a thread may stop
//! between these, for as long as it likes, or go back there from a handler of a signal. Nobody in the process sees
//! that: such a jump could never be taken away, and none could be changed. What is too far from free memory keeps its
//! breakpoints.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::sync::atomic::Ordering;
use hodo_isa::riscv64::asm::ops::Insns as _;

use hodo_codegen::statemap::StateMap;
use hodo_isa::effects::{Flow, How};
use hodo_isa::native::asm::{Code, Reach};
use hodo_isa::native::regs::{RA, SP, T0, ZERO};
use hodo_isa::native::relocate::{Moved, Options, relocate_apart, relocated_len};
use hodo_isa::native::steps::Step;

use super::code::Function;
use super::common::FRAME;
use super::trampolines::{self, Trampolines, near_jump};
use super::{NEAR, counts, returns};
use crate::call_sites;
use crate::islands;
use crate::memory::{Change, Memory};
use crate::returns::unwind_tables;
use crate::shadow;
use crate::site::{Detour, INSIDE, Site, SiteCode, Variant};

/// Bytes of the jump.
const JUMP: u64 = 4;

/// What comes before the moved instructions.
struct Prefix {
    bytes: Vec<u8>,
    /// Where one goes on after the handlers of the entry.
    after: u64,
    frames: [u64; 2],
    guard: Option<(u64, u64)>,
}

/// The code before the moved instructions, at `start`; the words that it refers to are at `words`: pointers to the two
/// heads, then those of the return.
fn prefix(variant: Variant, start: u64, common: u64, words: u64) -> Option<Prefix> {
    let frame = FRAME as i64;
    let mut bytes = Vec::new();
    let mut code = Code::new(&mut bytes, start);
    if variant != Variant::ReturnsOnly {
        code.addi(SP, SP, -frame);
        code.sd(RA, 8, SP);
        code.sd(T0, 40, SP);
        code.load_from(T0, words).ok()?;
        code.jump_and_link(common, Reach::Jump, ZERO, RA).ok()?;
        // `Context::switched` goes on after these two.
        code.ld(RA, 8, SP);
        code.addi(SP, SP, frame);
    }
    let after = code.here();
    let (mut frames, mut guard) = ([0; 2], None);
    if is_returning(variant) {
        let places = returns::Places {
            head: words + 8,
            words: words + 16,
            common,
        };
        let emitted = returns::emit(after, &places)?;
        bytes.extend(emitted.code);
        frames = emitted.frames;
        guard = Some(emitted.guard);
    }
    Some(Prefix {
        bytes,
        after,
        frames,
        guard,
    })
}

/// A count at `start`. `unused`: registers that may be overwritten.
fn counting(start: u64, counter: u64, unused: u32) -> Option<Prefix> {
    let bytes = counts::emit(start, counter, unused)?;
    let after = start + bytes.len() as u64;
    Some(Prefix {
        bytes,
        after,
        frames: [0; 2],
        guard: None,
    })
}

fn is_returning(variant: Variant) -> bool {
    matches!(variant, Variant::Returning | Variant::ReturnsOnly)
}

/// Makes a detour.
pub(crate) fn make(
    memory: &Memory,
    spots: &mut Trampolines,
    site: &'static Site,
    variant: Variant,
    changes: &mut Vec<Change>,
) -> Option<&'static Detour> {
    let returning = is_returning(variant);
    let addr = site.addr();
    let function = Function::new(memory, site);
    let steps = function.steps();
    if returning && !returns_by_ra(&steps) {
        return None;
    }
    // A breakpoint may lead there, too.
    let without_jump = || {
        (returning && site.boosted().is_some()).then(|| Window {
            len: usize::from(site.len),
            inside: Vec::new(),
            jump: false,
        })
    };
    let window = window(site, &steps).or_else(without_jump)?;
    let code = &site.original[..window.len];
    let free = |addr| function.free(addr);
    let options = Options {
        dead: &free,
        ..Options::new(Reach::Jump)
    };
    let unused = function.free(addr);
    let prefix = |start: u64, common: u64, words: u64, counter: u64| match variant {
        Variant::Counting => counting(start, counter, unused),
        _ => prefix(variant, start, common, words),
    };
    let before = prefix(addr & !15, addr & !15, addr & !15, addr & !15)?
        .bytes
        .len();
    let words = 2 + if returning { 5 } else { 0 };
    let moved_len = relocated_len(code, addr, &options).ok()?;
    let size = before + moved_len + Reach::Jump.jump_len() + 8 + words * 8;
    let room = islands::room(memory, addr, size as u64, NEAR).ok()?;
    let start = room.at;
    // A branch back to the site is a hit, too: it leads to the start.
    let moved = relocate_apart(code, addr, start, &options, &[(0, before)]).ok()?;
    let jump = if moved.falls_through { JUMP } else { 0 };
    let words_at = (start + moved.bytes.len() as u64 + jump).next_multiple_of(8);
    let mut counter = 0;
    if variant == Variant::Counting {
        let at = core::ptr::from_ref(room.counter()?).cast_mut();
        site.counter.store(at, Ordering::Release);
        counter = at as u64;
    }
    let prefix = prefix(start, room.common, words_at, counter)?;
    let mut bytes = prefix.bytes;
    bytes.extend_from_slice(&moved.bytes[before..]);
    if moved.falls_through {
        Code::new(&mut bytes, start)
            .jump(addr + window.len as u64, Reach::Jump, 0)
            .ok()?;
    }
    Code::new(&mut bytes, start).align(8);
    debug_assert_eq!(start + bytes.len() as u64, words_at);
    put_words(&mut bytes, site, returning);
    let patch = match window.jump {
        true => Some(lead(spots, &window, addr, start, changes)?),
        false => None,
    };
    let copied = |piece: &Moved| (addr + piece.old as u64, start + piece.new as u64);
    let map = StateMap::of_copies(moved.map.iter().map(copied));
    if window.jump {
        lead_on_from_inside(addr, &map);
    }
    let piece = SiteCode {
        site,
        range: start..start + bytes.len() as u64,
        map,
        calls: None,
        trap: None,
        guard: prefix.guard,
    };
    room.reserve(bytes.len(), piece);
    changes.push((start, bytes));
    let frames = returning.then(|| &*Box::leak(unwind_tables(prefix.frames).into_boxed_slice()));
    Some(Box::leak(Box::new(Detour {
        jump: patch,
        inside: window.inside,
        after: prefix.after,
        frames,
    })))
}

/// Appends the words that the code refers to: pointers to the two heads, then those of the return.
fn put_words(bytes: &mut Vec<u8>, site: &Site, returning: bool) {
    for head in [&site.head, &site.returns] {
        bytes.extend((core::ptr::from_ref(head) as u64).to_le_bytes());
    }
    if returning {
        let values = returns::words(site.unreturned.as_ptr() as u64, &shadow::window());
        values
            .iter()
            .for_each(|value| bytes.extend(value.to_le_bytes()));
    }
}

/// Whoever is at an instruction that the jump overwrites goes on in its copy.
fn lead_on_from_inside(addr: u64, map: &StateMap) {
    for (old, new) in map.copies() {
        if (addr + 1..addr + JUMP).contains(&old) {
            INSIDE.set(old, new);
        }
    }
}

/// The jump at `addr` that leads to `start`, over a trampoline where instructions begin inside of it.
fn lead(
    spots: &mut Trampolines,
    window: &Window,
    addr: u64,
    start: u64,
    changes: &mut Vec<Change>,
) -> Option<Vec<u8>> {
    if window.inside.is_empty() {
        return Some(near_jump(addr, start)?.to_vec());
    }
    let spot = spots.find(addr, start)?;
    changes.push((spot, near_jump(spot, start)?.to_vec()));
    Some(trampolines::jump(addr, spot)?.to_vec())
}

/// Whether a function returns by `ra` only: helpers that save registers have their return address in `t0`.
fn returns_by_ra(steps: &[Step]) -> bool {
    let other = |step: &Step| {
        step.flow
            == Flow::Return {
                how: How::OtherLink,
            }
    };
    !steps.iter().any(other)
}

/// The instructions that a jump overwrites.
struct Window {
    len: usize,
    /// Offsets of those but the first that begin in the jump.
    inside: Vec<u8>,
    /// It is large enough for a jump.
    jump: bool,
}

fn window(site: &Site, steps: &[Step]) -> Option<Window> {
    let addr = site.addr();
    let end = addr + JUMP;
    let mut window = Window {
        len: 0,
        inside: Vec::new(),
        jump: true,
    };
    let (mut ended, mut called) = (false, false);
    let first = steps.partition_point(|step| step.addr < addr);
    for step in &steps[first..] {
        if step.addr >= end {
            break;
        }
        let fits = step.end() <= addr + u64::from(site.known);
        if step.immovable.is_some() || called || !fits {
            return None;
        }
        if step.addr > addr {
            window.inside.push((step.addr - addr) as u8);
        }
        window.len = (step.end() - addr) as usize;
        called = step.is_call();
        ended |= step.flow.is_end();
    }
    // After a function, only what nothing leads to is overwritten.
    let tail = addr + window.len as u64;
    if tail < end {
        let gap = &site.original[window.len..JUMP as usize];
        let padding = gap == [0x01, 0x00] || gap == [0, 0];
        if !(ended && padding && tail == site.function.end) {
            return None;
        }
        window.len = JUMP as usize;
    }
    let range = addr..addr + window.len as u64;
    (!entered(site, steps) && !call_sites::is_reserved(range)).then_some(window)
}

/// Whether the function has a branch into the bytes of the jump: it would come to a trap each time.
fn entered(site: &Site, steps: &[Step]) -> bool {
    let inside = site.addr() + 1..site.addr() + JUMP;
    steps.iter().any(|step| match step.flow {
        Flow::Branch(to) | Flow::Jump(to) => inside.contains(&to),
        _ => false,
    })
}
