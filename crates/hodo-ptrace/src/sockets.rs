//! What the kernel knows of the sockets of other processes.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::LazyLock;

/// `NETLINK_SOCK_DIAG`.
const SOCK_DIAG: i32 = 4;
/// `SOCK_DIAG_BY_FAMILY`, `UDIAG_SHOW_PEER`, `UNIX_DIAG_PEER` of the kernel's `sock_diag.h` and `unix_diag.h`.
const BY_FAMILY: u16 = 20;
const SHOW_PEER: u32 = 4;
const PEER: u16 = 2;
/// The length of `struct nlmsghdr`, `struct unix_diag_req` and `struct unix_diag_msg`.
const HEADER: usize = 16;
const REQUEST: usize = 24;
const MESSAGE: usize = 16;

/// Whether the kernel knows what `AF_UNIX` sockets are connected to. No socket has the number 0: only a kernel that
/// knows no sockets at all says that there is none. Each such question may start a program that looks for a module.
static KNOWS_UNIX: LazyLock<bool> =
    LazyLock::new(|| ask(0).is_err_and(|error| error.raw_os_error() == Some(libc::EINVAL)));

/// Returns the number of the socket to which the `AF_UNIX` socket of this number is connected, in hodo's own network
/// namespace.
#[must_use]
pub fn unix_peer(number: u64) -> Option<u64> {
    let number = u32::try_from(number).ok()?;
    match *KNOWS_UNIX {
        true => ask(number).ok()?,
        false => None,
    }
}

/// Asks for the peer of a socket.
fn ask(number: u32) -> io::Result<Option<u64>> {
    let mut request = Vec::with_capacity(HEADER + REQUEST);
    request.extend(((HEADER + REQUEST) as u32).to_ne_bytes());
    request.extend(BY_FAMILY.to_ne_bytes());
    request.extend((libc::NLM_F_REQUEST as u16).to_ne_bytes());
    // Sequence number and sender: there is one question only.
    request.extend([0; 8]);
    request.extend([libc::AF_UNIX as u8, 0, 0, 0]);
    // Sockets in all states. There is no cookie.
    for word in [u32::MAX, number, SHOW_PEER, u32::MAX, u32::MAX] {
        request.extend(word.to_ne_bytes());
    }
    let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC;
    // SAFETY: socket takes no memory. The descriptor is new, and nobody else's.
    let mut socket = unsafe {
        let socket = libc::socket(libc::AF_NETLINK, kind, SOCK_DIAG);
        match socket {
            0.. => File::from_raw_fd(socket),
            _ => return Err(io::Error::last_os_error()),
        }
    };
    // The answer is there when the question has been written, if there is one.
    let time = libc::timeval {
        tv_sec: 1,
        tv_usec: 0,
    };
    // SAFETY: the kernel reads the structure, whose size this is.
    unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_RCVTIMEO,
            (&raw const time).cast(),
            size_of::<libc::timeval>() as libc::socklen_t,
        );
    }
    socket.write_all(&request)?;
    let mut answer = [0; 1024];
    let len = socket.read(&mut answer)?;
    let answer = &answer[..len];
    match error_in(answer) {
        Some(error) => Err(error),
        None => Ok(peer_in(answer)),
    }
}

/// Returns the error that an answer is, if it is one.
fn error_in(answer: &[u8]) -> Option<io::Error> {
    let kind = u16::from_ne_bytes(answer.get(4..6)?.try_into().ok()?);
    let code = i32::from_ne_bytes(answer.get(HEADER..HEADER + 4)?.try_into().ok()?);
    (i32::from(kind) == libc::NLMSG_ERROR).then(|| io::Error::from_raw_os_error(-code))
}

/// Returns the peer that an answer names.
fn peer_in(answer: &[u8]) -> Option<u64> {
    let half = |at: usize| Some(u16::from_ne_bytes(answer.get(at..at + 2)?.try_into().ok()?));
    let word = |at: usize| Some(u32::from_ne_bytes(answer.get(at..at + 4)?.try_into().ok()?));
    // Errors have another type.
    if half(4)? != BY_FAMILY {
        return None;
    }
    let end = (word(0)? as usize).min(answer.len());
    let mut at = HEADER + MESSAGE;
    while at + 4 <= end {
        let len = usize::from(half(at)?);
        if half(at + 2)? == PEER && len >= 8 {
            return word(at + 4).filter(|peer| *peer != 0).map(u64::from);
        }
        at += len.max(4).next_multiple_of(4);
    }
    None
}

/// Returns the kernel's name of the protocol of a socket, which a path in `/proc/PID/fd` names.
#[must_use]
pub fn protocol(path: &Path) -> Option<String> {
    let path = std::ffi::CString::new(path.as_os_str().as_bytes()).ok()?;
    let mut name = [0u8; 64];
    let attribute = c"system.sockprotoname";
    // SAFETY: both names end with a zero byte; at most as many bytes are written as there are.
    let len = unsafe {
        libc::getxattr(
            path.as_ptr(),
            attribute.as_ptr(),
            name.as_mut_ptr().cast(),
            name.len(),
        )
    };
    let name = name.get(..usize::try_from(len).ok()?)?;
    let end = name.iter().position(|&byte| byte == 0);
    let name = &name[..end.unwrap_or(name.len())];
    Some(String::from_utf8_lossy(name).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::{AsRawFd, RawFd};
    use std::os::unix::fs::MetadataExt;
    use std::os::unix::net::{UnixDatagram, UnixStream};

    fn number(fd: RawFd) -> u64 {
        std::fs::metadata(format!("/proc/self/fd/{fd}"))
            .expect("it is open")
            .ino()
    }

    #[test]
    fn peers_and_protocols() {
        let (one, other) = UnixStream::pair().expect("sockets");
        let numbers = [number(one.as_raw_fd()), number(other.as_raw_fd())];
        // Some kernels don't know it.
        let known = |peer| KNOWS_UNIX.then_some(peer);
        assert_eq!(unix_peer(numbers[0]), known(numbers[1]));
        assert_eq!(unix_peer(numbers[1]), known(numbers[0]));
        if *KNOWS_UNIX {
            let error = ask(u32::MAX).expect_err("no socket has this number");
            assert_eq!(error.raw_os_error(), Some(libc::ENOENT));
        }
        let alone = UnixDatagram::unbound().expect("a socket");
        assert_eq!(unix_peer(number(alone.as_raw_fd())), None);
        let path = format!("/proc/self/fd/{}", alone.as_raw_fd());
        assert_eq!(protocol(Path::new(&path)).as_deref(), Some("UNIX"));
        assert_eq!(protocol(Path::new("/dev/null")), None);
    }
}
