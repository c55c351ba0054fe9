//! Probes together with function tracing: one trace has both, and the program does what it does alone.

use std::path::Path;
use std::process::{Command, Output};

use hodo_tests::probing::{ARGUMENTS, PARTS, UNWOUND, path, text};
use hodo_tests::{IS_SLOW, Kind, Run, SHORTER, build, build_with, has_tool, hodo};
use serde_json::{Value, json};

fn available() -> impl Iterator<Item = Kind> {
    Kind::ALL.into_iter().filter(|kind| kind.is_available())
}

fn show(options: &[&str]) -> Output {
    Command::new(hodo())
        .args(options)
        .output()
        .expect("hodo can be run")
}

/// The names of functions with their calls, of a report.
fn calls(data: &str, name: &str) -> Option<u64> {
    let output = show(&["report", "-d", data, "--format=json"]);
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).expect("a report");
    let rows = report.as_array().expect("rows").iter();
    let mut named = rows.filter(|row| row["name"] == name);
    let calls = named.next()?["calls"].as_u64();
    assert!(named.next().is_none(), "{name} is there twice");
    calls
}

#[test]
fn calls_and_hits_are_both_exact() {
    for kind in available().filter(|kind| kind.has_names()) {
        let program = build("returns.c", kind, &[]);
        let file = path(&program);
        for (n, places) in ["negative", "*", "*+*"].into_iter().enumerate() {
            let entry = format!("{file}:{places} count");
            let back = format!("r {file}:{} count", if n == 0 { "negative" } else { "*" });
            let options = ["-e", &entry, "-e", &back];
            let run = Run::new(&format!("beside-{kind:?}-{n}"), &program);
            let trace = run.same(&options);
            let counts = std::fs::read(trace.directory().join("counts.json")).expect("counts");
            let counts: Vec<Value> = serde_json::from_slice(&counts).expect("JSON");
            let of = |name: &str, returns: bool| {
                let mut found = counts.iter().filter(|count| {
                    count["symbol"] == name
                        && (count["offset"] == 0 || count["places"][0][0] == 0)
                        && count.get("nmissed").is_some() == returns
                });
                let found = found.next().expect("a counter");
                let hits = found["hits"].as_u64();
                let hits = hits.or_else(|| found["places"][0][1].as_u64());
                (hits, found["nmissed"].as_u64())
            };
            assert_eq!(of("negative", false), (Some(300), None), "{kind:?}");
            assert_eq!(of("negative", true), (Some(300), Some(0)), "{kind:?}");
            if n > 0 {
                assert_eq!(of("last", true), (Some(301), Some(0)), "{kind:?}");
                assert_eq!(of("leaves", true), (Some(75), Some(0)), "{kind:?}");
                // Every frame is in the list, because a stub also returns through it: there is room for 4096.
                let (hits, missed) = of("deep", true);
                let (hits, missed) = (hits.unwrap_or(0), missed.unwrap_or(0));
                assert!(
                    hits > 4000 && hits + missed == 20_001,
                    "{kind:?}: {hits} {missed}"
                );
            }
            trace.has_calls(&[
                ("negative", 300),
                ("deep", 20_001),
                ("first", 300),
                ("middle", 300),
                ("last", 301),
                ("in_thread", 4010),
                ("leaves", 100),
                ("main", 1),
            ]);
        }
    }
}

#[test]
fn exceptions_and_signals_pass_through_stubs_and_probes() {
    for kind in available() {
        // Each of these runs takes a quarter of a minute in the emulator.
        if IS_SLOW && !matches!(kind, Kind::Pie | Kind::Static) {
            continue;
        }
        for source in [
            "exceptions.cc",
            "jumps.c",
            "signals.c",
            "threads.c",
            "values.c",
        ] {
            let program = build(source, kind, SHORTER);
            let file = path(&program);
            let every = format!("{file}:*+* count");
            let back = format!("r {file}:* $retval");
            let both = ["-e", &every, "-e", &back];
            // Each kind by itself once.
            let options: &[&[&str]] = match kind {
                Kind::Pie if !IS_SLOW => &[&both[..2], &both[2..], &both],
                _ => &[&both],
            };
            for (n, options) in options.iter().enumerate() {
                let name = format!("beside-{source}-{kind:?}-{n}");
                Run::new(&name, &program).same(options);
            }
        }
    }
    let program = build("exceptions.cc", Kind::Pie, SHORTER);
    let run = Run::new("beside-libraries", &program);
    run.same(&[
        "-l",
        "-e",
        "libstdc++.so.6:*+* count",
        "-e",
        "r libc.so.6:m* count",
    ]);
}

#[test]
fn sites_that_compilers_prepared_are_shared() {
    // Only compilers for x86-64 know the option.
    let fentry: &[&str] = match cfg!(target_arch = "x86_64") {
        true => &["-pg", "-mfentry"],
        false => &["-fpatchable-function-entry=2"],
    };
    for (n, flags) in [
        &["-pg"][..],
        fentry,
        &["-fpatchable-function-entry=5"],
        &["-fno-plt"],
    ]
    .iter()
    .enumerate()
    {
        let all = [&["-O2", "-w", "-pthread"], *flags].concat();
        let program = build_with("gcc", &["returns.c"], &all);
        let file = path(&program);
        let entry = format!("{file}:negative+* count");
        let back = format!("r {file}:* count");
        let run = Run::new(&format!("beside-prepared-{n}"), &program);
        let trace = run.same(&["-e", &entry, "-e", &back]);
        trace.has_calls(&[("negative", 300), ("deep", 20_001)]);
    }
}

/// The hits in a text dump: name, values, and the innermost open function.
fn hits_in_calls(dump: &str) -> Vec<(&str, &str, &str)> {
    let mut hits = Vec::new();
    let mut open = Vec::new();
    for line in dump.lines() {
        if let Some((_, event)) = line.split_once(": [event] ") {
            let (event, depth) = event.split_once(" depth: ").expect("a depth");
            assert_eq!(depth.parse(), Ok(open.len()), "{line}");
            let (name, told) = event.split_once(": ").expect("a name");
            hits.push((name, told, open.last().copied().unwrap_or("")));
        } else if let Some((_, entry)) = line
            .split_once(": [entry] ")
            .or_else(|| line.split_once(": [jump ] "))
        {
            // A tail call is nested in its caller, and has its own exit.
            open.push(entry.split_once('(').expect("an address").0);
        } else if line.contains(": [exit ] ") {
            open.pop();
        } else if line.starts_with("reading ") {
            open.clear();
        }
    }
    hits
}

#[test]
fn events_are_shown_among_the_calls() {
    let program = build("returns.c", Kind::Fixed, &[]);
    let file = path(&program);
    let data = hodo_tests::scratch("beside-replay").join("data");
    let data = path(&data);
    let entry = format!("{file}:half x=$arg1:s32");
    let back = format!("r {file}:negative v=$retval:s32 if v == 7");
    let output = Command::new(hodo())
        .args(["record", "-d", data, "-e", &entry, "-e", &back, "--", file])
        .output()
        .expect("hodo can be run");
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let replay = show(&["replay", "-d", data, "-f", "none"]);
    let replayed = text(&replay.stdout);
    let returns = replayed.matches("/* negative__return: v=7 */").count();
    assert_eq!(returns, 1, "{replayed:.2000}");
    assert!(
        replayed.contains("  negative() {\n    /* negative__return: v=7 */\n  } /* negative */\n"),
        "{replayed:.2000}"
    );
    assert_eq!(replayed.matches("/* half: x=").count(), 300);
    assert_eq!(calls(data, "half"), Some(300));
    assert_eq!(calls(data, "negative__return"), None);
    let graph = show(&["graph", "-d", data]);
    assert!(!text(&graph.stdout).contains("negative__return"));
    let dump = show(&["dump", "-d", data, "--chrome"]);
    assert!(text(&dump.stdout).contains("negative__return"));
    let dump = show(&["dump", "-d", data]);
    let events = hits_in_calls(text(&dump.stdout));
    assert_eq!(events.iter().filter(|hit| hit.0 == "half").count(), 300);
    assert!(events.contains(&("negative__return", "v=7", "negative")));
    assert!(events.iter().all(|hit| hit.0 != "half" || hit.2 == "half"));
    // `live` shows the same.
    let live = show(&["live", "-f", "none", "-e", &back, "--", file]);
    assert!(text(&live.stdout).contains("    /* negative__return: v=7 */\n"));
}

#[test]
fn stack_traces_lead_through_traced_functions() {
    for kind in available().filter(|kind| kind.has_names()) {
        let program = build("probed.c", kind, UNWOUND);
        let file = path(&program);
        let loops = format!("p:loop {file}:loop stacktrace");
        let [_, _, second, ..] = PARTS;
        let inside = format!("p:in {file}:work+* n={second}:s32 if n == 8 stacktrace");
        let back = format!("r:back {file}:work v=$retval:s32 if v == 9 stacktrace");
        let data = hodo_tests::scratch(&format!("beside-stacks-{kind:?}")).join("data");
        let data = path(&data);
        for more in [&[][..], &["--check-frames"], &["-l"]] {
            let definitions = ["-e", &loops, "-e", &inside, "-e", &back];
            let output = Command::new(hodo())
                .args(["record", "-d", data])
                .args(more)
                .args(definitions)
                .args(["--", file])
                .output()
                .expect("hodo can be run");
            assert_eq!(output.status.code(), Some(0), "{output:?}");
            let dump = show(&["dump", "-d", data]);
            let hits = hits_in_calls(text(&dump.stdout));
            let chains = |name: &str, innermost: &str| {
                let chains: Vec<_> = hits.iter().filter(|hit| hit.0 == name).collect();
                assert!(!chains.is_empty(), "{kind:?} {more:?}: {name}");
                for (_, told, _) in chains {
                    // The values come first.
                    let chain = told.rsplit(": ").next().expect("a chain");
                    assert!(chain.starts_with(innermost), "{kind:?} {more:?}: {chain}");
                    // libc's functions come after these; musl has no unwind tables, and neither has the static libc for
                    // RISC-V.
                    let whole = !chain.ends_with('?');
                    let without = cfg!(target_arch = "riscv64")
                        && matches!(kind, Kind::Static | Kind::StaticPie);
                    assert!(
                        whole || without || matches!(kind, Kind::Musl | Kind::MuslStatic),
                        "{kind:?} {more:?}: {chain}"
                    );
                }
            };
            chains("loop", "loop <- main");
            chains("in", "work <- run");
            chains("back", "run");
            assert!(
                hits.iter().any(|hit| hit.1.starts_with("n=8: work")),
                "{hits:?}"
            );
        }
    }
}

#[test]
fn real_programs() {
    let script = "f() { local x=$1; [ $x -gt 0 ] && f $((x-1)); }; f 20; for i in 1 2 3; do echo $i; done | tac";
    for options in [
        &["-e", "bash:*+* count"][..],
        &["-e", "r bash:* count", "-e", "bash:*"],
        &[
            "-l",
            "-e",
            "libc.so.6:*+* count",
            "-e",
            "r libc.so.6:* count",
        ],
    ] {
        let name = format!("beside-bash-{}-{}", options.len(), options[0]);
        let bash = Path::new("/bin/bash");
        Run::new(&name, bash).args(["-c", script]).same(options);
    }
    if has_tool("sqlite3") && Path::new("/usr/bin/sqlite3").exists() {
        let run = Run::new("beside-sqlite3", Path::new("/usr/bin/sqlite3"));
        run.args([":memory:", "select sum(value) from generate_series(1, 100)"])
            .same(&["-e", "sqlite3:*+* count", "-e", "libsqlite3.so.0:* count"]);
    }
}

#[test]
fn no_call_begins_while_tracing_is_off() {
    for kind in available().filter(|kind| kind.has_names()) {
        let program = build("conditions.c", kind, &[]);
        let place = format!("{}:values c={}:u32", path(&program), ARGUMENTS[2]);
        // Two threads have c = 37 i for i below 60, one after the other. Calls 11 to 20 begin while tracing is off.
        let off = format!("p:off {place} if c == 370 traceoff");
        let on = format!("p:on {place} if c == 740 traceon");
        let hits = format!("p:n {place} count");
        let definitions = ["-e", &off, "-e", &on, "-e", &hits];
        let more: [&[&str]; 5] = [
            &[],
            &["--check-frames"],
            &["-D", "9"],
            &["-F", "values"],
            &["--no-time"],
        ];
        for (n, more) in more.into_iter().enumerate() {
            let run = Run::new(&format!("beside-off-{kind:?}-{n}"), &program);
            let trace = run.same(&[&definitions, more].concat());
            let mut expected = vec![("values", 100)];
            if more.first() != Some(&"-F") {
                expected.extend([("run", 2), ("main", 1)]);
            }
            trace.has_calls(&expected);
            // The call that switched tracing off was open and has its exit, and so does each recorded call.
            let raw = trace.view("dump", &[]);
            let lines = |what: &str| {
                let of = |line: &&str| line.contains(what) && line.contains("values");
                raw.lines().filter(of).count()
            };
            assert_eq!(lines("entry"), 100, "{kind:?} {more:?}");
            assert_eq!(lines("exit"), 100, "{kind:?} {more:?}");
            assert_eq!(trace.info()["lost"], 0);
        }
    }
}

#[test]
fn an_action_switches_on_what_begins_switched_off() {
    let program = build("conditions.c", Kind::Pie, &[]);
    let place = format!("{}:values c={}:u32", path(&program), ARGUMENTS[2]);
    let on = format!("p:on {place} if c == 740 traceon");
    let print = format!("p:print {place}");
    // Two threads have c = 37 i for i below 60, one after the other. The first 20 calls begin while recording is off.
    for (definitions, expected) in [
        (&["-e", &on][..], Some(99)),
        (&["-e", &on, "-e", &print], Some(99)),
        (&["-e", &print], None),
    ] {
        let run = Run::new(&format!("beside-on-{}", definitions.len()), &program);
        let trace = run.same(&[&["--trace", "off"], definitions].concat());
        let raw = trace.view("dump", &[]);
        let lines = |what: &str| raw.lines().filter(|line| line.contains(what)).count();
        assert_eq!(
            lines("[entry] values"),
            expected.unwrap_or(0),
            "{definitions:?}"
        );
        let events = match definitions.contains(&print.as_str()) {
            true => expected.unwrap_or(120) + expected.map_or(0, |_| 1),
            false => 0,
        };
        assert_eq!(lines("[event] print"), events, "{definitions:?}");
    }
}

#[test]
fn info_shows_what_probes_have_counted() {
    let program = build("conditions.c", Kind::Pie, &[]);
    let place = format!("{}:values", path(&program));
    let hits = format!("p:n {place} count");
    let third = ARGUMENTS[2];
    let table = format!("p:h {place} c={third}:u32 if c < 74 hist:keys=c");
    let returns = format!("r:back {place} count");
    let run = Run::new("beside-info", &program);
    let trace = run.same(&["-e", &hits, "-e", &table, "-e", &returns]);
    let text = trace.view("info", &[]);
    for line in [
        "        HITS  PROBE",
        "         120  n: (values+0x0)",
        "         120  back: (<- values)",
        "{ c:          0 } hitcount:          2",
        "{ c:         37 } hitcount:          2",
        "    Hits: 4",
    ] {
        assert!(text.lines().any(|shown| shown == line), "{line}\n{text}");
    }
    let info = trace.info();
    let probes = info["probes"].as_array().expect("a list");
    let named = |name: &str| probes.iter().find(|probe| probe["name"] == name);
    assert_eq!(named("n").expect("it counts")["hits"], 120);
    assert_eq!(named("back").expect("it counts")["nmissed"], 0);
    assert_eq!(info["histograms"][0]["hits"], 4);
    // The calls are those of a recording without probes.
    let without = Run::new("beside-info-none", &program).same(&[]);
    assert_eq!(trace.calls(), without.calls());
    let none = without.info();
    assert_eq!(
        (&none["probes"], &none["histograms"]),
        (&json!([]), &json!([]))
    );
    assert!(!without.view("info", &[]).contains("HITS"));
    // Damaged files are left out, and that is reported.
    for file in ["counts.json", "hists.json"] {
        std::fs::write(trace.directory().join(file), "[{").expect("it can be written");
    }
    let damage = trace.info()["damage"].to_string();
    for file in ["counts.json", "hists.json"] {
        assert!(damage.contains(&format!("{file} is damaged: ")), "{damage}");
    }
    assert!(!trace.view("info", &[]).contains("HITS"));
}
