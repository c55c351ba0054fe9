//! The functions of a file by all their names, as definitions may name them.

use anyhow::{Context, Result};
use hodo_module::image::{Image, Segment};

/// A function as definitions name it.
pub(super) struct Named {
    pub name: String,
    pub addr: u64,
    pub end: u64,
    /// It returns the address of the function that is executed under its name.
    pub ifunc: bool,
    /// It is no function, but a part of one elsewhere, as compilers make of code that is executed rarely.
    pub(super) part: bool,
    /// It is a place in the middle of a function.
    pub(super) label: bool,
}

impl Named {
    /// Whether an address is in it.
    pub fn holds(&self, addr: u64) -> bool {
        (self.addr..self.end).contains(&addr)
    }
}

/// The functions of a file under all their names.
pub(super) fn functions(image: &Image) -> Result<Vec<Named>> {
    let symbols =
        (image.code_symbols()).with_context(|| format!("reading {}", image.path.display()))?;
    let mut named = Vec::new();
    let mut starts: Vec<u64> = symbols.functions.iter().map(|f| f.addr).collect();
    starts.extend(symbols.untyped.iter().map(|(addr, _)| addr));
    starts.extend(
        hodo_symbols::linkage_tables(&image.bytes)
            .iter()
            .map(|table| table.start),
    );
    starts.sort_unstable();
    // What is written in assembly often has no size: it goes up to the next.
    let up_to_next = |addr: u64| {
        let next = starts.get(starts.partition_point(|&start| start <= addr));
        let is_in = |s: &&Segment| (s.addr..s.addr + s.size).contains(&addr);
        let end = image
            .segments
            .iter()
            .find(is_in)
            .map_or(addr, |s| s.addr + s.size);
        next.map_or(end, |&next| next.min(end))
    };
    // It often has no type, either.
    for (addr, name) in symbols.untyped {
        named.push(Named {
            name,
            addr,
            end: up_to_next(addr),
            ifunc: false,
            part: false,
            label: false,
        });
    }
    for function in symbols.functions {
        let end = match function.size {
            0 => up_to_next(function.addr),
            size => function.addr + size,
        };
        for name in std::iter::once(function.name).chain(function.aliases) {
            named.push(Named {
                name,
                addr: function.addr,
                end,
                ifunc: function.ifunc,
                part: false,
                label: false,
            });
        }
    }
    // A label in the middle of a function names a place, and no code of its own.
    named.extend(symbols.inner.into_iter().map(|(addr, name)| Named {
        name,
        addr,
        end: addr,
        ifunc: false,
        part: false,
        label: true,
    }));
    named.extend(symbols.fragments.iter().map(|fragment| Named {
        name: format!("<{:x}>", fragment.addr),
        addr: fragment.addr,
        end: fragment.addr + fragment.size,
        ifunc: false,
        part: true,
        label: false,
    }));
    Ok(named)
}
