//! A place in the code that has, or had, a probe. Sites stay: signals may come late.

use alloc::vec::Vec;
use core::ops::Range;
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};

use hodo_isa::native::simulate::Simulation;

use super::arch::BREAKPOINT;
use super::index::Index;
use super::layout::{Head, Node};

/// Sites by their addresses.
pub(super) static SITES: Index = Index::new();
/// For instructions that a jump has overwritten in part: the address of the moved copy.
pub(super) static INSIDE: Index = Index::new();

/// Our code for one site.
pub(super) struct SiteCode {
    pub site: &'static Site,
    pub range: Range<u64>,
    /// Addresses of moved instructions: in the program, and here.
    pub map: Vec<(u64, u64)>,
    /// The last instruction, if it is a call: its copy pushes first.
    pub calls: Option<u64>,
    /// The breakpoint at its end, if it has one.
    pub trap: Option<u64>,
    /// An instruction of the engine's own that may fault, and where to go on then.
    pub guard: Option<(u64, u64)>,
}

/// What a detour does before the moved instructions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Variant {
    /// It calls handlers.
    Plain,
    /// It calls handlers, and those of the return.
    Returning,
    /// It counts.
    Counting,
    /// It calls handlers of the return only.
    ReturnsOnly,
}

/// What a jump at a site leads to.
pub(super) struct Detour {
    /// The jump, if there is room for one.
    pub jump: Option<Vec<u8>>,
    /// Offsets of instructions that it overwrites, but for the first.
    pub inside: Vec<u8>,
    /// Where one goes on after the handlers of the entry.
    pub after: u64,
    /// Its unwind tables, if it has return handlers.
    pub frames: Option<&'static [u8]>,
}

/// A site. [`Head`] is first: detours know it by the same address.
#[repr(C)]
pub(super) struct Site {
    pub head: Head,
    /// The bytes of the instruction, and some after it, as the program has them.
    pub original: [u8; 24],
    /// How many bytes of it are known.
    pub known: u8,
    /// Length of the instruction.
    pub len: u8,
    /// How it is done on the saved registers, if it can be.
    pub simulation: Option<Simulation>,
    /// The instruction moved, with a jump after it; or null.
    pub boosted: AtomicPtr<SiteCode>,
    /// The instruction moved, with a breakpoint after it; or null.
    pub stepped: AtomicPtr<SiteCode>,
    /// What a jump at the site leads to, once that was made; or null.
    pub detour: AtomicPtr<Detour>,
    /// The detours that were made, by [`Variant`].
    pub variants: [AtomicPtr<Detour>; 4],
    /// Where the detour counts that does no more; or null.
    pub counter: AtomicPtr<AtomicU64>,
    /// Return handlers.
    pub returns: Head,
    /// Calls whose exit was not seen.
    pub unreturned: AtomicU64,
    /// 1 while a jump is at the site, or is being written.
    pub jumped: AtomicU32,
    /// The function that it is in.
    pub function: Range<u64>,
    /// For each variant, 1 if none is possible.
    pub hopeless: [AtomicU32; 4],
    /// Probes of the list that have a handler after the instruction.
    pub after: AtomicU32,
    /// Probes of the list that ask for a certain way of executing it, one of `Execution` as a number.
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
        // SAFETY: the index has pointers to sites, which stay.
        SITES
            .get(addr)
            .map(|site| unsafe { &*(site as *const Self) })
    }

    /// The address of the site.
    pub(super) fn addr(&self) -> u64 {
        self.head.addr
    }

    /// The address after its instruction.
    pub(super) fn next(&self) -> u64 {
        self.head.addr + u64::from(self.len)
    }

    /// How many bytes of the program are overwritten while the site is armed.
    pub(super) fn patched(&self) -> usize {
        if self.jumped.load(Ordering::Acquire) == 0 {
            return BREAKPOINT.len();
        }
        self.jump().map_or(BREAKPOINT.len(), |jump| jump.len())
    }

    /// The jump that is there, or is to be.
    pub(super) fn jump(&self) -> Option<&'static [u8]> {
        // SAFETY: detours stay.
        let detour = unsafe { self.detour.load(Ordering::Acquire).as_ref() };
        detour.and_then(|detour| detour.jump.as_deref())
    }

    /// The bytes of its instruction.
    pub(super) fn code(&self) -> &[u8] {
        &self.original[..usize::from(self.len)]
    }

    /// The probes. They are there as long as the thread is marked as busy, or the engine's lock is held.
    pub(super) fn nodes(&self) -> impl Iterator<Item = &Node> {
        nodes(&self.head)
    }

    /// The return handlers, which are there as long as the probes.
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

    /// Whether it may be executed elsewhere.
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
        // SAFETY: (1) lists end with null, so that this is within one; (2) they and their nodes live as callers say.
        unsafe {
            let node = (*at).as_ref()?;
            at = at.add(1);
            Some(node)
        }
    })
}
