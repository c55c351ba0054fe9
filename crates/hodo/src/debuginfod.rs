//! Fetches separate debugging information by `debuginfod-find`, the client of elfutils. It asks the servers that
//! `DEBUGINFOD_URLS` names, and keeps what it has found, or not found, in its cache.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

const CLIENT: &str = "debuginfod-find";
const SERVERS: &str = "DEBUGINFOD_URLS";

/// An answer that takes longer is announced.
const PATIENCE: Duration = Duration::from_secs(1);

/// Has what is not on this machine fetched, if the user has named servers.
pub fn enable() {
    let servers = std::env::var_os(SERVERS).unwrap_or_default();
    if !servers.as_bytes().trim_ascii().is_empty() {
        hodo_symbols::fetch_by(fetch);
    }
}

/// Returns the file with the debugging information for this build id, if a server has it.
fn fetch(id: &str) -> Option<PathBuf> {
    static ANSWERS: Mutex<BTreeMap<String, Option<PathBuf>>> = Mutex::new(BTreeMap::new());
    let mut answers = ANSWERS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(answer) = answers.get(id) {
        return answer.clone();
    }
    let answer = ask(id);
    answers.insert(id.to_owned(), answer.clone());
    answer
}

fn ask(id: &str) -> Option<PathBuf> {
    let client = Command::new(CLIENT)
        .args(["debuginfo", id])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        // It says that there is nothing, which is common.
        .stderr(Stdio::null())
        .spawn();
    let client = match client {
        Ok(client) => client,
        Err(error) => {
            tell_missing(&error);
            return None;
        }
    };
    let (done, waiting) = channel::<()>();
    let name = id.to_owned();
    // If no thread can be started, nothing is announced.
    let _ = std::thread::Builder::new().spawn(move || {
        if waiting.recv_timeout(PATIENCE) == Err(RecvTimeoutError::Timeout) {
            warn_user!("hodo: {CLIENT} asks {SERVERS} for the debugging information of {name}");
        }
    });
    let output = client.wait_with_output().ok()?;
    drop(done);
    let path = output.stdout.trim_ascii_end();
    (output.status.success() && path.starts_with(b"/"))
        .then(|| PathBuf::from(OsStr::from_bytes(path)))
}

/// Says once that the client cannot be started.
fn tell_missing(error: &std::io::Error) {
    static TOLD: std::sync::Once = std::sync::Once::new();
    TOLD.call_once(|| {
        warn_user!(
            "hodo: {SERVERS} is set, but {CLIENT} (elfutils) cannot be started: {error}; nothing is fetched"
        );
    });
}
