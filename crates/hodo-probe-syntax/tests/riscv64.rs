//! Registers in definitions, on RISC-V.
#![cfg(target_arch = "riscv64")]

use hodo_probe_syntax::registers::{Register, riscv64};
use hodo_probe_syntax::{Source, parse};

fn message(text: &str) -> String {
    parse(text).expect_err(text).to_string()
}

#[test]
fn registers_have_their_names_here() {
    let definition = parse("p prog:main %a0 fifth=%A5:u32 %pc +8(%sp):x64").expect("a definition");
    let sources: Vec<_> = definition.args.iter().map(|arg| &arg.source).collect();
    let x = |number| Source::Register(Register::Riscv64(riscv64::Register::X(number)));
    assert_eq!(*sources[0], x(10));
    assert_eq!(*sources[1], x(15));
    assert_eq!(
        *sources[2],
        Source::Register(Register::Riscv64(riscv64::Register::Pc))
    );
    assert_eq!(definition.args[1].name, "fifth");
    assert!(!definition.reads_flags());
}

#[test]
fn other_registers_are_refused() {
    for name in ["fa0", "ft11", "f3", "v31"] {
        let message = message(&format!("p prog:main %{name}"));
        assert!(
            message.contains(&format!("there is no register {name}")),
            "{message}"
        );
        let hint = "floating-point and vector registers cannot be fetched";
        assert!(message.contains(hint), "{message}");
    }
    let message = message("p prog:main %rax");
    assert!(message.contains("there is no register rax"), "{message}");
}
