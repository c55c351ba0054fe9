//! Selects the functions that can be traced at all: `-P`, `-U`, `-Z`, `-l` and their modules.

use std::path::Path;

use anyhow::{Context, Result};
use hodo_symbols::{Style, demangle};
use regex::Regex;

use hodo_module::glob;

use crate::options::{Match, RecordOptions};

/// The module of calls into libraries, by uftrace's name: `puts@plt`.
const PLT: &str = "plt";

/// Functions that the C runtime adds to every program and library. Like uftrace, hodo leaves them out unless the user
/// names them.
const RUNTIME: [&str; 12] = [
    "_start",
    "_init",
    "_fini",
    "frame_dummy",
    "register_tm_clones",
    "deregister_tm_clones",
    "__do_global_dtors_aux",
    "__libc_csu_init",
    "__libc_csu_fini",
    "_dl_relocate_static_pie",
    "load_gp",
    "__cxa_finalize",
];

/// Whether a pattern matches a name as it is in the file, or as people write it.
fn is_match(pattern: &Regex, name: &str) -> bool {
    pattern.is_match(name)
        || (name.starts_with("_Z") || name.starts_with("_R"))
            && pattern.is_match(&demangle(name, Style::Simple))
}

/// One `-P` or `-U`.
#[derive(Debug)]
struct Rule {
    trace: bool,
    name: Regex,
    /// `None`: the program itself.
    module: Option<String>,
    text: String,
}

/// A pattern of the command line.
#[derive(Debug, Clone, Copy)]
pub struct PatternRef<'a> {
    option: &'static str,
    text: &'a str,
    name: &'a Regex,
    module: Option<&'a str>,
    /// Without a module, it applies only to the program.
    main_only: bool,
}

impl PatternRef<'_> {
    /// The pattern as it was given.
    pub fn text(&self) -> &str {
        self.text
    }

    /// Whether it matches this function; `stub`: a call into a library.
    pub fn matches(&self, path: &Path, main: bool, name: &str, stub: bool) -> bool {
        let module = match self.module {
            None => main || !self.main_only,
            Some(module) => Selection::is_called(path, module) || stub && module == PLT,
        };
        module && is_match(self.name, name)
    }
}

impl std::fmt::Display for PatternRef<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} '{}'", self.option, self.text)
    }
}

/// One `-F` or `-N`.
#[derive(Debug)]
struct Pattern {
    /// It is a `-F`.
    filter: bool,
    name: Regex,
    /// `None`: any module.
    module: Option<String>,
    text: String,
}

impl Pattern {
    /// Whether it applies to this function; `stub`: a call into a library.
    fn applies(&self, path: &Path, name: &str, stub: bool) -> bool {
        let is_module =
            |module: &String| Selection::is_called(path, module) || stub && module == PLT;
        is_match(&self.name, name) && self.module.as_ref().is_none_or(is_module)
    }
}

/// What is traced.
#[derive(Debug)]
pub struct Selection {
    rules: Vec<Rule>,
    /// `-F` and `-N`, in order. The last one that matches a function counts.
    filters: Vec<Pattern>,
    /// The functions of the C runtime that the user has named.
    runtime: Vec<&'static str>,
    entries: bool,
    nest_libcall: bool,
    libcalls: bool,
    size: u64,
    /// Probes only; no functions.
    nothing: bool,
    /// Tracing is switched off for now.
    off: bool,
}

/// Compiles a name pattern the way uftrace does: without special characters, it must match the whole name.
fn compile(pattern: &str, kind: Match) -> Result<Regex> {
    let text = match kind {
        Match::Glob => glob::to_regex(pattern),
        Match::Regex
            if pattern.contains(['.', '*', '?', '+', '^', '$', '[', '(', '|', '\\', '{']) =>
        {
            pattern.to_owned()
        }
        Match::Regex => format!("^{}$", regex::escape(pattern)),
    };
    Regex::new(&text).with_context(|| format!("the pattern {pattern:?}"))
}

/// The functions of the C runtime that are traced: all, or those that `-F` or `-P` names without wildcards.
fn asked_runtime(rules: &[Rule], filters: &[Pattern], all: bool) -> Vec<&'static str> {
    let names = |text: &str, name: &str| text.split('@').next() == Some(name);
    let is_asked = |name: &&str| {
        all || rules
            .iter()
            .any(|rule| rule.trace && names(&rule.text, name))
            || (filters.iter()).any(|pattern| pattern.filter && names(&pattern.text, name))
    };
    RUNTIME.iter().copied().filter(is_asked).collect()
}

impl Selection {
    /// Reads the options.
    ///
    /// # Errors
    /// If a pattern is malformed.
    pub fn new(options: &RecordOptions) -> Result<Self> {
        let mut rules = Vec::new();
        let split = |pattern: &'_ str| -> (String, Option<String>) {
            match pattern.rsplit_once('@') {
                Some((name, module)) => (name.to_owned(), Some(module.to_owned())),
                None => (pattern.to_owned(), None),
            }
        };
        let mut filters = Vec::new();
        for (filter, text) in
            hodo_trace::meta::in_order(&options.filter, &options.notrace, &options.order)
        {
            let (name, module) = split(text);
            let name = compile(&name, options.pattern)?;
            filters.push(Pattern {
                filter,
                name,
                module,
                text: text.to_owned(),
            });
        }
        for (trace, pattern) in &options.patch {
            let (name, module) = split(pattern);
            rules.push(Rule {
                trace: *trace,
                name: compile(&name, options.pattern)?,
                module,
                text: pattern.clone(),
            });
        }
        Ok(Self {
            runtime: asked_runtime(&rules, &filters, options.runtime),
            rules,
            filters,
            // With -t, functions without a duration are left out.
            entries: options.time_filter.is_none(),
            nest_libcall: options.nest_libcall,
            libcalls: !options.no_libcall,
            size: options.size_filter,
            nothing: !options.calls
                && (!options.probes.is_empty()
                    || !options.events.is_empty()
                    || options.syscalls.is_some()),
            off: options.off,
        })
    }

    /// Whether no function is traced, whatever its name is.
    pub fn is_empty(&self) -> bool {
        self.nothing
    }

    fn is_called(path: &Path, module: &str) -> bool {
        path.file_name()
            .and_then(|name| name.to_str())
            .and_then(|name| name.strip_prefix(module))
            .is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '-']))
    }

    fn applies(rule: &Rule, path: &Path, main: bool) -> bool {
        match &rule.module {
            None => main,
            Some(module) => Self::is_called(path, module),
        }
    }

    /// Whether the last `-F` or `-N` that matches a function is a `-F`. `None`: none matches.
    fn decided(&self, path: &Path, name: &str, stub: bool) -> Option<bool> {
        let mut last = self.filters.iter().rev();
        last.find(|pattern| pattern.applies(path, name, stub))
            .map(|pattern| pattern.filter)
    }

    /// All patterns.
    pub fn patterns(&self) -> Vec<PatternRef<'_>> {
        let filters = self.filters.iter().map(|pattern| PatternRef {
            option: if pattern.filter { "-F" } else { "-N" },
            text: &pattern.text,
            name: &pattern.name,
            module: pattern.module.as_deref(),
            main_only: false,
        });
        let mut all: Vec<_> = filters.collect();
        all.extend(self.rules.iter().map(|rule| PatternRef {
            option: if rule.trace { "-P" } else { "-U" },
            text: &rule.text,
            name: &rule.name,
            module: rule.module.as_deref(),
            main_only: !self.nest_libcall,
        }));
        all
    }

    /// Whether there are any filter functions (`-F`).
    pub fn is_filtered(&self) -> bool {
        self.filters.iter().any(|pattern| pattern.filter)
    }

    /// Whether traced functions outside the program's module can call each other.
    pub fn is_nested(&self) -> bool {
        self.nest_libcall || self.rules.iter().any(|rule| rule.module.is_some())
    }

    /// Whether this is a filter function; `stub`: a call into a library.
    pub fn filter(&self, path: &Path, name: &str, stub: bool) -> bool {
        self.decided(path, name, stub) == Some(true)
    }

    /// Whether this function is left out, together with all that it calls; `stub`: a call into a library.
    pub fn notrace(&self, path: &Path, name: &str, stub: bool) -> bool {
        self.decided(path, name, stub) == Some(false)
    }

    /// Whether functions are recorded of which only the entry can be recorded.
    pub fn entries(&self) -> bool {
        self.entries
    }

    /// Whether anything of this module is traced.
    pub fn module(&self, path: &Path, main: bool) -> bool {
        main || self.nest_libcall
            || self
                .rules
                .iter()
                .any(|rule| rule.trace && Self::applies(rule, path, main))
    }

    /// Whether this is a function of the C runtime that the user has not named.
    fn is_hidden(&self, name: &str) -> bool {
        RUNTIME.contains(&name) && !self.runtime.contains(&name)
    }

    /// Whether this function is traced.
    pub fn function(&self, path: &Path, main: bool, name: &str, size: u64) -> bool {
        // Inside libc, `__cxa_finalize` is a function like any other.
        let hidden = name != "__cxa_finalize" && self.is_hidden(name);
        if size < self.size || self.nothing || self.off || hidden {
            return false;
        }
        // Unless a -P applies to the module, the whole program is traced, but a library only with -l.
        let mut wanted = (main || self.nest_libcall)
            && !self
                .rules
                .iter()
                .any(|rule| rule.trace && Self::applies(rule, path, main));
        for rule in &self.rules {
            if Self::applies(rule, path, main) && is_match(&rule.name, name) {
                wanted = rule.trace;
            }
        }
        wanted
    }

    /// Whether calls of this library function are traced.
    pub fn libcall(&self, main: bool, name: &str) -> bool {
        !self.off && self.lists_libcall(main, name)
    }

    /// Whether calls of this library function can be traced, now or later.
    pub fn lists_libcall(&self, main: bool, name: &str) -> bool {
        // The whole program is one call of `__libc_start_main`: that tells the user nothing.
        let hidden = name == "__libc_start_main" || self.is_hidden(name);
        self.libcalls && !self.nothing && main && !hidden
    }
}
