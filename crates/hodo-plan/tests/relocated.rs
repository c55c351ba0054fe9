//! Code that the dynamic linker changes is left alone; a file that only claims to have such code is not.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use hodo_plan::model::Wanted;
use hodo_plan::{PlanOptions, plan, plan_probes};
use object::elf;
use object::read::elf::ElfFile64;
use object::{Endianness, Object, ObjectSection};

const REASON: &str = "its code is relocated when it is loaded";

/// A library with addresses in its code, and in its data.
const SOURCE: &str = "
    .text
    .globl work
    .type work, @function
work:
    nop
    nop
    nop
    nop
    nop
    nop
    nop
    nop
    ret
    .size work, .-work
    .quad work
    .quad work
    .data
    .quad work
";

/// Size of a relocation in bytes, and the offset of its type.
const RELOCATION: usize = 24;
const KIND: std::ops::Range<usize> = 8..12;

fn library(name: &str) -> (PathBuf, Vec<u8>) {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("relocated");
    std::fs::create_dir_all(&directory).expect("a directory for programs");
    let source = directory.join(format!("{name}.s"));
    std::fs::write(&source, SOURCE).expect("a source");
    let path = directory.join(name);
    let output = Command::new("gcc")
        .stdin(Stdio::null())
        .args(["-shared", "-nostdlib", "-Wl,-z,notext", "-o"])
        .args([&path, &source])
        .output()
        .expect("gcc is needed");
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
    let bytes = std::fs::read(&path).expect("a library");
    (path, bytes)
}

/// Returns why nothing in it is traced or probed; `None` if something is.
fn refused(path: &Path, bytes: &[u8]) -> Option<String> {
    let planned = plan(path, bytes, &PlanOptions::default()).expect("a plan");
    let work = planned.functions.iter().find(|f| f.name == "work");
    let traced = work.expect("a function").outcome.as_ref().err().cloned();
    let probes = plan_probes(path, bytes, Wanted::Every, 1).expect("a plan");
    let every = probes.refused.len() == probes.total;
    assert_eq!(every, traced.is_some(), "{:?}", probes.refused);
    if traced.is_some() {
        for remarks in [&planned.remarks, &probes.remarks] {
            assert!(remarks.iter().any(|remark| remark.ends_with(REASON)));
        }
    }
    traced.map(|reason| reason.to_string())
}

/// The file offsets of the relocations of its code.
fn of_code(bytes: &[u8]) -> Vec<usize> {
    let file: ElfFile64<'_, Endianness> = ElfFile64::parse(bytes).expect("a library");
    let text = file.section_by_name(".text").expect("code");
    let text = text.address()..text.address() + text.size();
    let table = file.section_by_name(".rela.dyn").expect("relocations");
    let (start, size) = table.file_range().expect("their place");
    let entries = (start as usize..(start + size) as usize).step_by(RELOCATION);
    let place = |at: usize| bytes[at..at + 8].try_into().map(u64::from_le_bytes);
    let found: Vec<usize> = entries
        .filter(|&at| text.contains(&place(at).expect("a place")))
        .collect();
    assert_eq!(found.len(), 2);
    found
}

#[test]
fn relocated_code_is_refused() {
    let (path, bytes) = library("relocated");
    assert_eq!(refused(&path, &bytes).as_deref(), Some(REASON));
}

#[test]
fn relocations_that_do_nothing_are_no_obstacle() {
    let (path, mut bytes) = library("nothing");
    let [first, second] = of_code(&bytes)[..] else {
        panic!("two relocations");
    };
    bytes[first..][KIND].fill(0);
    assert_eq!(refused(&path, &bytes).as_deref(), Some(REASON));
    bytes[second..][KIND].fill(0);
    assert_eq!(refused(&path, &bytes), None);
}

#[test]
fn unreadable_relocations_count_as_relocations_of_code() {
    let (path, mut bytes) = library("unread");
    for at in of_code(&bytes) {
        bytes[at..][KIND].fill(0);
    }
    let file: ElfFile64<'_, Endianness> = ElfFile64::parse(&bytes[..]).expect("a library");
    let dynamic = file.section_by_name(".dynamic").expect("a table");
    let (start, size) = dynamic.file_range().expect("its place");
    let entries = (start as usize..(start + size) as usize).step_by(16);
    let tag = u64::from(elf::DT_RELA).to_le_bytes();
    let entry = entries.into_iter().find(|&at| bytes[at..at + 8] == tag);
    let entry = entry.expect("relocations");
    bytes[entry + 8..entry + 16].copy_from_slice(&u64::MAX.to_le_bytes());
    assert_eq!(refused(&path, &bytes).as_deref(), Some(REASON));
}
