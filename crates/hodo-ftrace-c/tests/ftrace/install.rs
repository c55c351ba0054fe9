//! The libraries as `scripts/install-libraries.sh` installs them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::build::{Form, compile, home, is_built, libraries};
use crate::skipped::skip;

fn good(command: &mut Command) -> Output {
    let output = command.output().expect("it can be run");
    assert!(
        output.status.success(),
        "{command:?}: {}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    output
}

const PROGRAM: &str = r#"
#include <hodo-ftrace.h>
#include <hodo-keys.h>
#include <hodo-probe.h>
#include <stdio.h>
#include <string.h>
static int same(const char *library, const char *header) { return !strcmp(library, header); }
int main(int count, char **words) {
    if (!same(hodo_ftrace_version(), HODO_FTRACE_VERSION) || !same(hodo_keys_version(), HODO_KEYS_VERSION) ||
        !same(hodo_probe_version(), HODO_PROBE_VERSION))
        return 1;
    int first, second, third;
    sscanf(HODO_FTRACE_VERSION, "%d.%d.%d", &first, &second, &third);
    if (HODO_FTRACE_VERSION_NUMBER != 10000 * first + 100 * second + third) return 2;
    if (count > 1) {
        // All of the shared library is the engine's.
        char error[200] = "";
        hodo_request request = {.addr = (void *)hodo_probe_version, .count = 1};
        if (hodo_probe_register(&request, error, sizeof error) || !strstr(error, words[1])) return 3;
    }
    puts("ok");
    return 0;
}
"#;

/// Installs the libraries, and returns where; none if a tool for that is missing.
fn installed() -> Option<PathBuf> {
    for tool in ["cc", "ld", "ar", "objcopy", "nm", "pkg-config"] {
        if Command::new(tool).arg("--version").output().is_err() {
            skip(&format!("{tool} is not installed"));
            return None;
        }
    }
    let built = libraries("debug");
    if !is_built() {
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(["build", "--quiet", "--package", "hodo-keys-c", "--lib"]);
        cargo.arg("--target-dir");
        cargo.arg(built.parent().expect("target"));
        good(cargo.current_dir(home()));
    }
    let place = Path::new(env!("CARGO_TARGET_TMPDIR")).join("installed");
    let _ = fs::remove_dir_all(&place);
    let mut script = Command::new(home().join("../../scripts/install-libraries.sh"));
    script.arg("--prefix").arg(&place);
    good(script.arg("--built").arg(&built));
    Some(place)
}

/// What `pkg-config` says about the libraries.
fn pkg_config(lib: &Path, words: &[&str]) -> Vec<String> {
    let mut command = Command::new("pkg-config");
    command.args(words);
    command.args(["hodo-ftrace", "hodo-keys", "hodo-probe"]);
    let output = good(command.env("PKG_CONFIG_PATH", lib.join("pkgconfig")));
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    text.split_whitespace().map(str::to_owned).collect()
}

/// The global symbols of a library, as `nm` prints them.
fn symbols(words: [&str; 2], library: &Path) -> Vec<String> {
    let output = good(Command::new("nm").args(words).arg(library));
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    // An address, a letter, a name.
    let lines = text.lines().filter(|line| line.split(' ').count() == 3);
    lines
        .filter_map(|line| line.rsplit(' ').next())
        .map(str::to_owned)
        .collect()
}

/// Nothing else is exported. Our own names have a version; those of the C library do not, so they take its place.
fn check_symbols(lib: &Path) {
    for name in ["ftrace", "keys", "probe_c"] {
        let shared = lib.join(format!("libhodo_{name}.so.0.1"));
        let archive = lib.join(format!("libhodo_{name}.a"));
        for (words, file) in [
            (["-D", "--defined-only"], &shared),
            (["-g", "--defined-only"], &archive),
        ] {
            for symbol in symbols(words, file) {
                let is_ours = symbol.starts_with("hodo_");
                let is_called_by_compilers = symbol.starts_with("__cyg_profile_func_")
                    || symbol.ends_with("mcount")
                    || symbol == "__fentry__"
                    || symbol == "HODO_0.1";
                let file = file.display();
                assert!(is_ours || is_called_by_compilers, "{file}: {symbol}");
                let has_version = symbol.ends_with("@@HODO_0.1");
                assert_eq!(has_version, words[0] == "-D" && is_ours, "{symbol}");
            }
        }
    }
}

#[test]
fn installed_libraries_are_found_and_export_what_headers_declare() {
    let Some(place) = installed() else { return };
    let file = place.join("program.c");
    fs::write(&file, PROGRAM).expect("it can be written");
    let lib = place.join("lib");
    // Shared, found by their names; and all of them in one static program.
    let shared = place.join("shared");
    let words = pkg_config(&lib, &["--cflags", "--libs"]);
    let mut compiler = Command::new("cc");
    good(compiler.arg(&file).args(words).arg("-o").arg(&shared));
    let mut run = Command::new(&shared);
    run.arg("the code belongs to the engine");
    assert_eq!(good(run.env("LD_LIBRARY_PATH", &lib)).stdout, b"ok\n");
    let fixed = place.join("fixed");
    let archives = ["ftrace", "keys", "probe_c"].map(|name| lib.join(format!("libhodo_{name}.a")));
    let mut compiler = Command::new("cc");
    compiler.arg(&file).args(pkg_config(&lib, &["--cflags"]));
    compiler.args(archives);
    compiler.args(["-lgcc_s", "-lpthread", "-ldl", "-o"]);
    good(compiler.arg(&fixed));
    assert_eq!(good(&mut Command::new(&fixed)).stdout, b"ok\n");
    check_symbols(&lib);

    // A program that was built without the library, and names the version of the C library's `mcount`.
    let flags = ["-pg", "-rdynamic"];
    let program = compile("installed", "gcc", &["installed.c"], &flags, Form::None);
    let program = program.expect("gcc is there");
    let mut run = Command::new(&program);
    run.env("LD_PRELOAD", lib.join("libhodo_ftrace.so.0.1"));
    assert_eq!(good(run.current_dir(&place)).stdout, b"ok\n");
    let _ = fs::remove_file(program);
}
