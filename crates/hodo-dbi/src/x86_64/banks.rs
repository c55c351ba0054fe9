//! Which registers inserted code may have, and what instructions do with vectors and masks.

use hodo_codegen::reserve::Bank;
use iced_x86::{EncodingKind, InstructionInfoFactory, Mnemonic, OpAccess};

use super::{RAX_NUMBER, RSP_NUMBER, block, features};
use crate::inserted::{Scratch, ScratchMask, ScratchVector};

/// General registers,
pub(super) type General = Bank<Scratch>;
/// vectors,
pub(super) type Vectors = Bank<ScratchVector>;
/// and masks: those of the program, and of inserted code.
pub(super) type Masks = Bank<ScratchMask>;

/// All registers, which are the program's.
pub(super) fn banks() -> (General, Vectors, Masks) {
    // `rax` is needed for the flags.
    let general = Bank::new(block::SPILLS, 0xFFFF & !(1 << RSP_NUMBER), 1 << RAX_NUMBER);
    let vectors = u32::MAX.checked_shr(32 - u32::from(vector_registers()));
    let vectors = Bank::new(block::VECTOR_SLOTS, vectors.unwrap_or(0), 0);
    // The first mask cannot select elements.
    (general, vectors, Bank::new(block::MASK_SLOTS, 0xFE, 0))
}

/// Bytes of the vector registers that inserted code uses: all of them, so that nothing of the program's is lost. 0: the
/// processor has none that can be used.
#[must_use]
pub fn vector_bytes() -> u32 {
    match features::vectors() {
        [_, true] => 64,
        [true, false] => 32,
        [false, false] => 0,
    }
}

/// Whether the processor has mask registers.
#[must_use]
pub fn has_masks() -> bool {
    vector_bytes() == 64
}

/// How many vector registers the processor has.
#[must_use]
pub fn vector_registers() -> u8 {
    match vector_bytes() {
        64 => 32,
        32 => 16,
        _ => 0,
    }
}

/// What an instruction does with registers of a kind: bits by number.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Used {
    /// It reads them, or leaves a part of them as it is.
    pub(super) reads: u32,
    /// It changes them.
    pub(super) changed: u32,
}

/// What an instruction does with vectors and masks.
pub(super) fn used(insn: &iced_x86::Instruction) -> [Used; 2] {
    const ALL: Used = Used {
        reads: !0,
        changed: !0,
    };
    let mut all = [Used::default(); 2];
    if uses_all(insn.mnemonic()) {
        return [ALL; 2];
    }
    // Without these encodings, an instruction does not change the upper part of a vector.
    let is_whole = matches!(insn.encoding(), EncodingKind::VEX | EncodingKind::EVEX);
    let mut factory = InstructionInfoFactory::new();
    for register in factory.info(insn).used_registers() {
        let (number, kind) = match register.register() {
            vector if vector.is_vector_register() => (vector.number(), 0),
            mask if mask.is_k() => (mask.number(), 1),
            _ => continue,
        };
        let changes = matches!(
            register.access(),
            OpAccess::Write | OpAccess::ReadWrite | OpAccess::CondWrite | OpAccess::ReadCondWrite
        );
        let is_overwritten = register.access() == OpAccess::Write && is_whole;
        all[kind].reads |= u32::from(!is_overwritten) << number;
        all[kind].changed |= u32::from(changes) << number;
    }
    all
}

/// Whether an instruction uses registers that it does not name.
fn uses_all(mnemonic: Mnemonic) -> bool {
    matches!(
        mnemonic,
        Mnemonic::Vzeroupper
            | Mnemonic::Vzeroall
            | Mnemonic::Fxsave
            | Mnemonic::Fxsave64
            | Mnemonic::Fxrstor
            | Mnemonic::Fxrstor64
            | Mnemonic::Xsave
            | Mnemonic::Xsave64
            | Mnemonic::Xsaveopt
            | Mnemonic::Xsaveopt64
            | Mnemonic::Xsavec
            | Mnemonic::Xsavec64
            | Mnemonic::Xrstor
            | Mnemonic::Xrstor64
            | Mnemonic::Xsaves
            | Mnemonic::Xsaves64
            | Mnemonic::Xrstors
            | Mnemonic::Xrstors64
    )
}
