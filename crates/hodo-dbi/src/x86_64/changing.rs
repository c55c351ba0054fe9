//! Comparing code that may change.
//!
//! The comparison keeps the flags: what is there now may read them. It includes the marks of the pages, which are zero
//! while the program may execute them.

use hodo_isa::x86_64::asm::{
    self, AL, Cond, DWORD, QWORD, RAX, RCX, Reg, Size, absolute, address, gs, label, mem,
};
use iced_x86::Register;

use super::emit::{Changed, Cold, NOP, OtherWay};
use super::emitter::Emitter;
use super::facts::{Facts, kinds};
use super::{block, kept};
use crate::access::Kind;
use crate::changes::Check;
use crate::translate::{Saved, Stage};

/// All is as the program has it; a jump leads to the next comparison, or to what was compared.
const COMPARED: Saved = Saved {
    is_known: true,
    compares: true,
    ..Saved::kept(0)
};
/// `rcx` is in the thread's block, and the thread need not go on;
const RCX_SAVED: Saved = Saved {
    kept: kept::RCX,
    ..COMPARED
};
/// so is `rax`;
const RAX_SAVED: Saved = Saved {
    kept: kept::RCX | kept::RAX,
    ..RCX_SAVED
};
/// the flags are in `rax`.
const FLAGS_SAVED: Saved = Saved {
    flags: true,
    ..RAX_SAVED
};

/// Whether an instruction may write to memory other than that of a stack, or to that, too.
pub(super) fn may_write(facts: &Facts, on_stack: bool) -> bool {
    facts.memory.iter().any(|used| {
        let is_stack = used.base() == Register::RSP && used.index() == Register::None;
        kinds(used.access()).contains(&Kind::Store) && (on_stack || !is_stack)
    })
}

impl Emitter<'_, '_, '_> {
    /// Another way to code that was compared before.
    pub(super) fn other_way(&mut self, way: &OtherWay) {
        self.code.bind(way.label);
        self.check(way.pc, &way.bytes);
        self.inside(way.pc, COMPARED);
        self.code.jmp(way.to);
    }

    /// The beginning of a run that is not compared. A jump fits in the place of the first instruction. The second one
    /// is there for programs that step themselves: they receive neither.
    pub(super) fn entry(&mut self, pc: u64) {
        const LONG_NOP: [u8; 5] = [0x0F, 0x1F, 0x44, 0, 0];
        let before = self.stage();
        self.set_stage(Stage::Body);
        self.begins_check(pc);
        self.point(pc, None);
        self.code.raw(&LONG_NOP);
        self.inside(pc, COMPARED);
        self.code.raw(&NOP);
        self.set_stage(before);
    }

    /// Compares the program's code with these bytes. The translation of the instruction begins here.
    pub(super) fn check(&mut self, pc: u64, bytes: &[u8]) {
        let entry = self.code.here();
        let before = self.stage();
        self.set_stage(Stage::Body);
        self.begins_check(pc);
        self.point(pc, None);
        self.code.mov_mr(gs(block::RCX), RCX);
        self.inside(pc, RCX_SAVED);
        self.code.mov_mr(gs(block::RAX), RAX);
        self.inside(pc, RAX_SAVED);
        self.code.lahf();
        self.code.seto(AL);
        self.inside(pc, FLAGS_SAVED);
        let changed = self.code.label();
        let last = pc + bytes.len() as u64 - 1;
        let marks = [pc, last].map(|address| self.mark(address));
        for &mark in &marks[..1 + usize::from(marks[0] != marks[1])] {
            self.code.cmp_mi8(DWORD, absolute(mark), 0);
            self.code.jcc(Cond::NE, changed);
        }
        for (at, size) in parts(bytes.len()) {
            let from = pc + at as u64;
            let mut wanted = [0; 8];
            wanted[..size].copy_from_slice(&bytes[at..at + size]);
            self.load(RCX, from, size);
            match size {
                8 => {
                    let literal = self.code.label();
                    let wanted = u64::from_le_bytes(wanted);
                    self.own().checks.literals.push((literal, wanted));
                    self.code.cmp_rm(RCX, label(literal));
                }
                _ => {
                    let wanted = wanted.first_chunk().copied().unwrap_or_default();
                    self.code
                        .cmp_ri(RCX.part(DWORD), u32::from_le_bytes(wanted));
                }
            }
            self.code.jcc(Cond::NE, changed);
        }
        self.bring_back(pc);
        self.set_stage(before);
        self.put_later(Cold::Changed(Changed {
            label: changed,
            pc,
            entry,
        }));
    }

    /// Gives the flags, `rax` and `rcx` their values.
    fn bring_back(&mut self, pc: u64) {
        self.code.add_ri(AL, 127);
        self.code.sahf();
        self.inside(pc, RAX_SAVED);
        self.code.mov_rm(RAX, gs(block::RAX));
        self.code.mov_rm(RCX, gs(block::RCX));
    }

    /// Loads this many bytes of the program's code. `to` is overwritten as a whole.
    fn load(&mut self, to: Reg, from: u64, size: usize) {
        let from = match self.reaches(from) {
            true => address(from),
            false => {
                self.code.movabs_ri(to, from);
                mem(to, 0)
            }
        };
        match size {
            8 => self.code.mov_rm(to.part(QWORD), from),
            4 => self.code.mov_rm(to.part(DWORD), from),
            2 => self.code.movzx_rm(to, Size::Word, from),
            _ => self.code.movzx_rm(to, Size::Byte, from),
        }
    }

    /// Whether the distance to an address is part of instructions.
    pub(super) fn reaches(&self, address: u64) -> bool {
        const NEAR: u64 = 0x7FFF_F000;
        let distance = address.wrapping_sub(self.code.here()).cast_signed();
        distance.unsigned_abs() < NEAR
    }

    /// The code is not what was translated: continues with the translation of what is there now.
    pub(super) fn changed(&mut self, changed: &Changed) {
        let &Changed { label, pc, entry } = changed;
        self.code.bind(label);
        self.begins_block(None);
        self.inside(pc, FLAGS_SAVED);
        self.bring_back(pc);
        self.inside(pc, COMPARED);
        let cell = self.code.label();
        self.code.jmp_m(asm::label(cell));
        let trap = self.code.here();
        self.code.int3();
        self.code.raw(&NOP);
        self.own().checks.cells.push((cell, trap, pc, entry));
    }

    /// The words that code is compared with, and those that say where to continue.
    pub(super) fn words(&mut self) {
        for (label, number) in std::mem::take(&mut self.own().checks.literals) {
            self.code.bind(label);
            self.code.data(number);
        }
        for (label, trap, pc, entry) in std::mem::take(&mut self.own().checks.cells) {
            self.code.bind(label);
            let cell = self.code.here();
            self.code.data(trap);
            self.checks_at(Check {
                trap,
                cell,
                pc,
                entry,
            });
        }
    }
}

/// Parts of eight bytes that have all of this many, and may have some twice; of fewer, if there are not as many.
fn parts(len: usize) -> Vec<(usize, usize)> {
    let size = match len {
        8.. => 8,
        4.. => 4,
        2.. => 2,
        _ => 1,
    };
    let whole = (0..len / size).map(|number| (number * size, size));
    let rest = (!len.is_multiple_of(size)).then(|| (len - size, size));
    whole.chain(rest).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_have_all_bytes_and_no_other() {
        for len in 1..40 {
            let mut seen = vec![false; len];
            for (at, size) in parts(len) {
                seen[at..at + size].fill(true);
            }
            assert!(seen.into_iter().all(|seen| seen), "{len}");
        }
    }
}
