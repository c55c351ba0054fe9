//! What is recorded lane by lane, of instructions that were expanded, is what is recorded of them otherwise.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use hodo_dbi::{Access, Block, Client, Event, Events, Observe, Target};
use hodo_tests::{Kind, build, has_tool, hodo, needs};

/// What a program does from where it is executed by `setarch` on.
#[derive(Debug, Default, PartialEq, Eq)]
struct Done {
    /// Of special instructions: how often they were executed, by address.
    executed: BTreeMap<u64, u64>,
    /// Their accesses, if these are not too many.
    lanes: Vec<(u64, Access)>,
    /// The number of all accesses, and a sum of what they are and of their order.
    accesses: u64,
    sum: u64,
    signals: u32,
}

impl Done {
    fn access(&mut self, pc: u64, access: &Access) {
        let Access { address, size, .. } = *access;
        let all = [
            pc,
            address,
            size.into(),
            access.kind as u64,
            access.offset.into(),
        ];
        self.sum = all.iter().fold(self.sum, |sum, word| {
            (sum.rotate_left(5) ^ word).wrapping_mul(0x9E37_79B9_7F4A_7C15)
        });
        self.accesses += 1;
    }
}

#[derive(Default)]
struct Heard {
    expanded: bool,
    done: Done,
    /// Executions of instructions that were expanded.
    lanes: u64,
}

impl Client for Heard {
    fn events(&self) -> Events {
        match self.expanded {
            true => Events::default().expanded(),
            false => Events::default(),
        }
    }

    fn event(&mut self, _: u32, event: &Event<'_>) {
        match event {
            // It was setarch.
            Event::Executed => self.done = Done::default(),
            Event::Signal { .. } => self.done.signals += 1,
            _ => {}
        }
    }

    fn executed(&mut self, _: u32, block: &Arc<Block>, upto: usize, accesses: &[Access]) {
        /// Others are only summed up.
        const MOST: usize = 100_000;
        self.lanes += u64::from(block.is_expanded());
        if block.is_special() {
            *self.done.executed.entry(block.insns[0].pc).or_default() += upto as u64;
        }
        for access in accesses {
            let pc = block.insns[usize::from(access.insn)].pc;
            self.done.access(pc, access);
            if block.is_special() && self.done.lanes.len() < MOST {
                self.done.lanes.push((pc, *access));
            }
        }
    }
}

/// Observes a program whose addresses are always the same.
fn heard(program: &Path, arguments: &[&str], expanded: bool) -> Heard {
    let words = ["setarch".into(), "-R".into(), OsString::from(program)];
    let arguments = arguments.iter().map(OsString::from);
    let command: Vec<OsString> = words.into_iter().chain(arguments).collect();
    let setarch = hodo_dbi::find_program(&command[0]).expect("it is installed");
    let client = Heard {
        expanded,
        ..Heard::default()
    };
    let target = Target::program(&setarch, &command);
    let observed = hodo_dbi::observe(&target, Observe::Accesses, client);
    observed.expect("the program can be observed").1
}

/// Observes a program in both ways. Returns how many instructions were expanded.
fn is_same(program: &Path, arguments: &[&str]) -> u64 {
    let [plain, expanded] = [false, true].map(|expanded| heard(program, arguments, expanded));
    assert_eq!(plain.lanes, 0);
    let (one, other) = (&plain.done, &expanded.done);
    let mut pairs = one.lanes.iter().zip(&other.lanes);
    if let Some((plain, expanded)) = pairs.find(|(a, b)| a != b) {
        panic!("accesses differ: {plain:x?}, expanded {expanded:x?}");
    }
    assert_eq!(one.accesses, other.accesses);
    assert!(one == other, "what is executed differs");
    expanded.lanes
}

fn has_gathers() -> bool {
    std::arch::is_x86_feature_detected!("avx2")
}

#[test]
fn gathers_and_scatters() {
    needs!(
        has_tool("setarch") && has_gathers(),
        "it cannot be run here"
    );
    let program = build("gathers.c", Kind::Pie, &["-O1"]);
    assert!(is_same(&program, &["1"]) > 50);
    assert!(is_same(&program, &["1", "faults"]) > 50);
}

#[test]
fn masked_loads_and_stores() {
    needs!(
        has_tool("setarch") && has_gathers(),
        "it cannot be run here"
    );
    let program = build("masked_moves.c", Kind::Pie, &["-O1", "-w"]);
    assert!(is_same(&program, &["1"]) > 50);
    assert!(is_same(&program, &["1", "faults"]) > 50);
}

/// They fill a buffer many times.
#[test]
fn many_lanes() {
    needs!(
        has_tool("setarch") && has_gathers(),
        "it cannot be run here"
    );
    let program = build("many_lanes.c", Kind::Pie, &["-O1"]);
    assert!(is_same(&program, &["100000"]) >= 300_000);
}

#[test]
fn all_kinds_of_masks() {
    needs!(
        has_tool("setarch") && has_gathers(),
        "it cannot be run here"
    );
    for source in ["masks.c", "tainted_lanes.c"] {
        let program = build(source, Kind::Static, &["-O1"]);
        is_same(&program, &[]);
    }
    // Other special instructions.
    is_same(&build("accesses.c", Kind::Static, &[]), &[]);
}

/// `hodo mem` that runs programs whose addresses are always the same.
fn mem(tool: &str) -> Command {
    let mut command = Command::new("setarch");
    command.arg("-R").arg(hodo()).args(["mem", tool]);
    command.env("PYTHONHASHSEED", "0");
    // Else, the C library loads what a mask selects that comes from garbage after strings.
    command.env("GLIBC_TUNABLES", "glibc.cpu.hwcaps=-AVX512VL");
    command
}

/// What a tool writes of a program.
fn written(tool: &str, options: &[&str], program: &[&str]) -> String {
    let name = Path::new(program[0]).file_name().expect("a name");
    let name = format!("expanded-{tool}-{}-{}", options.len(), name.display());
    let output = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let mut command = mem(tool);
    command.args(options).arg("-o").arg(&output);
    let ended = command.arg("--").args(program).output();
    let ended = ended.expect("hodo can be run");
    assert!(ended.status.success(), "{ended:?}");
    let text = std::fs::read_to_string(output).expect("its output");
    // Threads have other numbers each time.
    match text.split_once(r#""threads":["#) {
        Some((before, after)) => before.to_owned() + after.split_once(']').expect("an end").1,
        None => text,
    }
}

/// What a tool writes in both ways.
fn in_both_ways(tool: &str, options: &[&str], program: &[&str]) -> [String; 2] {
    let with: Vec<&str> = options.iter().copied().chain(["--expand"]).collect();
    [options, &with].map(|options| written(tool, options, program))
}

/// Runs a tool in both ways, which must write the same.
fn tool_is_same(tool: &str, options: &[&str], program: &[&str]) {
    let [plain, expanded] = in_both_ways(tool, options, program);
    assert!(!plain.is_empty());
    assert!(
        plain == expanded,
        "{tool} of {program:?}: {plain:.300}, expanded {expanded:.300}"
    );
}

const JSON: [&str; 2] = ["--format", "json"];

#[test]
fn all_tools_write_the_same() {
    needs!(
        has_tool("setarch") && has_gathers(),
        "it cannot be run here"
    );
    let program = build("many_lanes.c", Kind::Pie, &["-O1"]);
    let program = [program.to_str().expect("text"), "2000"];
    let caches = [
        "--format", "json", "--i1", "32K,8,64", "--d1", "2K,8,64", "--ll", "1M,16,64",
    ];
    tool_is_same("stat", &JSON, &program);
    tool_is_same("view", &["--format", "csv"], &program);
    tool_is_same("cache", &caches, &program);
    tool_is_same("opcodes", &JSON, &program);
    tool_is_same("bbcount", &JSON, &program);
    tool_is_same("reuse", &JSON, &program);
    tool_is_same("working-set", &JSON, &program);
    tool_is_same("hot", &JSON, &program);
}

#[test]
fn ordinary_programs() {
    needs!(has_tool("setarch"), "it is not installed");
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/engine/accesses.rs");
    let script = "import array\n\
                  a = array.array('d', range(2000)); b = array.array('i', range(2000))\n\
                  print(sum(a[i] * b[(i * 7) % 2000] for i in range(2000)), a[::-1] == a, b'x' * 99 in bytes(999))";
    for program in [
        &[
            "bash",
            "-c",
            "x=; for i in {1..300}; do x+=$i; done; echo ${#x} ${x//1/2}",
        ][..],
        &["gzip", "-c", file],
        &["/usr/bin/python3", "-c", script],
    ] {
        if has_tool(program[0]) {
            // Some do a little more or less at other times.
            let mut all = (0..8).map(|_| in_both_ways("stat", &JSON, program));
            let is_same = all.any(|[plain, expanded]| !plain.is_empty() && plain == expanded);
            assert!(is_same, "stat of {program:?}");
        }
    }
}

/// A recording says what a tool says that hears it at once.
#[test]
fn recordings_are_the_same() {
    needs!(
        has_tool("setarch") && has_gathers(),
        "it cannot be run here"
    );
    let program = build("many_lanes.c", Kind::Pie, &["-O1"]);
    let program = [program.to_str().expect("text"), "2000"];
    let view = |name: &str, options: &[&str]| {
        let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        let mut command = mem("record");
        command.arg("-d").arg(&directory).args(options);
        let recorded = command.arg("--").args(program).output();
        let recorded = recorded.expect("hodo can be run");
        assert!(recorded.status.success(), "{recorded:?}");
        let mut command = mem("view");
        let viewed = command.args(["--format", "csv", "-d"]).arg(&directory);
        let viewed = viewed.output().expect("hodo can be run");
        assert!(viewed.status.success(), "{:?}", viewed.stderr);
        String::from_utf8(viewed.stdout).expect("text")
    };
    let csv = ["--format", "csv", "--expand"];
    let expanded = view("expanded-record", &["--expand"]);
    assert!(expanded == view("expanded-record-plain", &[]));
    assert!(expanded == written("view", &csv, &program));
    assert!(expanded.len() > 100_000);
}
