//! What the layers need from a Linux program.

use std::arch::global_asm;
use std::cell::UnsafeCell;
use std::ffi::c_void;
use std::fmt::Write;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use hodo_ftrace::{Call, Environment, Open, Thread};

use crate::writer::Writer;
use crate::{arch, map};

/// How many calls of a thread may be open.
const DEPTH: usize = 1024;

/// What a thread has.
#[repr(C)]
struct Own {
    thread: Thread,
    /// The thread ends: its memory has been given back.
    has_ended: AtomicBool,
    calls: UnsafeCell<*mut Open>,
    writer: Writer,
}

// Rust's own thread-local variables are found by a call of `__tls_get_addr` in a shared library, which may allocate
// memory and use vector registers. This one is found by two instructions, and the library must be there when the
// program starts, or find room among the variables of those libraries (glibc reserves some).
global_asm!(
    ".pushsection .tbss.hodo_ftrace_thread, \"awT\", @nobits",
    ".balign 64",
    ".globl hodo_ftrace_thread",
    ".hidden hodo_ftrace_thread",
    ".type hodo_ftrace_thread, @object",
    ".size hodo_ftrace_thread, {size}",
    "hodo_ftrace_thread:",
    ".zero {size}",
    ".popsection",
    size = const size_of::<Own>(),
);

fn own() -> &'static Own {
    // SAFETY: the variable is as large as this type, and all zeros is a value of it. It exists as long as the thread.
    unsafe { &*(arch::thread() as *const Own) }
}

/// The data of the calling thread.
pub(crate) fn thread() -> &'static Thread {
    &own().thread
}

/// What the calling thread needs to record calls.
pub(crate) fn writer() -> &'static Writer {
    &own().writer
}

/// What is called when a traced thread ends.
static AT_THREAD_END: OnceLock<fn()> = OnceLock::new();

/// Sets what is called when a traced thread ends.
pub(crate) fn at_thread_end(action: fn()) {
    let _ = AT_THREAD_END.set(action);
}

/// Keeps `errno`: an instrumented function must not see that it was traced.
pub(crate) fn keeping_errno<T>(action: impl FnOnce() -> T) -> T {
    // SAFETY: it is the address of this thread's own.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: as above.
    let before = unsafe { *errno };
    let result = action();
    // SAFETY: as above.
    unsafe { *errno = before };
    result
}

/// Gives the memory of a thread that ends back.
extern "C" fn thread_ends(_: *mut c_void) {
    let own = own();
    own.has_ended.store(true, Ordering::Relaxed);
    if let Some(action) = AT_THREAD_END.get() {
        action();
    }
    // SAFETY: `prepare` does not set them again. A hook that runs keeps its call: then, nothing is given back.
    unsafe {
        own.thread.set_open_calls(std::ptr::null_mut(), 0);
        libc::munmap((*own.calls.get()).cast(), DEPTH * size_of::<Open>());
    }
}

/// Gives the calling thread memory for its calls.
fn give_calls(own: &'static Own) -> bool {
    static KEY: OnceLock<Option<libc::pthread_key_t>> = OnceLock::new();
    let key = KEY.get_or_init(|| {
        let mut key = 0;
        // SAFETY: the function takes such an argument.
        (unsafe { libc::pthread_key_create(&mut key, Some(thread_ends)) } == 0).then_some(key)
    });
    let Some(key) = *key else { return false };
    let Some(calls) = map::map(0, DEPTH * size_of::<Open>()) else {
        return false;
    };
    let calls = calls as *mut Open;
    // Any value that is not null makes `thread_ends` be called.
    // SAFETY: the key exists.
    let registered = unsafe { libc::pthread_setspecific(key, calls.cast()) } == 0;
    if !registered {
        // SAFETY: it was just mapped.
        unsafe { libc::munmap(calls.cast(), DEPTH * size_of::<Open>()) };
        return false;
    }
    // SAFETY: only this thread uses it. The memory is new, and stays until the thread ends.
    unsafe {
        *own.calls.get() = calls;
        own.thread.set_open_calls(calls, DEPTH);
    }
    true
}

/// A Linux program.
pub(crate) struct Linux;

// SAFETY: each thread has its own variable; finding it takes two instructions. `prepare` sets memory that it has
// mapped. Nothing in this library is instrumented.
unsafe impl Environment for Linux {
    #[inline]
    fn thread() -> Option<&'static Thread> {
        Some(thread())
    }

    fn thread_offset() -> Option<isize> {
        Some(arch::thread_offset())
    }

    fn has_vectors() -> bool {
        arch::has_vectors()
    }

    fn prepare(thread: &'static Thread, slot: usize) -> bool {
        keeping_errno(|| {
            let own = own();
            if own.has_ended.load(Ordering::Relaxed) {
                return false;
            }
            let Some((from, to)) = map::shadow(slot) else {
                return false;
            };
            // SAFETY: it is mapped.
            unsafe { thread.set_shadow(from, to) };
            thread.has_open_calls() || give_calls(own)
        })
    }

    fn frame_mismatch(call: &Call, expected: usize, found: usize, abort: bool) {
        keeping_errno(|| {
            let mut line = Line {
                text: [0; 200],
                length: 0,
            };
            // A longer line is cut.
            let _ = writeln!(
                line,
                "hodo-ftrace: {:#x}, called from {:#x}, returned with the frame pointer {found:#x}, not {expected:#x}",
                call.func, call.parent,
            );
            // SAFETY: the text has that length. If it cannot be written, nobody reads it.
            unsafe { libc::write(2, line.text.as_ptr().cast(), line.length) };
        });
        if abort {
            // SAFETY: it ends the program.
            unsafe { libc::abort() };
        }
    }
}

/// A line of text that needs no allocation: the program may be inside `malloc`.
struct Line {
    text: [u8; 200],
    length: usize,
}

impl Write for Line {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        let room = &mut self.text[self.length..];
        let length = text.len().min(room.len());
        room[..length].copy_from_slice(&text.as_bytes()[..length]);
        self.length += length;
        Ok(())
    }
}
