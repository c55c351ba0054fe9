//! The parts of a plan.

use std::borrow::Cow;
use std::fmt;
use std::ops::Range;

use hodo_abi::Isa;
use hodo_isa::code::{InstructionSet, NAMES};
use hodo_isa::{Signing, Via};
use serde::{Deserialize, Serialize};

/// What to plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PlanOptions {
    /// Whether to plan the functions of the image.
    pub functions: bool,
    /// Whether to plan the calls into shared libraries.
    pub libcalls: bool,
    /// The number of threads; 0: as many as there are processors.
    pub threads: usize,
    /// Registers, as bits by their numbers, that our code must preserve although the program no longer needs their
    /// values, because somebody inspects them. Ignored for instruction sets that do not use free registers.
    pub keep: u32,
    /// Whether probes get breakpoints only, even where there is room for a jump.
    pub breakpoints: bool,
}

impl Default for PlanOptions {
    fn default() -> Self {
        Self {
            functions: true,
            libcalls: true,
            threads: 0,
            keep: 0,
            breakpoints: false,
        }
    }
}

/// Why there is no plan.
#[derive(Debug, thiserror::Error)]
pub enum PlanError {
    /// The file is not a readable ELF file.
    #[error("{0}")]
    Symbols(#[from] hodo_symbols::SymbolError),
    /// The file is not a readable ELF file.
    #[error("not a readable ELF file: {0}")]
    Elf(#[from] object::read::Error),
    /// The file is for an unknown kind of processor.
    #[error("not an image for {NAMES}")]
    Machine,
    /// The file is for another kind of processor than this machine's.
    #[error("it is for {}, and only code for {} can be recorded here", .0.name(), Isa::NATIVE.name())]
    Foreign(Isa),
}

/// How [`Via`] is stored.
#[derive(Serialize, Deserialize)]
#[serde(remote = "Via")]
enum StoredVia {
    Nothing,
    Free(u8),
    Kept(u8),
}

/// How [`Signing`] is stored.
#[derive(Serialize, Deserialize)]
#[serde(remote = "Signing")]
enum StoredSigning {
    None,
    A,
    B,
}

/// How a site is changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Tactic {
    /// A site that the compiler has made for tracers.
    Site,
    /// A long jump over whole instructions.
    Jump,
    /// The basic block is relocated whole.
    Block,
    /// A short jump to a place that holds the long jump.
    Hop,
    /// A long jump that shares bytes with the instructions after it.
    Pun,
    /// A breakpoint.
    Trap,
}

/// What is recorded of a function.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Mode {
    /// The stub calls the body: entry and exit are recorded.
    Call,
    /// The stub records the entry and jumps to the body.
    EntryOnly(EntryOnlyReason),
}

/// Why the exit of a function is not recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum EntryOnlyReason {
    /// setjmp, vfork, getcontext and the like.
    ReturnsTwice,
    /// dlsym, dlopen and the like look at their return address.
    ReadsReturnAddress,
    /// The image's entry point and others that are not called.
    NotCalled,
    /// `ret imm16`.
    PopsArguments,
    /// It returns through another register than most calls use.
    OtherLink,
    /// It moves its own return address.
    MovesReturnAddress,
    /// It jumps to another function, which knows the return address from it, or where that is.
    HandsReturnAddressOn,
    /// It belongs to a runtime that walks the stack by return addresses.
    WalksStack,
    /// It returns something in the status flags, which stubs do not keep.
    ReturnsFlags,
    /// The processor keeps return addresses on a stack of its own, and checks them.
    IsChecked,
}

impl EntryOnlyReason {
    /// Returns the reason in words that speak of the function as "it".
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::ReturnsTwice => "it can return twice",
            Self::ReadsReturnAddress => "it reads its return address",
            Self::NotCalled => "it is not called, but jumped to",
            Self::PopsArguments => "it removes its arguments from the stack",
            Self::OtherLink => "it returns through a register other than the usual one",
            Self::MovesReturnAddress => "it moves its return address",
            Self::HandsReturnAddressOn => "it hands its return address on to another function",
            Self::ReturnsFlags => "it returns something in the flags",
            Self::IsChecked => "the processor checks where it returns to",
            Self::WalksStack => "its runtime walks the stack by return addresses",
        }
    }
}

/// One function, and what is done with it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlannedFunction {
    /// The raw symbol name; derived from the address if there is none.
    pub name: String,
    /// Link-time address.
    pub addr: u64,
    /// Size in bytes; 0 if unknown.
    pub size: u64,
    /// The site, or why there is none.
    pub outcome: Result<SitePlan, Reason>,
}

/// Why something is not traced or probed, in words that continue a sentence after its name and "it". Kept plans have
/// only the words, so no decision depends on them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Reason(Cow<'static, str>);

impl Reason {
    /// Returns the words.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Reason {}

impl From<&'static str> for Reason {
    fn from(text: &'static str) -> Self {
        Self(text.into())
    }
}

impl From<String> for Reason {
    fn from(text: String) -> Self {
        Self(text.into())
    }
}

/// One site in the code. All addresses are link-time addresses.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SitePlan {
    /// How the site is changed.
    pub tactic: Tactic,
    /// Entry and exit, or entry only.
    pub mode: Mode,
    /// Where the first patched byte is (after a landing instruction, if there is one and the site fits there).
    pub patch: u64,
    /// Bytes that the patch at `patch` writes (5 for a jump, 2 for a hop, 1 to 4 for a pun, 1 for a trap); the
    /// rest of the last displaced instruction stays.
    pub patch_len: u8,
    /// The instructions that run in the stub, from `patch` on (or from before it) to the place to which the stub jumps
    /// back.
    pub displaced: Range<u64>,
    /// The tactic's second place.
    pub extra: Extra,
    /// The register that the long jump uses, at the site or at its second place.
    #[serde(with = "StoredVia")]
    pub via: Via,
    /// How the return address is signed where the patch is.
    #[serde(with = "StoredSigning")]
    pub signing: Signing,
    /// Registers, as bits by their numbers, that the stub may change before the body runs: the body overwrites each
    /// before it reads it, and so its callers know. None for instruction sets that have enough registers without them.
    pub free: u32,
    /// Registers that the stub may change after the body has returned: nobody expects a value in them.
    pub free_after: u32,
    /// Registers that the displaced instructions may use at their new place.
    pub spare: Spare,
    /// How the site is changed if its stub is out of reach of the long jump; only for sites made for tracers that have
    /// room for it.
    pub far: Option<Box<Far>>,
}

/// A jump to anywhere at a site: it loads the address of the stub. All addresses are link-time addresses.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Far {
    /// Bytes that the patch writes at the site, without the address.
    pub patch_len: u8,
    /// Where the address is put, at a multiple of 8: after the patch, or in padding elsewhere. `None`: this file has no
    /// place for it.
    pub literal: Option<u64>,
    /// The instructions that run relocated in the stub.
    pub displaced: Range<u64>,
    /// Registers that these may use.
    pub spare: Spare,
}

/// Registers for moved instructions. None for instruction sets that need none.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spare {
    /// For each displaced instruction that needs a register at its new place, in ascending order: its address, and the
    /// registers that are dead there, as bits by their numbers.
    pub dead: Vec<(u64, u32)>,
    /// The register of the long jump that leads back after the displaced instructions. If the register is saved, it is
    /// restored by one of `pads`, or by [`Via::TAKE`] bytes of our instructions that end where the displaced
    /// instructions end: the patch leaves room for them.
    #[serde(with = "StoredVia")]
    pub back: Via,
    /// Where control goes if it leaves the displaced instructions without a free register.
    pub pads: Vec<Pad>,
}

/// [`Via::PAD`] bytes near the target of an instruction: they restore a saved register and jump to the target.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pad {
    /// The instruction; or the end of the displaced ones, after which control continues.
    pub from: u64,
    /// Where the bytes are: in padding, or in bytes that regions of probes displace after their patches. `None`: in our
    /// memory within reach of the jump; if no such memory can be mapped, the region cannot be moved.
    pub at: Option<u64>,
    /// The target.
    pub to: u64,
}

/// Returns what is written for a site outside the bytes that it displaces, or after its patch in another site, as
/// link-time addresses. Memory that is chosen when the file is patched does not count.
#[must_use = "it changes nothing"]
pub fn elsewhere(
    isa: &dyn InstructionSet,
    extra: &Extra,
    via: Via,
    spare: &Spare,
) -> impl Iterator<Item = Range<u64>> {
    let slot = match *extra {
        Extra::HopSlot(slot) => Some(slot..slot + isa.jump(via).len),
        _ => None,
    };
    let pads = spare.pads.iter().filter_map(|pad| pad.at);
    let pads = pads.map(|at| at..at + Via::PAD);
    slot.into_iter().chain(pads)
}

/// What a tactic needs besides the bytes at the site.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Extra {
    /// Nothing.
    None,
    /// A hop: the long jump to the stub goes here.
    HopSlot(u64),
    /// A hop to our memory within reach of the short jump, which holds the long jump to the stub. If no such memory can
    /// be mapped, the site becomes a trap.
    Near,
    /// A hop to bytes that another function's site displaces after its patch; the long jump to the stub goes there.
    /// This works only if the function that begins at `host` is patched, too: otherwise its bytes are in use, and the
    /// site is treated like one with [`Extra::Near`], if its patch has the room.
    HopDonor {
        /// Where the long jump goes.
        slot: u64,
        /// The address of the other function.
        host: u64,
    },
    /// A pun: the jump's displacement has the fixed low-order bytes of memory at `patch + 1 + free`: `free` (0..=3) low
    /// bytes can be chosen.
    Pun {
        /// How many of the four displacement bytes, from the low end, the patch may write.
        free: u8,
    },
}

/// A call into a shared library: a PLT entry or an indirect call through the GOT.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LibcallSite {
    /// Name of the function called (without version).
    pub name: String,
    /// Link-time address of the instruction to change.
    pub patch: u64,
    /// Bytes at `patch` that may be overwritten (at least 5); all instructions that load the address from the slot.
    pub patch_len: u8,
    /// What the instruction is.
    pub form: LibcallForm,
    /// Link-time address of the GOT slot that holds the callee.
    pub got: u64,
    /// Entry and exit, or entry only (by the callee's name).
    pub mode: Mode,
}

/// The instruction of a [`LibcallSite`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum LibcallForm {
    /// A PLT entry: a jump through the GOT, perhaps after a landing instruction.
    Plt,
    /// `call *GOT(%rip)` in a function (`-fno-plt`).
    Call,
    /// `jmp *GOT(%rip)` in a function (`-fno-plt`, a tail call).
    Jump,
    /// `auipc; ld` of a register in a function (`-mno-plt`), through which it calls or jumps a little later.
    Loaded {
        /// The register.
        register: u8,
        /// Link-time address after the call or jump. Up to there, the register holds the address of the callee.
        end: u64,
    },
}

/// The plan of one ELF image.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// Build id in hex, if the image has one.
    pub build_id: Option<String>,
    /// Sorted by address; one per address (aliases are in `aliases` of the symbol table, the best name is taken).
    pub functions: Vec<PlannedFunction>,
    /// Sorted by name, then address.
    pub libcalls: Vec<LibcallSite>,
    /// Places in the code that are overwritten whatever is traced: calls of profiling functions become nops, also among
    /// displaced instructions. Addresses and new bytes, sorted.
    pub nops: Vec<(u64, Vec<u8>)>,
    /// Branches on static keys, which the program itself changes while it runs: the ranges of their bytes, sorted. No
    /// site contains any of them.
    pub static_branches: Vec<Range<u64>>,
    /// Remarks for the user: what was left out, and why.
    pub remarks: Vec<String>,
}

impl Plan {
    /// Returns the names of all functions (`false`) and of all calls into libraries (`true`).
    pub fn names(&self) -> impl Iterator<Item = (&str, bool)> {
        let functions = self.functions.iter().map(|f| (f.name.as_str(), false));
        functions.chain(self.libcalls.iter().map(|call| (call.name.as_str(), true)))
    }

    /// Returns whether any exit is recorded.
    #[must_use]
    pub fn has_exits(&self) -> bool {
        let sites = self.functions.iter();
        let mut sites = sites.filter_map(|function| function.outcome.as_ref().ok());
        sites.any(|site| site.mode == Mode::Call)
            || self.libcalls.iter().any(|call| call.mode == Mode::Call)
    }

    /// Has only entries recorded, also where exits could be.
    pub fn leave_returns(&mut self, reason: EntryOnlyReason) {
        let sites = self.functions.iter_mut();
        let sites = sites.filter_map(|function| function.outcome.as_mut().ok());
        let modes = sites.map(|site| &mut site.mode);
        let modes = modes.chain(self.libcalls.iter_mut().map(|call| &mut call.mode));
        for mode in modes.filter(|mode| **mode == Mode::Call) {
            *mode = Mode::EntryOnly(reason);
        }
    }
}

/// Which instructions are to have probes.
#[derive(Debug, Clone, Copy)]
pub enum Wanted<'a> {
    /// All instructions in code that is known to belong to functions.
    Every,
    /// Those at these link-time addresses, in any order.
    At(&'a [u64]),
}

/// One region of code that is moved into an island; its first bytes lead there. All addresses are link-time addresses.
///
/// Only its own branches lead to one of its instructions after the first, so all of it is executed in the island. Only
/// its last instruction can be a call. The bytes of that call stay as they are (hop slots of other sites may not use
/// them either) if the patch does not reach them: an island may jump back to it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProbeSite {
    /// How the region's first bytes are changed; never [`Tactic::Site`].
    pub tactic: Tactic,
    /// Where the first patched byte is: the region's start.
    pub patch: u64,
    /// Bytes that the patch writes (5 for a jump, 2 for a hop, 1 to 4 for a pun, 1 for a trap).
    pub patch_len: u8,
    /// The instructions that run in the island, from `patch` on. They can be fewer bytes than `patch_len` if padding
    /// follows; after them, the original code continues.
    pub displaced: Range<u64>,
    /// The tactic's second place. A hop's slot can lie in the displaced bytes of another site, after its patch.
    pub extra: Extra,
    /// The register that the long jump uses, at the site or at its second place.
    #[serde(with = "StoredVia")]
    pub via: Via,
    /// Registers that the displaced instructions may use at their new place.
    pub spare: Spare,
    /// The addresses of the instructions in `displaced` that have probes.
    pub probes: Vec<ProbedInsn>,
}

/// An instruction that has a probe.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProbedInsn {
    /// Link-time address.
    pub addr: u64,
    /// Registers, as bits by their numbers, whose values are dead before it.
    pub free: u32,
    /// Whether the arithmetic flags (CF PF AF ZF SF OF) are dead before it.
    pub flags_dead: bool,
    /// Whether it is executed if and only if the one before it in the list is. Faults and signals between them are
    /// ignored.
    pub joined: bool,
    /// Whether it may be executed without the instruction in front of it: something may branch to it.
    pub entered: bool,
}

/// What is at an address that cannot have a probe.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Refused {
    /// No instruction begins there: it is data, the middle of an instruction, or not code at all.
    NoInstruction,
    /// Code that is deliberately left alone: a procedure linkage table, a signal handler's return.
    LeftAlone,
    /// It is not known whether it is code.
    Unknown,
    /// An instruction that cannot be moved, or not from there.
    Instruction,
}

/// An instruction that cannot have a probe.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RefusedProbe {
    /// Link-time address.
    pub addr: u64,
    /// The instruction as text; the one that contains `addr` if that is a middle; empty outside code.
    pub insn: String,
    /// Why it cannot have a probe.
    pub reason: String,
    /// What is there.
    pub what: Refused,
}

/// The plan of the probes on one ELF image.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProbePlan {
    /// Build id in hex, if the image has one.
    pub build_id: Option<String>,
    /// Each requested instruction once: as a probe or as a refusal.
    pub total: usize,
    /// Sorted by address.
    pub sites: Vec<ProbeSite>,
    /// Sorted by address.
    pub refused: Vec<RefusedProbe>,
    /// Remarks for the user.
    pub remarks: Vec<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_exit_remains_where_returns_are_left() {
        let call = |mode| LibcallSite {
            name: "puts".to_owned(),
            patch: 0x1000,
            patch_len: 16,
            form: LibcallForm::Plt,
            got: 0x2000,
            mode,
        };
        let twice = Mode::EntryOnly(EntryOnlyReason::ReturnsTwice);
        let mut plan = Plan {
            build_id: None,
            functions: Vec::new(),
            libcalls: vec![call(Mode::Call), call(twice)],
            nops: Vec::new(),
            static_branches: Vec::new(),
            remarks: Vec::new(),
        };
        assert!(plan.has_exits());
        plan.leave_returns(EntryOnlyReason::IsChecked);
        assert!(!plan.has_exits());
        let modes = plan.libcalls.iter().map(|call| call.mode);
        let left = Mode::EntryOnly(EntryOnlyReason::IsChecked);
        assert!(modes.eq([left, twice]));
    }
}
