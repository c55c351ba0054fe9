//! What the engine's probes cost: nanoseconds of CPU time per hit, microseconds per change of code.
//! `benches/engine.sh` runs it. It ends with an error if a hit was not counted: then what it measured was not probed.
//!
//! qemu's user mode emulator does not notice by itself that code was changed. With `HODO_EMULATED` set, it is made to.

#[path = "../tests/engine/emulator.rs"]
mod emulator;

use std::arch::global_asm;
use std::ffi::c_void;
use std::hint::black_box;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use hodo_probe::{Engine, Execution, Probe, Registers, Request};

/// Functions of the batch.
const SITES: u64 = 1000;

#[cfg(target_arch = "x86_64")]
global_asm!(
    ".text",
    ".p2align 4",
    ".globl speed_leaf",
    ".globl speed_many",
    ".globl speed_written",
    ".type speed_leaf,@function",
    "speed_leaf:",
    ".cfi_startproc",
    "push rbp",
    "mov rbp, rsp",
    "lea rax, [rdi + 1]",
    "pop rbp",
    "ret",
    ".cfi_endproc",
    ".size speed_leaf, . - speed_leaf",
    ".p2align 4",
    ".type speed_written,@function",
    "speed_written:",
    ".cfi_startproc",
    "push rbp",
    "mov rbp, rsp",
    "mov rax, rdi",
    "add rax, 1",
    "pop rbp",
    "ret",
    ".cfi_endproc",
    ".size speed_written, . - speed_written",
    ".p2align 5",
    "speed_many:",
    ".rept 1000",
    ".p2align 5",
    ".cfi_startproc",
    "push rbp",
    "mov rbp, rsp",
    "lea rax, [rdi + 1]",
    "pop rbp",
    "ret",
    ".cfi_endproc",
    ".endr",
    ".p2align 5",
);

#[cfg(target_arch = "riscv64")]
global_asm!(
    ".text",
    ".p2align 4",
    ".globl speed_leaf",
    ".globl speed_many",
    ".globl speed_written",
    ".type speed_leaf,@function",
    "speed_leaf:",
    ".cfi_startproc",
    "addi sp, sp, -16",
    "sd s0, 0(sp)",
    "addi a0, a0, 1",
    "ld s0, 0(sp)",
    "addi sp, sp, 16",
    "ret",
    ".cfi_endproc",
    ".size speed_leaf, . - speed_leaf",
    ".p2align 4",
    ".type speed_written,@function",
    "speed_written:",
    ".cfi_startproc",
    "mv a5, a0",
    "mv a4, a5",
    "addi a0, a4, 1",
    "ret",
    ".cfi_endproc",
    ".size speed_written, . - speed_written",
    ".p2align 5",
    "speed_many:",
    ".rept 1000",
    ".p2align 5",
    ".cfi_startproc",
    "addi sp, sp, -16",
    "sd s0, 0(sp)",
    "addi a0, a0, 1",
    "ld s0, 0(sp)",
    "addi sp, sp, 16",
    "ret",
    ".cfi_endproc",
    ".endr",
    ".p2align 5",
);

unsafe extern "C" {
    fn speed_leaf(n: u64) -> u64;
    fn speed_many(n: u64) -> u64;
    fn speed_written(n: u64) -> u64;
}

static HITS: AtomicU64 = AtomicU64::new(0);

extern "C" fn count(_: &mut Registers, _: *mut c_void) {
    HITS.store(HITS.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
}

extern "C" fn with_sse(registers: &mut Registers, _: *mut c_void) {
    // SAFETY: the register is named.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        std::arch::asm!("movq xmm0, {}", in(reg) registers.rdi, out("xmm0") _)
    };
    // SAFETY: as above.
    #[cfg(target_arch = "riscv64")]
    unsafe {
        std::arch::asm!("fmv.d.x ft0, {}", in(reg) registers.a0, out("ft0") _)
    };
    count(registers, std::ptr::null_mut());
}

extern "C" fn with_all(registers: &mut Registers, _: *mut c_void) {
    // SAFETY: the register is named.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        std::arch::asm!("vmovq xmm0, {}", "vzeroupper", in(reg) registers.rdi, out("ymm0") _)
    };
    // Not executed: there may be no vector registers, but the engine has to save them.
    #[cfg(target_arch = "riscv64")]
    if registers.a0 == u64::MAX {
        // SAFETY: vector registers are nobody's across a call.
        unsafe {
            std::arch::asm!(
                ".option push",
                ".option arch, +v",
                "vmv1r.v v0, v1",
                ".option pop"
            )
        };
    }
    count(registers, std::ptr::null_mut());
}

/// CPU time of this thread in nanoseconds.
fn cpu() -> u64 {
    // SAFETY: plain memory.
    unsafe {
        let mut time: libc::timespec = std::mem::zeroed();
        libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time);
        time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
    }
}

/// How often a number of calls is measured.
const RUNS: u64 = 7;

/// Ends the program with an error if there were not as many hits as calls: what was measured is not what was meant.
fn check_hits(name: &str, hits: u64, expected: u64) {
    if hits == expected {
        return;
    }
    eprintln!("engine-speed: {name}: {expected} hits were expected, and {hits} were counted");
    if hits == 0 && !emulator::is_here() {
        eprintln!(
            "engine-speed: the code that is executed has no probe. If this runs in qemu's user mode emulator, which does not \
             notice that code was changed, set HODO_EMULATED=1"
        );
    }
    std::process::exit(1);
}

/// Nanoseconds per call: the best of several runs.
fn calls(count: u64) -> f64 {
    calls_of(speed_leaf, count)
}

fn calls_of(function: unsafe extern "C" fn(u64) -> u64, count: u64) -> f64 {
    (0..RUNS)
        .map(|_| {
            let start = cpu();
            for n in 0..count {
                // SAFETY: a function of a number.
                assert_eq!(unsafe { function(black_box(n)) }, n + 1);
            }
            (cpu() - start) as f64 / count as f64
        })
        .fold(f64::MAX, f64::min)
}

/// The cost of a request's hits, each of which counts `each` times.
fn hits(engine: Engine, name: &str, (request, each): (&Request, u64), count: u64) {
    let alone = calls(count);
    HITS.store(0, Ordering::Relaxed);
    // SAFETY: the handlers above change nothing but a counter.
    let probe = unsafe { engine.register(request) }.expect("it can be probed");
    let way = probe.execution();
    let with = calls(count);
    // What has no handler counts by itself.
    let counted = HITS.load(Ordering::Relaxed) + probe.count();
    check_hits(name, counted, RUNS * count * each);
    println!("{name:44} {:9.1} ns   {way:?}", with - alone);
}

/// Waits until enabled probes are hit, for at most a minute.
fn wait_for_hits() {
    HITS.store(0, Ordering::Relaxed);
    let begin = Instant::now();
    while HITS.load(Ordering::Relaxed) == 0 {
        if begin.elapsed().as_secs() > 60 {
            check_hits("1000 enabled sites", 0, 1);
        }
        std::thread::yield_now();
    }
}

fn toggling(engine: Engine) {
    let start = speed_many as *const () as u64;
    let requests: Vec<Request> = (0..SITES)
        .map(|n| Request::at(start + n * 32).before(count).disabled())
        .collect();
    let begin = Instant::now();
    // SAFETY: the handler only counts.
    let probes: Vec<Probe> = unsafe { engine.register_all(&requests) }
        .into_iter()
        .map(|probe| probe.expect("it can be probed"))
        .collect();
    println!(
        "{:44} {:9.2} us",
        "registering, each of 1000",
        begin.elapsed().as_secs_f64() * 1e6 / SITES as f64
    );
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    for n in 0..SITES {
                        let at = start + n * 32;
                        // SAFETY: each of these places has a function of a number.
                        let call: extern "C" fn(u64) -> u64 =
                            unsafe { std::mem::transmute(at as usize) };
                        assert_eq!(call(n), n + 1);
                    }
                }
            });
        }
        let all: Vec<&Probe> = probes.iter().collect();
        engine.set_enabled(&all, true).expect("enabled");
        wait_for_hits();
        engine.set_enabled(&all, false).expect("disabled");
        let median = |mut times: Vec<f64>| {
            times.sort_by(f64::total_cmp);
            times[times.len() / 2]
        };
        let time = |probes: &[&Probe], enabled: bool| {
            let begin = Instant::now();
            engine.set_enabled(probes, enabled).expect("toggled");
            begin.elapsed().as_secs_f64() * 1e6 / probes.len() as f64
        };
        let one: Vec<f64> = (0..400)
            .map(|n| time(&all[n % 7..=n % 7], n / 7 % 2 == 0))
            .collect();
        engine.set_enabled(&all, false).expect("disabled");
        println!(
            "{:44} {:9.2} us",
            "toggling one site, 4 threads run, median",
            median(one)
        );
        let many: Vec<f64> = (0..60).map(|n| time(&all, n % 2 == 0)).collect();
        println!(
            "{:44} {:9.2} us",
            "toggling 1000 sites, for each, median",
            median(many)
        );
        stop.store(true, Ordering::Relaxed);
    });
    engine.unregister_all(probes).expect("unregistered");
}

fn main() {
    emulator::begin();
    let engine = Engine::new().expect("the engine starts");
    let leaf = speed_leaf as *const () as u64;
    println!("{:44} {:9.1} ns", "the call alone", calls(20_000_000));
    hits(
        engine,
        "handler, no vector state",
        (&Request::at(leaf).before(count), 1),
        5_000_000,
    );
    hits(
        engine,
        if cfg!(target_arch = "x86_64") {
            "handler that uses SSE"
        } else {
            "handler that uses floating point"
        },
        (&Request::at(leaf).before(with_sse), 1),
        5_000_000,
    );
    hits(
        engine,
        if cfg!(target_arch = "x86_64") {
            "handler that uses AVX: all vector state"
        } else {
            "handler that uses vectors"
        },
        (&Request::at(leaf).before(with_all), 1),
        2_000_000,
    );
    hits(
        engine,
        "count, flags or registers are kept",
        (&Request::at(leaf).count(), 1),
        5_000_000,
    );
    counted_before_a_write(engine);
    returns_and_breakpoints(engine, leaf);
    toggling(engine);
}

/// A count that needs to save nothing: the next instructions overwrite what it changes.
fn counted_before_a_write(engine: Engine) {
    let written = speed_written as *const () as u64;
    let calls = || calls_of(speed_written, 5_000_000);
    let alone = calls();
    // SAFETY: there is no handler.
    let probe =
        unsafe { engine.register(&Request::at(written).count()) }.expect("it can be probed");
    let way = probe.execution();
    let name = "count, flags or registers are written next";
    let with = calls();
    check_hits(name, probe.count(), RUNS * 5_000_000);
    println!("{name:44} {:9.1} ns   {way:?}", with - alone);
}

/// Return handlers, and each way to continue after a breakpoint.
fn returns_and_breakpoints(engine: Engine, leaf: u64) {
    hits(
        engine,
        "return handler",
        (&Request::at(leaf).returning(count), 1),
        5_000_000,
    );
    hits(
        engine,
        "entry and return handler",
        (&Request::at(leaf).before(count).returning(count), 2),
        5_000_000,
    );
    let trap = |way| Request::at(leaf).before(count).execution(way);
    // The first instruction of the RISC-V function cannot be simulated.
    if cfg!(target_arch = "x86_64") {
        hits(
            engine,
            "breakpoint, simulated",
            (&trap(Execution::Simulated), 1),
            100_000,
        );
    }
    hits(
        engine,
        "breakpoint, boosted",
        (&trap(Execution::Boosted), 1),
        100_000,
    );
    hits(
        engine,
        "breakpoint, out of line",
        (&trap(Execution::OutOfLine), 1),
        100_000,
    );
}
