//! A program without a standard library, a C library, or constructors that run: it begins at `_start`, writes its own
//! code, and ends with a status that says how far it got. It is built for Linux and for no operating system at all, and
//! makes Linux's system calls in both cases.
#![no_std]
#![no_main]

use core::arch::{asm, global_asm};
use core::panic::PanicInfo;
use core::sync::atomic::{AtomicI32, AtomicUsize, Ordering};

use hodo_keys::tracepoint::{self, Event, Value};
use hodo_keys::{
    Errno, Error, Text, define_static_key_array_true, define_static_key_false, set_text,
    static_branch_likely, static_branch_unlikely, switch,
};

define_static_key_false!(OFF);
define_static_key_array_true!(ON[2]);

fn call(number: usize, args: [usize; 4]) -> isize {
    let result;
    // SAFETY: all calls that are made here are sound.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") number => result,
            in("rdi") args[0],
            in("rsi") args[1],
            in("rdx") args[2],
            in("r10") args[3],
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack),
        );
    }
    result
}

fn exit(status: usize) -> ! {
    loop {
        call(231, [status, 0, 0, 0]);
    }
}

/// Writes through `/proc/self/mem`, as a kernel would through another mapping.
struct Own {
    file: AtomicI32,
    writes: AtomicUsize,
    syncs: AtomicUsize,
}

// SAFETY: there is one thread, and the kernel writes.
unsafe impl Text for Own {
    fn begin(&self) -> Result<(), Errno> {
        let file = call(2, [c"/proc/self/mem".as_ptr() as usize, 2, 0, 0]);
        self.file.store(file as i32, Ordering::Relaxed);
        if file < 0 { Err(-file as i32) } else { Ok(()) }
    }

    unsafe fn write(&self, at: usize, bytes: &[u8]) -> Result<(), Errno> {
        let file = self.file.load(Ordering::Relaxed) as usize;
        self.writes.fetch_add(1, Ordering::Relaxed);
        match call(18, [file, bytes.as_ptr() as usize, bytes.len(), at]) {
            error @ ..0 => Err(-error as i32),
            _ => Ok(()),
        }
    }

    fn sync(&self) {
        self.syncs.fetch_add(1, Ordering::Relaxed);
        // SAFETY: it serializes this processor; this is the only thread.
        unsafe {
            asm!("push rbx", "cpuid", "pop rbx", inout("eax") 0 => _, out("ecx") _, out("edx") _)
        };
    }

    fn end(&self) {
        call(3, [self.file.load(Ordering::Relaxed) as usize, 0, 0, 0]);
    }
}

static OWN: Own = Own {
    file: AtomicI32::new(-1),
    writes: AtomicUsize::new(0),
    syncs: AtomicUsize::new(0),
};
static TEXT: &dyn Text = &OWN;

#[inline(never)]
fn see() -> [bool; 4] {
    [
        static_branch_unlikely!(OFF),
        static_branch_likely!(OFF),
        static_branch_unlikely!(ON[0]),
        static_branch_likely!(ON[1]),
    ]
}

static SEEN: AtomicUsize = AtomicUsize::new(0);

#[inline(never)]
fn traced(number: u32) {
    hodo_keys::tracepoint!(bare, traced, number, text = "text");
}

/// Adds up numbers and lengths of texts.
fn hit(event: &Event<'_>) {
    for field in event.fields() {
        let number = match field.value {
            Value::Unsigned(number) => number as usize,
            Value::Str(text) => text.len(),
            _ => 1 << 20,
        };
        SEEN.fetch_add(number, Ordering::Relaxed);
    }
}

fn check(number: usize, right: bool) {
    if !right {
        exit(number);
    }
}

extern "C" fn start() -> ! {
    check(1, see() == [false, false, true, true]);
    let without = OFF.enable();
    if cfg!(target_os = "linux") {
        // The built-in way works, too.
        check(2, without.is_ok() && see() == [true; 4]);
        check(3, OFF.disable().is_ok());
    } else {
        check(2, without == Err(Error::Text(38)));
    }
    check(4, see() == [false, false, true, true]);
    set_text(&TEXT);
    check(5, OFF.enable().is_ok() && see() == [true; 4]);
    check(
        6,
        OWN.writes.load(Ordering::Relaxed) >= 6 && OWN.syncs.load(Ordering::Relaxed) == 3,
    );
    let changes = [OFF.disabling(), ON[0].disabling(), ON[1].disabling()];
    check(7, switch(&changes).is_ok() && see() == [false; 4]);
    check(8, OWN.syncs.load(Ordering::Relaxed) == 6);
    let mut branches = 0;
    let listed = hodo_keys::for_each(|found| branches += found.branches);
    check(9, listed.is_ok() && branches == 5);
    check(10, OFF.dec().is_err() && ON[1].inc().is_ok());
    check(11, see() == [false, false, false, true]);
    traced(1);
    let Ok(registration) = tracepoint::register_static("bare:*", &hit) else {
        exit(12)
    };
    traced(20);
    check(13, registration.remove().is_ok());
    traced(300);
    check(14, SEEN.load(Ordering::Relaxed) == 24);
    let enabled = tracepoint::enable("*:traced");
    check(15, enabled.is_ok_and(|enabled| enabled.tracepoints() == Ok(1)));
    traced(4000);
    check(16, SEEN.load(Ordering::Relaxed) == 24);
    exit(0)
}

global_asm!(
    ".globl _start",
    "_start:",
    "xor ebp, ebp",
    "and rsp, -16",
    "call {start}",
    "ud2",
    start = sym start,
);

#[panic_handler]
fn panic(_: &PanicInfo<'_>) -> ! {
    exit(99)
}

/// The precompiled `core` refers to it; nothing unwinds.
#[cfg(target_os = "linux")]
#[unsafe(no_mangle)]
extern "C" fn rust_eh_personality() {}

// Functions that the compiler calls, and that a C library would define. The target without an operating system brings
// its own.
#[cfg(target_os = "linux")]
global_asm!(
    ".globl memcpy",
    "memcpy:",
    "mov rax, rdi",
    "mov rcx, rdx",
    "rep movsb",
    "ret",
    ".globl memset",
    "memset:",
    "mov r8, rdi",
    "mov eax, esi",
    "mov rcx, rdx",
    "rep stosb",
    "mov rax, r8",
    "ret",
    ".globl memmove",
    "memmove:",
    "mov rax, rdi",
    "mov rcx, rdx",
    "cmp rdi, rsi",
    "jbe 2f",
    "lea rdi, [rdi + rcx - 1]",
    "lea rsi, [rsi + rcx - 1]",
    "std",
    "2: rep movsb",
    "cld",
    "ret",
    ".globl memcmp",
    "memcmp:",
    ".globl bcmp",
    "bcmp:",
    "xor eax, eax",
    "mov rcx, rdx",
    "test rcx, rcx",
    "jz 3f",
    "repe cmpsb",
    "je 3f",
    "movzx eax, byte ptr [rdi - 1]",
    "movzx ecx, byte ptr [rsi - 1]",
    "sub eax, ecx",
    "neg eax",
    "3: ret",
);
