//! What threads do not record, because it changes no cache (`hodo mem cache`).

use std::path::Path;
use std::process::Command;

use hodo_tests::{Kind, build, has_tool, hodo, needs, scratch};
use serde_json::Value;

/// The result of a simulation, with addresses that are the same in each run.
fn simulated(options: &[&str], command: &[&str]) -> Value {
    let mut simulate = Command::new("setarch");
    simulate.args(["-R", hodo().to_str().expect("text"), "mem", "cache"]);
    simulate
        .args(["--format", "json"])
        .args(options)
        .arg("--")
        .args(command)
        .env("TZ", "UTC");
    let output = simulate.output().expect("hodo can be run");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    let mut value: Value = serde_json::from_slice(&output.stderr).expect("a result");
    for thread in value["threads"].as_array_mut().expect("a list") {
        for key in ["process", "tid"] {
            assert!(thread[key].take().as_u64() > Some(1));
        }
    }
    value
}

/// Simulates caches with all accesses, for which a page needs them, and without those that change nothing.
fn is_same(options: &[&str], command: &[&str]) {
    let all = simulated(&[options, &["--html", "/dev/null"]].concat(), command);
    let some = simulated(options, command);
    let misses = all["levels"][1]["misses"].as_u64();
    assert!(misses > Some(100), "{misses:?}");
    for key in ["levels", "threads", "functions", "lines", "instructions"] {
        assert!(
            all[key] == some[key],
            "{command:?} with {options:?}: {key} differ"
        );
    }
}

fn path(program: &Path) -> &str {
    program.to_str().expect("text")
}

#[test]
fn all_caches_of_small_programs_are_the_same() {
    let programs =
        ["masks.c", "strides.c", "distances.c"].map(|source| build(source, Kind::Static, &[]));
    for program in &programs {
        for options in [
            &["--d1", "1024,8,64", "--i1", "1024,2,64"][..],
            &["--d1", "65536,1,64", "--i1", "65536,2,64", "--instructions"],
            &[
                "--d1",
                "16384,4,128",
                "--ll",
                "65536,16,64",
                "--replacement",
                "fifo",
            ],
            &[
                "--like",
                "zen3",
                "--replacement",
                "tree-plru",
                "--l2",
                "32768,8,64",
            ],
            &["--replacement", "random"],
            // Threads cannot compare these.
            &["--d1", "1536,8,64"],
            &["--d1", "512,8,64"],
            &["--write-backs", "--causes"],
        ] {
            is_same(options, &[path(program)]);
        }
    }
}

#[test]
fn caches_of_odd_programs_are_the_same() {
    for source in ["rewritten.c", "jumps.c", "tail_calls.c", "coroutines.c"] {
        is_same(&[], &[path(&build(source, Kind::Pie, &[]))]);
    }
}

#[test]
fn caches_of_a_compressor_are_the_same() {
    needs!(has_tool("gzip"), "it is not installed");
    let place = scratch("compressed");
    let text = place.join("text");
    let lines = (0..30_000).map(|number| format!("{number}\n"));
    std::fs::write(&text, lines.collect::<String>()).expect("room");
    let command = ["gzip", "-c", path(&text)];
    is_same(&["--ll", "262144,16,64"], &command);
    std::fs::remove_dir_all(place).expect("own files");
}

#[test]
fn caches_of_a_database_are_the_same() {
    needs!(has_tool("sqlite3"), "it is not installed");
    let query = "with recursive t(i) as (select 1 union all select i + 1 from t where i < 3000) \
                 select sum(i * i % 7) from t";
    is_same(&["--like", "skylake"], &["sqlite3", ":memory:", query]);
    let some = [
        "--only",
        "*@libc",
        "--only",
        "*@libsqlite3",
        "--skip",
        "mem*",
    ];
    is_same(&some, &["sqlite3", ":memory:", query]);
}
