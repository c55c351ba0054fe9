//! `hodo-ftrace` in this kernel.

use core::sync::atomic::{AtomicUsize, Ordering};

use hodo_ftrace::{
    Call, EntryOps, Environment, GraphOps, SHADOW_DISTANCE, Thread, set_entry, set_environment,
    set_graph,
};

use crate::hart::NAME;
use crate::{functions, hart, paging, say, timer};

struct Kernel;

// SAFETY: each hart has its own data, which a register points to: two instructions find it. Nothing in Rust is
// instrumented.
unsafe impl Environment for Kernel {
    #[inline]
    fn thread() -> Option<&'static Thread> {
        // SAFETY: this hart's own.
        Some(unsafe { &*hart::current().traced.get() })
    }

    fn thread_offset() -> Option<isize> {
        hart::traced_offset()
    }

    fn prepare(_: &'static Thread, _: usize) -> bool {
        // All stacks have a shadow, and all harts a list of calls, before anything is traced. This is another stack.
        false
    }

    fn frame_mismatch(call: &Call, expected: usize, found: usize, abort: bool) {
        say!(
            "{:#x} has returned with the frame pointer {found:#x}, not {expected:#x}",
            call.func
        );
        assert!(!abort, "a frame pointer is wrong");
    }
}

set_environment!(Kernel);

/// What hooks have seen in each hart; and of that, the timer's function.
static ENTRIES: [AtomicUsize; hart::COUNT] = [const { AtomicUsize::new(0) }; hart::COUNT];
static TICKS: [AtomicUsize; hart::COUNT] = [const { AtomicUsize::new(0) }; hart::COUNT];

extern "C" fn entered(_: usize, function: usize) {
    let hart = hart::current().index();
    ENTRIES[hart].fetch_add(1, Ordering::Relaxed);
    if functions::name(function) == "timer_tick" {
        TICKS[hart].fetch_add(1, Ordering::Relaxed);
    }
}

/// What the graph hooks of the first hart have seen: function, depth, and whether it was a return.
const MOST: usize = 64;
static EVENTS: [[AtomicUsize; 3]; MOST] = [const { [const { AtomicUsize::new(0) }; 3] }; MOST];
static COUNT: AtomicUsize = AtomicUsize::new(0);
/// Returns in the second hart, and returns of the timer's function in the first.
static RETURNS: [AtomicUsize; hart::COUNT] = [const { AtomicUsize::new(0) }; hart::COUNT];

fn record(call: &Call, returns: bool) {
    let hart = hart::current().index();
    // Interrupts come at any time. They are counted, so that the rest is always the same.
    if hart != 0 || functions::name(call.func) == "timer_tick" {
        RETURNS[hart].fetch_add(usize::from(returns), Ordering::Relaxed);
        return;
    }
    let at = COUNT.fetch_add(1, Ordering::Relaxed);
    if let Some(event) = EVENTS.get(at) {
        event[0].store(call.func, Ordering::Relaxed);
        event[1].store(call.depth, Ordering::Relaxed);
        event[2].store(usize::from(returns), Ordering::Relaxed);
    }
}

extern "C" fn graph_entered(call: &mut Call) -> i32 {
    record(call, false);
    1
}

extern "C" fn graph_returned(call: &mut Call) {
    record(call, true);
}

static ENTRY: EntryOps = EntryOps {
    func: entered,
    flags: 0,
};
static GRAPH: GraphOps = GraphOps {
    entry: Some(graph_entered),
    exit: Some(graph_returned),
    flags: 0,
};

/// Maps the shadow of the stacks. Before other harts start.
pub fn prepare() {
    paging::map_shadow(SHADOW_DISTANCE);
}

/// Waits until a number that another hart or an interrupt changes has grown by some.
pub fn wait_for(number: &AtomicUsize) {
    let until = number.load(Ordering::Relaxed) + 10;
    while number.load(Ordering::Relaxed) < until {
        core::hint::spin_loop();
    }
}

/// Traces entries, and then entries and returns, while the other hart runs the same functions.
pub fn demonstrate() {
    let results = || functions::check_results();
    assert!(results());
    assert!(
        ENTRIES
            .iter()
            .all(|entries| entries.load(Ordering::Relaxed) == 0)
    );
    set_entry(Some(&ENTRY));
    let before = ENTRIES[0].load(Ordering::Relaxed) - TICKS[0].load(Ordering::Relaxed);
    assert!(results());
    let seen = ENTRIES[0].load(Ordering::Relaxed) - TICKS[0].load(Ordering::Relaxed) - before;
    say!("mcount: {seen} calls of traced functions in the first {NAME}");
    wait_for(&ENTRIES[1]);
    wait_for(&TICKS[0]);
    wait_for(&TICKS[1]);
    say!("mcount: calls in the second {NAME}, and in the timer interrupts of both");
    set_entry(None);

    set_graph(Some(&GRAPH));
    let sum = functions::call_outer(3);
    assert_eq!(functions::call_both(1.5), (3.0, 4.5));
    wait_for(&RETURNS[0]);
    wait_for(&RETURNS[1]);
    set_graph(None);
    say!("graph: outer(3) = {sum}, both(1.5) = (3, 4.5)");
    print_graph();
    say!("graph: returns in the second {NAME}, and in timer interrupts");
    // Calls of these hooks still return through the tracer.
    timer::wait(2);
    let seen = ENTRIES[0].load(Ordering::Relaxed);
    assert!(results());
    assert_eq!(ENTRIES[0].load(Ordering::Relaxed), seen);
    say!("ftrace: off again");
}

fn print_graph() {
    let count = COUNT.load(Ordering::Relaxed).min(MOST);
    let event = |at: usize| {
        EVENTS[at]
            .each_ref()
            .map(|word| word.load(Ordering::Relaxed))
    };
    let mut at = 0;
    while at < count {
        let [function, depth, returns] = event(at);
        let name = functions::name(function);
        let width = 2 + depth * 2;
        if returns != 0 {
            say!("{:width$}}} /* {name} */", "");
        } else if at + 1 < count && event(at + 1) == [function, depth, 1] {
            say!("{:width$}{name}();", "");
            at += 1;
        } else {
            say!("{:width$}{name}() {{", "");
        }
        at += 1;
    }
}
