//! Probes of the engine and static keys in one process: both change code, one between the places of the other.

use std::ffi::c_void;
use std::hint::black_box;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use hodo_keys::{define_static_key_false, static_branch_unlikely};
use hodo_probe::engine::{Engine, Registers, Request};

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

extern "C" fn nothing(_: &mut Registers, _: *mut c_void) {}

#[test]
fn switching_keys_beside_probes_loses_nothing() {
    let engine = Engine::new().expect("an engine");
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
        while begin.elapsed() < Duration::from_secs(2) {
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
