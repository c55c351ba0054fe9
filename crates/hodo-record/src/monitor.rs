//! hodo as two processes: the front, which the user has started and may kill in any way, and the monitor, which does
//! all the work and cleans up when the front is gone.

use std::io;

use anyhow::{Context, Result};

use hodo_follow::Exit;
use hodo_ptrace::signals;

/// Which of the two this is.
#[derive(Debug)]
pub enum Front {
    /// The monitor; the front is the process with this id.
    Monitor(i32),
    /// The front, when the monitor has ended in this way.
    Ended(Exit),
}

/// The signals that ask the monitor to end.
const FORWARDED: [i32; 4] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT];
/// The signals that visibly stop and continue the front. The monitor runs on in any case.
const STOPPING: [i32; 4] = [libc::SIGTSTP, libc::SIGTTIN, libc::SIGTTOU, libc::SIGCONT];

/// Splits this process, which must have one thread. The front passes on the signals that ask it to end, and waits; if
/// it is killed, the monitor gets a SIGTERM. The monitor blocks all signals, and fetches those that concern it. If
/// several come close together, for example because the whole process group gets them, only the first counts.
///
/// # Errors
/// If there can be no more processes.
pub fn front() -> Result<Front> {
    // SAFETY: all-zero is a valid sigset_t for sigfillset to fill; the other calls remove signals from it.
    let set = unsafe {
        let mut set = std::mem::zeroed();
        libc::sigfillset(&raw mut set);
        for signal in STOPPING {
            libc::sigdelset(&raw mut set, signal);
        }
        set
    };
    // SAFETY: the set is initialized; getpid and fork take nothing, and this process has
    // one thread.
    unsafe {
        let front = libc::getpid();
        libc::signal(libc::SIGCHLD, libc::SIG_DFL);
        libc::sigprocmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut());
        let monitor = libc::fork();
        if monitor == -1 {
            return Err(io::Error::last_os_error()).context("forking");
        }
        if monitor == 0 {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGTERM);
            if libc::getppid() != front {
                // The front was killed earlier.
                libc::raise(libc::SIGTERM);
            }
            // ^Z stops the process that the user sees; if the monitor stopped, so would the target.
            libc::signal(libc::SIGTSTP, libc::SIG_IGN);
            signals::block_all();
            return Ok(Front::Monitor(front));
        }
        loop {
            let mut info: libc::siginfo_t = std::mem::zeroed();
            let signal = libc::sigwaitinfo(&raw const set, &raw mut info);
            // Signals from the terminal reach both. No other signals end either of the two, since the front must report
            // how the monitor ends.
            if FORWARDED.contains(&signal) && info.si_code <= 0 {
                libc::kill(monitor, signal);
            }
            let mut status = 0;
            if libc::waitpid(monitor, &raw mut status, libc::WNOHANG) == monitor {
                // Signals stay blocked: those that come late concern a recording that is over, and must not change how
                // this process ends.
                let exit = match libc::WIFSIGNALED(status) {
                    true => Exit::by_signal(status),
                    false => Exit::Code(libc::WEXITSTATUS(status)),
                };
                return Ok(Front::Ended(exit));
            }
        }
    }
}
