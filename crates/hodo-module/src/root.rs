//! Root directories of processes: where to read files under the paths that a process uses.

use std::path::{Component, Path, PathBuf};

/// The root directory of a process, if it is not ours.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Root {
    /// Where its files can be read.
    pub(crate) real: PathBuf,
    /// What the kernel calls it in paths that it shows us. `/` if it is below none of our directories.
    pub(crate) name: PathBuf,
}

impl Root {
    /// Returns the root of a process; `None` if the process sees the same files as we do.
    #[must_use]
    pub fn of(pid: i32) -> Option<Self> {
        let link = |path: String| std::fs::read_link(path).ok();
        let name = link(format!("/proc/{pid}/root"))?;
        let mounts = |pid: &str| link(format!("/proc/{pid}/ns/mnt"));
        let is_ours = name == Path::new("/") && mounts(&pid.to_string()) == mounts("self");
        (!is_ours).then(|| Self {
            real: PathBuf::from(format!("/proc/{pid}/root")),
            name,
        })
    }

    /// Returns the path that the process itself uses for a file, if `path` is what the kernel shows us.
    #[must_use]
    pub fn inside(&self, path: &Path) -> Option<PathBuf> {
        Some(Path::new("/").join(path.strip_prefix(&self.name).ok()?))
    }

    /// Returns where to read the file that the process calls `path`.
    #[must_use]
    pub fn real(&self, path: &Path) -> PathBuf {
        below(&self.real, path)
    }

    /// Returns whether the file that the process calls `wanted` is the one that the kernel shows us as `path`.
    #[must_use]
    pub fn calls(&self, path: &Path, wanted: &Path) -> bool {
        let inside = self.inside(path);
        let is_it = |wanted: &Path| inside.as_deref() == Some(wanted) || path == wanted;
        is_it(wanted) || self.resolved(wanted).is_some_and(|wanted| is_it(&wanted))
    }

    /// Returns the path without symbolic links of a file, if there is one. Links are followed as the process does: one
    /// to an absolute path leads to a file below its root, not ours.
    #[must_use]
    pub fn resolved(&self, path: &Path) -> Option<PathBuf> {
        /// As many as the kernel follows.
        const LINKS: usize = 40;
        let mut links = 0;
        let mut done = PathBuf::from("/");
        let mut rest: Vec<PathBuf> = vec![path.to_owned()];
        while let Some(next) = rest.pop() {
            let mut parts = next.components();
            let Some(part) = parts.next() else { continue };
            rest.push(parts.as_path().to_owned());
            match part {
                Component::RootDir => done = PathBuf::from("/"),
                Component::ParentDir => {
                    done.pop();
                }
                Component::Normal(name) => {
                    let file = done.join(name);
                    match std::fs::read_link(self.real(&file)) {
                        Ok(to) => {
                            links += 1;
                            if links > LINKS {
                                return None;
                            }
                            rest.push(to);
                        }
                        Err(_) => done = file,
                    }
                }
                Component::CurDir | Component::Prefix(_) => {}
            }
        }
        self.real(&done).exists().then_some(done)
    }
}

/// Returns a path below another root directory.
fn below(root: &Path, path: &Path) -> PathBuf {
    root.join(path.strip_prefix("/").unwrap_or(path))
}

/// Returns where the separate files of a file are searched for, which was read at `real` and has this path: among the
/// files that its process sees, if these are not those that we see.
pub(crate) fn place(real: &Path, path: &Path) -> PathBuf {
    let below = real.strip_prefix("/proc").ok();
    let pid = below.and_then(|below| below.iter().next()?.to_str()?.parse().ok());
    if real.iter().nth(3).is_some_and(|part| part == "root") && pid.is_some() {
        return real.to_owned();
    }
    let root = pid.and_then(Root::of);
    let rooted = root.and_then(|root| Some(root.real(&root.inside(path)?)));
    rooted.unwrap_or_else(|| path.to_owned())
}
