//! Instructions of all kinds, legal and not, chosen at random from all maps of opcodes: under the engine they do what
//! the processor does alone, and the accesses that clients receive are those that the processor makes.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;

use hodo_dbi::{Access, Block, Client, Kind as AccessKind, Observe};
use hodo_tests::{Kind, build, hodo, scratch};

/// How many instructions have an opcode of each map once.
const TURNS: u64 = 15 << 8;
/// Where the program has the instructions, and bytes of each.
const CODE: u64 = 0x8343_3000;
const SLOT: u64 = 128;
/// Where their memory is: pages of this size.
const MEMORY: u64 = 0x5000_0000;
const PAGE: u64 = 4096;
const PAGES: usize = 6;

fn program() -> PathBuf {
    let options = ["-O1", "-fno-stack-protector", "-fcf-protection=none"];
    build("opcodes.c", Kind::StaticPie, &options)
}

fn arguments(seed: u64, what: &str) -> Vec<OsString> {
    let numbers = [seed, seed * 2 * TURNS, 2 * TURNS];
    let mut all: Vec<OsString> = numbers.iter().map(|n| n.to_string().into()).collect();
    all.push(what.into());
    all
}

fn lines(command: &mut Command) -> Vec<String> {
    let output = command.output().expect("it can be run");
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "{command:?}: {}, {errors}",
        output.status
    );
    text.lines().map(str::to_owned).collect()
}

/// What an instruction did, without flags if it was executed: counters may change those that its manual leaves
/// undefined, and those that it would have overwritten if it had not faulted. What is refused overwrites none.
fn without_flags(line: &str) -> String {
    if line.contains(" signal 4 ") {
        return line.to_owned();
    }
    without(line, &["flags="])
}

/// A call of a word that is no address: in the cache, it has changed flags, and memory below the stack pointer.
fn is_wild_call(line: &str) -> bool {
    let mut words = line.split(' ').skip(1);
    let code = words.next().unwrap_or_default();
    let prefixes = [
        "26", "2e", "36", "3e", "64", "65", "66", "67", "f0", "f2", "f3",
    ];
    let mut bytes = code
        .as_bytes()
        .chunks(2)
        .map(|two| std::str::from_utf8(two).unwrap_or_default());
    let opcode = bytes
        .by_ref()
        .find(|byte| !prefixes.contains(byte) && !byte.starts_with('4'));
    let modrm = bytes
        .next()
        .and_then(|byte| u8::from_str_radix(byte, 16).ok());
    opcode == Some("ff")
        && modrm.is_some_and(|modrm| modrm >> 3 & 7 == 2)
        && line.contains(" signal 11 128 ")
}

/// A line without the words that begin so.
fn without(line: &str, left_out: &[&str]) -> String {
    let words: Vec<&str> = line
        .split(' ')
        .filter(|word| !left_out.iter().any(|start| word.starts_with(start)))
        .collect();
    words.join(" ")
}

/// Compares instructions with the processor, without a tool and with tools that insert code.
fn do_what_they_do_alone(seed: u64) {
    let (program, arguments) = (program(), arguments(seed, "show"));
    let alone = lines(Command::new(&program).args(&arguments));
    assert_eq!(alone.len() as u64, 2 * TURNS);
    let recording = scratch(&format!("opcodes-{seed}"));
    for tool in ["none", "stat", "cache", "record"] {
        let mut command = Command::new(hodo());
        command.args(["mem", tool]);
        match tool {
            "none" => &mut command,
            "record" => command.arg("-d").arg(recording.join("mem")),
            _ => command.args(["-o", "/dev/null"]),
        };
        let cached = lines(command.arg("--").arg(&program).args(&arguments));
        assert_eq!(alone.len(), cached.len(), "seed {seed}, {tool}");
        let both = alone.iter().zip(&cached);
        let differing = both.filter(|(alone, cached)| match tool {
            _ if is_wild_call(alone) => {
                let shown = |line| without(line, &["flags=", "memory="]);
                shown(alone) != shown(cached)
            }
            "none" => alone != cached,
            _ => without_flags(alone) != without_flags(cached),
        });
        let differing: Vec<String> = differing
            .map(|(alone, cached)| format!("alone: {alone}\n cache: {cached}\n"))
            .collect();
        let first = &differing[..differing.len().min(20)];
        assert!(
            differing.is_empty(),
            "seed {seed}, {tool}: {} instructions differ:\n{}",
            differing.len(),
            first.concat()
        );
    }
}

/// The pages that instructions access by what a client receives: as the program says it.
#[derive(Default)]
struct Pages(BTreeMap<u64, [u8; PAGES]>);

impl Client for Pages {
    fn executed(&mut self, _: u32, block: &Arc<Block>, upto: usize, accesses: &[Access]) {
        for access in accesses {
            let pc = block.insns[usize::from(access.insn)].pc;
            let number = pc.wrapping_sub(CODE) / SLOT;
            if upto == 0 || number >= 2 * TURNS || access.size == 0 {
                continue;
            }
            let pages = self.0.entry(number).or_insert([b'-'; PAGES]);
            let first = access.address.wrapping_sub(MEMORY) / PAGE;
            let last = (access.address.wrapping_sub(MEMORY) + u64::from(access.size) - 1) / PAGE;
            for page in first..=last {
                if let Some(seen) = pages.get_mut(page as usize)
                    && *seen != b'w'
                {
                    *seen = if access.kind == AccessKind::Store {
                        b'w'
                    } else {
                        b'r'
                    };
                }
            }
        }
    }
}

/// Whether an instruction writes lines back to memory, or prefetches: no accesses (docs/instrumentation.md).
fn is_of_caches(bytes: &str) -> bool {
    let Some(at) = bytes.find("0fae") else {
        return false;
    };
    let modrm = u8::from_str_radix(&bytes[at + 4..at + 6], 16).expect("digits");
    at < 16 && at % 2 == 0 && modrm < 0xC0 && modrm >> 3 & 7 >= 6
}

/// Whether an instruction stores bytes that a mask selects, and may fault for others, as the processor likes
/// (`maskmovq`, `maskmovdqu`).
fn may_fault_for_more(bytes: &str, seen: &[u8], pages: &[u8]) -> bool {
    let is_masked = bytes.find("0ff7").is_some_and(|at| at < 16 && at % 2 == 0);
    let mut both = seen.iter().zip(pages);
    is_masked && both.all(|(seen, page)| seen == page || *seen == b'-')
}

/// Compares accesses with the pages without which instructions fault.
fn access_what_the_processor_accesses(seed: u64) {
    let program = program();
    let alone = lines(Command::new(&program).args(arguments(seed, "pages")));
    assert!(alone.len() > 300, "{}", alone.len());
    let command: Vec<OsString> = [program.clone().into_os_string()]
        .into_iter()
        .chain(arguments(seed, "quiet"))
        .collect();
    let target = hodo_dbi::Target::program(&program, &command);
    let (_, received) =
        hodo_dbi::observe(&target, Observe::Accesses, Pages::default()).expect("it can be run");
    let mut differing = Vec::new();
    for line in &alone {
        let mut words = line.split(' ');
        let (Some(number), Some(bytes), Some(pages)) = (words.next(), words.next(), words.next())
        else {
            panic!("{line}");
        };
        let number = number.parse::<u64>().expect("a number") - seed * 2 * TURNS;
        let seen = received.0.get(&number).unwrap_or(&[b'-'; PAGES]);
        let is_other =
            pages.as_bytes() != seen && !may_fault_for_more(bytes, seen, pages.as_bytes());
        if is_other && !is_of_caches(bytes) {
            let seen = String::from_utf8_lossy(seen);
            differing.push(format!("{line}, received {seen}\n"));
        }
    }
    let first = &differing[..differing.len().min(20)];
    assert!(
        differing.is_empty(),
        "seed {seed}: accesses of {} instructions differ:\n{}",
        differing.len(),
        first.concat()
    );
}

#[test]
fn instructions_do_what_they_do_alone() {
    do_what_they_do_alone(0);
}

/// Compares instructions whose code ends somewhere in them.
fn fault_where_they_are_cut(seed: u64) {
    const COUNT: usize = 900;
    // How much of what is no instruction they fetch depends on the processor.
    const MOST_OTHERWISE: usize = COUNT / 30;
    // Registers and memory are the last words.
    const STATE: usize = 3;
    let words = |line: &String| -> Vec<String> { line.split(' ').map(str::to_owned).collect() };
    let program = program();
    let mut arguments = arguments(seed, "cut");
    arguments[2] = COUNT.to_string().into();
    let alone = lines(Command::new(&program).args(&arguments));
    let mut command = Command::new(hodo());
    command
        .args(["mem", "stat", "-o", "/dev/null", "--"])
        .arg(&program);
    let cached = lines(command.args(&arguments));
    assert_eq!((alone.len(), cached.len()), (COUNT, COUNT));
    let (mut differing, mut otherwise) = (Vec::new(), 0);
    for (alone, cached) in alone.iter().zip(&cached) {
        let (alone, cached) = (words(&without_flags(alone)), words(&without_flags(cached)));
        let signals = [&alone[3][..], &cached[3]];
        let are_none = signals == ["4", "11"] || signals == ["11", "4"];
        let state = |words: &[String]| words[words.len() - STATE..].to_vec();
        if are_none && state(&alone) == state(&cached) {
            otherwise += 1;
        } else if alone != cached {
            differing.push(format!("alone: {alone:?}\n cache: {cached:?}\n"));
        }
    }
    assert!(
        differing.is_empty() && otherwise <= MOST_OTHERWISE,
        "seed {seed}: {otherwise} have another of both faults, {} differ:\n{}",
        differing.len(),
        differing[..differing.len().min(20)].concat()
    );
}

#[test]
fn instructions_fault_where_they_are_cut() {
    fault_where_they_are_cut(0);
}

#[test]
fn instructions_access_what_the_processor_accesses() {
    access_what_the_processor_accesses(0);
}

/// As many seeds as `HODO_OPCODES` says, from the next one on.
#[test]
#[ignore = "takes hours"]
fn many_instructions() {
    let words = std::env::var("HODO_OPCODES").unwrap_or_else(|_| "1..1000".to_owned());
    let (first, end) = words.split_once("..").expect("FIRST..END");
    let number = |word: &str| word.parse::<u64>().expect("a number");
    for seed in number(first)..number(end) {
        println!("seed {seed}");
        do_what_they_do_alone(seed);
        access_what_the_processor_accesses(seed);
        fault_where_they_are_cut(seed);
    }
}
