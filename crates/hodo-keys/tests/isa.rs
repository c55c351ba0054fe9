//! Programs for RISC-V and AArch64: what their branches look like in the file, with both linkers, and that they can be
//! switched, under qemu's user mode emulator.
#![cfg(all(target_arch = "x86_64", target_os = "linux"))]

mod building;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use building::{Build, has_target, has_tool, run_command, skip};
use object::{Object, ObjectSection};

/// How programs are built and run for an instruction set.
struct Isa {
    name: &'static str,
    target: &'static str,
    /// What objdump calls a jump.
    jump: &'static str,
}

const RISCV64: Isa = Isa {
    name: "riscv64",
    target: "riscv64gc-unknown-linux-gnu",
    jump: "j",
};

const AARCH64: Isa = Isa {
    name: "aarch64",
    target: "aarch64-unknown-linux-gnu",
    jump: "b",
};

#[derive(Clone, Copy)]
enum Linker {
    Bfd,
    Lld,
}

/// An instruction as objdump shows it.
#[derive(Debug)]
struct Instruction {
    size: u64,
    /// Mnemonic and first operand.
    text: String,
}

/// A branch, as described by the table in the file.
#[derive(Debug)]
struct Entry {
    code: u64,
    target: u64,
}

fn sysroot() -> PathBuf {
    let output = Command::new(std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()))
        .args(["--print", "sysroot"])
        .output()
        .expect("rustc runs");
    PathBuf::from(String::from_utf8_lossy(&output.stdout).trim())
}

impl Isa {
    /// Returns whether all tools are installed; otherwise reports what is missing.
    fn is_there(&self) -> bool {
        let missing = if !has_target(self.target) {
            format!(
                "the standard library for {} (rustup target add)",
                self.target
            )
        } else if let Some(tool) = ["gcc", "objdump"]
            .map(|tool| format!("{}-linux-gnu-{tool}", self.name))
            .into_iter()
            .chain([format!("qemu-{}", self.name)])
            .find(|tool| !has_tool(tool))
        {
            tool
        } else {
            return true;
        };
        skip(&format!("{missing} is not installed (scripts/cross.sh)"));
        false
    }

    fn build(&self, program: &str, name: &str, linker: Linker) -> Build {
        let build = Build::new(program, name).target(self.target).with(&format!(
            "-C linker={}-linux-gnu-gcc --check-cfg cfg(shared)",
            self.name
        ));
        match linker {
            Linker::Bfd => build,
            Linker::Lld => {
                let directory = sysroot()
                    .join("lib/rustlib")
                    .join(building::HOST)
                    .join("bin/gcc-ld");
                build
                    .with("-C link-arg=-fuse-ld=lld")
                    .with_option(format!("-Clink-arg=-B{}", directory.display()))
            }
        }
    }

    fn run(&self, program: &Path) -> String {
        let libraries = sysroot().join("lib/rustlib").join(self.target).join("lib");
        let own = program.parent().expect("a directory");
        let mut command = Command::new(format!("qemu-{}", self.name));
        command
            .args(["-L", &format!("/usr/{}-linux-gnu", self.name), "-E"])
            .arg(format!(
                "LD_LIBRARY_PATH={}:{}",
                own.display(),
                libraries.display()
            ))
            .arg(program)
            .arg("12")
            .env("HODO_EMULATED", "1");
        run_command(command)
    }

    /// All instructions, by address.
    fn instructions(&self, program: &Path) -> BTreeMap<u64, Instruction> {
        let output = Command::new(format!("{}-linux-gnu-objdump", self.name))
            .args(["--disassemble", "--section=.text", "--wide"])
            .arg(program)
            .output()
            .expect("objdump runs");
        assert!(output.status.success());
        let text = String::from_utf8_lossy(&output.stdout);
        let instruction = |line: &str| {
            let mut fields = line.split('\t');
            let address = fields.next()?.trim().strip_suffix(':')?;
            let bytes = fields.next()?.trim();
            let mnemonic = fields.next()?.trim();
            let operand = fields.next().unwrap_or("").split(' ').next()?;
            let instruction = Instruction {
                size: bytes.len() as u64 / 2,
                text: format!("{mnemonic} {operand}").trim().to_owned(),
            };
            Some((u64::from_str_radix(address, 16).ok()?, instruction))
        };
        text.lines().filter_map(instruction).collect()
    }

    /// Checks all branches of a program: each is one instruction, a nop or the jump that its entry describes. Returns
    /// the number of branches of each kind: nops and jumps, by size.
    fn check(&self, program: &Path) -> BTreeMap<(&'static str, u64), usize> {
        let instructions = self.instructions(program);
        let mut kinds = BTreeMap::new();
        for entry in entries(program) {
            let Entry { code, target } = entry;
            let Some(instruction) = instructions.get(&code) else {
                panic!("{entry:x?} is not about an instruction");
            };
            let kind = if instruction.text == "nop" {
                "nop"
            } else {
                let jump = format!("{} {target:x}", self.jump);
                assert_eq!(instruction.text, jump, "{entry:x?}");
                "jump"
            };
            let next = code + instruction.size;
            assert!(
                instructions.contains_key(&next),
                "{entry:x?}: {instruction:?}"
            );
            assert!(
                instructions.contains_key(&target),
                "{entry:x?}: {instruction:?}"
            );
            *kinds.entry((kind, instruction.size)).or_default() += 1;
        }
        kinds
    }
}

fn entries(program: &Path) -> Vec<Entry> {
    let bytes = fs::read(program).expect("the program");
    let file = object::File::parse(&*bytes).expect("an ELF file");
    let section = file.section_by_name("hodo_keys").expect("the table");
    let data = section.data().expect("its bytes");
    let entry = |(index, entry): (usize, &[u8; 16])| {
        let at = section.address() + index as u64 * 16;
        let field = |place: usize| {
            let bytes = entry[place..place + 4].try_into().expect("four bytes");
            i64::from(i32::from_le_bytes(bytes))
        };
        Entry {
            code: at.wrapping_add_signed(field(0)),
            target: (at + 4).wrapping_add_signed(field(4)),
        }
    };
    let (all, rest) = data.as_chunks::<16>();
    assert!(rest.is_empty());
    all.iter().enumerate().map(entry).collect()
}

/// Builds it, checks it, and runs it. Returns the kinds of branches.
fn distances(
    isa: &Isa,
    name: &str,
    linker: Linker,
    options: &str,
) -> BTreeMap<(&'static str, u64), usize> {
    let program = isa
        .build(
            "distances.rs",
            &format!("distances-{}-{name}", isa.name),
            linker,
        )
        .with(options)
        .build();
    let kinds = isa.check(&program);
    let all: usize = kinds.values().sum();
    assert_eq!(all, 12 * 8, "{kinds:?}");
    assert_eq!(isa.run(&program).trim(), format!("{all} branches"));
    kinds
}

/// Checks that nops and jumps of both sizes occur. A branch that is near in the file is two bytes long, unless the
/// linker has made the distance shorter.
fn has_all_sizes(kinds: &BTreeMap<(&'static str, u64), usize>) {
    let present: Vec<_> = kinds.keys().copied().collect();
    assert_eq!(
        present,
        [("jump", 2), ("jump", 4), ("nop", 2), ("nop", 4)],
        "{kinds:?}"
    );
}

#[test]
fn riscv64() {
    if RISCV64.is_there() {
        has_all_sizes(&distances(&RISCV64, "bfd", Linker::Bfd, "-C opt-level=2"));
    }
}

#[test]
fn riscv64_without_optimization_by_lld() {
    if RISCV64.is_there() {
        has_all_sizes(&distances(&RISCV64, "lld", Linker::Lld, "-C opt-level=0"));
    }
}

#[test]
fn riscv64_relaxed() {
    if RISCV64.is_there() {
        let options = "-C opt-level=3 -C target-feature=+relax";
        has_all_sizes(&distances(&RISCV64, "bfd-relaxed", Linker::Bfd, options));
    }
}

#[test]
fn riscv64_relaxed_by_lld() {
    if RISCV64.is_there() {
        let options = "-C opt-level=s -C target-feature=+relax -C lto=fat";
        has_all_sizes(&distances(&RISCV64, "lld-relaxed", Linker::Lld, options));
    }
}

#[test]
fn riscv64_without_compressed_instructions() {
    if RISCV64.is_there() {
        let options = "-C opt-level=2 -C target-feature=-c,-zca";
        are_words(&distances(&RISCV64, "long", Linker::Bfd, options));
    }
}

/// Checks that all branches are four-byte words.
fn are_words(kinds: &BTreeMap<(&'static str, u64), usize>) {
    let present: Vec<_> = kinds.keys().copied().collect();
    assert_eq!(present, [("jump", 4), ("nop", 4)], "{kinds:?}");
}

#[test]
fn aarch64() {
    if AARCH64.is_there() {
        are_words(&distances(&AARCH64, "bfd", Linker::Bfd, "-C opt-level=2"));
    }
}

#[test]
fn aarch64_without_optimization_by_lld() {
    if AARCH64.is_there() {
        are_words(&distances(&AARCH64, "lld", Linker::Lld, "-C opt-level=0"));
    }
}

/// Half of the keys are in a library.
fn keys_of_a_library(isa: &Isa, name: &str, linker: Linker) {
    if !isa.is_there() {
        return;
    }
    let options = "-C opt-level=2 -C prefer-dynamic -C panic=unwind --cfg shared";
    let library = isa
        .build(
            "shared.rs",
            &format!("lib{}_{name}_shared.so", isa.name),
            linker,
        )
        .with("--crate-type dylib --crate-name shared")
        .with(options)
        .build();
    let with = format!("{options} --extern shared={}", library.display());
    let kinds = distances(isa, &format!("{name}-shared"), linker, &with);
    assert!(kinds.len() >= 2);
}

#[test]
fn riscv64_with_keys_of_a_library() {
    keys_of_a_library(&RISCV64, "bfd", Linker::Bfd);
}

#[test]
fn riscv64_with_keys_of_a_library_by_lld() {
    keys_of_a_library(&RISCV64, "lld", Linker::Lld);
}

#[test]
fn aarch64_with_keys_of_a_library() {
    keys_of_a_library(&AARCH64, "bfd", Linker::Bfd);
}

#[test]
fn aarch64_with_keys_of_a_library_by_lld() {
    keys_of_a_library(&AARCH64, "lld", Linker::Lld);
}
