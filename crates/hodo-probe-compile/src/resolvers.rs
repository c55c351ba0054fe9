//! Functions that are chosen while the program is loaded (`STT_GNU_IFUNC`, generic ABI supplement for GNU). Such a name
//! belongs to a resolver, which returns the address of an implementation. The resolver has run before probes are
//! placed, and nobody who names the function means it.

use std::collections::BTreeSet;
use std::ops::Range;

use hodo_isa::code::{Flow, Insn, Reference};
use hodo_probe_syntax::{Definition, Location, Offset, Symbol};

use super::arch::reader;
use super::named::Named;
use hodo_module::Image;

/// The resolver that a definition names, if it names one function.
pub(super) fn named<'a>(definition: &Definition, functions: &'a [Named]) -> Option<&'a Named> {
    let Location::Symbol {
        symbol: Symbol::Name(name),
        ..
    } = &definition.place
    else {
        return None;
    };
    let mut functions = functions.iter();
    functions.find(|function| function.ifunc && function.name == *name)
}

/// The resolver whose implementations a definition means: one that is named without a place in it.
pub(super) fn followed<'a>(definition: &Definition, functions: &'a [Named]) -> Option<&'a Named> {
    let at_entry = matches!(
        definition.place,
        Location::Symbol {
            offset: Offset::Bytes(0),
            ..
        }
    );
    named(definition, functions).filter(|_| at_entry)
}

/// The implementations among which a resolver chooses, as far as they are in the same file: what it, or a function that
/// it calls there, forms the address of. What comes from elsewhere, as from the vdso, is not seen.
pub(super) fn implementations(
    resolver: &Named,
    image: &Image,
    functions: &[Named],
) -> BTreeSet<u64> {
    let mut found = BTreeSet::new();
    let mut helpers = BTreeSet::new();
    let range = resolver.addr..resolver.end;
    let begins = |addr| is_start(image, functions, addr);
    collect(
        image,
        range.clone(),
        &begins,
        &mut found,
        Some(&mut helpers),
    );
    for helper in helpers {
        let mut around = functions.iter();
        if let Some(helper) = around.find(|function| function.addr == helper && !function.ifunc) {
            collect(image, helper.addr..helper.end, &begins, &mut found, None);
        }
    }
    found.retain(|addr| !range.contains(addr));
    found
}

/// Collects the functions that code forms the address of, and what it calls.
fn collect(
    image: &Image,
    range: Range<u64>,
    begins: &dyn Fn(u64) -> bool,
    found: &mut BTreeSet<u64>,
    mut called: Option<&mut BTreeSet<u64>>,
) {
    let code = image.at(range.clone()).unwrap_or_default();
    for Insn {
        flow, reference, ..
    } in reader(image).sweep(code, range.start)
    {
        if let Reference::Forms(addr) | Reference::Constant(addr) = reference
            && begins(addr)
        {
            found.insert(addr);
        }
        if let Flow::Call(to) | Flow::Jump(to) = flow
            && let Some(called) = &mut called
            && !range.contains(&to)
        {
            called.insert(to);
        }
    }
}

/// Whether a function begins at an address. A library may have no symbols for its own functions any more, but has their
/// unwind tables.
fn is_start(image: &Image, functions: &[Named], addr: u64) -> bool {
    let mut segments = image.segments.iter();
    segments.any(|s| s.executable && (s.addr..s.addr + s.size).contains(&addr))
        && (image.frames().starts_at(addr)
            || functions.iter().any(|function| function.addr == addr))
}
