//! What a probe must preserve: all general and floating-point registers, and their control registers.

use std::arch::asm;
use std::ffi::c_void;
use std::sync::atomic::{AtomicU64, Ordering};

use hodo_isa::native::scan::Flow;
use hodo_probe::{Execution, Registers};

use crate::code::{alone, bytes, counter, engine, of, register, request};

// Loads all registers from a0, does a bit of everything, and stores all to a1. Each has 65 words.
std::arch::global_asm!(
    ".macro test_state_each what, base",
    ".irp r, 1, 5, 6, 7, 8, 9, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31",
    "\\what x\\r, \\r * 8(\\base)",
    ".endr",
    ".irp r, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31",
    "f\\what f\\r, 256 + \\r * 8(\\base)",
    ".endr",
    ".endm",
);

function! { state:
    "addi sp, sp, -512"
    "sd ra, 0(sp)"
    ".irp r, 8, 9, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27"
    "sd x\\r, \\r * 8(sp)"
    ".endr"
    ".irp r, 8, 9, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27"
    "fsd f\\r, 256 + \\r * 8(sp)"
    ".endr"
    "ld t6, 512(a0)"
    "fscsr t6"
    "test_state_each ld, a0"
    "add t0, t0, t1"
    "addi t2, t2, 5"
    "xor s0, s1, s2"
    "mul s3, s4, s5"
    "fadd.d fa0, fa1, fa2"
    "fmul.d fs0, ft0, ft1"
    "slli a5, a5, 3"
    "auipc t3, 0"
    "lui t4, 0x12345"
    "sub a2, a3, a4"
    "2: addi a2, a2, 1"
    "addi a3, a3, -1"
    "bgtz a3, 2b"
    "j 3f"
    "addi a4, a4, 100"
    "3: jal ra, 4f"
    "4: auipc a6, 0"
    "jalr ra, 8(a6)"
    "beq a4, a5, 3b"
    "bne a4, a5, 5f"
    "addi a7, a7, 100"
    "5: addi a7, a7, 1"
    "sd s6, 488(sp)"
    "ld s7, 488(sp)"
    "addi t5, sp, 496"
    "sd zero, 0(t5)"
    "amoadd.d s8, s9, (t5)"
    "amoadd.d s10, s9, (t5)"
    "li t5, 7"
    "fcvt.d.w fs1, t5"
    "fdiv.d fs1, fs1, fs0"
    "fence rw, rw"
    "nop"
    "test_state_each sd, a1"
    "frcsr t6"
    "sd t6, 512(a1)"
    ".irp r, 8, 9, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27"
    "fld f\\r, 256 + \\r * 8(sp)"
    ".endr"
    "ld ra, 0(sp)"
    ".irp r, 8, 9, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27"
    "ld x\\r, \\r * 8(sp)"
    ".endr"
    "addi sp, sp, 512"
    "ret"
}

unsafe extern "C" {
    fn test_state(from: *const [u64; 65], to: *mut [u64; 65]);
}

/// Where the function begins.
pub fn start() -> u64 {
    test_state as *const () as u64
}

/// Changes everything that a function may change.
extern "C" fn spoiling(registers: &mut Registers, data: *mut c_void) {
    assert!(std::hint::black_box(vec![7u8; 300]) == vec![7u8; 300]);
    assert_ne!(registers.sp, 0);
    // SAFETY: the test passes a counter; everything that is changed is named.
    unsafe {
        (*data.cast::<AtomicU64>()).fetch_add(1, Ordering::Relaxed);
        asm!(
            "li t0, -1",
            "fscsr t0",
            ".irp r, 0, 1, 2, 3, 4, 5, 6, 7, 10, 11, 12, 13, 14, 15, 16, 17, 28, 29, 30, 31",
            "fmv.d.x f\\r, t0",
            ".endr",
            ".irp r, 6, 7, 10, 11, 12, 13, 14, 15, 16, 17, 28, 29, 30, 31",
            "mv x\\r, t0",
            ".endr",
            clobber_abi("C"),
        );
    }
}

fn input() -> [u64; 65] {
    let mut from = [0; 65];
    for (number, word) in from.iter_mut().enumerate() {
        *word = match number {
            0..32 => 0x0101_0101_0101_0101u64.wrapping_mul(number as u64 + 7),
            _ => (1.5 + number as f64).to_bits(),
        };
    }
    // Few rounds; no exceptions yet, and rounding upwards.
    from[13] = 3;
    from[64] = 3 << 5;
    from
}

fn run() -> [u64; 65] {
    let mut to = [0; 65];
    // SAFETY: the function reads the one and writes the other.
    unsafe { test_state(&input(), &mut to) };
    to
}

fn steps() -> Vec<hodo_isa::native::steps::Step> {
    let start = test_state as *const () as u64;
    let all = hodo_isa::native::steps::steps(&bytes(start, 1200), start);
    let end = all
        .iter()
        .position(|step| matches!(step.flow, Flow::Return { .. }));
    all[..=end.expect("it returns")].to_vec()
}

#[test]
fn every_instruction_keeps_the_state() {
    let _alone = alone();
    let expected = run();
    assert_eq!(run(), expected);
    let (mut optimized, mut tried, mut simulated) = (0, 0, 0);
    for (number, step) in steps().iter().enumerate() {
        for execution in [
            None,
            Some(Execution::Boosted),
            Some(Execution::OutOfLine),
            Some(Execution::Simulated),
        ] {
            // Many of them differ only in a register.
            if execution.is_some() && step.flow == Flow::Next && number % 4 != 0 {
                continue;
            }
            let hits = counter();
            let mut wish = request(step.addr)
                .before(spoiling)
                .data(std::ptr::from_ref(hits).cast_mut().cast());
            if let Some(execution) = execution {
                wish = wish.execution(execution);
            }
            let Ok(probe) = register(&wish) else {
                assert!(execution.is_some(), "{step:?} is refused");
                continue;
            };
            optimized += usize::from(probe.execution() == Execution::Optimized);
            simulated += usize::from(probe.execution() == Execution::Simulated);
            tried += 1;
            assert_eq!(run(), expected, "{step:x?} {}", probe.execution());
            assert_eq!((probe.missed(), probe.faults()), (0, 0));
            // Instructions that are jumped over are not hit.
            assert!(of(hits) <= 4 && (of(hits) > 0 || !step.flow.is_end()));
        }
    }
    println!("{tried} tried, {optimized} optimized, {simulated} simulated");
    assert!(tried > 300 && optimized > 190 && simulated >= 7);
}

#[test]
fn all_instructions_at_once_and_counted() {
    let _alone = alone();
    let expected = run();
    let start = test_state as *const () as u64;
    let code = bytes(start, 1200);
    for counts in [false, true] {
        let hits = counter();
        let requests: Vec<_> = steps()
            .iter()
            .map(|step| match counts {
                true => request(step.addr).count(),
                false => crate::code::counting(step.addr, hits),
            })
            .collect();
        // SAFETY: the handler only counts.
        let probes: Vec<_> = unsafe { engine().register_all(&requests) }
            .into_iter()
            .map(|probe| probe.expect("it can be probed"))
            .collect();
        let total = || of(hits) + probes.iter().map(|probe| probe.count()).sum::<u64>();
        for round in 1..=3 {
            assert_eq!(run(), expected);
            // Two are jumped over; the loop of three instructions runs three times.
            assert_eq!(total(), round * (probes.len() as u64 - 2 + 2 * 3));
        }
        let all: Vec<_> = probes.iter().collect();
        engine().set_enabled(&all, false).expect("disabled");
        assert_eq!(bytes(start, 1200), code);
        drop(all);
        engine().unregister_all(probes).expect("unregistered");
    }
}

#[test]
fn a_count_in_each_place_alone() {
    let _alone = alone();
    let expected = run();
    let mut optimized = 0;
    for step in steps() {
        let probe = register(&request(step.addr).count()).expect("it can be probed");
        optimized += usize::from(probe.execution() == Execution::Optimized);
        assert_eq!(run(), expected, "{step:x?}");
        assert!(probe.count() <= 3);
    }
    assert!(optimized > 120, "{optimized}");
}
