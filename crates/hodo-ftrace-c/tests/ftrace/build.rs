//! Builds the libraries and programs, and runs these.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

use crate::skipped::skip;

/// The machine that is emulated by qemu's user mode emulator, and Rust's name for it; none for the processor of this
/// machine.
const EMULATED: Option<(&str, &str)> = if cfg!(target_arch = "riscv64") {
    Some(("riscv64", "riscv64gc-unknown-linux-gnu"))
} else if cfg!(target_arch = "aarch64") {
    Some(("aarch64", "aarch64-unknown-linux-gnu"))
} else {
    None
};

/// The directory with this file's crate.
pub fn home() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Returns whether what tests would ask cargo for has been built (`HODO_TEST_BUILT`, see `hodo-tests/src/lib.rs`).
pub fn is_built() -> bool {
    std::env::var_os("HODO_TEST_BUILT").is_some()
}

/// The directory with `libhodo_ftrace.so` and `libhodo_ftrace.a`. Cargo does not build them for tests, because no Rust
/// program can link them.
pub fn libraries(profile: &'static str) -> PathBuf {
    static BUILT: [OnceLock<PathBuf>; 2] = [const { OnceLock::new() }; 2];
    let built = &BUILT[usize::from(profile != "debug")];
    let path = built.get_or_init(|| {
        let exe = std::env::current_exe().expect("this test has a file");
        // target/debug/deps/test-1234, or target/TRIPLE/debug/deps/test-1234
        let kind = exe.ancestors().nth(2).expect("target/debug");
        let target = kind.ancestors().nth(if EMULATED.is_some() { 2 } else { 1 });
        if is_built() {
            return kind.with_file_name(profile);
        }
        let mut command = Command::new(env!("CARGO"));
        command.args(["build", "--quiet", "--package", "hodo-ftrace-c", "--lib"]);
        // Programs with probes are linked with it, too.
        if !cfg!(target_arch = "aarch64") {
            command.args(["--package", "hodo-probe-capi"]);
        }
        command
            .arg("--target-dir")
            .arg(target.expect("the target directory"));
        command.current_dir(home());
        if let Some((machine, triple)) = EMULATED {
            let linker = format!(
                "CARGO_TARGET_{}_LINKER",
                triple.to_uppercase().replace('-', "_")
            );
            command
                .args(["--target", triple])
                .env(linker, format!("{machine}-linux-gnu-gcc"));
        }
        if profile != "debug" {
            command.args(["--profile", profile]);
        }
        let status = command.status().expect("cargo can be run");
        assert!(status.success(), "the library cannot be built");
        kind.with_file_name(profile)
    });
    path.clone()
}

/// The compiler `gcc`, `g++`, `clang` or `clang++`, for this machine. None, with a note, if it is missing.
fn compiler(name: &str) -> Option<Command> {
    let mut command = match (name, EMULATED) {
        ("gcc" | "g++", Some((machine, _))) => Command::new(format!("{machine}-linux-gnu-{name}")),
        _ => Command::new(name),
    };
    if Command::new(command.get_program())
        .arg("--version")
        .output()
        .is_err()
    {
        let program = command.get_program().to_string_lossy().into_owned();
        skip(&format!("{program} is not installed"));
        return None;
    }
    if let Some((machine, _)) = EMULATED
        && name.starts_with("clang")
    {
        command.arg(format!("--target={machine}-linux-gnu"));
    }
    Some(command)
}

/// Which form of the library a program is linked with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Form {
    Shared,
    Static,
    /// None: it is preloaded.
    None,
}

/// Compiles files from `tests/programs`, or with other paths. Returns none if there is no such compiler.
pub fn compile(
    name: &str,
    with: &str,
    files: &[&str],
    flags: &[&str],
    form: Form,
) -> Option<PathBuf> {
    let mut command = compiler(with)?;
    let libraries = libraries("debug");
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("ftrace");
    std::fs::create_dir_all(&directory).expect("it can be made");
    let program = directory.join(format!("{name}-{with}-{}", std::process::id()));
    command
        .args(["-O2", "-fno-omit-frame-pointer", "-g", "-w", "-pthread"])
        .arg("-I")
        .arg(home().join("include"))
        .arg("-o")
        .arg(&program)
        .current_dir(home().join("tests/programs"))
        .args(files)
        .args(flags);
    match form {
        Form::Shared => drop(
            command
                .arg(libraries.join("libhodo_ftrace.so"))
                .arg(format!("-Wl,-z,now,-rpath,{}", libraries.display())),
        ),
        Form::Static => drop(command.arg(libraries.join("libhodo_ftrace.a")).args([
            "-lgcc_s",
            "-lutil",
            "-lrt",
            "-lpthread",
            "-lm",
            "-ldl",
        ])),
        Form::None => {}
    }
    let output = command.output().expect("the compiler runs");
    assert!(
        output.status.success(),
        "{command:?}:\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
    Some(program)
}

/// Runs a program, under qemu if it is not for the processor of this machine.
pub fn run(program: &Path, environment: &[(&str, String)]) -> Output {
    run_with(program, environment, &[])
}

/// Runs a program with arguments, under qemu if it is not for the processor of this machine.
pub fn run_with(program: &Path, environment: &[(&str, String)], arguments: &[&str]) -> Output {
    // Other programs are for the processor of this machine, and would not run with a library for another.
    let mut command = if let Some((machine, _)) = EMULATED {
        let mut command = Command::new(format!("qemu-{machine}"));
        for (name, value) in environment {
            // The emulator takes a comma for the end of the value.
            if value.contains(',') {
                command.env(name, value);
            } else {
                command.arg("-E").arg(format!("{name}={value}"));
            }
        }
        command
            .args(["-L", &format!("/usr/{machine}-linux-gnu")])
            .arg(program);
        command
    } else {
        let mut command = Command::new(program);
        command.envs(environment.iter().map(|(name, value)| (name, value)));
        command
    };
    // Programs with -pg write gmon.out.
    command
        .args(arguments)
        .current_dir(env!("CARGO_TARGET_TMPDIR"))
        .output()
        .expect("the program runs")
}

/// Compiles a program, runs it, and expects that it prints `ok`.
pub fn check(name: &str, with: &str, files: &[&str], flags: &[&str], form: Form) {
    let Some(program) = compile(name, with, files, flags, form) else {
        return;
    };
    let output = run(&program, &[]);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        text == "ok\n" && output.status.success(),
        "{with} {files:?} {flags:?} {form:?}: {}\n{text}{}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    let _ = std::fs::remove_file(program);
}
