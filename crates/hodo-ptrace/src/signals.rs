//! Signals that are sent to the recorder but meant for the program.

use std::marker::PhantomData;
use std::os::unix::thread::JoinHandleExt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use crate::threads::start;

/// Signals that are handed on to the program, which then ends or not as it would have.
const FORWARDED: [i32; 4] = [libc::SIGTERM, libc::SIGHUP, libc::SIGUSR1, libc::SIGUSR2];
/// Those, and others that a program may send to its parent: that one gets them, not the recorder. (^C and the like come
/// to the whole group.)
const HEEDED: [i32; 7] = [
    libc::SIGTERM,
    libc::SIGHUP,
    libc::SIGUSR1,
    libc::SIGUSR2,
    libc::SIGINT,
    libc::SIGQUIT,
    libc::SIGALRM,
];
/// What is sent to a process group (by a shell's `kill %1`, by a terminal that hangs up) reaches the program without
/// help, and within this time.
const TOGETHER: Duration = Duration::from_millis(40);

/// What is known about the program while signals are handed on to it.
#[derive(Debug, Default)]
pub struct Seen {
    /// For each of the heeded signals, by whom it was last sent to the program itself, and how often it was.
    sent: [AtomicU64; HEEDED.len()],
    /// The program has ended: its number may be another's.
    ended: AtomicBool,
}

impl Seen {
    fn slot(&self, signal: i32) -> Option<&AtomicU64> {
        let index = HEEDED.iter().position(|&heeded| heeded == signal)?;
        Some(&self.sent[index])
    }

    /// Whether a signal is one of those that are heeded.
    pub fn counts(&self, signal: i32) -> bool {
        self.slot(signal).is_some()
    }

    /// The program gets this signal from that process.
    pub fn note(&self, signal: i32, sender: i32) {
        if let Some(slot) = self.slot(signal) {
            let count = (slot.load(Ordering::Acquire) >> 32) + 1;
            slot.store(
                count << 32 | u64::from(sender.cast_unsigned()),
                Ordering::Release,
            );
        }
    }

    /// The program has ended. What comes from here on is for the recorder.
    pub fn end(&self) {
        self.ended.store(true, Ordering::Release);
    }

    fn get(&self, signal: i32) -> u64 {
        self.slot(signal)
            .map_or(0, |slot| slot.load(Ordering::Acquire))
    }
}

/// All signals that may have to be handed on.
fn handed_on() -> Vec<i32> {
    let real_time = libc::SIGRTMIN()..=libc::SIGRTMAX();
    HEEDED.into_iter().chain(real_time).collect()
}

/// The set of these.
fn set() -> libc::sigset_t {
    // SAFETY: all-zero is a valid sigset_t for sigemptyset to fill, and the others add to it.
    unsafe {
        let mut set = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        for signal in handed_on() {
            libc::sigaddset(&raw mut set, signal);
        }
        set
    }
}

/// Whether a process descends from this one, as far as its parents live. One that has just ended counts.
fn is_descendant(mut pid: i32) -> bool {
    let own = std::process::id().cast_signed();
    // There are no circles, but processes end meanwhile.
    for _ in 0..64 {
        let parent = crate::status(pid, "PPid:").and_then(|parent| parent.parse().ok());
        match parent {
            Some(parent) if parent == own => return true,
            Some(parent) if parent > 1 => pid = parent,
            _ => return false,
        }
    }
    false
}

/// Waits for one of the signals: which, and who sent it.
fn next(time: Duration) -> Option<(i32, i32)> {
    let set = set();
    let pause = libc::timespec {
        tv_sec: 0,
        tv_nsec: time.subsec_nanos().into(),
    };
    // SAFETY: all-zero is a valid siginfo_t.
    let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
    // SAFETY: the set and the time are initialized, and the call fills the information.
    let signal = unsafe { libc::sigtimedwait(&raw const set, &raw mut info, &raw const pause) };
    // SAFETY: signals that come from a process or the kernel carry the sender's id or zero.
    (signal > 0).then(|| (signal, unsafe { info.si_pid() }))
}

/// Hands signals on while it lives.
#[derive(Debug)]
pub struct Forward {
    done: Arc<AtomicBool>,
    seen: Arc<Seen>,
}

impl Forward {
    /// To be called in the thread that starts all others, after the program was forked: the signals are blocked here
    /// and waited for in a thread of their own, which hands them on to `pid`, if there is one.
    pub fn start(pid: Option<i32>) -> Self {
        block_all();
        heed_cpu_limit();
        let this = Self {
            done: Arc::default(),
            seen: Arc::default(),
        };
        let (done, seen) = (Arc::clone(&this.done), Arc::clone(&this.seen));
        // SAFETY: getppid touches no memory.
        let parent = unsafe { libc::getppid() };
        let hand_on = move || {
            let mut before = [0; HEEDED.len()];
            while !done.load(Ordering::Acquire) {
                let Some((signal, sender)) = next(Duration::from_millis(300)) else {
                    continue;
                };
                if seen.ended.load(Ordering::Acquire) {
                    // SAFETY: kill and getpid touch no memory.
                    unsafe { libc::kill(libc::getpid(), signal) };
                    break;
                }
                let Some(pid) = pid else {
                    continue;
                };
                // Now: the sender may be about to end.
                let is_for_parent = is_descendant(sender);
                std::thread::sleep(TOGETHER);
                if done.load(Ordering::Acquire) {
                    break;
                }
                if seen.ended.load(Ordering::Acquire) {
                    // SAFETY: kill and getpid touch no memory.
                    unsafe { libc::kill(libc::getpid(), signal) };
                    break;
                }
                // One that came to both is not handed on.
                let now = seen.get(signal);
                let index = HEEDED.iter().position(|&heeded| heeded == signal);
                let before = index.map(|index| std::mem::replace(&mut before[index], now));
                if before.is_some_and(|before| before != now)
                    && now as u32 == sender.cast_unsigned()
                {
                    continue;
                }
                let to = match is_for_parent {
                    true => parent,
                    false if FORWARDED.contains(&signal) => pid,
                    false => continue,
                };
                // SAFETY: kill and getppid touch no memory. The program is our child and is not reaped before `done` is
                // set; a parent that is still ours has not ended.
                unsafe {
                    if to == pid || to > 0 && libc::getppid() == parent {
                        libc::kill(to, signal);
                    }
                }
            }
        };
        // Where there can be no more threads (ulimit -u), nothing is handed on.
        let _ = start(hand_on);
        this
    }

    /// Where to tell of signals that the program gets itself.
    pub fn seen(&self) -> Arc<Seen> {
        Arc::clone(&self.seen)
    }
}

impl Drop for Forward {
    fn drop(&mut self) {
        self.done.store(true, Ordering::Release);
        // Those that came last were for the program, too.
        forget();
    }
}

/// What ends the recording of a process that goes on: a signal, or time.
#[derive(Debug, Clone)]
pub struct Interrupts {
    deadline: Option<Instant>,
    /// Signals are handed on to a program ([`Forward`]): only time ends the recording.
    forwarded: bool,
    /// Whether a signal has meant the end. It is reported once, and is gone from the process then.
    asked: Arc<AtomicBool>,
}

/// The signals that mean the end of a recording.
const ENDING: [i32; 4] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT];

/// Those that say that there is hardly any CPU time left for this process.
const SPENT: [i32; 2] = [libc::SIGXCPU, libc::SIGPROF];

/// All signals.
fn all() -> libc::sigset_t {
    // SAFETY: all-zero is a valid sigset_t, which the call fills.
    unsafe {
        let mut set = std::mem::zeroed();
        libc::sigfillset(&raw mut set);
        set
    }
}

/// A set without these signals.
fn difference(mut set: libc::sigset_t, signals: &[i32]) -> libc::sigset_t {
    for &signal in signals {
        // SAFETY: the set is initialized, and the numbers are signals'.
        unsafe { libc::sigdelset(&raw mut set, signal) };
    }
    set
}

/// Signals from the terminal are for a program that is about to be started, which gets its own actions for them: hodo
/// ends and stops when the program does. If hodo stopped first, the program could not restore the terminal before that.
pub fn leave_terminal_to_program() {
    // SAFETY: ignoring a signal runs no code.
    unsafe {
        for signal in [libc::SIGINT, libc::SIGQUIT, libc::SIGTSTP] {
            libc::signal(signal, libc::SIG_IGN);
        }
    }
}

/// From here on no signal but KILL ends or stops this process: it would leave others in pieces. All threads that are
/// started later inherit that, and nothing but [`Mask`] takes it back before the process ends or shows what it has
/// recorded. A file that may not grow is an error, not a signal.
pub fn block_all() {
    let set = all();
    let mut before = set;
    // SAFETY: both sets are initialized. Without its default action, SIGCHLD would tell of no stop; ignoring a signal
    // runs no code.
    unsafe {
        libc::signal(libc::SIGCHLD, libc::SIG_DFL);
        libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, &raw mut before);
    }
    let _ = BEFORE.set(before);
}

/// The signals that the calling thread blocks, which it blocks again when this is dropped.
#[derive(Debug)]
pub struct Mask {
    before: libc::sigset_t,
    /// It is a thread's.
    _own: PhantomData<*const ()>,
}

impl Mask {
    /// What the thread blocks now.
    pub fn keep() -> Self {
        // SAFETY: all-zero is a valid sigset_t, which the call fills; no other set is given.
        let before = unsafe {
            let mut before = std::mem::zeroed();
            libc::pthread_sigmask(libc::SIG_BLOCK, std::ptr::null(), &raw mut before);
            before
        };
        Self {
            before,
            _own: PhantomData,
        }
    }
}

/// See [`stay_blocked`].
static STAYS: AtomicBool = AtomicBool::new(false);

/// From here on, no [`Mask`] brings signals back that [`block_all`] has blocked: after its work, this process only
/// shows what it has recorded.
pub fn stay_blocked() {
    STAYS.store(true, Ordering::Relaxed);
}

impl Drop for Mask {
    fn drop(&mut self) {
        if STAYS.load(Ordering::Relaxed) {
            return;
        }
        // SAFETY: the set is initialized; the old one is not asked for.
        unsafe {
            libc::pthread_sigmask(
                libc::SIG_SETMASK,
                &raw const self.before,
                std::ptr::null_mut(),
            )
        };
    }
}

/// What was blocked before all signals were.
static BEFORE: OnceLock<libc::sigset_t> = OnceLock::new();

/// For a program that is started later: it blocks what it would have without [`block_all`]. A fault whose signal is
/// blocked would end it.
pub(crate) fn restore_mask() {
    if let Some(before) = BEFORE.get() {
        // SAFETY: the set is initialized; the old one is not asked for.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before, std::ptr::null_mut()) };
    }
}

/// A limit on CPU time ends a process by KILL. It is lifted, or a signal comes in time before that.
fn heed_cpu_limit() {
    const MARGIN: u64 = 2;
    let unlimited = libc::rlimit {
        rlim_cur: libc::RLIM_INFINITY,
        rlim_max: libc::RLIM_INFINITY,
    };
    // SAFETY: all-zero is a valid rlimit and itimerval; the calls fill the one, and only read the others.
    unsafe {
        let mut limit: libc::rlimit = std::mem::zeroed();
        if libc::getrlimit(libc::RLIMIT_CPU, &raw mut limit) != 0
            || limit.rlim_cur == libc::RLIM_INFINITY
            || libc::setrlimit(libc::RLIMIT_CPU, &raw const unlimited) == 0
        {
            return;
        }
        // The soft limit only says so. One that is as low as the hard one would say nothing.
        limit.rlim_cur = limit.rlim_max;
        libc::setrlimit(libc::RLIMIT_CPU, &raw const limit);
        if limit.rlim_max != libc::RLIM_INFINITY {
            let left = limit.rlim_max.saturating_mul(1_000_000);
            let left = left - (left / 2).min(MARGIN * 1_000_000);
            let mut timer: libc::itimerval = std::mem::zeroed();
            timer.it_value.tv_sec = (left / 1_000_000).cast_signed();
            timer.it_value.tv_usec = (left % 1_000_000).cast_signed();
            libc::setitimer(libc::ITIMER_PROF, &raw const timer, std::ptr::null_mut());
        }
    }
}

/// So often it is looked whether a thread has stopped, even if no signal says so.
const LONGEST: Duration = Duration::from_millis(100);

impl Interrupts {
    /// To be called before other threads are started: from here on all signals wait until they are asked for.
    pub fn new(time: Option<Duration>) -> Self {
        block_all();
        heed_cpu_limit();
        Self {
            deadline: time.and_then(|time| Instant::now().checked_add(time)),
            forwarded: false,
            asked: Arc::default(),
        }
    }

    /// Only time ends the recording of a program to which signals are handed on.
    pub fn beside(_: &Forward, time: Option<Duration>) -> Self {
        Self {
            deadline: time.and_then(|time| Instant::now().checked_add(time)),
            forwarded: true,
            asked: Arc::default(),
        }
    }

    /// The program has ended, and what it has left behind is still recorded: from here on signals end the recording.
    /// Those that came before were for the program.
    pub fn after_program() -> Self {
        block_all();
        // SAFETY: ignoring a signal throws those away that wait, and the default action runs no code: the signals are
        // blocked. Ignored ones might not come.
        unsafe {
            for signal in [libc::SIGINT, libc::SIGQUIT] {
                libc::signal(signal, libc::SIG_IGN);
                libc::signal(signal, libc::SIG_DFL);
            }
        }
        Self {
            deadline: None,
            forwarded: false,
            asked: Arc::default(),
        }
    }

    /// The same when the program to which signals were handed on has ended: from here on they end the recording. For
    /// others, nothing changes.
    #[must_use]
    pub fn after_end(self) -> Self {
        match self.forwarded {
            true => Self {
                deadline: self.deadline,
                ..Self::after_program()
            },
            false => self,
        }
    }

    /// The time begins now.
    pub fn begin(&mut self, time: Option<Duration>) {
        self.deadline = time.and_then(|time| Instant::now().checked_add(time));
    }

    /// Whether a signal has meant the end of what these, or copies of them, end: not only time.
    #[must_use]
    pub fn asked(&self) -> bool {
        self.asked.load(Ordering::Acquire)
    }

    /// Waits until a thread may have stopped. Returns whether the recording is to end.
    pub fn wait(&self) -> bool {
        self.wait_for(LONGEST)
    }

    /// Waits likewise, but not longer than until then.
    pub fn wait_until(&self, at: Instant) -> bool {
        self.wait_for(LONGEST.min(at.saturating_duration_since(Instant::now())))
    }

    /// Returns whether the recording is to end.
    pub fn look(&self) -> bool {
        self.wait_for(Duration::ZERO)
    }

    fn wait_for(&self, longest: Duration) -> bool {
        let left = self
            .deadline
            .map(|deadline| deadline.saturating_duration_since(Instant::now()));
        // Whatever became of a signal, a stopped thread does not wait for long.
        let left = left.unwrap_or(longest).min(longest);
        let pause = libc::timespec {
            tv_sec: left.as_secs().cast_signed(),
            tv_nsec: left.subsec_nanos().into(),
        };
        let set = match self.forwarded {
            true => difference(all(), &handed_on()),
            false => all(),
        };
        // SAFETY: the set and the time are initialized, and the information is not asked for.
        let signal =
            unsafe { libc::sigtimedwait(&raw const set, std::ptr::null_mut(), &raw const pause) };
        if SPENT.contains(&signal) {
            crate::warn_user!("hodo: its CPU time is used up (ulimit -t): the recording ends");
        }
        // All others are nothing to a recorder.
        let is_time = || self.deadline.is_some_and(|at| at <= Instant::now());
        let is_end = ENDING.contains(&signal) && !self.forwarded;
        if is_end || SPENT.contains(&signal) {
            self.asked.store(true, Ordering::Release);
        }
        self.asked() || is_time()
    }
}

/// For work that takes long before an attached process is recorded: goes on unless a signal waits that means the end.
///
/// # Errors
/// Such a signal has come.
pub fn go_on() -> Result<()> {
    // SAFETY: all-zero is a valid sigset_t, which the call fills.
    let waiting = unsafe {
        let mut set = std::mem::zeroed();
        libc::sigpending(&raw mut set);
        set
    };
    // SAFETY: the set is initialized, and the numbers are signals'.
    let has = |&signal: &i32| unsafe { libc::sigismember(&raw const waiting, signal) == 1 };
    if ENDING.iter().any(has) {
        bail!("interrupted before anything was recorded");
    }
    Ok(())
}

/// Work before a recording that may take long, and that another thread abandons as soon as a signal asks for the end.
/// Nothing may be changed meanwhile that has to be undone, except by that thread.
pub struct Abandonable {
    done: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    before: libc::sigset_t,
}

impl Abandonable {
    /// Begins such work. `abandon` gets the signal and ends this process.
    pub fn begin(abandon: impl FnOnce(i32) + Send + 'static) -> Self {
        let is_ignored = |&signal: &i32| {
            // SAFETY: all-zero is a valid sigaction, which the call fills; nothing is set.
            let action = unsafe {
                let mut action: libc::sigaction = std::mem::zeroed();
                libc::sigaction(signal, std::ptr::null(), &raw mut action);
                action
            };
            action.sa_sigaction == libc::SIG_IGN
        };
        let ignored: Vec<i32> = ENDING.into_iter().filter(is_ignored).collect();
        let awaited: Vec<i32> = (1..=libc::SIGRTMAX())
            .filter(|signal| {
                *signal != WAKES && (!ENDING.contains(signal) || ignored.contains(signal))
            })
            .collect();
        let set = difference(all(), &awaited);
        let mut before = set;
        // SAFETY: both sets are initialized.
        unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, &raw mut before) };
        let done = Arc::new(AtomicBool::new(false));
        let is_done = Arc::clone(&done);
        let thread = start(move || {
            while !is_done.load(Ordering::Acquire) {
                // SAFETY: the set is initialized, and the information is not asked for.
                let signal = unsafe { libc::sigwaitinfo(&raw const set, std::ptr::null_mut()) };
                if ENDING.contains(&signal) {
                    return abandon(signal);
                }
            }
        });
        // Without a thread, the signals wait.
        let thread = thread.ok();
        Self {
            done,
            thread,
            before,
        }
    }
}

impl Drop for Abandonable {
    fn drop(&mut self) {
        self.done.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            // SAFETY: the thread has not been joined, and it blocks and awaits this signal.
            unsafe { libc::pthread_kill(thread.as_pthread_t(), WAKES) };
            let _ = thread.join();
        }
        // SAFETY: the set is initialized; the old one is not asked for.
        unsafe {
            libc::pthread_sigmask(
                libc::SIG_SETMASK,
                &raw const self.before,
                std::ptr::null_mut(),
            )
        };
    }
}

/// Wakes the thread that abandons work. By default it does nothing.
const WAKES: i32 = libc::SIGURG;

/// Ends this process by a signal, as if that had not been blocked.
pub fn end_by(signal: i32) -> ! {
    let set = difference(all(), &[signal]);
    // SAFETY: the default action runs no code, and the set is initialized.
    unsafe {
        libc::signal(signal, libc::SIG_DFL);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const set, std::ptr::null_mut());
        libc::raise(signal);
    }
    std::process::exit(128 + signal)
}

/// Forgets the signals that have come: they have done what they were sent for.
pub fn forget() {
    let none = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    let set = all();
    // SAFETY: the set and the time are initialized, and the information is not asked for.
    while unsafe { libc::sigtimedwait(&raw const set, std::ptr::null_mut(), &raw const none) } > 0 {
    }
}

/// The program has stopped at ^Z, or has stopped itself then, as editors and pagers do: the shell that waits for this
/// process has to see that.
pub fn stop_in_foreground(first: i32) {
    use std::os::fd::AsRawFd;
    let Ok(terminal) = std::fs::File::open("/dev/tty") else {
        return;
    };
    // SAFETY: none of these touches memory. This process goes on when the shell continues the job.
    unsafe {
        let group = libc::getpgrp();
        if libc::getpgid(first) == group && libc::tcgetpgrp(terminal.as_raw_fd()) == group {
            let mut set = std::mem::zeroed();
            libc::sigemptyset(&raw mut set);
            libc::sigaddset(&raw mut set, libc::SIGTSTP);
            libc::signal(libc::SIGTSTP, libc::SIG_DFL);
            libc::raise(libc::SIGTSTP);
            // It stops here.
            libc::pthread_sigmask(libc::SIG_UNBLOCK, &raw const set, std::ptr::null_mut());
            libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut());
            libc::signal(libc::SIGTSTP, libc::SIG_IGN);
        }
    }
}
