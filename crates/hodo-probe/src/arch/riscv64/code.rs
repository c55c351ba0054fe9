//! Whether an instruction can be probed, and its copy.

use alloc::vec::Vec;
use core::ops::Range;

use hodo_codegen::statemap::StateMap;
use hodo_isa::native::Kind;
use hodo_isa::native::asm::{Code, Reach};
use hodo_isa::native::decode::Insn;
use hodo_isa::native::relocate::{Options, relocate, relocated_len};
use hodo_isa::native::scan::{Flow, Sweep};
use hodo_isa::native::steps::{FIXED, Immovable, Step, steps};
pub(crate) use hodo_isa::native::text;

use super::{BREAKPOINT, FAR, NEAR};
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
    let instruction = || text(&code[(step.addr - start) as usize..], step.addr);
    if step.addr != addr {
        return Err(Refusal::Middle {
            instruction: instruction(),
            addr: step.addr,
        });
    }
    Ok(*step)
}

/// How many bytes after the beginning of code a call site begins there, if it does.
pub(crate) fn landing(_: &[u8], _: bool) -> u64 {
    0
}

/// Instructions of this length that do nothing.
pub(crate) fn nothing(len: usize) -> Vec<u8> {
    const NOP: [u8; 4] = 0x13_u32.to_le_bytes();
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
            "it uses a control register that may be refused, or whose use has effects of its own"
        }
        Immovable::Waits => "it waits",
        Immovable::Reserved => {
            "it is between lr and sc, or one of them, where a probe would make sc fail forever"
        }
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
    pub fn steps(&self) -> alloc::vec::Vec<Step> {
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
            let insn = scanned.insn;
            let (reads, writes) = insn.general();
            let plain = matches!(insn.kind, Kind::Plain | Kind::Float | Kind::Auipc);
            if !plain || insn.memory().is_some() || insn.flow() != Flow::Next {
                break;
            }
            read |= reads & !written;
            written |= writes & !read;
        }
        written & !FIXED
    }

    /// One of the free registers for a jump; if possible, not one that return prediction uses.
    pub fn jump_register(&self, addr: u64) -> Option<u8> {
        let free = self.free(addr);
        let from = match free & !(1 << 1 | 1 << 5) {
            0 => free,
            others => others,
        };
        (from != 0).then(|| from.ilog2() as u8)
    }
}

/// Moves the instruction of a site into a slot that ends in a breakpoint, or in a jump back.
pub(crate) fn alone(
    memory: &Memory,
    site: &'static Site,
    trap: bool,
) -> Result<&'static SiteCode, Refusal> {
    let near = slot(memory, site, trap, NEAR);
    near.or_else(|_| slot(memory, site, trap, FAR))
}

fn slot(
    memory: &Memory,
    site: &'static Site,
    trap: bool,
    reach: u64,
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
    let jumps = if reach == NEAR {
        Reach::Jump
    } else {
        Reach::Pair
    };
    let options = Options {
        dead: &free,
        ..Options::new(jumps)
    };
    let size = relocated_len(code, from, &options).map_err(|_| refused())? + jumps.jump_len();
    let room = islands::room(memory, from, size as u64, reach).map_err(kernel)?;
    let moved = relocate(code, from, room.at, &options).map_err(|_| refused())?;
    let end = room.at + moved.bytes.len() as u64;
    let mut bytes = moved.bytes;
    if trap {
        bytes.extend_from_slice(BREAKPOINT);
    } else if moved.falls_through {
        let register = match jumps.needs_register() {
            true => function.jump_register(site.next()).ok_or_else(refused)?,
            false => 0,
        };
        Code::new(&mut bytes, room.at)
            .jump(site.next(), jumps, register)
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
