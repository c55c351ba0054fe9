//! Options whose order counts, though they are different ones.

use clap::ArgMatches;

/// A `-P` (true) or `-U` (false).
pub type Patch = (bool, String);

/// The patterns that are mixed on the command line.
#[derive(Debug, Default)]
pub struct Order {
    /// `-P` and `-U`.
    pub patch: Vec<Patch>,
    /// Whether each is a `-F`, or a `-N`.
    pub filter: Vec<bool>,
}

impl Order {
    /// As they are in a command's matches.
    pub fn of(matches: &ArgMatches) -> Self {
        let filters = ordered(matches, [("filter", true), ("notrace", false)]);
        Self {
            patch: ordered(matches, [("patch", true), ("unpatch", false)]),
            filter: filters.into_iter().map(|(filter, _)| filter).collect(),
        }
    }
}

/// The patterns of two options in the order in which they were given.
fn ordered(matches: &ArgMatches, options: [(&str, bool); 2]) -> Vec<Patch> {
    let mut all = Vec::new();
    for (name, trace) in options {
        // Commands that record nothing have no such option.
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
