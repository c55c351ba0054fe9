//! Where a recording is written, and what happens to an older one there.
//!
//! The directory of a recording is locked (`flock`) while its hodo lives: a hodo that finds it locked takes another
//! directory. Directories are searched, made and renamed under a lock on the parent directory.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, FileExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use hodo_trace::format::file_header;

/// Maximum number of recordings with directories next to each other: `hodo.data`, `hodo.data.1`, …
const MOST: u32 = 1000;

/// How long another hodo may be at work in the same directory. It takes milliseconds, unless it was stopped.
const PATIENCE: Duration = Duration::from_secs(2);

/// The directory of a recording. The older recording is restored if the new one does not begin.
#[derive(Debug)]
pub struct TraceDir {
    path: PathBuf,
    /// The lock on it.
    lock: Option<File>,
    /// Whether there was an older recording.
    kept: bool,
    begun: bool,
}

/// Locks a file or directory. `None`: another process has locked it. `Some(None)`: it cannot be locked, as on some file
/// systems.
fn lock(path: &Path) -> Option<Option<File>> {
    let Ok(file) = File::open(path) else {
        return Some(None);
    };
    // SAFETY: flock takes a descriptor, which is open.
    if unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } == 0 {
        return Some(Some(file));
    }
    match io::Error::last_os_error().kind() {
        io::ErrorKind::WouldBlock => None,
        _ => Some(None),
    }
}

/// Locks the parent directory, if possible.
fn lock_above(directory: &Path) -> Option<File> {
    let above = match directory.parent() {
        Some(above) if !above.as_os_str().is_empty() => above,
        _ => Path::new("."),
    };
    let begun = Instant::now();
    loop {
        match lock(above) {
            Some(locked) => return locked,
            None if begun.elapsed() > PATIENCE => return None,
            None => std::thread::sleep(Duration::from_millis(1)),
        }
    }
}

/// Whether another running hodo uses this directory.
fn is_in_use(directory: &Path) -> bool {
    lock(directory).is_none()
}

fn is_trace(directory: &Path) -> bool {
    directory.join("info.json").is_file() && directory.join("events").is_file()
}

/// Whether a directory contains only what hodo creates first: then that hodo was killed before it recorded anything.
fn is_unfinished(directory: &Path) -> bool {
    const FIRST: [&str; 5] = [
        "events",
        "log.jsonl",
        "reserve",
        "info.json",
        "info.json.new",
    ];
    let Ok(entries) = fs::read_dir(directory) else {
        return false;
    };
    let ours = entries.flatten().all(|entry| {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        FIRST.contains(&&*name) || name.starts_with("module-") && name.ends_with(".sym")
    });
    ours && directory.join("reserve").is_file() && !has_tasks(directory)
        || ours && !directory.join("info.json").is_file()
}

/// Whether a task has begun, or chunks were handed out (if the disk is full, tasks may be missing in the log).
fn has_tasks(directory: &Path) -> bool {
    let log = fs::read_to_string(directory.join("log.jsonl")).unwrap_or_default();
    let mut chunks = [0; 8];
    let read = File::open(directory.join("events"))
        .and_then(|events| events.read_exact_at(&mut chunks, file_header::NEXT_CHUNK));
    log.lines().any(|line| line.starts_with("{\"task\"")) || read.is_ok() && chunks != [0; 8]
}

/// Where an older trace is kept until the new one begins: next to the directory, like NAME.old.
fn aside(directory: &Path, suffix: &str) -> PathBuf {
    let mut path = directory.as_os_str().to_owned();
    path.push(suffix);
    path.into()
}

/// Moves an older trace out of the way, to NAME.kept. It becomes NAME.old only when the new one has begun, so that
/// earlier failures change nothing. Returns whether there was one; `None`: there are two, and we cannot know which of
/// them counts.
fn keep_old(directory: &Path) -> Result<Option<bool>> {
    let kept = aside(directory, ".kept");
    // A hodo was killed before its recording began.
    if directory.exists() && is_unfinished(directory) {
        fs::remove_dir_all(directory)
            .with_context(|| format!("removing {}", directory.display()))?;
    }
    if kept.exists() {
        if directory.exists() {
            return Ok(None);
        }
        restore(directory)?;
    }
    if !directory.exists() {
        return Ok(Some(false));
    }
    let empty = fs::read_dir(directory)
        .map(|mut entries| entries.next().is_none())
        .with_context(|| format!("{} is in the way", directory.display()))?;
    if !is_trace(directory) && !empty {
        bail!(
            "{} exists and is not a trace; choose another place with --data",
            directory.display()
        );
    }
    let old = aside(directory, ".old");
    if old.exists() && !is_trace(&old) && fs::read_dir(&old)?.next().is_some() {
        bail!(
            "{} exists and is not a trace; move it out of the way",
            old.display()
        );
    }
    fs::rename(directory, &kept)
        .with_context(|| format!("renaming {} to {}", directory.display(), kept.display()))?;
    Ok(Some(true))
}

/// Moves back what was moved out of the way.
fn restore(directory: &Path) -> Result<()> {
    let kept = aside(directory, ".kept");
    fs::rename(&kept, directory)
        .with_context(|| format!("renaming {} to {}", kept.display(), directory.display()))
}

impl TraceDir {
    /// Makes the directory of a recording: `directory`, or if another hodo records there, `directory.1` and so on.
    /// Stores the choice in `directory`, and reports it.
    ///
    /// # Errors
    /// If something else is there, or it cannot be made.
    pub fn create(directory: &mut PathBuf) -> Result<Self> {
        let wanted = directory.clone();
        let _above = lock_above(&wanted);
        let mut why = "";
        for number in 0..MOST {
            if number > 0 {
                *directory = aside(&wanted, &format!(".{number}"));
            }
            if is_in_use(directory) {
                why = "is in use by another hodo";
                continue;
            }
            let Some(kept) = keep_old(directory)? else {
                why = "has an older trace beside it (.kept), set aside for a recording that did not begin";
                continue;
            };
            let place = Self::make(directory, kept)?;
            if number > 0 {
                warn_user!(
                    "hodo: {} {why}: this recording is in {}",
                    wanted.display(),
                    directory.display()
                );
            }
            return Ok(place);
        }
        bail!("{} {why}, and so are {MOST} others", wanted.display())
    }

    fn make(directory: &Path, kept: bool) -> Result<Self> {
        let made = DirBuilder::new()
            .mode(0o700)
            .create(directory)
            .and_then(|()| directory.canonicalize())
            .with_context(|| {
                format!(
                    "making the trace directory {}: choose another place with --data",
                    directory.display()
                )
            });
        if made.is_err() && kept {
            restore(directory)?;
        }
        Ok(Self {
            path: made?,
            lock: lock(directory).flatten(),
            kept,
            begun: false,
        })
    }

    /// Its absolute path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What another thread does to give the recording up before it begins: as if there had been none.
    pub fn removal(&self) -> impl FnOnce() + Send + use<> {
        /// The recording's own thread may still be making files there.
        const TRIES: usize = 100;
        let (path, kept) = (self.path.clone(), self.kept && !self.begun);
        move || {
            let _above = lock_above(&path);
            let _ = (0..TRIES).find(|_| fs::remove_dir_all(&path).is_ok());
            if kept {
                let _ = restore(&path);
            }
        }
    }

    /// From here on, it is permanent, and the older one is NAME.old.
    ///
    /// # Errors
    /// If the older one cannot be renamed.
    pub fn begin(&mut self) -> Result<()> {
        if !std::mem::replace(&mut self.begun, true) && self.kept {
            let _above = lock_above(&self.path);
            let (kept, old) = (aside(&self.path, ".kept"), aside(&self.path, ".old"));
            if old.exists() {
                fs::remove_dir_all(&old).with_context(|| format!("removing {}", old.display()))?;
            }
            fs::rename(&kept, &old)
                .with_context(|| format!("renaming {} to {}", kept.display(), old.display()))?;
        }
        Ok(())
    }
}

impl Drop for TraceDir {
    fn drop(&mut self) {
        if !self.begun {
            let above = lock_above(&self.path);
            let removed = fs::remove_dir_all(&self.path);
            if removed.is_err() {
                // There may be no file descriptors left for renaming.
                drop((above, self.lock.take()));
                let _ = fs::remove_dir_all(&self.path);
            }
            if self.kept {
                let _ = restore(&self.path);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An empty directory, which is removed with the test.
    fn above(name: &str) -> PathBuf {
        let name = format!("hodo-place-{name}-{}", std::process::id());
        let above = std::env::temp_dir().join(name);
        fs::create_dir(&above).unwrap();
        above
    }

    fn trace(above: &Path, name: &str) -> PathBuf {
        let directory = above.join(name);
        fs::create_dir_all(&directory).unwrap();
        for file in ["info.json", "events"] {
            fs::write(directory.join(file), name).unwrap();
        }
        directory
    }

    fn holds(directory: &Path, text: &str) -> bool {
        fs::read_to_string(directory.join("events")).is_ok_and(|events| events == text)
    }

    #[test]
    fn a_trace_that_was_set_aside_is_never_removed() {
        let above = above("kept");
        let data = above.join("data");
        // There is nothing in its place.
        let kept = trace(&above, "data.kept");
        drop(TraceDir::create(&mut data.clone()).unwrap());
        assert!(holds(&data, "data.kept") && !kept.exists());
        trace(&above, "data.kept");
        let mut other = data.clone();
        drop(TraceDir::create(&mut other).unwrap());
        assert_eq!(other, above.join("data.1"));
        assert!(holds(&data, "data.kept") && holds(&kept, "data.kept"));
        fs::remove_dir_all(above).unwrap();
    }

    #[test]
    fn two_recordings_have_a_directory_each() {
        let above = above("two");
        trace(&above, "data");
        let wanted = above.join("data");
        let (mut first, mut second, mut third) = (wanted.clone(), wanted.clone(), wanted.clone());
        let mut one = TraceDir::create(&mut first).unwrap();
        let mut two = TraceDir::create(&mut second).unwrap();
        assert_eq!(first, wanted);
        assert_eq!(second, above.join("data.1"));
        for place in [&mut one, &mut two] {
            for file in ["info.json", "events"] {
                fs::write(place.path().join(file), "new").unwrap();
            }
            place.begin().unwrap();
        }
        assert!(holds(&above.join("data.old"), "data"));
        assert!(!above.join("data.1.old").exists());
        drop(one);
        // The first one is free again; the recording there is kept once more.
        let mut three = TraceDir::create(&mut third).unwrap();
        assert_eq!(third, wanted);
        three.begin().unwrap();
        assert!(holds(&above.join("data.old"), "new"));
        drop((two, three));
        fs::remove_dir_all(above).unwrap();
    }

    #[test]
    fn what_a_killed_hodo_has_only_begun_is_replaced() {
        let above = above("begun");
        let data = above.join("data");
        for files in [
            &["events"][..],
            &["events", "log.jsonl", "reserve", "info.json"],
        ] {
            fs::create_dir(&data).unwrap();
            for file in files {
                fs::write(data.join(file), "").unwrap();
            }
            let kept = trace(&above, "data.kept");
            let mut place = TraceDir::create(&mut data.clone()).unwrap();
            place.begin().unwrap();
            assert!(holds(&above.join("data.old"), "data.kept") && !kept.exists());
            fs::remove_dir_all(&data).unwrap();
        }
        fs::remove_dir_all(above).unwrap();
    }
}
