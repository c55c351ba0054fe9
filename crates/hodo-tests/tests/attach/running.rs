//! Attaching to running processes, and detaching from them: they must not notice.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use hodo_tests::probing::{path, text};
use hodo_tests::target::{Target, command, run, seen_in_time};
use hodo_tests::{IS_SLOW, Kind, Trace, build, hodo, scratch};

#[test]
fn probes_count_in_a_running_process_and_leave_nothing() {
    for kind in Kind::ALL
        .into_iter()
        .filter(|kind| kind.is_available() && kind.has_names())
    {
        let program = build("attached.c", kind, &[]);
        let file = path(&program);
        let target = Target::start(&program);
        let (maps, threads) = (target.maps(), target.threads());
        let leaf = format!("p:leaf {file}:leaf count");
        let deep = format!("p:deep {file}:deep+* count");
        seen_in_time("0.3", |time| {
            let output = run(
                &target,
                &[
                    "probe", "--for", time, "--format", "json", "-e", &leaf, "-e", &deep,
                ],
            );
            let lines = text(&output.stdout).lines();
            let hits: Vec<u64> = lines
                .map(|line| serde_json::from_str(line).expect(line))
                .filter_map(|line: serde_json::Value| line["hits"].as_u64())
                .collect();
            hits.len() > 5 && hits[0] > 1000 && hits[1] > 1000
        });
        target.is_untouched(&maps, threads);
        // Once more, with events, and in a library too.
        let work = format!("p:leaf {file}:leaf n=$arg1");
        seen_in_time("0.01", |time| {
            let output = run(&target, &["probe", "--for", time, "-e", &work]);
            text(&output.stdout).contains(": leaf: (leaf+0x0) n=0x")
        });
        target.is_untouched(&maps, threads);
        target.ends_perhaps_interrupted();
    }
}

#[test]
fn code_that_is_mapped_twice_is_no_obstacle() {
    let program = build("attached_twice.c", Kind::Pie, &[]);
    let target = Target::start(&program);
    let (maps, threads) = (target.maps(), target.threads());
    let place = scratch("code_that_is_mapped_twice");
    let data = place.join("data");
    seen_in_time("0.05", |time| {
        run(&target, &["record", "-l", "--for", time, "-d", path(&data)]);
        target.is_untouched(&maps, threads);
        let calls = Trace::new(data.clone()).calls();
        calls.get("leaf").is_some_and(|&calls| calls > 100)
    });
    target.ends("wrong: 0\n");
    fs::remove_dir_all(place).expect("the trace can be removed");
}

#[test]
fn calls_are_recorded_in_a_running_process() {
    for kind in [Kind::Pie, Kind::Static, Kind::Musl]
        .into_iter()
        .filter(|kind| kind.is_available())
    {
        let program = build("attached.c", kind, &[]);
        let target = Target::start(&program);
        let (maps, threads) = (target.maps(), target.threads());
        let place = scratch(&format!(
            "calls_are_recorded_in_a_process_that_runs_{kind:?}"
        ));
        let data = place.join("data");
        let record = |time: &str| {
            let depth = ["-D", "100"];
            let mut options = vec!["record", "--for", time, "-d", path(&data)];
            options.extend(depth);
            run(&target, &options);
            target.is_untouched(&maps, threads);
            let calls = Trace::new(data.clone()).calls();
            calls.get("deep").is_some_and(|&calls| calls > 10) && calls.contains_key("leaf")
        };
        record("0.02");
        record("0.05");
        seen_in_time("0.2", record);
        target.ends_perhaps_interrupted();
        fs::remove_dir_all(place).expect("the trace can be removed");
    }
}

#[test]
fn exceptions_in_flight_survive() {
    for kind in [Kind::Pie, Kind::Fixed, Kind::Static] {
        let program = build("attached.cc", kind, &[]);
        let target = Target::start(&program);
        let (maps, threads) = (target.maps(), target.threads());
        let place = scratch(&format!("exceptions_on_their_way_survive_{kind:?}"));
        let data = place.join("data");
        for _ in 0..5 {
            run(&target, &["record", "--for", "0.05", "-d", path(&data)]);
            target.is_untouched(&maps, threads);
        }
        target.ends("wrong: 0\n");
        fs::remove_dir_all(place).expect("the trace can be removed");
    }
}

#[test]
fn nested_handlers_survive() {
    // The compilers of some machines emit tables by default, others none: the code itself must show where frames are.
    let tables = [
        "-fasynchronous-unwind-tables",
        "-fno-asynchronous-unwind-tables",
    ];
    let programs = tables.map(|flag| build("attached_handlers.c", Kind::Pie, &[flag]));
    for (program, tables) in programs.into_iter().zip(tables) {
        let target = Target::start(&program);
        let (maps, threads) = (target.maps(), target.threads());
        let place = scratch(&format!("nested_handlers_survive{tables}"));
        let data = place.join("data");
        for round in 0..8 {
            let what = ["-l", "--no-libcall"][round % 2];
            let options = ["record", what, "--for", "0.1", "-d", path(&data)];
            run(&target, &options);
            target.is_untouched(&maps, threads);
        }
        target.ends("wrong: 0\n");
        fs::remove_dir_all(place).expect("the trace can be removed");
    }
}

/// Attaches and detaches again and again.
fn rounds(count: u32, test: &str) {
    let program = build("attached.c", Kind::Pie, &[]);
    let file = path(&program);
    let target = Target::start(&program);
    let (maps, threads) = (target.maps(), target.threads());
    let leaf = format!("p:leaf {file}:leaf+* count");
    let place = scratch(test);
    let data = place.join("data");
    for round in 0..count {
        let time = format!("{}ms", 1 + round % 7);
        match round % 2 {
            0 => run(&target, &["probe", "--for", &time, "-e", &leaf]),
            _ => run(
                &target,
                &["record", "--for", &time, "-D", "3", "-d", path(&data)],
            ),
        };
    }
    target.is_untouched(&maps, threads);
    target.ends_perhaps_interrupted();
    fs::remove_dir_all(place).expect("the trace can be removed");
}

#[test]
fn thirty_rounds_leave_nothing() {
    // An emulated machine takes ten seconds for each.
    rounds(if IS_SLOW { 10 } else { 30 }, "thirty_rounds_leave_nothing");
}

/// `HODO_ROUNDS` sets another number.
#[test]
#[ignore = "takes minutes"]
fn a_thousand_rounds_leave_nothing() {
    let count = std::env::var("HODO_ROUNDS").map_or(Ok(1000), |text| text.parse());
    let count = count.expect("HODO_ROUNDS is a number");
    rounds(count, "a_thousand_rounds_leave_nothing");
}

/// Waits until the process has no tracer.
fn wait_untraced(target: &Target) {
    let begun = Instant::now();
    loop {
        let status = fs::read_to_string(format!("/proc/{}/status", target.pid())).expect("status");
        if status.contains("TracerPid:\t0\n") {
            return;
        }
        assert!(begun.elapsed() < Duration::from_secs(60), "{status}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn hodo_detaches_whatever_ends_it() {
    let program = build("attached.c", Kind::Pie, &[]);
    let target = Target::start(&program);
    let (maps, threads) = (target.maps(), target.threads());
    let leaf = format!("p:leaf {}:leaf count", path(&program));
    let pid = target.pid().to_string();
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGKILL] {
        let mut child = Command::new(hodo())
            .args(["probe", "-p", &pid, "-e", &leaf])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .spawn()
            .expect("hodo can be run");
        target.is_changed(&program);
        // SAFETY: kill touches no memory; the child is not reaped yet.
        unsafe { libc::kill(child.id().cast_signed(), signal) };
        let mut said = String::new();
        let output = child.stdout.as_mut().expect("a pipe");
        output.read_to_string(&mut said).expect("what it says");
        let status = child.wait().expect("its end");
        wait_untraced(&target);
        assert_eq!(
            status.success(),
            signal != libc::SIGKILL,
            "{signal}: {status}"
        );
        // A hodo that was killed has still reported the counts: its monitor did.
        assert!(said.contains(" leaf: (leaf+0x0)"), "{signal}: {said}");
        target.is_untouched(&maps, threads);
    }
    target.ends_perhaps_interrupted();
}

#[test]
fn a_stopped_process_stays_stopped() {
    let program = build("attached.c", Kind::Pie, &[]);
    let target = Target::start(&program);
    let pid = target.pid();
    let (maps, threads) = (target.maps(), target.threads());
    // All threads: they do not stop at once.
    let stopped = || {
        let tasks = fs::read_dir(format!("/proc/{pid}/task")).expect("threads");
        tasks.flatten().all(|task| {
            let status = fs::read_to_string(task.path().join("status")).unwrap_or_default();
            status.lines().any(|line| line.starts_with("State:\tT"))
        })
    };
    // SAFETY: kill touches no memory.
    unsafe { libc::kill(pid, libc::SIGSTOP) };
    while !stopped() {
        std::thread::yield_now();
    }
    let leaf = format!("p:leaf {}:leaf count", path(&program));
    let output = run(&target, &["probe", "--for", "0.1", "-e", &leaf]);
    assert!(text(&output.stdout).contains(" 0  leaf"), "{output:?}");
    assert!(stopped());
    target.is_untouched(&maps, threads);
    // SAFETY: as above.
    unsafe { libc::kill(pid, libc::SIGCONT) };
    run(&target, &["probe", "--for", "0.1", "-e", &leaf]);
    // Some calls are interrupted when a process is stopped, with or without hodo.
    target.ends_perhaps_interrupted();
}

#[test]
fn the_end_of_the_process_ends_the_recording() {
    let program = build("attached.c", Kind::Pie, &[]);
    let mut target = Target::start(&program);
    let leaf = format!("p:leaf {}:leaf count", path(&program));
    let hodo = command(&target, &["probe", "-e", &leaf])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("hodo can be run");
    target.is_changed(&program);
    let mut input = target.input.take().expect("its input");
    input.write_all(b"x").expect("it reads");
    drop(input);
    let output = hodo.wait_with_output().expect("its end");
    assert!(output.status.success(), "{output:?}");
    assert!(
        text(&output.stdout).contains("  leaf: (leaf+0x0)"),
        "{output:?}"
    );
    target.ends_perhaps_interrupted();
}

#[test]
fn children_are_followed_and_detached_or_not_followed() {
    let program = build("attached_forks.c", Kind::Pie, &[]);
    let target = Target::start(&program);
    let (maps, threads) = (target.maps(), target.threads());
    let deep = format!("p:deep {}:deep count", path(&program));
    let work = format!("p:work {}:work", path(&program));
    for options in [
        &["probe", "--for", "0.2", "-e", &deep, "-e", &work][..],
        &[
            "probe",
            "--for",
            "0.2",
            "--no-follow",
            "-e",
            &deep,
            "-e",
            &work,
        ],
        &["probe", "--for", "0.05", "-e", &deep],
    ] {
        let output = run(&target, options);
        assert!(text(&output.stdout).contains("  deep: (deep+0x0)"));
        target.is_untouched(&maps, threads);
    }
    target.ends("wrong: 0\n");
}

#[test]
fn a_thread_in_a_loop_continues_in_the_copy() {
    let program = build("looping.c", Kind::Pie, &[]);
    let target = Target::start(&program);
    let definition = format!("{}:work+* count", path(&program));
    for _ in 0..3 {
        std::thread::sleep(Duration::from_millis(50));
        let options = ["probe", "--for", "0.1", "-e", &definition];
        let output = command(&target, &options).output().expect("hodo runs");
        assert_eq!(output.status.code(), Some(0), "{output:?}");
    }
    target.ends("1\n");
}

#[test]
fn threads_that_share_a_thread_pointer() {
    let program = build("beside.c", Kind::Pie, &[]);
    let target = Target::start_with(&program, &["loops"]);
    let (maps, threads) = (target.maps(), target.threads());
    let place = scratch("threads_that_share_a_thread_pointer");
    for round in 0..3 {
        let data = place.join(round.to_string());
        seen_in_time("0.2", |time| {
            let output = command(&target, &["record", "--for", time, "-d", path(&data)])
                .output()
                .expect("hodo can be run");
            let said = text(&output.stderr);
            assert!(output.status.success(), "{output:?}");
            let calls = Trace::new(data.clone()).calls();
            if cfg!(target_arch = "x86_64") {
                assert_eq!(said, "");
                return calls.contains_key("beside") && calls.contains_key("in_child");
            }
            let says = "calls of both are not recorded while it runs";
            assert!(said.lines().count() == 1 && said.contains(says), "{said}");
            assert!(!calls.contains_key("in_child"));
            true
        });
        target.is_untouched(&maps, threads);
    }
    target.ends("ended\n");
    fs::remove_dir_all(place).expect("the traces can be removed");
}

#[test]
fn processes_that_share_memory_are_refused() {
    let program = build("beside.c", Kind::Pie, &[]);
    for how in ["apart", "vfork"] {
        let target = Target::start_with(&program, &[how]);
        let (maps, threads) = (target.maps(), target.threads());
        let children = format!("/proc/{0}/task/{0}/children", target.pid());
        let child = fs::read_to_string(children).expect("its children");
        for pid in [target.pid().to_string(), child.trim().to_owned()] {
            let output = Command::new("timeout")
                .args(["-s", "KILL", "300"])
                .arg(hodo())
                .args([
                    "probe",
                    "--for",
                    "0.1",
                    "-e",
                    "p:x libc.so.6:read count",
                    "-p",
                    &pid,
                ])
                .output()
                .expect("hodo can be run");
            let said = text(&output.stderr);
            assert_eq!(output.status.code(), Some(125), "{how} {pid}: {said}");
            assert!(said.contains("it shares its memory with process"), "{said}");
            target.is_untouched(&maps, threads);
        }
        target.ends("ended\n");
    }
}

/// Calls that a stop interrupts, and that the kernel does not restart, wait for the rest of their time.
#[test]
fn timed_calls_wait_for_the_rest_of_their_time() {
    let program = build("attached_waits.c", Kind::Pie, &[]);
    let probe = format!("{}:main+0 count", path(&program));
    // The argument is in milliseconds, or points to the time.
    let calls = [
        ("epoll_wait", 4, "result 0"),
        ("epoll_pwait2", 4, "result 0"),
        ("sigtimedwait", 3, "result -1"),
        ("semtimedop", 4, "result -1"),
    ];
    let mut targets = Vec::new();
    for (call, argument, _) in calls {
        let target = Target::start_with(&program, &[call, "8000"]);
        // By then it is in the call.
        std::thread::sleep(Duration::from_millis(200));
        let waits = || {
            let text = fs::read_to_string(format!("/proc/{}/syscall", target.pid())).ok()?;
            text.split_whitespace().nth(argument).map(str::to_owned)
        };
        let before = waits();
        run(&target, &["probe", "--for", "0.01", "-e", &probe]);
        let after = waits();
        let is_known = Path::new(&format!("/proc/{}/sched", target.pid())).exists();
        if is_known && after.is_some() {
            assert_ne!(before, after, "{call} waits anew");
        }
        targets.push(target);
    }
    for (target, (_, _, result)) in targets.into_iter().zip(calls) {
        target.ends(&format!("{result}, the time was left alone\n"));
    }
}

/// A socket's timeout is not an argument.
#[test]
fn sockets_with_a_timeout_wait_for_the_rest() {
    let program = build("attached_waits.c", Kind::Pie, &[]);
    let probe = format!("{}:main+0 count", path(&program));
    let calls = ["recv", "accept", "send", "connect"];
    let mut arguments = vec!["10000"];
    // A call that starts again waits for the whole time after hodo has come. Not every kernel says how long a thread
    // has waited.
    if Path::new("/proc/self/sched").exists() {
        arguments.push("3500");
    }
    let targets: Vec<_> = (calls.iter())
        .map(|&call| Target::start_with(&program, &[&[call], arguments.as_slice()].concat()))
        .collect();
    // Time enough for four attachments on a busy machine.
    std::thread::sleep(Duration::from_secs(4));
    for target in &targets {
        run(target, &["probe", "--for", "0.01", "-e", &probe]);
    }
    for (target, call) in targets.into_iter().zip(calls) {
        let expected = "result -1, the time was left alone\n";
        assert_eq!(target.ended(), expected, "{call}");
    }
}

#[test]
fn later_thread_names_are_followed() {
    let program = build("attached_renames.c", Kind::Pie, &[]);
    let target = Target::start(&program);
    let (maps, threads) = (target.maps(), target.threads());
    let named = format!(
        "p:named {}:named number=$arg1:u64 name=$comm",
        path(&program)
    );
    let mut seen = std::collections::BTreeSet::new();
    seen_in_time("0.1", |time| {
        let output = run(
            &target,
            &["probe", "--for", time, "--format", "json", "-e", &named],
        );
        let lines = text(&output.stdout).lines();
        let events = lines.map(|line| serde_json::from_str(line).expect(line));
        for event in events.filter(|event: &serde_json::Value| event["name"] == "named") {
            let arguments = &event["args"];
            seen.insert(arguments["number"].to_string());
            let name = format!("name{}", arguments["number"]);
            assert_eq!(arguments["name"], name, "{event}");
        }
        target.is_untouched(&maps, threads);
        seen.len() == 3
    });
    target.ends("ended\n");
}
