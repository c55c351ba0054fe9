//! Histograms: puts keys and sums into the frame, then finds the slot with these keys.

use alloc::vec::Vec;
use hodo_isa::buffer::Label;

use super::{Given, Tables};
use crate::detour::{DetourError, Histogram, Key, STRING, Text, Words};

/// Offsets in a slot, which begins with a tag.
const HITS: u32 = 8;
const SUMS: u32 = 16;
/// Offsets of counters in the table, which begins with the number of entries.
const NO_ROOM: u32 = 8;
const UNREAD: u32 = 16;

/// A histogram that is being lowered.
struct Lowered<'w, 'b, T> {
    target: &'w mut T,
    given: Given<'b>,
    histogram: &'w Histogram,
    words: Words,
    /// Where a hit is lost because something cannot be computed.
    lost: Label,
}

/// Counts a hit in a histogram. Returns the loads that may fault; control then goes to `lost`.
pub(crate) fn histogram<T: Tables>(
    target: &mut T,
    histogram: &Histogram,
    given: Given<'_>,
    lost: Label,
) -> Result<Vec<T::Load>, DetourError> {
    let mut lowered = Lowered {
        target,
        given,
        histogram,
        words: histogram.words(),
        lost,
    };
    let mut loads = Vec::new();
    let mut at = 0;
    for key in &histogram.keys {
        lowered.key(key, at, &mut loads)?;
        at += key.words();
    }
    for sum in &histogram.sums {
        let mut lowering = given.lowering(lowered.target, lost);
        lowering.number(sum);
        loads.append(&mut lowering.finish()?);
        lowered.target.store_key(at);
        at += 1;
    }
    lowered.find();
    Ok(loads)
}

impl<T: Tables> Lowered<'_, '_, T> {
    /// Puts a key into the frame, from word `at` on.
    fn key(&mut self, key: &Key, at: usize, loads: &mut Vec<T::Load>) -> Result<(), DetourError> {
        match key {
            Key::Number(test, part) => {
                let mut lowering = self.given.lowering(self.target, self.lost);
                lowering.number(test);
                loads.append(&mut lowering.finish()?);
                self.target.part(*part);
                self.target.store_key(at);
            }
            Key::Text(Text::Thread(from)) => {
                for number in 0..2 {
                    self.target.thread_word(from + 8 * number);
                    self.target.store_key(at + number as usize);
                }
            }
            Key::Text(Text::Value(value)) => {
                self.target.clear_keys(at..at + STRING / 8);
                let mut lowering = self.given.lowering(self.target, self.lost);
                lowering.word(*value);
                loads.append(&mut lowering.finish()?);
                self.target.copy_key(at, loads);
            }
            Key::Text(Text::Fixed(text)) => {
                let mut bytes = text.clone();
                bytes.resize(STRING, 0);
                for (number, eight) in bytes.chunks_exact(8).enumerate() {
                    let eight = u64::from_le_bytes(eight.try_into().unwrap_or_default());
                    self.target.wide_number(eight);
                    self.target.store_key(at + number);
                }
            }
        }
        Ok(())
    }

    /// The offset of a key in the slot.
    fn key_at(&self, key: usize) -> u32 {
        SUMS + 8 * (self.words.sums + key) as u32
    }

    fn table(&mut self) {
        self.target
            .table(self.given.block.base, self.histogram.table);
    }

    /// Finds the slot, or claims a free one, and counts there. The keys are in the frame, followed by the sums.
    fn find(&mut self) {
        let slots = Histogram::slots(self.histogram.size);
        let [again, look, found, other, next, end] = [(); 6].map(|()| self.target.label());
        self.target.hash(self.words.keys);
        self.target.tag(64 - slots.trailing_zeros());
        self.table();
        self.target.bind(again);
        self.target.slot(self.words.slot());
        self.target.bind(look);
        self.target.unless_tag(other);
        for key in 0..self.words.keys {
            self.target.unless_key(self.key_at(key), key, next);
        }
        self.target.bind(found);
        self.target.count_in_slot(HITS);
        for sum in 0..self.words.sums {
            let at = SUMS + 8 * sum as u32;
            self.target.add_in_slot(at, self.words.keys + sum);
        }
        self.target.jump(end);
        self.target.bind(other);
        self.target.if_taken(next);
        self.take(found, look, end);
        self.target.bind(next);
        self.target.next_slot(slots - 1);
        self.target.jump(again);
        self.target.bind(self.lost);
        self.table();
        self.target.count_in_table(UNREAD);
        self.target.bind(end);
    }

    /// Claims a free slot: reserves an entry first, then the slot.
    fn take(&mut self, found: Label, look: Label, end: Label) {
        let [full, over, raced] = [(); 3].map(|()| self.target.label());
        // A word that can hold the slot's number.
        let spare = self.words.keys + self.words.sums;
        self.target.take_entry(self.histogram.size - 1, full, over);
        self.target.claim(spare, raced);
        for key in 0..self.words.keys {
            self.target.put_key(self.key_at(key), key);
        }
        self.target.publish();
        self.target.jump(found);
        self.target.bind(raced);
        self.target.give_entry_back();
        self.target.number_again(spare);
        self.target.jump(look);
        self.target.bind(over);
        self.target.give_entry_back();
        self.target.bind(full);
        self.target.count_in_table(NO_ROOM);
        self.target.jump(end);
    }
}
