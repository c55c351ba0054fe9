//! `hodo syscalls`: events around each instruction that calls the kernel.

use std::rc::Rc;

use anyhow::{Result, bail};
use hodo_abi::Span;
use hodo_codegen::native::detour::{Action, When};
use hodo_codegen::native::hooks::ASKED;
use hodo_isa::native::syscalls::{ends_thread, looks_like_call};
use hodo_patch::{Probe, SyscallEvents};
use hodo_plan::PlanOptions;
use hodo_plan::model::{ProbeSite, Refused, RefusedProbe, SitePlan, Wanted};
use hodo_trace::format::record;
use hodo_trace::syscalls::{GROUP, Limits, NAMES, table};
use serde_json::json;

use super::overlap::{HOOK_LENGTH, with_users};
use super::{Output, Probes, site_plan};
use hodo_module::HOOKED;
use hodo_module::Image;
use hodo_module::Probed;
use hodo_module::cache::Planning;

use hodo_ptrace::arch::SYSTEM_CALL;

/// What is recorded of system calls.
#[derive(Debug, Clone, Default)]
pub struct SyscallOptions {
    /// Only these numbers; `None`: all.
    pub only: Option<Vec<u64>>,
    /// Only which calls there were, their times and their results; not their arguments.
    pub bare: bool,
    /// Bytes of each buffer that are kept.
    pub buffer: usize,
    /// Also what is shown only if nothing is abridged.
    pub whole: bool,
}

/// How system calls are recorded.
#[derive(Debug)]
pub(super) struct Syscalls {
    table: Vec<u64>,
    limits: Limits,
    /// Once there is a module: the ids of the events.
    events: Option<Rc<SyscallEvents>>,
}

impl Syscalls {
    pub(super) fn new(options: &SyscallOptions) -> Self {
        let wanted = |number: u64| match &options.only {
            None => true,
            Some(only) => only.contains(&number),
        };
        Self {
            table: table(&wanted, options.bare, options.whole),
            // Each event reserves the room of the largest one.
            limits: match (options.bare, options.whole) {
                (true, _) => Limits::of(0),
                (false, true) => Limits::of(options.buffer).unabridged(),
                (false, false) => Limits::of(options.buffer),
            },
            events: None,
        }
    }

    /// How they are recorded, once there is a module.
    pub(super) fn events(&self) -> Option<Rc<SyscallEvents>> {
        self.events.clone()
    }
}

impl Probes {
    /// The instructions of a module that call the kernel.
    pub(super) fn syscalls(
        &mut self,
        planning: &Planning<'_>,
        output: &mut Output<'_>,
    ) -> Result<Probed> {
        let image = planning.image;
        let places = places(image);
        if places.is_empty() {
            return Ok(Probed::default());
        }
        let Some(events) = self.events_of_syscalls(places[0], output)? else {
            return Ok(Probed::default());
        };
        let options = PlanOptions {
            breakpoints: self.breakpoints,
            ..PlanOptions::default()
        };
        let plan = planning.plan_probes(Wanted::At(&places), &options)?;
        let refused = plan.refused.into_iter();
        let refused = refused.filter(|refused| is_call(refused, image));
        let mut left: Vec<_> = refused.collect();
        let mut sites = plan.sites;
        // Those are never executed where they are, for hodo replaces them; what uses their bytes is.
        let (replaced, clashes) = take_clashing(image, &mut sites, false);
        left.extend(
            (replaced.iter().skip(clashes))
                .flat_map(|site| &site.probes)
                .map(|probe| RefusedProbe {
                    addr: probe.addr,
                    what: Refused::Instruction,
                    insn: String::new(),
                    reason: "hodo itself replaces the bytes that it needs".to_owned(),
                }),
        );
        // Functions that deal with limits are hooked only where limits are raised.
        let (without_limits, _) = take_clashing(image, &mut sites, true);
        let mut probed = Probed {
            syscalls: Some(events),
            sites: sites.iter().map(with_probes).collect(),
            without_limits: without_limits.iter().map(with_probes).collect(),
            ..Probed::default()
        };
        left.sort_by_key(|refused| refused.addr);
        if let Some(first) = left.first() {
            probed.unwatched = true;
            let all = probed.sites.iter().chain(&probed.without_limits);
            let text = format!(
                "{}: of {} instructions that call the kernel {} cannot have a probe (the first, at {:#x}: {}): programs that have them \
                 stop at each system call, as under a debugger",
                image.path.display(),
                left.len() + all.map(|site| site.1.len()).sum::<usize>(),
                left.len(),
                first.addr,
                first.reason
            );
            let log = &mut output.log;
            log.line(&json!({"remark": {"pid": 0, "text": text}}))?;
        }
        Ok(probed)
    }

    /// How system calls are recorded: decided, and described in the log, at the first module that has any. Nothing if
    /// they are not recorded. `place`: one of them.
    fn events_of_syscalls(
        &mut self,
        place: u64,
        output: &mut Output<'_>,
    ) -> Result<Option<Rc<SyscallEvents>>> {
        let Some(syscalls) = &mut self.syscalls else {
            return Ok(None);
        };
        if let Some(events) = &syscalls.events {
            return Ok(Some(Rc::clone(events)));
        }
        let ids = (*output.next_id, *output.next_id + 1);
        if ids.1 > record::MAX_FUNCTION_ID {
            bail!("there are no more ids for events");
        }
        *output.next_id += 2;
        for (id, name) in [ids.0, ids.1].into_iter().zip(NAMES) {
            output.hits.push((place, name.to_owned()));
            output.log.line(&json!({"probe": {
                "id": id, "group": GROUP, "name": name, "symbol": name, "offset": 0, "args": [],
            }}))?;
        }
        let table = std::mem::take(&mut syscalls.table);
        let events = SyscallEvents {
            ids,
            rdpid: crate::has_rdpid(),
            table,
            limits: syscalls.limits,
        };
        Ok(Some(Rc::clone(syscalls.events.insert(Rc::new(events)))))
    }
}

/// Takes out the regions that overlap with functions that hodo hooks: with those that deal with limits, or with the
/// others. Returns them, followed by those that use their bytes, and how many overlap themselves.
pub(super) fn take_clashing(
    image: &Image,
    sites: &mut Vec<ProbeSite>,
    limits: bool,
) -> (Vec<ProbeSite>, usize) {
    let hooked = image.symbols(&HOOKED);
    let clashes = |site: &mut ProbeSite| {
        hooked.iter().zip(HOOKED).any(|(symbol, name)| {
            let is_limit = name.ends_with("rlimit");
            let overlaps = symbol.is_some_and(|function| {
                let start = function.start;
                let end = match is_limit || is_asked(name) {
                    true => hook_end(image, start, function.len()),
                    false => start + HOOK_LENGTH,
                };
                Span { start, end }.overlaps(site.displaced.clone().into())
            });
            overlaps && is_limit == limits
        })
    };
    let out: Vec<_> = sites.extract_if(.., clashes).collect();
    let clashing = out.len();
    (with_users(hodo_isa::NATIVE, out, sites), clashing)
}

/// A region each of whose probes records a system call.
fn with_probes(site: &ProbeSite) -> (SitePlan, Vec<Probe>) {
    let probes = site.probes.iter().map(|probe| Probe {
        addr: probe.addr,
        flags_dead: probe.flags_dead,
        free: probe.free,
        when: When::Hit,
        action: Action::Syscall,
    });
    (site_plan(site), probes.collect())
}

/// Whether a refused place is a system call that could be seen.
pub(super) fn is_call(refused: &RefusedProbe, image: &Image) -> bool {
    match refused.what {
        Refused::NoInstruction | Refused::LeftAlone => false,
        Refused::Unknown => calls_kernel(image, refused.addr),
        Refused::Instruction => true,
    }
}

/// Do the bytes around those of an instruction that calls the kernel look as if it were one? The number is loaded
/// before it, or the result is looked at after it.
fn calls_kernel(image: &Image, at: u64) -> bool {
    let around = (0..=NEAR).rev().find_map(|before| {
        let start = at.checked_sub(before)?;
        let code = image.at(start..at + SYSTEM_CALL.len() as u64 + 8)?;
        Some(code.split_at(before as usize))
    });
    around.is_none_or(|(before, code)| looks_like_call(before, &code[SYSTEM_CALL.len()..]))
}

/// Bytes in front of an instruction in which its number may be loaded.
const NEAR: u64 = 16;

/// Whether the hook of the function with this name asks first, and then lets it make its call.
pub(super) fn is_asked(name: &str) -> bool {
    ASKED.iter().any(|(asked, _)| *asked == name)
}

/// Where the code ends that a hook moves away of a function that deals with limits, or asks first.
fn hook_end(image: &Image, addr: u64, size: u64) -> u64 {
    let code = image.at(addr..addr + size);
    let window = code.map(|code| hodo_codegen::native::patch::window(code, addr, true));
    match window {
        Some(Ok(window)) => window.end,
        // It is not hooked.
        _ => addr,
    }
}

/// Where the bytes of `syscall` stand in the code: link-time addresses.
pub(super) fn places(image: &Image) -> Vec<u64> {
    let mut places = Vec::new();
    for segment in image.segments.iter().filter(|segment| segment.executable) {
        let Some(code) = image.at(segment.addr..segment.addr + segment.size) else {
            continue;
        };
        // The bytes of one call are never part of another's.
        let found: Vec<usize> = memchr::memmem::find_iter(code, &SYSTEM_CALL).collect();
        for &at in &found {
            let leads_on = |at: usize| ends_thread(&code[at + SYSTEM_CALL.len()..]);
            // The one after it belongs to the same.
            let before = found
                .iter()
                .any(|&first| first < at && at - first < 16 && leads_on(first));
            if !leads_on(at) && !before {
                places.push(segment.addr + at as u64);
            }
        }
    }
    places
}
