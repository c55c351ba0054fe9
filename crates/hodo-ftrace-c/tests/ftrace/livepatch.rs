//! Functions that are replaced while they run.

use crate::build::{Form, check, compile, run_with};
use crate::dynamic::{BUILDS, each};
use crate::skipped::skip;

#[test]
fn threads_change_when_they_have_left_the_old_version() {
    each("livepatch", &[Form::Shared]);
}

#[test]
fn no_thread_mixes_versions_while_threads_come_and_go() {
    if cfg!(not(target_arch = "x86_64")) {
        return skip(
            "chains of calls during a transition: emulated threads are seldom found outside the functions in time",
        );
    }
    each("livepatch_chain", &[Form::Shared]);
}

#[test]
fn workers_that_wait_between_calls_change() {
    for (way, with, flags, framed) in BUILDS {
        if *framed {
            continue;
        }
        let mut all = flags.to_vec();
        // Not the default for C on RISC-V.
        all.push("-fasynchronous-unwind-tables");
        let name = format!("livepatch_workers-{way}");
        check(&name, with, &["livepatch_workers.c"], &all, Form::Shared);
    }
}

#[test]
fn libraries_with_patched_functions_are_unloaded() {
    let name = "livepatch_unload";
    let file = format!("{name}.c");
    let program = compile(name, "gcc", &[&file], &["-ldl"], Form::Shared);
    let program = program.expect("gcc is there");
    for (way, with, flags, framed) in BUILDS {
        // Their entries cannot be redirected, or they cannot be in a library.
        if *framed || flags.contains(&"-no-pie") {
            continue;
        }
        let mut all = vec!["-shared", "-fPIC", "-DANNOUNCED"];
        all.extend(*flags);
        let name = format!("plugin-livepatch-{way}");
        let Some(library) = compile(&name, with, &["plugin.c"], &all, Form::Shared) else {
            continue;
        };
        let output = run_with(&program, &[], &[library.to_str().expect("UTF-8")]);
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(
            text == "ok\n" && output.status.success(),
            "{name} {with}: {text} {output:?}"
        );
        let _ = std::fs::remove_file(library);
    }
    let _ = std::fs::remove_file(program);
}
