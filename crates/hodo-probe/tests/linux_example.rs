//! The program in `examples/linux`: another package, which depends on the libraries as users' programs do.

#[path = "../../hodo-tests/src/skipped.rs"]
mod skipped;

use std::path::Path;
use std::process::Command;

#[test]
fn a_program_of_another_package_probes_itself() {
    for variable in ["HODO_EMULATED", "HODO_TEST_BUILT"] {
        if std::env::var_os(variable).is_some() {
            skipped::skip("cargo cannot build for the machine that runs this");
            return;
        }
    }
    let place = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/linux");
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["run", "--quiet", "--offline", "--locked", "--target-dir"]);
    cargo.arg(Path::new(env!("CARGO_TARGET_TMPDIR")).join("linux-program"));
    let output = cargo.current_dir(&place).output().expect("cargo runs");
    let expected = std::fs::read_to_string(place.join("expected.txt")).expect("it is there");
    assert!(
        output.status.success() && output.stdout == expected.as_bytes(),
        "{}:\n{}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
}
