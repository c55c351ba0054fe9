//! Follows a function's frame, instruction by instruction, along straight-line code.
//!
//! It starts where the return address is on top of the stack, and follows the instructions that move the stack pointer
//! or save callee-saved registers. Where it loses track, the rule is *unknown*.

use crate::cfa::SAVED;
pub use crate::cfa::{Row, Rule};
use alloc::vec::Vec;
use iced_x86::{Code, FlowControl, Instruction, Mnemonic, OpKind, Register};

/// The column of the stack pointer in frame tables.
pub const RSP: u8 = 7;

/// The callee-saved registers, by column in frame tables: rbx, rbp, r12…r15.
pub const CALLEE_SAVED: [u8; 6] = [3, 6, 12, 13, 14, 15];

/// Where things are before an instruction runs. The CFA is the address above the return address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct State {
    /// CFA minus the stack pointer.
    rsp: Option<i32>,
    /// Another register that holds an address of the frame, and CFA minus its value.
    copy: Option<(Register, i32)>,
    /// Where the registers of [`CALLEE_SAVED`] are saved: this many words below the CFA; 0 for those that still have
    /// their values.
    saved: [u16; SAVED],
}

/// With this many bytes of stack in use below the return address.
#[must_use]
pub const fn pushed(bytes: i32) -> Rule {
    Rule::Frame {
        base: RSP,
        offset: bytes + 8,
        saved: [0; SAVED],
    }
}

/// Where control goes after a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Then {
    /// To the next step, and perhaps also to the step with this index.
    Next(Option<usize>),
    /// Not to the next step; perhaps to this one.
    Stop(Option<usize>),
    /// A return address is pushed, then a jump leaves the code. If `read` is not 0, the instruction that ends at this
    /// offset from the step's start pushes something that the next one pops. The return address is on the stack from
    /// `pushed` on.
    Call {
        /// The end of the instruction that pushes the call's target, or 0.
        read: u8,
        /// The end of the one that pops it.
        popped: u8,
        /// The end of the one that pushes the return address.
        pushed: u8,
    },
}

/// One instruction.
#[derive(Debug, Clone, Copy)]
pub struct Step<'a> {
    /// Its offset in the code that the rows are for.
    pub at: u32,
    /// What it is.
    pub instruction: &'a Instruction,
    /// Where control goes after it.
    pub then: Then,
}

fn column(register: Register) -> Option<u8> {
    Some(match register {
        Register::RBX => 3,
        Register::RBP => 6,
        Register::R10 => 10,
        Register::R12 => 12,
        Register::R13 => 13,
        Register::R14 => 14,
        Register::R15 => 15,
        _ => return None,
    })
}

fn callee_saved(register: Register) -> Option<usize> {
    let column = column(register)?;
    CALLEE_SAVED.iter().position(|&saved| saved == column)
}

impl State {
    /// At a function's entry.
    pub const ENTRY: Self = Self::pushed(0);

    /// With this many bytes on the stack below the return address.
    #[must_use]
    pub const fn pushed(bytes: i32) -> Self {
        Self {
            rsp: Some(bytes + 8),
            copy: None,
            saved: [0; SAVED],
        }
    }

    /// The rule for this state.
    #[must_use]
    pub fn rule(&self) -> Rule {
        let (base, offset) = match (self.rsp, self.copy) {
            (Some(offset), _) => (RSP, offset),
            (None, Some((register, offset))) => match column(register) {
                Some(column) => (column, offset),
                None => return Rule::Unknown,
            },
            (None, None) => return Rule::Unknown,
        };
        if offset < 0 {
            return Rule::Unknown;
        }
        Rule::Frame {
            base,
            offset,
            saved: self.saved,
        }
    }

    fn lost(&mut self) {
        self.rsp = None;
        self.copy = None;
    }

    fn shift(&mut self, bytes: i32) {
        self.rsp = self.rsp.and_then(|rsp| rsp.checked_add(bytes));
    }

    /// A register is stored at CFA − `below`.
    fn save(&mut self, register: Register, below: i32) {
        let Some(index) = callee_saved(register) else {
            return;
        };
        if self.saved[index] == 0 && below >= 16 && below % 8 == 0 {
            self.saved[index] = u16::try_from(below / 8).unwrap_or(0);
        }
    }

    fn push(&mut self, register: Register) {
        self.shift(8);
        match self.rsp {
            Some(rsp) => self.save(register, rsp),
            // The register will change, and it is not known where it was saved.
            None if callee_saved(register).is_some() => self.lost(),
            None => {}
        }
    }

    fn pop(&mut self, register: Register) {
        if register == Register::RSP {
            return self.lost();
        }
        if let Some(index) = callee_saved(register) {
            let here = self.rsp.filter(|rsp| rsp % 8 == 0).map(|rsp| rsp / 8);
            if here == Some(i32::from(self.saved[index])) {
                self.saved[index] = 0;
            }
        }
        self.forget(register);
        self.shift(-8);
    }

    fn forget(&mut self, register: Register) {
        self.copy = self.copy.filter(|&(copy, _)| copy != register);
    }

    /// CFA minus the address of a memory operand, if that is known.
    fn address(&self, instruction: &Instruction) -> Option<i32> {
        if instruction.memory_index() != Register::None
            || instruction.segment_prefix() != Register::None
        {
            return None;
        }
        let base = match instruction.memory_base() {
            Register::RSP => self.rsp?,
            base => self.copy.filter(|&(copy, _)| copy == base)?.1,
        };
        let displacement = i32::try_from(instruction.memory_displacement64() as i64).ok()?;
        base.checked_sub(displacement)
    }

    /// Updates the state for an instruction.
    pub fn step(&mut self, instruction: &Instruction) {
        let op0 = (instruction.op_count() > 0 && instruction.op0_kind() == OpKind::Register)
            .then(|| instruction.op0_register());
        let to_rsp = op0 == Some(Register::RSP);
        match instruction.code() {
            Code::Push_r64 => self.push(op0.unwrap_or_default()),
            Code::Pushq_imm8 | Code::Pushq_imm32 | Code::Push_rm64 | Code::Pushfq => self.shift(8),
            Code::Pop_r64 => self.pop(op0.unwrap_or_default()),
            Code::Pop_rm64 | Code::Popfq => self.shift(-8),
            Code::Sub_rm64_imm8 | Code::Sub_rm64_imm32 if to_rsp => {
                self.shift(instruction.immediate(1) as i32);
            }
            Code::Add_rm64_imm8 | Code::Add_rm64_imm32 if to_rsp => {
                self.shift((instruction.immediate(1) as i32).wrapping_neg());
            }
            Code::Lea_r64_m => {
                let address = self.address(instruction);
                let register = op0.unwrap_or_default();
                match address {
                    _ if to_rsp => {
                        self.rsp = address;
                    }
                    Some(address) if column(register).is_some() => {
                        self.copy = Some((register, address));
                    }
                    _ => self.forget(register),
                }
            }
            Code::Mov_r64_rm64 | Code::Mov_rm64_r64
                if instruction.op1_kind() == OpKind::Register && op0.is_some() =>
            {
                let (to, from) = (op0.unwrap_or_default(), instruction.op1_register());
                if to == Register::RSP {
                    self.rsp = match self.copy {
                        Some((copy, offset)) if copy == from => Some(offset),
                        _ => None,
                    };
                } else if from == Register::RSP
                    && column(to).is_some()
                    && let Some(rsp) = self.rsp
                {
                    self.copy = Some((to, rsp));
                } else {
                    self.forget(to);
                }
            }
            Code::Mov_rm64_r64 => {
                if let Some(address) = self.address(instruction) {
                    self.save(instruction.op1_register(), address);
                }
            }
            Code::Leaveq => match self.copy {
                Some((Register::RBP, offset)) => {
                    self.rsp = Some(offset);
                    self.pop(Register::RBP);
                }
                _ => self.lost(),
            },
            _ => self.other(instruction),
        }
    }

    fn other(&mut self, instruction: &Instruction) {
        if matches!(instruction.mnemonic(), Mnemonic::Cmp | Mnemonic::Test) {
            return;
        }
        if matches!(
            instruction.mnemonic(),
            Mnemonic::Push | Mnemonic::Pop | Mnemonic::Enter | Mnemonic::Leave
        ) {
            return self.lost();
        }
        // Instructions that write their second operand, too.
        let both = matches!(instruction.mnemonic(), Mnemonic::Xchg | Mnemonic::Xadd);
        for index in 0..instruction.op_count().min(if both { 2 } else { 1 }) {
            if instruction.op_kind(index) == OpKind::Register {
                let register = instruction.op_register(index).full_register();
                self.forget(register);
                if register == Register::RSP {
                    self.rsp = None;
                }
            }
        }
    }
}

/// The rows of these steps and of what comes after them, at the offset `end`. `entries` are the steps that are entered
/// from outside, with their states. Code that no visible path reaches has the rule *unknown*.
#[must_use]
pub fn rows(steps: &[Step<'_>], end: u32, entries: &[(usize, State)]) -> Vec<Row> {
    let mut rows = Vec::with_capacity(steps.len() + 1);
    let last = steps.len().saturating_sub(1);
    let inside = steps
        .iter()
        .enumerate()
        .any(|(index, step)| match step.then {
            Then::Next(other) => other.is_some(),
            Then::Stop(other) => other.is_some() || index != last,
            Then::Call { .. } => index != last,
        });
    if let ([(0, entry)], false) = (entries, inside) {
        // Straight-line code: nearly always.
        let mut state = *entry;
        for step in steps {
            add_rows(&mut rows, step, &mut state);
        }
        if steps
            .last()
            .is_some_and(|step| matches!(step.then, Then::Next(_)))
        {
            add_row(&mut rows, end, state.rule());
        }
        return rows;
    }
    let mut states: Vec<Option<State>> = vec![None; steps.len() + 1];
    for &(index, state) in entries {
        states[index] = Some(state);
    }
    // The effect of a step on later ones does not change.
    let mut open: Vec<usize> = (0..steps.len()).collect();
    loop {
        let mut changed = false;
        open.retain(|&index| {
            let step = &steps[index];
            let Some(mut state) = states[index] else {
                return true;
            };
            if matches!(step.then, Then::Next(_)) {
                state.step(step.instruction);
            }
            let (next, other) = match step.then {
                Then::Next(other) => (Some(index + 1), other),
                Then::Stop(other) => (None, other),
                Then::Call { .. } => (None, None),
            };
            for to in [next, other].into_iter().flatten() {
                if let Some(slot @ None) = states.get_mut(to) {
                    *slot = Some(state);
                    changed = true;
                }
            }
            false
        });
        if !changed {
            break;
        }
    }
    for (step, state) in steps.iter().zip(&states) {
        match *state {
            Some(mut state) => add_rows(&mut rows, step, &mut state),
            None => add_row(&mut rows, step.at, Rule::Unknown),
        }
    }
    if let Some(Some(state)) = states.last() {
        add_row(&mut rows, end, state.rule());
    }
    rows
}

fn add_row(rows: &mut Vec<Row>, at: u32, rule: Rule) {
    if let Some(last) = rows.last_mut().filter(|last| last.at == at) {
        last.rule = rule;
    } else if rows.last().is_none_or(|last| last.rule != rule) {
        rows.push(Row { at, rule });
    }
}

fn add_rows(rows: &mut Vec<Row>, step: &Step<'_>, state: &mut State) {
    add_row(rows, step.at, state.rule());
    match step.then {
        Then::Next(_) => state.step(step.instruction),
        Then::Stop(_) => {}
        Then::Call {
            read,
            popped,
            pushed,
        } => {
            let mut with = *state;
            with.shift(8);
            if read > 0 {
                add_row(rows, step.at + u32::from(read), with.rule());
                add_row(rows, step.at + u32::from(popped), state.rule());
            }
            *state = with;
            add_row(rows, step.at + u32::from(pushed), state.rule());
        }
    }
}

/// The rows of code at an address that control leaves only by returns and jumps; calls come back. `entries` are
/// offsets.
#[must_use]
pub fn code_rows(code: &[u8], address: u64, entries: &[(u32, State)]) -> Vec<Row> {
    let mut decoder = iced_x86::Decoder::with_ip(64, code, address, iced_x86::DecoderOptions::NONE);
    let mut instructions = Vec::new();
    while decoder.can_decode() {
        let at = decoder.position();
        let instruction = decoder.decode();
        // The padding before an entry is not code.
        let inside = at + 1..at + instruction.len();
        match entries
            .iter()
            .find(|entry| inside.contains(&(entry.0 as usize)))
        {
            Some(&(entry, _)) => {
                let skipped = decoder.set_position(entry as usize);
                debug_assert!(skipped.is_ok());
                decoder.set_ip(address + u64::from(entry));
            }
            None => instructions.push(instruction),
        }
    }
    let index = |at: u64| instructions.binary_search_by_key(&at, Instruction::ip).ok();
    let steps: Vec<_> = instructions
        .iter()
        .map(|instruction| {
            let target = || index(instruction.near_branch_target());
            Step {
                at: (instruction.ip() - address) as u32,
                instruction,
                then: match instruction.flow_control() {
                    FlowControl::ConditionalBranch => Then::Next(target()),
                    FlowControl::UnconditionalBranch => Then::Stop(target()),
                    FlowControl::Return | FlowControl::IndirectBranch => Then::Stop(None),
                    FlowControl::Interrupt if instruction.mnemonic() == Mnemonic::Int3 => {
                        Then::Stop(None)
                    }
                    _ => Then::Next(None),
                },
            }
        })
        .collect();
    // The addresses of such functions are called or formed in the code.
    let functions = instructions.iter().filter_map(|instruction| {
        let at = match instruction.mnemonic() {
            Mnemonic::Call => instruction.near_branch_target(),
            Mnemonic::Lea if instruction.is_ip_rel_memory_operand() => {
                instruction.ip_rel_memory_address()
            }
            _ => return None,
        };
        Some((index(at)?, State::ENTRY))
    });
    let entries: Vec<_> = entries
        .iter()
        .filter_map(|&(at, state)| Some((index(address + u64::from(at))?, state)))
        .chain(functions)
        .collect();
    rows(&steps, code.len() as u32, &entries)
}
