//! Which functions are traced at all: `-P`, `-U`, `-Z`, `-l` and their modules.

use std::path::Path;

use anyhow::{Context, Result};
use regex::Regex;

use crate::options::{Match, RecordOptions};

/// One `-P` or `-U`.
#[derive(Debug)]
struct Rule {
    trace: bool,
    name: Regex,
    /// `None`: the program itself.
    module: Option<String>,
}

/// What is to be traced.
#[derive(Debug)]
pub struct Selection {
    rules: Vec<Rule>,
    nest_libcall: bool,
    libcalls: bool,
    size: u64,
}

fn glob_to_regex(glob: &str) -> String {
    let mut out = String::from("^");
    for c in glob.chars() {
        match c {
            '*' => out.push_str(".*"),
            '?' => out.push('.'),
            '[' | ']' => out.push(c),
            _ => out.push_str(&regex::escape(&c.to_string())),
        }
    }
    out.push('$');
    out
}

/// Compiles a name pattern the way uftrace reads it: without a special character it is the whole name.
fn compile(pattern: &str, kind: Match) -> Result<Regex> {
    let text = match kind {
        Match::Glob => glob_to_regex(pattern),
        Match::Regex
            if pattern.contains(['.', '*', '?', '+', '^', '$', '[', '(', '|', '\\', '{']) =>
        {
            pattern.to_owned()
        }
        Match::Regex => format!("^{}$", regex::escape(pattern)),
    };
    Regex::new(&text).with_context(|| format!("the pattern {pattern:?}"))
}

impl Selection {
    /// Reads the options.
    ///
    /// # Errors
    /// If a pattern is malformed.
    pub fn new(options: &RecordOptions) -> Result<Self> {
        let mut rules = Vec::new();
        for (trace, pattern) in &options.patch {
            let (name, module) = match pattern.rsplit_once('@') {
                Some((name, module)) => (name, Some(module.to_owned())),
                None => (pattern.as_str(), None),
            };
            rules.push(Rule {
                trace: *trace,
                name: compile(name, options.pattern)?,
                module,
            });
        }
        Ok(Self {
            rules,
            nest_libcall: options.nest_libcall,
            libcalls: !options.no_libcall,
            size: options.size_filter,
        })
    }

    fn applies(rule: &Rule, path: &Path, main: bool) -> bool {
        match &rule.module {
            None => main,
            Some(module) => path
                .file_name()
                .and_then(|name| name.to_str())
                .is_some_and(|name| {
                    name == module
                        || name
                            .strip_prefix(module.as_str())
                            .is_some_and(|rest| rest.starts_with(['.', '-']))
                }),
        }
    }

    /// Is anything of this module traced?
    pub fn module(&self, path: &Path, main: bool) -> bool {
        main || self.nest_libcall
            || self
                .rules
                .iter()
                .any(|rule| rule.trace && Self::applies(rule, path, main))
    }

    /// Is this function traced?
    pub fn function(&self, path: &Path, main: bool, name: &str, size: u64) -> bool {
        if size < self.size {
            return false;
        }
        // Without a -P of its own the program is traced whole, a library only with -l.
        let mut wanted = (main || self.nest_libcall)
            && !self
                .rules
                .iter()
                .any(|rule| rule.trace && Self::applies(rule, path, main));
        for rule in &self.rules {
            if Self::applies(rule, path, main) && rule.name.is_match(name) {
                wanted = rule.trace;
            }
        }
        wanted
    }

    /// Are calls to this library function traced?
    pub fn libcall(&self, main: bool, name: &str) -> bool {
        let _ = name;
        self.libcalls && main
    }
}
