//! Memory for open calls, and for the shadow of stacks.
//!
//! The shadow of all stacks is made of pieces, which are mapped when a first slot in them is needed, and stay mapped:
//! the next thread's stack is usually where the stack of an ended one was. Only touched pages take memory.

use std::sync::atomic::{AtomicUsize, Ordering};

use hodo_ftrace::SHADOW_DISTANCE;

/// The size of a piece.
const PIECE: usize = 4 << 20;
/// How many pieces there may be: 64 GB of stacks.
const PIECES: usize = 1 << 14;

/// The pieces that are mapped, a hash table with linear probing. 0 is a free place.
static MAPPED: [AtomicUsize; PIECES] = [const { AtomicUsize::new(0) }; PIECES];

/// Maps memory, at this address if it is not 0. Returns none if that is impossible, or if something is there.
pub(crate) fn map(address: usize, length: usize) -> Option<usize> {
    let fixed = if address == 0 {
        0
    } else {
        libc::MAP_FIXED_NOREPLACE
    };
    // SAFETY: nothing that exists is replaced.
    let at = unsafe {
        libc::mmap(
            address as *mut _,
            length,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | fixed,
            -1,
            0,
        )
    };
    if at == libc::MAP_FAILED {
        return None;
    }
    if address != 0 && at as usize != address {
        // Before Linux 4.17, the address is only a wish.
        // SAFETY: it was just mapped, and nobody else has it.
        unsafe { libc::munmap(at, length) };
        return None;
    }
    Some(at as usize)
}

/// Finds a piece in the table, or else the place for it.
fn find(piece: usize) -> (bool, Option<&'static AtomicUsize>) {
    for distance in 0..PIECES {
        let place = &MAPPED[(piece / PIECE + distance) % PIECES];
        match place.load(Ordering::Acquire) {
            0 => return (false, Some(place)),
            there if there == piece => return (true, Some(place)),
            _ => {}
        }
    }
    (false, None)
}

/// Maps the shadow of a slot, if it is not mapped. Returns which slots have their shadow there: from, and to before.
pub(crate) fn shadow(slot: usize) -> Option<(usize, usize)> {
    /// How often to look again whether another thread, which has just mapped the piece, has noted that.
    const ATTEMPTS: usize = 100;
    let piece = slot.checked_sub(SHADOW_DISTANCE)? & !(PIECE - 1);
    if piece == 0 {
        return None;
    }
    let slots = (piece + SHADOW_DISTANCE, piece + PIECE + SHADOW_DISTANCE);
    if find(piece).0 {
        return Some(slots);
    }
    // Without a place to note it, each thread would have to map it again.
    find(piece).1?;
    if map(piece, PIECE).is_some() {
        loop {
            let (_, place) = find(piece);
            let free = place?.compare_exchange(0, piece, Ordering::AcqRel, Ordering::Relaxed);
            if free.is_ok() {
                return Some(slots);
            }
        }
    }
    for _ in 0..ATTEMPTS {
        if find(piece).0 {
            return Some(slots);
        }
        std::thread::yield_now();
    }
    None
}
