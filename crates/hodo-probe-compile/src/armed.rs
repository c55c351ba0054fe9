//! The probes that are in place, as a list.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use hodo_module::Probed;
use hodo_plan::model::{SitePlan, Tactic};
use hodo_symbols::{Style, demangle};
use hodo_trace::syscalls::GROUP;
use serde_json::{Value, json};

use super::Probes;
use super::wanted::{Places, ProbePoint};
use hodo_probe_syntax::Location;

/// The places of all files that were compiled.
#[derive(Debug, Default)]
pub(super) struct Armed(Vec<(PathBuf, Places)>);

impl Armed {
    /// Adds those of a file.
    pub(super) fn add(&mut self, path: &Path, places: Places) {
        self.0.push((path.to_owned(), places));
    }
}

/// A place of a file whose code is changed for a probe.
#[derive(Debug, Clone, Copy)]
pub struct ArmedPlace<'s> {
    /// Its link-time address.
    pub addr: u64,
    /// How the code is changed.
    pub site: &'s SitePlan,
}

/// What a list of probes needs of a recording.
pub struct List<'l> {
    /// The values of the counters.
    pub counters: &'l [u64],
    /// Returns whether the switch at an offset of the events file is on.
    pub is_on: &'l dyn Fn(u32) -> bool,
    /// Returns where a place is in memory, if its change is in effect.
    pub written: &'l dyn Fn(ArmedPlace<'_>) -> Option<u64>,
}

impl Probes {
    /// The probes of a file that are in place, in the order of their addresses: one object each, as [`List`] knows
    /// them.
    pub fn list_armed(&self, path: &Path, probed: &Probed, list: &List<'_>) -> Vec<Value> {
        let hits = self.hits(path, list.counters);
        let mut sites: Vec<&SitePlan> = probed.sites.iter().map(|(site, _)| site).collect();
        sites.sort_by_key(|site| site.displaced.start);
        let at = |addr: u64| {
            let after = sites.partition_point(|site| site.displaced.start <= addr);
            let site = *sites.get(after.checked_sub(1)?)?;
            let addr_inside = site.displaced.contains(&addr);
            let place = ArmedPlace { addr, site };
            addr_inside.then(|| Some((site, (list.written)(place)?)))?
        };
        let files = self.armed.0.iter().filter(|(known, _)| known == path);
        let all = files.flat_map(|(_, places)| places.all());
        let armed = all.filter(|(_, point)| !self.follows_names(point.definition));
        armed
            .filter_map(|(addr, point)| {
                let (site, runtime) = at(addr)?;
                let hits = hits.get(&(point.definition, addr)).copied();
                Some(self.armed_one((addr, point), (site, runtime), hits, list))
            })
            .collect()
    }

    fn armed_one(
        &self,
        (addr, point): (u64, &ProbePoint),
        (site, runtime): (&SitePlan, u64),
        hits: Option<u64>,
        list: &List<'_>,
    ) -> Value {
        let definition = &self.definitions[point.definition];
        let is_call = self.kernel_calls.has(point.definition);
        let kind = match (&definition.place, point.returns) {
            _ if is_call => "s",
            (_, true) => "r",
            (Location::Usdt { .. }, false) => "u",
            _ => "p",
        };
        let mut flags = Vec::new();
        let switch = self.switches.of(point.definition).filter(|_| !is_call);
        if switch.is_some_and(|byte| !(list.is_on)(byte)) {
            flags.push("DISABLED");
        }
        if definition.after {
            flags.push("POST");
        }
        if site.tactic != Tactic::Trap {
            flags.push("OPTIMIZED");
        }
        let offset = point.offset(addr);
        // All events of system calls are at the same places.
        let (group, name) = match is_call {
            true => (GROUP, "*".to_owned()),
            false => {
                let name = super::name_of(definition, &point.symbol, offset);
                (&*definition.group, name)
            }
        };
        json!({
            "addr": runtime, "kind": kind, "symbol": demangle(&point.symbol, Style::Simple), "offset": offset,
            "flags": flags, "hits": hits, "group": group, "name": name,
        })
    }

    /// By definition and link-time address in a file, how often the place was hit, as far as it is counted.
    fn hits(&self, path: &Path, counters: &[u64]) -> HashMap<(usize, u64), u64> {
        let path = path.to_string_lossy();
        let counted = self.counts.hits(counters);
        let here = counted.filter(|(counted, _)| !counted.missed && *counted.path == *path);
        here.flat_map(|(counted, hits)| hits.map(|(addr, hits)| ((counted.definition, addr), hits)))
            .collect()
    }
}
