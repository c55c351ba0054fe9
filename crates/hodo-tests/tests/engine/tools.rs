//! The tools of `hodo mem` on programs whose accesses are known.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use hodo_tests::{Kind, build, hodo};
use serde_json::Value;

fn program() -> PathBuf {
    build(
        "strides.c",
        Kind::Static,
        &["-g", "-O1", "-fno-tree-vectorize"],
    )
}

fn mem(arguments: &[&str], program: Option<&Path>) -> Output {
    let mut command = Command::new(hodo());
    command.arg("mem").args(arguments);
    if let Some(program) = program {
        command.arg("--").arg(program);
    }
    command.output().expect("hodo can be run")
}

fn json(output: &Output) -> Value {
    assert!(output.status.success(), "{output:?}");
    let text = if output.stdout.starts_with(b"{") {
        &output.stdout
    } else {
        &output.stderr
    };
    serde_json::from_slice(text).expect("JSON")
}

fn place(name: &str) -> String {
    let place = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    place.to_str().expect("text").to_owned()
}

fn by<'v>(values: &'v Value, key: &str, wanted: &Value) -> &'v Value {
    let mut all = values.as_array().expect("a list").iter();
    let found = all.find(|value| &value[key] == wanted);
    found.unwrap_or_else(|| panic!("there is no {key} {wanted}"))
}

const CACHES: [&str; 8] = [
    "--format", "json", "--i1", "32K,8,64", "--d1", "32K,8,64", "--ll", "1M,16,64",
];

#[test]
fn other_caches_miss_other_lines() {
    let program = program();
    let misses = |options: &[&str]| {
        // The array that is read many times is twice as large.
        let mut arguments = vec!["cache", "--format", "json"];
        arguments.extend(["--like", "zen3", "--d1", "2K,8,64"]);
        arguments.extend(options);
        let value = json(&mem(&arguments, Some(&program)));
        value["levels"][1]["misses"].as_u64().expect("a number")
    };
    let plain = misses(&[]);
    // The program goes through its memory mostly in order.
    assert!(misses(&["--prefetch", "next-line"]) < plain * 3 / 4);
    // It goes in circles: any line is better than the oldest one.
    let random = misses(&["--replacement", "random"]);
    assert!(random + 1000 < plain, "{random} of {plain}");
    for policy in ["fifo", "tree-plru"] {
        let other = misses(&["--replacement", policy]);
        assert!(other.abs_diff(plain) < 1000, "{policy}: {other} of {plain}");
    }
    let tree = ["--like", "zen3", "--replacement", "tree-plru"];
    let arguments = ["cache", "--d1", "48K,12,64"];
    let arguments: Vec<&str> = arguments.into_iter().chain(tree).collect();
    let refused = mem(&arguments, Some(&program));
    assert_eq!(refused.status.code(), Some(1), "{refused:?}");
    let text = String::from_utf8_lossy(&refused.stderr);
    assert!(text.contains("power of two"), "{text}");
}

#[test]
fn caches_in_more_detail() {
    let program = program();
    let cache = |options: &[&str]| {
        let mut arguments = vec!["cache", "--format", "json"];
        arguments.extend(["--i1", "32K,8,64", "--d1", "2K,8,64", "--ll", "64K,16,64"]);
        arguments.extend(options);
        json(&mem(&arguments, Some(&program)))
    };
    let number = |value: &Value| value.as_u64().expect("a number");
    let plain = cache(&[]);
    assert_eq!(plain.get("write_backs"), None);
    let misses = |value: &Value, level: usize| number(&value["levels"][level]["misses"]);
    // The C library does not do exactly the same in each run.
    let near = |one: u64, other: u64| one.abs_diff(other) < 100 + other / 100;
    let second = cache(&["--l2", "8K,8,64", "--write-backs"]);
    let levels = second["levels"].as_array().expect("a list");
    assert_eq!(levels.len(), 4);
    assert_eq!(levels[2]["name"], "L2");
    let first = misses(&second, 0) + misses(&second, 1);
    assert_eq!(number(&levels[2]["refs"]), first);
    assert_eq!(number(&levels[3]["refs"]), misses(&second, 2));
    assert!(near(misses(&second, 1), misses(&plain, 1)));
    assert!(misses(&second, 2) < first);
    let total = |value: &Value, key: &str| {
        let functions = value["functions"].as_array().expect("a list").iter();
        functions.map(|row| number(&row[key])).sum::<u64>()
    };
    let sum = ["l2_fetch_misses", "l2_load_misses", "l2_store_misses"];
    let sum: u64 = sum.iter().map(|key| total(&second, key)).sum();
    assert_eq!(sum, misses(&second, 2));
    // Each line of the large array is written once and gives way.
    let back = number(&second["write_backs"]["ll"]);
    assert!((1 << 14..1 << 15).contains(&back), "{back}");
    let stride = cache(&["--prefetch", "stride"]);
    assert!(misses(&stride, 1) < misses(&plain, 1) / 2);
    let (lines, used) = (
        &stride["prefetches"]["lines"],
        &stride["prefetches"]["used"],
    );
    assert!(number(lines) >= number(used) && number(used) > 1000);
    let exclusive = cache(&["--ll", "2K,8,64", "--inclusion", "exclusive"]);
    let inclusive = cache(&["--ll", "2K,8,64", "--inclusion", "inclusive"]);
    assert!(misses(&exclusive, 2) < misses(&inclusive, 2));
    assert!(number(&inclusive["invalidated"]) > 0);
    let text = mem(
        &["cache", "--l2", "8K,8,64", "--write-backs"],
        Some(&program),
    );
    let text = String::from_utf8_lossy(&text.stderr).into_owned();
    assert!(text.contains("\nL2 8 KiB, 8 ways, 64 B"), "{text}");
    assert!(text.contains("lines written back: "), "{text}");
}

#[test]
fn misses_have_causes_and_instructions() {
    let cache = |d1: &str| {
        let arguments = [
            "cache",
            "--format",
            "json",
            "--causes",
            "--instructions",
            "--d1",
            d1,
        ];
        json(&mem(&arguments, Some(&program())))
    };
    let number = |value: &Value| value.as_u64().expect("a number");
    let sum = |value: &Value| {
        let causes = &value["causes"];
        number(&causes["cold"]) + number(&causes["capacity"]) + number(&causes["conflict"])
    };
    // All of the small array fits into a cache of 8 KiB, but not if each line has one place.
    let (large, direct) = (cache("8K,128,64"), cache("8K,1,64"));
    for value in [&large, &direct] {
        let misses = &value["levels"][1]["misses"];
        assert_eq!(sum(value), number(misses));
        // There is only one thread.
        let thread = &value["threads"][0];
        assert_eq!(&thread["d1_misses"], misses);
        assert_eq!(thread["instructions"], value["levels"][0]["refs"]);
        assert_eq!(thread["accesses"], value["levels"][1]["refs"]);
    }
    assert_eq!(number(&large["causes"]["conflict"]), 0);
    // A megabyte of lines, and what the C library does, which differs a little from run to run.
    let cold = number(&large["causes"]["cold"]);
    assert!(cold > 1 << 14);
    assert!(cold.abs_diff(number(&direct["causes"]["cold"])) < 100);
    assert!(number(&direct["causes"]["conflict"]) > 0);
    let rows = large["instructions"].as_array().expect("a list");
    let walks = rows.iter().find(|row| row["function"] == "walk");
    let walks = walks.expect("an instruction of walk");
    assert_eq!(number(&walks["d1_load_misses"]), 1 << 14);
    assert_eq!(walks["opcode"], "add");
}

#[test]
fn cg_annotate_reads_what_is_written_for_it() {
    let file = place("cachegrind.out");
    let mut arguments = vec!["cache", "--cachegrind", &file];
    arguments.extend(CACHES);
    let value = json(&mem(&arguments, Some(&program())));
    let refs = value["levels"][0]["refs"].as_u64().expect("a number");
    let text = std::fs::read_to_string(&file).expect("the file");
    let summary = text.lines().find_map(|line| line.strip_prefix("summary: "));
    let first = summary.expect("a summary").split(' ').next();
    assert_eq!(first, Some(&refs.to_string()[..]));
    let annotated = match Command::new("cg_annotate").arg(&file).output() {
        Ok(annotated) => annotated,
        Err(error) => return eprintln!("skipped: cg_annotate cannot be run: {error}"),
    };
    assert!(annotated.status.success(), "{annotated:?}");
    let shown = String::from_utf8_lossy(&annotated.stdout).replace(',', "");
    assert!(shown.contains(&refs.to_string()), "{shown}");
    assert!(shown.contains("strides.c"), "{shown}");
}

#[test]
fn a_page_for_browsers() {
    let file = place("cache.html");
    let mut arguments = vec!["cache", "--html", &file];
    arguments.extend(CACHES);
    let value = json(&mem(&arguments, Some(&program())));
    let page = std::fs::read_to_string(&file).expect("the page");
    for level in value["levels"].as_array().expect("a list") {
        let cells = format!("<td>{}</td><td>{}</td>", level["refs"], level["misses"]);
        assert!(page.contains(&cells), "{cells}");
    }
    // The function, a line of its source text, and nothing from elsewhere.
    assert!(page.contains("walk (") && page.contains("<svg ") && !page.contains("src="));
    assert!(page.contains(">KiB in use in 1 million instructions, and in all so far, "));
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("programs/strides.c");
    let source = std::fs::read_to_string(source).expect("the source text");
    let line = source
        .lines()
        .find(|line| line.contains("walk("))
        .expect("a function");
    let name = line.split('(').next().expect("a name");
    assert!(page.contains(name), "{name}");
    // Nothing runs if that cannot be written.
    for option in ["--html", "--cachegrind"] {
        let refused = mem(
            &["cache", option, "/no/such/file"],
            Some(Path::new("/bin/pwd")),
        );
        assert_eq!(refused.status.code(), Some(1), "{refused:?}");
        let errors = String::from_utf8_lossy(&refused.stderr);
        assert!(errors.contains("cannot write /no/such/file"), "{errors}");
        assert!(refused.stdout.is_empty(), "{refused:?}");
    }
    // What else there is is reported.
    let full = mem(
        &["cache", "--html", "/dev/full"],
        Some(Path::new("/bin/pwd")),
    );
    let errors = String::from_utf8_lossy(&full.stderr);
    assert!(
        errors.contains("D1 ") && errors.contains("cannot write /dev/full"),
        "{errors}"
    );
}

#[test]
fn misses_of_known_loops() {
    let program = program();
    let mut arguments = vec!["cache"];
    arguments.extend(CACHES);
    let output = mem(&arguments, Some(&program));
    assert!(
        String::from_utf8_lossy(&output.stdout).ends_with(" 2534400\n"),
        "{output:?}"
    );
    let result = json(&output);
    let walk = by(&result["functions"], "name", &"walk".into());
    let number = |value: &Value| value.as_u64().expect("a number");
    assert_eq!(number(&walk["loads"]), (1 << 17) + 1, "one is the return's");
    // A line is eight numbers.
    assert!(
        (16384..16400).contains(&number(&walk["d1_load_misses"])),
        "{walk}"
    );
    let again = by(&result["functions"], "name", &"again".into());
    assert_eq!(number(&again["stores"]), 51200);
    assert!(
        (60..80).contains(&number(&again["d1_load_misses"])),
        "{again}"
    );
    assert_eq!(number(&again["d1_store_misses"]), 0);
    let lines = result["lines"].as_array().expect("a list");
    let is_walk = |line: &&Value| (6..=10).contains(&number(&line["line"]));
    let own = lines.iter().filter(is_walk);
    let own = own.filter(|line| {
        line["file"]
            .as_str()
            .is_some_and(|file| file.ends_with("strides.c"))
    });
    let misses: u64 = own.map(|line| number(&line["d1_load_misses"])).sum();
    assert!((16384..16400).contains(&misses), "{lines:?}");
    let level = |name: &str| by(&result["levels"], "name", &name.into()).clone();
    let (first, data, last) = (level("I1"), level("D1"), level("LL"));
    assert_eq!(
        number(&last["refs"]),
        number(&first["misses"]) + number(&data["misses"])
    );
    assert!(number(&first["refs"]) > 500_000);
}

#[test]
fn a_recording_says_what_a_run_says() {
    let program = program();
    let directory = place("recorded");
    let setarch = |arguments: &[&str]| {
        let mut command = Command::new("setarch");
        command.args(["-R", hodo().to_str().expect("text"), "mem"]);
        command.args(arguments).arg("--").arg(&program);
        command.output().expect("hodo can be run")
    };
    assert!(setarch(&["record", "-d", &directory]).status.success());
    let counts = json(&setarch(&["stat", "--format", "json"]));
    assert_eq!(
        json(&mem(&["stat", "--format", "json", "-d", &directory], None)),
        counts
    );
    let mut arguments = vec!["cache"];
    arguments.extend(CACHES);
    // The kernel's numbers are others in each run.
    let without_numbers = |mut value: Value| {
        for key in ["process", "tid"] {
            assert!(value["threads"][0][key].take().as_u64() > Some(1));
        }
        value
    };
    let run = without_numbers(json(&setarch(&arguments)));
    arguments.extend(["-d", &directory]);
    let recorded = without_numbers(json(&mem(&arguments, None)));
    assert!(recorded == run, "the recording differs");
    let rows = mem(&["view", "--format", "csv", "-d", &directory], None);
    let rows = String::from_utf8(rows.stdout).expect("text");
    let mut rows = rows.lines();
    assert_eq!(rows.next(), Some("thread,instruction,pc,kind,address,size"));
    let kinds = rows.map(|row| row.split(',').nth(3).expect("a kind"));
    let (loads, stores): (Vec<&str>, Vec<&str>) = kinds.partition(|&kind| kind == "load");
    assert_eq!(counts["loads"], loads.len());
    assert_eq!(counts["stores"], stores.len());
    assert_eq!(counts["threads"], 1);
}

/// The types and markers of DynamoRIO's format that are checked here.
const MARKER: u16 = 28;
const ENCODING: u16 = 47;
const KERNEL_EVENT: u16 = 0;
const KERNEL_XFER: u16 = 1;
const BRANCH_TARGET: u16 = 29;

/// What DynamoRIO's invariant checker looks at: each instruction follows from the one before.
fn follow(entries: &[(u16, u16, u64)]) -> u64 {
    let (mut encoded, mut known) = (0u16, std::collections::HashSet::new());
    // Where the next instruction can be; `None`: anywhere.
    let mut next: Option<u64> = None;
    let (mut target, mut count) = (None, 0);
    for &(kind, size, address) in entries {
        match (kind, size) {
            (MARKER, BRANCH_TARGET) => target = Some(address),
            (MARKER, KERNEL_EVENT | KERNEL_XFER) => next = None,
            (ENCODING, _) => encoded += size,
            (10..=16 | 48 | 49, _) => {
                assert!(
                    next.is_none_or(|next| next == address),
                    "{address:#x} after {next:x?}"
                );
                if encoded > 0 {
                    assert_eq!(encoded, size, "the encoding at {address:#x}");
                    known.insert(address);
                    encoded = 0;
                }
                assert!(
                    known.contains(&address),
                    "there is no encoding at {address:#x}"
                );
                count += 1;
                let after = address + u64::from(size);
                next = match kind {
                    12 | 15 | 16 => Some(target.take().expect("a target")),
                    10 | 49 => Some(after),
                    _ => None,
                };
            }
            _ => {}
        }
    }
    count
}

#[test]
fn traces_of_dynamorio_are_written_and_read() {
    let program = build("accesses.c", Kind::Static, &[]);
    let record = |directory: &str, format: &str| {
        let _ = std::fs::remove_dir_all(directory);
        let mut command = Command::new("setarch");
        command.args(["-R", hodo().to_str().expect("text"), "mem", "record"]);
        command
            .args(["--format", format, "-d", directory, "--"])
            .arg(&program);
        let output = command.output().expect("hodo can be run");
        assert!(output.status.success(), "{output:?}");
    };
    let (own, other) = (place("own"), place("drmemtrace"));
    record(&own, "hodo");
    record(&other, "drmemtrace");
    let rows = |directory: &str| {
        let rows = mem(&["view", "--format", "csv", "-d", directory], None).stdout;
        let rows = String::from_utf8(rows).expect("text");
        let without_number = |row: &str| {
            let parts: Vec<&str> = row.split(',').collect();
            [parts[0], parts[2], parts[3], parts[4], parts[5]].join(",")
        };
        rows.lines().map(without_number).collect::<Vec<String>>()
    };
    assert!(rows(&own) == rows(&other), "the recordings differ");
    let counts = |directory: &str| json(&mem(&["stat", "--format", "json", "-d", directory], None));
    let (own, counted) = (counts(&own), counts(&other));
    for key in ["loads", "stores", "load_bytes", "store_bytes", "threads"] {
        assert_eq!(own[key], counted[key], "{key}");
    }
    // One repeated instruction faults in its middle: it is fetched twice there.
    let instructions = own["instructions"].as_u64().expect("a number") + 1;
    assert_eq!(counted["instructions"], instructions);

    let file = std::fs::read_dir(Path::new(&other).join("trace"))
        .expect("a directory")
        .next();
    let path = file.expect("a file").expect("a file").path();
    let mut bytes = Vec::new();
    let mut file = flate2::read::MultiGzDecoder::new(std::fs::File::open(&path).expect("a file"));
    std::io::Read::read_to_end(&mut file, &mut bytes).expect("it can be decompressed");
    let entries: Vec<(u16, u16, u64)> = bytes
        .chunks_exact(12)
        .map(|entry| {
            let half = |at: usize| u16::from_le_bytes([entry[at], entry[at + 1]]);
            let address = u64::from_le_bytes(entry[4..].try_into().expect("eight bytes"));
            (half(0), half(2), address)
        })
        .collect();
    assert_eq!(bytes.len(), entries.len() * 12);
    assert_eq!(
        entries[..3],
        [(25, 0, 7), (MARKER, 12, 7), (MARKER, 9, 0x240)]
    );
    assert_eq!((entries[3].0, entries[4].0), (22, 24));
    assert_eq!(entries[entries.len() - 1].0, 26);
    assert_eq!(follow(&entries), instructions);
    // DynamoRIO's invariant checker wants the time directly before a system call's number.
    let calls = (0..entries.len()).filter(|&at| entries[at].0 == MARKER && entries[at].1 == 25);
    let calls: Vec<usize> = calls.collect();
    assert!(calls.len() > 5, "{calls:?}");
    for call in calls {
        let before = [&entries[call - 2], &entries[call - 1]].map(|entry| (entry.0, entry.1));
        assert_eq!(before, [(MARKER, 2), (MARKER, 3)], "{call}");
    }
    let times = entries
        .iter()
        .filter(|entry| (entry.0, entry.1) == (MARKER, 2));
    assert!(times.is_sorted_by_key(|entry| entry.2));
    let repetitions = entries.iter().filter(|entry| entry.0 == 29).count();
    assert!(repetitions > 500, "{repetitions}");

    let again = mem(
        &["record", "--format", "drmemtrace", "-d", &other],
        Some(&program),
    );
    assert!(
        String::from_utf8_lossy(&again.stderr).contains("is not empty"),
        "{again:?}"
    );
    std::fs::write(&path, &bytes[..100]).expect("it can be written");
    assert!(!mem(&["stat", "-d", &other], None).status.success());
}

#[test]
fn tools_that_count() {
    let program = program();
    let number = |value: &Value| value.as_u64().expect("a number");
    let run = |tool: &str, more: &[&str]| {
        let mut arguments = vec![tool, "--format", "json"];
        arguments.extend(more);
        json(&mem(&arguments, Some(&program)))
    };
    let instructions = number(&run("stat", &[])["instructions"]);
    let opcodes = run("opcodes", &[]);
    let opcodes = opcodes["opcodes"].as_array().expect("a list");
    let sum: u64 = opcodes.iter().map(|row| number(&row["count"])).sum();
    assert!(
        sum.abs_diff(instructions) < instructions / 100,
        "{sum} {instructions}"
    );
    assert!(
        opcodes
            .iter()
            .any(|row| row["opcode"] == "add" && number(&row["count"]) > 1 << 17)
    );

    let blocks = run("bbcount", &[]);
    let walk = by(&blocks["blocks"], "function", &"walk".into());
    assert!(number(&walk["count"]) >= (1 << 17) - 1, "{walk}");

    // The small array is used again after its own 64 lines.
    let reuse = run("reuse", &[]);
    let row = by(&reuse["distances"], "from", &32.into());
    let next = by(&reuse["distances"], "from", &64.into());
    assert!(
        number(&row["count"]) + number(&next["count"]) >= 99 * 64,
        "{reuse}"
    );
    assert!(number(&reuse["lines"]) > 16384);

    let set = run("working-set", &["--window", "100000"]);
    assert!(number(&set["total"]["bytes"]) > 1 << 20);
    assert!(set["parts"].as_array().expect("a list").len() > 5);

    let tlb = run("tlb", &[]);
    let walk = by(&tlb["functions"], "name", &"walk".into());
    assert!(
        (256..260).contains(&number(&walk["d1_load_misses"])),
        "a page is 512 numbers: {walk}"
    );
}

/// Errors say which file could not be written, also when another one is read.
#[test]
fn full_disks_are_told() {
    let pwd = Some(Path::new("/bin/pwd"));
    let errors = |output: &Output| String::from_utf8_lossy(&output.stderr).into_owned();
    for tool in [
        "stat",
        "hot",
        "cache",
        "tlb",
        "opcodes",
        "bbcount",
        "reuse",
        "working-set",
        "coverage",
        "calls",
        "heap",
    ] {
        let full = mem(&[tool, "-o", "/dev/full"], pwd);
        assert_eq!(full.status.code(), Some(125), "{full:?}");
        assert!(
            errors(&full).contains("hodo: cannot write /dev/full: "),
            "{full:?}"
        );
    }
    let directory = std::env::temp_dir().join(format!("hodo-full-{}", std::process::id()));
    let directory = directory.to_str().expect("a path of text");
    // No file may have more than 4 KiB.
    let mut record = Command::new("bash");
    let script = "ulimit -f 4; exec \"$0\" mem record -d \"$1\" -- pwd";
    record.args(["-c", script]).arg(hodo()).arg(directory);
    let cut = record.output().expect("hodo can be run");
    let place = format!("hodo: cannot write {directory}/accesses.hodomem: ");
    assert_eq!(cut.status.code(), Some(125), "{cut:?}");
    assert!(errors(&cut).contains(&place), "{cut:?}");
    let recorded = mem(&["record", "-d", directory], pwd);
    assert!(recorded.status.success(), "{recorded:?}");
    for tool in ["view", "stat", "hot"] {
        let full = std::fs::File::create("/dev/full").expect("it is there");
        let mut command = Command::new(hodo());
        command.args(["mem", tool, "-d", directory]).stdout(full);
        let full = command.output().expect("hodo can be run");
        assert_eq!(full.status.code(), Some(1), "{full:?}");
        let said = errors(&full);
        assert!(
            said.starts_with("hodo: cannot write the output: "),
            "{said}"
        );
    }
    std::fs::remove_dir_all(directory).expect("it can be removed");
}

#[test]
fn memory_that_is_accessed_most() {
    let program = build(
        "hot_memory.c",
        Kind::Pie,
        &["-g", "-O1", "-fno-tree-vectorize"],
    );
    let value = json(&mem(&["hot", "--format", "json"], Some(&program)));
    let objects = &value["objects"];
    let table = by(objects, "name", &"table".into());
    assert_eq!(table["kind"], "variable");
    assert_eq!(table["loads"], 50_000);
    assert_eq!(table["stores"], 50_000);
    assert_eq!(table["bytes"], 2000);
    // Two fields of each of 500 nodes are read in each round.
    let nodes = by(objects, "function", &"make".into());
    assert_eq!(nodes["kind"], "allocation");
    assert_eq!(nodes["allocations"], 500);
    assert_eq!(nodes["loads"], 100_000);
    assert_eq!(nodes["stores"], 1000);
    assert_eq!(nodes["bytes"], 8000);
    assert!(by(objects, "kind", &"stack".into())["stores"].as_u64() > Some(0));
    let text = mem(&["hot", "--top", "5"], Some(&program));
    let text = String::from_utf8(text.stderr).expect("text");
    assert_eq!(text.lines().count(), 6, "{text}");
    assert!(
        text.contains("allocated 500 times, 8000 bytes, by make, "),
        "{text}"
    );
    assert!(text.contains("  table (hot_memory"), "{text}");
}

#[test]
fn only_some_functions() {
    let program = build("hot_memory.c", Kind::Pie, &["-g", "-O1"]);
    let count = |options: &[&str]| {
        let mut arguments = vec!["stat", "--format", "json"];
        arguments.extend(options);
        let value = json(&mem(&arguments, Some(&program)));
        value["instructions"].as_u64().expect("a number")
    };
    let all = count(&[]);
    let (main, others) = (count(&["--only", "main"]), count(&["--skip", "main"]));
    assert!(main > 0 && others > 0, "{main} and {others} of {all}");
    // Address space layout randomization changes little.
    assert!(
        (main + others).abs_diff(all) < all / 100,
        "{main} and {others} of {all}"
    );
    let in_libc = count(&["--only", "*@libc"]);
    assert!(in_libc > 0 && in_libc < all);
    let data = place("only_some_functions");
    let recorded = mem(&["record", "-d", &data], Some(&program));
    assert!(recorded.status.success(), "{recorded:?}");
    let read = mem(
        &["stat", "--format", "json", "-d", &data, "--only", "main"],
        None,
    );
    assert_eq!(json(&read)["instructions"], main);
    let whole = std::fs::metadata(Path::new(&data).join("accesses.hodomem"));
    for format in ["hodo", "drmemtrace"] {
        std::fs::remove_dir_all(&data).expect("the recording can be removed");
        let options = ["record", "--format", format, "-d", &data, "--only", "main"];
        let recorded = mem(&options, Some(&program));
        assert!(recorded.status.success(), "{recorded:?}");
        let read = mem(&["stat", "--format", "json", "-d", &data], None);
        assert_eq!(json(&read)["instructions"], main, "{format}");
    }
    std::fs::remove_dir_all(&data).expect("the recording can be removed");
    let options = ["record", "-d", &data, "--only", "main"];
    mem(&options, Some(&program));
    let part = std::fs::metadata(Path::new(&data).join("accesses.hodomem"));
    let (whole, part) = (whole.expect("a file").len(), part.expect("a file").len());
    assert!(part < whole, "{part} bytes of {whole}");
    // What is allocated is known though the allocator is not observed.
    let hot = |options: &[&str]| {
        let options = [&["hot", "--format", "json"], options].concat();
        json(&mem(&options, None))["objects"].to_string()
    };
    let seen = hot(&["-d", &data]);
    assert!(seen.contains("\"allocation\""), "{seen}");
    let nothing = mem(&["stat", "--only", "no_such_function"], Some(&program));
    let said = String::from_utf8(nothing.stderr).expect("text");
    assert!(
        said.contains("nothing was executed that --only and --skip select"),
        "{said}"
    );
    let wrong = mem(&["stat", "--only", "[a"], Some(&program));
    let said = String::from_utf8(wrong.stderr).expect("text");
    assert!(
        !wrong.status.success() && said.contains("is not a pattern"),
        "{said}"
    );
    std::fs::remove_dir_all(data).expect("the recording can be removed");
}

#[test]
fn lines_that_threads_share() {
    let program = build("false_sharing.c", Kind::Pie, &["-g", "-O0", "-pthread"]);
    let shared = json(&mem(&["share", "--format", "json"], Some(&program)));
    let lines = shared["lines"].as_array().expect("a list");
    let of = |function: &str| {
        let has = |line: &&Value| {
            let threads = line["threads"].as_array().expect("a list");
            threads
                .iter()
                .any(|used| used["function"] == function && used["stores"] == 1000)
        };
        lines.iter().find(has)
    };
    assert_eq!(of("first").expect("a line")["false_sharing"], true);
    assert_eq!(of("second"), of("first"));
    assert_eq!(of("together").expect("a line")["false_sharing"], false);
    assert_eq!(of("alone"), None);
    let line = of("first").expect("a line");
    assert_eq!(line["memory"]["name"], "words");
    let threads = line["threads"].as_array().expect("a list").iter();
    for used in threads.filter(|used| used["stores"] == 1000) {
        let field = match used["function"] == "first" {
            true => "words.one",
            false => "words.other",
        };
        assert_eq!(used["fields"][0], field);
    }
    let text = mem(&["share", "--top", "2"], Some(&program));
    let text = String::from_utf8(text.stderr).expect("text");
    assert!(
        text.contains(" threads use different bytes: words (")
            && text.contains("stores  second: words.other\n"),
        "{text}"
    );
}

#[test]
fn processors_take_lines_from_each_other() {
    let flags = ["-g", "-O1", "-pthread", "-DROUNDS=300000"];
    let program = build("false_sharing.c", Kind::Pie, &flags);
    let value = json(&mem(
        &["cache", "--cores", "8", "--causes", "--format", "json"],
        Some(&program),
    ));
    let number = |value: &Value| value.as_u64().expect("a number");
    let of = |function: &str| {
        let rows = value["functions"].as_array().expect("a list");
        let row = rows.iter().find(|row| row["name"] == function);
        let row = row.expect("the function");
        ["true_sharing_misses", "false_sharing_misses"].map(|key| number(&row[key]))
    };
    // Threads that are not active at the same time disturb nobody.
    let ([first_true, first_false], [second_true, second_false]) = (of("first"), of("second"));
    let [together_true, together_false] = of("together");
    assert_eq!(of("alone"), [0, 0]);
    assert_eq!([first_true, second_true, together_false], [0, 0, 0]);
    let sum = first_false + second_false + together_true;
    assert!(sum > 100, "{value}");
    let coherence = &value["coherence"];
    assert!(number(&coherence["invalidations"]) >= sum);
    assert!(number(&coherence["transfers"]) >= sum);
    let all = ["true_sharing_misses", "false_sharing_misses"].map(|key| number(&coherence[key]));
    assert_eq!(all[0] + all[1], number(&value["causes"]["coherence"]));
    let text = mem(&["cache", "--cores", "8"], Some(&program));
    let text = String::from_utf8(text.stderr).expect("text");
    assert!(
        text.contains("\n8 processors: ") && text.contains("  true sharing  false sharing  line\n"),
        "{text}"
    );
}

#[test]
fn processors_do_not_change_what_one_thread_does() {
    let program = build("called.c", Kind::Pie, &["-O1"]);
    let levels = |cores: &str| {
        let options = [
            "cache",
            "--cores",
            cores,
            "--write-backs",
            "--format",
            "json",
        ];
        let value = json(&mem(&options, Some(&program)));
        (value["levels"].clone(), value["write_backs"].clone())
    };
    let misses = |(levels, _): &(Value, Value)| levels[1]["misses"].as_u64().expect("a number");
    let (one, two) = (levels("1"), levels("2"));
    assert!(misses(&one).abs_diff(misses(&two)) < 50, "{one:?} {two:?}");
}

#[test]
fn bad_input_is_refused() {
    for (arguments, expected) in [
        (&["view", "-d", "/nowhere"][..], "cannot open /nowhere"),
        (&["cache", "--d1", "32K,0,64", "-d", "/nowhere"], "0 ways"),
        (
            &["cache", "--d1", "32K,8", "-d", "/nowhere"],
            "three numbers are needed",
        ),
        (
            &["cache", "--l2", "32K,8,32", "-d", "/nowhere"],
            "lines of the same length",
        ),
        (&["cache", "--l2", "no", "-d", "/nowhere"], "three numbers"),
        (&["cache", "--cores", "0", "-d", "/nowhere"], "0 processors"),
        (
            &["cache", "--cores", "2", "--memory", "-d", "/nowhere"],
            "cannot be used with",
        ),
        (&["stat"], "required arguments were not provided"),
        (
            &["record", "-d", "/proc/no/such", "--", "true"],
            "cannot create /proc/no/such",
        ),
        (
            &["record", "-d", "/dev/null", "--", "true"],
            "cannot create /dev/null",
        ),
        (&["none", "--", "/no/such/program"], "no such file"),
    ] {
        let output = mem(arguments, None);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(
            !output.status.success() && errors.contains(expected),
            "{arguments:?}: {errors}"
        );
    }
    // An older recording is not lost.
    let data = place("bad_input");
    let _ = std::fs::remove_dir_all(&data);
    let nothing = |format| {
        let arguments = ["record", "--format", format, "-d", &data, "--", "/no/such"];
        let output = mem(&arguments, None);
        assert_eq!(output.status.code(), Some(127), "{output:?}");
    };
    nothing("hodo");
    nothing("drmemtrace");
    assert!(!Path::new(&data).exists());
    let recorded = mem(&["record", "-d", &data, "--", "true"], None);
    assert!(recorded.status.success(), "{recorded:?}");
    let before = mem(&["stat", "-d", &data], None);
    nothing("hodo");
    assert_eq!(before, mem(&["stat", "-d", &data], None));
    std::fs::remove_dir_all(data).expect("own files");
}

/// Parts of a recording that follow each other have together what it has.
#[test]
fn parts_of_a_recording() {
    let program = build("hot.c", Kind::Static, &[]);
    let data = place("parts_of_a_recording");
    for format in ["hodo", "drmemtrace"] {
        let _ = std::fs::remove_dir_all(&data);
        let recorded = mem(&["record", "--format", format, "-d", &data], Some(&program));
        assert!(recorded.status.success(), "{recorded:?}");
        let count = |options: &[&str]| {
            let options = [&["stat", "--format", "json", "-d", &data], options].concat();
            let value = json(&mem(&options, None));
            ["instructions", "loads", "stores"].map(|key| value[key].as_u64().expect("a number"))
        };
        let all = count(&[]);
        let parts = [
            count(&["--for", "100k-insns"]),
            count(&["--from", "100k-insns", "--for", "200k-insns"]),
            count(&["--from", "300k-insns"]),
        ];
        for (index, all) in all.into_iter().enumerate() {
            let sum: u64 = parts.iter().map(|part| part[index]).sum();
            assert_eq!(sum, all, "{format}: {parts:?}");
        }
        assert!(parts[0][0].abs_diff(100_000) < 100, "{parts:?}");
        assert!(parts[1][0].abs_diff(200_000) < 100, "{parts:?}");
        let wrong = mem(&["stat", "-d", &data, "--from", "1s"], None);
        let said = String::from_utf8(wrong.stderr).expect("text");
        assert!(said.contains("a recording has no times"), "{said}");
    }
    std::fs::remove_dir_all(data).expect("own files");
}

/// After enough accesses, a program runs on as alone.
#[test]
fn a_program_is_left_after_enough() {
    let script = "i=0; while [ $i -lt 100000 ]; do i=$((i + 1)); done; grep TracerPid /proc/self/status; exit 3";
    let output = Command::new(hodo())
        .args(["mem", "view", "--format", "csv", "--limit", "5", "--"])
        .args(["sh", "-c", script])
        .output()
        .expect("hodo can be run");
    let rows = String::from_utf8_lossy(&output.stderr);
    assert_eq!(rows.lines().count(), 6, "{rows}");
    assert_eq!(output.status.code(), Some(3), "{rows}");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "TracerPid:\t0\n");
}

/// Results say how much of the program they do not have.
#[test]
fn results_say_what_is_missing() {
    let program = build("hot.c", Kind::Static, &["-O1"]);
    let output = Command::new(hodo())
        .args(["mem", "reuse", "--lossy", "--format", "json", "--"])
        .arg(program)
        .arg("4000")
        .output()
        .expect("hodo can be run");
    let rows = String::from_utf8_lossy(&output.stderr);
    let (said, result) = rows.split_once('\n').expect("two lines");
    let result: Value = serde_json::from_str(result).expect("JSON");
    let missing = result["missing_instructions"].as_u64().expect("a number");
    assert!(missing > 0, "{rows}");
    let expected = format!("hodo: {missing} instructions are missing");
    assert!(said.starts_with(&expected), "{rows}");
}
