//! One program, built in every way: optimization levels, kinds of linking, linkers.
#![cfg(all(target_arch = "x86_64", target_os = "linux"))]

mod building;

use building::elf::Elf;
use building::{Build, has_target, has_tool, run, skip};

const MUSL: &str = "x86_64-unknown-linux-musl";
const LTO: [(&str, &str); 3] = [
    ("separate", ""),
    ("thin", "-C lto=thin -C panic=unwind"),
    ("fat", "-C lto=fat -C panic=unwind"),
];
const UNITS: [&str; 2] = ["1", "16"];
const KINDS: [(&str, &str); 5] = [
    ("pie", "-C relocation-model=pic"),
    ("fixed", "-C relocation-model=static"),
    ("static-pie", "-C target-feature=+crt-static"),
    (
        "static",
        "-C target-feature=+crt-static -C relocation-model=static",
    ),
    ("musl", ""),
];
const LINKERS: [(&str, &str); 2] = [
    ("lld", ""),
    ("bfd", "-C linker-features=-lld -C link-arg=-fuse-ld=bfd"),
];

/// Builds it in one way, checks its branches, and runs it.
fn check(level: &str, lto: usize, units: &str, kind: usize, linker: usize, time: &str) {
    let (lto, lto_options) = LTO[lto];
    let (kind, kind_options) = KINDS[kind];
    let (linker, linker_options) = LINKERS[linker];
    let name = format!("switching-{level}-{lto}-{units}-{kind}-{linker}");
    let mut build = Build::new("switching.rs", &name)
        .with(&format!("-C opt-level={level} -C codegen-units={units}"))
        .with(lto_options)
        .with(kind_options);
    if kind == "musl" {
        if !has_target(MUSL) {
            return skip("the standard library for musl is not installed (rustup target add)");
        }
        build = build.target(MUSL);
    } else {
        if linker == "bfd" && !has_tool("ld.bfd") {
            return skip("there is no ld.bfd");
        }
        build = build.with(linker_options);
    }
    let program = build.build();
    let entries = Elf::read(&program).entries();
    for entry in &entries {
        assert!(entry.is_right(), "{name}: {entry:?}");
    }
    // Two functions have four branches each.
    assert!(entries.len() >= 9, "{name}: {entries:?}");
    // Without optimization all jumps only skip the code that makes the value `true`.
    for size in if level == "0" { &[2][..] } else { &[2, 5] } {
        let of_size = || {
            entries
                .iter()
                .filter(|entry| entry.instruction.len() == *size)
        };
        assert!(
            of_size().any(|entry| entry.is_jump()),
            "{name}: {entries:?}"
        );
        assert!(
            of_size().any(|entry| !entry.is_jump()),
            "{name}: {entries:?}"
        );
    }
    run(&program, &[time, "20"]);
    std::fs::remove_file(program).expect("the program is ours");
}

#[test]
fn without_optimization() {
    check("0", 0, "16", 0, 0, "700");
}

#[test]
fn at_a_fixed_address_by_gnu_ld() {
    check("1", 0, "1", 1, 1, "700");
}

#[test]
fn with_thin_lto_by_gnu_ld() {
    check("2", 1, "16", 0, 1, "700");
}

#[test]
fn with_fat_lto() {
    check("3", 2, "1", 0, 0, "1000");
}

#[test]
fn small_and_static() {
    check("s", 0, "1", 2, 0, "700");
}

#[test]
fn smallest_and_static_at_a_fixed_address_by_gnu_ld() {
    check("z", 0, "1", 3, 1, "700");
}

#[test]
fn static_with_musl() {
    check("3", 0, "16", 4, 0, "700");
}

#[test]
fn functions_with_the_same_code_stay_apart() {
    for folding in ["safe", "all"] {
        let program = Build::new("folded.rs", &format!("folded-{folding}"))
            .with(&format!("-C opt-level=2 -C link-arg=-Wl,--icf={folding}"))
            .build();
        run(&program, &[]);
        // The two branches on the same key may be merged.
        let branches = Elf::read(&program).entries().len();
        assert!((4..=5).contains(&branches), "{folding}: {branches}");
    }
}

fn in_all_ways(level: &str) {
    for lto in 0..LTO.len() {
        // Fat LTO merges the units.
        for units in &UNITS[..if LTO[lto].0 == "fat" { 1 } else { 2 }] {
            for (kind, (name, _)) in KINDS.iter().enumerate() {
                let linkers = if *name == "musl" { 1 } else { LINKERS.len() };
                for linker in 0..linkers {
                    check(level, lto, units, kind, linker, "300");
                }
            }
        }
    }
}

macro_rules! all_ways {
    ($($name:ident: $level:literal),*) => {$(
        #[test]
        #[ignore = "builds 45 programs, which takes some minutes"]
        fn $name() {
            in_all_ways($level);
        }
    )*};
}

all_ways! {
    in_all_ways_at_level_0: "0",
    in_all_ways_at_level_1: "1",
    in_all_ways_at_level_2: "2",
    in_all_ways_at_level_3: "3",
    in_all_ways_at_level_s: "s",
    in_all_ways_at_level_z: "z"
}
