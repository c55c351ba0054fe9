//! Probes: the detours of regions of code.

use crate::refusal::Refusal;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::ops::Range;

use hodo_abi::Span;
use hodo_codegen::native::detour::{self, Action, Detour, DetourError, Place, SYSTEM_CALL, When};
use hodo_codegen::native::frames;
use hodo_codegen::native::masm::Masm;
use hodo_codegen::native::patch::{FAR_VIA, before_stub, state, take_signature, way_to_call};
use hodo_codegen::native::stub::{Body, Records, Runtime};
use hodo_codegen::patch::dead;
use hodo_isa::code::{Flow, Insn};
use hodo_isa::native::cfa::{Row, Rule};
use hodo_isa::{Signing, Via};
use hodo_plan::model::SitePlan;

use crate::far::lead_far;
use crate::open_site::Open;
use crate::site_writer::{Found, lead, pad, pads};
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
pub(crate) const LARGEST: usize = 256 << 10;

impl Island {
    /// Adds the detour of a region, preceded by the stub of its function if that is traced, and the bytes to write over
    /// the region's start. Returns what is left for later.
    pub(crate) fn add_region(
        &mut self,
        (region, places): (&Region<'_>, &mut Places<'_>),
        image: Image<'_>,
        recording: Recording,
        changes: &[&BTreeMap<u64, Vec<u8>>],
        patches: &mut Patches,
    ) -> Result<Option<Box<Open>>, Refusal> {
        let at = region.site.patch.wrapping_add(image.bias);
        let (far, site) = match (self.check_reach(at), FAR_VIA) {
            (Err(reason), None) => return Err(reason),
            _ => self.here(region.site, image, changes)?,
        };
        let site = &*site;
        self.check_room(LARGEST)?;
        let displaced = &site.displaced;
        let code = Self::displaced(site, image, changes)?;
        let probes = probes(region);
        let runtime = self.runtime_addresses(recording.timed);
        let from = displaced.start.wrapping_add(image.bias);
        let spare = &site.spare.dead;
        let dead = |at: u64| dead(spare, at);
        let found = pads(site, image.bias, places)?;
        let pads = |at: u64| pad(&found, at);
        let (length, back, resume) = moved_part(site, (&code, far), image, &found);
        let code = &code[..length];
        let landing = landing(site, code);
        let place = Place {
            code,
            from,
            resume,
            // A stub restores the register itself, and so does the code in front of a detour far away.
            via: match region.function {
                None if !far => site.via,
                _ => Via::Nothing,
            },
            back,
            signing: match landing {
                Signing::None => signing(region, landing),
                _ => Signing::None,
            },
            dead: &|at| dead(at.wrapping_sub(image.bias)),
            pads: &|at| pads(at.wrapping_sub(image.bias)),
        };
        // There are two ways to describe frames, and an FDE uses only one of them.
        let returns = region.probes.iter().any(|probe| probe.when != When::Hit);
        let wraps = returns || region.function.is_some();
        let emission = Emission {
            place: &place,
            probes: &probes,
            runtime: &runtime,
            landing,
            frames: wraps.then_some(returns),
            entry: Cell::new(0),
        };
        let emit = |out: &mut Masm<'_>| emission.emit(out);
        if wraps {
            self.close_detours();
        } else if code
            .windows(SYSTEM_CALL.len())
            .any(|code| code == SYSTEM_CALL)
        {
            self.close_group();
        }
        let (start, detour) = match region.function {
            None => self.bare_detour((site.via, landing), wraps, emit)?,
            Some(traced) => {
                let own = traced.function.outcome.as_ref();
                let own = own.map_err(|reason| Refusal::from(reason.clone()))?;
                let mut records = records(traced.id, traced.filter, own.mode, recording);
                records.registers = registers(site);
                records.registers.signing = signing(region, landing);
                self.detour_in_stub((&records, at), returns, &mut patches.faults, emit)?
            }
        };
        let later = match far {
            true => lead_far(site, &found, at, start, patches)?,
            false => lead(site, &found, at, start, patches)?,
        };
        if matches!(site.spare.back, Via::Kept(_)) || !found.is_empty() {
            patches.leaving.push(Span::from(start..self.end()));
        }
        patches.copies.extend(copies(&detour, from, at));
        patches.copies.extend(emission.entry_copy(&detour, at));
        (patches.faults).extend(detour.faults.into_iter().map(Lead::from));
        detour
            .exits
            .into_iter()
            .for_each(|way| patches.add_way(way));
        // Few sites need this, and there may be a million regions.
        Ok(later.map(|later| Box::new(Open::new(site, later, start))))
    }

    /// Adds a detour without a stub in front of it. Also returns its address.
    fn bare_detour(
        &mut self,
        (via, signing): (Via, Signing),
        wraps: bool,
        emit: impl FnOnce(&mut Masm<'_>) -> Result<Detour, DetourError>,
    ) -> Result<(u64, Detour), Refusal> {
        let before = self.code.len();
        let mut out = Masm::new(&mut self.code, self.base + self.origin as u64);
        out.align(16);
        let _ = before_stub(&mut out, via, signing);
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

    /// Adds a stub whose body is a detour, for the site at a runtime address. Also returns the stub's address.
    fn detour_in_stub(
        &mut self,
        (records, site): (&Records, u64),
        returns: bool,
        faults: &mut Vec<Lead>,
        emit: impl FnOnce(&mut Masm<'_>) -> Result<Detour, DetourError>,
    ) -> Result<(u64, Detour), Refusal> {
        let mut detour = Detour::default();
        let start = self.stub(records, site, faults, |at| {
            let mut bytes = Vec::new();
            detour = emit(&mut Masm::new(&mut bytes, at))?;
            Ok::<_, DetourError>(Body {
                bytes,
                resume: None,
                rows: core::mem::take(&mut detour.rows),
                returns,
            })
        })?;
        Ok((start, detour))
    }
}

/// The probes of a region's instructions.
fn probes<'p>(region: &Region<'p>) -> Vec<detour::Probe<'p>> {
    let start = region.site.displaced.start;
    let probe = |probe: &'p Probe| detour::Probe {
        when: probe.when,
        offset: (probe.addr - start) as usize,
        flags_dead: probe.flags_dead,
        free: probe.free,
        action: &probe.action,
    };
    region.probes.iter().map(probe).collect()
}

/// How a detour is emitted.
struct Emission<'e> {
    place: &'e Place<'e>,
    probes: &'e [detour::Probe<'e>],
    runtime: &'e Runtime,
    /// See [`landing`].
    landing: Signing,
    /// Whether functions return to the detour, if its frames are described like those of stubs.
    frames: Option<bool>,
    /// Where it begins, once that is known.
    entry: Cell<u64>,
}

impl Emission<'_> {
    fn emit(&self, out: &mut Masm<'_>) -> Result<Detour, DetourError> {
        self.entry.set(out.here());
        let signed = out.offset();
        take_signature(out, self.landing);
        let plain = out.offset();
        let mut detour = detour::emit(out, &layout(), self.runtime, self.place, self.probes)?;
        // Rows of the detour itself come after these.
        if self.frames == Some(false) {
            detour.rows.insert(0, row(plain, Rule::Unknown));
        }
        if self.frames.is_some() && self.landing != Signing::None {
            let rule = state(self.landing).rule();
            detour.rows.insert(0, row(signed, rule));
        }
        Ok(detour)
    }

    /// If the detour takes a signature back: a thread that has come there by the jump at `at`, and has executed nothing
    /// yet, is still at that instruction.
    fn entry_copy(&self, detour: &Detour, at: u64) -> Option<Copied> {
        let original = |after: &&(usize, u64)| self.place.from + after.0 as u64 == at;
        let copy = detour.map.iter().find(original)?.1;
        let signs = self.landing != Signing::None;
        signs.then(|| copied(at, (self.entry.get(), copy)))
    }
}

/// How the return address is signed where a region's jump is: by the landing instruction in front of it. Else, its own
/// plan does not say so, but that of the function does if its site is there: after the instruction that signs.
fn signing(region: &Region<'_>, landing: Signing) -> Signing {
    let function = region
        .function
        .and_then(|traced| traced.function.outcome.as_ref().ok());
    let site = function.filter(|function| function.patch == region.site.patch);
    match landing {
        Signing::None => site.unwrap_or(region.site).signing,
        key => key,
    }
}

/// How the return address is signed when the detour of a region is entered, if the jump there comes after an
/// instruction that signs. The detour takes the signature back: the region's probes come before that instruction, which
/// is executed again after them.
fn landing(site: &SitePlan, code: &[u8]) -> Signing {
    match site.patch == site.displaced.start {
        true => Signing::None,
        false => hodo_isa::NATIVE.signing(code),
    }
}

/// From here on, a frame is as the rule says.
const fn row(at: u32, rule: Rule) -> Row {
    Row { at, rule }
}

/// An instruction, where its probes begin, and where it is.
const fn copied(original: u64, (before, copy): (u64, u64)) -> Copied {
    Copied {
        original,
        before,
        copy,
        call: false,
        leads: false,
    }
}

/// Where the instructions from `from` on are in a detour. Those before `at` also stay where they are, in front of the
/// jump.
fn copies(detour: &Detour, from: u64, at: u64) -> Vec<Copied> {
    let moved = detour.map.iter().zip(&detour.before);
    let mut copies: Vec<_> = moved
        .map(|(&(old, copy), &before)| {
            let original = from + old as u64;
            Copied {
                leads: original < at,
                ..copied(original, (before, copy))
            }
        })
        .collect();
    // A system call has the same length in both places.
    const LENGTH: u64 = SYSTEM_CALL.len() as u64;
    for &(old, after) in &detour.calls {
        let original = from + old as u64;
        copies.push(Copied {
            call: true,
            ..copied(original + LENGTH, (after, after))
        });
        copies.push(Copied {
            call: true,
            ..copied(original, (after - LENGTH, after - LENGTH))
        });
    }
    copies
}

/// How many bytes of a region are moved, the register of the jump back from them, and where that leads.
fn moved_part(
    site: &SitePlan,
    (code, far): (&[u8], bool),
    image: Image<'_>,
    pads: &[Found],
) -> (usize, Via, u64) {
    let dead = |at: u64| dead(&site.spare.dead, at);
    let kept = match far {
        // No register is known to be free for a jump to the call.
        true => None,
        false => call_in_place(code, site, dead, |call| (image.code)(call)),
    };
    let (length, back) = kept.unwrap_or((code.len(), site.spare.back));
    let end = site.displaced.start + length as u64;
    let resume = end.wrapping_add(image.bias);
    let resume = match back {
        Via::Kept(_) => pad(pads, end).unwrap_or(resume - Via::TAKE),
        Via::Nothing | Via::Free(_) => resume,
    };
    (length, back, resume)
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
