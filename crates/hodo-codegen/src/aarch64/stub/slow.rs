//! Slow paths: calls of the agent, placed after the hot code.

use alloc::vec::Vec;
use hodo_isa::aarch64::asm::ops::Insns as _;

use super::{Hot, Stub};
use crate::aarch64::frames::AGENT_LINK;
use hodo_isa::aarch64::asm::operand::{after, before, mem};
use hodo_isa::aarch64::asm::{Label, Reach};
use hodo_isa::aarch64::regs::{BETWEEN, SP};

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

/// The word that says where things are: the numbers of registers (the control block's address, an argument or result,
/// the time), how far the stack pointer is below S in units of 16 bytes, and whether records have a time.
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
            self.call_agent(slow.function, &slow.words);
            match slow.then {
                Then::Back => {}
                Then::Pass => {
                    let past = self.past();
                    self.code.cbnz(slow.result, past);
                }
                Then::To(label) => self.code.cbnz(slow.result, label),
            }
            self.code.b(slow.back);
        }
    }

    /// Calls a function of the agent, which preserves all registers but the link, whose value it finds on the stack.
    fn call_agent(&mut self, function: u64, words: &[u32]) {
        /// Holds the function's address if it is far away.
        const TARGET: u8 = BETWEEN[1];
        self.code.str(AGENT_LINK, before(SP, -16));
        self.lowered += 16;
        self.row();
        let near = (self.code).jump_and_link(function, Reach::Jump, TARGET, AGENT_LINK);
        if near.is_err() {
            self.code.str(TARGET, mem(SP, 8));
            let far = (self.code).jump_and_link(function, Reach::Page, TARGET, AGENT_LINK);
            assert!(far.is_ok(), "an agent that is too far away");
        }
        for &word in words {
            self.code.word(word);
        }
        if near.is_err() {
            self.code.ldr(TARGET, mem(SP, 8));
        }
        self.code.ldr(AGENT_LINK, after(SP, 16));
        self.lowered -= 16;
        self.row();
    }
}
