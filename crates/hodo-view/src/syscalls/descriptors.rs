//! What the descriptors of a program refer to (`-y`) while it is being recorded.
//!
//! Calls are shown some time after they were made, and by then the descriptor may be closed. So we follow the calls
//! that create, copy and close descriptors. The name of a file comes from the call that opened it. The name of a pipe
//! or a socket comes from `/proc/PID/fd` if it is still open. Descriptors that a process had from the beginning, or
//! received in other ways, are looked up there when they are first used.

use std::cell::RefCell;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Component, Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;

use hodo_abi::Isa;
use hodo_trace::syscalls::{by_number, number as number_of, piece};

use super::arg_kinds::{ArgKind, Before, words};
use super::read::{Args, Enter, Exit, Pieces};
use super::sockets::{Socket, SocketQueries, Sockets, socket_number};
use super::structs::{parts_of_device, set_bits};
use super::text::{number, quoted};
use crate::source::Source;

/// `O_CLOEXEC`, `SOCK_CLOEXEC` and the like.
const CLOSE_ON_EXEC: u64 = 0o2_000_000;
/// `O_TMPFILE`, without `O_DIRECTORY`.
const WITHOUT_NAME: u64 = 0o20_000_000;
/// Stands for the working directory where a descriptor is expected (`AT_FDCWD`).
const DIRECTORY: i32 = -100;
/// At most this many unfinished calls of a task are remembered.
const DEEPEST: usize = 64;

/// The result of `connect` that goes on (`-EINPROGRESS`).
const IN_PROGRESS: i64 = -115;

/// The calls that must be followed to know what descriptors refer to.
const FOLLOWED: [&str; 37] = [
    "open",
    "openat",
    "openat2",
    "creat",
    "close",
    "close_range",
    "dup",
    "dup2",
    "dup3",
    "fcntl",
    "pipe",
    "pipe2",
    "socket",
    "socketpair",
    "accept",
    "accept4",
    "epoll_create",
    "epoll_create1",
    "eventfd",
    "eventfd2",
    "timerfd_create",
    "signalfd",
    "signalfd4",
    "inotify_init",
    "inotify_init1",
    "memfd_create",
    "pidfd_open",
    "perf_event_open",
    "io_uring_setup",
    "userfaultfd",
    "fanotify_init",
    "chdir",
    "fchdir",
    "execve",
    "execveat",
    "recvmsg",
    "pidfd_getfd",
];

/// The calls that must also be followed to know what sockets are connected to.
const FOLLOWED_OF_SOCKETS: [&str; 5] = ["bind", "listen", "connect", "getsockname", "getpeername"];

/// Returns the numbers of the calls that must be recorded so that descriptors can be named.
#[must_use]
pub fn followed_syscalls(machine: Isa, names: DescriptorNames) -> Vec<u64> {
    let (files, sockets): (&[&str], &[&str]) = match names {
        DescriptorNames::None => (&[], &[]),
        DescriptorNames::Files => (&FOLLOWED, &[]),
        DescriptorNames::Protocols => (&FOLLOWED, &FOLLOWED_OF_SOCKETS),
    };
    let names = files.iter().chain(sockets);
    names.filter_map(|name| number_of(machine, name)).collect()
}

/// What is shown of descriptors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DescriptorNames {
    /// Nothing.
    #[default]
    None,
    /// What they refer to (`-y`).
    Files,
    /// Also the addresses of sockets, the numbers of devices, and the processes of pidfds (`-yy`).
    Protocols,
}

/// What a descriptor refers to.
#[derive(Debug, Clone)]
enum Object {
    Named(Arc<str>),
    /// Other descriptors, also in other processes, may refer to the same one.
    Socket(Rc<RefCell<Socket>>),
}

impl Object {
    fn text(&self) -> Arc<str> {
        match self {
            Self::Named(text) => Arc::clone(text),
            Self::Socket(socket) => socket.borrow().text().into(),
        }
    }

    fn socket(socket: Socket) -> Self {
        Self::Socket(Rc::new(RefCell::new(socket)))
    }
}

/// A descriptor.
#[derive(Debug, Clone)]
struct Descriptor {
    /// What it refers to.
    object: Object,
    /// Whether it is closed when another program is executed, as far as we know.
    closes: bool,
}

/// The descriptors of a process.
#[derive(Debug, Clone, Default)]
struct Process {
    known: HashMap<i32, Descriptor>,
    directory: Option<Arc<str>>,
    /// Whether it sees the same files by the same names as hodo.
    same_root: bool,
}

/// A call that has begun.
#[derive(Debug)]
struct Begun {
    name: &'static str,
    args: Args,
    /// The path that it is about.
    path: Option<Vec<u8>>,
    /// The address of a socket that it is about.
    address: Option<Vec<u8>>,
    is_shown: bool,
}

/// The descriptors of all processes.
#[derive(Debug, Default)]
pub(super) struct Descriptors {
    /// The calls that are shown, if not all.
    only: Option<Vec<u64>>,
    processes: HashMap<i32, Process>,
    begun: HashMap<usize, Vec<Begun>>,
    kernel: Kernel,
}

/// How the kernel is asked.
#[derive(Debug, Default)]
struct Kernel {
    sockets: Sockets,
    /// Whether more than names is asked for.
    protocols: bool,
}

impl Descriptors {
    /// Shows the names of the descriptors of all calls, or of some.
    pub fn new(
        only: Option<Vec<u64>>,
        names: DescriptorNames,
        queries: Option<SocketQueries>,
    ) -> Self {
        Self {
            only,
            kernel: Kernel {
                sockets: Sockets::new(queries),
                protocols: names == DescriptorNames::Protocols,
            },
            ..Self::default()
        }
    }

    /// Takes the beginning of a task.
    pub fn begin(&mut self, source: &Source, index: usize) {
        let task = source.task(index);
        let parent = (task.id != task.parent)
            .then(|| {
                source
                    .trace
                    .tasks
                    .iter()
                    .find(|other| other.id == task.parent)
            })
            .flatten();
        match task.kind.as_str() {
            "thread" => {}
            "exec" => {
                if let Some(process) = self.processes.get_mut(&task.pid) {
                    process.known.retain(|_, descriptor| !descriptor.closes);
                }
            }
            "start" => {
                let process = Process::started(task.pid, &mut self.kernel);
                self.processes.insert(task.pid, process);
            }
            _ => {
                let parent = parent.and_then(|parent| self.processes.get(&parent.pid));
                let process = parent
                    .cloned()
                    .unwrap_or_else(|| Process::running(task.pid, &mut self.kernel));
                self.processes.insert(task.pid, process);
            }
        }
    }

    /// Takes the beginning of a call and adds what its descriptors refer to. Returns whether it is shown.
    pub fn enter(&mut self, source: &Source, enter: &mut Enter) -> bool {
        let is_shown = (self.only.as_ref()).is_none_or(|only| only.contains(&enter.number));
        let pid = source.task(enter.task).pid;
        let kernel = &mut self.kernel;
        let process = (self.processes.entry(pid)).or_insert_with(|| Process::running(pid, kernel));
        let words = words(enter.machine, enter.number).unwrap_or_default();
        for (at, (word, &value)) in words.iter().zip(enter.args.iter()).enumerate() {
            let text = match (word.kind, value as i32) {
                (ArgKind::Before(Before::Directory), DIRECTORY) => process.directory(pid),
                (ArgKind::Before(Before::Directory) | ArgKind::Descriptor, fd) => {
                    process.text(pid, fd, kernel)
                }
                _ => None,
            };
            if let Some(text) = text {
                enter.names.push((at as u8, text));
            }
            for fd in listed(word.kind, at, &enter.pieces, &enter.args) {
                if let Some(text) = process.text(pid, fd, kernel) {
                    enter.listed.push((fd, text));
                }
            }
        }
        let name = by_number(enter.machine, enter.number).map_or("", |call| call.name);
        match name {
            "close" => {
                process
                    .known
                    .remove(&(enter.args.first().copied().unwrap_or(0) as i32));
            }
            "close_range" if enter.args.get(2).is_none_or(|flags| flags & 4 == 0) => {
                let range = enter.args[0] as u32..=enter.args[1] as u32;
                (process.known).retain(|fd, _| !range.contains(&fd.cast_unsigned()));
            }
            _ => {}
        }
        let begun = self.begun.entry(enter.task).or_default();
        if begun.len() == DEEPEST {
            begun.remove(0);
        }
        let at = u8::from(matches!(name, "openat" | "openat2"));
        begun.push(Begun {
            name,
            args: enter.args,
            path: path(&enter.pieces, at),
            address: matches!(name, "bind" | "connect")
                .then(|| bytes(&enter.pieces, 1))
                .flatten(),
            is_shown,
        });
        is_shown
    }

    /// Takes the end of a call and adds what its result refers to. Returns whether it is shown.
    pub fn exit(&mut self, source: &Source, exit: &mut Exit) -> bool {
        let task = source.task(exit.task);
        let begun = self.begun.get_mut(&exit.task).and_then(Vec::pop);
        let Some(begun) = begun else {
            return true;
        };
        let pid = task.pid;
        if exit.value <= i32::MAX as u64 {
            let kernel = &mut self.kernel;
            let process =
                (self.processes.entry(pid)).or_insert_with(|| Process::running(pid, kernel));
            exit.name = process.done(pid, &begun, exit.value as i32, kernel);
            exit.listed = process.paired(pid, &begun, &exit.pieces, kernel);
        }
        let goes_on = exit.value.cast_signed() == IN_PROGRESS;
        if self.kernel.protocols && (goes_on || exit.value <= i32::MAX as u64) {
            let result = exit.value as i32;
            if let Some(process) = self.processes.get_mut(&pid) {
                process.connected(pid, &begun, (result, &exit.pieces), &mut self.kernel);
            }
            // An accepted socket is complete now.
            if exit.name.is_some() && matches!(begun.name, "accept" | "accept4") {
                let process = self.processes.get_mut(&pid);
                exit.name = process.and_then(|process| process.text(pid, result, &mut self.kernel));
            }
        }
        begun.is_shown
    }
}

/// Returns the text of an argument, if all of it is known.
fn path(pieces: &Pieces, argument: u8) -> Option<Vec<u8>> {
    let mut pieces = pieces.iter();
    let found =
        pieces.find(|found| found.argument == argument && found.flags & piece::ENDS != 0)?;
    Some(found.bytes.to_vec())
}

/// Returns the descriptors in a list that an argument points to.
fn listed(kind: ArgKind, argument: usize, pieces: &Pieces, args: &Args) -> Vec<i32> {
    let list = || bytes(pieces, argument as u8);
    match kind {
        ArgKind::Before(Before::Poll) => {
            let list = list().unwrap_or_default();
            let entries = list.chunks_exact(8);
            entries.map(|entry| number(entry, 0, 4) as i32).collect()
        }
        ArgKind::Before(Before::FdSet) => {
            let most = args.first().map_or(0, |most| (*most).min(1024) as usize);
            let list = list().unwrap_or_default();
            let fds = set_bits(&list, most).map(|fd| fd as i32);
            fds.collect()
        }
        _ => Vec::new(),
    }
}

/// Returns what an argument points to.
fn bytes(pieces: &Pieces, argument: u8) -> Option<Vec<u8>> {
    let mut pieces = pieces.iter();
    let found =
        pieces.find(|found| found.argument == argument && found.flags & piece::FAULT == 0)?;
    Some(found.bytes.to_vec())
}

/// Asks the kernel what a descriptor refers to.
fn link(pid: &str, fd: i32) -> Option<PathBuf> {
    fs::read_link(format!("/proc/{pid}/fd/{fd}")).ok()
}

/// Formats a path for a line.
fn shown(path: &Path) -> Arc<str> {
    let text = quoted(path.as_os_str().as_encoded_bytes(), usize::MAX, false);
    text[1..text.len() - 1].into()
}

impl Descriptor {
    /// Looks up a descriptor that is open in a process now.
    fn open(pid: &str, fd: i32, kernel: &mut Kernel) -> Option<Self> {
        let link = link(pid, fd)?;
        let about = fs::read_to_string(format!("/proc/{pid}/fdinfo/{fd}")).unwrap_or_default();
        let flags = (about.lines()).find_map(|line| line.strip_prefix("flags:"));
        let flags = flags.and_then(|flags| u64::from_str_radix(flags.trim(), 8).ok());
        let number = link.to_str().and_then(socket_number);
        let object = match (kernel.protocols, number) {
            (true, Some(number)) => Object::socket(kernel.sockets.found(pid, fd, number)),
            (true, None) => Object::Named(kernel.with_details(pid, fd, &link)),
            (false, _) => Object::Named(shown(&link)),
        };
        Some(Self {
            object,
            closes: flags.is_some_and(|flags| flags & CLOSE_ON_EXEC != 0),
        })
    }
}

impl Kernel {
    /// Formats what a descriptor refers to, other than a socket: devices have numbers, pidfds processes.
    fn with_details(&self, pid: &str, fd: i32, link: &Path) -> Arc<str> {
        if link == Path::new("anon_inode:[pidfd]") {
            let about = fs::read_to_string(format!("/proc/{pid}/fdinfo/{fd}"));
            let about = about.unwrap_or_default();
            let of = (about.lines()).find_map(|line| line.strip_prefix("Pid:"));
            return of.map_or_else(|| shown(link), |of| format!("pid:{}", of.trim()).into());
        }
        with_device(link, fs::metadata(format!("/proc/{pid}/fd/{fd}")).ok())
    }
}

/// Formats the name of a file, and what kind of device it is.
fn with_device(path: &Path, file: Option<fs::Metadata>) -> Arc<str> {
    let name = shown(path);
    let kind = file.as_ref().map(fs::Metadata::file_type);
    let kind = match kind {
        Some(kind) if kind.is_char_device() => "char",
        Some(kind) if kind.is_block_device() => "block",
        _ => return name,
    };
    let device = file.map_or(0, |file| file.rdev());
    let (major, minor) = parts_of_device(device);
    format!("{name}<{kind} {major}:{minor}>").into()
}

impl Process {
    /// Creates the descriptors of a process that hodo has just started. It has hodo's standard streams and working
    /// directory.
    fn started(pid: i32, kernel: &mut Kernel) -> Self {
        let streams = (0..3).filter_map(|fd| {
            let open = Descriptor::open("self", fd, kernel)?;
            let closes = false;
            Some((fd, Descriptor { closes, ..open }))
        });
        let directory = std::env::current_dir().ok();
        Self {
            known: streams.collect(),
            directory: directory.map(|path| shown(&path)),
            // It may have ended already. It began with hodo's files.
            same_root: has_same_root(pid).unwrap_or(true),
        }
    }

    /// Creates the descriptors of a process that already runs.
    fn running(pid: i32, kernel: &mut Kernel) -> Self {
        let of = pid.to_string();
        let open = fs::read_dir(format!("/proc/{pid}/fd"));
        let open = open.into_iter().flatten().flatten();
        let fds = open.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        Self {
            known: fds
                .filter_map(|fd| Some((fd, Descriptor::open(&of, fd, kernel)?)))
                .collect(),
            directory: None,
            same_root: has_same_root(pid).unwrap_or(false),
        }
    }

    fn directory(&mut self, pid: i32) -> Option<Arc<str>> {
        if self.directory.is_none() {
            let path = fs::read_link(format!("/proc/{pid}/cwd")).ok();
            self.directory = path.map(|path| shown(&path));
        }
        self.directory.clone()
    }

    /// Returns what a descriptor refers to.
    fn object(&mut self, pid: i32, fd: i32, kernel: &mut Kernel) -> Option<Object> {
        if fd < 0 {
            return None;
        }
        let known = match self.known.entry(fd) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(place) => place.insert(Descriptor::open(&pid.to_string(), fd, kernel)?),
        };
        Some(known.object.clone())
    }

    /// Returns the text that stands for it.
    fn text(&mut self, pid: i32, fd: i32, kernel: &mut Kernel) -> Option<Arc<str>> {
        let object = self.object(pid, fd, kernel)?;
        if let Object::Socket(socket) = &object {
            let mut socket = socket.borrow_mut();
            if socket.awaits_list() {
                (kernel.sockets).catch_up(&pid.to_string(), &mut socket);
            } else if socket.awaits_peer() {
                (kernel.sockets).add_peer(&pid.to_string(), &mut socket);
            }
        }
        Some(object.text())
    }

    /// Applies what a call did to the addresses of sockets.
    fn connected(
        &mut self,
        pid: i32,
        call: &Begun,
        (result, pieces): (i32, &Pieces),
        kernel: &mut Kernel,
    ) {
        let arg = |index: usize| call.args.get(index).copied().unwrap_or(0);
        let fd = match call.name {
            "accept" | "accept4" => result,
            "bind" | "listen" | "connect" | "getsockname" | "getpeername" | "sendto"
            | "sendmsg" | "sendmmsg" => arg(0) as i32,
            _ => return,
        };
        let Some(Object::Socket(socket)) = self.object(pid, fd, kernel) else {
            return;
        };
        let mut socket = socket.borrow_mut();
        // What the kernel wrote. More may not fit.
        let returned = || {
            let len = bytes(pieces, 2).map_or(0, |len| number(&len, 0, 4) as usize);
            let address = bytes(pieces, 1)?;
            (address.len() >= len).then(|| address[..len].to_vec())
        };
        match call.name {
            "bind" => socket.bound(call.address.as_deref().unwrap_or_default()),
            "connect" => socket.connected(call.address.as_deref().unwrap_or_default()),
            "getsockname" => {
                if let Some(address) = returned() {
                    socket.bound(&address);
                }
                return;
            }
            "accept" | "accept4" | "getpeername" => {
                if let Some(address) = returned() {
                    socket.has_peer(&address);
                }
                if call.name == "getpeername" {
                    return;
                }
            }
            _ => {}
        }
        if socket.is_incomplete(call.name) {
            kernel.sockets.complete(&pid.to_string(), &mut socket);
        }
    }

    /// Applies what a call did to the descriptors. Returns what its result refers to.
    fn done(
        &mut self,
        pid: i32,
        call: &Begun,
        result: i32,
        kernel: &mut Kernel,
    ) -> Option<Arc<str>> {
        let arg = |index: usize| call.args.get(index).copied().unwrap_or(0);
        let (object, flags) = match call.name {
            "socket" if kernel.protocols => {
                let mut socket = Socket::new(arg(0), arg(1), arg(2));
                kernel.sockets.number(&pid.to_string(), result, &mut socket);
                (Some(Object::socket(socket)), arg(1))
            }
            "accept" | "accept4" if kernel.protocols => {
                let flags = if call.name == "accept4" { arg(3) } else { 0 };
                let object = match self.object(pid, arg(0) as i32, kernel) {
                    Some(Object::Socket(listening)) => {
                        let mut socket = listening.borrow().accepted();
                        kernel.sockets.number(&pid.to_string(), result, &mut socket);
                        Some(Object::socket(socket))
                    }
                    // It is unknown. What had the new number before is gone all the same.
                    _ => None,
                };
                (object, flags)
            }
            "dup" | "dup2" | "dup3" => {
                let flags = if call.name == "dup3" { arg(2) } else { 0 };
                (self.object(pid, arg(0) as i32, kernel), flags)
            }
            "fcntl" if matches!(arg(1), 0 | 1030) => {
                let flags = if arg(1) == 0 { 0 } else { CLOSE_ON_EXEC };
                (self.object(pid, arg(0) as i32, kernel), flags)
            }
            "fcntl" => {
                if arg(1) == 2
                    && let Some(known) = self.known.get_mut(&(arg(0) as i32))
                {
                    known.closes = arg(2) & 1 != 0;
                }
                return None;
            }
            "chdir" | "fchdir" => {
                self.directory = match call.name {
                    "chdir" => self
                        .named(pid, call, DIRECTORY, kernel)
                        .map(|path| shown(&path)),
                    _ => self.text(pid, arg(0) as i32, kernel),
                };
                return None;
            }
            _ => {
                let (text, flags) = self.created(pid, call, result, kernel)?;
                (text.map(Object::Named), flags)
            }
        };
        self.known.remove(&result);
        let closes = flags & CLOSE_ON_EXEC != 0;
        let text = object.as_ref().map(Object::text);
        if let Some(object) = object {
            self.known.insert(result, Descriptor { object, closes });
        }
        text
    }

    /// Returns what a call created, and its flags.
    fn created(
        &mut self,
        pid: i32,
        call: &Begun,
        result: i32,
        kernel: &mut Kernel,
    ) -> Option<(Option<Arc<str>>, u64)> {
        let arg = |index: usize| call.args.get(index).copied().unwrap_or(0);
        let of_kind = |kind: &str| {
            let link = link(&pid.to_string(), result);
            let link = link.filter(|link| link.to_string_lossy().starts_with(kind));
            Some(link.map_or_else(|| kind.into(), |link| shown(&link)))
        };
        Some(match call.name {
            "open" => (
                self.opened(pid, call, (DIRECTORY, arg(1), result), kernel),
                arg(1),
            ),
            "creat" => (self.opened(pid, call, (DIRECTORY, 0, result), kernel), 0),
            "openat" => (
                self.opened(pid, call, (arg(0) as i32, arg(2), result), kernel),
                arg(2),
            ),
            "openat2" => {
                // The flags are in memory. We assume that execve closes the descriptor; it is then looked up again.
                let text = self.opened(pid, call, (arg(0) as i32, 0, result), kernel);
                (text, CLOSE_ON_EXEC)
            }
            "socket" => (of_kind("socket"), arg(1)),
            "accept" => (of_kind("socket"), 0),
            "accept4" => (of_kind("socket"), arg(3)),
            "epoll_create" => (of_kind("anon_inode:[eventpoll]"), 0),
            "epoll_create1" => (of_kind("anon_inode:[eventpoll]"), arg(0)),
            "eventfd" => (of_kind("anon_inode:[eventfd]"), 0),
            "eventfd2" => (of_kind("anon_inode:[eventfd]"), arg(1)),
            "timerfd_create" => (of_kind("anon_inode:[timerfd]"), arg(1)),
            "signalfd" => (of_kind("anon_inode:[signalfd]"), 0),
            "signalfd4" => (of_kind("anon_inode:[signalfd]"), arg(3)),
            "inotify_init" => (of_kind("anon_inode:inotify"), 0),
            "inotify_init1" => (of_kind("anon_inode:inotify"), arg(0)),
            "fanotify_init" => (of_kind("anon_inode:[fanotify]"), 0),
            "userfaultfd" => (of_kind("anon_inode:[userfaultfd]"), arg(0)),
            "perf_event_open" => (of_kind("anon_inode:[perf_event]"), 0),
            "io_uring_setup" => (of_kind("anon_inode:[io_uring]"), CLOSE_ON_EXEC),
            "pidfd_open" if kernel.protocols => {
                let known = Descriptor::open(&pid.to_string(), result, kernel);
                let known = known.map(|known| known.object.text());
                let known = known.filter(|known| known.starts_with("pid:"));
                let text = known.unwrap_or_else(|| format!("pid:{}", arg(0)).into());
                (Some(text), CLOSE_ON_EXEC)
            }
            "pidfd_open" => (of_kind("anon_inode:[pidfd]"), CLOSE_ON_EXEC),
            "memfd_create" => {
                let name = call.path.as_deref().map(String::from_utf8_lossy);
                let name = format!("/memfd:{} (deleted)", name.unwrap_or_default());
                (Some(shown(Path::new(&name))), (arg(1) & 1) * CLOSE_ON_EXEC)
            }
            _ => return None,
        })
    }

    /// Names the two ends that a call created. For a pipe, what the kernel says about one end that is still open is
    /// true for both.
    fn paired(
        &mut self,
        pid: i32,
        call: &Begun,
        pieces: &Pieces,
        kernel: &mut Kernel,
    ) -> Vec<(i32, Arc<str>)> {
        let (argument, kind, flags) = match call.name {
            "pipe" => (0, "pipe", 0),
            "pipe2" => (0, "pipe", call.args.get(1).copied().unwrap_or(0)),
            "socketpair" => (3, "socket", call.args.get(1).copied().unwrap_or(0)),
            _ => return Vec::new(),
        };
        let Some(piece) = pieces.iter().find(|piece| piece.argument == argument) else {
            return Vec::new();
        };
        let ends = piece.bytes.chunks_exact(4);
        let ends: Vec<i32> = ends.map(|end| number(end, 0, 4) as i32).collect();
        let closes = flags & CLOSE_ON_EXEC != 0;
        if let (true, "socketpair", &[one, other]) = (kernel.protocols, call.name, &*ends) {
            let arg = |index: usize| call.args.get(index).copied().unwrap_or(0);
            let mut sockets = [one, other].map(|fd| {
                let mut socket = Socket::new(arg(0), arg(1), arg(2));
                kernel.sockets.number(&pid.to_string(), fd, &mut socket);
                socket
            });
            let [first, second] = &mut sockets;
            Socket::pair(first, second);
            let mut shown = Vec::new();
            for (fd, socket) in [one, other].into_iter().zip(sockets) {
                shown.push((fd, socket.text().into()));
                let object = Object::socket(socket);
                self.known.insert(fd, Descriptor { object, closes });
            }
            return shown;
        }
        let link = |fd: i32| {
            let link = link(&pid.to_string(), fd)?;
            let is_it = link.to_string_lossy().starts_with(kind);
            is_it.then(|| shown(&link))
        };
        let one = ends
            .iter()
            .find_map(|&fd| link(fd))
            .filter(|_| kind == "pipe");
        let mut shown = Vec::new();
        for fd in ends {
            let text: Arc<str> = one
                .clone()
                .or_else(|| link(fd))
                .unwrap_or_else(|| kind.into());
            shown.push((fd, Arc::clone(&text)));
            let object = Object::Named(text);
            self.known.insert(fd, Descriptor { object, closes });
        }
        shown
    }

    /// Returns the file that a call opened.
    fn opened(
        &mut self,
        pid: i32,
        call: &Begun,
        (at, flags, result): (i32, u64, i32),
        kernel: &mut Kernel,
    ) -> Option<Arc<str>> {
        let link = || link(&pid.to_string(), result);
        let named = match flags & WITHOUT_NAME {
            0 => self.named(pid, call, at, kernel),
            _ => None,
        };
        let path = match named {
            None => link()?,
            // These paths lead to other descriptors.
            Some(path) if path.starts_with("/dev/fd") || path.starts_with("/dev/std") => link()?,
            Some(path) if path.starts_with("/proc") => link().unwrap_or(path),
            Some(path) => {
                let real = self.same_root.then(|| fs::canonicalize(&path).ok());
                real.flatten().unwrap_or(path)
            }
        };
        if !kernel.protocols {
            return Some(shown(&path));
        }
        // It may be closed, and another file open there.
        let is_it = link().is_some_and(|link| link == path);
        let file = match is_it {
            true => fs::metadata(format!("/proc/{pid}/fd/{result}")).ok(),
            false if self.same_root => fs::metadata(&path).ok(),
            false => None,
        };
        Some(with_device(&path, file))
    }

    /// Returns the absolute form, without `.` and `..`, of the path that a call was given.
    fn named(&mut self, pid: i32, call: &Begun, at: i32, kernel: &mut Kernel) -> Option<PathBuf> {
        let name = String::from_utf8(call.path.clone()?).ok()?;
        let base = match (name.starts_with('/'), at) {
            (true, _) => "/".into(),
            (false, DIRECTORY) => self.directory(pid)?,
            (false, at) => self.text(pid, at, kernel)?,
        };
        let mut path = PathBuf::from("/");
        for part in Path::new(&*base).join(name).components() {
            match part {
                Component::ParentDir => {
                    path.pop();
                }
                Component::Normal(part) => path.push(part),
                _ => {}
            }
        }
        Some(path)
    }
}

/// Returns whether a process sees the same files by the same names as hodo; nothing if it is gone.
fn has_same_root(pid: i32) -> Option<bool> {
    let of = |pid: &str| {
        let root = fs::read_link(format!("/proc/{pid}/root")).ok()?;
        let mounts = fs::read_link(format!("/proc/{pid}/ns/mnt")).ok()?;
        Some((root, mounts))
    };
    let theirs = of(&pid.to_string())?;
    Some(of("self") == Some(theirs))
}
