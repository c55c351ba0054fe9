//! GNU's disassembler reads what each method of the assembler and each format of its encoders writes: name and
//! operands.

#[path = "riscv64/mod.rs"]
mod common;
#[path = "riscv64/relaxed.rs"]
mod relaxed;
#[path = "riscv64/written.rs"]
mod written;

use common::{Random, disassemble, no_objdump};
use relaxed::Relaxed;
use written::{BASE, Choose, GROUPS, Line, Written, check};

/// The number of times that each form is written.
const TIMES: usize = 200;

impl Choose for Random {
    fn below(&mut self, end: u64) -> u64 {
        Random::below(self, end)
    }
}

fn lines(code: &[u8]) -> Vec<Line> {
    let mut lines = Vec::new();
    disassemble(code, BASE, |line| {
        lines.push(Line {
            addr: line.addr,
            len: line.len,
            name: line.name,
            operands: line.operands,
        });
    });
    lines
}

#[test]
fn what_is_written_is_read() {
    if no_objdump() {
        return;
    }
    let mut random = Random(18);
    let mut written = Written::new(&mut random);
    for round in 0..TIMES {
        for group in 0..GROUPS {
            written.group(group, round);
        }
    }
    for gap in [0, 2, 30, 32, 1022, 2040, 2042, 4086] {
        written.forward(gap);
    }
    let lines = lines(&written.bytes);
    check(&written, &lines);
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
    let mut random = Random(19);
    let (mut wide, mut short, mut all) = (0, 0, 0);
    for parts in [1, 2, 10, 100, 500, 1500, 3000] {
        for _ in 0..4 {
            let relaxed = Relaxed::new(&mut random, parts);
            let lines = lines(&relaxed.bytes);
            wide += relaxed.check(&lines);
            short += lines.iter().filter(|line| line.len == 2).count();
            all += lines.len();
        }
    }
    assert!(wide > 100 && short > 1000, "{wide} {short}");
    println!("{all} lines, {short} of them short, {wide} branches that are long");
}
