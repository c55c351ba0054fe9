//! Single steps, which the processor cannot make: breakpoints at all places that may come next.

use anyhow::{Result, bail};
use hodo_isa::riscv64::simulate::{Simulation, State};

use crate::arch::linked::{BREAKPOINT, Regs, SLOT, SLOTS, WORDS, insn};
use crate::request::request;
use crate::stopped::Stopped;
use crate::target::TargetAddr;

/// A single step, which the processor does not know: a copy of the instruction and a breakpoint after it, in a page of
/// hodo's. What uses its own address is done on the registers.
#[derive(Debug, Clone, Copy)]
pub struct Step {
    /// Where the copy is, and where its breakpoint.
    copy: u64,
    after: u64,
    /// Where the instruction is.
    from: u64,
    /// Where the thread goes on.
    next: u64,
}

impl Step {
    /// The thread has stopped: brings it to where it would be if it had executed the instruction in its place. Returns
    /// whether it has come to the end of the step.
    ///
    /// # Errors
    /// If the thread is gone.
    pub fn end(self, thread: Stopped) -> Result<bool> {
        let mut regs = thread.regs()?;
        let done = regs.pc() == self.after;
        if done {
            regs.set_pc(self.next);
        } else if regs.pc() == self.copy {
            regs.set_pc(self.from);
        } else {
            return Ok(false);
        }
        thread.set_regs(&regs)?;
        Ok(done)
    }
}

impl Stopped {
    /// Has it execute one instruction; it stops by a breakpoint. `scratch_page`: hodo's page in its process; `slot`:
    /// which of its places nobody else uses.
    ///
    /// # Errors
    /// If the thread is gone.
    pub fn step(self, scratch_page: u64, slot: u64) -> Result<Step> {
        let memory = self.memory()?;
        let mut regs = self.regs()?;
        let from = regs.pc();
        let insn = insn(&memory, from)?;
        let mut code = Vec::new();
        let mut word = [0; 4];
        memory.read(TargetAddr(from), &mut word[..usize::from(insn.len).min(4)])?;
        let mut next = insn.end();
        if let Some(simulation) = Simulation::new(&word, from) {
            let mut state = State {
                x: regs.0,
                pc: from,
            };
            state.x[0] = 0;
            simulation.run(&mut state);
            next = state.pc;
            regs.0 = state.x;
        } else {
            code.extend(&word[..usize::from(insn.len).min(4)]);
        }
        let copy = scratch_page + WORDS + slot % SLOTS * SLOT;
        let after = copy + code.len() as u64;
        code.extend(BREAKPOINT);
        memory.write(TargetAddr(copy), &code)?;
        regs.set_pc(copy);
        self.set_regs(&regs)?;
        request(libc::PTRACE_CONT, self.tid(), 0, 0)?;
        // What is done already is not done again.
        let from = if after == copy { next } else { from };
        Ok(Step {
            copy,
            after,
            from,
            next,
        })
    }
}

/// Would have a stopped thread execute one instruction while its signals wait: there is no page of hodo's for the step.
///
/// # Errors
/// Always, here.
pub fn step_alone(thread: Stopped) -> Result<()> {
    bail!("thread {thread} cannot make single steps")
}

/// Would have it execute some, until `is_done` says so of its registers.
///
/// # Errors
/// Always, here.
pub fn steps_alone(thread: Stopped, _is_done: impl FnMut(&Regs) -> bool) -> Result<Option<i32>> {
    bail!("thread {thread} cannot make single steps")
}
