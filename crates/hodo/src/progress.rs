//! The progress of long recordings and reads, shown only on a terminal.

use std::fs::File;
use std::io::{self, IsTerminal, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use hodo_trace::format::{CHUNK_HEADER_SIZE, CHUNK_SIZE, RECORD_SIZE, file_header};

/// Anything that takes less time shows no progress.
const PATIENCE: Duration = Duration::from_millis(1500);
const INTERVAL: Duration = Duration::from_millis(500);

/// Shows progress until it is dropped.
#[derive(Debug)]
pub struct Progress {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// Where it is shown.
#[derive(Debug, Clone, Copy)]
enum Place {
    /// On a separate line, which is cleared at the end.
    Line,
    /// In the title of the terminal's window, because the screen belongs to the program.
    Title,
}

impl Place {
    fn show(self, text: &str) {
        let text = match self {
            Self::Line => format!("\r\x1b[K{text}"),
            Self::Title => format!("\x1b]0;{text}\x07"),
        };
        // If stderr cannot be written, progress does not matter.
        let _ = io::stderr().write_all(text.as_bytes());
    }

    fn begin(self) {
        if matches!(self, Self::Title) {
            // Save the current title.
            let _ = io::stderr().write_all(b"\x1b[22;0t");
        }
    }

    fn end(self) {
        let text: &[u8] = match self {
            Self::Line => b"\r\x1b[K",
            Self::Title => b"\x1b[23;0t",
        };
        let _ = io::stderr().write_all(text);
    }
}

/// Formats the progress: `bytes` of records in `seconds`.
fn text(what: &str, bytes: u64, seconds: u64) -> String {
    let events = bytes / RECORD_SIZE;
    let events = match events {
        0..10_000 => events.to_string(),
        10_000..10_000_000 => format!("{} k", events / 1000),
        _ => format!("{} M", events / 1_000_000),
    };
    format!(
        "hodo: {what} {events} events, {} MiB, {seconds} s",
        bytes >> 20
    )
}

fn is_pipe(stream: &impl AsRawFd) -> bool {
    // SAFETY: all-zero is a valid stat, which fstat fills.
    unsafe {
        let mut stat: libc::stat = std::mem::zeroed();
        libc::fstat(stream.as_raw_fd(), &raw mut stat) == 0
            && matches!(stat.st_mode & libc::S_IFMT, libc::S_IFIFO | libc::S_IFSOCK)
    }
}

/// Returns whether there is a terminal to show progress on. The command after us in a pipe may use the terminal.
fn has_terminal() -> bool {
    let terminal = std::env::var("TERM").unwrap_or_default();
    io::stderr().is_terminal()
        && !is_pipe(&io::stdout())
        && !["", "dumb", "linux"].contains(&terminal.as_str())
}

/// Returns how many bytes of records a trace has that is being written.
fn recorded(events: &Path) -> u64 {
    let mut chunks = [0; 8];
    let read = File::open(events)
        .and_then(|file| file.read_exact_at(&mut chunks, file_header::NEXT_CHUNK));
    match read {
        Ok(()) => u64::from_le_bytes(chunks).saturating_mul(CHUNK_SIZE - CHUNK_HEADER_SIZE),
        Err(_) => 0,
    }
}

impl Progress {
    /// Starts to show the progress of a recording into `data`.
    pub fn recording(data: &Path) -> Option<Self> {
        let events = data.join("events");
        let now = move |seconds| text("recording up to", recorded(&events), seconds);
        has_terminal().then(|| Self::start(Place::Title, now))
    }

    /// Starts to show the progress of reading.
    pub fn reading() -> Option<Self> {
        let now = |seconds| text("reading", hodo_trace::bytes_read(), seconds);
        has_terminal().then(|| Self::start(Place::Line, now))
    }

    /// Starts to show how far the observation of memory has come, which `done` says after a number of seconds. `runs`:
    /// a program runs meanwhile, and uses the screen.
    pub fn observing(runs: bool, done: impl Fn(u64) -> String + Send + 'static) -> Option<Self> {
        let place = if runs { Place::Title } else { Place::Line };
        let now = move |seconds| format!("hodo: {}{seconds} s", done(seconds));
        has_terminal().then(|| Self::start(place, now))
    }

    /// `now` says what to show after this many seconds.
    fn start(place: Place, now: impl Fn(u64) -> String + Send + 'static) -> Self {
        let (stop, stopped) = channel();
        let began = Instant::now();
        let run = move || {
            let mut pause = PATIENCE;
            let mut shown = false;
            while stopped.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) {
                if !shown {
                    place.begin();
                }
                shown = true;
                pause = INTERVAL;
                place.show(&now(began.elapsed().as_secs()));
            }
            if shown {
                place.end();
            }
        };
        // Signals are for the other threads: signals sent to a recorder are meant for its program.
        // SAFETY: sigfillset and pthread_sigmask write the sets that they are given.
        let thread = unsafe {
            let (mut all, mut before) = (std::mem::zeroed(), std::mem::zeroed());
            libc::sigfillset(&raw mut all);
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
            let thread = std::thread::Builder::new().spawn(run);
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, std::ptr::null_mut());
            thread
        };
        Self {
            stop: Some(stop),
            // If no thread can be started, no progress is shown.
            thread: thread.ok(),
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // The thread has ended or panicked, so it shows nothing any more.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_names_events_bytes_and_seconds() {
        assert_eq!(
            text("reading", 8 * 1234, 2),
            "hodo: reading 1234 events, 0 MiB, 2 s"
        );
        assert_eq!(
            text("recording up to", 100 << 20, 12),
            "hodo: recording up to 13 M events, 100 MiB, 12 s"
        );
    }

    #[test]
    fn the_bytes_of_a_recording_are_those_of_its_chunks() {
        let place = tempfile::tempdir().unwrap();
        let events = place.path().join("events");
        assert_eq!(recorded(&events), 0);
        let mut header = [0u8; 64];
        header[file_header::NEXT_CHUNK as usize] = 3;
        std::fs::write(&events, header).unwrap();
        assert_eq!(recorded(&events), 3 * (CHUNK_SIZE - CHUNK_HEADER_SIZE));
    }
}
