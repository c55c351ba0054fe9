//! What the tests for RISC-V share: pseudo-random numbers, and GNU's disassembler.
#![allow(dead_code)]

#[path = "../../../hodo-tests/src/skipped.rs"]
mod skipped;

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};

use object::{Object, ObjectSection};
use skipped::skip;

/// The disassembler.
pub const OBJDUMP: &str = "riscv64-linux-gnu-objdump";

/// The extensions, by the names that this version of the disassembler knows.
const ARCH: &str = "rv64i2p1_m2p0_a2p0_f2p2_d2p2_c2p0_v1p0_zicsr2p0_zifencei2p0_zihintpause2p0\
    _zicbom1p0_zicbop1p0_zicboz1p0_zawrs1p0_zba1p0_zbb1p0_zbc1p0_zbs1p0_svinval1p0";

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
pub struct Line {
    pub addr: u64,
    pub len: usize,
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
            "there is no {OBJDUMP} (package binutils-riscv64-linux-gnu)"
        ));
    }
    missing
}

/// Returns an ELF file that has only this code at this address, and the names of the extensions.
fn elf(code: &[u8], addr: u64) -> Vec<u8> {
    let mut attributes = b"\x05".to_vec();
    attributes.extend_from_slice(ARCH.as_bytes());
    attributes.push(0);
    let mut file = b"\x01".to_vec();
    file.extend_from_slice(&(attributes.len() as u32 + 5).to_le_bytes());
    file.extend_from_slice(&attributes);
    let mut vendor = b"riscv\0".to_vec();
    vendor.extend_from_slice(&file);
    let mut section = b"A".to_vec();
    section.extend_from_slice(&(vendor.len() as u32 + 4).to_le_bytes());
    section.extend_from_slice(&vendor);

    const HEADER: u64 = 64;
    let names = b"\0.text\0.riscv.attributes\0.shstrtab\0";
    let at_section = HEADER + code.len() as u64;
    let at_names = at_section + section.len() as u64;
    let at_headers = (at_names + names.len() as u64).next_multiple_of(8);

    let mut out = b"\x7FELF\x02\x01\x01\0\0\0\0\0\0\0\0\0".to_vec();
    out.extend_from_slice(&[2, 0, 243, 0, 1, 0, 0, 0]);
    for word in [addr, 0, at_headers] {
        out.extend_from_slice(&word.to_le_bytes());
    }
    // Flags: compressed instructions, doubles in registers.
    out.extend_from_slice(&5u32.to_le_bytes());
    for half in [64u16, 56, 0, 64, 4, 3] {
        out.extend_from_slice(&half.to_le_bytes());
    }
    out.extend_from_slice(code);
    out.extend_from_slice(&section);
    out.extend_from_slice(names);
    out.resize(at_headers as usize, 0);
    let mut header = |name: u32, sort: u32, flags: u64, addr: u64, offset: u64, size: usize| {
        out.extend_from_slice(&name.to_le_bytes());
        out.extend_from_slice(&sort.to_le_bytes());
        for word in [flags, addr, offset, size as u64, 0, 1, 0] {
            out.extend_from_slice(&word.to_le_bytes());
        }
    };
    header(0, 0, 0, 0, 0, 0);
    header(1, 1, 6, addr, HEADER, code.len());
    header(7, 0x7000_0003, 0, 0, at_section, section.len());
    header(25, 3, 0, 0, at_names, names.len());
    out
}

/// Returns the path of a file of this name, in the directory for tests.
fn scratch(name: &str) -> PathBuf {
    static NUMBER: AtomicUsize = AtomicUsize::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR"));
    fs::create_dir_all(directory).expect("a directory for tests");
    directory.join(format!("{name}-{}-{number}", std::process::id()))
}

/// Disassembles code, line by line.
pub fn disassemble(code: &[u8], addr: u64, take: impl FnMut(Line)) {
    let path = scratch("code");
    fs::write(&path, elf(code, addr)).expect("the file can be written");
    disassemble_file(&path, take);
    fs::remove_file(&path).expect("it was there");
}

/// Disassembles a file.
pub fn disassemble_file(path: &Path, mut take: impl FnMut(Line)) {
    let mut child = Command::new(OBJDUMP)
        .args(["-d", "-z", "-M", "no-aliases"])
        .arg(path)
        .stdout(Stdio::piped())
        .spawn()
        .expect("the disassembler runs");
    let output = BufReader::new(child.stdout.take().expect("its output"));
    for line in output.lines() {
        let line = line.expect("text");
        let mut parts = line.split('\t');
        let (Some(addr), Some(bytes), Some(name)) = (parts.next(), parts.next(), parts.next())
        else {
            continue;
        };
        let addr = addr.trim().trim_end_matches(':');
        let Ok(addr) = u64::from_str_radix(addr, 16) else {
            continue;
        };
        let operands = parts.next().unwrap_or_default();
        let operands = operands.split(" #").next().unwrap_or_default();
        let operands = operands.split(" <").next().unwrap_or_default();
        let len = match name.trim() {
            // The column of bytes may continue in further lines.
            ".byte" => operands.split(',').count(),
            // Newer versions write this instead.
            ".insn" => operands
                .split(',')
                .next()
                .and_then(|len| len.parse().ok())
                .expect("a length"),
            _ => bytes.split_whitespace().map(|part| part.len() / 2).sum(),
        };
        take(Line {
            addr,
            len,
            name: name.trim().to_owned(),
            operands: operands.trim().to_owned(),
        });
    }
    assert!(child.wait().expect("it ends").success(), "objdump failed");
}

/// Returns the number of samples of each 32-bit form. `HODO_SAMPLES` sets it.
pub fn samples() -> u64 {
    std::env::var("HODO_SAMPLES").map_or(1, |samples| samples.parse().expect("a number"))
}

/// Returns all 16-bit instructions.
pub fn halves() -> Vec<u8> {
    (0..=u16::MAX)
        .filter(|half| half & 3 != 3)
        .flat_map(u16::to_le_bytes)
        .collect()
}

/// Returns 32-bit words of each form.
pub fn forms() -> Vec<u8> {
    let mut random = Random(5);
    let mut code = Vec::new();
    let mut add = |fixed: u32, mask: u32| {
        let word = fixed | random.next() as u32 & !mask;
        code.extend_from_slice(&word.to_le_bytes());
    };
    // The fields `funct3` and `funct7`.
    let function = |number: u32| number << 22 & 0xFE00_0000 | number << 12 & 0x7000;
    for opcode in (0..32).filter(|opcode| opcode & 7 != 7) {
        for number in 0..1024 {
            for _ in 0..4 * samples() {
                add(function(number) | opcode << 2 | 3, 0xFE00_707F);
            }
        }
    }
    // Opcodes whose `rs2` field also selects the instruction; for vectors it is `rs1`.
    const SECOND: [(u32, u32); 7] = [
        (0x07, 20),
        (0x13, 20),
        (0x1B, 20),
        (0x2F, 20),
        (0x53, 20),
        (0x73, 20),
        (0x57, 15),
    ];
    for (opcode, low) in SECOND {
        for number in 0..1024 {
            for source in 0..32 {
                add(
                    function(number) | source << low | opcode,
                    0xFE00_707F | 31 << low,
                );
            }
        }
    }
    code
}

/// Returns the code of a section of an ELF file, and its address.
pub fn section(path: &Path, name: &str) -> Option<(Vec<u8>, u64)> {
    let file = fs::read(path).ok()?;
    let file = object::File::parse(&*file).ok()?;
    let section = file.section_by_name(name)?;
    Some((section.data().ok()?.to_vec(), section.address()))
}

/// Returns the C library for RISC-V, if it is installed.
pub fn library() -> Option<PathBuf> {
    let places = [
        "/usr/riscv64-linux-gnu/lib/libc.so.6",
        "/lib/riscv64-linux-gnu/libc.so.6",
        "/usr/lib/riscv64-linux-gnu/libc.so.6",
    ];
    let found = places
        .into_iter()
        .map(PathBuf::from)
        .find(|path| path.exists());
    if found.is_none() {
        skip("there is no libc.so.6 for RISC-V (package libc6-riscv64-cross)");
    }
    found
}
