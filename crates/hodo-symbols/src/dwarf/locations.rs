//! Where a variable is at an instruction: its location expression, evaluated as far as possible before the program
//! runs.

use gimli::{AttributeValue, Expression, Operation, Unit};
use hodo_abi::Isa;

use super::navigate::At;
use super::scopes::Scope;
use super::{Debug, Reader};
use crate::abi;
use crate::{Cfa, Frames};

/// An eight-byte word that is available when an instruction is executed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Word {
    /// A general register, in the processor's numbering. On x86-64: rax, rcx, rdx, rbx, rsp, rbp, rsi, rdi, r8 to r15.
    Register(u8),
    /// A constant.
    Number(u64),
    /// The address in the process of this link-time address.
    Address(u64),
    /// The eight bytes of memory at a word plus this offset.
    Memory(Box<Word>, i64),
}

/// Why a variable cannot be fetched.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Nowhere {
    OptimizedOut,
    Computed,
    ThreadLocal,
    Vector,
    /// The function has not put it in its place yet.
    NotYet,
}

/// The place of a value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Spot {
    /// The value is the word itself: a register or a constant.
    Word(Word),
    /// In memory, at a word plus this offset.
    Memory(Word, i64),
    /// In parts, each with its size in bits.
    Pieces(Vec<(u64, Result<Spot, Nowhere>)>),
}

/// Converts DWARF's register number to the processor's.
fn register(isa: Option<Isa>, number: gimli::Register) -> Result<u8, Nowhere> {
    let numbers = abi::numbers(isa.ok_or(Nowhere::Computed)?);
    match numbers.register(number.0) {
        Some(number) => Ok(number),
        None if numbers.vectors.contains(&number.0) => Err(Nowhere::Vector),
        None => Err(Nowhere::Computed),
    }
}

/// A value during the evaluation of an expression: a word plus a number.
#[derive(Clone)]
struct Sum(Option<Word>, i64);

/// The state of an expression's evaluation.
#[derive(Default)]
struct Evaluation {
    stack: Vec<Sum>,
    /// The value itself, if it is not in memory.
    direct: Option<Word>,
    pieces: Vec<(u64, Result<Spot, Nowhere>)>,
    failure: Option<Nowhere>,
}

impl Evaluation {
    fn pop(&mut self) -> Result<Sum, Nowhere> {
        self.stack.pop().ok_or(Nowhere::Computed)
    }

    /// Applies an operation that needs only the stack, or ends a piece.
    fn apply(&mut self, isa: Option<Isa>, operation: Operation<Reader>) -> Result<(), Nowhere> {
        let sum = match operation {
            Operation::Nop => return Ok(()),
            Operation::PlusConstant { value } => {
                let Sum(base, offset) = self.pop()?;
                Sum(base, offset.wrapping_add(value.cast_signed()))
            }
            Operation::Plus => match (self.pop()?, self.pop()?) {
                (Sum(None, a), Sum(base, b)) | (Sum(base, a), Sum(None, b)) => {
                    Sum(base, a.wrapping_add(b))
                }
                _ => return Err(Nowhere::Computed),
            },
            Operation::Minus => match (self.pop()?, self.pop()?) {
                (Sum(None, b), Sum(base, a)) => Sum(base, a.wrapping_sub(b)),
                _ => return Err(Nowhere::Computed),
            },
            Operation::Deref {
                size: 8,
                space: false,
                ..
            } => {
                let Sum(base, offset) = self.pop()?;
                let (base, offset) = based(base, offset);
                Sum(Some(Word::Memory(Box::new(base), offset)), 0)
            }
            operation => return self.describe(isa, operation),
        };
        self.stack.push(sum);
        Ok(())
    }

    /// Applies an operation that says where the value is, or that it does not exist.
    fn describe(&mut self, isa: Option<Isa>, operation: Operation<Reader>) -> Result<(), Nowhere> {
        match operation {
            Operation::Register { register: number } => match register(isa, number) {
                Ok(number) => self.direct = Some(Word::Register(number)),
                Err(nowhere) => self.failure = Some(nowhere),
            },
            Operation::StackValue => match self.pop()? {
                Sum(Some(word), 0) => self.direct = Some(word),
                Sum(None, number) => self.direct = Some(Word::Number(number.cast_unsigned())),
                Sum(Some(_), _) => self.failure = Some(Nowhere::Computed),
            },
            Operation::ImplicitValue { data } => {
                let mut bytes = [0; 8];
                match bytes.get_mut(..data.len()) {
                    Some(some) => {
                        some.copy_from_slice(&data);
                        self.direct = Some(Word::Number(u64::from_le_bytes(bytes)));
                    }
                    None => self.failure = Some(Nowhere::Computed),
                }
            }
            Operation::Piece {
                size_in_bits,
                bit_offset,
            } => {
                let has_offset = bit_offset.is_some_and(|offset| offset > 0);
                let spot = match (self.failure.is_none() && has_offset, self.spot()) {
                    (true, _) => Err(Nowhere::Computed),
                    (false, spot) => spot,
                };
                self.pieces.push((size_in_bits, spot));
                self.stack.clear();
            }
            Operation::TLS => self.failure = Some(Nowhere::ThreadLocal),
            _ => {
                self.failure.get_or_insert(Nowhere::Computed);
            }
        }
        Ok(())
    }

    /// Takes the place described since the last piece.
    fn spot(&mut self) -> Result<Spot, Nowhere> {
        match (self.failure.take(), self.direct.take(), self.stack.pop()) {
            (Some(nowhere), ..) => Err(nowhere),
            (None, Some(word), _) => Ok(Spot::Word(word)),
            (None, None, Some(Sum(base, offset))) => {
                let (base, offset) = based(base, offset);
                Ok(Spot::Memory(base, offset))
            }
            (None, None, None) => Err(Nowhere::OptimizedOut),
        }
    }

    /// Returns where the variable is.
    fn result(mut self) -> Result<Spot, Nowhere> {
        match self.pieces.is_empty() {
            true => self.spot(),
            false => Ok(Spot::Pieces(self.pieces)),
        }
    }
}

/// The instruction at which a variable is located.
pub(crate) struct Here<'a> {
    pub pc: u64,
    pub scope: Option<&'a Scope>,
    pub frames: &'a Frames,
}

impl Debug {
    /// Returns where a variable is.
    pub(crate) fn locate(&self, variable: At, here: &Here<'_>) -> Result<Spot, Nowhere> {
        // If a function was copied, the copy's location applies.
        let unit = self.unit_of(variable).ok_or(Nowhere::OptimizedOut)?;
        let expression = match self.attr(variable, gimli::DW_AT_location) {
            Some(AttributeValue::Exprloc(expression)) => {
                return self.locate_throughout(variable, expression, here);
            }
            Some(list) => {
                let mut entries = match self.dwarf_with(unit).attr_locations(unit, list) {
                    Ok(Some(entries)) => entries,
                    _ => return Err(Nowhere::OptimizedOut),
                };
                let mut found = None;
                while let Ok(Some(entry)) = entries.next() {
                    if entry.range.begin <= here.pc && here.pc < entry.range.end {
                        found = Some(entry.data);
                        break;
                    }
                }
                found.ok_or(Nowhere::OptimizedOut)?
            }
            None => {
                let mut origins = self.origins(variable);
                let number = origins.find_map(|at| self.number(at, gimli::DW_AT_const_value));
                let number = number.ok_or(Nowhere::OptimizedOut)?;
                return Ok(Spot::Word(Word::Number(number)));
            }
        };
        self.evaluate(variable, expression, here)
    }

    /// Evaluates a location that holds for the whole function. A location in its frame is valid only after the function
    /// has set up the frame and stored its arguments there.
    fn locate_throughout(
        &self,
        variable: At,
        expression: Expression<Reader>,
        here: &Here<'_>,
    ) -> Result<Spot, Nowhere> {
        let encoding = self.unit_of(variable).ok_or(Nowhere::Computed)?.encoding();
        let mut operations = expression.clone().operations(encoding);
        let in_frame = matches!(operations.next(), Ok(Some(Operation::FrameOffset { .. })));
        let function = here.scope.and_then(|scope| scope.chain.first().copied());
        if let (true, Some(function)) = (in_frame, function)
            && self.is_prologue(function, here.pc)
        {
            let Some(number) = self.argument(function, variable)? else {
                return Err(Nowhere::NotYet);
            };
            let registers = abi::numbers(self.isa.ok_or(Nowhere::Computed)?).arguments;
            if let Some(register) = registers.get(number) {
                return Ok(Spot::Word(Word::Register(*register)));
            }
            let Sum(base, offset) = self.frame(here)?;
            let above = (number - registers.len()) as i64 * 8;
            return Ok(Spot::Memory(base.ok_or(Nowhere::Computed)?, offset + above));
        }
        self.evaluate(variable, expression, here)
    }

    /// Returns whether an instruction precedes the function's second line.
    fn is_prologue(&self, function: At, pc: u64) -> bool {
        let Some((unit, entry)) = self.unit_of(function).zip(self.entry(function)) else {
            return false;
        };
        let ranges = self.ranges(unit, &entry);
        let range = ranges.iter().find(|range| range.contains(&pc));
        range.is_some_and(|range| pc < self.body(unit, range.clone()))
    }

    /// Returns a parameter's index among the function's integer arguments, or `None` if it is not a parameter.
    fn argument(&self, function: At, variable: At) -> Result<Option<usize>, Nowhere> {
        // This many have their own registers on x86-64 and on RISC-V. Later ones may use integer registers.
        const FLOATS: usize = 8;
        let (mut number, mut floats) = (0, 0);
        for child in self.children(function) {
            if self.tag(child) != Some(gimli::DW_TAG_formal_parameter) {
                continue;
            }
            let ty = self.type_of(child).ok_or(Nowhere::NotYet)?;
            let is_integer = match self.tag(ty) {
                Some(gimli::DW_TAG_base_type) => {
                    let is_float = self.encoding(ty) == gimli::DW_ATE_float;
                    let size = self.size(ty).unwrap_or(16);
                    if size > 8 {
                        return Err(Nowhere::NotYet);
                    }
                    !is_float
                }
                Some(
                    gimli::DW_TAG_pointer_type
                    | gimli::DW_TAG_reference_type
                    | gimli::DW_TAG_rvalue_reference_type
                    | gimli::DW_TAG_enumeration_type,
                ) => true,
                // Structures are passed depending on their members.
                _ => return Err(Nowhere::NotYet),
            };
            if child == variable {
                return if is_integer {
                    Ok(Some(number))
                } else {
                    Err(Nowhere::Vector)
                };
            }
            number += usize::from(is_integer);
            floats += usize::from(!is_integer);
            if floats > FLOATS {
                return Err(Nowhere::NotYet);
            }
        }
        Ok(None)
    }

    fn evaluate(
        &self,
        variable: At,
        expression: Expression<Reader>,
        here: &Here<'_>,
    ) -> Result<Spot, Nowhere> {
        let unit = self.unit_of(variable).ok_or(Nowhere::Computed)?;
        let mut evaluation = Evaluation::default();
        let mut operations = expression.operations(unit.encoding());
        while let Some(operation) = operations.next().map_err(|_| Nowhere::Computed)? {
            match self.pushed(unit, &operation, here, &mut evaluation)? {
                Some(sum) => evaluation.stack.push(sum),
                None => evaluation.apply(self.isa, operation)?,
            }
        }
        evaluation.result()
    }

    /// Returns what an operation that needs the frame or the file pushes, or `None` if it needs only the stack.
    fn pushed(
        &self,
        unit: &Unit<Reader>,
        operation: &Operation<Reader>,
        here: &Here<'_>,
        evaluation: &mut Evaluation,
    ) -> Result<Option<Sum>, Nowhere> {
        Ok(Some(match *operation {
            Operation::RegisterOffset {
                register: number,
                offset,
                ..
            } => match register(self.isa, number) {
                Ok(number) => Sum(Some(Word::Register(number)), offset),
                Err(nowhere) => {
                    evaluation.failure = Some(nowhere);
                    Sum(None, 0)
                }
            },
            Operation::FrameOffset { offset } => {
                let Sum(base, at) = self.frame_base(here)?;
                Sum(base, at.wrapping_add(offset))
            }
            Operation::CallFrameCFA => self.frame(here)?,
            Operation::Address { address } => Sum(Some(Word::Address(address)), 0),
            Operation::AddressIndex { index } => {
                let address = self.dwarf_with(unit).address(unit, index);
                let address = address.map_err(|_| Nowhere::Computed)?;
                Sum(Some(Word::Address(address)), 0)
            }
            Operation::UnsignedConstant { value } => Sum(None, value.cast_signed()),
            Operation::SignedConstant { value } => Sum(None, value),
            // The caller's values, and the targets of optimized-out pointers, do not exist.
            Operation::EntryValue { .. }
            | Operation::ParameterRef { .. }
            | Operation::ImplicitPointer { .. } => {
                evaluation.failure = Some(Nowhere::OptimizedOut);
                Sum(None, 0)
            }
            _ => return Ok(None),
        }))
    }

    /// Returns the base of distances in the frame.
    fn frame_base(&self, here: &Here<'_>) -> Result<Sum, Nowhere> {
        let function = here.scope.and_then(|scope| scope.chain.first().copied());
        let function = function.ok_or(Nowhere::Computed)?;
        let base = self.attr(function, gimli::DW_AT_frame_base);
        let Some(AttributeValue::Exprloc(expression)) = base else {
            return Err(Nowhere::Computed);
        };
        let unit = self.unit_of(function).ok_or(Nowhere::Computed)?;
        let mut operations = expression.operations(unit.encoding());
        match operations.next() {
            Ok(Some(Operation::CallFrameCFA)) => self.frame(here),
            Ok(Some(Operation::Register { register: number })) => {
                Ok(Sum(Some(Word::Register(register(self.isa, number)?)), 0))
            }
            Ok(Some(Operation::RegisterOffset {
                register: number,
                offset,
                ..
            })) => Ok(Sum(
                Some(Word::Register(register(self.isa, number)?)),
                offset,
            )),
            _ => Err(Nowhere::Computed),
        }
    }

    /// Returns the frame's address, according to the unwind table.
    fn frame(&self, here: &Here<'_>) -> Result<Sum, Nowhere> {
        let numbers = abi::numbers(self.isa.ok_or(Nowhere::Computed)?);
        let (register, offset) = match here.frames.at(here.pc) {
            Some(Cfa::Stack(offset)) => (numbers.stack, offset),
            Some(Cfa::Frame(offset)) => (numbers.frame, offset),
            _ => return Err(Nowhere::Computed),
        };
        Ok(Sum(Some(Word::Register(register)), i64::from(offset)))
    }
}

/// Returns a base and an offset. An absolute address has only an offset.
fn based(base: Option<Word>, offset: i64) -> (Word, i64) {
    match base {
        Some(base) => (base, offset),
        None => (Word::Number(offset.cast_unsigned()), 0),
    }
}
