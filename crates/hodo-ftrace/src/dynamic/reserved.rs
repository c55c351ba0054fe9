//! Code that others must leave alone: the kernel's `ftrace_text_reserved`.

use core::ops::Range;

use super::modules::each_module;
use super::site::{Entry, Site};

/// The code of a call site.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reserved {
    /// Its bytes.
    pub code: Range<usize>,
    /// A tracer can be given the registers there.
    pub has_registers: bool,
    /// The function has done nothing yet.
    pub is_first: bool,
}

impl Reserved {
    fn new(site: &Site) -> Self {
        let form = site.form();
        Self {
            code: site.address()..site.address() + form.length(),
            has_registers: form.calls_trampoline(),
            is_first: site.entry() == Entry::First,
        }
    }
}

/// The first call site that has bytes in a range of code. Looks at the modules without a lock. Whoever wants to put a
/// breakpoint there registers a tracer instead.
pub fn reserved(code: Range<usize>) -> Option<Reserved> {
    let found = each_module().filter_map(|module| {
        let sites = module.sites();
        // Sites do not overlap, so their ends are sorted, too.
        let end = |site: &Site| site.address() + site.form().length();
        let first = sites.partition_point(|site| end(site) <= code.start);
        let site = sites.get(first)?;
        (site.address() < code.end).then(|| Reserved::new(site))
    });
    found.min_by_key(|reserved| reserved.code.start)
}
