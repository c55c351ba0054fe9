//! Return probes.

use std::ffi::c_void;
use std::sync::atomic::{AtomicU64, Ordering};

use hodo_probe::{Execution, Refusal, Registers};

use crate::code::{alone, count, counter, counting, engine, of, register, request};

function! { rfib:
    ["push rbx"
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
    "ret"]
    ["addi sp, sp, -32"
    "sd ra, 0(sp)"
    "sd s0, 8(sp)"
    "mv s0, a0"
    "li t0, 2"
    "bltu a0, t0, 2f"
    "addi a0, s0, -1"
    "call test_rfib"
    "sd a0, 16(sp)"
    "addi a0, s0, -2"
    "call test_rfib"
    "ld t1, 16(sp)"
    "add a0, a0, t1"
    "2: ld ra, 0(sp)"
    "ld s0, 8(sp)"
    "addi sp, sp, 32"
    "ret"]
    ["stp x30, x19, [sp, #-32]!"
    "mov x19, x0"
    "cmp x0, #2"
    "b.lo 2f"
    "sub x0, x19, #1"
    "bl test_rfib"
    "str x0, [sp, #16]"
    "sub x0, x19, #2"
    "bl test_rfib"
    "ldr x1, [sp, #16]"
    "add x0, x0, x1"
    "2: ldp x30, x19, [sp], #32"
    "ret"]
}

function! { target:
    ["lea rax, [rdi + 1]"
    "ret"]
    ["addi a0, a0, 1"
    "ret"]
    ["add x0, x0, #1"
    "ret"]
}
function! { tail:
    ["add rdi, 10"
    "jmp test_target"]
    ["addi a0, a0, 10"
    "tail test_target"]
    ["add x0, x0, #10"
    "b test_target"]
}

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
        let Ok(probe) = register(&wish) else {
            // Not every first instruction can be simulated.
            assert_eq!(way, Some(Execution::Simulated));
            continue;
        };
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
fn entry_handlers_come_and_go_beside_return_handlers() {
    let _alone = alone();
    let at = test_rfib as *const () as u64;
    // SAFETY: a function of a number.
    let fib = || unsafe { assert_eq!(test_rfib(10), 55) };
    let (entries, returns) = (counter(), counter());
    let probe = register(&request(at).returning(count).data(data(returns)));
    let probe = probe.expect("it can be probed");
    for round in 1..4 {
        fib();
        let entry = register(&counting(at, entries)).expect("it can be probed");
        let counted = register(&request(at).count()).expect("it can be probed");
        assert_eq!(probe.execution(), Execution::Optimized);
        fib();
        assert_eq!((of(entries), counted.count()), (177 * round, 177));
        entry.set_enabled(false).expect("it can be disabled");
        fib();
        drop(entry);
        fib();
        assert_eq!((of(entries), counted.count()), (177 * round, 3 * 177));
        assert_eq!(of(returns), 4 * 177 * round);
    }
    assert_eq!((probe.missed(), probe.missed_returns()), (0, 0));
}

function! { deep:
    ["push rbx"
    "dec rdi"
    "jz 2f"
    "call test_deep"
    "pop rbx"
    "ret"
    "2: mov rdi, rsi"
    "mov esi, 7"
    "call [rip + test_deep_leave]"
    "ud2"
    ".pushsection .data.rel.test_deep_leave, \"aw\""
    "test_deep_leave: .quad longjmp"
    "test_deep_mark: .quad _setjmp"
    ".popsection"]
    ["addi sp, sp, -16"
    "sd ra, 0(sp)"
    "addi a0, a0, -1"
    "beqz a0, 2f"
    "call test_deep"
    "ld ra, 0(sp)"
    "addi sp, sp, 16"
    "ret"
    "2: mv a0, a1"
    "li a1, 7"
    "call longjmp"
    "unimp"]
    ["str x30, [sp, #-16]!"
    "subs x0, x0, #1"
    "b.eq 2f"
    "bl test_deep"
    "ldr x30, [sp], #16"
    "ret"
    "2: mov x0, x1"
    "mov w1, #7"
    "bl longjmp"
    "udf #0"]
}

function! { jumps:
    ["push rbx"
    "push r12"
    "push rax"
    "mov rbx, rdi"
    "mov r12, rsi"
    "mov rdi, rsi"
    "call [rip + test_deep_mark]"
    "test eax, eax"
    "jnz 2f"
    "mov rdi, rbx"
    "mov rsi, r12"
    "call test_deep"
    "2: pop rcx"
    "pop r12"
    "pop rbx"
    "ret"]
    ["addi sp, sp, -32"
    "sd ra, 0(sp)"
    "sd s0, 8(sp)"
    "sd s1, 16(sp)"
    "mv s0, a0"
    "mv s1, a1"
    "mv a0, a1"
    "call _setjmp"
    "bnez a0, 2f"
    "mv a0, s0"
    "mv a1, s1"
    "call test_deep"
    "2: ld ra, 0(sp)"
    "ld s0, 8(sp)"
    "ld s1, 16(sp)"
    "addi sp, sp, 32"
    "ret"]
    ["stp x30, x19, [sp, #-32]!"
    "str x20, [sp, #16]"
    "mov x19, x0"
    "mov x20, x1"
    "mov x0, x1"
    "bl _setjmp"
    "cbnz w0, 2f"
    "mov x0, x19"
    "mov x1, x20"
    "bl test_deep"
    "2: ldr x20, [sp, #16]"
    "ldp x30, x19, [sp], #32"
    "ret"]
}

unsafe extern "C" {
    fn test_deep();
    fn test_jumps(depth: u64, place: *mut c_void) -> i32;
}

#[test]
fn a_longjmp_skips_return_handlers() {
    let _alone = alone();
    let at = test_deep as *const () as u64;
    let (entries, returns) = (counter(), counter());
    let wish = counting(at, entries);
    let entry = register(&wish).expect("it can be probed");
    let probe = register(&request(at).returning(count).data(data(returns)));
    let probe = probe.expect("it can be probed");
    // What the C library saves in a `jmp_buf`; more than it needs.
    let place: *mut c_void = Box::leak(Box::new([0u64; 64])).as_mut_ptr().cast();
    for round in 1..4u64 {
        // SAFETY: the place is large enough.
        assert_eq!(unsafe { test_jumps(20, place) }, 7);
        assert_eq!((of(entries), of(returns)), (20 * round, 0));
        // Later calls are seen in full.
        // SAFETY: a function of a number.
        assert_eq!(unsafe { test_target(4) }, 5);
    }
    assert_eq!((entry.missed(), probe.missed_returns()), (0, 0));
}

#[test]
fn a_return_handler_may_change_the_result() {
    extern "C" fn double(registers: &mut Registers, _: *mut c_void) {
        *crate::code::result(registers) *= 2;
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
    // qemu's user mode emulator has been seen to map a stack far away from everything else, where it has no shadow.
    if std::env::var_os("HODO_EMULATED").is_none() {
        assert_eq!(probe.missed_returns(), 0);
    }
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
fn exceptions_pass_and_backtraces_are_complete() {
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
    let refusal =
        register(&request(crate::code::place(test_rfib as *const (), 1)).returning(count))
            .unwrap_err();
    assert_eq!(
        refusal.to_string(),
        "a return probe must be at the first instruction of a function"
    );
    assert_eq!(
        Refusal::NoReturn.to_string(),
        "a return probe is not possible: the function's first instruction cannot be moved"
    );
}
