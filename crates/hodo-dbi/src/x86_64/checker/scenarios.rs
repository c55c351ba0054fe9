//! The scenarios of DynamoRIO's `drreg-test`, by the numbers that its comments give them. Each is checked by the walk,
//! and what is special about it is looked at.

use std::collections::HashMap;

use iced_x86::{Decoder, DecoderOptions, Mnemonic, Register};

use super::super::block::SPILLS;
use super::{BASE, Emitted};
use crate::fragment::{Fragment, Item};
use crate::inserted::{Bytes, Code, Compare, Compute, Scratch, Step, TooMany, Word};
use crate::passes::{Inserting, Moved, Pass, Replacing, Revising, Words};

/// Inserts what texts say before instructions, by number. `+a` reserves a register and sets it, `-a` releases it, `a`
/// writes it to a word, `!a` computes with it, which changes flags, `?a` skips a sum if it is 5, `=a` stores it to
/// memory, `*a` shows the program's registers.
struct Script {
    texts: &'static [(usize, &'static str)],
    /// In the fourth phase instead of the third.
    is_late: bool,
    number: usize,
    scratch: HashMap<char, Scratch>,
    words: Vec<Word>,
}

fn script(texts: &'static [(usize, &'static str)]) -> Box<dyn Pass> {
    Box::new(Script {
        texts,
        is_late: false,
        number: 0,
        scratch: HashMap::new(),
        words: Vec::new(),
    })
}

fn late(texts: &'static [(usize, &'static str)]) -> Box<dyn Pass> {
    Box::new(Script {
        texts,
        is_late: true,
        number: 0,
        scratch: HashMap::new(),
        words: Vec::new(),
    })
}

impl Script {
    fn write(&mut self, text: &str, code: &mut Code<'_>) -> Result<(), TooMany> {
        for part in text.split(' ') {
            let name = part.chars().last().expect("a name");
            let word = self.words[0];
            if part.starts_with('+') {
                let scratch = code.reserve()?;
                code.set(scratch, 0x1000 + u64::from(u32::from(name)));
                self.scratch.insert(name, scratch);
            }
            let scratch = self.scratch[&name];
            match part.as_bytes()[0] {
                b'+' => {}
                b'-' => code.release(scratch),
                b'!' => code.compute(Compute::Xor, scratch, 0x55),
                b'*' => code.show_program(),
                b'=' => code.store(Bytes::Eight, scratch, 8, scratch),
                b'?' => code.when(Compare::Different, scratch, 5, |code| {
                    code.compute(Compute::Subtract, scratch, 1);
                    Ok(())
                })?,
                _ => code.write(word, scratch),
            }
        }
        Ok(())
    }

    fn texts_at(&self, number: usize) -> impl Iterator<Item = &'static str> + use<> {
        let texts = self.texts.iter();
        texts.filter_map(move |(at, text)| (*at == number).then_some(*text))
    }
}

impl Pass for Script {
    fn begin(&mut self, words: &mut Words<'_>) {
        self.words.push(words.word());
    }

    fn insert(&mut self, at: &mut Inserting<'_>) {
        if at.is_first() {
            self.number = 0;
        }
        for text in self.texts_at(self.number) {
            if !self.is_late {
                self.write(text, &mut at.before())
                    .expect("enough registers");
            }
        }
        self.number += 1;
    }

    fn revise(&mut self, code: &mut Revising<'_>) {
        if !self.is_late {
            return;
        }
        let count = code.fragment().instructions().count();
        for number in 0..count {
            for text in self.texts_at(number) {
                let items = code.fragment().items().iter().enumerate();
                let is_instruction = |item: &_| matches!(item, Item::Instruction(_));
                let mut places = items.filter(|(_, item)| is_instruction(*item));
                let place = places.nth(number).expect("an instruction").0;
                let written = code.insert(place, |code| self.write(text, code));
                written.expect("enough registers");
            }
        }
    }
}

/// The first fragment.
struct Seen(Emitted);

/// Translates code with passes, and checks it.
fn seen(code: &[&[u8]], passes: Vec<Box<dyn Pass>>) -> Seen {
    let mut code = code.concat();
    code.extend([0xEB, 0xFE]);
    let emitted = Emitted::new(&code, passes, false);
    if let Err(wrong) = emitted.check() {
        panic!("{wrong}");
    }
    Seen(emitted)
}

impl Seen {
    /// What is in slots while an instruction of the program is executed.
    fn moved(&self, number: usize) -> Vec<(Moved, u8)> {
        let own = |saved: &crate::translate::Saved| saved.is_own;
        let points = self.0.translation.points.iter();
        let mut own = points.filter_map(|point| point.state.inside.filter(own));
        let saved = own.nth(number).expect("an instruction");
        self.0.maps[saved.map as usize].clone()
    }

    fn has(&self, number: usize, what: Moved) -> bool {
        self.moved(number).iter().any(|(moved, _)| *moved == what)
    }

    fn slot(&self, number: usize, what: Moved) -> Option<u8> {
        let moved = self.moved(number);
        let found = moved.into_iter().find(|(moved, _)| *moved == what);
        found.map(|(_, slot)| slot)
    }

    /// How often the first fragment's code has an instruction.
    fn count(&self, is_wanted: impl Fn(&iced_x86::Instruction) -> bool) -> usize {
        let span = self.0.span(0);
        let bytes = &self.0.translation.bytes[..(span.end - BASE) as usize];
        let bytes = &bytes[(span.start - BASE) as usize..];
        let decoder = Decoder::with_ip(64, bytes, span.start, DecoderOptions::NONE);
        decoder.into_iter().filter(is_wanted).count()
    }

    /// How often a register is loaded from the thread's block.
    fn loads(&self, register: Register) -> usize {
        self.count(|insn| {
            insn.mnemonic() == Mnemonic::Mov
                && insn.op0_register() == register
                && insn.segment_prefix() == Register::GS
        })
    }
}

const R15: Moved = Moved::General(15);
const R14: Moved = Moved::General(14);

const NOP: &[u8] = &[0x90];
/// `mov rax, [rcx]`
const LOAD: &[u8] = &[0x48, 0x8B, 0x01];
/// `cmp rbx, rcx`
const COMPARE: &[u8] = &[0x48, 0x39, 0xCB];
/// `adc rdx, 0`
const ADD_CARRY: &[u8] = &[0x48, 0x83, 0xD2, 0x00];
/// `setb dl`
const SET: &[u8] = &[0x0F, 0x92, 0xC2];
/// `mov rdx, r15`
const READ_R15: &[u8] = &[0x4C, 0x89, 0xFA];
/// `mov r15, rdx`
const WRITE_R15: &[u8] = &[0x49, 0x89, 0xD7];
/// `add r15, 1`
const CHANGE_R15: &[u8] = &[0x49, 0x83, 0xC7, 0x01];
/// `mov rax, rdx`
const WRITE_RAX: &[u8] = &[0x48, 0x89, 0xD0];

#[test]
fn drreg_3_a_register_at_a_fault() {
    let seen = seen(&[LOAD, NOP], vec![script(&[(0, "+a !a"), (1, "a -a")])]);
    assert!(seen.has(0, R15) && seen.has(0, Moved::Flags));
    assert!(seen.has(0, Moved::General(0)), "flags go by way of rax");
}

/// Also 5, 15, 24, 26, 27, 29: flags in a slot, read and changed by the program while inserted code changes them.
#[test]
fn drreg_4_flags_that_the_program_reads_and_changes() {
    let code = [COMPARE, LOAD, ADD_CARRY, LOAD, SET, SET, LOAD];
    let texts = &[(1, "+a !a"), (3, "!a"), (6, "!a a -a")];
    let seen = seen(&code, vec![script(texts)]);
    for (number, in_slot) in [
        (0, false),
        (1, true),
        (2, false),
        (3, true),
        (4, false),
        (5, false),
        (6, true),
    ] {
        assert_eq!(
            seen.has(number, Moved::Flags),
            in_slot,
            "instruction {number}"
        );
    }
    // 15, 16: once for two instructions that read them; and once at the end.
    assert_eq!(seen.count(|insn| insn.mnemonic() == Mnemonic::Sahf), 3);
}

/// Also 10: the map names spill slots only, no other words of the thread's block.
#[test]
fn drreg_6_other_words_are_no_slots() {
    let code = [LOAD, READ_R15, LOAD, LOAD];
    let seen = seen(
        &code,
        vec![script(&[(0, "+a +b !a"), (2, "a b ?a"), (3, "-a -b")])],
    );
    for number in 0..4 {
        for (_, slot) in seen.moved(number) {
            assert!(u32::from(slot) < SPILLS);
        }
    }
}

/// An operand relative to the instruction needs no register: its distance is corrected.
#[test]
fn drreg_8_operands_relative_to_the_instruction() {
    // mov rdx, [rip + 16] and cmp dword [rip + 32], 4
    let code: [&[u8]; 3] = [
        &[0x48, 0x8B, 0x15, 0x10, 0, 0, 0],
        &[0x81, 0x3D, 0x20, 0, 0, 0, 4, 0, 0, 0],
        NOP,
    ];
    let seen = seen(
        &code,
        vec![script(&[(0, "+a !a a"), (1, "a"), (2, "!a a -a")])],
    );
    assert!(seen.has(0, R15));
    assert_eq!(
        seen.count(iced_x86::Instruction::is_ip_rel_memory_operand),
        2
    );
}

#[test]
fn drreg_11_flags_while_rax_has_nothing() {
    let code = [COMPARE, LOAD, WRITE_RAX, SET, NOP];
    let seen = seen(&code, vec![script(&[(1, "+a !a"), (4, "!a a -a")])]);
    assert!(seen.has(1, Moved::Flags));
    // The program has overwritten rax, and reads flags then.
    assert!(!seen.has(3, Moved::Flags));
}

/// Also 22: one phase inside of another, which has the same place.
#[test]
fn drreg_13_phases_have_different_slots() {
    let code = [COMPARE, LOAD, SET, LOAD];
    let early = script(&[(1, "+a !a"), (3, "a !a -a")]);
    let seen = seen(&code, vec![late(&[(1, "+b !b b"), (3, "+b !b b")]), early]);
    let mut slots: Vec<u8> = seen.moved(1).iter().map(|(_, slot)| *slot).collect();
    let count = slots.len();
    slots.sort_unstable();
    slots.dedup();
    assert_eq!(slots.len(), count);
    assert!(seen.has(1, R15) && seen.has(1, Moved::Flags));
}

#[test]
fn drreg_14_nested() {
    let code = [LOAD; 4];
    let seen = seen(
        &code,
        vec![
            script(&[(0, "+a"), (3, "a -a")]),
            script(&[(1, "+b"), (2, "b -b")]),
        ],
    );
    assert!(seen.has(0, R15) && !seen.has(0, R14));
    assert!(seen.has(1, R15) && seen.has(1, R14));
    assert!(seen.has(3, R15));
}

/// The value of `r15` moves between slots while one reservation ends in the middle of another.
#[test]
fn drreg_17_overlapping() {
    let code = [LOAD, READ_R15, LOAD, CHANGE_R15, LOAD, LOAD];
    let seen = seen(
        &code,
        vec![
            script(&[(0, "+a a"), (2, "a"), (4, "a -a")]),
            script(&[(0, "+b b"), (4, "b"), (5, "b -b")]),
            script(&[(2, "+c c"), (5, "c -c")]),
        ],
    );
    for number in [1, 3] {
        assert!(!seen.has(number, R15), "instruction {number} reads it");
    }
}

/// Two instructions read a register: it comes back before the first one.
#[test]
fn drreg_16_restored_once() {
    let code = [LOAD, READ_R15, READ_R15, LOAD];
    let seen = seen(&code, vec![script(&[(0, "+a +b a b"), (3, "a b -a -b")])]);
    assert!(!seen.has(1, R15) && !seen.has(2, R15));
    assert!(seen.loads(Register::R15) <= 1);
}

/// Also 5, 29: what is known comes from the map that was stored, at each instruction of the code.
#[test]
fn drreg_18_translations_are_stored() {
    let code = [COMPARE, LOAD, SET, CHANGE_R15, LOAD];
    let texts = &[(1, "+a !a ?a"), (2, "a"), (4, "!a a -a")];
    let emitted = seen(&code, vec![script(texts)]).0;
    let all = Decoder::new(64, &emitted.translation.bytes, DecoderOptions::NONE).into_iter();
    let checked = emitted.check().expect("it was checked");
    // The jump at the end is a fragment of its own.
    assert!(checked > 20 && checked <= all.count(), "{checked}");
}

/// The program's own instructions look like those that hodo inserts.
#[test]
fn drreg_19_the_program_looks_like_inserted_code() {
    // mov gs:[0x100], rbx; lahf; seto al; mov gs:[0x100], rax; mov rbx, gs:[0x100]; add al, 127; sahf
    let code: [&[u8]; 7] = [
        &[0x65, 0x48, 0x89, 0x1C, 0x25, 0, 1, 0, 0],
        &[0x9F],
        &[0x0F, 0x90, 0xC0],
        &[0x65, 0x48, 0x89, 0x04, 0x25, 0, 1, 0, 0],
        &[0x65, 0x48, 0x8B, 0x1C, 0x25, 0, 1, 0, 0],
        &[0x04, 127],
        &[0x9E],
    ];
    let alone = seen(&code, vec![script(&[])]);
    for number in 0..code.len() {
        assert!(alone.moved(number).is_empty());
    }
    let scratched = seen(&code, vec![script(&[(0, "+a !a"), (3, "!a"), (6, "a -a")])]);
    assert!(scratched.has(0, R15) && !scratched.has(0, Moved::General(3)));
}

/// Also 25: two passes need a register at the same time. The program's value is in one slot only.
#[test]
fn drreg_20_a_value_is_in_one_slot() {
    let code = [LOAD, COMPARE, LOAD, LOAD];
    let seen = seen(
        &code,
        vec![
            script(&[(0, "+a !a"), (2, "!a"), (3, "-a")]),
            script(&[(0, "+b !b"), (2, "!b"), (3, "-b")]),
        ],
    );
    for number in 0..4 {
        let moved = seen.moved(number);
        let flags = moved.iter().filter(|(moved, _)| *moved == Moved::Flags);
        assert!(flags.count() <= 1);
        assert_eq!(moved.iter().filter(|(moved, _)| *moved == R15).count(), 1);
    }
}

/// Also 23: nested and overlapping uses of flags, with a program that changes them in between.
#[test]
fn drreg_21_flags_nested_and_overlapping() {
    let code = [COMPARE, LOAD, LOAD, COMPARE, LOAD, LOAD, SET];
    let seen = seen(
        &code,
        vec![
            script(&[(1, "+a !a"), (5, "!a a -a")]),
            script(&[(2, "+b !b"), (4, "!b b -b")]),
        ],
    );
    let flags = |number| seen.slot(number, Moved::Flags);
    assert!(
        flags(1).is_some() && flags(1) == flags(2),
        "they are saved once"
    );
    assert!(flags(3).is_none() || flags(3) == flags(2));
    assert!(flags(4).is_some() && flags(5).is_some());
    assert_eq!(flags(6), None);
}

/// A place where all registers have the program's values (`drreg_statelessly_restore_app_value`). The walk finds them
/// there.
#[test]
fn drreg_12_the_program_is_shown() {
    let shown = |insn: &iced_x86::Instruction| insn.mnemonic() == Mnemonic::Nop && insn.len() == 2;
    let code = [LOAD, READ_R15, LOAD, ADD_CARRY];
    for texts in [
        &[(0, "+a !a *a"), (2, "a *a -a")][..],
        &[(0, "+a +b !a"), (1, "*a ?b *b a b"), (3, "*a a b -a -b")],
    ] {
        let seen = seen(&code, vec![script(texts)]);
        let places = texts.iter().map(|(_, text)| text.matches('*').count());
        assert_eq!(seen.count(shown), places.sum::<usize>());
        let span = seen.0.span(0);
        let points = seen.0.translation.points.iter();
        let points = points.filter(|point| span.contains(&point.at));
        let mut is_shown = points.filter(|point| {
            let own = Decoder::new(64, seen.0.bytes(point.at), DecoderOptions::NONE).decode();
            shown(&own)
        });
        assert!(is_shown.all(|point| point.state.inside.is_none_or(|saved| saved.map == 0)));
    }
}

struct Conservative;

impl Pass for Conservative {
    fn is_conservative(&self) -> bool {
        true
    }
}

/// Flags that nobody needs are saved only if a pass asks for that.
#[test]
fn flags_that_nobody_needs() {
    let code = [COMPARE, SET];
    let texts = &[(0, "+a !a a -a")];
    let saves = |seen: &Seen| seen.count(|insn| insn.mnemonic() == Mnemonic::Lahf);
    let usual = seen(&code, vec![script(texts)]);
    assert_eq!(saves(&usual), 0);
    let conservative = seen(&code, vec![script(texts), Box::new(Conservative)]);
    assert_eq!(saves(&conservative), 1);
}

/// Also 37: the third phase has a register over an instruction, at which the fourth phase has another.
#[test]
fn drreg_36_the_third_phase_around_the_fourth() {
    let code = [COMPARE, LOAD, LOAD, SET];
    let outer = script(&[(0, "+a !a"), (3, "!a a -a")]);
    let seen = seen(
        &code,
        vec![outer, late(&[(1, "+b !b b -b"), (2, "+b !b ?b b")])],
    );
    assert!(seen.has(1, R15) && seen.has(2, R15));
    assert!(!seen.has(3, Moved::Flags));
}

/// As drreg-end-restore and drreg-flow: everything is back at the end, whether code was skipped or not; what the
/// program overwrites does not have to come back.
#[test]
fn drreg_end_and_flow() {
    let code = [LOAD, NOP, WRITE_R15, LOAD];
    let texts = &[(0, "+a a"), (1, "-a"), (3, "+b ?b =b b")];
    let seen = seen(&code, vec![script(texts)]);
    assert!(seen.has(0, R15) && seen.has(2, R15));
    assert_eq!(seen.loads(Register::R15), usize::from(seen.has(3, R15)));
}

/// How often flags are saved before the second instruction and after that, if the last one overwrites them.
fn saves(code: &[&[u8]], texts: &'static [(usize, &'static str)]) -> usize {
    let seen = seen(code, vec![script(texts)]);
    seen.count(|insn| insn.mnemonic() == Mnemonic::Lahf)
}

/// Flags that the program overwrites are not saved, unless something can fault before that: also inserted code.
#[test]
fn flags_that_are_overwritten_are_saved_if_inserted_code_may_fault() {
    assert_eq!(saves(&[NOP, COMPARE], &[(1, "+a !a a -a")]), 0);
    assert_eq!(saves(&[NOP, COMPARE], &[(1, "+a !a =a -a")]), 1);
}

#[test]
fn flags_that_are_overwritten_are_saved_if_a_move_may_fault() {
    const TEXTS: &[(usize, &str)] = &[(1, "+a !a a -a")];
    assert_eq!(saves(&[NOP, WRITE_R15, COMPARE], TEXTS), 0);
    // mov fs, eax and mov rsi, dr0
    for moves in [&[0x8E, 0xE0][..], &[0x0F, 0x21, 0xC6]] {
        assert_eq!(saves(&[NOP, moves, COMPARE], TEXTS), 1);
    }
}

/// What a pass sees in a phase.
#[derive(Clone, Default)]
struct Phases(
    std::rc::Rc<std::cell::RefCell<Vec<(&'static str, usize)>>>,
    usize,
);

impl Phases {
    fn note(&self, phase: &'static str) {
        let mut all = self.0.borrow_mut();
        if all.last() != Some(&(phase, self.1)) {
            all.push((phase, self.1));
        }
    }
}

impl Pass for Phases {
    fn replace(&mut self, _: &mut Replacing<'_>) {
        self.note("replace");
    }

    fn analyze(&mut self, _: &Fragment) {
        self.note("analyze");
    }

    fn insert(&mut self, _: &mut Inserting<'_>) {
        self.note("insert");
    }

    fn revise(&mut self, _: &mut Revising<'_>) {
        self.note("revise");
    }
}

/// As drmgr-test.
#[test]
fn phases_come_one_after_another() {
    let first = Phases::default();
    let second = Phases(first.0.clone(), 1);
    let all = first.0.clone();
    seen(&[NOP], vec![Box::new(first), Box::new(second)]);
    let both = |phase| [(phase, 0), (phase, 1)];
    // The fragment has two instructions; the jump at the end gets another fragment of its own.
    let (replace, analyze) = (both("replace"), both("analyze"));
    let (insert, revise) = (both("insert"), both("revise"));
    let expected = [
        [replace, analyze, insert, insert, revise].concat(),
        [replace, analyze, insert, revise].concat(),
    ];
    let all = all.borrow();
    assert_eq!(all[..], expected.concat()[..]);
}

/// `vpgatherdd xmm0, [rbx + xmm1 * 4 + 8], xmm2`
const GATHER: &[u8] = &[0xC4, 0xE2, 0x69, 0x90, 0x44, 0x8B, 8];

/// Expands a gather, and replaces what loads by three instructions.
struct Emulates;

impl Pass for Emulates {
    fn replace(&mut self, code: &mut Replacing<'_>) {
        for number in (0..code.instructions().len()).rev() {
            let is_gather = code.instructions()[number].is_gather();
            let is_load = code.instructions()[number].bytes() == LOAD;
            assert_eq!(code.expand_scatter_gather(number), is_gather);
            // Only once.
            assert!(!code.expand_scatter_gather(number));
            if is_load {
                assert!(code.replace(number, &[NOP, LOAD, NOP]));
            }
        }
    }
}

/// As drbbdup-emul-test and app_emulation_api: those who look at instructions see each one once, those who look at
/// memory see each access once. A gather has a fragment of its own.
#[test]
fn emulated_instructions_are_seen_once() {
    let emitted = seen(&[NOP, LOAD, GATHER, NOP], vec![Box::new(Emulates)]).0;
    let seen_of = |items: &[Item]| -> Vec<(Option<Vec<u8>>, usize, bool)> {
        let instructions = items.iter().filter_map(|item| match item {
            Item::Instruction(instruction) => Some(instruction),
            Item::Inserted(_) => None,
        });
        let seen = instructions.map(|one| {
            let fetched = one.fetched().map(|fetched| fetched.bytes().to_vec());
            (fetched, one.operands().len(), one.is_emulated())
        });
        seen.collect()
    };
    let is = |bytes: &[u8], operands, is_emulated| (Some(bytes.to_vec()), operands, is_emulated);
    let lane = || (None, 1, true);
    assert_eq!(
        seen_of(&emitted.fragments[0]),
        [
            is(NOP, 0, false),
            is(LOAD, 0, true),
            lane(),
            (None, 0, true)
        ]
    );
    assert_eq!(
        seen_of(&emitted.fragments[1]),
        [is(GATHER, 0, true), lane(), lane(), lane(), lane()]
    );
    assert_eq!(seen_of(&emitted.fragments[2])[0], is(NOP, 0, false));
}

/// Uses as many registers as a pass may have, in code that may be skipped.
struct Greedy;

impl Greedy {
    fn all(code: &mut Code<'_>) -> Vec<Scratch> {
        let mut all = Vec::new();
        while let Ok(scratch) = code.reserve() {
            code.set(scratch, 1);
            all.push(scratch);
        }
        all
    }

    fn use_all(code: &mut Code<'_>, all: &[Scratch]) {
        for scratch in all {
            code.compute(Compute::Xor, *scratch, all[0]);
            code.store(Bytes::Eight, *scratch, 8, *scratch);
        }
    }
}

impl Pass for Greedy {
    fn replace(&mut self, code: &mut Replacing<'_>) {
        code.expand_masked_move(0);
    }

    fn insert(&mut self, at: &mut Inserting<'_>) {
        let has_operand = at.instruction().operands().first();
        let has_operand = has_operand.is_some_and(|operand| operand.has_address);
        let mut code = at.before();
        let before = Self::all(&mut code);
        let written = code.when(Compare::Equal, before[0], 1, |code| {
            if has_operand {
                code.address(before[1], 0);
            }
            Self::use_all(code, &before);
            for scratch in &before {
                code.release(*scratch);
            }
            let all = Self::all(code);
            assert_eq!(all.len(), before.len());
            Self::use_all(code, &all);
            for scratch in all {
                code.release(scratch);
            }
            Ok(())
        });
        written.expect("enough registers");
    }

    fn revise(&mut self, code: &mut Revising<'_>) {
        let mut place = 0;
        while place < code.fragment().items().len() {
            let is_store = matches!(
                code.fragment().items()[place],
                Item::Inserted(Step::Store(..))
            );
            if is_store {
                let before = code.fragment().items().len();
                let written = code.insert(place, |code| {
                    let all = Self::all(code);
                    Self::use_all(code, &all);
                    Ok(())
                });
                written.expect("enough registers");
                place += code.fragment().items().len() - before;
            }
            place += 1;
        }
    }
}

/// There are enough registers in code that may be skipped, where none can move.
#[test]
fn passes_use_all_registers_that_they_may() {
    // vmaskmovps [rbx + rcx * 4 + 8], xmm2, xmm0
    let store = &[0xC4, 0xE2, 0x69, 0x2E, 0x44, 0x8B, 8];
    // movsq, push [rbx + rcx * 8]
    for code in [&store[..], &[0x48, 0xA5], &[0xFF, 0x34, 0xCB]] {
        seen(&[code], vec![Box::new(Greedy)]);
    }
}

struct Expand;

impl Pass for Expand {
    fn replace(&mut self, code: &mut Replacing<'_>) {
        code.expand_scatter_gather(0);
    }
}

/// DynamoRIO's expansions, by the founding document: 466 bytes for a gather of four elements, 500 for a scatter.
#[test]
fn expansions_are_short() {
    for (instruction, most) in [
        // vpgatherdd xmm0, [rbx + xmm1 * 4 + 8], xmm2
        (&[0xC4, 0xE2, 0x69, 0x90, 0x44, 0x8B, 0x08][..], 466 / 2),
        // vpscatterdd [rbx + xmm1 * 4 + 8]{k1}, xmm0
        (
            &[0x62, 0xF2, 0x7D, 0x09, 0xA0, 0x44, 0x8B, 0x02][..],
            500 / 2,
        ),
    ] {
        let size = |passes| seen(&[instruction], passes).0.translation.bytes.len();
        let alone = size(Vec::new()) - instruction.len();
        let expanded = size(vec![Box::new(Expand)]) - alone;
        assert!(expanded < most, "{expanded} bytes, {alone}");
    }
}
