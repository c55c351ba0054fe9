//! Runs a few bytes of code on given registers and memory, and tells what they are afterwards.
//!
//! The registers are loaded by the return from a signal handler, and taken at the next signal: a breakpoint after the
//! code, or a fault. So none of our code runs between the state and what is tested, and every register may have any
//! value.

use std::arch::{asm, global_asm};
use std::ptr;
use std::sync::{Mutex, MutexGuard};

use libc::{c_int, c_void, siginfo_t, ucontext_t};

/// In the middle of memory full of breakpoints, in which original code runs and to which its branches lead.
pub const HOME: u64 = 0x20_0000_0000;
/// Bytes of it in both directions.
pub const HOME_SIZE: u64 = 0x18_0000;
/// Memory full of breakpoints, in reach of pairs of instructions.
pub const AWAY: u64 = 0x20_3000_0000;
/// The same, further than pairs of instructions reach.
pub const FAR: u64 = 0x30_1234_5000;
/// Bytes of each of the last two.
pub const AWAY_SIZE: u64 = 0x10000;
/// Memory that code may use.
pub const ARENA: u64 = 0x21_0000_0000;
/// Bytes of it.
pub const ARENA_SIZE: u64 = 8192;

/// What is in registers and memory.
#[derive(Clone, PartialEq, Eq)]
pub struct State {
    /// General registers by their numbers; in place of the one that is always zero the address of the instruction.
    pub x: [u64; 32],
    pub f: [u64; 32],
    pub fcsr: u32,
    pub memory: Vec<u64>,
}

impl State {
    pub fn new() -> Self {
        Self {
            x: [0; 32],
            f: [0; 32],
            fcsr: 0,
            memory: vec![0; ARENA_SIZE as usize / 8],
        }
    }
}

/// What a run came to.
#[derive(Clone, PartialEq, Eq)]
pub struct Outcome {
    pub signal: i32,
    /// The data address that faulted, or 0.
    pub fault: u64,
    pub state: State,
}

impl Outcome {
    /// Where it stopped.
    pub fn pc(&self) -> u64 {
        self.state.x[0]
    }

    /// What is different, for people.
    pub fn difference(a: &Self, b: &Self) -> String {
        let mut out = format!(
            "signals {} and {}, faults {:#x} and {:#x}\n",
            a.signal, b.signal, a.fault, b.fault
        );
        let registers = a.state.x.iter().zip(&b.state.x).enumerate();
        for (number, (a, b)) in registers.filter(|(_, (a, b))| a != b) {
            out.push_str(&format!("  x{number}: {a:#x}, moved {b:#x}\n"));
        }
        let registers = a.state.f.iter().zip(&b.state.f).enumerate();
        for (number, (a, b)) in registers.filter(|(_, (a, b))| a != b) {
            out.push_str(&format!("  f{number}: {a:#x}, moved {b:#x}\n"));
        }
        if a.state.fcsr != b.state.fcsr {
            out.push_str(&format!(
                "  fcsr: {:#x}, moved {:#x}\n",
                a.state.fcsr, b.state.fcsr
            ));
        }
        let words = a.state.memory.iter().zip(&b.state.memory).enumerate();
        for (number, (a, b)) in words.filter(|(_, (a, b))| a != b) {
            out.push_str(&format!("  word {number}: {a:#x}, moved {b:#x}\n"));
        }
        out
    }
}

/// What the signal handler works on. Only one thread runs code at a time.
struct Shared {
    /// Ours, while code runs.
    gp: u64,
    tp: u64,
    state: *const State,
    outcome: *mut Outcome,
    running: bool,
    kept: [u64; 32],
    kept_f: [u64; 32],
    kept_fcsr: u32,
}

#[unsafe(no_mangle)]
static mut HODO_SHARED: Shared = Shared {
    gp: 0,
    tp: 0,
    state: ptr::null(),
    outcome: ptr::null_mut(),
    running: false,
    kept: [0; 32],
    kept_f: [0; 32],
    kept_fcsr: 0,
};

// The registers by which compiled code finds its data have any value when a signal arrives.
global_asm!(
    ".option push",
    ".option norelax",
    "hodo_test_handler:",
    "lla t0, {shared}",
    "ld gp, {gp}(t0)",
    "ld tp, {tp}(t0)",
    "lla t0, {handle}",
    "jr t0",
    ".option pop",
    shared = sym HODO_SHARED,
    handle = sym handle,
    gp = const std::mem::offset_of!(Shared, gp),
    tp = const std::mem::offset_of!(Shared, tp),
);

unsafe extern "C" {
    fn hodo_test_handler();
}

/// Loads the state, or takes what became of it.
extern "C" fn handle(signal: c_int, info: *const siginfo_t, context: *mut ucontext_t) {
    // SAFETY: a handler of signals that one thread at a time brings about, when it has filled this; the kernel's frame
    // is this thread's.
    unsafe {
        let shared = &raw mut HODO_SHARED;
        let shared = &mut *shared;
        let context = &mut (*context).uc_mcontext;
        let float = &mut context.__fpregs.__d;
        if shared.running {
            shared.running = false;
            let outcome = &mut *shared.outcome;
            outcome.signal = signal;
            outcome.fault = match signal {
                libc::SIGSEGV | libc::SIGBUS => (*info).si_addr() as u64,
                _ => 0,
            };
            outcome.state.x = context.__gregs;
            outcome.state.f = float.__f;
            outcome.state.fcsr = float.__fcsr;
            context.__gregs = shared.kept;
            float.__f = shared.kept_f;
            float.__fcsr = shared.kept_fcsr;
            // Behind the breakpoint.
            context.__gregs[0] += 4;
        } else {
            if shared.state.is_null() {
                libc::abort();
            }
            shared.running = true;
            shared.kept = context.__gregs;
            shared.kept_f = float.__f;
            shared.kept_fcsr = float.__fcsr;
            let state = &*shared.state;
            context.__gregs = state.x;
            float.__f = state.f;
            float.__fcsr = state.fcsr;
        }
    }
}

static ONLY: Mutex<()> = Mutex::new(());

/// The memory of the tests, and the right to run code.
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
        map(ARENA, ARENA_SIZE, libc::PROT_READ | libc::PROT_WRITE);
        const STACK: usize = 1 << 16;
        let stack = Box::leak(vec![0u8; STACK].into_boxed_slice());
        let stack = libc::stack_t {
            ss_sp: stack.as_mut_ptr().cast(),
            ss_flags: 0,
            ss_size: STACK,
        };
        // SAFETY: memory that stays; a handler that works on any stack and with any registers.
        unsafe {
            assert_eq!(libc::sigaltstack(&stack, ptr::null_mut()), 0);
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = hodo_test_handler as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_NODEFER;
            for signal in [libc::SIGTRAP, libc::SIGSEGV, libc::SIGBUS, libc::SIGILL] {
                assert_eq!(libc::sigaction(signal, &action, ptr::null_mut()), 0);
            }
        }
        Self { _only: only }
    }

    /// Puts code somewhere.
    pub fn place(&mut self, at: u64, code: &[u8]) {
        // SAFETY: within the memory for code, which nothing else uses.
        unsafe {
            ptr::copy_nonoverlapping(code.as_ptr(), at as *mut u8, code.len());
            asm!("fence.i");
        }
    }

    /// Puts breakpoints there again.
    pub fn clear(&mut self, at: u64, len: usize) {
        fill(at, len as u64);
        // SAFETY: no effect but on what is executed.
        unsafe { asm!("fence.i") };
    }

    /// Runs what is at an address, until it stops.
    pub fn run(&mut self, at: u64, state: &State) -> Outcome {
        let mut state = state.clone();
        state.x[0] = at;
        let mut outcome = Outcome {
            signal: 0,
            fault: 0,
            state: state.clone(),
        };
        // SAFETY: the arena is mapped and has this size. The handler uses what is shared only between the two signals,
        // and restores all registers at the second.
        unsafe {
            let arena = ARENA as *mut u64;
            ptr::copy_nonoverlapping(state.memory.as_ptr(), arena, state.memory.len());
            let shared = &raw mut HODO_SHARED;
            let (gp, tp): (u64, u64);
            asm!("mv {}, gp", "mv {}, tp", out(reg) gp, out(reg) tp);
            (*shared).gp = gp;
            (*shared).tp = tp;
            (*shared).state = &raw const state;
            (*shared).outcome = &raw mut outcome;
            asm!(".option push", ".option norvc", "ebreak", ".option pop");
            (*shared).state = ptr::null();
            let words = outcome.state.memory.len();
            ptr::copy_nonoverlapping(arena, outcome.state.memory.as_mut_ptr(), words);
        }
        outcome
    }
}

fn map(at: u64, size: u64, protection: c_int) {
    // Tests of one process follow each other.
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
    // SAFETY: addresses that nothing else of the process has.
    let got = unsafe { libc::mmap(at as *mut c_void, size as usize, protection, flags, -1, 0) };
    assert_eq!(got as u64, at, "{}", std::io::Error::last_os_error());
}

/// Breakpoints of two bytes.
fn fill(at: u64, size: u64) {
    // SAFETY: within our memory.
    let memory = unsafe { std::slice::from_raw_parts_mut(at as *mut u16, size as usize / 2) };
    memory.fill(0x9002);
}
