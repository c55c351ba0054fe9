//! General registers of stopped threads.

use anyhow::Result;
use hodo_isa::x86_64::entry::reads_time;
use hodo_isa::x86_64::interpret::State;

use super::SYSTEM_CALL;
use crate::asked::Asked;
use crate::memory::Memory;
use crate::request::check;
use crate::signing::Signing;
use crate::stopped::Stopped;
use crate::target::TargetAddr;

/// A breakpoint.
pub use hodo_isa::x86_64::asm::BREAKPOINT;

/// Returns whether this is the signal of a breakpoint instruction, not of single-stepping or from another process.
pub fn is_breakpoint(info: &libc::siginfo_t) -> bool {
    /// `si_code` of a signal that the kernel sent by itself (`asm-generic/siginfo.h`).
    const SI_KERNEL: i32 = 0x80;
    info.si_code == SI_KERNEL
}

/// The flag of a thread that stops after each instruction.
const TF: u64 = 1 << 8;

/// What system calls lose beside their result: nothing.
#[derive(Debug)]
pub struct Kept;

impl Kept {
    /// Of a stopped thread that is about to make system calls for hodo.
    pub fn of(_thread: Stopped) -> Self {
        Self
    }

    /// Puts it back.
    ///
    /// # Errors
    /// Never, here.
    pub fn put_back(&mut self, _thread: Stopped) -> Result<()> {
        Ok(())
    }
}

/// An address without its tag: it has none.
pub fn untagged(address: u64) -> u64 {
    address
}

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

/// General registers.
#[derive(Debug, Clone, Copy)]
pub struct Regs(pub(super) libc::user_regs_struct);

impl Stopped {
    /// Its registers.
    ///
    /// # Errors
    /// If the thread is gone.
    pub fn regs(self) -> Result<Regs> {
        // SAFETY: all-zero is a valid user_regs_struct.
        let mut regs: libc::user_regs_struct = unsafe { std::mem::zeroed() };
        // SAFETY: PTRACE_GETREGS writes one user_regs_struct to `data`.
        let result = unsafe { libc::ptrace(libc::PTRACE_GETREGS, self.tid(), 0, &raw mut regs) };
        check(result, "the registers", self.tid())?;
        Ok(Regs(regs))
    }

    /// Writes its registers.
    ///
    /// # Errors
    /// If the thread is gone.
    pub fn set_regs(self, regs: &Regs) -> Result<()> {
        let regs = &raw const regs.0;
        // SAFETY: PTRACE_SETREGS reads one user_regs_struct from `data`.
        let result = unsafe { libc::ptrace(libc::PTRACE_SETREGS, self.tid(), 0, regs) };
        check(result, "the registers", self.tid()).map(drop)
    }
}

impl Regs {
    /// Address of the next instruction.
    pub fn pc(&self) -> u64 {
        self.0.rip
    }

    /// Has the thread go on elsewhere.
    pub fn set_pc(&mut self, at: u64) {
        self.0.rip = at;
    }

    /// The stack pointer.
    pub fn sp(&self) -> u64 {
        self.0.rsp
    }

    /// Where the breakpoint is that the thread has just met, if it has.
    pub fn breakpoint(&self) -> u64 {
        self.0.rip.wrapping_sub(BREAKPOINT.len() as u64)
    }

    /// Returns from a function of which nothing was executed. `ret` is the address of an instruction that does it.
    pub fn leave_function(&mut self, ret: u64) {
        self.0.rip = ret;
    }

    /// The number of the system call that the thread is in.
    pub fn system_call(&self) -> Option<i64> {
        let number = self.0.orig_rax.cast_signed();
        (number >= 0).then_some(number)
    }

    /// If a system call has come to its end, and the kernel will not let the thread make it again: the thread is in no
    /// system call any more.
    pub fn end_call(&mut self) {
        /// What the kernel returns to itself: the call is to be made again.
        const AGAIN: std::ops::RangeInclusive<i64> = -516..=-512;
        let result = self.0.rax.cast_signed();
        let is_interrupted = result == -i64::from(libc::EINTR) || AGAIN.contains(&result);
        // That is also what is there before the call.
        if !is_interrupted && result != -i64::from(libc::ENOSYS) {
            self.0.orig_rax = u64::MAX;
        }
    }

    /// Whether the thread is in a system call that the kernel may let it make again, from the instruction in front of
    /// [`Regs::pc`].
    pub fn may_go_back(&self) -> bool {
        self.system_call().is_some()
    }

    /// The system call that a stopped thread is in, or is about to make again for a stop has broken it off: number and
    /// arguments.
    pub fn call(&self) -> (u64, [u64; 6]) {
        let regs = &self.0;
        let number = match self.system_call() {
            Some(_) => regs.orig_rax,
            None => regs.rax,
        };
        let args = [regs.rdi, regs.rsi, regs.rdx, regs.r10, regs.r8, regs.r9];
        (number, args)
    }

    /// Returns whether the kernel restarts the call that a stopped thread is in, if no signal comes.
    pub fn is_made_again(&self) -> bool {
        self.system_call().is_some() && matches!(self.result(), -514..=-512 | -516)
    }

    /// The first argument of the system call that the thread is in.
    ///
    /// # Errors
    /// Never, here.
    pub fn first_argument(&self, _thread: Stopped) -> Result<u64> {
        Ok(self.0.rdi)
    }

    /// What a thread with these registers and this signal mask needs to go on from
    /// [`hodo_agent::call_and_home`], and where: below all that it has on its stack. A system call that it
    /// was stopped in is made again.
    pub fn home(&self, _thread: Stopped, mask: u64) -> Option<(u64, Vec<u8>)> {
        /// Results inside the kernel (`linux/errno.h`): the call is made again, by its own number or by another one.
        const AGAIN: [i64; 3] = [-512, -513, -514];
        const BY_RESTART: i64 = -516;
        const RED_ZONE: u64 = 128;
        let mut regs = self.0;
        if self.system_call().is_some() {
            let result = regs.rax.cast_signed();
            if AGAIN.contains(&result) || result == BY_RESTART {
                regs.rip = regs.rip.wrapping_sub(SYSTEM_CALL.len() as u64);
                regs.rax = match result {
                    BY_RESTART => libc::SYS_restart_syscall.cast_unsigned(),
                    _ => regs.orig_rax,
                };
            }
        }
        let words = [
            mask,
            regs.r15,
            regs.r14,
            regs.r13,
            regs.r12,
            regs.rbp,
            regs.rbx,
            regs.r11,
            regs.r10,
            regs.r9,
            regs.r8,
            regs.rax,
            regs.rcx,
            regs.rdx,
            regs.rsi,
            regs.rdi,
            regs.rip,
            regs.cs,
            regs.eflags,
            regs.rsp,
            regs.ss,
        ];
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let at = regs.rsp.checked_sub(RED_ZONE + bytes.len() as u64)? & !15;
        Some((at, bytes))
    }

    /// Has the thread use a stack elsewhere.
    pub fn set_sp(&mut self, at: u64) {
        self.0.rsp = at;
    }

    /// Has the thread make a system call at `at`.
    pub fn begin_call(&mut self, at: u64, number: i64, arguments: [u64; 6]) {
        let regs = &mut self.0;
        regs.rip = at;
        regs.rax = number.cast_unsigned();
        // No restart of the call in which the thread was stopped.
        regs.orig_rax = u64::MAX;
        [regs.rdi, regs.rsi, regs.rdx, regs.r10, regs.r8, regs.r9] = arguments;
    }

    /// A general register by the processor's number.
    pub fn general(&self, number: u8) -> u64 {
        self.all()[usize::from(number & 15)]
    }

    /// Sets a general register by the processor's number.
    pub fn set_general(&mut self, number: u8, value: u64) {
        let regs = &mut self.0;
        let register = match number & 15 {
            0 => &mut regs.rax,
            1 => &mut regs.rcx,
            2 => &mut regs.rdx,
            3 => &mut regs.rbx,
            4 => &mut regs.rsp,
            5 => &mut regs.rbp,
            6 => &mut regs.rsi,
            7 => &mut regs.rdi,
            8 => &mut regs.r8,
            9 => &mut regs.r9,
            10 => &mut regs.r10,
            11 => &mut regs.r11,
            12 => &mut regs.r12,
            13 => &mut regs.r13,
            14 => &mut regs.r14,
            _ => &mut regs.r15,
        };
        *register = value;
    }

    /// Sets the arithmetic flags from what `lahf` and `seto al` have put into `ax`.
    pub fn set_flags(&mut self, ax: u16) {
        /// All flags that `lahf` stores.
        const LOW: u64 = 0xD5;
        const OVERFLOW: u64 = 1 << 11;
        let overflow = if ax & 1 != 0 { OVERFLOW } else { 0 };
        let rest = self.0.eflags & !(LOW | OVERFLOW);
        self.0.eflags = rest | u64::from(ax >> 8) & LOW | overflow;
    }

    /// Changes an argument of the system call that the thread is about to make, or has made: the first is 0.
    pub fn set_argument(&mut self, index: usize, value: u64) {
        match index {
            0 => self.0.rdi = value,
            1 => self.0.rsi = value,
            2 => self.0.rdx = value,
            3 => self.0.r10 = value,
            4 => self.0.r8 = value,
            _ => self.0.r9 = value,
        }
    }

    /// Sets what a system call has returned.
    pub fn set_result(&mut self, value: i64) {
        self.0.rax = value.cast_unsigned();
    }

    /// What a system call has returned.
    pub fn result(&self) -> i64 {
        self.0.rax.cast_signed()
    }

    /// What a hook asks, at its breakpoint.
    pub fn asked(&self) -> Asked {
        /// Of these, only this one is about all memory.
        const MLOCKALL: u64 = libc::SYS_mlockall as u64;
        /// `asm/prctl.h`
        const ARCH_GET_GS: u64 = 0x1004;
        let (first, second) = (self.0.r10, self.0.r11);
        match (self.0.rax, first & u64::from(u32::MAX)) {
            (MLOCKALL, flags) => Asked::LockAll { flags },
            (_, ARCH_GET_GS) => Asked::GetBase { to: second },
            _ => Asked::SetBase,
        }
    }

    /// Answers at that breakpoint, and goes on after it: whether what the program wants is done. If not, it makes its
    /// call.
    pub fn answer(&mut self, done: bool) {
        self.0.rax = u64::from(!done);
    }

    /// Answers that the function must not set the base: it makes its call with a code that the kernel does not know.
    pub fn refuse_base(&mut self) {
        // The code is the first argument of `arch_prctl`, and the second of `syscall`.
        match self.0.rdi == self.0.r10 {
            true => self.0.rdi = 0,
            false => self.0.rsi = 0,
        }
        self.answer(false);
    }

    /// Values of registers that functions keep, and of those of results and arguments: where an exception may be.
    pub fn pointers(&self) -> [u64; 8] {
        let regs = &self.0;
        [
            regs.rax, regs.rdi, regs.rbx, regs.rbp, regs.r12, regs.r13, regs.r14, regs.r15,
        ]
    }

    /// The return address that is in a register while contexts are saved, or one is taken back.
    pub fn carried(&self) -> u64 {
        self.0.rcx
    }

    /// The return address that is in a register. Calls put it on the stack here.
    pub fn return_address(&self) -> Option<u64> {
        None
    }

    /// Has the function return elsewhere, whose return address is in a register.
    pub fn set_return_address(&mut self, _to: u64) {}

    /// The register that is the frame pointer where there is one.
    pub fn frame_pointer(&self) -> u64 {
        self.0.rbp
    }

    /// If the thread is at an instruction that reads the time counter: does it in its place. Returns whether it was
    /// that.
    ///
    /// # Errors
    /// If the memory cannot be accessed.
    pub fn read_counter(&mut self, memory: &Memory) -> Result<bool> {
        let mut code = [0; 2];
        memory.read(TargetAddr(self.0.rip), &mut code)?;
        if !reads_time(&code) {
            return Ok(false);
        }
        let now = counter();
        self.0.rax = now & 0xFFFF_FFFF;
        self.0.rdx = now >> 32;
        self.0.rip += 2;
        Ok(true)
    }

    /// All general registers.
    pub fn all(&self) -> [u64; 16] {
        let regs = &self.0;
        [
            regs.rax, regs.rcx, regs.rdx, regs.rbx, regs.rsp, regs.rbp, regs.rsi, regs.rdi,
            regs.r8, regs.r9, regs.r10, regs.r11, regs.r12, regs.r13, regs.r14, regs.r15,
        ]
    }

    /// Sets whether accesses that are not aligned fault. Returns what it was.
    pub fn check_alignment(&mut self, check: bool) -> bool {
        const AC: u64 = 1 << 18;
        let before = self.0.eflags & AC != 0;
        self.0.eflags = self.0.eflags & !AC | if check { AC } else { 0 };
        before
    }

    /// Whether what was compared last was equal.
    pub fn is_equal(&self) -> bool {
        const ZERO: u64 = 1 << 6;
        self.0.eflags & ZERO != 0
    }

    /// Whether the thread stops after each instruction, because it wants that itself.
    pub fn is_stepping(&self) -> bool {
        self.0.eflags & TF != 0
    }

    /// It does not stop after each instruction any more.
    pub fn end_stepping(&mut self) {
        self.0.eflags &= !TF;
    }

    /// What the segment of thread-local memory is based on.
    pub fn thread_base(&self) -> u64 {
        self.0.fs_base
    }

    /// What an interpreter of instructions works on.
    pub(super) fn state(&self) -> State {
        State {
            registers: self.all(),
            pc: self.0.rip,
            flags: self.0.eflags,
            fs: self.0.fs_base,
            gs: self.0.gs_base,
        }
    }

    /// Takes over what an interpreter has made of it.
    pub(super) fn set_state(&mut self, state: &State) {
        let regs = &mut self.0;
        [
            regs.rax, regs.rcx, regs.rdx, regs.rbx, regs.rsp, regs.rbp, regs.rsi, regs.rdi,
            regs.r8, regs.r9, regs.r10, regs.r11, regs.r12, regs.r13, regs.r14, regs.r15,
        ] = state.registers;
        regs.rip = state.pc;
        regs.eflags = state.flags;
    }

    /// Has all registers that lead to these bytes, or to their end, lead to the same distance elsewhere.
    pub fn divert(&mut self, from: u64, len: u64, to: u64) {
        let regs = &mut self.0;
        for register in [
            &mut regs.rax,
            &mut regs.rcx,
            &mut regs.rdx,
            &mut regs.rbx,
            &mut regs.rbp,
            &mut regs.rsi,
            &mut regs.rdi,
            &mut regs.r8,
            &mut regs.r9,
            &mut regs.r10,
            &mut regs.r11,
            &mut regs.r12,
            &mut regs.r13,
            &mut regs.r14,
            &mut regs.r15,
        ] {
            if (from..=from + len).contains(register) {
                *register = *register - from + to;
            }
        }
    }
}

/// The time counter of this processor.
pub fn counter() -> u64 {
    // SAFETY: rdtsc exists on every x86-64 processor and has no effect but its result.
    unsafe { core::arch::x86_64::_rdtsc() }
}
