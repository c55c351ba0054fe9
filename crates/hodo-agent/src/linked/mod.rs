//! Instruction sets whose calls put the return address in a register: what Rust sees of their assembly.

/// The slow paths: pieces of assembly, and the names that only they have.
macro_rules! linked_slow_paths {
    ([$($assembly:expr),+], $($own:tt)*) => {
        slow_paths!(
            [$($assembly),+],
            EPOCH_END = const tcb::EPOCH_END,
            TO_SHADOW = const tcb::TO_SHADOW,
            ISLAND0_LO = const tcb::ISLAND0_LO,
            ISLAND0_LEN = const tcb::ISLAND0_LEN,
            ISLAND1_LO = const tcb::ISLAND1_LO,
            ISLAND1_LEN = const tcb::ISLAND1_LEN,
            SP_SHIFT = const record::SP_SHIFT,
            SP_BITS = const record::SP_BITS,
            WINDOW = const tcb::WINDOW,
            LOWERED_WINDOWS = const tcb::LOWERED_WINDOWS,
            WINDOW_SIZE = const WINDOW_SIZE,
            WINDOW_SHIFT = const record::WINDOW_SHIFT,
            WINDOW_UNIT = const 1u32 << record::WINDOW_SHIFT,
            WINDOW_INFO = const (record::SPECIAL << record::KIND_SHIFT) | record::SPECIAL_WINDOW,
            STACK_INFO = const (record::SPECIAL << record::KIND_SHIFT) | record::SPECIAL_STACK,
            ATTEMPTS = const ATTEMPTS,
            VECTORS = const tcb::VECTORS,
            $($own)*
        );
    };
}

mod slow_paths;
mod stack;
mod trap_handler;

pub(crate) use slow_paths::ATTEMPTS;
pub use slow_paths::{Runtime, runtime};
pub use stack::stack;
pub use trap_handler::trap_handler;
