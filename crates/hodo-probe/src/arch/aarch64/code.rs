//! Whether an instruction can be probed, and its copy.

use alloc::vec::Vec;
use core::ops::Range;

use hodo_codegen::statemap::StateMap;
use hodo_isa::aarch64::Kind;
use hodo_isa::aarch64::asm::{Code, Reach};
use hodo_isa::aarch64::decode::Insn;
use hodo_isa::aarch64::regs::{GENERAL, PLATFORM, ZERO, general};
use hodo_isa::aarch64::relocate::{Options, relocate, relocated_len};
use hodo_isa::aarch64::scan::{Flow, Sweep};
use hodo_isa::aarch64::steps::{Immovable, Step, steps};
pub(crate) use hodo_isa::aarch64::text;

use super::{BREAKPOINT, NEAR};
use crate::islands;
use crate::memory::Memory;
use crate::refusal::Refusal;
use crate::site::{Site, SiteCode, original_code};

/// The instruction that begins at an address of a function.
pub(crate) fn step(code: &[u8], start: u64, addr: u64) -> Result<Step, Refusal> {
    let steps = steps(code, start);
    let at = steps.partition_point(|step| step.addr <= addr);
    let step = at.checked_sub(1).and_then(|at| steps.get(at));
    let step = step
        .filter(|step| addr < step.end())
        .ok_or(Refusal::NotCode)?;
    if step.addr != addr {
        return Err(Refusal::Middle {
            instruction: text(&code[(step.addr - start) as usize..], step.addr),
            addr: step.addr,
        });
    }
    Ok(*step)
}

/// Whether calls through registers may arrive at an instruction: `bti`, `paciasp`, `pacibsp`.
pub(super) fn is_landing(code: &[u8]) -> bool {
    let hint = code.get(..4).and_then(|code| Insn::new(code, 0).hint());
    matches!(hint, Some(25 | 27 | 32 | 34 | 36 | 38))
}

/// How many bytes after the beginning of code a call site begins there, if it does. A probe may as well be before it,
/// at the instruction that says that the function may be called (`is_entry`).
pub(crate) fn landing(code: &[u8], is_entry: bool) -> u64 {
    const BTI_C: u32 = 34;
    let hint = code.get(..4).and_then(|code| Insn::new(code, 0).hint());
    if is_entry && hint == Some(BTI_C) {
        4
    } else {
        0
    }
}

/// Instructions of this length that do nothing.
pub(crate) fn nothing(len: usize) -> Vec<u8> {
    const NOP: [u8; 4] = hodo_isa::aarch64::asm::SYSTEM_CALL_NOP;
    NOP.iter().copied().cycle().take(len).collect()
}

/// Why an instruction cannot be probed.
pub(crate) fn refused(_: &[u8], step: &Step, _: bool) -> Option<&'static str> {
    Some(match step.immovable? {
        Immovable::Invalid => "no valid instruction",
        Immovable::Faults => "it only faults, and the program's handler would see another address",
        Immovable::Breakpoint => "it is a breakpoint of the program's own",
        Immovable::SystemCall => {
            "it is a system call, whose address the kernel and signal handlers see"
        }
        Immovable::CodeChanges => "it is about changed code, which a copy would not see",
        Immovable::Register => {
            "it uses a system register that may be refused, or whose use has effects of its own"
        }
        Immovable::Waits => "it waits",
        Immovable::Reserved => {
            "it is between an exclusive load and its store, or one of them, where a probe would make the store fail \
             forever"
        }
        Immovable::Steps => {
            "it is a step of copying or setting memory, which the kernel may begin again before it"
        }
        Immovable::Transaction => "it belongs to hardware transactions",
    })
}

/// Returns whether a copy of it does the same.
pub(crate) fn is_movable(step: &Step) -> bool {
    step.immovable.is_none()
}

/// How an instruction transfers control.
pub(crate) fn flow(code: &[u8], addr: u64) -> Flow {
    Insn::new(code, addr).flow()
}

/// The code of a function, used to find free registers.
pub(super) struct Function {
    code: Vec<u8>,
    range: Range<u64>,
}

impl Function {
    pub fn new(memory: &Memory, site: &Site) -> Self {
        let range = site.function.clone();
        let code = original_code(memory, range.clone());
        Self { code, range }
    }

    /// All instructions.
    pub fn steps(&self) -> Vec<Step> {
        steps(&self.code, self.range.start)
    }

    /// The general registers that are free at an instruction. The straight-line code from there on overwrites them
    /// before anybody sees them. A handler of a program fault sees registers too, and may continue elsewhere, so the
    /// search ends at the next memory access. Nothing is assumed about calls: compilers keep values in any register
    /// across calls of functions that they know.
    pub fn free(&self, addr: u64) -> u32 {
        let (mut read, mut written) = (0, 0);
        let code = addr
            .checked_sub(self.range.start)
            .and_then(|offset| self.code.get(usize::try_from(offset).ok()?..));
        for scanned in Sweep::new(code.unwrap_or_default(), addr) {
            if !computes(scanned.insn.kind) {
                break;
            }
            read |= scanned.effects.reads & !written;
            written |= scanned.effects.writes & !read;
        }
        (written & GENERAL & !general(PLATFORM)) as u32
    }
}

/// Whether an instruction only computes in general registers: it cannot fault, and goes on to the next.
fn computes(kind: Kind) -> bool {
    matches!(
        kind,
        Kind::Adr
            | Kind::Adrp
            | Kind::AddImmediate
            | Kind::LogicalImmediate
            | Kind::MoveWide
            | Kind::Bitfield
            | Kind::Extract
            | Kind::LogicalRegister
            | Kind::AddRegister
            | Kind::AddExtended
            | Kind::AddCarry
    )
}

/// Moves the instruction of a site into a slot that ends in a breakpoint, or in a jump back.
pub(crate) fn alone(
    memory: &Memory,
    site: &'static Site,
    trap: bool,
) -> Result<&'static SiteCode, Refusal> {
    let from = site.addr();
    let code = site.code();
    let refused = || Refusal::Instruction {
        instruction: text(code, from),
        reason: "it refers to something that is too far from any place where its copy could be",
    };
    let kernel = |error| Refusal::Kernel("there is no memory for code near the probe", error);
    let function = Function::new(memory, site);
    let free = |addr| function.free(addr);
    let options = Options {
        dead: &free,
        ..Options::new(Reach::Jump)
    };
    let size = relocated_len(code, from, &options).map_err(|_| refused())?;
    let size = size + Reach::Jump.jump_len();
    let room = islands::room(memory, from, size as u64, NEAR).map_err(kernel)?;
    let moved = relocate(code, from, room.at, &options).map_err(|_| refused())?;
    let end = room.at + moved.bytes.len() as u64;
    let mut bytes = moved.bytes;
    if trap {
        bytes.extend_from_slice(BREAKPOINT);
    } else if moved.falls_through {
        Code::new(&mut bytes, room.at)
            .jump(site.next(), Reach::Jump, ZERO)
            .map_err(|_| refused())?;
    }
    let piece = SiteCode {
        site,
        range: room.at..room.at + bytes.len() as u64,
        map: StateMap::of_copies([(from, room.at)]),
        calls: None,
        trap: trap.then_some(end),
        guard: None,
    };
    room.put(memory, &bytes, piece).map_err(kernel)
}
