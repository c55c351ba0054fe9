//! A file for each thread.

use std::collections::{HashMap, HashSet};
use std::fs::{File, OpenOptions};
use std::io::LineWriter;
use std::path::PathBuf;

use anyhow::{Context, Result};
use hodo_abi::Isa;

use super::read::Event;
use super::{Form, SyscallsOptions};
use crate::source::Source;

/// The files of all threads. A file is open while its thread runs.
pub(super) struct Apart {
    path: PathBuf,
    machine: Isa,
    options: SyscallsOptions,
    /// By thread.
    open: HashMap<i32, (Form, LineWriter<File>)>,
    /// The threads whose files were made.
    made: HashSet<i32>,
}

impl Apart {
    pub fn new(path: PathBuf, machine: Isa, options: &SyscallsOptions) -> Self {
        Self {
            path,
            machine,
            options: options.clone(),
            open: HashMap::new(),
            made: HashSet::new(),
        }
    }

    /// Writes what an event makes known.
    pub fn event(&mut self, source: &Source, event: Event) -> Result<()> {
        let (task, is_end) = match &event {
            Event::Begin(task) | Event::Signal(task, _) => (*task, false),
            Event::End(task) => (*task, true),
            Event::Enter(enter) => (enter.task, false),
            Event::Exit(exit) => (exit.task, false),
        };
        let tid = source.task(task).tid;
        if !self.open.contains_key(&tid) {
            let form = Form::new(self.machine, &self.options);
            let file = self.file(tid)?;
            self.open.insert(tid, (form, LineWriter::new(file)));
        }
        let Some((form, file)) = self.open.get_mut(&tid) else {
            return Ok(());
        };
        form.event(source, event, file)?;
        // A thread that executes a program goes on as another task.
        if is_end && !super::lines::is_replaced(source, task) {
            form.finish(source, file)?;
            self.open.remove(&tid);
        }
        Ok(())
    }

    /// Writes what is left, when nothing more will come.
    pub fn finish(&mut self, source: &Source) -> Result<()> {
        for (form, file) in self.open.values_mut() {
            form.finish(source, file)?;
        }
        Ok(())
    }

    /// The file of a thread. Another thread may have had its number before.
    fn file(&mut self, tid: i32) -> Result<File> {
        let mut path = self.path.clone().into_os_string();
        path.push(format!(".{tid}"));
        let mut options = OpenOptions::new();
        match self.made.insert(tid) {
            true => options.write(true).create(true).truncate(true),
            false => options.append(true).create(true),
        };
        let opened = options.open(&path);
        opened.with_context(|| format!("writing {}", path.display()))
    }
}
