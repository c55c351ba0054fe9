//! Makes detours, runs them, and does what the runtime's slow paths would.

mod cases;
pub mod model;

use std::collections::BTreeMap;

use hodo_codegen::detour::{
    Action, Block, Counter, Deed, Detour, Event, Fetch, NO_PROCESSOR, Place, Probe, Test, When,
};
use hodo_codegen::native::detour::emit;
use hodo_codegen::native::masm::Masm;
use hodo_codegen::stub::{Layout, Runtime};

use crate::common::Random;
use crate::isa::{self, RET, SYSTEM_CALL, TWO};
use crate::machine::{ARENA, AWAY, HOME, Machine, Outcome, State};

/// The control block, below which counters are.
pub const BLOCK: u64 = ARENA + 0x400;
/// Its distance to a counter.
pub const COUNTER: i32 = -0x100;
/// Where events are written, and up to where.
pub const CHUNK: u64 = ARENA + 0x600;
pub const CHUNK_END: u64 = ARENA + 0xC00;
/// What would be the events file.
pub const BASE: u64 = ARENA + 0xC00;
/// A table for histograms.
pub const TABLE: u64 = ARENA + 0xD00;
pub const TABLE_SIZE: u64 = 0x700;
/// Memory of the program.
pub const DATA: u64 = ARENA + 0x1400;
/// The stack pointer is here, or a little lower.
pub const STACK: u64 = ARENA + 0x1F00;
/// From the stack to its shadow.
pub const DISTANCE: u64 = 0x600;
/// Bytes of the stack that probes may change.
pub const BELOW: u64 = 0x500;

/// The runtime: breakpoints, at which its work is done here.
const EPOCH: u64 = AWAY + 0xF000;
const NEW_CHUNK: u64 = AWAY + 0xF010;
const SHADOW: u64 = AWAY + 0xF020;

pub const EPOCH_END: u32 = 264;
const LIMIT: u32 = 8;

pub fn layout() -> Layout {
    Layout {
        cursor: 0,
        limit: LIMIT,
        epoch: 16,
        epoch_end: EPOCH_END,
        shadow_lo: 24,
        shadow_len: 32,
        window: 1000,
        lowered_windows: 944,
        handed_on: 928,
        window_size: 1 << 14,
        islands: [(40, 48), (56, 64)],
        inside: 176,
        depth: 184,
        frames: 320,
        chain_top: 240,
        chain_lo: 248,
        chain_size: 64,
        shadow_distance: DISTANCE,
        to_shadow: 272,
        atomics: isa::atomics(),
        block: isa::BLOCK_AT,
        record_size: 8,
        sp_shift: 18,
        sp_mask: 0,
        bucket: 96,
        bucket_size: 4096,
        lost: 80,
        base: 88,
        owner: 59,
    }
}

/// Any registers, and memory as above.
pub fn state(random: &mut Random) -> State {
    let mut state = State::new();
    state.memory.fill_with(|| random.next());
    for x in &mut state.x {
        *x = match random.below(3) {
            0 => random.next(),
            1 => random.below(100),
            _ => DATA + 0x100 + 8 * random.below(0x20),
        };
    }
    state.x[isa::STACK] = STACK - 16 * random.below(4);
    for at in (CHUNK..CHUNK_END).step_by(8).chain((BASE..DATA).step_by(8)) {
        model::set(&mut state, at, 0);
    }
    for at in (BLOCK - 0x100..BLOCK + 0x200).step_by(8) {
        model::set(&mut state, at, 0);
    }
    isa::set_thread(&mut state, random);
    model::set(&mut state, BLOCK, CHUNK);
    model::set(&mut state, BLOCK + u64::from(LIMIT), CHUNK_END);
    model::set(&mut state, BLOCK + u64::from(EPOCH_END), u64::MAX);
    model::set(&mut state, BLOCK + 80, random.next());
    model::set(&mut state, BLOCK + 88, BASE);
    model::put(&mut state, BLOCK + 224, b"thread");
    // The list of return probes: of four entries, within the block.
    for at in [240, 248] {
        model::set(&mut state, BLOCK + at, BLOCK + 0x180);
    }
    model::set(&mut state, BLOCK + 272, DISTANCE.wrapping_neg());
    // Detours are the island.
    model::set(&mut state, BLOCK + 40, AWAY);
    model::set(&mut state, BLOCK + 48, 0x8000);
    state
}

/// A return address of the program, and a shadow for the stack, or none.
pub fn with_shadow(mut state: State, shadow: bool) -> State {
    state.x[isa::LINK] = HOME + 0x1000;
    model::set(&mut state, BLOCK + 24, ARENA);
    model::set(&mut state, BLOCK + 32, if shadow { 0x2000 } else { 0 });
    state
}

pub fn count() -> Action {
    Action::Count(Counter::Thread(COUNTER))
}

pub fn block(condition: Option<Test>, values: Vec<Fetch>, deeds: Vec<Deed>) -> Action {
    Action::Block(Box::new(Block {
        base: 88,
        switch: None,
        values,
        condition,
        deeds,
    }))
}

pub fn event(values: Vec<Fetch>, timed: bool) -> Event {
    Event {
        info: 0x4321_0005,
        payload: 0x0030_0002,
        timed,
        rdpid: false,
        values,
    }
}

/// What comes before the values: the record, the payload's, its first word with bits for faults, and other words for
/// those.
pub fn head(words: usize, faults: u32, more: usize) -> Vec<u64> {
    let payload = 0x0030_0002 << 32 | (1 + more + words) as u64;
    let first = u64::from(NO_PROCESSOR) << 32 | u64::from(faults);
    vec![0x4321_0005 << 32, payload, first]
}

/// A probe before the instruction at an offset, with any registers free that the code does not need.
pub fn hit<'a>(offset: usize, action: &'a Action, random: &mut Random) -> Probe<'a> {
    let free = match random.below(3) {
        0 => 0,
        1 => random.next() as u32,
        _ => random.next() as u32 & random.next() as u32,
    };
    Probe {
        offset,
        when: When::Hit,
        flags_dead: random.below(2) == 0,
        free: free & !isa::NEEDED,
        action,
    }
}

/// What the two instructions do.
pub fn adds(state: &mut State) {
    state.x[isa::RESULT] = state.x[isa::RESULT].wrapping_add(1);
    let sum = state.x[isa::SECOND].wrapping_add(state.x[isa::RESULT]);
    state.x[isa::SECOND] = sum;
    *isa::pc(state) = HOME + 8;
}

/// A run of a detour.
pub struct Run {
    outcome: Outcome,
    /// Registers that may have changed.
    free: u32,
    /// The flags may have changed.
    flags_dead: bool,
    stack: u64,
    /// How often the runtime was called: a new time, a new chunk, the shadow.
    pub called: [usize; 3],
    what: String,
}

impl Run {
    /// Runs two instructions with these probes.
    pub fn new(machine: &mut Machine, probes: &[Probe<'_>], state: &State) -> Self {
        Self::code(machine, &TWO, probes, state)
    }

    /// Runs them with a return after.
    pub fn function(machine: &mut Machine, probes: &[Probe<'_>], state: &State) -> Self {
        let code = [&TWO[..], &RET].concat();
        Self::code(machine, &code, probes, state)
    }

    /// Runs a system call.
    pub fn call(machine: &mut Machine, probes: &[Probe<'_>], state: &State) -> Self {
        Self::code(machine, &SYSTEM_CALL, probes, state)
    }

    fn code(machine: &mut Machine, code: &[u8], probes: &[Probe<'_>], state: &State) -> Self {
        let place = Place {
            back: isa::BACK,
            ..Place::new(code, HOME, HOME + code.len() as u64)
        };
        let (bytes, detour) = detour(&place, AWAY, probes);
        machine.place(AWAY, &bytes);
        let mut run = Self::follow(machine, AWAY, state, &[&detour]);
        machine.clear(AWAY, bytes.len());
        let free = probes
            .iter()
            .fold(isa::DEAD, |free, probe| free | probe.free);
        // Not where it has not jumped back.
        run.free = free;
        run.flags_dead = probes.iter().any(|probe| probe.flags_dead);
        run.what = format!("{probes:#?}");
        run
    }

    /// Runs what is placed, until it is at no place of ours any more.
    pub fn follow(machine: &mut Machine, at: u64, state: &State, detours: &[&Detour]) -> Self {
        let faults: BTreeMap<u64, u64> = detours
            .iter()
            .flat_map(|detour| detour.faults.iter().copied())
            .collect();
        let mut called = [0; 3];
        let mut outcome = machine.run(at, state);
        for _ in 0..1000 {
            let state = &mut outcome.state;
            let pc = *isa::pc(state);
            let on = match (outcome.signal, pc) {
                (libc::SIGSEGV, pc) => faults.get(&pc).copied(),
                (_, EPOCH) => {
                    called[0] += 1;
                    model::set(state, BLOCK + u64::from(EPOCH_END), u64::MAX);
                    Some(state.x[isa::RUNTIME_LINK] + 4)
                }
                (_, NEW_CHUNK) => {
                    called[1] += 1;
                    model::set(state, BLOCK, CHUNK + 8);
                    model::set(state, BLOCK + u64::from(LIMIT), CHUNK_END);
                    let back = state.x[isa::RUNTIME_LINK] + 4;
                    answer(state, CHUNK);
                    Some(back)
                }
                (_, SHADOW) => {
                    called[2] += 1;
                    let told = word_at(state.x[isa::RUNTIME_LINK]);
                    let stack = state.x[isa::STACK] + 16 + 16 * u64::from(told >> 15 & 31);
                    assert!(stack <= STACK && stack + 0x100 > STACK, "{stack:#x}");
                    let back = state.x[isa::RUNTIME_LINK] + 8;
                    answer(state, 1);
                    Some(back)
                }
                _ => None,
            };
            match on {
                Some(on) => {
                    let state = outcome.state.clone();
                    outcome = machine.run(on, &state);
                }
                None => break,
            }
        }
        Self {
            outcome,
            free: 0,
            flags_dead: false,
            stack: state.x[isa::STACK],
            called,
            what: String::new(),
        }
    }

    /// Lets the flags have changed.
    pub fn allow_flags(&mut self) {
        self.flags_dead = true;
    }

    /// Lets registers have changed.
    pub fn allow(&mut self, registers: u32) {
        self.free |= registers;
    }

    pub fn memory(&self) -> &[u64] {
        &self.outcome.state.memory
    }

    /// The word at an address of the arena.
    pub fn word(&self, at: u64) -> u64 {
        model::get(&self.outcome.state, at)
    }

    /// Compares what should be with what is.
    pub fn check(&self, expected: &State) {
        let mut expected = Outcome {
            signal: libc::SIGTRAP,
            fault: 0,
            state: expected.clone(),
        };
        let found = &self.outcome.state;
        isa::let_flags(&mut expected.state, found, self.flags_dead);
        for register in (0..32).filter(|register| self.free >> register & 1 == 1) {
            expected.state.x[register] = found.x[register];
        }
        for at in (self.stack - BELOW..self.stack).step_by(8) {
            model::set(&mut expected.state, at, model::get(found, at));
        }
        assert!(
            expected == self.outcome,
            "expected, found: {}{}\nat {:#x} {:#x}",
            self.what,
            Outcome::difference(&expected, &self.outcome),
            isa::at(&self.outcome),
            isa::at(&expected),
        );
    }
}

/// The detour of a place, and its bytes.
pub fn detour(place: &Place<'_>, at: u64, probes: &[Probe<'_>]) -> (Vec<u8>, Detour) {
    let runtime = Runtime {
        epoch: EPOCH,
        chunk: NEW_CHUNK,
        shadow: SHADOW,
        window: 0,
        record: 0,
        frame: 0,
        tails: 0,
        tail: 0,
        syscalls: None,
        stack: None,
    };
    let mut bytes = Vec::new();
    let mut code = Masm::new(&mut bytes, at);
    let detour = emit(&mut code, &layout(), &runtime, place, probes).expect("a detour");
    (bytes, detour)
}

/// Sets the register for the runtime's answer. The value of the link register is on the stack.
fn answer(state: &mut State, value: u64) {
    match word_at(state.x[isa::RUNTIME_LINK]) >> 5 & 31 {
        link if link == isa::RUNTIME_LINK as u32 => model::set(state, state.x[isa::STACK], value),
        register => state.x[register as usize] = value,
    }
}

/// A word of code.
fn word_at(at: u64) -> u32 {
    // SAFETY: the words after a call of the runtime, in memory of the tests.
    unsafe { (at as *const u32).read_unaligned() }
}
