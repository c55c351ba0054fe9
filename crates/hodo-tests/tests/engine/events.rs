//! What `hodo mem` says besides accesses: allocations, system calls, signals; and whose accesses miss caches.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use hodo_mem::variables::{Variable, fields};
use hodo_tests::{Kind, build, hodo};
use serde_json::Value;

#[path = "../../../hodo-mem/examples/leaks.rs"]
#[allow(dead_code, reason = "its main function is not called")]
mod leaks;

fn program() -> PathBuf {
    let options = ["-g", "-O1", "-fno-tree-vectorize", "-pthread"];
    build("allocations.c", Kind::Pie, &options)
}

fn place(name: &str) -> String {
    let place = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    place.to_str().expect("text").to_owned()
}

fn run(arguments: &[&str], command: &[&str]) -> Output {
    let mut hodo = Command::new(hodo());
    hodo.arg("mem").args(arguments);
    if !command.is_empty() {
        hodo.arg("--").args(command);
    }
    let output = hodo.output().expect("hodo can be run");
    assert!(output.status.success(), "{output:?}");
    output
}

fn json(arguments: &[&str], command: &[&str]) -> Value {
    let output = run(arguments, command);
    let text = match output.stdout.starts_with(b"{") {
        true => &output.stdout,
        false => &output.stderr,
    };
    serde_json::from_slice(text).expect("JSON")
}

/// What was allocated by calls in a function: how often, how many bytes, and how many stores there were.
fn allocated(objects: &Value, function: &str) -> (u64, u64, u64) {
    let mut sums = (0, 0, 0);
    for object in objects.as_array().expect("a list") {
        if object["kind"] == "allocation" && object["function"] == function {
            let number = |name: &str| object[name].as_u64().expect("a number");
            sums.0 += number("allocations");
            sums.1 += number("allocated");
            sums.2 += number("stores");
        }
    }
    sums
}

fn check_all(objects: &Value) {
    assert_eq!(allocated(objects, "reuse"), (200, 64_000, 8000));
    let (count, bytes, stores) = allocated(objects, "array");
    assert_eq!((count, bytes), (1, 240));
    // The allocator itself may clear it.
    assert!((30..=60).contains(&stores), "{stores}");
    assert_eq!(allocated(objects, "aligned"), (3, 496, 62));
    let (count, bytes, stores) = allocated(objects, "give");
    assert_eq!((count, bytes), (100, 8000));
    // Another thread frees it: it may not be known that this comes after the allocation. Then what the allocator writes
    // to it counts, too.
    assert!((1000..=1200).contains(&stores), "{stores}");
    let (count, bytes, stores) = allocated(objects, "grow");
    assert_eq!((count, bytes), (4, 800 + 800 + 8000 + 80_000));
    // What moves is copied.
    assert!((11_100..13_000).contains(&stores), "{stores}");
}

#[test]
fn allocations_are_known_by_their_calls() {
    let program = program();
    let program = program.to_str().expect("text");
    let value = json(&["hot", "--format", "json", "--callers", "1"], &[program]);
    let objects = &value["objects"];
    check_all(objects);
    let mut all = objects.as_array().expect("a list").iter();
    let reuse = all.find(|object| object["function"] == "reuse");
    let reuse = reuse.expect("an object");
    assert_eq!(reuse["bytes"], 64_000);
    assert_eq!(reuse["callers"][0]["function"], "main");
    let is_here = reuse["file"]
        .as_str()
        .is_some_and(|file| file.ends_with("allocations.c"));
    assert!(is_here && reuse["line"].as_u64() > Some(0), "{reuse}");

    // A recording says the same.
    let data = place("allocations");
    run(&["record", "-d", &data], &[program]);
    let value = json(
        &["hot", "-d", &data, "--format", "json", "--callers", "0"],
        &[],
    );
    check_all(&value["objects"]);
    let text = run(&["hot", "--top", "3"], &[program]);
    let text = String::from_utf8(text.stderr).expect("text");
    assert!(
        text.contains(" allocated 200 times, 64000 bytes, by reuse, "),
        "{text}"
    );
    assert!(text.contains(" < main < "), "{text}");
}

#[test]
fn a_program_that_executes_itself_allocates_anew() {
    let program = program();
    let program = program.to_str().expect("text");
    let value = json(
        &["hot", "--format", "json", "--callers", "0"],
        &[program, "again"],
    );
    check_all(&value["objects"]);
    assert_eq!(allocated(&value["objects"], "main"), (1, 4096, 512));
    // Both of its stacks are known.
    let objects = value["objects"].as_array().expect("a list").iter();
    let stacks = objects.filter(|object| object["kind"] == "stack" && object["thread"] == 0);
    assert_eq!(stacks.count(), 1);
}

#[test]
fn children_have_the_allocations_of_their_parents() {
    let program = program();
    let command = [program.to_str().expect("text"), "fork"];
    let options = ["hot", "--format", "json", "--callers", "0"];
    let value = json(&options, &command);
    assert_eq!(allocated(&value["objects"], "inherit"), (1, 800, 500));
    let data = place("inherited");
    run(&["record", "-d", &data], &command);
    let value = json(&[&options[..], &["-d", &data]].concat(), &[]);
    assert_eq!(allocated(&value["objects"], "inherit"), (1, 800, 500));
}

#[test]
fn parts_of_variables_have_names() {
    let program = build("fields.c", Kind::Pie, &["-g", "-O1"]);
    let symbols = Command::new("nm").arg(&program).output().expect("nm");
    let symbols = String::from_utf8(symbols.stdout).expect("text");
    let address = |name: &str| {
        let mut lines = symbols.lines();
        let line = lines.find(|line| line.split(' ').nth(2) == Some(name));
        u64::from_str_radix(&line.expect("the symbol")[..16], 16).expect("an address")
    };
    let part = |name: &str, offset: u64| Variable {
        file: program.clone(),
        address: address(name) + offset,
        name: name.to_owned(),
        offset,
    };
    // One of the outer structures has 64 bytes.
    let expected = [
        (part("table", 0), "table[0].inner[0].first"),
        (part("table", 14), "table[0].inner[1].third"),
        (part("table", 64 + 24), "table[1].grid[0][0]"),
        (part("table", 64 + 24 + 16), "table[1].grid[1][1]"),
        (part("table", 64 + 48), "table[1].pointer"),
        (part("table", 63), "table[0].text[7]"),
        (part("number", 4), "number"),
    ];
    let parts: Vec<Variable> = expected.iter().map(|(part, _)| part.clone()).collect();
    let names = fields(&parts);
    for (part, name) in &expected {
        assert_eq!(names[&(part.file.as_path(), part.address)], *name);
    }
    // Without types, there is only the distance.
    let stripped = place("fields");
    let done = Command::new("strip")
        .args(["-g", "-o", &stripped])
        .arg(&program)
        .status();
    assert!(done.expect("strip").success());
    let parts = parts.into_iter().map(|part| Variable {
        file: stripped.clone().into(),
        ..part
    });
    let parts: Vec<Variable> = parts.collect();
    let names = fields(&parts);
    let key = |number: usize| (parts[number].file.as_path(), parts[number].address);
    assert_eq!(names[&key(0)], "table");
    assert_eq!(names[&key(1)], "table+14");
}

#[test]
fn memory_that_is_used_again_is_not_shared() {
    let program = program();
    let command = [program.to_str().expect("text"), "pass"];
    let value = json(&["share", "--format", "json", "--callers", "0"], &command);
    let lines = value["lines"].as_array().expect("a list").iter();
    let writers = |line: &&Value| {
        let threads = line["threads"].as_array().expect("a list").iter();
        let writers = threads.filter(|used| used["thread"] != 0 && used["stores"] == 8);
        match line["memory"]["kind"] == "allocation" {
            true => writers.count(),
            // Threads use stacks one after the other, too.
            false => 0,
        }
    };
    // The allocator and the first thread use the lines at both ends.
    let shared = lines.filter(|line| writers(line) > 1);
    assert!(shared.count() <= 2, "{value}");
    let hot = json(&["hot", "--format", "json", "--callers", "0"], &command);
    assert_eq!(allocated(&hot["objects"], "pass"), (3, 3 * 4096, 3 * 512));
}

#[test]
fn operators_that_fail_allocate_nothing() {
    let program = build("allocations.cc", Kind::Pie, &["-g", "-O1"]);
    let command = program.to_str().expect("text");
    let value = json(&["hot", "--format", "json", "--callers", "0"], &[command]);
    let (count, bytes, _) = allocated(&value["objects"], "list");
    assert_eq!((count, bytes), (100, 1600));
    assert_eq!(allocated(&value["objects"], "in_vain"), (0, 0, 0));
    let (count, bytes, stores) = allocated(&value["objects"], "main");
    assert_eq!((count, bytes, stores), (1, 8000, 1000));

    let left = leaks::leaks(&[program.into()]).expect("it can be observed");
    assert_eq!(left.get("list"), Some(&(50, 800)));
    assert_eq!(left.get("main"), Some(&(1, 8000)));
    assert_eq!(left.get("in_vain"), None);
}

#[test]
fn threads_make_system_calls_and_get_signals() {
    let program = program();
    let program = program.to_str().expect("text");
    let file = place("events.txt");
    run(&["view", "-o", &file], &[program]);
    let text = std::fs::read_to_string(&file).expect("the accesses");
    let events = text.lines().filter(|line| {
        let word = line.split_whitespace().nth(3);
        !matches!(word, Some("load" | "store" | "kind"))
    });
    let events: Vec<&str> = events
        .map(|line| line.get(21..).unwrap_or_default())
        .collect();
    assert!(
        events[0].starts_with("thread ") && events[0].ends_with(" begins"),
        "{}",
        events[0]
    );
    let position = |wanted: &str| {
        let found = events.iter().position(|event| event.starts_with(wanted));
        found.unwrap_or_else(|| panic!("there is no {wanted}"))
    };
    // The signal comes while the call that sends it is made.
    let sent = events
        .iter()
        .position(|event| event.starts_with("tgkill(") && event.ends_with(", 0xa)"));
    let sent = sent.expect("raise");
    assert_eq!(events[sent + 1], "signal SIGUSR1", "{:?}", &events[sent..]);
    let written = position("write(0x1, ");
    assert!(
        sent < written && events[written].ends_with(", 0x7)"),
        "{}",
        events[written]
    );
    assert_eq!(events[written + 1], "= 0x7");
    assert!(position("allocated 320 bytes at 0x") < position("allocated 240 bytes at 0x"));
    let again = events
        .iter()
        .filter(|event| event.starts_with("allocated 320 bytes at "));
    assert_eq!(again.count(), 200);
    assert!(
        events
            .iter()
            .any(|event| event.starts_with("moved 0x") && event.contains(" to 80000 bytes at 0x"))
    );
    assert!(position("rt_sigaction(0xa, ") < sent);
    position("exit_group(0x0)");
    let of_libc = |event: &str| event.starts_with("code of /") && event.contains("/libc.so");
    assert!(events.iter().any(|event| of_libc(event)), "{events:?}");
    // Scripts read only accesses.
    let csv = run(
        &[
            "view", "--format", "csv", "--thread", "0", "--limit", "1000",
        ],
        &[program],
    );
    let csv = String::from_utf8(csv.stderr).expect("text");
    assert_eq!(csv.lines().count(), 1001);
    assert!(
        csv.lines().all(|line| line.split(',').count() == 6),
        "{csv}"
    );
}

#[test]
fn misses_are_of_memory_and_of_calls() {
    let program = program();
    let program = program.to_str().expect("text");
    let (graph, folded) = (place("misses.svg"), place("misses.folded"));
    let caches = [
        "cache",
        "--format",
        "json",
        "--i1",
        "32K,8,64",
        "--d1",
        "1K,2,64",
        "--ll",
        "256K,16,64",
    ];
    let more = [
        &caches[..],
        &["--memory", "--callers", "0", "--flame-graph"],
    ]
    .concat();
    for options in [&[][..], &["--write-backs"]] {
        let arguments = [&more[..], &[&folded], options].concat();
        let value = json(&arguments, &[program]);
        let misses = value["levels"][1]["misses"].as_u64().expect("a number");
        let rows = value["memory"].as_array().expect("a list");
        let number = |row: &Value, name: &str| row[name].as_u64().expect("a number");
        let all: u64 = rows.iter().map(|row| number(row, "d1_misses")).sum();
        assert_eq!(all, misses, "all misses are of some memory");
        // It has 80000 bytes, more than the cache.
        let grow = rows.iter().filter(|row| row["function"] == "grow");
        let grow: u64 = grow.map(|row| number(row, "d1_misses")).sum();
        assert!((1250..3000).contains(&grow), "{grow} of {misses}");
        let text = std::fs::read_to_string(&folded).expect("the stacks");
        let mut sum = 0;
        let mut in_grow = 0;
        for line in text.lines() {
            let (names, count) = line.rsplit_once(' ').expect("a number");
            let count: u64 = count.parse().expect("a number");
            sum += count;
            if names.contains(";main;grow;touch") {
                in_grow += count;
            }
        }
        assert_eq!(sum, misses, "all misses are in some calls");
        assert!((1250..2000).contains(&in_grow), "{in_grow} of {misses}");
    }
    run(&[&more[..], &[&graph]].concat(), &[program]);
    let text = std::fs::read_to_string(&graph).expect("the graph");
    assert!(
        text.contains("</svg>") && text.contains("<title>grow ("),
        "{}",
        text.len()
    );
    let nowhere = Command::new(hodo())
        .args([
            "mem",
            "cache",
            "--flame-graph",
            "/no/such/graph",
            "--",
            program,
        ])
        .output()
        .expect("hodo can be run");
    assert_eq!(nowhere.status.code(), Some(1));
    let said = String::from_utf8_lossy(&nowhere.stderr);
    assert!(said.contains("cannot write /no/such/graph"), "{said}");
}

#[test]
fn allocators_of_a_program() {
    let options = ["-g", "-O1", "-fno-tree-vectorize"];
    let program = build("own_allocator.c", Kind::Pie, &options);
    let command = [program.to_str().expect("text")];
    let own = [
        "--allocator",
        "pool_take=memalign",
        "--allocator",
        "pool_give=free",
    ];
    let hot = |options: &[&str], command: &[&str]| {
        let options = [&["hot", "--format", "json"], options].concat();
        let objects = json(&options, command)["objects"].take();
        allocated(&objects, "use")
    };
    assert_eq!(hot(&[], &command), (0, 0, 0));
    assert_eq!(hot(&own, &command), (10, 1600, 200));
    let recording = place("allocators_of_a_program");
    let record = [&["record", "-d", &recording], &own[..]].concat();
    run(&record, &command);
    assert_eq!(hot(&["-d", &recording], &[]), (10, 1600, 200));
    std::fs::remove_dir_all(&recording).expect("own files");
    let wrong = Command::new(hodo())
        .args(["mem", "hot", "--allocator", "mine=yours", "true"])
        .output()
        .expect("hodo can be run");
    let said = String::from_utf8_lossy(&wrong.stderr);
    assert!(
        !wrong.status.success() && said.contains("LIKE is one of malloc"),
        "{said}"
    );
}
