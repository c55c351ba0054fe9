//! How threads and processes are made.

use anyhow::Result;
use hodo_ptrace::{Stopped, TargetAddr, is_gone, process_of};

/// How a thread or process was made.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Made {
    flags: u64,
}

impl Made {
    /// Those of vfork.
    const VFORK: u64 = (libc::CLONE_VM | libc::CLONE_VFORK) as u64;
    /// `CLONE_CLEAR_SIGHAND`, which is above the flags of `clone`.
    const CLEAR_SIGHAND: u64 = 1 << 32;
    /// Those of a thread, as far as they matter.
    const THREAD: u64 = (libc::CLONE_VM | libc::CLONE_SIGHAND | libc::CLONE_THREAD) as u64;

    /// How `child` was made, according to the registers of its maker, which has stopped for this event.
    ///
    /// # Errors
    /// If the maker is gone.
    pub fn of(maker: Stopped, child: i32, event: i32) -> Result<Self> {
        let regs = maker.regs()?;
        let argument = || regs.first_argument(maker);
        let flags = match regs.system_call() {
            // This user may not see it (`PR_SET_DUMPABLE`, or a program that may be executed but not read).
            Some(libc::SYS_clone) => match argument() {
                Err(error) if is_gone(&error) => return Err(error),
                flags => flags.unwrap_or_else(|_| Self::seen(child, event)),
            },
            Some(libc::SYS_clone3) => argument()
                .and_then(|at| maker.memory()?.read_u64(TargetAddr(at)))
                .unwrap_or_else(|_| Self::seen(child, event)),
            _ if event == libc::PTRACE_EVENT_VFORK => Self::VFORK,
            _ => 0,
        };
        Ok(Self { flags })
    }

    /// What can be seen of the flags from outside.
    fn seen(child: i32, event: i32) -> u64 {
        match process_of(child) {
            Some(process) if process != child => Self::THREAD,
            _ if event == libc::PTRACE_EVENT_VFORK => Self::VFORK,
            _ => 0,
        }
    }

    /// Whether it has the memory of its maker, not a copy.
    #[must_use]
    pub fn shares_memory(self) -> bool {
        self.has(libc::CLONE_VM)
    }

    /// Whether it is a thread of its maker's process.
    #[must_use]
    pub fn is_thread(self) -> bool {
        self.has(libc::CLONE_THREAD)
    }

    /// Whether the two have the same handlers of signals.
    #[must_use]
    pub fn shares_handlers(self) -> bool {
        self.has(libc::CLONE_SIGHAND)
    }

    /// Whether it has none of its maker's handlers.
    #[must_use]
    pub fn clears_handlers(self) -> bool {
        self.flags & Self::CLEAR_SIGHAND != 0
    }

    /// Whether its maker waits until it executes a program or ends.
    #[must_use]
    pub fn is_awaited(self) -> bool {
        self.has(libc::CLONE_VFORK)
    }

    fn has(self, flag: i32) -> bool {
        self.flags & flag as u64 != 0
    }
}
