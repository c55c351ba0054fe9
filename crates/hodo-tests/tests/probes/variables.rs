//! Source variables as values of probes.

use std::path::Path;
use std::process::Command;

use hodo_tests::probing::{path, probe_words, text};
use hodo_tests::{Kind, build};
use serde_json::Value;

/// The number of the line that ends with a mark.
fn line_in(source: &str, mark: &str) -> u32 {
    let source = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("programs")
        .join(source);
    let source = std::fs::read_to_string(source).expect("the source");
    let mark = format!("// line: {mark}");
    let line = source.lines().position(|line| line.ends_with(&mark));
    line.expect("the line") as u32 + 1
}

/// The number of the line that ends with a mark.
fn line_of(mark: &str) -> u32 {
    line_in("sources.c", mark)
}

/// The values of the events of one probe.
fn values(program: &Path, definition: &str) -> Vec<Value> {
    let file = path(program);
    let definition = format!("p:seen {file}:{definition}");
    let output = probe_words(&["--format", "json", "-e", &definition, "--", file]);
    assert_eq!(output.status.code(), Some(0), "{definition}: {output:?}");
    let lines = text(&output.stdout).lines();
    let events = lines.filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let events = events.filter(|event| event["name"] == "seen");
    events.map(|event| event["args"].clone()).collect()
}

#[test]
fn variables_have_the_values_of_their_types() {
    // With locations for whole functions, and with location lists; with older and newer debugging information.
    let kinds = [
        ["-O0", "-gdwarf-5"],
        ["-O2", "-gdwarf-5"],
        ["-O1", "-gdwarf-4"],
    ];
    for flags in kinds {
        for kind in [Kind::Pie, Kind::Fixed, Kind::Static] {
            let program = build("sources.c", kind, &flags);
            let seen = values(
                &program,
                "show p->id small color yes letter count=count p->name text=p->name:string p->flags \
                 p->level x=p->in[2].x y=p->in[2].y far=p->in[1].far total label whole=p->whole \
                 part=p->parts[1] next=p->next->name:string first=first.in[3].far hex=small:x8 if total < 0",
            );
            assert_eq!(seen.len(), 2, "{flags:?}");
            for (one, expected) in seen.iter().zip([
                serde_json::json!({
                    "id": 2, "small": -3, "color": 6, "yes": 1, "letter": "q", "count": 65535, "text": "second",
                    "flags": 0, "level": 0, "x": 0, "y": 0, "far": 0, "total": -7, "label": "label", "whole": 0,
                    "part": 0, "next": "first", "first": 12, "hex": 0xFD,
                }),
                serde_json::json!({
                    "id": 1, "small": -3, "color": 6, "yes": 1, "letter": "q", "count": 65535, "text": "first",
                    "flags": 5, "level": 99, "x": -7, "y": 8, "far": 6, "total": -7, "label": "label",
                    "whole": 0x0102_0304, "part": 3, "next": null, "first": 12, "hex": 0xFD,
                }),
            ]) {
                for (name, value) in expected.as_object().expect("values") {
                    assert_eq!(&one[name], value, "{flags:?} {name}");
                }
                assert!(one["name"].as_u64() > Some(0x1000));
            }
        }
    }
}

#[test]
fn local_variables_are_seen_at_their_lines() {
    let program = build("sources.c", Kind::Pie, &["-g", "-O0"]);
    let seen = values(
        &program,
        &format!("sources.c:{} $params local", line_of("shown")),
    );
    let locals: Vec<_> = seen.iter().map(|one| one["local"].as_i64()).collect();
    assert_eq!(locals, [Some(2 - 3 + 131_070), Some(1 - 3 + 131_070)]);
    assert_eq!(
        (&seen[0]["small"], &seen[1]["letter"]),
        (&(-3).into(), &"q".into())
    );
    assert_eq!(seen[0]["yes"], 1);
    let seen = values(
        &program,
        &format!("sources.c:{} i sum n=n if i >= 98", line_of("body")),
    );
    assert_eq!(seen.len(), 2);
    assert_eq!((&seen[1]["i"], &seen[1]["n"]), (&99.into(), &100.into()));
    // A variable of a block, and a static variable of a function.
    let seen = values(&program, &format!("sources.c:{} $vars", line_of("printed")));
    assert_eq!(
        (&seen[0]["calls"], &seen[1]["calls"]),
        (&4.into(), &5.into())
    );
    assert!(
        seen[0]["p"]
            .as_u64()
            .is_some_and(|p| p > 0 && seen[0]["list"] == p)
    );
}

#[test]
fn usdt_probes_have_their_arguments() {
    for kind in [Kind::Pie, Kind::Fixed, Kind::Static] {
        let program = build("usdt.S", kind, &[]);
        let file = path(&program);
        let alone = Command::new(&program)
            .status()
            .expect("the program can be run");
        assert_eq!(alone.code(), Some(0));
        for (args, expected) in [
            (
                "",
                serde_json::json!({"arg1": -7, "arg2": 1234, "arg3": 5, "arg4": -77, "arg5": 1}),
            ),
            ("b=arg2:x16 if b == 1234", serde_json::json!({"b": 1234})),
            // By number, as at functions, with the types of the note.
            (
                "$arg1 b=$arg2 c=$arg4 if b == 1234 && arg1 < 0",
                serde_json::json!({"arg1": -7, "b": 1234, "c": -77}),
            ),
        ] {
            let definition = format!("{file}:%tests:step {args}");
            let output = probe_words(&["--format", "json", "-e", &definition, "--", file]);
            // Its semaphore was raised.
            assert_eq!(output.status.code(), Some(1), "{output:?}");
            let event: Value = serde_json::from_str(text(&output.stdout)).expect("an event");
            assert_eq!(event["name"], "tests_step");
            assert_eq!(event["args"], expected);
        }
    }
    // In one of the machine's libraries.
    let program = build("exceptions.cc", Kind::Pie, &[]);
    let output = probe_words(&[
        "-e",
        "libstdc++.so.6:%libstdcxx:throw count",
        "--",
        path(&program),
    ]);
    let said = text(&output.stdout);
    assert!(said.contains("  libstdcxx_throw: ("), "{output:?}");
    assert!(
        !said.contains("           0  libstdcxx_throw"),
        "{output:?}"
    );
    let program = build("usdt.S", Kind::Pie, &[]);
    let bare = build("sources.c", Kind::Pie, &[]);
    for (program, definition, message) in [
        (
            &program,
            "%tests:other",
            "has no USDT probe tests:other; hodo probe --usdt lists those it has",
        ),
        (&bare, "%tests:step", "has no USDT probes"),
        (
            &program,
            "%tests:step $arg6",
            "there is no $arg6: the USDT probe has 5 arguments",
        ),
        (
            &program,
            "%tests:step%return",
            "a return probe needs a function; a USDT probe may be anywhere in it",
        ),
        (&program, "%tests", "a colon and the name of the USDT probe"),
    ] {
        let definition = format!("{}:{definition}", path(program));
        let output = probe_words(&["-e", &definition, "--", path(program)]);
        assert_eq!(output.status.code(), Some(125), "{definition}: {output:?}");
        assert!(
            text(&output.stderr).contains(message),
            "{definition}: {output:?}"
        );
    }
}

#[test]
fn variables_of_c_plus_plus() {
    for optimized in ["-O0", "-O2"] {
        let program = build("members.cc", Kind::Pie, &["-g", optimized]);
        let line = line_in("members.cc", "summed");
        let place = if optimized == "-O0" {
            format!("members.cc:{line}")
        } else {
            "Point::sum".to_owned()
        };
        let seen = values(
            &program,
            &format!(
                "{place} this->x y=other.y id=this->id weight=this->weight last=grid[1][2] ns::total \
                 ns::inner::depth inner=inner::depth Point::made"
            ),
        );
        assert_eq!(seen.len(), 1);
        for (name, value) in [
            ("x", 3),
            ("y", -6),
            ("id", 7),
            ("last", 6),
            ("total", 40),
            ("depth", -2),
            ("inner", -2),
            ("made", 2),
        ] {
            assert_eq!(seen[0][name], value, "{optimized} {name}");
        }
        // The optimizer does not store what nothing reads.
        assert!(optimized == "-O2" || seen[0]["weight"] == 1.5f64.to_bits());
    }
}

#[test]
fn variables_that_cannot_be_fetched_are_reported() {
    let program = build("sources.c", Kind::Pie, &["-g", "-O0"]);
    let optimized = build("sources.c", Kind::Pie, &["-g", "-O2"]);
    let bare = build("sources.c", Kind::Pie, &[]);
    for (program, definition, message) in [
        (
            &bare,
            "show p->id",
            "has no debugging information: compile it with -g, or install its debug package",
        ),
        (
            &program,
            "show zork",
            "there is no variable zork here; there are p, small, color, ",
        ),
        (
            &program,
            "show p->nome",
            "*p has no member nome; it has id, flags, level, name, in, next, whole, parts",
        ),
        (&program, "show p.id", "p is a pointer: write p->id"),
        (
            &program,
            "show first->id",
            "first is no pointer: write first.id",
        ),
        (
            &program,
            "show first",
            "first is a structure: name a member, one of id, flags, ",
        ),
        (
            &program,
            "show first.in",
            "first.in is an array: name an element, first.in[0]",
        ),
        (
            &program,
            "show first.in[4].x",
            "first.in has 4 elements, from 0 on",
        ),
        (&program, "show small[1]", "small is no array"),
        (&program, "show small.x", "small has no members"),
        (&program, "show small:string", "small is no string"),
        (
            &program,
            "show local",
            "local is not yet in its place at the function's first instructions; probe a later line",
        ),
        (&program, "show $vars:u8", "$vars takes no type"),
        (
            &program,
            "show%return x=total",
            "variables cannot be fetched when a function returns; only $retval can",
        ),
        (
            &program,
            "show $vars hist:keys=nothing",
            "there is no variable nothing here",
        ),
        (&optimized, "show hidden", "hidden is optimized out here"),
    ] {
        let definition = format!("{}:{definition}", path(program));
        let output = probe_words(&["-e", &definition, "--", path(program)]);
        assert_eq!(output.status.code(), Some(125), "{definition}: {output:?}");
        let said = text(&output.stderr);
        assert!(said.contains(message), "{definition}: {said}");
        assert!(output.stdout.is_empty(), "{definition}: it ran");
    }
}

/// The histogram of a definition, and what was said.
fn histogram(program: &Path, definition: &str) -> (Value, String) {
    let file = path(program);
    let definition = format!("{file}:{definition}");
    let output = probe_words(&["--format", "json", "-e", &definition, "--", file]);
    assert_eq!(output.status.code(), Some(0), "{definition}: {output:?}");
    let lines = text(&output.stdout).lines();
    let mut objects = lines.filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let found = objects.find(|object| object.get("hist").is_some());
    (found.expect("a histogram"), text(&output.stderr).to_owned())
}

#[test]
fn histograms_of_variables() {
    let program = build("sources.c", Kind::Pie, &["-O0", "-gdwarf-5"]);
    let line = line_of("body");
    let (found, _) = histogram(
        &program,
        &format!("sources.c:{line} i hist:keys=i.buckets=25:vals=i:sort=i"),
    );
    let entries = found["hist"].as_array().expect("entries").iter();
    let rows: Vec<_> = entries
        .map(|entry| (&entry["key"]["i"], &entry["hitcount"], &entry["sums"]["i"]))
        .collect();
    // One line may be at more than one place.
    let first = rows[0].1.as_u64().expect("hits");
    assert!(first % 25 == 0 && rows.len() == 4, "{found}");
    for (bucket, row) in rows.iter().enumerate() {
        let times = first / 25;
        let low = bucket as u64 * 25;
        let sum = (low..low + 25).sum::<u64>() * times;
        assert_eq!((row.0.as_u64(), row.2.as_u64()), (Some(low), Some(sum)));
        assert_eq!(row.1.as_u64(), Some(first), "{found}");
    }
    for flags in [["-O0", "-gdwarf-5"], ["-O2", "-gdwarf-5"]] {
        let program = build("sources.c", Kind::Pie, &flags);
        let (found, _) = histogram(
            &program,
            "show small label name=p->name:string hist:keys=small,label,name:vals=small:sort=name",
        );
        let key = |name: &str| serde_json::json!({"small": -3, "label": "label", "name": name});
        let entry = |name: &str| serde_json::json!({"key": key(name), "hitcount": 1, "sums": {"small": -3}});
        let both = serde_json::json!([entry("first"), entry("second")]);
        assert_eq!(found["hist"], both, "{flags:?}");
    }
}

#[test]
fn a_histogram_has_one_type_of_key() {
    let program = build("types.c", Kind::Pie, &["-O1", "-gdwarf-5"]);
    for (pattern, keys) in [("wide_of", [-1, 0, 1].as_slice()), ("narrow_of", &[0, 1])] {
        let (found, said) = histogram(&program, &format!("{pattern} n hist:keys=n:sort=n"));
        let entries = found["hist"].as_array().expect("entries").iter();
        let seen: Vec<_> = entries.map(|entry| entry["key"]["n"].as_i64()).collect();
        let keys: Vec<_> = keys.iter().map(|key| Some(*key)).collect();
        assert_eq!((seen, said.as_str()), (keys, ""));
    }
    // The second place is left out, and that is reported.
    let (found, said) = histogram(&program, "*_of n hist:keys=n");
    assert_eq!(found["hits"], 10);
    let reason = "the values of its histogram have different types here and elsewhere";
    assert!(said.contains(reason), "{said}");
}

#[test]
fn conditions_name_what_all_variables_bring() {
    let program = build("sources.c", Kind::Pie, &["-O0", "-gdwarf-5"]);
    // A condition may use the variables that `$params` and `$vars` add; each is one argument.
    for (definition, hits) in [
        ("show $params if small == -3 && count == 65535", 2),
        ("show $vars if color == 6 && letter == 'q'", 2),
        ("show $vars if small > 0", 0),
    ] {
        let seen = values(&program, definition);
        assert_eq!(seen.len(), hits, "{definition}");
        for args in seen {
            assert_eq!(
                (&args["small"], &args["count"]),
                (&(-3).into(), &65535.into())
            );
            assert_eq!(args["letter"], "q", "{args}");
        }
    }
    let (found, _) = histogram(&program, "show $vars hist:keys=count:vals=small");
    assert_eq!(found["hits"], 2);
    assert_eq!(found["hist"][0]["key"]["count"], 65535);
    assert_eq!(found["hist"][0]["sums"]["small"], -6);
}
