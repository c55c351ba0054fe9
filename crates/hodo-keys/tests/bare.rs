//! Programs without a standard library.
#![cfg(all(target_arch = "x86_64", target_os = "linux"))]

mod building;

use building::elf::Elf;
use building::{Build, has_target, has_tool, run, skip};

const NONE: &str = "x86_64-unknown-none";

#[track_caller]
fn check(build: &Build) {
    let program = build.build();
    let entries = Elf::read(&program).entries();
    assert_eq!(entries.len(), 5, "{entries:?}");
    assert!(entries.iter().all(|entry| entry.is_right()), "{entries:?}");
    run(&program, &[]);
}

/// Neither a C library nor its start-up code, so nobody calls constructors.
fn linux(name: &str, options: &str) -> Build {
    Build::new("bare.rs", name)
        .bare()
        .with("-C opt-level=2 -C link-arg=-nostdlib -C link-arg=-nostartfiles -C link-arg=-static")
        .with("-C relocation-model=static -C target-feature=+crt-static")
        .with(options)
}

#[test]
fn without_a_c_library() {
    check(&linux("bare-lld", ""));
}

#[test]
fn without_a_c_library_by_gnu_ld() {
    if !has_tool("ld.bfd") {
        return skip("there is no ld.bfd");
    }
    let options = "-C linker-features=-lld -C link-arg=-fuse-ld=bfd";
    check(&linux("bare-bfd", options));
}

#[test]
fn without_an_operating_system() {
    if !has_target(NONE) {
        return skip("core for x86_64-unknown-none is not installed (rustup target add)");
    }
    check(
        &Build::new("bare.rs", "bare-none")
            .bare()
            .target(NONE)
            .with("-C opt-level=2 -C relocation-model=static -C code-model=small"),
    );
}
