//! Engine probes and static keys in one process: both change code, one right next to the other.

#[path = "engine/emulator.rs"]
#[allow(dead_code)]
mod emulator;
#[path = "../../hodo-keys/tests/emulator/mod.rs"]
mod keys_emulator;

use std::ffi::c_void;
use std::hint::black_box;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use hodo_keys::{define_static_key_false, static_branch_unlikely};
use hodo_probe::{Engine, Registers, Request};

define_static_key_false!(KEY);

macro_rules! functions {
    ($($name:ident $number:literal),*) => {$(
        #[inline(never)]
        extern "C" fn $name(x: u64) -> u64 {
            let x = black_box(x).wrapping_mul($number);
            if static_branch_unlikely!(KEY) { x + 1000 } else { x }
        }
    )*
        const ALL: &[(extern "C" fn(u64) -> u64, u64)] = &[$(($name, $number)),*];
    };
}

functions!(one 3, two 5, three 7, four 9, five 11, six 13);

/// The tests of one process take turns, because they probe the same functions.
static ALONE: Mutex<()> = Mutex::new(());

fn engine() -> Engine {
    emulator::begin();
    Engine::new().expect("an engine")
}

extern "C" fn nothing(_: &mut Registers, _: *mut c_void) {}

#[test]
fn switching_keys_beside_probes_loses_nothing() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let engine = engine();
    let requests: Vec<_> = ALL
        .iter()
        .map(|(function, _)| Request::at(*function as *const () as u64).before(nothing))
        .collect();
    let probes: Vec<_> = requests
        .iter()
        // SAFETY: a handler that does nothing is sound anywhere.
        .map(|request| unsafe { engine.register(request) }.expect("a probe"))
        .collect();
    let probes: Vec<_> = probes.iter().collect();
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut enabled = false;
            while !stop.load(Ordering::Relaxed) {
                engine.set_enabled(&probes, enabled).expect("toggled");
                enabled = !enabled;
            }
        });
        let begin = Instant::now();
        let mut rounds = 0_u64;
        // It takes longer on a busy machine.
        let time = |seconds| begin.elapsed() < Duration::from_secs(seconds);
        while time(2) || rounds <= 10 && time(60) {
            KEY.enable().expect("switched");
            for (function, factor) in ALL {
                assert_eq!(function(rounds), rounds * factor + 1000, "round {rounds}");
            }
            KEY.disable().expect("switched");
            for (function, factor) in ALL {
                assert_eq!(function(rounds), rounds * factor, "round {rounds}");
            }
            rounds += 1;
        }
        stop.store(true, Ordering::Relaxed);
        assert!(rounds > 10, "{rounds}");
    });
}

#[test]
fn static_branches_are_refused() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let engine = engine();
    let start = one as *const () as u64;
    // SAFETY: code of the test.
    let code = unsafe { std::slice::from_raw_parts(start as *const u8, 400) }.to_vec();
    #[cfg(target_arch = "x86_64")]
    let steps: Vec<_> = hodo_isa::native::steps::Steps::new(&code, start).collect();
    #[cfg(not(target_arch = "x86_64"))]
    let steps = hodo_isa::native::steps::steps(&code, start);
    let mut found = 0;
    for step in steps {
        let request = Request::at(step.addr).count();
        // SAFETY: there is no handler.
        match unsafe { engine.register(&request) } {
            Err(refusal)
                if refusal
                    .to_string()
                    .ends_with("it is a static branch, which its key switches") =>
            {
                found += 1;
            }
            _ => {}
        }
        if matches!(step.flow, hodo_isa::native::scan::Flow::Return { .. }) {
            break;
        }
    }
    assert_eq!(found, 1);
}
