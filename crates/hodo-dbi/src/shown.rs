//! What a program reads of its own mappings.
//!
//! The kernel's lists (`/proc/PID/maps` and `smaps`; Linux, Documentation/filesystems/proc.rst) show the program's code
//! as hodo has protected it. A program gets them with the rights that it has. hodo's own memory stays in them: a
//! program that looks for room must not take that.

use hodo_abi::Span;

use crate::spans::Spans;

/// A list of mappings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum List {
    /// `maps`: a line each.
    Lines,
    /// `smaps`: a line each, and lines of figures.
    Figures,
}

impl List {
    /// By the name of the file.
    pub(crate) fn of(name: &str) -> Option<Self> {
        match name {
            "maps" => Some(Self::Lines),
            "smaps" => Some(Self::Figures),
            _ => None,
        }
    }
}

/// Ranges in ascending order: lists may have many lines.
#[derive(Debug)]
struct Ranges(Vec<Span>);

impl Ranges {
    fn new(spans: &Spans) -> Self {
        let mut ranges: Vec<Span> = spans.all().collect();
        ranges.sort_unstable_by_key(|span| span.start);
        Self(ranges)
    }

    /// Those that may have some of a range.
    fn near(&self, range: Span) -> &[Span] {
        let first = self.0.partition_point(|span| span.end <= range.start);
        let last = self.0.partition_point(|span| span.start < range.end);
        self.0.get(first..last).unwrap_or_default()
    }

    fn has(&self, address: u64) -> bool {
        let next = self.0.partition_point(|span| span.start <= address);
        next > 0 && self.0[next - 1].contains(address)
    }
}

/// The memory of a process, as hodo knows it.
#[derive(Debug)]
pub(crate) struct Shown {
    /// What the program may execute.
    code: Ranges,
    /// What of that it may also write.
    writable: Ranges,
}

/// The beginning of a line for a mapping.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Line<'t> {
    span: Span,
    rights: [u8; 4],
    offset: u64,
    /// Device and inode.
    file: [&'t [u8]; 2],
    path: &'t [u8],
    /// Its rights are not those that the kernel shows.
    is_changed: bool,
}

fn hexadecimal(digits: &[u8]) -> Option<u64> {
    u64::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
}

impl<'t> Line<'t> {
    /// `None`: the line is no such one.
    fn parse(line: &'t [u8]) -> Option<Self> {
        let mut fields = line.splitn(6, |&byte| byte == b' ');
        let range = fields.next()?;
        let dash = range.iter().position(|&byte| byte == b'-')?;
        Some(Self {
            span: Span::from(hexadecimal(&range[..dash])?..hexadecimal(&range[dash + 1..])?),
            rights: fields.next()?.try_into().ok()?,
            offset: hexadecimal(fields.next()?)?,
            file: [fields.next()?, fields.next()?],
            path: fields.next().unwrap_or_default().trim_ascii_start(),
            is_changed: false,
        })
    }

    /// As the kernel writes it (`show_vma_header_prefix`, fs/proc/task_mmu.c).
    fn write(&self, out: &mut Vec<u8>) {
        /// Where paths begin.
        const PATH: usize = 73;
        let start = out.len();
        let Span { start: from, end } = self.span;
        out.extend(format!("{from:08x}-{end:08x} ").into_bytes());
        out.extend(self.rights);
        out.extend(format!(" {:08x} ", self.offset).into_bytes());
        for part in self.file {
            out.extend(part);
            out.push(b' ');
        }
        if !self.path.is_empty() {
            out.resize(out.len().max(start + PATH), b' ');
            out.extend(self.path);
        }
        out.push(b'\n');
    }

    /// Whether this one and the next one would be one without hodo.
    fn continues(&self, next: &Self) -> bool {
        let is_file = self.file[1] != b"0";
        let offset = if is_file { self.span.len() } else { 0 };
        (self.is_changed || next.is_changed)
            && self.span.end == next.span.start
            && self.rights == next.rights
            && self.file == next.file
            && self.path == next.path
            && self.offset + offset == next.offset
    }
}

impl Shown {
    /// `code`: what the program may execute; `writable`: what of that it may also write.
    pub(crate) fn new(code: &Spans, writable: &Spans) -> Self {
        Self {
            code: Ranges::new(code),
            writable: Ranges::new(writable),
        }
    }

    /// The parts of a mapping that have different rights for the program.
    fn parts<'t>(&self, line: &Line<'t>) -> Vec<Line<'t>> {
        let all = [&self.code, &self.writable];
        let spans = all.into_iter().flat_map(|ranges| ranges.near(line.span));
        let ends = spans.flat_map(|span| [span.start, span.end]);
        let mut cuts: Vec<u64> = ends
            .filter(|&at| line.span.start < at && at < line.span.end)
            .chain([line.span.start, line.span.end])
            .collect();
        cuts.sort_unstable();
        cuts.dedup();
        let is_file = line.file[1] != b"0";
        cuts.windows(2)
            .map(|pair| {
                let mut part = line.clone();
                part.span = Span::from(pair[0]..pair[1]);
                if is_file {
                    part.offset += pair[0] - line.span.start;
                }
                if self.code.has(pair[0]) {
                    part.rights[2] = b'x';
                }
                if self.writable.has(pair[0]) {
                    part.rights[1] = b'w';
                }
                part.is_changed = part.rights != line.rights;
                part
            })
            .collect()
    }

    /// A list of the kernel's, as the program would find it alone.
    pub(crate) fn list(&self, list: List, text: &[u8]) -> Vec<u8> {
        let lines = text
            .split_inclusive(|&byte| byte == b'\n')
            .map(|line| line.strip_suffix(b"\n").unwrap_or(line));
        match list {
            List::Lines => self.lines(lines),
            List::Figures => self.figures(lines),
        }
    }

    fn lines<'t>(&self, lines: impl Iterator<Item = &'t [u8]>) -> Vec<u8> {
        let parsed = lines.filter_map(Line::parse);
        let mut out = Vec::new();
        let mut last: Option<Line> = None;
        for part in parsed.flat_map(|line| self.parts(&line)) {
            match &mut last {
                Some(last) if last.continues(&part) => {
                    last.span.end = part.span.end;
                    last.is_changed = true;
                }
                last => {
                    if let Some(last) = last.replace(part) {
                        last.write(&mut out);
                    }
                }
            }
        }
        if let Some(last) = last {
            last.write(&mut out);
        }
        out
    }

    /// A mapping that the kernel has made of several keeps its figures, which cannot be divided: it has the rights of
    /// all.
    fn figures<'t>(&self, lines: impl Iterator<Item = &'t [u8]>) -> Vec<u8> {
        let mut out = Vec::new();
        let mut is_code = false;
        for line in lines {
            if let Some(mut parsed) = Line::parse(line) {
                let parts = self.parts(&parsed);
                is_code = parts.iter().any(|part| part.rights[2] == b'x');
                for part in &parts {
                    for (right, more) in parsed.rights.iter_mut().zip(part.rights) {
                        *right = (*right).max(more);
                    }
                }
                parsed.write(&mut out);
                continue;
            }
            match line.strip_prefix(b"VmFlags: rd ") {
                Some(rest) if is_code && !rest.windows(3).any(|flag| flag == b"ex ") => {
                    let (write, rest) = match rest.strip_prefix(b"wr ") {
                        Some(rest) => ("wr ", rest),
                        None => ("", rest),
                    };
                    out.extend(format!("VmFlags: rd {write}ex ").into_bytes());
                    out.extend(rest);
                }
                _ => out.extend(line),
            }
            out.push(b'\n');
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown() -> Shown {
        let spans = |ranges: &[(u64, u64)]| {
            let mut spans = Spans::default();
            for &(start, end) in ranges {
                spans.add(Span::from(start..end));
            }
            spans
        };
        let code = spans(&[(0x6000, 0x9000), (0x1000, 0x3000)]);
        Shown::new(&code, &spans(&[(0x6000, 0x9000)]))
    }

    fn list(list: List, text: &str) -> String {
        let got = shown().list(list, text.as_bytes());
        String::from_utf8(got).expect("text")
    }

    #[test]
    fn lines_are_those_of_the_program_alone() {
        let padded = |line: &str, path: &str| format!("{line:<73}{path}\n");
        // The kernel makes one mapping of the header, the code and the constants; and three of code with a page that
        // hodo watches.
        let kernel = [
            padded("00000000-00004000 r--p 00002000 fe:00 42 ", "/tmp/a b"),
            "00006000-00007000 rw-p 00000000 00:00 0 \n".to_owned(),
            "00007000-00008000 r--p 00000000 00:00 0 \n".to_owned(),
            "00008000-00009000 rw-p 00000000 00:00 0 \n".to_owned(),
            "00009000-0000a000 rw-p 00000000 00:00 0 \n".to_owned(),
            padded("7ffff7fc1000-7ffff7fc5000 r--p 00000000 00:00 0 ", "[vvar]"),
        ]
        .concat();
        let program = [
            padded("00000000-00001000 r--p 00002000 fe:00 42 ", "/tmp/a b"),
            padded("00001000-00003000 r-xp 00003000 fe:00 42 ", "/tmp/a b"),
            padded("00003000-00004000 r--p 00005000 fe:00 42 ", "/tmp/a b"),
            "00006000-00009000 rwxp 00000000 00:00 0 \n".to_owned(),
            "00009000-0000a000 rw-p 00000000 00:00 0 \n".to_owned(),
            padded("7ffff7fc1000-7ffff7fc5000 r--p 00000000 00:00 0 ", "[vvar]"),
        ]
        .concat();
        assert_eq!(list(List::Lines, &kernel), program);
    }

    #[test]
    fn figures_stay() {
        let kernel = "00001000-00003000 r--p 00000000 00:00 0 \nSize: 8 kB\nVmFlags: rd mr mw me \n\
                      00009000-0000a000 r--p 00000000 00:00 0 \nSize: 4 kB\nVmFlags: rd mr \n";
        let program = "00001000-00003000 r-xp 00000000 00:00 0 \nSize: 8 kB\nVmFlags: rd ex mr mw me \n\
                       00009000-0000a000 r--p 00000000 00:00 0 \nSize: 4 kB\nVmFlags: rd mr \n";
        assert_eq!(list(List::Figures, kernel), program);
    }
}
