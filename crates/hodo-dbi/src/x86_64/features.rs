//! What the processor has that executes translated code: this machine's, if it has this instruction set.

/// Whether code of this instruction set is executed here. Elsewhere it can be translated, for a processor without
/// vectors that inserted code could use.
pub(super) const IS_HERE: bool = cfg!(target_arch = "x86_64");

/// Whether it has vectors of 32 bytes, and whether it has some of 64 with masks.
pub(super) fn vectors() -> [bool; 2] {
    #[cfg(target_arch = "x86_64")]
    let has = [
        is_x86_feature_detected!("avx2"),
        is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512bw"),
    ];
    #[cfg(not(target_arch = "x86_64"))]
    let has = [false; 2];
    has
}

/// Whether it has the instructions for vectors with three operands.
pub(super) fn has_avx() -> bool {
    #[cfg(target_arch = "x86_64")]
    let has = is_x86_feature_detected!("avx");
    #[cfg(not(target_arch = "x86_64"))]
    let has = false;
    has
}

/// Whether near branches with the prefix 66 have operands of two bytes and lead to addresses of two bytes, as on AMD's
/// processors. Intel's ignore the prefix. (AMD's manual, volume 3, "Jcc" to "RET"; Intel's, volume 2, "JMP".)
pub(super) fn narrows_branches() -> bool {
    static NARROWS: std::sync::LazyLock<bool> =
        std::sync::LazyLock::new(|| matches!(&cpuid(0, 0)[1].to_le_bytes(), b"Auth" | b"Hygo"));
    *NARROWS
}

/// What `cpuid` says in `eax` and `ebx`.
pub(super) fn cpuid(leaf: u32, part: u32) -> [u32; 2] {
    #[cfg(target_arch = "x86_64")]
    let found = {
        let found = std::arch::x86_64::__cpuid_count(leaf, part);
        [found.eax, found.ebx]
    };
    #[cfg(not(target_arch = "x86_64"))]
    let found = {
        let _ = (leaf, part);
        [0; 2]
    };
    found
}
