//! What is mapped into this process on Linux, and new mappings.

use crate::arch::number;
use crate::host::{Errno, Mapping, Use};
use crate::sys::{self, call};

/// `mmap`: it can be read.
pub const PROT_READ: usize = 1;
/// `mmap`: it can be written.
pub const PROT_WRITE: usize = 2;
/// `mmap`: it can be executed.
pub const PROT_EXEC: usize = 4;
/// `mmap`: no memory is set aside for it.
pub const MAP_NORESERVE: usize = 0x4000;
const MAP_PRIVATE: usize = 2;
const MAP_ANONYMOUS: usize = 0x20;
const MAP_FIXED_NOREPLACE: usize = 0x10_0000;
const EEXIST: Errno = 17;

/// Maps fresh memory; at the given address only if nothing is there.
///
/// # Errors
/// If something is there, or there is no memory.
pub fn map(at: u64, size: usize, protection: usize, flags: usize) -> Result<u64, Errno> {
    let fixed = if at == 0 { 0 } else { MAP_FIXED_NOREPLACE };
    let flags = MAP_PRIVATE | MAP_ANONYMOUS | fixed | flags;
    let args = [at as usize, size, protection, flags, usize::MAX, 0];
    // SAFETY: no existing mapping is replaced.
    let place = unsafe { call(number::MMAP, args) }? as u64;
    if at != 0 && place != at {
        // A kernel that does not know the flag (before Linux 4.17) takes the address as a hint.
        // SAFETY: it was just mapped, and nobody else knows of it.
        let _ = unsafe { call(number::MUNMAP, [place as usize, size, 0, 0, 0, 0]) };
        return Err(EEXIST);
    }
    Ok(place)
}

/// Maps fresh memory for something, as [`Pages::map`](crate::Pages::map).
///
/// # Errors
/// If something is there, or there is no memory.
pub fn map_for(at: u64, size: usize, for_what: Use) -> Result<u64, Errno> {
    let (rights, flags) = match for_what {
        Use::Code => (PROT_READ | PROT_EXEC, 0),
        Use::Data => (PROT_READ | PROT_WRITE, 0),
        Use::Sparse => (PROT_READ | PROT_WRITE, MAP_NORESERVE),
    };
    map(at, size, rights, flags)
}

/// How much of a line is looked at: everything that is before a file's name, and the names that the kernel gives.
const LINE: usize = 128;

/// Shows all mappings, by address: `/proc/self/maps`.
///
/// # Errors
/// If that cannot be read.
pub fn mappings(see: &mut dyn FnMut(Mapping)) -> Result<(), Errno> {
    let file = sys::open(c"/proc/self/maps", sys::O_RDONLY)?;
    let mut bytes = [0; 4096];
    let mut kept = [0; LINE];
    let mut length = 0;
    let result = loop {
        let count = match sys::read(file, &mut bytes) {
            Ok(0) => break Ok(()),
            Ok(count) => count,
            Err(error) => break Err(error),
        };
        for byte in &bytes[..count] {
            if *byte == b'\n' {
                line(&kept[..length]).into_iter().for_each(&mut *see);
                length = 0;
            } else if length < LINE {
                kept[length] = *byte;
                length += 1;
            }
        }
    };
    // SAFETY: the file is ours.
    unsafe { sys::close(file) };
    result
}

fn line(line: &[u8]) -> Option<Mapping> {
    let mut words = line.split(|&byte| byte == b' ');
    let range = words.next()?;
    let dash = range.iter().position(|&byte| byte == b'-')?;
    let flags = words.next()?;
    let has = |at: usize, letter: u8| flags.get(at) == Some(&letter);
    Some(Mapping {
        range: hex(&range[..dash])?..hex(&range[dash + 1..])?,
        read: has(0, b'r'),
        write: has(1, b'w'),
        execute: has(2, b'x'),
        shared: has(3, b's'),
        grows: line.ends_with(b"[stack]"),
        offset: hex(words.next()?)?,
    })
}

fn hex(digits: &[u8]) -> Option<u64> {
    u64::from_str_radix(core::str::from_utf8(digits).ok()?, 16).ok()
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;
    use std::vec::Vec;

    #[test]
    fn this_function_is_in_an_executable_mapping() {
        let mut maps = Vec::new();
        mappings(&mut |mapping| maps.push(mapping)).expect("there are mappings");
        assert!(maps.is_sorted_by(|one, other| one.range.end <= other.range.start));
        let here = this_function_is_in_an_executable_mapping as *const () as u64;
        let map = maps.iter().find(|map| map.range.contains(&here));
        let map = map.expect("one has this function");
        assert!(map.execute && !map.write && !map.shared && !map.grows);
        let text = std::fs::read_to_string("/proc/self/maps").expect("there is such a file");
        let stacks = text
            .lines()
            .filter(|line| line.ends_with("[stack]"))
            .count();
        assert_eq!(maps.iter().filter(|map| map.grows).count(), stacks);
    }

    #[test]
    fn lines_are_parsed() {
        let map = line(b"7f00-8f00 r-xp 00012000 fe:00 123   /lib/x").expect("a line");
        assert_eq!(map.range, 0x7F00..0x8F00);
        assert!(map.read && !map.write && map.execute && !map.shared && !map.grows);
        assert_eq!(map.offset, 0x12000);
        assert!(line(b"1-2 rw-p 00000000 00:00 0   [stack]").is_some_and(|map| map.grows));
        assert_eq!(line(b"nonsense"), None);
    }
}
