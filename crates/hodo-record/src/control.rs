//! Changes a running recording. The recorder listens on a socket in the abstract namespace whose name contains its
//! process ID. A second `hodo` finds the recorder as the tracer of a process, and asks it through this socket.
//!
//! A request and its answer are one line of JSON each. Only requests of the same user and of root are served.

use hodo_ptrace::processes;
use hodo_ptrace::threads::start;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::AsRawFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel, sync_channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use serde_json::{Value, json};

use crate::options::Match;
use hodo_ptrace as ptrace;

/// Maximum length of a request, in bytes.
const LONGEST: u64 = 1 << 20;
/// Maximum length of an answer, in bytes: a list of probes on each instruction of a large program.
const LONGEST_ANSWER: u64 = 1 << 30;
/// How long the other side may take to send its line.
const SAYING: Duration = Duration::from_secs(2);
/// How long a change may take.
const CHANGING: Duration = Duration::from_secs(60);
/// How often the recorder is woken until it looks for requests.
const WAKING: Duration = Duration::from_millis(5);
/// How often the listener checks whether the recording has ended, in milliseconds.
const LOOKING: i32 = 100;

/// What to change in a recording. An option that is given replaces the earlier ones of its kind; the others stay.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Changes {
    /// `--clear`: first removes all filters, and the limits on depth and time.
    pub clear: bool,
    /// `-F` patterns.
    pub filter: Vec<String>,
    /// `-N` patterns.
    pub notrace: Vec<String>,
    /// The order of the two: see [`hodo_trace::meta::in_order`].
    pub order: Vec<bool>,
    /// `-P` (true) and `-U` (false) patterns in the order given.
    pub patch: Vec<(bool, String)>,
    /// `-D`.
    pub depth: Option<u32>,
    /// `-t` in nanoseconds.
    pub time_filter: Option<u64>,
    /// `--trace`.
    pub trace: Option<bool>,
    /// `--match`.
    pub pattern: Option<Match>,
}

impl Changes {
    /// Whether this changes nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    fn request(&self) -> Value {
        json!({"change": {
            "clear": self.clear, "filter": self.filter, "notrace": self.notrace, "order": self.order, "patch": self.patch,
            "depth": self.depth, "time_ns": self.time_filter, "trace": self.trace,
            "match": self.pattern.map(|pattern| match pattern { Match::Regex => "regex", Match::Glob => "glob" }),
        }})
    }

    /// # Errors
    /// If the line is not a request.
    fn read(line: &str) -> Result<Self> {
        let value: Value = serde_json::from_str(line).context("this is not a request")?;
        let change = value.get("change").context("this is not a request")?;
        let field = |key: &str| change.get(key).filter(|value| !value.is_null());
        fn typed<T: serde::de::DeserializeOwned>(value: Option<&Value>) -> Result<Option<T>> {
            let read = |value: &Value| serde_json::from_value(value.clone());
            value
                .map(read)
                .transpose()
                .context("a value of the request has the wrong type")
        }
        Ok(Self {
            clear: typed(field("clear"))?.unwrap_or_default(),
            filter: typed(field("filter"))?.unwrap_or_default(),
            notrace: typed(field("notrace"))?.unwrap_or_default(),
            order: typed(field("order"))?.unwrap_or_default(),
            patch: typed(field("patch"))?.unwrap_or_default(),
            depth: typed(field("depth"))?,
            time_filter: typed(field("time_ns"))?,
            trace: typed(field("trace"))?,
            pattern: match typed::<String>(field("match"))?.as_deref() {
                None => None,
                Some("glob") => Some(Match::Glob),
                Some("regex") => Some(Match::Regex),
                Some(other) => bail!("patterns of the kind {other:?} are unknown"),
            },
        })
    }
}

/// What a client asks for.
#[derive(Debug)]
pub enum Request {
    /// To change the recording.
    Change(Box<Changes>),
    /// For the probes that are in place in a process.
    Armed(i32),
}

impl Request {
    /// # Errors
    /// If the line is not a request.
    fn read(line: &str) -> Result<Self> {
        let value: Value = serde_json::from_str(line).context("this is not a request")?;
        let Some(armed) = value.get("armed") else {
            return Ok(Self::Change(Box::new(Changes::read(line)?)));
        };
        let pid = armed.as_i64().and_then(|pid| i32::try_from(pid).ok());
        pid.map(Self::Armed).context("this is no process")
    }
}

/// The result of a request: a text for the user, or the reason why nothing has changed.
type Answer = Result<String>;

/// A request, and the channel for its answer.
type Asked = (Request, SyncSender<Answer>);

/// Where a recording receives requests.
#[derive(Debug)]
pub struct Control {
    asked: Receiver<Asked>,
    done: Arc<AtomicBool>,
}

impl Drop for Control {
    fn drop(&mut self) {
        self.done.store(true, Ordering::Release);
    }
}

fn address(recorder: i32) -> io::Result<SocketAddr> {
    SocketAddr::from_abstract_name(format!("hodoscope-control-{recorder}"))
}

/// The signal that wakes the recorder. Without a handler, it has no effect on any process.
const WAKE: i32 = libc::SIGURG;

extern "C" fn woken(_: i32) {}

fn mask(how: i32) {
    // SAFETY: all-zero is a valid sigset_t for sigemptyset to fill; the old mask is not requested.
    unsafe {
        let mut set = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        libc::sigaddset(&raw mut set, WAKE);
        libc::pthread_sigmask(how, &raw const set, std::ptr::null_mut());
    }
}

/// While this lives, requests interrupt waits.
pub struct Awake(());

impl Drop for Awake {
    fn drop(&mut self) {
        mask(libc::SIG_BLOCK);
    }
}

impl Control {
    /// Starts to listen on behalf of the calling thread.
    ///
    /// # Errors
    /// If the socket cannot be made.
    pub fn start() -> io::Result<Self> {
        let own = std::process::id().cast_signed();
        let listener = UnixListener::bind_addr(&address(own)?)?;
        listener.set_nonblocking(true)?;
        // SAFETY: gettid only returns a number; the handler does nothing, and all-zero is a valid sigaction.
        let thread = unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = woken as extern "C" fn(i32) as usize;
            libc::sigaction(WAKE, &raw const action, std::ptr::null_mut());
            libc::gettid()
        };
        // It must not interrupt other waits, which would take the interruption for their end.
        mask(libc::SIG_BLOCK);
        let (sender, asked) = channel();
        let done = Arc::new(AtomicBool::new(false));
        let end = Arc::clone(&done);
        start(move || listen(&listener, (own, thread), &sender, &end))?;
        Ok(Self { asked, done })
    }

    /// Lets requests interrupt waits.
    pub fn wakes(&self) -> Awake {
        mask(libc::SIG_UNBLOCK);
        Awake(())
    }

    /// The next request, and the channel for its answer.
    pub fn next(&self) -> Option<Asked> {
        self.asked.try_recv().ok()
    }
}

fn listen(
    listener: &UnixListener,
    recorder: (i32, i32),
    sender: &Sender<Asked>,
    done: &AtomicBool,
) {
    while !done.load(Ordering::Acquire) {
        let mut poll = libc::pollfd {
            fd: listener.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        };
        // SAFETY: poll reads and writes one structure.
        unsafe { libc::poll(&raw mut poll, 1, LOOKING) };
        let Ok((mut stream, _)) = listener.accept() else {
            continue;
        };
        let answer = serve(&stream, recorder, sender, done);
        let line = match answer {
            Ok(text) => json!({"done": text}),
            Err(error) => json!({"error": format!("{error:#}")}),
        };
        // A client that is gone gets no answer.
        let _ = writeln!(stream, "{line}");
    }
}

/// The process and user at the other end.
pub fn peer(stream: &UnixStream) -> io::Result<libc::ucred> {
    let mut peer = libc::ucred {
        pid: 0,
        uid: 0,
        gid: 0,
    };
    let mut size = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the kernel writes one ucred, of this size.
    let got = unsafe {
        libc::getsockopt(
            stream.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut peer).cast(),
            &raw mut size,
        )
    };
    match got {
        0 => Ok(peer),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Reads a line that must arrive within a time limit.
fn line(stream: &UnixStream, time: Duration, longest: u64) -> Result<String> {
    let end = Instant::now() + time;
    let mut reader = BufReader::new(stream).take(longest);
    let mut line = Vec::new();
    loop {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            bail!("it takes too long");
        }
        stream.set_read_timeout(Some(left))?;
        let got = reader.fill_buf().context("it takes too long")?;
        let (bytes, ended) = match got.iter().position(|&byte| byte == b'\n') {
            Some(at) => (at + 1, true),
            None => (got.len(), got.is_empty()),
        };
        line.extend_from_slice(&got[..bytes]);
        reader.consume(bytes);
        if ended {
            return String::from_utf8(line).context("this is no text");
        }
    }
}

/// Serves one request.
fn serve(
    stream: &UnixStream,
    (process, thread): (i32, i32),
    sender: &Sender<Asked>,
    done: &AtomicBool,
) -> Answer {
    const ENDED: &str = "the recording has just ended";
    let asked = stream
        .set_nonblocking(false)
        .and_then(|()| stream.set_write_timeout(Some(SAYING)))
        .and_then(|()| peer(stream))?;
    // Read the line in any case: unread data would break the connection.
    let line = line(stream, SAYING, LONGEST)?;
    // SAFETY: geteuid only returns a number.
    let own = unsafe { libc::geteuid() };
    if asked.uid != own && asked.uid != 0 {
        bail!(
            "the recording belongs to user {}: only that user and root may change it",
            processes::user_name(own)
        );
    }
    let request = Request::read(&line)?;
    let (answer, answers) = sync_channel(1);
    let sent = sender.send((request, answer));
    sent.map_err(|_| anyhow!(ENDED))?;
    let end = Instant::now() + CHANGING;
    loop {
        // SAFETY: the signal does nothing but interrupt a wait; if the thread has ended, none is found in this process.
        unsafe { libc::syscall(libc::SYS_tgkill, process, thread, WAKE) };
        match answers.recv_timeout(WAKING) {
            Ok(answer) => return answer,
            Err(RecvTimeoutError::Disconnected) => bail!(ENDED),
            Err(RecvTimeoutError::Timeout) if done.load(Ordering::Acquire) => {
                bail!(ENDED);
            }
            Err(RecvTimeoutError::Timeout) if Instant::now() > end => {
                bail!("the recording has not answered in time");
            }
            Err(RecvTimeoutError::Timeout) => {}
        }
    }
}

/// The process ID of the hodo that records process `pid`.
fn recorder(pid: i32) -> Option<i32> {
    let tracer = ptrace::status(pid, "TracerPid:")?.parse().ok()?;
    (tracer != 0 && ptrace::status(tracer, "Name:")? == "hodo").then_some(tracer)
}

/// Changes the recording of process `pid`, and returns what has changed. `None`: no hodo records it.
///
/// # Errors
/// Why it cannot be changed; it stays as it is then.
pub fn change(pid: i32, changes: &Changes) -> Result<Option<String>> {
    let Some(tracer) = recorder(pid) else {
        return Ok(None);
    };
    let named = processes::named(pid);
    if changes.is_empty() {
        bail!(
            "hodo records process {named} already, as process {tracer}: say what to change (-F, -N, -P, -U, -D, -t, \
             --trace, --clear)"
        );
    }
    ask(pid, tracer, &changes.request()).map(Some)
}

/// The probes that are in place in process `pid`, in the order of their addresses, as objects. `None`: no hodo records
/// it.
///
/// # Errors
/// If the recorder does not answer, or lists none of this process.
pub fn armed(pid: i32) -> Result<Option<Vec<Value>>> {
    let Some(tracer) = recorder(pid) else {
        return Ok(None);
    };
    let answer = ask(pid, tracer, &json!({"armed": pid}))?;
    let list = serde_json::from_str(&answer).context("the recorder is another version of hodo")?;
    Ok(Some(list))
}

/// Sends a request to the recorder of a process, and returns its answer.
fn ask(pid: i32, tracer: i32, request: &Value) -> Answer {
    let named = processes::named(pid);
    let connected = address(tracer).and_then(|address| UnixStream::connect_addr(&address));
    let mut stream = connected.with_context(|| {
        format!(
            "hodo records process {named}, as process {tracer}, but does not listen: it is about to begin or to end, or in \
             another container"
        )
    })?;
    if peer(&stream)?.pid != tracer {
        bail!("another process answers instead of the recorder, {tracer}");
    }
    writeln!(stream, "{}", request).context("asking the recorder")?;
    let answer = line(&stream, CHANGING + SAYING, LONGEST_ANSWER)
        .with_context(|| format!("waiting for the recorder, process {tracer}"))?;
    let answer: Value = serde_json::from_str(&answer)
        .with_context(|| format!("the recorder, process {tracer}, has ended in the meantime"))?;
    if let Some(text) = answer["done"].as_str() {
        return Ok(text.to_owned());
    }
    bail!("{}", answer["error"].as_str().unwrap_or("no answer"));
}
