//! The notes of tracepoints, in programs built in many ways: they describe what is there, and nothing else.
#![cfg(all(target_arch = "x86_64", target_os = "linux"))]

mod building;

use std::path::{Path, PathBuf};
use std::process::Command;

use building::elf::{Elf, Note};
use building::{Build, has_target, has_tool, place, run, skip};

const BFD: &str = "-C linker-features=-lld -C link-arg=-fuse-ld=bfd";

const SEEN: &str = r#"built:first x=41 text="some text"
built:generic value=7
built:generic value=-7
built:generic value="seven"
built:eight a=-1 b=2 c=-3 d=4 e=true f='f' g=7.5 h="eight"
hits 5
"#;

/// Name and arguments of each probe, as `readelf -n` shows them.
const PROBES: [(&str, &str); 5] = [
    (
        "eight",
        "-1@%dil 2@%si -4@%edx -8@%rcx 1@%r8b 4@%r9d 8@%r10 8@%r11",
    ),
    ("first", "8@%rdi 8@%rsi"),
    ("generic", "-2@%di"),
    ("generic", "1@%dil"),
    ("generic", "8@%rdi"),
];
const TYPES: [(&str, &str); 5] = [
    ("eight", "a:i8 b:u16 c:i32 d:i64 e:bool f:char g:f64 h:str"),
    ("first", "x:u64 text:str"),
    ("generic", "value:i16"),
    ("generic", "value:str"),
    ("generic", "value:u8"),
];

fn build(name: &str, options: &str) -> PathBuf {
    let mut build = Build::new("traced.rs", &format!("traced-{name}")).with(options);
    if name == "musl" {
        build = build.target("x86_64-unknown-linux-musl");
    }
    build.build()
}

/// The texts after the addresses, sorted.
fn texts(notes: &[Note]) -> Vec<(&str, &str)> {
    let mut texts: Vec<_> = notes
        .iter()
        .map(|note| {
            assert_eq!(note.group, "built");
            (&*note.name, &*note.arguments)
        })
        .collect();
    texts.sort_unstable();
    texts
}

fn check(name: &str, options: &str) {
    let program = build(name, options);
    check_notes(name, &program, &[]);
    assert_eq!(run(&program, &[]), SEEN, "{name}");
}

fn check_notes(name: &str, program: &Path, others: &[(&str, &str)]) {
    let elf = Elf::read(program);
    let probes = elf.notes(".note.stapsdt");
    let types = elf.notes(".note.hodo.tracepoint");
    let (mut expected, mut expected_types) = ([&PROBES[..], others].concat(), TYPES.to_vec());
    // GNU ld, which links for musl too, keeps all code that has branches, because the start of the table is used.
    if name.ends_with("bfd") || name == "musl" {
        expected.push(("unused", ""));
        expected_types.push(("unused", ""));
    }
    expected.sort_unstable();
    assert_eq!(texts(&probes), expected, "{name}");
    assert_eq!(texts(&types), expected_types, "{name}");
    for note in &types {
        // The nop that readers know, and a five-byte one.
        assert_eq!(
            elf.code(note.address, 6),
            [0x90, 0x0F, 0x1F, 0x44, 0, 0],
            "{name}: {note:?}"
        );
        let probe = probes.iter().find(|probe| probe.address == note.address);
        assert_eq!(probe.map(|probe| &probe.name), Some(&note.name), "{name}");
    }
    if !has_tool("readelf") {
        return skip("there is no readelf");
    }
    let output = Command::new("readelf")
        .args(["--notes", "--wide"])
        .arg(program)
        .output()
        .expect("readelf runs");
    let text = String::from_utf8_lossy(&output.stdout);
    for (probe, arguments) in PROBES {
        assert!(
            text.contains(&format!("    Name: {probe}\n"))
                && text.contains(&format!("    Arguments: {arguments}\n")),
            "{name}: {text}"
        );
    }
    assert!(output.stderr.is_empty(), "{name}: {output:?}");
}

#[test]
fn without_optimization() {
    check("0", "-C opt-level=0 -C codegen-units=16 -C debuginfo=2");
}

#[test]
fn at_a_fixed_address_by_gnu_ld() {
    if !has_tool("ld.bfd") {
        return skip("there is no ld.bfd");
    }
    check(
        "1-bfd",
        &format!("-C opt-level=1 -C codegen-units=1 -C relocation-model=static {BFD}"),
    );
}

#[test]
fn with_lto() {
    check("2-thin", "-C opt-level=2 -C lto=thin -C panic=unwind");
    check("3-fat", "-C opt-level=3 -C lto=fat -C panic=unwind");
    if !has_tool("ld.bfd") {
        return skip("there is no ld.bfd");
    }
    check(
        "3-fat-bfd",
        &format!("-C opt-level=3 -C lto=fat -C panic=unwind {BFD}"),
    );
}

#[test]
fn small_static_and_stripped() {
    check(
        "s",
        "-C opt-level=s -C target-feature=+crt-static -C strip=symbols",
    );
    if !has_tool("ld.bfd") {
        return skip("there is no ld.bfd");
    }
    check(
        "z-bfd",
        &format!("-C opt-level=z -C target-feature=+crt-static -C strip=symbols {BFD}"),
    );
}

#[test]
fn static_with_musl() {
    if !has_target("x86_64-unknown-linux-musl") {
        return skip("the standard library for musl is not installed (rustup target add)");
    }
    check("musl", "-C opt-level=2");
}

/// These notes are not ordered by the code they describe, so linkers put both kinds into one section.
#[test]
fn beside_probes_of_c() {
    if !Path::new("/usr/include/sys/sdt.h").exists()
        && !Path::new("/usr/include/x86_64-linux-gnu/sys/sdt.h").exists()
    {
        return skip("there is no sys/sdt.h");
    }
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/probed.c");
    let object = place().join("probed.o");
    let status = Command::new("cc")
        .args(["-O1", "-c", "-ffunction-sections", "-o"])
        .args([&object, &source])
        .status()
        .expect("the C compiler runs");
    assert!(status.success());
    let mut linkers = vec![("lld", "")];
    match has_tool("ld.bfd") {
        true => linkers.push(("bfd", BFD)),
        false => skip("there is no ld.bfd"),
    }
    for (linker, options) in linkers {
        let program = Build::new("traced.rs", &format!("traced-c-{linker}"))
            .with("-C opt-level=2 --cfg with_c")
            .with(options)
            .with_option("-C")
            .with_option(format!("link-arg={}", object.display()))
            .build();
        check_notes(linker, &program, &[("in_c", "-4@%edi")]);
        assert_eq!(run(&program, &[]), SEEN, "{linker}");
    }
}
