//! `/proc/PID/maps`.

use std::path::PathBuf;

use anyhow::{Context, Result};
use hodo_abi::Span;
use hodo_isa::native::entry::is_signal_return;

use crate::memory::Memory;
use crate::target::TargetAddr;

/// One line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mapping {
    /// First address.
    pub start: u64,
    /// Address after the last.
    pub end: u64,
    /// Whether it can be written.
    pub writable: bool,
    /// Whether it can be executed.
    pub executable: bool,
    /// Whether others that map the same see what is written to it.
    pub shared: bool,
    /// Offset in the file.
    pub offset: u64,
    /// The device of the file, as `stat` numbers it.
    pub device: u64,
    /// Inode; 0 for anonymous memory.
    pub inode: u64,
    /// File or name in brackets; empty for anonymous memory.
    pub path: PathBuf,
    /// Whether the kernel says that the path no longer leads to the file. Another file may be there.
    pub deleted: bool,
}

/// What the kernel appends to the path of a file that was deleted.
const DELETED: &str = " (deleted)";

impl Mapping {
    /// Its addresses.
    #[must_use]
    pub fn span(&self) -> Span {
        Span::from(self.start..self.end)
    }

    /// Its path as the kernel writes it, which says whether the file was deleted.
    #[must_use]
    pub fn listed_path(&self) -> PathBuf {
        let mut path = self.path.clone().into_os_string();
        if self.deleted {
            path.push(DELETED);
        }
        path.into()
    }
}

fn parse(line: &str) -> Option<Mapping> {
    let mut fields = line.splitn(6, ' ');
    let (start, end) = fields.next()?.split_once('-')?;
    let rights = fields.next()?;
    let offset = fields.next()?;
    let (major, minor) = fields.next()?.split_once(':')?;
    let number = |text| u32::from_str_radix(text, 16).ok();
    let device = libc::makedev(number(major)?, number(minor)?);
    let inode: u64 = fields.next()?.parse().ok()?;
    let path = fields.next().unwrap_or("").trim_start();
    let living = path.strip_suffix(DELETED).filter(|_| inode != 0);
    Some(Mapping {
        start: u64::from_str_radix(start, 16).ok()?,
        end: u64::from_str_radix(end, 16).ok()?,
        writable: rights.as_bytes().get(1) == Some(&b'w'),
        executable: rights.as_bytes().get(2) == Some(&b'x'),
        shared: rights.as_bytes().get(3) == Some(&b's'),
        offset: u64::from_str_radix(offset, 16).ok()?,
        device,
        inode,
        path: PathBuf::from(living.unwrap_or(path)),
        deleted: living.is_some(),
    })
}

/// The mappings of a process, in ascending order.
///
/// # Errors
/// If the process is gone or not ours to look at.
pub fn read(pid: i32) -> Result<Vec<Mapping>> {
    let path = format!("/proc/{pid}/maps");
    let bytes = std::fs::read(&path).with_context(|| path.clone())?;
    let text = String::from_utf8_lossy(&bytes);
    Ok(text.lines().filter_map(parse).collect())
}

/// The file that is at an address in these mappings, which are in ascending order, and where that is in the file. The
/// path of a deleted file says so: what is there now is another file.
#[must_use]
pub fn file_at(maps: &[Mapping], address: u64) -> Option<(PathBuf, u64)> {
    let next = maps.partition_point(|mapping| mapping.start <= address);
    let mapping = maps.get(next.checked_sub(1)?)?;
    let is_file = mapping.span().contains(address) && mapping.inode != 0;
    is_file.then(|| {
        let offset = mapping.offset + (address - mapping.start);
        (mapping.listed_path(), offset)
    })
}

/// Where the kernel has handlers of signals return that tell no place themselves: in code of its own. 0: such code is
/// not there.
#[must_use]
pub fn signal_return(memory: &Memory, maps: &[Mapping]) -> u64 {
    let find = |mapping: &Mapping| {
        let mut code = vec![0; usize::try_from(mapping.end - mapping.start).ok()?];
        memory.read(TargetAddr(mapping.start), &mut code).ok()?;
        let at = (0..code.len())
            .step_by(2)
            .find(|&at| is_signal_return(&code[at..]))?;
        Some(mapping.start + at as u64)
    };
    let kernels = maps
        .iter()
        .find(|mapping| mapping.path.as_os_str() == "[vdso]");
    kernels.and_then(find).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn a_line_is_read_with_blanks_in_its_path() {
        let got =
            parse("7f00-7f10 r-xp 00001000 fe:00 42                         /tmp/a b").unwrap();
        assert_eq!(
            got,
            Mapping {
                start: 0x7f00,
                end: 0x7f10,
                writable: false,
                executable: true,
                shared: false,
                offset: 0x1000,
                device: libc::makedev(0xFE, 0),
                inode: 42,
                path: "/tmp/a b".into(),
                deleted: false,
            }
        );
    }

    #[test]
    fn deleted_files_have_their_own_paths() {
        let line = |path| parse(&format!("7f00-7f10 r-xp 00000000 00:01 42      {path}"));
        let gone = line("/lib/a.so (deleted)").unwrap();
        assert_eq!(gone.path, Path::new("/lib/a.so"));
        assert!(gone.deleted);
        assert_eq!(gone.listed_path(), Path::new("/lib/a.so (deleted)"));
        let there = line("/lib/a.so").unwrap();
        assert_eq!((there.path, there.deleted), (gone.path, false));
    }
}
