//! Programs with static keys, built as the tests want them: cargo builds the library, rustc the program.
#![allow(
    dead_code,
    reason = "each file of tests has a copy, and uses some of it"
)]

use std::ffi::OsString;
use std::fs;
use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

pub mod alone;
pub mod elf;

/// The default target.
pub const HOST: &str = "x86_64-unknown-linux-gnu";

/// Seconds after which a program counts as hanging.
const PATIENCE: Duration = Duration::from_secs(300);

/// Records that a test was skipped: on stderr, and where `scripts/test.sh` looks.
pub fn skip(reason: &str) {
    eprintln!("not run: {reason}");
    let test = thread::current().name().unwrap_or_default().to_owned();
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("skipped.txt");
    let mut file = fs::OpenOptions::new()
        .create(true)
        .append(true)
        .open(path)
        .expect("the list of what was not run can be written");
    writeln!(file, "hodo-keys {test}: {reason}").expect("it can be written");
}

/// The directory for the tests' files.
pub fn place() -> PathBuf {
    let place = Path::new(env!("CARGO_TARGET_TMPDIR")).join("keys");
    std::fs::create_dir_all(&place).expect("a directory for the tests' files");
    place
}

fn rustc() -> Command {
    Command::new(std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()))
}

/// Returns whether the standard library, or `core`, of a target is installed.
pub fn has_target(target: &str) -> bool {
    let output = rustc()
        .args(["--print", "target-libdir", "--target", target])
        .output()
        .expect("rustc runs");
    let directory = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    output.status.success()
        && fs::read_dir(directory).is_ok_and(|files| {
            files
                .flatten()
                .any(|file| file.file_name().as_encoded_bytes().starts_with(b"libcore-"))
        })
}

/// Returns whether a command is installed.
pub fn has_tool(name: &str) -> bool {
    std::env::var_os("PATH").is_some_and(|path| {
        std::env::split_paths(&path).any(|directory| directory.join(name).is_file())
    })
}

/// How a program is built.
#[derive(Debug, Clone)]
pub struct Build {
    name: String,
    source: PathBuf,
    target: &'static str,
    features: bool,
    options: Vec<OsString>,
}

impl Build {
    /// A program of `tests/programs`. Its file is called `name`, which should be the test's name.
    pub fn new(program: &str, name: &str) -> Self {
        let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs");
        Self::of(&directory.join(program), name)
    }

    /// A program anywhere.
    pub fn of(source: &Path, name: &str) -> Self {
        Self {
            name: name.to_owned(),
            source: source.to_owned(),
            target: HOST,
            features: true,
            options: Vec::new(),
        }
    }

    /// Adds options for rustc, separated by spaces.
    pub fn with(mut self, options: &str) -> Self {
        let options = options.split_whitespace();
        self.options.extend(options.map(OsString::from));
        self
    }

    /// Adds one option for rustc.
    pub fn with_option(mut self, option: impl Into<OsString>) -> Self {
        self.options.push(option.into());
        self
    }

    /// Builds for another target.
    pub fn target(mut self, target: &'static str) -> Self {
        self.target = target;
        self
    }

    /// Builds with the library without its features.
    pub fn bare(mut self) -> Self {
        self.features = false;
        self
    }

    /// The command that builds it, and what it makes.
    fn command(&self) -> (Command, PathBuf) {
        let library = library(self.target, self.features);
        let directory = place().join("programs");
        fs::create_dir_all(&directory).expect("a directory for programs");
        let program = directory.join(&self.name);
        let mut command = rustc();
        command
            .args(["--edition", "2024", "--target", self.target, "--extern"])
            .arg(format!("hodo_keys={}/libhodo_keys.rlib", library.display()))
            .arg("-L")
            .arg(format!("dependency={}/deps", library.display()))
            .args(["-C", "panic=abort"])
            .arg("-o")
            .arg(&program)
            .args(&self.options)
            .arg(&self.source);
        (command, program)
    }

    /// Builds it.
    #[track_caller]
    pub fn build(&self) -> PathBuf {
        let (mut command, program) = self.command();
        let output = command.output().expect("rustc runs");
        assert!(
            output.status.success(),
            "{command:?}:\n{}",
            String::from_utf8_lossy(&output.stderr)
        );
        program
    }

    /// rustc's error output; the build must fail.
    #[track_caller]
    pub fn fail(&self) -> String {
        let (mut command, _) = self.command();
        let output = command.output().expect("rustc runs");
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success(), "{command:?} succeeds:\n{text}");
        text
    }
}

/// The directory of `libhodo_keys.rlib`, which is built if it is missing or old.
fn library(target: &'static str, features: bool) -> PathBuf {
    let directory = place().join(if features { "library" } else { "bare" });
    // Programs may be linked with or without LTO. Nothing unwinds without a standard library.
    let flags = match features {
        true => "-C embed-bitcode=yes",
        false => "-C embed-bitcode=yes -C panic=abort",
    };
    let mut command = Command::new(env!("CARGO"));
    command
        .args(["build", "--quiet", "--release", "--package", "hodo-keys"])
        .args(["--target", target, "--target-dir"])
        .arg(&directory)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .env("RUSTFLAGS", flags)
        .env_remove("CARGO_ENCODED_RUSTFLAGS")
        .env_remove("CARGO_BUILD_TARGET");
    if !features {
        command.arg("--no-default-features");
    }
    let output = command.output().expect("cargo runs");
    assert!(
        output.status.success(),
        "{command:?}:\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
    directory.join(target).join("release")
}

/// Runs a program, which must succeed, and returns what it prints.
#[track_caller]
pub fn run(program: &Path, arguments: &[&str]) -> String {
    let mut command = Command::new(program);
    command.args(arguments);
    run_command(command)
}

/// Like [`run`].
#[track_caller]
pub fn run_command(mut command: Command) -> String {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let path = place().join(format!("output-{}-{number}", std::process::id()));
    let file = fs::File::create(&path).expect("a file for the output");
    let mut child = command
        .stdin(Stdio::null())
        .stderr(file.try_clone().expect("the file again"))
        .stdout(file)
        .spawn()
        .expect("the program starts");
    let begin = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().expect("the child is ours") {
            break Some(status);
        }
        if begin.elapsed() > PATIENCE {
            let _ = child.kill();
            let _ = child.wait();
            break None;
        }
        thread::sleep(Duration::from_millis(2));
    };
    let text = String::from_utf8_lossy(&fs::read(&path).expect("its output")).into_owned();
    fs::remove_file(&path).expect("its output is ours");
    let Some(status) = status else {
        panic!("{command:?} hangs:\n{text}")
    };
    assert!(
        status.success(),
        "{command:?}: {:?}, signal {:?}:\n{text}",
        status.code(),
        status.signal()
    );
    text
}
