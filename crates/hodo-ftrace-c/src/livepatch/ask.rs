//! Asking all threads whether they are inside a version that is left: a signal has each of them look at itself.

use std::cell::{Cell, UnsafeCell};
use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use hodo_ftrace::livepatch::{Patch, Phase, Round, Threads, returns_below};

use super::stacks::Stacks;
use super::tasks;
use super::walk::{End, Frame, Room, Tables, walk};
use crate::loaded::with_loaded;
use crate::{arch, linux};

/// A thread that has not changed yet.
#[derive(Clone, Debug)]
pub struct Straggler {
    pub task: i32,
    /// The function in whose version it is, by its site; none if it is unknown whether it is in any.
    pub site: Option<usize>,
    pub why: Why,
}

/// Why a thread has not changed.
#[derive(Clone, Copy, Debug)]
pub enum Why {
    /// It is as this text says.
    Text(&'static str),
    /// It may be inside: above the frame with this address there is no frame table, and its stack has an address in the
    /// version that is left.
    Above(usize),
}

const IS_INSIDE: &str = "is inside the version that is left";
const BLOCKS: &str = "blocks the signal by which threads are asked";
const SILENT: &str = "has not answered the signal by which threads are asked";
const UNREADABLE: &str = "runs on a stack that cannot be read as a whole";
const NOT_LISTED: &str = "the threads cannot be listed (is /proc mounted?)";
const NO_SIGNAL: &str = "no real-time signal is free to ask threads by";

/// What a thread answers.
const ASKED: usize = 0;
const CHANGED: usize = 1;
const CANNOT: usize = 2;
// All other answers are the site of the function in whose version it is.

/// Where a function of the C interface was called.
#[derive(Clone, Copy, Debug, Default)]
pub struct Caller {
    /// The stack pointer then.
    pub stack: usize,
    /// Where it returns to.
    pub back: usize,
}

/// One round of questions. Handlers use it while it is in [`ROUND`].
struct Questions {
    patch: &'static Patch,
    stacks: Stacks,
    /// Who asks, and where.
    own: (i32, Caller),
    /// By number.
    tasks: Vec<i32>,
    answers: Vec<AtomicUsize>,
    /// For each, the address of the frame above which there is no frame table, if it was found there; or 0.
    above: Vec<AtomicUsize>,
    /// For each, its stack pointer and program counter, if it slept before it was asked.
    places: Vec<Option<(usize, usize)>>,
    /// For each, room for a walk. Only its own thread uses it.
    rooms: Vec<UnsafeCell<Room>>,
    tables: Tables,
}

static ROUND: AtomicPtr<Questions> = AtomicPtr::new(std::ptr::null_mut());
/// How many handlers run.
static ACTIVE: AtomicUsize = AtomicUsize::new(0);

impl Questions {
    /// Has the calling thread answer, which was interrupted here.
    fn answer(&self, context: &libc::ucontext_t) {
        let task = hodo_sys::sys::thread() as i32;
        let Ok(place) = self.tasks.binary_search(&task) else {
            return;
        };
        let (mut stack, mut registers) = arch::interrupted(context);
        let frame = Frame {
            registers: arch::columns(&registers, stack),
            is_interrupted: true,
        };
        if registers.iter().any(|word| returns_below(*word)) {
            stack -= size_of::<usize>();
        }
        if task == self.own.0 {
            // What is below belongs to this library, which calls none of the functions. Its frames have places that
            // were never written, and contain what others have left there.
            stack = self.own.1.stack;
            registers = [0; _];
            registers[0] = self.own.1.back;
        }
        let tp = thread_pointer();
        let ranges = self
            .stacks
            .of(stack, tp, tp == FIRST.load(Ordering::Relaxed));
        let answer = match ranges {
            None => CANNOT,
            Some([first, second]) => {
                let failed = Cell::new(false);
                let thread = linux::thread();
                // Such a word counts as inside.
                let instead = self
                    .patch
                    .functions()
                    .first()
                    .map_or(0, |first| first.site + 1);
                let words = |range| self.stacks.words(self.patch, range, &failed, instead);
                let found = self.patch.look_with(thread, |is_new| {
                    let find = |word| self.patch.find_in(std::iter::once(word), is_new);
                    let all = |range| self.patch.find_in(words(range), is_new);
                    // SAFETY: it is this thread's, whose signals are blocked.
                    let room = unsafe { &mut *self.rooms[place].get() };
                    let found = match returns_below(frame.pc()) {
                        true => self.stacks.word(stack).and_then(find),
                        false => None,
                    };
                    let walked = match found {
                        Some(function) => Err(function),
                        None => walk(&self.tables, &self.stacks, room, frame, find, all),
                    };
                    match walked {
                        Err(function) => Some(function),
                        // What is above belongs to nobody, or to other stacks that are next to this one.
                        Ok((End::Outermost, last)) => {
                            let rest = if first.contains(&last) {
                                last..first.end
                            } else {
                                0..0
                            };
                            let other = if second.contains(&last) { 0..0 } else { second };
                            self.patch.find_in(words(rest).chain(words(other)), is_new)
                        }
                        Ok((End::Unknown(pc), last)) => {
                            self.above[place].store(pc, Ordering::SeqCst);
                            let rest = if first.contains(&last) {
                                last..first.end
                            } else {
                                first
                            };
                            // The innermost frame may still have its return address in a register.
                            let registers = registers.into_iter().filter(|_| pc == frame.pc());
                            let others = registers.chain(thread.returns());
                            let all = others.chain(words(rest)).chain(words(second));
                            self.patch.find_in(all, is_new)
                        }
                    }
                });
                match found {
                    Some(_) if failed.get() => CANNOT,
                    Some(function) => function.site,
                    None => CHANGED,
                }
            }
        };
        self.answers[place].store(answer, Ordering::SeqCst);
    }
}

extern "C" fn on_signal(_: c_int, _: *mut libc::siginfo_t, context: *mut c_void) {
    linux::keeping_errno(|| {
        ACTIVE.fetch_add(1, Ordering::SeqCst);
        // SAFETY: whoever takes it away waits until no handler runs.
        let questions = unsafe { ROUND.load(Ordering::SeqCst).as_ref() };
        // SAFETY: the kernel passes one.
        let context = unsafe { context.cast::<libc::ucontext_t>().as_ref() };
        if let (Some(questions), Some(context)) = (questions, context) {
            questions.answer(context);
        }
        ACTIVE.fetch_sub(1, Ordering::SeqCst);
    });
}

/// The thread pointer of the thread that the program has started with.
static FIRST: AtomicUsize = AtomicUsize::new(0);

fn thread_pointer() -> usize {
    arch::thread().wrapping_add_signed(-arch::thread_offset())
}

/// When the library starts.
pub fn start() {
    // SAFETY: it takes nothing.
    if hodo_sys::sys::thread() as i32 == unsafe { libc::getpid() } {
        FIRST.store(thread_pointer(), Ordering::Relaxed);
    }
}

/// After a fork, in the child: handlers of other threads do not run there.
pub fn in_child() {
    ACTIVE.store(0, Ordering::SeqCst);
    ROUND.store(std::ptr::null_mut(), Ordering::SeqCst);
}

type Handler = extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void);

/// What is set for a signal.
fn action(signal: c_int) -> Option<libc::sigaction> {
    // SAFETY: all zeros is one.
    let mut now: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: it can be written.
    let got = unsafe { libc::sigaction(signal, std::ptr::null(), &raw mut now) };
    (got == 0).then_some(now)
}

/// Sets what a signal does.
fn set(signal: c_int, handler: usize) -> bool {
    // SAFETY: all zeros is one.
    let mut new: libc::sigaction = unsafe { std::mem::zeroed() };
    new.sa_sigaction = handler;
    if handler == on_signal as Handler as usize {
        // System calls that can be are restarted.
        new.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART | libc::SA_ONSTACK;
        // SAFETY: it can be written.
        unsafe { libc::sigfillset(&raw mut new.sa_mask) };
    }
    // SAFETY: the handler is such a function, or a constant.
    unsafe { libc::sigaction(signal, &raw const new, std::ptr::null_mut()) == 0 }
}

/// A real-time signal that nobody uses. It is given back when this is dropped.
#[derive(Debug)]
struct Signal(c_int);

impl Signal {
    /// Takes one. From the end: programs count from the beginning. qemu's user mode emulator has not the last two.
    fn take() -> Option<Self> {
        let last = libc::SIGRTMAX() - 2;
        let free =
            |signal: &c_int| action(*signal).is_some_and(|now| now.sa_sigaction == libc::SIG_DFL);
        let signal = (libc::SIGRTMIN()..=last).rev().find(free)?;
        set(signal, on_signal as Handler as usize).then_some(Self(signal))
    }

    /// Returns whether it is still ours.
    fn is_ours(&self) -> bool {
        action(self.0).is_some_and(|now| now.sa_sigaction == on_signal as Handler as usize)
    }
}

impl Drop for Signal {
    fn drop(&mut self) {
        if self.is_ours() {
            // What a thread has not taken yet is discarded, and cannot end the program.
            set(self.0, libc::SIG_IGN);
            set(self.0, libc::SIG_DFL);
        }
    }
}

/// Who asks, during a transition.
#[derive(Debug, Default)]
pub struct Asker {
    signal: Option<Signal>,
    /// The threads that have changed, with their start times.
    changed: HashMap<i32, u64>,
    /// The stack pointer and program counter of threads that slept when they answered that they are inside.
    inside: HashMap<i32, (usize, usize)>,
    epoch: usize,
    process: i32,
    /// Where the function was called that asks.
    pub caller: Caller,
    /// Until when to wait for answers.
    pub until: Option<Instant>,
    /// Who has not changed, as the last round has shown.
    pub stragglers: Vec<Straggler>,
}

/// How long a round waits for answers.
const PATIENCE: Duration = Duration::from_millis(200);

impl Asker {
    /// Takes a signal, if there is none, or the program has taken the last one.
    fn signal(&mut self) -> Option<c_int> {
        if !self.signal.as_ref().is_some_and(Signal::is_ours) {
            self.signal = Signal::take();
        }
        self.signal.as_ref().map(|signal| signal.0)
    }

    fn straggler(&mut self, task: i32, site: Option<usize>, why: &'static str) {
        let why = Why::Text(why);
        self.stragglers.push(Straggler { task, site, why });
    }

    /// Asks these threads, and waits for their answers.
    fn send(&mut self, questions: &mut Questions, signal: c_int, again: &[bool]) {
        ROUND.store(questions, Ordering::SeqCst);
        let mut gone = vec![false; questions.tasks.len()];
        for (at, task) in questions.tasks.iter().enumerate() {
            // One signal is enough, however many rounds there are.
            gone[at] = !tasks::send(*task, if again[at] { 0 } else { signal });
        }
        let until = Instant::now() + PATIENCE;
        let until = self.until.map_or(until, |other| other.min(until));
        let mut pause = Duration::from_micros(20);
        loop {
            let answer = |at: usize| questions.answers[at].load(Ordering::SeqCst);
            let mut waits = false;
            for (at, task) in questions.tasks.iter().enumerate() {
                if !gone[at] && answer(at) == ASKED {
                    gone[at] = !tasks::send(*task, 0);
                    waits |= !gone[at];
                }
            }
            if !waits || Instant::now() >= until {
                break;
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(2));
        }
        ROUND.store(std::ptr::null_mut(), Ordering::SeqCst);
        while ACTIVE.load(Ordering::SeqCst) != 0 {
            std::thread::yield_now();
        }
        for (at, task) in questions.tasks.iter().enumerate() {
            match questions.answers[at].load(Ordering::SeqCst) {
                ASKED if gone[at] => {}
                ASKED => self.straggler(*task, None, SILENT),
                CANNOT => self.straggler(*task, None, UNREADABLE),
                CHANGED => {}
                site => {
                    let why = match questions.above[at].load(Ordering::SeqCst) {
                        0 => Why::Text(IS_INSIDE),
                        pc => Why::Above(pc),
                    };
                    if let Some(place) = questions.places[at] {
                        self.inside.insert(*task, place);
                    }
                    self.stragglers.push(Straggler {
                        task: *task,
                        site: Some(site),
                        why,
                    });
                }
            }
        }
    }
}

/// What is known of a thread that sleeps in the kernel.
enum Asleep {
    /// It is in the left version of the function with this site. It is not disturbed then: the signal would end its
    /// sleep.
    Inside(usize),
    /// It has to be asked. It sleeps at this stack pointer and program counter.
    Perhaps((usize, usize)),
    /// It runs.
    No,
}

impl Asker {
    /// Looks at a thread that may sleep in the kernel.
    fn asleep(&self, questions: &Questions, room: &mut Room, task: i32) -> Asleep {
        let Some(place) = tasks::sleeping(task) else {
            return Asleep::No;
        };
        let (stack, pc) = place;
        let (patch, stacks) = (questions.patch, &questions.stacks);
        let Some(range) = stacks.from(stack) else {
            return Asleep::No;
        };
        let is_new = patch.phase() == Phase::Disabling;
        let failed = Cell::new(false);
        let words = |range| stacks.words(patch, range, &failed, 0);
        let all = patch.find_in(std::iter::once(pc).chain(words(range)), is_new);
        let Some(possible) = all else {
            return Asleep::Perhaps(place);
        };
        // That may be a leftover. All registers but two are unknown.
        let mut registers = [None; arch::COLUMNS];
        registers[arch::STACK] = Some(stack);
        registers[arch::INSTRUCTION] = Some(pc);
        let frame = Frame {
            registers,
            is_interrupted: true,
        };
        let find = |word| patch.find_in(std::iter::once(word), is_new);
        match walk(&questions.tables, stacks, room, frame, find, |_| None) {
            Err(function) => Asleep::Inside(function.site),
            Ok((End::Unknown(_), _)) if self.inside.get(&task) == Some(&place) => {
                Asleep::Inside(possible.site)
            }
            Ok(_) => Asleep::Perhaps(place),
        }
    }
}

impl Asker {
    /// Asks all threads that have not changed. Returns how many sleep inside, and have no mark therefore.
    fn ask_all(
        &mut self,
        patch: &'static Patch,
        stacks: Stacks,
        tables: Tables,
        signal: c_int,
        all: Vec<i32>,
    ) -> usize {
        let mut asleep = 0;
        let mut started = HashMap::new();
        let mut again = Vec::new();
        let mut room = Room::new_in();
        let mut questions = Questions {
            patch,
            stacks,
            own: (hodo_sys::sys::thread() as i32, self.caller),
            tasks: Vec::new(),
            answers: Vec::new(),
            above: Vec::new(),
            places: Vec::new(),
            rooms: Vec::new(),
            tables,
        };
        for task in all {
            let Some(now) = tasks::look(task) else {
                if tasks::send(task, 0) {
                    self.straggler(task, None, NOT_LISTED);
                }
                continue;
            };
            let bit = 1u64 << (signal - 1);
            if now.has_ended || self.changed.get(&task) == Some(&now.started) {
                continue;
            }
            if now.blocked & bit != 0 {
                // It would wait, perhaps for ever; or the thread might take it by `sigwait`.
                self.straggler(task, None, BLOCKS);
                continue;
            }
            let place = match self.asleep(&questions, &mut room, task) {
                Asleep::Inside(site) => {
                    self.straggler(task, Some(site), IS_INSIDE);
                    asleep += 1;
                    continue;
                }
                Asleep::Perhaps(place) => Some(place),
                Asleep::No => None,
            };
            started.insert(task, now.started);
            again.push(now.pending & bit != 0);
            questions.tasks.push(task);
            questions.answers.push(AtomicUsize::new(ASKED));
            questions.above.push(AtomicUsize::new(0));
            questions.places.push(place);
            questions.rooms.push(UnsafeCell::new(Room::new_in()));
        }
        self.send(&mut questions, signal, &again);
        for (task, answer) in questions.tasks.iter().zip(&questions.answers) {
            if answer.load(Ordering::SeqCst) == CHANGED {
                self.changed.insert(*task, started[task]);
            }
        }
        asleep
    }
}

// SAFETY: the kernel lists all threads of the process, and each that is not counted as unknown or inside has answered,
// or has ended. It answers in the handler, with its registers, the calls that it returns through, and its stacks.
unsafe impl Threads for Asker {
    fn ask(&mut self, patch: &'static Patch, epoch: usize) -> Round {
        let mut round = Round::default();
        self.stragglers.clear();
        // SAFETY: it takes nothing.
        let process = unsafe { libc::getpid() };
        if (self.epoch, self.process) != (epoch, process) {
            self.changed.clear();
            self.inside.clear();
            (self.epoch, self.process) = (epoch, process);
        }
        let (Some(signal), Some(all), Ok(stacks)) = (self.signal(), tasks::list(), Stacks::new())
        else {
            let why = if self.signal.is_none() {
                NO_SIGNAL
            } else {
                NOT_LISTED
            };
            self.straggler(0, None, why);
            round.unknown = 1;
            return round;
        };
        // Frame tables of what is loaded are read in handlers: nothing may be unloaded meanwhile.
        let asked =
            with_loaded(|loaded| self.ask_all(patch, stacks, Tables::new(loaded), signal, all));
        round.unknown = asked.unwrap_or(1);
        let inside = |straggler: &&Straggler| straggler.site.is_some();
        round.inside = self.stragglers.iter().filter(inside).count();
        round.unknown += self.stragglers.len() - round.inside;
        round
    }
}
