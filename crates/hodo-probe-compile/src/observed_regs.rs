//! The registers that probes look at. Our code before a probe must not use them, even if the program no longer needs
//! their values.

use hodo_codegen::native::detour::Source;
use hodo_probe_syntax::{Action, Definition, Location, Source as Fetched};

use super::Probes;
use super::variables::has_variables;
use crate::arch::{self, Machine};
use hodo_module::Image;

impl Probes {
    /// Those that probes of a file look at, as far as the definitions alone tell.
    pub fn looked_at(&self, image: &Image) -> u32 {
        if self.has_events(image) {
            return ALL;
        }
        let definitions = self.definitions.iter();
        let own = definitions.filter(|definition| self.is_in(definition, &image.path));
        own.fold(0, |all, definition| {
            all | match definition.place {
                // It has arguments of its own.
                Location::Usdt { .. } => ALL,
                _ => looked_at(definition, arch::of_image(image)),
            }
        })
    }
}

const ALL: u32 = u32::MAX;

/// Those of a definition, as bits by their numbers; all if it has variables whose places are not known yet.
pub(super) fn looked_at(definition: &Definition, machine: &Machine) -> u32 {
    if has_variables(definition) {
        return ALL;
    }
    let sources = definition.args.iter().map(|arg| of(&arg.source, machine));
    let actions = definition.actions.iter().map(|action| match action {
        Action::StackTrace => {
            let registers = machine.isa.stack_trace_registers();
            bits(registers.iter().copied())
        }
        _ => 0,
    });
    sources.chain(actions).fold(0, |all, of| all | of)
}

fn bits(registers: impl IntoIterator<Item = u8>) -> u32 {
    let registers = registers.into_iter();
    registers.fold(0, |all, register| all | 1 << register)
}

fn of(source: &Fetched, machine: &Machine) -> u32 {
    match source {
        Fetched::Register(register) => match (machine.fetched)(*register) {
            Some((Source::Register(number), _)) => 1 << number,
            _ => 0,
        },
        Fetched::Argument(number) => {
            let register = machine.arguments.get(usize::from(*number).wrapping_sub(1));
            register.map_or(0, |register| 1 << register)
        }
        Fetched::Memory { address, .. } => of(address, machine),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_definitions_look_at() {
        let parsed = |text: &str| hodo_probe_syntax::parse(text).expect("a definition");
        let looked = |text: &str| looked_at(&parsed(text), arch::NATIVE);
        let argument = |number: usize| 1u32 << arch::NATIVE.arguments[number - 1];
        assert_eq!(looked("p prog:f count"), 0);
        assert_eq!(looked("p prog:f $comm \\5 $stack0"), 0);
        assert_eq!(
            looked("p prog:f $arg1 x=+8(+4($arg3)):string"),
            argument(1) | argument(3)
        );
        // It is on the stack.
        assert_eq!(looked("p prog:f $arg20"), 0);
        // For variables, nobody has looked yet.
        assert_eq!(looked("p prog:f name->first"), ALL);
        let registers = hodo_abi::Isa::NATIVE.stack_trace_registers();
        let all = looked("p prog:f $arg2 stacktrace");
        assert_eq!(all, argument(2) | bits(registers.iter().copied()));
    }
}
