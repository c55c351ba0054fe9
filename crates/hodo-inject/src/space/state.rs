//! What the process's ledger says of its address space.

use hodo_patch::Raise;

use super::Space;
use crate::ledger::State;
use hodo_module::image::Seen;

impl Space {
    /// What the ledger has of it.
    pub fn state(&self) -> State {
        let Raise {
            space: room,
            data,
            hard,
        } = self.extra;
        let seen = |seen: &Seen| (seen.start, seen.end, seen.inode);
        State {
            events: self.events,
            counters: self.counters.clone(),
            islands: self.islands,
            shadows: self.shadows,
            scratch_page: self.scratch_page,
            syscall: self.syscall,
            ret: self.ret,
            trampolines: self.trampolines.clone(),
            private: self.private.clone(),
            r_brk: self.r_brk,
            unwinders: self.unwinders.clone(),
            unwinding: self.unwinding.clone(),
            keys: self.keys.all().collect(),
            extra: [room, data, hard],
            debugger: self.debugger,
            seen: self.seen.iter().map(seen).collect(),
        }
    }

    /// Makes it what the ledger has of it.
    pub fn put_state(&mut self, state: &State) {
        self.events = state.events;
        self.counters.clone_from(&state.counters);
        self.islands = state.islands;
        self.shadows = state.shadows;
        self.scratch_page = state.scratch_page;
        self.syscall = state.syscall;
        self.ret = state.ret;
        self.trampolines.clone_from(&state.trampolines);
        self.private.clone_from(&state.private);
        self.r_brk = state.r_brk;
        self.unwinders.clone_from(&state.unwinders);
        self.unwinding.clone_from(&state.unwinding);
        let [room, data, hard] = state.extra;
        self.extra = Raise {
            space: room,
            data,
            hard,
        };
        self.debugger = state.debugger;
        self.seen = state.files().collect();
    }
}
