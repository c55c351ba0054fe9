//! `hodo-ftrace` with call sites that are patched: functions call nobody until somebody wants to see them.

use core::hint::black_box;
use core::mem::MaybeUninit;
use core::ops::Range;
use core::sync::atomic::{AtomicUsize, Ordering};

use hodo_ftrace::dynamic::{self, ENTRY, Entry, GRAPH, IP_MODIFY, Module, Ops, Registers, Site};
use hodo_ftrace::{Call, EntryOps, GraphOps, set_entry, set_graph};

use crate::hart::NAME;
use crate::host::Kernel;
use crate::{hart, livepatch, paging, say, tracing};

/// How many functions there are.
const COUNT: usize = 3;
/// How many sites: those of `livepatch.rs` follow.
const SITE_COUNT: usize = COUNT + livepatch::COUNT;

unsafe extern "C" {
    safe fn add(x: i32, y: i32) -> i32;
    safe fn twice(x: i32) -> i32;
    safe fn four_times(x: i32) -> i32;
    static __start_patchable: [usize; SITE_COUNT];
    static __stop_patchable: [usize; 0];
}

static MODULE: Module = Module::new();
static SITES: [Site; SITE_COUNT] =
    // SAFETY: all zeros is no site, as it documents.
    unsafe { MaybeUninit::zeroed().assume_init() };

/// Makes the functions' first bytes sites. No other hart runs yet.
pub fn prepare() {
    // SAFETY: the linker has put the table there.
    let (table, end) = unsafe { (&__start_patchable, &raw const __stop_patchable) };
    assert_eq!(
        table.as_ptr_range().end,
        end.cast(),
        "there are other functions in the table"
    );
    let mut places = *table;
    places.sort_unstable();
    for (site, place) in SITES.iter().zip(places) {
        // SAFETY: it is code.
        let code = unsafe { core::slice::from_raw_parts(place as *const u8, 16) };
        let prepared = dynamic::prepare(code, true).expect("there is room for a call");
        let at = place + prepared.distance;
        let bytes = prepared.bytes.as_slice();
        // SAFETY: what is written does nothing.
        let written =
            bytes.is_empty() || unsafe { paging::write_code(at + prepared.offset, bytes) };
        assert!(written, "code cannot be written");
        site.set(at, &prepared, Entry::First);
    }
    dynamic::add(&MODULE, &SITES);
    assert!(dynamic::fix(&MODULE, &Kernel), "sites cannot be prepared");
}

/// Has a tracer see some of the functions.
pub fn select(bit: u64, wants: impl FnMut(&Site) -> bool) {
    assert_eq!(try_select(bit, wants), Ok(()));
}

/// The same; returns what has failed.
pub fn try_select(bit: u64, wants: impl FnMut(&Site) -> bool) -> Result<(), dynamic::Failure> {
    assert!(dynamic::select(&MODULE, bit, wants).is_none());
    match dynamic::apply(&Kernel) {
        (_, None) => Ok(()),
        (_, Some(failure)) => Err(failure),
    }
}

/// Calls the first function.
pub fn call_add(x: i32, y: i32) -> i32 {
    black_box(add as extern "C" fn(i32, i32) -> i32)(x, y)
}

/// The address of the site in a function.
pub fn site_in(function: &Range<usize>) -> usize {
    let found = SITES.iter().find(|site| function.contains(&site.address()));
    found.expect("it has a site").address()
}

/// Runs the functions; the result is known.
pub fn run() -> bool {
    black_box(four_times as extern "C" fn(i32) -> i32)(10) == 40
}

/// Calls of each function in each hart that the hook for entries has seen, and returns.
static ENTRIES: [[AtomicUsize; COUNT]; hart::COUNT] =
    [const { [const { AtomicUsize::new(0) }; COUNT] }; hart::COUNT];
static RETURNS: [AtomicUsize; hart::COUNT] = [const { AtomicUsize::new(0) }; hart::COUNT];

fn number(function: usize) -> Option<usize> {
    let mut sites = SITES[..COUNT].iter();
    sites.position(|site| site.address() == function)
}

extern "C" fn entered(_: usize, function: usize) {
    // The hook is also called for functions that call `_mcount`.
    if let Some(number) = number(function) {
        ENTRIES[hart::current().index()][number].fetch_add(1, Ordering::Relaxed);
    }
}

extern "C" fn returned(call: &mut Call) {
    if number(call.func).is_some() {
        RETURNS[hart::current().index()].fetch_add(1, Ordering::Relaxed);
    }
}

static HOOK: EntryOps = EntryOps {
    func: entered,
    flags: 0,
};
static HOOKS: GraphOps = GraphOps {
    entry: None,
    exit: Some(returned),
    flags: 0,
};

/// How often each hart has run the other version of `add`.
static REPLACED: [AtomicUsize; hart::COUNT] = [const { AtomicUsize::new(0) }; hart::COUNT];

/// The other version. It has the same result.
extern "C" fn other_add(x: i32, y: i32) -> i32 {
    REPLACED[hart::current().index()].fetch_add(1, Ordering::Relaxed);
    x.wrapping_add(y)
}

extern "C" fn redirect(_: usize, _: usize, _: &Ops, registers: Option<&mut Registers>) {
    if let Some(registers) = registers {
        registers.ip = other_add as *const () as usize;
    }
}

static REDIRECT: Ops = Ops {
    func: redirect,
    flags: IP_MODIFY,
    data: 0,
};

/// Replaces a function by another version, and takes it back.
fn replace() {
    let add = address(0);
    let number = dynamic::register(&REDIRECT).expect("there are few tracers");
    select(1 << number, |site| site.address() == add);
    assert!(run());
    let replaced = REPLACED[0].load(Ordering::Relaxed);
    tracing::wait_for(&REPLACED[1]);
    select(1 << number, |_| false);
    dynamic::unregister(number);
    assert!(run());
    assert_eq!(REPLACED[0].load(Ordering::Relaxed), replaced);
    say!(
        "sites: add was replaced by another version in both {NAME}s: {replaced} calls in the first"
    );
}

/// The address of a function's site.
pub fn address(number: usize) -> usize {
    SITES[number].address()
}

/// What the first hart has seen since it was asked last.
fn seen() -> [usize; COUNT] {
    ENTRIES[0]
        .each_ref()
        .map(|number| number.swap(0, Ordering::Relaxed))
}

/// Switches sites while both harts run the functions.
pub fn demonstrate() {
    const TIMES: usize = 50;
    assert!(run());
    set_entry(Some(&HOOK));
    assert!(run());
    assert_eq!(seen(), [0; COUNT]);
    say!("sites: all are off, nothing is seen");
    select(ENTRY, |_| true);
    assert!(run());
    let [adds, twices, fours] = seen();
    say!("sites: add {adds}, twice {twices}, four_times {fours}; calls in the second {NAME}, too");
    ENTRIES[1].iter().for_each(tracing::wait_for);
    let order = [
        add as *const () as usize,
        twice as *const () as usize,
        four_times as *const () as usize,
    ];
    assert!(order.is_sorted());
    select(ENTRY, |site| site.address() == address(1));
    assert!(run());
    say!("sites: only twice: {:?}", seen());
    set_graph(Some(&HOOKS));
    for _ in 0..TIMES {
        select(GRAPH, |_| true);
        assert!(run());
        select(ENTRY, |_| true);
        assert!(run());
        select(GRAPH, |_| false);
        assert!(run());
        select(ENTRY, |_| false);
        assert!(run());
    }
    say!(
        "sites: {TIMES} times on and off for entries and returns: {:?} entries, {} returns",
        seen(),
        RETURNS[0].load(Ordering::Relaxed)
    );
    select(GRAPH, |_| true);
    tracing::wait_for(&RETURNS[1]);
    select(GRAPH, |_| false);
    set_graph(None);
    set_entry(None);
    assert!(run());
    assert_eq!(seen(), [0; COUNT]);
    say!("sites: all are off again; returns were seen in the second {NAME}, too");
    replace();
}
