//! Probes: the detours of regions of code.

use hodo_arch::x86_64::detour::{self, Action, Detour, When};
use hodo_arch::x86_64::emit::Code;
use hodo_arch::x86_64::frames;
use hodo_plan::model::{Extra, SitePlan};

use crate::{Copied, Image, Island, Patches, Places, layout, lead, write_puns};

/// A probe on one instruction.
#[derive(Debug, Clone)]
pub struct Probe {
    /// Link-time address of the instruction.
    pub addr: u64,
    /// Whether the flags are dead before it.
    pub flags_dead: bool,
    /// When it does its work.
    pub when: When,
    /// What it does.
    pub action: Action,
}

/// A region of code that is moved for its probes.
#[derive(Debug, Clone, Copy)]
pub struct Region<'p> {
    /// Where it is and what leads to its detour. The mode means nothing.
    pub site: &'p SitePlan,
    /// Its probes, ascending; those of one instruction in the order in which they are hit.
    pub probes: &'p [Probe],
}

/// Bytes that must be free in an island for a detour to be begun: more than the largest has.
const LARGEST: usize = 256 << 10;

impl Island {
    /// Adds the detours of a module's regions, and tells what to write over their sites.
    pub fn add_probes(
        &mut self,
        regions: &[Region<'_>],
        image: Image<'_>,
        timed: bool,
        places: &mut Places<'_>,
        patches: &mut Patches,
    ) {
        let mut punned = Vec::new();
        for region in regions {
            let site = region.site;
            let at = site.patch.wrapping_add(image.bias);
            let detour = self
                .detour(region, image, timed)
                .and_then(|(start, detour)| {
                    lead(site, at, start, patches)?;
                    Ok((start, detour))
                });
            match detour {
                Ok((start, detour)) => {
                    let from = site.displaced.start.wrapping_add(image.bias);
                    let resume = site.displaced.end.wrapping_add(image.bias);
                    patches.copies.extend(copies(&detour, from, resume));
                    patches.faults.extend(detour.faults);
                    if let Extra::Pun { free } = site.extra {
                        punned.push((site, free, start));
                    }
                }
                Err(reason) => patches.failed.push((site.patch, reason)),
            }
        }
        self.close_group();
        self.close_detours();
        write_puns(punned, image, places, patches);
    }

    /// Adds one detour; its address and what is in it.
    fn detour(
        &mut self,
        region: &Region<'_>,
        image: Image<'_>,
        timed: bool,
    ) -> Result<(u64, Detour), String> {
        let displaced = &region.site.displaced;
        let code = (image.code)(displaced.clone())
            .ok_or_else(|| "the displaced instructions are not in the file".to_owned())?;
        self.check_reach(region.site.patch.wrapping_add(image.bias))?;
        self.check_room(LARGEST)?;
        let probes: Vec<_> = region
            .probes
            .iter()
            .map(|probe| detour::Probe {
                when: probe.when,
                offset: (probe.addr - displaced.start) as usize,
                flags_dead: probe.flags_dead,
                action: &probe.action,
            })
            .collect();
        let runtime = self.runtime_addresses(timed);
        let before = self.code.len();
        let mut out = Code::new(&mut self.code, self.base);
        out.align(16);
        let start = out.here();
        let from = displaced.start.wrapping_add(image.bias);
        let resume = displaced.end.wrapping_add(image.bias);
        let emitted = detour::emit(&mut out, &layout(), &runtime, code, from, resume, &probes);
        match emitted {
            Ok(detour) => {
                self.rows.extend(&detour.rows);
                self.frame_detour(start, &detour);
                let group = self.rows.first().map_or(0, |row| row.at);
                if !self.rows.is_empty() && self.code.len() as u32 - group >= frames::GROUP {
                    self.close_group();
                }
                Ok((start, detour))
            }
            Err(error) => {
                self.code.truncate(before);
                Err(error.to_string())
            }
        }
    }
}

/// Where the instructions from `from` are in a detour; `resume` follows them.
fn copies(detour: &Detour, from: u64, resume: u64) -> Vec<Copied> {
    let copied = |original, before, copy| Copied {
        original,
        before,
        copy,
        call: false,
    };
    let moved = detour.map.iter().zip(&detour.before);
    let mut copies: Vec<_> = moved
        .map(|(&(old, copy), &before)| copied(from + old as u64, before, copy))
        .collect();
    copies.extend(detour.end.map(|end| copied(resume, end, end)));
    // `syscall` has two bytes, here and there.
    for &(old, behind) in &detour.calls {
        let original = from + old as u64;
        copies.push(Copied {
            call: true,
            ..copied(original + 2, behind, behind)
        });
        copies.push(Copied {
            call: true,
            ..copied(original, behind - 2, behind - 2)
        });
    }
    copies
}
