//! Variables of the source: from names to registers and memory at a probe's instruction.

use std::collections::HashSet;

use anyhow::{Result, anyhow, bail};
use hodo_probe_syntax::{
    Container, Definition, FetchArg, ProbeKind, Register, Scalar, Source, Type,
};
use hodo_symbols::{Frames, Shown, Tracepoint, Usdt, Variable, VariableError, Word};

use super::events::fetched;
use super::usdt::{arguments, number_of};

use super::values::possible;
use crate::arch::{self, Machine};
use hodo_module::Image;

/// All parameters of the function, and all variables that are visible.
const ALL: [(&str, bool); 2] = [("$params", false), ("$vars", true)];

/// Whether a definition fetches variables.
pub(super) fn has_variables(definition: &Definition) -> bool {
    (definition.args.iter()).any(|arg| matches!(innermost(&arg.source), Source::Variable(_)))
}

fn innermost(source: &Source) -> &Source {
    match source {
        Source::Memory { address, .. } => innermost(address),
        source => source,
    }
}

/// A definition with registers and memory in place of its variables, for the instruction at `pc`.
///
/// # Errors
/// If there is no debugging information, or a variable cannot be fetched there.
/// `note` is that of the USDT probe there.
pub(super) fn resolved(
    definition: &Definition,
    image: &Image,
    pc: u64,
    note: Option<&Usdt>,
) -> Result<Definition> {
    if definition.kind == ProbeKind::Return {
        bail!("variables cannot be fetched when a function returns; only $retval can");
    }
    let distance = |name: &str| {
        let at = image.only_symbol(name)?;
        Some(at.wrapping_sub(pc).cast_signed())
    };
    let machine = arch::of_image(image);
    let mut resolver = Resolver {
        image,
        machine,
        frames: image.frames(),
        pc,
        arguments: note.map_or_else(Vec::new, |note| {
            arguments(&note.arguments, machine, &distance)
        }),
        names: Vec::new(),
    };
    let tracepoint = note.and_then(|note| note.tracepoint.as_ref());
    if let Some(tracepoint) = tracepoint {
        resolver.take_names(tracepoint);
    }
    let mut resolved = definition.clone();
    if note.is_some() && resolved.args.is_empty() {
        let names = match tracepoint {
            Some(_) => resolver.names.clone(),
            None => (1..=resolver.arguments.len())
                .map(|number| format!("arg{number}"))
                .collect(),
        };
        resolved.args = names
            .into_iter()
            .map(|name| resolver.one_of_all(name))
            .collect();
    }
    let mut more = Vec::new();
    let names = definition.args.iter().map(|arg| arg.name.clone());
    let mut known: HashSet<String> = names.collect();
    for arg in &mut resolved.args {
        let all = match &arg.source {
            Source::Variable(name) => ALL.iter().find(|all| all.0 == name),
            _ => None,
        };
        let Some((_, locals)) = all else {
            let (source, ty) = resolver.source(&arg.source, arg.ty)?;
            (arg.source, arg.ty) = (source, Some(ty));
            continue;
        };
        if arg.ty.is_some() {
            bail!("{} takes no type", all.map_or("", |all| all.0));
        }
        let debug = image.debug().map_err(|error| anyhow!("{error}"))?;
        let names = debug.names(pc, *locals);
        let names = names.into_iter().filter(|name| known.insert(name.clone()));
        let mut args = names.map(|name| resolver.one_of_all(name));
        // Conditions name arguments by their numbers: the others keep theirs.
        *arg = args.next().unwrap_or_else(|| FetchArg {
            name: arg.name.clone(),
            source: Source::Text("<none>".to_owned()),
            ty: None,
        });
        more.extend(args);
    }
    resolved.args.extend(more);
    possible(&resolved, machine)?;
    Ok(resolved)
}

struct Resolver<'a> {
    image: &'a Image,
    machine: &'static Machine,
    frames: &'a Frames,
    pc: u64,
    /// Those of a USDT probe, by their numbers from 0.
    arguments: Vec<Option<(Source, Type)>>,
    /// Of a tracepoint, the names of its arguments.
    names: Vec<String>,
}

impl Resolver<'_> {
    fn variable(&self, name: &str) -> Result<Result<Variable, VariableError>> {
        let debug = self.image.debug().map_err(|error| anyhow!("{error}"))?;
        Ok(debug.variable(name, self.pc, self.frames))
    }

    /// Calls and shows the arguments as a tracepoint does.
    fn take_names(&mut self, tracepoint: &Tracepoint) {
        for (own, argument) in self.arguments.iter_mut().zip(&tracepoint.arguments) {
            *own = (own.take()).map(|(source, ty)| fetched(source, ty, &argument.ty));
        }
        let arguments = tracepoint.arguments.iter();
        self.names = arguments.map(|argument| argument.name.clone()).collect();
    }

    /// One of many, which cannot all be fetched.
    fn one_of_all(&self, name: String) -> FetchArg {
        let variable = Source::Variable(name.clone());
        let (source, ty) = match self.source(&variable, None) {
            Ok((source, ty)) => (source, Some(ty)),
            Err(error) => {
                let text = match error.downcast_ref() {
                    Some(VariableError::Nowhere { reason, .. }) => format!("<{reason}>"),
                    _ => "{…}".to_owned(),
                };
                (Source::Text(text), None)
            }
        };
        FetchArg { name, source, ty }
    }

    /// A source without variables, and its type.
    fn source(&self, source: &Source, ty: Option<Type>) -> Result<(Source, Type)> {
        match source {
            Source::Variable(name) if self.argument(name).is_some() => {
                match self.argument(name).flatten() {
                    Some((address, own))
                        if ty == Some(Type::Scalar(Scalar::String)) && ty != Some(own) =>
                    {
                        let address = Box::new(address);
                        Ok((
                            Source::Memory { offset: 0, address },
                            Type::Scalar(Scalar::String),
                        ))
                    }
                    Some((source, own)) => Ok((source, ty.unwrap_or(own))),
                    None => Err(anyhow!(VariableError::Nowhere {
                        name: name.clone(),
                        reason: "computed of several registers or of a symbol that is not known, which is not supported",
                    })),
                }
            }
            Source::Variable(name) if number_of(name, "$arg").is_some() => {
                let all = self.arguments.len();
                bail!("there is no {name}: the USDT probe has {}", many(all))
            }
            Source::Variable(name) => {
                let variable = self.variable(name)??;
                let source = self.word_source(name, &variable.word)?;
                typed(name, source, variable.shown, ty)
            }
            Source::Memory { offset, address } => {
                let argument =
                    matches!(&**address, Source::Variable(name) if self.argument(name).is_some());
                let address = match self.source(address, None)? {
                    // A string that is an argument is shown as one, and used as its address.
                    (Source::Memory { offset: 0, address }, Type::Scalar(Scalar::String))
                        if argument =>
                    {
                        address
                    }
                    (address, _) => Box::new(address),
                };
                let source = Source::Memory {
                    offset: *offset,
                    address,
                };
                Ok((source, ty.unwrap_or(Type::Scalar(Scalar::X(64)))))
            }
            source => {
                let arg = FetchArg {
                    name: String::new(),
                    source: source.clone(),
                    ty,
                };
                let ty = arg.effective_type();
                Ok((arg.source, ty.unwrap_or(Type::Scalar(Scalar::X(64)))))
            }
        }
    }

    /// The argument of a USDT probe that a name means; within, whether it can be fetched.
    fn argument(&self, name: &str) -> Option<Option<(Source, Type)>> {
        if let Some(index) = self.names.iter().position(|own| own == name) {
            return Some(self.arguments.get(index).cloned().flatten());
        }
        let number = number_of(name, "$arg").or_else(|| number_of(name, "arg"))?;
        self.arguments.get(number).cloned()
    }

    fn word_source(&self, name: &str, word: &Word) -> Result<Source> {
        let register = |name: &str| {
            let register = Register::named_in(self.machine.names, name).map(Source::Register);
            register.ok_or_else(|| anyhow!("there is no register {name}"))
        };
        Ok(match word {
            Word::Register(number) => register(
                self.machine
                    .registers
                    .get(usize::from(*number))
                    .unwrap_or(&""),
            )?,
            Word::Number(number) => Source::Immediate(number.cast_signed()),
            Word::Address(_) => bail!("{name} is an address that is not in memory"),
            Word::Memory(base, offset) => match &**base {
                // The file's parts are always as far from each other as in the file.
                Word::Address(at) => Source::Memory {
                    offset: at.wrapping_sub(self.pc).cast_signed().wrapping_add(*offset),
                    address: Box::new(register(self.machine.program_counter)?),
                },
                base => Source::Memory {
                    offset: *offset,
                    address: Box::new(self.word_source(name, base)?),
                },
            },
        })
    }
}

/// So many arguments.
fn many(arguments: usize) -> String {
    match arguments {
        0 => "no arguments".to_owned(),
        1 => "one argument".to_owned(),
        many => format!("{many} arguments"),
    }
}

/// The source and type of a variable: as the user wants it, or as its own type says.
fn typed(name: &str, source: Source, shown: Shown, ty: Option<Type>) -> Result<(Source, Type)> {
    let string = Type::Scalar(Scalar::String);
    if ty == Some(string) {
        return match shown {
            Shown::CharPointer | Shown::Pointer => {
                let address = Box::new(source);
                Ok((Source::Memory { offset: 0, address }, string))
            }
            Shown::Chars => Ok((source, string)),
            _ => bail!("{name} is no string"),
        };
    }
    let own = match shown {
        Shown::Signed(bits) => Type::Scalar(Scalar::S(bits)),
        Shown::Unsigned(bits) => Type::Scalar(Scalar::U(bits)),
        Shown::Raw(bits) => Type::Scalar(Scalar::X(bits)),
        Shown::Char => Type::Scalar(Scalar::Char),
        Shown::Pointer | Shown::CharPointer => Type::Scalar(Scalar::X(64)),
        Shown::Chars => string,
        Shown::Bits {
            signed,
            width,
            offset,
            container,
        } => {
            let container = match container {
                8 => Container::Bits8,
                16 => Container::Bits16,
                32 => Container::Bits32,
                _ => Container::Bits64,
            };
            let bits = Type::Bitfield {
                signed,
                width,
                offset,
                container,
            };
            return Ok((source, bits));
        }
    };
    Ok((source, ty.unwrap_or(own)))
}
