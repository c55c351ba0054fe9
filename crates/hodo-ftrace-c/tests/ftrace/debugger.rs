//! What gdb shows.

use std::process::Command;

use crate::build::{Form, compile};
use crate::skipped::skip;

#[test]
fn gdb_gets_from_trampolines_and_hooks_to_main() {
    /// Instructions from the function's first one on: the trampoline's, and some of the stub's.
    const STEPS: usize = 12;
    if Command::new("gdb").arg("--version").output().is_err() {
        return skip("gdb is not installed");
    }
    let flags = ["-fpatchable-function-entry=5"];
    for form in [Form::Shared, Form::Static] {
        let name = format!("trampoline-{form:?}");
        let program = compile(&name, "gcc", &["trampoline.c"], &flags, form);
        let program = program.expect("gcc is there");
        let mut command = Command::new("gdb");
        command.args(["-nx", "-batch", "-ex", "set confirm off"]);
        command.args(["-ex", "break ready", "-ex", "run"]);
        command.args(["-ex", "break *traced", "-ex", "break see"]);
        command.args(["-ex", "continue"]);
        for _ in 0..STEPS {
            command.args(["-ex", "echo --\\n", "-ex", "stepi", "-ex", "backtrace"]);
        }
        command.args(["-ex", "echo --\\n", "-ex", "continue", "-ex", "backtrace"]);
        let output = command.arg(&program).output().expect("gdb runs");
        let text = String::from_utf8_lossy(&output.stdout);
        let errors = String::from_utf8_lossy(&output.stderr);
        let parts: Vec<&str> = text.split("--\n").skip(1).collect();
        assert_eq!(parts.len(), STEPS + 1, "{text}{errors}");
        for part in &parts {
            let frames: Vec<&str> = part.lines().filter(|line| line.starts_with('#')).collect();
            let names = ["traced (", "outer (", "main ("];
            let last = frames.len().checked_sub(names.len());
            let last = last.map_or(&[][..], |from| &frames[from..]);
            let is_whole = names.len() == last.len()
                && names
                    .iter()
                    .zip(last)
                    .all(|(name, frame)| frame.contains(name));
            assert!(is_whole, "{form:?}: {part}\n{text}{errors}");
        }
        let in_trampoline = parts.iter().filter(|part| {
            part.lines()
                .any(|line| line.starts_with("#0") && line.contains("hodo_ftrace_trampolines"))
        });
        // `push`, `mov`, `jmp`
        assert_eq!(in_trampoline.count(), 3, "{form:?}: {text}{errors}");
        assert!(parts[STEPS].contains("in see ") || parts[STEPS].contains(" see ("));
        let _ = std::fs::remove_file(program);
    }
}
