//! Return probes: what they count and print, and that programs still do what they do alone.

use std::collections::HashMap;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Command;

use hodo_tests::probing::{LINKER, objects, path, probe, text};
use hodo_tests::{Kind, SHORTER, build, build_with, has_tool, temporary};
use serde_json::Value;

fn available() -> impl Iterator<Item = Kind> {
    Kind::ALL.into_iter().filter(|kind| kind.is_available())
}

#[test]
fn counts_are_exact() {
    for kind in available().filter(|kind| kind.has_names()) {
        let program = build("returns.c", kind, &[]);
        let file = path(&program);
        let every = format!("r {file}:* count");
        let output = probe(&["--format", "json", "-e", &every], &[file]);
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        let counts: HashMap<String, (u64, u64)> = objects(&output, 1)
            .iter()
            .map(|count| {
                let number = |key: &str| count[key].as_u64().expect("a number");
                let symbol = count["symbol"].as_str().expect("a name").to_owned();
                (symbol, (number("hits"), number("nmissed")))
            })
            .collect();
        let expected = [
            ("negative", 300),
            ("small", 300),
            ("both", 300),
            ("half", 300),
            ("text", 300),
            ("deep", 20_001),
            // longjmp leaves every fourth.
            ("leaves", 75),
            ("first", 300),
            // Other functions jump to these, which then return through the jumping function.
            ("middle", 300),
            ("last", 301),
            ("in_thread", 4010),
            ("begins_with_a_loop", 1),
            ("main", 1),
        ];
        for (name, hits) in expected {
            assert_eq!(counts[name], (hits, 0), "{kind:?}: {name}");
        }
    }
}

/// Registers: the low eight bits of a result with their type, the address of the instruction, and the second result.
const REGISTERS: [&str; 3] = match () {
    () if cfg!(target_arch = "riscv64") => ["%a0:x8", "%pc", "%a1"],
    () if cfg!(target_arch = "aarch64") => ["%x0:x8", "%pc", "%x1"],
    () => ["%al:x8", "%ip", "%rdx"],
};

#[test]
fn events_have_the_values_at_the_return() {
    let [low, pc, second] = REGISTERS;
    for kind in available().filter(|kind| kind.has_names()) {
        let program = build("returns.c", kind, &[]);
        let file = path(&program);
        let negative = format!("r:my/negative {file}:negative $retval:s32 b={low} ip={pc} sp=%sp");
        let both = format!("{file}:both%return a=$retval:s64 b={second}:s64");
        let string = format!("r {file}:text s=+0($retval):string");
        // Where it returns to.
        let at = match () {
            () if cfg!(target_arch = "riscv64") => "%ra",
            () if cfg!(target_arch = "aarch64") => "%x30",
            () => "$stack0",
        };
        let entry = format!("{file}:negative sp=%sp at={at}");
        let events = ["-e", &negative, "-e", &both, "-e", &string, "-e", &entry];
        let output = probe(&[&["--format", "json"], &events[..]].concat(), &[file]);
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        let events = objects(&output, 1);
        assert_eq!(events.len(), 1200, "{kind:?}");
        let mut n: HashMap<&str, i64> = HashMap::new();
        let mut entered = (0, 0);
        for event in &events {
            let args = &event["args"];
            let name = event["name"].as_str().expect("a name");
            let i = *n.entry(name).and_modify(|n| *n += 1).or_insert(0);
            match name {
                "negative" if event["group"] == "my" => {
                    // Both probes have this name, so each call has two events: one at its entry, one at its return.
                    let value = 100 - i / 2;
                    assert_eq!(args["arg1"], value, "{event}");
                    assert_eq!(args["b"], value & 0xFF);
                    assert_eq!(args["ip"], event["caller"]);
                    assert_eq!(args["ip"], entered.1);
                    // The return has popped the word with the address, if there is one.
                    let taken = if cfg!(target_arch = "x86_64") { 8 } else { 0 };
                    assert_eq!(args["sp"], entered.0 + taken, "{event}");
                }
                "negative" => {
                    let word = |name: &str| args[name].as_u64().expect("a number");
                    entered = (word("sp"), word("at"));
                    assert!(event.get("caller").is_none());
                }
                "both__return" => assert_eq!((&args["a"], &args["b"]), (&i.into(), &(!i).into())),
                "text__return" if i % 2 == 1 => assert_eq!(args["s"], "yes"),
                "text__return" => assert_eq!(args["s"], Value::Null),
                _ => panic!("{event}"),
            }
        }
    }
}

#[test]
fn conditions_can_use_the_returned_value() {
    let program = build("returns.c", Kind::Pie, &[]);
    let file = path(&program);
    let count = format!("r {file}:negative v=$retval:s32 if v < 0 count");
    let print = format!(
        "r {file}:both a=$retval:s64 b={}:s64 if a == 7 && b == -8",
        REGISTERS[2]
    );
    let output = probe(&["--format", "json", "-e", &count, "-e", &print], &[file]);
    let told = objects(&output, 1);
    assert_eq!(told.len(), 2, "{output:?}");
    assert_eq!(told[0]["args"]["a"], 7);
    assert!(told[0]["caller"].is_u64());
    assert_eq!(
        (&told[1]["hits"], &told[1]["nmissed"]),
        (&199.into(), &0.into())
    );
}

#[test]
fn functions_whose_return_cannot_be_seen_are_refused() {
    let program = build("jumps.c", Kind::Static, &[]);
    let file = path(&program);
    for (definition, message) in [
        (
            format!("r {file}:_setjmp"),
            "_setjmp: its return cannot be seen: it can return twice",
        ),
        (
            format!("r {file}:_start"),
            "it is not called, but jumped to",
        ),
        (format!("r {file}:main $arg1"), "not when it returns"),
        (format!("r {file}:main+4"), "return"),
    ] {
        let output = probe(&["-e", &definition], &[file]);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(125), "{definition}: {output:?}");
        assert!(said.contains(message), "{definition}: {said}");
        assert!(output.stdout.is_empty(), "{definition}: it ran");
    }
}

#[test]
fn lines_are_those_of_ftrace() {
    let program = build("returns.c", Kind::Fixed, &[]);
    let file = path(&program);
    let definition = format!("r {file}:deep n=$retval:u64 print count");
    let output = probe(&["-e", &definition], &[file]);
    let lines: Vec<&str> = text(&output.stdout).lines().collect();
    assert_eq!(lines.len(), 1 + 20_001 + 2, "{output:?}");
    let first = lines[1].split_once(": deep__return: (").expect("a line").1;
    assert!(first.contains(" <- deep) n=1"), "{}", lines[1]);
    assert!(lines[20_001].ends_with(" <- deep) n=20001"));
    assert_eq!(
        lines[20_002..],
        [
            "        HITS  PROBE",
            "       20001  deep__return: (<- deep)"
        ]
    );
}

/// Probes the returns of all functions of a file while a command runs: it must print what it prints alone.
fn same(file: &str, actions: &str, command: &[&str]) {
    let alone = Command::new(command[0])
        .args(&command[1..])
        .env("LC_ALL", "C")
        .current_dir(temporary())
        .output()
        .expect("the program can be run");
    let definition = format!("r {file}:* $retval {actions}");
    let output = probe(&["-e", &definition], command);
    let what = || format!("{file}: {command:?} {actions}");
    // The exit status reports a probe that has no place.
    let refused = text(&output.stderr).contains("hodo: the probe '");
    let status = match (alone.status.code(), refused) {
        (Some(0), true) => Some(1),
        (code, _) => code,
    };
    assert_eq!(output.status.code(), status, "{}", what());
    assert_eq!(alone.status.signal(), output.status.signal(), "{}", what());
    assert!(
        output.stdout.starts_with(&alone.stdout),
        "{}: {}",
        what(),
        text(&output.stdout[..output.stdout.len().min(2000)])
    );
    let own = |line: &&str| !line.starts_with("hodo: ");
    let errors: Vec<&str> = text(&output.stderr).lines().filter(own).collect();
    let alone_errors: Vec<&str> = text(&alone.stderr).lines().collect();
    assert_eq!(errors, alone_errors, "{}", what());
    let told = text(&output.stdout[alone.stdout.len()..]).lines().skip(1);
    let hit = told.filter(|line| !line.trim_start().starts_with("0 "));
    // Almost none of the unwinder's functions can have one, and some programs never return from main.
    if command.len() > 1 {
        assert!(hit.count() > 3, "{}", what());
    }
}

#[test]
fn exceptions_jumps_and_signals_pass_through() {
    for kind in available() {
        for source in [
            "exceptions.cc",
            "jumps.c",
            "signals.c",
            "tail_calls.c",
            "threads.c",
        ] {
            let program = build(source, kind, SHORTER);
            same(path(&program), "count", &[path(&program)]);
        }
    }
    for source in ["exceptions.cc", "jumps.c", "tail_calls.c"] {
        let program = build(source, Kind::Pie, SHORTER);
        same(path(&program), "print", &[path(&program)]);
    }
    let program = build("exceptions.cc", Kind::Pie, SHORTER);
    same("libstdc++.so.6", "count", &[path(&program)]);
    // Nobody catches it.
    same(path(&program), "count", &[path(&program), "1"]);
    same("libgcc_s.so.1", "count", &[path(&program)]);
}

#[test]
fn missed_returns_are_counted() {
    let numbers = |program: &Path, names: &[&str]| {
        let file = path(program);
        let definition = format!("r {file}:* count");
        let entries = format!("p {file}:* count");
        let output = probe(
            &["--format", "json", "-e", &definition, "-e", &entries],
            &[file],
        );
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        let told: Vec<Value> = text(&output.stdout)
            .lines()
            .filter(|line| line.starts_with('{'))
            .map(|line| serde_json::from_str(line).expect("an object"))
            .collect();
        let sum = |key: &str, returns: bool| -> u64 {
            told.iter()
                .filter(|count| names.iter().any(|name| count["symbol"] == *name))
                .filter(|count| count.get("nmissed").is_some() == returns)
                .map(|count| count[key].as_u64().expect("a number"))
                .sum()
        };
        (sum("hits", true), sum("nmissed", true), sum("hits", false))
    };
    for kind in available().filter(|kind| kind.has_names()) {
        // A chain of jumps is longer than the list can hold: 4096 frames, the first of which does not belong to a jump.
        let program = build("tail_calls.c", kind, &[]);
        for names in [["even", "odd"], ["first", "second"]] {
            let (hits, missed, entries) = numbers(&program, &names);
            assert_eq!(entries, 1_000_001, "{kind:?}: {names:?}");
            assert!((4000..=4097).contains(&hits), "{kind:?}: {hits}");
            // One of these jumps to itself in the end, which is a loop.
            let loops = u64::from(names[0] == "first");
            assert_eq!(hits + missed + loops, entries, "{kind:?}: {names:?}");
        }
        let program = build("deep_recursion.c", kind, &[]);
        same(path(&program), "count", &[path(&program)]);
    }
    // The program has its own memory where the shadow should be.
    let program = build("odd_stacks.c", Kind::Pie, &[]);
    let (hits, missed, entries) = numbers(&program, &["deep", "leaf"]);
    assert!(
        missed > 0 && hits + missed == entries,
        "{hits} {missed} {entries}"
    );
}

#[test]
fn unwinders_find_the_callers() {
    for kind in available() {
        let all = ["children.c", "cancel.c"];
        // musl has no backtraces and no contexts.
        let glibc = ["unwinding.c", "coroutines.c"];
        let more = Kind::GLIBC.contains(&kind).then_some(glibc);
        for source in all.into_iter().chain(more.into_iter().flatten()) {
            let program = build(source, kind, &[]);
            same(path(&program), "count", &[path(&program)]);
        }
    }
    if has_tool("rustc") {
        let flags = ["-O", "-Cdebuginfo=0", "--edition=2021"];
        let program = build_with("rustc", &["panics.rs"], &flags);
        same(path(&program), "count", &[path(&program)]);
    }
}

#[test]
fn values_and_registers_are_kept() {
    for kind in available() {
        let program = build("values.c", kind, &[]);
        for actions in ["count", "print"] {
            same(path(&program), actions, &[path(&program)]);
        }
    }
    let program = build_with(
        "gcc",
        &["registers.c", "registers.S"],
        &["-O2", "-w", "-fPIE", "-pie"],
    );
    for actions in ["count", "print"] {
        same(path(&program), actions, &[path(&program)]);
    }
}

#[test]
fn returns_of_real_programs() {
    let script = "f() { local x=$1; [ $x -gt 0 ] && f $((x-1)); }; f 50; declare -A m; m[a]=1; echo ${m[@]}; \
                  for i in 1 2 3; do echo $i; done | tac; trap 'echo bye' EXIT; echo a | sed s/a/b/; (exit 3); echo $?";
    for file in ["bash", "libc.so.6", LINKER] {
        same(file, "count", &["bash", "-c", script]);
    }
    let sql = "with recursive t(i) as (select 1 union all select i+1 from t where i<3000) select count(*), sum(i) from t";
    if Path::new("/usr/bin/sqlite3").exists() {
        for file in ["sqlite3", "libsqlite3.so.0"] {
            same(file, "count", &["/usr/bin/sqlite3", ":memory:", sql]);
        }
    }
    let python = "import json, re\ntry:\n    raise ValueError('x')\nexcept ValueError as e:\n    print(e)\n\
                  print(json.dumps({'a': [1, 2.5]}), re.sub('a', 'b', 'banana'))";
    // The name in the path may be a script that searches for one.
    let found = Command::new("python3")
        .args([
            "-c",
            "import os, sys; print(os.path.realpath(sys.executable))",
        ])
        .output();
    if let Ok(found) = found.as_ref().map(|found| text(&found.stdout).trim()) {
        same(found, "count", &[found, "-c", python]);
    }
}
