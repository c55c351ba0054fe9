//! From a stack that was kept to the callers on it, by the unwind tables of the files that they are in.

use gimli::{
    BaseAddresses, CfaRule, EhFrame, EhFrameOffset, Encoding, EndianSlice, EvaluationResult,
    Expression, Format, LittleEndian, Location, Register, RegisterRule, UnwindContext,
    UnwindSection, Value,
};
use object::read::elf::ElfFile64;
use object::{Object, ObjectSection};

type Reader<'a> = EndianSlice<'a, LittleEndian>;

/// Registers in DWARF's numbering (System V ABI, x86-64 supplement, 3.6.2), as far as they are known; the last is the
/// address of the instruction.
pub type Registers = [Option<u64>; 17];

/// The number of the stack pointer.
pub const STACK_POINTER: usize = 7;
/// The number of the address of the instruction.
pub const INSTRUCTION: usize = 16;

/// The unwind tables of a file.
#[derive(Debug, Clone, Default)]
pub struct Unwinder {
    table: Vec<u8>,
    table_at: u64,
    text_at: u64,
    data_at: u64,
    /// Sorted by address: start, end, where the entry is.
    entries: Vec<(u64, u64, usize)>,
}

/// A caller.
#[derive(Debug, Clone, Copy)]
pub struct Caller {
    /// Its registers. The address is that to which the callee returns.
    pub registers: Registers,
    /// Whether it was interrupted there by a signal: the address is that of the next instruction, not behind a call.
    pub interrupted: bool,
}

impl Unwinder {
    /// Reads `.eh_frame` of a file; nothing, if there is none.
    #[must_use]
    pub fn new(bytes: &[u8]) -> Self {
        let Ok(elf) = ElfFile64::<object::LittleEndian>::parse(bytes) else {
            return Self::default();
        };
        let address = |name| {
            elf.section_by_name(name)
                .map_or(0, |section| section.address())
        };
        let Some(section) = elf.section_by_name(".eh_frame") else {
            return Self::default();
        };
        let mut unwinder = Self {
            table: section.uncompressed_data().unwrap_or_default().into_owned(),
            table_at: section.address(),
            text_at: address(".text"),
            data_at: address(".got"),
            entries: Vec::new(),
        };
        let table = unwinder.table();
        let bases = unwinder.bases();
        let mut entries = Vec::new();
        let mut all = table.entries(&bases);
        while let Ok(Some(entry)) = all.next() {
            let gimli::CieOrFde::Fde(partial) = entry else {
                continue;
            };
            let Ok(fde) = partial.parse(EhFrame::cie_from_offset) else {
                continue;
            };
            let start = fde.initial_address();
            entries.push((start, start.saturating_add(fde.len()), fde.offset()));
        }
        entries.sort_unstable();
        unwinder.entries = entries;
        unwinder
    }

    fn table(&self) -> EhFrame<Reader<'_>> {
        let mut table = EhFrame::new(&self.table, LittleEndian);
        table.set_address_size(8);
        table
    }

    fn bases(&self) -> BaseAddresses {
        BaseAddresses::default()
            .set_eh_frame(self.table_at)
            .set_text(self.text_at)
            .set_got(self.data_at)
    }

    /// The caller of the function that has `registers` at the link-time address `addr` (of an instruction, or, in a caller,
    /// inside of its call). `read` reads words of memory.
    #[must_use]
    pub fn caller(
        &self,
        addr: u64,
        registers: &Registers,
        read: &dyn Fn(u64) -> Option<u64>,
    ) -> Option<Caller> {
        let after = self.entries.partition_point(|entry| entry.0 <= addr);
        let &(_, end, offset) = self.entries.get(after.checked_sub(1)?)?;
        if addr >= end {
            return None;
        }
        let (table, bases) = (self.table(), self.bases());
        let fde = table
            .fde_from_offset(&bases, EhFrameOffset(offset), EhFrame::cie_from_offset)
            .ok()?;
        let mut context = UnwindContext::new();
        let row = fde
            .unwind_info_for_address(&table, &bases, &mut context, addr)
            .ok()?;
        let evaluate = |expression: Expression<Reader<'_>>, first: Option<u64>| {
            evaluate(expression, first, registers, read)
        };
        let cfa = match row.cfa() {
            CfaRule::RegisterAndOffset { register, offset } => {
                let register = *registers.get(usize::from(register.0))?;
                register?.wrapping_add_signed(*offset)
            }
            CfaRule::Expression(expression) => evaluate(expression.get(&table).ok()?, None)?,
        };
        let mut next = *registers;
        next[STACK_POINTER] = Some(cfa);
        // Without a rule there is no return address: the outermost frame.
        next[INSTRUCTION] = None;
        for (register, rule) in row.registers() {
            let Some(slot) = next.get_mut(usize::from(register.0)) else {
                continue;
            };
            *slot = match rule {
                RegisterRule::Undefined => None,
                RegisterRule::Offset(offset) => read(cfa.wrapping_add_signed(*offset)),
                RegisterRule::ValOffset(offset) => Some(cfa.wrapping_add_signed(*offset)),
                RegisterRule::Register(Register(other)) => {
                    registers.get(usize::from(*other)).copied().flatten()
                }
                RegisterRule::Expression(expression) => {
                    evaluate(expression.get(&table).ok()?, Some(cfa)).and_then(read)
                }
                RegisterRule::ValExpression(expression) => {
                    evaluate(expression.get(&table).ok()?, Some(cfa))
                }
                RegisterRule::Constant(constant) => Some(*constant),
                _ => *slot,
            };
        }
        Some(Caller {
            registers: next,
            interrupted: fde.cie().is_signal_trampoline(),
        })
    }
}

/// Steps of an expression, at most: those of real tables are short.
const STEPS: u32 = 1000;

fn evaluate(
    expression: Expression<Reader<'_>>,
    first: Option<u64>,
    registers: &Registers,
    read: &dyn Fn(u64) -> Option<u64>,
) -> Option<u64> {
    let encoding = Encoding {
        address_size: 8,
        format: Format::Dwarf32,
        version: 4,
    };
    let mut evaluation = expression.evaluation(encoding);
    evaluation.set_max_iterations(STEPS);
    if let Some(first) = first {
        evaluation.set_initial_value(first);
    }
    let mut state = evaluation.evaluate().ok()?;
    loop {
        state = match state {
            EvaluationResult::Complete => break,
            EvaluationResult::RequiresRegister { register, .. } => {
                let value = registers.get(usize::from(register.0)).copied().flatten()?;
                evaluation
                    .resume_with_register(Value::Generic(value))
                    .ok()?
            }
            EvaluationResult::RequiresMemory { address, size, .. } => {
                let word = read(address)?;
                let kept = match size {
                    8.. => word,
                    size => word & ((1 << (u32::from(size) * 8)) - 1),
                };
                evaluation.resume_with_memory(Value::Generic(kept)).ok()?
            }
            _ => return None,
        };
    }
    match evaluation.as_result().first()?.location {
        Location::Address { address } => Some(address),
        Location::Value {
            value: Value::Generic(value),
        } => Some(value),
        _ => None,
    }
}
