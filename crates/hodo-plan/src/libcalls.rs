//! Calls into shared libraries.

use std::collections::{HashMap, HashSet};

use hodo_isa::code::{InstructionSet, Relocation};
use object::{
    Object, ObjectSection, ObjectSymbol, ObjectSymbolTable, RelocationFlags, RelocationTarget,
};

use crate::image::{Image, is_plt};
use crate::model::{LibcallForm, LibcallSite};
use crate::modes;
use crate::pieces::{self, Piece};
use crate::sweep::{Swept, To};
use crate::targets::Targets;

/// Bytes of the instructions that load an address from a slot.
const LOAD: u8 = 8;

/// GOT slots of functions, by address, with the functions' names.
pub(crate) fn slots(image: &Image<'_>) -> HashMap<u64, String> {
    let mut slots = HashMap::new();
    let (Some(relocations), Some(symbols)) = (
        image.file.dynamic_relocations(),
        image.file.dynamic_symbol_table(),
    ) else {
        return slots;
    };
    for (addr, relocation) in relocations {
        let RelocationFlags::Elf { r_type } = relocation.flags() else {
            continue;
        };
        if image.isa.relocation(r_type) != Relocation::Slot {
            continue;
        }
        let RelocationTarget::Symbol(index) = relocation.target() else {
            continue;
        };
        let Ok(symbol) = symbols.symbol_by_index(index) else {
            continue;
        };
        // Slots of variables do not hold addresses of code.
        if symbol.kind() == object::SymbolKind::Data || symbol.kind() == object::SymbolKind::Tls {
            continue;
        }
        if let Ok(name) = symbol.name()
            && !name.is_empty()
        {
            slots.insert(addr, name.to_owned());
        }
    }
    slots
}

fn plt_jumps(image: &Image<'_>) -> Vec<(u64, u64, u8)> {
    let mut jumps = Vec::new();
    for section in image.file.sections() {
        let Ok(name) = section.name() else { continue };
        if !is_plt(name) {
            continue;
        }
        if let Ok(bytes) = section.data() {
            jumps.extend(image.isa.got_jumps(bytes, section.address()));
        }
    }
    jumps
}

/// The PLT entries: the addresses that are called, and their GOT slots.
pub(crate) fn plt_entries(image: &Image<'_>) -> Vec<(u64, u64)> {
    let entry = |(jump, slot, _): (u64, u64, u8)| {
        // The jump may follow a landing instruction of four bytes, and a prefix.
        [(jump, slot), (jump.wrapping_sub(4), slot)]
    };
    plt_jumps(image).into_iter().flat_map(entry).collect()
}

/// The PLT entries that can be changed, except those of profiling functions, whose calls become nops.
pub(crate) fn plt(
    image: &Image<'_>,
    slots: &HashMap<u64, String>,
    profilers: &HashSet<u64>,
) -> Vec<LibcallSite> {
    let isa = image.isa;
    let mut sites = Vec::new();
    for (jump, got, len) in plt_jumps(image) {
        if profilers.contains(&got) {
            continue;
        }
        if let Some(name) = slots.get(&got) {
            sites.push(LibcallSite {
                name: name.clone(),
                patch: jump,
                patch_len: len,
                form: LibcallForm::Plt,
                got,
                mode: modes::by_name(isa, name),
            });
        }
    }
    sites
}

/// Calls and jumps through registers that are loaded from the GOT just before (`-mno-plt`), except those of profiling
/// functions.
pub(crate) fn loaded(
    image: &Image<'_>,
    pieces: &[Piece],
    slots: &HashMap<u64, String>,
    targets: &Targets,
    profilers: &HashSet<u64>,
) -> Vec<LibcallSite> {
    let isa = image.isa;
    // The program may write to other words that hold addresses of functions.
    let sections = image.file.sections();
    let tables =
        sections.filter(|section| section.name().is_ok_and(|name| name.starts_with(".got")));
    let tables: Vec<_> = tables
        .map(|section| section.address()..section.address().saturating_add(section.size()))
        .collect();
    let mut sites = Vec::new();
    let mut swept = None;
    for text in image.text.iter().filter(|text| !text.plt) {
        for (patch, got) in isa.slot_loads(text.bytes, text.addr) {
            let Some(name) = slots.get(&got) else {
                continue;
            };
            if profilers.contains(&got) || !tables.iter().any(|table| table.contains(&got)) {
                continue;
            }
            let Some(piece) = pieces::find(pieces, patch) else {
                continue;
            };
            // Bytes in the middle of instructions may look like that. Places come in order, so each piece is read once.
            let index = piece;
            let piece = &pieces[index];
            if swept.as_ref().is_none_or(|&(of, _)| of != index) {
                let code = isa.sweep(text.slice(piece.start, piece.end), piece.start);
                swept = Some((index, code.map(|insn| insn.addr).peekable()));
            }
            let Some((_, starts)) = &mut swept else {
                continue;
            };
            while starts.next_if(|&addr| addr < patch).is_some() {}
            if starts.peek() != Some(&patch) {
                continue;
            }
            let Some(call) = isa.slot_call(text.slice(patch, piece.end), patch) else {
                continue;
            };
            if targets.any.any(patch + 1..call.end) {
                continue;
            }
            sites.push(LibcallSite {
                name: name.clone(),
                patch,
                patch_len: LOAD,
                form: LibcallForm::Loaded {
                    register: call.register,
                    end: call.end,
                },
                got,
                mode: modes::by_name(isa, name),
            });
        }
    }
    sites
}

/// Calls and jumps through the GOT in functions (`-fno-plt`). Those of profiling functions become nops.
pub(crate) fn direct(
    isa: &'static dyn InstructionSet,
    swept: &Swept,
    slots: &HashMap<u64, String>,
    targets: &Targets,
    profilers: &HashSet<u64>,
) -> Vec<LibcallSite> {
    let mut sites = Vec::new();
    for transfer in &swept.transfers {
        let To::Slot(got) = transfer.to else { continue };
        let Some(name) = slots.get(&got) else {
            continue;
        };
        let inside = transfer.addr + 1..transfer.addr + u64::from(transfer.len);
        if profilers.contains(&got)
            || transfer.len != isa.slot_call_len()
            || targets.any.any(inside)
        {
            continue;
        }
        sites.push(LibcallSite {
            name: name.clone(),
            patch: transfer.addr,
            patch_len: transfer.len,
            form: if transfer.call {
                LibcallForm::Call
            } else {
                LibcallForm::Jump
            },
            got,
            mode: modes::by_name(isa, name),
        });
    }
    sites
}
