//! System calls as events: `syscalls:sys_enter_NAME` and `syscalls:sys_exit_NAME`.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use hodo_tests::probing::{path, probe, probe_words, text};
use hodo_tests::{Kind, build, has_tool, hodo, scratch, skip};

/// The hits of each probe, by its name, in the output of `count`.
fn counts(file: &Path) -> BTreeMap<String, u64> {
    let text = std::fs::read_to_string(file).expect("counts");
    let mut counts = BTreeMap::new();
    for line in text.lines().skip(1) {
        let mut words = line.split_whitespace();
        let hits: u64 = words.next().and_then(|word| word.parse().ok()).expect(line);
        let name = words.next().expect(line).trim_end_matches(':');
        *counts.entry(name.to_owned()).or_default() += hits;
    }
    counts
}

/// Runs a command with probes that count, and returns their hits.
fn counted(test: &str, definitions: &[&str], command: &[&str]) -> (BTreeMap<String, u64>, Output) {
    let file = scratch(test).join("counts");
    let mut options = vec!["-o", path(&file)];
    for definition in definitions {
        options.extend(["-e", definition]);
    }
    let output = probe(&options, command);
    (counts(&file), output)
}

/// How often strace has seen each call.
fn of_strace(test: &str, command: &[&str]) -> (BTreeMap<String, u64>, Output) {
    let file = scratch(test).join("strace");
    // As `probe` runs it: shells look at the signals that are ignored, and where they are.
    let output = Command::new("timeout")
        .args(["-s", "KILL", "300", "strace", "-f", "-c", "-o", path(&file)])
        .args(command)
        .env("LC_ALL", "C")
        .current_dir(file.parent().expect("a directory"))
        .output()
        .expect("strace can be run");
    let text = std::fs::read_to_string(&file).expect("a table");
    let mut counts = BTreeMap::new();
    for line in text.lines() {
        let words: Vec<_> = line.split_whitespace().collect();
        let (Some(calls), Some(name)) = (words.get(3), words.last()) else {
            continue;
        };
        if let Ok(calls) = calls.parse()
            && *name != "total"
        {
            counts.insert((*name).to_owned(), calls);
        }
    }
    (counts, output)
}

/// Calls whose counts differ, for reasons that docs/limits.md tells or that have to do with the run.
const DIFFERENT: [&str; 10] = [
    // The first one starts the program, and strace does not count calls that do not return.
    "execve",
    "exit",
    "exit_group",
    // It is made at a place that unwinders recognize.
    "rt_sigreturn",
    // The C library asks for the stack's limit before the linker has announced it.
    "prlimit64",
    // Newer C libraries leave it to the vdso, and calls from there are not seen.
    "getrandom",
    // How much memory is asked for depends on addresses.
    "brk",
    "mmap",
    "munmap",
    "mremap",
];

#[test]
fn counts_are_those_of_strace() {
    if !has_tool("strace") {
        return skip("there is no strace");
    }
    let commands: [&[&str]; 5] = [
        &["ls", "/"],
        &["bash", "-c", "for i in 1 2 3; do /bin/true; done; exit 3"],
        &["/usr/bin/python3", "-B", "-S", "-c", "print(6 * 7)"],
        &["git", "--version"],
        &["sqlite3", ":memory:", "select 6 * 7"],
    ];
    for command in commands {
        if !has_tool(command[0]) {
            println!("there is no {}", command[0]);
            continue;
        }
        let (ours, output) = counted("events-ours", &["syscalls:sys_enter_* count"], command);
        let (theirs, reference) = of_strace("events-theirs", command);
        assert_eq!(output.status, reference.status, "{command:?}: {output:?}");
        assert_eq!(output.stdout, reference.stdout, "{command:?}");
        let ours: BTreeMap<&str, u64> = (ours.iter())
            .filter(|(_, hits)| **hits > 0)
            .filter_map(|(name, hits)| Some((name.strip_prefix("sys_enter_")?, *hits)))
            .filter(|(name, _)| !DIFFERENT.contains(name))
            .collect();
        let theirs: BTreeMap<&str, u64> = (theirs.iter())
            .map(|(name, calls)| (name.as_str(), *calls))
            .filter(|(name, _)| !DIFFERENT.contains(name))
            .collect();
        assert!(ours.len() > 5, "{ours:?}");
        assert_eq!(ours, theirs, "{command:?}");
    }
}

#[test]
fn numbers_are_known_after_signals_threads_and_children() {
    // There, the register of the first argument has the result.
    let eintr = match cfg!(not(target_arch = "x86_64")) {
        true => "p:eintr syscalls:sys_exit_read if ret == -4 count",
        false => "p:eintr syscalls:sys_exit_read if ret == -4 && fd > 2 count",
    };
    let definitions = [
        eintr,
        "p:uid syscalls:sys_enter_getuid count",
        "p:uid_done syscalls:sys_exit_getuid count",
        "p:bad syscalls:sys_enter_close if fd == -1 count",
        "p:bad_done syscalls:sys_exit_close if ret == -9 count",
        "p:tid syscalls:sys_enter_gettid count",
        "p:tid_done syscalls:sys_exit_gettid if ret > 0 count",
        "p:group syscalls:sys_exit_getpgid if ret > 0 count",
        "p:executed syscalls:sys_enter_execve if filename == \"/bin/true\" count",
        "p:threads syscalls:sys_exit_clone3 count",
    ];
    for kind in [Kind::Pie, Kind::Static] {
        if !kind.is_available() {
            println!("{kind:?} programs cannot be built");
            continue;
        }
        let program = build("called_kernel.c", kind, &["-pthread"]);
        let (hits, output) = counted("events-storm", &definitions, &[path(&program)]);
        assert_eq!(
            text(&output.stdout),
            "interrupted 300, handled all\n",
            "{output:?}"
        );
        assert_eq!(output.status.code(), Some(0));
        let of = |name: &str| hits.get(name).copied().unwrap_or(0);
        assert_eq!(of("eintr"), 300, "{hits:?}");
        assert!(of("uid") >= 300 && of("uid") == of("uid_done"), "{hits:?}");
        assert!(
            of("uid") == of("bad") && of("bad") == of("bad_done"),
            "{hits:?}"
        );
        assert_eq!((of("tid"), of("tid_done")), (8000, 8000), "{hits:?}");
        assert_eq!((of("group"), of("executed")), (10, 10), "{hits:?}");
        // Once in the parent and once in the new thread, if the C library uses the call.
        assert!([0, 8].contains(&of("threads")), "{hits:?}");
    }
}

#[test]
fn programs_with_all_events_do_what_they_do_alone() {
    let commands: [&[&str]; 4] = [
        &[
            "bash",
            "-c",
            "for i in 1 2 3; do /bin/echo $i | cat; done; echo x >&2; exit 3",
        ],
        &[
            "/usr/bin/python3",
            "-c",
            "import subprocess, threading, sys\n\
             t = [threading.Thread(target=lambda: sum(range(1000))) for _ in range(4)]\n\
             [x.start() for x in t]; [x.join() for x in t]\n\
             print(subprocess.run(['echo', 'a'], capture_output=True).stdout); sys.exit(5)",
        ],
        &["git", "--version"],
        &[
            "sqlite3",
            ":memory:",
            "create table t(a); insert into t values(6); select a * 7 from t",
        ],
    ];
    for command in commands {
        if !has_tool(command[0]) {
            println!("there is no {}", command[0]);
            continue;
        }
        let alone = Command::new(command[0])
            .args(&command[1..])
            .output()
            .expect("it can be run");
        let file = scratch("events-all").join("lines");
        let output = probe(&["--event", "syscalls:*", "-o", path(&file)], command);
        assert_eq!(output.status, alone.status, "{command:?}: {output:?}");
        assert_eq!(output.stdout, alone.stdout, "{command:?}");
        let lines = std::fs::read_to_string(&file).expect("lines");
        let count = |what: &str| lines.matches(what).count();
        assert!(
            count(" sys_enter_write: fd=") > 0 && count(" sys_exit_write: ret=") > 0,
            "{lines}"
        );
        // Each call is followed by its result in the same thread; a child begins with one.
        let mut open: BTreeMap<&str, &str> = BTreeMap::new();
        for line in lines.lines().filter(|line| line.contains(" sys_e")) {
            let thread = line.split_once(" [").expect(line).0.trim();
            let thread = thread.rsplit_once('-').expect(line).1;
            let name = line.split(": ").nth(1).expect(line);
            if let Some(name) = name.strip_prefix("sys_enter_") {
                open.insert(thread, name.trim_end_matches(':'));
            } else if let Some(name) = name.strip_prefix("sys_exit_") {
                let name = name.trim_end_matches(':');
                let begun = open.remove(thread);
                let is_child = ["clone", "clone3", "vfork", "fork"].contains(&name);
                // A handler's last call is not seen, so the one that it has interrupted ends after others.
                assert!(
                    begun == Some(name) || begun.is_none() || is_child,
                    "{line}: {begun:?}"
                );
            }
        }
    }
}

#[test]
fn values_conditions_histograms_and_names() {
    let file = scratch("events-values").join("out");
    let definition = "syscalls:sys_enter_openat filename flags:x32 if filename ~ \"/etc/pass*\"";
    let output = probe(
        &["-e", definition, "-o", path(&file)],
        &["cat", "/etc/passwd"],
    );
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let lines = std::fs::read_to_string(&file).expect("lines");
    let end = ": sys_enter_openat: filename=\"/etc/passwd\" flags=0x0\n";
    assert!(
        lines.ends_with(end) && lines.lines().count() == 1,
        "{lines}"
    );

    let definition = "syscalls:sys_exit_write hist:keys=fd:vals=ret if fd == 1 && ret > 0";
    let wrong = probe(&["-e", definition], &["true"]);
    assert!(!wrong.status.success());
    let definition = "syscalls:sys_exit_write if ret > 0 hist:keys=fd:vals=ret";
    // There, the register of the first argument has the result.
    if cfg!(not(target_arch = "x86_64")) {
        let wrong = probe(&["-e", definition], &["true"]);
        assert!(text(&wrong.stderr).contains("fd is no longer known"));
        return;
    }
    let output = probe(
        &["-e", definition, "-o", path(&file)],
        &["bash", "-c", "echo ab; echo cde"],
    );
    assert_eq!(text(&output.stdout), "ab\ncde\n");
    let lines = std::fs::read_to_string(&file).expect("lines");
    let entry = |fd: u32| {
        let mut lines = lines.lines();
        let line = lines.find(|line| line.contains(&format!("fd: {fd:>10} }}")));
        let words = line
            .unwrap_or_else(|| panic!("{lines:?}"))
            .split_whitespace();
        words.map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(entry(1)[4..], ["hitcount:", "2", "ret:", "7"], "{lines}");
}

#[test]
fn calls_switch_tracing_and_probes() {
    let place = scratch("events-triggers");
    let built = |options: &[&str]| {
        let data = place.join("data");
        let output = Command::new(hodo())
            .args(["record", "-d", path(&data)])
            .args(options)
            .args(["--", "bash", "-c", "echo a; type echo"])
            .output()
            .expect("hodo can be run");
        assert!(output.status.success(), "{output:?}");
        let report = Command::new(hodo())
            .args(["report", "-f", "call", "-d", path(&data)])
            .output()
            .expect("hodo can be run");
        let report = String::from_utf8(report.stdout).expect("text");
        ["echo_builtin", "type_builtin"].map(|name| report.contains(name))
    };
    assert_eq!(built(&[]), [true, true]);
    let off = "syscalls:sys_enter_write if fd == 1 traceoff";
    assert_eq!(built(&["-e", off]), [true, false]);

    let file = scratch("events-switches").join("out");
    let output = probe(
        &[
            "-e",
            "p:begin syscalls:sys_enter_write if count == 2 enable:later",
            "-e",
            "p:later syscalls:sys_enter_write if count > 2",
            "-e",
            "p:end syscalls:sys_exit_write if ret == 3 disable:later",
            "-o",
            path(&file),
        ],
        &["bash", "-c", "echo a; echo bb; echo ccc; echo d; echo eeee"],
    );
    assert_eq!(text(&output.stdout), "a\nbb\nccc\nd\neeee\n", "{output:?}");
    let lines = std::fs::read_to_string(&file).expect("lines");
    let later: Vec<&str> = lines
        .lines()
        .filter(|line| line.contains(" later: "))
        .collect();
    let has = |line: &&str, count: u32| line.ends_with(&format!("count={count}"));
    let [first, second] = later[..] else {
        panic!("{lines}");
    };
    assert!(has(&first, 3) && has(&second, 5), "{lines}");
}

#[test]
fn threads_are_selected() {
    let program = build("called_kernel.c", Kind::Pie, &["-pthread"]);
    let mut child = Command::new(&program)
        .arg("threads")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("it can be run");
    let mut lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
    let mut next = || lines.next().expect("a line").expect("text");
    let threads = [next(), next()];
    let pid = child.id().to_string();
    let file = scratch("events-threads").join("out");
    let of = |definition: &str, more: &[&str]| {
        let words = [
            "-p",
            &*pid,
            "--for",
            "0.5",
            "-o",
            path(&file),
            "-e",
            definition,
        ];
        let output = probe_words(&[&words[..], more].concat());
        assert!(output.status.success(), "{output:?}");
        std::fs::read_to_string(&file).expect("a histogram")
    };
    let definition = "syscalls:sys_enter_getppid hist:keys=tid";
    let has = |text: &str, thread: &str| text.contains(&format!("tid: {thread:>10} }}"));
    let both = of(definition, &[]);
    let one = of(definition, &["--only-tid", &threads[0]]);
    drop(child.stdin.take());
    let status = child.wait().expect("it ends");
    assert!(status.success(), "{status}");
    assert!(has(&both, &threads[0]) && has(&both, &threads[1]), "{both}");
    assert!(has(&one, &threads[0]) && !has(&one, &threads[1]), "{one}");
}

#[test]
fn wrong_definitions_are_explained() {
    let wrong = [
        (
            "syscalls:sys_enter_opneat",
            "no such system call; did you mean openat",
        ),
        ("syscalls:openat", "did you mean sys_enter_openat?"),
        (
            "syscalls:sys_enter_open64",
            "the function open64 of the C library calls openat",
        ),
        (
            "syscalls:sys_enter_write fdd",
            "there is no argument fdd; there is fd, buf, count",
        ),
        (
            "syscalls:sys_exit_write if x > 1",
            "there is no argument x; there is ret, ",
        ),
        (
            "syscalls:sys_enter_sync x",
            "there is no argument x; it has none",
        ),
        (
            "syscalls:sys_enter_zz*",
            "no event of a system call fits this pattern",
        ),
        (
            "syscalls:sys_enter_* nosuch",
            "no event that the pattern fits has all these arguments",
        ),
        (
            "syscalls:sys_enter_write+4",
            "events of system calls are named",
        ),
        ("syscalls:sys_enter_write $arg4", "there is no $arg4"),
        (
            "syscalls:sys_enter_write @+8",
            "a system call belongs to none",
        ),
        (
            "syscalls:sys_enter_write post",
            "use the event sys_exit_NAME",
        ),
        (
            "r syscalls:sys_enter_write",
            "use p, and the event sys_exit_NAME",
        ),
        ("syscalls:sys_enter_write return:1", "this leaves functions"),
        ("syscalls:sys_enter_write if buf == \"x\"", "a text"),
    ];
    for (definition, reason) in wrong {
        let output = probe(&["-e", definition], &["true"]);
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(125), "{definition}: {output:?}");
        assert!(error.contains(reason), "{definition}: {error}");
    }
    let output = probe(&["--event", "syscalls:sys_enter_opneat"], &["true"]);
    assert!(
        text(&output.stderr).contains("did you mean openat"),
        "{output:?}"
    );
    let list = |pattern: &str| {
        let output = Command::new(hodo())
            .args(["list-events", pattern])
            .output()
            .expect("hodo can be run");
        String::from_utf8(output.stdout).expect("text")
    };
    let write = "  syscall     syscalls:sys_enter_write  fd:s32 buf:x64 count:u64\n";
    assert!(list("syscalls:*").contains(write));
    let openat = list("syscalls:sys_enter_openat");
    assert!(
        openat.contains("filename:string") && openat.contains("open64"),
        "{openat}"
    );
    assert!(list("syscalls:nothing").is_empty());
}
