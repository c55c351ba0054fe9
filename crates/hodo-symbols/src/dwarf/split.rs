//! Debugging information that the compiler left in other files: `-gsplit-dwarf` makes a file `.dwo` for each unit, and
//! `dwp` packs them into one file `.dwp`. The program has only skeletons of these units.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock};

use gimli::{Dwarf, DwarfPackage, DwoId, LittleEndian, SectionId, Unit};
use object::read::elf::ElfFile64;
use object::{Object, ObjectSection};

use super::Reader;

/// The part of a unit that is in another file.
pub(super) struct Split {
    pub dwarf: Dwarf<Reader>,
    pub unit: Unit<Reader>,
}

/// The files with parts of a program's units.
pub(super) struct Splits {
    /// The directory of the program.
    directory: PathBuf,
    /// Where a file with all parts may be.
    packages: Vec<PathBuf>,
    package: OnceLock<Option<DwarfPackage<Reader>>>,
    /// The units whose parts were read, by what identifies them.
    known: Mutex<HashMap<u64, usize>>,
    /// The first file that was not found, or belongs to another build.
    missing: OnceLock<PathBuf>,
}

impl Splits {
    /// `program` has its debugging information in `debug`.
    pub fn new(program: &Path, debug: &Path) -> Self {
        let package = |path: &Path| {
            let mut path = path.to_owned().into_os_string();
            path.push(".dwp");
            PathBuf::from(path)
        };
        let real = program
            .canonicalize()
            .unwrap_or_else(|_| program.to_owned());
        let mut packages = vec![package(program), package(&real), package(debug)];
        packages.dedup();
        Self {
            directory: real.parent().unwrap_or(Path::new("/")).to_owned(),
            packages,
            package: OnceLock::new(),
            known: Mutex::default(),
            missing: OnceLock::new(),
        }
    }

    /// Reads the part of a unit that is elsewhere. `None` if all of it is here, or the file is missing.
    pub fn read(
        &self,
        parent: &Dwarf<Reader>,
        skeleton: &Unit<Reader>,
        index: usize,
    ) -> Option<Box<Split>> {
        let id = skeleton.dwo_id?;
        let name = skeleton.dwo_name().ok()??;
        let name = parent.attr_string(skeleton, name).ok()?;
        let name = Path::new(OsStr::from_bytes(&name)).to_owned();
        let dwarf = self.packed(parent, id).or_else(|| {
            let base = skeleton.comp_dir.as_ref();
            let base = base.map(|base| Path::new(OsStr::from_bytes(base)).join(&name));
            let beside = name.file_name().map(|name| self.directory.join(name));
            let relative = self.directory.join(&name);
            let mut candidates = base.into_iter().chain([relative]).chain(beside);
            candidates.find_map(|path| alone(&path, parent, id))
        });
        let Some(dwarf) = dwarf else {
            self.missing.get_or_init(|| name);
            return None;
        };
        let header = dwarf.units().next().ok()??;
        let mut unit = dwarf.unit(header).ok()?;
        unit.copy_relocated_attributes(skeleton);
        unit.line_program.clone_from(&skeleton.line_program);
        unit.dwo_id = Some(id);
        self.known.lock().ok()?.insert(id.0, index);
        Some(Box::new(Split { dwarf, unit }))
    }

    /// Returns a file that has a part of a unit and was not found.
    pub fn missing(&self) -> Option<PathBuf> {
        self.missing.get().cloned()
    }

    /// Returns the index of the unit that has this part elsewhere.
    pub fn index(&self, unit: &Unit<Reader>) -> Option<usize> {
        let known = self.known.lock().ok()?;
        known.get(&unit.dwo_id?.0).copied()
    }

    fn packed(&self, parent: &Dwarf<Reader>, id: DwoId) -> Option<Dwarf<Reader>> {
        let open = || {
            let read = |path: &PathBuf| {
                let bytes = std::fs::read(path).ok()?;
                let file: ElfFile64<'_> = ElfFile64::parse(&*bytes).ok()?;
                let load =
                    |id: SectionId| section(&file, id.dwo_name()).map_err(|_| gimli::Error::Io);
                DwarfPackage::load(load, Reader::new(Arc::from(&[][..]), LittleEndian)).ok()
            };
            self.packages.iter().find_map(read)
        };
        let package = self.package.get_or_init(open).as_ref()?;
        package.find_cu(id, parent).ok()?
    }
}

/// Reads the file of one unit, if it is what the program was linked from.
fn alone(path: &Path, parent: &Dwarf<Reader>, id: DwoId) -> Option<Dwarf<Reader>> {
    let bytes = std::fs::read(path).ok()?;
    let file: ElfFile64<'_> = ElfFile64::parse(&*bytes).ok()?;
    let mut dwarf = Dwarf::load(|id| section(&file, id.dwo_name())).ok()?;
    dwarf.make_dwo(parent);
    let header = dwarf.units().next().ok()??;
    let own = dwarf.unit(header).ok()?.dwo_id;
    (own == Some(id)).then_some(dwarf)
}

/// Returns a section of such a file, decompressed, or nothing if it has none.
fn section(file: &ElfFile64<'_>, name: Option<&str>) -> object::read::Result<Reader> {
    let data = match name.and_then(|name| file.section_by_name(name)) {
        Some(section) => section.uncompressed_data()?,
        None => Default::default(),
    };
    Ok(Reader::new(Arc::from(&*data), LittleEndian))
}
