//! From conditions as written to conditions as detours evaluate them: signs, texts, and where values are.
//!
//! Numbers have 64 bits. A number is unsigned if its type is `u64`, `x64` or `symbol`, or if it does not fit into the
//! signed ones; everything smaller is extended first, as C does with what is smaller than `int`. An operation is
//! unsigned if one operand is; a shift as its left operand.

use anyhow::{Result, bail};
use hodo_codegen::native::detour::{Arithmetic, Atom, Bits, Comparison, Test, Text};
use hodo_probe_syntax::{BinaryOp, Expr, Scalar, Type, UnaryOp};
use hodo_trace::format::tcb;

/// What an argument of a definition is in a detour.
#[derive(Debug, Clone)]
pub(super) enum Known {
    /// The value with this index.
    Value(usize, Bits),
    /// The text in memory which is the value with this index.
    Text(usize),
    /// Always the same.
    Number(u64),
    /// Always the same.
    Fixed(Vec<u8>),
    /// The name of the thread.
    Comm,
    /// Several values.
    Array,
}

/// How the bits of a word are meant. `part` are those that count in a register, shift and width.
pub(super) fn bits(ty: Type, part: (u32, u32)) -> Bits {
    let (shift, width, signed) = match ty {
        Type::Scalar(Scalar::S(bits)) => (0, u32::from(bits), true),
        Type::Scalar(scalar) | Type::Array(scalar, _) => {
            (0, u32::from(scalar.bits().unwrap_or(64)), false)
        }
        Type::Bitfield {
            signed,
            width,
            offset,
            ..
        } => (u32::from(offset), u32::from(width), signed),
    };
    // What is above the part of a register is 0.
    let inside = part.1.saturating_sub(shift).max(1);
    Bits {
        shift: (part.0 + shift).min(63) as u8,
        width: width.min(inside) as u8,
        signed: signed && width <= inside,
    }
}

/// Whether a number of this type is unsigned in expressions.
fn is_unsigned(ty: Type) -> bool {
    match ty {
        Type::Scalar(Scalar::U(64) | Scalar::X(64) | Scalar::Symbol) => true,
        Type::Bitfield { signed, width, .. } => width == 64 && !signed,
        _ => false,
    }
}

/// The arguments of a definition: what each is, and its type.
pub(super) struct Arguments<'a> {
    pub(super) known: &'a [Known],
    pub(super) types: &'a [Type],
    /// Whether the machine has the instruction `rdpid`. None: no instruction gives the number of the processor.
    pub(super) rdpid: Option<bool>,
}

/// Why there is no `cpu`.
const NO_CPU: &str = "cpu: this processor has no instruction that gives its number";

impl Arguments<'_> {
    /// The condition, ready to be emitted.
    ///
    /// # Errors
    /// If it uses what is no number and no text.
    pub(super) fn test(&self, expr: &Expr) -> Result<Test> {
        Ok(self.number(expr)?.0)
    }

    /// A number, and whether it is unsigned.
    pub(super) fn number(&self, expr: &Expr) -> Result<(Test, bool)> {
        Ok(match expr {
            Expr::Number(number) => (Test::Number(*number), *number > i64::MAX as u64),
            Expr::Arg(index) => {
                let test = match &self.known[*index] {
                    Known::Value(value, bits) => Test::Value(*value, *bits),
                    Known::Number(number) => {
                        Test::Number(bits(self.types[*index], (0, 64)).of(*number))
                    }
                    Known::Text(_) | Known::Fixed(_) | Known::Comm => {
                        bail!("a text is not a number")
                    }
                    Known::Array => bail!("an array is not a number"),
                };
                (test, is_unsigned(self.types[*index]))
            }
            Expr::Pid => (Test::Thread(tcb::PID as u32), false),
            Expr::Tid => (Test::Thread(tcb::TID as u32), false),
            Expr::Cpu => match self.rdpid {
                Some(rdpid) => (Test::Processor(rdpid), false),
                None => bail!(NO_CPU),
            },
            Expr::Unary(op, operand) => {
                let (operand, unsigned) = self.number(operand)?;
                match (op, operand) {
                    (UnaryOp::Not, operand) => (Test::Not(operand.into()), false),
                    (UnaryOp::Negate, Test::Number(number)) => {
                        (Test::Number(number.wrapping_neg()), unsigned)
                    }
                    (UnaryOp::Negate, operand) => (Test::Negate(operand.into()), unsigned),
                    (UnaryOp::Complement, Test::Number(number)) => {
                        (Test::Number(!number), unsigned)
                    }
                    (UnaryOp::Complement, operand) => (Test::Complement(operand.into()), unsigned),
                }
            }
            Expr::Binary(op, left, right) => self.binary(*op, left, right)?,
            Expr::Text(_) | Expr::Comm => bail!("a text is not a number"),
        })
    }

    fn binary(&self, op: BinaryOp, left: &Expr, right: &Expr) -> Result<(Test, bool)> {
        if op == BinaryOp::Matches {
            let Expr::Text(pattern) = right else {
                bail!("on the right of ~ is a pattern");
            };
            let Some(text) = self.text(left) else {
                bail!("~ compares a text with a pattern");
            };
            return Ok((Test::Fits(text, Atom::pattern(pattern.as_bytes())), false));
        }
        if matches!(op, BinaryOp::Equal | BinaryOp::NotEqual)
            && let (Some(left), Some(right)) = (self.text(left), self.text(right))
        {
            let same = Test::Same(left, right);
            return Ok(match op {
                BinaryOp::Equal => (same, false),
                _ => (Test::Not(same.into()), false),
            });
        }
        let ((left, first), (right, second)) = (self.number(left)?, self.number(right)?);
        let (left, right) = (Box::new(left), Box::new(right));
        let unsigned = first || second;
        let compare = |how, left, right| (Test::Compare(how, !unsigned, left, right), false);
        let combine = |how, left, right| (Test::Combine(how, !unsigned, left, right), unsigned);
        Ok(match op {
            BinaryOp::Or => (Test::Or(left, right), false),
            BinaryOp::And => (Test::And(left, right), false),
            BinaryOp::Equal => compare(Comparison::Equal, left, right),
            BinaryOp::NotEqual => compare(Comparison::NotEqual, left, right),
            BinaryOp::Less => compare(Comparison::Less, left, right),
            BinaryOp::LessEqual => compare(Comparison::LessEqual, left, right),
            BinaryOp::Greater => compare(Comparison::Greater, left, right),
            BinaryOp::GreaterEqual => compare(Comparison::GreaterEqual, left, right),
            BinaryOp::BitOr => combine(Arithmetic::Or, left, right),
            BinaryOp::BitXor => combine(Arithmetic::Xor, left, right),
            BinaryOp::BitAnd => combine(Arithmetic::And, left, right),
            BinaryOp::Add => combine(Arithmetic::Add, left, right),
            BinaryOp::Subtract => combine(Arithmetic::Subtract, left, right),
            BinaryOp::Multiply => combine(Arithmetic::Multiply, left, right),
            BinaryOp::Divide => combine(Arithmetic::Divide, left, right),
            BinaryOp::Remainder => combine(Arithmetic::Remainder, left, right),
            BinaryOp::ShiftLeft | BinaryOp::ShiftRight => {
                let how = match op {
                    BinaryOp::ShiftLeft => Arithmetic::ShiftLeft,
                    _ => Arithmetic::ShiftRight,
                };
                (Test::Combine(how, !first, left, right), first)
            }
            BinaryOp::Matches => bail!("~ compares a text with a pattern"),
        })
    }

    /// A text; `None` for a number.
    pub(super) fn text(&self, expr: &Expr) -> Option<Text> {
        match expr {
            Expr::Text(text) => Some(Text::Fixed(text.clone().into_bytes())),
            Expr::Comm => Some(Text::Thread(tcb::COMM as u32)),
            Expr::Arg(index) => match &self.known[*index] {
                Known::Text(value) => Some(Text::Value(*value)),
                Known::Fixed(text) => Some(Text::Fixed(text.clone())),
                Known::Comm => Some(Text::Thread(tcb::COMM as u32)),
                Known::Value(..) | Known::Number(_) | Known::Array => None,
            },
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_processor_is_told_where_it_can_be() {
        let arguments = |rdpid| Arguments {
            known: &[],
            types: &[],
            rdpid,
        };
        let test = arguments(Some(false)).test(&Expr::Cpu).expect("a number");
        assert_eq!(test, Test::Processor(false));
        let error = arguments(None).test(&Expr::Cpu).expect_err("none");
        assert_eq!(error.to_string(), NO_CPU);
    }
}
