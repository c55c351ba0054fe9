//! A process that records itself.

use std::collections::HashSet;
use std::ffi::c_void;
use std::ops::Range;
use std::path::PathBuf;
use std::ptr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use hodo_isa::{Signing, Via};
use hodo_patch::{Hook, Image, Island, Lead, PLACE, Patches, Recording, Sites, Traced};
use hodo_plan::model::{Extra, Mode, PlannedFunction, SitePlan, Spare, Tactic};
use hodo_trace::Trace;
use hodo_trace::format::{
    BLOCK_WORD, BUCKET, CHUNK_HEADER_SIZE, CHUNK_SIZE, CONTROL_SIZE, SHADOW_DISTANCE, chunk_header,
    file_header, record, tcb,
};
use hodo_trace::testing::Builder;

use crate::isa;

/// Bytes of an island.
const ISLAND: u64 = 1 << 20;
const PAGE: usize = 4096;

/// Only one test at a time patches functions of this program.
static ALONE: AtomicBool = AtomicBool::new(false);

/// What is recorded for one function.
#[derive(Debug, Clone)]
pub struct Site {
    pub name: &'static str,
    pub plan: SitePlan,
    pub filter: bool,
}

/// A site at the beginning of a function that displaces this many bytes; the jump uses `via`.
pub fn site(name: &'static str, function: usize, displaced: u64, via: Via) -> Site {
    let at = function as u64;
    Site {
        name,
        filter: false,
        plan: SitePlan {
            tactic: Tactic::Jump,
            mode: Mode::Call,
            patch: at,
            patch_len: hodo_isa::NATIVE.jump(via).len as u8,
            displaced: at..at + displaced,
            extra: Extra::None,
            via,
            signing: Signing::None,
            free: 0,
            free_after: 0,
            spare: Spare {
                dead: (at..at + displaced)
                    .step_by(2)
                    .map(|at| (at, isa::DEAD))
                    .collect(),
                back: via,
                pads: Vec::new(),
            },
            far: None,
        },
    }
}

/// The address of a function.
pub fn address(function: *const ()) -> usize {
    function.expose_provenance()
}

/// Options for records with times.
pub fn timed() -> Recording {
    Recording {
        timed: true,
        ..Recording::default()
    }
}

impl Site {
    /// Sets the registers that are free before the body and after it.
    pub fn free(mut self, before: u32, after: u32) -> Self {
        self.plan.free = before;
        self.plan.free_after = after;
        self
    }
}

/// One record: its kind and function, bits of the stack pointer, time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Record {
    pub kind: u32,
    pub id: u32,
    pub sp: u32,
    pub time: u32,
}

/// The recording of one test.
pub struct World {
    mapped: Vec<(u64, u64)>,
    events: u64,
    chunks: u64,
    island: Island,
    second: Option<Island>,
    recording: Recording,
    names: Vec<String>,
    /// Ids of functions whose exits are not recorded.
    without_exit: HashSet<u32>,
    undo: Vec<(u64, Vec<u8>)>,
    threads: u64,
    /// What was written last.
    pub patches: Patches,
    /// Whether memory within reach of short jumps can be mapped.
    pub has_places: bool,
}

fn map(at: u64, len: u64, executable: bool) -> Option<u64> {
    let protection = match executable {
        true => libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC,
        false => libc::PROT_READ | libc::PROT_WRITE,
    };
    let fixed = if at == 0 {
        0
    } else {
        libc::MAP_FIXED_NOREPLACE
    };
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | fixed;
    // SAFETY: it maps new memory, or none.
    let got = unsafe { libc::mmap(at as *mut c_void, len as usize, protection, flags, -1, 0) };
    if got == libc::MAP_FAILED {
        return None;
    }
    if at != 0 && got.addr() as u64 != at {
        // The emulator does not know that the address is mandatory.
        unmap(got.addr() as u64, len);
        return None;
    }
    Some(got.expose_provenance() as u64)
}

/// Unmaps memory.
pub fn unmap(at: u64, len: u64) {
    let at = ptr::with_exposed_provenance_mut::<c_void>(at as usize);
    // SAFETY: the memory was mapped here, and nobody uses it any more.
    let result = unsafe { libc::munmap(at, len as usize) };
    assert_eq!(result, 0);
}

/// Maps memory for an island near an address.
fn near(here: u64, len: u64) -> u64 {
    let here = here & !0xFFFF;
    (1..400)
        .flat_map(|step| [here.wrapping_sub(step << 22), here + (step << 22)])
        .find_map(|at| map(at, len, true))
        .expect("memory near the program")
}

/// The word that holds the address of a thread's control block.
fn block_word() -> *mut u64 {
    let block = isa::thread_pointer().wrapping_add_signed(BLOCK_WORD as isize);
    ptr::with_exposed_provenance_mut(block)
}

/// Writes code of this program in a way that the emulator notices.
pub fn write_code(at: u64, bytes: &[u8]) {
    let start = at as usize & !(PAGE - 1);
    let len = (at as usize + bytes.len()).next_multiple_of(PAGE) - start;
    let page = ptr::with_exposed_provenance_mut::<c_void>(start);
    // SAFETY: these are pages of code, which stay executable; whole patches are written that no thread is executing.
    unsafe {
        let all = libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC;
        assert_eq!(libc::mprotect(page, len, all), 0);
        let to = ptr::with_exposed_provenance_mut::<u8>(at as usize);
        ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len());
        assert_eq!(
            libc::mprotect(page, len, libc::PROT_READ | libc::PROT_EXEC),
            0
        );
    }
    isa::flush(start, start + len);
}

fn read(at: u64, len: usize) -> &'static [u8] {
    // SAFETY: it is code of this program, or memory of a world.
    unsafe { std::slice::from_raw_parts(ptr::with_exposed_provenance(at as usize), len) }
}

impl World {
    /// Makes a world with this many chunks.
    pub fn new(recording: Recording, chunks: u64) -> Self {
        Self::near_to(recording, chunks, address(leave as *const ()) as u64)
    }

    /// Makes one with an island near an address.
    pub fn near_to(recording: Recording, chunks: u64, here: u64) -> Self {
        Self::with_island(recording, chunks, 0, || near(here, ISLAND))
    }

    /// Makes one in which signal handlers return to an address.
    pub fn with_signals(recording: Recording, chunks: u64, signal_return: u64) -> Self {
        let here = address(leave as *const ()) as u64;
        Self::with_island(recording, chunks, signal_return, || near(here, ISLAND))
    }

    /// Makes one with an island that no jump of the program reaches.
    pub fn far(recording: Recording, chunks: u64) -> Self {
        Self::far_from(
            recording,
            chunks,
            address(leave as *const ()) as u64,
            1 << 32,
        )
    }

    /// Makes one with an island this far from an address, or farther.
    pub fn far_from(recording: Recording, chunks: u64, here: u64, distance: u64) -> Self {
        let here = here & !0xFFFF;
        let base = || {
            (0..100)
                .find_map(|step| map(here + distance + (step << 28), ISLAND, true))
                .expect("memory far from the program")
        };
        Self::with_island(recording, chunks, 0, base)
    }

    fn with_island(
        recording: Recording,
        chunks: u64,
        signal_return: u64,
        base: impl Fn() -> u64,
    ) -> Self {
        while ALONE.swap(true, Ordering::AcqRel) {
            std::thread::sleep(Duration::from_millis(1));
        }
        let len = CONTROL_SIZE + (chunks + 1) * CHUNK_SIZE;
        let mapped = map(0, len, false).expect("events");
        // Chunks are aligned as they are in the file.
        let events = mapped.next_multiple_of(CHUNK_SIZE);
        let base = base();
        let island = Island::new(base, ISLAND, signal_return);
        let world = Self {
            mapped: vec![(mapped, len), (base, ISLAND)],
            events,
            chunks,
            island,
            second: None,
            recording,
            names: Vec::new(),
            without_exit: HashSet::new(),
            undo: Vec::new(),
            threads: 0,
            patches: Patches::default(),
            has_places: true,
        };
        world.put(events + file_header::MAX_CHUNKS, chunks);
        world.put(events + file_header::ROOM_CHUNKS, chunks);
        world
    }

    pub fn put(&self, at: u64, value: u64) {
        // SAFETY: memory of this world.
        unsafe { ptr::with_exposed_provenance_mut::<u64>(at as usize).write_volatile(value) }
    }

    pub fn get(&self, at: u64) -> u64 {
        // SAFETY: memory of this world.
        unsafe { ptr::with_exposed_provenance::<u64>(at as usize).read_volatile() }
    }

    /// Switches recording on or off by a byte of the events file.
    pub fn switch(&self, at: u32, on: bool) {
        let at = self.events + u64::from(at);
        // SAFETY: memory of this world.
        unsafe { ptr::with_exposed_provenance_mut::<u8>(at as usize).write_volatile(u8::from(on)) }
    }

    /// Makes a control block for the current thread, whose stack has a shadow. Returns its address.
    pub fn enter(&mut self, task: u32) -> u64 {
        let here = (&raw const task).addr() as u64;
        let lo = (here - (1 << 20)) & !0xFFFF;
        let len = (here + (1 << 16)).next_multiple_of(1 << 16) - lo;
        // The list of what the agent maps comes after it. The distance is no multiple of a page.
        let at = (lo - SHADOW_DISTANCE) & !0xFFF;
        let whole = (at, len + 8192);
        // Threads may reuse the stacks of others that have ended.
        if !self.mapped.contains(&whole) {
            map(whole.0, whole.1, false).expect("a shadow");
            self.mapped.push(whole);
        }
        let block = self.enter_without_shadow(task);
        self.put(block + tcb::REGION0_LO, lo);
        self.put(block + tcb::REGION0_LEN, len);
        block
    }

    /// Makes a control block for the current thread. Returns its address.
    pub fn enter_without_shadow(&mut self, task: u32) -> u64 {
        let block = self.events + (tcb::FIRST + self.threads) * tcb::SIZE;
        self.threads += 1;
        let epoch = isa::time() >> 32;
        let words = [
            (tcb::EPOCH, epoch | u64::from(task) << 32),
            (tcb::EPOCH_END, (epoch + 1) << 32),
            (tcb::TO_SHADOW, SHADOW_DISTANCE.wrapping_neg()),
            (tcb::ISLAND0_LO, self.island.base),
            (tcb::ISLAND0_LEN, ISLAND),
            (tcb::CHAIN_TOP, u64::MAX),
            (tcb::BASE, self.events),
            (tcb::BUCKET, self.events + BUCKET),
            (tcb::CURSOR, self.events + BUCKET),
            (tcb::LIMIT, self.events + BUCKET),
            (tcb::MAX_CHUNKS, self.chunks),
        ];
        for (offset, value) in words {
            self.put(block + offset, value);
        }
        // SAFETY: the word belongs to the thread, and glibc does not use it.
        unsafe { block_word().write(block) };
        block
    }

    /// Traces functions; their ids begin with 1.
    pub fn trace(&mut self, sites: &[Site]) {
        self.try_trace(sites);
        assert_eq!(self.patches.failed, []);
    }

    /// The same, if some may fail.
    pub fn try_trace(&mut self, sites: &[Site]) {
        let ids = self.names(sites.iter().map(|site| site.name.to_owned()));
        let functions: Vec<_> = sites
            .iter()
            .map(|site| PlannedFunction {
                name: site.name.to_owned(),
                addr: site.plan.patch,
                size: 0,
                outcome: Ok(site.plan.clone()),
            })
            .collect();
        let traced: Vec<_> = functions
            .iter()
            .zip(ids)
            .zip(sites)
            .map(|((function, id), site)| Traced {
                function,
                id,
                filter: site.filter,
            })
            .collect();
        let sites = Sites {
            functions: &traced,
            libcalls: &[],
            nops: &[],
            regions: &[],
        };
        self.add_own(sites);
    }

    /// Patches code of this program, as far as that is possible.
    pub fn add_own(&mut self, sites: Sites<'_>) {
        let code = |range: Range<u64>| Some(read(range.start, (range.end - range.start) as usize));
        self.add(sites, 0, &code);
    }

    /// Adds names for ids, and returns the ids.
    pub fn names(&mut self, names: impl Iterator<Item = String>) -> Range<u32> {
        let first = self.names.len() as u32 + 1;
        self.names.extend(names);
        first..self.names.len() as u32 + 1
    }

    /// Patches a module.
    pub fn add<'c>(
        &mut self,
        sites: Sites<'_>,
        bias: u64,
        code: &'c dyn Fn(Range<u64>) -> Option<&'c [u8]>,
    ) {
        let functions = sites.functions.iter();
        let functions = functions.filter_map(|traced| {
            let site = traced.function.outcome.as_ref().ok()?;
            Some((traced.id, site.mode))
        });
        let libcalls = sites.libcalls.iter();
        let modes = functions.chain(libcalls.map(|call| (call.id, call.site.mode)));
        let modes = modes.filter(|&(_, mode)| mode != Mode::Call);
        self.without_exit.extend(modes.map(|(id, _)| id));
        let image = Image { bias, code };
        let mut patches = Patches::default();
        let has_places = self.has_places;
        let mapped = &mut self.mapped;
        let mut pages: Vec<Range<u64>> = Vec::new();
        let mut places = |range: Range<u64>| {
            let free = |page: &&mut Range<u64>| {
                range.contains(&page.start) && page.end - page.start >= PLACE
            };
            let page = match pages.iter_mut().rev().find(free) {
                Some(page) => page,
                None => {
                    let at = has_places.then(|| place(&range)).flatten()?;
                    mapped.push((at, PAGE as u64));
                    pages.push(at..at + PAGE as u64);
                    pages.last_mut()?
                }
            };
            page.start += PLACE;
            Some(page.start - PLACE)
        };
        self.island
            .add_module(sites, image, self.recording, &mut places, &mut patches);
        for (at, bytes) in self.island.added(hodo_patch::Used::default()) {
            write_code(at, &bytes);
        }
        for (at, bytes) in &patches.writes {
            self.undo.push((*at, read(*at, bytes.len()).to_vec()));
        }
        for (at, bytes) in &patches.writes {
            write_code(*at, bytes);
        }
        self.patches = patches;
    }

    /// Restores the original code.
    pub fn restore(&mut self) {
        for (at, bytes) in self.undo.drain(..).rev() {
            write_code(at, &bytes);
        }
    }

    /// Hooks a library function through a second island. Its code is at most this many bytes long.
    pub fn hook(&mut self, hook: Hook, name: &std::ffi::CStr, len: u64) {
        self.hook_at(hook, symbol(name), len);
    }

    /// Hooks a function at an address.
    pub fn hook_at(&mut self, hook: Hook, function: u64, len: u64) {
        if self.second.is_none() {
            let base = near(function, ISLAND);
            self.mapped.push((base, ISLAND));
            self.second = Some(Island::new(base, ISLAND, 0));
            let block = self.events + (tcb::FIRST + self.threads - 1) * tcb::SIZE;
            self.put(block + tcb::ISLAND1_LO, base);
            self.put(block + tcb::ISLAND1_LEN, ISLAND);
        }
        let image = Image {
            bias: 0,
            code: &|range: Range<u64>| Some(read(range.start, (range.end - range.start) as usize)),
        };
        let mut patches = Patches::default();
        let island = self.second.as_mut().expect("it was made");
        island
            .add_hook(hook, function..function + len, image, &mut patches)
            .unwrap_or_else(|reason| panic!("{hook:?}: {reason}"));
        for (at, bytes) in island.added(hodo_patch::Used::default()) {
            write_code(at, &bytes);
        }
        for (at, bytes) in patches.writes {
            self.undo.push((at, read(at, bytes.len()).to_vec()));
            write_code(at, &bytes);
        }
    }

    /// The addresses of the islands.
    pub fn islands(&self) -> Vec<Range<u64>> {
        let islands = [Some(&self.island), self.second.as_ref()];
        let range = |island: &Island| island.base..island.base + ISLAND;
        islands.into_iter().flatten().map(range).collect()
    }

    /// The first stub.
    pub fn stub(&self) -> hodo_patch::Stub {
        self.island.stubs[0]
    }

    /// Code as it is now.
    pub fn code(&self, at: u64, len: usize) -> Vec<u8> {
        read(at, len).to_vec()
    }

    /// The code of the first stub, without the instructions that it has displaced.
    pub fn stub_code(&self) -> Vec<u8> {
        let stub = self.stub();
        self.code(stub.start, (stub.body - stub.start) as usize)
    }

    /// The words that a task has recorded, chunk by chunk, without holes.
    pub fn words(&self, task: u32) -> Vec<u64> {
        let mut words = Vec::new();
        let used = self
            .get(self.events + file_header::NEXT_CHUNK)
            .min(self.chunks);
        for chunk in 0..used {
            let at = self.events + CONTROL_SIZE + chunk * CHUNK_SIZE;
            if self.get(at + chunk_header::TASK) as u32 != task {
                continue;
            }
            let records = (at + CHUNK_HEADER_SIZE..at + CHUNK_SIZE).step_by(8);
            words.extend(records.map(|at| self.get(at)).filter(|&word| word != 0));
        }
        words
    }

    /// The records of a task, without those of new epochs, because the emulator's counter is fast.
    pub fn records(&self, task: u32) -> Vec<Record> {
        let mut records = self.all_records(task);
        records.retain(|record| record.kind != record::SPECIAL);
        records
    }

    /// All records of a task.
    pub fn all_records(&self, task: u32) -> Vec<Record> {
        let record = |word: u64| {
            let upper = (word >> 32) as u32;
            Record {
                kind: upper >> record::KIND_SHIFT & 3,
                id: upper & record::ID_MASK,
                sp: upper >> record::SP_SHIFT,
                time: word as u32,
            }
        };
        self.words(task).into_iter().map(record).collect()
    }

    /// The records of a task as text: names with `+` for entries, `-` for exits, `>` for jumps.
    pub fn text(&self, task: u32) -> String {
        let words: Vec<_> = self
            .records(task)
            .into_iter()
            .map(|Record { kind, id, .. }| {
                let sign = ["+", "-", ">"][kind as usize];
                format!("{sign}{}", self.names[id as usize - 1])
            })
            .collect();
        words.join(" ")
    }

    /// The whole recording as a trace.
    pub fn read(&self, name: &str, tasks: u32) -> Trace {
        // In this source tree: others may run the same tests.
        let place =
            option_env!("CARGO_TARGET_TMPDIR").map_or_else(std::env::temp_dir, PathBuf::from);
        let directory = place.join(format!("stubs-{name}"));
        let mut builder = Builder::new(&directory, self.recording.timed);
        builder.info["arch"] = hodo_abi::Isa::NATIVE.name().into();
        for (id, name) in (1..).zip(&self.names) {
            let exits = !self.without_exit.contains(&id);
            builder.function(name, if exits { 'T' } else { 'E' });
        }
        for task in 1..=tasks {
            builder.task(99 + task as i32, "exec", 0, 0);
            for word in self.words(task) {
                builder.word(task, word);
            }
        }
        Trace::open(builder.finish()).expect("a trace")
    }
}

/// Removes the current thread's control block.
pub fn leave() {
    // SAFETY: it is the thread's own word.
    unsafe { block_word().write(0) };
}

impl Drop for World {
    fn drop(&mut self) {
        self.restore();
        leave();
        for (at, len) in self.mapped.drain(..) {
            unmap(at, len);
        }
        ALONE.store(false, Ordering::Release);
    }
}

/// The address of a library function.
pub fn symbol(name: &std::ffi::CStr) -> u64 {
    // SAFETY: it looks up a symbol.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    assert!(!found.is_null(), "{name:?}");
    found.addr() as u64
}

/// Maps memory for a jump.
fn place(range: &Range<u64>) -> Option<u64> {
    let first = range.start.next_multiple_of(PAGE as u64);
    (first..range.end)
        .step_by(PAGE)
        .find_map(|at| map(at, PAGE as u64, true))
}

/// Breakpoints, and where they lead.
static TRAPS: Mutex<Vec<Lead>> = Mutex::new(Vec::new());

extern "C" fn on_trap(_: i32, _: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel gives the context, and the thread that was interrupted does not hold the lock.
    unsafe {
        let pc = isa::pc(&mut *context.cast::<libc::ucontext_t>());
        let traps = TRAPS.lock().expect("nobody panics with it");
        let found = traps.iter().find(|trap| trap.at == *pc);
        *pc = found.expect("one of hodo's breakpoints").to;
    }
}

/// Does what hodo does at breakpoints.
pub fn follow(patches: &Patches) {
    *TRAPS.lock().expect("nobody panics with it") = patches.traps.clone();
    // SAFETY: the handler only changes where the thread continues.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = on_trap as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO;
        libc::sigaction(libc::SIGTRAP, &raw const action, std::ptr::null_mut());
    }
}
