//! What brings a thread back that was making system calls for hodo when hodo ended: it returns from a handler that was
//! never called. The frame of that handler is on its stack.

use super::numbers::{PC, STATE};
use super::sigframe::{self, FLOATING_POINT, frame};
use super::vectors::{Scalable, short};
use crate::arch::linked::Regs;
use crate::stopped::Stopped;

/// What begins a record in a frame: the kind, and the bytes. The last one is zero, and has 16 bytes.
const FURTHER: (u32, u32) = (sigframe::FURTHER, 32);
const SCALABLE: u32 = 0x5356_4501;
const LAST: u64 = 16;
/// A flag of vectors: the thread was in streaming mode.
const STREAMING: u16 = 1;

/// A frame, as it is filled from its start.
struct Bytes(Vec<u8>);

impl Bytes {
    fn words(&mut self, words: &[u64]) {
        self.0
            .extend(words.iter().flat_map(|word| word.to_le_bytes()));
    }

    fn begin_record(&mut self, (kind, size): (u32, u32)) {
        self.words(&[u64::from(kind) | u64::from(size) << 32]);
    }

    /// Zeros up to an offset.
    fn fill(&mut self, to: u64) {
        self.0.resize(to as usize, 0);
    }

    /// Zeros to a multiple of this many bytes.
    fn align(&mut self, to: u64) {
        self.fill((self.0.len() as u64).next_multiple_of(to));
    }
}

/// Bytes of the record of scalable vectors.
fn size_of_record(vectors: &Scalable) -> u64 {
    let registers = vectors.registers().map_or(0, <[u8]>::len) as u64;
    (16 + registers).next_multiple_of(16)
}

/// The records of a frame. `at`: the address where they begin.
fn records(bytes: &mut Bytes, thread: Stopped, at: u64, whole: Option<&Scalable>) -> Option<()> {
    let (vectors, state) = short(thread)?;
    bytes.begin_record(FLOATING_POINT);
    bytes.0.extend(state);
    bytes.0.extend(vectors);
    let Some(whole) = whole else {
        bytes.words(&[0; 2]);
        return Some(());
    };
    // They may be too long for the frame: further records are where it says, right after the last one in it.
    let size = size_of_record(whole);
    bytes.begin_record(FURTHER);
    let further = at + u64::from(FLOATING_POINT.1 + FURTHER.1) + LAST;
    bytes.words(&[further, size + LAST, 0]);
    bytes.words(&[0; 2]);
    bytes.begin_record((SCALABLE, size as u32));
    let flags = if whole.streaming { STREAMING } else { 0 };
    bytes.0.extend((whole.vector as u16).to_le_bytes());
    bytes.0.extend(flags.to_le_bytes());
    bytes.align(16);
    bytes.0.extend(whole.registers()?);
    bytes.align(16);
    bytes.words(&[0; 2]);
    Some(())
}

impl Regs {
    /// What a thread with these registers and this signal mask needs to go on from [`hodo_agent::call_and_home`], and
    /// where: below all that it has on its stack. A system call that it was stopped in is made again.
    pub fn home(&self, thread: Stopped, mask: u64) -> Option<(u64, Vec<u8>)> {
        /// No flags of an alternate stack: the kernel leaves the thread the one that it has.
        const NO_STACK: u64 = 1 << 4;
        let whole = Scalable::of(thread);
        let more = whole
            .as_ref()
            .map_or(0, |whole| size_of_record(whole) + LAST);
        let at = self.sp().checked_sub(frame::SIZE + more)? & !15;
        let mut bytes = Bytes(Vec::new());
        bytes.fill(frame::STACK + 8);
        bytes.words(&[NO_STACK]);
        bytes.fill(frame::MASK);
        bytes.words(&[mask]);
        bytes.fill(frame::X0);
        bytes.words(&self.0[..PC]);
        bytes.words(&[self.pc(), self.0[STATE]]);
        bytes.fill(frame::RECORDS);
        records(&mut bytes, thread, at + frame::RECORDS, whole.as_ref())?;
        // The rest of the frame stays as it is: nobody reads beyond the last record, and words that the thread needs
        // for its next system call may be there (see `waits`).
        Some((at, bytes.0))
    }
}
