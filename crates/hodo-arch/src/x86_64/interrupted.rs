//! What an unwinder has to know at any instruction of a stub or of the agent, for signals that arrive there.
//!
//! The frame information of an island (see `frames`) holds at the point to which traced functions return, for no ordinary
//! call sees another one. But a signal handler does, if it unwinds: a profiler, a crash report, an asynchronous
//! cancellation. The code is simple enough to be read: this follows it from its start and counts what is on the stack.

use std::collections::HashMap;
use std::ops::Range;

use iced_x86::{Code, Decoder, DecoderOptions, FlowControl, Mnemonic, OpKind, Register};

/// Registers that functions keep for their callers, with their DWARF numbers (System V ABI, x86-64 supplement, 3.36).
const KEPT: [(Register, u8); 6] = [
    (Register::RBX, 3),
    (Register::RBP, 6),
    (Register::R12, 12),
    (Register::R13, 13),
    (Register::R14, 14),
    (Register::R15, 15),
];

/// The way back to the caller from one instruction. S is the address of the return address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rule {
    /// S is so many bytes above the stack pointer.
    pub depth: u32,
    /// The return address is in the shadow of S, not in S.
    pub shadow: bool,
    /// For each of the registers that functions keep, in the order of their DWARF numbers: so many bytes below S, if it was
    /// pushed.
    pub pushed: [Option<u32>; 6],
}

/// The rule for one instruction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// The instruction.
    pub at: Range<u64>,
    /// Its rule.
    pub rule: Rule,
    /// The traced function has not begun yet, or runs, and has not returned.
    pub before_return: bool,
}

#[derive(Clone, Copy)]
struct State {
    depth: i32,
    shadow: bool,
    before_return: bool,
    pushed: [Option<u32>; 6],
}

const ENTERED: State = State {
    depth: 0,
    shadow: false,
    before_return: true,
    pushed: [None; 6],
};

/// Finds the rule at `pc`, in code that begins at `start` and is entered, by calls, at each of `entries`. `None`: `pc` is
/// not reached, or the common rule holds there, or the stack pointer is not known.
#[must_use]
pub fn rule(code: &[u8], start: u64, entries: &[u64], pc: u64) -> Option<Found> {
    let end = start + code.len() as u64;
    let mut decoder = Decoder::with_ip(64, code, start, DecoderOptions::NONE);
    let mut todo: Vec<(u64, State)> = entries.iter().map(|&at| (at, ENTERED)).collect();
    let mut seen = HashMap::new();
    while let Some((at, mut state)) = todo.pop() {
        if !(start..end).contains(&at) || seen.insert(at, ()).is_some() {
            continue;
        }
        decoder.set_position((at - start) as usize).ok()?;
        decoder.set_ip(at);
        let insn = decoder.decode();
        if insn.code() == Code::INVALID {
            continue;
        }
        // Above S lies what is the caller's: there the return address has been put aside, and the common rule holds.
        if state.depth == -8 {
            state.shadow = true;
        }
        if (at..insn.next_ip()).contains(&pc) {
            return Some(Found {
                at: at..insn.next_ip(),
                rule: Rule {
                    depth: u32::try_from(state.depth).ok()?,
                    shadow: state.shadow,
                    pushed: state.pushed,
                },
                before_return: state.before_return,
            });
        }
        let next = insn.next_ip();
        let target = insn.near_branch_target();
        let near = insn.op0_kind() == OpKind::NearBranch64;
        match insn.flow_control() {
            FlowControl::Next => {
                if let Some(state) = after(&insn, state) {
                    todo.push((next, state));
                }
            }
            FlowControl::ConditionalBranch => {
                todo.push((target, state));
                todo.push((next, state));
            }
            FlowControl::UnconditionalBranch if near => todo.push((target, state)),
            FlowControl::Call if near => {
                if state.shadow {
                    todo.push((target, ENTERED));
                    state.before_return = false;
                }
                todo.push((next, state));
            }
            _ => {}
        }
    }
    None
}

/// The state behind an instruction that does not branch; `None`: the stack pointer is not known there.
fn after(insn: &iced_x86::Instruction, mut state: State) -> Option<State> {
    let is = |register| insn.op0_kind() == OpKind::Register && insn.op0_register() == register;
    match insn.mnemonic() {
        Mnemonic::Push => {
            state.depth -= insn.stack_pointer_increment();
            for ((kept, _), pushed) in KEPT.iter().zip(&mut state.pushed) {
                if is(*kept) && pushed.is_none() {
                    *pushed = u32::try_from(state.depth).ok();
                }
            }
        }
        Mnemonic::Pop => {
            for ((kept, _), pushed) in KEPT.iter().zip(&mut state.pushed) {
                if is(*kept) && *pushed == u32::try_from(state.depth).ok() {
                    *pushed = None;
                }
            }
            state.depth -= insn.stack_pointer_increment();
            if is(Register::RSP) {
                return None;
            }
        }
        Mnemonic::Pushfq | Mnemonic::Popfq => state.depth -= insn.stack_pointer_increment(),
        Mnemonic::Sub if is(Register::RSP) => state.depth += immediate(insn)?,
        Mnemonic::Add if is(Register::RSP) => state.depth -= immediate(insn)?,
        Mnemonic::Lea if is(Register::RSP) => {
            if insn.memory_base() != Register::RSP || insn.memory_index() != Register::None {
                return None;
            }
            state.depth -= insn.memory_displacement64() as i32;
        }
        Mnemonic::Cmp | Mnemonic::Test => {}
        Mnemonic::Enter | Mnemonic::Leave => return None,
        _ if insn.op0_kind() == OpKind::Register
            && insn.op0_register().full_register() == Register::RSP =>
        {
            return None;
        }
        // A stub puts the return address back.
        Mnemonic::Mov
            if state.shadow
                && insn.memory_base() == Register::RSP
                && insn.memory_index() == Register::None
                && insn.op0_kind() == OpKind::Memory
                && insn.memory_displacement64() as i32 == state.depth =>
        {
            state.shadow = false;
        }
        _ => {}
    }
    Some(state)
}

fn immediate(insn: &iced_x86::Instruction) -> Option<i32> {
    match insn.op1_kind() {
        OpKind::Register | OpKind::Memory => None,
        _ => i32::try_from(insn.immediate(1).cast_signed()).ok(),
    }
}

impl Rule {
    /// The rule as instructions of a table whose first rule is that of a function at its entry, or with `shadow` that of a
    /// stub's return point (DWARF 5, section 6.4.2).
    #[must_use]
    pub fn instructions(&self) -> Vec<u8> {
        // Without the shadow the CFA is behind S, and with it at S.
        let behind = if self.shadow { 0 } else { 8 };
        let mut out = vec![0x0C, 7]; // DW_CFA_def_cfa: rsp +
        unsigned(&mut out, self.depth + behind);
        for ((_, number), pushed) in KEPT.iter().zip(self.pushed) {
            if let Some(pushed) = pushed {
                out.push(0x80 | number); // DW_CFA_offset
                unsigned(&mut out, (pushed + behind) / 8);
            }
        }
        out
    }
}

/// ULEB128.
fn unsigned(out: &mut Vec<u8>, mut value: u32) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pushes_are_counted_along_all_paths() {
        let code = [
            0x53, // 0: push rbx
            0x48, 0x83, 0xEC, 0x20, // 1: sub rsp, 32
            0x74, 0x06, // 5: je 13
            0x48, 0x83, 0xC4, 0x20, // 7: add rsp, 32
            0x5B, // 11: pop rbx
            0xC3, // 12: ret
            0x55, // 13: push rbp
            0xC9, // 14: leave
            0x90, // 15: nop
        ];
        let at = |pc: u64| rule(&code, 0x1000, &[0x1000], 0x1000 + pc).map(|found| found.rule);
        let with = |depth, rbx, rbp| {
            Some(Rule {
                depth,
                shadow: false,
                pushed: [rbx, rbp, None, None, None, None],
            })
        };
        assert_eq!(at(0), with(0, None, None));
        assert_eq!(at(1), with(8, Some(8), None));
        assert_eq!(at(5), with(40, Some(8), None));
        assert_eq!(at(11), with(8, Some(8), None));
        assert_eq!(at(12), with(0, None, None));
        assert_eq!(at(14), with(48, Some(8), Some(48)));
        assert_eq!(at(15), None);
        // The return address of a call leads to the call.
        assert_eq!(at(6), at(5));
    }

    #[test]
    fn rules_are_written_for_unwinders() {
        let mut rule = Rule {
            depth: 24,
            shadow: false,
            pushed: [Some(8), None, None, None, None, Some(16)],
        };
        assert_eq!(rule.instructions(), [0x0C, 7, 32, 0x83, 2, 0x8F, 3]);
        rule.depth = 4096;
        rule.shadow = true;
        rule.pushed = [None; 6];
        assert_eq!(rule.instructions(), [0x0C, 7, 0x80, 0x20]);
    }
}
