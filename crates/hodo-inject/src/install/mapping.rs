//! What is mapped into targets.

use anyhow::{Context, Result, bail};
use hodo_abi::Span;
use hodo_trace::format::{SHADOW_DISTANCE, counters};

use hodo_module::Module;

use super::SMALLEST;
use crate::arch::{self, SHADOW_ROOM};
use crate::ledger::{Entry, Ledger};
use crate::recorder::{Recorder, Shared};
use crate::space::Space;
use hodo_ptrace::arch::SCRATCH_PAGE;
use hodo_ptrace::maps::Mapping;
use hodo_ptrace::pass_fd;
use hodo_ptrace::{Memory, Stopped, Syscalls, TargetAddr};

/// Keeps hodo's memory out of the process's core files: it is large, and tells nothing about the program.
fn keep_undumped(calls: &Syscalls, at: TargetAddr, size: u64) -> Result<()> {
    calls.madvise(at, size, libc::MADV_DONTDUMP)
}

/// Returns whether a thread's word for its control block is left over from an earlier recording. The C library gives
/// the stack of a thread that has ended to a new one, with this word, and hodo cannot reach it there when it detaches.
/// `maps`: what is mapped now.
#[must_use]
pub fn is_left_over(word: u64, linker: Option<u64>, maps: &[Mapping]) -> bool {
    /// The size of a trace, at most.
    const LARGEST: u64 = 1 << 39;
    let places = arch::events_at(linker);
    let was_ours = places
        .iter()
        .any(|place| word.wrapping_sub(*place) < LARGEST);
    was_ours && !maps.iter().any(|map| (map.start..map.end).contains(&word))
}

/// Maps the trace and the counters. `scratch`: memory of the process that may be used in the meantime. `budget`: how
/// many bytes may be mapped, if that is limited; `linker`: where the dynamic linker is.
pub(super) fn map_events(
    calls: &Syscalls,
    memory: &Memory,
    scratch: TargetAddr,
    (budget, linker): (Option<u64>, Option<u64>),
    recorder: &dyn Recorder,
    space: &mut Space,
) -> Result<()> {
    let events = recorder.events();
    let fd = pass_fd::file(calls, memory, scratch, events.file, events.path)?;
    let mut size = events.size;
    while budget.is_some_and(|budget| size > budget.max(SMALLEST)) {
        size /= 2;
    }
    let shared = libc::MAP_SHARED | libc::MAP_FIXED_NOREPLACE | libc::MAP_NORESERVE;
    let rw = libc::PROT_READ | libc::PROT_WRITE;
    'found: while size >= SMALLEST {
        for place in arch::events_at(linker) {
            let wanted = TargetAddr(place);
            if calls
                .mmap(wanted, size, rw, shared, Some(fd))?
                .is_at(wanted)
            {
                space.layout_mut().set_trace(Span::at(place, size));
                space.note(memory)?;
                break 'found;
            }
        }
        size /= 2;
    }
    calls.close(fd)?;
    if space.trace().is_empty() {
        bail!("there is no room in the address space for the trace");
    }
    // A mapping of a file with a name is left out by the kernel itself (core(5)); what `hodo probe` maps has no name.
    let trace = space.trace();
    let (at, size) = (TargetAddr(trace.start), trace.len());
    keep_undumped(calls, at, size)?;
    // hodo has prepared the pages: reading ahead would prepare more for nothing.
    calls.madvise(at, size, libc::MADV_RANDOM)?;
    let (counters, histograms) = recorder.tables();
    let counters = counters.map(|shared| (shared, 0));
    let histograms = histograms.map(|shared| (shared, counters::SIZE));
    for (Shared { file, path, size }, below) in counters.into_iter().chain(histograms) {
        let region = Span::at(trace.start - below - size, size);
        let fd = pass_fd::file(calls, memory, scratch, file, path)?;
        space.ledger().note(memory, &Entry::Mapped(region.into()))?;
        let wanted = TargetAddr(region.start);
        let got = calls.mmap(wanted, size, rw, shared, Some(fd))?;
        calls.close(fd)?;
        if !got.is_at(wanted) {
            space
                .ledger()
                .note(memory, &Entry::Unmapped(region.start))?;
            bail!("there is no room in the address space for the counters");
        }
        keep_undumped(calls, wanted, size)?;
        space.layout_mut().add_counters(region);
    }
    Ok(())
}

/// The address range of a program.
pub(super) fn extent(module: &Module, bias: u64) -> std::ops::Range<u64> {
    let start = bias.wrapping_add(module.image.segments.first().map_or(0, |s| s.addr)) & !4095;
    start..bias.wrapping_add(module.image.end)
}

/// Maps the shadow of all places where stacks usually are, so that no thread needs a system call for it: the area from
/// the libraries up to the first stack, and the area of the program and its heap. This takes only address space. If the
/// kernel refuses (because of a limit, or a crowded address space), the agent maps the shadow piece by piece.
pub(super) fn map_shadows(
    calls: &Syscalls,
    sp: u64,
    linker: Option<u64>,
    program: std::ops::Range<u64>,
    (memory, ledger): (&Memory, &Ledger),
) -> Result<[Span; 2]> {
    let wanted = [
        (arch::stacks(sp, linker), true),
        (
            program.start..program.end + SHADOW_ROOM,
            program.start > SHADOW_DISTANCE + SHADOW_ROOM,
        ),
    ];
    let flags =
        libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE | libc::MAP_NORESERVE;
    let rw = libc::PROT_READ | libc::PROT_WRITE;
    let mut regions = [Span::EMPTY; 2];
    for (region, (range, useful)) in regions.iter_mut().zip(wanted) {
        if !useful {
            continue;
        }
        let at = (range.start - SHADOW_DISTANCE) & !0xF_FFFF;
        let len = (range.end - SHADOW_DISTANCE - at).next_multiple_of(4096);
        ledger.note(memory, &Entry::Mapped(Span::at(at, len).into()))?;
        let wanted = TargetAddr(at);
        let got = calls.mmap(wanted, len, rw, flags, None)?;
        if !got.is_at(wanted) {
            ledger.note(memory, &Entry::Unmapped(at))?;
            continue;
        }
        // Each thread uses little of it.
        calls.madvise(wanted, len, libc::MADV_NOHUGEPAGE)?;
        keep_undumped(calls, wanted, len)?;
        // The last page of the first range belongs to the agent, which lists there what it maps itself.
        *region = Span::at(at + SHADOW_DISTANCE, len - 4096);
    }
    Ok(regions)
}

/// Maps the page in which threads work. 0: none is needed.
pub(super) fn map_scratch_page(calls: &Syscalls) -> Result<u64> {
    if SCRATCH_PAGE == 0 {
        return Ok(0);
    }
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    let rx = libc::PROT_READ | libc::PROT_EXEC;
    let got = calls.mmap(TargetAddr(0), SCRATCH_PAGE, rx, flags, None)?;
    match got.addr() {
        Ok(at) => Ok(at.0),
        Err(_) => bail!("a page of memory in the process was refused ({got})"),
    }
}

/// Maps an island, executable but not writable: hodo writes to it from outside.
pub(super) fn map_island(calls: &Syscalls, place: Span) -> Result<()> {
    let flags =
        libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE | libc::MAP_NORESERVE;
    let rx = libc::PROT_READ | libc::PROT_EXEC;
    let (wanted, size) = (TargetAddr(place.start), place.len());
    let got = calls.mmap(wanted, size, rx, flags, None)?;
    if !got.is_at(wanted) {
        bail!("an island of {size:#x} bytes at {wanted:#x} was refused ({got})");
    }
    keep_undumped(calls, wanted, size)
}

/// A page in a stopped thread's own memory, preceded by this many bytes; `syscall` is the address of an instruction
/// that makes system calls.
pub fn private_page(thread: Stopped, syscall: TargetAddr, below: u64) -> Result<u64> {
    let calls = Syscalls::begin(thread, syscall)?;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    let rw = libc::PROT_READ | libc::PROT_WRITE;
    let size = below + 4096;
    let got = calls.mmap(TargetAddr(0), size, rw, flags, None);
    calls.end()?;
    let page = got?.addr().context("a page for a thread's control block")?;
    Ok(page.0 + below)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_earlier_recordings_lead_to_memory_that_is_gone() {
        let [place, ..] = arch::events_at(None);
        let map = |start: u64| Mapping {
            start,
            end: start + 0x10_0000,
            writable: true,
            executable: false,
            shared: true,
            offset: 0,
            device: 0,
            inode: 0,
            path: "".into(),
            deleted: false,
        };
        let others = [map(0x40_0000)];
        assert!(is_left_over(place + 0x1400, None, &others));
        assert!(!is_left_over(place + 0x1400, None, &[map(place)]));
        // Somebody else's.
        assert!(!is_left_over(1, None, &others));
        assert!(!is_left_over(0x50_0000, None, &others));
    }
}
