//! The files from which the program's code is, and what is known of them from earlier.

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use hodo_abi::Span;
use hodo_module::cache::Entered;
use hodo_ptrace::maps::Mapping;
use rustc_hash::FxHashMap;

use crate::kept::Kept;
use crate::unloaded::{Left, Unloaded};

/// The files from which the program's code is.
#[derive(Debug, Clone)]
pub(super) struct Files {
    kept: Rc<RefCell<Kept>>,
    /// The program.
    program: PathBuf,
    /// Code from files, in ascending order; `None`: it is to be read.
    mappings: Option<Rc<Vec<Mapping>>>,
    /// Mappings whose code was translated as far as earlier runs have entered it, by where they begin.
    prepared: FxHashMap<u64, Mapping>,
    unloaded: Unloaded,
}

impl Files {
    pub(super) fn new(program: PathBuf, kept: Rc<RefCell<Kept>>) -> Self {
        Self {
            kept,
            program,
            mappings: None,
            prepared: FxHashMap::default(),
            unloaded: Unloaded::default(),
        }
    }

    /// The program.
    pub(super) fn program(&self) -> &Path {
        &self.program
    }

    /// Whether it is known which mappings have code.
    pub(super) fn are_listed(&self) -> bool {
        self.mappings.is_some()
    }

    /// These mappings have code.
    pub(super) fn list(&mut self, mappings: Vec<Mapping>) {
        self.mappings = Some(Rc::new(mappings));
    }

    /// The mappings that have code, if they are known.
    pub(super) fn mappings(&self) -> Rc<Vec<Mapping>> {
        self.mappings.clone().unwrap_or_default()
    }

    /// There are other ones.
    pub(super) fn forget_list(&mut self) {
        self.mappings = None;
    }

    /// The mapping that has this code.
    pub(super) fn mapping(&self, pc: u64) -> Option<&Mapping> {
        let mappings = self.mappings.as_ref()?;
        let next = mappings.partition_point(|map| map.start <= pc);
        let map = mappings.get(next.checked_sub(1)?)?;
        map.span().contains(pc).then_some(map)
    }

    /// A thread has entered a file here, or a target of branches is here.
    pub(super) fn note(&self, file: &Path, offset: u64, is_target: bool) {
        let mut kept = self.kept.borrow_mut();
        kept.note(&self.program, file, offset, is_target);
    }

    /// Where earlier runs have entered a file.
    pub(super) fn entered(&self, file: &Path) -> Entered {
        self.kept.borrow_mut().of(&self.program, file)
    }

    /// The code of a mapping is entered. Returns whether for the first time.
    pub(super) fn begin(&mut self, map: &Mapping) -> bool {
        self.prepared.insert(map.start, map.clone()).is_none()
    }

    /// The only mapping that was entered and has some of this range.
    pub(super) fn only_begun(&self, range: Span) -> Option<Mapping> {
        let begun = self.prepared.values();
        let mut begun = begun.filter(|map| range.overlaps(map.span()));
        let map = begun.next()?.clone();
        begun.next().is_none().then_some(map)
    }

    /// Mappings that begin in this range have not been entered.
    pub(super) fn end(&mut self, range: Span) {
        self.prepared.retain(|&start, _| !range.contains(start));
    }

    /// Nothing was translated of any mapping.
    pub(super) fn forget_translations(&mut self) {
        self.prepared.clear();
        self.unloaded = Unloaded::default();
    }

    /// Keeps translations of a mapping that is unloaded.
    pub(super) fn leave(&mut self, left: Left) {
        self.unloaded.put(left);
    }

    /// Translations of a mapping from before it was unloaded.
    pub(super) fn take_left(&mut self, map: &Mapping) -> Option<Left> {
        self.unloaded.take(map)
    }
}
