//! Branches in libraries that are loaded and unloaded.
#![cfg(all(target_arch = "x86_64", target_os = "linux"))]

mod building;

use std::path::Path;
use std::process::Command;

use building::elf::Elf;
use building::{Build, run_command};

const BFD: &str = "-C linker-features=-lld -C link-arg=-fuse-ld=bfd";

/// The host, which finds Rust's libraries and the shared one by `LD_LIBRARY_PATH`.
fn host_command(host: &Path) -> Command {
    let mut command = Command::new(host);
    let sysroot = Command::new(std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()))
        .args(["--print", "target-libdir"])
        .output()
        .expect("rustc runs");
    let sysroot = String::from_utf8_lossy(&sysroot.stdout).trim().to_owned();
    let own = host.parent().expect("a directory").display();
    command.env("LD_LIBRARY_PATH", format!("{own}:{sysroot}"));
    command
}

fn run_host(host: &Path, library: &Path, branches: usize) {
    let mut command = host_command(host);
    command.arg(library).arg("200");
    let text = run_command(command);
    assert_eq!(text.trim(), format!("{branches} branches are left"));
}

fn branches(path: &Path) -> usize {
    Elf::read(path).entries().len()
}

/// The library brings its own copy of hodo-keys.
fn separate(linker: &str, name: &str) {
    let options = format!("--check-cfg cfg(shared) -C opt-level=1 {linker}");
    let library = Build::new("plugin.rs", &format!("lib{name}_plugin.so"))
        .with("--crate-type cdylib")
        .with(&options)
        .build();
    let host = Build::new("host.rs", &format!("{name}_host"))
        .with(&options)
        .build();
    assert_eq!(branches(&library), 2);
    run_host(&host, &library, branches(&host));
}

/// The program and the library use one copy, in a third library, and branch on its keys.
fn shared(linker: &str, name: &str) {
    let options = format!(
        "--check-cfg cfg(shared) -C opt-level=2 -C prefer-dynamic -C panic=unwind --cfg shared {linker}"
    );
    let middle = Build::new("shared.rs", &format!("lib{name}_shared.so"))
        .with("--crate-type dylib --crate-name shared")
        .with(&options)
        .build();
    let with = format!("{options} --extern shared={}", middle.display());
    let library = Build::new("plugin.rs", &format!("lib{name}_plugin.so"))
        .with("--crate-type cdylib")
        .with(&with)
        .build();
    let host = Build::new("host.rs", &format!("{name}_host"))
        .with(&with)
        .build();
    assert_eq!((branches(&middle), branches(&library)), (0, 8));
    assert!(!Elf::read(&host).defines("hodo_keys8registry6switch"));
    run_host(&host, &library, branches(&host));
}

/// Deferred switching and the control socket have threads. The library with their code stays mapped as long as they
/// live.
#[test]
fn closed_libraries_stay_mapped_for_their_threads() {
    let library = Build::new("exposing_plugin.rs", "libexposing_plugin.so")
        .with("--crate-type cdylib -C opt-level=1")
        .build();
    let host = Build::new("exposing_host.rs", "exposing_host")
        .with("-C opt-level=1")
        .build();
    let mut command = Command::new(&host);
    command.arg(&library);
    assert_eq!(run_command(command).trim(), "the library says 1");
}

#[test]
fn libraries_with_their_own_copy() {
    separate("", "separate_lld");
}

#[test]
fn libraries_with_their_own_copy_by_gnu_ld() {
    separate(BFD, "separate_bfd");
}

#[test]
fn libraries_that_share_one_copy() {
    shared("", "shared_lld");
}

#[test]
fn libraries_that_share_one_copy_by_gnu_ld() {
    shared(BFD, "shared_bfd");
}

/// Functions for tracepoints of libraries that are loaded later, if both use one copy of hodo-keys. If the library has
/// its own copy, that still works for the library itself.
#[test]
fn tracepoints_of_libraries() {
    for (name, kind) in [
        ("traced_separate", ""),
        ("traced_common", "-C prefer-dynamic --cfg shared"),
    ] {
        let options = format!("--check-cfg cfg(shared) -C opt-level=2 -C panic=unwind {kind}");
        let mut with = options.clone();
        if name == "traced_common" {
            let middle = Build::new("traced_shared.rs", &format!("lib{name}_shared.so"))
                .with("--crate-type dylib --crate-name shared")
                .with(&options)
                .build();
            with += &format!(" --extern shared={}", middle.display());
        }
        let library = Build::new("traced_plugin.rs", &format!("lib{name}_plugin.so"))
            .with("--crate-type cdylib")
            .with(&with)
            .build();
        let host = Build::new("traced_host.rs", &format!("{name}_host"))
            .with(&with)
            .build();
        let mut command = host_command(&host);
        command.arg(&library);
        assert_eq!(run_command(command).trim(), "all is well");
    }
}
