//! What hooked functions ask the tracer before they make a system call that would affect it.

/// Such a system call: see `hodo_codegen::native::hooks::ask`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Asked {
    /// `mlockall`
    LockAll {
        /// Its flags.
        flags: u64,
    },
    /// The program sets the base of the segment that leads to the control block.
    SetBase,
    /// It asks for this base.
    GetBase {
        /// Where the answer goes.
        to: u64,
    },
}
