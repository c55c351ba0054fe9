//! Executes instructions on saved registers, one after the other, as the processor would.
//!
//! It knows the instructions that hodo itself emits: general registers, flags, the stack, jumps. It refuses all others
//! (vectors, system calls, atomic memory accesses), and then changes nothing. So a thread that was stopped in hodo's
//! code can be brought to the end of that code without running. [`super::simulate`] prepares single instructions in
//! advance; this one decodes them when they are executed.

mod arithmetic;
mod operand;

use iced_x86::{
    ConditionCode, Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic, OpKind, Register,
};

use super::relocate::is_narrow;
use super::scan::is_nop;
use super::simulate::{CARRY, Fault, Memory, OVERFLOW, PARITY, RCX, RSP, SIGN, ZERO, holds};

use arithmetic::{Outcome, Width};

const RAX: usize = 0;
const RDX: usize = 2;

const ADJUST: u64 = 1 << 4;
/// The flags that arithmetic changes.
const STATUS: u64 = CARRY | PARITY | ADJUST | ZERO | SIGN | OVERFLOW;
/// What `lahf` reads and `sahf` writes.
const LOW: u64 = STATUS & !OVERFLOW;

/// The longest instruction, in bytes.
const LONGEST: usize = 15;

/// A thread's registers. Vector registers are left out: no instruction that is executed here uses them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct State {
    /// By the processor's numbers: rax, rcx, rdx, rbx, rsp, rbp, rsi, rdi, r8…
    pub registers: [u64; 16],
    /// The address of the next instruction.
    pub pc: u64,
    /// All of `rflags`.
    pub flags: u64,
    /// The base of the segment `fs`.
    pub fs: u64,
    /// The base of the segment `gs`.
    pub gs: u64,
}

/// What instructions work on, apart from registers.
pub trait Machine: Memory {
    /// Reads the code at an address. Returns how many bytes there are.
    fn code(&mut self, addr: u64, into: &mut [u8]) -> usize;

    /// The time counter, as `rdtsc` reads it.
    fn counter(&mut self) -> u64;

    /// The number that `rdpid` reads, if it is known.
    fn processor(&mut self) -> Option<u64>;
}

/// Why an instruction was not executed; nothing has changed then.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Halt {
    /// It is not one of those known here.
    Unknown,
    /// It would fault.
    Fault,
    /// The limit of instructions was reached.
    Endless,
}

impl From<Fault> for Halt {
    fn from(_: Fault) -> Self {
        Self::Fault
    }
}

/// Executes instructions until `is_done` returns true for the address of the next one. At least one is executed, and at
/// most `most`.
///
/// # Errors
/// If an instruction cannot be executed; `state` is then as it was before that instruction.
pub fn run(
    state: &mut State,
    machine: &mut impl Machine,
    most: u32,
    mut is_done: impl FnMut(u64) -> bool,
) -> Result<(), Halt> {
    for _ in 0..most {
        step(state, machine)?;
        if is_done(state.pc) {
            return Ok(());
        }
    }
    Err(Halt::Endless)
}

/// Executes one instruction.
///
/// # Errors
/// If it cannot be executed; nothing has changed then.
pub fn step(state: &mut State, machine: &mut impl Machine) -> Result<(), Halt> {
    let mut code = [0; LONGEST];
    let len = machine.code(state.pc, &mut code).min(LONGEST);
    let raw = Decoder::with_ip(64, &code[..len], state.pc, DecoderOptions::NONE).decode();
    // Repetitions are not supported. Locked instructions access memory that other threads use at the same time.
    if raw.is_invalid() || raw.has_rep_prefix() || raw.has_repne_prefix() || raw.has_lock_prefix() {
        return Err(Halt::Unknown);
    }
    // Processors disagree on whether a 16-bit prefix makes a branch 16 bits wide.
    if raw.flow_control() != FlowControl::Next && is_narrow(&code[..raw.len()]) {
        return Err(Halt::Unknown);
    }
    let mut next = Execution {
        raw: &raw,
        state: *state,
        machine,
    };
    next.state.pc = raw.next_ip();
    next.execute()?;
    *state = next.state;
    Ok(())
}

fn is_arithmetic(mnemonic: Mnemonic) -> bool {
    use Mnemonic::*;
    matches!(
        mnemonic,
        Add | Adc
            | Sub
            | Sbb
            | Cmp
            | And
            | Or
            | Xor
            | Test
            | Inc
            | Dec
            | Neg
            | Not
            | Imul
            | Xadd
            | Cmpxchg
    ) || matches!(
        mnemonic,
        Shl | Sal | Shr | Sar | Rol | Ror | Rcl | Rcr | Bsf | Bsr | Bt | Bts | Btr | Btc
    )
}

/// An instruction that is being executed. Memory is written only after everything that may fail.
struct Execution<'a, M> {
    raw: &'a Instruction,
    /// The state after the instruction.
    state: State,
    machine: &'a mut M,
}

impl<M: Machine> Execution<'_, M> {
    fn execute(&mut self) -> Result<(), Halt> {
        let waits_or_lands = matches!(self.raw.mnemonic(), Mnemonic::Pause | Mnemonic::Endbr64);
        if is_nop(self.raw) || waits_or_lands {
            return Ok(());
        }
        match self.raw.condition_code() {
            ConditionCode::None => {}
            condition => return self.conditional(condition),
        }
        match self.raw.mnemonic() {
            Mnemonic::Mov
            | Mnemonic::Movzx
            | Mnemonic::Movsx
            | Mnemonic::Movsxd
            | Mnemonic::Lea
            | Mnemonic::Xchg
            | Mnemonic::Push
            | Mnemonic::Pop
            | Mnemonic::Bswap
            | Mnemonic::Cdqe
            | Mnemonic::Cqo => self.moves(),
            Mnemonic::Pushfq
            | Mnemonic::Popfq
            | Mnemonic::Lahf
            | Mnemonic::Sahf
            | Mnemonic::Stc
            | Mnemonic::Clc
            | Mnemonic::Cmc => self.flags(),
            Mnemonic::Jmp | Mnemonic::Call | Mnemonic::Ret | Mnemonic::Jrcxz => self.jumps(),
            Mnemonic::Rdtsc => {
                let counter = self.machine.counter();
                self.state.registers[RAX] = counter & 0xFFFF_FFFF;
                self.state.registers[RDX] = counter >> 32;
                Ok(())
            }
            Mnemonic::Rdpid => {
                let number = self.machine.processor().ok_or(Halt::Unknown)?;
                self.write(0, number)
            }
            mnemonic if is_arithmetic(mnemonic) => self.computes(),
            _ => Err(Halt::Unknown),
        }
    }

    fn conditional(&mut self, condition: ConditionCode) -> Result<(), Halt> {
        let holds = holds(condition, self.state.flags);
        if self.raw.is_jcc_short_or_near() {
            if holds {
                self.state.pc = self.raw.near_branch64();
            }
            return Ok(());
        }
        match self.raw.op_count() {
            // `setcc`; loops also have a condition.
            1 if !self.raw.is_loopcc() => return self.write(0, holds.into()),
            // `cmovcc`.
            2 => {}
            _ => return Err(Halt::Unknown),
        }
        // The operand is read in any case, and the upper half of a 32-bit register becomes zero.
        let value = self.read(1)?;
        let value = if holds { value } else { self.read(0)? };
        self.write(0, value)
    }

    fn moves(&mut self) -> Result<(), Halt> {
        match self.raw.mnemonic() {
            Mnemonic::Mov | Mnemonic::Movzx => {
                let value = self.read(1)?;
                self.write(0, value)
            }
            Mnemonic::Movsx | Mnemonic::Movsxd => {
                let value = self.width(1)?.extended(self.read(1)?);
                self.write(0, value)
            }
            Mnemonic::Lea => {
                let address = self.address_without_segment()?;
                self.write(0, address)
            }
            Mnemonic::Xchg => {
                let (a, b) = (self.read(0)?, self.read(1)?);
                // `xchg` with memory is atomic. What `gs` points to is used by the thread alone.
                if self.raw.op0_kind() == OpKind::Memory
                    && self.raw.memory_segment() != Register::GS
                {
                    return Err(Halt::Unknown);
                }
                self.write(0, b)?;
                self.write(1, a)
            }
            Mnemonic::Push => {
                if self.raw.stack_pointer_increment() != -8 {
                    return Err(Halt::Unknown);
                }
                let value = self.read(0)?;
                self.push(value)
            }
            Mnemonic::Pop => {
                let whole = self.raw.stack_pointer_increment() == 8;
                if !whole || self.raw.op0_kind() != OpKind::Register {
                    return Err(Halt::Unknown);
                }
                let value = self.pop()?;
                self.write(0, value)
            }
            Mnemonic::Bswap => {
                let value = self.read(0)?;
                match self.width(0)? {
                    Width::DWORD => self.write(0, u64::from((value as u32).swap_bytes())),
                    Width::QWORD => self.write(0, value.swap_bytes()),
                    _ => Err(Halt::Unknown),
                }
            }
            Mnemonic::Cdqe => {
                let rax = &mut self.state.registers[RAX];
                *rax = Width::DWORD.extended(*rax);
                Ok(())
            }
            _ => {
                let sign = self.state.registers[RAX].cast_signed() >> 63;
                self.state.registers[RDX] = sign.cast_unsigned();
                Ok(())
            }
        }
    }

    fn flags(&mut self) -> Result<(), Halt> {
        /// Flags that `pushf` stores as zero: *resume* and *virtual 8086 mode*.
        const HIDDEN: u64 = 0x3_0000;
        /// Flags that programs can change, except *trap*: status, direction, nested task, alignment, identification.
        const CHANGED: u64 = STATUS | 1 << 10 | 1 << 14 | 1 << 18 | 1 << 21;
        const TRAP: u64 = 1 << 8;
        let flags = self.state.flags;
        match self.raw.mnemonic() {
            Mnemonic::Pushfq => return self.push(flags & !HIDDEN),
            Mnemonic::Popfq => {
                let value = self.pop()?;
                if (value | flags) & TRAP != 0 {
                    return Err(Halt::Unknown);
                }
                self.state.flags = flags & !CHANGED | value & CHANGED;
            }
            Mnemonic::Lahf => {
                // Bit 1 is always set.
                let low = flags & LOW | 2;
                let rax = &mut self.state.registers[RAX];
                *rax = *rax & !0xFF00 | low << 8;
            }
            Mnemonic::Sahf => {
                let high = self.state.registers[RAX] >> 8;
                self.state.flags = flags & !LOW | high & LOW;
            }
            Mnemonic::Stc => self.state.flags |= CARRY,
            Mnemonic::Clc => self.state.flags &= !CARRY,
            _ => self.state.flags ^= CARRY,
        }
        Ok(())
    }

    fn jumps(&mut self) -> Result<(), Halt> {
        let near = self.raw.op0_kind() == OpKind::NearBranch64;
        let to = match self.raw.mnemonic() {
            Mnemonic::Jrcxz => {
                if self.state.registers[RCX] == 0 {
                    self.state.pc = self.raw.near_branch64();
                }
                return Ok(());
            }
            Mnemonic::Ret => {
                // With or without the number of bytes to drop; far returns have other mnemonics.
                if self.raw.stack_pointer_increment() < 8 {
                    return Err(Halt::Unknown);
                }
                let to = self.pop()?;
                let more = (self.raw.stack_pointer_increment() - 8).cast_unsigned();
                let rsp = &mut self.state.registers[RSP];
                *rsp = rsp.wrapping_add(u64::from(more));
                self.state.pc = to;
                return Ok(());
            }
            _ if near => self.raw.near_branch64(),
            _ if self.width(0)? == Width::QWORD => self.read(0)?,
            _ => return Err(Halt::Unknown),
        };
        if self.raw.mnemonic() == Mnemonic::Call {
            self.push(self.state.pc)?;
        }
        self.state.pc = to;
        Ok(())
    }

    /// Executes arithmetic: stores the result and the flags.
    fn computes(&mut self) -> Result<(), Halt> {
        match self.raw.mnemonic() {
            Mnemonic::Xadd => {
                let width = self.width(0)?;
                let (a, b) = (self.read(0)?, self.read(1)?);
                let sum = width.add(a, b, 0);
                // If both operands are the same register, the sum stays in it.
                let memory = self.raw.op0_kind() == OpKind::Memory;
                if memory {
                    self.write(0, sum.value)?;
                }
                self.write(1, a)?;
                self.set_flags(sum);
                if memory {
                    Ok(())
                } else {
                    self.write(0, sum.value)
                }
            }
            Mnemonic::Cmpxchg => {
                let width = self.width(0)?;
                let (a, b) = (self.read(0)?, self.read(1)?);
                let accumulator = self.state.registers[RAX];
                let compared = width.sub(accumulator, a, 0);
                self.set_flags(compared);
                if compared.value == 0 {
                    return self.write(0, b);
                }
                match width {
                    Width::DWORD => self.state.registers[RAX] = a,
                    Width::QWORD => self.state.registers[RAX] = a,
                    _ => return Err(Halt::Unknown),
                }
                Ok(())
            }
            Mnemonic::Imul if self.raw.op_count() > 1 => {
                let width = self.width(0)?;
                let first = if self.raw.op_count() == 3 { 1 } else { 0 };
                let (a, b) = (self.read(first)?, self.read(first + 1)?);
                let product = width.signed_product(a, b);
                self.set_flags(product);
                self.write(0, product.value)
            }
            Mnemonic::Bsr | Mnemonic::Bsf => {
                let value = self.read(1)?;
                // The processor leaves the register as it is; the manuals do not specify its upper half.
                if value == 0 {
                    return Err(Halt::Unknown);
                }
                let bit = match self.raw.mnemonic() {
                    Mnemonic::Bsr => 63 - value.leading_zeros(),
                    _ => value.trailing_zeros(),
                };
                self.state.flags &= !ZERO;
                self.write(0, bit.into())
            }
            Mnemonic::Bt | Mnemonic::Bts | Mnemonic::Btr | Mnemonic::Btc => self.bits(),
            _ => {
                let outcome = self.outcome()?;
                let only_compares = matches!(self.raw.mnemonic(), Mnemonic::Cmp | Mnemonic::Test);
                if !only_compares {
                    self.write(0, outcome.value)?;
                }
                self.set_flags(outcome);
                Ok(())
            }
        }
    }

    fn bits(&mut self) -> Result<(), Halt> {
        let width = self.width(0)?;
        let value = self.read(0)?;
        // A bit number in a register may select a bit beyond the memory operand.
        if self.raw.op0_kind() == OpKind::Memory && self.raw.op1_kind() == OpKind::Register {
            return Err(Halt::Unknown);
        }
        let bit = 1 << (self.read(1)? % u64::from(width.bits()));
        let carry = if value & bit != 0 { CARRY } else { 0 };
        let changed = match self.raw.mnemonic() {
            Mnemonic::Bt => None,
            Mnemonic::Bts => Some(value | bit),
            Mnemonic::Btr => Some(value & !bit),
            _ => Some(value ^ bit),
        };
        if let Some(changed) = changed {
            self.write(0, changed)?;
        }
        self.state.flags = self.state.flags & !CARRY | carry;
        Ok(())
    }

    /// The result of an instruction with one or two operands, whose destination is the first.
    fn outcome(&mut self) -> Result<Outcome, Halt> {
        let width = self.width(0)?;
        let a = self.read(0)?;
        let b = match self.raw.op_count() {
            1 => 0,
            _ => self.read(1)?,
        };
        let carry = self.state.flags & CARRY;
        let keeps_carry = |outcome: Outcome| Outcome {
            known: outcome.known & !CARRY,
            ..outcome
        };
        let outcome = match self.raw.mnemonic() {
            Mnemonic::Add => width.add(a, b, 0),
            Mnemonic::Adc => width.add(a, b, carry),
            Mnemonic::Sub | Mnemonic::Cmp => width.sub(a, b, 0),
            Mnemonic::Sbb => width.sub(a, b, carry),
            Mnemonic::And | Mnemonic::Test => width.logic(a & b),
            Mnemonic::Or => width.logic(a | b),
            Mnemonic::Xor => width.logic(a ^ b),
            Mnemonic::Inc => keeps_carry(width.add(a, 1, 0)),
            Mnemonic::Dec => keeps_carry(width.sub(a, 1, 0)),
            Mnemonic::Neg => width.sub(0, a, 0),
            Mnemonic::Not => Outcome {
                value: !a,
                flags: 0,
                known: 0,
            },
            Mnemonic::Shl
            | Mnemonic::Sal
            | Mnemonic::Shr
            | Mnemonic::Sar
            | Mnemonic::Rol
            | Mnemonic::Ror
            | Mnemonic::Rcl
            | Mnemonic::Rcr => width
                .shift(self.raw.mnemonic(), a, b, carry != 0)
                .ok_or(Halt::Unknown)?,
            _ => return Err(Halt::Unknown),
        };
        Ok(outcome)
    }

    fn set_flags(&mut self, outcome: Outcome) {
        let known = outcome.known;
        self.state.flags = self.state.flags & !known | outcome.flags & known;
    }
}
