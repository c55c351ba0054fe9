//! The layers in an environment of our own: one thread, and a shadow that is one mapping.

use std::arch::naked_asm;
use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicUsize, Ordering};

use hodo_ftrace::{
    Call, Environment, FrameTest, GraphOps, Open, SHADOW_DISTANCE, Thread, VECTORS,
    prepare_ftrace_return, set_frame_test, set_graph,
};

const CALLS: usize = 4;
const SIZE: usize = 1 << 20;

#[repr(C)]
struct Only {
    thread: UnsafeCell<[usize; size_of::<Thread>() / size_of::<usize>()]>,
    calls: UnsafeCell<[usize; CALLS * size_of::<Open>() / size_of::<usize>()]>,
}

// SAFETY: one thread of this test uses it.
unsafe impl Sync for Only {}

static ONLY: Only = Only {
    thread: UnsafeCell::new([0; size_of::<Thread>() / size_of::<usize>()]),
    calls: UnsafeCell::new([0; CALLS * size_of::<Open>() / size_of::<usize>()]),
};

static MISMATCHES: AtomicUsize = AtomicUsize::new(0);
static RETURNS: AtomicUsize = AtomicUsize::new(0);

struct One;

// SAFETY: one thread is traced. What it has is static, and its shadow is mapped.
unsafe impl Environment for One {
    fn thread() -> Option<&'static Thread> {
        // SAFETY: all zeros is a thread, and it is static.
        Some(unsafe { &*ONLY.thread.get().cast::<Thread>() })
    }

    fn prepare(thread: &'static Thread, slot: usize) -> bool {
        let from = (slot - SHADOW_DISTANCE) & !(SIZE - 1);
        // SAFETY: nothing is there; a second mapping would fail.
        let at = unsafe {
            libc::mmap(
                from as *mut _,
                SIZE,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE,
                -1,
                0,
            )
        };
        if at as usize != from {
            return false;
        }
        // SAFETY: both are there.
        unsafe {
            thread.set_shadow(from + SHADOW_DISTANCE, from + SIZE + SHADOW_DISTANCE);
            thread.set_open_calls(ONLY.calls.get().cast(), CALLS);
        }
        true
    }

    fn frame_mismatch(call: &Call, expected: usize, _: usize, abort: bool) {
        assert_eq!(
            (call.func, call.depth, expected, abort),
            (0x1234, 0, 0x5678, false)
        );
        MISMATCHES.fetch_add(1, Ordering::Relaxed);
    }
}

hodo_ftrace::set_environment!(One);

extern "C" fn returned(call: &mut Call) {
    assert_eq!(call.func, 0x1234);
    RETURNS.fetch_add(1, Ordering::Relaxed);
}

/// Has its return traced by its environment, not by a compiler.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
extern "C" fn traced(value: usize, frame_pointer: usize) -> usize {
    naked_asm!(
        "push rdi",
        "mov rdx, rsi",
        "mov rsi, 0x1234",
        "lea rdi, [rsp + 8]",
        "call {prepare}",
        "pop rax",
        "ret",
        prepare = sym prepare,
    );
}

/// What a traced function does on RISC-V.
#[cfg(target_arch = "riscv64")]
#[unsafe(naked)]
extern "C" fn traced(value: usize, frame_pointer: usize) -> usize {
    naked_asm!(
        "addi sp, sp, -16",
        "sd ra, 8(sp)",
        "sd a0, 0(sp)",
        "mv a2, a1",
        "li a1, 0x1234",
        "addi a0, sp, 8",
        "call {prepare}",
        "ld a0, 0(sp)",
        "ld ra, 8(sp)",
        "addi sp, sp, 16",
        "ret",
        prepare = sym prepare,
    );
}

/// What a traced function does on AArch64. The call is known under the address of the caller's frame record.
#[cfg(target_arch = "aarch64")]
#[unsafe(naked)]
extern "C" fn traced(value: usize, frame_pointer: usize) -> usize {
    naked_asm!(
        "stp x29, x30, [sp, #-32]!",
        "str x0, [sp, #16]",
        "mov x2, x1",
        "mov x1, #0x1234",
        "add x0, sp, #8",
        "bl {prepare}",
        "ldr x0, [sp, #16]",
        "ldp x29, x30, [sp], #32",
        "ret",
        prepare = sym prepare,
    );
}

extern "C" fn prepare(parent: *mut usize, selfpc: usize, frame_pointer: usize) {
    // SAFETY: `traced` returns through this slot.
    unsafe { prepare_ftrace_return(parent, selfpc, frame_pointer) };
}

#[test]
fn returns_are_traced_in_an_environment_of_our_own() {
    static OPS: GraphOps = GraphOps {
        entry: None,
        exit: Some(returned),
        flags: VECTORS,
    };
    let count = || RETURNS.load(Ordering::Relaxed);
    assert_eq!((traced(7, 0), count()), (7, 0));
    set_graph(Some(&OPS));
    assert_eq!((traced(7, 0x5678), count()), (7, 1));
    assert_eq!(MISMATCHES.load(Ordering::Relaxed), 0);
    set_frame_test(FrameTest::Report);
    assert_eq!((traced(8, 0x5678), count()), (8, 2));
    set_frame_test(FrameTest::Off);
    set_graph(None);
    assert_eq!((traced(9, 0), count()), (9, 2));
    assert_eq!(MISMATCHES.load(Ordering::Relaxed), 1);
    let counts = One::thread().expect("there is one").counts();
    assert_eq!((counts.mismatched, counts.untraced, counts.lost), (1, 0, 0));
}
