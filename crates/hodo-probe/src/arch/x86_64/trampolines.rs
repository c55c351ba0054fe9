//! Trampolines for jumps whose displacement is not free: where an instruction of the program begins, the displacement's
//! bytes must be breakpoints. So the jump reaches only certain addresses, where a second jump leads on.

use alloc::vec::Vec;
use core::ops::Range;

use hodo_abi::Span;
use hodo_codegen::arena::{Arena, Room};

use super::INT3;
use crate::environment::{self, Use};
use crate::maps::{self, Mapping};

const PAGE: u64 = 4096;
/// Where pages may be. A kernel says where nothing can be mapped.
const PLACES: Range<u64> = match cfg!(target_os = "none") {
    true => 1 << 16..u64::MAX,
    false => 1 << 16..0x7FFF_0000_0000,
};
/// Bytes of a jump.
const JUMP: u64 = 5;
/// At most this many pages, since mappings are limited.
const MOST: usize = 8192;
/// The top bytes of displacements, best first: not so far that code there could not reach the island.
const NEAR: [u8; 16] = [
    0xF8, 0xF0, 0xE8, 0xE0, 0xD8, 0xD0, 0x08, 0x10, 0x18, 0x20, 0x28, 0x30, 0xC8, 0x38, 0xC0, 0x40,
];

/// The pages with such jumps.
pub(crate) struct Trampolines {
    pages: Arena,
    maps: Vec<Mapping>,
}

impl Default for Trampolines {
    fn default() -> Self {
        Self {
            pages: Arena::new(MOST),
            maps: Vec::new(),
        }
    }
}

/// The displacements that have breakpoints at given offsets after the first byte of the jump.
#[derive(Clone, Copy)]
struct Wish {
    /// The address after the jump.
    from: u64,
    mask: u32,
}

impl Wish {
    fn new(site: u64, inside: &[u8]) -> Self {
        let mask = inside
            .iter()
            .fold(0, |mask, at| mask | 0xFF << (8 * (u32::from(*at) - 1)));
        Self {
            from: site + JUMP,
            mask,
        }
    }

    fn fits(self, spot: u64) -> bool {
        const ALL: u32 = u32::from_le_bytes([INT3; 4]);
        i32::try_from(spot.wrapping_sub(self.from).cast_signed())
            .is_ok_and(|distance| (distance.cast_unsigned() ^ ALL) & self.mask == 0)
    }
}

impl Trampolines {
    /// Finds a place for a jump that fits, and marks it as used. `None` if there is none.
    pub(crate) fn find(&mut self, site: u64, inside: &[u8]) -> Option<u64> {
        let wish = Wish::new(site, inside);
        let reach = (wish.from.saturating_sub(1 << 31))..wish.from.saturating_add(1 << 31);
        let near = self.pages.starting_in(reach).rev().take(256);
        let own = near.into_iter().find_map(|page| in_page(page, wish));
        let spot = match own {
            Some(spot) => spot,
            None => self.new_page(wish)?,
        };
        self.pages.take(Span::at(spot, JUMP)).then_some(spot)
    }

    /// Maps a page in which a place fits, and returns the place.
    fn new_page(&mut self, wish: Wish) -> Option<u64> {
        if self.pages.is_full() {
            return None;
        }
        if self.maps.is_empty() {
            self.maps = maps::mappings().ok()?;
        }
        let mut tries = 0;
        let byte = |at: u32| (wish.mask >> (8 * at) & 0xFF != 0).then_some(INT3);
        let tops: &[u8] = if byte(3).is_some() { &[INT3] } else { &NEAR };
        for top in tops {
            for second in (0..=255u8).filter(|second| byte(2).is_none_or(|byte| byte == *second)) {
                for third in (0..=255u8).filter(|third| byte(1).is_none_or(|byte| byte == *third)) {
                    let distance = i32::from_le_bytes([byte(0).unwrap_or(0), third, second, *top]);
                    let spot = wish.from.wrapping_add_signed(i64::from(distance));
                    let page = spot & !(PAGE - 1);
                    let free = PLACES.contains(&page)
                        && maps::find(&self.maps, page).is_none()
                        && !self.pages.begins(page);
                    let room = Room::new(Span::at(page, PAGE), 0);
                    let Some(spot) = free.then(|| in_page(&room, wish)).flatten() else {
                        continue;
                    };
                    tries += 1;
                    if environment::current()
                        .map(page, PAGE as usize, Use::Code)
                        .is_ok()
                    {
                        self.pages.add(room);
                        return Some(spot);
                    }
                    if tries > 64 {
                        // The mappings have changed.
                        self.maps = maps::mappings().ok()?;
                        return None;
                    }
                }
            }
        }
        None
    }
}

/// A free place in a page that fits the wish.
fn in_page(page: &Room, wish: Wish) -> Option<u64> {
    page.free().find_map(|free| {
        // If the lowest byte is fixed, only every 256th place fits.
        let lowest = wish.from.wrapping_add(u64::from(INT3));
        let (first, step) = match wish.mask & 0xFF {
            0 => (free.start, 1),
            _ => (free.start + (lowest.wrapping_sub(free.start) & 0xFF), 256),
        };
        let mut places = (first..(free.end + 1).saturating_sub(JUMP)).step_by(step);
        places.find(|&at| wish.fits(at))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spots_have_breakpoints_where_they_are_wanted() {
        let site = spots_have_breakpoints_where_they_are_wanted as *const () as u64;
        crate::linux::set();
        let mut spots = Trampolines::default();
        let mut seen: Vec<u64> = Vec::new();
        for round in 0..40 {
            for inside in [
                &[1][..],
                &[2],
                &[3],
                &[4],
                &[1, 4],
                &[1, 2, 3],
                &[1, 3],
                &[2, 4],
                &[1, 2, 3, 4],
            ] {
                let site = site + round * 16;
                let Some(spot) = spots.find(site, inside) else {
                    // Only one place fits there.
                    assert_eq!(inside.len(), 4);
                    continue;
                };
                let distance =
                    i32::try_from(spot.wrapping_sub(site + 5).cast_signed()).expect("in reach");
                for at in inside {
                    assert_eq!(distance.to_le_bytes()[usize::from(*at) - 1], INT3);
                }
                assert!(seen.iter().all(|other| other.abs_diff(spot) >= 5));
                seen.push(spot);
            }
        }
        assert!(seen.len() >= 8 * 40);
    }
}
