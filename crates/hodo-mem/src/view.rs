//! All accesses, one a line; and what threads do between them.

use std::io::Write;
use std::sync::Arc;

use anyhow::Result;
use hodo_dbi::{Access, Block, Client, Event, Events, Kind};

use crate::heap::{self, Change, Heap};

/// Which accesses are written.
#[derive(Debug, Clone, Copy, Default)]
pub struct Wanted {
    /// Only those of this thread.
    pub thread: Option<u32>,
    /// At most this number.
    pub limit: Option<u64>,
}

/// How events are written.
#[derive(Debug, Clone, Copy)]
pub struct Names {
    /// A system call, by its number and its arguments.
    pub call: fn(u64, &[u64]) -> String,
    /// What one returns.
    pub result: fn(u64) -> String,
    /// A signal, by its number.
    pub signal: fn(u32) -> String,
}

/// Writes accesses: the thread, the number of the instruction in that thread (the first is 1), its address, whether the
/// access is a load or a store, the lowest address, and bytes.
#[derive(Debug)]
pub struct View<W> {
    out: W,
    wanted: Wanted,
    /// Without: with commas, and a line of names at the start, and without events.
    names: Option<Names>,
    heap: Heap,
    begun: bool,
    /// Instructions of each thread.
    executed: Vec<u64>,
    written: u64,
    failed: Option<std::io::Error>,
}

impl<W: Write + Send> View<W> {
    /// Writes to `out`: with commas, or with events, which have these names.
    pub fn new(out: W, names: Option<Names>, wanted: Wanted) -> Self {
        Self {
            out,
            wanted,
            names,
            heap: Heap::default(),
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
        let result = match self.names {
            None => writeln!(self.out, "thread,instruction,pc,kind,address,size"),
            Some(_) => writeln!(
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
        let result = match self.names {
            None => writeln!(
                self.out,
                "{thread},{number},{pc:#x},{kind},{address:#x},{size}"
            ),
            Some(_) => writeln!(
                self.out,
                "{thread:>6} {number:>12} {pc:>#19x}  {kind:<5} {address:>#19x} {size:>5}"
            ),
        };
        self.failed = result.err();
        self.written += 1;
    }
}

impl<W: Write + Send> View<W> {
    /// Something between two instructions.
    fn note(&mut self, thread: u32, what: &str) {
        if self.is_wanted(thread) {
            self.head();
            let number = self.executed.get(thread as usize).copied().unwrap_or(0);
            let result = writeln!(self.out, "{thread:>6} {number:>12}  {what}");
            self.failed = result.err();
        }
    }
}

impl<W: Write + Send> Client for View<W> {
    fn thread(&mut self, thread: u32, process: i32, tid: i32) {
        if self.names.is_some() {
            self.note(thread, &format!("thread {tid} of process {process} begins"));
        }
    }

    fn events(&self) -> Events {
        match self.names {
            Some(_) => heap::events().system_calls(),
            None => Events::default(),
        }
    }

    fn has_enough(&self) -> bool {
        self.wanted.limit.is_some_and(|limit| self.written >= limit)
    }

    fn event(&mut self, thread: u32, event: &Event<'_>) {
        let Some(names) = self.names else {
            return;
        };
        let text = match (*event, self.heap.event(thread, event, |_| 0)) {
            (_, Some(Change::Allocated { address, size, .. })) => {
                format!("allocated {size} bytes at {address:#x}")
            }
            (_, Some(Change::Moved { from, to, size, .. })) => {
                format!("moved {from:#x} to {size} bytes at {to:#x}")
            }
            (_, Some(Change::Freed { address })) => format!("freeing {address:#x}"),
            (Event::SystemCall { number, arguments }, _) => (names.call)(number, &arguments),
            (Event::SystemCallEnded { result }, _) => format!("= {}", (names.result)(result)),
            (Event::Forked { maker }, _) => format!("thread {maker} has made this process"),
            (Event::Mapped { file, address, .. }, _) => {
                format!("code of {} at {address:#x}", file.display())
            }
            (Event::Lost { instructions }, _) => format!("{instructions} instructions are lost"),
            (Event::Executed, _) => "another program begins".to_owned(),
            (Event::Signal { signal }, _) => format!("signal {}", (names.signal)(signal)),
            _ => return,
        };
        self.note(thread, &text);
    }

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
