//! Probes that are hit after their instruction (`post`), in a program whose instructions have known results.

use hodo_tests::probing::{path, probe_words, text};
use hodo_tests::{Kind, build};
use serde_json::Value;

const X86_64: bool = cfg!(target_arch = "x86_64");

/// The distance of an instruction of `steps` from its beginning, by its number.
fn offset(number: usize) -> u64 {
    match X86_64 {
        true => [0, 4, 7, 10, 12][number],
        false => number as u64 * 4,
    }
}

/// The register of the results of `steps`, and the one that it counts down.
const SUM: &str = match () {
    () if X86_64 => "rax",
    () if cfg!(target_arch = "riscv64") => "a1",
    () => "x1",
};
const COUNTER: &str = match () {
    () if X86_64 => "rdi",
    () if cfg!(target_arch = "riscv64") => "a0",
    () => "x0",
};

/// What hodo prints as JSON, and what the program prints.
fn run(options: &[&str], definitions: &[String]) -> (Vec<Value>, String) {
    let program = build("after.c", Kind::Pie, &[]);
    let mut words = vec!["--format", "json"];
    words.extend(options);
    for definition in definitions {
        words.extend(["-e", definition]);
    }
    words.extend(["--", path(&program)]);
    let output = probe_words(&words);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let (mut events, mut own) = (Vec::new(), String::new());
    for line in text(&output.stdout).lines() {
        match serde_json::from_str::<Value>(line) {
            Ok(value) if value.is_object() => events.push(value),
            _ => own.push_str(line),
        }
    }
    (events, own)
}

/// The values of an argument in the events with a name, in order.
fn values(events: &[Value], name: &str, argument: &str) -> Vec<u64> {
    let named = events.iter().filter(|event| event["name"] == name);
    let value = |event: &Value| {
        let value = &event["args"][argument];
        let text = value.as_str().map(|text| text.trim_start_matches("0x"));
        let number = text.and_then(|text| u64::from_str_radix(text, 16).ok());
        number
            .or_else(|| value.as_u64())
            .unwrap_or_else(|| panic!("{event}"))
    };
    named.map(value).collect()
}

#[test]
fn values_are_those_after_the_instruction() {
    let file = path(&build("after.c", Kind::Pie, &[])).to_owned();
    let definitions = [
        format!("p:before {file}:steps n=%{COUNTER}"),
        format!("p:sum {file}:steps post sum=%{SUM} n=%{COUNTER}"),
        format!("p:down {file}:steps+{} post n=%{COUNTER}", offset(2)),
        format!(
            "p:few {file}:steps+{} post n=%{COUNTER} if n < 2",
            offset(2)
        ),
        format!("p:all {file}:steps+{} post count", offset(2)),
    ];
    for options in [&[][..], &["--no-optimize"]] {
        let (events, _) = run(options, &definitions);
        assert_eq!(values(&events, "before", "n"), [3, 4], "{options:?}");
        assert_eq!(values(&events, "sum", "sum"), [8, 9], "{options:?}");
        assert_eq!(values(&events, "sum", "n"), [3, 4], "{options:?}");
        assert_eq!(values(&events, "down", "n"), [2, 1, 0, 3, 2, 1, 0]);
        assert_eq!(values(&events, "few", "n"), [1, 0, 1, 0], "{options:?}");
        let counted = events.iter().find(|event| event["name"] == "all");
        let counted = counted.expect("a count");
        assert_eq!(counted["hits"], 7, "{counted}");
        // It is named after the instruction that was executed.
        assert_eq!(counted["offset"], offset(2), "{counted}");
    }
}

#[test]
fn results_of_system_calls_are_seen() {
    let file = path(&build("after.c", Kind::Pie, &[])).to_owned();
    let (at, register) = if X86_64 { (5, "rax") } else { (4, COUNTER) };
    let definitions = [format!("p:pid {file}:own_pid+{at} post pid=%{register}")];
    for options in [&[][..], &["--no-optimize"]] {
        let (events, own) = run(options, &definitions);
        let pid = values(&events, "pid", "pid");
        assert_eq!(pid.len(), 1, "{events:?}");
        assert_eq!(own, format!("{0} {0}", pid[0]), "{options:?}");
    }
}

/// The program itself checks what they compute.
#[test]
fn instructions_of_all_kinds_do_what_they_do_alone() {
    let file = path(&build("after.c", Kind::Pie, &[])).to_owned();
    let definitions = [
        format!("p:before {file}:varied+* count"),
        format!("p:after {file}:varied+* post count"),
    ];
    for options in [&[][..], &["--no-optimize"]] {
        let (events, _) = run(options, &definitions);
        let hit = |name: &str| {
            let named = events.iter().filter(|event| event["name"] == name);
            named.filter(|event| event["hits"] != 0).count()
        };
        let (before, after) = (hit("before"), hit("after"));
        assert!(before > 12 && after > 6, "{before}, {after}: {events:?}");
    }
}

#[test]
fn what_has_no_after_is_refused_with_the_reason() {
    let file = path(&build("after.c", Kind::Pie, &[])).to_owned();
    let refused = |definition: &str, expected: &str| {
        let output = probe_words(&["--dry-run", "-e", definition]);
        assert_eq!(output.status.code(), Some(1), "{definition}: {output:?}");
        let said = text(&output.stderr);
        assert!(said.contains(expected), "{definition}: {said}");
    };
    let at = |number: usize| format!("{file}:steps+{} post count", offset(number));
    refused(&at(1), "may branch to the next instruction");
    refused(&at(3), "nothing is after a branch");
    refused(&at(4), "nothing is after a return");
    refused(&format!("{file}:steps post $arg1"), "not after it");
    refused(&format!("{file}:steps post return:1"), "without post");
    refused(
        &format!("r {file}:steps post $retval"),
        "when a function returns",
    );
    refused(&format!("{file}:%a:b post"), "no post of a USDT probe");
    // Of many, those that have an after are probed.
    let output = probe_words(&["--dry-run", "-e", &format!("{file}:steps+* post count")]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let calls = format!("{file}:main+* post count");
    let output = probe_words(&["--dry-run", "-v", "-e", &calls]);
    let said = text(&output.stdout);
    assert!(
        said.contains("is executed only when the function has returned"),
        "{said}"
    );
}
