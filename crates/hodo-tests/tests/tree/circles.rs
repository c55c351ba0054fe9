//! No file of a crate depends on itself, directly or through others, except for a module and its children: whoever
//! reads a crate from the bottom needs nothing that comes later. What a module exports for another one counts as that
//! other one.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use regex::Regex;

/// The files of a crate by module name, without those that are only for tests.
fn modules(source: &Path) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    let mut open = vec![source.to_owned()];
    while let Some(directory) = open.pop() {
        for entry in fs::read_dir(&directory)
            .expect("a directory of the tree")
            .flatten()
        {
            let path = entry.path();
            if path.is_dir() {
                open.push(path);
                continue;
            }
            if path.extension().is_none_or(|extension| extension != "rs") {
                continue;
            }
            let name = path
                .strip_prefix(source)
                .expect("a file of it")
                .with_extension("");
            let mut parts: Vec<&str> = name.iter().filter_map(|part| part.to_str()).collect();
            if matches!(parts.last(), Some(&("mod" | "lib" | "main"))) {
                parts.pop();
            }
            let text = fs::read_to_string(&path).expect("a text of the tree");
            let text = text
                .split("#[cfg(test)]\nmod tests {")
                .next()
                .unwrap_or_default();
            let lines = text
                .lines()
                .map(|line| line.split("//").next().unwrap_or_default());
            found.insert(parts.join("::"), lines.collect::<Vec<_>>().join("\n"));
        }
    }
    found
}

/// What a `use` gives a name: the path, and the name, which is `*` for everything in the path.
#[derive(Debug, PartialEq, Eq)]
struct Import {
    path: String,
    name: String,
}

/// The first word of a text, and what follows it.
fn word(text: &str) -> (&str, &str) {
    let end = text
        .find(|c: char| !c.is_alphanumeric() && c != '_')
        .unwrap_or(text.len());
    text.split_at(end)
}

/// Reads the tree of paths at the start of a text, after `prefix`, and adds what it names. Returns what follows.
fn paths<'t>(mut text: &'t str, mut prefix: String, found: &mut Vec<Import>) -> &'t str {
    loop {
        text = text.trim_start();
        if let Some(list) = text.strip_prefix('{') {
            text = list;
            loop {
                text = paths(text, prefix.clone(), found).trim_start();
                match text.strip_prefix(',') {
                    Some(rest) if !rest.trim_start().starts_with('}') => text = rest,
                    Some(rest) => return rest.trim_start().strip_prefix('}').unwrap_or(rest),
                    None => return text.strip_prefix('}').unwrap_or(text),
                }
            }
        }
        if let Some(rest) = text.strip_prefix('*') {
            let name = "*".to_owned();
            found.push(Import { path: prefix, name });
            return rest;
        }
        let (first, rest) = word(text);
        if first.is_empty() {
            break;
        }
        prefix = match prefix.is_empty() {
            true => first.to_owned(),
            false => format!("{prefix}::{first}"),
        };
        text = rest;
        match text.strip_prefix("::") {
            Some(rest) => text = rest,
            None => break,
        }
    }
    let path = prefix.trim_end_matches("::self").to_owned();
    let mut name = path.rsplit("::").next().unwrap_or_default().to_owned();
    if let Some(rest) = text.trim_start().strip_prefix("as ") {
        let (alias, rest) = word(rest.trim_start());
        name = alias.to_owned();
        text = rest;
    }
    found.push(Import { path, name });
    text
}

/// What a module imports. Others can name it by this module's path: if it is exported, or if they are inside.
fn imports(text: &str) -> Vec<Import> {
    let begins = Regex::new(r"(?m)^\s*(pub(\([^)]*\))?\s+)?use\s+").expect("a pattern");
    let mut found = Vec::new();
    for begin in begins.find_iter(text) {
        paths(&text[begin.end()..], String::new(), &mut found);
    }
    found
}

/// The modules of a crate, and what they import.
struct Crate {
    modules: BTreeMap<String, String>,
    imports: BTreeMap<String, Vec<Import>>,
}

impl Crate {
    fn read(source: &Path) -> Self {
        let modules = modules(source);
        let each = modules.iter();
        let imports = each.map(|(name, text)| (name.clone(), imports(text)));
        Self {
            imports: imports.collect(),
            modules,
        }
    }

    /// The modules that contain what a path names in a module: one for each instruction set, if it depends on that.
    /// None if the path does not begin in this crate.
    fn resolve(&self, module: &str, path: &str, depth: u32) -> Vec<String> {
        let mut base: Vec<&str> = module.split("::").filter(|part| !part.is_empty()).collect();
        let mut parts = path.split("::");
        let mut begun = false;
        while let Some(part) = parts.next() {
            match part {
                "crate" => base.clear(),
                "super" => drop(base.pop()),
                "self" => {}
                name => {
                    let here = base.join("::");
                    let inside = match here.is_empty() {
                        true => name.to_owned(),
                        false => format!("{here}::{name}"),
                    };
                    if self.modules.contains_key(&inside) {
                        base.push(name);
                    } else {
                        let mut found =
                            self.through(&here, name, &parts.collect::<Vec<_>>(), depth);
                        if found.is_empty() && begun {
                            found.push(here);
                        }
                        return found;
                    }
                }
            }
            begun = true;
        }
        vec![base.join("::")]
    }

    /// The modules that contain what a module imports under a name.
    fn through(&self, module: &str, name: &str, rest: &[&str], depth: u32) -> Vec<String> {
        let mut all = Vec::new();
        // Modules may import everything from each other.
        if depth == 8 {
            return all;
        }
        for import in self.imports.get(module).into_iter().flatten() {
            if import.name == name {
                let path = [&[import.path.as_str()], rest].concat().join("::");
                all.extend(self.resolve(module, &path, depth + 1));
            }
            if import.name == "*" {
                for other in self.resolve(module, &import.path, depth + 1) {
                    let path = [&["self", name], rest].concat().join("::");
                    let found = self.resolve(&other, &path, depth + 1);
                    let is_there = |found: &String| *found != other || self.defines(&other, name);
                    all.extend(found.into_iter().filter(is_there));
                }
            }
        }
        all
    }

    /// Returns whether a module has an item of this name of its own.
    fn defines(&self, module: &str, name: &str) -> bool {
        let kinds = "fn|struct|enum|union|trait|type|const|static|macro_rules!";
        let item = Regex::new(&format!(r"\b({kinds})\s+{name}\b")).expect("a pattern");
        self.modules
            .get(module)
            .is_some_and(|text| item.is_match(text))
    }

    /// The modules that a module names, by paths that begin with `crate`, `super`, or the name of a module that it
    /// imports.
    fn named(&self, module: &str) -> BTreeSet<String> {
        let text = &self.modules[module];
        let begins = Regex::new(r"\b([a-z_][a-z0-9_]*)::").expect("a pattern");
        let mut found = Vec::new();
        for begin in begins.captures_iter(text) {
            let (start, name) = (begin.get(0).map_or(0, |all| all.start()), &begin[1]);
            let is_known = matches!(name, "crate" | "super")
                || self.imports[module]
                    .iter()
                    .any(|import| import.name == name);
            // The second `super` of a path does not begin another path.
            if is_known && !text[..start].ends_with("::") {
                paths(&text[start..], String::new(), &mut found);
            }
        }
        let each = found.iter();
        each.flat_map(|import| self.resolve(module, &import.path, 0))
            .collect()
    }
}

/// Returns whether one module is inside the other.
fn are_kin(one: &str, other: &str) -> bool {
    let inside = |inner: &str, outer: &str| {
        outer.is_empty() || inner == outer || inner.starts_with(&format!("{outer}::"))
    };
    inside(one, other) || inside(other, one)
}

/// All modules that a module uses, directly or through others.
fn reached<'u>(from: &str, uses: &'u BTreeMap<String, BTreeSet<String>>) -> BTreeSet<&'u str> {
    let mut found = BTreeSet::new();
    let mut open: Vec<&str> = uses
        .get(from)
        .into_iter()
        .flatten()
        .map(String::as_str)
        .collect();
    while let Some(next) = open.pop() {
        if found.insert(next) {
            open.extend(uses.get(next).into_iter().flatten().map(String::as_str));
        }
    }
    found
}

/// Which modules of a crate use which others. A module and its children may use each other.
fn uses(source: &Path) -> BTreeMap<String, BTreeSet<String>> {
    let all = Crate::read(source);
    let modules = all.modules.keys();
    let uses = modules.map(|module| {
        let named = all.named(module).into_iter();
        let others = named.filter(|other| !are_kin(module, other));
        (module.clone(), others.collect())
    });
    uses.collect()
}

/// The uses that are part of a circle: each module with another one, from which one gets back to it.
fn circles(uses: &BTreeMap<String, BTreeSet<String>>) -> BTreeSet<(&str, &str)> {
    let mut found = BTreeSet::new();
    for (module, others) in uses {
        for other in others {
            if reached(other, uses).contains(module.as_str()) {
                found.insert((module.as_str(), other.as_str()));
            }
        }
    }
    found
}

/// Uses that close a circle and remain for now: crate, module, and what it uses. ARCHITECTURE.md speaks of this list.
const REMAIN: [(&str, &str, &str); 5] = [
    // The neutral reader chooses among instruction sets, which implement its traits.
    ("hodo-isa", "code::isa", "aarch64::isa"),
    ("hodo-isa", "code::isa", "riscv64::isa"),
    ("hodo-isa", "code::isa", "x86_64::isa"),
    ("hodo-isa", "code::readers", "aarch64::isa"),
    ("hodo-isa", "code::readers", "riscv64::isa"),
];

#[test]
fn files_do_not_use_each_other_in_circles() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("the folder of crates");
    let (mut wrong, mut gone) = (Vec::new(), Vec::new());
    for entry in fs::read_dir(crates).expect("the crates").flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let mut uses = uses(&entry.path().join("src"));
        for (_, module, other) in REMAIN.iter().filter(|(crate_name, ..)| *crate_name == name) {
            let close = |uses: &_| circles(uses).contains(&(*module, *other));
            if !close(&uses)
                || !uses
                    .get_mut(*module)
                    .is_some_and(|others| others.remove(*other))
            {
                gone.push(format!("{name}: {module} uses {other}"));
            }
        }
        for (module, other) in circles(&uses) {
            wrong.push(format!("{name}: {module} uses {other}"));
        }
    }
    assert!(
        wrong.is_empty(),
        "these uses are parts of circles; move what both need below both:\n  {}",
        wrong.join("\n  ")
    );
    assert!(
        gone.is_empty(),
        "these close no circle any more; remove them from the list in this test:\n  {}",
        gone.join("\n  ")
    );
}

#[test]
fn circles_are_found() {
    let found = |text: &str| {
        let mut found = Vec::new();
        paths(text, String::new(), &mut found);
        let pairs = found.into_iter().map(|import| (import.path, import.name));
        pairs.collect::<Vec<_>>()
    };
    let pair = |path: &str, name: &str| (path.to_owned(), name.to_owned());
    assert_eq!(
        found("crate::a::{self, b::{C, d as e}, F, g::*};"),
        [
            pair("crate::a", "a"),
            pair("crate::a::b::C", "C"),
            pair("crate::a::b::d", "e"),
            pair("crate::a::F", "F"),
            pair("crate::a::g", "*"),
        ]
    );
    assert_eq!(found("super::super::a(b)"), [pair("super::super::a", "a")]);
    let uses = |pairs: &[(&str, &str)]| -> BTreeMap<String, BTreeSet<String>> {
        let mut uses = BTreeMap::<String, BTreeSet<String>>::new();
        for &(from, to) in pairs {
            uses.entry(from.to_owned())
                .or_default()
                .insert(to.to_owned());
        }
        uses
    };
    let three = uses(&[("a", "b"), ("b", "c"), ("c", "a"), ("d", "a")]);
    assert_eq!(reached("d", &three), BTreeSet::from(["a", "b", "c"]));
    assert!(!reached("a", &three).contains("d"));
    assert!(are_kin("a::b", "a") && are_kin("", "a") && !are_kin("a", "ab"));
}

#[test]
fn circles_through_exports_are_found() {
    let texts = [
        ("", "pub use low::Thing; use all::*; use std::fmt;"),
        ("all", "pub struct One; pub use inner::Two;"),
        ("all::inner", "pub struct Two;"),
        ("low", "use crate::high::part; pub struct Thing;"),
        ("high", "mod part; pub(crate) use part::{Deep as Renamed};"),
        (
            "high::part",
            "use crate::Thing; use crate::fmt::Debug; pub struct Deep;",
        ),
        ("user", "use crate::{One, Two}; use crate::high::Renamed;"),
        ("sets::one", "pub struct Set;"),
        ("sets::two", "pub struct Set;"),
        ("sets", "pub use one::*; pub use two::*;"),
        ("neutral", "use crate::sets; fn f() { sets::Set }"),
    ];
    let texts = texts.map(|(name, text)| (name.to_owned(), text.replace("; ", ";\n")));
    let modules = BTreeMap::from(texts);
    let each = modules.iter();
    let imports = each.map(|(name, text)| (name.clone(), imports(text)));
    let all = Crate {
        imports: imports.collect(),
        modules: modules.clone(),
    };
    let named = |module| Vec::from_iter(all.named(module));
    assert_eq!(named("low"), ["high::part"]);
    assert_eq!(named("high::part"), ["", "low"]);
    assert_eq!(named("user"), ["all", "all::inner", "high::part"]);
    assert_eq!(named("neutral"), ["sets", "sets::one", "sets::two"]);
}
