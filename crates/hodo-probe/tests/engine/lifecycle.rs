//! Registered, armed, hit, disarmed, unregistered.

use std::ffi::c_void;

use hodo_probe::{Execution, Optimization, Registers};

use crate::code::{
    alone, argument, bytes, counter, counting, engine, of, place, register, request, result,
};

function! { sum:
    ["lea rax, [rdi + rsi]"
    "add rax, 1"
    "ret"]
    ["add a0, a0, a1"
    "addi a0, a0, 1"
    "ret"]
    ["add x0, x0, x1"
    "add x0, x0, #1"
    "ret"]
}

unsafe extern "C" {
    fn test_sum(a: u64, b: u64) -> u64;
}

fn sum(a: u64, b: u64) -> u64 {
    // SAFETY: a function of two numbers.
    unsafe { test_sum(a, b) }
}

#[test]
fn a_probe_lives_from_registration_to_the_end() {
    let _alone = alone();
    let at = test_sum as *const () as u64;
    let before = bytes(at, 6);
    for execution in [
        None,
        Some(Execution::Boosted),
        Some(Execution::OutOfLine),
        Some(Execution::Optimized),
    ] {
        let hits = counter();
        let mut wish = counting(place(test_sum as *const (), 1), hits);
        if let Some(execution) = execution {
            wish = wish.execution(execution);
        }
        let probe = register(&wish).expect("it can be probed");
        assert_eq!(probe.execution(), execution.unwrap_or(Execution::Optimized));
        assert_eq!(sum(3, 4), 8);
        assert_eq!(sum(5, 6), 12);
        assert_eq!(of(hits), 2);
        probe.set_enabled(false).expect("it can be disabled");
        assert!(!probe.is_enabled());
        assert_eq!(bytes(at, 6), before);
        assert_eq!(sum(3, 4), 8);
        assert_eq!(of(hits), 2);
        probe.set_enabled(true).expect("it can be enabled");
        assert_ne!(bytes(at, 6), before);
        assert_eq!(sum(3, 4), 8);
        assert_eq!((of(hits), probe.missed(), probe.faults()), (3, 0, 0));
        probe.unregister().expect("it can be unregistered");
        assert_eq!(bytes(at, 6), before);
        assert_eq!(sum(3, 4), 8);
        assert_eq!(of(hits), 3);
    }
    assert!(engine().is_intact());
}

extern "C" fn after(registers: &mut Registers, data: *mut c_void) {
    // SAFETY: the test passes a number.
    unsafe { *data.cast::<u64>() = *result(registers) };
    *result(registers) += 100;
}

#[test]
fn a_handler_after_the_instruction_sees_its_effects() {
    let _alone = alone();
    let seen = Box::leak(Box::new(0u64));
    let probe = register(
        &request(place(test_sum as *const (), 1))
            .after(after)
            .data((&raw mut *seen).cast()),
    );
    let probe = probe.expect("it can be probed");
    assert_eq!(probe.execution(), Execution::OutOfLine);
    assert_eq!(sum(3, 4), 108);
    assert_eq!(*seen, 8);
}

#[test]
fn many_probes_at_one_instruction_are_called_in_order() {
    let _alone = alone();
    extern "C" fn append(registers: &mut Registers, data: *mut c_void) {
        *argument(registers) = *argument(registers) * 10 + data as u64;
    }
    let at = test_sum as *const () as u64;
    let [a, b, c] = [1, 2, 3].map(|digit| {
        let wish = request(at).before(append).data(digit as *mut c_void);
        register(&wish).expect("it can be probed")
    });
    assert_eq!(sum(0, 0), 124);
    b.set_enabled(false).expect("it can be disabled");
    assert_eq!(sum(0, 0), 14);
    drop(a);
    assert_eq!(sum(0, 0), 4);
    drop((b, c));
    assert_eq!(sum(0, 0), 1);
}

#[test]
fn a_handler_may_return_for_the_function() {
    let _alone = alone();
    extern "C" fn instead(registers: &mut Registers, _: *mut c_void) {
        // SAFETY: the probe is at the function's start.
        unsafe { registers.return_now(77) };
    }
    let at = test_sum as *const () as u64;
    let probe = register(&request(at).before(instead)).expect("it can be probed");
    assert_eq!(sum(3, 4), 77);
    drop(probe);
    assert_eq!(sum(3, 4), 8);
}

#[test]
fn explicit_optimization_makes_jumps_on_request() {
    let _alone = alone();
    let at = test_sum as *const () as u64;
    let set = |optimization| {
        engine()
            .set_optimization(optimization)
            .expect("it can be set")
    };
    set(Optimization::Explicit);
    let hits = counter();
    let probe = register(&counting(at, hits)).expect("it can be probed");
    assert_ne!(probe.execution(), Execution::Optimized);
    assert_eq!((sum(3, 4), of(hits)), (8, 1));
    assert_eq!(engine().optimize(), Ok(1));
    assert_eq!(probe.execution(), Execution::Optimized);
    assert_eq!((sum(3, 4), of(hits)), (8, 2));
    assert_eq!(engine().optimize(), Ok(0));
    // Another probe at the site leaves the jump in place; one that demands a stop undoes it.
    let more = register(&request(at).count()).expect("it can be probed");
    assert_eq!(probe.execution(), Execution::Optimized);
    let stop = register(&request(at).count().execution(Execution::Boosted));
    assert_ne!(probe.execution(), Execution::Optimized);
    assert_eq!(engine().optimize(), Ok(0));
    drop(stop);
    assert_ne!(probe.execution(), Execution::Optimized);
    assert_eq!(engine().optimize(), Ok(1));
    assert_eq!((sum(3, 4), of(hits), more.count()), (8, 3, 1));
    drop((probe, more));
    let asking = register(&counting(at, hits).execution(Execution::Optimized));
    assert_eq!(
        asking.expect("it can be probed").execution(),
        Execution::Optimized
    );
    set(Optimization::Automatic);
    let probe = register(&counting(at, hits)).expect("it can be probed");
    assert_eq!(probe.execution(), Execution::Optimized);
}
