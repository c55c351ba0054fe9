//! Which caches are simulated.

use anyhow::{Result, bail};
use hodo_dbi::{LineSets, Recent};

use crate::replacement::Policy;

/// Size and shape of a cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Geometry {
    /// Bytes.
    pub size: u64,
    /// Lines of a set.
    pub ways: u32,
    /// Bytes of a line.
    pub line: u32,
}

impl Geometry {
    /// Checks that there can be such a cache.
    ///
    /// # Errors
    /// If not; the error says what would be right.
    pub fn check(self) -> Result<Self> {
        let Self { size, ways, line } = self;
        if !line.is_power_of_two() || !(16..=1 << 30).contains(&line) {
            bail!("a line of {line} bytes: it must be a power of two from 16 on");
        }
        let set = u64::from(line) * u64::from(ways);
        if ways == 0 || ways > 1024 {
            bail!("{ways} ways: there must be 1 to 1024");
        }
        if size == 0 || size % set != 0 || size / u64::from(line) > 1 << 26 {
            bail!(
                "{size} bytes: the size must be a multiple of ways x line ({set} bytes), and not too large"
            );
        }
        Ok(self)
    }

    pub(crate) fn sets(self) -> u64 {
        self.size / (u64::from(self.line) * u64::from(self.ways))
    }
}

/// An access has at most this many lines. That of many is one of a processor's state.
pub(crate) const MOST_LINES: usize = 4096;

/// What the last cache has of what the others have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Inclusion {
    /// Lines come into all caches; whether they give way in one does not matter to the others.
    #[default]
    Any,
    /// All of it: a line that leaves the last cache leaves the others, too.
    Inclusive,
    /// Nothing: a line comes into it when it leaves the others.
    Exclusive,
}

/// What is fetched before it is accessed, into the caches for data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Prefetch {
    /// Nothing.
    #[default]
    None,
    /// The line after one that misses the first cache.
    NextLine,
    /// What an instruction will access next, if the last four addresses that it accessed were equally far from each
    /// other.
    Stride,
}

/// What is simulated in more detail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// What the last cache has.
    pub inclusion: Inclusion,
    /// What is fetched before it is accessed.
    pub prefetch: Prefetch,
    /// Lines that are written back are counted.
    pub write_backs: bool,
    /// Why data is not in the first cache.
    pub causes: bool,
    /// The number of processors. Each has caches of its own, but for the last one; the MESI protocol keeps them
    /// coherent.
    pub cores: u32,
}

/// The maximum number of processors.
pub const MOST_CORES: u32 = 1024;

impl Default for Extent {
    fn default() -> Self {
        Self {
            inclusion: Inclusion::default(),
            prefetch: Prefetch::default(),
            write_backs: false,
            causes: false,
            cores: 1,
        }
    }
}

/// The caches of a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Caches {
    /// For instructions.
    pub instructions: Geometry,
    /// For data.
    pub data: Geometry,
    /// For both, after these.
    pub second: Option<Geometry>,
    /// For both, after the others.
    pub last: Geometry,
    /// Which lines give way.
    pub policy: Policy,
    /// What is simulated in more detail.
    pub extent: Extent,
}

impl Caches {
    /// Whether anything is wanted that is simulated in more detail.
    #[must_use]
    pub fn is_detailed(&self) -> bool {
        self.second.is_some() || self.extent != Extent::default()
    }

    /// What changes none of these caches, if threads can find that out.
    pub(crate) fn recent(&self) -> Option<Recent> {
        let Extent {
            inclusion,
            prefetch,
            write_backs,
            causes,
            cores,
        } = self.extent;
        // Else lines come and go without being accessed, or it matters how they are accessed.
        let is_plain =
            inclusion == Inclusion::Any && prefetch == Prefetch::None && !write_backs && !causes;
        let is_plain = is_plain && cores == 1;
        let sets = |geometry: Geometry| LineSets::new(geometry.line, geometry.sets());
        Some(Recent {
            fetches: sets(self.instructions).filter(|_| is_plain)?,
            data: sets(self.data)?,
        })
    }

    /// Checks that there can be such caches.
    ///
    /// # Errors
    /// If not; the error says what would be right.
    pub fn check(&self) -> Result<()> {
        if !(1..=MOST_CORES).contains(&self.extent.cores) {
            bail!(
                "{} processors: there must be 1 to {MOST_CORES}",
                self.extent.cores
            );
        }
        let all = [Some(self.instructions), Some(self.data), self.second];
        for geometry in all.into_iter().flatten().chain([self.last]) {
            let Geometry { ways, line, .. } = geometry.check()?;
            if self.policy == Policy::TreePlru && !(ways.is_power_of_two() && ways <= 64) {
                bail!("{ways} ways: a tree needs a power of two, at most 64");
            }
            if self.is_detailed() && line != self.data.line {
                bail!(
                    "lines of {line} and of {} bytes: with a second level, causes, write-backs, inclusion or \
                     prefetching, all caches must have lines of the same length",
                    self.data.line
                );
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn impossible_caches_are_refused() {
        let check = |size, ways, line| Geometry { size, ways, line }.check().is_ok();
        assert!(check(32768, 8, 64) && check(48 * 1024, 12, 64) && check(30 << 20, 15, 64));
        assert!(!check(0, 8, 64) && !check(32768, 0, 64) && !check(32768, 8, 48));
        assert!(!check(32760, 8, 64) && !check(1 << 50, 8, 64));
    }
}
