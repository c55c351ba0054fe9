//! Runs a few bytes of code on given registers and memory, and returns what they hold afterward.
//!
//! The return from a signal handler loads the registers. The handler of the next signal, from a breakpoint after the
//! code or from a fault, reads them. So only the tested code runs in between, and every register may have any value.

use std::arch::asm;
use std::ptr;
use std::sync::{Mutex, MutexGuard};

use libc::{c_int, c_void, siginfo_t, ucontext_t};

/// The middle of memory full of breakpoints, where original code runs and to which its branches lead.
pub const HOME: u64 = 0x20_0000_0000;
/// The size of this memory in each direction, in bytes.
pub const HOME_SIZE: u64 = 0x18_0000;
/// Memory full of breakpoints, within reach of one jump.
pub const AWAY: u64 = HOME + 0x400_0000;
/// The same, within reach of `adrp`.
pub const FAR: u64 = HOME + 0x4000_0000;
/// The same, further away.
pub const FARTHEST: u64 = 0x30_1234_5000;
/// The size of each of these, in bytes.
pub const AWAY_SIZE: u64 = 0x10000;
/// Memory that the code may use.
pub const ARENA: u64 = 0x21_0000_0000;
/// Its size in bytes.
pub const ARENA_SIZE: u64 = 16384;

/// `brk #0`
const BREAKPOINT: u32 = 0xD420_0000;

/// The contents of registers and memory.
#[derive(Clone, PartialEq, Eq)]
pub struct State {
    /// `x0`–`x30`, and the stack pointer.
    pub x: [u64; 32],
    pub pc: u64,
    /// N, Z, C and V, as bits 31 to 28.
    pub flags: u64,
    pub v: [u128; 32],
    pub fpcr: u32,
    pub fpsr: u32,
    pub memory: Vec<u64>,
}

impl State {
    pub fn new() -> Self {
        Self {
            x: [0; 32],
            pc: 0,
            flags: 0,
            v: [0; 32],
            fpcr: 0,
            fpsr: 0,
            memory: vec![0; ARENA_SIZE as usize / 8],
        }
    }
}

/// The result of a run.
#[derive(Clone, PartialEq, Eq)]
pub struct Outcome {
    pub signal: i32,
    /// The data address that faulted, or 0.
    pub fault: u64,
    pub state: State,
}

impl Outcome {
    /// Describes the differences for readers.
    pub fn difference(a: &Self, b: &Self) -> String {
        let mut out = format!(
            "signals {} and {}, faults {:#x} and {:#x}, at {:#x} and {:#x}, flags {:#x} and {:#x}\n",
            a.signal,
            b.signal,
            a.fault,
            b.fault,
            a.state.pc,
            b.state.pc,
            a.state.flags,
            b.state.flags
        );
        let registers = a.state.x.iter().zip(&b.state.x).enumerate();
        for (number, (a, b)) in registers.filter(|(_, (a, b))| a != b) {
            out.push_str(&format!("  x{number}: {a:#x}, moved {b:#x}\n"));
        }
        let registers = a.state.v.iter().zip(&b.state.v).enumerate();
        for (number, (a, b)) in registers.filter(|(_, (a, b))| a != b) {
            out.push_str(&format!("  v{number}: {a:#x}, moved {b:#x}\n"));
        }
        let words = a.state.memory.iter().zip(&b.state.memory).enumerate();
        for (number, (a, b)) in words.filter(|(_, (a, b))| a != b) {
            out.push_str(&format!("  word {number}: {a:#x}, moved {b:#x}\n"));
        }
        out
    }
}

/// Registers, as in the kernel's frame.
#[derive(Clone, Copy)]
struct Registers {
    x: [u64; 32],
    pc: u64,
    pstate: u64,
    v: [u128; 32],
    fpcr: u32,
    fpsr: u32,
}

/// What the signal handler uses. Only one thread runs code at a time.
struct Shared {
    state: *const State,
    outcome: *mut Outcome,
    running: bool,
    kept: Option<Registers>,
}

static mut SHARED: Shared = Shared {
    state: ptr::null(),
    outcome: ptr::null_mut(),
    running: false,
    kept: None,
};

/// The kernel's record of floating-point registers in a frame (`struct fpsimd_context`).
#[repr(C)]
struct FloatRecord {
    magic: u32,
    size: u32,
    fpsr: u32,
    fpcr: u32,
    v: [u128; 32],
}

const FLOAT_MAGIC: u32 = 0x4650_8001;

/// The record of scalable vectors, if there is one. The fixed-length vectors are their first bytes.
const SCALABLE_MAGIC: u32 = 0x5356_4501;
/// The offsets in it of the vectors, and of the length of each.
const SCALABLE_VECTORS: usize = 16;
const SCALABLE_LENGTH: usize = 8;

/// Returns the record with this magic number in a frame.
///
/// # Safety
/// The frame must be the kernel's.
unsafe fn record(context: *mut ucontext_t, magic: u32) -> Option<*mut FloatRecord> {
    // SAFETY: this field holds consecutive records, each with its size, up to an empty one.
    unsafe {
        // The C library's type does not name the field. It follows the other registers, at a multiple of 16.
        let registers = &raw mut (*context).uc_mcontext;
        let end = &raw mut (*registers).pstate;
        let mut at = (end as usize + 8).next_multiple_of(16) as *mut FloatRecord;
        while (*at).magic != magic {
            if (*at).magic == 0 {
                return None;
            }
            at = at.byte_add((*at).size as usize);
        }
        Some(at)
    }
}

/// Returns the record of floating-point registers in a frame.
///
/// # Safety
/// The frame must be the kernel's.
unsafe fn float(context: *mut ucontext_t) -> *mut FloatRecord {
    // SAFETY: as the caller promises.
    match unsafe { record(context, FLOAT_MAGIC) } {
        Some(record) => record,
        // Every frame has one.
        None => std::process::abort(),
    }
}

/// Reads the registers in a frame.
///
/// # Safety
/// The frame must be the kernel's.
unsafe fn read(context: *mut ucontext_t) -> Registers {
    // SAFETY: as the caller promises.
    unsafe {
        let float = float(context);
        let machine = &(*context).uc_mcontext;
        let mut x = [0; 32];
        x[..31].copy_from_slice(&machine.regs);
        x[31] = machine.sp;
        Registers {
            x,
            pc: machine.pc,
            pstate: machine.pstate,
            v: ptr::read_unaligned(&raw const (*float).v),
            fpcr: (*float).fpcr,
            fpsr: (*float).fpsr,
        }
    }
}

/// Writes the registers in a frame.
///
/// # Safety
/// The frame must be the kernel's.
unsafe fn write(context: *mut ucontext_t, registers: &Registers) {
    // SAFETY: as the caller promises.
    unsafe {
        let float = float(context);
        let machine = &mut (*context).uc_mcontext;
        machine.regs.copy_from_slice(&registers.x[..31]);
        machine.sp = registers.x[31];
        machine.pc = registers.pc;
        machine.pstate = registers.pstate;
        ptr::write_unaligned(&raw mut (*float).v, registers.v);
        (*float).fpcr = registers.fpcr;
        (*float).fpsr = registers.fpsr;
        if let Some(scalable) = record(context, SCALABLE_MAGIC)
            && (*scalable).size as usize > SCALABLE_VECTORS
        {
            let len: u16 = ptr::read_unaligned(scalable.byte_add(SCALABLE_LENGTH).cast());
            for (number, &v) in registers.v.iter().enumerate() {
                let at = SCALABLE_VECTORS + number * usize::from(len);
                ptr::write_unaligned(scalable.byte_add(at).cast::<u128>(), v);
            }
        }
    }
}

/// The arithmetic flags, in the processor's state.
const FLAGS: u64 = 0xF000_0000;
/// The bits of the processor's state that show which kind of branch led to the instruction.
const BRANCH_TYPE: u64 = 0xC00;

/// Loads the state, or reads the result.
extern "C" fn handle(signal: c_int, info: *const siginfo_t, context: *mut ucontext_t) {
    // SAFETY: one thread at a time causes these signals, after it has filled the shared state; the kernel's frame is
    // this thread's.
    unsafe {
        let shared = &raw mut SHARED;
        let shared = &mut *shared;
        let found = read(context);
        if shared.running {
            shared.running = false;
            let outcome = &mut *shared.outcome;
            outcome.signal = signal;
            outcome.fault = match signal {
                libc::SIGSEGV | libc::SIGBUS => (*info).si_addr() as u64,
                _ => 0,
            };
            let state = &mut outcome.state;
            (state.x, state.pc, state.v) = (found.x, found.pc, found.v);
            state.flags = found.pstate & FLAGS;
            (state.fpcr, state.fpsr) = (found.fpcr, found.fpsr);
            let Some(mut kept) = shared.kept else {
                libc::abort();
            };
            // Continues after the breakpoint.
            kept.pc += 4;
            write(context, &kept);
        } else {
            if shared.state.is_null() {
                libc::abort();
            }
            shared.running = true;
            shared.kept = Some(found);
            let state = &*shared.state;
            let registers = Registers {
                x: state.x,
                pc: state.pc,
                pstate: found.pstate & !(FLAGS | BRANCH_TYPE) | state.flags,
                v: state.v,
                fpcr: state.fpcr,
                fpsr: state.fpsr,
            };
            write(context, &registers);
        }
    }
}

static ONLY: Mutex<()> = Mutex::new(());

/// The memory of the tests, and the right to run code there.
pub struct Machine {
    _only: MutexGuard<'static, ()>,
}

impl Machine {
    pub fn new() -> Self {
        let only = ONLY.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let breakpoints = |at: u64, size: u64| {
            map(
                at,
                size,
                libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC,
            );
            fill(at, size);
        };
        breakpoints(HOME - HOME_SIZE, 2 * HOME_SIZE);
        breakpoints(AWAY, AWAY_SIZE);
        breakpoints(FAR, AWAY_SIZE);
        breakpoints(FARTHEST, AWAY_SIZE);
        map(ARENA, ARENA_SIZE, libc::PROT_READ | libc::PROT_WRITE);
        const STACK: usize = 1 << 17;
        let stack = Box::leak(vec![0u8; STACK].into_boxed_slice());
        let stack = libc::stack_t {
            ss_sp: stack.as_mut_ptr().cast(),
            ss_flags: 0,
            ss_size: STACK,
        };
        // SAFETY: the memory is never unmapped; the handler works on any stack and with any registers.
        unsafe {
            assert_eq!(libc::sigaltstack(&stack, ptr::null_mut()), 0);
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = handle as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_NODEFER;
            for signal in [
                libc::SIGTRAP,
                libc::SIGSEGV,
                libc::SIGBUS,
                libc::SIGILL,
                libc::SIGFPE,
            ] {
                assert_eq!(libc::sigaction(signal, &action, ptr::null_mut()), 0);
            }
        }
        Self { _only: only }
    }

    /// Writes code to an address.
    pub fn place(&mut self, at: u64, code: &[u8]) {
        // SAFETY: this is within the memory for code, which nothing else uses.
        unsafe { ptr::copy_nonoverlapping(code.as_ptr(), at as *mut u8, code.len()) };
        synchronize(at, code.len());
    }

    /// Fills the code's place with breakpoints again.
    pub fn clear(&mut self, at: u64, len: usize) {
        fill(at, len as u64);
        synchronize(at, len);
    }

    /// Runs the code at an address until it stops.
    pub fn run(&mut self, at: u64, state: &State) -> Outcome {
        let mut state = state.clone();
        state.pc = at;
        let mut outcome = Outcome {
            signal: 0,
            fault: 0,
            state: state.clone(),
        };
        // SAFETY: the arena is mapped and has this size. The handler uses the shared state only between the two
        // signals, and restores all registers at the second one.
        unsafe {
            let arena = ARENA as *mut u64;
            ptr::copy_nonoverlapping(state.memory.as_ptr(), arena, state.memory.len());
            let shared = &raw mut SHARED;
            (*shared).state = &raw const state;
            (*shared).outcome = &raw mut outcome;
            asm!("brk #0");
            (*shared).state = ptr::null();
            let words = outcome.state.memory.len();
            ptr::copy_nonoverlapping(arena, outcome.state.memory.as_mut_ptr(), words);
        }
        outcome
    }
}

/// Makes the processor see changed code.
fn synchronize(at: u64, len: usize) {
    for line in (at..at + len as u64).step_by(16) {
        // SAFETY: the memory is mapped; only instruction fetches are affected.
        unsafe { asm!("dc cvau, {0}", "dsb ish", "ic ivau, {0}", in(reg) line) };
    }
    // SAFETY: only instruction fetches are affected.
    unsafe { asm!("dsb ish", "isb") };
}

fn map(at: u64, size: u64, protection: c_int) {
    // Tests in one process run one after the other.
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
    // SAFETY: nothing else in the process has these addresses.
    let got = unsafe { libc::mmap(at as *mut c_void, size as usize, protection, flags, -1, 0) };
    assert_eq!(got as u64, at, "{}", std::io::Error::last_os_error());
}

/// Fills memory with breakpoints.
fn fill(at: u64, size: u64) {
    // SAFETY: this is within our memory.
    let memory = unsafe { std::slice::from_raw_parts_mut(at as *mut u32, size as usize / 4) };
    memory.fill(BREAKPOINT);
}
