//! Files for RISC-V: functions, `main` of stripped programs, frames, callers on real stacks, variables.

mod linked;
mod stacks;

use std::path::Path;
use std::process::Command;

use hodo_abi::Isa;
use hodo_symbols::{Cfa, Debug, Registers, Shown, Unwinder, Word, symbols};
use linked::Machine;

const MACHINE: Machine = Machine {
    name: "riscv64",
    source: PROGRAM,
    flags: &["-w", "-fasynchronous-unwind-tables"],
};

/// `report` writes the registers x1 to x31, the address of one of its own instructions, and the stack from the stack
/// pointer upwards.
const PROGRAM: &str = r#"
#include <unistd.h>

int volatile many = 3;

__attribute__((noipa)) void report(void) {
    unsigned long words[32];
    unsigned long *at = words;
    __asm__ volatile(
        ".irp n, 1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31\n"
        "sd x\\n, 8 * (\\n - 1)(%0)\n"
        ".endr\n"
        "1: auipc t0, 0\n"
        "sd t0, 8 * 31(%0)\n"
        :: "r"(at) : "t0", "memory");
    write(1, words, sizeof words);
    write(1, (void *)words[1], 4096);
}

__attribute__((noipa)) int inner(int count, char const *text) {
    long room[20];
    room[count] = text[0];
    report();
    return room[count] + count;
}

__attribute__((noipa)) int sized(int count) {
    char room[count * 16];
    room[count] = 0;
    return inner(count, room) + room[1] + many;
}

/* Keeps its return address below the room for its arguments. */
__attribute__((noipa)) int listed(int count, ...) {
    __builtin_va_list all;
    __builtin_va_start(all, count);
    int sum = inner(count, __builtin_va_arg(all, char *)) + 1;
    __builtin_va_end(all);
    return sum;
}

__attribute__((noipa)) int leaf(int count) {
    return count + many;
}

int main(void) {
    return sized(many) == 99;
}

#ifdef WRAPPED
// Newer C libraries begin programs at fixed addresses like this.
__asm__(
    ".globl _start\n"
    ".type _start, @function\n"
    "_start: .cfi_startproc\n"
    ".cfi_undefined ra\n"
    "mv a5, a0\n"
    "lla a0, wrapped\n"
    "ld a1, 0(sp)\n"
    "addi a2, sp, 8\n"
    "li a3, 0\n"
    "call __libc_start_main\n"
    "ebreak\n"
    "wrapped: tail main\n"
    ".cfi_endproc\n"
    ".size _start, . - _start\n");
#endif
"#;

#[test]
fn a_stripped_program_has_a_main() {
    let ways = [
        ("pie", &["-O2"][..]),
        ("plain", &["-O2", "-no-pie"]),
        ("static", &["-O2", "-static"]),
        ("unrelaxed", &["-O2", "-mno-relax", "-Wl,--no-relax"]),
        ("exported", &["-O2", "-rdynamic"]),
        ("wrapped", &["-O2", "-no-pie", "-nostartfiles", "-DWRAPPED"]),
    ];
    MACHINE.has_main(&ways, |name| {
        assert!(!name.starts_with(['$', '.']), "{name}");
    });
}

#[test]
fn frames_are_relative_to_both_registers() {
    let Some(file) = MACHINE.compiled("frames", &["-O1"]) else {
        return;
    };
    let bytes = std::fs::read(&file).expect("a program");
    assert_eq!(hodo_symbols::isa_of(&bytes), Some(Isa::Riscv64));
    let symbols = symbols(&bytes).expect("symbols");
    let function = |name: &str| {
        let mut all = symbols.functions.iter();
        all.find(|f| f.name == name).expect("the function")
    };
    for name in ["report", "inner", "sized", "main"] {
        let function = function(name);
        assert!(!function.odd_entry, "{name}");
        let rows = symbols.frames.rows(function.addr);
        assert_eq!((rows[0].addr, rows[0].cfa), (function.addr, Cfa::Stack(0)));
        assert!(rows.len() > 1, "{name}");
        assert_eq!(symbols.frames.return_address(function.addr), Some(8));
        let moved = |cfa| matches!(cfa, Cfa::Stack(1..) | Cfa::Frame(_));
        assert!(rows.iter().any(|row| moved(row.cfa)), "{name}");
    }
    let kept = |name| symbols.frames.return_address(function(name).addr + 2);
    assert_eq!(kept("leaf"), None);
    assert!(kept("listed").is_some_and(|below| below >= 64));
    // This function moves its stack pointer by a number that is not known statically.
    let rows = symbols.frames.rows(function("sized").addr);
    assert!(rows.iter().any(|row| matches!(row.cfa, Cfa::Frame(_))));
    // Execution begins here without a call, so the table says that there is no return address.
    assert!(function("_start").odd_entry);
}

#[test]
fn callers_are_found_on_real_stacks() {
    for (name, flags) in [
        ("O2", &["-static", "-O2"][..]),
        ("O0", &["-static", "-O0"]),
        ("small", &["-static", "-Os", "-msave-restore"]),
        // This has only tables for debuggers.
        (
            "debug",
            &["-static", "-O2", "-g", "-fno-asynchronous-unwind-tables"],
        ),
    ] {
        let Some(file) = MACHINE.compiled(&format!("callers-{name}"), flags) else {
            return;
        };
        let Some(words) = MACHINE.words(&file) else {
            return;
        };
        let (head, stack) = words.split_at_checked(32).expect("registers");
        let mut registers = Registers::new(Isa::Riscv64);
        for (register, word) in (1..32).zip(head) {
            registers.set(register, *word);
        }
        registers.set_instruction(Some(head[31]));
        assert_eq!(registers.stack_pointer(), Some(head[1]));
        let bytes = std::fs::read(&file).expect("a program");
        let (found, ended) = stacks::callers(&bytes, registers, stack);
        assert_eq!(found[..4], ["report", "inner", "sized", "main"], "{name}");
        assert_eq!(found.last().expect("one"), "_start", "{name}: {found:?}");
        assert!(ended, "{name}");
        // Registers of another instruction set yield nothing.
        let other = Registers::new(Isa::X86_64);
        let unwinder = Unwinder::new(&bytes);
        assert!(unwinder.caller(head[31], &other, &|_| Some(0)).is_none());
    }
}

#[test]
fn unrecorded_stack_words_yield_no_caller() {
    let Some(file) = MACHINE.compiled("lost", &["-static", "-O2"]) else {
        return;
    };
    let bytes = std::fs::read(&file).expect("a program");
    let functions = symbols(&bytes).expect("symbols").functions;
    let main = functions.iter().find(|f| f.name == "main").expect("main");
    let mut registers = Registers::new(Isa::Riscv64);
    registers.set(1, 0x1234);
    registers.set(2, 0x8000);
    registers.set_instruction(Some(main.addr));
    let unwinder = Unwinder::new(&bytes);
    let caller = unwinder.caller(main.addr, &registers, &|_| None);
    let caller = caller.expect("a caller");
    assert_eq!(caller.registers.instruction(), Some(0x1234));
    assert_eq!(caller.registers.stack_pointer(), Some(0x8000));
    // The register no longer has the caller's value.
    let next = unwinder.caller(main.addr, &caller.registers, &|_| None);
    let next = next.expect("a frame");
    assert_eq!((next.registers.instruction(), next.none), (None, false));
}

#[test]
fn variables_are_in_registers_of_their_own_numbers() {
    let Some(file) = MACHINE.compiled("variables", &["-g", "-O0"]) else {
        return;
    };
    let bytes = std::fs::read(&file).expect("a program");
    let symbols = symbols(&bytes).expect("symbols");
    let debug = Debug::open(&file, &bytes).expect("debugging information");
    let inner = symbols.functions.iter().find(|f| f.name == "inner");
    let inner = inner.expect("inner");
    let word = |name: &str, pc| {
        let found = debug.variable(name, pc, &symbols.frames);
        found.map(|variable| (variable.word, variable.shown))
    };
    // At its entry: in a0 and a1.
    let (count, shown) = word("count", inner.addr).expect("count");
    assert_eq!(count, Word::Register(10));
    assert!(matches!(shown, Shown::Signed(_)), "{shown:?}");
    assert_eq!(
        word("text", inner.addr).expect("text").0,
        Word::Register(11)
    );
    // Later: on the stack, relative to s0.
    let (count, _) = word("count", inner.addr + inner.size - 8).expect("count");
    let Word::Memory(base, _) = count else {
        panic!("{count:?}");
    };
    assert_eq!(*base, Word::Register(8));
}

/// A function with a part elsewhere that begins with the nop before a landing pad, and a function that contains a
/// landing pad itself.
const PARTED: &str = r#"
    .text
    .globl whole
    .type whole, @function
whole:
    .cfi_startproc
    .cfi_lsda 0x1b, table
    addi sp, sp, -16
    .cfi_def_cfa_offset 16
    call whole
    ret
    .cfi_endproc
    .size whole, . - whole
    .section .text.unlikely, "ax"
    .cfi_startproc
    .cfi_lsda 0x1b, table_of_part
    nop
pad:
    ret
    .cfi_endproc
    .cfi_startproc
    .cfi_lsda 0x1b, table_of_other
    addi sp, sp, -16
    .cfi_def_cfa_offset 16
    ret
    ret
    ret
    .cfi_endproc
    .section .gcc_except_table, "a"
table: .byte 0xff, 0xff, 0x01, 4, 0, 8, 0, 0
table_of_part: .byte 0xff, 0xff, 0x01, 4, 0, 2, NOP, 0
table_of_other: .byte 0xff, 0xff, 0x01, 4, 0, 2, 6, 0
"#;

#[test]
fn parts_begin_with_a_nop_and_a_landing_pad() {
    for (march, nop) in [("rv64gc", 2), ("rv64g", 4)] {
        let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("riscv64");
        std::fs::create_dir_all(&directory).expect("a directory");
        let (source, file) = (directory.join(format!("{march}.s")), directory.join(march));
        std::fs::write(&source, PARTED.replace("NOP", &nop.to_string())).expect("a source");
        let name = MACHINE.tool("gcc");
        let mut gcc = Command::new(&name);
        gcc.args(["-nostdlib", "-shared", "-mabi=lp64d"])
            .arg(format!("-march={march}"));
        let output = match gcc.arg("-o").arg(&file).arg(&source).output() {
            Ok(output) => output,
            Err(error) => {
                eprintln!("not done: {name}: {error}");
                return;
            }
        };
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{march}: {text}");
        let found = symbols(&std::fs::read(&file).expect("a library")).expect("symbols");
        let anonymous: Vec<_> = (found.functions.iter())
            .filter(|function| function.name.starts_with('<'))
            .map(|function| function.addr)
            .collect();
        let [part] = &found.fragments[..] else {
            panic!("{march}: {:?}", found.fragments);
        };
        let other = part.addr + part.size;
        assert_eq!(anonymous, [other], "{march}");
        assert_eq!(found.landing_pads, [part.addr + nop, other + 6], "{march}");
        assert!(
            found
                .functions
                .iter()
                .any(|function| function.name == "whole")
        );
    }
}
