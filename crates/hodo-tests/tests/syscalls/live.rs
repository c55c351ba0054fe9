//! `hodo syscalls` while the program runs: lines appear when something happens, also for calls that do not end, and for
//! calls that threads are in when hodo comes or goes.

use std::fs::OpenOptions;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};

use hodo_tests::probing::{path, text};
use hodo_tests::{Kind, build, build_with, hodo, make_fifo, scratch};
use serde_json::Value;

fn syscalls<'a>(options: &[&'a str], program: &'a str) -> Vec<&'a str> {
    [&[program, "syscalls"], options, &["--"]].concat()
}

/// Lines as they come from a tracer that writes to its standard error.
fn lines_of(tracer: &[&str], command: &[&str], place: &Path) -> (Child, Receiver<String>) {
    let mut child = Command::new("timeout")
        .args(["-s", "KILL", "300"])
        .args(tracer)
        .args(command)
        .env("HODO_PROGRESS", "0")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .current_dir(place)
        .spawn()
        .expect("it can be run");
    let lines = BufReader::new(child.stderr.take().expect("a pipe"));
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        for line in lines.lines().map_while(Result::ok) {
            let _ = sender.send(line);
        }
    });
    (child, receiver)
}

#[test]
fn lines_appear_while_the_program_runs() {
    let hodo = hodo();
    let place = scratch("syscalls-live");
    let fifo = place.join("fifo");
    make_fifo(&fifo);
    // The shell waits until somebody opens the other end, which happens only once the line is there.
    let command = ["sh", "-c", "echo early; read x < fifo; echo $x"];
    let probe = [
        path(hodo),
        "probe",
        "-o",
        "/dev/stderr",
        "-e",
        "libc:write",
        "--",
    ];
    for (tracer, probes) in [(syscalls(&[], path(hodo)), false), (probe.to_vec(), true)] {
        let (mut child, lines) = lines_of(&tracer, &command, &place);
        let expected = if probes {
            "write"
        } else {
            r#"write(1, "early\n", 6)"#
        };
        let found = lines.iter().find(|line| line.contains(expected));
        assert!(found.is_some(), "{tracer:?}: no such line came");
        let mut end = OpenOptions::new()
            .write(true)
            .open(&fifo)
            .expect("its reader waits");
        end.write_all(b"late\n").expect("it reads");
        drop(end);
        assert!(child.wait().is_ok_and(|status| status.success()));
        let rest: Vec<_> = lines.iter().collect();
        let expected = if probes {
            "write"
        } else {
            r#"write(1, "late\n", 5)"#
        };
        assert!(rest.iter().any(|line| line.contains(expected)), "{rest:?}");
    }
}

#[test]
fn lines_of_an_attached_process_appear_while_it_runs() {
    let hodo = hodo();
    let place = scratch("syscalls-live-attached");
    let fifo = place.join("fifo");
    make_fifo(&fifo);
    let script = "exec 3<> fifo; while read x <&3; do echo x$x; done";
    let mut target = Command::new("sh")
        .args(["-c", script])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .current_dir(&place)
        .spawn()
        .expect("there is a shell");
    let pid = target.id().to_string();
    let attached = [path(hodo), "syscalls", "-p", &pid];
    let (mut child, lines) = lines_of(&attached, &[], &place);
    let say = |what: &str| {
        let mut end = OpenOptions::new()
            .write(true)
            .open(&fifo)
            .expect("its reader is there");
        end.write_all(what.as_bytes()).expect("it reads");
    };
    // It answers, and one answer is seen, while hodo is attached.
    let answer = r#"write(1, "xa\n", 3)"#;
    let mut seen: Vec<String> = Vec::new();
    while !seen.iter().any(|line| line.starts_with(answer)) {
        say("a\n");
        seen.extend(lines.try_iter());
        assert!(
            child.try_wait().is_ok_and(|status| status.is_none()),
            "{seen:?}"
        );
    }
    target.kill().expect("it runs");
    target.wait().expect("it has run");
    child.wait().expect("it has run");
    let rest: Vec<_> = lines.iter().collect();
    assert!(
        rest.iter()
            .any(|line| line.ends_with("+++ killed by SIGKILL +++")),
        "{rest:?}"
    );
}

/// The first line that holds a text.
fn line_with(lines: &Receiver<String>, what: &str) -> String {
    let found = lines.iter().find(|line| line.contains(what));
    found.unwrap_or_else(|| panic!("no line with {what:?} came"))
}

/// Ends hodo as Ctrl-C does, and returns the lines that then come.
fn interrupt(mut child: Child, lines: &Receiver<String>) -> Vec<String> {
    // SAFETY: kill takes only numbers; timeout passes the signal on.
    unsafe { libc::kill(child.id().cast_signed(), libc::SIGINT) };
    child.wait().expect("it ends");
    lines.iter().collect()
}

#[test]
fn a_call_that_does_not_end_is_shown() {
    let hodo = hodo();
    let place = scratch("syscalls-hangs");
    let fifo = place.join("fifo");
    make_fifo(&fifo);
    let command = ["sh", "-c", "read x < fifo"];
    let (mut child, lines) = lines_of(&syscalls(&["-T"], path(hodo)), &command, &place);
    let line = line_with(&lines, "fifo\", O_RDONLY");
    assert!(line.ends_with(" <unfinished ...>"), "{line}");
    let end = OpenOptions::new().write(true).open(&fifo);
    end.and_then(|mut end| end.write_all(b"x\n"))
        .expect("its reader waits");
    let line = line_with(&lines, "<... openat resumed>) ");
    assert!(line.contains("= 3 <"), "{line}");
    assert!(child.wait().is_ok_and(|status| status.success()));
}

#[test]
fn calls_that_never_end_have_no_result() {
    let place = scratch("syscalls-never");
    let command = ["sh", "-c", "kill -9 $$; sleep 100"];
    let (mut child, lines) = lines_of(&syscalls(&["-e", "kill"], path(hodo())), &command, &place);
    child.wait().expect("it ends");
    let lines: Vec<_> = lines.iter().collect();
    let is_it = |line: &String| {
        line.starts_with("kill(")
            && line.contains("SIGKILL <unfinished ...>) ")
            && line.ends_with("= ?")
    };
    assert!(lines.iter().any(is_it), "{lines:?}");
    assert!(
        lines.contains(&"+++ killed by SIGKILL +++".to_owned()),
        "{lines:?}"
    );
}

#[test]
fn calls_in_progress_when_hodo_comes_and_goes_are_shown() {
    let hodo = hodo();
    let place = scratch("syscalls-comes");
    let fifo = place.join("fifo");
    make_fifo(&fifo);
    // What the C library calls for `epoll_wait`.
    let waits = match cfg!(target_arch = "x86_64") {
        true => "epoll_wait",
        false => "epoll_pwait",
    };
    for (call, arguments) in [("read", "0,  <unfinished"), (waits, "<unfinished")] {
        let mut target = match call {
            "read" => Command::new("sh")
                .args(["-c", "exec 3<> fifo; read x <&3; read y <&3"])
                .current_dir(&place)
                .stdin(Stdio::null())
                .spawn()
                .expect("there is a shell"),
            _ => Command::new(build("attached_waits.c", Kind::Pie, &[]))
                .args(["epoll_wait", "400000"])
                .stdout(Stdio::null())
                .spawn()
                .expect("it can be run"),
        };
        let pid = target.id().to_string();
        waits_in_call(&pid, call == "read");
        let attached = [path(hodo), "syscalls", "-T", "-p", &pid];
        let (child, lines) = lines_of(&attached, &[], &place);
        let line = line_with(&lines, call);
        assert!(line.contains(arguments) && line.ends_with("...>"), "{line}");
        if call == "read" {
            let end = OpenOptions::new().write(true).open(&fifo);
            end.and_then(|mut end| end.write_all(b"x\n"))
                .expect("its reader waits");
            let line = line_with(&lines, "<... read resumed>");
            if cfg!(target_arch = "x86_64") {
                assert!(line.starts_with("<... read resumed>\"x\", 1)"), "{line}");
                assert!(line.ends_with("= 1 <began earlier>"), "{line}");
            }
            // The second call began while hodo was watching.
            line_with(&lines, "read(0,  <unfinished ...>");
        }
        let rest = interrupt(child, &lines);
        let end = format!("<... {call} resumed> <unfinished ...>) ");
        let is_end = |line: &String| line.starts_with(&end) && line.contains("= ?");
        assert!(rest.iter().any(is_end), "{rest:?}");
        assert!(target.try_wait().is_ok_and(|status| status.is_none()));
        target.kill().expect("it runs");
        target.wait().expect("it has run");
    }
}

/// Waits until a process is waiting in a system call.
fn waits_in_call(pid: &str, read: bool) {
    let (read_call, epoll_calls) = match cfg!(target_arch = "x86_64") {
        true => ("0 ", ["232 ", "281 "]),
        false => ("63 ", ["22 ", "22 "]),
    };
    loop {
        let call = std::fs::read_to_string(format!("/proc/{pid}/syscall")).expect("it runs");
        let is_there = match read {
            true => call.starts_with(read_call),
            false => epoll_calls.iter().any(|epoll| call.starts_with(epoll)),
        };
        if is_there {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
}

#[test]
fn calls_before_and_after_the_run_are_objects() {
    let place = scratch("syscalls-objects");
    let mut target = Command::new("sleep")
        .arg("100000")
        .spawn()
        .expect("there is sleep");
    let out = place.join("out");
    let pid = target.id().to_string();
    let options = ["syscalls", "--format", "json", "-o", path(&out)];
    let status = Command::new(hodo())
        .args(options)
        .args(["--for", "0.3", "-p", &pid])
        .status();
    assert!(status.is_ok_and(|status| status.success()));
    target.kill().expect("it runs");
    target.wait().expect("it has run");
    let lines = std::fs::read_to_string(&out).expect("objects");
    let objects: Vec<Value> = (lines.lines())
        .map(|line| serde_json::from_str(line).expect("an object"))
        .collect();
    let sleeps = objects
        .iter()
        .find(|call| call["name"] == "clock_nanosleep");
    let sleeps = sleeps.unwrap_or_else(|| panic!("no such call: {lines}"));
    assert_eq!(sleeps["result"], Value::Null);
    if cfg!(target_arch = "x86_64") {
        assert_eq!(sleeps["began_earlier"], true);
    }
}

/// Library code that cannot have a probe, reached by another thread than the one that loads the library; and one of its
/// calls, interrupted by signals that the program ignores.
#[test]
fn calls_by_code_without_probes_are_seen_once_in_all_threads() {
    let place = scratch("syscalls-unwatched");
    let library = build_with("gcc", &["unwatched_plugin.c"], &["-O2", "-shared", "-fPIC"]);
    let program = build_with("gcc", &["unwatched.c"], &["-O2", "-pthread", "-ldl"]);
    let out = place.join("out");
    let output = Command::new("timeout")
        .args(["-s", "KILL", "300"])
        .args(syscalls(&["-o", path(&out)], path(hodo())))
        .args([path(&program), path(&library)])
        .output()
        .expect("hodo can be run");
    assert_eq!(text(&output.stdout), "ended\n", "{output:?}");
    let lines = std::fs::read_to_string(&out).expect("lines");
    let count = |what: &str| lines.lines().filter(|line| line.contains(what)).count();
    assert_eq!(count("getppid("), 100, "{lines}");
    assert_eq!(count("ERESTART"), 0, "{lines}");
    let ends = lines.lines().filter(|line| line.contains("\"!\", 77)"));
    assert_eq!(ends.count(), 1, "{lines}");
    let begins = lines
        .lines()
        .filter(|line| line.contains(" read(") && line.contains(", 77"));
    let later = lines
        .lines()
        .filter(|line| line.contains(" read(") && line.contains("<unfinished"));
    assert_eq!(begins.chain(later).count(), 1, "{lines}");
}
