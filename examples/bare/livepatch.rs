//! Functions that are replaced while the other hart is inside one of them.

use alloc::boxed::Box;
use core::hint::black_box;
use core::ops::Range;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicUsize, Ordering};

use hodo_ftrace::SHADOW_DISTANCE;
use hodo_ftrace::livepatch::{Function, Patch, Phase, Round, Threads, is_hijacked, shadow_of};

use crate::hart::{self, NAME};
use crate::{patching, say};

/// How many functions of `livepatched.c` have a site.
pub const COUNT: usize = 2;

unsafe extern "C" {
    safe fn part() -> i32;
    safe fn new_part() -> i32;
    safe fn held(gate: &AtomicI32) -> i32;
    safe fn new_held(gate: &AtomicI32) -> i32;
    safe fn livepatched_last();
}

/// Whether the second hart is to call `held`, with its gate closed at first; and the result.
static REQUEST: AtomicUsize = AtomicUsize::new(0);
static GATE: AtomicI32 = AtomicI32::new(0);
static RESULT: AtomicI32 = AtomicI32::new(0);
static OPEN: AtomicI32 = AtomicI32::new(0);

fn call_held(gate: &AtomicI32) -> i32 {
    black_box(held as extern "C" fn(&AtomicI32) -> i32)(gate)
}

/// What the second hart does in each round: what the first one asks for.
pub fn pass() {
    if REQUEST.load(Ordering::Acquire) != 0 {
        RESULT.store(call_held(&GATE), Ordering::Relaxed);
        REQUEST.store(0, Ordering::Release);
    }
}

/// Has the second hart call `held`.
fn request(gate: i32) {
    GATE.store(gate, Ordering::Relaxed);
    REQUEST.store(1, Ordering::Release);
}

/// What the second hart's call has returned.
fn result() -> i32 {
    while REQUEST.load(Ordering::Acquire) != 0 {
        core::hint::spin_loop();
    }
    RESULT.load(Ordering::Relaxed)
}

/// The patch that a hart is to look at its stack for, and whether it has found itself inside.
static QUESTION: AtomicPtr<Patch> = AtomicPtr::new(core::ptr::null_mut());
static IS_INSIDE: AtomicBool = AtomicBool::new(false);

/// All words of this hart's stack from an address on, with the originals of hijacked return addresses.
fn words(from: usize) -> impl Iterator<Item = usize> {
    const WORD: usize = size_of::<usize>();
    let own = hart::current();
    // SAFETY: it is this hart's own stack, and the part that is in use; all stacks have a shadow.
    let read = |at: usize| unsafe { (at as *const usize).read_volatile() };
    let stack = (from..own.stack().end).step_by(WORD).map(read);
    // Not all such words are return addresses: some are leftovers, or registers that an interrupt has saved. Their
    // shadow may be anywhere.
    let hijacked = move |at: usize| {
        let shadow = is_hijacked(read(at)).then(|| shadow_of(at, read(at - WORD)))?;
        let has_shadow = own.stack().contains(&shadow.wrapping_add(SHADOW_DISTANCE));
        has_shadow.then(|| read(shadow))
    };
    let originals = (from..own.stack().end).step_by(WORD).filter_map(hijacked);
    // SAFETY: this hart's own.
    stack
        .chain(originals)
        .chain(unsafe { &*own.traced.get() }.returns())
}

/// Looks at this hart's words. Returns whether it is inside a version that it has to leave.
fn look(patch: &Patch, words: impl Iterator<Item = usize>) -> bool {
    // SAFETY: this hart's own.
    let thread = unsafe { &*hart::current().traced.get() };
    patch.look(thread, words).is_some()
}

/// Answers another hart's question, in an interrupt: the interrupted registers are on the stack from here on.
pub fn answer(frame: usize) {
    // SAFETY: it comes from a reference that is valid for ever.
    if let Some(patch) = unsafe { QUESTION.load(Ordering::Acquire).as_ref() } {
        IS_INSIDE.store(look(patch, words(frame)), Ordering::Relaxed);
        QUESTION.store(core::ptr::null_mut(), Ordering::Release);
    }
}

/// The harts, asked by the one that has this on its stack.
struct Harts {
    /// Where the part of the stack begins that may belong to functions that are replaced.
    stack: usize,
}

// SAFETY: both harts look at all of their stacks, where an interrupt has also saved the registers.
unsafe impl Threads for Harts {
    fn ask(&mut self, patch: &'static Patch, _: usize) -> Round {
        // This hart has called what is below, and no trap has interrupted it above. So addresses that only count as
        // saved program counters are pointers to functions here, such as those in the patch.
        let own = words(self.stack).filter(|word| !patch.is_program_counter(*word));
        let mut round = Round {
            inside: usize::from(look(patch, own)),
            unknown: 0,
        };
        let pointer = core::ptr::from_ref(patch).cast_mut();
        QUESTION.store(pointer, Ordering::Release);
        hart::interrupt(1 - hart::current().index());
        while !QUESTION.load(Ordering::Acquire).is_null() {
            core::hint::spin_loop();
        }
        round.inside += usize::from(IS_INSIDE.load(Ordering::Relaxed));
        round
    }
}

/// The patch: both functions.
fn make() -> &'static Patch {
    let starts = [
        part as *const () as usize,
        new_part as *const () as usize,
        held as *const () as usize,
        new_held as *const () as usize,
        livepatched_last as *const () as usize,
    ];
    assert!(starts.is_sorted());
    let range = |number: usize| -> &'static [Range<usize>] {
        core::slice::from_ref(Box::leak(Box::new(starts[number]..starts[number + 1])))
    };
    let function = |number: usize| Function {
        site: patching::site_in(&range(number)[0]),
        old: range(number),
        entry: starts[number + 1],
        new: range(number + 1),
    };
    let functions = Box::leak(Box::new([function(0), function(2)]));
    Box::leak(Box::new(Patch::new(functions)))
}

/// Replaces both functions and takes them back, while the second hart is inside `held`.
pub fn demonstrate() {
    let mut harts = Harts {
        stack: hart::stack_pointer(),
    };
    let patch = make();
    let is_site = |at: usize| patch.functions().iter().any(|function| function.site == at);
    request(0);
    let second = result();
    say!(
        "livepatch: held returns {} in the first {NAME}, {second} in the second",
        call_held(&OPEN)
    );
    let bit = patch.register().expect("there are few tracers");
    for (on, version) in [(true, "old"), (false, "new")] {
        request(1);
        while GATE.load(Ordering::Acquire) != 2 {
            core::hint::spin_loop();
        }
        say!("livepatch: the second {NAME} is inside the {version} version of held");
        patch.start(on).expect("no other patch is in transition");
        patching::select(bit, |site| is_site(site.address()));
        assert!(!patch.advance(&mut harts));
        say!(
            "livepatch: {:?}; held returns {} in the first {NAME}",
            patch.phase(),
            call_held(&OPEN)
        );
        assert!(!patch.advance(&mut harts));
        GATE.store(0, Ordering::Release);
        say!("livepatch: the second {NAME} leaves it with {}", result());
        while !patch.advance(&mut harts) {
            core::hint::spin_loop();
        }
        request(0);
        let second = result();
        say!(
            "livepatch: {:?}; held returns {} in the first {NAME}, {second} in the second",
            patch.phase(),
            call_held(&OPEN)
        );
    }
    assert_eq!(patch.phase(), Phase::Off);
    patching::select(bit, |_| false);
    patch.unregister();
    assert_eq!(call_held(&OPEN), 111);
}
