//! Variables of files.

use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};

use hodo_dbi::contents;
use hodo_symbols::{Debug, Style, demangle};
use object::{Object as _, ObjectSection, ObjectSymbol, SymbolKind};

use crate::places::segments;

/// The data of a file.
#[derive(Debug)]
pub(crate) struct Data {
    pub(crate) file: String,
    path: PathBuf,
    code: Vec<(u64, u64, u64)>,
    /// Variables: address, size, name. In ascending order.
    variables: Vec<(u64, u64, String)>,
    /// The same for sections that are not code.
    sections: Vec<(u64, u64, String)>,
}

impl Data {
    pub(crate) fn read(path: &Path) -> Option<Self> {
        let bytes = contents(path).ok()?;
        let file = object::File::parse(&*bytes).ok()?;
        let symbols = file.symbols().chain(file.dynamic_symbols());
        let data = symbols.filter(|symbol| symbol.kind() == SymbolKind::Data && symbol.size() > 0);
        let mut variables: Vec<(u64, u64, String)> = data
            .filter_map(|symbol| {
                let name = demangle(symbol.name().ok()?, Style::Simple);
                Some((symbol.address(), symbol.size(), name))
            })
            .collect();
        variables.sort();
        let mut sections: Vec<(u64, u64, String)> = file
            .sections()
            .filter(|section| section.address() != 0)
            .filter_map(|section| {
                let name = section.name().ok()?.to_owned();
                Some((section.address(), section.size(), name))
            })
            .collect();
        sections.sort();
        let name = path.file_name().unwrap_or_default();
        Some(Self {
            file: name.to_string_lossy().into_owned(),
            path: path.to_owned(),
            code: segments(&bytes),
            variables,
            sections,
        })
    }

    /// How far the file is from where it is in its own terms. `distance`: how far its code is from its place in the
    /// file.
    pub(crate) fn bias(&self, distance: u64) -> Option<u64> {
        let &(offset, _, address) = self.code.first()?;
        Some(distance.wrapping_add(offset).wrapping_sub(address))
    }

    /// The name of the variable that has this address in the file's own terms, or that of the section.
    pub(crate) fn name(&self, address: u64) -> Option<&str> {
        let variable = in_list(&self.variables, address);
        let found = variable.or_else(|| in_list(&self.sections, address));
        found.map(|(_, _, name)| &**name)
    }

    /// The variable that has this address in the file's own terms.
    pub(crate) fn at(&self, address: u64) -> Option<Variable> {
        let (start, _, name) = in_list(&self.variables, address)?;
        Some(Variable {
            file: self.path.clone(),
            address,
            name: name.clone(),
            offset: address - start,
        })
    }
}

/// The one that has an address.
fn in_list(list: &[(u64, u64, String)], address: u64) -> Option<&(u64, u64, String)> {
    let next = list.partition_point(|&(start, ..)| start <= address);
    let found = list.get(next.checked_sub(1)?)?;
    (address - found.0 < found.1).then_some(found)
}

/// A part of a variable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Variable {
    /// The file that has it.
    pub file: PathBuf,
    /// The address in the file's own terms.
    pub address: u64,
    /// The name of the whole variable.
    pub name: String,
    /// How far the part is from the beginning.
    pub offset: u64,
}

/// The names of parts of variables, by file and address: `table[3].count`, or the distance from the beginning where
/// types are not known.
#[must_use]
pub fn fields(variables: &[Variable]) -> HashMap<(&Path, u64), String> {
    let mut files: HashMap<&Path, BTreeSet<u64>> = HashMap::new();
    for variable in variables {
        let addresses = files.entry(&variable.file).or_default();
        addresses.insert(variable.address);
    }
    let mut found = HashMap::new();
    for (path, addresses) in files {
        let debug = contents(path)
            .ok()
            .and_then(|bytes| Debug::open(path, &bytes).ok());
        let names = debug
            .map(|debug| debug.fields_at(&addresses))
            .unwrap_or_default();
        found.extend(
            names
                .into_iter()
                .map(|(address, name)| ((path, address), name)),
        );
    }
    for variable in variables {
        let key = (&*variable.file, variable.address);
        found.entry(key).or_insert_with(|| match variable.offset {
            0 => variable.name.clone(),
            offset => format!("{}+{offset}", variable.name),
        });
    }
    found
}
