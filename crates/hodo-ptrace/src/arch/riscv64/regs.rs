//! What only RISC-V's registers have.

use std::arch::asm;

use anyhow::{Context, Result};
use hodo_isa::riscv64::regs::TP;

use crate::arch::linked::{Regs, kept_argument};
use crate::memory::Memory;
use crate::signing::Signing;
use crate::stopped::Stopped;

/// A return address without its signature: it has none.
pub fn unsigned(address: u64) -> u64 {
    address
}

impl Stopped {
    /// What has to take the place of a return address so that a function returns `to` instead. None is signed here.
    ///
    /// # Errors
    /// Never, here.
    pub fn sign_again(
        self,
        _scratch_page: u64,
        _word: u64,
        to: u64,
        _how: Option<Signing>,
    ) -> Result<Option<u64>> {
        Ok(Some(to))
    }
}

impl Regs {
    /// Sets the arithmetic flags: there are none.
    pub fn set_flags(&mut self, _word: u16) {}

    /// Whether what was compared last was equal: nothing says so.
    pub fn is_equal(&self) -> bool {
        false
    }

    /// Has the thread make a system call at `at`.
    pub fn begin_call(&mut self, at: u64, number: i64, arguments: [u64; 6]) {
        self.set_pc(at);
        self.set_call(number, arguments);
    }

    /// The first argument of the system call that the thread is in. Its register has the result already.
    ///
    /// # Errors
    /// If the kernel does not tell.
    pub fn first_argument(&self, thread: Stopped) -> Result<u64> {
        kept_argument(thread)?.context("no system call")
    }

    /// What a thread needs to go on from [`hodo_agent::call_and_home`]: there is no such code.
    pub fn home(&self, _thread: Stopped, _mask: u64) -> Option<(u64, Vec<u8>)> {
        None
    }

    /// If the thread is at an instruction that reads the time counter: does it in its place. Nobody can forbid it.
    ///
    /// # Errors
    /// Never, here.
    pub fn read_counter(&mut self, _memory: &Memory) -> Result<bool> {
        Ok(false)
    }
}

/// The time counter.
pub fn counter() -> u64 {
    let now: u64;
    // SAFETY: reading the time has no effect but its result; Linux lets every program do it.
    unsafe { asm!("rdtime {}", out(reg) now, options(nomem, nostack, preserves_flags)) };
    now
}

/// The thread pointer.
///
/// # Errors
/// If the thread is gone.
pub(in super::super) fn thread_pointer(thread: Stopped) -> Result<u64> {
    Ok(thread.regs()?.get(TP))
}

/// Changes it.
///
/// # Errors
/// If the thread is gone.
pub(in super::super) fn set_thread_pointer(thread: Stopped, to: u64) -> Result<()> {
    let mut regs = thread.regs()?;
    regs.set(TP, to);
    thread.set_regs(&regs)
}
