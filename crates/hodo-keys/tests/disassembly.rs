//! What a branch is in the code: one instruction and nothing else.
#![cfg(all(target_arch = "x86_64", target_os = "linux"))]

mod building;

use building::elf::{Elf, Entry};
use building::{Build, run};
use iced_x86::{Code, FlowControl, Instruction, OpKind};

const PAIRS: [&str; 5] = ["leaf", "loop", "likely", "frame", "traced"];

/// What an instruction does, wherever it is: branches inside the function are shown with the index of their target.
fn meaning(instruction: &Instruction, all: &[Instruction]) -> String {
    let mut text = format!("{:?}", instruction.code());
    if matches!(instruction.op0_kind(), OpKind::NearBranch64) {
        // A branch has two or six bytes, depending on the distance.
        text = format!("{:?}", instruction.mnemonic());
        let target = instruction.near_branch_target();
        match all.iter().position(|other| other.ip() >= target) {
            Some(place) if all[0].ip() <= target => text += &format!(" #{place}"),
            _ => text += &format!(" {target:#x}"),
        }
        return text;
    }
    for operand in 0..instruction.op_count() {
        text += &match instruction.op_kind(operand) {
            OpKind::Register => format!(" {:?}", instruction.op_register(operand)),
            OpKind::Memory if instruction.is_ip_rel_memory_operand() => {
                format!(" [{:#x}]", instruction.ip_rel_memory_address())
            }
            OpKind::Memory => format!(
                " [{:?}+{:?}*{}+{:#x}]",
                instruction.memory_base(),
                instruction.memory_index(),
                instruction.memory_index_scale(),
                instruction.memory_displacement64()
            ),
            _ => format!(" {:#x}", instruction.immediate(operand)),
        };
    }
    text
}

fn is_nop(instruction: &Instruction) -> bool {
    matches!(
        instruction.code(),
        Code::Nopw | Code::Nopd | Code::Nopq | Code::Nop_rm16 | Code::Nop_rm32 | Code::Nop_rm64
    )
}

/// Removes the code that a branch leads to, up to the jump or return at its end. If the compiler has not put it after
/// all other code (it does not move it past the end of a loop that contains it), the jump around it is removed, too.
fn without_cold(mut all: Vec<Instruction>, branch: &Entry) -> Vec<Instruction> {
    let ends = |one: &Instruction| {
        matches!(
            one.flow_control(),
            FlowControl::UnconditionalBranch | FlowControl::Return
        )
    };
    let start = all
        .iter()
        .position(|one| one.ip() == branch.target)
        .expect("it leads into the function");
    let size = 1 + all[start..].iter().position(ends).expect("an end");
    let after = all.get(start + size).map(Instruction::ip);
    all.drain(start..start + size);
    if let Some(after) = after {
        let around = &all[start - 1];
        assert!(ends(around), "the code before goes on into it");
        if around.near_branch_target() == after {
            all.remove(start - 1);
        }
    }
    all
}

/// The function with a branch must equal the one without it, plus one nop and the out-of-line code.
fn compare(elf: &Elf, entries: &[Entry], pair: &str, level: &str) {
    let with = elf.function(&format!("{pair}_with"));
    let without = elf.function(&format!("{pair}_without"));
    let mine: Vec<&Entry> = entries
        .iter()
        .filter(|entry| with.iter().any(|one| one.ip() == entry.code))
        .collect();
    let [branch] = mine[..] else {
        panic!("{pair} at {level}: {mine:?}")
    };
    assert!(
        !branch.is_jump() && branch.is_right(),
        "{pair} at {level}: {branch:?}"
    );
    // Other nops align loops.
    let plain =
        |all: Vec<Instruction>| -> Vec<_> { all.into_iter().filter(|one| !is_nop(one)).collect() };
    let meanings = |all: Vec<Instruction>| -> Vec<String> {
        let mut meanings: Vec<_> = all.iter().map(|one| meaning(one, &all)).collect();
        if pair == "traced" {
            // The out-of-line code contains a call, so registers may differ: only the sequence of instructions is
            // compared.
            for text in &mut meanings {
                text.truncate(text.find(' ').unwrap_or(text.len()));
            }
        }
        meanings
    };
    let with = meanings(without_cold(plain(with), branch));
    let without = meanings(plain(without));
    assert!(
        with == without,
        "{pair} at {level}:\n{with:#?}\n{without:#?}"
    );
}

fn check(level: &str) {
    let program = Build::new("hot.rs", &format!("hot-{level}"))
        .with(&format!("-C opt-level={level} -C codegen-units=1"))
        .build();
    run(&program, &[]);
    let elf = Elf::read(&program);
    let entries = elf.entries();
    assert_eq!(entries.len(), PAIRS.len(), "at {level}: {entries:?}");
    for pair in PAIRS {
        compare(&elf, &entries, pair, level);
    }
}

#[test]
fn a_disabled_branch_adds_one_nop_to_the_function() {
    for level in ["1", "2", "3", "s", "z"] {
        check(level);
    }
}
