//! The programs in `tests/programs`.

use crate::build::{ALL, C, CXX, Compiled, Form, Isa};

/// The ways of building position-dependent and position-independent code.
const WAYS: [(&str, &str); 8] = [
    ("O0", "-O0"),
    ("O0-pic", "-O0 -fPIC"),
    ("O0-fixed", "-O0 -fno-pie -no-pie"),
    ("O2", "-O2 -fPIE -pie"),
    ("O2-pic", "-O2 -fPIC -pie"),
    ("O2-fixed", "-O2 -fno-pie -no-pie"),
    ("O3-sections", "-O3 -ffunction-sections -Wl,--gc-sections"),
    ("Os", "-Os -g"),
];

fn branches(isa: Isa) {
    if !isa.is_there() {
        return;
    }
    for with in C.into_iter().chain(CXX) {
        for (way, flags) in WAYS {
            let name = format!("branches-{way}");
            let (files, form) = (&["branches.c"], Form::Shared);
            Compiled {
                isa,
                with,
                files,
                flags,
                form,
            }
            .check(&name, &[]);
        }
    }
    for with in C {
        for (way, flags) in [
            ("static", "-O2"),
            ("alone", "-O2 -static"),
            ("lto", "-O2 -flto -ffat-lto-objects"),
        ] {
            // clang's needs a plugin of the linker.
            if way == "lto" && with == "clang" {
                continue;
            }
            let name = format!("branches-{way}");
            let (files, form) = (&["branches.c"], Form::Static);
            Compiled {
                isa,
                with,
                files,
                flags,
                form,
            }
            .check(&name, &[]);
        }
    }
}

#[test]
fn branches_are_switched() {
    branches(Isa::X86);
}

#[test]
fn branches_are_switched_riscv64() {
    branches(Isa::Riscv);
}

#[test]
fn branches_are_switched_aarch64() {
    branches(Isa::Arm);
}

#[test]
fn threads_take_the_new_side_once_a_switch_has_returned() {
    for isa in ALL.into_iter().filter(|isa| isa.is_there()) {
        for with in C {
            for (way, flags) in [("O0", "-O0"), ("O2", "-O2")] {
                let (files, form) = (&["threads.c"], Form::Shared);
                let switches = if isa == Isa::X86 { "1000" } else { "30" };
                let name = format!("threads-{way}");
                Compiled {
                    isa,
                    with,
                    files,
                    flags,
                    form,
                }
                .check(&name, &[switches]);
            }
        }
    }
}

#[test]
fn libraries_come_and_go() {
    for isa in ALL.into_iter().filter(|isa| isa.is_there()) {
        for with in C {
            for optimized in ["-O0", "-O2"] {
                let library = |file, name: &str| {
                    let flags = &format!("{optimized} -shared -fPIC");
                    let (files, form) = (&[file], Form::Shared);
                    let library = Compiled {
                        isa,
                        with,
                        files,
                        flags,
                        form,
                    };
                    library.build(&format!("{name}{optimized}"))
                };
                let (Some(shared), Some(plugin)) = (
                    library("shared.c", "libshared"),
                    library("plugin.c", "libplugin"),
                ) else {
                    continue;
                };
                let own = shared.parent().expect("a directory").display();
                let flags = &format!("{optimized} -rdynamic -ldl -Wl,-rpath,{own}");
                let files = &["libraries.c", "-xnone", shared.to_str().expect("a text")];
                let form = Form::Shared;
                let rounds = if isa == Isa::X86 { "200" } else { "20" };
                Compiled {
                    isa,
                    with,
                    files,
                    flags,
                    form,
                }
                .check(
                    &format!("libraries{optimized}"),
                    &[plugin.to_str().expect("a text"), rounds],
                );
            }
        }
    }
}

#[test]
fn branches_are_in_inline_functions_and_templates() {
    for isa in ALL.into_iter().filter(|isa| isa.is_there()) {
        for with in CXX {
            for flags in [
                "-O0 -fPIC",
                "-O2 -fPIC",
                "-O2 -fno-pie -no-pie",
                "-O2 -std=c++20",
            ] {
                let way = flags.replace(' ', "");
                let program = Compiled {
                    isa,
                    with,
                    files: &["inline.cc", "inline_other.cc"],
                    flags,
                    form: Form::Shared,
                };
                program.check(&format!("inline{way}"), &[]);
            }
        }
    }
}

/// `hodo` reads the table of a file, and checks each entry.
#[test]
fn tools_find_the_keys_in_the_file() {
    for isa in ALL.into_iter().filter(|isa| isa.is_there()) {
        for with in C {
            for flags in ["-O0", "-O2", "-O2 -fno-pie -no-pie"] {
                let way = flags.replace(' ', "");
                let program = Compiled {
                    isa,
                    with,
                    files: &["branches.c"],
                    flags,
                    form: Form::Shared,
                };
                let Some(program) = program.build(&format!("listed{way}")) else {
                    continue;
                };
                let bytes = std::fs::read(program).expect("it is there");
                let found = hodo_symbols::keys(&bytes).expect("the table is right");
                let mut names: Vec<_> = found
                    .keys
                    .iter()
                    .map(|key| (key.name.as_str(), key.index, key.initial))
                    .collect();
                names.sort_unstable();
                let expected = [
                    ("LEVELS", Some(0), false),
                    ("LEVELS", Some(1), false),
                    ("LEVELS", Some(2), false),
                    ("OFF", None, false),
                    ("ON", None, true),
                    ("deferred::OUTSIDE", None, false),
                    ("deferred::WATCHED", None, false),
                    ("deferred::owner.inside", Some(0), true),
                ];
                assert_eq!(names, expected, "{isa:?} {with} {flags}");
                let size = if isa == Isa::X86 { 5 } else { 4 };
                assert!(found.branches.len() >= 11);
                for branch in &found.branches {
                    assert_eq!(branch.size, size, "{isa:?} {with} {flags}: {branch:?}");
                }
            }
        }
    }
}
