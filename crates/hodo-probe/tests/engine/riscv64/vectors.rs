//! Vector registers and what controls them, on processors that have them.

use std::arch::asm;
use std::ffi::c_void;
use std::sync::atomic::{AtomicU64, Ordering};

use hodo_probe::engine::{Execution, Registers};

use crate::code::{alone, counter, of, register, request, steps};

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
    // SAFETY: the test gives a counter; vector registers are nobody's across a call.
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
        println!("skipped: no vector registers");
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
