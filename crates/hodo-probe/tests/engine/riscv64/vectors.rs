//! Vector registers and their control registers, on processors that have them.

use std::arch::asm;
use std::ffi::c_void;
use std::sync::atomic::{AtomicU64, Ordering};

use hodo_probe::{Execution, Registers};

use crate::code::{alone, counter, of, register, request, steps};
use crate::skipped::skip;

function! { vector:
    ".option push"
    ".option arch, +v"
    "li t0, 3"
    "vsetvli zero, t0, e32, m2, tu, ma"
    "csrwi vxrm, 2"
    "vle32.v v8, (a0)"
    "vle32.v v30, (a0)"
    "vadd.vv v8, v8, v8"
    "vmv.v.i v0, 5"
    "vmseq.vi v0, v8, 4"
    "csrwi vxsat, 1"
    "addi a0, a0, 4"
    "vadd.vv v30, v30, v8, v0.t"
    "vse32.v v30, (a1)"
    "csrr t1, vl"
    "sw t1, 12(a1)"
    "csrr t1, vtype"
    "sw t1, 16(a1)"
    "csrr t1, vcsr"
    "sw t1, 20(a1)"
    "ret"
    ".option pop"
}

unsafe extern "C" {
    fn test_vector(from: *const [u32; 3], to: *mut [u32; 6]);
}

extern "C" fn spoiling(_: &mut Registers, data: *mut c_void) {
    // SAFETY: the test passes a counter; callers keep no values in vector registers across a call.
    unsafe {
        (*data.cast::<AtomicU64>()).fetch_add(1, Ordering::Relaxed);
        asm!(
            ".option push",
            ".option arch, +v",
            "vsetvli t0, zero, e8, m8, ta, ma",
            "vmv.v.i v0, -1",
            "vmv.v.i v8, -1",
            "vmv.v.i v16, -1",
            "vmv.v.i v24, -1",
            "csrwi vcsr, 0",
            ".option pop",
            out("t0") _,
        );
    }
}

fn has_vectors() -> bool {
    const V: u64 = 1 << (b'V' - b'A');
    // SAFETY: a plain question.
    unsafe { libc::getauxval(libc::AT_HWCAP) & V != 0 }
}

#[test]
fn vectors_are_kept_around_handlers_that_use_them() {
    if !has_vectors() {
        skip("this processor has no vector registers");
        return;
    }
    let _alone = alone();
    let run = || {
        let mut to = [0; 6];
        // SAFETY: the function reads the one and writes the other.
        unsafe { test_vector(&[1, 2, 3], &mut to) };
        to
    };
    let expected = run();
    assert_eq!(&expected[..4], &[1, 6, 3, 3]);
    let mut optimized = 0;
    for step in steps(test_vector as *const () as u64, 120) {
        // The emulator's signal frames have no vector registers; the kernel's do.
        let ways = match crate::emulator::is_here() {
            true => &[None][..],
            false => &[None, Some(Execution::Boosted), Some(Execution::OutOfLine)],
        };
        for way in ways {
            let hits = counter();
            let mut wish = request(step.addr)
                .before(spoiling)
                .data(std::ptr::from_ref(hits).cast_mut().cast());
            if let Some(way) = way {
                wish = wish.execution(*way);
            }
            let Ok(probe) = register(&wish) else {
                assert!(way.is_some() && step.flow.is_end());
                continue;
            };
            if way.is_none() && probe.execution() != Execution::Optimized {
                assert!(!crate::emulator::is_here() || step.len == 2, "{step:x?}");
                continue;
            }
            optimized += usize::from(probe.execution() == Execution::Optimized);
            assert_eq!((run(), of(hits)), (expected, 1), "{step:x?}");
        }
    }
    assert!(optimized >= 18, "{optimized}");
}

// marked(mark): puts the mark into all elements of all vector registers, and returns how often it is found on the stack
// below its own frame after an instruction that may have a probe.
function! { marked:
    ".option push"
    ".option arch, +v"
    "li t0, 16384"
    "sub t1, sp, t0"
    "1: sd zero, 0(t1)"
    "addi t1, t1, 8"
    "bne t1, sp, 1b"
    "vsetvli t0, zero, e64, m8, ta, ma"
    "vmv.v.x v0, a0"
    "vmv.v.x v8, a0"
    "vmv.v.x v16, a0"
    "vmv.v.x v24, a0"
    ".globl test_marked_probe"
    "test_marked_probe:"
    "xori a3, a3, 1365"
    "xori a3, a3, 1365"
    "xori a3, a3, 1365"
    "li t0, 16384"
    "sub t1, sp, t0"
    "li a2, 0"
    "2: ld t2, 0(t1)"
    "bne t2, a0, 3f"
    "addi a2, a2, 1"
    "3: addi t1, t1, 8"
    "bne t1, sp, 2b"
    "mv a0, a2"
    "ret"
    ".option pop"
}

// A handler that uses no vectors: it counts.
function! { light:
    "li t0, 1"
    "amoadd.d zero, t0, (a1)"
    "ret"
}

unsafe extern "C" {
    safe fn test_marked(mark: u64) -> u64;
    fn test_marked_probe();
    fn test_light(registers: &mut Registers, data: *mut c_void);
}

extern "C" fn light(registers: &mut Registers, data: *mut c_void) {
    // SAFETY: the test passes a counter.
    unsafe { test_light(registers, data) }
}

/// How often the mark is on the stack after a probe was hit once.
fn saved(wish: hodo_probe::Request, hits: Option<&AtomicU64>) -> u64 {
    let probe = register(&wish).expect("a probe");
    assert_eq!(probe.execution(), Execution::Optimized);
    let found = test_marked(0x5EED_0123_4567_89AB);
    assert_eq!(hits.map_or_else(|| probe.count(), of), 1);
    found
}

/// They are put on the stack only when a handler runs whose code changes some of them.
#[test]
fn vectors_are_saved_exactly_when_a_handler_runs() {
    if !has_vectors() {
        skip("this processor has no vector registers");
        return;
    }
    let _alone = alone();
    let words = {
        let bytes: u64;
        // SAFETY: only asks how long they are.
        unsafe {
            asm!(".option push", ".option arch, +v", "csrr {}, vlenb", ".option pop", out(reg) bytes)
        };
        32 * bytes / 8
    };
    let at = || request(test_marked_probe as *const () as u64);
    let with = |handler, hits: &'static AtomicU64| {
        let data = std::ptr::from_ref(hits).cast_mut().cast();
        saved(at().before(handler).data(data), Some(hits))
    };
    assert_eq!(test_marked(0x5EED_0123_4567_89AB), 0);
    // The mark is also the value of a general register, and may be on the stack for that reason.
    let found = with(spoiling, counter());
    assert!((words..words + 4).contains(&found), "{found} of {words}");
    assert!(with(light, counter()) < 4);
    assert_eq!(saved(at().count(), None), 0);
}
