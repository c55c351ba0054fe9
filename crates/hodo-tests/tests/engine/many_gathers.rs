//! A program that does little but gather: its output is what it is alone, and each access is seen once.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use hodo_tests::{Ended, Kind, Run, build, example, hodo, needs, scratch};
use serde_json::Value;

const NO_VECTORS: &str = "the processor has no AVX2";

fn program() -> PathBuf {
    build("many_gathers.c", Kind::Pie, &[])
}

/// What the program prints, and how many gathers and accesses it says that it has made.
fn alone(name: &str, arguments: [&str; 2]) -> (Vec<u8>, u64, u64) {
    let ran = Run::new(&format!("{name}-alone"), program())
        .args(arguments)
        .alone();
    assert_eq!(ran.ended, Ended::Code(0), "{ran:?}");
    let (gathers, accesses) = counts(&String::from_utf8_lossy(&ran.stderr));
    (ran.stdout, gathers, accesses)
}

/// The numbers in the last line with "gathers and scatters".
fn counts(text: &str) -> (u64, u64) {
    let line = text
        .lines()
        .rfind(|line| line.contains(" gathers and scatters, "))
        .unwrap_or_else(|| panic!("no counts: {text}"));
    let numbers: Vec<u64> = line
        .split([' ', ','])
        .filter_map(|word| word.parse().ok())
        .collect();
    (numbers[0], numbers[1])
}

/// Loads that a tool of hodo counts in the function that gathers. `-d` reads a recording.
fn loads(arguments: &[&str]) -> u64 {
    let output = Command::new(hodo())
        .args(["mem", "stat", "--format", "json", "--only", "gather_*"])
        .args(arguments)
        .output()
        .expect("hodo can be run");
    assert!(output.status.success(), "{output:?}");
    let text = match arguments[0] {
        "-d" => output.stdout,
        _ => {
            let text = String::from_utf8(output.stderr).expect("text");
            let json = text.find('{').expect("JSON");
            text.as_bytes()[json..].to_vec()
        }
    };
    let value: Value = serde_json::from_slice(&text).expect("JSON");
    value["loads"].as_u64().expect("a number")
}

#[test]
fn each_gather_is_counted() {
    needs!(std::is_x86_feature_detected!("avx2"), NO_VECTORS);
    let program = program();
    let program = program.to_str().expect("text");
    for lanes in ["all", "some"] {
        // What else the function loads does not depend on the number of rounds.
        let (_, _, few) = alone("gathers-counted", ["1000", lanes]);
        let (_, _, many) = alone("gathers-counted", ["1000000", lanes]);
        let of = |count| loads(&["--", program, count, lanes]);
        assert_eq!(of("1000000") - of("1000"), many - few, "{lanes} lanes");
    }
}

#[test]
fn each_gather_is_recorded() {
    needs!(std::is_x86_feature_detected!("avx2"), NO_VECTORS);
    let program = program();
    for lanes in ["all", "some"] {
        let of = |count| {
            let (output, _, accesses) = alone("gathers-recorded", [count, lanes]);
            let directory = scratch("gathers-recording").join("recording");
            let directory = directory.to_str().expect("text");
            let recorded = Run::new("gathers-recorded", hodo())
                .args(["mem", "record", "-d", directory, "--"])
                .args([program.as_os_str()])
                .args([count, lanes])
                .alone();
            assert_eq!(recorded.stdout, output, "{recorded:?}");
            let loads = loads(&["-d", directory]);
            fs::remove_dir_all(directory).expect("it can be removed");
            (loads, accesses)
        };
        let (few, many) = (of("1000"), of("200000"));
        assert_eq!(many.0 - few.0, many.1 - few.1, "{lanes} lanes");
    }
}

#[test]
fn each_gather_is_expanded() {
    needs!(std::is_x86_feature_detected!("avx2"), NO_VECTORS);
    let program = program();
    for lanes in ["all", "some"] {
        let (output, gathers, accesses) = alone("gathers-expanded", ["1000000", lanes]);
        let expanded = |options: &[&str]| {
            let ran = Run::new("gathers-expanded", example("hodo-dbi", "expand"))
                .args(options)
                .args([program.as_os_str()])
                .args(["1000000", lanes])
                .alone();
            assert_eq!(ran.stdout, output, "{ran:?}");
            counts(&String::from_utf8_lossy(&ran.stderr))
        };
        assert_eq!(expanded(&[]), (gathers, accesses), "{lanes} lanes");
        // Nothing is counted then.
        assert_eq!(expanded(&["--uncounted"]), (0, 0), "{lanes} lanes");
    }
}
