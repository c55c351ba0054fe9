//! Shared libraries: found at the start, loaded later, traced inside.

use hodo_tests::{Kind, Run, build, build_with};

fn plugin() -> std::path::PathBuf {
    build_with("gcc", &["plugin.c"], &["-O2", "-shared", "-fPIC"])
}

#[test]
fn libraries_loaded_and_unloaded_while_it_runs() {
    for kind in [
        Kind::Pie,
        Kind::Fixed,
        Kind::Stripped,
        Kind::Cet,
        Kind::Musl,
    ] {
        if !kind.is_available() {
            continue;
        }
        // musl's libm is its libc, and not to be had by the name of glibc's.
        let program = build("libraries.c", kind, &["-ldl"]);
        let run = Run::new(&format!("loaded_libraries-{kind:?}"), program).args([plugin()]);
        let trace = run.same(&[]);
        if kind.has_names() {
            trace.has_calls(&[("main", 1), ("use", 100), ("inner", 0)]);
        }
        let trace = run.same(&["-l"]);
        if kind.has_names() {
            trace.has_calls(&[("main", 1), ("use", 100), ("plugin", 100), ("inner", 100)]);
        }
    }
}
