//! Turns fragments into code: decides which registers scratch registers are, and moves the program's values out of
//! their way and back.
//!
//! A value of the program that is in the way goes to a slot of the thread's block. It comes back when an instruction of
//! the program reads it, or at the end of the fragment, not earlier. While it is in a slot, the state map says so.
//! Flags go to a slot by way of `rax`. All scratch registers of all passes are seen here together: no two values share
//! a slot. [`hodo_codegen::reserve`] keeps account of that, for general registers as for vectors and masks.

use std::cell::RefCell;
use std::collections::HashMap;

use iced_x86::{Register, UsedMemory};

use hodo_codegen::reserve::{Ahead, REGISTERS, Shares};
use hodo_isa::x86_64::asm::{AL, BYTE, Cond, DWORD, Label, Mem, QWORD, RAX, Reg, Size, gs, mem};

use super::X86_64;
use super::banks::{General, Masks, Vectors, banks};
use super::emitter::Emitter;
use super::facts::general;
use super::flags::{FLAGS, flags_are_dead, overwrites_flags};
use super::narrow::decode;
use super::{RAX_NUMBER, RCX_NUMBER, RSP_NUMBER, block};
use crate::client::RECORDED;
use crate::fragment::{Instruction, Item};
use crate::inserted::{
    Bytes, Compare, Compute, Lanes, Mark, Part, Repeated, Scratch, Step, Value, Word,
};
use crate::passes::{InSlots, Moved, Passes};
use crate::translate::{Saved, Translator};

/// Where the program's flags are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Flags {
    /// In their register.
    There,
    /// In a slot.
    Slot(u8),
    /// Nowhere: the program overwrites them before it reads them, and nothing before that can fault.
    Dead,
}

pub(super) struct Lowering<'l, 'c, 'r> {
    pub(super) translator: Emitter<'l, 'c, 'r>,
    passes: &'l RefCell<Passes>,
    items: &'l [Item],
    /// The item that is turned into code.
    place: usize,
    /// The instruction of the program that is being executed, or comes next.
    pub(super) pc: u64,
    pub(super) flags: Flags,
    /// What may be skipped ends at this item, and nothing moves before that.
    region: Option<usize>,
    pub(super) general: General,
    pub(super) vectors: Vectors,
    pub(super) masks: Masks,
    marks: HashMap<Mark, Label>,
    /// Where the rounds begin that end at a mark.
    pub(super) starts: HashMap<Mark, Label>,
    /// The gather or scatter whose registers are in the thread's block, and how many of its lanes are complete.
    pub(super) lanes: Option<(Lanes, u8)>,
    /// The repeated instruction of which a round is complete, and whether that has been counted.
    pub(super) round: Option<(Repeated, bool)>,
}

/// Turns a fragment into code. Returns where the program continues, if it does so after it.
pub(super) fn lower(
    translator: &mut Translator<'_, '_, X86_64>,
    passes: &RefCell<Passes>,
    items: &[Item],
) -> Option<u64> {
    let first = items.iter().find_map(instruction_of);
    let (general, vectors, masks) = banks();
    let mut lowering = Lowering {
        translator: Emitter(translator),
        passes,
        items,
        place: 0,
        pc: first.map_or(0, |first| first.pc),
        flags: Flags::There,
        region: None,
        general,
        vectors,
        masks,
        marks: HashMap::new(),
        starts: HashMap::new(),
        lanes: None,
        round: None,
    };
    lowering.all()
}

fn instruction_of(item: &Item) -> Option<&Instruction> {
    match item {
        Item::Instruction(instruction) => Some(instruction),
        Item::Inserted(_) => None,
    }
}

impl Lowering<'_, '_, '_> {
    fn all(&mut self) -> Option<u64> {
        let items = self.items;
        let last = items
            .iter()
            .rposition(|item| instruction_of(item).is_some())?;
        for (place, item) in items.iter().enumerate() {
            self.place = place;
            self.general.unpin();
            self.vectors.unpin();
            self.masks.unpin();
            match item {
                Item::Inserted(step) => self.step(*step),
                Item::Instruction(instruction) if place < last || instruction.continues => {
                    self.instruction(instruction);
                }
                Item::Instruction(instruction) => return self.last(instruction),
            }
        }
        assert!(self.region.is_none(), "a mark is not placed");
        self.bring_back_all(true);
        self.translator.point(self.pc, None);
        Some(self.pc)
    }

    /// The last instruction, which does not simply continue.
    fn last(&mut self, instruction: &Instruction) -> Option<u64> {
        assert!(self.region.is_none(), "a mark is not placed");
        let keeps_flags = self.translator.keeps_flags();
        self.bring_back_all(!overwrites_flags(instruction.transfer(), keeps_flags));
        let (pc, bytes) = (instruction.pc, &instruction.bytes);
        self.point(Saved::default());
        let insn = decode(bytes)?;
        let follows = self.translator.instruction(pc, bytes, insn);
        follows.then(|| pc + u64::from(insn.len))
    }

    /// From here on, the state of a thread.
    pub(super) fn point(&mut self, saved: Saved) {
        let general = self.general.in_slots(Moved::General);
        let vectors = self.vectors.in_slots(Moved::Vector);
        let masks = self.masks.in_slots(Moved::Mask);
        let mut map: InSlots = general.chain(vectors).chain(masks).collect();
        if let Flags::Slot(slot) = self.flags {
            map.push((Moved::Flags, slot));
        }
        if let Some((lanes, complete)) = self.lanes.filter(|(lanes, _)| lanes.has_progress()) {
            map.push((Moved::Lanes(lanes, complete), 0));
        }
        if let Some((repeated, is_counted)) = self.round {
            map.push((Moved::Round(repeated, is_counted), 0));
        }
        let saved = Saved {
            map: self.passes.borrow_mut().number(map),
            in_fragment: true,
            ..saved
        };
        self.translator.set_point(self.pc, saved);
    }

    /// Whether this code may be skipped.
    pub(super) fn is_in_region(&self) -> bool {
        self.region.is_some()
    }

    /// The items from here on.
    pub(super) fn rest(&self) -> &[Item] {
        &self.items[self.place..]
    }

    fn bring_back_all(&mut self, with_flags: bool) {
        self.wide_bring_back_all();
        self.general.drop_holders();
        if with_flags {
            self.bring_back_flags();
        }
        self.flags = Flags::There;
        General::bring_back_all(self);
    }

    /// Makes `rax` free for the flags.
    fn free_rax(&mut self) {
        General::evict(self, RAX_NUMBER);
        General::spill(self, RAX_NUMBER);
    }

    /// The flags may be changed after this.
    pub(super) fn save_flags(&mut self) {
        if self.flags != Flags::There {
            return;
        }
        if !self.passes.borrow().is_conservative && self.flags_are_dead() {
            self.flags = Flags::Dead;
            return;
        }
        self.free_rax();
        self.translator.code.lahf();
        self.translator.code.seto(AL);
        let slot = self.general.slot();
        self.translator.code.mov_mr(at(slot), RAX);
        self.flags = Flags::Slot(slot);
        self.point(Saved::default());
    }

    fn bring_back_flags(&mut self) {
        let Flags::Slot(slot) = self.flags else {
            return;
        };
        self.free_rax();
        self.translator.code.mov_rm(RAX, at(slot));
        // 1 becomes an overflow.
        self.translator.code.add_ri(AL, 127);
        self.translator.code.sahf();
        self.flags = Flags::There;
        self.general.free(slot);
        self.point(Saved::default());
    }

    /// Whether the program overwrites the flags before anything can read them.
    fn flags_are_dead(&self) -> bool {
        let steps = self.rest().iter().filter_map(|item| match item {
            Item::Instruction(instruction) if instruction.facts.cannot_fault() => {
                Some(instruction.facts.flags())
            }
            // They may fault: the handler reads all.
            Item::Instruction(_) | Item::Inserted(Step::Load(..) | Step::Store(..)) => {
                Some((FLAGS, 0))
            }
            Item::Inserted(_) => None,
        });
        flags_are_dead(FLAGS, steps, false)
    }

    /// An instruction of the program that continues with the next one.
    fn instruction(&mut self, instruction: &Instruction) {
        match instruction.part {
            Some(Part::Head(lanes)) => return self.begin_lanes(instruction, lanes),
            Some(Part::Lane(lanes, lane)) => return self.lane(lanes, lane),
            Some(Part::Round(repeated)) => return self.round(instruction, repeated),
            Some(Part::Repeated) => return,
            None => {}
        }
        assert!(
            self.region.is_none(),
            "a mark is not placed in front of the same instruction"
        );
        let facts = &instruction.facts;
        self.pc = instruction.pc;
        let (read, overwritten) = facts.flags();
        let changed = facts.changed_flags() & FLAGS;
        let keeps_some = changed != 0 && overwritten & FLAGS != FLAGS;
        if read & FLAGS != 0 || keeps_some {
            self.bring_back_flags();
        }
        General::before(self, facts.reads().into(), facts.changes().into());
        self.wide_before(instruction);
        // What is repeated may take long, and can be broken off.
        let own = Saved {
            is_own: true,
            is_known: facts.repeats(),
            ..Saved::default()
        };
        self.point(own);
        let insn = decode(&instruction.bytes);
        let Some(insn) = insn else {
            unreachable!("it was decoded before");
        };
        self.translator
            .copy(instruction.pc, &instruction.bytes, insn);
        self.general.after(facts.changes().into());
        self.wide_after(instruction);
        if changed != 0 {
            if let Flags::Slot(slot) = self.flags {
                self.general.free(slot);
            }
            self.flags = Flags::There;
        }
        self.after(instruction);
    }

    /// An instruction is complete.
    fn after(&mut self, instruction: &Instruction) {
        let mut after = self.items[self.place + 1..]
            .iter()
            .filter_map(instruction_of);
        self.pc = after.next().map_or(instruction.next, |next| next.pc);
        self.point(Saved::default());
    }

    /// The instruction before this item is complete.
    fn after_last(&mut self) {
        let mut before = self.items[..self.place].iter().rev();
        if let Some(last) = before.find_map(instruction_of) {
            self.after(last);
        }
    }

    /// The register in which a scratch register is.
    pub(super) fn register(&mut self, scratch: Scratch) -> Reg {
        Reg::whole(General::register(self, scratch))
    }

    fn step(&mut self, step: Step) {
        if self.region.is_none() && step.changes_flags() {
            self.save_flags();
        }
        match step {
            Step::Reserve(scratch) => self.general.reserve(scratch),
            Step::Release(scratch) => General::release(self, scratch),
            Step::ReserveWide(wide) => self.wide_reserve(wide),
            Step::ReleaseWide(wide) => self.wide_release(wide),
            Step::Wide(step) => self.wide_step(step),
            Step::ShowProgram => self.show_program(),
            Step::Record(number, value, position) => self.record(number, value, position),
            Step::SkipUnless(compare, left, right, mark) => self.skip(compare, left, right, mark),
            Step::Mark(mark) => self.mark(mark),
            Step::SkipInactive(lanes, lane, mark) => {
                self.begin_region(mark);
                self.test_lane(lanes, lane);
                self.skip_if(Cond::E, mark);
            }
            Step::EndLane(lanes, lane) => self.end_lane(lanes, lane),
            Step::EndLanes(lanes) => {
                self.end_lanes(lanes);
                self.after_last();
            }
            Step::BeginRound(mark) => self.begin_round(mark),
            Step::EndRound(repeated, mark) => {
                self.end_round(repeated, mark);
                self.after_last();
            }
            _ => self.value_step(step),
        }
    }

    /// A step that only computes.
    fn value_step(&mut self, step: Step) {
        let word = |word: Word| gs(block::COUNTERS + 8 * word.0);
        match step {
            Step::Set(to, number) => {
                let to = self.register(to);
                match u32::try_from(number) {
                    Ok(number) => self.translator.code.mov_ri(to.part(DWORD), number),
                    Err(_) => self.translator.code.movabs_ri(to, number),
                }
            }
            Step::Copy(to, from) => {
                let (from, to) = (self.register(from), self.register(to));
                self.translator.code.mov_rr(to, from);
            }
            Step::Register(to, number) => {
                let to = self.register(to);
                match self.general.slot_of(number) {
                    Some(slot) => self.translator.code.mov_rm(to, at(slot)),
                    None => self.translator.code.mov_rr(to, Reg::whole(number)),
                }
            }
            Step::Address(to, operand) => self.address(to, operand),
            Step::Load(to, bytes, base, displacement) => {
                let (base, to) = (self.register(base), self.register(to));
                let from = mem(base, displacement);
                match size(bytes) {
                    small @ (BYTE | Size::Word) => {
                        self.translator.code.movzx_rm(to.part(DWORD), small, from)
                    }
                    size => self.translator.code.mov_rm(to.part(size), from),
                }
            }
            Step::Store(bytes, base, displacement, from) => {
                let (base, from) = (self.register(base), self.register(from));
                let to = mem(base, displacement);
                self.translator.code.mov_mr(to, from.part(size(bytes)));
            }
            Step::Read(to, from) => {
                let to = self.register(to);
                self.translator.code.mov_rm(to, word(from));
            }
            Step::Write(to, from) => {
                let from = self.register(from);
                self.translator.code.mov_mr(word(to), from);
            }
            Step::Count(to, number) => self.count(word(to), number),
            Step::Compute(compute, to, value) => self.compute(compute, to, value),
            Step::ShiftLeft(_, 0) | Step::ShiftRight(_, 0) => {}
            Step::ShiftLeft(to, bits) => {
                let to = self.register(to);
                self.translator.code.shl_ri(to, bits);
            }
            Step::ShiftRight(to, bits) => {
                let to = self.register(to);
                self.translator.code.shr_ri(to, bits);
            }
            _ => unreachable!("it was done before"),
        }
    }
}

/// A slot of the thread's block.
pub(super) fn at(slot: u8) -> Mem {
    gs(block::FIRST_SPILL + 8 * u32::from(slot))
}

fn size(bytes: Bytes) -> Size {
    match bytes {
        Bytes::One => BYTE,
        Bytes::Two => Size::Word,
        Bytes::Four => DWORD,
        Bytes::Eight => QWORD,
    }
}

impl Lowering<'_, '_, '_> {
    /// Adds a number to memory of the thread.
    fn count(&mut self, word: Mem, number: i32) {
        let is_dead = !self.passes.borrow().is_conservative && self.flags_are_dead();
        let is_free = self.flags != Flags::There || is_dead;
        if is_free {
            if self.flags == Flags::There {
                self.flags = Flags::Dead;
            }
            let number = number.cast_unsigned();
            return self.translator.code.add_mi(QWORD, word, number);
        }
        let scratch = Scratch(u32::MAX);
        self.general.reserve(scratch);
        let register = self.register(scratch);
        self.translator.code.mov_rm(register, word);
        self.translator.code.lea(register, mem(register, number));
        self.translator.code.mov_mr(word, register);
        General::release(self, scratch);
    }

    fn compute(&mut self, compute: Compute, to: Scratch, value: Value) {
        let to = self.register(to);
        let from = match value {
            Value::Scratch(scratch) => Some(self.register(scratch)),
            Value::Number(_) => None,
        };
        let number = match value {
            Value::Number(number) => number,
            Value::Scratch(_) => 0,
        };
        let code = &mut self.translator.code;
        let bits = number.cast_unsigned();
        match (compute, from) {
            (Compute::Add, Some(from)) => code.lea(to, mem(to, 0).plus_scaled(from, 0)),
            (Compute::Add, None) => code.lea(to, mem(to, number)),
            (Compute::Subtract, Some(from)) => code.sub_rr(to, from),
            (Compute::Subtract, None) => code.sub_ri(to, bits),
            (Compute::And, Some(from)) => code.and_rr(to, from),
            (Compute::And, None) => code.and_ri(to, bits),
            (Compute::Or, Some(from)) => code.or_rr(to, from),
            (Compute::Or, None) => code.or_ri(to, bits),
            (Compute::Xor, Some(from)) => code.xor_rr(to, from),
            (Compute::Xor, None) => code.xor_ri(to, bits),
        }
    }

    /// The operand of the next instruction.
    fn operand(&self, place: usize, operand: u8) -> UsedMemory {
        let mut after = self.items[place..].iter().filter_map(instruction_of);
        let memory = after
            .next()
            .and_then(|next| next.facts.memory.get(usize::from(operand)));
        let Some(memory) = memory else {
            panic!("the next instruction has no operand {operand}");
        };
        *memory
    }

    /// The lane that comes next, if it is one.
    fn lane_after(&self, place: usize) -> Option<(Lanes, u8)> {
        match self.items[place..].iter().find_map(instruction_of)?.part? {
            Part::Lane(lanes, lane) => Some((lanes, lane)),
            _ => None,
        }
    }

    /// Brings a register back. It stays.
    fn bring_back_to_stay(&mut self, number: u8) {
        General::bring_back(self, number);
        self.general.pin(number);
    }

    /// Brings the registers of an operand back. They stay.
    fn bring_back_for(&mut self, operand: &UsedMemory) {
        for register in [operand.base(), operand.index()] {
            if let Some(number) = general(register) {
                self.bring_back_to_stay(number as u8);
            }
        }
    }

    /// Brings the registers back from which the addresses of lanes come. They stay.
    pub(super) fn bring_back_for_lanes(&mut self, lanes: Lanes) {
        for number in lanes.registers() {
            self.bring_back_to_stay(number);
        }
    }

    /// Brings all registers back that the next instruction uses, a round. They stay.
    pub(super) fn keep_for_round(&mut self) {
        let round = self.items[self.place..].iter().find_map(instruction_of);
        let used = round.map_or(0, |round| round.facts.used()) | 1 << RCX_NUMBER;
        for number in (0..16).filter(|number| used >> number & 1 == 1) {
            self.bring_back_to_stay(number);
        }
    }

    fn address(&mut self, to: Scratch, operand: u8) {
        if let Some((lanes, lane)) = self.lane_after(self.place) {
            let to = self.register(to);
            let address = self.lane_address(lanes, lane, to);
            return self.translator.code.lea(to, address);
        }
        let operand = self.operand(self.place, operand);
        if self.region.is_none() {
            self.bring_back_for(&operand);
        }
        let to = self.register(to);
        let code = &mut self.translator.code;
        let whole = |register| general(register).map(|number| Reg::whole(number as u8));
        let (base, index) = (whole(operand.base()), whole(operand.index()));
        let power = operand.scale().trailing_zeros() as u8;
        let displacement = operand.displacement();
        let short = i32::try_from(displacement.cast_signed());
        let is_thread = operand.segment() == Register::FS;
        match (base, index, short) {
            (Some(base), Some(index), Ok(short)) => {
                code.lea(to, mem(base, short).plus_scaled(index, power));
            }
            (Some(register), None, Ok(short)) if !is_thread => code.lea(to, mem(register, short)),
            (None, Some(index), Ok(short)) if !is_thread => {
                // There is no base.
                code.movabs_ri(to, i64::from(short).cast_unsigned());
                code.lea(to, mem(to, 0).plus_scaled(index, power));
            }
            (register, index, Ok(short)) if is_thread => {
                code.rdfsbase(to);
                let sum = match (register, index) {
                    (Some(register), _) => mem(register, short).plus(to),
                    (None, Some(index)) => mem(to, short).plus_scaled(index, power),
                    (None, None) => mem(to, short),
                };
                code.lea(to, sum);
            }
            (None, None, _) => code.movabs_ri(to, displacement),
            _ => panic!("the address of an operand cannot be computed"),
        }
    }

    fn record(&mut self, number: u32, value: Scratch, position: Scratch) {
        let (value, position) = (self.register(value), self.register(position));
        self.translator.begins_record();
        self.point(Saved::default());
        let code = &mut self.translator.code;
        code.mov_rm(position, gs(block::POSITION));
        code.mov_mi(DWORD, mem(position, 0), RECORDED);
        code.mov_mi(DWORD, mem(position, 4), number);
        code.mov_mr(mem(position, 8), value);
        code.lea(position, mem(position, 16));
        code.mov_mr(gs(block::POSITION), position);
    }

    /// Skips what comes up to a mark unless two values compare in a way. Nothing may move in between: everything that
    /// is used there gets its place before.
    fn skip(&mut self, compare: Compare, left: Scratch, right: Value, mark: Mark) {
        self.begin_region(mark);
        let left = self.register(left);
        match right {
            Value::Scratch(right) => {
                let right = self.register(right);
                self.translator.code.cmp_rr(left, right);
            }
            Value::Number(number) => self.translator.code.cmp_ri(left, number.cast_unsigned()),
        }
        let condition = match compare {
            Compare::Equal => Cond::NE,
            Compare::Different => Cond::E,
            Compare::Below => Cond::AE,
            Compare::NotBelow => Cond::B,
            Compare::Less => Cond::GE,
            Compare::NotLess => Cond::L,
        };
        self.skip_if(condition, mark);
    }

    /// What comes up to a mark may be skipped.
    pub(super) fn begin_region(&mut self, mark: Mark) {
        if self.region.is_none() {
            let end = self.end_of(mark);
            self.prepare(end);
            self.region = Some(end);
        }
    }

    pub(super) fn skip_if(&mut self, condition: Cond, mark: Mark) {
        let code = &mut self.translator.code;
        let label = *self.marks.entry(mark).or_insert_with(|| code.label());
        code.jcc(condition, label);
    }

    /// Where everything ends that may be skipped from here on to a mark, or from there.
    fn end_of(&self, mark: Mark) -> usize {
        let place_of = |mark: Mark| {
            let is_it = |item: &Item| {
                matches!(item, Item::Inserted(Step::Mark(other) | Step::EndRound(_, other))
                    if *other == mark)
            };
            let rest = &self.items[self.place..];
            let Some(distance) = rest.iter().position(is_it) else {
                panic!("a mark is not placed after the skip to it");
            };
            self.place + distance
        };
        let mut end = place_of(mark);
        let mut place = self.place;
        while place < end {
            if let Item::Inserted(
                Step::SkipUnless(.., other)
                | Step::SkipInactive(.., other)
                | Step::BeginRound(other),
            ) = self.items[place]
            {
                end = end.max(place_of(other));
            }
            place += 1;
        }
        end
    }

    /// Gives everything a place that is used up to an item.
    fn prepare(&mut self, end: usize) {
        let items = &self.items[self.place..=end];
        let steps = items
            .iter()
            .zip(self.place..)
            .filter_map(|(item, place)| match item {
                Item::Inserted(step) => Some((*step, place)),
                Item::Instruction(_) => None,
            });
        let steps: Vec<(Step, usize)> = steps.collect();
        let lanes = items.iter().filter_map(instruction_of);
        let lanes = lanes.filter_map(|instruction| instruction.part);
        let lanes = lanes.filter_map(Part::lanes);
        let lanes: Vec<Lanes> = lanes.collect();
        for &(step, place) in &steps {
            if let Step::Address(_, operand) = step
                && self.lane_after(place).is_none()
            {
                self.bring_back_for(&self.operand(place, operand));
            }
        }
        for lanes in lanes {
            self.bring_back_for_lanes(lanes);
            for scratch in lanes.used() {
                self.register(scratch);
            }
        }
        let only: Vec<Step> = steps.iter().map(|(step, _)| *step).collect();
        self.wide_prepare(&only);
        // What is released there does not need its register any more, unless it is used again in the next round; what
        // is reserved there needs it only from there on.
        let is_round = only.iter().any(|step| matches!(step, Step::BeginRound(_)));
        let mut ahead = Ahead::default();
        for step in only {
            match step {
                Step::Reserve(scratch) => ahead.reserve(&mut self.general, scratch),
                Step::Release(scratch) => ahead.release(&self.general, scratch, !is_round),
                _ => {}
            }
            for scratch in step.uses() {
                ahead.uses(self, scratch);
            }
        }
    }

    pub(super) fn mark(&mut self, mark: Mark) {
        let Some(label) = self.marks.remove(&mark) else {
            panic!("a mark is placed before the skip to it, or twice");
        };
        self.translator.code.bind(label);
        if self.region == Some(self.place) {
            self.region = None;
            self.general.release_skipped();
            self.vectors.release_skipped();
            self.masks.release_skipped();
        }
    }
}

impl Shares<Scratch> for Lowering<'_, '_, '_> {
    fn bank(&mut self) -> &mut General {
        &mut self.general
    }

    fn save(&mut self, register: u8, slot: u8) {
        self.translator.code.mov_mr(at(slot), Reg::whole(register));
    }

    fn load(&mut self, register: u8, slot: u8) {
        self.translator.code.mov_rm(Reg::whole(register), at(slot));
    }

    fn has_moved(&mut self) {
        self.point(Saved::default());
    }

    fn is_skippable(&self) -> bool {
        self.is_in_region()
    }

    fn next_uses(&self, scratch: Scratch) -> [usize; REGISTERS] {
        let rest = self.rest();
        let is_end =
            |item: &Item| matches!(item, Item::Inserted(Step::Release(other)) if *other == scratch);
        let end = rest.iter().position(is_end).unwrap_or(rest.len());
        let mut unused = !(1 << RSP_NUMBER);
        let mut soon = [end; REGISTERS];
        for (place, item) in rest[..end].iter().enumerate() {
            let Some(instruction) = instruction_of(item) else {
                continue;
            };
            for (number, soon) in soon[..16].iter_mut().enumerate() {
                if instruction.facts.used() & unused & 1 << number != 0 {
                    *soon = place;
                }
            }
            unused &= !instruction.facts.used();
        }
        soon
    }
}
