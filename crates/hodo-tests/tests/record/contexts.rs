//! What signal handlers see when they interrupt moved code, and what happens to the changes they make.

use std::path::Path;
use std::process::Command;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;

use hodo_tests::{Kind, build, hodo, scratch};

/// The program's output, alone and under `hodo` with these arguments: both must be the same.
fn same(program: &Path, arguments: &[&str], of_hodo: impl Fn(&str) -> bool) -> String {
    let alone = Command::new(program).output().expect("the program runs");
    assert_eq!(alone.status.code(), Some(0), "{alone:?}");
    let alone = String::from_utf8(alone.stdout).expect("text");
    static RUNS: AtomicU32 = AtomicU32::new(0);
    let data = scratch(&format!("contexts-{}", RUNS.fetch_add(1, Relaxed)));
    let output = Command::new("timeout")
        .args(["-s", "KILL", "300"])
        .arg(hodo())
        .args(arguments)
        .arg("-d")
        .arg(data.join("data"))
        .arg("--")
        .arg(program)
        .output()
        .expect("hodo runs");
    assert_eq!(output.status.code(), Some(0), "{arguments:?}: {output:?}");
    let text = String::from_utf8(output.stdout).expect("text");
    let (own, rest): (Vec<&str>, Vec<&str>) = text.lines().partition(|line| !of_hodo(line));
    assert_eq!(own.join("\n"), alone.trim_end(), "{arguments:?}");
    let _ = std::fs::remove_dir_all(data);
    rest.join("\n")
}

#[test]
fn handlers_see_and_change_the_program() {
    let kinds = [Kind::Pie, Kind::Fixed, Kind::Static, Kind::Musl];
    for kind in kinds.into_iter().filter(|kind| kind.is_available()) {
        let program = build("contexts.c", kind, &[]);
        let file = program.to_str().expect("a path of text");
        same(&program, &["record"], |_| false);
        same(&program, &["record", "-l", "--no-time"], |_| false);
        let every = format!("{file}:*+* count");
        let counts = same(&program, &["probe", "-e", &every], |line| {
            line.contains(": (") || line.contains("HITS") || line.contains("not hit")
        });
        let hits = |place: &str| {
            let line = counts
                .lines()
                .find(|line| line.contains(&format!("({place})")));
            let hits = line.and_then(|line| line.split_whitespace().next());
            hits.unwrap_or_else(|| panic!("{place} in {counts}"))
                .parse::<u64>()
                .expect("a number")
        };
        // Of 550 loads, 400 were left by a jump, and 50 were skipped. Nothing is counted that was not executed, or
        // counted twice.
        let expected: &[(&str, u64)] = match () {
            () if cfg!(target_arch = "x86_64") => &[
                ("load+0x0", 550),
                ("load+0x2", 550),
                ("load+0x4", 150),
                ("illegal+0x5", 100),
                ("illegal+0x7", 100),
                ("divide+0x3", 100),
                ("divide+0x5", 100),
            ],
            () if cfg!(target_arch = "aarch64") => &[
                ("load+0x0", 550),
                ("load+0x4", 550),
                ("load+0x8", 150),
                ("illegal+0x0", 100),
                ("illegal+0x8", 100),
                ("divide+0xc", 100),
                ("divide+0x10", 100),
            ],
            () => &[
                ("load+0x0", 550),
                ("load+0x2", 550),
                ("load+0x6", 150),
                ("illegal+0x0", 100),
                ("illegal+0x4", 100),
                ("divide+0x4", 100),
            ],
        };
        for &(place, count) in expected {
            assert_eq!(hits(place), count, "{place}");
        }
        if kind == Kind::Pie {
            same(&program, &["probe", "-e", "libc.so.6:*+* count"], |line| {
                line.contains(": (") || line.contains("HITS") || line.contains("not hit")
            });
        }
    }
}
