//! Programs with very many branches.
#![cfg(all(target_arch = "x86_64", target_os = "linux"))]

mod building;

use building::elf::Elf;
use building::{Build, run};

/// Builds it with this many branches, checks them all, and runs it.
fn check(name: &str, branches: usize, options: &str) {
    let program = Build::new("many.rs", name)
        .with("--check-cfg cfg(all_blocks)")
        .with(options)
        .build();
    let entries = Elf::read(&program).entries();
    assert_eq!(entries.len(), branches);
    let mut short = 0;
    for entry in &entries {
        assert!(entry.is_right(), "{entry:?}");
        short += usize::from(entry.instruction.len() == 2);
    }
    if !options.contains("opt-level=0") {
        assert!(
            short > branches / 4 && short < branches * 3 / 4,
            "{short} of {branches} are short"
        );
    }
    let text = run(&program, &[]);
    assert!(
        text.starts_with(&format!("{branches} branches, ")),
        "{text}"
    );
    println!("{text}");
    std::fs::remove_file(program).expect("the program is ours");
}

#[test]
fn ten_thousand_branches() {
    check("many", 10_000, "-C opt-level=1");
}

#[test]
fn fork_while_the_table_is_sorted() {
    let program = Build::new("many.rs", "many-fork")
        .with("--check-cfg cfg(all_blocks) -C opt-level=1")
        .build();
    run(&program, &["fork"]);
}

#[test]
#[ignore = "compiles for a minute"]
fn a_hundred_thousand_branches() {
    check("many-all", 100_000, "-C opt-level=2 --cfg all_blocks");
}

#[test]
#[ignore = "compiles for a minute"]
fn a_hundred_thousand_branches_without_optimization() {
    check("many-all-0", 100_000, "-C opt-level=0 --cfg all_blocks");
}
