//! Programs that leave core files.

use std::fs;
use std::io::Read;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};

use hodo_tests::{Kind, build, hodo, scratch, skip};

/// Runs the words in this directory, where core files may have any size.
fn run(place: &Path, words: &[&str]) -> ExitStatus {
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -c unlimited; exec \"$@\"", "sh"]);
    command.args(words).current_dir(place);
    command.status().expect("a shell can be run")
}

/// How the core files there begin: with what process they are of, and which files it had.
fn cores(place: &Path) -> Vec<Vec<u8>> {
    let files = fs::read_dir(place).expect("the directory can be read");
    let files = files.map(|file| file.expect("an entry").path());
    let head = |path: PathBuf| {
        let mut head = Vec::new();
        let file = fs::File::open(path).expect("a core file");
        file.take(1 << 16).read_to_end(&mut head).expect("a file");
        head
    };
    let is_core = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default();
        name.as_encoded_bytes().starts_with(b"core")
    };
    files.filter(is_core).map(head).collect()
}

#[test]
fn the_wait_status_says_that_there_is_a_core_file() {
    let pattern = fs::read_to_string("/proc/sys/kernel/core_pattern").unwrap_or_default();
    if pattern.contains('/') || pattern.starts_with('|') {
        return skip("core files do not come to the working directory");
    }
    let program = build("ends.c", Kind::Pie, &[]);
    let program = program.to_str().expect("text");
    let alone = run(&scratch("core-alone"), &[program, "fault"]);
    if !alone.core_dumped() {
        return skip("a program that crashes leaves no core file");
    }
    let place = scratch("core-traced");
    let hodo = hodo().to_str().expect("text");
    let record = [hodo, "record", "-d", "data", "--", program, "fault"];
    assert_eq!(run(&place, &record), alone);
    // It is the program's, not hodo's.
    let cores = cores(&place);
    assert_eq!(cores.len(), 1);
    let has = |word: &str| {
        cores[0]
            .windows(word.len())
            .any(|part| part == word.as_bytes())
    };
    assert!(has(program) && !has(hodo), "it is not the program's");
}
