//! The list of the probes that are in place in a process.

use std::collections::HashSet;

use anyhow::{Context, Result, bail};
use hodo_probe_compile::List;
use serde_json::{Value, json};

use super::Tracer;

impl Tracer<'_> {
    /// The probes that are in place in a process, in the order of their addresses, as a list of objects.
    ///
    /// # Errors
    /// If the process is not recorded, or the counters cannot be read.
    pub(super) fn armed(&self, pid: i32) -> Result<String> {
        let probes = &self.modules.probes;
        if probes.records_syscalls() {
            bail!("process {pid} is recorded by `hodo syscalls`, whose probes have no definitions");
        }
        let thread = self.threads.get(&pid);
        let space = thread.and_then(|thread| thread.space.as_ref());
        let space = space.with_context(|| format!("process {pid} has no probes yet"))?;
        let space = space.borrow();
        let places = space.changed_places();
        let counters = self
            .session
            .counts(probes.counts.counters(), self.next_tcb)?;
        let mut all: Vec<Value> = Vec::new();
        let mut seen = HashSet::new();
        for file in space.changed_files() {
            // What was written at different times may be in the list more than once.
            if !seen.insert((file.bias, &file.image.path)) {
                continue;
            }
            let mut modules = self.modules.all();
            let Some(module) = modules.find(|module| module.image.path == file.image.path) else {
                continue;
            };
            let list = List {
                counters: &counters,
                is_on: &|byte| self.session.events.switch(byte.into()),
                written: &|place| {
                    let patch = file.bias.wrapping_add(place.site.patch);
                    places
                        .contains(&patch)
                        .then(|| file.bias.wrapping_add(place.addr))
                },
            };
            let path = &file.image.path;
            for mut one in probes.list_armed(path, &module.probed, &list) {
                one["module"] = path.to_string_lossy().into();
                all.push(one);
            }
        }
        all.sort_by_key(|one| one["addr"].as_u64());
        Ok(json!(all).to_string())
    }
}
