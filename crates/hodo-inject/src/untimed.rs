//! Makes our code take the time from the control block, for threads that may not read the time counter.

use std::collections::BTreeSet;

use anyhow::Result;
use hodo_abi::Span;
use hodo_ptrace::Memory;
use hodo_ptrace::TargetAddr;

use crate::arch;
pub use crate::arch::{INSIDE_TIME, takes_time};
use crate::space::Space;

/// Makes all our code take the time from the control block. Returns where it was changed.
pub fn take_time(memory: &Memory, space: &Space) -> Result<BTreeSet<u64>> {
    let mut places = BTreeSet::new();
    for (Span { start, .. }, used) in space.islands().into_iter().zip(space.used()) {
        let mut code = vec![0; used.bytes()];
        memory.read(TargetAddr(start), &mut code)?;
        let changed = arch::take_time(&mut code);
        if let (Some(&first), Some(&last)) = (changed.first(), changed.last()) {
            let end = (last + READ_AHEAD).min(code.len());
            memory.write(TargetAddr(start + first as u64), &code[first..end])?;
        }
        places.extend(changed.iter().map(|&at| start + at as u64));
    }
    Ok(places)
}

/// No place that is changed is longer than this.
const READ_AHEAD: usize = 16;
