//! Vector registers and what controls them, which stubs leave as they are. They are there where the emulator has `-cpu rv64,v=true`.

use std::arch::{asm, global_asm};

use hodo_arch::Via;
use hodo_patch::Recording;

use crate::skipped::skip;
use crate::world::{World, address, site, timed};

global_asm!(
    r#"
    .text
    .option push
    .option arch, +v
    .option norvc

    # Behind five words of control registers and three that are free, there are the vector registers, one after the other.
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

    # vectors(before, seen, by_body, behind): what is there when the body is called, what it sees, what it leaves, what is there then.
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
    fn hodo_test_vectors(before: *const u8, seen: *mut u8, by_body: *const u8, behind: *mut u8);
    fn hodo_test_vector_body();
}

/// Bytes of the control registers.
const CONTROL: usize = 64;

/// Bytes of a vector register; none where there are none.
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

/// All registers with these control registers: length, type, rounding and saturation, those of floating point, first element.
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
    // 32 bits, two registers, the rest undisturbed; 8 bits, one register. Rounding modes, saturation, flags of floating point.
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
            // The first call comes by slow paths.
            for _ in 0..2 {
                let mut seen = vec![0; before.len()];
                let mut behind = vec![0; before.len()];
                // SAFETY: it reads and writes as many bytes as there are.
                unsafe {
                    hodo_test_vectors(
                        before.as_ptr(),
                        seen.as_mut_ptr(),
                        by_body.as_ptr(),
                        behind.as_mut_ptr(),
                    );
                }
                assert!(seen == before, "{:x?}", &seen[..CONTROL]);
                assert!(behind == by_body, "{:x?}", &behind[..CONTROL]);
            }
            if recording.shortest.is_none() {
                assert_eq!(world.text(1), "+body -body +body -body");
            }
        }
    }
}
