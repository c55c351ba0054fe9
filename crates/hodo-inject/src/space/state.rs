//! The part of an address space that the process's ledger contains.

use hodo_patch::{Raise, TrapHandler};

use super::{Instructions, Space};
use crate::ledger::State;
use hodo_module::image::Seen;

impl Space {
    /// The state in the form of the ledger.
    pub fn state(&self) -> State {
        let Raise { space, data, hard } = self.raised;
        let seen = |seen: &Seen| (seen.start, seen.end, seen.inode);
        let unwinders = self.written.unwinders().iter();
        let mut state = State {
            syscall: self.instructions.syscall,
            ret: self.instructions.ret,
            trap_handler: self.trap_handler.map_or(0, |handler| handler.at),
            r_brk: self.linker_stop,
            unwinders: unwinders.map(|&function| function.into()).collect(),
            unwinding: self.written.unwinding().to_vec(),
            keys: self.keys.all().collect(),
            extra: [space, data, hard],
            debugger: self.debugger,
            seen: self.seen.iter().map(seen).collect(),
            ..State::default()
        };
        self.layout.save(&mut state);
        state
    }

    /// Sets the state from the ledger.
    pub fn put_state(&mut self, state: &State) {
        self.layout.restore(state);
        self.instructions = Instructions {
            syscall: state.syscall,
            ret: state.ret,
        };
        self.trap_handler = (state.trap_handler != 0).then(|| TrapHandler::at(state.trap_handler));
        self.linker_stop = state.r_brk;
        let unwinders = state.unwinders.iter();
        let unwinders = unwinders.map(|&function| function.into()).collect();
        self.written
            .set_unwinders(unwinders, state.unwinding.clone());
        let [space, data, hard] = state.extra;
        self.raised = Raise { space, data, hard };
        self.debugger = state.debugger;
        self.seen = state.files().collect();
    }
}
