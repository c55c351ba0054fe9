//! Directories for recordings that are not kept. A file in the directory is locked (`flock`) as long as its hodo lives.
//! If a hodo was killed, the next one that creates a directory removes the old one.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tempfile::TempDir;

const PREFIX: &str = "hodo-live-";
/// The name of the locked file.
const LOCK: &str = "lock";
/// If an empty directory is older than this, its hodo will not lock it any more.
const YOUNG: Duration = Duration::from_secs(60);

/// A directory that is removed with this value.
#[derive(Debug)]
pub struct Temporary {
    directory: TempDir,
    lock: File,
}

/// Locks a file. Returns whether this was possible, so that nobody else holds the lock.
fn lock(file: &File) -> bool {
    // SAFETY: flock takes a descriptor, which is open.
    unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) == 0 }
}

impl Temporary {
    /// Creates a directory below the one for temporary files, and removes unused ones of this user.
    ///
    /// # Errors
    /// If it cannot be created.
    pub fn make() -> io::Result<Self> {
        let above = std::env::temp_dir();
        for stale in others(&above) {
            remove_stale(&stale);
        }
        let directory = tempfile::Builder::new().prefix(PREFIX).tempdir_in(&above)?;
        // Nobody finds the file before it is locked.
        let unlocked = directory.path().join("lock.new");
        let lock = File::create(&unlocked)?;
        self::lock(&lock);
        fs::rename(&unlocked, directory.path().join(LOCK))?;
        Ok(Self { directory, lock })
    }

    /// Returns the path of the directory.
    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    /// Removes the directory.
    ///
    /// # Errors
    /// If it cannot be removed.
    pub fn close(self) -> io::Result<()> {
        let closed = self.directory.close();
        drop(self.lock);
        closed
    }
}

/// Returns other directories of this user with such names.
fn others(above: &Path) -> Vec<PathBuf> {
    // SAFETY: geteuid only returns a number.
    let me = unsafe { libc::geteuid() };
    let entries = fs::read_dir(above).into_iter().flatten().flatten();
    let named = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(PREFIX));
    // Links are skipped, so that they are not followed.
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
        // Its hodo was killed before it had the lock, or is about to take it. Only empty directories can be removed in
        // this way.
        Err(_) => {
            let age = fs::metadata(directory).and_then(|found| found.modified());
            if age.is_ok_and(|at| at.elapsed().is_ok_and(|age| age > YOUNG)) {
                let _ = fs::remove_dir(directory);
            }
        }
    }
}
