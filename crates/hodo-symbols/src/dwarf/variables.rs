//! Variables and their members, as users write them: `count`, `p->x[3].y`, `ns::total`.

use std::path::{Path, PathBuf};

use super::Debug;
use super::locations::{Here, Nowhere, Spot, Word};
use super::navigate::At;
use crate::Frames;

/// How a value is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shown {
    /// A signed number of this many bits.
    Signed(u8),
    /// An unsigned number of this many bits.
    Unsigned(u8),
    /// The bits of something that is not an integer.
    Raw(u8),
    /// A character.
    Char,
    /// A pointer to characters.
    CharPointer,
    /// A pointer to something else.
    Pointer,
    /// An array of characters.
    Chars,
    /// Some bits of a number with `container` bits.
    Bits {
        /// Whether the highest of them is a sign.
        signed: bool,
        /// How many bits there are.
        width: u8,
        /// The position of the lowest one.
        offset: u8,
        /// 8, 16, 32 or 64.
        container: u8,
    },
}

/// A value of the program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Variable {
    /// Where it is. A value in memory that is shorter than a word is the beginning of that word.
    pub word: Word,
    /// How it is shown.
    pub shown: Shown,
}

/// Why a variable cannot be fetched. All are reported with the variable's name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum VariableError {
    /// There is no variable of this name.
    #[error("there is no variable {name} here{}{}", found(.others.as_deref()), not_found(.missing.as_deref()))]
    Unknown {
        /// The name.
        name: String,
        /// The variables that exist.
        others: Option<String>,
        /// A file with debugging information (`.dwo`) that was not found.
        missing: Option<PathBuf>,
    },
    /// A structure has no such member.
    #[error("{of} has no member {name}; it has {members}")]
    Member {
        /// The structure.
        of: String,
        /// The member's name.
        name: String,
        /// The members that exist.
        members: String,
    },
    /// It cannot be used in this way.
    #[error("{0}")]
    Kind(String),
    /// It is not available at this instruction.
    #[error("{name} is {reason}")]
    Nowhere {
        /// The variable.
        name: String,
        /// Why.
        reason: &'static str,
    },
}

fn found(names: Option<&str>) -> String {
    names.map_or_else(String::new, |names| format!("; there are {names}"))
}

fn not_found(file: Option<&Path>) -> String {
    file.map_or_else(String::new, |file| {
        let file = file.display();
        format!("; a part of the debugging information is in {file}, which is not there, or from another build")
    })
}

/// One step from a variable to a part of it.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Step {
    Dot(String),
    Arrow(String),
    Index(i64),
}

/// The current position on the way from a variable to a part of it.
struct Walk {
    /// The text that led here, for messages.
    text: String,
    spot: Spot,
    ty: Option<At>,
    /// How many dimensions of an array have been indexed.
    indexed: usize,
    /// The first bit of a bitfield, and its number of bits.
    bits: Option<(u64, u64)>,
}

/// At most this many names are listed if one is not found.
const NAMES: usize = 20;

impl Debug {
    /// Returns the variable or member that a text names, at an instruction.
    ///
    /// # Errors
    /// If there is no such variable, or it cannot be fetched.
    pub fn variable(
        &self,
        text: &str,
        pc: u64,
        frames: &Frames,
    ) -> Result<Variable, VariableError> {
        let (head, steps) = parse(text)?;
        let scope = self.scope(pc);
        let locals = scope.as_ref().map(|scope| self.locals(scope));
        let locals = locals.unwrap_or_default();
        let unit = scope
            .as_ref()
            .and_then(|scope| Some(scope.chain.first()?.unit));
        let local = locals.iter().find(|(name, _)| *name == head);
        let Some(at) = local
            .map(|(_, at)| *at)
            .or_else(|| self.global(&head, unit))
        else {
            let mut names: Vec<String> = locals.into_iter().map(|(name, _)| name).collect();
            if let Some(unit) = unit {
                self.globals(unit, &mut |path, _| names.push(path.join("::")));
            }
            return Err(VariableError::Unknown {
                name: head,
                others: (!names.is_empty()).then(|| listed(&names)),
                missing: self.splits.missing(),
            });
        };
        let here = Here {
            pc,
            scope: scope.as_ref(),
            frames,
        };
        let nowhere = |name: &str, nowhere: &Nowhere| VariableError::Nowhere {
            name: name.to_owned(),
            reason: match nowhere {
                Nowhere::OptimizedOut => "optimized out here",
                Nowhere::Computed => "computed here: it is neither in a register nor in memory",
                Nowhere::ThreadLocal => "thread-local, which is not supported",
                Nowhere::Vector => {
                    "in a floating-point or vector register, which cannot be fetched"
                }
                Nowhere::NotYet => {
                    "not yet in its place at the function's first instructions; probe a later line"
                }
            },
        };
        let mut walk = Walk {
            spot: self.locate(at, &here).map_err(|n| nowhere(&head, &n))?,
            text: head,
            ty: self.type_of(at),
            indexed: 0,
            bits: None,
        };
        for step in steps {
            self.dereferenced(&mut walk, &nowhere)?;
            match step {
                Step::Dot(name) => self.member(&mut walk, &name, ".")?,
                Step::Arrow(name) => {
                    if !self.is_pointer(&walk) {
                        let text = &walk.text;
                        let message = format!("{text} is no pointer: write {text}.{name}");
                        return Err(VariableError::Kind(message));
                    }
                    self.follow(&mut walk, 0, &nowhere)?;
                    self.member(&mut walk, &name, "->")?;
                }
                Step::Index(index) => self.index(&mut walk, index, &nowhere)?,
            }
        }
        self.dereferenced(&mut walk, &nowhere)?;
        let shown = self.shown(&walk)?;
        let word = word(&walk, shown, &nowhere)?;
        Ok(Variable {
            word: word.0,
            shown: word.1,
        })
    }

    /// Returns the names of the function's parameters. With `all`, also those of the variables visible at an
    /// instruction.
    #[must_use]
    pub fn names(&self, pc: u64, all: bool) -> Vec<String> {
        let Some(scope) = self.scope(pc) else {
            return Vec::new();
        };
        let is = |at: &At| all || self.tag(*at) == Some(gimli::DW_TAG_formal_parameter);
        let locals = self.locals(&scope).into_iter();
        let mut names: Vec<_> = locals.filter(|(_, at)| is(at)).collect();
        // Parameters first, in their order.
        names.sort_by_key(|(_, at)| self.tag(*at) != Some(gimli::DW_TAG_formal_parameter));
        names.into_iter().map(|(name, _)| name).collect()
    }

    fn is_pointer(&self, walk: &Walk) -> bool {
        walk.ty.and_then(|ty| self.tag(ty)) == Some(gimli::DW_TAG_pointer_type)
    }

    /// Follows a reference, because it stands for what it refers to.
    fn dereferenced(
        &self,
        walk: &mut Walk,
        nowhere: &impl Fn(&str, &Nowhere) -> VariableError,
    ) -> Result<(), VariableError> {
        let reference = [
            gimli::DW_TAG_reference_type,
            gimli::DW_TAG_rvalue_reference_type,
        ];
        let tag = walk.ty.and_then(|ty| self.tag(ty));
        match tag.is_some_and(|tag| reference.contains(&tag)) {
            true => self.follow(walk, 0, nowhere),
            false => Ok(()),
        }
    }

    /// Follows a pointer, then moves on by this many bytes.
    fn follow(
        &self,
        walk: &mut Walk,
        offset: i64,
        nowhere: &impl Fn(&str, &Nowhere) -> VariableError,
    ) -> Result<(), VariableError> {
        let (pointer, _) = word(walk, Shown::Pointer, nowhere)?;
        walk.spot = Spot::Memory(pointer, offset);
        walk.ty = walk.ty.and_then(|ty| self.type_of(ty));
        walk.indexed = 0;
        Ok(())
    }

    fn member(&self, walk: &mut Walk, name: &str, by: &str) -> Result<(), VariableError> {
        if by == "." && self.is_pointer(walk) {
            let text = &walk.text;
            let message = format!("{text} is a pointer: write {text}->{name}");
            return Err(VariableError::Kind(message));
        }
        let of = if by == "->" {
            format!("*{}", walk.text)
        } else {
            walk.text.clone()
        };
        let members = walk.ty.map(|ty| self.members(ty, 0, 0)).unwrap_or_default();
        if members.is_empty() {
            return Err(VariableError::Kind(format!("{of} has no members")));
        }
        let Some((_, at, offset)) = members.iter().find(|(known, ..)| known == name) else {
            let names: Vec<String> = members.into_iter().map(|(name, ..)| name).collect();
            return Err(VariableError::Member {
                of,
                name: name.to_owned(),
                members: listed(&names),
            });
        };
        walk.text = format!("{}{by}{name}", walk.text);
        let width = self.number(*at, gimli::DW_AT_bit_size);
        walk.ty = self.type_of(*at);
        walk.indexed = 0;
        let mut bytes = *offset;
        if let Some(width) = width {
            let size = walk.ty.and_then(|ty| self.size(ty)).unwrap_or(8);
            let first = self.number(*at, gimli::DW_AT_data_bit_offset).or_else(|| {
                // Until DWARF 3, bits were counted from the highest one of the containing number.
                let high = self.number(*at, gimli::DW_AT_bit_offset)?;
                (size * 8).checked_sub(high)?.checked_sub(width)
            });
            let first = first.unwrap_or(0);
            let container = size.max(1) * 8;
            let (start, bit) = match first % container + width <= container {
                true => (first / container * (container / 8), first % container),
                false => (first / 8, first % 8),
            };
            bytes += start;
            walk.bits = Some((bit, width));
        }
        self.advance(walk, bytes);
        Ok(())
    }

    /// Moves on by this many bytes inside something.
    fn advance(&self, walk: &mut Walk, bytes: u64) {
        match &mut walk.spot {
            Spot::Memory(_, offset) => *offset = offset.wrapping_add(bytes.cast_signed()),
            Spot::Word(_) if bytes == 0 => {}
            Spot::Word(_) => {
                let (bit, _) = walk.bits.unwrap_or((0, 0));
                let width = walk.bits.map(|bits| bits.1);
                let whole = || walk.ty.and_then(|ty| self.size(ty)).unwrap_or(8) * 8;
                let width = width.unwrap_or_else(whole);
                walk.bits = Some((bit + bytes * 8, width));
            }
            Spot::Pieces(pieces) => {
                let mut at = bytes * 8;
                let mut found = None;
                for (bits, spot) in pieces.iter() {
                    if at < *bits {
                        found = Some((spot.clone(), *bits));
                        break;
                    }
                    at -= bits;
                }
                match found {
                    Some((Ok(spot), _)) => {
                        walk.spot = spot;
                        self.advance(walk, at / 8);
                    }
                    Some((Err(nowhere), bits)) => {
                        walk.spot = Spot::Pieces(vec![(bits, Err(nowhere))]);
                    }
                    None => walk.spot = Spot::Pieces(Vec::new()),
                }
            }
        }
    }

    /// Returns the members of a structure with their offsets, including those of unnamed structures in it and of bases.
    pub(crate) fn members(&self, ty: At, offset: u64, depth: usize) -> Vec<(String, At, u64)> {
        let mut members = Vec::new();
        const DEEPEST: usize = 16;
        let is_structure = matches!(
            self.tag(ty),
            Some(
                gimli::DW_TAG_structure_type | gimli::DW_TAG_class_type | gimli::DW_TAG_union_type
            )
        );
        if !is_structure || depth > DEEPEST {
            return members;
        }
        for child in self.children(ty) {
            let is_base = self.tag(child) == Some(gimli::DW_TAG_inheritance);
            if !is_base && self.tag(child) != Some(gimli::DW_TAG_member) {
                continue;
            }
            let at = self.number(child, gimli::DW_AT_data_member_location);
            let at = offset + at.unwrap_or(0);
            match self.name(child) {
                Some(name) if !is_base => members.push((name, child, at)),
                _ => {
                    let inner = self.type_of(child);
                    members.extend(
                        inner
                            .map(|ty| self.members(ty, at, depth + 1))
                            .unwrap_or_default(),
                    );
                }
            }
        }
        members
    }

    fn index(
        &self,
        walk: &mut Walk,
        index: i64,
        nowhere: &impl Fn(&str, &Nowhere) -> VariableError,
    ) -> Result<(), VariableError> {
        let text = walk.text.clone();
        let ty = walk.ty;
        let tag = ty.and_then(|ty| self.tag(ty));
        let element = ty.and_then(|ty| self.type_of(ty));
        let size = element.and_then(|ty| self.size(ty));
        let (Some(ty), Some(size)) = (ty, size) else {
            let message = format!("{text} is no array");
            return Err(VariableError::Kind(message));
        };
        match tag {
            Some(gimli::DW_TAG_array_type) => {
                let dimensions = self.dimensions(ty);
                let later = dimensions.get(walk.indexed + 1..).unwrap_or_default();
                let stride = size * later.iter().product::<u64>();
                let count = dimensions.get(walk.indexed).copied().unwrap_or(0);
                if count > 0 && !(0..count.cast_signed()).contains(&index) {
                    let message = format!("{text} has {count} elements, from 0 on");
                    return Err(VariableError::Kind(message));
                }
                self.advance(walk, stride.wrapping_mul(index.cast_unsigned()));
                walk.indexed += 1;
                if walk.indexed >= dimensions.len() {
                    walk.ty = element;
                    walk.indexed = 0;
                }
            }
            Some(gimli::DW_TAG_pointer_type) => {
                self.follow(walk, index.wrapping_mul(size.cast_signed()), nowhere)?;
            }
            _ => return Err(VariableError::Kind(format!("{text} is no array"))),
        }
        walk.text = format!("{text}[{index}]");
        Ok(())
    }

    /// Returns how to show the value.
    fn shown(&self, walk: &Walk) -> Result<Shown, VariableError> {
        let text = &walk.text;
        let Some(ty) = walk.ty else {
            return Ok(Shown::Raw(64));
        };
        let size = self.size(ty).unwrap_or(8);
        let bits = || match size {
            1 | 2 | 4 | 8 => Ok(size as u8 * 8),
            _ => Err(VariableError::Kind(format!(
                "{text} has {size} bytes, which is too many"
            ))),
        };
        let is_char = |ty: At| {
            self.name(ty).as_deref() == Some("char")
                || self.tag(ty) == Some(gimli::DW_TAG_base_type)
                    && self.size(ty) == Some(1)
                    && self.encoding(ty) == gimli::DW_ATE_signed_char
        };
        let inner = || self.type_of(ty);
        match self.tag(ty) {
            Some(gimli::DW_TAG_base_type) => {
                let encoding = self.encoding(ty);
                let name = self.name(ty);
                Ok(match encoding {
                    // On RISC-V and AArch64, plain `char` is unsigned.
                    gimli::DW_ATE_signed_char | gimli::DW_ATE_unsigned_char
                        if name.as_deref() == Some("char") =>
                    {
                        Shown::Char
                    }
                    gimli::DW_ATE_signed | gimli::DW_ATE_signed_char => Shown::Signed(bits()?),
                    gimli::DW_ATE_unsigned
                    | gimli::DW_ATE_unsigned_char
                    | gimli::DW_ATE_boolean => Shown::Unsigned(bits()?),
                    _ => Shown::Raw(bits()?),
                })
            }
            Some(gimli::DW_TAG_pointer_type) => Ok(match inner().is_some_and(is_char) {
                true => Shown::CharPointer,
                false => Shown::Pointer,
            }),
            Some(gimli::DW_TAG_enumeration_type) => {
                let signed = inner().is_some_and(|ty| self.encoding(ty) == gimli::DW_ATE_signed);
                Ok(match signed {
                    true => Shown::Signed(bits()?),
                    false => Shown::Unsigned(bits()?),
                })
            }
            Some(gimli::DW_TAG_array_type) => {
                let last = walk.indexed + 1 == self.dimensions(ty).len();
                match last && inner().is_some_and(is_char) {
                    true => Ok(Shown::Chars),
                    false => Err(VariableError::Kind(format!(
                        "{text} is an array: name an element, {text}[0]"
                    ))),
                }
            }
            Some(
                gimli::DW_TAG_structure_type | gimli::DW_TAG_class_type | gimli::DW_TAG_union_type,
            ) => {
                let members = self.members(ty, 0, 0).into_iter();
                let names: Vec<String> = members.map(|(name, ..)| name).collect();
                Err(VariableError::Kind(format!(
                    "{text} is a structure: name a member, one of {}",
                    listed(&names)
                )))
            }
            Some(gimli::DW_TAG_subroutine_type) => {
                Err(VariableError::Kind(format!("{text} is a function")))
            }
            _ => Ok(Shown::Raw(bits().unwrap_or(64))),
        }
    }
}

/// Returns the word that contains a value, and how to show the value in it.
fn word(
    walk: &Walk,
    shown: Shown,
    nowhere: &impl Fn(&str, &Nowhere) -> VariableError,
) -> Result<(Word, Shown), VariableError> {
    let (spot, width) = match &walk.spot {
        Spot::Pieces(pieces) => match pieces.first() {
            Some((bits, Ok(spot))) => (spot, Some(*bits)),
            Some((_, Err(reason))) => return Err(nowhere(&walk.text, reason)),
            None => return Err(nowhere(&walk.text, &Nowhere::OptimizedOut)),
        },
        spot => (spot, None),
    };
    let size = match shown {
        Shown::Signed(bits) | Shown::Unsigned(bits) | Shown::Raw(bits) => bits,
        Shown::Char => 8,
        _ => 64,
    };
    if width.is_some_and(|width| width < u64::from(size) && shown != Shown::Chars) {
        return Err(nowhere(&walk.text, &Nowhere::Computed));
    }
    let word = match spot {
        Spot::Memory(base, offset) => Word::Memory(Box::new(base.clone()), *offset),
        Spot::Word(_) if shown == Shown::Chars => {
            return Err(nowhere(&walk.text, &Nowhere::Computed));
        }
        Spot::Word(word) => word.clone(),
        Spot::Pieces(_) => return Err(nowhere(&walk.text, &Nowhere::Computed)),
    };
    let Some((offset, width)) = walk.bits else {
        return Ok((word, shown));
    };
    let end = offset + width;
    let container = match (spot, size) {
        (Spot::Memory(..), size) if end <= u64::from(size) => size,
        _ if end <= 64 => 64,
        _ => return Err(nowhere(&walk.text, &Nowhere::Computed)),
    };
    let part = Shown::Bits {
        signed: matches!(shown, Shown::Signed(_)),
        width: width as u8,
        offset: offset as u8,
        container,
    };
    Ok((word, part))
}

fn listed(names: &[String]) -> String {
    let mut text = names[..names.len().min(NAMES)].join(", ");
    if names.len() > NAMES {
        text.push_str(", …");
    }
    text
}

/// Parses a variable's name and the steps to a part of it.
fn parse(text: &str) -> Result<(String, Vec<Step>), VariableError> {
    let wrong = || VariableError::Kind(format!("{text} is not the name of a variable"));
    let is_name = |c: char| c.is_alphanumeric() || c == '_';
    let mut rest = text;
    let end = rest
        .find(|c: char| !is_name(c) && c != ':')
        .unwrap_or(rest.len());
    let head = rest[..end].to_owned();
    rest = &rest[end..];
    let mut steps = Vec::new();
    while !rest.is_empty() {
        if let Some(index) = rest.strip_prefix('[') {
            let (index, after) = index.split_once(']').ok_or_else(wrong)?;
            let number = match index.strip_prefix("0x") {
                Some(digits) => i64::from_str_radix(digits, 16),
                None => index.parse(),
            };
            steps.push(Step::Index(number.map_err(|_| wrong())?));
            rest = after;
            continue;
        }
        let arrow = rest.starts_with("->");
        let name = rest.strip_prefix("->").or_else(|| rest.strip_prefix('.'));
        let name = name.ok_or_else(wrong)?;
        let end = name.find(|c| !is_name(c)).unwrap_or(name.len());
        let (member, after) = name.split_at(end);
        steps.push(match arrow {
            true => Step::Arrow(member.to_owned()),
            false => Step::Dot(member.to_owned()),
        });
        rest = after;
    }
    Ok((head, steps))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_followed_step_by_step() {
        let dot = |name: &str| Step::Dot(name.to_owned());
        let arrow = |name: &str| Step::Arrow(name.to_owned());
        let parsed = |text: &str| parse(text).unwrap();
        assert_eq!(parsed("count"), ("count".to_owned(), vec![]));
        assert_eq!(parsed("ns::total"), ("ns::total".to_owned(), vec![]));
        assert_eq!(
            parsed("p->x[3].y"),
            ("p".to_owned(), vec![arrow("x"), Step::Index(3), dot("y")])
        );
        assert!(parse("p->x[y]").is_err());
        assert!(parse("p+1").is_err());
    }
}
