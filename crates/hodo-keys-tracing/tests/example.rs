//! The example prints what it should.

use std::path::PathBuf;
use std::process::Command;

/// What it prints for a level.
fn run(level: &str) -> String {
    let target = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    let target = target.parent().expect("the target directory");
    let example = target.join("debug/examples/tracing");
    // `scripts/test.sh` has built all examples.
    if std::env::var_os("HODO_TEST_BUILT").is_none() || !example.exists() {
        let status = Command::new(env!("CARGO"))
            .args(["build", "--quiet", "--package", "hodo-keys-tracing"])
            .args(["--example", "tracing", "--target-dir"])
            .arg(target)
            .status()
            .expect("cargo can be run");
        assert!(status.success(), "the example cannot be built");
    }
    let output = Command::new(example)
        .arg(level)
        .output()
        .expect("it can be run");
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).expect("text")
}

#[test]
fn the_level_changes_while_it_runs() {
    let debug = |id: u32, path: &str| {
        let length = path.len();
        format!(
            "DEBUG request{{id={id}}}: tracing: begins path=\"{path}\"\n\
             DEBUG request{{id={id}}}: tracing: ends length={length}\n"
        )
    };
    let second = debug(2, "/debugged");
    assert_eq!(
        run("info"),
        format!(" INFO tracing: begins places=5 level=info\n{second} INFO tracing: ends\n")
    );
    let first = debug(1, "/");
    assert_eq!(
        run("debug"),
        format!(" INFO tracing: begins places=5 level=debug\n{first}{second} INFO tracing: ends\n")
    );
    assert_eq!(run("off"), format!("{second} INFO tracing: ends\n"));
}
