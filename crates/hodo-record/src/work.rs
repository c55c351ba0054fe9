//! What a recording provides for changes of address spaces.

use std::path::Path;
use std::rc::Rc;

use anyhow::Result;
use hodo_abi::Span;
use hodo_inject::recorder::{Recorder, Shared};
use hodo_module::mapped::Root;
use hodo_module::{Image, Module};
use hodo_patch::Recording;
use hodo_ptrace::maps::Mapping;
use hodo_symbols::Key;
use hodo_trace::format::counters;
use serde_json::json;

use crate::modules::Modules;
use crate::select::Selection;
use crate::session::Session;

/// A recording, as far as changes of address spaces need it.
pub struct Work<'a> {
    /// The files.
    pub modules: &'a mut Modules,
    /// The trace.
    pub session: &'a mut Session,
    /// What is traced.
    pub selection: &'a Selection,
    /// How it is recorded.
    pub recording: Recording,
}

impl Recorder for Work<'_> {
    fn recording(&self) -> Recording {
        self.recording
    }

    fn observes(&mut self, pid: i32) {
        if let Some(root) = Root::of(pid) {
            self.modules.probes.see_from(root);
        }
    }

    fn module(&mut self, real: &Path, path: &Path, program: bool) -> Result<Rc<Module>> {
        self.modules
            .get(real, path, self.selection, program, self.session)
    }

    fn selects_library(&self, path: &Path) -> bool {
        self.selection.module(path, false)
    }

    fn probes_path(&self, path: &Path) -> bool {
        self.modules.probes.name(path)
    }

    fn probes(&self, image: &Image) -> bool {
        self.modules.probes.concern(image)
    }

    fn unplaced_in(&self, path: &Path) -> Option<String> {
        self.modules.probes.unplaced_in(path)
    }

    fn traces_stacks(&self) -> bool {
        self.modules.probes.trace_stacks()
    }

    fn wants_keys(&self) -> bool {
        self.modules.probes.want_keys()
    }

    fn wants_key(&self, key: &Key, path: &Path) -> bool {
        self.modules.probes.want_key(key, path)
    }

    fn is_roomy(&self) -> bool {
        self.session.roomy
    }

    fn events(&self) -> Shared<'_> {
        let events = &self.session.events;
        Shared {
            file: events.file(),
            path: events.path(),
            size: events.span(),
        }
    }

    fn tables(&self) -> (Option<Shared<'_>>, Option<Shared<'_>>) {
        let counters = self.session.counters.as_ref();
        let counters = counters.map(|(file, path)| Shared {
            file,
            path,
            size: counters::SIZE,
        });
        let histograms = self.session.histograms.as_ref();
        let histograms = histograms.map(|(file, path, size)| Shared {
            file,
            path,
            size: *size,
        });
        (counters, histograms)
    }

    fn log_map(&mut self, pid: i32, mapping: &Mapping) -> Result<()> {
        match self.modules.probes.want_maps() {
            true => self.session.log_map(pid, mapping),
            false => Ok(()),
        }
    }

    fn log_islands(&mut self, pid: i32, islands: &[Span]) -> Result<()> {
        match self.modules.probes.want_maps() {
            true => self.session.log_islands(pid, islands),
            false => Ok(()),
        }
    }

    fn remark(&mut self, pid: i32, text: &str) -> Result<()> {
        self.session
            .log(&json!({"remark": {"pid": pid, "text": text}}))
    }
}
