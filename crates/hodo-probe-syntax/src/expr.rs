//! Conditions: the operators of C and their precedence.

use alloc::boxed::Box;
use alloc::format;
use alloc::string::ToString;
use alloc::vec::Vec;

use super::lexer::{Cursor, Result, is_identifier};
use super::model::{BinaryOp, Expr, FetchArg, Scalar, Source, Type, UnaryOp};
use super::{MAX_ARGS, MAX_HEIGHT, MAX_NESTING};

/// The names that are known in addition to those of the arguments.
pub(super) const BUILT_IN: [(&str, Expr); 4] = [
    ("pid", Expr::Pid),
    ("tid", Expr::Tid),
    ("cpu", Expr::Cpu),
    ("comm", Expr::Comm),
];

/// The operators and how tightly they bind. An operator comes before those that are prefixes of it.
pub(super) const OPERATORS: [(&str, BinaryOp, u8); 19] = [
    ("||", BinaryOp::Or, 1),
    ("&&", BinaryOp::And, 2),
    ("==", BinaryOp::Equal, 6),
    ("!=", BinaryOp::NotEqual, 6),
    ("<<", BinaryOp::ShiftLeft, 8),
    (">>", BinaryOp::ShiftRight, 8),
    ("<=", BinaryOp::LessEqual, 7),
    (">=", BinaryOp::GreaterEqual, 7),
    ("<", BinaryOp::Less, 7),
    (">", BinaryOp::Greater, 7),
    ("|", BinaryOp::BitOr, 3),
    ("^", BinaryOp::BitXor, 4),
    ("&", BinaryOp::BitAnd, 5),
    ("~", BinaryOp::Matches, 6),
    ("+", BinaryOp::Add, 9),
    ("-", BinaryOp::Subtract, 9),
    ("*", BinaryOp::Multiply, 10),
    ("/", BinaryOp::Divide, 10),
    ("%", BinaryOp::Remainder, 10),
];

pub(super) const UNARY: [(&str, UnaryOp); 3] = [
    ("!", UnaryOp::Not),
    ("~", UnaryOp::Complement),
    ("-", UnaryOp::Negate),
];

/// What a value can be used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Class {
    Number,
    Text,
    /// A variable whose type only the debugging information knows.
    Unknown,
    Array,
}

pub(super) fn class_of(arg: &FetchArg) -> Class {
    match arg.effective_type() {
        None => Class::Unknown,
        Some(Type::Scalar(Scalar::String)) => Class::Text,
        Some(Type::Array(..)) => Class::Array,
        Some(_) => Class::Number,
    }
}

/// Returns what `word` names: an argument, or one of [`BUILT_IN`].
pub(super) fn named(word: &str, args: &[FetchArg]) -> Option<(Expr, Class)> {
    if let Some(index) = args.iter().position(|arg| arg.name == word) {
        return Some((Expr::Arg(index), class_of(&args[index])));
    }
    let (_, value) = BUILT_IN.iter().find(|(name, _)| *name == word)?;
    let class = if *value == Expr::Comm {
        Class::Text
    } else {
        Class::Number
    };
    Some((value.clone(), class))
}

/// The same, but of a system call, or if there is `$vars` or `$params`, any other word is a variable and becomes an
/// argument itself.
pub(super) fn named_or_brought(
    cursor: &Cursor,
    word: &str,
    args: &mut Vec<FetchArg>,
) -> Option<(Expr, Class)> {
    if let Some(found) = named(word, args) {
        return Some(found);
    }
    let brings = |arg: &FetchArg| matches!(&arg.source, Source::Variable(name) if name == "$params" || name == "$vars");
    let brought = cursor.brings || args.iter().any(brings);
    if args.len() == MAX_ARGS || !is_identifier(word) || !brought {
        return None;
    }
    args.push(FetchArg {
        name: word.to_string(),
        source: Source::Variable(word.to_string()),
        ty: None,
    });
    named(word, args)
}

/// An expression, and what is known about it.
struct Node {
    expr: Expr,
    class: Class,
    height: usize,
    /// The position of its beginning.
    at: usize,
}

/// Parses the condition that begins here.
pub(super) fn condition(cursor: &mut Cursor, args: &mut Vec<FetchArg>) -> Result<Expr> {
    let mut parser = Parser {
        cursor,
        args,
        nesting: 0,
    };
    let node = parser.binary(1)?;
    parser.number(&node)?;
    if !cursor.is_gap() && cursor.peek() != Some(',') {
        let error = cursor.expected("an operator, or a space and an action");
        return Err(if cursor.peek() == Some('=') {
            error.hint("use == to compare values")
        } else {
            error
        });
    }
    Ok(node.expr)
}

struct Parser<'c, 't, 'a> {
    cursor: &'c mut Cursor<'t>,
    args: &'a mut Vec<FetchArg>,
    nesting: usize,
}

impl Parser<'_, '_, '_> {
    /// Parses operators that bind at least this tightly, and their operands.
    fn binary(&mut self, least: u8) -> Result<Node> {
        let mut left = self.unary()?;
        loop {
            let mut ahead = *self.cursor;
            ahead.spaces();
            let operator = OPERATORS
                .iter()
                .find(|(text, ..)| ahead.rest().starts_with(text));
            let Some(&(text, op, strength)) = operator.filter(|(.., strength)| *strength >= least)
            else {
                if operator.is_none() && ahead.peek() == Some('=') {
                    return Err(ahead
                        .expected("an operator")
                        .hint("use == to compare values"));
                }
                return Ok(left);
            };
            self.cursor.at = ahead.at + text.len();
            self.cursor.spaces();
            let right = self.binary(strength + 1)?;
            self.check(op, ahead.at, &left, &right)?;
            let height = 1 + left.height.max(right.height);
            if height > MAX_HEIGHT {
                let message = format!("more than {MAX_HEIGHT} operators in a row");
                return Err(self.cursor.wrong(ahead.at, message));
            }
            left = Node {
                expr: Expr::Binary(op, Box::new(left.expr), Box::new(right.expr)),
                class: Class::Number,
                height,
                at: left.at,
            };
        }
    }

    /// Checks whether the operator can have these operands.
    fn check(&self, op: BinaryOp, at: usize, left: &Node, right: &Node) -> Result<()> {
        match op {
            BinaryOp::Equal | BinaryOp::NotEqual => {
                self.no_array(left)?;
                self.no_array(right)?;
                match (left.class, right.class) {
                    (Class::Text, Class::Number) | (Class::Number, Class::Text) => Err(self
                        .cursor
                        .wrong(at, "a text and a number cannot be compared")),
                    _ => Ok(()),
                }
            }
            BinaryOp::Matches => {
                if !matches!(left.class, Class::Text | Class::Unknown) {
                    let message = "~ compares a text with a pattern, and this is not a text";
                    return Err(self.cursor.wrong(left.at, message));
                }
                if !matches!(right.expr, Expr::Text(_)) {
                    let message = "on the right of ~ is a pattern in \"…\"";
                    return Err(self.cursor.wrong(right.at, message));
                }
                Ok(())
            }
            _ => {
                self.number(left)?;
                self.number(right)?;
                let divides = matches!(op, BinaryOp::Divide | BinaryOp::Remainder);
                if divides && right.expr == Expr::Number(0) {
                    return Err(self.cursor.wrong(right.at, "this is a division by 0"));
                }
                Ok(())
            }
        }
    }

    fn no_array(&self, node: &Node) -> Result<()> {
        if node.class == Class::Array {
            return Err(self
                .cursor
                .wrong(
                    node.at,
                    "this is an array; only single values can be used here",
                )
                .hint("fetch the element alone"));
        }
        Ok(())
    }

    /// Checks whether a node can be used as a number.
    fn number(&self, node: &Node) -> Result<()> {
        self.no_array(node)?;
        if node.class == Class::Text {
            let message = "this is a text; compare texts with texts by == != ~";
            return Err(self.cursor.wrong(node.at, message));
        }
        Ok(())
    }

    fn nest(&mut self) -> Result<()> {
        self.nesting += 1;
        if self.nesting > MAX_NESTING {
            let message =
                format!("more than {MAX_NESTING} parentheses and signs inside each other");
            return Err(self.cursor.wrong(self.cursor.at, message));
        }
        Ok(())
    }

    fn unary(&mut self) -> Result<Node> {
        let at = self.cursor.at;
        let rest = self.cursor.rest();
        if let Some((text, op)) = UNARY.iter().find(|(text, _)| rest.starts_with(text)) {
            self.nest()?;
            self.cursor.at += text.len();
            self.cursor.spaces();
            let operand = self.unary()?;
            self.nesting -= 1;
            self.number(&operand)?;
            return Ok(Node {
                expr: Expr::Unary(*op, Box::new(operand.expr)),
                class: Class::Number,
                height: operand.height + 1,
                at,
            });
        }
        if self.cursor.peek() == Some('(') {
            self.nest()?;
            self.cursor.next();
            self.cursor.spaces();
            let inner = self.binary(1)?;
            self.nesting -= 1;
            self.cursor.spaces();
            self.cursor.need(")", "an operator or )")?;
            return Ok(Node { at, ..inner });
        }
        let (expr, class) = self.leaf()?;
        Ok(Node {
            expr,
            class,
            height: 1,
            at,
        })
    }

    fn leaf(&mut self) -> Result<(Expr, Class)> {
        let at = self.cursor.at;
        match self.cursor.peek() {
            Some('"') => Ok((Expr::Text(self.cursor.quoted()?), Class::Text)),
            Some('\'') => Ok((Expr::Number(self.character()?), Class::Number)),
            Some(c) if c.is_ascii_digit() => {
                Ok((Expr::Number(self.cursor.number("a number")?), Class::Number))
            }
            Some('$' | '%' | '@' | '\\' | '+') => Err(self
                .cursor
                .expected("a value")
                .hint("fetch it as an argument before the condition, NAME=…, and use its name")),
            _ => {
                let word = self.cursor.word();
                if word.is_empty() || !is_identifier(word) {
                    self.cursor.at = at;
                    return Err(self.cursor.expected("a value"));
                }
                named_or_brought(self.cursor, word, self.args)
                    .ok_or_else(|| unknown(self.cursor, at, word, self.args))
            }
        }
    }

    /// Parses `'c'`, the number of a one-byte character.
    fn character(&mut self) -> Result<u64> {
        let at = self.cursor.at;
        let text = self.cursor.quoted()?;
        let mut characters = text.chars();
        match (characters.next(), characters.next()) {
            (Some(c), None) if c.is_ascii() => Ok(u64::from(c)),
            _ => Err(self
                .cursor
                .wrong(at, "in '…' is one character of one byte")
                .hint("texts are in \"…\"")),
        }
    }
}

/// Returns the error for a name that no argument has.
pub(super) fn unknown(
    cursor: &Cursor,
    at: usize,
    word: &str,
    args: &[FetchArg],
) -> super::ParseError {
    let names = args.iter().map(|arg| arg.name.as_str());
    let names = names.chain(BUILT_IN.iter().map(|(name, _)| *name));
    let error = cursor.wrong(at, format!("there is no argument {word}"));
    match super::error::nearest(word, names.clone()) {
        Some(near) => error.hint(format!("did you mean {near}?")),
        None => {
            let mut known = "names here are".to_string();
            for name in names {
                known.push(' ');
                known.push_str(name);
            }
            error.hint(known)
        }
    }
}
