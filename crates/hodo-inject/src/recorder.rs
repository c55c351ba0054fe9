//! What installing asks of the recording that it works for, and reports to it.

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
    /// Bytes of it that are mapped.
    pub size: u64,
}

/// The recording for which an address space is changed.
pub trait Recorder {
    /// How calls are recorded.
    fn recording(&self) -> Recording;

    /// The module of a file, planned if it is new. `real` is where to read it, `path` what it is called. `program`: it
    /// is no library.
    ///
    /// # Errors
    /// If the file cannot be read or planned, or what is said of it not be written.
    fn module(&mut self, real: &Path, path: &Path, program: bool) -> Result<Rc<Module>>;

    /// Whether functions of a library are traced, as far as its path says.
    fn selects_library(&self, path: &Path) -> bool;

    /// Whether a definition of a probe names the file of this path.
    fn probes_path(&self, path: &Path) -> bool;

    /// Whether a probe or an event belongs to this file.
    fn probes(&self, image: &Image) -> bool;

    /// Why a definition that names this file has no place in it, if so.
    fn unplaced_in(&self, path: &Path) -> Option<String>;

    /// Whether a probe records stack traces.
    fn traces_stacks(&self) -> bool;

    /// Whether static keys matter at all.
    fn wants_keys(&self) -> bool;

    /// Whether a static key of the file of this path is to be switched on.
    fn wants_key(&self, key: &Key, path: &Path) -> bool;

    /// Whether much room is to be kept for changes of the recording.
    fn is_roomy(&self) -> bool;

    /// The trace.
    fn events(&self) -> Shared<'_>;

    /// The counters, and the tables of histograms: those that there are.
    fn tables(&self) -> (Option<Shared<'_>>, Option<Shared<'_>>);

    /// Takes what is mapped in a process, if a reader needs to know that.
    ///
    /// # Errors
    /// If it cannot be written.
    fn log_map(&mut self, pid: i32, mapping: &Mapping) -> Result<()>;

    /// The same of islands: start and length.
    ///
    /// # Errors
    /// If it cannot be written.
    fn log_islands(&mut self, pid: i32, islands: &[Span]) -> Result<()>;

    /// Takes something that the user should know of a process, or with 0 of all.
    ///
    /// # Errors
    /// If it cannot be written.
    fn remark(&mut self, pid: i32, text: &str) -> Result<()>;
}
