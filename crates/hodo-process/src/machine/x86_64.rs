//! x86-64, with Linux's conventions for it.

mod costs;

use anyhow::Result;
use hodo_arch::detour::Source;
use hodo_probe::Register;
use hodo_probe::registers::x86_64::Whole;
use hodo_symbols::Registers;
use hodo_trace::format::tcb;

pub use costs::measure;

use super::Operand;
use crate::frames::Called;
use crate::maps::Mapping;
use crate::remote::{self, Memory, request};

/// What a trace calls this.
pub const NAME: &str = "x86-64";
/// What an ELF file says that is for this.
pub const ELF_MACHINE: u16 = 62;

/// A breakpoint.
pub const BREAKPOINT: [u8; 1] = [0xCC];
/// A branch to itself.
pub const WAIT: [u8; 2] = [0xEB, 0xFE];
/// What enters the kernel (`syscall`).
pub const SYSTEM_CALL: [u8; 2] = [0x0F, 0x05];
/// How far from where a thread was stopped the kernel has it go on in a handler's frame, if that has broken in on a system call
/// that is made again.
pub const BROKEN_OFF: i64 = -2;
/// Code that makes a system call and then, unless somebody stops the thread there, has it go on as if it had not been made. The stack pointer
/// leads to what [`Regs::home`] has.
pub const CALL_AND_HOME: [u8; 51] = [
    0x0F, 0x05, // syscall
    0x31, 0xD2, // xor edx, edx
    0x48, 0x89, 0xE6, // mov rsi, rsp
    0xBF, 2, 0, 0, 0, // mov edi, SIG_SETMASK
    0x41, 0xBA, 8, 0, 0, 0, // mov r10d, 8
    0xB8, 14, 0, 0, 0, // mov eax, rt_sigprocmask
    0x0F, 0x05, // syscall
    0x58, // pop rax
    0x41, 0x5F, 0x41, 0x5E, 0x41, 0x5D, 0x41, 0x5C, // pop r15, r14, r13, r12
    0x5D, 0x5B, 0x41, 0x5B, 0x41, 0x5A, 0x41, 0x59, 0x41,
    0x58, // pop rbp, rbx, r11, r10, r9, r8
    0x58, 0x59, 0x5A, 0x5E, 0x5F, // pop rax, rcx, rdx, rsi, rdi
    0x48, 0xCF, // iretq
];
/// A function that returns 0: `xor eax, eax; ret`.
pub const RETURN_ZERO: [u8; 3] = [0x31, 0xC0, 0xC3];

/// Where the trace goes in targets: far from all that programs use, sanitizers included.
pub const EVENTS_AT: [u64; 3] = [0x2000_0000_0000, 0x3800_0000_0000, 0x1800_0000_0000];
/// Where the ledger goes: after the trace.
pub const LEDGER_AT: [u64; 3] = [0x2080_0000_0000, 0x3880_0000_0000, 0x1880_0000_0000];
/// So much address space from a program on, and below the libraries, gets a shadow at once.
pub const SHADOW_ROOM: u64 = 1 << 40;

/// What has a shadow from the beginning on: from some way below the libraries up to the first stack.
/// `linker`: where the dynamic linker is; `sp`: the first stack.
pub fn stacks(sp: u64, linker: Option<u64>) -> std::ops::Range<u64> {
    // Without address space randomization the first stack ends where the address space does.
    let top = 0x8000_0000_0000;
    let low = linker
        .filter(|&base| base > 1 << 46)
        .unwrap_or(0x7E00_0000_0000)
        .min(sp);
    low - SHADOW_ROOM..top
}

/// The time counter of this processor.
pub fn counter() -> u64 {
    // SAFETY: rdtsc exists on every x86-64 processor and has no effect but its result.
    unsafe { core::arch::x86_64::_rdtsc() }
}

/// The oldest system call that waits for events of an epoll descriptor.
pub const EPOLL_WAIT: i64 = libc::SYS_epoll_wait;
/// Further events for which threads are to be stopped.
pub const OPTIONS: i32 = 0;

/// Where the word is that leads to a thread's control block and may be another thread's, too: nowhere, each has a register.
///
/// # Errors
/// Never, here.
pub fn place_of_block(_tid: i32, _workshop: u64) -> Result<Option<u64>> {
    Ok(None)
}
/// Bytes of a page of ours in targets. 0: none is needed.
pub const WORKSHOP: u64 = 0;
/// So many threads may make a step at once.
pub const SLOTS: u64 = u64::MAX;

/// What the control block of a thread has in `tcb::FLAGS`, if it is not under a filter of system calls: these lose nothing.
pub fn calls(_tid: i32) -> u64 {
    0
}

/// What system calls lose beside their result: nothing.
#[derive(Debug)]
pub struct Kept;

impl Kept {
    /// Of a stopped thread that is about to make system calls of ours.
    pub fn of(_tid: i32) -> Self {
        Self
    }

    /// Puts it back.
    ///
    /// # Errors
    /// Never, here.
    pub fn put_back(&mut self, _tid: i32) -> Result<()> {
        Ok(())
    }
}

/// General registers.
#[derive(Debug, Clone, Copy)]
pub struct Regs(libc::user_regs_struct);

/// Reads the registers of a stopped thread.
///
/// # Errors
/// If the thread is gone.
pub fn regs(tid: i32) -> Result<Regs> {
    // SAFETY: all-zero is a valid user_regs_struct.
    let mut regs: libc::user_regs_struct = unsafe { std::mem::zeroed() };
    // SAFETY: PTRACE_GETREGS writes one user_regs_struct to `data`.
    let result = unsafe { libc::ptrace(libc::PTRACE_GETREGS, tid, 0, &raw mut regs) };
    remote::check(result, "the registers", tid)?;
    Ok(Regs(regs))
}

/// Writes the registers of a stopped thread.
///
/// # Errors
/// If the thread is gone.
pub fn set_regs(tid: i32, regs: &Regs) -> Result<()> {
    // SAFETY: PTRACE_SETREGS reads one user_regs_struct from `data`.
    let result = unsafe { libc::ptrace(libc::PTRACE_SETREGS, tid, 0, &raw const regs.0) };
    remote::check(result, "the registers", tid).map(drop)
}

/// Where the control block of a stopped thread is, as its stubs find it: the `gs` base. 0: nowhere.
///
/// # Errors
/// If the thread is gone.
pub fn block(tid: i32) -> Result<u64> {
    Ok(regs(tid)?.0.gs_base)
}

/// Tells the stubs of a stopped thread where its control block is. (`_workshop` and `_number` are for others.)
///
/// # Errors
/// If the thread is gone.
pub fn set_block(tid: i32, at: u64, _workshop: u64, _number: u64) -> Result<()> {
    let offset = std::mem::offset_of!(libc::user_regs_struct, gs_base) as u64;
    request(libc::PTRACE_POKEUSER, tid, offset, at)
}

/// A process has just executed a program. The kernel has cleared its `gs` base.
///
/// # Errors
/// Never, here.
pub fn forget_block(_tid: i32) -> Result<()> {
    Ok(())
}

/// Why the threads of a program cannot be told apart: they always can.
pub fn unsuited(_file: &[u8]) -> Option<&'static str> {
    None
}

/// What a process uses itself if one of its threads has something where its control block is to be told.
pub const BLOCK_IN_USE: &str =
    "uses the gs register itself (as Wine does), which hodo needs to tell threads apart";

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

    /// Whether the thread is in a system call that the kernel may let it make again, from the instruction in front of
    /// [`Regs::pc`].
    pub fn may_go_back(&self) -> bool {
        self.system_call().is_some()
    }

    /// The system call that a stopped thread is in, or is about to make again for a stop has broken it off: number and arguments.
    pub fn call(&self) -> (u64, [u64; 6]) {
        let regs = &self.0;
        let number = match self.system_call() {
            Some(_) => regs.orig_rax,
            None => regs.rax,
        };
        let args = [regs.rdi, regs.rsi, regs.rdx, regs.r10, regs.r8, regs.r9];
        (number, args)
    }

    /// Does the kernel make the call again that a stopped thread is in, if no signal comes?
    pub fn is_made_again(&self) -> bool {
        self.system_call().is_some() && matches!(self.result(), -514..=-512 | -516)
    }

    /// The first argument of the system call that the thread `_tid` is in.
    ///
    /// # Errors
    /// Never, here.
    pub fn first_argument(&self, _tid: i32) -> Result<u64> {
        Ok(self.0.rdi)
    }

    /// What a thread with these registers and this signal mask needs to go on from [`CALL_AND_HOME`], and where: below all that it
    /// has on its stack. A system call that it was stopped in is made again.
    pub fn home(&self, mask: u64) -> Option<(u64, Vec<u8>)> {
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

    /// Changes an argument of the system call that the thread is about to make: the third or the fourth, from 0.
    pub fn set_argument(&mut self, index: usize, value: u64) {
        match index {
            2 => self.0.rdx = value,
            3 => self.0.r10 = value,
            _ => self.0.r8 = value,
        }
    }

    /// What a system call has returned.
    pub fn result(&self) -> i64 {
        self.0.rax.cast_signed()
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

    /// If the thread is at an instruction that reads the time counter: does it in its place. Tells whether it was that.
    ///
    /// # Errors
    /// If the memory is not to be had.
    pub fn read_counter(&mut self, memory: &Memory) -> Result<bool> {
        let mut code = [0; 2];
        memory.read(self.0.rip, &mut code)?;
        if code != [0x0F, 0x31] {
            return Ok(false);
        }
        let now = counter();
        self.0.rax = now & 0xFFFF_FFFF;
        self.0.rdx = now >> 32;
        self.0.rip += 2;
        Ok(true)
    }

    /// Is the thread at code of ours that [`take_time`] has changed?
    ///
    /// # Errors
    /// If the memory is not to be had.
    pub fn takes_time(&self, memory: &Memory) -> Result<bool> {
        let mut code = TAKE_TIME;
        memory.read(self.0.rip, &mut code)?;
        Ok(code == TAKE_TIME)
    }

    /// All general registers.
    pub fn all(&self) -> [u64; 16] {
        let regs = &self.0;
        [
            regs.rax, regs.rcx, regs.rdx, regs.rbx, regs.rsp, regs.rbp, regs.rsi, regs.rdi,
            regs.r8, regs.r9, regs.r10, regs.r11, regs.r12, regs.r13, regs.r14, regs.r15,
        ]
    }

    /// If code of ours has faulted because it does not find the control block: this cannot be.
    ///
    /// # Errors
    /// Never, here.
    pub fn find_block(&mut self, _block: u64, _address: u64, _memory: &Memory) -> Result<bool> {
        Ok(false)
    }

    /// Has all registers that lead to these bytes or behind their end lead to as many elsewhere.
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

/// How records get their time: `rdtsc; cmp edx, gs:[EPOCH]`.
const READ_TIME: [u8; 10] = [
    0x0F,
    0x31,
    0x65,
    0x3B,
    0x14,
    0x25,
    tcb::EPOCH as u8,
    0,
    0,
    0,
];
/// How they get it where that is forbidden: `mov eax, gs:[NOW]; cmp eax, eax`.
const TAKE_TIME: [u8; 10] = {
    let [low, high, ..] = (tcb::NOW as u32).to_le_bytes();
    [0x65, 0x8B, 0x04, 0x25, low, high, 0, 0, 0x39, 0xC0]
};
/// A thread that is so far inside of what [`take_time`] changes has to begin there again.
pub const INSIDE_TIME: u64 = 2;

/// Has code of ours take the time from the control block, not from the time counter. Returns where it was changed.
pub fn take_time(code: &mut [u8]) -> Vec<usize> {
    let mut places = Vec::new();
    for at in 0..code.len().saturating_sub(READ_TIME.len() - 1) {
        if code[at..].starts_with(&READ_TIME) {
            code[at..][..TAKE_TIME.len()].copy_from_slice(&TAKE_TIME);
            places.push(at);
        }
    }
    places
}

/// A single step: the processor does it.
#[derive(Debug, Clone, Copy)]
pub struct Step;

/// Has a stopped thread execute one instruction; it stops by SIGTRAP. (`_workshop` and `_slot` are for others.)
///
/// # Errors
/// If the thread is gone.
pub fn step(tid: i32, _workshop: u64, _slot: u64) -> Result<Step> {
    request(libc::PTRACE_SINGLESTEP, tid, 0, 0).map(|()| Step)
}

impl Step {
    /// The thread has stopped: brings it to where it would be if it had executed the instruction in its place. Tells whether
    /// that was not so.
    ///
    /// # Errors
    /// Never, here.
    pub fn end(self, _tid: i32) -> Result<bool> {
        Ok(false)
    }
}

/// Whether [`enter_handler`] stops a thread as [`remote::interrupt`] does, not by a signal.
pub const HANDLERS_STOP: bool = false;

/// Has a stopped thread take a signal, and stop at the first instruction of its handler.
///
/// # Errors
/// If the thread is gone.
pub fn enter_handler(tid: i32, signal: i32) -> Result<()> {
    request(libc::PTRACE_SINGLESTEP, tid, 0, signal as u64)
}

/// Is this the signal of a breakpoint instruction, not of a processor that single-steps, or from another process?
pub fn is_breakpoint(info: &libc::siginfo_t) -> bool {
    /// `si_code` of a signal that the kernel sent by itself (`asm-generic/siginfo.h`).
    const SI_KERNEL: i32 = 0x80;
    info.si_code == SI_KERNEL
}

/// Has a stopped thread, which was interrupted in a system call that has returned EINTR for that, make it again. `regs` are its
/// own.
///
/// # Errors
/// If the thread is gone.
pub fn call_again(tid: i32, mut regs: Regs) -> Result<()> {
    let mut code = SYSTEM_CALL;
    let at = regs.0.rip.wrapping_sub(code.len() as u64);
    Memory::open(tid)?.read(at, &mut code)?;
    if code == SYSTEM_CALL {
        regs.0.rip = at;
        regs.0.rax = regs.0.orig_rax;
        regs.0.orig_rax = u64::MAX;
        set_regs(tid, &regs)?;
    }
    Ok(())
}

/// What the code of one function does with the stack: nothing that matters, for calls put return addresses there.
#[derive(Debug)]
pub struct Made;

impl Made {
    /// Of the function at an address.
    pub fn of(_memory: &Memory, _start: u64, _end: Option<u64>) -> Self {
        Self
    }

    /// How far below S it keeps its return address: [`return_below`] knows.
    pub fn kept(&self) -> Option<i32> {
        None
    }

    /// S of a thread that is at `_pc` in it.
    pub fn frame(&self, _pc: u64, _sp: u64) -> Option<u64> {
        None
    }
}

/// Registers with which a thread that was stopped in a system call, and has made others, comes out of the kernel as if it were
/// that call. `saved` are its own. Another number: what the last one of the others is to have as its first argument.
///
/// # Errors
/// Never, here.
pub fn broken_off(_tid: i32, saved: &Regs) -> Result<(Regs, Option<u64>)> {
    Ok((*saved, None))
}

/// The frame that the kernel makes for a signal handler: offsets from the stack pointer at the handler's first instruction
/// (`arch/x86/include/asm/sigframe.h`, `asm/sigcontext.h`): the return address, then the context.
pub mod frame {
    /// Of the alternate stack: its address, and its size.
    pub const STACK: u64 = 8 + 16;
    pub const STACK_SIZE: u64 = STACK + 16;
    /// Of the interrupted stack pointer and instruction.
    pub const SP: u64 = 8 + 40 + 15 * 8;
    pub const PC: u64 = 8 + 40 + 16 * 8;
    /// Of the signals that were blocked.
    pub const MASK: u64 = 8 + 40 + 256;
    /// Its bytes, without the registers that its context leads to.
    pub const SIZE: u64 = 8 + 304 + 128;
    /// Return addresses are in no register.
    pub const REGISTERS: (u64, u64) = (0, 0);
    /// How far the stack pointer is above the frame when the handler's return enters the kernel: it has taken the first word.
    pub const RETURNED: u64 = 8;
    /// Of the interrupted function's return address, and of its frame pointer, if the first is in a register.
    pub const RETURN: Option<(u64, u64)> = None;
    pub(super) const SEGMENTS: usize = 8 + 40 + 18 * 8;
    /// The selector of 64-bit code.
    pub(super) const USER_CODE: u16 = 0x33;
}

fn word(bytes: &[u8], at: usize) -> Option<u64> {
    let bytes = bytes.get(at..at + 8)?;
    Some(u64::from_le_bytes(bytes.try_into().ok()?))
}

/// How far below S the return address of a function is on the stack. `_kept`: what unwind tables tell. None: that is not known.
pub fn return_below(_kept: impl FnOnce() -> Option<i32>) -> Option<u64> {
    Some(0)
}

/// What a call calls that ends at `at` with these 8 bytes.
pub fn called_by(before: [u8; 8], at: u64) -> Called {
    let direct = before.last_chunk().copied();
    if let Some(target) = direct.and_then(|call| by_distance(0xE8, at.wrapping_sub(5), call)) {
        return Called::This(target);
    }
    // FF /2: two bytes, and those of an operand in memory
    match before
        .windows(2)
        .any(|code| code[0] == 0xFF && code[1] >> 3 & 7 == 2)
    {
        true => Called::Something,
        false => Called::Nothing,
    }
}

/// The slot from which code loads the address that it jumps to: not asked, for S is known.
pub fn slot_of(_code: &[u8], _at: u64) -> Option<u64> {
    None
}

/// Nobody has to go from frame to frame.
pub fn for_unwinders(_regs: &Regs) -> Option<Registers> {
    None
}

/// Of what `getcontext` and `swapcontext` save, in words: where the return address of the caller is, and the stack pointer, which
/// is so many bytes above S.
pub const SAVED_BACK: &[usize] = &[1];
pub const SAVED_SP: usize = 0;
pub const SAVED_ABOVE: u64 = 8;

/// It is no farther below than this.
pub const RETURNS_BELOW: u64 = 0;
/// Unwinders know a stub's frame by the address so far below S,
pub const STUB_FRAME: u64 = 0;
/// which is by so much lower than that of the function would be.
pub const STUB_LOWER: u64 = 8;

/// Does a signal handler's frame begin at these bytes of a stack? `real`: what a return address is without us that is there.
pub fn is_frame(
    stack: &[u8],
    real: &dyn Fn(u64) -> u64,
    memory: &Memory,
    maps: &[Mapping],
    _regs: &Regs,
) -> bool {
    word(stack, frame::SEGMENTS).is_some_and(|word| word as u16 == frame::USER_CODE)
        && word(stack, 0).is_some_and(|back| is_restorer(memory, maps, real(back)))
}

/// Is this where signal handlers return to: `mov $15, %eax` in one of its forms, `syscall`?
fn is_restorer(memory: &Memory, maps: &[Mapping], at: u64) -> bool {
    let index = maps.partition_point(|m| m.end <= at);
    if !maps
        .get(index)
        .is_some_and(|m| m.start <= at && m.executable)
    {
        return false;
    }
    let mut code = [0; 9];
    memory.read(at, &mut code).is_ok()
        && (code == [0x48, 0xC7, 0xC0, 15, 0, 0, 0, 0x0F, 0x05]
            || code[..7] == [0xB8, 15, 0, 0, 0, 0x0F, 0x05])
}

fn by_distance(opcode: u8, at: u64, code: [u8; 5]) -> Option<u64> {
    let [first, distance @ ..] = code;
    let distance = i64::from(i32::from_le_bytes(distance));
    (first == opcode).then(|| at.wrapping_add(5).wrapping_add_signed(distance))
}

/// Is this a function that only returns, with padding after it as far as a long jump goes?
pub fn only_returns(at: u64, code: [u8; 5]) -> bool {
    /// Bytes of the longer nops, and what stands for single ones.
    const PADDING: [u8; 11] = [
        0x66, 0x2E, 0x0F, 0x1F, 0x84, 0x80, 0x40, 0x44, 0x00, 0x90, 0xCC,
    ];
    const RETURN: u8 = 0xC3;
    const MARKED: [u8; 5] = [0xF3, 0x0F, 0x1E, 0xFA, RETURN];
    let is_padding = || code[1..].iter().all(|byte| PADDING.contains(byte));
    code == MARKED || code[0] == RETURN && at.is_multiple_of(16) && is_padding()
}

/// Where the long jump with these bytes at `at` leads to, if it is one.
pub fn jump_target(at: u64, bytes: &[u8]) -> Option<u64> {
    by_distance(0xE9, at, bytes.get(..5)?.try_into().ok()?)
}

/// The jump of ours that code of the program would take which is a copy of changed code, and begins at `at`: where the jump is, and
/// where it leads. It has changed no register.
pub fn copied_jump(memory: &Memory, at: u64) -> Option<(u64, u64)> {
    let mut code = [0; 2];
    memory.read(at, &mut code).ok()?;
    let jump = match code {
        // By way of padding nearby.
        [0xEB, distance] => at
            .wrapping_add(2)
            .wrapping_add_signed(i64::from(distance.cast_signed())),
        _ => at,
    };
    Some((jump, jump_at(memory, jump)?))
}

/// Where the jump of ours at `at` leads to, if it is one.
pub fn jump_at(memory: &Memory, at: u64) -> Option<u64> {
    let mut jump = [0; 5];
    memory.read(at, &mut jump).ok()?;
    by_distance(0xE9, at, jump)
}

/// What the call of ours in front of `at` calls, if it is one whose bytes tell.
pub fn called_before(memory: &Memory, at: u64) -> Option<u64> {
    let (mut call, start) = ([0; 5], at.checked_sub(5)?);
    memory.read(start, &mut call).ok()?;
    by_distance(0xE8, start, call)
}

/// Does the code of a hook stand in front of `at` that makes a call?
pub fn is_behind_call(memory: &Memory, at: u64) -> bool {
    let mut before = [0; 5];
    memory.read(at.wrapping_sub(5), &mut before).is_ok()
        && (before[0] == 0xE8 || before[1..4] == [0xFF, 0x54, 0x24])
}

/// Is what follows a system call the end of a thread, which has just unmapped its own stack (musl's `__unmapself`)?
/// There is no stack to save anything on, then.
pub fn ends_thread(code: &[u8]) -> bool {
    // xor rdi, rdi (or edi, edi); mov al (or eax), 60; syscall
    const CLEAR: [&[u8]; 3] = [&[0x48, 0x31, 0xFF], &[0x31, 0xFF], &[0x48, 0x33, 0xFF]];
    const EXIT: [&[u8]; 2] = [&[0xB0, 60], &[0xB8, 60, 0, 0, 0]];
    let clear = CLEAR.iter().find_map(|clear| code.strip_prefix(*clear));
    let exit = clear.and_then(|code| EXIT.iter().find_map(|exit| code.strip_prefix(*exit)));
    exit.is_some_and(|code| code.starts_with(&SYSTEM_CALL))
}

/// Do the bytes before and behind those of a system call's instruction look as if it were one?
pub fn looks_like_call(before: &[u8], behind: &[u8]) -> bool {
    // mov eax, number
    let number = before
        .windows(5)
        .any(|code| code[0] == 0xB8 && code[2] < 2 && code[3..] == [0, 0]);
    // mov rax, number
    let wide = before
        .windows(7)
        .any(|code| code[..3] == [0x48, 0xC7, 0xC0] && code[4] < 2 && code[5..] == [0, 0]);
    // cmp rax, -4095 or -4096
    let compared = [[0x48, 0x3D, 0x01, 0xF0], [0x48, 0x3D, 0x00, 0xF0]];
    number || wide || compared.iter().any(|code| behind.starts_with(code))
}

/// The general registers by the processor's numbers.
pub const REGISTERS: [&str; 16] = [
    "rax", "rcx", "rdx", "rbx", "rsp", "rbp", "rsi", "rdi", "r8", "r9", "r10", "r11", "r12", "r13",
    "r14", "r15",
];
/// Whether programs can tell which processor they run on, without the kernel.
pub const TELLS_CPU: bool = true;
/// The stack pointer, and where functions return a value, by number.
pub const STACK_POINTER: u8 = 4;
pub const RETURN_VALUE: u8 = 0;
/// Registers of the first arguments (System V ABI, x86-64 supplement, 3.2.3).
pub const ARGUMENTS: [u8; 6] = [7, 6, 2, 1, 8, 9];
/// The word of the stack with the first argument that is not in a register, when a function is entered: above the return
/// address.
pub const STACK_ARGUMENTS: usize = 1;
/// The address of the instruction, as a register.
pub const PROGRAM_COUNTER: &str = "rip";

/// An operand in the syntax of compilers: `%edi`, `$5`, `-16(%rbp)`, `total(%rip)`. None: one that cannot be fetched, with an
/// index.
pub fn operand(text: &str) -> Option<Operand<'_>> {
    if let Some(name) = text.strip_prefix('%') {
        return Some(Operand::Register(name));
    }
    if let Some(number) = text.strip_prefix('$') {
        return Some(Operand::Number(number));
    }
    let (displacement, base) = text.strip_suffix(')')?.split_once("(%")?;
    Some(Operand::Memory(displacement, base))
}

/// Where a register's value comes from, and which bits of it count: the lowest, and how many. None: it is another processor's.
pub fn fetched(register: Register) -> Option<(Source, (u32, u32))> {
    let Register::X86_64(register) = register else {
        return None;
    };
    let source = match register.whole {
        Whole::Rip => Source::Here,
        Whole::Flags => Source::Flags,
        Whole::Cs => Source::Segment(1),
        Whole::Ss => Source::Segment(2),
        whole => Source::Register(whole as u8),
    };
    Some((source, (register.part.shift(), register.part.bits())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stack_that_is_gone_is_known() {
        // musl 1.2, src/thread/x86_64/__unmapself.s, behind the first system call
        assert!(ends_thread(&[0x48, 0x31, 0xFF, 0xB0, 60, 0x0F, 0x05]));
        assert!(!ends_thread(&[0x48, 0x31, 0xFF, 0xB0, 61, 0x0F, 0x05]));
        assert!(!ends_thread(&[]));
    }

    #[test]
    fn jumps_and_calls_lead_where_their_bytes_say() {
        let code = [0xE8, 0x10, 0, 0, 0, 0xE9, 0xF6, 0xFF, 0xFF, 0xFF];
        let at = code.as_ptr().addr() as u64;
        let memory = Memory::open(std::process::id().cast_signed()).expect("one's own memory");
        assert_eq!(called_before(&memory, at + 5), Some(at + 5 + 0x10));
        assert_eq!(called_before(&memory, at + 10), None);
        assert_eq!(jump_at(&memory, at + 5), Some(at));
        assert_eq!(jump_target(at + 5, &code[5..]), Some(at));
        assert_eq!(jump_target(at, &code), None);
        assert_eq!(jump_target(at, &code[..4]), None);
        assert!(is_behind_call(&memory, at + 5));
        assert!(!is_behind_call(&memory, at + 10));
    }
}
