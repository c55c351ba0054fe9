//! Slow paths: calls of the agent, after the hot code.

use alloc::vec::Vec;

use super::{Hot, Stub};
use hodo_isa::riscv64::asm::{If, Label, Reach};
use hodo_isa::riscv64::regs::{SP, T0, ZERO};

/// What follows a call of the agent that sets register `a` to something else than 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Then {
    /// The hot path, whatever it is.
    Back,
    /// The body, without an exit.
    Pass,
    /// This place.
    To(Label),
}

/// A slow path that is to be emitted.
#[derive(Debug)]
pub(super) struct Slow {
    from: Label,
    /// The control block's address has to be fetched before, into this register.
    block: Option<u8>,
    back: Label,
    /// Address of the agent's function.
    function: u64,
    /// What it is given: a word with registers and the stack's state, and others.
    words: Vec<u32>,
    result: u8,
    pub(super) then: Then,
    lowered: u16,
    shadow: bool,
}

/// The word that tells the agent where things are: numbers of registers (the control block's address, an argument or
/// result, the time), how many times 16 bytes the stack pointer is below S, whether records have a time.
fn description(hot: Hot, lowered: u16, timed: bool) -> u32 {
    u32::from(hot.block)
        | u32::from(hot.a) << 5
        | u32::from(hot.time) << 10
        | u32::from(lowered / 16) << 15
        | u32::from(timed) << 20
}

impl Stub<'_, '_> {
    /// A slow path that comes back here.
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
            // The agent keeps all registers but the link, of which it finds the value on the stack.
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
