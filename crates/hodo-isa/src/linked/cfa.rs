//! Follows a function's frame, instruction by instruction, along straight-line code: what does not depend on the
//! instruction set.
//!
//! It starts where the return address is in its register, and follows the instructions that move the stack pointer or
//! save callee-saved registers. Where it loses track, the rule is *unknown*. The CFA is the stack pointer at the
//! function's entry, S.

use alloc::vec::Vec;

use super::relocate::Relocated;
use crate::cfa::{Row, Rule};
use crate::effects::Flow;

/// Where things are before an instruction runs.
pub trait Frame: Copy {
    /// An instruction.
    type Insn;

    /// The state at a function's entry.
    const ENTRY: Self;

    /// The instructions of code.
    fn read(code: &[u8], address: u64) -> Vec<Read<Self::Insn>>;

    /// The rule for this state.
    fn rule(&self) -> Rule;

    /// Updates the state for an instruction.
    fn follow(&mut self, insn: &Self::Insn);

    /// A register gets another value.
    fn forget(&mut self, register: u8);
}

/// An instruction of code, and what the frame depends on.
#[derive(Debug, Clone, Copy)]
pub struct Read<Insn> {
    /// The instruction.
    pub insn: Insn,
    /// Its address.
    pub addr: u64,
    /// What it does with control.
    pub flow: Flow,
    /// The register in which it puts the return address, if it is a call.
    pub link: u8,
    /// The address that it forms, which may be a function's.
    pub forms: Option<u64>,
}

/// Where control goes after a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Then {
    /// To the next step, and perhaps also to the step with this index.
    Next(Option<usize>),
    /// Not to the next step; perhaps to this one.
    Stop(Option<usize>),
    /// Instructions put an address into this register, then a jump leaves the code.
    Call(u8),
}

/// One instruction.
struct Step<'a, Insn> {
    /// Its offset in the code that the rows are for.
    at: u32,
    /// What it is.
    instruction: &'a Insn,
    /// Where control goes after it.
    then: Then,
}

/// The rows of these steps and of what comes after them, at the offset `end`. `entries` are the steps that are entered
/// from outside, with their states. Code that no visible path reaches has the rule *unknown*. Also returns the state at
/// the end, if control gets there.
fn rows<S: Frame>(
    steps: &[Step<'_, S::Insn>],
    end: u32,
    entries: &[(usize, S)],
) -> (Vec<Row>, Option<S>) {
    let mut states: Vec<Option<S>> = vec![None; steps.len() + 1];
    for &(index, state) in entries {
        states[index] = Some(state);
    }
    loop {
        let mut changed = false;
        for (index, step) in steps.iter().enumerate() {
            let Some(mut state) = states[index] else {
                continue;
            };
            let (next, other) = match step.then {
                Then::Next(other) => {
                    state.follow(step.instruction);
                    (Some(index + 1), other)
                }
                Then::Stop(other) => (None, other),
                Then::Call(_) => (None, None),
            };
            for to in [next, other].into_iter().flatten() {
                if let Some(slot @ None) = states.get_mut(to) {
                    *slot = Some(state);
                    changed = true;
                }
            }
        }
        if !changed {
            break;
        }
    }
    let mut rows = Vec::with_capacity(steps.len() + 1);
    for (step, state) in steps.iter().zip(&states) {
        let Some(mut state) = *state else {
            add_row(&mut rows, step.at, Rule::Unknown);
            continue;
        };
        add_row(&mut rows, step.at, state.rule());
        if let Then::Call(link) = step.then {
            state.forget(link);
            add_row(&mut rows, step.at + 4, state.rule());
        }
    }
    let last = states.last().copied().flatten();
    if let Some(state) = last {
        add_row(&mut rows, end, state.rule());
    }
    (rows, last)
}

/// Adds a row, if it says something new.
pub fn add_row(rows: &mut Vec<Row>, at: u32, rule: Rule) {
    if let Some(last) = rows.last_mut().filter(|last| last.at == at) {
        last.rule = rule;
    } else if rows.last().is_none_or(|last| last.rule != rule) {
        rows.push(Row { at, rule });
    }
}

/// The rows of code at an address that control leaves only by returns and jumps; calls come back. `entries` are
/// offsets.
#[must_use]
pub fn code_rows<S: Frame>(code: &[u8], address: u64, entries: &[(u32, S)]) -> Vec<Row> {
    followed(code, address, entries, true)
}

/// The rows of the function that begins with this code, as far as jumps and branches within it lead.
#[must_use]
pub fn function_rows<S: Frame>(code: &[u8], address: u64) -> Vec<Row> {
    followed(code, address, &[(0, S::ENTRY)], false)
}

/// `within`: other functions in the code are entered, too.
fn followed<S: Frame>(code: &[u8], address: u64, entries: &[(u32, S)], within: bool) -> Vec<Row> {
    let read = S::read(code, address);
    let index = |at: u64| read.binary_search_by_key(&at, |read| read.addr).ok();
    let steps: Vec<_> = read
        .iter()
        .map(|read| Step {
            at: (read.addr - address) as u32,
            instruction: &read.insn,
            then: match read.flow {
                Flow::Branch(to) => Then::Next(index(to)),
                Flow::Jump(to) => Then::Stop(index(to)),
                Flow::IndirectJump | Flow::Return { .. } | Flow::Fault | Flow::Invalid => {
                    Then::Stop(None)
                }
                _ => Then::Next(None),
            },
        })
        .collect();
    // The addresses of such functions are called or formed in the code.
    let functions = read.iter().filter_map(|read| {
        let at = match read.flow {
            Flow::Call(to) => to,
            _ => read.forms?,
        };
        Some((index(at)?, S::ENTRY))
    });
    let functions = functions.filter(|_| within);
    let entries: Vec<_> = entries
        .iter()
        .filter_map(|&(at, state)| Some((index(address + u64::from(at))?, state)))
        .chain(functions)
        .collect();
    rows(&steps, code.len() as u32, &entries).0
}

/// The rows of the moved first instructions of a function, and of what comes after them. `code` is the original, which
/// begins in this state. Also returns the state at the end, if control gets there.
#[must_use]
pub fn moved_rows<S: Frame>(
    code: &[u8],
    from: u64,
    moved: &Relocated,
    state: S,
) -> (Vec<Row>, Option<S>) {
    let read = S::read(code, from);
    let index = |at: u64| {
        let offset = usize::try_from(at.wrapping_sub(from)).ok()?;
        moved.map.iter().position(|piece| piece.old == offset)
    };
    let steps: Vec<_> = read
        .iter()
        .zip(&moved.map)
        .map(|(read, piece)| Step {
            at: piece.new as u32,
            instruction: &read.insn,
            then: match read.flow {
                Flow::Branch(to) => Then::Next(index(to)),
                Flow::Jump(to) => Then::Stop(index(to)),
                Flow::Call(_) | Flow::IndirectCall => Then::Call(read.link),
                Flow::Next => Then::Next(None),
                Flow::IndirectJump | Flow::Return { .. } | Flow::Fault | Flow::Invalid => {
                    Then::Stop(None)
                }
            },
        })
        .collect();
    rows(&steps, moved.bytes.len() as u32, &[(0, state)])
}
