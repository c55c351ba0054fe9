//! Hodoscope's detours: the planner's regions, moved by the emitter of recordings.

use hodo_codegen::detour::{Place, Probe, When};
use hodo_codegen::riscv64::masm::Masm;
use hodo_codegen::riscv64::{detour, patch};
use hodo_codegen::stub::Runtime;
use hodo_isa::riscv64::Kind;
use hodo_isa::{Signing, Via};
use hodo_plan::model::{Extra, Tactic};

use super::hit::{COUNT, layout};
use super::region::Region;
use super::{DETOUR, Refused, Setup};

/// How far from its target memory for a pad or a slot is chosen.
const NEAR: u64 = 0x8_0000;

/// The bytes of the region that are moved, and what the jump after them needs: a call at its end stays in place if the
/// patch does not reach it, so that the processor predicts its return.
fn moved(region: &Region<'_>, dead: &dyn Fn(u64) -> u32) -> (usize, Via) {
    let site = region.site;
    let all = (region.code.len(), site.spare.back);
    let Some(last) = region.insns.last() else {
        return all;
    };
    let calls = matches!(last.kind, Kind::Jal | Kind::Jalr) && last.rd() != 0;
    let mut targets = region.insns.iter().filter_map(Region::target);
    let leads = targets.any(|target| target == last.addr);
    if !calls || leads || last.addr < site.patch + u64::from(site.patch_len) {
        return all;
    }
    let code = region.bytes(last.addr, region.end());
    let way = patch::way_to_call(code, last.addr, dead(last.addr));
    way.map_or(all, |way| (region.code.len() - code.len(), way))
}

/// Builds the probe. A region with a breakpoint gets it with [`super::kernel`]'s handler.
///
/// # Errors
/// If the planner uses a breakpoint, or something is out of reach.
pub fn build(region: &Region<'_>, at: u64) -> Result<Setup, Refused> {
    let site = region.site;
    if site.tactic == Tactic::Trap {
        return Err(Refused::Breakpoint);
    }
    let mut setup = Setup {
        clobbers: region.free(at),
        ..Setup::default()
    };
    let spare = &site.spare;
    let pads: Vec<_> = (0..)
        .zip(&spare.pads)
        .map(|(number, pad)| {
            (
                pad.from,
                pad.at.unwrap_or(pad.to + NEAR + 16 * number),
                pad.to,
            )
        })
        .collect();
    let pads_of = |from: u64| pads.iter().find(|pad| pad.0 == from).map(|pad| pad.1);
    let dead = |at: u64| {
        let found = spare.dead.binary_search_by_key(&at, |&(addr, _)| addr);
        found.map_or(0, |index| spare.dead[index].1)
    };
    let (length, back) = moved(region, &dead);
    let end = region.start() + length as u64;
    let resume = match back {
        Via::Kept(_) => pads_of(end).unwrap_or(end - Via::TAKE),
        Via::Nothing | Via::Free(_) => end,
    };
    let place = Place {
        code: &region.code[..length],
        from: region.start(),
        resume,
        via: site.via,
        back,
        signing: Signing::None,
        dead: &dead,
        pads: &pads_of,
    };
    let probe = Probe {
        offset: (at - region.start()) as usize,
        when: When::Hit,
        flags_dead: false,
        free: region.free(at),
        action: &COUNT,
    };
    let mut bytes = Vec::new();
    let mut out = Masm::new(&mut bytes, DETOUR);
    detour::emit(&mut out, &layout(), &Runtime::default(), &place, &[probe])
        .map_err(|_| Refused::Encoding)?;
    setup.elsewhere = bytes.len();
    setup.writes.push((DETOUR, bytes));
    for &(_, pad, to) in &pads {
        write(&mut setup, pad, patch::pad(pad, to))?;
    }
    let taken = patch::take_back(back);
    if !taken.is_empty() && pads_of(end).is_none() {
        write(&mut setup, end - taken.len() as u64, Some(taken))?;
    }
    lead(region, &mut setup)?;
    for via in [site.via, back] {
        if let Via::Free(register) = via {
            setup.clobbers |= 1 << register;
        }
    }
    setup.clobbers = spare
        .dead
        .iter()
        .fold(setup.clobbers, |all, dead| all | dead.1);
    Ok(setup)
}

fn write(setup: &mut Setup, at: u64, bytes: Option<Vec<u8>>) -> Result<(), Refused> {
    let bytes = bytes.ok_or(Refused::Encoding)?;
    setup.patched += bytes.len();
    setup.writes.push((at, bytes));
    Ok(())
}

/// Writes what leads from the site to the detour.
///
/// # Errors
/// If something is out of reach.
pub fn lead(region: &Region<'_>, setup: &mut Setup) -> Result<(), Refused> {
    let site = region.site;
    let at = site.patch;
    let slot = match site.extra {
        Extra::None => return write(setup, at, patch::jump(at, DETOUR, site.via)),
        Extra::HopSlot(slot) | Extra::HopDonor { slot, .. } => slot,
        Extra::Near if site.patch_len == 4 => at + NEAR - 0x1_0000,
        Extra::Near => at + 0x400,
        Extra::Pun { .. } => return Err(Refused::Encoding),
    };
    write(setup, at, patch::hop(at, slot, site.patch_len))?;
    write(setup, slot, patch::jump(slot, DETOUR, site.via))
}
