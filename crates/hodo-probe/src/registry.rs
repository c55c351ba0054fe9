//! Registers and unregisters probes, one thread at a time.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::cell::UnsafeCell;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use super::arch::trampolines::Trampolines;
use super::arch::{self, LONGEST, SHORTEST};
use super::environment::{self, Errno};
use super::layout::{Handler, KEEP_NONE, Node};
use super::lists::{free, narrow, relist, settle};
use super::maps::{self, Mapping};
use super::memory::{Change, Memory};
use super::patch::{self, Want};
use super::refusal::Refusal;
use super::site::{Detour, Site, Variant};
use super::{
    Armed, Execution, Optimization, Probe, Request, analyze, call_sites, clobbers, optimize,
    shadow, threads,
};

/// The engine's working state.
struct Inner {
    memory: Memory,
    spots: Trampolines,
    /// The process's mappings, as of the last registration.
    maps: Vec<Mapping>,
    known: clobbers::Known,
    /// The engine's own code, once it has been needed.
    #[cfg(target_os = "linux")]
    own: Option<super::own::Own>,
    /// The function that takes unwind tables, and the tables so far.
    registrar: Option<unsafe extern "C" fn(*const u8)>,
    frames: Vec<&'static [u8]>,
    /// Detours whose code is not written yet.
    unwritten: Vec<(&'static Site, Variant)>,
    /// When breakpoints become jumps.
    optimization: Optimization,
    /// All sites.
    sites: BTreeMap<u64, &'static Site>,
}

struct Registry {
    /// The process that holds the lock, or 0: a child of `fork` does not wait for a thread that it does not have.
    holder: AtomicUsize,
    inner: UnsafeCell<Option<Inner>>,
}

// SAFETY: only the holder uses `inner`.
unsafe impl Sync for Registry {}

static REGISTRY: Registry = Registry {
    holder: AtomicUsize::new(0),
    inner: UnsafeCell::new(None),
};

/// Whether the engine has started.
static STARTED: AtomicBool = AtomicBool::new(false);

struct Guard;

impl Drop for Guard {
    fn drop(&mut self) {
        REGISTRY.holder.store(0, Ordering::Release);
    }
}

fn lock() -> Result<Guard, Refusal> {
    if threads::in_handler() {
        return Err(Refusal::InHandler);
    }
    let process = environment::current().process();
    loop {
        match REGISTRY
            .holder
            .compare_exchange(0, process, Ordering::AcqRel, Ordering::Acquire)
        {
            Ok(_) => return Ok(Guard),
            Err(holder) if holder != process => {
                let _ = REGISTRY.holder.compare_exchange(
                    holder,
                    0,
                    Ordering::AcqRel,
                    Ordering::Relaxed,
                );
            }
            Err(_) => environment::current().pause(),
        }
    }
}

fn kernel(what: &'static str) -> impl Fn(Errno) -> Refusal {
    move |error| Refusal::Kernel(what, error)
}

const WRITE: &str = "code cannot be written";

/// Starts the engine if it has not started.
pub(super) fn start() -> Result<(), Refusal> {
    if STARTED.load(Ordering::Acquire) {
        return Ok(());
    }
    #[cfg(target_os = "linux")]
    super::linux::set();
    let _guard = lock()?;
    // SAFETY: the lock is held.
    let inner = unsafe { &mut *REGISTRY.inner.get() };
    if inner.is_none() {
        environment::current().start()?;
        threads::start().map_err(kernel("there is no memory for the table of threads"))?;
        *inner = Some(Inner {
            memory: Memory,
            spots: Trampolines::default(),
            maps: Vec::new(),
            known: clobbers::Known::default(),
            #[cfg(target_os = "linux")]
            own: None,
            registrar: None,
            frames: Vec::new(),
            unwritten: Vec::new(),
            optimization: Optimization::Automatic,
            sites: BTreeMap::new(),
        });
    }
    #[cfg(target_os = "linux")]
    super::signals::install().map_err(kernel("signals cannot be handled"))?;
    STARTED.store(true, Ordering::Release);
    Ok(())
}

/// The engine's state, refreshed if this process is a child of `fork`.
fn inner(_: &mut Guard) -> Result<&mut Inner, Refusal> {
    // SAFETY: the lock is held.
    let inner = unsafe { (*REGISTRY.inner.get()).as_mut() };
    let inner = inner.ok_or(Refusal::Nothing)?;
    if environment::current().is_copy()? {
        threads::forked();
    }
    if threads::are_many() {
        threads::sweep();
    }
    Ok(inner)
}

/// Returns whether a site should be armed.
fn is_wanted(site: &Site) -> bool {
    let mut nodes = site.nodes().chain(site.return_nodes());
    nodes.any(|node| node.enabled.load(Ordering::Relaxed) != 0)
}

/// Returns whether no probe of a site demands another way of execution than a detour.
fn may_jump(site: &Site) -> bool {
    let forced = site.forced.load(Ordering::Acquire);
    site.after.load(Ordering::Acquire) == 0
        && (forced == 0 || forced == Execution::Optimized as u32)
}

/// Gives the counter of a site's detour to its only probe.
fn hand_over(site: &Site) {
    let counter = site.counter.load(Ordering::Acquire);
    // SAFETY: counters stay.
    let (Some(node), Some(value)) = (site.lone_counter(), unsafe { counter.as_ref() }) else {
        return;
    };
    if node.counter.load(Ordering::Relaxed).is_null() {
        node.base.store(arch::hits(value), Ordering::Relaxed);
        node.counter.store(counter, Ordering::Release);
    }
}

/// Brings sites into the state that their probes want. Their neighbours come along, because a jump must not overwrite
/// another site.
fn arm(inner: &mut Inner, sites: &[&'static Site]) -> Result<(), Refusal> {
    let mut all: Vec<&'static Site> = Vec::with_capacity(sites.len());
    for site in sites {
        let addr = site.addr();
        let longest = LONGEST as u64;
        all.extend((addr.saturating_sub(longest - 1)..addr + longest).filter_map(Site::at));
    }
    all.sort_by_key(|site| site.addr());
    all.dedup_by_key(|site| site.addr());
    let mut wanted = Vec::with_capacity(all.len());
    // Jumps that lead to a detour other than the one they should.
    let mut changed = Vec::new();
    let mut code = Vec::new();
    let mut called = Vec::new();
    for site in all {
        if site.call_site.is_some() {
            called.push((site, is_wanted(site)));
            continue;
        }
        let alone = |jump: usize| {
            let code = site.addr()..site.addr() + jump as u64;
            call_sites::find(code).is_none()
                && !(site.addr() + 1..site.addr() + jump as u64)
                    .filter_map(Site::at)
                    .any(is_wanted)
        };
        let returning = site
            .return_nodes()
            .any(|node| node.enabled.load(Ordering::Relaxed) != 0);
        let enters = || {
            site.nodes()
                .any(|node| node.enabled.load(Ordering::Relaxed) != 0)
        };
        let counts = || site.lone_counter().is_some();
        let variants: &[Variant] = match returning {
            true if enters() => &[Variant::Returning],
            true => &[Variant::ReturnsOnly, Variant::Returning],
            false if counts() => &[Variant::Counting, Variant::Plain],
            false => &[Variant::Plain],
        };
        let mut want = Want::Breakpoint;
        if !is_wanted(site) {
            want = Want::Nothing;
        } else {
            call_sites::check(site).inspect_err(|_| inner.forget())?;
        }
        if want == Want::Breakpoint
            && may_jump(site)
            && inner.is_time(site)
            && alone(SHORTEST)
            && let Some(detour) = variants
                .iter()
                .find_map(|variant| inner.detour(site, *variant, &mut code))
            && detour.jump.as_ref().is_some_and(|jump| alone(jump.len()))
        {
            want = Want::Jump;
            if counts() {
                hand_over(site);
            }
            let detour = core::ptr::from_ref(detour).cast_mut();
            if site.jumped.load(Ordering::Acquire) == 0 {
                site.detour.store(detour, Ordering::Release);
            } else if site.detour.load(Ordering::Acquire) != detour {
                changed.push((site, detour));
            }
        }
        wanted.push((site, want));
    }
    inner.write(code)?;
    let stops: Vec<_> = changed
        .iter()
        .map(|(site, _)| (*site, Want::Breakpoint))
        .collect();
    patch::apply(&inner.memory, &stops).map_err(kernel(WRITE))?;
    for (site, detour) in changed {
        site.detour.store(detour, Ordering::Release);
    }
    patch::apply(&inner.memory, &wanted).map_err(kernel(WRITE))?;
    call_sites::set(&called)
}

impl Inner {
    /// Returns whether a site may have a jump now, or has one already.
    fn is_time(&self, site: &Site) -> bool {
        self.optimization == Optimization::Automatic
            || site.jumped.load(Ordering::Acquire) != 0
            || site.forced.load(Ordering::Acquire) == Execution::Optimized as u32
    }

    /// The detour of a site; makes it if needed, and adds its code to what will be written.
    fn detour(
        &mut self,
        site: &'static Site,
        variant: Variant,
        code: &mut Vec<Change>,
    ) -> Option<&'static Detour> {
        let known = &site.variants[variant as usize];
        let is_new = known.load(Ordering::Acquire).is_null();
        let detour = optimize::prepare(&self.memory, &mut self.spots, site, variant, code)?;
        if is_new {
            self.unwritten.push((site, variant));
        }
        if let Some(frames) = detour.frames.filter(|_| is_new) {
            self.frames.push(frames);
            if let Some(register) = self.registrar {
                // SAFETY: `register` takes such tables.
                unsafe { register(frames.as_ptr()) };
            }
        }
        Some(detour)
    }
}

impl Inner {
    /// Writes the code of new detours. If that fails, they are forgotten: nothing must lead to them.
    fn write(&mut self, mut code: Vec<Change>) -> Result<(), Refusal> {
        code.sort();
        // SAFETY: it writes into islands, where nothing executes this code yet.
        let written = unsafe { self.memory.change(&code) }.map_err(kernel(WRITE));
        match written {
            Ok(()) => self.unwritten.clear(),
            Err(_) => self.forget(),
        }
        written
    }

    /// Forgets the detours whose code is not written.
    fn forget(&mut self) {
        for (site, variant) in self.unwritten.drain(..) {
            site.variants[variant as usize].store(core::ptr::null_mut(), Ordering::Release);
        }
    }
}

/// Sets when breakpoints become jumps.
pub(super) fn set_optimization(optimization: Optimization) -> Result<(), Refusal> {
    let mut guard = lock()?;
    inner(&mut guard)?.optimization = optimization;
    Ok(())
}

/// Turns breakpoints into jumps, all together. Returns how many it turned.
pub(super) fn optimize() -> Result<usize, Refusal> {
    let mut guard = lock()?;
    let inner = inner(&mut guard)?;
    let stops: Vec<&'static Site> = inner
        .sites
        .values()
        .copied()
        .filter(|site| is_wanted(site) && site.jumped.load(Ordering::Acquire) == 0)
        .collect();
    let before = core::mem::replace(&mut inner.optimization, Optimization::Automatic);
    let result = arm(inner, &stops);
    inner.optimization = before;
    result?;
    let jumps = stops
        .iter()
        .filter(|site| site.jumped.load(Ordering::Acquire) != 0);
    Ok(jumps.count())
}

/// Sets the function that takes unwind tables.
pub(super) fn register_frames(register: unsafe extern "C" fn(*const u8)) -> Result<(), Refusal> {
    let mut guard = lock()?;
    let inner = inner(&mut guard)?;
    if inner.registrar.replace(register).is_none() {
        for frames in &inner.frames {
            // SAFETY: `register` takes such tables.
            unsafe { register(frames.as_ptr()) };
        }
    }
    Ok(())
}

/// Registers probes.
pub(super) fn register(requests: &[Request]) -> Vec<Result<Probe, Refusal>> {
    call_sites::update();
    let mut guard = match lock() {
        Ok(guard) => guard,
        Err(refusal) => return requests.iter().map(|_| Err(refusal.clone())).collect(),
    };
    let inner = match inner(&mut guard) {
        Ok(inner) => inner,
        Err(refusal) => return requests.iter().map(|_| Err(refusal.clone())).collect(),
    };
    match maps::mappings() {
        Ok(maps) => inner.maps = maps,
        Err(error) => {
            let refusal = Refusal::Kernel("the mappings cannot be read", error);
            return requests.iter().map(|_| Err(refusal.clone())).collect();
        }
    }
    let mut code = Vec::new();
    let found: Vec<_> = requests
        .iter()
        .map(|request| site_of(inner, request, &mut code))
        .collect();
    // Before any probe is in a list: a site that has probes already would go there.
    if let Err(refusal) = inner.write(code) {
        return requests.iter().map(|_| Err(refusal.clone())).collect();
    }
    let mut old = Vec::new();
    let mut results: Vec<_> = requests
        .iter()
        .zip(found)
        .map(|(request, site)| Ok(add(inner, request, site?, &mut old)))
        .collect();
    let sites: Vec<_> = results.iter().flatten().map(|probe| probe.site).collect();
    sites.iter().for_each(|site| settle(site));
    inner
        .sites
        .extend(sites.iter().map(|site| (site.addr(), *site)));
    let result = arm(inner, &sites);
    if old.iter().any(|list| *list != analyze::empty()) {
        threads::wait();
        free(old);
    }
    drop(guard);
    if let Err(refusal) = result {
        results = results
            .into_iter()
            .map(|result| result.and(Err(refusal.clone())))
            .collect();
    }
    results
}

/// The site of a probe, if there can be one, with the code that its returns need. That must be written before the probe
/// is added.
fn site_of(
    inner: &mut Inner,
    request: &Request,
    code: &mut Vec<Change>,
) -> Result<&'static Site, Refusal> {
    if request
        .before
        .or(request.after)
        .or(request.returning)
        .is_none()
        && !request.counts
    {
        return Err(Refusal::Nothing);
    }
    #[cfg(target_os = "linux")]
    if super::own::Own::has(&mut inner.own, &inner.memory, &inner.maps, request.addr) {
        return Err(Refusal::Engine);
    }
    let site = analyze::site(
        &inner.memory,
        &inner.maps,
        request.addr,
        request.function.clone(),
    )?;
    let is_called = site.call_site.is_some();
    let possible = match request.execution {
        None => true,
        Some(execution) if (execution == Execution::CallSite) != is_called => false,
        Some(Execution::Simulated) => site.simulation.is_some(),
        Some(Execution::Boosted) => site.boosted().is_some(),
        Some(Execution::OutOfLine) => analyze::stepped(&inner.memory, site).map(|()| true)?,
        _ => true,
    };
    if let Some(execution) = request.execution.filter(|_| !possible) {
        return Err(Refusal::Execution(execution));
    }
    if request.after.is_some() && !is_called && site.simulation.is_none() {
        analyze::stepped(&inner.memory, site)?;
    }
    if request.returning.is_some() {
        let is_entry = match &site.call_site {
            None => site.function.start == site.addr(),
            Some(found) => found.is_first,
        };
        if !is_entry {
            return Err(Refusal::NotEntry);
        }
        shadow::start().map_err(kernel("there is no address space for return addresses"))?;
        inner
            .detour(site, Variant::Returning, code)
            .ok_or(Refusal::NoReturn)?;
    }
    Ok(site)
}

/// Adds a probe to the lists of its site.
fn add(
    inner: &mut Inner,
    request: &Request,
    site: &'static Site,
    old: &mut Vec<*mut *const Node>,
) -> Probe {
    let node = node(inner, request, request.before, request.after);
    let mut nodes: Vec<*const Node> = site.nodes().map(core::ptr::from_ref).collect();
    nodes.push(node.as_ptr());
    relist(&site.head, nodes, old);
    let returns = request.returning.map(|handler| {
        let node = self::node(inner, request, Some(handler), None);
        let mut nodes: Vec<*const Node> = site.return_nodes().map(core::ptr::from_ref).collect();
        nodes.push(node.as_ptr());
        relist(&site.returns, nodes, old);
        (node, site.unreturned.load(Ordering::Relaxed))
    });
    Probe {
        site,
        node,
        returns,
    }
}

fn node(
    inner: &mut Inner,
    request: &Request,
    before: Option<Handler>,
    after: Option<Handler>,
) -> NonNull<Node> {
    let word =
        |handler: Option<Handler>| handler.map_or(0, |handler| handler as *const () as usize);
    let idle = before.or(after).is_none() && !request.counts;
    let node = Box::new(Node {
        before: word(before),
        data: request.data,
        enabled: AtomicU32::new(u32::from(!request.disabled && !idle)),
        idle,
        faulted: AtomicU32::new(0),
        missed: AtomicU64::new(0),
        faults: AtomicU64::new(0),
        after: word(after),
        counts: AtomicU64::new(0),
        counter: AtomicPtr::default(),
        base: AtomicU64::new(0),
        keep: before.map_or(KEEP_NONE, |handler| {
            inner.known.of(&inner.memory, &inner.maps, handler)
        }),
        execution: request.execution.map_or(0, |execution| execution as u32),
    });
    NonNull::from(Box::leak(node))
}

/// A probe that is being removed.
type Parts = (&'static Site, NonNull<Node>, Option<NonNull<Node>>);

fn parts(probe: &Probe) -> Parts {
    (probe.site, probe.node, probe.returns.map(|(node, _)| node))
}

/// Removes a probe, which is not used afterwards.
pub(super) fn forget(probe: &Probe) -> Result<(), Refusal> {
    remove(&[parts(probe)])
}

/// Removes probes.
pub(super) fn unregister(probes: Vec<Probe>) -> Result<(), Refusal> {
    let probes: Vec<_> = probes
        .into_iter()
        .map(|probe| parts(&core::mem::ManuallyDrop::new(probe)))
        .collect();
    remove(&probes)
}

fn remove(probes: &[Parts]) -> Result<(), Refusal> {
    for (_, node, returns) in probes {
        for node in returns.iter().chain([node]) {
            // SAFETY: nodes live until they are freed below.
            unsafe { node.as_ref() }.enabled.store(0, Ordering::Release);
        }
    }
    let mut guard = lock()?;
    let inner = inner(&mut guard)?;
    let sites: Vec<_> = probes.iter().map(|(site, ..)| *site).collect();
    arm(inner, &sites)?;
    let mut old = Vec::new();
    for (site, node, returns) in probes {
        let others = |node: &&Node, gone: NonNull<Node>| !core::ptr::eq(*node, gone.as_ptr());
        let nodes = site.nodes().filter(|other| others(other, *node));
        relist(
            &site.head,
            nodes.map(core::ptr::from_ref).collect(),
            &mut old,
        );
        if let Some(gone) = returns {
            let nodes = site.return_nodes().filter(|other| others(other, *gone));
            relist(
                &site.returns,
                nodes.map(core::ptr::from_ref).collect(),
                &mut old,
            );
        }
        settle(site);
    }
    // The remaining probes of a site may now allow another way of execution.
    arm(inner, &sites)?;
    threads::wait();
    free(old);
    sites.iter().for_each(|site| narrow(site));
    for (_, node, returns) in probes {
        for node in returns.iter().chain([node]) {
            // SAFETY: (1) a box made it; (2) no list contains it any more, and no handler that was called from it still
            // runs.
            unsafe { drop(Box::from_raw(node.as_ptr())) };
        }
    }
    Ok(())
}

/// Enables or disables probes.
pub(super) fn enable(probes: &[&Probe], enabled: bool) -> Result<(), Refusal> {
    let mut guard = lock()?;
    let inner = inner(&mut guard)?;
    for probe in probes {
        for node in probe
            .return_node()
            .map(|(node, _)| node)
            .into_iter()
            .chain([probe.node()])
        {
            node.faulted.store(0, Ordering::Relaxed);
            node.enabled
                .store(u32::from(enabled && !node.idle), Ordering::Release);
        }
    }
    let sites: Vec<_> = probes.iter().map(|probe| probe.site).collect();
    arm(inner, &sites)
}

/// How the instruction of a site is executed at present.
pub(super) fn execution(site: &Site) -> Execution {
    if site.call_site.is_some() {
        return Execution::CallSite;
    }
    if site.jumped.load(Ordering::Acquire) != 0 {
        return Execution::Optimized;
    }
    let forced = site.forced.load(Ordering::Acquire);
    let simulated = forced == 0 || forced == Execution::Simulated as u32 || !site.has_copy();
    if simulated && site.simulation.is_some() {
        Execution::Simulated
    } else if forced == Execution::OutOfLine as u32
        || site.after.load(Ordering::Acquire) != 0
        || site.boosted().is_none()
    {
        Execution::OutOfLine
    } else {
        Execution::Boosted
    }
}

/// All probes, by address.
pub(super) fn armed() -> Result<Vec<Armed>, Refusal> {
    let mut guard = lock()?;
    let inner = inner(&mut guard)?;
    let mut all = Vec::new();
    for site in inner.sites.values() {
        let entries = site.nodes().filter(|node| !node.idle);
        let entries = entries.map(|node| (node, false));
        let returns = site.return_nodes().map(|node| (node, true));
        all.extend(entries.chain(returns).map(|(node, returns)| Armed {
            addr: site.addr(),
            returns,
            enabled: node.enabled.load(Ordering::Relaxed) != 0,
            execution: execution(site),
        }));
    }
    Ok(all)
}

/// Hits that a probe has counted.
pub(super) fn count(probe: &Probe) -> u64 {
    let node = probe.node();
    let counted = node.counts.load(Ordering::Relaxed);
    // SAFETY: counters stay.
    let counter = unsafe { node.counter.load(Ordering::Acquire).as_ref() };
    counter.map_or(counted, |counter| {
        let base = node.base.load(Ordering::Relaxed);
        counted.wrapping_add(arch::hits(counter).wrapping_sub(base))
    })
}
