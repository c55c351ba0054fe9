//! Writes the sites that were left open, after all others.

use std::collections::HashSet;

use hodo_codegen::native::patch;

use crate::far::Writing;
use crate::open_site::{Later, Open};
use crate::site_writer::trap;
use crate::{Image, Patches, Places};

/// Writes what was left for later. The bytes after a punned site are part of its jump, so all other sites come first.
/// If no memory is available, a site gets a breakpoint. `hosts`: the functions that are patched.
pub(crate) fn write_later(
    sites: Vec<Open>,
    hosts: &HashSet<u64>,
    image: Image<'_>,
    places: &mut Places<'_>,
    patches: &mut Patches,
) {
    for site in &sites {
        let stub = site.stub;
        let at = site.patch.wrapping_add(image.bias);
        let found = match site.later {
            Later::Literal(_) | Later::Farther => continue,
            Later::Pun(free) => pun(site, free, image, patches, places),
            Later::Donor { slot, host } if hosts.contains(&host) => {
                patch::hop(at, slot, site.patch_len).map(|hop| (slot, hop))
            }
            Later::Near | Later::Donor { .. } => near(site, at, places),
        };
        let found = found.and_then(|(entry, bytes)| {
            let jump = patch::far(entry, stub, site.via)?;
            Some([(at, bytes), (entry, jump)])
        });
        match found {
            Some([(at, bytes), (entry, jump)]) => {
                patches.add_way(entry..entry + jump.len() as u64);
                patches.writes.extend([(at, bytes), (entry, jump)]);
            }
            None => trap(site.via, at, stub, patches),
        }
    }
    let far = |site: &&Open| matches!(site.later, Later::Literal(_) | Later::Farther);
    let mut far = sites.iter().filter(far).peekable();
    if far.peek().is_none() {
        return;
    }
    let mut writing = Writing::new(patches);
    for site in far {
        let at = site.patch.wrapping_add(image.bias);
        let written = match site.later {
            Later::Literal(literal) => {
                let literal = literal.map(|literal| literal.wrapping_add(image.bias));
                writing.literal(site, at, literal, places)
            }
            _ => writing.farther(site, at, image.bias, places),
        };
        if written.is_none() {
            trap(site.via, at, site.stub, writing.patches);
        }
    }
}

/// The short jump from a site to our memory: its target, and the bytes to write.
fn near(site: &Open, at: u64, places: &mut Places<'_>) -> Option<(u64, Vec<u8>)> {
    let found = places(patch::near(at, site.patch_len)?)?;
    // There is more room than the jump needs.
    let entry = found.next_multiple_of(2);
    Some((entry, patch::hop(at, entry, site.patch_len)?))
}

/// The jump of a punned site: its target, and the bytes to write. The last bytes of its distance are the bytes after
/// the site, which are patched already.
fn pun(
    site: &Open,
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
    let entry = places(patch::pun(at, distance, free)?)?;
    let jump = patch::jump(at, entry, site.via)?;
    Some((entry, jump[..usize::from(site.patch_len)].to_vec()))
}
