//! The part of an address space that the process's ledger contains.

use hodo_abi::Span;
use hodo_patch::{Raise, TrapHandler};

use super::Space;
use crate::ledger::{Region, State};
use hodo_module::image::Seen;

fn written(spans: &[Span]) -> Vec<Region> {
    spans.iter().copied().map(Region::from).collect()
}

fn read(regions: &[Region]) -> Vec<Span> {
    regions.iter().copied().map(Span::from).collect()
}

impl Space {
    /// The state in the form of the ledger.
    pub fn state(&self) -> State {
        let Raise {
            space: room,
            data,
            hard,
        } = self.extra;
        let seen = |seen: &Seen| (seen.start, seen.end, seen.inode);
        State {
            events: self.events.into(),
            counters: written(&self.counters),
            islands: self.islands.map(Region::from),
            shadows: self.shadows.map(Region::from),
            scratch_page: self.scratch_page,
            syscall: self.syscall,
            ret: self.ret,
            trap_handler: self.trap_handler.map_or(0, |handler| handler.at),
            trampolines: self.trampolines.clone(),
            private: written(&self.private),
            r_brk: self.r_brk,
            unwinders: written(&self.unwinders),
            unwinding: self.unwinding.clone(),
            keys: self.keys.all().collect(),
            extra: [room, data, hard],
            debugger: self.debugger,
            seen: self.seen.iter().map(seen).collect(),
        }
    }

    /// Sets the state from the ledger.
    pub fn put_state(&mut self, state: &State) {
        self.events = state.events.into();
        self.counters = read(&state.counters);
        self.islands = state.islands.map(Span::from);
        self.shadows = state.shadows.map(Span::from);
        self.scratch_page = state.scratch_page;
        self.syscall = state.syscall;
        self.ret = state.ret;
        self.trap_handler = (state.trap_handler != 0).then(|| TrapHandler::at(state.trap_handler));
        self.trampolines.clone_from(&state.trampolines);
        self.private = read(&state.private);
        self.r_brk = state.r_brk;
        self.unwinders = read(&state.unwinders);
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
