//! Slow paths: calls of the agent, after the hot code.

use alloc::vec::Vec;

use super::{Hot, Stub};
use hodo_isa::riscv64::asm::ops::BNE;
use hodo_isa::riscv64::asm::{Pending, Reach};
use hodo_isa::riscv64::regs::{SP, T0, ZERO};

/// What follows a call of the agent that sets register `a` to something else than 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Then {
    /// The hot path, whatever it is.
    Back,
    /// The body, without an exit.
    Pass,
    /// This address.
    To(u64),
}

/// A slow path that is to be emitted.
#[derive(Debug)]
pub(super) struct Slow {
    pending: Vec<Pending>,
    /// The control block's address has to be fetched before, into this register.
    block: Option<u8>,
    back: u64,
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
        pending: Vec<Pending>,
        function: u64,
        hot: Hot,
        mut words: Vec<u32>,
        then: Then,
    ) {
        words.insert(0, description(hot, self.lowered, self.records.timed));
        self.slow.push(Slow {
            pending,
            block: (hot.a == hot.b && function == self.runtime.chunk).then_some(hot.block),
            back: self.code.here(),
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
            for pending in slow.pending {
                self.code.bind(pending);
            }
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
                    let pending = self.code.branch_forward(BNE, slow.result, ZERO);
                    self.past.push(pending);
                }
                Then::To(address) => self.code.branch_back(BNE, slow.result, ZERO, address),
            }
            let near = self.code.jump(slow.back, Reach::Jump, ZERO);
            assert!(near.is_ok(), "a stub is small");
        }
    }
}
