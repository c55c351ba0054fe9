//! Source lines: where their code begins.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Range;

use gimli::{AttributeValue, Unit};

use super::{Debug, Reader};

/// Why a line has no address.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LineError {
    /// No source file has this name.
    #[error("there is no source file {file}{}", near(.similar))]
    File {
        /// The name.
        file: String,
        /// Some similar names that exist.
        similar: Vec<String>,
    },
    /// The line has no code.
    #[error("line {line} of {file} has no code; {}", others(.nearest))]
    Line {
        /// The source file.
        file: String,
        /// The line.
        line: u32,
        /// The nearest lines that have code, ascending.
        nearest: Vec<u32>,
    },
}

fn near(similar: &[String]) -> String {
    match similar {
        [] => String::new(),
        _ => format!("; there are {}", similar.join(", ")),
    }
}

fn others(nearest: &[u32]) -> String {
    let lines: Vec<String> = nearest.iter().map(u32::to_string).collect();
    match &lines[..] {
        [] => "no line of it has".to_owned(),
        [line] => format!("line {line} has"),
        [first @ .., last] => format!("lines {} and {last} have", first.join(", ")),
    }
}

/// Code of one source line, up to the next row of the line table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LineRange {
    /// Where it begins.
    pub start: u64,
    /// Where it ends.
    pub end: u64,
    /// The source file: its place in [`LineTable::files`].
    pub file: u32,
    /// The line.
    pub line: u32,
}

/// All code that belongs to source lines.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LineTable {
    /// The source files.
    pub files: Vec<String>,
    /// The code, sorted by address.
    pub ranges: Vec<LineRange>,
}

/// Where the code of one line begins.
struct Row {
    addr: u64,
    line: u32,
}

/// At most this many source files are listed if one is not found.
const SIMILAR: usize = 5;

impl Debug {
    /// Returns where the code of a line begins: in the function with the line, in each part of it that lies elsewhere,
    /// and in each place where it was inlined. `file` is the name of a source file, or the last components of its path.
    ///
    /// # Errors
    /// If there is no such file, or the line has no code.
    pub fn line(&self, file: &str, line: u32) -> Result<Vec<u64>, LineError> {
        let mut found = BTreeSet::new();
        let mut lines = BTreeSet::new();
        let mut files = BTreeSet::new();
        let mut known = false;
        for (_, unit) in self.all() {
            let wanted = self.files(unit, |path| {
                files.insert(path.to_owned());
                is_path(path, file)
            });
            if wanted.is_empty() {
                continue;
            }
            known = true;
            let mut rows = Vec::new();
            self.rows(unit, |_, index, row| {
                if wanted.contains_key(&index) {
                    lines.insert(row.line);
                    if row.line == line {
                        rows.push(row.addr);
                    }
                }
            });
            found.extend(self.beginnings(unit, rows));
        }
        if !known {
            return Err(LineError::File {
                similar: similar(&files, file),
                file: file.to_owned(),
            });
        }
        if found.is_empty() {
            let before = lines.range(..line).next_back();
            let after = lines.range(line + 1..).next();
            return Err(LineError::Line {
                file: file.to_owned(),
                line,
                nearest: before.into_iter().chain(after).copied().collect(),
            });
        }
        Ok(found.into_iter().collect())
    }

    /// Returns the source files and lines of those addresses at which rows of the line table begin.
    #[must_use]
    pub fn lines_at(&self, addrs: &BTreeSet<u64>) -> HashMap<u64, (String, u32)> {
        let mut found = HashMap::new();
        for (_, unit) in self.all() {
            let mut places = Vec::new();
            self.rows(unit, |_, index, row| {
                if addrs.contains(&row.addr) {
                    places.push((row.addr, index, row.line));
                }
            });
            self.add_named(unit, places, &mut found);
        }
        found
    }

    /// Returns the source files and lines that these addresses belong to.
    #[must_use]
    pub fn lines_of(&self, addrs: &BTreeSet<u64>) -> HashMap<u64, (String, u32)> {
        let mut found = HashMap::new();
        for (_, unit) in self.all() {
            let Some(program) = unit.line_program.clone() else {
                continue;
            };
            let mut rows = program.rows();
            let mut places = Vec::new();
            // The row before: where it begins, its file and its line.
            let mut before: Option<(u64, u64, Option<u32>)> = None;
            while let Ok(Some((_, row))) = rows.next_row() {
                let here = row.address();
                if let Some((start, file, Some(line))) = before
                    && start != 0
                    && start < here
                {
                    places.extend(addrs.range(start..here).map(|&addr| (addr, file, line)));
                }
                let line = row.line().and_then(|line| u32::try_from(line.get()).ok());
                before = (!row.end_sequence()).then(|| (here, row.file_index(), line));
            }
            self.add_named(unit, places, &mut found);
        }
        found
    }

    /// Returns all code that belongs to source lines.
    #[must_use]
    pub fn line_table(&self) -> LineTable {
        let mut table = LineTable::default();
        let mut numbers: HashMap<String, u32> = HashMap::new();
        for (_, unit) in self.all() {
            let names = self.files(unit, |_| true);
            let LineTable { files, ranges } = &mut table;
            let mut known: HashMap<u64, u32> = HashMap::new();
            for (index, name) in names {
                let number = *numbers.entry(name).or_insert_with_key(|name| {
                    files.push(name.clone());
                    files.len() as u32 - 1
                });
                known.insert(index, number);
            }
            unit_ranges(unit, &known, ranges);
        }
        table.ranges.sort_by_key(|range| range.start);
        table
    }

    /// Adds places of a unit, with the names of their files: the address, the number of the file, and the line.
    fn add_named(
        &self,
        unit: &Unit<Reader>,
        places: Vec<(u64, u64, u32)>,
        found: &mut HashMap<u64, (String, u32)>,
    ) {
        if places.is_empty() {
            return;
        }
        let files = self.files(unit, |_| true);
        for (addr, index, line) in places {
            if let Some(file) = files.get(&index) {
                found.entry(addr).or_insert_with(|| (file.clone(), line));
            }
        }
    }

    /// Returns the address of a function's second line, which follows its prologue, or the end of the function if there
    /// is none.
    pub(crate) fn body(&self, unit: &Unit<Reader>, function: Range<u64>) -> u64 {
        let mut second = function.end;
        self.rows(unit, |_, _, row| {
            if function.start < row.addr && row.addr < second {
                second = row.addr;
            }
        });
        second
    }

    /// Returns the matching source files of a unit, by their numbers.
    fn files(
        &self,
        unit: &Unit<Reader>,
        mut wanted: impl FnMut(&str) -> bool,
    ) -> BTreeMap<u64, String> {
        let mut files = BTreeMap::new();
        let Some(program) = &unit.line_program else {
            return files;
        };
        let header = program.header();
        let text = |value: AttributeValue<Reader>| {
            let bytes = self.dwarf.attr_string(unit, value).ok()?;
            Some(String::from_utf8_lossy(&bytes).into_owned())
        };
        // Before DWARF 5, files were numbered from 1.
        let count = header.file_names().len() as u64;
        for index in 0..=count {
            let Some(file) = header.file(index) else {
                continue;
            };
            let Some(name) = text(file.path_name()) else {
                continue;
            };
            let directory = file.directory(header).and_then(text).unwrap_or_default();
            let path = match name.starts_with('/') || directory.is_empty() {
                true => name,
                false => format!("{directory}/{name}"),
            };
            let path = plain(&path);
            if wanted(&path) {
                files.insert(index, path);
            }
        }
        files
    }

    /// Calls `each` for the statements in a unit: the sequence, the file's number, and the place.
    fn rows(&self, unit: &Unit<Reader>, mut each: impl FnMut(u32, u64, Row)) {
        let Some(program) = unit.line_program.clone() else {
            return;
        };
        let mut rows = program.rows();
        let mut sequence = 0;
        let mut begins = true;
        let mut kept = true;
        while let Ok(Some((_, row))) = rows.next_row() {
            if begins {
                // Code that the linker dropped has lines at the beginning or the end of the address space.
                kept = row.address() != 0 && row.address() < u64::MAX >> 1;
                begins = false;
            }
            if row.end_sequence() {
                sequence += 1;
                begins = true;
            } else if kept
                && row.is_stmt()
                && let Some(line) = row.line()
            {
                let place = Row {
                    addr: row.address(),
                    line: u32::try_from(line.get()).unwrap_or(u32::MAX),
                };
                each(sequence, row.file_index(), place);
            }
        }
    }

    /// Returns the first of a line's addresses in each part of a function, and in each inlined copy.
    fn beginnings(&self, unit: &Unit<Reader>, mut places: Vec<u64>) -> Vec<u64> {
        places.sort_unstable();
        places.dedup();
        let scopes = self.scopes(unit, &places);
        let mut seen = BTreeSet::new();
        places.retain(|addr| match scopes.get(addr) {
            Some(scope) => seen.insert(*scope),
            None => true,
        });
        places
    }

    /// Returns for each address the innermost function, inlined or not, and the part of the outermost one that contains
    /// the address.
    fn scopes(&self, unit: &Unit<Reader>, addrs: &[u64]) -> HashMap<u64, (usize, u64)> {
        let mut scopes: HashMap<u64, (usize, u64)> = HashMap::new();
        if addrs.is_empty() {
            return scopes;
        }
        let mut entries = unit.entries();
        while let Ok(Some((_, entry))) = entries.next_dfs() {
            let outer = entry.tag() == gimli::DW_TAG_subprogram;
            if !outer && entry.tag() != gimli::DW_TAG_inlined_subroutine {
                continue;
            }
            for range in self.ranges(unit, entry) {
                let first = addrs.partition_point(|&addr| addr < range.start);
                for addr in addrs[first..].iter().take_while(|&&addr| addr < range.end) {
                    let part = match scopes.get(addr) {
                        Some(&(_, part)) if !outer => part,
                        _ => range.start,
                    };
                    // Inner functions come after outer ones.
                    scopes.insert(*addr, (entry.offset().0, part));
                }
            }
        }
        scopes
    }

    /// Returns the code ranges of a function, inlined function or block.
    pub(crate) fn ranges(
        &self,
        unit: &Unit<Reader>,
        entry: &gimli::DebuggingInformationEntry<'_, '_, Reader>,
    ) -> Vec<Range<u64>> {
        let mut all = Vec::new();
        if let Ok(mut ranges) = self.dwarf_with(unit).die_ranges(unit, entry) {
            while let Ok(Some(range)) = ranges.next() {
                if range.begin < range.end && range.begin != 0 {
                    all.push(range.begin..range.end);
                }
            }
        }
        all
    }
}

/// Adds the code of a unit that belongs to lines of these files.
fn unit_ranges(unit: &Unit<Reader>, files: &HashMap<u64, u32>, ranges: &mut Vec<LineRange>) {
    let Some(program) = unit.line_program.clone() else {
        return;
    };
    let mut rows = program.rows();
    // The row before: where it begins, its file and its line.
    let mut before: Option<(u64, u64, u32)> = None;
    // Code that the linker dropped has lines at the beginning or the end of the address space.
    let mut is_kept = None;
    while let Ok(Some((_, row))) = rows.next_row() {
        let here = row.address();
        let kept = *is_kept.get_or_insert(here != 0 && here < u64::MAX >> 1);
        if let Some((start, index, line)) = before
            && kept
            && start < here
            && let Some(&file) = files.get(&index)
        {
            ranges.push(LineRange {
                start,
                end: here,
                file,
                line,
            });
        }
        if row.end_sequence() {
            (before, is_kept) = (None, None);
            continue;
        }
        let line = row.line().and_then(|line| u32::try_from(line.get()).ok());
        before = line.map(|line| (here, row.file_index(), line));
    }
}

/// Removes `.` and `..` from a path.
fn plain(path: &str) -> String {
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/') {
        match part {
            "." => {}
            ".." if parts
                .last()
                .is_some_and(|last| !last.is_empty() && *last != "..") =>
            {
                parts.pop();
            }
            part => parts.push(part),
        }
    }
    parts.join("/")
}

/// Returns whether `wanted` is the path, or its last components.
fn is_path(path: &str, wanted: &str) -> bool {
    let wanted = plain(wanted);
    let rest = path.strip_suffix(wanted.as_str());
    rest.is_some_and(|rest| rest.is_empty() || rest.ends_with('/') || wanted.starts_with('/'))
}

/// Returns some source files similar to a missing one: the same name with another extension or case, or else the first
/// files.
fn similar(files: &BTreeSet<String>, wanted: &str) -> Vec<String> {
    let stem = |path: &str| {
        let name = path.rsplit('/').next().unwrap_or(path);
        let stem = name.split('.').next().unwrap_or(name);
        stem.to_lowercase()
    };
    let alike = |path: &&String| stem(path) == stem(wanted);
    let names = |paths: Vec<&String>| paths.into_iter().take(SIMILAR).cloned().collect();
    let alike: Vec<&String> = files.iter().filter(alike).collect();
    match alike.is_empty() {
        // Skips the system's headers.
        true => names(
            files
                .iter()
                .filter(|path| !path.starts_with("/usr/"))
                .collect(),
        ),
        false => names(alike),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_named_by_the_last_parts_of_their_paths() {
        assert!(is_path("/src/a/b.c", "b.c"));
        assert!(is_path("/src/a/b.c", "a/b.c"));
        assert!(is_path("/src/a/b.c", "/src/a/b.c"));
        assert!(is_path("b.c", "./b.c"));
        assert!(!is_path("/src/a/bb.c", "b.c"));
        assert!(!is_path("/src/a/b.c", "c"));
        assert_eq!(plain("/src/./a/../b.c"), "/src/b.c");
        assert_eq!(plain("../b.c"), "../b.c");
    }

    #[test]
    fn errors_list_what_exists() {
        let line = |nearest: &[u32]| LineError::Line {
            file: "a.c".to_owned(),
            line: 5,
            nearest: nearest.to_vec(),
        };
        assert_eq!(
            line(&[4, 7]).to_string(),
            "line 5 of a.c has no code; lines 4 and 7 have"
        );
        assert_eq!(
            line(&[4]).to_string(),
            "line 5 of a.c has no code; line 4 has"
        );
        assert_eq!(
            line(&[]).to_string(),
            "line 5 of a.c has no code; no line of it has"
        );
        let files: BTreeSet<String> = ["/x/main.c", "/x/util.h"].map(str::to_owned).into();
        assert_eq!(similar(&files, "Main.cc"), ["/x/main.c"]);
        assert_eq!(similar(&files, "other.c"), ["/x/main.c", "/x/util.h"]);
    }
}
