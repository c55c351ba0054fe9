//! An instruction set that has no engine yet.

pub(crate) mod analyze {
    use crate::block::Flow;

    /// What an instruction does.
    #[derive(Debug)]
    pub(crate) struct Facts {
        pub(crate) flow: Flow,
        pub(crate) reads: u16,
        pub(crate) changed: u16,
    }

    impl Facts {
        /// Whether it loads from several addresses that a vector gives.
        pub(crate) fn is_gather(&self) -> bool {
            false
        }

        /// Whether it stores to them.
        pub(crate) fn is_scatter(&self) -> bool {
            false
        }
    }
}

pub(crate) mod lanes {
    use crate::fragment::Instruction;
    use crate::inserted::{Lanes, Scratch};

    /// The lanes of a gather or scatter.
    pub(crate) fn lanes(_: &Instruction, _: [Scratch; 4]) -> Option<Lanes> {
        None
    }

    /// The lanes of a masked load or store.
    pub(crate) fn row(_: &Instruction, _: [Scratch; 4]) -> Option<Lanes> {
        None
    }
}

pub(crate) mod banks {
    /// Bytes of the vector registers that inserted code uses: there are none without an engine.
    #[must_use]
    pub fn vector_bytes() -> u32 {
        0
    }

    /// Whether the processor has mask registers for inserted code: there are none without an engine.
    #[must_use]
    pub fn has_masks() -> bool {
        false
    }

    /// How many vector registers inserted code can name: none without an engine.
    #[must_use]
    pub fn vector_registers() -> u8 {
        0
    }
}

pub(crate) mod instruction {
    use crate::fragment::Instruction;
    use crate::inserted::Repeated;

    /// An instruction that a pass puts in the place of one.
    pub(crate) fn instruction(_: (u64, u64), _: &[u8]) -> Option<Instruction> {
        None
    }

    /// One round of a repeated string instruction.
    pub(crate) fn one_round(_: &Instruction) -> Option<(Instruction, Repeated)> {
        None
    }
}
