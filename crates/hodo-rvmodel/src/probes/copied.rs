//! Detours that hold nothing but copies, as a kernel without code that relocates instructions could make them: nothing
//! under the jump may use its own address, and a register must be free for the jump there and for the one back.

use hodo_codegen::riscv64::patch;
use hodo_isa::Via;
use hodo_isa::riscv64::relocate::choose;

use super::hit::hit;
use super::region::{Execution, Region, execution};
use super::{DETOUR, Refused, Setup};

/// Bytes of the jump.
const JUMP: u64 = 8;

/// The registers of both jumps, if the one there is at `start`.
fn ways(region: &Region<'_>, start: u64) -> Result<(Via, u64, Via), Refused> {
    let end = region.overwritten(start, JUMP);
    let via = choose(region.free(start)).ok_or(Refused::NoRegister)?;
    for insn in region
        .insns
        .iter()
        .filter(|insn| (start..end).contains(&insn.addr))
    {
        if execution(insn)? != Execution::Copied {
            return Err(Refused::Relative);
        }
    }
    let back = region.back(end).ok_or(Refused::NoWayBack)?;
    Ok((Via::Free(via), end, back))
}

/// Builds the probe.
///
/// # Errors
/// If it cannot be.
pub fn build(region: &Region<'_>, at: u64) -> Result<Setup, Refused> {
    let mut why = Refused::NoRoom;
    for start in region.starts(at, JUMP) {
        let (via, end, back) = match ways(region, start) {
            Ok(ways) => ways,
            Err(reason) => {
                why = reason;
                continue;
            }
        };
        let free = region.free(at);
        let mut code = region.bytes(start, at).to_vec();
        code.extend(hit(free)?);
        code.extend(region.bytes(at, end));
        let from = DETOUR + code.len() as u64;
        code.extend(patch::jump(from, end, back).ok_or(Refused::Encoding)?);
        let jump = patch::jump(start, DETOUR, via).ok_or(Refused::Encoding)?;
        let mut clobbers = free;
        for via in [via, back] {
            if let Via::Free(register) = via {
                clobbers |= 1 << register;
            }
        }
        return Ok(Setup {
            patched: jump.len(),
            elsewhere: code.len(),
            writes: vec![(DETOUR, code), (start, jump)],
            handler: false,
            clobbers,
        });
    }
    Err(why)
}
