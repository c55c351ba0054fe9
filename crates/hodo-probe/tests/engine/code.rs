//! Functions of known instructions, and handlers.

use std::ffi::c_void;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use hodo_isa::native::steps::Step;
use hodo_probe::{Engine, Probe, Refusal, Registers, Request};

/// Defines a function in assembly, with frame information: for x86-64, RISC-V and AArch64.
#[macro_export]
macro_rules! function {
    ($name:ident: [$($x86:literal)*] [$($riscv:literal)*] [$($aarch:literal)*]) => {
        #[cfg(target_arch = "x86_64")]
        $crate::function!($name: $($x86)*);
        #[cfg(target_arch = "riscv64")]
        $crate::function!($name: $($riscv)*);
        #[cfg(target_arch = "aarch64")]
        $crate::function!($name: $($aarch)*);
    };
    ($name:ident: $($line:literal)*) => {
        // When optimizing, the compiler does not pass the target's extensions to top-level assembly.
        #[cfg(target_arch = "riscv64")]
        core::arch::global_asm!(".option push", ".option arch, +m, +a, +f, +d, +c");
        core::arch::global_asm!(
            ".text",
            ".p2align 4",
            concat!(".globl test_", stringify!($name)),
            concat!(".type test_", stringify!($name), ",@function"),
            concat!("test_", stringify!($name), ":"),
            ".cfi_startproc",
            $($line,)*
            ".cfi_endproc",
            concat!(".size test_", stringify!($name), ", . - test_", stringify!($name)),
            ".p2align 4",
        );
        #[cfg(target_arch = "riscv64")]
        core::arch::global_asm!(".option pop");
    };
}

/// The tests of one process take turns, because they probe the same functions.
pub fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

pub fn engine() -> Engine {
    crate::emulator::begin();
    Engine::new().expect("the engine starts")
}

pub fn request(addr: u64) -> Request {
    Request::at(addr)
}

/// Registers a probe of the test.
pub fn register(request: &Request) -> Result<Probe, Refusal> {
    // SAFETY: the handlers of the tests are sound where the tests put them, and their data are statics.
    unsafe { engine().register(request) }
}

/// A handler that counts.
pub extern "C" fn count(_: &mut Registers, data: *mut c_void) {
    // SAFETY: the tests pass counters.
    unsafe { (*data.cast::<AtomicU64>()).fetch_add(1, Ordering::Relaxed) };
}

/// A request for `count` before the instruction.
pub fn counting(addr: u64, counter: &'static AtomicU64) -> Request {
    request(addr)
        .before(count)
        .data(std::ptr::from_ref(counter).cast_mut().cast())
}

/// A counter that stays.
pub fn counter() -> &'static AtomicU64 {
    Box::leak(Box::new(AtomicU64::new(0)))
}

pub fn of(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

/// The first argument of a function that begins here.
pub fn argument(registers: &mut Registers) -> &mut u64 {
    #[cfg(target_arch = "x86_64")]
    return &mut registers.rdi;
    #[cfg(target_arch = "riscv64")]
    return &mut registers.a0;
    #[cfg(target_arch = "aarch64")]
    return &mut registers.x[0];
}

/// The result of a function that ends here.
pub fn result(registers: &mut Registers) -> &mut u64 {
    #[cfg(target_arch = "x86_64")]
    return &mut registers.rax;
    #[cfg(target_arch = "riscv64")]
    return &mut registers.a0;
    #[cfg(target_arch = "aarch64")]
    return &mut registers.x[0];
}

/// Bytes of the test code.
pub fn bytes(at: u64, len: usize) -> Vec<u8> {
    // SAFETY: code of the test.
    unsafe { std::slice::from_raw_parts(at as *const u8, len) }.to_vec()
}

/// The instructions of a function up to its end, as they are without probes.
pub fn steps(start: u64, len: usize) -> Vec<Step> {
    let code = bytes(start, len);
    #[cfg(target_arch = "x86_64")]
    let all: Vec<Step> = hodo_isa::native::steps::Steps::new(&code, start).collect();
    #[cfg(not(target_arch = "x86_64"))]
    let all = hodo_isa::native::steps::steps(&code, start);
    let end = all.iter().position(|step| step.flow.is_end());
    all[..=end.expect("it has an end")].to_vec()
}

/// The address of an instruction of a function, by its number.
pub fn place(function: *const (), number: usize) -> u64 {
    steps(function as u64, 64)[number].addr
}
