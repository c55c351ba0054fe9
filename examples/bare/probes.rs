//! `hodo-probe` in this kernel: probes on the traced functions and in the handler of timer interrupts, while both harts
//! run them.

use alloc::vec::Vec;
use core::ffi::c_void;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use hodo_probe::environment::{CallSites, Environment, Errno, Threads, Window, set_environment};
use hodo_probe::{Engine, Execution, Probe, Registers, Request};

use crate::hart::NAME;
use crate::host::Kernel;
use crate::{call_sites, functions, hart, paging, say, timer, tracing};

// SAFETY: the thread pointer of each hart points to its block of thread-local variables. Each hart has one thread.
unsafe impl Threads for Kernel {
    fn current(&self) -> u32 {
        hart::current().index() as u32 + 1
    }

    fn exists(&self, _: u32) -> bool {
        true
    }

    fn most(&self) -> usize {
        hart::COUNT
    }

    fn barrier(&self) {
        hart::synchronize();
    }
}

impl Environment for Kernel {
    fn shadow(&self) -> Result<Window, Errno> {
        /// Not that of `hodo-ftrace`, which has a shadow, too.
        const DISTANCE: usize = 0x20_0000_0840;
        paging::map_shadow(DISTANCE);
        let stacks = paging::layout().stacks;
        Ok(Window {
            low: stacks.start as u64,
            top: stacks.end as u64,
            distance: DISTANCE as u64,
        })
    }

    fn call_sites(&self) -> Option<&'static dyn CallSites> {
        Some(&call_sites::Tracer)
    }
}

static KERNEL: &dyn Environment = &Kernel;

/// Hits, for each hart; and sums of what handlers have seen in the first.
struct Seen {
    hits: [AtomicUsize; hart::COUNT],
    sum: AtomicU64,
}

impl Seen {
    const fn new() -> Self {
        Self {
            hits: [const { AtomicUsize::new(0) }; hart::COUNT],
            sum: AtomicU64::new(0),
        }
    }

    fn add(&self, value: u64) {
        let hart = hart::current().index();
        self.hits[hart].fetch_add(1, Ordering::Relaxed);
        if hart == 0 {
            self.sum.fetch_add(value, Ordering::Relaxed);
        }
    }

    fn first(&self) -> usize {
        self.hits[0].load(Ordering::Relaxed)
    }

    fn reset(&self) {
        let numbers = self.hits.iter();
        numbers.for_each(|number| number.store(0, Ordering::Relaxed));
        self.sum.store(0, Ordering::Relaxed);
    }
}

static BEFORE: Seen = Seen::new();
static AFTER: Seen = Seen::new();
static RETURNED: Seen = Seen::new();

/// The value of a C `int`, whatever the upper half of its register is.
fn extended(word: u64) -> u64 {
    i64::from(word as i32) as u64
}

extern "C" fn before(registers: &mut Registers, _: *mut c_void) {
    BEFORE.add(registers.argument(0).map_or(0, extended));
}

extern "C" fn after(registers: &mut Registers, _: *mut c_void) {
    AFTER.add(registers.pc);
}

extern "C" fn returned(registers: &mut Registers, _: *mut c_void) {
    RETURNED.add(extended(hart::result(registers)));
}

extern "C" fn answer(registers: &mut Registers, _: *mut c_void) {
    // SAFETY: it is called at the function's first instruction.
    unsafe { registers.return_now(77) };
}

extern "C" fn fault(_: &mut Registers, _: *mut c_void) {
    let nowhere = core::hint::black_box(8_usize) as *const u64;
    // SAFETY: nothing is there: it faults, and the engine handles that.
    unsafe { nowhere.read_volatile() };
}

/// A probe at a function's first instruction.
fn at(name: &str) -> Request {
    let range = functions::range(name);
    Request::at(range.start as u64).function(range.start as u64..range.end as u64)
}

/// Registers a probe.
pub fn set(engine: Engine, request: &Request) -> Probe {
    // SAFETY: the handlers above are sound at any instruction of the traced functions.
    match unsafe { engine.register(request) } {
        Ok(probe) => probe,
        Err(refusal) => panic!("a probe was refused: {refusal}"),
    }
}

/// Sets probes, and says what they have seen.
pub fn demonstrate() {
    set_environment(&KERNEL);
    let engine = Engine::new().expect("nothing is missing");
    executions(engine);
    returns(engine);
    interrupts(engine);
    handlers(engine);
    everywhere(engine);
    let (_, _, both) = paging::count();
    assert_eq!(both, 0);
    say!("pages that can be written and executed: {both}");
}

/// The same probe in each way of executing the instruction.
fn executions(engine: Engine) {
    let ways = [
        Execution::OutOfLine,
        Execution::Boosted,
        Execution::Optimized,
    ];
    for way in ways {
        BEFORE.reset();
        let probe = set(engine, &at("leaf").before(before).execution(way));
        assert_eq!(probe.execution(), way);
        assert!(functions::check_results());
        let (hits, sum) = (BEFORE.first(), BEFORE.sum.load(Ordering::Relaxed));
        tracing::wait_for(&BEFORE.hits[1]);
        drop(probe);
        assert!(functions::check_results());
        assert_eq!(BEFORE.first(), hits);
        say!("probe: leaf {way}: {hits} hits, sum of x {sum}; hits in the second {NAME}, too");
    }
    AFTER.reset();
    let request = at("leaf").before(before).after(after);
    let probe = set(engine, &request);
    assert!(functions::check_results());
    say!(
        "probe: after leaf's first instruction: {} hits",
        AFTER.first()
    );
    tracing::wait_for(&AFTER.hits[1]);
    drop(probe);
    simulated(engine);
}

/// A probe on the first instruction of a function that can be simulated: each has a call.
fn simulated(engine: Engine) {
    BEFORE.reset();
    let range = functions::range("outer");
    let way = Execution::Simulated;
    let probe = instructions(range.clone()).find_map(|addr| {
        let request = Request::at(addr as u64)
            .function(range.start as u64..range.end as u64)
            .before(before)
            .execution(way);
        // SAFETY: as in `set`.
        unsafe { engine.register(&request) }.ok()
    });
    let probe = probe.expect("a call can be simulated");
    assert_eq!(probe.execution(), way);
    assert!(functions::check_results());
    say!(
        "probe: in outer {way}: {} hits; hits in the second {NAME}, too",
        BEFORE.first()
    );
    tracing::wait_for(&BEFORE.hits[1]);
}

/// The addresses of a function's instructions.
fn instructions(range: core::ops::Range<usize>) -> impl Iterator<Item = usize> {
    let mut next = range.start;
    core::iter::from_fn(move || {
        let addr = next;
        if addr >= range.end {
            return None;
        }
        next += hart::instruction_length(addr);
        Some(addr)
    })
}

/// Return probes, on a recursive function and on one that both harts run.
fn returns(engine: Engine) {
    RETURNED.reset();
    let probe = set(engine, &at("fibonacci").returning(returned));
    assert_eq!(functions::call_fibonacci(6), 8);
    say!(
        "probe: returns of fibonacci: {}, sum of results {}",
        RETURNED.first(),
        RETURNED.sum.load(Ordering::Relaxed)
    );
    drop(probe);
    RETURNED.reset();
    let probe = set(engine, &at("outer").returning(returned));
    assert!(functions::check_results());
    say!(
        "probe: returns of outer: {}, sum of results {}; returns in the second {NAME}, too",
        RETURNED.first(),
        RETURNED.sum.load(Ordering::Relaxed)
    );
    tracing::wait_for(&RETURNED.hits[1]);
    assert_eq!(probe.missed(), 0);
}

/// Probes in the handler of timer interrupts, of each kind.
fn interrupts(engine: Engine) {
    for way in [
        Execution::OutOfLine,
        Execution::Boosted,
        Execution::Optimized,
    ] {
        BEFORE.reset();
        let probe = set(engine, &at("timer_tick").before(before).execution(way));
        tracing::wait_for(&BEFORE.hits[0]);
        tracing::wait_for(&BEFORE.hits[1]);
        drop(probe);
        say!("probe: timer interrupts {way}: hits in both {NAME}s");
    }
    RETURNED.reset();
    let probe = set(engine, &at("timer_tick").returning(returned));
    tracing::wait_for(&RETURNED.hits[0]);
    tracing::wait_for(&RETURNED.hits[1]);
    drop(probe);
    say!("probe: returns of the timer's function in both {NAME}s");
}

/// Handlers that change what the program does, and that fault.
fn handlers(engine: Engine) {
    for way in [Execution::Boosted, Execution::Optimized] {
        let probe = set(engine, &at("fibonacci").before(answer).execution(way));
        let result = functions::call_fibonacci(6);
        drop(probe);
        say!("probe: a handler {way} makes fibonacci(6) return {result}");
        let probe = set(engine, &at("fibonacci").before(fault).execution(way));
        assert_eq!(functions::call_fibonacci(6), 8);
        say!(
            "probe: a handler {way} that faults: {} fault, the result is right",
            probe.faults()
        );
    }
}

/// Probes on all instructions of all traced functions, again and again, while both harts run them.
fn everywhere(engine: Engine) {
    const ROUNDS: usize = 20;
    let mut requests = Vec::new();
    for (name, range) in functions::ranges() {
        for addr in instructions(range.clone()) {
            let request = Request::at(addr as u64)
                .function(range.start as u64..range.end as u64)
                .before(before);
            requests.push((name, request));
        }
    }
    let only: Vec<Request> = requests
        .iter()
        .map(|(_, request)| request.clone())
        .collect();
    for _ in 0..ROUNDS {
        BEFORE.reset();
        // SAFETY: as in `set`.
        let results = unsafe { engine.register_all(&only) };
        for ((name, request), result) in requests.iter().zip(&results) {
            if let Err(refusal) = result {
                panic!("an instruction of {name} is refused: {refusal}, {request:?}");
            }
        }
        let probes: Vec<Probe> = results.into_iter().flatten().collect();
        assert!(functions::check_results());
        let ticks = timer::ticks();
        while timer::ticks() == ticks {
            core::hint::spin_loop();
        }
        tracing::wait_for(&BEFORE.hits[1]);
        assert!(functions::RIGHT.load(Ordering::Relaxed));
        engine.unregister_all(probes).expect("code can be written");
        assert!(functions::check_results());
    }
    say!(
        "probe: all instructions of the traced functions at once, {ROUNDS} times, while both {NAME}s run them"
    );
}
