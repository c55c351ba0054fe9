//! Probes: the detours of regions of code.

use crate::refusal::Refusal;
use std::collections::BTreeMap;
use std::ops::Range;

use hodo_abi::Span;
use hodo_codegen::native::detour::{self, Action, Detour, DetourError, Place, SYSTEM_CALL, When};
use hodo_codegen::native::frames;
use hodo_codegen::native::masm::Masm;
use hodo_codegen::native::patch::{before_stub, way_to_call};
use hodo_codegen::native::stub::{Body, Records};
use hodo_isa::code::{Flow, Insn};
use hodo_isa::native::cfa::{Row, Rule};
use hodo_isa::{Signing, Via};
use hodo_plan::model::SitePlan;

use crate::open_site::Later;
use crate::site_writer::{lead, pad, pads};
use crate::{
    Copied, Image, Island, Lead, Patches, Places, Recording, Traced, layout, records, registers,
};

/// A probe on one instruction.
#[derive(Debug, Clone)]
pub struct Probe {
    /// Link-time address of the instruction.
    pub addr: u64,
    /// Whether the flags are dead before it.
    pub flags_dead: bool,
    /// Registers that are dead before it, one bit for each number.
    pub free: u32,
    /// At which moment it acts.
    pub when: When,
    /// What it does.
    pub action: Action,
}

/// A region of code that is moved for its probes.
#[derive(Debug, Clone, Copy)]
pub struct Region<'p> {
    /// Where it is, and what leads to its detour. The mode has no meaning.
    pub site: &'p SitePlan,
    /// Its probes in ascending order; those of one instruction in the order in which they are hit.
    pub probes: &'p [Probe],
    /// The traced function that begins here.
    pub function: Option<Traced<'p>>,
}

/// How many bytes must be free in an island before a detour is begun: more than the largest takes.
const LARGEST: usize = 256 << 10;

impl Island {
    /// Adds the detour of a region, preceded by the stub of its function if that is traced, and the bytes to write over
    /// the region's start. Returns its address.
    pub(crate) fn add_region(
        &mut self,
        (region, places): (&Region<'_>, &mut Places<'_>),
        image: Image<'_>,
        recording: Recording,
        changes: &[&BTreeMap<u64, Vec<u8>>],
        patches: &mut Patches,
    ) -> Result<(u64, Option<Later>), Refusal> {
        let site = region.site;
        let at = site.patch.wrapping_add(image.bias);
        self.check_reach(at)?;
        self.check_room(LARGEST)?;
        let displaced = &site.displaced;
        let code = Self::displaced(site, image, changes)?;
        let probes: Vec<_> = region
            .probes
            .iter()
            .map(|probe| detour::Probe {
                when: probe.when,
                offset: (probe.addr - displaced.start) as usize,
                flags_dead: probe.flags_dead,
                free: probe.free,
                action: &probe.action,
            })
            .collect();
        let runtime = self.runtime_addresses(recording.timed);
        let from = displaced.start.wrapping_add(image.bias);
        let spare = &site.spare.dead;
        let dead = |at: u64| {
            let found = spare.binary_search_by_key(&at, |&(addr, _)| addr);
            found.map_or(0, |index| spare[index].1)
        };
        let found = pads(site, image.bias, places)?;
        let pads = |at: u64| pad(&found, at);
        let kept = call_in_place(&code, site, dead, |call| (image.code)(call));
        let (length, back) = kept.unwrap_or((code.len(), site.spare.back));
        let code = &code[..length];
        let end = from + code.len() as u64;
        let resume = match back {
            Via::Kept(_) => pads(end.wrapping_sub(image.bias)).unwrap_or(end - Via::TAKE),
            Via::Nothing | Via::Free(_) => end,
        };
        let place = Place {
            code,
            from,
            resume,
            // A stub restores the register itself.
            via: match region.function {
                Some(_) => Via::Nothing,
                None => site.via,
            },
            back,
            signing: signing(region),
            dead: &|at| dead(at.wrapping_sub(image.bias)),
            pads: &|at| pads(at.wrapping_sub(image.bias)),
        };
        let emit = |out: &mut Masm<'_>| detour::emit(out, &layout(), &runtime, &place, &probes);
        // There are two ways to describe frames, and an FDE uses only one of them.
        let returns = region.probes.iter().any(|probe| probe.when != When::Hit);
        let wraps = returns || region.function.is_some();
        if wraps {
            self.close_detours();
        } else if code
            .windows(SYSTEM_CALL.len())
            .any(|code| code == SYSTEM_CALL)
        {
            self.close_group();
        }
        let (start, detour) = match region.function {
            None => self.bare_detour(site.via, wraps, emit)?,
            Some(traced) => {
                let own = traced.function.outcome.as_ref();
                let own = own.map_err(|reason| Refusal::from(reason.clone()))?;
                let mut records = records(traced.id, traced.filter, own.mode, recording);
                records.registers = registers(site);
                records.registers.signing = place.signing;
                self.detour_in_stub(&records, &mut patches.faults, emit)?
            }
        };
        let later = lead(site, &found, at, start, patches)?;
        if matches!(site.spare.back, Via::Kept(_)) || !found.is_empty() {
            patches.leaving.push(Span::from(start..self.end()));
        }
        patches.copies.extend(copies(&detour, from));
        (patches.faults).extend(detour.faults.into_iter().map(Lead::from));
        detour
            .exits
            .into_iter()
            .for_each(|way| patches.add_way(way));
        Ok((start, later))
    }

    /// Adds a detour without a stub in front of it. Also returns its address.
    fn bare_detour(
        &mut self,
        via: Via,
        wraps: bool,
        emit: impl FnOnce(&mut Masm<'_>) -> Result<Detour, DetourError>,
    ) -> Result<(u64, Detour), Refusal> {
        let before = self.code.len();
        let mut out = Masm::new(&mut self.code, self.base + self.origin as u64);
        out.align(16);
        let _ = before_stub(&mut out, via);
        let start = out.here();
        let detour = emit(&mut out).map_err(|error| {
            self.code.truncate(before);
            error.to_string()
        })?;
        self.rows.extend(&detour.rows);
        if !wraps {
            self.frame_detour(start, &detour);
        }
        let group = self.rows.first().map_or(0, |row| row.at);
        if !self.rows.is_empty() && self.code.len() as u32 - group >= frames::GROUP {
            self.close_group();
        }
        Ok((start, detour))
    }

    /// Adds a stub whose body is a detour. Also returns the stub's address.
    fn detour_in_stub(
        &mut self,
        records: &Records,
        faults: &mut Vec<Lead>,
        emit: impl FnOnce(&mut Masm<'_>) -> Result<Detour, DetourError>,
    ) -> Result<(u64, Detour), Refusal> {
        let mut detour = Detour::default();
        let start = self.stub(records, 0, faults, |at| {
            let mut bytes = Vec::new();
            detour = emit(&mut Masm::new(&mut bytes, at))?;
            let own = core::mem::take(&mut detour.rows);
            let unknown = Row {
                at: 0,
                rule: Rule::Unknown,
            };
            let returns = !own.is_empty();
            Ok::<_, DetourError>(Body {
                bytes,
                resume: None,
                rows: match returns {
                    true => own,
                    false => vec![unknown],
                },
                returns,
            })
        })?;
        Ok((start, detour))
    }
}

/// How the return address is signed where a region begins. Its own plan does not say so, but that of the function does
/// if its site is there: after the instruction that signs.
fn signing(region: &Region<'_>) -> Signing {
    let function = region
        .function
        .and_then(|traced| traced.function.outcome.as_ref().ok());
    let site = function.filter(|function| function.patch == region.site.patch);
    site.unwrap_or(region.site).signing
}

/// Where the instructions from `from` on are in a detour.
fn copies(detour: &Detour, from: u64) -> Vec<Copied> {
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
    // A system call has the same length in both places.
    const LENGTH: u64 = SYSTEM_CALL.len() as u64;
    for &(old, after) in &detour.calls {
        let original = from + old as u64;
        copies.push(Copied {
            call: true,
            ..copied(original + LENGTH, after, after)
        });
        copies.push(Copied {
            call: true,
            ..copied(original, after - LENGTH, after - LENGTH)
        });
    }
    copies
}

/// The offset of the call that ends a region, if the call can be executed in place, so that the processor predicts its
/// return. Also returns what the jump there needs.
fn call_in_place<'c>(
    code: &[u8],
    site: &SitePlan,
    dead: impl Fn(u64) -> u32,
    original: impl Fn(Range<u64>) -> Option<&'c [u8]>,
) -> Option<(usize, Via)> {
    let start = site.displaced.start;
    let last = hodo_isa::NATIVE.sweep(code, start).last()?;
    let at = (last.addr - start) as usize;
    let is_call = matches!(last.flow, Flow::Call(_) | Flow::IndirectCall);
    // A branch of the region would then bypass the probes of the call.
    let leads_there =
        |insn: Insn| matches!(insn.flow, Flow::Branch(to) | Flow::Jump(to) if to == last.addr);
    let free = last.addr >= site.patch + u64::from(site.patch_len);
    let stays = original(last.addr..site.displaced.end) == Some(&code[at..]);
    let leads = hodo_isa::NATIVE.sweep(code, start).any(leads_there);
    if !is_call || !free || !stays || leads {
        return None;
    }
    Some((at, way_to_call(&code[at..], last.addr, dead(last.addr))?))
}
