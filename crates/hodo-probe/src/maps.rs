//! What is mapped.

use alloc::vec::Vec;

#[cfg(not(target_os = "none"))]
use hodo_codegen::arena::nearest_gap;
#[cfg(target_os = "none")]
use hodo_codegen::arena::nearest_gap_within;

use super::environment::{self, Errno};
pub use hodo_sys::Mapping;

/// All mappings, by address.
pub(super) fn mappings() -> Result<Vec<Mapping>, Errno> {
    let mut maps = Vec::new();
    environment::current().mappings(&mut |mapping| maps.push(mapping))?;
    Ok(maps)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_near_a_function_are_free() {
        crate::linux::set();
        let maps = mappings().expect("there are mappings");
        let here = places_near_a_function_are_free as *const () as u64;
        let map = find(&maps, here).expect("one has this function");
        assert!(map.execute && !map.write && !map.shared);
        let place = free(&maps, here, 1 << 16, 1 << 30, 1 << 20).expect("there is room nearby");
        assert!(place.abs_diff(here) < 1 << 30);
        assert!(find(&maps, place).is_none() && find(&maps, place + 0xFFFF).is_none());
        assert_eq!(free(&maps, here, 1 << 48, 1 << 49, 1 << 20), None);
    }
}
