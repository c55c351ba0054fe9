//! Files for AArch64: `main` of stripped programs, frames, callers on real stacks, signed return addresses.

mod linked;
mod stacks;

use hodo_abi::Isa;
use hodo_symbols::{Cfa, Registers, Unwinder, symbols};
use linked::Machine;

const MACHINE: Machine = Machine {
    name: "aarch64",
    source: PROGRAM,
    flags: &[],
};

/// `report` writes the registers x0 to x30, the stack pointer, the address of one of its own instructions, and the
/// stack
/// from the stack pointer upwards.
const PROGRAM: &str = r#"
#include <unistd.h>

int volatile many = 3;

__attribute__((noipa)) void report(void) {
    unsigned long words[33];
    unsigned long *at = words;
    __asm__ volatile(
        ".irp n, 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30\n"
        "str x\\n, [%0, #(8 * \\n)]\n"
        ".endr\n"
        "mov x9, sp\n"
        "str x9, [%0, #248]\n"
        "adr x9, .\n"
        "str x9, [%0, #256]\n"
        :: "r"(at) : "x9", "memory");
    write(1, words, sizeof words);
    write(1, (void *)words[31], 4096);
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

__attribute__((noipa)) int leaf(int count) {
    return count + many;
}

int main(void) {
    return sized(many) == 99;
}

#ifdef WRAPPED
// As newer C libraries begin programs that have a fixed address, with the landings of others.
__asm__(
    ".globl _start\n"
    ".type _start, @function\n"
    "_start: .cfi_startproc\n"
    ".cfi_undefined x30\n"
    "bti c\n"
    "mov x29, #0\n"
    "mov x30, #0\n"
    "mov x5, x0\n"
    "ldr x1, [sp]\n"
    "add x2, sp, #8\n"
    "adrp x0, wrapped\n"
    "add x0, x0, :lo12:wrapped\n"
    "mov x3, #0\n"
    "bl __libc_start_main\n"
    "bl abort\n"
    "wrapped: bti c\n"
    "b main\n"
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
        ("static-pie", &["-O2", "-static-pie"]),
        ("relative", &["-O2", "-pie", "-Wl,-z,pack-relative-relocs"]),
        ("protected", &["-O2", "-mbranch-protection=standard"]),
        ("exported", &["-O2", "-rdynamic"]),
        ("wrapped", &["-O2", "-no-pie", "-nostartfiles", "-DWRAPPED"]),
    ];
    MACHINE.has_main(&ways, |_| {});
}

/// What compilers do with return addresses: how, and whether they are signed.
const PROTECTIONS: [(&str, &str, bool); 2] = [
    ("plain", "-mbranch-protection=none", false),
    ("signed", "-mbranch-protection=pac-ret", true),
];

#[test]
fn frames_are_known_where_return_addresses_are_signed() {
    for (name, protection, signed) in PROTECTIONS {
        let Some(file) = MACHINE.compiled(&format!("frames-{name}"), &["-O1", protection]) else {
            return;
        };
        let bytes = std::fs::read(&file).expect("a program");
        assert_eq!(hodo_symbols::isa_of(&bytes), Some(Isa::Aarch64));
        let symbols = symbols(&bytes).expect("symbols");
        let function = |name: &str| {
            let mut all = symbols.functions.iter();
            all.find(|f| f.name == name).expect("the function")
        };
        for name in ["report", "inner", "sized", "main"] {
            let function = function(name);
            let rows = symbols.frames.rows(function.addr);
            assert_eq!((rows[0].addr, rows[0].cfa), (function.addr, Cfa::Stack(0)));
            let moved = |cfa| matches!(cfa, Cfa::Stack(1..) | Cfa::Frame(_));
            assert!(rows.iter().any(|row| moved(row.cfa)), "{name} {protection}");
            assert!(symbols.frames.return_address(function.addr).is_some());
        }
        // After its first instruction, the return address is still in its register.
        let inner = function("inner").addr;
        let mut registers = Registers::new(Isa::Aarch64);
        registers.set(30, 0x007A_0000_1234_5678);
        registers.set(31, 0x8000);
        let caller = |addr| {
            let caller = Unwinder::new(&bytes).caller(addr, &registers, &|_| None);
            caller.expect("a caller").registers.instruction()
        };
        assert_eq!(caller(inner), Some(0x007A_0000_1234_5678));
        if signed {
            assert_eq!(caller(inner + 4), Some(0x1234_5678));
        }
    }
}

#[test]
fn callers_are_found_on_real_stacks() {
    for (name, protection, signed) in PROTECTIONS {
        for optimized in ["-O2", "-O0"] {
            let flags = ["-static", optimized, protection];
            let Some(file) = MACHINE.compiled(&format!("callers-{name}{optimized}"), &flags) else {
                return;
            };
            let Some(words) = MACHINE.words(&file) else {
                return;
            };
            let (head, stack) = words.split_at_checked(33).expect("registers");
            let mut registers = Registers::new(Isa::Aarch64);
            for (register, word) in (0..32).zip(head) {
                registers.set(register, *word);
            }
            registers.set_instruction(Some(head[32]));
            let bytes = std::fs::read(&file).expect("a program");
            let (found, ended) = stacks::callers(&bytes, registers, stack);
            assert_eq!(found[..4], ["report", "inner", "sized", "main"], "{name}");
            assert_eq!(found.last().expect("one"), "_start", "{name}: {found:?}");
            assert!(ended, "{name}");
            // The C library of the cross compiler does not sign its own.
            let is_signed = |word: &u64| word >> 48 != 0 && word & 0xFFFF_FFFF_0000 < 0x100_0000;
            assert_eq!(stack[..64].iter().any(is_signed), signed, "{stack:x?}");
        }
    }
}
