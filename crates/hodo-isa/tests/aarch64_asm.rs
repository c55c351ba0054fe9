//! GNU's disassembler reads what each method of the assembler writes: name and operands. Ours reads the same
//! instructions, with the same registers.

#[path = "aarch64/mod.rs"]
mod common;
#[path = "aarch64/relaxed.rs"]
mod relaxed;
#[path = "aarch64/written.rs"]
mod written;

use std::collections::BTreeSet;

use common::{Line, Random, disassemble_code, no_objdump};
use hodo_isa::aarch64::{Insn, Kind, text};
use relaxed::Relaxed;
use written::{BASE, What, Written};

/// The number of times that each form is written.
const TIMES: usize = 150;

fn full(line: &Line) -> String {
    format!("{} {}", line.name, line.operands.replace('\t', " "))
        .trim()
        .to_owned()
}

/// Reads the lines of a piece that puts a number into a register, and returns it.
fn value(lines: &[Line], register: u8) -> u64 {
    let mut values = [None; 32];
    let number = |text: &str| {
        let text = text.trim_start_matches('#');
        match text.strip_prefix("0x") {
            Some(hex) => u64::from_str_radix(hex, 16).expect("a number"),
            None => text.parse().expect("a number"),
        }
    };
    for line in lines {
        let operands: Vec<&str> = line.operands.split(", ").collect();
        let index = |name: &str| name[1..].parse::<usize>().expect("a register");
        let limit = if operands[0].starts_with('w') {
            u64::MAX >> 32
        } else {
            u64::MAX
        };
        let shift = |at: usize| {
            operands.get(at).map_or(0, |text| {
                text.strip_prefix("lsl #")
                    .expect("a shift")
                    .parse::<u32>()
                    .expect("a number")
            })
        };
        let to = index(operands[0]);
        let result = match line.name.as_str() {
            "movz" => number(operands[1]) << shift(2),
            "movn" => !(number(operands[1]) << shift(2)),
            "movk" => {
                let old: u64 = values[to].expect("a number");
                old & !(0xFFFF << shift(2)) | number(operands[1]) << shift(2)
            }
            "orr" if operands[1].ends_with("zr") => number(operands[2]),
            "adr" | "adrp" => number(operands[1]),
            "add" | "sub" => {
                let old: u64 = values[index(operands[1])].expect("a number");
                let by = number(operands[2]) << shift(3);
                if line.name == "add" {
                    old.wrapping_add(by)
                } else {
                    old.wrapping_sub(by)
                }
            }
            other => panic!("{other} {}", line.operands),
        };
        values[to] = Some(result & limit);
    }
    values[usize::from(register)].expect("a number")
}

fn check(written: &Written<'_>, lines: &[Line], aliases: &[Line]) {
    let mut rest = lines;
    for (end, what) in &written.pieces {
        let done = lines.len() - rest.len();
        let count = rest.partition_point(|line| line.addr < BASE + *end as u64);
        let (these, others) = rest.split_at(count);
        rest = others;
        let texts: Vec<String> = these.iter().map(full).collect();
        match what {
            What::Is(expected) => assert_eq!(texts, *expected),
            What::Alias(expected) => {
                let texts: Vec<String> = aliases[done..done + count].iter().map(full).collect();
                assert_eq!(texts, [*expected]);
            }
            What::Puts(register, number, most) => {
                assert_eq!(value(these, *register), *number, "{texts:?}");
                assert!(these.len() <= *most, "{number:#x} by {texts:?}");
            }
        }
    }
    assert!(rest.is_empty(), "{} instructions more", rest.len());
}

/// The registers that operands name, but for the zero register, which some aliases leave out.
fn registers(operands: &str) -> BTreeSet<String> {
    let words = operands.split(|c: char| !c.is_ascii_alphanumeric());
    let is_register = |word: &&str| {
        let numbered = |kind: char| {
            word.strip_prefix(kind)
                .is_some_and(|number| number.parse::<u8>().is_ok())
        };
        "xwqd".chars().any(numbered) || matches!(*word, "sp" | "wsp")
    };
    words.filter(is_register).map(str::to_owned).collect()
}

/// Compares with our own text, which names some instructions by other aliases.
fn compare_ours(lines: &[Line]) {
    for line in lines {
        let insn = Insn::of(line.word, line.addr);
        assert_ne!(insn.kind, Kind::Invalid, "{line:?}");
        if insn.kind == Kind::Scalable {
            continue;
        }
        let ours = text(&line.word.to_le_bytes(), line.addr);
        let (name, operands) = ours.split_once(' ').unwrap_or((&ours, ""));
        assert!(name != ".inst" && !name.starts_with(".byte"), "{line:?}");
        assert_eq!(
            registers(operands),
            registers(&line.operands),
            "{line:?} {ours}"
        );
    }
}

#[test]
fn what_is_written_is_read() {
    if no_objdump() {
        return;
    }
    let mut random = Random(64);
    let mut written = Written::new(&mut random);
    for round in 0..TIMES {
        written.all(round);
    }
    let lines = disassemble_code(&written.bytes, BASE, false);
    let aliases = disassemble_code(&written.bytes, BASE, true);
    check(&written, &lines, &aliases);
    compare_ours(&aliases);
    assert!(lines.len() > 10_000, "{}", lines.len());
    println!(
        "{} pieces of code, {} lines",
        written.pieces.len(),
        lines.len()
    );
}

#[test]
fn what_is_relaxed_is_read() {
    if no_objdump() {
        return;
    }
    let mut random = Random(65);
    let (mut long, mut all) = (0, 0);
    for parts in [1, 2, 10, 100, 500, 1000] {
        for _ in 0..3 {
            let relaxed = Relaxed::new(&mut random, parts);
            let lines = disassemble_code(&relaxed.bytes, BASE, false);
            long += relaxed.check(&lines);
            all += lines.len();
        }
    }
    assert!(long > 100, "{long}");
    println!("{all} lines, {long} branches that are long");
}
