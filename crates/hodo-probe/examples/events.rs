//! Calls a function many times, with something in it, so that an emulator can count the instructions that this takes:
//! `events KIND CALLS`, where KIND is one of `KINDS`. `benches/riscv64.sh` and `benches/kprobes.sh` run it. It fails if
//! a probe has not been hit as often as the function was called.

use std::error::Error;
use std::ffi::c_void;
use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering};

use hodo_keys::{define_static_key_false, static_branch_unlikely};
use hodo_probe::{Engine, Execution, Registers, Request};

const KINDS: &str = "plain, key, alone, count, handler, return, boosted, out-of-line";

define_static_key_false!(KEY);

#[inline(never)]
fn plain(n: u64) -> u64 {
    n + 1
}

/// Like `plain`, with a branch on a disabled key.
#[inline(never)]
fn with_key(n: u64) -> u64 {
    if static_branch_unlikely!(KEY) {
        return n * 3;
    }
    n + 1
}

/// Has some instructions to probe.
#[inline(never)]
extern "C" fn probed(n: u64) -> u64 {
    black_box(n) + 1
}

static HITS: AtomicU64 = AtomicU64::new(0);

extern "C" fn handler(_: &mut Registers, data: *mut c_void) {
    black_box(data);
}

/// Counts without a lock: there is one thread.
extern "C" fn counting(_: &mut Registers, _: *mut c_void) {
    HITS.store(HITS.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
}

fn calls(count: u64, function: impl Fn(u64) -> u64) {
    for n in 0..count {
        black_box(function(black_box(n)));
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, kind, count] = arguments.as_slice() else {
        return Err(format!("events KIND CALLS; kinds: {KINDS}").into());
    };
    let count: u64 = count.parse()?;
    let at = Request::at(probed as *const () as u64);
    let request = match kind.as_str() {
        "plain" => {
            calls(count, plain);
            return Ok(());
        }
        "key" => {
            calls(count, with_key);
            return Ok(());
        }
        "alone" => None,
        "count" => Some(at.count()),
        "handler" => Some(at.before(handler)),
        "return" => Some(at.returning(handler)),
        "boosted" => Some(at.before(counting).execution(Execution::Boosted)),
        "out-of-line" => Some(at.before(counting).execution(Execution::OutOfLine)),
        _ => return Err(format!("{kind}: the kinds are {KINDS}").into()),
    };
    let probe = match request {
        // SAFETY: the handlers change nothing.
        Some(request) => Some(unsafe { Engine::new()?.register(&request) }?),
        None => None,
    };
    calls(count, |n| probed(n));
    if let Some(probe) = probe {
        let counts = matches!(kind.as_str(), "count" | "boosted" | "out-of-line");
        let hits = HITS.load(Ordering::Relaxed) + probe.count();
        if counts && hits != count {
            return Err(format!("{kind}: {count} calls, and {hits} hits").into());
        }
        println!("{}", probe.execution());
    }
    Ok(())
}
