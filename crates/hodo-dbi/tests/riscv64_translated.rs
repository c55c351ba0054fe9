//! A second instruction set behind the neutral translator: a program for RISC-V is translated and executed in this
//! process, and has the registers and results of the original code afterward.

#![cfg(target_arch = "riscv64")]

use std::arch::global_asm;
use std::cell::RefCell;
use std::collections::HashMap;
use std::ptr;

use hodo_dbi::bare::{Piece, Targets};
use hodo_dbi::translate_riscv64;

global_asm!(
    // A program: a0 is a number, a1 leads to room for results.
    ".globl hodo_program, hodo_program_end, hodo_enter, hodo_back, HODO_STATE",
    ".balign 4",
    "hodo_program:",
    "addi sp, sp, -32",
    "sd ra, 0(sp)",
    "sd s0, 8(sp)",
    "sd s1, 16(sp)",
    "mv s0, a0",
    "mv s1, a1",
    // A bare loop.
    "li t0, 0",
    "1: add t0, t0, a0",
    "addi a0, a0, -1",
    "bnez a0, 1b",
    "sd t0, 0(s1)",
    // Calls and returns, with values in the registers that the translation needs for itself.
    "mv a0, s0",
    "li t1, 1111",
    "li t2, 2222",
    "jal ra, hodo_ways",
    "sd a0, 8(s1)",
    "sd t1, 16(s1)",
    "sd t2, 24(s1)",
    // An indirect call through such a register, which is also the link register.
    "la t0, hodo_twice",
    "mv a0, s0",
    "jalr t0, 0(t0)",
    "sd a0, 32(s1)",
    // An indirect jump into a table of jumps.
    "la t1, hodo_jumps",
    "andi t2, s0, 3",
    "slli t2, t2, 2",
    "add t1, t1, t2",
    "li t0, 3333",
    "jr t1",
    ".option push",
    ".option norvc",
    "hodo_jumps: j 3f",
    "j 3f",
    "j 4f",
    "j 3f",
    ".option pop",
    "3: addi t0, t0, 1",
    "4: addi t0, t0, 10",
    "sd t0, 40(s1)",
    "mv a0, t0",
    "ld ra, 0(sp)",
    "ld s0, 8(sp)",
    "ld s1, 16(sp)",
    "addi sp, sp, 32",
    "ret",
    // The number of ways to add up to a0 from 1 and 2.
    "hodo_ways: li t3, 2",
    "bltu a0, t3, 6f",
    "addi sp, sp, -32",
    "sd ra, 0(sp)",
    "sd a0, 8(sp)",
    "addi a0, a0, -1",
    "jal ra, hodo_ways",
    "sd a0, 16(sp)",
    "ld a0, 8(sp)",
    "addi a0, a0, -2",
    "jal ra, hodo_ways",
    "ld t3, 16(sp)",
    "add a0, a0, t3",
    "ld ra, 0(sp)",
    "addi sp, sp, 32",
    "ret",
    "6: li a0, 1",
    "ret",
    "hodo_twice: slli a0, a0, 1",
    "jr t0",
    "hodo_program_end:",
    // Executes code at a0 with the registers in the words at a1, and puts those that there are in the end into them.
    "hodo_enter:",
    "addi sp, sp, -128",
    "sd ra, 0(sp)",
    "sd s0, 8(sp)",
    "sd s1, 16(sp)",
    "sd s2, 24(sp)",
    "sd s3, 32(sp)",
    "sd s4, 40(sp)",
    "sd s5, 48(sp)",
    "sd s6, 56(sp)",
    "sd s7, 64(sp)",
    "sd s8, 72(sp)",
    "sd s9, 80(sp)",
    "sd s10, 88(sp)",
    "sd s11, 96(sp)",
    "la t0, HODO_STATE",
    "sd a1, 0(t0)",
    "mv t6, a0",
    "mv t5, a1",
    ".irp n, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29",
    "ld x\\n, 8 * \\n(t5)",
    ".endr",
    "la ra, hodo_back",
    "jr t6",
    "hodo_back:",
    "la t6, HODO_STATE",
    "ld t6, 0(t6)",
    ".irp n, 1, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30",
    "sd x\\n, 8 * \\n(t6)",
    ".endr",
    "ld ra, 0(sp)",
    "ld s0, 8(sp)",
    "ld s1, 16(sp)",
    "ld s2, 24(sp)",
    "ld s3, 32(sp)",
    "ld s4, 40(sp)",
    "ld s5, 48(sp)",
    "ld s6, 56(sp)",
    "ld s7, 64(sp)",
    "ld s8, 72(sp)",
    "ld s9, 80(sp)",
    "ld s10, 88(sp)",
    "ld s11, 96(sp)",
    "addi sp, sp, 128",
    "ret",
    ".bss",
    ".balign 8",
    "HODO_STATE: .zero 8",
    ".text",
);

unsafe extern "C" {
    static hodo_program: u8;
    static hodo_program_end: u8;
    fn hodo_enter(code: u64, state: *mut u64);
}

/// Registers by number.
const SP: usize = 2;
const T0: usize = 5;
const T1: usize = 6;
const T2: usize = 7;

/// Bytes of memory for translations.
const SIZE: usize = 1 << 20;

/// Finds translations, and makes them.
struct Dispatcher {
    /// The memory, and how much of it is used.
    memory: (u64, u64),
    table: u64,
    targets: Targets,
    /// Where jumps lead, and where the table leads.
    direct: HashMap<u64, u64>,
    landings: HashMap<u64, u64>,
    exits: HashMap<u64, [u64; 2]>,
    misses: HashMap<u64, u64>,
    /// How often it was asked for an exit, and for a target.
    asked: [usize; 2],
}

thread_local! {
    /// That of the test's thread, which executes the translations.
    static DISPATCHER: RefCell<Option<Dispatcher>> = const { RefCell::new(None) };
}

/// Does something with the dispatcher.
fn dispatch<T>(what: impl FnOnce(&mut Dispatcher) -> T) -> T {
    DISPATCHER.with_borrow_mut(|own| what(own.get_or_insert_with(Dispatcher::new)))
}

fn program() -> (u64, &'static [u8]) {
    let (start, end) = (&raw const hodo_program, &raw const hodo_program_end);
    let len = end as usize - start as usize;
    // SAFETY: the program's code is between these symbols, and nobody writes to it.
    (start as u64, unsafe {
        std::slice::from_raw_parts(start, len)
    })
}

impl Dispatcher {
    fn new() -> Self {
        let map = |size: usize, protection: i32| {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            // SAFETY: memory that nobody else uses.
            let at = unsafe { libc::mmap(ptr::null_mut(), size, protection, flags, -1, 0) };
            assert_ne!(at, libc::MAP_FAILED);
            at as u64
        };
        let data = libc::PROT_READ | libc::PROT_WRITE;
        Self {
            memory: (map(SIZE, data | libc::PROT_EXEC), 0),
            table: map(Targets::SIZE as usize, data),
            targets: Targets::default(),
            direct: HashMap::new(),
            landings: HashMap::new(),
            exits: HashMap::new(),
            misses: HashMap::new(),
            asked: [0; 2],
        }
    }

    /// Where the translation of an instruction is. `None`: it is not the program's.
    fn find(&mut self, pc: u64) -> Option<u64> {
        let (start, code) = program();
        if !(start..start + code.len() as u64).contains(&pc) {
            return None;
        }
        if !self.direct.contains_key(&pc) || !self.landings.contains_key(&pc) {
            let base = (self.memory.0 + self.memory.1).next_multiple_of(16);
            let translated = translate_riscv64(&Piece {
                code,
                start,
                first: pc,
                base,
                table: self.table,
            });
            self.memory.1 = base - self.memory.0 + translated.bytes.len() as u64;
            assert!(self.memory.1 < SIZE as u64);
            // SAFETY: there is room, and nobody executes it yet.
            unsafe {
                let to = base as *mut u8;
                ptr::copy_nonoverlapping(translated.bytes.as_ptr(), to, translated.bytes.len());
                std::arch::asm!("fence.i");
            }
            self.direct.extend(translated.instructions);
            for (pc, at) in translated.targets {
                self.landings.insert(pc, at);
                self.put(pc, at);
            }
            let exits = translated.exits.into_iter();
            self.exits
                .extend(exits.map(|[trap, cell, target]| (trap, [cell, target])));
            self.misses.extend(translated.misses);
        }
        self.direct.get(&pc).copied()
    }

    /// Puts a target into the table.
    fn put(&mut self, pc: u64, at: u64) {
        let offset = self.targets.put(pc, at).expect("there is room");
        // SAFETY: the entry is in the table, and no other thread reads it.
        unsafe { ((self.table + offset) as *mut [u64; 2]).write([pc, at]) };
    }

    /// The thread is at a breakpoint of a translation.
    fn stop(&mut self, registers: &mut [u64; 32]) {
        let kept = |registers: &[u64; 32], below: u64| {
            // SAFETY: the translation has kept a register there.
            unsafe { ((registers[SP] - below) as *const u64).read() }
        };
        if let Some(&[cell, target]) = self.exits.get(&registers[0]) {
            self.asked[0] += 1;
            registers[T1] = kept(registers, 8);
            registers[0] = self.find(target).unwrap_or(target);
            if let Some(landing) = self.landings.get(&target) {
                // SAFETY: the word of the exit is in our memory.
                unsafe { (cell as *mut u64).write(*landing) };
            }
            return;
        }
        let resume = self.misses[&registers[0]];
        self.asked[1] += 1;
        let target = registers[T1];
        match self.find(target) {
            Some(_) => {
                registers[T1] = self.landings[&target];
                registers[0] = resume;
            }
            None => {
                registers[T1] = kept(registers, 8);
                registers[T0] = kept(registers, 16);
                registers[T2] = kept(registers, 24);
                registers[0] = target;
            }
        }
    }
}

extern "C" fn trapped(_: i32, _: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel gives the thread's registers, which nobody else uses. The first of them is `pc`.
    let registers = unsafe { &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.__gregs };
    // SAFETY: the same words, as numbers without signs.
    let registers = unsafe { &mut *ptr::from_mut(registers).cast::<[u64; 32]>() };
    dispatch(|own| own.stop(registers));
}

/// Has SIGTRAP handled on a stack of its own: what is kept below the stack pointer stays.
fn handle_traps() {
    const STACK: usize = 1 << 18;
    let stack = libc::stack_t {
        ss_sp: Vec::leak(vec![0u8; STACK]).as_mut_ptr().cast(),
        ss_flags: 0,
        ss_size: STACK,
    };
    // SAFETY: the handler is a function that may be called so, and the stack stays.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = trapped as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        assert_eq!(libc::sigaltstack(&stack, ptr::null_mut()), 0);
        assert_eq!(libc::sigaction(libc::SIGTRAP, &action, ptr::null_mut()), 0);
    }
}

/// Executes code with a number. Returns all registers, and what the program has stored.
fn run(code: u64, number: u64) -> ([u64; 32], [u64; 8]) {
    let mut results = [0; 8];
    let mut registers: [u64; 32] = std::array::from_fn(|number| 0x1234_5678 * number as u64);
    registers[10] = number;
    registers[11] = results.as_mut_ptr() as u64;
    // SAFETY: the code keeps the calling convention, as `hodo_enter` does, and stores six words.
    unsafe { hodo_enter(code, registers.as_mut_ptr()) };
    registers[11] = 0;
    (registers, results)
}

#[test]
fn translated_code_does_what_the_original_does() {
    handle_traps();
    let (start, code) = program();
    for number in [1, 2, 3, 4, 10, 15] {
        let (mut before, expected) = run(start, number);
        let code = dispatch(|own| own.find(start));
        let (mut after, results) = run(code.expect("it is translated"), number);
        assert_eq!(results, expected, "{number}");
        // What leads to code of these two runs differs: the addresses from which `hodo_enter` jumps, and room for
        // results.
        for registers in [&mut before, &mut after] {
            registers[31] = 0;
            registers[9] = 0;
        }
        assert_eq!(after, before, "{number}");
    }
    assert_eq!(run(start, 10).1[..6], [55, 89, 1111, 2222, 20, 3343]);
    // The program was never executed itself: it was asked for, in pieces, and returns to us through the table.
    let (asked, translated) = dispatch(|own| (own.asked, own.direct.clone()));
    assert!(asked[1] > 6, "{asked:?}");
    assert!(translated.len() * 2 > code.len() / 4);
    let is_own = |pc: &u64| (start..start + code.len() as u64).contains(pc);
    assert!(translated.keys().all(is_own));
}
