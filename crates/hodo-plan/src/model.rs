//! The parts of a plan.

use std::borrow::Cow;
use std::fmt;
use std::ops::Range;

use hodo_abi::Isa;
use hodo_isa::Via;
use hodo_isa::code::{InstructionSet, NAMES};
use serde::{Deserialize, Serialize};

/// What to plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PlanOptions {
    /// The functions of the image.
    pub functions: bool,
    /// The calls into shared libraries.
    pub libcalls: bool,
    /// Threads to plan with; 0: as many as there are processors.
    pub threads: usize,
    /// Registers, as bits by their numbers, that our code must leave alone although the program does not need their
    /// values any more: somebody looks at them. Where the instruction set has no use for free registers, it means
    /// nothing.
    pub keep: u32,
}

impl Default for PlanOptions {
    fn default() -> Self {
        Self {
            functions: true,
            libcalls: true,
            threads: 0,
            keep: 0,
        }
    }
}

/// Why there is no plan.
#[derive(Debug, thiserror::Error)]
pub enum PlanError {
    /// The file is no readable ELF file.
    #[error("{0}")]
    Symbols(#[from] hodo_symbols::SymbolError),
    /// The file is no readable ELF file.
    #[error("not a readable ELF file: {0}")]
    Elf(#[from] object::read::Error),
    /// The file is not for this kind of processor.
    #[error("not an image for {NAMES}")]
    Machine,
    /// The file is for another kind of processor than the one whose programs can be recorded here.
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

/// How a site is changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Tactic {
    /// A site that the compiler made for it.
    Site,
    /// The long jump over whole instructions.
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
    /// It returns by another register than that of most calls.
    OtherLink,
    /// It moves its own return address.
    MovesReturnAddress,
    /// It belongs to a runtime that walks the stack by return addresses.
    WalksStack,
}

impl EntryOnlyReason {
    /// The reason in words, of a function as "it".
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::ReturnsTwice => "it can return twice",
            Self::ReadsReturnAddress => "it reads its return address",
            Self::NotCalled => "it is not called, but jumped to",
            Self::PopsArguments => "it removes its arguments from the stack",
            Self::OtherLink => "it returns by a register other than the usual one",
            Self::MovesReturnAddress => "it moves its return address",
            Self::WalksStack => "its runtime walks the stack by return addresses",
        }
    }
}

/// One function and what is done with it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlannedFunction {
    /// Raw symbol name; made of the address where there is none.
    pub name: String,
    /// Link-time address.
    pub addr: u64,
    /// Bytes; 0 where unknown.
    pub size: u64,
    /// The site, or why there is none.
    pub outcome: Result<SitePlan, Reason>,
}

/// Why something is not traced or probed, in words that go on after its name and "it". A plan that is kept has nothing
/// else of it, so nobody decides anything by one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Reason(Cow<'static, str>);

impl Reason {
    /// The words.
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
    /// The instructions that run relocated in the stub, from `patch` (or from before it); they end where the stub jumps
    /// back to.
    pub displaced: Range<u64>,
    /// The tactic's second place.
    pub extra: Extra,
    /// The register that the long jump takes, at the site or at its second place.
    #[serde(with = "StoredVia")]
    pub via: Via,
    /// Registers, as bits by their numbers, that the stub may change before it comes to the body: the body overwrites
    /// each before it reads it, and so do its callers know. None where the instruction set has enough without.
    pub free: u32,
    /// Registers that the stub may change when the body has returned: nobody expects a value in them there.
    pub free_after: u32,
    /// Registers that the displaced instructions may take where they are moved to.
    pub spare: Spare,
    /// How the site is changed where its stub is not within the reach of the long jump, if it was made for tracers and
    /// leaves room for that.
    pub far: Option<Box<Far>>,
}

/// A jump to anywhere at a site: it loads the address of the stub. All addresses are link-time addresses.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Far {
    /// Bytes that the patch writes at the site, without the address.
    pub patch_len: u8,
    /// Where the address is put, a multiple of 8: after the patch, or in padding elsewhere. None: there is no place for
    /// it in this file.
    pub literal: Option<u64>,
    /// The instructions that run relocated in the stub.
    pub displaced: Range<u64>,
    /// Registers that these may take.
    pub spare: Spare,
}

/// Registers for instructions that are moved. None where the instruction set needs none.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spare {
    /// By the address of each displaced instruction that needs a register where it is moved to, ascending: those that
    /// are dead there, as bits by their numbers.
    pub dead: Vec<(u64, u32)>,
    /// The register of the long jump that goes on after the displaced instructions. One that is kept is taken back by
    /// one of `pads`, or by our instructions, [`Via::TAKE`] bytes, that end where the displaced instructions do: the
    /// patch leaves room for them.
    #[serde(with = "StoredVia")]
    pub back: Via,
    /// Where what leaves the displaced instructions without a register goes.
    pub pads: Vec<Pad>,
}

/// [`Via::PAD`] bytes near what an instruction leads to, which take a kept register back and jump there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pad {
    /// The instruction; or the end of the displaced ones, where control goes on after them.
    pub from: u64,
    /// Where the bytes are: in padding, or in what regions of probes displace after their patches. Else they are in our
    /// memory that is within the reach of their jump; where no such memory can be had, the region cannot be moved.
    pub at: Option<u64>,
    /// Where they lead.
    pub to: u64,
}

/// What is written for a site outside what it displaces, or after its patch in another site: link-time addresses.
/// Memory that is looked for when the file is patched does not count.
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

/// What a tactic needs beside the bytes at the site.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Extra {
    /// Nothing.
    None,
    /// A hop: the long jump to the stub goes here.
    HopSlot(u64),
    /// A hop to our memory that is within the reach of the short jump, and holds the long jump to the stub. Where no
    /// such memory can be had, the site becomes a trap.
    Near,
    /// A hop to bytes that another function's site displaces after its patch; the long jump to the stub goes there.
    /// Only where the function that begins at `host` is patched, too: else its bytes are in use, and the site is as
    /// with [`Extra::Near`], if its patch has the room.
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
    /// Bytes at `patch` that may be overwritten (at least 5); all of what takes the address from the slot.
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
    /// `auipc; ld` of a register in a function (`-mno-plt`), by which it calls or jumps a little later.
    Loaded {
        /// The register.
        register: u8,
        /// Link-time address after the call or jump. Up to there, the register has the address of what is called.
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
    /// Places in the code to be overwritten whatever is traced: calls of profiling functions become nops, also among
    /// displaced instructions. Address and new bytes, sorted.
    pub nops: Vec<(u64, Vec<u8>)>,
    /// Branches on static keys, which the program itself changes while it runs: their bytes, sorted. No site has one of
    /// them.
    pub static_branches: Vec<Range<u64>>,
    /// Remarks for the user: what was left out, and why.
    pub remarks: Vec<String>,
}

impl Plan {
    /// The names of all functions (false) and of all calls into libraries (true).
    pub fn names(&self) -> impl Iterator<Item = (&str, bool)> {
        let functions = self.functions.iter().map(|f| (f.name.as_str(), false));
        functions.chain(self.libcalls.iter().map(|call| (call.name.as_str(), true)))
    }
}

/// Which instructions are to be probed.
#[derive(Debug, Clone, Copy)]
pub enum Wanted<'a> {
    /// All of the code that is known to be of functions.
    Every,
    /// Those at these link-time addresses, in any order.
    At(&'a [u64]),
}

/// One region of code that is moved into an island; its first bytes lead there. All addresses are link-time addresses.
///
/// Nothing but its own branches leads to one of its instructions after the first, so all that is executed of it is
/// executed in the island. A call can only be its last instruction. The bytes of that call stay as they are, also for
/// other sites' hop slots, if the patch does not reach them: an island may jump back to it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProbeSite {
    /// How the region's first bytes are changed: all but [`Tactic::Site`].
    pub tactic: Tactic,
    /// Where the first patched byte is: the region's start.
    pub patch: u64,
    /// Bytes that the patch writes (5 for a jump, 2 for a hop, 1 to 4 for a pun, 1 for a trap).
    pub patch_len: u8,
    /// The instructions that run relocated, from `patch` on. They can be fewer bytes than `patch_len` where padding
    /// follows; after them, the original code goes on.
    pub displaced: Range<u64>,
    /// The tactic's second place. A hop's slot can lie in the displaced bytes of another site, after its patch.
    pub extra: Extra,
    /// The register that the long jump takes, at the site or at its second place.
    #[serde(with = "StoredVia")]
    pub via: Via,
    /// Registers that the displaced instructions may take where they are moved to.
    pub spare: Spare,
    /// The instructions in `displaced` that carry probes, by their addresses.
    pub probes: Vec<ProbedInsn>,
}

/// An instruction that carries a probe.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProbedInsn {
    /// Link-time address.
    pub addr: u64,
    /// Registers, as bits by their numbers, whose values before it are of no use to anybody.
    pub free: u32,
    /// Are the arithmetic flags (CF PF AF ZF SF OF) dead before it?
    pub flags_dead: bool,
    /// Is it executed whenever the one before it in the list is, and only then? Faults and signals that end what lies
    /// between are left aside.
    pub joined: bool,
}

/// What is at an address that cannot be probed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Refused {
    /// No instruction begins there: it is data, the middle of an instruction, or no code at all.
    NoInstruction,
    /// Code that is left alone on purpose: a procedure linkage table, a signal handler's return.
    LeftAlone,
    /// It is not known whether it is code.
    Unknown,
    /// An instruction that cannot be moved, or not there.
    Instruction,
}

/// An instruction that cannot be probed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RefusedProbe {
    /// Link-time address.
    pub addr: u64,
    /// The instruction as text; the one that holds `addr` where that is a middle; empty outside code.
    pub insn: String,
    /// Why it cannot be probed.
    pub reason: String,
    /// What is there.
    pub what: Refused,
}

/// The plan of the probes on one ELF image.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProbePlan {
    /// Build id in hex, if the image has one.
    pub build_id: Option<String>,
    /// The instructions asked for, each once: probes and refusals.
    pub total: usize,
    /// Sorted by address.
    pub sites: Vec<ProbeSite>,
    /// Sorted by address.
    pub refused: Vec<RefusedProbe>,
    /// Remarks for the user.
    pub remarks: Vec<String>,
}
