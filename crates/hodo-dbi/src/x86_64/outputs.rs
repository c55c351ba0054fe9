//! Where the kernel writes what system calls give to a program.

use Output::{Array, Fixed, List, Measured, Message, Messages};

/// Memory that a call writes to. Numbers of arguments come first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Output {
    /// At an argument, this many bytes.
    Fixed(usize, u64),
    /// At an argument, as many bytes as the product of another one and a number, and some more.
    Array(usize, usize, u64, u64),
    /// At an argument, as many bytes as the word of four bytes says that is at another one; and this word.
    Measured(usize, usize),
    /// What the buffers of an argument are (`struct iovec`), of which there are as many as another one says.
    List(usize, usize),
    /// What a `struct msghdr` says.
    Message(usize),
    /// Some `struct mmsghdr`.
    Messages(usize, usize),
}

/// Bytes of structures.
const STAT: u64 = 144;
const USAGE: u64 = 144;
const INFORMATION: u64 = 128;
const TIME: u64 = 16;
const TIMER: u64 = 32;
const EVENT: u64 = 12;
const POLL: u64 = 8;
const SYSTEM: u64 = 120;

/// As many bytes at an argument as another one says.
const fn bytes(at: usize, size: usize) -> Output {
    Array(at, size, 1, 0)
}

/// Where a system call writes to, in any case at most. `None`: that is not known.
pub(crate) fn outputs(number: i64) -> Option<Vec<Output>> {
    Some(match number {
        calls::READ | calls::PREAD64 | calls::READLINK => vec![bytes(1, 2)],
        calls::GETDENTS | calls::GETDENTS64 => vec![bytes(1, 2)],
        calls::READLINKAT => vec![bytes(2, 3)],
        calls::READV | calls::PREADV | calls::PREADV2 => vec![List(1, 2)],
        calls::PROCESS_VM_READV => vec![List(1, 2)],
        calls::STAT | calls::LSTAT | calls::FSTAT => vec![Fixed(1, STAT)],
        calls::NEWFSTATAT => vec![Fixed(2, STAT)],
        calls::STATX => vec![Fixed(4, 256)],
        calls::STATFS | calls::FSTATFS => vec![Fixed(1, SYSTEM)],
        calls::PIPE | calls::PIPE2 => vec![Fixed(0, 8)],
        calls::SOCKETPAIR => vec![Fixed(3, 8)],
        calls::ACCEPT | calls::ACCEPT4 => vec![Measured(1, 2)],
        calls::GETSOCKNAME | calls::GETPEERNAME => vec![Measured(1, 2)],
        calls::GETSOCKOPT => vec![Measured(3, 4)],
        calls::RECVFROM => vec![bytes(1, 2), Measured(4, 5)],
        calls::RECVMSG => vec![Message(1)],
        calls::RECVMMSG => vec![Messages(1, 2), Fixed(4, TIME)],
        calls::SENDMMSG => vec![Array(1, 2, MESSAGES, 0)],
        calls::MSGRCV => vec![Array(1, 2, 1, 8)],
        calls::MQ_TIMEDRECEIVE => vec![bytes(1, 2), Fixed(3, 4)],
        calls::SENDFILE => vec![Fixed(2, 8)],
        calls::MQ_GETSETATTR => vec![Fixed(2, 64)],
        calls::CLONE => vec![Fixed(2, 4), Fixed(3, 4)],
        calls::SPLICE | calls::COPY_FILE_RANGE => vec![Fixed(1, 8), Fixed(3, 8)],
        calls::POLL => vec![Array(0, 1, POLL, 0)],
        calls::PPOLL => vec![Array(0, 1, POLL, 0), Fixed(2, TIME)],
        calls::EPOLL_WAIT | calls::EPOLL_PWAIT | calls::EPOLL_PWAIT2 => {
            vec![Array(1, 2, EVENT, 0)]
        }
        calls::WAIT4 => vec![Fixed(1, 4), Fixed(3, USAGE)],
        calls::WAITID => vec![Fixed(2, INFORMATION), Fixed(4, USAGE)],
        calls::RT_SIGACTION => vec![Fixed(2, 32)],
        calls::RT_SIGPROCMASK => vec![Fixed(2, 8)],
        calls::RT_SIGPENDING => vec![Fixed(0, 8)],
        calls::RT_SIGTIMEDWAIT => vec![Fixed(1, INFORMATION)],
        calls::SIGALTSTACK => vec![Fixed(1, 24)],
        calls::NANOSLEEP => vec![Fixed(1, TIME)],
        calls::CLOCK_NANOSLEEP => vec![Fixed(3, TIME)],
        calls::CLOCK_GETTIME | calls::CLOCK_GETRES => vec![Fixed(1, TIME)],
        calls::GETTIMEOFDAY => vec![Fixed(0, TIME), Fixed(1, 8)],
        calls::TIME => vec![Fixed(0, 8)],
        calls::TIMES => vec![Fixed(0, 32)],
        calls::GETITIMER | calls::TIMER_GETTIME | calls::TIMERFD_GETTIME => {
            vec![Fixed(1, TIMER)]
        }
        calls::SETITIMER => vec![Fixed(2, TIMER)],
        calls::TIMER_SETTIME | calls::TIMERFD_SETTIME => vec![Fixed(3, TIMER)],
        calls::TIMER_CREATE => vec![Fixed(2, 4)],
        calls::GETRLIMIT => vec![Fixed(1, 16)],
        calls::PRLIMIT64 => vec![Fixed(3, 16)],
        calls::GETRUSAGE => vec![Fixed(1, USAGE)],
        calls::SYSINFO => vec![Fixed(0, 112)],
        calls::UNAME => vec![Fixed(0, 390)],
        calls::GETCWD | calls::GETRANDOM => vec![bytes(0, 1)],
        calls::SCHED_GETAFFINITY => vec![bytes(2, 1)],
        calls::GETCPU => vec![Fixed(0, 4), Fixed(1, 4)],
        calls::GETRESUID | calls::GETRESGID => vec![Fixed(0, 4), Fixed(1, 4), Fixed(2, 4)],
        calls::GETGROUPS => vec![Array(1, 0, 4, 0)],
        calls::GETXATTR | calls::LGETXATTR | calls::FGETXATTR => vec![bytes(2, 3)],
        calls::LISTXATTR | calls::LLISTXATTR | calls::FLISTXATTR => vec![bytes(1, 2)],
        calls::WRITE | calls::PWRITE64 | calls::WRITEV => vec![],
        calls::PWRITEV | calls::PWRITEV2 | calls::SENDTO | calls::SENDMSG => vec![],
        calls::OPEN | calls::OPENAT | calls::OPENAT2 | calls::CREAT => vec![],
        calls::CONNECT | calls::BIND | calls::SETSOCKOPT => vec![],
        calls::ACCESS | calls::FACCESSAT | calls::FACCESSAT2 => vec![],
        calls::EXECVE | calls::EXECVEAT | calls::CHDIR | calls::TRUNCATE => vec![],
        calls::MKDIR | calls::MKDIRAT | calls::RMDIR | calls::RENAME => vec![],
        calls::RENAMEAT | calls::RENAMEAT2 | calls::UNLINK => vec![],
        calls::UNLINKAT | calls::LINK | calls::LINKAT | calls::SYMLINK => vec![],
        calls::SYMLINKAT | calls::CHMOD | calls::FCHMODAT | calls::CHOWN => vec![],
        calls::LCHOWN | calls::FCHOWNAT | calls::UTIMENSAT => vec![],
        calls::EPOLL_CTL | calls::RT_SIGQUEUEINFO | calls::RT_SIGSUSPEND => vec![],
        _ => return None,
    })
}

/// Bytes of a `struct mmsghdr`.
pub(crate) const MESSAGES: u64 = 64;
/// Bytes of a `struct msghdr`.
pub(crate) const MESSAGE: u64 = 56;

/// Numbers of system calls (arch/x86/entry/syscalls/syscall_64.tbl).
mod calls {
    pub(super) const READ: i64 = 0;
    pub(super) const WRITE: i64 = 1;
    pub(super) const OPEN: i64 = 2;
    pub(super) const STAT: i64 = 4;
    pub(super) const FSTAT: i64 = 5;
    pub(super) const LSTAT: i64 = 6;
    pub(super) const POLL: i64 = 7;
    pub(super) const RT_SIGACTION: i64 = 13;
    pub(super) const RT_SIGPROCMASK: i64 = 14;
    pub(super) const PREAD64: i64 = 17;
    pub(super) const PWRITE64: i64 = 18;
    pub(super) const READV: i64 = 19;
    pub(super) const WRITEV: i64 = 20;
    pub(super) const ACCESS: i64 = 21;
    pub(super) const PIPE: i64 = 22;
    pub(super) const NANOSLEEP: i64 = 35;
    pub(super) const GETITIMER: i64 = 36;
    pub(super) const SETITIMER: i64 = 38;
    pub(super) const SENDFILE: i64 = 40;
    pub(super) const CONNECT: i64 = 42;
    pub(super) const ACCEPT: i64 = 43;
    pub(super) const SENDTO: i64 = 44;
    pub(super) const RECVFROM: i64 = 45;
    pub(super) const SENDMSG: i64 = 46;
    pub(super) const RECVMSG: i64 = 47;
    pub(super) const BIND: i64 = 49;
    pub(super) const GETSOCKNAME: i64 = 51;
    pub(super) const GETPEERNAME: i64 = 52;
    pub(super) const SOCKETPAIR: i64 = 53;
    pub(super) const SETSOCKOPT: i64 = 54;
    pub(super) const GETSOCKOPT: i64 = 55;
    pub(super) const CLONE: i64 = 56;
    pub(super) const EXECVE: i64 = 59;
    pub(super) const WAIT4: i64 = 61;
    pub(super) const UNAME: i64 = 63;
    pub(super) const MSGRCV: i64 = 70;
    pub(super) const TRUNCATE: i64 = 76;
    pub(super) const GETDENTS: i64 = 78;
    pub(super) const GETCWD: i64 = 79;
    pub(super) const CHDIR: i64 = 80;
    pub(super) const RENAME: i64 = 82;
    pub(super) const MKDIR: i64 = 83;
    pub(super) const RMDIR: i64 = 84;
    pub(super) const CREAT: i64 = 85;
    pub(super) const LINK: i64 = 86;
    pub(super) const UNLINK: i64 = 87;
    pub(super) const SYMLINK: i64 = 88;
    pub(super) const READLINK: i64 = 89;
    pub(super) const CHMOD: i64 = 90;
    pub(super) const CHOWN: i64 = 92;
    pub(super) const LCHOWN: i64 = 94;
    pub(super) const GETTIMEOFDAY: i64 = 96;
    pub(super) const GETRLIMIT: i64 = 97;
    pub(super) const GETRUSAGE: i64 = 98;
    pub(super) const SYSINFO: i64 = 99;
    pub(super) const TIMES: i64 = 100;
    pub(super) const GETGROUPS: i64 = 115;
    pub(super) const GETRESUID: i64 = 118;
    pub(super) const GETRESGID: i64 = 120;
    pub(super) const RT_SIGPENDING: i64 = 127;
    pub(super) const RT_SIGTIMEDWAIT: i64 = 128;
    pub(super) const RT_SIGQUEUEINFO: i64 = 129;
    pub(super) const RT_SIGSUSPEND: i64 = 130;
    pub(super) const SIGALTSTACK: i64 = 131;
    pub(super) const STATFS: i64 = 137;
    pub(super) const FSTATFS: i64 = 138;
    pub(super) const GETXATTR: i64 = 191;
    pub(super) const LGETXATTR: i64 = 192;
    pub(super) const FGETXATTR: i64 = 193;
    pub(super) const LISTXATTR: i64 = 194;
    pub(super) const LLISTXATTR: i64 = 195;
    pub(super) const FLISTXATTR: i64 = 196;
    pub(super) const TIME: i64 = 201;
    pub(super) const SCHED_GETAFFINITY: i64 = 204;
    pub(super) const GETDENTS64: i64 = 217;
    pub(super) const TIMER_CREATE: i64 = 222;
    pub(super) const TIMER_SETTIME: i64 = 223;
    pub(super) const TIMER_GETTIME: i64 = 224;
    pub(super) const CLOCK_GETTIME: i64 = 228;
    pub(super) const CLOCK_GETRES: i64 = 229;
    pub(super) const CLOCK_NANOSLEEP: i64 = 230;
    pub(super) const EPOLL_WAIT: i64 = 232;
    pub(super) const EPOLL_CTL: i64 = 233;
    pub(super) const MQ_TIMEDRECEIVE: i64 = 243;
    pub(super) const MQ_GETSETATTR: i64 = 245;
    pub(super) const WAITID: i64 = 247;
    pub(super) const OPENAT: i64 = 257;
    pub(super) const MKDIRAT: i64 = 258;
    pub(super) const FCHOWNAT: i64 = 260;
    pub(super) const NEWFSTATAT: i64 = 262;
    pub(super) const UNLINKAT: i64 = 263;
    pub(super) const RENAMEAT: i64 = 264;
    pub(super) const LINKAT: i64 = 265;
    pub(super) const SYMLINKAT: i64 = 266;
    pub(super) const READLINKAT: i64 = 267;
    pub(super) const FCHMODAT: i64 = 268;
    pub(super) const FACCESSAT: i64 = 269;
    pub(super) const PPOLL: i64 = 271;
    pub(super) const SPLICE: i64 = 275;
    pub(super) const UTIMENSAT: i64 = 280;
    pub(super) const EPOLL_PWAIT: i64 = 281;
    pub(super) const TIMERFD_SETTIME: i64 = 286;
    pub(super) const TIMERFD_GETTIME: i64 = 287;
    pub(super) const ACCEPT4: i64 = 288;
    pub(super) const PIPE2: i64 = 293;
    pub(super) const PREADV: i64 = 295;
    pub(super) const PWRITEV: i64 = 296;
    pub(super) const RECVMMSG: i64 = 299;
    pub(super) const PRLIMIT64: i64 = 302;
    pub(super) const SENDMMSG: i64 = 307;
    pub(super) const GETCPU: i64 = 309;
    pub(super) const PROCESS_VM_READV: i64 = 310;
    pub(super) const RENAMEAT2: i64 = 316;
    pub(super) const GETRANDOM: i64 = 318;
    pub(super) const EXECVEAT: i64 = 322;
    pub(super) const COPY_FILE_RANGE: i64 = 326;
    pub(super) const PREADV2: i64 = 327;
    pub(super) const PWRITEV2: i64 = 328;
    pub(super) const STATX: i64 = 332;
    pub(super) const OPENAT2: i64 = 437;
    pub(super) const FACCESSAT2: i64 = 439;
    pub(super) const EPOLL_PWAIT2: i64 = 441;
}
