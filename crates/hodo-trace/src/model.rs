//! The parts of a trace.

use std::fs::File;
use std::os::unix::fs::FileExt;

use crate::format::{CHUNK_HEADER_SIZE, CHUNK_SIZE, chunk_header};
use crate::meta::Exit;

/// What is recorded of a function.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FunctionKind {
    /// Entry and exit.
    Both,
    /// The entry only.
    Entry,
    /// A call into a shared library: entry and exit.
    Library,
    /// A call into a shared library: the entry only.
    LibraryEntry,
    /// Not a function but a probe on an instruction: its hits.
    Probe,
    /// Nothing.
    None,
}

impl FunctionKind {
    pub(crate) fn from_letter(letter: &str) -> Option<Self> {
        Some(match letter {
            "T" => Self::Both,
            "E" => Self::Entry,
            "P" => Self::Library,
            "p" => Self::LibraryEntry,
            "B" => Self::Probe,
            "-" => Self::None,
            _ => return None,
        })
    }

    /// Returns whether it is a call into a shared library.
    #[must_use]
    pub fn is_library(self) -> bool {
        matches!(self, Self::Library | Self::LibraryEntry)
    }

    /// Returns whether its exit is not recorded.
    #[must_use]
    pub fn is_entry_only(self) -> bool {
        matches!(self, Self::Entry | Self::LibraryEntry | Self::Probe)
    }
}

/// A function of a module.
#[derive(Debug, Clone)]
pub struct Function {
    /// Link-time address.
    pub addr: u64,
    /// Bytes; 0 where unknown.
    pub size: u64,
    /// What is recorded of it.
    pub kind: FunctionKind,
    /// Raw symbol name.
    pub name: String,
    /// Index in [`Trace::modules`](crate::Trace::modules).
    pub module: usize,
}

/// A file whose functions were traced.
#[derive(Debug, Clone)]
pub struct Module {
    /// Its path.
    pub path: String,
    /// Its build id in hex.
    pub build_id: Option<String>,
    /// The separate file from which its symbol table was read, if it had none itself.
    pub symbols: Option<String>,
}

impl Module {
    /// Returns the file's name without its directories.
    #[must_use]
    pub fn name(&self) -> &str {
        self.path.rsplit('/').next().unwrap_or(&self.path)
    }
}

/// A chunk of records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Chunk {
    /// The number of its 64 KiB in the file.
    pub index: u64,
    /// Where it begins in them: the rest of what an ended task has left may be another's.
    pub at: u32,
    /// Its number within the task.
    pub seq: u32,
    /// Upper half of the counter at its start.
    pub epoch: u32,
    /// Records that the task had lost before it.
    pub lost: u64,
    /// The earliest possible time of its records, in units of the counter.
    pub begins: u64,
}

impl Chunk {
    /// Where it begins in a file with a control area of this size.
    pub(crate) fn start(&self, control_size: u64) -> u64 {
        control_size + self.index * CHUNK_SIZE + u64::from(self.at)
    }

    /// Where in its 64 KiB the next chunk begins; 0: it has all of them. If records are read before this is asked, they
    /// may be the next one's.
    pub(crate) fn rest(&self, events: &File, control_size: u64) -> u32 {
        let mut word = [0; 4];
        let place = self.start(control_size) + chunk_header::REST;
        let read = events.read_exact_at(&mut word, place);
        let rest = u32::from_le_bytes(word);
        let is_place = u64::from(self.at) + CHUNK_HEADER_SIZE <= u64::from(rest)
            && u64::from(rest) + CHUNK_HEADER_SIZE < CHUNK_SIZE;
        if read.is_ok() && is_place { rest } else { 0 }
    }

    /// How many bytes of records it has room for, if the next one begins at `rest`.
    pub(crate) fn room(&self, rest: u32) -> usize {
        let end = if rest == 0 {
            CHUNK_SIZE
        } else {
            u64::from(rest)
        };
        (end - u64::from(self.at) - CHUNK_HEADER_SIZE) as usize
    }
}

/// A thread. When it executes a new program, it becomes a new task.
#[derive(Debug, Clone)]
pub struct Task {
    /// Its number, from 1.
    pub id: u32,
    /// Thread id.
    pub tid: i32,
    /// Process id.
    pub pid: i32,
    /// Process id of the parent.
    pub ppid: Option<i32>,
    /// Its name.
    pub comm: String,
    /// `start`, `thread`, `fork` or `exec`.
    pub kind: String,
    /// The task that created it; 0: none.
    pub parent: u32,
    /// When it began, in units of the counter.
    pub began: u64,
    /// When it ended, in units of the counter.
    pub ended: Option<u64>,
    /// How it ended.
    pub exit: Option<Exit>,
    /// Its records, in order.
    pub chunks: Vec<Chunk>,
}
