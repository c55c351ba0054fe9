//! The proposed instructions on the model: what they do by default, and what the other readings of the slides break.

use hodo_isa::riscv64::asm::ops::Insns as _;
use hodo_isa::riscv64::asm::{Code, If};
use hodo_isa::riscv64::encode::{AUIPC, OP_IMM, b, i, j, u};
use hodo_rvmodel::encode::{C_J_SELF, EBREAK, ECALL, MRET, c_jall, csr, csrr, csrrw, lrw2spc};
use hodo_rvmodel::hart::{Cause, Hart, Step};
use hodo_rvmodel::memory::{Memory, Unmapped};
use hodo_rvmodel::params::{
    Advance, Calls, CjallCode, Constant, End, Immediate, Interrupts, LinkValue, Prediction,
    Proposals, Reservation, Saved, Side, Target,
};

/// The original place, and the detour.
const HOME: u64 = 0x1_0000;
const AWAY: u64 = 0x9000_0000;
/// The literal of the detour.
const LITERAL: u64 = AWAY + 0x40;
const HANDLER: u64 = 0x2_0000;
const DATA: u64 = 0x3_0000;
const T1: u8 = 6;
const A0: u8 = 10;

fn word(code: &mut Vec<u8>, word: u32) {
    code.extend(word.to_le_bytes());
}

fn half(code: &mut Vec<u8>, half: u16) {
    code.extend(half.to_le_bytes());
}

/// A hart at a detour: `lrw2spc`, these instructions, and a jump back.
fn detour(proposals: Proposals, copied: &[u8]) -> Hart {
    let mut hart = Hart::new(Memory::new(Unmapped::Faults), proposals);
    let mut code = Vec::new();
    word(&mut code, lrw2spc(proposals.immediate, 0x40).expect("near"));
    code.extend(copied);
    half(&mut code, C_J_SELF);
    hart.memory.map(HOME - 0x1000, 0x2000);
    hart.memory.map(DATA, 0x1000);
    hart.memory.put(AWAY, &code);
    hart.memory.put(LITERAL, &HOME.to_le_bytes());
    hart.pc = AWAY;
    hart
}

fn steps(hart: &mut Hart, count: usize) {
    for _ in 0..count {
        assert_eq!(hart.step(), Step::Executed, "at {:#x}", hart.pc);
    }
}

fn default() -> Proposals {
    Proposals::default()
}

/// A handler that returns at once.
fn with_handler(hart: &mut Hart) {
    hart.memory.put(HANDLER, &MRET.to_le_bytes());
    hart.csrs.mtvec = HANDLER;
    hart.csrs.mstatus = 1 << 3;
}

#[test]
fn copies_see_their_original_address() {
    // c.nop, auipc a0, 1, and the jump back
    let mut code = vec![1, 0];
    word(&mut code, u(AUIPC, A0, 0x1000));
    let mut hart = detour(default(), &code);
    steps(&mut hart, 3);
    assert_eq!(hart.spc, Some(HOME + 6));
    assert_eq!(hart.x[10], HOME + 2 + 0x1000);
    steps(&mut hart, 1);
    assert_eq!((hart.pc, hart.spc), (HOME + 6, None));
}

#[test]
fn an_adder_of_four_is_wrong_after_compressed_instructions() {
    let proposals = Proposals {
        advance: Advance::Four,
        ..default()
    };
    let mut code = vec![1, 0];
    word(&mut code, u(AUIPC, A0, 0));
    let mut hart = detour(proposals, &code);
    steps(&mut hart, 4);
    assert_eq!(hart.x[10], HOME + 4);
    assert_eq!(hart.pc, HOME + 8);
}

#[test]
fn branches_leave_only_if_they_are_taken() {
    let mut code = Vec::new();
    word(&mut code, b(If::NotEqual as u32, A0, 0, -0x100));
    let mut hart = detour(default(), &code);
    steps(&mut hart, 3);
    assert_eq!(hart.pc, HOME + 4);
    let mut hart = detour(default(), &code);
    hart.x[10] = 1;
    steps(&mut hart, 2);
    assert_eq!((hart.pc, hart.spc), (HOME - 0x100, None));
    // If every branch ends the mode, the jump back leads to itself.
    let mut hart = detour(
        Proposals {
            end: End::Branch,
            ..default()
        },
        &code,
    );
    steps(&mut hart, 5);
    assert_eq!(hart.pc, AWAY + 8);
}

#[test]
fn calls_return_to_the_original() {
    let mut code = Vec::new();
    word(&mut code, j(1, 0x200));
    let mut hart = detour(default(), &code);
    steps(&mut hart, 2);
    assert_eq!((hart.pc, hart.x[1]), (HOME + 0x200, HOME + 4));
    let real = Proposals {
        link_value: LinkValue::Real,
        ..default()
    };
    let mut hart = detour(real, &code);
    steps(&mut hart, 2);
    assert_eq!((hart.pc, hart.x[1]), (HOME + 0x200, AWAY + 8));
}

/// Takes an interrupt at each instruction of a detour; the handler returns. Where it ends, and what `auipc` computed.
fn interrupted(proposals: Proposals) -> Vec<(u64, u64)> {
    let mut code = Vec::new();
    word(&mut code, i(OP_IMM, 0, 11, 0, 1));
    word(&mut code, u(AUIPC, A0, 0));
    let run = |at: usize| {
        let mut hart = detour(proposals, &code);
        with_handler(&mut hart);
        let mut executed = 0;
        while hart.pc != HOME + 8 && executed < 20 {
            if executed == at && hart.pc >= AWAY {
                hart.interrupt();
                while hart.pc == HANDLER {
                    hart.step();
                }
            }
            hart.step();
            executed += 1;
        }
        (hart.pc, hart.x[10])
    };
    (0..4).map(run).collect()
}

#[test]
fn interrupts_resume_if_both_addresses_are_kept() {
    let right = (HOME + 8, HOME + 4);
    assert_eq!(interrupted(default()), [right; 4]);
    // Held until the jump back, they are taken before or after the mode.
    let held = Proposals {
        interrupts: Interrupts::Held,
        ..default()
    };
    assert_eq!(interrupted(held), [right; 4]);
    // Without the real pc, it goes on in the original, which the jump has overwritten: nothing is there. This only
    // works before the mode and at its end.
    let shadow = Proposals {
        saved: Saved::Shadow,
        ..default()
    };
    let ends = interrupted(shadow);
    assert_eq!(
        ends.iter().map(|&end| end == right).collect::<Vec<_>>(),
        [true, false, false, true]
    );
    // Without the shadow pc, the copy computes with its own address, and the jump back leads to itself.
    let real = Proposals {
        saved: Saved::Real,
        ..default()
    };
    assert_eq!(
        interrupted(real)
            .iter()
            .filter(|&&end| end == right)
            .count(),
        1
    );
}

#[test]
fn handlers_are_not_interrupted() {
    for enabled in [0, 1 << 3] {
        let mut hart = detour(default(), &ECALL.to_le_bytes());
        with_handler(&mut hart);
        hart.csrs.mstatus = enabled;
        steps(&mut hart, 1);
        assert!(matches!(hart.step(), Step::Trapped(_)));
        assert!(!hart.interrupt());
        steps(&mut hart, 1);
        assert_eq!(hart.csrs.mstatus & 1 << 3, enabled);
    }
}

#[test]
fn held_interrupts_are_not_taken_in_the_mode() {
    let held = Proposals {
        interrupts: Interrupts::Held,
        ..default()
    };
    let mut hart = detour(held, &[1, 0]);
    with_handler(&mut hart);
    steps(&mut hart, 1);
    assert!(!hart.interrupt());
    steps(&mut hart, 2);
    assert!(hart.interrupt());
    assert_eq!((hart.csrs.mepc, hart.csrs.mspc), (HOME + 2, 0));
}

#[test]
fn a_fault_in_the_mode_says_both_addresses() {
    // ld a0, 8(zero)
    let mut code = vec![1, 0];
    word(&mut code, i(0x03, 3, A0, 0, 8));
    let mut hart = detour(default(), &code);
    with_handler(&mut hart);
    steps(&mut hart, 2);
    assert!(matches!(hart.step(), Step::Trapped(trap) if trap.cause == Cause::LoadFault));
    let csrs = hart.csrs;
    assert_eq!(
        (csrs.mepc, csrs.mspc, csrs.mtval),
        (AWAY + 6, (HOME + 2) | 1, 8)
    );
    assert_eq!((hart.pc, hart.spc), (HANDLER, None));
}

/// A detour in the handler of a trap that was taken in a detour. `keeps`: it saves `mepc` and `mspc` while it does so.
fn nested(keeps: bool) -> (u64, u64) {
    let mut code = Vec::new();
    word(&mut code, ECALL);
    word(&mut code, u(AUIPC, A0, 0));
    let mut hart = detour(default(), &code);
    let inner = AWAY + 0x1000;
    let mut bytes = Vec::new();
    let mut handler = Code::new(&mut bytes, HANDLER);
    // mcause 3 is the inner trap, of which there is nothing to do but to go on.
    let outer = handler.label();
    let resume = |handler: &mut Code<'_>| {
        for number in [csr::MEPC, csr::MSPC] {
            handler.word(csrr(T1, number));
            handler.addi(T1, T1, 4);
            handler.word(csrrw(0, number, T1));
        }
        handler.word(MRET);
    };
    handler.word(csrr(T1, csr::MCAUSE));
    handler.addi(T1, T1, -3);
    handler.branch(If::NotEqual, T1, 0, outer);
    resume(&mut handler);
    handler.bind(outer);
    for (register, number) in [(28, csr::MEPC), (29, csr::MSPC)] {
        handler.word(csrr(register, number));
    }
    handler
        .jump(inner, hodo_isa::riscv64::asm::Reach::Any, T1)
        .expect("a constant");
    let back = handler.here();
    if keeps {
        handler.word(csrrw(0, csr::MEPC, 28));
        handler.word(csrrw(0, csr::MSPC, 29));
    }
    resume(&mut handler);
    hart.memory.put(HANDLER, &bytes);
    // The inner detour, which traps, too.
    let mut code = Vec::new();
    word(&mut code, lrw2spc(default().immediate, 0x40).expect("near"));
    word(&mut code, EBREAK);
    half(&mut code, C_J_SELF);
    hart.memory.put(inner, &code);
    hart.memory.put(inner + 0x40, &(back - 4).to_le_bytes());
    hart.csrs.mtvec = HANDLER;
    hart.run(100, |hart| hart.pc == HOME + 8);
    (hart.pc, hart.x[10])
}

#[test]
fn nested_probes_work_if_handlers_keep_both_registers() {
    assert_eq!(nested(true), (HOME + 8, HOME + 4));
    assert_ne!(nested(false), (HOME + 8, HOME + 4));
}

#[test]
fn a_switch_to_another_thread_must_keep_the_shadow_pc() {
    let mut code = Vec::new();
    word(&mut code, u(AUIPC, A0, 0));
    let run = |keeps: bool| {
        let mut hart = detour(default(), &code);
        with_handler(&mut hart);
        steps(&mut hart, 1);
        assert!(hart.interrupt());
        // The other thread, which is in no detour.
        let (mepc, mspc) = (hart.csrs.mepc, hart.csrs.mspc);
        let other = DATA;
        hart.memory.put(other, &u(AUIPC, 11, 0).to_le_bytes());
        hart.csrs.mepc = other;
        if keeps {
            hart.csrs.mspc = 0;
        }
        steps(&mut hart, 2);
        let other = hart.x[11] == other;
        assert!(hart.interrupt());
        hart.csrs.mepc = mepc;
        if keeps {
            hart.csrs.mspc = mspc;
        }
        steps(&mut hart, 2);
        (other, hart.x[10] == HOME)
    };
    assert_eq!(run(true), (true, true));
    assert!(!run(false).0);
}

#[test]
fn a_call_of_the_kernel_resumes_after_both_addresses_were_advanced() {
    let mut code = Vec::new();
    word(&mut code, ECALL);
    word(&mut code, u(AUIPC, A0, 0));
    let run = |proposals: Proposals, both: bool| {
        let mut hart = detour(proposals, &code);
        with_handler(&mut hart);
        steps(&mut hart, 1);
        assert!(matches!(hart.step(), Step::Trapped(_)));
        hart.csrs.mepc += 4;
        if both {
            hart.csrs.mspc += 4;
        }
        hart.run(3, |hart| hart.pc == HOME + 8);
        (hart.pc, hart.x[10])
    };
    assert_eq!(run(default(), true), (HOME + 8, HOME + 4));
    // A kernel that knows nothing of it.
    assert_eq!(run(default(), false).1, HOME);
    // If the call ends the mode, that kernel continues in the original.
    let ends = Proposals {
        calls: Calls::End,
        ..default()
    };
    assert_eq!(run(ends, false).0, HOME + 4);
}

#[test]
fn reservations_survive() {
    // lr.d before the detour, sc.d a0, a1, (a2) in it
    let mut code = Vec::new();
    word(&mut code, 0x18B6_352F);
    let run = |proposals: Proposals| {
        let mut hart = detour(proposals, &code);
        hart.memory.put(HOME, &0x1006_352Fu32.to_le_bytes());
        hart.x[12] = DATA;
        hart.pc = HOME;
        steps(&mut hart, 1);
        hart.pc = AWAY;
        steps(&mut hart, 2);
        hart.x[10]
    };
    assert_eq!(run(default()), 0);
    assert_eq!(
        run(Proposals {
            reservation: Reservation::Lost,
            ..default()
        }),
        1
    );
}

#[test]
fn constants_of_32_bits_do_not_reach_programs() {
    let word = Proposals {
        constant: Constant::Word,
        ..default()
    };
    let run = |proposals: Proposals| {
        let mut hart = detour(proposals, &[1, 0]);
        hart.memory.put(LITERAL, &0x5555_5556_0000u64.to_le_bytes());
        steps(&mut hart, 1);
        hart.spc
    };
    assert_eq!(run(default()), Some(0x5555_5556_0000));
    assert_eq!(run(word), Some(0x5556_0000));
}

#[test]
fn literals_from_the_instruction_side_are_no_loads() {
    let run = |side: Side| {
        let mut hart = detour(Proposals { side, ..default() }, &[1, 0]);
        steps(&mut hart, 1);
        (hart.front.counts.accesses, hart.front.counts.bytes)
    };
    assert_eq!(run(Side::Instruction), (0, 12));
    assert_eq!(run(Side::Data), (1, 4));
}

#[test]
fn immediates_of_all_forms_find_their_literal() {
    for bits in [12, 20] {
        for signed in [true, false] {
            for scale in [1, 2, 4, 8] {
                let immediate = Immediate {
                    bits,
                    signed,
                    scale,
                };
                let mut hart = detour(
                    Proposals {
                        immediate,
                        ..default()
                    },
                    &[1, 0],
                );
                steps(&mut hart, 1);
                assert_eq!(hart.spc, Some(HOME), "{immediate:?}");
            }
        }
    }
}

#[test]
fn a_table_predicts_the_shadow_pc() {
    let mut code = Vec::new();
    word(&mut code, u(AUIPC, A0, 0));
    let run = |prediction: Prediction| {
        let mut hart = detour(
            Proposals {
                prediction,
                ..default()
            },
            &code,
        );
        let mut waits = Vec::new();
        for _ in 0..3 {
            hart.pc = AWAY;
            let before = hart.front.counts.waits;
            steps(&mut hart, 3);
            waits.push(hart.front.counts.waits - before);
        }
        waits
    };
    assert_eq!(run(Prediction::Table), [1, 0, 0]);
    assert_eq!(run(Prediction::Wait), [1, 1, 1]);
}

#[test]
fn a_second_one_in_the_mode_reads_at_the_real_pc() {
    let mut code = Vec::new();
    word(
        &mut code,
        lrw2spc(default().immediate, 0x60 - 4).expect("near"),
    );
    word(&mut code, u(AUIPC, A0, 0));
    let mut hart = detour(default(), &code);
    hart.memory.put(AWAY + 0x60, &DATA.to_le_bytes());
    steps(&mut hart, 3);
    assert_eq!(hart.x[10], DATA);
}

/// Executes a `c.jall`. Where it leads, and what the registers hold that may be links.
fn called(proposals: Proposals, link: u8, literal: i32) -> (u64, [u64; 2]) {
    let mut hart = Hart::new(Memory::new(Unmapped::Faults), proposals);
    let mut code = c_jall(proposals.cjall, link).to_le_bytes().to_vec();
    code.extend(literal.to_le_bytes());
    hart.memory.put(HOME, &code);
    hart.pc = HOME;
    steps(&mut hart, 1);
    (hart.pc, [hart.x[1], hart.x[5]])
}

#[test]
fn c_jall_reaches_two_gibibytes_in_six_bytes() {
    let after = HOME + 6;
    let far = HOME.wrapping_add_signed(i32::MIN.into());
    assert_eq!(called(default(), 1, i32::MIN), (far, [after, 0]));
    assert_eq!(called(default(), 5, 0x100), (HOME + 0x100, [0, after]));
    assert_eq!(called(default(), 0, 0x100), (HOME + 0x100, [0, 0]));
    let absolute = Proposals {
        target: Target::Absolute,
        ..default()
    };
    let high = 0xFFFF_FFFF_8000_0000;
    assert_eq!(called(absolute, 1, i32::MIN), (high, [after, 0]));
    let short = Proposals {
        cjall: CjallCode::Short,
        ..default()
    };
    assert_eq!(called(short, 5, 0x100), (HOME + 0x100, [after, 0]));
}

#[test]
fn a_copied_c_jall_does_what_the_original_does() {
    let mut code = c_jall(CjallCode::Long, 1).to_le_bytes().to_vec();
    code.extend(0x400u32.to_le_bytes());
    let mut hart = detour(default(), &code);
    steps(&mut hart, 2);
    assert_eq!(
        (hart.pc, hart.x[1], hart.spc),
        (HOME + 0x400, HOME + 6, None)
    );
}
