//! Preparing a program for tracing: the `events` file and the islands are mapped, the sites are patched.
//!
//! At exec the program has one thread, stopped before its first instruction. Libraries are patched when the dynamic
//! linker says that they are mapped, before any of their code has run.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use hodo_patch::{Hook, Island, Patches, Recording};

use crate::maps::{self, Mapping};
use crate::modules::{Image, Module, Modules};
use crate::remote::{self, Memory, Syscalls};
use crate::select::Selection;
use crate::session::Session;

/// Where the `events` file goes in targets: far from all that programs use, sanitizers included.
const EVENTS_AT: [u64; 3] = [0x2000_0000_0000, 0x3800_0000_0000, 0x1800_0000_0000];
/// Distance between the dynamic linker and the island for libraries, which are mapped downwards from it.
const LIBRARY_ROOM: u64 = 1 << 30;
/// Bytes of the island for libraries.
const LIBRARY_ISLAND: u64 = 512 << 20;

/// What is known of an address space.
#[derive(Debug, Clone, Default)]
pub struct Space {
    /// Where the `events` file is mapped, and how much of it.
    pub events: (u64, u64),
    /// Islands: for the program, for the libraries.
    pub islands: [(u64, u64); 2],
    /// Breakpoints and the stubs that they stand for.
    pub traps: HashMap<u64, u64>,
    /// Original bytes of everything that was written over code, by address.
    pub originals: Vec<(u64, Vec<u8>)>,
    /// The dynamic linker's breakpoint.
    pub r_brk: Option<u64>,
    /// Files that were seen mapped, by start address and inode.
    pub seen: Vec<(u64, u64)>,
    /// A `syscall` instruction of ours.
    pub syscall: u64,
    /// Of each island: the bytes used, and where its next hook goes.
    pub used: [(usize, usize); 2],
    /// Whether `_dl_find_object` is hooked.
    pub find_object: bool,
}

/// What an instrumentation needs to know and to change.
pub struct Work<'a> {
    /// The files.
    pub modules: &'a mut Modules,
    /// The trace.
    pub session: &'a mut Session,
    /// What is traced.
    pub selection: &'a Selection,
    /// How it is recorded.
    pub recording: Recording,
}

fn auxv(pid: i32, key: u64) -> Option<u64> {
    let bytes = std::fs::read(format!("/proc/{pid}/auxv")).ok()?;
    bytes.chunks_exact(16).find_map(|pair| {
        let word = |i: usize| u64::from_le_bytes(pair[i..i + 8].try_into().expect("eight bytes"));
        (word(0) == key).then(|| word(8))
    })
}

/// Where to read a mapped file: under the target's own root.
fn real_path(pid: i32, path: &Path) -> PathBuf {
    let rooted = PathBuf::from(format!("/proc/{pid}/root{}", path.display()));
    if rooted.exists() {
        rooted
    } else {
        path.to_owned()
    }
}

/// Prepares the program that `pid` has just begun to execute. `Ok(None)`: it cannot be traced, for the reason that was
/// logged; it runs as it is.
pub fn program(pid: i32, context: &mut Work<'_>) -> Result<Space> {
    remote::leave_exec(pid)?;
    let exe = PathBuf::from(format!("/proc/{pid}/exe"));
    let path = std::fs::read_link(&exe).unwrap_or_else(|_| exe.clone());
    let module = context
        .modules
        .get(&exe, &path, context.selection, true, context.session)?;
    let memory = Memory::open(pid)?;
    let maps = maps::read(pid)?;
    let entry = auxv(pid, 9).context("no entry point in the auxiliary vector")?;
    let linker = auxv(pid, 7).filter(|&base| base != 0);
    let bias = entry.wrapping_sub(module.image.entry());
    let mut space = Space::default();

    // The first system calls are made on the first instruction, for want of a better place.
    let regs = remote::regs(pid)?;
    let mut first = [0; 2];
    memory.read(regs.rip, &mut first)?;
    memory.write(regs.rip, &[0x0F, 0x05])?;
    let begun = Syscalls::begin(pid, regs.rip)?;
    let mapped = map_all(
        &begun, &memory, &maps, &module, bias, linker, context, &mut space,
    );
    let ended = begun.end();
    memory.write(regs.rip, &first)?;
    mapped?;
    ended?;

    let mut island = Island::new(space.islands[0].0, space.islands[0].1);
    space.syscall = island.syscall();
    patch(&memory, &module, bias, &mut island, context, &mut space)?;
    hook(&memory, &module.image, bias, &mut island, &mut space)?;
    memory.write(island.base, &island.code)?;
    space.used[0] = (island.code.len(), island.hooks().start);
    if space.islands[1].1 != 0 {
        let island = Island::new(space.islands[1].0, space.islands[1].1);
        memory.write(island.base, &island.code)?;
        space.used[1] = (island.code.len(), island.hooks().start);
    }
    if let Some(base) = linker {
        arm_linker(pid, base, &memory, &maps, &mut space)?;
    }
    space.seen = file_mappings(&maps).map(|m| (m.start, m.inode)).collect();
    if let Some(base) = linker {
        // The dynamic linker itself is looked at again, as a library.
        space
            .seen
            .retain(|&(start, _)| start < base || start > base + (16 << 20));
    }
    Ok(space)
}

fn file_mappings(maps: &[Mapping]) -> impl Iterator<Item = &Mapping> {
    maps.iter()
        .filter(|m| m.executable && m.inode != 0 && m.path.is_absolute())
}

#[expect(
    clippy::too_many_arguments,
    reason = "one call, split off for its error path"
)]
fn map_all(
    calls: &Syscalls,
    memory: &Memory,
    maps: &[Mapping],
    module: &Module,
    bias: u64,
    linker: Option<u64>,
    context: &Work<'_>,
    space: &mut Space,
) -> Result<()> {
    let rsp = remote::regs(calls.tid())?.rsp;
    let mut name = context
        .session
        .events
        .path()
        .as_os_str()
        .as_encoded_bytes()
        .to_vec();
    name.push(0);
    let at = (rsp - 256 - name.len() as u64) & !15;
    let mut saved = vec![0; name.len()];
    memory.read(at, &mut saved)?;
    memory.write(at, &name)?;
    const O_RDWR_CLOEXEC: u64 = (libc::O_RDWR | libc::O_CLOEXEC) as u64;
    let here = (libc::AT_FDCWD as i64).cast_unsigned();
    let fd = calls.call(libc::SYS_openat, [here, at, O_RDWR_CLOEXEC, 0, 0, 0])?;
    memory.write(at, &saved)?;
    if fd < 0 {
        bail!(
            "the program cannot open {}: {}",
            context.session.events.path().display(),
            std::io::Error::from_raw_os_error(-fd as i32)
        );
    }
    let fd = fd.cast_unsigned();
    let mut span = context.session.events.span();
    let shared = (libc::MAP_SHARED | libc::MAP_FIXED_NOREPLACE | libc::MAP_NORESERVE) as u64;
    let rw = (libc::PROT_READ | libc::PROT_WRITE) as u64;
    'found: while span >= 64 << 20 {
        for place in EVENTS_AT {
            let got = calls.call(libc::SYS_mmap, [place, span, rw, shared, fd, 0])?;
            if got.cast_unsigned() == place {
                space.events = (place, span);
                break 'found;
            }
        }
        span /= 2;
    }
    calls.call(libc::SYS_close, [fd, 0, 0, 0, 0, 0])?;
    if space.events.1 == 0 {
        bail!("there is no room in the address space for the trace");
    }

    let start = bias.wrapping_add(module.image.segments.first().map_or(0, |s| s.addr)) & !4095;
    let end = bias.wrapping_add(module.image.end);
    let need = (module.functions.len() + module.libcalls.len()) as u64 * 512 + (1 << 20);
    let need = need.next_multiple_of(1 << 20);
    let reach = end.saturating_sub(0x7000_0000)..start.saturating_add(0x7000_0000);
    // Below a program that is loaded high, or else far above it, out of the way of its heap.
    let place = if start > 1 << 32 {
        maps::find_gap(maps, reach.start..start - (16 << 20), need)
    } else {
        maps::find_gap(maps, (end + (256 << 20))..reach.end, need)
    };
    let place = place.context("there is no room for an island within 2 GiB of the program")?;
    space.islands[0] = (map_island(calls, place, need)?, need);
    if let Some(base) = linker {
        let top = base.saturating_sub(LIBRARY_ROOM);
        if let Some(place) =
            maps::find_gap(maps, top - (64 << 20) - LIBRARY_ISLAND..top, LIBRARY_ISLAND)
        {
            space.islands[1] = (map_island(calls, place, LIBRARY_ISLAND)?, LIBRARY_ISLAND);
        }
    }
    Ok(())
}

fn map_island(calls: &Syscalls, place: u64, size: u64) -> Result<u64> {
    let flags =
        (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE | libc::MAP_NORESERVE)
            as u64;
    let rx = (libc::PROT_READ | libc::PROT_EXEC) as u64;
    let got = calls.call(libc::SYS_mmap, [place, size, rx, flags, u64::MAX, 0])?;
    if got.cast_unsigned() != place {
        bail!("an island of {size:#x} bytes at {place:#x} was refused ({got})");
    }
    Ok(place)
}

/// Builds the stubs of a module and patches its sites.
fn patch(
    memory: &Memory,
    module: &Module,
    bias: u64,
    island: &mut Island,
    context: &mut Work<'_>,
    space: &mut Space,
) -> Result<()> {
    let mut patches = Patches::default();
    let image = hodo_patch::Image {
        bias,
        code: &|range| module.image.at(range),
    };
    let functions = module
        .functions
        .iter()
        .map(|&(index, id)| (&module.plan.functions[index], id));
    island.add_functions(functions, image, context.recording, &mut patches);
    let libcalls = module
        .libcalls
        .iter()
        .map(|&(index, id)| (&module.plan.libcalls[index], id));
    island.add_libcalls(libcalls, image, context.recording, &mut patches);
    for (addr, bytes) in &module.plan.nops {
        patches
            .writes
            .push((addr.wrapping_add(bias), bytes.clone()));
    }
    apply(memory, &module.image, bias, patches, space)
}

/// Writes patches, neighbours together.
fn apply(
    memory: &Memory,
    image: &Image,
    bias: u64,
    mut patches: Patches,
    space: &mut Space,
) -> Result<()> {
    patches.writes.sort();
    let mut writes = patches.writes.into_iter().peekable();
    while let Some((start, mut bytes)) = writes.next() {
        let original = |range: std::ops::Range<u64>| {
            image
                .at(range.start.wrapping_sub(bias)..range.end.wrapping_sub(bias))
                .context("a site lies outside of the file")
        };
        let mut end = start + bytes.len() as u64;
        space
            .originals
            .push((start, original(start..end)?.to_vec()));
        while let Some((next, more)) = writes.next_if(|(next, _)| *next >= end && *next - end < 256)
        {
            bytes.extend_from_slice(original(end..next)?);
            end = next + more.len() as u64;
            space.originals.push((next, original(next..end)?.to_vec()));
            bytes.extend_from_slice(&more);
        }
        memory.write(start, &bytes)?;
    }
    space.traps.extend(patches.traps);
    Ok(())
}

/// Sets a breakpoint where the dynamic linker announces new libraries.
fn arm_linker(
    pid: i32,
    base: u64,
    memory: &Memory,
    maps: &[Mapping],
    space: &mut Space,
) -> Result<()> {
    let Some(mapping) = maps.iter().find(|m| m.start <= base && base < m.end) else {
        return Ok(());
    };
    let image = Image::open(&real_path(pid, &mapping.path), mapping.path.clone())?;
    if let [Some((symbol, _))] = image.symbols(&["_dl_debug_state"]) {
        let at = base.wrapping_add(symbol);
        let mut original = vec![0];
        memory.read(at, &mut original)?;
        memory.write(at, &[0xCC])?;
        space.originals.push((at, original));
        space.r_brk = Some(at);
    }
    Ok(())
}

/// Looks for libraries that have been mapped since the last time.
pub fn libraries(pid: i32, space: &mut Space, context: &mut Work<'_>) -> Result<()> {
    let maps = maps::read(pid)?;
    let memory = Memory::open(pid)?;
    let new: Vec<_> = file_mappings(&maps)
        .filter(|m| !space.seen.contains(&(m.start, m.inode)))
        .cloned()
        .collect();
    space.seen = file_mappings(&maps).map(|m| (m.start, m.inode)).collect();
    for mapping in new {
        let Some((base, capacity)) = Some(space.islands[1]).filter(|island| island.1 != 0) else {
            continue;
        };
        let real = real_path(pid, &mapping.path);
        let (used, hooks) = space.used[1];
        let mut island = Island::resume(base, capacity, used, hooks);
        if context.selection.module(&mapping.path, false) {
            let module = context.modules.get(
                &real,
                &mapping.path,
                context.selection,
                false,
                context.session,
            )?;
            if let Some(bias) = module.image.bias(mapping.offset, mapping.start) {
                patch(&memory, &module, bias, &mut island, context, space)?;
            }
        }
        if let Ok(image) = Image::open(&real, mapping.path.clone())
            && let Some(bias) = image.bias(mapping.offset, mapping.start)
        {
            hook(&memory, &image, bias, &mut island, space)?;
        }
        memory.write(base + used as u64, &island.code[used..])?;
        memory.write(
            base + hooks as u64,
            &island.code[hooks..island.hooks().start],
        )?;
        space.used[1] = (island.code.len(), island.hooks().start);
    }
    Ok(())
}

/// Hooks the functions of a module that unwinders use.
fn hook(
    memory: &Memory,
    image: &Image,
    bias: u64,
    island: &mut Island,
    space: &mut Space,
) -> Result<()> {
    let mut patches = Patches::default();
    let view = hodo_patch::Image {
        bias,
        code: &|range| image.at(range),
    };
    let symbols = image.symbols(&[
        "_dl_find_object",
        "dl_iterate_phdr",
        "_Unwind_Backtrace",
        "_Unwind_GetIP",
    ]);
    let range = |index: usize| symbols[index].map(|(addr, size)| addr..addr + size);
    if let Some(function) = range(0)
        && island
            .add_hook(Hook::FindObject, function, view, &mut patches)
            .is_ok()
    {
        space.find_object = true;
    }
    // Programs may list their modules: islands are shown only where unwinders have no better way.
    if let Some(function) = range(1)
        && !space.find_object
    {
        let _ = island.add_hook(Hook::IteratePhdr, function, view, &mut patches);
    }
    if let (Some(function), Some(get_ip)) = (range(2), range(3)) {
        let get_ip = get_ip.start.wrapping_add(bias);
        let _ = island.add_hook(Hook::Backtrace { get_ip }, function, view, &mut patches);
    }
    apply(memory, image, bias, patches, space)
}
