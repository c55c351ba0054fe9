//! What planners ask of any instruction set.

use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;

use hodo_abi::Isa;

use super::readers::{Read, Room, Steps, Sweep};
use super::{EntryFacts, Origin, SlotCall};
use crate::{JumpForm, Via, aarch64, riscv64, x86_64};

/// What functions that know nothing of each other suppose of general registers, as bits by their numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Convention {
    /// What a function may find in registers that it uses or keeps.
    pub entry: u32,
    /// Those that functions may change.
    pub volatile: u32,
    /// Those in which results are.
    pub results: u32,
}

impl Convention {
    /// What is of use when a function has returned that overwrites these.
    #[must_use]
    pub fn returned(&self, clobbers: u32) -> u32 {
        !(clobbers & self.volatile & !self.results)
    }
}

/// What a dynamic relocation does, as far as planners care.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Relocation {
    /// It makes an address of the image itself.
    Relative,
    /// It fills a slot by which functions are called with the address of a symbol.
    Slot,
    /// Something else.
    Other,
}

/// All those whose code can be read, for messages.
pub const NAMES: &str = "x86-64, RISC-V with 64 bits or AArch64";

/// The instruction set of files and processes, if its code can be read.
#[must_use]
pub fn instruction_set(isa: Isa) -> Option<&'static dyn InstructionSet> {
    match isa {
        Isa::X86_64 => Some(&x86_64::X86_64),
        Isa::Riscv64 => Some(&riscv64::Riscv64),
        Isa::Aarch64 => Some(&aarch64::Aarch64),
    }
}

/// What planners ask of an instruction set. Each has it in its own `isa.rs`; [`instruction_set`] leads there.
///
/// What goes through code is not asked through this again for each instruction: [`Sweep`] and its like know their
/// instruction set.
pub trait InstructionSet: Sync {
    /// Which one it is.
    fn isa(&self) -> Isa;

    /// Goes through code of an executable in which a register holds the same address everywhere, as [`Self::globals`]
    /// finds it.
    #[must_use]
    fn sweep_with<'a>(&self, code: &'a [u8], addr: u64, globals: Option<u64>) -> Sweep<'a>;

    /// Goes through code, whose first byte is at `addr`.
    #[must_use]
    fn sweep<'a>(&self, code: &'a [u8], addr: u64) -> Sweep<'a> {
        self.sweep_with(code, addr, None)
    }

    /// Reads the instructions of a function, whose first byte is at `addr`, once for all that is asked of them. In all
    /// code of the executable a register holds `globals`, as [`Self::globals`] finds it.
    #[must_use]
    fn read<'a>(
        &self,
        code: &'a [u8],
        addr: u64,
        globals: Option<u64>,
        room: &'a mut Room,
    ) -> Read<'a>;

    /// The address that a register holds in all code of an executable, if this code of it puts one there.
    #[must_use]
    fn globals(&self, _code: &[u8], _addr: u64) -> Option<u64> {
        None
    }

    /// Whether jump tables may have addresses of 32 bits.
    #[must_use]
    fn has_short_addresses(&self) -> bool;

    /// Whether jump tables may have distances of fewer than 32 bits, or counted in instructions.
    #[must_use]
    fn has_short_distances(&self) -> bool {
        false
    }

    /// Goes through code as a planner of probes does.
    #[must_use]
    fn steps<'a>(&self, code: &'a [u8], addr: u64) -> Steps<'a>;

    /// What a probe may have to keep, as the masks of [`Step`](super::Step) have it: the arithmetic flags, the general
    /// registers, or both.
    #[must_use]
    fn state(&self) -> u32;

    /// Those bits of it that are the arithmetic flags; nothing where there are none. The others are general registers.
    #[must_use]
    fn flags(&self) -> u32;

    /// Whether it has general registers.
    #[must_use]
    fn tracks_registers(&self) -> bool {
        self.convention().is_some()
    }

    /// What is supposed of calls and returns, where general registers are what a probe may have to keep.
    #[must_use]
    fn convention(&self) -> Option<Convention>;

    /// The instruction at the start of `code` as text.
    #[must_use]
    fn text(&self, code: &[u8], addr: u64) -> String;

    /// Why the instruction at the start of `code` cannot be moved; nothing if it can.
    #[must_use]
    fn immovable(&self, code: &[u8], addr: u64) -> Option<String>;

    /// Bytes of the longest instruction.
    #[must_use]
    fn longest(&self) -> u64;

    /// Whether whole instructions can run elsewhere. `dead` tells the registers that are dead at an instruction, where
    /// moved code may need one.
    ///
    /// # Errors
    /// Why they cannot.
    fn movable(&self, code: &[u8], from: u64, dead: &dyn Fn(u64) -> u32) -> Result<(), NotMovable>;

    /// Follows the straight line of code from the entry of a function, to the first jump or return.
    #[must_use]
    fn entry_facts(&self, code: &[u8], addr: u64) -> EntryFacts;

    /// Whether the return address, which the instruction at `read` loads, goes nowhere but to calls that are dropped.
    /// `code` is the function's, from `addr` on.
    #[must_use]
    fn is_only_passed_on(
        &self,
        code: &[u8],
        addr: u64,
        read: u64,
        is_dropped: &dyn Fn(u64) -> bool,
    ) -> bool;

    /// Whether the instruction at the start of `code` writes its memory operand.
    #[must_use]
    fn stores(&self, code: &[u8]) -> bool;

    /// How far above the stack pointer the caller's frame begins when a function is entered.
    #[must_use]
    fn entry_frame(&self) -> i32;

    /// Whether calls put the return address on the stack.
    #[must_use]
    fn calls_push(&self) -> bool;

    /// Bytes of the landing instruction for indirect branches that stands at the start of a function's code; 0 if there
    /// is none.
    #[must_use]
    fn landing(&self, code: &[u8]) -> u64;

    /// The entries in a PLT, which jump to the address in a slot: address, slot, length of the instructions that do it.
    #[must_use]
    fn got_jumps(&self, bytes: &[u8], addr: u64) -> Vec<(u64, u64, u8)>;

    /// Bytes of the calls and jumps through a slot which a direct one can take the place of.
    #[must_use]
    fn slot_call_len(&self) -> u8;

    /// Where code may load a register from memory for a call by it, by addresses of the two instructions and of the
    /// memory. Nowhere if one instruction does all.
    #[must_use]
    fn slot_loads(&self, _code: &[u8], _addr: u64) -> Vec<(u64, u64)> {
        Vec::new()
    }

    /// The call or jump by what the instructions at the start of `code` load, if nothing else uses it.
    #[must_use]
    fn slot_call(&self, _code: &[u8], _addr: u64) -> Option<SlotCall> {
        None
    }

    /// `len` bytes that do nothing.
    #[must_use]
    fn nops(&self, len: usize) -> Vec<u8>;

    /// `len` bytes, of which the first return.
    #[must_use]
    fn ret(&self, len: usize) -> Vec<u8>;

    /// What makes a jump of a register, as far as the instructions before it tell: code and address of each, the jump
    /// first, then backwards.
    #[must_use]
    fn origin(&self, path: &mut dyn Iterator<Item = (&[u8], u64)>) -> Origin;

    /// Whether code is a signal handler's return, which unwinders know by its bytes.
    #[must_use]
    fn is_signal_return(&self, code: &[u8]) -> bool;

    /// Whether a function of this name, without underscores at its start, is a piece of code that does an indirect jump
    /// or call for others.
    #[must_use]
    fn is_thunk(&self, _name: &str) -> bool {
        false
    }

    /// What a dynamic relocation does.
    #[must_use]
    fn relocation(&self, kind: u32) -> Relocation;

    /// Whether an unused byte between sections can be one of padding.
    #[must_use]
    fn fills(&self, byte: u8) -> bool;

    /// Instructions begin at multiples of this.
    #[must_use]
    fn unit(&self) -> u64;

    /// Bytes of a breakpoint.
    #[must_use]
    fn trap_len(&self) -> u64;

    /// The shorter jumps to places that hold a long one, the one that reaches farthest first.
    #[must_use]
    fn near(&self) -> &'static [JumpForm];

    /// Whether a long jump can share its last bytes with the instructions after it.
    #[must_use]
    fn has_puns(&self) -> bool;

    /// Whether the long jump needs a register.
    #[must_use]
    fn needs_register(&self) -> bool;

    /// Those of some general registers that our code may use where they are free.
    #[must_use]
    fn usable(&self, free: u32) -> u32;

    /// The register that calls leave the return address in, as a bit; nothing where they push it.
    #[must_use]
    fn link(&self) -> u32;

    /// The register that a long jump takes where these are free.
    #[must_use]
    fn via(&self, free: u32) -> Via;

    /// The long jump of a patch that takes its register so.
    #[must_use]
    fn jump(&self, via: Via) -> JumpForm;

    /// The jump to anywhere that takes its register so and finds in memory where it leads to, without the address in
    /// memory; nothing if none can be made at a site.
    #[must_use]
    fn far_jump(&self, _via: Via) -> Option<JumpForm> {
        None
    }
}

impl fmt::Debug for dyn InstructionSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.isa().fmt(f)
    }
}

/// Why whole instructions cannot run elsewhere: each instruction set has its own reasons.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotMovable {
    /// On x86-64.
    X86_64(x86_64::relocate::RelocateError),
    /// On RISC-V.
    Riscv64(riscv64::relocate::RelocateError),
    /// On AArch64.
    Aarch64(aarch64::relocate::RelocateError),
}

impl fmt::Display for NotMovable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::X86_64(error) => error.fmt(f),
            Self::Riscv64(error) => error.fmt(f),
            Self::Aarch64(error) => error.fmt(f),
        }
    }
}

impl core::error::Error for NotMovable {}

impl From<x86_64::relocate::RelocateError> for NotMovable {
    fn from(error: x86_64::relocate::RelocateError) -> Self {
        Self::X86_64(error)
    }
}

impl From<riscv64::relocate::RelocateError> for NotMovable {
    fn from(error: riscv64::relocate::RelocateError) -> Self {
        Self::Riscv64(error)
    }
}

impl From<aarch64::relocate::RelocateError> for NotMovable {
    fn from(error: aarch64::relocate::RelocateError) -> Self {
        Self::Aarch64(error)
    }
}
