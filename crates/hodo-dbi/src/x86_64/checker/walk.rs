//! The walk over the code that was emitted for a fragment.

use std::collections::BTreeMap;
use std::ops::Range;

use iced_x86::{
    Decoder, DecoderOptions, InstructionInfoFactory, Mnemonic, OpAccess, OpKind, Register,
    RflagsBits, UsedMemory,
};

use super::super::facts::general;
use super::super::flags::overwrites_flags;
use super::super::{block as thread, kept};
use super::Emitted;
use super::steps::{Effect, Steps, THREAD, Words, computed, loaded, low};
use crate::block::Transfer;
use crate::client::RECORDED;
use crate::fragment::Instruction;
use crate::inserted::{Compare, Compute, Lanes, Part};
use crate::passes::Moved;
use crate::translate::{Point, Saved};

type Insn = iced_x86::Instruction;

/// The flags. `lahf` stores all but the first one.
const FLAGS: [u32; 6] = [
    RflagsBits::OF,
    RflagsBits::SF,
    RflagsBits::ZF,
    RflagsBits::AF,
    RflagsBits::PF,
    RflagsBits::CF,
];
const ALL: u8 = 0x3F;
const RAX: usize = 0;

/// What the flags are.
type Flags = [Option<u64>; 6];

fn bits(flags: u32) -> u8 {
    let all = FLAGS.iter().zip(0..);
    all.fold(0, |bits, (flag, number)| {
        bits | u8::from(flags & flag != 0) << number
    })
}

/// What a register or a slot has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Has {
    Unknown,
    Number(u64),
    /// Flags, as `lahf` and `seto al` have put them there.
    Flags(Flags),
    /// The address of something in the thread's block,
    Block(i64),
    /// or in the record that comes next.
    Record(i64),
}

impl Has {
    fn number(self) -> Option<u64> {
        match self {
            Self::Number(number) => Some(number),
            _ => None,
        }
    }
}

/// Where an instruction accesses memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Block(i64),
    Record(i64),
    Program(Option<u64>),
}

/// What is known at an instruction.
#[derive(Clone)]
struct State {
    registers: [Has; 16],
    flags: Flags,
    /// Words of the thread's block, by offset.
    block: BTreeMap<i64, Has>,
    /// Fields of the record that comes next.
    record: BTreeMap<i64, Has>,
    /// What was compared last, if nothing else has changed the flags.
    compared: Option<(Has, Has)>,
}

impl State {
    /// What is the same in both.
    fn meet(&mut self, other: &Self) {
        for (one, other) in self.registers.iter_mut().zip(other.registers) {
            if *one != other {
                *one = Has::Unknown;
            }
        }
        for (one, other) in self.flags.iter_mut().zip(other.flags) {
            *one = one.filter(|_| *one == other);
        }
        self.block
            .retain(|at, has| other.block.get(at) == Some(has));
        self.record.clear();
        self.compared = None;
    }

    fn word(&self, at: i64) -> Has {
        self.block.get(&at).copied().unwrap_or(Has::Unknown)
    }

    /// These bytes of the block change.
    fn forget(&mut self, at: i64, len: i64) {
        self.block
            .retain(|&other, _| other + 8 <= at || at + len <= other);
    }
}

struct Walk<'e> {
    emitted: &'e Emitted,
    steps: Steps<'e>,
    words: Words,
    factory: InstructionInfoFactory,
    /// `None`: no instruction leads here.
    state: Option<State>,
    /// What is known where inserted code jumps to.
    ahead: BTreeMap<u64, State>,
    at: u64,
    /// Where the program continues after the fragment, or its last instruction if that does not simply continue.
    last: u64,
    /// Lanes of a gather or scatter that are complete, and whether one is loaded but not in its place.
    lanes: u8,
    is_loaded: bool,
    /// How often the map was compared.
    count: usize,
}

/// Walks over the code for a fragment. Returns how many instructions it has.
///
/// # Errors
/// What is wrong, and where.
pub(super) fn walk(emitted: &Emitted, fragment: usize) -> Result<usize, (u64, String)> {
    let items = &emitted.fragments[fragment];
    let steps = Steps::new(items);
    let span = emitted.span(fragment);
    let state = State {
        registers: steps.registers.map(Has::Number),
        flags: steps.flags.map(Some),
        block: BTreeMap::new(),
        record: BTreeMap::new(),
        compared: None,
    };
    let instructions = steps.rest().chain(steps.heads());
    let last = instructions.max_by_key(|instruction| instruction.pc);
    let last = last.map_or(0, |last| match last.continues {
        true => last.next,
        false => last.pc,
    });
    let mut walk = Walk {
        emitted,
        steps,
        words: Words::default(),
        factory: InstructionInfoFactory::new(),
        state: Some(state),
        ahead: BTreeMap::new(),
        at: span.start,
        last,
        lanes: 0,
        is_loaded: false,
        count: 0,
    };
    match walk.all(span) {
        Ok(()) => Ok(walk.count),
        Err(wrong) => Err((walk.at, wrong)),
    }
}

impl Walk<'_> {
    fn all(&mut self, span: Range<u64>) -> Result<(), String> {
        while self.at < span.end {
            self.arrive()?;
            let insn = self.decoded()?;
            if self.is_last(&insn) {
                self.compare(0)?;
                return self.ends();
            }
            let point = self.point()?;
            let is_own =
                point.at == self.at && point.state.inside.is_some_and(|saved| saved.is_own);
            match is_own {
                true => self.own(&insn)?,
                false => self.inserted(&insn)?,
            }
            self.at += insn.len() as u64;
        }
        self.arrive()?;
        self.compare(ALL)?;
        self.ends()
    }

    fn ends(&mut self) -> Result<(), String> {
        if let Some(missing) = self.steps.effect() {
            return Err(format!("{missing:x?} is missing at the end"));
        }
        if let Some(missing) = self.steps.rest().find(|rest| rest.continues) {
            return Err(format!("{:x?} is missing", missing.bytes()));
        }
        match self.ahead.is_empty() {
            true => Ok(()),
            false => Err("inserted code jumps beyond the fragment".to_owned()),
        }
    }

    fn decoded(&self) -> Result<Insn, String> {
        let bytes = self.emitted.bytes(self.at);
        let insn = Decoder::with_ip(64, bytes, self.at, DecoderOptions::NONE).decode();
        match insn.is_invalid() {
            true => Err("this is no instruction".to_owned()),
            false => Ok(insn),
        }
    }

    fn point(&self) -> Result<Point, String> {
        let point = self.emitted.point(self.at);
        point.copied().ok_or_else(|| "there is no point".to_owned())
    }

    /// Inserted code may jump here.
    fn arrive(&mut self) -> Result<(), String> {
        if let Some(other) = self.ahead.remove(&self.at) {
            match &mut self.state {
                Some(state) => state.meet(&other),
                None => self.state = Some(other),
            }
        }
        match self.ahead.first_key_value() {
            Some((&to, _)) if to < self.at => Err(format!("there is no instruction at {to:#x}")),
            _ => Ok(()),
        }
    }

    fn state(&mut self) -> Result<&mut State, String> {
        self.state
            .as_mut()
            .ok_or_else(|| "nothing leads here".to_owned())
    }

    /// Whether the code for the last instruction begins here, which does not simply continue.
    fn is_last(&self, insn: &Insn) -> bool {
        let mut rest = self.steps.rest();
        let (Some(last), None) = (rest.next(), rest.next()) else {
            return false;
        };
        if last.continues || self.steps.has_effects() || !self.ahead.is_empty() {
            return false;
        }
        let is_store = |slot: u32| {
            insn.mnemonic() == Mnemonic::Mov
                && insn.op0_kind() == OpKind::Memory
                && insn.segment_prefix() == Register::GS
                && insn.memory_displacement64() == u64::from(slot)
        };
        match last.transfer() {
            Transfer::Branch => {
                insn.is_jcc_near() || insn.is_loop() || insn.is_loopcc() || insn.is_jcx_short()
            }
            Transfer::Jump => insn.is_jmp_near(),
            Transfer::Call => insn.is_call_near(),
            Transfer::IndirectCall | Transfer::IndirectJump | Transfer::Return => {
                is_store(thread::RCX)
            }
            Transfer::SystemCall => is_store(thread::RAX),
            Transfer::Next => self.is_copy(last, insn),
        }
    }

    /// Whether this is an instruction of the program. A distance to its operand may be another one.
    fn is_copy(&self, original: &Instruction, insn: &Insn) -> bool {
        let own = original.bytes();
        let bytes = &self.emitted.bytes(self.at)[..insn.len()];
        if !insn.is_ip_rel_memory_operand() {
            return own == bytes;
        }
        let before = original.facts.insn();
        own.len() == bytes.len()
            && before.code() == insn.code()
            && before.op0_register() == insn.op0_register()
            && before.ip_rel_memory_address() == insn.ip_rel_memory_address()
    }

    /// An instruction of the program.
    fn own(&mut self, insn: &Insn) -> Result<(), String> {
        let next = self.steps.rest().next();
        if !next.is_some_and(|next| self.is_copy(next, insn)) {
            return self.lane(insn);
        }
        self.compare(0)?;
        let used = used(&mut self.factory, insn);
        let (registers, flags) = (self.steps.registers, self.steps.flags);
        let state = self.state()?;
        for (number, register) in registers.into_iter().enumerate() {
            if used.reads >> number & 1 == 1 && state.registers[number] != Has::Number(register) {
                let has = state.registers[number];
                return Err(format!("it reads register {number}, which has {has:x?}"));
            }
        }
        let there = state.flags;
        for (number, flag) in flags.into_iter().enumerate() {
            if used.flags_read >> number & 1 == 1 && there[number] != Some(flag) {
                return Err(format!("it reads flag {number}, which is not there"));
            }
        }
        self.steps.program(used.changed, used.modified)?;
        let before = flags;
        let (registers, flags) = (self.steps.registers, self.steps.flags);
        let state = self.state()?;
        for (number, register) in registers.into_iter().enumerate() {
            if used.changed >> number & 1 == 1 {
                state.registers[number] = Has::Number(register);
            }
        }
        for (number, flag) in flags.into_iter().enumerate() {
            // One that may stay as it is does so.
            let is_there = there[number] == Some(before[number]);
            if used.overwritten >> number & 1 == 1 || used.modified >> number & 1 == 1 && is_there {
                state.flags[number] = Some(flag);
            }
        }
        state.compared = None;
        Ok(())
    }

    /// The access of a lane, from the program's registers.
    fn lane(&mut self, insn: &Insn) -> Result<(), String> {
        let lanes = self.steps.heads().filter_map(|head| head.part?.lanes());
        let needed: Vec<u8> = lanes.flat_map(|lanes| lanes.registers()).collect();
        if needed.is_empty() && self.steps.heads().next().is_none() {
            return Err("this is not the program's next instruction".to_owned());
        }
        self.compare(ALL)?;
        for number in needed.into_iter().map(usize::from) {
            let expected = Has::Number(self.steps.registers[number]);
            if self.state()?.registers[number] != expected {
                return Err(format!("it needs register {number}, which is not there"));
            }
        }
        match insn.op0_kind() {
            OpKind::Memory => self.lanes += 1,
            _ => self.is_loaded = true,
        }
        let used = used(&mut self.factory, insn);
        self.changes(&used)
    }

    /// The map says how many lanes of a gather or scatter are complete while this is not seen in its registers.
    fn compare_lanes(&self, point: &Point) -> Result<(), String> {
        let mut heads = self.steps.heads();
        let (Some(head), None) = (heads.next(), heads.next()) else {
            return Ok(());
        };
        let map = point.state.inside.map_or(0, |saved| saved.map);
        let map = self.emitted.maps.get(map as usize).into_iter().flatten();
        let said = map.filter_map(|(moved, _)| match moved {
            Moved::Lanes(_, complete) => Some(*complete),
            _ => None,
        });
        let said: Vec<u8> = said.collect();
        let lanes = head.part.and_then(Part::lanes);
        let has_progress = lanes.is_some_and(Lanes::has_progress);
        let is_after = point.original != head.pc;
        let fits = match said[..] {
            [] => self.lanes == 0 || is_after || !has_progress,
            [complete] => complete == self.lanes && !is_after,
            _ => false,
        };
        match fits {
            true => Ok(()),
            false => Err(format!("{} lanes are complete, not {said:?}", self.lanes)),
        }
    }

    /// Compares what the map says of this instruction with what is there. These flags are needed, also if the program
    /// does not read them any more.
    fn compare(&mut self, needed: u8) -> Result<(), String> {
        let point = self.point()?;
        self.count += 1;
        self.pc(&point)?;
        self.compare_lanes(&point)?;
        let saved = point.state.inside.unwrap_or_default();
        let places = self.places(saved)?;
        let needed = match self.steps.rest().next() {
            Some(_) => {
                let keeps_flags = self.emitted.keeps_flags;
                needed_flags(&mut self.factory, &self.steps, keeps_flags) | needed
            }
            None => ALL,
        };
        let (registers, flags) = (self.steps.registers, self.steps.flags);
        let state = self.state()?;
        for (number, (register, place)) in registers.into_iter().zip(places.registers).enumerate() {
            let has = place.map_or(state.registers[number], |at| state.word(at));
            if has != Has::Number(register) {
                let place = place.map_or("its register".to_owned(), |at| format!("the word {at}"));
                return Err(format!("{place} has {has:x?} instead of register {number}"));
            }
        }
        let there = match places.flags {
            None => state.flags,
            Some(at) => match state.word(at) {
                Has::Flags(flags) => flags,
                has => return Err(format!("the word {at} has {has:x?} instead of flags")),
            },
        };
        for (number, flag) in flags.into_iter().enumerate() {
            if needed >> number & 1 == 1 && there[number] != Some(flag) {
                let place = places.flags;
                return Err(format!("flag {number} is not there, in {place:?}"));
            }
        }
        Ok(())
    }

    /// The instruction of the program that comes next is the one of which the point says so.
    fn pc(&self, point: &Point) -> Result<(), String> {
        let next = self.steps.rest().next().map_or(self.last, |next| next.pc);
        let mut heads = self.steps.heads();
        let fits = point.original == next || heads.any(|head| head.pc == point.original);
        match fits {
            true => Ok(()),
            false => Err(format!(
                "the program is at {next:#x}, not at {:#x}",
                point.original
            )),
        }
    }

    fn places(&self, saved: Saved) -> Result<Places, String> {
        let mut places = Places::default();
        let mut move_to = |number: u8, at: u32| {
            let before = places.registers[usize::from(number)].replace(at.into());
            match before {
                None => Ok(()),
                Some(_) => Err(format!("register {number} is in two places")),
            }
        };
        for (is_saved, number, at) in [
            (saved.kept & kept::RCX != 0, 1, thread::RCX),
            (saved.kept & kept::R11 != 0, 11, thread::R11),
            (saved.kept & kept::RAX != 0 || saved.flags, 0, thread::RAX),
        ] {
            if is_saved {
                move_to(number, at)?;
            }
        }
        for (register, at) in saved.scratch.into_iter().zip(thread::SCRATCH) {
            if let Some(number) = register {
                move_to(number, at)?;
            }
        }
        let map = self.emitted.maps.get(saved.map as usize);
        for &(moved, slot) in map.ok_or("there is no such map")? {
            let at = thread::FIRST_SPILL + 8 * u32::from(slot);
            if let Moved::General(number) = moved {
                move_to(number, at)?;
            } else if moved == Moved::Flags {
                places.flags = Some(at.into());
            }
        }
        Ok(places)
    }
}

/// Where values of the program are that are not in their registers: offsets in the thread's block.
#[derive(Default)]
struct Places {
    registers: [Option<i64>; 16],
    flags: Option<i64>,
}

/// What an instruction does, by another reckoning than the translator's.
struct Used {
    /// Registers that it reads, or of which it leaves a part,
    reads: u16,
    /// and those that it changes.
    changed: u16,
    /// Flags that it reads,
    flags_read: u8,
    /// those that it may change,
    modified: u8,
    /// and those that it changes whatever its operands are.
    overwritten: u8,
    can_fault: bool,
    memory: Vec<UsedMemory>,
}

fn used(factory: &mut InstructionInfoFactory, insn: &Insn) -> Used {
    let info = factory.info(insn);
    let mut used = Used {
        reads: 0,
        changed: 0,
        flags_read: bits(insn.rflags_read()),
        modified: bits(insn.rflags_modified()),
        overwritten: bits(insn.rflags_modified()),
        can_fault: false,
        memory: Vec::new(),
    };
    let memory = info.used_memory().iter();
    let is_access = |memory: &&UsedMemory| memory.access() != OpAccess::NoMemAccess;
    used.memory.extend(memory.filter(is_access));
    for register in info.used_registers() {
        let Some(number) = general(register.register()) else {
            continue;
        };
        let is_short = register.register().size() < 4;
        let (reads, writes) = match register.access() {
            OpAccess::Read | OpAccess::CondRead => (true, false),
            OpAccess::Write => (is_short, true),
            OpAccess::None | OpAccess::NoMemAccess => (false, false),
            _ => (true, true),
        };
        used.reads |= u16::from(reads) << number;
        used.changed |= u16::from(writes) << number;
    }
    // What is counted may be zero. These operate on the whole of a register, whichever it is.
    let is_counted = !matches!(
        insn.mnemonic(),
        Mnemonic::Adc
            | Mnemonic::Add
            | Mnemonic::And
            | Mnemonic::Cmp
            | Mnemonic::Cmpxchg
            | Mnemonic::Or
            | Mnemonic::Sbb
            | Mnemonic::Sub
            | Mnemonic::Test
            | Mnemonic::Xadd
            | Mnemonic::Xor
    );
    let by_register = is_counted && insn.op_count() > 1 && {
        let last = insn.op_count() - 1;
        insn.op_kind(last) == OpKind::Register && insn.op_register(last) == Register::CL
    };
    let repeats = insn.has_rep_prefix() || insn.has_repne_prefix();
    if by_register || repeats && insn.is_string_instruction() {
        used.overwritten = 0;
    }
    if matches!(
        insn.mnemonic(),
        Mnemonic::Bsf
            | Mnemonic::Bsr
            | Mnemonic::Lar
            | Mnemonic::Lsl
            | Mnemonic::Rdsspd
            | Mnemonic::Rdsspq
    ) {
        used.reads |= used.changed;
    }
    used.can_fault = !used.memory.is_empty()
        || insn.is_privileged()
        || matches!(
            insn.mnemonic(),
            Mnemonic::Div | Mnemonic::Idiv | Mnemonic::Cpuid | Mnemonic::Rdtsc | Mnemonic::Ud2
        );
    used
}

/// Flags that the program reads before it overwrites them, or that a handler of a fault sees before.
fn needed_flags(factory: &mut InstructionInfoFactory, steps: &Steps<'_>, keeps_flags: bool) -> u8 {
    let (mut needed, mut rest) = (0, live(steps, keeps_flags));
    for instruction in steps.rest() {
        if !instruction.continues {
            break;
        }
        let insn = instruction.facts.insn();
        let used = used(factory, insn);
        if used.can_fault {
            return needed | rest;
        }
        needed |= used.flags_read & rest;
        rest &= !used.overwritten;
    }
    needed | rest
}

/// All flags, unless the fragment ends in a way that does not keep flags, and nothing else comes before.
fn live(steps: &Steps<'_>, keeps_flags: bool) -> u8 {
    match steps.rest().next() {
        Some(last) if overwrites_flags(last.transfer(), keeps_flags) => 0,
        _ => ALL,
    }
}

impl Walk<'_> {
    fn place(&self, memory: &UsedMemory) -> Place {
        let has = |register: Register| match (register, general(register)) {
            (Register::None, _) => Has::Number(0),
            (_, Some(number)) => {
                let state = self.state.as_ref();
                state.map_or(Has::Unknown, |state| state.registers[number])
            }
            _ => Has::Unknown,
        };
        let (base, index) = (has(memory.base()), has(memory.index()));
        let displacement = memory.displacement().cast_signed();
        if memory.segment() == Register::GS {
            return match (base, index) {
                (Has::Number(0), Has::Number(0)) => Place::Block(displacement),
                _ => Place::Program(None),
            };
        }
        let index = index
            .number()
            .map(|index| index.wrapping_mul(memory.scale().into()));
        match (base, index) {
            (Has::Block(at), Some(0)) => Place::Block(at + displacement),
            (Has::Record(at), Some(0)) => Place::Record(at + displacement),
            (Has::Number(base), Some(index)) => {
                let sum = base.wrapping_add(index).wrapping_add_signed(displacement);
                Place::Program(Some(sum))
            }
            _ => Place::Program(None),
        }
    }

    /// An instruction of inserted code.
    fn inserted(&mut self, insn: &Insn) -> Result<(), String> {
        let used = used(&mut self.factory, insn);
        let place = used.memory.first().map(|memory| self.place(memory));
        // A fault there is shown to the program at once.
        let may_fault = matches!(place, Some(Place::Program(_)));
        self.compare(if may_fault { ALL } else { 0 })?;
        if insn.is_jcc_short_or_near() {
            return self.branch(insn);
        }
        if insn.is_jmp_short_or_near() {
            let state = self.state()?.clone();
            self.state = None;
            return self.leads(insn.near_branch_target(), state);
        }
        match insn.mnemonic() {
            Mnemonic::Mov | Mnemonic::Movzx => self.mov(insn, &used, place),
            Mnemonic::Lea => self.lea(insn),
            Mnemonic::Lahf | Mnemonic::Seto | Mnemonic::Sahf => self.flags(insn),
            Mnemonic::Rdfsbase => self.set(insn, Has::Number(THREAD)),
            Mnemonic::Rdgsbase => self.set(insn, Has::Block(0)),
            Mnemonic::Add
            | Mnemonic::Sub
            | Mnemonic::And
            | Mnemonic::Or
            | Mnemonic::Xor
            | Mnemonic::Shl
            | Mnemonic::Shr
            | Mnemonic::Cmp => self.compute(insn, &used, place),
            _ => self.other(&used),
        }
    }

    /// It changes what it changes, nobody knows to what.
    fn changes(&mut self, used: &Used) -> Result<(), String> {
        let state = self.state()?;
        for number in 0..16 {
            if used.changed >> number & 1 == 1 {
                state.registers[number] = Has::Unknown;
            }
        }
        if used.modified != 0 {
            state.flags = [None; 6];
            state.compared = None;
        }
        Ok(())
    }

    fn other(&mut self, used: &Used) -> Result<(), String> {
        for memory in &used.memory {
            let len = memory.memory_size().size() as i64;
            let writes = !matches!(memory.access(), OpAccess::Read | OpAccess::CondRead);
            if let (Place::Block(at), true) = (self.place(memory), writes) {
                self.state()?.forget(at, len.max(8));
            }
        }
        self.changes(used)
    }

    fn set(&mut self, insn: &Insn, has: Has) -> Result<(), String> {
        let number = general(insn.op0_register()).ok_or("it sets no register")?;
        self.state()?.registers[number] = has;
        Ok(())
    }

    /// What an operand has that is no memory.
    fn operand(&self, insn: &Insn, operand: u32) -> Has {
        if insn.op_kind(operand) != OpKind::Register {
            let number = insn.try_immediate(operand);
            return number.map_or(Has::Unknown, Has::Number);
        }
        let register = insn.op_register(operand);
        match (general(register), &self.state) {
            (Some(number), Some(state)) => state.registers[number],
            _ => Has::Unknown,
        }
    }

    fn mov(&mut self, insn: &Insn, used: &Used, place: Option<Place>) -> Result<(), String> {
        let bytes = used
            .memory
            .first()
            .map(|memory| memory.memory_size().size() as u8);
        let (Some(place), Some(bytes)) = (place, bytes) else {
            let from = match insn.op0_register().size() {
                8 => self.operand(insn, 1),
                4 => match self.operand(insn, 1) {
                    Has::Number(number) => Has::Number(low(number, 4)),
                    _ => Has::Unknown,
                },
                _ => Has::Unknown,
            };
            return self.set(insn, from);
        };
        if insn.op0_kind() == OpKind::Memory {
            let value = self.operand(insn, 1);
            return self.store(place, bytes, value);
        }
        if insn.op0_register().size() < 4 {
            return self.other(used);
        }
        let loaded = self.load(place, bytes)?;
        self.set(insn, loaded)
    }

    fn load(&mut self, place: Place, bytes: u8) -> Result<Has, String> {
        Ok(match place {
            Place::Block(at) if at == i64::from(thread::POSITION) => Has::Record(0),
            Place::Block(at) if bytes < 8 && at < i64::from(thread::COUNTERS) => Has::Unknown,
            Place::Block(at) => match word(at) {
                Some(word) => Has::Number(self.words.read(word)),
                None => self.state()?.word(at),
            },
            Place::Record(_) => Has::Unknown,
            Place::Program(at) => {
                let found = loaded(self.steps.effects(), bytes);
                self.effect(Effect::Load(at, bytes))?;
                Has::Number(found)
            }
        })
    }

    fn store(&mut self, place: Place, bytes: u8, value: Has) -> Result<(), String> {
        match place {
            Place::Block(at) if at == i64::from(thread::POSITION) => self.recorded(value),
            Place::Block(at) => match word(at) {
                Some(word) => self.written(word, value.number()),
                None => {
                    let lanes = i64::from(thread::LANES);
                    if (lanes..lanes + 64).contains(&at) && std::mem::take(&mut self.is_loaded) {
                        self.lanes += 1;
                    }
                    let state = self.state()?;
                    state.forget(at, bytes.into());
                    if bytes == 8 {
                        state.block.insert(at, value);
                    }
                    Ok(())
                }
            },
            Place::Record(at) => {
                self.state()?.record.insert(at, value);
                Ok(())
            }
            Place::Program(at) => {
                let value = value.number().map(|value| low(value, bytes));
                self.effect(Effect::Store(at, bytes, value))
            }
        }
    }

    fn written(&mut self, word: u32, value: Option<u64>) -> Result<(), String> {
        self.words.written(word);
        self.effect(Effect::Word(word, value))
    }

    /// A record is complete.
    fn recorded(&mut self, position: Has) -> Result<(), String> {
        let state = self.state()?;
        let field = |at| state.record.get(&at).copied().unwrap_or(Has::Unknown);
        let (kind, number, value) = (field(0), field(4), field(8));
        state.record.clear();
        let kind = kind.number().map(|kind| low(kind, 4));
        if position != Has::Record(16) || kind != Some(RECORDED.into()) {
            return Err(format!(
                "a record has the kind {kind:?} and ends at {position:?}"
            ));
        }
        let number = number.number().ok_or("a record has no number")?;
        self.effect(Effect::Record(number as u32, value.number()))
    }

    fn effect(&mut self, seen: Effect) -> Result<(), String> {
        match self.steps.effect() {
            Some(expected) if seen.is(expected) => Ok(()),
            expected => Err(format!("there is {seen:x?} instead of {expected:x?}")),
        }
    }

    fn lea(&mut self, insn: &Insn) -> Result<(), String> {
        let memory = UsedMemory::new(
            Register::None,
            insn.memory_base(),
            insn.memory_index(),
            insn.memory_index_scale(),
            insn.memory_displacement64(),
            insn.memory_size(),
            OpAccess::NoMemAccess,
        );
        let has = match self.place(&memory) {
            Place::Block(at) => Has::Block(at),
            Place::Record(at) => Has::Record(at),
            Place::Program(Some(sum)) => Has::Number(sum),
            Place::Program(None) => Has::Unknown,
        };
        self.set(insn, has)
    }

    /// One of the instructions that save and restore flags.
    fn flags(&mut self, insn: &Insn) -> Result<(), String> {
        let state = self.state()?;
        let flags = state.flags;
        match (insn.mnemonic(), state.registers[RAX]) {
            (Mnemonic::Lahf, _) => {
                let [_, rest @ ..] = flags;
                let [sign, zero, adjust, parity, carry] = rest;
                state.registers[RAX] = Has::Flags([None, sign, zero, adjust, parity, carry]);
            }
            (Mnemonic::Seto, Has::Flags([_, rest @ ..])) if insn.op0_register() == Register::AL => {
                let [sign, zero, adjust, parity, carry] = rest;
                state.registers[RAX] = Has::Flags([flags[0], sign, zero, adjust, parity, carry]);
            }
            (Mnemonic::Sahf, Has::Flags([_, rest @ ..])) => {
                let [sign, zero, adjust, parity, carry] = rest;
                state.flags = [flags[0], sign, zero, adjust, parity, carry];
                state.compared = None;
            }
            _ => return Err("flags come from something else".to_owned()),
        }
        Ok(())
    }

    fn compute(&mut self, insn: &Insn, used: &Used, place: Option<Place>) -> Result<(), String> {
        if insn.mnemonic() == Mnemonic::Add
            && insn.op0_register() == Register::AL
            && insn.try_immediate(1).is_ok_and(|number| number == 127)
        {
            return self.overflow();
        }
        if let Some(Place::Block(at)) = place
            && let (Some(word), Mnemonic::Add) = (word(at), insn.mnemonic())
        {
            let added = self.operand(insn, 1).number();
            let sum = added.map(|added| self.words.read(word).wrapping_add(added));
            self.changes(used)?;
            return self.written(word, sum);
        }
        if place.is_some() || insn.op0_register().size() != 8 {
            return self.other(used);
        }
        let (left, right) = (self.operand(insn, 0), self.operand(insn, 1));
        self.changes(used)?;
        if insn.mnemonic() == Mnemonic::Cmp {
            self.state()?.compared = Some((left, right));
            return Ok(());
        }
        let (Has::Number(left), Has::Number(right)) = (left, right) else {
            return Ok(());
        };
        let result = match insn.mnemonic() {
            Mnemonic::Add => computed(Compute::Add, left, right),
            Mnemonic::Sub => computed(Compute::Subtract, left, right),
            Mnemonic::And => computed(Compute::And, left, right),
            Mnemonic::Or => computed(Compute::Or, left, right),
            Mnemonic::Xor => computed(Compute::Xor, left, right),
            Mnemonic::Shl => left << (right & 63),
            _ => left >> (right & 63),
        };
        self.set(insn, Has::Number(result))
    }

    /// `add al, 127`: what `seto` has put there becomes an overflow again.
    fn overflow(&mut self) -> Result<(), String> {
        let state = self.state()?;
        let Has::Flags([overflow, rest @ ..]) = state.registers[RAX] else {
            return Err("the overflow comes from something else".to_owned());
        };
        let [sign, zero, adjust, parity, carry] = rest;
        state.registers[RAX] = Has::Flags([None, sign, zero, adjust, parity, carry]);
        state.flags = [overflow, None, None, None, None, None];
        state.compared = None;
        Ok(())
    }

    fn branch(&mut self, insn: &Insn) -> Result<(), String> {
        if let Some((left, right)) = self.state()?.compared {
            let compare = match insn.mnemonic() {
                Mnemonic::Jne => Compare::Equal,
                Mnemonic::Je => Compare::Different,
                Mnemonic::Jae => Compare::Below,
                Mnemonic::Jb => Compare::NotBelow,
                Mnemonic::Jge => Compare::Less,
                Mnemonic::Jl => Compare::NotLess,
                _ => return Err("nothing compares so".to_owned()),
            };
            self.effect(Effect::Skip(compare, left.number(), right.number()))?;
        }
        let state = self.state()?.clone();
        self.leads(insn.near_branch_target(), state)
    }

    fn leads(&mut self, to: u64, state: State) -> Result<(), String> {
        if to <= self.at {
            return Err("inserted code jumps back".to_owned());
        }
        match self.ahead.entry(to) {
            std::collections::btree_map::Entry::Occupied(mut there) => there.get_mut().meet(&state),
            std::collections::btree_map::Entry::Vacant(there) => drop(there.insert(state)),
        }
        Ok(())
    }
}

/// The number of the word of the thread that is at an offset in its block.
fn word(at: i64) -> Option<u32> {
    let offset = at.checked_sub(thread::COUNTERS.into())?;
    u32::try_from(offset / 8).ok().filter(|_| offset >= 0)
}
