//! Code is changed while threads run it.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use hodo_probe::{Engine, Probe};

use crate::code::{alone, counter, counting, engine, of, register, request};

function! { work:
    ["push rbp"
    "mov rbp, rsp"
    "lea rax, [rdi + rsi]"
    "mov rcx, rdi"
    "2: add rax, 1"
    "dec rcx"
    "jnz 2b"
    "pop rbp"
    "ret"]
    ["addi sp, sp, -16"
    "sd s0, 0(sp)"
    "addi s0, sp, 16"
    "add a1, a0, a1"
    "mv t0, a0"
    "2: addi a1, a1, 1"
    "addi t0, t0, -1"
    "bnez t0, 2b"
    "mv a0, a1"
    "ld s0, 0(sp)"
    "addi sp, sp, 16"
    "ret"]
    ["stp x29, x30, [sp, #-16]!"
    "mov x29, sp"
    "add x1, x0, x1"
    "mov x9, x0"
    "2: add x1, x1, #1"
    "subs x9, x9, #1"
    "b.ne 2b"
    "mov x0, x1"
    "ldp x29, x30, [sp], #16"
    "ret"]
}

unsafe extern "C" {
    fn test_work(a: u64, b: u64) -> u64;
}

/// Runs threads through the function while `work` is done. Returns how often they called it.
fn meanwhile(threads: usize, work: impl FnOnce()) -> u64 {
    let stop = AtomicBool::new(false);
    let calls = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                let mut n = 0;
                while !stop.load(Ordering::Relaxed) {
                    for b in 0..16 {
                        // SAFETY: a function of two numbers.
                        assert_eq!(unsafe { test_work(3, b) }, 3 + b + 3);
                        n += 1;
                    }
                }
                calls.fetch_add(n, Ordering::Relaxed);
            });
        }
        work();
        stop.store(true, Ordering::Relaxed);
    });
    calls.load(Ordering::Relaxed)
}

/// Addresses of the function's instructions.
fn places() -> Vec<u64> {
    crate::code::steps(test_work as *const () as u64, 48)
        .iter()
        .map(|step| step.addr)
        .collect()
}

/// Fewer under the emulator.
fn rounds(usual: u64) -> u64 {
    if crate::emulator::is_here() {
        usual / 10
    } else {
        usual
    }
}

fn again_and_again(usual: u64) {
    let _alone = alone();
    let rounds = rounds(usual);
    let places = places();
    let start = places[0];
    // SAFETY: the test's own code.
    let bytes = || unsafe { std::slice::from_raw_parts(start as *const u8, 32) }.to_vec();
    let before = bytes();
    let hits = counter();
    let begin = std::time::Instant::now();
    let calls = meanwhile(2, || {
        for round in 0..rounds {
            // Emulated processors are slow.
            if !cfg!(target_arch = "x86_64") && round > 10 && begin.elapsed().as_secs() > 20 {
                break;
            }
            let at = places[round as usize % places.len()];
            let probe = register(&counting(at, hits)).expect("it can be probed");
            probe.unregister().expect("it can be unregistered");
        }
    });
    assert!(calls > 100);
    assert_eq!(bytes(), before);
    println!("{rounds} rounds, {calls} calls, {} hits", of(hits));
}

#[test]
fn registered_and_unregistered_2000_times_while_threads_run() {
    again_and_again(2000);
}

#[test]
#[ignore = "a minute"]
fn registered_and_unregistered_100000_times_while_threads_run() {
    again_and_again(100_000);
}

#[test]
fn toggled_while_four_threads_run() {
    let _alone = alone();
    let hits = counter();
    let probes: Vec<Probe> = places()
        .iter()
        .map(|&at| register(&counting(at, hits).disabled()).expect("it can be probed"))
        .collect();
    let all: Vec<&Probe> = probes.iter().collect();
    let engine: Engine = engine();
    let calls = meanwhile(4, || {
        for round in 0..rounds(300) as usize {
            // One after the other, every second one, and all.
            let some: Vec<&Probe> = match round % 3 {
                0 => vec![all[round % all.len()]],
                1 => all.iter().step_by(2).copied().collect(),
                _ => all.clone(),
            };
            engine
                .set_enabled(&some, true)
                .expect("they can be enabled");
            let before = of(hits);
            for _ in 0..1000 {
                if round >= 4 || of(hits) > before {
                    break;
                }
                std::thread::yield_now();
            }
            engine
                .set_enabled(&some, false)
                .expect("they can be disabled");
        }
    });
    assert!(calls > 100 && of(hits) > 0);
    drop(all);
    engine
        .unregister_all(probes)
        .expect("they can be unregistered");
}

#[test]
fn no_handler_runs_after_it_was_unregistered() {
    extern "C" fn write(_: &mut hodo_probe::Registers, data: *mut std::ffi::c_void) {
        // SAFETY: the data is good until the probe is unregistered.
        unsafe {
            let flag = &*data.cast::<AtomicU64>();
            assert_eq!(flag.load(Ordering::Relaxed), 1);
            for _ in 0..50 {
                std::hint::spin_loop();
            }
            assert_eq!(flag.load(Ordering::Relaxed), 1);
        }
    }
    let _alone = alone();
    meanwhile(3, || {
        for round in 0..rounds(300) {
            let flag = Box::new(AtomicU64::new(1));
            let at = places()[round as usize % 2];
            let wish = request(at)
                .before(write)
                .data(std::ptr::from_ref(&*flag).cast_mut().cast());
            let probe = register(&wish).expect("it can be probed");
            probe.unregister().expect("it can be unregistered");
            flag.store(0, Ordering::Relaxed);
        }
    });
}

#[test]
fn text_stays_a_mapping_of_its_file() {
    let _alone = alone();
    let hits = counter();
    let _probes: Vec<Probe> = places()
        .iter()
        .map(|&at| register(&counting(at, hits)).expect("it can be probed"))
        .collect();
    let start = test_work as *const () as u64;
    let maps = std::fs::read_to_string("/proc/self/maps").expect("the mappings");
    let mut found = false;
    for line in maps.lines() {
        assert!(!line.contains("wx"), "{line}");
        let (range, _) = line.split_once(' ').expect("a range");
        let (low, high) = range.split_once('-').expect("a range");
        let number = |text| u64::from_str_radix(text, 16).expect("a number");
        if (number(low)..number(high)).contains(&start) {
            assert!(line.contains("r-xp") && line.contains('/'), "{line}");
            found = true;
        }
    }
    assert!(found);
}
