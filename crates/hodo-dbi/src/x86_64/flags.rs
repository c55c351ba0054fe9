//! Which flags instructions read and overwrite.

use hodo_isa::liveness::Path;
use iced_x86::{CpuidFeature, EncodingKind, Mnemonic, Register, RflagsBits};

use crate::block::Transfer;

/// Whether steps overwrite flags before they read them. Each reads some and then overwrites some. `end`: whether the
/// flags are overwritten after them.
pub(super) fn flags_are_dead(
    flags: u32,
    steps: impl Iterator<Item = (u32, u32)>,
    end: bool,
) -> bool {
    let mut path = Path::new(flags);
    for (read, overwritten) in steps {
        path.step(read, overwritten);
        if path.is_used() || path.is_decided() {
            return !path.is_used();
        }
    }
    end
}

/// Whether the cache's code for such an instruction overwrites the flags. `keeps_flags`: calls and returns do not.
pub(super) fn overwrites_flags(transfer: Transfer, keeps_flags: bool) -> bool {
    matches!(transfer, Transfer::Return | Transfer::IndirectCall) && !keeps_flags
}

/// All flags that arithmetic sets,
pub(super) const FLAGS: u32 = BUT_CARRY | RflagsBits::CF;

/// and those that counters change, which have no carry.
pub(super) const BUT_CARRY: u32 =
    RflagsBits::OF | RflagsBits::SF | RflagsBits::ZF | RflagsBits::AF | RflagsBits::PF;

/// Whether it is none, or one that programs may not execute or that not every processor of today has: a handler sees
/// the flags from before it.
fn is_refused(insn: &iced_x86::Instruction) -> bool {
    insn.is_invalid()
        || insn.is_privileged()
        || insn.encoding() == EncodingKind::XOP
        || insn.mnemonic() == Mnemonic::Femms
        || !insn.cpuid_features().iter().all(is_usual)
}

/// Whether programs use it where they have asked the processor, if at all.
fn is_usual(feature: &CpuidFeature) -> bool {
    use CpuidFeature as Has;
    matches!(
        feature,
        Has::INTEL8086
            | Has::INTEL186
            | Has::INTEL286
            | Has::INTEL386
            | Has::INTEL486
            | Has::X64
            | Has::FPU
            | Has::FPU287
            | Has::FPU387
            | Has::MMX
            | Has::CMOV
            | Has::CX8
            | Has::CMPXCHG16B
            | Has::CPUID
            | Has::TSC
            | Has::RDTSCP
            | Has::RDPID
            | Has::FSGSBASE
            | Has::SYSCALL
            | Has::PAUSE
            | Has::MULTIBYTENOP
            | Has::CET_IBT
            | Has::FXSR
            | Has::XSAVE
            | Has::XSAVEC
            | Has::XSAVEOPT
            | Has::SSE
            | Has::SSE2
            | Has::SSE3
            | Has::SSSE3
            | Has::SSE4_1
            | Has::SSE4_2
            | Has::AES
            | Has::PCLMULQDQ
            | Has::SHA
            | Has::GFNI
            | Has::VAES
            | Has::VPCLMULQDQ
            | Has::F16C
            | Has::FMA
            | Has::AVX
            | Has::AVX2
            | Has::AVX512F
            | Has::AVX512BW
            | Has::AVX512CD
            | Has::AVX512DQ
            | Has::AVX512VL
            | Has::AVX512_IFMA
            | Has::AVX512_VBMI
            | Has::AVX512_VBMI2
            | Has::AVX512_VNNI
            | Has::AVX512_BITALG
            | Has::AVX512_VPOPCNTDQ
            | Has::MOVBE
            | Has::PREFETCHW
            | Has::CLFSH
            | Has::CLFLUSHOPT
            | Has::POPCNT
            | Has::LZCNT
            | Has::BMI1
            | Has::BMI2
            | Has::ADX
            | Has::RDRAND
            | Has::RDSEED
    )
}

/// The flags that an instruction reads, or shows to the handler of a signal that it raises.
pub(super) fn read_flags(insn: &iced_x86::Instruction) -> u32 {
    match is_refused(insn) {
        true => FLAGS,
        false => insn.rflags_read(),
    }
}

/// The flags that an instruction overwrites, whatever its operands are.
pub(super) fn overwritten_flags(insn: &iced_x86::Instruction) -> u32 {
    if is_refused(insn) {
        return 0;
    }
    // What is counted in a register may be zero: then nothing changes.
    let repeats = insn.has_rep_prefix() || insn.has_repne_prefix();
    match repeats || shifts_by_register(insn) {
        true => 0,
        false => insn.rflags_modified(),
    }
}

/// Whether it shifts or rotates by a number in a register.
fn shifts_by_register(insn: &iced_x86::Instruction) -> bool {
    let shifts = matches!(
        insn.mnemonic(),
        Mnemonic::Rcl
            | Mnemonic::Rcr
            | Mnemonic::Rol
            | Mnemonic::Ror
            | Mnemonic::Sal
            | Mnemonic::Sar
            | Mnemonic::Shl
            | Mnemonic::Shr
            | Mnemonic::Shld
            | Mnemonic::Shrd
    );
    let count = insn.op_count().saturating_sub(1);
    shifts && matches!(insn.try_op_register(count), Ok(Register::CL))
}
