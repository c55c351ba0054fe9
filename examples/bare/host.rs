//! What `hodo-keys`, `hodo-ftrace` and `hodo-probe` need to change this kernel's code: writing it, and memory for more.

use core::ops::Range;

use hodo_sys::{Errno, Mapping, Page, Pages, Text, Use};

use crate::paging::{self, PAGE, R, W, X};
use crate::{hart, heap};

const ENOMEM: Errno = 12;
const EFAULT: Errno = 14;
const EEXIST: Errno = 17;

/// This kernel.
pub struct Kernel;

// SAFETY: `write_code` writes to memory, aligned words at once, and `synchronize` has all harts execute it.
unsafe impl Text for Kernel {
    fn read(&self, at: usize, into: &mut [u8]) -> usize {
        for (done, byte) in into.iter_mut().enumerate() {
            let here = at + done;
            let is_new = done == 0 || here.is_multiple_of(PAGE);
            if is_new && paging::find(here & !(PAGE - 1)).is_none_or(|(_, rights)| rights & R == 0)
            {
                return done;
            }
            // SAFETY: it can be read. Nobody else writes to code now.
            *byte = unsafe { (here as *const u8).read_volatile() };
        }
        into.len()
    }

    unsafe fn write(&self, at: usize, bytes: &[u8]) -> Result<(), Errno> {
        // SAFETY: the caller answers for what is written.
        match unsafe { paging::write_code(at, bytes) } {
            true => Ok(()),
            false => Err(EFAULT),
        }
    }

    fn sync(&self) {
        hart::synchronize();
    }
}

fn piece(range: Range<usize>, rights: u64) -> Mapping {
    Mapping {
        range: range.start as u64..range.end as u64,
        read: rights & R != 0,
        write: rights & W != 0,
        execute: rights & X != 0,
        shared: false,
        grows: false,
        // No headers of an ELF file are there.
        offset: 1,
    }
}

// SAFETY: memory comes from the heap, which never gets it back.
unsafe impl Pages for Kernel {
    fn mappings(&self, see: &mut dyn FnMut(Mapping)) -> Result<(), Errno> {
        let layout = paging::layout();
        let before = paging::room_before();
        let mapped =
            |range| paging::pages(range).map(|(page, rights)| piece(page..page + PAGE, rights));
        see(piece(0..before.start, 0));
        // What was mapped below.
        mapped(before.clone()).for_each(&mut *see);
        // The firmware, and what handles traps: no breakpoint may be there.
        see(piece(before.end..layout.probed.start, 0));
        see(piece(layout.probed, R | X));
        mapped(layout.room).for_each(&mut *see);
        see(piece(layout.rodata, R));
        see(piece(layout.data.start..layout.heap.end, R | W));
        see(piece(layout.heap.end..usize::MAX, 0));
        Ok(())
    }

    fn map(&self, at: u64, size: usize, for_what: Use) -> Result<u64, Errno> {
        let rights = match for_what {
            Use::Code => R | X,
            Use::Data | Use::Sparse => R | W,
        };
        let pages = at as usize..at as usize + size;
        if at == 0 {
            // The heap is mapped as data.
            let pages = heap::pages(size.div_ceil(PAGE)) as u64;
            return (for_what != Use::Code).then_some(pages).ok_or(ENOMEM);
        }
        let rooms = [paging::room_before(), paging::layout().room];
        let has_room = rooms
            .iter()
            .any(|room| room.start <= pages.start && pages.end <= room.end);
        if !has_room || paging::pages(pages.clone()).next().is_some() {
            return Err(EEXIST);
        }
        pages
            .step_by(PAGE)
            .for_each(|page| paging::map(page, heap::page(), rights));
        // The other hart may know that nothing was there.
        hart::synchronize();
        Ok(at)
    }

    fn page(&self, from: usize, to: usize, reach: usize) -> Option<Page> {
        // From the end: `hodo-probe` takes what is nearest to the text.
        let mut free = paging::layout().room.step_by(PAGE).rev();
        let address = free.find(|page| paging::find(*page).is_none())?;
        let is_near =
            address + PAGE - from.min(address) <= reach && to.max(address) - address <= reach;
        if !is_near {
            return None;
        }
        self.map(address as u64, PAGE, Use::Code).ok()?;
        Some(Page {
            address,
            length: PAGE,
        })
    }
}
