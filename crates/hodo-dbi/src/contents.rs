//! What is in the files of programs. Names must not come from another file that is at a path now, or that hodo sees
//! there and a program with its own root or mounts does not.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use hodo_module::mapped::real_path;
use hodo_ptrace::maps::Mapping;

/// What programs have mapped under a path.
#[derive(Debug)]
enum Mapped {
    /// The file that is there, with its device and inode in lists of mappings.
    There((u64, u64)),
    /// Another one.
    Elsewhere((u64, u64), File),
    /// Several files, or one that cannot be reached.
    Unknown,
}

/// For all programs of this process: reports name files by their paths.
static MAPPED: Mutex<BTreeMap<PathBuf, Mapped>> = Mutex::new(BTreeMap::new());

fn mapped() -> MutexGuard<'static, BTreeMap<PathBuf, Mapped>> {
    MAPPED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Takes note of the files that a process has mapped.
pub(crate) fn note(pid: i32, maps: &[Mapping]) {
    let mut known = mapped();
    // The engine takes the right to execute code from the program. Devices are not opened.
    let is_file = |map: &&Mapping| map.inode != 0 && !map.shared && !map.path.starts_with("/dev");
    for map in maps.iter().filter(is_file) {
        let id = (map.device, map.inode);
        let path = map.listed_path();
        match known.get_mut(&path) {
            Some(Mapped::There(other) | Mapped::Elsewhere(other, _)) if *other == id => {}
            Some(other) => *other = Mapped::Unknown,
            None => {
                known.insert(path.clone(), found(pid, map, &path));
            }
        }
    }
}

fn found(pid: i32, map: &Mapping, path: &Path) -> Mapped {
    let id = (map.device, map.inode);
    let is_there = std::fs::metadata(path).is_ok_and(|meta| (meta.dev(), meta.ino()) == id);
    if is_there {
        return Mapped::There(id);
    }
    let real = real_path(pid, map);
    match real.ok().and_then(|real| File::open(real).ok()) {
        Some(file) => Mapped::Elsewhere(id, file),
        None => Mapped::Unknown,
    }
}

/// Reads a file that a block or an event names: the one that the program has mapped, if it runs under this process.
///
/// # Errors
/// If it cannot be read, or if programs have mapped several files under this path.
pub fn contents(path: &Path) -> io::Result<Vec<u8>> {
    match mapped().get(path) {
        None | Some(Mapped::There(_)) => std::fs::read(path),
        Some(Mapped::Unknown) => Err(ErrorKind::NotFound.into()),
        Some(Mapped::Elsewhere(_, file)) => {
            let mut bytes = vec![0; file.metadata()?.len() as usize];
            file.read_exact_at(&mut bytes, 0)?;
            Ok(bytes)
        }
    }
}
