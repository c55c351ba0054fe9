//! Runs AArch64 instructions alone and under a probe, in each way of executing them, on the same random state, and
//! compares everything: general and vector registers, flags, memory, where control went, and faults.
//!
//! Only for AArch64: `scripts/cross.sh` runs it under an emulator.
#![cfg(target_arch = "aarch64")]

#[path = "../../hodo-isa/tests/aarch64/mod.rs"]
mod common;
#[path = "engine/emulator.rs"]
#[allow(dead_code)]
mod emulator;
#[path = "../../hodo-isa/tests/aarch64/machine.rs"]
#[allow(dead_code)]
mod machine;

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::sync::atomic::{AtomicU64, Ordering};

use common::Random;
use hodo_isa::aarch64::regs::STACK;
use hodo_isa::aarch64::scan::Flow;
use hodo_isa::aarch64::{Insn, Kind, text};
use hodo_probe::{Engine, Execution, Refusal, Registers, Request};
use machine::{ARENA, ARENA_SIZE, HOME, Machine, Outcome, State};

/// How many instructions are tried.
const SAMPLES: usize = 500;
/// Random states per sample and way of execution.
const STATES: u64 = 2;
/// A stack that is large enough for signals, and the memory above its stack pointer.
const AREA: u64 = 0x22_0000_0000;
const STACK_SIZE: u64 = 1 << 20;
const ABOVE: usize = 2048;
const SP: u64 = AREA + STACK_SIZE / 2;

static HITS: AtomicU64 = AtomicU64::new(0);

extern "C" fn count(_: &mut Registers, _: *mut c_void) {
    HITS.fetch_add(1, Ordering::Relaxed);
}

/// Makes the emulator notice what was written. Pages stay writable, because the test writes code itself.
fn written(at: u64, len: usize) {
    let first = at & !4095;
    let size = (at + len as u64).next_multiple_of(4096) - first;
    for protection in [5, 7] {
        // SAFETY: pages of code.
        let result = unsafe { libc::mprotect(first as *mut c_void, size as usize, protection) };
        assert_eq!(result, 0);
    }
}

fn state(random: &mut Random, insn: &Insn) -> State {
    let mut state = State::new();
    for x in &mut state.x {
        *x = match random.below(4) {
            0 => random.next(),
            1 => random.below(4),
            2 => random.below(4).wrapping_neg(),
            _ => ARENA + ARENA_SIZE / 2 + random.below(ARENA_SIZE / 16) * 8,
        };
    }
    for v in &mut state.v {
        *v = u128::from(random.next()) << 64 | u128::from(random.next());
    }
    state.flags = random.below(16) << 28;
    state.memory.fill_with(|| random.next());
    if matches!(
        insn.flow(),
        Flow::IndirectJump | Flow::IndirectCall | Flow::Return { .. }
    ) {
        // To breakpoints.
        state.x[usize::from(insn.rn())] = HOME + 0x10_0000 + random.below(0x4000) * 4;
    }
    // A thread has a stack; only what the instruction does to it is compared.
    state.x[31] = SP;
    state
}

/// Returns whether an instruction leaves alone the state that threads and signals need, and all other state that is not
/// random here.
fn is_good(insn: &Insn) -> bool {
    let system = matches!(
        insn.kind,
        // Results that differ from run to run, and what a thread needs.
        Kind::ReadSystem | Kind::WriteSystem | Kind::System | Kind::SystemResult | Kind::SetState
        // Registers that are not compared, and tags that memory has not.
        | Kind::Scalable | Kind::Matrix | Kind::Tags
    );
    let moves_stack = insn.effects().changes & STACK != 0;
    let target = match insn.flow() {
        // Where a probe was, a breakpoint counts as its own.
        Flow::Jump(to) | Flow::Call(to) | Flow::Branch(to) => {
            to.abs_diff(HOME) < 0x10_0000 && to.wrapping_sub(HOME) >= 16 * SAMPLES as u64
        }
        _ => true,
    };
    !system && !moves_stack && target && insn.rn() != 31 || insn.is_nop()
}

/// Samples of real code, in random order.
fn samples(random: &mut Random) -> Vec<u32> {
    let mut all: Vec<u32> = common::samples().map(|line| line.word).collect();
    for last in (1..all.len()).rev() {
        all.swap(last, random.below(last as u64 + 1) as usize);
    }
    all.truncate(SAMPLES);
    all
}

/// Runs code, with the memory above the stack pointer set before, and returned afterward.
fn run(machine: &mut Machine, at: u64, state: &State) -> (Outcome, Vec<u8>) {
    // SAFETY: memory of the test.
    unsafe {
        let above = SP as *mut u8;
        for index in 0..ABOVE {
            above.add(index).write((index * 3) as u8);
        }
        let outcome = machine.run(at, state);
        let above = std::slice::from_raw_parts(above, ABOVE).to_vec();
        (outcome, above)
    }
}

/// What was tried.
#[derive(Default)]
struct Tried {
    /// How often each of [`WAYS`] was used.
    ran: [u32; 5],
    /// Refusals, and how many of each.
    refused: BTreeMap<String, u32>,
}

/// Ways to execute a probed instruction, and whether the probe has a handler.
const WAYS: [(Execution, bool); 5] = [
    (Execution::OutOfLine, true),
    (Execution::Simulated, true),
    (Execution::Boosted, true),
    (Execution::Optimized, true),
    (Execution::Optimized, false),
];

impl Tried {
    /// Compares an instruction with and without probes, in all ways.
    fn compare(
        &mut self,
        engine: &Engine,
        machine: &mut Machine,
        insn: &Insn,
        random: &mut Random,
        code: &[u8],
    ) {
        let at = insn.addr;
        let states: Vec<State> = (0..STATES).map(|_| state(random, insn)).collect();
        let alone = states.iter().map(|state| run(machine, at, state));
        let alone: Vec<_> = alone.collect();
        for (index, (way, handler)) in WAYS.into_iter().enumerate() {
            let request = match handler {
                true => Request::at(at).before(count),
                false => Request::at(at).count(),
            };
            let request = request.execution(way).function(at..at + code.len() as u64);
            // SAFETY: the handler only counts.
            let probe = match unsafe { engine.register(&request) } {
                Ok(probe) => probe,
                Err(Refusal::Execution(_)) => continue,
                Err(refusal) => {
                    *self.refused.entry(refusal.to_string()).or_default() += 1;
                    continue;
                }
            };
            if probe.execution() != way {
                continue;
            }
            self.ran[index] += 1;
            for (state, alone) in states.iter().zip(&alone) {
                let hits = || HITS.load(Ordering::Relaxed) + probe.count();
                let before = hits();
                let got = run(machine, at, state);
                assert_ne!(hits(), before, "{}", text(code, at));
                assert!(
                    *alone == got,
                    "{:x}: {} {way}:\n{}",
                    at,
                    text(code, at),
                    Outcome::difference(&alone.0, &got.0)
                );
            }
        }
    }
}

#[test]
fn probed_instructions_do_what_they_do_alone() {
    let mut machine = Machine::new();
    // SAFETY: a stack of the test.
    unsafe {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
        let stack = libc::mmap(AREA as *mut c_void, STACK_SIZE as usize, 3, flags, -1, 0);
        assert_eq!(stack as u64, AREA);
    }
    if emulator::is_here() {
        hodo_sys::set_written(written);
    }
    // It starts after the machine, which gets the signals that are not the engine's.
    let engine = Engine::new().expect("the engine starts");
    let mut random = Random(3);
    let samples = samples(&mut random);
    let mut tried = Tried::default();
    for (number, sample) in samples.iter().enumerate() {
        let at = HOME + number as u64 * 16;
        // movz x9, #1 after it: it has a free register.
        let code = (u64::from(*sample) | 0xD280_0029 << 32).to_le_bytes();
        let insn = Insn::new(&code, at);
        let inside = match insn.flow() {
            Flow::Jump(to) | Flow::Call(to) | Flow::Branch(to) => to.wrapping_sub(at) < 8,
            _ => false,
        };
        if !is_good(&insn) || inside {
            continue;
        }
        machine.place(at, &code);
        tried.compare(&engine, &mut machine, &insn, &mut random, &code);
        machine.clear(at, code.len());
    }
    let Tried { ran, refused } = tried;
    println!(
        "{} samples, {ran:?} ran, {} texts of refusals",
        samples.len(),
        refused.len()
    );
    assert!(
        ran[0] > 250 && ran[1] > 10 && ran[2] > 300 && ran[3] > 300 && ran[4] > 300,
        "{ran:?} {refused:#?}"
    );
    // Only these may be refused.
    for text in refused.keys() {
        let known = [
            "only faults",
            "exclusive",
            "changed code",
            "no valid",
            "waits",
            "step of",
            "breakpoint of",
        ];
        assert!(known.iter().any(|known| text.contains(known)), "{text}");
    }
}
