//! Probes: what they count and print, and that programs still do what they do alone.

use std::path::Path;
use std::process::Command;

use hodo_tests::probing::{ARGUMENTS, LINKER, PARTS, PUSHED, objects, path, probe, text};
use hodo_tests::{Kind, SHORTER, build, hodo};
use serde_json::Value;

fn available(kinds: &[Kind]) -> impl Iterator<Item = Kind> {
    kinds.iter().copied().filter(|kind| kind.is_available())
}

#[test]
fn counts_are_exact() {
    for kind in available(&Kind::ALL).filter(|kind| kind.has_names()) {
        let program = build("probed.c", kind, &[]);
        let file = path(&program);
        let work = format!("{file}:work count");
        let every = format!("{file}:loop+* count");
        let output = probe(&["--format", "json", "-e", &work, "-e", &every], &[file]);
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        let counts = objects(&output, 1);
        assert_eq!(counts[0]["name"], "work");
        assert_eq!(counts[0]["hits"], 8001);
        let hits: Vec<u64> = counts[1..]
            .iter()
            .filter_map(|c| c["hits"].as_u64())
            .collect();
        assert_eq!(hits.len(), counts.len() - 1);
        // Code before and after the loop is executed once, the loop 1000 times, and the code for empty loops never.
        assert!(
            hits.iter().all(|hits| [0, 1, 1000].contains(hits)),
            "{hits:?}"
        );
        assert!(
            hits.iter().filter(|&&hits| hits == 1000).count() >= 5,
            "{hits:?}"
        );
        assert!(hits[0] == 1);
    }
}

#[test]
fn events_have_the_values_of_registers_and_memory() {
    for kind in available(&Kind::ALL).filter(|kind| kind.has_names()) {
        let program = build("probed.c", kind, &[]);
        let file = path(&program);
        let ([first, ..], [low, ..]) = (ARGUMENTS, PARTS);
        let definition = format!(
            "p:my/probe {file}:work p=$arg1 n=$arg2:s32 text=+0($arg3):string a=+0($arg1):s32 b=+4({first}):u16 \
             name=+0(+8({first})):string c=$comm k=\\7:u8 low={low}:u8 sp=%sp s=$stack"
        );
        let output = probe(&["--format", "json", "-e", &definition], &[file]);
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        let events = objects(&output, 1);
        assert_eq!(events.len(), 8001);
        let last = events.last().expect("events");
        assert_eq!(
            (&last["group"], &last["name"]),
            (&"my".into(), &"probe".into())
        );
        let mut seen = vec![0; 1000];
        let mut time = 0;
        for event in &events {
            let args = &event["args"];
            let now = event["time_ns"].as_u64().expect("a time");
            assert!(now >= time, "events are not in order");
            time = now;
            assert_eq!(args["sp"], args["s"]);
            assert_eq!(args["k"], 7);
            assert!(args["sp"].as_u64().is_some_and(|sp| sp % 16 == PUSHED));
            if args["p"] == 0 {
                assert_eq!(args["text"], "null");
                // Memory that is not mapped cannot be read; the program continues.
                for name in ["a", "b", "name"] {
                    assert_eq!(args[name], Value::Null);
                }
                continue;
            }
            let n = args["n"].as_u64().expect("a number");
            seen[n as usize] += 1;
            assert_eq!(args["low"], n & 0xFF);
            assert_eq!((&args["a"], &args["b"]), (&(-5).into(), &7.into()));
            assert_eq!(
                (&args["text"], &args["name"]),
                (&"text".into(), &"name".into())
            );
        }
        assert!(seen.iter().all(|&times| times == 8));
    }
}

#[test]
fn lines_are_those_of_ftrace() {
    let program = build("probed.c", Kind::Pie, &[]);
    let file = path(&program);
    let [first, second, ..] = ARGUMENTS;
    let definition = format!("{file}:loop n={first}:u64 {second}:x8 count print");
    let output = probe(&["-e", &definition], &[file]);
    let lines: Vec<&str> = text(&output.stdout).lines().collect();
    assert_eq!(lines.len(), 4, "{output:?}");
    assert!(
        lines[1].contains(": loop: (loop+0x0) n=1000 arg2=0x"),
        "{}",
        lines[1]
    );
    assert_eq!(
        lines[2..],
        ["        HITS  PROBE", "           1  loop: (loop+0x0)"]
    );
}

/// Counts every instruction of a file while a command runs: it must print what it prints alone.
fn count_everything(file: &str, command: &[&str]) {
    let alone = Command::new(command[0])
        .args(&command[1..])
        .env("LC_ALL", "C")
        .output()
        .expect("the program can be run");
    let definition = format!("{file}:*+* count");
    let output = probe(&["-e", &definition], command);
    assert_eq!(
        alone.status.code(),
        output.status.code(),
        "{file}: {command:?}"
    );
    assert!(
        output.stdout.starts_with(&alone.stdout),
        "{file}: {command:?}: {}",
        text(&output.stdout[..output.stdout.len().min(2000)])
    );
    let own = |line: &&str| !line.starts_with("hodo: ");
    let errors: Vec<&str> = text(&output.stderr).lines().filter(own).collect();
    assert_eq!(errors, text(&alone.stderr).lines().collect::<Vec<_>>());
    let counts = text(&output.stdout[alone.stdout.len()..]).lines().skip(1);
    let hit = counts
        .filter(|line| !line.trim_start().starts_with("0 "))
        .count();
    assert!(hit > 20, "{file}: {command:?}: {hit} instructions were hit");
}

#[test]
fn every_instruction_of_real_programs() {
    let script = "f() { local x=$1; [ $x -gt 0 ] && f $((x-1)); }; f 50; declare -A m; m[a]=1; echo ${m[@]}; \
                  for i in 1 2 3; do echo $i; done | tac; trap 'echo bye' EXIT; echo a | sed s/a/b/; (exit 3); echo $?";
    for file in ["bash", "libc.so.6", LINKER] {
        count_everything(file, &["bash", "-c", script]);
    }
    let sql = "with recursive t(i) as (select 1 union all select i+1 from t where i<3000) select count(*), sum(i) from t";
    for file in ["sqlite3", "libsqlite3.so.0"] {
        if Path::new("/usr/bin/sqlite3").exists() {
            count_everything(file, &["/usr/bin/sqlite3", ":memory:", sql]);
        }
    }
    let perl = "my %h = map { $_ => $_ ** 2 } 1..100; print join(',', map { $h{$_} } sort keys %h), eval { die 'x' }, $@";
    count_everything("perl", &["perl", "-e", perl]);
}

#[test]
fn programs_are_found_by_the_names_of_links() {
    let program = build("probed.c", Kind::Pie, &[]);
    let place = hodo_tests::scratch("programs_are_found_by_the_names_of_links");
    std::os::unix::fs::symlink(&program, place.join("linked")).expect("a link");
    let output = Command::new(hodo())
        .args(["probe", "-e", "linked:work count", "--", "linked"])
        .env("PATH", &place)
        .output()
        .expect("hodo can be run");
    assert!(
        text(&output.stdout).contains("8001  work: (work+0x0)"),
        "{output:?}"
    );
}

#[test]
fn every_instruction_of_python() {
    let script = "import json,re,threading\ndef f(n): return n if n<2 else f(n-1)+f(n-2)\ndef g():\n for i in range(5):\n  \
                  try:\n   if i%2: raise ValueError(i)\n  except ValueError as e: yield str(e)\n\
                  ts=[threading.Thread(target=f,args=(12,)) for _ in range(3)]\n[t.start() for t in ts]\n[t.join() for t in ts]\n\
                  print(f(15),list(g()),json.dumps({'a':[1,{'b':None}]}),re.sub('(a+)b',r'<\\1>','xaab'),2**200,'%.5f'%3.14159)";
    let Ok(program) = Path::new("/usr/bin/python3").canonicalize() else {
        hodo_tests::skip("there is no /usr/bin/python3");
        return;
    };
    // If it is a small program with a large library, the library is meant.
    let output = Command::new("ldd").arg(&program).output();
    let libraries = output.map(|output| text(&output.stdout).to_owned());
    let libraries = libraries.unwrap_or_default();
    let library = libraries
        .split_whitespace()
        .find(|name| name.starts_with("libpython"));
    count_everything(
        library.unwrap_or(path(&program)),
        &["/usr/bin/python3", "-c", script],
    );
}

#[test]
fn every_instruction_of_programs_with_exceptions_and_signals() {
    for kind in available(&Kind::ALL) {
        let program = build("exceptions.cc", kind, SHORTER);
        let file = path(&program);
        count_everything(file, &[file]);
        if kind == Kind::Pie {
            count_everything("libstdc++.so.6", &[file]);
            count_everything("libgcc_s.so.1", &[file]);
        }
        let program = build("signals.c", kind, &[]);
        count_everything(path(&program), &[path(&program)]);
        let program = build("jumps.c", kind, &[]);
        count_everything(path(&program), &[path(&program)]);
    }
}

#[test]
fn errors_are_reported_before_anything_runs() {
    let program = build("probed.c", Kind::Pie, &[]);
    let file = path(&program);
    for (definition, message) in [
        (format!("{file}:nowhere"), "names no function"),
        (
            format!("{file}:probed.c:12"),
            "has no debugging information: compile it with -g, or install its debug package",
        ),
        (
            format!("{file}:work x=y"),
            "has no debugging information: compile it with -g",
        ),
        (format!("{file}:work %rex"), "there is no register rex"),
    ] {
        let output = probe(&["-e", &definition], &[file]);
        assert_eq!(output.status.code(), Some(125), "{definition}: {output:?}");
        let said = text(&output.stderr);
        assert!(said.contains(message), "{definition}: {said}");
        assert!(output.stdout.is_empty(), "{definition}: it ran");
    }
    // The program may come to see a file that is not here, if it changes its root. If not, that is said.
    let output = probe(&["-e", "/no/such/file:main"], &[file]);
    let said = text(&output.stderr);
    assert!(
        output.status.code() == Some(1) && said.contains("/no/such/file"),
        "{said}"
    );
    // For a place in the middle of an instruction, that instruction is named.
    let middle = format!("{file}:main+1");
    let output = probe(&["-e", &middle], &[file]);
    let said = text(&output.stderr);
    assert!(
        output.status.code() == Some(125) && said.contains("main+0x1"),
        "{said}"
    );
}
