//! Compares the tables of system calls with the kernel's headers that compilers come with.

use std::collections::HashMap;
use std::process::{Command, Stdio};

use hodo_abi::Isa;
use hodo_trace::syscalls::{NUMBERS, all, number};

/// Returns numbers by name, as the preprocessor evaluates them, or `None` if there is no such compiler.
fn headers(gcc: &str) -> Option<HashMap<String, u64>> {
    let run = |input: &str, flags: &[&str]| {
        let directory = std::path::Path::new(env!("CARGO_TARGET_TMPDIR"));
        let file = directory.join(format!("{gcc}-{}.c", flags.len()));
        std::fs::write(&file, input).expect("a source");
        let mut command = Command::new(gcc);
        command.args(["-E", "-P"]).args(flags).arg(&file);
        let output = command.stdin(Stdio::null()).output();
        let output = output
            .inspect_err(|error| eprintln!("not done: {gcc}: {error}"))
            .ok()?;
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{gcc}: {errors}");
        Some(String::from_utf8_lossy(&output.stdout).into_owned())
    };
    let include = "#include <asm/unistd.h>\n";
    let defined = run(include, &["-dM"])?;
    let names: Vec<_> = defined
        .lines()
        .filter_map(|line| line.strip_prefix("#define __NR_")?.split_once(' '))
        .map(|(name, _)| name)
        .collect();
    let mut questions = include.to_owned();
    for name in &names {
        questions += &format!("=\"{name}\" __NR_{name}\n");
    }
    let answers = run(&questions, &[])?;
    let number = |text: &str| {
        let terms = text.trim_matches(['(', ')', ' ']).split('+');
        terms
            .map(|term| term.trim().parse::<u64>().ok())
            .sum::<Option<u64>>()
    };
    let answers = answers.lines().filter_map(|line| {
        let (name, value) = line.strip_prefix("=\"")?.split_once("\" ")?;
        Some((name.to_owned(), number(value)?))
    });
    Some(answers.collect())
}

#[test]
fn numbers_are_those_of_the_headers() {
    let native = Command::new("gcc").arg("-dumpmachine").output();
    let native = native.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
    let native = native.unwrap_or_default();
    for (machine, gcc, native) in [
        (Isa::X86_64, "gcc", native.starts_with("x86_64")),
        (Isa::Riscv64, "riscv64-linux-gnu-gcc", true),
        (Isa::Aarch64, "aarch64-linux-gnu-gcc", true),
    ] {
        if !native {
            eprintln!("not done: gcc is for another machine");
            continue;
        }
        let Some(headers) = headers(gcc) else {
            continue;
        };
        assert!(headers.len() > 300, "{gcc}: {}", headers.len());
        for (name, &value) in &headers {
            // These are counts, and the start of the range for one instruction set.
            if matches!(name.as_str(), "syscalls" | "arch_specific_syscall") || value >= NUMBERS {
                continue;
            }
            assert_eq!(number(machine, name), Some(value), "{gcc}: {name}");
        }
        // The others are newer than the headers, or were removed. None has a number that belongs to another one.
        let mut taken: HashMap<u64, &str> = HashMap::new();
        for (name, &value) in &headers {
            taken.insert(value, name);
        }
        for (value, call) in all(machine) {
            if let (Some(other), false) = (taken.get(&value), headers.contains_key(call.name)) {
                assert!(
                    matches!(*other, "syscalls" | "arch_specific_syscall"),
                    "{gcc}: {value} is {other}, not {}",
                    call.name
                );
            }
        }
    }
}
