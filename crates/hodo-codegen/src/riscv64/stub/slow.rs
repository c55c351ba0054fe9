//! Slow paths: calls of the agent, placed after the hot code.

use alloc::vec::Vec;
use hodo_isa::riscv64::asm::ops::Insns as _;

use super::{Hot, Stub};
use hodo_isa::riscv64::asm::{If, Label, Reach};
use hodo_isa::riscv64::regs::{SP, T0, ZERO};

/// Where control goes if the agent sets register `a` to something other than 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Then {
    /// Back to the hot path, as always.
    Back,
    /// To the body, without an exit.
    Pass,
    /// To this label.
    To(Label),
}

/// A slow path that is yet to be emitted.
#[derive(Debug)]
pub(super) struct Slow {
    from: Label,
    /// The register into which the control block's address must be fetched first.
    block: Option<u8>,
    back: Label,
    /// Address of the agent's function.
    function: u64,
    /// The agent's parameters: a word with registers and the stack's state, then others.
    words: Vec<u32>,
    result: u8,
    pub(super) then: Then,
    lowered: u16,
    shadow: bool,
}

/// The word that tells the agent where things are: the numbers of registers (the control block's address, an argument
/// or result, the time), how far the stack pointer is below S in units of 16 bytes, and whether records have a time.
fn description(hot: Hot, lowered: u16, timed: bool) -> u32 {
    u32::from(hot.block)
        | u32::from(hot.a) << 5
        | u32::from(hot.time) << 10
        | u32::from(lowered / 16) << 15
        | u32::from(timed) << 20
}

impl Stub<'_, '_> {
    /// Adds a slow path that returns to this place.
    pub(super) fn slow(
        &mut self,
        from: Label,
        function: u64,
        hot: Hot,
        mut words: Vec<u32>,
        then: Then,
    ) {
        words.insert(0, description(hot, self.lowered, self.records.timed));
        self.slow.push(Slow {
            from,
            block: (hot.a == hot.b && function == self.runtime.chunk).then_some(hot.block),
            back: self.code.label_here(),
            function,
            words,
            result: hot.a,
            then,
            lowered: self.lowered,
            shadow: self.shadow,
        });
    }

    /// Emits the slow paths.
    pub(super) fn emit_slow(&mut self) {
        for slow in core::mem::take(&mut self.slow) {
            self.code.bind(slow.from);
            self.lowered = slow.lowered;
            self.shadow = slow.shadow;
            self.row();
            if let Some(block) = slow.block {
                self.fetch_block(block);
            }
            // The agent preserves all registers but the link, whose value it finds on the stack.
            self.code.addi(SP, SP, -16);
            self.lowered += 16;
            self.row();
            self.code.sd(T0, 0, SP);
            let near = self.code.jump_and_link(slow.function, Reach::Pair, T0, T0);
            assert!(near.is_ok(), "an agent that is too far away");
            for word in slow.words {
                self.code.word(word);
            }
            self.code.ld(T0, 0, SP);
            self.code.addi(SP, SP, 16);
            self.lowered -= 16;
            self.row();
            match slow.then {
                Then::Back => {}
                Then::Pass => {
                    self.branch_past(If::NotEqual, slow.result, ZERO);
                }
                Then::To(label) => {
                    self.code.branch(If::NotEqual, slow.result, ZERO, label);
                }
            }
            self.code.jal(ZERO, slow.back);
        }
    }
}
