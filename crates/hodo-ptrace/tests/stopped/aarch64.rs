//! What only AArch64 has: vectors of any length, which system calls lose, and exclusive loads and stores.

use std::arch::global_asm;
use std::sync::atomic::{AtomicU64, Ordering};

use hodo_ptrace::arch::unsigned;
use hodo_ptrace::{Signing, Syscalls, TargetAddr, fault_address};

use super::{Child, get, pipe, put};

global_asm!(
    ".pushsection .text",
    ".arch_extension sve",
    // x0: where the vectors and masks go, each in 256 bytes.
    "hodo_test_store:",
    ".irp n,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31",
    "str z\\n, [x0]",
    "add x0, x0, #256",
    ".endr",
    ".irp n,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15",
    "str p\\n, [x0]",
    "add x0, x0, #256",
    ".endr",
    "rdffr p0.b",
    "str p0, [x0]",
    "ret",
    // x0, x1: where they go before and after a wait. x2: what says that it has begun; x3: what ends it.
    ".globl hodo_test_vectors",
    "hodo_test_vectors:",
    "stp x29, x30, [sp, #-80]!",
    "stp d8, d9, [sp, #16]",
    "stp d10, d11, [sp, #32]",
    "stp d12, d13, [sp, #48]",
    "stp d14, d15, [sp, #64]",
    "mov w9, #1",
    ".irp n,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31",
    "index z\\n\\().b, w9, #3",
    "add w9, w9, #7",
    ".endr",
    "setffr",
    "mov w9, #1",
    ".irp n,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15",
    "whilelo p\\n\\().b, wzr, w9",
    "add w9, w9, #1",
    ".endr",
    "mov x10, x1",
    "mov w11, #1",
    "bl hodo_test_store",
    // That has changed the first mask.
    "whilelo p0.b, wzr, w11",
    "stlr x11, [x2]",
    "1: ldar x9, [x3]",
    "cbz x9, 1b",
    "mov x0, x10",
    "bl hodo_test_store",
    "ldp d8, d9, [sp, #16]",
    "ldp d10, d11, [sp, #32]",
    "ldp d12, d13, [sp, #48]",
    "ldp d14, d15, [sp, #64]",
    "ldp x29, x30, [sp], #80",
    "ret",
    // x0: what is counted; x1: how often. A compare that may leave the sequence, and never does.
    ".globl hodo_test_count",
    "hodo_test_count:",
    "1: ldxr x9, [x0]",
    "cmn x9, #1",
    "b.eq 2f",
    "add x9, x9, #1",
    "stxr w10, x9, [x0]",
    "cbnz w10, 1b",
    "subs x1, x1, #1",
    "b.ne 1b",
    "2: ret",
    // x0: what says that it has begun; x1: what ends the wait without a thread pointer.
    ".globl hodo_test_wait",
    "hodo_test_wait:",
    "mrs x11, tpidr_el0",
    "msr tpidr_el0, xzr",
    "mov x9, #1",
    "stlr x9, [x0]",
    "1: ldar x9, [x1]",
    "cbz x9, 1b",
    "mrs x0, tpidr_el0",
    "msr tpidr_el0, x11",
    "ret",
    // x0: a value, x1: a modifier, x2: where the value goes as it is signed by the two keys.
    ".globl hodo_test_sign",
    "hodo_test_sign:",
    "mov x16, x1",
    "mov x17, x0",
    "hint #8",
    "str x17, [x2]",
    "mov x17, x0",
    "hint #10",
    "str x17, [x2, #8]",
    "ret",
    // What a stub does, and a load from the control block.
    ".globl hodo_test_block",
    "hodo_test_block:",
    "mrs x9, tpidr_el0",
    "ldr x9, [x9, #8]",
    "ldr x0, [x9, #16]",
    "ret",
    ".popsection",
);

/// Where vectors go, or masks.
type Stored = [[u8; 256]; 49];

unsafe extern "C" {
    fn hodo_test_vectors(
        before: *mut Stored,
        after: *mut Stored,
        begun: *const AtomicU64,
        goes_on: *const AtomicU64,
    );
    fn hodo_test_count(word: *const AtomicU64, rounds: u64);
    fn hodo_test_wait(begun: *const AtomicU64, goes_on: *const AtomicU64) -> u64;
    fn hodo_test_sign(value: u64, modifier: u64, signed: *mut [u64; 2]);
    fn hodo_test_block() -> u64;
}

/// What a test and its child share.
struct Shared {
    begun: AtomicU64,
    goes_on: AtomicU64,
    signed: [u64; 2],
    expected: [u64; 2],
    before: Stored,
    after: Stored,
}

/// Memory of zeros that children share.
fn shared() -> &'static mut Shared {
    // SAFETY: the memory is new and stays; all-zero is a valid structure.
    unsafe {
        let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
        let rw = libc::PROT_READ | libc::PROT_WRITE;
        let at = libc::mmap(std::ptr::null_mut(), size_of::<Shared>(), rw, flags, -1, 0);
        assert_ne!(at, libc::MAP_FAILED);
        &mut *at.cast()
    }
}

fn wait_for(word: &AtomicU64) {
    while word.load(Ordering::Acquire) == 0 {
        std::thread::yield_now();
    }
}

/// Has the calling thread use vectors of this length. Returns whether it can.
fn set_vector_length(len: i32) -> bool {
    const SET: i32 = 50;
    // SAFETY: a system call with numbers.
    unsafe { libc::prctl(SET, len, 0, 0, 0) == len }
}

#[test]
fn vectors_of_any_length_outlive_calls() {
    let mut lengths = Vec::new();
    for len in [16, 32, 64, 128, 256] {
        let shared = shared();
        let child = Child::new(|| {
            if !set_vector_length(len) {
                return 9;
            }
            // SAFETY: the function writes to the two pieces of memory, and waits.
            unsafe {
                hodo_test_vectors(
                    &raw mut shared.before,
                    &raw mut shared.after,
                    &raw const shared.begun,
                    &raw const shared.goes_on,
                );
            }
            match shared.before == shared.after {
                true => 3,
                false => 4,
            }
        });
        for _ in 0..10_000 {
            if shared.begun.load(Ordering::Acquire) != 0 {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        if shared.begun.load(Ordering::Acquire) == 0 {
            // The processor has no such vectors, or none at all.
            assert_eq!(child.exit(), 9);
            continue;
        }
        let (thread, stops) = child.stop();
        let vectors = thread.vectors().expect("vectors");
        assert_eq!(vectors.mask(1).expect("a mask"), 0b11);
        let calls = Syscalls::begin(thread, child.place()).expect("calls");
        assert_eq!(calls.getpid().expect("getpid"), i64::from(child.0));
        assert!(!calls.end_in_stop().expect("ending"));
        // And again, with the other way back.
        let calls = Syscalls::begin(thread, child.place()).expect("calls");
        assert_eq!(calls.getpid().expect("getpid"), i64::from(child.0));
        calls.end().expect("ending");
        stops.detach();
        shared.goes_on.store(1, Ordering::Release);
        assert_eq!(child.exit(), 3, "with {len} bytes");
        lengths.push(len);
    }
    eprintln!("with vectors of {lengths:?} bytes");
}

#[test]
fn vectors_outlive_a_tracer_that_ends_in_a_call() {
    for len in [16, 64, 256] {
        let shared = shared();
        let child = Child::new(|| {
            if !set_vector_length(len) {
                return 3;
            }
            // SAFETY: as above.
            unsafe {
                hodo_test_vectors(
                    &raw mut shared.before,
                    &raw mut shared.after,
                    &raw const shared.begun,
                    &raw const shared.goes_on,
                );
            }
            match shared.before == shared.after {
                true => 3,
                false => 4,
            }
        });
        std::thread::sleep(std::time::Duration::from_millis(300));
        if shared.begun.load(Ordering::Acquire) == 0 {
            shared.goes_on.store(1, Ordering::Release);
            assert_eq!(child.exit(), 3);
            continue;
        }
        let pid = child.0;
        let tracer = std::thread::spawn(move || {
            let mut stops = hodo_ptrace::stops::Stops::new(pid, libc::PTRACE_O_TRACESYSGOOD);
            stops.stop_all().expect("stopping");
            let maps = hodo_ptrace::maps::read(pid).expect("its mappings");
            let memory = hodo_ptrace::Memory::open(pid).expect("its memory");
            let thread = stops.worker().expect("its thread");
            let calls = Syscalls::begin_anywhere(thread, &memory, &maps).expect("calls");
            calls.getpid().expect("getpid");
            std::mem::forget((stops, calls));
        });
        tracer.join().expect("a tracer");
        shared.goes_on.store(1, Ordering::Release);
        assert_eq!(child.exit(), 3, "with {len} bytes");
    }
}

#[test]
fn steps_come_through_exclusive_accesses() {
    let [out, into] = pipe();
    let shared = shared();
    let child = Child::new(|| {
        get(out);
        // SAFETY: it counts in a word.
        unsafe { hodo_test_count(&raw const shared.begun, 2000) };
        (shared.begun.load(Ordering::Relaxed) % 200) as i32 + 1
    });
    child.asleep();
    let (thread, stops) = child.stop();
    put(into, 1);
    for _ in 0..1500 {
        let step = thread.step(0, 0).expect("a step");
        let (thread, report) = child.stopped();
        assert_eq!((report.event(), report.signal()), (0, libc::SIGTRAP));
        assert!(step.end(thread).expect("its end"));
    }
    let counted = shared.begun.load(Ordering::Relaxed);
    // Four steps are a round; what comes before takes some.
    assert!((200..=375).contains(&counted), "{counted}");
    stops.detach();
    assert_eq!(child.exit(), 1);
}

#[test]
fn threads_without_a_thread_pointer_have_one_of_hodos() {
    let shared = shared();
    let child = Child::new(|| {
        // SAFETY: it waits, and nothing uses the thread pointer meanwhile.
        let pointer = unsafe { hodo_test_wait(&raw const shared.begun, &raw const shared.goes_on) };
        i32::from(pointer != 0) + 1
    });
    wait_for(&shared.begun);
    let (thread, stops) = child.stop();
    let page = child.scratch_page(thread);
    thread.set_block(0x1234_5000, page, 5).expect("a block");
    assert_eq!(thread.block().expect("a block"), 0x1234_5000);
    assert_eq!(thread.place_of_block(page).expect("a place"), None);
    thread.set_block(0x1234_6000, page, 0).expect("a block");
    assert_eq!(thread.block().expect("a block"), 0x1234_6000);
    thread.set_block(0, page, 0).expect("no block");
    stops.detach();
    shared.goes_on.store(1, Ordering::Release);
    assert_eq!(child.exit(), 1);
}

#[test]
fn a_control_block_is_found_by_its_first_use() {
    let [out, into] = pipe();
    let words = [1u64, 2, 77];
    let child = Child::new(|| {
        get(out);
        // SAFETY: the tracer has its load find memory.
        unsafe { hodo_test_block() as i32 }
    });
    child.asleep();
    let (thread, _stops) = child.stop();
    put(into, 1);
    thread.cont(0).expect("going on");
    let (thread, report) = child.stopped();
    assert_eq!((report.event(), report.signal()), (0, libc::SIGSEGV));
    let address = fault_address(&thread.siginfo().expect("the signal"));
    assert_eq!(address, 16);
    let block = words.as_ptr() as u64;
    let mut regs = thread.regs().expect("registers");
    assert!(!regs.find_block(thread, block, 1 << 40).expect("no block"));
    assert!(regs.find_block(thread, block, address).expect("a block"));
    assert_eq!(thread.block().expect("a block"), block);
    thread.set_regs(&regs).expect("registers");
    // The word is there now: another fault is another one's.
    assert!(!regs.find_block(thread, block, address).expect("no block"));
    let place = thread.place_of_block(0).expect("a place").expect("a place");
    let memory = child.memory();
    assert_eq!(memory.read_u64(TargetAddr(place)).expect("a word"), block);
    thread.detach().expect("letting it go");
    assert_eq!(child.exit(), 77);
}

#[test]
fn a_thread_signs_return_addresses_as_its_functions_do() {
    const STUB: u64 = 0xAAAA_1234_5678;
    const REAL: u64 = 0xFFFF_8765_4320;
    const STACK: u64 = 0xFFFF_F000_1230;
    let [out, into] = pipe();
    let shared = shared();
    let child = Child::new(|| {
        // SAFETY: the function writes two words.
        unsafe {
            hodo_test_sign(STUB, STACK, &raw mut shared.signed);
            hodo_test_sign(REAL, STACK, &raw mut shared.expected);
        }
        get(out)
    });
    child.asleep();
    let (thread, stops) = child.stop();
    let page = child.scratch_page(thread);
    let before = thread.regs().expect("registers");
    for (signed, expected, second) in [
        (shared.signed[0], shared.expected[0], false),
        (shared.signed[1], shared.expected[1], true),
    ] {
        assert_eq!(unsigned(signed), STUB);
        let again = |word, modifier, stored| {
            let how = Signing {
                modifier,
                second,
                stored,
            };
            let again = thread.sign_again(page, word, REAL, Some(how));
            again.expect("a signature")
        };
        assert_eq!(again(signed, STACK, true), Some(expected));
        // Signatures have few bits: some are the same by chance, and some are as if there were none.
        if signed == STUB {
            let known = Some(REAL).filter(|_| expected == REAL);
            assert_eq!(again(STUB, STACK, false), known);
        } else {
            assert_eq!(again(signed, STACK, false), Some(expected));
            assert_eq!(again(STUB, STACK, false), Some(REAL));
            assert!((1..=16).any(|more| again(signed, STACK + 16 * more, true).is_none()));
        }
        let never = thread.sign_again(page, signed, REAL, None);
        assert_eq!(never.expect("none"), Some(REAL).filter(|_| signed == STUB));
    }
    let after = thread.regs().expect("registers");
    assert_eq!((after.pc(), after.sp()), (before.pc(), before.sp()));
    assert_eq!(
        (after.get(16), after.get(17)),
        (before.get(16), before.get(17))
    );
    stops.detach();
    put(into, 8);
    assert_eq!(child.exit(), 8);
    eprintln!("signed: {:x?}", shared.signed);
}
