//! The hooks, and what they keep for each thread.
//!
//! Hooks must not use vector registers, whose values belong to the program: words are atomic for the reason that
//! `hodo-ftrace/src/thread.rs` gives. What happens seldom, [`prepare`], may use them.

use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};

use hodo_ftrace::dynamic::site_at;
use hodo_ftrace::{Call, stack_slot, with_vectors};
use hodo_trace::format::record::{ENTRY, EXIT, ID_BITS, SPECIAL};

use super::events::LOST;
use super::recording;
use crate::arch::{self, STACK_POINTER};
use crate::linux;
use crate::writer::Writer;

/// The size of a window of stack pointers.
const WINDOW: usize = 16 << 10;
/// The most records that a call takes: an epoch, a window, and its own.
const RECORDS: usize = 3 * size_of::<u64>();
/// Ids of special records.
const EPOCH_RECORD: u32 = 1;
const WINDOW_RECORD: u32 = 4;

/// A word that is 1 in a process that records, and 0 in its children until they do.
static ALIVE: AtomicPtr<AtomicU32> = AtomicPtr::new(std::ptr::null_mut());

fn alive() -> Option<&'static AtomicU32> {
    // SAFETY: it is null, or what `start` has mapped for ever.
    unsafe { ALIVE.load(Ordering::Relaxed).as_ref() }
}

/// A child of `fork` begins. (Emulators do not wipe the page.)
pub fn forked() {
    if let Some(alive) = alive() {
        alive.store(0, Ordering::Relaxed);
    }
}

/// The process begins to record.
pub fn start() {
    if let Ok(page) = hodo_sys::sys::wiped_in_children(size_of::<AtomicU32>()) {
        ALIVE.store(page.cast(), Ordering::Release);
    }
    // The first task belongs to the thread that starts, also if it calls nothing.
    prepare(0, 0);
}

/// There is no room for more chunks. Nobody tries again: that would take much more time than a call.
static FULL: AtomicBool = AtomicBool::new(false);

/// The lower bits of a stack pointer, as records have them.
fn bits(stack: usize) -> u64 {
    (stack as u64 >> 4 & 0x3FF) << 54
}

/// Appends a record. Returns false if it is lost.
fn append(kind: u32, id: u32, stack: usize) -> bool {
    let writer = linux::writer();
    if writer.busy.load(Ordering::Relaxed) {
        // Not exact, if a signal handler interrupts this.
        writer
            .lost
            .store(writer.lost.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        return false;
    }
    writer.busy.store(true, Ordering::Relaxed);
    let mut now = arch::counter();
    let next = writer.next.load(Ordering::Relaxed);
    let is_near =
        kind == EXIT || stack.wrapping_sub(writer.window.load(Ordering::Relaxed)) < WINDOW;
    let is_alive = alive().is_some_and(|alive| alive.load(Ordering::Relaxed) != 0);
    let is_ready = is_near
        && is_alive
        && next + RECORDS <= writer.end.load(Ordering::Relaxed)
        && (now >> 32) as u32 == writer.epoch.load(Ordering::Relaxed);
    if !is_ready && next == 0 && FULL.load(Ordering::Relaxed) {
        writer
            .lost
            .store(writer.lost.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        writer.busy.store(false, Ordering::Relaxed);
        return false;
    }
    if !is_ready {
        // An exit needs no window.
        let near = if kind == EXIT { 0 } else { stack };
        if with_vectors(prepare, near, 0) == 0 {
            writer
                .lost
                .store(writer.lost.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
            writer.busy.store(false, Ordering::Relaxed);
            return false;
        }
        now = arch::counter();
    }
    let upper = u64::from(id | kind << ID_BITS) << 32;
    put(writer, bits(stack) | upper | now & 0xFFFF_FFFF);
    writer.busy.store(false, Ordering::Relaxed);
    true
}

/// Writes a record for which there is room.
fn put(writer: &Writer, record: u64) {
    let next = writer.next.load(Ordering::Relaxed);
    // SAFETY: the chunk is mapped, belongs to this thread, and has room for it.
    unsafe { &*(next as *const AtomicU64) }.store(record, Ordering::Relaxed);
    writer
        .next
        .store(next + size_of::<u64>(), Ordering::Relaxed);
}

/// Prepares the calling thread for a record of an entry with this stack pointer, or of an exit (0). Returns 0 if there
/// is no room for it.
extern "C" fn prepare(stack: usize, _: usize) -> usize {
    linux::keeping_errno(|| usize::from(prepare_writer(linux::writer(), stack).is_some()))
}

fn prepare_writer(writer: &Writer, stack: usize) -> Option<()> {
    let recording = recording()?;
    let alive = alive()?;
    if alive.load(Ordering::Relaxed) == 0 {
        let parent = writer.task.swap(0, Ordering::Relaxed);
        writer.next.store(0, Ordering::Relaxed);
        writer.end.store(0, Ordering::Relaxed);
        alive.store(1, Ordering::Relaxed);
        let kind = if parent == 0 { "start" } else { "fork" };
        begin_task(writer, kind, parent);
    } else if writer.task.load(Ordering::Relaxed) == 0 {
        begin_task(writer, "thread", 1);
    }
    let now = arch::counter();
    let epoch = (now >> 32) as u32;
    if writer.next.load(Ordering::Relaxed) + RECORDS > writer.end.load(Ordering::Relaxed) {
        let task = writer.task.load(Ordering::Relaxed);
        let seq = writer.seq.load(Ordering::Relaxed);
        let lost = writer.lost.load(Ordering::Relaxed);
        let Some((next, end)) = recording.events.chunk(task, seq, epoch, lost) else {
            writer.next.store(0, Ordering::Relaxed);
            writer.end.store(0, Ordering::Relaxed);
            FULL.store(true, Ordering::Relaxed);
            return None;
        };
        writer.seq.store(seq + 1, Ordering::Relaxed);
        writer.next.store(next, Ordering::Relaxed);
        writer.end.store(end, Ordering::Relaxed);
        writer.epoch.store(epoch, Ordering::Relaxed);
    }
    let special = |id: u32| u64::from(id | SPECIAL << ID_BITS) << 32;
    if epoch != writer.epoch.load(Ordering::Relaxed) {
        put(writer, special(EPOCH_RECORD) | u64::from(epoch));
        writer.epoch.store(epoch, Ordering::Relaxed);
    }
    if stack != 0 && stack.wrapping_sub(writer.window.load(Ordering::Relaxed)) >= WINDOW {
        let window = stack.saturating_sub(WINDOW / 2) & !31;
        let address = window as u64;
        let record =
            special(WINDOW_RECORD) | address >> 5 & 0xFFFF_FFFF | (address >> 37 & 0x3FF) << 54;
        put(writer, record);
        writer.window.store(window, Ordering::Relaxed);
    }
    Some(())
}

fn begin_task(writer: &Writer, kind: &str, parent: u32) {
    let Some(recording) = recording() else { return };
    writer.seq.store(0, Ordering::Relaxed);
    writer.lost.store(0, Ordering::Relaxed);
    writer.window.store(0, Ordering::Relaxed);
    let task = recording.texts.task(&recording.events, kind, parent);
    writer.task.store(task, Ordering::Relaxed);
}

/// The calling thread ends.
pub fn thread_ends() {
    let writer = linux::writer();
    let task = writer.task.load(Ordering::Relaxed);
    let is_alive = alive().is_some_and(|alive| alive.load(Ordering::Relaxed) != 0);
    let Some(recording) = recording().filter(|_| task != 0 && is_alive) else {
        return;
    };
    let lost = writer.lost.swap(0, Ordering::Relaxed);
    recording
        .events
        .word(LOST)
        .fetch_add(lost, Ordering::Relaxed);
    recording.texts.task_end(task);
}

/// The stack pointer at the entry.
fn stack(call: &Call) -> usize {
    // SAFETY: a hook was given it.
    (unsafe { stack_slot(call) }) + STACK_POINTER
}

/// The hook for entries.
pub extern "C" fn enter(call: &mut Call) -> i32 {
    let Some(id) = site_at(call.func)
        .map(|site| site.id())
        .filter(|id| *id != 0)
    else {
        return 0;
    };
    call.data = id as usize;
    i32::from(append(ENTRY, id, stack(call)))
}

/// The hook for returns.
pub extern "C" fn leave(call: &mut Call) {
    append(EXIT, call.data as u32, stack(call));
}
