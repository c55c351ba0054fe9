//! Threads in the middle of overwritten bytes, and handlers that make the program continue elsewhere.

use std::ffi::c_void;

use hodo_probe::{Execution, Registers};

use crate::code::{alone, counter, counting, of, place, register, request, result, steps};

function! { small: "addi a0, a0, 1" "addi a0, a0, 2" "addi a0, a0, 4" "ret" }
function! { away: "lui a5, 0x12345" "addi a0, a0, 1" "ret" }

unsafe extern "C" {
    fn test_small(n: u64) -> u64;
    fn test_away(n: u64) -> u64;
}

/// Calls code in the middle of a function.
fn call(at: u64, n: u64) -> u64 {
    // SAFETY: the code there is a function of one number without its first instructions.
    unsafe { std::mem::transmute::<usize, extern "C" fn(u64) -> u64>(at as usize)(n) }
}

#[test]
fn a_thread_in_the_middle_of_a_jump_reaches_the_copy() {
    let _alone = alone();
    let start = test_small as *const () as u64;
    for counts in [false, true] {
        let hits = counter();
        let wish = match counts {
            true => request(start).count(),
            false => counting(start, hits),
        };
        let probe = register(&wish).expect("it can be probed");
        assert_eq!(probe.execution(), Execution::Optimized);
        assert_eq!(call(start, 0), 7);
        assert_eq!(of(hits) + probe.count(), 1);
        // Like a thread that was stopped here before the jump was written.
        assert_eq!(call(start + 2, 0), 6);
        assert_eq!(call(start + 4, 0), 4);
        assert_eq!(of(hits) + probe.count(), 1);
    }
    assert_eq!(call(start + 2, 0), 6);
}

#[test]
fn a_handler_may_make_the_program_continue_elsewhere() {
    extern "C" fn skip(registers: &mut Registers, data: *mut c_void) {
        registers.pc = data as u64;
        registers.a0 += 100;
        registers.t6 = 3;
    }
    let _alone = alone();
    let start = test_away as *const () as u64;
    let end = place(test_away as *const (), 2);
    for way in [Execution::Optimized, Execution::Boosted] {
        let wish = request(start).before(skip).data(end as *mut c_void);
        let probe = register(&wish.execution(way)).expect("it can be probed");
        assert_eq!(probe.execution(), way);
        // SAFETY: a function of a number.
        assert_eq!(unsafe { test_away(5) }, 105);
        assert_eq!(probe.missed(), 0);
    }
}

function! { stack: "lui a5, 0x12345" "mv a0, sp" "mv sp, a1" "ret" }

unsafe extern "C" {
    fn test_stack(n: u64, sp: u64) -> u64;
}

#[test]
fn a_handler_may_change_the_stack_pointer() {
    extern "C" fn lower(registers: &mut Registers, _: *mut c_void) {
        registers.a1 = registers.sp;
        registers.sp -= 4096;
    }
    let _alone = alone();
    let start = test_stack as *const () as u64;
    let probe = register(&request(start).before(lower)).expect("it can be probed");
    assert_eq!(probe.execution(), Execution::Optimized);
    let here = &raw const probe as u64;
    // SAFETY: it restores its own stack pointer before it returns.
    let seen = unsafe { test_stack(0, 0) };
    assert!(
        seen < here - 4000 && seen > here - 9000,
        "{seen:#x} {here:#x}"
    );
}

#[test]
fn all_registers_are_seen_and_can_be_changed() {
    extern "C" fn other(registers: &mut Registers, data: *mut c_void) {
        // SAFETY: the test passes room.
        unsafe { *data.cast::<Registers>() = *registers };
        for index in 0..8 {
            assert!(registers.argument(index).is_some());
        }
        assert_eq!(registers.argument(8), None);
        *result(registers) = 1000;
    }
    let _alone = alone();
    let start = test_away as *const () as u64;
    for way in [Execution::Optimized, Execution::Boosted] {
        let seen = Box::leak(Box::new(Registers::default()));
        let wish = request(start).before(other).data((&raw mut *seen).cast());
        let probe = register(&wish.execution(way)).expect("it can be probed");
        // SAFETY: a function of a number.
        assert_eq!(unsafe { test_away(77) }, 1001);
        assert_eq!((seen.pc, seen.a0), (start, 77));
        let (sp, tp): (u64, u64);
        // SAFETY: reads two registers.
        unsafe { std::arch::asm!("mv {}, sp", "mv {}, tp", out(reg) sp, out(reg) tp) };
        assert_eq!(seen.tp, tp);
        assert!(seen.sp.abs_diff(sp) < 4096 && seen.sp.is_multiple_of(16));
        drop(probe);
    }
    assert_eq!(steps(start, 32).len(), 3);
}
