//! Compiles the test programs.

use std::collections::hash_map::DefaultHasher;
use std::fs;
use std::hash::{Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use crate::skipped::temporary;

/// Whether the tests usually run in an emulated machine, which is many times slower: where the same is tried in many
/// ways, fewer or shorter runs must do.
pub const IS_SLOW: bool = !cfg!(target_arch = "x86_64");

/// Flags for `exceptions.cc` and `threads.c`, so that they take less time on slow machines.
pub const SHORTER: &[&str] = if IS_SLOW {
    &["-DEXCEPTIONS=300", "-DTHREADS=1000"]
} else {
    &[]
};

/// How a program is linked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Dynamic, position-independent.
    Pie,
    /// Dynamic, at a fixed address.
    Fixed,
    /// Static glibc at a fixed address.
    Static,
    /// Static glibc, position-independent.
    StaticPie,
    /// Dynamic without a symbol table.
    Stripped,
    /// Dynamic, with `endbr64` at every branch target, where that exists.
    Cet,
    /// Dynamic musl.
    Musl,
    /// Static musl.
    MuslStatic,
}

impl Kind {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::Pie,
        Self::Fixed,
        Self::Static,
        Self::StaticPie,
        Self::Stripped,
        Self::Cet,
        Self::Musl,
        Self::MuslStatic,
    ];
    /// Those with glibc.
    pub const GLIBC: [Self; 6] = [
        Self::Pie,
        Self::Fixed,
        Self::Static,
        Self::StaticPie,
        Self::Stripped,
        Self::Cet,
    ];

    fn flags(self) -> &'static [&'static str] {
        match self {
            Self::Pie | Self::Musl => &["-fPIE", "-pie"],
            Self::Fixed => &["-fno-pie", "-no-pie"],
            Self::Static => &["-fno-pie", "-static"],
            Self::StaticPie => &["-fPIE", "-static-pie"],
            Self::Stripped => &["-fPIE", "-pie", "-s"],
            Self::Cet if cfg!(target_arch = "x86_64") => &["-fPIE", "-pie", "-fcf-protection=full"],
            Self::Cet => &["-fPIE", "-pie"],
            Self::MuslStatic => &["-fno-pie", "-static"],
        }
    }

    /// Returns whether functions have names.
    pub fn has_names(self) -> bool {
        self != Self::Stripped
    }

    fn is_musl(self) -> bool {
        matches!(self, Self::Musl | Self::MuslStatic)
    }

    /// Returns whether this machine can build it.
    pub fn is_available(self) -> bool {
        // On other architectures it uses the word that points to control blocks.
        !self.is_musl() || cfg!(target_arch = "x86_64") && has_tool("musl-gcc")
    }
}

/// The compiler for a source file, by its extension.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Language {
    /// `.c`, `.S`
    C,
    /// `.cc`
    Cpp,
    /// `.rs`
    Rust,
    /// `.go`
    Go,
}

impl Language {
    fn of(source: &str) -> Self {
        match source.rsplit('.').next() {
            Some("c" | "S") => Self::C,
            Some("cc") => Self::Cpp,
            Some("rs") => Self::Rust,
            Some("go") => Self::Go,
            _ => panic!("no compiler for {source}"),
        }
    }
}

/// Returns whether a program of this name is in PATH.
pub fn has_tool(name: &str) -> bool {
    std::env::var_os("PATH").is_some_and(|path| {
        std::env::split_paths(&path).any(|directory| directory.join(name).is_file())
    })
}

/// Returns whether a compiler has the libraries that programs with these flags need.
///
/// # Panics
/// If no file can be written, or the compiler is not installed.
pub fn links(compiler: &str, flags: &[&str]) -> bool {
    let place = scratch(&format!("links-{compiler}{}", flags.concat()));
    let source = place.join("empty.c");
    fs::write(&source, "int main(void) { return 0; }\n").expect("a source can be written");
    Command::new(compiler)
        .args(flags)
        .arg("-o")
        .arg(place.join("empty"))
        .arg(&source)
        .output()
        .expect("the compiler can be run")
        .status
        .success()
}

fn sources() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("programs")
}

/// Makes a new, empty directory for a test.
pub fn scratch(test: &str) -> PathBuf {
    let directory = temporary().join("runs").join(test);
    if directory.exists() {
        fs::remove_dir_all(&directory).expect("the last run's directory can be removed");
    }
    fs::create_dir_all(&directory).expect("a directory of the test's own can be made");
    directory
}

/// Makes a named pipe in a directory of a test. Directories that an emulated machine shares with its host can hold a
/// link to one at most.
///
/// # Panics
/// If it cannot be made.
pub fn make_fifo(path: &Path) {
    let make = |path: &Path| {
        let made = Command::new("mkfifo").arg(path).output();
        made.expect("mkfifo can be run").status.success()
    };
    if make(path) {
        return;
    }
    static PIPES: AtomicU32 = AtomicU32::new(0);
    let number = PIPES.fetch_add(1, Ordering::Relaxed);
    let name = format!("hodo-tests-{}-{number}", std::process::id());
    let elsewhere = std::env::temp_dir().join(name);
    assert!(make(&elsewhere), "{} can be made", elsewhere.display());
    std::os::unix::fs::symlink(&elsewhere, path).expect("a link can be made");
}

/// Returns whether programs are only compiled, for tests that run later on another machine: `HODO_TEST_BUILDS` is set.
pub(crate) fn only_builds() -> bool {
    std::env::var_os("HODO_TEST_BUILDS").is_some()
}

/// The other machines that programs are built for, if the tests are for one of them: Rust's name, that of compilers for
/// C, the name of cargo's variable for the linker, and what tells Rust's compiler of the linker.
const OTHER: Option<(&str, &str, &str, &str)> = match () {
    () if cfg!(target_arch = "riscv64") => Some((
        "riscv64gc-unknown-linux-gnu",
        "riscv64-linux-gnu",
        "CARGO_TARGET_RISCV64GC_UNKNOWN_LINUX_GNU_LINKER",
        "-Clinker=riscv64-linux-gnu-gcc",
    )),
    () if cfg!(target_arch = "aarch64") => Some((
        "aarch64-unknown-linux-gnu",
        "aarch64-linux-gnu",
        "CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER",
        "-Clinker=aarch64-linux-gnu-gcc",
    )),
    () => None,
};

/// Says which program a test needs, for scripts that copy it to another machine.
fn tell(program: PathBuf) -> PathBuf {
    if only_builds() {
        println!("built: {}", program.display());
    }
    program
}

/// Builds an example of a package of this workspace. If there is no cargo, or `HODO_TEST_BUILT` is set, it must have
/// been built before.
///
/// # Panics
/// If it cannot be built.
pub fn example(package: &str, name: &str) -> PathBuf {
    let target = temporary();
    let target = target.parent().expect("the target directory");
    let program = target.join("debug/examples").join(name);
    let built = std::env::var_os("HODO_TEST_BUILT").is_some();
    if program.exists() && (built || !Path::new(env!("CARGO")).exists()) {
        return tell(program);
    }
    let mut command = Command::new(env!("CARGO"));
    command.args(["build", "--quiet", "--package", package, "--example", name]);
    command.arg("--target-dir");
    if only_builds()
        && let Some((target_name, gnu, linker, _)) = OTHER
    {
        // Cargo adds the target's name to the directory.
        command.arg(
            target
                .parent()
                .expect("the target directory of all machines"),
        );
        command
            .args(["--target", target_name])
            .env(linker, format!("{gnu}-gcc"));
    } else {
        command.arg(target);
    }
    let status = command.status().expect("cargo can be run");
    assert!(status.success(), "the example {name} cannot be built");
    tell(program)
}

/// Compiles a program of one or more source files as `kind`, with the language's usual compiler at -O2.
pub fn build(source: &str, kind: Kind, flags: &[&str]) -> PathBuf {
    // With this set, a test of all kinds would stop after the first.
    if only_builds() {
        for kind in Kind::ALL.into_iter().filter(|kind| kind.is_available()) {
            build_one(source, kind, flags);
        }
    }
    tell(build_one(source, kind, flags))
}

fn build_one(source: &str, kind: Kind, flags: &[&str]) -> PathBuf {
    let compiler = match Language::of(source) {
        Language::C if kind.is_musl() => "musl-gcc",
        Language::C => "gcc",
        Language::Cpp => "g++",
        Language::Rust => "rustc",
        Language::Go => "go",
    };
    let mut all: Vec<&str> = match Language::of(source) {
        Language::C | Language::Cpp => {
            let mut all = vec!["-O2", "-g0", "-pthread", "-w"];
            all.extend(kind.flags());
            all
        }
        Language::Rust | Language::Go => Vec::new(),
    };
    all.extend(flags);
    build_with(compiler, &[source], &all)
}

/// Options that tell a multi-target compiler which machine the programs are for, if it is not the one it runs on.
fn for_machine(compiler: &str) -> Vec<String> {
    let Some((target, gnu, _, linker)) = OTHER else {
        return Vec::new();
    };
    match compiler {
        "rustc" => vec!["--target".into(), target.into(), linker.into()],
        "clang" | "clang++" => vec![format!("--target={gnu}")],
        _ => Vec::new(),
    }
}

/// Compiles source files with this compiler and these flags. The result is cached for the next run.
pub fn build_with(compiler: &str, files: &[&str], flags: &[&str]) -> PathBuf {
    let mut key = DefaultHasher::new();
    (compiler, flags).hash(&mut key);
    let for_machine = for_machine(compiler);
    if !for_machine.is_empty() {
        for_machine.hash(&mut key);
    }
    for file in files {
        let text = fs::read(sources().join(file)).unwrap_or_else(|e| panic!("{file}: {e}"));
        (file, text).hash(&mut key);
    }
    let stem = files[0].split('.').next().unwrap_or_default();
    let directory = temporary().join("programs");
    fs::create_dir_all(&directory).expect("target/tmp/programs can be made");
    let result = directory.join(format!("{stem}-{:016x}", key.finish()));
    if result.exists() {
        return result;
    }
    // Two tests may build the same program at the same time.
    static BUILDS: AtomicU32 = AtomicU32::new(0);
    let build = BUILDS.fetch_add(1, Ordering::Relaxed);
    let unfinished = result.with_extension(format!("{}-{build}", std::process::id()));
    // The same one that cargo uses.
    let program = Some(compiler).filter(|&name| name == "rustc");
    let program = program.and_then(|_| std::env::var_os("RUSTC"));
    let mut command = Command::new(program.unwrap_or_else(|| compiler.into()));
    command.stdin(Stdio::null()).current_dir(sources());
    if only_builds() {
        command.args(for_machine);
    }
    match Language::of(files[0]) {
        Language::Go => {
            command.args(["build", "-o"]).arg(&unfinished).args(flags);
            command
                .env("GOFLAGS", "-buildvcs=false")
                .env("GO111MODULE", "off");
            command.env("GOCACHE", temporary().join("go"));
            command.args(files);
        }
        // Libraries must come after the files that need them.
        _ => {
            command.args(flags.iter().filter(|f| !f.starts_with("-l")));
            command.arg("-o").arg(&unfinished).args(files);
            command.args(flags.iter().filter(|f| f.starts_with("-l")));
        }
    }
    let output = command
        .output()
        .unwrap_or_else(|e| panic!("{compiler} cannot be run: {e}"));
    assert!(
        output.status.success(),
        "{command:?}:\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
    // If another test was faster, its program may already be running: it must stay the same file.
    match fs::hard_link(&unfinished, &result) {
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
            panic!("{} cannot be put in place: {error}", result.display())
        }
        _ => fs::remove_file(&unfinished).expect("what was made can be removed"),
    }
    result
}
