//! The caches of this machine, and of some others.

use std::path::Path;

use anyhow::{Context, Result};
use rustc_hash::FxHashMap;

use crate::model::{Caches, Extent, Geometry};
use crate::replacement::Policy;

/// Those of AMD's Zen 3.
#[must_use]
pub fn zen3() -> Caches {
    caches(32 << 10, (512 << 10, 8), 32 << 20)
}

/// Those of Intel's Skylake.
#[must_use]
pub fn skylake() -> Caches {
    caches(32 << 10, (256 << 10, 4), 8 << 20)
}

fn caches(first: u64, (second, ways): (u64, u32), last: u64) -> Caches {
    let geometry = |size, ways| Geometry {
        size,
        ways,
        line: 64,
    };
    Caches {
        instructions: geometry(first, 8),
        data: geometry(first, 8),
        second: Some(geometry(second, ways)),
        last: geometry(last, 16),
        policy: Policy::Lru,
        extent: Extent::default(),
    }
}

/// The caches of this machine, as the kernel describes them.
///
/// # Errors
/// If it does not.
pub fn host() -> Result<Caches> {
    let mut found: FxHashMap<(u32, String), Geometry> = FxHashMap::default();
    for index in 0..8 {
        let place = format!("/sys/devices/system/cpu/cpu0/cache/index{index}");
        let place = Path::new(&place);
        let word = |name: &str| {
            let text = std::fs::read_to_string(place.join(name)).ok()?;
            Some(text.trim().to_owned())
        };
        let number = |name: &str| word(name)?.parse::<u32>().ok();
        let size = word("size").and_then(|size| size.strip_suffix('K')?.parse::<u64>().ok());
        let (Some(level), Some(kind), Some(size)) = (number("level"), word("type"), size) else {
            continue;
        };
        let (Some(ways), Some(line)) = (
            number("ways_of_associativity"),
            number("coherency_line_size"),
        ) else {
            continue;
        };
        let geometry = Geometry {
            size: size << 10,
            ways,
            line,
        };
        if geometry.check().is_ok() {
            found.insert((level, kind), geometry);
        }
    }
    let first = |kind: &str| found.get(&(1, kind.to_owned())).copied();
    let both = found.iter().filter(|((level, _), _)| *level > 1);
    let last = both.max_by_key(|((level, _), _)| *level);
    let second = found.get(&(2, "Unified".to_owned())).copied();
    let unknown = "the kernel does not say what caches this machine has; use --like";
    Ok(Caches {
        instructions: first("Instruction").context(unknown)?,
        data: first("Data").context(unknown)?,
        second: second.filter(|_| last.is_some_and(|((level, _), _)| *level > 2)),
        last: last.map(|(_, &last)| last).context(unknown)?,
        policy: Policy::Lru,
        extent: Extent::default(),
    })
}
