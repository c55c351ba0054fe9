//! Call sites that are patched.

use crate::build::{Form, check, compile, run_with};

/// How programs with call sites are built: a name, a compiler, its flags, and whether the call comes after the prologue.
pub const BUILDS: &[(&str, &str, &[&str], bool)] = if cfg!(target_arch = "riscv64") {
    // Unlike on x86-64, the call needs a register, which gcc might find out that a function does not change.
    &[
        ("pg", "gcc", &["-pg"], true),
        ("pg-no-plt", "gcc", &["-pg", "-fno-plt"], true),
        ("pg-far", "gcc", &["-pg", "-mno-relax"], true),
        ("pg", "clang", &["-pg"], true),
        (
            "room",
            "gcc",
            &["-fpatchable-function-entry=4", "-fno-ipa-ra"],
            false,
        ),
        (
            "room-before",
            "gcc",
            &["-fpatchable-function-entry=10,2", "-fno-ipa-ra"],
            false,
        ),
        ("room", "clang", &["-fpatchable-function-entry=4"], false),
    ]
} else if cfg!(target_arch = "aarch64") {
    &[
        ("pg", "gcc", &["-pg"], true),
        ("pg", "clang", &["-pg"], true),
        (
            "room",
            "gcc",
            &["-fpatchable-function-entry=2", "-fno-ipa-ra"],
            false,
        ),
        (
            "room-before",
            "gcc",
            &[
                "-fpatchable-function-entry=4,2",
                "-fno-ipa-ra",
                "-mbranch-protection=bti",
            ],
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
            if *framed && !cfg!(target_arch = "x86_64") {
                all.push("-DNO_REGISTERS");
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
