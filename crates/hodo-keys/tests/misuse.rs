//! Misuse is a compiler error that can be understood.
//!
//! The comments of each program in `tests/misuse` say which texts the compiler's output must contain, in order, and
//! where the mistake is. They only contain our texts and the compiler's error numbers: the rest changes between
//! versions.
#![cfg(all(target_arch = "x86_64", target_os = "linux"))]

mod building;

use std::fs;
use std::path::Path;

use building::Build;

#[test]
fn the_compiler_reports_misuse() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/misuse");
    let mut programs: Vec<_> = fs::read_dir(directory)
        .expect("the programs")
        .map(|entry| entry.expect("a program").path())
        .collect();
    programs.sort();
    assert!(programs.len() >= 15, "{programs:?}");
    for path in programs {
        let name = path.file_stem().expect("a name").to_string_lossy();
        let source = fs::read_to_string(&path).expect("the program can be read");
        let expected: Vec<_> = source
            .lines()
            .filter_map(|line| line.strip_prefix("//~ "))
            .collect();
        assert!(!expected.is_empty(), "{name} expects nothing");
        let said = Build::of(&path, &format!("misuse-{name}")).fail();
        let mut rest = &*said;
        for text in expected {
            let Some((_, after)) = rest.split_once(text) else {
                panic!("{name}: no `{text}` in\n{said}")
            };
            rest = after;
        }
        let line = source.lines().position(|line| line.ends_with(" // here"));
        let place = format!("{name}.rs:{}:", line.expect("a line with that end") + 1);
        assert!(said.contains(&place), "{name}: no {place} in\n{said}");
    }
}
