//! Runs a tool of `hodo mem` for what it shows.

use std::path::Path;
use std::process::{Command, Output};

use hodo_tests::hodo;

/// Runs a tool, of a program if there is one. It must succeed.
pub fn shown(tool: &str, arguments: &[&str], program: Option<&Path>) -> Output {
    let mut command = Command::new(hodo());
    command.args(["mem", tool]).args(arguments);
    if let Some(program) = program {
        command.arg("--").arg(program);
    }
    let output = command.output().expect("hodo can be run");
    assert!(output.status.success(), "{output:?}");
    output
}

/// A place for a file with this name.
pub fn place(name: &str) -> String {
    let place = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    place.to_str().expect("text").to_owned()
}
