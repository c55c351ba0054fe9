//! Passes a file to a stopped process: by its path, or over a socket if the process cannot reach the path (because it
//! has changed its root, user or mount namespace).

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;

use anyhow::{Context, Result, bail};

use crate::calls::Syscalls;
use crate::memory::Memory;
use crate::target::{TargetAddr, TargetFd};

/// Bytes of memory that are used, and put back.
pub const SCRATCH: u64 = 4096;

/// Where a thread with this stack pointer has memory that can be used meanwhile.
pub fn below(sp: u64) -> TargetAddr {
    TargetAddr((sp - 2 * SCRATCH) & !15)
}

/// Opens `file`, whose absolute path is `path`, in the stopped process, with the help of [`SCRATCH`] bytes at `at`.
/// Returns the descriptor there.
pub fn file(
    calls: &Syscalls,
    memory: &Memory,
    at: TargetAddr,
    file: &File,
    path: &Path,
) -> Result<TargetFd> {
    let mut saved = vec![0; SCRATCH as usize];
    memory.read(at, &mut saved)?;
    let fd = by_path(calls, memory, at, file, path)
        .and_then(|found| found.map_or_else(|| by_socket(calls, memory, at, file), Ok));
    memory.write(at, &saved)?;
    fd.with_context(|| format!("the program cannot open {}", path.display()))
}

/// `None`: there is no such file for it, or not this one.
fn by_path(
    calls: &Syscalls,
    memory: &Memory,
    at: TargetAddr,
    file: &File,
    path: &Path,
) -> Result<Option<TargetFd>> {
    const FLAGS: i32 = libc::O_RDWR | libc::O_CLOEXEC | libc::O_NOFOLLOW;
    let mut name = path.as_os_str().as_encoded_bytes().to_vec();
    name.push(0);
    if name.len() as u64 > SCRATCH {
        return Ok(None);
    }
    memory.write(at, &name)?;
    let Some(fd) = calls.open(at, FLAGS)? else {
        return Ok(None);
    };
    // Under another root the same path may be another file.
    let same = std::fs::metadata(format!("/proc/{}/fd/{}", calls.thread(), fd.0))
        .and_then(|theirs| Ok((theirs, file.metadata()?)))
        .is_ok_and(|(theirs, ours)| {
            use std::os::unix::fs::MetadataExt;
            (theirs.dev(), theirs.ino()) == (ours.dev(), ours.ino())
        });
    if same {
        return Ok(Some(fd));
    }
    calls.close(fd)?;
    Ok(None)
}

/// The address of a socket that only we two know.
fn address(tid: i32) -> Result<(libc::sockaddr_un, usize)> {
    // SAFETY: all-zero is a valid sockaddr_un.
    let mut address: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    address.sun_family = libc::AF_UNIX as libc::sa_family_t;
    let mut nonce = [0u8; 16];
    // SAFETY: getrandom writes as many bytes as the buffer has.
    let got = unsafe { libc::getrandom(nonce.as_mut_ptr().cast(), nonce.len(), 0) };
    if got != nonce.len() as isize {
        return Err(io::Error::last_os_error()).context("random numbers");
    }
    let name = format!("hodoscope-{tid}-{:032x}", u128::from_ne_bytes(nonce));
    // The first byte stays zero: the name is in no file system.
    for (to, from) in address.sun_path[1..].iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    Ok((
        address,
        std::mem::offset_of!(libc::sockaddr_un, sun_path) + 1 + name.len(),
    ))
}

fn by_socket(calls: &Syscalls, memory: &Memory, at: TargetAddr, file: &File) -> Result<TargetFd> {
    let socket = calls.unix_socket(libc::SOCK_DGRAM | libc::SOCK_CLOEXEC)?;
    let fd = receive(calls, memory, at, file, socket);
    calls.close(socket)?;
    fd
}

fn receive(
    calls: &Syscalls,
    memory: &Memory,
    at: TargetAddr,
    file: &File,
    socket: TargetFd,
) -> Result<TargetFd> {
    let (address, len) = address(calls.thread().tid())?;
    // SAFETY: the address is plain bytes, `len` of which are initialized and in bounds.
    let bytes = unsafe { std::slice::from_raw_parts((&raw const address).cast::<u8>(), len) };
    memory.write(at, bytes)?;
    calls.bind(socket, at, len as u64)?;
    send(&address, len, file).context("sending a descriptor")?;
    // A message header, the piece of memory it names, one byte of data, and room for one descriptor.
    let (iov, data, control) = (at.offset(64), at.offset(96), at.offset(128));
    let header = [0, 0, iov.0, 1, control.0, 24, 0];
    let mut image = vec![0u8; 160];
    for (slot, word) in image.chunks_exact_mut(8).zip(header) {
        slot.copy_from_slice(&u64::to_le_bytes(word));
    }
    image[64..72].copy_from_slice(&data.0.to_le_bytes());
    image[72..80].copy_from_slice(&1u64.to_le_bytes());
    memory.write(at, &image)?;
    calls.recvmsg(socket, at, libc::MSG_CMSG_CLOEXEC | libc::MSG_DONTWAIT)?;
    let mut control_message = [0; 24];
    memory.read(control, &mut control_message)?;
    let word = |i: usize| i32::from_le_bytes(control_message[i..i + 4].try_into().expect("four"));
    if word(8) != libc::SOL_SOCKET || word(12) != libc::SCM_RIGHTS {
        bail!("a message without a descriptor");
    }
    Ok(TargetFd(u64::from(word(16).cast_unsigned())))
}

/// Sends `file` to the socket at `address`.
fn send(address: &libc::sockaddr_un, len: usize, file: &File) -> io::Result<()> {
    use std::os::unix::net::UnixDatagram;
    let socket = UnixDatagram::unbound()?;
    let mut data = 1u8;
    let mut piece = libc::iovec {
        iov_base: (&raw mut data).cast(),
        iov_len: 1,
    };
    // Aligned as a control message must be.
    let mut control = [0u64; 3];
    // SAFETY: all-zero is a valid msghdr.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_name = std::ptr::from_ref(address).cast_mut().cast();
    message.msg_namelen = len as u32;
    message.msg_iov = &raw mut piece;
    message.msg_iovlen = 1;
    message.msg_control = control.as_mut_ptr().cast();
    // SAFETY: the macros only calculate.
    message.msg_controllen = unsafe { libc::CMSG_SPACE(4) } as usize;
    // SAFETY: the control buffer holds one message of four bytes; the pointers are into it.
    unsafe {
        let header = libc::CMSG_FIRSTHDR(&raw const message);
        (*header).cmsg_level = libc::SOL_SOCKET;
        (*header).cmsg_type = libc::SCM_RIGHTS;
        (*header).cmsg_len = libc::CMSG_LEN(4) as usize;
        libc::CMSG_DATA(header)
            .cast::<i32>()
            .write_unaligned(file.as_raw_fd());
    }
    // SAFETY: the header and all that it points to live through the call.
    let sent = unsafe { libc::sendmsg(socket.as_raw_fd(), &raw const message, 0) };
    if sent == 1 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}
