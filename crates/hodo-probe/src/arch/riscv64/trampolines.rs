//! Trampolines for jumps whose second half must be a trap because an instruction of the program begins there. The
//! second half of `jal` holds most of its distance, so such a jump reaches only certain addresses, where a second jump
//! leads on.
//!
//! A trap is `c.ebreak`, or a two-byte encoding that is no instruction: all zeros, or a reserved form of an instruction
//! that would otherwise do nothing.

use alloc::vec::Vec;
use core::ops::Range;

use hodo_abi::Span;
use hodo_codegen::arena::{Arena, Room};
use hodo_isa::riscv64::asm::fits;
use hodo_isa::riscv64::encode::j;
use hodo_isa::riscv64::regs::ZERO;

use crate::environment::{self, Use};
use crate::maps::{self, Mapping};

const PAGE: u64 = 4096;
/// Bytes of a jump.
const JUMP: u64 = 4;
/// At most this many pages, since mappings are limited.
const MOST: usize = 8192;
/// How far the second jump reaches.
const REACH: u64 = (1 << 20) - 2 * PAGE;

/// A half that is a trap. `low` is the lower bits of the distance that it means; the distance lies in the 64 KiB with
/// number `block`, above the jump or, if negative, above the point 1 MiB below it.
#[derive(Clone, Copy)]
struct Trap {
    low: u16,
    block: u8,
    negative: bool,
}

/// All traps, `c.ebreak` first.
fn traps() -> impl Iterator<Item = u16> {
    // The operand's bits: five, and one more.
    let operands = || (0..64u16).map(|bits| (bits & 31) << 2 | (bits >> 5) << 12);
    let lwsp = operands().map(|bits| 0x4002 | bits); // c.lwsp zero
    let ldsp = operands().map(|bits| 0x6002 | bits); // c.ldsp zero
    let addiw = operands().map(|bits| 0x2001 | bits); // c.addiw zero
    [0x9002, 0x8002, 0x6101, 0]
        .into_iter()
        .chain(lwsp)
        .chain(ldsp)
        .chain(addiw)
}

impl Trap {
    /// Decodes the bits of `jal`: 20, 10 to 1, 11, 19 to 16.
    fn new(half: u16) -> Self {
        Self {
            low: (half >> 4 & 1) << 11 | (half >> 5 & 0x3FF) << 1,
            block: (half & 15) as u8,
            negative: half & 0x8000 != 0,
        }
    }
}

/// The pages with such jumps.
pub(crate) struct Trampolines {
    pages: Arena,
    maps: Vec<Mapping>,
    /// For each 4 KiB of distance, from 1 MiB below upwards: the lower bits of the distances that fit.
    lows: Vec<Vec<u16>>,
}

impl Default for Trampolines {
    fn default() -> Self {
        Self {
            pages: Arena::new(MOST),
            maps: Vec::new(),
            lows: Vec::new(),
        }
    }
}

impl Trampolines {
    fn prepare(&mut self) {
        if !self.lows.is_empty() {
            return;
        }
        self.lows = vec![Vec::new(); 512];
        for trap in traps().map(Trap::new) {
            let first = usize::from(trap.block) * 16 + if trap.negative { 0 } else { 256 };
            for lows in &mut self.lows[first..first + 16] {
                // The distances of all-zero halves lead into the site itself, or just after it.
                if !lows.contains(&trap.low) && (trap.negative || trap.block > 0) {
                    lows.push(trap.low);
                }
            }
        }
    }

    /// Finds a place for the second jump, which leads to `to`, and marks it as used.
    pub(super) fn find(&mut self, site: u64, to: u64) -> Option<u64> {
        self.prepare();
        let bottom = site.wrapping_sub(1 << 20);
        let in_reach = |page: u64| page.abs_diff(to) < REACH;
        let reach = bottom..site.saturating_add(1 << 20);
        let own = (self.pages.starting_in(reach))
            .filter(|page| in_reach(page.span().start))
            .find_map(|page| self.in_page(page, site));
        let spot = match own {
            Some(spot) => spot,
            None => self.new_page(site, in_reach)?,
        };
        self.pages.take(Span::at(spot, JUMP)).then_some(spot)
    }

    /// A free place in a page that fits.
    fn in_page(&self, page: &Room, site: u64) -> Option<u64> {
        let bottom = site.wrapping_sub(1 << 20);
        // The page overlaps two chunks.
        let distance = page.span().start.wrapping_sub(bottom).cast_signed();
        let chunk = distance.div_euclid(PAGE.cast_signed());
        [chunk, chunk + 1].into_iter().find_map(|chunk| {
            let chunk = usize::try_from(chunk).ok()?;
            let first = bottom + chunk as u64 * PAGE;
            let mut places = self
                .lows
                .get(chunk)?
                .iter()
                .map(|&low| first + u64::from(low));
            places.find(|&at| page.is_free(Span::at(at, JUMP)))
        })
    }

    fn new_page(&mut self, site: u64, in_reach: impl Fn(u64) -> bool) -> Option<u64> {
        if self.pages.is_full() {
            return None;
        }
        if self.maps.is_empty() {
            self.maps = maps::mappings().ok()?;
        }
        let first = site.checked_sub(1 << 20)? & !(PAGE - 1);
        let pages: Range<u64> = first..first + (1 << 21);
        let mut tries = 0;
        for page in pages.step_by(PAGE as usize) {
            let usable = page > 1 << 16
                && in_reach(page)
                && maps::find(&self.maps, page).is_none()
                && !self.pages.begins(page);
            let room = Room::new(Span::at(page, PAGE), 0);
            let Some(spot) = usable.then(|| self.in_page(&room, site)).flatten() else {
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
        None
    }
}

/// The jump from a site to such a place; `None` if its second half is not a trap, which cannot happen.
pub(super) fn jump(site: u64, spot: u64) -> Option<[u8; 4]> {
    let jump = near_jump(site, spot)?;
    let second = u16::from_le_bytes([jump[2], jump[3]]);
    traps().any(|half| half == second).then_some(jump)
}

/// `jal`, if it reaches.
pub(super) fn near_jump(from: u64, to: u64) -> Option<[u8; JUMP as usize]> {
    let distance = to.wrapping_sub(from).cast_signed();
    fits(distance, 21).then(|| j(ZERO, distance).to_le_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::sync::atomic::{AtomicU64, Ordering};
    use hodo_isa::riscv64::Kind;
    use hodo_isa::riscv64::decode::Insn;

    #[test]
    fn traps_are_no_instructions() {
        for half in traps() {
            let insn = Insn::new(&half.to_le_bytes(), 0);
            assert_eq!(insn.len, 2);
            assert!(
                matches!(insn.kind, Kind::Invalid | Kind::Unimp | Kind::Ebreak),
                "{half:04x} {:?}",
                insn.kind
            );
        }
    }

    static SIGNALS: AtomicU64 = AtomicU64::new(0);

    /// Continues after the trap.
    extern "C" fn after(_: i32, _: *mut libc::siginfo_t, context: *mut libc::ucontext_t) {
        SIGNALS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the kernel's frame of this handler.
        unsafe { (*context).uc_mcontext.__gregs[0] += 2 };
    }

    #[test]
    fn traps_make_signals() {
        // SAFETY: a handler; a page of the test's own; a function of a trap and `ret`.
        unsafe {
            let mut action: libc::sigaction = core::mem::zeroed();
            action.sa_sigaction = after as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO;
            for signal in [libc::SIGILL, libc::SIGTRAP] {
                assert_eq!(
                    libc::sigaction(signal, &raw const action, core::ptr::null_mut()),
                    0
                );
            }
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            let page = libc::mmap(core::ptr::null_mut(), 4096, 7, flags, -1, 0);
            assert_ne!(page, libc::MAP_FAILED);
            for (number, half) in (1..).zip(traps()) {
                page.cast::<[u16; 2]>().write([half, 0x8082]);
                core::arch::asm!("fence.i");
                let function: extern "C" fn() = core::mem::transmute(page);
                function();
                assert_eq!(SIGNALS.load(Ordering::Relaxed), number, "{half:04x}");
            }
        }
    }

    #[test]
    fn spots_have_traps_where_they_are_wanted() {
        let site = spots_have_traps_where_they_are_wanted as *const () as u64;
        crate::linux::set();
        let mut spots = Trampolines::default();
        let mut seen: Vec<u64> = Vec::new();
        for round in 0..400 {
            let site = site + round * 2;
            let spot = spots.find(site, site - (1 << 19)).expect("there is room");
            assert!(jump(site, spot).is_some(), "{site:#x} {spot:#x}");
            assert!(seen.iter().all(|other| other.abs_diff(spot) >= JUMP));
            seen.push(spot);
        }
        let pages = spots.pages.rooms().count();
        assert!(pages < 200, "{pages}");
    }
}
