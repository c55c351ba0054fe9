//! Threads, children, signals, and how programs end.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
#[cfg(target_arch = "x86_64")]
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use hodo_tests::probing::{path, text};
use hodo_tests::{
    Ended, IS_SLOW, Kind, Run, SHORTER, Trace, build, hodo, is_root, needs, scratch, target,
};

fn available(kinds: &[Kind]) -> impl Iterator<Item = Kind> {
    kinds.iter().copied().filter(|kind| kind.is_available())
}

/// All kinds of programs that this machine can run; a dynamic and a static one if it is slow.
fn all() -> impl Iterator<Item = Kind> {
    available(&Kind::ALL).filter(|kind| !IS_SLOW || matches!(kind, Kind::Pie | Kind::Static))
}

#[test]
fn ten_thousand_short_lived_threads() {
    let threads = if IS_SLOW { 2000 } else { 11_000 };
    for kind in available(&[Kind::Pie, Kind::Static, Kind::Musl]) {
        let program = build("threads.c", kind, SHORTER);
        let trace = Run::new(&format!("ten_thousand_threads-{kind:?}"), program).same(&[]);
        trace.has_calls(&[("main", 1), ("run", threads), ("count", threads)]);
        assert_eq!(trace.log("task").len() as u64, threads + 1);
    }
}

#[test]
fn threads_that_call_at_the_same_time() {
    for kind in all() {
        let program = build("busy_threads.c", kind, &[]);
        for options in [&[][..], &["-l"], &["--no-time"]] {
            let trace = Run::new(&format!("busy_threads-{kind:?}"), &program).same(options);
            if kind.has_names() {
                trace.has_calls(&[
                    ("main", 1),
                    ("run", 8),
                    ("middle", 400_000),
                    ("leaf", 800_000),
                ]);
            }
        }
    }
}

#[test]
fn cancelled_threads() {
    for kind in available(&Kind::ALL) {
        let program = build("cancel.c", kind, &[]);
        for options in [&[][..], &["-l"]] {
            Run::new(&format!("cancelled_threads-{kind:?}"), &program).same(options);
        }
    }
}

#[test]
fn threads_that_are_killed_while_they_start_lose_nothing() {
    let program = build("killed_early.c", Kind::Pie, &[]);
    for options in [&[][..], &["-l"]] {
        let trace = Run::new("killed_early", &program).same(options);
        assert_eq!(trace.info()["lost"].as_u64(), Some(0));
    }
}

/// How often `children.c` starts children in each way: the code of each is changed once more.
const ROUNDS: u64 = if IS_SLOW { 4 } else { 20 };

#[test]
fn children_are_followed() {
    for kind in all() {
        let program = build("children.c", kind, &[]);
        for options in [&[][..], &["-l"]] {
            let trace = Run::new(&format!("children_are_followed-{kind:?}"), &program)
                .args([ROUNDS.to_string()])
                .same(options);
            if kind.has_names() {
                trace.has_calls(&[
                    ("forks", ROUNDS),
                    ("vforks", 2 * ROUNDS),
                    ("spawns", ROUNDS),
                    ("in_child", 2 * ROUNDS),
                    ("in_parent", 4 * ROUNDS),
                    ("after_exec", ROUNDS + 1),
                ]);
            }
        }
    }
}

/// Checks what hodo reports about threads with the same thread pointer: it can distinguish them only on x86-64.
fn says_what_is_shared(remarks: &str) {
    if cfg!(target_arch = "x86_64") {
        assert_eq!(remarks, "");
    } else {
        let says = "calls of both are not recorded while it runs";
        assert!(remarks.contains(says), "{remarks}");
    }
}

#[test]
fn children_beside_their_parents_with_the_same_thread_pointer() {
    for kind in [Kind::Pie, Kind::Static] {
        let program = build("beside.c", kind, &[]);
        for how in ["process", "thread"] {
            let name = format!("children_beside-{kind:?}-{how}");
            let run = Run::new(&name, &program).args([how]);
            let (alone, traced) = (run.alone(), run.traced(&[]));
            assert_eq!(alone, traced.outcome, "{}", traced.remarks);
            says_what_is_shared(&traced.remarks);
            let calls = traced.trace.calls();
            assert_eq!((calls["before"], calls["after"]), (10, 30));
            if cfg!(target_arch = "x86_64") {
                assert_eq!((calls["beside"], calls["in_child"]), (20_000, 20_000));
            } else {
                // There, nothing distinguishes one from the other.
                assert!(!calls.contains_key("in_child"));
            }
        }
    }
}

#[test]
fn children_beside_their_parents_are_left_alone_on_request() {
    let program = build("beside.c", Kind::Pie, &[]);
    let run = Run::new("children_beside_left_alone", &program).args(["process"]);
    let (alone, traced) = (run.alone(), run.traced(&["--no-follow"]));
    assert_eq!(alone, traced.outcome, "{}", traced.remarks);
    says_what_is_shared(&traced.remarks);
    traced
        .trace
        .has_calls(&[("before", 10), ("in_child", 0), ("after", 30)]);
}

#[test]
fn children_of_vfork_during_which_another_child_ends() {
    let program = build("beside.c", Kind::Pie, &[]);
    let run = Run::new("children_of_vfork_beside", &program).args(["nested"]);
    let (alone, traced) = (run.alone(), run.traced(&[]));
    assert_eq!(alone, traced.outcome, "{}", traced.remarks);
    says_what_is_shared(&traced.remarks);
    let calls = traced.trace.calls();
    assert_eq!(
        (calls["before"], calls["in_vfork"], calls["after"]),
        (10, 40, 30)
    );
    // Each task is found through the task that created it.
    let tasks = traced.trace.log("task");
    for (task, name, expected) in [(0, "in_vfork", 0), (2, "in_vfork", 40), (0, "after", 30)] {
        let tid = tasks[task]["tid"].to_string();
        let calls = traced.trace.calls_with(&["--tid", &tid]);
        assert_eq!(calls.get(name).copied().unwrap_or(0), expected, "{name}");
    }
}

#[test]
fn children_are_left_alone_on_request() {
    for kind in all() {
        let program = build("children.c", kind, &[]);
        let trace = Run::new(&format!("children_left_alone-{kind:?}"), &program)
            .args([ROUNDS.to_string()])
            .same(&["--no-follow"]);
        if kind.has_names() {
            trace.has_calls(&[
                ("forks", ROUNDS),
                ("in_parent", 4 * ROUNDS),
                ("in_child", 0),
            ]);
        }
    }
}

#[test]
fn signals_on_any_stack_with_own_handlers() {
    for kind in all() {
        let program = build("signals.c", kind, &[]);
        for options in [&[][..], &["-l"], &["--no-time"]] {
            let trace = Run::new(&format!("signals-{kind:?}"), &program).same(options);
            if kind.has_names() {
                trace.has_calls(&[
                    ("main", 1),
                    ("on_fault", 100),
                    ("on_trap", 2),
                    ("on_illegal", 1),
                ]);
            }
        }
    }
}

#[test]
fn every_way_to_end() {
    let program = build("ends.c", Kind::Pie, &[]);
    for (how, ended) in [
        ("_exit", Ended::Code(3)),
        ("exit", Ended::Code(4)),
        ("return", Ended::Code(0)),
        ("abort", Ended::Signal(libc::SIGABRT)),
        ("kill", Ended::Signal(libc::SIGKILL)),
        ("term", Ended::Signal(libc::SIGTERM)),
        ("fault", Ended::Signal(libc::SIGSEGV)),
        ("trap", Ended::Signal(libc::SIGTRAP)),
        ("illegal", Ended::Signal(libc::SIGILL)),
        ("pipe", Ended::Signal(libc::SIGPIPE)),
        ("thread", Ended::Code(11)),
        ("main-thread", Ended::Code(9)),
    ] {
        for options in [&[][..], &["-l"]] {
            let run = Run::new(&format!("every_way_to_end-{how}"), &program).args([how]);
            assert_eq!(run.alone().ended, ended, "{how}");
            let trace = run.same(options);
            let steps = if how == "return" || how == "thread" || how == "main-thread" {
                1001
            } else {
                1000
            };
            let steps = if how == "main-thread" { 1000 } else { steps };
            trace.has_calls(&[("main", 1), ("outer", 1), ("end", 1), ("step", steps)]);
            // Frames that were open are included, without an end.
            if how == "kill" {
                let replay = trace.view("replay", &["-F", "main", "-D", "3"]);
                assert!(
                    replay.contains("main() {") && replay.contains("outer() {"),
                    "{replay}"
                );
            }
        }
    }
}

#[test]
fn closing_every_descriptor() {
    for kind in all() {
        let program = build("close_all.c", kind, &[]);
        let trace = Run::new(&format!("close_all-{kind:?}"), program).same(&[]);
        if kind.has_names() {
            trace.has_calls(&[("main", 1), ("many", 2), ("next", 200_000)]);
        }
    }
}

/// The tools that have programs run from the code cache, and one that records in their own code.
const TOOLS: [&[&str]; 4] = [
    &["mem", "none"],
    &["mem", "stat"],
    &["mem", "hot"],
    &["record"],
];

/// Those that work on this machine.
fn tools() -> impl Iterator<Item = &'static [&'static str]> {
    let is_there = |tool: &&[&str]| cfg!(target_arch = "x86_64") || tool[0] != "mem";
    TOOLS.into_iter().filter(is_there)
}

/// Runs a tool, which must not hang.
fn under(tool: &[&str], place: &Path) -> Command {
    let mut command = Command::new("timeout");
    command.args(["-s", "KILL", "200"]).arg(hodo()).args(tool);
    if tool == ["record"] {
        command.arg("-d").arg(place.join("data"));
    }
    command.env("HODO_CACHE", place.join("cache"));
    command
}

#[test]
fn children_of_processes_that_are_killed_while_they_fork() {
    let program = build("killed_makers.c", Kind::Pie, &[]);
    for tool in tools() {
        let place = scratch(&format!("killed-makers-{}", tool.join("-")));
        let output = under(tool, &place).arg("--").arg(&program).output();
        let output = output.expect("hodo can be run");
        assert_eq!(text(&output.stdout), "wrong: 0\n", "{tool:?}: {output:?}");
        assert!(output.status.success(), "{tool:?}: {output:?}");
    }
}

#[test]
fn processes_that_let_nobody_look_into_them() {
    let program = build("undumpable.c", Kind::Pie, &["-pthread"]);
    for tool in tools() {
        // Root may look in any case. Files that an emulated machine shares with its host belong to root, whoever made
        // them.
        let name = format!("undumpable-{}-{}", tool.join("-"), std::process::id());
        let place = std::env::temp_dir().join(name);
        let _ = fs::remove_dir_all(&place);
        fs::create_dir(&place).expect("a directory");
        let program = match is_root() {
            true => place.join("undumpable"),
            false => program.clone(),
        };
        let mut command = under(tool, &place);
        if is_root() {
            let everybody = fs::Permissions::from_mode(0o777);
            fs::set_permissions(&place, everybody).expect("it is ours");
            fs::copy(build("undumpable.c", Kind::Pie, &["-pthread"]), &program).expect("a copy");
            command.uid(65534).gid(65534);
        }
        let output = command.arg("--").arg(&program).current_dir(&place).output();
        let output = output.expect("timeout can be run");
        // timeout's status if others cannot execute this hodo.
        needs!(output.status.code() != Some(126), "only root can run hodo");
        assert_eq!(text(&output.stdout), "285 6 0\n", "{tool:?}: {output:?}");
        assert!(output.status.success(), "{tool:?}: {output:?}");
        let _ = fs::remove_dir_all(&place);
    }
}

#[test]
fn debuggers_trace_what_they_want_to() {
    let program = build("debugs.c", Kind::Pie, &["-pthread"]);
    let alone = Command::new(&program).output().expect("it can be run");
    assert!(
        text(&alone.stdout).contains("vfork: stops, status 5\n"),
        "{alone:?}"
    );
    for tool in tools().filter(|tool| tool[0] == "mem") {
        let place = scratch(&format!("debuggers-{}", tool.join("-")));
        let output = under(tool, &place).arg("--").arg(&program).output();
        let output = output.expect("hodo can be run");
        assert_eq!(
            text(&output.stdout),
            text(&alone.stdout),
            "{tool:?}: {output:?}"
        );
        let told = text(&output.stderr)
            .matches(": it is not observed any more, ")
            .count();
        // Once for the debugger.
        assert_eq!(told, 1, "{tool:?}: {output:?}");
        if tool == ["mem", "stat"] {
            // The debugger is still observed.
            let errors = text(&output.stderr);
            let count = errors.lines().find(|line| line.ends_with(" instructions"));
            let count = count.and_then(|line| line.split_whitespace().next()?.parse().ok());
            assert!(count > Some(1_000_000), "{output:?}");
        }
    }
}

/// LeakSanitizer traces all threads of its process, from a child that shares the memory.
#[test]
fn leaks_are_found() {
    for (name, library) in [("leak", "liblsan.so"), ("address", "libasan.so")] {
        let found = Command::new("gcc")
            .arg(format!("-print-file-name={library}"))
            .output();
        let found = found.expect("gcc");
        needs!(text(&found.stdout).contains('/'), "gcc has no sanitizers");
        let sanitize = format!("-fsanitize={name}");
        let program = build("leaks.c", Kind::Pie, &[&sanitize, "-pthread"]);
        let alone = Command::new(&program).output().expect("it can be run");
        let found = |output: &std::process::Output| {
            let lines = text(&output.stderr).lines();
            let found: Vec<String> = lines
                .filter(|line| line.starts_with("SUMMARY") || line.starts_with("Direct leak"))
                .map(str::to_owned)
                .collect();
            found
        };
        assert_eq!(found(&alone).len(), 2, "{alone:?}");
        for tool in tools() {
            let place = scratch(&format!("leaks-{name}-{}", tool.join("-")));
            let output = under(tool, &place).arg("--").arg(&program).output();
            let output = output.expect("hodo can be run");
            assert_eq!(output.status, alone.status, "{tool:?}: {output:?}");
            assert_eq!(output.stdout, alone.stdout, "{tool:?}: {output:?}");
            assert_eq!(found(&output), found(&alone), "{tool:?}: {output:?}");
        }
    }
}

/// Ctrl-C reaches the program and hodo. If the program ends, hodo shows what it has observed, and ends in the same way.
#[test]
#[cfg(target_arch = "x86_64")]
fn results_are_shown_after_ctrl_c() {
    for tool in ["stat", "opcodes", "cache", "hot"] {
        let place = scratch(&format!("ctrl-c-{tool}"));
        let ready = place.join("ready");
        let script = format!(
            "trap 'exit 9' INT; : > {}; while :; do :; done",
            ready.display()
        );
        for (script, status) in [
            (
                script.replace("trap 'exit 9' INT; ", ""),
                Some(libc::SIGINT),
            ),
            (script, None),
        ] {
            let _ = fs::remove_file(&ready);
            let child = Command::new(hodo())
                .args(["mem", tool, "--", "bash", "-c", &script])
                .env("HODO_CACHE", place.join("cache"))
                .process_group(0)
                .stderr(Stdio::piped())
                .spawn()
                .expect("hodo can be run");
            while !ready.exists() {
                std::thread::sleep(Duration::from_millis(10));
            }
            // SAFETY: kill touches no memory, and the child has not been waited for.
            unsafe { libc::kill(-child.id().cast_signed(), libc::SIGINT) };
            let output = child.wait_with_output().expect("its output");
            assert_eq!(output.status.signal(), status, "{tool}: {output:?}");
            assert_eq!(
                output.status.code(),
                status.is_none().then_some(9),
                "{tool}: {output:?}"
            );
            assert!(
                text(&output.stderr).lines().count() > 2,
                "{tool}: {output:?}"
            );
        }
    }
}

/// A part that begins after the program's end was not observed: that is no result of zeros.
#[test]
#[cfg(target_arch = "x86_64")]
fn programs_that_end_before_the_part_that_is_wanted() {
    for from in ["100s", "100G-insns"] {
        let output = Command::new(hodo())
            .args(["mem", "stat", "--from", from, "--", "true"])
            .output()
            .expect("hodo can be run");
        assert_eq!(output.status.code(), Some(125), "{output:?}");
        let errors = text(&output.stderr);
        assert!(
            errors.starts_with("hodo: the program has ended before "),
            "{errors}"
        );
        assert_eq!(errors.lines().count(), 1, "{errors}");
    }
}

#[test]
fn signals_to_the_process_group_come_once() {
    let program = build("told.c", Kind::Pie, &[]);
    // The shell also gets its own signals. Two of one kind become one if the first is still pending.
    let script = "trap : TERM HUP USR1 USR2 INT; \"$@\" > out & job=$!; until grep -qs ready out; do sleep 0.05; done; \
                  for s in TERM USR1 HUP USR2; do kill -$s 0; sleep 0.4; done; kill -TERM $job; sleep 0.4; kill -USR2 $job; \
                  while kill -0 $job 2> /dev/null; do wait $job; done; cat out";
    for options in [&[][..], &["--keep-pid"]] {
        let run = Run::new("signals_come_once", &program).inside(["bash", "-c", script, "sh"]);
        assert_eq!(
            String::from_utf8_lossy(&run.alone().stdout),
            "ready\n15: 2\n1: 1\n10: 1\n12: 2\n2: 0\n"
        );
        run.same(options).has_calls(&[("main", 1), ("count", 6)]);
    }
}

/// A program that sends a signal to its parent means the one that it has without hodo.
#[test]
fn signals_to_the_parent_reach_it() {
    let script = "trap 'echo USR1' USR1; trap 'echo 40' 40; \
                  \"$@\" sh -c 'kill -USR1 $PPID; sleep 0.4; kill -40 $PPID; sleep 0.4; echo done' & job=$!; \
                  while kill -0 $job 2> /dev/null; do wait $job; done; wait $job; echo $?";
    let run = |words: &[&str]| {
        let mut command = Command::new("bash");
        command.args(["-c", script, "bash"]).args(words);
        let output = command.output().expect("bash can be run");
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let alone = run(&[]);
    assert_eq!(alone, "USR1\n40\ndone\n0\n");
    for tool in tools() {
        let place = scratch(&format!("to-parent-{}", tool.join("-")));
        let (data, counts) = (place.join("data"), place.join("counts"));
        let mut words = vec![path(hodo())];
        words.extend(tool.iter().copied());
        match tool {
            ["record"] => words.extend(["-d", path(&data)]),
            ["mem", "stat"] => words.extend(["-o", path(&counts)]),
            _ => {}
        }
        words.push("--");
        assert_eq!(run(&words), alone, "{tool:?}");
        let _ = fs::remove_dir_all(place);
    }
}

#[test]
fn processes_left_behind_are_released_at_a_signal() {
    let program = build("left_behind.c", Kind::Pie, &[]);
    for tool in tools() {
        for signal in [libc::SIGINT, libc::SIGTERM] {
            let place = scratch(&format!("left-behind-{}-{signal}", tool.join("-")));
            let (end, done) = (place.join("end"), place.join("done"));
            let mut command = Command::new(hodo());
            command.args(tool);
            let counts = place.join("counts");
            match tool {
                ["record"] => command.arg("-d").arg(place.join("data")),
                ["mem", "stat"] => command.arg("-o").arg(&counts),
                _ => &mut command,
            };
            let mut recorder = command
                .arg("--")
                .arg(&program)
                .args([&end, &done])
                .env("HODO_CACHE", place.join("cache"))
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()
                .expect("hodo can be run");
            let mut line = String::new();
            // Both stay open: results may be written there.
            let mut stdout = BufReader::new(recorder.stdout.take().expect("its output"));
            stdout.read_line(&mut line).expect("a line");
            let left: i32 = line.trim().parse().expect("a process");
            line.clear();
            let mut stderr = BufReader::new(recorder.stderr.take().expect("its errors"));
            stderr.read_line(&mut line).expect("a line");
            let begin = format!("hodo: the program has ended; process {left} (");
            assert!(line.starts_with(&begin), "{tool:?}: {line}");
            let number = i32::try_from(recorder.id()).expect("a process");
            // SAFETY: kill touches no memory, and the child has not been waited for.
            assert_eq!(unsafe { libc::kill(number, signal) }, 0);
            let status = recorder.wait().expect("its status");
            assert_eq!(status.code(), Some(7), "{tool:?}: {status}");
            if tool == ["mem", "stat"] {
                let counts = fs::read_to_string(counts).expect("results");
                assert!(counts.contains(" instructions\n"), "{counts}");
            }
            drop((stdout, stderr));
            target::is_let_go(left);
            fs::write(&end, "").expect("a file");
            let mut waits = 0;
            while fs::read(&done).ok().as_deref() != Some(b"done") {
                waits += 1;
                assert!(waits < 1000, "{tool:?}: it does not go on");
                std::thread::sleep(Duration::from_millis(20));
            }
            if tool == ["record"] {
                let calls = Trace::new(place.join("data")).calls();
                assert!(calls["beat"] > 1, "{calls:?}");
            }
        }
    }
}
