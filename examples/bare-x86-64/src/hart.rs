//! The processors, and what each of them has. What is shared with other machines calls a processor a *hart*, by
//! RISC-V's word.

use core::arch::asm;
use core::arch::x86_64::{__cpuid, __cpuid_count};
use core::cell::UnsafeCell;
use core::mem::offset_of;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering, fence};

use hodo_ftrace::{Open, Thread, dynamic};
use hodo_isa::x86_64::scan::Sweep;
use hodo_probe::Registers;

use crate::apic;

/// What a processor is called.
pub const NAME: &str = "processor";
/// How many processors there are: qemu's `-smp 2`.
pub const COUNT: usize = 2;
/// Bytes of a processor's stack. `kernel.ld` has the same number.
pub const STACK: usize = 65536;
/// How many traced calls may be open in a processor.
const DEPTH: usize = 64;

/// A processor. The base of `gs` is the address of its own, and that of `fs` is the address of `pointer` in it.
#[repr(C, align(64))]
pub struct Hart {
    /// Where thread-local variables are: before the word that `fs` points to (ELF Handling For Thread-Local Storage,
    /// section 3.4.6).
    variables: UnsafeCell<[u64; 32]>,
    /// The address of this word itself.
    pointer: AtomicUsize,
    /// The address of this structure.
    own: AtomicUsize,
    /// Whether it takes interrupts.
    pub online: AtomicBool,
    /// 1 if another processor waits until this one has executed a serializing instruction.
    fence: AtomicU32,
    /// How often it has done that for another one.
    pub fences: AtomicUsize,
    /// Where it continues if it faults, or 0; and the number, error code and address of such a fault.
    pub resume: AtomicUsize,
    pub cause: AtomicUsize,
    pub code: AtomicUsize,
    pub address: AtomicUsize,
    /// Timer interrupts. A C function counts them.
    pub ticks: UnsafeCell<u64>,
    /// What `hodo-ftrace` keeps.
    pub traced: UnsafeCell<Thread>,
    calls: UnsafeCell<[Open; DEPTH]>,
    /// The task state, which is a list of stacks (Intel SDM, volume 3, section 8.7).
    task: [AtomicU32; 26],
    /// The stack for double faults: the usual one may be at its end.
    fault_stack: UnsafeCell<[u128; 256]>,
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
    // SAFETY: `begin` has set it.
    unsafe {
        asm!(
            "mov {}, gs:[{own}]",
            out(reg) hart,
            own = const offset_of!(Hart, own),
            options(pure, readonly, nostack, preserves_flags),
        );
        &*hart
    }
}

/// The result of a C function that has just returned.
pub fn result(registers: &Registers) -> u64 {
    registers.rax
}

/// The first argument of a C function that has just been entered, if it is an `int`.
pub fn argument(registers: &Registers) -> u64 {
    registers.rdi & 0xFFFF_FFFF
}

/// Does something with the registers at a call site, in the form that probes have them.
pub fn with_probed(at_site: &mut dynamic::Registers, action: impl FnOnce(&mut Registers)) {
    let mut probed = Registers::default();
    each_register(&mut probed, at_site, |to, from| *to = *from as u64);
    action(&mut probed);
    each_register(&mut probed, at_site, |from, to| *to = *from as usize);
}

/// Calls a function with each register in both forms.
fn each_register(
    probed: &mut Registers,
    at_site: &mut dynamic::Registers,
    mut action: impl FnMut(&mut u64, &mut usize),
) {
    action(&mut probed.rax, &mut at_site.rax);
    action(&mut probed.rcx, &mut at_site.rcx);
    action(&mut probed.rdx, &mut at_site.rdx);
    action(&mut probed.rbx, &mut at_site.rbx);
    action(&mut probed.rsp, &mut at_site.rsp);
    action(&mut probed.rbp, &mut at_site.rbp);
    action(&mut probed.rsi, &mut at_site.rsi);
    action(&mut probed.rdi, &mut at_site.rdi);
    action(&mut probed.r8, &mut at_site.r8);
    action(&mut probed.r9, &mut at_site.r9);
    action(&mut probed.r10, &mut at_site.r10);
    action(&mut probed.r11, &mut at_site.r11);
    action(&mut probed.r12, &mut at_site.r12);
    action(&mut probed.r13, &mut at_site.r13);
    action(&mut probed.r14, &mut at_site.r14);
    action(&mut probed.r15, &mut at_site.r15);
    action(&mut probed.flags, &mut at_site.flags);
    action(&mut probed.pc, &mut at_site.ip);
}

/// The length of the instruction at an address of code.
pub fn instruction_length(at: usize) -> usize {
    const MOST: usize = 15;
    // SAFETY: it is code, and more follows the last function.
    let code = unsafe { core::slice::from_raw_parts(at as *const u8, MOST) };
    let instruction = Sweep::new(code, at as u64).next();
    let end = instruction.expect("it is not empty").end();
    end as usize - at
}

/// How far what `hodo-ftrace` keeps is from the thread pointer.
pub fn traced_offset() -> Option<isize> {
    Some(offset_of!(Hart, traced) as isize - offset_of!(Hart, pointer) as isize)
}

/// Sets a register of the processor.
fn set_register(number: u32, value: usize) {
    // SAFETY: the callers below set those that are meant.
    unsafe {
        asm!(
            "wrmsr",
            in("ecx") number,
            in("eax") value as u32,
            in("edx") (value >> 32) as u32,
            options(nostack, preserves_flags),
        );
    }
}

/// Lets `xsave` be used, for x87, SSE and AVX if there is that: the engine of probes saves such registers with it.
fn enable_vectors() {
    const XSAVE: u32 = 1 << 26;
    const PARTS: u32 = 7;
    assert!(
        __cpuid_count(1, 0).ecx & XSAVE != 0,
        "the processor has no xsave: give qemu -cpu max"
    );
    let parts = __cpuid_count(0xD, 0).eax & PARTS;
    // SAFETY: the processor has these.
    unsafe {
        asm!(
            "mov {cr4}, cr4",
            "bts {cr4}, 18",
            "mov cr4, {cr4}",
            "xsetbv",
            cr4 = out(reg) _,
            in("ecx") 0,
            in("eax") parts,
            in("edx") 0,
        );
    }
}

impl Hart {
    /// What the processor does first.
    pub fn begin(&'static self) {
        const FS_BASE: u32 = 0xC000_0100;
        const GS_BASE: u32 = 0xC000_0101;
        let own = core::ptr::from_ref(self).addr();
        let pointer = self.pointer.as_ptr().addr();
        self.own.store(own, Ordering::Relaxed);
        self.pointer.store(pointer, Ordering::Relaxed);
        set_register(FS_BASE, pointer);
        set_register(GS_BASE, own);
        enable_vectors();
    }

    /// Its index in [`HARTS`].
    pub fn index(&self) -> usize {
        (core::ptr::from_ref(self).addr() - (&raw const HARTS).addr()) / size_of::<Self>()
    }

    /// Its stack: from after the page that is not mapped.
    pub fn stack(&self) -> core::ops::Range<usize> {
        let each = STACK + 4096;
        let top = crate::layout::layout().stacks.start + (self.index() + 1) * each;
        top - STACK..top
    }

    /// Its task state, with the stack for double faults as the first of the list: the address, and the last byte's
    /// offset.
    pub fn task(&'static self) -> (usize, usize) {
        let top = self.fault_stack.get().addr() + size_of_val(&self.fault_stack);
        self.task[9].store(top as u32, Ordering::Relaxed);
        self.task[10].store((top as u64 >> 32) as u32, Ordering::Relaxed);
        ((&raw const self.task).addr(), size_of_val(&self.task) - 1)
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
            serialize();
            self.fences.fetch_add(1, Ordering::Relaxed);
            self.fence.store(0, Ordering::Release);
        }
    }
}

/// Makes this processor forget the instructions that it has fetched. Unlike on RISC-V, it has not remembered that
/// nothing was mapped somewhere (Intel SDM, volume 3, section 4.10.2.3).
fn serialize() {
    // `cpuid` is one of the instructions that do so (section 9.3).
    core::hint::black_box(__cpuid(0));
}

/// Makes all processors execute a serializing instruction: afterwards they execute what was written to code before. It
/// is a memory barrier on all of them, too.
pub fn synchronize() {
    fence(Ordering::SeqCst);
    serialize();
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
    apic::interrupt(index as u32);
}

/// The stack pointer of the calling function.
#[inline(always)]
pub fn stack_pointer() -> usize {
    let stack;
    // SAFETY: it reads a register.
    unsafe { asm!("mov {}, rsp", out(reg) stack, options(nomem, nostack, preserves_flags)) };
    stack
}

/// Does something without interrupts.
pub fn without_interrupts<T>(action: impl FnOnce() -> T) -> T {
    const IF: usize = 1 << 9;
    let before: usize;
    // SAFETY: they are turned on again below, if they were on.
    unsafe { asm!("pushfq", "pop {}", "cli", out(reg) before) };
    let result = action();
    if before & IF != 0 {
        // SAFETY: as above.
        unsafe { asm!("sti") };
    }
    result
}
