//! Deferred switching: what it costs is counted as writes of code.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use hodo_keys::{
    Deferred, Errno, Error, Text, define_static_key_array_false, define_static_key_false,
    static_branch_unlikely,
};
use hodo_sys::{Memory, sys};

mod emulator;

/// Linux's way of writing code, but it counts, and can be made to fail.
struct Counting {
    changes: AtomicUsize,
    refused: AtomicBool,
}

// SAFETY: what is written is visible after the barrier, which makes each processor serialize.
unsafe impl Text for Counting {
    fn begin(&self) -> Result<(), Errno> {
        if self.refused.load(Ordering::Relaxed) {
            return Err(13);
        }
        self.changes.fetch_add(1, Ordering::Relaxed);
        sys::register_sync_core()
    }

    unsafe fn write(&self, at: usize, bytes: &[u8]) -> Result<(), Errno> {
        if let Some(text) = emulator::text() {
            // SAFETY: as the caller promises.
            return unsafe { text.write(at, bytes) };
        }
        // SAFETY: as the caller promises.
        unsafe { Memory::open()?.write(at as u64, bytes) }
    }

    fn writes_words(&self) -> bool {
        emulator::text().is_some_and(|text| text.writes_words())
    }

    fn sync(&self) {
        match emulator::text() {
            Some(text) => text.sync(),
            None => sys::sync_core(),
        }
    }
}

static COUNTING: Counting = Counting {
    changes: AtomicUsize::new(0),
    refused: AtomicBool::new(false),
};
static TEXT: &dyn Text = &COUNTING;

/// One test at a time: each counts what all tests switch.
fn alone() -> std::sync::MutexGuard<'static, ()> {
    static ALONE: std::sync::Mutex<()> = std::sync::Mutex::new(());
    let guard = ALONE.lock().unwrap_or_else(|error| error.into_inner());
    wait("the thread of another test never ends", || timers() == 0);
    hodo_keys::set_text(&TEXT);
    COUNTING.refused.store(false, Ordering::Relaxed);
    COUNTING.changes.store(0, Ordering::Relaxed);
    guard
}

fn changes() -> usize {
    COUNTING.changes.load(Ordering::Relaxed)
}

/// Threads of this process by name.
fn timers() -> usize {
    std::fs::read_dir("/proc/self/task")
        .expect("there is /proc")
        .filter(|task| {
            let path = task.as_ref().expect("it is there").path().join("comm");
            // A thread that has just ended has no name.
            std::fs::read_to_string(path).is_ok_and(|name| name.trim() == "hodo-keys-timer")
        })
        .count()
}

fn wait(what: &str, mut is: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !is() {
        assert!(begin.elapsed() < Duration::from_secs(60), "{what}");
        thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn thousands_of_users_switch_twice() {
    let _alone = alone();
    define_static_key_false!(KEY);
    // Longer than a busy machine delays this thread.
    static USERS: Deferred = Deferred::new(KEY.key(), Duration::from_secs(3));
    for _ in 0..20_000 {
        USERS.inc().expect("switched");
        assert!(static_branch_unlikely!(KEY));
        USERS.dec().expect("there is a user");
        assert!(static_branch_unlikely!(KEY));
    }
    assert_eq!((changes(), KEY.users(), USERS.users()), (1, 1, 0));
    assert!(USERS.is_lingering());
    let begin = Instant::now();
    wait("the key is never released", || !KEY.is_enabled());
    assert!(begin.elapsed() > Duration::from_millis(500));
    wait("the branch is never switched", || {
        !static_branch_unlikely!(KEY)
    });
    assert_eq!((changes(), USERS.is_lingering()), (2, false));
    wait("the thread never ends", || timers() == 0);
    // The thread starts again when it is needed.
    USERS.set_delay(Duration::from_millis(1));
    USERS.inc().expect("switched");
    USERS.dec().expect("there is a user");
    wait("the key is never released", || {
        !static_branch_unlikely!(KEY)
    });
    assert_eq!(changes(), 4);
}

#[test]
fn the_delay_starts_again_with_each_last_user() {
    let _alone = alone();
    define_static_key_false!(KEY);
    static USERS: Deferred = Deferred::new(KEY.key(), Duration::from_secs(3));
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_millis(4500) {
        USERS.inc().expect("switched");
        USERS.dec().expect("there is a user");
        thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(changes(), 1);
    USERS.flush().expect("switched");
    assert!(!static_branch_unlikely!(KEY));
    assert_eq!(changes(), 2);
}

#[test]
fn a_shorter_delay_wakes_the_thread() {
    let _alone = alone();
    define_static_key_false!(LATE; SOON);
    static LATER: Deferred = Deferred::new(LATE.key(), Duration::from_secs(1000));
    static SOONER: Deferred = Deferred::new(SOON.key(), Duration::from_millis(20));
    LATER.inc().expect("switched");
    LATER.dec().expect("there is a user");
    wait("there is no thread", || timers() == 1);
    thread::sleep(Duration::from_millis(20));
    SOONER.inc().expect("switched");
    SOONER.dec().expect("there is a user");
    wait("the thread sleeps on", || !static_branch_unlikely!(SOON));
    assert!(LATER.is_lingering() && static_branch_unlikely!(LATE));
    LATER.flush().expect("switched");
    assert!(!static_branch_unlikely!(LATE) && !LATE.is_enabled());
}

#[test]
fn the_caller_may_supply_the_time() {
    let _alone = alone();
    define_static_key_array_false!(KEYS[3]);
    static USERS: Deferred = Deferred::new(KEYS.key(1), Duration::from_secs(10));
    let seconds = Duration::from_secs;
    let poll = |at| USERS.poll(seconds(at));
    assert_eq!(poll(0), Ok(None));
    let error = USERS.dec_at(seconds(0)).expect_err("there is no user");
    assert_eq!(
        error.to_string(),
        "static key deferred::KEYS has no user: dec without inc"
    );
    USERS.inc().expect("switched");
    USERS.inc().expect("counted");
    assert_eq!((poll(5), USERS.users()), (Ok(None), 2));
    USERS.dec_at(seconds(5)).expect("there is a user");
    assert_eq!((poll(100), USERS.users()), (Ok(None), 1));
    USERS.dec_at(seconds(100)).expect("there is a user");
    assert_eq!(poll(103), Ok(Some(seconds(7))));
    USERS.inc().expect("counted");
    assert_eq!(poll(200), Ok(None));
    USERS.dec_at(seconds(200)).expect("there is a user");
    assert_eq!(poll(203), Ok(Some(seconds(7))));
    // A thread of another test that had no name yet when this test began ends soon. A thread of this test would live
    // for as long as the delay, and then switch.
    wait("a thread was started", || timers() == 0);
    assert!(static_branch_unlikely!(KEYS[1]) && !static_branch_unlikely!(KEYS[0]));
    assert_eq!(poll(210), Ok(None));
    assert!(!static_branch_unlikely!(KEYS[1]));
    assert_eq!(changes(), 2);
}

#[test]
fn other_users_keep_the_key() {
    let _alone = alone();
    define_static_key_false!(KEY);
    static ONE: Deferred = Deferred::new(KEY.key(), Duration::from_secs(1000));
    static OTHER: Deferred = Deferred::new(KEY.key(), Duration::from_secs(1000));
    let zero = Duration::ZERO;
    ONE.inc().expect("switched");
    OTHER.inc().expect("counted");
    KEY.enable().expect("counted");
    assert_eq!((KEY.users(), changes()), (2, 1));
    ONE.dec_at(zero).expect("there is a user");
    ONE.flush().expect("counted");
    KEY.disable().expect("counted");
    assert!(static_branch_unlikely!(KEY));
    OTHER.dec_at(zero).expect("there is a user");
    OTHER.flush().expect("switched");
    assert!(!static_branch_unlikely!(KEY));
    assert_eq!((KEY.users(), changes()), (0, 2));
    // If others remove too many users, an error reports it, and the next user is served as usual.
    ONE.inc().expect("switched");
    KEY.dec().expect("nobody knows whose it is");
    ONE.dec_at(zero).expect("there is a user");
    let error = ONE.flush().expect_err("the key has no user");
    assert!(matches!(error, Error::NoUser { .. }));
    ONE.inc().expect("switched");
    assert!(static_branch_unlikely!(KEY));
    ONE.dec_at(zero).expect("there is a user");
    ONE.flush().expect("switched");
    assert!(!static_branch_unlikely!(KEY));
}

#[test]
fn a_failed_switch_is_tried_again() {
    let _alone = alone();
    define_static_key_false!(KEY);
    static USERS: Deferred = Deferred::new(KEY.key(), Duration::from_millis(10));
    COUNTING.refused.store(true, Ordering::Relaxed);
    assert_eq!(USERS.inc(), Err(Error::Text(13)));
    assert_eq!((USERS.users(), KEY.is_enabled()), (0, false));
    COUNTING.refused.store(false, Ordering::Relaxed);
    USERS.inc().expect("switched");
    COUNTING.refused.store(true, Ordering::Relaxed);
    USERS.dec().expect("there is a user");
    thread::sleep(Duration::from_millis(100));
    assert_eq!(USERS.flush(), Err(Error::Text(13)));
    assert!(USERS.is_lingering() && static_branch_unlikely!(KEY));
    // Nothing must be switched for a user that comes now.
    USERS.inc().expect("counted");
    USERS.dec().expect("there is a user");
    COUNTING.refused.store(false, Ordering::Relaxed);
    wait("it is not tried again", || !static_branch_unlikely!(KEY));
}

#[test]
fn threads_come_and_go() {
    let _alone = alone();
    define_static_key_false!(KEY);
    static USERS: Deferred = Deferred::new(KEY.key(), Duration::from_micros(200));
    let end = Instant::now() + Duration::from_secs(2);
    let pairs: u64 = thread::scope(|scope| {
        let threads: Vec<_> = (0..4)
            .map(|number| {
                scope.spawn(move || {
                    let mut pairs = 0;
                    while Instant::now() < end {
                        USERS.inc().expect("switched");
                        assert!(static_branch_unlikely!(KEY), "after {pairs}");
                        USERS.dec().expect("there is a user");
                        pairs += 1;
                        if pairs % 64 == number {
                            thread::sleep(Duration::from_micros(400));
                        }
                        if pairs % 1000 == number {
                            USERS.flush().expect("switched");
                        }
                    }
                    pairs
                })
            })
            .collect();
        let joined = threads.into_iter().map(|thread| thread.join());
        joined.map(|pairs| pairs.expect("no thread fails")).sum()
    });
    wait("the key is never released", || {
        !static_branch_unlikely!(KEY)
    });
    assert_eq!((KEY.users(), USERS.users()), (0, 0));
    let changes = changes();
    assert!(changes > 2, "it was released in between");
    assert!(changes as u64 * 2 < pairs, "{changes} for {pairs}");
}

/// Does something in a child; it must return true.
fn child(work: impl FnOnce() -> bool) {
    // SAFETY: the child runs what is tested, and exits without destructors.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
        // SAFETY: as above.
        unsafe { libc::_exit(i32::from(!done.unwrap_or(false))) };
    }
    let mut status = 0;
    // SAFETY: it is our child.
    let waited = unsafe { libc::waitpid(pid, &raw mut status, 0) };
    assert_eq!((waited, status), (pid, 0));
}

#[test]
fn a_child_has_its_own_thread() {
    if emulator::lacks_children() {
        return;
    }
    let _alone = alone();
    define_static_key_false!(KEY; OTHER);
    static USERS: Deferred = Deferred::new(KEY.key(), Duration::from_secs(1));
    static OTHERS: Deferred = Deferred::new(OTHER.key(), Duration::from_secs(1));
    USERS.inc().expect("switched");
    USERS.dec().expect("there is a user");
    wait("there is no thread", || timers() == 1);
    child(|| {
        let none = timers() == 0 && USERS.is_lingering();
        thread::sleep(Duration::from_millis(1500));
        let lingers = USERS.is_lingering() && static_branch_unlikely!(KEY);
        // When the next user goes, the thread starts, and then sees everything.
        OTHERS.inc().expect("switched");
        OTHERS.dec().expect("there is a user");
        wait("nothing is released", || {
            !static_branch_unlikely!(KEY) && !static_branch_unlikely!(OTHER)
        });
        none && lingers
    });
    wait("the key is never released", || {
        !static_branch_unlikely!(KEY)
    });
}

#[test]
fn children_forked_during_a_change_have_correct_counts() {
    if emulator::lacks_children() {
        return;
    }
    let _alone = alone();
    define_static_key_false!(KEY);
    static USERS: Deferred = Deferred::new(KEY.key(), Duration::from_secs(1000));
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                USERS.inc().expect("switched");
                USERS.dec_at(Duration::ZERO).expect("there is a user");
                USERS.flush().expect("switched");
            }
        });
        for _ in 0..150 {
            child(|| {
                // The thread that held it does not exist here.
                while USERS.users() > 0 {
                    USERS.dec_at(Duration::ZERO).expect("there is a user");
                }
                USERS.flush().expect("switched");
                let off = !static_branch_unlikely!(KEY) && KEY.users() == 0;
                USERS.inc().expect("switched");
                let on = static_branch_unlikely!(KEY) && KEY.users() == 1;
                USERS.dec_at(Duration::ZERO).expect("there is a user");
                USERS.flush().expect("switched");
                off && on && KEY.users() == 0
            });
        }
        stop.store(true, Ordering::Relaxed);
    });
    USERS.flush().expect("switched");
    assert_eq!((KEY.users(), KEY.is_enabled()), (0, false));
}
