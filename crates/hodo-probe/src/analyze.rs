//! Decides whether an instruction can be probed, and prepares the code for it.

use alloc::boxed::Box;
use core::ops::Range;
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};

use hodo_isa::native::scan::Flow;
use hodo_isa::native::simulate::Simulation;
use hodo_isa::native::steps::Step;

use super::arch;
use super::arch::code::{alone, flow, is_movable, refused, step, text};
use super::call_site::CallSite;
use super::layout::{Head, KEEP_NONE, Node};
use super::maps::Mapping;
use super::memory::Memory;
use super::refusal::Refusal;
use super::site::{SITES, Site, original_code};
use super::{call_sites, islands};
use super::{functions, maps};
use hodo_sys::branches;

/// Bytes that are kept per site.
const KNOWN: usize = 24;
/// The longest function that is decoded.
const FARTHEST: u64 = 1 << 22;

struct Empty([*const Node; 1]);

// SAFETY: it holds no pointer.
unsafe impl Sync for Empty {}

static EMPTY: Empty = Empty([core::ptr::null()]);

/// A list of no probes.
pub(super) fn empty() -> *mut *const Node {
    EMPTY.0.as_ptr().cast_mut()
}

/// The site at an address: the existing one, or a new one.
pub(super) fn site(
    memory: &Memory,
    maps: &[Mapping],
    addr: u64,
    function: Option<Range<u64>>,
) -> Result<&'static Site, Refusal> {
    if function
        .as_ref()
        .is_some_and(|range| !range.contains(&addr))
    {
        return Err(Refusal::OutsideFunction);
    }
    let bytes = original_code(memory, addr..addr.saturating_add(KNOWN as u64));
    if let Some(site) = Site::at(addr).filter(|site| site.call_site.is_none())
        && call_sites::find(addr..site.next()).is_none()
    {
        let len = usize::from(site.len);
        if bytes.get(..len) == Some(site.code()) {
            return Ok(site);
        }
    }
    if islands::contains(addr) || arch::is_own(addr) {
        return Err(Refusal::Engine);
    }
    let map = maps::find(maps, addr)
        .filter(|map| map.execute)
        .ok_or(Refusal::NotCode)?;
    if map.shared {
        return Err(Refusal::Shared);
    }
    let function = function.or_else(|| functions::around(memory, maps, addr));
    let is_entry = function.as_ref().is_some_and(|range| range.start == addr);
    if let Some(found) = call_sites::of_probe(addr, arch::code::landing(&bytes, is_entry))? {
        return called(memory, found, function);
    }
    let function = function.ok_or(Refusal::NoFunction)?;
    let function = function.start..function.end.min(function.start.saturating_add(FARTHEST));
    let whole = original_code(memory, function.clone());
    let step = step(&whole, function.start, addr)?;
    new(memory, &bytes, &step, function)
}

fn head(addr: u64) -> Head {
    Head {
        addr,
        list: AtomicPtr::new(empty()),
        keep: AtomicU32::new(KEEP_NONE),
        armed: AtomicU32::new(0),
    }
}

/// The site for probes at a call site.
fn called(
    memory: &Memory,
    found: CallSite,
    function: Option<Range<u64>>,
) -> Result<&'static Site, Refusal> {
    let addr = found.code.start;
    if let Some(site) = Site::at(addr).filter(|site| site.call_site.as_ref() == Some(&found)) {
        return Ok(site);
    }
    let len = (found.code.end - addr) as usize;
    let mut bytes = memory.read(addr, KNOWN);
    let known = bytes.get_mut(..len).ok_or(Refusal::NotCode)?;
    // Nobody knows what is there in a moment. It does nothing but to call.
    known.copy_from_slice(&arch::code::nothing(len));
    let function = function.unwrap_or(found.code.clone());
    let site = leak(addr, &bytes, len as u8, function, None, Some(found));
    // For the code of return probes.
    if let Ok(piece) = alone(memory, site, false) {
        site.boosted
            .store(core::ptr::from_ref(piece).cast_mut(), Ordering::Release);
    }
    SITES.set(addr, core::ptr::from_ref(site) as u64);
    Ok(site)
}

fn leak(
    addr: u64,
    bytes: &[u8],
    len: u8,
    function: Range<u64>,
    simulation: Option<Simulation>,
    call_site: Option<CallSite>,
) -> &'static Site {
    let mut original = [0; KNOWN];
    original[..bytes.len()].copy_from_slice(bytes);
    Box::leak(Box::new(Site {
        head: head(addr),
        original,
        known: bytes.len() as u8,
        len,
        simulation,
        boosted: AtomicPtr::default(),
        stepped: AtomicPtr::default(),
        detour: AtomicPtr::default(),
        jumped: AtomicU32::new(0),
        function,
        hopeless: Default::default(),
        variants: Default::default(),
        counter: AtomicPtr::default(),
        returns: head(addr),
        unreturned: AtomicU64::new(0),
        call_site,
        called: AtomicU32::new(0),
        after: AtomicU32::new(0),
        forced: AtomicU32::new(0),
    }))
}

fn new(
    memory: &Memory,
    bytes: &[u8],
    step: &Step,
    function: Range<u64>,
) -> Result<&'static Site, Refusal> {
    let len = usize::from(step.len);
    let code = bytes.get(..len).ok_or(Refusal::NotCode)?;
    if branches::any(step.addr..step.end()) {
        return Err(Refusal::Instruction {
            instruction: text(code, step.addr),
            reason: "it is a static branch, which its key switches",
        });
    }
    let simulation = Simulation::new(code, step.addr);
    if let Some(reason) = refused(code, step, simulation.is_some()) {
        return Err(Refusal::Instruction {
            instruction: text(code, step.addr),
            reason,
        });
    }
    let site = leak(step.addr, bytes, step.len, function, simulation, None);
    // A copy of a branch to itself would be hit only once.
    let own = matches!(step.flow, Flow::Branch(to) | Flow::Jump(to) if to == step.addr);
    if is_movable(step) && !own {
        let piece = alone(memory, site, false);
        match piece {
            Ok(piece) => site
                .boosted
                .store(core::ptr::from_ref(piece).cast_mut(), Ordering::Release),
            // It is too far from what it refers to, or for a jump back.
            Err(_) if site.simulation.is_none() && step.flow == Flow::Next => {
                let piece = alone(memory, site, true)?;
                let piece = core::ptr::from_ref(piece).cast_mut();
                site.stepped.store(piece, Ordering::Release);
            }
            Err(refusal) if site.simulation.is_none() => return Err(refusal),
            Err(_) => {}
        }
    }
    SITES.set(step.addr, core::ptr::from_ref(site) as u64);
    Ok(site)
}

/// Makes the slot that ends in a breakpoint, for handlers after the instruction.
pub(super) fn stepped(memory: &Memory, site: &'static Site) -> Result<(), Refusal> {
    if site.stepped().is_some() {
        return Ok(());
    }
    let branches = flow(site.code(), site.addr()) != Flow::Next;
    if branches || !site.has_copy() {
        return Err(Refusal::Execution(super::Execution::OutOfLine));
    }
    let piece = alone(memory, site, true)?;
    site.stepped
        .store(core::ptr::from_ref(piece).cast_mut(), Ordering::Release);
    Ok(())
}
