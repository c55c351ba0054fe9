//! What patching needs from the place where it runs.

/// The `errno` of a failed system call, or of whatever else writes code.
pub type Errno = i32;

/// Writes code.
///
/// # Safety
/// When [`sync`](Self::sync) returns without an error, everything has been written, all processors see it, and none
/// executes what it fetched before.
pub unsafe trait Text {
    /// Writes code that other processors may be executing, now or at the next [`sync`](Self::sync). The bytes may
    /// become visible in any order, except for an aligned word of four bytes on RISC-V and AArch64: that must be one
    /// store.
    ///
    /// # Errors
    /// If nothing was written.
    ///
    /// # Safety
    /// `at` is code of the program, and `bytes` is allowed there.
    unsafe fn write(&self, at: usize, bytes: &[u8]) -> Result<(), Errno>;

    /// Writes what is not yet written, and makes every processor execute a serializing instruction (x86-64), `fence.i`
    /// (RISC-V), or `isb` (AArch64).
    ///
    /// # Errors
    /// If something was not written.
    fn sync(&self) -> Result<(), Errno>;
}

/// Memory for code.
#[derive(Clone, Copy, Debug)]
pub struct Page {
    /// Where it begins: a multiple of 16.
    pub address: usize,
    /// Its length in bytes.
    pub length: usize,
}

/// Provides memory for code that sites call.
///
/// # Safety
/// The memory is executable, [`Text::write`] can write there, nobody else uses it, and it stays.
pub unsafe trait Pages {
    /// Memory that all addresses from `from` to `to` can call: no byte of it is further than `reach` bytes from any of
    /// them. At least 512 bytes. On RISC-V, a module uses one page, and no more than 4,096 bytes of it.
    fn page(&self, from: usize, to: usize, reach: usize) -> Option<Page>;
}
