//! Detours in shadow mode: the instructions under the jump run unchanged elsewhere.

use hodo_codegen::riscv64::patch;
use hodo_isa::Via;
use hodo_isa::riscv64::Kind;
use hodo_isa::riscv64::decode::Insn;
use hodo_isa::riscv64::regs::KEPT;
use hodo_isa::riscv64::relocate::choose;
use hodo_plan::model::Tactic;

use super::hit::hit;
use super::region::Region;
use super::today::lead;
use super::{DETOUR, Refused, Setup, Way};
use crate::encode::{C_J_SELF, c_jall, lrw2spc};
use crate::params::Proposals;

/// The register of the jump at an address.
fn via(way: Way, region: &Region<'_>, at: u64) -> Option<Via> {
    match way {
        Way::Pair => choose(region.free(at)).map(Via::Free),
        Way::Kept => Some(Via::Kept(KEPT)),
        Way::Jall => Some(Via::Nothing),
        Way::Planned => Some(region.site.via),
    }
}

/// Bytes of the jump.
const fn length(way: Way, region: &Region<'_>) -> u64 {
    match way {
        Way::Pair => 8,
        Way::Kept => 12,
        Way::Jall => 6,
        Way::Planned => region.site.patch_len as u64,
    }
}

/// Where the jump for a probe goes: the last place from which it overwrites the instruction and has room. Nothing may
/// lead to its other bytes.
fn place(region: &Region<'_>, at: u64, way: Way) -> Result<(u64, Via), Refused> {
    let length = length(way, region);
    if way == Way::Planned {
        let start = region.start();
        let entered = region.is_entered_between(start, (start + length).max(at + 1));
        return match (region.site.tactic, entered) {
            (Tactic::Trap, _) => Err(Refused::Breakpoint),
            (_, true) => Err(Refused::Entered),
            _ => Ok((start, region.site.via)),
        };
    }
    let mut why = Refused::NoRoom;
    for start in region.starts(at, length) {
        match via(way, region, start) {
            Some(via) => return Ok((start, via)),
            None => why = Refused::NoRegister,
        }
    }
    Err(why)
}

/// The jump itself, with its address.
fn jump(way: Way, start: u64, via: Via) -> Result<Vec<u8>, Refused> {
    if way != Way::Jall {
        return patch::jump(start, DETOUR, via).ok_or(Refused::Encoding);
    }
    let mut jump = c_jall(Proposals::default().cjall, 0).to_le_bytes().to_vec();
    let distance = i32::try_from(DETOUR - start).map_err(|_| Refused::Encoding)?;
    jump.extend(distance.to_le_bytes());
    Ok(jump)
}

/// Whether an instruction uses its own address.
fn uses_address(insn: &Insn) -> bool {
    match insn.kind {
        Kind::Auipc | Kind::Branch | Kind::Jal => true,
        Kind::Jalr => insn.rd() != 0,
        _ => false,
    }
}

/// The code: the instructions from `start` to `end`, with a hit before the one at `at`. The mode begins only where an
/// instruction needs it, as the jump back does.
fn code(
    region: &Region<'_>,
    (start, at, end): (u64, u64, u64),
    via: Via,
) -> Result<Vec<u8>, Refused> {
    let among = |from: u64, to: u64| {
        let inside = move |insn: &&Insn| from <= insn.addr && insn.addr < to;
        region.insns.iter().filter(inside)
    };
    let mut code = patch::take_back(via);
    let mut shadows = Vec::new();
    let mut follow = |code: &mut Vec<u8>, spc: u64| {
        shadows.push((code.len(), spc));
        code.extend([0; 4]);
    };
    if among(start, at).any(uses_address) {
        follow(&mut code, start);
    }
    code.extend(region.bytes(start, at));
    code.extend(hit(region.free(at))?);
    let goes_on = !among(at, end)
        .next_back()
        .is_some_and(|last| matches!(last.kind, Kind::Jal | Kind::Jalr));
    if goes_on || among(at, end).any(uses_address) {
        follow(&mut code, at);
    }
    code.extend(region.bytes(at, end));
    if goes_on {
        code.extend(C_J_SELF.to_le_bytes());
    }
    for (offset, spc) in shadows {
        code.resize(code.len().next_multiple_of(8), 0);
        let distance = (code.len() - offset) as i64;
        let word = lrw2spc(Proposals::default().immediate, distance).ok_or(Refused::Encoding)?;
        code[offset..offset + 4].copy_from_slice(&word.to_le_bytes());
        code.extend(spc.to_le_bytes());
    }
    Ok(code)
}

/// Builds the probe.
///
/// # Errors
/// If it cannot be.
pub fn build(region: &Region<'_>, at: u64, way: Way) -> Result<Setup, Refused> {
    let (start, via) = place(region, at, way)?;
    let end = region.overwritten(start, length(way, region).max(at + 1 - start));
    let code = code(region, (start, at, end), via)?;
    let mut setup = Setup {
        elsewhere: code.len(),
        clobbers: region.free(at),
        ..Setup::default()
    };
    setup.writes.push((DETOUR, code));
    if way == Way::Planned {
        lead(region, &mut setup)?;
    } else {
        let jump = jump(way, start, via)?;
        setup.patched = jump.len();
        setup.writes.push((start, jump));
    }
    if let Via::Free(register) = via {
        setup.clobbers |= 1 << register;
    }
    Ok(setup)
}
