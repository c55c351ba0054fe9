//! What only AArch64's registers have.

use std::arch::asm;

use anyhow::{Context, Result};
use hodo_isa::aarch64::decode::Kind;
use hodo_isa::aarch64::regs::ZERO;

use super::numbers::STATE;
use crate::arch::linked::{Regs, insn, kept_argument};
use crate::memory::Memory;
use crate::request::register_set;
use crate::stopped::Stopped;

/// Bits of the processor's state: whether what was compared last was equal, and how an indirect branch has come to the
/// next instruction, which must then be one that such a branch may lead to.
const EQUAL: u64 = 1 << 30;
const BRANCHED: u64 = 3 << 10;

/// The kind of register set that has the thread pointers (`NT_ARM_TLS`).
const THREAD_POINTER: u64 = 0x401;

impl Regs {
    /// Sets the arithmetic flags: those are the highest four bits.
    pub fn set_flags(&mut self, word: u16) {
        const FLAGS: u64 = 0xF << 28;
        self.0[STATE] = self.0[STATE] & !FLAGS | u64::from(word) << 16 & FLAGS;
    }

    /// Whether what was compared last was equal.
    pub fn is_equal(&self) -> bool {
        self.0[STATE] & EQUAL != 0
    }

    /// Has the thread go on at an instruction to which no branch leads.
    pub(super) fn go_to(&mut self, at: u64) {
        self.set_pc(at);
        self.0[STATE] &= !BRANCHED;
    }

    /// Has the thread make a system call at `at`.
    pub fn begin_call(&mut self, at: u64, number: i64, arguments: [u64; 6]) {
        self.go_to(at);
        self.set_call(number, arguments);
    }

    /// The first argument of the system call that the thread is in.
    ///
    /// # Errors
    /// If the kernel does not tell: it forgets the call before it lets the thread stop for a signal. The register then
    /// has the result already.
    pub fn first_argument(&self, thread: Stopped) -> Result<u64> {
        kept_argument(thread)?.context("no system call")
    }

    /// If the thread is at an instruction that reads the time counter: does it in its place.
    ///
    /// # Errors
    /// If the instruction cannot be read.
    pub fn read_counter(&mut self, memory: &Memory) -> Result<bool> {
        /// `cntvct_el0` and `cntvctss_el0` in an instruction (Arm ARM, D24.12).
        const COUNTERS: [u32; 2] = [0x001B_E040, 0x001B_E0C0];
        const REGISTER: u32 = 0x001F_FFE0;
        let insn = insn(memory, self.pc())?;
        if insn.kind != Kind::ReadSystem || !COUNTERS.contains(&(insn.word & REGISTER)) {
            return Ok(false);
        }
        if insn.rd() != ZERO {
            self.set(insn.rd(), counter());
        }
        self.set_pc(insn.end());
        Ok(true)
    }
}

/// The time counter.
pub fn counter() -> u64 {
    let now: u64;
    // SAFETY: reading the time has no effect but its result; Linux lets every program do it that has not forbidden it
    // itself.
    unsafe { asm!("mrs {}, cntvct_el0", out(reg) now, options(nomem, nostack, preserves_flags)) };
    now
}

/// The thread pointer.
///
/// # Errors
/// If the thread is gone.
pub(in super::super) fn thread_pointer(thread: Stopped) -> Result<u64> {
    let mut bytes = [0; 8];
    register_set(
        libc::PTRACE_GETREGSET,
        thread.tid(),
        THREAD_POINTER,
        &mut bytes,
    )?;
    Ok(u64::from_le_bytes(bytes))
}

/// Changes it.
///
/// # Errors
/// If the thread is gone.
pub(in super::super) fn set_thread_pointer(thread: Stopped, to: u64) -> Result<()> {
    register_set(
        libc::PTRACE_SETREGSET,
        thread.tid(),
        THREAD_POINTER,
        &mut to.to_le_bytes(),
    )
    .map(drop)
}
