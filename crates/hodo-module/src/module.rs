//! What a recording knows of a file: its plan, what it traces of it, and its probes.

use std::collections::HashMap;
use std::rc::Rc;

use hodo_codegen::native::detour::{Action, When};
use hodo_patch::{Probe, Region, SyscallEvents};
use hodo_plan::model::{Plan, SitePlan};

use crate::image::Image;

/// Functions that are not traced because they are hooked, whatever other names they have.
pub const HOOKED: [&str; 8] = [
    "_dl_find_object",
    "dl_iterate_phdr",
    "_Unwind_Backtrace",
    "_dl_debug_state",
    "mlockall",
    "setrlimit",
    "getrlimit",
    "prlimit",
];

/// A function that is to be traced.
#[derive(Debug, Clone, Copy)]
pub struct Chosen {
    /// Index in the plan.
    pub index: usize,
    /// Id in the trace.
    pub id: u32,
    /// Whether it is a filter function (`-F`).
    pub filter: bool,
}

/// A module with its plan and numbers.
#[derive(Debug)]
pub struct Module {
    /// The file.
    pub image: Rc<Image>,
    /// Its plan.
    pub plan: Rc<Plan>,
    /// The functions that are to be traced.
    pub functions: Vec<Chosen>,
    /// The libcalls that are to be traced.
    pub libcalls: Vec<Chosen>,
    /// Its probes.
    pub probed: Probed,
    /// How it is numbered.
    pub number: Number,
}

/// How a module is numbered.
#[derive(Debug, Clone)]
pub struct Number {
    /// In the trace.
    pub id: u32,
    /// Its first function id.
    pub first: u32,
    /// Whether it is a program.
    pub main: bool,
    /// Of each id, what the file of symbols says.
    pub kinds: Vec<char>,
}

impl Module {
    /// Whether it is a program, not a library.
    pub fn is_main(&self) -> bool {
        self.number.main
    }

    /// Its first id.
    pub fn first_id(&self) -> u32 {
        self.number.first
    }
}

/// A module's probes.
#[derive(Debug, Default)]
pub struct Probed {
    /// Regions that are moved, with their probes.
    pub sites: Vec<(SitePlan, Vec<Probe>)>,
    /// Others, in functions that are hooked where limits on memory are raised: only for where they are not.
    pub without_limits: Vec<(SitePlan, Vec<Probe>)>,
    /// The traced functions that begin with one of these regions, by address.
    pub functions: HashMap<u64, Chosen>,
    /// Link-time addresses of the counters by which USDT probes know that they are wanted.
    pub semaphores: Vec<u64>,
    /// How system calls are recorded, if they are.
    pub syscalls: Option<Rc<SyscallEvents>>,
    /// There are instructions that call the kernel and have no probe.
    pub unwatched: bool,
}

impl Probed {
    /// The regions that are moved. `raised`: limits on memory are.
    pub fn regions(&self, raised: bool) -> Vec<Region<'_>> {
        let more = match raised {
            true => &[],
            false => &self.without_limits[..],
        };
        let regions = self.sites.iter().chain(more);
        regions
            .map(|(site, probes)| Region {
                site,
                probes,
                function: None,
            })
            .collect()
    }

    /// Bytes of an island that the detours take, at most.
    pub fn room(&self) -> u64 {
        let probe = |probe: &Probe| match &probe.action {
            Action::Count(_) => 64,
            Action::Record(event) => 320 + 128 * event.values.len() as u64,
            Action::Syscall => 64,
            Action::Block(block) => {
                hodo_codegen::native::detour::size(block, &hodo_patch::layout())
            }
        };
        let site = |(site, probes): &(SitePlan, Vec<Probe>)| {
            // A moved instruction grows by thirteen bytes at most.
            let moved = 64 + 8 * (site.displaced.end - site.displaced.start);
            moved + probes.iter().map(probe).sum::<u64>()
        };
        // What a return probe needs beside.
        let returns = |(_, probes): &(SitePlan, Vec<Probe>)| {
            let first = |probe: &&Probe| probe.when == When::Return;
            // It returns in two ways, each of which does all that is to be done.
            let again = probes.iter().filter(first).map(probe).sum::<u64>();
            again + 768 * probes.iter().filter(first).count() as u64
        };
        let table = self
            .syscalls
            .as_ref()
            .map_or(0, |events| events.table.len() as u64 * 8 + 4096);
        self.sites.iter().map(|s| site(s) + returns(s)).sum::<u64>() + table
    }
}
