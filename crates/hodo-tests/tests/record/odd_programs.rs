//! What programs may ask of the system, case by case: under hodo each case does what it does alone. `programs/odd_*.c`
//! contain the cases.

use hodo_tests::{Kind, Run, build};

fn same(source: &str) {
    for (kind, options) in [
        (Kind::Pie, &[][..]),
        (Kind::Pie, &["-l"]),
        (Kind::Static, &[]),
    ] {
        let program = build(source, kind, &[]);
        let run = Run::new(&format!("{source}-{kind:?}{}", options.concat()), program);
        let (alone, traced) = (run.alone(), run.traced(options));
        assert_eq!(alone, traced.outcome, "{options:?}: {}", traced.remarks);
        // Where calls are recorded by the thread pointer, those of processes that share it are left out.
        let shares = |line: &str| {
            cfg!(not(target_arch = "x86_64")) && line.contains(": shares the thread pointer of ")
        };
        let remarks: Vec<&str> = traced
            .remarks
            .lines()
            .filter(|line| !shares(line))
            .collect();
        assert!(remarks.is_empty(), "{options:?}: {remarks:?}");
    }
}

/// All kinds of signals, system call filters, timers, threads that may not read the time counter.
#[test]
fn signals_and_filters() {
    same("odd_signals.c");
}

/// All kinds of memory, and programs that write, read and copy their own code.
#[test]
fn memory_and_code() {
    same("odd_memory.c");
}

/// Processes made in every way, in namespaces, and the first processes of namespaces.
#[test]
fn processes_and_namespaces() {
    same("odd_processes.c");
}
