//! What is written over a site, so that it leads to its stub.

use hodo_arch::native::stub;
use hodo_plan::model::{Extra, SitePlan, Tactic};

use crate::{Image, Patches, Places};

/// Writes what leads from a site to its stub. A pun is left for later: its jump has bytes of what stands behind it.
pub(crate) fn lead(
    site: &SitePlan,
    at: u64,
    stub: u64,
    patches: &mut Patches,
) -> Result<(), String> {
    if site.tactic == Tactic::Trap {
        patches.writes.push((at, vec![0xCC]));
        patches.traps.push((at, stub));
        return Ok(());
    }
    match site.extra {
        Extra::HopSlot(slot) => {
            let slot = slot.wrapping_add(at.wrapping_sub(site.patch));
            let hop = i8::try_from(slot.wrapping_sub(at + 2).cast_signed())
                .map_err(|_| "the hop is too far".to_owned())?;
            patches.writes.push((at, vec![0xEB, hop.cast_unsigned()]));
            patches.writes.push((slot, stub::jump(slot, stub)));
        }
        Extra::Pun { .. } => {}
        Extra::Near | Extra::HopBehind { .. } => {
            return Err("no short jump reaches memory of ours".to_owned());
        }
        Extra::None => patches.writes.push((at, stub::jump(at, stub))),
    }
    patches.sites.push((at, stub));
    Ok(())
}

/// Writes the jumps of puns. The bytes behind a punned site are part of its jump, so all others come first.
pub(crate) fn write_puns(
    puns: Vec<(&SitePlan, u8, u64)>,
    image: Image<'_>,
    places: &mut Places<'_>,
    patches: &mut Patches,
) {
    for (site, free, stub) in puns {
        let at = site.patch.wrapping_add(image.bias);
        match pun(site, free, image, patches, places) {
            Some((entry, bytes)) => {
                patches.writes.push((at, bytes));
                patches.writes.push((entry, far_jump(stub)));
            }
            None => {
                patches.writes.push((at, vec![0xCC]));
                patches.traps.push((at, stub));
            }
        }
    }
}

/// A jump to anywhere: `jmp *0(%rip)` and the address.
fn far_jump(to: u64) -> Vec<u8> {
    [&[0xFF, 0x25, 0, 0, 0, 0], &to.to_le_bytes()[..]].concat()
}

/// The jump of a punned site: where it leads, and the bytes to write. The last bytes of its distance are those that
/// stand behind the site, which are patched already.
fn pun(
    site: &SitePlan,
    free: u8,
    image: Image<'_>,
    patches: &Patches,
    places: &mut Places<'_>,
) -> Option<(u64, Vec<u8>)> {
    let at = site.patch.wrapping_add(image.bias);
    let mut distance = [0; 4];
    for (index, byte) in distance.iter_mut().enumerate().skip(usize::from(free)) {
        let addr = site.patch + 1 + index as u64;
        let runtime = addr.wrapping_add(image.bias);
        let patched = patches.writes.iter().find_map(|(start, bytes)| {
            let offset = usize::try_from(runtime.checked_sub(*start)?).ok()?;
            bytes.get(offset).copied()
        });
        *byte = match patched {
            Some(byte) => byte,
            None => *(image.code)(addr..addr + 1)?.first()?,
        };
    }
    let lowest = i32::from_le_bytes(distance);
    let start = at.wrapping_add(5).checked_add_signed(i64::from(lowest))?;
    let end = start.checked_add(1 << (8 * u32::from(free)))?;
    let entry = places(start..end)?;
    let jump = stub::jump(at, entry);
    Some((entry, jump[..usize::from(site.patch_len)].to_vec()))
}
