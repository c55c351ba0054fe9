//! Sites whose stubs no long jump reaches. If the site has room, it loads the stub's address itself; otherwise it jumps
//! to our memory nearby, which holds a jump to anywhere. If neither is possible, the site gets a breakpoint.

use crate::refusal::Refusal;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ops::Range;

use hodo_codegen::native::patch;
use hodo_isa::Via;
use hodo_isa::code::{Flow, Insn};
use hodo_plan::model::{Extra, Pad, SitePlan, Spare, Tactic};

use crate::open_site::{Later, Open};
use crate::site_writer::{Found, take_back, trap, write_pads};
use crate::{Lead, Patches, Places};

/// Size and alignment of an address in bytes.
const WORD: u64 = 8;

/// The changes to the site if its stub is far away. `code`: its displaced instructions.
pub(crate) fn far_site<'s>(site: &'s SitePlan, code: &[u8]) -> Cow<'s, SitePlan> {
    if let Some(via) = patch::FAR_VIA {
        return Cow::Owned(by_pads(site, code, via));
    }
    let Some(far) = &site.far else {
        return Cow::Borrowed(site);
    };
    Cow::Owned(SitePlan {
        patch_len: far.patch_len,
        displaced: far.displaced.clone(),
        spare: far.spare.clone(),
        extra: Extra::None,
        ..site.clone()
    })
}

/// The site, with a pad near each place where control leaves its displaced instructions. The jumps there, and that from
/// the site, save this register.
fn by_pads(site: &SitePlan, code: &[u8], via: Via) -> SitePlan {
    let displaced = &site.displaced;
    let pad = |from: u64, to: u64| Pad { from, at: None, to };
    let leads_out = |insn: Insn| match insn.flow {
        Flow::Branch(to) | Flow::Jump(to) if !displaced.contains(&to) => Some(pad(insn.addr, to)),
        // A call of the code's own start is a recursive call, which is recorded.
        Flow::Call(to) => Some(pad(insn.addr, to)),
        _ => None,
    };
    let end = pad(displaced.end, displaced.end);
    let pads = hodo_isa::NATIVE.sweep(code, displaced.start);
    let pads = pads.filter_map(leads_out).chain([end]).collect();
    SitePlan {
        via,
        spare: Spare {
            dead: site.spare.dead.clone(),
            back: via,
            pads,
        },
        ..site.clone()
    }
}

/// What leads such a site to its stub; it is written after everything else.
pub(crate) fn lead_far(
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
    let to = patch::trap_entry(stub, site.via);
    patches.sites.push(Lead { at, to });
    Ok(Some(match &site.far {
        Some(far) => Later::Literal(far.literal),
        None => Later::Farther,
    }))
}

/// Writes that must not overlap others.
pub(crate) struct Writing<'p> {
    pub patches: &'p mut Patches,
    /// The other writes: their ends by their starts.
    taken: BTreeMap<u64, u64>,
}

impl<'p> Writing<'p> {
    pub fn new(patches: &'p mut Patches) -> Self {
        let taken = patches.writes.iter();
        let taken = taken.map(|(at, bytes)| (*at, at + bytes.len() as u64));
        Self {
            taken: taken.collect(),
            patches,
        }
    }

    fn is_free(&self, range: Range<u64>) -> bool {
        let before = self.taken.range(..range.end).next_back();
        before.is_none_or(|(_, &end)| end <= range.start)
    }

    /// Writes all of this for the site at `at`, or nothing.
    fn write(&mut self, at: u64, writes: impl IntoIterator<Item = (u64, Vec<u8>)>) -> Option<()> {
        let writes: Vec<_> = writes.into_iter().collect();
        let range = |(at, bytes): &(u64, Vec<u8>)| *at..at + bytes.len() as u64;
        if !writes.iter().map(range).all(|range| self.is_free(range)) {
            return None;
        }
        self.taken.extend(writes.iter().map(|write| {
            let Range { start, end } = range(write);
            (start, end)
        }));
        // At the site's first byte, nothing has been executed yet.
        let ways = writes.iter().map(range);
        let ways = ways.map(|way| way.start + u64::from(way.start == at)..way.end);
        ways.into_iter().for_each(|way| self.patches.add_way(way));
        self.patches.writes.extend(writes);
        Some(())
    }

    /// A jump at a site that loads its stub's address from `literal`, or from our memory.
    pub fn literal(
        &mut self,
        site: &Open,
        at: u64,
        literal: Option<u64>,
        places: &mut Places<'_>,
    ) -> Option<()> {
        let known = literal.filter(|&at| self.is_free(at..at + WORD));
        let literal = known.or_else(|| word(at, places))?;
        let jump = patch::by_literal(at, literal, site.via)?;
        self.write(
            at,
            [(at, jump), (literal, site.stub.to_le_bytes().to_vec())],
        )
    }

    /// The site's own jump, to our memory that holds a jump to anywhere.
    pub fn farther(
        &mut self,
        site: &Open,
        at: u64,
        bias: u64,
        places: &mut Places<'_>,
    ) -> Option<()> {
        let range = match site.extra {
            Extra::Near | Extra::HopDonor { .. } => patch::near(at, site.patch_len)?,
            _ => nearby(at),
        };
        let entry = places(range)?.next_multiple_of(patch::ALIGNED);
        let literal = word(entry, places)?;
        let [first, second] = patch::in_two(site.via);
        let stub = patch::jump_entry(site.stub, site.via);
        let mut writes = vec![
            (entry, patch::by_literal(entry, literal, second)?),
            (literal, stub.to_le_bytes().to_vec()),
        ];
        match site.extra {
            Extra::None => writes.push((at, patch::jump(at, entry, first)?)),
            Extra::HopSlot(slot) => {
                let slot = slot.wrapping_add(bias);
                writes.push((at, patch::hop(at, slot, site.patch_len)?));
                writes.push((slot, patch::jump(slot, entry, site.via)?));
            }
            Extra::Near | Extra::HopDonor { .. } => {
                writes[0].1 = patch::by_literal(entry, literal, site.via)?;
                writes.push((at, patch::hop(at, entry, site.patch_len)?));
            }
            Extra::Pun { .. } => return None,
        }
        self.write(at, writes)
    }
}

fn nearby(at: u64) -> Range<u64> {
    at.saturating_sub(patch::NEARBY)..at.saturating_add(patch::NEARBY)
}

/// Our memory for an address.
fn word(at: u64, places: &mut Places<'_>) -> Option<u64> {
    Some(places(nearby(at))?.next_multiple_of(WORD))
}
