//! Changing branches.

use core::fmt;
use core::sync::atomic::{AtomicBool, Ordering};

use crate::arch::{self, Branch, Step};
use crate::deferred;
use crate::key::{Key, ON};
use crate::lock::{self, Guard};
use crate::modules::{self, Module, Table};
use crate::text::{self, Errno, Text};
use crate::tracepoint::{self, Tracepoint};

/// What is to happen to a key. Made by [`Key::enabling`] and its like, carried out by [`switch`].
#[derive(Debug, Clone, Copy)]
pub struct Change {
    key: &'static Key,
    operation: Operation,
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum Operation {
    Enable,
    Disable,
    Increment,
    Decrement,
}

impl Change {
    pub(crate) fn new(key: &'static Key, operation: Operation) -> Self {
        Self { key, operation }
    }

    /// Whether the key becomes enabled or disabled by this.
    fn toggles(&self) -> bool {
        let state = self.key.state().load(Ordering::Relaxed);
        match self.operation {
            Operation::Enable | Operation::Increment => state == 0,
            Operation::Disable => state == ON,
            Operation::Decrement => state == 1,
        }
    }

    /// Changes the key's state, which was checked.
    fn count(&self) {
        let state = self.key.state();
        match self.operation {
            Operation::Enable => state.fetch_or(ON, Ordering::AcqRel),
            Operation::Disable => state.fetch_and(!ON, Ordering::AcqRel),
            Operation::Increment => state.fetch_add(1, Ordering::AcqRel),
            Operation::Decrement => state.fetch_sub(1, Ordering::AcqRel),
        };
    }
}

/// Why a key could not be switched. Nothing is changed then.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// Code cannot be written: a number of `errno.h`. On Linux `/proc/self/mem` is written, and `membarrier` called.
    Text(Errno),
    /// At a branch is what no branch can be: a breakpoint of a debugger, or somebody else's patch.
    Foreign {
        /// The branch.
        address: usize,
        /// The first byte there.
        found: u8,
    },
    /// [`Key::dec`] of a key without users.
    NoUser {
        /// The key's name.
        key: &'static str,
    },
    /// More users than can be counted.
    TooManyUsers {
        /// The key's name.
        key: &'static str,
    },
    /// A signal handler has interrupted this thread while it switched a key.
    Busy,
    /// What was given as a pattern cannot match the name of a tracepoint.
    Pattern,
    /// As many functions are registered for tracepoints as there can be.
    TooManyFunctions,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(errno) => write!(
                f,
                "the code of static branches cannot be changed (error {errno}): /proc/self/mem must be writable, and the kernel have membarrier (Linux 4.16)"
            ),
            Self::Foreign { address, found } => write!(
                f,
                "the static branch at {address:#x} was changed by something else (it begins with byte {found:#04x}): a breakpoint, or another tool's patch"
            ),
            Self::NoUser { key } => write!(f, "static key {key} has no user: dec without inc"),
            Self::TooManyUsers { key } => write!(f, "static key {key} has too many users"),
            Self::Busy => write!(
                f,
                "a static key was being switched when this signal handler began"
            ),
            Self::Pattern => write!(
                f,
                "a pattern of tracepoints is `group:name`, with `*` for any characters and `?` for one, of at most 192 bytes"
            ),
            Self::TooManyFunctions => write!(
                f,
                "64 functions are registered for tracepoints, which is the limit"
            ),
        }
    }
}

impl core::error::Error for Error {}

/// Whether any key was ever switched: if not, modules are as they should be when they are loaded.
static SWITCHED: AtomicBool = AtomicBool::new(false);

/// Called by the constructor of each module that has branches.
///
/// # Safety
/// It is the module's record.
pub unsafe extern "C" fn load(module: *mut Module) {
    let guard = lock::wait();
    // SAFETY: it is mapped as long as it is in the list.
    let new: &'static Module = unsafe { &*module };
    if !modules::add(&guard, new) || !SWITCHED.load(Ordering::Relaxed) {
        return;
    }
    let settled = new.sort(&guard).and_then(|()| {
        let table = new.table(&guard);
        let tracepoints = table.keys().filter_map(Tracepoint::of);
        tracepoints.for_each(|tracepoint| tracepoint::loaded(tracepoint, &guard));
        finish(|| table.all())
    });
    if settled.is_err() {
        UNFINISHED.store(true, Ordering::Relaxed);
    }
}

/// Called by the destructor of each module that has branches.
///
/// # Safety
/// It is the module's record.
pub unsafe extern "C" fn unload(module: *mut Module) {
    let guard = lock::wait();
    // SAFETY: it is mapped until this returns.
    let Some(module) = modules::remove(&guard, unsafe { &*module }) else {
        return;
    };
    if tracepoint::any_registered() {
        let table = module.table(&guard);
        for tracepoint in table.keys().filter_map(Tracepoint::of) {
            let elsewhere = |table: Table| table.of(tracepoint.key()).next().is_some();
            if !modules::tables(&guard).any(elsewhere) {
                tracepoint::unloaded(tracepoint, &guard);
            }
        }
    }
    module.forget(&guard);
}

/// Makes all changes, in their order; processors are synchronized once for all of them. When it returns, every thread
/// executes the new branches.
///
/// ```
/// hodo_keys::define_static_key_false!(FAST; SAFE);
/// hodo_keys::switch(&[FAST.enabling(), SAFE.disabling()])?;
/// assert!(FAST.is_enabled());
/// # Ok::<(), hodo_keys::Error>(())
/// ```
///
/// # Errors
/// Nothing is changed then. Only if the kernel refuses to write in the middle of it, the keys have their new state but not all
/// of their branches; these follow when any key is switched the next time.
pub fn switch(changes: &[Change]) -> Result<(), Error> {
    locked(|guard| switch_locked(guard, changes, |count| count()))
}

/// Does something while no other thread switches keys, after all that was left undone is done.
pub(crate) fn locked<R>(work: impl FnOnce(&Guard) -> Result<R, Error>) -> Result<R, Error> {
    let guard = lock::take()?;
    SWITCHED.store(true, Ordering::Relaxed);
    modules::sort(&guard)?;
    if guard.unsettled() || UNFINISHED.load(Ordering::Relaxed) {
        // A child of fork: the parent's thread that was in the middle of a change is not there.
        deferred::recover(&guard);
        finish(|| modules::tables(&guard).flat_map(Table::all))?;
        guard.settled();
        UNFINISHED.store(false, Ordering::Relaxed);
    }
    work(&guard)
}

/// [`switch`]. `counting` is to call the function that it gets: keys' states are changed in it.
pub(crate) fn switch_locked(
    guard: &Guard,
    changes: &[Change],
    counting: impl FnOnce(&dyn Fn()),
) -> Result<(), Error> {
    check_users(changes)?;
    let count = || changes.iter().for_each(Change::count);
    if let [change] = changes
        && !change.toggles()
    {
        counting(&count);
        return Ok(());
    }
    let branches = || {
        modules::tables(guard)
            .flat_map(|table| changes.iter().flat_map(move |change| table.of(change.key)))
    };
    let session = prepare(branches)?;
    counting(&count);
    session.settle(branches)
}

/// Makes the branches of a key what its state says, if they are not.
pub(crate) fn settle(guard: &Guard, key: &'static Key) -> Result<(), Error> {
    let branches = || modules::tables(guard).flat_map(|table| table.of(key));
    prepare(branches)?.settle(branches)
}

/// All keys that have branches: once for each module that has them.
pub(crate) fn keys(guard: &Guard) -> impl Iterator<Item = &'static Key> {
    modules::tables(guard).flat_map(Table::keys)
}

/// Has `count` change the states of keys, and then the branches of all keys that `which` chooses be what their states say.
///
/// # Errors
/// As [`switch`].
pub(crate) fn rewrite(
    guard: &Guard,
    which: impl Fn(&'static Key) -> bool,
    count: impl FnOnce(),
) -> Result<(), Error> {
    let branches = || {
        modules::tables(guard).flat_map(|table| {
            let keys = table.keys().filter(|key| which(key));
            keys.flat_map(move |key| table.of(key))
        })
    };
    let session = prepare(branches)?;
    count();
    session.settle(branches)
}

/// States of keys were changed, but not their branches: the next switch makes up for it.
pub(crate) fn left_unfinished(_: &Guard) {
    UNFINISHED.store(true, Ordering::Relaxed);
}

/// Looks whether each change can be made after those before it.
fn check_users(changes: &[Change]) -> Result<(), Error> {
    for (index, change) in changes.iter().enumerate() {
        if matches!(change.operation, Operation::Enable | Operation::Disable) {
            continue;
        }
        let key = change.key.name();
        let mut users = i64::from(change.key.users());
        let same = |other: &&Change| core::ptr::eq(other.key, change.key);
        for other in changes[..=index].iter().filter(same) {
            users += match other.operation {
                Operation::Increment => 1,
                Operation::Decrement => -1,
                Operation::Enable | Operation::Disable => 0,
            };
        }
        match change.operation {
            Operation::Decrement if users < 0 => return Err(Error::NoUser { key }),
            Operation::Increment if users >= i64::from(ON) => {
                return Err(Error::TooManyUsers { key });
            }
            _ => {}
        }
    }
    Ok(())
}

/// All that can fail before anything is changed.
fn prepare<I: Iterator<Item = Branch>>(branches: impl Fn() -> I) -> Result<Session, Error> {
    for branch in branches() {
        // SAFETY: the module is loaded.
        let bytes = unsafe { arch::bytes(&branch) };
        if !arch::is_branch(&bytes) {
            return Err(Error::Foreign {
                address: branch.code,
                found: bytes[0],
            });
        }
    }
    let session = Session::begin()?;
    // Kernels may let `/proc/self/mem` be opened, and refuse to write code.
    if !WRITABLE.load(Ordering::Relaxed)
        && let Some(branch) = branches().next()
    {
        // SAFETY: the module is loaded, and what is there is written again.
        unsafe {
            session
                .0
                .write(branch.code, &arch::bytes(&branch)[..arch::FIRST])
        }
        .map_err(Error::Text)?;
        WRITABLE.store(true, Ordering::Relaxed);
    }
    Ok(session)
}

/// Makes branches what they should be, if one of them is not.
fn finish<I: Iterator<Item = Branch>>(branches: impl Fn() -> I) -> Result<(), Error> {
    let is_wrong = |branch| (0..arch::STEPS).any(|step| next_step(step, &branch, false).is_some());
    if branches().any(is_wrong) {
        Session::begin()?.settle(branches)?;
    }
    Ok(())
}

/// What is to be written at a branch in one of the steps to what it should be.
fn next_step(number: usize, branch: &Branch, words: bool) -> Option<Step> {
    // SAFETY: the module is loaded.
    let bytes = unsafe { arch::bytes(branch) };
    if !arch::is_branch(&bytes) {
        return None;
    }
    // SAFETY: keys are never freed before the branches on them.
    let key = unsafe { &*(branch.key as *const Key) };
    let jump = key.is_enabled() != branch.likely;
    arch::step(number, branch, &bytes, jump, words)
}

/// Whether code was ever written.
static WRITABLE: AtomicBool = AtomicBool::new(false);

/// Whether code could not be written in the middle of a change, or for a new module: then there are branches that are not what
/// they should be, until a key is switched.
static UNFINISHED: AtomicBool = AtomicBool::new(false);

/// Code can be written as long as this lives.
struct Session(&'static dyn Text);

impl Session {
    fn begin() -> Result<Self, Error> {
        let text = text::current().ok_or(Error::Text(text::ENOSYS))?;
        text.begin().map_err(Error::Text)?;
        Ok(Self(text))
    }

    /// Makes branches what their keys' states say. What a branch needs is read from it before each step, so this also finishes
    /// what was begun elsewhere. What is no branch any more is left as it is.
    fn settle<I: Iterator<Item = Branch>>(self, branches: impl Fn() -> I) -> Result<(), Error> {
        self.write(branches)
            .inspect_err(|_| UNFINISHED.store(true, Ordering::Relaxed))
    }

    fn write<I: Iterator<Item = Branch>>(&self, branches: impl Fn() -> I) -> Result<(), Error> {
        let words = self.0.writes_words();
        for number in 0..arch::STEPS {
            let mut written = false;
            for branch in branches() {
                if let Some(step) = next_step(number, &branch, words) {
                    let at = branch.code + step.range.start;
                    // SAFETY: threads can execute it after each of the steps, see `arch`.
                    unsafe { self.0.write(at, &step.bytes[step.range]) }.map_err(Error::Text)?;
                    written = true;
                }
            }
            if written {
                self.0.sync();
            }
        }
        Ok(())
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// A key that has branches in this process.
#[derive(Debug, Clone, Copy)]
pub struct Found {
    /// The key.
    pub key: &'static Key,
    /// How many branches on it there are.
    pub branches: usize,
}

/// Calls a function for each key that has branches in a module, which may be more than once for one key. No key may be
/// switched meanwhile by the same thread.
pub fn for_each(found: impl FnMut(Found)) -> Result<(), Error> {
    looking(|guard| for_each_locked(guard, found))
}

/// Does something that changes nothing, while no key is switched and no module comes or goes.
pub(crate) fn looking<R>(work: impl FnOnce(&Guard) -> R) -> Result<R, Error> {
    let guard = lock::take()?;
    modules::sort(&guard)?;
    Ok(work(&guard))
}

/// [`for_each`], in [`locked`] or [`looking`].
pub(crate) fn for_each_locked(guard: &Guard, mut found: impl FnMut(Found)) {
    for table in modules::tables(guard) {
        let mut rest = table.all().peekable();
        while let Some(first) = rest.next() {
            let mut branches = 1;
            while rest.next_if(|next| next.key == first.key).is_some() {
                branches += 1;
            }
            // SAFETY: keys are never freed before the branches on them.
            let key = unsafe { &*(first.key as *const Key) };
            found(Found { key, branches });
        }
    }
}
