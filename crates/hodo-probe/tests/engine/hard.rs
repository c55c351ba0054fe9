//! Places and circumstances that other probing tools fail at.

use std::ffi::c_void;
use std::sync::atomic::{AtomicU64, Ordering};

use hodo_probe::{Execution, Refusal, Registers};

use crate::code::{
    alone, argument, counter, counting, engine, of, place, register, request, steps,
};

function! { fib:
    ["push rbx"
    "mov rbx, rdi"
    "mov rax, rdi"
    "cmp rdi, 2"
    "jb 2f"
    "lea rdi, [rbx - 1]"
    "call test_fib"
    "push rax"
    "lea rdi, [rbx - 2]"
    "call test_fib"
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
    "call test_fib"
    "sd a0, 16(sp)"
    "addi a0, s0, -2"
    "call test_fib"
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
    "bl test_fib"
    "str x0, [sp, #16]"
    "sub x0, x19, #2"
    "bl test_fib"
    "ldr x1, [sp, #16]"
    "add x0, x0, x1"
    "2: ldp x30, x19, [sp], #32"
    "ret"]
}

function! { looped:
    ["xor eax, eax"
    "mov ecx, edi"
    "2: inc eax"
    "dec ecx"
    "jnz 2b"
    "mov ecx, edi"
    "3: dec rax"
    "loop 3b"
    "jrcxz 4f"
    "ud2"
    "4: ret"]
    ["mv a5, a0"
    "li a0, 0"
    "2: addi a0, a0, 1"
    "addi a5, a5, -1"
    "bnez a5, 2b"
    "mv a5, a0"
    "3: addi a0, a0, -1"
    "addi a5, a5, -1"
    "bgtz a5, 3b"
    "beqz a5, 4f"
    "unimp"
    "4: ret"]
    ["mov x5, x0"
    "mov x0, #0"
    "2: add x0, x0, #1"
    "sub x5, x5, #1"
    "cbnz x5, 2b"
    "mov x5, x0"
    "3: sub x0, x0, #1"
    "subs x5, x5, #1"
    "b.gt 3b"
    "cbz x5, 4f"
    "udf #0"
    "4: ret"]
}

function! { one:
    ["ret"]
    ["ret"]
    ["ret"]
}
function! { load:
    ["mov rax, [rdi]"
    "add rax, 1"
    "ret"]
    ["ld a0, 0(a0)"
    "addi a0, a0, 1"
    "ret"]
    ["ldr x0, [x0]"
    "add x0, x0, #1"
    "ret"]
}
function! { leaf:
    ["mov rax, rdi"
    "ret"]
    ["mv a0, a0"
    "ret"]
    ["mov x0, x0"
    "ret"]
}
function! { via:
    ["call [rdi]"
    "ret"]
    ["addi sp, sp, -16"
    "sd ra, 0(sp)"
    "ld a1, 0(a0)"
    "jalr a1"
    "ld ra, 0(sp)"
    "addi sp, sp, 16"
    "ret"]
    ["sub sp, sp, #16"
    "str x30, [sp]"
    "ldr x1, [x0]"
    "blr x1"
    "ldr x30, [sp]"
    "add sp, sp, #16"
    "ret"]
}

function! { refused:
    ["mov rax, rdi"
    "int3"
    "ud2"
    "ret"]
    ["add a0, a0, a1"
    "ebreak"
    "unimp"
    "ret"]
    ["add x0, x0, x1"
    "brk #0"
    "udf #0"
    "ret"]
}

unsafe extern "C" {
    fn test_refused();
    fn test_fib(n: u64) -> u64;
    fn test_looped(n: u64) -> u64;
    fn test_one();
    fn test_load(at: *const u64) -> u64;
    fn test_leaf(n: u64) -> u64;
    fn test_via(at: *const u64) -> u64;
}

const WAYS: [Execution; 4] = [
    Execution::OutOfLine,
    Execution::Simulated,
    Execution::Boosted,
    Execution::Optimized,
];

#[test]
fn recursion() {
    let _alone = alone();
    let start = test_fib as *const () as u64;
    // SAFETY: a function of a number.
    let fib = |n| unsafe { test_fib(n) };
    assert_eq!(fib(15), 610);
    let calls = 1973;
    let mut seen = 0;
    for way in WAYS {
        let hits = counter();
        let Ok(probe) = register(&counting(start, hits).execution(way)) else {
            continue;
        };
        assert_eq!(fib(15), 610);
        assert_eq!((of(hits), probe.missed()), (calls, 0), "{way}");
        seen += 1;
    }
    assert!(seen >= 3);
    // All instructions, including the calls.
    for step in steps(start, 96) {
        for way in [None, Some(Execution::Boosted), Some(Execution::Simulated)] {
            let hits = counter();
            let mut wish = counting(step.addr, hits);
            if let Some(way) = way {
                wish = wish.execution(way);
            }
            let Ok(_probe) = register(&wish) else {
                assert!(way.is_some());
                continue;
            };
            assert_eq!(fib(15), 610);
            assert!(
                [calls, calls / 2].contains(&of(hits)),
                "{} at {:#x}",
                of(hits),
                step.addr - start
            );
        }
    }
}

#[test]
fn targets_of_loops_and_short_branches() {
    let _alone = alone();
    let start = test_looped as *const () as u64;
    let expected: &[u64] = if cfg!(target_arch = "x86_64") {
        &[1, 1, 100, 100, 100, 1, 100, 100, 1, 0]
    } else {
        &[1, 1, 100, 100, 100, 1, 100, 100, 100, 1, 0]
    };
    for (step, &expected) in steps(start, 64).iter().zip(expected) {
        for way in [None, Some(Execution::Boosted), Some(Execution::Simulated)] {
            let hits = counter();
            let mut wish = counting(step.addr, hits);
            if let Some(way) = way {
                wish = wish.execution(way);
            }
            let Ok(_probe) = register(&wish) else {
                assert!(way.is_some() || expected == 0);
                continue;
            };
            // SAFETY: a function of a number.
            assert_eq!(unsafe { test_looped(100) }, 0);
            assert_eq!(of(hits), expected, "at {:#x}", step.addr - start);
        }
    }
}

#[test]
fn a_function_of_one_instruction() {
    let _alone = alone();
    let at = test_one as *const () as u64;
    for way in [
        Execution::Simulated,
        Execution::Boosted,
        Execution::Optimized,
    ] {
        let hits = counter();
        let probe = register(&counting(at, hits).execution(way)).expect("it can be probed");
        assert_eq!(probe.execution(), way);
        for _ in 0..10 {
            // SAFETY: it returns.
            unsafe { test_one() };
        }
        assert_eq!(of(hits), 10);
    }
}

#[test]
fn sites_that_overlap() {
    let _alone = alone();
    let at = test_leaf as *const () as u64;
    let after = place(test_leaf as *const (), 1);
    // SAFETY: a function of a number.
    let leaf = |n| unsafe { test_leaf(n) };
    let (first, second) = (counter(), counter());
    let a = register(&counting(at, first)).expect("it can be probed");
    assert_eq!(a.execution(), Execution::Optimized);
    assert_eq!(leaf(5), 5);
    let b = register(&counting(after, second)).expect("it can be probed");
    // There, no jump is longer than an instruction.
    let alone = cfg!(target_arch = "aarch64");
    assert_eq!(a.execution() == Execution::Optimized, alone);
    assert_eq!((leaf(6), of(first), of(second)), (6, 2, 1));
    a.set_enabled(false).expect("it can be disabled");
    assert_eq!((leaf(7), of(first), of(second)), (7, 2, 2));
    a.set_enabled(true).expect("it can be enabled");
    drop(b);
    assert_eq!(a.execution(), Execution::Optimized);
    assert_eq!((leaf(8), of(first), of(second)), (8, 3, 2));
}

#[test]
fn a_handler_that_faults_is_left_and_disabled() {
    extern "C" fn wild(registers: &mut Registers, _: *mut c_void) {
        *argument(registers) += 1;
        // Otherwise the compiler may move it to after the fault.
        std::hint::black_box(&mut *registers);
        // SAFETY: none; this is the fault that the test wants.
        #[cfg(target_arch = "x86_64")]
        unsafe {
            core::arch::asm!("mov r12, 0", "std", "mov [r12], r12", out("r12") _)
        };
        // SAFETY: as above.
        #[cfg(target_arch = "riscv64")]
        unsafe {
            core::arch::asm!("li s2, 0", "li s7, 1", "sd s2, (s2)", out("s2") _, out("s7") _)
        };
        // SAFETY: as above.
        #[cfg(target_arch = "aarch64")]
        unsafe {
            core::arch::asm!("mov x20, #0", "mov x25, #1", "str x20, [x20]", out("x20") _, out("x25") _)
        };
        *argument(registers) += 1000;
    }
    let _alone = alone();
    let at = test_leaf as *const () as u64;
    // SAFETY: a function of a number.
    let leaf = |n| unsafe { test_leaf(n) };
    for way in [Execution::Boosted, Execution::Optimized] {
        let hits = counter();
        let bad = register(&request(at).before(wild).execution(way)).expect("it can be probed");
        let good = register(&counting(at, hits)).expect("it can be probed");
        assert_eq!(bad.execution(), way);
        assert_eq!(leaf(5), 6);
        assert_eq!((bad.faults(), bad.is_enabled(), of(hits)), (1, false, 1));
        assert_eq!(leaf(5), 5);
        assert_eq!((bad.faults(), good.faults(), of(hits)), (1, 0, 2));
        bad.set_enabled(true).expect("it can be enabled");
        assert_eq!((leaf(5), bad.faults()), (6, 2));
    }
}

#[test]
fn hits_in_a_handler_are_counted_exactly() {
    extern "C" fn calls(_: &mut Registers, data: *mut c_void) {
        for n in 0..7 {
            // SAFETY: a function of a number; a counter.
            unsafe {
                assert_eq!(test_leaf(n), n);
                (*data.cast::<AtomicU64>()).fetch_add(1, Ordering::Relaxed);
            }
        }
        assert_eq!(
            register(&request(test_leaf as *const () as u64).count()).unwrap_err(),
            Refusal::InHandler
        );
    }
    let _alone = alone();
    let leaf = test_leaf as *const () as u64;
    for outer in [Execution::Boosted, Execution::Optimized] {
        for inner in [
            Execution::Boosted,
            Execution::Optimized,
            Execution::OutOfLine,
        ] {
            let (ran, hits) = (counter(), counter());
            let wish = request(test_load as *const () as u64)
                .before(calls)
                .execution(outer);
            let a = register(&wish.data(std::ptr::from_ref(ran).cast_mut().cast()))
                .expect("it can be probed");
            let b = register(&counting(leaf, hits).execution(inner)).expect("it can be probed");
            assert_eq!((a.execution(), b.execution()), (outer, inner));
            for _ in 0..3 {
                // SAFETY: a number to read; a function of a number.
                assert_eq!(unsafe { (test_load(&5), test_leaf(9)) }, (6, 9));
            }
            assert_eq!((of(ran), of(hits)), (21, 3));
            assert_eq!((a.missed(), b.missed()), (0, 21), "{outer}, {inner}");
        }
    }
}

static SEEN: [AtomicU64; 3] = [const { AtomicU64::new(0) }; 3];

/// The program's own handler: notes the address, and makes the pointer valid.
#[allow(clippy::unnecessary_cast)] // Not for x86-64.
extern "C" fn mend(_: i32, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel's pointers.
    unsafe {
        let context = &mut *context.cast::<libc::ucontext_t>();
        #[cfg(target_arch = "x86_64")]
        let (registers, [pc, sp, argument]) = (
            &mut context.uc_mcontext.gregs,
            [libc::REG_RIP, libc::REG_RSP, libc::REG_RDI],
        );
        #[cfg(target_arch = "riscv64")]
        let (registers, [pc, sp, argument]) = (&mut context.uc_mcontext.__gregs, [0, 2, 10]);
        #[cfg(target_arch = "aarch64")]
        let (registers, [pc, sp, argument]) = {
            // `x0` to `x30`, the stack pointer, and the address.
            let first = (&raw mut context.uc_mcontext.regs).cast::<u64>();
            (std::slice::from_raw_parts_mut(first, 33), [32, 31, 0])
        };
        let values = [
            registers[pc as usize] as u64,
            registers[sp as usize] as u64,
            (*info).si_addr() as u64,
        ];
        for (place, value) in SEEN.iter().zip(values) {
            place.store(value, Ordering::Relaxed);
        }
        registers[argument as usize] = GOOD.as_ptr() as _;
    }
}

static GOOD: [AtomicU64; 1] = [AtomicU64::new(0)];

#[test]
fn a_fault_of_the_program_is_reported_at_the_original_instruction() {
    let _alone = alone();
    // SAFETY: the handler is one.
    let set = |signal| unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = mend as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO;
        assert_eq!(
            libc::sigaction(signal, &raw const action, std::ptr::null_mut()),
            0
        );
    };
    // This precedes the engine's start, so the program's handler is the earlier one. It works only where each test is
    // its own process.
    if std::env::var_os("NEXTEST").is_none() {
        return;
    }
    set(libc::SIGSEGV);
    let load = test_load as *const () as u64;
    // The instruction that reads.
    let via = match cfg!(target_arch = "x86_64") {
        true => test_via as *const () as u64,
        false => place(test_via as *const (), 2),
    };
    let target = test_leaf as *const () as u64;
    let address = 0x1234_5678 as *const u64;
    for way in [
        None,
        Some(Execution::Boosted),
        Some(Execution::OutOfLine),
        Some(Execution::Simulated),
    ] {
        for (at, is_call) in [(load, false), (via, true)] {
            let hits = counter();
            let mut wish = counting(at, hits);
            if let Some(way) = way {
                wish = wish.execution(way);
            }
            let Ok(_probe) = register(&wish) else {
                // Loads are simulated only on x86-64.
                assert!(
                    is_call || !cfg!(target_arch = "x86_64") && way == Some(Execution::Simulated)
                );
                continue;
            };
            GOOD[0].store(if is_call { target } else { 41 }, Ordering::Relaxed);
            let stack = SEEN[1].swap(0, Ordering::Relaxed);
            // SAFETY: the handler above repairs the pointer.
            let result = unsafe {
                if is_call {
                    test_via(address)
                } else {
                    test_load(address)
                }
            };
            let expected = if is_call { GOOD.as_ptr() as u64 } else { 42 };
            assert_eq!(result, expected);
            assert_eq!(SEEN[0].load(Ordering::Relaxed), at, "{way:?}");
            assert_eq!(SEEN[2].load(Ordering::Relaxed), address as u64, "{way:?}");
            assert_eq!(
                SEEN[1].load(Ordering::Relaxed) % 16,
                if cfg!(target_arch = "x86_64") { 8 } else { 0 },
                "{way:?} after {stack:#x}"
            );
            assert!((1..=2).contains(&of(hits)));
        }
    }
}

#[test]
fn refusals_say_why() {
    let _alone = alone();
    let at = test_refused as *const () as u64;
    let text = |addr: u64| register(&request(addr).count()).unwrap_err().to_string();
    let [first, breakpoint, fault] = if cfg!(target_arch = "x86_64") {
        [
            "mov rax, rdi",
            "`int3`: it is a breakpoint or interrupt of the program's own",
            "`ud2`: it only faults, and the program's handler would see another address",
        ]
    } else if cfg!(target_arch = "aarch64") {
        [
            "add x0, x0, x1",
            "`brk #0x0`: it is a breakpoint of the program's own",
            "`udf #0x0`: it only faults, and the program's handler would see another address",
        ]
    } else {
        [
            "c.add a0, a1",
            "`c.ebreak`: it is a breakpoint of the program's own",
            "`c.unimp`: it only faults, and the program's handler would see another address",
        ]
    };
    assert_eq!(
        text(at + 1),
        format!("it is the middle of `{first}` at {at:#x}")
    );
    assert_eq!(text(place(test_refused as *const (), 1)), breakpoint);
    assert_eq!(text(place(test_refused as *const (), 2)), fault);
    let data = Box::new(5u64);
    assert_eq!(
        text(&raw const *data as u64),
        "there is no code at this address"
    );
    assert_eq!(text(8), "there is no code at this address");
    let wish = request(at).count().function(at + 1..at + 2);
    assert_eq!(
        register(&wish).unwrap_err().to_string(),
        "the address is outside of the function's range"
    );
    assert_eq!(
        register(&request(at)).unwrap_err().to_string(),
        "the probe would do nothing: it has no handler, and does not count"
    );
    let wish = request(at).count().execution(Execution::Simulated);
    assert_eq!(
        register(&wish).unwrap_err().to_string(),
        "the instruction cannot be executed by simulation"
    );
    assert!(engine().is_intact());
}

#[test]
fn functions_that_the_engine_calls_may_be_probed() {
    extern "C" fn copies(_: &mut Registers, data: *mut c_void) {
        let from = std::hint::black_box([7u8; 400]);
        let mut to = [0u8; 400];
        // SAFETY: both have that length; a counter.
        unsafe {
            libc::memcpy(
                to.as_mut_ptr().cast(),
                from.as_ptr().cast(),
                std::hint::black_box(400),
            );
            assert_eq!(std::hint::black_box(to), from);
            (*data.cast::<AtomicU64>()).fetch_add(1, Ordering::Relaxed);
        }
    }
    let _alone = alone();
    // The function that the name resolves to on this processor.
    // SAFETY: the names are strings; the file is loaded already.
    let at = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"memcpy".as_ptr()) } as u64;
    for way in [
        Execution::Boosted,
        Execution::Optimized,
        Execution::Simulated,
    ] {
        let hits = counter();
        let mut wish = request(at)
            .before(copies)
            .data(std::ptr::from_ref(hits).cast_mut().cast())
            .execution(way);
        if !cfg!(target_arch = "x86_64") {
            // There, compilers make unwind tables for C only on request, and libraries may have no free memory nearby.
            wish = wish.function(at..at + 16);
        }
        let Ok(probe) = register(&wish) else {
            assert!(!cfg!(target_arch = "x86_64") || way == Execution::Simulated);
            continue;
        };
        let from = [3u8; 500];
        let mut to = [0u8; 500];
        for _ in 0..10 {
            // SAFETY: both have that length.
            unsafe {
                libc::memcpy(
                    to.as_mut_ptr().cast(),
                    from.as_ptr().cast(),
                    std::hint::black_box(500),
                )
            };
            assert!(std::hint::black_box(to) == from);
        }
        assert!(of(hits) >= 10, "{}", of(hits));
        assert!(
            probe.missed() >= 10 && probe.faults() == 0,
            "{}",
            probe.missed()
        );
    }
}

function! { plain_five:
    ["mov eax, 5"
    "ret"]
    ["li a0, 5"
    "ret"]
    ["mov x0, #5"
    "ret"]
}

unsafe extern "C" {
    fn test_plain_five() -> u64;
}

/// The engine is compiled to code that may call functions of the C library by itself. Probes there work, also if they
/// are breakpoints that are hit while the breakpoint of another probe is handled, and by a thread's first hit.
#[test]
fn whatever_function_of_the_c_library_the_engine_may_call_can_have_a_breakpoint() {
    let _alone = alone();
    let at = test_plain_five as *const () as u64;
    let handled = counter();
    let other = counting(at, handled).execution(Execution::Boosted);
    let other = register(&other).expect("a breakpoint");
    let names = [
        c"memset",
        c"memcpy",
        c"memmove",
        c"memcmp",
        c"bcmp",
        c"strlen",
        c"pthread_getspecific",
        c"__errno_location",
        c"__tls_get_addr",
        c"gettid",
        c"syscall",
        c"sched_yield",
    ];
    let (mut probed, mut hits) = (0, 0);
    for name in names {
        // SAFETY: the name ends with a zero.
        let function = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) } as u64;
        for way in [
            Execution::Boosted,
            Execution::OutOfLine,
            Execution::Simulated,
        ] {
            let mut wish = request(function).count().execution(way);
            if !cfg!(target_arch = "x86_64") {
                // There, compilers make unwind tables for C only on request.
                wish = wish.function(function..function + 16);
            }
            let Ok(probe) = register(&wish) else { continue };
            let call = || {
                // SAFETY: a function without arguments; the memory has that length.
                unsafe {
                    let mut memory = [1u8; 300];
                    libc::memset(memory.as_mut_ptr().cast(), 0, std::hint::black_box(300));
                    assert_eq!(std::hint::black_box(memory), [0; 300]);
                    test_plain_five() & 0xFF
                }
            };
            assert_eq!(call(), 5, "{name:?} {way:?}");
            assert_eq!(std::thread::spawn(call).join().expect("it ends"), 5);
            let missed = probe.count();
            assert!(name != c"memset" || missed >= 2, "{missed} {way:?}");
            (probed, hits) = (probed + 1, hits + 2);
        }
    }
    assert!(probed >= 5, "{probed}");
    assert_eq!(of(handled), hits);
    drop(other);
}
