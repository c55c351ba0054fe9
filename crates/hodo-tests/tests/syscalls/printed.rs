//! `hodo syscalls`: it shows what strace shows, and programs do what they do alone.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use hodo_tests::probing::{path, text};
use hodo_tests::{Kind, build, build_with, hodo, scratch, skip};
use serde_json::Value;

/// Runs a command, under a tracer or not, in its own directory.
fn run(tracer: &[&str], command: &[&str], directory: &Path) -> Output {
    Command::new("timeout")
        .args(["-s", "KILL", "300"])
        .args(tracer)
        .args(command)
        .env("LC_ALL", "C")
        .env("HODO_PROGRESS", "0")
        .stdin(Stdio::null())
        .current_dir(directory)
        .output()
        .expect("it can be run")
}

fn syscalls<'a>(options: &[&'a str], program: &'a str) -> Vec<&'a str> {
    [&[program, "syscalls"], options, &["--"]].concat()
}

/// Libraries are aligned to larger pages than there are, so what the linker unmaps around them depends on addresses.
const UNMAPS_BY_CHANCE: bool = cfg!(target_arch = "aarch64");

/// A line without what differs from run to run: addresses, IDs, times, ports, and the column of the result.
fn plain(line: &str) -> Option<String> {
    // The position of signals differs slightly.
    if line.starts_with("---") || line.contains("rt_sigreturn(") {
        return None;
    }
    if UNMAPS_BY_CHANCE && line.starts_with("munmap(") {
        return None;
    }
    let rules = [
        (r"^execve\(.*", "execve"),
        (r"0x[0-9a-f]{5,}", "ADDR"),
        (r" +=", " ="),
        (r"htons\(\d{4,}\)", "htons(PORT)"),
        (r"(tv_n?u?sec)=\d+", "$1=T"),
        // Newer versions of strace show one number only.
        (r"data=(\{u32=\d+, u64=\d+\}|0x[0-9a-f]+|ADDR)", "data=DATA"),
        // The directory of temporary files. In memory, it is as large as it has files, and hodo's own may be there.
        (r"(S_ISVTX\|\d+, stx?_size)=\d+", "$1=N"),
        // Some file systems say that a process's own lock is held by that process.
        (r"l_pid=[1-9]\d*", "l_pid=PID"),
        // How much of its time is left after `ppoll` is not recorded.
        (r"\], left \{tv_sec=T, tv_nsec=T\}\)", "])"),
        (r#"getrandom\("[^"]*""#, "getrandom(\"\""),
        // Newer versions of strace know the name, or say that there is none.
        (
            r"PR_CAPBSET_READ, \w+( /\* CAP_\?+ \*/)?",
            "PR_CAPBSET_READ, CAP",
        ),
        (
            r"^(set_tid_address|getpid|gettid|getppid|getpgrp|getpgid|fork|clone|kill|wait4|tgkill)(.*)",
            "$1",
        ),
        (r"f_(bfree|bavail|ffree|blocks|files)=\d+", "f_$1=N"),
    ];
    let mut line = line.to_owned();
    for (pattern, with) in rules {
        let regex = regex::Regex::new(pattern).expect("it is right");
        line = regex.replace_all(&line, with).into_owned();
    }
    Some(line)
}

/// A line with one space before its result.
fn spaced(line: &str) -> Option<String> {
    let (call, result) = line.rsplit_once(" = ")?;
    Some(format!("{} = {result}", call.trim_end()))
}

/// Returns whether strace is the version whose lines are compared in every detail. With `-v` and `-yy`, older and newer
/// ones show other fields. Otherwise, the test is skipped.
fn has_compared_strace() -> bool {
    let output = Command::new("strace").arg("-V").output();
    let Ok(output) = output else {
        skip("there is no strace");
        return false;
    };
    let version = text(&output.stdout).lines().next().unwrap_or_default();
    let is_it = version.trim_end().ends_with("version 6.1");
    if !is_it {
        skip(&format!(
            "only the lines of strace 6.1 are compared, and this is \"{version}\""
        ));
    }
    is_it
}

/// Returns the lines of a text, without thread ids. Calls whose beginnings were written first, because they took long,
/// are whole lines. There is no more than one such call at a time.
fn whole_lines(text: &str) -> Vec<String> {
    let mut lines = Vec::new();
    let mut begun = String::new();
    for line in text.lines() {
        let line = line.trim_start_matches(|c: char| c.is_ascii_digit() || c == ' ');
        if let Some(beginning) = line.strip_suffix(" <unfinished ...>") {
            begun = beginning.to_owned();
        } else if let Some((_, rest)) = line.split_once(" resumed>") {
            lines.push(std::mem::take(&mut begun) + rest);
        } else {
            lines.push(line.to_owned());
        }
    }
    lines
}

#[test]
fn lines_are_those_of_strace() {
    if Command::new("strace").arg("-V").output().is_err() {
        return skip("there is no strace");
    }
    let program = build("calls.c", Kind::Pie, &["-w"]);
    let program = path(&program);
    let commands: [&[&str]; 4] = [
        &["/bin/true"],
        &["cat", "/proc/self/comm", "/nonexistent"],
        &["ls", "/"],
        &[program],
    ];
    let hodo = hodo();
    for command in commands {
        let place = scratch("syscalls-strace");
        let [ours, theirs] = ["ours", "theirs"].map(|name| place.join(name));
        let tracer = syscalls(&["--no-follow", "-o", path(&ours)], path(hodo));
        let traced = run(&tracer, command, &place);
        let stracer = ["strace", "-o", path(&theirs)];
        let reference = run(&stracer, command, &place);
        assert_eq!(traced.status, reference.status, "{command:?}: {traced:?}");
        let lines = |path: &PathBuf| -> Vec<String> {
            let text = std::fs::read_to_string(path).expect("lines");
            // On a slow machine, even calls such as `exit_group` take so long that their beginnings come first.
            let lines = whole_lines(&text).into_iter();
            lines.filter_map(|line| plain(&line)).collect()
        };
        let (ours, theirs) = (lines(&ours), lines(&theirs));
        for (our, their) in ours.iter().zip(&theirs) {
            assert_eq!(our, their, "{command:?}");
        }
        assert_eq!(
            ours.len(),
            theirs.len(),
            "{command:?}: {ours:#?} {theirs:#?}"
        );
        assert!(ours.len() > 20, "{command:?}: {ours:?}");
    }
}

/// Names and results of all calls in the output of `strace -f -o` or `hodo syscalls -o`, with their counts.
fn counted(path: &Path) -> BTreeMap<(String, String), u32> {
    let text = std::fs::read(path).expect("lines");
    let text = String::from_utf8_lossy(&text);
    let whole = regex::Regex::new(r"^(\w+)\(.*\) += (.*)$").expect("it is right");
    let resumed = regex::Regex::new(r"^<\.\.\. (\w+) resumed>.*\) += (.*)$").expect("it is right");
    let ids = [
        "getpid",
        "gettid",
        "getppid",
        "getpgrp",
        "getpgid",
        "fork",
        "vfork",
        "clone",
        "clone3",
        "wait4",
        "set_tid_address",
        "setsid",
        "kill",
    ];
    let mut counts = BTreeMap::new();
    let mut begun: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    let mut count = |name: &str, result: &str| {
        if UNMAPS_BY_CHANCE && name == "munmap" {
            return;
        }
        let result = match result {
            _ if result.contains("EINTR") || result.contains("ERESTART") => "broken off",
            _ if result.starts_with("0x") && result.len() > 7 => "address",
            _ if ids.contains(&name) && !result.starts_with('-') => "id",
            // Of many descriptors, strace lists the first 32 and hodo the first 30. Only strace says what time is left.
            _ if ["poll", "ppoll"].contains(&name) => result.split(' ').next().unwrap_or(result),
            _ => result,
        };
        *counts
            .entry((name.to_owned(), result.to_owned()))
            .or_insert(0) += 1;
    };
    for line in text.lines() {
        let (tid, rest) = line.split_once(' ').unwrap_or_default();
        let rest = rest.trim_start();
        if let Some(found) = resumed.captures(rest) {
            begun.entry(tid).or_default().pop();
            count(&found[1], &found[2]);
        } else if rest.ends_with("<unfinished ...>") {
            let name = rest.split('(').next().unwrap_or_default();
            begun.entry(tid).or_default().push(name.to_owned());
        } else if let Some(found) = whole.captures(rest) {
            count(&found[1], &found[2]);
        } else {
            // strace does not always know what a thread was doing when it was ended.
            let is_end = rest.starts_with("<... ??? resumed>");
            let is_other = rest.starts_with("---") || rest.starts_with("+++");
            assert!(is_end || is_other, "{line}");
        }
    }
    for name in begun.into_values().flatten() {
        count(&name, "?");
    }
    counts
}

#[test]
fn no_call_is_lost() {
    if Command::new("strace").arg("-V").output().is_err() {
        return skip("there is no strace");
    }
    let signals = "ulimit -n; ulimit -c 0; (exit 3); trap : USR1; kill -USR1 $$; kill -TERM $$";
    let commands: [&[&str]; 12] = [
        &["bash", "-c", signals],
        &[
            "sh",
            "-c",
            "trap '' INT; sleep 0.05 & wait; exec /bin/echo x",
        ],
        &["sh", "-c", "read x < /nonexistent; kill -9 $$"],
        &["env", "-i", "/bin/true"],
        &["tar", "cf", "/dev/null", "/etc/init.d"],
        &["find", "/etc/init.d", "-name", "*.conf"],
        &["sort", "/etc/passwd"],
        &["sed", "s/a/b/", "/etc/passwd"],
        // (Some versions of awk read what is mapped, which hodo adds to.)
        &["cut", "-d:", "-f1", "/etc/passwd"],
        &[
            "perl",
            "-e",
            "$SIG{ALRM}=sub{}; alarm 1; sleep 5; system('true')",
        ],
        &["nice", "-n", "5", "ls", "/proc/self/fd"],
        &["xargs", "-a", "/etc/hostname", "echo"],
    ];
    let place = scratch("syscalls-lost");
    for command in commands {
        for name in ["first", "second"] {
            run(&["strace", "-f", "-o", name], command, &place);
        }
        let [first, second] = ["first", "second"].map(|name| counted(&place.join(name)));
        for options in [&["-o", "ours"][..], &["--no-optimize", "-o", "ours"]] {
            run(&syscalls(options, path(hodo())), command, &place);
            let ours = counted(&place.join("ours"));
            let all = first.keys().chain(second.keys()).chain(ours.keys());
            for key in all {
                let [first, second, ours] =
                    [&first, &second, &ours].map(|counts| counts.get(key).copied().unwrap_or(0));
                let (least, most) = (first.min(second), first.max(second));
                assert!(
                    (least..=most).contains(&ours),
                    "{command:?}, {options:?}: {key:?}: {ours} and not {least} to {most}"
                );
            }
            assert!(ours.len() > 10, "{command:?}");
        }
    }
}

/// With `--no-optimize`, only the instruction that calls the kernel is replaced, by a breakpoint.
#[test]
#[cfg(target_arch = "x86_64")]
fn calls_that_are_not_optimized_are_breakpoints() {
    // The C library's function is `mov $110, %eax; syscall; ret`.
    let code = "import ctypes as c; f = c.CDLL(None).getppid; f(); \
                print(c.string_at(c.cast(f, c.c_void_p).value, 8).hex())";
    let place = scratch("syscalls-breakpoints");
    let printed = |words: &[&str]| {
        let output = run(words, &["python3", "-c", code], &place);
        assert!(output.status.success(), "{output:?}");
        text(&output.stdout).trim().to_owned()
    };
    let alone = printed(&[]);
    assert_eq!(alone, "b86e0000000f05c3");
    let jump = printed(&syscalls(&["-o", "ours"], path(hodo())));
    assert!(jump.starts_with("b86e000000e9"), "{jump}");
    let options = ["--no-optimize", "-e", "getppid", "-o", "ours"];
    let breakpoint = printed(&syscalls(&options, path(hodo())));
    assert_eq!(breakpoint, "b86e000000cc05c3");
    assert_eq!(counted(&place.join("ours")).len(), 1);
}

#[test]
fn calls_by_unpatched_code_are_seen() {
    if Command::new("strace").arg("-V").output().is_err() {
        return skip("there is no strace");
    }
    let place = scratch("syscalls-go");
    let source = "package main\nfunc main() { println(\"x\") }\n";
    std::fs::write(place.join("x.go"), source).expect("a place");
    let mut build = Command::new("go");
    let build = build.args(["build", "-o", "x", "x.go"]).current_dir(&place);
    if !build.output().is_ok_and(|output| output.status.success()) {
        return skip("there is no Go compiler");
    }
    let program = place.join("x");
    run(&["strace", "-f", "-o", "theirs"], &[path(&program)], &place);
    let output = run(
        &syscalls(&["-o", "ours"], path(hodo())),
        &[path(&program)],
        &place,
    );
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let [ours, theirs] = ["ours", "theirs"].map(|name| counted(&place.join(name)));
    for call in [("rt_sigaction", "0"), ("arch_prctl", "0"), ("write", "2")] {
        let key = (call.0.to_owned(), call.1.to_owned());
        assert!(theirs.contains_key(&key), "{call:?}: {theirs:?}");
        assert_eq!(ours.get(&key), theirs.get(&key), "{call:?}");
    }
    // More than one of Go's threads may end up ending the program.
    let end = ("exit_group".to_owned(), "?".to_owned());
    assert!(ours.contains_key(&end), "{ours:?}");
}

#[test]
fn signals_are_those_of_strace() {
    if Command::new("strace").arg("-V").output().is_err() {
        return skip("there is no strace");
    }
    let script = "trap : USR1; kill -USR1 $$; (exit 3); kill -9 $$";
    let command = ["sh", "-c", script];
    let place = scratch("syscalls-signals");
    let tracer = syscalls(&["--no-follow", "-o", "ours"], path(hodo()));
    run(&tracer, &command, &place);
    run(&["strace", "-o", "theirs"], &command, &place);
    let ids = regex::Regex::new(r"(si_(pid|uid|utime|stime))=\d+").expect("it is right");
    let [ours, theirs] = ["ours", "theirs"].map(|name| -> Vec<String> {
        let text = std::fs::read_to_string(place.join(name)).expect("lines");
        let lines = text
            .lines()
            .filter(|line| line.starts_with("---") || line.starts_with("+++"));
        lines
            .map(|line| ids.replace_all(line, "$1=N").into_owned())
            .collect()
    });
    assert_eq!(ours, theirs);
    assert_eq!(
        ours,
        [
            "--- SIGUSR1 {si_signo=SIGUSR1, si_code=SI_USER, si_pid=N, si_uid=N} ---",
            "--- SIGCHLD {si_signo=SIGCHLD, si_code=CLD_EXITED, si_pid=N, si_uid=N, si_status=3, si_utime=N, si_stime=N} ---",
            "+++ killed by SIGKILL +++",
        ]
    );
}

/// Calls that a signal interrupts, and whose handler is left by a jump, have the ends that strace shows.
#[test]
fn calls_that_handlers_leave_are_counted() {
    if Command::new("strace").arg("-V").output().is_err() {
        return skip("there is no strace");
    }
    let program = build("left_handlers.c", Kind::Pie, &[]);
    let place = scratch("syscalls-left-handlers");
    let calls = "kill,read,setitimer";
    let tracer = syscalls(&["-o", "ours", "-e", calls], path(hodo()));
    run(&tracer, &[path(&program)], &place);
    run(
        &["strace", "-o", "theirs", "-e", calls],
        &[path(&program)],
        &place,
    );
    let ended = |name: &str| -> Vec<String> {
        let text = std::fs::read_to_string(place.join(name)).expect("lines");
        let lines = text.lines().filter(|line| !line.contains("unfinished"));
        // Times of the end differ: strace shows it before the signal.
        let end = |line: &str| {
            let (call, result) = line.rsplit_once(" = ")?;
            let name = call.trim_start_matches("<... ").split(['(', ' ']).next()?;
            let name = name.trim_start_matches(|c: char| c.is_ascii_digit() || c == ' ');
            Some(format!("{name} = {result}"))
        };
        let mut ends: Vec<_> = lines.filter_map(end).collect();
        ends.sort();
        ends
    };
    let strip = |name: &str| {
        let text = std::fs::read_to_string(place.join(name)).expect("lines");
        let lines: Vec<_> = text
            .lines()
            .map(|line| {
                line.trim_start_matches(|c: char| c.is_ascii_digit())
                    .trim_start()
            })
            .collect();
        std::fs::write(place.join(name), lines.join("\n")).expect("it is written");
    };
    strip("ours");
    let theirs = ended("theirs");
    assert_eq!(ended("ours"), theirs);
    assert_eq!(theirs.iter().filter(|end| *end == "kill = 0").count(), 100);
    let tracer = syscalls(&["-c", "--format", "json", "-e", calls], path(hodo()));
    let output = run(&tracer, &[path(&program)], &place);
    let rows: Vec<Value> = text(&output.stderr)
        .lines()
        .filter_map(|line| serde_json::from_str(line).ok())
        .collect();
    for (name, calls, errors) in [("kill", 100, 0), ("setitimer", 3, 0), ("read", 4, 3)] {
        let row = rows.iter().find(|row| row["syscall"] == name).expect(name);
        assert_eq!(
            (&row["calls"], &row["errors"]),
            (&calls.into(), &errors.into()),
            "{row}"
        );
    }
    // The end of a call is shown where it is known, not at the end of the program.
    let tracer = syscalls(&["-e", "kill"], path(hodo()));
    let output = run(&tracer, &[path(&program)], &place);
    assert!(!text(&output.stderr).contains("unfinished"), "{output:?}");
}

#[test]
fn programs_do_what_they_do_alone() {
    let place = scratch("syscalls-alone");
    let source = "waits.cc";
    let dynamic = build_with("g++", &[source], &["-w", "-O2", "-pthread"]);
    let fixed = build_with("g++", &[source], &["-w", "-O2", "-pthread", "-static"]);
    let hodo = hodo();
    let out = place.join("out");
    for program in [dynamic, fixed] {
        let command = [path(&program)];
        let alone = run(&[], &command, &place);
        let tracer = syscalls(&["-o", path(&out)], path(hodo));
        let traced = run(&tracer, &command, &place);
        assert_eq!(text(&alone.stdout), text(&traced.stdout));
        assert_eq!(alone.status, traced.status);
        let shown = std::fs::read_to_string(&out).expect("lines");
        for expected in [
            "read(3,  <unfinished ...>",
            "<... read resumed>",
            "-1 EINTR (Interrupted system call)",
            "-1 EFAULT (Bad address)",
            "execve(\"/bin/sh\", [\"sh\", \"-c\", \"echo spawned; exit 5\"], ",
            "+++ exited with 5 +++",
            "+++ exited with 7 +++",
        ] {
            assert!(shown.contains(expected), "{expected}: {shown}");
        }
    }
}

#[test]
fn programs_of_all_libraries_are_watched() {
    let hodo = hodo();
    let place = scratch("syscalls-kinds");
    for kind in [Kind::Pie, Kind::Static, Kind::Musl, Kind::MuslStatic]
        .into_iter()
        .filter(|kind| kind.is_available())
    {
        let program = build("threads.c", kind, &["-pthread", "-DTHREADS=500"]);
        let alone = run(&[], &[path(&program)], &place);
        let tracer = syscalls(&["--format", "json", "-o", "out"], path(hodo));
        let traced = run(&tracer, &[path(&program)], &place);
        assert_eq!(alone.stdout, traced.stdout, "{kind:?}: {traced:?}");
        assert_eq!(alone.status, traced.status, "{kind:?}");
        let shown = std::fs::read_to_string(place.join("out")).expect("lines");
        let calls: Vec<Value> = shown
            .lines()
            .map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{line}: {e}")))
            .collect();
        let named = |name: &str| calls.iter().filter(|call| call["name"] == name).count();
        assert_eq!(named("exit_group"), 1, "{kind:?}: {shown}");
        let mut tids: Vec<_> = calls
            .iter()
            .filter_map(|call| call["tid"].as_i64())
            .collect();
        tids.sort_unstable();
        tids.dedup();
        assert!(tids.len() > 1, "{kind:?}: {shown}");
        let writes = calls
            .iter()
            .filter(|call| call["name"] == "write" || call["name"] == "writev");
        let written: i64 = writes.filter_map(|call| call["result"].as_i64()).sum();
        // In a library without symbols not all functions are known; that is reported.
        let told = text(&traced.stderr).contains("instructions that call the kernel");
        assert!(
            told || written >= alone.stdout.len() as i64,
            "{kind:?}: {shown}"
        );
    }
}

#[test]
fn filters_and_summaries() {
    let hodo = hodo();
    let place = scratch("syscalls-filters");
    let command = [
        "dd",
        "if=/dev/zero",
        "of=/dev/null",
        "bs=1",
        "count=1000",
        "status=none",
    ];
    let tracer = syscalls(&["-e", "trace=write,close"], path(hodo));
    let output = run(&tracer, &command, &place);
    let lines: Vec<_> = text(&output.stderr)
        .lines()
        .filter(|line| !line.starts_with("hodo: "))
        .collect();
    let write = |line: &&&str| line.starts_with(r#"write(1, "\0", 1) "#) && line.ends_with("= 1");
    let writes = lines.iter().filter(write);
    assert_eq!(writes.count(), 1000, "{lines:?}");
    let known = |line: &&str| {
        ["write(", "close(", "+++ exited with 0 +++"]
            .iter()
            .any(|start| line.starts_with(start))
    };
    assert!(lines.iter().all(known), "{lines:?}");
    let tracer = syscalls(&["-c", "--format", "json"], path(hodo));
    let output = run(&tracer, &command, &place);
    let calls = |name: &str| {
        let rows = text(&output.stderr)
            .lines()
            .filter_map(|line| serde_json::from_str::<Value>(line).ok());
        rows.filter(|row| row["syscall"] == name)
            .find_map(|row| row["calls"].as_u64())
    };
    assert_eq!(calls("write"), Some(1000));
    assert_eq!(calls("execve"), Some(1));
    assert_eq!(calls("exit_group"), None);
    assert!(calls("read").is_some_and(|calls| calls > 1000));
    let tracer = syscalls(&["-c"], path(hodo));
    let output = run(&tracer, &["cat", "/nonexistent"], &place);
    let shown = text(&output.stderr);
    assert!(
        shown.contains("% time     seconds  usecs/call     calls    errors syscall"),
        "{shown}"
    );
    assert!(shown.trim_end().ends_with(" total"), "{shown}");
}

#[test]
fn errors_are_reported() {
    let hodo = hodo();
    let place = scratch("syscalls-errors");
    let told = |words: &[&str]| {
        let output = run(&[&[path(hodo), "syscalls"], words].concat(), &[], &place);
        assert_ne!(output.status.code(), Some(0), "{words:?}");
        text(&output.stderr).to_owned()
    };
    assert_eq!(
        told(&["-e", "reed", "true"]),
        "hodo: there is no system call \"reed\", and no group of that name (file, desc, network, process, memory, signal)\n"
    );
    assert!(told(&["-o", "/nonexistent/x", "true"]).starts_with("hodo: writing /nonexistent/x: "));
    assert_eq!(
        told(&["./nothing"]),
        "hodo: cannot run ./nothing: no such file\n"
    );
}

/// `-s` shows as much of buffers, of the parts of lists and of arguments as strace does, in chunks without losses.
#[test]
fn long_buffers_are_those_of_strace() {
    if Command::new("strace").arg("-V").output().is_err() {
        return skip("there is no strace");
    }
    let program = build("long_buffers.c", Kind::Pie, &[]);
    let place = scratch("syscalls-long");
    let lines = |name: &str| -> Vec<String> {
        let text = std::fs::read_to_string(place.join(name)).expect("lines");
        let calls = ["write(", "writev(", "read(4", "execve(\"/non"];
        let wanted = |line: &&str| calls.iter().any(|call| line.starts_with(call));
        text.lines().filter(wanted).filter_map(spaced).collect()
    };
    for limit in ["33", "300", "1000", "4096"] {
        let options = ["-s", limit, "--no-follow", "-o", "ours"];
        let traced = run(&syscalls(&options, path(hodo())), &[path(&program)], &place);
        let stracer = ["strace", "-s", limit, "-o", "theirs"];
        let reference = run(&stracer, &[path(&program)], &place);
        assert_eq!(traced.stdout, reference.stdout, "{traced:?}");
        let [ours, theirs] = ["ours", "theirs"].map(lines);
        assert_eq!(ours.len(), 207, "{limit}");
        for (ours, theirs) in ours.iter().zip(&theirs) {
            assert_eq!(ours, theirs, "{limit}");
        }
        assert_eq!(ours.len(), theirs.len());
        let stderr = text(&traced.stderr);
        assert!(!stderr.contains("lost"), "{stderr}");
    }
}

/// A table shows nothing of what is about lines.
#[test]
fn tables_refuse_options_of_lines() {
    let place = scratch("syscalls-tables");
    for option in ["-t", "-tt", "-r", "-T", "-y", "-yy", "--no-abbrev"] {
        let output = run(&syscalls(&["-c", option], path(hodo())), &["true"], &place);
        assert_eq!(output.status.code(), Some(2), "{option}: {output:?}");
        let error = text(&output.stderr);
        let said = "is about the lines of calls, and -c shows none: leave one of them out";
        assert!(error.contains(said), "{option}: {error}");
    }
}

/// Events of children that are not followed go nowhere, however large they are.
#[test]
fn children_that_are_not_followed_have_large_events() {
    let place = scratch("syscalls-unfollowed");
    let command = ["sh", "-c", "(cd /; cat /proc/self/comm); (exit 3); echo $?"];
    let options = ["-s", "4096", "--no-follow", "-o", "lines"];
    let output = run(&syscalls(&options, path(hodo())), &command, &place);
    assert_eq!(text(&output.stdout), "cat\n3\n", "{output:?}");
}

/// Descriptors show the names of what they referred to when the call was made: strace asks the kernel at that time,
/// hodo follows the calls.
#[test]
fn descriptors_have_the_names_of_strace() {
    if Command::new("strace").arg("-V").output().is_err() {
        return skip("there is no strace");
    }
    let place = scratch("syscalls-names");
    std::fs::create_dir(place.join("below")).expect("a directory");
    std::fs::write(place.join("below/file"), "line\n").expect("a file");
    let script = "cd below; read x < file; cat ../below/./file > copy; exec 3< file 4>> copy; \
                  (echo more >&4) | cat; cat <&3; exec 3<&-; cd ..; exec cat below/copy";
    let command = ["sh", "-c", script];
    // Names and first arguments of calls. Pipes have different numbers each time; short-lived ones have none.
    let named = |name: &str| -> BTreeMap<String, u32> {
        let text = std::fs::read_to_string(place.join(name)).expect("lines");
        let call = regex::Regex::new(r"(\w+)\((?:\w+<[^>]*>|\w+)").expect("it is right");
        let number = regex::Regex::new(r"pipe:\[\d+\]").expect("it is right");
        let mut found = BTreeMap::new();
        for line in text.lines().filter(|line| line.contains('(')) {
            let Some(call) = call.find(line) else {
                continue;
            };
            let text = number.replace_all(call.as_str(), "pipe").into_owned();
            let wanted = [
                "read(",
                "write(",
                "openat(",
                "close(",
                "dup2(",
                "fstat",
                "newfstatat(",
            ];
            if wanted.iter().any(|wanted| text.starts_with(wanted)) {
                *found.entry(text).or_insert(0) += 1;
            }
        }
        found
    };
    run(&["strace", "-f", "-y", "-o", "theirs"], &command, &place);
    std::fs::remove_file(place.join("below/copy")).expect("it was made");
    run(
        &syscalls(&["-y", "-o", "ours"], path(hodo())),
        &command,
        &place,
    );
    let [ours, theirs] = ["ours", "theirs"].map(named);
    assert_eq!(ours, theirs);
    let text = std::fs::read_to_string(place.join("ours")).expect("lines");
    let opened = format!("= 3<{}>", path(&place.join("below/file")));
    assert!(text.contains(&opened), "{text}");
    // The same, with other calls not shown.
    std::fs::remove_file(place.join("below/copy")).expect("it was made");
    run(
        &syscalls(&["-y", "-e", "read", "-o", "reads"], path(hodo())),
        &command,
        &place,
    );
    let reads = named("reads");
    let expected = theirs
        .into_iter()
        .filter(|(key, _)| key.starts_with("read("));
    assert_eq!(reads, expected.collect());
}

/// `-yy` shows the addresses of sockets, the numbers of devices and the processes of pidfds as strace does: also from
/// other processes, and of sockets that are not where `socket` put them.
#[test]
fn descriptors_have_the_protocols_of_strace() {
    if !has_compared_strace() {
        return;
    }
    let program = build("sockets_shown.c", Kind::Pie, &[]);
    let place = scratch("syscalls-protocols");
    let calls = "trace=network,chdir,write,close,poll,ppoll,pipe2,pidfd_open";
    // Addresses, numbers of processes (also as ports and names), and ports and numbers of sockets.
    let varying = r#"0x[0-9a-f]{6,}|(pid|ROUTE):\d+|pidfd_open\(\d+|@"\d+"|:\d{4,}\b|\d{4,}"#;
    let varying = regex::Regex::new(varying).expect("it is right");
    let lines = |name: &str| -> Vec<String> {
        let text = std::fs::read_to_string(place.join(name)).expect("lines");
        let start = text.find("socket(AF_INET").unwrap_or(0);
        let lines = whole_lines(&text[start..]).into_iter().filter(|line| {
            // /proc does not list sockets that have got a port and do not listen yet.
            let is_bound = line.contains("listen(3<TCP");
            line.contains('(') && !is_bound && !line.contains("/nonexistent/")
        });
        lines
            .filter_map(|line| spaced(&line))
            .map(|line| varying.replace_all(&line, "N").into_owned())
            .collect()
    };
    let mut command = vec![path(&program), "theirs"];
    let has_six = std::net::TcpListener::bind("[::1]:0").is_ok();
    if has_six {
        command.push("six");
    }
    let stracer = ["strace", "-f", "-yy", "-e", calls, "-o", "theirs"];
    let reference = run(&stracer, &command, &place);
    assert!(reference.status.success(), "{reference:?}");
    let theirs = lines("theirs");
    for form in [
        "<TCP:[127.0.0.1N->127",
        "<UNIX-STREAM:[N->N",
        "<NETLINK:[N]",
    ] {
        if !theirs.iter().any(|line| line.contains(form)) {
            return skip(&format!(
                "this kernel does not tell strace of sockets like {form}"
            ));
        }
    }
    let options = ["-yy", "-e", calls, "-o", "ours"];
    command[1] = "ours";
    let traced = run(&syscalls(&options, path(hodo())), &command, &place);
    assert!(traced.status.success(), "{traced:?}");
    let ours = lines("ours");
    for (ours, theirs) in ours.iter().zip(&theirs) {
        assert_eq!(ours, theirs);
    }
    assert_eq!(ours.len(), theirs.len());
    let least = if has_six { 60 } else { 45 };
    assert!(ours.len() > least, "{ours:?}");
}

/// With `-v`, environments, arguments and structures are whole, as with strace.
#[test]
fn whole_structures_are_those_of_strace() {
    if !has_compared_strace() {
        return;
    }
    let program = build("whole_structures.c", Kind::Pie, &["-w"]);
    let program = path(&program);
    let commands: [&[&str]; 5] = [
        &["/bin/true"],
        &["stat", "/dev/null", "/etc", "/nonexistent"],
        &["env", "-i", "A=1", "B=two", "uname", "-a"],
        &["sh", "-c", "exec cat /etc/passwd"],
        &[program],
    ];
    // What differs between runs: addresses, ids, and times of reading.
    let rules = [
        (r"0x[0-9a-f]{5,}", "ADDR"),
        (r" +=", " ="),
        (r"tv_usec=\d+", "tv_usec=T"),
        (r"ru_(\w+)=\d+", "ru_$1=N"),
        (r"atime=\d+ /\*[^*]*\*/, st_atime_nsec=\d+", "atime"),
        (r"atime=\{[^}]*\} /\*[^*]*\*/", "atime"),
        // How much of its time is left after `ppoll` is not recorded.
        (r"\], left \{tv_sec=T, tv_nsec=T\}\)", "])"),
        (r#"getrandom\("[^"]*""#, "getrandom(\"\""),
        (r"^(set_tid_address|getpid|getppid|clone)(.*)", "$1"),
        (r"= \d{3,}$", "= N"),
    ];
    let rules =
        rules.map(|(pattern, with)| (regex::Regex::new(pattern).expect("it is right"), with));
    let place = scratch("syscalls-whole");
    let lines = |name: &str| -> Vec<String> {
        let text = std::fs::read_to_string(place.join(name)).expect("lines");
        // Pipes for the output are new ones each time.
        let left_out = ["---", "+++", "newfstatat(1", "fstat(1"];
        let wanted = |line: &String| !left_out.iter().any(|start| line.starts_with(start));
        let plain = |line: String, (rule, with): &(regex::Regex, &str)| {
            rule.replace_all(&line, *with).into_owned()
        };
        let lines = whole_lines(&text).into_iter().filter(wanted);
        lines.map(|line| rules.iter().fold(line, plain)).collect()
    };
    for command in commands {
        for option in ["-v", "--no-abbrev"] {
            let options = [option, "-s", "40", "--no-follow", "-o", "ours"];
            let traced = run(&syscalls(&options, path(hodo())), command, &place);
            let stracer = ["strace", option, "-s", "40", "-o", "theirs"];
            let reference = run(&stracer, command, &place);
            assert_eq!(traced.status, reference.status, "{command:?}: {traced:?}");
            let [ours, theirs] = ["ours", "theirs"].map(lines);
            for (our, their) in ours.iter().zip(&theirs) {
                assert_eq!(our, their, "{command:?}");
            }
            assert_eq!(ours.len(), theirs.len(), "{command:?}");
        }
    }
}

/// Large libraries cost time and memory for what is known of their functions, which nobody asks for here.
#[test]
fn functions_of_libraries_have_no_ids() {
    let directory = scratch("syscalls_modules");
    let output = run(
        &syscalls(&["-d", "trace", "-o", "lines"], path(hodo())),
        &["true"],
        &directory,
    );
    assert!(output.status.success(), "{}", text(&output.stderr));
    let lines = std::fs::read_to_string(directory.join("lines")).expect("lines");
    assert!(lines.contains("exit_group(0)"), "{lines}");
    let log = std::fs::read_to_string(directory.join("trace/log.jsonl")).expect("a log");
    let lines = log.lines().map(serde_json::from_str::<Value>);
    let modules = lines.filter_map(|line| line.expect("JSON").get("module").cloned());
    let libraries: Vec<Value> = modules
        .filter(|module| {
            module["path"]
                .as_str()
                .is_some_and(|path| path.contains("libc.so"))
        })
        .collect();
    // Only the two events may be there.
    assert!(!libraries.is_empty(), "{log}");
    let counts = libraries.iter().map(|module| module["count"].as_u64());
    assert!(counts.flatten().all(|count| count <= 2), "{libraries:?}");
}
