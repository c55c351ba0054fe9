//! Vector and mask registers of inserted code.
//!
//! They follow the rules of general registers: what the program has in one that is needed goes to a slot of the
//! thread's block, and comes back when an instruction of the program uses it, or at the end of the fragment. A register
//! that an instruction of the program overwrites as a whole need not come back.

use std::collections::HashSet;

use hodo_isa::x86_64::asm::{Mem, WideOp, WidePlace, gs};

use super::banks::{Held, Kind, used, vector_bytes};
use super::block;
use super::lower::Lowering;
use crate::fragment::{Instruction, Item};
use crate::inserted::{Active, Compute, Lanes, Step, VectorStep, Wide};

impl Lowering<'_, '_, '_> {
    fn wide_load(&mut self, kind: Kind, number: u8, from: WidePlace) {
        let code = &mut self.translator.code;
        match kind {
            Kind::Vector => code.wide_load(number, from, vector_bytes() as u8),
            Kind::Mask => code.mask_load(number, from),
        }
    }

    fn wide_store(&mut self, kind: Kind, to: WidePlace, number: u8) {
        let code = &mut self.translator.code;
        match kind {
            Kind::Vector => code.wide_store(to, number, vector_bytes() as u8),
            Kind::Mask => code.mask_store(to, number),
        }
    }

    /// Moves what the program has in a register to a slot.
    fn wide_spill(&mut self, kind: Kind, number: u8) {
        let bank = self.banks.of(kind);
        if bank.program[usize::from(number)].is_none() {
            let slot = bank.slot();
            self.wide_store(kind, kind.at(slot), number);
            self.banks.of(kind).program[usize::from(number)] = Some(slot);
            self.here();
        }
    }

    /// Moves what inserted code has in a register to a slot.
    fn wide_evict(&mut self, kind: Kind, number: u8) {
        let bank = self.banks.of(kind);
        let Some(wide) = bank.holder[usize::from(number)].take() else {
            return;
        };
        let slot = bank.slot();
        self.may_move();
        self.wide_store(kind, kind.at(slot), number);
        let held = Held {
            register: None,
            slot: Some(slot),
        };
        self.banks.held.insert(wide, held);
    }

    /// Brings what the program has in a register back.
    fn wide_bring_back(&mut self, kind: Kind, number: u8) {
        let Some(slot) = self.banks.of(kind).program[usize::from(number)] else {
            return;
        };
        self.wide_evict(kind, number);
        self.wide_load(kind, number, kind.at(slot));
        let bank = self.banks.of(kind);
        bank.program[usize::from(number)] = None;
        bank.free |= 1 << slot;
        self.here();
    }

    /// Brings everything of the program back, at the end of a fragment.
    pub(super) fn wide_bring_back_all(&mut self) {
        self.banks.held.clear();
        for kind in [Kind::Vector, Kind::Mask] {
            self.banks.of(kind).holder = [None; 32];
            for number in 0..32 {
                self.wide_bring_back(kind, number);
            }
        }
    }

    /// An instruction of the program comes next: it finds what it reads.
    pub(super) fn wide_before(&mut self, instruction: &Instruction) {
        if self.banks.is_idle() {
            return;
        }
        let all = used(instruction.facts.insn());
        for (kind, used) in [Kind::Vector, Kind::Mask].into_iter().zip(all) {
            for number in 0..32 {
                if used.reads >> number & 1 == 1 {
                    self.wide_bring_back(kind, number);
                } else if used.changed >> number & 1 == 1 {
                    self.wide_evict(kind, number);
                }
            }
        }
    }

    /// It was executed.
    pub(super) fn wide_after(&mut self, instruction: &Instruction) {
        if self.banks.is_idle() {
            return;
        }
        let all = used(instruction.facts.insn());
        for (kind, used) in [Kind::Vector, Kind::Mask].into_iter().zip(all) {
            for number in (0..32).filter(|number| used.changed >> number & 1 == 1) {
                self.wide_forget(kind, number);
            }
        }
    }

    /// What was in a register of the program is not needed any more.
    fn wide_forget(&mut self, kind: Kind, number: u8) {
        let bank = self.banks.of(kind);
        if let Some(slot) = bank.program[usize::from(number)].take() {
            bank.free |= 1 << slot;
        }
    }

    /// All lanes are complete, and their registers are going to be set.
    pub(super) fn wide_end_lanes(&mut self, lanes: Lanes) {
        let mut set = Vec::new();
        if !lanes.stores {
            set.push((Kind::Vector, lanes.data));
        }
        if lanes.has_progress() {
            set.push(match lanes.active {
                Active::Vector(mask) => (Kind::Vector, mask),
                Active::Mask(mask) => (Kind::Mask, mask),
            });
        }
        for (kind, number) in set {
            self.wide_evict(kind, number);
            self.wide_forget(kind, number);
        }
    }

    /// The register in which a vector or mask of inserted code is.
    fn wide_register(&mut self, wide: Wide) -> u8 {
        let Some(held) = self.banks.held.get(&wide).copied() else {
            panic!("a scratch register is used that is not reserved");
        };
        let kind = Kind::of(wide);
        if let Some(number) = held.register {
            self.banks.of(kind).pinned |= 1 << number;
            return number;
        }
        self.may_move();
        let number = self.wide_choose(wide);
        self.wide_evict(kind, number);
        self.wide_spill(kind, number);
        if let Some(slot) = held.slot {
            self.wide_load(kind, number, kind.at(slot));
            self.banks.of(kind).free |= 1 << slot;
        }
        self.wide_hold(wide, number);
        number
    }

    fn wide_hold(&mut self, wide: Wide, number: u8) {
        let bank = self.banks.of(Kind::of(wide));
        bank.holder[usize::from(number)] = Some(wide);
        bank.pinned |= 1 << number;
        let held = Held {
            register: Some(number),
            slot: None,
        };
        self.banks.held.insert(wide, held);
    }

    /// The best register: one that is free and that the program does not need soon.
    fn wide_choose(&mut self, wide: Wide) -> u8 {
        let kind = Kind::of(wide);
        let index = usize::from(kind == Kind::Mask);
        let rest = self.rest();
        let is_end = |item: &Item| matches!(item, Item::Inserted(Step::ReleaseWide(other)) if *other == wide);
        let end = rest.iter().position(is_end).unwrap_or(rest.len());
        let mut soon = [end; 32];
        for (place, item) in rest[..end].iter().enumerate().rev() {
            if let Item::Instruction(instruction) = item {
                let used = used(instruction.facts.insn())[index];
                for number in (0..32).filter(|n| (used.reads | used.changed) >> n & 1 == 1) {
                    soon[number] = place;
                }
            }
        }
        let bank = self.banks.of(kind);
        let allowed = kind
            .numbers()
            .filter(|number| bank.pinned >> number & 1 == 0);
        let best = allowed.max_by_key(|&number| {
            let index = usize::from(number);
            let is_free = bank.holder[index].is_none();
            (is_free, soon[index], bank.program[index].is_some())
        });
        let Some(best) = best else {
            panic!("a step uses too many scratch registers");
        };
        best
    }

    /// From here on, a vector or mask is there.
    pub(super) fn wide_reserve(&mut self, wide: Wide) {
        self.banks.held.entry(wide).or_default();
    }

    /// From here on, it is not there any more. In code that may be skipped, it stays until the end of that.
    pub(super) fn wide_release(&mut self, wide: Wide) {
        if self.is_in_region() {
            self.released_wide.push(wide);
            return;
        }
        let Some(held) = self.banks.held.remove(&wide) else {
            return;
        };
        let bank = self.banks.of(Kind::of(wide));
        if let Some(number) = held.register {
            bank.holder[usize::from(number)].take_if(|holder| *holder == wide);
        }
        if let Some(slot) = held.slot {
            bank.free |= 1 << slot;
        }
    }

    /// Gives everything a place that steps use.
    pub(super) fn wide_prepare(&mut self, steps: &[Step]) {
        // What is reserved and released there needs its register only in between.
        let (mut own, mut spare) = (HashSet::new(), Vec::new());
        for step in steps {
            match step {
                Step::ReserveWide(wide) => {
                    self.wide_reserve(*wide);
                    own.insert(*wide);
                }
                Step::ReleaseWide(wide) if own.contains(wide) => {
                    let held = self.banks.held.get(wide);
                    let number = held.and_then(|held| held.register);
                    spare.extend(number.map(|number| (Kind::of(*wide), number)));
                }
                _ => {}
            }
            for wide in step.wide() {
                let held = self.banks.held.get(&wide);
                let is_new =
                    own.contains(&wide) && held.is_some_and(|held| held.register.is_none());
                let is_fit = |(kind, _): &(Kind, u8)| *kind == Kind::of(wide);
                match spare.iter().position(is_fit).filter(|_| is_new) {
                    Some(place) => {
                        let (_, number) = spare.swap_remove(place);
                        self.wide_hold(wide, number);
                    }
                    None => drop(self.wide_register(wide)),
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
                self.wide_load(Kind::Vector, to, WidePlace::Register(from));
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
        let kind = Kind::of(to);
        let to = self.wide_register(to);
        let from = match self.banks.of(kind).program[usize::from(number)] {
            Some(slot) => kind.at(slot),
            None => WidePlace::Register(number),
        };
        self.wide_load(kind, to, from);
    }

    /// Exchanges what inserted code has in registers for what the program has there. Returns where that of inserted
    /// code is.
    pub(super) fn wide_show(&mut self) -> Vec<(Wide, u8, u8)> {
        let mut shown = Vec::new();
        for kind in [Kind::Vector, Kind::Mask] {
            for number in 0..32_u8 {
                let bank = self.banks.of(kind);
                let index = usize::from(number);
                let Some(slot) = bank.program[index] else {
                    continue;
                };
                if let Some(wide) = bank.holder[index] {
                    let other = bank.slot();
                    self.wide_store(kind, kind.at(other), number);
                    shown.push((wide, number, other));
                }
                self.wide_load(kind, number, kind.at(slot));
            }
        }
        shown
    }

    /// Exchanges them again.
    pub(super) fn wide_hide(&mut self, shown: Vec<(Wide, u8, u8)>) {
        for (wide, number, slot) in shown {
            let kind = Kind::of(wide);
            self.wide_load(kind, number, kind.at(slot));
            self.banks.of(kind).free |= 1 << slot;
        }
    }
}

/// An element of the vector whose elements are looked at.
fn element(number: u8) -> Mem {
    gs(block::ELEMENTS + 8 * u32::from(number))
}
