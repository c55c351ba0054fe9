//! Sites made for tracers whose stub is out of reach of the long jump: they load the stub's address from spare nops or
//! from padding.

use crate::ladder::Free;
use crate::model::{Far, SitePlan};
use crate::subject::{Planner, Subject};

/// The size of an address in bytes, and its alignment.
const WORD: u64 = 8;
/// The maximum distance of the address from the jump, and a little less.
const REACH: u64 = 0x7000_0000;

impl Planner<'_> {
    /// Such a jump in place of the site's own one. The address follows it, if there is room for both.
    pub(crate) fn far(&self, subject: &Subject<'_>, site: &SitePlan) -> Option<Far> {
        let len = self.isa().far_jump(site.via)?.len;
        let literal = (site.patch + len).next_multiple_of(WORD);
        let whole = literal + WORD - site.patch;
        let room = self.room(subject, site.patch, whole);
        let (room, literal) = match room {
            Ok(room) => (room, Some(literal)),
            Err(_) => (self.room(subject, site.patch, len).ok()?, None),
        };
        Some(Far {
            patch_len: len as u8,
            literal,
            displaced: site.patch..room.end,
            spare: room.spare,
        })
    }

    /// Places addresses that do not fit after their jumps in padding that nothing else uses.
    pub(crate) fn far_literal(&self, site: &mut SitePlan, pads: &mut Free) {
        let patch = site.patch;
        let Some(far) = site.far.as_mut().filter(|far| far.literal.is_none()) else {
            return;
        };
        // This many bytes contain an aligned address, wherever they begin.
        let most = 2 * WORD - 1;
        let reach = patch.saturating_sub(REACH)..=patch.saturating_add(REACH);
        let place = pads.take(reach, most, |place| !self.occupied.any(place));
        far.literal = place.map(|place| place.next_multiple_of(WORD));
        if let Some(literal) = far.literal {
            (literal..literal + WORD).for_each(|addr| self.occupied.set(addr));
        }
    }
}
