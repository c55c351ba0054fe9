//! A place where a function calls its tracers, or does not.

use core::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use super::prepared::Prepared;
use crate::arch::Form;

/// How the state of the function is found at the call.
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry {
    /// The call is the first instruction that does something: the return address is still where the caller has put it.
    First = 0,
    /// The call comes after the prologue, and the frame pointer leads to the return address.
    Framed = 1,
}

/// A site. All zeros is none.
#[repr(C)]
#[derive(Debug, Default)]
pub struct Site {
    address: AtomicUsize,
    wanted: AtomicU64,
    written: AtomicU64,
    form: AtomicU8,
    entry: AtomicU8,
    id: AtomicU32,
    kept: AtomicU32,
}

impl Site {
    /// Where the call is.
    pub fn address(&self) -> usize {
        self.address.load(Ordering::Relaxed)
    }

    /// Makes it a site. What is there must be what was prepared, or will be (`fix`), and the site must not be in use.
    pub fn set(&self, address: usize, prepared: &Prepared, entry: Entry) {
        self.address.store(address, Ordering::Relaxed);
        self.wanted.store(0, Ordering::Relaxed);
        self.written.store(0, Ordering::Relaxed);
        self.form.store(prepared.form as u8, Ordering::Relaxed);
        self.kept.store(prepared.kept, Ordering::Relaxed);
        self.entry.store(entry as u8, Ordering::Relaxed);
        self.id.store(0, Ordering::Relaxed);
    }

    /// The instruction that is to be there again.
    pub(crate) fn kept(&self) -> u32 {
        self.kept.load(Ordering::Relaxed)
    }

    /// The number that [`set_id`](Self::set_id) gave it; 0 at first.
    pub fn id(&self) -> u32 {
        self.id.load(Ordering::Relaxed)
    }

    /// Gives it a number, for tracers.
    pub fn set_id(&self, id: u32) {
        self.id.store(id, Ordering::Relaxed);
    }

    /// The tracers that want to see the function.
    pub fn wanted(&self) -> u64 {
        self.wanted.load(Ordering::Relaxed)
    }

    pub(crate) fn set_wanted(&self, mask: u64) {
        self.wanted.store(mask, Ordering::Relaxed);
    }

    /// The tracers that the code calls; anything else if a change has failed.
    pub fn written(&self) -> u64 {
        self.written.load(Ordering::Relaxed)
    }

    pub(crate) fn set_written(&self, mask: u64) {
        self.written.store(mask, Ordering::Relaxed);
    }

    /// What the code looks like.
    pub fn form(&self) -> Form {
        Form::ALL[usize::from(self.form.load(Ordering::Relaxed)) % Form::ALL.len()]
    }

    /// How the state of the function is found.
    pub fn entry(&self) -> Entry {
        match self.entry.load(Ordering::Relaxed) {
            0 => Entry::First,
            _ => Entry::Framed,
        }
    }
}
