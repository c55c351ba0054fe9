//! What of probes depends on the processor: its registers, where functions get their arguments, and how compilers write
//! operands.

mod aarch64;
mod riscv64;
mod x86_64;

use hodo_abi::Isa;
use hodo_codegen::detour::Source;
use hodo_isa::InstructionSet;
use hodo_module::Image;
use hodo_probe_syntax::Register;
use hodo_probe_syntax::registers::Set;

/// An operand as compilers write it into the notes of USDT probes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operand<'a> {
    /// By its name.
    Register(&'a str),
    /// As it is written.
    Number(&'a str),
    /// In memory: what is added to a register, and that one's name. To the program counter a symbol is added.
    Memory(&'a str, &'a str),
}

/// Where a register's value comes from, and which bits of it count: the lowest, and how many.
pub type Fetched = (Source, (u32, u32));

/// A processor, as definitions see it.
pub struct Machine {
    /// Its instruction set.
    pub isa: Isa,
    /// The registers that definitions can name.
    pub names: Set,
    /// The general registers by the processor's numbers.
    pub registers: &'static [&'static str],
    /// Whether programs can read which processor they run on, without the kernel.
    pub tells_cpu: bool,
    /// Whether plans know which functions leave the flags alone. Callers may expect them to stay then, so that they are
    /// needed from the beginning of such a function to its return.
    pub knows_kept_flags: bool,
    /// The stack pointer, by number.
    pub stack_pointer: u8,
    /// Where functions return a value, by number.
    pub return_value: u8,
    /// Registers of the first arguments.
    pub arguments: &'static [u8],
    /// The word of the stack with the first argument that is not in a register, when a function is entered.
    pub stack_arguments: usize,
    /// Registers of the arguments of system calls.
    pub call_arguments: [&'static str; 6],
    /// The register with the result of a system call. The kernel preserves those of the other arguments.
    pub call_result: &'static str,
    /// The address of the instruction, as a register.
    pub program_counter: &'static str,
    /// Reads an operand in the syntax of compilers. None: one that cannot be fetched.
    pub operand: fn(&str) -> Option<Operand<'_>>,
    /// How a register is fetched. None: it is another processor's.
    pub fetched: fn(Register) -> Option<Fetched>,
}

impl std::fmt::Debug for Machine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.isa.name())
    }
}

/// The processor that this is built for.
pub static NATIVE: &Machine = of(Isa::NATIVE);

/// The processor of an instruction set.
#[must_use]
pub const fn of(isa: Isa) -> &'static Machine {
    match isa {
        Isa::X86_64 => &x86_64::MACHINE,
        Isa::Riscv64 => &riscv64::MACHINE,
        Isa::Aarch64 => &aarch64::MACHINE,
    }
}

/// The processor of a file; this one for files of unknown ones, whose code cannot be read.
#[must_use]
pub fn of_image(image: &Image) -> &'static Machine {
    of(image.isa().unwrap_or(Isa::NATIVE))
}

/// What reads the code of a file.
#[must_use]
pub fn reader(image: &Image) -> &'static dyn InstructionSet {
    let isa = image.isa().and_then(hodo_isa::instruction_set);
    isa.unwrap_or(hodo_isa::NATIVE)
}
