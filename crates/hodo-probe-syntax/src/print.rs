//! Prints definitions in a form that parses back to the same.

use core::fmt::{self, Display, Formatter, Write};

use super::expr::{BUILT_IN, OPERATORS, UNARY};
use super::fetch::scalar_name;
use super::lexer::quote;
use super::model::{
    Action, Bucket, Definition, Expr, FetchArg, Histogram, Location, Offset, ProbeKind, ProbeName,
    SortBy, Source, Symbol, Type,
};
use super::place::default_group;

impl Display for Definition {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(match self.kind {
            ProbeKind::Entry => "p",
            ProbeKind::Return => "r",
        })?;
        if self.named {
            write!(f, ":{}/{}", self.group, self.name)?;
        } else if self.group != default_group(&self.path) {
            write!(f, ":{}/", self.group)?;
        }
        f.write_char(' ')?;
        path(f, &self.path)?;
        write!(f, ":{}", self.place)?;
        if self.after {
            f.write_str(" post")?;
        }
        for arg in &self.args {
            write!(f, " {arg}")?;
        }
        if let Some(condition) = &self.condition {
            f.write_str(" if ")?;
            expr(f, condition, &self.args, 0)?;
        }
        for action in &self.actions {
            f.write_char(' ')?;
            self::action(f, action, &self.args)?;
        }
        Ok(())
    }
}

fn path(f: &mut Formatter<'_>, path: &str) -> fmt::Result {
    if path.contains(|c: char| c.is_whitespace() || c.is_control()) || path.starts_with(['"', '\''])
    {
        return f.write_str(&quote(path, '"'));
    }
    for c in path.chars() {
        if matches!(c, ':' | '\\') {
            f.write_char('\\')?;
        }
        f.write_char(c)?;
    }
    Ok(())
}

impl Display for Location {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Location::Symbol { symbol, offset } => {
                write!(f, "{symbol}")?;
                match offset {
                    Offset::EveryInstruction => f.write_str("+*"),
                    // A pattern is parsed up to the last +, so the offset must be written.
                    Offset::Bytes(0) => match symbol {
                        Symbol::Pattern(text) if text.contains('+') => f.write_str("+0"),
                        _ => Ok(()),
                    },
                    Offset::Bytes(offset) => write!(f, "+{offset:#x}"),
                }
            }
            Location::FileOffset(offset) => write!(f, "{offset:#x}"),
            Location::Usdt { provider, name } => write!(f, "%{provider}:{name}"),
            Location::Line { file, line } => {
                if file
                    .chars()
                    .all(|c| c.is_alphanumeric() || "._-/+".contains(c))
                    && !file.starts_with(|c: char| c.is_ascii_digit())
                {
                    write!(f, "{file}:{line}")
                } else {
                    write!(f, "{}:{line}", quote(file, '\''))
                }
            }
        }
    }
}

/// Returns whether a name needs no quotes.
fn is_plain(symbol: &Symbol) -> bool {
    let Symbol::Name(name) = symbol else {
        return false;
    };
    let pairs = name.split("::").all(|part| !part.contains(':'));
    let fits = |c: char| c.is_alphanumeric() || "_.$@:<>(){}#,&~".contains(c);
    pairs && name.chars().all(fits) && !name.starts_with(|c: char| c.is_ascii_digit())
}

impl Display for Symbol {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Symbol::Name(name) if !is_plain(self) => f.write_str(&quote(name, '\'')),
            Symbol::Name(text) | Symbol::Pattern(text) => f.write_str(text),
        }
    }
}

impl Display for FetchArg {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.name, self.source)?;
        match self.ty {
            Some(ty) => write!(f, ":{ty}"),
            None => Ok(()),
        }
    }
}

impl Display for Source {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Source::Register(register) => write!(f, "%{register}"),
            Source::Argument(number) => write!(f, "$arg{number}"),
            Source::ReturnValue => f.write_str("$retval"),
            Source::StackPointer => f.write_str("$stack"),
            Source::Stack(entry) => write!(f, "$stack{entry}"),
            Source::Memory { offset, address } => write!(f, "{offset:+}({address})"),
            Source::Address(address) => write!(f, "@{address:#x}"),
            Source::FileOffset(offset) => write!(f, "@+{offset:#x}"),
            Source::Comm => f.write_str("$comm"),
            Source::Immediate(number) => write!(f, "\\{number}"),
            Source::Text(text) => write!(f, "\\{}", quote(text, '"')),
            Source::Variable(text) => f.write_str(text),
        }
    }
}

impl Display for Type {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Type::Scalar(scalar) => f.write_str(scalar_name(*scalar)),
            Type::Array(scalar, count) => write!(f, "{}[{count}]", scalar_name(*scalar)),
            Type::Bitfield {
                signed,
                width,
                offset,
                container,
            } => {
                let sign = if *signed { "s" } else { "" };
                write!(f, "{sign}b{width}@{offset}/{}", container.bits())
            }
        }
    }
}

/// Writes `expr`, in parentheses if it binds less tightly than `least`.
fn expr(f: &mut Formatter<'_>, value: &Expr, args: &[FetchArg], least: u8) -> fmt::Result {
    match value {
        Expr::Number(number) => write!(f, "{number}"),
        Expr::Text(text) => f.write_str(&quote(text, '"')),
        Expr::Arg(index) => f.write_str(args.get(*index).map_or("?", |arg| &arg.name)),
        Expr::Pid | Expr::Tid | Expr::Cpu | Expr::Comm => {
            let name = BUILT_IN.iter().find(|(_, known)| known == value);
            f.write_str(name.map_or("?", |(name, _)| name))
        }
        Expr::Unary(op, operand) => {
            let text = UNARY.iter().find(|(_, known)| known == op);
            f.write_str(text.map_or("?", |(text, _)| text))?;
            expr(f, operand, args, u8::MAX)
        }
        Expr::Binary(op, left, right) => {
            let known = OPERATORS.iter().find(|(_, known, _)| known == op);
            let (text, strength) = known.map_or(("?", 0), |(text, _, strength)| (*text, *strength));
            if strength < least {
                f.write_char('(')?;
            }
            expr(f, left, args, strength)?;
            write!(f, " {text} ")?;
            expr(f, right, args, strength + 1)?;
            if strength < least {
                f.write_char(')')?;
            }
            Ok(())
        }
    }
}

fn action(f: &mut Formatter<'_>, action: &Action, args: &[FetchArg]) -> fmt::Result {
    match action {
        Action::Print => f.write_str("print"),
        Action::Count => f.write_str("count"),
        Action::Hist(histogram) => self::histogram(f, histogram, args),
        Action::StackTrace => f.write_str("stacktrace"),
        Action::Snapshot(bytes) => write!(f, "snapshot:{bytes}"),
        Action::Enable(name) => write!(f, "enable:{name}"),
        Action::Disable(name) => write!(f, "disable:{name}"),
        Action::TraceOn => f.write_str("traceon"),
        Action::TraceOff => f.write_str("traceoff"),
        Action::Return(value) => write!(f, "return:{value}"),
    }
}

impl Display for ProbeName {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        if let Some(group) = &self.group {
            write!(f, "{group}/")?;
        }
        f.write_str(&self.name)
    }
}

fn histogram(f: &mut Formatter<'_>, histogram: &Histogram, args: &[FetchArg]) -> fmt::Result {
    let name = |index: usize| args.get(index).map_or("?", |arg| &arg.name);
    let comma = |f: &mut Formatter<'_>, index: usize| {
        if index > 0 { f.write_char(',') } else { Ok(()) }
    };
    f.write_str("hist:keys=")?;
    for (index, key) in histogram.keys.iter().enumerate() {
        comma(f, index)?;
        expr(f, &key.value, args, 0)?;
        match key.bucket {
            Bucket::Each => {}
            Bucket::Log2 => f.write_str(".log2")?,
            Bucket::Linear(width) => write!(f, ".buckets={width}")?,
        }
    }
    for (index, value) in histogram.values.iter().enumerate() {
        f.write_str(if index == 0 { ":vals=" } else { "," })?;
        f.write_str(name(*value))?;
    }
    for (index, sort) in histogram.sort.iter().enumerate() {
        f.write_str(if index == 0 { ":sort=" } else { "," })?;
        match sort.by {
            SortBy::Hits => f.write_str("hitcount")?,
            SortBy::Value(value) => {
                f.write_str(histogram.values.get(value).map_or("?", |&v| name(v)))?
            }
            SortBy::Key(key) => match histogram.keys.get(key) {
                Some(key) => expr(f, &key.value, args, 0)?,
                None => f.write_str("?")?,
            },
        }
        if sort.descending {
            f.write_str(".descending")?;
        }
    }
    write!(f, ":size={}", histogram.size)
}
