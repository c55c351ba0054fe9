//! Functions that sign their return addresses. Their sites come after the instruction that does so.

use std::arch::global_asm;

use hodo_isa::Signing;
use hodo_patch::{Hook, Recording};
use hodo_plan::model::{EntryOnlyReason, Mode};
use hodo_trace::format::tcb;

use crate::code::{Callback, call, leaf};
use crate::isa::{FREE, SETS};
use crate::world::{Site, World, address, site, timed};

global_asm!(
    r#"
    .text
    .arch_extension pauth
    .p2align 2

    // leaf(a, b) + 1
    .globl hodo_test_signed
    .type hodo_test_signed, @function
hodo_test_signed:
    .cfi_startproc
    paciasp
    .cfi_negate_ra_state
    stp x29, x30, [sp, #-16]!
    .cfi_def_cfa_offset 16
    .cfi_offset x29, -16
    .cfi_offset x30, -8
    bl hodo_test_leaf
    add x0, x0, #1
    ldp x29, x30, [sp], #16
    .cfi_restore x29
    .cfi_restore x30
    .cfi_def_cfa_offset 0
    retaa
    .cfi_endproc

    // hodo_test_signed(a + 1, b), through a jump; with the other key
    .globl hodo_test_signed_jump
    .type hodo_test_signed_jump, @function
hodo_test_signed_jump:
    pacibsp
    str x30, [sp, #-16]!
    add x0, x0, #1
    ldr x30, [sp], #16
    autibsp
    b hodo_test_signed

    // f(x)
    .globl hodo_test_signed_call
    .type hodo_test_signed_call, @function
hodo_test_signed_call:
    .cfi_startproc
    paciasp
    .cfi_negate_ra_state
    stp x29, x30, [sp, #-16]!
    .cfi_def_cfa_offset 16
    .cfi_offset x29, -16
    .cfi_offset x30, -8
    mov x5, x0
    mov x0, x1
    blr x5
    ldp x29, x30, [sp], #16
    .cfi_restore x29
    .cfi_restore x30
    .cfi_def_cfa_offset 0
    autiasp
    .cfi_negate_ra_state
    ret
    .cfi_endproc
    "#
);

unsafe extern "C-unwind" {
    pub safe fn hodo_test_signed(a: u64, b: u64) -> u64;
    pub safe fn hodo_test_signed_jump(a: u64, b: u64) -> u64;
    safe fn hodo_test_signed_call(f: Callback, x: u64) -> u64;
}

/// A site after the first instruction of a function.
pub fn signed(name: &'static str, function: *const (), signing: Signing) -> Site {
    let mut site = site(name, address(function) + 4, 4, FREE);
    site.plan.signing = signing;
    site
}

fn sites() -> [Site; 3] {
    [
        site("leaf", address(leaf as *const ()), 8, FREE),
        signed("signed", hodo_test_signed as *const (), Signing::A),
        signed("jump", hodo_test_signed_jump as *const (), Signing::B),
    ]
}

fn run() {
    assert_eq!(hodo_test_signed(3, 4), 15);
    assert_eq!(hodo_test_signed_jump(3, 4), 17);
}

#[test]
fn functions_authenticate_the_addresses_of_stubs() {
    for (before, after) in SETS {
        for options in 0..16 {
            let set = |bit: u32| options >> bit & 1 != 0;
            let recording = Recording {
                timed: set(0),
                depth: set(1).then_some(9),
                check_frames: set(2),
                filtered: set(3),
                ..Recording::default()
            };
            let mut world = World::new(recording, 4);
            let block = world.enter(1);
            let mut sites = sites().map(|site| site.free(before, after));
            sites[2].filter = true;
            world.trace(&sites);
            run();
            let jump = "+jump >signed +leaf -leaf -jump";
            let text = match set(3) {
                true => jump.to_owned(),
                false => format!("+signed +leaf -leaf -signed {jump}"),
            };
            assert_eq!(world.text(1), text, "{before:#x} {after:#x} {recording:?}");
            assert_eq!(world.get(block + tcb::BAD_FRAMES), 0);
        }
    }
}

#[test]
fn without_an_exit_the_address_stays_signed() {
    use EntryOnlyReason::{HandsReturnAddressOn, ReadsReturnAddress, ReturnsTwice};
    for reason in [ReturnsTwice, ReadsReturnAddress, HandsReturnAddressOn] {
        for (before, after) in SETS {
            let mut world = World::new(timed(), 4);
            world.enter(1);
            let mut sites = sites().map(|site| site.free(before, after));
            sites[2].plan.mode = Mode::EntryOnly(reason);
            world.trace(&sites);
            run();
            // If the address is handed on, the next function is recorded without an exit, too.
            let text = match reason {
                HandsReturnAddressOn => "+jump +signed +leaf -leaf",
                _ => "+jump +signed +leaf -leaf -signed",
            };
            let text = format!("+signed +leaf -leaf -signed {text}");
            assert_eq!(world.text(1), text, "{reason:?} {before:#x}");
        }
    }
}

extern "C-unwind" fn panics(x: u64) -> u64 {
    match x {
        0 => std::panic::resume_unwind(Box::new("found")),
        _ if x.is_multiple_of(2) => call(panics, x - 1),
        _ => hodo_test_signed_call(panics, x - 1),
    }
}

#[test]
fn unwinders_authenticate_the_addresses_of_stubs() {
    let mut world = World::new(timed(), 2);
    world.enter(1);
    world.hook(Hook::FindObject, c"_dl_find_object", 0x100);
    world.trace(&[
        site("call", address(call as *const ()), 8, FREE),
        signed("signed", hodo_test_signed_call as *const (), Signing::A),
    ]);
    let caught = std::panic::catch_unwind(|| call(panics, 3));
    let message = caught.expect_err("a panic");
    assert_eq!(message.downcast_ref::<&str>(), Some(&"found"));
    assert_eq!(world.text(1), "+call +signed +call +signed");
}
