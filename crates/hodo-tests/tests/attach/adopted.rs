//! Processes whose hodo was killed before it could detach: `hodo detach`, or the next hodo, undoes its changes.

use std::fs;
use std::io::{BufRead, Read, Write};
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use hodo_tests::probing::{path, text};
use hodo_tests::target::{Target, is_let_go};
use hodo_tests::{Kind, Trace, build, hodo, scratch};

fn children(pid: i32) -> Vec<i32> {
    let text = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    (text.split_whitespace())
        .map(|pid| pid.parse().expect("a number"))
        .collect()
}

fn kill(pid: i32) {
    // SAFETY: kill touches no memory.
    unsafe { libc::kill(pid, libc::SIGKILL) };
}

/// Kills hodo with all its processes.
fn kill_all(mut hodo: Child) {
    let pid = hodo.id().cast_signed();
    // While it is stopped, nobody else can begin to detach.
    let monitors = children(pid);
    monitors.into_iter().for_each(kill);
    kill(pid);
    hodo.wait().expect("its end");
}

fn start(options: &[&str], pid: i32) -> Child {
    Command::new(hodo())
        .args(options)
        .args(["-p", &pid.to_string()])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("hodo can be run")
}

fn detach(pid: i32) -> Output {
    let words = [
        "-s",
        "KILL",
        "300",
        path(hodo()),
        "detach",
        &pid.to_string(),
    ];
    let mut detach = Command::new("timeout");
    detach.args(words).output().expect("hodo can be run")
}

fn is_untraced(pid: i32) {
    let begun = Instant::now();
    let status = || fs::read_to_string(format!("/proc/{pid}/status")).expect("status");
    while !status().contains("TracerPid:\t0") {
        assert!(begun.elapsed() < Duration::from_secs(60), "{}", status());
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Attaches hodo to a process, and kills it while the threads run.
fn leave(target: &Target, program: &Path, options: &[&str]) {
    let hodo = start(options, target.pid());
    target.is_changed(program);
    // The threads reach the places where they usually are.
    std::thread::sleep(Duration::from_millis(50));
    kill_all(hodo);
    is_untraced(target.pid());
}

#[test]
fn changes_of_a_killed_hodo_are_undone() {
    let program = build("adopted.c", Kind::Pie, &[]);
    let file = path(&program);
    let target = Target::start(&program);
    let (maps, threads) = (target.maps(), target.threads());
    let place = scratch("changes_of_a_killed_hodo_are_undone");
    let data = place.join("data");
    let deep = format!("p:deep {file}:coroutine+* count");
    let leaf = format!("p:leaf {file}:leaf n=$arg1");
    let back = format!("r:back {file}:deep count");
    let all: [&[&str]; 3] = [
        &["record", "-d", path(&data)],
        &["record", "-l", "-d", path(&data)],
        &["probe", "-e", &deep, "-e", &leaf, "-e", &back],
    ];
    for options in all {
        leave(&target, &program, options);
        let output = detach(target.pid());
        assert!(output.status.success(), "{options:?}: {output:?}");
        assert!(output.stderr.is_empty(), "{output:?}");
        target.is_untouched(&maps, threads);
        // What was recorded until then can be read.
        if options[0] == "record" {
            assert!(Trace::new(data.clone()).calls().contains_key("leaf"));
        }
    }
    let output = detach(target.pid());
    assert!(output.status.success(), "{output:?}");
    assert!(text(&output.stderr).contains("hodo has left nothing in process"));
    target.ends("wrong: 0\n");
    fs::remove_dir_all(place).expect("the traces can be removed");
}

#[test]
fn the_next_recording_undoes_them_first() {
    let program = build("adopted.c", Kind::Pie, &[]);
    let target = Target::start(&program);
    let (maps, threads) = (target.maps(), target.threads());
    let place = scratch("the_next_recording_undoes_them_first");
    // The killed hodo may hold its directory for a moment longer than the process.
    let lost = place.join("lost");
    let data = place.join("data");
    leave(&target, &program, &["record", "-d", path(&lost)]);
    let pid = target.pid().to_string();
    let words = ["record", "--for", "0.2", "-d", path(&data), "-p", &pid];
    let output = Command::new(hodo()).args(words).output().expect("hodo");
    assert!(output.status.success(), "{output:?}");
    let said = text(&output.stderr);
    assert!(
        said.contains("restored what a killed hodo had left there"),
        "{said}"
    );
    assert_eq!(said.lines().count(), 1, "{said}");
    assert!(Trace::new(data).calls().contains_key("leaf"));
    target.is_untouched(&maps, threads);
    target.ends("wrong: 0\n");
    fs::remove_dir_all(place).expect("the traces can be removed");
}

#[test]
fn children_are_detached_by_their_own_process_ids() {
    let program = build("adopted.c", Kind::Pie, &[]);
    let mut target = Target::start(&program);
    let (maps, threads) = (target.maps(), target.threads());
    let place = scratch("children_are_detached_by_their_own_process_ids");
    leave(
        &target,
        &program,
        &["record", "-d", path(&place.join("data"))],
    );
    let mut input = target.input.as_ref().expect("its input");
    input.write_all(b"\n").expect("a line can be written");
    let mut line = String::new();
    target.output.read_line(&mut line).expect("a line");
    let child: i32 = line["child ".len()..].trim().parse().expect("a number");
    let listed = Command::new(hodo()).arg("detach").output().expect("hodo");
    for pid in [target.pid(), child] {
        assert!(text(&listed.stdout).contains(&format!("{pid} (adopted")));
    }
    for pid in [target.pid(), child] {
        let output = detach(pid);
        assert!(
            output.status.success() && output.stderr.is_empty(),
            "{output:?}"
        );
        is_let_go(pid);
    }
    target.is_untouched(&maps, threads);
    target.ends("wrong: 0\n");
    fs::remove_dir_all(place).expect("the trace can be removed");
}

#[test]
fn the_recording_process_is_named() {
    let program = build("adopted.c", Kind::Pie, &[]);
    let target = Target::start(&program);
    let place = scratch("the_recording_process_is_named");
    let hodo = start(&["record", "-d", path(&place.join("data"))], target.pid());
    target.is_changed(&program);
    let output = detach(target.pid());
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let monitor = children(hodo.id().cast_signed())[0];
    let said = text(&output.stderr);
    assert!(
        said.contains(&format!("kill {monitor}, ends that")),
        "{said}"
    );
    kill_all(hodo);
    is_untraced(target.pid());
    assert!(detach(target.pid()).status.success());
    target.ends("wrong: 0\n");
    fs::remove_dir_all(place).expect("the trace can be removed");
}

#[test]
fn a_damaged_ledger_changes_nothing() {
    let program = build("adopted.c", Kind::Pie, &[]);
    let target = Target::start(&program);
    let (maps, threads) = (target.maps(), target.threads());
    let place = scratch("a_damaged_ledger_changes_nothing");
    leave(
        &target,
        &program,
        &["record", "-d", path(&place.join("data"))],
    );
    let left = target.maps();
    let memory = fs::File::options()
        .read(true)
        .write(true)
        .open(format!("/proc/{}/mem", target.pid()))
        .expect("its memory");
    let mut begins = [0; 16];
    let at = left.lines().find_map(|line| {
        let at = u64::from_str_radix(line.split('-').next()?, 16).ok()?;
        memory.read_exact_at(&mut begins, at).ok()?;
        begins
            .windows(6)
            .any(|word| word == b"ledger")
            .then_some(at)
    });
    let at = at.expect("a ledger");
    for byte in [24, 100, 128, 140, 200, 1000] {
        let mut now = [0];
        memory.read_exact_at(&mut now, at + byte).expect("memory");
        memory
            .write_all_at(&[now[0] ^ 0x10], at + byte)
            .expect("memory");
        for words in [
            &["detach"][..],
            &["record", "-d", path(&place.join("other"))],
        ] {
            let pid = target.pid().to_string();
            let output = Command::new(hodo()).args(words).args(["-p", &pid]).output();
            let output = output.expect("hodo can be run");
            assert!(!output.status.success(), "{byte}: {output:?}");
            let said = text(&output.stderr);
            assert!(
                said.contains("damaged") || said.contains("left by"),
                "{byte}: {said}"
            );
        }
        memory.write_all_at(&now, at + byte).expect("memory");
        assert_eq!(target.maps(), left);
    }
    assert!(detach(target.pid()).status.success());
    target.is_untouched(&maps, threads);
    target.ends("wrong: 0\n");
    fs::remove_dir_all(place).expect("the trace can be removed");
}

/// A program that hodo has started continues without it, and so do its children.
#[test]
fn a_started_program_continues_as_if_alone() {
    let program = build("adopted.c", Kind::Pie, &[]);
    let place = scratch("a_started_program_continues_as_if_alone");
    let mut hodo = Command::new(hodo())
        .args(["record", "-d", path(&place.join("data"))])
        .arg(&program)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("hodo can be run");
    let (input, output) = (hodo.stdin.take(), hodo.stdout.take());
    let mut output = output.expect("a pipe");
    let mut begun = [0; 6];
    output.read_exact(&mut begun).expect("its first line");
    let pid = children(hodo.id().cast_signed())[0];
    std::thread::sleep(Duration::from_millis(50));
    kill_all_but_children(hodo);
    is_untraced(pid);
    let detached = detach(pid);
    assert!(
        detached.status.success() && detached.stderr.is_empty(),
        "{detached:?}"
    );
    is_let_go(pid);
    drop(input);
    let mut rest = String::new();
    output.read_to_string(&mut rest).expect("its output");
    assert_eq!(rest, "wrong: 0\n");
    fs::remove_dir_all(place).expect("the trace can be removed");
}

fn kill_all_but_children(mut hodo: Child) {
    kill(hodo.id().cast_signed());
    hodo.wait().expect("its end");
}

/// A thread's own signal has interrupted it right after the system call that sent it.
#[test]
fn an_interrupted_system_call_is_not_made_twice() {
    let program = build("adopted.c", Kind::Pie, &[]);
    let target = Target::start(&program);
    let (maps, threads) = (target.maps(), target.threads());
    let options = ["syscalls", "-o", "/dev/null", "--for", "0.3"];
    let mut hodo = start(&options, target.pid());
    assert!(hodo.wait().expect("its end").success());
    target.is_untouched(&maps, threads);
    target.ends("wrong: 0\n");
}

/// hodo's process group is killed. A program that has left the group continues; one that is in it dies too.
#[test]
fn killing_the_group_kills_only_its_members() {
    let program = build("adopted.c", Kind::Pie, &[]);
    for leaves in [true, false] {
        if leaves && Command::new("setsid").arg("true").status().is_err() {
            hodo_tests::skip("there is no setsid");
            continue;
        }
        let place = scratch(&format!("the_death_of_the_group-{leaves}"));
        let mut hodo = Command::new(hodo())
            .args(["record", "-d", path(&place.join("data")), "--"])
            .args(leaves.then_some("setsid"))
            .arg(&program)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .process_group(0)
            .spawn()
            .expect("hodo can be run");
        let (input, output) = (hodo.stdin.take(), hodo.stdout.take());
        let mut output = output.expect("a pipe");
        let mut begun = [0; 6];
        output.read_exact(&mut begun).expect("its first line");
        let pid = children(hodo.id().cast_signed())[0];
        std::thread::sleep(Duration::from_millis(50));
        kill(-hodo.id().cast_signed());
        hodo.wait().expect("its end");
        if leaves {
            is_untraced(pid);
            let detached = detach(pid);
            assert!(detached.status.success(), "{detached:?}");
            is_let_go(pid);
        }
        drop(input);
        let mut rest = String::new();
        output.read_to_string(&mut rest).expect("its output");
        assert_eq!(rest, if leaves { "wrong: 0\n" } else { "" });
        fs::remove_dir_all(place).expect("the trace can be removed");
    }
}

/// Nobody wants any more the USDT probes that a killed hodo wanted.
#[test]
fn semaphores_are_lowered() {
    let program = build("held.c", Kind::Pie, &[]);
    let mut target = Target::start(&program);
    let say = |target: &mut Target| {
        let input = target.input.as_mut().expect("its input");
        input.write_all(b"x").expect("it reads");
        let mut line = String::new();
        target.output.read_line(&mut line).expect("its output");
        line
    };
    assert_eq!(say(&mut target), "wanted: 0\n");
    let probe = format!("p:step {}:%tests:step", path(&program));
    leave(&target, &program, &["probe", "-e", &probe]);
    assert_eq!(say(&mut target), "wanted: 1\n");
    let output = detach(target.pid());
    assert!(output.status.success(), "{output:?}");
    assert_eq!(say(&mut target), "wanted: 0\n");
    is_let_go(target.pid());
    target.ends("");
}

/// A thread waits in a call that a hook has made, and will return to it: hodo's memory has to stay until later.
#[test]
fn what_detaching_has_left_is_removed_later() {
    let program = build("attached_awaits.c", Kind::Pie, &["-lgcc_s"]);
    let mut target = Target::start(&program);
    let (maps, threads) = (target.maps(), target.threads());
    let place = scratch("left_by_detaching");
    let mut hodo = start(&["record", "-d", path(&place)], target.pid());
    target.is_changed(&program);
    target
        .input
        .as_mut()
        .expect("its input")
        .write_all(b"x")
        .expect("a pipe");
    let mut line = String::new();
    target.output.read_line(&mut line).expect("a line");
    assert_eq!(line, "waits\n");
    // SAFETY: kill touches no memory.
    unsafe { libc::kill(hodo.id().cast_signed(), libc::SIGINT) };
    hodo.wait().expect("its end");
    assert_ne!(target.maps(), maps, "something is left");
    assert!(
        !detach(target.pid()).status.success(),
        "it cannot be removed yet"
    );
    let mut again =
        hodo_tests::target::command(&target, &["syscalls", "--for", "0.1", "-o", "/dev/null"]);
    let again = again.output().expect("hodo can be run");
    assert!(!again.status.success(), "{again:?}");
    target
        .input
        .as_mut()
        .expect("its input")
        .write_all(b"x")
        .expect("a pipe");
    line.clear();
    target.output.read_line(&mut line).expect("a line");
    assert_eq!(line, "walked\n");
    let detached = detach(target.pid());
    assert!(detached.status.success(), "{detached:?}");
    target.is_untouched(&maps, threads);
    target.ends("wrong: 0\n");
    let _ = std::fs::remove_dir_all(place);
}
