//! Runs instructions of real programs alone and under a probe, in each way of executing them, on the same random state,
//! and compares everything: registers, flags, vector registers, memory, where control went, and faults.
#![cfg(target_arch = "x86_64")]

#[path = "../../hodo-isa/tests/machine/mod.rs"]
#[allow(dead_code)]
mod machine;

use std::ffi::c_void;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU64, Ordering};

use hodo_probe::{Engine, Execution, Registers, Request};
use iced_x86::{Code, FlowControl, Instruction};
use machine::samples::{Random, adapt, forms, state};
use machine::{ARENA, ARENA_SIZE, HOME, HOME_SIZE, Machine, Outcome, State};

/// Random states per sample and way of execution.
const STATES: u64 = 2;
/// Where the code is: a private mapping in reach of the arena.
const CODE: u64 = 0x2_3000_0000;
const SIZE: usize = 1 << 22;
/// Bytes between two samples.
const STEP: u64 = 64;

static HITS: AtomicU64 = AtomicU64::new(0);

extern "C" fn count(_: &mut Registers, _: *mut c_void) {
    HITS.fetch_add(1, Ordering::Relaxed);
}

fn map() -> File {
    // SAFETY: nothing is there.
    let place = unsafe {
        libc::mmap(
            CODE as *mut c_void,
            SIZE,
            libc::PROT_READ | libc::PROT_EXEC,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE,
            -1,
            0,
        )
    };
    assert_eq!(place as u64, CODE);
    let memory = File::options()
        .read(true)
        .write(true)
        .open("/proc/self/mem")
        .expect("own memory");
    memory
        .write_all_at(&vec![0xCC; SIZE], CODE)
        .expect("it can be written");
    memory
}

/// Runs, and ignores what is below the red zone, where signals and probes leave traces.
fn run(machine: &mut Machine, at: u64, state: &State) -> Outcome {
    let mut outcome = machine.run(at, state);
    // The instruction may raise the stack pointer.
    let end = outcome.registers[4];
    let end = if (ARENA..ARENA + ARENA_SIZE).contains(&end) {
        end
    } else {
        0
    };
    let stack = end.max(state.registers[4]);
    let dead = (stack.saturating_sub(128 + ARENA) / 8 + 1) as usize;
    let len = outcome.memory.len();
    outcome.memory[..dead.min(len)].fill(0);
    outcome
}

/// A probed instruction, and how it is probed.
struct Probed<'a> {
    code: &'a [u8],
    end: u64,
    instruction: &'a Instruction,
    way: Execution,
    /// Whether it has a handler; otherwise, hits are only counted.
    handler: bool,
}

impl Probed<'_> {
    /// Compares what the instruction did under the probe with what it does alone.
    fn compare(&self, state: &State, alone: &Outcome, mut got: Outcome) {
        let (code, way) = (self.code, self.way);
        let undefined = self.instruction.rflags_undefined() != 0;
        if !self.handler && (alone.signal != libc::SIGTRAP || undefined) {
            // It writes the flags, but either faults first or leaves some undefined: a count may have changed them.
            got.flags = alone.flags;
        }
        if alone.signal == libc::SIGSEGV && alone.rip == self.end + 1 {
            // No stack is left on which the last breakpoint's signal could be delivered.
            assert_eq!(got.signal, libc::SIGSEGV, "{code:02x?}");
            return;
        }
        let flow = self.instruction.flow_control();
        let call = matches!(flow, FlowControl::IndirectCall | FlowControl::Call);
        if call && alone.signal != libc::SIGTRAP {
            // A call that faults may have pushed already, or not.
            assert_eq!(
                (alone.signal, alone.rip),
                (got.signal, got.rip),
                "{code:02x?}"
            );
            return;
        }
        let mut alone = alone.clone();
        if flow == FlowControl::IndirectCall {
            let below = alone.registers[4].wrapping_sub(8);
            alone.forget(below);
            got.forget(below);
        }
        assert!(
            alone == got,
            "{code:02x?} {way}, rcx {:#x}, flags {:#x}:\n{}",
            state.registers[1],
            state.flags,
            Outcome::difference(&alone, &got, state)
        );
    }
}

#[test]
fn probed_instructions_do_what_they_do_alone() {
    let mut machine = Machine::new();
    let engine = Engine::new().expect("the engine starts");
    let memory = map();
    let mut random = Random(3);
    let mut ran = [0u32; 5];
    let mut refused = 0;
    let mut at = CODE;
    for (_, samples) in forms(1) {
        let mut code = samples[0].clone();
        at += STEP;
        let Some(instructions) = adapt(&mut code, at, &mut random) else {
            continue;
        };
        // The machine's own breakpoint ends the run; wherever else control goes, it reaches a breakpoint, too.
        memory.write_all_at(&code, at).expect("it can be written");
        let states: Vec<State> = (0..STATES)
            .map(|_| {
                let mut state = state(&instructions, &mut random);
                // Memory that instructions use is above the stack pointer.
                state.registers[4] = ARENA + ARENA_SIZE / 2;
                state
            })
            .collect();
        let alone: Vec<Outcome> = states
            .iter()
            .map(|state| run(&mut machine, at, state))
            .collect();
        let ways = [
            (Execution::OutOfLine, true),
            (Execution::Simulated, true),
            (Execution::Boosted, true),
            (Execution::Optimized, true),
            (Execution::Optimized, false),
        ];
        let mut any = false;
        for (index, (way, handler)) in ways.into_iter().enumerate() {
            let request = match handler {
                true => Request::at(at).before(count),
                false => Request::at(at).count(),
            };
            let request = request.execution(way).function(at..at + code.len() as u64);
            // SAFETY: the handler only counts.
            let Ok(probe) = (unsafe { engine.register(&request) }) else {
                continue;
            };
            any = true;
            if probe.execution() != way {
                continue;
            }
            ran[index] += 1;
            for (state, alone) in states.iter().zip(&alone) {
                let hits = || HITS.load(Ordering::Relaxed) + probe.count();
                let before = hits();
                let got = run(&mut machine, at, state);
                assert_ne!(hits(), before, "{code:02x?}");
                let probed = Probed {
                    code: &code,
                    end: at + code.len() as u64,
                    instruction: &instructions[0],
                    way,
                    handler,
                };
                probed.compare(state, alone, got);
            }
        }
        refused += u32::from(!any && instructions[0].code() != Code::Int3);
    }
    println!("{ran:?} ran, {refused} refused");
    assert!(
        ran[0] > 1500
            && ran[1] > 60
            && ran[2] > 1500
            && ran[3] > 200
            && ran[4] == ran[3]
            && refused < 100,
        "{ran:?} {refused}"
    );
    let _ = (HOME, HOME_SIZE);
}
