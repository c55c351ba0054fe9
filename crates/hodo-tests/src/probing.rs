//! Running `hodo probe`, and reading what it says.

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

use crate::{hodo, temporary};

/// Runs `hodo probe` with these words; it is killed after two minutes.
pub fn probe_words(words: &[&str]) -> Output {
    Command::new("timeout")
        .args(["-s", "KILL", "120"])
        .arg(hodo())
        .arg("probe")
        .args(words)
        .env("LC_ALL", "C")
        // Some programs make files.
        .current_dir(temporary())
        .output()
        .expect("hodo can be run")
}

/// Runs a command under `hodo probe`.
pub fn probe(options: &[&str], command: &[&str]) -> Output {
    probe_words(&[options, &["--"], command].concat())
}

/// What a program has written.
pub fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).expect("text")
}

/// The path of a program, as an argument.
pub fn path(program: &Path) -> &str {
    program.to_str().expect("a path of text")
}

/// The lines of a run with `--format json` behind the `own` lines of the program.
pub fn objects(output: &Output, own: usize) -> Vec<Value> {
    let lines = text(&output.stdout).lines().skip(own);
    lines
        .map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{line}: {e}")))
        .collect()
}

/// Runs a command with probes, which must end well, and gives what [`objects`] does.
pub fn probed(definitions: &[String], command: &[&str], own: usize) -> Vec<Value> {
    let mut options = vec!["--format", "json"];
    for definition in definitions {
        options.extend(["-e", definition]);
    }
    let output = probe(&options, command);
    assert_eq!(output.status.code(), Some(0), "{definitions:?}: {output:?}");
    objects(&output, own)
}
