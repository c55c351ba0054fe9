//! Tracepoints of a Rust program (`hodo-keys`), as tools see them: hodo, bpftrace, perf.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

use hodo_tests::probing::{objects, path, probe, probe_words, text};
use hodo_tests::{example, has_tool, hodo, needs, scratch};
use serde_json::json;

/// The example of `hodo-keys`.
fn program() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| example("hodo-keys", "tracepoints"))
}

/// Its own output.
fn own(hits: u32) -> String {
    format!("total 1785\nhits {hits}\n")
}

fn run(command: &mut Command) -> Output {
    let output = command.env("LC_ALL", "C").output().expect("it can be run");
    assert!(output.status.success(), "{command:?}: {output:?}");
    output
}

#[test]
fn tracepoints_are_listed_as_usdt_probes_and_with_types() {
    let output = probe_words(&["--usdt", path(program())]);
    let listed = text(&output.stdout);
    let lines = match () {
        () if cfg!(target_arch = "riscv64") => [
            "  shop:order  4@a0 8@a1 -8@a2\n",
            "  shop:priced  8@a0 -8@a1\n",
        ],
        () if cfg!(target_arch = "aarch64") => [
            "  shop:order  4@x0 8@x1 -8@x2\n",
            "  shop:priced  8@x0 -8@x1\n",
        ],
        () => [
            "  shop:order  4@%edi 8@%rsi -8@%rdx\n",
            "  shop:priced  8@%rdi -8@%rsi\n",
        ],
    };
    for line in lines {
        assert!(listed.contains(line), "{listed}");
    }
    let output = run(Command::new(hodo()).arg("list-events").arg(program()));
    assert_eq!(
        text(&output.stdout),
        "# KIND        GROUP:NAME  ARGUMENTS\n  \
         tracepoint  shop:order  id:u32 item:str cents:i64\n  \
         tracepoint  shop:priced  order:ptr total:i64\n"
    );
}

#[test]
fn a_probe_on_a_tracepoint_has_its_arguments() {
    let file = path(program());
    let definition = format!("{file}:%shop:order id=arg1 item=+0(arg2):string cents=arg3");
    let orders = [
        json!({"id": 1, "item": "item 1", "cents": -500}),
        json!({"id": 2, "item": "item 2", "cents": 500}),
        json!({"id": 3, "item": "item 3", "cents": 1500}),
    ];
    // The program has enabled it, or counts its hits, or only hodo uses it.
    for (words, hits) in [
        (&["--enable", "shop:*"][..], 0),
        (&["--count", "shop:*"], 6),
        (&[], 0),
    ] {
        let command = [&[file], words].concat();
        let output = probe(&["--format", "json", "-e", &definition], &command);
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        assert!(text(&output.stdout).starts_with(&own(hits)), "{output:?}");
        let seen = objects(&output, 2).into_iter();
        let seen: Vec<_> = seen.map(|mut event| event["args"].take()).collect();
        assert_eq!(seen, orders, "{words:?}");
    }
}

#[test]
fn the_recipe_of_the_example_works() {
    let source = include_str!("../../../hodo-keys/examples/tracepoints.rs");
    let mut lines = source.lines().filter_map(|line| line.strip_prefix("//! "));
    let recipe = lines.find_map(|line| line.strip_prefix("hodo "));
    let recipe = recipe.expect("a command").replace("FILE", path(program()));
    let script = format!("exec timeout -s KILL 300 \"$0\" {recipe}");
    let output = run(Command::new("sh").args(["-c", &script]).arg(hodo()));
    let said = text(&output.stdout);
    for values in [
        "id=1 item=\"item 1\"",
        "id=2 item=\"item 2\"",
        "id=3 item=\"item 3\"",
    ] {
        assert!(said.contains(values), "{recipe}: {said}");
    }
    assert!(said.contains(&own(0)), "{said}");
}

#[test]
fn tracepoints_are_recorded_by_name_while_functions_see_them_too() {
    let file = path(program());
    let options = ["--format", "json", "--event", "shop:*"];
    let output = probe(&options, &[file, "--count", "shop:order"]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert!(text(&output.stdout).starts_with(&own(3)), "{output:?}");
    let seen: Vec<(String, i64)> = objects(&output, 2)
        .iter()
        .map(|event| {
            let argument = event["args"]
                .get("cents")
                .or_else(|| event["args"].get("total"));
            (
                event["name"].as_str().expect("a name").to_owned(),
                argument.and_then(|number| number.as_i64()).expect("one"),
            )
        })
        .collect();
    let expected = [
        ("order", -500),
        ("priced", -595),
        ("order", 500),
        ("priced", 595),
        ("order", 1500),
        ("priced", 1785),
    ]
    .map(|(name, number)| (name.to_owned(), number));
    assert_eq!(seen, expected);
}

#[test]
fn bpftrace_sees_them() {
    needs!(has_tool("bpftrace"), "there is no bpftrace");
    let works = Command::new("timeout")
        .args(["60", "bpftrace", "-e", "BEGIN { exit(); }"])
        .output()
        .is_ok_and(|output| output.status.success());
    needs!(works, "bpftrace cannot load programs here");
    let file = path(program());
    let script = format!(
        "usdt:{file}:shop:order {{ printf(\"%d %s %d\\n\", arg0, str(arg1), arg2); }} \
         usdt:{file}:shop:priced {{ printf(\"priced %d\\n\", arg1); }}"
    );
    let output = run(Command::new("timeout")
        .args(["60", "bpftrace", "-e", &script, "-c"])
        .arg(format!("{file} --enable shop:*")));
    // The program writes to the same file.
    let seen: Vec<_> = text(&output.stdout)
        .lines()
        .filter(|line| line.contains("item") || line.starts_with("priced"))
        .collect();
    let expected = [
        "1 item 1 -500",
        "priced -595",
        "2 item 2 500",
        "priced 595",
        "3 item 3 1500",
        "priced 1785",
    ];
    assert_eq!(seen, expected);
}

#[test]
fn perf_lists_them() {
    needs!(has_tool("perf"), "there is no perf");
    let directory = scratch("perf-tracepoints");
    let perf = |words: &[&str]| {
        let mut command = Command::new("perf");
        command.arg("--buildid-dir").arg(&directory).args(words);
        command.output().expect("perf can be run")
    };
    let output = perf(&["buildid-cache", "--add", path(program())]);
    needs!(output.status.success(), "perf keeps no files here");
    let output = perf(&["list", "sdt"]);
    let listed = text(&output.stdout);
    needs!(output.status.success(), "perf lists nothing here");
    for name in ["sdt_shop:order", "sdt_shop:priced"] {
        assert!(listed.contains(name), "{listed}");
    }
}
