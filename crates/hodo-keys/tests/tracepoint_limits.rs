//! Tracepoints at their limits: all slots taken, signal handlers, fork.

mod emulator;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use hodo_keys::Error;
use hodo_keys::tracepoint;

/// These tests affect the whole process: one at a time.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

#[test]
fn at_most_64_functions_can_be_registered() {
    let _alone = alone();
    let mut all = Vec::new();
    let error = loop {
        match tracepoint::enable("full:*") {
            Ok(registration) => all.push(registration),
            Err(error) => break error,
        }
    };
    assert_eq!(all.len(), 64);
    assert_eq!(error, Error::TooManyFunctions);
    assert_eq!(
        error.to_string(),
        "64 functions are registered for tracepoints, which is the limit"
    );
}

static IN_HANDLER: AtomicU64 = AtomicU64::new(0);
static BY_HANDLER: AtomicU64 = AtomicU64::new(0);

extern "C" fn handler(signal: i32) {
    IN_HANDLER.fetch_add(1, Ordering::Relaxed);
    tracepoint!(signals, handler, signal);
}

/// A timer interrupts threads that hit tracepoints and one that registers functions; its handler hits a tracepoint,
/// too.
#[test]
fn tracepoints_can_be_in_signal_handlers() {
    let _alone = alone();
    // SAFETY: the handler touches atomics, and hits a tracepoint.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler as *const () as usize;
        action.sa_flags = libc::SA_RESTART;
        assert_eq!(
            libc::sigaction(libc::SIGALRM, &action, std::ptr::null_mut()),
            0
        );
        let every = libc::timeval {
            tv_sec: 0,
            tv_usec: 500,
        };
        let timer = libc::itimerval {
            it_interval: every,
            it_value: every,
        };
        assert_eq!(
            libc::setitimer(libc::ITIMER_REAL, &timer, std::ptr::null_mut()),
            0
        );
    }
    let begin = Instant::now();
    let inside = Arc::new(AtomicU64::new(0));
    let done = AtomicBool::new(false);
    let counts = || [&IN_HANDLER, &BY_HANDLER, &inside].map(|count| count.load(Ordering::Relaxed));
    let enough = || {
        let [in_handler, by_handler, inside] = counts();
        in_handler > 100 && by_handler > 10 && inside > by_handler
    };
    thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                tracepoint!(signals, thread, text = "some text");
            }
        });
        // A timer that is delayed on a busy machine sends fewer signals.
        let time = |seconds| begin.elapsed() < Duration::from_secs(seconds);
        while time(2) || !enough() && time(60) {
            let counted = tracepoint::register("signals:*", {
                let inside = Arc::clone(&inside);
                move |event| {
                    if event.name() == "handler" {
                        BY_HANDLER.fetch_add(1, Ordering::Relaxed);
                    }
                    inside.fetch_add(1, Ordering::Relaxed);
                }
            })
            .expect("registered");
            thread::sleep(Duration::from_millis(2));
            counted.remove().expect("removed");
            assert_eq!(Arc::strong_count(&inside), 1);
        }
        done.store(true, Ordering::Relaxed);
    });
    // SAFETY: no timer.
    unsafe {
        let timer: libc::itimerval = std::mem::zeroed();
        libc::setitimer(libc::ITIMER_REAL, &timer, std::ptr::null_mut());
    }
    assert!(enough(), "{:?}", counts());
}

/// Runs something in a child, which must succeed within a minute. Returns its status.
fn in_child(work: impl FnOnce()) -> i32 {
    // SAFETY: the child runs a closure and ends.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "forked");
    if child == 0 {
        // SAFETY: a number.
        unsafe { libc::alarm(60) };
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
        // SAFETY: ends the child.
        unsafe { libc::_exit(i32::from(result.is_err())) };
    }
    let mut status = 0;
    // SAFETY: the child is ours.
    unsafe { libc::waitpid(child, &mut status, 0) };
    status
}

/// A child of fork can remove functions even if threads of its parent, which it does not have, were inside some; so can
/// a child that was forked inside a function, and the child of that child.
#[test]
fn a_child_of_fork_does_not_wait_for_threads_of_its_parent() {
    fn hit() {
        tracepoint!(fork, hit);
    }
    fn slow() {
        tracepoint!(fork, slow);
    }
    if std::env::var_os("HODO_EMULATED").is_some() {
        println!("skipped: the emulator does not know MADV_WIPEONFORK");
        return;
    }
    let _alone = alone();
    let stop = Arc::new(AtomicU64::new(0));
    let mut slowly = Some(
        tracepoint::register("fork:slow", {
            let stop = Arc::clone(&stop);
            move |_| {
                stop.fetch_or(1, Ordering::Relaxed);
                while stop.load(Ordering::Relaxed) & 2 == 0 {
                    thread::yield_now();
                }
            }
        })
        .expect("registered"),
    );
    thread::scope(|scope| {
        scope.spawn(slow);
        while stop.load(Ordering::Relaxed) == 0 {
            thread::yield_now();
        }
        let status = in_child(|| {
            slowly
                .take()
                .expect("it is there")
                .remove()
                .expect("removed");
            let registration = tracepoint::register("fork:hit", |_| {}).expect("registered");
            hit();
            registration.remove().expect("removed");
        });
        stop.fetch_or(2, Ordering::Relaxed);
        assert_eq!(status, 0, "the child ends well");
    });
    slowly
        .take()
        .expect("it is there")
        .remove()
        .expect("removed");
    let depth = Arc::new(AtomicU64::new(0));
    let in_function = tracepoint::register("fork:hit", {
        let depth = Arc::clone(&depth);
        move |_| {
            // The child continues as if nothing had happened, and returns from the function, too.
            // SAFETY: one thread.
            if unsafe { libc::fork() } == 0 {
                depth.fetch_add(1, Ordering::Relaxed);
            } else {
                let mut status = 0;
                // SAFETY: the child is ours.
                unsafe { libc::wait(&mut status) };
                assert_eq!(status, 0, "the child ends well");
            }
        }
    })
    .expect("registered");
    hit();
    let depth_now = depth.load(Ordering::Relaxed);
    if depth_now == 1 {
        // SAFETY: a number.
        unsafe { libc::alarm(60) };
        hit();
    }
    let well = in_function.remove().is_ok() && Arc::strong_count(&depth) == 1;
    if depth_now > 0 {
        // SAFETY: ends the child.
        unsafe { libc::_exit(i32::from(!well)) };
    }
    assert!(well);
}
