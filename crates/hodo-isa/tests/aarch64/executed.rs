//! Executes what the assembler writes, and compares with what its methods say.

use hodo_isa::aarch64::asm::operand::{
    Cond, DOUBLE, Extend, NZCV, Rmw, WORD, after, before, indexed, lsl, mem,
};
use hodo_isa::aarch64::asm::ops::Insns as _;
use hodo_isa::aarch64::asm::relax::{Asm, Op};
use hodo_isa::aarch64::asm::{Code, If, Reach};
use hodo_isa::aarch64::regs::{LINK, SP, ZERO};

use super::common::Random;
use super::machine::{ARENA, ARENA_SIZE, HOME, Machine, State};

/// The middle of the memory that code may use.
const MIDDLE: u64 = ARENA + ARENA_SIZE / 2;
/// The word in it.
const WORD_AT_MIDDLE: usize = ARENA_SIZE as usize / 16;

/// A state in which the stack pointer and `x3` hold the middle of memory.
fn state(random: &mut Random) -> State {
    let mut state = State::new();
    state.x.fill_with(|| random.next());
    state.x[3] = MIDDLE;
    state.x[usize::from(SP)] = MIDDLE;
    state.memory.fill_with(|| random.next());
    state
}

/// Executes code from a state, and returns the state after it.
fn run(machine: &mut Machine, code: &[u8], state: &State) -> State {
    machine.place(HOME, code);
    let outcome = machine.run(HOME, state);
    machine.clear(HOME, code.len());
    let end = HOME + code.len() as u64;
    assert_eq!((outcome.signal, outcome.state.pc), (libc::SIGTRAP, end));
    outcome.state
}

fn written(write: impl FnOnce(&mut Code<'_>)) -> Vec<u8> {
    let mut bytes = Vec::new();
    write(&mut Code::new(&mut bytes, HOME));
    bytes
}

/// A number that is often special.
fn number(random: &mut Random) -> u64 {
    match random.below(6) {
        0 => random.below(4),
        1 => random.below(4).wrapping_neg(),
        2 => 1 << random.below(64),
        3 => random.next() >> 32,
        4 => (random.next() as i32 as i64).cast_unsigned(),
        _ => random.next(),
    }
}

#[test]
fn numbers_are_put_into_registers() {
    let mut machine = Machine::new();
    let mut random = Random(11);
    let mut numbers = vec![
        0,
        1,
        u64::MAX,
        0xFFFF_FFFF,
        0xFFFF_0000_FFFF_0000,
        0x5555_5555,
    ];
    for bit in 0..64 {
        let one = 1u64 << bit;
        numbers.extend([
            one,
            !one,
            one - 1,
            one.wrapping_neg(),
            one | 0x1234,
            one ^ 0xFFFF_1234,
        ]);
    }
    numbers.extend((0..300).map(|_| number(&mut random)));
    for value in numbers {
        let register = random.below(31) as u8;
        let before = state(&mut random);
        let code = written(|code| code.li(register, value));
        let mut expected = before.x;
        expected[usize::from(register)] = value;
        let found = run(&mut machine, &code, &before);
        assert!(
            found.x == expected && found.flags == before.flags,
            "{value:#x} in x{register}"
        );
    }
}

#[test]
fn addresses_are_put_into_registers() {
    let mut machine = Machine::new();
    let before = state(&mut Random(12));
    for (address, reach) in [
        (HOME, Reach::Page),
        (HOME - 1, Reach::Page),
        (HOME + (1 << 32) - 1, Reach::Page),
        (HOME - (1 << 32), Reach::Jump),
        (0x1234_5678_9ABC_DEF0, Reach::Any),
    ] {
        let code = written(|code| code.address(9, address, reach).expect("within reach"));
        assert_eq!(run(&mut machine, &code, &before).x[9], address);
    }
    let mut asm = Asm::default();
    let start = asm.here();
    let end = asm.label();
    asm.address(9, end);
    asm.nop();
    asm.bind(end);
    asm.address(10, start);
    let code = asm.lay(HOME).expect("within reach").bytes;
    let found = run(&mut machine, &code, &before);
    assert_eq!((found.x[9], found.x[10]), (HOME + 8, HOME));
    let code = written(|code| {
        let (data, end) = (code.label(), code.label());
        code.ldr_label(9, data);
        code.b(end);
        code.bind(data);
        code.data(0x1234_5678_9ABC_DEF0);
        code.bind(end);
        code.load_literal(10, HOME + 8).expect("within reach");
        code.load_from(11, HOME + 8).expect("within reach");
    });
    let found = run(&mut machine, &code, &before);
    assert_eq!(found.x[9..12], [0x1234_5678_9ABC_DEF0; 3]);
}

/// `x0` = what is computed of `x1` and `x2`.
type Write = fn(&mut Code<'_>);

/// Computes it in Rust.
type Compute = fn(u64, u64) -> u64;

/// Divides with a sign; by 0, the result is 0.
fn divided(a: u64, b: u64) -> u64 {
    let (a, b) = (a.cast_signed(), b.cast_signed());
    if b == 0 {
        0
    } else {
        a.wrapping_div(b).cast_unsigned()
    }
}

#[rustfmt::skip]
const COMPUTED: [(Write, Compute); 38] = [
    (|c| c.add(0, 1, 2), |a, b| a.wrapping_add(b)),
    (|c| c.add(0, 1, lsl(2, 7)), |a, b| a.wrapping_add(b << 7)),
    (|c| c.add_w(0, 1, 2), |a, b| u64::from((a as u32).wrapping_add(b as u32))),
    (|c| c.sub(0, 1, 2), |a, b| a.wrapping_sub(b)),
    (|c| c.neg(0, 1), |a, _| a.wrapping_neg()),
    (|c| c.addi(0, 1, 0xFFF), |a, _| a.wrapping_add(0xFFF)),
    (|c| c.addi(0, 1, -0xFF_F000), |a, _| a.wrapping_sub(0xFF_F000)),
    (|c| c.add_extended(0, 1, 2, (Extend::Sxtw, 3)), |a, b| a.wrapping_add_signed(i64::from(b as i32) << 3)),
    (|c| c.sub_extended(0, 1, 2, (Extend::Uxtb, 0)), |a, b| a.wrapping_sub(b & 0xFF)),
    (|c| c.and(0, 1, 2), |a, b| a & b),
    (|c| c.bic(0, 1, 2), |a, b| a & !b),
    (|c| c.orr(0, 1, 2), |a, b| a | b),
    (|c| c.orn(0, 1, 2), |a, b| a | !b),
    (|c| c.eor(0, 1, 2), |a, b| a ^ b),
    (|c| c.mvn(0, 1), |a, _| !a),
    (|c| c.mov_w(0, 1), |a, _| a & 0xFFFF_FFFF),
    (|c| c.andi(0, 1, 0xFF00_FF00_FF00_FF00), |a, _| a & 0xFF00_FF00_FF00_FF00),
    (|c| c.orri(0, 1, 1 << 63 | 1), |a, _| a | 1 << 63 | 1),
    (|c| c.eori_w(0, 1, 0xF000_000F), |a, _| (a ^ 0xF000_000F) & 0xFFFF_FFFF),
    (|c| c.lsli(0, 1, 12), |a, _| a << 12),
    (|c| c.lsri(0, 1, 63), |a, _| a >> 63),
    (|c| c.asri(0, 1, 9), |a, _| (a.cast_signed() >> 9).cast_unsigned()),
    (|c| c.rori(0, 1, 5), |a, _| a.rotate_right(5)),
    (|c| c.lsli_w(0, 1, 31), |a, _| u64::from((a as u32) << 31)),
    (|c| c.lsri_w(0, 1, 4), |a, _| u64::from(a as u32 >> 4)),
    (|c| c.lsl(0, 1, 2), |a, b| a << (b & 63)),
    (|c| c.asr(0, 1, 2), |a, b| (a.cast_signed() >> (b & 63)).cast_unsigned()),
    (|c| c.ubfx(0, 1, 7, 20), |a, _| a >> 7 & 0xF_FFFF),
    (|c| c.sbfx(0, 1, 32, 32), |a, _| (a.cast_signed() >> 32).cast_unsigned()),
    (|c| c.ubfiz(0, 1, 40, 8), |a, _| (a & 0xFF) << 40),
    (|c| c.sxtw(0, 1), |a, _| i64::from(a as i32).cast_unsigned()),
    (|c| c.mul(0, 1, 2), |a, b| a.wrapping_mul(b)),
    (|c| c.umulh(0, 1, 2), |a, b| ((u128::from(a) * u128::from(b)) >> 64) as u64),
    (|c| c.udiv(0, 1, 2), |a, b| a.checked_div(b).unwrap_or(0)),
    (|c| c.sdiv(0, 1, 2), divided),
    (|c| c.clz(0, 1), |a, _| a.leading_zeros().into()),
    (|c| c.rev(0, 1), |a, _| a.swap_bytes()),
    (|c| c.rbit(0, 1), |a, _| a.reverse_bits()),
];

#[test]
fn numbers_are_computed() {
    let mut machine = Machine::new();
    let mut random = Random(13);
    for (at, (write, compute)) in COMPUTED.iter().enumerate() {
        let code = written(write);
        for _ in 0..8 {
            let mut before = state(&mut random);
            let (a, b) = (number(&mut random), number(&mut random));
            (before.x[1], before.x[2]) = (a, b);
            let found = run(&mut machine, &code, &before);
            assert_eq!(found.x[0], compute(a, b), "{at} of {a:#x} and {b:#x}");
            assert_eq!((&found.x[1..], found.flags), (&before.x[1..], before.flags));
        }
    }
    // Those that keep a part of the destination, or have three sources.
    let mut before = state(&mut random);
    for (at, value) in [0xAAAA_AAAA_AAAA_AAAA, 0x1234, 7, 0x1111]
        .into_iter()
        .enumerate()
    {
        before.x[at] = value;
    }
    let mut result = |write: Write| run(&mut machine, &written(write), &before).x[0];
    assert_eq!(result(|c| c.bfi(0, 1, 8, 16)), 0xAAAA_AAAA_AA12_34AA);
    assert_eq!(result(|c| c.bfxil(0, 1, 8, 8)), 0xAAAA_AAAA_AAAA_AA12);
    assert_eq!(result(|c| c.madd(0, 1, 2, 3)), 0x1111 + 7 * 0x1234);
    assert_eq!(result(|c| c.msub(0, 2, 2, 3)), 0x1111 - 49);
    assert_eq!(result(|c| c.extr(0, 1, 2, 1)), 3);
    assert_eq!(result(|c| c.movk(0, 0x77, 2)), 0xAAAA_0077_AAAA_AAAA);
}

#[test]
fn comparisons_and_branches_agree() {
    let mut machine = Machine::new();
    let mut random = Random(14);
    type Compare = fn(u64, u64) -> bool;
    let all: [(If, Cond, Compare); 6] = [
        (If::Equal, Cond::Eq, |a, b| a == b),
        (If::NotEqual, Cond::Ne, |a, b| a != b),
        (If::Less, Cond::Lt, |a, b| a.cast_signed() < b.cast_signed()),
        (If::NotLess, Cond::Ge, |a, b| {
            a.cast_signed() >= b.cast_signed()
        }),
        (If::Below, Cond::Lo, |a, b| a < b),
        (If::NotBelow, Cond::Hs, |a, b| a >= b),
    ];
    for (condition, flags, compare) in all {
        assert_eq!(condition.flags(), flags);
        for right in [2, ZERO] {
            let code = written(|code| {
                let (yes, end) = (code.label(), code.label());
                code.branch(condition, 1, right, yes);
                code.li(0, 0);
                code.b(end);
                code.bind(yes);
                code.li(0, 1);
                code.bind(end);
                code.cmp(1, right);
                code.cset(4, flags);
                code.csetm(5, flags.not());
                code.csel(6, 1, 2, flags);
            });
            for _ in 0..12 {
                let mut before = state(&mut random);
                let (a, b) = (number(&mut random), number(&mut random));
                (before.x[1], before.x[2]) = (a, b);
                let holds = compare(a, if right == ZERO { 0 } else { b });
                let found = run(&mut machine, &code, &before);
                let expected = u64::from(holds);
                assert_eq!(found.x[0], expected, "{condition:?} of {a:#x} and {b:#x}");
                assert_eq!(
                    (found.x[4], found.x[5]),
                    (expected, expected.wrapping_sub(1))
                );
                assert_eq!(found.x[6], if holds { a } else { b });
            }
        }
    }
}

#[test]
fn bits_are_tested() {
    let mut machine = Machine::new();
    let mut random = Random(15);
    for bit in 0..64u8 {
        let code = written(|code| {
            let [set, clear, wide, half] = [(); 4].map(|()| code.label());
            code.li(0, 0);
            code.tbnz(1, bit, set);
            code.addi(0, 0, 1);
            code.bind(set);
            code.tbz(1, bit, clear);
            code.addi(0, 0, 2);
            code.bind(clear);
            code.cbnz(1, wide);
            code.addi(0, 0, 4);
            code.bind(wide);
            code.cbz_w(1, half);
            code.addi(0, 0, 8);
            code.bind(half);
        });
        for value in [0, 1 << bit, !(1 << bit), random.next()] {
            let mut before = state(&mut random);
            before.x[1] = value;
            let set = value >> bit & 1 != 0;
            let expected = if set { 2 } else { 1 }
                + if value == 0 { 4 } else { 0 }
                + if value as u32 != 0 { 8 } else { 0 };
            assert_eq!(
                run(&mut machine, &code, &before).x[0],
                expected,
                "{bit} of {value:#x}"
            );
        }
    }
}

#[test]
fn memory_is_accessed() {
    let mut machine = Machine::new();
    let mut random = Random(16);
    let before_ = state(&mut random);
    let word = |distance: i64| {
        let at = WORD_AT_MIDDLE as i64 + distance;
        before_.memory[at as usize]
    };
    let code = written(|code| {
        code.ldr(4, mem(3, 8));
        code.ldr_w(5, mem(3, 8));
        code.ldrh(6, mem(3, 10));
        code.ldrb(7, mem(3, -1));
        code.ldrsw(8, mem(SP, 8));
        code.ldrsh(9, mem(3, 8));
        code.ldrsb(10, mem(3, 8));
        code.ldp(11, 12, mem(SP, -16));
        code.li(13, 2);
        code.ldr(14, indexed(3, 13).scaled());
        code.ldr(15, before(3, -24));
        code.ldr(16, after(3, 24));
        code.keep(4);
        code.take_back(17);
    });
    let found = run(&mut machine, &code, &before_);
    let next = word(1);
    assert_eq!(
        found.x[4..8],
        [
            next,
            next & 0xFFFF_FFFF,
            next >> 16 & 0xFFFF,
            word(-1) >> 56
        ]
    );
    let signed = [
        i64::from(next as i32),
        i64::from(next as i16),
        i64::from(next as i8),
    ];
    assert_eq!(found.x[8..11], signed.map(i64::cast_unsigned));
    assert_eq!(found.x[11..13], [word(-2), word(-1)]);
    assert_eq!(found.x[14..18], [word(2), word(-3), word(-3), next]);
    assert_eq!((found.x[3], found.x[31]), (MIDDLE, MIDDLE));

    // Far offsets, by the assembler of detours.
    let mut asm = Asm::default();
    asm.load(8, 4, 3, 4088);
    asm.load(8, 5, 3, -4088);
    asm.store(4, 4, 3, -2050, 9);
    asm.store(8, ZERO, SP, -4096, 9);
    asm.add(6, SP, 0x1234_5678_9ABC);
    asm.add_to(3, -0x12_3456, 9);
    asm.op_imm(Op::SUB, 7, 6, 0xFFF);
    let code = asm.lay(HOME).expect("within reach").bytes;
    let found = run(&mut machine, &code, &before_);
    assert_eq!(found.x[4..6], [word(511), word(-511)]);
    let sum = MIDDLE + 0x1234_5678_9ABC;
    assert_eq!(found.x[6..8], [sum, sum - 0xFFF]);
    assert_eq!(found.x[3], MIDDLE - 0x12_3456);
    assert_eq!(found.memory[WORD_AT_MIDDLE - 512], 0);
    let at = WORD_AT_MIDDLE - 257;
    let stored = u128::from(found.memory[at]) | u128::from(found.memory[at + 1]) << 64;
    assert_eq!((stored >> 48) as u32, word(511) as u32);
}

#[test]
fn memory_is_shared() {
    let mut machine = Machine::new();
    let mut random = Random(17);
    let mut before = state(&mut random);
    before.x[1] = 5;
    before.memory[WORD_AT_MIDDLE] = 100;
    let mut result = |write: Write| {
        let found = run(&mut machine, &written(write), &before);
        (found.x[4], found.memory[WORD_AT_MIDDLE])
    };
    assert_eq!(result(|c| c.ldadd(DOUBLE, 1, 4, 3)), (100, 105));
    assert_eq!(
        result(|c| c.ldadd(WORD.acquire_release(), 1, 4, 3)),
        (100, 105)
    );
    assert_eq!(result(|c| c.ldset(DOUBLE, 1, 4, 3)), (100, 101));
    assert_eq!(result(|c| c.ldclr(DOUBLE, 1, 4, 3)), (100, 96));
    assert_eq!(result(|c| c.rmw(Rmw::Flip, DOUBLE, 1, 4, 3)), (100, 97));
    assert_eq!(result(|c| c.rmw(Rmw::SignedMin, DOUBLE, 1, 4, 3)), (100, 5));
    assert_eq!(
        result(|c| c.rmw(Rmw::UnsignedMax, DOUBLE, 1, 4, 3)),
        (100, 100)
    );
    assert_eq!(result(|c| c.swp(DOUBLE.acquire(), 1, 4, 3)), (100, 5));
    let compared = |c: &mut Code<'_>, expected: u64| {
        c.li(4, expected);
        c.cas(DOUBLE.acquire_release(), 4, 1, 3);
    };
    assert_eq!(result(|c| c.ldar(DOUBLE, 4, 3)), (100, 100));
    let found = run(&mut machine, &written(|c| compared(c, 100)), &before);
    assert_eq!((found.x[4], found.memory[WORD_AT_MIDDLE]), (100, 5));
    let found = run(&mut machine, &written(|c| compared(c, 99)), &before);
    assert_eq!((found.x[4], found.memory[WORD_AT_MIDDLE]), (100, 100));
    let code = written(|code| {
        let again = code.label_here();
        code.ldxr(DOUBLE.acquire(), 4, 3);
        code.addi(5, 4, 1);
        code.stxr(DOUBLE.release(), 6, 5, 3);
        code.cbnz_w(6, again);
    });
    let found = run(&mut machine, &code, &before);
    assert_eq!(
        (found.x[4..7].to_vec(), found.memory[WORD_AT_MIDDLE]),
        (vec![100, 101, 0], 101)
    );
}

#[test]
fn calls_jumps_and_flags_work() {
    let mut machine = Machine::new();
    let before = state(&mut Random(18));
    let code = written(|code| {
        let (function, end) = (code.label(), code.label());
        code.bl(function);
        code.mov(4, 0);
        code.adr(16, function);
        code.blr(16);
        code.mov(5, 0);
        code.adr(LINK, end);
        code.jump_and_link(HOME + 4 * 8, Reach::Jump, ZERO, 17)
            .expect("within reach");
        code.bind(function);
        code.paciasp();
        code.xpaclri();
        code.addi(0, LINK, 0);
        code.ret();
        code.bind(end);
        code.li(6, 0x6000_0000);
        code.msr(NZCV, 6);
        code.mrs(7, NZCV);
    });
    let found = run(&mut machine, &code, &before);
    assert_eq!(found.x[4..6], [HOME + 4, HOME + 16]);
    assert_eq!((found.x[0], found.x[17]), (HOME + 48, HOME + 32));
    assert_eq!((found.x[7], found.flags), (0x6000_0000, 0x6000_0000));
}

/// The vector length of this thread is that of the code.
#[test]
fn scalable_registers_are_saved() {
    // SAFETY: it only reads what the kernel has told.
    let features = unsafe { libc::getauxval(libc::AT_HWCAP) };
    if features & libc::HWCAP_SVE == 0 {
        return super::common::skip("this processor has no scalable vectors");
    }
    let mut machine = Machine::new();
    let mut before = state(&mut Random(19));
    before.v[5] = 0x1234_5678_9ABC_DEF0_0FED_CBA9_8765_4321;
    let code = written(|code| {
        code.rdvl(4, 1);
        code.addvl(6, 3, 1);
        code.addpl(7, 3, -1);
        code.str_z(5, mem(3, 1));
        code.ldr_z(6, mem(3, 1));
        code.str_q(6, mem(3, -64));
        code.ldr_p(2, mem(3, 0));
        code.str_p(2, mem(3, -1));
        code.ldr_d(7, mem(3, 0));
        code.stp_q(5, 6, mem(3, -128));
    });
    let found = run(&mut machine, &code, &before);
    let length = found.x[4];
    assert!(length >= 16 && length.is_multiple_of(16), "{length}");
    assert_eq!(found.x[6..8], [MIDDLE + length, MIDDLE - length / 8]);
    let stored = |words: i64| {
        let at = (WORD_AT_MIDDLE as i64 + words) as usize;
        u128::from(found.memory[at]) | u128::from(found.memory[at + 1]) << 64
    };
    for words in [length as i64 / 8, -8, -16, -14] {
        assert_eq!(stored(words), before.v[5], "{words}");
    }
    // The predicate register has a bit for each byte of a vector.
    let bytes = |state: &State, from: i64| -> Vec<u8> {
        let memory: Vec<u8> = state
            .memory
            .iter()
            .flat_map(|word| word.to_le_bytes())
            .collect();
        let start = (WORD_AT_MIDDLE as i64 * 8 + from) as usize;
        memory[start..start + length as usize / 8].to_vec()
    };
    assert_eq!(bytes(&found, -(length as i64) / 8), bytes(&before, 0));
    assert_eq!(found.v[7], u128::from(before.memory[WORD_AT_MIDDLE]));
}
