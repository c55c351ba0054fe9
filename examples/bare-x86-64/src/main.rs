//! A kernel that traces and probes itself: two processors in 64-bit mode with four levels of page tables, in qemu.
//! `README.md` explains it.
#![no_std]
#![no_main]

extern crate alloc;

mod apic;
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
mod port;
#[path = "../../bare/probes.rs"]
mod probes;
mod protection;
mod timer;
#[path = "../../bare/tracing.rs"]
mod tracing;
mod trap;

use core::panic::PanicInfo;
use core::sync::atomic::Ordering;

use hart::HARTS;
use port::put;

/// What the first processor does.
pub extern "C" fn main_first() -> ! {
    port::prepare_serial();
    port::silence_old_interrupts();
    HARTS[0].begin();
    trap::prepare_table();
    trap::prepare();
    boot::prepare_other();
    paging::prepare();
    paging::turn_on();
    tracing::prepare();
    HARTS[0].prepare_tracing();
    say!("a kernel with two processors, 64-bit mode, four levels of page tables");
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

    assert!(functions::RIGHT.load(Ordering::Relaxed));
    say!("all results were right in the second processor, too");
    say!("done");
    port::power_off(true)
}

/// Starts the other processor, and waits until it works.
fn start_other() {
    apic::start(apic::SECOND, boot::page_number());
    tracing::wait_for(&functions::ROUNDS);
    hart::synchronize();
    assert_eq!(HARTS[1].fences.load(Ordering::Relaxed), 1);
    say!("the second processor works, and answers interrupts with a serializing instruction");
}

/// What the other processor does.
pub extern "C" fn main_other() -> ! {
    paging::turn_on();
    HARTS[1].begin();
    trap::prepare();
    HARTS[1].prepare_tracing();
    trap::turn_on_interrupts();
    timer::start();
    functions::work_for_ever()
}

#[panic_handler]
fn panic(info: &PanicInfo<'_>) -> ! {
    say!("{info}");
    port::power_off(false)
}
