//! Restartable sequences: if a thread is preempted in one, the kernel sends it to the sequence's abort handler. It
//! knows both by addresses, so the instructions must stay where they are.

use std::ops::Range;

use object::read::elf::SectionHeader;
use object::{Object, ObjectSection};

use crate::image::Image;
use crate::targets::Targets;

/// `struct rseq_cs`: version, flags, start, length, abort handler.
const DESCRIPTOR: u64 = 32;
/// Bytes before an abort handler that the kernel compares.
const SIGNATURE: u64 = 4;

/// Returns the sequences for which the image has descriptors. Marks the bytes that the kernel reads, and the handlers.
pub(crate) fn find(image: &Image<'_>, targets: &Targets) -> Vec<Range<u64>> {
    let endian = image.file.endian();
    let mut found = Vec::new();
    for section in image.file.sections() {
        if section.name() != Ok("__rseq_cs") {
            continue;
        }
        let Ok(data) = section.data() else { continue };
        let start = section.elf_section_header().sh_addr(endian);
        let mut words: Vec<u64> = data
            .as_chunks::<8>()
            .0
            .iter()
            .map(|w| u64::from_le_bytes(*w))
            .collect();
        // If the image can be loaded anywhere, the addresses are in relocations.
        for (at, relocation) in image.file.dynamic_relocations().into_iter().flatten() {
            if let Some(word) = at
                .checked_sub(start)
                .and_then(|at| words.get_mut(usize::try_from(at / 8).ok()?))
                && relocation.addend() != 0
            {
                *word = relocation.addend().cast_unsigned();
            }
        }
        for descriptor in words.chunks_exact((DESCRIPTOR / 8) as usize) {
            let [_, start, len, abort] = *descriptor else {
                continue;
            };
            found.push(start..start.saturating_add(len));
            targets.mark(abort);
            for addr in abort.saturating_sub(SIGNATURE)..abort {
                targets.mark(addr);
                targets.data.set(addr);
            }
        }
    }
    found
}
