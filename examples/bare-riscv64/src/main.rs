//! A kernel that traces and probes itself: two harts in supervisor mode with Sv39, on qemu's machine `virt`.
//! `README.md` explains it.
#![no_std]
#![no_main]

extern crate alloc;

mod boot;
#[path = "../../bare/call_sites.rs"]
mod call_sites;
#[path = "../../bare/console.rs"]
mod console;
#[path = "../../bare/functions.rs"]
mod functions;
mod hart;
#[path = "../../bare/heap.rs"]
mod heap;
#[path = "../../bare/host.rs"]
mod host;
#[path = "../../bare/keys.rs"]
mod keys;
#[path = "../../bare/layout.rs"]
mod layout;
#[path = "../../bare/livepatch.rs"]
mod livepatch;
mod paging;
#[path = "../../bare/patching.rs"]
mod patching;
#[path = "../../bare/probes.rs"]
mod probes;
mod protection;
mod sbi;
mod timer;
#[path = "../../bare/tracing.rs"]
mod tracing;
mod trap;

use core::panic::PanicInfo;
use core::sync::atomic::Ordering;

use hart::HARTS;
use sbi::put;

/// What the first hart does. `number` is the firmware's number of it.
pub extern "C" fn main_first(number: usize) -> ! {
    trap::prepare();
    paging::prepare();
    paging::turn_on();
    HARTS[0].number.store(number, Ordering::Relaxed);
    HARTS[1].number.store(1 - number, Ordering::Relaxed);
    tracing::prepare();
    HARTS[0].prepare_tracing();
    say!("a kernel with two harts, supervisor mode, Sv39");
    protection::demonstrate();
    patching::prepare();
    trap::turn_on_interrupts();
    start_other();
    timer::start();
    timer::wait(3);
    say!("timer interrupts in the first hart");

    tracing::demonstrate();
    patching::demonstrate();
    livepatch::demonstrate();
    keys::demonstrate();
    probes::demonstrate();
    call_sites::demonstrate();

    assert!(functions::RIGHT.load(Ordering::Relaxed));
    say!("all results were right in the second hart, too");
    say!("done");
    sbi::power_off()
}

/// Starts the other hart, and waits until it works.
fn start_other() {
    let start = boot::start_other as *const () as usize;
    let word = (&raw const HARTS[1]).addr();
    let error = sbi::start_hart(HARTS[1].number.load(Ordering::Relaxed), start, word);
    assert_eq!(error, 0, "the firmware cannot start the second hart");
    tracing::wait_for(&functions::ROUNDS);
    hart::synchronize();
    assert_eq!(HARTS[1].fences.load(Ordering::Relaxed), 1);
    say!("the second hart works, and answers interrupts with fence.i");
}

/// What the other hart does.
pub extern "C" fn main_other() -> ! {
    trap::prepare();
    paging::turn_on();
    HARTS[1].prepare_tracing();
    trap::turn_on_interrupts();
    timer::start();
    functions::work_for_ever()
}

#[panic_handler]
fn panic(info: &PanicInfo<'_>) -> ! {
    say!("{info}");
    sbi::power_off()
}
