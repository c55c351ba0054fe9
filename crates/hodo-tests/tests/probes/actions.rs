//! Probe actions and values, compared with the events of the same program.

use std::collections::BTreeMap;
use std::process::Command;

use hodo_tests::probing::{ARGUMENTS, PARTS, RETURN_ADDRESS, UNWOUND, path, probe, probed, text};
use hodo_tests::{Kind, build, build_with};
use serde_json::{Value, json};

/// The contents of a histogram: by key, hits and sums.
fn table(histogram: &Value) -> BTreeMap<String, (u64, Value)> {
    let entries = histogram["hist"].as_array().expect("entries").iter();
    entries
        .map(|entry| {
            let hits = entry["hitcount"].as_u64().expect("hits");
            (entry["key"].to_string(), (hits, entry["sums"].clone()))
        })
        .collect()
}

/// What a histogram of the selected events must contain: by key, the hits and the sums of these arguments.
fn expected<'e>(
    events: impl Iterator<Item = &'e Value>,
    key: fn(&Value) -> Value,
    sums: &[&str],
) -> BTreeMap<String, (u64, Value)> {
    let mut expected: BTreeMap<String, (u64, Value)> = BTreeMap::new();
    for event in events {
        let none = (0, json!({}));
        let entry = expected.entry(key(event).to_string()).or_insert(none);
        entry.0 += 1;
        for &sum in sums {
            let before = entry.1[sum].as_i64().unwrap_or(0);
            entry.1[sum] = (before + event["args"][sum].as_i64().expect("a number")).into();
        }
    }
    expected
}

/// The hits of a histogram's entries, in its order.
fn hits(histogram: &Value) -> Vec<u64> {
    let entries = histogram["hist"].as_array().expect("entries").iter();
    entries
        .filter_map(|entry| entry["hitcount"].as_u64())
        .collect()
}

#[test]
fn histograms_are_what_the_events_say() {
    let program = build("probed.c", Kind::Pie, &[]);
    let file = path(&program);
    let [_, _, second, ..] = PARTS;
    let args = format!("{file}:work n=$arg2:s32 m={second}:u8 t=+0($arg3):string p=$arg1");
    let definitions = [
        format!("p:all {args}"),
        format!("p:h1 {args} hist:keys=n:vals=n,m"),
        format!("p:h2 {args} hist:keys=n.buckets=7,t,tid:sort=hitcount.descending"),
        format!("p:h3 {args} hist:keys=m.log2:vals=m:sort=m if"),
        format!("p:h4 {args} if n % 3 == 1 hist:keys=comm,pid:vals=n"),
        format!("p:h5 {args} hist:keys=n:size=100"),
        format!("p:h6 {file}:work x=+0($arg1):s32 hist:keys=x"),
    ];
    let definitions = definitions.map(|text| text.trim_end_matches(" if").to_owned());
    let lines = probed(&definitions, &[file], 1);
    let (events, histograms): (Vec<_>, Vec<_>) =
        lines.iter().partition(|line| line.get("hist").is_none());
    assert_eq!((events.len(), histograms.len()), (8001, 6));
    type Keys = fn(&Value) -> Value;
    let expect = |histogram: &Value, keys: Keys, sums: &[&str], which: fn(&Value) -> bool| {
        let events = events.iter().copied().filter(|event| which(event));
        assert_eq!(table(histogram), expected(events, keys, sums));
        assert_eq!(
            (&histogram["lost"], &histogram["unread"]),
            (&0.into(), &0.into())
        );
    };
    expect(
        histograms[0],
        |e| json!({"n": e["args"]["n"]}),
        &["n", "m"],
        |_| true,
    );
    expect(
        histograms[1],
        |e| {
            let n = e["args"]["n"].as_i64().expect("a number");
            json!({"n": n.div_euclid(7) * 7, "t": e["args"]["t"], "tid": e["tid"]})
        },
        &[],
        |_| true,
    );
    expect(
        histograms[2],
        |e| {
            let m = e["args"]["m"].as_u64().expect("a number");
            json!({"m": if m == 0 { 0 } else { 1u64 << m.ilog2() }})
        },
        &["m"],
        |_| true,
    );
    expect(
        histograms[3],
        |e| json!({"comm": e["comm"], "pid": e["pid"]}),
        &["n"],
        |e| e["args"]["n"].as_i64().is_some_and(|n| n % 3 == 1),
    );
    // The requested order.
    assert!(hits(histograms[1]).is_sorted_by(|a, b| a >= b));
    assert!(hits(histograms[0]).is_sorted());
    // What has no room is lost, and counted.
    let full = histograms[4];
    assert!((90..=100).contains(&table(full).len()));
    assert_eq!(
        full["hits"]
            .as_u64()
            .zip(full["lost"].as_u64())
            .map(|(a, b)| a + b),
        Some(8001)
    );
    // What cannot be read is counted, too.
    assert_eq!(
        (&histograms[5]["unread"], &histograms[5]["hits"]),
        (&1.into(), &8000.into())
    );
}

#[test]
fn histograms_are_written_as_the_kernel_does() {
    let program = build("probed.c", Kind::Pie, &[]);
    let file = path(&program);
    let [first, ..] = ARGUMENTS;
    let definition =
        format!("{file}:loop n={first}:u64 h={first}:x16 hist:keys=n,h,comm:vals=n:size=16");
    let output = probe(&["-e", &definition], &[file]);
    let shown = text(&output.stdout);
    let name = program
        .file_name()
        .and_then(|name| name.to_str())
        .expect("a name");
    let name = &name[..name.len().min(15)];
    assert!(
        shown.contains(&format!("# trigger info: {definition}")),
        "{shown}"
    );
    let line = format!(
        "{{ n:       1000, h:      0x3e8, comm: {name:<50} }} hitcount:          1  n:       1000\n"
    );
    assert!(shown.contains(&line), "{shown}");
    assert!(
        shown.contains("\nTotals:\n    Hits: 1\n    Entries: 1\n    Dropped: 0\n"),
        "{shown}"
    );
}

#[test]
fn probes_switch_each_other_and_events() {
    let program = build("conditions.c", Kind::Pie, &[]);
    let file = path(&program);
    let place = format!("{file}:values c={}:u32", ARGUMENTS[2]);
    // The main thread has c = 37 i for i below 60, then the other thread has the same.
    let run = |definitions: &[String]| -> Vec<(String, u64)> {
        let lines = probed(definitions, &[file], 1);
        let one = |line: &Value| {
            let number = line["args"]["c"].as_u64().or(line["hits"].as_u64());
            let name = line["name"].as_str().expect("a name").to_owned();
            (name, number.expect("a number"))
        };
        lines.iter().map(one).collect()
    };
    let hits = |lines: &[(String, u64)], name: &str| -> Vec<u64> {
        let named = lines.iter().filter(|(n, _)| n == name);
        named.map(|(_, c)| c / 37).collect()
    };
    let lines = run(&[
        format!("p:a {place}"),
        format!("p:mygroup/off {place} if c == 370 disable:a"),
        format!("p:on {place} if c == 740 enable:probe_conditions/a"),
        format!("p:once {place} print disable:once"),
        format!("p:n {place} count"),
    ]);
    let usual = (0..=10).chain(21..60).chain(0..=10).chain(21..60);
    assert_eq!(hits(&lines, "a"), usual.collect::<Vec<u64>>());
    assert_eq!(hits(&lines, "once"), [0]);
    assert!(lines.contains(&("n".to_owned(), 120)));
    let lines = run(&[
        format!("p:before {place}"),
        format!("p:off {place} if c == 370 traceoff"),
        format!("p:on {place} if c == 740 traceon"),
        format!("p:after {place}"),
        format!("p:n {place} count"),
    ]);
    let before = (0..=10).chain(21..60).chain(0..=10).chain(21..60);
    assert_eq!(hits(&lines, "before"), before.collect::<Vec<u64>>());
    let after = (0..10).chain(20..60).chain(0..10).chain(20..60);
    assert_eq!(hits(&lines, "after"), after.collect::<Vec<u64>>());
    assert!(lines.contains(&("n".to_owned(), 120)));
}

#[test]
fn functions_return_what_a_probe_says() {
    for kind in Kind::ALL {
        if !kind.is_available() || !kind.has_names() {
            continue;
        }
        let program = build("probed.c", kind, &[]);
        let file = path(&program);
        let alone = Command::new(file).output().expect("it can be run");
        let usual = text(&alone.stdout)
            .split(' ')
            .nth(1)
            .expect("a number")
            .to_owned();
        let definition = format!("{file}:work n=$arg2:s32 if n >= 500 count return:-3");
        let output = probe(&["-e", &definition], &[file]);
        // The sum of n + 4 + 1 - 5 for those below 500, and -3 for the others; in eight threads.
        let sum: i64 = 8 * ((0..500).sum::<i64>() - 1500);
        let lines: Vec<&str> = text(&output.stdout).lines().collect();
        assert_eq!(
            lines[0],
            format!("{sum} {}", usual.trim_end()),
            "{output:?}"
        );
        assert!(lines[2].trim_start().starts_with("4000 "), "{output:?}");
    }
}

#[test]
fn snapshots_have_the_bytes_of_the_stack() {
    let program = build("probed.c", Kind::Pie, &[]);
    let file = path(&program);
    for bytes in [1, 8, 70, 256, 3000, 32000, 65536] {
        let definition =
            format!("{file}:loop a=$stack0 b=$stack1 c=$stack8 print snapshot of {bytes} bytes");
        let mut options = vec!["--format", "json", "-e", &definition];
        if bytes == 65536 {
            let output = probe(&options, &[file]);
            let said = text(&output.stderr);
            assert_eq!(output.status.code(), Some(125));
            assert!(
                said.contains("snapshot: 32752 bytes can be kept at most"),
                "{said}"
            );
            continue;
        }
        options.truncate(2);
        let lines = probed(std::slice::from_ref(&definition), &[file], 1);
        let stack = lines[1]["args"]["stack"].as_str().expect("bytes");
        // There may be less above the stack.
        assert!(
            stack.len() == 2 * bytes || bytes >= 3000 && stack.len() > 2000,
            "{}",
            stack.len()
        );
        for (name, word) in [("a", 0), ("b", 1), ("c", 8)] {
            let Some(hex) = stack.get(word * 16..word * 16 + 16) else {
                continue;
            };
            let value = u64::from_str_radix(hex, 16).expect("hex").swap_bytes();
            assert_eq!(lines[0]["args"][name], value, "{name}");
        }
    }
    let definition = format!("{file}:loop snapshot:20");
    let output = probe(&["-e", &definition], &[file]);
    let lines: Vec<&str> = text(&output.stdout).lines().collect();
    assert!(
        lines[1].ends_with(": (loop+0x0) <snapshot of 20 bytes>"),
        "{output:?}"
    );
    assert!(
        lines[2].starts_with("    +0000: ") && lines[3].starts_with("    +0010: "),
        "{output:?}"
    );
}

#[test]
fn all_kinds_of_values_are_fetched() {
    let program = build("conditions.c", Kind::Pie, &[]);
    let file = path(&program);
    // Values that only this processor has.
    let own = if cfg!(target_arch = "x86_64") {
        "%flags %cs %ss"
    } else {
        ""
    };
    let far = "far=+0x7ffffffff000($arg5):u16";
    let definition = format!(
        "{file}:values {own} elf=@+0:x8[4] name=@+1:char[3] m=+0($arg5):u16[2] e=+0($arg5):u16 \
         top=+0(%sp):x64[2] top0=$stack0 top1=$stack1 seventh=$arg7 {far} t=+0(%sp):string[2] c=$comm"
    );
    let events = probed(&[definition], &[file], 1);
    assert_eq!(events.len(), 120);
    for event in &events {
        let args = &event["args"];
        if cfg!(target_arch = "x86_64") {
            // Bits 1 and 9 of the flags (always set, and interrupts) are set; direction and trap are not.
            let flags = args["arg1"].as_u64().expect("flags");
            assert_eq!(flags & 0x702, 0x202, "{flags:#x}");
            assert_eq!((&args["arg2"], &args["arg3"]), (&0x33.into(), &0x2b.into()));
            assert_eq!(args["seventh"], args["top1"]);
        }
        assert_eq!(args["elf"], serde_json::json!([0x7f, 0x45, 0x4c, 0x46]));
        assert_eq!(args["name"], serde_json::json!(["E", "L", "F"]));
        assert_eq!(args["m"][0], args["e"]);
        assert_eq!(
            (&args["top"][0], &args["top"][1]),
            (&args["top0"], &args["top1"])
        );
        assert_eq!(args["far"], Value::Null);
        assert!(args["t"][0].is_string(), "{args}");
        // The names that the program has given its threads.
        let first = event["tid"] == event["pid"];
        assert_eq!(args["c"], if first { "values" } else { "other" });
    }
}

/// The file offset of the program's entry point, which equals its address in a PIE.
fn entry(file: &str) -> u64 {
    let bytes = std::fs::read(file).expect("the program");
    u64::from_le_bytes(bytes[24..32].try_into().expect("eight bytes"))
}

#[test]
fn impossible_actions_are_reported() {
    let program = build("conditions.c", Kind::Pie, &[]);
    let file = path(&program);
    let [first, ..] = ARGUMENTS;
    let own = if cfg!(not(target_arch = "x86_64")) {
        (
            format!("{file}:values hist:keys=cpu"),
            "cpu: this processor has no instruction that gives its number",
        )
    } else {
        (
            format!("{file}:values x=+0(%dil):u8"),
            "only a whole register is an address",
        )
    };
    // Elsewhere, instructions begin at even addresses.
    let after_entry = entry(file) + if cfg!(target_arch = "x86_64") { 1 } else { 4 };
    let all = [
        (
            format!("p:a {file}:values enable:b"),
            "enable b: no probe has this name; there is a",
        ),
        (
            format!("p:a {file}:values disable:other/a"),
            "disable other/a: no probe has this name; there is a",
        ),
        (
            format!(
                "{file}:values a=+0({first}):x64[64] {}",
                (0..70)
                    .map(|n| format!("b{n}=+0({first}):x64[64] "))
                    .collect::<String>()
            ),
            "the values are too large for one event",
        ),
        (
            format!(
                "{file}:values a=+0({first}):string hist:keys=a:size=1048576 hist:keys=a,tid:size=1048576 \
                     hist:keys=a,pid:size=1048576 hist:keys=pid,tid,a:size=1048576 hist:keys=a,comm:size=1048576 \
                     hist:keys=tid,a:size=1048576 hist:keys=pid,a:size=1048576 hist:keys=comm,a:size=1048576 \
                     hist:keys=tid,pid,a:size=1048576 hist:keys=a,tid,pid:size=1048576 hist:keys=a,pid,tid:size=1048576 \
                     hist:keys=a,pid,comm:size=1048576 hist:keys=a,comm,pid:size=1048576 hist:keys=a,comm,tid:size=1048576 \
                     hist:keys=comm,a,tid:size=1048576 hist:keys=tid,a,comm:size=1048576"
            ),
            "the histograms need more than 4 GiB; give them a smaller size=",
        ),
        (
            format!("{file}:values x=@+0x7fffffff:u8"),
            "no byte 0x7fffffff of the file is in memory",
        ),
        (
            format!("{file}:{after_entry:#x} return:1"),
            "is not the first instruction of a function",
        ),
    ];
    for (definition, message) in all.into_iter().chain([own]) {
        let output = probe(&["-e", &definition], &[file]);
        let said = text(&output.stderr);
        assert!(said.contains(message), "{definition}: {said}");
        assert_eq!(output.status.code(), Some(125), "{definition}: {output:?}");
        assert!(output.stdout.is_empty(), "{definition}: it ran");
    }
}

/// The functions of a stack trace, the innermost first.
fn functions(event: &Value) -> Vec<&str> {
    let frames = event["args"]["stacktrace"].as_array().expect("frames");
    frames
        .iter()
        .filter_map(|frame| frame["symbol"].as_str())
        .collect()
}

#[test]
fn events_with_a_stack_have_their_values_too() {
    let program = build("probed.c", Kind::Pie, UNWOUND);
    let file = path(&program);
    // The values come before the registers, also where it takes further words to say which are missing.
    let many: String = (0..40).map(|n| format!(" a{n}=$arg2:s32")).collect();
    for more in ["", many.as_str()] {
        let definitions = [
            format!(
                "p:work {file}:work n=$arg2:s32 t=+0($arg3):string bad=+0(\\8){more} if n == 7 stacktrace"
            ),
            format!("p:copy {file}:work n=$arg2:s32{more} if n == 7 snapshot:64 count"),
            format!("r:back {file}:work v=$retval:s32 if v == 9 stacktrace"),
        ];
        let events = probed(&definitions, &[file], 1);
        let named = |name: &str| -> Vec<_> {
            events
                .iter()
                .filter(|event| event["name"] == name && event["args"].is_object())
                .collect()
        };
        for event in named("work") {
            assert_eq!(event["args"]["n"], 7, "{event}");
            assert!(event["args"]["t"].is_string(), "{event}");
            assert!(event["args"]["bad"].is_null(), "{event}");
            assert!(more.is_empty() || event["args"]["a39"] == 7, "{event}");
            assert_eq!(functions(event)[..2], ["work", "run"], "{event}");
        }
        for event in named("copy") {
            assert_eq!(event["args"]["n"], 7, "{event}");
            assert_eq!(
                event["args"]["stack"].as_str().map(str::len),
                Some(128),
                "{event}"
            );
        }
        for event in named("back") {
            assert_eq!(event["args"]["v"], 9, "{event}");
            assert_eq!(functions(event)[0], "run", "{event}");
        }
        for name in ["work", "copy", "back"] {
            assert!(!named(name).is_empty(), "{name}");
        }
        let output = probe(&["-e", &definitions[0]], &[file]);
        let shown = text(&output.stdout);
        assert!(shown.contains(" n=7 t=\""), "{shown}");
        assert!(
            shown.contains(" <stack trace>\n => work\n => run\n"),
            "{shown}"
        );
    }
}

#[test]
fn texts_longer_than_their_room_are_marked() {
    let long = "x".repeat(127);
    let program = "/bin/echo";
    for (text_of_it, is_cut) in [
        (long.clone(), false),
        (long.clone() + "y", true),
        (long.repeat(9), true),
    ] {
        let definition = "p:w syscalls:sys_enter_write t=+0($arg2):string if fd == 1";
        let values = |format: &str| {
            let output = probe(
                &["--format", format, "-e", definition],
                &[program, "-n", &text_of_it],
            );
            text(&output.stdout).to_owned()
        };
        let (lines, objects) = (values("text"), values("json"));
        let mark = match is_cut {
            true => ["\"... fd=1", "…\""],
            false => ["\" fd=1", "\""],
        };
        assert!(lines.contains(&format!("t=\"{long}{}", mark[0])), "{lines}");
        assert!(
            objects.contains(&format!("\"t\":\"{long}{}", mark[1])),
            "{objects}"
        );
        let definition = "p:w syscalls:sys_enter_write t=+0($arg2):string if fd == 1 hist:keys=t";
        let output = probe(&["-e", definition], &[program, "-n", &text_of_it]);
        let shown = text(&output.stdout);
        let mark = if is_cut { "..." } else { " " };
        assert!(shown.contains(&format!("{{ t: {long}{mark}")), "{shown}");
    }
}

#[test]
fn empty_histograms_of_many_are_only_counted() {
    let output = probe(&["-e", "syscalls:sys_enter_* hist:keys=comm"], &["true"]);
    let shown = text(&output.stdout);
    let heads = shown.matches("# trigger info: ").count();
    assert!((5..60).contains(&heads), "{shown}");
    assert!(
        shown.contains("# event: syscalls:sys_enter_mmap\n"),
        "{shown}"
    );
    assert!(!shown.contains("Hits: 0"), "{shown}");
    let last = shown.trim_end().lines().last().expect("a line");
    assert!(
        last.ends_with(" more of 'syscalls:sys_enter_* hist:keys=comm' are empty"),
        "{last}"
    );
    // A single one is shown in any case.
    let output = probe(
        &["-e", "syscalls:sys_enter_swapon hist:keys=comm"],
        &["true"],
    );
    assert!(text(&output.stdout).contains("    Hits: 0\n"), "{output:?}");
}

#[test]
fn stack_traces_have_all_callers() {
    for kind in Kind::ALL {
        if !kind.is_available() || !kind.has_names() {
            continue;
        }
        let program = build("probed.c", kind, UNWOUND);
        let file = path(&program);
        let [_, _, second, ..] = PARTS;
        let definitions = [
            format!("p:loop {file}:loop stacktrace"),
            format!("p:in {file}:work+* n={second}:s32 if n == 8 stacktrace"),
            format!(
                "p:work {file}:work n=$arg2:s32 ret={RETURN_ADDRESS}:symbol if n == 7 stacktrace print"
            ),
        ];
        let events = probed(&definitions, &[file], 1);
        let mut seen = 0;
        for event in &events {
            if event["args"].get("stacktrace").is_none() {
                let ret = event["args"]["ret"].as_str().expect("a symbol");
                assert!(ret.starts_with("run+0x"), "{ret}");
                continue;
            }
            seen += 1;
            let names = functions(event);
            // musl has no unwind tables, and neither has the static libc for RISC-V.
            let libc_without = format!("{kind:?}").contains("Musl")
                || cfg!(target_arch = "riscv64") && matches!(kind, Kind::Static | Kind::StaticPie);
            if !libc_without {
                assert_eq!(event["args"]["complete"], true, "{event}");
            }
            match event["name"].as_str() {
                Some("work" | "in") => assert_eq!(names[..2], ["work", "run"], "{names:?}"),
                _ => {
                    assert_eq!(names[..2], ["loop", "main"], "{names:?}");
                }
            }
        }
        assert!(seen > 50, "{seen}");
    }
}

/// Checks the stack traces of `leaf` in deep_stacks.c: which callers they have, and how deep they are.
fn check_deep_stacks(events: &[Value]) {
    let mut found = Vec::new();
    for event in events {
        let names = functions(event);
        let depth = names.iter().filter(|name| **name == "down").count();
        let after = names.get(1 + depth).copied().unwrap_or_default();
        assert_eq!(names[0], "leaf", "{names:?}");
        assert_eq!(event["args"]["complete"], true, "{event}");
        if after == "handler" {
            assert!(names.contains(&"interrupted"), "{names:?}");
        }
        if after != "thread" {
            assert!(names.contains(&"main"), "{names:?}");
        }
        found.push((after, depth));
    }
    found.sort_unstable();
    let expected = [
        ("handler", 4),
        ("main", 19),
        ("main", 19),
        ("main", 19),
        ("main", 19),
        ("thread", 1),
        ("thread", 1),
        ("thread", 1),
        ("thread", 19),
        ("thread", 19),
        ("thread", 19),
    ];
    assert_eq!(found, expected);
}

#[test]
fn stack_traces_of_threads_handlers_and_children_are_whole() {
    let options = &[UNWOUND, &["-O1", "-fno-optimize-sibling-calls", "-pthread"]].concat();
    for kind in [Kind::Pie, Kind::Fixed, Kind::Static] {
        let program = build("deep_stacks.c", kind, options);
        let definition = format!("{}:leaf stacktrace", path(&program));
        check_deep_stacks(&probed(&[definition], &[path(&program)], 1));
    }
}

/// The library's island already contains something when its probes are installed.
#[test]
fn stack_traces_of_functions_of_libraries_have_all_callers() {
    let options = &[UNWOUND, &["-O2", "-shared", "-fPIC"]].concat();
    let plugin = build_with("gcc", &["plugin.c"], options);
    let program = build("libraries.c", Kind::Pie, &[UNWOUND, &["-ldl"]].concat());
    let definition = format!("{}:inner stacktrace", path(&plugin));
    let events = probed(&[definition], &[path(&program), path(&plugin)], 2);
    assert_eq!(events.len(), 100);
    for event in &events {
        let found = functions(event);
        assert!(
            found.starts_with(&["inner", "plugin", "use", "main"]),
            "{event}"
        );
    }
}

#[test]
fn stack_traces_are_written_as_ftrace_does() {
    let program = build("probed.c", Kind::Pie, UNWOUND);
    let file = path(&program);
    let definition = format!("{file}:loop stacktrace");
    let output = probe(&["-e", &definition], &[file]);
    let lines: Vec<&str> = text(&output.stdout).lines().collect();
    assert!(
        lines[1].ends_with(": loop: (loop+0x0) <stack trace>"),
        "{output:?}"
    );
    assert_eq!(lines[2..4], [" => loop", " => main"]);
    assert_eq!(lines.last(), Some(&" => _start"));
}
