//! The programs in `tests/programs`.

use crate::build::{Form, check, compile, run};

/// The ways in which compilers call `mcount` and its like.
const ENTRIES: &[(&str, &[&str])] = if cfg!(target_arch = "aarch64") {
    // There is no `-mfentry`.
    &[
        ("pg", &["-pg"]),
        ("pg-no-plt", &["-pg", "-fno-plt"]),
        ("pg-signed", &["-pg", "-mbranch-protection=standard"]),
    ]
} else if cfg!(not(target_arch = "x86_64")) {
    &[("pg", &["-pg"]), ("pg-no-plt", &["-pg", "-fno-plt"])]
} else {
    &[
        ("pg", &["-pg"]),
        ("pg-no-plt", &["-pg", "-fno-plt"]),
        ("pg-fixed", &["-pg", "-fno-pie", "-no-pie"]),
        ("fentry", &["-pg", "-mfentry"]),
        ("fentry-fixed", &["-pg", "-mfentry", "-fno-pie", "-no-pie"]),
    ]
};

/// Checks a program with each way, both compilers, and both kinds of hooks.
fn each(name: &str, file: &str, compilers: [&str; 2]) {
    for with in compilers {
        for (way, flags) in ENTRIES {
            check(&format!("{name}-{way}"), with, &[file], flags, Form::Shared);
            // What a hook may not use, clang must not make of two additions.
            let plain = [
                *flags,
                &["-DPLAIN", "-fno-slp-vectorize"][..usize::from(with.starts_with("clang")) + 1],
            ]
            .concat();
            check(
                &format!("{name}-{way}-plain"),
                with,
                &[file],
                &plain,
                Form::Shared,
            );
        }
        check(
            &format!("{name}-static"),
            with,
            &[file],
            ENTRIES[0].1,
            Form::Static,
        );
    }
}

#[test]
fn entry_hooks_get_function_and_caller() {
    each("hooks", "hooks.c", ["gcc", "clang"]);
}

#[test]
fn cyg_hooks_get_function_and_call_site() {
    for with in ["gcc", "clang"] {
        for form in [Form::Shared, Form::Static] {
            let flags = ["-finstrument-functions", "-DCYG"];
            check(&format!("cyg-{form:?}"), with, &["hooks.c"], &flags, form);
        }
    }
}

#[test]
fn returns_are_traced() {
    each("graph", "graph.c", ["gcc", "clang"]);
}

#[test]
fn exceptions_backtraces_and_cancelled_threads_pass_through_traced_functions() {
    each("exceptions", "exceptions.cc", ["g++", "clang++"]);
}

#[test]
fn all_registers_are_live_across_the_stubs() {
    let assembly = if cfg!(target_arch = "riscv64") {
        "registers_riscv64.S"
    } else if cfg!(target_arch = "aarch64") {
        "registers_aarch64.S"
    } else {
        "registers_x86_64.S"
    };
    for form in [Form::Shared, Form::Static] {
        check(
            &format!("registers-{form:?}"),
            "gcc",
            &["registers.c", assembly],
            &[],
            form,
        );
    }
}

#[cfg(not(target_arch = "x86_64"))]
#[test]
fn scalable_vectors_are_live_across_the_stubs() {
    let flags = ["-pg", "-fno-ipa-ra"];
    // Several lengths of vectors, in bits.
    let cpus = if cfg!(target_arch = "riscv64") {
        ["rv64,v=true,vlen=128", "rv64,v=true,vlen=1024"]
    } else {
        ["max,sve128=on", "max,sve2048=on"]
    };
    let program = compile("scalable", "gcc", &["scalable.c"], &flags, Form::Shared);
    let program = program.expect("gcc is there");
    for cpu in cpus {
        let output = run(&program, &[("QEMU_CPU", cpu.to_owned())]);
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(
            text == "ok\n" && output.status.success(),
            "{cpu}: {}\n{text}{}",
            output.status,
            String::from_utf8_lossy(&output.stderr)
        );
    }
}

// qemu's user mode emulator does not step. On AArch64, the program does it with breakpoints.
#[cfg(not(target_arch = "riscv64"))]
#[test]
fn unwinding_works_at_every_instruction() {
    for (way, flags) in ENTRIES {
        check(
            &format!("steps-{way}"),
            "gcc",
            &["steps.c"],
            flags,
            Form::Shared,
        );
    }
}

#[cfg(target_arch = "aarch64")]
#[test]
fn functions_with_signed_return_addresses_are_traced() {
    for (way, more) in [
        ("pg", &["-pg"][..]),
        ("pg-O0", &["-pg", "-O0"]),
        ("pg-combined", &["-pg", "-march=armv8.3-a"]),
        ("room", &["-fpatchable-function-entry=2"]),
    ] {
        let flags = [&["-mbranch-protection=standard"], more].concat();
        for with in ["gcc", "clang"] {
            let name = format!("signed-{way}");
            check(&name, with, &["signed.c"], &flags, Form::Shared);
        }
    }
    let flags = [
        "-pg",
        "-mbranch-protection=standard",
        "-fstack-clash-protection",
        "-DLOOP",
    ];
    check("signed-loop", "gcc", &["signed.c"], &flags, Form::Shared);
}

#[test]
fn wrong_use_is_refused() {
    check("refused", "gcc", &["refused.c"], ENTRIES[0].1, Form::Shared);
}

#[test]
fn the_library_can_be_switched_off() {
    let program = compile("off", "gcc", &["off.c"], ENTRIES[0].1, Form::Shared);
    let program = program.expect("gcc is there");
    let output = run(&program, &[("HODO_FTRACE_OFF", "1".to_owned())]);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text == "ok\n" && output.status.success(), "{text}");
    let _ = std::fs::remove_file(program);
}

#[test]
fn tracers_see_arguments_where_mcount_is_called() {
    for (name, flags) in [
        ("arguments", &["-pg"][..]),
        ("arguments-O0", &["-pg", "-O0"]),
    ] {
        check(name, "gcc", &["arguments.c"], flags, Form::Shared);
    }
}

#[test]
fn the_library_does_not_read_its_own_code() {
    let flags = ["-rdynamic", "-fno-builtin"];
    check("opened", "gcc", &["opened.c"], &flags, Form::Shared);
}

#[test]
fn wrong_frame_pointers_are_reported_or_end_the_program() {
    for (flag, works) in [("-DABORTS=0", true), ("-DABORTS=1", false)] {
        let program =
            compile(flag, "gcc", &["frames.c"], &[flag], Form::Shared).expect("gcc is there");
        let output = run(&program, &[]);
        let report = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.success(), works, "{report}");
        let lines: Vec<&str> = report
            .lines()
            .filter(|line| line.starts_with("hodo-ftrace: 0x"))
            .collect();
        assert_eq!(lines.len(), 1, "{report}");
        assert!(
            lines[0].contains("returned with the frame pointer 0x"),
            "{report}"
        );
        let _ = std::fs::remove_file(program);
    }
}

// Under qemu's user mode emulator, threads may have stacks above the stack of `main`.
#[cfg(target_arch = "x86_64")]
#[test]
fn calls_that_a_stack_above_hides_return_to_the_right_place() {
    check("above", "gcc", &["above.c"], ENTRIES[0].1, Form::Shared);
}
