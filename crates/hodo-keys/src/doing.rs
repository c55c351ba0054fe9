//! Changes a key's state and another word together.
//!
//! A process that another thread forks between the two changes must find out whether the first one was made, and make
//! the second.

use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};

use crate::key::Key;
use crate::lock::Guard;

/// The change in progress. Used under the lock.
struct Doing {
    /// The other word; null while no change is in progress.
    word: AtomicPtr<AtomicU64>,
    /// The word's new value.
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

/// Begins a change: a user is added to a key (`more`) or removed, and then [`finish`] sets `word` to `value`. The
/// caller holds the lock.
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

/// Sets the word: the change is complete.
pub(crate) fn finish(word: &AtomicU64) {
    word.store(DOING.value.load(Ordering::Relaxed), Ordering::SeqCst);
    DOING.word.store(core::ptr::null_mut(), Ordering::SeqCst);
}

/// Completes what a vanished thread has begun.
pub(crate) fn recover(_: &Guard) {
    // SAFETY: only addresses of statics were stored.
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
