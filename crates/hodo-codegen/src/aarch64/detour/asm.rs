//! The steps of detours in instructions.

use alloc::string::{String, ToString};

use crate::aarch64::masm::operand::{Cond, DOUBLE, Extend, NZCV, TPIDR_EL0, mem, near};
use crate::aarch64::masm::{Asm, If, Insns, Label, OutOfRange, small};
use crate::detour::{Arithmetic, Bits, Comparison, Place, Register};
use crate::linked::asm::Assembler;
use crate::reserve::scratch::Preference;
use crate::stub::Layout;
use hodo_isa::aarch64::asm::relax::Op;
use hodo_isa::aarch64::asm::{Reach, Refer, SYSTEM_CALL, SYSTEM_CALL_NOP};
use hodo_isa::aarch64::isa::options;
use hodo_isa::aarch64::regs::{BETWEEN, LINK, PLATFORM, SP, ZERO};
use hodo_isa::aarch64::relocate::{EXIT, Options, relocate_apart};
use hodo_isa::aarch64::steps::FLAGS_BIT;
use hodo_isa::buffer::Laid;
use hodo_isa::linked::Relocated;
use hodo_isa::{Signing, Via};

use super::RETURN_POINT;

/// The register with the number of a system call.
const NUMBER: Register = 8;

/// The instruction for an operator that has one.
const fn operation(how: Arithmetic, signed: bool) -> Option<Op> {
    Some(match (how, signed) {
        (Arithmetic::Or, _) => Op::ORR,
        (Arithmetic::Xor, _) => Op::EOR,
        (Arithmetic::And, _) => Op::AND,
        (Arithmetic::Add, _) => Op::ADD,
        (Arithmetic::Subtract, _) => Op::SUB,
        (Arithmetic::Multiply, _) => Op::MUL,
        (Arithmetic::ShiftLeft, _) => Op::LSL,
        (Arithmetic::ShiftRight, true) => Op::ASR,
        (Arithmetic::ShiftRight, false) => Op::LSR,
        (Arithmetic::Divide, true) => Op::SDIV,
        (Arithmetic::Divide, false) => Op::UDIV,
        (Arithmetic::Remainder, _) => return None,
    })
}

/// The flags after a comparison that holds.
const fn condition(how: Comparison, signed: bool) -> Cond {
    match (how, signed) {
        (Comparison::Equal, _) => Cond::Eq,
        (Comparison::NotEqual, _) => Cond::Ne,
        (Comparison::Less, true) => Cond::Lt,
        (Comparison::Less, false) => Cond::Lo,
        (Comparison::LessEqual, true) => Cond::Le,
        (Comparison::LessEqual, false) => Cond::Ls,
        (Comparison::Greater, true) => Cond::Gt,
        (Comparison::Greater, false) => Cond::Hi,
        (Comparison::GreaterEqual, true) => Cond::Ge,
        (Comparison::GreaterEqual, false) => Cond::Hs,
    }
}

/// `old` = the 8 bytes at `base`, `sum` = the same plus a number, which is stored there. For processors without an
/// instruction that does all of it. Nothing else may be accessed in between.
fn exclusive(
    asm: &mut Asm,
    (old, sum): (Register, Register),
    number: i64,
    status: Register,
    base: Register,
) {
    let again = asm.here();
    asm.ldxr(DOUBLE, old, base);
    Asm::add(asm, sum, old, number);
    asm.stxr(DOUBLE, status, sum, base);
    asm.cbnz_w(status, again);
}

impl Assembler for Asm {
    type Refer = Refer;

    const STACK: Register = SP;
    const ZERO: Register = ZERO;
    const LINK: Register = LINK;
    const RESULT: Register = 0;
    const RUNTIME_LINK: Register = BETWEEN[0];
    /// The frame pointer is left alone: profilers follow it from anywhere. So are the registers that functions
    /// preserve: the agent finds what detours tell it only in those that it stores.
    const PREFERENCE: Preference = Preference {
        free: &[
            9, 10, 11, 12, 13, 14, 15, 8, 16, 17, 7, 6, 5, 4, 3, 2, 1, 0, LINK,
        ],
        // First those that events seldom contain.
        saved: &[
            9, 10, 11, 12, 13, 14, 15, 17, 16, 8, 7, 6, 5, 4, 3, 2, 1, 0, LINK,
        ],
    };
    const FIXED: u32 = FLAGS_BIT | 1 << PLATFORM;
    const FLAGS: bool = true;
    const SYSTEM_CALL: [u8; 4] = SYSTEM_CALL;
    const SYSTEM_CALL_NOP: [u8; 4] = SYSTEM_CALL_NOP;
    const EXIT: u64 = EXIT;

    fn counts(layout: &Layout) -> usize {
        if layout.atomics { 2 } else { 3 }
    }

    fn lay(self, start: u64) -> Result<Laid, OutOfRange> {
        Asm::lay(self, start)
    }

    fn moved(
        place: &Place<'_>,
        code: &[u8],
        to: u64,
        gaps: &[(usize, usize)],
    ) -> Result<Relocated, String> {
        let options = match place.back {
            // What it refers to may be anywhere, and it leaves through pads.
            Via::Kept(_) => Options {
                reach: Reach::Any,
                ..options(place.dead, place.pads)
            },
            _ => options(place.dead, &|_| None),
        };
        relocate_apart(code, place.from, to, &options, gaps).map_err(|error| error.to_string())
    }

    fn leave(&mut self, to: u64, back: Via) -> Result<(), String> {
        match back {
            Via::Nothing => self.refer_to(Refer::Jump(ZERO), to),
            // A return may lead to any instruction of guarded code, other jumps through registers only to landings.
            Via::Free(register) => {
                Insns::li(self, register, to);
                self.ret_by(register);
            }
            // It leads to a pad, which is not guarded.
            Via::Kept(register) => {
                Insns::li(self, register, to);
                self.br(register);
            }
        }
        Ok(())
    }

    fn branch(&mut self, condition: If, left: Register, right: Register, to: Label) {
        Insns::branch(self, condition, left, right, to);
    }

    fn jump(&mut self, to: Label) {
        Asm::jump(self, to);
    }

    fn call(&mut self, to: Label) {
        Asm::call(self, LINK, to);
    }

    fn ret(&mut self) {
        self.ret_by(LINK);
    }

    fn address(&mut self, rd: Register, of: Label) {
        Asm::address(self, rd, of);
    }

    fn call_far(&mut self, to: u64) {
        self.far(to, LINK, LINK);
    }

    /// The runtime is in the same island.
    fn call_runtime(&mut self, to: u64) {
        self.refer_to(Refer::Jump(Self::RUNTIME_LINK), to);
    }

    fn authenticate(&mut self, signing: Signing) {
        match signing {
            Signing::None => {}
            Signing::A => self.autiasp(),
            Signing::B => self.autibsp(),
        }
    }

    fn sign(&mut self, signing: Signing) {
        match signing {
            Signing::None => {}
            Signing::A => self.paciasp(),
            Signing::B => self.pacibsp(),
        }
    }

    fn return_point(&mut self, _: &Layout) {
        self.word(RETURN_POINT);
    }

    fn if_return_point(
        &mut self,
        _: &Layout,
        (found, mark): (Register, Register),
        to: Label,
    ) -> Label {
        let load = Asm::load(self, 4, found, LINK, 0);
        Insns::li(self, mark, RETURN_POINT.into());
        self.eor_w(found, found, mark);
        self.cbz_w(found, to);
        load
    }

    fn li(&mut self, rd: Register, number: u64) {
        Insns::li(self, rd, number);
    }

    fn mv(&mut self, rd: Register, rs: Register) {
        Asm::mv(self, rd, rs);
    }

    fn add(&mut self, rd: Register, left: Register, number: i64) {
        Asm::add(self, rd, left, number);
    }

    fn add_to(&mut self, rd: Register, number: i64, scratch: Register) {
        Asm::add_to(self, rd, number, scratch);
    }

    fn add_stack(&mut self, rd: Register, rs: Register) {
        self.add_extended(rd, SP, rs, (Extend::Uxtx, 0));
    }

    fn stack(&mut self, by: i64, scratch: Register) {
        Asm::add_to(self, SP, by, scratch);
    }

    fn small(number: i64) -> bool {
        small(number)
    }

    fn near(size: u8, distance: i64) -> bool {
        near(size, distance)
    }

    fn load(&mut self, size: u8, rd: Register, base: Register, offset: i64) -> Label {
        Asm::load(self, size, rd, base, offset)
    }

    fn store(&mut self, size: u8, from: Register, base: Register, offset: i64, scratch: Register) {
        Asm::store(self, size, from, base, offset, scratch);
    }

    fn fence_stores(&mut self) {
        self.dmb_ishst();
    }

    fn fence_loads(&mut self) {
        self.dmb_ishld();
    }

    fn fetch_add(
        &mut self,
        layout: &Layout,
        number: i64,
        (old, status): (Register, Register),
        base: Register,
    ) {
        if layout.atomics {
            Insns::li(self, old, number.cast_unsigned());
            return self.ldadd(DOUBLE, old, old, base);
        }
        exclusive(self, (old, old), number, status, base);
        Asm::add(self, old, old, -number);
    }

    fn add_at(
        &mut self,
        layout: &Layout,
        number: i64,
        (scratch, status): (Register, Register),
        base: Register,
    ) {
        if layout.atomics {
            Insns::li(self, scratch, number.cast_unsigned());
            return self.ldadd(DOUBLE, scratch, ZERO, base);
        }
        exclusive(self, (scratch, scratch), number, status, base);
    }

    fn add_word_at(
        &mut self,
        layout: &Layout,
        word: i64,
        (scratch, status): (Register, Register),
        base: Register,
    ) {
        let again = self.here();
        Asm::ld(self, scratch, word, SP);
        if layout.atomics {
            return self.ldadd(DOUBLE, scratch, ZERO, base);
        }
        self.ldxr(DOUBLE, status, base);
        Asm::op(self, Op::ADD, status, status, scratch);
        self.stxr(DOUBLE, scratch, status, base);
        self.cbnz_w(scratch, again);
    }

    fn take(
        &mut self,
        layout: &Layout,
        size: u32,
        (at, end): (Register, Register),
        (block, spare): (Register, Register),
    ) {
        let cursor = match layout.cursor {
            0 => block,
            offset => {
                Asm::add(self, spare, block, offset.into());
                spare
            }
        };
        if layout.atomics {
            Insns::li(self, end, size.into());
            self.ldadd(DOUBLE, end, at, cursor);
            return Asm::op(self, Op::ADD, end, end, at);
        }
        let status = if cursor == block { spare } else { block };
        exclusive(self, (at, end), size.into(), status, cursor);
        if status == block {
            Assembler::block(self, block, layout);
        }
    }

    fn claim(&mut self, base: Register, new: Register, found: Register, to: Label) {
        let again = self.here();
        self.ldxr(DOUBLE.acquire(), found, base);
        self.cbnz(found, to);
        self.stxr(DOUBLE, found, new, base);
        self.cbnz_w(found, again);
    }

    fn block(&mut self, rd: Register, layout: &Layout) {
        self.mrs(rd, TPIDR_EL0);
        Asm::ld(self, rd, layout.block.into(), rd);
    }

    fn block_again(&mut self, rd: Register, layout: &Layout) {
        if !layout.atomics {
            Assembler::block(self, rd, layout);
        }
    }

    fn thread_pointer(&mut self, rd: Register) {
        self.mrs(rd, TPIDR_EL0);
    }

    fn rdtime(&mut self, rd: Register) {
        Insns::rdtime(self, rd);
    }

    fn upper_half(&mut self, rd: Register, number: u32, _: Register) {
        self.movk(rd, number as u16, 2);
        self.movk(rd, (number >> 16) as u16, 3);
    }

    fn keep_flags(&mut self, scratch: Register, at: i64) {
        self.mrs(scratch, NZCV);
        self.str(scratch, mem(SP, at));
    }

    fn restore_flags(&mut self, scratch: Register, at: i64) {
        self.ldr(scratch, mem(SP, at));
        self.msr(NZCV, scratch);
    }

    fn unless_call(&mut self, number: u32, scratch: Register, to: Label) {
        Insns::li(self, scratch, number.into());
        self.eor_w(scratch, scratch, NUMBER);
        self.cbnz_w(scratch, to);
    }

    fn in_instruction(how: Arithmetic, number: i64) -> Option<i64> {
        let number = match how {
            Arithmetic::ShiftLeft | Arithmetic::ShiftRight => number & 63,
            Arithmetic::Subtract => number.wrapping_neg(),
            _ => number,
        };
        let op = match how {
            Arithmetic::Subtract => Op::ADD,
            how => operation(how, false)?,
        };
        op.takes(number).then_some(number)
    }

    fn op_number(
        &mut self,
        (how, signed): (Arithmetic, bool),
        rd: Register,
        rs: Register,
        number: i64,
    ) {
        let op = match how {
            Arithmetic::Subtract => Op::ADD,
            how => operation(how, signed).expect("an operator with a number"),
        };
        self.op_imm(op, rd, rs, number);
    }

    fn op(&mut self, how: Arithmetic, rd: Register, left: Register, right: Register) {
        let op = operation(how, false).expect("one instruction");
        Asm::op(self, op, rd, left, right);
    }

    fn combine(
        &mut self,
        (how, signed): (Arithmetic, bool),
        rd: Register,
        (left, right): (Register, Register),
        scratch: Register,
    ) {
        match (operation(how, signed), signed) {
            (Some(op), _) => Asm::op(self, op, rd, left, right),
            (None, true) => {
                self.sdiv(scratch, left, right);
                self.msub(rd, scratch, right, left);
            }
            (None, false) => {
                self.udiv(scratch, left, right);
                self.msub(rd, scratch, right, left);
            }
        }
    }

    fn compare(
        &mut self,
        (how, signed): (Comparison, bool),
        rd: Register,
        (left, right): (Register, Register),
    ) {
        self.cmp(left, right);
        self.cset(rd, condition(how, signed));
    }

    fn cut(&mut self, rd: Register, bits: Bits) {
        match (bits.shift, bits.width, bits.signed) {
            (0, 64, _) => {}
            (shift, width, true) => self.sbfx(rd, rd, shift, width),
            (shift, width, false) => self.ubfx(rd, rd, shift, width),
        }
    }

    fn complement(&mut self, rd: Register) {
        self.mvn(rd, rd);
    }

    fn count_bits(&mut self, rd: Register, (all, _): (Register, Register)) {
        self.clz(rd, rd);
        Insns::li(self, all, 64);
        self.sub(rd, all, rd);
    }
}
