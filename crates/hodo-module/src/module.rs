//! What a recording knows about a file: its plan, what it traces in the file, and the probes there.

use std::collections::HashMap;
use std::rc::Rc;

use hodo_codegen::native::detour::{Action, When};
use hodo_patch::{Probe, Region, SyscallEvents};
use hodo_plan::model::{Plan, SitePlan};

use crate::image::Image;

/// Functions that are hooked, and therefore not traced under any of their names.
pub const HOOKED: [&str; 9] = [
    "_dl_find_object",
    "dl_iterate_phdr",
    "_Unwind_Backtrace",
    "_dl_debug_state",
    "mlockall",
    "arch_prctl",
    "setrlimit",
    "getrlimit",
    "prlimit",
];

/// A function to trace.
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
    /// The functions to trace.
    pub functions: Vec<Chosen>,
    /// The libcalls to trace.
    pub libcalls: Vec<Chosen>,
    /// Its probes.
    pub probed: Probed,
    /// Its numbers.
    pub number: Number,
}

/// The numbers of a module.
#[derive(Debug, Clone)]
pub struct Number {
    /// Its id in the trace.
    pub id: u32,
    /// Its first function id.
    pub first: u32,
    /// Whether it is a program.
    pub main: bool,
    /// By id: the kind that the symbol file states.
    pub kinds: Vec<char>,
}

impl Module {
    /// Returns whether it is a program, not a library.
    pub fn is_main(&self) -> bool {
        self.number.main
    }

    /// Returns its first function id.
    pub fn first_id(&self) -> u32 {
        self.number.first
    }
}

/// A module's probes.
#[derive(Debug, Default)]
pub struct Probed {
    /// Regions that are displaced, with their probes.
    pub sites: Vec<(SitePlan, Vec<Probe>)>,
    /// Other regions, in functions that are hooked when limits on memory are raised. They are used only if limits are
    /// not raised.
    pub without_limits: Vec<(SitePlan, Vec<Probe>)>,
    /// The traced functions that begin with one of these regions, by address.
    pub functions: HashMap<u64, Chosen>,
    /// Link-time addresses of the semaphores that tell USDT probes that they are in use.
    pub semaphores: Vec<u64>,
    /// How system calls are recorded, if they are.
    pub syscalls: Option<Rc<SyscallEvents>>,
    /// Whether some instructions that call the kernel have no probe.
    pub unwatched: bool,
}

impl Probed {
    /// Returns the regions that are displaced. `raised`: limits on memory are raised.
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

    /// Returns an upper bound for the room that the detours take in an island, in bytes.
    pub fn room(&self) -> u64 {
        let probe = |probe: &Probe| room_for(&probe.action);
        let site = |(site, probes): &(SitePlan, Vec<Probe>)| {
            // A displaced instruction grows by at most thirteen bytes.
            let moved = 64 + 8 * (site.displaced.end - site.displaced.start);
            moved + probes.iter().map(probe).sum::<u64>()
        };
        // A return probe needs more.
        let returns = |(_, probes): &(SitePlan, Vec<Probe>)| {
            let first = |probe: &&Probe| probe.when == When::Return;
            // The function returns in two ways. Each runs all actions.
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

/// Returns an upper bound for the room that an action takes, in bytes.
fn room_for(action: &Action) -> u64 {
    match action {
        Action::Count(_) => 64,
        Action::Record(event) => 320 + 128 * event.values.len() as u64,
        Action::Syscall => 64,
        Action::Calls(calls) => {
            let actions = calls
                .iter()
                .flat_map(|call| call.enter.iter().chain(&call.exit));
            // The choice and the call itself, and what unwinders need to know of it.
            128 + 128 * calls.len() as u64 + actions.map(room_for).sum::<u64>()
        }
        Action::Block(block) => hodo_codegen::native::detour::size(block, &hodo_patch::layout()),
    }
}
