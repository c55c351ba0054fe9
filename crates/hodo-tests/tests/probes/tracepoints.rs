//! Events by name: tracepoints, which are enabled while they are recorded, and other USDT probes.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use hodo_tests::probing::{objects, path, probe, text};
use hodo_tests::target::{Target, run, seen_in_time};
use hodo_tests::{Kind, Trace, build, build_with, hodo, scratch};
use serde_json::{Value, json};

fn available() -> impl Iterator<Item = Kind> {
    Kind::ALL.into_iter().filter(|kind| kind.is_available())
}

fn program(kind: Kind) -> PathBuf {
    build("tracepoints.c", kind, &[])
}

fn library() -> PathBuf {
    let flags = ["-O2", "-w", "-shared", "-fPIC", "-DLIBRARY"];
    build_with("gcc", &["tracepoints.c"], &flags)
}

fn list(words: &[&str]) -> Output {
    let mut command = Command::new("timeout");
    command.args(["-s", "KILL", "300"]).arg(hodo());
    command.arg("list-events").args(words).env("LC_ALL", "C");
    command.output().expect("hodo can be run")
}

/// The names of the events of a run with `--format json`, each with its first argument.
fn hits(output: &Output, own: usize) -> Vec<(String, i64)> {
    let events = objects(output, own);
    let first = |event: &Value| {
        let argument = &event["args"];
        let value = argument.get("id").or_else(|| argument.get("status"));
        value.and_then(Value::as_i64)
    };
    events
        .iter()
        .map(|event| {
            let name = event["name"].as_str().expect("a name").to_owned();
            let first = first(event).unwrap_or_else(|| panic!("{event}"));
            (name, first)
        })
        .collect()
}

/// What a function of the program hits when it is called with these numbers.
fn expected(numbers: &[i64]) -> Vec<(String, i64)> {
    let both = |&number: &i64| [("request".to_owned(), number), ("done".to_owned(), -number)];
    numbers.iter().flat_map(both).collect()
}

#[test]
fn tracepoints_are_listed_with_their_arguments() {
    let program = program(Kind::Stripped);
    let output = list(&[path(&program)]);
    assert_eq!(
        text(&output.stdout),
        "# KIND        GROUP:NAME  ARGUMENTS\n\
         \x20 tracepoint  tests:done  status:i32 ok:bool where:ptr\n\
         \x20 tracepoint  tests:request  id:u64 path:str\n"
    );
    let output = list(&["--json", path(&program), "*:req*", "no:thing"]);
    let listed: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let [event] = &listed.as_array().expect("a list")[..] else {
        panic!("{listed}");
    };
    assert_eq!(event["addrs"].as_array().map(Vec::len), Some(1));
    for (key, value) in [
        ("group", json!("tests")),
        ("name", json!("request")),
        ("kind", json!("tracepoint")),
        ("path", json!(path(&program))),
        (
            "arguments",
            json!([{"name": "id", "type": "u64"}, {"name": "path", "type": "str"}]),
        ),
        ("enabled", Value::Null),
    ] {
        assert_eq!(event[key], value, "{event}");
    }
    let usdt = build("usdt.S", Kind::Pie, &[]);
    let output = list(&["-e", "tests:*", path(&usdt)]);
    assert!(
        text(&output.stdout).ends_with(
            "\n  usdt        tests:step  arg1:s32 arg2:u64 arg3:u32 arg4:s32 arg5:u16\n"
        ),
        "{output:?}"
    );
}

#[test]
fn files_without_events_are_reported() {
    let (events, none) = (program(Kind::Pie), build("calls.c", Kind::Pie, &[]));
    for (words, message) in [
        (
            vec![path(&none)],
            format!(
                "hodo: {} has no events: neither tracepoints nor other USDT probes\n",
                path(&none)
            ),
        ),
        (
            vec![path(&events), "a:b", "c:*"],
            format!("hodo: {} has no event that matches: a:b, c:*\n", path(&events)),
        ),
        (
            vec!["-p", "2147483646"],
            "hodo: there is no process 2147483646\n".to_owned(),
        ),
        (
            vec![path(&events), "request"],
            "hodo: 'request' is not a pattern of events: write GROUP:NAME, where * stands for any text, or * for all; \
             `hodo list-events FILE` lists those of a file\n"
                .to_owned(),
        ),
        (
            vec!["/nowhere/at/all"],
            "hodo: there is no file /nowhere/at/all\n".to_owned(),
        ),
    ] {
        let output = list(&words);
        assert_eq!(text(&output.stderr), message);
        assert_eq!(output.status.code(), Some(1), "{words:?}");
        assert!(output.stdout.is_empty());
    }
    assert_eq!(list(&[]).status.code(), Some(2));
}

#[test]
fn invalid_patterns_are_reported_before_the_program_runs() {
    let program = program(Kind::Pie);
    let file = path(&program);
    let output = probe(&["--event", "tests:d*", "--event", "no:*"], &[file]);
    let said = text(&output.stderr);
    let first = format!(
        "hodo: --event 'no:*' matches no event of {file} or its libraries; libraries that are loaded later are searched, too\n"
    );
    assert!(said.starts_with(&first), "{said}");
    assert!(
        text(&output.stdout).starts_with("tests: 0 3\n"),
        "{output:?}"
    );
    for (pattern, message) in [
        (
            "p:x libc.so.6:openat",
            "hodo: the option --event: 'p:x libc.so.6:openat' is a probe definition, not a pattern of events: use -e\n",
        ),
        (
            "tests",
            "hodo: the option --event: 'tests' is not a pattern of events: write GROUP:NAME, where * stands for any text, or * for all; \
             `hodo list-events FILE` lists those of a file\n",
        ),
    ] {
        let output = probe(&["--event", pattern], &[file]);
        assert_eq!(text(&output.stderr), message);
        assert_eq!(output.status.code(), Some(125));
        assert!(output.stdout.is_empty(), "nothing has run");
    }
}

#[test]
fn only_matching_tracepoints_are_on_and_only_while_recorded() {
    for kind in available() {
        let program = program(kind);
        let file = path(&program);
        let output = probe(&["--format", "json", "--event", "tests:*"], &[file]);
        assert!(
            text(&output.stdout).starts_with("tests: 3 3\n"),
            "{kind:?}: {output:?}"
        );
        assert_eq!(text(&output.stderr), "", "{kind:?}");
        assert_eq!(hits(&output, 1), expected(&[0, 1, 2]), "{kind:?}");
        let events = objects(&output, 1);
        assert_eq!(events[2]["args"]["path"], "/odd");
        assert_eq!(events[3]["args"]["ok"], true);
        assert_eq!(events[2]["group"], "tests");
        let output = probe(&["--format", "json", "--event", "t*:done"], &[file]);
        assert!(
            text(&output.stdout).starts_with("tests: 0 3\n"),
            "{kind:?}: {output:?}"
        );
        assert_eq!(hits(&output, 1).len(), 3, "{kind:?}");
        // The program itself uses it for a while.
        let output = probe(&["--format", "json", "--event", "*"], &[file, "own"]);
        assert!(
            text(&output.stdout).starts_with("tests: 5 5\n"),
            "{kind:?}: {output:?}"
        );
        assert_eq!(hits(&output, 1), expected(&[0, 1, 2, 3, 4]), "{kind:?}");
    }
}

#[test]
fn a_definition_that_names_a_tracepoint_switches_it_on_too() {
    let program = program(Kind::Pie);
    let file = path(&program);
    let definition = format!("p:x {file}:%tests:request number=id:x64 path if number > 0");
    let output = probe(&["--format", "json", "-e", &definition], &[file]);
    assert!(
        text(&output.stdout).starts_with("tests: 3 0\n"),
        "{output:?}"
    );
    let events = objects(&output, 1);
    let args: Vec<_> = events.iter().map(|event| &event["args"]).collect();
    assert_eq!(args.len(), 2, "{events:?}");
    assert_eq!(args[1]["path"], "/even");
}

#[test]
fn children_keep_their_keys_and_executed_programs_start_fresh() {
    for kind in available() {
        let program = program(kind);
        let file = path(&program);
        let options = ["--format", "json", "--event", "tests:*"];
        let output = probe(&options, &[file, "fork"]);
        assert!(
            text(&output.stdout).starts_with("tests: 4 4\ntests: 4 4\n"),
            "{kind:?}: {output:?}"
        );
        assert_eq!(hits(&output, 2), expected(&[0, 1, 2, 5, 6]), "{kind:?}");
        let output = probe(&options, &[file, "exec"]);
        assert!(
            text(&output.stdout).starts_with("tests: 3 3\ntests: 3 3\n"),
            "{kind:?}: {output:?}"
        );
        assert_eq!(hits(&output, 2), expected(&[0, 1, 2, 0, 1, 2]), "{kind:?}");
        // Nothing of it is recorded, so nothing is enabled in it.
        let alone = [&options[..], &["--no-follow"]].concat();
        let output = probe(&alone, &[file, "fork"]);
        assert!(
            text(&output.stdout).starts_with("tests: 3 3\ntests: 4 4\n"),
            "{kind:?}: {output:?}"
        );
    }
}

#[test]
fn libraries_that_are_loaded_later_have_their_events_too() {
    let (program, library) = (program(Kind::Pie), library());
    let (file, library) = (path(&program), path(&library));
    let options = ["--format", "json", "--event", "library:*"];
    let output = probe(&options, &[file, "load", library]);
    let lines = "library: 1 1\nlibrary: 1 1\n";
    assert!(text(&output.stdout).starts_with(lines), "{output:?}");
    assert_eq!(hits(&output, 2), expected(&[7, 8]));
}

/// Compiles the program from other files, with these flags.
fn made(flags: &[&str]) -> PathBuf {
    build_with(
        "gcc",
        &["tracepoints.c"],
        &[&["-O2", "-w", "-pthread"], flags].concat(),
    )
}

#[test]
fn branches_on_keys_of_a_library_are_switched_with_it() {
    let shared = ["-shared", "-fPIC", "-DLIBRARY", "-DSHARED"];
    let library = made(&shared);
    let library = path(&library);
    let place = format!(
        "-Wl,-rpath,{}",
        Path::new(library).parent().expect("a place").display()
    );
    // It is linked by path; in the second case, the dynamic linker copies the library's keys into the program.
    for more in ["-fPIC", "-fPIE"] {
        let program = made(&["-DUSER", more, "-Wl,--no-as-needed", library, &place]);
        let options = ["--format", "json", "--event", "library:*"];
        let output = probe(&options, &[path(&program), "own"]);
        let said = text(&output.stdout);
        assert!(said.starts_with("library: 5 5\n"), "{more}: {output:?}");
        assert_eq!(hits(&output, 1), expected(&[0, 1, 2, 3, 4]), "{more}");
        let target = Target::start_with(&program, &["wait"]);
        let maps = target.maps();
        seen_in_time("0.15", |time| {
            let attach = ["probe", "--for", time, "--event", "library:request"];
            run(&target, &attach).stdout.len() > 1000
        });
        target.is_untouched(&maps, 2);
        target.ends("0 0, library: 0 0\n");
    }
}

#[test]
fn a_library_that_is_loaded_later_finds_the_programs_keys_on() {
    let program = made(&["-DSHARED", "-rdynamic", "-fPIE", "-pie"]);
    let library = made(&["-shared", "-fPIC", "-DLIBRARY", "-DUSER"]);
    let options = ["--format", "json", "--event", "tests:*"];
    let output = probe(&options, &[path(&program), "load", path(&library)]);
    let said = text(&output.stdout);
    assert!(said.starts_with("tests: 4 4\ntests: 5 5\n"), "{output:?}");
    assert_eq!(hits(&output, 2), expected(&[0, 1, 2, 7, 8]));
}

#[test]
fn events_are_shown_among_the_calls_with_their_arguments() {
    let program = program(Kind::Pie);
    let directory = scratch("events_among_calls");
    let data = directory.join("data");
    let output = Command::new(hodo())
        .args(["record", "--event", "tests:*", "-d"])
        .arg(&data)
        .arg(&program)
        .output()
        .expect("hodo can be run");
    assert_eq!(text(&output.stdout), "tests: 3 3\n");
    assert_eq!(text(&output.stderr), "");
    let trace = Trace::new(data);
    trace.has_calls(&[("work", 3), ("request_hit", 3), ("done_hit", 3)]);
    let replayed = trace.view("replay", &[]);
    for line in [
        "/* request: id=1 path=\"/odd\" */",
        "/* done: status=-2 ok=false where=0xabc */",
    ] {
        assert_eq!(replayed.matches(line).count(), 1, "{replayed}");
    }
    let dumped = trace.view("dump", &[]);
    assert!(
        dumped.contains("[event] request: id=1 path=\"/odd\""),
        "{dumped}"
    );
}

/// Attaches three times, and checks what is left each time.
fn attached(mode: &str, kind: Kind) {
    let program = program(kind);
    let target = Target::start_with(&program, &[mode]);
    let pid = target.pid().to_string();
    let state = || {
        let output = list(&["-p", &pid, "--json", "tests:*"]);
        let listed: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        let events = listed.as_array().expect("a list").iter();
        let states: Vec<_> = events.map(|event| event["enabled"].as_bool()).collect();
        assert_eq!(states.len(), 2, "{listed}");
        states
    };
    let maps = target.maps();
    for _ in 0..3 {
        if mode == "wait" {
            assert_eq!(state(), [Some(false); 2]);
        }
        seen_in_time("0.15", |time| {
            let options = ["probe", "--for", time, "--event", "tests:*", "--format"];
            let output = run(&target, &[&options[..], &["json"]].concat());
            ["request", "done"].into_iter().all(|name| {
                let line = format!("\"name\":\"{name}\"");
                text(&output.stdout).matches(&line).count() > 100
            })
        });
    }
    if mode == "wait" {
        target.is_untouched(&maps, 2);
    }
    // The last line shows the final state of the keys, and how often the probes were then reached.
    target.ends("0 0, tests: 0 0\n");
}

#[test]
fn tracepoints_of_a_process_are_on_for_as_long_as_hodo_is_attached() {
    for kind in available() {
        attached("wait", kind);
    }
}

#[test]
fn a_process_that_switches_its_keys_itself_can_be_attached_to() {
    for kind in available() {
        attached("switch", kind);
    }
}

#[test]
fn a_process_shows_which_of_its_events_are_on() {
    let program = program(Kind::Pie);
    let target = Target::start_with(&program, &["wait"]);
    let pid = target.pid().to_string();
    let shown = || text(&list(&["-p", &pid, "tests:request"]).stdout).to_owned();
    let line = |state: &str| {
        format!(
            "# STATE  KIND        GROUP:NAME  ARGUMENTS\n{}\n  {state}  tracepoint  tests:request  id:u64 path:str\n",
            Path::new(&program)
                .canonicalize()
                .expect("a path")
                .display()
        )
    };
    assert_eq!(shown(), line("off  "));
    let mut options = vec!["probe", "-p", &pid, "--event", "tests:request"];
    options.extend(["--for", "300", "--format", "json"]);
    let mut command = Command::new(hodo());
    let mut recording = command
        .args(&options)
        .stdout(std::process::Stdio::null())
        .spawn()
        .expect("hodo can be run");
    let begun = std::time::Instant::now();
    while shown() != line("on   ") {
        assert!(begun.elapsed().as_secs() < 60, "{}", shown());
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    let id = recording.id().cast_signed();
    // SAFETY: the process is our child, which has not been waited for.
    unsafe { libc::kill(id, libc::SIGINT) };
    recording.wait().expect("its end");
    assert_eq!(shown(), line("off  "));
    target.ends("0 0, tests: 0 0\n");
}
