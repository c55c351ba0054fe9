//! Programs that are already running when hodo attaches to them.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Output, Stdio};
use std::time::{Duration, Instant};

use crate::build::only_builds;
use crate::hodo;

/// A program that runs until its input ends.
#[derive(Debug)]
pub struct Target {
    /// The `timeout` that runs it.
    pub child: Child,
    /// What it reads.
    pub input: Option<ChildStdin>,
    /// What it writes.
    pub output: BufReader<std::process::ChildStdout>,
}

impl Target {
    /// Starts it, and waits until it reports that it has begun.
    pub fn start(program: &Path) -> Self {
        Self::start_with(program, &[])
    }

    /// Like [`start`](Self::start), with arguments.
    ///
    /// # Panics
    /// If it cannot be run, or prints something else.
    pub fn start_with(program: &Path, arguments: &[&str]) -> Self {
        Self::start_in(program, arguments, &[])
    }

    /// Like [`start_with`](Self::start_with), with environment variables. Lines before `begun` are skipped.
    ///
    /// # Panics
    /// If it cannot be run, or does not begin.
    pub fn start_in(program: &Path, arguments: &[&str], environment: &[(&str, &str)]) -> Self {
        assert!(!only_builds(), "programs are only compiled");
        let mut child = Command::new("timeout")
            .args(["-s", "KILL", "900"])
            .arg(program)
            .args(arguments)
            .envs(environment.iter().copied())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the program can be run");
        let input = child.stdin.take();
        let mut output = BufReader::new(child.stdout.take().expect("a pipe"));
        let mut line = String::new();
        while line != "begun\n" {
            line.clear();
            let length = output.read_line(&mut line).expect("a line");
            assert!(length > 0, "it has ended before it began");
        }
        // Its threads reach the places where they will stay.
        std::thread::sleep(Duration::from_millis(100));
        Self {
            child,
            input,
            output,
        }
    }

    /// The program's process: the child of `timeout`.
    pub fn pid(&self) -> i32 {
        let path = format!("/proc/{0}/task/{0}/children", self.child.id());
        // The kernel's list may miss it while another one is added.
        for _ in 0..100 {
            let text = fs::read_to_string(&path).expect("timeout has a child");
            if let Ok(pid) = text.trim().parse() {
                return pid;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        panic!("timeout has no child, or several");
    }

    /// Its mappings, without the start of the first stack: the kernel lets that grow.
    pub fn maps(&self) -> String {
        let maps = fs::read_to_string(format!("/proc/{}/maps", self.pid())).expect("mappings");
        let lines = maps.lines().map(|line| match line.split_once('-') {
            Some((_, rest)) if line.ends_with("[stack]") => format!("-{rest}\n"),
            _ => format!("{line}\n"),
        });
        lines.collect()
    }

    /// Checks that nothing of hodo is left: no memory, no threads, and the code is that of the files.
    pub fn is_untouched(&self, maps: &str, threads: usize) {
        assert_eq!(self.maps(), maps, "what is mapped has changed");
        assert_eq!(self.threads(), threads);
        is_let_go(self.pid());
    }

    /// Waits until hodo is attached.
    pub fn is_changed(&self, program: &Path) {
        is_changed(self.pid(), program);
    }

    /// Waits until hodo traces it.
    ///
    /// # Panics
    /// If that takes too long.
    pub fn is_attached(&self) {
        let path = format!("/proc/{}/status", self.pid());
        let begun = Instant::now();
        while (fs::read_to_string(&path).expect("status")).contains("TracerPid:\t0") {
            assert!(begun.elapsed() < Duration::from_secs(60), "not attached");
            std::thread::sleep(Duration::from_micros(200));
        }
    }

    /// The number of its threads.
    pub fn threads(&self) -> usize {
        let tasks = fs::read_dir(format!("/proc/{}/task", self.pid()));
        tasks.expect("its threads").count()
    }

    /// Ends its input. It must succeed, and print `text`.
    pub fn ends(self, text: &str) {
        assert_eq!(self.ended(), text);
    }

    /// Ends its input. It must find nothing wrong but calls that signals or stops have interrupted, of which it prints
    /// lines. On AArch64, the kernel then no longer tells the first argument of such a call, so hodo cannot have it
    /// made again, unless it knows the argument from before the stop.
    ///
    /// # Panics
    /// If it finds anything else.
    pub fn ends_perhaps_interrupted(self) {
        let said = self.ended();
        let (told, count) = said.rsplit_once("wrong: ").expect("what was wrong");
        let count: usize = count.trim().parse().expect("a number");
        let is_expected =
            |line: &str| cfg!(target_arch = "aarch64") && line.contains("Interrupted system call");
        assert!(told.lines().all(is_expected), "{said}");
        assert!(told.lines().count() <= count, "{said}");
        assert_eq!(told.is_empty(), count == 0, "{said}");
    }

    /// Ends its input, and returns what it then prints. It must succeed.
    pub fn ended(mut self) -> String {
        drop(self.input.take());
        let mut rest = String::new();
        self.output.read_to_string(&mut rest).expect("its output");
        assert!(self.child.wait().expect("its end").success());
        rest
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A process's mappings of code from files, and the addresses where words differ from the file.
fn code(pid: i32, maps: &str) -> impl Iterator<Item = (&str, Vec<u64>)> {
    let memory = fs::File::open(format!("/proc/{pid}/mem")).expect("its memory");
    maps.lines().filter_map(move |line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        if fields.len() < 6 || !fields[1].contains('x') || !fields[5].starts_with('/') {
            return None;
        }
        let (start, end) = fields[0].split_once('-').expect("a range");
        let number = |text| u64::from_str_radix(text, 16).expect("a number");
        let mut now = vec![0; (number(end) - number(start)) as usize];
        memory.read_exact_at(&mut now, number(start)).expect("code");
        // The mapped file, whatever is now at its path; for those who may read it.
        let mapped = fs::read(format!("/proc/{pid}/map_files/{}", fields[0]));
        let file = mapped.or_else(|_| fs::read(fields[5])).expect("the file");
        let file = &file[number(fields[2]) as usize..];
        let len = now.len().min(file.len());
        let words = now[..len].chunks(4).zip(file[..len].chunks(4));
        let differ = (number(start)..).step_by(4).zip(words);
        let differ = differ.filter(|(_, (now, file))| now != file);
        Some((line, differ.map(|(at, _)| at).collect()))
    })
}

/// Asserts that a process has no tracer, and that its code is that of its files.
///
/// # Panics
/// If it is not so.
pub fn is_let_go(pid: i32) {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).expect("mappings");
    let mut compared = 0;
    for (line, changed) in code(pid, &maps) {
        assert!(
            changed.is_empty(),
            "{line}: the code has changed at {changed:x?}"
        );
        compared += 1;
    }
    assert!(compared > 0, "{maps}");
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("status");
    assert!(status.contains("TracerPid:\t0"), "{status}");
}

/// Waits until the code of a program to which hodo attaches differs from its file. Everything is changed before any of
/// its threads continues, so whatever it does from now on is seen.
///
/// # Panics
/// If that does not happen within a minute.
pub fn is_changed(pid: i32, program: &Path) {
    let path = program.to_str().expect("a path of text");
    let begun = Instant::now();
    loop {
        let maps = fs::read_to_string(format!("/proc/{pid}/maps")).expect("mappings");
        let own: Vec<&str> = maps.lines().filter(|line| line.ends_with(path)).collect();
        if code(pid, &own.join("\n")).any(|(_, changed)| !changed.is_empty()) {
            return;
        }
        assert!(begun.elapsed() < Duration::from_secs(60), "{maps}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Observes a process for this many seconds, and again for longer if it has hardly run in that time because the machine
/// is busy.
///
/// # Panics
/// If what is expected is not seen within half a minute either.
#[track_caller]
pub fn seen_in_time(seconds: &str, mut look: impl FnMut(&str) -> bool) {
    let times = [seconds, "1", "5", "30"];
    assert!(times.into_iter().any(&mut look), "not even in a long time");
}

/// A command of hodo for a process, with these options.
pub fn command(target: &Target, options: &[&str]) -> Command {
    let mut command = Command::new("timeout");
    command
        .args(["-s", "KILL", "300"])
        .arg(hodo())
        .args(options)
        .args(["-p", &target.pid().to_string()])
        .env("LC_ALL", "C");
    command
}

/// Runs the command: it must succeed and have nothing to say.
///
/// # Panics
/// If it does not.
pub fn run(target: &Target, options: &[&str]) -> Output {
    let output = command(target, options).output().expect("hodo can be run");
    assert!(output.status.success(), "{output:?}");
    assert!(output.stderr.is_empty(), "{output:?}");
    output
}
