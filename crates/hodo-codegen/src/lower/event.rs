//! Events: a record and its payload, in the thread's chunk, and where values come from.

use alloc::vec::Vec;

use super::{Events, Sources};
use crate::detour::{DetourError, Event, Fetch, MOST_VALUES, MOST_WORDS, Source, fault_words};

/// Offsets in an event: the payload's record, its first word, and what follows.
const PAYLOAD: u32 = 8;
const FIRST: u32 = 16;
const HEAD: u32 = 24;

/// The value becomes what a source holds. Changes nothing else.
fn source<T: Sources>(
    target: &mut T,
    from: &Source,
    loads: &mut Vec<T::Load>,
) -> Result<(), DetourError> {
    let here = target.here();
    match from {
        Source::Here => target.wide_number(here),
        Source::Number(number) => target.wide_number(*number),
        Source::Near(distance) => target.wide_number(here.wrapping_add_signed(*distance)),
        Source::Register(register) => target.register(*register),
        Source::Caller(distance) => target.caller(*distance),
        Source::ThreadPointer => target.thread_pointer(loads),
        Source::Flags => return target.flags(),
        Source::Segment(register) => return target.segment(*register),
        Source::Plus(base, number) => {
            source(target, base, loads)?;
            target.plus(*number);
        }
        Source::Memory(base, offset) => {
            source(target, base, loads)?;
            target.load_from(8, *offset, loads);
        }
    }
    Ok(())
}

/// The value becomes one word as it is stored, or a text's address.
pub(super) fn fetch<T: Sources>(
    target: &mut T,
    value: &Fetch,
    loads: &mut Vec<T::Load>,
) -> Result<(), DetourError> {
    match value {
        Fetch::Word(from) => source(target, from, loads)?,
        Fetch::Load(from, offset, size) => {
            source(target, from, loads)?;
            target.load_from(*size, *offset, loads);
        }
        Fetch::Thread(at, _) => target.thread_word(*at),
        Fetch::Text(from, offset) | Fetch::Bytes(from, offset, _) => {
            source(target, from, loads)?;
            target.offset(*offset);
        }
        Fetch::Stack => return Err(DetourError::NoStack),
    }
    Ok(())
}

/// Copies a text from a source into the control block.
pub(super) fn name<T: Events>(target: &mut T, from: &Source, at: u32) -> Result<(), DetourError> {
    target.begin_name();
    let mut loads = Vec::new();
    source(target, from, &mut loads)?;
    let done = target.label();
    target.copy_name(at, done, &mut loads);
    target.leave(loads, done);
    target.end();
    Ok(())
}

/// Writes an event. `kept` are the words of the frame with values that have been fetched.
pub(crate) fn record<T: Events>(
    target: &mut T,
    event: &Event,
    kept: &dyn Fn(usize) -> Option<usize>,
) -> Result<(), DetourError> {
    let words: usize = event.values.iter().map(Fetch::words).sum();
    if words > MOST_WORDS {
        return Err(DetourError::TooLarge);
    }
    if event.values.len() > MOST_VALUES {
        return Err(DetourError::TooManyValues);
    }
    let faults = fault_words(event.values.len()) as u32;
    let size = HEAD + 8 * (faults + words as u32);
    target.begin_event(event)?;
    let [again, full, done] = [(); 3].map(|()| target.label());
    target.bind(again);
    target.take_place(event, size, again, full);
    // The payload's record comes before it: a reader must never take the payload for records.
    let payload = u64::from(event.payload) << 32 | u64::from(size / 8 - 2);
    target.wide_number(payload);
    target.put(PAYLOAD);
    target.processor_word(event.rdpid);
    target.put(FIRST);
    let mut at = HEAD;
    for _ in 0..faults {
        target.clear(at);
        at += 8;
    }
    for (number, value) in event.values.iter().enumerate() {
        match kept(number) {
            Some(word) => {
                target.load(word);
                target.put(at);
            }
            None if *value == Fetch::Stack => target.pack(at, size)?,
            None => put_value(target, value, at, number as u32)?,
        }
        at += 8 * value.words() as u32;
    }
    target.publish_event();
    target.bind(done);
    target.chunk_is_full(size, full, (again, done));
    target.end();
    Ok(())
}

/// Stores a value in the event.
fn put_value<T: Events>(
    target: &mut T,
    value: &Fetch,
    at: u32,
    number: u32,
) -> Result<(), DetourError> {
    let mut loads = Vec::new();
    let store = target.label();
    match value {
        Fetch::Thread(from, words) => {
            for word in 0..u32::from(*words) {
                target.thread_word(from + 8 * word);
                target.put(at + 8 * word);
            }
        }
        Fetch::Bytes(_, _, bytes) => {
            target.begin_bytes();
            fetch(target, value, &mut loads)?;
            target.copy_bytes(*bytes, at + 8, &mut loads);
            target.bind(store);
            target.end_bytes(at);
            target.leave(loads, store);
        }
        Fetch::Text(..) => {
            fetch(target, value, &mut loads)?;
            target.put_text(at, store, &mut loads);
            target.failed(loads, number, store);
        }
        _ => {
            fetch(target, value, &mut loads)?;
            target.bind(store);
            target.put(at);
            target.failed(loads, number, store);
        }
    }
    Ok(())
}
