//! Finds the file that contains another file's debugging information.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use object::read::elf::ElfFile64;
use object::{Endianness, Object, ObjectSection, ReadCache};

/// The directory of separate files.
pub const ROOT: &str = "/usr/lib/debug";

/// Returns the directories that contain separate files, including the cache.
pub fn roots() -> Vec<PathBuf> {
    vec![PathBuf::from(ROOT)]
}

/// Returns the path of an ELF file's separate file, below such a directory.
pub fn by_build_id(bytes: &[u8]) -> Option<PathBuf> {
    Some(by_id(&crate::build_id(bytes)?))
}

fn by_id(id: &str) -> PathBuf {
    let (first, rest) = id.split_at_checked(2).unwrap_or((id, ""));
    PathBuf::from(format!(".build-id/{first}/{rest}.debug"))
}

/// Returns where debuginfod's client stores what it has downloaded.
fn fetched(id: &str) -> Option<PathBuf> {
    let cache = std::env::var_os("DEBUGINFOD_CACHE_PATH").map(PathBuf::from);
    let cache = cache.or_else(|| {
        let home = || Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache"));
        let base = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
        Some(base.or_else(home)?.join("debuginfod_client"))
    })?;
    Some(cache.join(id).join("debuginfo"))
}

/// Fetches the separate file of the ELF file with this build id from elsewhere. Returns where it is now.
pub type Fetch = fn(&str) -> Option<PathBuf>;

static FETCH: OnceLock<Fetch> = OnceLock::new();
static FETCHES_NO_MORE: AtomicBool = AtomicBool::new(false);

/// From here on, separate files that are not on this machine are fetched in this way.
pub fn fetch_by(fetch: Fetch) {
    // The first way stays.
    let _ = FETCH.set(fetch);
}

/// From here on, nothing is fetched: a program would have to wait for that.
pub fn fetch_no_more() {
    FETCHES_NO_MORE.store(true, Ordering::Relaxed);
}

/// Fetches the separate file with a build id when it is asked for.
fn fetch(id: Option<&String>) -> impl Iterator<Item = PathBuf> {
    std::iter::once_with(move || {
        let fetch = FETCH
            .get()
            .filter(|_| !FETCHES_NO_MORE.load(Ordering::Relaxed));
        fetch.zip(id).and_then(|(fetch, id)| fetch(id))
    })
    .flatten()
}

fn parse(bytes: &[u8]) -> Option<ElfFile64<'_>> {
    ElfFile64::parse(bytes).ok()
}

fn has_information(bytes: &[u8]) -> bool {
    parse(bytes).is_some_and(|file| {
        let section = file.section_by_name(".debug_info");
        section.is_some_and(|section| section.size() > 0 && section.file_range().is_some())
    })
}

/// What identifies the separate file of an ELF file, and where it may be.
struct Separate {
    id: Option<String>,
    /// The name and the checksum in `.gnu_debuglink`.
    link: Option<(OsString, u32)>,
    candidates: Vec<PathBuf>,
}

/// The root directory of the process through which `/proc` leads to a file, and the file's path there.
fn inside(path: &Path) -> Option<(PathBuf, &Path)> {
    let process = path.strip_prefix("/proc").ok()?.iter().next()?.to_str()?;
    process.parse::<u32>().ok()?;
    let root = PathBuf::from(format!("/proc/{process}/root"));
    let file = path.strip_prefix(&root).ok()?;
    Some((root, file))
}

/// Returns where the separate file of an ELF file may be. A process with a root or mounts of its own has separate files
/// there, too.
fn separate(path: &Path, bytes: &[u8], roots: &[PathBuf]) -> Separate {
    let id = crate::build_id(bytes);
    let mut candidates: Vec<PathBuf> = Vec::new();
    let of_process = inside(path);
    let own = of_process.iter().map(|(root, _)| root.join(&ROOT[1..]));
    let roots: Vec<PathBuf> = own.chain(roots.iter().cloned()).collect();
    if let Some(id) = &id {
        candidates.extend(roots.iter().map(|root| root.join(by_id(id))));
        candidates.extend(fetched(id));
    }
    let link = parse(bytes).and_then(|file| {
        let (name, sum) = file.gnu_debuglink().ok()??;
        Some((OsStr::from_bytes(name).to_owned(), sum))
    });
    // The kernel shows where this link leads, but not in which mounts.
    let real = match of_process {
        Some(_) => path.to_owned(),
        None => path.canonicalize().unwrap_or_else(|_| path.to_owned()),
    };
    if let (Some((name, _)), Some(directory)) = (&link, real.parent()) {
        candidates.push(directory.join(name));
        candidates.push(directory.join(".debug").join(name));
        let below = match &of_process {
            Some((_, file)) => file.parent().unwrap_or(Path::new("")),
            None => directory.strip_prefix("/").unwrap_or(directory),
        };
        candidates.extend(roots.iter().map(|root| root.join(below).join(name)));
    }
    // Without a name of its own, a link leads to the file itself.
    candidates.retain(|candidate| *candidate != real);
    Separate {
        id,
        link,
        candidates,
    }
}

/// Returns the file with the debugging information, and its contents if it is a different file.
pub fn debug_file(
    path: &Path,
    bytes: &[u8],
    roots: &[PathBuf],
) -> Option<(PathBuf, Option<Vec<u8>>)> {
    if has_information(bytes) {
        return Some((path.to_owned(), None));
    }
    let Separate {
        id,
        link,
        candidates,
    } = separate(path, bytes, roots);
    let mut candidates = candidates.into_iter().chain(fetch(id.as_ref()));
    candidates.find_map(|candidate| {
        let content = std::fs::read(&candidate).ok()?;
        let same = match (&id, crate::build_id(&content), &link) {
            (Some(id), Some(other), _) => *id == other,
            (_, _, Some((_, sum))) => checksum(&content) == *sum,
            _ => false,
        };
        (same && has_information(&content)).then_some((candidate, Some(content)))
    })
}

/// Returns the separate file with the symbol table of an ELF file, if the file itself has none. It is searched for
/// below `/usr/lib/debug` and in debuginfod's cache by build id, by the name in `.gnu_debuglink`, and as [`fetch_by`]
/// says.
#[must_use]
pub fn symbol_file(path: &Path, bytes: &[u8]) -> Option<PathBuf> {
    symbol_file_in(path, bytes, &roots())
}

fn symbol_file_in(path: &Path, bytes: &[u8], roots: &[PathBuf]) -> Option<PathBuf> {
    if parse(bytes)?.symbol_table().is_some() {
        return None;
    }
    let Separate {
        id,
        link,
        candidates,
    } = separate(path, bytes, roots);
    let mut candidates = candidates.into_iter().chain(fetch(id.as_ref()));
    // Such files can be large, and little of them is needed.
    candidates.find(|candidate| {
        let Ok(mut file) = File::open(candidate) else {
            return false;
        };
        let cache = ReadCache::new(&mut file);
        let Ok(other) = ElfFile64::<Endianness, _>::parse(&cache) else {
            return false;
        };
        let has_symbols = other.symbol_table().is_some();
        let same_id = match (&id, other.build_id()) {
            (Some(id), Ok(Some(other))) => Some(*id == hex(other)),
            _ => None,
        };
        let same = same_id.or_else(|| {
            let (_, sum) = link.as_ref()?;
            Some(checksum(&std::fs::read(candidate).ok()?) == *sum)
        });
        has_symbols && same == Some(true)
    })
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The file that holds a part of some debugging information is not there.
#[derive(Debug, thiserror::Error)]
#[error("a part of it is in {}, which does not exist", .0.display())]
pub struct Missing(PathBuf);

/// Returns the contents of the file with what several separate files have in common (`.gnu_debugaltlink`, made by dwz).
///
/// # Errors
/// If the file is missing; the error names it.
pub fn shared_file(
    path: &Path,
    bytes: &[u8],
    roots: &[PathBuf],
) -> Result<Option<Vec<u8>>, Missing> {
    let Some(Ok(Some((name, id)))) = parse(bytes).map(|file| {
        let link = file.gnu_debugaltlink();
        link.map(|link| link.map(|(name, id)| (OsStr::from_bytes(name).to_owned(), id.to_vec())))
    }) else {
        return Ok(None);
    };
    let id = hex(&id);
    let real = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let beside = real.parent().map(|directory| directory.join(&name));
    let candidates = beside
        .into_iter()
        .chain(roots.iter().map(|root| root.join(by_id(&id))))
        .chain(fetched(&id))
        .chain(fetch(Some(&id)));
    for candidate in candidates {
        if let Ok(content) = std::fs::read(candidate)
            && crate::build_id(&content).as_ref() == Some(&id)
        {
            return Ok(Some(content));
        }
    }
    Err(Missing(name.into()))
}

/// Computes the checksum in `.gnu_debuglink`: CRC-32 (IEEE 802.3).
fn checksum(bytes: &[u8]) -> u32 {
    let mut table = [0u32; 256];
    for (value, entry) in (0u32..).zip(&mut table) {
        *entry = (0..8).fold(value, |rest, _| {
            rest >> 1 ^ if rest & 1 == 1 { 0xEDB8_8320 } else { 0 }
        });
    }
    let step = |sum: u32, byte: &u8| table[usize::from(sum as u8 ^ byte)] ^ sum >> 8;
    !bytes.iter().fold(!0, step)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_is_the_usual_one() {
        assert_eq!(checksum(b"123456789"), 0xCBF4_3926);
    }

    #[test]
    fn separate_files_are_named_by_build_ids() {
        assert_eq!(by_id("abcdef"), Path::new(".build-id/ab/cdef.debug"));
    }
}
