//! Runs a few bytes of code on a given state of the processor, and returns the state afterward.
//!
//! The return from a signal handler loads the state. The handler of the next signal, from a breakpoint after the code
//! or from a fault, reads it. So only the tested code runs in between.

pub mod samples;

use std::arch::x86_64::__cpuid_count;
use std::fmt::Write;
use std::ptr;

use iced_x86::Register;

/// Where original code runs: readable and executable memory, full of breakpoints.
pub const HOME: u64 = 0x2_0000_0000;
/// Where moved code runs.
pub const AWAY: u64 = 0x2_1000_0000;
/// The size of each, in bytes.
pub const HOME_SIZE: u64 = 8192;
/// Memory that the code may use.
pub const ARENA: u64 = 0x2_2000_0000;
/// Its size in bytes.
pub const ARENA_SIZE: u64 = 32768;

const STATUS_FLAGS: u64 = 0xCD5;
/// The largest floating-point part of a signal frame that can be handled, in bytes.
const XSAVE_LIMIT: usize = 12288;
/// Parts of the extended state: upper halves of ymm, opmasks, upper halves of zmm0–15, zmm16–31.
const PARTS: [u32; 4] = [2, 5, 6, 7];

/// A state before a run.
#[derive(Clone)]
pub struct State {
    /// By the processor's numbers: rax, rcx, rdx, rbx, rsp, rbp, rsi, rdi, r8…
    pub registers: [u64; 16],
    /// Status flags and the direction flag.
    pub flags: u64,
    /// 32 vector registers of 64 bytes.
    pub vectors: Vec<u64>,
    /// The contents of the arena.
    pub memory: Vec<u64>,
}

impl State {
    pub fn new() -> Self {
        Self {
            registers: [0; 16],
            flags: 0,
            vectors: vec![0; 32 * 8],
            memory: vec![0; ARENA_SIZE as usize / 8],
        }
    }

    /// Sets a general register.
    pub fn set(&mut self, register: Register, value: u64) {
        self.registers[register.full_register().number()] = value;
    }

    /// Sets all of a vector register.
    pub fn set_lanes(&mut self, number: usize, mut value: impl FnMut() -> u64) {
        self.vectors[number * 8..][..8].fill_with(&mut value);
    }
}

/// The result of a run.
#[derive(Clone, PartialEq, Eq)]
pub struct Outcome {
    pub signal: i32,
    /// The data address that faulted, or 0.
    pub fault: u64,
    /// Address of the instruction that stopped the run.
    pub rip: u64,
    pub registers: [u64; 16],
    pub flags: u64,
    /// Floating-point and vector state.
    pub extended: Vec<u8>,
    pub memory: Vec<u64>,
}

impl Outcome {
    /// Sets the eight bytes at an address to 0. A moved call through memory leaves its target below the return address,
    /// where no code expects a value.
    pub fn forget(&mut self, address: u64) {
        for at in (0..8).map(|byte| address.wrapping_add(byte).wrapping_sub(ARENA)) {
            let word = usize::try_from(at / 8).unwrap_or(usize::MAX);
            if let Some(word) = self.memory.get_mut(word) {
                *word &= !(0xFF << (at % 8 * 8));
            }
        }
    }

    /// Describes the differences for readers.
    pub fn difference(a: &Self, b: &Self, before: &State) -> String {
        let mut out = String::new();
        let mut line = |name: String, a: u64, b: u64, before: u64| {
            if a != b {
                let _ = writeln!(out, "  {name}: {a:#x}, moved {b:#x}, before {before:#x}");
            }
        };
        line("signal".into(), a.signal as u64, b.signal as u64, 0);
        line("fault".into(), a.fault, b.fault, 0);
        line("rip".into(), a.rip, b.rip, 0);
        line("flags".into(), a.flags, b.flags, before.flags);
        for (index, before) in before.registers.iter().enumerate() {
            line(
                format!("r{index}"),
                a.registers[index],
                b.registers[index],
                *before,
            );
        }
        for (index, (a, b)) in a.extended.iter().zip(&b.extended).enumerate() {
            line(
                format!("extended[{index}]"),
                u64::from(*a),
                u64::from(*b),
                0,
            );
        }
        for (index, (a, b)) in a.memory.iter().zip(&b.memory).enumerate() {
            line(
                format!("[{:#x}]", ARENA + index as u64 * 8),
                *a,
                *b,
                before.memory[index],
            );
        }
        out
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    Idle,
    Start,
    Running,
}

/// What the signal handler uses. There is one machine at a time, and the handler runs on its thread.
struct Shared {
    phase: Phase,
    code: u64,
    before: State,
    parts: Vec<(usize, usize)>,
    signal: i32,
    fault: u64,
    taken: [i64; 23],
    taken_extended: [u8; XSAVE_LIMIT],
    kept: [i64; 23],
    kept_extended: [u8; XSAVE_LIMIT],
    size: usize,
}

static mut SHARED: *mut Shared = ptr::null_mut();
static ONE_AT_A_TIME: std::sync::Mutex<()> = std::sync::Mutex::new(());

/// A machine to run code on.
pub struct Machine {
    shared: Box<Shared>,
    /// Writable views of `HOME` and `AWAY`.
    views: [*mut u8; 2],
    _alone: std::sync::MutexGuard<'static, ()>,
}

const NUMBERS: [i32; 16] = [
    libc::REG_RAX,
    libc::REG_RCX,
    libc::REG_RDX,
    libc::REG_RBX,
    libc::REG_RSP,
    libc::REG_RBP,
    libc::REG_RSI,
    libc::REG_RDI,
    libc::REG_R8,
    libc::REG_R9,
    libc::REG_R10,
    libc::REG_R11,
    libc::REG_R12,
    libc::REG_R13,
    libc::REG_R14,
    libc::REG_R15,
];

const SIGNALS: [i32; 5] = [
    libc::SIGTRAP,
    libc::SIGSEGV,
    libc::SIGILL,
    libc::SIGFPE,
    libc::SIGBUS,
];

impl Machine {
    pub fn new() -> Self {
        let alone = ONE_AT_A_TIME
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        let parts = PARTS.map(|part| {
            let leaf = __cpuid_count(0xD, part);
            (leaf.ebx as usize, leaf.eax as usize)
        });
        let enabled = u64::from(__cpuid_count(0xD, 0).eax);
        let parts = PARTS
            .iter()
            .zip(parts)
            .filter(|(part, _)| enabled >> **part & 1 == 1)
            .map(|(_, place)| place)
            .collect();
        let views = [map_code(HOME), map_code(AWAY)];
        map(ARENA, ARENA_SIZE, libc::PROT_READ | libc::PROT_WRITE, -1);
        let mut shared = Box::new(Shared {
            phase: Phase::Idle,
            code: 0,
            before: State::new(),
            parts,
            signal: 0,
            fault: 0,
            taken: [0; 23],
            taken_extended: [0; XSAVE_LIMIT],
            kept: [0; 23],
            kept_extended: [0; XSAVE_LIMIT],
            size: 0,
        });
        let stack = map(0, 1 << 17, libc::PROT_READ | libc::PROT_WRITE, -1);
        // SAFETY: (1) the handler touches only what SHARED points to, which lives as long as the machine; (2) the
        // alternate stack is our own mapping; (3) the lock excludes other machines.
        unsafe {
            SHARED = &raw mut *shared;
            let stack = libc::stack_t {
                ss_sp: stack.cast(),
                ss_flags: 0,
                ss_size: 1 << 17,
            };
            assert_eq!(libc::sigaltstack(&raw const stack, ptr::null_mut()), 0);
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = handler as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
            for signal in SIGNALS {
                assert_eq!(
                    libc::sigaction(signal, &raw const action, ptr::null_mut()),
                    0
                );
            }
        }
        Self {
            shared,
            views,
            _alone: alone,
        }
    }

    fn write(&mut self, at: u64, bytes: impl Iterator<Item = u8>) {
        let (view, start) = match at >= AWAY {
            true => (self.views[1], AWAY),
            false => (self.views[0], HOME),
        };
        for (offset, byte) in (at - start..).zip(bytes) {
            assert!(offset < HOME_SIZE);
            // SAFETY: the view has HOME_SIZE bytes.
            unsafe { view.add(offset as usize).write_volatile(byte) };
        }
    }

    /// Writes code to an address in `HOME` or `AWAY`.
    pub fn place(&mut self, at: u64, code: &[u8]) {
        self.write(at, code.iter().copied());
    }

    /// Fills the code's place with breakpoints again.
    pub fn clear(&mut self, at: u64, len: usize) {
        self.write(at, std::iter::repeat_n(0xCC, len));
    }

    /// Runs the code at an address until it reaches a breakpoint or faults.
    pub fn run(&mut self, code: u64, state: &State) -> Outcome {
        let mut memory = vec![0u64; state.memory.len()];
        self.shared.before.clone_from(state);
        // SAFETY: (1) the arena is our own mapping of this size; (2) the handler restores all registers to their values
        // at the first breakpoint; (3) SHARED points to a box, through which the handler writes and which nothing else
        // uses at this time.
        unsafe {
            let arena = ARENA as *mut u64;
            ptr::copy_nonoverlapping(state.memory.as_ptr(), arena, state.memory.len());
            let shared = SHARED;
            (*shared).code = code;
            (*shared).phase = Phase::Start;
            std::arch::asm!("int3");
            ptr::copy_nonoverlapping(arena, memory.as_mut_ptr(), memory.len());
        }
        let shared = &self.shared;
        let word = |index: i32| shared.taken[index as usize].cast_unsigned();
        let rip = word(libc::REG_RIP);
        let trapped = shared.signal == libc::SIGTRAP;
        let state = &shared.taken_extended;
        let mut extended = state[0..6].to_vec();
        for range in std::iter::once(24..28).chain(std::iter::once(32..416)) {
            extended.extend(&state[range]);
        }
        for &(at, len) in &shared.parts {
            extended.extend(&state[at..at + len]);
        }
        Outcome {
            signal: shared.signal,
            fault: match shared.signal {
                libc::SIGSEGV | libc::SIGBUS => shared.fault,
                _ => 0,
            },
            rip: rip - u64::from(trapped),
            registers: NUMBERS.map(word),
            flags: word(libc::REG_EFL) & STATUS_FLAGS,
            extended,
            memory,
        }
    }
}

fn map(at: u64, size: u64, protection: i32, file: i32) -> *mut u8 {
    let anonymous = if file < 0 {
        libc::MAP_ANONYMOUS | libc::MAP_PRIVATE
    } else {
        libc::MAP_SHARED
    };
    // This replaces the mapping of an earlier machine.
    let fixed = if at == 0 { 0 } else { libc::MAP_FIXED };
    // SAFETY: the fixed addresses are far from those that the kernel chooses.
    let place = unsafe {
        libc::mmap(
            at as *mut _,
            size as usize,
            protection,
            anonymous | fixed,
            file,
            0,
        )
    };
    assert_ne!(place, libc::MAP_FAILED);
    place.cast()
}

/// Maps code at an address, and returns a writable view of it.
fn map_code(at: u64) -> *mut u8 {
    // SAFETY: plain system calls; the name is a C string.
    let file = unsafe {
        let file = libc::memfd_create(c"code".as_ptr(), 0);
        assert!(file >= 0);
        assert_eq!(libc::ftruncate(file, HOME_SIZE as i64), 0);
        file
    };
    map(at, HOME_SIZE, libc::PROT_READ | libc::PROT_EXEC, file);
    let view = map(0, HOME_SIZE, libc::PROT_READ | libc::PROT_WRITE, file);
    // SAFETY: the view has that many bytes; the mappings outlive the descriptor.
    unsafe {
        view.write_bytes(0xCC, HOME_SIZE as usize);
        libc::close(file);
    }
    view
}

extern "C" fn handler(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: (1) the kernel passes valid pointers, and a floating-point area of the size that it states; (2) SHARED is
    // set before the handler is; (3) the thread that uses the machine is stopped here.
    unsafe {
        let shared = &mut *SHARED;
        let context = &mut *context.cast::<libc::ucontext_t>();
        let registers = &mut context.uc_mcontext.gregs;
        let area = context.uc_mcontext.fpregs.cast::<u8>();
        let extended = area.add(464).cast::<u32>().read() == 0x4650_5853;
        shared.size = match extended {
            true => area.add(480).cast::<u32>().read() as usize,
            false => 512,
        };
        if shared.size > XSAVE_LIMIT || !extended {
            libc::abort();
        }
        match shared.phase {
            Phase::Idle => {
                // A real fault: it happens again without this handler, and ends the test.
                libc::signal(signal, libc::SIG_DFL);
            }
            Phase::Start => {
                shared.kept = *registers;
                ptr::copy_nonoverlapping(area, shared.kept_extended.as_mut_ptr(), shared.size);
                for (number, value) in NUMBERS.iter().zip(shared.before.registers) {
                    registers[*number as usize] = value.cast_signed();
                }
                registers[libc::REG_RIP as usize] = shared.code.cast_signed();
                let flags = &mut registers[libc::REG_EFL as usize];
                *flags = *flags & !STATUS_FLAGS.cast_signed() | shared.before.flags.cast_signed();
                load(area, shared);
                shared.phase = Phase::Running;
            }
            Phase::Running => {
                shared.signal = signal;
                shared.fault = (*info).si_addr() as u64;
                shared.taken = *registers;
                ptr::copy_nonoverlapping(area, shared.taken_extended.as_mut_ptr(), shared.size);
                *registers = shared.kept;
                ptr::copy_nonoverlapping(shared.kept_extended.as_ptr(), area, shared.size);
                shared.phase = Phase::Idle;
            }
        }
    }
}

/// Writes a state into the floating-point area of a signal frame.
///
/// # Safety
/// The area must be as large as `shared.size` says.
unsafe fn load(area: *mut u8, shared: &Shared) {
    let vectors = shared.before.vectors.as_ptr().cast::<u8>();
    // SAFETY: (1) the processor states the offsets, and all are within the area; (2) there are 32 registers of 64
    // bytes.
    unsafe {
        // Control words have their initial values; all eight floating-point registers are valid.
        area.cast::<u16>().write(0x037F);
        area.add(2).cast::<u16>().write(0);
        area.add(4).write(0xFF);
        area.add(24).cast::<u32>().write(0x1F80);
        for index in 0..8 {
            let register = area.add(32 + index * 16);
            let mantissa = vectors.add(index * 64).cast::<u64>().read() | 1 << 63;
            register.cast::<u64>().write(mantissa);
            register.add(8).cast::<u64>().write(0x3FF8 + index as u64);
        }
        for index in 0..16 {
            ptr::copy_nonoverlapping(vectors.add(index * 64), area.add(160 + index * 16), 16);
        }
        let mut present = 3;
        for (&(at, _), part) in shared.parts.iter().zip(PARTS) {
            present |= 1u64 << part;
            for index in 0..16 {
                let low = vectors.add(index * 64);
                match part {
                    2 => ptr::copy_nonoverlapping(low.add(16), area.add(at + index * 16), 16),
                    5 if index < 8 => {
                        ptr::copy_nonoverlapping(low.add(24), area.add(at + index * 8), 8);
                    }
                    6 => ptr::copy_nonoverlapping(low.add(32), area.add(at + index * 32), 32),
                    7 => {
                        let high = vectors.add((16 + index) * 64);
                        ptr::copy_nonoverlapping(high, area.add(at + index * 64), 64);
                    }
                    _ => {}
                }
            }
        }
        let header = area.add(512).cast::<u64>();
        header.write(header.read() | present);
    }
}
