//! Processes in which a killed hodo has left its code: all of it is removed, as if that hodo were detaching now.

use hodo_ptrace::Stopped;
use std::cell::RefCell;
use std::rc::Rc;

use anyhow::{Result, bail};

use super::shared::{Maker, set_block};
use super::{SharedSpace, Thread, Tracer, guarded};
use hodo_inject::adopt;
use hodo_inject::ledger::Found;
use hodo_ptrace::processes::named;
use hodo_ptrace::stops::Stops;

impl Tracer<'_> {
    /// Undoes the changes in the process, and releases it.
    ///
    /// # Errors
    /// If the ledger there cannot be used; the process stays as it is then. Or if something could not be undone, which
    /// was reported.
    pub fn clear(&mut self, found: &Found) -> Result<()> {
        let pid = self.program.first;
        let mut stops = Stops::new(pid, self.session.ptrace_options());
        let stopped = stops.stop_all();
        let space = match stopped.and_then(|()| guarded(|| adopt::space(pid, found))) {
            Ok(space) => Rc::new(RefCell::new(space)),
            Err(error) => {
                stops.detach();
                return Err(error);
            }
        };
        for stopped in stops.threads() {
            let thread = Thread {
                space: Some(Rc::clone(&space)),
                ..Thread::untraced(pid)
            };
            self.threads.insert(stopped.tid(), thread);
        }
        stops.resume();
        self.clearing = true;
        self.unfinished = false;
        self.detach();
        self.clearing = false;
        if std::mem::take(&mut self.unfinished) {
            bail!(
                "not all that hodo had left in process {} could be restored",
                named(pid)
            );
        }
        Ok(())
    }

    /// Handles a new thread or process of one in which code was left: it finds the control block of its maker, through
    /// which nothing is recorded any more.
    pub(super) fn join_left(
        &mut self,
        stopped: Stopped,
        pid: i32,
        space: &SharedSpace,
        maker: Option<Maker>,
    ) -> Result<()> {
        let block = maker.and_then(|maker| maker.thread.block().ok());
        if let Some(block) = block.filter(|&block| block != 0) {
            set_block(stopped, block, space, 0)?;
        }
        let thread = Thread {
            space: Some(Rc::clone(space)),
            ..Thread::untraced(pid)
        };
        self.threads.insert(stopped.tid(), thread);
        Ok(())
    }
}
