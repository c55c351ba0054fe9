//! RISC-V with 64 bits, with Linux's conventions for it.
//!
//! Nothing but the stack pointer leads to memory that belongs to one thread alone and that stubs could use, but for the thread
//! pointer: the word below what it points to, which libc keeps for others, has the address of the thread's control block. Where
//! libc has set no thread pointer yet, it points to a word of ours. When libc sets it, that word is 0; the first stub that meets
//! it faults, and is put right ([`Regs::find_block`]).

mod broken;
mod code;
mod libc_of;
mod made;
mod step;
mod vectors;

use std::arch::asm;

use anyhow::{Context, Result, bail};
use hodo_arch::riscv64::decode::Insn;
use hodo_arch::riscv64::registers::{GP, RA, SP, TP};
use hodo_symbols::{Machine, Registers};

pub use broken::{broken_off, call_again};
pub use code::{
    ARGUMENTS, PROGRAM_COUNTER, REGISTERS, RETURN_VALUE, STACK_ARGUMENTS, STACK_POINTER, TELLS_CPU,
    called_before, called_by, ends_thread, fetched, is_behind_call, jump_at, jump_target,
    looks_like_call, operand, slot_of,
};
pub use libc_of::unsuited;
pub use made::Made;
pub use step::{HANDLERS_STOP, Step, enter_handler, step};
pub use vectors::calls;

use crate::costs::Costs;
use crate::maps::Mapping;
use crate::remote::{self, Memory};

/// What a recorded call costs is not measured: the counter has 10 to 30 million ticks in a second in most machines, and one tick is
/// longer than that.
pub fn measure(_recording: hodo_patch::Recording) -> Option<Costs> {
    None
}

/// What a trace calls this.
pub const NAME: &str = "riscv64";
/// What an ELF file says that is for this.
pub const ELF_MACHINE: u16 = 243;

/// A breakpoint, `c.ebreak`.
pub const BREAKPOINT: [u8; 2] = [0x02, 0x90];
/// A branch to itself, `c.j`.
pub const WAIT: [u8; 2] = [0x01, 0xA0];
/// What enters the kernel (`ecall`).
pub const SYSTEM_CALL: [u8; 4] = [0x73, 0, 0, 0];
/// How far from where a thread was stopped the kernel has it go on in a handler's frame, if that has broken off its system call.
pub const BROKEN_OFF: i64 = 4;
/// Is this a function that only returns, with room after it for a long jump? That is not looked for.
pub fn only_returns(_at: u64, _code: [u8; 5]) -> bool {
    false
}

/// There is no code that makes a system call and comes back by itself.
pub const CALL_AND_HOME: [u8; 0] = [];
/// A function that returns 0: `c.li a0, 0; c.jr ra`.
pub const RETURN_ZERO: [u8; 4] = [0x01, 0x45, 0x82, 0x80];

/// Where the trace goes in targets: far from all that programs use, sanitizers included. The last one is for address spaces of
/// 38 bits, between the shadow of programs and that of stacks.
pub const EVENTS_AT: [u64; 4] = [
    0x2000_0000_0000,
    0x3800_0000_0000,
    0x1800_0000_0000,
    0x13_0000_0000,
];
/// Where the ledger goes: after the trace, or below it and its counters.
pub const LEDGER_AT: [u64; 6] = [
    0x2080_0000_0000,
    0x3880_0000_0000,
    0x1880_0000_0000,
    0x12_0000_0000,
    0x11_0000_0000,
    0x1B_8000_0000,
];
/// So much address space from a program on, and below the libraries, gets a shadow at once.
pub const SHADOW_ROOM: u64 = 12 << 30;

/// What has a shadow from the beginning on: from some way below the libraries up to the first stack.
/// `linker`: where the dynamic linker is; `sp`: the first stack.
pub fn stacks(sp: u64, linker: Option<u64>) -> std::ops::Range<u64> {
    // Address spaces have 38, 47 or 56 bits; nothing is mapped above 47 unless a program asks for that.
    let top = sp.next_power_of_two();
    // Far less than the distance of the shadow, which must not be where libraries are.
    const MOST: u64 = 64 << 30;
    let low = linker.filter(|&base| base > top - MOST).unwrap_or(sp);
    (low.min(sp) - SHADOW_ROOM).max(top - MOST)..top
}

/// The time counter.
pub fn counter() -> u64 {
    let now: u64;
    // SAFETY: reading the time has no effect but its result; Linux lets every program do it.
    unsafe { asm!("rdtime {}", out(reg) now, options(nomem, nostack, preserves_flags)) };
    now
}

/// The oldest system call that waits for events of an epoll descriptor.
pub const EPOLL_WAIT: i64 = libc::SYS_epoll_pwait;
/// Further events for which threads are to be stopped.
pub const OPTIONS: i32 = libc::PTRACE_O_TRACEVFORKDONE;
/// Bytes of a page of ours in targets: words for threads without a thread pointer, and a place for a single step for each
/// thread that makes one. 0: none is needed.
pub const WORKSHOP: u64 = 4096;
/// Bytes for words at its start, and of each of the places behind them.
const WORDS: u64 = 1024;
const SLOT: u64 = 16;
/// So many threads may make a step at once.
pub const SLOTS: u64 = (WORKSHOP - WORDS) / SLOT;

/// General registers: the program counter, then all but the first, which is zero.
#[derive(Debug, Clone, Copy)]
pub struct Regs([u64; 32]);

/// The kind of register set that has the general ones, and the vector registers.
const GENERAL: u64 = 1;
const VECTOR: u64 = 0x901;

/// `PTRACE_GETREGSET` and `PTRACE_SETREGSET`; bytes that were read.
fn register_set(request: libc::c_uint, tid: i32, kind: u64, bytes: &mut [u8]) -> Result<usize> {
    let mut piece = libc::iovec {
        iov_base: bytes.as_mut_ptr().cast(),
        iov_len: bytes.len(),
    };
    // SAFETY: these requests read or write at most the piece of memory that the structure names, and the structure.
    let result = unsafe { libc::ptrace(request, tid, kind, &raw mut piece) };
    remote::check(result, "the registers", tid)?;
    Ok(piece.iov_len)
}

/// Reads the registers of a stopped thread.
///
/// # Errors
/// If the thread is gone.
pub fn regs(tid: i32) -> Result<Regs> {
    let mut bytes = [0; 256];
    if register_set(libc::PTRACE_GETREGSET, tid, GENERAL, &mut bytes)? != bytes.len() {
        bail!("the kernel has other registers than hodo knows");
    }
    let mut regs = Regs([0; 32]);
    for (register, bytes) in regs.0.iter_mut().zip(bytes.chunks_exact(8)) {
        *register = u64::from_le_bytes(bytes.try_into().expect("eight bytes"));
    }
    Ok(regs)
}

/// Writes the registers of a stopped thread.
///
/// # Errors
/// If the thread is gone.
pub fn set_regs(tid: i32, regs: &Regs) -> Result<()> {
    let mut bytes = [0; 256];
    for (bytes, register) in bytes.chunks_exact_mut(8).zip(regs.0) {
        bytes.copy_from_slice(&register.to_le_bytes());
    }
    register_set(libc::PTRACE_SETREGSET, tid, GENERAL, &mut bytes).map(drop)
}

/// What system calls lose beside their result: the vector registers.
#[derive(Debug)]
pub struct Kept(Vec<u8>);

impl Kept {
    /// Of a stopped thread that is about to make system calls of ours. What cannot be read is not there.
    pub fn of(tid: i32) -> Self {
        // 32 registers of at most 8 KiB, and what is known of them.
        let mut bytes = vec![0; (256 << 10) + 64];
        let len = register_set(libc::PTRACE_GETREGSET, tid, VECTOR, &mut bytes).unwrap_or(0);
        bytes.truncate(len);
        bytes.shrink_to_fit();
        Self(bytes)
    }

    /// Puts it back.
    ///
    /// # Errors
    /// If the thread is gone.
    pub fn put_back(&mut self, tid: i32) -> Result<()> {
        if self.0.is_empty() {
            return Ok(());
        }
        register_set(libc::PTRACE_SETREGSET, tid, VECTOR, &mut self.0).map(drop)
    }
}

/// Where the word is that leads to a thread's control block.
fn block_word(regs: &Regs) -> Option<u64> {
    regs.get(TP).checked_sub(8)
}

/// Where the word is that leads to a stopped thread's control block, unless it has or gets one of ours (`workshop`). It is
/// another thread's, too, if that has the same thread pointer.
///
/// # Errors
/// If the thread is gone.
pub fn place_of_block(tid: i32, workshop: u64) -> Result<Option<u64>> {
    let regs = regs(tid)?;
    Ok(block_word(&regs).filter(|_| workshop == 0 || !is_ours(&regs, workshop)))
}

/// Whether a thread has no thread pointer but one of ours.
fn is_ours(regs: &Regs, workshop: u64) -> bool {
    let tp = regs.get(TP);
    tp == 0 || tp.wrapping_sub(workshop + 8) < WORDS
}

/// Where the control block of a stopped thread is, as its stubs find it. 0: nowhere.
///
/// # Errors
/// If the thread is gone.
pub fn block(tid: i32) -> Result<u64> {
    let regs = regs(tid)?;
    match block_word(&regs) {
        // What cannot be read was not made by a libc.
        Some(at) => Ok(Memory::open(tid)?.read_u64(at).unwrap_or(0)),
        None => Ok(0),
    }
}

/// Tells the stubs of a stopped thread where its control block is. `workshop`: the page of ours in its process; `number`: of the
/// control block.
///
/// # Errors
/// If the thread is gone, or its thread pointer leads nowhere.
pub fn set_block(tid: i32, at: u64, workshop: u64, number: u64) -> Result<()> {
    let mut regs = regs(tid)?;
    let word = workshop + number * 8 % WORDS;
    if workshop != 0 && is_ours(&regs, workshop) {
        regs.set(TP, if at == 0 { 0 } else { word + 8 });
        set_regs(tid, &regs)?;
        return Memory::open(tid)?.write(word, &at.to_le_bytes());
    }
    match block_word(&regs) {
        Some(word) => Memory::open(tid)?
            .write(word, &at.to_le_bytes())
            .context("the thread pointer is not one of libc"),
        None => Ok(()),
    }
}

/// A process has just executed a program: its thread pointer is still that of what was there before, which leads nowhere.
///
/// # Errors
/// If the thread is gone.
pub fn forget_block(tid: i32) -> Result<()> {
    let mut regs = regs(tid)?;
    regs.set(TP, 0);
    set_regs(tid, &regs)
}

/// What a process uses itself if one of its threads has something where its control block is to be told.
pub const BLOCK_IN_USE: &str = "uses the word below its thread pointer itself (as musl does), which hodo needs to tell threads \
     apart";

impl Regs {
    /// A general register by its number.
    fn get(&self, register: u8) -> u64 {
        match register {
            0 => 0,
            _ => self.0[usize::from(register & 31)],
        }
    }

    fn set(&mut self, register: u8, value: u64) {
        if register != 0 {
            self.0[usize::from(register & 31)] = value;
        }
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

    /// The kernel has the thread in front of its call by the time it stops: nothing tells it from one that begins the call.
    pub fn is_made_again(&self) -> bool {
        false
    }

    /// The first argument of the system call that the thread `tid` is in. Its register has the result already.
    ///
    /// # Errors
    /// If the kernel does not tell.
    pub fn first_argument(&self, tid: i32) -> Result<u64> {
        first_argument(tid)
    }

    /// What a thread needs to go on from [`CALL_AND_HOME`]: there is no such code.
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

    /// Changes an argument of the system call that the thread is about to make: the third or the fourth, from 0.
    pub fn set_argument(&mut self, index: usize, value: u64) {
        self.set(A0 + index as u8, value);
    }

    /// What a system call has returned.
    pub fn result(&self) -> i64 {
        self.get(A0).cast_signed()
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

    /// The return address that is in a register while contexts are saved, or one is taken back; `ra` is asked for by itself.
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

    /// Has code of ours been changed because it may not read the time counter? Never, here.
    ///
    /// # Errors
    /// Never, here.
    pub fn takes_time(&self, _memory: &Memory) -> Result<bool> {
        Ok(false)
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

    /// Has all registers that lead to these bytes or behind their end lead to as many elsewhere.
    pub fn divert(&mut self, from: u64, len: u64, to: u64) {
        for register in 1..32 {
            let value = self.get(register);
            if (from..=from + len).contains(&value) {
                self.set(register, value - from + to);
            }
        }
    }

    /// If code of ours has faulted at `address` because the thread's pointer is a new one, below which nobody has written yet:
    /// writes where the control block is (`block`), and has the instruction use it. Tells whether it was that.
    ///
    /// # Errors
    /// If the memory is not to be had.
    pub fn find_block(&mut self, block: u64, address: u64, memory: &Memory) -> Result<bool> {
        /// Control blocks, and counters below them, are reached from their addresses by so many bytes.
        const REACH: u64 = 1 << 32;
        let Some(word) = block_word(self) else {
            return Ok(false);
        };
        if address.wrapping_add(REACH) >= 2 * REACH || memory.read_u64(word).ok() != Some(0) {
            return Ok(false);
        }
        let Some(used) = insn(memory, self.pc())?.memory() else {
            return Ok(false);
        };
        memory.write(word, &block.to_le_bytes())?;
        self.set(used.base, self.get(used.base).wrapping_add(block));
        Ok(true)
    }
}

const FP: u8 = 8;
const A0: u8 = 10;
const A7: u8 = 17;

/// The kernel has kept it for the case that the call is made again.
fn first_argument(tid: i32) -> Result<u64> {
    let text = std::fs::read_to_string(format!("/proc/{tid}/syscall"))?;
    let word = text.split_whitespace().nth(1).unwrap_or_default();
    let digits = word.strip_prefix("0x").context("no system call")?;
    Ok(u64::from_str_radix(digits, 16)?)
}

/// The instruction at an address.
fn insn(memory: &Memory, at: u64) -> Result<Insn> {
    let mut code = [0; 4];
    // The second half may be on another page, which need not be there.
    memory.read(at, &mut code[..2])?;
    let _ = memory.read(at.wrapping_add(2), &mut code[2..]);
    Ok(Insn::new(&code, at))
}

/// Is this the signal of a breakpoint instruction, not from another process?
pub fn is_breakpoint(info: &libc::siginfo_t) -> bool {
    info.si_code == libc::TRAP_BRKPT
}

/// The frame that the kernel makes for a signal handler: offsets from the stack pointer at the handler's first instruction
/// (`arch/riscv/kernel/signal.c`, `asm/ucontext.h`, `asm/sigcontext.h`): 128 bytes about the signal, then the context.
pub mod frame {
    const CONTEXT: u64 = 128;
    /// Of the alternate stack: its address, and its size.
    pub const STACK: u64 = CONTEXT + 16;
    pub const STACK_SIZE: u64 = STACK + 16;
    /// Of the interrupted stack pointer and instruction.
    pub const SP: u64 = PC + 2 * 8;
    pub const PC: u64 = CONTEXT + 176;
    /// Of the signals that were blocked.
    pub const MASK: u64 = CONTEXT + 40;
    /// Its bytes, without further registers.
    pub const SIZE: u64 = PC + 256 + 528;
    /// Of the general registers in it, and how many bytes they are.
    pub const REGISTERS: (u64, u64) = (PC, 256);
    /// How far the stack pointer is above the frame when the handler's return enters the kernel.
    pub const RETURNED: u64 = 0;
    /// Of the interrupted function's return address, and of its frame pointer, if the first is in a register.
    pub const RETURN: Option<(u64, u64)> = Some((PC + 8, PC + 8 * 8));
    /// Of the interrupted code's first argument, or result.
    pub(super) const A0: u64 = PC + 10 * 8;
    /// Behind the general and floating-point registers: a word of zeros, and what sort of further registers follows.
    pub(super) const RESERVED: usize = PC as usize + 256 + 516;
    pub(super) const MAGIC: usize = RESERVED + 4;
    /// None, and vector registers.
    pub(super) const MAGICS: [u64; 2] = [0, 0x5346_5457];
}

fn word(bytes: &[u8], at: usize) -> Option<u64> {
    let bytes = bytes.get(at..at + 8)?;
    Some(u64::from_le_bytes(bytes.try_into().ok()?))
}

/// How far below S the return address of a function is on the stack. `kept`: what unwind tables tell. None: that is not known.
pub fn return_below(kept: impl FnOnce() -> Option<i32>) -> Option<u64> {
    u64::try_from(kept()?).ok()
}

/// Of what `getcontext` and `swapcontext` save, in words: where the return address of the caller is, and the stack pointer, which
/// is so many bytes above S.
pub const SAVED_BACK: &[usize] = &[0, 1];
pub const SAVED_SP: usize = 2;
pub const SAVED_ABOVE: u64 = 0;

/// It is no farther below than this.
pub const RETURNS_BELOW: u64 = 1024;
/// Unwinders know a stub's frame by the address so far below S,
pub const STUB_FRAME: u64 = 8;
/// which is by so much lower than that of the function would be.
pub const STUB_LOWER: u64 = 8;

/// Does a signal handler's frame begin at these bytes of a stack? `regs`: of the thread whose stack that is.
pub fn is_frame(
    stack: &[u8],
    _real: &dyn Fn(u64) -> u64,
    _memory: &Memory,
    maps: &[Mapping],
    regs: &Regs,
) -> bool {
    let half = |at| word(stack, at).map(|word| word & 0xFFFF_FFFF);
    // Zeros and small numbers are all over stacks, but these two registers stay what they are.
    let keeps = |register: u8| {
        let saved = word(stack, frame::PC as usize + usize::from(register) * 8);
        saved.is_some_and(|saved| saved != 0 && saved == regs.get(register))
    };
    let is_code = |at: u64| {
        let index = maps.partition_point(|m| m.end <= at);
        maps.get(index)
            .is_some_and(|m| m.start <= at && m.executable)
    };
    // Which signal; no flags and no link in the context.
    half(0).is_some_and(|signal| (1..=64).contains(&signal))
        && word(stack, 128) == Some(0)
        && word(stack, 136) == Some(0)
        && (keeps(TP) || keeps(GP))
        && half(frame::RESERVED) == Some(0)
        && half(frame::MAGIC).is_some_and(|magic| frame::MAGICS.contains(&magic))
        && word(stack, frame::PC as usize).is_some_and(|pc| pc % 2 == 0 && is_code(pc))
}

/// A thread's registers, for who goes from frame to frame.
pub fn for_unwinders(regs: &Regs) -> Option<Registers> {
    let mut known = Registers::new(Machine::Riscv64);
    for register in 1..32 {
        known.set(register, regs.get(register));
    }
    known.set_instruction(Some(regs.pc()));
    Some(known)
}

/// The jump of ours that a copy of changed code would take: not known, for it may have changed registers and the stack.
pub fn copied_jump(_memory: &Memory, _at: u64) -> Option<(u64, u64)> {
    None
}

/// A thread that is so far inside of what [`take_time`] changes has to begin there again.
pub const INSIDE_TIME: u64 = 0;

/// Has code of ours take the time elsewhere: programs cannot forbid themselves the time counter here.
pub fn take_time(_code: &mut [u8]) -> Vec<usize> {
    Vec::new()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shadow_of_stacks_is_not_where_libraries_are() {
        for (sp, linker) in [
            (0x3F_FFF0_0000, Some(0x3F_A000_0000)),
            (0x3F_FFF0_0000, None),
            (0x7FFF_FFF0_0000, Some(0x7FFF_9000_0000)),
            (0x7FFF_FFF0_0000, Some(0x5555_0000_0000)),
        ] {
            let range = stacks(sp, linker);
            assert!(range.contains(&sp));
            assert!(range.end - hodo_trace::format::SHADOW_DISTANCE <= range.start);
        }
    }
}
