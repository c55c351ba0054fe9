//! A place in the code that has, or had, a probe. Sites are never freed, because signals may come late.

use alloc::vec::Vec;
use core::ops::Range;
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};

use hodo_codegen::statemap::StateMap;
use hodo_isa::native::simulate::Simulation;

use super::arch::{BREAKPOINT, LONGEST};
use super::call_site::CallSite;
use super::index::Index;
use super::layout::{Head, Node};
use super::memory::Memory;

/// Sites by their addresses.
pub(super) static SITES: Index = Index::new();
/// For instructions that a jump has partly overwritten: the address of the moved copy.
pub(super) static INSIDE: Index = Index::new();

/// Our code for one site.
pub(super) struct SiteCode {
    pub site: &'static Site,
    pub range: Range<u64>,
    /// The moved instructions.
    pub map: StateMap,
    /// The last instruction, if it is a call: its copy pushes the return address first.
    pub calls: Option<u64>,
    /// The breakpoint at its end, if it has one.
    pub trap: Option<u64>,
    /// An engine instruction that may fault, and where execution then continues.
    pub guard: Option<(u64, u64)>,
}

/// What a detour does before the moved instructions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Variant {
    /// Calls handlers.
    Plain,
    /// Calls handlers, and those of the return.
    Returning,
    /// Counts.
    Counting,
    /// Calls only the return's handlers.
    ReturnsOnly,
}

/// What a jump at a site leads to.
pub(super) struct Detour {
    /// The jump, if there is room for one.
    pub jump: Option<Vec<u8>>,
    /// Offsets of the instructions it overwrites, except the first.
    pub inside: Vec<u8>,
    /// Where execution continues after the entry's handlers.
    pub after: u64,
    /// Its unwind tables, if it has return handlers.
    pub frames: Option<&'static [u8]>,
}

/// A site. [`Head`] comes first, so that detours know the site by the same address.
#[repr(C)]
pub(super) struct Site {
    pub head: Head,
    /// The bytes of the instruction and some that follow it, as the program has them.
    pub original: [u8; 24],
    /// How many of these bytes are known.
    pub known: u8,
    /// Length of the instruction.
    pub len: u8,
    /// How to execute it on the saved registers, if that is possible.
    pub simulation: Option<Simulation>,
    /// The moved instruction with a jump after it; or null.
    pub boosted: AtomicPtr<SiteCode>,
    /// The moved instruction with a breakpoint after it; or null.
    pub stepped: AtomicPtr<SiteCode>,
    /// What a jump at the site leads to, once that has been made; or null.
    pub detour: AtomicPtr<Detour>,
    /// The detours that have been made, by [`Variant`].
    pub variants: [AtomicPtr<Detour>; 4],
    /// The counter of the detour that only counts; or null.
    pub counter: AtomicPtr<AtomicU64>,
    /// Return handlers.
    pub returns: Head,
    /// Calls whose exit was missed.
    pub unreturned: AtomicU64,
    /// 1 while a jump is at the site, or is being written.
    pub jumped: AtomicU32,
    /// The function that contains the site.
    pub function: Range<u64>,
    /// For each variant, 1 if it cannot be made.
    pub hopeless: [AtomicU32; 4],
    /// It is a call site of a function tracer: the engine writes nothing there, and the instruction does nothing.
    pub call_site: Option<CallSite>,
    /// 1 while the tracer calls.
    pub called: AtomicU32,
    /// How many probes of the list have a handler after the instruction.
    pub after: AtomicU32,
    /// The greatest `Execution`, as a number, that a probe of the list demands, or 0.
    pub forced: AtomicU32,
}

impl core::fmt::Debug for Site {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "Site({:#x})", self.head.addr)
    }
}

impl Site {
    /// The site at an address.
    pub(super) fn at(addr: u64) -> Option<&'static Self> {
        // The index has 0 where it has no site.
        let site = SITES.get(addr).filter(|_| addr != 0)?;
        // SAFETY: the index has pointers to sites, which stay.
        Some(unsafe { &*(site as *const Self) })
    }

    /// The address of the site.
    pub(super) fn addr(&self) -> u64 {
        self.head.addr
    }

    /// The address after its instruction.
    pub(super) fn next(&self) -> u64 {
        self.head.addr + u64::from(self.len)
    }

    /// How many of the program's bytes are overwritten while the site is armed.
    pub(super) fn patched(&self) -> usize {
        if self.jumped.load(Ordering::Acquire) == 0 {
            return BREAKPOINT.len();
        }
        self.jump().map_or(BREAKPOINT.len(), |jump| jump.len())
    }

    /// The jump that is there, or will be.
    pub(super) fn jump(&self) -> Option<&'static [u8]> {
        // SAFETY: detours stay.
        let detour = unsafe { self.detour.load(Ordering::Acquire).as_ref() };
        detour.and_then(|detour| detour.jump.as_deref())
    }

    /// The bytes of its instruction.
    pub(super) fn code(&self) -> &[u8] {
        &self.original[..usize::from(self.len)]
    }

    /// The probes. They are valid as long as the thread is marked as busy, or the engine's lock is held.
    pub(super) fn nodes(&self) -> impl Iterator<Item = &Node> {
        nodes(&self.head)
    }

    /// The return handlers, valid as long as the probes.
    pub(super) fn return_nodes(&self) -> impl Iterator<Item = &Node> {
        nodes(&self.returns)
    }

    /// The detour with handlers of both kinds.
    pub(super) fn returning(&self) -> Option<&'static Detour> {
        // SAFETY: detours stay.
        unsafe {
            self.variants[Variant::Returning as usize]
                .load(Ordering::Acquire)
                .as_ref()
        }
    }

    /// The only probe of the site, if it does nothing but count.
    pub(super) fn lone_counter(&self) -> Option<&Node> {
        let mut nodes = self.nodes();
        let node = nodes.next().filter(|_| nodes.next().is_none())?;
        let counts = node.before == 0 && node.after == 0 && !node.idle;
        (counts && self.return_nodes().next().is_none()).then_some(node)
    }

    /// Returns whether the instruction may be executed elsewhere.
    pub(super) fn has_copy(&self) -> bool {
        self.boosted().is_some() || self.stepped().is_some()
    }

    pub(super) fn boosted(&self) -> Option<&'static SiteCode> {
        // SAFETY: pieces stay.
        unsafe { self.boosted.load(Ordering::Acquire).as_ref() }
    }

    pub(super) fn stepped(&self) -> Option<&'static SiteCode> {
        // SAFETY: pieces stay.
        unsafe { self.stepped.load(Ordering::Acquire).as_ref() }
    }
}

fn nodes(head: &Head) -> impl Iterator<Item = &Node> {
    let mut at = head.list.load(Ordering::Acquire);
    core::iter::from_fn(move || {
        // SAFETY: (1) lists end with null, so this stays within one; (2) lists and nodes live as long as the callers
        // say.
        unsafe {
            let node = (*at).as_ref()?;
            at = at.add(1);
            Some(node)
        }
    })
}

/// The program's code, without what the engine has written into it.
pub(crate) fn original_code(memory: &Memory, range: Range<u64>) -> Vec<u8> {
    let mut code = memory.read(range.start, (range.end - range.start) as usize);
    let first = range.start.saturating_sub(LONGEST as u64 - 1);
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
