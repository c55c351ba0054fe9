//! Handlers of signals, and children of the process.

use std::sync::atomic::{AtomicU64, Ordering};

use hodo_probe::Execution;

use crate::code::{alone, counter, counting, of, register};

function! { child: ["mov rax, rdi" "ret"] ["mv a0, a0" "ret"] ["mov x0, x0" "ret"] }

unsafe extern "C" {
    fn test_child(n: u64) -> u64;
}

static IN_SIGNAL: AtomicU64 = AtomicU64::new(0);

extern "C" fn on_signal(_: i32) {
    // SAFETY: a function of a number.
    IN_SIGNAL.fetch_add(unsafe { test_child(1) }, Ordering::Relaxed);
}

#[test]
fn a_probe_in_a_signal_handler() {
    let _alone = alone();
    let handler: extern "C" fn(i32) = on_signal;
    // SAFETY: the handler is one.
    unsafe { libc::signal(libc::SIGUSR1, handler as usize) };
    for way in [
        Execution::Boosted,
        Execution::Optimized,
        Execution::OutOfLine,
    ] {
        let hits = counter();
        let before = of(&IN_SIGNAL);
        let probe = register(&counting(test_child as *const () as u64, hits).execution(way))
            .expect("it can be probed");
        for _ in 0..20 {
            // SAFETY: a plain call.
            unsafe { libc::raise(libc::SIGUSR1) };
        }
        assert_eq!(
            (of(&IN_SIGNAL) - before, of(hits), probe.missed()),
            (20, 20, 0)
        );
    }
}

#[test]
fn fork_keeps_probes_and_the_child_may_change_them() {
    // The emulator does not know MADV_WIPEONFORK, by which a child recognizes that it is one.
    if crate::emulator::is_here() {
        return;
    }
    let _alone = alone();
    let hits = counter();
    let probe =
        register(&counting(test_child as *const () as u64, hits)).expect("it can be probed");
    // SAFETY: the child calls nothing that another thread may have locked, and ends.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: a function of a number.
        let mut good = unsafe { test_child(3) } == 3 && of(hits) == 1;
        good &= probe.set_enabled(false).is_ok();
        // SAFETY: as above.
        good &= unsafe { test_child(3) } == 3 && of(hits) == 1;
        good &= probe.unregister().is_ok();
        // SAFETY: the child ends at once.
        unsafe { libc::_exit(if good { 7 } else { 1 }) };
    }
    let mut status = 0;
    // SAFETY: the child is ours.
    unsafe { libc::waitpid(child, &raw mut status, 0) };
    assert_eq!(libc::WEXITSTATUS(status), 7);
    // SAFETY: a function of a number.
    assert_eq!((unsafe { test_child(4) }, of(hits)), (4, 1));
    assert!(probe.is_enabled());
}

#[test]
fn a_child_of_vfork_shares_probes() {
    let _alone = alone();
    for way in [Execution::Boosted, Execution::Optimized] {
        let hits = counter();
        let probe = register(&counting(test_child as *const () as u64, hits).execution(way))
            .expect("it can be probed");
        // SAFETY: the child only calls the function, and ends.
        #[allow(deprecated)]
        let child = unsafe { libc::vfork() };
        if child == 0 {
            // SAFETY: as above.
            unsafe {
                let result = test_child(3);
                libc::_exit(result as i32);
            }
        }
        let mut status = 0;
        // SAFETY: the child is ours.
        unsafe { libc::waitpid(child, &raw mut status, 0) };
        assert_eq!(
            (libc::WEXITSTATUS(status), of(hits), probe.missed()),
            // The emulator forks.
            (3, u64::from(!crate::emulator::is_here()), 0)
        );
    }
}
