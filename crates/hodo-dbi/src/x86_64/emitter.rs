//! Who writes code: the translator, with what is known of this instruction set.

use std::ops::{Deref, DerefMut};

use iced_x86::InstructionInfoFactory;
use rustc_hash::FxHashMap;

use super::X86_64;
use crate::translate::Translator;
use hodo_isa::x86_64::asm::Label;

/// An instruction of a block.
pub(super) type Decoded = crate::translate::Decoded<X86_64>;

/// Writes code for this instruction set: the translator, and what is in this room.
pub(super) struct Emitter<'t, 'c, 'r>(pub(super) &'t mut Translator<'c, 'r, X86_64>);

impl<'c, 'r> Deref for Emitter<'_, 'c, 'r> {
    type Target = Translator<'c, 'r, X86_64>;

    fn deref(&self) -> &Self::Target {
        self.0
    }
}

impl DerefMut for Emitter<'_, '_, '_> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        self.0
    }
}

/// Words that comparisons need.
#[derive(Default)]
pub(crate) struct CheckWords {
    /// What code is compared with.
    pub(super) literals: Vec<(Label, u64)>,
    /// Where to continue if it differs, with the breakpoint, the instruction and its translation.
    pub(super) cells: Vec<(Label, u64, u64, u64)>,
}

/// What is known while code is translated.
pub(crate) struct Own {
    /// Has memory for what is found out of instructions.
    pub(super) factory: InstructionInfoFactory,
    /// Flags that the program may read from instructions on.
    pub(super) live_flags: FxHashMap<u64, u32>,
    pub(super) checks: CheckWords,
}

impl Default for Own {
    fn default() -> Self {
        Self {
            factory: InstructionInfoFactory::new(),
            live_flags: FxHashMap::default(),
            checks: CheckWords::default(),
        }
    }
}
