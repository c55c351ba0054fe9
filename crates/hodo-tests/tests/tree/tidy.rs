//! Rules of the tree that no compiler checks. Each failure says what to do.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use iced_x86::{Decoder, DecoderOptions, OpKind};
use regex::Regex;

/// The most lines a source file may have.
const LONGEST: usize = 1000;

/// Crates in which `unsafe` is needed: they call the kernel, run generated code, or are the agent.
const UNSAFE: [&str; 18] = [
    "hodo",
    "hodo-agent",
    "hodo-codegen/tests",
    "hodo-dbi/tests",
    "hodo-ftrace",
    "hodo-ftrace-c",
    "hodo-isa/tests",
    "hodo-keys",
    "hodo-keys-c/tests",
    "hodo-mem-marks",
    "hodo-module",
    "hodo-patch/tests",
    "hodo-probe",
    "hodo-probe-capi",
    "hodo-record",
    "hodo-ptrace",
    "hodo-tests",
    "hodo-sys",
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .ancestors()
        .nth(2)
        .expect("the repository")
        .to_owned()
}

fn walk(directory: &Path, found: &mut Vec<PathBuf>) {
    let entries = fs::read_dir(directory).expect("a directory of the tree can be read");
    for path in entries.map(|entry| entry.expect("an entry of it, too").path()) {
        let name = path
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        if path.is_symlink()
            || name == ".git"
            || name.starts_with("target")
            || name.starts_with("hodo.data")
        {
            continue;
        }
        if path.is_dir() {
            walk(&path, found);
        } else {
            found.push(path);
        }
    }
}

/// Every text file of the tree, by its path from the root.
fn texts() -> Vec<(String, String)> {
    let root = root();
    let mut files = Vec::new();
    walk(&root, &mut files);
    let texts: Vec<_> = files
        .into_iter()
        .filter_map(|path| {
            let text = fs::read_to_string(&path).ok()?;
            let name = path.strip_prefix(&root).ok()?.to_str()?.to_owned();
            Some((name, text))
        })
        .collect();
    assert!(
        texts.len() > 100,
        "the tree was not found: {} files",
        texts.len()
    );
    texts
}

fn has_ending(name: &str, endings: &[&str]) -> bool {
    endings.iter().any(|ending| name.ends_with(ending))
}

#[track_caller]
fn none(wrong: &[String], advice: &str) {
    assert!(wrong.is_empty(), "{advice}:\n  {}", wrong.join("\n  "));
}

#[test]
fn files_are_short() {
    let wrong: Vec<String> = texts()
        .iter()
        .filter(|(name, _)| has_ending(name, &[".rs", ".c", ".cc", ".S", ".go", ".sh"]))
        .map(|(name, text)| (name, text.lines().count()))
        .filter(|&(_, lines)| lines > LONGEST)
        .map(|(name, lines)| format!("{name}: {lines} lines"))
        .collect();
    none(
        &wrong,
        "a file is one thought: split what is longer than 1,000 lines by what it does",
    );
}

#[test]
fn no_text_mentions_the_machine_it_was_written_on() {
    // The words are assembled here, or this file would be its own first finding.
    let forbidden = [
        ["/wo", "rk/"].concat(),
        ["/ro", "ot/"].concat(),
        ["/ho", "me/"].concat(),
        ["TO", "DO"].concat(),
        ["FIX", "ME"].concat(),
        ["todo", "!("].concat(),
        ["unimpl", "emented!("].concat(),
    ];
    let mut wrong = Vec::new();
    for (name, text) in texts()
        .into_iter()
        .filter(|(name, _)| !name.ends_with(".svg"))
    {
        for (number, line) in text.lines().enumerate() {
            for word in forbidden.iter().filter(|word| line.contains(word.as_str())) {
                // `/proc/PID/root/…` is the kernel's name for a directory.
                if !line.contains("/proc/") {
                    wrong.push(format!("{name}:{}: {word}", number + 1));
                }
            }
        }
    }
    none(
        &wrong,
        "no paths of one machine, and nothing left for later, in the tree",
    );
}

#[test]
fn unsafe_code_is_where_it_is_needed() {
    let word = ["uns", "afe "].concat();
    let wrong: Vec<String> = texts()
        .iter()
        .filter(|(name, _)| name.starts_with("crates/") && name.ends_with(".rs"))
        .filter(|(name, _)| {
            !UNSAFE
                .iter()
                .any(|allowed| name.starts_with(&format!("crates/{allowed}/")))
        })
        .flat_map(|(name, text)| {
            let word = &word;
            text.lines()
                .enumerate()
                .filter(move |(_, line)| {
                    line.contains(word.as_str()) && !line.trim_start().starts_with("//")
                })
                .map(move |(number, _)| format!("{name}:{}", number + 1))
        })
        .collect();
    none(
        &wrong,
        "do it in safe code, or in one of the crates that have unsafe code",
    );
}

/// Our crates, each listed below those that use it, with those of our crates that it may use: imports only run
/// downward.
const CRATES: [(&str, &[&str]); 30] = [
    ("hodo-abi", &[]),
    ("hodo-isa", &["hodo-abi"]),
    ("hodo-mem-marks", &[]),
    ("hodo-sys", &[]),
    ("hodo-ftrace", &["hodo-sys"]),
    ("hodo-symbols", &["hodo-abi"]),
    ("hodo-trace", &["hodo-abi"]),
    (
        "hodo-ftrace-c",
        &[
            "hodo-abi",
            "hodo-ftrace",
            "hodo-isa",
            "hodo-symbols",
            "hodo-sys",
            "hodo-trace",
        ],
    ),
    ("hodo-agent", &["hodo-trace"]),
    ("hodo-codegen", &["hodo-abi", "hodo-isa"]),
    ("hodo-keys", &["hodo-sys"]),
    ("hodo-keys-c", &["hodo-keys"]),
    ("hodo-keys-tracing", &["hodo-keys"]),
    ("hodo-plan", &["hodo-abi", "hodo-isa", "hodo-symbols"]),
    (
        "hodo-probe",
        &["hodo-abi", "hodo-codegen", "hodo-isa", "hodo-sys"],
    ),
    ("hodo-rvmodel", &["hodo-codegen", "hodo-isa", "hodo-plan"]),
    ("hodo-probe-syntax", &[]),
    ("hodo-probe-capi", &["hodo-probe"]),
    (
        "hodo-ptrace",
        &["hodo-abi", "hodo-agent", "hodo-isa", "hodo-sys"],
    ),
    ("hodo-follow", &["hodo-ptrace"]),
    ("hodo-view", &["hodo-abi", "hodo-symbols", "hodo-trace"]),
    (
        "hodo-patch",
        &[
            "hodo-abi",
            "hodo-agent",
            "hodo-codegen",
            "hodo-isa",
            "hodo-plan",
            "hodo-trace",
        ],
    ),
    (
        "hodo-module",
        &[
            "hodo-abi",
            "hodo-codegen",
            "hodo-patch",
            "hodo-plan",
            "hodo-ptrace",
            "hodo-symbols",
        ],
    ),
    (
        "hodo-dbi",
        &[
            "hodo-abi",
            "hodo-codegen",
            "hodo-follow",
            "hodo-isa",
            "hodo-module",
            "hodo-ptrace",
        ],
    ),
    ("hodo-mem", &["hodo-dbi", "hodo-symbols"]),
    (
        "hodo-probe-compile",
        &[
            "hodo-abi",
            "hodo-codegen",
            "hodo-isa",
            "hodo-module",
            "hodo-patch",
            "hodo-plan",
            "hodo-probe-syntax",
            "hodo-ptrace",
            "hodo-symbols",
            "hodo-trace",
        ],
    ),
    (
        "hodo-inject",
        &[
            "hodo-abi",
            "hodo-codegen",
            "hodo-isa",
            "hodo-module",
            "hodo-patch",
            "hodo-ptrace",
            "hodo-symbols",
            "hodo-trace",
        ],
    ),
    (
        "hodo-record",
        &[
            "hodo-abi",
            "hodo-follow",
            "hodo-inject",
            "hodo-isa",
            "hodo-module",
            "hodo-patch",
            "hodo-plan",
            "hodo-probe-compile",
            "hodo-ptrace",
            "hodo-symbols",
            "hodo-trace",
        ],
    ),
    (
        "hodo",
        &[
            "hodo-abi",
            "hodo-dbi",
            "hodo-mem",
            "hodo-module",
            "hodo-plan",
            "hodo-probe-compile",
            "hodo-record",
            "hodo-symbols",
            "hodo-trace",
            "hodo-view",
        ],
    ),
    ("hodo-tests", &[]),
];

/// Those of our crates that a manifest names as dependencies, except for tests.
fn dependencies(manifest: &str) -> BTreeSet<&str> {
    let mut section = "";
    let mut found = BTreeSet::new();
    for line in manifest.lines().map(str::trim) {
        if line.starts_with('[') {
            section = line;
        }
        // Target-specific dependencies are in sections with longer names.
        let counts = section.ends_with("dependencies]") && !section.ends_with("dev-dependencies]");
        let name = line.split(['.', '=', ' ']).next().unwrap_or_default();
        if counts && name.starts_with("hodo-") {
            found.insert(name);
        }
    }
    found
}

/// Packages name the versions of the packages that they depend on; cargo refuses to make others.
#[test]
fn our_crates_have_versions_where_others_depend_on_them() {
    let (_, workspace) = texts()
        .into_iter()
        .find(|(path, _)| path == "Cargo.toml")
        .expect("the workspace's manifest");
    let version = workspace
        .lines()
        .find_map(|line| line.strip_prefix("version = "))
        .expect("a version");
    let ours = workspace.lines().filter(|line| line.starts_with("hodo-"));
    let wrong: Vec<&str> = ours
        .filter(|line| !line.ends_with(&format!(", version = {version} }}")))
        .collect();
    assert!(
        wrong.is_empty(),
        "without the version {version}: {wrong:#?}"
    );
}

#[test]
fn imports_run_downward_only() {
    let known: BTreeSet<&str> = CRATES.iter().map(|&(name, _)| name).collect();
    let mut wrong = Vec::new();
    for (path, text) in texts() {
        let name = path.strip_prefix("crates/");
        let Some(name) = name.and_then(|path| path.strip_suffix("/Cargo.toml")) else {
            continue;
        };
        if !known.contains(name) {
            wrong.push(format!("{name} is not in the list of this test"));
        }
        let allowed = CRATES.iter().find(|&&(other, _)| other == name);
        let allowed = allowed.map_or(&[][..], |&(_, allowed)| allowed);
        for dependency in dependencies(&text) {
            if !allowed.contains(&dependency) {
                wrong.push(format!("{name} depends on {dependency}"));
            }
        }
    }
    for (at, (name, allowed)) in CRATES.iter().enumerate() {
        for above in allowed
            .iter()
            .filter(|dependency| !CRATES[..at].iter().any(|(below, _)| below == *dependency))
        {
            wrong.push(format!(
                "the list has {name} before {above}, which it may use"
            ));
        }
    }
    none(
        &wrong,
        "move the code that needs this to a crate above both",
    );
}

/// Lines outside these rooms that name an instruction set all the same: the file or folder, what the lines match, and
/// why. Every entry must be needed.
const NAMES: [(&str, &str, &str); 20] = [
    (
        "hodo-abi/src/isa.rs",
        "NATIVE|cfg!|Self::",
        "the one list of instruction sets",
    ),
    ("hodo-agent/src/lib.rs", "cfg|path", "chooses the room"),
    (
        "hodo-codegen/src/lib.rs",
        "^pub mod|cfg|as native",
        "declares the rooms",
    ),
    (
        "hodo-dbi/src/lib.rs",
        "mod|use|\\bx86_64::|//!|///",
        "declares the room",
    ),
    ("hodo-ftrace-c/src/lib.rs", "path", "chooses the room"),
    (
        "hodo-ftrace/src/lib.rs",
        "path|target_arch = .*,?$|cfg",
        "chooses the room",
    ),
    (
        "hodo-isa/src/code/",
        "\\b(x86_64|riscv64|aarch64)\\b",
        "the one place that chooses among instruction sets",
    ),
    (
        "hodo-isa/src/lib.rs",
        "^pub mod|cfg|native|NATIVE",
        "declares the rooms",
    ),
    (
        "hodo-probe-syntax/src/model.rs",
        "Whole::Flags",
        "remains: flags are part of no other set's registers",
    ),
    (
        "hodo-probe-syntax/src/registers.rs",
        "",
        "chooses among the registers of instruction sets",
    ),
    (
        "hodo-probe/src/lib.rs",
        "^    target_arch",
        "what it exists for",
    ),
    (
        "hodo-symbols/src/demangle.rs",
        "/usr/lib/",
        "a path of the test's",
    ),
    (
        "hodo-symbols/src/startup.rs",
        "^mod|Isa::|::Code",
        "declares the rooms",
    ),
    (
        "hodo-sys/src/lib.rs",
        "path|target_arch = .*,?$|cfg",
        "chooses the room",
    ),
    (
        "hodo-sys/src/sys.rs",
        "cfg",
        "remains: the kernel's structure differs",
    ),
    (
        "hodo-tests/src/build.rs",
        "",
        "compilers' names for the machines",
    ),
    (
        "hodo-tests/src/probing.rs",
        "cfg!|ld-linux",
        "what probes of tests name on each",
    ),
    (
        "hodo-trace/src/meta.rs",
        "\"x86_64\"|fn x86_64",
        "what older traces do not say",
    ),
    (
        "hodo-trace/src/syscalls.rs",
        "",
        "chooses among the tables of system calls",
    ),
    (
        "hodo-view/src/syscalls/filter.rs",
        "on riscv64",
        "a message that a test expects",
    ),
];

/// Returns whether a file is in a room: in a folder or file called `arch`, `machine`, or after an instruction set.
/// `hodo-rvmodel` is one as a whole.
fn is_room(path: &str) -> bool {
    let names = ["x86_64", "riscv64", "aarch64"];
    path.starts_with("hodo-rvmodel/")
        || path.split(['/', '.']).any(|part| {
            ["arch", "machine"].contains(&part) || names.iter().any(|name| part.starts_with(name))
        })
}

/// Lines of our crates' sources outside of rooms: path below `crates`, number, line.
fn lines_outside_of_rooms() -> Vec<(String, usize, String)> {
    let mut lines = Vec::new();
    for (path, text) in texts() {
        let path = path.strip_prefix("crates/");
        let Some(path) = path.filter(|path| path.contains("/src/") && path.ends_with(".rs")) else {
            continue;
        };
        if !is_room(path) {
            let each = text.lines().enumerate();
            lines.extend(each.map(|(number, line)| (path.to_owned(), number + 1, line.to_owned())));
        }
    }
    lines
}

/// Checks that no line outside of rooms matches, except those of a list, and that each entry of the list is needed.
#[track_caller]
fn only_in_rooms(is_wrong: impl Fn(&str) -> bool, allowed: &[(&str, &str, &str)], advice: &str) {
    let patterns: Vec<Regex> = allowed
        .iter()
        .map(|(_, pattern, _)| Regex::new(pattern).expect("a pattern"))
        .collect();
    let mut needed = vec![false; allowed.len()];
    let mut wrong = Vec::new();
    for (path, number, line) in lines_outside_of_rooms() {
        if !is_wrong(&line) {
            continue;
        }
        let place = allowed
            .iter()
            .zip(&patterns)
            .position(|((at, ..), pattern)| path.starts_with(at) && pattern.is_match(&line));
        match place {
            Some(place) => needed[place] = true,
            None => wrong.push(format!("{path}:{number}: {}", line.trim())),
        }
    }
    none(&wrong, advice);
    let unneeded = allowed.iter().zip(needed).filter(|(_, needed)| !needed);
    let unneeded: Vec<String> = unneeded
        .map(|((path, pattern, reason), _)| format!("{path}, {pattern:?}: {reason}"))
        .collect();
    none(
        &unneeded,
        "no line needs these exemptions any more: remove them from the list",
    );
}

#[test]
fn instruction_sets_stay_in_their_rooms() {
    let names = ["x86_64", "riscv64", "aarch64"];
    only_in_rooms(
        // Code that is tested with one of them is not code that works only with one of them.
        |line| names.iter().any(|name| line.contains(name)) && !line.contains("cfg(all(test"),
        &NAMES,
        "what depends on an instruction set belongs into hodo-isa or hodo-codegen, or into a module `machine` or `arch`",
    );
}

/// Lines outside of rooms that name registers: as above.
const REGISTERS: [(&str, &str, &str); 1] = [(
    "hodo/src/args/inspect.rs",
    "%|TYPE is",
    "names that users write, in a help text",
)];

/// The part of a line that is code: without comments and strings.
fn code_of(line: &str) -> String {
    let parts = line.split("//").next().unwrap_or_default().split('"');
    parts.step_by(2).collect::<Vec<_>>().join(" ")
}

#[test]
fn registers_stay_in_their_rooms() {
    // Names that no variable has: `sp` and `pc` exist everywhere, `x` and `t` may be anything.
    let name = Regex::new(
        r"(?x)\b(?:[re](?:[abcd]x|[sd]i|[sb]p) | R(?:[ABCD]X|[SD]I|[SB]P) | [rR](?:8|9|1[0-5]) | [xyzXYZ](?:mm|MM)\d+
            | [asAS][0-7] | [tT][0-6] | [sS](?:[89]|1[01]) | ra | RA | gp | GP | [xX](?:[0-9]|[12][0-9]|30) | [wvqWVQ]\d+)\b",
    );
    let name = name.expect("a pattern");
    assert!(name.is_match("regs.set_general(RCX, left)") && name.is_match("mov(a0, x30)"));
    assert!(
        !name.is_match("frame.sp = part.index(extra)") && code_of("a \"rax\" b // rcx") == "a   b "
    );
    only_in_rooms(
        |line| name.is_match(&code_of(line)),
        &REGISTERS,
        "a register has a name only in the room of its instruction set: let that room give the register, or do the work",
    );
}

#[test]
fn every_program_has_a_test() {
    let tests: String = texts()
        .into_iter()
        .filter(|(name, _)| {
            name.starts_with("crates/hodo-tests/tests/")
                || name.starts_with("benches/")
                // Files that they include run with them.
                || name.starts_with("crates/hodo-tests/programs/")
        })
        .map(|(_, text)| text)
        .collect();
    let programs: BTreeSet<String> = fs::read_dir(root().join("crates/hodo-tests/programs"))
        .expect("the programs are there")
        .map(|entry| {
            entry
                .expect("an entry")
                .file_name()
                .to_string_lossy()
                .into_owned()
        })
        .collect();
    let wrong: Vec<String> = programs
        .into_iter()
        .filter(|program| !tests.contains(program))
        .collect();
    none(
        &wrong,
        "write a test that runs these programs, or take them away",
    );
}

#[test]
fn every_crate_takes_the_lints_of_the_workspace() {
    let wrong: Vec<String> = texts()
        .into_iter()
        .filter(|(name, _)| name.starts_with("crates/") && name.ends_with("Cargo.toml"))
        .filter(|(_, text)| !text.contains("[lints]\nworkspace = true"))
        .map(|(name, _)| name)
        .collect();
    none(&wrong, "add [lints] workspace = true");
}

#[test]
fn the_agent_depends_on_nothing() {
    let manifest =
        fs::read_to_string(root().join("crates/hodo-agent/Cargo.toml")).expect("it is there");
    let (_, dependencies) = manifest
        .split_once("[dependencies]")
        .expect("it has dependencies");
    let dependencies: Vec<&str> = dependencies
        .lines()
        // Dependencies of its tests are not part of it.
        .take_while(|line| *line != "[dev-dependencies]")
        .filter(|line| !line.trim().is_empty())
        .collect();
    assert_eq!(
        dependencies,
        ["hodo-trace.workspace = true"],
        "the agent owes nothing to anybody"
    );
    let source =
        fs::read_to_string(root().join("crates/hodo-agent/src/lib.rs")).expect("it is there");
    assert!(source.contains("#![no_std]"));
}

/// The agent is copied into programs as bytes: no branch and no operand may refer to anything outside.
#[test]
fn the_agent_refers_to_nothing_outside_itself() {
    let code = hodo_agent::runtime().code;
    let start = 0x10_0000;
    let inside = start..=start + code.len() as u64;
    let mut decoder = Decoder::with_ip(64, code, start, DecoderOptions::NONE);
    let mut calls = 0;
    for instruction in &mut decoder {
        let at = instruction.ip() - start;
        let near = (0..instruction.op_count())
            .any(|n| matches!(instruction.op_kind(n), OpKind::NearBranch64));
        if near {
            assert!(
                inside.contains(&instruction.near_branch64()),
                "a branch at {at:#x} leads out"
            );
            calls += 1;
        }
        if instruction.is_ip_rel_memory_operand() {
            let address = instruction.ip_rel_memory_address();
            assert!(
                inside.contains(&address),
                "an operand at {at:#x} is outside"
            );
        }
    }
    assert!(calls > 10, "this is not the agent's code");
}

/// A label of assembly that Rust refers to and that is not global links only while both are compiled as one piece, as
/// without optimization.
#[test]
fn labels_that_rust_refers_to_are_global() {
    let mut wrong = Vec::new();
    let mut seen = 0;
    let texts = texts();
    let agent = |name: &String| name.starts_with("crates/hodo-agent/src/");
    let agent = || texts.iter().filter(|(name, _)| agent(name));
    let globals: BTreeSet<&str> = agent()
        .flat_map(|(_, text)| text.lines())
        .filter_map(|line| line.trim().strip_prefix(".globl "))
        .flat_map(|labels| labels.split(',').map(str::trim))
        .collect();
    for (name, text) in agent() {
        for line in text.lines() {
            let label = line.trim().strip_prefix("static hodo_");
            let Some(label) = label.and_then(|rest| rest.strip_suffix(": u8;")) else {
                continue;
            };
            seen += 1;
            if !globals.contains(format!("hodo_{label}").as_str()) {
                wrong.push(format!("{name}: hodo_{label}"));
            }
        }
    }
    assert!(seen > 20, "only {seen} labels were found");
    none(
        &wrong,
        "add these labels to the .globl and .hidden of their assembly",
    );
}

/// The blocks of Rust in `docs/clients.md`, each with the file to which the last link before it leads.
fn quotations(page: &str) -> Vec<(&str, &str)> {
    let mut found = Vec::new();
    let mut rest = page;
    while let Some((before, after)) = rest.split_once("```rust\n") {
        let (_, link) = before.rsplit_once("](../").unwrap_or_default();
        let source = link.split(')').next().unwrap_or_default();
        // One file may be quoted several times.
        let source = match (source, found.last()) {
            ("", Some(&(last, _))) => last,
            _ => source,
        };
        let (code, next) = after.split_once("```").expect("a block ends");
        found.push((source, code));
        rest = next;
    }
    found
}

#[test]
fn documents_quote_examples_as_they_are() {
    let page = fs::read_to_string(root().join("docs/clients.md")).expect("it is there");
    let quotations = quotations(&page);
    assert!(quotations.len() > 3, "{quotations:?}");
    let wrong: Vec<String> = quotations
        .iter()
        .filter(|(source, code)| {
            let text = fs::read_to_string(root().join(source)).unwrap_or_default();
            !text.contains(code)
        })
        .map(|(source, code)| format!("{source}:\n{code}"))
        .collect();
    none(&wrong, "docs/clients.md has other code than these examples");
}

#[test]
fn words_are_defined_once() {
    let page = fs::read_to_string(root().join("docs/vocabulary.md")).expect("it is there");
    let rows = page.lines().filter_map(|line| line.strip_prefix("| "));
    let words = rows.filter_map(|row| row.split(" | ").next());
    let words: Vec<&str> = words
        .filter(|word| *word != "word")
        .flat_map(|words| words.split(", "))
        .collect();
    assert!(words.len() > 80, "{words:?}");
    let mut seen = BTreeSet::new();
    let wrong: Vec<String> = words
        .iter()
        .filter(|word| !seen.insert(**word))
        .map(|word| (*word).to_owned())
        .collect();
    none(&wrong, "docs/vocabulary.md defines these words twice");
}

/// The most columns of a line of text.
const WIDEST: usize = 120;

/// Whose comments are still wider.
const WIDE: [&str; 0] = [];

/// Returns whether a line is too wide: a comment, or a line of Markdown. Tables, code in texts, and addresses have the
/// width that they need; of code, strings are all that rustfmt leaves wide.
fn is_wide(name: &str, line: &str) -> bool {
    let text = line.trim_start();
    let has_room = line.chars().count() <= WIDEST || line.contains("](") || line.contains("://");
    let counts = match name.rsplit('.').next() {
        Some("rs") => {
            let comment = text.trim_start_matches(['/', '!']);
            comment.len() < text.len()
                && text.starts_with("//")
                // Code, and what is aligned.
                && !comment.contains("    ")
                && !comment.starts_with('~')
                && !comment.starts_with(" |")
        }
        Some("md") => !text.starts_with('|') && !line.starts_with("    "),
        _ => false,
    };
    counts && !has_room
}

#[test]
fn lines_of_text_are_narrow() {
    let wide = "a ".repeat(61);
    assert!(is_wide("a.md", &wide) && is_wide("a.rs", &format!("    // {wide}")));
    assert!(
        !is_wide("a.md", &format!("| {wide}"))
            && !is_wide("a.rs", &wide)
            && !is_wide("a.md", "short")
    );
    let texts = texts();
    let wrong: Vec<String> = texts
        .iter()
        .filter(|(name, _)| !WIDE.iter().any(|at| name.starts_with(at)))
        .flat_map(|(name, text)| {
            let lines = text.lines().enumerate();
            let wide = lines.filter(move |(_, line)| is_wide(name, line));
            wide.map(move |(number, _)| format!("{name}:{}", number + 1))
        })
        .collect();
    none(&wrong, "break these lines: they have more than 120 columns");
    let needless: Vec<String> = WIDE
        .iter()
        .filter(|at| {
            let of = texts.iter().filter(|(name, _)| name.starts_with(**at));
            !of.flat_map(|(name, text)| text.lines().map(move |line| is_wide(name, line)))
                .any(|wide| wide)
        })
        .map(|at| (*at).to_owned())
        .collect();
    none(
        &needless,
        "these have no wide lines any more: remove them from the list",
    );
}
