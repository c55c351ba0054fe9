//! What hodo cannot attach to, and what it then says.

use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use hodo_tests::target::Target;
use hodo_tests::{has_tool, hodo};

fn attach(pid: &str) -> Output {
    Command::new("timeout")
        .args(["-s", "KILL", "300"])
        .arg(hodo())
        .args(attaching(pid))
        .env("LC_ALL", "C")
        .output()
        .expect("hodo can be run")
}

fn attaching(pid: &str) -> [&str; 7] {
    let event = "p:x libc.so.6:read count";
    ["probe", "--for", "0.1", "-p", pid, "-e", event]
}

/// Attaching is refused, with a message that contains these pieces.
#[track_caller]
fn refused(output: &Output, pieces: &[&str]) {
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(125), "{said}");
    assert!(output.stdout.is_empty());
    assert!(
        said.starts_with("hodo: ") && said.lines().count() == 1,
        "{said}"
    );
    for piece in pieces {
        assert!(said.contains(piece), "{said:?} has no {piece:?}");
    }
}

/// A child that is killed when this is dropped.
struct Sleeper(Child);

impl Sleeper {
    fn new(command: &mut Command) -> Self {
        let child = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("it can be run");
        Self(child)
    }

    /// Waits until it sleeps.
    fn asleep(self) -> Self {
        let sleeps = [libc::SYS_nanosleep, libc::SYS_clock_nanosleep].map(|call| call.to_string());
        self.until("syscall", |call| {
            sleeps
                .iter()
                .any(|sleep| call.split(' ').next() == Some(sleep))
        });
        self
    }

    fn sleeping() -> Self {
        Self::new(Command::new("sleep").arg("100")).asleep()
    }

    /// Waits until a file in its directory of `/proc` is as expected.
    fn until(&self, file: &str, is: impl Fn(&str) -> bool) {
        let begun = Instant::now();
        let path = format!("/proc/{}/{file}", self.pid());
        loop {
            let text = std::fs::read_to_string(&path).expect("it is our child");
            if is(&text) {
                return;
            }
            assert!(begun.elapsed() < Duration::from_secs(60), "{path}: {text}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn pid(&self) -> String {
        self.0.id().to_string()
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn no_such_process() {
    refused(&attach("4194303"), &["there is no process 4194303"]);
}

#[test]
fn a_process_id_is_a_number() {
    let output = attach("first");
    assert_eq!(output.status.code(), Some(2));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        said.contains("is not a process ID: write a number from 1 on"),
        "{said}"
    );
}

#[test]
fn a_program_and_a_process_exclude_each_other() {
    let output = Command::new(hodo())
        .args(["record", "-p", "1", "--", "ls"])
        .output()
        .expect("hodo can be run");
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("cannot be used with"), "{said}");
}

#[test]
fn a_zombie() {
    let child = Command::new("true").spawn().expect("it can be run");
    let mut child = Sleeper(child);
    child.until("status", |text| text.contains("State:\tZ"));
    let pid = child.pid();
    refused(
        &attach(&pid),
        &[
            &pid,
            "(true) has ended",
            "has not yet collected its exit status",
        ],
    );
    child.0.wait().expect("its end");
}

/// At whatever stage hodo is.
#[test]
fn a_process_that_ends_during_attach() {
    const ROUNDS: u32 = 24;
    let mut ended = 0;
    // How long attaching takes here.
    let sleeper = Sleeper::sleeping();
    let begun = Instant::now();
    assert!(attach(&sleeper.pid()).status.success());
    let pause = begun.elapsed() / ROUNDS;
    // It takes more or less time on a machine that is busy.
    for round in 0..10 * ROUNDS {
        if round >= ROUNDS && ended > 3 {
            break;
        }
        let mut child = Sleeper::sleeping();
        let pid = child.pid();
        let killed = pid.clone();
        let kill = std::thread::spawn(move || {
            std::thread::sleep(pause * (round % ROUNDS));
            let killed = killed.parse().expect("its number");
            // SAFETY: the child has not been waited for.
            unsafe { libc::kill(killed, libc::SIGKILL) };
            // In half of the rounds, its exit status has not been collected yet.
            if round % 2 == 0 {
                child.0.wait().expect("its end");
            }
            child
        });
        let output = attach(&pid);
        drop(kill.join().expect("the thread ends well"));
        if output.status.success() {
            continue;
        }
        let said = String::from_utf8_lossy(&output.stderr);
        let early = [
            "there is no process",
            "no longer exists",
            "has ended: its parent",
        ];
        if early.iter().any(|piece| said.contains(piece)) {
            continue;
        }
        ended += 1;
        let pieces = [
            &pid,
            "(sleep) ended while hodo attached to it",
            "start its program under hodo",
        ];
        refused(&output, &pieces);
    }
    assert!(ended > 3, "{ended}");
}

/// A signal that comes while hodo is planning, here at the very start, must not be held back until hodo has attached.
#[test]
fn a_signal_before_anything_is_recorded() {
    let sleeper = Sleeper::sleeping();
    let mut command = Command::new(hodo());
    command.args(attaching(&sleeper.pid()));
    let interrupted = || {
        // SAFETY: all-zero is a valid sigset_t for sigemptyset to fill; the calls may be made between fork and exec. A
        // blocked signal waits across exec.
        unsafe {
            let mut set = std::mem::zeroed();
            libc::sigemptyset(&raw mut set);
            libc::sigaddset(&raw mut set, libc::SIGTERM);
            libc::sigprocmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut());
            libc::raise(libc::SIGTERM);
        }
        Ok(())
    };
    // SAFETY: the closure only does what is allowed there.
    unsafe { command.pre_exec(interrupted) };
    let output = command.output().expect("hodo can be run");
    refused(&output, &["interrupted before anything was recorded"]);
}

#[test]
fn a_thread_of_the_kernel() {
    if std::fs::read_to_string("/proc/2/comm").is_ok_and(|name| name == "kthreadd\n") {
        refused(&attach("2"), &["2 (kthreadd) is a thread of the kernel"]);
    }
}

#[test]
fn a_thread_other_than_the_first() {
    let thread = std::thread::spawn(|| {
        // SAFETY: gettid only returns a number.
        let tid = unsafe { libc::gettid() };
        refused(
            &attach(&tid.to_string()),
            &["is a thread of process", "attach to that"],
        );
    });
    thread.join().expect("the thread ends well");
}

#[test]
fn a_process_that_is_already_traced() {
    let sleeper = Sleeper::sleeping();
    let pid = sleeper.pid();
    let first = Sleeper::new(Command::new(hodo()).args([
        "probe",
        "-p",
        &pid,
        "-e",
        "p:x libc.so.6:read count",
    ]));
    sleeper.until("status", |text| !text.contains("TracerPid:\t0\n"));
    refused(
        &attach(&pid),
        &["hodo is attached to process", &pid, "already"],
    );
    drop(first);
}

#[test]
fn a_process_under_a_debugger() {
    let sleeper = Sleeper::sleeping();
    let pid: i32 = sleeper.0.id().cast_signed();
    // SAFETY: seizing takes no pointers.
    let seized = unsafe { libc::ptrace(libc::PTRACE_SEIZE, pid, 0, 0) };
    assert_eq!(seized, 0);
    refused(
        &attach(&pid.to_string()),
        &[
            "controlled by another tracer",
            "a process can have only one",
        ],
    );
}

#[test]
fn another_users_process() {
    // SAFETY: geteuid only returns a number.
    if unsafe { libc::geteuid() } != 0 {
        // That process is root's wherever it is visible.
        if std::path::Path::new("/proc/1/status").exists() {
            refused(
                &attach("1"),
                &["belongs to user root", "only that user and root"],
            );
        }
        return;
    }
    let sleeper = Sleeper::sleeping();
    let directory = std::env::temp_dir();
    let output = Command::new(hodo())
        .args([
            "probe",
            "-p",
            &sleeper.pid(),
            "-e",
            "p:x libc.so.6:read count",
        ])
        .current_dir(directory)
        .uid(65534)
        .gid(65534)
        .output();
    // If others cannot execute this hodo, nothing can be tested.
    if let Ok(output) = output {
        refused(
            &output,
            &["belongs to user root", "only that user and root"],
        );
    }
}

#[test]
fn a_seccomp_filter() {
    let mut command = Command::new("sleep");
    command.arg("100");
    // SAFETY: prctl is async-signal-safe; the filter lives through the call and allows everything.
    unsafe {
        command.pre_exec(|| {
            let allow = libc::sock_filter {
                code: 0x06,
                jt: 0,
                jf: 0,
                k: 0x7fff_0000,
            };
            let program = libc::sock_fprog {
                len: 1,
                filter: (&raw const allow).cast_mut(),
            };
            libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
            libc::prctl(libc::PR_SET_SECCOMP, 2, &raw const program);
            Ok(())
        });
    }
    let sleeper = Sleeper::new(&mut command).asleep();
    refused(&attach(&sleeper.pid()), &["is under a seccomp filter"]);
}

#[test]
fn a_limit_on_memory() {
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -v 1000000; exec sleep 100"]);
    let sleeper = Sleeper::new(&mut command).asleep();
    refused(
        &attach(&sleeper.pid()),
        &["has a limit on its address space (ulimit -v)", "prlimit"],
    );
}

#[test]
fn a_probe_without_a_place() {
    let sleeper = Sleeper::sleeping();
    let output = Command::new(hodo())
        .args([
            "probe",
            "-p",
            &sleeper.pid(),
            "-e",
            "p:x libc.so.6:nowhere count",
        ])
        .args(["--for", "0.1"])
        .output()
        .expect("hodo can be run");
    refused(&output, &["names no function"]);
}

#[test]
fn a_program_with_a_sanitizer() {
    if !has_tool("gcc") {
        return;
    }
    let program = hodo_tests::build_with(
        "gcc",
        &["attached.c"],
        &["-fsanitize=address", "-pthread", "-w"],
    );
    let target = Target::start(&program);
    refused(&attach(&target.pid().to_string()), &["cannot be traced"]);
}

/// With a small stack, hodo works in a second thread. Signals that it waits for must not end it through the first one.
#[test]
fn signals_are_awaited_with_a_small_stack_too() {
    let sleeper = Sleeper::sleeping();
    let pid = sleeper.pid();
    let file = format!("/proc/{pid}/maps");
    let mapped = || std::fs::read_to_string(&file).expect("it goes on");
    let before = mapped();
    let event = "p:x libc.so.6:read count";
    let hodo = Command::new("sh")
        .args(["-c", "ulimit -s 512; exec \"$@\"", "sh"])
        .arg(hodo())
        .args(["probe", "-p", &pid, "-e", event])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    let mut hodo = Sleeper(hodo.expect("hodo can be run"));
    let until = Instant::now() + Duration::from_secs(60);
    while mapped() == before {
        assert!(Instant::now() < until, "nothing is mapped");
        std::thread::sleep(Duration::from_millis(10));
    }
    let number = hodo.pid().parse().expect("its number");
    // SAFETY: it has not been waited for.
    unsafe { libc::kill(number, libc::SIGTERM) };
    let status = hodo.0.wait().expect("its end");
    assert_eq!(status.code(), Some(0), "{status}");
    assert_eq!(mapped(), before);
}
