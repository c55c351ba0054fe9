//! Where threads entered the code of files in earlier runs: it is translated before they come there, so they need not
//! stop for it.
//!
//! And their translations: images. These are used for exactly the code that they were made from, by the hodo that made
//! them, if they belong to the user and their checksums are right.

use std::path::{Path, PathBuf};

use hodo_module::cache::{Entered, EnteredFile};
use rustc_hash::{FxHashMap, FxHashSet};

/// The maximum number of places that are kept of a file for a program.
const MOST: usize = 20_000;

/// What is known of a file.
#[derive(Debug)]
struct File {
    /// `None`: nothing is kept.
    place: Option<EnteredFile>,
    entered: Entered,
    starts: FxHashSet<u32>,
    targets: FxHashSet<u32>,
    /// How many starts and targets there were when it was read or written.
    before: usize,
}

impl File {
    fn open(program: &Path, file: &Path) -> Self {
        let place = EnteredFile::new(program, file);
        let entered = place.as_ref().and_then(EnteredFile::read);
        let entered = entered.unwrap_or_default();
        Self {
            place,
            starts: entered.starts.iter().copied().collect(),
            targets: entered.targets.iter().copied().collect(),
            before: entered.starts.len() + entered.targets.len(),
            entered,
        }
    }

    fn write(&mut self) {
        let now = self.entered.starts.len() + self.entered.targets.len();
        if let Some(place) = &self.place
            && now > self.before
        {
            place.write(&self.entered);
        }
        self.before = now;
    }
}

/// Where threads have entered the code of files, by program and file.
#[derive(Debug, Default)]
pub(crate) struct Kept(FxHashMap<(PathBuf, PathBuf), File>);

impl Kept {
    fn file(&mut self, program: &Path, file: &Path) -> &mut File {
        let key = (program.to_owned(), file.to_owned());
        let new = || File::open(program, file);
        self.0.entry(key).or_insert_with(new)
    }

    /// Where earlier runs of a program have entered a file.
    pub(crate) fn of(&mut self, program: &Path, file: &Path) -> Entered {
        self.file(program, file).entered.clone()
    }

    /// An instruction was entered. `is_target`: by a return or an indirect branch.
    pub(crate) fn note(&mut self, program: &Path, file: &Path, offset: u64, is_target: bool) {
        let Ok(offset) = u32::try_from(offset) else {
            return;
        };
        let file = self.file(program, file);
        let (set, list) = match is_target {
            true => (&mut file.targets, &mut file.entered.targets),
            false => (&mut file.starts, &mut file.entered.starts),
        };
        if list.len() < MOST && set.insert(offset) {
            list.push(offset);
        }
    }

    /// Keeps what is new for later runs.
    pub(crate) fn write(&mut self) {
        for file in self.0.values_mut() {
            file.write();
        }
    }
}
