//! Compares the registers that instructions read and write with the output of GNU's disassembler: the order of
//! operands, and the names of instructions.

#[path = "riscv64/mod.rs"]
mod common;

use common::{Line, disassemble, forms, halves, no_objdump};
use hodo_isa::riscv64::Kind;
use hodo_isa::riscv64::decode::Insn;
use hodo_isa::riscv64::regs::{FLOAT_NAMES, NAMES, Registers};

const BASE: u64 = 0x1_0000_0000;

/// Returns the register of this name; for vectors, the first one of the group.
fn register(name: &str) -> Registers {
    let mut set = Registers::default();
    if let Some(number) = NAMES.iter().position(|known| *known == name) {
        set.x = 1 << number & !1;
    } else if let Some(number) = FLOAT_NAMES.iter().position(|known| *known == name) {
        set.f = 1 << number;
    } else if let Some(number) = name.strip_prefix('v')
        && let Ok(number) = number.parse::<u32>()
    {
        set.v = 1 << number;
    }
    set
}

fn add(set: &mut Registers, other: Registers) {
    set.x |= other.x;
    set.f |= other.f;
    set.v |= other.v;
}

/// How the first operand is used.
#[derive(Clone, Copy, PartialEq, Eq)]
enum First {
    Read,
    Written,
    Both,
}

fn first(name: &str) -> First {
    const READS: [&str; 25] = [
        "beq",
        "bne",
        "blt",
        "bge",
        "bltu",
        "bgeu",
        "sb",
        "sh",
        "sw",
        "sd",
        "fsw",
        "fsd",
        "c.beqz",
        "c.bnez",
        "c.jr",
        "c.jalr",
        "c.sw",
        "c.sd",
        "c.swsp",
        "c.sdsp",
        "c.fsd",
        "c.fsdsp",
        "sfence.vma",
        "sinval.vma",
        "c.nop",
    ];
    const CHANGES: [&str; 16] = [
        "c.addi",
        "c.addiw",
        "c.addi16sp",
        "c.slli",
        "c.srli",
        "c.srai",
        "c.slli64",
        "c.srli64",
        "c.srai64",
        "c.andi",
        "c.sub",
        "c.xor",
        "c.or",
        "c.and",
        "c.subw",
        "c.addw",
    ];
    let fused = [
        "vmacc.",
        "vnmsac.",
        "vmadd.",
        "vnmsub.",
        "vwmacc",
        "vfmacc.",
        "vfnmacc.",
        "vfmsac.",
        "vfnmsac.",
        "vfmadd.",
        "vfnmadd.",
        "vfmsub.",
        "vfnmsub.",
        "vfwmacc.",
        "vfwnmacc.",
        "vfwmsac.",
        "vfwnmsac.",
    ];
    let stores = [
        "vse", "vsm.", "vss", "vsuxei", "vsoxei", "vsuxseg", "vsoxseg", "vs1r", "vs2r", "vs4r",
        "vs8r",
    ];
    let sets = ["vset", "vsext", "vssra", "vssrl", "vssub"];
    let starts = |all: &[&str]| all.iter().any(|start| name.starts_with(start));
    if READS.contains(&name)
        || starts(&stores) && !starts(&sets)
        || starts(&["cbo.", "prefetch.", "hfence.", "hinval."])
    {
        First::Read
    } else if CHANGES.contains(&name) || name == "c.add" || starts(&fused) {
        First::Both
    } else {
        First::Written
    }
}

/// Returns the registers that are read and written according to the text.
fn told(line: &Line) -> (Registers, Registers) {
    let (mut reads, mut writes) = Default::default();
    let name = line.name.as_str();
    for (index, operand) in line.operands.split(',').enumerate() {
        let operand = operand.trim_end_matches(".t");
        let (operand, in_memory) = match operand.split_once('(') {
            Some((_, base)) => (base.trim_end_matches(')'), true),
            None => (operand, false),
        };
        let register = register(operand);
        let how = match index {
            0 if !in_memory => first(name),
            _ => First::Read,
        };
        if how != First::Written {
            add(&mut reads, register);
        }
        if how != First::Read {
            add(&mut writes, register);
        }
    }
    if name == "c.jalr" {
        writes.x |= 1 << 1;
    }
    (reads, writes)
}

/// Returns whether our registers are those in the text. For vectors, ours may include the groups that may begin there.
fn same(ours: Registers, told: Registers) -> bool {
    let mut groups = 0u32;
    for number in (0..32).filter(|number| told.v & 1 << number != 0) {
        groups |= 0xFF << number;
    }
    ours.x == told.x && ours.f == told.f && told.v & !ours.v == 0 && ours.v & !groups == 0
}

fn run(code: &[u8]) {
    if no_objdump() {
        return;
    }
    let mut compared = 0;
    let mut different = 0;
    disassemble(code, BASE, |line| {
        let insn = Insn::new(&code[(line.addr - BASE) as usize..], line.addr);
        if line.name.starts_with('.') || insn.kind == Kind::Invalid {
            return;
        }
        compared += 1;
        let (reads, writes) = told(&line);
        if !same(insn.reads(), reads) || !same(insn.writes(), writes) {
            different += 1;
            if different < 40 {
                println!(
                    "{:08x} {} {}: reads {:x?}, writes {:x?}",
                    insn.word,
                    line.name,
                    line.operands,
                    insn.reads(),
                    insn.writes()
                );
            }
        }
    });
    println!("{compared} compared");
    assert_eq!(different, 0);
    assert!(compared > 10_000, "only {compared}");
}

#[test]
fn registers_of_instructions_of_16_bits() {
    run(&halves());
}

#[test]
fn registers_of_instructions_of_32_bits() {
    run(&forms());
}
