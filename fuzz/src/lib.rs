//! What the targets share: choices by the input's bytes; a small trace, and its files with arbitrary changes.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use hodo_trace::format::record::{ENTRY, EXIT, TAIL};
use hodo_trace::testing::Builder;

/// Makes choices according to the bytes; takes the first option once there are none left.
pub struct Bytes<'a>(pub &'a [u8]);

impl Bytes<'_> {
    /// The next bytes; zeros once there are none.
    pub fn take<const N: usize>(&mut self) -> [u8; N] {
        let mut out = [0; N];
        let len = N.min(self.0.len());
        out[..len].copy_from_slice(&self.0[..len]);
        self.0 = &self.0[len..];
        out
    }
}

/// The files of the undamaged trace: name, content.
type Files = Vec<(PathBuf, Vec<u8>)>;

fn whole() -> &'static (PathBuf, Files) {
    static WHOLE: OnceLock<(PathBuf, Files)> = OnceLock::new();
    WHOLE.get_or_init(|| {
        let directory = std::env::temp_dir().join(format!("hodo-fuzz-{}", std::process::id()));
        let mut trace = Builder::new(&directory, true);
        let f = trace.function("f", 'T');
        let g = trace.function("g", 'E');
        let first = trace.task(100, "start", 0, 10);
        let second = trace.task(101, "thread", 1, 20);
        for n in 0..20u64 {
            trace.leaf(first, f, n as u32, n * 10, n * 10 + 5);
        }
        trace.record(second, ENTRY, f, 1, 1 << 33);
        trace.record(second, ENTRY, g, 2, (1 << 33) + 1);
        trace.record(second, TAIL, f, 2, (1 << 33) + 2);
        trace.record(second, EXIT, g, 2, (1 << 33) + 3);
        trace.record(second, EXIT, f, 1, (1 << 33) + 4);
        trace.end(second, (1 << 33) + 9);
        trace.end(first, 1 << 34);
        trace.finish();
        let mut files: Files = fs::read_dir(&directory)
            .expect("the trace is there")
            .map(|entry| entry.expect("an entry").path())
            .map(|path| (path.clone(), fs::read(&path).expect("a file of it")))
            .collect();
        files.sort();
        (directory, files)
    })
}

/// Applies changes: which file (2 bits) and how (insert, overwrite, cut), where, and with what.
fn change(files: &mut Files, mut input: &[u8]) {
    while let [what, low, high, length, rest @ ..] = input {
        let count = files.len();
        let content = &mut files[usize::from(what & 3) % count].1;
        let (bytes, rest) = rest.split_at(rest.len().min(usize::from(length % 40)));
        let at = (usize::from(*low) | usize::from(*high) << 8).min(content.len());
        match what >> 2 & 3 {
            0 => drop(content.splice(at..at, bytes.iter().copied())),
            1 => content.truncate(at),
            _ => {
                let end = (at + bytes.len()).min(content.len());
                content[at..end].copy_from_slice(&bytes[..end - at]);
            }
        }
        input = rest;
    }
}

/// Writes the trace with the changes that `input` describes. Returns its directory, and the total size of its files.
pub fn damaged(input: &[u8]) -> (&'static Path, usize) {
    let (directory, files) = whole();
    let mut files = files.clone();
    change(&mut files, input);
    for (path, content) in &files {
        fs::write(path, content).expect("the trace can be written");
    }
    let size = files.iter().map(|(_, content)| content.len()).sum();
    (directory, size)
}
