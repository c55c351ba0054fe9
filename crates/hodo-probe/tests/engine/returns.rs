//! Return probes.

use std::ffi::c_void;
use std::sync::atomic::{AtomicU64, Ordering};

use hodo_probe::engine::{Execution, Refusal, Registers};

use crate::code::{alone, count, counter, counting, engine, of, register, request};

function! { rfib:
    "push rbx"
    "mov rbx, rdi"
    "mov rax, rdi"
    "cmp rdi, 2"
    "jb 2f"
    "lea rdi, [rbx - 1]"
    "call test_rfib"
    "push rax"
    "lea rdi, [rbx - 2]"
    "call test_rfib"
    "pop rcx"
    "add rax, rcx"
    "2: pop rbx"
    "ret"
}

function! { target: "lea rax, [rdi + 1]" "ret" }
function! { tail: "add rdi, 10" "jmp test_target" }

unsafe extern "C" {
    fn test_rfib(n: u64) -> u64;
    fn test_target(n: u64) -> u64;
    fn test_tail(n: u64) -> u64;
    fn __register_frame(tables: *const u8);
}

fn data(counter: &'static AtomicU64) -> *mut c_void {
    std::ptr::from_ref(counter).cast_mut().cast()
}

#[test]
fn entries_and_returns_are_balanced_at_any_depth() {
    let _alone = alone();
    let at = test_rfib as *const () as u64;
    // SAFETY: a function of a number.
    let fib = |n| unsafe { test_rfib(n) };
    for way in [
        None,
        Some(Execution::Boosted),
        Some(Execution::Simulated),
        Some(Execution::Optimized),
    ] {
        let (entries, returns) = (counter(), counter());
        let entry = register(&counting(at, entries)).expect("it can be probed");
        let mut wish = request(at).returning(count).data(data(returns));
        if let Some(way) = way {
            wish = wish.execution(way);
        }
        let probe = register(&wish).expect("it can be probed");
        assert_eq!(fib(15), 610);
        assert_eq!((of(entries), of(returns)), (1973, 1973), "{way:?}");
        assert_eq!((entry.missed(), probe.missed_returns()), (0, 0));
        probe.set_enabled(false).expect("it can be disabled");
        assert_eq!((fib(15), of(entries), of(returns)), (610, 2 * 1973, 1973));
        probe.set_enabled(true).expect("it can be enabled");
        assert_eq!(
            (fib(15), of(entries), of(returns)),
            (610, 3 * 1973, 2 * 1973)
        );
    }
    assert_eq!(fib(15), 610);
}

#[test]
fn a_return_handler_may_change_the_result() {
    extern "C" fn double(registers: &mut Registers, _: *mut c_void) {
        registers.rax *= 2;
    }
    let _alone = alone();
    let at = test_target as *const () as u64;
    let probe = register(&request(at).returning(double)).expect("it can be probed");
    // SAFETY: a function of a number.
    assert_eq!(unsafe { test_target(4) }, 10);
    drop(probe);
    // SAFETY: a function of a number.
    assert_eq!(unsafe { test_target(4) }, 5);
}

#[test]
fn a_function_that_is_jumped_to_is_counted_as_missed() {
    let _alone = alone();
    let (first, second) = (counter(), counter());
    let a = register(
        &request(test_tail as *const () as u64)
            .returning(count)
            .data(data(first)),
    );
    let a = a.expect("it can be probed");
    let b = register(
        &request(test_target as *const () as u64)
            .returning(count)
            .data(data(second)),
    );
    let b = b.expect("it can be probed");
    for n in 0..5 {
        // SAFETY: functions of a number.
        assert_eq!(unsafe { (test_tail(n), test_target(n)) }, (n + 11, n + 1));
    }
    assert_eq!((of(first), a.missed_returns()), (5, 0));
    assert_eq!((of(second), b.missed_returns()), (5, 5));
}

#[test]
fn other_threads_and_stacks() {
    let _alone = alone();
    let returns = counter();
    let probe = register(
        &request(test_rfib as *const () as u64)
            .returning(count)
            .data(data(returns)),
    );
    let probe = probe.expect("it can be probed");
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..20 {
                    // SAFETY: a function of a number.
                    assert_eq!(unsafe { test_rfib(12) }, 144);
                }
            });
        }
    });
    assert_eq!(of(returns) + probe.missed_returns(), 4 * 20 * 465);
    assert_eq!(probe.missed_returns(), 0);
}

static DEPTH: AtomicU64 = AtomicU64::new(0);

#[inline(never)]
extern "C-unwind" fn throwing(depth: u64) -> u64 {
    if depth == 0 {
        DEPTH.store(
            std::backtrace::Backtrace::force_capture()
                .to_string()
                .lines()
                .count() as u64,
            Ordering::Relaxed,
        );
        std::panic::panic_any(17u64);
    }
    std::hint::black_box(throwing(depth - 1)) + 1
}

#[test]
fn exceptions_pass_and_backtraces_are_whole() {
    let _alone = alone();
    // SAFETY: it is the function that is asked for.
    unsafe { engine().register_frames(__register_frame) }.expect("it is taken");
    std::panic::set_hook(Box::new(|_| {}));
    let thrown = || {
        let result = std::panic::catch_unwind(|| throwing(std::hint::black_box(20)));
        *result
            .expect_err("it throws")
            .downcast::<u64>()
            .expect("a number")
    };
    assert_eq!(thrown(), 17);
    let whole = of(&DEPTH);
    let (entries, returns) = (counter(), counter());
    let at = throwing as *const () as u64;
    let probe = register(&counting(at, entries)).expect("it can be probed");
    let returning =
        register(&request(at).returning(count).data(data(returns))).expect("it can be probed");
    assert_eq!(thrown(), 17);
    assert!(of(&DEPTH) >= whole, "{} of {whole} lines", of(&DEPTH));
    assert_eq!((of(entries), of(returns)), (21, 0));
    assert_eq!(thrown(), 17);
    assert_eq!((of(entries), of(returns), probe.missed()), (42, 0, 0));
    drop(returning);
    let _ = std::panic::take_hook();
}

#[test]
fn refusals_of_return_probes() {
    let _alone = alone();
    let at = test_rfib as *const () as u64;
    let refusal = register(&request(at + 1).returning(count)).unwrap_err();
    assert_eq!(
        refusal.to_string(),
        "a return probe must be at the first instruction of a function"
    );
    assert_eq!(
        Refusal::NoReturn.to_string(),
        "a return probe is not possible: the function's first instruction cannot be moved"
    );
}
