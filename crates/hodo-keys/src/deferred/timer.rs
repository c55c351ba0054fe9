//! The thread that releases keys when their delay is over.
//!
//! A process can be forked at any moment, and its child lacks this thread. So there are no locks here, and the thread
//! holds nothing that matters: the list of all `Deferred` that it was ever given only grows, and the thread scans it.

use std::boxed::Box;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering, fence};
use std::time::{Duration, Instant};

use hodo_sys::sys;

use super::{Deferred, nanoseconds};
use crate::thread;

/// An element of the list of all [`Deferred`] that ever had to wait.
#[derive(Debug)]
#[repr(C)]
pub struct Listed {
    next: AtomicPtr<Deferred>,
    /// 0: not in the list; [`MEMBER`]; or the process that is adding it.
    who: AtomicU32,
}

const MEMBER: u32 = u32::MAX;

impl Listed {
    pub const fn new() -> Self {
        Self {
            next: AtomicPtr::new(core::ptr::null_mut()),
            who: AtomicU32::new(0),
        }
    }
}

/// The list's head.
static LIST: AtomicPtr<Deferred> = AtomicPtr::new(core::ptr::null_mut());
/// The process that has the thread; 0 if there is none. In a child of fork it is still the parent.
static OWNER: AtomicU32 = AtomicU32::new(0);
/// How often the thread was told that something is due before it would wake.
static NEWS: AtomicU32 = AtomicU32::new(0);
/// When the thread wakes, in nanoseconds.
static WAKES: AtomicU64 = AtomicU64::new(u64::MAX);

/// How long the thread stays without work, so that keys whose users come and go find it running.
const STAYS: u64 = 200_000_000;
/// How long to wait before trying again to switch a key.
const AGAIN: Duration = Duration::from_secs(1);

/// Nanoseconds since the first call in this process, or in the one that it was forked from.
pub fn now() -> u64 {
    static FIRST: AtomicPtr<Instant> = AtomicPtr::new(core::ptr::null_mut());
    let now = Instant::now();
    // SAFETY: it is never freed.
    let first = match unsafe { FIRST.load(Ordering::Acquire).as_ref() } {
        Some(first) => first,
        None => {
            let new = Box::into_raw(Box::new(now));
            let set = FIRST.compare_exchange(
                core::ptr::null_mut(),
                new,
                Ordering::AcqRel,
                Ordering::Acquire,
            );
            let first = set.map_or_else(
                |first| {
                    // SAFETY: nobody else has seen ours.
                    drop(unsafe { Box::from_raw(new) });
                    first
                },
                |_| new,
            );
            // SAFETY: it is never freed.
            unsafe { &*first }
        }
    };
    nanoseconds(now.saturating_duration_since(*first))
}

/// Makes the thread check a key when it is due. Returns false if no thread can be started.
pub fn arm(deferred: &'static Deferred, due: u64) -> bool {
    if deferred.listed.who.load(Ordering::Acquire) != MEMBER {
        enlist(deferred);
    }
    // Either we see here when the thread wakes, or the thread sees that the last user has gone.
    fence(Ordering::SeqCst);
    if due < WAKES.load(Ordering::SeqCst) {
        wake();
    }
    let me = sys::process() as u32;
    loop {
        let owner = OWNER.load(Ordering::SeqCst);
        if owner == me {
            return true;
        }
        let set = OWNER.compare_exchange(owner, me, Ordering::SeqCst, Ordering::SeqCst);
        if set.is_ok() {
            WAKES.store(u64::MAX, Ordering::SeqCst);
            let started = thread::start("hodo-keys-timer", move || run(me));
            if !started {
                OWNER.store(0, Ordering::SeqCst);
                // Others have relied on us in the meantime.
                all().for_each(|deferred| {
                    let _ = deferred.flush();
                });
            }
            return started;
        }
    }
}

/// Makes the thread check its list, if there is a thread: what it waits for may no longer be due.
pub fn wake() {
    NEWS.fetch_add(1, Ordering::SeqCst);
    sys::futex_wake(&NEWS);
}

/// Adds a key to the list, unless it is there.
fn enlist(deferred: &'static Deferred) {
    let me = sys::process() as u32;
    let listed = &deferred.listed;
    let who = listed.who.load(Ordering::Acquire);
    if who == MEMBER || who == me {
        // Another thread of this process is adding it, and makes the timer check it.
        return;
    }
    let mine = listed
        .who
        .compare_exchange(who, me, Ordering::AcqRel, Ordering::Relaxed);
    if mine.is_err() {
        return;
    }
    // A thread of the parent may have got this far.
    if who == 0 || !all().any(|other| core::ptr::eq(other, deferred)) {
        let new = core::ptr::from_ref(deferred).cast_mut();
        let mut head = LIST.load(Ordering::Acquire);
        loop {
            listed.next.store(head, Ordering::Release);
            match LIST.compare_exchange_weak(head, new, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => break,
                Err(other) => head = other,
            }
        }
    }
    listed.who.store(MEMBER, Ordering::Release);
}

/// The list.
fn all() -> impl Iterator<Item = &'static Deferred> {
    // SAFETY: members are static.
    let get = |link: &AtomicPtr<Deferred>| unsafe { link.load(Ordering::Acquire).as_ref() };
    core::iter::successors(get(&LIST), move |deferred| get(&deferred.listed.next))
}

/// Releases what is due. Returns when the next key is due, if any.
fn look() -> Option<u64> {
    let mut next: Option<u64> = None;
    for deferred in all() {
        let rest = deferred.poll(Duration::from_nanos(now()));
        let rest = rest.unwrap_or_else(|_| deferred.is_lingering().then_some(AGAIN));
        if let Some(rest) = rest {
            let due = now().saturating_add(nanoseconds(rest));
            next = Some(next.map_or(due, |next| next.min(due)));
        }
    }
    next
}

fn run(me: u32) {
    let mut idle = None;
    loop {
        let news = NEWS.load(Ordering::SeqCst);
        WAKES.store(u64::MAX, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        let wakes = match look() {
            Some(next) => {
                idle = None;
                next
            }
            None => {
                let end = *idle.get_or_insert_with(|| now() + STAYS);
                if now() >= end {
                    OWNER.store(0, Ordering::SeqCst);
                    fence(Ordering::SeqCst);
                    // Somebody may have relied on us just now.
                    if !all().any(Deferred::is_lingering)
                        || OWNER
                            .compare_exchange(0, me, Ordering::SeqCst, Ordering::SeqCst)
                            .is_err()
                    {
                        return;
                    }
                    idle = None;
                    continue;
                }
                end
            }
        };
        WAKES.store(wakes, Ordering::SeqCst);
        let rest = Duration::from_nanos(wakes.saturating_sub(now()));
        sys::futex_wait(&NEWS, news, rest);
    }
}
