//! Vector and mask registers of inserted code.
//!
//! They follow the rules of general registers: what the program has in one that is needed goes to a slot of the
//! thread's block, and comes back when an instruction of the program uses it, or at the end of the fragment. A register
//! that an instruction of the program overwrites as a whole need not come back.

use hodo_codegen::reserve::{Ahead, REGISTERS, Shares};
use hodo_isa::x86_64::asm::{Mem, WideOp, WidePlace, gs};

use super::banks::{Masks, Vectors, used, vector_bytes};
use super::block;
use super::lower::Lowering;
use crate::fragment::{Instruction, Item};
use crate::inserted::{Active, Compute, Lanes, ScratchMask, ScratchVector, Step, VectorStep, Wide};
use crate::translate::Saved;

impl Lowering<'_, '_, '_> {
    /// Brings everything of the program back, at the end of a fragment.
    pub(super) fn wide_bring_back_all(&mut self) {
        self.vectors.drop_holders();
        self.masks.drop_holders();
        Vectors::bring_back_all(self);
        Masks::bring_back_all(self);
    }

    /// Whether nothing is moved, and nothing reserved.
    fn is_wide_idle(&self) -> bool {
        self.vectors.is_idle() && self.masks.is_idle()
    }

    /// An instruction of the program comes next: it finds what it reads.
    pub(super) fn wide_before(&mut self, instruction: &Instruction) {
        if !self.is_wide_idle() {
            let [vectors, masks] = used(instruction.facts.insn());
            Vectors::before(self, vectors.reads, vectors.changed);
            Masks::before(self, masks.reads, masks.changed);
        }
    }

    /// It was executed.
    pub(super) fn wide_after(&mut self, instruction: &Instruction) {
        if !self.is_wide_idle() {
            let [vectors, masks] = used(instruction.facts.insn());
            self.vectors.after(vectors.changed);
            self.masks.after(masks.changed);
        }
    }

    /// All lanes are complete, and their registers are going to be set.
    pub(super) fn wide_end_lanes(&mut self, lanes: Lanes) {
        let data = (!lanes.stores).then_some(Active::Vector(lanes.data));
        let active = lanes.has_progress().then_some(lanes.active);
        for register in data.into_iter().chain(active) {
            match register {
                Active::Vector(number) => {
                    Vectors::evict(self, number);
                    self.vectors.forget(number);
                }
                Active::Mask(number) => {
                    Masks::evict(self, number);
                    self.masks.forget(number);
                }
            }
        }
    }

    /// The register in which a vector or mask of inserted code is.
    fn wide_register(&mut self, wide: Wide) -> u8 {
        match wide {
            Wide::Vector(vector) => Vectors::register(self, vector),
            Wide::Mask(mask) => Masks::register(self, mask),
        }
    }

    /// How far away the next instruction is that uses each vector or mask, up to where this one is released.
    fn next_wide_uses(&self, wide: Wide) -> [usize; REGISTERS] {
        let index = match wide {
            Wide::Vector(_) => 0,
            Wide::Mask(_) => 1,
        };
        let rest = self.rest();
        let is_end = |item: &Item| matches!(item, Item::Inserted(Step::ReleaseWide(other)) if *other == wide);
        let end = rest.iter().position(is_end).unwrap_or(rest.len());
        let mut soon = [end; REGISTERS];
        for (place, item) in rest[..end].iter().enumerate().rev() {
            if let Item::Instruction(instruction) = item {
                let used = used(instruction.facts.insn())[index];
                for number in (0..32).filter(|n| (used.reads | used.changed) >> n & 1 == 1) {
                    soon[number] = place;
                }
            }
        }
        soon
    }

    /// From here on, a vector or mask is there.
    pub(super) fn wide_reserve(&mut self, wide: Wide) {
        match wide {
            Wide::Vector(vector) => self.vectors.reserve(vector),
            Wide::Mask(mask) => self.masks.reserve(mask),
        }
    }

    /// From here on, it is not there any more. In code that may be skipped, it stays until the end of that.
    pub(super) fn wide_release(&mut self, wide: Wide) {
        match wide {
            Wide::Vector(vector) => Vectors::release(self, vector),
            Wide::Mask(mask) => Masks::release(self, mask),
        }
    }

    /// Gives everything a place that steps use.
    pub(super) fn wide_prepare(&mut self, steps: &[Step]) {
        let (mut vectors, mut masks) = (Ahead::default(), Ahead::default());
        for step in steps {
            match *step {
                Step::ReserveWide(Wide::Vector(one)) => vectors.reserve(&mut self.vectors, one),
                Step::ReserveWide(Wide::Mask(one)) => masks.reserve(&mut self.masks, one),
                Step::ReleaseWide(Wide::Vector(one)) => vectors.release(&self.vectors, one, false),
                Step::ReleaseWide(Wide::Mask(one)) => masks.release(&self.masks, one, false),
                _ => {}
            }
            for wide in step.wide() {
                match wide {
                    Wide::Vector(one) => vectors.uses(self, one),
                    Wide::Mask(one) => masks.uses(self, one),
                }
            }
        }
    }

    /// Does something with vectors and masks.
    pub(super) fn wide_step(&mut self, step: VectorStep) {
        let len = vector_bytes() as u8;
        let vector = Wide::Vector;
        let temporary = WidePlace::Block(block::ELEMENTS);
        match step {
            VectorStep::Load(to, base, displacement) => {
                let (base, to) = (self.register(base), self.wide_register(vector(to)));
                let from = WidePlace::At(base, displacement);
                self.translator.code.wide_load(to, from, len);
            }
            VectorStep::Store(base, displacement, from) => {
                let (base, from) = (self.register(base), self.wide_register(vector(from)));
                let to = WidePlace::At(base, displacement);
                self.translator.code.wide_store(to, from, len);
            }
            VectorStep::Fill(to, from) => {
                let (from, to) = (self.register(from), self.wide_register(vector(to)));
                self.translator.code.mov_mr(gs(block::ELEMENTS), from);
                self.translator.code.wide_fill(to, temporary, len);
            }
            VectorStep::Copy(to, from) => {
                let from = self.wide_register(vector(from));
                let to = self.wide_register(vector(to));
                let from = WidePlace::Register(from);
                self.translator.code.wide_load(to, from, len);
            }
            VectorStep::Program(to, number) => self.wide_program(vector(to), number),
            VectorStep::ProgramMask(to, number) => self.wide_program(Wide::Mask(to), number),
            VectorStep::Element(to, from, number) => {
                let (to, from) = (self.register(to), self.wide_register(vector(from)));
                self.translator.code.wide_store(temporary, from, len);
                self.translator.code.mov_rm(to, element(number));
            }
            VectorStep::SetElement(to, number, from) => {
                let (from, to) = (self.register(from), self.wide_register(vector(to)));
                self.translator.code.wide_store(temporary, to, len);
                self.translator.code.mov_mr(element(number), from);
                self.translator.code.wide_load(to, temporary, len);
            }
            VectorStep::Compute(compute, to, from) => {
                let from = self.wide_register(vector(from));
                let to = self.wide_register(vector(to));
                let op = match compute {
                    Compute::Add => WideOp::Add,
                    Compute::Subtract => WideOp::Subtract,
                    Compute::And => WideOp::And,
                    Compute::Or => WideOp::Or,
                    Compute::Xor => WideOp::Xor,
                };
                self.translator.code.wide_compute(op, to, from, len);
            }
            VectorStep::SetMask(to, from) => {
                let (from, to) = (self.register(from), self.wide_register(Wide::Mask(to)));
                self.translator.code.mask_set(to, from);
            }
            VectorStep::Bits(to, from) => {
                let (to, from) = (self.register(to), self.wide_register(Wide::Mask(from)));
                self.translator.code.mask_get(to, from);
            }
            VectorStep::Equal(to, one, other) => {
                let one = self.wide_register(vector(one));
                let other = self.wide_register(vector(other));
                let to = self.wide_register(Wide::Mask(to));
                self.translator.code.wide_equal(to, one, other);
            }
            VectorStep::Select(to, mask, from) => {
                let from = self.wide_register(vector(from));
                let to = self.wide_register(vector(to));
                let mask = self.wide_register(Wide::Mask(mask));
                self.translator.code.wide_select(to, mask, from);
            }
        }
    }

    /// Sets a vector or mask to what the program has in a register.
    fn wide_program(&mut self, to: Wide, number: u8) {
        let own = WidePlace::Register(number);
        match to {
            Wide::Vector(to) => {
                let to = Vectors::register(self, to);
                let from = self.vectors.slot_of(number).map_or(own, vector_at);
                let len = vector_bytes() as u8;
                self.translator.code.wide_load(to, from, len);
            }
            Wide::Mask(to) => {
                let to = Masks::register(self, to);
                let from = self.masks.slot_of(number).map_or(own, mask_at);
                self.translator.code.mask_load(to, from);
            }
        }
    }
}

impl Shares<ScratchVector> for Lowering<'_, '_, '_> {
    fn bank(&mut self) -> &mut Vectors {
        &mut self.vectors
    }

    fn save(&mut self, register: u8, slot: u8) {
        let (to, len) = (vector_at(slot), vector_bytes() as u8);
        self.translator.code.wide_store(to, register, len);
    }

    fn load(&mut self, register: u8, slot: u8) {
        let (from, len) = (vector_at(slot), vector_bytes() as u8);
        self.translator.code.wide_load(register, from, len);
    }

    fn has_moved(&mut self) {
        self.point(Saved::default());
    }

    fn is_skippable(&self) -> bool {
        self.is_in_region()
    }

    fn next_uses(&self, vector: ScratchVector) -> [usize; REGISTERS] {
        self.next_wide_uses(Wide::Vector(vector))
    }
}

impl Shares<ScratchMask> for Lowering<'_, '_, '_> {
    fn bank(&mut self) -> &mut Masks {
        &mut self.masks
    }

    fn save(&mut self, register: u8, slot: u8) {
        self.translator.code.mask_store(mask_at(slot), register);
    }

    fn load(&mut self, register: u8, slot: u8) {
        self.translator.code.mask_load(register, mask_at(slot));
    }

    fn has_moved(&mut self) {
        self.point(Saved::default());
    }

    fn is_skippable(&self) -> bool {
        self.is_in_region()
    }

    fn next_uses(&self, mask: ScratchMask) -> [usize; REGISTERS] {
        self.next_wide_uses(Wide::Mask(mask))
    }
}

/// The slot of a vector in the thread's block,
fn vector_at(slot: u8) -> WidePlace {
    WidePlace::Block(block::VECTORS + 64 * u32::from(slot))
}

/// and that of a mask.
fn mask_at(slot: u8) -> WidePlace {
    WidePlace::Block(block::MASKS + 8 * u32::from(slot))
}

/// An element of the vector whose elements are looked at.
fn element(number: u8) -> Mem {
    gs(block::ELEMENTS + 8 * u32::from(number))
}
