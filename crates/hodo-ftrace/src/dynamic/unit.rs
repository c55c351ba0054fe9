//! Tests of changes of sites, in memory that nobody executes.

extern crate std;

use std::boxed::Box;
use std::sync::Mutex;
use std::vec::Vec;

use super::{
    Entry, Errno, Failure, Mapping, Module, Page, Pages, Site, Text, Use, add, apply, fix, remove,
    select,
};
use crate::arch;

const PAGE: usize = 4096;
/// Each function has room for a call.
const FUNCTION: usize = 16;

/// There is one list of modules.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// Pages of code, the last ones for trampolines.
struct Code {
    memory: &'static mut [[u8; PAGE]],
    functions: usize,
    pages: Mutex<Vec<usize>>,
}

// SAFETY: nobody executes it.
unsafe impl Text for Code {
    unsafe fn write(&self, at: usize, bytes: &[u8]) -> Result<(), Errno> {
        let memory = self.memory.as_ptr_range();
        assert!((memory.start as usize..memory.end as usize - bytes.len()).contains(&at));
        for (place, byte) in (at..).zip(bytes) {
            // SAFETY: it is in this memory, which one test uses.
            unsafe { (place as *mut u8).write_volatile(*byte) };
        }
        Ok(())
    }

    fn sync(&self) {}
}

// SAFETY: each page is given once.
unsafe impl Pages for Code {
    fn mappings(&self, _: &mut dyn FnMut(Mapping)) -> Result<(), Errno> {
        unreachable!("all pages are known")
    }

    fn map(&self, _: u64, _: usize, _: Use) -> Result<u64, Errno> {
        unreachable!("all pages are known")
    }

    fn page(&self, _: usize, _: usize, _: usize) -> Option<Page> {
        let address = self.pages.lock().expect("no panic").pop()?;
        let length = PAGE;
        Some(Page { address, length })
    }
}

impl Code {
    /// Functions that begin with nops.
    fn new(functions: usize) -> Self {
        let nop = arch::NOP_FOR_TESTS;
        let pages = (functions * FUNCTION).div_ceil(PAGE);
        let mut memory = std::vec![[0; PAGE]; pages + 32].into_boxed_slice();
        for (place, byte) in memory.as_flattened_mut().iter_mut().zip(nop.iter().cycle()) {
            *place = *byte;
        }
        let memory = Box::leak(memory);
        let last = memory[pages..].iter().map(|page| page.as_ptr() as usize);
        let last = last.map(|address| address.next_multiple_of(FUNCTION));
        let pages = Mutex::new(last.take(31).collect());
        Self {
            memory,
            functions,
            pages,
        }
    }

    /// A module with a site for each function.
    fn module(&self) -> &'static Module {
        let start = (self.memory.as_ptr() as usize).next_multiple_of(FUNCTION);
        let sites: Vec<Site> = (0..self.functions).map(|_| Site::default()).collect();
        for (number, site) in sites.iter().enumerate() {
            let at = start + number * FUNCTION;
            let prepared = arch::prepare(&self.read::<FUNCTION>(at), true).expect("nops");
            site.set(at, &prepared, Entry::First);
            let bytes = prepared.bytes.as_slice();
            // SAFETY: nobody executes it.
            unsafe { self.write(at + prepared.offset, bytes) }.expect("it is written");
        }
        let module = Box::leak(Box::new(Module::new()));
        add(module, sites.leak());
        assert!(fix(module, self));
        module
    }

    fn read<const SIZE: usize>(&self, at: usize) -> [u8; SIZE] {
        // SAFETY: it is in this memory.
        core::array::from_fn(|index| unsafe { ((at + index) as *const u8).read_volatile() })
    }

    fn put(&self, at: usize, bytes: &[u8]) {
        // SAFETY: nobody executes it.
        unsafe { self.write(at, bytes) }.expect("it is written");
    }
}

#[test]
fn code_that_somebody_else_has_changed_is_reported_while_it_matters() {
    const OTHER: [u8; FUNCTION] = [0xFE; FUNCTION];
    let _guard = ONE_AT_A_TIME.lock();
    let code = Code::new(3);
    let module = code.module();
    let [first, second, _] = module.sites() else {
        panic!("three sites");
    };
    assert_eq!(apply(&code), (0, None));

    // Nobody has wanted to see it, and nobody does: it is not looked at.
    let off = code.read::<FUNCTION>(first.address());
    code.put(first.address(), &OTHER);
    assert_eq!(apply(&code), (0, None));

    // Wanted: each call tries it, and reports that. The others are changed.
    assert!(select(module, 1, |_| true).is_none());
    let failure = Some(Failure::Changed(first.address()));
    assert_eq!(apply(&code), (2, failure));
    assert_eq!(apply(&code), (0, failure));
    assert_eq!(code.read(first.address()), OTHER);

    // It has never called anybody, so there is nothing to be put back.
    assert!(select(module, 1, |site| site.address() != first.address()).is_none());
    assert_eq!(apply(&code), (0, None));

    // One that is on cannot be put back, which is said once. Whatever comes there then is left alone, until it is ours.
    let on = code.read::<FUNCTION>(second.address());
    code.put(second.address(), &OTHER);
    assert_eq!(apply(&code), (0, None));
    assert!(select(module, 1, |_| false).is_none());
    assert_eq!(apply(&code), (1, Some(Failure::Changed(second.address()))));
    assert_eq!(apply(&code), (0, None));
    code.put(second.address(), &on);
    assert_eq!(apply(&code), (1, None));
    assert_ne!(code.read(second.address()), on);

    // Once it is as it was, it can be used again.
    code.put(first.address(), &off);
    assert!(select(module, 1, |_| true).is_none());
    assert_eq!(apply(&code), (3, None));
    remove(module);
}

#[test]
fn there_is_a_trampoline_for_more_combinations_than_there_is_room_for() {
    const BITS: u32 = 10;
    let _guard = ONE_AT_A_TIME.lock();
    let code = Code::new(1 << BITS);
    let module = code.module();
    for bit in 0..BITS {
        let mut number = 0;
        let wants = |_: &Site| {
            number += 1;
            number >> bit & 1 == 1
        };
        assert!(select(module, 1 << bit, wants).is_none());
        assert_eq!(apply(&code).1, None);
    }
    let wanted = |mask: u64| {
        module
            .sites()
            .iter()
            .filter(move |site| site.wanted() == mask)
    };
    assert!((1..1 << BITS).all(|mask| wanted(mask).count() == 1));
    let mut places: Vec<usize> = (1..1 << BITS)
        .map(|mask| module.trampoline(mask, 0).expect("there is one"))
        .collect();
    places.sort_unstable();
    places.dedup();
    // One is shared by the others.
    let in_page = PAGE / arch::COPIES / arch::TRAMPOLINE - 1;
    let own = if arch::MANY_PAGES { 252 } else { in_page };
    assert_eq!(places.len(), own + 1);
    assert!(select(module, !0, |_| false).is_none());
    assert_eq!(apply(&code).1, None);
    remove(module);
}
