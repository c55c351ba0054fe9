//! Adds the routine that packs a stack for stack traces.

use crate::refusal::Refusal;
use hodo_codegen::native::masm::Masm;

use crate::{Island, Lead, Patches};

/// Whether probe events can contain packed stacks on this instruction set.
#[must_use]
pub fn packs_stacks() -> bool {
    hodo_agent::stack().is_some()
}

impl Island {
    /// Adds the code that packs stacks, on instruction sets that have it. Probes that are added afterward use it.
    ///
    /// # Errors
    /// If the island is full.
    pub fn add_stack(&mut self, patches: &mut Patches) -> Result<(), Refusal> {
        let Some(agent) = hodo_agent::stack() else {
            return Ok(());
        };
        self.check_room(agent.code.len() + 64)?;
        let mut out = Masm::new(&mut self.code, self.base + self.origin as u64);
        out.align(64);
        let start = out.here();
        out.raw(agent.code);
        let at = |offset: usize| start + offset as u64;
        let faults = agent.faults.map(|(load, next)| Lead {
            at: at(load),
            to: at(next),
        });
        patches.faults.extend(faults);
        self.stack = Some(start);
        Ok(())
    }
}
