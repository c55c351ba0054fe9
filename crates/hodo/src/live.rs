//! Shows a recording while it runs, in a separate thread, so that a slow reader of the output slows down nothing else.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use hodo_record::Clock;
use hodo_view::{Live, LiveOptions, Now};

use crate::interrupt;

/// How long to wait for more: after something new has come, and after nothing has.
const SOON: Duration = Duration::from_millis(10);
const IDLE: Duration = Duration::from_millis(40);
/// The same if the kernel is asked what descriptors refer to, which it forgets when they are closed.
const AT_ONCE: Duration = Duration::from_millis(1);

/// A file for output, and its name. Writing stops when hodo is interrupted.
struct Output(File, String);

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if interrupt::signal().is_some() {
            return Err(io::Error::other("interrupted"));
        }
        match self.0.write(bytes) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => self.write(bytes),
            Err(error) => {
                let text = format!("writing {}: {error}", self.1);
                Err(io::Error::new(error.kind(), text))
            }
            done => done,
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// Duplicates standard output or standard error as a file, so that writing does not wait for its lock.
///
/// # Errors
/// If there are no descriptors left.
pub fn stream(stream: &impl AsFd) -> Result<File> {
    let copy = stream.as_fd().try_clone_to_owned();
    Ok(copy.context("copying a descriptor")?.into())
}

/// Returns the name of an output for messages: the name of the file, or that of a standard stream.
pub fn named_output(path: Option<&Path>) -> String {
    path.map_or_else(
        || "the output".to_owned(),
        |path| path.display().to_string(),
    )
}

/// The function that shows a recording, until a thread takes it.
type Job = Arc<Mutex<Option<Box<dyn FnOnce() -> Result<()> + Send>>>>;

fn run_job(job: &Job) -> Result<()> {
    let job = job.lock().map_or(None, |mut job| job.take());
    job.map_or(Ok(()), |job| job())
}

/// Shows a recording while it runs.
pub struct Printer {
    stop: Sender<()>,
    /// Closed when the thread ends.
    ended: Receiver<()>,
    /// `None` if no thread could be started (`ulimit -u`). Then everything is shown at the end.
    thread: Option<JoinHandle<Result<()>>>,
    job: Job,
    /// The output, for what is written after the events.
    pub output: Option<File>,
}

impl Printer {
    /// Starts to show the recording that is about to be made in a directory. The output has a name for messages.
    pub fn start(
        data: &Path,
        options: LiveOptions,
        clock: Clock,
        (out, name): (File, String),
    ) -> Self {
        let output = out.try_clone().ok();
        let older = events(data);
        let data = data.to_owned();
        let (stop, stopped) = channel();
        let (running, ended) = channel();
        let run = move || {
            let _running = running;
            let mut live = None;
            let mut out = BufWriter::with_capacity(1 << 16, Output(out, name));
            let asks = matches!(&options, LiveOptions::Syscalls(options) if options.asks_kernel());
            let [soon, idle] = if asks { [AT_ONCE; 2] } else { [SOON, IDLE] };
            let mut pause = soon;
            loop {
                let over = stopped.recv_timeout(pause) != Err(RecvTimeoutError::Timeout);
                if live.is_none() && is_new(&data, older) {
                    live = Live::open(&data, &options)?;
                }
                let Some(view) = &mut live else {
                    match over {
                        true => return Ok(()),
                        false => continue,
                    }
                };
                if over {
                    break;
                }
                let hodo_record::Moment { counter, ns } = hodo_record::moment(clock);
                let found = view.round(Some(Now { counter, ns }), &mut out)?;
                out.flush()?;
                pause = if found { soon } else { idle };
            }
            live.map_or(Ok(()), |live| live.finish(&mut out))
        };
        let job: Job = Arc::new(Mutex::new(Some(Box::new(run))));
        let theirs = Arc::clone(&job);
        // Signals are for the other threads: signals sent to a recorder are meant for its program.
        // SAFETY: sigfillset and pthread_sigmask write the sets that they are given.
        let thread = unsafe {
            let (mut all, mut before) = (std::mem::zeroed(), std::mem::zeroed());
            libc::sigfillset(&raw mut all);
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
            let thread = std::thread::Builder::new().spawn(move || run_job(&theirs));
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, std::ptr::null_mut());
            thread
        };
        Self {
            stop,
            ended,
            thread: thread.ok(),
            job,
            output,
        }
    }

    /// Shows the rest when the recording is over.
    ///
    /// # Errors
    /// If the recording cannot be read, or the output cannot be written. It is not an error if nobody reads the output
    /// any more.
    pub fn finish(self) -> Result<()> {
        drop(self.stop);
        let Some(thread) = self.thread else {
            return run_job(&self.job);
        };
        // The reader of the output may be slow, or may never read. Then a signal ends the wait.
        while self.ended.recv_timeout(IDLE) == Err(RecvTimeoutError::Timeout) {
            if interrupt::signal().is_some() {
                bail!("interrupted");
            }
        }
        match thread.join() {
            Ok(shown) => shown,
            Err(_) => Err(anyhow::anyhow!(
                "the thread that shows the recording has panicked"
            )),
        }
    }
}

/// Identifies a file, whatever its name.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Identity {
    device: u64,
    inode: u64,
}

/// Identifies the `events` file in a directory.
fn events(data: &Path) -> Option<Identity> {
    let path: PathBuf = data.join("events");
    let meta = path.metadata().ok()?;
    Some(Identity {
        device: meta.dev(),
        inode: meta.ino(),
    })
}

/// Returns whether there is a recording other than the `older` one.
fn is_new(data: &Path, older: Option<Identity>) -> bool {
    events(data).is_some_and(|now| Some(now) != older)
}
