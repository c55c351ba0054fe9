//! Code that may change.
//!
//! Its translation is a row of short runs. Each begins with a comparison of the program's code with what it was
//! translated from, and is left if they differ: what is executed is always what the program has there, whoever has
//! written it, and at which address: the program itself, the kernel, another process. A run ends after an instruction
//! that may write to the code after it.
//!
//! On pages that the program cannot write to while hodo knows of it, there are no comparisons: each run can be made to
//! lead elsewhere instead.
//!
//! A comparison also covers what follows without a jump if a branch is not taken: nothing has been written in between.
//! If something else leads there, it comes to a comparison of its own first.

use hodo_abi::Span;
use hodo_isa::buffer::Label;

use super::Translator;
use super::model::{LONGEST, Version};
use crate::protected::Notice;

use super::set::{Decoded, Ends, Observe, Set};

/// A comparison covers what follows up to about this many bytes.
const COVERED: u64 = 96;

/// What a comparison covers, and the code in that which is translated next, the last first.
pub(super) struct Covered<S: Set> {
    span: Option<Span>,
    next: Vec<Vec<Decoded<S>>>,
}

impl<S: Set> Default for Covered<S> {
    fn default() -> Self {
        Self {
            span: None,
            next: Vec::new(),
        }
    }
}

impl<S: Observe> Translator<'_, '_, S> {
    /// Translates runs up to an instruction that does not continue.
    pub(super) fn runs(&mut self, mut pc: u64) {
        loop {
            let version: Version = (pc, 0);
            if self.is_elsewhere(version) {
                self.begins_block(None);
                self.point(pc, None);
                return self.jump_to(pc);
            }
            let label = self.label_of(version);
            let code = self.collect_run(pc, u64::MAX);
            if code.is_empty() {
                // The program must not execute this: the exit shows it the fault.
                return self.jump_to(pc);
            }
            self.bound.insert(version);
            self.begin_run(label, &code);
            match self.unobserved(&code) {
                Some((next, _)) => pc = next,
                None => return,
            }
        }
    }

    /// What may become a run or a block: it is known already if a comparison covers it.
    pub(super) fn collect_run(&mut self, pc: u64, until: u64) -> Vec<Decoded<S>> {
        let next = self.covered.next.pop();
        match next.filter(|next| next[0].pc == pc) {
            Some(next) => next,
            None => self.collect(pc, until),
        }
    }

    /// Begins a run: compares the code, if nothing has done so before.
    pub(super) fn begin_run(&mut self, label: Label, code: &[Decoded<S>]) {
        let (Some(first), Some(last)) = (code.first(), code.last()) else {
            return;
        };
        let own = Span::from(first.pc..last.next());
        if self.notice == Notice::Protected {
            // What follows may make it an instruction.
            let more = if last.insn.is_none() {
                LONGEST as u64
            } else {
                0
            };
            self.code.bind(label);
            self.begins_uncompared(own.start, own.end + more);
            return S::entry(self, own.start);
        }
        let bytes = self.bytes_of(code);
        let goes_on = self.goes_on(last);
        let covers = |covered: Span| covered.contains(own.start) && own.end <= covered.end;
        if self.covered.span.is_some_and(covers) && last.insn.is_some() {
            let run = self.code.label();
            self.code.bind(run);
            // Nothing compares what it goes on to.
            let mut bytes = bytes;
            let ahead = std::mem::take(&mut self.covered.next);
            for code in ahead.iter().rev() {
                bytes.extend(self.bytes_of(code));
            }
            self.covered.next = ahead;
            self.put_later(S::other_way(label, run, first.pc, bytes));
        } else {
            self.code.bind(label);
            let mut bytes = bytes;
            let ahead = match goes_on {
                true => self.look_ahead(own),
                false => Vec::new(),
            };
            let mut end = own.end;
            for code in &ahead {
                bytes.extend(self.bytes_of(code));
                end = code.last().map_or(end, Decoded::next);
            }
            S::check(self, own.start, &bytes);
            self.covered.span = Some(Span::from(own.start..end));
            self.covered.next = ahead;
            self.covered.next.reverse();
        }
        if !goes_on {
            self.covered = Covered::default();
        }
    }

    /// Whether an instruction may write to code after it, as far as that is known before it is executed.
    pub(super) fn may_write_code(&self, decoded: &Decoded<S>) -> bool {
        S::may_write(&decoded.facts, self.request.on_stack)
    }

    /// Whether nothing is written before what follows an instruction, if that is executed next.
    fn goes_on(&self, last: &Decoded<S>) -> bool {
        let is_branch = last.insn.is_some_and(|insn| S::ends(insn) == Ends::Maybe);
        is_branch && !self.may_write_code(last)
    }

    /// What follows a run.
    fn look_ahead(&mut self, own: Span) -> Vec<Vec<Decoded<S>>> {
        let (mut ahead, mut pc) = (Vec::new(), own.end);
        if self.request.watch.is_some_and(|watch| watch.chooses()) {
            // Blocks end where functions do.
            return ahead;
        }
        while pc - own.start < COVERED && !self.is_elsewhere((pc, 0)) {
            let code = self.collect(pc, u64::MAX);
            let Some(last) = code.last().filter(|last| last.insn.is_some()) else {
                break;
            };
            let goes_on = self.goes_on(last);
            pc = last.next();
            ahead.push(code);
            if !goes_on {
                break;
            }
        }
        ahead
    }

    /// The bytes of code, and those that might make it other code.
    fn bytes_of(&mut self, code: &[Decoded<S>]) -> Vec<u8> {
        let mut bytes: Vec<u8> = code.iter().flat_map(Decoded::own).copied().collect();
        if let Some(last) = code.last().filter(|last| last.insn.is_none()) {
            // What follows may make it an instruction.
            let rest = (self.request.read)(last.pc);
            let rest = rest.map(|(rest, len)| rest[1..len.clamp(1, LONGEST)].to_vec());
            bytes.extend(rest.unwrap_or_default());
        }
        bytes
    }
}
