//! Which vector and floating-point registers an instruction uses. If code uses only some of them, or none, it can be
//! called without saving them all.

use iced_x86::{
    Code, CpuidFeature, Decoder, DecoderOptions, EncodingKind, Instruction, Mnemonic, OpKind,
};

use super::scan::{Reference, Sweep};
use crate::effects::{Look, Vectors};

/// The most bytes that [`look`] examines.
pub const MOST_BYTES: usize = 15;

/// Looks at the instruction at the start of `code`.
#[must_use]
pub fn look(code: &[u8], addr: u64) -> Option<Look> {
    let insn = Sweep::new(code, addr).next()?;
    Some(Look {
        vectors: vectors(code, addr),
        flow: insn.flow,
        word: match insn.reference {
            Reference::Memory(word) => Some(word),
            _ => None,
        },
        end: insn.end(),
    })
}

/// What the instruction at the start of `code` may change.
#[must_use]
pub fn vectors(code: &[u8], addr: u64) -> Vectors {
    let raw = Decoder::with_ip(64, code, addr, DecoderOptions::NONE).decode();
    // Where a breakpoint is, anything may run.
    if raw.is_invalid() || raw.code() == Code::Int3 {
        Vectors::All
    } else {
        of(&raw)
    }
}

fn of(raw: &Instruction) -> Vectors {
    let legacy = raw.code().encoding() == EncodingKind::Legacy;
    let mut found = match raw.mnemonic() {
        Mnemonic::Ldmxcsr => Vectors::Part,
        _ => Vectors::None,
    };
    for op in (0..raw.op_count()).filter(|op| raw.op_kind(*op) == OpKind::Register) {
        let register = raw.op_register(op);
        found = found.max(match () {
            () if register.is_gpr() => Vectors::None,
            () if register.is_xmm() && legacy => Vectors::Part,
            () => Vectors::All,
        });
    }
    // Instructions that use such registers without naming them.
    let whole = [
        CpuidFeature::FPU,
        CpuidFeature::FPU287,
        CpuidFeature::FPU387,
        CpuidFeature::MMX,
        CpuidFeature::FXSR,
        CpuidFeature::XSAVE,
        CpuidFeature::XSAVEC,
        CpuidFeature::XSAVEOPT,
        CpuidFeature::XSAVES,
        CpuidFeature::AMX_TILE,
    ];
    let features = raw.code().cpuid_features();
    let unnamed = features.iter().any(|feature| whole.contains(feature));
    // `vzeroupper` and its like, which have no operands.
    let bare = !legacy && raw.op_count() == 0;
    if unnamed || bare { Vectors::All } else { found }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instructions_tell_what_they_change() {
        let cases: [(&[u8], Vectors); 10] = [
            // add rax, rcx; rep movsb; andn eax, ecx, edx
            (&[0x48, 0x01, 0xC8], Vectors::None),
            (&[0xF3, 0xA4], Vectors::None),
            (&[0xC4, 0xE2, 0x70, 0xF2, 0xC2], Vectors::None),
            // movups xmm0, [rdi]; pxor xmm8, xmm8
            (&[0x0F, 0x10, 0x07], Vectors::Part),
            (&[0x66, 0x45, 0x0F, 0xEF, 0xC0], Vectors::Part),
            // vmovups xmm0, [rdi]; vzeroupper; fld1; movq mm0, [rdi]
            (&[0xC5, 0xF8, 0x10, 0x07], Vectors::All),
            (&[0xC5, 0xF8, 0x77], Vectors::All),
            (&[0xD9, 0xE8], Vectors::All),
            (&[0x0F, 0x6F, 0x07], Vectors::All),
            // int3
            (&[0xCC], Vectors::All),
        ];
        for (code, expected) in cases {
            assert_eq!(vectors(code, 0x1000), expected, "{code:02x?}");
        }
    }
}
