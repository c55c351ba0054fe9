//! hodo is killed at some moment. The program that it has started, or is attached to, continues and ends as it would
//! alone.

use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use hodo_tests::probing::path;
use hodo_tests::target::Target;
use hodo_tests::{Kind, Run, build, hodo, scratch};

/// How `hodo` records, and the options for it.
const RECORD: &[&str] = &["record", "--no-libcall"];
const RECORD_ALL: &[&str] = &["record", "-l"];
const PROBE: &[&str] = &["probe", "-e", "PROGRAM:*+* count"];
const SYSCALLS: &[&str] = &["syscalls"];

/// When it is killed.
#[derive(Debug, Clone, Copy)]
enum Moment {
    /// When its tracing thread makes a system call that changes something in the target, after this many such calls.
    Change(u32),
    /// After some time, with its whole process group.
    Time(Duration),
}

/// The options of hodo, with a directory for its output.
fn arguments(command: &[&str], program: &str, place: &Path) -> Vec<String> {
    let words = command.iter().map(|word| word.replace("PROGRAM", program));
    let mut words: Vec<String> = words.collect();
    let (option, name) = match command[0] {
        "record" => ("-d", "data"),
        _ => ("-o", "out"),
    };
    words.extend([option.to_owned(), path(&place.join(name)).to_owned()]);
    words
}

/// Waits for the next change of a thread's state.
fn wait(tid: i32) -> Option<i32> {
    let mut status = 0;
    // SAFETY: waitpid writes one int.
    let got = unsafe { libc::waitpid(tid, &raw mut status, libc::__WALL) };
    (got == tid && libc::WIFSTOPPED(status)).then_some(status)
}

fn request(request: libc::c_uint, tid: i32, data: i32) -> bool {
    // SAFETY: these requests take no pointers.
    unsafe { libc::ptrace(request, tid, 0, i64::from(data)) == 0 }
}

/// The number of the system call before which a thread has stopped.
fn call(tid: i32) -> Option<i64> {
    const PTRACE_GET_SYSCALL_INFO: libc::c_uint = 0x420e;
    let mut info = [0u64; 11];
    let size = size_of_val(&info);
    // SAFETY: at most that many bytes are written.
    unsafe { libc::ptrace(PTRACE_GET_SYSCALL_INFO, tid, size, info.as_mut_ptr()) };
    const ENTRY: u8 = 1;
    (info[0] as u8 == ENTRY).then_some(info[3].cast_signed())
}

/// Kills a hodo process when its first thread makes such a call, or after some time.
fn kill_at_change(tid: i32, number: u32) {
    const CHANGES: [i64; 2] = [libc::SYS_ptrace, libc::SYS_pwrite64];
    let begun = Instant::now();
    // The thread may already be gone.
    let seized = request(libc::PTRACE_SEIZE, tid, libc::PTRACE_O_TRACESYSGOOD);
    if seized && request(libc::PTRACE_INTERRUPT, tid, 0) {
        let mut left = number;
        while left > 0 && begun.elapsed() < Duration::from_secs(20) {
            let Some(status) = wait(tid) else {
                return;
            };
            let signal = match (status >> 16, libc::WSTOPSIG(status)) {
                (0, signal) if signal & 0x80 == 0 => signal,
                _ => 0,
            };
            let changes = call(tid).is_some_and(|call| CHANGES.contains(&call));
            left -= u32::from(changes);
            if left > 0 && !request(libc::PTRACE_SYSCALL, tid, signal) {
                return;
            }
        }
    }
    kill(tid);
    wait(tid);
}

fn kill(pid: i32) {
    // SAFETY: kill touches no memory.
    unsafe { libc::kill(pid, libc::SIGKILL) };
}

/// Kills all of hodo's processes. `tracer`: the one that traces.
fn kill_hodo(mut hodo: Child, tracer: i32, moment: Moment) {
    let pid = hodo.id().cast_signed();
    match moment {
        Moment::Change(number) => kill_at_change(tracer, number),
        Moment::Time(time) => std::thread::sleep(time),
    }
    kill(-pid);
    // The kernel notifies its parent once, and that may have been its tracer.
    let _ = hodo.wait();
}

/// Starts a program under hodo, which is then killed. The program must print `expected`, and end with `code`.
fn started(name: &str, command: &[&str], program: &[&str], moment: Moment, expected: &str) {
    // Processes orphaned by hodo become children of this process, which can then see how they end.
    // SAFETY: prctl takes numbers only.
    unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1) };
    let place = scratch(name);
    let mut hodo = Command::new(hodo())
        .args(arguments(command, program[0], &place))
        .arg("--")
        .args(program)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .process_group(0)
        .spawn()
        .expect("hodo can be run");
    let input = hodo.stdin.take();
    let mut output = hodo.stdout.take().expect("a pipe");
    let pid = hodo.id().cast_signed();
    let what = format!("{name}: {command:?}, {moment:?}");
    // The program is in hodo's group, which is not killed as a group here.
    match moment {
        Moment::Change(number) => kill_at_change(pid, number),
        Moment::Time(time) => std::thread::sleep(time),
    }
    kill(pid);
    let _ = hodo.wait();
    // It continues for a while.
    std::thread::sleep(Duration::from_millis(100));
    drop(input);
    let mut said = String::new();
    output.read_to_string(&mut said).expect("its output");
    let mut ends = Vec::new();
    loop {
        let mut status = 0;
        // SAFETY: waitpid writes one int.
        match unsafe { libc::waitpid(-1, &raw mut status, libc::__WALL) } {
            -1 => break,
            _ => ends.push(status),
        }
    }
    // The program may not have been executed yet. Then it never is, and the process that waited for hodo has ended.
    const NEVER: i32 = 125 << 8;
    let is_nothing = |&end: &i32| end == libc::SIGKILL || end == NEVER;
    if !(said.is_empty() && ends.iter().all(is_nothing)) {
        assert!(said.ends_with(expected), "{what}: {said:?}, {ends:x?}");
        assert!(
            ends.iter().all(|&end| end == 0 || end == libc::SIGKILL),
            "{what}: {said:?}, {ends:x?}"
        );
    }
    let _ = std::fs::remove_dir_all(place);
}

/// Waits until no thread of a process blocks signals: libc blocks them briefly.
fn block_nothing(pid: i32, what: &str) {
    let begun = Instant::now();
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).expect("its threads");
    for thread in threads.filter_map(Result::ok) {
        // A thread that is gone cannot be read.
        while let Ok(status) = std::fs::read_to_string(thread.path().join("status"))
            && let Some(mask) = status.lines().find_map(|line| line.strip_prefix("SigBlk:"))
            && mask.bytes().any(|digit| !b"0\t".contains(&digit))
        {
            let name = thread.file_name();
            assert!(
                begun.elapsed() < Duration::from_secs(10),
                "{what}: thread {name:?} of {pid} blocks {mask}"
            );
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Attaches to a program, and kills hodo.
fn attached(name: &str, command: &[&str], program: &Path, moment: Moment) {
    let place = scratch(name);
    println!("{name}: {command:?}, {moment:?}");
    let target = Target::start(program);
    let hodo = Command::new(hodo())
        .args(arguments(command, path(program), &place))
        .args(["-p", &target.pid().to_string()])
        .stdout(Stdio::null())
        .process_group(0)
        .spawn()
        .expect("hodo can be run");
    let front = hodo.id();
    let monitor = || {
        let children = std::fs::read_to_string(format!("/proc/{front}/task/{front}/children"));
        children.ok()?.split_whitespace().next()?.parse().ok()
    };
    let begun = Instant::now();
    let tracer = loop {
        match monitor() {
            Some(tracer) => break tracer,
            None => assert!(begun.elapsed() < Duration::from_secs(60), "no monitor"),
        }
        std::thread::sleep(Duration::from_micros(200));
    };
    kill_hodo(hodo, tracer, moment);
    std::thread::sleep(Duration::from_millis(100));
    block_nothing(target.pid(), &format!("{name}: {command:?}, {moment:?}"));
    target.ends("wrong: 0\n");
    let _ = std::fs::remove_dir_all(place);
}

fn program() -> std::path::PathBuf {
    build("killed.cc", Kind::Pie, &["-ldl"])
}

/// Numbers of changes from setup to following, the same in each run.
fn changes(count: u32, from: u32) -> impl Iterator<Item = Moment> {
    (0..count).map(move |index| Moment::Change(from + index * index * 2 + index))
}

#[test]
fn started_programs_outlive_hodo() {
    let program = program();
    let program = [path(&program)];
    for (index, moment) in changes(10, 3).enumerate() {
        let command = [RECORD, RECORD_ALL, SYSCALLS][index % 3];
        let name = format!("killed_started_{index}");
        started(&name, command, &program, moment, "wrong: 0\n");
    }
    for (index, command) in [RECORD, RECORD_ALL, PROBE].into_iter().enumerate() {
        let name = format!("killed_started_later_{index}");
        let moment = Moment::Time(Duration::from_millis(90 + 41 * index as u64));
        started(&name, command, &program, moment, "wrong: 0\n");
    }
}

#[test]
fn attached_programs_outlive_hodo() {
    let program = program();
    for (index, moment) in changes(8, 2).enumerate() {
        let command = [RECORD, RECORD_ALL, PROBE, SYSCALLS][index % 4];
        attached(
            &format!("killed_attached_{index}"),
            command,
            &program,
            moment,
        );
    }
    for (index, command) in [RECORD, RECORD_ALL].into_iter().enumerate() {
        let moment = Moment::Time(Duration::from_millis(150 + 37 * index as u64));
        let name = format!("killed_attached_later_{index}");
        attached(&name, command, &program, moment);
    }
}

#[test]
fn shells_outlive_hodo() {
    let script =
        "for i in $(seq 30); do x=$(echo $i); test $x = $i || exit 1; done; read line; echo done";
    for (index, moment) in changes(4, 60).enumerate() {
        let command = [RECORD, RECORD_ALL][index % 2];
        let name = format!("killed_shell_{index}");
        started(&name, command, &["sh", "-c", script], moment, "done\n");
    }
}

/// Kills hodo `times` times, at moments `step` apart, while signals arrive in its code in the target.
fn in_storms(name: &str, times: u32, step: Duration) {
    let program = build("killed_in_storms.c", Kind::Pie, &[]);
    for number in 0..times {
        let command = [RECORD, RECORD_ALL, PROBE][number as usize % 3];
        let moment = Moment::Time(Duration::from_millis(120) + step * number);
        let name = format!("{name}_{number}");
        started(&name, command, &[path(&program)], moment, "wrong: 0\n");
    }
}

/// hodo does not step threads that a signal has interrupted: the processor's step mode would outlive it.
#[test]
fn programs_in_a_storm_of_signals_outlive_hodo() {
    in_storms("killed_in_storms", 12, Duration::from_micros(13_300));
}

/// Nor those that a signal has interrupted in system calls of hodo's code.
#[test]
fn programs_that_load_libraries_in_a_storm_of_signals_outlive_hodo() {
    let program = build("killed_in_loads.c", Kind::Pie, &["-ldl"]);
    for number in 0..12 {
        let command = [RECORD, RECORD_ALL, PROBE, SYSCALLS][number as usize % 4];
        let moment =
            Moment::Time(Duration::from_millis(300) + Duration::from_micros(17_300) * number);
        let name = format!("killed_in_loads_{number}");
        started(&name, command, &[path(&program)], moment, "wrong: 0\n");
    }
}

/// The options with which hodo needs breakpoints in the next program. Where one instruction has room for a jump, they
/// must be asked for.
const TRAPS: &[&str] = match cfg!(target_arch = "aarch64") {
    true => &[
        "record",
        "--no-libcall",
        "--no-optimize",
        "-e",
        "p PROGRAM:tiny count",
    ],
    false => RECORD,
};

/// A program with functions that need a breakpoint, whose own SIGTRAP still ends it.
fn with_traps() -> std::path::PathBuf {
    build("killed_at_traps.c", Kind::Fixed, &["-pthread"])
}

/// Starts a program with an argument under hodo, which is killed when the program has begun. Its input ends then. It
/// must find nothing wrong, and end by this signal, or 0.
fn outlives(name: &str, command: &[&str], program: &Path, argument: &str, signal: i32) {
    let place = scratch(name);
    // SAFETY: prctl takes numbers only.
    unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1) };
    let mut hodo = Command::new(hodo())
        .args(arguments(command, path(program), &place))
        .args(["--", path(program), argument])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .process_group(0)
        .spawn()
        .expect("hodo can be run");
    let input = hodo.stdin.take();
    let mut output = BufReader::new(hodo.stdout.take().expect("a pipe"));
    let mut line = String::new();
    output.read_line(&mut line).expect("a line");
    assert_eq!(line, "begun\n");
    kill(hodo.id().cast_signed());
    hodo.wait().expect("its end");
    drop(input);
    let mut rest = String::new();
    output.read_to_string(&mut rest).expect("its output");
    let mut end = 0;
    // SAFETY: waitpid writes one int.
    while unsafe { libc::waitpid(-1, &raw mut end, libc::__WALL) } != -1 {}
    let ended = (rest.as_str(), end & 0x7F);
    assert_eq!(ended, ("wrong: 0\n", signal), "{command:?} {argument}");
    let _ = std::fs::remove_dir_all(place);
}

/// Functions that need a breakpoint do not end a program that is no longer traced. A signal that ends it alone still
/// does.
#[test]
fn programs_with_traps_outlive_hodo() {
    let program = with_traps();
    for (name, argument, signal) in [
        ("killed_at_traps", "goes_on", 0),
        ("killed_meets_traps", "meets", libc::SIGTRAP),
        ("killed_sends_traps", "sends", libc::SIGTRAP),
    ] {
        outlives(name, TRAPS, &program, argument, signal);
    }
}

/// Neither do probes that fetch values from unmapped memory.
#[test]
fn programs_with_fetches_that_fault_outlive_hodo() {
    let program = build("killed_at_fetches.c", Kind::Pie, &[]);
    let definitions = [
        "p PROGRAM:reader text=+0($arg1):string n=+8($arg2)",
        "p PROGRAM:reader n=+0($arg2) if n == 7 count",
        "p PROGRAM:reader text=+0($arg1):string hist:keys=text",
        "p PROGRAM:reader text=+0($arg1):string n=+0($arg2):x64[8] if text == \"text\"",
        "r PROGRAM:reader n=+0($retval)",
        "p PROGRAM:reader n=+0(+0($arg2)) stacktrace",
    ];
    for definition in definitions {
        let command = ["probe", "-e", definition];
        outlives("killed_at_fetches", &command, &program, "", 0);
    }
}

/// While it is traced, too, the program sees the default action; also if `sigaction` itself is traced.
#[test]
fn programs_with_traps_see_the_default_action() {
    let program = with_traps();
    for options in [&[][..], &["-l"]] {
        let probes = TRAPS[RECORD.len()..].iter();
        let mut words: Vec<String> = probes
            .map(|word| word.replace("PROGRAM", path(&program)))
            .collect();
        words.extend(options.iter().map(ToString::to_string));
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        Run::new("sees_no_handler", &program).same(&words);
    }
}

/// The same if hodo was attached; and after `hodo detach`, the action is the default one again.
#[test]
fn attached_programs_with_traps_outlive_hodo() {
    let program = with_traps();
    for argument in ["goes_on", "detached"] {
        let place = scratch("killed_attached_to_traps");
        let target = Target::start_with(&program, &[argument]);
        let hodo = Command::new(hodo())
            .args(arguments(TRAPS, path(&program), &place))
            .args(["-p", &target.pid().to_string()])
            .stdout(Stdio::null())
            .process_group(0)
            .spawn()
            .expect("hodo can be run");
        target.is_changed(&program);
        std::thread::sleep(Duration::from_millis(50));
        kill_hodo(hodo, 0, Moment::Time(Duration::ZERO));
        if argument == "detached" {
            let pid = target.pid().to_string();
            let detach = Command::new(hodo_tests::hodo())
                .args(["detach", &pid])
                .output();
            assert!(detach.expect("hodo can be run").status.success());
        }
        target.ends("wrong: 0\n");
        let _ = std::fs::remove_dir_all(place);
    }
}

/// Run by hand, like the next one.
#[test]
#[ignore = "it takes minutes"]
fn programs_outlive_hodo_at_every_moment_of_a_storm() {
    in_storms("killed_in_storms_long", 300, Duration::from_micros(1_370));
}

/// Run by hand: `cargo nextest run -p hodo-tests --test killed --run-ignored only`.
#[test]
#[ignore = "it takes minutes"]
fn programs_outlive_hodo_at_every_moment() {
    let program = program();
    for number in 1..400 {
        let command = [RECORD, RECORD_ALL, PROBE, SYSCALLS][number as usize % 4];
        let moment = Moment::Change(number);
        let name = format!("killed_long_{number}");
        started(&name, command, &[path(&program)], moment, "wrong: 0\n");
        attached(&name, command, &program, moment);
    }
}
