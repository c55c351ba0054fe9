//! Files for AArch64: `main` of stripped programs.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use hodo_symbols::symbols;

const GCC: &str = "aarch64-linux-gnu-gcc";
const STRIP: &str = "aarch64-linux-gnu-strip";

const PROGRAM: &str = r#"
__attribute__((noipa)) int leaf(int count) {
    return count + 1;
}

int main(int argc, char **argv) {
    return leaf(argc);
}

#ifdef WRAPPED
// As newer C libraries begin programs that have a fixed address, with the landings of others.
__asm__(
    ".globl _start\n"
    ".type _start, @function\n"
    "_start: .cfi_startproc\n"
    ".cfi_undefined x30\n"
    "bti c\n"
    "mov x29, #0\n"
    "mov x30, #0\n"
    "mov x5, x0\n"
    "ldr x1, [sp]\n"
    "add x2, sp, #8\n"
    "adrp x0, wrapped\n"
    "add x0, x0, :lo12:wrapped\n"
    "mov x3, #0\n"
    "bl __libc_start_main\n"
    "bl abort\n"
    "wrapped: bti c\n"
    "b main\n"
    ".cfi_endproc\n"
    ".size _start, . - _start\n");
#endif
"#;

/// Compiles a program, if there is a compiler.
fn compiled(name: &str, flags: &[&str]) -> Option<PathBuf> {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("aarch64");
    std::fs::create_dir_all(&directory).expect("a directory for programs");
    let (source, file) = (directory.join(format!("{name}.c")), directory.join(name));
    std::fs::write(&source, PROGRAM).expect("a source");
    let mut command = Command::new(GCC);
    command.stdin(Stdio::null()).args(flags);
    let output = match command.arg("-o").arg(&file).arg(&source).output() {
        Ok(output) => output,
        Err(error) => {
            eprintln!("not done: {GCC}: {error}");
            return None;
        }
    };
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{flags:?}: {text}");
    Some(file)
}

#[test]
fn a_stripped_program_has_a_main() {
    for (name, flags) in [
        ("pie", &["-O2"][..]),
        ("plain", &["-O2", "-no-pie"]),
        ("static", &["-O2", "-static"]),
        ("static-pie", &["-O2", "-static-pie"]),
        ("relative", &["-O2", "-pie", "-Wl,-z,pack-relative-relocs"]),
        ("protected", &["-O2", "-mbranch-protection=standard"]),
        ("exported", &["-O2", "-rdynamic"]),
        ("wrapped", &["-O2", "-no-pie", "-nostartfiles", "-DWRAPPED"]),
    ] {
        let Some(file) = compiled(&format!("main-{name}"), flags) else {
            return;
        };
        let bytes = std::fs::read(&file).expect("a program");
        let all = symbols(&bytes).expect("symbols").functions;
        let main = all.iter().find(|f| f.name == "main").expect("main").addr;
        let stripped = file.with_extension("stripped");
        let status = Command::new(STRIP)
            .arg(&file)
            .arg("-o")
            .arg(&stripped)
            .status();
        assert!(status.expect("strip").success());
        let bytes = std::fs::read(&stripped).expect("a program");
        let all = symbols(&bytes).expect("symbols").functions;
        let named: Vec<_> = all.iter().filter(|f| f.name == "main").collect();
        assert_eq!(named.len(), 1, "{name}");
        assert_eq!(named[0].addr, main, "{name}");
    }
}
