//! hodo gets any number of signals, in any order, while it is attached: the process always gets its code back.
//! The one exception, SIGKILL, is in `killed.rs`.

use std::fs;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use hodo_tests::probing::path;
use hodo_tests::target::Target;
use hodo_tests::{IS_SLOW, Kind, Trace, build, hodo, scratch};

/// All signals that can end or stop a process, except those that no process can handle.
const SIGNALS: [i32; 17] = [
    libc::SIGINT,
    libc::SIGTERM,
    libc::SIGHUP,
    libc::SIGQUIT,
    libc::SIGPIPE,
    libc::SIGUSR1,
    libc::SIGUSR2,
    libc::SIGALRM,
    libc::SIGVTALRM,
    libc::SIGPROF,
    libc::SIGTSTP,
    libc::SIGTTOU,
    libc::SIGCONT,
    libc::SIGXCPU,
    libc::SIGXFSZ,
    libc::SIGABRT,
    libc::SIGSEGV,
];

/// Numbers that follow from a seed.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x9E37_79B9_7F4A_7C15) % end
    }
}

fn child_of(pid: i32) -> Option<i32> {
    let text = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).ok()?;
    text.split_whitespace().next()?.parse().ok()
}

fn kill(pid: i32, signal: i32) {
    // SAFETY: kill touches no memory.
    unsafe { libc::kill(pid, signal) };
}

/// Waits for the end of a front, which may be stopped.
fn ended(front: &mut Child) -> ExitStatus {
    let begun = Instant::now();
    loop {
        if let Some(status) = front.try_wait().expect("its status") {
            return status;
        }
        assert!(begun.elapsed() < Duration::from_secs(60), "hodo goes on");
        kill(front.id().cast_signed(), libc::SIGCONT);
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn storm(seed: u64, target: &Target, maps: &str, threads: usize) {
    println!("seed {seed}");
    let mut random = Random(seed * 2 + 1);
    for _ in 0..8 {
        random.below(1);
    }
    let place = scratch(&format!("storm_{seed}"));
    let data = place.join("data");
    let mut words = vec!["record", "-d", path(&data)];
    if random.below(2) == 0 {
        words.push("-l");
    }
    let said = fs::File::create(place.join("said")).expect("a file");
    // Without a `timeout` in between, which would be in the group.
    let mut front = Command::new(hodo())
        .args(words)
        .args(["-p", &target.pid().to_string()])
        .stdout(Stdio::null())
        .stderr(said)
        .process_group(0)
        .spawn()
        .expect("hodo can be run");
    let pid = front.id().cast_signed();
    // Before that, there is nothing to undo.
    target.is_attached();
    let monitor = child_of(pid).expect("the front has a child");
    std::thread::sleep(Duration::from_micros(random.below(30_000)));
    let pause = [0, 100, 1000, 10_000][random.below(4) as usize];
    for _ in 0..[1, 2, 2, 3, 8, 40][random.below(6) as usize] {
        let to = [-pid, pid, monitor][random.below(3) as usize];
        kill(to, SIGNALS[random.below(SIGNALS.len() as u64) as usize]);
        std::thread::sleep(Duration::from_micros(random.below(pause + 1)));
    }
    kill(-pid, libc::SIGTERM);
    if random.below(2) == 0 {
        kill(pid, libc::SIGTERM);
    }
    let status = ended(&mut front);
    let said = fs::read_to_string(place.join("said")).expect("what it has said");
    assert_eq!(status.code(), Some(0), "{status}: {said}");
    target.is_untouched(maps, threads);
    // The trace is complete.
    Trace::new(data).calls();
    fs::remove_dir_all(place).expect("the trace can be removed");
}

fn storms(seeds: std::ops::Range<u64>) {
    let program = build("attached.c", Kind::Pie, &[]);
    let target = Target::start(&program);
    let (maps, threads) = (target.maps(), target.threads());
    for seed in seeds {
        storm(seed, &target, &maps, threads);
    }
    target.ends_perhaps_interrupted();
}

#[test]
fn no_signal_ends_hodo_before_it_has_detached() {
    storms(0..if IS_SLOW { 5 } else { 15 });
}

#[test]
#[ignore = "minutes: for changes of what hodo does about signals"]
fn no_signal_of_many_does() {
    let from = std::env::var("HODO_STORMS").ok();
    let from = from.map_or(15, |from| from.parse().expect("a number"));
    storms(from..from + 500);
}
