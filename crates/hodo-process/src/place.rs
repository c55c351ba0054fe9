//! Where a recording is written, and what becomes of an older one there.

use std::fs::{self, DirBuilder};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

/// The directory of a recording. What it replaces is there again if the recording does not begin.
#[derive(Debug)]
pub struct Place {
    path: PathBuf,
    /// Whether there was an older one.
    kept: bool,
    begun: bool,
}

fn is_trace(directory: &Path) -> bool {
    directory.join("info.json").is_file() && directory.join("events").is_file()
}

/// Where an older trace is until the new one begins, beside the directory and NAME.old.
fn aside(directory: &Path, suffix: &str) -> PathBuf {
    let mut path = directory.as_os_str().to_owned();
    path.push(suffix);
    path.into()
}

/// Moves an older trace out of the way, to NAME.kept. It is not NAME.old before the new one has begun: what fails earlier changes
/// nothing. Tells whether there was one.
fn keep_old(directory: &Path) -> Result<bool> {
    let kept = aside(directory, ".kept");
    // hodo was killed before a recording began, or the older trace could not be renamed: which of the two counts is not ours to say.
    if kept.exists() {
        if directory.exists() {
            bail!(
                "{} is an older trace that was set aside for one that did not begin; move it away, or back to {}",
                kept.display(),
                directory.display()
            );
        }
        restore(directory)?;
    }
    if !directory.exists() {
        return Ok(false);
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
    Ok(true)
}

/// What was moved out of the way is there again.
fn restore(directory: &Path) -> Result<()> {
    let kept = aside(directory, ".kept");
    fs::rename(&kept, directory)
        .with_context(|| format!("renaming {} to {}", kept.display(), directory.display()))
}

impl Place {
    /// Makes the directory.
    ///
    /// # Errors
    /// If something else is there, or it cannot be made.
    pub fn create(directory: &Path) -> Result<Self> {
        let kept = keep_old(directory)?;
        let made = DirBuilder::new()
            .mode(0o700)
            .create(directory)
            .and_then(|()| directory.canonicalize())
            .with_context(|| format!("making the trace directory {}", directory.display()));
        if made.is_err() && kept {
            restore(directory)?;
        }
        Ok(Self {
            path: made?,
            kept,
            begun: false,
        })
    }

    /// Where it is, from the root on.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// From here on it stays, and the older one is NAME.old.
    ///
    /// # Errors
    /// If that cannot be renamed.
    pub fn begin(&mut self) -> Result<()> {
        self.begun = true;
        if self.kept {
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

impl Drop for Place {
    fn drop(&mut self) {
        if !self.begun {
            let _ = fs::remove_dir_all(&self.path);
            if self.kept {
                let _ = restore(&self.path);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trace_that_was_set_aside_is_never_removed() {
        let name = format!("hodo-place-{}", std::process::id());
        let above = std::env::temp_dir().join(name);
        let trace = |name: &str| {
            let directory = above.join(name);
            fs::create_dir_all(&directory).unwrap();
            for file in ["info.json", "events"] {
                fs::write(directory.join(file), name).unwrap();
            }
            directory
        };
        let data = above.join("data");
        let holds = |name: &str, text: &str| {
            fs::read_to_string(above.join(name).join("events")).is_ok_and(|events| events == text)
        };
        // Nothing is in its place.
        trace("data.kept");
        drop(Place::create(&data).unwrap());
        assert!(holds("data", "data.kept") && !above.join("data.kept").exists());
        trace("data.kept");
        let error = Place::create(&data).unwrap_err().to_string();
        assert!(error.contains("data.kept is an older trace"), "{error}");
        assert!(holds("data", "data.kept") && holds("data.kept", "data.kept"));
        fs::remove_dir_all(above).unwrap();
    }
}
