//! Runs RISC-V instructions alone and under a probe, in each way of executing them, on the same random state, and
//! compares everything: general and floating-point registers, memory, where control went, and faults.
//!
//! Only for RISC-V: `scripts/cross.sh` runs it under an emulator.
#![cfg(target_arch = "riscv64")]

#[path = "engine/emulator.rs"]
#[allow(dead_code)]
mod emulator;
#[path = "../../hodo-isa/tests/riscv64/machine.rs"]
#[allow(dead_code)]
mod machine;

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::sync::atomic::{AtomicU64, Ordering};

use hodo_isa::riscv64::decode::Insn;
use hodo_isa::riscv64::scan::Flow;
use hodo_isa::riscv64::{Kind, text};
use hodo_probe::{Engine, Execution, Refusal, Registers, Request};
use machine::{ARENA, ARENA_SIZE, HOME, HOME_SIZE, Machine, Outcome, State};

/// Random states per sample and way of execution.
const STATES: u64 = 2;
/// Free memory near the code, for the engine's own code.
const HOLE: u64 = HOME - 0xE_0000;
const HOLE_SIZE: u64 = 0xA_0000;
/// A stack that is large enough for signals, and the memory above its stack pointer.
const STACK: u64 = 0x22_0000_0000;
const STACK_SIZE: u64 = 1 << 20;
const ABOVE: usize = 2048;
const SP: u64 = STACK + STACK_SIZE / 2;

static HITS: AtomicU64 = AtomicU64::new(0);

extern "C" fn count(_: &mut Registers, _: *mut c_void) {
    HITS.fetch_add(1, Ordering::Relaxed);
}

/// Pseudo-random numbers, the same in each run.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ z >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ z >> 31
    }

    fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }
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
    for f in &mut state.f {
        *f = match random.below(2) {
            0 => random.next() | 0xFFFF_FFFF << 32,
            _ => random.next(),
        };
    }
    state.fcsr = (random.below(5) << 5 | random.below(32)) as u32;
    state.memory.fill_with(|| random.next());
    let (a, b) = (usize::from(insn.rs1()), usize::from(insn.rs2()));
    match insn.kind {
        Kind::Branch if random.below(2) == 0 => state.x[a] = if b == 0 { 0 } else { state.x[b] },
        // To breakpoints.
        Kind::Jalr => state.x[a] = HOME + 0x1_0000 + random.below(0x4000) * 2,
        _ => {}
    }
    // A thread has its own memory and a stack; only what the instruction does to them is compared.
    let (gp, tp): (u64, u64);
    // SAFETY: reads two registers.
    unsafe { std::arch::asm!("mv {}, gp", "mv {}, tp", out(reg) gp, out(reg) tp) };
    (state.x[2], state.x[3], state.x[4]) = (SP, gp, tp);
    state
}

/// Returns whether an instruction leaves alone the state that threads and signals need, and all other state that is not
/// random here.
fn is_good(insn: &Insn) -> bool {
    const FIXED: u32 = 1 << 2 | 1 << 3 | 1 << 4;
    let moves_stack = insn.writes().x & FIXED != 0;
    let through = insn
        .memory()
        .is_some_and(|memory| memory.base == 3 || memory.base == 4);
    // Results that differ from run to run.
    let time = insn.kind == Kind::Csr;
    let target = match insn.flow() {
        Flow::Jump(to) | Flow::Call(to) | Flow::Branch(to) => to.abs_diff(HOME) < 0x3_0000,
        _ => true,
    };
    let jump = insn.kind != Kind::Jalr || insn.rs1() > 4;
    !moves_stack && !through && !time && target && jump
}

/// Samples: each form by its name.
fn samples(random: &mut Random) -> Vec<Vec<u8>> {
    let mut found: BTreeMap<String, Vec<Vec<u8>>> = BTreeMap::new();
    let mut add = |bytes: &[u8], most: usize| {
        let insn = Insn::new(bytes, HOME);
        let name = text(bytes, HOME);
        let name = name.split(' ').next().unwrap_or_default().to_owned();
        let bad = matches!(
            insn.kind,
            Kind::Invalid | Kind::Ebreak | Kind::Ecall | Kind::Wait
        );
        if bad || usize::from(insn.len) != bytes.len() || insn.is_vector() || !is_good(&insn) {
            return;
        }
        let all = found.entry(name).or_default();
        if all.len() < most {
            all.push(bytes.to_vec());
        }
    };
    for _ in 0..8_000 {
        let word = random.next() as u32;
        add(&(word << 2 >> 2 & !3 | 3).to_le_bytes(), 2);
        add(&(word as u16).to_le_bytes(), 3);
        // Opcodes of all sorts.
        for opcode in [0x17, 0x63, 0x67, 0x6F, 0x13, 0x03, 0x23, 0x2F, 0x53] {
            add(&(word & !0x7F | opcode).to_le_bytes(), 3);
        }
        // Short distances.
        add(&(word & 0x803F_0F80 | 0x6F).to_le_bytes(), 6);
    }
    let mut all: Vec<_> = found.into_values().flatten().collect();
    for last in (1..all.len()).rev() {
        all.swap(last, random.below(last as u64 + 1) as usize);
    }
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
                let mut got = run(machine, at, state);
                if !emulator::is_here() && insn.writes().f == 0 {
                    // The system emulator (7.2) may lose exception flags of instructions that write no floating-point
                    // register: it does not report that there is state to be saved.
                    got.0.state.fcsr = alone.0.state.fcsr;
                }
                assert_ne!(hits(), before, "{}", text(code, at));
                if !handler && alone.0.signal == libc::SIGILL {
                    // An instruction that this processor does not have: the count used a register that it overwrites.
                    continue;
                }
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
        let stack = libc::mmap(STACK as *mut c_void, STACK_SIZE as usize, 3, flags, -1, 0);
        assert_eq!(stack as u64, STACK);
    }
    const { assert!(HOME - HOME_SIZE < HOLE) };
    if emulator::is_here() {
        hodo_sys::set_written(written);
    }
    // It starts after the machine, which gets the signals that are not the engine's.
    let engine = Engine::new().expect("the engine starts");
    let mut random = Random(3);
    let samples = samples(&mut random);
    let mut tried = Tried::default();
    // At first the engine has no room near the code.
    let far = samples.len() / 4;
    for (number, sample) in samples.iter().enumerate() {
        if number == far {
            let ran = tried.ran;
            println!("{ran:?} ran far from the engine's code");
            assert!(ran[0] > 100 && ran[1] > 5 && ran[2] > 60 && ran[3..] == [0, 0]);
            // SAFETY: memory that nothing uses.
            let result = unsafe { libc::munmap(HOLE as *mut c_void, HOLE_SIZE as usize) };
            assert_eq!(result, 0);
        }
        let at = HOME + number as u64 * 32 + random.below(2) * 2;
        // c.li t6, 1 after it: it has a free register.
        let mut code = sample.clone();
        code.extend([0x85, 0x4F]);
        machine.place(at, &code);
        let insn = Insn::new(&code, at);
        if !is_good(&insn) {
            continue;
        }
        let inside = match insn.flow() {
            Flow::Jump(to) | Flow::Call(to) | Flow::Branch(to) => to.wrapping_sub(at) < 8,
            _ => false,
        };
        if inside {
            continue;
        }
        tried.compare(&engine, &mut machine, &insn, &mut random, &code);
    }
    let Tried { ran, refused } = tried;
    println!(
        "{} samples, {ran:?} ran, {} texts of refusals",
        samples.len(),
        refused.len()
    );
    assert!(
        ran[0] > 400 && ran[1] > 30 && ran[2] > 400 && ran[3] > 300 && ran[4] > 300,
        "{ran:?} {refused:#?}"
    );
    // Only these may be refused.
    for text in refused.keys() {
        let known = ["only faults", "lr and sc", "changed code"];
        assert!(known.iter().any(|known| text.contains(known)), "{text}");
    }
}
