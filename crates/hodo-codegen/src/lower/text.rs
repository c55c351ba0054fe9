//! Texts in conditions: comparisons and patterns. The first [`STRING`] bytes of each text count, as in events.

use super::Texts;
use super::condition::{Goal, Lowering};
use crate::detour::{Atom, Fetch, STRING, Test, Text, cut};

impl<T: Texts> Lowering<'_, T> {
    /// The value becomes the address of a text.
    fn address(&mut self, text: &Text) -> T::Place {
        match text {
            Text::Value(value) => {
                debug_assert!(matches!(self.values[*value], Fetch::Text(..)));
                self.word(*value);
                self.target.program_text()
            }
            Text::Thread(at) => self.target.thread_text(*at),
            Text::Fixed(_) => self.target.program_text(),
        }
    }

    /// Jumps to `to` if control comes here directly and `when` is true, or through `differ` and `when` is false.
    fn end(&mut self, differ: Goal, when: bool, to: &mut Goal) {
        if when {
            self.jump_to(to);
            self.bind(differ);
        } else {
            let mut same = self.goal();
            self.jump_to(&mut same);
            self.bind(differ);
            self.jump_to(to);
            self.bind(same);
        }
    }

    /// Always jumps there; the code after it is emitted as if control could reach it.
    fn always(&mut self, to: &mut Goal) {
        self.jump(&Test::Number(1), true, to);
    }

    /// Jumps to `to` if two texts are equal (`when`), or differ (`!when`).
    pub(super) fn same(&mut self, left: &Text, right: &Text, when: bool, to: &mut Goal) {
        self.needs.texts = true;
        let mut differ = self.goal();
        match (left, right) {
            (Text::Fixed(left), Text::Fixed(right)) => {
                let same = u64::from(cut(left) == cut(right));
                return self.jump(&Test::Number(same), when, to);
            }
            (Text::Fixed(fixed), text) | (text, Text::Fixed(fixed)) => {
                let place = self.address(text);
                if fixed.len() > STRING {
                    self.always(&mut differ);
                }
                let end = (fixed.len() < STRING).then_some(&0);
                for (index, &byte) in fixed.iter().chain(end).take(STRING).enumerate() {
                    self.unless_byte((place, index), byte, &mut differ);
                }
            }
            (left, right) => self.same_memory(left, right, &mut differ),
        }
        self.end(differ, when, to);
    }

    fn same_memory(&mut self, left: &Text, right: &Text, differ: &mut Goal) {
        self.needs.pairs = true;
        let spare = self.take();
        let word = self.spare(spare);
        let left = self.address(left);
        self.target.store(word);
        let right = self.address(right);
        let label = self.to(differ);
        self.target
            .unless_same((left, word), right, label, &mut self.loads);
        self.scratch -= 1;
    }

    fn unless_byte(&mut self, at: (T::Place, usize), byte: u8, to: &mut Goal) {
        let label = self.to(to);
        self.target.unless_byte(at, byte, label, &mut self.loads);
    }

    /// Jumps to `to` if a text matches a pattern (`when`), or does not (`!when`). Parts between two `*` are searched
    /// from the left, because the first match leaves the most text for the rest.
    pub(super) fn fits(&mut self, text: &Text, pattern: &[Atom], when: bool, to: &mut Goal) {
        if let Text::Fixed(fixed) = text {
            let fits = u64::from(Atom::fit(pattern, cut(fixed)));
            return self.jump(&Test::Number(fits), when, to);
        }
        self.needs.texts = true;
        self.needs.pairs = true;
        let place = self.address(text);
        let mut differ = self.goal();
        self.target.find_end(place, &mut self.loads);
        let mut parts = pattern.split(|atom| *atom == Atom::Many).peekable();
        let first = parts.next().unwrap_or_default();
        let alone = parts.peek().is_none();
        if first.len() > STRING {
            self.always(&mut differ);
        } else {
            let label = self.to(&mut differ);
            self.target.unless_room(first.len(), alone, label);
            self.part(place, first, &mut differ);
            self.target.skip(first.len());
        }
        while let Some(part) = parts.next() {
            if part.is_empty() {
                continue;
            }
            if part.len() > STRING {
                self.always(&mut differ);
                break;
            }
            if parts.peek().is_none() {
                let label = self.to(&mut differ);
                self.target.go_to_last(part.len(), label);
                self.part(place, part, &mut differ);
                break;
            }
            self.look_for(place, part, &mut differ);
        }
        self.end(differ, when, to);
    }

    /// Searches for a part, starting at the value, and moves past it.
    fn look_for(&mut self, place: T::Place, part: &[Atom], differ: &mut Goal) {
        let again = self.target.label();
        self.target.bind(again);
        let (mut other, mut found) = (self.goal(), self.goal());
        let label = self.to(differ);
        self.target.unless_room(part.len(), false, label);
        self.part(place, part, &mut other);
        self.jump_to(&mut found);
        self.bind(other);
        self.target.step();
        self.target.jump(again);
        self.bind(found);
        self.target.skip(part.len());
    }

    /// Compares a part with the text at the value.
    fn part(&mut self, place: T::Place, part: &[Atom], differ: &mut Goal) {
        for (index, atom) in part.iter().enumerate() {
            match atom {
                Atom::Many | Atom::One => {}
                Atom::Byte(byte) => self.unless_byte((place, index), *byte, differ),
                Atom::Class(none, ranges) => {
                    let mut inside = self.goal();
                    for &range in ranges.iter().filter(|(low, high)| low <= high) {
                        let label = self.to(&mut inside);
                        self.target
                            .if_within((place, index), range, label, &mut self.loads);
                    }
                    if *none {
                        let mut outside = self.goal();
                        self.jump_to(&mut outside);
                        self.bind(inside);
                        self.jump_to(differ);
                        self.bind(outside);
                    } else {
                        self.jump_to(differ);
                        self.bind(inside);
                    }
                }
            }
        }
    }
}
