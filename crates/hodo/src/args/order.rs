//! Options whose order matters, across different options.

use clap::ArgMatches;

/// A `-P` (true) or `-U` (false).
pub type Patch = (bool, String);

/// The patterns of options that may be mixed on the command line.
#[derive(Debug, Default)]
pub struct Order {
    /// `-P` and `-U`.
    pub patch: Vec<Patch>,
    /// For each pattern, whether it is a `-F` (otherwise a `-N`).
    pub filter: Vec<bool>,
}

impl Order {
    /// Takes the order from a command's matches.
    pub fn of(matches: &ArgMatches) -> Self {
        let filters = ordered(matches, [("filter", true), ("notrace", false)]);
        Self {
            patch: ordered(matches, [("patch", true), ("unpatch", false)]),
            filter: filters.into_iter().map(|(filter, _)| filter).collect(),
        }
    }
}

/// Returns the patterns of two options in the order in which they were given.
fn ordered(matches: &ArgMatches, options: [(&str, bool); 2]) -> Vec<Patch> {
    let mut all = Vec::new();
    for (name, trace) in options {
        // Commands that do not record have no such option.
        let values = matches.try_get_many::<String>(name).ok().flatten();
        if let (Some(indices), Some(values)) = (
            values.is_some().then(|| matches.indices_of(name)).flatten(),
            values,
        ) {
            all.extend(
                indices
                    .zip(values)
                    .map(|(at, value)| (at, trace, value.clone())),
            );
        }
    }
    all.sort();
    all.into_iter()
        .map(|(_, trace, value)| (trace, value))
        .collect()
}
