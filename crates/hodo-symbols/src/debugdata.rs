//! The compressed symbol table that some distributions put in stripped files.

use object::read::elf::ElfFile64;
use object::{Object, ObjectSection};

/// Real tables are far smaller than this.
const LIMIT: usize = 256 << 20;

/// Returns the decompressed ELF file in `.gnu_debugdata`.
pub(crate) fn extract(file: &ElfFile64<'_>) -> Option<Vec<u8>> {
    let data = file.section_by_name(".gnu_debugdata")?.data().ok()?;
    let mut out = Bounded(Vec::new());
    lzma_rs::xz_decompress(&mut &*data, &mut out).ok()?;
    Some(out.0)
}

struct Bounded(Vec<u8>);

impl std::io::Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        if self.0.len() + bytes.len() > LIMIT {
            return Err(std::io::ErrorKind::FileTooLarge.into());
        }
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
