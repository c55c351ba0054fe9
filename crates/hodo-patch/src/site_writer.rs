//! Writes over a site, so that it leads to its stub.

use crate::refusal::Refusal;
use std::ops::Range;

use hodo_codegen::native::patch;
use hodo_isa::Via;
use hodo_plan::model::{self, Extra, SitePlan, Tactic, elsewhere};

use crate::open_site::{Later, Open};
use crate::{Lead, OUT_OF_REACH, Patches, Places, in_words};

impl Patches {
    /// Adds to [`Patches::ways`].
    pub fn add_way(&mut self, way: Range<u64>) {
        self.ways.push(way.into());
    }
}

/// Why a region cannot be moved.
const NO_WAY_OUT: &str = "no register is free for the jump from its copy, and no memory is near enough to do without one";

/// The pad through which control leaves the displaced instructions if no register is free: as in the plan, with its
/// runtime address.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Found {
    /// Link-time address of the instruction, or the end.
    pub from: u64,
    /// Runtime address of the pad.
    pub at: u64,
    /// Link-time address of its target.
    to: u64,
}

/// Finds memory for those pads of a site that have no place in its file.
pub(crate) fn pads(
    site: &SitePlan,
    bias: u64,
    places: &mut Places<'_>,
) -> Result<Vec<Found>, Refusal> {
    let place = |pad: &model::Pad| {
        let at = match pad.at {
            Some(at) => Some(at.wrapping_add(bias)),
            None => patch::near_pad(pad.to.wrapping_add(bias)).and_then(&mut *places),
        };
        Some(Found {
            from: pad.from,
            at: at?.next_multiple_of(patch::ALIGNED),
            to: pad.to,
        })
    };
    let found: Option<Vec<Found>> = site.spare.pads.iter().map(place).collect();
    found.ok_or_else(|| match patch::FAR_VIA {
        // Only sites of far islands have pads.
        Some(_) => {
            let reach = in_words(patch::REACH);
            let text = "and no memory is near enough for jumps to one farther away";
            format!("there is no island within {reach}, {text}").into()
        }
        None => NO_WAY_OUT.into(),
    })
}

/// The address of the pad for a link-time address.
pub(crate) fn pad(pads: &[Found], from: u64) -> Option<u64> {
    let found = pads.iter().find(|pad| pad.from == from);
    found.map(|pad| pad.at)
}

/// Writes what leads from a site to its stub, as far as this needs no other memory.
pub(crate) fn lead(
    site: &SitePlan,
    pads: &[Found],
    at: u64,
    stub: u64,
    patches: &mut Patches,
) -> Result<Option<Later>, Refusal> {
    write_pads(pads, at.wrapping_sub(site.patch), patches)?;
    take_back(site, pads, at, patches);
    if site.tactic == Tactic::Trap {
        trap(site.via, at, stub, patches);
        return Ok(None);
    }
    let mut later = None;
    let mut write = |start: u64, bytes: Option<Vec<u8>>| {
        let bytes = bytes.ok_or(OUT_OF_REACH)?;
        // At the first byte of the site itself, nothing has been executed yet.
        let first = start + u64::from(start == at);
        patches.add_way(first..start + bytes.len() as u64);
        patches.writes.push((start, bytes));
        Ok::<_, Refusal>(())
    };
    match site.extra {
        Extra::HopSlot(slot) => {
            let slot = slot.wrapping_add(at.wrapping_sub(site.patch));
            let hop = patch::hop(at, slot, site.patch_len);
            let hop = hop.ok_or("the hop is too far")?;
            write(at, Some(hop))?;
            write(slot, patch::jump(slot, stub, site.via))?;
        }
        Extra::Pun { free } => later = Some(Later::Pun(free)),
        Extra::Near => later = Some(Later::Near),
        Extra::HopDonor { slot, host } => {
            let slot = slot.wrapping_add(at.wrapping_sub(site.patch));
            later = Some(Later::Donor { slot, host });
        }
        Extra::None => write(at, patch::jump(at, stub, site.via))?,
    }
    // A thread that comes by a breakpoint later has saved nothing on the stack.
    let entry = patch::trap_entry(stub, site.via);
    patches.sites.push(Lead { at, to: entry });
    Ok(later)
}

/// Writes the pads of a site.
pub(crate) fn write_pads(pads: &[Found], bias: u64, patches: &mut Patches) -> Result<(), Refusal> {
    for pad in pads {
        let to = pad.to.wrapping_add(bias);
        let bytes = patch::pad(pad.at, to).ok_or(OUT_OF_REACH)?;
        patches.add_way(pad.at..pad.at + bytes.len() as u64);
        patches.writes.push((pad.at, bytes));
    }
    Ok(())
}

/// Writes the code that restores the register of the jump back from a stub or a detour, if the jump saves one and there
/// is no pad.
pub(crate) fn take_back(site: &SitePlan, pads: &[Found], at: u64, patches: &mut Patches) {
    let end = site.displaced.end;
    let taken = patch::take_back(site.spare.back);
    if !taken.is_empty() && pads.iter().all(|pad| pad.from != end) {
        let end = end.wrapping_add(at.wrapping_sub(site.patch));
        let start = end - taken.len() as u64;
        patches.add_way(start..end);
        patches.writes.push((start, taken));
    }
}

/// Writes a breakpoint.
pub(crate) fn trap(via: Via, at: u64, stub: u64, patches: &mut Patches) {
    patches.writes.push((at, patch::TRAP.to_vec()));
    let to = patch::trap_entry(stub, via);
    patches.traps.push(Lead { at, to });
}

/// A region that was built, the indexes of its writes, and what is left for later.
pub(crate) type Built<'s> = (&'s SitePlan, Range<usize>, Option<Box<Open>>);

/// Regions that could not be built keep their code: takes back what was written for other regions that would use bytes
/// of theirs.
pub(crate) fn drop_users<'s>(
    mut lost: Vec<&'s SitePlan>,
    built: &mut Vec<Built<'s>>,
    bias: u64,
    patches: &mut Patches,
) {
    let mut dropped = Vec::new();
    while let Some(gone) = lost.pop() {
        let users = built.extract_if(.., |(site, ..)| {
            let among = |range: Range<u64>| {
                range.start < gone.displaced.end && gone.displaced.start < range.end
            };
            elsewhere(hodo_isa::NATIVE, &site.extra, site.via, &site.spare).any(among)
        });
        for (site, writes, _) in users {
            let reason = "the bytes that it would borrow from another region are not available";
            patches.failed.push((site.patch, reason.into()));
            dropped.push(writes);
            lost.push(site);
            let at = site.patch.wrapping_add(bias);
            patches.traps.retain(|trap| trap.at != at);
            patches.sites.retain(|site| site.at != at);
            // No thread may be moved to code that it cannot leave.
            let first = site.displaced.start.min(site.patch).wrapping_add(bias);
            let moved = first..site.displaced.end.wrapping_add(bias);
            (patches.copies).retain(|copied| !moved.contains(&copied.original));
        }
    }
    let mut index = 0..;
    patches.writes.retain(|_| {
        let index = index.next().expect("there is no end");
        !dropped.iter().any(|writes| writes.contains(&index))
    });
}

#[cfg(test)]
mod tests {
    use std::ops::Range;

    use hodo_isa::{Signing, Via};
    use hodo_plan::model::{Mode, Spare};

    use super::*;

    fn region(displaced: Range<u64>, extra: Extra) -> SitePlan {
        SitePlan {
            tactic: Tactic::Jump,
            mode: Mode::Call,
            patch: displaced.start,
            patch_len: 2,
            displaced,
            extra,
            via: Via::Nothing,
            signing: Signing::None,
            free: 0,
            free_after: 0,
            spare: Spare::default(),
            far: None,
        }
    }

    #[test]
    fn nothing_is_written_among_the_bytes_of_regions_that_stay() {
        let lost = region(0x100..0x120, Extra::None);
        let sites = [
            region(0x200..0x220, Extra::HopSlot(0x110)),
            region(0x300..0x302, Extra::HopSlot(0x210)),
            region(0x400..0x420, Extra::HopSlot(0x120)),
            region(0x500..0x502, Extra::HopSlot(0x410)),
            // An instruction stays in front of the jump.
            SitePlan {
                patch: 0x604,
                ..region(0x600..0x608, Extra::HopSlot(0x118))
            },
        ];
        let bias = 0x10_0000;
        let mut patches = Patches::default();
        let mut built = Vec::new();
        for site in &sites {
            let before = patches.writes.len();
            let at = site.patch + bias;
            patches.writes.push((at, vec![0; 2]));
            if let Extra::HopSlot(slot) = site.extra {
                patches.writes.push((slot + bias, vec![0; 5]));
            }
            patches.sites.push(Lead { at, to: 0 });
            let start = site.displaced.start + bias;
            patches.copies.extend(crate::copied(&[(start, 0)]));
            built.push((site, before..patches.writes.len(), None));
        }
        drop_users(vec![&lost], &mut built, bias, &mut patches);
        let places = |pairs: &[(u64, Vec<u8>)]| -> Vec<u64> {
            pairs.iter().map(|pair| pair.0 - bias).collect()
        };
        assert_eq!(places(&patches.writes), [0x400, 0x120, 0x500, 0x410]);
        let failed: Vec<u64> = patches.failed.iter().map(|failed| failed.0).collect();
        assert_eq!(failed, [0x200, 0x604, 0x300]);
        let left = [0x400, 0x500].map(|addr| Lead {
            at: addr + bias,
            to: 0,
        });
        assert_eq!(patches.sites, left);
        let copied: Vec<u64> = patches
            .copies
            .iter()
            .map(|copied| copied.original)
            .collect();
        assert_eq!(copied, [0x400 + bias, 0x500 + bias]);
        assert_eq!(built.len(), 2);
    }
}
