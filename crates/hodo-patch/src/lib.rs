//! From a plan to bytes: the code of an island, and what is written over the sites that lead there.
//!
//! Pure: nothing here touches a process. Addresses of the image are link-time addresses in the plan and runtime
//! addresses (link-time plus bias) in everything that this crate returns.
#![forbid(unsafe_code)]

mod hook;

pub use hook::Hook;

use hodo_arch::x86_64::emit::Code;
use hodo_arch::x86_64::frames::{self, Frames};
use hodo_arch::x86_64::relocate::{RelocateError, relocate_mapped};
use hodo_arch::x86_64::stub::{self, Layout, Records, Runtime, Scope};
use hodo_plan::model::{Extra, LibcallForm, LibcallSite, Mode, PlannedFunction, SitePlan, Tactic};
use hodo_trace::format::{RECORD_SIZE, SHADOW_DISTANCE, record, tcb};

/// The runtime code address of an island being filled, and its content so far.
#[derive(Debug)]
pub struct Island {
    /// Runtime address of the first byte.
    pub base: u64,
    /// Bytes that the region holds at most.
    pub capacity: u64,
    /// Content so far; the agent's runtime comes first.
    pub code: Vec<u8>,
    runtime: hodo_agent::Runtime,
    /// Offsets in `code` of the parts of the frame tables.
    frames: Frames,
    /// Free room for hooks: offsets in `code`.
    hooks: std::ops::Range<usize>,
}

/// What is to be written over the target's code.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Patches {
    /// Runtime addresses and bytes, in no order; they do not overlap.
    pub writes: Vec<(u64, Vec<u8>)>,
    /// Runtime address of each breakpoint and of the stub that stands for it.
    pub traps: Vec<(u64, u64)>,
    /// Sites that could not be built after all, by link-time address, and why.
    pub failed: Vec<(u64, String)>,
}

/// The image that is patched.
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
    /// With timestamps.
    pub timed: bool,
    /// Only while a filter function (`-F`) is open.
    pub filtered: bool,
    /// At most so many frames deep; no more than [`tcb::MAX_DEPTH`].
    pub depth: Option<u32>,
    /// Calls shorter than this, in units of the time counter, are left out.
    pub shortest: Option<u32>,
}

/// A function that is to be traced.
#[derive(Debug, Clone, Copy)]
pub struct Traced<'p> {
    /// Its plan.
    pub function: &'p PlannedFunction,
    /// Its id in the trace.
    pub id: u32,
    /// Whether it is a filter function (`-F`).
    pub filter: bool,
}

/// A call into a shared library that is to be traced.
#[derive(Debug, Clone, Copy)]
pub struct TracedCall<'p> {
    /// Its plan.
    pub site: &'p LibcallSite,
    /// The callee's id in the trace.
    pub id: u32,
    /// Whether the callee is a filter function (`-F`).
    pub filter: bool,
}

/// Offsets that stubs use, taken from the trace format.
#[must_use]
pub fn layout() -> Layout {
    let offset = |o: u64| u32::try_from(o).expect("offset in a control block");
    Layout {
        cursor: offset(tcb::CURSOR),
        limit: offset(tcb::LIMIT),
        epoch: offset(tcb::EPOCH),
        shadow_lo: offset(tcb::SHADOW_LO),
        shadow_len: offset(tcb::SHADOW_LEN),
        islands: [
            (offset(tcb::ISLAND0_LO), offset(tcb::ISLAND0_LEN)),
            (offset(tcb::ISLAND1_LO), offset(tcb::ISLAND1_LEN)),
        ],
        inside: offset(tcb::INSIDE),
        depth: offset(tcb::DEPTH),
        frames: offset(tcb::FRAMES),
        shadow_distance: SHADOW_DISTANCE,
        record_size: offset(RECORD_SIZE),
        sp_shift: (record::SP_SHIFT - 4) as u8,
        sp_mask: ((1 << record::SP_BITS) - 1) << record::SP_SHIFT,
    }
}

/// The record halves of a function.
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
        shortest: recording.shortest,
    }
}

impl Island {
    /// An island at `base` that may grow to `capacity` bytes; it starts with the agent's runtime.
    #[must_use]
    pub fn new(base: u64, capacity: u64) -> Self {
        let runtime = hodo_agent::runtime();
        let mut code = runtime.code.to_vec();
        code.resize(code.len().next_multiple_of(64), 0xCC);
        let at = code.len();
        let hooks = at + frames::SIZE..at + frames::SIZE + hook::ROOM;
        let offset = |o: usize| u32::try_from(o).expect("the start of an island is small");
        let size = u32::try_from(capacity).expect("an island is smaller than 4 GiB");
        let hook_code = offset(hooks.start)..offset(hooks.end);
        let mut tables = frames::build(offset(at), hook_code, size, SHADOW_DISTANCE);
        code.append(&mut tables.bytes);
        code.resize(hooks.end, 0xCC);
        tables.header += at;
        tables.program_headers += at;
        tables.name += at;
        Self {
            base,
            capacity,
            code,
            runtime,
            frames: tables,
            hooks,
        }
    }

    /// The island as it was after an earlier use: `hooks` is where the next hook goes, `used` how many bytes it has.
    /// The content of the stubs is not known any more; write only what is added.
    #[must_use]
    pub fn resume(base: u64, capacity: u64, used: usize, hooks: usize) -> Self {
        let mut island = Self::new(base, capacity);
        island.code.resize(used, 0xCC);
        island.hooks.start = hooks;
        island
    }

    /// The free room for hooks: offsets in `code`.
    #[must_use]
    pub fn hooks(&self) -> std::ops::Range<usize> {
        self.hooks.clone()
    }

    /// Address of an instruction `syscall; int3` in the island.
    #[must_use]
    pub fn syscall(&self) -> u64 {
        self.base + self.runtime.syscall as u64
    }

    /// Address of the next byte.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.base + self.code.len() as u64
    }

    fn runtime_addresses(&self, timed: bool) -> Runtime {
        let at = |offset: usize| self.base + offset as u64;
        Runtime {
            epoch: at(self.runtime.epoch),
            chunk: at(self.runtime.chunk),
            shadow: at(self.runtime.shadow),
            record: at(if timed {
                self.runtime.record
            } else {
                self.runtime.record_untimed
            }),
        }
    }

    /// Adds a stub with the given body and returns its address.
    fn stub(
        &mut self,
        records: &Records,
        body: impl FnOnce(u64) -> Result<(Vec<u8>, Option<u64>), RelocateError>,
    ) -> Result<u64, String> {
        if self.code.len() as u64 + 1024 > self.capacity {
            return Err("the island is full".to_owned());
        }
        let runtime = self.runtime_addresses(records.timed);
        let before = self.code.len();
        let mut code = Code::new(&mut self.code, self.base);
        code.align(16);
        let at = code.here();
        let done = stub::emit_stub(&mut code, &layout(), &runtime, records, body);
        match done {
            Ok(_) => Ok(at),
            Err(error) => {
                self.code.truncate(before);
                Err(error.to_string())
            }
        }
    }

    /// Adds the stubs of functions and tells what to write over their sites.
    pub fn add_functions<'p>(
        &mut self,
        functions: impl IntoIterator<Item = Traced<'p>>,
        image: Image<'_>,
        recording: Recording,
        patches: &mut Patches,
    ) {
        for traced in functions {
            let Ok(site) = &traced.function.outcome else {
                continue;
            };
            let records = records(traced.id, traced.filter, site.mode, recording);
            if let Err(reason) = self.add_site(site, &records, image, patches) {
                patches.failed.push((traced.function.addr, reason));
            }
        }
    }

    fn add_site(
        &mut self,
        site: &SitePlan,
        records: &Records,
        image: Image<'_>,
        patches: &mut Patches,
    ) -> Result<(), String> {
        if site.tactic == Tactic::Pun {
            return Err("punned sites are not built yet".to_owned());
        }
        let original = (image.code)(site.displaced.clone())
            .ok_or_else(|| "the displaced instructions are not in the file".to_owned())?;
        let from = site.displaced.start.wrapping_add(image.bias);
        let resume = site.displaced.end.wrapping_add(image.bias);
        let stub = self.stub(records, |at| {
            let moved = relocate_mapped(original, from, at)?;
            Ok((moved.bytes, moved.falls_through.then_some(resume)))
        })?;
        let at = site.patch.wrapping_add(image.bias);
        match (site.tactic, &site.extra) {
            (Tactic::Trap, _) => {
                patches.writes.push((at, vec![0xCC]));
                patches.traps.push((at, stub));
            }
            (Tactic::Hop, Extra::HopSlot(slot)) => {
                let slot = slot.wrapping_add(image.bias);
                let hop = i8::try_from(slot.wrapping_sub(at + 2).cast_signed())
                    .map_err(|_| "the hop is too far".to_owned())?;
                patches.writes.push((at, vec![0xEB, hop.cast_unsigned()]));
                patches.writes.push((slot, stub::jump(slot, stub)));
            }
            _ => patches.writes.push((at, stub::jump(at, stub))),
        }
        Ok(())
    }

    /// Adds the stubs of calls into shared libraries and tells what to write over the sites.
    pub fn add_libcalls<'p>(
        &mut self,
        libcalls: impl IntoIterator<Item = TracedCall<'p>>,
        image: Image<'_>,
        recording: Recording,
        patches: &mut Patches,
    ) {
        // Call sites of one GOT slot share a stub.
        let mut shared = std::collections::HashMap::new();
        for TracedCall { site, id, filter } in libcalls {
            let at = site.patch.wrapping_add(image.bias);
            let got = site.got.wrapping_add(image.bias);
            let records = records(id, filter, site.mode, recording);
            let stub = match shared.get(&(got, id)) {
                Some(&stub) => Ok(stub),
                None => self.stub(&records, |body| Ok((indirect_jump(body, got), None))),
            };
            match stub {
                Ok(stub) => {
                    shared.insert((got, id), stub);
                    let bytes = match site.form {
                        // The return address must stay what it was: a prefix without effect makes up the sixth byte.
                        LibcallForm::Call => [&[0x67], &stub::call(at + 1, stub)[..]].concat(),
                        LibcallForm::Plt | LibcallForm::Jump => stub::jump(at, stub),
                    };
                    patches.writes.push((at, bytes));
                }
                Err(reason) => patches.failed.push((site.patch, reason)),
            }
        }
    }
}

/// `jmp *slot(%rip)` at `at`.
fn indirect_jump(at: u64, slot: u64) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(6);
    Code::new(&mut bytes, at).branch(&[0xFF, 0x25], slot);
    bytes
}
