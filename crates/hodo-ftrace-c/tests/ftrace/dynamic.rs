//! Call sites that are patched.

use crate::build::{Form, check, compile, run_with};

/// How programs with call sites are built: a name, a compiler, its flags, and whether the call comes after the
/// prologue.
pub(crate) const BUILDS: &[(&str, &str, &[&str], bool)] = if cfg!(target_arch = "riscv64") {
    &[
        ("pg", "gcc", &["-pg"], true),
        ("pg-no-plt", "gcc", &["-pg", "-fno-plt"], true),
        ("pg-far", "gcc", &["-pg", "-mno-relax"], true),
        ("pg", "clang", &["-pg"], true),
        ("room", "gcc", &["-fpatchable-function-entry=4"], false),
        (
            "room-before",
            "gcc",
            &["-fpatchable-function-entry=10,2"],
            false,
        ),
        ("room", "clang", &["-fpatchable-function-entry=4"], false),
    ]
} else if cfg!(target_arch = "aarch64") {
    &[
        ("pg", "gcc", &["-pg"], true),
        ("pg", "clang", &["-pg"], true),
        ("room", "gcc", &["-fpatchable-function-entry=2"], false),
        (
            "room-before",
            "gcc",
            &["-fpatchable-function-entry=4,2", "-mbranch-protection=bti"],
            false,
        ),
        ("room", "clang", &["-fpatchable-function-entry=2"], false),
    ]
} else {
    &[
        ("pg", "gcc", &["-pg"], true),
        ("pg", "clang", &["-pg"], true),
        ("pg-no-plt", "gcc", &["-pg", "-fno-plt"], true),
        ("pg-fixed", "gcc", &["-pg", "-fno-pie", "-no-pie"], true),
        ("fentry", "gcc", &["-pg", "-mfentry"], false),
        ("fentry", "clang", &["-pg", "-mfentry"], false),
        (
            "recorded",
            "gcc",
            &["-pg", "-mfentry", "-mrecord-mcount", "-fno-pie", "-no-pie"],
            false,
        ),
        (
            "nops",
            "gcc",
            &[
                "-pg",
                "-mfentry",
                "-mrecord-mcount",
                "-mnop-mcount",
                "-fno-pie",
                "-no-pie",
            ],
            false,
        ),
        (
            "nops-pg",
            "gcc",
            &[
                "-pg",
                "-mrecord-mcount",
                "-mnop-mcount",
                "-fno-pie",
                "-no-pie",
            ],
            true,
        ),
        ("room", "gcc", &["-fpatchable-function-entry=5"], false),
        ("room", "clang", &["-fpatchable-function-entry=5"], false),
        (
            "room-before",
            "gcc",
            &["-fpatchable-function-entry=7,2", "-fcf-protection"],
            false,
        ),
        (
            "room-before",
            "clang",
            &["-fpatchable-function-entry=16,8"],
            false,
        ),
    ]
};

/// Checks a program, built in each way.
pub fn each(name: &str, forms: &[Form]) {
    for (way, with, flags, framed) in BUILDS {
        for form in forms {
            let mut all = flags.to_vec();
            if *framed {
                all.push("-DFRAMED");
            }
            let file = format!("{name}.c");
            check(
                &format!("{name}-{way}-{form:?}"),
                with,
                &[&file],
                &all,
                *form,
            );
        }
    }
}

#[test]
fn sites_are_off_and_switched_on_by_filters() {
    each("dynamic", &[Form::Shared, Form::Static]);
}

#[test]
fn sites_are_changed_while_threads_execute_them() {
    each("toggle", &[Form::Shared]);
}

#[test]
fn tracers_change_registers_and_redirect_functions() {
    each("redirect", &[Form::Shared]);
}

#[test]
fn there_may_be_more_combinations_of_tracers_than_trampolines() {
    each("combinations", &[Form::Shared]);
}

#[test]
fn a_register_that_a_caller_keeps_is_not_changed() {
    let (option, attribute) = if cfg!(target_arch = "riscv64") {
        ("-fpatchable-function-entry=4", "-DROOM=4")
    } else if cfg!(target_arch = "aarch64") {
        ("-fpatchable-function-entry=2", "-DROOM=2")
    } else {
        ("-fpatchable-function-entry=5", "-DROOM=5")
    };
    // On x86-64, sites change no register. On RISC-V, gcc 12 keeps nothing in them.
    let by_hand = ["-DREFUSED=0", "-DREFUSED=1"][usize::from(cfg!(not(target_arch = "x86_64")))];
    let by_gcc = ["-DREFUSED=0", "-DREFUSED=1"][usize::from(cfg!(target_arch = "aarch64"))];
    for (name, flags) in [
        ("kept-by-hand", &[option, by_hand, "-DBY_HAND"][..]),
        ("kept-between", &[option, by_hand, "-DBY_HAND", "-DBETWEEN"]),
        ("kept", &[attribute, by_gcc]),
        ("not-kept", &[attribute, "-DREFUSED=0", "-fno-ipa-ra"]),
        ("not-kept-option", &[option, "-DREFUSED=0"]),
    ] {
        check(name, "gcc", &["kept.c"], flags, Form::Shared);
    }
    let flags = [option, "-DREFUSED=0"];
    check("not-kept", "clang", &["kept.c"], &flags, Form::Shared);
}

#[test]
fn libraries_come_and_go() {
    let program = compile("loading", "gcc", &["loading.c"], &["-ldl"], Form::Shared);
    let program = program.expect("gcc is there");
    for (way, with, flags, _) in BUILDS {
        // A library can be anywhere.
        if flags.contains(&"-no-pie") {
            continue;
        }
        for announced in [false, true] {
            let mut all = vec!["-shared", "-fPIC"];
            all.extend(*flags);
            if announced {
                all.push("-DANNOUNCED");
            }
            let name = format!("plugin-{way}-{announced}");
            let Some(library) = compile(&name, with, &["plugin.c"], &all, Form::Shared) else {
                continue;
            };
            let arguments = [
                library.to_str().expect("UTF-8"),
                if announced { "1" } else { "0" },
            ];
            let output = run_with(&program, &[], &arguments);
            let text = String::from_utf8_lossy(&output.stdout);
            assert!(
                text == "ok\n" && output.status.success(),
                "{name} {with}: {text} {output:?}"
            );
            let _ = std::fs::remove_file(library);
        }
    }
    let _ = std::fs::remove_file(program);
}
