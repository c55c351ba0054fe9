//! `/proc/PID/maps`.

use std::path::PathBuf;

use anyhow::{Context, Result};
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
    /// Offset in the file.
    pub offset: u64,
    /// Inode; 0 for anonymous memory.
    pub inode: u64,
    /// File or name in brackets; empty for anonymous memory.
    pub path: PathBuf,
}

fn parse(line: &str) -> Option<Mapping> {
    let mut fields = line.splitn(6, ' ');
    let (start, end) = fields.next()?.split_once('-')?;
    let rights = fields.next()?;
    let offset = fields.next()?;
    let _device = fields.next()?;
    let inode = fields.next()?;
    Some(Mapping {
        start: u64::from_str_radix(start, 16).ok()?,
        end: u64::from_str_radix(end, 16).ok()?,
        writable: rights.as_bytes().get(1) == Some(&b'w'),
        executable: rights.as_bytes().get(2) == Some(&b'x'),
        offset: u64::from_str_radix(offset, 16).ok()?,
        inode: inode.parse().ok()?,
        path: PathBuf::from(fields.next().unwrap_or("").trim_start()),
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

/// Finds `size` free bytes in `range`, as high as possible, at a multiple of 64 KiB.
#[must_use]
pub fn find_gap(maps: &[Mapping], range: std::ops::Range<u64>, size: u64) -> Option<u64> {
    const ALIGN: u64 = 64 << 10;
    let mut end = range.end;
    for mapping in maps.iter().rev() {
        if mapping.start >= end {
            continue;
        }
        if mapping.end < end {
            let start = end.checked_sub(size)? & !(ALIGN - 1);
            if start >= mapping.end.max(range.start) {
                return Some(start);
            }
        }
        end = mapping.start;
        if end <= range.start {
            return None;
        }
    }
    let start = end.checked_sub(size)? & !(ALIGN - 1);
    (start >= range.start).then_some(start)
}

#[cfg(test)]
mod tests {
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
                offset: 0x1000,
                inode: 42,
                path: "/tmp/a b".into()
            }
        );
    }

    #[test]
    fn a_gap_lies_between_mappings() {
        let map = |start, end| Mapping {
            start,
            end,
            writable: false,
            executable: false,
            offset: 0,
            inode: 0,
            path: PathBuf::new(),
        };
        let maps = [map(0x10_0000, 0x20_0000), map(0x40_0000, 0x50_0000)];
        assert_eq!(find_gap(&maps, 0..0x48_0000, 0x1_0000), Some(0x3f_0000));
        assert_eq!(find_gap(&maps, 0..0x48_0000, 0x20_0000), Some(0x20_0000));
        assert_eq!(find_gap(&maps, 0..0x48_0000, 0x20_0001), None);
        assert_eq!(find_gap(&maps, 0..0x1000_0000, 0x1_0000), Some(0xfff_0000));
    }
}
