//! `hodo syscalls`: events around each instruction that calls the kernel.

use std::rc::Rc;

use anyhow::{Result, bail};
use hodo_codegen::native::detour::{Action, When};
use hodo_patch::{Probe, SyscallEvents};
use hodo_plan::PlanOptions;
use hodo_plan::model::{ProbeSite, Refused, RefusedProbe, Wanted};
use hodo_trace::format::record;
use hodo_trace::syscalls::{GROUP, NAMES, table_with};
use serde_json::json;

use super::overlap::with_users;
use super::placement::HOOK_LENGTH;
use super::{Probes, site_plan};
use crate::arch::{ends_thread, looks_like_call};
use hodo_module::HOOKED;
use hodo_module::Image;
use hodo_module::Probed;
use hodo_module::cache;

use crate::Log;
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
}

/// How system calls are recorded.
#[derive(Debug)]
pub(super) struct Syscalls {
    table: Vec<u64>,
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
            table: table_with(&wanted, options.bare, options.buffer),
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
        image: &Image,
        next_id: &mut u32,
        hits: &mut Vec<(u64, String)>,
        log: &mut dyn Log,
    ) -> Result<Probed> {
        let places = places(image);
        let Some(syscalls) = &mut self.syscalls else {
            return Ok(Probed::default());
        };
        if places.is_empty() {
            return Ok(Probed::default());
        }
        let events = match &syscalls.events {
            Some(events) => Rc::clone(events),
            None => {
                let ids = (*next_id, *next_id + 1);
                if ids.1 > record::MAX_FUNCTION_ID {
                    bail!("there are no more ids for events");
                }
                *next_id += 2;
                for (id, name) in [ids.0, ids.1].into_iter().zip(NAMES) {
                    hits.push((places[0], name.to_owned()));
                    log.line(&json!({"probe": {
                        "id": id, "group": GROUP, "name": name, "symbol": name, "offset": 0, "args": [],
                    }}))?;
                }
                let table = std::mem::take(&mut syscalls.table);
                let events = SyscallEvents {
                    ids,
                    rdpid: self.rdpid,
                    table,
                };
                Rc::clone(syscalls.events.insert(Rc::new(events)))
            }
        };
        let options = PlanOptions::default();
        let plan = cache::plan_probes(image, Wanted::At(&places), &options)?;
        let mut left: Vec<_> = plan
            .refused
            .into_iter()
            .filter(|refused| match refused.what {
                Refused::NoInstruction | Refused::LeftAlone => false,
                Refused::Unknown => calls_kernel(image, refused.addr),
                Refused::Instruction => true,
            })
            .collect();
        let hooked = image.symbols(&HOOKED);
        let mut probed = Probed {
            syscalls: Some(events),
            ..Probed::default()
        };
        let mut sites = plan.sites;
        let mut clashing = |limits: bool| {
            let clashes = |site: &mut ProbeSite| {
                hooked.iter().zip(HOOKED).any(|(symbol, name)| {
                    let is_limit = name.ends_with("rlimit");
                    let overlaps = symbol.is_some_and(|(addr, size)| {
                        let end = match is_limit {
                            true => hook_end(image, addr, size),
                            false => addr + HOOK_LENGTH,
                        };
                        site.displaced.start < end && addr < site.displaced.end
                    });
                    overlaps && is_limit == limits
                })
            };
            let out: Vec<_> = sites.extract_if(.., clashes).collect();
            let clashing = out.len();
            (with_users(out, &mut sites), clashing)
        };
        // Those are never executed, for hodo replaces them; what uses their bytes is.
        let (replaced, clashes) = clashing(false);
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
        let (without_limits, _) = clashing(true);
        let with_probes = |site: &ProbeSite| {
            let probes = site.probes.iter().map(|probe| Probe {
                addr: probe.addr,
                flags_dead: probe.flags_dead,
                free: probe.free,
                when: When::Hit,
                action: Action::Syscall,
            });
            (site_plan(site), probes.collect())
        };
        probed.sites = sites.iter().map(with_probes).collect();
        probed.without_limits = without_limits.iter().map(with_probes).collect();
        left.sort_by_key(|refused| refused.addr);
        let count = left.len();
        if count > 0 {
            let first = left
                .first()
                .map(|refused| format!(" (the first, at {:#x}: {})", refused.addr, refused.reason));
            probed.unwatched = true;
            let all = probed.sites.iter().chain(&probed.without_limits);
            let text = format!(
                "{}: of {} instructions that call the kernel {count} cannot have a probe{}: programs that have them stop at each system \
                 call, as under a debugger",
                image.path.display(),
                count + all.map(|site| site.1.len()).sum::<usize>(),
                first.unwrap_or_default()
            );
            log.line(&json!({"remark": {"pid": 0, "text": text}}))?;
        }
        Ok(probed)
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

/// Where the code ends that a hook moves away of a function that deals with limits.
fn hook_end(image: &Image, addr: u64, size: u64) -> u64 {
    let code = image.at(addr..addr + size);
    let window = code.map(|code| hodo_codegen::native::patch::window(code, addr));
    match window {
        Some(Ok(window)) => window.end,
        // It is not hooked.
        _ => addr,
    }
}

/// Where the bytes of `syscall` stand in the code: link-time addresses.
fn places(image: &Image) -> Vec<u64> {
    let mut places = Vec::new();
    for segment in image.segments.iter().filter(|segment| segment.executable) {
        let Some(code) = image.at(segment.addr..segment.addr + segment.size) else {
            continue;
        };
        let found = code
            .windows(SYSTEM_CALL.len())
            .enumerate()
            .filter(|(_, bytes)| *bytes == SYSTEM_CALL);
        let found: Vec<usize> = found.map(|(at, _)| at).collect();
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
