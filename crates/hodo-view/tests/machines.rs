//! Traces of machines other than the reader's.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use hodo_abi::Isa;
use hodo_trace::format::{ISLAND, record};
use hodo_trace::syscalls::{NAMES, number};
use hodo_trace::testing::Builder;
use hodo_view::{EventOptions, SourceOptions, SyscallsOptions};
use serde_json::json;

fn directory(name: &str) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("machines-{name}-{}", std::process::id()))
}

fn source(data: &Path) -> SourceOptions {
    SourceOptions {
        data: data.to_owned(),
        ..SourceOptions::default()
    }
}

/// Writes an event. `words` are its payload after the first word.
fn event(b: &mut Builder, task: u32, id: u32, time: u64, words: &[u64]) {
    b.record(task, record::ENTRY, id, 0, time);
    let special = record::SPECIAL_PAYLOAD | record::SPECIAL << record::KIND_SHIFT;
    b.word(task, u64::from(special) << 32 | (words.len() as u64 + 1));
    b.word(task, u64::from(u32::MAX) << 32);
    for word in words {
        b.word(task, *word);
    }
}

/// Returns a piece of memory: argument, flags, bytes.
fn piece(argument: u64, flags: u64, bytes: &[u8]) -> Vec<u64> {
    let mut words = vec![bytes.len() as u64 | argument << 16 | flags << 24];
    for chunk in bytes.chunks(8) {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        words.push(u64::from_le_bytes(word));
    }
    words
}

/// System calls: number, arguments, pieces before the call; result, pieces after it.
type Calls<'c> = &'c [(u64, &'c [u64], Vec<u64>, u64, Vec<u64>)];

fn shown(name: &str, arch: Option<&str>, calls: Calls<'_>) -> anyhow::Result<String> {
    let mut b = Builder::new(&directory(name), true);
    match arch {
        Some(arch) => b.info["arch"] = arch.into(),
        None => drop(b.info.as_object_mut().expect("an object").remove("arch")),
    }
    let ids = NAMES.map(|name| {
        let id = b.function(name, 'B');
        b.log(&json!({"probe": {"id": id, "group": "syscalls", "name": name, "symbol": name, "offset": 0}}));
        id
    });
    let task = b.task(100, "thread", 0, 1);
    for (at, (number, args, before, result, after)) in calls.iter().enumerate() {
        let time = 100 * at as u64 + 10;
        let enter = [&[*number], *args, before].concat();
        event(&mut b, task, ids[0], time, &enter);
        event(
            &mut b,
            task,
            ids[1],
            time + 50,
            &[&[*result], &after[..]].concat(),
        );
    }
    let data = b.finish();
    let mut out = Vec::new();
    let options = SyscallsOptions {
        source: source(&data),
        ..SyscallsOptions::default()
    };
    hodo_view::syscalls(&options, &mut out)?;
    Ok(String::from_utf8(out).expect("text"))
}

#[test]
fn system_calls_are_read_as_their_machine_has_them() {
    let mut stat = vec![0; 128];
    stat[16..20].copy_from_slice(&0o100_755u32.to_le_bytes());
    stat[48..56].copy_from_slice(&1234u64.to_le_bytes());
    let at = (-100i64).cast_unsigned();
    let mut waited = [0; 32];
    waited[0] = 1;
    waited[8] = 7;
    waited[16] = 4;
    waited[24] = 8;
    let clone = 0x0018_0000 | 0x0120_0000 | 17;
    let text = shown(
        "riscv64",
        Some("riscv64"),
        &[
            (
                56,
                &[at, 0x1000, 0x80000, 0],
                piece(1, 2, b"/etc/x"),
                3,
                vec![],
            ),
            (
                79,
                &[at, 0x1000, 0x2000, 0],
                piece(1, 2, b"/bin/ls"),
                0,
                piece(2, 0, &stat),
            ),
            (
                22,
                &[4, 0x2000, 2, u64::MAX, 0, 8],
                vec![],
                2,
                piece(1, 0, &waited),
            ),
            (220, &[clone, 0x7000, 0x10, 0x20, 0x30], vec![], 55, vec![]),
            (259, &[0x1000, 0x2000, 0], vec![], 0, vec![]),
            (
                38,
                &[1, 2, 3, 4, 5, 6],
                vec![],
                38u64.wrapping_neg(),
                vec![],
            ),
        ],
    );
    let text = text.expect("system calls");
    let lines: Vec<String> = text
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
        .collect();
    assert_eq!(
        lines,
        [
            "openat(AT_FDCWD, \"/etc/x\", O_RDONLY|O_CLOEXEC) = 3",
            "newfstatat(AT_FDCWD, \"/bin/ls\", {st_mode=S_IFREG|0755, st_size=1234, ...}, 0) = 0",
            "epoll_pwait(4, [{events=EPOLLIN, data={u32=7, u64=7}}, {events=EPOLLOUT, data={u32=8, u64=8}}], 2, -1, NULL, 8) = 2",
            "clone(child_stack=0x7000, flags=CLONE_SETTLS|CLONE_PARENT_SETTID|CLONE_CHILD_CLEARTID|CLONE_CHILD_SETTID|SIGCHLD, \
             parent_tid=[55], tls=0x20, child_tidptr=0x30) = 55",
            "riscv_flush_icache(0x1000, 0x2000, 0) = 0",
            "syscall_0x26(0x1, 0x2, 0x3, 0x4, 0x5, 0x6) = -1 ENOSYS (Function not implemented)",
        ]
    );
}

#[test]
fn traces_without_an_instruction_set_are_of_x86_64() {
    let calls: Calls<'_> = &[(39, &[], vec![], 100, vec![])];
    let text = shown("untold", None, calls).expect("system calls");
    assert!(text.starts_with("getpid()"), "{text}");
    let text = shown("told", Some("x86-64"), calls).expect("system calls");
    assert!(text.starts_with("getpid()"), "{text}");
    let text = shown(
        "other",
        Some("riscv64"),
        &[(39, &[0, 0], vec![], 0, vec![])],
    );
    assert!(text.expect("system calls").starts_with("umount2(NULL, 0)"));
    assert_eq!(number(Isa::Riscv64, "getpid"), Some(172));
}

#[test]
fn flags_of_open_have_the_values_of_the_machine() {
    let at = u64::from(-100_i32 as u32);
    let pipes: Vec<u8> = [5_u32, 6].iter().flat_map(|fd| fd.to_le_bytes()).collect();
    for (machine, directory, direct) in [("riscv64", 0x10000, 0x4000), ("aarch64", 0x4000, 0x10000)]
    {
        let text = shown(
            &format!("open-{machine}"),
            Some(machine),
            &[
                (
                    56,
                    &[at, 0x1000, directory, 0],
                    piece(1, 2, b"/etc"),
                    3,
                    vec![],
                ),
                (59, &[0x1000, direct], vec![], 0, piece(0, 0, &pipes)),
            ],
        );
        let text = text.expect("system calls");
        let lines: Vec<String> = text
            .lines()
            .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
            .collect();
        assert_eq!(
            lines,
            [
                "openat(AT_FDCWD, \"/etc\", O_RDONLY|O_DIRECTORY) = 3",
                "pipe2([5, 6], O_DIRECT) = 0",
            ],
            "{machine}"
        );
    }
}

#[test]
fn system_calls_of_an_unknown_machine_are_not_guessed() {
    let arch = "pdp-11";
    let error = shown(arch, Some(arch), &[]).expect_err("an error");
    assert_eq!(
        error.to_string(),
        format!("the system calls of {arch:?} are unknown")
    );
    let trace = hodo_trace::Trace::open(directory(arch)).expect("a trace");
    let [damage] = &trace.damage[..] else {
        panic!("{:?}", trace.damage);
    };
    let expected = format!(
        "info.json: the instruction set {arch:?} is unknown here: stacks and system calls are not shown"
    );
    assert!(damage.ends_with(&expected), "{damage}");
}

/// `report` writes the registers of a stack trace, the address of one of its own instructions, and the stack from the
/// stack pointer upwards.
const PROGRAM: &str = r#"
#include <signal.h>
#include <unistd.h>

int volatile many = 3;

__attribute__((noipa)) void report(void) {
    unsigned long words[16];
    __asm__ volatile(
        "sd x1, 0(%0); sd x2, 8(%0); sd x5, 16(%0); sd x8, 24(%0); sd x9, 32(%0)\n"
        "sd x18, 40(%0); sd x19, 48(%0); sd x20, 56(%0); sd x21, 64(%0); sd x22, 72(%0)\n"
        "sd x23, 80(%0); sd x24, 88(%0); sd x25, 96(%0); sd x26, 104(%0); sd x27, 112(%0)\n"
        "1: auipc t0, 0\n"
        "sd t0, 120(%0)\n"
        :: "r"(words) : "t0", "memory");
    write(1, words, sizeof words);
    write(1, (void *)words[1], 4096);
}

__attribute__((noipa)) int inner(int count) {
    long room[20];
    room[count] = 1;
    report();
    return room[count];
}

__attribute__((noipa)) int middle(int count) {
    return inner(count) + 1;
}

__attribute__((noipa)) int leaf(int volatile *where) {
    return *where + 1;
}

__attribute__((noipa)) int outer(int volatile *where) {
    return leaf(where) + 1;
}

void handler(int signal) {
    report();
    _exit(signal != SIGSEGV);
}

int main(int count, char **args) {
    if (count > 1) {
        signal(SIGSEGV, handler);
        return outer(0) + many;
    }
    return middle(many) == 99;
}
"#;

/// Runs a program and returns what it writes, or `None` if there is no compiler or no emulator.
fn ran(directory: &Path, args: &[&str]) -> Option<(PathBuf, Vec<u64>)> {
    std::fs::create_dir_all(directory).expect("a directory");
    let (file, code) = (directory.join("prog"), directory.join("prog.c"));
    std::fs::write(&code, PROGRAM).expect("a source");
    let mut gcc = Command::new("riscv64-linux-gnu-gcc");
    gcc.args(["-static", "-O2", "-fasynchronous-unwind-tables", "-w", "-o"]);
    let output = gcc.arg(&file).arg(&code).stdin(Stdio::null()).output();
    let compiled = output
        .inspect_err(|error| eprintln!("not done: riscv64-linux-gnu-gcc: {error}"))
        .ok()?;
    let text = String::from_utf8_lossy(&compiled.stderr);
    assert!(compiled.status.success(), "{text}");
    let mut qemu = Command::new("qemu-riscv64");
    // This leaves enough stack above all frames.
    qemu.env("MUCH", "x".repeat(8192));
    let output = qemu.arg(&file).args(args).output();
    let output = output
        .inspect_err(|error| eprintln!("not done: qemu-riscv64: {error}"))
        .ok()?;
    let words = output.stdout.chunks_exact(8);
    let words = words.map(|word| u64::from_le_bytes(word.try_into().expect("8 bytes")));
    Some((file, words.collect()))
}

const REGISTERS: usize = Isa::Riscv64.stack_trace_registers().len();
/// An address in our code. The program's addresses are below it.
const OURS: u64 = 0x7_0000;

/// Writes a trace with one stack trace.
fn trace(name: &str, head: &[u64], stack: &[u64], shadow: &[u64]) -> PathBuf {
    let mut b = Builder::new(&directory(name), true);
    b.info["arch"] = "riscv64".into();
    let id = b.function("probe", 'B');
    let word = REGISTERS + 1;
    b.log(&json!({"probe": {
        "id": id, "group": "probe_prog", "name": "probe", "symbol": "report", "offset": 0, "kind": "stacktrace",
        "shadow": word + 1 + stack.len(),
        "args": [{"name": "stack", "type": "x8[4096]", "word": word, "value": word, "shift": 0, "bits": 64}]}}));
    let maps = [(0x1_0000, OURS, "/opt/prog"), (OURS, OURS + 0x1000, ISLAND)];
    for (start, end, path) in maps {
        b.log(&json!({"map": {"pid": 100, "start": start, "end": end, "offset": 0, "path": path, "counter": 1}}));
    }
    let task = b.task(100, "start", 0, 1);
    let length = [stack.len() as u64 * 8];
    event(
        &mut b,
        task,
        id,
        10,
        &[head, &length, stack, &length, shadow].concat(),
    );
    b.finish()
}

/// Returns the functions of the stack trace.
fn lines_of(options: &EventOptions) -> Vec<String> {
    let mut out = Vec::new();
    hodo_view::events(options, &mut out).expect("events");
    let text = String::from_utf8(out).expect("text");
    let lines = text.lines().skip(1);
    lines.map(|line| line.trim().to_owned()).collect()
}

fn names(lines: &[String]) -> Vec<&str> {
    let lines = lines.iter().map(|line| line.trim_start_matches("=> "));
    lines.filter_map(|line| line.split(' ').next()).collect()
}

#[test]
fn stacks_of_another_machine_are_read() {
    let root = directory("root");
    let Some((_, words)) = ran(&root.join("opt"), &[]) else {
        return;
    };
    let (head, stack) = words.split_at(REGISTERS + 1);
    let pc = head[REGISTERS];
    let bytes = std::fs::read(root.join("opt/prog")).expect("the program");
    let functions = hodo_symbols::functions(&bytes).expect("functions");
    let named = |name: &str| {
        let mut all = functions.iter();
        let function = all.find(|f| f.name == name).expect(name);
        function.addr..function.addr + function.size
    };
    assert!(named("report").contains(&pc));
    // `inner` is traced: it returns to a stub, and its real return address is in the shadow, at the place of its frame.
    let mut traced = stack.to_vec();
    let at = traced
        .iter()
        .position(|word| named("middle").contains(word));
    let at = at.expect("where it returns to");
    let mut shadow = vec![0; traced.len()];
    shadow[at + 1] = std::mem::replace(&mut traced[at], OURS + 8);

    let data = trace("stacks", head, &traced, &shadow);
    let mut options = EventOptions {
        source: source(&data),
        ..EventOptions::default()
    };
    // If the file is not in its place, only addresses are shown.
    let alone = [format!("=> <{pc:x}>"), "=> ...".to_owned()];
    assert_eq!(lines_of(&options), alone);
    options.source.sysroot = Some(root.clone());
    let lines = lines_of(&options);
    let found = names(&lines);
    assert_eq!(
        found[..4],
        ["report", "inner", "middle", "main"],
        "{lines:?}"
    );
    // If a file of another machine is in its place, it is not used.
    let mut other = bytes;
    other[18..20].copy_from_slice(&Isa::X86_64.elf_machine().to_le_bytes());
    std::fs::write(root.join("opt/prog"), other).expect("a file");
    assert_eq!(lines_of(&options), alone);
}

#[test]
fn stacks_lead_through_signal_handlers() {
    let root = directory("signals");
    let Some((_, words)) = ran(&root.join("opt"), &["signal"]) else {
        return;
    };
    let (head, stack) = words.split_at(REGISTERS + 1);
    let data = trace("signal", head, stack, &vec![0; stack.len()]);
    let mut options = EventOptions {
        source: source(&data),
        ..EventOptions::default()
    };
    options.source.sysroot = Some(root);
    let lines = lines_of(&options);
    let found = names(&lines);
    assert_eq!(found[..2], ["report", "handler"], "{lines:?}");
    // The handler returns to code of the kernel. The interrupted function has its return address only in a register.
    assert!(found[2].starts_with('<'), "{lines:?}");
    assert_eq!(found[3..6], ["leaf", "outer", "main"], "{lines:?}");
}
