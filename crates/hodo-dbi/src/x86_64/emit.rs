//! How the program's instructions are translated.
//!
//! Return addresses on the stack are the original ones: a call pushes the program's own address, and a return looks up
//! where the cache continues. The processor still predicts returns, because calls are calls and returns are returns.

use std::sync::Arc;

use iced_x86::{Decoder, DecoderOptions, FlowControl, UsedMemory};

use hodo_isa::liveness::Path;
use hodo_isa::x86_64::asm::{
    AL, Code, Cond, DWORD, Label, QWORD, RAX, RCX, RSP, Reg, gs, label, mem, mem32, scaled,
};
use hodo_isa::x86_64::decode::{Insn, Kind};

use super::emitter::Emitter;
use super::flags::{FLAGS, overwritten_flags};
use super::narrow::{Narrow, narrow};
use super::{block, kept};
use crate::block::Block;
use crate::fixups::Depends;
use crate::recent::LineSets;
use crate::table;
use crate::translate::{Saved, Stage, Version};

/// The work register besides `rcx`.
pub(super) const R11: Reg = Reg::whole(11);
const R11D: Reg = R11.part(DWORD);
pub(super) const ECX: Reg = RCX.part(DWORD);

/// The bits of four times an address that are the offset of its entry.
const OFFSETS: u32 = table::MASK * table::ENTRY;
const _: () = assert!(table::ENTRY == 4 * table::SHARED);

/// So many instructions are looked at to see whether they read flags.
const AHEAD: usize = 16;

/// Code that is put elsewhere.
pub(crate) enum Cold {
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
    /// Code is not what was translated.
    Changed(Changed),
    /// Another way to code that may change.
    OtherWay(OtherWay),
}

/// Another way to code that was compared before.
pub(crate) struct OtherWay {
    pub(super) label: Label,
    pub(super) to: Label,
    pub(super) pc: u64,
    pub(super) bytes: Vec<u8>,
}

/// Code that is not what was translated.
pub(crate) struct Changed {
    pub(super) label: Label,
    pub(super) pc: u64,
    /// Where its translation begins.
    pub(super) entry: u64,
}

/// What has to be recorded, because it is not of the line that was used last.
pub(crate) struct Fresh {
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
pub(crate) enum What {
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

pub(crate) enum Callee {
    At(u64),
    /// The address is in the thread's block.
    Looked,
}

impl Emitter<'_, '_, '_> {
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
                self.loop_to(&bytes[..=usize::from(insn.opcode)], short(len - 1));
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
                if let Some(narrow) = narrow(pc, bytes, insn) {
                    return self.narrow(&bytes[..=usize::from(insn.opcode)], next, narrow);
                }
                self.copy(pc, bytes, insn);
                // After a breakpoint, the program may continue.
                opcode == 0xCC || opcode == 0xF1
            }
            Kind::Plain => {
                self.copy(pc, bytes, insn);
                true
            }
        }
    }

    /// A branch that leads to an address of two bytes, where no code is. `bytes`: up to its opcode.
    fn narrow(&mut self, bytes: &[u8], next: u64, narrow: Narrow) -> bool {
        const SHORT: u8 = 0x66;
        let distance = |from: u64, len: u64, to: u16| to.wrapping_sub((from + len) as u16);
        let jump = |code: &mut Code<'_>, to: u16| {
            let [low, high] = distance(code.here(), 4, to).to_le_bytes();
            code.raw(&[SHORT, 0xE9, low, high]);
        };
        match narrow {
            Narrow::Branch(condition, to) => {
                let [low, high] = distance(self.code.here(), 5, to).to_le_bytes();
                self.code.raw(&[SHORT, 0x0F, 0x80 | condition, low, high]);
                self.stays();
                return true;
            }
            Narrow::Loop(to) => {
                const OVER: u8 = 2;
                const JUMP: i8 = 4;
                self.loop_over(bytes, OVER);
                self.code.jmp_by(JUMP);
                jump(&mut self.code, to);
                self.stays();
                return true;
            }
            Narrow::Call(to) => {
                let [low, high] = (next as u16).to_le_bytes();
                self.code.raw(&[SHORT, 0x68, low, high]);
                jump(&mut self.code, to);
            }
            Narrow::Jump(to) => jump(&mut self.code, to),
        }
        // The cache may be elsewhere, and the distance another one.
        self.stays();
        false
    }

    fn branch(&mut self, condition: u8, to: u64) {
        let version = self.version_of_branch(to);
        match self.known(version) {
            Some(at) => self.code.jcc_to(condition, at),
            None => {
                let to = self.label_of(version);
                self.code.jcc_by(condition, to);
            }
        }
    }

    /// `loop` and `jrcxz` have no long form: they jump to a jump. `bytes`: up to the opcode. What they count depends on
    /// prefixes, on some processors their condition, too.
    fn loop_to(&mut self, bytes: &[u8], to: u64) {
        const OVER: u8 = 2;
        const JUMP: i8 = 5;
        self.loop_over(bytes, OVER);
        self.code.jmp_by(JUMP);
        self.jump_to(to);
    }

    /// `loop` or `jrcxz` over this many bytes.
    fn loop_over(&mut self, bytes: &[u8], over: u8) {
        const SHORT: u8 = 0x66;
        for byte in bytes.iter().filter(|&&byte| byte != SHORT) {
            self.code.raw(&[*byte]);
        }
        self.code.raw(&[over]);
    }

    fn call(&mut self, original: u64, back: u64, to: Callee) {
        let label = self.code.label();
        self.code.call(label);
        self.returns_here(back);
        if let Callee::At(target) = to {
            self.called(target);
        }
        self.put_near_later(Cold::Call {
            label,
            original,
            back,
            to,
        });
    }

    /// Copies an instruction, and corrects the distance to its operand.
    pub(super) fn copy(&mut self, pc: u64, bytes: &[u8; 16], insn: Insn) {
        if let Some(target) = operand_address(pc, bytes, insn)
            && !self.reaches(target)
        {
            return self.copy_far(pc, bytes, insn, target);
        }
        let len = usize::from(insn.len);
        let mut copy = *bytes;
        self.correct(pc, bytes, insn, &mut copy, len);
        self.code.raw(&copy[..len]);
    }

    /// `copy` ends after `len` bytes, and has the operand's displacement where the original has it from its end.
    fn correct(&mut self, pc: u64, bytes: &[u8; 16], insn: Insn, copy: &mut [u8], len: usize) {
        let Some(target) = operand_address(pc, bytes, insn) else {
            return;
        };
        let at = usize::from(insn.rip);
        let new = target.wrapping_sub(self.code.here() + len as u64) as u32;
        let at = len - (usize::from(insn.len) - at);
        copy[at..at + 4].copy_from_slice(&new.to_le_bytes());
        self.fix_ahead(Depends::Distance, at as u64);
    }

    /// Saves `rcx` and `r11`.
    fn save(&mut self, original: u64) {
        self.code.mov_mr(gs(block::RCX), RCX);
        self.inside(original, Saved::kept(kept::RCX));
        self.code.mov_mr(gs(block::R11), R11);
        self.inside(original, WORK);
    }

    fn restore(&mut self, original: u64) {
        self.code.mov_rm(R11, gs(block::R11));
        self.code.mov_rm(RCX, gs(block::RCX));
        self.inside(original, Saved::default());
    }

    /// `r11` = where the cache has the program's address in `rcx`. Changes the flags.
    pub(super) fn look_up(&mut self, original: u64, saved: Saved) {
        let [found, known, displaced] = [0; 3].map(|_| self.code.label());
        self.code.lea(R11D, scaled(RCX, 2, 0));
        self.code.and_ri(R11D, OFFSETS);
        let table = self.table() as u32;
        self.code.cmp_rm(RCX, mem32(R11, table));
        self.fix(Depends::Table, 4, 0);
        self.code.jcc(Cond::NE, displaced);
        self.code.bind(found);
        self.code.mov_rm(R11, mem32(R11, table + 8));
        self.fix(Depends::Table, 4, 0);
        self.code.bind(known);
        self.put_later(Cold::Displaced {
            label: displaced,
            original,
            saved,
            found,
            known,
        });
    }

    /// A return.
    fn ret(&mut self, original: u64, bytes: &[u8]) {
        let keeps_flags = self.keeps_flags();
        self.save(original);
        let saved = self.take_flags(original, keeps_flags);
        self.code.mov_rm(RCX, mem(RSP, 0));
        self.look_up(original, saved);
        self.code.mov_mr(mem(RSP, 0), R11);
        self.give_flags_back(original, keeps_flags);
        self.restore(original);
        self.code.raw(bytes);
    }

    /// Saves the flags, if they are kept, when the work registers are saved: in `rax`, whose value is in the thread's
    /// block then. Returns what is saved.
    fn take_flags(&mut self, original: u64, keeps_flags: bool) -> Saved {
        let saved = Saved {
            flags: keeps_flags,
            ..WORK
        };
        if keeps_flags {
            self.code.mov_mr(gs(block::RAX), RAX);
            self.code.lahf();
            self.code.seto(AL);
            self.inside(original, saved);
        }
        saved
    }

    /// Undoes that.
    fn give_flags_back(&mut self, original: u64, keeps_flags: bool) {
        if keeps_flags {
            // 1 becomes an overflow.
            self.code.add_ri(AL, 127);
            self.code.sahf();
            self.code.mov_rm(RAX, gs(block::RAX));
            self.inside(original, WORK);
        }
    }

    /// Whether an instruction is a call that returns to code which reads flags.
    pub(super) fn is_call_for_flags(&mut self, pc: u64, insn: Insn) -> bool {
        const CALL: u8 = 2;
        let next = pc + u64::from(insn.len);
        let Some((bytes, _)) = self.read(pc) else {
            return false;
        };
        let is_call = insn.kind == Kind::Call || bytes[usize::from(insn.modrm)] >> 3 & 7 == CALL;
        is_call && self.reads_flags(next)
    }

    /// Whether code reads flags before it overwrites them, as far as that is soon seen. What compilers for C make never
    /// does so where a call returns to.
    fn reads_flags(&mut self, start: u64) -> bool {
        let (mut pc, mut path) = (start, Path::new(FLAGS));
        for _ in 0..AHEAD {
            let Some((bytes, len)) = self.read(pc) else {
                return false;
            };
            let insn = Decoder::with_ip(64, &bytes[..len], pc, DecoderOptions::NONE).decode();
            let target = insn.near_branch_target();
            pc = match insn.flow_control() {
                FlowControl::Next | FlowControl::ConditionalBranch => insn.next_ip(),
                FlowControl::UnconditionalBranch if target != 0 => target,
                // A system call that is said to read flags only passes them on.
                _ => return false,
            };
            // No program looks at flags from before a repetition that may be one of zero rounds.
            let overwritten = match insn.is_string_instruction() {
                true => insn.rflags_modified(),
                false => overwritten_flags(&insn),
            };
            path.step(insn.rflags_read(), overwritten);
            if path.is_used() || path.is_decided() {
                return path.is_used();
            }
        }
        false
    }

    /// `inc`, `dec`, `push`, and calls and jumps through an operand.
    fn group5(&mut self, pc: u64, bytes: &[u8; 16], insn: Insn) -> bool {
        let modrm = bytes[usize::from(insn.modrm)];
        match modrm >> 3 & 7 {
            2 => {
                let keeps_flags = self.keeps_flags();
                self.target(pc, bytes, insn, keeps_flags);
                self.call(pc, pc + u64::from(insn.len), Callee::Looked);
                true
            }
            4 => {
                let keeps_flags = self.keeps_flags() || !self.is_linkage(pc, bytes, insn);
                self.target(pc, bytes, insn, keeps_flags);
                self.code.jmp_m(gs(block::TARGET));
                false
            }
            _ => {
                self.copy(pc, bytes, insn);
                true
            }
        }
    }

    /// Whether an indirect jump is the entry of a function in a procedure linkage table, as linkers write it. Functions
    /// do not look at flags (psABI, 3.2.1).
    fn is_linkage(&mut self, pc: u64, bytes: &[u8; 16], insn: Insn) -> bool {
        const ENDBR: [u8; 4] = [0xF3, 0x0F, 0x1E, 0xFA];
        /// What follows: `push` for the linker, or instructions that do nothing.
        const AFTER: [&[u8]; 4] = [
            &[0x68],
            &[0x66, 0x90],
            &[0x0F, 0x1F, 0x44],
            &[0x66, 0x0F, 0x1F, 0x44],
        ];
        const ALIGNMENT: u64 = 8;
        let word = operand_address(pc, bytes, insn).filter(|_| insn.segment == 0);
        let after = &bytes[usize::from(insn.len)..];
        if self.is_soft()
            || word.is_none_or(|word| self.is_translated(word))
            || !AFTER.iter().any(|code| after.starts_with(code))
        {
            return false;
        }
        let len = ENDBR.len() as u64;
        let before = self.read(pc - len);
        let is_after_endbr = before.is_some_and(|(bytes, _)| bytes.starts_with(&ENDBR));
        let start = if is_after_endbr { pc - len } else { pc };
        start.is_multiple_of(ALIGNMENT)
    }

    /// Looks up the target of an indirect call or jump. Its address in the cache is in the thread's block afterward.
    fn target(&mut self, pc: u64, bytes: &[u8; 16], insn: Insn, keep_flags: bool) {
        self.code.mov_mr(gs(block::RCX), RCX);
        self.inside(pc, Saved::kept(kept::RCX));
        self.operand(pc, bytes, insn);
        self.code.mov_mr(gs(block::R11), R11);
        self.inside(pc, WORK);
        let saved = self.take_flags(pc, keep_flags);
        self.look_up(pc, saved);
        self.code.mov_mr(gs(block::TARGET), R11);
        self.give_flags_back(pc, keep_flags);
        self.restore(pc);
    }

    /// `mov rcx, operand`
    fn operand(&mut self, pc: u64, bytes: &[u8; 16], insn: Insn) {
        const MOV: u8 = 0x8B;
        const RCX_FIELD: u8 = 1 << 3;
        if let Some(target) = operand_address(pc, bytes, insn)
            && insn.segment == 0
            && !self.reaches(target)
        {
            self.code.movabs_ri(RCX, target);
            return self.code.mov_rm(RCX, mem(RCX, 0));
        }
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

    pub(super) fn cold(&mut self, cold: Cold) {
        match cold {
            Cold::Call {
                label,
                original,
                back,
                to,
            } => {
                self.code.bind(label);
                self.inside(original, Saved::kept(kept::CALLED));
                let address = self.code.label();
                self.code.lea(RSP, mem(RSP, 8));
                self.inside(original, Saved::default());
                self.code.push_m(self::label(address));
                self.inside(original, Saved::kept(kept::CALLED));
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
            Cold::Changed(changed) => self.changed(&changed),
            Cold::OtherWay(way) => self.other_way(&way),
            Cold::Displaced {
                label,
                original,
                saved,
                found,
                known,
            } => {
                self.code.bind(label);
                self.inside(original, saved);
                let next = mem32(R11, self.table() as u32);
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
                self.misses_at(trap);
                self.code.jmp(known);
            }
        }
    }
}

/// The address of an operand that is relative to the next instruction.
fn operand_address(pc: u64, bytes: &[u8; 16], insn: Insn) -> Option<u64> {
    let at = usize::from(insn.rip);
    let field = bytes.get(at..)?.first_chunk().filter(|_| at != 0)?;
    let distance = i32::from_le_bytes(*field);
    Some((pc + u64::from(insn.len)).wrapping_add_signed(distance.into()))
}

/// Both work registers are in the block.
const WORK: Saved = Saved::kept(kept::RCX | kept::R11);

/// After a breakpoint: a thread that continues is never where it is after the breakpoint alone.
pub(super) const NOP: [u8; 1] = [0x90];
/// `ud2`
pub(super) const INVALID: [u8; 2] = [0x0F, 0x0B];

#[cfg(test)]
mod tests {
    use hodo_abi::Span;

    use crate::fixups::{Bases, KINDS};
    use crate::protected::Notice;
    use crate::translate::{Insertion, Request, Translation, first_bytes, translate};

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
        translated(CODE, &[0, CODE.len() as u64 - 1], bases, (insertion, false))
    }

    /// A translation of code from these offsets on; what is inserted, and whether calls and returns keep flags.
    fn translated(
        code: &[u8],
        starts: &[u64],
        bases: Bases,
        (insertion, keeps_flags): (Option<Insertion>, bool),
    ) -> Translation {
        let mut numbers = (bases.block, bases.counter);
        let start = bases.original;
        translate::<super::super::X86_64>(Request {
            starts: &starts.iter().map(|at| start + at).collect::<Vec<_>>(),
            profile: None,
            most: 100,
            within: Span::at(start, code.len() as u64),
            base: bases.cache,
            table: bases.table.into(),
            read: &mut |pc| first_bytes(code, start, pc),
            known: &|_| None,
            soft: &|_| false,
            notice: &|_| Notice::Undecided,
            on_stack: false,
            mark: &|_| 0,
            insertion,
            keeps_flags,
            passes: None,
            file: &|_| None,
            watch: None,
            numbers: &mut |_| {
                numbers = (numbers.0 + 1, numbers.1 + 1);
                (numbers.0 - 1, numbers.1 - 1)
            },
            line_number: &mut |_| 0,
        })
    }

    /// Calls that return to code which reads flags are translated when a thread comes to them, and say that then.
    #[test]
    fn calls_wait_for_flags_to_be_kept() {
        const CALLS: &[(&[u8], bool)] = &[
            (&[0xE8, 0, 1, 0, 0, 0x72, 0x10], true),       // call; jb
            (&[0xFF, 0xD0, 0x48, 0x89, 0xD8, 0x9C], true), // call rax; mov rax, rbx; pushf
            (&[0xFF, 0x53, 8, 0xEB, 0, 0x0F, 0x42, 0xE3], true), // call [rbx + 8]; jmp to what is next; cmovb esp, ebx
            (&[0xE8, 0, 1, 0, 0, 0x84, 0xC9, 0x72, 0x10], false), // call; test cl, cl; jb
            (&[0xE8, 0, 1, 0, 0, 0xD3, 0xE0, 0x72, 0x10], true), // call; shl eax, cl; jb
            (&[0xE8, 0, 1, 0, 0, 0x0F, 0x05, 0x72, 0x10], false), // call; syscall; jb
            (&[0xFF, 0xC0, 0x72, 0x10], false),                  // inc eax; jb
        ];
        let bases = Bases {
            original: 0x40_0000,
            cache: 0x1040_0000,
            table: 0x1_0000,
            ..Bases::default()
        };
        for (code, waits) in CALLS {
            let code = [&[0x90], *code].concat();
            let has = |starts, keeps_flags| {
                let translation = translated(&code, starts, bases, (None, keeps_flags));
                let call = bases.original + 1;
                let is_there = translation.instructions.iter().any(|&(pc, _)| pc == call);
                (is_there, translation.loses_flags)
            };
            assert_eq!(has(&[0], false), (!waits, false), "{code:x?}");
            assert_eq!(has(&[1], false), (true, *waits), "{code:x?}");
            assert_eq!(has(&[0], true), (true, false), "{code:x?}");
        }
    }

    /// Entries of procedure linkage tables need no flags; other jumps do.
    #[test]
    fn procedure_linkage_saves_no_flags() {
        const LAHF: u8 = 0x9F;
        // Jumps from an offset on.
        const JUMPS: &[(u64, &[u8], bool)] = &[
            (0, &[0xFF, 0x25, 0, 0x10, 0, 0, 0x68, 0, 0, 0, 0], false), // jmp [rip + 0x1000]; push 0
            (0, &[0xFF, 0x25, 0, 0x10, 0, 0, 0x66, 0x90], false),       // the same; xchg ax, ax
            (
                4,
                &[
                    0xF3, 0x0F, 0x1E, 0xFA, 0xFF, 0x25, 0, 0x10, 0, 0, 0x66, 0x0F, 0x1F, 0x44, 0, 0,
                ],
                false,
            ),
            (
                4,
                &[
                    0x90, 0x90, 0x90, 0x90, 0xFF, 0x25, 0, 0x10, 0, 0, 0x66, 0x90,
                ],
                true,
            ),
            (0, &[0xFF, 0x25, 0, 0x10, 0, 0, 0x90, 0x90], true),
            (0, &[0xFF, 0x25, 0, 0, 0, 0, 0x66, 0x90], true), // The word is beside the code.
            (0, &[0x64, 0xFF, 0x25, 0, 0x10, 0, 0, 0x66, 0x90], true),
            (0, &[0xFF, 0xE0, 0x66, 0x90], true), // jmp rax
        ];
        let bases = Bases {
            original: 0x40_0000,
            cache: 0x1040_0000,
            table: 0x1_0000,
            ..Bases::default()
        };
        for (start, code, saves) in JUMPS {
            let has = |keeps_flags| {
                let translation = translated(code, &[*start], bases, (None, keeps_flags));
                translation.bytes.contains(&LAHF)
            };
            assert_eq!((has(false), has(true)), (*saves, true), "{code:x?}");
        }
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
