//! Compares the decoder with GNU's disassembler: which words are instructions, their names, their targets, which
//! general registers they use, and whether they use the flags.
//!
//! The text of operands is not compared. Operands of branches are compared as addresses, and all others by the
//! registers that they contain.

#[path = "aarch64/mod.rs"]
mod common;

use std::collections::BTreeMap;

use common::{Line, Random, disassemble, files, no_objdump, samples};
use hodo_isa::aarch64::regs::{FLAGS, LINK, STACK, Set};
use hodo_isa::aarch64::scan::Flow;
use hodo_isa::aarch64::{Insn, Kind, text};

/// The differences of each kind, with an example.
#[derive(Default)]
struct Differences {
    seen: BTreeMap<String, (usize, String)>,
    compared: usize,
}

impl Differences {
    fn add(&mut self, what: &str, insn: &Insn, line: &Line) {
        let entry = self.seen.entry(format!("{what} of {}", line.name));
        let ours = text(&insn.word.to_le_bytes(), insn.addr);
        let example = format!(
            "{:08x} {} {} or {ours}, {insn:x?}",
            insn.word, line.name, line.operands
        );
        entry.or_insert((0, example)).0 += 1;
    }

    fn none(&self) {
        let mut all = String::new();
        for (what, (count, example)) in &self.seen {
            all.push_str(&format!("{count:6} {what}: {example}\n"));
        }
        let count = self.seen.values().map(|(count, _)| count).sum::<usize>();
        assert!(
            self.seen.is_empty(),
            "{count} of {} differ:\n{all}",
            self.compared
        );
    }
}

/// Returns the general registers in operands, including the stack pointer.
fn registers(operands: &str) -> Set {
    let words = operands.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let set = |word: &str| -> Set {
        if matches!(word, "sp" | "wsp") {
            return STACK;
        }
        let number = word
            .strip_prefix(['x', 'w'])
            .and_then(|n| n.parse::<u32>().ok());
        number.filter(|&n| n < 31).map_or(0, |n| 1 << n)
    };
    words.map(set).fold(0, |all, one| all | one)
}

/// Names of instructions that set the flags.
const SETS: [&str; 22] = [
    "adds", "subs", "cmp", "cmn", "ands", "bics", "tst", "negs", "adcs", "sbcs", "ngcs", "ccmp",
    "ccmn", "fcmp", "fcmpe", "fccmp", "fccmpe", "cfinv", "rmif", "setf8", "setf16", "fjcvtzs",
];
/// Names of instructions that use the flags, except branches.
const ASKS: [&str; 24] = [
    "csel", "csinc", "csinv", "csneg", "cset", "csetm", "cinc", "cinv", "cneg", "ccmp", "ccmn",
    "fccmp", "fccmpe", "fcsel", "adc", "sbc", "adcs", "sbcs", "ngc", "ngcs", "cfinv", "rmif",
    "setf8", "setf16",
];

/// Returns whether instructions of this name have a general register as first operand and do not write it.
fn leaves_first(name: &str) -> bool {
    const NAMES: [&str; 14] = [
        "cmp", "cmn", "tst", "ccmp", "ccmn", "cbz", "cbnz", "tbz", "tbnz", "br", "blr", "ret",
        "rmif", "braa",
    ];
    // Exclusive stores write a register that says whether they succeeded.
    let exclusive = name.starts_with("stx") || name.starts_with("stlx");
    NAMES.contains(&name)
        || name.starts_with("st") && !exclusive
        || name.starts_with("bra")
        || name.starts_with("blra")
}

/// Compares the effects of an instruction on registers and flags.
fn compare_effects(insn: &Insn, line: &Line, differences: &mut Differences) {
    let effects = insn.effects();
    let ours = (effects.reads | effects.changes) & !FLAGS;
    let theirs = registers(&line.operands);
    match insn.kind {
        // The operands do not show which registers they use.
        Kind::SystemCall
        | Kind::Breakpoint
        | Kind::Hint
        | Kind::Privileged
        | Kind::TransactionOther => return,
        Kind::Scalable | Kind::Matrix => {
            if theirs & !ours != 0 {
                differences.add("registers", insn, line);
            }
            return;
        }
        _ => {}
    }
    let link = match insn.kind {
        Kind::BranchLink | Kind::CallRegister => 1 << 30,
        // Without an operand, `ret` uses the usual register.
        Kind::Return if line.operands.is_empty() => 1 << 30,
        _ => 0,
    };
    // Instructions that authenticate the return address use the stack pointer for it.
    let link = link
        | if insn.kind == Kind::Return && insn.bit(11) {
            STACK
        } else {
            0
        };
    if ours != theirs | link {
        differences.add("registers", insn, line);
    }
    let first = line.operands.split(',').next().unwrap_or_default();
    let written = if leaves_first(&line.name) {
        0
    } else {
        registers(first)
    };
    let stores_first = first.starts_with('[')
        || matches!(
            insn.kind,
            Kind::WriteSystem | Kind::System | Kind::MemorySteps
        );
    if !stores_first && written & !effects.writes != 0 {
        differences.add("result", insn, line);
    }
    let base = line.operands.split('[').nth(1).map_or(0, registers);
    let moved =
        base & effects.writes & !registers(line.operands.split('[').next().unwrap_or_default());
    let moves = line.operands.contains("]!") || line.operands.contains("],");
    let uses_memory = insn.memory().is_some();
    if uses_memory
        && (moved != 0) != moves
        && !matches!(insn.kind, Kind::Tags | Kind::MemorySteps)
        && base & written == 0
    {
        differences.add("base", insn, line);
    }
    let sets = SETS.contains(&line.name.as_str());
    if (effects.writes & FLAGS != 0) != sets {
        differences.add("flags", insn, line);
    }
    let asks = ASKS.contains(&line.name.as_str())
        || line.name.starts_with("b.")
        || line.name.starts_with("bc.");
    if (effects.reads & FLAGS != 0) != asks {
        differences.add("use of flags", insn, line);
    }
}

/// Compares the target of an instruction, or the address that it contains.
fn compare_target(insn: &Insn, line: &Line, differences: &mut Differences) {
    let last = line.operands.rsplit([',', ' ']).next().unwrap_or_default();
    let theirs = u64::from_str_radix(last.trim_start_matches("0x"), 16).ok();
    if insn.target().is_some() && insn.target() != theirs {
        differences.add("address", insn, line);
    }
    let expected = match line.name.as_str() {
        "b" | "b.al" | "b.nv" => Flow::Jump(theirs.unwrap_or_default()),
        "bl" => Flow::Call(theirs.unwrap_or_default()),
        "cbz" | "cbnz" | "tbz" | "tbnz" => Flow::Branch(theirs.unwrap_or_default()),
        name if name.starts_with("b.") => Flow::Branch(theirs.unwrap_or_default()),
        "br" | "braa" | "brab" | "braaz" | "brabz" => Flow::IndirectJump,
        "blr" | "blraa" | "blrab" | "blraaz" | "blrabz" => Flow::IndirectCall,
        "ret" | "retaa" | "retab" => {
            let by = match line.operands.strip_prefix('x') {
                Some(number) => number.parse().expect("a register"),
                None => LINK,
            };
            Flow::returning(by, LINK)
        }
        "udf" | "hlt" | "hvc" | "smc" | "eret" | "eretaa" | "eretab" | "drps" | "dcps1"
        | "dcps2" | "dcps3" => Flow::Fault,
        "brk" if matches!(insn.flow(), Flow::Fault | Flow::Next) => insn.flow(),
        _ => Flow::Next,
    };
    if insn.flow() != expected {
        differences.add("flow", insn, line);
    }
}

fn compare(line: &Line, differences: &mut Differences) {
    let insn = Insn::of(line.word, line.addr);
    differences.compared += 1;
    if line.name.starts_with('.') {
        return;
    }
    if insn.kind == Kind::Invalid {
        differences.add("class", &insn, line);
        return;
    }
    compare_target(&insn, line, differences);
    compare_effects(&insn, line, differences);
    if !has_name(&insn, line) {
        differences.add("name", &insn, line);
    }
}

/// Returns whether our text begins with the same name. Instructions of scalable vectors have no name in it.
fn has_name(insn: &Insn, line: &Line) -> bool {
    let text = text(&line.word.to_le_bytes(), line.addr);
    let name = text.split(' ').next().unwrap_or_default();
    let synonyms = [
        // Aliases for copying elements of vector registers, and for widening elements without a shift.
        ("dup", "mov"),
        ("uxtl", "ushll"),
        ("uxtl2", "ushll2"),
        ("sxtl", "sshll"),
        ("sxtl2", "sshll2"),
        ("dc", "sys"),
        // A shifted zero.
        ("movz", "mov"),
    ];
    matches!(insn.kind, Kind::Scalable | Kind::Matrix) && name == ".inst"
        || name == line.name
        || synonyms.contains(&(line.name.as_str(), name))
}

#[test]
fn samples_of_all_names() {
    let mut differences = Differences::default();
    samples().for_each(|line| compare(&line, &mut differences));
    assert!(
        differences.compared > 1000,
        "{} samples",
        differences.compared
    );
    differences.none();
}

#[test]
fn code_of_real_programs() {
    if no_objdump() {
        return;
    }
    for path in files() {
        for section in [".plt", ".text"] {
            let mut differences = Differences::default();
            disassemble(&path, section, |line| compare(&line, &mut differences));
            println!(
                "{} {section}: {} instructions",
                path.display(),
                differences.compared
            );
            differences.none();
        }
    }
}

/// Any word can be decoded: it has a text, and it may change every register that it always writes.
#[test]
fn words_at_random() {
    let mut random = Random(7);
    let mut known = 0;
    for _ in 0..300_000 {
        let word = random.next() as u32;
        let insn = Insn::of(word, 0x1000);
        let text = text(&word.to_le_bytes(), 0x1000);
        assert!(!text.is_empty(), "{word:08x}");
        let _ = (insn.effects(), insn.memory(), insn.flow());
        let effects = insn.effects();
        assert_eq!(effects.writes & !effects.changes, 0, "{word:08x} {text}");
        known += usize::from(insn.kind != Kind::Invalid);
    }
    // About a third of all words is unallocated.
    assert!((100_000..250_000).contains(&known), "{known} of 300,000");
}
