//! Whether an instruction can be probed, and the code that is needed for it.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::ops::Range;
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};

use hodo_arch::native::relocate::{relocate_mapped, relocated_len};
use hodo_arch::native::scan::Flow;
use hodo_arch::native::simulate::Simulation;
use hodo_arch::native::steps::{Step, Steps, Transaction, immovable, text};

use super::islands::{self, Piece};
use super::layout::{Head, KEEP_NONE, Node};
use super::maps::Mapping;
use super::refusal::Refusal;
use super::site::{INT3, SITES, Site};
use super::{functions, maps};
use hodo_text::Memory;

/// A jump, or a breakpoint and what fills the place.
const JUMP: usize = 5;
/// Bytes that are kept of each site.
const KNOWN: usize = 24;
/// No function is decoded further than this.
const LONGEST: u64 = 1 << 22;

struct Empty([*const Node; 1]);

// SAFETY: it has no pointer to anything.
unsafe impl Sync for Empty {}

static EMPTY: Empty = Empty([core::ptr::null()]);

/// A list of no probes.
pub(super) fn empty() -> *mut *const Node {
    EMPTY.0.as_ptr().cast_mut()
}

/// The code as the program has it, without what the engine has put there.
pub(super) fn code(memory: &Memory, range: Range<u64>) -> Vec<u8> {
    let mut code = memory.read(range.start, (range.end - range.start) as usize);
    let first = range.start.saturating_sub(JUMP as u64 - 1);
    for addr in first..range.start + code.len() as u64 {
        let Some(site) = Site::at(addr).filter(|site| site.head.armed.load(Ordering::Acquire) != 0)
        else {
            continue;
        };
        for (offset, &byte) in site.original.iter().enumerate().take(site.patched()) {
            let at = (addr + offset as u64).wrapping_sub(range.start);
            if let Some(place) = code.get_mut(at as usize) {
                *place = byte;
            }
        }
    }
    code
}

/// The site at an address: the one that is there, or a new one.
pub(super) fn site(
    memory: &Memory,
    maps: &[Mapping],
    addr: u64,
    function: Option<Range<u64>>,
) -> Result<&'static Site, Refusal> {
    let bytes = code(memory, addr..addr.saturating_add(KNOWN as u64));
    if let Some(site) = Site::at(addr) {
        let len = usize::from(site.len);
        if bytes.get(..len) == Some(site.code()) {
            return Ok(site);
        }
    }
    if islands::contains(addr) || super::common::is_own(addr) {
        return Err(Refusal::Engine);
    }
    let map = maps::find(maps, addr)
        .filter(|map| map.execute)
        .ok_or(Refusal::NotCode)?;
    if map.shared {
        return Err(Refusal::Shared);
    }
    let function = match function {
        Some(function) if function.contains(&addr) => function,
        Some(_) => return Err(Refusal::OutsideFunction),
        None => functions::around(memory, maps, addr).ok_or(Refusal::NoFunction)?,
    };
    let function = function.start..function.end.min(function.start.saturating_add(LONGEST));
    let whole = code(memory, function.clone());
    let step = step(&whole, function.start, addr)?;
    new(memory, &bytes, &step, function)
}

/// The instruction that begins at an address of a function.
fn step(code: &[u8], start: u64, addr: u64) -> Result<Step, Refusal> {
    let at = |addr: u64| &code[(addr - start) as usize..];
    let mut transaction = false;
    for step in Steps::new(code, start) {
        if step.addr > addr {
            break;
        }
        let refused = |reason| Refusal::Instruction {
            instruction: text(at(step.addr), step.addr),
            reason,
        };
        transaction |= step.transaction == Transaction::Begin;
        if step.addr == addr {
            if step.flow == Flow::Invalid {
                return Err(refused("no valid instruction"));
            }
            if transaction {
                return Err(refused(
                    "it is in a hardware transaction, which a probe would abort",
                ));
            }
            return Ok(step);
        }
        if addr < step.end() {
            return Err(Refusal::Middle {
                instruction: text(at(step.addr), step.addr),
                addr: step.addr,
            });
        }
        transaction &= step.transaction != Transaction::End;
    }
    Err(Refusal::NotCode)
}

fn head(addr: u64) -> Head {
    Head {
        addr,
        list: AtomicPtr::new(empty()),
        keep: AtomicU32::new(KEEP_NONE),
        armed: AtomicU32::new(0),
    }
}

fn new(
    memory: &Memory,
    bytes: &[u8],
    step: &Step,
    function: Range<u64>,
) -> Result<&'static Site, Refusal> {
    let len = usize::from(step.len);
    let code = bytes.get(..len).ok_or(Refusal::NotCode)?;
    let refused = |reason| Refusal::Instruction {
        instruction: text(code, step.addr),
        reason,
    };
    if code[0] == INT3 || code == [0xF1] || code[0] == 0xCD {
        return Err(refused(
            "it is a breakpoint or interrupt of the program's own",
        ));
    }
    if step.flow == Flow::Fault {
        return Err(refused(
            "it only faults, and the program's handler would see another address",
        ));
    }
    let simulation = Simulation::new(code, step.addr);
    if simulation.is_none()
        && let Some(reason) = immovable(code, step.addr)
    {
        return Err(refused(reason));
    }
    let mut original = [0; KNOWN];
    original[..bytes.len()].copy_from_slice(bytes);
    let site: &'static Site = Box::leak(Box::new(Site {
        head: head(step.addr),
        original,
        known: bytes.len() as u8,
        len: step.len,
        simulation,
        boosted: AtomicPtr::default(),
        stepped: AtomicPtr::default(),
        detour: AtomicPtr::default(),
        jumped: AtomicU32::new(0),
        function,
        hopeless: Default::default(),
        variants: Default::default(),
        counter: AtomicPtr::default(),
        returns: head(step.addr),
        unreturned: AtomicU64::new(0),
        after: AtomicU32::new(0),
        forced: AtomicU32::new(0),
    }));
    // A copy that branches to itself would be hit once.
    let own = matches!(step.flow, Flow::Branch(to) | Flow::Jump(to) if to == step.addr);
    if step.movable && !own {
        let piece = alone(memory, site, false);
        match piece {
            Ok(piece) => site
                .boosted
                .store(core::ptr::from_ref(piece).cast_mut(), Ordering::Release),
            // Too far from what it refers to.
            Err(refusal) if site.simulation.is_none() => return Err(refusal),
            Err(_) => {}
        }
    }
    SITES.set(step.addr, core::ptr::from_ref(site) as u64);
    Ok(site)
}

/// Moves the instruction of a site into a slot that ends in a breakpoint, or in a jump back.
fn alone(memory: &Memory, site: &'static Site, trap: bool) -> Result<&'static Piece, Refusal> {
    let from = site.addr();
    let code = site.code();
    let refused = |_| Refusal::Instruction {
        instruction: text(code, from),
        reason: "it refers to something that is too far from where it can be moved",
    };
    let kernel = |error| Refusal::Kernel("there is no memory for code near the probe", error);
    let size = relocated_len(code, from).map_err(refused)? as u64 + 5;
    let room = islands::room(memory, from, size).map_err(kernel)?;
    let moved = relocate_mapped(code, from, room.at).map_err(refused)?;
    let mut bytes = moved.bytes;
    let end = room.at + bytes.len() as u64;
    if trap {
        bytes.push(INT3);
    } else if moved.falls_through {
        let distance = site.next().wrapping_sub(end + 5).cast_signed();
        let distance = i32::try_from(distance).map_err(|_| kernel(12))?;
        bytes.push(0xE9);
        bytes.extend(distance.to_le_bytes());
    }
    let call = matches!(Steps::new(code, from).next(), Some(step) if step.is_call());
    let piece = Piece {
        site,
        range: room.at..room.at + bytes.len() as u64,
        map: vec![(from, room.at)],
        calls: call.then_some(from),
        trap: trap.then_some(end),
    };
    room.put(memory, &bytes, piece).map_err(kernel)
}

/// Makes the slot that ends in a breakpoint, for handlers behind the instruction.
pub(super) fn stepped(memory: &Memory, site: &'static Site) -> Result<(), Refusal> {
    if site.stepped().is_some() {
        return Ok(());
    }
    let branches = match Steps::new(site.code(), site.addr()).next() {
        Some(step) => step.flow != Flow::Next,
        None => true,
    };
    if branches || site.boosted().is_none() {
        return Err(Refusal::Execution(super::Execution::OutOfLine));
    }
    let piece = alone(memory, site, true)?;
    site.stepped
        .store(core::ptr::from_ref(piece).cast_mut(), Ordering::Release);
    Ok(())
}
