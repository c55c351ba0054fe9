//! Library functions that must behave differently.

use std::ffi::c_void;

use hodo_patch::{Hook, LimitCall, Raise};

use crate::code::{call, handler, limits};
use crate::isa::FREE;
use crate::world::{World, address, site, symbol, timed};

unsafe extern "C" {
    pub fn _Unwind_Backtrace(
        each: extern "C" fn(*mut c_void, *mut c_void) -> i32,
        found: *mut c_void,
    ) -> i32;
    pub fn _Unwind_GetIP(context: *mut c_void) -> usize;
}

extern "C" fn each(context: *mut c_void, found: *mut c_void) -> i32 {
    // SAFETY: the unwinder passes the context, and what it was given.
    unsafe { (*found.cast::<Vec<u64>>()).push(_Unwind_GetIP(context) as u64) };
    0
}

extern "C-unwind" fn backtrace(depth: u64) -> u64 {
    if depth > 0 {
        return call(backtrace, depth - 1);
    }
    let mut found = Vec::new();
    // SAFETY: `each` only appends to the list.
    unsafe { _Unwind_Backtrace(each, (&raw mut found).cast()) };
    BACKTRACE.set(found);
    0
}

thread_local! {
    static BACKTRACE: std::cell::Cell<Vec<u64>> = const { std::cell::Cell::new(Vec::new()) };
}

/// The frames of some calls. They are the same each time, up to the caller's frame.
#[inline(never)]
fn called() -> Vec<u64> {
    call(backtrace, 3);
    BACKTRACE.take()
}

#[test]
fn backtraces_do_not_show_stubs() {
    let mut world = World::new(timed(), 2);
    world.enter(1);
    let alone = called();
    world.hook(Hook::FindObject, c"_dl_find_object", 0x100);
    let traced = site("call", address(call as *const ()), 8, FREE).free(1 << 14, 1 << 15);
    world.trace(&[traced]);
    let with_stubs = called();
    let islands = world.islands();
    let inside = |ip: &&u64| islands.iter().any(|island| island.contains(ip));
    assert_eq!(with_stubs.iter().filter(inside).count(), 4);
    let get_ip = symbol(c"_Unwind_GetIP");
    world.hook(Hook::Backtrace { get_ip }, c"_Unwind_Backtrace", 0x100);
    let hooked = called();
    assert_eq!(hooked.iter().filter(inside).count(), 0);
    // The same functions: only their caller is elsewhere. Compilers may turn calls of `call` into jumps.
    assert_eq!(hooked.len(), alone.len());
    let others = hooked
        .iter()
        .zip(&alone)
        .filter(|(one, other)| one != other);
    assert_eq!(others.count(), 1, "{hooked:x?} {alone:x?}");
    world.restore();
}

extern "C" fn object(
    info: *mut libc::dl_phdr_info,
    size: libc::size_t,
    found: *mut c_void,
) -> libc::c_int {
    // SAFETY: the linker passes the object, whose headers are in memory, and what it was given.
    unsafe {
        let found = &mut *found.cast::<Vec<(u64, usize, Vec<u64>)>>();
        let headers = std::slice::from_raw_parts((*info).dlpi_phdr, (*info).dlpi_phnum.into());
        let starts = headers.iter().map(|header| header.p_vaddr).collect();
        found.push(((*info).dlpi_addr, size, starts));
    }
    0
}

#[unsafe(no_mangle)]
extern "C-unwind" fn hodo_test_handled() {
    backtrace(0);
}

/// From within a handler.
fn handled() -> Vec<u64> {
    // SAFETY: `handler` only looks at the stack, and the thread that it interrupts has just called raise.
    unsafe {
        libc::signal(libc::SIGUSR1, handler as *const () as usize);
        libc::raise(libc::SIGUSR1);
    }
    BACKTRACE.take()
}

#[test]
fn backtraces_of_handlers_reach_the_interrupted_function() {
    let world = World::new(timed(), 2);
    let alone = handled();
    drop(world);
    let start = address(handler as *const ()) as u64;
    let place = |found: &[u64]| found.iter().position(|ip| (start..start + 32).contains(ip));
    let here = place(&alone).expect("the handler");
    let signal_return = alone[here + 1];
    let mut world = World::with_signals(timed(), 2, signal_return);
    world.enter(1);
    world.hook(Hook::FindObject, c"_dl_find_object", 0x100);
    world.trace(&[site("handler", start as usize, 8, FREE).free(1 << 14, 1 << 15)]);
    let traced = handled();
    let here = place(&traced).expect("the handler");
    assert!(world.islands()[0].contains(&traced[here + 1]), "its stub");
    // Further up, the calls came from elsewhere.
    assert_eq!(traced[here + 2..][..3], alone[here + 1..][..3]);
    assert_eq!(traced.len(), alone.len() + 1);
    assert_eq!(world.text(1), "+handler -handler");
}

#[test]
fn islands_are_listed_as_objects() {
    let all = || {
        let mut found: Vec<(u64, usize, Vec<u64>)> = Vec::new();
        // SAFETY: `object` only appends to the list.
        unsafe { libc::dl_iterate_phdr(Some(object), (&raw mut found).cast()) };
        found
    };
    let mut world = World::new(timed(), 2);
    world.enter(1);
    let before = all();
    world.hook(Hook::IteratePhdr, c"dl_iterate_phdr", 0x200);
    let after = all();
    let (same, ours) = after.split_at(before.len());
    assert_eq!(same, before);
    let bases: Vec<u64> = world.islands().iter().map(|island| island.start).collect();
    let found: Vec<u64> = ours.iter().map(|(at, ..)| *at).collect();
    assert_eq!(found, bases);
    assert!(
        ours.iter()
            .all(|(_, size, starts)| *size == 32 && starts.len() == 2)
    );
    world.restore();
}

#[test]
fn limits_are_what_the_program_has_set() {
    const MIB: u64 = 1 << 20;
    let extra = Raise {
        space: 64 * MIB,
        data: 32 * MIB,
        hard: 16 * MIB,
    };
    let get = || {
        let mut limit = libc::rlimit {
            rlim_cur: 0,
            rlim_max: 0,
        };
        // SAFETY: writes the limit.
        let result = unsafe { libc::getrlimit(libc::RLIMIT_DATA, &raw mut limit) };
        assert_eq!(result, 0);
        (limit.rlim_cur, limit.rlim_max)
    };
    let before = get();
    let mut world = World::new(timed(), 2);
    world.enter(1);
    world.hook(Hook::Limits(LimitCall::Get, extra), c"getrlimit", 0x40);
    // Infinity stays, and so does a value that is too small.
    let less = |limit: u64, extra: u64| match limit {
        u64::MAX => limit,
        limit if limit < extra => limit,
        limit => limit - extra,
    };
    assert_eq!(
        get(),
        (less(before.0, extra.data), less(before.1, extra.hard))
    );
    // SAFETY: only asks, and writes the limit.
    let stack = unsafe {
        let mut limit: libc::rlimit = std::mem::zeroed();
        (
            libc::getrlimit(libc::RLIMIT_STACK, &raw mut limit),
            limit.rlim_cur,
        )
    };
    assert!(stack.0 == 0 && stack.1 > 0, "others are left alone");
    world.restore();
}

#[test]
fn limits_are_raised_by_as_much_as_the_trace_takes() {
    let extra = Raise {
        space: 1000,
        data: 100,
        hard: 10,
    };
    let mut world = World::new(timed(), 2);
    world.enter(1);
    let function = address(limits as *const ()) as u64;
    world.hook_at(Hook::Limits(LimitCall::Both, extra), function, 0x20);
    let call = |pid, resource, new: [u64; 2]| {
        let mut old = [0; 4];
        assert_eq!(limits(pid, resource, &new, &mut old), 0);
        old
    };
    let (data, space, files) = (2, 9, 7);
    // What the function returns, and what the kernel would have seen.
    assert_eq!(call(0, space, [5000, 6000]), [5000, 6000, 6000, 6010]);
    assert_eq!(call(0, data, [5000, 6000]), [5000, 6000, 5100, 6010]);
    assert_eq!(call(0, data, [u64::MAX; 2]), [u64::MAX; 4]);
    assert_eq!(call(0, files, [5, 6]), [5, 6, 5, 6]);
    // For another process, and with a soft limit above the hard one.
    assert_eq!(call(1, data, [5000, 6000]), [5000, 6000, 5000, 6000]);
    assert_eq!(call(0, data, [7000, 6000]), [7000, 6000, 7000, 6000]);
    world.restore();
}

extern "C" fn ours(_: i32) {}

extern "C" fn theirs(_: i32) {}

#[test]
fn programs_see_the_default_action_in_place_of_our_handler() {
    const NOTHING: usize = libc::SIG_DFL;
    let (ours, theirs) = (ours as *const () as usize, theirs as *const () as usize);
    // The kernel's action: its handler comes first.
    let kernel = |signal: i32| {
        let mut words = [0usize; 8];
        // SAFETY: writes the kernel's struct, which is shorter.
        let result = unsafe {
            let none = std::ptr::null::<u8>();
            libc::syscall(libc::SYS_rt_sigaction, signal, none, words.as_mut_ptr(), 8)
        };
        assert_eq!(result, 0);
        words[0]
    };
    // Sets a handler, if any, and returns the one before.
    let set = |signal: i32, handler: Option<usize>| {
        // SAFETY: all-zero actions are valid; nobody sends the signals.
        unsafe {
            let mut new: libc::sigaction = std::mem::zeroed();
            let mut old: libc::sigaction = std::mem::zeroed();
            new.sa_sigaction = handler.unwrap_or_default();
            new.sa_flags = libc::SA_RESTART;
            let new = handler.map_or(std::ptr::null(), |_| &raw const new);
            assert_eq!(libc::sigaction(signal, new, &raw mut old), 0);
            old.sa_sigaction
        }
    };
    let flags = |signal: i32| {
        // SAFETY: only asks.
        unsafe {
            let mut old: libc::sigaction = std::mem::zeroed();
            assert_eq!(libc::sigaction(signal, std::ptr::null(), &raw mut old), 0);
            // libc adds one of its own.
            old.sa_flags & (libc::SA_RESTART | libc::SA_SIGINFO | libc::SA_ONSTACK)
        }
    };
    let mut world = World::new(timed(), 2);
    world.enter(1);
    let hook = Hook::Action {
        ours: ours as u64,
        restorer: 1,
    };
    world.hook(hook, c"sigaction", 0x40);
    // Other tests of this process may have a handler.
    let before = set(libc::SIGTRAP, Some(libc::SIG_IGN));
    assert_eq!(set(libc::SIGTRAP, Some(theirs)), libc::SIG_IGN);
    assert_eq!(kernel(libc::SIGTRAP), theirs);
    assert_eq!(set(libc::SIGTRAP, Some(NOTHING)), theirs);
    assert_eq!(kernel(libc::SIGTRAP), ours);
    assert_eq!(set(libc::SIGTRAP, None), NOTHING);
    assert_eq!(flags(libc::SIGTRAP), libc::SA_RESTART);
    assert_eq!(set(libc::SIGTRAP, Some(libc::SIG_IGN)), NOTHING);
    assert_eq!(kernel(libc::SIGTRAP), libc::SIG_IGN);
    assert_eq!(set(libc::SIGTRAP, None), libc::SIG_IGN);
    // Others are left alone.
    assert_eq!(set(libc::SIGUSR2, Some(ours)), NOTHING);
    assert_eq!(set(libc::SIGUSR2, Some(NOTHING)), ours);
    assert_eq!(kernel(libc::SIGUSR2), NOTHING);
    set(libc::SIGTRAP, Some(before));
    world.restore();
}
