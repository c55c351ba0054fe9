//! Call sites of `libhodo_ftrace` in the process. The library switches their code at any time, so nothing is written
//! over it, and no copy of it is executed. `hodo-ftrace.h` describes what is read here: `struct hodo_ftrace_probing`.

use std::ops::Range;

use anyhow::{Context, Result, bail};
use hodo_module::Image;
use hodo_ptrace::{Memory, TargetAddr};

use super::Piece;

const NAME: &str = "hodo_ftrace_probing";
/// The version of the interface that is understood here, and where its words are.
const VERSION: u64 = 1;
const MODULES: u64 = 6 * 8;
const SITE_SIZE: u64 = 7 * 8;
const SITE_LONGEST: u64 = 8 * 8;
/// More cannot be true.
const MOST_MODULES: usize = 1 << 16;
const MOST_SITES: u64 = 1 << 24;
const LARGEST: u64 = 256;

/// The sites of a process.
#[derive(Debug, Default)]
pub(super) struct CallSites {
    /// Their addresses, sorted.
    sites: Vec<u64>,
    /// No site is longer.
    longest: u64,
}

impl CallSites {
    /// Those of a process with these files, the program first, at these biases.
    ///
    /// # Errors
    /// If they cannot be found out.
    pub fn read<'i>(
        memory: &Memory,
        mut files: impl Iterator<Item = (&'i Image, u64)>,
    ) -> Result<Self> {
        let mut is_program = true;
        let library = files.find_map(|(image, bias)| {
            let at = image.dynamic_symbol(NAME).or_else(|| {
                let may_be_linked = std::mem::take(&mut is_program);
                may_be_linked.then(|| image.only_symbol(NAME)).flatten()
            })?;
            Some(bias.wrapping_add(at))
        });
        match library {
            None => Ok(Self::default()),
            Some(at) => Self::of_library(memory, at)
                .context("reading the call sites of libhodo_ftrace in the process"),
        }
    }

    fn of_library(memory: &Memory, at: u64) -> Result<Self> {
        let word = |at: u64| memory.read_u64(TargetAddr(at));
        let version = word(at)?;
        if version != VERSION {
            bail!("the library has version {version} of its interface, and hodo knows {VERSION}");
        }
        let [modules, size, longest] =
            [MODULES, SITE_SIZE, SITE_LONGEST].map(|offset| word(at + offset));
        let (modules, size, longest) = (modules?, size?, longest?);
        if !(8..=LARGEST).contains(&size) || longest > LARGEST {
            bail!("its table has sites of {size} bytes, which cannot be");
        }
        let mut sites = Vec::new();
        // Before the dynamic linker has run, there is none.
        let mut module = if modules == 0 { 0 } else { word(modules)? };
        for _ in 0..MOST_MODULES {
            if module == 0 {
                sites.sort_unstable();
                return Ok(Self { sites, longest });
            }
            let (table, count) = (word(module + 8)?, word(module + 16)?);
            if count > MOST_SITES {
                bail!("a file has {count} call sites, which cannot be");
            }
            let mut bytes = vec![0; (count * size) as usize];
            memory.read(TargetAddr(table), &mut bytes)?;
            let addresses = bytes.chunks_exact(size as usize).map(|site| {
                let word = site.first_chunk().copied().unwrap_or_default();
                u64::from_le_bytes(word)
            });
            sites.extend(addresses);
            module = word(module)?;
        }
        bail!("its list of files does not end")
    }

    /// The first site that may have bytes in a range of code.
    fn find(&self, code: Range<u64>) -> Option<u64> {
        let first = self
            .sites
            .partition_point(|site| site + self.longest <= code.start);
        let site = self.sites.get(first)?;
        (*site < code.end).then_some(*site)
    }

    /// Checks that a file's patches leave them alone.
    pub fn check(&self, piece: &Piece) -> Result<()> {
        if self.sites.is_empty() {
            return Ok(());
        }
        let writes = piece.patches.writes.iter();
        let written = writes.map(|(at, bytes)| *at..*at + bytes.len() as u64);
        let copies = piece.patches.copies.iter();
        let copied = copies.map(|copied| copied.original..copied.original + 1);
        let Some(site) = written.chain(copied).find_map(|code| self.find(code)) else {
            return Ok(());
        };
        let (image, link) = (&piece.file.image, site.wrapping_sub(piece.file.bias));
        bail!(
            "{link:#x} in {} is a call site that libhodo_ftrace switches inside the program, so that hodo cannot change it \
             from outside; leave its function out, put the probe after the call site, or use the library itself \
             (HODO_FTRACE_RECORD, hodo-probe.h)",
            image.path.display()
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_of_sites_are_found() {
        let sites = CallSites {
            sites: vec![100, 200],
            longest: 6,
        };
        assert_eq!(sites.find(90..100), None);
        assert_eq!(sites.find(90..101), Some(100));
        assert_eq!(sites.find(105..110), Some(100));
        assert_eq!(sites.find(106..200), None);
        assert_eq!(sites.find(106..300), Some(200));
        assert_eq!(sites.find(206..300), None);
    }
}
