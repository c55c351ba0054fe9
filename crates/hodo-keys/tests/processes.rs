//! Children of fork, signals, and the state of the process's memory.
#![cfg(all(target_arch = "x86_64", target_os = "linux"))]

mod building;

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use building::alone::alone;
use hodo_keys::{Error, define_static_key_false, static_branch_likely, static_branch_unlikely};

define_static_key_false!(MANY; OTHER);

macro_rules! eight {
    ($bits:ident) => {
        eight!(@ $bits, 1 2 4 8 16 32 64 128)
    };
    (@ $bits:ident, $($bit:literal)*) => {
        let mut here = 0_u64;
        $(if static_branch_unlikely!(MANY) {
            here |= $bit;
        })*
        $bits = $bits << 8 | here;
    };
}

/// The values of 64 branches, in order.
#[inline(never)]
fn many() -> u64 {
    let mut bits = 0_u64;
    eight!(bits);
    eight!(bits);
    eight!(bits);
    eight!(bits);
    eight!(bits);
    eight!(bits);
    eight!(bits);
    eight!(bits);
    bits
}

fn all(on: bool) -> u64 {
    if on { u64::MAX } else { 0 }
}

fn other() -> [bool; 2] {
    [static_branch_unlikely!(OTHER), static_branch_likely!(OTHER)]
}

/// Runs something in a child of fork; its result becomes the exit status.
fn fork(child: impl FnOnce() -> i32) -> i32 {
    // SAFETY: the child does not allocate, and leaves by `_exit`.
    match unsafe { libc::fork() } {
        -1 => panic!("{}", io::Error::last_os_error()),
        0 => {
            let status = child();
            // SAFETY: this ends it.
            unsafe { libc::_exit(status) }
        }
        pid => {
            let mut status = 0;
            let begin = Instant::now();
            loop {
                // SAFETY: our child.
                match unsafe { libc::waitpid(pid, &raw mut status, libc::WNOHANG) } {
                    0 if begin.elapsed() > Duration::from_secs(60) => {
                        // SAFETY: as above.
                        unsafe { libc::kill(pid, libc::SIGKILL) };
                        panic!("the child hangs");
                    }
                    0 => thread::sleep(Duration::from_micros(50)),
                    _ => break,
                }
            }
            assert!(libc::WIFEXITED(status), "status {status:#x}");
            libc::WEXITSTATUS(status)
        }
    }
}

#[test]
fn children_have_their_own_keys() {
    if !alone("children_have_their_own_keys") {
        return;
    }
    for round in 0..100 {
        let on = round % 2 == 1;
        let status = fork(|| {
            if many() != all(on) || MANY.is_enabled() != on {
                return 1;
            }
            for _ in 0..3 {
                if MANY.enable().is_err() || many() != all(true) {
                    return 2;
                }
                if MANY.disable().is_err() || many() != all(false) {
                    return 3;
                }
            }
            0
        });
        assert_eq!(status, 0, "round {round}");
        assert_eq!(many(), all(on));
        if on { MANY.disable() } else { MANY.enable() }.expect("switched");
        assert_eq!(many(), all(!on));
    }
}

/// Forks repeatedly while another thread switches; `first` is what the child does first. The child's status must be 0,
/// or 1 if it has found branches that disagree.
fn fork_in_the_middle(first: impl Fn() -> bool) {
    let stop = AtomicBool::new(false);
    let mut caught = 0;
    thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                MANY.enable().expect("switched");
                assert_eq!(many(), all(true));
                MANY.disable().expect("switched");
                assert_eq!(many(), all(false));
            }
        });
        for round in 0..500 {
            let status = fork(|| {
                // The thread that switched does not exist here: this is what it left behind.
                let inconsistent = many() != all(MANY.is_enabled());
                if !first() {
                    return 2;
                }
                if OTHER.enable().is_err() || other() != [true; 2] {
                    return 3;
                }
                if many() != all(MANY.is_enabled()) {
                    return 4;
                }
                for on in [true, false, true] {
                    let result = if on { MANY.enable() } else { MANY.disable() };
                    if result.is_err() || many() != all(on) {
                        return 5;
                    }
                }
                i32::from(inconsistent)
            });
            assert!(status < 2, "round {round}: {status}");
            caught += status;
        }
        stop.store(true, Ordering::Relaxed);
    });
    println!("{caught} children of 500 began in the middle of a change");
    assert!(caught > 0);
}

#[test]
fn children_finish_a_change_that_the_parent_began() {
    if alone("children_finish_a_change_that_the_parent_began") {
        fork_in_the_middle(|| true);
    }
}

#[test]
fn children_finish_a_change_even_after_reading_the_list() {
    if alone("children_finish_a_change_even_after_reading_the_list") {
        fork_in_the_middle(|| hodo_keys::for_each(|_| {}).is_ok());
    }
}

/// Calls a function when a signal comes.
fn handle(signal: libc::c_int, handler: extern "C" fn(libc::c_int)) {
    // SAFETY: a plain handler.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler as *const () as usize;
        action.sa_flags = libc::SA_RESTART;
        assert_eq!(
            libc::sigaction(signal, &raw const action, std::ptr::null_mut()),
            0
        );
    }
}

/// Sends `SIGPROF` after each millisecond of processor time, to some running thread.
fn profile(on: bool) {
    let time = libc::timeval {
        tv_sec: 0,
        tv_usec: if on { 1000 } else { 0 },
    };
    let timer = libc::itimerval {
        it_interval: time,
        it_value: time,
    };
    // SAFETY: a timer of the process.
    let result =
        unsafe { libc::setitimer(libc::ITIMER_PROF, &raw const timer, std::ptr::null_mut()) };
    assert_eq!(result, 0);
}

static SIGNALS: AtomicU64 = AtomicU64::new(0);
static SEEN: AtomicU64 = AtomicU64::new(0);
static SWITCHED: AtomicU64 = AtomicU64::new(0);
static BUSY: AtomicU64 = AtomicU64::new(0);
static WRONG: AtomicU64 = AtomicU64::new(0);

extern "C" fn count(_: libc::c_int) {
    SIGNALS.fetch_add(1, Ordering::Relaxed);
    SEEN.fetch_add(u64::from(many().count_ones()), Ordering::Relaxed);
}

extern "C" fn switch_in_handler(_: libc::c_int) {
    SIGNALS.fetch_add(1, Ordering::Relaxed);
    let on = !OTHER.is_enabled();
    match if on { OTHER.enable() } else { OTHER.disable() } {
        Ok(()) => {
            SWITCHED.fetch_add(1, Ordering::Relaxed);
            if other() != [on; 2] {
                WRONG.fetch_add(1, Ordering::Relaxed);
            }
        }
        Err(Error::Busy) => {
            BUSY.fetch_add(1, Ordering::Relaxed);
        }
        Err(_) => {
            WRONG.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Switches for some time, and returns how many times.
fn keep_switching(duration: Duration) -> u64 {
    let begin = Instant::now();
    let mut switches = 0;
    while begin.elapsed() < duration {
        MANY.enable().expect("switched");
        assert_eq!(many(), all(true));
        MANY.disable().expect("switched");
        assert_eq!(many(), all(false));
        switches += 2;
    }
    switches
}

#[test]
fn signals_do_no_harm() {
    if !alone("signals_do_no_harm") {
        return;
    }
    handle(libc::SIGPROF, count);
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                std::hint::black_box(many());
            }
        });
        profile(true);
        let get = |number: &AtomicU64| number.load(Ordering::Relaxed);
        let begin = Instant::now();
        let mut switches = 0;
        while switches < 200 || get(&SIGNALS) < 200 || get(&SEEN) == 0 {
            switches += keep_switching(Duration::from_millis(200));
            assert!(
                begin.elapsed() < Duration::from_secs(100),
                "{SIGNALS:?} {SEEN:?}"
            );
        }
        profile(false);
        stop.store(true, Ordering::Relaxed);
        println!("{switches} switches, {SIGNALS:?} signals");
    });
}

#[test]
fn a_handler_that_interrupts_a_change_is_refused() {
    if !alone("a_handler_that_interrupts_a_change_is_refused") {
        return;
    }
    handle(libc::SIGPROF, switch_in_handler);
    profile(true);
    let begin = Instant::now();
    let get = |number: &AtomicU64| number.load(Ordering::Relaxed);
    // Most signals come while a key is switched; a pause between switches lets the others come.
    while get(&BUSY) < 100 || get(&SWITCHED) < 3 {
        keep_switching(Duration::from_millis(100));
        let pause = Instant::now();
        while pause.elapsed() < Duration::from_millis(20) {
            std::hint::spin_loop();
        }
        assert!(
            begin.elapsed() < Duration::from_secs(100),
            "{BUSY:?} {SWITCHED:?}"
        );
    }
    profile(false);
    assert_eq!(get(&WRONG), 0);
    assert_eq!(other(), [OTHER.is_enabled(); 2]);
    assert_eq!(
        Error::Busy.to_string(),
        "a static key was being switched when this signal handler began"
    );
}

/// The lines of `/proc/self/maps`.
fn maps() -> Vec<String> {
    let text = std::fs::read_to_string("/proc/self/maps").expect("there is /proc");
    text.lines().map(str::to_owned).collect()
}

fn protection(line: &str) -> &str {
    line.split(' ').nth(1).expect("the second column")
}

/// The mapping of an address.
fn mapping_of(address: usize) -> String {
    let contains = |line: &str| {
        let (start, end) = line.split(' ').next()?.split_once('-')?;
        let number = |text| usize::from_str_radix(text, 16).ok();
        Some((number(start)?..number(end)?).contains(&address))
    };
    let line = maps().into_iter().find(|line| contains(line) == Some(true));
    line.expect("it is mapped")
}

#[test]
fn code_stays_file_backed_and_is_never_writable() {
    if !alone("code_stays_file_backed_and_is_never_writable") {
        return;
    }
    let before = mapping_of(many as *const () as usize);
    let program = std::env::current_exe().expect("the program");
    let program = program.to_str().expect("its name");
    assert_eq!(protection(&before), "r-xp");
    assert!(before.ends_with(program), "{before}");
    let done = AtomicBool::new(false);
    let looks = AtomicU64::new(0);
    thread::scope(|scope| {
        scope.spawn(|| {
            // Also if this thread has a processor to itself, and the other has none.
            for _ in 0..100 {
                keep_switching(Duration::from_millis(500));
                if looks.load(Ordering::Relaxed) > 10 {
                    break;
                }
            }
            done.store(true, Ordering::Relaxed);
        });
        while !done.load(Ordering::Relaxed) {
            for line in maps() {
                let protection = protection(&line);
                assert!(
                    !(protection.contains('w') && protection.contains('x')),
                    "{line}"
                );
                assert!(
                    !line.ends_with(program) || protection.ends_with('p'),
                    "{line}"
                );
            }
            looks.fetch_add(1, Ordering::Relaxed);
        }
        assert!(looks.load(Ordering::Relaxed) > 10, "{looks:?}");
    });
    assert_eq!(mapping_of(many as *const () as usize), before);
}
