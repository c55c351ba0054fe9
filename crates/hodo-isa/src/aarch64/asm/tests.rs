use alloc::string::String;
use alloc::vec::Vec;

use super::super::regs::SP;
use super::super::{Insn, text};
use super::operand::{DOUBLE, Extend, TPIDR_EL0, after, before, indexed, lsl, mem};
use super::relax::{Asm, Op};
use super::*;

const AT: u64 = 0x1_2345_6788;
/// How far `b` and branches reach forward, at most.
const JUMP_END: u64 = (1 << 27) - 4;
const BRANCH_END: u64 = (1 << 20) - 4;
const BIT_END: u64 = (1 << 15) - 4;

fn texts(bytes: &[u8], at: u64) -> Vec<String> {
    let words = (at..).step_by(4).zip(bytes.chunks(4));
    words.map(|(at, word)| text(word, at)).collect()
}

/// What code at [`AT`] is read as.
fn written<T>(write: impl FnOnce(&mut Code<'_>) -> T) -> (T, Vec<String>) {
    let mut bytes = Vec::new();
    let result = write(&mut Code::new(&mut bytes, AT));
    let texts = texts(&bytes, AT);
    (result, texts)
}

fn read(write: impl FnOnce(&mut Code<'_>)) -> Vec<String> {
    written(write).1
}

/// What a draft at [`AT`] is read as.
fn laid(write: impl FnOnce(&mut Asm)) -> Vec<String> {
    let mut asm = Asm::default();
    write(&mut asm);
    texts(&asm.lay(AT).expect("within reach").bytes, AT)
}

/// The addresses to which the branches, jumps and loads in code lead.
fn targets(bytes: &[u8], at: u64) -> Vec<u64> {
    let words = (at..).step_by(4).zip(bytes.chunks(4));
    words
        .filter_map(|(at, word)| Insn::new(word, at).target())
        .collect()
}

#[test]
fn fixed_codes_are_what_they_say() {
    assert_eq!(texts(&SYSTEM_CALL, 0), ["svc #0x0"]);
    assert_eq!(texts(&SYSTEM_CALL_NOP, 0), ["nop"]);
    assert_eq!(texts(&BREAKPOINT, 0), ["brk #0x0"]);
    assert_eq!(texts(&WAIT, AT), ["b 0x123456788"]);
    assert_eq!(texts(&RETURN_ZERO, 0), ["bti c", "mov x0, #0x0", "ret"]);
    let mut bytes = vec![1, 2];
    fill(&mut bytes, 12);
    assert_eq!(
        bytes,
        [1, 2, 0x20, 0xD4, 0, 0, 0x20, 0xD4, 0, 0, 0x20, 0xD4]
    );
    fill(&mut bytes, 3);
    assert_eq!(bytes.len(), 12);
}

/// A method with its operands, and how it is read.
type Case = (fn(&mut Code<'_>), &'static str);

#[rustfmt::skip]
const ACCESSES: [Case; 20] = [
    (|code| code.ldr(0, mem(SP, 8)), "ldr x0, [sp, #0x8]"),
    (|code| code.ldr(0, mem(1, -8)), "ldur x0, [x1, #-0x8]"),
    (|code| code.ldrb(2, mem(3, 4095)), "ldrb w2, [x3, #0xfff]"),
    (|code| code.ldrh(2, mem(3, 8190)), "ldrh w2, [x3, #0x1ffe]"),
    (|code| code.ldr_w(2, mem(3, 16380)), "ldr w2, [x3, #0x3ffc]"),
    (|code| code.ldrsw(2, mem(3, 4)), "ldrsw x2, [x3, #0x4]"),
    (|code| code.str(30, before(SP, -16)), "str x30, [sp, #-0x10]!"),
    (|code| code.ldr(30, after(SP, 16)), "ldr x30, [sp], #0x10"),
    (|code| code.str(ZERO, indexed(4, 5).scaled()), "str xzr, [x4, x5, lsl #3]"),
    (|code| code.stp(29, 30, before(SP, -512)), "stp x29, x30, [sp, #-0x200]!"),
    (|code| code.ldp(29, 30, after(SP, 504)), "ldp x29, x30, [sp], #0x1f8"),
    (|code| code.str_q(31, mem(SP, 16)), "str q31, [sp, #0x10]"),
    (|code| code.ldr_q(7, mem(SP, 65520)), "ldr q7, [sp, #0xfff0]"),
    (|code| code.stp_q(0, 1, mem(SP, -1024)), "stp q0, q1, [sp, #-0x400]"),
    (|code| code.keep(16), "str x16, [sp, #-0x10]!"),
    (|code| code.take_back(16), "ldr x16, [sp], #0x10"),
    (|code| code.ldadd(DOUBLE, 1, 2, 3), "ldadd x1, x2, [x3]"),
    (|code| code.cas(DOUBLE.acquire(), 1, 2, 3), "casa x1, x2, [x3]"),
    (|code| code.ldxr(DOUBLE.acquire(), 1, SP), "ldaxr x1, [sp]"),
    (|code| code.stxr(DOUBLE.release(), 0, 1, SP), "stlxr w0, x1, [sp]"),
];

#[rustfmt::skip]
const OTHERS: [Case; 24] = [
    (|code| code.add(0, 1, lsl(2, 3)), "add x0, x1, x2, lsl #3"),
    (|code| code.sub(0, 1, 2), "sub x0, x1, x2"),
    (|code| code.addi(SP, SP, -0xFF_F000), "sub sp, sp, #0xfff, lsl #12"),
    (|code| code.addi(0, SP, 16), "add x0, sp, #0x10"),
    (|code| code.add_extended(SP, SP, 9, (Extend::Uxtx, 0)), "add sp, sp, x9"),
    (|code| code.andi(0, 1, 0xFF), "and x0, x1, #0xff"),
    (|code| code.eori(0, 1, 1 << 63), "eor x0, x1, #0x8000000000000000"),
    (|code| code.lsli(0, 1, 12), "lsl x0, x1, #0xc"),
    (|code| code.lsri(0, 1, 63), "lsr x0, x1, #0x3f"),
    (|code| code.asri(0, 1, 1), "asr x0, x1, #0x1"),
    (|code| code.mov(0, 1), "mov x0, x1"),
    (|code| code.cmp(0, 1), "cmp x0, x1"),
    (|code| code.cset(0, Cond::Hi), "cset x0, hi"),
    (|code| code.mrs(8, TPIDR_EL0), "mrs x8, tpidr_el0"),
    (|code| code.msr(TPIDR_EL0, 30), "msr tpidr_el0, x30"),
    (|code| code.rdtime(8), "mrs x8, cntvct_el0"),
    (|code| code.ret(), "ret"),
    (|code| code.ret_by(16), "ret x16"),
    (|code| code.br(17), "br x17"),
    (|code| code.call(16), "blr x16"),
    (|code| code.paciasp(), "paciasp"),
    (|code| code.bti_c(), "bti c"),
    (|code| code.move_stack(true), "add sp, sp, #0x10"),
    (|code| code.breakpoints(4), "brk #0x0"),
];

#[test]
fn instructions_are_what_their_names_say() {
    for (write, expected) in ACCESSES.into_iter().chain(OTHERS) {
        assert_eq!(read(write), [expected]);
    }
}

#[test]
fn jumps_reach_128_mebibytes() {
    for (reach, len) in [(Reach::Jump, 1), (Reach::Page, 3), (Reach::Any, 5)] {
        assert_eq!(reach.jump_len(), 4 * len);
        let (result, found) = written(|code| code.jump(AT + 8, reach, 16));
        assert_eq!((result, found.len()), (Ok(()), len));
    }
    for (to, reached) in [
        (AT + JUMP_END, true),
        (AT - (1 << 27), true),
        (AT + JUMP_END + 4, false),
        (AT - (1 << 27) - 4, false),
        (AT + 2, false),
    ] {
        let (result, found) = written(|code| code.jump(to, Reach::Jump, ZERO));
        assert_eq!(result.is_ok(), reached, "{to:#x}");
        assert_eq!(jump(AT, to).is_ok(), reached, "{to:#x}");
        match reached {
            true => assert_eq!(found, [format!("b {to:#x}")]),
            false => assert!(found.is_empty()),
        }
    }
    let linked = written(|code| code.jump_and_link(AT - 8, Reach::Jump, LINK, LINK));
    assert_eq!(linked.1, ["bl 0x123456780"]);
    // With another register, the return address is formed before the jump.
    let other = |to: u64| written(|code| code.jump_and_link(to, Reach::Jump, ZERO, 5));
    let expected = [
        "adr x5, 0x123456790".into(),
        format!("b {:#x}", AT + JUMP_END + 4),
    ];
    assert_eq!(other(AT + JUMP_END + 4), (Ok(()), expected.into()));
    assert_eq!(other(AT + JUMP_END + 8).0, Err(OutOfRange));
    let expected = [
        "adr x5, 0x123456790".into(),
        format!("b {:#x}", AT + 4 - (1 << 27)),
    ];
    assert_eq!(other(AT + 4 - (1 << 27)), (Ok(()), expected.into()));
    assert_eq!(other(AT - (1 << 27)).0, Err(OutOfRange));
    let far = read(|code| {
        code.jump_and_link(0x8000_0000, Reach::Page, 16, 5)
            .expect("within reach");
    });
    assert_eq!(
        far[1..],
        ["add x16, x16, #0x0", "adr x5, 0x123456798", "br x16"]
    );
    let odd = written(|code| code.jump(AT + 2, Reach::Any, 16));
    assert_eq!(odd, (Err(OutOfRange), Vec::new()));
}

#[test]
fn pages_reach_four_gibibytes() {
    // The page of this code is the first and the last that reaches them.
    let page = AT & !0xFFF;
    for (to, reached) in [
        (page, true),
        (page + (1 << 32) - 1, true),
        (page + (1 << 32), false),
        (page.wrapping_sub(1 << 32), true),
        (page.wrapping_sub(1 << 32) - 1, false),
    ] {
        let (result, found) = written(|code| code.address(9, to, Reach::Page));
        assert_eq!(result.is_ok(), reached, "{to:#x}");
        if reached {
            let low = format!("add x9, x9, #{:#x}", to & 0xFFF);
            assert_eq!(found, [format!("adrp x9, {:#x}", to & !0xFFF), low]);
        }
    }
    let (result, found) = written(|code| code.load_from(9, page + 0xFF8));
    assert_eq!(result, Ok(()));
    assert_eq!(found, ["adrp x9, 0x123456000", "ldr x9, [x9, #0xff8]"]);
    assert_eq!(
        written(|code| code.load_from(9, page + 4)).0,
        Err(OutOfRange)
    );
    assert_eq!(
        written(|code| code.load_from(9, page + (1 << 32))).0,
        Err(OutOfRange)
    );
    let any = read(|code| {
        code.address(9, 0x1234_5678_9ABC_DEF0, Reach::Any)
            .expect("anywhere");
    });
    let parts = [
        "mov x9, #0xdef0",
        "movk x9, #0x9abc, lsl #16",
        "movk x9, #0x5678, lsl #32",
        "movk x9, #0x1234, lsl #48",
    ];
    assert_eq!(any, parts);
}

#[test]
fn literals_reach_one_mebibyte() {
    for (to, reached) in [
        (AT + BRANCH_END, true),
        (AT - (1 << 20), true),
        (AT + BRANCH_END + 4, false),
        (AT - (1 << 20) - 4, false),
        (AT + 2, false),
    ] {
        let (result, found) = written(|code| code.load_literal(31, to));
        assert_eq!(result.is_ok(), reached, "{to:#x}");
        if reached {
            assert_eq!(found, [format!("ldr xzr, {to:#x}")]);
        }
    }
    let mut bytes = Vec::new();
    Code::new(&mut bytes, AT).jump_by_literal(0x1234_5678_9ABC_DEF0, 16);
    assert_eq!(texts(&bytes[..8], AT), ["ldr x16, 0x123456790", "br x16"]);
    assert_eq!(bytes[8..], 0x1234_5678_9ABC_DEF0u64.to_le_bytes());
}

#[test]
fn what_is_bound_leads_there() {
    let found = read(|code| {
        let (start, end) = (code.label_here(), code.label());
        code.branch(If::Below, 5, 6, end);
        code.branch(If::Equal, 5, ZERO, end);
        code.branch(If::NotEqual, 5, ZERO, start);
        code.bl(end);
        code.tbnz(5, 63, end);
        code.bind(end);
        code.cbnz_w(7, start);
        code.adr(8, start);
    });
    let expected = [
        "cmp x5, x6",
        "b.cc 0x1234567a0",
        "cbz x5, 0x1234567a0",
        "cbnz x5, 0x123456788",
        "bl 0x1234567a0",
        "tbnz x5, #0x3f, 0x1234567a0",
        "cbnz w7, 0x123456788",
        "adr x8, 0x123456788",
    ];
    assert_eq!(found, expected);
}

/// Every way to refer to a label, with how far it reaches back and forward.
fn references() -> [(Refer, u64, u64); 11] {
    let (wide, register) = (true, 3);
    let test = Test::Zero { wide, register };
    [
        (Refer::Branch(Test::Flags(Cond::Le)), 1 << 20, BRANCH_END),
        (Refer::Branch(test), 1 << 20, BRANCH_END),
        (Refer::Branch(test.not()), 1 << 20, BRANCH_END),
        (Refer::Branch(Test::Clear(3, 40)), 1 << 15, BIT_END),
        (Refer::Branch(Test::Set(3, 4)), 1 << 15, BIT_END),
        (Refer::OverJump(test), (1 << 27) - 4, JUMP_END + 4),
        (Refer::Jump(ZERO), 1 << 27, JUMP_END),
        (Refer::Jump(LINK), 1 << 27, JUMP_END),
        (Refer::Jump(9), (1 << 27) - 4, JUMP_END + 4),
        (Refer::Near(3), 1 << 20, BRANCH_END),
        (Refer::Literal(3), 1 << 20, BRANCH_END),
    ]
}

#[test]
fn references_reach_as_far_as_they_say() {
    const HERE: u64 = 1 << 40;
    for (reference, back, on) in references() {
        let form = reference.form();
        for (to, reached) in [
            (HERE - back, true),
            (HERE + on, true),
            (HERE - back - 4, false),
            (HERE + on + 4, false),
            (HERE, true),
        ] {
            let distance = to.wrapping_sub(HERE).cast_signed();
            assert_eq!(form.leads(distance), reached, "{reference:?} {distance:#x}");
            if reached {
                let mut bytes = vec![0; form.len as usize];
                reference.write(&mut bytes, distance);
                assert_eq!(targets(&bytes, HERE).last(), Some(&to), "{reference:?}");
            }
        }
    }
    let form = Refer::Near(3).form();
    assert!(form.leads((1 << 20) - 1) && !form.leads(1 << 20));
}

#[test]
fn addresses_in_two_parts_need_no_page() {
    for distance in [
        0, 1, 0xFFF, 0x1000, -1, -0x1000, -0x1001, 0xFF_FFFF, -0xFF_F000,
    ] {
        let reference = Refer::Address(7);
        assert!(reference.form().leads(distance), "{distance:#x}");
        let mut bytes = [0; 8];
        reference.write(&mut bytes, distance);
        let first = targets(&bytes, AT)[0];
        let second = Insn::new(&bytes[4..], AT + 4);
        let added = second.added().expect("an addition");
        assert_eq!((second.rd(), second.rn()), (7, 7));
        let sum = first.wrapping_add_signed(added);
        assert_eq!(sum, AT.wrapping_add_signed(distance), "{distance:#x}");
    }
    assert!(!Refer::Address(7).form().leads(0x100_0000));
    assert!(!Refer::Address(7).form().leads(-0xFF_F001));
}

/// A label this far from a reference: the code from the reference on, and what is between the two.
fn at_distance(distance: i64, refer: impl Fn(&mut Asm, Label)) -> Vec<String> {
    let mut asm = Asm::default();
    let label = asm.label();
    let gap = vec![0; distance.unsigned_abs() as usize];
    if distance < 0 {
        asm.bind(label);
        asm.raw(&gap);
        refer(&mut asm, label);
    } else {
        refer(&mut asm, label);
        asm.raw(&gap[4..]);
        asm.bind(label);
        asm.nop();
    }
    let laid = asm.lay(AT).expect("within reach");
    let start = if distance < 0 { gap.len() } else { 0 };
    let end = laid.bytes.len().min(start + 12);
    texts(&laid.bytes[start..end], AT + start as u64)
}

#[test]
fn branches_become_longer_beyond_their_reach() {
    type Write = fn(&mut Asm, Label);
    let cases: [(i64, Write, &str, &str); 4] = [
        (
            BRANCH_END as i64,
            |asm, to| asm.cbz(3, to),
            "cbz x3",
            "cbnz x3",
        ),
        (
            BRANCH_END as i64,
            |asm, to| asm.b_if(Cond::Lo, to),
            "b.cc",
            "b.cs",
        ),
        (
            BIT_END as i64,
            |asm, to| asm.tbz(3, 7, to),
            "tbz w3, #0x7",
            "tbnz w3, #0x7",
        ),
        (
            BIT_END as i64,
            |asm, to| asm.tbnz(3, 40, to),
            "tbnz x3, #0x28",
            "tbz x3, #0x28",
        ),
    ];
    for (end, write, name, opposite) in cases {
        let separator = if name.contains(' ') { ", " } else { " " };
        let near = |to: u64| format!("{name}{separator}{to:#x}");
        let start = end.unsigned_abs();
        // Forward, the label moves on by the instruction that is added.
        assert_eq!(at_distance(end, write)[0], near(AT + start));
        let far = at_distance(end + 4, write);
        let over = format!("{opposite}{separator}{:#x}", AT + 8);
        assert_eq!(far[..2], [over, format!("b {:#x}", AT + start + 8)]);
        // Back.
        let from = AT + start + 4;
        assert_eq!(at_distance(-end - 4, write), [near(AT)]);
        let over = format!("{opposite}{separator}{:#x}", from + 12);
        assert_eq!(at_distance(-end - 8, write), [over, format!("b {AT:#x}")]);
    }
    let write: Write = |asm, of| asm.address(3, of);
    let far = at_distance(1 << 20, write);
    assert_eq!(
        far[..2],
        ["adr x3, 0x12345678c", "add x3, x3, #0x100, lsl #12"]
    );
    let far = at_distance(-(1 << 20) - 4, write);
    assert_eq!(far, ["adr x3, 0x123557788", "sub x3, x3, #0x101, lsl #12"]);
    assert_eq!(
        at_distance(BRANCH_END as i64, write)[0],
        "adr x3, 0x123556784"
    );
}

#[test]
fn labels_may_be_as_far_as_branches_reach() {
    for (gap, write) in [
        (
            BRANCH_END,
            (|code, to| code.cbnz(9, to)) as fn(&mut Code<'_>, Label),
        ),
        (BIT_END, |code, to| code.tbz(9, 0, to)),
    ] {
        let mut bytes = Vec::new();
        let mut code = Code::new(&mut bytes, AT);
        let (start, end) = (code.label_here(), code.label());
        write(&mut code, end);
        code.breakpoints(gap as usize - 4);
        code.bind(end);
        code.nop();
        write(&mut code, start);
        assert!(code.all_bound());
        let far = gap + 4;
        assert_eq!(targets(&bytes[..4], AT), [AT + gap]);
        assert_eq!(targets(&bytes[far as usize..], AT + far), [AT]);
    }
}

#[test]
#[should_panic(expected = "a place within reach")]
fn labels_may_not_be_farther() {
    let mut bytes = Vec::new();
    let mut code = Code::new(&mut bytes, AT);
    let end = code.label();
    code.tbz(9, 0, end);
    code.breakpoints(BIT_END as usize);
    code.bind(end);
}

#[test]
fn numbers_take_as_few_instructions_as_possible() {
    for (number, expected) in [
        (0, &["mov x9, #0x0"][..]),
        (0x1234_0000, &["mov x9, #0x12340000"]),
        (0xFFFF_0000_0000_0000, &["mov x9, #0xffff000000000000"]),
        (u64::MAX, &["mov x9, #0xffffffffffffffff"]),
        (0xFFFF_FFFF_1234_FFFF, &["mov x9, #0xffffffff1234ffff"]),
        (0xFFFF_FFFF, &["mov w9, #0xffffffff"]),
        (0xFFFF_1234, &["mov w9, #0xffff1234"]),
        (0x5555_5555_5555_5555, &["mov x9, #0x5555555555555555"]),
        (0x0F0F_0F0F, &["mov w9, #0xf0f0f0f"]),
        (
            0x0000_1234_0000_5678,
            &["mov x9, #0x123400000000", "movk x9, #0x5678"],
        ),
        (
            0x5555_5555_5555_1234,
            &["mov x9, #0x5555555555555555", "movk x9, #0x1234"],
        ),
        (
            0x1234_FFFF_5678,
            &["mov w9, #0xffff5678", "movk x9, #0x1234, lsl #32"],
        ),
    ] {
        assert_eq!(read(|code| code.li(9, number)), expected, "{number:#x}");
    }
    for (number, count) in [
        (0x1234_5678_9ABC_DEF0, 4),
        (0x7FFF_1234_5678, 3),
        (0xFFFF_1234_5678_9ABC, 3),
        (0x1234_1234_1234_1234, 4),
        (0x5555_1234_5555_5678, 3),
        (0x00FF_00FF_00FF_1234, 2),
    ] {
        assert_eq!(read(|code| code.li(9, number)).len(), count, "{number:#x}");
    }
}

#[test]
fn drafts_have_the_instructions_that_operands_need() {
    let found = laid(|asm| {
        asm.mv(1, 1);
        asm.mv(1, 2);
        asm.add(1, 1, 0);
        asm.add(1, SP, -0xFFF);
        asm.add(1, 2, 0x12_3456);
        asm.add(1, SP, 0x1234_5678);
        asm.add_to(SP, -0x12_3450, 9);
        asm.add_to(1, 0x1_0000_0000, 9);
        asm.load(4, 1, 2, 16380);
        asm.load(8, 1, SP, -257);
        asm.load_signed_half(1, 2, -256);
        asm.store(1, ZERO, 2, 4095, 9);
        asm.store(2, ZERO, 2, 8192, 9);
        asm.ld(1, 8, SP);
        asm.stack(-32);
        asm.far(0x1234_0000, 16, LINK);
        asm.far(0x1234_0000, 16, ZERO);
        asm.far(0x1234_0000, 16, 17);
        asm.op(Op::ADD, 1, 2, 3);
        asm.op(Op::UDIV, 1, 2, 3);
        asm.op_imm(Op::SUB, 1, 2, -1);
        asm.op_imm(Op::AND, 1, 2, -2);
        asm.op_imm(Op::ASR, 1, 2, 63);
        asm.ret();
    });
    let expected = [
        "mov x1, x2",
        "sub x1, sp, #0xfff",
        "add x1, x2, #0x123, lsl #12",
        "add x1, x1, #0x456",
        "mov x1, #0x12340000",
        "movk x1, #0x5678",
        "add x1, sp, x1",
        "sub sp, sp, #0x123, lsl #12",
        "sub sp, sp, #0x450",
        "mov x9, #0x100000000",
        "add x1, x1, x9",
        "ldr w1, [x2, #0x3ffc]",
        "mov x1, #0xfffffffffffffeff",
        "ldr x1, [sp, x1]",
        "ldursh x1, [x2, #-0x100]",
        "strb wzr, [x2, #0xfff]",
        "mov x9, #0x2000",
        "strh wzr, [x2, x9]",
        "ldr x1, [sp, #0x8]",
        "sub sp, sp, #0x20",
        "mov x16, #0x12340000",
        "blr x16",
        "mov x16, #0x12340000",
        "br x16",
        "mov x16, #0x12340000",
        "adr x17, 0x1234567f4",
        "br x16",
        "add x1, x2, x3",
        "udiv x1, x2, x3",
        "add x1, x2, #0x1",
        "and x1, x2, #0xfffffffffffffffe",
        "asr x1, x2, #0x3f",
        "ret",
    ];
    for (found, expected) in found.iter().zip(expected) {
        assert_eq!(found, expected);
    }
    assert_eq!(found.len(), expected.len());
    assert!(!Op::AND.takes(0) && !Op::MUL.takes(1) && !Op::ADD.takes(0x1001) && !Op::LSL.takes(64));
}

#[test]
fn offsets_that_do_not_fit_are_refused() {
    for (bytes, fits, others) in [
        (1, [-256, 0, 255, 4095], [-257, 4096, 5000]),
        (8, [-256, 255, 32760, 8], [-264, 257, 32768]),
        (16, [-256, 255, 65520, 16], [-272, 264, 65536]),
    ] {
        for distance in fits {
            assert!(operand::near(bytes, distance), "{bytes} {distance}");
        }
        for distance in others {
            assert!(!operand::near(bytes, distance), "{bytes} {distance}");
        }
    }
    for value in [0, 0xFFF, -0xFFF, 0x1000, 0xFF_F000, -0xFF_F000] {
        assert!(small(value), "{value:#x}");
    }
    for value in [0x1001, 0x100_0000, -0x1001, i64::MIN, i64::MAX] {
        assert!(!small(value), "{value:#x}");
    }
}
