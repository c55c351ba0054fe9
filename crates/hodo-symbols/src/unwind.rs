//! Ranges of code in the unwind tables.

use gimli::{
    BaseAddresses, CallFrameInstruction, CommonInformationEntry, DebugFrame, EhFrame, EndianSlice,
    LittleEndian, Register, UnwindSection,
};
use object::read::elf::ElfFile64;
use object::{Object, ObjectSection};
use std::collections::HashMap;

use crate::abi::{self, Numbers};

type Reader<'a> = EndianSlice<'a, LittleEndian>;

/// One range of the unwind tables.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Range {
    pub addr: u64,
    pub size: u64,
    /// Whether it is the code that signal handlers return to.
    pub signal: bool,
    pub lsda: Option<u64>,
    /// Whether a function that begins elsewhere continues here after an exception.
    pub part: bool,
    /// How far below the frame's address the return address is kept, if it is on the stack.
    kept: Option<i32>,
    /// Its rows in `Tables::rows`.
    rows: std::ops::Range<u32>,
}

/// Where the frame of a function is (the CFA, the stack pointer before the call). On x86-64 that is the address above
/// the return address, so at a function's entry it is `Stack(8)`. Where calls leave the return address in a register,
/// it is `Stack(0)`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cfa {
    /// This far above the stack pointer.
    Stack(i32),
    /// This far above the register used as frame pointer: `rbp` or `s0`.
    Frame(i32),
    /// It cannot be expressed in these terms, or there is no return address.
    Other,
}

/// Where the frame is, from an address on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Row {
    /// The link-time address of the first instruction that this applies to.
    pub addr: u64,
    /// Where the frame is.
    pub cfa: Cfa,
}

/// What the unwind tables say about frames.
#[derive(Debug, Clone, Default)]
pub struct Frames {
    /// Sorted by address, without overlaps.
    ranges: Vec<FrameRange>,
    rows: Vec<Row>,
}

/// What is known about a range of addresses.
#[derive(Debug, Clone)]
struct FrameRange {
    start: u64,
    end: u64,
    /// Its own rows.
    rows: std::ops::Range<u32>,
    /// See [`Frames::return_address`].
    kept: Option<i32>,
}

impl Frames {
    /// Returns whether a range begins at an address. One begins at each compiled function.
    #[must_use]
    pub fn starts_at(&self, addr: u64) -> bool {
        let found = self.ranges.binary_search_by_key(&addr, |range| range.start);
        found.is_ok()
    }

    /// Returns the rows of the range that contains an address. The first row is for its start. There are none if no
    /// range contains it.
    #[must_use]
    pub fn rows(&self, addr: u64) -> &[Row] {
        self.range(addr).map_or(&[], |range| {
            &self.rows[range.rows.start as usize..range.rows.end as usize]
        })
    }

    fn range(&self, addr: u64) -> Option<&FrameRange> {
        let at = self.ranges.partition_point(|range| range.start <= addr);
        let range = &self.ranges[at.checked_sub(1)?];
        (addr < range.end).then_some(range)
    }

    /// Returns how far below the frame's address the function at `addr` keeps its return address, if it always keeps it
    /// in the same place on the stack. On x86-64, calls put it there.
    #[must_use]
    pub fn return_address(&self, addr: u64) -> Option<i32> {
        self.range(addr)?.kept
    }

    /// Returns where the frame is at an instruction.
    #[must_use]
    pub fn at(&self, addr: u64) -> Option<Cfa> {
        let rows = self.rows(addr);
        let at = rows.partition_point(|row| row.addr <= addr);
        Some(rows.get(at.checked_sub(1)?)?.cfa)
    }

    /// Returns what is needed to answer questions about many instructions near an address.
    #[must_use]
    pub fn near(&self, addr: u64) -> Near<'_> {
        Near {
            frames: self,
            range: self
                .range(addr)
                .map_or(0..0, |range| range.start..range.end),
            rows: self.rows(addr),
        }
    }
}

/// What the unwind tables say about frames near an address.
#[derive(Debug, Clone)]
pub struct Near<'f> {
    frames: &'f Frames,
    range: std::ops::Range<u64>,
    /// The rows of that range.
    pub rows: &'f [Row],
}

impl Near<'_> {
    /// Returns where the frame is at an instruction.
    #[must_use]
    pub fn at(&self, addr: u64) -> Option<Cfa> {
        if !self.range.contains(&addr) {
            return self.frames.at(addr);
        }
        let at = self.rows.partition_point(|row| row.addr <= addr);
        Some(self.rows.get(at.checked_sub(1)?)?.cfa)
    }
}

/// All ranges, sorted by address, and their rows.
pub(crate) struct Tables {
    pub ranges: Vec<Range>,
    rows: Vec<Row>,
    /// Where the frame is at a function's entry.
    entry: Cfa,
}

impl Tables {
    /// Returns whether the frame is empty at the start of the range, except for a return address that a call pushed.
    pub fn is_entry_like(&self, range: &Range) -> bool {
        self.rows
            .get(range.rows.start as usize)
            .is_some_and(|row| row.cfa == self.entry)
    }

    /// Returns only the frames.
    pub fn into_frames(self) -> Frames {
        let mut ranges: Vec<_> = Vec::with_capacity(self.ranges.len());
        for range in self.ranges {
            let end = range.addr.saturating_add(range.size);
            ranges.push(FrameRange {
                start: range.addr,
                end,
                rows: range.rows,
                kept: range.kept,
            });
        }
        Frames {
            ranges,
            rows: self.rows,
        }
    }
}

/// Reads the unwind tables of a file.
pub(crate) fn tables(file: &ElfFile64<'_>) -> Tables {
    let addr = |name: &str| file.section_by_name(name).map(|s| s.address());
    let mut bases = BaseAddresses::default();
    for (name, set) in [
        (
            ".eh_frame",
            BaseAddresses::set_eh_frame as fn(BaseAddresses, u64) -> BaseAddresses,
        ),
        (".eh_frame_hdr", BaseAddresses::set_eh_frame_hdr),
        (".text", BaseAddresses::set_text),
        (".got", BaseAddresses::set_got),
    ] {
        if let Some(addr) = addr(name) {
            bases = set(bases, addr);
        }
    }
    let mut found = Tables {
        ranges: Vec::new(),
        rows: Vec::new(),
        entry: Cfa::Other,
    };
    // Column numbers of unknown instruction sets cannot be interpreted.
    let Some(numbers) = abi::of_file(file).map(abi::numbers) else {
        return found;
    };
    found.entry = Cfa::Stack(numbers.entry);
    if let Some(section) = file.section_by_name(".eh_frame")
        && let Ok(data) = section.uncompressed_data()
    {
        let mut frame = EhFrame::new(&data, LittleEndian);
        frame.set_vendor(numbers.vendor);
        collect(&frame, &bases, numbers, &mut found);
    }
    if let Some(section) = file.section_by_name(".debug_frame")
        && let Ok(data) = section.uncompressed_data()
    {
        let mut frame = DebugFrame::new(&data, LittleEndian);
        frame.set_address_size(8);
        frame.set_vendor(numbers.vendor);
        collect(&frame, &bases, numbers, &mut found);
    }
    found
        .ranges
        .sort_unstable_by_key(|r| (r.addr, r.lsda.is_none()));
    found.ranges.dedup_by_key(|r| r.addr);
    found
}

fn collect<'a, S>(section: &S, bases: &BaseAddresses, numbers: &'static Numbers, found: &mut Tables)
where
    S: UnwindSection<Reader<'a>>,
    S::Offset: std::hash::Hash + Eq,
{
    let mut cies: HashMap<S::Offset, CommonInformationEntry<Reader<'a>>> = HashMap::new();
    let mut initial: HashMap<usize, State> = HashMap::new();
    let mut entries = section.entries(bases);
    while let Ok(Some(entry)) = entries.next() {
        let gimli::CieOrFde::Fde(partial) = entry else {
            continue;
        };
        let fde = partial.parse(|section, bases, offset| {
            if let Some(cie) = cies.get(&offset) {
                return Ok(cie.clone());
            }
            let cie = section.cie_from_offset(bases, offset)?;
            cies.insert(offset, cie.clone());
            Ok(cie)
        });
        let Ok(fde) = fde else { continue };
        if fde.len() == 0 || fde.initial_address() == 0 {
            continue;
        }
        let cie = fde.cie();
        let state = *initial.entry(cie.offset()).or_insert_with(|| {
            let mut state = State {
                numbers,
                return_column: cie.return_address_register(),
                told: false,
                cfa: Cfa::Other,
                returns: true,
                factor: cie.data_alignment_factor(),
                kept: None,
            };
            let mut instructions = cie.instructions(section, bases);
            while let Ok(Some(instruction)) = instructions.next() {
                state.step(&instruction);
            }
            state
        });
        let first = found.rows.len() as u32;
        let instructions = fde.instructions(section, bases);
        let kept = rows(
            state,
            instructions,
            fde.initial_address(),
            cie.code_alignment_factor(),
            &mut found.rows,
        );
        let lsda = match fde.lsda() {
            Some(gimli::Pointer::Direct(addr)) if addr != 0 => Some(addr),
            _ => None,
        };
        found.ranges.push(Range {
            addr: fde.initial_address(),
            size: fde.len(),
            signal: fde.is_signal_trampoline(),
            lsda,
            part: false,
            kept,
            rows: first..found.rows.len() as u32,
        });
    }
}

/// The state at one instruction.
#[derive(Clone, Copy)]
struct State {
    numbers: &'static Numbers,
    return_column: Register,
    /// Whether the place of the frame was defined.
    told: bool,
    cfa: Cfa,
    /// Whether there is a return address.
    returns: bool,
    /// The factor by which offsets from the frame's address are multiplied.
    factor: i64,
    /// How far below that address the return address is, or was, kept.
    kept: Option<i32>,
}

impl State {
    fn row(self, addr: u64) -> Row {
        let cfa = if self.returns { self.cfa } else { Cfa::Other };
        Row { addr, cfa }
    }

    fn step(&mut self, instruction: &CallFrameInstruction<usize>) {
        let numbers = self.numbers;
        let plain = |register: Register, offset: u64| {
            let Ok(offset) = i32::try_from(offset) else {
                return Cfa::Other;
            };
            match numbers.register(register.0) {
                Some(register) if register == numbers.stack => Cfa::Stack(offset),
                Some(register) if register == numbers.frame => Cfa::Frame(offset),
                _ => Cfa::Other,
            }
        };
        let same = |make: fn(i32) -> Cfa, offset| i32::try_from(offset).map_or(Cfa::Other, make);
        match *instruction {
            CallFrameInstruction::DefCfa { register, offset } => {
                self.cfa = plain(register, offset);
                self.told = true;
            }
            CallFrameInstruction::DefCfaOffset { offset } => {
                self.cfa = match self.cfa {
                    Cfa::Stack(_) => same(Cfa::Stack, offset),
                    Cfa::Frame(_) => same(Cfa::Frame, offset),
                    Cfa::Other => Cfa::Other,
                };
            }
            CallFrameInstruction::DefCfaRegister { register } => {
                self.cfa = match self.cfa {
                    Cfa::Stack(offset) | Cfa::Frame(offset) => {
                        plain(register, u64::try_from(offset).unwrap_or(u64::MAX))
                    }
                    // GNU's assembler for RISC-V first defines the register alone.
                    Cfa::Other if !self.told => plain(register, 0),
                    Cfa::Other => Cfa::Other,
                };
                self.told = true;
            }
            CallFrameInstruction::DefCfaSf { .. }
            | CallFrameInstruction::DefCfaOffsetSf { .. }
            | CallFrameInstruction::DefCfaExpression { .. } => {
                self.cfa = Cfa::Other;
                self.told = true;
            }
            CallFrameInstruction::Undefined { register } if register == self.return_column => {
                self.returns = false;
            }
            CallFrameInstruction::Offset {
                register,
                factored_offset,
            } if register == self.return_column => {
                self.returns = true;
                let offset = i64::try_from(factored_offset).unwrap_or(i64::MAX);
                let below = offset.saturating_mul(self.factor).saturating_neg();
                self.kept = i32::try_from(below).ok();
            }
            CallFrameInstruction::Restore { register } if register == self.return_column => {
                self.returns = true;
            }
            _ => {}
        }
    }
}

/// Appends the rows of one range: one for its start, and one for each change. Returns how far below the frame's address
/// the return address is kept.
fn rows(
    mut state: State,
    mut instructions: gimli::CallFrameInstructionIter<'_, Reader<'_>>,
    start: u64,
    factor: u64,
    rows: &mut Vec<Row>,
) -> Option<i32> {
    let mut remembered = Vec::new();
    let mut addr = start;
    let first = rows.len();
    while let Ok(Some(instruction)) = instructions.next() {
        let next = match instruction {
            CallFrameInstruction::AdvanceLoc { delta } => {
                addr.saturating_add(u64::from(delta).saturating_mul(factor))
            }
            CallFrameInstruction::SetLoc { address } => address,
            CallFrameInstruction::RememberState => {
                remembered.push(state);
                continue;
            }
            CallFrameInstruction::RestoreState => {
                let kept = state.kept;
                state = remembered.pop().unwrap_or(state);
                state.kept = state.kept.or(kept);
                continue;
            }
            _ => {
                state.step(&instruction);
                continue;
            }
        };
        push(rows, first, state.row(addr));
        addr = next.max(addr);
    }
    push(rows, first, state.row(addr));
    state.kept
}

fn push(rows: &mut Vec<Row>, first: usize, row: Row) {
    if rows.len() > first
        && let Some(last) = rows.last_mut()
    {
        if last.addr == row.addr {
            *last = row;
            return;
        }
        if last.cfa == row.cfa {
            return;
        }
    }
    rows.push(row);
}
