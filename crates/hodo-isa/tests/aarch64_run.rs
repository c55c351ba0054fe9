//! Runs AArch64 instructions at their own address, and moved or simulated, on the same random state, and compares all
//! results: general and vector registers, flags, memory, the final address, and faults. Also runs what the assembler
//! writes.
//!
//! For AArch64 only: `scripts/cross.sh` runs it under an emulator.
#![cfg(target_arch = "aarch64")]

#[path = "aarch64/mod.rs"]
mod common;
#[path = "aarch64/executed.rs"]
mod executed;
#[path = "aarch64/machine.rs"]
mod machine;

use common::{Random, WINDOWS, samples};
use hodo_isa::aarch64::asm::Reach;
use hodo_isa::aarch64::regs::{LINK, PLATFORM, SP, STACK};
use hodo_isa::aarch64::relocate::{Link, Options, RelocateError, Relocated, relocate};
use hodo_isa::aarch64::scan::Flow;
use hodo_isa::aarch64::simulate::{self, Simulation};
use hodo_isa::aarch64::{Insn, Kind, text};
use machine::{ARENA, ARENA_SIZE, AWAY, AWAY_SIZE, FAR, FARTHEST, HOME, Machine, Outcome, State};

/// The number of states for each piece of code.
const STATES: u64 = 4;

/// Forms that use their address, with the bits that may have any value. Their targets are within the memory for code.
const FORMS: [(&str, u32, u32); 26] = [
    ("adr", 0x1000_0000, 0x60FF_FFFF),
    ("adrp", 0x9000_0000, 0x601F_FFFF),
    ("b", 0x1400_0000, 0x0003_FFFF),
    ("b back", 0x17FC_0000, 0x0003_FFFF),
    ("bl", 0x9400_0000, 0x0003_FFFF),
    ("bl back", 0x97FC_0000, 0x0003_FFFF),
    ("b.cond", 0x5400_0000, 0x00FF_FFEF),
    ("cbz w", 0x3400_0000, 0x00FF_FFFF),
    ("cbnz w", 0x3500_0000, 0x00FF_FFFF),
    ("cbz x", 0xB400_0000, 0x00FF_FFFF),
    ("cbnz x", 0xB500_0000, 0x00FF_FFFF),
    ("tbz", 0x3600_0000, 0x80FF_FFFF),
    ("tbnz", 0x3700_0000, 0x80FF_FFFF),
    ("ldr w", 0x1800_0000, 0x00FF_FFFF),
    ("ldr x", 0x5800_0000, 0x00FF_FFFF),
    ("ldrsw", 0x9800_0000, 0x00FF_FFFF),
    ("prfm", 0xD800_0000, 0x00FF_FFFF),
    ("ldr s", 0x1C00_0000, 0x00FF_FFFF),
    ("ldr d", 0x5C00_0000, 0x00FF_FFFF),
    ("ldr q", 0x9C00_0000, 0x00FF_FFFF),
    ("br", 0xD61F_0000, 0x0000_03E0),
    ("blr", 0xD63F_0000, 0x0000_03E0),
    ("ret", 0xD65F_0000, 0x0000_03E0),
    ("nop", 0xD503_201F, 0),
    ("blraaz", 0xD63F_081F, 0x0000_03E0),
    ("retaa", 0xD65F_0BFF, 0),
];

fn bytes(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn insns(words: &[u32]) -> impl Iterator<Item = Insn> {
    let at = |(index, &word): (usize, &u32)| Insn::of(word, HOME + index as u64 * 4);
    words.iter().enumerate().map(at)
}

/// Returns whether code may run forever, has results that vary, or has effects that are not in the compared state.
fn is_unfit(words: &[u32]) -> bool {
    // With an address near the code, it may overwrite itself.
    let near = insns(words).any(|insn| matches!(insn.kind, Kind::Adr | Kind::Adrp));
    let writes = |insn: Insn| insn.memory().is_some_and(|memory| memory.writes);
    if near && insns(words).any(writes) {
        return true;
    }
    // A register may be saved below the stack pointer, so the stack pointer must be known.
    let moves = insns(words).any(|insn| insn.effects().changes & STACK != 0);
    if moves && insns(words).any(|insn| insn.kind == Kind::Literal && dead_or_kept(&insn)) {
        return true;
    }
    insns(words).any(|insn| {
        let back = match insn.flow() {
            Flow::Branch(to) | Flow::Jump(to) | Flow::Call(to) => (HOME..=insn.addr).contains(&to),
            _ => false,
        };
        back || matches!(
            insn.kind,
            Kind::Scalable
                | Kind::Matrix
                | Kind::ReadSystem
                | Kind::WriteSystem
                | Kind::SetState
                | Kind::System
        )
    })
}

/// Returns a state in which registers that the code reads often hold useful addresses.
fn state(random: &mut Random, words: &[u32]) -> State {
    let mut state = State::new();
    let middle = ARENA + ARENA_SIZE / 2;
    for x in &mut state.x {
        *x = match random.below(5) {
            0 => random.next(),
            1 => random.below(4),
            2 => random.below(4).wrapping_neg(),
            3 => random.below(64) * 8,
            _ => middle + random.below(ARENA_SIZE / 32) * 8,
        };
    }
    state.x[usize::from(SP)] = middle + random.below(ARENA_SIZE / 64) * 16;
    for v in &mut state.v {
        *v = u128::from(random.next()) << 64 | u128::from(random.next());
    }
    state.flags = random.below(16) << 28;
    state.memory.fill_with(|| random.next());
    for insn in insns(words) {
        let by_register = matches!(
            insn.kind,
            Kind::JumpRegister | Kind::CallRegister | Kind::Return
        );
        // The target is away from all code.
        if by_register && insn.rn() != SP {
            state.x[usize::from(insn.rn())] = HOME - 0x10_0000 - random.below(0x1_0000) * 4;
        }
    }
    state
}

/// Returns a register that the code does not use, or none if it may use all.
fn dead_register(words: &[u32], random: &mut Random) -> u32 {
    let used = insns(words).map(|insn| insn.effects());
    let used = used.fold(0, |all, one| all | one.reads | one.changes);
    let kept = 1 << PLATFORM | 1 << LINK;
    let all = (0..31).map(|number| 1u32 << number);
    let free: Vec<u32> = all
        .filter(|&bit| (used | kept) & u64::from(bit) == 0)
        .collect();
    match free.len() as u64 {
        0 => 0,
        count => free[random.below(count) as usize],
    }
}

fn all_text(words: &[u32]) -> String {
    let all = insns(words).map(|insn| text(&insn.word.to_le_bytes(), insn.addr));
    all.collect::<Vec<_>>().join("; ")
}

/// Returns the address in the original code for the address at which moved code stopped.
fn original(pc: u64, to: u64, moved: &Relocated, len: usize) -> u64 {
    let offset = pc.wrapping_sub(to);
    if offset == moved.bytes.len() as u64 {
        return HOME + len as u64;
    }
    if offset > moved.bytes.len() as u64 {
        return pc;
    }
    // The last instruction that begins there or before: some instructions become several.
    let at = moved.map.iter().rfind(|at| at.new as u64 <= offset);
    HOME + at.map_or(0, |at| at.old as u64)
}

/// Runs code and its copy, and compares the results. Returns whether the code can be moved.
fn check(
    machine: &mut Machine,
    words: &[u32],
    options: &Options<'_>,
    dead: u32,
    random: &mut Random,
) -> bool {
    let code = bytes(words);
    let offset = random.below(AWAY_SIZE / 4 - 1024) * 4;
    let to = offset
        + match options.reach {
            Reach::Jump => AWAY,
            Reach::Page => FAR,
            Reach::Any => FARTHEST,
        };
    let moved = match relocate(&code, HOME, to, options) {
        Ok(moved) => moved,
        Err(RelocateError::OutOfRange { .. } | RelocateError::TargetInside { .. }) => {
            panic!("{} cannot be moved to {to:#x}", all_text(words))
        }
        Err(_) => return false,
    };
    machine.place(HOME, &code);
    machine.place(to, &moved.bytes);
    for _ in 0..STATES {
        let state = state(random, words);
        let mut a = machine.run(HOME, &state);
        let mut b = machine.run(to, &state);
        b.state.pc = original(b.state.pc, to, &moved, code.len());
        forgive(&mut a, &mut b, words, &state, dead, options);
        if a != b {
            let chunks = moved.bytes.as_chunks::<4>().0.iter().enumerate();
            let texts = chunks.map(|(at, word)| text(word, to + at as u64 * 4));
            let texts: Vec<_> = texts.collect();
            panic!(
                "{}\nmoved to {to:#x}: {}\n{}",
                all_text(words),
                texts.join("; "),
                Outcome::difference(&a, &b)
            );
        }
    }
    machine.clear(HOME, code.len());
    machine.clear(to, moved.bytes.len());
    true
}

/// Makes equal what may differ: the dead register; the words below the stack pointer, where a register was saved; and
/// the link register after calls that return to the moved code.
fn forgive(
    a: &mut Outcome,
    b: &mut Outcome,
    words: &[u32],
    state: &State,
    dead: u32,
    options: &Options<'_>,
) {
    for register in 0..31 {
        if dead & 1 << register != 0 {
            b.state.x[register] = a.state.x[register];
        }
    }
    let has = |kind: fn(&Insn) -> bool| insns(words).any(|insn| kind(&insn));
    if has(|insn| insn.kind == Kind::Literal && dead_or_kept(insn)) {
        let below = (state.x[usize::from(SP)] - ARENA) as usize / 8;
        for word in below - 2..below {
            b.state.memory[word] = a.state.memory[word];
        }
    }
    if options.link == Link::Moved
        && has(|insn| matches!(insn.kind, Kind::BranchLink | Kind::CallRegister))
    {
        b.state.x[30] = a.state.x[30];
    }
}

/// Returns whether a PC-relative load needs another register than its own.
fn dead_or_kept(insn: &Insn) -> bool {
    insn.bit(26) || insn.rd() == 31
}

/// The options with which code is moved.
fn ways(dead: &dyn Fn(u64) -> u32) -> [Options<'_>; 5] {
    let new = |reach: Reach, link: Link| Options {
        link,
        dead,
        sequences: true,
        ..Options::new(reach)
    };
    [
        Options {
            sequences: true,
            ..Options::new(Reach::Jump)
        },
        new(Reach::Jump, Link::Moved),
        new(Reach::Page, Link::Original),
        new(Reach::Page, Link::Moved),
        new(Reach::Any, Link::Original),
    ]
}

/// Runs code that is moved with each of these options. Returns how many of them are possible.
fn check_all(machine: &mut Machine, words: &[u32], random: &mut Random) -> usize {
    let register = dead_register(words, random);
    let dead = move |_| register;
    let ways = ways(&dead);
    let all = ways.iter().enumerate();
    let possible = all.filter(|(at, options)| {
        let dead = if *at == 0 { 0 } else { register };
        check(machine, words, options, dead, random)
    });
    possible.count()
}

/// Returns a random word of a form.
fn word_of(form: &(&str, u32, u32), random: &mut Random) -> u32 {
    form.1 | random.next() as u32 & form.2
}

#[test]
fn forms_that_use_their_address() {
    let mut machine = Machine::new();
    let mut random = Random(1);
    for form in &FORMS {
        let mut possible = 0;
        for _ in 0..40 {
            let word = word_of(form, &mut random);
            if !is_unfit(&[word]) {
                possible += check_all(&mut machine, &[word], &mut random);
            }
        }
        // Return addresses are not signed here, so authentication fails: the copy faults as the original does.
        assert!(possible > 30, "{}: {possible}", form.0);
    }
}

#[test]
fn forms_are_simulated() {
    let mut machine = Machine::new();
    let mut random = Random(2);
    let mut count = 0;
    for form in &FORMS {
        for _ in 0..60 {
            let word = word_of(form, &mut random);
            let Some(simulation) = Simulation::new(&word.to_le_bytes(), HOME) else {
                continue;
            };
            if is_unfit(&[word]) {
                continue;
            }
            machine.place(HOME, &word.to_le_bytes());
            let state = state(&mut random, &[word]);
            let outcome = machine.run(HOME, &state);
            let mut x = [0; 31];
            x.copy_from_slice(&state.x[..31]);
            let mut simulated = simulate::State {
                x,
                flags: state.flags,
                pc: HOME,
            };
            simulation.run(&mut simulated);
            let what = all_text(&[word]);
            assert_eq!(simulated.pc, outcome.state.pc, "{what}");
            assert_eq!(simulated.x, outcome.state.x[..31], "{what}");
            count += 1;
        }
    }
    machine.clear(HOME, 4);
    assert!(count > 700, "{count}");
}

#[test]
fn samples_of_all_instructions() {
    let mut machine = Machine::new();
    let mut random = Random(3);
    let mut possible = 0;
    for line in samples() {
        if !is_unfit(&[line.word]) {
            possible += check_all(&mut machine, &[line.word], &mut random);
        }
    }
    assert!(possible > 5000, "{possible}");
}

#[test]
fn windows_of_real_code() {
    let mut machine = Machine::new();
    let mut random = Random(4);
    let mut possible = 0;
    let mut all = 0;
    for window in WINDOWS.lines() {
        let words = window
            .split(' ')
            .map(|word| u32::from_str_radix(word, 16).expect("a word"));
        let words: Vec<u32> = words.collect();
        if is_unfit(&words) {
            continue;
        }
        all += 1;
        possible += usize::from(check_all(&mut machine, &words, &mut random) > 0);
    }
    assert!(possible * 10 > all * 9, "{possible} of {all}");
}

/// Code with branches inside it, made of forms that use their address and of others.
#[test]
fn windows_put_together_at_random() {
    let mut machine = Machine::new();
    let mut random = Random(5);
    let plain: Vec<u32> = samples()
        .map(|line| line.word)
        .filter(|&word| Insn::of(word, HOME).flow() == Flow::Next)
        .collect();
    let mut possible = 0;
    for _ in 0..1500 {
        let len = 2 + random.below(5) as usize;
        let mut words: Vec<u32> = Vec::new();
        for at in 0..len {
            let inside = 1 + random.below((len - at) as u64) as u32;
            words.push(match random.below(4) {
                0 => word_of(&FORMS[random.below(20) as usize], &mut random),
                // Branches to an instruction inside the code, or to its end.
                1 => {
                    let (word, shift) = [
                        (0x5400_0000, 5),
                        (0xB400_0000, 5),
                        (0x3600_0000, 5),
                        (0x1400_0000, 0),
                    ][random.below(4) as usize];
                    let register = if shift == 0 {
                        0
                    } else {
                        random.below(31) as u32 & 0xF
                    };
                    word | inside << shift | register
                }
                _ => plain[random.below(plain.len() as u64) as usize],
            });
        }
        if !is_unfit(&words) {
            possible += usize::from(check_all(&mut machine, &words, &mut random) > 0);
        }
    }
    assert!(possible > 500, "{possible}");
}
