//! Code with labels: branches become as long as they have to be when all of it is known.

use alloc::vec::Vec;

use super::short::short;
use crate::buffer::Label;
use hodo_isa::riscv64::asm::{OutOfRange, fits, split};
use hodo_isa::riscv64::encode::{
    AMO, AUIPC, FENCE_LOADS, FENCE_STORES, JALR, LOAD, LUI, OP, OP_IMM, OP_IMM_32, STORE, b, i, j,
    r, rdtime, s, u,
};
use hodo_isa::riscv64::regs::{RA, SP, ZERO};

/// Conditions of branches between two registers, as their three bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::riscv64) enum If {
    Equal = 0,
    NotEqual = 1,
    Less = 4,
    NotLess = 5,
    Below = 6,
    NotBelow = 7,
}

/// Operations between two registers: three bits, and seven.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::riscv64) struct Op(u32, u32);

impl Op {
    pub(in crate::riscv64) const ADD: Self = Self(0, 0);
    pub(in crate::riscv64) const SUB: Self = Self(0, 0x20);
    pub(in crate::riscv64) const SLL: Self = Self(1, 0);
    pub(in crate::riscv64) const SLT: Self = Self(2, 0);
    pub(in crate::riscv64) const SLTU: Self = Self(3, 0);
    pub(in crate::riscv64) const XOR: Self = Self(4, 0);
    pub(in crate::riscv64) const SRL: Self = Self(5, 0);
    pub(in crate::riscv64) const SRA: Self = Self(5, 0x20);
    pub(in crate::riscv64) const OR: Self = Self(6, 0);
    pub(in crate::riscv64) const AND: Self = Self(7, 0);
    pub(in crate::riscv64) const MUL: Self = Self(0, 1);
    pub(in crate::riscv64) const DIV: Self = Self(4, 1);
    pub(in crate::riscv64) const DIVU: Self = Self(5, 1);
    pub(in crate::riscv64) const REM: Self = Self(6, 1);
    pub(in crate::riscv64) const REMU: Self = Self(7, 1);

    /// With a constant of 12 bits in place of the second register, if there is such an instruction; shifts take six
    /// bits.
    fn immediate(self) -> Option<u32> {
        (self.1 == 0).then_some(self.0)
    }
}

#[derive(Debug)]
enum Item {
    Code(Vec<u8>),
    /// A branch; wide: over a jump, by the opposite condition.
    Branch(If, u8, u8, Label, bool),
    Jump(Label),
    Call(u8, Label),
    /// An address of this code in a register.
    Address(u8, Label),
    /// A jump or call to an address within 2 GiB: where to, the register for it, the link.
    Far(u64, u8, u8),
    Bind(Label),
    /// Bytes that come from elsewhere.
    Hole(usize),
}

impl Item {
    fn len(&self) -> usize {
        match self {
            Self::Code(code) => code.len(),
            Self::Branch(.., wide) => 4 + 4 * usize::from(*wide),
            Self::Jump(_) | Self::Call(..) => 4,
            Self::Address(..) | Self::Far(..) => 8,
            Self::Bind(_) => 0,
            Self::Hole(len) => *len,
        }
    }
}

/// Code that is being written.
#[derive(Debug, Default)]
pub(in crate::riscv64) struct Asm {
    items: Vec<Item>,
    labels: usize,
}

/// Code whose addresses are known.
#[derive(Debug)]
pub(in crate::riscv64) struct Laid {
    pub(in crate::riscv64) bytes: Vec<u8>,
    pub(in crate::riscv64) labels: Offsets,
}

/// The offsets of labels.
#[derive(Debug)]
pub(in crate::riscv64) struct Offsets(Vec<u64>);

impl Offsets {
    /// That of a label, which must be bound.
    pub(in crate::riscv64) fn at(&self, label: Label) -> u64 {
        self.0[label.index()]
    }
}

impl Asm {
    pub(in crate::riscv64) fn label(&mut self) -> Label {
        self.labels += 1;
        Label::new(self.labels - 1)
    }

    pub(in crate::riscv64) fn bind(&mut self, label: Label) {
        self.items.push(Item::Bind(label));
    }

    /// A label of what comes next.
    pub(in crate::riscv64) fn here(&mut self) -> Label {
        let label = self.label();
        self.bind(label);
        label
    }

    pub(in crate::riscv64) fn raw(&mut self, bytes: &[u8]) {
        match self.items.last_mut() {
            Some(Item::Code(code)) => code.extend_from_slice(bytes),
            _ => self.items.push(Item::Code(bytes.to_vec())),
        }
    }

    /// An instruction, as 16 bits where it has such a form.
    pub(in crate::riscv64) fn word(&mut self, word: u32) {
        match short(word) {
            Some(half) => self.raw(&half.to_le_bytes()),
            None => self.raw(&word.to_le_bytes()),
        }
    }

    pub(in crate::riscv64) fn hole(&mut self, len: usize) {
        self.items.push(Item::Hole(len));
    }

    pub(in crate::riscv64) fn branch(&mut self, condition: If, left: u8, right: u8, to: Label) {
        self.items
            .push(Item::Branch(condition, left, right, to, false));
    }

    pub(in crate::riscv64) fn jump(&mut self, to: Label) {
        self.items.push(Item::Jump(to));
    }

    pub(in crate::riscv64) fn call(&mut self, link: u8, to: Label) {
        self.items.push(Item::Call(link, to));
    }

    pub(in crate::riscv64) fn address(&mut self, rd: u8, of: Label) {
        self.items.push(Item::Address(rd, of));
    }

    pub(in crate::riscv64) fn far(&mut self, to: u64, register: u8, link: u8) {
        self.items.push(Item::Far(to, register, link));
    }

    pub(in crate::riscv64) fn ret(&mut self) {
        self.word(i(JALR, 0, ZERO, RA, 0));
    }

    pub(in crate::riscv64) fn mv(&mut self, rd: u8, rs: u8) {
        if rd != rs {
            self.word(i(OP_IMM, 0, rd, rs, 0));
        }
    }

    pub(in crate::riscv64) fn op(&mut self, op: Op, rd: u8, left: u8, right: u8) {
        self.word(r(OP, op.0, op.1, rd, left, right));
    }

    /// With a constant: of 12 bits with the sign, as [`small`] says; for shifts of six.
    pub(in crate::riscv64) fn op_imm(&mut self, op: Op, rd: u8, left: u8, value: i64) {
        let value = match op {
            Op::SRA => value | 0x400,
            _ => value,
        };
        debug_assert!(op == Op::SRA || op.immediate().is_some());
        self.word(i(OP_IMM, op.0, rd, left, value));
    }

    /// Adds a constant, for which `rd` must be another register if it is not [`small`].
    pub(in crate::riscv64) fn add(&mut self, rd: u8, left: u8, value: i64) {
        if small(value) {
            if rd != left || value != 0 {
                self.op_imm(Op::ADD, rd, left, value);
            }
            return;
        }
        debug_assert_ne!(rd, left);
        self.li(rd, value.cast_unsigned());
        self.op(Op::ADD, rd, rd, left);
    }

    /// Adds a constant to a register. Clobbers `scratch` if it is not [`small`].
    pub(in crate::riscv64) fn add_to(&mut self, rd: u8, value: i64, scratch: u8) {
        if small(value) {
            return self.add(rd, rd, value);
        }
        let (high, low) = split(value);
        self.li(scratch, high.cast_unsigned());
        self.op(Op::ADD, rd, rd, scratch);
        self.add(rd, rd, low);
    }

    /// `addiw rd, rd, 0`
    pub(in crate::riscv64) fn extend_word(&mut self, rd: u8) {
        self.word(i(OP_IMM_32, 0, rd, rd, 0));
    }

    /// Puts a number into a register.
    pub(in crate::riscv64) fn li(&mut self, rd: u8, value: u64) {
        let value = value.cast_signed();
        if small(value) {
            self.op_imm(Op::ADD, rd, ZERO, value);
            return;
        }
        let (high, low) = split(value);
        if i32::try_from(value).is_ok() {
            self.word(u(LUI, rd, high));
            if low != 0 {
                // The sum of 32 bits wraps around where the upper part has become too large.
                self.word(i(OP_IMM_32, 0, rd, rd, low));
            }
            return;
        }
        let zeros = high.trailing_zeros();
        self.li(rd, (high >> zeros).cast_unsigned());
        self.op_imm(Op::SLL, rd, rd, zeros.into());
        if low != 0 {
            self.op_imm(Op::ADD, rd, rd, low);
        }
    }

    /// Loads 1, 2, 4 or 8 bytes, extended by zeros, from a base plus an offset. The base may be the register that is
    /// loaded if the offset is [`small`]. Gives the label of what may fault.
    pub(in crate::riscv64) fn load(&mut self, size: u8, rd: u8, base: u8, offset: i64) -> Label {
        let f3 = match size {
            1 => 4,
            2 => 5,
            4 => 6,
            _ => 3,
        };
        let (base, offset) = self.base(rd, base, offset);
        let at = self.here();
        self.word(i(LOAD, f3, rd, base, offset));
        at
    }

    /// Loads 2 bytes with their sign. Gives the label of what may fault.
    pub(in crate::riscv64) fn load_signed_half(&mut self, rd: u8, base: u8, offset: i64) -> Label {
        let at = self.here();
        self.word(i(LOAD, 1, rd, base, offset));
        at
    }

    /// Stores the lower 1, 2, 4 or 8 bytes. `scratch` is overwritten if the offset is not [`small`].
    pub(in crate::riscv64) fn store(
        &mut self,
        size: u8,
        from: u8,
        base: u8,
        offset: i64,
        scratch: u8,
    ) {
        let f3 = size.trailing_zeros();
        debug_assert!(small(offset) || scratch != from);
        let (base, offset) = self.base(scratch, base, offset);
        self.word(s(STORE, f3, from, base, offset));
    }

    /// A base and an offset that an instruction can have in it.
    fn base(&mut self, scratch: u8, base: u8, offset: i64) -> (u8, i64) {
        if small(offset) {
            return (base, offset);
        }
        debug_assert_ne!(scratch, base);
        // What cannot be written is led elsewhere, by this base, and from there on upwards.
        let low = offset & 0x7FF;
        self.li(scratch, (offset - low).cast_unsigned());
        self.op(Op::ADD, scratch, scratch, base);
        (scratch, low)
    }

    pub(in crate::riscv64) fn ld(&mut self, rd: u8, base: u8, offset: i64) {
        self.load(8, rd, base, offset);
    }

    /// `amoadd.d rd, add, (address)`
    pub(in crate::riscv64) fn amo_add(&mut self, rd: u8, add: u8, address: u8) {
        self.word(r(AMO, 3, 0, rd, address, add));
    }

    /// `lr.d rd, (address)`, and loads after it come later.
    pub(in crate::riscv64) fn lr(&mut self, rd: u8, address: u8) {
        self.word(r(AMO, 3, 0x02 << 2 | 2, rd, address, 0));
    }

    /// `sc.d rd, from, (address)`
    pub(in crate::riscv64) fn sc(&mut self, rd: u8, from: u8, address: u8) {
        self.word(r(AMO, 3, 0x03 << 2, rd, address, from));
    }

    /// Stores before this come before stores after it.
    pub(in crate::riscv64) fn fence_stores(&mut self) {
        self.word(FENCE_STORES);
    }

    /// Loads before this come before loads after it.
    pub(in crate::riscv64) fn fence_loads(&mut self) {
        self.word(FENCE_LOADS);
    }

    /// `rdtime rd`
    pub(in crate::riscv64) fn time(&mut self, rd: u8) {
        self.word(rdtime(rd));
    }

    /// Adds to the stack pointer a multiple of 16 that is [`small`].
    pub(in crate::riscv64) fn stack(&mut self, value: i64) {
        self.op_imm(Op::ADD, SP, SP, value);
    }

    /// Bytes that it has, with branches that are not wide.
    pub(in crate::riscv64) fn len(&self) -> usize {
        self.items.iter().map(Item::len).sum()
    }

    /// Offsets of the labels, with branches as wide as they are.
    fn offsets(&self) -> Offsets {
        let mut labels = vec![0; self.labels];
        let mut at = 0;
        for item in &self.items {
            if let Item::Bind(label) = item {
                labels[label.index()] = at;
            }
            at += item.len() as u64;
        }
        Offsets(labels)
    }

    /// Makes branches as wide as they have to be. Gives the offset of each label.
    pub(in crate::riscv64) fn settle(&mut self) -> Offsets {
        loop {
            let labels = self.offsets();
            let mut changed = false;
            let mut at = 0;
            for item in &mut self.items {
                if let Item::Branch(.., to, wide @ false) = item {
                    *wide = !fits(distance(at, labels.at(*to)), 13);
                    changed |= *wide;
                    at += 4;
                } else {
                    at += item.len() as u64;
                }
            }
            if !changed {
                return labels;
            }
        }
    }

    /// Changes the lengths of the holes.
    pub(in crate::riscv64) fn set_holes(&mut self, lengths: &[usize]) {
        let holes = self.items.iter_mut().filter_map(|item| match item {
            Item::Hole(len) => Some(len),
            _ => None,
        });
        for (hole, length) in holes.zip(lengths) {
            *hole = *length;
        }
    }

    /// The bytes at an address. Holes are full of breakpoints.
    pub(in crate::riscv64) fn lay(mut self, start: u64) -> Result<Laid, OutOfRange> {
        let labels = self.settle();
        let mut bytes = Vec::new();
        for item in &self.items {
            let here = start.wrapping_add(bytes.len() as u64);
            let to = |label: Label| distance(here, start.wrapping_add(labels.at(label)));
            let pair = |to: i64| {
                let (high, low) = split(to);
                fits(high, 32).then_some((high, low)).ok_or(OutOfRange)
            };
            let near = |to: i64| fits(to, 21).then_some(to).ok_or(OutOfRange);
            let mut word = |word: u32| bytes.extend_from_slice(&word.to_le_bytes());
            match *item {
                Item::Code(ref code) => bytes.extend_from_slice(code),
                Item::Branch(condition, left, right, label, false) => {
                    word(b(condition as u32, left, right, to(label)));
                }
                Item::Branch(condition, left, right, label, true) => {
                    word(b(condition as u32 ^ 1, left, right, 8));
                    word(j(ZERO, near(to(label) - 4)?));
                }
                Item::Jump(label) => word(j(ZERO, near(to(label))?)),
                Item::Call(link, label) => word(j(link, near(to(label))?)),
                Item::Address(rd, label) => {
                    let (high, low) = pair(to(label))?;
                    word(u(AUIPC, rd, high));
                    word(i(OP_IMM, 0, rd, rd, low));
                }
                Item::Far(address, register, link) => {
                    let (high, low) = pair(distance(here, address))?;
                    word(u(AUIPC, register, high));
                    word(i(JALR, 0, link, register, low));
                }
                Item::Bind(_) => {}
                Item::Hole(len) => bytes.extend([0x02, 0x90].into_iter().cycle().take(len)),
            }
        }
        Ok(Laid { bytes, labels })
    }
}

fn distance(from: u64, to: u64) -> i64 {
    to.wrapping_sub(from).cast_signed()
}

/// Whether instructions can have a number in them: 12 bits with the sign.
pub(in crate::riscv64) fn small(value: i64) -> bool {
    fits(value, 12)
}
