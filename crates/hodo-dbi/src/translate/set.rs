//! What an instruction set does for a translation.

use std::cell::RefCell;
use std::ops::DerefMut;
use std::rc::Rc;
use std::sync::Arc;

use hodo_isa::buffer::{Buffer, Label, Reference};

use super::Translator;
use super::model::{Analyzed, BlockInsn, Bytes, Insertion, Saved, Version};
use crate::block::{Block, Noted, Transfer};
use crate::fragment::{Instruction, Item};
use crate::passes::Passes;
use crate::recent::Recent;

/// Writes code for a known address: what all assemblers share, and jumps.
pub(crate) trait Emit<'c>: DerefMut<Target = Buffer<'c, Self::Reference>> {
    /// How its instructions refer to places.
    type Reference: Reference + 'c;

    /// Appends to bytes, the first of which will be at `base`.
    fn begin(bytes: &'c mut Vec<u8>, base: u64) -> Self;

    /// A jump.
    fn jmp(&mut self, to: Label);

    /// A jump to an address, which is at most [`Set::REACH`] away.
    fn jmp_to(&mut self, to: u64);
}

/// An instruction set: how the instructions of a program are translated.
pub(crate) trait Set: Sized + 'static {
    /// Writes code.
    type Code<'c>: Emit<'c>;
    /// An instruction.
    type Insn: Copy;
    /// What an instruction does, as far as blocks depend on that.
    type Facts;
    /// Code that is put elsewhere.
    type Cold;
    /// What it keeps while it translates.
    type Own: Default;

    /// How far a jump leads, in bytes.
    const REACH: u64;
    /// Whether threads come to the code for an instruction with all registers of the program, from wherever they come.
    /// If not, exits and the table of targets lead to other places than direct jumps do.
    const IS_ENTERED_ANYWHERE: bool;

    /// The instruction at the beginning of these bytes, of which `len` are the program's. `None`: there is none.
    fn decode(bytes: &Bytes, len: usize) -> Option<Self::Insn>;

    /// Whether a processor that finds these bytes, of which `len` are the program's, would fetch the ones after them.
    fn is_cut(bytes: &Bytes, len: usize) -> bool;

    /// The length of an instruction.
    fn len(insn: Self::Insn) -> u64;

    /// Translates an instruction. Returns whether the next one follows.
    fn instruction(
        translator: &mut Translator<'_, '_, Self>,
        pc: u64,
        bytes: &Bytes,
        insn: Self::Insn,
    ) -> bool;

    /// Translates what is no instruction.
    fn invalid(translator: &mut Translator<'_, '_, Self>, bytes: &Bytes);

    /// Writes code that was put off.
    fn cold(translator: &mut Translator<'_, '_, Self>, cold: Self::Cold);

    /// Code to which the table of targets leads for an instruction, unless it leads to the code for that itself.
    fn landing(_pc: u64) -> Option<Self::Cold> {
        None
    }

    /// Whether an instruction is a call that returns to code which reads flags.
    fn passes_flags(
        _translator: &mut Translator<'_, '_, Self>,
        _pc: u64,
        _insn: Self::Insn,
    ) -> bool {
        false
    }

    /// Writes words that code put off.
    fn words(_: &mut Translator<'_, '_, Self>) {}

    /// Writes an exit: jumps to where a cell says, which is at first the breakpoint after that. Returns where this is.
    fn exit(translator: &mut Translator<'_, '_, Self>, target: u64, cell: Label) -> u64;
}

/// An instruction of a block: where it is, its bytes, and what it is.
pub(crate) struct Decoded<S: Set> {
    pub(crate) pc: u64,
    pub(crate) bytes: Bytes,
    pub(crate) insn: Option<S::Insn>,
    pub(crate) facts: Rc<S::Facts>,
}

impl<S: Set> Decoded<S> {
    fn len(&self) -> usize {
        self.insn.map_or(1, |insn| S::len(insn) as usize)
    }

    /// The address after it.
    pub(crate) fn next(&self) -> u64 {
        self.pc + self.len() as u64
    }

    pub(crate) fn own(&self) -> &[u8] {
        &self.bytes[..self.len()]
    }
}

/// What comes after an instruction of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ends {
    /// The next one, always.
    Never,
    /// The next one, or what a branch leads to: [`Observe::target`].
    Maybe,
    /// It ends the block.
    Always,
}

/// An instruction set for which threads can be observed, and passes can change code.
pub(crate) trait Observe: Set {
    /// How accesses are compared with the lines that were used last.
    type Compared;

    /// The instruction that makes a system call.
    const SYSTEM_CALL: &'static [u8];

    /// Finds out what an instruction does. `bytes` are its own.
    fn facts(own: &mut Self::Own, pc: u64, bytes: &[u8]) -> Self::Facts;

    /// Where an instruction leads.
    fn transfer(facts: &Self::Facts) -> Transfer;

    /// Whether an instruction has a block of its own.
    fn is_special(facts: &Self::Facts) -> bool;

    /// Whether a block ends with an instruction.
    fn ends(insn: Self::Insn) -> Ends;

    /// Where a conditional branch leads.
    fn target(decoded: &Decoded<Self>) -> Option<u64>;

    /// The block at the start of this code. `keeps_flags`: calls and returns do so.
    fn analyze(
        id: u32,
        code: &[BlockInsn<'_, Self::Facts>],
        notes: Vec<(u16, Noted)>,
        analyzed: Analyzed,
        keeps_flags: bool,
    ) -> Block;

    /// What passes see of an instruction.
    fn seen(decoded: &Decoded<Self>) -> Instruction;

    /// Turns what passes have made of instructions into code. Returns where the program continues, if it does so after
    /// it.
    fn lower(
        translator: &mut Translator<'_, '_, Self>,
        passes: &RefCell<Passes>,
        items: &[Item],
    ) -> Option<u64>;

    /// How a block with these instructions is compared.
    fn compared(
        translator: &mut Translator<'_, '_, Self>,
        code: &[Decoded<Self>],
        block: &Arc<Block>,
        recent: Recent,
    ) -> Self::Compared;

    /// The state before an instruction, if registers are taken there to compare.
    fn taken(compared: &Self::Compared) -> Option<Saved>;

    /// Compares what an instruction fetches and accesses, before it.
    fn compare(
        translator: &mut Translator<'_, '_, Self>,
        compared: &mut Self::Compared,
        number: usize,
        decoded: &Decoded<Self>,
    );

    /// Counts a block and records what is known at its beginning.
    fn head(
        translator: &mut Translator<'_, '_, Self>,
        block: &Block,
        inserted: (Insertion, Option<&mut Self::Compared>),
        first: &Decoded<Self>,
    );

    /// Records what an instruction needs that is not known at the beginning of the block.
    fn middle(translator: &mut Translator<'_, '_, Self>, block: &Block, number: u16, pc: u64);

    /// Writes the record of a block, before an instruction.
    fn record(translator: &mut Translator<'_, '_, Self>, block: &Block, pc: u64);

    /// Writes the branch of an instruction, to a place of ours.
    fn branch(
        translator: &mut Translator<'_, '_, Self>,
        insn: Self::Insn,
        bytes: &Bytes,
        to: Label,
    );

    /// Whether an instruction may write to memory other than that of a stack, or to that, too, if code may be
    /// `on_stack`.
    fn may_write(facts: &Self::Facts, on_stack: bool) -> bool;

    /// The beginning of a run that is not compared: a breakpoint or a jump can replace it while threads execute it.
    fn entry(translator: &mut Translator<'_, '_, Self>, pc: u64);

    /// Compares the program's code with these bytes.
    fn check(translator: &mut Translator<'_, '_, Self>, pc: u64, bytes: &[u8]);

    /// Another way to code that was compared before: compares it, and goes on there.
    fn other_way(label: Label, to: Label, pc: u64, bytes: Vec<u8>) -> Self::Cold;

    /// What is put where a branch leads that leaves a block after this number of instructions: writes a record of that.
    fn leave(label: Label, block: Arc<Block>, upto: u16, target: Version) -> Self::Cold;
}
