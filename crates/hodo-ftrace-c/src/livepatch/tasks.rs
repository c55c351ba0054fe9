//! The threads of this process, as the kernel lists them.

use std::ffi::CStr;
use std::sync::Mutex;

use crate::host::is_emulated;

/// What the kernel says about a thread.
#[derive(Clone, Copy, Debug)]
pub struct Task {
    /// When it was created: with its number, this tells it from others that had the same one.
    pub started: u64,
    /// It has ended, and only its number is left.
    pub has_ended: bool,
    /// The signals that it does not take now, and those that wait for it: bit 0 is signal 1.
    pub blocked: u64,
    pub pending: u64,
}

/// Threads of qemu's user mode emulator, which execute nothing of this program.
static FOREIGN: Mutex<Vec<i32>> = Mutex::new(Vec::new());

/// Notes the threads that are there besides this one, in an emulator, when no other can have been created.
pub fn note_foreign() {
    if !is_emulated() {
        return;
    }
    let own = hodo_sys::sys::thread() as i32;
    let others = numbers().map(|all| all.into_iter().filter(|task| *task != own).collect());
    if let Ok(mut foreign) = FOREIGN.lock() {
        *foreign = others.unwrap_or_default();
    }
}

/// The numbers of all threads that existed when this was called, except for those that have ended since. None if the
/// kernel does not list them.
///
/// The kernel ends a list early if the thread that it has just listed ends at this moment, and it may leave out others
/// when it continues one. So a list counts only if one system call has returned it whole, and its last thread still
/// exists.
pub fn list() -> Option<Vec<i32>> {
    let mut all = numbers()?;
    let foreign = FOREIGN.lock().ok()?;
    all.retain(|task| !foreign.contains(task));
    all.sort_unstable();
    Some(all)
}

fn numbers() -> Option<Vec<i32>> {
    const ATTEMPTS: usize = 10_000;
    let mut buffer = vec![0u64; 8192];
    for _ in 0..ATTEMPTS {
        // SAFETY: the path ends with a zero.
        let file = unsafe {
            libc::open(
                c"/proc/self/task".as_ptr(),
                libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC,
            )
        };
        if file < 0 {
            return None;
        }
        let length = entries(file, &mut buffer);
        let rest = entries(file, &mut [0; 64]);
        // SAFETY: it was opened above.
        unsafe { libc::close(file) };
        if rest? != 0 {
            buffer.resize(buffer.len() * 2, 0);
            continue;
        }
        let all = parse(&buffer, length?);
        if all.last().is_some_and(|task| exists(*task)) {
            return Some(all);
        }
    }
    None
}

/// Reads entries of a directory. Returns how many bytes they have.
fn entries(file: i32, buffer: &mut [u64]) -> Option<usize> {
    // SAFETY: the buffer has that length.
    let length = unsafe {
        libc::syscall(
            libc::SYS_getdents64,
            file,
            buffer.as_mut_ptr(),
            size_of_val(buffer),
        )
    };
    usize::try_from(length).ok()
}

/// The numbers among the names of entries. (`getdents64(2)`: inode, offset, length, type, name.)
fn parse(buffer: &[u64], length: usize) -> Vec<i32> {
    const LENGTH: usize = 16;
    const NAME: usize = 19;
    let bytes: Vec<u8> = buffer.iter().flat_map(|word| word.to_ne_bytes()).collect();
    let bytes = &bytes[..length.min(bytes.len())];
    let mut all = Vec::new();
    let mut at = 0;
    while let Some(size) = bytes.get(at + LENGTH..at + LENGTH + 2) {
        let size = usize::from(u16::from_ne_bytes([size[0], size[1]]));
        let Some(name) = bytes.get(at + NAME..at + size) else {
            break;
        };
        let name = CStr::from_bytes_until_nul(name)
            .ok()
            .and_then(|name| name.to_str().ok());
        all.extend(name.and_then(|name| name.parse::<i32>().ok()));
        at += size;
    }
    all
}

/// Sends a signal to a thread; 0 sends none. Returns whether it exists.
pub fn send(task: i32, signal: i32) -> bool {
    // SAFETY: the handler is in place, or the signal is 0.
    unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), task, signal) == 0 }
}

/// Returns whether a thread exists.
fn exists(task: i32) -> bool {
    send(task, 0)
}

/// What the kernel says about a thread; none if it does not exist any more, or cannot be read.
pub fn look(task: i32) -> Option<Task> {
    let stat = std::fs::read_to_string(format!("/proc/self/task/{task}/stat")).ok()?;
    let status = std::fs::read_to_string(format!("/proc/self/task/{task}/status")).ok()?;
    // After the name, which may contain anything: the state is field 3, the start time field 22. (`proc(5)`)
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace();
    let state = fields.next()?;
    let started = fields.nth(18)?.parse().ok()?;
    // An emulator keeps these sets for the program itself, and blocks others.
    let of_program = |set| if is_emulated() { 0 } else { set };
    let set = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        u64::from_str_radix(line.trim(), 16).ok()
    };
    Some(Task {
        started,
        has_ended: matches!(state, "Z" | "X"),
        blocked: set("SigBlk:").map(of_program)?,
        pending: set("SigPnd:").map(of_program)?,
    })
}

/// The stack pointer and the program counter of a thread that waits in the kernel; none if it runs.
pub fn sleeping(task: i32) -> Option<(usize, usize)> {
    let text = std::fs::read_to_string(format!("/proc/self/task/{task}/syscall")).ok()?;
    let mut last = text.split_ascii_whitespace().rev();
    let mut number = || usize::from_str_radix(last.next()?.strip_prefix("0x")?, 16).ok();
    let (pc, stack) = (number()?, number()?);
    Some((stack, pc))
}
