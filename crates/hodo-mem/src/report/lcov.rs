//! Coverage as a tracefile of lcov, from which `genhtml` makes pages: geninfo(1), section "TRACEFILE FORMAT".

use std::io::Write;
use std::str::FromStr;

use anyhow::{Context, Result, bail, ensure};

use crate::coverage::{Coverage, Source};

/// Writes the file.
///
/// # Errors
/// If it cannot be written.
pub fn write(out: &mut dyn Write, coverage: &Coverage) -> Result<()> {
    for (file, source) in &coverage.sources {
        // It would end the record.
        let file = file.replace('\n', " ");
        writeln!(out, "TN:\nSF:{file}")?;
        for (name, function) in &source.functions {
            writeln!(out, "FN:{},{name}", function.line)?;
        }
        for (name, function) in &source.functions {
            writeln!(out, "FNDA:{},{name}", function.count)?;
        }
        let [(lines_hit, lines), (functions_hit, functions)] = source.totals();
        writeln!(out, "FNF:{functions}\nFNH:{functions_hit}")?;
        for (line, count) in &source.lines {
            writeln!(out, "DA:{line},{count}")?;
        }
        writeln!(out, "LF:{lines}\nLH:{lines_hit}\nend_of_record")?;
    }
    Ok(out.flush()?)
}

/// Adds the content of another tracefile to coverage.
///
/// # Errors
/// If it is damaged, or has what coverage has not. The error says where.
pub fn merge(coverage: &mut Coverage, content: &str) -> Result<()> {
    let mut open: Option<Record> = None;
    let mut last = 0;
    for (line, number) in content.lines().zip(1..) {
        last = number;
        read(coverage, &mut open, line).with_context(|| format!("line {number}"))?;
    }
    ensure!(last > 0, "it is empty");
    ensure!(
        open.is_none(),
        "line {last}: the file ends within the record of a source file"
    );
    Ok(())
}

/// A record of a source file that is read.
#[derive(Debug, Default)]
struct Record {
    file: String,
    source: Source,
    /// How many lines there are, and how many were executed, if it says so.
    said: [Option<usize>; 2],
}

fn read(coverage: &mut Coverage, open: &mut Option<Record>, line: &str) -> Result<()> {
    let (key, value) = line.split_once(':').unwrap_or((line, ""));
    let Some(record) = open else {
        match key {
            "TN" => {}
            "SF" => {
                *open = Some(Record {
                    file: value.to_owned(),
                    ..Record::default()
                });
            }
            _ if line.trim().is_empty() || line.starts_with('#') => {}
            _ => bail!("{line:?} is not in the record of a source file (SF)"),
        }
        return Ok(());
    };
    match key {
        "DA" => {
            let mut parts = value.splitn(3, ',');
            let line = number(parts.next())?;
            let count = record.source.lines.entry(line).or_default();
            *count = count.saturating_add(number(parts.next())?);
        }
        "FN" => {
            let (begin, name) = value.split_once(',').context("FN has no name")?;
            // Newer files also have the last line.
            let name = match name.split_once(',') {
                Some((end, name)) if end.parse::<u32>().is_ok() => name,
                _ => name,
            };
            record
                .source
                .functions
                .entry(name.to_owned())
                .or_default()
                .line = number(Some(begin))?;
        }
        "FNDA" => {
            let (count, name) = value.split_once(',').context("FNDA has no name")?;
            let function = record.source.functions.get_mut(name);
            let function = function.with_context(|| format!("there is no FN of {name}"))?;
            function.count = function.count.saturating_add(number(Some(count))?);
        }
        "LF" => record.said[0] = Some(number(Some(value))?),
        "LH" => record.said[1] = Some(number(Some(value))?),
        "TN" | "VER" | "FNF" | "FNH" => {}
        "BRDA" | "BRF" | "BRH" if value == "0" => {}
        "BRDA" | "BRF" | "BRH" => bail!("branches ({key}) cannot be merged"),
        "end_of_record" => {
            let Record { file, source, said } = std::mem::take(record);
            *open = None;
            let [(hit, all), _] = source.totals();
            for (said, is) in said.into_iter().zip([all, hit]) {
                ensure!(
                    said.is_none_or(|said| said == is),
                    "the record says that {} lines are known or executed, and has {is}",
                    said.unwrap_or_default()
                );
            }
            coverage.sources.entry(file).or_default().add(source);
        }
        _ => bail!("{line:?} is nothing that hodo knows in tracefiles"),
    }
    Ok(())
}

fn number<N: FromStr>(text: Option<&str>) -> Result<N> {
    let text = text.context("a number is missing")?;
    let number = text.trim().parse();
    number.map_err(|_| anyhow::anyhow!("{text:?} is no number"))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    const FILE: &str = "TN:\nSF:/a.c\nFN:3,f\nFN:9,g\nFNDA:2,f\nFNDA:0,g\nFNF:2\nFNH:1\nDA:3,2\nDA:4,0\nLF:2\nLH:1\n\
                        end_of_record\n";

    fn read(content: &str) -> Result<Coverage> {
        let mut coverage = Coverage::default();
        merge(&mut coverage, content)?;
        Ok(coverage)
    }

    #[test]
    fn what_is_written_can_be_merged() {
        let mut coverage = read(FILE).expect("a tracefile");
        let mut out = Vec::new();
        write(&mut out, &coverage).expect("memory");
        assert_eq!(String::from_utf8(out).expect("text"), FILE);
        let other = FILE.replace("DA:4,0", "DA:4,5").replace("LH:1", "LH:2");
        merge(&mut coverage, &other).expect("a tracefile");
        let source = &coverage.sources["/a.c"];
        assert_eq!(source.lines, BTreeMap::from([(3, 4), (4, 5)]));
        assert_eq!(source.functions["f"].count, 4);
        assert_eq!(source.totals(), [(2, 2), (1, 2)]);
    }

    #[test]
    fn damaged_files_are_refused() {
        let wrong = |content: &str| format!("{:#}", read(content).expect_err("damaged"));
        assert_eq!(wrong(""), "it is empty");
        let cut = FILE.strip_suffix("end_of_record\n").expect("an end");
        assert!(wrong(cut).starts_with("line 12: the file ends"));
        assert!(wrong(&FILE.replace("DA:4,0\n", "")).starts_with("line 12: the record says"));
        assert_eq!(
            wrong(&FILE.replace("DA:4,0", "DA:4,x")),
            "line 10: \"x\" is no number"
        );
        assert!(wrong(&FILE.replace("FNDA:2,f", "FNDA:2,h")).contains("line 5: there is no FN"));
        assert!(wrong(&FILE.replace("LF:2", "BRDA:3,0,0,1")).contains("branches"));
        assert!(wrong("DA:1,1\n").contains("not in the record"));
        // As often as can be counted, at most.
        let most = FILE.replace("DA:3,2", "DA:3,18446744073709551615");
        let mut coverage = read(&most).expect("a tracefile");
        merge(&mut coverage, &most).expect("a tracefile");
        assert_eq!(coverage.sources["/a.c"].lines[&3], u64::MAX);
    }

    #[test]
    fn newer_files_have_last_lines_of_functions() {
        let coverage = read(&FILE.replace("FN:3,f", "FN:3,7,f")).expect("a tracefile");
        assert_eq!(coverage.sources["/a.c"].functions["f"].line, 3);
    }
}
