//! Definitions and a small file: which regions are moved, what happens at each instruction, and what the log says.
#![cfg(target_arch = "x86_64")]

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;
use hodo_codegen::native::detour::Action;
use hodo_module::Image;
use hodo_module::cache::Planning;
use hodo_plan::PlanOptions;
use hodo_probe_compile::{Log, Probes};
use serde_json::Value;

/// A function of known instructions, and its caller.
const PROGRAM: &str = "
    .globl _start, work
    .type _start, @function
_start:
    mov $7, %edi
    call work
    mov %eax, %edi
    mov $60, %eax
    syscall
    .size _start, . - _start
    .type work, @function
    .p2align 4
work:
    push %rbp
    mov %rsp, %rbp
    lea (%rdi,%rdi,2), %rax
    add $1, %rax
    pop %rbp
    ret
    .size work, . - work
";

/// The lines of a log.
#[derive(Default)]
struct Lines(Vec<Value>);

impl Log for Lines {
    fn line(&mut self, line: &Value) -> Result<()> {
        self.0.push(line.clone());
        Ok(())
    }

    fn warn(&mut self, text: &str) {
        panic!("no definition here is doubtful: {text}");
    }
}

/// Runs a test again without the user's plan cache, in which it must leave nothing. Returns whether this is that run.
fn is_without_cache(test: &str) -> bool {
    const CACHE: &str = hodo_module::cache::VARIABLE;
    if std::env::var_os(CACHE).is_some_and(|value| value == "off") {
        return true;
    }
    let own = std::env::current_exe().expect("this program");
    let mut again = Command::new(own);
    again
        .args(["--exact", test, "--nocapture"])
        .env(CACHE, "off");
    assert!(again.status().expect("it can be run").success());
    false
}

fn program(directory: &Path) -> PathBuf {
    let (source, program) = (directory.join("program.s"), directory.join("program"));
    std::fs::write(&source, PROGRAM).expect("the source");
    let mut gcc = Command::new("gcc");
    gcc.args([
        "-nostdlib",
        "-static",
        "-Wl,--build-id=none",
        "-Wl,-Ttext=0x401000",
        "-o",
    ]);
    let built = gcc.arg(&program).arg(&source).status();
    assert!(built.expect("gcc can be run").success());
    program
}

/// What definitions do to the program, in words.
fn compiled(program: &Path, definitions: &[&str]) -> Vec<String> {
    let texts: Vec<String> = definitions
        .iter()
        .map(|text| text.replace("FILE", &program.display().to_string()))
        .collect();
    let mut probes = Probes::new(&texts, true).expect("definitions");
    let image = Image::open(program, program.to_owned()).expect("an ELF file");
    let plan = hodo_plan::plan(program, &image.bytes, &PlanOptions::default()).expect("a plan");
    let (mut next, mut names, mut log) = (1, Vec::new(), Lines::default());
    let probed = probes
        .module(
            &Planning::new(&image),
            (&plan, &[]),
            &mut next,
            &mut names,
            &mut log,
        )
        .expect("places");
    let mut lines = Vec::new();
    for (site, all) in &probed.sites {
        let (from, to) = (site.displaced.start, site.displaced.end);
        lines.push(format!("{:?} {from:#x}..{to:#x}", site.tactic));
        for probe in all {
            let action = match &probe.action {
                Action::Count(counter) => format!("{counter:?}"),
                Action::Record(event) => format!("event of {:?}", event.values),
                Action::Block(block) => format!("block if {:?}", block.condition),
                Action::Syscall => "system call".to_owned(),
                Action::Calls(calls) => {
                    let numbers: Vec<u32> = calls.iter().map(|call| call.number).collect();
                    format!("system calls {numbers:?}")
                }
            };
            lines.push(format!("  {:#x} {:?}: {action}", probe.addr, probe.when));
        }
    }
    for line in log.0 {
        let text = match &line["probe"] {
            Value::Null => line["remark"]["text"].to_string(),
            probe => format!("{} {} args {}", probe["id"], probe["name"], probe["args"]),
        };
        lines.push(text.replace(&program.display().to_string(), "FILE"));
    }
    let path = program.display().to_string();
    let unplaced = probes.unplaced().into_iter();
    lines.extend(unplaced.map(|text| text.replace(&path, "FILE")));
    lines
}

#[test]
fn definitions_become_regions_and_actions() {
    if !is_without_cache("definitions_become_regions_and_actions") {
        return;
    }
    let directory = tempfile::tempdir().expect("a directory");
    let program = program(directory.path());
    let golden = |definitions: &[&str], expected: &[&str]| {
        let compiled = compiled(&program, definitions);
        assert_eq!(compiled, expected, "{definitions:?}");
    };
    golden(
        &["p:hits FILE:work count"],
        &[
            "Jump 0x401020..0x401028",
            "  0x401020 Hit: Thread(-2147483648)",
        ],
    );
    let argument = |id: u32, name: &str| {
        let n = r#"[{"bits":64,"name":"n","shift":0,"type":"u64","value":0,"word":0}]"#;
        format!("{id} \"{name}\" args {n}")
    };
    golden(
        &["p:enter FILE:work n=$arg1:u64"],
        &[
            "Jump 0x401020..0x401028",
            "  0x401020 Hit: event of [Word(Register(7))]",
            &argument(1, "enter"),
        ],
    );
    golden(
        &["p:some FILE:work n=$arg1:u64 if n > 5"],
        &[
            "Jump 0x401020..0x401028",
            "  0x401020 Hit: block if Some(Compare(Greater, false, \
             Value(0, Bits { shift: 0, width: 64, signed: false }), Number(5)))",
            &argument(1, "some"),
        ],
    );
    // One region serves both.
    golden(
        &["p:middle FILE:work+1 count", "p:end FILE:work+4 count"],
        &[
            "Jump 0x401021..0x401028",
            "  0x401021 Hit: Thread(-2147483648)",
            "  0x401024 Hit: Thread(-2147483640)",
        ],
    );
    let middle = "it is the middle of `mov rbp, rsp` at 0x401021";
    golden(
        &["p:inside FILE:work+2 count"],
        &[
            &format!("\"FILE: no probe at work+0x2: {middle}\""),
            &format!("the probe 'p:inside FILE:work+2 count' cannot be: work+0x2: {middle}"),
        ],
    );
    golden(
        &["p:none FILE:missing count"],
        &[
            "\"FILE: no probe: it names no function of the file\"",
            "the probe 'p:none FILE:missing count' cannot be: it names no function of the file",
        ],
    );
    golden(
        &["p:none FILE:wrok count"],
        &[
            "\"FILE: no probe: it names no function of the file; did you mean work?\"",
            "the probe 'p:none FILE:wrok count' cannot be: it names no function of the file; did you mean work?",
        ],
    );
}
