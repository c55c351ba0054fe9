//! Code of the RISC-V assembler with any operands, and code whose branches become as long as they must: our
//! disassembler, which tests compare with GNU's, must read what was meant.
#![no_main]

#[path = "../../crates/hodo-isa/tests/riscv64/relaxed.rs"]
mod relaxed;
#[path = "../../crates/hodo-isa/tests/riscv64/written.rs"]
mod written;

use hodo_fuzz::Bytes;
use hodo_isa::riscv64::decode::Insn;
use hodo_isa::riscv64::text;
use libfuzzer_sys::fuzz_target;

use relaxed::Relaxed;
use written::{BASE, Choose, GROUPS, Line, Written, check};

impl Choose for Bytes<'_> {
    fn below(&mut self, end: u64) -> u64 {
        match end {
            0..=0xFF => u64::from(u8::from_le_bytes(self.take())) % end,
            0x100..=0xFFFF => u64::from(u16::from_le_bytes(self.take())) % end,
            _ => u64::from_le_bytes(self.take()) % end,
        }
    }
}

/// What our disassembler reads, as GNU's writes it.
fn lines(code: &[u8]) -> Vec<Line> {
    let mut lines = Vec::new();
    let mut at = 0;
    while at < code.len() {
        let addr = BASE + at as u64;
        let len = usize::from(Insn::new(&code[at..], addr).len);
        let text = text(&code[at..], addr);
        let (name, operands) = text.split_once(' ').unwrap_or((&text, ""));
        let (name, operands) = match name {
            "c.nop" => ("c.addi", "zero,0".to_owned()),
            _ => (name, operands.replace(", ", ",")),
        };
        lines.push(Line {
            addr,
            len,
            name: name.to_owned(),
            operands,
        });
        at += len;
    }
    lines
}

fuzz_target!(|bytes: &[u8]| {
    let mut choose = Bytes(bytes);
    if choose.below(2) == 0 {
        let (group, round, gap) = (choose.below(10), choose.below(40), choose.below(2044));
        let mut written = Written::new(&mut choose);
        match group as usize {
            group if group < GROUPS => written.group(group, round as usize),
            _ => written.forward(2 * gap as usize),
        }
        check(&written, &lines(&written.bytes));
    } else {
        let parts = choose.below(2500) as usize;
        let relaxed = Relaxed::new(&mut choose, parts);
        relaxed.check(&lines(&relaxed.bytes));
    }
});
