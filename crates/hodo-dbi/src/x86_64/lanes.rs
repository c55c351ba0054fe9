//! Which instructions are gathers and scatters, and masked loads and stores, and what their lanes are.

use iced_x86::{Mnemonic, OpKind, Register};

use super::facts::general;
use super::features::has_avx;
use super::special::is_packed;
use crate::fragment::Instruction;
use crate::inserted::{Active, Lanes, Places, Scratch};

/// The sizes of indices and of lanes, and whether it stores.
fn form(mnemonic: Mnemonic) -> Option<(u8, u8, bool)> {
    Some(match mnemonic {
        Mnemonic::Vpgatherdd | Mnemonic::Vgatherdps => (4, 4, false),
        Mnemonic::Vpgatherdq | Mnemonic::Vgatherdpd => (4, 8, false),
        Mnemonic::Vpgatherqd | Mnemonic::Vgatherqps => (8, 4, false),
        Mnemonic::Vpgatherqq | Mnemonic::Vgatherqpd => (8, 8, false),
        Mnemonic::Vpscatterdd | Mnemonic::Vscatterdps => (4, 4, true),
        Mnemonic::Vpscatterdq | Mnemonic::Vscatterdpd => (4, 8, true),
        Mnemonic::Vpscatterqd | Mnemonic::Vscatterqps => (8, 4, true),
        Mnemonic::Vpscatterqq | Mnemonic::Vscatterqpd => (8, 8, true),
        _ => return None,
    })
}

/// The size of the lanes of a masked load or store, and whether its address must be a multiple of its length.
fn row_form(mnemonic: Mnemonic) -> Option<(u8, bool)> {
    Some(match mnemonic {
        Mnemonic::Vmovdqu8 | Mnemonic::Vpcompressb | Mnemonic::Vpexpandb => (1, false),
        Mnemonic::Maskmovdqu | Mnemonic::Vmaskmovdqu => (1, false),
        Mnemonic::Vmovdqu16 | Mnemonic::Vpcompressw | Mnemonic::Vpexpandw => (2, false),
        Mnemonic::Vmovdqu32 | Mnemonic::Vmovups | Mnemonic::Vmaskmovps | Mnemonic::Vpmaskmovd => {
            (4, false)
        }
        Mnemonic::Vpcompressd | Mnemonic::Vcompressps => (4, false),
        Mnemonic::Vpexpandd | Mnemonic::Vexpandps => (4, false),
        Mnemonic::Vmovdqu64 | Mnemonic::Vmovupd | Mnemonic::Vmaskmovpd | Mnemonic::Vpmaskmovq => {
            (8, false)
        }
        Mnemonic::Vpcompressq | Mnemonic::Vcompresspd => (8, false),
        Mnemonic::Vpexpandq | Mnemonic::Vexpandpd => (8, false),
        Mnemonic::Vmovdqa32 | Mnemonic::Vmovaps => (4, true),
        Mnemonic::Vmovdqa64 | Mnemonic::Vmovapd => (8, true),
        _ => return None,
    })
}

/// Whether addresses have eight bytes and no segment.
fn is_usual(instruction: &Instruction) -> bool {
    let is_prefix = |byte: &&u8| !matches!(byte, 0xC4 | 0x62);
    let mut prefixes = instruction.bytes().iter().take_while(is_prefix);
    !prefixes.any(|prefix| matches!(prefix, 0x64 | 0x65 | 0x67))
}

/// The lanes of a masked load or store. `None`: it is none, or its addresses are relative to the instruction, or have a
/// segment or four bytes.
pub(super) fn row(instruction: &Instruction, scratch: [Scratch; 4]) -> Option<Lanes> {
    let insn = instruction.facts.insn();
    let (size, is_aligned) = row_form(insn.mnemonic())?;
    let mut kinds = insn.op_kinds();
    let stores = !insn.op0_kind().eq(&OpKind::Register);
    if !stores && !kinds.any(|kind| kind == OpKind::Memory) || !is_usual(instruction) {
        return None;
    }
    let number = |register: Register| match register {
        Register::None => Some(None),
        register => Some(Some(general(register)? as u8)),
    };
    let (mut base, index) = (number(insn.memory_base())?, number(insn.memory_index())?);
    let last = insn.op_count() - 1;
    let (data, active) = match (insn.op_mask(), insn.op0_kind()) {
        // The vector, and its mask.
        (Register::None, OpKind::MemorySegRDI) => {
            const RDI: u8 = 7;
            let has_vex = insn.mnemonic() == Mnemonic::Vmaskmovdqu;
            if !has_vex && !has_avx() {
                return None;
            }
            base = Some(RDI);
            (1, Active::Vector(insn.op2_register().number() as u8))
        }
        (Register::None, _) if last == 2 => {
            let mask = insn.op1_register().number() as u8;
            (if stores { 2 } else { 0 }, Active::Vector(mask))
        }
        (Register::None, _) => return None,
        (mask, _) => (
            if stores { last } else { 0 },
            Active::Mask(mask.number() as u8),
        ),
    };
    if (base, index) == (None, None) {
        return None;
    }
    let vector = insn.op_register(data);
    let len = vector.size() as u8;
    let displacement = i32::try_from(insn.memory_displacement64().cast_signed()).ok()?;
    // Each lane has one of its own.
    displacement.checked_add(64)?;
    Some(Lanes {
        count: len / size,
        stores,
        data: vector.number() as u8,
        data_len: len,
        size,
        places: match is_packed(insn) {
            true => Places::Packed(index),
            false => Places::Row(index),
        },
        align: if is_aligned { len } else { 1 },
        active,
        zeroes: matches!(active, Active::Vector(_)) || insn.zeroing_masking(),
        base,
        power: insn.memory_index_scale().trailing_zeros() as u8,
        displacement,
        scratch,
    })
}

/// The lanes of a gather or scatter. `None`: it is none, the processor refuses it, or its addresses have a segment or
/// four bytes.
pub(super) fn lanes(instruction: &Instruction, scratch: [Scratch; 4]) -> Option<Lanes> {
    let insn = instruction.facts.insn();
    let (index_size, size, stores) = form(insn.mnemonic())?;
    if !is_usual(instruction) {
        return None;
    }
    let vector = insn.op_register(u32::from(stores));
    let (index, mask) = (insn.memory_index(), insn.op_mask());
    let active = match mask {
        Register::None => Active::Vector(insn.op2_register().number() as u8),
        mask => Active::Mask(mask.number() as u8),
    };
    let (data, index_number) = (vector.number() as u8, index.number() as u8);
    let is_refused = match active {
        Active::Vector(mask) => data == index_number || mask == data || mask == index_number,
        Active::Mask(_) => data == index_number && !stores,
    };
    if is_refused {
        return None;
    }
    let base = match insn.memory_base() {
        Register::None => None,
        base => Some(general(base)? as u8),
    };
    let count = (index.size() / usize::from(index_size)).min(vector.size() / usize::from(size));
    Some(Lanes {
        count: count as u8,
        stores,
        data,
        data_len: vector.size() as u8,
        size,
        places: Places::Vector(index_number, index.size() as u8, index_size),
        align: 1,
        active,
        zeroes: false,
        base,
        power: insn.memory_index_scale().trailing_zeros() as u8,
        displacement: i32::try_from(insn.memory_displacement64().cast_signed()).ok()?,
        scratch,
    })
}
