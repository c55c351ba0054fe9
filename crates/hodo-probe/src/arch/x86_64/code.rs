//! Whether an instruction can be probed, and its copy.

use alloc::vec::Vec;

use hodo_codegen::statemap::StateMap;
use hodo_isa::native::relocate::{relocate_mapped, relocated_len};
use hodo_isa::native::scan::Flow;
use hodo_isa::native::steps::{Step, Steps, Transaction, immovable};
pub(crate) use hodo_isa::native::text;
use hodo_isa::x86_64::asm::jump;
use hodo_isa::x86_64::entry::is_interrupt;

use super::INT3;
use crate::islands;
use crate::memory::Memory;
use crate::refusal::Refusal;
use crate::site::{Site, SiteCode};

/// The instruction that begins at an address of a function.
pub(crate) fn step(code: &[u8], start: u64, addr: u64) -> Result<Step, Refusal> {
    let at = |addr: u64| &code[(addr - start) as usize..];
    let mut transaction = false;
    for step in Steps::new(code, start) {
        if step.addr > addr {
            break;
        }
        let refused = |reason| Refusal::Instruction {
            instruction: text(at(step.addr), step.addr),
            reason,
        };
        transaction |= step.transaction == Transaction::Begin;
        if step.addr == addr {
            if step.flow == Flow::Invalid {
                return Err(refused("no valid instruction"));
            }
            if transaction {
                return Err(refused(
                    "it is in a hardware transaction, which a probe would abort",
                ));
            }
            return Ok(step);
        }
        if addr < step.end() {
            return Err(Refusal::Middle {
                instruction: text(at(step.addr), step.addr),
                addr: step.addr,
            });
        }
        transaction &= step.transaction != Transaction::End;
    }
    Err(Refusal::NotCode)
}

/// How many bytes after the beginning of code a call site begins there, if it does. A probe may as well be there:
/// before it is the instruction that says that the function may be called (`is_entry`), or a prefix of the call that
/// linkers make of a longer one.
pub(crate) fn landing(code: &[u8], is_entry: bool) -> u64 {
    const ENDBR64: [u8; 4] = [0xF3, 0x0F, 0x1E, 0xFA];
    let landing = if is_entry && code.starts_with(&ENDBR64) {
        ENDBR64.len()
    } else {
        0
    };
    let is_prefixed = matches!(code[landing..], [0x67, 0xE8 | 0xA9, ..]);
    landing as u64 + u64::from(is_prefixed)
}

/// Instructions of this length that do nothing.
pub(crate) fn nothing(len: usize) -> Vec<u8> {
    const NOP: u8 = 0x90;
    vec![NOP; len]
}

/// Why an instruction cannot be probed, as far as the instruction alone shows.
pub(crate) fn refused(code: &[u8], step: &Step, simulated: bool) -> Option<&'static str> {
    if is_interrupt(code) {
        return Some("it is a breakpoint or interrupt of the program's own");
    }
    if step.flow == Flow::Fault {
        return Some("it only faults, and the program's handler would see another address");
    }
    if simulated {
        return None;
    }
    immovable(code, step.addr)
}

/// Returns whether a copy of it does the same.
pub(crate) fn is_movable(step: &Step) -> bool {
    step.movable
}

/// How an instruction transfers control.
pub(crate) fn flow(code: &[u8], addr: u64) -> Flow {
    let step = Steps::new(code, addr).next();
    step.map_or(Flow::Invalid, |step| step.flow)
}

/// Moves the instruction of a site into a slot that ends in a breakpoint, or in a jump back.
pub(crate) fn alone(
    memory: &Memory,
    site: &'static Site,
    trap: bool,
) -> Result<&'static SiteCode, Refusal> {
    let from = site.addr();
    let code = site.code();
    let refused = |_| Refusal::Instruction {
        instruction: text(code, from),
        reason: "it refers to something that is too far from any place where its copy could be",
    };
    let kernel = |error| Refusal::Kernel("there is no memory for code near the probe", error);
    let size = relocated_len(code, from).map_err(refused)? as u64 + 5;
    let room = islands::room(memory, from, size, super::REACH).map_err(kernel)?;
    let moved = relocate_mapped(code, from, room.at).map_err(refused)?;
    let mut bytes = moved.bytes;
    let end = room.at + bytes.len() as u64;
    if trap {
        bytes.push(INT3);
    } else if moved.falls_through {
        bytes.extend(jump(end, site.next()).map_err(|_| kernel(12))?);
    }
    let call = matches!(Steps::new(code, from).next(), Some(step) if step.is_call());
    let piece = SiteCode {
        site,
        range: room.at..room.at + bytes.len() as u64,
        map: StateMap::of_copies([(from, room.at)]),
        calls: call.then_some(from),
        guard: None,
        trap: trap.then_some(end),
    };
    room.put(memory, &bytes, piece).map_err(kernel)
}
