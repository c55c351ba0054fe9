//! A kernel that traces and probes itself: two processors at EL1 with three levels of page tables, on qemu's machine
//! `virt`. `README.md` explains it.
#![no_std]
#![no_main]

extern crate alloc;

mod boot;
#[path = "../../bare/call_sites.rs"]
mod call_sites;
#[path = "../../bare/console.rs"]
mod console;
mod devices;
#[path = "../../bare/functions.rs"]
mod functions;
mod guarded;
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
mod psci;
mod timer;
#[path = "../../bare/tracing.rs"]
mod tracing;
mod trap;

use core::panic::PanicInfo;
use core::sync::atomic::Ordering;

use devices::put;
use hart::HARTS;

/// What the first processor does.
pub extern "C" fn main_first() -> ! {
    trap::prepare();
    paging::prepare();
    paging::turn_on();
    hart::sign();
    devices::prepare_interrupts();
    tracing::prepare();
    HARTS[0].prepare_tracing();
    say!("a kernel with two processors, EL1, three levels of page tables");
    protection::demonstrate();
    patching::prepare();
    trap::turn_on_interrupts();
    start_other();
    timer::start();
    timer::wait(3);
    say!("timer interrupts in the first processor");

    tracing::demonstrate();
    patching::demonstrate();
    livepatch::demonstrate();
    keys::demonstrate();
    probes::demonstrate();
    call_sites::demonstrate();
    guarded::demonstrate();

    assert!(functions::RIGHT.load(Ordering::Relaxed));
    say!("all results were right in the second processor, too");
    say!("done");
    devices::power_off(0)
}

/// Starts the other processor, and waits until it works.
fn start_other() {
    let start = boot::start_other as *const () as usize;
    let word = (&raw const HARTS[1]).addr();
    let error = psci::start(1, start, word);
    assert_eq!(error, 0, "the firmware cannot start the second processor");
    tracing::wait_for(&functions::ROUNDS);
    hart::synchronize();
    assert_eq!(HARTS[1].fences.load(Ordering::Relaxed), 1);
    say!("the second processor works, and answers interrupts with isb");
}

/// What the other processor does.
pub extern "C" fn main_other() -> ! {
    trap::prepare();
    paging::turn_on();
    hart::sign();
    HARTS[1].prepare_tracing();
    trap::turn_on_interrupts();
    timer::start();
    functions::work_for_ever()
}

#[panic_handler]
fn panic(info: &PanicInfo<'_>) -> ! {
    say!("{info}");
    devices::power_off(1)
}
