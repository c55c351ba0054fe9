//! Detours: code for sites where a jump fits, so that a hit needs no signal.
//!
//! A jump takes five bytes. Where instructions begin in these, but for the first, there are breakpoints in the jump's
//! displacement (`spots.rs`): a thread that is about to execute one of them, or a branch that nobody knows of, comes to the
//! moved copy by a signal. So a jump is never wrong, however little is known of the code.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::sync::atomic::Ordering;

use hodo_arch::x86_64::relocate::{relocate_apart, relocated_len};
use hodo_arch::x86_64::scan::Flow;
use hodo_arch::x86_64::steps::{Steps, Transaction};

use super::islands::{self, Piece};
use super::site::{Detour, INSIDE, Site};
use super::spots::Spots;
use super::text::{Change, Memory};
use super::{analyze, layout};

const JUMP: u64 = 5;

/// What comes before the moved instructions; see `common.rs`.
const BEFORE: &[(&[u8], Operand)] = &[
    (&[0x48, 0x8D, 0x64, 0x24, 0x80], Operand::None), // lea rsp, [rsp-128]
    (&[0xFF, 0x35], Operand::Site),                   // push [site]
    (&[0xE8], Operand::Common),                       // call common
    (&[0x48, 0x8D, 0xA4, 0x24, 0x88, 0, 0, 0], Operand::None), // lea rsp, [rsp+136]
];

#[derive(Clone, Copy, PartialEq, Eq)]
enum Operand {
    None,
    Site,
    Common,
}

/// Makes the detour of a site, if one is possible. Returns what is to be written for it; the site's own jump is written later.
pub(super) fn prepare(
    memory: &Memory,
    spots: &mut Spots,
    site: &'static Site,
    changes: &mut Vec<Change>,
) -> Option<()> {
    if site.hopeless.load(Ordering::Relaxed) != 0 {
        return None;
    }
    if !site.detour.load(Ordering::Relaxed).is_null() {
        return Some(());
    }
    let made = make(memory, spots, site, changes);
    if made.is_none() {
        site.hopeless.store(1, Ordering::Relaxed);
    }
    made
}

fn make(
    memory: &Memory,
    spots: &mut Spots,
    site: &'static Site,
    changes: &mut Vec<Change>,
) -> Option<()> {
    let addr = site.addr();
    let window = window(memory, site)?;
    let code = &site.original[..window.len];
    let prologue: usize = BEFORE
        .iter()
        .map(|(bytes, operand)| bytes.len() + 4 * usize::from(*operand != Operand::None))
        .sum();
    let size = prologue + relocated_len(code, addr).ok()? + JUMP as usize + 16;
    let room = islands::room(memory, addr, size as u64).ok()?;
    let start = room.at;
    // A branch back to the site is a hit, too: it leads to the start.
    let moved = relocate_apart(code, addr, start, &[(0, prologue)]).ok()?;
    let end = prologue
        + moved.bytes.len()
        + if moved.falls_through {
            JUMP as usize
        } else {
            0
        };
    let word = start + (end as u64).next_multiple_of(8);
    let mut bytes = Vec::with_capacity(size);
    for (opcode, operand) in BEFORE {
        bytes.extend_from_slice(opcode);
        let to = match operand {
            Operand::None => continue,
            Operand::Site => word,
            Operand::Common => room.common,
        };
        bytes.extend(distance(start + bytes.len() as u64 + 4, to)?);
    }
    bytes.extend_from_slice(&moved.bytes[prologue..]);
    if moved.falls_through {
        bytes.push(0xE9);
        bytes.extend(distance(
            start + bytes.len() as u64 + 4,
            addr + window.len as u64,
        )?);
    }
    bytes.resize((word - start) as usize, 0xCC);
    let head: *const layout::Head = &raw const site.head;
    bytes.extend((head as u64).to_le_bytes());
    let (target, spot) = match &window.inside[..] {
        [] => (start, None),
        inside => {
            let spot = spots.find(addr, inside)?;
            (spot, Some(distance(spot + JUMP, start)?))
        }
    };
    let [a, b, c, d] = distance(addr + JUMP, target)?;
    let map: Vec<_> = moved
        .map
        .iter()
        .map(|piece| {
            (
                addr + piece.old as u64,
                start + piece.new.max(prologue) as u64,
            )
        })
        .collect();
    let inside: Vec<_> = map
        .iter()
        .filter(|(old, _)| (addr + 1..addr + JUMP).contains(old))
        .copied()
        .collect();
    let piece = Piece {
        site,
        range: start..start + bytes.len() as u64,
        map,
        calls: window.call,
        trap: None,
    };
    room.reserve(bytes.len(), piece);
    changes.push((start, bytes));
    if let Some([a, b, c, d]) = spot {
        changes.push((target, vec![0xE9, a, b, c, d]));
    }
    for (old, new) in inside {
        INSIDE.set(old, new);
    }
    let detour = Box::leak(Box::new(Detour {
        jump: [0xE9, a, b, c, d],
        inside: window.inside,
    }));
    site.detour.store(detour, Ordering::Release);
    Some(())
}

fn distance(from: u64, to: u64) -> Option<[u8; 4]> {
    i32::try_from(to.wrapping_sub(from).cast_signed())
        .ok()
        .map(i32::to_le_bytes)
}

/// The instructions that a jump overwrites.
struct Window {
    len: usize,
    /// Offsets of those but the first that begin in the jump.
    inside: Vec<u8>,
    call: Option<u64>,
}

fn window(memory: &Memory, site: &Site) -> Option<Window> {
    let addr = site.addr();
    let end = addr + JUMP;
    let known = &site.original[..usize::from(site.known)];
    let mut window = Window {
        len: 0,
        inside: Vec::new(),
        call: None,
    };
    let mut ended = false;
    for step in Steps::new(known, addr) {
        if step.addr >= end {
            break;
        }
        let padding = step.padding && step.addr >= site.function.end;
        // Behind a function only what fills the gap is overwritten; it has no code that the program executes.
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
    (whole && !entered(memory, site)).then_some(window)
}

/// Whether the function has a branch into the bytes of the jump: it would come to a breakpoint each time.
fn entered(memory: &Memory, site: &Site) -> bool {
    let inside = site.addr() + 1..site.addr() + JUMP;
    let code = analyze::code(memory, site.function.clone());
    Steps::new(&code, site.function.start).any(|step| match step.flow {
        Flow::Branch(to) | Flow::Jump(to) => inside.contains(&to),
        _ => false,
    })
}
