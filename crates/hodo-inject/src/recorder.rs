//! What installing needs from its recording, and reports to it.

use std::fs::File;
use std::path::Path;
use std::rc::Rc;

use anyhow::Result;
use hodo_abi::Span;
use hodo_module::{Image, Module};
use hodo_patch::Recording;
use hodo_ptrace::maps::Mapping;
use hodo_symbols::Key;

/// A file of the recording that is mapped into its processes.
#[derive(Debug, Clone, Copy)]
pub struct Shared<'a> {
    /// The file.
    pub file: &'a File,
    /// Where it is.
    pub path: &'a Path,
    /// How many bytes of it are mapped.
    pub size: u64,
}

/// The recording for which an address space is changed.
pub trait Recorder {
    /// How calls are recorded.
    fn recording(&self) -> Recording;

    /// A process with files of its own, as in a container, is observed: definitions may name files as it does.
    fn observes(&mut self, pid: i32);

    /// The module of a file, planned if it is new. `real` is the path to read, `path` its name. `program`: it is not a
    /// library.
    ///
    /// # Errors
    /// If the file cannot be read or planned, or its records cannot be written.
    fn module(&mut self, real: &Path, path: &Path, program: bool) -> Result<Rc<Module>>;

    /// Whether functions of a library are traced, judged by its path.
    fn selects_library(&self, path: &Path) -> bool;

    /// Whether a definition of a probe names the file of this path.
    fn probes_path(&self, path: &Path) -> bool;

    /// Whether a probe or event is in this file.
    fn probes(&self, image: &Image) -> bool;

    /// Why a definition that names this file has no place in it, if that is so.
    fn unplaced_in(&self, path: &Path) -> Option<String>;

    /// Whether a probe records stack traces.
    fn traces_stacks(&self) -> bool;

    /// Whether static keys matter.
    fn wants_keys(&self) -> bool;

    /// Whether to switch on a static key of the file with this path.
    fn wants_key(&self, key: &Key, path: &Path) -> bool;

    /// Whether to reserve much room for changes of the recording.
    fn is_roomy(&self) -> bool;

    /// The trace.
    fn events(&self) -> Shared<'_>;

    /// The counters, and the tables of histograms, if there are any.
    fn tables(&self) -> (Option<Shared<'_>>, Option<Shared<'_>>);

    /// Records what is mapped in a process, if a reader needs to know that.
    ///
    /// # Errors
    /// If it cannot be written.
    fn log_map(&mut self, pid: i32, mapping: &Mapping) -> Result<()>;

    /// Records the islands of a process: start and length.
    ///
    /// # Errors
    /// If it cannot be written.
    fn log_islands(&mut self, pid: i32, islands: &[Span]) -> Result<()>;

    /// Records something that the user should know about a process, or about all of them if `pid` is 0.
    ///
    /// # Errors
    /// If it cannot be written.
    fn remark(&mut self, pid: i32, text: &str) -> Result<()>;
}
