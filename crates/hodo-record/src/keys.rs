//! Static keys of a file or of a process, where they can also be switched.
//!
//! A program that exposes its keys is asked (`asked.rs`); any other program is stopped for a moment (`stopped.rs`).

mod asked;
mod stopped;

use hodo_ptrace::processes;
use std::collections::HashMap;
use std::ffi::OsStr;
use std::path::Path;

use anyhow::{Context, Result, bail};
use hodo_symbols::KeyPlace;
use regex::Regex;

use hodo_module::Image;
use hodo_module::image::canonical;
use hodo_probe_compile::found;
use hodo_ptrace as ptrace;

/// A static key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListedKey {
    /// Its name; for an element of an array, the array's name.
    pub name: String,
    /// The index, if it is an element of an array.
    pub index: Option<u64>,
    /// Its state, in a process.
    pub state: Option<KeyState>,
    /// Whether it is initially enabled.
    pub initial: bool,
    /// The number of branches that it controls.
    pub branches: u64,
    /// Whether it switches a tracepoint.
    pub is_tracepoint: bool,
}

/// The state of a static key in a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeyState {
    /// Whether it is enabled.
    pub enabled: bool,
    /// Whether it was enabled before it was switched; in a list, the same as `enabled`.
    pub before: bool,
    /// How many users enable it, so that it stays enabled when it is switched off.
    pub users: u32,
}

impl std::fmt::Display for ListedKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.name)?;
        match self.index {
            Some(index) => write!(f, "[{index}]"),
            None => Ok(()),
        }
    }
}

/// A pattern as described at `hodo_keys::apply_environment`.
struct Pattern<'p> {
    text: &'p str,
    regex: Regex,
}

impl<'p> Pattern<'p> {
    fn new(text: &'p str) -> Result<Self> {
        let regex = regex::escape(text).replace(r"\*", ".*").replace(r"\?", ".");
        let regex = Regex::new(&format!("(?s)^(?:{regex})$"));
        Ok(Self {
            text,
            regex: regex.with_context(|| format!("{text} cannot be a pattern"))?,
        })
    }

    fn fits(&self, key: &ListedKey) -> bool {
        let whole = key.to_string();
        let last = |name: &str| {
            let last = name.rsplit("::").next().unwrap_or(name);
            !self.text.contains("::") && self.regex.is_match(last)
        };
        [&key.name, &whole]
            .into_iter()
            .any(|name| self.regex.is_match(name) || last(name))
    }
}

/// The keys that match one of the patterns; all if there are no patterns.
///
/// # Errors
/// If a pattern matches no key.
fn fitting<'p>(
    keys: &[ListedKey],
    patterns: &'p [String],
    whose: &str,
) -> Result<impl Fn(&ListedKey) -> bool + use<'p>> {
    let fits: Vec<Pattern<'_>> = (patterns.iter())
        .map(|text| Pattern::new(text))
        .collect::<Result<_>>()?;
    let missing: Vec<&str> = fits
        .iter()
        .filter(|pattern| !keys.iter().any(|key| pattern.fits(key)))
        .map(|pattern| pattern.text)
        .collect();
    if !missing.is_empty() {
        bail!("{}", no_key(whose, &missing));
    }
    Ok(move |key: &ListedKey| fits.is_empty() || fits.iter().any(|pattern| pattern.fits(key)))
}

fn sort(keys: &mut [ListedKey]) {
    keys.sort_by(|a, b| (&a.name, a.index).cmp(&(&b.name, b.index)));
}

/// Keeps the keys that match one of the patterns; all if there are no patterns. Sorts them by name.
///
/// # Errors
/// If a pattern matches no key.
fn choose(keys: &mut Vec<ListedKey>, patterns: &[String], whose: &str) -> Result<()> {
    let fits = fitting(keys, patterns, whose)?;
    keys.retain(fits);
    sort(keys);
    Ok(())
}

fn no_key(whose: &str, patterns: &[impl AsRef<str>]) -> String {
    let patterns: Vec<&str> = patterns.iter().map(AsRef::as_ref).collect();
    format!(
        "no static key of {whose} is named {}",
        patterns.join(" or ")
    )
}

/// The static keys of a program or library that match one of the patterns; all if there are no patterns. Keys of other
/// files are left out, even if this file has branches on them.
///
/// # Errors
/// If there is no such file, it has no static keys, or a pattern matches none of them.
pub fn list_keys(file: &OsStr, patterns: &[String]) -> Result<Vec<ListedKey>> {
    let path = canonical(&found(file)?);
    let image = Image::read(&path, path.clone())?;
    let mut keys = of_file(&path, &image)?;
    if keys.is_empty() {
        bail!("{} has no static keys", path.display());
    }
    choose(&mut keys, patterns, &path.display().to_string())?;
    Ok(keys)
}

/// The keys of a file.
fn of_file(path: &Path, image: &Image) -> Result<Vec<ListedKey>> {
    let keys = hodo_symbols::keys(&image.bytes)
        .with_context(|| format!("the table of static branches of {}", path.display()))?;
    let mut branches: HashMap<u64, u64> = HashMap::new();
    for branch in &keys.branches {
        if let KeyPlace::Here { addr, .. } = branch.key {
            *branches.entry(addr).or_default() += 1;
        }
    }
    // If the dynamic linker makes a copy of a library's key, the copy has no name here.
    let named = keys.keys.iter().filter(|key| !key.name.is_empty());
    let listed = named.map(|key| ListedKey {
        name: key.name.clone(),
        index: key.index,
        state: None,
        initial: key.initial,
        branches: branches.get(&key.addr).copied().unwrap_or(0),
        is_tracepoint: key.tracepoint,
    });
    Ok(listed.collect())
}

/// # Errors
/// If there is no such process, or `pid` is not a process.
fn check(pid: i32) -> Result<()> {
    let number = |key| ptrace::status(pid, key).and_then(|text| text.parse::<i32>().ok());
    match number("Tgid:") {
        _ if pid <= 0 => bail!("{}", processes::no_process(pid)),
        None => bail!("{}", processes::no_process(pid)),
        Some(process) if process != pid => bail!(
            "{pid} is a thread of process {}: its keys are those of the process",
            processes::named(process)
        ),
        Some(_) => Ok(()),
    }
}

/// The static keys of a process that match one of the patterns; all if there are no patterns.
///
/// # Errors
/// If there is no such process, its keys cannot be read, or a pattern matches none of them.
pub fn list_keys_of(pid: i32, patterns: &[String]) -> Result<Vec<ListedKey>> {
    check(pid)?;
    let mut keys = match asked::list(pid)? {
        Some(keys) => keys,
        None => stopped::list(pid)?,
    };
    if keys.is_empty() {
        bail!("process {} has no static keys", processes::named(pid));
    }
    choose(
        &mut keys,
        patterns,
        &format!("process {}", processes::named(pid)),
    )?;
    Ok(keys)
}

/// Switches on or off the static keys of a process that match one of the patterns. Returns each of them.
///
/// # Errors
/// If there is no such process, its keys cannot be switched, or a pattern matches none of them. Nothing is switched
/// then.
pub fn switch_keys(pid: i32, patterns: &[String], on: bool) -> Result<Vec<ListedKey>> {
    check(pid)?;
    match asked::switch(pid, patterns, on)? {
        Some(keys) => Ok(keys),
        None => stopped::switch(pid, patterns, on),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &str, index: Option<u64>) -> ListedKey {
        ListedKey {
            name: name.to_owned(),
            index,
            state: None,
            initial: false,
            branches: 1,
            is_tracepoint: false,
        }
    }

    /// The same cases as in the tests of `hodo-keys`.
    #[test]
    fn names_are_matched_whole_or_by_their_last_part() {
        for (pattern, name, index, is) in [
            ("VERBOSE", "mycrate::net::VERBOSE", None, true),
            ("net::VERBOSE", "mycrate::net::VERBOSE", None, false),
            ("*::net::VERBOSE", "mycrate::net::VERBOSE", None, true),
            ("mycrate::net::*", "mycrate::VERBOSE", None, false),
            ("mycrate", "mycrate::VERBOSE", None, false),
            ("VERB*", "mycrate::VERBOSE", None, true),
            ("net:*", "net:sent", None, true),
            ("sent", "net:sent", None, false),
            ("LEVELS", "a::LEVELS", Some(0), true),
            ("LEVELS[3]", "a::LEVELS", Some(3), true),
            ("LEVELS[3]", "a::LEVELS", Some(30), false),
            ("LEVELS[3]", "a::LEVELS", None, false),
            ("a::LEVELS[?]", "a::LEVELS", Some(3), true),
            ("a.:LEVELS", "a::LEVELS", None, false),
        ] {
            let pattern = Pattern::new(pattern).expect("it is one");
            assert_eq!(pattern.fits(&key(name, index)), is, "{}", pattern.text);
        }
    }

    #[test]
    fn patterns_without_a_key_are_told() {
        let mut keys = vec![
            key("b::B", None),
            key("a::A", Some(1)),
            key("a::A", Some(0)),
        ];
        let patterns = ["A".to_owned(), "C".to_owned(), "D*".to_owned()];
        let error = choose(&mut keys, &patterns, "x").expect_err("C is not there");
        assert_eq!(error.to_string(), "no static key of x is named C or D*");
        choose(&mut keys, &patterns[..1], "x").expect("A is there");
        let names: Vec<String> = keys.iter().map(ToString::to_string).collect();
        assert_eq!(names, ["a::A[0]", "a::A[1]"]);
    }
}
