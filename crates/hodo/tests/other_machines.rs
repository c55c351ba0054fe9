//! What `hodo` shows of files for machines other than this one.

use std::path::Path;
use std::process::{Command, Output, Stdio};

/// Two USDT probes as `sys/sdt.h` makes them, one with a semaphore.
const PROBES: &str = r#"
    .text
    .globl work
    .type work, @function
work:
0:  nop
1:  nop
    ret
    .size work, . - work
    .section .note.stapsdt, "", @note
    .macro probe at, semaphore, name, arguments
    .balign 4
    .long 8, 7f - 6f, 3
    .asciz "stapsdt"
6:  .quad \at, base, \semaphore
    .asciz "server"
    .asciz "\name"
    .asciz "\arguments"
7:
    .endm
    probe 0b, 0, begin, "8@a0 -4@-20(s0)"
    probe 1b, asked, done, "4@5"
    .section .stapsdt.base, "aG", @progbits, .stapsdt.base, comdat
base: .space 1
    .data
    .globl asked
asked: .short 0
"#;

fn hodo(arguments: &[&str], file: &Path) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_hodo"));
    command.args(arguments).arg(file).stdin(Stdio::null());
    command.output().expect("hodo starts")
}

/// Builds a library for RISC-V, if there is a compiler.
fn library(directory: &Path) -> Option<std::path::PathBuf> {
    let (source, file) = (directory.join("probes.s"), directory.join("probes.so"));
    std::fs::write(&source, PROBES).expect("a source");
    let mut gcc = Command::new("riscv64-linux-gnu-gcc");
    gcc.args(["-nostdlib", "-shared", "-o"])
        .arg(&file)
        .arg(&source);
    let output = gcc
        .output()
        .inspect_err(|error| eprintln!("not done: riscv64-linux-gnu-gcc: {error}"))
        .ok()?;
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
    Some(file)
}

#[test]
fn usdt_probes_are_listed() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let Some(file) = library(directory.path()) else {
        return;
    };
    let output = hodo(&["probe", "--usdt", "--json"], &file);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    let text = String::from_utf8_lossy(&output.stdout);
    let listed: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    let probes = listed.as_array().unwrap_or_else(|| panic!("{text}"));
    let told = |at: usize, key: &str| probes[at][key].as_str().unwrap_or_default();
    assert_eq!((told(0, "name"), told(1, "name")), ("begin", "done"));
    assert_eq!(told(0, "arguments"), "8@a0 -4@-20(s0)");
    let output = hodo(&["list-events"], &file);
    assert!(output.status.success());
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        text.contains("server:begin") && text.contains("server:done"),
        "{text}"
    );
}

/// Functions that planners meet on AArch64: a frame, a leaf, a loop at the start, a jump table, a tail call, one that
/// reads its return address, and an exclusive pair.
const FUNCTIONS: &str = r#"
    extern int elsewhere(int);
    int leaf(int a) { return a * 3 + 1; }
    int frame(int a) { return leaf(a) + elsewhere(a + 1); }
    int looped(int *p, int n) { int s = 0; while (n--) s += *p++; return s; }
    int chosen(int n, int a) {
        switch (n) {
        case 0: return elsewhere(a);
        case 1: return a + 9;
        case 2: return elsewhere(a * 5);
        case 3: return a ^ 77;
        case 4: return elsewhere(a - 6);
        case 5: return a << 3;
        }
        return leaf(a);
    }
    int tail(int a) { return elsewhere(a - 1); }
    void *returns_to(void) { return __builtin_return_address(0); }
    int counted(int *p) { return __atomic_fetch_add(p, 1, __ATOMIC_SEQ_CST); }
"#;

/// Builds an AArch64 library from [`FUNCTIONS`], if there is a compiler.
fn functions(directory: &Path, flags: &[&str]) -> Option<std::path::PathBuf> {
    let (source, file) = (directory.join("f.c"), directory.join("f.so"));
    std::fs::write(&source, FUNCTIONS).expect("a source");
    let mut gcc = Command::new("aarch64-linux-gnu-gcc");
    gcc.args([
        "-O2",
        "-fpic",
        "-nostdlib",
        "-shared",
        "-mno-outline-atomics",
        "-march=armv8-a",
    ])
    .args(flags)
    .arg("-o")
    .arg(&file)
    .arg(&source);
    let output = gcc
        .output()
        .inspect_err(|error| eprintln!("not done: aarch64-linux-gnu-gcc: {error}"))
        .ok()?;
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
    Some(file)
}

/// Returns what `hodo plan` shows of a file, as text.
fn planned(options: &[&str], file: &Path) -> String {
    let mut arguments = vec!["plan"];
    arguments.extend(options);
    let output = hodo(&arguments, file);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    String::from_utf8(output.stdout).expect("text")
}

#[test]
fn plans_for_aarch64() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let protected = ["-mbranch-protection=standard"];
    for flags in [&[][..], &protected] {
        let Some(file) = functions(directory.path(), flags) else {
            return;
        };
        let text = planned(&["-v"], &file);
        let line = |name: &str| {
            let mut lines = text.lines();
            let found =
                lines.find(|line| line.ends_with(name) || line.contains(&format!(" {name}:")));
            found.unwrap_or_else(|| panic!("{name} is not in {text}"))
        };
        for name in ["leaf", "frame", "looped", "chosen", "tail", "counted"] {
            let line = line(&format!("  {name}"));
            assert!(
                line.contains("  jump ") && line.contains("entry,exit"),
                "{line}"
            );
        }
        assert!(
            line("returns_to").contains("it reads its return address"),
            "{text}"
        );
        // Other libraries may define another `leaf`.
        assert!(text.contains("library calls    2"), "{text}");
        // Every instruction, except for the exclusive pair and what is between.
        let probes = planned(&["--every-instruction", "--json"], &file);
        let probes: serde_json::Value = serde_json::from_str(&probes).expect("JSON");
        let refused = probes["instructions"]["refused"]
            .as_array()
            .expect("a list");
        let reserved = refused.iter().filter(|one| {
            one["reason"]
                .as_str()
                .is_some_and(|why| why.contains("reservation"))
        });
        let names: Vec<_> = reserved
            .map(|one| one["insn"].as_str().unwrap_or_default())
            .collect();
        assert!(
            names.iter().any(|name| name.starts_with("add ")),
            "{probes:#}"
        );
        assert_eq!(names.len(), refused.len(), "{probes:#}");
    }
}

#[test]
fn nearly_all_functions_of_a_library_for_aarch64_have_a_site() {
    let file = Path::new("/usr/aarch64-linux-gnu/lib/libc.so.6");
    if !file.exists() {
        eprintln!("not done: there is no C library for AArch64 (package libc6-dev-arm64-cross)");
        return;
    }
    let plan: serde_json::Value = serde_json::from_str(&planned(&["--json"], file)).expect("JSON");
    let count = |name: &str| plan["functions"][name].as_u64().unwrap_or_default();
    assert!(count("total") > 3000, "{plan:#}");
    assert!(count("traced") * 100 >= count("total") * 99, "{plan:#}");
}

#[test]
fn programs_for_other_machines_are_named() {
    let directory = std::env::temp_dir().join(format!("hodo-programs-{}", std::process::id()));
    std::fs::create_dir_all(&directory).expect("a directory");
    let program = directory.join("program");
    // The class of the file, its machine, and what hodo says about it.
    let cases = [
        (2, 62, "x86-64"),
        (2, 243, "RISC-V 64"),
        (2, 183, "AArch64"),
        (1, 40, "32-bit Arm"),
        (2, 9999, "processors of ELF machine number 9999"),
    ];
    // Where an emulator is registered, the kernel runs programs for its machine.
    let registered = std::fs::read_dir("/proc/sys/fs/binfmt_misc").into_iter();
    let emulates = registered.flatten().flatten().any(|entry| {
        let about = std::fs::read_to_string(entry.path()).unwrap_or_default();
        about.contains("magic 7f454c46")
    });
    let cases = cases.into_iter().filter(|case| case.2 != own());
    for (class, machine, name) in cases.filter(|case| !emulates || case.1 == 9999) {
        let mut header = [0; 64];
        header[..7].copy_from_slice(&[0x7F, b'E', b'L', b'F', class, 1, 1]);
        header[18..20].copy_from_slice(&u16::to_le_bytes(machine));
        std::fs::write(&program, header).expect("a file");
        make_executable(&program);
        let expected = format!("it is for {name}; this machine is {}\n", own());
        let data = directory.join("data");
        let data = data.to_str().expect("text");
        for command in [
            &["record", "-d", data][..],
            &["live"],
            &["syscalls"],
            &["mem", "none"],
        ] {
            let output = hodo(command, &program);
            let text = String::from_utf8_lossy(&output.stderr);
            assert!(text.ends_with(&expected), "{command:?}: {text}");
            assert_ne!(output.status.code(), Some(0));
        }
    }
    std::fs::write(&program, "#!/no/such/interpreter\n").expect("a file");
    let output = hodo(&["syscalls"], &program);
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(
        text.contains("the interpreter of a script) does not exist"),
        "{text}"
    );
    std::fs::remove_dir_all(directory).expect("it can be removed");
}

fn own() -> &'static str {
    match cfg!(target_arch = "riscv64") {
        true => "RISC-V 64",
        false => "x86-64",
    }
}

fn make_executable(file: &Path) {
    use std::os::unix::fs::PermissionsExt as _;
    std::fs::set_permissions(file, std::fs::Permissions::from_mode(0o755)).expect("may be run");
}
