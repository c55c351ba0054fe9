//! What the processor has that the code of stubs depends on. Programs run on the one that runs this.

/// Whether one instruction adds to memory (`ldadd`).
#[cfg(target_arch = "aarch64")]
pub(crate) fn has_atomics() -> bool {
    std::arch::is_aarch64_feature_detected!("lse")
}

/// Every processor has such an instruction.
#[cfg(not(target_arch = "aarch64"))]
pub(crate) fn has_atomics() -> bool {
    true
}
