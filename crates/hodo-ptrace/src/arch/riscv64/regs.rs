//! Registers of stopped threads.

use std::arch::asm;
use std::io;
use std::ops::Range;

use anyhow::{Context, Result, bail};
use hodo_isa::riscv64::decode::Insn;
use hodo_isa::riscv64::regs::{RA, SP};

use crate::asked::Asked;
use crate::memory::Memory;
use crate::request::register_set;
use crate::stopped::Stopped;
use crate::target::TargetAddr;

/// A breakpoint, `c.ebreak`.
pub use hodo_isa::riscv64::asm::BREAKPOINT;

/// Returns whether this is the signal of a breakpoint instruction, not from another process.
pub fn is_breakpoint(info: &libc::siginfo_t) -> bool {
    info.si_code == libc::TRAP_BRKPT
}

/// General registers: the program counter, then all but the first, which is zero.
#[derive(Debug, Clone, Copy)]
pub struct Regs(pub(super) [u64; 32]);

/// The kind of register set that has the general ones, and the vector registers.
const GENERAL: u64 = 1;

pub(super) const VECTOR: u64 = 0x901;

fn is_invalid(error: &anyhow::Error) -> bool {
    let error = error.downcast_ref::<io::Error>();
    error.is_some_and(|error| error.kind() == io::ErrorKind::InvalidInput)
}

impl Stopped {
    /// Its registers.
    ///
    /// # Errors
    /// If the thread is gone.
    pub fn regs(self) -> Result<Regs> {
        let mut bytes = [0; 256];
        if register_set(libc::PTRACE_GETREGSET, self.tid(), GENERAL, &mut bytes)? != bytes.len() {
            bail!("the kernel has registers that hodo does not know");
        }
        let mut regs = Regs([0; 32]);
        for (register, bytes) in regs.0.iter_mut().zip(bytes.chunks_exact(8)) {
            *register = u64::from_le_bytes(bytes.try_into().expect("eight bytes"));
        }
        Ok(regs)
    }

    /// Writes its registers.
    ///
    /// # Errors
    /// If the thread is gone.
    pub fn set_regs(self, regs: &Regs) -> Result<()> {
        let mut bytes = [0; 256];
        for (bytes, register) in bytes.chunks_exact_mut(8).zip(regs.0) {
            bytes.copy_from_slice(&register.to_le_bytes());
        }
        register_set(libc::PTRACE_SETREGSET, self.tid(), GENERAL, &mut bytes).map(drop)
    }
}

/// Of the vector registers' set (`struct __riscv_v_regset_state` in the kernel's `asm/ptrace.h`): where the vector
/// length and type are, and the type's top bit, *vill*. It is set while no type is valid, as after each system call.
const LENGTH: Range<usize> = 8..16;
const TYPE: Range<usize> = 16..24;
const ILLEGAL: u64 = 1 << 63;

/// What system calls lose beside their result: the vector registers.
#[derive(Debug)]
pub struct Kept(Vec<u8>);

impl Kept {
    /// Of a stopped thread that is about to make system calls for hodo. What cannot be read is not there.
    pub fn of(thread: Stopped) -> Self {
        Self(Self::read(thread))
    }

    fn read(thread: Stopped) -> Vec<u8> {
        // 32 registers of at most 8 KiB, and what is known of them.
        let mut bytes = vec![0; (256 << 10) + 64];
        let len =
            register_set(libc::PTRACE_GETREGSET, thread.tid(), VECTOR, &mut bytes).unwrap_or(0);
        bytes.truncate(len);
        bytes.shrink_to_fit();
        bytes
    }

    /// Puts it back.
    ///
    /// Newer kernels (seen with 7.2) refuse a type that is not valid, though they have it themselves after each system
    /// call. A thread that had none gets the type 0 with the length 0, if its registers have changed at all.
    ///
    /// # Errors
    /// If the thread is gone.
    pub fn put_back(&mut self, thread: Stopped) -> Result<()> {
        if self.0.is_empty() || Self::read(thread) == self.0 {
            return Ok(());
        }
        let set = register_set(libc::PTRACE_SETREGSET, thread.tid(), VECTOR, &mut self.0);
        match (set, self.without_illegal()) {
            (Err(error), Some(mut valid)) if is_invalid(&error) => {
                register_set(libc::PTRACE_SETREGSET, thread.tid(), VECTOR, &mut valid).map(drop)
            }
            (set, _) => set.map(drop),
        }
    }

    /// The registers with a valid type, if they have none.
    fn without_illegal(&self) -> Option<Vec<u8>> {
        let vtype = self.0.get(TYPE)?;
        let vtype = u64::from_le_bytes(vtype.try_into().ok()?);
        if vtype & ILLEGAL == 0 {
            return None;
        }
        let mut valid = self.0.clone();
        valid[LENGTH].fill(0);
        valid[TYPE].fill(0);
        Some(valid)
    }
}

impl Regs {
    /// A general register by its number.
    pub fn get(&self, register: u8) -> u64 {
        match register {
            0 => 0,
            _ => self.0[usize::from(register & 31)],
        }
    }

    /// Changes it; the first one stays zero.
    pub fn set(&mut self, register: u8, value: u64) {
        if register != 0 {
            self.0[usize::from(register & 31)] = value;
        }
    }

    /// A general register by its number.
    pub fn general(&self, number: u8) -> u64 {
        self.get(number)
    }

    /// Sets a general register by its number.
    pub fn set_general(&mut self, number: u8, value: u64) {
        self.set(number, value);
    }

    /// Sets the arithmetic flags: there are none.
    pub fn set_flags(&mut self, _word: u16) {}

    /// Whether what was compared last was equal: nothing says so.
    pub fn is_equal(&self) -> bool {
        false
    }

    /// Sets whether accesses that are not aligned fault. Returns what it was: no program can choose that.
    pub fn check_alignment(&mut self, _check: bool) -> bool {
        false
    }

    /// Whether the thread stops after each instruction, because it wants that itself: it cannot.
    pub fn is_stepping(&self) -> bool {
        false
    }

    /// Address of the next instruction.
    pub fn pc(&self) -> u64 {
        self.0[0]
    }

    /// Has the thread go on elsewhere.
    pub fn set_pc(&mut self, at: u64) {
        self.0[0] = at;
    }

    /// The stack pointer.
    pub fn sp(&self) -> u64 {
        self.get(SP)
    }

    /// Where the breakpoint is that the thread has just met, if it has.
    pub fn breakpoint(&self) -> u64 {
        self.pc()
    }

    /// Returns from a function of which nothing was executed.
    pub fn leave_function(&mut self, _ret: u64) {
        self.set_pc(self.get(RA));
    }

    /// The number of the system call that the thread is in, if it is in one.
    pub fn system_call(&self) -> Option<i64> {
        let number = self.get(A7).cast_signed();
        (number >= 0).then_some(number)
    }

    /// The thread is in no system call any more. The registers do not show it.
    pub fn end_call(&mut self) {}

    /// Whether the thread is in a system call that the kernel may let it make again, from the instruction in front of
    /// [`Regs::pc`]: such a thread is already there when it stops.
    pub fn may_go_back(&self) -> bool {
        false
    }

    /// The system call that a stopped thread is about to make: number and arguments.
    pub fn call(&self) -> (u64, [u64; 6]) {
        (
            self.get(A7),
            std::array::from_fn(|index| self.get(A0 + index as u8)),
        )
    }

    /// The kernel has the thread in front of its call by the time it stops: nothing tells it from one that begins the
    /// call.
    pub fn is_made_again(&self) -> bool {
        false
    }

    /// The first argument of the system call that the thread is in. Its register has the result already.
    ///
    /// # Errors
    /// If the kernel does not tell.
    pub fn first_argument(&self, thread: Stopped) -> Result<u64> {
        first_argument(thread)
    }

    /// What a thread needs to go on from [`hodo_agent::call_and_home`]: there is no such code.
    pub fn home(&self, _mask: u64) -> Option<(u64, Vec<u8>)> {
        None
    }

    /// Has the thread use a stack elsewhere.
    pub fn set_sp(&mut self, at: u64) {
        self.set(SP, at);
    }

    /// Has the thread make a system call at `at`.
    pub fn begin_call(&mut self, at: u64, number: i64, arguments: [u64; 6]) {
        self.set_pc(at);
        self.set(A7, number.cast_unsigned());
        for (register, value) in (A0..).zip(arguments) {
            self.set(register, value);
        }
    }

    /// Changes an argument of the system call that the thread is about to make: the first is 0.
    pub fn set_argument(&mut self, index: usize, value: u64) {
        self.set(A0 + index as u8, value);
    }

    /// Sets what a system call has returned.
    pub fn set_result(&mut self, value: i64) {
        self.set(A0, value.cast_unsigned());
    }

    /// What a system call has returned.
    pub fn result(&self) -> i64 {
        self.get(A0).cast_signed()
    }

    /// What a hook asks, at its breakpoint: about `mlockall`. No register that it uses is set by a system call.
    pub fn asked(&self) -> Asked {
        let flags = self.get(T2) & u64::from(u32::MAX);
        Asked::LockAll { flags }
    }

    /// Answers at that breakpoint, and goes on after it: whether what the program wants is done. If not, it makes its
    /// call.
    pub fn answer(&mut self, done: bool) {
        self.set(T1, u64::from(!done));
        self.set_pc(self.pc().wrapping_add(BREAKPOINT.len() as u64));
    }

    /// Answers that the function must not set the base. None asks for that here.
    pub fn refuse_base(&mut self) {
        self.answer(false);
    }

    /// Values of registers that functions keep, and of those of results and arguments: where an exception may be.
    pub fn pointers(&self) -> impl Iterator<Item = u64> {
        let regs = *self;
        // a0 and a1, s0 and s1, s2 to s11
        [10, 11, 8, 9]
            .into_iter()
            .chain(18..28)
            .map(move |register| regs.get(register))
    }

    /// The return address that is in a register while contexts are saved, or one is taken back; `ra` is asked for by
    /// itself.
    pub fn carried(&self) -> u64 {
        /// `t1`.
        const REGISTER: u8 = 6;
        self.get(REGISTER)
    }

    /// The return address that is in a register.
    pub fn return_address(&self) -> Option<u64> {
        Some(self.get(RA))
    }

    /// Has the function return elsewhere, whose return address is in a register.
    pub fn set_return_address(&mut self, to: u64) {
        self.set(RA, to);
    }

    /// The register that is the frame pointer where there is one.
    pub fn frame_pointer(&self) -> u64 {
        self.get(FP)
    }

    /// All general registers, where they are asked for: a copy of changed code is not known here.
    pub fn all(&self) -> [u64; 0] {
        []
    }

    /// If the thread is at an instruction that reads the time counter: does it in its place. Nobody can forbid it.
    ///
    /// # Errors
    /// Never, here.
    pub fn read_counter(&mut self, _memory: &Memory) -> Result<bool> {
        Ok(false)
    }

    /// Has all registers that lead to these bytes, or to their end, lead to the same distance elsewhere.
    pub fn divert(&mut self, from: u64, len: u64, to: u64) {
        for register in 1..32 {
            let value = self.get(register);
            if (from..=from + len).contains(&value) {
                self.set(register, value - from + to);
            }
        }
    }
}

/// The time counter.
pub fn counter() -> u64 {
    let now: u64;
    // SAFETY: reading the time has no effect but its result; Linux lets every program do it.
    unsafe { asm!("rdtime {}", out(reg) now, options(nomem, nostack, preserves_flags)) };
    now
}

pub(super) const FP: u8 = 8;

/// Temporaries, in which hooks ask.
const T1: u8 = 6;
const T2: u8 = 7;
pub(super) const A0: u8 = 10;

pub(super) const A7: u8 = 17;

/// The kernel has kept it for the case that the call is made again.
pub(super) fn first_argument(thread: Stopped) -> Result<u64> {
    let text = std::fs::read_to_string(format!("/proc/{thread}/syscall"))?;
    let word = text.split_whitespace().nth(1).unwrap_or_default();
    let digits = word.strip_prefix("0x").context("no system call")?;
    Ok(u64::from_str_radix(digits, 16)?)
}

/// The instruction at an address.
pub(super) fn insn(memory: &Memory, at: u64) -> Result<Insn> {
    let mut code = [0; 4];
    // The second half may be on another page, which need not be there.
    memory.read(TargetAddr(at), &mut code[..2])?;
    let _ = memory.read(TargetAddr(at.wrapping_add(2)), &mut code[2..]);
    Ok(Insn::new(&code, at))
}
