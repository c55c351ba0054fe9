//! Runs RISC-V instructions at their own address, and moved or simulated, on the same random state, and compares all
//! results: general and floating-point registers, memory, the final address, and faults.
//!
//! For RISC-V only: `scripts/cross.sh` runs it under an emulator.
#![cfg(target_arch = "riscv64")]

#[path = "riscv64/mod.rs"]
mod common;
#[path = "riscv64/free.rs"]
mod free;
#[path = "riscv64/machine.rs"]
mod machine;

use std::collections::BTreeMap;

use common::{Random, library, samples, section};
use free::{Convention, dead_registers};
use hodo_isa::Via;
use hodo_isa::riscv64::asm::{Code, Reach};
use hodo_isa::riscv64::decode::Insn;
use hodo_isa::riscv64::regs::ZERO;
use hodo_isa::riscv64::relocate::{Link, Options, RelocateError, relocate};
use hodo_isa::riscv64::scan::Flow;
use hodo_isa::riscv64::simulate::{self, Simulation};
use hodo_isa::riscv64::steps::FIXED;
use hodo_isa::riscv64::{Kind, text};
use machine::{ARENA, ARENA_SIZE, AWAY, AWAY_SIZE, FAR, HOME, Machine, Outcome, State};

/// The number of states for each piece of code.
const STATES: u64 = 3;

/// Forms that use their address, with the bits that may have any value.
const FORMS: [(&str, u32, u32); 17] = [
    // One GiB in each direction.
    ("auipc", 0x17, 0x3FFF_FF80),
    ("auipc", 0xC000_0017, 0x3FFF_FF80),
    ("beq", 0x0063, 0xFFFF_8F80),
    ("bne", 0x1063, 0xFFFF_8F80),
    ("blt", 0x4063, 0xFFFF_8F80),
    ("bge", 0x5063, 0xFFFF_8F80),
    ("bltu", 0x6063, 0xFFFF_8F80),
    ("bgeu", 0x7063, 0xFFFF_8F80),
    // Distances in both directions: the sign and the 18 lower bits.
    ("jal", 0x006F, 0x7FF3_FF80),
    ("jal", 0x8000_006F | 0x000C_0000, 0x7FF3_FF80),
    ("jalr", 0x0067, 0xFFFF_8F80),
    ("c.j", 0xA001, 0x1FFC),
    ("c.beqz", 0xC001, 0x1FFC),
    ("c.bnez", 0xE001, 0x1FFC),
    ("c.jr", 0x8002, 0x0F80),
    ("c.jalr", 0x9002, 0x0F80),
    ("nop", 0x0013, 0),
];

fn bytes_of(word: u32) -> Vec<u8> {
    let len = if word & 3 == 3 { 4 } else { 2 };
    word.to_le_bytes()[..len].to_vec()
}

/// Returns whether code at an address branches into itself: it may run forever, and the second half of an instruction
/// is another instruction.
fn leads_into_itself(code: &[u8], at: u64) -> bool {
    let mut offset = 0;
    while offset < code.len() {
        let insn = Insn::new(&code[offset..], at + offset as u64);
        offset += usize::from(insn.len);
        if let Flow::Branch(to) | Flow::Jump(to) | Flow::Call(to) = insn.flow()
            && to.wrapping_sub(at) < code.len() as u64
        {
            return true;
        }
    }
    false
}

/// Returns a state in which registers that the code reads often hold useful addresses.
fn state(random: &mut Random, code: &[u8]) -> State {
    let mut state = State::new();
    for x in &mut state.x {
        *x = match random.below(4) {
            0 => random.next(),
            1 => random.below(4),
            2 => random.below(4).wrapping_neg(),
            _ => ARENA + ARENA_SIZE / 2 + random.below(ARENA_SIZE / 8) * 2,
        };
    }
    for f in &mut state.f {
        // Single or double precision.
        *f = match random.below(2) {
            0 => random.next() | 0xFFFF_FFFF << 32,
            _ => random.next(),
        };
    }
    state.fcsr = (random.below(5) << 5 | random.below(32)) as u32;
    state.memory.fill_with(|| random.next());
    let mut offset = 0;
    while offset < code.len() {
        let insn = Insn::new(&code[offset..], 0);
        offset += usize::from(insn.len);
        let (a, b) = (usize::from(insn.rs1()), usize::from(insn.rs2()));
        match insn.kind {
            Kind::Branch if random.below(2) == 0 => {
                state.x[a] = if b == 0 { 0 } else { state.x[b] }
            }
            // The target is away from all code.
            Kind::Jalr => state.x[a] = HOME - 0x2_0000 - random.below(0x1_0000) * 3,
            _ => {}
        }
    }
    // The number of iterations of loops.
    state.x[31] = 1 + random.below(3);
    state
}

/// Returns a register that the code does not use.
fn dead_register(code: &[u8], random: &mut Random) -> u32 {
    let mut used = FIXED;
    let mut offset = 0;
    while offset < code.len() {
        let insn = Insn::new(&code[offset..], 0);
        used |= insn.reads().x | insn.writes().x;
        offset += usize::from(insn.len);
    }
    loop {
        let register = 1 << random.below(32);
        if register & used == 0 {
            return register;
        }
    }
}

/// Returns an address for the moved code, within its reach.
fn away(reach: Reach, random: &mut Random) -> u64 {
    let offset = random.below(AWAY_SIZE / 2 - 4096) * 2;
    match reach {
        // Beyond the targets of the tests' branches, but with these still within reach.
        Reach::Jump => HOME + 0x6_0000 + random.below(0x2_0000) * 2,
        Reach::Pair => AWAY + offset,
        Reach::Any => FAR + offset,
    }
}

/// Disassembles code.
fn lines(code: &[u8], at: u64) -> String {
    let mut lines = String::new();
    let mut offset = 0;
    while offset < code.len() {
        let addr = at + offset as u64;
        lines.push_str(&format!("  {addr:x}: {}\n", text(&code[offset..], addr)));
        offset += usize::from(Insn::new(&code[offset..], addr).len);
    }
    lines
}

/// Runs code at its own address and moved, and compares the results.
///
/// # Errors
/// Why the code cannot be moved.
fn compare(
    machine: &mut Machine,
    random: &mut Random,
    code: &[u8],
    reach: Reach,
    link: Link,
) -> Result<(), RelocateError> {
    let home = HOME + random.below(0x800) * 2;
    let away = away(reach, random);
    let dead = dead_register(code, random);
    let dead_at = |_: u64| dead;
    let options = Options {
        pads: &|_| None,
        reach,
        dead: &dead_at,
        link,
        system_calls: false,
        sequences: false,
    };
    let moved = relocate(code, home, away, &options)?;
    machine.place(home, code);
    machine.place(away, &moved.bytes);
    for _ in 0..STATES {
        let before = state(random, code);
        let mut original = machine.run(home, &before);
        let mut got = machine.run(away, &before);
        let (end, moved_end) = (home + code.len() as u64, away + moved.bytes.len() as u64);
        if got.pc() == end {
            // A branch to just after the code leads to the original place.
            got.state.x[0] = moved_end;
        }
        let pc = original.pc();
        original.state.x[0] = match moved.map.iter().find(|m| home + m.old as u64 == pc) {
            _ if pc == end => moved_end,
            Some(place) => away + place.new as u64,
            None => pc,
        };
        for number in 1..32 {
            if dead & 1 << number != 0 {
                got.state.x[number] = original.state.x[number];
            }
            // Calls are tested alone, so a link to the copy is the address after the copied call.
            let moved_link = link == Link::Moved && got.state.x[number] == moved_end;
            if moved_link && original.state.x[number] == end {
                got.state.x[number] = end;
            }
        }
        assert!(
            original == got,
            "{}moved to\n{}differs ({reach:?}, {link:?}, dead {dead:#x}):\n{}",
            lines(code, home),
            lines(&moved.bytes, away),
            Outcome::difference(&original, &got)
        );
    }
    machine.clear(home, code.len());
    machine.clear(away, moved.bytes.len());
    Ok(())
}

#[test]
fn moved_forms_do_what_the_originals_do() {
    let mut machine = Machine::new();
    let mut random = Random(1);
    for (name, fixed, free) in FORMS {
        let mut count = 0;
        for reach in [Reach::Jump, Reach::Pair, Reach::Any] {
            for link in [Link::Original, Link::Moved] {
                let mut left = 400 * samples();
                while left > 0 {
                    let code = bytes_of(fixed | random.next() as u32 & free);
                    // Other instructions share these bits.
                    let named = text(&code, HOME).split(' ').next() == Some(name);
                    if name != "nop" && !named || leads_into_itself(&code, HOME) {
                        continue;
                    }
                    left -= 1;
                    match compare(&mut machine, &mut random, &code, reach, link) {
                        Ok(()) => count += STATES,
                        Err(error) => panic!("{}: {error}", text(&code, HOME)),
                    }
                }
            }
        }
        println!("{name} moved: {count} runs");
        assert!(count >= 7200 * samples(), "{name}");
    }
}

/// The address of the pad for code that leaves its copy without a free register.
const PAD: u64 = HOME + 0x6_0000;

/// Returns the code of the pad, for code that has saved `t1` on the stack and continues at `to`.
fn pad(to: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut code = Code::new(&mut bytes, PAD);
    // c.ldsp t1, 0(sp)
    code.half(0x6302);
    code.move_stack(true);
    code.jump(to, Reach::Jump, ZERO).expect("it is near");
    bytes
}

#[test]
fn copies_leave_without_a_register_by_what_is_near_their_targets() {
    let mut machine = Machine::new();
    let mut random = Random(7);
    let forms = FORMS.iter().filter(|form| match form.0 {
        "jal" => true,
        name => name.trim_start_matches("c.").starts_with(['b', 'j']) && !name.ends_with('r'),
    });
    for &(name, fixed, free) in forms {
        let mut left = 400 * samples();
        while left > 0 {
            let code = bytes_of(fixed | random.next() as u32 & free);
            let named = text(&code, HOME).split(' ').next() == Some(name);
            // An instruction with the stack pointer as link register.
            let moves_stack = Insn::new(&code, HOME).link() == Some(2);
            if !named || moves_stack || leads_into_itself(&code, HOME) {
                continue;
            }
            left -= 1;
            let home = HOME + random.below(0x800) * 2;
            let away = away(Reach::Pair, &mut random);
            let (Flow::Branch(to) | Flow::Jump(to) | Flow::Call(to)) =
                Insn::new(&code, home).flow()
            else {
                panic!("{name} leads somewhere");
            };
            let options = Options {
                pads: &|at| (at == home).then_some(PAD),
                ..Options::new(Reach::Pair)
            };
            let moved = relocate(&code, home, away, &options).expect("it can be moved");
            let pad = pad(to);
            assert_eq!(pad.len() as u64, Via::PAD);
            machine.place(home, &code);
            machine.place(away, &moved.bytes);
            machine.place(PAD, &pad);
            let mut before = state(&mut random, &code);
            let middle = before.memory.len() / 2;
            before.x[2] = ARENA + middle as u64 * 8;
            let mut original = machine.run(home, &before);
            let got = machine.run(away, &before);
            if original.pc() == home + code.len() as u64 && got.pc() != original.pc() {
                original.state.x[0] = away + moved.bytes.len() as u64;
            }
            // The saved register is below the stack pointer.
            original.state.memory[middle - 2] = got.state.memory[middle - 2];
            assert!(
                original == got,
                "{}moved to\n{}differs:\n{}",
                lines(&code, home),
                lines(&moved.bytes, away),
                Outcome::difference(&original, &got)
            );
            machine.clear(home, code.len());
            machine.clear(away, moved.bytes.len());
        }
    }
}

#[test]
fn simulated_forms_do_what_the_processor_does() {
    let mut machine = Machine::new();
    let mut random = Random(2);
    for (name, fixed, free) in FORMS {
        let mut left = 2000 * samples();
        while left > 0 {
            let code = bytes_of(fixed | random.next() as u32 & free);
            let home = HOME + random.below(0x800) * 2;
            let ends = Insn::new(&code, home).kind == Kind::Ebreak;
            if ends || leads_into_itself(&code, home) {
                continue;
            }
            left -= 1;
            let Some(simulation) = Simulation::new(&code, home) else {
                assert_ne!(
                    text(&code, home).split(' ').next(),
                    Some(name),
                    "it is simulated"
                );
                continue;
            };
            machine.place(home, &code);
            let before = state(&mut random, &code);
            let outcome = machine.run(home, &before);
            let mut simulated = simulate::State {
                x: before.x,
                pc: home,
            };
            simulation.run(&mut simulated);
            let mut expected = outcome.state.x;
            // The place of the zero register holds the address.
            expected[0] = simulated.x[0];
            assert_eq!(
                simulated.x,
                expected,
                "{}, signal {}, before {:x?}",
                text(&code, home),
                outcome.signal,
                before.x
            );
            assert_eq!(simulated.pc, outcome.pc(), "{}", text(&code, home));
            machine.clear(home, code.len());
        }
        println!("{name} simulated");
    }
}

/// Returns a loop with several iterations. It contains forward branches and jumps, and instructions of all lengths.
fn program(random: &mut Random, count: usize) -> Vec<u8> {
    /// The register that counts iterations.
    const COUNTER: u32 = 31;
    let mut pieces: Vec<Vec<u8>> = Vec::new();
    // For each branch, the index of its piece, and that of its target.
    let mut branches = Vec::new();
    for number in 0..count {
        let register = || 10 + (number as u32 * 7 + 3) % 8;
        let (rd, rs1) = (register(), 10 + random.below(8) as u32);
        let ahead = (number + 1 + random.below(12) as usize).min(count);
        let piece = match random.below(8) {
            // addi rd, rs1, …; c.addi rd, 5; auipc rd, …
            0 | 1 => bytes_of(0x13 | rd << 7 | rs1 << 15 | (random.below(2048) as u32) << 20),
            2 | 3 => bytes_of(0x0015 | rd << 7),
            4 => bytes_of(0x17 | rd << 7 | (random.below(1 << 15) as u32) << 12),
            // A branch of any condition; c.beqz; j
            5 => {
                branches.push((number, ahead));
                let condition = [0, 1, 4, 5, 6, 7][random.below(6) as usize];
                bytes_of(0x63 | condition << 12 | rd << 15 | rs1 << 20)
            }
            6 if ahead < number + 8 => {
                branches.push((number, ahead));
                bytes_of(0xC001 | (rs1 & 7) << 7)
            }
            _ => {
                branches.push((number, ahead));
                bytes_of(0x6F)
            }
        };
        pieces.push(piece);
    }
    // addi counter, counter, -1; beq counter, zero, over the next; j to the start
    pieces.push(bytes_of(0x13 | COUNTER << 7 | COUNTER << 15 | 0xFFF << 20));
    pieces.push(bytes_of(0x63 | COUNTER << 15));
    branches.push((count + 1, count + 3));
    pieces.push(bytes_of(0x6F));
    branches.push((count + 2, 0));
    pieces.push(bytes_of(0x13 | 10 << 7));
    let start = |number: usize| pieces[..number].iter().map(Vec::len).sum::<usize>() as i64;
    let mut placed = pieces.clone();
    for (number, to) in branches {
        let distance = (start(to) - start(number)) as u32;
        let bits = |from: u32, count: u32, to: u32| (distance >> from & ((1 << count) - 1)) << to;
        let piece = &mut placed[number];
        let old = piece
            .iter()
            .rev()
            .fold(0u32, |word, byte| word << 8 | u32::from(*byte));
        let new = match old & 0x7F {
            0x63 => bits(12, 1, 31) | bits(5, 6, 25) | bits(1, 4, 8) | bits(11, 1, 7),
            0x6F => bits(20, 1, 31) | bits(1, 10, 21) | bits(11, 1, 20) | bits(12, 8, 12),
            _ => bits(8, 1, 12) | bits(3, 2, 10) | bits(6, 2, 5) | bits(1, 2, 3) | bits(5, 1, 2),
        };
        *piece = bytes_of(old | new);
    }
    placed.concat()
}

#[test]
fn moved_loops_do_what_the_originals_do() {
    let mut machine = Machine::new();
    let mut random = Random(4);
    for round in 0..300 * samples() {
        // Some are too long for the reach of branches.
        let count = if round % 20 == 0 {
            1500
        } else {
            5 + random.below(40) as usize
        };
        let code = program(&mut random, count);
        let reach = [Reach::Jump, Reach::Pair, Reach::Any][random.below(3) as usize];
        let moved = compare(&mut machine, &mut random, &code, reach, Link::Original);
        moved.expect("it can be moved");
    }
}

/// Returns the C library's code, and the offsets of its instructions.
fn real_code() -> Option<(Vec<u8>, Vec<usize>)> {
    let (code, addr) = library().and_then(|path| section(&path, ".text"))?;
    let mut starts = Vec::new();
    let mut at = 0;
    while at < code.len() {
        starts.push(at);
        at += usize::from(Insn::new(&code[at..], addr + at as u64).len);
    }
    Some((code, starts))
}

/// Returns some consecutive instructions from anywhere in it, if their results do not vary.
fn window<'c>(
    code: &'c [u8],
    starts: &[usize],
    most: u64,
    random: &mut Random,
) -> Option<&'c [u8]> {
    let count = 1 + random.below(most) as usize;
    let first = random.below((starts.len() - count) as u64) as usize;
    let window = &code[starts[first]..starts[first + count]];
    // Results that depend on the time vary, and system calls may do anything.
    let mut offset = 0;
    let mut unfit = false;
    while offset < window.len() {
        let insn = Insn::new(&window[offset..], 0);
        offset += usize::from(insn.len);
        unfit |= matches!(insn.kind, Kind::Csr | Kind::Ecall);
    }
    (!unfit && !leads_into_itself(window, HOME)).then_some(window)
}

#[test]
fn free_registers_may_have_any_value() {
    let Some((code, starts)) = real_code() else {
        return;
    };
    let mut machine = Machine::new();
    let mut random = Random(5);
    let (mut runs, mut finished) = (0, 0);
    for _ in 0..6000 * samples() {
        let Some(window) = window(&code, &starts, 20, &mut random) else {
            continue;
        };
        let free = dead_registers(window, HOME, HOME, 100, Convention::Unknown);
        if free == 0 {
            continue;
        }
        machine.place(HOME, window);
        for _ in 0..STATES {
            let before = state(&mut random, window);
            let mut other = before.clone();
            let is_free = |number: usize| free & 1 << number != 0;
            for number in (0..32).filter(|number| is_free(*number)) {
                other.x[number] = random.next();
            }
            let first = machine.run(HOME, &before);
            let mut second = machine.run(HOME, &other);
            // After a fault, free registers may not have been overwritten yet.
            if first.signal == libc::SIGTRAP {
                finished += 1;
            } else {
                for number in (0..32).filter(|number| is_free(*number)) {
                    second.state.x[number] = first.state.x[number];
                }
            }
            runs += 1;
            assert!(
                first == second,
                "{free:#x} in\n{}{}",
                lines(window, HOME),
                Outcome::difference(&first, &second)
            );
        }
        machine.clear(HOME, window.len());
    }
    println!("{runs} runs, {finished} without a fault");
    assert!(finished > 500 * samples(), "{finished} of {runs}");
}

#[test]
fn moved_windows_of_real_code_do_what_the_originals_do() {
    let Some((code, starts)) = real_code() else {
        return;
    };
    let mut machine = Machine::new();
    let mut random = Random(3);
    let mut refused: BTreeMap<String, u64> = BTreeMap::new();
    let mut moved = 0;
    for _ in 0..6000 * samples() {
        let Some(window) = window(&code, &starts, 6, &mut random) else {
            continue;
        };
        let reach = [Reach::Pair, Reach::Any][random.below(2) as usize];
        match compare(&mut machine, &mut random, window, reach, Link::Original) {
            Ok(()) => moved += 1,
            Err(error) => {
                let error = error.to_string();
                let why = error.split(" at offset").next().unwrap_or_default();
                *refused
                    .entry(why.trim_end_matches(',').to_owned())
                    .or_default() += 1;
            }
        }
    }
    println!("{moved} windows moved, refused: {refused:?}");
    assert!(
        moved > 4000 * samples(),
        "{moved} moved, refused: {refused:?}"
    );
}
