//! Code ranges from the unwind tables.

use gimli::{
    BaseAddresses, CallFrameInstruction, CommonInformationEntry, DebugFrame, EhFrame, EndianSlice,
    LittleEndian, Register, UnwindSection,
};
use object::read::elf::ElfFile64;
use object::{Object, ObjectSection};
use std::collections::HashMap;

type Reader<'a> = EndianSlice<'a, LittleEndian>;

/// One range of the unwind tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Range {
    pub addr: u64,
    pub size: u64,
    /// At its start the stack holds the return address and nothing else of its own.
    pub entry_like: bool,
    /// It is a signal handler's return code.
    pub signal: bool,
    pub lsda: Option<u64>,
}

const RSP: Register = Register(7);
const RETURN_ADDRESS: Register = Register(16);

/// All ranges, sorted by address.
pub(crate) fn ranges(file: &ElfFile64<'_>) -> Vec<Range> {
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
    let mut found = Vec::new();
    if let Some(section) = file.section_by_name(".eh_frame")
        && let Ok(data) = section.uncompressed_data()
    {
        collect(&EhFrame::new(&data, LittleEndian), &bases, &mut found);
    }
    if let Some(section) = file.section_by_name(".debug_frame")
        && let Ok(data) = section.uncompressed_data()
    {
        let mut frame = DebugFrame::new(&data, LittleEndian);
        frame.set_address_size(8);
        collect(&frame, &bases, &mut found);
    }
    found.sort_unstable_by_key(|r| (r.addr, r.lsda.is_none()));
    found.dedup_by_key(|r| r.addr);
    found
}

fn collect<'a, S>(section: &S, bases: &BaseAddresses, found: &mut Vec<Range>)
where
    S: UnwindSection<Reader<'a>>,
    S::Offset: std::hash::Hash + Eq,
{
    let mut cies: HashMap<S::Offset, CommonInformationEntry<Reader<'a>>> = HashMap::new();
    let mut initial: HashMap<usize, Option<i64>> = HashMap::new();
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
        // The stack offset after the instructions up to the first advance; `None` if it is no plain offset from rsp.
        let start = *initial
            .entry(cie.offset())
            .or_insert_with(|| stack_offset(Some(0), cie.instructions(section, bases)));
        let offset = stack_offset(start, fde.instructions(section, bases));
        let lsda = match fde.lsda() {
            Some(gimli::Pointer::Direct(addr)) if addr != 0 => Some(addr),
            _ => None,
        };
        found.push(Range {
            addr: fde.initial_address(),
            size: fde.len(),
            entry_like: offset == Some(8),
            signal: fde.is_signal_trampoline(),
            lsda,
        });
    }
}

fn stack_offset<'a>(
    mut offset: Option<i64>,
    mut instructions: gimli::CallFrameInstructionIter<'_, Reader<'a>>,
) -> Option<i64> {
    while let Ok(Some(instruction)) = instructions.next() {
        offset = match instruction {
            CallFrameInstruction::DefCfa { register, offset } if register == RSP => {
                i64::try_from(offset).ok()
            }
            CallFrameInstruction::DefCfaOffset { offset: new } => {
                offset.and(i64::try_from(new).ok())
            }
            CallFrameInstruction::DefCfaRegister { register } if register == RSP => offset,
            // There is no return address: it is not entered by a call.
            CallFrameInstruction::Undefined { register } if register == RETURN_ADDRESS => {
                return None;
            }
            CallFrameInstruction::DefCfa { .. }
            | CallFrameInstruction::DefCfaSf { .. }
            | CallFrameInstruction::DefCfaRegister { .. }
            | CallFrameInstruction::DefCfaExpression { .. } => None,
            CallFrameInstruction::AdvanceLoc { .. } | CallFrameInstruction::SetLoc { .. } => break,
            _ => offset,
        };
    }
    offset
}
