//! Changing a recording while it runs: `hodo live -p` for a process that hodo records.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Output, Stdio};
use std::time::Duration;

use hodo_tests::target::is_changed;
use hodo_tests::{Kind, Trace, build, hodo, make_fifo, scratch};

/// A program that is recorded.
struct Recorded {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<std::process::ChildStdout>,
    data: PathBuf,
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn child_of(pid: u32) -> Option<u32> {
    let path = format!("/proc/{pid}/task/{pid}/children");
    let children = fs::read_to_string(path).ok()?;
    children.split_whitespace().next()?.parse().ok()
}

impl Recorded {
    fn start(program: &Path, name: &str, options: &[&str]) -> Self {
        let mut this = Self::launch(program, name, options);
        this.says("begun");
        this
    }

    /// Like `start`, without waiting for the program.
    fn launch(program: &Path, name: &str, options: &[&str]) -> Self {
        Self::launch_with(program, &[], name, options)
    }

    fn launch_with(program: &Path, arguments: &[&str], name: &str, options: &[&str]) -> Self {
        let data = scratch(name).join("trace");
        let mut child = Command::new("timeout")
            .args(["-s", "KILL", "900"])
            .arg(hodo())
            .args(["record", "-d"])
            .arg(&data)
            .args(options)
            .arg(program)
            .args(arguments)
            .env("LC_ALL", "C")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("hodo can be run");
        let input = child.stdin.take();
        let output = BufReader::new(child.stdout.take().expect("a pipe"));
        Self {
            child,
            input,
            output,
            data,
        }
    }

    /// The program's process: the child of the child of `timeout`.
    fn pid(&self) -> u32 {
        let hodo = child_of(self.child.id()).expect("timeout has a child");
        child_of(hodo).expect("hodo has a child")
    }

    fn says(&mut self, expected: &str) {
        let mut line = String::new();
        self.output.read_line(&mut line).expect("a line");
        assert_eq!(line.trim_end(), expected);
    }

    fn does(&mut self, count: u32) {
        let input = self.input.as_mut().expect("its input");
        writeln!(input, "{count}").expect("it reads");
        self.says(&format!("did {count}"));
    }

    fn ends(mut self) -> Trace {
        drop(self.input.take());
        let mut rest = String::new();
        self.output.read_to_string(&mut rest).expect("its output");
        assert_eq!(rest, "wrong: 0\n");
        assert!(self.child.wait().expect("its end").success());
        Trace::new(std::mem::take(&mut self.data))
    }
}

impl Drop for Recorded {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn live(pid: u32, options: &[&str]) -> Output {
    Command::new("timeout")
        .args(["-s", "KILL", "300"])
        .arg(hodo())
        .args(["live", "-p", &pid.to_string()])
        .args(options)
        .env("LC_ALL", "C")
        .output()
        .expect("hodo can be run")
}

fn changes(pid: u32, options: &[&str]) -> String {
    let output = live(pid, options);
    assert!(output.status.success(), "{options:?}: {output:?}");
    assert!(output.stderr.is_empty(), "{output:?}");
    text(&output.stdout)
}

fn refused(output: &Output, texts: &[&str]) {
    assert_eq!(output.status.code(), Some(125), "{output:?}");
    let said = text(&output.stderr);
    for text in texts {
        assert!(said.contains(text), "{said:?} does not say {text:?}");
    }
}

/// How many rounds are recorded after each change.
const STEPS: [(u32, &[&str]); 9] = [
    (1, &[]),
    (2, &["--clear", "-F", "beta"]),
    (4, &["--clear", "-N", "beta"]),
    (8, &["--clear", "-F", "alpha", "-D", "2"]),
    (16, &["--clear", "--trace", "off"]),
    (32, &["--trace", "on"]),
    (64, &["--clear", "-P", "gamma_"]),
    (128, &["--clear", "-t", "1ms"]),
    (256, &["--clear", "-U", "alpha"]),
];

fn takes_steps(recorded: &mut Recorded) {
    for (rounds, options) in STEPS {
        if !options.is_empty() {
            let said = changes(recorded.pid(), options);
            assert!(said.contains("functions and calls are traced"), "{said}");
        }
        recorded.does(rounds);
    }
}

fn shows_steps(trace: &Trace) {
    let calls = trace.calls();
    let count = |name: &str| calls.get(name).copied().unwrap_or(0);
    assert_eq!(count("slow"), 1 + 4 + 32 + 128 + 256, "{calls:?}");
    // Any call takes long if something else runs in the meantime: while long calls are recorded, such a call is, too.
    let long = trace.calls_with(&["-t", "900us"]);
    for (name, expected) in [
        ("alpha", 1 + 4 + 8 + 32),
        ("beta", 1 + 2 + 8 + 32 + 256),
        ("gamma_", 1 + 2 + 32 + 64 + 256),
    ] {
        let most = expected + long.get(name).copied().unwrap_or(0);
        let seen = count(name);
        assert!(
            (expected..=most).contains(&seen),
            "{name}: {expected} to {most}; {calls:?}"
        );
    }
    assert_eq!(trace.log("change").len(), STEPS.len() - 1);
    let replay = trace.view("replay", &[]);
    assert_eq!(
        replay.matches("alpha()").count() as u64,
        count("alpha"),
        "the calls of all steps"
    );
    let info = trace.view("info", &[]);
    for text in [
        "-F 'alpha' -D 2 (after",
        "--trace off (after",
        "no filters (after",
    ] {
        assert!(info.contains(text), "{info}");
    }
}

#[test]
fn filters_depth_time_and_tracing_change_while_a_program_runs() {
    for kind in Kind::ALL
        .into_iter()
        .filter(|kind| kind.is_available() && kind.has_names())
    {
        let program = build("controlled.c", kind, &[]);
        let mut recorded = Recorded::start(&program, "control-steps", &[]);
        takes_steps(&mut recorded);
        shows_steps(&recorded.ends());
    }
}

#[test]
fn tracing_can_begin_switched_off() {
    let program = build("controlled.c", Kind::ALL[0], &[]);
    let mut recorded = Recorded::start(&program, "control-off", &["-g", "--trace", "off"]);
    recorded.does(3);
    changes(recorded.pid(), &["--trace", "on"]);
    recorded.does(4);
    let trace = recorded.ends();
    trace.has_calls(&[("alpha", 4), ("beta", 4), ("gamma_", 4), ("slow", 4)]);
}

/// The dynamic linker waits for somebody to read its output, and the program's sites wait for the dynamic linker.
#[test]
fn changes_before_libraries_are_loaded_apply_later() {
    let program = build("controlled.c", Kind::ALL[0], &[]);
    let fifo = scratch("control-early-fifo").join("fifo");
    make_fifo(&fifo);
    let mut full = fs::OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_NONBLOCK)
        .open(&fifo)
        .expect("the fifo");
    for size in [4096, 1] {
        while full.write(&vec![b'.'; size]).is_ok() {}
    }
    let script = format!("LD_DEBUG=libs exec \"$0\" 2>'{}'", fifo.display());
    let mut recorded = Recorded::launch(&program, "control-early", &["sh", "-c", &script]);
    let waits = || {
        let pid = child_of(child_of(recorded.child.id())?)?;
        let exe = fs::read_link(format!("/proc/{pid}/exe")).ok()?;
        let call = fs::read_to_string(format!("/proc/{pid}/syscall")).ok()?;
        let call = call.split(' ').next()?.parse().ok()?;
        Some(exe == program && [libc::SYS_write, libc::SYS_writev].contains(&call))
    };
    while waits() != Some(true) {
        std::thread::sleep(Duration::from_millis(20));
    }
    changes(recorded.pid(), &["-F", "beta"]);
    let mut reader = fs::File::open(&fifo).expect("the fifo");
    std::thread::spawn(move || std::io::copy(&mut reader, &mut std::io::sink()));
    recorded.says("begun");
    recorded.does(40);
    let trace = recorded.ends();
    trace.has_calls(&[("alpha", 0), ("beta", 40), ("gamma_", 40), ("slow", 0)]);
    // Readers leave out what lies outside `beta`. Here that would be hundreds of calls per millisecond.
    let events = trace.info()["events"].as_u64().expect("a number");
    assert!((160..20_000).contains(&events), "{events} events");
}

/// Makes this many changes, one after the other.
fn many(count: usize, program: &str, name: &str) {
    const ALL: [&[&str]; 8] = [
        &["-D", "3"],
        &["--clear", "-F", "leaf"],
        &["--trace", "off"],
        &["--trace", "on", "-N", "leaf"],
        &["--clear"],
        &["--clear", "-t", "1us"],
        &["-U", "leaf"],
        &["--clear", "-P", "leaf"],
    ];
    let program = build(program, Kind::ALL[0], &[]);
    let recorded = Recorded::start(&program, name, &[]);
    for index in 0..count {
        changes(recorded.pid(), ALL[index % ALL.len()]);
    }
    let trace = recorded.ends();
    assert_eq!(trace.log("change").len(), count);
    assert!(trace.log("remark").is_empty(), "{:?}", trace.log("remark"));
}

#[test]
fn two_hundred_changes_disturb_nothing() {
    many(200, "controlled.c", "control-many");
}

#[test]
fn changes_disturb_no_threads_in_calls_handlers_and_recursion() {
    many(40, "attached.c", "control-places");
}

#[test]
fn children_and_libraries_that_come_and_go_are_changed_too() {
    const ALL: [&[&str]; 5] = [
        &["-P", "malloc@libc", "-P", "work"],
        &["--clear", "-D", "2"],
        &["--clear", "-F", "work"],
        &["--trace", "off"],
        &["--trace", "on", "--clear"],
    ];
    let program = build("controlled_forks.c", Kind::ALL[0], &["-ldl"]);
    let recorded = Recorded::start(&program, "control-forks", &[]);
    for index in 0..30 {
        changes(recorded.pid(), ALL[index % ALL.len()]);
    }
    let trace = recorded.ends();
    assert_eq!(trace.log("change").len(), 30);
    let calls = trace.calls();
    // The program's functions are called through another name: inside the library.
    assert!(
        calls.contains_key("work") && calls.contains_key("malloc"),
        "{calls:?}"
    );
}

#[test]
#[ignore = "takes minutes"]
fn two_thousand_changes_disturb_nothing() {
    many(2000, "attached.c", "control-long");
}

#[test]
fn an_attached_process_changes_too_and_gets_its_code_back() {
    let program = build("controlled.c", Kind::ALL[0], &[]);
    let mut target = Command::new(&program)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the program can be run");
    let pid = target.id();
    let mut output = BufReader::new(target.stdout.take().expect("a pipe"));
    let mut line = String::new();
    output.read_line(&mut line).expect("a line");
    // The file may have been rebuilt in the meantime.
    let mapped = || {
        let maps = fs::read_to_string(format!("/proc/{pid}/maps")).expect("mappings");
        maps.replace(" (deleted)", "")
    };
    let maps = mapped();
    let data = scratch("control-attached").join("trace");
    let mut recorder = Command::new(hodo())
        .args(["record", "-p", &pid.to_string(), "-d"])
        .arg(&data)
        .stdin(Stdio::null())
        .spawn()
        .expect("hodo can be run");
    is_changed(pid.cast_signed(), &program);
    let mut input = target.stdin.take().expect("a pipe");
    let mut rounds = |count: u32| {
        writeln!(input, "{count}").expect("it reads");
        let mut line = String::new();
        output.read_line(&mut line).expect("a line");
        assert_eq!(line, format!("did {count}\n"));
    };
    rounds(1);
    changes(pid, &["-F", "beta"]);
    rounds(2);
    changes(pid, &["--clear", "--trace", "off"]);
    rounds(4);
    changes(pid, &["--trace", "on"]);
    rounds(8);
    // SAFETY: kill touches no memory.
    unsafe { libc::kill(recorder.id().cast_signed(), libc::SIGINT) };
    assert!(recorder.wait().expect("its end").success());
    assert_eq!(mapped(), maps);
    rounds(16);
    drop(input);
    let mut rest = String::new();
    output.read_to_string(&mut rest).expect("its output");
    assert_eq!(rest, "wrong: 0\n");
    assert!(target.wait().expect("its end").success());
    Trace::new(data).has_calls(&[("alpha", 9), ("beta", 11), ("gamma_", 11)]);
}

/// A change stops all threads. A socket's timeout is not an argument of the call, so it cannot be replaced by the time
/// that is left.
#[test]
fn a_socket_with_a_timeout_waits_for_what_is_left_after_a_change() {
    let program = build("attached_waits.c", Kind::Pie, &[]);
    let mut arguments = vec!["recv", "6000"];
    // A call that starts again waits for the whole time after the change. Not every kernel says how long a thread has
    // waited.
    if Path::new("/proc/self/sched").exists() {
        arguments.push("2500");
    }
    let mut recorded = Recorded::launch_with(&program, &arguments, "live-sockets", &[]);
    recorded.says("begun");
    std::thread::sleep(Duration::from_secs(3));
    changes(recorded.pid(), &["--trace", "off"]);
    recorded.says("result -1, the time was left alone");
    let mut rest = String::new();
    let output = &mut recorded.output;
    output.read_to_string(&mut rest).expect("its output");
    assert_eq!(rest, "");
}

#[test]
fn invalid_changes_are_reported_and_change_nothing() {
    let program = build("controlled.c", Kind::ALL[0], &[]);
    let mut recorded = Recorded::start(&program, "control-errors", &[]);
    let pid = recorded.pid();
    let none = ["-F 'no_such_function' matches no function"];
    refused(&live(pid, &["-F", "no_such_function"]), &none);
    refused(&live(pid, &["-N", "a("]), &["the pattern \"a(\""]);
    refused(
        &live(pid, &["--match", "glob", "-F", "a*"]),
        &["reads patterns as regular expressions"],
    );
    let said = [
        "hodo records process",
        &pid.to_string(),
        "already",
        "say what to change",
    ];
    refused(&live(pid, &[]), &said);
    let output = live(pid, &["-D", "0"]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    recorded.does(5);
    let trace = recorded.ends();
    assert!(trace.log("change").is_empty());
    trace.has_calls(&[("alpha", 5)]);
}

#[test]
fn processes_without_a_recording_cannot_be_changed() {
    refused(
        &live(u32::MAX >> 2, &["--trace", "on"]),
        &["no hodo records process"],
    );
    refused(
        &live(u32::MAX >> 2, &["--clear"]),
        &["no hodo records process"],
    );
    refused(&live(u32::MAX >> 2, &["-F", "a"]), &["there is no process"]);
    refused(
        &live(std::process::id(), &["--clear"]),
        &["no hodo records process"],
    );
}

#[test]
fn recordings_without_time_or_with_probes_refuse_some_changes() {
    let program = build("controlled.c", Kind::ALL[0], &[]);
    let recorded = Recorded::start(&program, "control-untimed", &["--no-time"]);
    refused(
        &live(recorded.pid(), &["-t", "1ms"]),
        &["has no timestamps"],
    );
    refused(
        &live(recorded.pid(), &["-F", "alpha"]),
        &["has no timestamps", "only --trace, -P and -U"],
    );
    changes(recorded.pid(), &["-U", "alpha"]);
    recorded.ends();
    let probe = format!("p {}:alpha", program.display());
    let recorded = Recorded::start(&program, "control-probes", &["-e", &probe]);
    refused(
        &live(recorded.pid(), &["-D", "1"]),
        &["this recording has probes"],
    );
    recorded.ends();
}

#[test]
fn garbage_on_the_socket_disturbs_nothing() {
    let program = build("controlled.c", Kind::ALL[0], &[]);
    let mut recorded = Recorded::start(&program, "control-garbage", &[]);
    let recorder = child_of(recorded.child.id()).expect("hodo");
    let connect = || {
        let name = format!("hodoscope-control-{recorder}");
        let address = SocketAddr::from_abstract_name(name).expect("a name");
        UnixStream::connect_addr(&address).expect("it listens")
    };
    let ask = |bytes: &[u8]| {
        let mut stream = connect();
        stream.write_all(bytes).expect("it reads");
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let mut answer = String::new();
        let _ = stream.read_to_string(&mut answer);
        answer
    };
    for garbage in [
        &b""[..],
        b"\n",
        b"hello\n",
        b"{}\n",
        b"\xff\xfe\n",
        b"{\"change\": 5}\n",
        b"{\"change\": {\"depth\": -1}}\n",
        b"{\"change\": {\"filter\": [1]}}\n",
        b"{\"change\": {\"match\": \"perl\"}}\n",
    ] {
        let answer = ask(garbage);
        let changed = answer.contains("\"done\"") && !garbage.starts_with(b"{\"change\": 5");
        assert!(!changed && !answer.is_empty(), "{garbage:?}: {answer}");
    }
    // This is longer than any request may be, and has no end.
    let mut stream = connect();
    let _ = stream.set_write_timeout(Some(Duration::from_secs(5)));
    let _ = stream.write_all(&vec![b'['; 4 << 20]);
    drop(stream);
    let silent = connect();
    recorded.does(2);
    changes(recorded.pid(), &["-F", "beta"]);
    drop(silent);
    recorded.does(4);
    recorded.ends().has_calls(&[("alpha", 2), ("beta", 6)]);
}

#[test]
fn another_user_is_refused() {
    // SAFETY: geteuid only returns a number.
    if unsafe { libc::geteuid() } != 0 {
        return;
    }
    let program = build("controlled.c", Kind::ALL[0], &[]);
    let recorded = Recorded::start(&program, "control-user", &[]);
    // A copy that others can execute.
    let place = std::env::temp_dir().join(format!("hodo-control-{}", std::process::id()));
    fs::create_dir_all(&place).expect("a directory");
    let copy = place.join("hodo");
    fs::copy(hodo(), &copy).expect("a copy");
    let output = Command::new(&copy)
        .args(["live", "-p", &recorded.pid().to_string(), "--trace", "off"])
        .uid(65534)
        .gid(65534)
        .current_dir("/")
        .output()
        .expect("hodo can be run");
    let _ = fs::remove_dir_all(&place);
    refused(
        &output,
        &[
            "the recording belongs to user root",
            "only that user and root",
        ],
    );
    assert!(recorded.ends().log("change").is_empty());
}
