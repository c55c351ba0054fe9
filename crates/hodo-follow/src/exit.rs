//! How programs end.

use hodo_ptrace::Report;

/// How a program ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// Exit status.
    Code(i32),
    /// Terminating signal.
    Signal(i32),
    /// Terminating signal; the kernel has also written a core file.
    Core(i32),
}

impl Exit {
    /// How a thread has ended, if the report says that it has.
    #[must_use]
    pub fn of(report: Report) -> Option<Self> {
        match report.exit_code() {
            Some(code) => Some(Self::Code(code)),
            None => (report.is_killed()).then(|| Self::by_signal(report.status())),
        }
    }

    /// How a process ended that, according to its wait status, was killed by a signal.
    #[must_use]
    pub fn by_signal(status: i32) -> Self {
        let signal = libc::WTERMSIG(status);
        match libc::WCOREDUMP(status) {
            true => Self::Core(signal),
            false => Self::Signal(signal),
        }
    }
}
