//! The table of threads, which says who is running a handler. It needs no libc: a thread finds its entry through eight
//! bytes of thread-local memory that start as zeros.

use core::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering};

use super::arch::common;
use super::environment::{self, Errno, Use};
use super::layout::Thread;

/// How many threads can have an entry at once. Further threads miss all hits, which are counted together.
static THREADS: AtomicUsize = AtomicUsize::new(0);

static TABLE: AtomicPtr<Thread> = AtomicPtr::new(core::ptr::null_mut());
/// Hits of threads for which there was no entry.
pub(super) static UNKNOWN: AtomicU64 = AtomicU64::new(0);

/// Makes the table.
pub(super) fn start() -> Result<(), Errno> {
    if TABLE.load(Ordering::Acquire).is_null() {
        let threads = environment::current().most();
        let size = threads * size_of::<Thread>();
        let table = environment::current().map(0, size, Use::Sparse)?;
        THREADS.store(threads, Ordering::Relaxed);
        TABLE.store(table as *mut Thread, Ordering::Release);
    }
    Ok(())
}

/// All entries that have been used are below this.
static HIGHEST: AtomicUsize = AtomicUsize::new(0);

fn used() -> &'static [Thread] {
    table(HIGHEST.load(Ordering::Acquire))
}

fn table(entries: usize) -> &'static [Thread] {
    let table = TABLE.load(Ordering::Acquire);
    if table.is_null() {
        return &[];
    }
    // SAFETY: the mapping has that many entries and stays; all zeros is a valid entry.
    unsafe { core::slice::from_raw_parts(table, entries) }
}

/// The running thread's entry, claimed if needed; `None` if there is no room.
pub(super) fn current() -> Option<&'static Thread> {
    // SAFETY: the pointer is null or points into the table.
    unsafe { claim().as_ref() }
}

/// The entry, for assembly: null if there is no room.
pub(super) extern "C" fn claim() -> *const Thread {
    let known = common::thread_pointer();
    if !known.is_null() {
        return known;
    }
    let tid = environment::current().current();
    for (index, thread) in table(THREADS.load(Ordering::Relaxed)).iter().enumerate() {
        let free = thread.tid.load(Ordering::Relaxed) == 0
            && thread
                .tid
                .compare_exchange(0, tid, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok();
        if free {
            HIGHEST.fetch_max(index + 1, Ordering::AcqRel);
            // A signal handler that interrupted this may have claimed one first.
            let known = common::thread_pointer();
            if !known.is_null() {
                thread.tid.store(0, Ordering::Release);
                return known;
            }
            // SAFETY: the entry is ours, and entries stay.
            unsafe { common::set_thread_pointer(thread) };
            return thread;
        }
    }
    core::ptr::null()
}

/// Returns whether the running thread is in a handler.
pub(super) fn in_handler() -> bool {
    current().is_some_and(|thread| thread.busy.load(Ordering::Relaxed) != 0)
}

/// Waits until all handlers that are running now have ended: then nobody uses what was removed from the lists before.
pub(super) fn wait() {
    // From here on, a thread that does not show as busy sees the lists as they are now.
    environment::current().barrier();
    let mine = common::thread_pointer();
    for thread in used() {
        if thread.tid.load(Ordering::Acquire) == 0 || core::ptr::eq(thread, mine) {
            continue;
        }
        let sequence = thread.sequence.load(Ordering::Acquire);
        let mut tries = 0u32;
        while (thread.busy.load(Ordering::Acquire) | thread.trapping.load(Ordering::Acquire)) != 0
            && thread.sequence.load(Ordering::Acquire) == sequence
        {
            tries += 1;
            if tries > 100 {
                // A thread that ended inside a handler never comes back.
                let tid = thread.tid.load(Ordering::Relaxed);
                if tries.is_multiple_of(1000) && !environment::current().exists(tid) {
                    thread.busy.store(0, Ordering::Release);
                    thread.trapping.store(0, Ordering::Release);
                }
                environment::current().pause();
            }
        }
    }
}

/// Takes back the entries of threads that have ended. Costs a system call per entry in use.
pub(super) fn sweep() {
    let mine = common::thread_pointer();
    for thread in used() {
        let tid = thread.tid.load(Ordering::Acquire);
        if tid != 0 && !core::ptr::eq(thread, mine) && !environment::current().exists(tid) {
            clear(thread);
        }
    }
}

/// Called in a child of `fork`, which has one thread: frees the entries of all others.
pub(super) fn forked() {
    let mine = common::thread_pointer();
    for thread in used() {
        if core::ptr::eq(thread, mine) {
            thread
                .tid
                .store(environment::current().current(), Ordering::Release);
        } else if thread.tid.load(Ordering::Acquire) != 0 {
            clear(thread);
        }
    }
}

fn clear(thread: &Thread) {
    thread.busy.store(0, Ordering::Release);
    thread.recover_pc.store(0, Ordering::Release);
    thread.trapping.store(0, Ordering::Release);
    thread.tid.store(0, Ordering::Release);
}

/// Returns whether more than half of the entries are in use.
pub(super) fn are_many() -> bool {
    let in_use = used()
        .iter()
        .filter(|thread| thread.tid.load(Ordering::Relaxed) != 0);
    in_use.count() > THREADS.load(Ordering::Relaxed) / 2
}
