//! Calls that wait for as long as their socket says (`SO_RCVTIMEO`, `SO_SNDTIMEO`). A call takes that time when it
//! begins, and there is no argument for it. So the socket itself has what is left of it, from the moment at which the
//! thread goes on until it waits again; some microseconds, in which a call of another thread on the same socket would
//! take the shorter time, too.

use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::c_int;
use std::fs;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::{Duration, Instant};

use super::last_ran;
use crate::status::{call_of, status};

/// How long a thread may take to wait again.
const PATIENCE: Duration = Duration::from_millis(50);

thread_local! {
    static LEFT: RefCell<HashMap<i32, Left>> = RefCell::default();
    static AGAIN: RefCell<HashMap<i32, Again>> = RefCell::default();
}

/// A time of a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Timed {
    /// The descriptor in the thread's process, as the first argument has it.
    argument: u64,
    /// `SO_RCVTIMEO` or `SO_SNDTIMEO`.
    option: c_int,
}

/// A stopped thread is about to make such a call again, of which number and first argument are known.
#[derive(Debug)]
struct Left {
    call: (i64, u64),
    timed: Timed,
    /// For how long it had waited at a moment.
    waited: Duration,
    at: Instant,
}

/// A thread waits again since a moment of its processor's clock, and had waited before.
#[derive(Debug)]
struct Again {
    since: f64,
    waited: Duration,
}

/// The time that a call of a thread ends after, if it is on a socket that has one.
pub(super) fn timed(tid: i32, call: i64, arguments: &[u64]) -> Option<Timed> {
    let option = match call {
        libc::SYS_read
        | libc::SYS_readv
        | libc::SYS_recvfrom
        | libc::SYS_recvmsg
        | libc::SYS_recvmmsg
        | libc::SYS_accept
        | libc::SYS_accept4 => libc::SO_RCVTIMEO,
        libc::SYS_write
        | libc::SYS_writev
        | libc::SYS_sendto
        | libc::SYS_sendmsg
        | libc::SYS_sendmmsg
        | libc::SYS_connect => libc::SO_SNDTIMEO,
        _ => return None,
    };
    let argument = *arguments.first()?;
    let timed = Timed { argument, option };
    let link = fs::read_link(format!("/proc/{tid}/fd/{}", timed.fd())).ok()?;
    let is_socket = link.to_str()?.starts_with("socket:");
    (is_socket && timed.time(&timed.socket(tid)?).is_some()).then_some(timed)
}

impl Timed {
    /// Whether this is the first argument of the call.
    pub(super) fn is_of(self, argument: Option<u64>) -> bool {
        argument == Some(self.argument)
    }

    fn fd(self) -> i32 {
        self.argument as i32
    }

    /// The socket, as a descriptor of hodo's. `None`: Linux is older than 5.6, or it is closed.
    fn socket(self, tid: i32) -> Option<OwnedFd> {
        let process: i32 = status(tid, "Tgid:")?.parse().ok()?;
        // SAFETY: the calls take numbers only.
        let process = owned(unsafe { libc::syscall(libc::SYS_pidfd_open, process, 0) })?;
        // SAFETY: as above.
        owned(unsafe { libc::syscall(libc::SYS_pidfd_getfd, process.as_raw_fd(), self.fd(), 0) })
    }

    /// Its time, if it has one.
    fn time(self, socket: &OwnedFd) -> Option<Duration> {
        let mut time = libc::timeval {
            tv_sec: 0,
            tv_usec: 0,
        };
        let mut size = size_of_val(&time) as libc::socklen_t;
        // SAFETY: getsockopt writes no more than the size says to the time, and the size.
        let got = unsafe {
            libc::getsockopt(
                socket.as_raw_fd(),
                libc::SOL_SOCKET,
                self.option,
                (&raw mut time).cast(),
                &raw mut size,
            )
        };
        let time = Duration::new(
            time.tv_sec.try_into().ok()?,
            u32::try_from(time.tv_usec).ok()? * 1000,
        );
        (got == 0 && !time.is_zero()).then_some(time)
    }

    fn set_time(self, socket: &OwnedFd, time: Duration) {
        let time = libc::timeval {
            tv_sec: time.as_secs().cast_signed(),
            // Nothing would be for ever.
            tv_usec: i64::from(time.subsec_micros().max(u32::from(time.as_secs() == 0))),
        };
        // SAFETY: setsockopt reads the time.
        unsafe {
            libc::setsockopt(
                socket.as_raw_fd(),
                libc::SOL_SOCKET,
                self.option,
                (&raw const time).cast(),
                size_of_val(&time) as libc::socklen_t,
            );
        }
    }
}

fn owned(fd: libc::c_long) -> Option<OwnedFd> {
    let fd = i32::try_from(fd).ok().filter(|&fd| fd >= 0)?;
    // SAFETY: the kernel has just made this descriptor, and nobody else knows it.
    Some(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// For how long a thread had waited in the same call before this tracer stopped it, if it has not run since.
pub(super) fn before(tid: i32) -> Duration {
    let again = AGAIN.with_borrow_mut(|again| again.remove(&tid));
    let same = again.filter(|again| last_ran(&format!("/proc/{tid}")) == Some(again.since));
    same.map_or(Duration::ZERO, |again| again.waited)
}

/// A stopped thread is about to make this call again.
pub(super) fn shorten(tid: i32, (number, timed): (i64, Timed), waited: Duration, at: Instant) {
    let call = (number, timed.argument);
    let left = Left {
        call,
        timed,
        waited,
        at,
    };
    LEFT.with_borrow_mut(|all| all.insert(tid, left));
}

/// Has a stopped thread go on. If it is about to wait for a socket again, it waits for what is left.
pub fn resume<T>(tid: i32, go: impl FnOnce() -> T) -> T {
    let Some(left) = LEFT.with_borrow_mut(|all| all.remove(&tid)) else {
        return go();
    };
    let socket = left.timed.socket(tid);
    let time = socket.as_ref().and_then(|socket| left.timed.time(socket));
    let (Some(socket), Some(time)) = (socket, time) else {
        return go();
    };
    let waited = left.waited + left.at.elapsed();
    (left.timed).set_time(&socket, time.saturating_sub(waited));
    let gone = go();
    let state = state_again(tid, left.call);
    left.timed.set_time(&socket, time);
    match state {
        State::Waits => {
            if let Some(since) = last_ran(&format!("/proc/{tid}")) {
                AGAIN.with_borrow_mut(|all| all.insert(tid, Again { since, waited }));
            }
        }
        // It has not come to its call.
        State::Stopped => {
            LEFT.with_borrow_mut(|all| all.insert(tid, left));
        }
        State::Elsewhere => {}
    }
    gone
}

enum State {
    Waits,
    Stopped,
    Elsewhere,
}

/// What has become of a thread that has gone on to make a call again.
fn state_again(tid: i32, call: (i64, u64)) -> State {
    let begun = Instant::now();
    while begun.elapsed() < PATIENCE {
        let text = fs::read_to_string(format!("/proc/{tid}/stat")).unwrap_or_default();
        let state = text
            .rsplit_once(") ")
            .and_then(|(_, text)| text.chars().next());
        match state {
            Some('S') if is_in(tid, call) => return State::Waits,
            Some('t' | 'T') => return State::Stopped,
            None | Some('Z' | 'X') => break,
            _ => std::thread::yield_now(),
        }
    }
    State::Elsewhere
}

fn is_in(tid: i32, (number, argument): (i64, u64)) -> bool {
    call_of(tid)
        .is_some_and(|(now, arguments)| now == number && arguments.first() == Some(&argument))
}
