//! Runs a program alone and traced.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::build::{only_builds, scratch};
use crate::tested::{TraceDirectory, hodo};
use crate::trace::Trace;

/// How a program ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// Exit status.
    Code(i32),
    /// Terminating signal.
    Signal(i32),
}

impl From<ExitStatus> for Ended {
    fn from(status: ExitStatus) -> Self {
        match (status.code(), status.signal()) {
            (Some(code), _) => Self::Code(code),
            (None, Some(signal)) => Self::Signal(signal),
            _ => unreachable!("a status that was waited for is one or the other"),
        }
    }
}

/// The visible behaviour of a run.
#[derive(Clone, PartialEq, Eq)]
pub struct Outcome {
    /// Standard output.
    pub stdout: Vec<u8>,
    /// Standard error.
    pub stderr: Vec<u8>,
    /// Exit status or signal.
    pub ended: Ended,
}

impl std::fmt::Debug for Outcome {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let text = |bytes: &[u8]| {
            let text = String::from_utf8_lossy(bytes);
            match text.char_indices().nth(2000) {
                Some((end, _)) => format!("{}… ({} bytes)", &text[..end], bytes.len()),
                None => text.into_owned(),
            }
        };
        writeln!(f, "{:?}", self.ended)?;
        writeln!(f, "-- stdout:\n{}", text(&self.stdout))?;
        write!(f, "-- stderr:\n{}", text(&self.stderr))
    }
}

/// A traced run.
#[derive(Debug)]
pub struct Traced {
    /// What the program showed, without hodo's own lines.
    pub outcome: Outcome,
    /// hodo's messages on stderr: the lines that begin with `hodo: `.
    pub remarks: String,
    /// What it recorded.
    pub trace: Trace,
}

/// A program and how to run it.
#[derive(Debug, Clone)]
pub struct Run {
    place: Arc<TraceDirectory>,
    command: Vec<OsString>,
    input: Vec<u8>,
    environment: Vec<(String, OsString)>,
    around: Vec<OsString>,
    stack: Option<u64>,
    timeout: Duration,
    interrupt: Option<Duration>,
    data: PathBuf,
}

impl Run {
    /// A run for the test of this name, which must be unique.
    pub fn new(test: &str, program: impl AsRef<OsStr>) -> Self {
        let seconds = std::env::var("HODO_TEST_TIMEOUT")
            .ok()
            .and_then(|s| s.parse().ok())
            .unwrap_or(300);
        let place = scratch(test);
        Self {
            data: place.join("data"),
            place: Arc::new(TraceDirectory(place)),
            command: vec![program.as_ref().to_owned()],
            input: Vec::new(),
            environment: Vec::new(),
            around: Vec::new(),
            stack: None,
            timeout: Duration::from_secs(seconds),
            interrupt: None,
        }
    }

    /// The program's arguments.
    #[must_use]
    pub fn args<S: AsRef<OsStr>>(mut self, args: impl IntoIterator<Item = S>) -> Self {
        self.command
            .extend(args.into_iter().map(|s| s.as_ref().to_owned()));
        self
    }

    /// What the program reads from standard input.
    #[must_use]
    pub fn input(mut self, input: impl Into<Vec<u8>>) -> Self {
        self.input = input.into();
        self
    }

    /// An environment variable.
    #[must_use]
    pub fn env(mut self, name: &str, value: impl AsRef<OsStr>) -> Self {
        self.environment
            .push((name.to_owned(), value.as_ref().to_owned()));
        self
    }

    /// A command that contains the whole run, including hodo, in its arguments: `unshare -m …`.
    #[must_use]
    pub fn inside<S: AsRef<OsStr>>(mut self, words: impl IntoIterator<Item = S>) -> Self {
        self.around = words.into_iter().map(|s| s.as_ref().to_owned()).collect();
        self
    }

    /// The stack size limit, in bytes.
    #[must_use]
    pub fn stack(mut self, bytes: u64) -> Self {
        self.stack = Some(bytes);
        self
    }

    /// The name of the trace in the test's directory.
    #[must_use]
    pub fn data(mut self, name: &str) -> Self {
        self.data = self.place().join(name);
        self
    }

    /// Sends SIGINT to the whole process group after this time, as a terminal would.
    #[must_use]
    pub fn interrupt_after(mut self, time: Duration) -> Self {
        self.interrupt = Some(time);
        self
    }

    /// The test's directory. `alone/` and `traced/` in it are the working directories.
    pub fn place(&self) -> &Path {
        &self.place.0
    }

    /// Runs the program by itself.
    pub fn alone(&self) -> Outcome {
        self.execute("alone", &self.command)
    }

    /// Runs the program under `hodo record` with these options.
    pub fn traced(&self, options: &[&str]) -> Traced {
        let mut command: Vec<OsString> = vec![hodo().into(), "record".into(), "-d".into()];
        command.push(self.data.clone().into());
        command.extend(options.iter().map(OsString::from));
        command.push("--".into());
        command.extend(self.command.iter().cloned());
        let mut outcome = self.execute("traced", &command);
        let mut remarks = String::new();
        let mut rest = Vec::new();
        for line in outcome.stderr.split_inclusive(|&b| b == b'\n') {
            if line.starts_with(b"hodo: ") {
                remarks.push_str(&String::from_utf8_lossy(line));
            } else {
                rest.extend_from_slice(line);
            }
        }
        outcome.stderr = rest;
        Traced {
            outcome,
            remarks,
            trace: Trace::of_run(self.data.clone(), self.place.clone()),
        }
    }

    /// Runs the program alone and under the instrumentation engine, bare and observed: all must show the same.
    pub fn same_in_cache(&self) {
        let alone = self.alone();
        let [counts, recording, misses] =
            ["stat", "mem", "cache"].map(|name| self.place().join(name));
        // The first run leaves where it has entered code, the second one what it has translated for that.
        let tools: [&[&OsStr]; 6] = [
            &["none".as_ref()],
            &["none".as_ref()],
            &["none".as_ref()],
            &["stat".as_ref(), "-o".as_ref(), counts.as_ref()],
            &["record".as_ref(), "-d".as_ref(), recording.as_ref()],
            &["cache".as_ref(), "-o".as_ref(), misses.as_ref()],
        ];
        for tool in tools {
            self.same_under(&alone, tool);
        }
        let counts = fs::read_to_string(&counts).expect("the counts can be read");
        assert!(counts.contains(" instructions\n"), "{counts}");
        // Some record gigabytes.
        let _ = fs::remove_dir_all(&recording);
    }

    /// Runs the program alone, in the code cache, and while it is counted there: all must show the same.
    pub fn same_in_cache_briefly(&self) {
        let alone = self.alone();
        let counts = self.place().join("stat");
        self.same_under(&alone, &["none".as_ref()]);
        self.same_under(&alone, &["stat".as_ref(), "-o".as_ref(), counts.as_ref()]);
    }

    /// Runs the program under a tool of `hodo mem`, which must show what it shows alone.
    fn same_under(&self, alone: &Outcome, tool: &[&OsStr]) {
        let mut command: Vec<OsString> = vec![hodo().into(), "mem".into()];
        command.extend(tool.iter().map(OsString::from));
        command.push("--".into());
        command.extend(self.command.iter().cloned());
        let cached = self.execute("cached", &command);
        assert_eq!(*alone, cached, "alone and in the cache differ ({tool:?})");
    }

    /// Runs the program alone and traced: both must show the same, and hodo must have nothing to say.
    pub fn same(&self, options: &[&str]) -> Trace {
        let (alone, traced) = (self.alone(), self.traced(options));
        assert_eq!(
            alone, traced.outcome,
            "alone and traced differ ({options:?}; hodo says: {})",
            traced.remarks
        );
        assert_eq!(traced.remarks, "", "({options:?})");
        traced.trace
    }

    fn execute(&self, name: &str, command: &[OsString]) -> Outcome {
        assert!(!only_builds(), "programs are only compiled");
        let file = |what: &str| self.place().join(format!("{name}.{what}"));
        let words: Vec<&OsString> = self.around.iter().chain(command).collect();
        let child = self.spawn(name, &words);
        let (mut child, status) = self.wait(child);
        let read = |what: &str| fs::read(file(what)).expect("the output can be read");
        let (stdout, stderr) = (read("stdout"), read("stderr"));
        let Some(status) = status else {
            let _ = child.wait();
            panic!(
                "{name} hangs: {words:?} ran for {:?}\n-- stdout:\n{}\n-- stderr:\n{}",
                self.timeout,
                String::from_utf8_lossy(&stdout),
                String::from_utf8_lossy(&stderr)
            );
        };
        Outcome {
            stdout,
            stderr,
            ended: status.into(),
        }
    }

    /// Starts a command in its own process group and working directory, with files for input and output.
    fn spawn(&self, name: &str, words: &[&OsString]) -> Child {
        let cwd = self.place().join(name);
        if cwd.exists() {
            fs::remove_dir_all(&cwd).expect("the last run's directory can be removed");
        }
        fs::create_dir(&cwd).expect("a working directory can be made");
        let file = |what: &str| self.place().join(format!("{name}.{what}"));
        let open = |what: &str| -> File {
            let _ = fs::remove_file(file(what));
            OpenOptions::new()
                .create(true)
                .append(true)
                .open(file(what))
                .expect("a file for the output can be made")
        };
        File::create(file("stdin"))
            .and_then(|mut f| f.write_all(&self.input))
            .expect("the input can be written");
        let mut child = Command::new(words[0]);
        child
            .args(&words[1..])
            .current_dir(&cwd)
            .stdin(Stdio::from(
                File::open(file("stdin")).expect("the input is there"),
            ))
            .stdout(open("stdout"))
            .stderr(open("stderr"))
            .env("LC_ALL", "C")
            .envs(self.environment.iter().map(|(k, v)| (k, v)))
            .process_group(0);
        let stack = self.stack;
        // SAFETY: setrlimit and signal are async-signal-safe.
        unsafe {
            child.pre_exec(move || {
                let limit = |which, bytes| {
                    let limit = libc::rlimit {
                        rlim_cur: bytes,
                        rlim_max: bytes,
                    };
                    match libc::setrlimit(which, &raw const limit) {
                        0 => Ok(()),
                        _ => Err(std::io::Error::last_os_error()),
                    }
                };
                limit(libc::RLIMIT_CORE, 0)?;
                stack.map_or(Ok(()), |bytes| limit(libc::RLIMIT_STACK, bytes))
            });
        }
        child
            .spawn()
            .unwrap_or_else(|e| panic!("{words:?} cannot be run: {e}"))
    }

    /// Waits until the program ends or the time is up (then there is no status). Interrupts it in between if that is
    /// wanted, and kills whatever it leaves running.
    fn wait(&self, mut child: Child) -> (Child, Option<ExitStatus>) {
        let group = -child.id().cast_signed();
        let started = Instant::now();
        let mut interrupt = self.interrupt;
        let status = loop {
            if let Some(status) = child.try_wait().expect("the child can be waited for") {
                break Some(status);
            }
            if interrupt.is_some_and(|after| started.elapsed() > after) {
                interrupt = None;
                // SAFETY: the group is that of the child, which has not been waited for.
                unsafe { libc::kill(group, libc::SIGINT) };
            }
            if started.elapsed() > self.timeout {
                break None;
            }
            std::thread::sleep(Duration::from_millis(2));
        };
        // SAFETY: as above; an error for a group without members does not matter.
        unsafe { libc::kill(group, libc::SIGKILL) };
        (child, status)
    }
}
