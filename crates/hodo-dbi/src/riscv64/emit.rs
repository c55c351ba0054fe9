//! How the program's instructions are translated.
//!
//! Return addresses are the original ones: a call puts the program's own address into its register, and a jump through
//! a register looks up where the cache continues. Such a jump needs a register for that address, which the program may
//! use, too: its value stays on the stack, and the code to which the table leads, a *landing*, restores it. So threads
//! come to a landing from the table and from exits, and directly to what follows it from jumps.
//!
//! What is below the stack pointer belongs to nobody (psABI, "Procedure Calling Convention"), so values are kept there.
//! A thread that takes a signal in between has its values restored before the kernel writes there.

use hodo_isa::buffer::Label;
use hodo_isa::riscv64::asm::ops::Insns;
use hodo_isa::riscv64::asm::{Code, If, Refer};
use hodo_isa::riscv64::decode::operand::{imm_b, imm_i, imm_j, imm_u};
use hodo_isa::riscv64::decode::{Insn, Kind};
use hodo_isa::riscv64::regs::{SP, T0, T1, ZERO};

use crate::fixups::Depends;
use crate::table;
use crate::translate::{Bytes, Emit, Saved, Set, Translator};

/// RISC-V.
pub(crate) enum Riscv64 {}

type Translating<'t, 'c, 'r> = &'t mut Translator<'c, 'r, Riscv64>;

const T2: u8 = 7;
/// The register by which threads come to a landing.
const LEADS: u8 = T1;
/// The registers that a jump through a register needs, and where each is kept, from the stack pointer. The places in
/// this list are the bits of [`Saved::kept`].
const KEPT: [(u8, i64); 3] = [(LEADS, -8), (T0, -16), (T2, -24)];

/// Code that is put elsewhere.
pub(crate) enum Cold {
    /// Where the table leads for an instruction.
    Landing(u64),
}

impl<'c> Emit<'c> for Code<'c> {
    type Reference = Refer;

    fn begin(bytes: &'c mut Vec<u8>, base: u64) -> Self {
        Self::new(bytes, base)
    }

    fn jmp(&mut self, to: Label) {
        self.jal(ZERO, to);
    }

    fn jmp_to(&mut self, to: u64) {
        let jump = self.jump(to, hodo_isa::riscv64::asm::Reach::Jump, ZERO);
        debug_assert!(jump.is_ok(), "it is within reach");
    }
}

impl Set for Riscv64 {
    type Code<'c> = Code<'c>;
    type Insn = Insn;
    type Facts = ();
    type Cold = Cold;
    type Own = ();

    const REACH: u64 = 1 << 19;
    const IS_ENTERED_ANYWHERE: bool = false;

    fn decode(bytes: &Bytes, len: usize) -> Option<Insn> {
        let insn = Insn::new(&bytes[..len.min(4)], 0);
        (insn.kind != Kind::Invalid).then_some(insn)
    }

    fn is_cut(bytes: &Bytes, len: usize) -> bool {
        let is_long = bytes[0] & 3 == 3;
        len < if is_long { 4 } else { 2 }
    }

    fn len(insn: Insn) -> u64 {
        insn.len.into()
    }

    fn instruction(
        translator: Translating<'_, '_, '_>,
        pc: u64,
        bytes: &Bytes,
        insn: Insn,
    ) -> bool {
        let next = pc + u64::from(insn.len);
        match insn.kind {
            Kind::Branch => {
                branch(translator, insn, pc.wrapping_add_signed(imm_b(insn.word)));
                true
            }
            Kind::Jal => {
                let to = pc.wrapping_add_signed(imm_j(insn.word));
                link(translator, pc, insn.rd(), next);
                if insn.rd() != ZERO {
                    translator.called(to);
                    translator.point(to, None);
                }
                translator.jump_to(to);
                // The program returns there.
                insn.rd() != ZERO
            }
            Kind::Jalr if insn.rd() == SP => {
                // Nothing is known of the stack then. No compiler writes this.
                translator.code.raw(&INVALID);
                false
            }
            Kind::Jalr => {
                jump_through_register(translator, pc, insn, next);
                insn.rd() != ZERO
            }
            Kind::Auipc => {
                let value = pc.wrapping_add_signed(imm_u(insn.word));
                if insn.rd() != ZERO {
                    literal(translator, insn.rd(), value, Some(Depends::Original));
                }
                true
            }
            Kind::Unimp => {
                translator.code.raw(&bytes[..usize::from(insn.len)]);
                false
            }
            _ => {
                translator.code.raw(&bytes[..usize::from(insn.len)]);
                true
            }
        }
    }

    fn invalid(translator: Translating<'_, '_, '_>, _: &Bytes) {
        // It is no instruction here, either.
        translator.code.raw(&INVALID);
    }

    fn cold(translator: Translating<'_, '_, '_>, cold: Cold) {
        let Cold::Landing(pc) = cold;
        translator.set_point(pc, kept(1));
        translator.returns_here(pc);
        restore(translator, 0);
        translator.point(pc, None);
        translator.jump_to(pc);
    }

    fn landing(pc: u64) -> Option<Cold> {
        Some(Cold::Landing(pc))
    }

    fn exit(translator: Translating<'_, '_, '_>, target: u64, cell: Label) -> u64 {
        translator.point(target, None);
        keep(translator, 0);
        translator.set_point(target, kept(1));
        translator.code.address_of_label(LEADS, cell);
        translator.code.ld(LEADS, 0, LEADS);
        translator.code.jr(LEADS);
        let trap = translator.code.here();
        translator.set_point(target, kept(1));
        translator.code.raw(&BREAKPOINT);
        trap
    }
}

/// `ebreak`, of four bytes: a thread that continues is never where it is after it.
const BREAKPOINT: [u8; 4] = 0x0010_0073u32.to_le_bytes();
/// `unimp`
const INVALID: [u8; 4] = 0xC000_1073u32.to_le_bytes();

/// The first registers of the list are on the stack.
const fn kept(count: u8) -> Saved {
    Saved::kept((1 << count) - 1)
}

/// Keeps a register of the list.
fn keep(translator: Translating<'_, '_, '_>, place: usize) {
    let (register, at) = KEPT[place];
    translator.code.sd(register, at, SP);
}

/// Restores it.
fn restore(translator: Translating<'_, '_, '_>, place: usize) {
    let (register, at) = KEPT[place];
    translator.code.ld(register, at, SP);
}

/// Loads a number that is among the code.
fn literal(
    translator: Translating<'_, '_, '_>,
    register: u8,
    value: u64,
    depends: Option<Depends>,
) {
    let code = &mut translator.code;
    let [number, after] = [(); 2].map(|()| code.label());
    code.address_of_label(register, number);
    code.ld(register, 0, register);
    code.jal(ZERO, after);
    code.bind(number);
    code.raw(&value.to_le_bytes());
    if let Some(depends) = depends {
        translator.fix(depends, 8, 0);
    }
    translator.code.bind(after);
}

/// A call puts the program's address after it into a register, and has it translated.
fn link(translator: Translating<'_, '_, '_>, pc: u64, register: u8, back: u64) {
    if register == ZERO {
        return;
    }
    translator.point(pc, None);
    literal(translator, register, back, Some(Depends::Original));
    translator.put_near_later(Cold::Landing(back));
}

/// A branch: the opposite one over a jump, which leads farther.
fn branch(translator: Translating<'_, '_, '_>, insn: Insn, to: u64) {
    let opposite = match insn.word >> 12 & 7 {
        0 => If::NotEqual,
        1 => If::Equal,
        4 => If::NotLess,
        5 => If::Less,
        6 => If::NotBelow,
        _ => If::Below,
    };
    let over = translator.code.label();
    translator
        .code
        .branch(opposite, insn.rs1(), insn.rs2(), over);
    translator.jump_to(to);
    translator.code.bind(over);
}

/// `jalr`: the program's address of the target is looked up in the table.
fn jump_through_register(translator: Translating<'_, '_, '_>, pc: u64, insn: Insn, back: u64) {
    /// The bits of an address that are the number of its entry.
    const BITS: u8 = table::MASK.count_ones() as u8;
    const SHIFT: u8 = table::SHARED.trailing_zeros() as u8;
    const ENTRY: u8 = table::ENTRY.trailing_zeros() as u8;
    for place in 0..KEPT.len() {
        keep(translator, place);
        translator.set_point(pc, kept(place as u8 + 1));
    }
    translator.code.addi(LEADS, insn.rs1(), imm_i(insn.word));
    translator.code.andi(LEADS, LEADS, -2);
    translator.code.srli(T2, LEADS, SHIFT);
    translator.code.slli(T2, T2, 64 - BITS);
    translator.code.srli(T2, T2, 64 - BITS - ENTRY);
    let table = translator.table();
    literal(translator, T0, table, None);
    translator.code.add(T2, T2, T0);
    let [look, found, jump] = [(); 3].map(|()| translator.code.label());
    translator.code.bind(look);
    translator.code.ld(T0, 0, T2);
    translator.code.branch(If::Equal, T0, LEADS, found);
    translator.code.addi(T2, T2, table::ENTRY.into());
    translator.code.branch(If::NotEqual, T0, ZERO, look);
    let trap = translator.code.here();
    translator.code.raw(&BREAKPOINT);
    translator.misses_at(trap);
    translator.code.jal(ZERO, jump);
    translator.code.bind(found);
    translator.code.ld(LEADS, 8, T2);
    translator.code.bind(jump);
    if insn.rd() != ZERO {
        literal(translator, T0, back, Some(Depends::Original));
        match KEPT.iter().find(|(register, _)| *register == insn.rd()) {
            Some(&(_, at)) => translator.code.sd(T0, at, SP),
            None => translator.code.addi(insn.rd(), T0, 0),
        }
        translator.put_near_later(Cold::Landing(back));
    }
    for place in 1..KEPT.len() {
        restore(translator, place);
    }
    translator.code.jr(LEADS);
}
