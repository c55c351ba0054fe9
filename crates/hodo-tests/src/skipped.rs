//! Tests that are skipped on this machine. Tests of other crates include this file through `#[path]`.

use std::fs;
use std::io::Write;
use std::path::PathBuf;

/// The directory for the tests' files: `target/tmp`, or its own for another target.
///
/// # Panics
/// If it cannot be created.
pub fn temporary() -> PathBuf {
    let exe = std::env::current_exe().expect("this test has a file");
    // target/debug/deps/test-1234
    let target = exe.ancestors().nth(3).expect("the target directory");
    let directory = target.join("tmp");
    fs::create_dir_all(&directory).expect("target/tmp can be made");
    directory
}

/// Records that a test was skipped: on stderr, and in `skipped.txt` in the directory for the tests' files, which
/// `scripts/test.sh` and `scripts/cross.sh` show.
///
/// # Panics
/// If the file cannot be written.
pub fn skip(reason: &str) {
    let thread = std::thread::current();
    let line = format!("{}: {reason}\n", thread.name().unwrap_or("?"));
    eprint!("skipped: {line}");
    fs::OpenOptions::new()
        .create(true)
        .append(true)
        .open(temporary().join("skipped.txt"))
        .and_then(|mut file| file.write_all(line.as_bytes()))
        .expect("skipped.txt can be written");
}
