//! What the tests for AArch64 share: GNU's disassembler, files for AArch64, samples, and pseudo-random numbers.
#![allow(dead_code, reason = "each test uses a part of it")]

#[path = "../../../hodo-tests/src/skipped.rs"]
mod skipped;

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};

use object::{Object, ObjectSection};
pub use skipped::skip;

const OBJDUMP: &str = "aarch64-linux-gnu-objdump";

/// Samples of real code, with the output of GNU's disassembler (2.40) for them at address 0. They are from libc,
/// libstdc++, bash and python3 of Debian 12, up to six of each name and class.
pub const SAMPLES: &str = include_str!("../samples/aarch64_forms.txt");

/// Windows of real code from the same files.
pub const WINDOWS: &str = include_str!("../samples/aarch64_windows.txt");

/// Pseudo-random numbers, the same in each run.
pub struct Random(pub u64);

impl Random {
    /// Returns the next number.
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ z >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ z >> 31
    }

    /// Returns a number below `end`.
    pub fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }
}

/// One line of the disassembler.
#[derive(Debug)]
pub struct Line {
    pub addr: u64,
    pub word: u32,
    pub name: String,
    pub operands: String,
}

/// Returns whether there is no disassembler, and reports it in that case.
pub fn no_objdump() -> bool {
    let missing = Command::new(OBJDUMP)
        .arg("--version")
        .stdout(Stdio::null())
        .status()
        .is_err();
    if missing {
        skip(&format!(
            "there is no {OBJDUMP} (package binutils-aarch64-linux-gnu)"
        ));
    }
    missing
}

/// Parses a line of the disassembler. Returns `None` if it is not an instruction.
fn line(text: &str) -> Option<Line> {
    let mut parts = text.split('\t');
    let addr = parts.next()?.trim().strip_suffix(':')?;
    let addr = u64::from_str_radix(addr, 16).ok()?;
    let word = u32::from_str_radix(parts.next()?.trim(), 16).ok()?;
    let name = parts.next()?.trim().to_owned();
    let operands = parts.next().unwrap_or_default();
    let operands = operands.split(" <").next().unwrap_or_default();
    let operands = operands.split("//").next().unwrap_or_default();
    Some(Line {
        addr,
        word,
        name,
        operands: operands.trim().to_owned(),
    })
}

/// Disassembles a section of a file.
pub fn disassemble(path: &Path, section: &str, mut take: impl FnMut(Line)) {
    let mut child = Command::new(OBJDUMP)
        .args(["-d", "-z", "-j", section])
        .arg(path)
        .stdout(Stdio::piped())
        .spawn()
        .expect("the disassembler runs");
    let output = BufReader::new(child.stdout.take().expect("its output"));
    for text in output.lines() {
        line(&text.expect("text")).into_iter().for_each(&mut take);
    }
    assert!(child.wait().expect("it ends").success(), "objdump failed");
}

/// Disassembles code at an address, with or without the aliases that instructions have.
pub fn disassemble_code(code: &[u8], addr: u64, aliases: bool) -> Vec<Line> {
    static NUMBER: AtomicUsize = AtomicUsize::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR"));
    fs::create_dir_all(directory).expect("a directory for tests");
    let path = directory.join(format!("code-{}-{number}", std::process::id()));
    fs::write(&path, code).expect("the file can be written");
    let output = Command::new(OBJDUMP)
        .args(["-D", "-z", "-b", "binary", "-m", "aarch64", "-M"])
        .arg(if aliases { "aliases" } else { "no-aliases" })
        .arg(format!("--adjust-vma={addr:#x}"))
        .arg(&path)
        .output()
        .expect("the disassembler runs");
    assert!(output.status.success(), "objdump failed");
    fs::remove_file(&path).expect("it was there");
    let text = String::from_utf8(output.stdout).expect("text");
    text.lines().filter_map(line).collect()
}

/// Returns the samples that are kept in the tree.
pub fn samples() -> impl Iterator<Item = Line> {
    SAMPLES.lines().map(|text| {
        let mut parts = text.splitn(3, '\t');
        let word = parts
            .next()
            .and_then(|word| u32::from_str_radix(word, 16).ok());
        Line {
            addr: 0,
            word: word.expect("a word"),
            name: parts.next().expect("a name").to_owned(),
            operands: parts.next().unwrap_or_default().to_owned(),
        }
    })
}

/// Returns the code of a section of an ELF file, and its address.
pub fn section(path: &Path, name: &str) -> Option<(Vec<u8>, u64)> {
    let file = fs::read(path).ok()?;
    let file = object::File::parse(&*file).ok()?;
    let section = file.section_by_name(name)?;
    Some((section.data().ok()?.to_vec(), section.address()))
}

/// Returns files for AArch64: libraries of the cross compiler, if they are installed, and the files that
/// `HODO_AARCH64_FILES` names, separated by colons.
pub fn files() -> Vec<PathBuf> {
    let names = ["libc.so.6", "libstdc++.so.6", "ld-linux-aarch64.so.1"];
    let places = [
        "/usr/aarch64-linux-gnu/lib",
        "/lib/aarch64-linux-gnu",
        "/usr/lib/aarch64-linux-gnu",
    ];
    let all = names.iter().filter_map(|name| {
        let mut found = places.iter().map(|place| Path::new(place).join(name));
        found.find(|path| path.exists())
    });
    let more = std::env::var("HODO_AARCH64_FILES").unwrap_or_default();
    let more = more.split(':').filter(|path| !path.is_empty());
    let found: Vec<_> = all.chain(more.map(PathBuf::from)).collect();
    if found.is_empty() {
        skip("there are no files for AArch64 (package libc6-dev-arm64-cross)");
    }
    found
}
