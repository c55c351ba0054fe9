//! Frames that are left other than by returning.

use std::cell::Cell;
use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use hodo_patch::{Hook, Lead};
use hodo_trace::{CallStep, Left};

use crate::code::{call, catch, fib, leaf, outer, tail, tail2, throw, throw_from_nowhere};
use crate::hooks::{_Unwind_Backtrace, _Unwind_GetIP};
use crate::isa::{self, FREE, KEPT, room};
use crate::world::{Site, World, address, site, timed};

fn sites() -> [Site; 4] {
    let site = |name, function| site(name, function, 8, FREE).free(1 << 14 | 1 << 30, 1 << 14);
    [
        site("leaf", address(leaf as *const ())),
        site("outer", address(outer as *const ())),
        site("call", address(call as *const ())),
        site("catch", address(catch as *const ())),
    ]
}

thread_local! {
    static PLACE: Cell<*const [u64; 2]> = const { Cell::new(std::ptr::null()) };
}

extern "C-unwind" fn throws(x: u64) -> u64 {
    match x {
        // SAFETY: `catch` is further up, and nothing in between needs cleaning up.
        0 => unsafe { throw(PLACE.get(), 77) },
        _ => call(throws, x - 1),
    }
}

#[test]
fn long_jumps_leave_frames_without_exits() {
    let mut world = World::new(timed(), 2);
    world.enter(1);
    world.trace(&sites());
    let mut place = [0; 2];
    PLACE.set(&raw const place);
    assert_eq!(catch(throws, 3, &mut place), 77);
    assert_eq!(outer(1, 2), 7);
    assert_eq!(
        world.text(1),
        "+catch +call +call +call -catch +outer +leaf -leaf -outer"
    );
    let trace = world.read("jumps", 1);
    let mut calls = trace.calls(Vec::new());
    let mut unwound = 0;
    for found in trace.records(&trace.tasks[0]) {
        calls.feed(found, |step| {
            unwound += usize::from(matches!(
                step,
                CallStep::Leave {
                    left: Left::Unwound,
                    ..
                }
            ));
        });
    }
    assert_eq!((unwound, calls.frames().len()), (3, 0));
}

extern "C-unwind" fn panics(x: u64) -> u64 {
    match x {
        0 => std::panic::resume_unwind(Box::new("found")),
        1 => {
            // One that is caught below the others.
            let caught = catch_unwind(AssertUnwindSafe(|| call(panics, 0)));
            assert!(caught.is_err());
            call(panics, 0)
        }
        _ => call(panics, x - 1),
    }
}

/// The stub's load that may fault, and where execution then continues.
static FAULT: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];

/// Does what hodo does when a program faults.
extern "C" fn goes_on(_: i32, _: *mut c_void, context: *mut libc::ucontext_t) {
    // SAFETY: the kernel gives the context.
    let pc = isa::pc(unsafe { &mut *context });
    let [load, next] = FAULT.each_ref().map(|word| word.load(Ordering::Relaxed));
    // Any other fault happens again, and ends the test.
    if *pc == load {
        *pc = next;
    } else {
        // SAFETY: changes what is done with a signal.
        unsafe { libc::signal(libc::SIGSEGV, libc::SIG_DFL) };
    }
}

extern "C-unwind" fn throws_from_nowhere(_: u64) -> u64 {
    // SAFETY: as above.
    unsafe { throw_from_nowhere(PLACE.get(), 78) }
}

#[test]
fn return_addresses_that_lead_nowhere_are_no_tail_calls() {
    let mut world = World::new(timed(), 2);
    world.enter(1);
    world.trace(&[site("throw", address(throw as *const ()), 8, FREE).free(1 << 14, 0)]);
    let [Lead { at: load, to: next }] = world.patches.faults[..] else {
        panic!("{:x?}", world.patches.faults);
    };
    FAULT[0].store(load, Ordering::Relaxed);
    FAULT[1].store(next, Ordering::Relaxed);
    let mut place = [0; 2];
    PLACE.set(&raw const place);
    // SAFETY: the handler only changes where the thread continues.
    let before = unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = goes_on as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO;
        let mut before = std::mem::zeroed();
        libc::sigaction(libc::SIGSEGV, &raw const action, &raw mut before);
        before
    };
    assert_eq!(catch(throws_from_nowhere, 0, &mut place), 78);
    // SAFETY: as it was.
    unsafe { libc::sigaction(libc::SIGSEGV, &raw const before, ptr::null_mut()) };
    assert_eq!(world.text(1), "+throw");
}

#[test]
fn unwinders_find_their_way_through_stubs() {
    let mut world = World::new(timed(), 2);
    world.enter(1);
    world.hook(Hook::FindObject, c"_dl_find_object", 0x100);
    world.trace(&sites());
    let caught = catch_unwind(AssertUnwindSafe(|| call(panics, 4)));
    let message = caught.expect_err("a panic");
    assert_eq!(message.downcast_ref::<&str>(), Some(&"found"));
    assert_eq!(outer(1, 2), 7);
    assert_eq!(
        world.text(1),
        "+call +call +call +call +call +call +outer +leaf -leaf -outer"
    );
}

/// Backtraces that were taken, those that ended too early, and those that began in an island.
pub static TRACES: [AtomicU64; 3] = [const { AtomicU64::new(0) }; 3];
static ISLANDS: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];

struct Seen {
    frames: u64,
    in_island: bool,
    complete: bool,
}

extern "C" fn see(context: *mut c_void, seen: *mut c_void) -> i32 {
    // SAFETY: the unwinder passes the context, and what it was given.
    let (seen, ip) = unsafe { (&mut *seen.cast::<Seen>(), _Unwind_GetIP(context) as u64) };
    let [lo, hi] = ISLANDS.each_ref().map(|word| word.load(Ordering::Relaxed));
    seen.frames += 1;
    // The handler's own frame, and the kernel's.
    seen.in_island |= seen.frames <= 3 && lo <= ip && ip < hi;
    let busy = address(busy as *const ()) as u64;
    seen.complete |= (busy..busy + BUSY).contains(&ip);
    0
}

/// More bytes than `busy` has, but less than the distance to any other function on the stack.
const BUSY: u64 = 0x400;

/// Code outside islands that puts a register on the stack, which no table describes: where it begins, and its length.
static LOWER: [[AtomicU64; 2]; 32] = [const { [const { AtomicU64::new(0) }; 2] }; 32];

/// Whether `busy` is running.
static WORKING: AtomicBool = AtomicBool::new(false);

/// Calls traced functions, and is the caller that all backtraces must reach.
#[inline(never)]
pub fn busy(rounds: u64) -> u64 {
    WORKING.store(true, Ordering::Relaxed);
    let mut sum = 0;
    for round in 0..rounds {
        sum += tail2(round, 1) + outer(round, 2) + fib(4);
    }
    WORKING.store(false, Ordering::Relaxed);
    sum
}

pub extern "C" fn unwinds(_: i32, _: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel gives a handler with SA_SIGINFO its context.
    let pc = *isa::pc(unsafe { &mut *context.cast::<libc::ucontext_t>() });
    let lowers = |range: &[AtomicU64; 2]| {
        let [start, length] = range.each_ref().map(|word| word.load(Ordering::Relaxed));
        pc.wrapping_sub(start) < length
    };
    if !WORKING.load(Ordering::Relaxed) || LOWER.iter().any(lowers) {
        return;
    }
    let mut seen = Seen {
        frames: 0,
        in_island: false,
        complete: false,
    };
    // SAFETY: `see` only changes what is passed to it.
    unsafe { _Unwind_Backtrace(see, (&raw mut seen).cast()) };
    let counts = [true, !seen.complete, seen.in_island];
    for (count, counted) in TRACES.iter().zip(counts) {
        count.fetch_add(counted.into(), Ordering::Relaxed);
    }
}

#[test]
fn backtraces_from_anywhere_in_stubs_and_agent_reach_the_caller() {
    let free = |name, function| site(name, function, 8, FREE);
    let sites = [
        free("leaf", address(leaf as *const ())),
        free("outer", address(outer as *const ())).free(1 << 14, 0),
        free("tail", address(tail as *const ())).free(3 << 28, 1 << 12),
        free("tail2", address(tail2 as *const ())),
        free("fib", address(fib as *const ())).free(7 << 28, 15 << 28),
    ];
    check_backtraces(World::new(timed(), 60), &sites);
    // There, other jumps than those of sites put a register on the stack.
    if KEPT == FREE {
        check_backtraces(World::far(timed(), 60), &sites);
    }
    let kept = |name, function| site(name, function, room(KEPT), KEPT);
    let sites = [
        kept("leaf", address(leaf as *const ())),
        kept("outer", address(outer as *const ())).free(1 << 14, 0),
        kept("tail", address(tail as *const ())).free(3 << 28, 1 << 12),
        kept("tail2", address(tail2 as *const ())),
    ];
    check_backtraces(World::new(timed(), 60), &sites);
}

/// From now on, counts backtraces in this world.
pub fn watch(world: &mut World) {
    world.hook(Hook::FindObject, c"_dl_find_object", 0x100);
    for count in &TRACES {
        count.store(0, Ordering::Relaxed);
    }
    let island = world.islands()[0].clone();
    ISLANDS[0].store(island.start, Ordering::Relaxed);
    ISLANDS[1].store(island.end, Ordering::Relaxed);
}

/// Interrupts these functions while they are traced: all backtraces must reach the caller.
fn check_backtraces(mut world: World, sites: &[Site]) {
    world.enter(1);
    watch(&mut world);
    world.trace(sites);
    let island = world.islands()[0].clone();
    let outside = world
        .patches
        .ways
        .iter()
        .filter(|way| !island.contains(&way.start));
    for ([start, length], way) in LOWER.iter().zip(outside) {
        start.store(way.start, Ordering::Relaxed);
        length.store(way.len(), Ordering::Relaxed);
    }
    // SAFETY: the handler looks at the stack and counts; the interrupted thread holds no lock of the unwinder.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = unwinds as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO;
        libc::sigaction(libc::SIGUSR2, &raw const action, ptr::null_mut());
    }
    // SAFETY: it only asks which thread this is.
    let (pid, tid) = unsafe { (libc::getpid(), libc::gettid()) };
    let done = AtomicBool::new(false);
    let count = |index: usize| TRACES[index].load(Ordering::Relaxed);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                // SAFETY: the thread waits for this one.
                unsafe { libc::syscall(libc::SYS_tgkill, pid, tid, libc::SIGUSR2) };
                std::thread::sleep(Duration::from_micros(500));
            }
        });
        let begin = Instant::now();
        // Where it takes long, fewer are enough, but there must be some.
        let time = |seconds| begin.elapsed() < Duration::from_secs(seconds);
        while count(2) < 50 && time(120) || count(2) < 300 && time(15) {
            busy(100);
        }
        done.store(true, Ordering::Relaxed);
    });
    assert!(count(2) >= 50, "{} of {} in stubs", count(2), count(0));
    assert_eq!(count(1), 0, "of {} backtraces", count(0));
}
