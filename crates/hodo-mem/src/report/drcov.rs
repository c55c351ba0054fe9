//! Coverage as a file of DynamoRIO's tool drcov, which Lighthouse and other viewers read: version 2, with a table of
//! modules of version 2.
//!
//! The header and the table of modules are text. After them come the blocks, eight bytes each: how far from the first
//! address of its module (4), bytes of code (2), and the number of the module (2).

use std::collections::HashMap;
use std::io::Write;
use std::path::PathBuf;

use anyhow::{Context, Result, bail, ensure};

use crate::coverage::{Coverage, Module};

const ENTRY: usize = 8;

/// Writes the file.
///
/// # Errors
/// If it cannot be written, or a module is too large for the format.
pub fn write(out: &mut dyn Write, coverage: &Coverage) -> Result<()> {
    let mut blocks = Vec::new();
    let modules = &coverage.modules;
    writeln!(out, "DRCOV VERSION: 2\nDRCOV FLAVOR: drcov")?;
    writeln!(out, "Module Table: version 2, count {}", modules.len())?;
    writeln!(out, "Columns: id, base, end, entry, path")?;
    for (number, (path, module)) in modules.iter().enumerate() {
        let Module {
            base, end, entry, ..
        } = module;
        let path = path.display().to_string().replace('\n', " ");
        writeln!(
            out,
            "{number:3}, {base:#018x}, {end:#018x}, {entry:#018x}, {path}"
        )?;
        let number = u16::try_from(number).context("there are more than 65536 modules")?;
        for &(distance, size) in &module.blocks {
            let distance =
                u32::try_from(distance).with_context(|| format!("{path} is larger than 4 GiB"))?;
            blocks.extend(distance.to_le_bytes());
            blocks.extend(size.to_le_bytes());
            blocks.extend(number.to_le_bytes());
        }
    }
    writeln!(out, "BB Table: {} bbs", blocks.len() / ENTRY)?;
    out.write_all(&blocks)?;
    Ok(out.flush()?)
}

/// Adds the content of another file to coverage.
///
/// # Errors
/// If it is damaged, or of another version. The error says where.
pub fn merge(coverage: &mut Coverage, content: &[u8]) -> Result<()> {
    let mut reader = Reader {
        rest: content,
        line: 0,
    };
    let version = reader.after("DRCOV VERSION: ")?;
    ensure!(
        version == "2",
        "line 1: version {version} of drcov; hodo reads version 2"
    );
    reader.after("DRCOV FLAVOR: ")?;
    let table = reader.after("Module Table: ")?;
    let count = table.strip_prefix("version 2, count ");
    let count = count
        .with_context(|| format!("line 3: {table:?}; hodo reads tables of modules of version 2"))?;
    let count = number(count, 10).context("line 3")?;
    let columns = reader.after("Columns: ")?;
    let columns: Vec<&str> = columns.split(", ").collect();
    let mut modules = HashMap::new();
    for _ in 0..count {
        let line = reader.line()?;
        let place = reader.line;
        let (id, path, module) = module(&columns, line).with_context(|| format!("line {place}"))?;
        modules.insert(id, (path, module));
    }
    let blocks = reader.after("BB Table: ")?;
    let place = reader.line;
    let blocks = blocks.strip_suffix(" bbs").unwrap_or(blocks);
    let blocks = number(blocks, 10).with_context(|| format!("line {place}"))?;
    let is = reader.rest.len() / ENTRY;
    if reader.rest.starts_with(b"module id") {
        bail!(
            "line {}: the blocks are text; hodo reads binary ones",
            place + 1
        );
    }
    ensure!(
        is as u64 == blocks && reader.rest.len().is_multiple_of(ENTRY),
        "byte {}: there should be {blocks} blocks, and there are {} bytes, enough for {is}",
        content.len() - reader.rest.len(),
        reader.rest.len()
    );
    for (block, index) in reader.rest.as_chunks::<ENTRY>().0.iter().zip(0..) {
        let [a, b, c, d, e, f, g, h] = *block;
        let id = u64::from(u16::from_le_bytes([g, h]));
        let found = modules.get_mut(&id);
        let (_, module) = found.with_context(|| {
            let at = content.len() - reader.rest.len() + index * ENTRY;
            format!("byte {at}: there is no module {id}")
        })?;
        let distance = u32::from_le_bytes([a, b, c, d]);
        module
            .blocks
            .insert((distance.into(), u16::from_le_bytes([e, f])));
    }
    coverage.add(Coverage {
        modules: modules.into_values().collect(),
        ..Coverage::default()
    });
    Ok(())
}

/// A row of the table of modules.
fn module(columns: &[&str], line: &str) -> Result<(u64, PathBuf, Module)> {
    let values: Vec<&str> = line.trim_start().splitn(columns.len(), ", ").collect();
    ensure!(
        values.len() == columns.len(),
        "there should be {} columns, and there are {}",
        columns.len(),
        values.len()
    );
    let get = |name: &str| {
        let found = columns.iter().position(|&column| column == name);
        let found = found.with_context(|| format!("there is no column {name:?}"))?;
        anyhow::Ok(values[found].trim())
    };
    let (base, end) = (number(get("base")?, 16)?, number(get("end")?, 16)?);
    ensure!(base <= end, "the module ends before it begins");
    let module = Module {
        base,
        end,
        entry: number(get("entry")?, 16)?,
        ..Module::default()
    };
    Ok((number(get("id")?, 10)?, PathBuf::from(get("path")?), module))
}

fn number(text: &str, base: u32) -> Result<u64> {
    let digits = text.trim();
    let digits = digits.strip_prefix("0x").unwrap_or(digits);
    u64::from_str_radix(digits, base).with_context(|| format!("{text:?} is no number"))
}

struct Reader<'c> {
    rest: &'c [u8],
    /// The number of the line that was read last.
    line: usize,
}

impl<'c> Reader<'c> {
    fn line(&mut self) -> Result<&'c str> {
        self.line += 1;
        let number = self.line;
        let end = self.rest.iter().position(|&byte| byte == b'\n');
        let end = end.with_context(|| format!("line {number}: the file ends too early"))?;
        let line = std::str::from_utf8(&self.rest[..end]);
        self.rest = &self.rest[end + 1..];
        let line = line.with_context(|| format!("line {number}: it is no text"))?;
        Ok(line.trim_end_matches('\r'))
    }

    /// What comes in the next line after this.
    fn after(&mut self, start: &str) -> Result<&'c str> {
        let line = self.line()?;
        let rest = line.strip_prefix(start);
        rest.with_context(|| {
            let number = self.line;
            format!("line {number}: {line:?} does not begin with {start:?}")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn coverage(blocks: &[(u64, u16)]) -> Coverage {
        let module = Module {
            base: 0x40_0000,
            end: 0x40_5000,
            entry: 0x40_1000,
            blocks: blocks.iter().copied().collect(),
            ..Module::default()
        };
        let mut coverage = Coverage::default();
        coverage.modules.insert("/a, b".into(), module);
        coverage
    }

    fn written(coverage: &Coverage) -> Vec<u8> {
        let mut out = Vec::new();
        write(&mut out, coverage).expect("memory");
        out
    }

    #[test]
    fn what_is_written_can_be_merged() {
        let file = written(&coverage(&[(0x1000, 5), (0x1010, 300)]));
        let mut other = coverage(&[(0x1000, 5), (0x2000, 7)]);
        merge(&mut other, &file).expect("a file");
        assert_eq!(other, coverage(&[(0x1000, 5), (0x1010, 300), (0x2000, 7)]));
        let mut none = Coverage::default();
        merge(&mut none, &file).expect("a file");
        assert_eq!(written(&none), file);
    }

    #[test]
    fn damaged_files_are_refused() {
        let file = written(&coverage(&[(0x1000, 5)]));
        let wrong = |content: &[u8]| {
            let result = merge(&mut Coverage::default(), content);
            format!("{:#}", result.expect_err("damaged"))
        };
        assert!(wrong(&file[..file.len() - 1]).contains("there should be 1 blocks"));
        let mut other = file.clone();
        let last = other.len() - 1;
        other[last] = 9;
        assert!(wrong(&other).contains("there is no module 2304"));
        assert!(wrong(&file[..40]).contains("line 3: the file ends too early"));
        assert!(wrong(b"other\n").starts_with("line 1:"));
        let text = String::from_utf8_lossy(&file).replace("table: version 2", "");
        assert!(
            wrong(
                text.replace("version 2, count", "version 5, count")
                    .as_bytes()
            )
            .contains("version 5")
        );
        assert!(
            wrong(text.replace("0x0000000000405000", "0x1").as_bytes())
                .contains("line 5: the module ends")
        );
    }
}
