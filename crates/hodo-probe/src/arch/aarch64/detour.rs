//! Detours: the jump to them is `b`, of one word and 128 MiB. No instruction begins inside it, so nothing else has
//! to be
//! considered, except that there is none where calls through registers arrive: in guarded code they must find the
//! instruction that says so, or a breakpoint.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::sync::atomic::Ordering;

use hodo_codegen::statemap::StateMap;
use hodo_isa::aarch64::asm::{self, Code, Reach};
use hodo_isa::aarch64::regs::ZERO;
use hodo_isa::aarch64::relocate::{Moved, Options, relocate_apart, relocated_len};
use hodo_isa::aarch64::steps::Step;
use hodo_isa::effects::{Flow, How};

use super::code::{Function, is_landing};
use super::trampolines::Trampolines;
use super::{NEAR, common, counts, returns};
use crate::call_sites;
use crate::islands;
use crate::memory::{Change, Memory};
use crate::returns::unwind_tables;
use crate::shadow;
use crate::site::{Detour, Site, SiteCode, Variant};

/// What comes before the moved instruction.
struct Prefix {
    bytes: Vec<u8>,
    /// Where one goes on after the handlers of the entry.
    after: u64,
    frames: [u64; 2],
    guard: Option<(u64, u64)>,
}

/// The code before the moved instruction, at `start`; the words that it refers to are at `words`: pointers to the two
/// heads, then those of the return.
fn prefix(variant: Variant, start: u64, common: u64, words: u64) -> Option<Prefix> {
    let mut bytes = Vec::new();
    let mut code = Code::new(&mut bytes, start);
    if variant != Variant::ReturnsOnly {
        common::begin(&mut code);
        common::enter(&mut code, words, common)?;
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
    _: &mut Trampolines,
    site: &'static Site,
    variant: Variant,
    changes: &mut Vec<Change>,
) -> Option<&'static Detour> {
    let returning = is_returning(variant);
    let addr = site.addr();
    let function = Function::new(memory, site);
    let steps = function.steps();
    if returning && !returns_by_link(&steps) {
        return None;
    }
    let jumps = may_jump(site, &steps);
    // A breakpoint may lead there, too.
    if !(jumps || returning && site.boosted().is_some()) {
        return None;
    }
    let code = site.code();
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
    let jump = if moved.falls_through { 4 } else { 0 };
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
            .jump(site.next(), Reach::Jump, ZERO)
            .ok()?;
    }
    Code::new(&mut bytes, start).align(8);
    debug_assert_eq!(start + bytes.len() as u64, words_at);
    put_words(&mut bytes, site, returning);
    let patch = match jumps {
        true => Some(asm::jump(addr, start).ok()?.to_vec()),
        false => None,
    };
    let copied = |piece: &Moved| (addr + piece.old as u64, start + piece.new as u64);
    let piece = SiteCode {
        site,
        range: start..start + bytes.len() as u64,
        map: StateMap::of_copies(moved.map.iter().map(copied)),
        calls: None,
        trap: None,
        guard: prefix.guard,
    };
    room.reserve(bytes.len(), piece);
    changes.push((start, bytes));
    let frames = returning.then(|| &*Box::leak(unwind_tables(prefix.frames).into_boxed_slice()));
    Some(Box::leak(Box::new(Detour {
        jump: patch,
        inside: Vec::new(),
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

/// Whether a function returns by the link register only.
fn returns_by_link(steps: &[Step]) -> bool {
    let other = |step: &Step| {
        step.flow
            == Flow::Return {
                how: How::OtherLink,
            }
    };
    !steps.iter().any(other)
}

/// Whether a jump may be where the site is.
fn may_jump(site: &Site, steps: &[Step]) -> bool {
    let addr = site.addr();
    let step = steps.iter().find(|step| step.addr == addr);
    step.is_some_and(|step| step.immovable.is_none())
        && !is_landing(site.code())
        && !call_sites::is_reserved(addr..site.next())
}
