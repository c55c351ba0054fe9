//! The engine comes to running processes (`hodo mem … -p`) and leaves them: they do not notice.

use std::collections::HashMap;
use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use hodo_dbi::{Listener, Message};
use hodo_mem::trace;
use hodo_tests::probing::{path, text};
use hodo_tests::target::{Target, command, is_let_go, run, seen_in_time};
use hodo_tests::{Kind, build, hodo, scratch};

/// Comes to a program this many times for each tool, and leaves it.
/// `is_steady`: its mappings and the number of its threads do not change.
fn rounds(source: &str, kind: Kind, times: u32, is_steady: bool) {
    let program = build(source, kind, &[]);
    let target = Target::start(&program);
    let (maps, threads) = (target.maps(), target.threads());
    for round in 0..times {
        let time = ["0.01", "0.05", "0.1"][round as usize % 3];
        // The last one hears of everything.
        for tool in ["none", "stat", "hot"] {
            run(&target, &["mem", tool, "--for", time]);
            match is_steady {
                true => target.is_untouched(&maps, threads),
                false => is_let_go(target.pid()),
            }
        }
    }
    target.ends("wrong: 0\n");
}

#[test]
fn calls_in_all_kinds_of_programs() {
    for kind in Kind::ALL.into_iter().filter(|kind| kind.is_available()) {
        rounds("attached.c", kind, 3, true);
    }
}

/// It may be in one of them, which would not be restarted any more.
#[test]
fn programs_with_restartable_sequences_are_left_alone() {
    let mut program = Command::new(build("sequences.c", Kind::Pie, &["-pthread"]))
        .arg("wait")
        .env("GLIBC_TUNABLES", "glibc.pthread.rseq=0")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("it can be run");
    let mut lines = BufReader::new(program.stdout.take().expect("its output")).lines();
    let mut line = || lines.next().expect("a line").expect("text");
    assert_eq!(line(), "ready");
    let pid = program.id().to_string();
    let refused = Command::new(hodo())
        .args(["mem", "none", "--for", "0.1", "-p", &pid])
        .output()
        .expect("hodo can be run");
    assert_eq!(refused.status.code(), Some(125), "{refused:?}");
    assert!(
        text(&refused.stderr).contains("restartable sequences"),
        "{refused:?}"
    );
    drop(program.stdin.take());
    assert_eq!(line(), "200000, the processor is known");
    assert!(program.wait().expect("its end").success());
}

macro_rules! programs {
    ($($name:ident $source:literal $times:literal $is_steady:literal;)*) => {
        $(
            #[test]
            fn $name() {
                rounds($source, Kind::Pie, $times, $is_steady);
            }
        )*
    };
}

programs! {
    exceptions_in_flight "attached.cc" 5 true;
    nested_handlers "attached_handlers.c" 10 true;
    spawned_programs "attached_spawns.c" 5 true;
    cancelled_threads "attached_cancelled.cc" 10 false;
    thrown_through_handlers "attached_throws.cc" 10 true;
    ignored_signals_interrupt_nothing "attached_ignored.c" 4 true;
    queued_signals_arrive_as_sent "attached_queued.c" 10 true;
    large_memory "attached_large.c" 2 true;
    contexts "attached_contexts.c" 10 true;
    children "attached_forks.c" 5 true;
    children_beside_threads_that_execute_new_code "attached_storm.c" 15 true;
}

/// Run by hand: `cargo nextest run -p hodo-tests --test cache_attach --run-ignored only`.
#[test]
#[ignore = "it takes minutes"]
fn five_hundred_attachments() {
    rounds("attached_handlers.c", Kind::Pie, 170, true);
}

#[test]
fn children_that_are_not_followed() {
    let target = Target::start(&build("attached_forks.c", Kind::Pie, &[]));
    for (round, time) in ["0.01", "0.1", "0.3"].iter().enumerate() {
        let tool = ["none", "stat", "cache"][round % 3];
        run(&target, &["mem", tool, "--no-follow", "--for", time]);
        is_let_go(target.pid());
    }
    target.ends("wrong: 0\n");
}

/// Calls that a stop interrupts, and that the kernel does not restart, go on, for the rest of their time.
#[test]
fn calls_that_wait_go_on() {
    let program = build("attached_waits.c", Kind::Pie, &[]);
    let calls = [
        ("epoll_wait", "result 0"),
        ("epoll_pwait2", "result 0"),
        ("sigtimedwait", "result -1"),
        ("semtimedop", "result -1"),
        ("recv", "result -1"),
        ("accept", "result -1"),
    ];
    let start = |(call, result)| (Target::start_with(&program, &[call, "4000"]), call, result);
    let targets: Vec<_> = calls.into_iter().map(start).collect();
    for (target, ..) in &targets {
        for tool in ["none", "stat"] {
            run(target, &["mem", tool, "--for", "0.05"]);
        }
    }
    for (target, call, result) in targets {
        let expected = format!("{result}, the time was left alone\n");
        assert_eq!(target.ended(), expected, "{call}");
    }
}

#[test]
fn what_runs_meanwhile_is_seen() {
    let program = build("attached.c", Kind::Pie, &[]);
    let target = Target::start(&program);
    let number = |output: &str, key: &str| {
        let value: serde_json::Value = serde_json::from_str(output).expect(output);
        value[key].as_u64().expect("a number")
    };
    seen_in_time("0.2", |time| {
        let output = run(&target, &["mem", "stat", "--format", "json", "--for", time]);
        let output = text(&output.stdout);
        number(output, "instructions") > 100_000 && number(output, "loads") > 10_000
    });
    let place = scratch("what_runs_meanwhile_is_seen");
    let data = place.join("data");
    run(
        &target,
        &["mem", "record", "--for", "0.2", "-d", path(&data)],
    );
    let recorded = |tool: &str, options: &[&str]| {
        let output = Command::new(hodo())
            .args(["mem", tool, "-d", path(&data)])
            .args(options)
            .output();
        let output = output.expect("hodo can be run");
        assert!(output.status.success(), "{output:?}");
        text(&output.stdout).to_owned()
    };
    assert!(number(&recorded("stat", &["--format", "json"]), "instructions") > 0);
    assert!(recorded("cache", &["--top", "1000"]).contains("leaf"));
    target.ends("wrong: 0\n");
    fs::remove_dir_all(place).expect("the recording can be removed");
}

#[test]
fn a_stopped_process_stays_stopped() {
    let program = build("attached.c", Kind::Pie, &[]);
    let target = Target::start(&program);
    let send = |signal| {
        // SAFETY: kill takes only numbers.
        assert_eq!(unsafe { libc::kill(target.pid(), signal) }, 0);
        std::thread::sleep(Duration::from_millis(50));
    };
    let is_stopped = || {
        let status = fs::read_to_string(format!("/proc/{}/status", target.pid()));
        let status = status.expect("status");
        let line = status.lines().find(|line| line.starts_with("State:"));
        line.expect("a state").contains("stopped")
    };
    // A thread that was traced runs for a moment before it stops again.
    let becomes = |stopped: bool| {
        let begun = Instant::now();
        while is_stopped() != stopped {
            assert!(begun.elapsed() < Duration::from_secs(30), "not {stopped}");
            std::thread::sleep(Duration::from_millis(5));
        }
    };
    send(libc::SIGSTOP);
    for _ in 0..3 {
        run(&target, &["mem", "none", "--for", "0.05"]);
        becomes(true);
        std::thread::sleep(Duration::from_millis(20));
        assert!(is_stopped(), "it runs on");
    }
    send(libc::SIGCONT);
    becomes(false);
    run(&target, &["mem", "none", "--for", "0.05"]);
    is_let_go(target.pid());
    target.ends("wrong: 0\n");
}

/// Part of the run of a program that is started for it.
#[test]
fn parts_of_a_run() {
    let script = "for i in 1 2 3 4 5 6 7 8 9; do sleep 0.1 | cat; done; echo ended; exit 3";
    let observed = |options: &[&str]| {
        let output = Command::new("timeout")
            .args(["-s", "KILL", "300"])
            .arg(hodo())
            .args(["mem", "stat", "--format", "json"])
            .args(options)
            .args(["--", "bash", "-c", script])
            .output();
        let output = output.expect("hodo can be run");
        assert_eq!(output.status.code(), Some(3), "{output:?}");
        assert_eq!(text(&output.stdout), "ended\n", "{output:?}");
        let value: serde_json::Value = serde_json::from_slice(&output.stderr).expect("JSON");
        value["instructions"].as_u64().expect("a number")
    };
    let all = observed(&[]);
    for part in [
        &["--for", "0.2"][..],
        &["--from", "0.3", "--for", "0.2"],
        &["--from", "0.3"],
    ] {
        let some = observed(part);
        assert!(some > 0 && some < all, "{part:?}: {some} of {all}");
    }
}

/// Parts that come again and again. Each has a thread.
#[test]
fn parts_that_are_repeated() {
    let threads = |result: &[u8]| {
        let value: serde_json::Value = serde_json::from_slice(result).expect("JSON");
        let number = |key: &str| value[key].as_u64().expect("a number");
        assert!(number("instructions") > 0);
        number("threads")
    };
    let script =
        "end=$((SECONDS + 3)); while ((SECONDS < end)); do i=$((i + 1)); done; echo ended; exit 3";
    for parts in [
        &["--for", "0.05"][..],
        &["--from", "0.2", "--for", "100k-insns"],
        &["--from", "100k-insns", "--for", "0.05"],
    ] {
        let output = Command::new("timeout")
            .args(["-s", "KILL", "300"])
            .arg(hodo())
            .args(["mem", "stat", "--format", "json", "--every", "0.3"])
            .args(parts)
            .args(["--", "bash", "-c", script])
            .output();
        let output = output.expect("hodo can be run");
        assert_eq!(output.status.code(), Some(3), "{output:?}");
        assert_eq!(text(&output.stdout), "ended\n", "{output:?}");
        assert!(threads(&output.stderr) > 1, "{parts:?}: {output:?}");
    }
    // Processes are about to execute a program, or to end, when hodo comes to them.
    let script = "for i in 1 2 3 4 5 6 7 8 9; do sleep 0.01; (exec sleep 0.01); done; exit 3";
    for _ in 0..10 {
        let output = Command::new("timeout")
            .args(["-s", "KILL", "300"])
            .arg(hodo())
            .args(["mem", "stat", "--every", "5ms", "--for", "2ms"])
            .args(["--", "bash", "-c", script])
            .output();
        let output = output.expect("hodo can be run");
        assert_eq!(output.status.code(), Some(3), "{output:?}");
    }
    let target = Target::start(&build("attached.c", Kind::Pie, &[]));
    let (maps, all) = (target.maps(), target.threads());
    let arguments = [
        "mem", "stat", "--format", "json", "--for", "0.05", "--every", "0.1",
    ];
    let output = interrupted(&target, &arguments, Duration::from_secs(2));
    assert!(threads(&output.stdout) > all as u64, "{output:?}");
    target.is_untouched(&maps, all);
    target.ends("wrong: 0\n");
}

/// Comes to a program, and is interrupted so long after that.
#[track_caller]
fn interrupted(target: &Target, arguments: &[&str], after: Duration) -> Output {
    let hodo = command(target, arguments)
        .stdout(Stdio::piped())
        .spawn()
        .expect("hodo can be run");
    target.is_attached();
    std::thread::sleep(after);
    let pid = hodo.id().cast_signed();
    // SAFETY: the process is a child of this one, which has not been waited for.
    unsafe { libc::kill(pid, libc::SIGINT) };
    let output = hodo.wait_with_output().expect("it ends");
    assert!(output.status.success(), "{output:?}");
    output
}

/// Instructions say when a part begins and ends: of the program all the time, or only of those that are observed.
#[test]
fn parts_are_repeated_by_instructions() {
    let program = build("counted_loop.c", Kind::Pie, &[]);
    let observed = |parts: &[&str]| {
        let output = Command::new("timeout")
            .args(["-s", "KILL", "300"])
            .arg(hodo())
            .args(["mem", "stat", "--format", "json"])
            .args(parts)
            .arg("--")
            .arg(&program)
            .output();
        let output = output.expect("hodo can be run");
        assert_eq!(output.status.code(), Some(3), "{output:?}");
        let value: serde_json::Value = serde_json::from_slice(&output.stderr).expect("JSON");
        let number = |key: &str| value[key].as_u64().expect("a number");
        (number("instructions"), number("threads"), output.stdout)
    };
    let (all, _, said) = observed(&[]);
    for parts in [
        &["--every", "100M-insns", "--for", "20M-insns"][..],
        &[
            "--every",
            "100M-insns",
            "--for",
            "20M-insns",
            "--from",
            "50M-insns",
        ],
        &[
            "--every",
            "100M-insns",
            "--for",
            "20M-insns",
            "--from",
            "50ms",
        ],
        &["--every", "100M-insns", "--for", "5ms"],
    ] {
        let (instructions, threads, output) = observed(parts);
        assert_eq!(output, said);
        // The program executes some billion. How fast, is not known.
        assert!((8..=40).contains(&threads), "{parts:?}: {threads}");
        let is_exact = parts[3] == "20M-insns";
        let some = if is_exact { threads * 20_000_000 } else { 1 };
        assert!(instructions >= some, "{parts:?}: {instructions}");
        assert!(instructions < all / 10 * 9, "{parts:?}: {instructions}");
    }
    let (target, arguments) = (
        Target::start(&build("attached.c", Kind::Pie, &[])),
        [
            "mem",
            "stat",
            "--format",
            "json",
            "--every",
            "30M-insns",
            "--for",
            "10M-insns",
        ],
    );
    let (maps, all) = (target.maps(), target.threads());
    interrupted(&target, &arguments, Duration::from_secs(2));
    target.is_untouched(&maps, all);
    target.ends("wrong: 0\n");
}

/// Blocks of code, as a trace has them.
#[derive(Default)]
struct Blocks {
    /// How many have the same instructions at the same address.
    all: HashMap<(u64, Vec<u8>), usize>,
}

impl Listener for Blocks {
    fn hear(&mut self, message: &Message) -> anyhow::Result<()> {
        if let Message::Block(block) = message {
            let key = (block.insns[0].pc, block.code.clone());
            *self.all.entry(key).or_default() += 1;
        }
        Ok(())
    }

    fn end(&mut self) -> anyhow::Result<()> {
        Ok(())
    }
}

/// Each part executes the same code, which is not more code for that.
#[test]
fn blocks_of_parts_are_the_same() {
    let directory = scratch("repeated.mem");
    let place = directory.to_str().expect("a path of text");
    let script = "end=$((SECONDS + 3)); while ((SECONDS < end)); do i=$((i + 1)); done";
    let status = Command::new(hodo())
        .args(["mem", "record", "--every", "0.1", "--for", "0.05"])
        .args(["-d", place, "--", "bash", "-c", script])
        .status();
    assert!(status.expect("hodo can be run").success());
    let mut blocks = Blocks::default();
    let file = directory.join("accesses.hodomem");
    let damage = trace::read(&file, &mut blocks).expect("it can be read");
    assert_eq!(damage, None);
    // Code that is executed often is translated in other ways then.
    let count: usize = blocks.all.values().sum();
    assert!(
        count < blocks.all.len() * 2,
        "{count} of {}",
        blocks.all.len()
    );
}

/// Whenever a signal comes, it is the end: also just before a part is over.
#[test]
fn parts_are_interrupted() {
    let target = Target::start(&build("attached.c", Kind::Pie, &[]));
    let (maps, all) = (target.maps(), target.threads());
    for round in 0..20 {
        let arguments = ["mem", "stat", "--for", "0.02", "--every", "0.021"];
        interrupted(&target, &arguments, Duration::from_millis(100 + round * 7));
        target.is_untouched(&maps, all);
    }
    target.ends("wrong: 0\n");
}

/// A part needs a length, and a recording has only one.
#[test]
fn repeated_parts_that_cannot_be() {
    for arguments in [
        &["--every", "1", "--", "true"][..],
        &["--every", "1", "--for", "1", "-d", "none"],
        &["--every", "0-insns", "--for", "1", "--", "true"],
    ] {
        let output = Command::new(hodo())
            .args(["mem", "stat"])
            .args(arguments)
            .output()
            .expect("hodo can be run");
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        assert!(text(&output.stderr).contains("--every"), "{output:?}");
    }
}

/// hodo finds no room for itself in the process, which runs on.
#[test]
fn a_process_without_room() {
    let program = build("attached.c", Kind::Pie, &[]);
    let target = Target::start(&program);
    let (maps, threads) = (target.maps(), target.threads());
    let status = fs::read_to_string(format!("/proc/{}/status", target.pid())).expect("status");
    let size = status.lines().find_map(|line| line.strip_prefix("VmSize:"));
    let size = size.and_then(|size| size.split_whitespace().next()?.parse::<u64>().ok());
    let size = size.expect("its size") << 10;
    // Room for nothing, for the table of targets, for code too but not for the threads.
    for more in [4 << 10, 8 << 20, 66 << 20] {
        let limit = libc::rlimit {
            rlim_cur: size + more,
            rlim_max: libc::RLIM_INFINITY,
        };
        let limit = &raw const limit;
        // SAFETY: prlimit only reads the limit.
        let set =
            unsafe { libc::prlimit(target.pid(), libc::RLIMIT_AS, limit, std::ptr::null_mut()) };
        assert_eq!(set, 0, "its limit cannot be changed");
        for tool in ["none", "stat"] {
            let output = command(&target, &["mem", tool, "--for", "0.1"]).output();
            let output = output.expect("hodo can be run");
            let said = text(&output.stderr);
            assert_eq!(output.status.code(), Some(125), "{more} {tool}: {said}");
            assert!(
                said.contains("refused") || said.contains("memory"),
                "{said}"
            );
            target.is_untouched(&maps, threads);
        }
    }
    target.ends("wrong: 0\n");
}

#[test]
fn processes_that_share_memory_are_refused() {
    let program = build("beside.c", Kind::Pie, &[]);
    for how in ["apart", "vfork"] {
        let target = Target::start_with(&program, &[how]);
        let (maps, threads) = (target.maps(), target.threads());
        let output = command(&target, &["mem", "none", "--for", "0.1"]).output();
        let output = output.expect("hodo can be run");
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(125), "{how}: {said}");
        assert!(said.contains("it shares its memory with process"), "{said}");
        target.is_untouched(&maps, threads);
        target.ends("ended\n");
    }
}

#[test]
fn what_cannot_be_attached_to() {
    let attach = |pid: &str| {
        let output = Command::new(hodo())
            .args(["mem", "none", "-p", pid])
            .output()
            .expect("hodo can be run");
        assert_eq!(output.status.code(), Some(125), "{output:?}");
        text(&output.stderr).to_owned()
    };
    assert!(attach("999999999").contains("there is no process 999999999"));
    assert!(attach("2").contains("process 2"));
}
