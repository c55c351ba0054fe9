//! Code that compares what instructions fetch and access with the lines that the thread used last, and records the
//! rest.
//!
//! The numbers of the last line of an access and of the set of its first one are computed. If the access is of two
//! lines, these do not fit to each other, and no entry of the table has that number. So one comparison is enough.
//!
//! The code needs two registers. If a block has two that its instructions do not use, they are taken for the first
//! access and given back after the last one. The flags are saved only where the program may read them afterward.

use std::sync::Arc;

use iced_x86::{Code as Operation, Decoder, DecoderOptions, FlowControl, Register, UsedMemory};

use hodo_codegen::reserve::unused;
use hodo_isa::liveness::Path;
use hodo_isa::x86_64::asm::{AL, Cond, DWORD, Mem, QWORD, RAX, Reg, gs, mem, mem32, scaled};

use super::X86_64;
use super::block;
use super::emit::{Cold, Fresh, What};
use super::emitter::{Decoded, Emitter};
use super::facts::{general, kinds};
use super::flags::{FLAGS, overwrites_flags, overwritten_flags, read_flags};
use super::{RAX_NUMBER, RCX_NUMBER, SCRATCH, kept};
use crate::access::Kind;
use crate::block::{Block, Transfer};
use crate::client::{FETCHED, USED};
use crate::recent::{LineSets, Recent};
use crate::translate::{Observe, Saved, Stage};

/// What `cmp` subtracts from `al`, which `seto` has set: it overflows if that is 1.
const OVERFLOW: u32 = 0x81;
/// No line has this number.
const NO_LINE: u32 = u32::MAX;

/// How a block is compared.
pub(crate) struct Compared {
    recent: Recent,
    block: Arc<Block>,
    /// By instruction: the program may read the flags that are there before it.
    live: Vec<bool>,
    /// Registers that no instruction uses.
    free: Option<[u8; 2]>,
    /// Where the program's state is: with these registers taken, or not.
    saved: Saved,
    /// The last instruction that accesses memory.
    last: Option<usize>,
    /// The operands of the instructions before.
    operands: u16,
    /// The line that was fetched last.
    line: Option<u64>,
}

/// The program's state is in its registers.
const NOTHING_SAVED: Saved = Saved {
    is_known: true,
    ..Saved::NOTHING
};

impl Compared {
    /// The state before an instruction, if registers are taken there.
    pub(super) fn saved(&self) -> Option<Saved> {
        let is_own = Saved {
            is_own: true,
            ..self.saved
        };
        self.saved.scratch[0].map(|_| is_own)
    }
}

impl Emitter<'_, '_, '_> {
    /// How a block with these instructions is compared.
    pub(super) fn compared(
        &mut self,
        code: &[Decoded],
        block: &Arc<Block>,
        recent: Recent,
    ) -> Compared {
        let code = &code[..block.insns.len()];
        let mut after = self.live_after(code);
        let mut live: Vec<bool> = Vec::with_capacity(code.len());
        for decoded in code.iter().rev() {
            let (read, overwritten) = decoded.facts.flags();
            after = after & !overwritten | read & FLAGS;
            live.push(after != 0);
        }
        live.reverse();
        let accesses = |decoded: &Decoded| !decoded.facts.memory.is_empty();
        let used = code
            .iter()
            .fold(0, |all, decoded| all | decoded.facts.used());
        // It has the flags while these are saved.
        let used = used | u16::from(live.contains(&true)) << RAX_NUMBER;
        let free = unused(&SCRATCH, |number| used >> number & 1 == 1);
        Compared {
            recent,
            block: Arc::clone(block),
            live,
            // Code that may change ends at any instruction.
            free: free.filter(|_| !self.is_soft()),
            saved: NOTHING_SAVED,
            last: code.iter().rposition(accesses),
            operands: 0,
            line: None,
        }
    }

    /// The flags that the program may read after a block.
    fn live_after(&mut self, code: &[Decoded]) -> u32 {
        let Some(last) = code.last() else {
            return FLAGS;
        };
        let next = last.next();
        match last.facts.transfer {
            transfer if overwrites_flags(transfer, self.keeps_flags()) => 0,
            Transfer::Next => self.live_at(next, DEPTH),
            Transfer::Branch => match X86_64::target(last) {
                Some(target) => self.live_at(target, DEPTH) | self.live_at(next, DEPTH),
                None => FLAGS,
            },
            Transfer::Jump | Transfer::Call => {
                let target = super::facts::branch_target(last.pc, last.own());
                target.map_or(FLAGS, |target| self.live_at(target, DEPTH))
            }
            Transfer::Return
            | Transfer::IndirectCall
            | Transfer::IndirectJump
            | Transfer::SystemCall => FLAGS,
        }
    }

    /// The flags that the program may read from an instruction on.
    fn live_at(&mut self, start: u64, depth: u8) -> u32 {
        if let Some(&known) = self.own().live_flags.get(&start) {
            return known;
        }
        let mut path = Path::new(FLAGS);
        let mut pc = start;
        for _ in 0..AHEAD {
            let there = self.read_fixed(pc);
            let Some((bytes, len)) = there else {
                break;
            };
            let insn = Decoder::with_ip(64, &bytes[..len], pc, DecoderOptions::NONE).decode();
            path.step(read_flags(&insn), overwritten_flags(&insn));
            if path.is_decided() || insn.code() == Operation::INVALID {
                break;
            }
            pc = insn.next_ip();
            match insn.flow_control() {
                FlowControl::Next => {}
                FlowControl::UnconditionalBranch | FlowControl::Call
                    if insn.near_branch_target() != 0 =>
                {
                    pc = insn.near_branch_target();
                }
                FlowControl::Return | FlowControl::IndirectCall if !self.keeps_flags() => {
                    path.end(0);
                }
                FlowControl::ConditionalBranch if depth > 0 => {
                    let target = self.live_at(insn.near_branch_target(), depth - 1);
                    path.end(target | self.live_at(pc, depth - 1));
                    break;
                }
                _ => break,
            }
        }
        let live = path.live();
        if depth == DEPTH {
            self.own().live_flags.insert(start, live);
        }
        live
    }

    /// In front of an instruction: compares what it fetches and accesses.
    pub(super) fn compare(&mut self, compared: &mut Compared, number: usize, decoded: &Decoded) {
        self.compare_fetch(compared, number, decoded);
        let memory = &decoded.facts.memory;
        for wanted in [Kind::Load, Kind::Store] {
            for used in memory {
                let kinds = kinds(used.access());
                if !kinds.contains(&wanted) {
                    continue;
                }
                let operand = compared.operands;
                compared.operands += 1;
                // What it has just loaded from, it finds again.
                let again = wanted == Kind::Store && kinds.len() > 1 && memory.len() == 1;
                if !again {
                    self.compare_access(compared, number, decoded.pc, (used, operand));
                }
            }
        }
        let is_last = compared.last.is_none_or(|last| last <= number);
        if is_last && compared.saved.scratch[0].is_some() {
            let saved = std::mem::replace(&mut compared.saved, NOTHING_SAVED);
            self.give_back(decoded.pc, saved);
        }
    }

    /// In front of a special instruction, whose accesses are recorded: what was used last is not known any more.
    pub(super) fn compare_special(&mut self, compared: &mut Compared, decoded: &Decoded) {
        self.compare_fetch(compared, 0, decoded);
        self.set_point(decoded.pc, NOTHING_SAVED);
        self.forget_lines(compared.recent.data);
        self.point(decoded.pc, None);
    }

    fn forget_lines(&mut self, sets: LineSets) {
        for entry in 0..=sets.mask() {
            self.code
                .mov_mi(QWORD, gs(block::USED + 8 * entry), NO_LINE);
        }
    }

    fn compare_fetch(&mut self, compared: &mut Compared, number: usize, decoded: &Decoded) {
        let sets = compared.recent.fetches;
        let first = decoded.pc >> sets.shift();
        let last = (decoded.next() - 1) >> sets.shift();
        let before = compared.line.replace(last);
        if before == Some(first) && first == last {
            return;
        }
        let entries: Vec<(u32, u32)> = (first..=last)
            .map(|line| {
                let entry = line as u32 & sets.mask();
                (block::FETCHED + 4 * entry, self.line_number(line))
            })
            .collect();
        let (label, resume) = (self.code.label(), self.code.label());
        let pc = decoded.pc;
        let mut saved = compared.saved;
        self.set_point(pc, saved);
        if compared.live[number] {
            saved = self.save_flags(pc, saved);
        }
        for &(entry, line) in &entries {
            self.code.cmp_mi(DWORD, gs(entry), line);
            self.code.jcc(Cond::NE, label);
        }
        if saved.flags {
            self.restore_flags(pc, compared.saved);
        }
        self.code.bind(resume);
        if compared.saved.scratch[0].is_none() {
            self.point(pc, None);
        }
        let stage = self.stage();
        self.put_later(Cold::Fresh(Fresh {
            label,
            resume,
            block: Arc::clone(&compared.block),
            pc,
            saved,
            stage,
            what: What::Fetch(number as u16, entries),
        }));
    }

    fn compare_access(
        &mut self,
        compared: &mut Compared,
        number: usize,
        pc: u64,
        (memory, operand): (&UsedMemory, u16),
    ) {
        let live = compared.live[number];
        let registers = compared.free.unwrap_or_else(|| {
            let used = [memory.base(), memory.index()].map(general);
            let is_used =
                |number| used.contains(&Some(usize::from(number))) || live && number == RAX_NUMBER;
            unused(&SCRATCH, is_used).unwrap_or_else(|| unreachable!("there are enough"))
        });
        let mut saved = compared.saved;
        self.set_point(pc, saved);
        if saved.scratch[0].is_none() {
            saved = self.take(pc, registers[0]);
            self.take_second(pc, registers[1], &mut saved);
        }
        let size = (memory.memory_size().size() as u32).max(1);
        let sets = compared.recent.data;
        let (label, resume) = (self.code.label(), self.code.label());
        let taken = saved;
        self.set_point(pc, saved);
        let [line, set] = registers.map(Reg::whole);
        self.address(set, line, memory);
        if live || size > sets.line() {
            self.code.mov_mr(gs(block::ADDRESS), set);
        }
        self.code.lea(line, mem(set, size.cast_signed() - 1));
        if live {
            saved = self.save_flags(pc, saved);
        }
        let offsets = sets.mask() << 3;
        self.code.shr_ri(set.part(DWORD), sets.shift() - 3);
        self.code.and_ri(set.part(DWORD), offsets);
        self.code.shr_ri(line, sets.shift());
        if size <= sets.line() {
            self.code.cmp_rm(line, used(set));
            self.code.jcc(Cond::NE, label);
        } else {
            // It is of three lines or more, so that others than the first one and the last one change.
            self.forget_lines(sets);
            self.code.jmp(label);
        }
        if saved.flags {
            self.restore_flags(pc, taken);
        }
        self.code.bind(resume);
        match compared.free {
            Some(_) => compared.saved = taken,
            None => self.give_back(pc, taken),
        }
        let stage = self.stage();
        self.put_later(Cold::Fresh(Fresh {
            label,
            resume,
            block: Arc::clone(&compared.block),
            pc,
            saved,
            stage,
            what: What::Access {
                operand,
                size,
                memory: *memory,
                registers,
                sets,
            },
        }));
    }

    /// Records what is not of the line that was used last.
    pub(super) fn fresh(&mut self, fresh: Fresh) {
        let Fresh {
            label,
            resume,
            block,
            pc,
            saved,
            stage,
            what,
        } = fresh;
        let id = block.id;
        self.code.bind(label);
        self.begins_block(Some(block));
        self.set_stage(stage);
        self.set_point(pc, saved);
        let known = Saved {
            flags: false,
            ..saved
        };
        match what {
            What::Fetch(insn, entries) => {
                if saved.flags {
                    self.restore_flags(pc, known);
                }
                self.begins_record();
                let taken = match saved.scratch[0] {
                    Some(_) => known,
                    None => self.take(pc, RCX_NUMBER),
                };
                let position = Reg::whole(taken.scratch[0].unwrap_or(RCX_NUMBER));
                self.code.mov_rm(position, gs(block::POSITION));
                self.code
                    .mov_mi(DWORD, mem(position, 0), FETCHED + u32::from(insn));
                self.code.mov_mi(DWORD, mem(position, 4), id);
                self.code.lea(position, mem(position, 8));
                self.code.mov_mr(gs(block::POSITION), position);
                for (entry, line) in entries {
                    self.code.mov_mi(DWORD, gs(entry), line);
                }
                if saved.scratch[0].is_none() {
                    self.give_back(pc, taken);
                }
            }
            What::Access {
                operand,
                size,
                memory,
                registers: [line, set],
                sets,
            } => {
                let [line, set] = [line, set].map(Reg::whole);
                if size <= sets.line() {
                    self.use_line(line, set, size, sets);
                }
                if saved.flags {
                    self.restore_flags(pc, known);
                }
                self.begins_record();
                if saved.flags || size > sets.line() {
                    self.code.mov_rm(line, gs(block::ADDRESS));
                } else {
                    self.address(line, set, &memory);
                }
                let position = set;
                self.code.mov_rm(position, gs(block::POSITION));
                self.code
                    .mov_mi(DWORD, mem(position, 0), USED + u32::from(operand));
                self.code.mov_mi(DWORD, mem(position, 4), id);
                self.code.mov_mr(mem(position, 8), line);
                self.code.lea(position, mem(position, 16));
                self.code.mov_mr(gs(block::POSITION), position);
            }
        }
        self.code.jmp(resume);
        self.set_stage(Stage::Body);
        self.begins_block(None);
    }

    /// Puts the line of an access into the table. If it is of two lines, their sets have unknown lines afterward.
    fn use_line(&mut self, line: Reg, set: Reg, size: u32, sets: LineSets) {
        self.code.mov_mr(used(set), line);
        if size == 1 {
            return;
        }
        let one = self.code.label();
        let (last, set) = (line.part(DWORD), set);
        self.code.shl_ri(last, 3);
        self.code.and_ri(last, sets.mask() << 3);
        self.code.cmp_rr(last, set.part(DWORD));
        self.code.jcc_short(Cond::E, one);
        self.code.mov_mi(QWORD, used(set), NO_LINE);
        self.code.mov_mi(QWORD, used(line), NO_LINE);
        self.code.bind(one);
    }

    /// Computes the address of an operand. `other` is a register that may be changed, too.
    fn address(&mut self, to: Reg, other: Reg, memory: &UsedMemory) {
        let is_narrow = memory.address_size() == iced_x86::CodeSize::Code32;
        let sum = if is_narrow { to.part(DWORD) } else { to };
        let whole = |register: Register| general(register).map(|number| Reg::whole(number as u8));
        let (base, index) = (whole(memory.base()), whole(memory.index()));
        let power = memory.scale().trailing_zeros() as u8;
        let displacement = memory.displacement();
        let short = match is_narrow {
            true => Ok(displacement as u32 as i32),
            false => i32::try_from(displacement.cast_signed()),
        };
        let with = |mem: Mem, index: Option<Reg>| match index {
            Some(index) => mem.plus_scaled(index, power),
            None => mem,
        };
        match (base, index, short) {
            (None, None, _) => match u32::try_from(displacement) {
                Ok(low) => self.code.mov_ri(to.part(DWORD), low),
                Err(_) => self.code.movabs_ri(to, displacement),
            },
            (Some(base), index, Ok(short)) => self.code.lea(sum, with(mem(base, short), index)),
            (None, Some(index), Ok(short)) => self.code.lea(sum, scaled(index, power, short)),
            (base, index, Err(_)) => {
                self.code.movabs_ri(to, displacement);
                if let Some(base) = base {
                    self.code.lea(sum, mem(to, 0).plus(base));
                }
                if index.is_some() {
                    self.code.lea(sum, with(mem(to, 0), index));
                }
            }
        }
        if memory.segment() == Register::FS {
            self.code.rdfsbase(other);
            self.code.lea(to, mem(to, 0).plus(other));
        }
    }

    fn save_flags(&mut self, pc: u64, saved: Saved) -> Saved {
        self.code.mov_mr(gs(block::RAX), RAX);
        self.code.lahf();
        self.set_point(
            pc,
            Saved {
                kept: saved.kept | kept::RAX,
                ..saved
            },
        );
        self.code.seto(AL);
        let saved = Saved {
            flags: true,
            ..saved
        };
        self.set_point(pc, saved);
        saved
    }

    fn restore_flags(&mut self, pc: u64, then: Saved) {
        self.code.cmp_ri(AL, OVERFLOW);
        self.code.sahf();
        self.code.mov_rm(RAX, gs(block::RAX));
        self.set_point(pc, then);
    }
}

/// How many conditional branches are looked past,
const DEPTH: u8 = 2;
/// and how many instructions after each.
const AHEAD: usize = 8;

/// An entry of the table, by its offset.
fn used(offset: Reg) -> Mem {
    mem32(offset, block::USED).in_gs()
}
