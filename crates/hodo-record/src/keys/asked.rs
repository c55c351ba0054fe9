//! Asks a process that exposes its static keys (`hodo_keys::expose`). It listens on a socket in the abstract namespace,
//! whose name contains the process ID, the time of its start, and the number of the copy of that crate. A request is a
//! line of words. The answer consists of lines of JSON, the last of which has `done`, `unmatched` or `error`.

use hodo_ptrace::processes;
use std::io::{self, BufRead, BufReader, ErrorKind, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::{KeyState, ListedKey, no_key};
use crate::control::peer;
use hodo_ptrace as ptrace;

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(5);
/// Maximum number of copies of the crate in one process.
const COPIES: u32 = 16;

/// The answer to a request.
enum Answer {
    Keys(Vec<ListedKey>),
    /// These patterns match no key.
    Unmatched(Vec<String>),
}

/// All keys that a process exposes; `None` if it exposes none.
pub fn list(pid: i32) -> Result<Option<Vec<ListedKey>>> {
    let mut keys = None;
    for copy in copies(pid) {
        if let Answer::Keys(more) = copy?.ask("list", &[])? {
            keys.get_or_insert_with(Vec::new).extend(more);
        }
    }
    Ok(keys)
}

/// Switches keys of a process; `None` if it exposes none.
///
/// # Errors
/// If a pattern matches no key, or keys cannot be switched.
pub fn switch(pid: i32, patterns: &[String], on: bool) -> Result<Option<Vec<ListedKey>>> {
    for word in patterns {
        if word.is_empty() || word.contains(|c: char| c.is_ascii_whitespace()) {
            bail!("{word:?} cannot be a pattern");
        }
    }
    // Each copy of the crate gets the patterns that match its keys.
    let mut orders: Vec<(Asked, Vec<String>)> = Vec::new();
    let mut missing = patterns.to_vec();
    for copy in copies(pid) {
        let mut copy = copy?;
        let mut wanted = patterns.to_vec();
        if let Answer::Unmatched(unmatched) = copy.ask("list", patterns)? {
            wanted.retain(|pattern| !unmatched.contains(pattern));
        }
        missing.retain(|pattern| !wanted.contains(pattern));
        orders.push((copy, wanted));
    }
    if orders.is_empty() {
        return Ok(None);
    }
    if !missing.is_empty() {
        bail!(
            "{}",
            no_key(&format!("process {}", processes::named(pid)), &missing)
        );
    }
    let mut switched = Vec::new();
    orders.retain(|(_, wanted)| !wanted.is_empty());
    for (mut copy, wanted) in orders {
        match copy.ask(if on { "enable" } else { "disable" }, &wanted)? {
            Answer::Keys(keys) => switched.extend(keys),
            // Their library has been unloaded in the meantime.
            Answer::Unmatched(missing) => {
                bail!(
                    "{}",
                    no_key(&format!("process {}", processes::named(pid)), &missing)
                )
            }
        }
    }
    Ok(Some(switched))
}

/// One copy of the crate.
struct Asked {
    pid: i32,
    address: SocketAddr,
}

/// The copies of the crate that listen.
fn copies(pid: i32) -> impl Iterator<Item = Result<Asked>> {
    let name = name(pid);
    (0..COPIES).map_while(move |copy| {
        let name = format!("{}-{copy}", name.as_ref()?);
        let address = SocketAddr::from_abstract_name(name).ok()?;
        match UnixStream::connect_addr(&address) {
            Ok(_) => Some(Ok(Asked { pid, address })),
            Err(error) if error.kind() == ErrorKind::ConnectionRefused => None,
            Err(error) => Some(Err(error).with_context(|| asking(pid))),
        }
    })
}

fn asking(pid: i32) -> String {
    format!(
        "asking process {} for its static keys",
        processes::named(pid)
    )
}

/// The beginning of the names of a process's sockets.
fn name(pid: i32) -> Option<String> {
    // The process ID as the process itself sees it.
    let own = ptrace::status(pid, "NStgid:")?;
    let own = own.split_whitespace().last()?;
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The fields from the third on follow the program's name. The 22nd is the start time.
    let start = stat.rsplit(')').next()?.split_whitespace().nth(22 - 3)?;
    Some(format!("hodoscope-keys-{own}-{start}"))
}

impl Asked {
    fn ask(&mut self, verb: &str, patterns: &[String]) -> Result<Answer> {
        let lines = self.exchange(verb, patterns);
        let slow =
            |error: &io::Error| matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut);
        let lines = match lines {
            Ok(lines) => lines,
            Err(error) if error.downcast_ref().is_some_and(slow) => {
                let state = ptrace::status(self.pid, "State:").unwrap_or_default();
                bail!(
                    "process {} exposes its static keys, but does not answer: its state is {state}",
                    processes::named(self.pid)
                );
            }
            Err(error) => return Err(error.context(asking(self.pid))),
        };
        let Some((last, lines)) = lines.split_last() else {
            bail!(
                "process {} broke off its answer",
                processes::named(self.pid)
            );
        };
        if let Some(error) = last["error"].as_str() {
            if error.starts_with("not permitted") {
                bail!("{}", self.not_permitted());
            }
            bail!("process {}: {error}", processes::named(self.pid));
        }
        if let Some(missing) = last["unmatched"].as_array() {
            let missing = missing.iter().filter_map(|text| text.as_str());
            return Ok(Answer::Unmatched(missing.map(str::to_owned).collect()));
        }
        if last["done"] != true {
            bail!(
                "process {} broke off its answer",
                processes::named(self.pid)
            );
        }
        let keys = lines.iter().map(key).collect::<Option<_>>();
        let strange = || {
            format!(
                "process {} gave an unexpected answer",
                processes::named(self.pid)
            )
        };
        Ok(Answer::Keys(keys.with_context(strange)?))
    }

    fn not_permitted(&self) -> String {
        let ids = ptrace::status(self.pid, "Uid:").unwrap_or_default();
        let owner = ids.split_whitespace().nth(1).and_then(|id| id.parse().ok());
        let owner = owner.map_or_else(
            || "another user".to_owned(),
            |id| format!("user {}", processes::user_name(id)),
        );
        format!(
            "process {} belongs to {owner}: only that user and root may see and switch its static keys",
            processes::named(self.pid)
        )
    }

    /// Sends a request, and reads lines until the end.
    fn exchange(&self, verb: &str, patterns: &[String]) -> Result<Vec<Value>> {
        let mut stream = UnixStream::connect_addr(&self.address)?;
        // The owner of that name must be the process that was meant.
        let other = peer(&stream)?.pid;
        if other != self.pid {
            bail!("another process, {other}, answers instead");
        }
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        let words: Vec<&str> = std::iter::once(verb)
            .chain(patterns.iter().map(String::as_str))
            .collect();
        match stream.write_all(format!("{}\n", words.join(" ")).as_bytes()) {
            // It may have answered before the request, because this user may not ask.
            Err(error) if error.kind() != ErrorKind::BrokenPipe => return Err(error.into()),
            _ => {}
        }
        let mut lines = Vec::new();
        for line in BufReader::new(stream).lines() {
            let line = match line {
                Err(error) if error.kind() == ErrorKind::ConnectionReset => break,
                line => line?,
            };
            lines.push(serde_json::from_str(&line).context("the answer is not JSON")?);
        }
        Ok(lines)
    }
}

/// The key that a line describes.
fn key(line: &Value) -> Option<ListedKey> {
    let enabled = line["enabled"].as_bool()?;
    Some(ListedKey {
        name: line["name"].as_str()?.to_owned(),
        index: line["index"].as_u64(),
        state: Some(KeyState {
            enabled,
            before: line["before"].as_bool().unwrap_or(enabled),
            users: u32::try_from(line["users"].as_u64()?).ok()?,
        }),
        initial: line["initial"].as_bool()?,
        branches: line["branches"].as_u64()?,
        is_tracepoint: line["kind"] == "tracepoint",
    })
}
