//! Counts the threads that are calling registered functions, so that a function can be removed once no thread is in it.
//!
//! There is an array of cells with two counters each. A thread picks a cell by the position of its stack, so that
//! threads seldom share one. A hit counts itself in before it looks up the functions. Whoever has removed a function
//! waits until it has seen each counter at zero once: any hit that may have found the function has counted itself in
//! before. While it waits for one of the two counters, new hits use the other, so the wait ends.
//!
//! A child of fork has copies of the counters but not the threads. So the counters are in memory that the kernel clears
//! there (`MADV_WIPEONFORK`). The thread that forks may itself be counted in; the upper half of a counter says whose
//! count it is.

use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use crate::lock;

const CELLS: usize = 32;

/// Two counters. The lower half is the number of hits that are in. The upper half is nonzero if the counter was ever
/// used, and differs between processes.
#[derive(Debug)]
#[repr(C, align(128))]
struct Cell([AtomicU64; 2]);

type Cells = [Cell; CELLS];

/// For kernels that do not clear memory in children.
static FIXED: Cells = [const { Cell([const { AtomicU64::new(0) }; 2]) }; CELLS];

static CURRENT: AtomicPtr<Cells> = AtomicPtr::new((&raw const FIXED).cast_mut());

/// Which of the two counters new hits use.
static PHASE: AtomicUsize = AtomicUsize::new(0);

/// The last number that was given to an upper half.
static MARKS: AtomicU32 = AtomicU32::new(0);

const ONE: u64 = 1 << 32;

/// Moves the counters to memory that is cleared in children. Called under the lock, before the first function is
/// registered.
#[cfg(target_os = "linux")]
pub fn prepare(_: &lock::Guard) {
    let fixed = (&raw const FIXED).cast_mut();
    if CURRENT.load(Ordering::Relaxed) != fixed {
        return;
    }
    if let Ok(memory) = hodo_sys::sys::wiped_in_children(size_of::<Cells>()) {
        // The counters may be zero: nobody is in, because there is no function yet.
        CURRENT.store(memory.cast(), Ordering::Release);
    }
}

#[cfg(not(target_os = "linux"))]
pub fn prepare(_: &lock::Guard) {}

fn cells() -> &'static Cells {
    // SAFETY: it is never unmapped.
    unsafe { &*CURRENT.load(Ordering::Acquire) }
}

/// A hit that is counted in.
#[derive(Debug)]
pub struct Reader {
    counter: &'static AtomicU64,
    mark: u64,
}

/// Counts the caller in: a function that it finds from now on lives as long as the result.
pub fn enter() -> Reader {
    let stack = 0_u8;
    // Stacks are far apart; the lower bits only say how deep the thread is in its own.
    let stack = ((&raw const stack).addr() >> 16).wrapping_mul(0x9E37_79B9_7F4A_7C15_u64 as usize);
    let cell = &cells()[stack >> (usize::BITS - CELLS.ilog2())];
    let counter = &cell.0[PHASE.load(Ordering::Relaxed) & 1];
    let mut old = counter.load(Ordering::Relaxed);
    loop {
        let new = if old < ONE {
            // The kernel has cleared it.
            u64::from(MARKS.fetch_add(1, Ordering::Relaxed).wrapping_add(1)) * ONE + 1
        } else {
            old + 1
        };
        match counter.compare_exchange_weak(old, new, Ordering::SeqCst, Ordering::Relaxed) {
            Ok(_) => {
                let mark = new / ONE;
                return Reader { counter, mark };
            }
            Err(now) => old = now,
        }
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        let _ = self
            .counter
            .fetch_update(Ordering::Release, Ordering::Relaxed, |now| {
                // Another mark: this thread has forked in the meantime, and is in the child, where it is not counted.
                (now / ONE == self.mark).then(|| now - 1)
            });
    }
}

/// Waits until all hits that are in now are out.
pub fn wait() {
    core::sync::atomic::fence(Ordering::SeqCst);
    let first = !PHASE.load(Ordering::SeqCst) & 1;
    for phase in [first, first ^ 1] {
        for cell in cells() {
            let mut rounds = 0;
            while cell.0[phase].load(Ordering::SeqCst) % ONE != 0 {
                // Another waiting thread may have turned it back.
                PHASE.store(phase ^ 1, Ordering::SeqCst);
                lock::pause_longer(rounds);
                rounds += 1;
            }
        }
    }
}
