//! What the instruction sets have in common, and where they differ.

use alloc::string::{String, ToString};
use alloc::vec::Vec;

use super::readers::{Kind, Read, Room, Steps, Sweep};
use super::{EntryFacts, Origin, SlotCall};
use crate::{Via, riscv64, x86_64};

/// An instruction set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Isa {
    /// x86-64.
    X86_64,
    /// RISC-V with 64 bits.
    Riscv64,
}

/// A jump that does not reach far.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Near {
    /// Its length in bytes.
    pub len: u64,
    /// How far back it leads from its first byte.
    back: u64,
    /// How far on it leads from its first byte.
    on: u64,
}

impl Near {
    /// The addresses that it reaches from `from`, both ends included.
    #[must_use]
    pub fn reach(self, from: u64) -> core::ops::RangeInclusive<u64> {
        from.saturating_sub(self.back)..=from.saturating_add(self.on)
    }

    /// The addresses from which it reaches `to`, both ends included.
    #[must_use]
    pub fn sources(self, to: u64) -> core::ops::RangeInclusive<u64> {
        to.saturating_sub(self.on)..=to.saturating_add(self.back)
    }
}

impl Default for Isa {
    fn default() -> Self {
        Self::NATIVE
    }
}

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

/// All of them, for messages.
pub const NAMES: &str = "x86-64 or RISC-V with 64 bits";

const EM_X86_64: u16 = 62;
const EM_RISCV: u16 = 243;

impl Isa {
    /// That of the processes that this is built for.
    #[cfg(target_arch = "x86_64")]
    pub const NATIVE: Self = Self::X86_64;
    /// That of the processes that this is built for.
    #[cfg(target_arch = "riscv64")]
    pub const NATIVE: Self = Self::Riscv64;

    /// That of an ELF file with 64 bits, by the machine in its header.
    #[must_use]
    pub fn of_machine(machine: u16) -> Option<Self> {
        match machine {
            EM_X86_64 => Some(Self::X86_64),
            EM_RISCV => Some(Self::Riscv64),
            _ => None,
        }
    }

    /// What it is called.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::X86_64 => "x86-64",
            Self::Riscv64 => "RISC-V 64",
        }
    }

    /// Goes through code, whose first byte is at `addr`.
    #[inline]
    #[must_use]
    pub fn sweep(self, code: &[u8], addr: u64) -> Sweep<'_> {
        self.sweep_with(code, addr, None)
    }

    /// Goes through code of an executable in which a register holds the same address everywhere, as [`Self::globals`] finds it.
    #[inline]
    #[must_use]
    pub fn sweep_with(self, code: &[u8], addr: u64, globals: Option<u64>) -> Sweep<'_> {
        Sweep(match self {
            Self::X86_64 => Kind::X86_64(x86_64::scan::Sweep::new(code, addr)),
            Self::Riscv64 => Kind::Riscv64(riscv64::plan::Sweep::new(code, addr, globals)),
        })
    }

    /// Reads the instructions of a function, whose first byte is at `addr`, once for all that is asked of them. In all code of the
    /// executable a register holds `globals`, as [`Self::globals`] finds it.
    #[inline]
    #[must_use]
    pub fn read<'a>(
        self,
        code: &'a [u8],
        addr: u64,
        globals: Option<u64>,
        room: &'a mut Room,
    ) -> Read<'a> {
        if self == Self::Riscv64 {
            room.0.clear();
            let sweep = riscv64::scan::Sweep::with_globals(code, addr, globals);
            sweep.for_each(|insn| room.0.push(insn));
        }
        Read {
            isa: self,
            code,
            addr,
            insns: &room.0,
        }
    }

    /// The address that a register holds in all code of an executable, if this code of it puts one there.
    #[must_use]
    pub fn globals(self, code: &[u8], addr: u64) -> Option<u64> {
        match self {
            Self::X86_64 => None,
            Self::Riscv64 => riscv64::scan::globals(code, addr),
        }
    }

    /// Whether jump tables may have addresses of 32 bits.
    #[must_use]
    pub fn has_short_addresses(self) -> bool {
        self == Self::Riscv64
    }

    /// Goes through code as a planner of probes does.
    #[must_use]
    pub fn steps(self, code: &[u8], addr: u64) -> Steps<'_> {
        Steps(match self {
            Self::X86_64 => Kind::X86_64(x86_64::steps::Steps::new(code, addr)),
            Self::Riscv64 => Kind::Riscv64(riscv64::plan::steps(code, addr)),
        })
    }

    /// What a probe may have to keep, as the masks of [`Step`](super::Step) have it: the arithmetic flags, or the general registers.
    #[must_use]
    pub fn state(self) -> u32 {
        match self {
            Self::X86_64 => x86_64::steps::FLAGS.into(),
            Self::Riscv64 => riscv64::liveness::ALL,
        }
    }

    /// What is supposed of calls and returns, where general registers are what a probe may have to keep.
    #[must_use]
    pub fn convention(self) -> Option<Convention> {
        match self {
            Self::X86_64 => None,
            Self::Riscv64 => Some(riscv64::plan::CONVENTION),
        }
    }

    /// Whether that is the arithmetic flags.
    #[must_use]
    pub fn has_flags(self) -> bool {
        self == Self::X86_64
    }

    /// The instruction at the start of `code` as text.
    #[must_use]
    pub fn text(self, code: &[u8], addr: u64) -> String {
        match self {
            Self::X86_64 => x86_64::steps::text(code, addr),
            Self::Riscv64 => riscv64::text(code, addr),
        }
    }

    /// Why the instruction at the start of `code` cannot be moved; nothing if it can.
    #[must_use]
    pub fn immovable(self, code: &[u8], addr: u64) -> Option<String> {
        match self {
            Self::X86_64 => x86_64::steps::immovable(code, addr).map(ToString::to_string),
            Self::Riscv64 => riscv64::plan::immovable(code, addr),
        }
    }

    /// Bytes of the longest instruction.
    #[must_use]
    pub fn longest(self) -> u64 {
        match self {
            Self::X86_64 => 15,
            Self::Riscv64 => 4,
        }
    }

    /// Whether whole instructions can run elsewhere. `dead` tells the registers that are dead at an instruction, where moved code may
    /// need one.
    ///
    /// # Errors
    /// Why they cannot.
    pub fn movable(self, code: &[u8], from: u64, dead: &dyn Fn(u64) -> u32) -> Result<(), String> {
        match self {
            Self::X86_64 => x86_64::relocate::relocated_len(code, from)
                .map(drop)
                .map_err(|error| error.to_string()),
            Self::Riscv64 => riscv64::plan::movable(code, from, dead),
        }
    }

    /// Follows the straight line of code from the entry of a function, to the first jump or return.
    #[must_use]
    pub fn entry_facts(self, code: &[u8], addr: u64) -> EntryFacts {
        match self {
            Self::X86_64 => x86_64::entry::entry_facts(code, addr),
            Self::Riscv64 => riscv64::entry::entry_facts(code, addr),
        }
    }

    /// Whether the return address, which the instruction at `read` loads, goes nowhere but to calls that are dropped. `code` is
    /// the function's, from `addr` on.
    #[must_use]
    pub fn is_only_passed_on(
        self,
        code: &[u8],
        addr: u64,
        read: u64,
        is_dropped: impl Fn(u64) -> bool,
    ) -> bool {
        match self {
            Self::X86_64 => x86_64::entry::is_only_passed_on(code, addr, read, is_dropped),
            Self::Riscv64 => riscv64::entry::is_only_passed_on(code, addr, read, &is_dropped),
        }
    }

    /// Whether the instruction at the start of `code` writes its memory operand.
    #[must_use]
    pub fn stores(self, code: &[u8]) -> bool {
        match self {
            Self::X86_64 => x86_64::entry::stores(code),
            Self::Riscv64 => riscv64::entry::stores(code),
        }
    }

    /// How far above the stack pointer the caller's frame begins when a function is entered.
    #[must_use]
    pub fn entry_frame(self) -> i32 {
        match self {
            Self::X86_64 => 8,
            Self::Riscv64 => 0,
        }
    }

    /// Whether calls put the return address on the stack.
    #[must_use]
    pub fn calls_push(self) -> bool {
        self == Self::X86_64
    }

    /// The landing instruction for indirect branches, which may stand at the start of a function.
    #[must_use]
    pub fn landing(self) -> &'static [u8] {
        match self {
            Self::X86_64 => &x86_64::scan::LANDING,
            Self::Riscv64 => &riscv64::plan::LANDING,
        }
    }

    /// The entries in a PLT, which jump to the address in a slot: address, slot, length of the instructions that do it.
    #[must_use]
    pub fn got_jumps(self, bytes: &[u8], addr: u64) -> Vec<(u64, u64, u8)> {
        match self {
            Self::X86_64 => x86_64::scan::got_jumps(bytes, addr).collect(),
            Self::Riscv64 => riscv64::scan::got_jumps(bytes, addr).collect(),
        }
    }

    /// Bytes of the calls and jumps through a slot which a direct one can take the place of.
    #[must_use]
    pub fn slot_call_len(self) -> u8 {
        match self {
            Self::X86_64 => 6,
            Self::Riscv64 => 12,
        }
    }

    /// Where code may load a register from memory for a call by it, by addresses of the two instructions and of the memory.
    #[must_use]
    pub fn slot_loads(self, code: &[u8], addr: u64) -> Vec<(u64, u64)> {
        match self {
            // One instruction does all.
            Self::X86_64 => Vec::new(),
            Self::Riscv64 => riscv64::slots::loads(code, addr),
        }
    }

    /// The call or jump by what the instructions at the start of `code` load, if nothing else uses it.
    #[must_use]
    pub fn slot_call(self, code: &[u8], addr: u64) -> Option<SlotCall> {
        match self {
            Self::X86_64 => None,
            Self::Riscv64 => riscv64::slots::called(code, addr),
        }
    }

    /// `len` bytes that do nothing.
    #[must_use]
    pub fn nops(self, len: usize) -> Vec<u8> {
        match self {
            Self::X86_64 => x86_64::scan::nop(len).to_vec(),
            Self::Riscv64 => riscv64::scan::nops(len).collect(),
        }
    }

    /// `len` bytes, of which the first return.
    #[must_use]
    pub fn ret(self, len: usize) -> Vec<u8> {
        let mut bytes: Vec<u8> = match self {
            Self::X86_64 => [0xC3].into(),
            Self::Riscv64 => riscv64::plan::RET.into(),
        };
        if len > bytes.len() {
            bytes.extend(self.nops(len - bytes.len()));
        }
        bytes
    }

    /// What makes a jump of a register, as far as the instructions before it tell: code and address of each, the jump first,
    /// then backwards.
    #[must_use]
    pub fn origin<'c>(self, path: impl IntoIterator<Item = (&'c [u8], u64)>) -> Origin {
        match self {
            Self::X86_64 => x86_64::steps::origin(path),
            Self::Riscv64 => riscv64::plan::origin(path),
        }
    }

    /// Whether code is a signal handler's return, which unwinders know by its bytes.
    #[must_use]
    pub fn is_signal_return(self, code: &[u8]) -> bool {
        match self {
            Self::X86_64 => x86_64::entry::is_signal_return(code),
            Self::Riscv64 => riscv64::entry::is_signal_return(code),
        }
    }

    /// Whether a function of this name, without underscores at its start, is a piece of code that does an indirect jump or call for others.
    #[must_use]
    pub fn is_thunk(self, name: &str) -> bool {
        match self {
            Self::X86_64 => {
                name.starts_with("x86_indirect_thunk") || name.starts_with("llvm_retpoline")
            }
            Self::Riscv64 => false,
        }
    }

    /// What a dynamic relocation does.
    #[must_use]
    pub fn relocation(self, kind: u32) -> Relocation {
        match (self, kind) {
            (Self::X86_64, 8) | (Self::Riscv64, 3) => Relocation::Relative,
            // GLOB_DAT and JUMP_SLOT; RISC-V has the plain word of 64 bits in place of the former.
            (Self::X86_64, 6 | 7) | (Self::Riscv64, 2 | 5) => Relocation::Slot,
            _ => Relocation::Other,
        }
    }

    /// Whether an unused byte between sections can be one of padding.
    #[must_use]
    pub fn fills(self, byte: u8) -> bool {
        match self {
            Self::X86_64 => matches!(byte, 0 | 0x90 | 0xCC),
            Self::Riscv64 => byte == 0,
        }
    }

    /// Instructions begin at multiples of this.
    #[must_use]
    pub fn unit(self) -> u64 {
        match self {
            Self::X86_64 => 1,
            Self::Riscv64 => 2,
        }
    }

    /// Bytes of a breakpoint.
    #[must_use]
    pub fn trap_len(self) -> u64 {
        match self {
            Self::X86_64 => 1,
            Self::Riscv64 => 2,
        }
    }

    /// The shorter jumps to places that hold a long one, the one that reaches farthest first.
    #[must_use]
    pub fn near(self) -> &'static [Near] {
        match self {
            Self::X86_64 => &[Near {
                len: 2,
                back: 126,
                on: 129,
            }],
            Self::Riscv64 => &[
                Near {
                    len: 4,
                    back: 1 << 20,
                    on: (1 << 20) - 2,
                },
                Near {
                    len: 2,
                    back: 1 << 11,
                    on: (1 << 11) - 2,
                },
            ],
        }
    }

    /// Whether a long jump can share its last bytes with the instructions behind it.
    #[must_use]
    pub fn has_puns(self) -> bool {
        self == Self::X86_64
    }

    /// Whether the long jump needs a register.
    #[must_use]
    pub fn needs_register(self) -> bool {
        self == Self::Riscv64
    }

    /// Those of some general registers that code of ours may use where they are free.
    #[must_use]
    pub fn usable(self, free: u32) -> u32 {
        match self {
            Self::X86_64 => 0,
            Self::Riscv64 => free & !riscv64::steps::FIXED,
        }
    }

    /// The register that calls leave the return address in, as a bit; nothing where they push it.
    #[must_use]
    pub fn link(self) -> u32 {
        match self {
            Self::X86_64 => 0,
            Self::Riscv64 => 1 << riscv64::registers::RA,
        }
    }

    /// The register that a long jump takes where these are free.
    #[must_use]
    pub fn via(self, free: u32) -> Via {
        match self {
            Self::X86_64 => Via::Nothing,
            Self::Riscv64 => match riscv64::relocate::choose(self.usable(free)) {
                Some(register) => Via::Free(register),
                None => Via::Kept(riscv64::plan::KEPT),
            },
        }
    }
}
