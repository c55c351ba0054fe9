//! The executables and libraries that have branches, and their tables.
//!
//! A file may have branches of Rust code and of C code. It then registers once for each language, perhaps with two
//! copies of this library (Rust's linked into the file, C's a shared library). Each record stands for the branches on
//! keys that were defined in its language, so no branch is changed by two copies, which would not share a lock.
//!
//! The table in a program's file is never modified: if one thread forked the process while another was sorting, the
//! child would have a half-sorted table. On Linux the sorted table is a copy, which a child makes again. Where there is
//! no fork, the table is sorted in place.

use core::ops::Range;
use core::slice;
use core::sync::atomic::{AtomicI64, AtomicPtr, AtomicU32, AtomicUsize, Ordering};

use crate::arch::{self, Branch, Entry};
use crate::error::Error;
use crate::key::Key;
use crate::lock::Guard;

/// An executable or library with branches. The record is in the module's writable data, where the assembler has put it
/// (`arch`).
#[derive(Debug)]
#[repr(C)]
pub struct Module {
    /// Distances, counted from the fields themselves.
    start: AtomicI64,
    stop: AtomicI64,
    next: AtomicPtr<Module>,
    /// The sorted table. Its distances are counted from the start of the module's own table.
    sorted: AtomicPtr<Entry>,
    /// The process that sorted it.
    process: AtomicU32,
    /// In which language the keys are defined whose branches this record stands for: [`RUST`] or [`C`].
    language: u32,
    /// How many entries the sorted table has.
    count: AtomicUsize,
}

/// Keys that the macros of this crate define.
const RUST: u32 = 0;
/// Keys that `hodo-keys.h` defines.
const C: u32 = 1;

/// The language in which a key is defined.
fn language(key: &Key) -> u32 {
    if key.is_from_c() { C } else { RUST }
}

impl Module {
    const fn new() -> Self {
        Self {
            start: AtomicI64::new(0),
            stop: AtomicI64::new(0),
            next: AtomicPtr::new(core::ptr::null_mut()),
            sorted: AtomicPtr::new(core::ptr::null_mut()),
            process: AtomicU32::new(0),
            language: RUST,
            count: AtomicUsize::new(0),
        }
    }

    /// Returns whether both stand for the same branches.
    fn is(&self, other: &Self) -> bool {
        self.bounds() == other.bounds() && self.language == other.language
    }

    /// The bounds of the table of entries. Empty if the linker has removed all of them.
    fn bounds(&self) -> Range<usize> {
        let address = |field: &AtomicI64| {
            let at = core::ptr::from_ref(field).addr();
            at.wrapping_add_signed(field.load(Ordering::Relaxed) as isize)
        };
        address(&self.start)..address(&self.stop)
    }

    fn set_bounds(&self, bounds: &Range<usize>) {
        let set = |field: &AtomicI64, address: usize| {
            let at = core::ptr::from_ref(field).addr();
            field.store(address.wrapping_sub(at) as i64, Ordering::Relaxed);
        };
        set(&self.start, bounds.start);
        set(&self.stop, bounds.end);
    }

    /// How many entries there are.
    fn length(&self) -> usize {
        self.bounds().len() / size_of::<Entry>()
    }

    /// Sorts the entries by key, and by address for each key.
    pub fn sort(&'static self, guard: &Guard) -> Result<(), Error> {
        let process = guard.process();
        let old = self.sorted.load(Ordering::Relaxed);
        if !old.is_null() && self.process.load(Ordering::Relaxed) == process {
            return Ok(());
        }
        let base = self.bounds().start;
        let length = self.length();
        let own = base as *mut Entry;
        // A child of fork finds the parent's table in its own memory, but it may be half done.
        let place = if old.is_null() {
            copy::room(own, length)?
        } else {
            old
        };
        let mut count = 0;
        for index in 0..length {
            // SAFETY: both have that many entries; they are the same, or do not overlap. What is written was read.
            unsafe {
                let mut entry = own.add(index).read();
                entry.rebase(base + index * size_of::<Entry>(), base);
                let key = entry.branch(base).key as *const Key;
                if language(&*key) == self.language {
                    place.add(count).write(entry);
                    count += 1;
                }
            }
        }
        // SAFETY: it has just been filled, and is used only under the lock.
        let entries = unsafe { slice::from_raw_parts_mut(place, count) };
        entries.sort_unstable_by_key(|entry| {
            // SAFETY: it has just been rebased, and the module is relocated.
            let branch = unsafe { entry.branch(base) };
            (branch.key, branch.code)
        });
        self.count.store(count, Ordering::Relaxed);
        self.process.store(process, Ordering::Relaxed);
        self.sorted.store(place, Ordering::Release);
        Ok(())
    }

    /// The sorted table; empty if it cannot be sorted.
    pub fn table(&'static self, guard: &Guard) -> Table {
        let base = self.bounds().start;
        let entries = if self.sort(guard).is_err() {
            &[]
        } else {
            let sorted = self.sorted.load(Ordering::Acquire);
            // SAFETY: once it is sorted, nobody writes to it.
            unsafe { slice::from_raw_parts(sorted, self.count.load(Ordering::Relaxed)) }
        };
        Table { base, entries }
    }

    /// Frees the sorted table.
    pub fn forget(&'static self, _: &Guard) {
        let sorted = self.sorted.swap(core::ptr::null_mut(), Ordering::AcqRel);
        if !sorted.is_null() {
            // SAFETY: `sort` allocated it that way.
            unsafe { copy::free(sorted, self.length()) };
        }
    }
}

#[cfg(target_os = "linux")]
mod copy {
    use hodo_sys::sys;

    use super::{Entry, Error};

    /// Memory for a sorted table.
    pub fn room(_: *mut Entry, length: usize) -> Result<*mut Entry, Error> {
        let memory = sys::map(length * size_of::<Entry>()).map_err(Error::Text)?;
        Ok(memory.cast())
    }

    /// Frees it.
    ///
    /// # Safety
    /// It is what [`room`] has returned for this length, and is not used any more.
    pub unsafe fn free(table: *mut Entry, length: usize) {
        // SAFETY: as the caller promises.
        unsafe { sys::unmap(table.cast(), length * size_of::<Entry>()) };
    }
}

#[cfg(not(target_os = "linux"))]
mod copy {
    use super::{Entry, Error};

    /// The module's own table.
    pub fn room(own: *mut Entry, _: usize) -> Result<*mut Entry, Error> {
        Ok(own)
    }

    /// Does nothing: the memory is the module's.
    pub unsafe fn free(_: *mut Entry, _: usize) {}
}

/// The sorted table of one module.
#[derive(Clone, Copy)]
pub struct Table {
    base: usize,
    entries: &'static [Entry],
}

impl Table {
    fn branch(self, entry: &Entry) -> Branch {
        // SAFETY: `Module::sort` has rebased it.
        unsafe { entry.branch(self.base) }
    }

    /// All branches, by key.
    pub fn all(self) -> impl Iterator<Item = Branch> {
        self.entries.iter().map(move |entry| self.branch(entry))
    }

    /// The keys, each once.
    pub fn keys(self) -> impl Iterator<Item = &'static Key> {
        let mut last = 0;
        self.all().filter_map(move |branch| {
            let new = branch.key != last;
            last = branch.key;
            // SAFETY: keys are never freed before the branches on them.
            new.then(|| unsafe { &*(branch.key as *const Key) })
        })
    }

    /// The branches of a key.
    pub fn of(self, key: &'static Key) -> impl Iterator<Item = Branch> {
        let key = core::ptr::from_ref(key).addr();
        let first = self
            .entries
            .partition_point(|entry| self.branch(entry).key < key);
        self.entries[first..]
            .iter()
            .map(move |entry| self.branch(entry))
            .take_while(move |branch| branch.key == key)
    }
}

/// The first module of the list. Changed under the lock.
static MODULES: AtomicPtr<Module> = AtomicPtr::new(core::ptr::null_mut());

/// All modules.
fn all(_: &Guard) -> impl Iterator<Item = &'static Module> + use<> {
    // SAFETY: modules are removed from the list, under the lock, before they are unmapped.
    let get = |module: &AtomicPtr<Module>| unsafe { module.load(Ordering::Acquire).as_ref() };
    core::iter::successors(get(&MODULES), move |module| get(&module.next))
}

/// The tables of all modules.
pub fn tables(guard: &Guard) -> impl Iterator<Item = Table> {
    all(guard).map(|module| module.table(guard))
}

/// Sorts the tables that are not sorted yet.
pub fn sort(guard: &Guard) -> Result<(), Error> {
    find_own(guard);
    all(guard).try_for_each(|module| module.sort(guard))
}

/// Adds a module, if it has branches and was not added before. Returns whether it did.
pub fn add(guard: &Guard, new: &'static Module) -> bool {
    if new.bounds().is_empty() || all(guard).any(|module| module.is(new)) {
        return false;
    }
    #[cfg(target_os = "linux")]
    hodo_sys::branches::set(begins_in);
    let first = MODULES.load(Ordering::Relaxed);
    new.next.store(first, Ordering::Relaxed);
    MODULES.store(core::ptr::from_ref(new).cast_mut(), Ordering::Release);
    true
}

/// Returns whether a branch begins in a range of code. If the lock cannot be taken, that is not known, which counts as
/// yes.
#[cfg(target_os = "linux")]
fn begins_in(code: Range<u64>) -> bool {
    let Ok(guard) = crate::lock::take() else {
        return true;
    };
    all(&guard).any(|module| {
        let base = module.bounds().start;
        (0..module.length()).any(|index| {
            let at = base + index * size_of::<Entry>();
            // SAFETY: it is within the table, which is never modified.
            let entry = unsafe { (at as *const Entry).read() };
            code.contains(&(entry.begins_at(at) as u64))
        })
    })
}

/// Removes a module that is being unloaded from the list.
pub fn remove(guard: &Guard, old: &Module) -> Option<&'static Module> {
    let mut link = &MODULES;
    for module in all(guard) {
        if module.is(old) {
            link.store(module.next.load(Ordering::Acquire), Ordering::Release);
            return Some(module);
        }
        link = &module.next;
    }
    None
}

/// Adds the module that this library is linked into, which need not have announced itself: in programs without a C
/// library's start-up code constructors do not run, and other threads may still switch keys after destructors have run.
fn find_own(guard: &Guard) {
    static OWN: Module = Module::new();
    let bounds = arch::own_table();
    if OWN.bounds() != bounds {
        OWN.set_bounds(&bounds);
    }
    add(guard, &OWN);
}
