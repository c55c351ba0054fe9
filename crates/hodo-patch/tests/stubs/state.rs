//! The state in a program's registers, threads and stacks.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use hodo_patch::Recording;
use hodo_trace::format::{SHADOW_DISTANCE, tcb};
use hodo_trace::{CallStep, Left};

use crate::code::{body, fib, fibonacci, fibonacci_calls, leaf, moved, registers, shift};
use crate::isa::{AFTER, BEFORE, FIXED, FREE, KEPT, KEPT_TOO, SAVED, room};
use crate::world::{World, address, site, timed, unmap};

/// All general registers but the fixed ones and these.
fn tested(except: u32) -> impl Iterator<Item = usize> {
    (0..32).filter(move |number| (FIXED | except) >> number & 1 == 0)
}

#[test]
fn registers_that_are_not_free_keep_their_values() {
    let free = [0, 1 << 15 | 1 << 28, BEFORE & AFTER];
    for via in [KEPT, KEPT_TOO] {
        for (before, after) in free.into_iter().zip(free.into_iter().rev()) {
            for (check_frames, depth) in [(false, None), (true, Some(9))] {
                let recording = Recording {
                    check_frames,
                    depth,
                    ..timed()
                };
                let mut world = World::new(recording, 2);
                world.enter(1);
                let site =
                    site("body", address(body as *const ()), room(via), via).free(before, after);
                world.trace(&[site]);
                // The first call takes slow paths.
                for round in 0..2 {
                    let mut state = [[0u64; 32]; 8];
                    for (index, word) in state.as_flattened_mut().iter_mut().enumerate() {
                        *word = ((index as u64 + 1) * 0x0101_0101_0101) ^ round;
                    }
                    registers(&mut state);
                    for number in tested(before) {
                        assert_eq!(
                            state[1][number], state[0][number],
                            "{number} before, {via:?}"
                        );
                    }
                    for number in tested(after) {
                        // Callee-saved registers, and what the body has put there.
                        let kept = SAVED >> number & 1 != 0;
                        let expected = state[if kept { 0 } else { 2 }][number];
                        assert_eq!(
                            state[3][number], expected,
                            "{number} after the call, {via:?}"
                        );
                    }
                    assert_eq!(state[5], state[4], "floating point before");
                    assert_eq!(state[7], state[4], "floating point after the call");
                }
                assert_eq!(world.text(1), "+body -body +body -body");
            }
        }
    }
}

#[test]
fn threads_have_their_own_tasks() {
    let mut world = World::new(timed(), 16);
    world.trace(&[site("fib", address(fib as *const ()), room(FREE), FREE).free(1 << 14, 0)]);
    let world = std::sync::Mutex::new(world);
    let lock = || {
        world
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    };
    std::thread::scope(|scope| {
        for task in 1..=4 {
            scope.spawn(move || {
                lock().enter(task);
                assert_eq!(fib(14), fibonacci(14));
                crate::world::leave();
            });
        }
    });
    let world = lock();
    for task in 1..=4 {
        let records = world.records(task);
        assert_eq!(records.len() as u64, 2 * fibonacci_calls(14), "{task}");
    }
}

#[test]
fn the_agent_maps_the_shadow_of_other_stacks() {
    let mut world = World::new(timed(), 2);
    let block = world.enter_without_shadow(1);
    world.trace(&[site("leaf", address(leaf as *const ()), room(FREE), FREE).free(1 << 14, 0)]);
    assert_eq!(world.get(block + tcb::SHADOW_LEN), 0);
    leaf(1, 2);
    leaf(1, 2);
    let (lo, len) = (
        world.get(block + tcb::SHADOW_LO),
        world.get(block + tcb::SHADOW_LEN),
    );
    let here = (&raw const block).addr() as u64;
    assert!((lo..lo + len).contains(&here), "{lo:#x} {len:#x}");
    unmap(lo - SHADOW_DISTANCE, len);
    assert_eq!(world.text(1), "+leaf -leaf +leaf -leaf");
    assert_eq!(world.get(block + tcb::UNSHADOWED), 0);
}

#[test]
fn without_a_shadow_only_the_entry_is_recorded() {
    for timed in [false, true] {
        let recording = Recording {
            timed,
            ..Recording::default()
        };
        let mut world = World::new(recording, 2);
        let block = world.enter_without_shadow(1);
        // No system calls.
        world.put(block + tcb::FLAGS, 1);
        world.trace(&[site("leaf", address(leaf as *const ()), room(KEPT), KEPT)]);
        assert_eq!(leaf(1, 2), 6);
        assert_eq!(world.text(1), "+leaf");
        assert_eq!(world.get(block + tcb::UNSHADOWED), 1);
    }
}

#[test]
fn a_wrong_frame_at_the_exit_is_noticed() {
    let recording = Recording {
        check_frames: true,
        ..timed()
    };
    let mut world = World::new(recording, 2);
    let block = world.enter(1);
    world.trace(&[site("shift", address(shift as *const ()), room(KEPT), KEPT)]);
    assert_eq!(moved(5), 6);
    assert_eq!(world.text(1), "+shift -shift");
    assert_eq!(world.get(block + tcb::BAD_FRAMES), 1);
    assert_eq!(world.get(block + tcb::BAD_ID), 1);
    let (entry, exit) = (
        world.get(block + tcb::BAD_ENTRY),
        world.get(block + tcb::BAD_EXIT),
    );
    assert_eq!(exit, entry - 32);
}

static HANDLED: AtomicU64 = AtomicU64::new(0);

extern "C" fn handler(_: i32) {
    HANDLED.fetch_add(1, Ordering::Relaxed);
    assert_eq!(fib(3), 2);
}

#[test]
fn signal_handlers_record_in_the_middle_of_everything() {
    for (recording, before) in [
        (timed(), 1 << 14 | 1 << 28 | 1 << 29 | 1 << 31),
        (timed(), 0),
        (
            Recording {
                depth: Some(60),
                check_frames: true,
                ..timed()
            },
            0,
        ),
    ] {
        let mut world = World::new(recording, 60);
        let block = world.enter(1);
        let fib_site = site("fib", address(fib as *const ()), room(FREE), FREE);
        world.trace(&[fib_site.free(before, before)]);
        // SAFETY: the handler only calls functions of this program and counts.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = handler as *const () as usize;
            action.sa_flags = libc::SA_RESTART;
            libc::sigaction(libc::SIGUSR1, &raw const action, std::ptr::null_mut());
        }
        // SAFETY: it only asks which thread this is.
        let (pid, tid) = unsafe { (libc::getpid(), libc::gettid()) };
        let done = std::sync::atomic::AtomicBool::new(false);
        let handled = HANDLED.load(Ordering::Relaxed);
        let mut calls = 0;
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    // SAFETY: the thread waits for this one.
                    unsafe { libc::syscall(libc::SYS_tgkill, pid, tid, libc::SIGUSR1) };
                    std::thread::sleep(Duration::from_micros(200));
                }
            });
            let begin = Instant::now();
            while begin.elapsed() < Duration::from_millis(700) && calls < 150 {
                assert_eq!(fib(13), fibonacci(13));
                calls += 1;
            }
            // On a busy machine signals are rare.
            let enough = || HANDLED.load(Ordering::Relaxed) - handled > 10;
            while !enough() && begin.elapsed() < Duration::from_secs(60) {
                std::thread::yield_now();
            }
            done.store(true, Ordering::Relaxed);
        });
        let handled = HANDLED.load(Ordering::Relaxed) - handled;
        assert!(handled > 10, "{handled} signals");
        let expected = calls * fibonacci_calls(13) + handled * fibonacci_calls(3);
        assert_eq!(world.get(block + tcb::LOST), 0);
        let trace = world.read("signals", 1);
        let (mut entries, mut exits) = (0, 0);
        let mut open = trace.calls(Vec::new());
        for found in trace.records(&trace.tasks[0]) {
            open.feed(found, |step| match step {
                CallStep::Enter { .. } => entries += 1,
                CallStep::Leave {
                    left: Left::Returned,
                    ..
                } => exits += 1,
                other => panic!("{other:?}"),
            });
        }
        assert_eq!((entries, exits), (expected, expected));
        for at in [tcb::DEPTH, tcb::BAD_FRAMES] {
            assert_eq!(world.get(block + at), 0, "{at}");
        }
    }
}
