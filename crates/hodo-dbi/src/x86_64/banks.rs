//! Which vector and mask registers there are, and what is in them.

use std::collections::HashMap;

use hodo_isa::x86_64::asm::WidePlace;
use iced_x86::{EncodingKind, InstructionInfoFactory, Mnemonic, OpAccess};

use super::{block, features};
use crate::inserted::Wide;
use crate::passes::Moved;

/// Where a scratch register is. At first, it is nowhere.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Held {
    pub(super) register: Option<u8>,
    pub(super) slot: Option<u8>,
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

/// A kind of registers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Vector,
    Mask,
}

impl Kind {
    pub(super) fn of(wide: Wide) -> Self {
        match wide {
            Wide::Vector(_) => Self::Vector,
            Wide::Mask(_) => Self::Mask,
        }
    }

    /// Those that scratch registers may be, by number. The first mask cannot select elements.
    pub(super) fn numbers(self) -> std::ops::Range<u8> {
        match self {
            Self::Vector => 0..vector_registers(),
            Self::Mask => 1..8,
        }
    }

    /// A slot of the thread's block.
    pub(super) fn at(self, slot: u8) -> WidePlace {
        WidePlace::Block(match self {
            Self::Vector => block::VECTORS + 64 * u32::from(slot),
            Self::Mask => block::MASKS + 8 * u32::from(slot),
        })
    }
}

/// The registers of a kind.
#[derive(Debug)]
pub(super) struct Bank {
    /// The slots of registers whose values are in one.
    pub(super) program: [Option<u8>; 32],
    pub(super) holder: [Option<Wide>; 32],
    /// Slots that are free, and registers that the step uses: bits by number.
    pub(super) free: u32,
    pub(super) pinned: u32,
}

impl Bank {
    fn new(slots: u32) -> Self {
        Self {
            program: [None; 32],
            holder: [None; 32],
            free: (1 << slots) - 1,
            pinned: 0,
        }
    }

    pub(super) fn slot(&mut self) -> u8 {
        assert!(self.free != 0, "a fragment needs too many slots");
        let slot = self.free.trailing_zeros();
        self.free &= !(1 << slot);
        slot as u8
    }
}

/// Vectors and masks: those of the program, and of inserted code.
#[derive(Debug)]
pub(super) struct Banks {
    vectors: Bank,
    masks: Bank,
    pub(super) held: HashMap<Wide, Held>,
    /// What the program has is in its registers, too.
    pub(super) are_shown: bool,
}

impl Default for Banks {
    fn default() -> Self {
        Self {
            vectors: Bank::new(block::VECTOR_SLOTS),
            masks: Bank::new(block::MASK_SLOTS),
            held: HashMap::new(),
            are_shown: false,
        }
    }
}

impl Banks {
    pub(super) fn of(&mut self, kind: Kind) -> &mut Bank {
        match kind {
            Kind::Vector => &mut self.vectors,
            Kind::Mask => &mut self.masks,
        }
    }

    /// Nothing is used by a step yet.
    pub(super) fn unpin(&mut self) {
        self.vectors.pinned = 0;
        self.masks.pinned = 0;
    }

    /// What of the program is in slots.
    pub(super) fn moved(&self) -> impl Iterator<Item = (Moved, u8)> {
        let vectors = self.vectors.program.iter().zip(0..);
        let vectors = vectors.filter_map(|(slot, number)| Some((Moved::Vector(number), (*slot)?)));
        let masks = self.masks.program.iter().zip(0..);
        let masks = masks.filter_map(|(slot, number)| Some((Moved::Mask(number), (*slot)?)));
        vectors.chain(masks).filter(|_| !self.are_shown)
    }

    /// Whether nothing is moved, and nothing reserved.
    pub(super) fn is_idle(&self) -> bool {
        self.held.is_empty() && self.moved().next().is_none()
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
