//! Finds patterns that match nothing, before the program runs: the recording itself would only show that something is
//! missing.

use std::path::PathBuf;

use hodo_plan::model::Plan;

use crate::select::Selection;
use hodo_module::Module;
use hodo_probe_compile::Probes;

/// A library of a program.
pub struct Library {
    /// Where to read it.
    pub real: PathBuf,
    /// Its path according to the kernel.
    pub path: PathBuf,
}

/// The patterns of `-F`, `-N`, `-P` and `-U` that match no function of the program or of the libraries that it is
/// linked with, as they were given on the command line.
pub fn useless(
    selection: &Selection,
    module: &Module,
    libraries: impl IntoIterator<Item = Library>,
) -> Vec<String> {
    let mut open = selection.patterns();
    let plan: &Plan = &module.plan;
    for (name, stub) in plan.names() {
        open.retain(|pattern| !pattern.matches(&module.image.path, true, name, stub));
    }
    if open.is_empty() {
        return Vec::new();
    }
    for library in libraries {
        let Ok(bytes) = std::fs::read(&library.real) else {
            continue;
        };
        let symbols = hodo_symbols::symbols_of(&library.real, &bytes).unwrap_or_default();
        for function in symbols.functions {
            open.retain(|pattern| !pattern.matches(&library.path, false, &function.name, false));
        }
    }
    open.iter().map(|pattern| pattern.to_string()).collect()
}

/// The event patterns that match no event of the program or of the files in `more`.
pub fn useless_events(
    probes: &Probes,
    module: &Module,
    more: impl IntoIterator<Item = Library>,
) -> Vec<String> {
    let first = std::iter::once_with(|| module.image.bytes.to_vec());
    let more = more
        .into_iter()
        .filter_map(|library| std::fs::read(library.real).ok());
    probes.useless_patterns(first.chain(more))
}
