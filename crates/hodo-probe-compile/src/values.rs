//! The values of events: which can be fetched, and how.

use anyhow::{Result, bail};
use hodo_codegen::native::detour::{Fetch, MOST_VALUES, MOST_WORDS, Source as From, fault_words};
use hodo_probe_syntax::{Definition, FetchArg, ProbeKind, Scalar, Source, Type};
use hodo_trace::format::{SHADOW_DISTANCE, tcb};
use serde_json::{Value, json};

use super::conditions::{Known, bits};
use crate::arch::Machine;

/// Refuses what cannot be done yet.
pub(super) fn possible(definition: &Definition, machine: &Machine) -> Result<()> {
    const MOST: u32 = (MOST_WORDS as u32 - 2) * 8;
    for action in &definition.actions {
        if matches!(action, hodo_probe_syntax::Action::Snapshot(bytes) if *bytes > MOST) {
            bail!("snapshot: {MOST} bytes can be kept at most");
        }
    }
    for arg in &definition.args {
        let name = &arg.name;
        match arg.effective_type() {
            Some(Type::Scalar(Scalar::String)) if !arg.source.is_memory() => {
                if !matches!(arg.source, Source::Comm | Source::Text(_)) {
                    bail!(
                        "{name} is not a string in memory: write +0({name_source}):string",
                        name_source = "…"
                    );
                }
            }
            // Of a variable, the debugging information tells it.
            Some(_) | None => {}
        }
        let mut source = &arg.source;
        while let Source::Memory { address, .. } = source {
            source = address;
        }
        if let Source::Register(register) = source
            && (machine.fetched)(*register).is_none()
        {
            bail!("{register} is a register of another processor");
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

impl Fetched {
    /// Adds an argument. `word`: how many words the event has so far.
    fn add(
        &mut self,
        arg: &FetchArg,
        (machine, near): (&Machine, &dyn Fn(u64) -> Option<i64>),
        word: &mut usize,
    ) -> Result<()> {
        let ty = arg.effective_type().unwrap_or(Type::Scalar(Scalar::X(64)));
        let mut part = (0, 64);
        let mut text = json!({"name": arg.name, "type": ty.to_string()});
        let number = self.values.len();
        let from = Sources {
            machine,
            near,
            name: &arg.name,
        };
        match &arg.source {
            Source::Text(fixed) => {
                text["text"] = fixed.as_str().into();
                self.known.push(Known::Fixed(fixed.clone().into_bytes()));
            }
            Source::Immediate(number) => {
                text["number"] = number.cast_unsigned().into();
                self.known.push(Known::Number(number.cast_unsigned()));
            }
            Source::Comm => {
                text["comm"] = true.into();
                self.known.push(Known::Comm);
                self.values.push(Fetch::Thread(tcb::COMM as u32, 2));
            }
            source if source.is_memory() => self.add_memory(from.address(source)?, ty, part),
            source => {
                self.values
                    .push(Fetch::Word(from.value(source, &mut part)?));
                self.known.push(Known::Value(number, bits(ty, part)));
            }
        }
        if self.values.len() > number {
            text["word"] = (*word).into();
            text["value"] = number.into();
            text["shift"] = part.0.into();
            text["bits"] = part.1.into();
            *word += self.values[number..]
                .iter()
                .map(Fetch::words)
                .sum::<usize>();
        }
        self.types.push(ty);
        self.described.push(text);
        Ok(())
    }

    /// Adds what is in memory at a distance from an address.
    fn add_memory(&mut self, (address, offset): (From, i32), ty: Type, part: (u32, u32)) {
        let number = self.values.len();
        match ty {
            Type::Scalar(Scalar::String) => {
                self.known.push(Known::Text(number));
                self.values.push(Fetch::Text(address, offset));
            }
            Type::Array(Scalar::String, count) => {
                self.known.push(Known::Array);
                for index in 0..i32::from(count) {
                    let pointer = From::Plus(address.clone().into(), offset.into());
                    let pointer = From::Memory(Box::new(pointer), index * 8);
                    self.values.push(Fetch::Text(pointer, 0));
                }
            }
            Type::Array(_, count) => {
                self.known.push(Known::Array);
                let bytes = u32::from(count) * u32::from(bytes_of(ty));
                self.values.push(Fetch::Bytes(address, offset, bytes));
            }
            ty => {
                self.known.push(Known::Value(number, bits(ty, part)));
                self.values.push(Fetch::Load(address, offset, bytes_of(ty)));
            }
        }
    }
}

/// What is fetched at a hit, and what that means. `near` returns how far the memory to which a byte of the file is
/// mapped is from the probed instruction.
pub(super) fn fetches(
    definition: &Definition,
    machine: &Machine,
    near: &dyn Fn(u64) -> Option<i64>,
) -> Result<Fetched> {
    let mut fetched = Fetched::default();
    let mut word = 0;
    for arg in &definition.args {
        fetched.add(arg, (machine, near), &mut word)?;
    }
    let values = &mut fetched.values;
    if definition.kind == ProbeKind::Return {
        for fetch in values.iter_mut() {
            returned(fetch);
        }
        fetched.caller = Some(word);
        word += 1;
        values.push(Fetch::Word(From::Caller(SHADOW_DISTANCE)));
    }
    let faults = fault_words(values.len());
    if values.len() > MOST_VALUES || word + faults > MOST_WORDS {
        bail!(
            "the values are too large for one event: {} values with {} bytes; {MOST_VALUES} and {} can be",
            values.len(),
            word * 8,
            (MOST_WORDS - faults) * 8
        );
    }
    for text in fetched.described.iter_mut().filter(|_| faults > 0) {
        if let Some(word) = text["word"].as_u64() {
            text["word"] = (word + faults as u64).into();
        }
    }
    if let Some(word) = &mut fetched.caller {
        *word += faults;
    }
    Ok(fetched)
}

/// A fetch when a function has returned: the next instruction is the caller's.
pub(super) fn returned(fetch: &mut Fetch) {
    let mut source = match fetch {
        Fetch::Word(source)
        | Fetch::Load(source, ..)
        | Fetch::Text(source, _)
        | Fetch::Bytes(source, ..) => source,
        Fetch::Thread(..) | Fetch::Stack => return,
    };
    loop {
        match source {
            From::Here => {
                *source = From::Caller(SHADOW_DISTANCE);
                return;
            }
            From::Memory(base, _) | From::Plus(base, _) => source = base,
            _ => return,
        }
    }
}

fn bytes_of(ty: Type) -> u8 {
    match ty {
        Type::Scalar(scalar) | Type::Array(scalar, _) => scalar.bits().unwrap_or(64) / 8,
        Type::Bitfield { container, .. } => container.bits() / 8,
    }
}

/// Makes sources for detours.
struct Sources<'a> {
    machine: &'a Machine,
    near: &'a dyn Fn(u64) -> Option<i64>,
    name: &'a str,
}

impl Sources<'_> {
    /// A value. `part` becomes the bits that count, if it is a part of a register.
    fn value(&self, source: &Source, part: &mut (u32, u32)) -> Result<From> {
        let machine = self.machine;
        let top = || Box::new(From::Register(machine.stack_pointer));
        let stack = |entry: usize| From::Memory(top(), entry as i32 * 8);
        Ok(match source {
            Source::Register(register) => {
                let Some((from, bits)) = (machine.fetched)(*register) else {
                    bail!("{register} is a register of another processor");
                };
                *part = bits;
                from
            }
            Source::Argument(number) => match machine.arguments.get(usize::from(*number) - 1) {
                Some(register) => From::Register(*register),
                None => {
                    let number = usize::from(*number) - 1 - machine.arguments.len();
                    stack(machine.stack_arguments + number)
                }
            },
            Source::ReturnValue => From::Register(machine.return_value),
            Source::Stack(entry) => stack(usize::from(*entry)),
            Source::Immediate(number) => From::Number(number.cast_unsigned()),
            source if source.is_memory() => {
                let (address, offset) = self.address(source)?;
                From::Memory(Box::new(address), offset)
            }
            _ => From::Register(machine.stack_pointer),
        })
    }

    /// Where something in memory is.
    fn address(&self, source: &Source) -> Result<(From, i32)> {
        Ok(match source {
            Source::Memory { offset, address } => {
                // What an address is computed of is taken whole, but parts of registers.
                let mut part = (0, 64);
                let address = self.value(address, &mut part)?;
                if part != (0, 64) {
                    bail!("{}: only a whole register is an address", self.name);
                }
                match i32::try_from(*offset) {
                    Ok(offset) => (address, offset),
                    Err(_) => (From::Plus(Box::new(address), *offset), 0),
                }
            }
            Source::Address(at) => (From::Number(*at), 0),
            Source::FileOffset(offset) => match (self.near)(*offset) {
                Some(distance) => (From::Near(distance), 0),
                None => bail!(
                    "{}: no byte {offset:#x} of the file is in memory",
                    self.name
                ),
            },
            _ => bail!("the variable {} has no place in memory", self.name),
        })
    }
}
