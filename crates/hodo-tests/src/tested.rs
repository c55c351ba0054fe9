//! The `hodo` under test, and the directories that it leaves traces in.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use crate::build::only_builds;
use crate::skipped::temporary;

/// The `hodo` under test.
pub fn hodo() -> &'static Path {
    static HODO: OnceLock<PathBuf> = OnceLock::new();
    HODO.get_or_init(|| {
        // It would be built for another target, in place of the one that later runs use.
        assert!(!only_builds(), "programs are only compiled");
        if let Some(path) = std::env::var_os("HODO_BIN") {
            return path.into();
        }
        let status = Command::new(env!("CARGO"))
            .args(["build", "--quiet", "--package", "hodo", "--target-dir"])
            .arg(temporary().parent().expect("the target directory"))
            .status()
            .expect("cargo can be run");
        assert!(status.success(), "hodo cannot be built");
        temporary().with_file_name("debug").join("hodo")
    })
}

/// The directory of a run. It is removed when its last user is gone, unless the test has failed: the traces of all
/// tests together are gigabytes.
#[derive(Debug)]
pub(crate) struct TraceDirectory(pub(crate) PathBuf);

impl Drop for TraceDirectory {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            // Another run of this name may have been here already.
            let _ = fs::remove_dir_all(&self.0);
        }
    }
}
