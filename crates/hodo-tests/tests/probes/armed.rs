//! `hodo probe -p PID --list-armed`, which lists the probes in a process as the kernel's kprobes/list does, and
//! `--no-optimize`, compared with what is in the process's memory.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Output, Stdio};

use hodo_tests::probing::{path, probe_words, text};
use hodo_tests::{Kind, build, hodo, scratch};
use serde_json::Value;

fn child_of(pid: u32) -> Option<u32> {
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).ok()?;
    children.split_whitespace().next()?.parse().ok()
}

/// A program with probes, which does rounds of calls when it is asked to.
struct Probed {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Probed {
    /// Runs hodo with a command and options on a program.
    fn start(command: &str, name: &str, options: &[&str], program: &Path) -> Self {
        let data = scratch(name).join("trace");
        let mut child = Command::new("timeout")
            .args(["-s", "KILL", "900"])
            .arg(hodo())
            .args([command, "-d", path(&data)])
            .args(options)
            .arg(program)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("hodo can be run");
        let input = child.stdin.take();
        let output = BufReader::new(child.stdout.take().expect("a pipe"));
        let mut probed = Self {
            child,
            input,
            output,
        };
        probed.says("begun");
        probed
    }

    fn says(&mut self, expected: &str) {
        let mut line = String::new();
        self.output.read_line(&mut line).expect("a line");
        assert_eq!(line.trim_end(), expected);
    }

    fn does(&mut self, rounds: u32) {
        let input = self.input.as_mut().expect("its input");
        writeln!(input, "{rounds}").expect("it reads");
        self.says(&format!("did {rounds}"));
    }

    fn pid(&self) -> u32 {
        let hodo = child_of(self.child.id()).expect("timeout has a child");
        child_of(hodo).expect("hodo has a child")
    }

    /// Its probes as JSON.
    fn armed(&self) -> Vec<Value> {
        let output = list(self.pid(), &["--json"]);
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        serde_json::from_slice(&output.stdout).expect("a list")
    }

    /// Lets it end, and waits for hodo.
    fn end(mut self) {
        drop(self.input.take());
        let mut rest = String::new();
        self.output.read_to_string(&mut rest).expect("its output");
        assert!(self.child.wait().expect("its end").success(), "{rest}");
    }
}

impl Drop for Probed {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn list(pid: u32, options: &[&str]) -> Output {
    let pid = pid.to_string();
    probe_words(&[&["-p", &pid, "--list-armed"], options].concat())
}

/// The address of a function in a process, according to binutils and the kernel.
fn address(pid: u32, program: &Path, name: &str) -> u64 {
    let output = Command::new("nm").arg(program).output().expect("nm");
    let mut lines = text(&output.stdout).lines();
    let line = lines.find(|line| line.split(' ').nth(2) == Some(name));
    let addr = line
        .and_then(|line| line.split(' ').next())
        .expect("a symbol");
    let addr = u64::from_str_radix(addr, 16).expect("an address");
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).expect("mappings");
    // The first mapping of a position-independent program is that of its link-time address 0.
    let first = maps.lines().find(|line| line.ends_with(path(program)));
    let start = first
        .and_then(|line| line.split('-').next())
        .expect("a mapping");
    addr + u64::from_str_radix(start, 16).expect("an address")
}

/// Whether there is a breakpoint at an address of a process.
fn has_breakpoint(pid: u32, at: u64) -> bool {
    let mut bytes = [0; 4];
    let memory = fs::File::open(format!("/proc/{pid}/mem")).expect("memory");
    memory.read_exact_at(&mut bytes, at).expect("code");
    match () {
        () if cfg!(target_arch = "riscv64") => {
            bytes[..2] == [0x02, 0x90] || bytes == [0x73, 0x00, 0x10, 0x00]
        }
        // With any number.
        () if cfg!(target_arch = "aarch64") => {
            u32::from_le_bytes(bytes) & 0xFFE0_001F == 0xD420_0000
        }
        () => bytes[0] == 0xCC,
    }
}

fn has_flag(one: &Value, flag: &str) -> bool {
    let mut flags = one["flags"].as_array().expect("flags").iter();
    flags.any(|own| own == flag)
}

/// The only probe with a name.
fn named<'a>(all: &'a [Value], name: &str) -> &'a Value {
    let fitting: Vec<&Value> = all.iter().filter(|one| one["name"] == name).collect();
    assert_eq!(fitting.len(), 1, "{name}: {all:?}");
    fitting[0]
}

fn program() -> PathBuf {
    build("controlled.c", Kind::Pie, &[])
}

#[test]
fn armed_probes_are_listed_with_their_hits() {
    let program = program();
    let file = path(&program);
    let alpha = format!("p:first {file}:alpha count disable:second");
    let beta = format!("p:second {file}:beta count");
    let back = format!("r:back {file}:alpha $retval");
    let output = scratch("armed-list").join("events");
    let options = ["-o", path(&output), "-e", &alpha, "-e", &beta, "-e", &back];
    let mut probed = Probed::start("probe", "armed-list-data", &options, &program);
    let pid = probed.pid();
    let before = probed.armed();
    assert_eq!(before.len(), 3, "{before:?}");
    assert_eq!(named(&before, "first")["hits"], 0);
    assert!(!has_flag(named(&before, "second"), "DISABLED"));
    probed.does(5);
    let all = probed.armed();
    for (name, function, kind) in [
        ("first", "alpha", "p"),
        ("second", "beta", "p"),
        ("back", "alpha", "r"),
    ] {
        let one = named(&all, name);
        let at = address(pid, &program, function);
        assert_eq!(one["addr"], at, "{one}");
        assert_eq!(
            (&one["kind"], &one["symbol"]),
            (&kind.into(), &function.into())
        );
        assert_eq!((&one["offset"], &one["module"]), (&0.into(), &file.into()));
        // A flag says what is in memory.
        assert_eq!(
            has_flag(one, "OPTIMIZED"),
            !has_breakpoint(pid, at),
            "{one}"
        );
    }
    assert_eq!(named(&all, "first")["hits"], 5);
    // It was switched off before it was first hit.
    assert_eq!(named(&all, "second")["hits"], 0);
    assert!(has_flag(named(&all, "second"), "DISABLED"));
    // Events that are printed are not counted.
    assert_eq!(named(&all, "back")["hits"], Value::Null);
    let shown = list(pid, &[]);
    let expected = format!(
        "{:016x}  p  beta+0x0  {file} [DISABLED]",
        address(pid, &program, "beta")
    );
    let shown = text(&shown.stdout).to_owned();
    assert!(
        shown.lines().any(|line| line.starts_with(&expected)),
        "{shown}"
    );
    probed.end();
}

#[test]
fn probes_that_are_not_optimized_are_breakpoints() {
    let program = program();
    let file = path(&program);
    let every = format!("{file}:alpha+* count");
    let places = |options: &[&str], name: &str| {
        let options = [options, &["-e", &every]].concat();
        let mut probed = Probed::start("record", name, &options, &program);
        probed.does(3);
        let pid = probed.pid();
        let mut places = Vec::new();
        for one in probed.armed() {
            let at = one["addr"].as_u64().expect("an address");
            let trap = has_breakpoint(pid, at);
            places.push((one["offset"].clone(), one["hits"].clone(), trap));
            assert!(!(trap && has_flag(&one, "OPTIMIZED")), "{one}");
        }
        probed.end();
        places
    };
    let jumps = places(&[], "armed-jumps");
    let traps = places(&["--no-optimize"], "armed-traps");
    assert!(jumps.len() > 2, "{jumps:?}");
    // The same places are hit as often.
    let hits = |places: &[(Value, Value, bool)]| -> Vec<(Value, Value)> {
        let pairs = places
            .iter()
            .map(|(at, hits, _)| (at.clone(), hits.clone()));
        pairs.collect()
    };
    assert_eq!(hits(&jumps), hits(&traps));
    assert_eq!(traps[0].1, 3, "{traps:?}");
    // Elsewhere, what is moved together needs only one.
    let breakpoints = traps.iter().filter(|place| place.2).count();
    match cfg!(target_arch = "x86_64") {
        true => assert_eq!(breakpoints, traps.len(), "{traps:?}"),
        false => assert!(breakpoints > 0),
    }
    assert!(jumps.iter().any(|place| !place.2), "{jumps:?}");
}

#[test]
fn processes_without_probes_have_no_list() {
    let own = std::process::id();
    let refused = |output: &Output, expected: &str| {
        assert_ne!(output.status.code(), Some(0), "{output:?}");
        let said = text(&output.stderr);
        assert!(said.contains(expected), "{said}");
    };
    refused(&list(own, &[]), "no hodo records process");
    refused(&probe_words(&["--list-armed"]), "--pid");
    refused(
        &list(own, &["-e", "libc.so.6:malloc"]),
        "cannot be used with",
    );
    let program = program();
    let probed = Probed::start("record", "armed-none", &[], &program);
    refused(&list(probed.pid(), &[]), "has no probes");
    probed.end();
}
