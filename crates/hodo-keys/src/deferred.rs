//! Keys that are disabled some time after their last user has gone.

use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;

use crate::doing;
use crate::error::Error;
use crate::key::Key;
use crate::lock::Guard;
use crate::registry;

#[cfg(all(feature = "std", target_os = "linux"))]
mod timer;

/// Counts the users of a key, and keeps it enabled for some time after the last one has gone: a key that is taken and
/// released thousands of times a second is not switched each time. Linux has the same: `static_key_slow_dec_deferred`
/// and `jump_label_rate_limit`.
///
/// ```
/// use std::time::Duration;
/// use hodo_keys::{Deferred, define_static_key_false, static_branch_unlikely};
///
/// define_static_key_false!(WATCHED);
/// static WATCHERS: Deferred = Deferred::new(WATCHED.key(), Duration::from_millis(100));
///
/// WATCHERS.inc()?; // switches
/// WATCHERS.dec()?; // does not
/// assert!(static_branch_unlikely!(WATCHED));
/// WATCHERS.inc()?; // does not, either
/// WATCHERS.dec()?;
/// WATCHERS.flush()?; // does
/// assert!(!static_branch_unlikely!(WATCHED));
/// # Ok::<(), hodo_keys::Error>(())
/// ```
///
/// All its users together are one user of the key ([`Key::users`]): from the first [`Deferred::inc`] until the delay
/// after the last [`Deferred::dec`] is over. The delay starts again each time the last user goes. Others may use the
/// key as well, through its own methods or another `Deferred`: it stays enabled while anybody needs it. While the key
/// is held, `inc` and `dec` take a few atomic instructions, and the last user's `dec` also reads the clock. Signal
/// handlers may then call `inc`.
///
/// With the feature `std`, a thread of this crate releases the key when the delay is over. There is one such thread,
/// named `hodo-keys-timer`; it starts when it is first needed, and ends when nothing is due any more. Without `std`,
/// callers of [`Deferred::dec_at`] and [`Deferred::poll`] say what time it is.
///
/// A child of `fork` inherits the users of its parent, but not the thread: a key whose delay was running stays enabled
/// there until the next `dec` of any `Deferred`, or `flush`.
// C programs define it as `struct hodo_key_deferred`.
#[derive(Debug)]
#[repr(C)]
pub struct Deferred {
    key: &'static Key,
    /// Nanoseconds.
    delay: AtomicU64,
    /// Number of users, [`COUNTED`] and [`READY`].
    state: AtomicU64,
    /// When the last user's delay ends, in nanoseconds.
    due: AtomicU64,
    #[cfg(all(feature = "std", target_os = "linux"))]
    listed: timer::Listed,
}

/// Bit of [`Deferred::state`]: we are a user of the key. Changed under the lock.
const COUNTED: u64 = 1 << 62;
/// Bit of [`Deferred::state`]: [`COUNTED`], and all branches are as they should be. While it is set, users may come and
/// go without the lock. It is cleared only when there is no user.
const READY: u64 = 1 << 63;
/// The number of users in [`Deferred::state`].
const USERS: u64 = u32::MAX as u64;

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

impl Deferred {
    /// Makes one without users; it must become a `static`.
    #[must_use]
    pub const fn new(key: &'static Key, delay: Duration) -> Self {
        let whole = delay.as_nanos();
        Self {
            key,
            delay: AtomicU64::new(if whole > u64::MAX as u128 {
                u64::MAX
            } else {
                whole as u64
            }),
            state: AtomicU64::new(0),
            due: AtomicU64::new(0),
            #[cfg(all(feature = "std", target_os = "linux"))]
            listed: timer::Listed::new(),
        }
    }

    /// The key.
    #[must_use]
    pub fn key(&self) -> &'static Key {
        self.key
    }

    /// How long the key stays enabled after the last user has gone.
    #[must_use]
    pub fn delay(&self) -> Duration {
        Duration::from_nanos(self.delay.load(Ordering::Relaxed))
    }

    /// Changes the delay. It takes effect with the next [`Deferred::dec`].
    pub fn set_delay(&self, delay: Duration) {
        self.delay.store(nanoseconds(delay), Ordering::Relaxed);
    }

    /// How many users there are now.
    #[must_use]
    pub fn users(&self) -> u32 {
        (self.state.load(Ordering::Acquire) & USERS) as u32
    }

    /// Returns whether the key is held although it has no user: the delay is not over, or nobody has checked yet.
    #[must_use]
    pub fn is_lingering(&self) -> bool {
        let state = self.state.load(Ordering::Acquire);
        state & COUNTED != 0 && state & USERS == 0
    }

    /// Adds a user. When this returns, the key is enabled for every thread.
    ///
    /// # Errors
    /// As [`Key::inc`]; no user is then added.
    pub fn inc(&'static self) -> Result<(), Error> {
        if self.join()? {
            return Ok(());
        }
        registry::locked(|guard| {
            if self.join()? {
                return Ok(());
            }
            if self.state.load(Ordering::Relaxed) & COUNTED == 0 {
                self.switch(guard, true)?;
            } else {
                // An earlier attempt may not have finished.
                registry::settle(guard, self.key)?;
            }
            // Without this bit, nobody joins or leaves.
            self.state.store(COUNTED | READY | 1, Ordering::Release);
            Ok(())
        })
    }

    /// Adds a user if the key is already held.
    fn join(&self) -> Result<bool, Error> {
        let more = |state: u64| {
            let held = state & READY != 0 && state & USERS != USERS;
            held.then_some(state + 1)
        };
        match self
            .state
            .try_update(Ordering::AcqRel, Ordering::Acquire, more)
        {
            Ok(_) => Ok(true),
            Err(state) if state & USERS == USERS => Err(Error::TooManyUsers {
                key: self.key.name(),
            }),
            Err(_) => Ok(false),
        }
    }

    /// Removes a user at time `now`, counted from any point the caller likes, but the same as for [`Deferred::poll`].
    /// If it was the last one, the key stays enabled until `poll` is called after the delay.
    ///
    /// # Errors
    /// [`Error::NoUser`] if there is none.
    pub fn dec_at(&'static self, now: Duration) -> Result<(), Error> {
        self.leave(|| nanoseconds(now)).map(|_| ())
    }

    /// Removes a user. If it was the last one, the key stays enabled until the delay is over; then a thread releases
    /// it. If no thread can be started, the key is released at once.
    ///
    /// # Errors
    /// [`Error::NoUser`] if there is none.
    #[cfg(all(feature = "std", target_os = "linux"))]
    pub fn dec(&'static self) -> Result<(), Error> {
        if let Some(due) = self.leave(timer::now)?
            && !timer::arm(self, due)
        {
            // The user has gone, whatever happens now. A failed switch is tried again with the next user.
            let _ = self.flush();
        }
        Ok(())
    }

    /// Removes a user. If it was the last one, returns when the key should be released.
    fn leave(&self, now: impl Fn() -> u64) -> Result<Option<u64>, Error> {
        let mut state = self.state.load(Ordering::Relaxed);
        loop {
            let mut due = None;
            match state & USERS {
                0 => {
                    return Err(Error::NoUser {
                        key: self.key.name(),
                    });
                }
                1 => {
                    let time = now().saturating_add(self.delay.load(Ordering::Relaxed));
                    // Set this before the user goes: whoever sees no users then also sees this.
                    self.due.store(time, Ordering::Relaxed);
                    due = Some(time);
                }
                _ => {}
            }
            match self.state.compare_exchange_weak(
                state,
                state - 1,
                Ordering::AcqRel,
                Ordering::Relaxed,
            ) {
                Ok(_) => return Ok(due),
                Err(now) => state = now,
            }
        }
    }

    /// Releases the key if it has had no user for the delay. Otherwise returns how much longer that takes; `None` if
    /// there are users, or the key is not held.
    ///
    /// # Errors
    /// If the key cannot be switched: it is still held, and the call may be repeated.
    pub fn poll(&'static self, now: Duration) -> Result<Option<Duration>, Error> {
        let now = nanoseconds(now);
        match self.rest(now) {
            None => Ok(None),
            Some(0) => self.release(|| self.rest(now) == Some(0)).map(|()| {
                let rest = self.rest(now).filter(|rest| *rest != 0);
                rest.map(Duration::from_nanos)
            }),
            Some(rest) => Ok(Some(Duration::from_nanos(rest))),
        }
    }

    /// How much longer the key should be held without a user; `None` if it has users, or is not held.
    fn rest(&self, now: u64) -> Option<u64> {
        self.is_lingering()
            .then(|| self.due.load(Ordering::Relaxed).saturating_sub(now))
    }

    /// Releases the key at once if it has no user. If there are still no users when this returns, the key has been
    /// released.
    ///
    /// # Errors
    /// If the key cannot be switched: it is still held, and the call may be repeated.
    pub fn flush(&'static self) -> Result<(), Error> {
        let result = self.release(|| true);
        #[cfg(all(feature = "std", target_os = "linux"))]
        timer::wake();
        result
    }

    /// Releases the key if it has no user and `wanted` still says so under the lock.
    fn release(&'static self, wanted: impl FnOnce() -> bool) -> Result<(), Error> {
        registry::locked(|guard| {
            let state = self.state.load(Ordering::Acquire);
            if state & COUNTED == 0 || state & USERS != 0 || !wanted() {
                return Ok(());
            }
            // From here on, a new user waits for the lock.
            let closed =
                self.state
                    .compare_exchange(state, COUNTED, Ordering::AcqRel, Ordering::Relaxed);
            if closed.is_err() {
                return Ok(());
            }
            let result = self.switch(guard, false);
            match result {
                // Somebody else has removed more users of the key than there were.
                Err(Error::NoUser { .. }) => self.state.store(0, Ordering::Release),
                Err(_) if self.state.load(Ordering::Relaxed) & COUNTED != 0 => {
                    self.state.store(state, Ordering::Release);
                }
                _ => {}
            }
            result
        })
    }

    /// Adds or removes us as a user of the key, and records it in [`Deferred::state`].
    fn switch(&'static self, guard: &Guard, on: bool) -> Result<(), Error> {
        let change = if on {
            self.key.incrementing()
        } else {
            self.key.decrementing()
        };
        registry::switch_locked(guard, &[change], |count| {
            let held = if on { COUNTED } else { 0 };
            doing::begin(self.key, on, &self.state, held);
            count();
            doing::finish(&self.state);
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a child finds if it was forked in the middle of a change of the key's state.
    #[test]
    fn counts_survive_a_fork() {
        crate::define_static_key_false!(KEY);
        static USERS: Deferred = Deferred::new(KEY.key(), Duration::ZERO);
        let state = || (USERS.state.load(Ordering::SeqCst), KEY.users());
        let begin = |on| {
            let held = if on { COUNTED } else { 0 };
            doing::begin(&KEY, on, &USERS.state, held);
        };
        registry::locked(|guard| {
            begin(true);
            doing::recover(guard);
            assert_eq!(state(), (0, 0));
            begin(true);
            KEY.state().fetch_add(1, Ordering::SeqCst);
            doing::recover(guard);
            assert_eq!(state(), (COUNTED, 1));
            begin(false);
            doing::recover(guard);
            assert_eq!(state(), (COUNTED, 1));
            begin(false);
            KEY.state().fetch_sub(1, Ordering::SeqCst);
            doing::recover(guard);
            doing::recover(guard);
            assert_eq!(state(), (0, 0));
            KEY.state().fetch_add(1, Ordering::SeqCst);
            USERS.state.store(COUNTED, Ordering::SeqCst);
            Ok(())
        })
        .expect("nobody else switches");
        // A key that is counted, and perhaps not switched, accepts users, and can be released.
        USERS.inc().expect("switched");
        assert_eq!(state(), (COUNTED | READY | 1, 1));
        USERS.dec_at(Duration::ZERO).expect("there is a user");
        USERS.flush().expect("switched");
        assert_eq!(state(), (0, 0));
    }
}
