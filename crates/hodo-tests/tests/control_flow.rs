//! Calls that do not simply return: tail calls, deep recursion, longjmp, coroutines.

use hodo_tests::{Kind, Run, build};

#[test]
fn a_million_tail_calls() {
    for kind in Kind::ALL.into_iter().filter(|kind| kind.is_available()) {
        let program = build("tail_calls.c", kind, &[]);
        let trace = Run::new(&format!("a_million_tail_calls-{kind:?}"), program).same(&[]);
        if kind.has_names() {
            trace.has_calls(&[
                ("main", 1),
                ("even", 500_001),
                ("odd", 500_000),
                ("first", 500_001),
                ("second", 500_000),
            ]);
        }
    }
}
