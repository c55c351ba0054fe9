//! Results as a page for browsers, which needs nothing else: misses over time, by function, and in the source text.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::io::Write;
use std::path::Path;

use crate::cache::Counts;
use crate::timeline::{PART, Sample};
use anyhow::Result;

/// How many functions are shown.
const FUNCTIONS: usize = 50;
/// How many source files are shown, the ones with the most misses.
const FILES: usize = 20;
/// How many lines are shown before and after one that misses.
const AROUND: u32 = 3;
/// The size of the picture, without its frame, in pixels.
const PICTURE: (f64, f64) = (900.0, 160.0);

const STYLE: &str = "
body { font: 14px sans-serif; margin: 2em; color: #222; }
table { border-collapse: collapse; margin-bottom: 2em; }
td, th { padding: 1px 10px; text-align: right; }
td.name, th.name { text-align: left; font-family: monospace; white-space: pre; }
td.bar { width: 200px; text-align: left; }
td.bar div { background: #d9534f; height: 10px; }
tr.gap td { color: #999; text-align: center; }
svg { background: #f7f7f7; }
";

/// What a page shows.
#[derive(Debug)]
pub struct Page<'p> {
    /// The command line.
    pub title: String,
    /// Caches with their shapes: references and misses.
    pub levels: Vec<(String, u64, u64)>,
    /// By file and name, most misses first.
    pub functions: &'p [((String, String), Counts)],
    /// By source file and line.
    pub lines: &'p [((String, u32), Counts)],
    /// The run, in parts.
    pub timeline: &'p [Sample],
    /// Bytes of a line of data.
    pub line: u32,
}

impl Page<'_> {
    /// Writes it.
    ///
    /// # Errors
    /// If that fails.
    pub fn write(&self, out: &mut impl Write) -> Result<()> {
        Ok(out.write_all(self.text().as_bytes())?)
    }

    fn text(&self) -> String {
        let title = escaped(&self.title);
        let parts = [
            self.caches(),
            misses(self.timeline),
            working_set(self.timeline, self.line),
            self.functions(),
            self.sources(),
        ];
        format!(
            "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"/><title>{title}</title>\
             <style>{STYLE}</style></head><body>\n<h1>Cache misses</h1>\n<p><code>{title}</code></p>\n{}\
             </body></html>\n",
            parts.concat()
        )
    }

    fn caches(&self) -> String {
        let mut text = "<table><tr><th class=\"name\">cache</th><th>references</th><th>misses</th><th>%</th></tr>\n"
            .to_owned();
        for (name, references, misses) in &self.levels {
            let percent = 100.0 * *misses as f64 / (*references).max(1) as f64;
            let name = escaped(name);
            text += &format!(
                "<tr><td class=\"name\">{name}</td><td>{references}</td><td>{misses}</td><td>{percent:.2}</td></tr>\n"
            );
        }
        text + "</table>\n"
    }

    fn functions(&self) -> String {
        let mut text = format!("<h2>Functions</h2>\n<table>{}\n", head("function"));
        let most = self
            .functions
            .iter()
            .map(|(_, counts)| counts.all_misses().0);
        let most = most.max().unwrap_or(0);
        for ((file, name), counts) in self.functions.iter().take(FUNCTIONS) {
            let file = Path::new(file).file_name().unwrap_or_default();
            let name = escaped(&format!("{name} ({})", file.to_string_lossy()));
            let width = 100.0 * counts.all_misses().0 as f64 / most.max(1) as f64;
            text += &format!(
                "<tr>{}<td class=\"bar\"><div style=\"width: {width:.1}%\"></div></td><td class=\"name\">{name}</td></tr>\n",
                cells(counts)
            );
        }
        text + "</table>\n"
    }

    /// The lines that miss, and those around them, if the source files are there.
    fn sources(&self) -> String {
        let mut files: BTreeMap<&str, BTreeMap<u32, &Counts>> = BTreeMap::new();
        for ((file, line), counts) in self.lines {
            if counts.all_misses().0 > 0 {
                files.entry(file).or_default().insert(*line, counts);
            }
        }
        let misses = |lines: &BTreeMap<u32, &Counts>| {
            let all = lines.values().map(|counts| counts.all_misses().0);
            all.sum::<u64>()
        };
        let mut files: Vec<_> = files.into_iter().collect();
        files.sort_by_key(|(file, lines)| (std::cmp::Reverse(misses(lines)), *file));
        let all = self.lines.iter();
        let most = all.map(|(_, counts)| counts.all_misses().0).max();
        let shown = files.iter().take(FILES);
        let shown = shown.map(|(file, lines)| source(file, lines, most.unwrap_or(0)));
        shown.collect()
    }
}

fn head(name: &str) -> String {
    let bar = if name == "function" { "<th></th>" } else { "" };
    format!(
        "<tr><th>I1 misses</th><th>D1 misses</th><th>LL misses</th><th>instructions</th>{bar}\
         <th class=\"name\">{name}</th></tr>"
    )
}

fn cells(counts: &Counts) -> String {
    let data = counts.misses[0] + counts.misses[1];
    let (_, last) = counts.all_misses();
    format!(
        "<td>{}</td><td>{data}</td><td>{last}</td><td>{}</td>",
        counts.fetch_misses, counts.instructions
    )
}

/// A source file: the more a line misses, the redder it is.
fn source(file: &str, lines: &BTreeMap<u32, &Counts>, most: u64) -> String {
    let bytes = fs::read(file).unwrap_or_default();
    let text = String::from_utf8_lossy(&bytes);
    let text: Vec<&str> = text.lines().collect();
    let mut out = format!("<h2>{}</h2>\n<table>{}\n", escaped(file), head("line"));
    let is_near = |line: u32| {
        let near = line.saturating_sub(AROUND)..=line.saturating_add(AROUND);
        lines.range(near).next().is_some()
    };
    let wanted: Vec<u32> = match text.is_empty() {
        true => lines.keys().copied().collect(),
        false => (1..=text.len() as u32)
            .filter(|&line| is_near(line))
            .collect(),
    };
    let mut before = 0;
    for line in wanted {
        if line != before + 1 {
            out += "<tr class=\"gap\"><td colspan=\"5\">…</td></tr>\n";
        }
        before = line;
        let content = text.get(line as usize - 1).copied().unwrap_or_default();
        let content = escaped(&format!("{line:>6}  {content}"));
        let (cells, heat) = match lines.get(&line) {
            // A root makes small shares visible.
            Some(counts) => {
                let share = counts.all_misses().0 as f64 / most.max(1) as f64;
                (cells(counts), share.sqrt())
            }
            None => ("<td></td>".repeat(4), 0.0),
        };
        out += &format!(
            "<tr style=\"background: rgba(217, 83, 79, {heat:.2})\">{cells}<td class=\"name\">{content}</td></tr>\n"
        );
    }
    out + "</table>\n"
}

/// What has two values at some times of the run.
struct Picture<'p> {
    title: &'p str,
    names: [&'p str; 2],
    /// The values from the time before to this one, in instructions.
    parts: Vec<(f64, [f64; 2])>,
}

/// Misses in each part of the run.
fn misses(timeline: &[Sample]) -> String {
    let start = Sample::default();
    let before = std::iter::once(&start).chain(timeline);
    let parts = before.zip(timeline);
    let parts = parts.filter(|(before, after)| after.instructions > before.instructions);
    let parts = parts.map(|(before, after)| {
        let thousands = (after.instructions - before.instructions) as f64 / 1000.0;
        let first = (after.misses - before.misses) as f64 / thousands;
        let last = (after.last_misses - before.last_misses) as f64 / thousands;
        (after.instructions as f64, [first, last])
    });
    let picture = Picture {
        title: "Misses of data in 1000 instructions",
        names: ["D1", "LL"],
        parts: parts.collect(),
    };
    picture.text()
}

/// How much memory is in use.
fn working_set(timeline: &[Sample], line: u32) -> String {
    let size = |lines: u64| (lines * u64::from(line)) as f64 / 1024.0;
    let parts = timeline.iter().map(|sample| {
        let sizes = [sample.part_lines, sample.all_lines].map(size);
        (sample.instructions as f64, sizes)
    });
    let title = format!(
        "KiB in use in {} million instructions, and in all so far",
        PART / 1_000_000
    );
    let picture = Picture {
        title: &title,
        names: ["in use", "all"],
        parts: parts.collect(),
    };
    picture.text()
}

impl Picture<'_> {
    fn text(&self) -> String {
        let (width, height) = PICTURE;
        let end = self.parts.last().map_or(1.0, |(end, _)| end.max(1.0));
        let most = self.parts.iter().flat_map(|(_, values)| values).copied();
        let most = most.fold(0.001, f64::max);
        let mut out = format!(
            "<h2>{}, over {end} instructions</h2>\n\
             <svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{}\" height=\"{}\">\n\
             <text x=\"4\" y=\"14\" font-size=\"12\">{most:.1}</text>\n",
            self.title,
            width + 10.0,
            height + 10.0
        );
        for (number, color) in ["#337ab7", "#d9534f"].iter().enumerate() {
            let mut points = String::new();
            let mut begin = 0.0;
            for (end_of_part, values) in &self.parts {
                let y = height - height * 0.9 * values[number] / most;
                for x in [begin, *end_of_part] {
                    let _ = write!(points, "{:.1},{y:.1} ", 5.0 + width * x / end);
                }
                begin = *end_of_part;
            }
            let name = self.names[number];
            let x = width - 80.0 + 50.0 * number as f64;
            out += &format!(
                "<polyline fill=\"none\" stroke=\"{color}\" points=\"{}\"/>\n\
                 <text x=\"{x}\" y=\"14\" font-size=\"12\" fill=\"{color}\">{name}</text>\n",
                points.trim_end()
            );
        }
        out + "</svg>\n"
    }
}

/// Text as part of a page.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => out += "&amp;",
            '<' => out += "&lt;",
            '>' => out += "&gt;",
            '"' => out += "&quot;",
            // Browsers show no others.
            character if character.is_control() && character != '\t' => out.push('\u{FFFD}'),
            character => out.push(character),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_no_markup() {
        let functions = [(
            ("/a/<b>".to_owned(), "f<T>(\"&\\u{1}\")".to_owned()),
            Counts {
                misses: [3, 4],
                ..Counts::default()
            },
        )];
        let lines = [(("/no/such/<file>".to_owned(), 7), functions[0].1)];
        let sample = |instructions, misses| Sample {
            instructions,
            misses,
            last_misses: misses / 2,
            part_lines: misses / 10,
            all_lines: misses / 5,
        };
        let page = Page {
            title: "prog '<script>'".to_owned(),
            levels: vec![("D1 32 KiB".to_owned(), 100, 7)],
            functions: &functions,
            lines: &lines,
            timeline: &[sample(1000, 10), sample(2000, 50), sample(2000, 50)],
            line: 64,
        };
        let text = page.text();
        assert!(!text.contains("<script>") && !text.contains("f<T>") && !text.contains("<file>"));
        assert!(text.contains("f&lt;T&gt;(&quot;&amp;"));
        assert!(text.contains("<td>7</td><td>7.00</td>"));
        // 10 misses in the first half, 40 in the second one.
        assert!(
            text.contains("points=\"5.0,124.0 455.0,124.0 455.0,16.0 905.0,16.0\""),
            "{text}"
        );
        // One line in use first and two at all, then five and ten.
        assert!(
            text.contains(
                "points=\"5.0,145.6 455.0,145.6 455.0,88.0 905.0,88.0 905.0,88.0 905.0,88.0\""
            ),
            "{text}"
        );
        for tag in ["table", "tr", "td", "svg", "body", "html", "text", "h2"] {
            let count = |wanted: String| text.matches(&wanted).count();
            let open = count(format!("<{tag}>")) + count(format!("<{tag} "));
            assert_eq!(open, count(format!("</{tag}>")), "{tag}");
        }
    }

    #[test]
    fn a_page_without_anything() {
        let page = Page {
            title: String::new(),
            levels: Vec::new(),
            functions: &[],
            lines: &[],
            timeline: &[],
            line: 64,
        };
        assert!(page.text().ends_with("</html>\n"));
    }
}
