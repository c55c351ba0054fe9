//! Lowers a block: if its condition holds, its actions one after another.

use super::{Events, Given, Tables, event, histogram, record};
use crate::detour::{Deed, DetourError, kept_at};
use hodo_isa::buffer::Label;

/// Jumps to `off` unless a block is switched on and its condition holds.
pub(crate) fn condition<T: Events + Tables>(
    target: &mut T,
    given: &mut Given<'_>,
    off: Label,
) -> Result<(), DetourError> {
    let loads = given.condition(target, off)?;
    target.leave(loads, off);
    Ok(())
}

/// The actions of a block, except for a return.
pub(crate) fn deeds<T: Events + Tables>(
    target: &mut T,
    given: Given<'_>,
) -> Result<(), DetourError> {
    let base = given.block.base;
    for deed in &given.block.deeds {
        match deed {
            Deed::Count(counter) => target.count(*counter),
            Deed::Record(event, gate, shared) => {
                let closed = target.label();
                if let Some(gate) = gate {
                    target.unless_on(base, *gate, closed);
                }
                let kept = |value: usize| {
                    let word = kept_at(given.needs.kept, value)?;
                    (*shared && given.fetched >> value & 1 == 1).then_some(word)
                };
                record(target, event, &kept)?;
                target.bind(closed);
            }
            Deed::Switch(at, on) => target.switch(base, *at, *on),
            Deed::Histogram(table) => {
                target.begin_histogram(table.words());
                let unread = target.label();
                let loads = histogram(target, table, given, unread)?;
                target.leave(loads, unread);
                target.end();
            }
            Deed::Name(source, at) => event::name(target, source, *at)?,
            Deed::Return(_) => {}
        }
    }
    Ok(())
}
