//! A probe with a condition, or with actions that share values: each value is fetched once.

use alloc::vec::Vec;

use super::{Block, Cold, Deed, DetourError, Probing};
use crate::lower::{Events, Given, condition, deeds};
use crate::x86_64::masm::*;
use crate::x86_64::stub::Layout;

/// Maximum length of a block's machine code in bytes.
#[must_use]
pub fn size(block: &Block, layout: &Layout) -> u64 {
    let mut bytes = Vec::new();
    let mut cold = Cold::default();
    let mut code = Masm::new(&mut bytes, 0);
    // A block that fails takes no room: it is refused later.
    let probing = Probing::begin_probe(&mut code, (layout, Some(0)), false, 0, &mut cold);
    let _ = probing.block(block);
    let slow = cold.epoch.len() + cold.chunk.len() + cold.fault.len() + 4 * cold.large.len();
    bytes.len() as u64 + 16 * slow as u64 + 16
}

impl Probing<'_, '_> {
    /// Writes a block, and the end of the probe.
    pub(super) fn block(mut self, block: &Block) -> Result<(), DetourError> {
        let mut given = given(self.layout, block);
        let begun = self.saved.len();
        let (off, out) = (self.code.label(), self.code.label());
        if let Some(switch) = block.switch {
            self.unless_on(block.base, switch, off);
        }
        if block.may_fault() {
            self.unless_traced(off);
        }
        if given.needs.pairs {
            self.saved.push(self.code, RCX);
            self.saved.push(self.code, RDX);
        }
        self.frame = self.saved.frame(self.code, given.needs.words());
        condition(&mut self, &mut given, out)?;
        deeds(&mut self, given)?;
        let returned = block.deeds.iter().find_map(|deed| match deed {
            Deed::Return(value) => Some(*value),
            _ => None,
        });
        if let Some(value) = returned {
            self.saved.clone().drop_flags(self.code);
            self.code.movabs_ri(RAX, value);
            self.code.ret();
        }
        self.code.bind(out);
        self.saved.back(self.code, begun);
        self.code.bind(off);
        self.saved.end(self.code);
        Ok(())
    }
}

/// What the condition and the actions of a block need.
fn given<'b>(layout: &Layout, block: &'b Block) -> Given<'b> {
    let (mut bytes, mut cold) = (Vec::new(), Cold::default());
    let mut code = Masm::new(&mut bytes, 0);
    let layout = (layout, None);
    Given::new(
        block,
        &mut Probing::begin_probe(&mut code, layout, true, 0, &mut cold),
    )
}
