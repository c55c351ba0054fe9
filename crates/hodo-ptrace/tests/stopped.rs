//! What is done with stopped threads, on children of the test's own.

use std::sync::atomic::{AtomicI32, Ordering};
use std::time::Duration;

use hodo_ptrace as ptrace;
use hodo_ptrace::TargetAddr;
use hodo_ptrace::arch::{BROKEN_OFF, SCRATCH_PAGE, frame, is_frame};
use hodo_ptrace::stops::{self, Stops};
use hodo_ptrace::{Memory, Report, Stopped, Syscalls, maps};

#[cfg(target_arch = "aarch64")]
#[path = "stopped/aarch64.rs"]
mod aarch64;

const WAITING: Duration = Duration::from_secs(60);

/// A child that does something, and exits with what comes of it.
struct Child(i32);

impl Child {
    /// `run` may do only what is allowed in a signal handler.
    fn new(run: impl FnOnce() -> i32) -> Self {
        // SAFETY: the child does nothing that needs what other threads may hold, and ends without running anything of
        // ours.
        unsafe {
            match libc::fork() {
                0 => libc::_exit(run()),
                pid => Self(pid),
            }
        }
    }

    /// Waits until it is in a system call, stopped for good.
    fn asleep(&self) {
        for _ in 0..60_000 {
            let state = ptrace::status(self.0, "State:").expect("a child");
            let call = std::fs::read_to_string(format!("/proc/{}/syscall", self.0));
            let inside = call.is_ok_and(|text| !text.starts_with("running"));
            if state.starts_with('S') && inside {
                return;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        panic!("the child does not wait for anything");
    }

    /// Its one thread, and what lets it go.
    fn stop(&self) -> (Stopped, Stops) {
        let mut stops = Stops::new(self.0, libc::PTRACE_O_TRACESYSGOOD);
        stops.stop_all().expect("stopping");
        (stops.get(self.0).expect("its thread"), stops)
    }

    fn memory(&self) -> Memory {
        Memory::open(self.0).expect("its memory")
    }

    /// A place where system calls can be made.
    fn place(&self) -> TargetAddr {
        let maps = maps::read(self.0).expect("its mappings");
        hodo_ptrace::syscall_place(&self.memory(), &maps).expect("a place")
    }

    /// Makes what steps need.
    fn scratch_page(&self, thread: Stopped) -> u64 {
        if SCRATCH_PAGE == 0 {
            return 0;
        }
        let calls = Syscalls::begin(thread, self.place()).expect("calls");
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let rx = libc::PROT_READ | libc::PROT_EXEC;
        let got = calls.mmap(TargetAddr(0), SCRATCH_PAGE, rx, flags, None);
        calls.end_in_stop().expect("ending");
        got.expect("a call").addr().expect("a page").0
    }

    fn exit(mut self) -> i32 {
        let report = stops::wait_for(self.0, WAITING).expect("waiting");
        let report = report.expect("it ends");
        // Its number may become another's.
        self.0 = 0;
        report.exit_code().unwrap_or_else(|| panic!("{report:?}"))
    }

    fn stopped(&self) -> (Stopped, Report) {
        let report = stops::wait_for(self.0, WAITING).expect("waiting");
        let report = report.expect("it stops");
        let thread = report.stopped();
        (thread.unwrap_or_else(|| panic!("{report:?}")), report)
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // Where a test has failed, it may still be there.
        if self.0 > 0 {
            // SAFETY: a system call with numbers.
            unsafe { libc::kill(self.0, libc::SIGKILL) };
        }
    }
}

fn pipe() -> [i32; 2] {
    let mut ends = [0; 2];
    // SAFETY: pipe writes two numbers.
    assert_eq!(unsafe { libc::pipe(ends.as_mut_ptr()) }, 0);
    ends
}

fn put(end: i32, byte: u8) {
    // SAFETY: one byte is read from the variable.
    assert_eq!(unsafe { libc::write(end, (&raw const byte).cast(), 1) }, 1);
}

fn get(end: i32) -> i32 {
    let mut byte = 0u8;
    // SAFETY: one byte is written to the variable.
    match unsafe { libc::read(end, (&raw mut byte).cast(), 1) } {
        1 => i32::from(byte),
        _ => 255,
    }
}

#[test]
#[cfg(not(target_arch = "riscv64"))]
fn whose_tracer_ends_in_a_call_comes_home() {
    for calls_before in 0..3 {
        let [out, into] = pipe();
        let child = Child::new(|| get(out));
        child.asleep();
        let pid = child.0;
        // What a thread traces is let go when it ends.
        let tracer = std::thread::spawn(move || {
            let mut stops = Stops::new(pid, libc::PTRACE_O_TRACESYSGOOD);
            stops.stop_all().expect("stopping");
            let maps = maps::read(pid).expect("its mappings");
            let memory = Memory::open(pid).expect("its memory");
            let thread = stops.worker().expect("its thread");
            let calls = Syscalls::begin_anywhere(thread, &memory, &maps).expect("calls");
            for _ in 0..calls_before {
                calls.getpid().expect("getpid");
            }
            std::mem::forget((stops, calls));
        });
        tracer.join().expect("a tracer");
        child.asleep();
        assert_eq!(
            ptrace::status(pid, "SigBlk:").as_deref(),
            Some("0000000000000000")
        );
        put(into, 42);
        assert_eq!(child.exit(), 42);
    }
}

#[test]
fn calls_are_made_in_a_call_that_goes_on_afterwards() {
    let [out, into] = pipe();
    let child = Child::new(|| get(out));
    child.asleep();
    let (thread, stops) = child.stop();
    let before = thread.regs().expect("registers");
    let calls = Syscalls::begin(thread, child.place()).expect("calls");
    assert_eq!(calls.getpid().expect("getpid"), i64::from(child.0));
    // Nothing is mapped there, which is no error.
    assert!(calls.munmap(TargetAddr(1 << 40), 4096).expect("munmap"));
    assert!(!calls.munmap(TargetAddr(1), 4096).expect("munmap"));
    assert!(!calls.end_in_stop().expect("ending"));
    let after = thread.regs().expect("registers");
    assert_eq!(after.sp(), before.sp());
    stops.detach();
    child.asleep();
    put(into, 42);
    assert_eq!(child.exit(), 42);
}

/// A tracer in a program with other threads and children takes none of their ends away.
#[test]
fn children_of_other_threads_are_left_to_them() {
    let child = Child::new(|| 42);
    let other = std::thread::spawn(|| Report::any(true).map(|report| report.is_some()));
    let error = other.join().expect("no panic").expect_err("a report");
    assert_eq!(error.raw_os_error(), Some(libc::ECHILD));
    assert_eq!(child.exit(), 42);
}

/// A process that waits for a byte by a call that the kernel does not make again, and ends with 0 if it comes.
fn waits_for_events(out: i32) -> Child {
    Child::new(|| {
        // SAFETY: plain system calls on structures of ours.
        unsafe {
            libc::signal(libc::SIGUSR1, libc::SIG_IGN);
            let poll = libc::epoll_create1(0);
            let mut event = libc::epoll_event {
                events: libc::EPOLLIN as u32,
                u64: 7,
            };
            libc::epoll_ctl(poll, libc::EPOLL_CTL_ADD, out, &raw mut event);
            event.u64 = 0;
            let got = libc::epoll_pwait(poll, &raw mut event, 1, -1, std::ptr::null());
            let word = event.u64;
            match (got, word) {
                (1, 7) => 0,
                _ => 1,
            }
        }
    })
}

#[test]
fn calls_that_are_broken_off_are_made_again() {
    let [out, into] = pipe();
    let child = waits_for_events(out);
    for _ in 0..3 {
        child.asleep();
        // Stopping makes it again.
        child.stop().1.detach();
    }
    child.asleep();
    put(into, 1);
    assert_eq!(child.exit(), 0);
}

#[test]
fn calls_that_ignored_signals_break_off_are_made_again() {
    let [out, into] = pipe();
    let child = waits_for_events(out);
    child.asleep();
    ptrace::seize(child.0, 0).expect("tracing");
    for signal in [libc::SIGUSR1, libc::SIGCHLD, libc::SIGUSR1] {
        ptrace::send(child.0, signal).expect("a signal");
        let (thread, report) = child.stopped();
        assert_eq!((report.event(), report.signal()), (0, signal));
        let broken_off = thread.regs().expect("registers");
        assert_eq!(broken_off.result(), -i64::from(libc::EINTR));
        // It waits for ever.
        assert!(!stops::restart_ignored(thread, signal, false).expect("a thread"));
        thread.cont(signal).expect("going on");
        child.asleep();
    }
    put(into, 1);
    assert_eq!(child.exit(), 0);
}

static HANDLED: AtomicI32 = AtomicI32::new(0);

extern "C" fn count(_signal: i32) {
    HANDLED.fetch_add(1, Ordering::Relaxed);
}

fn handle(handler: extern "C" fn(i32), flags: i32) {
    // SAFETY: the structure is one that the call takes.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler as usize;
        action.sa_flags = flags;
        libc::sigaction(libc::SIGUSR1, &raw const action, std::ptr::null_mut());
    }
}

/// What a call gives that a signal breaks off: 100 and the number of handlers, else the byte that was read.
fn read_or_broken_off(out: i32, flags: i32) -> i32 {
    handle(count, flags);
    let got = get(out);
    let error = std::io::Error::last_os_error().raw_os_error();
    match got {
        255 if error == Some(libc::EINTR) => 100 + HANDLED.load(Ordering::Relaxed),
        _ => got + HANDLED.load(Ordering::Relaxed),
    }
}

#[test]
fn signals_that_come_while_calls_are_made_wait_and_break_off_what_they_would() {
    for (flags, expected) in [(0, 101), (libc::SA_RESTART, 43)] {
        let [out, into] = pipe();
        let child = Child::new(|| read_or_broken_off(out, flags));
        child.asleep();
        let (thread, stops) = child.stop();
        let before = thread.regs().expect("registers");
        let calls = Syscalls::begin(thread, child.place()).expect("calls");
        ptrace::send(child.0, libc::SIGUSR1).expect("a signal");
        let got = calls.getpid().expect("getpid");
        assert_eq!(got, i64::from(child.0));
        assert!(!calls.end_in_stop().expect("ending"));
        let after = thread.regs().expect("registers");
        assert_eq!((after.pc(), after.sp()), (before.pc(), before.sp()));
        stops.detach();
        put(into, 42);
        assert_eq!(child.exit(), expected);
    }
}

#[test]
fn calls_that_a_handler_has_broken_off_are_not_made_again() {
    let [out, into] = pipe();
    let child = Child::new(|| read_or_broken_off(out, 0));
    child.asleep();
    let (thread, stops) = child.stop();
    ptrace::send(child.0, libc::SIGUSR1).expect("a signal");
    thread.cont(0).expect("going on");
    let (thread, report) = child.stopped();
    assert_eq!((report.event(), report.signal()), (0, libc::SIGUSR1));
    let mut signal = libc::SIGUSR1;
    // The handler's return.
    loop {
        thread.cont_to_call(signal).expect("going on");
        signal = 0;
        child.stopped();
        let regs = thread.regs().expect("registers");
        if matches!(thread.call().expect("a call"), ptrace::Call::Entry { .. })
            && regs.system_call() == Some(libc::SYS_rt_sigreturn)
        {
            break;
        }
    }
    thread.interrupt().expect("interrupting");
    thread.cont(0).expect("going on");
    let (thread, report) = child.stopped();
    assert_eq!(report.event(), libc::PTRACE_EVENT_STOP);
    let before = thread.regs().expect("registers");
    assert_eq!(before.result(), -i64::from(libc::EINTR));
    stops::restart_call(thread).expect("nothing to do");
    let after = thread.regs().expect("registers");
    assert_eq!((after.pc(), after.result()), (before.pc(), before.result()));
    stops.detach();
    put(into, 42);
    assert_eq!(child.exit(), 101);
}

/// Something with branches, loads and stores, and calls.
#[inline(never)]
fn work(words: &mut [u64; 16], rounds: u64) -> u64 {
    let mut sum = 0u64;
    for round in 0..rounds {
        let index = (round % 16) as usize;
        if words[index].is_multiple_of(3) {
            words[index] = words[index].rotate_left(7) ^ round;
        } else {
            words[index] = words[index].wrapping_mul(0x9E37_79B9_7F4A_7C15) / 3;
        }
        sum = sum.wrapping_add(words[index] >> 5);
    }
    sum
}

#[test]
fn steps_do_what_instructions_do() {
    const ROUNDS: u64 = 1000;
    let expected = (work(&mut [5; 16], ROUNDS) % 199) as i32;
    let [out, into] = pipe();
    let child = Child::new(|| {
        get(out);
        (work(&mut [5; 16], ROUNDS) % 199) as i32
    });
    child.asleep();
    let (thread, stops) = child.stop();
    let scratch_page = child.scratch_page(thread);
    put(into, 1);
    let mut seen = std::collections::BTreeSet::new();
    let own = maps::read(child.0).expect("its mappings");
    let program = std::fs::read_link("/proc/self/exe").expect("this program");
    for _ in 0..1500 {
        let step = thread.step(scratch_page, 3).expect("a step");
        let (thread, report) = child.stopped();
        assert_eq!(report.event(), 0, "{report:?}");
        assert_eq!(report.signal(), libc::SIGTRAP);
        assert_eq!(step.end(thread).expect("its end"), SCRATCH_PAGE != 0);
        let pc = thread.regs().expect("registers").pc();
        let index = own.partition_point(|m| m.end <= pc);
        assert!(own[index].executable && own[index].start <= pc);
        if own[index].path == program {
            seen.insert(pc);
        }
    }
    assert!(seen.len() > 30, "only {} places were seen", seen.len());
    stops.detach();
    assert_eq!(child.exit(), expected);
}

extern "C" fn handler(_signal: i32) {
    // SAFETY: a system call.
    unsafe { libc::syscall(libc::SYS_getpid) };
}

#[test]
fn threads_stop_at_the_first_instruction_of_a_handler() {
    let [out, into] = pipe();
    let child = Child::new(|| {
        handle(handler, libc::SA_RESTART);
        get(out)
    });
    child.asleep();
    let (thread, stops) = child.stop();
    let before = thread.regs().expect("registers");
    ptrace::send(child.0, libc::SIGUSR1).expect("a signal");
    thread.cont(0).expect("going on");
    let (thread, report) = child.stopped();
    assert_eq!((report.event(), report.signal()), (0, libc::SIGUSR1));
    let at = thread.regs().expect("registers");
    thread.enter_handler(libc::SIGUSR1).expect("a handler");
    let (thread, report) = child.stopped();
    assert!(report.is_asked_for() && !report.is_group_stop());
    let inside = thread.regs().expect("registers");
    assert_eq!(inside.pc(), handler as extern "C" fn(i32) as usize as u64);
    let memory = child.memory();
    let word = |offset: u64| {
        memory
            .read_u64(TargetAddr(inside.sp() + offset))
            .expect("its stack")
    };
    assert_eq!(word(frame::SP), before.sp());
    let off = word(frame::PC).wrapping_sub(at.pc()).cast_signed();
    assert!(off == 0 || off == BROKEN_OFF, "{off}");
    // SAFETY: all-zero is a valid stack_t, and nothing is set.
    let alternate = unsafe {
        let mut stack: libc::stack_t = std::mem::zeroed();
        libc::sigaltstack(std::ptr::null(), &raw mut stack);
        (stack.ss_sp as u64, stack.ss_size as u64)
    };
    assert_ne!(alternate.1, 0, "Rust gives each thread one");
    assert_eq!((word(frame::STACK), word(frame::STACK_SIZE)), alternate);
    let maps = maps::read(child.0).expect("its mappings");
    let mut bytes = vec![0; 2 * frame::SIZE as usize];
    memory
        .read(TargetAddr(inside.sp()), &mut bytes)
        .expect("its stack");
    let is_frame_at = |at: usize| is_frame(&bytes[at..], &|back| back, &memory, &maps, &inside);
    assert!(is_frame_at(0));
    assert!(!is_frame_at(8));
    // The handler's return: where the stack pointer is then, and which call it is.
    let mut calls = Vec::new();
    for _ in 0..4 {
        thread.cont_to_call(0).expect("going on");
        child.stopped();
        if matches!(thread.call().expect("a call"), ptrace::Call::Entry { .. }) {
            let regs = thread.regs().expect("registers");
            calls.push((regs.system_call(), regs.sp()));
        }
    }
    assert_eq!(calls[0].0, Some(libc::SYS_getpid));
    let returned = (Some(libc::SYS_rt_sigreturn), inside.sp() + frame::RETURNED);
    assert_eq!(calls[1], returned);
    stops.detach();
    put(into, 9);
    assert_eq!(child.exit(), 9);
}

#[test]
fn control_blocks_are_found_again() {
    let [out, into] = pipe();
    let child = Child::new(|| get(out));
    child.asleep();
    let (thread, stops) = child.stop();
    assert_eq!(thread.block().expect("a block"), 0);
    thread.set_block(0x1234_5000, 0, 5).expect("a block");
    assert_eq!(thread.block().expect("a block"), 0x1234_5000);
    thread.set_block(0, 0, 5).expect("no block");
    assert_eq!(thread.block().expect("a block"), 0);
    stops.detach();
    put(into, 3);
    assert_eq!(child.exit(), 3);
}

#[test]
fn the_first_argument_of_a_call_is_known_while_it_is_made() {
    let [out, into] = pipe();
    let child = Child::new(|| {
        get(out);
        // SAFETY: the child of a copy of this process, which ends at once.
        unsafe {
            match libc::syscall(libc::SYS_clone, i64::from(libc::SIGCHLD), 0, 0, 0, 0) {
                0 => libc::_exit(0),
                _ => 6,
            }
        }
    });
    child.asleep();
    ptrace::seize(child.0, libc::PTRACE_O_TRACEFORK).expect("tracing");
    put(into, 1);
    let (thread, report) = child.stopped();
    assert_eq!(report.event(), libc::PTRACE_EVENT_FORK);
    let regs = thread.regs().expect("registers");
    assert_eq!(regs.system_call(), Some(libc::SYS_clone));
    let flags = regs.first_argument(thread).expect("an argument");
    assert_eq!(flags, libc::SIGCHLD as u64);
    let other = thread.event_message().expect("a child") as i32;
    let other = stops::wait_for(other, WAITING).expect("waiting");
    let other = other.and_then(Report::stopped).expect("the child");
    other.detach().expect("letting it go");
    thread.detach().expect("letting it go");
    assert_eq!(child.exit(), 6);
}
