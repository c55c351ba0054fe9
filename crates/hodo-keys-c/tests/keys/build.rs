//! Builds the libraries and programs for each instruction set, and runs these.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Mutex;

use crate::skipped::skip;

/// How programs are built and run for an instruction set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Isa {
    /// That of this machine.
    X86,
    Riscv,
    Arm,
}

use Isa::{Arm, Riscv, X86};

/// All of them.
pub const ALL: [Isa; 3] = [X86, Riscv, Arm];

impl Isa {
    /// What GNU's tools and qemu call it.
    pub fn name(self) -> &'static str {
        match self {
            X86 => "x86_64",
            Riscv => "riscv64",
            Arm => "aarch64",
        }
    }

    fn target(self) -> &'static str {
        match self {
            X86 => "x86_64-unknown-linux-gnu",
            Riscv => "riscv64gc-unknown-linux-gnu",
            Arm => "aarch64-unknown-linux-gnu",
        }
    }

    /// A tool of GNU's for it.
    pub fn tool(self, tool: &str) -> String {
        match self {
            X86 => tool.to_owned(),
            _ => format!("{}-linux-gnu-{tool}", self.name()),
        }
    }

    /// Returns whether programs for it can be built and run; otherwise reports what is missing.
    pub fn is_there(self) -> bool {
        let rust = rustc(&["--print", "target-libdir", "--target", self.target()]);
        let missing = if self == X86 {
            None
        } else if !Path::new(&rust).is_dir() {
            Some(format!("the standard library for {}", self.target()))
        } else {
            let tools = [self.tool("gcc"), format!("qemu-{}", self.name())];
            tools.into_iter().find(|tool| !has(tool))
        };
        if let Some(missing) = &missing {
            skip(&format!("{missing} is not installed (scripts/cross.sh)"));
        }
        missing.is_none()
    }

    /// The command that runs a program, with libraries from its own directory.
    pub fn command(self, program: &Path) -> Command {
        if self == X86 {
            return Command::new(program);
        }
        let mut command = Command::new(format!("qemu-{}", self.name()));
        command
            .args(["-L", &format!("/usr/{}-linux-gnu", self.name())])
            .args(["-E", "HODO_EMULATED=1"])
            .arg(program);
        command
    }
}

fn rustc(arguments: &[&str]) -> String {
    let output = Command::new(std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()))
        .args(arguments)
        .output()
        .expect("rustc runs");
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

/// Returns whether a command is installed.
pub fn has(tool: &str) -> bool {
    Command::new(tool).arg("--version").output().is_ok()
}

/// The directory with this file's crate.
pub fn home() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The directory for the tests' files.
pub fn place() -> PathBuf {
    let place = Path::new(env!("CARGO_TARGET_TMPDIR")).join("keys-c");
    std::fs::create_dir_all(&place).expect("it can be made");
    place
}

/// The directory with `libhodo_keys.so` and `libhodo_keys.a`, which are built if they are missing or old.
pub fn libraries(isa: Isa) -> PathBuf {
    static BUILDING: Mutex<()> = Mutex::new(());
    let _one = BUILDING.lock();
    let directory = place().join("library");
    let mut command = Command::new(env!("CARGO"));
    command
        .args(["build", "--quiet", "--release", "--package", "hodo-keys-c"])
        .args(["--target", isa.target(), "--target-dir"])
        .arg(&directory)
        .current_dir(home())
        .env_remove("RUSTFLAGS")
        .env_remove("CARGO_ENCODED_RUSTFLAGS")
        .env_remove("CARGO_BUILD_TARGET");
    if isa != X86 {
        let linker = isa.target().to_uppercase().replace('-', "_");
        command.env(format!("CARGO_TARGET_{linker}_LINKER"), isa.tool("gcc"));
    }
    checked(&mut command);
    directory.join(isa.target()).join("release")
}

/// Runs a command that must succeed.
#[track_caller]
pub fn checked(command: &mut Command) -> Output {
    let output = command.output();
    let output = output.unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(
        output.status.success(),
        "{command:?}: {}\n{}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    output
}

/// The compilers.
pub const C: [&str; 2] = ["gcc", "clang"];
pub const CXX: [&str; 2] = ["g++", "clang++"];

/// Which form of the library a program is linked with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Form {
    Shared,
    Static,
    /// It is not linked yet.
    None,
}

/// What is compiled, and how.
pub struct Compiled<'a> {
    pub isa: Isa,
    /// `gcc`, `g++`, `clang` or `clang++`.
    pub with: &'a str,
    /// From `tests/programs`, or with other paths.
    pub files: &'a [&'a str],
    pub flags: &'a str,
    pub form: Form,
}

impl Compiled<'_> {
    fn compiler(&self) -> Option<Command> {
        let gnu = self.with.starts_with('g');
        let name = if gnu {
            self.isa.tool(self.with)
        } else {
            self.with.to_owned()
        };
        if !has(&name) {
            skip(&format!("{name} is not installed"));
            return None;
        }
        let mut command = Command::new(&name);
        if !gnu && self.isa != X86 {
            command.arg(format!("--target={}-linux-gnu", self.isa.name()));
        }
        Some(command)
    }

    /// Compiles it. Returns nothing if there is no such compiler.
    #[track_caller]
    pub fn build(&self, name: &str) -> Option<PathBuf> {
        let mut command = self.compiler()?;
        let libraries = libraries(self.isa);
        let directory = place().join("programs");
        std::fs::create_dir_all(&directory).expect("it can be made");
        let program = directory.join(format!("{name}-{}-{}", self.isa.name(), self.with));
        command
            .args(["-Wall", "-Wextra", "-Wpedantic", "-Wshadow", "-Werror"])
            .args(["-pthread", "-I"])
            .arg(home().join("include"))
            .arg("-o")
            .arg(&program)
            .current_dir(home().join("tests/programs"))
            .arg(if self.with.contains("++") {
                "-std=c++11"
            } else {
                "-std=gnu99"
            })
            .args(self.flags.split_whitespace());
        let cxx = self.with.contains("++");
        command.args(["-x", if cxx { "c++" } else { "c" }]);
        command.args(self.files).args(["-x", "none"]);
        match self.form {
            Form::Shared => {
                command.arg(libraries.join("libhodo_keys.so"));
                command.arg(format!("-Wl,-rpath,{}", libraries.display()));
            }
            Form::Static => {
                command.arg(libraries.join("libhodo_keys.a"));
                // The unwinder.
                command.arg(if self.flags.contains("-static") {
                    "-lgcc_eh"
                } else {
                    "-lgcc_s"
                });
                command.args(["-lutil", "-lrt", "-lpthread", "-lm", "-ldl"]);
            }
            Form::None => {}
        }
        checked(&mut command);
        Some(program)
    }

    /// Compiles it, runs it, and expects that it prints `ok`.
    #[track_caller]
    pub fn check(&self, name: &str, arguments: &[&str]) {
        let Some(program) = self.build(name) else {
            return;
        };
        let output = checked(self.isa.command(&program).args(arguments));
        let text = String::from_utf8_lossy(&output.stdout);
        assert_eq!(text, "ok\n", "{}", program.display());
        let _ = std::fs::remove_file(program);
    }
}
