//! Instructions whose accesses do not follow from general registers alone.

use iced_x86::{MemorySize, Mnemonic, OpAccess, OpKind, Register, UsedMemory};

use super::features::cpuid;
use crate::block::Area;

/// Bytes that `clzero` clears: a line.
pub(super) const LINE: u32 = 64;

/// What `clzero` clears, in the line of that address.
pub(super) fn cleared() -> UsedMemory {
    UsedMemory::new(
        Register::DS,
        Register::RAX,
        Register::None,
        1,
        0,
        MemorySize::UInt512,
        OpAccess::Write,
    )
}

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

/// Whether it accesses its whole operand, whatever its mask is: instructions that move elements to other lanes, as
/// Intel's manual says (volume 2, section 2.8, classes with "NF").
pub(super) fn ignores_mask(insn: &iced_x86::Instruction) -> bool {
    matches!(
        insn.mnemonic(),
        Mnemonic::Vdbpsadbw
            | Mnemonic::Vgf2p8affineinvqb
            | Mnemonic::Vgf2p8affineqb
            | Mnemonic::Vinsertf32x4
            | Mnemonic::Vinsertf32x8
            | Mnemonic::Vinsertf64x2
            | Mnemonic::Vinsertf64x4
            | Mnemonic::Vinserti32x4
            | Mnemonic::Vinserti32x8
            | Mnemonic::Vinserti64x2
            | Mnemonic::Vinserti64x4
            | Mnemonic::Vmovddup
            | Mnemonic::Vmovshdup
            | Mnemonic::Vmovsldup
            | Mnemonic::Vpackssdw
            | Mnemonic::Vpacksswb
            | Mnemonic::Vpackusdw
            | Mnemonic::Vpackuswb
            | Mnemonic::Vpalignr
            | Mnemonic::Valignd
            | Mnemonic::Valignq
            | Mnemonic::Vpconflictd
            | Mnemonic::Vpconflictq
            | Mnemonic::Vpermb
            | Mnemonic::Vpermd
            | Mnemonic::Vpermi2b
            | Mnemonic::Vpermi2d
            | Mnemonic::Vpermi2pd
            | Mnemonic::Vpermi2ps
            | Mnemonic::Vpermi2q
            | Mnemonic::Vpermi2w
            | Mnemonic::Vpermilpd
            | Mnemonic::Vpermilps
            | Mnemonic::Vpermpd
            | Mnemonic::Vpermps
            | Mnemonic::Vpermq
            | Mnemonic::Vpermt2b
            | Mnemonic::Vpermt2d
            | Mnemonic::Vpermt2pd
            | Mnemonic::Vpermt2ps
            | Mnemonic::Vpermt2q
            | Mnemonic::Vpermt2w
            | Mnemonic::Vpermw
            | Mnemonic::Vpmaddubsw
            | Mnemonic::Vpmaddwd
            | Mnemonic::Vpmultishiftqb
            | Mnemonic::Vpshufb
            | Mnemonic::Vpshufd
            | Mnemonic::Vpshufhw
            | Mnemonic::Vpshuflw
            | Mnemonic::Vpunpckhbw
            | Mnemonic::Vpunpckhdq
            | Mnemonic::Vpunpckhqdq
            | Mnemonic::Vpunpckhwd
            | Mnemonic::Vpunpcklbw
            | Mnemonic::Vpunpckldq
            | Mnemonic::Vpunpcklqdq
            | Mnemonic::Vpunpcklwd
            | Mnemonic::Vshuff32x4
            | Mnemonic::Vshuff64x2
            | Mnemonic::Vshufi32x4
            | Mnemonic::Vshufi64x2
            | Mnemonic::Vshufpd
            | Mnemonic::Vshufps
            | Mnemonic::Vunpckhpd
            | Mnemonic::Vunpckhps
            | Mnemonic::Vunpcklpd
            | Mnemonic::Vunpcklps
    ) || shifts_by_one_number(insn)
}

/// Whether it shifts all elements by the same number, which comes from memory.
fn shifts_by_one_number(insn: &iced_x86::Instruction) -> bool {
    let is_shift = matches!(
        insn.mnemonic(),
        Mnemonic::Vpslld
            | Mnemonic::Vpsllq
            | Mnemonic::Vpsllw
            | Mnemonic::Vpsrad
            | Mnemonic::Vpsraq
            | Mnemonic::Vpsraw
            | Mnemonic::Vpsrld
            | Mnemonic::Vpsrlq
            | Mnemonic::Vpsrlw
    );
    is_shift && insn.op_count() == 3 && insn.op2_kind() == OpKind::Memory
}

/// Bytes that one bit of the mask selects, of instructions that make one element of several in memory: products of
/// every second number, and sums of products.
pub(super) fn selected(insn: &iced_x86::Instruction) -> Option<u32> {
    match insn.mnemonic() {
        Mnemonic::Vpmuldq | Mnemonic::Vpmuludq => Some(8),
        Mnemonic::Vdpbf16ps
        | Mnemonic::Vpdpbusd
        | Mnemonic::Vpdpbusds
        | Mnemonic::Vpdpwssd
        | Mnemonic::Vpdpwssds => Some(4),
        _ => None,
    }
}

/// The number of lanes among which elements of this size are spread that are fewer.
pub(super) fn spread(insn: &iced_x86::Instruction, size: u32) -> Option<u32> {
    let spreads = matches!(
        insn.mnemonic(),
        Mnemonic::Vbroadcastf32x2
            | Mnemonic::Vbroadcastf32x4
            | Mnemonic::Vbroadcastf32x8
            | Mnemonic::Vbroadcastf64x2
            | Mnemonic::Vbroadcastf64x4
            | Mnemonic::Vbroadcasti32x2
            | Mnemonic::Vbroadcasti32x4
            | Mnemonic::Vbroadcasti32x8
            | Mnemonic::Vbroadcasti64x2
            | Mnemonic::Vbroadcasti64x4
            | Mnemonic::Vbroadcastsd
            | Mnemonic::Vbroadcastss
            | Mnemonic::Vpbroadcastb
            | Mnemonic::Vpbroadcastd
            | Mnemonic::Vpbroadcastq
            | Mnemonic::Vpbroadcastw
    );
    let bytes = if insn.is_broadcast() {
        // The name says how large the operand is in which the element is repeated: Broadcast512_Float32.
        let name = format!("{:?}", insn.memory_size());
        let bits = name.trim_start_matches("Broadcast").split('_').next()?;
        bits.parse::<u32>().ok()? / 8
    } else if spreads {
        insn.op0_register().size() as u32
    } else {
        return None;
    };
    Some(bytes / size.max(1))
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
