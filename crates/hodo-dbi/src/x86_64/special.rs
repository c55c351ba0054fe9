//! Instructions of which general registers alone do not say what they access.

use iced_x86::{Mnemonic, Register};

use super::features::cpuid;
use crate::block::Area;

/// Whether a mask selects the elements that it accesses.
pub(super) fn is_masked(insn: &iced_x86::Instruction) -> bool {
    insn.op_mask() != Register::None
        || matches!(
            insn.mnemonic(),
            Mnemonic::Maskmovdqu
                | Mnemonic::Vmaskmovdqu
                | Mnemonic::Vmaskmovps
                | Mnemonic::Vmaskmovpd
                | Mnemonic::Vpmaskmovd
                | Mnemonic::Vpmaskmovq
        )
}

/// Whether only the active elements are in memory.
pub(super) fn is_packed(insn: &iced_x86::Instruction) -> bool {
    matches!(
        insn.mnemonic(),
        Mnemonic::Vcompresspd
            | Mnemonic::Vcompressps
            | Mnemonic::Vpcompressb
            | Mnemonic::Vpcompressd
            | Mnemonic::Vpcompressq
            | Mnemonic::Vpcompressw
            | Mnemonic::Vexpandpd
            | Mnemonic::Vexpandps
            | Mnemonic::Vpexpandb
            | Mnemonic::Vpexpandd
            | Mnemonic::Vpexpandq
            | Mnemonic::Vpexpandw
    )
}

/// The layout of the area of `xsave`. Intel's manual, volume 1, section 13.4.
pub(super) fn area(compact: bool) -> Area {
    const LEAF: u32 = 13;
    let [there, _] = cpuid(LEAF, 0);
    let component = |number: u32| {
        if number < 2 || there >> number & 1 == 0 {
            // The first two are in the part that is always there.
            return (1, 0);
        }
        let [size, start] = cpuid(LEAF, number);
        (if compact { 0 } else { start }, size)
    };
    Area {
        least: 576,
        components: (0..19).map(component).collect(),
    }
}
