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
    /// Inode; 0 for anonymous memory.
    pub inode: u64,
    /// File or name in brackets; empty for anonymous memory.
    pub path: PathBuf,
}

impl Mapping {
    /// Its addresses.
    #[must_use]
    pub fn span(&self) -> Span {
        Span::from(self.start..self.end)
    }
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
        shared: rights.as_bytes().get(3) == Some(&b's'),
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

/// The file that is at an address in these mappings, which are in ascending order, and where that is in the file.
#[must_use]
pub fn file_at(maps: &[Mapping], address: u64) -> Option<(PathBuf, u64)> {
    let next = maps.partition_point(|mapping| mapping.start <= address);
    let mapping = maps.get(next.checked_sub(1)?)?;
    let is_file = mapping.span().contains(address) && mapping.inode != 0;
    is_file.then(|| {
        let offset = mapping.offset + (address - mapping.start);
        (mapping.path.clone(), offset)
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
                inode: 42,
                path: "/tmp/a b".into()
            }
        );
    }
}
