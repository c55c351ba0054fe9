//! The values of events: which can be fetched, and how.

use anyhow::{Result, bail};
use hodo_arch::x86_64::detour::{Fetch, Source as From};
use hodo_probe::registers::{Register, x86_64::Part, x86_64::Whole};
use hodo_probe::{Definition, Kind, Scalar, Source, Type};
use hodo_trace::format::SHADOW_DISTANCE;
use serde_json::{Value, json};

use super::conditions::{Known, bits};

/// Registers of the arguments, in the processor's numbering (System V ABI, x86-64 supplement, 3.2.3).
const ARGUMENTS: [u8; 6] = [7, 6, 2, 1, 8, 9];

/// Refuses what cannot be done yet.
pub(super) fn possible(definition: &Definition) -> Result<()> {
    for action in &definition.actions {
        if !matches!(
            action,
            hodo_probe::Action::Print | hodo_probe::Action::Count
        ) {
            bail!("of the actions only print and count are supported yet");
        }
    }
    for arg in &definition.args {
        let name = &arg.name;
        match arg.effective_type() {
            Some(Type::Array(..)) => bail!("arrays are not supported yet ({name})"),
            None => bail!("variables are not supported yet ({name}); name a register"),
            Some(Type::Scalar(Scalar::String)) if !arg.source.is_memory() => {
                if !matches!(arg.source, Source::Comm | Source::Text(_)) {
                    bail!(
                        "{name} is no string in memory: write +0({name_source}):string",
                        name_source = "…"
                    );
                }
            }
            Some(_) => {}
        }
        let mut source = &arg.source;
        while let Source::Memory { address, offset } = source {
            if i32::try_from(*offset).is_err() {
                bail!("the offset {offset:#x} of {name} is out of range");
            }
            source = address;
        }
        match source {
            Source::Register(Register::X86_64(register))
                if !matches!(register.whole, Whole::Flags | Whole::Cs | Whole::Ss) => {}
            Source::Register(register) => bail!("the register {register} is not supported yet"),
            Source::FileOffset(_) => bail!("@+OFFSET is not supported yet ({name})"),
            Source::Argument(number) if usize::from(*number) > ARGUMENTS.len() => {
                bail!("${name} is on the stack: write +8($stack) for the seventh argument");
            }
            _ => {}
        }
    }
    Ok(())
}

/// What a definition fetches.
#[derive(Debug, Default)]
pub(super) struct Fetched {
    /// What is fetched at a hit.
    pub(super) values: Vec<Fetch>,
    /// How a reader makes the arguments of it.
    pub(super) described: Vec<Value>,
    /// What each argument is in a condition.
    pub(super) known: Vec<Known>,
    /// The type of each argument.
    pub(super) types: Vec<Type>,
    /// Of a return probe: the word that has where the function returns to.
    pub(super) caller: Option<usize>,
}

/// What is fetched at a hit, and what that means.
pub(super) fn fetches(definition: &Definition) -> Fetched {
    let mut fetched = Fetched::default();
    let Fetched {
        values,
        described,
        known,
        types,
        caller,
    } = &mut fetched;
    let mut word = 0;
    for arg in &definition.args {
        let ty = arg.effective_type().unwrap_or(Type::Scalar(Scalar::X(64)));
        let mut part = (0, 64);
        let mut text = json!({"name": arg.name, "type": ty.to_string()});
        match &arg.source {
            Source::Comm => {
                text["comm"] = true.into();
                known.push(Known::Comm);
            }
            Source::Text(fixed) => {
                text["text"] = fixed.as_str().into();
                known.push(Known::Fixed(fixed.clone().into_bytes()));
            }
            Source::Immediate(number) => {
                text["number"] = number.cast_unsigned().into();
                known.push(Known::Number(number.cast_unsigned()));
            }
            source => {
                let fetch = match (source, ty) {
                    (Source::Memory { offset, address }, Type::Scalar(Scalar::String)) => {
                        Fetch::Text(from(address, &mut (0, 64)), *offset as i32)
                    }
                    (Source::Address(at), Type::Scalar(Scalar::String)) => {
                        Fetch::Text(From::Number(*at), 0)
                    }
                    (Source::Memory { offset, address }, ty) => {
                        Fetch::Load(from(address, &mut (0, 64)), *offset as i32, bytes_of(ty))
                    }
                    (Source::Address(at), ty) => Fetch::Load(From::Number(*at), 0, bytes_of(ty)),
                    (source, _) => Fetch::Word(from(source, &mut part)),
                };
                let fetch = match definition.kind {
                    Kind::Entry => fetch,
                    Kind::Return => returned(fetch),
                };
                text["word"] = word.into();
                text["value"] = values.len().into();
                text["shift"] = part.0.into();
                text["bits"] = part.1.into();
                known.push(match fetch {
                    Fetch::Text(..) => Known::Text(values.len()),
                    _ => Known::Value(values.len(), bits(ty, part)),
                });
                word += fetch.words();
                values.push(fetch);
            }
        }
        types.push(ty);
        described.push(text);
    }
    if definition.kind == Kind::Return {
        *caller = Some(word);
        values.push(Fetch::Word(From::Caller(SHADOW_DISTANCE)));
    }
    fetched
}

/// A fetch when a function has returned: the next instruction is the caller's.
fn returned(fetch: Fetch) -> Fetch {
    fn source(from: From) -> From {
        match from {
            From::Here => From::Caller(SHADOW_DISTANCE),
            From::Memory(base, offset) => From::Memory(Box::new(source(*base)), offset),
            other => other,
        }
    }
    match fetch {
        Fetch::Word(from) => Fetch::Word(source(from)),
        Fetch::Load(from, offset, size) => Fetch::Load(source(from), offset, size),
        Fetch::Text(from, offset) => Fetch::Text(source(from), offset),
    }
}

fn bytes_of(ty: Type) -> u8 {
    match ty {
        Type::Scalar(scalar) | Type::Array(scalar, _) => scalar.bits().unwrap_or(64) / 8,
        Type::Bitfield { container, .. } => container.bits() / 8,
    }
}

/// A source as a detour evaluates it. `part` becomes the bits that count, if it is a part of a register.
fn from(source: &Source, part: &mut (u32, u32)) -> From {
    const STACK_POINTER: u8 = Whole::Rsp as u8;
    match source {
        Source::Register(Register::X86_64(register)) => {
            *part = match register.part {
                Part::All => (0, 64),
                other => (other.shift(), other.bits()),
            };
            match register.whole {
                Whole::Rip => From::Here,
                whole => From::Register(whole as u8),
            }
        }
        Source::Argument(number) => From::Register(ARGUMENTS[usize::from(*number) - 1]),
        Source::ReturnValue => From::Register(0),
        Source::Stack(number) => From::Memory(
            Box::new(From::Register(STACK_POINTER)),
            i32::from(*number) * 8,
        ),
        Source::Memory { offset, address } => {
            From::Memory(Box::new(from(address, &mut (0, 64))), *offset as i32)
        }
        Source::Address(at) => From::Memory(Box::new(From::Number(*at)), 0),
        Source::Immediate(number) => From::Number(number.cast_unsigned()),
        _ => From::Register(STACK_POINTER),
    }
}
