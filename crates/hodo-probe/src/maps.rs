//! What is mapped.

use core::ops::Range;

#[cfg(not(target_os = "none"))]
use hodo_codegen::arena::nearest_gap;
#[cfg(target_os = "none")]
use hodo_codegen::arena::nearest_gap_within;

/// A piece of memory that is mapped, or where nothing can be mapped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mapping {
    /// Its addresses.
    pub range: Range<u64>,
    /// It can be read.
    pub read: bool,
    /// It can be written.
    pub write: bool,
    /// It can be executed.
    pub execute: bool,
    /// Others see what is written there.
    pub shared: bool,
    /// The offset in its file, which is 0 where the headers of an ELF file are mapped. Without files: not 0.
    pub offset: u64,
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
    // A kernel says where nothing can be mapped.
    #[cfg(target_os = "none")]
    return nearest_gap_within(spans, 1 << 16..u64::MAX, near, size, reach, guard);
    #[cfg(not(target_os = "none"))]
    nearest_gap(spans, near, size, reach, guard)
}
