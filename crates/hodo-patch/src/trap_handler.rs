//! The handler that leads threads past breakpoints if hodo was killed, and its data.

use hodo_codegen::native::masm::fill;

use crate::{Island, Lead};

/// Where the handler of SIGTRAP is in a process, and what belongs to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TrapHandler {
    /// The handler.
    pub at: u64,
    /// The address to which it returns; 0 if that is code of the kernel.
    pub restorer: u64,
    /// The kernel's `struct sigaction` that sets it,
    pub action: u64,
    /// and the one that sets the default action.
    pub default: u64,
    /// A word that must hold the address of the newest block that [`Island::add_traps`] has made.
    pub head: u64,
}

impl TrapHandler {
    /// The handler that begins at an address.
    #[must_use]
    pub fn at(at: u64) -> Self {
        let agent = hodo_agent::trap_handler();
        Self {
            at,
            restorer: agent.restorer.map_or(0, |restorer| at + restorer as u64),
            action: at + agent.action as u64,
            default: at + agent.default as u64,
            head: at + agent.head as u64,
        }
    }
}

impl Island {
    /// Adds the handler. `None`: the island is full.
    pub fn add_trap_handler(&mut self) -> Option<TrapHandler> {
        let agent = hodo_agent::trap_handler();
        self.check_room(agent.code.len() + 64).ok()?;
        let at = self.aligned_end();
        let start = self.code.len();
        self.code.extend(agent.code);
        let mut put = |word: usize, address: u64| {
            let place = start + agent.action + 8 * word;
            self.code[place..place + 8].copy_from_slice(&address.to_le_bytes());
        };
        put(0, at);
        if let Some(restorer) = agent.restorer {
            put(2, at + restorer as u64);
        }
        Some(TrapHandler::at(at))
    }

    /// Adds a block through which the handler finds the targets of breakpoints; `next`: the block before it, or 0.
    /// Returns its address. `None`: the island is full.
    pub fn add_traps(&mut self, traps: &[Lead], next: u64) -> Option<u64> {
        self.check_room(64 + 16 * traps.len()).ok()?;
        let at = self.aligned_end();
        let words = [next, traps.len() as u64].into_iter();
        for word in words.chain(traps.iter().flat_map(|trap| [trap.at, trap.to])) {
            self.code.extend(word.to_le_bytes());
        }
        Some(at)
    }

    /// The address of the next byte, after aligning it to 16.
    fn aligned_end(&mut self) -> u64 {
        let at = self.end().next_multiple_of(16);
        let len = (at - self.start()) as usize;
        fill(&mut self.code, len);
        at
    }
}
