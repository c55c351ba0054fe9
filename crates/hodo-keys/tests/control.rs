//! The thread that switches keys for others, and what clients may do to it.

use std::io::{ErrorKind, Read, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use hodo_keys::{define_static_key_false, expose, static_branch_unlikely, try_expose};

mod emulator;

define_static_key_false!(FIRST; SECOND; THIRD);

/// Other kinds of processors are mostly emulated, and ten to a hundred times as slow.
const SLOW: bool = cfg!(not(target_arch = "x86_64"));

/// Names of sockets of this process.
fn sockets() -> Vec<String> {
    let mine = format!("hodoscope-keys-{}-", std::process::id());
    let list = std::fs::read_to_string("/proc/net/unix").expect("there is /proc");
    let names = list.lines().filter_map(|line| line.split_once('@'));
    let mut names: Vec<String> = names
        .map(|(_, name)| name.to_owned())
        .filter(|name| name.starts_with(&mine))
        .collect();
    names.sort();
    names.dedup();
    names
}

fn connect() -> UnixStream {
    let name = sockets().pop().expect("the keys are exposed");
    let address = SocketAddr::from_abstract_name(name).expect("a short name");
    let stream = UnixStream::connect_addr(&address).expect("somebody listens");
    let patience = Some(Duration::from_secs(60));
    stream.set_read_timeout(patience).expect("it is a time");
    stream
}

fn rest(mut stream: UnixStream) -> String {
    let mut answer = String::new();
    match stream.read_to_string(&mut answer) {
        Ok(_) => answer,
        // Data that was sent but not read turns the end into this error.
        Err(error) if error.kind() == ErrorKind::ConnectionReset => answer,
        Err(error) => panic!("{error}: {answer}"),
    }
}

fn ask(request: &str) -> String {
    let mut stream = connect();
    stream.write_all(request.as_bytes()).expect("it is heard");
    rest(stream)
}

/// The thread's directory in /proc.
fn server() -> Option<std::path::PathBuf> {
    let tasks = std::fs::read_dir("/proc/self/task").expect("there is /proc");
    let mut tasks = tasks.map(|task| task.expect("it is there").path());
    tasks.find(|task| {
        std::fs::read_to_string(task.join("comm")).is_ok_and(|name| name.trim() == "hodo-keys")
    })
}

fn child(work: impl FnOnce() -> bool) {
    // SAFETY: the child runs what is tested, and exits without destructors.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
        // SAFETY: as above.
        unsafe { libc::_exit(i32::from(!done.unwrap_or(false))) };
    }
    let mut status = 0;
    // SAFETY: it is our child.
    let waited = unsafe { libc::waitpid(pid, &raw mut status, 0) };
    assert_eq!((waited, status), (pid, 0));
}

#[test]
fn keys_are_switched_by_a_request() {
    expose();
    expose();
    try_expose().expect("the keys are exposed");
    assert_eq!(sockets().len(), 1);
    assert!(!static_branch_unlikely!(FIRST));
    let answer = ask("enable control::FIRST\n");
    assert!(static_branch_unlikely!(FIRST));
    let line = r#"{"name":"control::FIRST","before":false,"enabled":true,"users":0,"initial":false,"branches":"#;
    assert!(answer.starts_with(line), "{answer}");
    assert!(
        answer.ends_with(",\"kind\":\"key\"}\n{\"done\":true}\n"),
        "{answer}"
    );
    // A client that shuts down its sending side has sent its whole request.
    let mut stream = connect();
    stream.write_all(b"disable FIRST").expect("it is heard");
    assert!(static_branch_unlikely!(FIRST));
    stream
        .shutdown(std::net::Shutdown::Write)
        .expect("it is open");
    assert!(rest(stream).ends_with("{\"done\":true}\n"));
    assert!(!static_branch_unlikely!(FIRST));
    assert_eq!(ask("list NONE\n"), "{\"unmatched\":[\"NONE\"]}\n");
}

#[test]
fn nonsense_is_answered_and_harms_nobody() {
    expose();
    let wrong = "{\"error\":\"the request is not one of list, enable and disable\"}\n";
    assert_eq!(ask("\n"), wrong);
    assert_eq!(ask("GET / HTTP/1.1\r\n\r\n"), wrong);
    let mut stream = connect();
    stream.write_all(b"\xff\xfe\0\n").expect("it is heard");
    assert_eq!(rest(stream), "{\"error\":\"the request is not UTF-8\"}\n");
    let mut stream = connect();
    // The answer may come before the whole request is sent.
    let _ = stream.write_all(&vec![b'x'; 1 << 20]);
    assert_eq!(rest(stream), "{\"error\":\"the request is too long\"}\n");
    // Nothing at all.
    let stream = connect();
    stream
        .shutdown(std::net::Shutdown::Write)
        .expect("it is open");
    assert_eq!(rest(stream), "");
    assert!(ask("list control::*\n").ends_with("{\"done\":true}\n"));
}

#[test]
fn silent_clients_are_dropped_and_delay_nobody() {
    expose();
    let begin = Instant::now();
    let mut silent: Vec<_> = (0..20).map(|_| connect()).collect();
    silent[3].write_all(b"enab").expect("it is heard");
    // They are dropped only later.
    silent[0].set_nonblocking(true).expect("it is open");
    let mut answered = 0;
    for _ in 0..50 {
        assert!(ask("list SECOND\n").ends_with("{\"done\":true}\n"));
        let still = silent[0]
            .read(&mut [0])
            .is_err_and(|e| e.kind() == ErrorKind::WouldBlock);
        answered += u32::from(still);
    }
    assert!(answered > 0);
    silent[0].set_nonblocking(false).expect("it is open");
    for stream in silent {
        assert_eq!(rest(stream), "");
    }
    assert!(begin.elapsed() > Duration::from_secs(2));
    // More than are served at once: later clients wait until others are dropped.
    let crowd: Vec<_> = (0..40).map(|_| connect()).collect();
    assert!(ask("list SECOND\n").ends_with("{\"done\":true}\n"));
    drop(crowd);
}

#[test]
fn many_clients_ask_and_some_disconnect() {
    expose();
    // A write to a closed socket ends programs that have this.
    // SAFETY: it is the default action.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        for number in 0..6 {
            let stop = &stop;
            scope.spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    let verb = ["enable", "disable"][number % 2];
                    if number < 4 {
                        assert!(ask(&format!("{verb} SECOND\n")).contains("control::SECOND"));
                    } else {
                        let mut stream = connect();
                        stream.write_all(b"list\n").expect("it is heard");
                    }
                }
            });
        }
        for _ in 0..if SLOW { 100 } else { 3000 } {
            THIRD.enable().expect("switched");
            assert!(static_branch_unlikely!(THIRD));
            THIRD.disable().expect("switched");
            assert!(!static_branch_unlikely!(THIRD));
        }
        stop.store(true, Ordering::Relaxed);
    });
    ask("disable SECOND\n");
    assert!(!static_branch_unlikely!(SECOND));
}

#[test]
fn the_thread_sleeps_and_takes_no_signals() {
    expose();
    assert!(ask("list THIRD\n").contains("control::THIRD"));
    let task = server().expect("there is the thread");
    let status = || std::fs::read_to_string(task.join("status")).expect("it lives");
    let field = |name: &str| {
        let status = status();
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        line.expect("the kernel tells it").trim().to_owned()
    };
    let blocked = u64::from_str_radix(&field("SigBlk:"), 16).expect("it is a number");
    for signal in [1, 2, 3, 10, 12, 13, 14, 15, 17, 20, 23, 28, 40, 64] {
        assert!(blocked >> (signal - 1) & 1 == 1, "signal {signal}");
    }
    // Otherwise setuid would wait for the thread forever.
    assert!(blocked >> (33 - 1) & 1 == 0);
    // Other tests may be sending requests.
    let sleeps = (0..100).any(|_| {
        let before = field("voluntary_ctxt_switches:");
        thread::sleep(Duration::from_millis(200));
        before == field("voluntary_ctxt_switches:")
    });
    assert!(sleeps, "{}", status());
}

#[test]
fn a_child_exposes_its_own_keys() {
    if emulator::lacks_children() {
        return;
    }
    expose();
    child(|| {
        let none = server().is_none() && sockets().is_empty();
        expose();
        let answer = ask("enable FIRST\n");
        none && static_branch_unlikely!(FIRST) && answer.contains("control::FIRST")
    });
    assert_eq!(sockets().len(), 1);
}

/// How the names of this process's sockets must begin.
fn own_name() -> String {
    let stat = std::fs::read_to_string("/proc/self/stat").expect("there is /proc");
    let fields = stat.rsplit(')').next().expect("the name has an end");
    let start = fields.split_whitespace().nth(19).expect("it has started");
    format!("hodoscope-keys-{}-{start}", std::process::id())
}

/// The second caller does not return before the first has finished.
#[test]
fn every_caller_returns_after_the_keys_are_exposed() {
    if emulator::lacks_children() {
        return;
    }
    for _ in 0..if SLOW { 20 } else { 150 } {
        child(|| {
            let name = format!("{}-0", own_name());
            let address = SocketAddr::from_abstract_name(name).expect("a short name");
            let missing = AtomicUsize::new(2);
            thread::scope(|scope| {
                let threads = [(); 2].map(|()| {
                    scope.spawn(|| {
                        // Both at the same moment.
                        missing.fetch_sub(1, Ordering::Relaxed);
                        while missing.load(Ordering::Relaxed) > 0 {
                            std::hint::spin_loop();
                        }
                        try_expose().is_ok() && UnixStream::connect_addr(&address).is_ok()
                    })
                });
                threads.map(|thread| thread.join().unwrap_or(false)) == [true; 2]
            })
        });
    }
}

#[test]
fn a_second_copy_of_the_crate_takes_another_name() {
    if emulator::lacks_children() {
        return;
    }
    child(|| {
        let name = own_name();
        let address = SocketAddr::from_abstract_name(format!("{name}-0")).expect("a short name");
        let _first = UnixListener::bind_addr(&address).expect("it is free");
        expose();
        sockets() == [format!("{name}-0"), format!("{name}-1")]
            && ask("list FIRST\n").contains("control::FIRST")
    });
}

#[test]
fn other_users_are_refused() {
    // SAFETY: it only asks who we are.
    if unsafe { libc::geteuid() } != 0 {
        eprintln!("not run: only root can become another user");
        return;
    }
    expose();
    child(|| {
        let name = format!("hodoscope-keys-{}-", std::os::unix::process::parent_id());
        let list = std::fs::read_to_string("/proc/net/unix").expect("there is /proc");
        let name = list
            .lines()
            .filter_map(|line| line.split_once('@'))
            .find(|(_, other)| other.starts_with(&name))
            .expect("the parent's keys are exposed");
        // SAFETY: the child has one thread.
        let became = unsafe { libc::setresuid(12345, 12345, 12345) };
        assert_eq!(became, 0);
        let address = SocketAddr::from_abstract_name(name.1).expect("a short name");
        let mut stream = UnixStream::connect_addr(&address).expect("somebody listens");
        // It may be refused before it has sent a request.
        let _ = stream.write_all(b"enable FIRST\n");
        rest(stream) == "{\"error\":\"not permitted: the process belongs to another user\"}\n"
    });
}
