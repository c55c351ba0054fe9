//! How the agent's system calls preserve a thread's vector registers.
//!
//! At each system call, Linux discards all but 16 bytes of each SVE register, all predicates and FFR, and ends
//! streaming mode. The auxiliary vector (AT_HWCAP, AT_HWCAP2) names the processor's features. A program needs no
//! permission to use them, so the instructions that save registers never fault.

use hodo_ptrace::auxv;
use hodo_trace::format::tcb;

/// Bits of AT_HWCAP and AT_HWCAP2 (`arch/arm64/include/uapi/asm/hwcap.h`).
const SVE: u64 = 1 << 22;
const SME: u64 = 1 << 23;

/// The value of [`tcb::FLAGS`] for a thread that is not under a seccomp filter.
pub fn calls(tid: i32) -> u64 {
    // If the vector cannot be read, nothing is known.
    flags(&auxv::of(tid).unwrap_or_default())
}

/// The value for a program with this auxiliary vector.
fn flags(auxiliary: &[u8]) -> u64 {
    let Some(features) = auxv::find(auxiliary, libc::AT_HWCAP) else {
        return tcb::NO_CALLS;
    };
    // Kernels without it know of no streaming mode.
    let further = auxv::find(auxiliary, libc::AT_HWCAP2).unwrap_or(0);
    let mut flags = 0;
    if features & SVE != 0 {
        flags |= tcb::VECTORS;
    }
    if further & SME != 0 {
        flags |= tcb::STREAMS;
    }
    flags
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_told_of_vector_registers() {
        let auxiliary = |features: u64, further: u64| -> Vec<u8> {
            let words = [
                6,
                4096,
                libc::AT_HWCAP,
                features,
                libc::AT_HWCAP2,
                further,
                0,
                0,
            ];
            words.iter().flat_map(|word| word.to_le_bytes()).collect()
        };
        // Floating point, SIMD and more, with SVE and without.
        assert_eq!(flags(&auxiliary(0x43_00FF, 0)), tcb::VECTORS);
        assert_eq!(flags(&auxiliary(0x03_00FF, 0)), 0);
        // A processor may have SVE in streaming mode only.
        assert_eq!(flags(&auxiliary(0x03_00FF, SME)), tcb::STREAMS);
        assert_eq!(
            flags(&auxiliary(0x43_00FF, SME | 1)),
            tcb::VECTORS | tcb::STREAMS
        );
        assert_eq!(flags(&auxiliary(SVE, SME)[..40]), tcb::VECTORS);
        assert_eq!(flags(&[]), tcb::NO_CALLS);
    }

    #[test]
    fn what_this_process_may_do_is_known() {
        // SAFETY: these only query a state.
        let (features, further) = unsafe {
            (
                libc::getauxval(libc::AT_HWCAP),
                libc::getauxval(libc::AT_HWCAP2),
            )
        };
        let flags = calls(std::process::id().cast_signed());
        assert_eq!(flags & tcb::VECTORS != 0, features & SVE != 0);
        assert_eq!(flags & tcb::STREAMS != 0, further & SME != 0);
        assert_eq!(flags & tcb::NO_CALLS, 0);
    }
}
