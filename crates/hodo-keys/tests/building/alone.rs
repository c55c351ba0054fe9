//! Tests that change something of their whole process.

use std::env;
use std::process::Command;

use super::run_command;

/// Runs this test again in its own process. Returns true in that process, where the test must be done; returns false
/// here once it has succeeded there.
#[track_caller]
pub fn alone(test: &str) -> bool {
    const VARIABLE: &str = "HODO_KEYS_TEST_ALONE";
    if env::var_os(VARIABLE).is_some() {
        return true;
    }
    let mut command = Command::new(env::current_exe().expect("the tests' own program"));
    command
        .args([test, "--exact", "--nocapture", "--test-threads=1"])
        .env(VARIABLE, "1");
    let text = run_command(command);
    assert!(text.contains("1 passed"), "{text}");
    print!("{text}");
    false
}
