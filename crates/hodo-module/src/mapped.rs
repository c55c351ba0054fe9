//! Which file a process has mapped, and where to read it.
//!
//! The path that `/proc/PID/maps` shows is only a hint: by now, it may lead to another file (after an upgrade of a
//! package), and a process with its own root or mounts (in a container) sees other files under the same paths.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use hodo_ptrace::maps::{self, Mapping};
use hodo_ptrace::{Memory, TargetAddr};
use object::Endianness;
use object::elf::{FileHeader64, PT_LOAD, PT_NOTE};
use object::read::elf::{FileHeader, ProgramHeader};

use crate::Image;
pub use crate::root::Root;

/// Returns the path of the program that a process executes, also if the file was deleted.
///
/// # Errors
/// If there is no such process.
pub fn program_path(pid: i32) -> std::io::Result<PathBuf> {
    let exe = PathBuf::from(format!("/proc/{pid}/exe"));
    let path = std::fs::read_link(&exe)?;
    // The kernel marks files that have no name any more, or had another file moved over their name.
    let living = path
        .to_str()
        .and_then(|path| path.strip_suffix(" (deleted)"));
    Ok(match living {
        Some(living) if !path.exists() => PathBuf::from(living),
        _ => path,
    })
}

/// Returns where to read the file of a mapping. It is the mapped file, not another one that has taken its place.
///
/// # Errors
/// If the file cannot be reached.
pub fn real_path(pid: i32, mapping: &Mapping) -> Result<PathBuf> {
    let is_it = |meta: &Metadata| (meta.dev(), meta.ino()) == (mapping.device, mapping.inode);
    let candidates = candidates(pid, mapping);
    let exact = |path: &&PathBuf| std::fs::metadata(path).is_ok_and(|meta| is_it(&meta));
    if let Some(path) = candidates.iter().find(exact) {
        return Ok(path.clone());
    }
    // Only privileged users may follow these links.
    let (start, end) = (mapping.start, mapping.end);
    let mapped = PathBuf::from(format!("/proc/{pid}/map_files/{start:x}-{end:x}"));
    let denied = match std::fs::metadata(&mapped) {
        Ok(_) => return Ok(mapped),
        Err(error) => error.kind() == std::io::ErrorKind::PermissionDenied,
    };
    // Some file systems (overlayfs, btrfs) number devices and files of mappings in another way.
    let same = Identity::in_memory(pid, mapping);
    let same = same.and_then(|known| {
        let is_it = |path: &&PathBuf| Identity::of_file(path).as_ref() == Some(&known);
        candidates.iter().find(is_it)
    });
    if let Some(path) = same {
        return Ok(path.clone());
    }
    let path = mapping.path.display();
    let what = match candidates.iter().any(|path| path.exists()) {
        true => "replaced",
        false => "deleted",
    };
    let hint = match denied {
        true => ", and only root can read the old file",
        false => "",
    };
    bail!("{path} was {what} after process {pid} had mapped it{hint}");
}

/// The paths where the file of a mapping may be.
fn candidates(pid: i32, mapping: &Mapping) -> Vec<PathBuf> {
    let mut paths = vec![mapping.path.clone()];
    if mapping.deleted {
        // It may be called that.
        paths.push(mapping.listed_path());
    }
    let root = Root::of(pid);
    let root = root.as_ref();
    let rooted = paths.iter().flat_map(|path| {
        let inside = root.and_then(|root| Some(root.real(&root.inside(path)?)));
        inside.into_iter().chain(root.map(|root| root.real(path)))
    });
    let mut all: Vec<PathBuf> = rooted.collect();
    all.append(&mut paths);
    all
}

/// Opens the file of a mapping, the one that is mapped. Returns where it was read, too.
///
/// # Errors
/// If the file cannot be reached, or is no program or library.
pub fn of_mapping(pid: i32, mapping: &Mapping) -> Result<(PathBuf, Image)> {
    let real = real_path(pid, mapping)?;
    let image = Image::open(&real, mapping.path.clone())?;
    Ok((real, image))
}

/// Returns the build id of the file that a process has mapped there, in hexadecimal digits, from the process's memory.
/// It has none if the file is no ELF file, or was linked without one.
#[must_use]
pub fn build_id_in_memory(pid: i32, mapping: &Mapping) -> Option<String> {
    match Identity::in_memory(pid, mapping)? {
        Identity::BuildId(id) => Some(id.iter().map(|byte| format!("{byte:02x}")).collect()),
        Identity::Beginning(_) => None,
    }
}

/// What tells a file from other versions of it, and is both in the file and in the memory of processes that map it.
#[derive(Debug, PartialEq, Eq)]
enum Identity {
    BuildId(Vec<u8>),
    /// The first page, for a file without a build id. It has the places of all sections.
    Beginning(Vec<u8>),
}

/// So much of a file is looked at.
const PAGE: usize = 4096;

impl Identity {
    fn of_file(path: &Path) -> Option<Self> {
        let file = std::fs::File::open(path).ok()?;
        let read = |offset: u64, bytes: &mut [u8]| {
            use std::os::unix::fs::FileExt;
            file.read_exact_at(bytes, offset).ok()
        };
        Self::read(&read, &|header: Segment| header.offset)
    }

    fn in_memory(pid: i32, mapping: &Mapping) -> Option<Self> {
        let maps = maps::read(pid).ok()?;
        let is_beginning = |other: &&Mapping| {
            other.offset == 0
                && (other.device, other.inode) == (mapping.device, mapping.inode)
                && other.start <= mapping.start
        };
        let start = maps.iter().rfind(is_beginning)?.start;
        let memory = Memory::open(pid).ok()?;
        let read = |at: u64, bytes: &mut [u8]| {
            let at = TargetAddr(start.wrapping_add(at));
            memory.read(at, bytes).ok()
        };
        Self::read(&read, &|header: Segment| header.address)
    }

    /// Reads it through a function that is given a distance from the beginning. `place` returns that of a segment.
    fn read(
        read: &dyn Fn(u64, &mut [u8]) -> Option<()>,
        place: &dyn Fn(Segment) -> u64,
    ) -> Option<Self> {
        let mut first = vec![0; PAGE];
        read(0, &mut first)?;
        let header = FileHeader64::<Endianness>::parse(&*first).ok()?;
        let endian = header.endian().ok()?;
        let headers = header.program_headers(endian, &*first).ok()?;
        let lowest = headers
            .iter()
            .find(|header| header.p_type(endian) == PT_LOAD)?;
        let lowest = lowest.p_vaddr(endian) & !(PAGE as u64 - 1);
        for header in headers.iter().filter(|h| h.p_type(endian) == PT_NOTE) {
            let size = usize::try_from(header.p_filesz(endian).min(1 << 16)).ok()?;
            let mut notes = vec![0; size];
            let segment = Segment {
                offset: header.p_offset(endian),
                address: header.p_vaddr(endian).wrapping_sub(lowest),
            };
            read(place(segment), &mut notes)?;
            if let Some(id) = build_id(&notes) {
                return Some(Self::BuildId(id));
            }
        }
        Some(Self::Beginning(first))
    }
}

/// Where a segment is, counted from the beginning of the file, in the file and in memory.
struct Segment {
    offset: u64,
    address: u64,
}

/// Returns the build id in notes: each has the lengths of its name and its content, a type, the name, and the content,
/// padded to four bytes.
fn build_id(mut notes: &[u8]) -> Option<Vec<u8>> {
    const NT_GNU_BUILD_ID: u32 = 3;
    loop {
        let word = |at: usize| {
            let bytes = notes.get(at..at + 4)?.try_into().ok()?;
            Some(u32::from_le_bytes(bytes))
        };
        let (name, content, kind) = (word(0)? as usize, word(4)? as usize, word(8)?);
        let start = 12 + name.checked_next_multiple_of(4)?;
        let end = start.checked_add(content)?;
        if kind == NT_GNU_BUILD_ID && notes.get(12..16) == Some(b"GNU\0") {
            return Some(notes.get(start..end)?.to_vec());
        }
        notes = notes.get(end.checked_next_multiple_of(4)?..)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own_mapping() -> Mapping {
        let pid = std::process::id().cast_signed();
        let program = program_path(pid).expect("this test");
        let maps = maps::read(pid).expect("mappings");
        let mut own = maps.into_iter().filter(|m| m.path == program);
        own.find(|m| m.executable).expect("its code")
    }

    #[test]
    fn memory_and_file_have_the_same_identity() {
        let pid = std::process::id().cast_signed();
        let mapping = own_mapping();
        let known = Identity::in_memory(pid, &mapping).expect("an identity");
        assert_eq!(Identity::of_file(&mapping.path), Some(known));
        assert_ne!(
            Identity::of_file(Path::new("/bin/sh")),
            Identity::of_file(&mapping.path)
        );
    }

    #[test]
    fn other_files_are_not_taken_for_the_mapped_one() {
        let pid = std::process::id().cast_signed();
        let own = own_mapping();
        assert_eq!(real_path(pid, &own).expect("this test"), own.path);
        // Another file at this path. The mapping is found by its addresses, by those who may.
        let replaced = Mapping {
            path: "/bin/sh".into(),
            ..own.clone()
        };
        match real_path(pid, &replaced) {
            Ok(real) => assert!(real.starts_with(format!("/proc/{pid}/map_files"))),
            Err(error) => assert!(error.to_string().contains("was replaced after"), "{error}"),
        }
        // A file system that numbers its files in another way.
        let renumbered = Mapping {
            device: own.device + 1,
            end: own.end + 4096,
            ..own.clone()
        };
        // What is in memory is looked for by these numbers.
        assert!(real_path(pid, &renumbered).is_err());
        let nowhere = Mapping {
            path: "/nowhere".into(),
            end: own.end + 4096,
            ..own
        };
        let error = real_path(pid, &nowhere)
            .expect_err("there is none")
            .to_string();
        assert!(error.contains("was deleted after"), "{error}");
    }

    #[test]
    fn build_ids_are_found_behind_other_notes() {
        let mut notes = Vec::new();
        for (kind, name, content) in [(1, &b"Linux\0"[..], &[1, 2, 3][..]), (3, b"GNU\0", &[7; 5])]
        {
            notes.extend(u32::to_le_bytes(name.len() as u32));
            notes.extend(u32::to_le_bytes(content.len() as u32));
            notes.extend(u32::to_le_bytes(kind));
            for part in [name, content] {
                notes.extend(part);
                notes.resize(notes.len().next_multiple_of(4), 0);
            }
        }
        assert_eq!(build_id(&notes), Some(vec![7; 5]));
        assert_eq!(build_id(&notes[..notes.len() - 8]), None);
        assert_eq!(build_id(&[0xFF; 32]), None);
    }

    #[test]
    fn links_lead_to_files_below_the_root_of_the_process() {
        let place = tempfile::tempdir().expect("a directory");
        let root = Root {
            real: place.path().to_owned(),
            name: "/jail".into(),
        };
        std::fs::create_dir_all(place.path().join("opt/v2")).expect("a directory");
        std::fs::write(place.path().join("opt/v2/tool"), "").expect("a file");
        let link = |to: &str, from: &str| {
            std::os::unix::fs::symlink(to, place.path().join(from)).expect("a link");
        };
        link("/opt/v2", "app");
        link("v2/../v2", "opt/now");
        link("loop", "loop");
        let tool = Path::new("/jail/opt/v2/tool");
        for path in [
            "/opt/v2/tool",
            "/app/tool",
            "/opt/now/tool",
            "/../app/./tool",
            "/jail/opt/v2/tool",
        ] {
            assert!(root.calls(tool, Path::new(path)), "{path}");
        }
        for path in ["/opt/tool", "/loop/tool", "/opt/v2", "tool"] {
            assert!(!root.calls(tool, Path::new(path)), "{path}");
        }
        assert_eq!(
            root.inside(tool).as_deref(),
            Some(Path::new("/opt/v2/tool"))
        );
        assert_eq!(root.inside(Path::new("/opt/v2/tool")), None);
    }
}
