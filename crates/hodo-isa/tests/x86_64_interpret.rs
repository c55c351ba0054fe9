//! Interprets instructions of real programs, runs them on the processor with the same random states, and compares the
//! results: general registers, flags, memory, the final address, and faults.
#![cfg(target_arch = "x86_64")]

#[allow(dead_code, reason = "the other tests of instructions use the rest")]
mod machine;

use std::collections::BTreeSet;

use hodo_isa::x86_64::interpret::{self, Halt, Machine as _};
use hodo_isa::x86_64::simulate::{Fault, Memory};
use iced_x86::{Instruction, Mnemonic, RflagsBits};
use machine::samples::{Random, adapt, forms, state};
use machine::{ARENA, ARENA_SIZE, HOME, HOME_SIZE, Machine, State};

/// The number of samples of each form, and of random states on which each runs.
const SAMPLES: usize = 2;
const STATES: u64 = 3;

/// The arena, with some code.
struct World {
    memory: Vec<u8>,
    at: u64,
    code: Vec<u8>,
}

impl World {
    fn new(state: &State, at: u64, code: &[u8]) -> Self {
        let words = state.memory.iter();
        Self {
            memory: words.flat_map(|word| word.to_le_bytes()).collect(),
            at,
            code: code.to_vec(),
        }
    }

    fn range(addr: u64, len: usize) -> Result<std::ops::Range<usize>, Fault> {
        let start = addr.wrapping_sub(ARENA);
        let end = start.checked_add(len as u64).ok_or(Fault)?;
        match end <= ARENA_SIZE {
            true => Ok(start as usize..end as usize),
            false => Err(Fault),
        }
    }
}

impl Memory for World {
    fn read(&mut self, addr: u64, into: &mut [u8]) -> Result<(), Fault> {
        // Code can be read, too.
        if let Some(offset) = addr.checked_sub(HOME)
            && offset + into.len() as u64 <= HOME_SIZE
        {
            into.fill(0xCC);
            for (byte, at) in into.iter_mut().zip(addr..) {
                let inside = at.checked_sub(self.at).map(|offset| offset as usize);
                if let Some(code) = inside.and_then(|offset| self.code.get(offset)) {
                    *byte = *code;
                }
            }
            return Ok(());
        }
        into.copy_from_slice(&self.memory[Self::range(addr, into.len())?]);
        Ok(())
    }

    fn write(&mut self, addr: u64, from: &[u8]) -> Result<(), Fault> {
        let range = Self::range(addr, from.len())?;
        self.memory[range].copy_from_slice(from);
        Ok(())
    }
}

impl interpret::Machine for World {
    fn code(&mut self, addr: u64, into: &mut [u8]) -> usize {
        let offset = addr.wrapping_sub(self.at) as usize;
        let code = self.code.get(offset..).unwrap_or_default();
        let len = code.len().min(into.len());
        into[..len].copy_from_slice(&code[..len]);
        len
    }

    fn counter(&mut self) -> u64 {
        0x1234_5678_9ABC_DEF0
    }

    fn processor(&mut self) -> Option<u64> {
        Some(3)
    }
}

fn start(state: &State, pc: u64) -> interpret::State {
    interpret::State {
        registers: state.registers,
        pc,
        // Interrupts are on, and one bit is always set.
        flags: state.flags | 0x202,
        fs: 0,
        gs: 0,
    }
}

/// Returns the flags that an instruction leaves undefined.
fn undefined(instruction: &Instruction) -> u64 {
    let bits = instruction.rflags_undefined();
    let places = [
        (RflagsBits::CF, 0),
        (RflagsBits::PF, 2),
        (RflagsBits::AF, 4),
        (RflagsBits::ZF, 6),
        (RflagsBits::SF, 7),
        (RflagsBits::OF, 11),
    ];
    let set = places.iter().filter(|(bit, _)| bits & bit != 0);
    set.map(|(_, place)| 1 << place).sum()
}

/// Compares the results on random states. Returns the mnemonic if the interpreter knows the instruction on one of them.
fn compare(machine: &mut Machine, code: &[u8], random: &mut Random) -> Option<Mnemonic> {
    let mut code = code.to_vec();
    let home = HOME + HOME_SIZE / 2 + 1024;
    let instructions = adapt(&mut code, home, random)?;
    let [instruction] = instructions[..] else {
        return None;
    };
    machine.place(home, &code);
    let mut known = false;
    for _ in 0..STATES {
        let before = state(&instructions, random);
        let mut world = World::new(&before, home, &code);
        let mut got = start(&before, home);
        // Instructions that the interpreter does not know are not compared.
        let halt = match interpret::step(&mut got, &mut world) {
            Err(Halt::Unknown) => continue,
            result => result.err(),
        };
        known = true;
        let real = machine.run(home, &before);
        let what = format!(
            "{instruction:?} {code:02x?}\n{before:?}",
            before = before.registers
        );
        match halt {
            Some(_) => {
                assert_ne!(real.signal, libc::SIGTRAP, "it does not fault: {what}");
                assert_eq!((got, real.rip), (start(&before, home), home), "{what}");
            }
            None if real.signal != libc::SIGTRAP && real.rip != got.pc => {
                panic!("it faults by {}: {what}", real.signal)
            }
            None => {
                assert_eq!(real.rip, got.pc, "{what}");
                assert_eq!(real.registers, got.registers, "{what}");
                let ignored = !undefined(&instruction) & 0xCD5;
                assert_eq!(real.flags & ignored, got.flags & ignored, "{what}");
            }
        }
        let memory: Vec<u8> = real.memory.iter().flat_map(|w| w.to_le_bytes()).collect();
        assert!(memory == world.memory, "memory: {what}");
    }
    machine.clear(home, code.len());
    known.then(|| instruction.mnemonic())
}

#[test]
fn instructions_do_what_the_processor_does() {
    let mut machine = Machine::new();
    let mut random = Random(4);
    let mut known = BTreeSet::new();
    let mut compared = 0;
    for (_, samples) in forms(SAMPLES) {
        for code in samples {
            if let Some(mnemonic) = compare(&mut machine, &code, &mut random) {
                known.insert(format!("{mnemonic:?}"));
                compared += 1;
            }
        }
    }
    println!("{compared} samples of {known:?}");
    assert!(compared > 3000, "{compared}");
    let expected = "Adc Add And Bsf Bsr Bswap Bt Btr Bts Call Cdqe Cmove Cmp Cmpxchg Dec Imul Inc Ja Jmp Lea Mov Movsx \
         Movsxd Movzx Neg Not Or Pop Push Rcr Ret Rol Ror Sar Sbb Sete Shl Shr Sub Test Xchg Xor";
    for mnemonic in expected.split_whitespace() {
        assert!(known.contains(mnemonic), "no {mnemonic} was compared");
    }
}

/// Instructions that compilers hardly use, in all their widths.
#[test]
fn written_out_instructions_do_what_the_processor_does() {
    let mut machine = Machine::new();
    let mut random = Random(5);
    let mut all: Vec<Vec<u8>> = Vec::new();
    // lahf, sahf, stc, clc, cmc, cqo, cdqe, pushfq, endbr64, pause.
    for code in [
        "9f", "9e", "f9", "f8", "f5", "4899", "4898", "9c", "f30f1efa", "f390",
    ] {
        all.push(bytes(code));
    }
    // Shifts and rotates of rbx, ebx, bx and bl: by one, by any number, by cl.
    for kind in 0..8u8 {
        let rm = 0xC3 | kind << 3;
        for prefix in [&[0x48][..], &[], &[0x66]] {
            all.push([prefix, &[0xD1, rm]].concat());
            all.push([prefix, &[0xD3, rm]].concat());
            for count in [0, 1, 7, 8, 15, 16, 31] {
                all.push([prefix, &[0xC1, rm, count]].concat());
            }
        }
        all.push(vec![0xD0, rm]);
        all.push(vec![0xC0, rm, 5]);
    }
    // Bits by number in a register and in memory, and by a register; xadd and cmpxchg with registers and memory.
    for kind in 4..8u8 {
        all.push(vec![0x48, 0x0F, 0xBA, 0xC3 | kind << 3, 41]);
        all.push(vec![0x0F, 0xBA, 0x03 | kind << 3, 9]);
        all.push(vec![0x48, 0x0F, 0xA3 | (kind & 3) << 3, 0xCB]);
    }
    for code in [
        "480fc1cb", "480fc10b", "0fc1cb", "0fc10b", "480fc1db", "480fb1cb", "480fb10b", "0fb10b",
        "480fb1c3",
    ] {
        all.push(bytes(code));
    }
    let compared = all
        .iter()
        .filter(|code| compare(&mut machine, code, &mut random).is_some());
    let compared = compared.count();
    assert!(compared + 8 >= all.len(), "{compared} of {}", all.len());
}

fn bytes(digits: &str) -> Vec<u8> {
    let byte = |at| u8::from_str_radix(&digits[at..at + 2], 16).expect("a byte");
    (0..digits.len()).step_by(2).map(byte).collect()
}

/// Interprets code.
fn interpreted(
    code: &str,
    before: &interpret::State,
) -> (Result<(), Halt>, interpret::State, World) {
    let code = bytes(code);
    let mut world = World::new(&State::new(), HOME, &code);
    let mut state = *before;
    let end = HOME + code.len() as u64;
    let result = interpret::run(&mut state, &mut world, 100, |pc| pc == end);
    (result, state, world)
}

#[test]
fn what_is_not_known_changes_nothing() {
    let mut before = start(&State::new(), HOME);
    before.registers[3] = ARENA + 64;
    before.registers[4] = ARENA + 4096;
    let refused = [
        ("f048ff03", Halt::Unknown), // lock inc qword [rbx]
        ("48870b", Halt::Unknown),   // xchg [rbx], rcx: atomic by itself
        ("0f05", Halt::Unknown),     // syscall
        ("f3a4", Halt::Unknown),     // rep movsb
        ("cc", Halt::Unknown),       // int3
        ("660f6f03", Halt::Unknown), // movdqa xmm0, [rbx]
        ("0fae23", Halt::Unknown),   // xsave [rbx]
        ("668f03", Halt::Unknown),   // pop word [rbx]
        ("480fbdc9", Halt::Unknown), // bsr rcx, rcx of zero
        ("488b0425", Halt::Unknown), // cut off
        ("488b08", Halt::Fault),     // mov rcx, [rax] of zero
        ("ff30", Halt::Fault),       // push qword [rax]
        ("ebfe", Halt::Endless),     // a jump to itself
    ];
    for (code, halt) in refused {
        let (result, state, world) = interpreted(code, &before);
        assert_eq!(result, Err(halt), "{code}");
        assert_eq!(state, before, "{code}");
        assert!(world.memory.iter().all(|&byte| byte == 0), "{code}");
    }
}

#[test]
fn segments_have_their_bases() {
    let mut before = start(&State::new(), HOME);
    before.gs = ARENA + 256;
    before.fs = ARENA + 512;
    before.registers[0] = 7;
    // mov gs:[8], rax; mov fs:[16], rax; xchg gs:[8], rax; lea rcx, gs:[8]
    let code =
        "654889042508000000644889042510000000654887042508000000".to_owned() + "65488d0c2508000000";
    let (result, state, mut world) = interpreted(&code, &before);
    assert_eq!(result, Ok(()));
    let mut word = |at| {
        let mut word = [0; 8];
        world.read(at, &mut word).expect("it is in the arena");
        u64::from_le_bytes(word)
    };
    assert_eq!((word(ARENA + 264), word(ARENA + 528)), (7, 7));
    assert_eq!((state.registers[0], state.registers[1]), (7, 8));
}

#[test]
fn clocks_and_processors_are_those_of_the_machine() {
    // rdtsc; rdpid rbx
    let (result, state, mut world) = interpreted("0f31f30fc7fb", &start(&State::new(), HOME));
    assert_eq!(result, Ok(()));
    let counter = world.counter();
    assert_eq!(state.registers[0] | state.registers[2] << 32, counter);
    assert_eq!(state.registers[3], 3);
}

#[test]
fn flags_go_through_the_stack() {
    let mut before = start(&State::new(), HOME);
    before.registers[4] = ARENA + 4096;
    before.flags = 0x246;
    // pushfq; xor eax, eax; stc; popfq
    let (result, state, _) = interpreted("9c31c0f99d", &before);
    assert_eq!(result, Ok(()));
    assert_eq!((state.flags, state.registers[4]), (0x246, ARENA + 4096));
    before.flags |= 0x100;
    let (result, ..) = interpreted("9c9d", &before);
    assert_eq!(result, Err(Halt::Unknown), "single steps");
}
