//! Windows of stack addresses: what readers find out about the position of frames.

use std::ffi::c_void;
use std::ptr;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use hodo_isa::code::Flow;
use hodo_isa::{NATIVE, Via};
use hodo_patch::Recording;
use hodo_plan::model::{EntryOnlyReason, Mode};
use hodo_trace::RecordKind;
use hodo_trace::format::{WINDOW_SIZE, record, tcb};

use crate::calls::registers;
use crate::code::{leaf, outer};
use crate::isa::{self, BREAK, FREE, KEPT, room};
use crate::world::{Site, World, address, site, timed, write_code};

/// Calls `leaf` with this stack pointer.
fn leaf_at(sp: u64) {
    // SAFETY: nobody else uses what is below the current stack pointer.
    let result = unsafe { isa::call_at(leaf, sp, 3, 4) };
    assert_eq!(result, 14);
}

/// An address of the stack some way below the caller's.
fn below() -> u64 {
    let here = 0u64;
    ((&raw const here).addr() as u64 & !0xF) - (64 << 10)
}

/// `leaf`, and its caller.
fn sites(via: Via, before: u32, after: u32) -> [Site; 2] {
    let site = |name, function| site(name, function, room(via), via).free(before, after);
    [
        site("leaf", address(leaf as *const ())),
        site("outer", address(outer as *const ())),
    ]
}

/// The stack pointers of all entries of a task, as readers see them, with the function's id.
fn stacks(world: &World, name: &str) -> Vec<(u32, u64)> {
    let trace = world.read(name, 1);
    let records = trace.records(&trace.tasks[0]);
    let entries = records.filter(|found| found.kind == RecordKind::Entry);
    entries.map(|found| (found.id, found.stack)).collect()
}

/// How many windows were recorded.
fn windows(world: &World) -> usize {
    let all = world.all_records(1);
    let is_window = |found: &&crate::world::Record| {
        (found.kind, found.id) == (record::SPECIAL, record::SPECIAL_WINDOW)
    };
    all.iter().filter(is_window).count()
}

#[test]
fn readers_know_the_stack_pointer_of_each_entry() {
    let mut random = 1u64;
    for (index, (via, before, after)) in registers().enumerate() {
        for (timed, only) in [(true, false), (false, false), (true, true), (false, true)] {
            let recording = Recording {
                timed,
                ..Recording::default()
            };
            let mut world = World::new(recording, 4);
            world.enter(1);
            let mut sites = sites(via, before, after);
            if only {
                sites[0].plan.mode = Mode::EntryOnly(EntryOnlyReason::ReturnsTwice);
            }
            world.trace(&sites);
            let top = below();
            // Down and up through three windows, then anywhere.
            let mut at: Vec<u64> = (0..3 * WINDOW_SIZE)
                .step_by(16 * (3 + index))
                .map(|down| top - down)
                .collect();
            at.extend_from_within(..);
            let half = at.len() / 2;
            at[half..].reverse();
            at.extend((0..500).map(|_| {
                random = random
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1);
                top - (random >> 33) % (800 << 10) / 16 * 16
            }));
            at.iter().copied().for_each(leaf_at);
            let expected: Vec<_> = at.into_iter().map(|sp| (1, sp)).collect();
            let found = stacks(&world, "windows");
            assert!(found == expected, "{via:?} {before:#x} {timed} {only}");
        }
    }
}

#[test]
fn calls_that_go_to_and_fro_stay_in_a_window() {
    let mut world = World::new(timed(), 2);
    world.enter(1);
    world.trace(&sites(FREE, 7 << 13, 7 << 13));
    let top = below();
    for _ in 0..100 {
        leaf_at(top);
        leaf_at(top - WINDOW_SIZE / 2 - 3008);
    }
    // The first record asked for a chunk, which had no window yet, so the record was made again.
    assert_eq!(windows(&world), 2 + 1);
    assert_eq!(world.records(1).len(), 400);
}

#[test]
fn a_new_chunk_names_its_window() {
    let mut world = World::new(timed(), 4);
    world.enter(1);
    world.trace(&sites(FREE, 7 << 13, 7 << 13));
    for _ in 0..5000 {
        leaf_at(below());
    }
    // The first record asked for a chunk, so it was made again.
    assert_eq!(windows(&world), 2 + 1);
}

#[test]
fn without_a_shadow_the_stack_pointer_is_still_known() {
    let mut world = World::new(timed(), 2);
    let block = world.enter_without_shadow(1);
    // No system calls.
    world.put(block + tcb::FLAGS, tcb::NO_CALLS);
    world.trace(&sites(KEPT, 0, 0));
    let top = below();
    let at = [top, top, top - 48, top - 70_000];
    at.into_iter().for_each(leaf_at);
    assert_eq!(world.text(1), "+leaf +leaf +leaf +leaf");
    assert_eq!(stacks(&world, "unshadowed"), at.map(|sp| (1, sp)));
}

/// Where a breakpoint is, and what it has replaced.
static BROKEN: (AtomicU64, AtomicU32) = (AtomicU64::new(0), AtomicU32::new(0));

/// Removes the breakpoint, and calls traced functions.
extern "C" fn interrupts(_: i32, _: *mut libc::siginfo_t, _: *mut c_void) {
    let at = BROKEN.0.swap(0, Ordering::Relaxed);
    let code = BROKEN.1.load(Ordering::Relaxed).to_le_bytes();
    write_code(at, &code[..BREAK.len()]);
    assert_eq!(outer(3, 4), 15);
}

/// Executes a function with a breakpoint at an instruction. Returns whether it was hit.
fn interrupted(world: &World, at: u64, calls: impl Fn()) -> bool {
    let code = world.code(at, BREAK.len());
    let mut word = [0; 4];
    word[..code.len()].copy_from_slice(&code);
    BROKEN.1.store(u32::from_le_bytes(word), Ordering::Relaxed);
    BROKEN.0.store(at, Ordering::Relaxed);
    write_code(at, BREAK);
    calls();
    let met = BROKEN.0.swap(0, Ordering::Relaxed) == 0;
    write_code(at, &code);
    met
}

/// The instructions of a stub up to the call of its body, and those of the agent.
fn instructions(world: &World) -> Vec<u64> {
    let agent = world.islands()[0].start;
    let agent = NATIVE.sweep(hodo_agent::runtime().code, agent);
    let (stub, code) = (world.stub().start, world.stub_code());
    let ends = |flow| matches!(flow, Flow::Call(_) | Flow::Jump(_));
    let before = NATIVE
        .sweep(&code, stub)
        .take_while(|insn| !ends(insn.flow));
    let call = NATIVE.sweep(&code, stub).find(|insn| ends(insn.flow));
    let all = agent.chain(before).chain(call);
    all.map(|insn| insn.addr).collect()
}

/// Signal handlers on another stack, at each instruction of stub and agent: what is then known of the interrupted call
/// is right, or it is unknown.
#[test]
fn a_handler_that_gets_another_window_misleads_nobody() {
    for (via, free) in [(FREE, 7 << 13), (KEPT, 7 << 13), (KEPT, 0)] {
        // An interrupted call whose handler has begun an epoch gets a time of that epoch, which makes other records
        // look earlier.
        while !interrupt_everywhere(via, free) {}
    }
}

/// Does this with these registers. Returns whether it was all in one epoch.
fn interrupt_everywhere(via: Via, free: u32) -> bool {
    const ALTERNATE: u64 = 64 << 10;
    let mut world = World::new(timed(), 40);
    let block = world.enter(1);
    world.trace(&sites(via, free, free));
    let top = below();
    let alternate = top - (600 << 10);
    // SAFETY: it is a part of this thread's stack that nothing else uses; the handler calls functions of this program.
    unsafe {
        let stack = libc::stack_t {
            ss_sp: ptr::with_exposed_provenance_mut(alternate as usize),
            ss_flags: 0,
            ss_size: ALTERNATE as usize,
        };
        assert_eq!(libc::sigaltstack(&raw const stack, ptr::null_mut()), 0);
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = interrupts as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        libc::sigaction(libc::SIGTRAP, &raw const action, ptr::null_mut());
    }
    let (mut met, mut expected) = (0, Vec::new());
    for at in instructions(&world) {
        for miss in [false, true] {
            leaf_at(top);
            if miss {
                for word in [tcb::WINDOW, tcb::LOWERED_WINDOWS, tcb::LOWERED_WINDOWS + 8] {
                    world.put(block + word, 0);
                }
            }
            let was_met = interrupted(&world, at, || leaf_at(top - 4096));
            met += usize::from(was_met);
            leaf_at(top - 48);
            expected.push((at, was_met));
        }
    }
    assert!(met > 100, "{met}");
    let is_epoch = |found: &crate::world::Record| {
        (found.kind, found.id) == (record::SPECIAL, record::SPECIAL_EPOCH)
    };
    if world.all_records(1).iter().any(is_epoch) {
        return false;
    }
    // The three calls from here, and the handler's calls before one of them.
    let mut found = stacks(&world, "interrupted").into_iter().peekable();
    let mut unknown = 0;
    for (at, was_met) in expected {
        let what = format!("{at:#x} {via:?} {free:#x}");
        assert_eq!(found.next(), Some((1, top)), "{what}");
        let mut middle = vec![found.next().expect("a call")];
        if was_met {
            middle.extend([(); 2].map(|()| found.next().expect("a call")));
            let from_handler = middle.iter().position(|&(id, _)| id == 2).expect("one");
            let handled: Vec<_> = middle.drain(from_handler..from_handler + 2).collect();
            assert_eq!((handled[0].0, handled[1].0), (2, 1), "{what}");
            for (_, sp) in handled {
                assert!(
                    (alternate..alternate + ALTERNATE).contains(&sp),
                    "{sp:#x} {what}"
                );
            }
        }
        unknown += usize::from(middle[0].1 == 0);
        // If no register is free, the time is read too late for readers to see it.
        if free != 0 {
            assert!([0, top - 4096].contains(&middle[0].1), "{middle:x?} {what}");
        }
        assert_eq!(found.next(), Some((1, top - 48)), "{what}");
    }
    assert_eq!(found.next(), None);
    assert!(
        free == 0 || (1..met).contains(&unknown),
        "{unknown} of {met}"
    );
    true
}
