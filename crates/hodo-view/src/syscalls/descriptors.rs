//! What the descriptors of a program refer to (`-y`) while it is being recorded.
//!
//! Calls are shown some time after they were made, and by then the descriptor may be closed. So we follow the calls
//! that create, copy and close descriptors. The name of a file comes from the call that opened it. The name of a pipe
//! or a socket comes from `/proc/PID/fd` if it is still open. Descriptors that a process had from the beginning, or
//! received in other ways, are looked up there when they are first used.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fs;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use hodo_abi::Isa;
use hodo_trace::syscalls::{by_number, number as number_of, piece};

use super::arg_kinds::{ArgKind, Before, words};
use super::read::{Args, Enter, Exit, Pieces};
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

/// Returns the numbers of the calls that must be recorded so that descriptors can be named.
#[must_use]
pub fn followed_syscalls(machine: Isa) -> Vec<u64> {
    let numbers = FOLLOWED.iter().filter_map(|name| number_of(machine, name));
    numbers.collect()
}

/// A descriptor.
#[derive(Debug, Clone)]
struct Descriptor {
    /// What it refers to.
    text: Arc<str>,
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
    is_shown: bool,
}

/// The descriptors of all processes.
#[derive(Debug, Default)]
pub(super) struct Descriptors {
    /// The calls that are shown, if not all.
    only: Option<Vec<u64>>,
    processes: HashMap<i32, Process>,
    begun: HashMap<usize, Vec<Begun>>,
}

impl Descriptors {
    pub fn new(only: Option<Vec<u64>>) -> Self {
        Self {
            only,
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
                self.processes.insert(task.pid, Process::started(task.pid));
            }
            _ => {
                let parent = parent.and_then(|parent| self.processes.get(&parent.pid));
                let process = parent
                    .cloned()
                    .unwrap_or_else(|| Process::running(task.pid));
                self.processes.insert(task.pid, process);
            }
        }
    }

    /// Takes the beginning of a call and adds what its descriptors refer to. Returns whether it is shown.
    pub fn enter(&mut self, source: &Source, enter: &mut Enter) -> bool {
        let is_shown = (self.only.as_ref()).is_none_or(|only| only.contains(&enter.number));
        let pid = source.task(enter.task).pid;
        let process = (self.processes.entry(pid)).or_insert_with(|| Process::running(pid));
        let words = words(enter.machine, enter.number).unwrap_or_default();
        for (at, (word, &value)) in words.iter().zip(enter.args.iter()).enumerate() {
            let text = match (word.kind, value as i32) {
                (ArgKind::Before(Before::Directory), DIRECTORY) => process.directory(pid),
                (ArgKind::Before(Before::Directory) | ArgKind::Descriptor, fd) => {
                    process.text(pid, fd)
                }
                _ => None,
            };
            if let Some(text) = text {
                enter.names.push((at as u8, text));
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
            let process = (self.processes.entry(pid)).or_insert_with(|| Process::running(pid));
            exit.name = process.done(pid, &begun, exit.value as i32);
            process.paired(pid, &begun, &exit.pieces);
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
    fn open(pid: &str, fd: i32) -> Option<Self> {
        let text = shown(&link(pid, fd)?);
        let about = fs::read_to_string(format!("/proc/{pid}/fdinfo/{fd}")).unwrap_or_default();
        let flags = (about.lines()).find_map(|line| line.strip_prefix("flags:"));
        let flags = flags.and_then(|flags| u64::from_str_radix(flags.trim(), 8).ok());
        Some(Self {
            text,
            closes: flags.is_some_and(|flags| flags & CLOSE_ON_EXEC != 0),
        })
    }
}

impl Process {
    /// Creates the descriptors of a process that hodo has just started. It has hodo's standard streams and working
    /// directory.
    fn started(pid: i32) -> Self {
        let streams = (0..3).filter_map(|fd| {
            let open = Descriptor::open("self", fd)?;
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
    fn running(pid: i32) -> Self {
        let of = pid.to_string();
        let open = fs::read_dir(format!("/proc/{pid}/fd"));
        let open = open.into_iter().flatten().flatten();
        let fds = open.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        Self {
            known: fds
                .filter_map(|fd| Some((fd, Descriptor::open(&of, fd)?)))
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
    fn text(&mut self, pid: i32, fd: i32) -> Option<Arc<str>> {
        if fd < 0 {
            return None;
        }
        let known = match self.known.entry(fd) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(place) => place.insert(Descriptor::open(&pid.to_string(), fd)?),
        };
        Some(Arc::clone(&known.text))
    }

    /// Applies what a call did to the descriptors. Returns what its result refers to.
    fn done(&mut self, pid: i32, call: &Begun, result: i32) -> Option<Arc<str>> {
        let arg = |index: usize| call.args.get(index).copied().unwrap_or(0);
        let of_kind = |kind: &str| {
            let link = link(&pid.to_string(), result);
            let link = link.filter(|link| link.to_string_lossy().starts_with(kind));
            Some(link.map_or_else(|| kind.into(), |link| shown(&link)))
        };
        let (text, flags) = match call.name {
            "open" => (self.opened(pid, call, DIRECTORY, arg(1), result), arg(1)),
            "creat" => (self.opened(pid, call, DIRECTORY, 0, result), 0),
            "openat" => (
                self.opened(pid, call, arg(0) as i32, arg(2), result),
                arg(2),
            ),
            "openat2" => {
                // The flags are in memory. We assume that execve closes the descriptor; it is then looked up again.
                let text = self.opened(pid, call, arg(0) as i32, 0, result);
                (text, CLOSE_ON_EXEC)
            }
            "dup" | "dup2" | "dup3" => {
                let flags = if call.name == "dup3" { arg(2) } else { 0 };
                (self.text(pid, arg(0) as i32), flags)
            }
            "fcntl" => match arg(1) {
                0 => (self.text(pid, arg(0) as i32), 0),
                1030 => (self.text(pid, arg(0) as i32), CLOSE_ON_EXEC),
                2 => {
                    if let Some(known) = self.known.get_mut(&(arg(0) as i32)) {
                        known.closes = arg(2) & 1 != 0;
                    }
                    return None;
                }
                _ => return None,
            },
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
            "pidfd_open" => (of_kind("pidfd"), CLOSE_ON_EXEC),
            "memfd_create" => {
                let name = call.path.as_deref().map(String::from_utf8_lossy);
                let name = format!("/memfd:{} (deleted)", name.unwrap_or_default());
                (Some(shown(Path::new(&name))), (arg(1) & 1) * CLOSE_ON_EXEC)
            }
            "chdir" | "fchdir" => {
                self.directory = match call.name {
                    "chdir" => self.named(pid, call, DIRECTORY).map(|path| shown(&path)),
                    _ => self.text(pid, arg(0) as i32),
                };
                return None;
            }
            _ => return None,
        };
        self.known.remove(&result);
        let closes = flags & CLOSE_ON_EXEC != 0;
        let descriptor = text.clone().map(|text| Descriptor { text, closes });
        if let Some(descriptor) = descriptor {
            self.known.insert(result, descriptor);
        }
        text
    }

    /// Names the two ends that a call created. For a pipe, what the kernel says about one end that is still open is
    /// true for both.
    fn paired(&mut self, pid: i32, call: &Begun, pieces: &Pieces) {
        let (argument, kind, flags) = match call.name {
            "pipe" => (0, "pipe", 0),
            "pipe2" => (0, "pipe", call.args.get(1).copied().unwrap_or(0)),
            "socketpair" => (3, "socket", call.args.get(1).copied().unwrap_or(0)),
            _ => return,
        };
        let Some(piece) = pieces.iter().find(|piece| piece.argument == argument) else {
            return;
        };
        let ends = piece.bytes.chunks_exact(4);
        let ends: Vec<i32> = ends.map(|end| number(end, 0, 4) as i32).collect();
        let link = |fd: i32| {
            let link = link(&pid.to_string(), fd)?;
            let is_it = link.to_string_lossy().starts_with(kind);
            is_it.then(|| shown(&link))
        };
        let one = ends
            .iter()
            .find_map(|&fd| link(fd))
            .filter(|_| kind == "pipe");
        for fd in ends {
            let text = one
                .clone()
                .or_else(|| link(fd))
                .unwrap_or_else(|| kind.into());
            let closes = flags & CLOSE_ON_EXEC != 0;
            self.known.insert(fd, Descriptor { text, closes });
        }
    }

    /// Returns the file that a call opened.
    fn opened(
        &mut self,
        pid: i32,
        call: &Begun,
        at: i32,
        flags: u64,
        result: i32,
    ) -> Option<Arc<str>> {
        let link = || link(&pid.to_string(), result);
        let named = match flags & WITHOUT_NAME {
            0 => self.named(pid, call, at),
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
        Some(shown(&path))
    }

    /// Returns the absolute form, without `.` and `..`, of the path that a call was given.
    fn named(&mut self, pid: i32, call: &Begun, at: i32) -> Option<PathBuf> {
        let name = String::from_utf8(call.path.clone()?).ok()?;
        let base = match (name.starts_with('/'), at) {
            (true, _) => "/".into(),
            (false, DIRECTORY) => self.directory(pid)?,
            (false, at) => self.text(pid, at)?,
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
