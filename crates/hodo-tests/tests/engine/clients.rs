//! The examples of clients say what programs do that are known.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex};

use hodo_dbi::{Client, Event, Events, Inserting, Observe, Pass, Target, Word, Words};
use hodo_mem::stat::Counter;
use hodo_tests::{Kind, build, needs};

#[path = "../../../hodo-mem/examples/call_graph.rs"]
#[allow(dead_code, reason = "its main function is not called")]
mod call_graph;
#[path = "../../../hodo-mem/examples/coverage.rs"]
#[allow(dead_code, reason = "its main function is not called")]
mod coverage;
#[path = "../../../hodo-mem/examples/memory_tracer.rs"]
#[allow(dead_code, reason = "its main function is not called")]
mod memory_tracer;
#[path = "../../../hodo-mem/examples/opcode_mix.rs"]
#[allow(dead_code, reason = "its main function is not called")]
mod opcode_mix;
#[path = "../../../hodo-mem/examples/taint.rs"]
#[allow(dead_code, reason = "its main function is not called")]
mod taint;

fn program() -> PathBuf {
    build("called.c", Kind::Static, &["-g", "-O1"])
}

fn place(name: &str) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(name)
}

/// The address of a symbol of the program, which is where the program is executed, too.
fn address(name: &str) -> u32 {
    let symbols = Command::new("nm").arg(program()).output().expect("nm");
    let symbols = String::from_utf8(symbols.stdout).expect("text");
    let mut lines = symbols.lines();
    let line = lines.find(|line| line.split(' ').nth(2) == Some(name));
    u32::from_str_radix(&line.expect("the symbol")[..16], 16).expect("an address")
}

/// The signals that the calling thread blocks.
fn blocked() -> String {
    let status = fs::read_to_string("/proc/thread-self/status").expect("the status");
    let line = status.lines().find(|line| line.starts_with("SigBlk:"));
    line.expect("the signals").to_owned()
}

#[test]
fn signals_are_blocked_as_before() {
    let program = program();
    let before = blocked();
    let command = [program.clone().into()];
    let target = Target::program(&program, &command);
    hodo_dbi::run(&target).expect("it can be run");
    assert_eq!(before, blocked());
    let counter = Counter::new(Observe::Counts);
    hodo_dbi::observe(&target, Observe::Counts, counter).expect("it can be observed");
    assert_eq!(before, blocked());
}

#[test]
fn every_access_is_a_line() {
    let file = place("accesses.txt");
    memory_tracer::trace(&file, &[program().into()]).expect("it can be traced");
    let text = fs::read_to_string(&file).expect("the lines");
    let place = format!(" 4 bytes at {:#x}", address("sum"));
    let count = |kind: &str| {
        let wanted = format!("{kind}{place}");
        text.lines().filter(|line| line.ends_with(&wanted)).count()
    };
    // 22 additions, one subtraction, and once it is printed.
    assert_eq!((count("loads"), count("stores")), (24, 23));
}

#[test]
fn operations_are_all_instructions() {
    let program = program();
    let mix = opcode_mix::mix(&[program.clone().into()]).expect("it can be observed");
    let counter = Counter::new(Observe::Counts);
    let command = [program.clone().into()];
    let observed = hodo_dbi::observe(
        &Target::program(&program, &command),
        Observe::Counts,
        counter,
    );
    let all = observed.expect("it can be observed").1.stat().instructions;
    // Random numbers of the kernel make small differences.
    let sum: u64 = mix.values().sum();
    assert!(sum.abs_diff(all) < all / 100, "{sum} of {all}");
    assert!(mix["call"] >= 29 && mix.contains_key("ret"), "{mix:?}");
}

#[test]
fn input_is_followed_to_where_it_goes() {
    let program = build("taint.c", Kind::Pie, &["-g", "-O1"]);
    let input = place("taint_input.txt");
    fs::write(&input, "abcdefghijklmnop").expect("the file can be written");
    let script = r#"exec "$1" < "$2" 2> /dev/null > /dev/null"#;
    let words = ["sh", "-c", script, "sh"].map(Into::into).into_iter();
    let command: Vec<_> = words.chain([program.into(), input.into()]).collect();
    let found = taint::follow(&command).expect("it can be observed");
    assert_eq!(found.read, 16);
    assert_eq!(found.written[&1], (7, 18));
    assert_eq!(found.written[&2], (4, 4));
    assert_eq!(found.decisions.get("decides"), Some(&8));
    assert_eq!(found.decisions.get("counts"), None);
}

/// Of vectors, lanes that depend on the input, and no others.
#[test]
fn lanes_are_followed_one_by_one() {
    /// The first descriptor to which the program writes.
    const FIRST: u64 = 10;
    /// By instruction: the bytes that depend on the input, and the others.
    const SHORT: [(u64, u64); 6] = [(20, 44), (4, 28), (12, 20), (12, 20), (12, 20), (8, 8)];
    const LONG: [(u64, u64); 7] = [
        (32, 32),
        (28, 36),
        (36, 28),
        (24, 40),
        (20, 44),
        (12, 52),
        (44, 20),
    ];
    needs!(has_vectors().0, "this processor has no gathers");
    let program = build("tainted_lanes.c", Kind::Pie, &["-O1"]);
    let input = place("tainted_lanes_input.txt");
    fs::write(&input, [b'a'; 64]).expect("the file can be written");
    let script = r#"exec "$1" < "$2""#;
    let words = ["sh", "-c", script, "sh"].map(Into::into).into_iter();
    let command: Vec<_> = words.chain([program.into(), input.into()]).collect();
    let found = taint::follow(&command).expect("it can be observed");
    assert_eq!(found.read, 64);
    let long: &[_] = if has_vectors().1 { &LONG } else { &[] };
    let expected = SHORT.iter().chain(long).zip((FIRST..).step_by(2));
    for (&(dependent, others), descriptor) in expected {
        let [first, second] = [descriptor, descriptor + 1].map(|to| found.written.get(&to));
        let case = (descriptor - FIRST) / 2;
        assert_eq!(
            first,
            Some(&(dependent, dependent)),
            "of instruction {case}"
        );
        assert_eq!(second, Some(&(0, others)), "of instruction {case}");
    }
}

/// Whether the processor has gathers, and vectors with masks of their own.
fn has_vectors() -> (bool, bool) {
    use std::arch::is_x86_feature_detected as has;
    (has!("avx2"), has!("avx512bw"))
}

#[test]
fn functions_call_each_other() {
    let calls = call_graph::calls(&[program().into()]).expect("it can be observed");
    let count = |caller: &str, callee: &str| {
        let ends = (caller.to_owned(), callee.to_owned());
        calls.get(&ends).copied().unwrap_or(0)
    };
    assert_eq!(count("main", "outer"), 7);
    assert_eq!(count("outer", "inner"), 21);
    assert_eq!(count("main", "inner"), 1);
    assert_eq!(count("inner", "outer"), 0);
}

/// What follows a string in a text.
fn after<'t>(text: &'t [u8], wanted: &str) -> &'t [u8] {
    let at = text
        .windows(wanted.len())
        .position(|here| here == wanted.as_bytes());
    &text[at.expect("it is there") + wanted.len()..]
}

#[test]
fn executed_lines_are_covered() {
    let (drcov, lcov) = (place("called.drcov"), place("called.info"));
    let program = program();
    coverage::cover(&[program.clone().into()], &drcov, &lcov).expect("it can be observed");
    let text = fs::read_to_string(&lcov).expect("lines");
    let source = text.split("SF:").find(|part| part.contains("/called.c\n"));
    let source = source.expect("the source file is there");
    let path = source.lines().next().expect("its name");
    let code = fs::read_to_string(path).expect("the source");
    let count = |wanted: &str| {
        let line = code
            .lines()
            .position(|line| line.contains(wanted))
            .expect("the line")
            + 1;
        let entry = format!("DA:{line},");
        let found = source.lines().find_map(|line| line.strip_prefix(&entry));
        found.map(|count| count.parse::<u64>().expect("a number"))
    };
    assert_eq!(count("sum += n;"), Some(22));
    assert_eq!(count("// once"), Some(1));
    assert_eq!(count("        indirect(i);"), Some(7));
    // A viewer of the format reads it, if one is there.
    match Command::new("lcov").arg("--summary").arg(&lcov).output() {
        Ok(read) => assert!(read.status.success(), "{read:?}"),
        Err(error) => eprintln!("skipped: lcov cannot be run: {error}"),
    }

    let bytes = fs::read(&drcov).expect("the file");
    assert!(bytes.starts_with(b"DRCOV VERSION: 2\n"));
    let table = after(&bytes, "BB Table: ");
    let table = after(table, " bbs\n");
    assert_eq!(table.len() % 8, 0);
    let main = address("main");
    let (parts, _) = table.as_chunks::<8>();
    let starts = parts
        .iter()
        .map(|part| u32::from_le_bytes([part[0], part[1], part[2], part[3]]));
    assert!(
        starts.into_iter().any(|start| start == main),
        "main was executed"
    );
}

/// The system calls that a client receives: numbers and arguments, and what they have returned.
#[derive(Default)]
struct Calls {
    begun: Vec<(u64, [u64; 6])>,
    ended: Vec<u64>,
}

impl Client for Calls {
    fn events(&self) -> Events {
        Events::default().system_calls()
    }

    fn event(&mut self, _: u32, event: &Event<'_>) {
        match *event {
            Event::SystemCall { number, arguments } => self.begun.push((number, arguments)),
            Event::SystemCallEnded { result } => self.ended.push(result),
            _ => {}
        }
    }
}

/// Inserts nothing that does anything.
struct Nothing;

impl Pass for Nothing {}

#[test]
fn system_calls_are_received_beside_passes() {
    let program = program();
    let command = [program.clone().into()];
    let target = Target::program(&program, &command);
    let observed = hodo_dbi::observe(&target, Observe::Accesses, Calls::default());
    let observed = observed.expect("it can be observed").1;
    let passes: Vec<Box<dyn Pass>> = vec![Box::new(Nothing)];
    let calls = hodo_dbi::instrument(&target, passes, Calls::default());
    let calls = calls.expect("it can be instrumented").1;
    let numbers = |calls: &Calls| -> Vec<u64> { calls.begun.iter().map(|call| call.0).collect() };
    assert_eq!(numbers(&observed), numbers(&calls));
    assert_eq!(observed.ended.len(), calls.ended.len());
    const WRITE: u64 = 1;
    let write = calls.begun.iter().position(|call| call.0 == WRITE);
    let write = write.expect("it prints something");
    let (_, [descriptor, _, count, ..]) = calls.begun[write];
    assert_eq!((descriptor, count), (1, calls.ended[write]));
}

#[test]
fn calls_of_functions_are_refused_beside_passes() {
    #[derive(Debug)]
    struct Functions;
    impl Client for Functions {
        fn events(&self) -> Events {
            Events::default().functions(|_| Vec::new())
        }
    }
    let program = program();
    let command = [program.clone().into()];
    let target = Target::program(&program, &command);
    let error = hodo_dbi::instrument(&target, Vec::new(), Functions).expect_err("an error");
    assert!(error.to_string().contains("'observe'"), "{error}");
}

/// Where instructions are that a pass sees: their files, places in those, and bytes.
type Sites = Arc<Mutex<(Vec<(PathBuf, u64, Vec<u8>)>, u64)>>;

/// Lists the instructions, and inserts so much that fragments become too long and have to be made again.
struct Lists(Sites, Option<Word>);

impl Pass for Lists {
    fn begin(&mut self, words: &mut Words<'_>) {
        self.1 = Some(words.word());
    }

    fn insert(&mut self, at: &mut Inserting<'_>) {
        for word in [self.1; 250].into_iter().flatten() {
            at.before().count(word, 1);
        }
        let mut sites = self.0.lock().expect("nobody panics");
        let (list, again) = &mut *sites;
        if at.is_again() {
            *again += 1;
        } else if let Some((file, offset)) = at.instruction().file() {
            let bytes = at.instruction().bytes().to_vec();
            list.push((file.to_owned(), offset, bytes));
        }
    }
}

#[test]
fn passes_know_the_files_of_instructions_and_see_each_once() {
    let program = program();
    let command = [program.clone().into()];
    let target = Target::program(&program, &command);
    let sites = Sites::default();
    let passes: Vec<Box<dyn Pass>> = vec![Box::new(Lists(Arc::clone(&sites), None))];
    hodo_dbi::instrument(&target, passes, Calls::default()).expect("it can be instrumented");
    let (list, again) = &*sites.lock().expect("nobody panics");
    assert!(*again > 0, "no fragment was too long");
    let code = fs::read(&program).expect("the program");
    let program = fs::canonicalize(program).expect("its path");
    let own: Vec<_> = list.iter().filter(|site| site.0 == program).collect();
    assert!(own.len() > 1000, "{}", own.len());
    for (_, offset, bytes) in &own {
        assert!(code[*offset as usize..].starts_with(bytes), "{offset:#x}");
    }
    let places: std::collections::HashSet<u64> = own.iter().map(|site| site.1).collect();
    assert_eq!(places.len(), own.len(), "some were listed twice");
}
