//! Probes that only count.

use std::sync::atomic::Ordering;

use hodo_probe::Execution;

use crate::code::{alone, counter, counting, engine, of, place, register, request};

function! { carries:
    ["lea rax, [rdi + rsi]" "adc rax, 0" "ret"]
    ["add a0, a0, a1" "ret"]
    ["add x0, x0, x1"
    "ret"]
}
function! { compares:
    ["mov rax, rdi" "lea rax, [rax + rsi]" "cmp rdi, rsi" "setb al" "ret"]
    ["mv a5, a0" "add a5, a5, a1" "sltu a0, a0, a1" "ret"]
    ["mov x5, x0"
    "add x5, x5, x1"
    "cmp x0, x1"
    "cset x0, lo"
    "ret"]
}

unsafe extern "C" {
    fn test_carries(a: u64, b: u64) -> u64;
    fn test_compares(a: u64, b: u64) -> u64;
}

#[test]
fn counts_continue_whatever_else_is_probed() {
    let _alone = alone();
    let at = test_compares as *const () as u64;
    let after = place(test_compares as *const (), 1);
    // SAFETY: a function of two numbers.
    let call = || unsafe { assert_eq!(test_compares(3, 4), 1) };
    let first = register(&request(at).count()).expect("it can be probed");
    call();
    assert_eq!(first.count(), 1);
    let second = register(&request(at).count()).expect("it can be probed");
    call();
    assert_eq!((first.count(), second.count()), (2, 1));
    let hits = counter();
    let handler = register(&counting(at, hits)).expect("it can be probed");
    call();
    assert_eq!((first.count(), second.count(), of(hits)), (3, 2, 1));
    // A second site inside the jump turns it into a breakpoint.
    let near = register(&request(after).count()).expect("it can be probed");
    // There, no jump is longer than an instruction.
    let alone = cfg!(target_arch = "aarch64");
    assert_eq!(first.execution() == Execution::Optimized, alone);
    call();
    assert_eq!((first.count(), second.count(), near.count()), (4, 3, 1));
    drop((near, handler, first));
    call();
    assert_eq!((second.count(), of(hits)), (4, 2));
    assert_eq!(second.execution(), Execution::Optimized);
    second.set_enabled(false).expect("it can be disabled");
    call();
    assert_eq!(second.count(), 4);
    second.set_enabled(true).expect("it can be enabled");
    call();
    assert_eq!(second.count(), 5);
    drop(second);
    // The counter is used again, from zero.
    let last = register(&request(at).count()).expect("it can be probed");
    assert_eq!(last.count(), 0);
    call();
    assert_eq!(last.count(), 1);
}

#[test]
fn threads_count_every_hit() {
    const CALLS: u64 = 20_000;
    let _alone = alone();
    let at = test_carries as *const () as u64;
    let probe = register(&request(at).count()).expect("it can be probed");
    let other = counter();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for n in 0..CALLS {
                    // SAFETY: a function of two numbers.
                    let result = unsafe { test_carries(n, 0) };
                    assert!(result == n || result == n + 1);
                }
                other.fetch_add(1, Ordering::Relaxed);
            });
        }
        // Meanwhile handlers come and go.
        while of(other) < 4 {
            let more = register(&counting(at, counter())).expect("it can be probed");
            drop(more);
        }
    });
    assert_eq!(probe.count(), 4 * CALLS);
    assert!(engine().is_intact());
}
