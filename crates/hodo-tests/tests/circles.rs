//! No file of a crate depends on itself, directly or through others, except for a module and its children: whoever
//! reads a crate from the bottom needs nothing that comes later.

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

/// Reads the tree of paths at the start of a text, after `prefix`, and adds the paths. Returns what follows.
fn paths<'t>(mut text: &'t str, mut prefix: String, found: &mut Vec<String>) -> &'t str {
    loop {
        text = text.trim_start();
        if let Some(list) = text.strip_prefix('{') {
            text = list;
            loop {
                text = paths(text, prefix.clone(), found).trim_start();
                // `as` and its name
                text =
                    text.trim_start_matches(|c: char| c.is_alphanumeric() || c == '_' || c == ' ');
                match text.strip_prefix(',') {
                    Some(rest) if !rest.trim_start().starts_with('}') => text = rest,
                    Some(rest) => return rest.trim_start().strip_prefix('}').unwrap_or(rest),
                    None => return text.strip_prefix('}').unwrap_or(text),
                }
            }
        }
        let end = text
            .find(|c: char| !c.is_alphanumeric() && c != '_')
            .unwrap_or(text.len());
        if end == 0 {
            break;
        }
        prefix = match prefix.is_empty() {
            true => text[..end].to_owned(),
            false => format!("{prefix}::{}", &text[..end]),
        };
        text = &text[end..];
        match text.strip_prefix("::") {
            Some(rest) => text = rest,
            None => break,
        }
    }
    found.push(prefix);
    text
}

/// The modules that a module names, by paths that begin with `crate` or `super`.
fn named(module: &str, text: &str, modules: &BTreeMap<String, String>) -> BTreeSet<String> {
    let begins = Regex::new(r"\b(crate|super)::").expect("a pattern");
    let mut found = Vec::new();
    for start in begins.find_iter(text).map(|begin| begin.start()) {
        // The second `super` of a path does not begin another path.
        if !text[..start].ends_with("::") {
            paths(&text[start..], String::new(), &mut found);
        }
    }
    let mut names = BTreeSet::new();
    for path in found {
        let mut base: Vec<&str> = module.split("::").filter(|part| !part.is_empty()).collect();
        for part in path.split("::") {
            match part {
                "crate" => base.clear(),
                "super" => drop(base.pop()),
                "self" => {}
                name => base.push(name),
            }
        }
        while !base.is_empty() && !modules.contains_key(&base.join("::")) {
            base.pop();
        }
        names.insert(base.join("::"));
    }
    names
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

/// The circles of a crate.
fn circles(source: &Path) -> BTreeSet<Vec<String>> {
    let modules = modules(source);
    let uses: BTreeMap<String, BTreeSet<String>> = modules
        .iter()
        .map(|(module, text)| {
            let named = named(module, text, &modules).into_iter();
            (
                module.clone(),
                named.filter(|other| !are_kin(module, other)).collect(),
            )
        })
        .collect();
    let reach: BTreeMap<&str, BTreeSet<&str>> = uses
        .keys()
        .map(|module| (module.as_str(), reached(module, &uses)))
        .collect();
    let circle = |module: &str| -> Vec<String> {
        let others = reach[module]
            .iter()
            .filter(|other| reach[*other].contains(module));
        others.map(|other| (*other).to_owned()).collect()
    };
    uses.keys()
        .map(|module| circle(module))
        .filter(|circle| !circle.is_empty())
        .collect()
}

#[test]
fn files_do_not_use_each_other_in_circles() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("the folder of crates");
    let mut found = BTreeSet::new();
    for entry in fs::read_dir(crates).expect("the crates").flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        for circle in circles(&entry.path().join("src")) {
            found.insert((name.clone(), circle));
        }
    }
    assert!(
        found.is_empty(),
        "files use each other in circles: {found:#?}"
    );
}

#[test]
fn circles_are_found() {
    let found = |text: &str| {
        let mut found = Vec::new();
        paths(text, String::new(), &mut found);
        found
    };
    assert_eq!(
        found("crate::a::{self, b::{C, d as e}, F};"),
        [
            "crate::a::self",
            "crate::a::b::C",
            "crate::a::b::d",
            "crate::a::F"
        ]
    );
    assert_eq!(found("super::super::a(b)"), ["super::super::a"]);
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
