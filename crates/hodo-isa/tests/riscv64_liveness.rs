//! Free registers in real code: compares the search from one instruction with the analysis of all code. Also compares
//! sequences of `lr` and `sc` with a search along every path.

#[path = "riscv64/mod.rs"]
mod common;
#[path = "riscv64/free.rs"]
mod free;

use std::collections::BTreeSet;

use common::{Random, library, samples, section};
use free::{Convention, dead_registers, live_registers};
use hodo_isa::riscv64::Part;
use hodo_isa::riscv64::encode::{AUIPC, JALR, OP_IMM, b, i, j, u};
use hodo_isa::riscv64::regs::{RA, T0};
use hodo_isa::riscv64::scan::Flow;
use hodo_isa::riscv64::steps::{FIXED, Step, steps};

#[test]
fn both_ways_to_find_free_registers_agree() {
    let Some((code, base)) = library().and_then(|path| section(&path, ".text")) else {
        return;
    };
    let steps = steps(&code, base);
    for convention in [Convention::Unknown, Convention::Standard] {
        let live = live_registers(&steps, convention);
        let mut random = Random(7);
        let (mut same, mut some) = (0, 0);
        let all = 4000 * samples();
        for _ in 0..all {
            let index = random.below(steps.len() as u64) as usize;
            let addr = steps[index].addr;
            let dead = dead_registers(&code, base, addr, 400, convention);
            // The search from one instruction may find less: its length is limited, and it does not see the `auipc`
            // of a jump.
            assert_eq!(dead & live[index], 0, "{addr:#x}, {convention:?}");
            assert_eq!(dead & FIXED, 0);
            same += u64::from(!dead == live[index]);
            some += u64::from(dead != 0);
        }
        println!("{convention:?}: {same} of {all} the same, {some} with a free register");
        assert!(same * 100 > all * 80, "{same} of {all}");
        assert!(some * 100 > all * 80, "{some} of {all}");
    }
}

/// Finds all instructions between this one and an `sc`, if a path leads to one.
fn between(steps: &[Step], at: usize, path: &mut Vec<usize>, found: &mut BTreeSet<usize>) {
    for next in after(steps, at) {
        match steps[next].part {
            Part::Last => found.extend(path.iter().copied()),
            Part::First => {}
            // Paths that are longer than any sequence have left it.
            _ if path.len() > 12 || path.contains(&next) => {}
            _ => {
                path.push(next);
                between(steps, next, path, found);
                path.pop();
            }
        }
    }
}

fn after(steps: &[Step], at: usize) -> Vec<usize> {
    let step = &steps[at];
    let mut all = Vec::new();
    if !step.flow.is_end() && at + 1 < steps.len() {
        all.push(at + 1);
    }
    if let Flow::Branch(to) | Flow::Jump(to) = step.flow {
        all.extend(steps.binary_search_by_key(&to, |step| step.addr).ok());
    }
    all
}

#[test]
fn sequences_in_real_code() {
    let Some((code, base)) = library().and_then(|path| section(&path, ".text")) else {
        return;
    };
    let steps = steps(&code, base);
    let mut expected = BTreeSet::new();
    let mut sequences = 0;
    for (index, step) in steps.iter().enumerate() {
        if step.part == Part::First {
            sequences += 1;
            between(&steps, index, &mut Vec::new(), &mut expected);
        }
    }
    let found: BTreeSet<usize> = (0..steps.len())
        .filter(|&index| steps[index].part == Part::Between)
        .collect();
    println!("{sequences} sequences, {} between", found.len());
    let addrs = |indexes: &BTreeSet<usize>| -> Vec<String> {
        let addr = |index: &usize| format!("{:#x}", steps[*index].addr);
        indexes.iter().map(addr).collect()
    };
    assert_eq!(addrs(&found), addrs(&expected));
    assert!(sequences > 100);
}

const BASE: u64 = 0x1000;
const A0: u8 = 10;
const A5: u8 = 15;
const T1: u8 = 6;
const T3: u8 = 28;
const RET: u32 = 0x8067;

/// addi rd, rs1, 1
fn add(rd: u8, rs1: u8) -> u32 {
    i(OP_IMM, 0, rd, rs1, 1)
}

fn dead(words: &[u32], convention: Convention) -> u32 {
    let code: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    let dead = dead_registers(&code, BASE, BASE, 100, convention);
    let live = live_registers(&steps(&code, BASE), convention);
    assert_eq!(!dead, live[0], "both ways find the same");
    dead
}

fn mask(registers: &[u8]) -> u32 {
    registers
        .iter()
        .fold(0, |mask, register| mask | 1 << register)
}

#[test]
fn what_is_overwritten_before_it_is_read_is_dead() {
    // a5 := a0 + 1; ret
    assert_eq!(dead(&[add(A5, A0), RET], Convention::Unknown), mask(&[A5]));
    // a5 := a5 + 1: read first
    assert_eq!(dead(&[add(A5, A5), RET], Convention::Unknown), 0);
    // The zero register and the stack pointer never are.
    assert_eq!(dead(&[add(0, A0), add(2, A0), RET], Convention::Unknown), 0);
}

#[test]
fn all_ways_must_overwrite_it() {
    // beq a0, a0, +12; a5 := …; ret; (target) a5 and t1 := …; ret
    let both = [
        b(0, A0, A0, 12),
        add(A5, A0),
        RET,
        add(A5, A0),
        add(T1, A0),
        RET,
    ];
    assert_eq!(dead(&both, Convention::Unknown), mask(&[A5]));
    // A loop that reads it in its second iteration: add a0, a5; a5 := a0; beq back
    let round = [
        b(0, A0, A0, 8),
        add(A0, A5),
        add(A5, A0),
        b(0, A0, A0, -8),
        RET,
    ];
    assert_eq!(dead(&round, Convention::Unknown), 0);
}

#[test]
fn the_convention_is_supposed_only_if_told() {
    let call = j(RA, 0x100);
    assert_eq!(dead(&[call], Convention::Unknown), mask(&[RA]));
    // t0, t1, t3…t6, but not the static chain
    assert_eq!(dead(&[call], Convention::Standard), 0xF000_0062);
    assert_eq!(dead(&[RET], Convention::Unknown), 0);
    assert_eq!(dead(&[RET], Convention::Standard), 0xF003_F0E0);
    // By t0, to helpers with a convention of their own; through a register, perhaps a table.
    assert_eq!(dead(&[j(T0, 0x100)], Convention::Standard), mask(&[T0]));
    assert_eq!(dead(&[i(JALR, 0, 0, T0, 0)], Convention::Standard), 0);
    assert_eq!(dead(&[i(JALR, 0, 0, A5, 0)], Convention::Standard), 0);
}

#[test]
fn pairs_are_followed() {
    // auipc t1; jr 12(t1); …; t3 := 1; ret
    let code = [u(AUIPC, T1, 0), i(JALR, 0, 0, T1, 12), RET, add(T3, 0), RET];
    assert_eq!(dead(&code, Convention::Unknown), mask(&[T1, T3]));
}

#[test]
fn breakpoints_see_everything_and_the_kernel_the_arguments() {
    let (ebreak, ecall) = (0x0010_0073, 0x73);
    assert_eq!(dead(&[ebreak, add(A5, 0)], Convention::Standard), 0);
    let code = [ecall, add(T3, 0), add(A5, 0), RET];
    assert_eq!(dead(&code, Convention::Unknown), mask(&[T3]));
    // Nothing is known of bytes that are not an instruction.
    assert_eq!(dead(&[0x7F, add(A5, 0)], Convention::Standard), 0);
}

#[test]
fn patience_ends() {
    let code: Vec<u8> = [add(A0, A0), add(A0, A0), add(T3, 0), RET]
        .iter()
        .flat_map(|word| word.to_le_bytes())
        .collect();
    let of = |most| dead_registers(&code, BASE, BASE, most, Convention::Unknown);
    assert_eq!((of(2), of(3)), (0, mask(&[T3])));
    // Out of the code.
    assert_eq!(
        dead_registers(&code, BASE, BASE - 2, 9, Convention::Standard),
        0
    );
}
