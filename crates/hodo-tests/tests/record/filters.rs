//! The recording's own filters: which calls are in the trace.

use hodo_tests::{Kind, Run, build, build_with};

/// main calls left 10 times, right 10 times (which calls left and slow), recursive(5) 10 times.
const ALL: [(&str, u64); 7] = [
    ("main", 1),
    ("left", 20),
    ("right", 10),
    ("large", 20),
    ("slow", 10),
    ("recursive", 60),
    ("small", 20 * 5 + 20 + 10 + 10 + 50),
];

#[track_caller]
fn calls(options: &[&str], expected: &[(&str, u64)]) {
    for kind in [Kind::Pie, Kind::Static] {
        let program = build("filters.c", kind, &[]);
        let name = options.join("").replace(['/', '*'], "_");
        let run = Run::new(&format!("filters{name}-{kind:?}"), &program);
        let trace = run.same(options);
        let mut all: Vec<(&str, u64)> = ALL.iter().map(|&(name, _)| (name, 0)).collect();
        for &(name, count) in expected {
            all.iter_mut()
                .find(|(n, _)| *n == name)
                .expect("a function")
                .1 = count;
        }
        trace.has_calls(&all);
    }
}

#[test]
fn everything_without_options() {
    calls(&[], &ALL);
}

#[test]
fn only_a_function_and_what_it_calls() {
    let right = [
        ("right", 10),
        ("left", 10),
        ("large", 10),
        ("slow", 10),
        ("small", 80),
    ];
    calls(&["-F", "right"], &right);
    calls(&["-F", "right", "--no-time"], &right);
    calls(&["-F", "^rig"], &right);
    calls(&["--match=glob", "-F", "rig*"], &right);
    calls(&["--match=glob", "-F", "[q-s]ig?t"], &right);
    calls(
        &["-F", "left", "-F", "slow"],
        &[("left", 20), ("large", 20), ("slow", 10), ("small", 130)],
    );
}

#[test]
fn not_a_function_and_what_it_calls() {
    calls(
        &["-N", "left"],
        &[
            ("main", 1),
            ("right", 10),
            ("slow", 10),
            ("recursive", 60),
            ("small", 70),
        ],
    );
    calls(
        &["-F", "right", "-N", "left"],
        &[("right", 10), ("slow", 10), ("small", 20)],
    );
}

#[test]
fn calls_of_a_limited_depth() {
    calls(&["-D", "1", "-F", "main"], &[("main", 1)]);
    calls(
        &["-D", "2", "-F", "main"],
        &[("main", 1), ("left", 10), ("right", 10), ("recursive", 10)],
    );
    calls(
        &["-F", "right", "-D", "2"],
        &[("right", 10), ("left", 10), ("slow", 10), ("small", 10)],
    );
    calls(
        &["-F", "recursive", "-D", "3"],
        // The depth is counted again from each of them, as uftrace does.
        &[("recursive", 60), ("small", 50)],
    );
}

#[test]
fn calls_that_take_long() {
    for kind in [Kind::Pie, Kind::Static] {
        let program = build("filters.c", kind, &[]);
        let trace = Run::new(&format!("filters-long-{kind:?}"), program).same(&["-t", "2ms"]);
        trace.has_calls(&[("main", 1), ("right", 10), ("slow", 10)]);
        // Any other call takes long, too, if something else runs in the meantime.
        assert_eq!(trace.calls(), trace.calls_with(&["-t", "1900us"]));
    }
}

#[test]
fn functions_selected_for_patching() {
    calls(&["-P", "large"], &[("large", 20)]);
    calls(&["-P", "^l"], &[("left", 20), ("large", 20)]);
    calls(&["-P", ".", "-U", "small"], &ALL[..6]);
    calls(&["-U", "small"], &ALL[..6]);
    calls(&["-P", ".", "-U", "^s", "-P", "slow"], &ALL[..6]);
}

#[test]
fn functions_selected_by_size() {
    let program = build("filters.c", Kind::Pie, &[]);
    let trace = Run::new("filters-size", program).same(&["-Z", "100"]);
    trace.has_calls(&[("large", 20), ("small", 0), ("left", 0)]);
}

#[test]
fn functions_inside_a_library() {
    let plugin = build_with("gcc", &["plugin.c"], &["-O2", "-shared", "-fPIC"]);
    let program = build("libraries.c", Kind::Pie, &["-ldl"]);
    let run = Run::new("filters-library", program).args([&plugin]);
    let file = plugin.file_name().unwrap().to_string_lossy().into_owned();
    // A pattern for a library does not apply to the program. The library is not loaded when the program starts, so hodo
    // warns that nothing matches.
    let check = |options: &[&str], expected: &[(&str, u64)]| {
        let (alone, traced) = (run.alone(), run.traced(options));
        assert_eq!(alone, traced.outcome);
        traced.trace.has_calls(expected);
    };
    check(
        &["-P", &format!("inner@{file}")],
        &[("inner", 100), ("plugin", 0), ("main", 1)],
    );
    check(
        &["-P", "use", "-P", &format!(".@{file}")],
        &[("inner", 100), ("plugin", 100), ("main", 0), ("use", 100)],
    );
    let trace = run.same(&["-P", "^dlopen@libc.so.6"]);
    trace.has_calls(&[("main", 1), ("use", 100), ("inner", 0)]);
    assert!(
        trace.calls().keys().any(|name| name.contains("dlopen")),
        "{:?}",
        trace.calls()
    );
}

#[test]
fn a_filter_that_matches_nothing_is_reported() {
    let program = build("filters.c", Kind::Pie, &[]);
    for option in ["-F", "-N", "-P", "-U"] {
        let run = Run::new(&format!("filters-nothing{option}"), &program);
        let traced = run.traced(&[option, "no_such_function"]);
        assert_eq!(run.alone(), traced.outcome);
        assert!(
            traced.remarks.contains("no_such_function"),
            "{option}: {}",
            traced.remarks
        );
    }
}
