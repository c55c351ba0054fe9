//! Turns a program's code into code of the cache.
//!
//! The translation of a piece keeps the order of its instructions. Return addresses on the stack are the original ones:
//! a call pushes the program's own address, and a return looks up where the cache continues. The processor still
//! predicts returns, because calls are calls and returns are returns.
//!
//! Between instructions of the program, all of its registers have their values. Inside the code that stands for one
//! instruction, some may be in the thread's block; [`Point`]s say where.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;

use iced_x86::{InstructionInfoFactory, UsedMemory};
use rustc_hash::{FxHashMap, FxHashSet};
use serde::{Deserialize, Serialize};

use hodo_abi::Span;
use hodo_isa::x86_64::asm::{
    AL, Code, Cond, DWORD, Label, QWORD, RAX, RCX, RSP, Reg, gs, label, mem, mem32, scaled,
};
use hodo_isa::x86_64::decode::{Insn, Kind, decode};

use super::analyze::Facts;
use super::block;
use crate::block::Block;
use crate::events::Watch;
use crate::fixups::{Depends, Fixups};
use crate::passes::Passes;
use crate::profile::Profile;
use crate::recent::{LineSets, Recent};
use crate::table;

/// The work register besides `rcx`.
pub(super) const R11: Reg = Reg::whole(11);
const R11D: Reg = R11.part(DWORD);
pub(super) const ECX: Reg = RCX.part(DWORD);

/// The maximum number of versions of an instruction that are not for all threads.
const MOST_VERSIONS: usize = 4;

/// Which of the program's registers are in the thread's block instead.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub(crate) struct Saved {
    pub(crate) rcx: bool,
    pub(crate) r11: bool,
    /// `rax`.
    pub(crate) rax: bool,
    /// `rax`, and the flags are in it.
    pub(crate) flags: bool,
    /// Registers in the two words for scratch registers.
    pub(crate) scratch: [Option<u8>; 2],
    /// The program's own instruction comes here.
    pub(crate) is_own: bool,
    /// The thread need not go on to have the program's state: that of the instruction which is being executed.
    pub(crate) is_known: bool,
    /// It is in a fragment.
    pub(crate) in_fragment: bool,
    /// The number of a map of what else is in the thread's block.
    pub(crate) map: u32,
}

/// What of the code for a block has been executed, besides that for the instructions before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub(crate) enum Stage {
    /// Everything.
    #[default]
    Body,
    /// Nothing: neither the counter nor the record.
    Head,
    /// The counter.
    Counted,
    /// The record of a repeated instruction, which is being executed, is not written yet.
    Repeating,
    /// The record of a repeated instruction, which has been executed, is not written yet.
    Repeated,
    /// A branch has left the block after this many instructions; the record of that is not written yet.
    Left(u16),
}

/// From an address in the cache on, the state of a thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Point {
    pub(crate) at: u64,
    /// The instruction of the program that is being executed, or comes next.
    pub(crate) original: u64,
    /// `None`: at `at` itself, the thread is in front of that instruction, with the program's state.
    pub(crate) inside: Option<Saved>,
    pub(crate) stage: Stage,
}

/// What is inserted into the code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Insertion {
    /// Counters of blocks.
    pub(crate) counts: bool,
    /// Records of all blocks; else only of those with special accesses.
    pub(crate) records: bool,
    /// Records of accesses that are not of the lines that were used last.
    pub(crate) recent: Option<Recent>,
}

impl Insertion {
    /// Whether something is inserted for a client. If so, passes see only what accesses lanes; else, all code.
    fn observes(&self) -> bool {
        self.counts || self.records || self.recent.is_some()
    }
}

/// Where the cache ends, because what follows is not translated.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Exit {
    /// The breakpoint.
    pub(crate) trap: u64,
    /// The word that holds where to jump: at first to the breakpoint.
    pub(crate) cell: u64,
    /// The program's instruction that comes next.
    pub(crate) target: u64,
    /// The word holds the address of its translation.
    pub(crate) linked: bool,
}

/// What was translated.
#[derive(Debug, Default)]
pub(crate) struct Translation {
    pub(crate) bytes: Vec<u8>,
    /// In ascending order.
    pub(crate) points: Vec<Point>,
    /// Instructions of the program and their translations.
    pub(crate) instructions: Vec<(u64, u64)>,
    /// Where calls return to, and the translation.
    pub(crate) returns: Vec<(u64, u64)>,
    pub(crate) exits: Vec<Exit>,
    /// Breakpoints before watched system calls, and the instructions that make these.
    pub(crate) calls: Vec<(u64, u64)>,
    /// Breakpoints that are reached with a target in `rcx` that is not in the table, and where to continue with its
    /// address in the cache in `r11`.
    pub(crate) misses: Vec<(u64, u64)>,
    /// Blocks, and where their code begins. Code that belongs to none begins at an address without a block.
    pub(crate) blocks: Vec<(u64, Option<Arc<Block>>)>,
    /// Where code begins that writes a record: it can be executed again if it faults.
    pub(crate) records: Vec<u64>,
    /// Words of the code that depend on places, if nothing but counters is inserted.
    pub(crate) fixups: Fixups,
    /// Instructions to which others lead than the ones before them.
    pub(crate) entries: Vec<u64>,
}

/// What a translation depends on.
pub(crate) struct Request<'r> {
    /// The first instructions.
    pub(crate) starts: &'r [u64],
    /// Only these are translated, with what lies between them, in a way that records less. How often blocks of the program
    /// were executed helps with that.
    pub(crate) profile: Option<&'r Profile>,
    /// The maximum number of instructions that are translated.
    pub(crate) most: usize,
    /// What is not here is not translated.
    pub(crate) within: Span,
    /// Where the translation will be.
    pub(crate) base: u64,
    /// The address of the table of targets.
    pub(crate) table: u32,
    /// Reads the program's code at an address: up to sixteen bytes, and how many there are. `None`: it is not code that
    /// the program may execute.
    pub(crate) read: &'r mut dyn FnMut(u64) -> Option<([u8; 16], usize)>,
    /// Where an instruction of the program was translated to.
    pub(crate) known: &'r dyn Fn(u64) -> Option<u64>,
    /// Whether an instruction may change.
    pub(crate) soft: &'r dyn Fn(u64) -> bool,
    pub(crate) insertion: Option<Insertion>,
    /// What changes the code.
    pub(crate) passes: Option<&'r RefCell<Passes>>,
    /// The file from which code is, and where it is in that.
    pub(crate) file: &'r dyn Fn(u64) -> Option<(PathBuf, u64)>,
    /// The events that a client wants to hear of.
    pub(crate) watch: Option<&'r Watch>,
    /// Numbers for blocks, and for their counters.
    pub(crate) numbers: &'r mut dyn FnMut() -> (u32, u32),
    /// Numbers for lines from which instructions are fetched.
    pub(crate) line_number: &'r mut dyn FnMut(u64) -> u32,
}

/// Code that is put after all other code.
pub(super) enum Cold {
    /// The end of a call: replaces the cache's return address by the program's, and jumps.
    Call {
        label: Label,
        original: u64,
        back: u64,
        to: Callee,
    },
    /// A target is not in its first place in the table.
    Displaced {
        label: Label,
        original: u64,
        saved: Saved,
        /// Where to continue when it is found in the table,
        found: Label,
        /// and when its address in the cache is in `r11`.
        known: Label,
    },
    /// A branch leaves a block.
    Leave {
        label: Label,
        block: Arc<Block>,
        upto: u16,
        target: Version,
    },
    /// What is fetched or accessed is not of the line that was used last.
    Fresh(Fresh),
}

/// What has to be recorded, because it is not of the line that was used last.
pub(super) struct Fresh {
    pub(super) label: Label,
    pub(super) resume: Label,
    pub(super) block: Arc<Block>,
    pub(super) pc: u64,
    /// Where the program's state is when this is reached.
    pub(super) saved: Saved,
    pub(super) stage: Stage,
    pub(super) what: What,
}

/// What is not of the line that was used last.
pub(super) enum What {
    /// The number of an instruction, and the entries of the table with the numbers of its lines.
    Fetch(u16, Vec<(u32, u32)>),
    Access {
        /// The number of the operand in the block.
        operand: u16,
        size: u32,
        memory: UsedMemory,
        /// What computes the numbers of the line and of the set.
        registers: [u8; 2],
        sets: LineSets,
    },
}

/// A translation of an instruction: for threads of which the values of these registers are known from what they have
/// recorded, bit by number. The translation without such registers is for all threads.
pub(super) type Version = (u64, u16);

pub(super) enum Callee {
    At(u64),
    /// The address is in the thread's block.
    Looked,
}

pub(super) struct Translator<'c, 'r> {
    pub(super) code: Code<'c>,
    pub(super) request: Request<'r>,
    pub(super) labels: FxHashMap<Version, Label>,
    pub(super) bound: FxHashSet<Version>,
    /// The registers of the versions of each instruction that are not for all threads.
    pub(super) versions: FxHashMap<u64, Vec<u16>>,
    queue: VecDeque<Version>,
    /// Where the translation begins.
    starts: FxHashSet<u64>,
    /// The versions of the blocks by number.
    pub(super) block_versions: FxHashMap<u32, Version>,
    /// The versions to which blocks lead, by their numbers and the number of instructions after which they are left.
    pub(super) leads: FxHashMap<(u32, u16), Vec<Version>>,
    /// The block and the number of instructions after which the code that is being translated leaves it.
    pub(super) leaving: Option<(u32, u16)>,
    /// Registers whose values are known where the code that is being translated leads to.
    pub(super) known_registers: u16,
    /// What instructions do that blocks have.
    pub(super) facts: FxHashMap<u64, Rc<Facts>>,
    pub(super) factory: InstructionInfoFactory,
    /// Flags that the program may read from instructions on.
    pub(super) live_flags: FxHashMap<u64, u32>,
    pub(super) cold: Vec<Cold>,
    pub(super) out: Translation,
    pub(super) left: usize,
    pub(super) stage: Stage,
    /// Whether the code may change.
    pub(super) is_soft: bool,
}

/// Translates the code from an instruction on, and code that it leads to.
pub(crate) fn translate(request: Request<'_>) -> Translation {
    let mut bytes = Vec::new();
    let is_soft = request.starts.iter().any(|&start| (request.soft)(start));
    let mut translator = Translator {
        code: Code::new(&mut bytes, request.base),
        labels: FxHashMap::with_capacity_and_hasher(request.most, Default::default()),
        bound: FxHashSet::with_capacity_and_hasher(request.most, Default::default()),
        versions: FxHashMap::default(),
        queue: request.starts.iter().map(|&start| (start, 0)).collect(),
        starts: request.starts.iter().copied().collect(),
        block_versions: FxHashMap::default(),
        leads: FxHashMap::default(),
        leaving: None,
        known_registers: 0,
        facts: FxHashMap::default(),
        factory: InstructionInfoFactory::new(),
        live_flags: FxHashMap::default(),
        cold: Vec::new(),
        out: Translation::default(),
        left: request.most,
        stage: Stage::Body,
        is_soft,
        request,
    };
    translator.all();
    if translator.request.profile.is_some() {
        translator.forget_unneeded();
    }
    let mut out = translator.out;
    out.bytes = bytes;
    out
}

impl Translator<'_, '_> {
    fn all(&mut self) {
        while let Some(version) = self.queue.pop_front() {
            if !self.is_elsewhere(version) {
                match self.request.insertion.filter(Insertion::observes) {
                    Some(insertion) => self.blocks(version, insertion),
                    None if self.request.passes.is_some() => self.fragments(version),
                    None => self.piece(version.0),
                }
                self.calls();
            }
        }
        self.out.blocks.push((self.code.here(), None));
        for cold in std::mem::take(&mut self.cold) {
            self.cold(cold);
        }
        self.exits();
    }

    /// The ends of calls are near their beginnings: each call comes there.
    fn calls(&mut self) {
        let is_call = |cold: &mut Cold| matches!(cold, Cold::Call { .. });
        let calls: Vec<Cold> = self.cold.extract_if(.., is_call).collect();
        if !calls.is_empty() {
            self.out.blocks.push((self.code.here(), None));
        }
        for call in calls {
            self.cold(call);
        }
    }

    /// Whether the translation of an instruction is or will be elsewhere. Code that may change and code that does not are
    /// never translated together.
    pub(super) fn is_elsewhere(&self, version: Version) -> bool {
        let (pc, registers) = version;
        let is_known = || match self.request.profile {
            Some(_) => !self.starts.contains(&pc),
            None => (self.request.known)(pc).is_some(),
        };
        self.bound.contains(&version)
            || registers == 0 && is_known()
            || self.left == 0
            || (self.request.soft)(pc) != self.is_soft
            || !self.request.within.contains(pc)
    }

    /// Code that has been translated, is in reach, and stays as it is.
    fn known(&self, (pc, registers): Version) -> Option<u64> {
        let is_here = self.request.profile.is_some() && self.starts.contains(&pc);
        if registers != 0 || is_here || (self.request.soft)(pc) {
            return None;
        }
        let at = (self.request.known)(pc)?;
        let far = at.abs_diff(self.code.here()) >= 1 << 30;
        (!far).then_some(at)
    }

    pub(super) fn label_of(&mut self, version: Version) -> Label {
        if let Some(&label) = self.labels.get(&version) {
            return label;
        }
        let label = self.code.label();
        self.labels.insert(version, label);
        self.queue.push_back(version);
        label
    }

    /// The best version of an instruction where the values of these registers are known.
    pub(super) fn version(&mut self, pc: u64, registers: u16) -> Version {
        let version = self.choose_version(pc, registers);
        if let Some(leaving) = self.leaving
            && version.1 != 0
        {
            self.leads.entry(leaving).or_default().push(version);
        }
        version
    }

    fn choose_version(&mut self, pc: u64, registers: u16) -> Version {
        if registers == 0 || self.request.profile.is_none() || !self.starts.contains(&pc) {
            return (pc, 0);
        }
        let versions = self.versions.entry(pc).or_default();
        let fitting = versions
            .iter()
            .filter(|&&version| version & !registers == 0);
        let best = fitting.max_by_key(|version| version.count_ones()).copied();
        match best {
            Some(best) if best == registers || versions.len() >= MOST_VERSIONS => (pc, best),
            None if versions.len() >= MOST_VERSIONS => (pc, 0),
            _ if self.left == 0 => (pc, best.unwrap_or(0)),
            _ => {
                versions.push(registers);
                (pc, registers)
            }
        }
    }

    /// The state from here on.
    pub(super) fn point(&mut self, original: u64, inside: Option<Saved>) {
        let at = self.code.here();
        let point = Point {
            at,
            original,
            inside,
            stage: self.stage,
        };
        match self.out.points.last_mut() {
            Some(last) if last.at == at && inside.is_some() => {}
            Some(last) if last.at == at => *last = point,
            _ => self.out.points.push(point),
        }
    }

    pub(super) fn inside(&mut self, original: u64, saved: Saved) {
        self.point(original, Some(saved));
    }

    /// Translates instructions up to one that does not continue.
    fn piece(&mut self, mut pc: u64) {
        loop {
            if self.is_elsewhere((pc, 0)) {
                self.point(pc, None);
                return self.jump_to(pc);
            }
            let label = self.label_of((pc, 0));
            let decoded = (self.request.read)(pc).map(|(bytes, len)| {
                let insn = decode(&bytes).filter(|insn| usize::from(insn.len) <= len);
                (bytes, insn)
            });
            let Some((bytes, insn)) = decoded else {
                // The program must not execute this: the exit shows it the fault.
                return self.jump_to(pc);
            };
            self.code.bind(label);
            self.bound.insert((pc, 0));
            self.left -= 1;
            self.point(pc, None);
            self.out.instructions.push((pc, self.code.here()));
            let Some(insn) = insn else {
                // It is no instruction here, either.
                self.code.raw(&bytes[..1]);
                self.code.raw(&INVALID);
                return;
            };
            if !self.instruction(pc, &bytes, insn) {
                return;
            }
            pc += u64::from(insn.len);
        }
    }

    /// The last `len` bytes before the last `after` ones depend on a place.
    pub(super) fn fix(&mut self, depends: Depends, len: u64, after: u64) {
        let offset = self.code.here() - self.request.base - len - after;
        self.out.fixups.add(offset, depends);
    }

    /// Jumps to the version for the registers that are known here.
    pub(super) fn jump_to(&mut self, pc: u64) {
        self.out.entries.push(pc);
        let version = self.version(pc, self.known_registers);
        self.jump_to_version(version);
    }

    pub(super) fn jump_to_version(&mut self, version: Version) {
        match self.known(version) {
            Some(at) => self.code.jmp_to(at),
            None => {
                let label = self.label_of(version);
                self.code.jmp(label);
            }
        }
    }

    /// Translates one instruction. Returns whether the next one follows.
    pub(super) fn instruction(&mut self, pc: u64, bytes: &[u8; 16], insn: Insn) -> bool {
        let len = usize::from(insn.len);
        let next = pc + len as u64;
        let opcode = bytes[usize::from(insn.opcode)];
        let short = |at: usize| next.wrapping_add_signed(i64::from(bytes[at].cast_signed()));
        let long = || {
            let field = [
                bytes[len - 4],
                bytes[len - 3],
                bytes[len - 2],
                bytes[len - 1],
            ];
            next.wrapping_add_signed(i32::from_le_bytes(field).into())
        };
        match insn.kind {
            Kind::Branch => {
                let is_short = opcode & 0xF0 == 0x70;
                let to = if is_short { short(len - 1) } else { long() };
                self.branch(opcode & 15, to);
                true
            }
            Kind::Loop => {
                self.loop_to(opcode, short(len - 1));
                true
            }
            Kind::Jump => {
                let to = if opcode == 0xEB {
                    short(len - 1)
                } else {
                    long()
                };
                self.jump_to(to);
                false
            }
            Kind::Call => {
                let to = long();
                self.call(pc, next, Callee::At(to));
                true
            }
            Kind::Return | Kind::ReturnPop => {
                self.ret(pc, &bytes[usize::from(insn.opcode)..len]);
                false
            }
            Kind::Group5 => self.group5(pc, bytes, insn),
            Kind::SystemCall => {
                self.system_call(pc, next);
                true
            }
            Kind::Stop => {
                self.code.raw(&bytes[..len]);
                // After a breakpoint, the program may continue.
                opcode == 0xCC || opcode == 0xF1
            }
            Kind::Plain => {
                self.copy(pc, bytes, insn);
                true
            }
        }
    }

    fn branch(&mut self, condition: u8, to: u64) {
        self.out.entries.push(to);
        let version = self.version(to, self.known_registers);
        match self.known(version) {
            Some(at) => self.code.jcc_to(condition, at),
            None => {
                let to = self.label_of(version);
                self.code.jcc_by(condition, to);
            }
        }
    }

    /// `loop` and `jrcxz` have no long form: they jump to a jump.
    fn loop_to(&mut self, opcode: u8, to: u64) {
        const OVER: u8 = 2;
        const JUMP: i8 = 5;
        self.code.raw(&[opcode, OVER]);
        self.code.jmp_by(JUMP);
        self.jump_to(to);
    }

    fn call(&mut self, original: u64, back: u64, to: Callee) {
        let label = self.code.label();
        self.code.call(label);
        self.out.returns.push((back, self.code.here()));
        self.out.entries.push(back);
        if let Callee::At(target) = to
            && !self.bound.contains(&(target, 0))
            && !self.is_soft
        {
            self.queue.push_back((target, 0));
        }
        self.cold.push(Cold::Call {
            label,
            original,
            back,
            to,
        });
    }

    /// Copies an instruction, and corrects the distance to its operand.
    pub(super) fn copy(&mut self, pc: u64, bytes: &[u8; 16], insn: Insn) {
        let len = usize::from(insn.len);
        let mut copy = *bytes;
        self.correct(pc, bytes, insn, &mut copy, len);
        self.code.raw(&copy[..len]);
    }

    /// `copy` ends after `len` bytes, and has the operand's displacement where the original has it from its end.
    fn correct(&mut self, pc: u64, bytes: &[u8; 16], insn: Insn, copy: &mut [u8], len: usize) {
        if insn.rip == 0 {
            return;
        }
        let at = usize::from(insn.rip);
        let old = i32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let target = (pc + u64::from(insn.len)).wrapping_add_signed(old.into());
        let new = target.wrapping_sub(self.code.here() + len as u64) as u32;
        let at = len - (usize::from(insn.len) - at);
        copy[at..at + 4].copy_from_slice(&new.to_le_bytes());
        let offset = self.code.here() - self.request.base + at as u64;
        self.out.fixups.add(offset, Depends::Distance);
    }

    /// Saves `rcx` and `r11`.
    fn save(&mut self, original: u64) {
        self.code.mov_mr(gs(block::RCX), RCX);
        self.inside(
            original,
            Saved {
                rcx: true,
                ..Saved::default()
            },
        );
        self.code.mov_mr(gs(block::R11), R11);
        self.inside(original, WORK);
    }

    fn restore(&mut self, original: u64) {
        self.code.mov_rm(R11, gs(block::R11));
        self.code.mov_rm(RCX, gs(block::RCX));
        self.inside(original, Saved::default());
    }

    /// `r11` = where the cache has the program's address in `rcx`. Changes the flags.
    fn look_up(&mut self, original: u64, saved: Saved) {
        let [found, known, displaced] = [0; 3].map(|_| self.code.label());
        self.code.lea(R11D, scaled(RCX, 2, 0));
        self.code.and_ri(R11D, table::OFFSETS);
        let table = self.request.table;
        self.code.cmp_rm(RCX, mem32(R11, table));
        self.fix(Depends::Table, 4, 0);
        self.code.jcc(Cond::NE, displaced);
        self.code.bind(found);
        self.code.mov_rm(R11, mem32(R11, table + 8));
        self.fix(Depends::Table, 4, 0);
        self.code.bind(known);
        self.cold.push(Cold::Displaced {
            label: displaced,
            original,
            saved,
            found,
            known,
        });
    }

    /// A return.
    fn ret(&mut self, original: u64, bytes: &[u8]) {
        self.save(original);
        self.code.mov_rm(RCX, mem(RSP, 0));
        self.look_up(original, WORK);
        self.code.mov_mr(mem(RSP, 0), R11);
        self.restore(original);
        self.code.raw(bytes);
    }

    /// `inc`, `dec`, `push`, and calls and jumps through an operand.
    fn group5(&mut self, pc: u64, bytes: &[u8; 16], insn: Insn) -> bool {
        let modrm = bytes[usize::from(insn.modrm)];
        match modrm >> 3 & 7 {
            2 => {
                self.target(pc, bytes, insn, false);
                self.call(pc, pc + u64::from(insn.len), Callee::Looked);
                true
            }
            4 => {
                self.target(pc, bytes, insn, true);
                self.code.jmp_m(gs(block::TARGET));
                false
            }
            _ => {
                self.copy(pc, bytes, insn);
                true
            }
        }
    }

    /// Looks up the target of an indirect call or jump. Its address in the cache is in the thread's block afterward.
    fn target(&mut self, pc: u64, bytes: &[u8; 16], insn: Insn, keep_flags: bool) {
        self.code.mov_mr(gs(block::RCX), RCX);
        let only_rcx = Saved {
            rcx: true,
            ..Saved::default()
        };
        self.inside(pc, only_rcx);
        self.operand(pc, bytes, insn);
        self.code.mov_mr(gs(block::R11), R11);
        let saved = Saved {
            flags: keep_flags,
            ..WORK
        };
        self.inside(pc, WORK);
        if keep_flags {
            self.code.mov_mr(gs(block::RAX), RAX);
            self.code.lahf();
            self.code.seto(AL);
            self.inside(pc, saved);
        }
        self.look_up(pc, saved);
        self.code.mov_mr(gs(block::TARGET), R11);
        if keep_flags {
            self.code.add_ri(AL, 127);
            self.code.sahf();
            self.code.mov_rm(RAX, gs(block::RAX));
            self.inside(pc, WORK);
        }
        self.restore(pc);
    }

    /// `mov rcx, operand`
    fn operand(&mut self, pc: u64, bytes: &[u8; 16], insn: Insn) {
        const MOV: u8 = 0x8B;
        const RCX_FIELD: u8 = 1 << 3;
        let (modrm, len) = (usize::from(insn.modrm), usize::from(insn.len));
        let mut copy = Vec::with_capacity(16);
        if insn.segment != 0 {
            copy.push(insn.segment);
        }
        // REX with W, and the extensions of base and index.
        copy.extend([0x48 | insn.rex & 3, MOV]);
        copy.push(bytes[modrm] & 0xC7 | RCX_FIELD);
        copy.extend(&bytes[modrm + 1..len]);
        let end = copy.len();
        self.correct(pc, bytes, insn, &mut copy, end);
        self.code.raw(&copy);
    }

    fn cold(&mut self, cold: Cold) {
        match cold {
            Cold::Call {
                label,
                original,
                back,
                to,
            } => {
                self.code.bind(label);
                self.inside(original, Saved::default());
                let address = self.code.label();
                self.code.lea(RSP, mem(RSP, 8));
                self.code.push_m(self::label(address));
                match to {
                    Callee::At(to) => {
                        self.point(to, None);
                        self.jump_to(to);
                    }
                    Callee::Looked => self.code.jmp_m(gs(block::TARGET)),
                }
                self.code.bind(address);
                self.code.data(back);
                self.fix(Depends::Original, 8, 0);
            }
            Cold::Leave {
                label,
                block,
                upto,
                target,
            } => self.leave(label, block, upto, target),
            Cold::Fresh(fresh) => self.fresh(fresh),
            Cold::Displaced {
                label,
                original,
                saved,
                found,
                known,
            } => {
                self.code.bind(label);
                self.inside(original, saved);
                let next = mem32(R11, self.request.table);
                self.code.add_ri8(R11D, table::ENTRY as i8);
                self.code.cmp_rm(RCX, next);
                self.fix(Depends::Table, 4, 0);
                self.code.jcc(Cond::E, found);
                self.code.cmp_mi8(QWORD, next, 0);
                self.fix(Depends::Table, 4, 1);
                self.code.jcc_short(Cond::NE, label);
                let trap = self.code.here();
                self.code.int3();
                self.code.raw(&NOP);
                self.out.misses.push((trap, self.code.here()));
                self.code.jmp(known);
            }
        }
    }

    /// Labels of versions that are not translated.
    fn open(&self, is_wanted: impl Fn(Version) -> bool) -> Vec<(Version, Label)> {
        let labels = self.labels.iter();
        let labels = labels.map(|(&version, &label)| (version, label));
        let mut open: Vec<(Version, Label)> = labels
            .filter(|&(version, _)| is_wanted(version) && !self.bound.contains(&version))
            .collect();
        open.sort_unstable_by_key(|&(version, _)| version);
        open
    }

    /// Code for what is not translated.
    fn exits(&mut self) {
        for ((pc, _), label) in self.open(|(_, registers)| registers != 0) {
            self.code.bind(label);
            self.point(pc, None);
            self.jump_to_version((pc, 0));
        }
        let mut cells = Vec::new();
        for ((target, _), label) in self.open(|(_, registers)| registers == 0) {
            let cell = self.code.label();
            self.code.bind(label);
            self.point(target, None);
            self.code.jmp_m(self::label(cell));
            let trap = self.code.here();
            self.point(target, None);
            self.code.int3();
            self.code.raw(&NOP);
            cells.push((cell, trap, target));
        }
        self.code.align(8);
        for (label, trap, target) in cells {
            self.code.bind(label);
            let cell = self.code.here();
            let known = (self.request.known)(target);
            self.code.data(known.unwrap_or(trap));
            self.fix(Depends::Cache, 8, 0);
            self.out.exits.push(Exit {
                trap,
                cell,
                target,
                linked: known.is_some(),
            });
        }
    }
}

/// All registers have the program's values.
pub(super) const NOTHING: Saved = Saved {
    rcx: false,
    r11: false,
    flags: false,
    rax: false,
    scratch: [None; 2],
    is_own: false,
    is_known: false,
    in_fragment: false,
    map: 0,
};
/// Both work registers are in the block.
const WORK: Saved = Saved {
    rcx: true,
    r11: true,
    ..NOTHING
};

/// After a breakpoint: a thread that continues is never where it is after the breakpoint alone.
pub(super) const NOP: [u8; 1] = [0x90];
/// `ud2`
pub(super) const INVALID: [u8; 2] = [0x0F, 0x0B];

/// What [`Request::read`] finds at an address, if there is code from `start` on.
#[cfg(test)]
pub(super) fn first_bytes(code: &[u8], start: u64, pc: u64) -> Option<([u8; 16], usize)> {
    let rest = code.get(pc.checked_sub(start)? as usize..)?;
    let mut bytes = [0; 16];
    let len = rest.len().min(16);
    bytes[..len].copy_from_slice(&rest[..len]);
    (len > 0).then_some((bytes, len))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixups::{Bases, KINDS};
    use crate::process::EVERYWHERE;

    /// Code with everything whose translation depends on places.
    const CODE: &[u8] = &[
        0x48, 0x8B, 0x05, 0x10, 0x00, 0x00, 0x00, // mov rax, [rip + 16]
        0x81, 0x3D, 0x20, 0x00, 0x00, 0x00, 1, 2, 3, 4, // cmp dword [rip + 32], 0x04030201
        0x74, 0x05, // je to the call through memory
        0xE8, 0x1A, 0x00, 0x00, 0x00, // call what follows
        0xFF, 0x15, 0x40, 0x00, 0x00, 0x00, // call [rip + 64]
        0x0F, 0x05, // syscall
        0xF3, 0xA4, // rep movsb
        0xE2, 0xE2, // loop to the compare
        0xE9, 0x00, 0x10, 0x00, 0x00, // jmp to what is not code
        0xFF, 0x24, 0xC5, 0x00, 0x00, 0x10, 0x00, // jmp [rax * 8 + 0x100000]
        0x90, 0x90, 0x90, 0x90, 0x90, 0x90, 0x90, // nop
        0xC3, // ret
    ];

    fn at(bases: Bases, insertion: Option<Insertion>) -> Translation {
        let mut numbers = (bases.block, bases.counter);
        let start = bases.original;
        translate(Request {
            starts: &[start, start + CODE.len() as u64 - 1],
            profile: None,
            most: 100,
            within: EVERYWHERE,
            base: bases.cache,
            table: bases.table,
            read: &mut |pc| first_bytes(CODE, start, pc),
            known: &|_| None,
            soft: &|_| false,
            insertion,
            passes: None,
            file: &|_| None,
            watch: None,
            numbers: &mut || {
                numbers = (numbers.0 + 1, numbers.1 + 1);
                (numbers.0 - 1, numbers.1 - 1)
            },
            line_number: &mut |_| 0,
        })
    }

    #[test]
    fn code_is_moved_as_if_translated_elsewhere() {
        let here = Bases {
            original: 0x40_0000,
            cache: 0x1040_0000,
            table: 0x1_0000,
            ..Bases::default()
        };
        let there = Bases {
            original: 0x7F12_3456_7000,
            cache: 0x7F12_1111_1110,
            table: 0x7654_0000,
            counter: 0x1234,
            block: 0x4567,
        };
        let counting = Insertion {
            counts: true,
            records: false,
            recent: None,
        };
        for insertion in [None, Some(counting)] {
            let (mut first, second) = (at(here, insertion), at(there, insertion));
            assert!(first.instructions.len() > 5);
            assert_ne!(first.bytes, second.bytes);
            let moved = first.fixups.apply(&mut first.bytes, here, there);
            assert_eq!(moved, Some(()));
            assert_eq!(first.bytes, second.bytes);
            let kinds = first.fixups.0.iter().filter(|places| !places.is_empty());
            assert_eq!(kinds.count(), if insertion.is_some() { KINDS } else { 4 });
        }
    }
}
