//! Debugging information: the code of a source line, and the locations of variables.
//!
//! It is in the file itself, or in a separate file that distributions install below `/usr/lib/debug`.

mod fields;
pub(crate) mod find;
mod lines;
mod locations;
mod navigate;
mod scopes;
mod split;
mod variables;

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use gimli::{EndianArcSlice, LittleEndian, Unit, UnitHeader};
use hodo_abi::Isa;
use object::read::elf::ElfFile64;
use object::{Object, ObjectSection};

pub use lines::{LineError, LineRange, LineTable};
pub use locations::Word;
pub use variables::{Shown, Variable, VariableError};

use crate::abi;

pub(crate) type Reader = EndianArcSlice<LittleEndian>;

/// Why there is no debugging information.
#[derive(Debug, thiserror::Error)]
pub enum DebugError {
    /// The file has none, and no separate file with it was found.
    #[error(
        "{} has no debugging information: compile it with -g, or install its debug package{}",
        .path.display(),
        .separate.as_ref().map(|file| format!(" ({})", file.display())).unwrap_or_default()
    )]
    None {
        /// The file.
        path: PathBuf,
        /// Where a separate file would be, if the file has a build id.
        separate: Option<PathBuf>,
    },
    /// There is some, but it cannot be read.
    #[error("the debugging information in {} cannot be read: {reason}", .path.display())]
    Damaged {
        /// The file that has it.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
}

/// The debugging information of a program or library. Addresses are link-time addresses.
pub struct Debug {
    pub(crate) dwarf: gimli::Dwarf<Reader>,
    pub(crate) isa: Option<Isa>,
    /// The file that contains it.
    path: PathBuf,
    units: Vec<LazyUnit>,
    /// The units that it shares with other files.
    shared: Vec<LazyUnit>,
    splits: split::Splits,
}

impl std::fmt::Debug for Debug {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { path, units, .. } = self;
        write!(f, "Debug({}, {} units)", path.display(), units.len())
    }
}

/// A unit that is parsed on first use.
struct LazyUnit {
    header: UnitHeader<Reader>,
    unit: OnceLock<Option<ParsedUnit>>,
}

/// A unit, and the part of it that the compiler left in another file (`-gsplit-dwarf`).
struct ParsedUnit {
    unit: Unit<Reader>,
    split: Option<Box<split::Split>>,
}

impl Debug {
    /// Opens the debugging information of an ELF file with these contents. It is searched for in the file itself; by
    /// build id below `/usr/lib/debug` and in debuginfod's cache; by the name in `.gnu_debuglink`; and as
    /// [`crate::fetch_by`] says.
    ///
    /// # Errors
    /// If there is none, or it is damaged.
    pub fn open(path: &Path, bytes: &[u8]) -> Result<Self, DebugError> {
        Self::open_in(path, bytes, &find::roots())
    }

    fn open_in(path: &Path, bytes: &[u8], roots: &[PathBuf]) -> Result<Self, DebugError> {
        let found = find::debug_file(path, bytes, roots);
        let Some((place, content)) = found else {
            return Err(DebugError::None {
                path: path.to_owned(),
                separate: find::by_build_id(bytes).map(|id| Path::new(find::ROOT).join(id)),
            });
        };
        let damaged = |reason: String| DebugError::Damaged {
            path: place.clone(),
            reason,
        };
        let content = content.as_deref().unwrap_or(bytes);
        let mut dwarf = load(content).map_err(|error| damaged(error.to_string()))?;
        match find::shared_file(&place, content, roots) {
            Ok(None) => {}
            Ok(Some(other)) => {
                dwarf.set_sup(load(&other).map_err(|error| damaged(error.to_string()))?);
            }
            Err(missing) => return Err(damaged(missing.to_string())),
        }
        let units = all_units(&dwarf).map_err(|error| damaged(error.to_string()))?;
        let shared = match dwarf.sup() {
            Some(other) => all_units(other).map_err(|error| damaged(error.to_string()))?,
            None => Vec::new(),
        };
        Ok(Self {
            dwarf,
            isa: abi::isa_of(bytes),
            splits: split::Splits::new(path, &place),
            path: place,
            units,
            shared,
        })
    }

    /// Returns the file that contains it: the original file or a separate one.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns one of the file's own units.
    pub(crate) fn unit(&self, index: usize) -> Option<&Unit<Reader>> {
        self.unit_of(navigate::At::unit(index))
    }

    /// Returns all of the file's own units that can be read.
    pub(crate) fn all(&self) -> impl Iterator<Item = (usize, &Unit<Reader>)> {
        (0..self.units.len()).filter_map(|index| Some((index, self.unit(index)?)))
    }
}

fn all_units(dwarf: &gimli::Dwarf<Reader>) -> gimli::Result<Vec<LazyUnit>> {
    let mut units = Vec::new();
    let mut headers = dwarf.units();
    while let Some(header) = headers.next()? {
        units.push(LazyUnit {
            header,
            unit: OnceLock::new(),
        });
    }
    Ok(units)
}

/// Loads the sections of a file, decompressed.
fn load(bytes: &[u8]) -> object::read::Result<gimli::Dwarf<Reader>> {
    let file: ElfFile64<'_> = ElfFile64::parse(bytes)?;
    gimli::Dwarf::load(|id| {
        let data = match file.section_by_name(id.name()) {
            Some(section) => section.uncompressed_data()?,
            None => Default::default(),
        };
        Ok(Reader::new(Arc::from(&*data), LittleEndian))
    })
}
