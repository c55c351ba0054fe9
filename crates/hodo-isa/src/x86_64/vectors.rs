//! Which vector and floating-point registers an instruction uses. If code uses only some of them, or none, it can be
//! called without saving them all.

use iced_x86::{
    CpuidFeature, Decoder, DecoderOptions, EncodingKind, Instruction, Mnemonic, OpKind,
};

/// Which registers besides the general ones an instruction may change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Vectors {
    /// Nothing.
    None,
    /// The lower 128 bits of vector registers 0 to 15, and MXCSR; the upper bits are preserved.
    Lower,
    /// Anything.
    All,
}

/// Returns this for the instruction at the start of `code`.
#[must_use]
pub fn vectors(code: &[u8], addr: u64) -> Vectors {
    let raw = Decoder::with_ip(64, code, addr, DecoderOptions::NONE).decode();
    if raw.is_invalid() {
        Vectors::All
    } else {
        of(&raw)
    }
}

fn of(raw: &Instruction) -> Vectors {
    let legacy = raw.code().encoding() == EncodingKind::Legacy;
    let mut found = match raw.mnemonic() {
        Mnemonic::Ldmxcsr => Vectors::Lower,
        _ => Vectors::None,
    };
    for op in (0..raw.op_count()).filter(|op| raw.op_kind(*op) == OpKind::Register) {
        let register = raw.op_register(op);
        found = found.max(match () {
            () if register.is_gpr() => Vectors::None,
            () if register.is_xmm() && legacy => Vectors::Lower,
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
        let cases: [(&[u8], Vectors); 9] = [
            // add rax, rcx; rep movsb; andn eax, ecx, edx
            (&[0x48, 0x01, 0xC8], Vectors::None),
            (&[0xF3, 0xA4], Vectors::None),
            (&[0xC4, 0xE2, 0x70, 0xF2, 0xC2], Vectors::None),
            // movups xmm0, [rdi]; pxor xmm8, xmm8
            (&[0x0F, 0x10, 0x07], Vectors::Lower),
            (&[0x66, 0x45, 0x0F, 0xEF, 0xC0], Vectors::Lower),
            // vmovups xmm0, [rdi]; vzeroupper; fld1; movq mm0, [rdi]
            (&[0xC5, 0xF8, 0x10, 0x07], Vectors::All),
            (&[0xC5, 0xF8, 0x77], Vectors::All),
            (&[0xD9, 0xE8], Vectors::All),
            (&[0x0F, 0x6F, 0x07], Vectors::All),
        ];
        for (code, expected) in cases {
            assert_eq!(vectors(code, 0x1000), expected, "{code:02x?}");
        }
    }
}
