//! Tracepoints of a Rust program, seen from outside. This is the program itself: the test `target`, which runs only
//! when named.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use hodo_keys::tracepoint;
use hodo_tests::probing::{path, probe, text};
use hodo_tests::target::{Target, run, seen_in_time};
use hodo_tests::{has_tool, hodo, needs, scratch};
use serde_json::{Value, json};

/// What the program should do.
const DO: &str = "HODO_TEST_TARGET";

#[inline(never)]
fn sell(id: u32) -> u64 {
    tracepoint!(
        shop,
        sell,
        id,
        item = format!("item {id}"),
        price = f64::from(id) * 1.5,
        weight = -0.25_f32,
        gift = id.is_multiple_of(2),
        letter = 'ß',
        balance = -i64::from(id),
    );
    tracepoint!(shop, sold, at = &raw const id);
    u64::from(id) * 2
}

/// A generic function has its own branch for each type; they share one key.
#[inline(never)]
fn generic<T: Copy + Into<u64>>(value: T) -> u64 {
    tracepoint!(shop, generic, value = value.into());
    value.into() + 1
}

#[test]
#[ignore = "it is what hodo is run on"]
fn target() {
    let what = std::env::var(DO).unwrap_or_default();
    let seen = Arc::new(AtomicU64::new(0));
    let count = {
        let seen = Arc::clone(&seen);
        move |_: &tracepoint::Event<'_>| {
            seen.fetch_add(1, Ordering::Relaxed);
        }
    };
    match &*what {
        "own" => {
            sell(1);
            let registration = tracepoint::register("shop:sell", count).expect("registered");
            sell(2);
            registration.remove().expect("removed");
            sell(3);
            eprintln!("seen {}", seen.load(Ordering::Relaxed));
        }
        "switch" => switch(&seen, count),
        _ => {
            let sum: u64 = (1..=3).map(sell).sum();
            eprintln!("sum {}", sum + generic(7_u8) + generic(8_u32));
        }
    }
}

/// Switches its tracepoints until its input ends, while another thread hits them.
fn switch(
    seen: &AtomicU64,
    count: impl Fn(&tracepoint::Event<'_>) + Clone + Send + Sync + 'static,
) {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                sell(5);
                generic(6_u16);
                std::thread::sleep(Duration::from_micros(100));
            }
        });
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                let all = tracepoint::register("*", count.clone()).expect("registered");
                let some = tracepoint::enable("shop:sell").expect("enabled");
                some.remove().expect("removed");
                all.remove().expect("removed");
                std::thread::sleep(Duration::from_micros(200));
            }
        });
        // The test harness's output comes before.
        println!("\nbegun");
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        stop.store(true, Ordering::Relaxed);
    });
    let before = seen.swap(0, Ordering::Relaxed);
    sell(1);
    let mut on = Vec::new();
    tracepoint::for_each(|tracepoint| {
        if tracepoint.key().is_enabled() {
            on.push(tracepoint.full_name());
        }
    })
    .expect("the list");
    println!("seen {}, then {seen:?}; on: {on:?}", before > 0);
}

fn program() -> PathBuf {
    std::env::current_exe().expect("this program")
}

/// The program without its symbols.
fn stripped(test: &str) -> PathBuf {
    let copy = scratch(test).join("stripped");
    let status = Command::new("strip")
        .arg("-o")
        .arg(&copy)
        .arg(program())
        .status();
    assert!(status.expect("strip can be run").success());
    copy
}

/// Runs it under `hodo probe`. The harness's own lines are left out.
fn events(what: &str, program: &Path, patterns: &[&str]) -> (Output, Vec<Value>) {
    let mut options = vec!["--format", "json"];
    for pattern in patterns {
        options.extend(["--event", pattern]);
    }
    let command = [
        path(program),
        "target",
        "--exact",
        "--ignored",
        "--nocapture",
    ];
    let environment = format!("{DO}={what}");
    let output = probe(&options, &[&["env", &environment][..], &command].concat());
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let lines = text(&output.stdout).lines();
    let events = lines.filter(|line| line.starts_with('{'));
    let events = events.map(|line| serde_json::from_str(line).expect("JSON"));
    let events = events.collect();
    (output, events)
}

#[test]
fn arguments_have_their_names_and_types() {
    for program in [program(), stripped("arguments_have_their_names_and_types")] {
        let (output, events) = events("", &program, &["shop:*"]);
        let said = text(&output.stderr);
        assert!(said.contains("sum 29\n"), "{said}");
        let names: Vec<_> = events.iter().map(|event| event["name"].as_str()).collect();
        let names: Vec<&str> = names.into_iter().flatten().collect();
        let expected = [
            "sell", "sold", "sell", "sold", "sell", "sold", "generic", "generic",
        ];
        assert_eq!(names, expected);
        assert_eq!(
            events[2]["args"],
            json!({
                "id": 2, "item": "item 2", "price": 3.0, "weight": -0.25, "gift": true, "letter": "ß",
                "balance": -2,
            })
        );
        assert!(
            events[3]["args"]["at"].as_u64() > Some(0x1000),
            "{}",
            events[3]
        );
        let values: Vec<_> = events[6..]
            .iter()
            .map(|event| &event["args"]["value"])
            .collect();
        assert_eq!(values, [&json!(7), &json!(8)]);
    }
}

#[test]
fn events_are_named_after_the_function_that_has_the_tracepoint() {
    let (_, events) = events("", &program(), &["shop:*"]);
    assert_eq!(events.len(), 8);
    for event in &events {
        // Both manglings contain each part of the path, preceded by its length.
        let part = match event["name"].as_str() {
            Some("generic") => "16rust_tracepoints7generic",
            _ => "16rust_tracepoints4sell",
        };
        let function = event["symbol"].as_str().expect("a function");
        assert!(function.contains(part), "{event}");
    }
}

#[test]
fn types_of_arguments_are_listed() {
    let output = Command::new(hodo())
        .arg("list-events")
        .args([program().as_os_str(), "shop:se*".as_ref()])
        .output()
        .expect("hodo can be run");
    assert_eq!(
        text(&output.stdout),
        "# KIND        GROUP:NAME  ARGUMENTS\n\
         \x20 tracepoint  shop:sell  id:u32 item:str price:f64 weight:f32 gift:bool letter:char balance:i64\n"
    );
}

#[test]
fn functions_of_the_program_and_hodo_see_the_same_hits() {
    let (output, events) = events("own", &program(), &["shop:sell"]);
    assert!(text(&output.stderr).contains("seen 1\n"), "{output:?}");
    let ids: Vec<_> = events
        .iter()
        .map(|event| event["args"]["id"].as_u64())
        .collect();
    assert_eq!(ids, [Some(1), Some(2), Some(3)]);
}

/// Attaches while the program switches its tracepoints all the time.
fn attach(program: &Path) {
    let arguments = ["target", "--exact", "--ignored", "--nocapture"];
    let target = Target::start_in(program, &arguments, &[(DO, "switch")]);
    for _ in 0..5 {
        seen_in_time("0.1", |time| {
            let output = run(
                &target,
                &[
                    "probe", "--for", time, "--format", "json", "--event", "shop:*",
                ],
            );
            ["sell", "sold", "generic"].into_iter().all(|name| {
                let line = format!("\"name\":\"{name}\"");
                text(&output.stdout).matches(&line).count() > 10
            })
        });
    }
    let rest = target.ended();
    assert!(rest.starts_with("seen true, then 0; on: []\n"), "{rest}");
}

#[test]
fn a_program_that_switches_its_tracepoints_can_be_attached_to() {
    attach(&program());
}

#[test]
fn a_stripped_program_that_switches_its_tracepoints_can_be_attached_to() {
    needs!(has_tool("strip"), "strip is needed");
    attach(&stripped(
        "a_stripped_program_that_switches_its_tracepoints_can_be_attached_to",
    ));
}
