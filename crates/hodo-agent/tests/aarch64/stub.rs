//! A stub for tests, which calls the agent with registers of one's choice, and the memory that the agent works with.

use std::arch::{asm, global_asm};
use std::ptr;

use hodo_agent::Runtime;
use hodo_trace::format::{
    CHUNK_HEADER_SIZE, CHUNK_SIZE, CONTROL_SIZE, SHADOW_DISTANCE, file_header, tcb,
};

global_asm!(
    r#"
    .text
    .p2align 4
    .arch_extension sve
    // All vectors, then all predicates, then FFR, from x9 on. Clobbers x9.
    .macro TEST_VECTORS op
    .irp number, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31
    \op z\number, [x9]
    addvl x9, x9, #1
    .endr
    .irp number, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15
    \op p\number, [x9, #\number, mul vl]
    .endr
    .endm

    // Calls the agent with the registers at x0: x0 to x30 by their numbers, then the flags. Their state afterwards is
    // there, too. The end of a stack follows, the address of vector registers or 0, and whether to be in
    // streaming mode.
    .globl hodo_test_stub, hodo_test_branch, hodo_test_words, hodo_test_stub_end
hodo_test_stub:
    stp x29, x30, [sp, #-160]!
    stp x19, x20, [sp, #16]
    stp x21, x22, [sp, #32]
    stp x23, x24, [sp, #48]
    stp x25, x26, [sp, #64]
    stp x27, x28, [sp, #80]
    stp d8, d9, [sp, #96]
    stp d10, d11, [sp, #112]
    stp d12, d13, [sp, #128]
    stp d14, d15, [sp, #144]
    mov x4, sp
    ldr x5, [x0, #256]
    sub x5, x5, #288
    stp x4, x0, [x5, #256]
    mov sp, x5
    mov x1, #0
1:  ldr x2, [x0, x1]
    add x3, sp, x1
    str x2, [x3]
    add x1, x1, #8
    cmp x1, #256
    b.ne 1b
    ldp x9, x10, [x0, #264]
    cbz x10, 2f
    .word 0xd503437f              // smstart sm
2:  cbz x9, 3f
    addvl x10, x9, #17
    addvl x10, x10, #17
    ldr p0, [x10]
    wrffr p0.b
    TEST_VECTORS ldr
3:  ldr x9, [sp, #248]
    msr nzcv, x9
    ldp x0, x1, [sp, #0]
    ldp x2, x3, [sp, #16]
    ldp x4, x5, [sp, #32]
    ldp x6, x7, [sp, #48]
    ldp x8, x9, [sp, #64]
    ldp x10, x11, [sp, #80]
    ldp x12, x13, [sp, #96]
    ldp x14, x15, [sp, #112]
    ldp x16, x17, [sp, #128]
    ldp x19, x20, [sp, #152]
    ldp x21, x22, [sp, #168]
    ldp x23, x24, [sp, #184]
    ldp x25, x26, [sp, #200]
    ldp x27, x28, [sp, #216]
    ldp x29, x30, [sp, #232]
    str x16, [sp, #-16]!
    adr x16, hodo_test_words
hodo_test_branch:
    nop
hodo_test_words:
    nop
    nop
    nop
    ldr x16, [sp], #16
    stp x0, x1, [sp, #0]
    stp x2, x3, [sp, #16]
    stp x4, x5, [sp, #32]
    stp x6, x7, [sp, #48]
    stp x8, x9, [sp, #64]
    stp x10, x11, [sp, #80]
    stp x12, x13, [sp, #96]
    stp x14, x15, [sp, #112]
    stp x16, x17, [sp, #128]
    stp x19, x20, [sp, #152]
    stp x21, x22, [sp, #168]
    stp x23, x24, [sp, #184]
    stp x25, x26, [sp, #200]
    stp x27, x28, [sp, #216]
    stp x29, x30, [sp, #232]
    mrs x9, nzcv
    str x9, [sp, #248]
    ldr x0, [sp, #264]
    ldr x9, [x0, #264]
    cbz x9, 4f
    TEST_VECTORS str
    rdffr p0.b
    addvl x9, x9, #2
    str p0, [x9]
4:  ldr x9, [x0, #272]
    cbz x9, 5f
    .word 0xd503427f              // smstop sm
5:  mov x1, #0
6:  add x3, sp, x1
    ldr x2, [x3]
    str x2, [x0, x1]
    add x1, x1, #8
    cmp x1, #256
    b.ne 6b
    ldr x4, [sp, #256]
    mov sp, x4
    ldp x19, x20, [sp, #16]
    ldp x21, x22, [sp, #32]
    ldp x23, x24, [sp, #48]
    ldp x25, x26, [sp, #64]
    ldp x27, x28, [sp, #80]
    ldp d8, d9, [sp, #96]
    ldp d10, d11, [sp, #112]
    ldp d12, d13, [sp, #128]
    ldp d14, d15, [sp, #144]
    ldp x29, x30, [sp], #160
    ret
hodo_test_stub_end:

    // What a kernel does that forgets more than it has to: takes the place of a system call.
    .globl hodo_test_call, hodo_test_back, hodo_test_call_end
hodo_test_call:
    svc #0
    .irp number, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31
    dup z\number\().b, #-1
    .endr
    .irp number, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15
    pfalse p\number\().b
    .endr
    wrffr p0.b
hodo_test_back:
    nop
hodo_test_call_end:
    .arch_extension nosve
    "#
);

unsafe extern "C" {
    static hodo_test_stub: u32;
    static hodo_test_branch: u32;
    static hodo_test_words: u32;
    static hodo_test_stub_end: u32;
    static hodo_test_call: u32;
    static hodo_test_back: u32;
    static hodo_test_call_end: u32;
    /// Part of the compiler's library.
    fn __clear_cache(start: *mut u8, end: *mut u8);
}

/// The register with return addresses.
pub const LINK: usize = 30;
/// The flags come after the registers.
const FLAGS: usize = 31;
/// How many words the stub takes.
const WORDS: usize = 35;
/// Registers and flags.
type Registers = [u64; FLAGS + 1];

/// Bytes of a stack. Only half is used, and no other has its shadow in the same pieces.
const STACK: u64 = 8 << 20;
/// How far below the end of the stack the stub calls the agent.
const BELOW: u64 = 288;

const NOP: u32 = 0xD503_201F;
/// `svc #0`
const SYSTEM_CALL: u32 = 0xD400_0001;

/// Where the stub is after the agent, and what takes the place of system calls.
const STUB: usize = 0x8000;
const CALL: usize = 0x9000;
const CODE: u64 = 0x10000;

pub fn map(size: u64, protection: i32) -> u64 {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: a mapping of its own.
    let at = unsafe { libc::mmap(ptr::null_mut(), size as usize, protection, flags, -1, 0) };
    assert_ne!(at, libc::MAP_FAILED);
    at.addr() as u64
}

pub fn unmap(at: u64, len: u64) {
    // SAFETY: only shadows that the agent has mapped, which nobody else uses.
    let done = unsafe { libc::munmap(ptr::with_exposed_provenance_mut(at as usize), len as usize) };
    assert_eq!(done, 0);
}

/// `b` to code at another offset.
fn branch(from: usize, to: usize) -> u32 {
    let words = (to as i64 - from as i64) / 4;
    0x1400_0000 | words as u32 & 0x03FF_FFFF
}

fn has(which: u64, bit: u32) -> bool {
    // SAFETY: a plain question.
    unsafe { libc::getauxval(which) >> bit & 1 == 1 }
}

/// Bytes of a vector register; `None` if there are none of variable length.
pub fn vector_len() -> Option<usize> {
    const SVE: u32 = 22;
    if !has(libc::AT_HWCAP, SVE) {
        return None;
    }
    let len: usize;
    // SAFETY: only asks how long they are.
    unsafe { asm!(".arch_extension sve", "rdvl {}, #1", ".arch_extension nosve", out(reg) len) };
    Some(len)
}

/// Whether there is a streaming mode.
pub fn streams() -> bool {
    const SME: u32 = 23;
    has(libc::AT_HWCAP2, SME)
}

/// A state of all vectors of this many bytes, predicates, and FFR, whose bits that are set come first.
pub fn vectors(len: usize) -> Vec<u8> {
    let mut all: Vec<u8> = (0..34 * len).map(|at| (at * 37 % 251) as u8).collect();
    all.extend((0..len / 8).map(|at| if at < len / 16 { 0xFF } else { 0 }));
    all
}

/// How the agent is called.
#[derive(Debug, Clone)]
pub struct Call {
    /// The agent's function.
    pub function: usize,
    /// The registers with the control block's address, an argument or result, and the time.
    pub block: usize,
    pub result: usize,
    pub time: usize,
    /// How many times 16 bytes the stack pointer is below S.
    pub lowered: u64,
    pub timed: bool,
    /// The words after the first.
    pub words: Vec<u32>,
    /// What the registers and flags have otherwise.
    pub registers: Registers,
    /// The state of vector registers.
    pub vectors: Option<Vec<u8>>,
    pub streaming: bool,
}

impl Call {
    /// A call with some registers.
    pub fn of(function: usize) -> Self {
        let mut registers =
            std::array::from_fn(|number| 0x0102_0304_0506_0708 * (number as u64 + 1));
        registers[FLAGS] = 0x6000_0000;
        Self {
            function,
            block: 9,
            result: 11,
            time: 13,
            lowered: 0,
            timed: false,
            words: Vec::new(),
            registers,
            vectors: None,
            streaming: false,
        }
    }
}

/// The end of a call.
#[derive(Debug)]
pub struct End {
    pub result: u64,
    /// The frame that the call was about.
    pub s: u64,
    pub vectors: Vec<u8>,
}

/// The memory of a recording, a control block in it, and the agent.
pub struct World {
    pub agent: Runtime,
    pub base: u64,
    block: u64,
    code: u64,
    stack: u64,
    len: u64,
}

impl World {
    /// With so much room for records.
    pub fn new(chunks: u64) -> Self {
        let len = CONTROL_SIZE + chunks * CHUNK_SIZE;
        let base = map(len, libc::PROT_READ | libc::PROT_WRITE);
        let agent = hodo_agent::runtime();
        let code = map(CODE, libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC);
        assert!(agent.code.len() <= STUB);
        let block = base + tcb::FIRST * tcb::SIZE;
        let mut world = Self {
            agent,
            base,
            block,
            code,
            stack: map(STACK, libc::PROT_READ | libc::PROT_WRITE),
            len,
        };
        world.set(base + file_header::MAX_CHUNKS, chunks);
        world.set(base + file_header::ROOM_CHUNKS, chunks);
        world.put(tcb::MAX_CHUNKS, chunks);
        world.put(tcb::BASE, base);
        world.put(tcb::TO_SHADOW, SHADOW_DISTANCE.wrapping_neg());
        world.put(tcb::BUCKET, base + CONTROL_SIZE - CHUNK_SIZE);
        // SAFETY: there is room for all of it.
        unsafe {
            let at = code as *mut u8;
            ptr::copy_nonoverlapping(agent.code.as_ptr(), at, agent.code.len());
            copy(
                code,
                STUB,
                &raw const hodo_test_stub,
                &raw const hodo_test_stub_end,
            );
            copy(
                code,
                CALL,
                &raw const hodo_test_call,
                &raw const hodo_test_call_end,
            );
        }
        world
    }

    /// Another stub, which works with the same control block on a stack of its own.
    pub fn beside(&self) -> Self {
        let mut other = Self::new(1);
        unmap(other.base, other.len);
        (other.base, other.len, other.block) = (self.base, 0, self.block);
        other
    }

    /// The offset in the agent of an address.
    pub fn offset(&self, addr: u64) -> usize {
        (addr - self.code) as usize
    }

    /// Replaces an instruction of the agent. Returns the one that was there.
    pub fn replace(&mut self, at: usize, word: u32) -> u32 {
        // SAFETY: within the code.
        let before = unsafe { ((self.code as usize + at) as *const u32).read_volatile() };
        self.write_code(at, word);
        // SAFETY: the code is mapped.
        unsafe { __clear_cache(self.code as *mut u8, (self.code + CODE) as *mut u8) };
        before
    }

    /// Sets a word of memory.
    pub fn set(&mut self, at: u64, value: u64) {
        // SAFETY: only memory that tests or the agent have mapped.
        unsafe { (at as *mut u64).write_volatile(value) };
    }

    /// Reads a word of memory.
    pub fn word(&self, at: u64) -> u64 {
        // SAFETY: only memory that tests or the agent have mapped.
        unsafe { (at as *const u64).read_volatile() }
    }

    /// Sets a word of the control block.
    pub fn put(&mut self, at: u64, value: u64) {
        self.set(self.block + at, value);
    }

    /// Reads a word of the control block.
    pub fn get(&self, at: u64) -> u64 {
        self.word(self.block + at)
    }

    /// All records, without holes.
    pub fn records(&self) -> Vec<u64> {
        let mut all = Vec::new();
        for chunk in 0..self.word(self.base + file_header::NEXT_CHUNK) {
            let start = self.base + CONTROL_SIZE + chunk * CHUNK_SIZE;
            let words = (CHUNK_HEADER_SIZE..CHUNK_SIZE).step_by(8);
            all.extend(
                words
                    .map(|at| self.word(start + at))
                    .filter(|word| *word != 0),
            );
        }
        all
    }

    fn write_code(&mut self, at: usize, word: u32) {
        // SAFETY: within the code.
        unsafe { ((self.code as usize + at) as *mut u32).write_volatile(word) };
    }

    /// Where the agent makes system calls: without vectors to keep, with some, and for the controller.
    fn system_calls(&self) -> [usize; 3] {
        let code = self.agent.code.chunks_exact(4).enumerate();
        let is_call = |(_, bytes): &(usize, &[u8])| **bytes == SYSTEM_CALL.to_le_bytes();
        let calls: Vec<usize> = code.filter(is_call).map(|(index, _)| 4 * index).collect();
        *calls.first_chunk().expect("three")
    }

    /// System calls of the agent lose all vector registers, as they may on Linux; the emulator's do not.
    pub fn forget_vectors_at_calls(&mut self) {
        let call = self.system_calls()[usize::from(self.get(tcb::FLAGS) & tcb::VECTORS != 0)];
        self.write_code(call, branch(call, CALL));
        let back = (&raw const hodo_test_back).addr() - (&raw const hodo_test_call).addr();
        self.write_code(CALL + back, branch(CALL + back, call + 4));
    }

    /// The memory for which the agent asks is already in use. (Emulators may not know the flag for that.)
    pub fn find_mapped(&mut self) {
        // mov x0, #-EEXIST
        self.write_code(
            self.system_calls()[0],
            0x9280_0000 | (libc::EEXIST as u32 - 1) << 5,
        );
    }

    /// Calls the agent where it has a result. Nothing else may change.
    pub fn call(&mut self, call: &Call) -> End {
        let (end, before, mut after) = self.calls(call);
        after[call.result] = before[call.result];
        assert_eq!(after, before);
        end
    }

    /// Calls the agent where it has none.
    pub fn call_for_nothing(&mut self, call: &Call) {
        let (_, before, after) = self.calls(call);
        assert_eq!(after, before);
    }

    /// The frame that a call is about.
    pub fn s(&self, call: &Call) -> u64 {
        self.stack + STACK / 2 - BELOW + 16 * call.lowered
    }

    /// Calls the agent. Returns also the registers and flags before and after it.
    fn calls(&mut self, call: &Call) -> (End, Registers, Registers) {
        let first = call.block
            | call.result << 5
            | call.time << 10
            | (call.lowered as usize) << 15
            | usize::from(call.timed) << 20;
        let at = |symbol: *const u32| STUB + symbol.addr() - (&raw const hodo_test_stub).addr();
        let words = at(&raw const hodo_test_words);
        for index in 0..3 {
            let word = match index {
                0 => first as u32,
                _ => call.words.get(index - 1).copied().unwrap_or(NOP),
            };
            self.write_code(words + 4 * index, word);
        }
        let from = at(&raw const hodo_test_branch);
        self.write_code(from, branch(from, call.function));
        let mut state = [0; WORDS];
        state[..=FLAGS].copy_from_slice(&call.registers);
        state[call.block] = self.block;
        let before = *state.first_chunk().expect("more words");
        let mut vectors = call.vectors.clone().unwrap_or_default();
        state[FLAGS + 1] = self.stack + STACK / 2;
        if call.vectors.is_some() {
            state[FLAGS + 2] = vectors.as_mut_ptr().expose_provenance() as u64;
        }
        state[FLAGS + 3] = call.streaming.into();
        // SAFETY: it keeps what functions have to keep, and changes only memory of this test.
        unsafe {
            __clear_cache(self.code as *mut u8, (self.code + CODE) as *mut u8);
            let stub: extern "C" fn(*mut u64) = std::mem::transmute(self.code as usize + STUB);
            stub(state.as_mut_ptr());
        }
        let after: Registers = *state.first_chunk().expect("more words");
        let end = End {
            result: after[call.result],
            s: self.s(call),
            vectors,
        };
        // Nothing is done with x18.
        (
            end,
            before,
            std::array::from_fn(|number| {
                if number == 18 {
                    before[18]
                } else {
                    after[number]
                }
            }),
        )
    }
}

impl Drop for World {
    fn drop(&mut self) {
        unmap(self.stack, STACK);
        unmap(self.code, CODE);
        if self.len != 0 {
            unmap(self.base, self.len);
        }
    }
}

/// Copies code that begins and ends at these symbols.
///
/// # Safety
/// There must be room for it.
unsafe fn copy(code: u64, to: usize, start: *const u32, end: *const u32) {
    // SAFETY: the symbols bound one piece of code.
    unsafe {
        ptr::copy_nonoverlapping(
            start,
            (code as usize + to) as *mut u32,
            (end.addr() - start.addr()) / 4,
        )
    };
}
