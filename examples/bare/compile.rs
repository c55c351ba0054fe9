//! What the kernels' build scripts share: compiles the C functions, and tells the linker where things are.

use std::env;
use std::path::PathBuf;
use std::process::Command;

/// A C compiler.
pub struct Compiler {
    /// The environment variable that can name another one.
    pub variable: &'static str,
    /// Its name.
    pub name: &'static str,
    /// The package that has it.
    pub package: &'static str,
    /// Options for this machine.
    pub options: &'static [&'static str],
}

/// Options for all machines.
const OPTIONS: [&str; 11] = [
    "-c",
    "-O1",
    "-g",
    "-Wall",
    "-Wextra",
    "-Werror",
    "-ffreestanding",
    "-fno-pie",
    "-fno-stack-protector",
    // Functions have the order of the source.
    "-fno-toplevel-reorder",
    "-fno-optimize-sibling-calls",
];

/// Compiles C files of this directory, each with its options, and has them linked by `kernel.ld`.
pub fn compile(compiler: &Compiler, files: &[(&str, &[&str])]) {
    let directory = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it"));
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it"));
    let name = env::var_os(compiler.variable).unwrap_or_else(|| compiler.name.into());
    for (file, options) in files {
        let source = directory.join(format!("../bare/{file}.c"));
        let file_name = source.file_name().expect("it is a file");
        let object = out.join(file_name).with_extension("o");
        let mut command = Command::new(&name);
        command.args(OPTIONS).args(compiler.options).args(*options);
        command.arg(&source).arg("-o").arg(&object);
        match command.status() {
            Ok(status) if status.success() => {}
            Ok(status) => panic!(
                "{} cannot compile {}: {status}",
                name.display(),
                source.display()
            ),
            Err(error) => panic!(
                "{} cannot be started: {error}. Install {}, or name another compiler in {}",
                name.display(),
                compiler.package,
                compiler.variable
            ),
        }
        println!("cargo::rustc-link-arg={}", object.display());
        println!("cargo::rerun-if-changed={}", source.display());
    }
    let script = directory.join("kernel.ld");
    println!("cargo::rustc-link-arg=-T{}", script.display());
    println!("cargo::rerun-if-changed=kernel.ld");
    println!("cargo::rerun-if-env-changed={}", compiler.variable);
}
