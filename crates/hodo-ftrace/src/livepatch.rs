//! Replacing functions while they run: the kernel's livepatch (Linux, `Documentation/livepatch/livepatch.rst`).
//!
//! A [`Patch`] is a set of functions with their new versions, which belong together. A function is redirected at its
//! call site. The consistency model is the kernel's: each thread changes from the old versions of *all* functions of a
//! patch to the new ones at one moment, at which none of the versions that it leaves is on its stack. Until all threads
//! have changed, the patch is in *transition*, and each call at a site uses what its thread uses. There is one
//! transition at a time. [`Patch::start`] begins one, or reverses it; [`Patch::advance`] asks all threads, and ends it
//! if all have changed.
//!
//! # How a thread changes
//!
//! Each thread has a *mark*: the number of the transition, and the versions that it uses. [`Patch::look`] sets the
//! mark, while the thread does nothing else. It is given all words that may be return addresses or program counters of
//! the thread. It may be given too many: such words only delay the transition. A thread that is on its way through a
//! site is found, too: it has an address in the site, in its trampoline, in the stub that decides, or the new entry.
//!
//! A thread without a mark uses the patch's *fallback*, and gets a mark at the first site that it passes. At first, the
//! fallback are the versions that are left. When all threads have answered that existed when the sites were on, the
//! fallback changes: a thread without a mark has passed no site, and was created after that. So new threads need not be
//! waited for, however many there are. Threads that got a mark before are asked in another round.

use core::ops::Range;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

use crate::arch::{self, Registers};
use crate::dynamic::{self, IP_MODIFY, MASKS, Ops};
use crate::environment;
use crate::thread::Thread;

/// A function of a patch.
#[derive(Debug)]
pub struct Function {
    /// The call site of the old version, which must be at its entry ([`dynamic::Entry::First`]).
    pub site: usize,
    /// Where the old version's code is: the function, and what compilers have put elsewhere. If a range ends with a
    /// call, which never returns then, the address after it belongs to it, too.
    pub old: &'static [Range<usize>],
    /// The entry of the new version.
    pub entry: usize,
    /// Where the new version's code is, likewise.
    pub new: &'static [Range<usize>],
}

impl Function {
    /// Returns whether a word is an address in the site but not its start, or the address after it.
    fn has_in_site(&self, word: usize) -> bool {
        word.wrapping_sub(self.site).wrapping_sub(1) < arch::SITE
    }

    /// Returns whether a word may be an address in the version that is left, or in the site on the way to it.
    fn has(&self, word: usize, is_new: bool) -> bool {
        let within = |range: &Range<usize>| range.contains(&word);
        if is_new {
            return word == self.entry || self.new.iter().any(within) || self.has_in_site(word);
        }
        // Up to the site, nothing is decided; so a pointer to the function is none that counts.
        let is_before = |range: &Range<usize>| range.contains(&self.site) && word <= self.site;
        let mut ranges = self.old.iter();
        ranges.any(|range| within(range) && !is_before(range))
    }
}

/// Functions that are replaced together.
#[derive(Debug)]
pub struct Patch {
    functions: &'static [Function],
    /// [`ON`], [`MOVING`] and [`FALLBACK`], and above them the number of the transition. Those who need several of them
    /// read them at once.
    state: AtomicUsize,
    /// Where the trampolines of its sites are: the lowest address, and the end.
    trampolines: [AtomicUsize; 2],
    ops: Ops,
}

/// The new versions are used, or will be after the transition.
const ON: usize = 1;
/// There is a transition.
const MOVING: usize = 2;
/// Threads without a mark use the new versions.
const FALLBACK: usize = 4;
/// The number of the transition is above these bits.
const BITS: u32 = 3;

/// What a patch does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// All threads use the old versions.
    Off,
    /// Threads change to the new versions.
    Enabling,
    /// All threads use the new versions.
    On,
    /// Threads change back to the old versions.
    Disabling,
}

/// What one round of questions has shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Round {
    /// How many threads [`Patch::look`] has found in a version that they have to leave.
    pub inside: usize,
    /// How many have not answered.
    pub unknown: usize,
}

/// What a program or a kernel provides to ask threads.
///
/// # Safety
/// [`ask`](Self::ask) counts each thread that exists when it is called, and that can reach a site of the patch: it
/// has called [`Patch::look`] for it since the call began, while it did nothing else and with all of its words; or it
/// counts it as unknown.
pub unsafe trait Threads {
    /// Has all threads looked at. A thread that was found to have changed need not be looked at again while `epoch` is
    /// the same.
    fn ask(&mut self, patch: &'static Patch, epoch: usize) -> Round;
}

/// The patches, by the numbers of their tracers.
static PATCHES: [AtomicPtr<Patch>; MASKS] = [const { AtomicPtr::new(null_mut()) }; MASKS];
/// The patch that is in transition.
static IN_TRANSITION: AtomicPtr<Patch> = AtomicPtr::new(null_mut());
/// The number of the last transition.
static NUMBER: AtomicUsize = AtomicUsize::new(0);

/// Patches decide before tracers are called, and also while hooks run.
extern "C" fn nothing(_: usize, _: usize, _: &Ops, _: Option<&mut Registers>) {}

impl Patch {
    /// A patch that is off. The functions must be sorted by their sites.
    pub const fn new(functions: &'static [Function]) -> Self {
        Self {
            functions,
            state: AtomicUsize::new(0),
            trampolines: [const { AtomicUsize::new(0) }; 2],
            ops: Ops {
                func: nothing,
                flags: IP_MODIFY,
                data: 0,
            },
        }
    }

    /// Its functions.
    pub fn functions(&self) -> &'static [Function] {
        self.functions
    }

    /// Registers it as a tracer. Returns the bit, for [`dynamic::select`]; none if there are too many tracers, or it is
    /// registered. Its sites must be switched on after [`start`](Self::start), and before [`advance`](Self::advance).
    pub fn register(&'static self) -> Option<u64> {
        let number = dynamic::register(&self.ops)?;
        PATCHES[number].store(core::ptr::from_ref(self).cast_mut(), Ordering::Release);
        dynamic::set_redirecting(number, Some(redirect));
        Some(1 << number)
    }

    /// Unregisters it. It must be off, and its sites too.
    pub fn unregister(&self) {
        if let Some(number) = dynamic::number(&self.ops) {
            dynamic::set_redirecting(number, None);
            dynamic::unregister(number);
        }
    }

    /// What it does.
    pub fn phase(&self) -> Phase {
        let state = self.state.load(Ordering::SeqCst);
        match (state & MOVING != 0, state & ON != 0) {
            (false, false) => Phase::Off,
            (true, true) => Phase::Enabling,
            (false, true) => Phase::On,
            (true, false) => Phase::Disabling,
        }
    }

    /// Begins a transition to the new versions, or to the old ones; if there is one in the other direction, it is
    /// reversed. It must not be called by two threads at once, nor during [`advance`](Self::advance).
    ///
    /// # Errors
    /// If another patch is in transition, which is returned.
    pub fn start(&'static self, on: bool) -> Result<(), &'static Self> {
        let other = IN_TRANSITION.load(Ordering::Relaxed);
        // SAFETY: it comes from such a reference.
        if let Some(other) = unsafe { other.as_ref() }
            && !core::ptr::eq(other, self)
        {
            return Err(other);
        }
        let state = self.state.load(Ordering::Relaxed);
        if (state & ON != 0) == on {
            return Ok(());
        }
        let state = if state & MOVING != 0 {
            state ^ ON
        } else {
            let number = NUMBER.fetch_add(1, Ordering::Relaxed) + 1;
            let left = if on { ON } else { FALLBACK };
            number << BITS | MOVING | left
        };
        IN_TRANSITION.store(core::ptr::from_ref(self).cast_mut(), Ordering::Relaxed);
        self.state.store(state, Ordering::SeqCst);
        Ok(())
    }

    /// Gives up a transition to the new versions whose sites could not be switched on. No thread has changed yet.
    pub fn cancel(&'static self) {
        self.state.store(0, Ordering::SeqCst);
        IN_TRANSITION.store(null_mut(), Ordering::Relaxed);
    }

    /// Asks all threads, and ends the transition if none uses a version that is left. Returns whether there is none
    /// now. It must not be called by two threads at once.
    pub fn advance(&'static self, threads: &mut impl Threads) -> bool {
        self.note_trampolines();
        loop {
            let state = self.state.load(Ordering::SeqCst);
            if state & MOVING == 0 {
                return true;
            }
            let is_settled = (state & FALLBACK != 0) == (state & ON != 0);
            let round = threads.ask(self, state & !FALLBACK);
            if !is_settled {
                if round.unknown != 0 {
                    return false;
                }
                self.state.store(state ^ FALLBACK, Ordering::SeqCst);
                continue;
            }
            if round != Round::default() {
                return false;
            }
            self.state.store(state & ON, Ordering::SeqCst);
            IN_TRANSITION.store(null_mut(), Ordering::Relaxed);
            return true;
        }
    }

    /// The trampolines that its sites call or have called.
    fn each_trampoline(&self) -> impl Iterator<Item = Range<usize>> {
        let sites = self.functions.iter();
        let found = sites.flat_map(|function| dynamic::trampolines_of(function.site));
        found.map(|at| at..at + dynamic::TRAMPOLINE)
    }

    fn note_trampolines(&self) {
        let low = self.each_trampoline().map(|range| range.start).min();
        let end = self.each_trampoline().map(|range| range.end).max();
        self.trampolines[0].store(low.unwrap_or(0), Ordering::SeqCst);
        self.trampolines[1].store(end.unwrap_or(0), Ordering::SeqCst);
    }

    /// Returns whether a word is an address between a site and what decides about it.
    fn is_on_the_way(&self, word: usize) -> bool {
        arch::redirecting().contains(&word)
            || (self.is_between(word) && self.each_trampoline().any(|range| range.contains(&word)))
    }

    /// Returns whether a word is an address from the first to the last of these trampolines.
    fn is_between(&self, word: usize) -> bool {
        let [low, end] = self
            .trampolines
            .each_ref()
            .map(|at| at.load(Ordering::SeqCst));
        (low..end).contains(&word)
    }

    /// Lets a thread change, if none of these words is in a version that it leaves. Returns the function otherwise. The
    /// words must be all that may be return addresses or program counters of the thread, which does nothing else
    /// meanwhile. With [`hijacked`](is_hijacked) return addresses, the originals must be among them.
    pub fn look(
        &self,
        thread: &Thread,
        words: impl Iterator<Item = usize>,
    ) -> Option<&'static Function> {
        self.look_with(thread, |is_new| self.find_in(words, is_new))
    }

    /// [`look`](Self::look) by a function that looks for a version that is left, the new one or the old one, as
    /// [`find_in`](Self::find_in) does.
    pub fn look_with(
        &self,
        thread: &Thread,
        find: impl FnOnce(bool) -> Option<&'static Function>,
    ) -> Option<&'static Function> {
        let state = self.state.load(Ordering::SeqCst);
        if state & MOVING == 0 {
            return None;
        }
        let target = state & ON != 0;
        let current = used(state, thread.mark()).unwrap_or(state & FALLBACK != 0);
        let found = match current == target {
            true => None,
            false => find(current),
        };
        let next = if found.is_some() { current } else { target };
        thread.set_mark(mark(state, next));
        found
    }

    /// The first function in whose old or new version one of these words is; if there is none, one in whose site it is:
    /// words that are left over from former calls are more often such ones.
    pub fn find_in(
        &self,
        words: impl Iterator<Item = usize>,
        is_new: bool,
    ) -> Option<&'static Function> {
        let mut on_the_way = None;
        for word in words {
            let plain = arch::without_signature(word);
            let found = self
                .functions
                .iter()
                .find(|function| function.has(plain, is_new));
            match found {
                Some(function) if !function.has_in_site(plain) => return found,
                Some(_) => on_the_way = on_the_way.or(found),
                None if self.is_on_the_way(plain) => {
                    on_the_way = on_the_way.or(self.functions.first());
                }
                None => {}
            }
        }
        on_the_way
    }

    /// Returns whether a word is only of interest if it is a program counter. While new versions are left, that is the
    /// entry of one, or an address in a site or after it: on stacks, such words are also pointers to functions, and
    /// what calls have left there that went through a site. One on a stack may be left out if no trap or signal has
    /// saved it.
    ///
    /// While old versions are left, there are none on x86-64: a thread may be on its way through the call of a site
    /// since before that became one. Elsewhere, sites call trampolines only, where such a thread is found.
    ///
    /// Where a trampoline begins is such a word, too: nothing returns there, and whoever has made a trampoline may have
    /// left its address.
    pub fn is_program_counter(&self, word: usize) -> bool {
        if self.is_between(word) && self.each_trampoline().any(|range| range.start == word) {
            return true;
        }
        let is_it = |function: &Function| function.entry == word || function.has_in_site(word);
        let is_known = arch::ONLY_TRAMPOLINES || self.phase() == Phase::Disabling;
        is_known && self.functions.iter().any(is_it)
    }

    /// Returns whether the calling thread uses the new versions.
    #[inline]
    fn is_used(&self) -> bool {
        let thread = environment::thread();
        loop {
            let state = self.state.load(Ordering::SeqCst);
            if state & MOVING == 0 {
                return state & ON != 0;
            }
            let Some(thread) = thread else {
                return state & ON == 0;
            };
            let before = thread.mark();
            if let Some(is_new) = used(state, before) {
                return is_new;
            }
            // A signal handler may give the thread a mark here.
            let is_new = state & FALLBACK != 0;
            if thread.change_mark(before, mark(state, is_new)) {
                return is_new;
            }
        }
    }
}

/// A thread's mark for the transition of a patch.
fn mark(state: usize, is_new: bool) -> usize {
    state >> BITS << 1 | usize::from(is_new)
}

/// Which versions a mark says that its thread uses; none if it is no mark for this transition.
fn used(state: usize, mark: usize) -> Option<bool> {
    (mark >> 1 == state >> BITS).then_some(mark & 1 != 0)
}

/// Lets execution go on in the new version, if there is one that the thread uses. `live` has the patches of the site.
fn redirect(ip: usize, live: u64, registers: *mut Registers) {
    // SAFETY: it is null, or the stub's.
    let Some(registers) = (unsafe { registers.as_mut() }) else {
        return;
    };
    let number = live.trailing_zeros() as usize % MASKS;
    // SAFETY: `register` has it from a reference that is valid for ever.
    let Some(patch) = (unsafe { PATCHES[number].load(Ordering::Acquire).as_ref() }) else {
        return;
    };
    let mut functions = patch.functions.iter();
    if let Some(function) = functions.find(|function| function.site == ip)
        && patch.is_used()
    {
        registers.ip = function.entry;
    }
}

/// Returns whether a word is the address that stands in the place of a hijacked return address. The original is in the
/// shadow ([`crate::SHADOW_DISTANCE`]), and, if it has not been lost, in the list of open calls ([`Thread::returns`]).
pub fn is_hijacked(word: usize) -> bool {
    arch::without_signature(word) == crate::shadow::return_to_handler()
}

/// Where the shadow of a hijacked return address is: its slot, and the word before the slot.
pub fn shadow_of(slot: usize, before: usize) -> usize {
    arch::key_with(slot, before).wrapping_sub(crate::SHADOW_DISTANCE)
}

/// A return address without a signature of the processor's (AArch64).
pub fn without_signature(address: usize) -> usize {
    arch::without_signature(address)
}

/// Returns whether the word below the stack pointer belongs to a thread's words, too: the thread has this program
/// counter, and may be about to return to the address that is there.
pub fn returns_below(pc: usize) -> bool {
    arch::returns_below(pc)
}
