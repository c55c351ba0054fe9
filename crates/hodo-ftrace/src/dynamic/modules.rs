//! Executables, libraries and kernels that have sites.

use core::ptr::null_mut;
use core::slice;
use core::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering};

use hodo_sys::poke::{Batch, Session};
use hodo_sys::{Pages, Text};

use super::site::{Entry, Site};
use super::tracers::{self, LOOKED_UP};
use crate::arch;

/// Pieces of code begin at multiples of this, and their kinds are smaller numbers.
const KINDS: usize = 16;
/// How many trampolines a module may have.
const TRAMPOLINES: usize = 256;
/// How many of these are for [`LOOKED_UP`].
const GENERAL: usize = 4;

/// A module with sites. All zeros is one that is not in use.
#[repr(C)]
#[derive(Debug)]
pub struct Module {
    next: AtomicPtr<Module>,
    sites: AtomicPtr<Site>,
    length: AtomicUsize,
    /// The memory for code that is not yet used, and its end.
    free: AtomicUsize,
    end: AtomicUsize,
    /// Where the memory for code begins that was given last, and how far it is from one copy of a trampoline to the
    /// next.
    area: AtomicUsize,
    copy: AtomicUsize,
    masks: [AtomicU64; TRAMPOLINES],
    trampolines: [AtomicUsize; TRAMPOLINES],
}

impl Default for Module {
    fn default() -> Self {
        Self::new()
    }
}

static FIRST: AtomicPtr<Module> = AtomicPtr::new(null_mut());

impl Module {
    /// One that is not in use.
    pub const fn new() -> Self {
        Self {
            next: AtomicPtr::new(null_mut()),
            sites: AtomicPtr::new(null_mut()),
            length: AtomicUsize::new(0),
            free: AtomicUsize::new(0),
            end: AtomicUsize::new(0),
            area: AtomicUsize::new(0),
            copy: AtomicUsize::new(0),
            masks: [const { AtomicU64::new(0) }; TRAMPOLINES],
            trampolines: [const { AtomicUsize::new(0) }; TRAMPOLINES],
        }
    }

    /// Its sites, by address.
    pub fn sites(&self) -> &'static [Site] {
        let length = self.length.load(Ordering::Acquire);
        let sites = self.sites.load(Ordering::Acquire);
        if sites.is_null() {
            return &[];
        }
        // SAFETY: `add` has both from such a slice.
        unsafe { slice::from_raw_parts(sites, length) }
    }

    /// The site with this address.
    fn site_at(&self, address: usize) -> Option<&'static Site> {
        let sites = self.sites();
        let place = sites.binary_search_by_key(&address, Site::address).ok()?;
        Some(&sites[place])
    }

    /// The code that a site calls for this mask, if there is any.
    pub(crate) fn trampoline(&self, mask: u64, kind: u8) -> Option<usize> {
        let mask = tracers::mask_of_code(mask);
        self.find(mask, kind).or_else(|| self.find(LOOKED_UP, kind))
    }

    /// How far the second copy of a trampoline is from the first one, where there is one.
    pub(crate) fn copy(&self) -> usize {
        self.copy.load(Ordering::Relaxed)
    }

    /// The trampoline for exactly this mask.
    fn find(&self, mask: u64, kind: u8) -> Option<usize> {
        let mut places = self.masks.iter().zip(&self.trampolines);
        let found = places.find(|(other, at)| {
            let at = at.load(Ordering::Acquire);
            other.load(Ordering::Relaxed) == mask && at != 0 && at % KINDS == usize::from(kind)
        });
        found.map(|(_, at)| at.load(Ordering::Relaxed) / KINDS * KINDS)
    }

    /// Makes the code that sites call for this mask, if there is none. If there is no room for it, they call the code
    /// that looks the mask up. Returns false if there is none of that either.
    pub(crate) fn make_trampoline(&self, host: &(impl Text + Pages), mask: u64, kind: u8) -> bool {
        let is_made = self.make(host, LOOKED_UP, kind);
        if is_made {
            self.make(host, tracers::mask_of_code(mask), kind);
        }
        is_made
    }

    /// Makes the trampoline for exactly this mask, if there is none. Trampolines stay: a thread may be in one of them
    /// for any length of time.
    fn make(&self, host: &(impl Text + Pages), mask: u64, kind: u8) -> bool {
        if self.find(mask, kind).is_some() {
            return true;
        }
        let known = TRAMPOLINES - GENERAL;
        let range = match mask {
            LOOKED_UP => known..TRAMPOLINES,
            _ => 0..known,
        };
        let mut places = self.masks[range.clone()]
            .iter()
            .zip(&self.trampolines[range]);
        let place = places.find(|(_, at)| at.load(Ordering::Relaxed) == 0);
        let Some((place, at)) = place else {
            return false;
        };
        let Some(free) = self.room(host) else {
            return false;
        };
        let code = arch::trampoline(mask, kind);
        for number in 0..arch::COPIES {
            // SAFETY: nobody calls what is there.
            if unsafe { host.write(free + number * self.copy(), &code) }.is_err() {
                return false;
            }
        }
        self.free.store(free + arch::TRAMPOLINE, Ordering::Relaxed);
        place.store(mask, Ordering::Relaxed);
        at.store(free + usize::from(kind), Ordering::Release);
        true
    }

    /// Where the next piece of code may be.
    fn room(&self, host: &impl Pages) -> Option<usize> {
        let free = self.free.load(Ordering::Relaxed);
        if free != 0 && free + arch::TRAMPOLINE <= self.end.load(Ordering::Relaxed) {
            return Some(free);
        }
        if free != 0 && !arch::MANY_PAGES {
            return None;
        }
        let (first, last) = (self.sites().first()?, self.sites().last()?);
        let page = host.page(first.address(), last.address() + arch::LONGEST, arch::REACH)?;
        let copy = page.length.min(arch::WINDOW) / arch::COPIES / KINDS * KINDS;
        self.free.store(page.address, Ordering::Relaxed);
        self.end.store(page.address + copy, Ordering::Relaxed);
        self.area.store(page.address, Ordering::Relaxed);
        self.copy.store(copy, Ordering::Relaxed);
        Some(page.address)
    }
}

/// Where the first module is. Whoever reads them from outside finds in each the address of the next one (0 for the
/// last), the address of its sites, and how many these are; each site begins with its address.
pub const fn first() -> &'static AtomicPtr<Module> {
    &FIRST
}

/// The trampolines that a site calls or has called: those of its module, with their copies.
pub(crate) fn trampolines_of(address: usize) -> impl Iterator<Item = usize> {
    let module = each_module().find(|module| module.site_at(address).is_some());
    module.into_iter().flat_map(|module| {
        let all = module.trampolines.iter();
        let all = all.map(|at| at.load(Ordering::Acquire) / KINDS * KINDS);
        let copies = move |at| (0..arch::COPIES).map(move |number| at + number * module.copy());
        all.filter(|at| *at != 0).flat_map(copies)
    })
}

/// All modules.
pub fn each_module() -> impl Iterator<Item = &'static Module> {
    // SAFETY: modules stay, also when they are not in use.
    let get = |module: &AtomicPtr<Module>| unsafe { module.load(Ordering::Acquire).as_ref() };
    core::iter::successors(get(&FIRST), move |module| get(&module.next))
}

/// Returns whether there are modules.
pub(crate) fn any() -> bool {
    !FIRST.load(Ordering::Relaxed).is_null()
}

/// The site with this address. Looks at the modules without a lock.
pub fn site_at(address: usize) -> Option<&'static Site> {
    each_module().find_map(|module| module.site_at(address))
}

/// Adds a module, whose sites must be sorted by address. Nothing is written yet. It must not be called by two threads
/// at once.
pub fn add(module: &'static Module, sites: &'static [Site]) {
    module.length.store(0, Ordering::Release);
    module
        .sites
        .store(sites.as_ptr().cast_mut(), Ordering::Release);
    module.length.store(sites.len(), Ordering::Release);
    module
        .next
        .store(FIRST.load(Ordering::Relaxed), Ordering::Relaxed);
    FIRST.store(core::ptr::from_ref(module).cast_mut(), Ordering::Release);
}

/// Writes what sites need that can only be written while nobody executes them. Must be called after [`add`], while no
/// thread executes the module's code, or will be in the middle of a site when this returns. Returns whether that worked
/// for all; the others do nothing, and cannot be switched on.
pub fn fix(module: &Module, host: &(impl Text + Pages)) -> bool {
    let Ok(session) = Session::begin(host) else {
        return false;
    };
    let mut batch = Batch::new(&*session);
    let mut works = true;
    for site in module.sites() {
        if arch::fix(site.form(), site.address(), 0, 0).is_none() {
            continue;
        }
        let kind = arch::kind(site.entry(), false);
        let made = module.make_trampoline(host, LOOKED_UP, kind);
        let area = module.area.load(Ordering::Relaxed);
        let code = arch::fix(site.form(), site.address(), area, module.copy()).filter(|_| made);
        // SAFETY: what is there does nothing, and neither does what is written.
        works &= code.is_some_and(|bytes| unsafe { batch.write(site.address(), bytes) }.is_ok());
    }
    works &= batch.flush().is_ok();
    session.sync();
    works
}

/// Removes a module, whose code may be gone already. Both it and its sites must stay readable, since another thread may
/// be looking for a site; they may be used for another module. It must not be called by two threads at once.
pub fn remove(module: &'static Module) {
    let mut place = &FIRST;
    loop {
        let at = place.load(Ordering::Relaxed);
        // SAFETY: modules stay.
        let Some(other) = (unsafe { at.as_ref() }) else {
            return;
        };
        if core::ptr::eq(other, module) {
            place.store(module.next.load(Ordering::Relaxed), Ordering::Release);
            module.length.store(0, Ordering::Release);
            module.free.store(0, Ordering::Relaxed);
            module.end.store(0, Ordering::Relaxed);
            module.area.store(0, Ordering::Relaxed);
            module.copy.store(0, Ordering::Relaxed);
            for at in &module.trampolines {
                at.store(0, Ordering::Release);
            }
            return;
        }
        place = &other.next;
    }
}

/// Changes what one tracer wants to see in a module: of each site, whether `wants` says so. `bit` is a bit of a mask.
/// Returns the first site that it cannot have; it does not get that one. A tracer that changes registers must be the
/// only one, and cannot have [`Entry::Framed`]. One that asks for registers cannot have code that calls no trampoline
/// ([`super::Form::calls_trampoline`]), except where stubs give them, too, if it only reads them. [`super::apply`]
/// writes it. It must not be called by two threads at once.
pub fn select(
    module: &Module,
    bit: u64,
    mut wants: impl FnMut(&Site) -> bool,
) -> Option<&'static Site> {
    let modifying = tracers::ip_modifying();
    let mut refused = None;
    for site in module.sites() {
        let mask = site.wanted();
        let mut wanted = wants(site);
        let is_taken = bit & modifying != 0 && mask & modifying & !bit != 0;
        let is_given = arch::STUBS_GIVE_REGISTERS && !tracers::with_more_than_registers(bit);
        let has_none = tracers::with_registers(bit) && !is_given && !site.form().calls_trampoline();
        let is_late = bit & modifying != 0 && site.entry() != Entry::First;
        if wanted && (is_taken || has_none || is_late) {
            refused = refused.or(Some(site));
            wanted = false;
        }
        site.set_wanted(if wanted { mask | bit } else { mask & !bit });
    }
    refused
}
