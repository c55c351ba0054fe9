//! Vector registers and their control registers, which stubs must preserve. They exist if the emulator runs with `-cpu
//! rv64,v=true`.

use std::arch::{asm, global_asm};
use std::ffi::c_void;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};

use hodo_isa::Via;
use hodo_isa::riscv64::Kind;
use hodo_isa::riscv64::decode::Insn;
use hodo_patch::Recording;
use hodo_trace::format::{SHADOW_DISTANCE, tcb};

use crate::code::{fib, leaf};
use crate::leaving::{TRACES, busy, unwinds, watch};
use crate::skipped::skip;
use crate::world::{World, address, site, timed, unmap, write_code};

global_asm!(
    r#"
    .text
    .option push
    .option arch, +v
    .option norvc

    # Five words for control registers and three unused words come first, then all vector registers in order.
    .macro TEST_VECTORS_EACH instruction, base
    csrwi vstart, 0
    csrr t1, vlenb
    slli t1, t1, 3
    addi t2, \base, 64
    .irp number, 0, 8, 16, 24
    \instruction v\number, (t2)
    add t2, t2, t1
    .endr
    .endm
    .macro TEST_VECTORS_SAVE base
    csrr t0, vl
    sd t0, 0(\base)
    csrr t0, vtype
    sd t0, 8(\base)
    csrr t0, vcsr
    sd t0, 16(\base)
    frcsr t0
    sd t0, 24(\base)
    csrr t0, vstart
    sd t0, 32(\base)
    TEST_VECTORS_EACH vs8r.v, \base
    .endm
    .macro TEST_VECTORS_LOAD base
    TEST_VECTORS_EACH vl8re8.v, \base
    ld t0, 0(\base)
    ld t1, 8(\base)
    vsetvl zero, t0, t1
    ld t0, 16(\base)
    csrw vcsr, t0
    ld t0, 24(\base)
    fscsr t0
    ld t0, 32(\base)
    csrw vstart, t0
    .endm

    # vectors(before, seen, by_body, after): the state before the call, the one that the body sees, the one that it
    # leaves, and the one after the call.
    .globl hodo_test_vectors
    .type hodo_test_vectors, @function
hodo_test_vectors:
    addi sp, sp, -32
    sd ra, 24(sp)
    sd a3, 16(sp)
    frcsr t0
    sd t0, 8(sp)
    TEST_VECTORS_LOAD a0
    jal ra, hodo_test_vector_body
    ld a3, 16(sp)
    TEST_VECTORS_SAVE a3
    ld t0, 8(sp)
    fscsr t0
    ld ra, 24(sp)
    addi sp, sp, 32
    ret

    .globl hodo_test_vector_body
    .type hodo_test_vector_body, @function
hodo_test_vector_body:
    nop
    nop
    nop
    nop
    TEST_VECTORS_SAVE a1
    TEST_VECTORS_LOAD a2
    ret
    .option pop
    "#
);

unsafe extern "C-unwind" {
    fn hodo_test_vectors(before: *const u8, seen: *mut u8, by_body: *const u8, after: *mut u8);
    fn hodo_test_vector_body();
}

/// Bytes of the control registers.
const CONTROL: usize = 64;

/// Bytes of a vector register; `None` if there are none.
fn vector_len() -> Option<usize> {
    const V: u64 = 1 << (b'V' - b'A');
    // SAFETY: a plain question.
    if unsafe { libc::getauxval(libc::AT_HWCAP) } & V == 0 {
        return None;
    }
    let len: usize;
    // SAFETY: only asks how long they are.
    unsafe {
        asm!(".option push", ".option arch, +v", "csrr {}, vlenb", ".option pop", out(reg) len);
    }
    Some(len)
}

/// All registers, with these control registers: length, type, rounding and saturation, floating point, first element.
fn state(control: [u64; 5], len: usize, seed: u8) -> Vec<u8> {
    let mut state: Vec<u8> = control.iter().flat_map(|word| word.to_le_bytes()).collect();
    state.resize(CONTROL, 0);
    state.extend((0..32 * len).map(|at| (at as u8).wrapping_mul(37) ^ seed));
    state
}

#[test]
fn vectors_are_left_alone_at_entry_and_return() {
    let Some(len) = vector_len() else {
        skip("this processor has no vector registers");
        return;
    };
    // 32 bits, two registers, the rest undisturbed; 8 bits, one register. Rounding modes, saturation, floating-point
    // flags.
    let before = state([3, 0x11, 5, 0x45, 2], len, 0x5A);
    let by_body = state([1, 0, 2, 0x1F, 1], len, 0xC3);
    let all = 0xF003_F060;
    let recordings = [
        timed(),
        Recording::default(),
        Recording {
            check_frames: true,
            depth: Some(9),
            ..timed()
        },
        Recording {
            shortest: Some(1),
            ..timed()
        },
    ];
    let at = address(hodo_test_vector_body as *const ());
    for recording in recordings {
        for (via, free) in [
            (Via::Kept(5), 0),
            (Via::Kept(6), 0),
            (Via::Free(6), all & !0x3C00),
        ] {
            let mut world = World::new(recording, 2);
            world.enter(1);
            world.trace(&[site("body", at, 16, via).free(free, free)]);
            // The first call takes slow paths.
            for _ in 0..2 {
                let mut seen = vec![0; before.len()];
                let mut after = vec![0; before.len()];
                // SAFETY: it reads and writes as many bytes as there are.
                unsafe {
                    hodo_test_vectors(
                        before.as_ptr(),
                        seen.as_mut_ptr(),
                        by_body.as_ptr(),
                        after.as_mut_ptr(),
                    );
                }
                assert!(seen == before, "{:x?}", &seen[..CONTROL]);
                assert!(after == by_body, "{:x?}", &after[..CONTROL]);
            }
            if recording.shortest.is_none() {
                assert_eq!(world.text(1), "+body -body +body -body");
            }
        }
    }
}

/// `ebreak`, in four bytes and in two.
const BREAK: [u8; 4] = [0x73, 0, 0x10, 0];
const SHORT_BREAK: [u8; 2] = [0x02, 0x90];

/// Returns offset and bytes of the agent's instructions around its system calls: from the first that saves vector
/// registers to the last that restores them.
fn kept_around() -> Vec<(usize, &'static [u8])> {
    let code = hodo_agent::runtime().code;
    let mut instructions = Vec::new();
    let mut at = 0;
    while at < code.len() {
        let insn = Insn::new(&code[at..], 0);
        let end = at + usize::from(insn.len);
        instructions.push((at, &code[at..end], insn));
        at = end;
    }
    let vectors = |(_, _, insn): &(usize, &[u8], Insn)| insn.reads().v | insn.writes().v != 0;
    let first = instructions.iter().position(vectors).expect("one");
    let last = instructions.iter().rposition(vectors).expect("one");
    // Some more before them, for the control registers, and some after them, up to the return.
    let instructions = instructions[first - 16..].iter();
    let count = last - first + 16 + 12;
    instructions
        .take(count)
        .map(|&(at, bytes, _)| (at, bytes))
        .collect()
}

/// Makes the next call of a traced function find no shadow.
fn forget_shadow(world: &World, block: u64) {
    let lo = world.get(block + tcb::SHADOW_LO);
    let len = world.get(block + tcb::SHADOW_LEN);
    if len != 0 {
        unmap(lo - SHADOW_DISTANCE, len);
    }
    world.put(block + tcb::SHADOW_LEN, 0);
    world.put(block + tcb::WINDOW, 0);
    world.put(block + tcb::LOWERED_WINDOWS, 0);
    world.put(block + tcb::LOWERED_WINDOWS + 8, 0);
}

/// Installs a function as the handler of breakpoints; returns the previous action.
fn handle(function: extern "C" fn(i32, *mut libc::siginfo_t, *mut c_void)) -> libc::sigaction {
    // SAFETY: the handlers below change only code and registers that the tests want changed.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = function as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO;
        let mut before = std::mem::zeroed();
        libc::sigaction(libc::SIGTRAP, &raw const action, &raw mut before);
        before
    }
}

static CALLS: AtomicU64 = AtomicU64::new(0);

/// Acts as a kernel that forgets vector registers, which the emulator's does not: its signal frames do not contain
/// them.
extern "C" fn forgets(_: i32, _: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel passes the context; the memory that the agent asks for is new.
    unsafe {
        let registers = &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.__gregs;
        let [a0, a1, a2, a3, a4, a5, _, number] =
            [10, 11, 12, 13, 14, 15, 16, 17].map(|n| registers[n]);
        asm!("ecall", inlateout("a0") a0 => registers[10], in("a1") a1, in("a2") a2, in("a3") a3, in("a4") a4, in("a5") a5, in("a7") number);
        registers[0] += 4;
        asm!(
            ".option push",
            ".option arch, +v",
            "vsetvli {0}, zero, e8, m8, ta, ma",
            "vmv.v.i v0, -1",
            "vmv.v.i v8, -1",
            "vmv.v.i v16, -1",
            "vmv.v.i v24, -1",
            "li {0}, -1",
            "slli {0}, {0}, 63",
            "vsetvl zero, zero, {0}",
            ".option pop",
            out(reg) _,
        );
    }
    CALLS.fetch_add(1, Ordering::Relaxed);
}

#[test]
fn vectors_are_kept_where_the_agent_makes_system_calls() {
    let Some(len) = vector_len() else {
        skip("this processor has no vector registers");
        return;
    };
    let before = state([3, 0x11, 5, 0x45, 2], len, 0x5A);
    let by_body = state([1, 0, 2, 0x1F, 1], len, 0xC3);
    let mut world = World::new(timed(), 2);
    let block = world.enter_without_shadow(1);
    world.put(block + tcb::FLAGS, tcb::VECTORS);
    let body = address(hodo_test_vector_body as *const ());
    world.trace(&[site("body", body, 16, Via::Kept(5))]);
    let is_call = |(_, bytes): &(usize, &[u8])| Insn::new(bytes, 0).kind == Kind::Ecall;
    let (call, bytes) = kept_around().into_iter().find(is_call).expect("one");
    let call = world.islands()[0].start + call as u64;
    for forgetful in [true, false] {
        let handled = handle(forgets);
        if forgetful {
            write_code(call, &BREAK);
        }
        for round in 0..3 {
            let mut seen = vec![0; before.len()];
            let mut after = vec![0; before.len()];
            // SAFETY: as above.
            unsafe {
                hodo_test_vectors(
                    before.as_ptr(),
                    seen.as_mut_ptr(),
                    by_body.as_ptr(),
                    after.as_mut_ptr(),
                );
            }
            assert!(seen == before, "{round}: {:x?}", &seen[..CONTROL]);
            assert!(after == by_body, "{round}: {:x?}", &after[..CONTROL]);
            assert_ne!(world.get(block + tcb::SHADOW_LEN), 0);
            forget_shadow(&world, block);
        }
        write_code(call, bytes);
        // SAFETY: as it was.
        unsafe { libc::sigaction(libc::SIGTRAP, &raw const handled, ptr::null_mut()) };
    }
    assert_eq!(CALLS.load(Ordering::Relaxed), 3);
    assert_eq!(world.get(block + tcb::UNSHADOWED), 0);
}

/// The instruction that a breakpoint has replaced: its address, length and bytes.
static BROKEN: [AtomicU64; 3] = [const { AtomicU64::new(0) }; 3];

extern "C" fn unwinds_here(signal: i32, info: *mut libc::siginfo_t, context: *mut c_void) {
    unwinds(signal, info, context);
    let [at, len, bytes] = BROKEN.each_ref().map(|word| word.load(Ordering::Relaxed));
    write_code(at, &bytes.to_le_bytes()[..len as usize]);
}

#[test]
fn backtraces_reach_the_caller_while_the_agent_keeps_vectors() {
    if vector_len().is_none() {
        skip("this processor has no vector registers");
        return;
    }
    let mut world = World::new(timed(), 60);
    let block = world.enter_without_shadow(1);
    world.put(block + tcb::FLAGS, tcb::VECTORS);
    watch(&mut world);
    world.trace(&[site("fib", address(fib as *const ()), 8, Via::Free(6)).free(7 << 28, 15 << 28)]);
    let start = world.islands()[0].start;
    let handled = handle(unwinds_here);
    let instructions = kept_around();
    for &(at, bytes) in &instructions {
        let mut word = [0; 8];
        word[..bytes.len()].copy_from_slice(bytes);
        let words = [
            start + at as u64,
            bytes.len() as u64,
            u64::from_le_bytes(word),
        ];
        for (to, word) in BROKEN.iter().zip(words) {
            to.store(word, Ordering::Relaxed);
        }
        match bytes.len() {
            2 => write_code(words[0], &SHORT_BREAK),
            _ => write_code(words[0], &BREAK),
        }
        busy(1);
        forget_shadow(&world, block);
    }
    // SAFETY: as it was.
    unsafe { libc::sigaction(libc::SIGTRAP, &raw const handled, ptr::null_mut()) };
    let counts = TRACES.each_ref().map(|count| count.load(Ordering::Relaxed));
    assert_eq!(counts[..2], [instructions.len() as u64, 0]);
}

#[test]
fn stubs_and_agent_have_no_floating_point_and_keep_all_vectors_if_any() {
    let recording = Recording {
        filtered: true,
        depth: Some(3),
        check_frames: true,
        shortest: Some(7),
        switch: Some(1024),
        ..timed()
    };
    let mut world = World::new(recording, 2);
    world.enter(1);
    world.trace(&[site("leaf", address(leaf as *const ()), 8, Via::Free(6))]);
    let agent = hodo_agent::runtime();
    let stub = world.stub_code();
    for code in [agent.code, &stub] {
        let (mut at, mut read, mut written) = (0, 0, 0);
        while at < code.len() {
            let insn = Insn::new(&code[at..], 0);
            at += usize::from(insn.len);
            let (reads, writes) = (insn.reads(), insn.writes());
            assert_eq!(reads.f | writes.f, 0, "{at:#x}");
            (read, written) = (read | reads.v, written | writes.v);
            // The call of the agent is followed by words for it, up to the instruction that restores `t0`; a word of
            // the record comes after the end.
            let word = |at: usize| code.get(at..at + 4);
            if insn.kind == Kind::Jalr && (insn.rd(), insn.rs1()) == (5, 5) {
                while word(at).is_some_and(|word| word != 0x0001_3283u32.to_le_bytes()) {
                    at += 4;
                }
            } else if insn.word == 0x8067 && code != agent.code {
                at += 4;
            }
        }
        // System calls of the agent.
        let all = if code == agent.code { u32::MAX } else { 0 };
        assert_eq!((read, written), (all, all));
    }
}
