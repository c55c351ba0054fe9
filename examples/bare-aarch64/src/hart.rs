//! The processors, and what each of them has. What is shared with other machines calls a processor a *hart*, by
//! RISC-V's word.

use core::arch::asm;
use core::cell::UnsafeCell;
use core::mem::offset_of;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering, fence};

use hodo_ftrace::{Open, Thread, dynamic};
use hodo_probe::Registers;

use crate::devices;

/// What a processor is called.
pub const NAME: &str = "processor";
/// How many processors there are: qemu's `-smp 2`.
pub const COUNT: usize = 2;
/// Bytes of a processor's stack. `kernel.ld` has the same number.
pub const STACK: usize = 65536;
/// How many traced calls may be open in a processor.
const DEPTH: usize = 64;

/// A processor. `tpidr_el0` has the address of its own.
#[repr(C, align(64))]
pub struct Hart {
    /// What belongs to the thread pointer itself (ELF for the Arm 64-bit Architecture, "Thread local storage").
    _reserved: [u64; 2],
    /// Where thread-local variables are: after that.
    variables: UnsafeCell<[u64; 32]>,
    /// The end of its stack. `boot.rs` uses it.
    pub stack_top: AtomicUsize,
    /// Whether it takes interrupts.
    pub online: AtomicBool,
    /// 1 if another processor waits until this one has executed `isb`.
    fence: AtomicU32,
    /// How often it has done that for another one.
    pub fences: AtomicUsize,
    /// Where it continues if it faults, or 0; and the class of such an exception, and its address.
    pub resume: AtomicUsize,
    pub cause: AtomicUsize,
    pub address: AtomicUsize,
    /// Timer interrupts. A C function counts them.
    pub ticks: UnsafeCell<u64>,
    /// What `hodo-ftrace` keeps.
    pub traced: UnsafeCell<Thread>,
    calls: UnsafeCell<[Open; DEPTH]>,
}

// SAFETY: cells are used by their own processor only; all else is atomic.
unsafe impl Sync for Hart {}

/// All processors.
pub static HARTS: [Hart; COUNT] =
    // SAFETY: all zeros are a processor with nothing in it; so are `Thread` and `Open`, as they document.
    unsafe { core::mem::MaybeUninit::zeroed().assume_init() };

/// The running processor.
pub fn current() -> &'static Hart {
    let hart: *const Hart;
    // SAFETY: `boot.rs` has set it.
    unsafe {
        asm!("mrs {}, tpidr_el0", out(reg) hart, options(nomem, nostack, preserves_flags));
        &*hart
    }
}

/// The result of a C function that has just returned.
pub fn result(registers: &Registers) -> u64 {
    registers.x[0]
}

/// The first argument of a C function that has just been entered, if it is an `int`.
pub fn argument(registers: &Registers) -> u64 {
    registers.x[0] & 0xFFFF_FFFF
}

/// Does something with the registers at a call site, in the form that probes have them.
pub fn with_probed(at_site: &mut dynamic::Registers, action: impl FnOnce(&mut Registers)) {
    let mut probed = Registers {
        x: at_site.x.map(|word| word as u64),
        sp: at_site.sp as u64,
        pc: at_site.ip as u64,
        pstate: 0,
    };
    action(&mut probed);
    at_site.x = probed.x.map(|word| word as usize);
    at_site.ip = probed.pc as usize;
}

/// The length of the instruction at an address of code. All have the same.
pub fn instruction_length(_: usize) -> usize {
    4
}

/// How far what `hodo-ftrace` keeps is from the thread pointer.
pub fn traced_offset() -> Option<isize> {
    Some(offset_of!(Hart, traced) as isize)
}

/// Lets return addresses be signed: with keys that are this kernel's own, and are no secret.
///
/// Only code that never returns may call the function, as addresses that were signed before are not valid after it.
pub fn sign() {
    const KEY_A: u64 = 1 << 31;
    const KEY_B: u64 = 1 << 30;
    const BRANCH_TARGETS: u64 = 0xF;
    const SIGNATURES: u64 = 0xFF0;
    let (instructions, features): (u64, u64);
    // SAFETY: it only reads.
    unsafe {
        asm!(
            "mrs {instructions}, id_aa64isar1_el1",
            "mrs {features}, id_aa64pfr1_el1",
            instructions = out(reg) instructions,
            features = out(reg) features,
            options(nomem, nostack, preserves_flags),
        );
    }
    assert!(
        instructions & SIGNATURES != 0 && features & BRANCH_TARGETS != 0,
        "the processor has no signatures or no guarded pages: give qemu -cpu max,pauth-impdef=on"
    );
    // SAFETY: see above. (The registers' names need no features of the target by their numbers.)
    unsafe {
        asm!(
            "msr s3_0_c2_c1_0, {key}", // APIAKeyLo_EL1
            "msr s3_0_c2_c1_1, {key}", // APIAKeyHi_EL1
            "msr s3_0_c2_c1_2, {other}", // APIBKeyLo_EL1
            "msr s3_0_c2_c1_3, {other}", // APIBKeyHi_EL1
            "mrs {value}, sctlr_el1",
            "orr {value}, {value}, {on}",
            "msr sctlr_el1, {value}",
            "isb",
            key = in(reg) 0x0123_4567_89AB_CDEF_u64,
            other = in(reg) 0xFEDC_BA98_7654_3210_u64,
            value = out(reg) _,
            on = in(reg) KEY_A | KEY_B,
            options(nostack, preserves_flags),
        );
    }
}

impl Hart {
    /// Its index in [`HARTS`]. The interrupt controller and the firmware know it by the same number.
    pub fn index(&self) -> usize {
        (core::ptr::from_ref(self).addr() - (&raw const HARTS).addr()) / size_of::<Self>()
    }

    /// Its stack: from after the page that is not mapped.
    pub fn stack(&self) -> core::ops::Range<usize> {
        let each = STACK + 4096;
        let top = crate::paging::layout().stacks.start + (self.index() + 1) * each;
        top - STACK..top
    }

    /// Prepares what `hodo-ftrace` needs of it. The processor itself calls this, before anything is traced.
    pub fn prepare_tracing(&'static self) {
        let stack = self.stack();
        // SAFETY: this processor uses it. The list is never used otherwise, and the shadow of its stack is mapped
        // (`paging.rs`).
        unsafe {
            let traced = &*self.traced.get();
            traced.set_open_calls(self.calls.get().cast(), DEPTH);
            traced.set_shadow(stack.start, stack.end);
        }
    }

    /// Does what another processor waits for, if one does. Called at an interrupt, and while this one waits itself.
    pub fn answer(&self) {
        if self.fence.load(Ordering::Acquire) != 0 {
            fetch_again();
            self.fences.fetch_add(1, Ordering::Relaxed);
            self.fence.store(0, Ordering::Release);
        }
    }
}

/// Makes this processor forget the instructions that it has fetched. Whoever has written them has discarded what
/// caches had (`paging::write_code`).
fn fetch_again() {
    // SAFETY: these are barriers.
    unsafe { asm!("dsb ish", "isb", options(nostack, preserves_flags)) };
}

/// Makes all processors execute `isb`: afterwards they execute what was written to code before, and know all that was
/// mapped. It is a memory barrier on all of them, too.
pub fn synchronize() {
    fence(Ordering::SeqCst);
    fetch_again();
    let own = current();
    let others = || {
        HARTS
            .iter()
            .filter(|hart| !core::ptr::eq(*hart, own) && hart.online.load(Ordering::Acquire))
    };
    for hart in others() {
        hart.fence.store(1, Ordering::Release);
        interrupt(hart.index());
    }
    for hart in others() {
        while hart.fence.load(Ordering::Acquire) != 0 {
            // The other may wait for this one.
            own.answer();
            core::hint::spin_loop();
        }
    }
    fence(Ordering::SeqCst);
}

/// Interrupts another processor, which then answers.
pub fn interrupt(index: usize) {
    devices::interrupt(index);
}

/// The stack pointer of the calling function.
#[inline(always)]
pub fn stack_pointer() -> usize {
    let stack;
    // SAFETY: it reads a register.
    unsafe { asm!("mov {}, sp", out(reg) stack, options(nomem, nostack, preserves_flags)) };
    stack
}

/// Does something without interrupts.
pub fn without_interrupts<T>(action: impl FnOnce() -> T) -> T {
    let before: usize;
    // SAFETY: they are turned on again below, if they were on.
    unsafe { asm!("mrs {}, daif", "msr daifset, #2", out(reg) before, options(nostack)) };
    let result = action();
    // SAFETY: as above.
    unsafe { asm!("msr daif, {}", in(reg) before, options(nostack)) };
    result
}
