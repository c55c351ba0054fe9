//! What `hodo probe` says about programs: where probes would be, and what can be probed.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use hodo_tests::probing::{path, probe_words, text};
use hodo_tests::{Kind, build, build_with, has_tool, hodo, perfetto, skip};
use serde_json::Value;

fn json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{e}: {output:?}"))
}

/// The address of a symbol according to binutils.
fn address(program: &Path, name: &str) -> u64 {
    let output = Command::new("nm").arg(program).output().expect("nm");
    let lines = text(&output.stdout).lines();
    let line = lines.filter_map(|line| line.split_once(' '));
    let addr = line.filter(|(_, rest)| rest.split(' ').nth(1) == Some(name));
    let mut addr = addr.map(|(addr, _)| u64::from_str_radix(addr, 16));
    addr.next_back().expect("the symbol").expect("an address")
}

#[test]
fn a_dry_run_shows_what_would_be_changed() {
    let program = build("probed.c", Kind::Pie, &[]);
    let file = path(&program);
    let definition = format!("{file}:work");
    let output = probe_words(&["--dry-run", "--json", "-e", &definition]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let all = json(&output);
    let place = &all[0]["places"][0];
    assert_eq!(
        (&place["symbol"], &place["offset"]),
        (&"work".into(), &0.into())
    );
    assert_eq!(place["addr"], address(&program, "work"));
    let bytes = std::fs::read(&program).expect("the program");
    let write = &place["writes"][0];
    // In a position-independent program, code of the first segments has the same address in memory as in the file.
    let at = write["addr"].as_u64().expect("an address") as usize;
    let original: Vec<String> = write["original"]
        .as_str()
        .map(|text| text.split(' ').map(str::to_owned).collect())
        .expect("bytes");
    let expected: Vec<String> = bytes[at..at + original.len()]
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    assert_eq!(original, expected);
    // The displaced instructions are contiguous.
    let mut next = place["displaced"][0]["addr"].as_u64().expect("an address");
    for displaced in place["displaced"].as_array().expect("instructions") {
        assert_eq!(displaced["addr"], next);
        next += displaced["bytes"]
            .as_str()
            .expect("bytes")
            .split(' ')
            .count() as u64;
        assert!(
            displaced["insn"]
                .as_str()
                .is_some_and(|text| !text.is_empty())
        );
    }
    let output = probe_words(&["--dry-run", "-e", &definition]);
    let said = text(&output.stdout);
    for part in [
        "work+0x0 at",
        "tactic     ",
        "changed    a ",
        "flags      ",
        "displaced →",
    ] {
        assert!(said.contains(part), "{part}: {said}");
    }
}

#[test]
fn a_dry_run_of_many_places_is_a_summary() {
    let program = build("probed.c", Kind::Pie, &[]);
    let file = path(&program);
    let words = [
        "--dry-run",
        "-e",
        "libc.so.6:str*",
        "-e",
        "libc.so.6:str*+*",
    ];
    let output = probe_words(&[&words[..], &[file]].concat());
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let said = text(&output.stdout);
    assert!(said.lines().count() < 30, "{said}");
    assert!(
        said.contains("  places ") && said.contains("    jump "),
        "{said}"
    );
    let output = probe_words(&[&["-v"], &words[..], &[file]].concat());
    assert!(text(&output.stdout).lines().count() > 1000);
}

#[test]
fn a_dry_run_fails_if_a_definition_has_no_place() {
    let program = build("probed.c", Kind::Pie, &[]);
    let file = path(&program);
    let good = format!("{file}:work");
    let middle = format!("{file}:main+1");
    let nowhere = format!("{file}:nowhere");
    for (words, message) in [
        (vec!["-e", &good, "-e", &middle], "it is the middle of"),
        (vec!["-e", &nowhere], "names no function"),
        (vec!["-e", "libc.so.6:malloc"], "say in which FILE to look"),
        (
            vec!["-e", "libx.so:malloc", file],
            "nor linked with such a library",
        ),
        (
            vec!["-e", "x:main", "/no/such/file"],
            "there is no file /no/such/file",
        ),
        (vec!["-e", "/no/such/file:main"], "opening /no/such/file"),
        (
            vec!["-e", &good, "-e", "x:main %rex"],
            "there is no register rex",
        ),
        (vec!["-e", "/etc/passwd:main"], "is not an ELF file"),
    ] {
        let output = probe_words(&[&["--dry-run"], &words[..]].concat());
        assert_eq!(output.status.code(), Some(1), "{words:?}: {output:?}");
        let said = text(&output.stderr);
        assert!(said.contains(message), "{words:?}: {said}");
    }
    // The places of the others are shown.
    let output = probe_words(&["--dry-run", "-e", &good, "-e", &middle]);
    assert!(text(&output.stdout).contains("work+0x0 at"));
}

/// A program for another processor than this one's, whose cross compiler there is, and the names of its tools and of
/// the register of the first argument.
fn foreign() -> Vec<(PathBuf, &'static str, &'static str)> {
    let all = [
        ("riscv64-linux-gnu", "a0", cfg!(target_arch = "riscv64")),
        ("aarch64-linux-gnu", "x0", cfg!(target_arch = "aarch64")),
        ("x86_64-linux-gnu", "rdi", cfg!(target_arch = "x86_64")),
    ];
    let mut programs = Vec::new();
    for (tools, register, native) in all {
        let compiler = format!("{tools}-gcc");
        if native {
            continue;
        }
        if !has_tool(&compiler) {
            skip(&format!("there is no {compiler}"));
            continue;
        }
        let program = build_with(&compiler, &["probed.c"], &["-O2", "-pthread", "-w"]);
        programs.push((program, tools, register));
    }
    programs
}

#[test]
fn a_dry_run_takes_files_for_other_processors() {
    let own = build("probed.c", Kind::Pie, &[]);
    for (program, tools, register) in foreign() {
        let file = path(&program);
        // Definitions name the registers of their file's processor, and each file has its own.
        let here = format!("{file}:work %{register} $arg2");
        let native = format!("{}:work $arg1", path(&own));
        let output = probe_words(&["--dry-run", "--json", "-e", &here, "-e", &native]);
        assert_eq!(output.status.code(), Some(0), "{tools}: {output:?}");
        let all = json(&output);
        assert_eq!(all[1]["places"][0]["addr"], address(&own, "work"));
        let place = &all[0]["places"][0];
        assert_eq!(place["addr"], address(&program, "work"), "{tools}");
        let displaced = place["displaced"].as_array().expect("instructions");
        assert!(!displaced.is_empty(), "{tools}: {place}");
        // The instructions are those of binutils, whose listing has `address: bytes`.
        let objdump = Command::new(format!("{tools}-objdump"))
            .arg("-d")
            .arg(&program)
            .output()
            .expect("objdump");
        let listing = text(&objdump.stdout);
        for insn in displaced {
            let addr = insn["addr"].as_u64().expect("an address");
            let bytes = insn["bytes"].as_str().expect("bytes");
            let mut bytes: Vec<&str> = bytes.split(' ').collect();
            bytes.reverse();
            let line = format!("\n{addr:>8x}:\t{} ", bytes.concat());
            let trimmed = line.split_whitespace().collect::<Vec<_>>().join("\t");
            assert!(
                listing
                    .lines()
                    .any(|one| one.trim_start().starts_with(&trimmed)),
                "{tools}: {trimmed}"
            );
        }
        // Without a path, the definition's file is the one that is given.
        let name = program.file_name().expect("a name").to_str().expect("text");
        let definition = format!("{name}:work %{register}");
        let output = probe_words(&["--dry-run", "-e", &definition, file]);
        assert!(text(&output.stdout).contains("work+0x0 at"), "{output:?}");
        // Names of another processor's registers are refused, with those of the right one.
        let wrong = format!("{file}:work %zax");
        let output = probe_words(&["--dry-run", "-e", &wrong]);
        assert_eq!(output.status.code(), Some(1), "{tools}: {output:?}");
        let said = text(&output.stderr);
        assert!(said.contains("there is no register zax"), "{tools}: {said}");
        let output = probe_words(&["--dry-run", "-e", "libm.so.6:sin", file]);
        assert_eq!(output.status.code(), Some(1), "{tools}: {output:?}");
        let said = text(&output.stderr);
        assert!(
            said.contains("name the library by its path"),
            "{tools}: {said}"
        );
        let output = probe_words(&["--list", file, "work"]);
        assert_eq!(output.status.code(), Some(0), "{tools}: {output:?}");
        let said = text(&output.stdout);
        assert!(said.contains(" work"), "{tools}: {said}");
    }
}

#[test]
fn functions_that_can_be_probed_are_listed() {
    let program = build("probed.c", Kind::Pie, &[]);
    let file = path(&program);
    let output = probe_words(&["--list", "--json", file]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let all = json(&output);
    let function = |name: &str| {
        let mut all = all.as_array().expect("functions").iter();
        all.find(|f| f["name"] == name)
            .expect("the function")
            .clone()
    };
    let work = function("work");
    assert_eq!(work["addr"], address(&program, "work"));
    assert_eq!(
        (&work["entry"], &work["return"]),
        (&"jump".into(), &true.into())
    );
    // What is listed can be probed, and what is not listed cannot.
    for one in all.as_array().expect("functions") {
        let name = one["name"].as_str().expect("a name");
        let definition = format!("{file}:{name}");
        let output = probe_words(&["--dry-run", "-e", &definition]);
        let refused = one["entry"] == Value::Null;
        assert_eq!(
            output.status.code(),
            Some(i32::from(refused)),
            "{name}: {output:?}"
        );
    }
    assert_eq!(function("_start")["return"], false);
    let output = probe_words(&["-v", "--list", file, "lo*", "_start"]);
    let lines: Vec<&str> = text(&output.stdout).lines().collect();
    assert_eq!(lines.len(), 3, "{output:?}");
    assert!(lines[0].starts_with("#      ADDRESS    SIZE  ENTRY    RETURN  FUNCTION"));
    assert!(lines[1].contains("_start: no return: ") || lines[2].contains("_start: no return: "));
}

#[test]
fn an_empty_list_says_why() {
    let program = build("probed.c", Kind::Pie, &[]);
    let file = path(&program);
    for (words, message) in [
        (vec![file, "nowhere", "no*"], "is named nowhere or no*"),
        (vec!["/etc/passwd"], "is not an ELF file"),
        (vec!["/no/such/file"], "there is no file /no/such/file"),
        (vec!["no-such-program"], "there is no file no-such-program"),
    ] {
        let output = probe_words(&[&["--list"], &words[..]].concat());
        assert_eq!(output.status.code(), Some(1), "{words:?}: {output:?}");
        let said = text(&output.stderr);
        assert!(said.contains(message), "{words:?}: {said}");
    }
    let output = probe_words(&["--list"]);
    assert_eq!(output.status.code(), Some(0));
    assert!(text(&output.stdout).contains("hodo probe --list FILE [FUNCTION…]"));
}

#[test]
fn events_are_written_as_perfetto_reads_them() {
    let program = build("probed.c", Kind::Pie, &[]);
    let file = path(&program);
    let scratch = hodo_tests::scratch("perfetto");
    let written = scratch.join("probes.pftrace");
    let definition = format!("my/worked {file}:work n=$arg2:s32 text=+0($arg3):string p=$arg1");
    let definition = format!("p:{definition}");
    let count = format!("{file}:loop count");
    let words = ["-e", &definition, "-e", &count, "--format", "perfetto"];
    let output = probe_words(&[&words[..], &["-o", path(&written), "--", file]].concat());
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    // The program's output is separate.
    assert_eq!(text(&output.stdout).lines().count(), 1);
    let packets = perfetto::packets(&std::fs::read(&written).expect("a trace"));
    let threads = packets.iter().filter(|packet| packet.thread.is_some());
    assert_eq!(threads.count(), 9);
    let hits: Vec<_> = packets.iter().filter(|p| p.kind == Some(3)).collect();
    assert_eq!(hits.len(), 8001);
    let mut seen = vec![0; 1000];
    for hit in &hits {
        assert_eq!((hit.name.as_str(), hit.category.as_str()), ("worked", "my"));
        assert!(hit.time.is_some());
        let value = |name: &str| hit.annotations.get(name).expect("a value").as_str();
        if value("text") == "text" {
            seen[value("n").parse::<usize>().expect("a number")] += 1;
        } else {
            assert_eq!((value("text"), value("p")), ("null", "0"));
        }
        assert_eq!(value("place"), "work+0x0");
    }
    assert!(seen.iter().all(|&times| times == 8));
    let counted = packets.iter().find_map(|packet| packet.counter);
    assert_eq!(counted, Some(1));
    // Without a place of its own, it would be mixed with the program's output.
    let output = probe_words(&["-e", &count, "--format", "perfetto", "--", file]);
    assert_eq!(output.status.code(), Some(2));
    assert!(
        text(&output.stderr).contains("--output <FILE>"),
        "{output:?}"
    );
    let output = probe_words(&["-e", &count, "-o", "/no/such/place", "--", file]);
    assert_eq!(output.status.code(), Some(125));
    let said = text(&output.stderr);
    assert!(
        said.contains("writing /no/such/place: No such file"),
        "{said}"
    );
    assert!(output.stdout.is_empty(), "it ran");
}

/// Runs another command of hodo.
fn run(words: &[&str]) -> Output {
    Command::new("timeout")
        .args(["-s", "KILL", "300"])
        .arg(hodo())
        .args(words)
        .output()
        .expect("hodo can be run")
}

#[test]
fn dumps_for_perfetto_have_all_calls() {
    let program = build("probed.c", Kind::Pie, &[]);
    let data = hodo_tests::scratch("perfetto-dump").join("data");
    let script = format!("{} >/dev/null; exec {0} >/dev/null", path(&program));
    let output = run(&["record", "-d", path(&data), "--", "sh", "-c", &script]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let chrome = json(&run(&["dump", "-d", path(&data), "--chrome"]));
    let packets = perfetto::packets(&run(&["dump", "-d", path(&data), "--perfetto"]).stdout);
    let chrome = chrome["traceEvents"].as_array().expect("events");
    let begins = |event: &&Value| event["ph"] == "B" || event["ph"] == "i";
    let expected: Vec<_> = (chrome.iter().filter(begins))
        .map(|event| {
            (
                event["name"].as_str().expect("a name"),
                event["tid"].as_u64(),
            )
        })
        .collect();
    assert!(expected.len() > 1000, "{}", expected.len());
    let threads: std::collections::HashMap<u64, u64> = (packets.iter())
        .filter_map(|packet| Some((packet.track, packet.thread.as_ref()?.1)))
        .collect();
    let found: Vec<_> = packets
        .iter()
        .filter(|packet| matches!(packet.kind, Some(1 | 3)))
        .map(|packet| (packet.name.as_str(), threads.get(&packet.track).copied()))
        .collect();
    assert!(found == expected);
    // Calls end in order, also those of a program that executes another one. A forked child may return from calls that
    // its parent has begun.
    let first = packets.iter().find(|packet| packet.kind.is_some());
    let parent = first.expect("an event").track;
    let mut open: std::collections::HashMap<u64, i64> = std::collections::HashMap::new();
    let mut time = 0;
    for packet in packets.iter().filter(|packet| packet.kind.is_some()) {
        assert!(packet.time >= Some(time), "packets are not in order");
        time = packet.time.expect("a time");
        let depth = open.entry(packet.track).or_default();
        match packet.kind {
            Some(1) => *depth += 1,
            Some(2) => *depth -= 1,
            _ => {}
        }
        assert!(
            *depth >= 0 || packet.track != parent,
            "more calls end than begin"
        );
    }
    let processes = packets.iter().filter_map(|p| p.process.as_ref());
    assert_eq!(processes.count(), 2);
}

fn line_of(mark: &str) -> u32 {
    line_in("sources.c", mark)
}

/// The number of the line that ends with a mark.
fn line_in(source: &str, mark: &str) -> u32 {
    let source = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("programs")
        .join(source);
    let source = std::fs::read_to_string(source).expect("the source");
    let mark = format!("// line: {mark}");
    let line = source.lines().position(|line| line.ends_with(&mark));
    line.expect("the line") as u32 + 1
}

/// How often lines are executed: counts by definition.
fn hits_of_lines(program: &Path, lines: &[u32]) -> Vec<Vec<u64>> {
    let file = path(program);
    let definition = |line: &u32| format!("p:line_{line} {file}:sources.c:{line} count");
    let definitions: Vec<String> = lines.iter().map(definition).collect();
    let mut words = vec!["--format", "json"];
    definitions
        .iter()
        .for_each(|definition| words.extend(["-e", definition.as_str()]));
    let output = probe_words(&[&words[..], &["--", file]].concat());
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let counts: Vec<Value> = (text(&output.stdout).lines())
        .filter_map(|line| serde_json::from_str(line).ok())
        .filter(Value::is_object)
        .collect();
    let of = |line: &u32| {
        let name = format!("line_{line}");
        let mine = counts.iter().filter(|count| count["name"] == name.as_str());
        mine.map(|count| count["hits"].as_u64().expect("hits"))
            .collect()
    };
    lines.iter().map(of).collect()
}

#[test]
fn lines_are_probed_in_all_copies_of_inlined_functions() {
    let lines = ["inlined", "called", "shown", "body"].map(line_of);
    for optimized in ["-O0", "-O1", "-O2", "-O3"] {
        let program = build("sources.c", Kind::Pie, &["-g", optimized]);
        let hits = hits_of_lines(&program, &lines);
        let sum = |at: usize| hits[at].iter().sum::<u64>();
        assert_eq!((sum(1), sum(2)), (2, 2), "{optimized}: {hits:?}");
        // Two functions have a copy.
        assert_eq!((hits[0].len(), sum(0)), (2, 102), "{optimized}: {hits:?}");
        assert_eq!(sum(3), 100, "{optimized}: {hits:?}");
    }
}

#[test]
fn debugging_information_is_found_in_separate_files() {
    let program = build("sources.c", Kind::Pie, &["-g", "-Wl,--build-id=none"]);
    let directory = hodo_tests::scratch("separate");
    let tool = |words: &[&str]| {
        let status = Command::new("objcopy")
            .args(words)
            .current_dir(&directory)
            .status();
        assert!(status.expect("objcopy").success(), "{words:?}");
    };
    tool(&["--only-keep-debug", path(&program), "sources.debug"]);
    tool(&["--compress-debug-sections=zlib", "sources.debug"]);
    let link = "--add-gnu-debuglink=sources.debug";
    tool(&["--strip-debug", link, path(&program), "stripped"]);
    let stripped = directory.join("stripped");
    let line = line_of("shown");
    let definition = format!("{}:sources.c:{line}", path(&stripped));
    let places = |output: &Output| json(output)[0]["places"].clone();
    let words = ["--dry-run", "--json", "-e"];
    let found = probe_words(&[&words[..], &[&definition]].concat());
    assert_eq!(found.status.code(), Some(0), "{found:?}");
    let original = format!("{}:sources.c:{line}", path(&program));
    let original = places(&probe_words(&[&words[..], &[&original]].concat()));
    assert_eq!(places(&found)[0]["addr"], original[0]["addr"]);
    // By the build ID, among the files that debuginfod has fetched.
    let program = build(
        "sources.c",
        Kind::Pie,
        &["-g", "-Wl,--build-id=0x1234567890abcdef"],
    );
    let cached = directory.join("1234567890abcdef");
    std::fs::create_dir(&cached).expect("a directory");
    std::fs::copy(&program, cached.join("debuginfo")).expect("a copy");
    tool(&["--strip-debug", path(&program), "with-id"]);
    let with_id = format!("{}:sources.c:{line}", path(&directory.join("with-id")));
    let found = Command::new(hodo())
        .args(["probe", "--dry-run", "--json", "-e", &with_id])
        .env("DEBUGINFOD_CACHE_PATH", &directory)
        .output()
        .expect("hodo can be run");
    // The note has another size, which may move the code.
    let original = format!("{}:sources.c:{line}", path(&program));
    let original = places(&probe_words(&[&words[..], &[&original]].concat()));
    assert_eq!(places(&found)[0]["addr"], original[0]["addr"]);
    // Another file of that name is not mistaken for it.
    std::fs::write(directory.join("sources.debug"), b"something else").expect("a file");
    let output = probe_words(&[&words[..], &[&definition]].concat());
    assert_eq!(output.status.code(), Some(1));
    let said = text(&output.stderr);
    assert!(said.contains("has no debugging information"), "{said}");
}

#[test]
fn lines_without_code_name_those_with_code() {
    let program = build("sources.c", Kind::Pie, &["-g"]);
    let file = path(&program);
    for (place, message) in [
        ("sources.c:2", "line 2 of sources.c has no code; line "),
        (
            "sources.c:9999",
            "line 9999 of sources.c has no code; line ",
        ),
        ("nowhere.c:5", "there is no source file nowhere.c"),
        (
            "Sources.h:5",
            "there is no source file Sources.h; there are ",
        ),
    ] {
        let definition = format!("{file}:{place}");
        let output = probe_words(&["--dry-run", "-e", &definition]);
        assert_eq!(output.status.code(), Some(1), "{place}: {output:?}");
        assert!(
            text(&output.stderr).contains(message),
            "{place}: {output:?}"
        );
        let output = probe_words(&["-e", &definition, "--", file]);
        assert_eq!(output.status.code(), Some(125), "{place}: {output:?}");
        assert!(
            text(&output.stderr).contains(message),
            "{place}: {output:?}"
        );
        assert!(output.stdout.is_empty(), "{place}: it ran");
    }
    // Functions are listed with their lines.
    let output = probe_words(&["--list", file, "loop"]);
    assert!(
        text(&output.stdout).contains("  loop  sources.c:"),
        "{output:?}"
    );
}

#[test]
fn usdt_probes_are_listed() {
    let program = build("usdt.S", Kind::Pie, &[]);
    let file = path(&program);
    let output = probe_words(&["--usdt", "--json", file]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let all = json(&output);
    let one = &all[0];
    assert_eq!(
        (&one["provider"], &one["name"]),
        (&"tests".into(), &"step".into())
    );
    assert_eq!(one["addr"], address(&program, "step"));
    assert_eq!(one["semaphore"], address(&program, "wanted"));
    let (arguments, listed) = match () {
        () if cfg!(target_arch = "riscv64") => (
            "-4@a0 8@-16(s0) 4@5 -4@4(a1) 2@(a2)",
            "  tests:step  -4@a0 8@",
        ),
        () if cfg!(target_arch = "aarch64") => (
            "-4@x0 8@[x29, -16] 4@5 -4@[x1, 4] 2@[x2]",
            "  tests:step  -4@x0 8@",
        ),
        () => (
            "-4@%edi 8@-16(%rbp) 4@$5 -4@table+4(%rip) 2@wanted(%rip)",
            "  tests:step  -4@%edi 8@",
        ),
    };
    assert_eq!(one["arguments"], arguments);
    let output = probe_words(&["--usdt", file]);
    assert!(text(&output.stdout).contains(listed), "{output:?}");
    let none = build("probed.c", Kind::Pie, &[]);
    for (words, message) in [
        (vec![path(&none)], "has no USDT probes"),
        (vec![], "--usdt lists the probes of one file"),
        (vec!["/no/such/file"], "there is no file /no/such/file"),
    ] {
        let output = probe_words(&[&["--usdt"], &words[..]].concat());
        assert_eq!(output.status.code(), Some(1), "{words:?}: {output:?}");
        let said = text(&output.stderr);
        assert!(said.contains(message), "{words:?}: {said}");
    }
}
