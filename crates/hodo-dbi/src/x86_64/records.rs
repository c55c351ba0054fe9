//! What threads record when they execute a block: which accesses its instructions make, and from which registers the
//! addresses of these come.

use iced_x86::{CodeSize, MemorySize, Mnemonic, OpKind, Register, UsedMemory};

use super::facts::{CALL, ENTRY, Extension, Facts, RESULT, RSP, general, kinds};
use super::flags::{BUT_CARRY, flags_are_dead, overwrites_flags};
use super::special::{LINE, area, ignores_mask, is_masked, is_packed, selected, spread};
use crate::access::Kind;
use crate::block::{
    Address, Block, FIRST_VALUE, Insn, Lanes, Leave, Note, Noted, Operand, Recorded, Slot, Special,
    Transfer, Value, ZERO,
};
use crate::translate::{Analyzed, BlockInsn};

/// The maximum number of values of a record.
const MOST_VALUES: usize = 24;
/// The maximum number of values of an instruction's accesses.
const MOST_EACH: usize = 6;
/// The maximum number of these that are registers at the beginning of the block.
const MOST_AT_HEAD: u32 = 6;

/// What a register has.
#[derive(Debug, Clone, Copy)]
enum Known {
    /// What is in a slot, plus a number.
    Plus(Slot, i64),
    No,
}

/// Makes a block.
struct Analysis {
    analyzed: Analyzed,
    registers: [Known; 16],
    /// What is known of their upper halves.
    extended: [Option<Extension>; 16],
    /// Registers whose values at the beginning of the block are known from earlier records, bit by number.
    before: u16,
    /// Of the registers at the beginning of the block, those that a record of it has.
    at_head: u16,
    values: Vec<Recorded>,
    operands: Vec<Operand>,
    notes: Vec<Note>,
    /// The registers before instructions that may leave the block, and at the end.
    leaving: Vec<(u16, [Known; 16])>,
}

/// Finds the block at the start of this code. `keeps_flags`: calls and returns do so.
pub(crate) fn analyze(
    id: u32,
    code: &[BlockInsn<'_, Facts>],
    notes: Vec<(u16, Noted)>,
    analyzed: Analyzed,
    keeps_flags: bool,
) -> Block {
    let records = !matches!(analyzed, Analyzed::Counts | Analyzed::Lines);
    let mut analysis = Analysis::new(analyzed);
    let mut block = Block {
        id,
        insns: Vec::with_capacity(code.len()),
        code: Vec::with_capacity(code.iter().map(|(_, bytes, _)| bytes.len()).sum()),
        file: None,
        operands: Vec::new(),
        special: None,
        values: Vec::new(),
        leaving: Vec::new(),
        notes: Vec::new(),
        observed: true,
        flags_are_dead: flags_are_dead(
            BUT_CARRY,
            code.iter().map(|(_, _, facts)| facts.flags()),
            code.last()
                .is_some_and(|(_, _, facts)| overwrites_flags(facts.transfer, keeps_flags)),
        ),
        counter: 0,
    };
    let operands = code.iter().flat_map(|(_, _, facts)| &facts.memory);
    let operands = operands.map(|used| kinds(used.access()).len());
    analysis.operands.reserve_exact(operands.sum());
    let mut notes = notes.into_iter().peekable();
    for (number, (pc, bytes, facts)) in code.iter().enumerate() {
        let special = match number {
            0 => analysis.special(facts.insn(), &facts.memory),
            _ => None,
        };
        if special.is_none() {
            let mut fits = true;
            while let Some((_, what)) = notes.next_if(|&(insn, _)| usize::from(insn) == number) {
                fits &= analysis.note(number as u16, what);
            }
            fits = fits
                && match records {
                    true => analysis.operands(number as u16, facts, &code[number..]),
                    false => analysis.sizes(number as u16, &facts.memory),
                };
            if !fits {
                break;
            }
        }
        block.insns.push(Insn {
            pc: *pc,
            len: bytes.len() as u8,
            transfer: facts.transfer,
        });
        block.code.extend(*bytes);
        if special.is_some() {
            block.special = special;
            break;
        }
        analysis.follow(facts);
        if matches!(analyzed, Analyzed::Hot(_)) {
            analysis.leave(number as u16 + 1, facts.transfer);
        }
    }
    if matches!(analyzed, Analyzed::Hot(_)) {
        analysis.leaves(&mut block);
    }
    block.operands = analysis.operands;
    block.values = analysis.values;
    block.notes = analysis.notes;
    block
}

/// Whether an instruction accesses memory in a way that has a block of its own.
pub(super) fn is_special(facts: &Facts) -> bool {
    let special = Analysis::new(Analyzed::Accesses).special(facts.insn(), &facts.memory);
    special.is_some()
}

impl Analysis {
    fn new(analyzed: Analyzed) -> Self {
        let before = match analyzed {
            Analyzed::Hot(known) => known,
            _ => 0,
        };
        Self {
            analyzed,
            registers: std::array::from_fn(|number| Known::Plus(number as Slot, 0)),
            extended: [None; 16],
            before,
            at_head: 0,
            values: Vec::new(),
            operands: Vec::new(),
            notes: Vec::new(),
            leaving: Vec::new(),
        }
    }

    /// Where a record of a special instruction has a value.
    fn value(&mut self, value: Value) -> u16 {
        let mut at = 4;
        for old in &self.values {
            if old.value == value {
                return at;
            }
            at += old.value.size() as u16;
        }
        self.values.push(Recorded {
            value,
            insn: 0,
            slot: ZERO,
        });
        at
    }

    /// Where a record of a special instruction has a register.
    fn register(&mut self, register: Register) -> Option<u16> {
        Some(self.value(Value::Register(general(register)? as u8)))
    }

    /// The address of the operand of a special instruction.
    fn address(&mut self, memory: &UsedMemory) -> Option<Address> {
        let mut address = Address {
            displacement: memory.displacement(),
            narrow: memory.address_size() == CodeSize::Code32,
            scale: memory.scale() as u8,
            ..Address::default()
        };
        if memory.segment() == Register::FS {
            address.segment = Some(self.value(Value::ThreadBase));
        }
        if general(memory.base()).is_some() {
            address.base = Some(self.register(memory.base())?);
        }
        if general(memory.index()).is_some() {
            address.index = Some(self.register(memory.index())?);
        }
        Some(address)
    }

    /// Has threads record a value before an instruction. Returns its slot.
    fn record(&mut self, value: Value, insn: u16) -> Slot {
        // An instruction that reads and writes has the same address twice.
        let is_same = |old: &&Recorded| {
            old.value == value && (value == Value::ThreadBase || old.insn == insn)
        };
        if let Some(old) = self.values.iter().find(is_same) {
            return old.slot;
        }
        let slot = FIRST_VALUE + self.values.len() as Slot;
        self.values.push(Recorded { value, insn, slot });
        slot
    }

    /// Whether the value of a register at the beginning of the block is known or recorded.
    fn has(&self, slot: Slot) -> bool {
        slot >= ZERO || (self.before | self.at_head) >> slot & 1 == 1
    }

    /// The slot on which a register is based, and what is added to that. If it is not known yet, threads record it.
    fn slot(&mut self, number: usize, insn: u16) -> (Slot, i64) {
        match self.registers[number] {
            Known::Plus(slot, add) if self.has(slot) => (slot, add),
            Known::Plus(slot, add) if self.at_head.count_ones() < MOST_AT_HEAD => {
                self.at_head |= 1 << slot;
                self.values.push(Recorded {
                    value: Value::Register(slot),
                    insn: 0,
                    slot,
                });
                (slot, add)
            }
            _ => {
                let register = number as u8;
                let value = match self.extended[number] {
                    None => Value::Register(register),
                    Some(Extension::Zero) => Value::Half(register),
                    Some(Extension::Sign) => Value::Signed(register),
                };
                let slot = self.record(value, insn);
                self.registers[number] = Known::Plus(slot, 0);
                (slot, 0)
            }
        }
    }

    /// If neither the base nor the index of an operand is known, and knowing them would not help what comes after:
    /// their sum, which takes less room.
    fn sum(&self, memory: &UsedMemory, after: &[BlockInsn<'_, Facts>]) -> Option<Value> {
        let (base, index) = (general(memory.base())?, general(memory.index())?);
        let is_whole = memory.base().is_gpr64() && memory.index().is_gpr64();
        let is_known = |number: usize| match self.registers[number] {
            Known::Plus(slot, _) => self.has(slot),
            Known::No => false,
        };
        if !is_whole || index == RSP || is_known(base) || is_known(index) {
            return None;
        }
        // One that changes soon need not be known.
        let changes = |number: usize| {
            after
                .iter()
                .any(|(_, _, facts)| facts.changes() >> number & 1 == 1 && facts.sets.is_none())
        };
        if !changes(base) || !changes(index) {
            return None;
        }
        let power = memory.scale().trailing_zeros() as u8;
        Some(Value::Sum(base as u8, index as u8, power))
    }

    /// The access of an operand.
    fn operand(
        &mut self,
        insn: u16,
        memory: &UsedMemory,
        after: &[BlockInsn<'_, Facts>],
    ) -> Operand {
        let mut operand = Operand {
            insn,
            kind: Kind::Load,
            size: memory.memory_size().size() as u32,
            base: ZERO,
            index: ZERO,
            power: memory.scale().trailing_zeros() as u8,
            segment: ZERO,
            displacement: memory.displacement(),
            narrow: memory.address_size() == CodeSize::Code32,
        };
        let displace = |operand: &mut Operand, add: i64| {
            operand.displacement = operand.displacement.wrapping_add_signed(add);
        };
        if memory.segment() == Register::FS {
            operand.segment = self.record(Value::ThreadBase, 0);
        }
        if let Some(sum) = self.sum(memory, after) {
            operand.base = self.record(sum, insn);
            return operand;
        }
        if let Some(number) = general(memory.base()) {
            let (slot, add) = self.slot(number, insn);
            operand.base = slot;
            displace(&mut operand, add);
        }
        if let Some(number) = general(memory.index()) {
            let (slot, add) = self.slot(number, insn);
            operand.index = slot;
            let add = add << operand.power;
            displace(&mut operand, add);
        }
        operand
    }

    /// Adds the operands of an instruction. `after`: this instruction and those that follow. Returns whether a record
    /// has room for what they need.
    fn operands(&mut self, insn: u16, facts: &Facts, after: &[BlockInsn<'_, Facts>]) -> bool {
        if self.values.len() + MOST_EACH > MOST_VALUES && insn > 0 {
            return false;
        }
        for kind in [Kind::Load, Kind::Store] {
            for used in &facts.memory {
                if kinds(used.access()).contains(&kind) {
                    let operand = self.operand(insn, used, after);
                    self.operands.push(Operand { kind, ..operand });
                }
            }
        }
        true
    }

    /// Adds the operands of an instruction without their addresses.
    fn sizes(&mut self, insn: u16, memory: &[UsedMemory]) -> bool {
        for wanted in [Kind::Load, Kind::Store] {
            let used = memory
                .iter()
                .filter(|used| kinds(used.access()).contains(&wanted));
            self.operands.extend(used.map(|used| Operand {
                insn,
                kind: wanted,
                size: used.memory_size().size() as u32,
                ..Operand::NOWHERE
            }));
        }
        true
    }

    /// What an instruction does to the registers.
    fn follow(&mut self, facts: &Facts) {
        let sum = facts.sets.map(|(to, from, add)| {
            let from = from.map_or(Known::Plus(ZERO, 0), |from| self.registers[from]);
            let new = match from {
                Known::Plus(slot, old) => Known::Plus(slot, old.wrapping_add(add)),
                Known::No => Known::No,
            };
            (to, new)
        });
        for number in 0..16 {
            if facts.changes() >> number & 1 == 1 {
                self.registers[number] = Known::No;
                self.extended[number] = None;
            }
        }
        // The first operand may only be read, as by the short form of `imul`.
        if let Some((number, extension)) = facts.extends
            && facts.changes() >> number & 1 == 1
        {
            self.extended[number] = Some(extension);
        }
        if let Some((to, new)) = sum {
            self.registers[to] = new;
        }
    }

    /// After an instruction, the block may be left. `upto`: how many instructions were executed.
    fn leave(&mut self, upto: u16, transfer: Transfer) {
        if matches!(transfer, Transfer::Branch) {
            self.leaving.push((upto, self.registers));
        }
    }

    /// Says what is known where a block may be left.
    fn leaves(&mut self, block: &mut Block) {
        let end = block.insns.len() as u16;
        let is_last = |last: &(u16, _)| last.0 == end;
        if block.special.is_none() && !self.leaving.last().is_some_and(is_last) {
            self.leaving.push((end, self.registers));
        }
        for (upto, registers) in &self.leaving {
            let mut leave = Leave {
                upto: *upto,
                known: 0,
                sets: Vec::new(),
            };
            for (number, register) in registers.iter().enumerate() {
                let Known::Plus(slot, add) = *register else {
                    continue;
                };
                // What an instruction after this place has recorded is not there yet.
                let is_there = match slot.checked_sub(FIRST_VALUE) {
                    Some(value) => self.values[usize::from(value)].insn < *upto,
                    None => true,
                };
                if !is_there || !self.has(slot) {
                    continue;
                }
                leave.known |= 1 << number;
                if usize::from(slot) != number || add != 0 {
                    leave.sets.push((number as u8, slot, add));
                }
            }
            block.leaving.push(leave);
        }
    }

    /// Has threads record what clients receive about an instruction. Returns whether a record has room for that.
    fn note(&mut self, insn: u16, what: Noted) -> bool {
        let registers = match what {
            Noted::Entry(_) => ENTRY,
            Noted::SystemCall => CALL,
            Noted::Return | Noted::AfterCall => RESULT,
            Noted::Call => &[],
        };
        if insn > 0 && self.values.len() + registers.len() + MOST_EACH > MOST_VALUES {
            return false;
        }
        let slot = FIRST_VALUE + self.values.len() as Slot;
        let values = registers.iter().zip(slot..);
        self.values.extend(values.map(|(&register, slot)| Recorded {
            value: Value::Register(register),
            insn,
            slot,
        }));
        self.notes.push(Note { insn, slot, what });
        true
    }

    /// The accesses of an instruction that a record of registers alone does not say.
    fn special(&mut self, insn: &iced_x86::Instruction, memory: &[UsedMemory]) -> Option<Special> {
        let repeats = insn.has_rep_prefix() || insn.has_repne_prefix();
        if repeats && insn.is_string_instruction() {
            return self.strings(insn, memory);
        }
        let used = memory
            .iter()
            .find(|used| !kinds(used.access()).is_empty())?;
        if used.vsib_size() != 0 || is_masked(insn) && !ignores_mask(insn) {
            return self.lanes(insn, used);
        }
        match insn.mnemonic() {
            Mnemonic::Bt | Mnemonic::Btc | Mnemonic::Btr | Mnemonic::Bts
                if insn.op1_kind() == OpKind::Register =>
            {
                let number = general(insn.op1_register())? as u8;
                Some(Special::Bit {
                    kinds: kinds(used.access()).to_vec(),
                    address: self.address(used)?,
                    number: self.value(Value::Register(number)),
                    size: insn.op1_register().size() as u32,
                })
            }
            Mnemonic::Clzero => Some(Special::Aligned {
                kind: Kind::Store,
                address: self.address(used)?,
                size: LINE,
            }),
            Mnemonic::Xlatb => {
                let mut address = self.address(used)?;
                address.index = None;
                let number = self.value(Value::Register(0));
                Some(Special::Byte { address, number })
            }
            _ if matches!(used.memory_size(), MemorySize::Xsave | MemorySize::Xsave64) => {
                const RAX: u8 = 0;
                const RDX: u8 = 2;
                let is_load = matches!(
                    insn.mnemonic(),
                    Mnemonic::Xrstor | Mnemonic::Xrstor64 | Mnemonic::Xrstors | Mnemonic::Xrstors64
                );
                let compact = matches!(insn.mnemonic(), Mnemonic::Xsavec | Mnemonic::Xsavec64);
                Some(Special::State {
                    kind: if is_load { Kind::Load } else { Kind::Store },
                    address: self.address(used)?,
                    selected: (
                        self.value(Value::Register(RAX)),
                        self.value(Value::Register(RDX)),
                    ),
                    area: area(compact),
                })
            }
            _ => None,
        }
    }

    fn strings(&mut self, insn: &iced_x86::Instruction, memory: &[UsedMemory]) -> Option<Special> {
        const RSI: u8 = 6;
        const RDI: u8 = 7;
        let through = |register: usize| {
            let mut used = memory
                .iter()
                .filter(|used| general(used.base()) == Some(register));
            used.find_map(|used| kinds(used.access()).first().copied())
        };
        let (first, second) = (through(RSI.into()), through(RDI.into()));
        let size = insn.memory_size().size() as u32;
        if size == 0 {
            return None;
        }
        self.value(Value::Before(RSI));
        self.value(Value::Before(RDI));
        self.value(Value::Register(if second.is_some() { RDI } else { RSI }));
        Some(Special::Strings {
            first,
            second,
            size,
        })
    }

    fn lanes(&mut self, insn: &iced_x86::Instruction, used: &UsedMemory) -> Option<Special> {
        let operands = 0..insn.op_count();
        let vectors = operands.filter_map(|operand| {
            let register = insn.try_op_register(operand).ok()?;
            register.is_vector_register().then_some(register)
        });
        let vectors: Vec<Register> = vectors.collect();
        let data = vectors.first()?;
        let whole = used.memory_size().element_type();
        let mut size = selected(insn).unwrap_or(whole.size() as u32);
        let mask = insn.op_mask();
        let mask = if mask != Register::None {
            Value::Mask(mask.number() as u8)
        } else {
            let register = match insn.mnemonic() {
                // The second operand is the mask.
                Mnemonic::Maskmovdqu | Mnemonic::Vmaskmovdqu => {
                    size = 1;
                    vectors.get(1)?
                }
                // Destination and mask; or a load or store with the mask before the data.
                _ if used.vsib_size() != 0 => vectors.get(1)?,
                _ if insn.op0_kind() == OpKind::Memory => vectors.first()?,
                _ => vectors.get(1)?,
            };
            size = match insn.mnemonic() {
                Mnemonic::Vmaskmovps | Mnemonic::Vpmaskmovd => 4,
                Mnemonic::Vmaskmovpd | Mnemonic::Vpmaskmovq => 8,
                _ => size,
            };
            Value::Signs(register.number() as u8, size as u8)
        };
        let mask = self.value(mask);
        let mut count = data.size() as u32 / size.max(1);
        let indices = (used.vsib_size() != 0).then(|| {
            let index = used.index();
            count = count.min(index.size() as u32 / used.vsib_size());
            let number = index.number() as u8;
            let is_short = number < 16 && index.size() <= 32;
            let at = match self.analyzed {
                // Only the number of accesses matters.
                Analyzed::Counts => 0,
                _ if is_short => self.value(Value::ShortVector(number)),
                _ => self.value(Value::Vector(number)),
            };
            (at, used.vsib_size())
        });
        if indices.is_none() && insn.op_mask() != Register::None {
            count = used.memory_size().size() as u32 / size.max(1);
        }
        let lanes = Lanes {
            kind: *kinds(used.access()).first()?,
            size,
            count,
            address: match self.analyzed {
                Analyzed::Counts => Address::default(),
                _ => self.address(used)?,
            },
            indices,
            mask,
            packed: is_packed(insn),
        };
        Some(match spread(insn, size) {
            Some(among) => Special::Spread(lanes, among),
            None => Special::Lanes(lanes),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use iced_x86::InstructionInfoFactory;

    use super::super::facts::facts;
    use super::*;

    /// What threads record of these instructions.
    fn recorded(code: &[&'static [u8]]) -> Vec<Value> {
        let facts = |bytes: &&'static [u8]| {
            let facts = facts(&mut InstructionInfoFactory::new(), 0x1000, bytes);
            (0x1000, *bytes, Rc::new(facts))
        };
        let code: Vec<BlockInsn<'_, Facts>> = code.iter().map(facts).collect();
        let block = analyze(0, &code, Vec::new(), Analyzed::Accesses, false);
        assert_eq!(block.insns.len(), code.len());
        let values = block.values.iter();
        values.map(|recorded| recorded.value).collect()
    }

    /// A bit of a mask selects an element of the result.
    #[test]
    fn bits_of_masks_select_what_makes_one_element() {
        let lanes = |bytes: &&'static [u8]| {
            let facts = facts(&mut InstructionInfoFactory::new(), 0x1000, bytes);
            let code = [(0x1000, *bytes, Rc::new(facts))];
            match analyze(0, &code, Vec::new(), Analyzed::Accesses, false).special {
                Some(Special::Lanes(lanes)) => (lanes.size, lanes.count, None),
                Some(Special::Spread(lanes, among)) => (lanes.size, lanes.count, Some(among)),
                other => panic!("{bytes:x?}: {other:?}"),
            }
        };
        let codes: [&[u8]; 5] = [
            // vpmuldq ymm3{k1}, ymm31, [rdx + rsi], and with one number for all lanes
            &[0x62, 0xF2, 0x85, 0x21, 0x28, 0x1C, 0x32],
            &[0x62, 0xF2, 0x85, 0x31, 0x28, 0x1C, 0x32],
            // vpdpbusd zmm3{k1}, zmm15, [rdx + rsi]
            &[0x62, 0xF2, 0x05, 0x49, 0x50, 0x1C, 0x32],
            // vpaddd zmm3{k1}, zmm15, [rdx + rsi]; vpaddw
            &[0x62, 0xF1, 0x05, 0x49, 0xFE, 0x1C, 0x32],
            &[0x62, 0xF1, 0x05, 0x49, 0xFD, 0x1C, 0x32],
        ];
        let all: Vec<_> = codes.iter().map(lanes).collect();
        let expected = [
            (8, 4, None),
            (8, 1, Some(4)),
            (4, 16, None),
            (4, 16, None),
            (2, 32, None),
        ];
        assert_eq!(all, expected);
    }

    #[test]
    fn upper_halves_are_left_out_only_if_they_follow() {
        const RCX: u8 = 1;
        const RSI: u8 = 6;
        const USE: &[u8] = &[0x48, 0x8B, 0x01]; // mov rax, [rcx]
        let after = |code: &'static [u8]| recorded(&[code, USE]);
        // mov rcx, [rsi]; mov ecx, [rsi]; movsxd rcx, [rsi]; mov cl, [rsi]
        let head = Value::Register(RSI);
        assert_eq!(after(&[0x48, 0x8B, 0x0E]), [head, Value::Register(RCX)]);
        assert_eq!(after(&[0x8B, 0x0E]), [head, Value::Half(RCX)]);
        assert_eq!(after(&[0x48, 0x63, 0x0E]), [head, Value::Signed(RCX)]);
        assert_eq!(after(&[0x8A, 0x0E]), [head, Value::Register(RCX)]);
        // mov rcx, [rsi]; imul ecx: the register is only read.
        let code: [&[u8]; 3] = [&[0x48, 0x8B, 0x0E], &[0xF7, 0xE9], USE];
        assert_eq!(recorded(&code), [head, Value::Register(RCX)]);
        // mov ecx, [rsi]; add rcx, rcx: it may have an upper half again.
        let code: [&[u8]; 3] = [&[0x8B, 0x0E], &[0x48, 0x01, 0xC9], USE];
        assert_eq!(recorded(&code), [head, Value::Register(RCX)]);
        // lea rcx, [rip + 4]; mov ecx, 5; xor ecx, ecx: constants.
        assert_eq!(after(&[0x48, 0x8D, 0x0D, 4, 0, 0, 0]), []);
        assert_eq!(after(&[0xB9, 5, 0, 0, 0]), []);
        assert_eq!(after(&[0x31, 0xC9]), []);
    }
}
