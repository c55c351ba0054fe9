//! Finds the callers on a recorded stack with the unwind tables of their files.

use gimli::{
    BaseAddresses, CallFrameInstruction, CfaRule, DebugFrame, DebugFrameOffset, EhFrame,
    EhFrameOffset, Encoding, EndianSlice, EvaluationResult, Expression, Format,
    FrameDescriptionEntry, LittleEndian, Location, Register, RegisterRule, UnwindContext,
    UnwindOffset, UnwindSection, Value, Vendor,
};
use hodo_abi::{Isa, Span};
use object::read::elf::ElfFile64;
use object::{Object, ObjectSection};

use crate::abi;

type Reader<'a> = EndianSlice<'a, LittleEndian>;

/// The numbers that registers can have here. Higher ones are vectors, which no rule for a frame needs.
const COLUMNS: usize = 65;

/// The registers that are known, in DWARF's numbering, and the address of the instruction.
#[derive(Debug, Clone, Copy)]
pub struct Registers {
    isa: Isa,
    known: [Option<u64>; COLUMNS],
}

impl Registers {
    /// Creates a set of registers whose values are all unknown.
    #[must_use]
    pub fn new(isa: Isa) -> Self {
        let known = [None; COLUMNS];
        Self { isa, known }
    }

    /// Returns the instruction set.
    #[must_use]
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// Sets the value of a general register. `register` is the processor's number.
    pub fn set(&mut self, register: u8, value: u64) {
        if let Some(column) = abi::numbers(self.isa).column(register) {
            self.put(column, Some(value));
        }
    }

    /// Sets the address of the instruction, if it is known.
    pub fn set_instruction(&mut self, addr: Option<u64>) {
        self.put(abi::numbers(self.isa).instruction, addr);
    }

    /// Returns the address of the instruction.
    #[must_use]
    pub fn instruction(&self) -> Option<u64> {
        self.get(abi::numbers(self.isa).instruction)
    }

    /// Returns the stack pointer.
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
    /// `.debug_frame`. A program that needs no unwind tables may have this one for debuggers.
    debug: Entries,
    table_at: u64,
    text_at: u64,
    data_at: u64,
}

/// A section with an unwind table.
#[derive(Debug, Clone, Default)]
struct Entries {
    data: Vec<u8>,
    /// The entries sorted by address: start, end, offset of the entry.
    all: Vec<(u64, u64, usize)>,
    isa: Option<Isa>,
}

impl Entries {
    fn find(&self, addr: u64) -> Option<usize> {
        let after = self.all.partition_point(|entry| entry.0 <= addr);
        let &(_, end, offset) = self.all.get(after.checked_sub(1)?)?;
        (addr < end).then_some(offset)
    }

    fn vendor(&self) -> Vendor {
        self.isa
            .map_or(Vendor::Default, |isa| abi::numbers(isa).vendor)
    }

    /// Returns the section as `.eh_frame`.
    fn loaded(&self) -> EhFrame<Reader<'_>> {
        let mut table = EhFrame::new(&self.data, LittleEndian);
        table.set_address_size(8);
        table.set_vendor(self.vendor());
        table
    }

    /// Returns the section as `.debug_frame`.
    fn debug(&self) -> DebugFrame<Reader<'_>> {
        let mut table = DebugFrame::new(&self.data, LittleEndian);
        table.set_address_size(8);
        table.set_vendor(self.vendor());
        table
    }
}

/// Returns start, end and offset of all entries of a table, sorted.
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
    /// Its registers. The instruction's address is the return address of the callee. It is missing if it could not be
    /// read, or if there is no caller.
    pub registers: Registers,
    /// Where on the stack the callee keeps that address; `None` if it is in a register.
    pub kept: Option<u64>,
    /// Whether the table says that there is no caller.
    pub none: bool,
    /// Whether a signal interrupted it. Then the address is that of the next instruction, and does not follow a call.
    pub interrupted: bool,
    /// The callee's code, or the part of it that its table entry describes, in addresses of its file. Empty if no table
    /// was read.
    pub code: Span,
}

impl Unwinder {
    /// Reads `.eh_frame` and `.debug_frame` of a file. The result is empty if there are none.
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
        let isa = abi::isa_of(bytes);
        let section = |name| Entries {
            data: data(name).unwrap_or_default(),
            all: Vec::new(),
            isa,
        };
        let mut unwinder = Self {
            loaded: section(".eh_frame"),
            debug: section(".debug_frame"),
            table_at: address(".eh_frame"),
            text_at: address(".text"),
            data_at: address(".got"),
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

    /// Returns the caller of the function that has these `registers` at the link-time address `addr` (of an
    /// instruction, or, in a caller, inside its call). `read` reads words of memory. Returns `None` if the caller
    /// cannot be determined, also if the registers belong to another instruction set.
    #[must_use]
    pub fn caller(
        &self,
        addr: u64,
        registers: &Registers,
        read: &dyn Fn(u64) -> Option<u64>,
    ) -> Option<Caller> {
        if self.loaded.isa != Some(registers.isa) {
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
    let abi::Numbers {
        instruction,
        signed,
        ..
    } = *abi::numbers(registers.isa);
    let column = fde.cie().return_address_register().0;
    let interrupted = fde.cie().is_signal_trampoline();
    // If calls push the return address, a frame without a rule for it is the outermost one. If calls leave the return
    // address in a register, it is still there.
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
        if register.0 == column {
            kept = match rule {
                RegisterRule::Offset(offset) => Some(cfa.wrapping_add_signed(*offset)),
                RegisterRule::Expression(expression) if !interrupted => {
                    evaluate(expression.get(table).ok()?, Some(cfa))
                }
                _ => None,
            };
        }
    }
    let mut none = !ruled;
    if column != instruction {
        none = none && is_undefined(&fde, table, bases, addr);
        let is_signed = signed.is_some_and(|column| {
            matches!(row.register(column), RegisterRule::Constant(state) if state & 1 == 1)
        });
        let back = next.get(column);
        let plain = |addr| match is_signed {
            true => abi::without_signature(addr),
            false => addr,
        };
        next.put(instruction, back.map(plain));
        // The call changed the register. If no rule says where it was saved, the caller cannot be determined.
        if !interrupted {
            next.put(column, None);
        }
    }
    Some(Caller {
        registers: next,
        kept,
        none,
        interrupted,
        code: Span::at(fde.initial_address(), fde.len()),
    })
}

/// Returns whether the table says that there is no return address at `addr`. `gimli` does not distinguish this from a
/// missing rule.
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

/// Expressions are evaluated for at most this many steps. Those in real tables are short.
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
