//! Directories for recordings that are not kept. The one of a hodo that was killed is removed by the next that makes
//! one: a file in it is locked (`flock`) while its hodo lives.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tempfile::TempDir;

const PREFIX: &str = "hodo-live-";
/// The file in it that is locked.
const LOCK: &str = "lock";
/// An empty directory that is older than this is not about to get its lock.
const YOUNG: Duration = Duration::from_secs(60);

/// A directory that goes with this value.
#[derive(Debug)]
pub struct Temporary {
    directory: TempDir,
    lock: File,
}

/// Whether a file could be locked: nobody else has done so.
fn lock(file: &File) -> bool {
    // SAFETY: flock takes a descriptor, which is open.
    unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) == 0 }
}

impl Temporary {
    /// Makes one in the directory for temporary files, and removes those of this user that nobody uses.
    ///
    /// # Errors
    /// If it cannot be made.
    pub fn make() -> io::Result<Self> {
        let above = std::env::temp_dir();
        for stale in others(&above) {
            remove_stale(&stale);
        }
        let directory = tempfile::Builder::new().prefix(PREFIX).tempdir_in(&above)?;
        // Nobody finds it before it is locked.
        let unlocked = directory.path().join("lock.new");
        let lock = File::create(&unlocked)?;
        self::lock(&lock);
        fs::rename(&unlocked, directory.path().join(LOCK))?;
        Ok(Self { directory, lock })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    /// Removes it.
    ///
    /// # Errors
    /// If that cannot be.
    pub fn close(self) -> io::Result<()> {
        let closed = self.directory.close();
        drop(self.lock);
        closed
    }
}

/// Directories of this user with such names.
fn others(above: &Path) -> Vec<PathBuf> {
    // SAFETY: geteuid only returns a number.
    let me = unsafe { libc::geteuid() };
    let entries = fs::read_dir(above).into_iter().flatten().flatten();
    let named = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(PREFIX));
    // A link is none: what it leads to is not followed here.
    let ours = named
        .filter(|entry| (entry.metadata()).is_ok_and(|found| found.is_dir() && found.uid() == me));
    ours.map(|entry| entry.path()).collect()
}

fn remove_stale(directory: &Path) {
    match File::open(directory.join(LOCK)) {
        Ok(file) => {
            if lock(&file) {
                let _ = fs::remove_dir_all(directory);
            }
        }
        // Its hodo was killed before it had a lock, or is about to make it. Only what is empty can be removed so.
        Err(_) => {
            let age = fs::metadata(directory).and_then(|found| found.modified());
            if age.is_ok_and(|at| at.elapsed().is_ok_and(|age| age > YOUNG)) {
                let _ = fs::remove_dir(directory);
            }
        }
    }
}
