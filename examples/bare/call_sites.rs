//! `hodo-probe` at the call sites of `hodo-ftrace`: a probe is called by the function tracer, and nothing is written.

use alloc::format;
use alloc::string::String;
use core::ffi::c_void;
use core::ops::Range;
use core::sync::atomic::{AtomicUsize, Ordering};

use hodo_ftrace::VECTORS;
use hodo_ftrace::dynamic::{self, ENTRY, EVERY_CALL, Ops, SAVE_REGISTERS};
use hodo_probe::environment::{CallSite, CallSites};
use hodo_probe::{Engine, Execution, Registers, Request, traps};

use crate::hart::NAME;
use crate::{hart, patching, probes, say, tracing};

/// What `hodo-probe` knows of `hodo-ftrace`.
pub struct Tracer;

static OPS: Ops = Ops {
    func: called,
    flags: VECTORS | SAVE_REGISTERS | EVERY_CALL,
    data: 0,
};

extern "C" fn called(ip: usize, _: usize, _: &Ops, registers: Option<&mut dynamic::Registers>) {
    if let Some(at_site) = registers {
        hart::with_probed(at_site, |probed| traps::called(ip as u64, probed));
    }
}

// SAFETY: (1) all sites are made before the other hart starts; (2) the tracer has the flag by which it misses no call.
unsafe impl CallSites for Tracer {
    fn find(&self, code: Range<u64>) -> Option<CallSite> {
        let found = dynamic::reserved(code.start as usize..code.end as usize)?;
        Some(CallSite {
            code: found.code.start as u64..found.code.end as u64,
            has_registers: found.has_registers,
            is_first: found.is_first,
        })
    }

    fn set(&self, sites: &[u64], on: bool) -> Result<(), String> {
        let number = dynamic::number(&OPS).or_else(|| dynamic::register(&OPS));
        let bit = 1 << number.ok_or("there are too many tracers")?;
        patching::try_select(bit, |site| match sites.contains(&(site.address() as u64)) {
            true => on,
            false => site.wanted() & bit != 0,
        })
        .map_err(|failure| format!("{failure:?}"))
    }
}

/// Hits of the probe in each hart, and the sum of what it has seen in the first.
static HITS: [AtomicUsize; 2] = [const { AtomicUsize::new(0) }; 2];
static SUM: AtomicUsize = AtomicUsize::new(0);
static RETURNS: AtomicUsize = AtomicUsize::new(0);

extern "C" fn before(registers: &mut Registers, _: *mut c_void) {
    let number = hart::current().index();
    HITS[number].fetch_add(1, Ordering::Relaxed);
    if number == 0 {
        SUM.fetch_add(hart::argument(registers) as usize, Ordering::Relaxed);
    }
}

extern "C" fn returned(registers: &mut Registers, _: *mut c_void) {
    if hart::current().index() == 0 {
        RETURNS.fetch_add(hart::result(registers) as usize, Ordering::Relaxed);
    }
}

/// Calls of `answer` in the second hart.
static OTHERS: AtomicUsize = AtomicUsize::new(0);

extern "C" fn answer(registers: &mut Registers, _: *mut c_void) {
    // The other hart checks its results.
    if hart::current().index() == 0 {
        // SAFETY: it is called at the function's first instruction.
        unsafe { registers.return_now(77) };
    } else {
        OTHERS.fetch_add(1, Ordering::Relaxed);
    }
}

/// Probes at call sites, which are switched for other tracers meanwhile.
pub fn demonstrate() {
    const TIMES: usize = 50;
    let engine = Engine::new().expect("nothing is missing");
    let add = patching::address(0) as u64;
    let inside = Request::at(add + 4).function(add..add + 16).before(before);
    // SAFETY: the handler only counts.
    let refused = unsafe { engine.register(&inside) }.is_err();
    assert!(refused, "it is in a call site");
    let request = Request::at(add).before(before).returning(returned);
    let probe = probes::set(engine, &request);
    assert_eq!(probe.execution(), Execution::CallSite);
    for _ in 0..TIMES {
        patching::select(ENTRY, |_| true);
        assert!(patching::run());
        patching::select(ENTRY, |_| false);
        assert!(patching::run());
    }
    let seen = [&HITS[0], &SUM, &RETURNS].map(|number| number.load(Ordering::Relaxed));
    say!(
        "call sites: a probe on add {}, while it is switched for others {TIMES} times: {} hits, sum of x {}, of results {}",
        probe.execution(),
        seen[0],
        seen[1],
        seen[2]
    );
    tracing::wait_for(&HITS[1]);
    assert_eq!((probe.missed(), probe.missed_returns()), (0, 0));
    drop(probe);
    assert!(patching::run());
    assert_eq!(HITS[0].load(Ordering::Relaxed), seen[0]);
    let probe = probes::set(engine, &Request::at(add).before(answer));
    let result = patching::call_add(1, 2);
    tracing::wait_for(&OTHERS);
    drop(probe);
    assert_eq!(patching::call_add(1, 2), 3);
    say!(
        "call sites: a handler makes add(1, 2) return {result}; both probes had hits in the second {NAME}, too"
    );
}
