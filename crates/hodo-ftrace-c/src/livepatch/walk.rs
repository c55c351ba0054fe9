//! Walks up a stack by the frame tables of loaded files (LSB 5.0, section 10.6), in a signal handler: no memory is
//! allocated.

use gimli::{
    BaseAddresses, CallFrameInstruction, CfaRule, EhFrame, EhFrameHdr, Encoding, EndianSlice,
    Evaluation, EvaluationResult, Expression, Format, FrameDescriptionEntry, Location,
    NativeEndian, ParsedEhFrameHdr, Piece, Register, RegisterRule, UnwindContext,
    UnwindContextStorage, UnwindSection, UnwindTableRow, Value,
};

use super::stacks::Stacks;
use crate::arch::{COLUMNS, INSTRUCTION, LINK, STACK};
use crate::loaded::Loaded;

type Reader = EndianSlice<'static, NativeEndian>;

/// Rules of one place, and saved rows: no table that compilers make has more.
pub struct Rows;

impl UnwindContextStorage<usize> for Rows {
    type Rules = [(Register, RegisterRule<usize>); COLUMNS + 16];
    type Stack = [UnwindTableRow<usize, Self>; 3];
}

/// Room for one walk.
pub type Room = UnwindContext<usize, Rows>;

/// Expressions of tables are short.
struct Short;

impl gimli::EvaluationStorage<Reader> for Short {
    type Stack = [Value; 8];
    type ExpressionStack = [(Reader, Reader); 1];
    type Result = [Piece<Reader>; 1];
}

/// The values of registers by DWARF's numbers, as far as they are known. The instruction's address is the last one.
pub type Registers = [Option<usize>; COLUMNS];

/// The frame tables of a file.
struct Table {
    loaded: Loaded,
    bases: BaseAddresses,
    header: ParsedEhFrameHdr<Reader>,
    frames: EhFrame<Reader>,
}

/// The frame tables of all files that are loaded.
#[derive(Default)]
pub struct Tables(Vec<Table>);

/// A frame.
#[derive(Clone, Copy, Debug)]
pub struct Frame {
    pub registers: Registers,
    /// A signal has interrupted it: the address is that of the next instruction.
    pub is_interrupted: bool,
}

impl Frame {
    /// The address of the instruction, or the return address.
    pub fn pc(&self) -> usize {
        self.registers[INSTRUCTION].unwrap_or(0)
    }

    pub fn stack(&self) -> usize {
        self.registers[STACK].unwrap_or(0)
    }
}

/// What a frame's table says.
#[expect(
    clippy::large_enum_variant,
    reason = "a signal handler must not allocate, and has one of these"
)]
pub enum Above {
    /// This is the caller's, and where the frame ends.
    Frame(Frame, usize),
    /// There is no caller.
    None,
    /// There is no table for the frame, or it needs what is not known.
    Unknown,
}

impl Tables {
    /// Those of these files, which stay loaded as long as this is used.
    pub fn new(all: Vec<Loaded>) -> Self {
        Self(all.into_iter().filter_map(table).collect())
    }

    /// The caller of a frame.
    pub fn above(&self, frame: &Frame, stacks: &Stacks, room: &mut Room) -> Above {
        self.find(frame, stacks, room).unwrap_or(Above::Unknown)
    }

    fn find(&self, frame: &Frame, stacks: &Stacks, room: &mut Room) -> Option<Above> {
        // The instruction after a call that never returns may belong to another function.
        let at = frame.pc().checked_sub(usize::from(!frame.is_interrupted))?;
        let table = self.0.iter().find(|table| table.loaded.contains(at))?;
        let Table { bases, frames, .. } = table;
        let search = table.header.table()?;
        let fde = search
            .fde_for_address(frames, bases, at as u64, EhFrame::cie_from_offset)
            .ok()?;
        let row = fde
            .unwind_info_for_address(frames, bases, room, at as u64)
            .ok()?;
        let registers = &frame.registers;
        let evaluate = |expression: Expression<Reader>, first: Option<usize>| {
            evaluate(expression, first, registers, stacks)
        };
        let cfa = match row.cfa() {
            CfaRule::RegisterAndOffset { register, offset } => {
                let base = (*registers.get(usize::from(register.0))?)?;
                base.wrapping_add_signed(*offset as isize)
            }
            CfaRule::Expression(expression) => evaluate(expression.get(frames).ok()?, None)?,
        };
        let column = fde.cie().return_address_register();
        let mut next = *registers;
        let mut back = LINK.and_then(|link| registers[link]);
        let mut has_rule = false;
        for (register, rule) in row.registers() {
            let value = match rule {
                RegisterRule::Offset(offset) => {
                    stacks.word(cfa.wrapping_add_signed(*offset as isize))
                }
                RegisterRule::ValOffset(offset) => Some(cfa.wrapping_add_signed(*offset as isize)),
                RegisterRule::Register(Register(other)) => {
                    registers.get(usize::from(*other)).copied().flatten()
                }
                RegisterRule::Expression(expression) => {
                    let place = evaluate(expression.get(frames).ok()?, Some(cfa))?;
                    stacks.word(place)
                }
                RegisterRule::ValExpression(expression) => {
                    evaluate(expression.get(frames).ok()?, Some(cfa))
                }
                _ => continue,
            };
            if *register == column {
                (back, has_rule) = (value, true);
            }
            if let Some(place) = next.get_mut(usize::from(register.0)) {
                *place = value;
            }
        }
        if !has_rule && (LINK.is_none() || is_undefined(&fde, frames, bases, at as u64)) {
            return Some(Above::None);
        }
        let is_interrupted = fde.cie().is_signal_trampoline();
        if row.register(Register(STACK as u16)) == RegisterRule::Undefined {
            next[STACK] = Some(cfa);
        }
        // The call has changed it. Without a rule, only the innermost frame has its return address there.
        if let Some(link) = LINK.filter(|_| !is_interrupted) {
            next[link] = None;
        }
        next[INSTRUCTION] = Some(hodo_ftrace::livepatch::without_signature(back?));
        let next = Frame {
            registers: next,
            is_interrupted,
        };
        Some(Above::Frame(next, cfa))
    }
}

/// Reads the tables of a file.
fn table(loaded: Loaded) -> Option<Table> {
    let header = loaded.frame_header.clone()?;
    let slice = |from: usize, end: usize| {
        // SAFETY: a loaded segment has these bytes, and whoever made the list keeps the file loaded.
        let bytes = unsafe { std::slice::from_raw_parts(from as *const u8, end - from) };
        EndianSlice::new(bytes, NativeEndian)
    };
    let bases = BaseAddresses::default().set_eh_frame_hdr(header.start as u64);
    let parsed = EhFrameHdr::from(slice(header.start, header.end))
        .parse(&bases, size_of::<usize>() as u8)
        .ok()?;
    let frames = parsed.eh_frame_ptr().direct().ok()? as usize;
    let end = loaded.segment_of(frames)?.end;
    let mut section = EhFrame::from(slice(frames, end));
    section.set_address_size(size_of::<usize>() as u8);
    Some(Table {
        bases: bases.set_eh_frame(frames as u64),
        header: parsed,
        frames: section,
        loaded,
    })
}

/// Returns whether a table says that there is no return address at `addr`, where it may also say nothing.
fn is_undefined(
    fde: &FrameDescriptionEntry<Reader>,
    frames: &EhFrame<Reader>,
    bases: &BaseAddresses,
    addr: u64,
) -> bool {
    let column = fde.cie().return_address_register();
    let mut at = fde.initial_address();
    let mut instructions = fde.instructions(frames, bases);
    let mut undefined = false;
    while let Ok(Some(instruction)) = instructions.next() {
        match instruction {
            CallFrameInstruction::AdvanceLoc { delta } => {
                at += u64::from(delta) * fde.cie().code_alignment_factor();
                if at > addr {
                    break;
                }
            }
            CallFrameInstruction::Undefined { register } if register == column => undefined = true,
            _ => {}
        }
    }
    undefined
}

fn evaluate(
    expression: Expression<Reader>,
    first: Option<usize>,
    registers: &Registers,
    stacks: &Stacks,
) -> Option<usize> {
    const STEPS: u32 = 100;
    let encoding = Encoding {
        address_size: size_of::<usize>() as u8,
        format: Format::Dwarf32,
        version: 4,
    };
    let mut evaluation = Evaluation::<Reader, Short>::new_in(expression.0, encoding);
    evaluation.set_max_iterations(STEPS);
    if let Some(first) = first {
        evaluation.set_initial_value(first as u64);
    }
    let mut state = evaluation.evaluate().ok()?;
    loop {
        state = match state {
            EvaluationResult::Complete => break,
            EvaluationResult::RequiresRegister { register, .. } => {
                let value = (*registers.get(usize::from(register.0))?)?;
                evaluation
                    .resume_with_register(Value::Generic(value as u64))
                    .ok()?
            }
            EvaluationResult::RequiresMemory { address, size, .. } => {
                let word = stacks.word(address as usize).filter(|_| size == 8)?;
                evaluation
                    .resume_with_memory(Value::Generic(word as u64))
                    .ok()?
            }
            _ => return None,
        };
    }
    match evaluation.as_result().first()?.location {
        Location::Address { address } => Some(address as usize),
        Location::Value {
            value: Value::Generic(value),
        } => Some(value as usize),
        _ => None,
    }
}

/// How a walk has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// At the outermost frame: nothing else is of interest above it on this stack.
    Outermost,
    /// Above the frame with this address, there is no way to go on but to look at every word.
    Unknown(usize),
}

/// Longer chains of calls are not followed to their end.
const MOST: usize = 100_000;

/// Gives `see` all words of a thread that are return addresses or program counters, from the innermost frame on, until
/// it returns something. Where a signal may have interrupted a function while it builds its frame or takes it down, its
/// table may be wrong; there, `each` is given all words of the frame. Otherwise returns how the walk has ended, and
/// where the last frame begins.
pub fn walk<T>(
    tables: &Tables,
    stacks: &Stacks,
    room: &mut Room,
    mut frame: Frame,
    mut see: impl FnMut(usize) -> Option<T>,
    mut each: impl FnMut(core::ops::Range<usize>) -> Option<T>,
) -> Result<(End, usize), T> {
    let found = |found: Option<T>| found.map_or(Ok(()), Err);
    let mut seen = 0;
    loop {
        let pc = frame.pc();
        found(see(pc))?;
        seen += 1;
        let is_known = seen < MOST && !(frame.is_interrupted && is_signal_return(stacks, pc));
        let above = match is_known {
            true => tables.above(&frame, stacks, room),
            false => Above::Unknown,
        };
        let (mut next, end) = match above {
            Above::Frame(next, end) => (next, end),
            Above::None => return Ok((End::Outermost, frame.stack())),
            Above::Unknown => return Ok((End::Unknown(pc), frame.stack())),
        };
        if frame.is_interrupted && !is_in_system_call(stacks, pc) {
            found(each(frame.stack()..end.max(frame.stack())))?;
        }
        if hodo_ftrace::livepatch::is_hijacked(next.pc()) {
            // The slot is the word below the frame's end.
            let slot = end.wrapping_sub(size_of::<usize>());
            let shadow = hodo_ftrace::livepatch::shadow_of(slot, 0);
            match stacks.word(shadow).filter(|_| LINK.is_none()) {
                Some(original) => next.registers[INSTRUCTION] = Some(original),
                None => return Ok((End::Unknown(pc), frame.stack())),
            }
        }
        if next.stack() < frame.stack() && !next.is_interrupted {
            return Ok((End::Unknown(pc), frame.stack()));
        }
        frame = next;
    }
}

fn is_signal_return(stacks: &Stacks, pc: usize) -> bool {
    use crate::arch::SIGNAL_RETURN;
    !SIGNAL_RETURN.is_empty() && stacks.has_code(pc, SIGNAL_RETURN)
}

/// Returns whether an interrupted thread was in a system call, which is after its prologue and before its epilogue. One
/// that is to be restarted has the address of the call itself.
fn is_in_system_call(stacks: &Stacks, pc: usize) -> bool {
    use crate::arch::SYSTEM_CALL;
    stacks.has_code(pc, SYSTEM_CALL)
        || stacks.has_code(pc.wrapping_sub(SYSTEM_CALL.len()), SYSTEM_CALL)
}
