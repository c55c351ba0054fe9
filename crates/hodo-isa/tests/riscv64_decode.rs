//! Compares the decoder with GNU's disassembler: names, lengths, operands, targets.

#[path = "riscv64/mod.rs"]
mod common;

use std::collections::BTreeMap;
use std::path::PathBuf;

use common::{Line, Random, disassemble, forms, halves, library, no_objdump, samples, section};
use hodo_isa::riscv64::Kind;
use hodo_isa::riscv64::decode::Insn;
use hodo_isa::riscv64::text;

/// The address of the code.
const BASE: u64 = 0x1_0000_0000;

/// The differences of each kind, with an example.
#[derive(Default)]
struct Differences {
    seen: BTreeMap<String, (usize, String)>,
    compared: usize,
}

impl Differences {
    fn add(&mut self, what: String, example: String) {
        self.seen.entry(what).or_insert((0, example)).0 += 1;
    }

    fn none(&self) {
        let mut all = String::new();
        for (what, (count, example)) in &self.seen {
            all.push_str(&format!("{count:6} {what}: {example}\n"));
        }
        assert!(
            self.seen.is_empty(),
            "{} of {} differ:\n{all}",
            self.seen.values().map(|(count, _)| count).sum::<usize>(),
            self.compared
        );
    }
}

/// Returns our text in the disassembler's format.
fn ours(code: &[u8], addr: u64) -> (String, String) {
    let text = text(code, addr);
    let (name, operands) = text.split_once(' ').unwrap_or((&text, ""));
    (
        name.to_owned(),
        operands.replace(", ", ",").replace("0x", ""),
    )
}

/// Returns the disassembler's text, with our names where they differ on purpose.
fn translated(insn: &Insn, line: &Line) -> (String, String) {
    let (name, operands) = (line.name.as_str(), line.operands.replace("0x", ""));
    let same = |name: &str| (name.to_owned(), operands.clone());
    match name {
        // An addition to the zero register.
        "c.addi" if insn.rd() == 0 => {
            let value = operands.trim_start_matches("zero,");
            let value = if value == "0" { "" } else { value };
            ("c.nop".to_owned(), value.to_owned())
        }
        // Shifts by zero.
        "c.slli64" | "c.srli64" | "c.srai64" => {
            let name = name.trim_end_matches("64");
            (name.to_owned(), format!("{operands},0"))
        }
        // The rounding mode does not matter for exact conversions.
        "fcvt.d.s" | "fcvt.d.w" | "fcvt.d.wu" if insn.word >> 12 & 7 == 0 => {
            (name.to_owned(), format!("{operands},rne"))
        }
        // The disassembler has names for the registers of operating systems, too.
        _ if insn.kind == Kind::Csr => {
            let (rd, rest) = operands.split_once(',').expect("three operands");
            let (_, rs1) = rest.split_once(',').expect("three operands");
            let number = insn.csr().expect("it has one");
            let known = [
                1, 2, 3, 8, 9, 10, 15, 21, 0xC00, 0xC01, 0xC02, 0xC20, 0xC21, 0xC22,
            ];
            match known.contains(&number) {
                true => same(name),
                false => (name.to_owned(), format!("{rd},{number:x},{rs1}")),
            }
        }
        _ => same(name),
    }
}

/// Returns whether it is right that only one of the two knows this instruction.
fn differently_known(insn: &Insn, line: &Line) -> bool {
    if insn.kind == Kind::Invalid {
        // Reserved rounding modes fault; so does this form if it moves the stack pointer by zero.
        return line.operands.ends_with(",unknown") || line.name == "c.addi16sp";
    }
    let bits = |low: u32, count: u32| insn.word >> low & ((1 << count) - 1);
    match insn.kind {
        // Processors ignore the other fields.
        Kind::Fence => bits(7, 5) != 0 || bits(15, 5) != 0 || bits(28, 4) != 0,
        Kind::FenceI => insn.word >> 7 != 0x20,
        // These are newer than some versions of the disassembler.
        Kind::Atomic(_) => bits(27, 5) == 0b00101,
        Kind::Plain => bits(25, 7) == 0b000_0111 && bits(0, 7) == 0x33,
        // For exact conversions, every rounding mode is valid.
        Kind::Float => matches!(bits(20, 12), 0x420 | 0xD20 | 0xD21) && bits(12, 3) != 0,
        // Instructions for hypervisors.
        Kind::Privileged => {
            line.name == ".4byte" && matches!(bits(25, 7), 0x11 | 0x13 | 0x31 | 0x33)
        }
        _ => false,
    }
}

fn compare(code: &[u8], base: u64, line: &Line, differences: &mut Differences) {
    let at = (line.addr - base) as usize;
    let code = &code[at..];
    let insn = Insn::new(code, line.addr);
    differences.compared += 1;
    let (name, operands) = ours(code, line.addr);
    let example = format!(
        "{:08x} {} {} or {name} {operands}",
        insn.word, line.name, line.operands
    );
    if usize::from(insn.len) != line.len {
        differences.add(format!("length {}", insn.len), example);
        return;
    }
    let unknown = line.name.starts_with('.');
    if unknown != (insn.kind == Kind::Invalid) {
        if !differently_known(&insn, line) {
            differences.add(format!("{name} or {}", line.name), example);
        }
        return;
    }
    if !unknown && (name, operands) != translated(&insn, line) {
        differences.add(line.name.clone(), example);
    }
}

fn run(code: &[u8]) {
    run_at(code, BASE);
}

fn run_at(code: &[u8], base: u64) {
    if no_objdump() {
        return;
    }
    let mut differences = Differences::default();
    disassemble(code, base, |line| {
        compare(code, base, &line, &mut differences)
    });
    println!("{} instructions compared", differences.compared);
    differences.none();
}

#[test]
fn all_instructions_of_16_bits() {
    run(&halves());
}

#[test]
fn all_forms_of_32_bits() {
    run(&forms());
}

#[test]
fn words_at_random() {
    let mut random = Random(6);
    let mut code = Vec::new();
    for _ in 0..100_000 * samples() {
        // Words of all lengths.
        let bytes = random.next().to_le_bytes();
        code.extend_from_slice(&bytes);
    }
    code.extend_from_slice(&[0x13, 0, 0, 0].repeat(8));
    run(&code);
}

/// The C library, and the files that `HODO_RISCV64_FILES` names, separated by colons.
#[test]
fn code_of_real_programs() {
    let more = std::env::var("HODO_RISCV64_FILES").unwrap_or_default();
    let more = more
        .split(':')
        .filter(|path| !path.is_empty())
        .map(PathBuf::from);
    for path in library().into_iter().chain(more) {
        for name in [".plt", ".text"] {
            let (code, addr) = section(&path, name).expect("an ELF file with code");
            println!("{} {name}", path.display());
            run_at(&code, addr);
        }
    }
}

#[test]
fn code_that_is_cut_off() {
    for (code, len) in [
        (&[0x13][..], 1),
        (&[0x13, 0], 2),
        (&[0x13, 0, 0], 3),
        (&[], 0),
    ] {
        let insn = Insn::new(code, BASE);
        assert_eq!((insn.kind, insn.len), (Kind::Invalid, len), "{code:?}");
    }
}
