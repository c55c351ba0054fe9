//! Accesses lane by lane: a pass that makes each lane of a gather or scatter, or of a masked load or store, an access
//! of its own, and has threads record where that is.

use crate::inserted::TooMany;
use crate::passes::{Inserting, Pass, Replacing};

/// The pass.
#[derive(Debug)]
pub(crate) struct Expanding;

impl Pass for Expanding {
    fn replace(&mut self, code: &mut Replacing<'_>) {
        for number in (0..code.instructions().len()).rev() {
            let _ = code.expand_scatter_gather(number) || code.expand_masked_move(number);
        }
    }

    fn insert(&mut self, at: &mut Inserting<'_>) {
        if let Some(lane) = at.instruction().lane()
            && record(at, lane).is_err()
        {
            unreachable!("no other pass reserves scratch registers");
        }
    }
}

/// Records the number of the lane that comes next, and its address.
fn record(at: &mut Inserting<'_>, lane: u8) -> Result<(), TooMany> {
    let address = at.before().reserve()?;
    at.address(address, 0);
    let mut code = at.before();
    code.record(lane.into(), address)?;
    code.release(address);
    Ok(())
}
