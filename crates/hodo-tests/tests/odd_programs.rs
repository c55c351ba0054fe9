//! What programs may ask of the system, case by case: each does under hodo what it does alone. `programs/odd_*.c` have
//! the cases.

use hodo_tests::{Kind, Run, build};

fn same(source: &str) {
    for (kind, options) in [
        (Kind::Pie, &[][..]),
        (Kind::Pie, &["-l"]),
        (Kind::Static, &[]),
    ] {
        let program = build(source, kind, &[]);
        let run = Run::new(&format!("{source}-{kind:?}{}", options.concat()), program);
        run.same(options);
    }
}

/// Signals of all kinds, filters of system calls, timers, threads that may not read the time counter.
#[test]
fn signals_and_filters() {
    same("odd_signals.c");
}

/// Memory of all kinds, and programs that write, read and copy their own code.
#[test]
fn memory_and_code() {
    same("odd_memory.c");
}

/// Processes made in all ways, in namespaces, and the first ones of these.
#[test]
fn processes_and_namespaces() {
    same("odd_processes.c");
}
