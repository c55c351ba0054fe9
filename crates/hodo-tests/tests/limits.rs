//! Limits on resources: the program runs as it does alone, and what a limit takes from the trace is said.

use std::os::unix::fs::MetadataExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use hodo_tests::{Kind, Run, Trace, build, hodo, scratch};

/// Runs a program alone and traced under limits that a shell sets. Returns what hodo said, and the calls of `leaf`.
fn limited(limit: &str, options: &[&str]) -> (String, u64) {
    let program = build("busy_threads.c", Kind::Pie, &[]);
    let script = format!("ulimit {limit} && exec \"$@\"");
    let run = Run::new(&format!("limited{}", limit.replace(' ', "")), program);
    let run = run.inside(["bash", "-c", &script, "bash"]);
    let (alone, traced) = (run.alone(), run.traced(options));
    assert_eq!(alone, traced.outcome, "{limit}: {}", traced.remarks);
    let calls = traced.trace.calls().get("leaf").copied();
    (traced.remarks, calls.unwrap_or(0))
}

#[test]
fn a_soft_limit_on_the_size_of_files_is_the_programs() {
    let (remarks, calls) = limited("-Sf 0", &[]);
    assert_eq!(remarks, "");
    assert!(calls > 100_000, "{calls}");
}

#[test]
fn a_hard_limit_on_the_size_of_files_ends_the_trace_and_not_the_program() {
    let (remarks, calls) = limited("-f 17000", &[]);
    assert!(calls > 1000, "{calls}");
    // Whoever has the right to raise it does.
    if !remarks.is_empty() {
        assert!(remarks.contains(" records were lost"), "{remarks}");
        assert!(remarks.contains("ulimit -f"), "{remarks}");
    }
}

/// The file of a recorder that was killed is not much larger than what is in it, and it can be read.
#[test]
fn what_a_killed_recorder_leaves() {
    const MOST: u64 = 4 << 30;
    let place = scratch("killed_recorder");
    let data = place.join("data");
    // It runs until its input ends.
    let program = build("controlled.c", Kind::Pie, &[]);
    let mut recorder = Command::new(hodo())
        .args(["record".as_ref(), "-d".as_ref(), data.as_os_str()])
        .args(["--".as_ref(), program.as_os_str()])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .expect("hodo can be run");
    let begun = Instant::now();
    let events = data.join("events");
    let is_filled = || {
        let bytes = std::fs::metadata(&events).map_or(0, |events| events.blocks() * 512);
        bytes > 2 << 20
    };
    while !is_filled() {
        assert!(
            begun.elapsed() < Duration::from_secs(60),
            "nothing is recorded"
        );
        std::thread::sleep(Duration::from_millis(5));
    }
    recorder.kill().expect("it runs");
    let input = recorder.stdin.take();
    recorder.wait().expect("it was killed");
    drop(input);
    let size = std::fs::metadata(&events).expect("the events").len();
    assert!(size < MOST, "{size}");
    let calls = Trace::new(data).calls();
    assert!(calls["leaf"] > 1000, "{calls:?}");
    std::fs::remove_dir_all(place).expect("nobody is in it");
}
