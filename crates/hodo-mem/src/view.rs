//! All accesses, one a line.

use std::io::Write;
use std::sync::Arc;

use anyhow::Result;
use hodo_dbi::{Access, Block, Client, Kind};

/// Which accesses are written.
#[derive(Debug, Clone, Copy, Default)]
pub struct Wanted {
    /// Only those of this thread.
    pub thread: Option<u32>,
    /// At most this number.
    pub limit: Option<u64>,
}

/// Writes accesses: the thread, the number of the instruction in that thread (the first is 1), its address, whether the
/// access is a load or a store, the lowest address, and bytes.
#[derive(Debug)]
pub struct View<W> {
    out: W,
    wanted: Wanted,
    /// With commas, and a line of names at the start.
    csv: bool,
    begun: bool,
    /// Instructions of each thread.
    executed: Vec<u64>,
    written: u64,
    failed: Option<std::io::Error>,
}

impl<W: Write + Send> View<W> {
    /// Writes to `out`.
    pub fn new(out: W, csv: bool, wanted: Wanted) -> Self {
        Self {
            out,
            wanted,
            csv,
            begun: false,
            executed: Vec::new(),
            written: 0,
            failed: None,
        }
    }

    /// Writes the names of the columns, before anything else.
    fn head(&mut self) {
        if std::mem::replace(&mut self.begun, true) {
            return;
        }
        let result = match self.csv {
            true => writeln!(self.out, "thread,instruction,pc,kind,address,size"),
            false => writeln!(
                self.out,
                "thread  instruction                  pc  kind              address  size"
            ),
        };
        self.failed = result.err();
    }

    fn is_wanted(&self, thread: u32) -> bool {
        self.failed.is_none()
            && self.wanted.thread.is_none_or(|wanted| wanted == thread)
            && self.wanted.limit.is_none_or(|limit| self.written < limit)
    }

    fn access(&mut self, thread: u32, number: u64, pc: u64, access: &Access) {
        self.head();
        let kind = match access.kind {
            Kind::Load => "load",
            Kind::Store => "store",
        };
        let (address, size) = (access.address, access.size);
        let result = match self.csv {
            true => writeln!(
                self.out,
                "{thread},{number},{pc:#x},{kind},{address:#x},{size}"
            ),
            false => writeln!(
                self.out,
                "{thread:>6} {number:>12} {pc:>#19x}  {kind:<5} {address:>#19x} {size:>5}"
            ),
        };
        self.failed = result.err();
        self.written += 1;
    }
}

impl<W: Write + Send> Client for View<W> {
    fn executed(&mut self, thread: u32, block: &Arc<Block>, upto: usize, accesses: &[Access]) {
        let index = thread as usize;
        if self.executed.len() <= index {
            self.executed.resize(index + 1, 0);
        }
        let before = self.executed[index];
        self.executed[index] += upto as u64;
        for access in accesses {
            if !self.is_wanted(thread) {
                break;
            }
            let number = usize::from(access.insn);
            let pc = block.insns.get(number).map_or(0, |insn| insn.pc);
            self.access(thread, before + 1 + number as u64, pc, access);
        }
    }

    fn end(&mut self) -> Result<()> {
        self.head();
        if let Some(error) = self.failed.take() {
            return Err(error.into());
        }
        Ok(self.out.flush()?)
    }
}
