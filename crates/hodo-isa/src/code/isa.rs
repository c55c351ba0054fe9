//! What planners ask of an instruction set.

use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;
use core::ops::Range;

use hodo_abi::Isa;

use super::readers::{Read, Room, Steps, Sweep};
use super::{EntryFacts, Operand, Origin, SlotCall};
use crate::{JumpForm, Signing, Via, aarch64, riscv64, x86_64};

/// Which general registers matter between functions that know nothing of each other, one bit for each number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Convention {
    /// Those in which a function may find something that it uses or preserves.
    pub entry: u32,
    /// Those that functions may change.
    pub volatile: u32,
    /// Those in which results are.
    pub results: u32,
}

impl Convention {
    /// The registers that are still needed when a function returns that overwrites these.
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
    /// It fills a slot through which functions are called with the address of a symbol.
    Slot,
    /// Something else.
    Other,
}

/// All instruction sets whose code can be read, for messages.
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

/// What planners ask of an instruction set. Each one implements it in its own `isa.rs`; [`instruction_set`] returns the
/// implementation. Where a function has a body, that is what most of them answer: those whose calls put the return
/// address in a register, for example.
///
/// Iterating over code does not go through this trait for each instruction: [`Sweep`] and its like know their
/// instruction set.
pub trait InstructionSet: Sync {
    /// Which one it is.
    fn isa(&self) -> Isa;

    /// Iterates over code of an executable in which a register holds the same address everywhere, as found by
    /// [`Self::globals`].
    #[must_use]
    fn sweep_with<'a>(&self, code: &'a [u8], addr: u64, globals: Option<u64>) -> Sweep<'a>;

    /// Iterates over code, whose first byte is at `addr`.
    #[must_use]
    fn sweep<'a>(&self, code: &'a [u8], addr: u64) -> Sweep<'a> {
        self.sweep_with(code, addr, None)
    }

    /// Reads the instructions of a function, whose first byte is at `addr`, once for everything that is asked about
    /// them. In all code of the executable a register holds `globals`, as found by [`Self::globals`].
    #[must_use]
    fn read<'a>(
        &self,
        code: &'a [u8],
        addr: u64,
        globals: Option<u64>,
        room: &'a mut Room,
    ) -> Read<'a>;

    /// The address that a register holds in all code of an executable, if this part of the code sets that register.
    #[must_use]
    fn globals(&self, _code: &[u8], _addr: u64) -> Option<u64> {
        None
    }

    /// Whether jump tables may contain 32-bit addresses.
    #[must_use]
    fn has_short_addresses(&self) -> bool;

    /// Whether jump tables may contain distances of fewer than 32 bits, or distances counted in instructions.
    #[must_use]
    fn has_short_distances(&self) -> bool {
        false
    }

    /// Finds, without decoding, every operand of 32 bits among `places` (indices in `code`, whose first byte is at the
    /// address) that may lead to or address something in `text`, or form an address in `span`, which includes `text`.
    /// `fixed`: constants may be addresses. Returns whether that can be done: no operand may be missing, but there may
    /// be more.
    fn operands(
        &self,
        _code: (&[u8], u64),
        _places: Range<usize>,
        _ranges: (&Range<u64>, &Range<u64>),
        _fixed: bool,
        _found: &mut dyn FnMut(Operand),
    ) -> bool {
        false
    }

    /// Iterates over code as a planner of probes sees it.
    #[must_use]
    fn steps<'a>(&self, code: &'a [u8], addr: u64) -> Steps<'a>;

    /// What a probe may have to preserve, in the masks of [`Step`](super::Step): the arithmetic flags, the general
    /// registers, or both.
    #[must_use]
    fn state(&self) -> u32;

    /// The bits of those masks that are arithmetic flags, if any. The others are general registers.
    #[must_use]
    fn flags(&self) -> u32;

    /// Whether the masks include general registers.
    #[must_use]
    fn tracks_registers(&self) -> bool {
        self.convention().is_some()
    }

    /// What is assumed at calls and returns, if a probe may have to preserve general registers.
    #[must_use]
    fn convention(&self) -> Option<Convention>;

    /// The instruction at the start of `code` as text.
    #[must_use]
    fn text(&self, code: &[u8], addr: u64) -> String;

    /// Why the instruction at the start of `code` cannot be moved; `None` if it can.
    #[must_use]
    fn immovable(&self, code: &[u8], addr: u64) -> Option<String>;

    /// Bytes of the longest instruction.
    #[must_use]
    fn longest(&self) -> u64;

    /// Whether whole instructions can run elsewhere. `dead` returns the registers that are dead at an instruction,
    /// since moved code may need one.
    ///
    /// # Errors
    /// Why they cannot.
    fn movable(&self, code: &[u8], from: u64, dead: &dyn Fn(u64) -> u32) -> Result<(), NotMovable>;

    /// Follows the straight-line code from the entry of a function to the first jump or return.
    #[must_use]
    fn entry_facts(&self, code: &[u8], addr: u64) -> EntryFacts;

    /// Whether the return address, which the instruction at `read` loads, is used for nothing but calls that are
    /// dropped. `code` is the function's code from `addr` on.
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
    fn entry_frame(&self) -> i32 {
        0
    }

    /// Whether calls put the return address on the stack.
    #[must_use]
    fn calls_push(&self) -> bool {
        false
    }

    /// Bytes of the landing instruction for indirect branches at the start of a function's code; 0 if it has none.
    #[must_use]
    fn landing(&self, code: &[u8]) -> u64;

    /// Whether calls or jumps through registers may fault if something else replaces the instruction at the start of
    /// `code`. A breakpoint may.
    #[must_use]
    fn must_land(&self, _code: &[u8]) -> bool {
        false
    }

    /// How the return address is signed after the landing instruction at the start of a function's code.
    #[must_use]
    fn signing(&self, _code: &[u8]) -> Signing {
        Signing::None
    }

    /// The entries in a PLT, which jump to the address in a slot: the entry's address, the slot, and the length of the
    /// jump.
    #[must_use]
    fn got_jumps(&self, bytes: &[u8], addr: u64) -> Vec<(u64, u64, u8)>;

    /// Length of the calls and jumps through a slot that a direct one can replace.
    #[must_use]
    fn slot_call_len(&self) -> u8;

    /// Where code may load a register from memory and then call through it: the addresses of the two instructions and
    /// of the memory. Empty if one instruction does it all.
    #[must_use]
    fn slot_loads(&self, _code: &[u8], _addr: u64) -> Vec<(u64, u64)> {
        Vec::new()
    }

    /// The call or jump through the register that the instructions at the start of `code` load, if nothing else uses
    /// it.
    #[must_use]
    fn slot_call(&self, _code: &[u8], _addr: u64) -> Option<SlotCall> {
        None
    }

    /// `len` bytes that do nothing.
    #[must_use]
    fn nops(&self, len: usize) -> Vec<u8>;

    /// `len` bytes that begin with a return.
    #[must_use]
    fn ret(&self, len: usize) -> Vec<u8>;

    /// Where a jump through a register gets its target, as far as the instructions before it show. The iterator gives
    /// code and address of each, the jump first, then backward.
    #[must_use]
    fn origin(&self, path: &mut dyn Iterator<Item = (&[u8], u64)>) -> Origin;

    /// Whether code is a signal handler's return, which unwinders recognize by its bytes.
    #[must_use]
    fn is_signal_return(&self, code: &[u8]) -> bool;

    /// Whether a function of this name (without leading underscores) only performs an indirect jump or call for others.
    #[must_use]
    fn is_thunk(&self, _name: &str) -> bool {
        false
    }

    /// What a dynamic relocation does.
    #[must_use]
    fn relocation(&self, kind: u32) -> Relocation;

    /// Whether an unused byte between sections can be padding.
    #[must_use]
    fn fills(&self, byte: u8) -> bool {
        byte == 0
    }

    /// Instructions begin at multiples of this.
    #[must_use]
    fn unit(&self) -> u64;

    /// Bytes of a breakpoint.
    #[must_use]
    fn trap_len(&self) -> u64;

    /// The jumps shorter than the long one, which lead to places that hold a long one; the one that reaches farthest
    /// first.
    #[must_use]
    fn near(&self) -> &'static [JumpForm];

    /// Whether a long jump can share its last bytes with the instructions after it.
    #[must_use]
    fn has_puns(&self) -> bool {
        false
    }

    /// Whether the long jump needs a register.
    #[must_use]
    fn needs_register(&self) -> bool;

    /// The general registers among these free ones that our code may use.
    #[must_use]
    fn usable(&self, free: u32) -> u32;

    /// The register in which calls leave the return address, as a bit; 0 if they push it.
    #[must_use]
    fn link(&self) -> u32;

    /// The register that a long jump uses if these are free.
    #[must_use]
    fn via(&self, free: u32) -> Via;

    /// The long jump of a patch that gets its register this way.
    #[must_use]
    fn jump(&self, via: Via) -> JumpForm;

    /// The jump to anywhere that gets its register this way and loads its target from memory. The length excludes the
    /// address in memory; `None` if a site cannot have one.
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

/// Why whole instructions cannot run elsewhere; each instruction set has its own reasons.
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
