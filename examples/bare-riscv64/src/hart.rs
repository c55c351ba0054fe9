//! The harts, and what each of them has.

use core::arch::asm;
use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering, fence};

use hodo_ftrace::{Open, Thread, dynamic};
use hodo_probe::Registers;

use crate::sbi;

/// What a processor is called.
pub const NAME: &str = "hart";
/// How many harts there are: qemu's `-smp 2`.
pub const COUNT: usize = 2;
/// Bytes of a hart's stack. `kernel.ld` has the same number.
pub const STACK: usize = 65536;
/// How many traced calls may be open in a hart.
const DEPTH: usize = 64;

/// A hart. `tp` has the address of its own.
#[repr(C, align(64))]
pub struct Hart {
    /// Where thread-local variables are: those of the linker's segment for them, at `tp`.
    variables: UnsafeCell<[u64; 32]>,
    /// The end of its stack. `boot.rs` uses it.
    pub stack_top: AtomicUsize,
    /// The firmware's number of it.
    pub number: AtomicUsize,
    /// Whether it takes interrupts.
    pub online: AtomicBool,
    /// 1 if another hart waits until this one has executed `fence.i`.
    fence: AtomicU32,
    /// How often it has done that for another one.
    pub fences: AtomicUsize,
    /// Where it continues if it faults, or 0; and the cause and address of such a fault.
    pub resume: AtomicUsize,
    pub cause: AtomicUsize,
    pub address: AtomicUsize,
    /// Timer interrupts. A C function counts them.
    pub ticks: UnsafeCell<u64>,
    /// What `hodo-ftrace` keeps.
    pub traced: UnsafeCell<Thread>,
    calls: UnsafeCell<[Open; DEPTH]>,
}

// SAFETY: cells are used by their own hart only; all else is atomic.
unsafe impl Sync for Hart {}

/// All harts. The first is the one that the firmware starts, whatever its number.
pub static HARTS: [Hart; COUNT] =
    // SAFETY: all zeros are a hart with nothing in it; so are `Thread` and `Open`, as they document.
    unsafe { core::mem::MaybeUninit::zeroed().assume_init() };

/// The running hart.
pub fn current() -> &'static Hart {
    let hart: *const Hart;
    // SAFETY: `boot.rs` has set it.
    unsafe {
        asm!("mv {}, tp", out(reg) hart, options(nomem, nostack, preserves_flags));
        &*hart
    }
}

/// The result of a C function that has just returned.
pub fn result(registers: &Registers) -> u64 {
    registers.a0
}

/// The first argument of a C function that has just been entered.
pub fn argument(registers: &Registers) -> u64 {
    registers.a0
}

/// Does something with the registers at a call site, in the form that probes have them. Both forms have `pc` first; the
/// rest is in the order of the registers' numbers, from `x0` and from `x1` on.
pub fn with_probed(at_site: &mut dynamic::Registers, action: impl FnOnce(&mut Registers)) {
    let mut probed = Registers::default();
    let words: *mut [usize; 32] = (&raw mut probed).cast();
    // SAFETY: `Registers` consists of 32 words, as the kernel's `user_regs_struct` does.
    let words = unsafe { &mut *words };
    words[1..].copy_from_slice(&at_site.x[1..]);
    words[0] = at_site.ip;
    action(&mut probed);
    // SAFETY: as above.
    let words = unsafe { &*(&raw const probed).cast::<[usize; 32]>() };
    at_site.ip = words[0];
    at_site.x[1..].copy_from_slice(&words[1..]);
}

/// The length of the instruction at an address of code. Those whose lowest bits are both set have four bytes.
pub fn instruction_length(at: usize) -> usize {
    // SAFETY: it is code.
    let first = unsafe { (at as *const u16).read_volatile() };
    if first & 3 == 3 { 4 } else { 2 }
}

/// How far what `hodo-ftrace` keeps is from the thread pointer. It is not said here: it is found by a call.
pub fn traced_offset() -> Option<isize> {
    None
}

impl Hart {
    /// Its index in [`HARTS`].
    pub fn index(&self) -> usize {
        (core::ptr::from_ref(self).addr() - (&raw const HARTS).addr()) / size_of::<Self>()
    }

    /// Its stack: from after the page that is not mapped.
    pub fn stack(&self) -> core::ops::Range<usize> {
        let each = STACK + 4096;
        let top = crate::paging::layout().stacks.start + (self.index() + 1) * each;
        top - STACK..top
    }

    /// Prepares what `hodo-ftrace` needs of it. The hart itself calls this, before anything is traced.
    pub fn prepare_tracing(&'static self) {
        let stack = self.stack();
        // SAFETY: this hart uses it. The list is never used otherwise, and the shadow of its stack is mapped
        // (`paging.rs`).
        unsafe {
            let traced = &*self.traced.get();
            traced.set_open_calls(self.calls.get().cast(), DEPTH);
            traced.set_shadow(stack.start, stack.end);
        }
    }

    /// Does what another hart waits for, if one does. Called at an interrupt, and while this hart waits itself.
    pub fn answer(&self) {
        if self.fence.load(Ordering::Acquire) != 0 {
            fence_instructions();
            self.fences.fetch_add(1, Ordering::Relaxed);
            self.fence.store(0, Ordering::Release);
        }
    }
}

/// Makes this hart execute what was written to code before, and read page tables again: a hart may remember that
/// nothing was mapped somewhere.
fn fence_instructions() {
    // SAFETY: it only discards what was read before.
    unsafe { asm!("sfence.vma", "fence.i") };
}

/// Makes all harts execute `fence.i` and `sfence.vma`: afterwards they execute what was written to code before, and
/// know all that was mapped. It is a memory barrier on all of them, too.
pub fn synchronize() {
    fence(Ordering::SeqCst);
    fence_instructions();
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

/// Interrupts another hart, which then answers.
pub fn interrupt(index: usize) {
    assert!(
        sbi::interrupt(HARTS[index].number.load(Ordering::Relaxed)),
        "the firmware cannot interrupt another hart"
    );
}

/// The stack pointer of the calling function.
#[inline(always)]
pub fn stack_pointer() -> usize {
    let stack;
    // SAFETY: it reads a register.
    unsafe { asm!("mv {}, sp", out(reg) stack, options(nomem, nostack)) };
    stack
}

/// Does something without interrupts.
pub fn without_interrupts<T>(action: impl FnOnce() -> T) -> T {
    const SIE: usize = 2;
    let before: usize;
    // SAFETY: the bit is set again below, if it was set.
    unsafe { asm!("csrrci {}, sstatus, 2", out(reg) before) };
    let result = action();
    // SAFETY: as above.
    unsafe { asm!("csrs sstatus, {}", in(reg) before & SIE) };
    result
}
