//! Tests that change something of their whole process.

use std::env;
use std::process::Command;

use super::run_command;

/// Runs this test again in a process of its own, where this returns true: the test is to be made there. Returns false
/// when that has succeeded.
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
