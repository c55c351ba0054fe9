//! From a recorded stack to its callers, by the unwind tables of their files.

use gimli::{
    BaseAddresses, CallFrameInstruction, CfaRule, DebugFrame, DebugFrameOffset, EhFrame,
    EhFrameOffset, Encoding, EndianSlice, EvaluationResult, Expression, Format,
    FrameDescriptionEntry, LittleEndian, Location, Register, RegisterRule, UnwindContext,
    UnwindOffset, UnwindSection, Value,
};
use hodo_abi::Isa;
use object::read::elf::ElfFile64;
use object::{Object, ObjectSection};

use crate::abi;

type Reader<'a> = EndianSlice<'a, LittleEndian>;

/// The numbers that registers can have here. The others are those of vectors, which no rule for a frame needs.
const COLUMNS: usize = 65;

/// Registers in DWARF's numbering, as far as they are known, and the address of the instruction.
#[derive(Debug, Clone, Copy)]
pub struct Registers {
    isa: Isa,
    known: [Option<u64>; COLUMNS],
}

impl Registers {
    /// Nothing is known.
    #[must_use]
    pub fn new(isa: Isa) -> Self {
        let known = [None; COLUMNS];
        Self { isa, known }
    }

    /// Whose they are.
    #[must_use]
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// The value of a general register is known. `register` is the processor's number.
    pub fn set(&mut self, register: u8, value: u64) {
        if let Some(column) = abi::numbers(self.isa).column(register) {
            self.put(column, Some(value));
        }
    }

    /// The address of the instruction is known, or not.
    pub fn set_instruction(&mut self, addr: Option<u64>) {
        self.put(abi::numbers(self.isa).instruction, addr);
    }

    /// The address of the instruction.
    #[must_use]
    pub fn instruction(&self) -> Option<u64> {
        self.get(abi::numbers(self.isa).instruction)
    }

    /// The stack pointer.
    #[must_use]
    pub fn stack_pointer(&self) -> Option<u64> {
        self.get(self.stack_column())
    }

    fn stack_column(&self) -> u16 {
        let numbers = abi::numbers(self.isa);
        numbers.column(numbers.stack).unwrap_or_default()
    }

    fn get(&self, column: u16) -> Option<u64> {
        self.known.get(usize::from(column)).copied().flatten()
    }

    fn put(&mut self, column: u16, value: Option<u64>) {
        if let Some(known) = self.known.get_mut(usize::from(column)) {
            *known = value;
        }
    }
}

/// The unwind tables of a file.
#[derive(Debug, Clone, Default)]
pub struct Unwinder {
    /// `.eh_frame`
    loaded: Entries,
    /// `.debug_frame`: programs that need no unwind tables have them only for debuggers.
    debug: Entries,
    table_at: u64,
    text_at: u64,
    data_at: u64,
    isa: Option<Isa>,
}

/// A section with an unwind table.
#[derive(Debug, Clone, Default)]
struct Entries {
    data: Vec<u8>,
    /// Sorted by address: start, end, where the entry is.
    all: Vec<(u64, u64, usize)>,
}

impl Entries {
    fn find(&self, addr: u64) -> Option<usize> {
        let after = self.all.partition_point(|entry| entry.0 <= addr);
        let &(_, end, offset) = self.all.get(after.checked_sub(1)?)?;
        (addr < end).then_some(offset)
    }

    /// Of `.eh_frame`.
    fn loaded(&self) -> EhFrame<Reader<'_>> {
        let mut table = EhFrame::new(&self.data, LittleEndian);
        table.set_address_size(8);
        table
    }

    /// Of `.debug_frame`.
    fn debug(&self) -> DebugFrame<Reader<'_>> {
        let mut table = DebugFrame::new(&self.data, LittleEndian);
        table.set_address_size(8);
        table
    }
}

/// Start, end and place of all entries of a table, sorted.
fn entries<'a, S>(table: &S, bases: &BaseAddresses) -> Vec<(u64, u64, usize)>
where
    S: UnwindSection<Reader<'a>, Offset: UnwindOffset>,
{
    let mut found = Vec::new();
    let mut all = table.entries(bases);
    while let Ok(Some(entry)) = all.next() {
        let gimli::CieOrFde::Fde(partial) = entry else {
            continue;
        };
        let Ok(fde) = partial.parse(S::cie_from_offset) else {
            continue;
        };
        let start = fde.initial_address();
        found.push((start, start.saturating_add(fde.len()), fde.offset()));
    }
    found.sort_unstable();
    found
}

/// A caller.
#[derive(Debug, Clone, Copy)]
pub struct Caller {
    /// Its registers. The address is that to which the callee returns; none if it could not be read, or if there is no
    /// caller.
    pub registers: Registers,
    /// Where on the stack the callee keeps that address. None where it is in a register.
    pub kept: Option<u64>,
    /// There is none: the table says so.
    pub none: bool,
    /// Whether it was interrupted there by a signal: the address is that of the next instruction, not after a call.
    pub interrupted: bool,
}

impl Unwinder {
    /// Reads `.eh_frame` and `.debug_frame` of a file; nothing, if there is none.
    #[must_use]
    pub fn new(bytes: &[u8]) -> Self {
        let Ok(elf) = ElfFile64::<object::LittleEndian>::parse(bytes) else {
            return Self::default();
        };
        let address = |name| {
            elf.section_by_name(name)
                .map_or(0, |section| section.address())
        };
        let data = |name| {
            let section = elf.section_by_name(name)?;
            Some(section.uncompressed_data().ok()?.into_owned())
        };
        let section = |name| Entries {
            data: data(name).unwrap_or_default(),
            all: Vec::new(),
        };
        let mut unwinder = Self {
            loaded: section(".eh_frame"),
            debug: section(".debug_frame"),
            table_at: address(".eh_frame"),
            text_at: address(".text"),
            data_at: address(".got"),
            isa: abi::isa_of(bytes),
        };
        let bases = unwinder.bases();
        unwinder.loaded.all = entries(&unwinder.loaded.loaded(), &bases);
        unwinder.debug.all = entries(&unwinder.debug.debug(), &bases);
        unwinder
    }

    fn bases(&self) -> BaseAddresses {
        BaseAddresses::default()
            .set_eh_frame(self.table_at)
            .set_text(self.text_at)
            .set_got(self.data_at)
    }

    /// The caller of the function that has `registers` at the link-time address `addr` (of an instruction, or, in a
    /// caller, inside its call). `read` reads words of memory. None, if that cannot be told: also if the registers
    /// are another machine's.
    #[must_use]
    pub fn caller(
        &self,
        addr: u64,
        registers: &Registers,
        read: &dyn Fn(u64) -> Option<u64>,
    ) -> Option<Caller> {
        if self.isa != Some(registers.isa) {
            return None;
        }
        let bases = self.bases();
        if let Some(offset) = self.loaded.find(addr) {
            let table = self.loaded.loaded();
            return caller(&table, &bases, EhFrameOffset(offset), addr, registers, read);
        }
        let offset = DebugFrameOffset(self.debug.find(addr)?);
        caller(&self.debug.debug(), &bases, offset, addr, registers, read)
    }
}

fn caller<'a, S>(
    table: &S,
    bases: &BaseAddresses,
    offset: S::Offset,
    addr: u64,
    registers: &Registers,
    read: &dyn Fn(u64) -> Option<u64>,
) -> Option<Caller>
where
    S: UnwindSection<Reader<'a>, Offset: UnwindOffset>,
{
    let fde = table
        .fde_from_offset(bases, offset, S::cie_from_offset)
        .ok()?;
    let mut context = UnwindContext::new();
    let row = fde
        .unwind_info_for_address(table, bases, &mut context, addr)
        .ok()?;
    let evaluate = |expression: Expression<Reader<'_>>, first: Option<u64>| {
        evaluate(expression, first, registers, read)
    };
    let cfa = match row.cfa() {
        CfaRule::RegisterAndOffset { register, offset } => {
            registers.get(register.0)?.wrapping_add_signed(*offset)
        }
        CfaRule::Expression(expression) => evaluate(expression.get(table).ok()?, None)?,
    };
    let mut next = *registers;
    next.put(registers.stack_column(), Some(cfa));
    let instruction = abi::numbers(registers.isa).instruction;
    let column = fde.cie().return_address_register().0;
    let interrupted = fde.cie().is_signal_trampoline();
    // Where calls put the return address onto the stack, there is none without a rule: the outermost frame. Where it is
    // in a register, it is still there.
    if column == instruction {
        next.put(column, None);
    }
    let (mut ruled, mut kept) = (false, None);
    for (register, rule) in row.registers() {
        let value = match rule {
            RegisterRule::Offset(offset) => read(cfa.wrapping_add_signed(*offset)),
            RegisterRule::ValOffset(offset) => Some(cfa.wrapping_add_signed(*offset)),
            RegisterRule::Register(Register(other)) => registers.get(*other),
            RegisterRule::Expression(expression) => {
                evaluate(expression.get(table).ok()?, Some(cfa)).and_then(read)
            }
            RegisterRule::ValExpression(expression) => {
                evaluate(expression.get(table).ok()?, Some(cfa))
            }
            RegisterRule::Constant(constant) => Some(*constant),
            _ => next.get(register.0),
        };
        next.put(register.0, value);
        ruled |= register.0 == column;
        if let (RegisterRule::Offset(offset), true) = (rule, register.0 == column) {
            kept = Some(cfa.wrapping_add_signed(*offset));
        }
    }
    let mut none = !ruled;
    if column != instruction {
        none = none && is_undefined(&fde, table, bases, addr);
        next.put(instruction, next.get(column));
        // The call has changed it. A frame that does not tell where it was kept has no caller that can be told.
        if !interrupted {
            next.put(column, None);
        }
    }
    Some(Caller {
        registers: next,
        kept,
        none,
        interrupted,
    })
}

/// Whether the table says that there is no return address at `addr`. To `gimli` that is the same as if it said nothing.
fn is_undefined<'a, S>(
    fde: &FrameDescriptionEntry<Reader<'a>>,
    table: &S,
    bases: &BaseAddresses,
    addr: u64,
) -> bool
where
    S: UnwindSection<Reader<'a>>,
{
    let cie = fde.cie();
    let column = cie.return_address_register();
    let mut at = fde.initial_address();
    let mut undefined = false;
    let mut remembered = Vec::new();
    let mut initial = cie.instructions(table, bases);
    let mut own = fde.instructions(table, bases);
    while let Ok(Some(instruction)) = initial.next().and_then(|next| match next {
        Some(next) => Ok(Some(next)),
        None => own.next(),
    }) {
        match instruction {
            CallFrameInstruction::AdvanceLoc { delta } => {
                let delta = u64::from(delta).wrapping_mul(cie.code_alignment_factor());
                at = at.wrapping_add(delta);
            }
            CallFrameInstruction::SetLoc { address } => at = address,
            CallFrameInstruction::RememberState => remembered.push(undefined),
            CallFrameInstruction::RestoreState => undefined = remembered.pop().unwrap_or(false),
            CallFrameInstruction::Undefined { register } if register == column => undefined = true,
            CallFrameInstruction::Restore { register }
            | CallFrameInstruction::SameValue { register }
            | CallFrameInstruction::Offset { register, .. }
                if register == column =>
            {
                undefined = false;
            }
            _ => {}
        }
        if at > addr {
            break;
        }
    }
    undefined
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
                let value = registers.get(register.0)?;
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
