//! Switches keys: changes their states and their branches.

use core::sync::atomic::{AtomicBool, Ordering};

use crate::arch::{self, Branch, Step};
use crate::doing;
use crate::error::Error;
use crate::key::{Change, Key, ON, Operation};
use crate::lock::{self, Guard};
use crate::modules::{self, Table};
use crate::text::{self, Text};
use hodo_sys::poke;

/// Switches one key at once.
impl Key {
    /// Switches it on: all its branches take their true side. Once this has returned, that holds for every thread.
    pub fn enable(&'static self) -> Result<(), Error> {
        switch(&[self.enabling()])
    }

    /// Switches it off. It stays enabled as long as it has users.
    pub fn disable(&'static self) -> Result<(), Error> {
        switch(&[self.disabling()])
    }

    /// Adds a user. The first one enables the key.
    pub fn inc(&'static self) -> Result<(), Error> {
        switch(&[self.incrementing()])
    }

    /// Removes a user. After the last one the key is disabled, unless it is switched on.
    ///
    /// # Errors
    /// [`Error::NoUser`] if there is none.
    pub fn dec(&'static self) -> Result<(), Error> {
        switch(&[self.decrementing()])
    }
}

/// Whether any key was ever switched: if not, modules are already right when they are loaded.
static SWITCHED: AtomicBool = AtomicBool::new(false);

/// Makes all changes in order, and synchronizes the processors once for all of them. Once it has returned, every thread
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
/// Nothing is changed then, with one exception: if the kernel refuses to write in the middle of the change, the keys
/// have their new state but not all of their branches do; these follow when any key is switched the next time.
pub fn switch(changes: &[Change]) -> Result<(), Error> {
    locked(|guard| switch_locked(guard, changes, |count| count()))
}

/// Returns whether any key was ever switched in this process or in one that it was forked from.
pub(crate) fn was_any_switched() -> bool {
    SWITCHED.load(Ordering::Relaxed)
}

/// Does something while no other thread switches keys, after completing whatever was left unfinished.
pub(crate) fn locked<R>(work: impl FnOnce(&Guard) -> Result<R, Error>) -> Result<R, Error> {
    let guard = lock::take()?;
    SWITCHED.store(true, Ordering::Relaxed);
    modules::sort(&guard)?;
    if guard.unsettled() || UNFINISHED.load(Ordering::Relaxed) {
        // This is a child of fork, without the parent's thread that was in the middle of a change.
        doing::recover(&guard);
        finish(|| modules::tables(&guard).flat_map(Table::all))?;
        guard.settled();
        UNFINISHED.store(false, Ordering::Relaxed);
    }
    work(&guard)
}

/// Like [`switch`]. `counting` must call the function that it gets, which changes the keys' states.
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

/// Makes the branches of a key match its state.
pub(crate) fn settle(guard: &Guard, key: &'static Key) -> Result<(), Error> {
    let branches = || modules::tables(guard).flat_map(|table| table.of(key));
    prepare(branches)?.settle(branches)
}

/// All keys that have branches, once per module that has them.
pub(crate) fn keys(guard: &Guard) -> impl Iterator<Item = &'static Key> {
    modules::tables(guard).flat_map(Table::keys)
}

/// Lets `count` change the states of keys, and then makes the branches of all keys that `which` chooses match their
/// states.
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

/// Records that states of keys were changed, but not their branches: the next switch catches up.
pub(crate) fn left_unfinished(_: &Guard) {
    UNFINISHED.store(true, Ordering::Relaxed);
}

/// Checks whether each change can be made after those before it.
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

/// Does everything that can fail, before anything is changed.
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
    // Kernels may allow opening `/proc/self/mem`, and still refuse to write code.
    if !WRITABLE.load(Ordering::Relaxed)
        && let Some(branch) = branches().next()
    {
        // SAFETY: the module is loaded, and the same bytes are written again.
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

/// Makes branches match their keys, if one of them does not.
pub(crate) fn finish<I: Iterator<Item = Branch>>(branches: impl Fn() -> I) -> Result<(), Error> {
    let is_wrong = |branch| (0..arch::STEPS).any(|step| next_step(step, &branch, false).is_some());
    if branches().any(is_wrong) {
        Session::begin()?.settle(branches)?;
    }
    Ok(())
}

/// What must be written at a branch in this step to bring it into its wanted state.
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

/// Whether code has ever been written.
static WRITABLE: AtomicBool = AtomicBool::new(false);

/// Whether code could not be written in the middle of a change, or for a new module: some branches are then wrong until
/// a key is switched.
static UNFINISHED: AtomicBool = AtomicBool::new(false);

/// Code can be written as long as this lives.
struct Session(poke::Session<'static, dyn Text>);

impl Session {
    fn begin() -> Result<Self, Error> {
        let text = text::current().ok_or(Error::Text(text::ENOSYS))?;
        poke::Session::begin(text).map(Self).map_err(Error::Text)
    }

    /// Makes branches match their keys' states. Each step first reads what is at the branch, so this also finishes what
    /// was begun elsewhere. Bytes that are no longer a branch are left alone.
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
                    // SAFETY: threads can execute the code after each step, see `arch`.
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

/// A key that has branches in this process.
#[derive(Debug, Clone, Copy)]
pub struct Found {
    /// The key.
    pub key: &'static Key,
    /// The number of branches on it.
    pub branches: usize,
}

/// Calls a function for each key that has branches in a module; this may be more than once per key. The function must
/// not switch keys.
pub fn for_each(found: impl FnMut(Found)) -> Result<(), Error> {
    looking(|guard| for_each_locked(guard, found))
}

/// Does something that changes nothing, while no key is switched and no module is loaded or unloaded.
pub(crate) fn looking<R>(work: impl FnOnce(&Guard) -> R) -> Result<R, Error> {
    let guard = lock::take()?;
    modules::sort(&guard)?;
    Ok(work(&guard))
}

/// Like [`for_each`], inside [`locked`] or [`looking`].
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
