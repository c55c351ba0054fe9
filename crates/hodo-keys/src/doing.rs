//! Changing a key's state and another word together.
//!
//! A process that another thread forks between the two must find out whether the first was done, and do the second.

use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};

use crate::key::Key;
use crate::lock::Guard;

/// What is being done. Used under the lock.
struct Doing {
    /// The other word; null while nothing is done.
    word: AtomicPtr<AtomicU64>,
    /// What it becomes.
    value: AtomicU64,
    key: AtomicPtr<Key>,
    /// The key's state after its change.
    after: AtomicU32,
}

static DOING: Doing = Doing {
    word: AtomicPtr::new(core::ptr::null_mut()),
    value: AtomicU64::new(0),
    key: AtomicPtr::new(core::ptr::null_mut()),
    after: AtomicU32::new(0),
};

/// From here on a user is added to a key (`more`) or taken away, and then `word` becomes `value` by [`finish`]. For
/// those who have the lock.
pub(crate) fn begin(key: &'static Key, more: bool, word: &'static AtomicU64, value: u64) {
    let before = key.state().load(Ordering::Relaxed);
    let after = if more { before + 1 } else { before - 1 };
    DOING.after.store(after, Ordering::Relaxed);
    DOING.value.store(value, Ordering::Relaxed);
    let key = core::ptr::from_ref(key).cast_mut();
    DOING.key.store(key, Ordering::Relaxed);
    let begun = core::ptr::from_ref(word).cast_mut();
    DOING.word.store(begun, Ordering::SeqCst);
}

/// Sets the word: all is done.
pub(crate) fn finish(word: &AtomicU64) {
    word.store(DOING.value.load(Ordering::Relaxed), Ordering::SeqCst);
    DOING.word.store(core::ptr::null_mut(), Ordering::SeqCst);
}

/// Finishes what a vanished thread has begun.
pub(crate) fn recover(_: &Guard) {
    // SAFETY: only what is static was stored.
    let Some(word) = (unsafe { DOING.word.load(Ordering::SeqCst).as_ref() }) else {
        return;
    };
    // SAFETY: as above; it was stored before the word.
    let key = unsafe { DOING.key.load(Ordering::Relaxed).as_ref() };
    let after = DOING.after.load(Ordering::Relaxed);
    match key.is_some_and(|key| key.state().load(Ordering::SeqCst) == after) {
        true => finish(word),
        false => DOING.word.store(core::ptr::null_mut(), Ordering::SeqCst),
    }
}
