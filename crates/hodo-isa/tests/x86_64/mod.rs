//! Each instruction of the x86-64 macro assembler, read back by an independent disassembler. The fuzz target uses this,
//! too.

use hodo_isa::x86_64::asm::{self, Code, Cond, Mem, Reg, Size};
use iced_x86::{Decoder, DecoderOptions, Instruction, Mnemonic, OpKind, Register};

/// Chooses the operands of instructions.
pub trait Choose {
    /// Returns a number below `end`.
    fn below(&mut self, end: u32) -> u32;
    /// Returns one of these numbers, or any number between the first and the last.
    fn number(&mut self, edges: &[i64]) -> i64;
}

/// How an operand must be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Op {
    Reg(Register),
    /// Segment, base, index, displacement.
    Mem(Register, Register, Register, u64),
    /// A number, sign-extended.
    Number(u64),
    /// The target of a jump.
    To(u64),
}

const SIZES: [Size; 4] = [Size::Byte, Size::Word, Size::Dword, Size::Qword];
/// The sizes of most arithmetic instructions.
const BYTE_OR_MORE: [Size; 3] = [Size::Byte, Size::Dword, Size::Qword];
const WIDE: [Size; 2] = [Size::Dword, Size::Qword];
const WHOLE: [Size; 1] = [Size::Qword];
const BYTES: [Size; 1] = [Size::Byte];
const CONDITIONS: [(Cond, &str); 11] = [
    (Cond::B, "b"),
    (Cond::AE, "ae"),
    (Cond::E, "e"),
    (Cond::NE, "ne"),
    (Cond::BE, "be"),
    (Cond::A, "a"),
    (Cond::NS, "ns"),
    (Cond::L, "l"),
    (Cond::GE, "ge"),
    (Cond::LE, "le"),
    (Cond::G, "g"),
];
/// The address of the code.
const HERE: u64 = 0x7000_0000_0000;

const LONG: [i64; 8] = [
    i32::MIN as i64,
    -129,
    -128,
    -1,
    0,
    127,
    128,
    i32::MAX as i64,
];
const SHORT: [i64; 5] = [i8::MIN as i64, -1, 0, 1, i8::MAX as i64];

fn size(choose: &mut dyn Choose, sizes: &[Size]) -> Size {
    sizes[choose.below(sizes.len() as u32) as usize]
}

/// Returns a register as it is written and as it is read.
fn reg(choose: &mut dyn Choose, size: Size) -> (Reg, Op) {
    let number = choose.below(16) as u8;
    let reg = Reg::whole(number).part(size);
    (reg, Op::Reg(named(number, size)))
}

fn named(number: u8, size: Size) -> Register {
    let first = match size {
        // Without a REX prefix, the numbers 4 to 7 would be other registers.
        Size::Byte if (4..8).contains(&number) => return Register::SPL + (u32::from(number) - 4),
        Size::Byte if number >= 8 => return Register::R8L + (u32::from(number) - 8),
        Size::Byte => Register::AL,
        Size::Word => Register::AX,
        Size::Dword => Register::EAX,
        Size::Qword => Register::RAX,
    };
    first + u32::from(number)
}

/// Returns a memory operand as it is written and as it is read.
fn memory(choose: &mut dyn Choose) -> (Mem, Op) {
    let kind = choose.below(7);
    memory_of(kind, choose)
}

fn memory_of(kind: u32, choose: &mut dyn Choose) -> (Mem, Op) {
    let whole = |number: u8| (Reg::whole(number), named(number, Size::Qword));
    let none = Register::None;
    let long = |choose: &mut dyn Choose| choose.number(&LONG) as i32;
    let read = |displacement: i32| i64::from(displacement).cast_unsigned();
    match kind {
        0 | 1 => {
            let at = long(choose).cast_unsigned();
            let (mem, segment) = match kind {
                0 => (asm::gs(at), Register::GS),
                _ => (asm::fs(at), Register::FS),
            };
            return (mem, Op::Mem(segment, none, none, read(at.cast_signed())));
        }
        2 => {
            let to = HERE.wrapping_add_signed(choose.number(&[-0x7FFF_0000, 0, 0x7FFF_0000]));
            return (
                asm::address(to),
                Op::Mem(Register::DS, Register::RIP, none, to),
            );
        }
        _ => {}
    }
    let (base, named_base) = whole(choose.below(16) as u8);
    let (mem, displacement) = match kind {
        3 | 4 => {
            let at = long(choose);
            (asm::mem(base, at), at)
        }
        5 => {
            let at = choose.number(&SHORT) as i8;
            (asm::mem8(base, at), at.into())
        }
        _ => {
            let at = long(choose);
            (asm::mem32(base, at.cast_unsigned()), at)
        }
    };
    // Index registers with special encodings, and usual ones.
    let index = [None, Some(0), Some(5), Some(8), Some(12), Some(13)][choose.below(6) as usize];
    let (mut mem, named_index) = match index.map(whole) {
        None => (mem, none),
        Some((index, named)) => (mem.plus(index), named),
    };
    let stack = matches!(named_base, Register::RSP | Register::RBP);
    let mut segment = if stack { Register::SS } else { Register::DS };
    if kind == 4 {
        mem = mem.in_gs();
        segment = Register::GS;
    }
    (
        mem,
        Op::Mem(segment, named_base, named_index, read(displacement)),
    )
}

/// Returns an immediate for an instruction of this size, as it is written and as it is read.
fn number(choose: &mut dyn Choose, size: Size) -> (u32, Op) {
    let (number, read) = match size {
        Size::Byte => {
            let number = choose.number(&SHORT) as u8;
            (number.into(), u64::from(number))
        }
        Size::Word | Size::Dword => {
            let number = choose.number(&LONG) as u32;
            (number, number.into())
        }
        Size::Qword => {
            let number = choose.number(&LONG) as i32;
            (number.cast_unsigned(), i64::from(number).cast_unsigned())
        }
    };
    (number, Op::Number(read))
}

/// Returns a sign-extended one-byte immediate.
fn short(choose: &mut dyn Choose) -> (i8, Op) {
    let number = choose.number(&SHORT) as i8;
    (number, Op::Number(i64::from(number).cast_unsigned()))
}

/// Returns a number of bits.
fn bits(choose: &mut dyn Choose) -> (u8, Op) {
    let bits = choose.number(&[0, 1, 31, 32, 63]) as u8;
    (bits, Op::Number(bits.into()))
}

/// An instruction: its name, and a function that writes it and returns its operands.
pub type Case = (&'static str, fn(&mut Code<'_>, &mut dyn Choose) -> Vec<Op>);

/// Gives an array of cases its type.
fn list<const N: usize>(cases: [Case; N]) -> [Case; N] {
    cases
}

/// Instructions of one shape.
macro_rules! cases {
    (rr $sizes:ident: $($name:ident)*) => { list([$((stringify!($name), |code, choose| {
        let size = size(choose, &$sizes);
        let ((to, a), (from, b)) = (reg(choose, size), reg(choose, size));
        code.$name(to, from);
        vec![a, b]
    })),*]) };
    (rm $sizes:ident: $($name:ident)*) => { list([$((stringify!($name), |code, choose| {
        let size = size(choose, &$sizes);
        let ((to, a), (from, b)) = (reg(choose, size), memory(choose));
        code.$name(to, from);
        vec![a, b]
    })),*]) };
    (mr $sizes:ident: $($name:ident)*) => { list([$((stringify!($name), |code, choose| {
        let size = size(choose, &$sizes);
        let ((to, a), (from, b)) = (memory(choose), reg(choose, size));
        code.$name(to, from);
        vec![a, b]
    })),*]) };
    (ri $sizes:ident: $($name:ident)*) => { list([$((stringify!($name), |code, choose| {
        let size = size(choose, &$sizes);
        let ((to, a), (value, b)) = (reg(choose, size), number(choose, size));
        code.$name(to, value);
        vec![a, b]
    })),*]) };
    (ri8 $sizes:ident: $($name:ident)*) => { list([$((stringify!($name), |code, choose| {
        let size = size(choose, &$sizes);
        let ((to, a), (value, b)) = (reg(choose, size), short(choose));
        code.$name(to, value);
        vec![a, b]
    })),*]) };
    (mi $sizes:ident: $($name:ident)*) => { list([$((stringify!($name), |code, choose| {
        let size = size(choose, &$sizes);
        let ((to, a), (value, b)) = (based(choose), number(choose, size));
        code.$name(size, to, value);
        vec![a, b]
    })),*]) };
    (mi8 $sizes:ident: $($name:ident)*) => { list([$((stringify!($name), |code, choose| {
        let size = size(choose, &$sizes);
        let ((to, a), (value, b)) = (based(choose), short(choose));
        code.$name(size, to, value);
        vec![a, b]
    })),*]) };
    (bits $sizes:ident: $($name:ident)*) => { list([$((stringify!($name), |code, choose| {
        let size = size(choose, &$sizes);
        let ((to, a), (value, b)) = (reg(choose, size), bits(choose));
        code.$name(to, value);
        vec![a, b]
    })),*]) };
    (r $sizes:ident: $($name:ident)*) => { list([$((stringify!($name), |code, choose| {
        let size = size(choose, &$sizes);
        let (reg, a) = reg(choose, size);
        code.$name(reg);
        vec![a]
    })),*]) };
    (rcl $sizes:ident: $($name:ident)*) => { list([$((stringify!($name), |code, choose| {
        let size = size(choose, &$sizes);
        let (reg, a) = reg(choose, size);
        code.$name(reg);
        vec![a, Op::Reg(Register::CL)]
    })),*]) };
    (m $sizes:ident: $($name:ident)*) => { list([$((stringify!($name), |code, choose| {
        let size = size(choose, &$sizes);
        let (mem, a) = memory(choose);
        code.$name(size, mem);
        vec![a]
    })),*]) };
    (to: $($name:ident)*) => { list([$((stringify!($name), |code, choose| {
        let (mem, a) = memory(choose);
        code.$name(mem);
        vec![a]
    })),*]) };
    (none: $($name:ident)*) => { list([$((stringify!($name), |code, _| {
        code.$name();
        Vec::new()
    })),*]) };
    (near: $($name:ident)*) => { list([$((stringify!($name), |code, choose| {
        let to = HERE.wrapping_add_signed(choose.number(&[-0x7FFF_0000, 0, 0x7FFF_0000]));
        code.$name(to);
        vec![Op::To(to)]
    })),*]) };
    (label: $($name:ident)*) => { list([$((stringify!($name), |code, choose| {
        let label = code.label();
        code.$name(label);
        vec![Op::To(skip(code, choose, label))]
    })),*]) };
}

/// Returns a memory operand without a label or an address: instructions with those must end after the distance.
fn based(choose: &mut dyn Choose) -> (Mem, Op) {
    let kind = [0, 1, 3, 4, 5, 6][choose.below(6) as usize];
    memory_of(kind, choose)
}

/// Binds a label after some bytes. Returns its address.
fn skip(code: &mut Code<'_>, choose: &mut dyn Choose, label: asm::Label) -> u64 {
    let bytes = choose.number(&[0, 1, 126, 127]) as usize;
    code.raw(&vec![0xCC; bytes]);
    code.bind(label);
    code.here()
}

/// Returns all instructions.
pub fn all() -> Vec<Case> {
    let mut all: Vec<Case> = Vec::new();
    all.extend(cases!(rr BYTE_OR_MORE: add_rr or_rr and_rr sub_rr xor_rr cmp_rr mov_rr test_rr));
    all.extend(cases!(rr WIDE: imul_rr bsr_rr popcnt_rr));
    all.extend(cases!(rm BYTE_OR_MORE: add_rm or_rm sub_rm xor_rm cmp_rm mov_rm));
    all.extend(cases!(mr BYTE_OR_MORE: add_mr cmp_mr mov_mr));
    all.extend(cases!(mr WIDE: xadd_mr cmpxchg_mr));
    all.extend(cases!(ri BYTE_OR_MORE: add_ri or_ri and_ri sub_ri xor_ri cmp_ri));
    all.extend(cases!(ri8 WIDE: add_ri8 and_ri8 sub_ri8 cmp_ri8));
    all.extend(cases!(mi BYTE_OR_MORE: add_mi or_mi cmp_mi mov_mi));
    all.extend(cases!(mi8 WIDE: sub_mi8 cmp_mi8));
    all.extend(cases!(bits WIDE: shl_ri shr_ri sar_ri bt_ri bts_ri btr_ri));
    all.extend(cases!(rcl WIDE: shl_rcl shr_rcl sar_rcl));
    all.extend(cases!(r BYTE_OR_MORE: inc_r dec_r not_r neg_r div_r idiv_r));
    all.extend(cases!(r WHOLE: push_r pop_r jmp_r rdpid));
    all.extend(cases!(r BYTES: seto));
    all.extend(cases!(m BYTE_OR_MORE: inc_m dec_m));
    all.extend(cases!(to: push_m pop_m jmp_m call_m));
    all.extend(cases!(none: cdqe cqo int3 lahf pushfq rdtsc ret sahf syscall));
    all.extend(cases!(near: jmp_to call_to jmp_to_long call_to_long));
    all.extend(cases!(label: jmp jmp_short call));
    all.extend(moves());
    all.extend(others());
    all.extend(conditional());
    all
}

/// Returns the instructions that do not share their shape with others.
fn others() -> [Case; 7] {
    [
        ("xchg_rax", |code, choose| {
            let number = 1 + choose.below(15) as u8;
            code.xchg_rax(Reg::whole(number));
            vec![Op::Reg(named(number, Size::Qword)), Op::Reg(Register::RAX)]
        }),
        ("imul_rri", |code, choose| {
            let size = size(choose, &WIDE);
            let ((to, a), (from, b)) = (reg(choose, size), reg(choose, size));
            let (value, c) = number(choose, size);
            code.imul_rri(to, from, value);
            vec![a, b, c]
        }),
        ("test_mi", |code, choose| {
            let ((mem, a), (value, b)) = (based(choose), number(choose, Size::Byte));
            code.test_mi(mem, value as u8);
            vec![a, b]
        }),
        ("lsl_rr", |code, choose| {
            let ((to, a), (from, b)) = (reg(choose, Size::Dword), reg(choose, Size::Dword));
            code.lsl_rr(to, from);
            vec![a, b]
        }),
        ("nop_m", |code, choose| {
            let (mem, a) = based(choose);
            code.nop_m(mem);
            vec![a]
        }),
        ("push_i", |code, choose| {
            let (value, a) = number(choose, Size::Qword);
            code.push_i(value);
            vec![a]
        }),
        ("nop2", |code, _| {
            code.nop2();
            Vec::new()
        }),
    ]
}

/// Returns the moves.
fn moves() -> [Case; 9] {
    [
        ("mov_ri", |code, choose| {
            let size = size(choose, &[Size::Byte, Size::Dword]);
            let ((to, a), (value, b)) = (reg(choose, size), number(choose, size));
            code.mov_ri(to, value);
            vec![a, b]
        }),
        ("mov_mr", |code, choose| {
            let size = size(choose, &SIZES);
            let ((to, a), (from, b)) = (memory(choose), reg(choose, size));
            code.mov_mr(to, from);
            vec![a, b]
        }),
        ("movabs_ri", |code, choose| {
            let (to, a) = reg(choose, Size::Qword);
            let value = choose.number(&[i64::MIN, -1, 0, 1 << 40, i64::MAX]);
            code.movabs_ri(to, value.cast_unsigned());
            vec![a, Op::Number(value.cast_unsigned())]
        }),
        ("mov_rs", |code, choose| {
            let (to, a) = reg(choose, Size::Dword);
            let segment = choose.below(6);
            code.mov_rs(to, segment as u8);
            vec![a, Op::Reg(Register::ES + segment)]
        }),
        ("movzx_rr", |code, choose| {
            let part = size(choose, &SIZES[..2]);
            let ((to, a), (from, b)) = (reg(choose, Size::Dword), reg(choose, part));
            code.movzx_rr(to, from);
            vec![a, b]
        }),
        ("movzx_rm", |code, choose| {
            let part = size(choose, &SIZES[..2]);
            let ((to, a), (from, b)) = (reg(choose, Size::Dword), memory(choose));
            code.movzx_rm(to, part, from);
            vec![a, b]
        }),
        ("movsx_rr", |code, choose| {
            let part = size(choose, &SIZES[..2]);
            let ((to, a), (from, b)) = (reg(choose, Size::Qword), reg(choose, part));
            code.movsx_rr(to, from);
            vec![a, b]
        }),
        ("lea", |code, choose| {
            let size = size(choose, &WIDE);
            let ((to, a), (from, b)) = (reg(choose, size), memory(choose));
            code.lea(to, from);
            vec![a, b]
        }),
        ("lea_label", |code, choose| {
            let (to, a) = reg(choose, Size::Qword);
            let label = code.label();
            code.lea(to, asm::label(label));
            let at = skip(code, choose, label);
            vec![a, Op::Mem(Register::DS, Register::RIP, Register::None, at)]
        }),
    ]
}

/// Returns the instructions with a condition, and those that encode a distance in bytes.
fn conditional() -> [Case; 6] {
    [
        ("set_cc", |code, choose| {
            let (condition, _) = CONDITIONS[choose.below(11) as usize];
            let (to, a) = reg(choose, Size::Byte);
            code.setcc(condition, to);
            vec![Op::Number(condition as u64), a]
        }),
        ("cmov_cc", |code, choose| {
            let (condition, _) = CONDITIONS[choose.below(11) as usize];
            let size = size(choose, &WIDE);
            let ((to, a), (from, b)) = (reg(choose, size), reg(choose, size));
            code.cmovcc(condition, to, from);
            vec![Op::Number(condition as u64), a, b]
        }),
        ("j_cc", |code, choose| {
            let (condition, _) = CONDITIONS[choose.below(11) as usize];
            let label = code.label();
            code.jcc(condition, label);
            let to = skip(code, choose, label);
            vec![Op::Number(condition as u64), Op::To(to)]
        }),
        ("j_cc_short", |code, choose| {
            let (condition, _) = CONDITIONS[choose.below(11) as usize];
            let label = code.label();
            code.jcc_short(condition, label);
            let to = skip(code, choose, label);
            vec![Op::Number(condition as u64), Op::To(to)]
        }),
        ("j_cc_to", |code, choose| {
            let (condition, _) = CONDITIONS[choose.below(11) as usize];
            let to = HERE.wrapping_add_signed(choose.number(&[-0x7FFF_0000, 0, 0x7FFF_0000]));
            code.jcc_to(condition as u8, to);
            vec![Op::Number(condition as u64), Op::To(to)]
        }),
        ("jmp_by", |code, choose| {
            let by = choose.number(&SHORT) as i8;
            code.jmp_by(by);
            vec![Op::To(code.here().wrapping_add_signed(by.into()))]
        }),
    ]
}

/// Returns an operand as it was read.
fn read(insn: &Instruction, index: u32) -> Op {
    match insn.op_kind(index) {
        OpKind::Register => Op::Reg(insn.op_register(index)),
        OpKind::Memory => Op::Mem(
            insn.memory_segment(),
            insn.memory_base(),
            insn.memory_index(),
            insn.memory_displacement64(),
        ),
        OpKind::NearBranch64 => Op::To(insn.near_branch_target()),
        _ => Op::Number(insn.immediate(index)),
    }
}

/// Writes an instruction with chosen operands, and reads it.
///
/// # Panics
/// If it is read as another instruction.
pub fn check((name, write): Case, choose: &mut dyn Choose) {
    let mut bytes = Vec::new();
    let mut code = Code::new(&mut bytes, HERE);
    let locked = name == "xadd_mr" && choose.below(2) == 1;
    if locked {
        code.lock();
    }
    let mut expected = write(&mut code, choose);
    let mut decoder = Decoder::with_ip(64, &bytes, HERE, DecoderOptions::NONE);
    let insn = decoder.decode();
    let mut mnemonic = name.split('_').next().unwrap_or_default().to_owned();
    if name == "movabs_ri" {
        mnemonic = "mov".to_owned();
    }
    if name == "nop2" {
        mnemonic = "nop".to_owned();
    }
    if name.contains("_cc") {
        let condition = expected.remove(0);
        let (_, text) = CONDITIONS
            .into_iter()
            .find(|(one, _)| Op::Number(*one as u64) == condition)
            .expect("a condition");
        mnemonic += text;
    }
    let found = format!("{:?}", insn.mnemonic()).to_lowercase();
    let operands: Vec<Op> = (0..insn.op_count())
        .map(|index| read(&insn, index))
        .collect();
    let text = format!("{name}: {bytes:02x?}");
    assert_ne!(insn.mnemonic(), Mnemonic::INVALID, "{text}");
    assert_eq!(found, mnemonic, "{text}");
    assert_eq!(operands, expected, "{text}");
    assert_eq!(insn.has_lock_prefix(), locked, "{text}");
    if !name.starts_with('j') && !name.starts_with("call") && name != "lea_label" {
        assert_eq!(insn.len(), bytes.len(), "{text}");
    }
}
