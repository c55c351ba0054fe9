//! Programs with a sanitizer run untraced, and hodo says so.

use hodo_tests::{Run, build_with, links};

#[test]
fn programs_with_a_sanitizer_run_untraced() {
    let mut checked = 0;
    for sanitizer in ["address", "leak", "thread"] {
        let flag = format!("-fsanitize={sanitizer}");
        if !links("gcc", &[&flag]) {
            hodo_tests::skip(&format!("gcc has no {flag}"));
            continue;
        }
        // With imports that are bound at the start, and when they are first called.
        for link in ["-Wl,-z,now", "-Wl,-z,lazy"] {
            let program = build_with("gcc", &["prepared.c"], &["-O1", "-w", &flag, link]);
            let run = Run::new(&format!("sanitizer-{sanitizer}{link}"), program);
            let (alone, traced) = (run.alone(), run.traced(&[]));
            assert_eq!(alone, traced.outcome, "{flag} {link}");
            assert!(
                traced.remarks.contains("it runs untraced"),
                "{flag} {link}: {}",
                traced.remarks
            );
            assert!(traced.trace.calls().is_empty(), "{flag} {link}");
            checked += 1;
        }
    }
    println!("{checked} programs");
}
