//! Reads a trace with the commands that users have.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use serde_json::Value;

use crate::tested::{TraceDirectory, hodo};

/// A trace directory.
#[derive(Debug)]
pub struct Trace {
    directory: PathBuf,
    /// Keeps the directory alive.
    _place: Option<Arc<TraceDirectory>>,
}

impl Trace {
    /// The trace in this directory.
    pub fn new(directory: PathBuf) -> Self {
        Self {
            directory,
            _place: None,
        }
    }

    /// The trace that a run has left in this directory.
    pub(crate) fn of_run(directory: PathBuf, place: Arc<TraceDirectory>) -> Self {
        Self {
            directory,
            _place: Some(place),
        }
    }

    /// Where it is.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// What `hodo COMMAND -d DIRECTORY OPTIONS…` prints.
    pub fn view(&self, command: &str, options: &[&str]) -> String {
        let output = Command::new(hodo())
            .arg(command)
            .arg("-d")
            .arg(&self.directory)
            .args(options)
            .env("PAGER", "cat")
            .output()
            .expect("hodo can be run");
        assert!(
            output.status.success(),
            "hodo {command} {options:?} of {}: {:?}\n{}",
            self.directory.display(),
            output.status,
            String::from_utf8_lossy(&output.stderr)
        );
        String::from_utf8(output.stdout).expect("views are UTF-8")
    }

    /// The calls of each function, with options for `hodo report`.
    pub fn calls_with(&self, options: &[&str]) -> BTreeMap<String, u64> {
        let mut all = vec!["--format=json"];
        all.extend(options);
        let text = self.view("report", &all);
        let report: Value = serde_json::from_str(&text).expect("the report is JSON");
        let mut calls = BTreeMap::new();
        for row in report.as_array().expect("the report is an array") {
            let name = row["name"].as_str().expect("a row has a name");
            *calls.entry(name.to_owned()).or_default() += row["calls"].as_u64().expect("and calls");
        }
        calls
    }

    /// The calls of each function.
    pub fn calls(&self) -> BTreeMap<String, u64> {
        self.calls_with(&[])
    }

    /// Checks the calls of some functions; 0 means it must not occur.
    #[track_caller]
    pub fn has_calls(&self, expected: &[(&str, u64)]) {
        let calls = self.calls();
        let seen: Vec<(&str, u64)> = expected
            .iter()
            .map(|&(name, _)| (name, calls.get(name).copied().unwrap_or(0)))
            .collect();
        assert_eq!(
            seen,
            expected,
            "calls seen and expected differ in {}: {calls:?}",
            self.directory.display()
        );
    }

    /// `hodo info --json`.
    pub fn info(&self) -> Value {
        serde_json::from_str(&self.view("info", &["--json"])).expect("the info is JSON")
    }

    /// The lines of this kind in the trace's log: `task`, `module`, `remark`, ….
    pub fn log(&self, kind: &str) -> Vec<Value> {
        fs::read_to_string(self.directory.join("log.jsonl"))
            .expect("the log can be read")
            .lines()
            .map(|line| serde_json::from_str::<Value>(line).expect("the log is JSON"))
            .filter_map(|value| value.get(kind).cloned())
            .collect()
    }
}
