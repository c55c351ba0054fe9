//! What the tests of RISC-V's files and of AArch64's share: programs that are made by a cross compiler.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use hodo_symbols::symbols;

/// The tools for another machine, and what is compiled with them.
pub struct Machine {
    /// Its name, which the tools' names begin with.
    pub name: &'static str,
    /// The program.
    pub source: &'static str,
    /// Flags for all compilations.
    pub flags: &'static [&'static str],
}

impl Machine {
    /// A tool of the cross compiler.
    pub fn tool(&self, tool: &str) -> String {
        format!("{}-linux-gnu-{tool}", self.name)
    }

    /// Compiles the program, if there is a compiler.
    pub fn compiled(&self, name: &str, flags: &[&str]) -> Option<PathBuf> {
        let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join(self.name);
        std::fs::create_dir_all(&directory).expect("a directory for programs");
        let (source, file) = (directory.join("program.c"), directory.join(name));
        // Tests run at the same time, so each has its own file.
        let own = directory.join(format!("{name}.c"));
        std::fs::write(&own, self.source).expect("a source");
        std::fs::rename(&own, &source).expect("a source");
        let gcc = self.tool("gcc");
        let mut command = Command::new(&gcc);
        command.stdin(Stdio::null()).args(self.flags).args(flags);
        let output = match command.arg("-o").arg(&file).arg(&source).output() {
            Ok(output) => output,
            Err(error) => {
                eprintln!("not done: {gcc}: {error}");
                return None;
            }
        };
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{flags:?}: {text}");
        Some(file)
    }

    /// Runs a program in the emulator, if there is one. Returns the words that it writes.
    pub fn words(&self, file: &Path) -> Option<Vec<u64>> {
        let qemu = format!("qemu-{}", self.name);
        let output = match Command::new(&qemu).arg(file).output() {
            Ok(output) => output,
            Err(error) => {
                eprintln!("not done: {qemu}: {error}");
                return None;
            }
        };
        let words = output.stdout.chunks_exact(8);
        let words = words.map(|word| u64::from_le_bytes(word.try_into().expect("8 bytes")));
        Some(words.collect())
    }

    /// Compiles the program in these ways, each with a name, and checks that `main` is found after its symbols were
    /// taken away. `each` sees the names of functions before that.
    pub fn has_main(&self, ways: &[(&str, &[&str])], each: impl Fn(&str)) {
        for (name, flags) in ways {
            let Some(file) = self.compiled(&format!("main-{name}"), flags) else {
                return;
            };
            let bytes = std::fs::read(&file).expect("a program");
            let all = symbols(&bytes).expect("symbols").functions;
            let main = all.iter().find(|f| f.name == "main").expect("main").addr;
            all.iter().for_each(|function| each(&function.name));
            let stripped = file.with_extension("stripped");
            let status = Command::new(self.tool("strip"))
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
}
