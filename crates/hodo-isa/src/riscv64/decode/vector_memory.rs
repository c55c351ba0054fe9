//! Vector loads and stores.

use super::operand::Operand::{self, *};
use super::operand::{field, funct3, rs2};

/// How a vector load or store accesses memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pattern {
    /// Consecutive elements.
    Unit,
    /// Consecutive elements, up to the first that cannot be loaded.
    FaultFirst,
    /// A mask, in consecutive bytes.
    Mask,
    /// Whole registers, in consecutive bytes.
    Whole,
    /// Elements at the stride that a register holds.
    Strided,
    /// Elements at the offsets that a vector register holds, each of this many bytes.
    Indexed,
}

/// What the fields of a vector load or store mean.
#[derive(Clone, Copy)]
pub(crate) struct Access {
    pub pattern: Pattern,
    /// Bytes of an element, or of an offset.
    pub size: u8,
    /// Registers or groups that are loaded or stored.
    pub fields: u8,
}

/// The fields of a store if `store`, otherwise of a load; `None` if there is no such instruction.
pub(crate) fn access(word: u32, store: bool) -> Option<Access> {
    let size = match funct3(word) {
        0 => 1,
        5 => 2,
        6 => 4,
        7 => 8,
        _ => return None,
    };
    if field(word, 28, 1) != 0 {
        return None;
    }
    let fields = field(word, 29, 3) as u8 + 1;
    let masked = field(word, 25, 1) == 0;
    let pattern = match (field(word, 26, 2), rs2(word)) {
        (0, 0) => Pattern::Unit,
        (0, 8) => {
            let sized = !store || size == 1;
            if !fields.is_power_of_two() || masked || !sized {
                return None;
            }
            Pattern::Whole
        }
        (0, 11) => {
            if fields != 1 || masked || size != 1 {
                return None;
            }
            Pattern::Mask
        }
        (0, 16) if !store => Pattern::FaultFirst,
        (0, _) => return None,
        (2, _) => Pattern::Strided,
        _ => Pattern::Indexed,
    };
    Some(Access {
        pattern,
        size,
        fields,
    })
}

/// The operands of a load or store.
pub(crate) fn access_operands(store: bool, pattern: Pattern) -> &'static [Operand] {
    match (pattern, store) {
        (Pattern::Unit | Pattern::FaultFirst, false) => &[Vd, Mem, Mask],
        (Pattern::Unit | Pattern::FaultFirst, true) => &[Vs3, Mem, Mask],
        (Pattern::Whole | Pattern::Mask, false) => &[Vd, Mem],
        (Pattern::Whole | Pattern::Mask, true) => &[Vs3, Mem],
        (Pattern::Strided, false) => &[Vd, Mem, Rs2, Mask],
        (Pattern::Strided, true) => &[Vs3, Mem, Rs2, Mask],
        (Pattern::Indexed, false) => &[Vd, Mem, Vs2, Mask],
        (Pattern::Indexed, true) => &[Vs3, Mem, Vs2, Mask],
    }
}
