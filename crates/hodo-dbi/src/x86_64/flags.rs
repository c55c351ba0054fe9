//! Which flags instructions read and overwrite.

use iced_x86::{CpuidFeature, EncodingKind, Mnemonic, Register, RflagsBits};

use crate::block::Transfer;

/// Whether instructions overwrite the flags, other than the carry flag, before they read them. `last`: how the last
/// one passes control on. `keeps_flags`: calls and returns do so.
pub(super) fn flags_are_dead<'i>(
    insns: impl Iterator<Item = &'i iced_x86::Instruction>,
    last: Option<Transfer>,
    keeps_flags: bool,
) -> bool {
    let mut flags =
        RflagsBits::OF | RflagsBits::SF | RflagsBits::ZF | RflagsBits::AF | RflagsBits::PF;
    for insn in insns {
        if read_flags(insn) & flags != 0 {
            return false;
        }
        flags &= !overwritten_flags(insn);
        if flags == 0 {
            return true;
        }
    }
    last.is_some_and(|transfer| overwrites_flags(transfer, keeps_flags))
}

/// Whether the cache's code for such an instruction overwrites the flags. `keeps_flags`: calls and returns do not.
pub(super) fn overwrites_flags(transfer: Transfer, keeps_flags: bool) -> bool {
    matches!(transfer, Transfer::Return | Transfer::IndirectCall) && !keeps_flags
}

/// All flags that arithmetic sets.
pub(super) const FLAGS: u32 = RflagsBits::OF
    | RflagsBits::SF
    | RflagsBits::ZF
    | RflagsBits::AF
    | RflagsBits::PF
    | RflagsBits::CF;

/// Whether it is none, or one that programs may not execute or that hardly a processor has, which is looked at more
/// closely if it changes flags: a handler sees the flags from before it.
fn is_refused(insn: &iced_x86::Instruction) -> bool {
    use CpuidFeature as Has;
    let is_usual = |feature: &Has| {
        matches!(
            feature,
            Has::INTEL8086
                | Has::INTEL186
                | Has::INTEL286
                | Has::INTEL386
                | Has::INTEL486
                | Has::X64
                | Has::FPU
                | Has::CMOV
                | Has::CX8
                | Has::CMPXCHG16B
                | Has::SSE
                | Has::SSE2
                | Has::SSE4_1
                | Has::SSE4_2
                | Has::AVX
                | Has::AVX512F
                | Has::AVX512BW
                | Has::AVX512DQ
                | Has::POPCNT
                | Has::LZCNT
                | Has::BMI1
                | Has::BMI2
                | Has::ADX
                | Has::RDRAND
                | Has::RDSEED
        )
    };
    let changes_flags = insn.rflags_modified() & FLAGS != 0;
    insn.is_invalid()
        || insn.is_privileged()
        || insn.encoding() == EncodingKind::XOP
        || matches!(insn.mnemonic(), Mnemonic::Femms | Mnemonic::Getsec)
        || changes_flags && !insn.cpuid_features().iter().all(is_usual)
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
