//! The thread that answers requests.
//!
//! Clients may be slow, many, or gone. The thread waits for none of them: each gets a few seconds for everything, and a
//! limited number is served at a time. While there is none, the thread sleeps in one system call.

use std::format;
use std::io::{self, ErrorKind, Read, Write};
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::string::String;
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};
use std::time::{Duration, Instant};
use std::vec::Vec;

use hodo_sys::lock;
use hodo_sys::sys::{self, Poll};

use super::answer::{answer, error};
use crate::thread;

/// How many clients are served at a time; others wait until one has gone.
const CLIENTS: usize = 32;
/// Longest request, in bytes.
const LONGEST: usize = 1 << 16;
/// How long a client may take to send its request, and then to take its answer.
const PATIENCE: Duration = Duration::from_secs(3);
/// How long to wait before accepting again after a failure.
const AGAIN: Duration = Duration::from_millis(200);
/// How many copies of this crate in one process can be addressed.
const COPIES: u32 = 16;

/// The process whose thread serves; 0 if there is none. In a child of fork it is still the parent. [`STARTING`] is set
/// while the thread is being started.
static SERVING: AtomicU32 = AtomicU32::new(0);
/// No process has such an ID.
const STARTING: u32 = 1 << 31;

/// Starts the thread, unless this process has one.
pub fn start() -> io::Result<()> {
    let me = std::process::id();
    let mut before = SERVING.load(Ordering::Acquire);
    loop {
        if before == me {
            return Ok(());
        }
        // Another thread is starting it: no client can be served yet, and it may fail.
        if before == me | STARTING {
            lock::pause();
            before = SERVING.load(Ordering::Acquire);
            continue;
        }
        let (new, order) = (me | STARTING, Ordering::AcqRel);
        match SERVING.compare_exchange(before, new, order, Ordering::Acquire) {
            Ok(_) => break,
            Err(other) => before = other,
        }
    }
    leave_inherited(before & !STARTING);
    let started = listener().and_then(|listener| {
        LISTENER.store(listener.as_raw_fd(), Ordering::Relaxed);
        match thread::start("hodo-keys", move || serve(&listener)) {
            true => Ok(()),
            false => Err(io::Error::other("no thread can be started")),
        }
    });
    let serving = if started.is_ok() { me } else { 0 };
    SERVING.store(serving, Ordering::Release);
    started
}

/// The listener of the process that serves.
static LISTENER: AtomicI32 = AtomicI32::new(-1);

/// Closes the socket that a child inherited from its parent, if the descriptor is still that socket.
fn leave_inherited(parent: u32) {
    let file = LISTENER.swap(-1, Ordering::Relaxed);
    if parent == 0 || file < 0 {
        return;
    }
    // SAFETY: if it is not ours, it is left alone.
    let listener = ManuallyDrop::new(unsafe { UnixListener::from_raw_fd(file) });
    let address = listener.local_addr();
    let name = address.as_ref().ok().and_then(SocketAddr::as_abstract_name);
    if name.is_some_and(|name| name.starts_with(format!("{NAME}-{parent}-").as_bytes())) {
        drop(ManuallyDrop::into_inner(listener));
    }
}

/// How the names of sockets begin.
const NAME: &str = "hodoscope-keys";

/// A socket whose name no other process can have: it contains the process ID and the start time. A child of fork may
/// still hold the socket of a parent that has ended.
fn listener() -> io::Result<UnixListener> {
    let stat = std::fs::read_to_string("/proc/self/stat")?;
    // The fields from the third on, after the name, which may contain any characters. The 22nd is the start time.
    let fields = stat.rsplit(')').next().unwrap_or_default();
    let Some(start) = fields.split_ascii_whitespace().nth(22 - 3) else {
        return Err(io::Error::other("/proc/self/stat has no time of the start"));
    };
    let name = format!("{NAME}-{}-{start}", std::process::id());
    let mut result = Err(io::Error::from(ErrorKind::AddrInUse));
    for copy in 0..COPIES {
        let address = SocketAddr::from_abstract_name(format!("{name}-{copy}"))?;
        result = UnixListener::bind_addr(&address);
        match &result {
            Err(error) if error.kind() == ErrorKind::AddrInUse => {}
            _ => break,
        }
    }
    let listener = result?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// A client that sends a request or receives its answer.
struct Client {
    stream: UnixStream,
    until: Instant,
    /// The part of the request that has arrived.
    request: Vec<u8>,
    /// The answer, and how much of it was sent. `None` until the request is complete.
    answer: Option<(Vec<u8>, usize)>,
}

impl Client {
    /// Accepts a client. If it is not permitted, its answer says so.
    fn new(stream: UnixStream) -> Option<Self> {
        stream.set_nonblocking(true).ok()?;
        let (_, user) = sys::peer(stream.as_raw_fd()).ok()?;
        let mut client = Self {
            stream,
            until: Instant::now() + PATIENCE,
            request: Vec::new(),
            answer: None,
        };
        if user != 0 && user != sys::user() {
            client.reply(error("not permitted: the process belongs to another user"));
        }
        Some(client)
    }

    fn reply(&mut self, answer: String) {
        self.answer = Some((answer.into_bytes(), 0));
        self.until = Instant::now() + PATIENCE;
    }

    /// Reads and writes as much as possible without waiting. Returns false if the client is finished or gone.
    fn go_on(&mut self) -> bool {
        let mut more = [0; 4096];
        while self.answer.is_none() {
            match self.stream.read(&mut more) {
                // A client that has shut down its sending side may have sent a whole request.
                Ok(0) if self.request.is_empty() => return false,
                Ok(0) => self.request.push(b'\n'),
                Ok(count) => self.request.extend_from_slice(&more[..count]),
                Err(error) => return waits(&error),
            }
            if let Some(end) = self.request.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.request.drain(..end).collect();
                self.reply(answer(&line));
            } else if self.request.len() > LONGEST {
                self.reply(error("the request is too long"));
            }
        }
        let Some((answer, written)) = &mut self.answer else {
            return true;
        };
        while *written < answer.len() {
            match self.stream.write(&answer[*written..]) {
                Ok(0) => return false,
                Ok(count) => *written += count,
                Err(error) => return waits(&error),
            }
        }
        false
    }

    fn poll(&self) -> Poll {
        let events = match self.answer {
            None => sys::READABLE,
            Some(_) => sys::WRITABLE,
        };
        wait_for(self.stream.as_raw_fd(), events)
    }
}

/// Returns whether the error only means that nothing can be done now.
fn waits(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}

fn wait_for(file: i32, events: i16) -> Poll {
    Poll {
        file,
        events,
        seen: 0,
    }
}

fn serve(listener: &UnixListener) {
    let mut clients: Vec<Client> = Vec::new();
    let mut files = Vec::new();
    // When to accept clients again.
    let mut pause: Option<Instant> = None;
    loop {
        let now = Instant::now();
        pause = pause.filter(|until| *until > now);
        clients.retain(|client| client.until > now);
        let accepts = pause.is_none() && clients.len() < CLIENTS;
        let listening = if accepts { listener.as_raw_fd() } else { -1 };
        files.clear();
        files.push(wait_for(listening, sys::READABLE));
        files.extend(clients.iter().map(Client::poll));
        let ends = clients.iter().map(|client| client.until).chain(pause);
        let most = ends.min().map(|until| until.saturating_duration_since(now));
        sys::poll(&mut files, most);

        let mut seen = files[1..].iter().map(|file| file.seen != 0);
        clients.retain_mut(|client| !seen.next().unwrap_or(false) || client.go_on());
        while accepts && files[0].seen != 0 && clients.len() < CLIENTS {
            match listener.accept() {
                Ok((stream, _)) => clients.extend(Client::new(stream)),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                // The client is already gone, or there is no free descriptor.
                Err(_) => {
                    pause = Some(Instant::now() + AGAIN);
                    break;
                }
            }
        }
    }
}
