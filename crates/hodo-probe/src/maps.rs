//! The process's mappings: `/proc/self/maps`.

use alloc::vec::Vec;
use core::ops::Range;

use hodo_codegen::arena::nearest_gap;

use super::sys;

/// One mapping.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Mapping {
    pub range: Range<u64>,
    pub read: bool,
    pub write: bool,
    pub execute: bool,
    pub shared: bool,
    /// The offset in its file.
    pub offset: u64,
}

/// All mappings, by address.
pub(super) fn read() -> Result<Vec<Mapping>, sys::Errno> {
    let file = sys::open(c"/proc/self/maps", sys::O_RDONLY)?;
    let mut text = Vec::new();
    let result = loop {
        let len = text.len();
        text.resize(len + 16384, 0);
        match sys::read(file, &mut text[len..]) {
            Ok(0) => {
                text.truncate(len);
                break Ok(());
            }
            Ok(count) => text.truncate(len + count),
            Err(error) => break Err(error),
        }
    };
    // SAFETY: the file is ours.
    unsafe { sys::close(file) };
    result?;
    Ok(text.split(|&byte| byte == b'\n').filter_map(line).collect())
}

fn line(line: &[u8]) -> Option<Mapping> {
    let mut words = line.split(|&byte| byte == b' ');
    let range = words.next()?;
    let dash = range.iter().position(|&byte| byte == b'-')?;
    let flags = words.next()?;
    let has = |at: usize, letter: u8| flags.get(at) == Some(&letter);
    Some(Mapping {
        range: number(&range[..dash])?..number(&range[dash + 1..])?,
        read: has(0, b'r'),
        write: has(1, b'w'),
        execute: has(2, b'x'),
        shared: has(3, b's'),
        offset: number(words.next()?)?,
    })
}

fn number(digits: &[u8]) -> Option<u64> {
    u64::from_str_radix(core::str::from_utf8(digits).ok()?, 16).ok()
}

/// The mapping that contains an address.
pub(super) fn find(maps: &[Mapping], addr: u64) -> Option<&Mapping> {
    let at = maps.partition_point(|map| map.range.end <= addr);
    maps.get(at).filter(|map| map.range.start <= addr)
}

/// The nearest free range of `size` bytes within `reach` of `near`, and `guard` bytes away from everything else: see
/// [`nearest_gap`].
pub(super) fn free(maps: &[Mapping], near: u64, size: u64, reach: u64, guard: u64) -> Option<u64> {
    let spans = maps.iter().map(|map| map.range.clone().into());
    nearest_gap(spans, near, size, reach, guard)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_function_is_in_an_executable_mapping() {
        let maps = read().expect("there are mappings");
        let here = this_function_is_in_an_executable_mapping as *const () as u64;
        let map = find(&maps, here).expect("one has this function");
        assert!(map.execute && !map.write && !map.shared);
        let place = free(&maps, here, 1 << 16, 1 << 30, 1 << 20).expect("there is room nearby");
        assert!(place.abs_diff(here) < 1 << 30);
        assert!(find(&maps, place).is_none() && find(&maps, place + 0xFFFF).is_none());
        assert_eq!(free(&maps, here, 1 << 48, 1 << 49, 1 << 20), None);
    }

    #[test]
    fn lines_are_parsed() {
        let map = line(b"7f00-8f00 r-xp 00012000 fe:00 123   /lib/x").expect("a line");
        assert_eq!(map.range, 0x7F00..0x8F00);
        assert!(map.read && !map.write && map.execute && !map.shared);
        assert_eq!(map.offset, 0x12000);
        assert_eq!(line(b"nonsense"), None);
    }
}
