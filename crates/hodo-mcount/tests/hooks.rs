//! C programs that are linked with the library and check what their hooks get.

use std::path::{Path, PathBuf};
use std::process::Command;

const COMPILER: &str = match cfg!(target_arch = "riscv64") {
    true => "riscv64-linux-gnu-gcc",
    false => "gcc",
};

const PROGRAM: &str = r#"
#include <stdio.h>
#include <stdlib.h>
#define QUIET __attribute__((no_instrument_function))
typedef void hook(size_t, size_t);
void hodo_set_entry_hook(hook *);
void hodo_set_cyg_hooks(hook *, hook *);
static size_t from[64], self[64], out[64]; static int n, m;
QUIET static void entered(size_t f, size_t s) { from[n] = f; self[n++ % 64] = s; }
QUIET static void left(size_t f, size_t s) { out[m++ % 64] = f; (void)s; }
double f(int a, double b, long c, double d) { return a + b * 2 + c * 3 + d * 4; }
double g(int a, double b) { return f(a, b, 3, 4.5) + 1; }
QUIET int main(void) {
#ifdef CYG
  hodo_set_cyg_hooks(entered, left);
#else
  hodo_set_entry_hook(entered);
#endif
  double x = g(1, 2.5);
  hodo_set_entry_hook(0);
  hodo_set_cyg_hooks(0, 0);
  if (x != 34) { printf("wrong value %g\n", x); return 1; }
#ifdef CYG
  if (n != 2 || from[0] != (size_t)g || from[1] != (size_t)f || m != 2 || out[0] != (size_t)f) return 2;
  if (self[0] < (size_t)main || self[1] < (size_t)g || self[1] > (size_t)main) return 3;
#else
  if (n != 2) { printf("%d calls\n", n); return 2; }
  /* selfpc lies in the function's first bytes, frompc in its caller. */
#ifdef __riscv
  enum { MOST = 48 };
  unsigned short call = *(unsigned short *)self[0];
  if ((call & 0x7F) != 0x17 && (call & 0xFFF) != 0xEF && (call & 0xF07F) != 0x9002) return 4;
#else
  enum { MOST = 32 };
  if (*(unsigned char *)self[0] != 0xE8 && *(unsigned char *)self[0] != 0xFF) return 4;
#endif
  if (self[0] - (size_t)g > MOST || self[1] - (size_t)f > MOST) { printf("selfpc %zx %zx\n", self[0] - (size_t)g, self[1] - (size_t)f); return 3; }
  if (from[0] < (size_t)main || from[1] < (size_t)g || from[1] > (size_t)main) return 5;
#endif
  puts("ok");
  return 0;
}
"#;

fn library() -> PathBuf {
    let mut directory = std::env::current_exe().expect("a test has a file");
    while directory.pop() {
        let library = directory.join("libhodo_mcount.so");
        if library.is_file() {
            return library;
        }
    }
    panic!("libhodo_mcount.so is not built");
}

fn run(name: &str, flags: &[&str]) {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let source = directory.join(format!("{name}.c"));
    let program = directory.join(name);
    std::fs::write(&source, PROGRAM).unwrap();
    let library = library();
    let compiled = Command::new(COMPILER)
        .args(["-O1", "-fno-inline", "-fno-omit-frame-pointer", "-o"])
        .arg(&program)
        .arg(&source)
        .args(flags)
        .arg(&library)
        .arg(format!(
            "-Wl,-rpath,{}",
            library.parent().unwrap().display()
        ))
        .status()
        .expect("gcc");
    assert!(compiled.success());
    // qemu's user mode runs programs of its own architecture only if it is called by name.
    let mut command = match cfg!(target_arch = "riscv64") {
        true => Command::new("qemu-riscv64"),
        false => Command::new(&program),
    };
    if cfg!(target_arch = "riscv64") {
        command.args(["-L", "/usr/riscv64-linux-gnu"]).arg(&program);
    }
    let output = command.current_dir(directory).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(
        (text.as_ref(), output.status.code()),
        ("ok\n", Some(0)),
        "{flags:?}"
    );
}

#[test]
fn mcount_passes_caller_and_function() {
    run("mcount", &["-pg"]);
    run("mcount-no-plt", &["-pg", "-fno-plt"]);
}

// gcc has no `-mfentry` for RISC-V.
#[cfg(target_arch = "x86_64")]
#[test]
fn fentry_passes_caller_and_function() {
    run("fentry", &["-pg", "-mfentry"]);
}

#[test]
fn cyg_functions_pass_function_and_call_site() {
    run("cyg", &["-finstrument-functions", "-DCYG"]);
}
