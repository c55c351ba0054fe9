//! Runs a few bytes of code on given registers and memory, and returns what they hold afterward.
//!
//! The return from a signal handler loads the registers. The handler of the next signal, from a breakpoint after the
//! code or from a fault, reads them. So only the tested code runs in between, and every register may have any value.

use std::arch::{asm, global_asm};
use std::ptr;
use std::sync::{Mutex, MutexGuard};

use libc::{c_int, c_void, siginfo_t, ucontext_t};

/// The middle of memory full of breakpoints, where original code runs and to which its branches lead.
pub const HOME: u64 = 0x20_0000_0000;
/// The size of this memory in each direction, in bytes.
pub const HOME_SIZE: u64 = 0x18_0000;
/// Memory full of breakpoints, within reach of pairs of instructions.
pub const AWAY: u64 = 0x20_3000_0000;
/// The same, beyond the reach of pairs of instructions.
pub const FAR: u64 = 0x30_1234_5000;
/// The size of each of the last two, in bytes.
pub const AWAY_SIZE: u64 = 0x10000;
/// Memory that the code may use.
pub const ARENA: u64 = 0x21_0000_0000;
/// Its size in bytes.
pub const ARENA_SIZE: u64 = 8192;

/// The contents of registers and memory.
#[derive(Clone, PartialEq, Eq)]
pub struct State {
    /// General registers by their numbers. The place of the zero register holds the address of the instruction.
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

/// The result of a run.
#[derive(Clone, PartialEq, Eq)]
pub struct Outcome {
    pub signal: i32,
    /// The data address that faulted, or 0.
    pub fault: u64,
    pub state: State,
}

impl Outcome {
    /// Returns the address at which it stopped.
    pub fn pc(&self) -> u64 {
        self.state.x[0]
    }

    /// Describes the differences for readers.
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

/// What the signal handler uses. Only one thread runs code at a time.
struct Shared {
    /// Our own `gp` and `tp`, while the code runs.
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

// When a signal arrives, the registers through which compiled code finds its data may have any value.
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

/// Loads the state, or reads the result.
extern "C" fn handle(signal: c_int, info: *const siginfo_t, context: *mut ucontext_t) {
    // SAFETY: one thread at a time causes these signals, after it has filled the shared state; the kernel's frame is
    // this thread's.
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
            // Continues after the breakpoint.
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
        map(ARENA, ARENA_SIZE, libc::PROT_READ | libc::PROT_WRITE);
        const STACK: usize = 1 << 16;
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
            action.sa_sigaction = hodo_test_handler as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_NODEFER;
            for signal in [libc::SIGTRAP, libc::SIGSEGV, libc::SIGBUS, libc::SIGILL] {
                assert_eq!(libc::sigaction(signal, &action, ptr::null_mut()), 0);
            }
        }
        Self { _only: only }
    }

    /// Writes code to an address.
    pub fn place(&mut self, at: u64, code: &[u8]) {
        // SAFETY: this is within the memory for code, which nothing else uses.
        unsafe {
            ptr::copy_nonoverlapping(code.as_ptr(), at as *mut u8, code.len());
            asm!("fence.i");
        }
    }

    /// Fills the code's place with breakpoints again.
    pub fn clear(&mut self, at: u64, len: usize) {
        fill(at, len as u64);
        // SAFETY: only instruction fetches are affected.
        unsafe { asm!("fence.i") };
    }

    /// Runs the code at an address until it stops.
    pub fn run(&mut self, at: u64, state: &State) -> Outcome {
        let mut state = state.clone();
        state.x[0] = at;
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
    // Tests in one process run one after the other.
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
    // SAFETY: nothing else in the process has these addresses.
    let got = unsafe { libc::mmap(at as *mut c_void, size as usize, protection, flags, -1, 0) };
    assert_eq!(got as u64, at, "{}", std::io::Error::last_os_error());
}

/// Fills memory with two-byte breakpoints.
fn fill(at: u64, size: u64) {
    // SAFETY: this is within our memory.
    let memory = unsafe { std::slice::from_raw_parts_mut(at as *mut u16, size as usize / 2) };
    memory.fill(0x9002);
}
