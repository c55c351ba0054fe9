//! Callsites of events and spans, and their keys.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use hodo_keys::{AnnotatedKey, Change, Error};
use tracing_core::subscriber::Interest;
use tracing_core::{Metadata, callsite};

/// A place with an event or a span. Subscribers see a callsite like those of `tracing`, with the same level, target and
/// fields.
#[derive(Debug)]
pub struct Callsite {
    key: &'static AnnotatedKey<true>,
    metadata: &'static Metadata<'static>,
    /// Whether `tracing` knows it. Changed under [`KEYS`], like the others.
    registered: AtomicBool,
    /// Its key is switched together with others, once all have been asked for.
    later: AtomicBool,
    wanted: AtomicBool,
}

/// Held while keys are set to what subscribers want, so that the last request counts. Contains the last error.
static KEYS: Mutex<Option<Error>> = Mutex::new(None);

fn keys() -> MutexGuard<'static, Option<Error>> {
    KEYS.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Callsite {
    /// Makes a place; it must become a `static`.
    #[doc(hidden)]
    #[must_use]
    pub const fn new(
        key: &'static AnnotatedKey<true>,
        metadata: &'static Metadata<'static>,
    ) -> Self {
        Self {
            key,
            metadata,
            registered: AtomicBool::new(false),
            later: AtomicBool::new(true),
            wanted: AtomicBool::new(true),
        }
    }

    fn change(&self) -> Change {
        if self.wanted.load(Ordering::Relaxed) {
            self.key.enabling()
        } else {
            self.key.disabling()
        }
    }
}

impl tracing_core::Callsite for Callsite {
    fn set_interest(&self, interest: Interest) {
        let mut error = keys();
        self.wanted.store(!interest.is_never(), Ordering::Relaxed);
        if !self.later.load(Ordering::Relaxed)
            && let Err(new) = hodo_keys::switch(&[self.change()])
        {
            *error = Some(new);
        }
    }

    fn metadata(&self) -> &Metadata<'_> {
        self.metadata
    }
}

/// From now on, the keys of all events and spans of this crate's macros follow the interest of subscribers. Returns the
/// number of keys.
///
/// Call it at the beginning of the program. `tracing` asks all subscribers whenever one is created; but for callsites
/// that are registered later it asks only the thread's current subscriber, if there is no more than one.
///
/// It may be called again: after a library was loaded, whose events are enabled until then; or to switch keys that
/// could not be switched.
///
/// # Errors
/// Those of [`hodo_keys::switch`]: the program cannot change its own code. Keys then stay enabled, and no event is
/// lost.
pub fn install() -> Result<usize, Error> {
    let mut all: Vec<&'static Callsite> = Vec::new();
    hodo_keys::for_each(|found| {
        let note = found.key.note();
        all.extend(note.and_then(|note| note.downcast_ref::<Callsite>()));
    })?;
    // A key may be used by several libraries.
    all.sort_unstable_by_key(|callsite| core::ptr::from_ref::<Callsite>(callsite));
    all.dedup_by(|a, b| core::ptr::eq::<Callsite>(*a, *b));
    for callsite in &all {
        let first = {
            let _keys = keys();
            !callsite.registered.swap(true, Ordering::Relaxed)
        };
        if first {
            // This asks for its interest.
            callsite::register(*callsite);
        }
    }
    let _keys = keys();
    let changes: Vec<Change> = all.iter().map(|callsite| callsite.change()).collect();
    for callsite in &all {
        callsite.later.store(false, Ordering::Relaxed);
    }
    hodo_keys::switch(&changes)?;
    Ok(all.len())
}

/// Why a key could not be switched when the interest of subscribers last changed, if that has ever happened. Until
/// [`install`] succeeds, events may then be missing, or cost what they cost with `tracing`.
#[must_use]
pub fn last_error() -> Option<Error> {
    *keys()
}
