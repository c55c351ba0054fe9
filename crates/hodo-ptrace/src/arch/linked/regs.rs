//! Registers of stopped threads.

use anyhow::{Context, Result, bail};
pub use hodo_isa::native::asm::BREAKPOINT;
use hodo_isa::native::decode::Insn;

use crate::arch::numbers::{
    ANSWERS, ARGUMENT, ASKS, FRAME, LINK, NUMBER, PC, REGISTERS, STACK, WORDS, kept, register,
    untagged,
};
use crate::asked::Asked;
use crate::memory::Memory;
use crate::request::register_set;
use crate::stopped::Stopped;
use crate::target::TargetAddr;

/// Returns whether this is the signal of a breakpoint instruction, not from another process.
pub fn is_breakpoint(info: &libc::siginfo_t) -> bool {
    info.si_code == libc::TRAP_BRKPT
}

/// General registers, as the kernel has them in a register set.
#[derive(Debug, Clone, Copy)]
pub struct Regs(pub(in super::super) [u64; WORDS]);

/// The kind of register set that has the general ones.
const GENERAL: u64 = 1;

impl Stopped {
    /// Its registers.
    ///
    /// # Errors
    /// If the thread is gone.
    pub fn regs(self) -> Result<Regs> {
        let mut bytes = [0; WORDS * 8];
        if register_set(libc::PTRACE_GETREGSET, self.tid(), GENERAL, &mut bytes)? != bytes.len() {
            bail!("the kernel has registers that hodo does not know");
        }
        let mut regs = Regs([0; WORDS]);
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
        let mut bytes = [0; WORDS * 8];
        for (bytes, register) in bytes.chunks_exact_mut(8).zip(regs.0) {
            bytes.copy_from_slice(&register.to_le_bytes());
        }
        register_set(libc::PTRACE_SETREGSET, self.tid(), GENERAL, &mut bytes).map(drop)
    }
}

impl Regs {
    /// A general register by its number.
    pub fn get(&self, number: u8) -> u64 {
        register(number).map_or(0, |index| self.0[index])
    }

    /// Changes it. One that is always zero stays so.
    pub fn set(&mut self, number: u8, value: u64) {
        if let Some(index) = register(number) {
            self.0[index] = value;
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
        self.0[PC]
    }

    /// Has the thread go on elsewhere.
    pub fn set_pc(&mut self, at: u64) {
        self.0[PC] = at;
    }

    /// The stack pointer.
    pub fn sp(&self) -> u64 {
        self.get(STACK)
    }

    /// Has the thread use a stack elsewhere.
    pub fn set_sp(&mut self, at: u64) {
        self.set(STACK, at);
    }

    /// Where the breakpoint is that the thread has just met, if it has.
    pub fn breakpoint(&self) -> u64 {
        self.pc()
    }

    /// Returns from a function of which nothing was executed, by the return instruction at `ret`: some processors count
    /// returns.
    pub fn leave_function(&mut self, ret: u64) {
        self.set_pc(ret);
    }

    /// The number of the system call that the thread is in, if it is in one.
    pub fn system_call(&self) -> Option<i64> {
        let number = self.get(NUMBER).cast_signed();
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
            self.get(NUMBER),
            std::array::from_fn(|index| self.get(ARGUMENT + index as u8)),
        )
    }

    /// The kernel has the thread in front of its call by the time it stops: nothing tells it from one that begins the
    /// call.
    pub fn is_made_again(&self) -> bool {
        false
    }

    /// Puts a system call in the registers.
    pub(in super::super) fn set_call(&mut self, number: i64, arguments: [u64; 6]) {
        self.set(NUMBER, number.cast_unsigned());
        for (register, value) in (ARGUMENT..).zip(arguments) {
            self.set(register, value);
        }
    }

    /// Changes an argument of the system call that the thread is about to make: the first is 0.
    pub fn set_argument(&mut self, index: usize, value: u64) {
        self.set(ARGUMENT + index as u8, value);
    }

    /// Sets what a system call has returned.
    pub fn set_result(&mut self, value: i64) {
        self.set(ARGUMENT, value.cast_unsigned());
    }

    /// What a system call has returned.
    pub fn result(&self) -> i64 {
        self.get(ARGUMENT).cast_signed()
    }

    /// What a hook asks, at its breakpoint: about `mlockall`. No register that it uses is set by a system call.
    pub fn asked(&self) -> Asked {
        let flags = self.get(ASKS) & u64::from(u32::MAX);
        Asked::LockAll { flags }
    }

    /// Answers at that breakpoint, and goes on after it: whether what the program wants is done. If not, it makes its
    /// call.
    pub fn answer(&mut self, done: bool) {
        self.set(ANSWERS, u64::from(!done));
        self.set_pc(self.pc().wrapping_add(BREAKPOINT.len() as u64));
    }

    /// Answers that the function must not set the base. None asks for that here.
    pub fn refuse_base(&mut self) {
        self.answer(false);
    }

    /// Values of registers that functions keep, and of those of results and arguments: where an exception may be.
    pub fn pointers(&self) -> impl Iterator<Item = u64> {
        let regs = *self;
        let arguments = ARGUMENT..ARGUMENT + 2;
        arguments
            .chain(kept())
            .map(move |register| regs.get(register))
    }

    /// The return address that is in a register while contexts are saved, or one is taken back; that in the link
    /// register is asked for by itself.
    pub fn carried(&self) -> u64 {
        self.get(ANSWERS)
    }

    /// The return address that is in a register.
    pub fn return_address(&self) -> Option<u64> {
        Some(self.get(LINK))
    }

    /// Has the function return elsewhere, whose return address is in a register.
    pub fn set_return_address(&mut self, to: u64) {
        self.set(LINK, to);
    }

    /// The register that is the frame pointer where there is one.
    pub fn frame_pointer(&self) -> u64 {
        self.get(FRAME)
    }

    /// All general registers, where they are asked for: a copy of changed code is not known here.
    pub fn all(&self) -> [u64; 0] {
        []
    }

    /// Has all registers that lead to these bytes, or to their end, lead to the same distance elsewhere. Tags of
    /// addresses stay.
    pub fn divert(&mut self, from: u64, len: u64, to: u64) {
        for register in REGISTERS {
            let value = self.get(register);
            if (from..=from + len).contains(&untagged(value)) {
                self.set(register, value.wrapping_sub(from).wrapping_add(to));
            }
        }
    }
}

/// The first argument of the call that a thread is in, which the kernel has kept for the case that the call is made
/// again.
pub fn kept_argument(thread: Stopped) -> Result<Option<u64>> {
    let text = std::fs::read_to_string(format!("/proc/{thread}/syscall"))?;
    let mut words = text.split_whitespace();
    // Of a thread that is in no call, only the stack pointer and the program counter follow.
    if words.next().is_none_or(|number| number == "-1") {
        return Ok(None);
    }
    let word = words.next().and_then(|word| word.strip_prefix("0x"));
    let digits = word.context("no system call")?;
    Ok(Some(u64::from_str_radix(digits, 16)?))
}

/// The instruction at an address.
pub fn insn(memory: &Memory, at: u64) -> Result<Insn> {
    /// Bytes that an instruction has at least.
    const LEAST: usize = BREAKPOINT.len();
    let mut code = [0; 4];
    memory.read(TargetAddr(at), &mut code[..LEAST])?;
    // The rest may be on another page, which need not be there.
    let rest = TargetAddr(at.wrapping_add(LEAST as u64));
    if LEAST < code.len() {
        let _ = memory.read(rest, &mut code[LEAST..]);
    }
    Ok(Insn::new(&code, at))
}
