//! hodo as two processes: the front, which the user has started and may kill in any way, and the monitor, which does
//! all the work and ends in order when the front is gone.

use std::io;

use anyhow::{Context, Result};

use crate::options::Exit;
use hodo_ptrace::signals;

/// Which of the two this is.
#[derive(Debug)]
pub enum Front {
    /// The monitor; the front is the process with this id.
    Monitor(i32),
    /// The front, when the monitor has ended in this way.
    Ended(Exit),
}

/// What asks the monitor to end.
const FORWARDED: [i32; 4] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT];
/// What stops the front and has it go on, as the user sees. The monitor goes on in any case.
const STOPPING: [i32; 4] = [libc::SIGTSTP, libc::SIGTTIN, libc::SIGTTOU, libc::SIGCONT];

/// Divides this process, which must have one thread. The front hands on the signals that ask it to end, and waits; if
/// it is killed, the monitor gets a SIGTERM. The monitor has all signals blocked, and asks for those that concern it:
/// of several that come close together, as when the whole process group gets them, only the first counts.
///
/// # Errors
/// If there can be no more processes.
pub fn front() -> Result<Front> {
    // SAFETY: all-zero is a valid sigset_t for sigfillset to fill, and the others take from it.
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
                // The front was killed before that.
                libc::raise(libc::SIGTERM);
            }
            // ^Z stops what the user sees; whoever stops a monitor stops what it is attached to.
            libc::signal(libc::SIGTSTP, libc::SIG_IGN);
            signals::block_all();
            return Ok(Front::Monitor(front));
        }
        loop {
            let mut info: libc::siginfo_t = std::mem::zeroed();
            let signal = libc::sigwaitinfo(&raw const set, &raw mut info);
            // What the terminal sends, it sends to both. Others than these end neither of the two: the front has to
            // tell how the monitor ends.
            if FORWARDED.contains(&signal) && info.si_code <= 0 {
                libc::kill(monitor, signal);
            }
            let mut status = 0;
            if libc::waitpid(monitor, &raw mut status, libc::WNOHANG) == monitor {
                // Signals stay blocked: those that came late are for a recording that is over, and must not change how
                // this ends.
                let exit = match libc::WIFSIGNALED(status) {
                    true => Exit::by_signal(status),
                    false => Exit::Code(libc::WEXITSTATUS(status)),
                };
                return Ok(Front::Ended(exit));
            }
        }
    }
}
