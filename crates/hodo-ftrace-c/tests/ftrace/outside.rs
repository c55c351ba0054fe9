//! Programs whose call sites are switched inside, and which `hodo` is to change from outside.
#![cfg(target_arch = "x86_64")]

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Output, Stdio};

use crate::build::{Form, compile, home, is_built, libraries};

/// The program `hodo`.
fn hodo() -> PathBuf {
    let directory = libraries("debug");
    if is_built() {
        return directory.join("hodo");
    }
    let mut command = Command::new(env!("CARGO"));
    command.args(["build", "--quiet", "--package", "hodo"]);
    command
        .arg("--target-dir")
        .arg(directory.parent().expect("the target directory"));
    let status = command.current_dir(home()).status();
    assert!(
        status.expect("cargo can be run").success(),
        "hodo cannot be built"
    );
    directory.join("hodo")
}

/// A command that is ended if it hangs.
fn limited(program: &Path) -> Command {
    let mut command = Command::new("timeout");
    command.args(["-s", "KILL", "300"]).arg(program);
    command.current_dir(env!("CARGO_TARGET_TMPDIR"));
    command
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Starts the program, and waits until it has begun. Returns its number, too.
fn start(program: &Path) -> (Child, BufReader<ChildStdout>) {
    let mut child = Command::new(program)
        .current_dir(env!("CARGO_TARGET_TMPDIR"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the program runs");
    let mut output = BufReader::new(child.stdout.take().expect("a pipe"));
    let mut line = String::new();
    output.read_line(&mut line).expect("a line");
    assert_eq!(line, "ready\n");
    (child, output)
}

fn refuses(output: &Output) {
    let error = text(&output.stderr);
    assert!(!output.status.success(), "{output:?}");
    assert!(
        error.contains(
            "is a call site that libhodo_ftrace switches inside the program, so that hodo cannot change it from outside"
        ),
        "{error}"
    );
}

#[test]
fn call_sites_are_left_alone_from_outside() {
    let hodo = hodo();
    for (way, flags, form) in [
        ("fentry", &["-pg", "-mfentry"][..], Form::Shared),
        ("fentry-static", &["-pg", "-mfentry"], Form::Static),
        ("framed", &["-pg"], Form::Shared),
        ("room", &["-fpatchable-function-entry=5"], Form::Shared),
    ] {
        let name = format!("outside-{way}");
        let program = compile(&name, "gcc", &["outside.c"], flags, form).expect("gcc is there");
        let file = program.file_name().and_then(|name| name.to_str());
        let file = file.expect("UTF-8");
        let trace = program.with_extension("trace");
        let (mut child, mut rest) = start(&program);
        let pid = child.id().to_string();
        for definition in [format!("{file}:work"), format!("r {file}:work $retval")] {
            let mut command = limited(&hodo);
            command.args(["probe", "-p", &pid, "-e", &definition]);
            refuses(&command.output().expect("hodo runs"));
        }
        let mut command = limited(&hodo);
        command.args(["record", "-p", &pid, "-F", "work", "-d"]);
        refuses(&command.arg(&trace).output().expect("hodo runs"));
        // It goes on as if nothing had been.
        drop(child.stdin.take());
        let mut end = String::new();
        rest.read_to_string(&mut end).expect("what it prints");
        assert!(child.wait().expect("it ends").success(), "{way}: {end}");
        assert_eq!(end, "ok\n", "{way}");

        // If hodo is there first, the library finds that the sites are taken.
        let mut command = limited(&hodo);
        command.args(["record", "-F", "work", "-d"]).arg(&trace);
        command.arg(&program).arg("taken").stdin(Stdio::null());
        let output = command.output().expect("hodo runs");
        let said = text(&output.stdout);
        assert!(
            output.status.success() && said == "ready\nok\n",
            "{way}: {output:?}"
        );
        let trace = hodo_trace::Trace::open(&trace).expect("a trace");
        let calls = trace.tasks.iter().flat_map(|task| trace.records(task));
        assert!(calls.count() > 0, "{way}: no call was recorded");
        let _ = std::fs::remove_file(program);
    }
}
