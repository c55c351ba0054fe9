//! From a plan to bytes: the code of an island, and the bytes that are written over the sites that lead there.
//!
//! Pure: nothing here touches a process. Addresses of the image are link-time addresses in the plan and runtime
//! addresses (link-time plus bias) in everything that this crate returns.
#![forbid(unsafe_code)]

mod far;
mod hook;
mod kept;
mod later;
mod libcalls;
mod machine;
mod measure;
mod open_site;
mod placed;
mod probe;

mod refusal;
mod site_writer;
mod stack;
mod syscalls;
mod trap_handler;

use std::borrow::Cow;
use std::collections::{BTreeMap, HashSet};

pub use hook::{ASKED, Announcement, AskedCall, Hook, LimitCall, Raise, announces, asked_end};
pub use placed::{Copied, Copies, Stub};
use probe::LARGEST;
pub use probe::{Probe, Region};
pub use refusal::Refusal;
pub use stack::packs_stacks;
pub use syscalls::SyscallEvents;
pub use trap_handler::TrapHandler;

use hodo_abi::Span;
use hodo_codegen::native::frames::{self, Frames};
use hodo_codegen::native::masm::{Masm, fill};
use hodo_codegen::native::patch::{
    FAR_VIA, REACH, REACHES_ANYWHERE, before_stub, displace, trap_entry,
};
use hodo_codegen::native::stub::{self, Body, Layout, Records, Registers, Runtime, Scope};
use hodo_codegen::patch::{Leaving, dead};
use hodo_isa::Via;
use hodo_isa::native::cfa::Row;
use hodo_isa::native::relocate::RelocateError;
use hodo_plan::model::{EntryOnlyReason, LibcallSite, Mode, PlannedFunction, SitePlan, Tactic};
use hodo_trace::format::{
    BLOCK_WORD, BUCKET_SIZE, RECORD_SIZE, SHADOW_DISTANCE, WINDOW_SIZE, counters, file_header,
    record, tcb,
};

use crate::far::{far_site, lead_far};
use crate::later::write_later;
use crate::open_site::{Later, Open};
use crate::site_writer::{drop_users, lead, pad, pads};

/// Why a site is not changed whose stub no jump can reach.
const OUT_OF_REACH: &str = "no jump reaches its stub";

/// The runtime address of an island that is being filled, and its contents so far.
#[derive(Debug)]
pub struct Island {
    /// Runtime address of the first byte.
    pub base: u64,
    /// Maximum size of the region in bytes.
    pub capacity: u64,
    /// Contents so far, from `origin` on; an island begins with the agent's runtime.
    pub code: Vec<u8>,
    /// Offset of `code` in the island: what was written earlier is not held here.
    origin: usize,
    runtime: hodo_agent::Runtime,
    /// Where the parts of the frame tables are.
    frames: Frames,
    /// The stubs that were added, in ascending order.
    pub stubs: Vec<Stub>,
    /// Frame rows of the code that has no FDE yet.
    rows: Vec<Row>,
    /// Search table entries of the FDEs that were added, and how many there were before.
    table: Vec<[u8; 8]>,
    earlier: u32,
    /// The code that is called around system calls, if it was added.
    syscalls: Option<(u64, u64)>,
    /// The code that packs stacks for events, if it was added.
    stack: Option<u64>,
    /// Detours with system calls that have no FDE yet: where they begin, and the offsets and original addresses of the
    /// calls.
    detours: Option<(u32, Vec<(u32, u64)>)>,
    /// What stubs share.
    templates: stub::Templates,
}

/// How much of an island is in use.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Used {
    /// Bytes from the start to the end of the code.
    bytes: usize,
    /// Number of FDEs.
    frames: u32,
}

impl Used {
    /// Bytes from the start to the end of the code.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

/// Two runtime addresses: a thread at the first one continues at the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Lead {
    /// Where it is.
    pub at: u64,
    /// Where it continues.
    pub to: u64,
}

impl From<(u64, u64)> for Lead {
    fn from((at, to): (u64, u64)) -> Self {
        Self { at, to }
    }
}

/// What to write over the target's code.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Patches {
    /// Runtime addresses and bytes, in no particular order; they do not overlap.
    pub writes: Vec<(u64, Vec<u8>)>,
    /// Breakpoints, and the stubs to which they lead.
    pub traps: Vec<Lead>,
    /// Jumps at sites, and their stubs.
    pub sites: Vec<Lead>,
    /// Our instructions that read memory which may not be there, and where to continue then.
    pub faults: Vec<Lead>,
    /// Our code in the program or on the way there, except for the first instructions of sites: a thread in it is at no
    /// instruction of the program.
    pub ways: Vec<Span>,
    /// Displaced instructions that control leaves through our code outside islands. That code must stay as long as a
    /// thread is in these.
    pub leaving: Vec<Span>,
    /// Where displaced instructions are now, and the code after them.
    pub copies: Copies,
    /// Runtime addresses of two-byte counters that tell the program which of its own probes are wanted.
    pub semaphores: Vec<u64>,
    /// Those of the writes that belong to hooks.
    pub hooks: Vec<(u64, Vec<u8>)>,
    /// Sites that could not be built, by link-time address, and why.
    pub failed: Vec<(u64, Refusal)>,
}

/// The image being patched.
#[derive(Clone, Copy)]
pub struct Image<'a> {
    /// Runtime address minus link-time address.
    pub bias: u64,
    /// The code at a range of link-time addresses.
    pub code: &'a dyn Fn(std::ops::Range<u64>) -> Option<&'a [u8]>,
}

impl std::fmt::Debug for Image<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Image")
            .field("bias", &self.bias)
            .finish_non_exhaustive()
    }
}

/// How calls are recorded.
#[derive(Debug, Clone, Copy, Default)]
pub struct Recording {
    /// Record timestamps.
    pub timed: bool,
    /// Only while a filter function (`-F`) is open.
    pub filtered: bool,
    /// Record at most this many frames; no more than [`tcb::MAX_DEPTH`].
    pub depth: Option<u32>,
    /// Exits check that the frame is that of the entry.
    pub check_frames: bool,
    /// Calls shorter than this, in units of the time counter, are left out.
    pub shortest: Option<u32>,
    /// Offset in the events file of a byte that is 0 while no entry is recorded, if actions of probes change it.
    pub switch: Option<u32>,
}

/// A function to trace.
#[derive(Debug, Clone, Copy)]
pub struct Traced<'p> {
    /// Its plan.
    pub function: &'p PlannedFunction,
    /// Its id in the trace.
    pub id: u32,
    /// Whether it is a filter function (`-F`).
    pub filter: bool,
}

/// A call into a shared library to trace.
#[derive(Debug, Clone, Copy)]
pub struct TracedCall<'p> {
    /// Its plan.
    pub site: &'p LibcallSite,
    /// The callee's id in the trace.
    pub id: u32,
    /// Whether the callee is a filter function (`-F`).
    pub filter: bool,
}

/// What to change in a module.
#[derive(Debug, Clone, Copy)]
pub struct Sites<'p> {
    /// Its functions to trace.
    pub functions: &'p [Traced<'p>],
    /// Its calls into shared libraries to trace.
    pub libcalls: &'p [TracedCall<'p>],
    /// What to write in any case: see [`hodo_plan::model::Plan::nops`].
    pub nops: &'p [(u64, Vec<u8>)],
    /// Regions to move for probes. None overlaps a function's site.
    pub regions: &'p [Region<'p>],
}

/// Finds executable memory for [`PLACE`] bytes that begin in a range of runtime addresses.
pub type Places<'a> = dyn FnMut(std::ops::Range<u64>) -> Option<u64> + 'a;

/// The most bytes that are written to such memory.
pub const PLACE: u64 = hodo_codegen::native::patch::ROOM;

/// Offsets that stubs use, taken from the trace format.
#[must_use]
pub fn layout() -> Layout {
    let offset = |o: u64| u32::try_from(o).expect("offset in a control block");
    Layout {
        cursor: offset(tcb::CURSOR),
        limit: offset(tcb::LIMIT),
        epoch: offset(tcb::EPOCH),
        epoch_end: offset(tcb::EPOCH_END),
        shadow_lo: offset(tcb::SHADOW_LO),
        shadow_len: offset(tcb::SHADOW_LEN),
        window: offset(tcb::WINDOW),
        lowered_windows: offset(tcb::LOWERED_WINDOWS),
        handed_on: offset(tcb::HANDED_ON),
        window_size: offset(WINDOW_SIZE),
        islands: [
            (offset(tcb::ISLAND0_LO), offset(tcb::ISLAND0_LEN)),
            (offset(tcb::ISLAND1_LO), offset(tcb::ISLAND1_LEN)),
        ],
        inside: offset(tcb::INSIDE),
        depth: offset(tcb::DEPTH),
        frames: offset(tcb::FRAMES),
        chain_top: offset(tcb::CHAIN_TOP),
        chain_lo: offset(tcb::CHAIN_LO),
        chain_size: offset(counters::CHAIN_SIZE),
        shadow_distance: SHADOW_DISTANCE,
        to_shadow: offset(tcb::TO_SHADOW),
        block: BLOCK_WORD,
        atomics: machine::has_atomics(),
        record_size: offset(RECORD_SIZE),
        sp_shift: (record::SP_SHIFT - 4) as u8,
        sp_mask: ((1 << record::SP_BITS) - 1) << record::SP_SHIFT,
        bucket: offset(tcb::BUCKET),
        bucket_size: offset(BUCKET_SIZE),
        lost: offset(tcb::LOST),
        base: offset(tcb::BASE),
        owner: offset(file_header::OWNER) + 3,
    }
}

/// The records of a function.
fn records(id: u32, filter: bool, mode: Mode, recording: Recording) -> Records {
    Records {
        entry: id | record::ENTRY << record::KIND_SHIFT,
        exit: matches!(mode, Mode::Call).then_some(id | record::EXIT << record::KIND_SHIFT),
        tail: id | record::TAIL << record::KIND_SHIFT,
        timed: recording.timed,
        scope: match (recording.filtered, filter) {
            (false, _) => Scope::Any,
            (true, false) => Scope::Inside,
            (true, true) => Scope::Filter,
        },
        depth: recording.depth,
        check: recording.check_frames.then_some(id),
        shortest: recording.shortest,
        switch: recording.switch,
        placed: mode == Mode::EntryOnly(EntryOnlyReason::ReturnsTwice),
        hands_on: mode == Mode::EntryOnly(EntryOnlyReason::HandsReturnAddressOn),
        registers: Registers::default(),
    }
}

impl Island {
    /// An island at `base` that may grow to `capacity` bytes; it starts with the agent's runtime. `signal_return`: the
    /// address to which the kernel lets signal handlers return; 0 if handlers name it themselves.
    #[must_use]
    pub fn new(base: u64, capacity: u64, signal_return: u64) -> Self {
        let mut island = Self::bare(base, capacity, signal_return);
        let runtime = island.runtime;
        let entries = agent_entries(&runtime);
        let entry = frames::agent(&mut island.code, &island.frames, runtime.code, &entries);
        island.table.push(entry);
        island
    }

    /// An island without the agent's frame table: unwinders cannot find their way there.
    #[must_use]
    pub fn bare(base: u64, capacity: u64, signal_return: u64) -> Self {
        let runtime = hodo_agent::runtime();
        let mut code = runtime.code.to_vec();
        let len = code.len().next_multiple_of(64);
        fill(&mut code, len);
        let at = u32::try_from(code.len()).expect("the agent is small");
        let size = u32::try_from(capacity).expect("an island is smaller than 4 GiB");
        let mut frames = frames::build(at, size, SHADOW_DISTANCE, signal_return);
        code.append(&mut frames.bytes);
        Self {
            base,
            capacity,
            code,
            origin: 0,
            runtime,
            frames,
            rows: Vec::new(),
            table: Vec::new(),
            earlier: 0,
            syscalls: None,
            stack: None,
            detours: None,
            templates: stub::Templates::new(layout()),
            stubs: Vec::new(),
        }
    }

    /// The island as it was after earlier use. The contents of the stubs are not known any more.
    #[must_use]
    pub fn resume(base: u64, capacity: u64, used: Used) -> Self {
        Self::resume_in(Vec::new(), base, capacity, used)
    }

    /// The island as it was after earlier use, in the memory of an earlier island's code: see [`Self::into_code`].
    #[must_use]
    pub fn resume_in(mut memory: Vec<u8>, base: u64, capacity: u64, used: Used) -> Self {
        // The tables are already there, with the same size.
        let mut island = Self::bare(base, capacity, 0);
        memory.clear();
        island.code = memory;
        island.origin = used.bytes;
        island.frames.shift(used.bytes as u32);
        island.earlier = used.frames;
        island
    }

    /// The memory of its code, after the code has been written.
    #[must_use]
    pub fn into_code(self) -> Vec<u8> {
        self.code
    }

    /// How much is in use now.
    #[must_use]
    pub fn used(&self) -> Used {
        Used {
            bytes: self.origin + self.code.len(),
            frames: self.earlier + self.table.len() as u32,
        }
    }

    /// What to write since `since`, which was [`Self::resume`]'s state or the very beginning: runtime addresses and
    /// bytes. In this order, running threads can unwind in the meantime.
    #[must_use]
    pub fn added(&self, since: Used) -> [(u64, Cow<'_, [u8]>); 3] {
        let header = self.base + self.header() as u64;
        let count = self.used().frames;
        [
            (
                self.base + since.bytes as u64,
                Cow::Borrowed(&self.code[since.bytes - self.origin..]),
            ),
            (
                header + 12 + u64::from(self.earlier) * 8,
                self.table.concat().into(),
            ),
            (header, frames::header(&self.frames, count).to_vec().into()),
        ]
    }

    /// Address of the first byte of `code`.
    fn start(&self) -> u64 {
        self.base + self.origin as u64
    }

    /// Offset of the search table in the island.
    fn header(&self) -> usize {
        self.frames.header.wrapping_add(self.origin as u32) as usize
    }

    /// Describes the frames of what was added since the last call.
    fn close_group(&mut self) {
        if !self.rows.is_empty() {
            let entry = frames::group(&mut self.code, &self.frames, &self.rows);
            self.table.push(entry);
            self.rows.clear();
        }
    }

    /// Checks that there is room for this many more bytes of code, and FDEs for it.
    fn check_room(&self, bytes: usize) -> Result<(), Refusal> {
        let table = 12 + (self.used().frames as usize + 2) * 8;
        let limit = self.header();
        let room = self.capacity as usize - limit;
        if self.origin + self.code.len() + bytes > limit || table > room {
            return Err(Refusal::Full);
        }
        Ok(())
    }

    /// Address of `syscall; int3` in the island.
    #[must_use]
    pub fn syscall(&self) -> u64 {
        self.base + self.runtime.syscall as u64
    }

    /// Address of `ret` in the island.
    #[must_use]
    pub fn ret(&self) -> u64 {
        self.base + self.runtime.ret as u64
    }

    /// Address of the next byte.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.start() + self.code.len() as u64
    }

    fn runtime_addresses(&self, timed: bool) -> Runtime {
        let at = |offset: usize| self.base + offset as u64;
        Runtime {
            epoch: at(self.runtime.epoch),
            chunk: at(self.runtime.chunk),
            shadow: at(self.runtime.shadow),
            window: at(self.runtime.window),
            frame: at(self.runtime.frame),
            tails: at(self.runtime.tails),
            tail: at(self.runtime.tail),
            syscalls: self.syscalls,
            stack: self.stack,
            record: at(if timed {
                self.runtime.record
            } else {
                self.runtime.record_untimed
            }),
        }
    }

    /// Adds a stub with the given body, which comes from `original`, and returns its address. `faults`: see
    /// [`Patches::faults`].
    fn stub<E: std::fmt::Display>(
        &mut self,
        records: &Records,
        original: u64,
        faults: &mut Vec<Lead>,
        body: impl FnOnce(u64) -> Result<Body, E>,
    ) -> Result<u64, Refusal> {
        self.check_room(4096)?;
        let runtime = self.runtime_addresses(records.timed);
        let before = (self.code.len(), self.rows.len());
        let mut code = Masm::new(&mut self.code, self.base + self.origin as u64);
        code.align(16);
        let rows = before_stub(&mut code, records.registers.via, records.registers.signing);
        self.rows.extend(rows);
        let at = code.here();
        let entry = trap_entry(at, records.registers.via);
        let rows = &mut self.rows;
        let done = (self.templates).emit(&mut code, &runtime, records, rows, body);
        match done {
            Ok(emitted) => {
                faults.extend(emitted.faults.into_iter().map(Lead::from));
                self.stubs.push(Stub {
                    start: at,
                    body: emitted.body.start,
                    slow: emitted.body.end,
                    original,
                    entry,
                });
            }
            Err(error) => {
                self.code.truncate(before.0);
                self.rows.truncate(before.1);
                return Err(error.to_string().into());
            }
        }
        let group = self.rows.first().map_or(0, |row| row.at);
        if self.code.len() as u32 - group >= frames::GROUP {
            self.close_group();
        }
        Ok(at)
    }

    /// Adds the stubs of a module's functions and of its calls into shared libraries, and the bytes to write over their
    /// sites. `nops` are written, too, except among displaced instructions.
    pub fn add_module(
        &mut self,
        sites: Sites<'_>,
        image: Image<'_>,
        recording: Recording,
        places: &mut Places<'_>,
        patches: &mut Patches,
    ) {
        let (open, hosts) = self.build_module(sites, image, recording, places, patches);
        write_later(open, &hosts, image, places, patches);
    }

    /// Adds a module without the sites for which memory has to be found; these are returned, together with the
    /// functions that are patched.
    fn build_module(
        &mut self,
        sites: Sites<'_>,
        image: Image<'_>,
        recording: Recording,
        places: &mut Places<'_>,
        patches: &mut Patches,
    ) -> (Vec<Open>, HashSet<u64>) {
        let Sites {
            functions,
            libcalls,
            nops,
            regions,
        } = sites;
        // If a function's patch displaces calls, they are changed in the copy that runs in the stub.
        let ends = libcalls::ends(functions, regions);
        let mut calls = self.libcall_writes(libcalls, &ends, image, recording, patches);
        let mut nops: BTreeMap<u64, Vec<u8>> = nops.iter().cloned().collect();
        let mut open = Vec::new();
        let mut hosts = HashSet::new();
        for traced in functions {
            let Ok(site) = &traced.function.outcome else {
                continue;
            };
            let records = records(traced.id, traced.filter, site.mode, recording);
            let changes = [&calls, &nops];
            let (far, site) = match self.here(site, image, &changes) {
                Ok(here) => here,
                Err(reason) => {
                    patches.failed.push((traced.function.addr, reason));
                    continue;
                }
            };
            let site = &*site;
            match self.add_site((site, &records), image, &changes, places, patches) {
                Ok((stub, later)) => {
                    open.extend(later.map(|later| Open::new(site, later, stub)));
                    if !far {
                        hosts.insert(traced.function.addr);
                    }
                    hide(site, [&mut calls, &mut nops]);
                }
                Err(reason) => patches.failed.push((traced.function.addr, reason)),
            }
        }
        let (mut built, mut lost) = (Vec::new(), Vec::new());
        for region in regions {
            let before = patches.writes.len();
            let (site, changes) = (region.site, [&calls, &nops]);
            match self.add_region((region, places), image, recording, &changes, patches) {
                Ok(later) => built.push((site, before..patches.writes.len(), later)),
                Err(reason) => {
                    patches.failed.push((site.patch, reason));
                    lost.push(site);
                }
            }
        }
        drop_users(lost, &mut built, image.bias, patches);
        for (site, _, later) in built {
            open.extend(later.map(|later| *later));
            hide(site, [&mut calls, &mut nops]);
        }
        self.close_group();
        self.close_detours();
        for (at, bytes) in calls.into_iter().chain(nops) {
            let at = at.wrapping_add(image.bias);
            // It may be more than one instruction.
            patches.add_way(at + 1..at + bytes.len() as u64);
            patches.writes.push((at, bytes));
        }
        (open, hosts)
    }

    /// The displaced instructions of a site, with the changes that belong to them.
    fn displaced(
        site: &SitePlan,
        image: Image<'_>,
        changes: &[&BTreeMap<u64, Vec<u8>>],
    ) -> Result<Vec<u8>, Refusal> {
        let mut code = (image.code)(site.displaced.clone())
            .ok_or("the displaced instructions are not in the file")?
            .to_vec();
        for (at, bytes) in changes.iter().flat_map(|c| c.range(site.displaced.clone())) {
            let at = (at - site.displaced.start) as usize;
            let len = bytes.len().min(code.len() - at);
            code[at..at + len].copy_from_slice(&bytes[..len]);
        }
        Ok(code)
    }

    /// The plan of a site, as it is for this island, and whether the island is far away.
    fn here<'s>(
        &self,
        site: &'s SitePlan,
        image: Image<'_>,
        changes: &[&BTreeMap<u64, Vec<u8>>],
    ) -> Result<(bool, Cow<'s, SitePlan>), Refusal> {
        match self.check_reach(site.patch.wrapping_add(image.bias)) {
            Ok(()) => Ok((false, Cow::Borrowed(site))),
            Err(reason) if !REACHES_ANYWHERE => Err(reason),
            Err(_) => {
                let code = Self::displaced(site, image, changes)?;
                Ok((true, far_site(site, &code)))
            }
        }
    }

    fn add_site(
        &mut self,
        (site, records): (&SitePlan, &Records),
        image: Image<'_>,
        changes: &[&BTreeMap<u64, Vec<u8>>],
        places: &mut Places<'_>,
        patches: &mut Patches,
    ) -> Result<(u64, Option<Later>), Refusal> {
        let code = Self::displaced(site, image, changes)?;
        let from = site.displaced.start.wrapping_add(image.bias);
        let resume = site.displaced.end.wrapping_add(image.bias);
        let at = site.patch.wrapping_add(image.bias);
        let reach = self.check_reach(at);
        let (mut copies, mut exits) = (Vec::new(), Vec::new());
        let mut records = *records;
        records.registers = registers(site);
        let spare = &site.spare;
        let pads = pads(site, image.bias, places)?;
        let leaving = Leaving {
            dead: &|at| dead(&spare.dead, at.wrapping_sub(image.bias)),
            back: spare.back,
            pads: &|at| pad(&pads, at.wrapping_sub(image.bias)),
            signing: site.signing,
        };
        let stub = self.stub(&records, from, &mut patches.faults, |at| {
            let moved = displace(&code, (from, resume), at, leaving)?;
            copies = copied(&moved.copies).collect();
            exits = moved.exits;
            Ok::<_, RelocateError>(moved.body)
        })?;
        let later = match reach {
            Ok(()) => lead(site, &pads, at, stub, patches)?,
            Err(_) => lead_far(site, &pads, at, stub, patches)?,
        };
        if matches!(spare.back, Via::Kept(_)) || !pads.is_empty() {
            let body = self
                .stubs
                .last()
                .map(|stub| Span::from(stub.body..stub.slow));
            patches.leaving.extend(body);
        }
        patches.copies.extend(copies);
        exits.into_iter().for_each(|way| patches.add_way(way));
        Ok((stub, later))
    }

    /// Checks that the island, or what is added to it next, and an address can reach each other.
    fn check_reach(&self, at: u64) -> Result<(), Refusal> {
        self.check_within(at, REACH)
    }

    /// Checks that the whole island is at most this far away from an address. Where islands can be larger than what a
    /// jump reaches, it is enough if that holds for what is added next.
    fn check_within(&self, at: u64, reach: u64) -> Result<(), Refusal> {
        let (start, end) = match FAR_VIA {
            Some(_) => (self.end(), self.end() + LARGEST as u64),
            None => (self.base, self.base + self.capacity),
        };
        if at.abs_diff(start) < reach && at.abs_diff(end) < reach {
            Ok(())
        } else {
            Err(format!("there is no island within {}", in_words(reach)).into())
        }
    }
}

/// How a stub may use registers at a site.
pub(crate) fn registers(site: &SitePlan) -> Registers {
    Registers {
        free: site.free,
        free_after: site.free_after,
        via: match site.tactic {
            Tactic::Trap => Via::Nothing,
            _ => site.via,
        },
        signing: site.signing,
    }
}

/// A distance in the unit that people use for it, rounded up.
fn in_words(bytes: u64) -> String {
    match bytes.div_ceil(1 << 20) {
        mib if mib < 1024 => format!("{mib} MiB"),
        mib => format!("{} GiB", mib / 1024),
    }
}

/// Instructions and their copies.
pub(crate) fn copied(copies: &[(u64, u64)]) -> impl Iterator<Item = Copied> {
    copies.iter().map(|&(original, copy)| Copied {
        original,
        before: copy,
        copy,
        call: false,
        leads: false,
    })
}

/// Changes within a site are made in its displaced instructions instead.
fn hide(site: &SitePlan, changes: [&mut BTreeMap<u64, Vec<u8>>; 2]) {
    let from = site.displaced.start.min(site.patch);
    let patch_end = site.patch + u64::from(site.patch_len);
    let to = site.displaced.end.max(patch_end);
    for changes in changes {
        let inside: Vec<u64> = changes.range(from..to).map(|(&at, _)| at).collect();
        for at in inside {
            changes.remove(&at);
        }
    }
}

/// The offsets of the agent's functions.
fn agent_entries(runtime: &hodo_agent::Runtime) -> [u32; 9] {
    [
        runtime.epoch,
        runtime.chunk,
        runtime.shadow,
        runtime.window,
        runtime.record,
        runtime.record_untimed,
        runtime.frame,
        runtime.tails,
        runtime.tail,
    ]
    .map(|at| at as u32)
}
